# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nodes of a sweep on this machine: each a thread with an address of its own, and stand-ins for the IB tools."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _sweep_run

from tests.unit.ports import free_port

PORTS_OF_A_NODE = 40


def control_port() -> int:
    """Return a port with room above it for what up to five nodes measure on."""
    return free_port(above=5 * PORTS_OF_A_NODE)


def stand_ins(tools: Mapping[str, str], output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put shell scripts first on PATH and return the directory of their faults, which is $STATE to them.

    In a script FIXTURE is the file with what the tool prints, and PYTHON is this interpreter.
    """
    bin_dir, state = tmp_path / "bin", tmp_path / "state"
    bin_dir.mkdir()
    state.mkdir()
    for name, body in tools.items():
        file = bin_dir / name
        file.write_text("#!/bin/sh\n" + body.replace("PYTHON", sys.executable).replace("FIXTURE", str(output)))
        file.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_dir}:/usr/bin:/bin")
    monkeypatch.setattr(_sweep_run._cli, "_search_path", lambda: f"{bin_dir}:/usr/bin:/bin")
    monkeypatch.setenv("STATE", str(state))
    real = _sweep_run.tcp_port

    def port(*given: Any) -> int:
        name = threading.current_thread().name
        return real(*given) + (PORTS_OF_A_NODE * int(name[1:]) if name.startswith("n") else 0)

    # The nodes share one host here, and two that measure at the same time must not share a port.
    monkeypatch.setattr(_sweep_run, "tcp_port", port)
    return state


def options(
    arguments: Mapping[str, Mapping[str, Any]],
    node: str,
    names: Iterable[str],
    racks: Mapping[str, str] | None = None,
    **extra: Any,
) -> dict[str, Any]:
    """Return a node's options: the defaults of the module's arguments, its peers, two rails, and what is given."""
    defaults = {name: spec.get("default") for name, spec in arguments.items()}
    peers = [
        {"name": name, "address": f"127.0.0.{int(name[1:]) + 1}", "rack": (racks or {}).get(name, "")} for name in names
    ]
    return {**defaults, "node": node, "peers": peers, "hcas": ["mlx5_0", "mlx5_1"], "meet_timeout": 20.0, **extra}


def together(names: Iterable[str], one: Callable[[str], None]) -> None:
    """Call a function for each node at the same time."""
    threads = [threading.Thread(target=one, args=(name,), name=name) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

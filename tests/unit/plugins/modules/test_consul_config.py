# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module consul_config with a stand-in consul and systemctl."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _files
from ansible_collections.ai_infra.gpu_rack.plugins.modules import consul_config

from tests.unit.module_runner import Run, runner

KEY = "BrGQMML69LXI302+gSVn6V1DDsyBnEV3NgWtiUZMumA="
TOKENS = {"initial_management": "m-secret-token", "agent": "a-secret-token"}


def tool(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def consul(path: Path, version: str = "1.8.7") -> None:
    """Put a consul there that refuses a bad_key, as the real one does."""
    tool(
        path,
        f'case $1 in version) echo "Consul v{version}"; exit;; esac\nshift\n'
        'if grep -q bad_key "$@"; then echo "Config validation failed: invalid config key bad_key" >&2; exit 1; fi',
    )


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "bin").mkdir()
    consul(tmp_path / "bin" / "consul")
    tool(tmp_path / "bin" / "systemctl", "printf 'LoadState=loaded\\nActiveState=inactive\\n'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setattr(os, "fchown", lambda *_args: None)
    monkeypatch.setattr(os, "chown", lambda *_args: None)
    monkeypatch.setattr(_files, "_user", lambda _uid: "root")
    monkeypatch.setattr(_files, "_group", lambda _gid: "root")
    monkeypatch.setattr(consul_config, "directory_change", lambda path, _group: None if os.path.isdir(path) else {})
    return tmp_path


@pytest.fixture
def run(root: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    base = runner(consul_config, capsys)
    standard: dict[str, Any] = {
        "config": {"data_dir": "/var/lib/consul"},
        "gossip_key": KEY,
        "tokens": TOKENS,
        "directory": str(root / "consul.d"),
        "binary": str(root / "bin" / "consul"),
        "group": "root",
    }
    return lambda **args: base(**{**standard, **args})


def test_the_files_are_written_once_and_the_secrets_are_nowhere_else(run: Run, root: Path) -> None:
    (root / "consul.d").mkdir()
    assert run(check_mode=True)["changed"] is True
    assert list((root / "consul.d").iterdir()) == []
    first = run()
    assert (first["changed"], first["version"]) == (True, "1.8.7")
    secrets = root / "consul.d" / "secrets.json"
    assert json.loads(secrets.read_text())["acl"]["tokens"] == {"master": "m-secret-token", "agent": "a-secret-token"}
    assert secrets.stat().st_mode & 0o777 == 0o640
    assert "secret-token" not in json.dumps(first)
    assert KEY not in json.dumps(first)
    assert "m-secret-token" not in (root / "consul.d" / "consul.json").read_text()
    assert run()["changed"] is False


def test_another_secret_is_a_difference_that_does_not_show_it(run: Run, root: Path) -> None:
    (root / "consul.d").mkdir()
    run()
    result = run(tokens={**TOKENS, "agent": "b-secret-token"}, check_mode=True)
    assert result["files"] == [str(root / "consul.d" / "secrets.json")]
    assert "<another secret>" in result["diff"][0]["after"]
    assert "secret-token" not in json.dumps(result)


def test_a_newer_consul_gets_the_new_name(run: Run, root: Path) -> None:
    (root / "consul.d").mkdir()
    consul(root / "bin" / "consul", "1.18.2")
    run()
    tokens = json.loads((root / "consul.d" / "secrets.json").read_text())["acl"]["tokens"]
    assert sorted(tokens) == ["agent", "initial_management"]


def test_what_consul_refuses_never_replaces_what_runs(run: Run, root: Path) -> None:
    (root / "consul.d").mkdir()
    run()
    result = run(config={"bad_key": 1})
    assert "invalid config key bad_key. Correct the configuration" in result["msg"]
    assert json.loads((root / "consul.d" / "consul.json").read_text()) == {"data_dir": "/var/lib/consul"}


def test_a_missing_binary_is_an_error_but_not_before_the_install(run: Run, root: Path) -> None:
    missing = str(root / "nowhere")
    assert f"consul version of {missing}: could not start" in run(binary=missing)["msg"]
    assert run(binary=missing, check_mode=True)["version"] is None


def test_a_consul_that_is_too_old_is_refused(run: Run, root: Path) -> None:
    consul(root / "bin" / "consul", "1.4.0")
    assert "version 1.4.0 is older than 1.8.0" in run()["msg"]


def test_a_process_that_has_not_read_its_files_is_a_change(run: Run, root: Path) -> None:
    (root / "consul.d").mkdir()
    run()
    tool(
        root / "bin" / "systemctl",
        "printf 'LoadState=loaded\\nActiveState=active\\nExecMainStartTimestampMonotonic=1\\n'",
    )
    os.utime(root / "consul.d" / "consul.json", (4e9, 4e9))
    result = run()
    assert (result["changed"], result["stale"], result["files"]) == (True, True, [])

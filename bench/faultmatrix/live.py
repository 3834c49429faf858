# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A gate's live path with real processes: what a tool does besides printing (hang, die, be missing) needs one.

The node's tools are small scripts in a directory that comes first on PATH. They print what the bundle holds; the broken
one does what its fault says. The hanging one leaves a grandchild that keeps its output open, as a shell wrapper around
a tool in D state does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simhw import bundle as simulated

from bench import gaterun
from bench.faultmatrix.judge import Case, Node, decide, make

DEADLINE_S = 1.0

# Arguments that must be among the tool's, the first line that fits is it: (tool, arguments, file of the bundle).
_ANSWERS: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("nvidia-smi", ("topo",), "nvidia-smi-topo-m.txt"),
    ("nvidia-smi", ("nvlink", "-s"), "nvidia-smi-nvlink-s.txt"),
    ("nvidia-smi", ("nvlink", "-e"), "nvidia-smi-nvlink-e.txt"),
    ("nvidia-smi", ("-q",), "nvidia-smi-q.txt"),
    # No process uses a GPU.
    ("nvidia-smi", ("--query-compute-apps=gpu_uuid,pid,process_name",), "/dev/null"),
    ("ibstat", (), "ibstat.txt"),
    ("chronyc", ("tracking",), "chronyc-tracking.txt"),
    ("chronyc", ("sources",), "chronyc-sources.txt"),
    ("dmesg", (), "dmesg.txt"),
    ("journalctl", (), "journalctl-k.txt"),
    ("all_reduce_perf", (), "all_reduce_perf-board.txt"),
)
_BROKEN = {
    "hangs": "sleep 600 &\nwait\n",
    "garbage": "printf '\\177ELF\\002\\001 8<<< ### ? 0x7fff\\tnan,,nan;;\\n{]}(( 3.14.15 GPU?? NV-1\\n'\n",
    "empty": "exit 0\n",
    "error exit 0": 'echo "$0: Unknown Error"\n',
    "exit 5": "echo 'failed' >&2\nexit 5\n",
    "killed": "kill -KILL $$\n",
}


def _script(tool: str, bundle: Path) -> str:
    lines = ["#!/bin/sh", 'args=" $* "']
    queries = sorted(bundle.glob("perfquery-*.txt"))
    ports = [("perfquery", (file.stem.partition("-")[2],), file.name) for file in queries]
    for name, words, file in (*_ANSWERS, *ports):
        if name == tool:
            tests = " && ".join(f'[ "${{args#* {word} }}" != "$args" ]' for word in words) or "true"
            lines.append(f"if {tests}; then exec cat {shlex.quote(str(bundle / file))}; fi")
    return "\n".join([*lines, "echo 'option is not recognized' >&2", "exit 2", ""])


def _install(bin_dir: Path, bundle: Path, broken: Mapping[str, str]) -> None:
    bin_dir.mkdir()
    for tool in {name for name, _words, _file in _ANSWERS} | {"perfquery"} | set(broken):
        how = broken.get(tool)
        if how == "missing":
            continue
        path = bin_dir / tool
        path.write_text(f"#!/bin/sh\n{_BROKEN[how]}" if how else _script(tool, bundle), encoding="utf-8")
        path.chmod(0o755)


@contextlib.contextmanager
def _on_path(directory: Path) -> Iterator[None]:
    before = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{directory}:/usr/bin:/bin"
    try:
        yield
    finally:
        os.environ["PATH"] = before


def judge(case: Case, gate: str, tools: Mapping[str, str], place: Path, run: str) -> tuple[Node, dict[str, Any]]:
    """Run one gate live and return the decision that rests on it alone."""
    from bench.faultmatrix.gates import GATES

    bundle = place / f"bundle-{run}"
    bundle.mkdir()
    node, _views = make(case, bundle)
    # The clock's age is judged against now, and here now is now.
    tracking = bundle / "chronyc-tracking.txt"
    text = tracking.read_text(encoding="utf-8")
    tracking.write_text(text.replace(str(simulated.NOW - 25), str(int(time.time()) - 25)), encoding="utf-8")
    bin_dir = place / f"bin-{run}"
    _install(bin_dir, bundle, tools)
    entry = next(g for g in GATES if g.name == gate)
    evidence = place / "state" / "evidence" / run / entry.stage
    arguments = {**entry.options(node), **case.options.get(gate, {}), "timeout": DEADLINE_S}
    with _on_path(bin_dir):
        gaterun.run_module(entry.module or gate, {**arguments, "evidence_dir": str(evidence), "enforce": False})
    return node, decide(entry.stage, [gate], evidence, place / "state", run)


def healed(case: Case) -> Case:
    """Return the case with every tool in order."""
    return dataclasses.replace(case, faults=())

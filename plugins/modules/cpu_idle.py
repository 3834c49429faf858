#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate: no CPU may enter an idle state that takes long to leave."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cpu_idle
short_description: Judge the idle states the kernel may use by their exit latency
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - Reads C(cpuidle/state*/name), C(latency) and C(disable) of every CPU in one go. A state that is enabled and
    takes longer to leave
    than the limit is a V(fail), whatever it is called. The offending CPUs are named as ranges.
  - Without any idle states the node passes only when the kernel says that it has no idle driver and its command
    line asks for that.
  - The proof is a second reading after O(interval). Time that a CPU has spent meanwhile in a state over the limit is a
    V(fail), also when the state's disable flag is set. The kernel counts when a CPU leaves a state, so a longer
    interval finds more.
  - Of O(captured) readings the growth is judged only when there are two of them. With one, C(cpu_idle.residency) is not
    among the checks.
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  captured:
    description:
      - A directory that holds a copy of C(/sys) or of C(/sys/devices/system/cpu), optionally with C(cmdline)
        beside it, or a file.
      - The file is a dump as this module stores it, the output of C(grep -r .
        /sys/devices/system/cpu/cpu*/cpuidle/), or C(cpupower -c all idle-info). Without C(-c all) cpupower shows one
        CPU, and only that one is judged.
      - With more than one CPU in it they have to count from 0 on without a gap, or the text also holds
        C(/sys/devices/system/cpu/online) as C(grep) prints it. Otherwise it is taken as cut off, which is V(unknown).
      - A directory may hold two such files, C(cpuidle-1.txt) and C(cpuidle-2.txt), taken one after the other.
    type: path
  profile:
    description: Board profile the limit is taken from.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
    default: hgx_h100_8
  max_exit_latency_us:
    description:
      - Longest accepted exit latency of an enabled state in microseconds, in place of the profile's 2.
      - C1 takes 1 to 2 microseconds on the servers H100 boards sit in, C1E up to 10, C6 more than 100.
    type: int
  interval:
    description:
      - Seconds between the two readings of the counters. With V(0) there is one reading, and growth is not judged.
    type: float
    default: 0.5
  sysfs_root:
    description: Where sysfs is mounted.
    type: path
    default: /sys
  cmdline:
    description: Where the kernel shows its command line.
    type: path
    default: /proc/cmdline
"""

EXAMPLES = r"""
- name: Prove that the CPUs stay awake
  ai_infra.gpu_rack.cpu_idle:

# ansible localhost -m ai_infra.gpu_rack.cpu_idle -a "captured=bundle/sys"
- name: Judge a copy of sysfs
  ai_infra.gpu_rack.cpu_idle:
    captured: bundle/sys
    max_exit_latency_us: 10
"""

RETURN = r"""
verdict:
  description: The worst verdict of all checks, one of V(pass), V(warn), V(unknown), V(fail).
  type: str
  returned: always
summary:
  description: One line that names the first of the worst checks with its measured value and limit.
  type: str
  returned: always
gate:
  description: Name of the gate, V(cpu_idle).
  type: str
  returned: always
checks:
  description: >-
    Every judged fact, C(cpu_idle.exit_latency), C(cpu_idle.residency), and, when something is missing,
    C(cpu_idle.output) and C(cpu_idle.whole).
  type: list
  elements: dict
  returned: always
evidence:
  description: The reading with its digest; the states too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
driver:
  description: The kernel's idle driver, empty when it could not be read.
  type: str
  returned: always
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cpuidle import (
    GATE,
    Idle,
    dump,
    judge,
    later,
    parse,
    read_tree,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence, unknown

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES), "default": "hgx_h100_8"},
    "max_exit_latency_us": {"type": "int"},
    "interval": {"type": "float", "default": 0.5},
    "sysfs_root": {"type": "path", "default": "/sys"},
    "cmdline": {"type": "path", "default": "/proc/cmdline"},
}
COMMAND = ("read", "sysfs", "cpuidle")
FIRST = ("cpuidle-1.txt", "cpuidle.txt", "cpupower-idle-info.txt")
SECOND = "cpuidle-2.txt"


def read(params: dict[str, Any]) -> tuple[Idle | None, Evidence]:
    """Return the idle states and the reading; None when they could not be read."""
    captured = params["captured"]
    if captured is None:
        idle = read_tree(Path(params["sysfs_root"]), Path(params["cmdline"]))
        if params["interval"]:
            time.sleep(params["interval"])
            idle = later(idle, read_tree(Path(params["sysfs_root"]), Path(params["cmdline"])))
        return idle, _reading("", dump(idle))
    root = Path(captured)
    source = Source(captured, params["timeout"])
    if root.is_dir() and not any((root / name).is_file() for name in FIRST):
        places = (root / "cmdline", root.parent / "cmdline", root.parent / "proc/cmdline")
        idle = read_tree(root, next((p for p in places if p.is_file()), places[0]))
        return idle, _reading(captured, dump(idle))
    evidence = source.read(COMMAND, *FIRST)
    found, problem = _parsed(evidence)
    if found is not None and root.is_dir() and (root / SECOND).is_file():
        second, problem = _parsed(source.read(COMMAND, SECOND))
        found = later(found, second) if second is not None else None
    if found is None:
        return None, dataclasses.replace(evidence, error=problem)
    return found, _reading(captured, dump(found)) if root.is_dir() else evidence


def _reading(captured: str, text: str) -> Evidence:
    """Return the evidence of files that were read without a tool."""
    command = " ".join(COMMAND)
    return Evidence(f"captured {captured}" if captured else command, 0, text, stands_for=command, needed=True)


def _parsed(evidence: Evidence) -> tuple[Idle | None, str | None]:
    """Return the idle states of a text, or why they cannot be read."""
    if reason := refusal(evidence):
        return None, reason
    try:
        return parse(evidence.stdout), None
    except ValueError as exc:
        return None, str(exc)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, not_negative=["max_exit_latency_us", "interval"])
    params = module.params
    limit, limit_source = params["max_exit_latency_us"], "option max_exit_latency_us"
    if limit is None:
        board = profile(params["profile"])
        limit, limit_source = board.cpu_exit_latency_us.value, board.source
    idle, evidence = read(params)
    if idle is None:
        reason = evidence.error or "it could not be read"
        checks = [
            unknown(
                "cpu_idle.output",
                "cpuidle",
                reason,
                "Give a copy of /sys, a stored dump, or the output of grep over the files.",
            )
        ]
    else:
        checks = judge(idle, limit, limit_source)
    finish_gate(module, GATE, checks, [evidence], driver=idle.driver if idle else "")


if __name__ == "__main__":
    main()

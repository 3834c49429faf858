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
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  captured:
    description:
      - A directory that holds a copy of C(/sys) or of C(/sys/devices/system/cpu), optionally with C(cmdline)
        beside it, or a file.
      - The file is a dump as this module stores it, or the output of C(grep .
        /sys/devices/system/cpu/cpu*/cpuidle/state*/*).
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
  description: Every judged fact, C(cpu_idle.exit_latency) and C(.output).
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
    parse,
    read_tree,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence, unknown

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES), "default": "hgx_h100_8"},
    "max_exit_latency_us": {"type": "int"},
    "sysfs_root": {"type": "path", "default": "/sys"},
    "cmdline": {"type": "path", "default": "/proc/cmdline"},
}
COMMAND = ("read", "sysfs", "cpuidle")


def read(params: dict[str, Any]) -> tuple[Idle | None, Evidence]:
    """Return the idle states and the reading; None when they could not be read."""
    captured = params["captured"]
    if captured is None or Path(captured).is_dir():
        root = Path(captured or params["sysfs_root"])
        cmdline = Path(params["cmdline"])
        if captured:
            cmdline = next(
                (p for p in (root / "cmdline", root.parent / "cmdline", root.parent / "proc/cmdline") if p.is_file()),
                root / "cmdline",
            )
        idle = read_tree(root, cmdline)
        return idle, Evidence(" ".join(COMMAND) if captured is None else f"captured {root}", 0, dump(idle))
    source = Source(captured, params["timeout"])
    evidence = source.read(COMMAND)
    if reason := refusal(evidence):
        return None, Evidence(evidence.command, evidence.rc, evidence.stdout, "", None, reason)
    try:
        return parse(evidence.stdout), evidence
    except ValueError as exc:
        return None, Evidence(evidence.command, evidence.rc, evidence.stdout, "", None, str(exc))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, not_negative=["max_exit_latency_us"])
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
                f"{GATE}.output",
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

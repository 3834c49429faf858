#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate: the running engines are on the CPUs and in the memory of their GPUs' NUMA node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: numa_binding
short_description: Prove on the running units that they are bound to their NUMA node
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - For each inference unit it reads the processes of C(vllm@<unit>.service) from its control group, and of each process
    C(/proc/PID/status) and C(/proc/PID/numa_maps). The configuration of the unit is not looked at.
  - A process must not be allowed to run on a CPU outside the unit's set, its memory policy must not name another node,
    and at least O(min_local) of its own memory must be on the unit's node. Its own memory is heap, stack, anonymous
    and shared memory and huge pages. Pages of files (libraries, mapped weights) belong to the page cache and may be
    anywhere.
  - The kernel walks all pages of a process for C(numa_maps) and holds its memory lock meanwhile, which takes seconds
    with hundreds of gigabytes. Run it as a gate and not as a monitor.
  - A unit that does not run is a V(fail), a process without pages of its own is V(unknown).
  - With O(captured) a single file may be one of C(numa_maps), C(status), C(numactl --show), C(numactl --hardware),
    C(numastat -p) or C(taskset -pc); give O(node) and O(cpus) as far as it shows them. What the file does not show is
    not among the checks.
  - Without O(node), C(numa_maps), C(numastat) and C(numactl --show) are held against the one node they show themselves
    (most of the memory, C(nodebind)), so that a process that spreads over several is a V(fail). C(numactl --hardware)
    is judged for what the host has. A C(numa_maps) that lost whole lines cannot be told from a whole one.
    C(status) and C(taskset) show nothing without the options, which is V(unknown).
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  captured:
    description:
      - Judge stored readings in place of the node's.
      - A directory holds C(inference_units.json), for each unit C(<unit>.systemctl.txt) and C(<unit>.cgroup.procs.txt),
        and for each process C(status-PID.txt) and C(numa_maps-PID.txt). Without the first, all processes in it are held
        against O(node) and O(cpus).
    type: path
  profile:
    description: Accepted so that all gates can be called alike. No limit of this gate depends on the board.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  units_file:
    description: File of the gate M(ai_infra.gpu_rack.inference_units).
    type: path
    default: /etc/gpu_rack/inference_units.json
  node:
    description: NUMA node the processes belong to, in place of O(units_file). Only with O(captured).
    type: int
  cpus:
    description: CPUs the processes may run on, such as V(0-27), in place of O(units_file). Only with O(captured).
    type: str
  min_local:
    description: Smallest accepted share of a process's own memory on the unit's node, of 1.
    type: float
    default: 0.95
  binding:
    description:
      - V(unit) when the unit itself is bound, so that every process of it is judged. V(engine) when vLLM binds its
        workers (C(--numa-bind)), so that only processes named C(VLLM::Worker) are.
      - A unit whose GPUs are on several NUMA nodes (HGX boards of four GPUs) can only be judged with V(engine). Each
        worker must then be bound to one of these nodes, the one that holds most of its memory, each node must have a
        worker, and its CPUs must be among those of the unit. Which node is nearest to which worker's GPU is not judged.
    type: str
    choices: [unit, engine]
    default: unit
seealso:
  - module: ai_infra.gpu_rack.inference_units
  - module: ai_infra.gpu_rack.vllm_units
"""

EXAMPLES = r"""
- name: Prove that the engines run on the NUMA node of their GPUs
  ai_infra.gpu_rack.numa_binding:

# ansible localhost -m ai_infra.gpu_rack.numa_binding -a "captured=numa_maps node=0"
- name: Judge the memory of one stored process
  ai_infra.gpu_rack.numa_binding:
    captured: numa_maps
    node: 0
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
  description: Name of the gate, V(numa_binding).
  type: str
  returned: always
checks:
  description: >-
    Every judged fact, C(numa_binding.unit), C(numa_binding.cpus), C(numa_binding.policy),
    C(numa_binding.local_memory), C(numa_binding.spread) and C(numa_binding.nodes).
  type: list
  elements: dict
  returned: always
evidence:
  description: The readings with their digests; the texts too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
"""

import json
import os
import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _numa_binding, _vllm
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._numa_binding import Unit
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import format_set, number_set
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, unknown

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES)},
    "units_file": {"type": "path", "default": "/etc/gpu_rack/inference_units.json"},
    "node": {"type": "int"},
    "cpus": {"type": "str"},
    "min_local": {"type": "float", "default": 0.95},
    "binding": {"type": "str", "choices": ["unit", "engine"], "default": "unit"},
}
# Where a service's control group is: cgroup v2, then v1's own hierarchy of systemd, then both mixed.
_CGROUPS = ("/sys/fs/cgroup", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified")
_PROPERTIES = "ActiveState,SubState,MainPID,ControlGroup"
_GONE = re.compile(r"No such (file or directory|process)")
_SPANS = "Let the engine bind its workers (role vllm_iu, vllm_iu_binding: engine) and judge with binding=engine."
_REMEDY = "Run the gate inference_units, which writes the file."


def read_units(source: Source, params: dict[str, Any]) -> list[Unit] | str:
    """Return the units there are, or why they are not known."""
    if params["node"] is not None or params["cpus"] is not None:
        return [Unit("unit", number_set(params["cpus"]), params["node"])]
    evidence = source.read(["cat", params["units_file"]], "inference_units.json")
    if reason := refusal(evidence):
        return reason
    try:
        units = _vllm.parse_units(json.loads(evidence.stdout))
    except (ValueError, RecursionError) as exc:
        return f"{evidence.command}: {exc}"
    return [
        Unit(u.id, number_set(u.cpus), u.numa_nodes[0])
        if len(u.numa_nodes) == 1
        else Unit(u.id, number_set(u.cpus), None, frozenset(u.numa_nodes))
        for u in units
    ]


def text(evidence: Evidence) -> str:
    """Return what was read, or '!' and why it was not."""
    reason = refusal(evidence)
    return f"!{reason}" if reason is not None else evidence.stdout


def processes(source: Source, unit: str, group: str) -> tuple[list[int], str | None]:
    """Return the numbers of a unit's processes, those of groups below it too, and why there are none."""
    problem: str | None = None
    for root in _CGROUPS:
        argv = ["grep", "-rhs", "--include=cgroup.procs", ".", f"{root}{group}"]
        listed = source.read(argv, f"{unit}.cgroup.procs.txt", needed=False)
        lines = listed.stdout.split()
        # grep ends with 2 when one of the groups has gone meanwhile.
        if lines and listed.error is None and all(re.fullmatch(r"[1-9][0-9]{0,9}", line) for line in lines):
            return sorted({int(line) for line in lines}), None
        problem = problem or refusal(listed) or f"{listed.command} lists no processes"
    return [], problem


def judge_unit(source: Source, unit: Unit, params: dict[str, Any]) -> list[Check]:
    """Read and judge one unit's processes."""
    if unit.nodes and params["binding"] == "unit":
        reason = f"its GPUs are on NUMA nodes {format_set(unit.nodes)}, and a whole unit cannot be bound to one of them"
        return [unknown("numa_binding.unit", unit.name, reason, _SPANS)]
    argv = ["systemctl", "show", f"vllm@{unit.name}.service", f"--property={_PROPERTIES}"]
    shown = source.read(argv, f"{unit.name}.systemctl.txt")
    state = dict(line.split("=", 1) for line in shown.stdout.splitlines() if "=" in line)
    pids: list[int] = []
    problem = refusal(shown)
    if problem is None and state.get("ActiveState") == "active":
        if not re.fullmatch(r"(/[\w.@:\\-]+)+", state.get("ControlGroup", "")):
            problem = f"systemd names no control group: {state.get('ControlGroup')!r}"
        else:
            pids, problem = processes(source, unit.name, state["ControlGroup"])
    checks = [_numa_binding.unit_check(unit.name, state, pids, problem)]
    main = state.get("MainPID", "0")
    judged: list[str] = []
    for pid in pids:
        status = source.read(["cat", f"/proc/{pid}/status"], f"status-{pid}.txt", needed=False)
        if str(pid) != main and status.rc == 1 and _GONE.search(status.stderr):
            continue  # a helper that has ended since the list was read
        name = _numa_binding.parse_status(status.stdout).name
        if params["binding"] == "engine" and status.rc == 0 and not name.startswith("VLLM::Worker"):
            continue
        maps = source.read(["cat", f"/proc/{pid}/numa_maps"], f"numa_maps-{pid}.txt", needed=False)
        judged.append(text(maps))
        checks += _numa_binding.judge_process(unit, f"pid {pid}", text(status), text(maps), params["min_local"])
    if unit.nodes and judged:
        checks.append(_numa_binding.spread_check(unit, judged))
    if pids and not judged:
        reason = "none of its processes is a worker of vLLM (VLLM::Worker), which binding=engine judges"
        checks.append(unknown("numa_binding.unit", unit.name, reason, "Use binding=unit when the unit is bound."))
    return checks


def judge_directory(source: Source, unit: Unit, params: dict[str, Any]) -> list[Check]:
    """Judge all processes of a directory as one unit's."""
    pids = sorted(
        {
            int(m[1])
            for name in os.listdir(params["captured"])
            if (m := re.fullmatch(r"(?:status|numa_maps)-([0-9]{1,10})\.txt", name))
        }
    )
    checks: list[Check] = []
    for pid in pids:
        status = source.read(["cat", f"/proc/{pid}/status"], f"status-{pid}.txt")
        maps = source.read(["cat", f"/proc/{pid}/numa_maps"], f"numa_maps-{pid}.txt")
        checks += _numa_binding.judge_process(unit, f"pid {pid}", text(status), text(maps), params["min_local"])
    if not checks:
        reason = f"{params['captured']} holds no status-PID.txt and no numa_maps-PID.txt"
        checks.append(unknown("numa_binding.unit", unit.name, reason))
    return checks


def main() -> None:
    """Read, judge, and report."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, positive=["min_local"], not_negative=["node"])
    params = module.params
    given = params["node"] is not None or params["cpus"] is not None
    if params["min_local"] > 1:
        module.fail_json(msg=f"min_local: {params['min_local']} is more than all. Give a share of 1, such as 0.95.")
    if params["cpus"] is not None and number_set(params["cpus"]) is None:
        module.fail_json(msg=f"cpus: {params['cpus']!r} is no list of CPUs. Write it like 0-27,56-83.")
    if given and params["captured"] is None:
        module.fail_json(msg="node, cpus: they are for captured readings. On a node the units are in units_file.")
    source = Source(params["captured"], params["timeout"])
    units: list[Unit] | str
    if source.single_file:
        units = [Unit("unit", number_set(params["cpus"]), params["node"])]
        reading = source.read(["cat", "/proc/self/numa_maps"])
        said = refusal(reading)
        checks = (
            [unknown("numa_binding.local_memory", "unit", said)]
            if said is not None
            else _numa_binding.judge_text(units[0], reading.stdout, params["min_local"])
        )
    else:
        units = read_units(source, params)
        if isinstance(units, str):
            checks = [unknown("numa_binding.unit", "all units", units, _REMEDY)]
        elif given and os.path.isdir(params["captured"]):
            checks = judge_directory(source, units[0], params)
        else:
            checks = [check for unit in units for check in judge_unit(source, unit, params)]
    finish_gate(module, "numa_binding", checks, source.used)


if __name__ == "__main__":
    main()

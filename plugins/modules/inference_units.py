#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate: the inference units of a node follow from its measured topology."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_units
short_description: Derive the inference units of a node from its measured topology
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - An inference unit (IU) is a group of O(iu_gpus) GPUs that are pairwise joined by NVLink and share a NUMA node.
    Each gets an
    id, its GPUs by UUID, disjoint CPUs of its NUMA node, the nearest NICs and a port.
  - Two units on one NUMA node share its CPUs evenly, whole cores where the CPU numbering shows them.
  - On a board that places each GPU on a NUMA node of its own (V(hgx_h100_4)), a unit spans nodes. Its
    RV(units[].numa_node) is then
    null, RV(units[].numa_nodes) lists them all, and its CPUs are those of all its nodes.
  - With O(plan) the units are the planned ones, and a plan that does not fit what was measured is a V(fail) that
    names the GPUs.
  - With O(dest) the units are written there, but only when the verdict allows it. A node whose units are in doubt
    keeps its old file.
  - One captured file of C(nvidia-smi topo -m) shows which GPUs form a unit, not their UUIDs and not the CPUs of their
    nodes. It is judged by the units alone, unless O(dest) is set, which needs all readings.
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
attributes:
  check_mode:
    description: O(dest) is not written in check mode.
    support: full
  diff_mode:
    description: Shows O(dest) before and after.
    support: full
options:
  profile:
    description: Board of the node.
    type: str
    required: true
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  iu_gpus:
    description: GPUs of one unit.
    type: int
    default: 4
  gpus:
    description: Number of GPUs expected in place of the profile's.
    type: int
  hcas:
    description:
      - RDMA device names in rail order. Only these become a unit's NICs. Without it every NIC in the matrix
        may.
    type: list
    elements: str
    default: []
  plan:
    description: The units as they must be, in order. Empty means that they are derived.
    type: list
    elements: dict
    default: []
    suboptions:
      gpus:
        description: GPUs of the unit, each an index or a UUID.
        type: list
        elements: str
        required: true
      numa_node:
        description: NUMA node on which the GPUs must be.
        type: int
  node:
    description: Name the ids of the units start with. The default is the host's name up to the first dot.
    type: str
  base_port:
    description: Port of the first unit. The others follow.
    type: int
    default: 8000
  dest:
    description: File to write the units to as JSON, mode 0644.
    type: path
  sysfs_root:
    description:
      - Where sysfs is mounted, for the CPUs of the NUMA nodes. A directory in O(captured) may hold a copy of it
        below C(sys/).
    type: path
    default: /sys
seealso:
  - module: ai_infra.gpu_rack.nvlink_topology
"""

EXAMPLES = r"""
- name: Derive the units and keep them for the serving roles
  ai_infra.gpu_rack.inference_units:
    profile: hgx_h100_8
    hcas: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]
    node: "{{ inventory_hostname }}"
    dest: /etc/gpu_rack/inference_units.json

- name: Hold the node against a plan
  ai_infra.gpu_rack.inference_units:
    profile: hgx_h100_8
    plan:
      - gpus: ["0", "1", "2", "3"]
        numa_node: 0
      - gpus: ["4", "5", "6", "7"]
        numa_node: 1
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
  description: Name of the gate, V(inference_units).
  type: str
  returned: always
checks:
  description: Every judged fact, C(inference_units.gpus), C(.units), C(.plan), C(.cpus), C(.nics) and C(.output).
  type: list
  elements: dict
  returned: always
evidence:
  description: Command, exit status and digest of each reading; the output too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
diff:
  description: O(dest) before and after.
  type: dict
  returned: when O(dest) is set and the verdict does not block
units:
  description: The units, also when the verdict blocks; then they are what could be made out.
  type: list
  elements: dict
  returned: always
  contains:
    id:
      description: Name of the unit.
      type: str
      sample: node1-iu0
    index:
      description: Place of the unit on the node, from 0.
      type: int
    gpus:
      description: C(index), C(uuid), C(bus_id) and C(numa_node) of each GPU.
      type: list
      elements: dict
    numa_node:
      description: NUMA node of the unit, null when it spans several or it is not known.
      type: int
    numa_nodes:
      description: All NUMA nodes of the unit.
      type: list
      elements: int
    cpus:
      description: CPUs of the unit as a range list. No two units share one.
      type: str
      sample: 0-27,112-139
    nics:
      description: RDMA devices nearest to the unit.
      type: list
      elements: str
    port:
      description: Port of the unit's engine.
      type: int
"""

import contextlib
import json
import os
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, Profile, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import (
    GATE_ARGS,
    check_numbers,
    fail_unwritten,
    finish_gate,
    write_json,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import (
    TopoError,
    Topology,
    format_set,
    gpu_index,
    number_set,
    parse,
    shown,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._topology import (
    Gpu,
    check_plan,
    derive_groups,
    nearest_nics,
    split_cpus,
    unit_value,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import (
    BLOCKING,
    Check,
    Evidence,
    Verdict,
    compare,
    result,
    unknown,
    worst,
)

GATE = "inference_units"
CHECKS: dict[str, str] = {
    "inference_units.output": (
        "Whether the matrix and the list of GPUs of nvidia-smi are whole and can be read; anything else is unknown."
    ),
    "inference_units.gpus": "The GPUs of the matrix, held against those of the list of GPUs; both must be the same.",
    "inference_units.plan": (
        "The units planned in the option plan, held against the measured links, NUMA nodes and bus ids of their GPUs."
    ),
    "inference_units.units": (
        "Units whose GPUs are joined by NVLink and placed on NUMA nodes, held against the number the board profile or "
        "the option gpus gives for units of iu_gpus GPUs."
    ),
    "inference_units.cpus": "The CPUs of each unit's NUMA node from sysfs, each of which belongs to one node only.",
    "inference_units.nics": "The HCAs near each unit's GPUs, of which the option hcas must leave at least one.",
}
ARGUMENT_SPEC = {
    **GATE_ARGS,
    "profile": {"type": "str", "required": True, "choices": list(NAMES)},
    "iu_gpus": {"type": "int", "default": 4},
    "gpus": {"type": "int"},
    "hcas": {"type": "list", "elements": "str", "default": []},
    "plan": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {"gpus": {"type": "list", "elements": "str", "required": True}, "numa_node": {"type": "int"}},
    },
    "node": {"type": "str"},
    "base_port": {"type": "int", "default": 8000},
    "dest": {"type": "path"},
    "sysfs_root": {"type": "path", "default": "/sys"},
}
TOPO = ("nvidia-smi", "topo", "-m")
QUERY = ("nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader")
NUMA_COMMAND = "read sysfs NUMA nodes"
_SYSFS_KINDS = ("nodes", "gpus", "cores")
_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_LAST_PORT = 65535
_GPU_LINE = re.compile(
    r"([0-9]{1,4})\s*,\s*(GPU-[0-9A-Za-z-]+)\s*,\s*([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])"
)


def parse_gpus(text: str) -> tuple[list[Gpu], list[str]]:
    """Return the GPUs of the csv query and the lines that could not be read."""
    gpus: list[Gpu] = []
    bad: list[str] = []
    for line in text.splitlines():
        stripped = line.strip()
        if not stripped or stripped.replace(" ", "") == "index,uuid,pci.bus_id":
            continue
        match = _GPU_LINE.fullmatch(stripped)
        gpu = Gpu(int(match[1]), match[2], match[3]) if match else None
        if gpu is None or any(g.index == gpu.index or g.uuid == gpu.uuid or _device(g) == _device(gpu) for g in gpus):
            bad.append(stripped)
        else:
            gpus.append(gpu)
    return gpus, bad


def _device(gpu: Gpu) -> str:
    """Return the GPU's PCI address as sysfs writes it: the tool prints the domain with 4 or 8 digits."""
    domain, _sep, rest = gpu.bus_id.lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def read_numa(source: Source, root: Path, gpus: Sequence[Gpu]) -> dict[str, dict[str, str]]:
    """Return {"nodes": {node: cpus}, "gpus": {bus id: node}, "cores": {threads: ""}}, and keep it as evidence."""
    stored = source.read((*NUMA_COMMAND.split(),), "numa.json", primary=False) if not source.live else None
    if stored is not None and stored.rc == 0:
        with contextlib.suppress(ValueError, RecursionError):
            data = json.loads(stored.stdout)
            if isinstance(data, dict) and all(isinstance(data.get(k), dict) for k in _SYSFS_KINDS):
                return {k: {str(a): str(b) for a, b in data[k].items()} for k in _SYSFS_KINDS}
    if not source.live:
        root = Path(str(source.captured)) / "sys"
        if not root.is_dir():
            return {kind: {} for kind in _SYSFS_KINDS}
        source.used.pop()
    found: dict[str, dict[str, str]] = {kind: {} for kind in _SYSFS_KINDS}
    for node in sorted((root / "devices/system/node").glob("node[0-9]*")):
        with contextlib.suppress(OSError):
            found["nodes"][node.name[4:]] = (node / "cpulist").read_text("ascii", "replace").strip()
    for threads in (root / "devices/system/cpu").glob("cpu[0-9]*/topology/thread_siblings_list"):
        with contextlib.suppress(OSError):
            found["cores"][threads.read_text("ascii", "replace").strip()] = ""
    for gpu in gpus:
        with contextlib.suppress(OSError):
            path = root / "bus/pci/devices" / _device(gpu) / "numa_node"
            found["gpus"][gpu.bus_id] = path.read_text("ascii", "replace").strip()
    source.used.append(Evidence(NUMA_COMMAND, 0, json.dumps(found, sort_keys=True)))
    return found


def gpu_nodes(topology: Topology, gpus: Sequence[Gpu], sysfs: Mapping[str, Mapping[str, str]]) -> dict[int, int]:
    """Return the NUMA node by GPU index: the kernel's word, else the matrix's when it is one single node."""
    by_index = {g.index: g.bus_id for g in gpus}
    nodes: dict[int, int] = {}
    for name in topology.gpus:
        index = gpu_index(name)
        said = sysfs["gpus"].get(by_index.get(index, ""), "")
        affinity = topology.affinity.get(name)
        printed = number_set(affinity.numa if affinity else None) or frozenset()
        if re.fullmatch(r"[0-9]{1,4}", said):
            nodes[index] = int(said)
        elif len(printed) == 1:
            nodes[index] = min(printed)
    return nodes


def node_cpus(
    topology: Topology, nodes: Mapping[int, int], sysfs: Mapping[str, Mapping[str, str]]
) -> dict[int, frozenset[int]]:
    """Return the CPUs of each NUMA node: from sysfs, else the CPU affinity its GPUs agree on."""
    cpus: dict[int, frozenset[int]] = {}
    for node in set(nodes.values()):
        found = number_set(sysfs["nodes"].get(str(node)))
        if found is None:
            said = {
                topology.affinity[f"GPU{g}"].cpu
                for g, n in nodes.items()
                if n == node and f"GPU{g}" in topology.affinity
            }
            found = number_set(next(iter(said))) if len(said) == 1 else None
        if found:
            cpus[node] = found
    return cpus


def shared_cpus(cpus: Mapping[int, frozenset[int]], sysfs: Mapping[str, Mapping[str, str]]) -> frozenset[int]:
    """Return the CPUs that more than one NUMA node claims; units on such nodes would share them."""
    claims = {n: found for n, text in sysfs["nodes"].items() if (found := number_set(text))}
    claims.update({str(n): found for n, found in cpus.items()})
    seen: set[int] = set()
    shared: set[int] = set()
    for numbers in claims.values():
        shared |= seen & numbers
        seen |= numbers
    return frozenset(shared)


def build_units(
    groups: Sequence[Sequence[int]],
    topology: Topology,
    gpus: Sequence[Gpu],
    nodes: Mapping[int, int],
    cpus: Mapping[int, frozenset[int]],
    cores: Sequence[frozenset[int]],
    *,
    node: str,
    hcas: Sequence[str],
    base_port: int,
) -> list[dict[str, Any]]:
    """Return the units as they are stored. CPUs of a NUMA node are shared out evenly among the units on it."""
    by_index = {g.index: g for g in gpus}
    on_node: dict[int, list[int]] = {}
    for position, group in enumerate(groups):
        for n in {nodes[g] for g in group if g in nodes}:
            on_node.setdefault(n, []).append(position)
    units = []
    for position, group in enumerate(groups):
        mine = sorted({nodes[g] for g in group if g in nodes})
        own: set[int] = set()
        for n in mine:
            sharers = on_node[n]
            own |= split_cpus(cpus.get(n, frozenset()), len(sharers), cores)[sharers.index(position)]
        units.append(
            {
                "id": f"{node}-iu{position}",
                "index": position,
                "gpus": [
                    {"index": g, "uuid": by_index[g].uuid, "bus_id": by_index[g].bus_id, "numa_node": nodes.get(g)}
                    for g in group
                    if g in by_index
                ],
                "numa_node": mine[0] if len(mine) == 1 else None,
                "numa_nodes": mine,
                "cpus": format_set(own),
                "nics": nearest_nics(topology, group, hcas),
                "port": base_port + position,
            }
        )
    return units


def judge(
    topo_text: str,
    query_text: str | None,
    source: Source,
    params: Mapping[str, Any],
) -> tuple[list[Check], list[dict[str, Any]]]:
    """Return the checks and the units of a node's readings.

    Without a list of GPUs (one captured matrix) the units are those of the matrix: its GPUs have no names, and the CPUs
    of their nodes are not judged.
    """
    board = profile(params["profile"])
    remedy = "Run the command by hand and judge its output again."
    try:
        topology = parse(topo_text)
    except TopoError as exc:
        return [unknown("inference_units.output", "nvidia-smi topo -m", str(exc), remedy)], []
    # Affinity cells only stand in for sysfs here: when they are needed and unreadable, the NUMA node is not known.
    broken = [p for p in topology.problems if not p.subject.endswith(" affinity")]
    checks = [unknown("inference_units.output", p.subject, str(p), remedy) for p in broken]
    alone = query_text is None
    gpus, bad = parse_gpus(query_text or "")
    if alone:
        gpus = [Gpu(gpu_index(name), "", "") for name in topology.gpus]
    checks += [
        unknown("inference_units.output", "nvidia-smi --query-gpu", f"a line cannot be read: {shown(b)}", remedy)
        for b in bad
    ]
    measured = {gpu_index(g) for g in topology.gpus}
    odd = measured.symmetric_difference(g.index for g in gpus)
    if odd:
        reason = f"topo -m and --query-gpu disagree about GPU {format_set(odd)}"
        checks.append(
            unknown(
                "inference_units.gpus",
                f"GPU{format_set(odd)}",
                reason,
                "A GPU came or went between the readings; look for XID 79.",
            )
        )
    sysfs = read_numa(source, Path(params["sysfs_root"]), gpus)
    nodes = gpu_nodes(topology, gpus, sysfs)
    size = params["iu_gpus"]
    if params["plan"]:
        grouping = check_plan(params["plan"], gpus, topology, nodes, size, spans_numa=board.unit_spans_numa)
        name, limit, limit_source = "inference_units.plan", f"{len(params['plan'])} planned units", "option plan"
        advice = "Correct the plan in the inventory, or repair the GPU or the slot that differs from it."
    else:
        grouping = derive_groups(topology, nodes, size, spans_numa=board.unit_spans_numa)
        name, limit, limit_source = "inference_units.units", f"units of {size} GPUs", "option iu_gpus"
        advice = (
            "Repair the links or the NUMA setting first (nvlink_topology says which), or choose an "
            "iu_gpus that fits the board."
        )
    missing = frozenset(measured - set(nodes))
    if missing and not board.unit_spans_numa:
        reason = f"the NUMA node of GPU{format_set(missing)} is not known, so no unit can be placed"
        subject, where = f"GPU{format_set(missing)}", "Run the gate outside a cpuset."
        checks.append(unknown(name, subject, reason, where, limit, limit_source))
    elif grouping.problems:
        shown_units = "; ".join(str(unit_value(u, {nodes[g] for g in u if g in nodes})) for u in grouping.units)
        for problem in grouping.problems:
            # A link that could not be read is not a link that is missing.
            verdict: Verdict = "unknown" if broken or odd else "fail"
            value = None if verdict == "unknown" else shown_units or "no unit"
            checks.append(Check(name, "node", verdict, problem, value, limit, "", limit_source, advice))
    else:
        checks.extend(_judge_number(board, params, len(grouping.units), measured))
    cpus = node_cpus(topology, nodes, sysfs)
    if shared := shared_cpus(cpus, sysfs):
        reason = f"CPU {format_set(shared)} is on more than one NUMA node"
        checks.append(
            unknown("inference_units.cpus", "node", reason, "Look at /sys/devices/system/node/node*/cpulist.")
        )
    units = build_units(
        grouping.units,
        topology,
        gpus,
        nodes,
        cpus,
        [core for text in sysfs["cores"] if (core := number_set(text))],
        node=params["node"],
        hcas=params["hcas"],
        base_port=params["base_port"],
    )
    for unit in units:
        checks.extend(_judge_unit(unit, nodes, None if alone else cpus, params["hcas"]))
    return checks, units


def _judge_number(board: Profile, params: Mapping[str, Any], found: int, measured: set[int]) -> list[Check]:
    gpus = params["gpus"] if params["gpus"] is not None else board.gpus.value if board.gpus else len(measured)
    wanted = int(gpus) // params["iu_gpus"]
    source = "option gpus" if params["gpus"] is not None else board.source if board.gpus else "GPUs found"
    return [
        compare(
            "inference_units.units",
            "node",
            found,
            wanted,
            ok=found == wanted and wanted > 0,
            unit="units",
            limit_source=f"{source} / {params['iu_gpus']} GPUs a unit",
            reason=f"{found} units from {len(measured)} GPUs",
            remedy="See the other checks for the GPUs that are in no unit.",
        )
    ]


def _judge_unit(
    unit: Mapping[str, Any], nodes: Mapping[int, int], cpus: Mapping[int, frozenset[int]] | None, hcas: Sequence[str]
) -> list[Check]:
    """Return what a unit lacks, or one pass that shows it. `cpus` is None where no reading can show them."""
    checks = []
    indices = [g["index"] for g in unit["gpus"]]
    if cpus is None:
        pass
    elif not unit["cpus"] or any(n not in cpus for n in unit["numa_nodes"]) or any(g not in nodes for g in indices):
        reason = "the CPUs of its NUMA node could not be read"
        checks.append(
            unknown("inference_units.cpus", unit["id"], reason, "Look at /sys/devices/system/node/node*/cpulist.")
        )
    if hcas and not unit["nics"]:
        remedy = "Correct hcas, or look for the HCAs with ibstat and lspci."
        checks.append(
            Check(
                "inference_units.nics",
                unit["id"],
                "fail",
                "none of the HCAs is in the matrix",
                "none",
                ", ".join(hcas),
                "",
                "option hcas",
                remedy,
            )
        )
    if not checks:
        value = (
            f"{unit_value(indices, set(unit['numa_nodes']))}, CPU {unit['cpus'] or 'not read'}, "
            f"{', '.join(unit['nics']) or 'no NIC'}"
        )
        checks.append(
            Check("inference_units.units", unit["id"], "pass", "its GPUs are joined by NVLink and placed", value)
        )
    return checks


def write_units(module: AnsibleModule, units: list[dict[str, Any]]) -> tuple[bool, dict[str, str]]:
    """Write the units to O(dest) when they differ. Returns whether they did and the difference."""
    path = Path(module.params["dest"])
    after = {"board": module.params["profile"], "units": units}
    try:
        text = path.read_text("utf-8", "replace")
    except FileNotFoundError:
        text = ""
    try:
        before: Any = json.loads(text) if text else None
    except (ValueError, RecursionError):
        before = None
    mode_differs = bool(text) and (path.stat().st_mode & 0o777) != 0o644
    changed = before != after or mode_differs
    if changed and not module.check_mode:
        os.makedirs(path.parent, mode=0o755, exist_ok=True)
        write_json(path, after, mode=0o644)
    wanted = json.dumps(after, indent=1, sort_keys=True) + "\n"
    return changed, {"before_header": str(path), "after_header": str(path), "before": text, "after": wanted}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    for option in ("iu_gpus", "gpus"):
        if params[option] is not None and params[option] < 1:
            module.fail_json(msg=f"{option}: {params[option]} is not a number of GPUs. Use 1 or more.")
    check_numbers(module)
    if not 1 <= params["base_port"] <= _LAST_PORT:
        module.fail_json(msg=f"base_port: {params['base_port']} is not a port. Use 1 to {_LAST_PORT}.")
    params["node"] = params["node"] or socket.gethostname().partition(".")[0]
    if not _NODE.fullmatch(params["node"]):
        msg = f"node: {params['node']!r} cannot start the id of a unit. Use letters, digits, '.', '-' and '_'."
        module.fail_json(msg=msg)
    source = Source(params["captured"], params["timeout"])
    topo = source.read(TOPO, "nvidia-smi-topo-m.txt", "topo-m.txt", "topo.txt")
    query = source.read(QUERY, "nvidia-smi-query-gpu.csv", "query-gpu.csv", primary=False)
    remedy = "Check that the driver is installed and loaded, then run the command by hand."
    # One file has no list of GPUs. Units to be written need one: their names are in it.
    alone = source.single_file and not params["dest"]
    readings = (topo,) if alone else (topo, query)
    checks = [
        unknown("inference_units.output", "nvidia-smi", reason, remedy) for e in readings if (reason := refusal(e))
    ]
    units: list[dict[str, Any]] = []
    if not checks:
        checks, units = judge(topo.stdout, None if alone else query.stdout, source, params)
    last = params["base_port"] + len(units) - 1
    if last > _LAST_PORT:
        msg = f"base_port: {params['base_port']} gives the last of {len(units)} units port {last}. Use a lower one."
        module.fail_json(msg=msg)
    changed, extra = False, {}
    if params["dest"] and worst(c.verdict for c in checks) not in BLOCKING:
        try:
            changed, extra["diff"] = write_units(module, units)
        except (OSError, ValueError) as exc:
            outcome = {**result(GATE, checks, source.used), "units": units}
            fail_unwritten(module, Path(params["dest"]), exc, outcome)
    finish_gate(module, GATE, checks, source.used, changed=changed, units=units, **extra)


if __name__ == "__main__":
    main()

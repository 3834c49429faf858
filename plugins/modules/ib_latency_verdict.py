#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: ib_latency_verdict
short_description: Judge a fabric sweep for one node, blaming each bad pair on what explains it
version_added: 0.1.0
description:
  - Takes the results of M(ai_infra.gpu_rack.ib_latency) of all nodes, puts the whole matrix together and finds what
    explains its bad pairs. That is a port with its cable, a node, a leaf switch or the whole fabric.
  - A bad pair fails only the node that is to blame. The other end gets a V(warn) that names the culprit. Where two
    explanations fit and this node is one of them, the verdict is V(unknown), which blocks the join as V(fail) does.
  - The gate's name is C(ib_latency).
options:
  node:
    description: Name of the node that is judged, as in the sweep.
    type: str
    required: true
  rows:
    description:
      - Results of M(ai_infra.gpu_rack.ib_latency) of all nodes. Those of nodes on which it failed are left out.
      - Required unless O(captured) is given.
    type: list
    elements: dict
  captured:
    description:
      - Judge stored sweeps in place of O(rows). A JSON file with one result or a list of them, or a directory of
        such files (C(raw/ib_latency_sweep.json) of the nodes' evidence).
    type: path
  profile:
    description: Board profile the limits come from.
    type: str
  max_latency_us:
    description: Limit in microseconds for the typical latency of every pair, in place of the profile's limits by
      number of switches.
    type: float
  max_p99_us:
    description: Limit in microseconds for the 99th percentile. By default 4.2, as imbue-ai/cluster-health gates NDR.
    type: float
  max_loss_percent:
    description: Limit in percent for the loss, in place of the profile's.
    type: float
  max_above_median_us:
    description:
      - How far in microseconds a typical latency may lie above the median of the pairs of the sweep over as many
        switches, where at least six such pairs were measured. It finds the slow cable that a limit for all fabrics
        lets pass. A negative value turns it off.
    type: float
    default: 0.5
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
seealso:
  - module: ai_infra.gpu_rack.ib_latency
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Judge the sweep for this node
  ai_infra.gpu_rack.ib_latency_verdict:
    node: "{{ inventory_hostname }}"
    rows: "{{ ansible_play_hosts_all | map('extract', hostvars, '__sweep') | select('defined') }}"
    profile: hgx_h100_8
    evidence_dir: /var/lib/gpu_rack/evidence/20261130T180000Z/hardware
"""

RETURN = r"""
gate:
  description: Name of the gate, V(ib_latency).
  returned: always
  type: str
verdict:
  description: Worst verdict of the checks.
  returned: always
  type: str
summary:
  description: One line for people.
  returned: always
  type: str
checks:
  description: One judged fact each (C(ib_latency.blame), C(.port), C(.coverage), and C(.latency), C(.p99), C(.loss)
    for each pair).
  returned: always
  type: list
  elements: dict
evidence:
  description: The stored files that were judged.
  returned: always
  type: list
  elements: dict
culprits:
  description: What explains the bad pairs for certain.
  returned: always
  type: list
  elements: str
  sample: [port mlx5_2 of node3 or its cable]
suspects:
  description: Elements of which one is broken, and the sweep cannot tell which.
  returned: always
  type: list
  elements: str
matrix:
  description: All pairs of the sweep in short.
  returned: always
  type: list
  elements: dict
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, finish_gate, read_captured
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._latency_limits import Limits, options_problem
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_verdict import judge
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

ARGUMENTS: dict[str, dict[str, Any]] = {
    **GATE_ARGS,
    "node": {"type": "str", "required": True},
    "rows": {"type": "list", "elements": "dict"},
    "profile": {"type": "str"},
    "max_latency_us": {"type": "float"},
    "max_p99_us": {"type": "float"},
    "max_loss_percent": {"type": "float"},
    "max_above_median_us": {"type": "float", "default": 0.5},
}

_ROW_KEYS = frozenset(
    f"{side}{part}" for side in ("client", "server") for part in ("", "_hca", "_rail", "_leaf")
) | frozenset(
    ("kind", "rail", "t_typical_us", "p99_us", "sent", "received", "loss", "error", "path_failed", "retransmissions")
)

# Shape only: these name a pair and sort it. A measured value may be anything and is judged.
_ROW_TYPES: dict[str, Any] = {
    "client": str,
    "server": str,
    "client_hca": str | None,
    "server_hca": str | None,
    "client_leaf": str | None,
    "server_leaf": str | None,
    "client_rail": int,
    "server_rail": int,
    "rail": int,
    "error": str | None,
    "path_failed": bool,
}


def read_stored(path: str) -> tuple[list[Mapping[str, Any]], list[Evidence], str | None]:
    """Return stored results, what was read, and the reason why they cannot be used."""
    files = sorted(Path(path).glob("*.json")) if Path(path).is_dir() else [Path(path)]
    results: list[Mapping[str, Any]] = []
    evidence = []
    for file in files:
        read = read_captured(str(file))
        evidence.append(read)
        if read.error is not None:
            return results, evidence, f"{file}: {read.error}"
        try:
            data = json.loads(read.stdout)
        except (ValueError, RecursionError) as exc:
            return results, evidence, f"{file}: not JSON ({exc})"
        results += data if isinstance(data, list) else [data]
    return results, evidence, None if results else f"{path}: no result of a sweep in it"


def unfit(results: list[Mapping[str, Any]]) -> str | None:
    """Return why results are not those of ib_latency, None when they are."""
    for index, result in enumerate(results):
        if not isinstance(result, dict) or not isinstance(result.get("pairs"), list) or "node" not in result:
            return f"entry {index} is not a result of ib_latency (it has no node and pairs)"
        if not isinstance(result["node"], str):
            return f"entry {index} has the node {result['node']!r}, which is no name"
        problem = _unfit_ports(result.get("ports")) or next(filter(None, map(_unfit_row, result["pairs"])), None)
        if problem:
            return f"{result['node']}: {problem}"
    return None


def _unfit_ports(ports: Any) -> str | None:
    """Return what is wrong with a node's ports. Ports that are missing are judged, not refused."""
    if ports is None:
        return None
    if not isinstance(ports, list):
        return f"ports is {str(ports)[:40]!r}, not a list"
    for port in ports:
        if not isinstance(port, dict) or not isinstance(port.get("hca"), str) or "trouble" not in port:
            return f"port {str(port)[:80]} has no hca and trouble"
        if not isinstance(port["trouble"], str | None):
            return f"trouble of port {port['hca']} is {port['trouble']!r}, not a text or null"
    return None


def _unfit_row(row: Any) -> str | None:
    """Return what is wrong with the shape of a pair; its measured values are judged, not refused."""
    missing = _ROW_KEYS - set(row) if isinstance(row, dict) else _ROW_KEYS
    if missing:
        return f"a pair has no {', '.join(sorted(missing))}"
    if row["kind"] not in ("pair", "self"):
        return f"a pair has the kind {row['kind']!r}"
    for key, kinds in _ROW_TYPES.items():
        if not isinstance(row[key], kinds) or (kinds is int and isinstance(row[key], bool)):
            return f"a pair has the {key} {str(row[key])[:40]!r}"
    fault = row.get("fault")
    if fault is not None and not (isinstance(fault, dict) and {"node", "hca"} <= set(fault)):
        return f"a pair has the fault {str(fault)[:40]!r}"
    return None


def main() -> None:
    """Judge the sweep for one node."""
    module = AnsibleModule(
        ARGUMENTS,
        supports_check_mode=True,
        required_one_of=[("captured", "rows")],
        mutually_exclusive=[("captured", "rows")],
    )
    params = module.params
    if wrong := options_problem(params):
        module.fail_json(msg=wrong)
    try:
        limits = Limits.of(
            params["profile"], params["max_latency_us"], params["max_p99_us"], params["max_loss_percent"]
        )
    except ValueError as exc:
        module.fail_json(msg=f"Option profile: {exc}")
    evidence: list[Evidence] = []
    results, option = params["rows"], "rows"
    problem = None
    if params["captured"]:
        option = "captured"
        results, evidence, problem = read_stored(params["captured"])
    # A node whose own measurement failed has no pairs to give; that must not stop the judgement of the others.
    results = [row for row in results if not (isinstance(row, dict) and (row.get("failed") or row.get("unreachable")))]
    problem = problem or unfit(results)
    if problem is not None:
        module.fail_json(msg=f"Option {option}: {problem}. Give the results of ib_latency of all nodes.")
    above = params["max_above_median_us"]
    outcome = judge(params["node"], results, limits, above if above >= 0 else None)
    finish_gate(
        module,
        "ib_latency",
        outcome.checks,
        evidence,
        culprits=[str(element) for element in outcome.culprits],
        suspects=[str(element) for element in outcome.suspects],
        matrix=outcome.matrix,
    )


if __name__ == "__main__":
    main()

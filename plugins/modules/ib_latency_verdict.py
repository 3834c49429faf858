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
    explains its bad pairs. That is a port with its cable, the way between two ports, a node, a leaf switch or the
    whole fabric. What was measured again (rows of the kind C(retest)) decides between two ends.
  - A latency or a loss that was good when it was measured again is a V(warn) that blames nobody. A connection that
    failed stays bad even if it works again.
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
  description: All pairs of the sweep in short. C(bad) is null where nothing was measured, C(transient) tells that a bad
    reading did not come back.
  returned: always
  type: list
  elements: dict
fleet:
  description: Nothing for M(ai_infra.gpu_rack.fleet_consistency), since latency depends on where a node's partners are.
    The sweep compares the pairs itself (O(max_above_median_us)).
  returned: always
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._latency_limits import Limits, options_problem
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_matrix import Rules
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_stored import read_stored, unfit
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
    outcome = judge(params["node"], results, Rules(limits, above if above >= 0 else None))
    finish_gate(
        module,
        "ib_latency",
        outcome.checks,
        evidence,
        culprits=[str(element) for element in outcome.culprits],
        suspects=[str(element) for element in outcome.suspects],
        matrix=outcome.matrix,
        fleet=outcome.fleet,
    )


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: ib_latency
short_description: Measure RDMA latency and loss between every pair of nodes of a play
version_added: 0.1.0
description:
  - Measures this node's pairs of a full mesh. Every node of the play runs the module in one task, computes the same
    schedule from the same O(peers) and meets one partner a round, rail by rail, so that no HCA is ever used twice at
    a time.
  - Latency is measured with C(ib_write_lat), which prints half of the round trip, loss with C(ibping) from its two
    counts. On Ethernet, where there is no C(ibping), retransmissions are read from the HCA's counters.
  - Two partners agree over a connection on the management network (O(control_port)). A partner that is not there
    costs one O(meet_timeout), and is told apart from a fabric that does not work.
  - Nodes of a rack all meet. Pairs of leaf switches that this does not touch (other racks, other rails) are covered
    once each afterwards. Then the suspects of the whole sweep are measured again against ports that are known to be
    good, with O(retest_pings) packets. What is suspect is told by O(profile) and the limits.
  - A node without a partner measures from each of its HCAs to another of its own. That proves its HCAs, cables and leaf
    ports, not the way to other nodes; M(ai_infra.gpu_rack.ib_latency_verdict) says so.
  - The module measures and judges nothing but what to measure again. Judge the results of all nodes with
    M(ai_infra.gpu_rack.ib_latency_verdict), which blames a bad pair on one of its ends. Only with O(captured) it
    judges, one stored output at a time.
  - The play must run all nodes at the same time, so C(forks) must be at least the number of nodes.
options:
  iterations:
    description: Number of RDMA writes a measurement; percentiles need at least 1000.
    type: int
    default: 1000
  pings:
    description: Number of packets C(ibping) sends a measurement. Without a loss, 1000 rule out a loss above 0.3 %
      (95 % confidence).
    type: int
    default: 1000
  retest_pings:
    description: Number of packets C(ibping) sends when a suspect is measured again. 10000 rule out a loss above 0.03 %.
    type: int
    default: 10000
  timeout:
    description:
      - Deadline in seconds for each command. A partner that says nothing for four times as long in the middle of a
        pair counts as lost.
    type: float
    default: 15.0
  ping_timeout:
    description: Seconds after which C(ibping) is asked for its statistics, so that a dead path still gives its two
      counts.
    type: float
    default: 8.0
  max_latency_us:
    description: Limit in microseconds for the typical latency, in place of the profile's.
    type: float
  max_p99_us:
    description: Limit in microseconds for the 99th percentile. By default 4.2, as imbue-ai/cluster-health gates NDR.
    type: float
  max_loss_percent:
    description: Limit in percent for the loss, in place of the profile's.
    type: float
  max_above_median_us:
    description:
      - How far in microseconds a typical latency may lie above the median of the sweep before its ports are suspect. As
        in M(ai_infra.gpu_rack.ib_latency_verdict).
    type: float
    default: 0.5
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
  - ai_infra.gpu_rack.sweep
seealso:
  - module: ai_infra.gpu_rack.ib_latency_verdict
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Measure every pair of the play
  ai_infra.gpu_rack.ib_latency:
    node: "{{ inventory_hostname }}"
    peers: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'ansible_host')))
      | dict2items('name', 'address') }}"
    hcas: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]
    sweep: 20261130T180000Z
    profile: hgx_h100_8
  register: __sweep

- name: Judge the output of ib_write_lat from a support bundle
  ai_infra.gpu_rack.ib_latency:
    captured: bundle/ib_write_lat.txt
    profile: hgx_h100_8
"""

RETURN = r"""
node:
  description: Name of this node.
  returned: without O(captured)
  type: str
ports:
  description: This node's rails, each with C(rail), C(hca), C(guid), C(leaf) and C(trouble) (null when usable).
  returned: without O(captured)
  type: list
  elements: dict
expected:
  description: Number of measurements this node had to take part in.
  returned: without O(captured)
  type: int
absent:
  description: Partners that were not met, each with the reason.
  returned: without O(captured)
  type: dict
pairs:
  description:
    - This node's row of the matrix. C(kind) is C(pair), C(self) (within the node) or C(retest).
    - Times are in microseconds, C(loss) in percent, null where nothing was measured.
    - C(error) says why a pair was not measured, C(fault) which node and HCA that is known to lie with, if it is known.
      C(path_failed) tells that both tools met and the RDMA connection between them failed.
  returned: without O(captured)
  type: list
  elements: dict
  sample:
    - {kind: pair, round: 0, rail: 0, client: node2, client_hca: mlx5_0, client_leaf: "0xa1", server: node1,
      server_hca: mlx5_0,
       server_leaf: "0xa1", t_typical_us: 1.87, p99_us: 2.03, sent: 1000, received: 1000, loss: 0.0, error: null,
         fault: null,
       path_failed: false}
seconds:
  description: How long the sweep took on this node.
  returned: without O(captured)
  type: float
readings:
  description: The numbers of each run, as printed. Bandwidths in Gb/s, C(error) says why a run has none.
  returned: with O(captured)
  type: list
  elements: dict
gate:
  description: Name of the gate, as in every gate module.
  returned: with O(captured)
  type: str
verdict:
  description: Worst verdict of the checks.
  returned: with O(captured)
  type: str
summary:
  description: One line for people.
  returned: with O(captured)
  type: str
checks:
  description: One judged fact each.
  returned: with O(captured)
  type: list
  elements: dict
evidence:
  description: What was read.
  returned: with O(captured)
  type: list
  elements: dict
"""

import dataclasses
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cli, _sweep_options, _sweep_probe
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._latency_limits import (
    Limits,
    judge_captured,
    options_problem,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._retest import retest_plan
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_matrix import Rules
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_run import Sweep
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

ARGUMENTS: dict[str, dict[str, Any]] = {
    **_sweep_options.SWEEP_ARGS,
    "iterations": {"type": "int", "default": 1000},
    "pings": {"type": "int", "default": 1000},
    "retest_pings": {"type": "int", "default": 10000},
    "ping_timeout": {"type": "float", "default": 8.0},
    "max_latency_us": {"type": "float"},
    "max_p99_us": {"type": "float"},
    "max_loss_percent": {"type": "float"},
    "max_above_median_us": {"type": "float", "default": 0.5},
}


def sweep_of(params: dict[str, Any], evidence: list[Evidence], limits: Limits) -> Sweep:
    """Return this node's part of the sweep."""
    above = params["max_above_median_us"]
    rules = Rules(limits, above if above >= 0 else None)
    planner = (lambda results: retest_plan(results, rules)) if params["retest"] else None
    return Sweep(params, evidence, _sweep_probe.latency(params["iterations"]), planner)


def main() -> None:
    """Measure this node's pairs, or judge captured output."""
    module = AnsibleModule(
        ARGUMENTS,
        supports_check_mode=True,
        required_one_of=[("captured", "peers")],
        required_by={"peers": ("node", "hcas")},
    )
    params = module.params
    if problem := options_problem(params):
        module.fail_json(msg=problem)
    try:
        limits = Limits.of(
            params["profile"], params["max_latency_us"], params["max_p99_us"], params["max_loss_percent"]
        )
    except ValueError as exc:
        module.fail_json(msg=f"Option profile: {exc}")
    if params["captured"]:
        checks, read, readings = judge_captured(params["captured"], limits)
        _cli.finish_gate(module, "ib_latency", checks, read, readings=readings)
    if problem := _sweep_options.problem(params, ("iterations", "pings", "retest_pings")):
        module.fail_json(msg=problem)
    start = time.monotonic()
    evidence: list[Evidence] = []
    sweep = sweep_of(params, evidence, limits)
    try:
        pairs, absent = sweep.run()
    except OSError as exc:
        module.fail_json(
            msg=f"Listening on TCP port {params['control_port']}: {exc.strerror or exc}. "
            "Another sweep may be running on this node; wait for it or set control_port."
        )
    outcome = {
        "node": params["node"],
        "ports": [dataclasses.asdict(rail) for rail in sweep.rails],
        "pairs": pairs,
        "absent": absent,
        "expected": sum(1 for row in pairs if row["kind"] != "retest"),
        "seconds": round(time.monotonic() - start, 1),
    }
    if params["evidence_dir"]:
        stored = {**outcome, "evidence": [item.as_dict() for item in evidence], "time": time.time()}
        _cli.write_json(Path(params["evidence_dir"]) / "raw" / "ib_latency_sweep.json", stored)
    module.exit_json(changed=False, **outcome)


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: ib_bandwidth
short_description: Measure and judge RDMA bandwidth between the nodes of a play
version_added: 0.1.0
description:
  - Measures C(ib_write_bw) rail by rail between pairs of nodes that meet as in M(ai_infra.gpu_rack.ib_latency), but
    only with a few partners a node (O(rounds)). Bandwidth finds what is wrong with a port (PCIe width, rate, a bad
    lane), and that shows with any partner.
  - 4 queue pairs and messages of 1 MiB, since the tool's own choice of one queue pair and 64 KiB shows less than NDR
    carries (linux-rdma/perftest issues 252 and 318). The command is recorded with each pair.
  - A slow pair accuses both ends. They are measured again against ports that are known to be good, and then the one to
    blame fails and the other end is V(warn). All nodes exchange their results, so each judges itself and no second
    module is needed.
  - A node without a partner measures from each of its HCAs to another of its own, and is V(warn) at best.
  - The play must run all nodes at the same time, so C(forks) must be at least the number of nodes.
options:
  rounds:
    description: Number of partners each node measures. V(0) means all.
    type: int
    default: 1
  iterations:
    description: Number of messages a measurement and queue pair.
    type: int
    default: 5000
  message_size:
    description: Bytes a message.
    type: int
    default: 1048576
  queue_pairs:
    description: Number of queue pairs.
    type: int
    default: 4
  min_gbps:
    description: Lowest bandwidth in Gb/s of one direction, in place of the profile's. A run that has both directions is
      held against twice as much.
    type: float
  rate_gbps:
    description: Rate of the ports in Gb/s where it is not the profile's. The limit is 0.9 of it, as
      Mellanox/ngc_multinode_perf gates. Ignored with O(min_gbps).
    type: float
  timeout:
    description:
      - Deadline in seconds for each command. A partner that says nothing for four times as long in the middle of a
        pair counts as lost.
    type: float
    default: 15.0
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
  - ai_infra.gpu_rack.sweep
seealso:
  - module: ai_infra.gpu_rack.ib_latency
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Measure the bandwidth of every rail
  ai_infra.gpu_rack.ib_bandwidth:
    node: "{{ inventory_hostname }}"
    peers: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'ansible_host')))
      | dict2items('name', 'address') }}"
    hcas: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]
    sweep: 20261130T180000Z
    profile: hgx_h100_8
    evidence_dir: /var/lib/gpu_rack/evidence/20261130T180000Z/hardware

- name: Judge the output of ib_write_bw on 100 Gb/s RoCE
  ai_infra.gpu_rack.ib_bandwidth:
    captured: bundle/ib_write_bw.txt
    rate_gbps: 100
"""

RETURN = r"""
gate:
  description: Name of the gate, V(ib_bandwidth).
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
  description: One judged fact each (C(ib_bandwidth.bandwidth), and of a sweep C(.blame), C(.port), C(.coverage)).
  returned: always
  type: list
  elements: dict
evidence:
  description: The commands that were run and how they ended, or the stored files that were judged.
  returned: always
  type: list
  elements: dict
readings:
  description: The numbers of each run in Gb/s, whatever unit was printed. C(error) says why a run has none.
  returned: with O(captured)
  type: list
  elements: dict
pairs:
  description: This node's row of the matrix. C(bw_gbps) is the average and null where nothing was measured.
  returned: without O(captured)
  type: list
  elements: dict
culprits:
  description: What explains the slow pairs for certain.
  returned: when a sweep is judged
  type: list
  elements: str
suspects:
  description: Elements of which one is broken, and the sweep cannot tell which.
  returned: when a sweep is judged
  type: list
  elements: str
matrix:
  description: All pairs of the sweep in short.
  returned: when a sweep is judged
  type: list
  elements: dict
fleet:
  description: This node's numbers for M(ai_infra.gpu_rack.fleet_consistency).
  returned: when a sweep is judged
  type: dict
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cli, _sweep_options, _sweep_probe
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._bandwidth import (
    BandwidthLimits,
    judge_captured,
    options_problem,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._retest import retest_plan
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_matrix import Rules
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_run import Sweep
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_stored import read_stored, unfit
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_verdict import SweepVerdict, judge
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

ARGUMENTS: dict[str, dict[str, Any]] = {
    **_sweep_options.SWEEP_ARGS,
    "rounds": {"type": "int", "default": 1},
    "iterations": {"type": "int", "default": 5000},
    "message_size": {"type": "int", "default": 1048576},
    "queue_pairs": {"type": "int", "default": 4},
    "min_gbps": {"type": "float"},
    "rate_gbps": {"type": "float"},
}


def sweep_of(params: dict[str, Any], evidence: list[Evidence], rules: Rules) -> Sweep:
    """Return this node's part of the sweep."""
    probe = _sweep_probe.bandwidth(params["iterations"], params["message_size"], params["queue_pairs"])
    planner = (lambda results: retest_plan(results, rules)) if params["retest"] else None
    return Sweep(params, evidence, probe, planner, rounds=params["rounds"], cover=False)


def finish(module: AnsibleModule, outcome: SweepVerdict, evidence: list[Evidence], **extra: Any) -> None:
    """Return the verdict of a sweep."""
    _cli.finish_gate(
        module,
        "ib_bandwidth",
        outcome.checks,
        evidence,
        culprits=[str(element) for element in outcome.culprits],
        suspects=[str(element) for element in outcome.suspects],
        matrix=outcome.matrix,
        fleet=outcome.fleet,
        **extra,
    )


def is_stored_sweep(path: str) -> bool:
    """Return whether the file is raw/ib_bandwidth_sweep.json of a run."""
    read = _cli.read_captured(path) if not Path(path).is_dir() else None
    if read is None or read.error is not None:
        return False
    try:
        data = json.loads(read.stdout)
    except (ValueError, RecursionError):
        return False
    first = data[0] if isinstance(data, list) and data else data
    return isinstance(first, Mapping) and "pairs" in first


def main() -> None:
    """Measure this node's pairs and judge them, or judge captured output."""
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
        limits = BandwidthLimits.of(params["profile"], params["min_gbps"], params["rate_gbps"])
    except ValueError as exc:
        module.fail_json(msg=f"Option profile: {exc}")
    rules = Rules(bandwidth=limits)
    if params["captured"] and params["node"] and is_stored_sweep(params["captured"]):
        results, files, problem = read_stored(params["captured"])
        problem = problem or unfit(results)
        if problem is not None:
            module.fail_json(msg=f"Option captured: {problem}. Give the results of all nodes of a sweep.")
        finish(module, judge(params["node"], results, rules), files)
    if params["captured"]:
        checks, files, readings = judge_captured(params["captured"], limits)
        _cli.finish_gate(module, "ib_bandwidth", checks, files, readings=readings)
    if problem := _sweep_options.problem(params, ("iterations", "message_size", "queue_pairs")):
        module.fail_json(msg=problem)
    evidence: list[Evidence] = []
    sweep = sweep_of(params, evidence, rules)
    try:
        pairs, _absent = sweep.run(share=True)
    except OSError as exc:
        module.fail_json(
            msg=f"Listening on TCP port {params['control_port']}: {exc.strerror or exc}. "
            "Another sweep may be running on this node; wait for it or set control_port."
        )
    if params["evidence_dir"]:
        path = Path(params["evidence_dir"]) / "raw" / "ib_bandwidth_sweep.json"
        try:
            _cli.write_json(path, list(sweep.results))
        except (OSError, ValueError) as exc:
            module.fail_json(msg=f"Writing {path}: {exc}. Give a directory that can be written as evidence_dir.")
    finish(module, judge(params["node"], sweep.results, rules), evidence, pairs=pairs)


if __name__ == "__main__":
    main()

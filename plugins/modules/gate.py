#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The decision whether a node passes a stage, from the stored results of its gates."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gate
short_description: Decide from stored evidence whether a node passes a stage
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - Reads the result each required gate module has stored and takes the worst verdict. A result that is missing,
    unreadable, or does not fit its own digests and checks is V(unknown), and V(unknown) blocks as V(fail) does.
  - The same holds for a result of another machine or another boot, one that is older than a day or from the future,
    one between which and the decision the clock was set, one that passes the same fact of the same subject with two
    values, and one that passes although a reading the gate needs had failed.
  - Stores the decision as C(<state_dir>/gate/<stage>.json) with mode 0600, with every check, the digest of each
    evidence file, the
    run, the time, and the machine and boot it was made on.
  - The decision is a record of what was measured, so it never makes the task changed. Old runs are pruned from
    the evidence.
attributes:
  check_mode:
    description:
      - In check mode nothing is stored or pruned, and a blocked node is a warning instead of a failure. What the
        gates would
        judge has then not been installed, and later roles still have drift to show.
    support: full
  diff_mode:
    description: There is no difference to show, nothing is changed.
    support: none
options:
  evidence:
    description: Directory with the results of this run and stage, normally C(<state_dir>/evidence/<run>/<stage>).
    type: path
    required: true
  stage:
    description: Stage that is decided.
    type: str
    required: true
    choices: [hardware, serving]
  require:
    description: Names of the gates that must have a result.
    type: list
    elements: str
    required: true
  run:
    description:
      - Id of the run, such as V(20261130T180000Z). The default is the name of the directory above O(evidence).
      - Evidence in the directory of another run does not count, every gate is then V(unknown).
    type: str
  node:
    description: Name of the node in the decision. The default is the host's name up to the first dot.
    type: str
  state_dir:
    description: Directory of the collection's state on the node.
    type: path
    default: /var/lib/gpu_rack
  enforce:
    description: Fail the task when the verdict is V(fail) or V(unknown).
    type: bool
    default: true
  keep_runs:
    description:
      - Number of runs whose evidence is kept, this one included. Directories that are not named like a run id
        are left alone.
    type: int
    default: 20
  allow_captured:
    description:
      - Also believe results that were judged from captured output. They say nothing about this node, so this is for
        judging a support bundle as a whole and for tests.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Decide on the hardware
  ai_infra.gpu_rack.gate:
    evidence: /var/lib/gpu_rack/evidence/20261130T180000Z/hardware
    stage: hardware
    require: [nvlink_topology, inference_units, ib_port, ib_latency, clock_sync, cpu_idle]
"""

RETURN = r"""
verdict:
  description: The worst verdict of all required gates, one of V(pass), V(warn), V(unknown), V(fail).
  type: str
  returned: always
summary:
  description: One line that names the worst check with its measured value, limit and remedy.
  type: str
  returned: always
worst:
  description: The first of the worst checks, null when all pass.
  type: dict
  returned: always
  sample:
    check: ib_port.physical_state
    subject: mlx5_1
    verdict: fail
    value: Polling
    limit: LinkUp
    unit: ""
    limit_source: InfiniBand
    reason: "the port looks for a partner and finds none: no cable, a dead cable, or the other end is off"
    remedy: Check the cable and the switch port.
gates:
  description: Verdict, summary, number of checks, time and SHA-256 of the evidence file, by gate.
  type: dict
  returned: always
checks:
  description: Every check of every required gate.
  type: list
  elements: dict
  returned: always
stage:
  description: The stage that was decided.
  type: str
  returned: always
run:
  description: Id of the run.
  type: str
  returned: always
path:
  description: Where the decision is stored.
  type: str
  returned: always
"""

import re
import shutil
import socket
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import (
    fail_unwritten,
    identity,
    read_bytes,
    write_json,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._decision import (
    Here,
    decide,
    read_result,
    refuse_all,
    run_problem,
    runs_to_prune,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import BLOCKING

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "evidence": {"type": "path", "required": True},
    "stage": {"type": "str", "required": True, "choices": ["hardware", "serving"]},
    "require": {"type": "list", "elements": "str", "required": True},
    "run": {"type": "str"},
    "node": {"type": "str"},
    "state_dir": {"type": "path", "default": "/var/lib/gpu_rack"},
    "enforce": {"type": "bool", "default": True},
    "keep_runs": {"type": "int", "default": 20},
    "allow_captured": {"type": "bool", "default": False},
}
_RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_GATE_NAME = re.compile(r"[a-z][a-z0-9_]*")


def prune(root: Path, current: str, keep: int) -> list[str]:
    """Delete the evidence of the oldest runs and return their ids."""
    if not root.is_dir():
        return []
    names = [p.name for p in root.iterdir() if _RUN_ID.fullmatch(p.name) and p.is_dir() and not p.is_symlink()]
    pruned = runs_to_prune(names, current, keep)
    for name in pruned:
        shutil.rmtree(root / name)
    return pruned


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    for name in params["require"]:
        if not _GATE_NAME.fullmatch(name):
            module.fail_json(msg=f"require: {name!r} is not the name of a gate. Use names such as nvlink_topology.")
    if not params["require"]:
        module.fail_json(msg="require: the list is empty. Name the gates that must have a result.")
    if params["keep_runs"] < 1:
        module.fail_json(msg=f"keep_runs: {params['keep_runs']} would delete the run being judged. Use 1 or more.")
    evidence, state = Path(params["evidence"]), Path(params["state_dir"])
    run = params["run"] or evidence.parent.name
    path = state / "gate" / f"{params['stage']}.json"
    me = identity()
    here = Here(time.time(), me["uptime"], me["machine_id"], me["boot_id"])
    names = list(dict.fromkeys(params["require"]))
    problem = run_problem(run, evidence.parent.name)
    if problem:
        results = refuse_all(names, problem)
    else:
        results = [
            read_result(name, read_bytes(evidence / f"{name}.json"), here, allow_captured=params["allow_captured"])
            for name in names
        ]
    outcome = {**decide(params["stage"], results), "run": run}
    blocked = outcome["verdict"] in BLOCKING
    if not module.check_mode:
        decision = {
            **outcome,
            "node": params["node"] or socket.gethostname().partition(".")[0],
            "time": time.time(),
            # Who decided where: a disk moved to another machine, or a decision from before a reboot, can be told apart.
            "machine_id": here.machine_id,
            "boot_id": here.boot_id,
            "evidence": str(evidence),
        }
        try:
            write_json(path, decision)
        except (OSError, ValueError) as exc:
            fail_unwritten(module, path, exc, {**outcome, "path": str(path)})
        if not problem:
            try:
                prune(state / "evidence", run, params["keep_runs"])
            except OSError as exc:
                module.warn(f"{state / 'evidence'}: old runs could not be deleted: {exc}. Delete them by hand.")
    elif blocked:
        module.warn(f"in check mode this does not stop the node: {outcome['summary']}")
    if blocked and params["enforce"] and not module.check_mode:
        module.fail_json(msg=outcome["summary"], changed=False, path=str(path), **outcome)
    module.exit_json(changed=False, path=str(path), **outcome)


if __name__ == "__main__":
    main()

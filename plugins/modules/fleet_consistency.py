#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate fleet_consistency: a node has the versions of its rack, and no value is far below those of its peers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: fleet_consistency
short_description: Hold a node's versions and measured values against those of the other nodes
version_added: 0.1.0
description:
  - Takes what the other gates found (their return value C(fleet)) on all nodes and judges one node. Only nodes of the
    same board are compared.
  - Each version must be the one that most nodes of the rack have. The odd node fails, not the majority. Where as many
    nodes have the one as the other, it cannot be told which is right, and that is V(unknown) for both.
  - Each value may be worse than the median of the B(other) nodes by at most O(max_below). The node's own value is not
    part of its yardstick.
  - A value that fewer than O(min_nodes) nodes have gets no verdict; C(fleet_consistency.size) counts them. A node
    without any other one is a V(warn) there, so that the first node of a rack can join. So is one that is compared
    without the rows of earlier runs, because their file is damaged.
  - A version that most other nodes have and this one has not is V(unknown). A value that only others have is not
    judged, since a node that is brought up alone has measured nothing between nodes. Whether a gate measured what it
    must is that gate's own verdict.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  node:
    description:
      - Name of the node that is judged. Required with O(rows).
      - Without it all nodes in O(captured) are judged.
    type: str
  rows:
    description:
      - What was found on each node, as the filter P(ai_infra.gpu_rack.fleet_rows#filter) makes it.
      - Required unless O(captured) is given.
    type: list
    elements: dict
  baseline:
    description: Rows of earlier runs. They count for nodes that have none in O(rows).
    type: list
    elements: dict
    default: []
  captured:
    description:
      - Judge stored rows in place of O(rows). A JSON file with a list of rows or with C(rows) and C(baseline), as
        C(.gpu_rack/fleet.json) on the controller, or a directory with a C(fleet.json).
    type: path
  profile:
    description: Board profile whose margin counts.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
    default: hgx_h100_8
  max_below:
    description: How much worse than the median a value may be, as a share. The profile's without it.
    type: float
  min_nodes:
    description: Number of nodes, this one among them, that must have a value before a median means something.
    type: int
    default: 3
  mixed_versions:
    description:
      - What a version is that differs within the rack. V(warn) is for a rollout, node by node, in which the first nodes
        are the odd ones on purpose.
    type: str
    choices: [fail, warn]
    default: fail
seealso:
  - plugin: ai_infra.gpu_rack.fleet_rows
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Compare this node with the others of this run and of earlier ones
  ai_infra.gpu_rack.fleet_consistency:
    node: "{{ inventory_hostname }}"
    rows: "{{ ansible_play_hosts_all | ai_infra.gpu_rack.fleet_rows(hostvars, ['__health', '__nccl'], file) }}"
    evidence_dir: /var/lib/gpu_rack/evidence/20261130T120000Z/hardware
  vars:
    file: .gpu_rack/fleet.json

- name: Judge the stored rows of all nodes
  ai_infra.gpu_rack.fleet_consistency:
    captured: .gpu_rack/fleet.json
"""

RETURN = r"""
verdict:
  description: The worst verdict, V(pass), V(warn), V(fail) or V(unknown).
  returned: always
  type: str
summary:
  description: One line with the worst check, the measured value and the limit.
  returned: always
  type: str
gate:
  description: Name of the gate.
  returned: always
  type: str
  sample: fleet_consistency
checks:
  description: The number of nodes, and every version and value that was compared.
  returned: always
  type: list
  elements: dict
evidence:
  description: The rows that were judged.
  returned: always
  type: list
  elements: dict
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _fleet
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

ARGUMENT_SPEC: dict[str, Any] = {
    **GATE_ARGS,
    "node": {"type": "str"},
    "rows": {"type": "list", "elements": "dict"},
    "baseline": {"type": "list", "elements": "dict", "default": []},
    "profile": {"type": "str", "choices": list(NAMES), "default": "hgx_h100_8"},
    "max_below": {"type": "float"},
    "min_nodes": {"type": "int", "default": 3},
    "mixed_versions": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
}
_COMMAND = "fleet-rows"
_FILE = "fleet.json"


def main() -> None:
    """Judge one node, or all nodes of stored rows."""
    module = AnsibleModule(
        ARGUMENT_SPEC,
        supports_check_mode=True,
        required_one_of=[("captured", "rows")],
        mutually_exclusive=[("captured", "rows")],
        required_by={"rows": "node"},
    )
    params = module.params
    check_numbers(module, positive=["min_nodes"], not_negative=["max_below"])
    if params["min_nodes"] < 2:
        module.fail_json(msg="min_nodes: 1 node has no other to be compared with. Use 2 or more.")
    board = profile(params["profile"])
    below, source_of_it = float(board.below_median.value), board.source
    if params["max_below"] is not None:
        if params["max_below"] >= 1:
            module.fail_json(msg=f"max_below: {params['max_below']:g} lets everything pass. Use a share below 1.")
        below, source_of_it = params["max_below"], "option max_below"
    rules = _fleet.Rules(below, source_of_it, params["min_nodes"], params["mixed_versions"])
    if params["captured"]:
        source = Source(params["captured"], params["timeout"])
        reading = source.read([_COMMAND], _FILE)
        used = source.used
    else:
        text = json.dumps({"rows": params["rows"], "baseline": params["baseline"]}, sort_keys=True)
        reading = Evidence(_COMMAND, 0, text, stands_for=_COMMAND, name=_FILE, needed=True)
        used = [reading]
    finish_gate(module, "fleet_consistency", _fleet.judge(reading, params["node"], rules), used)


if __name__ == "__main__":
    main()

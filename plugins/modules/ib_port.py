#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate: every RDMA port of the node is up at its rate and known to the subnet manager."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ib_port
short_description: Judge the RDMA ports of a node by C(ibstat)
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - Holds state, physical state, rate, link layer, LID of the subnet manager and firmware of every expected HCA
    against the limits.
  - An adapter that is not listed is a V(fail). When the list could not be read whole, because C(ibstat) stopped
    in the middle, it
    is V(unknown) and the ports read so far are still judged.
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  hcas:
    description: Expected devices, such as V(mlx5_0), with the port after a colon where it is not port 1.
    type: list
    elements: str
    required: true
  profile:
    description: Board whose rate is expected. Either this or O(rate) gives the limit.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  rate:
    description: Lowest accepted rate in Gb/s, in place of the profile's.
    type: int
  link_layer:
    description: Expected link layer. On V(ethernet) no subnet manager is asked for.
    type: str
    choices: [infiniband, ethernet]
    default: infiniband
  firmware:
    description: Firmware version every adapter must have. Without it the firmware is not judged.
    type: str
"""

EXAMPLES = r"""
- name: Prove that all rails are up
  ai_infra.gpu_rack.ib_port:
    hcas: [mlx5_0, mlx5_1, mlx5_2, mlx5_3]
    profile: hgx_h100_8

# ansible localhost -m ai_infra.gpu_rack.ib_port -a "captured=ibstat.txt hcas=mlx5_0,mlx5_1 rate=400"
- name: Judge a stored report
  ai_infra.gpu_rack.ib_port:
    captured: bundle/ibstat.txt
    hcas: [mlx5_0, mlx5_1]
    rate: 400
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
  description: Name of the gate, V(ib_port).
  type: str
  returned: always
checks:
  description:
    - Every judged fact, C(ib_port.present), C(.link_layer), C(.physical_state), C(.state), C(.rate),
      C(.sm_lid), C(.firmware), C(.output).
  type: list
  elements: dict
  returned: always
evidence:
  description: Command, exit status and digest of each reading; the output too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
ports:
  description: Fields of each adapter's ports as C(ibstat) prints them, by device and port number.
  type: dict
  returned: always
"""

import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ibstat import GATE, judge, parse, split_hca
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import unknown

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "hcas": {"type": "list", "elements": "str", "required": True},
    "profile": {"type": "str", "choices": list(NAMES)},
    "rate": {"type": "int"},
    "link_layer": {"type": "str", "choices": ["infiniband", "ethernet"], "default": "infiniband"},
    "firmware": {"type": "str"},
}
_HCA = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(:[1-9][0-9]{0,2})?")


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True, required_one_of=[("profile", "rate")])
    check_numbers(module, positive=["rate"])
    params = module.params
    if not params["hcas"]:
        module.fail_json(msg="hcas: the list is empty. Name the devices that must be there.")
    for hca in params["hcas"]:
        if not _HCA.fullmatch(hca):
            module.fail_json(msg=f"hcas: {hca!r} is not a device or a device and a port. Write mlx5_0 or mlx5_0:1.")
        if sum(split_hca(other) == split_hca(hca) for other in params["hcas"]) > 1:
            module.fail_json(msg=f"hcas: {hca!r} is there twice. Name each port once.")
    rate, rate_source = params["rate"], "option rate"
    if rate is None:
        board = profile(params["profile"])
        rate, rate_source = board.ib_rate_gbps.value, board.source
    source = Source(params["captured"], params["timeout"])
    evidence = source.read(("ibstat",), "ibstat.txt", "ibstat")
    report = parse(evidence.stdout, evidence.stderr)
    reason = refusal(evidence)
    checks = (
        [unknown(f"{GATE}.output", "ibstat", reason, "Install infiniband-diags and run ibstat by hand.")]
        if reason
        else []
    )
    # What was printed before a failure is still worth knowing: a port that is down stays a defect.
    if not reason or report.adapters:
        if reason:
            report = type(report)(report.adapters, (*report.problems, reason))
            checks = []
        checks += judge(
            report,
            params["hcas"],
            rate=rate,
            rate_source=rate_source,
            link_layer=params["link_layer"],
            firmware=params["firmware"],
        )
    ports = {a.name: {str(n): fields for n, fields in a.ports.items()} for a in report.adapters.values()}
    finish_gate(module, GATE, checks, source.used, ports=ports)


if __name__ == "__main__":
    main()

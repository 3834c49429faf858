#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate gpu_health: every GPU of a node is there, alike, and without a defect the driver knows of."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_health
short_description: Judge the GPUs of a node by C(nvidia-smi -q)
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - Judges the number of GPUs, product, driver, VBIOS and InfoROM, ECC mode and errors, row remapping, PCIe width and
    generation, what holds the clocks down, MIG, persistence mode, recovery action and temperature of each GPU.
  - A row remapping that failed or waits for a reset is a V(fail) on its own, however good the benchmarks are.
  - An uncorrectable ECC error since the driver was loaded is a V(fail). One in the life of the GPU is a V(warn), since
    row remapping repairs memory; with O(before) any growth is a V(fail).
  - A PCIe link below the board's generation is a V(fail) in the performance states P0 to P2, and a V(warn) in a power
    saving one, where the driver slows the link on purpose. The width is the same in every state.
  - With O(before) the times that newer drivers print below C(Clocks Event Reasons Counters) are compared too. If
    that of C(HW Thermal Slowdown) or C(HW Power Braking) grew, it is a V(fail), of C(SW Thermal Slowdown) alone a
    V(warn). Where a driver does not print them, nothing is judged by them.
  - Slowdowns by the hardware (C(HW Slowdown), C(HW Thermal Slowdown), C(HW Power Brake Slowdown)) are a V(fail), the
    driver's own (C(SW Thermal Slowdown)) is a V(warn); idle clocks, application clocks and the power cap are harmless.
  - Takes the text of drivers 460 to 595, C(nvidia-smi -q -x), and C(nvidia-smi --query-gpu=... --format=csv) with the
    names of both generations. The Fabric block is judged by M(ai_infra.gpu_rack.nvlink_status).
  - One captured file that holds only some sections (C(nvidia-smi -q -d ECC)) or columns, or is the table of
    C(nvidia-smi) or its C(-L), is judged by what is in it. A live node, a directory and a whole report must have all,
    or the fact is V(unknown).
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  profile:
    description:
      - Board whose GPUs are expected. A node that may join needs one.
      - Without it any GPU is judged by what it says of itself, as for a capture of another product. The product is not
        judged then, the number of GPUs is the driver's own unless O(gpus) is set, the PCIe link must be at the GPU's
        own maximum, and what a GPU does not have (ECC, row remapping) is not asked of it.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  gpus:
    description:
      - Number of GPUs expected in place of the profile's.
      - Boards of single cards (V(h100_nvl), V(h100_pcie)) do not fix it. Without this option their count is a
        V(warn).
      - A report that announces more GPUs than it describes is V(unknown), since it may be cut off. One captured file of
        C(nvidia-smi -q -i 2) is such a report; with V(1) here that one GPU is judged.
    type: int
  driver:
    description: Version the driver must have. Without it the version is shown and left to
      M(ai_infra.gpu_rack.gpu_driver).
    type: str
  vbios:
    description: VBIOS version each GPU must have. Without it all GPUs of the node must have the same.
    type: str
  sram_uncorrected:
    description:
      - Highest number of uncorrectable SRAM errors in the life of a GPU, for drivers that do not print
        C(SRAM Threshold Exceeded).
    type: int
    default: 4
  remapped_rows:
    description: Highest number of rows remapped for uncorrectable errors.
    type: int
    default: 512
  temperature:
    description:
      - Highest temperature in degrees Celsius. Without it the GPU's own limit counts, or 87 where it prints none.
    type: float
  pcie_gen:
    description:
      - Generation the PCIe link must have at least, in place of the profile's. V(4) is right for H100 PCIe and H100 NVL
        cards in servers that have no generation 5.
    type: int
  pcie_width:
    description: Number of lanes the PCIe link must have at least, in place of the profile's.
    type: int
  columns:
    description:
      - Names of the columns (as in C(--query-gpu)) of a captured csv that has no header line.
    type: list
    elements: str
    default: []
  before:
    description:
      - An earlier reading of the same node, a C(gpu_health.json) of its evidence or a capture. Uncorrectable errors,
        remapped rows and the time in a slowdown must not have grown since, so a burn-in between the two shows what it
        broke.
    type: path
seealso:
  - module: ai_infra.gpu_rack.gpu_driver
  - module: ai_infra.gpu_rack.nvlink_status
"""

EXAMPLES = r"""
- name: Judge the GPUs before the burn-in
  ai_infra.gpu_rack.gpu_health:
    profile: hgx_h100_8
    evidence_dir: /var/lib/gpu_rack/evidence/20261130T120000Z/hardware

- name: Judge them again after it
  ai_infra.gpu_rack.gpu_health:
    profile: hgx_h100_8
    before: /var/lib/gpu_rack/evidence/20261130T120000Z/hardware/gpu_health.json
    evidence_dir: /var/lib/gpu_rack/evidence/20261130T120000Z/burnin

# ansible localhost -m ai_infra.gpu_rack.gpu_health -a "captured=nvidia-smi-q.txt profile=hgx_h100_8"
- name: Judge the output in a support bundle
  ai_infra.gpu_rack.gpu_health:
    captured: bundle/nvidia-smi-q.txt
    profile: hgx_h100_8
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
  description: Name of the gate, V(gpu_health).
  type: str
  returned: always
checks:
  description: Every judged fact, with value, limit, source of the limit, reason and remedy.
  type: list
  elements: dict
  returned: always
  sample:
    - check: gpu_health.remap_pending
      subject: GPU 3 00000000:61:00.0
      verdict: fail
      value: "Yes"
      limit: "No"
      unit: ""
      limit_source: NVIDIA GPU Memory Error Management
      reason: a row waits for a reset to be remapped
      remedy: Drain the node and reset the GPU, then judge again.
evidence:
  description: Command, exit status and digest of each reading; the output too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
driver:
  description: Version of the driver that runs.
  type: str
  returned: always
attached:
  description: Number of GPUs the driver announces.
  type: int
  returned: always
gpus:
  description: What was read of each GPU; null is what could not be read or is not supported.
  type: list
  elements: dict
  returned: always
fleet:
  description: Versions that should be one over the rack, for M(ai_infra.gpu_rack.fleet_consistency).
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _gpu_health, _smi_query
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, unknown

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES)},
    "gpus": {"type": "int"},
    "driver": {"type": "str"},
    "vbios": {"type": "str"},
    "sram_uncorrected": {"type": "int", "default": 4},
    "remapped_rows": {"type": "int", "default": 512},
    "temperature": {"type": "float"},
    "pcie_gen": {"type": "int"},
    "pcie_width": {"type": "int"},
    "columns": {"type": "list", "elements": "str", "default": []},
    "before": {"type": "path"},
}
COMMAND = ("nvidia-smi", "-q")
CAPTURE_NAMES = ("nvidia-smi-q.txt", "nvidia-smi-q", "nvidia-smi-q.xml", "nvidia-smi-q-x.xml")
_REMEDY = "Install the driver (role cuda) and look into the kernel log for NVRM."
_REBOOT = "Reboot the node: the new driver is installed, the kernel still runs the old one."


def read_query(evidence: Evidence, columns: list[str]) -> tuple[_smi_query.Query, list[Check]]:
    """Return what a reading says, and why it cannot be trusted as a whole.

    A GPU that is lost makes the tool end with a status, after it has described the others: those are judged all the
    same, and the loss itself is a fail, so the status adds nothing then.
    """
    if any(_smi_query.MISMATCH in text for text in (evidence.stdout, evidence.stderr)):
        needed = f"{_smi_query.MISMATCH}: a reboot is needed"
        return _smi_query.parse(""), [unknown("gpu_health.output", "driver", needed, _REBOOT)]
    query = _smi_query.parse(evidence.stdout, columns)
    reason = refusal(evidence)
    if reason is None or (query.gpus and any(problem.kind == "lost" for problem in query.problems)):
        return query, []
    return query, [unknown("gpu_health.output", "driver", reason, _REMEDY)]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(
        module,
        positive=["gpus", "temperature", "pcie_gen", "pcie_width"],
        not_negative=["sram_uncorrected", "remapped_rows"],
    )
    params = module.params
    source = Source(params["captured"], params["timeout"])
    query, checks = read_query(source.read(COMMAND, *CAPTURE_NAMES), params["columns"])
    before: _smi_query.Query | None = None
    if params["before"]:
        earlier = Source(params["before"], params["timeout"])
        before, problems = read_query(earlier.read(COMMAND, *CAPTURE_NAMES), params["columns"])
        if problems:
            before = _smi_query.Query("none", None, None, (), (_smi_query.Problem("error", problems[0].reason),))
    limits = _gpu_health.Limits(
        board=profile(params["profile"]) if params["profile"] else None,
        gpus=params["gpus"],
        driver=params["driver"],
        vbios=params["vbios"],
        sram_uncorrected=params["sram_uncorrected"],
        remapped_rows=params["remapped_rows"],
        temperature=params["temperature"],
        pcie_gen=params["pcie_gen"],
        pcie_width=params["pcie_width"],
        whole=not source.single_file,
    )
    if query.gpus or not checks:
        checks += _gpu_health.judge(query, limits, before)
    finish_gate(
        module,
        _gpu_health.GATE,
        checks,
        source.used,
        driver=query.driver,
        attached=query.attached,
        gpus=_gpu_health.readings(query),
        fleet=_gpu_health.fleet(query),
    )


if __name__ == "__main__":
    main()

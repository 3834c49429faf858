#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate: the GPUs of a node are joined exactly as its board should be."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvlink_topology
short_description: Judge C(nvidia-smi topo -m) against a board profile
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - Reads the topology matrix in every form the tool has had and holds each NVLink cell, the distance of each GPU
    to the HCA of
    its rail, and the NUMA nodes against the profile of the board.
  - One cell that differs is a V(fail). A line that cannot be read is V(unknown) and is shown.
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  profile:
    description:
      - Board whose matrix is expected. A node that may join needs one.
      - Without it and without O(width) the matrix is held against itself, as for a capture of another board. Both
        cells of a pair must be the same and all GPUs must have the same number of NVLinks, however they are shared out.
        A GPU with fewer is a V(fail), a card without a bridge beside bridged ones a V(warn). A board that lost the same
        on all GPUs is not noticed.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  width:
    description:
      - Number of bonded NVLinks between every two GPUs, 12 for V(NV12), for a board without a profile. V(0) means
        that no GPU has an NVLink.
      - It takes the place of the profile's matrix when both are given.
    type: int
  gpus:
    description:
      - Number of GPUs expected in place of the profile's.
      - Boards of single cards (V(h100_nvl), V(h100_pcie)) do not fix it. Without this option their count is a
        V(warn).
    type: int
  hcas:
    description:
      - RDMA device names in rail order, such as V([mlx5_0, mlx5_1]), each once. Each GPU is paired with the HCA at its
        place.
      - Without it the distance to NICs is not judged.
    type: list
    elements: str
    default: []
seealso:
  - module: ai_infra.gpu_rack.inference_units
"""

EXAMPLES = r"""
- name: Prove that the board is whole
  ai_infra.gpu_rack.nvlink_topology:
    profile: hgx_h100_8
    hcas: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]

# ansible localhost -m ai_infra.gpu_rack.nvlink_topology -a "captured=topo.txt profile=hgx_h100_8"
- name: Judge the output in a support bundle
  ai_infra.gpu_rack.nvlink_topology:
    captured: bundle/nvidia-smi-topo-m.txt
    profile: hgx_h100_8

# ansible localhost -m ai_infra.gpu_rack.nvlink_topology -a "captured=topo.txt width=12 gpus=8"
- name: Judge a board without a profile, here an HGX A100
  ai_infra.gpu_rack.nvlink_topology:
    captured: topo.txt
    width: 12
    gpus: 8
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
  description: Name of the gate, V(nvlink_topology).
  type: str
  returned: always
checks:
  description: Every judged fact, C(nvlink_topology.gpus), C(.matrix), C(.nic_affinity), C(.numa) and C(.output).
  type: list
  elements: dict
  returned: always
  sample:
    - check: nvlink_topology.matrix
      subject: GPU0-GPU2
      verdict: fail
      value: NV17
      limit: NV18
      unit: ""
      limit_source: board profile hgx_h100_8
      reason: 1 of 18 links are missing
      remedy: Reset the GPUs or power-cycle the node.
evidence:
  description: Command, exit status and digest of each reading; the output too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
gpus:
  description: Names of the GPUs in the matrix.
  type: list
  elements: str
  returned: always
matrix:
  description: Link class by GPU and device, for reports. Cells that could not be read are absent.
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import TopoError, Topology, parse
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._topology import (
    GATE,
    judge_alike,
    judge_count,
    judge_matrix,
    judge_nics,
    judge_numa,
    judge_options,
    judge_output,
    show_numa,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, unknown

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES)},
    "width": {"type": "int"},
    "gpus": {"type": "int"},
    "hcas": {"type": "list", "elements": "str", "default": []},
}
COMMAND = ("nvidia-smi", "topo", "-m")
CAPTURE_NAMES = ("nvidia-smi-topo-m.txt", "topo-m.txt", "topo.txt")


def judge(
    text: str, board_name: str | None, gpus: int | None, hcas: list[str], width: int | None = None
) -> tuple[list[Check], Topology | None]:
    """Return the checks of a matrix's text, and the matrix when there is one."""
    board = profile(board_name) if board_name else None
    try:
        topology = parse(text)
    except TopoError as exc:
        remedy = "Run nvidia-smi on the node; if it fails there too, look at the driver and the kernel log."
        return [unknown("nvlink_topology.output", "nvidia-smi topo -m", str(exc), remedy)], None
    if width is not None:
        matrix = judge_options(topology, width)
    else:
        matrix = judge_matrix(topology, board) if board else judge_alike(topology)
    return [
        *judge_output(topology),
        judge_count(topology, board, gpus),
        *matrix,
        *judge_nics(topology, board, hcas, gpus),
        *(judge_numa(topology, board, gpus) if board else show_numa(topology)),
    ], topology


def cells_by_gpu(topology: Topology | None) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Return the GPUs and their rows with NICs by name, as the module shows them."""
    if topology is None:
        return [], {}
    gpus = list(topology.gpus)
    rows: dict[str, dict[str, str]] = {gpu: {} for gpu in gpus}
    for (row, column), cell in topology.cells.items():
        if row in rows:
            rows[row][topology.nic_name(column) or column] = cell
    return gpus, rows


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, positive=["gpus"], not_negative=["width"])
    params = module.params
    for hca in params["hcas"]:
        if params["hcas"].count(hca) > 1:
            module.fail_json(msg=f"hcas: {hca!r} is there twice. Name each rail's HCA once.")
    source = Source(params["captured"], params["timeout"])
    evidence = source.read(COMMAND, *CAPTURE_NAMES)
    reason = refusal(evidence)
    topology: Topology | None = None
    if reason:
        remedy = "Check that the driver is installed and loaded, then run the command by hand."
        checks = [unknown("nvlink_topology.output", "nvidia-smi topo -m", reason, remedy)]
    else:
        checks, topology = judge(evidence.stdout, params["profile"], params["gpus"], params["hcas"], params["width"])
    gpus, matrix = cells_by_gpu(topology)
    finish_gate(module, GATE, checks, source.used, gpus=gpus, matrix=matrix)


if __name__ == "__main__":
    main()

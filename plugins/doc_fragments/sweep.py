# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation shared by the modules that sweep the fabric."""

from __future__ import annotations


class ModuleDocFragment:
    """Options of a module whose nodes meet in pairs."""

    DOCUMENTATION = r"""
options:
  node:
    description: Name of this node in O(peers). Required unless O(captured) is given.
    type: str
  peers:
    description: All nodes of the sweep including this one, the same list on every node. Required unless O(captured)
      is given.
    type: list
    elements: dict
    suboptions:
      name:
        description: Name of the node.
        type: str
        required: true
      address:
        description: Address on the management network at which the others reach it.
        type: str
        required: true
      rack:
        description:
          - Rack of the node. With more than one rack only nodes of the same rack all meet.
        type: str
        default: ""
  hcas:
    description: HCAs of this node in rail order. Partners measure rail 0 with rail 0 and so on.
    type: list
    elements: str
  ib_port:
    description: Port number used on each HCA.
    type: int
    default: 1
  link_layer:
    description: Link layer of the HCAs.
    type: str
    choices: [infiniband, ethernet]
    default: infiniband
  sweep:
    description: Name of the sweep, such as the run id. Nodes of different sweeps refuse each other.
    type: str
    default: ""
  rails:
    description: How many rails each pair of the mesh measures, moving on from round to round. V(0) means all.
    type: int
    default: 0
  retest:
    description: Whether suspects are measured again against known good ports before the sweep ends.
    type: bool
    default: true
  control_port:
    description:
      - TCP port of the management network on which partners meet. The tools use ports of the 2000 above it.
    type: int
    default: 18500
  meet_timeout:
    description: Seconds to wait for partners at the start, and silence after which a partner counts as lost.
    type: float
    default: 30.0
  budget:
    description: Seconds for the whole task. What was not measured by then is reported as not measured.
    type: float
    default: 900.0
  profile:
    description: Board profile whose limits tell what is suspect, and what is judged.
    type: str
"""

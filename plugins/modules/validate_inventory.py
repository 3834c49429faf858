# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of validate_inventory; the work is done by the action plugin of the same name, on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: validate_inventory
short_description: Refuse a wrong inventory before anything is touched
version_added: 0.1.0
description:
  - Checks the variables of B(all) hosts of the inventory, whatever C(--limit) says, against the argument specifications
    of the roles that will run on them and against the rules that only the rack as a whole can break, such as two nodes
    with one BMC address.
  - Connects to no host. Names the file and line, the host, the variable, the value and what is allowed.
    Secrets are not shown.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
options: {}
attributes:
  check_mode:
    description: Reads only, so check mode does the same.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
notes:
  - Runs on the controller. Use it with C(run_once), since it looks at every host at once.
"""

EXAMPLES = r"""
- name: Refuse a wrong inventory
  ai_infra.gpu_rack.validate_inventory:
  run_once: true
"""

RETURN = r"""
problems:
  description: One line for each wrong value.
  returned: always
  type: list
  elements: str
  sample:
    - "group_vars/all/gpu_rack.yml:3: node1: gpu_rack_link_layer: 'ethernt'. Allowed: one of infiniband, ethernet."
"""

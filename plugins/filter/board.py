# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What playbooks need to know of a board, by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import profile

DOCUMENTATION = r"""
name: board
short_description: Facts of a board by its name
version_added: 0.1.0
description: Returns what playbooks have to know of a board to fill in role options, so that no inventory repeats it.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  _input:
    description: Name of the board, as in C(gpu_rack_board).
    type: str
    required: true
"""

EXAMPLES = r"""
cuda_fabric_manager: "{{ (gpu_rack_board | ai_infra.gpu_rack.board).fabric_manager }}"
"""

RETURN = r"""
_value:
  description:
    - C(fabric_manager) says whether the board has NVSwitches and so needs Fabric Manager.
    - C(gpus) counts its GPUs, null where the server decides.
  type: dict
"""


def board(name: str) -> dict[str, Any]:
    """Return facts of the board `name`; raises AnsibleFilterError that lists the known boards."""
    try:
        found = profile(name)
    except ValueError as exc:
        raise AnsibleFilterError(str(exc)) from exc
    return {"fabric_manager": found.fabric_manager, "gpus": found.gpus.value if found.gpus else None}


class FilterModule:
    """The collection's filters about boards."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"board": board}

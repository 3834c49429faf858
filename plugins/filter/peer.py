# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A host of the play as a peer of the fabric sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

DOCUMENTATION = r"""
name: peer
short_description: Name and management address of a host
version_added: 0.1.0
description: Returns a host in the form M(ai_infra.gpu_rack.ib_latency) takes its peers in.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  _input:
    description: Inventory name of the host.
    type: str
    required: true
  hostvars:
    description: The variable C(hostvars).
    type: dict
    required: true
"""

EXAMPLES = r"""
peers: "{{ ansible_play_hosts | map('ai_infra.gpu_rack.peer', hostvars) }}"
"""

RETURN = r"""
_value:
  description: C(name) and C(address), the latter C(ansible_host) or else the name itself.
  type: dict
"""


def peer(name: str, hostvars: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return {"name", "address"} of the host `name`."""
    return {"name": name, "address": str(hostvars[name].get("ansible_host") or name)}


class FilterModule:
    """The collection's filters about hosts of a play."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"peer": peer}

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What came of fetching the evidence of every node of a play."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

DOCUMENTATION = r"""
name: fetched_nodes
short_description: What came of fetching the evidence of every node
version_added: 0.1.0
description:
  - Returns what C(playbooks/report.yml) notes in C(nodes.json) of a run. A node is V(fetched), V(unreachable),
    V(failed) with the reason, or has V(no evidence) of the run.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  _input:
    description: Inventory names of the hosts of the play.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variable C(hostvars), with what the playbook registered.
    type: dict
    required: true
  run:
    description: Id of the run.
    type: str
    required: true
  known:
    description: Text of the C(nodes.json) that is there already, whose other nodes are kept.
    type: str
    default: ""
"""

EXAMPLES = r"""
nodes: "{{ ansible_play_hosts_all | ai_infra.gpu_rack.fetched_nodes(hostvars, '20261130T180000Z') }}"
"""

RETURN = r"""
_value:
  description: C(run), and C(nodes) with C(state) and C(message) by host.
  type: dict
"""

_STEPS = ("__report_archive", "__report_packed", "__report_fetched")


def fetched_nodes(
    names: Sequence[str], hostvars: Mapping[str, Mapping[str, Any]], run: str, known: str = ""
) -> dict[str, Any]:
    """Return {"run", "nodes"} for the hosts `names`, over what `known` says of others."""
    return {"run": run, "nodes": {**_known(known), **{str(name): _node(hostvars[name]) for name in names}}}


def _known(text: Any) -> dict[str, Any]:
    try:
        nodes = json.loads(text)["nodes"]
    except (ValueError, TypeError, KeyError):
        return {}
    return dict(nodes) if isinstance(nodes, Mapping) else {}


def _node(variables: Mapping[str, Any]) -> dict[str, str]:
    results = [found for step in _STEPS if isinstance(found := variables.get(step), Mapping)]
    for found in results:
        if found.get("unreachable"):
            return {"state": "unreachable", "message": _line(found.get("msg"))}
    fetched = variables.get("__report_fetched") or {}
    if fetched.get("checksum"):
        return {"state": "fetched", "message": ""}
    packed = variables.get("__report_packed") or {}
    if packed.get("rc") == 0 and not packed.get("start"):
        return {"state": "no evidence", "message": ""}
    said = [_line(found.get("stderr") or found.get("msg")) for found in results if not found.get("skipped")]
    return {"state": "failed", "message": next((text for text in reversed(said) if text), "nothing was fetched")}


def _line(text: Any) -> str:
    """Return the last line that says something, as a traceback ends with it."""
    lines = [line.strip() for line in str(text or "").splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


class FilterModule:
    """The collection's filter of the report."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"fetched_nodes": fetched_nodes}

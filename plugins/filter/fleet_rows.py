# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the gates found on each node, for the comparison of the nodes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError

DOCUMENTATION = r"""
name: fleet_rows
short_description: What the gates found on each node
version_added: 0.1.0
description:
  - Puts the C(fleet) values of gate results together, one row a node, for M(ai_infra.gpu_rack.fleet_consistency).
  - Nodes that have no result in this run keep the row they have in the baseline, so that a run with C(--limit) compares
    its node with the last values of the others and leaves theirs as they are.
  - A baseline that is damaged counts as none. A row with only a C(problem) says so, and
    M(ai_infra.gpu_rack.fleet_consistency) makes it a V(warn) - a file on the controller is no fault of a node.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
positional: hostvars, results, baseline, known
options:
  _input:
    description: Inventory names of the nodes of this run.
    type: list
    elements: str
    required: true
  hostvars:
    description: The variable C(hostvars).
    type: dict
    required: true
  results:
    description: Names of the variables in which gate results are registered.
    type: list
    elements: str
    required: true
  baseline:
    description: File on the controller with the rows of earlier runs. A file that does not exist has none.
    type: path
  known:
    description: Inventory names of all nodes there are. Rows of other nodes in the baseline are left out.
    type: list
    elements: str
  board:
    description: Name of the variable with the node's board. Only nodes of one board are compared.
    type: str
    default: gpu_rack_board
  rack:
    description: Name of the variable with the node's rack. Without such a variable all nodes are one rack.
    type: str
    default: gpu_rack_rack
"""

EXAMPLES = r"""
rows: >-
  {{ ansible_play_hosts_all | ai_infra.gpu_rack.fleet_rows(hostvars, ['__gpu_health', '__nccl_bandwidth'],
     '.gpu_rack/fleet.json', groups['gpu_nodes']) }}
"""

RETURN = r"""
_value:
  description:
    - One row a node, sorted by name, with C(node), C(board), C(rack) and C(fleet). C(fleet) holds C(versions) and
      C(values).
    - Last, if the baseline could not be read, a row with only C(problem). It need not be stored.
  type: list
  elements: dict
"""


def fleet_rows(
    nodes: Sequence[str],
    hostvars: Mapping[str, Mapping[str, Any]],
    results: Sequence[str],
    baseline: str | None = None,
    known: Sequence[str] | None = None,
    board: str = "gpu_rack_board",
    rack: str = "gpu_rack_rack",
) -> list[dict[str, Any]]:
    """Return the rows, and one with a problem for a baseline that cannot be read."""
    if isinstance(nodes, str) or isinstance(results, str):
        raise AnsibleFilterError("fleet_rows: give lists of nodes and of variables.")
    stored, problem = _stored(baseline)
    rows = {row["node"]: row for row in stored if known is None or row["node"] in known}
    for node in nodes:
        variables = hostvars[node]
        fleet: dict[str, dict[str, Any]] = {"versions": {}, "values": {}}
        for name in results:
            found = variables.get(name)
            part = found.get("fleet") if isinstance(found, Mapping) else None
            for kind, facts in fleet.items():
                facts.update(part.get(kind) or {} if isinstance(part, Mapping) else {})
        if fleet["versions"] or fleet["values"]:
            text = {key: str(variables.get(name) or "") for key, name in (("board", board), ("rack", rack))}
            rows[node] = {"node": str(node), **text, "fleet": fleet}
    return [rows[node] for node in sorted(rows)] + ([{"problem": problem}] if problem else [])


def _stored(baseline: str | None) -> tuple[list[dict[str, Any]], str | None]:
    """Return the rows of earlier runs, and why there are none when the file is damaged.

    No error: it would come on every node of the run and quarantine them all.
    """
    if not baseline:
        return [], None
    try:
        data = json.loads(Path(baseline).read_text("utf-8"))
    except FileNotFoundError:
        return [], None
    except (OSError, ValueError, RecursionError) as exc:
        return [], f"the rows of earlier runs, since {baseline} cannot be read ({exc})"
    rows = data.get("rows") if isinstance(data, dict) else data
    # The row about a baseline that was damaged is of the run that found it, wherever it was stored.
    nodes = [row for row in rows if not _marks(row)] if isinstance(rows, list) else None
    if nodes is None or not all(isinstance(row, dict) and isinstance(row.get("node"), str) for row in nodes):
        return [], f"the rows of earlier runs, since {baseline} holds no rows of nodes"
    return nodes, None


def _marks(row: Any) -> bool:
    return isinstance(row, dict) and set(row) == {"problem"}


class FilterModule:
    """The collection's filters about the fleet."""

    def filters(self) -> Mapping[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"fleet_rows": fleet_rows}

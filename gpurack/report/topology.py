"""The GPU topology of every node, grouped by equal matrices: on a good rack there is one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from gpurack.project import plugin_util
from gpurack.report.read import Json, as_dict, as_list, natural

_SUBJECT = re.compile(r"(GPU[0-9]{1,4})\s*-\s*(GPU[0-9]{1,4}|NIC[0-9]{1,4}|mlx5_[0-9]{1,4})")
_Matrix = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]


class Topologies:
    """Collects the matrices that `nvidia-smi topo -m` printed."""

    def __init__(self) -> None:
        """Start with none."""
        self._nodes: dict[_Matrix, list[str]] = defaultdict(list)
        self._seen: dict[str, _Matrix | None] = {}
        self._nics: dict[_Matrix, dict[str, str]] = {}

    def take(self, node: str, data: Mapping[str, Any]) -> None:
        """Take the matrix out of a gate's readings, once a node. A text that is no matrix is left to its gate."""
        for item in map(as_dict, as_list(data.get("evidence"))):
            output = item.get("stdout")
            # What was captured is named after its file, and says which command it stands for.
            commands = [item.get("command"), item.get("stands_for")]
            if not isinstance(output, str) or not any("topo -m" in c for c in commands if isinstance(c, str)):
                continue
            if output not in self._seen:
                self._seen[output] = self._read(output)
            matrix = self._seen[output]
            if matrix is not None and not any(node in nodes for nodes in self._nodes.values()):
                self._nodes[matrix].append(node)

    def _read(self, output: str) -> _Matrix | None:
        reader = plugin_util("module_utils/_nvidia_topo.py")
        try:
            topology = reader.parse(output)
        except reader.TopoError:
            return None
        devices = (*topology.gpus, *topology.nics)
        cells = tuple(tuple("X" if a == b else topology.cells.get((a, b), "") for b in devices) for a in devices)
        self._nics[(devices, cells)] = {column: topology.nic_name(column) or column for column in topology.nics}
        return devices, cells

    def document(self, checks: Sequence[Json]) -> list[Json]:
        """Return the groups, the largest first; `differs` are the cells that are not as in the largest."""
        bad: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for check in checks:
            match = _SUBJECT.fullmatch(check["subject"]) if check["gate"] == "nvlink_topology" else None
            if match and check["verdict"] in ("fail", "unknown"):
                bad[check["node"]] |= {(match[1], match[2]), (match[2], match[1])}
        ordered = sorted(self._nodes.items(), key=lambda item: (-len(item[1]), natural(item[1][0])))
        groups = []
        for matrix, nodes in ordered:
            devices, cells = matrix
            common = ordered[0][0]
            marked = set().union(*(bad[node] for node in nodes))
            names = self._nics[matrix]
            groups.append({
                "nodes": sorted(nodes, key=natural),
                "devices": [names.get(device, device) for device in devices],
                "cells": [list(row) for row in cells],
                "differs": [
                    [i, j]
                    for i, row in enumerate(cells)
                    for j, cell in enumerate(row)
                    if common[0] == devices and cell != common[1][i][j]
                ],
                "bad": [
                    [i, j]
                    for i, one in enumerate(devices)
                    for j, two in enumerate(devices)
                    if {(one, two), (one, names.get(two, two)), (two, names.get(one, one))} & marked
                ],
            })  # fmt: skip
        return groups

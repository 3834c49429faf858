# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Results of a sweep as JSON: read from files, and refused where they are something else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import read_captured
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

_ROW_KEYS = frozenset(
    f"{side}{part}" for side in ("client", "server") for part in ("", "_hca", "_rail", "_leaf")
) | frozenset(
    ("kind", "rail", "t_typical_us", "p99_us", "sent", "received", "loss", "error", "path_failed", "retransmissions")
)

# Shape only: these name a pair and sort it. A measured value may be anything and is judged.
_ROW_TYPES: dict[str, Any] = {
    "client": str,
    "server": str,
    "client_hca": str | None,
    "server_hca": str | None,
    "client_leaf": str | None,
    "server_leaf": str | None,
    "client_rail": int,
    "server_rail": int,
    "rail": int,
    "error": str | None,
    "path_failed": bool,
}


def read_stored(path: str) -> tuple[list[Mapping[str, Any]], list[Evidence], str | None]:
    """Return stored results, what was read, and the reason why they cannot be used."""
    files = sorted(Path(path).glob("*.json")) if Path(path).is_dir() else [Path(path)]
    results: list[Mapping[str, Any]] = []
    evidence = []
    for file in files:
        read = read_captured(str(file))
        evidence.append(read)
        if read.error is not None:
            return results, evidence, f"{file}: {read.error}"
        try:
            data = json.loads(read.stdout)
        except (ValueError, RecursionError) as exc:
            return results, evidence, f"{file}: not JSON ({exc})"
        results += data if isinstance(data, list) else [data]
    return results, evidence, None if results else f"{path}: no result of a sweep in it"


def unfit(results: list[Mapping[str, Any]]) -> str | None:
    """Return why results are not those of ib_latency, None when they are."""
    for index, result in enumerate(results):
        if not isinstance(result, dict) or not isinstance(result.get("pairs"), list) or "node" not in result:
            return f"entry {index} is not a result of ib_latency (it has no node and pairs)"
        if not isinstance(result["node"], str):
            return f"entry {index} has the node {result['node']!r}, which is no name"
        problem = _unfit_ports(result.get("ports")) or next(filter(None, map(_unfit_row, result["pairs"])), None)
        if problem:
            return f"{result['node']}: {problem}"
    return None


def _unfit_ports(ports: Any) -> str | None:
    """Return what is wrong with a node's ports. Ports that are missing are judged, not refused."""
    if ports is None:
        return None
    if not isinstance(ports, list):
        return f"ports is {str(ports)[:40]!r}, not a list"
    for port in ports:
        if not isinstance(port, dict) or not isinstance(port.get("hca"), str) or "trouble" not in port:
            return f"port {str(port)[:80]} has no hca and trouble"
        if not isinstance(port["trouble"], str | None):
            return f"trouble of port {port['hca']} is {port['trouble']!r}, not a text or null"
    return None


def _unfit_row(row: Any) -> str | None:
    """Return what is wrong with the shape of a pair; its measured values are judged, not refused."""
    missing = _ROW_KEYS - set(row) if isinstance(row, dict) else _ROW_KEYS
    if missing:
        return f"a pair has no {', '.join(sorted(missing))}"
    if row["kind"] not in ("pair", "self", "retest"):
        return f"a pair has the kind {row['kind']!r}"
    for key, kinds in _ROW_TYPES.items():
        if not isinstance(row[key], kinds) or (kinds is int and isinstance(row[key], bool)):
            return f"a pair has the {key} {str(row[key])[:40]!r}"
    fault = row.get("fault")
    if fault is not None and not (isinstance(fault, dict) and {"node", "hca"} <= set(fault)):
        return f"a pair has the fault {str(fault)[:40]!r}"
    return None

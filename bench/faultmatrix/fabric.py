# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A sweep of simulated nodes without running one: the gates' own schedule and parsers over made perftest output.

The rows have the form that the module ib_latency returns, so the judgement sees what it would see of a real sweep.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._fabric_ports import parse_ibstat
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ibping import parse_statistics
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._perftest import parse_bandwidth, parse_latency
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep import Pair, schedule
from simhw import bundle
from simhw.hw import Hw

_ITERATIONS = 1000
_PINGS = 1000
_MESSAGE = 1048576
_BW_ITERATIONS = 5000
_SILENT = "did not answer on the management network within 30 s"
BANDWIDTH = ("bw_gbps", "bw_peak_gbps")


def sweep(views: dict[str, Hw], test: str, dead: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Return one result of the sweep per living node, from the nodes' effective descriptions.

    `test`: latency (with loss) or bandwidth.
    """
    ports = {name: _ports(view) for name, view in views.items()}
    rows: list[dict[str, Any]] = []
    for index, pairs in enumerate(schedule(sorted(views))):
        for server, client in pairs:
            if gone := next((name for name in (server, client) if name in dead), None):
                rows += [_unmet(index, rail, (server, client), gone, ports) for rail in range(len(ports[server]))]
                continue
            for rail in range(min(len(ports[server]), len(ports[client]))):
                rows.append(_row(test, index, rail, (server, client), views, ports))
    return [
        {
            "node": name,
            "ports": ports[name],
            "expected": sum(name in (r["client"], r["server"]) for r in rows),
            "absent": dict.fromkeys(dead, _SILENT),
            "pairs": [r for r in rows if name in (r["client"], r["server"])],
            "seconds": 12.0,
        }
        for name in ports
        if name not in dead
    ]


def _ports(view: Hw) -> list[dict[str, Any]]:
    """The node's rails with what keeps them from being used, as ib_latency reads them off ibstat."""
    found = {p.hca: p for p in parse_ibstat(bundle.ibstat(view))}
    layer = view["fabric_layer"]
    rails = []
    for h in view["hcas"]:
        port = found.get(h["name"])
        trouble = port.trouble(layer) if port else "not listed by ibstat"
        leaf = h["leaf"] if trouble is None and layer == "infiniband" else None
        rails.append({"rail": h["rail"], "hca": h["name"], "guid": h["guid"], "leaf": leaf, "trouble": trouble})
    return rails


def _unmet(index: int, rail: int, pair: Pair, gone: str, ports: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """A pair that was not measured, as the living end reports it: of the dead one it knows nothing."""
    row = _empty(index, rail, pair)
    for side, name in zip(("server", "client"), pair, strict=True):
        port = ports[name][rail]
        known = {"hca": port["hca"], "leaf": port["leaf"]} if name != gone else {"hca": None, "leaf": None}
        row |= {f"{side}_hca": known["hca"], f"{side}_leaf": known["leaf"], f"{side}_rail": rail}
    return {**row, "error": f"{gone} {_SILENT}"}


def _empty(index: int, rail: int, pair: Pair) -> dict[str, Any]:
    server, client = pair
    row: dict[str, Any] = {"kind": "pair", "round": index, "rail": rail, "server": server, "client": client}
    row |= {"error": None, "fault": None, "path_failed": False, "retransmissions": None, "mad_rtt_ms": None}
    row |= {"iterations": _ITERATIONS, "command": None}
    return row | dict.fromkeys(
        ("t_min_us", "t_typical_us", "p99_us", "p999_us", "t_max_us", "sent", "received", "loss", *BANDWIDTH)
    )


def _row(
    test: str, index: int, rail: int, pair: Pair, views: dict[str, Hw], ports: dict[str, list[dict[str, Any]]]
) -> dict[str, Any]:
    server, client = pair
    ends = {"server": (server, ports[server][rail]), "client": (client, ports[client][rail])}
    row = _empty(index, rail, pair)
    for side, (name, port) in ends.items():
        row |= {f"{side}_hca": port["hca"], f"{side}_leaf": port["leaf"], f"{side}_rail": rail}
        if port["trouble"] is not None and row["error"] is None:
            row["error"] = f"{port['hca']} of {name}: {port['trouble']}"
            row["fault"] = {"node": name, "hca": port["hca"], "why": port["trouble"]}
    if row["error"] is None:
        (_bandwidth if test == "bandwidth" else _latency)(row, views[client], views[server], rail)
    return row


def _bandwidth(row: dict[str, Any], client: Hw, server: Hw, rail: int) -> None:
    mine, theirs = client["hcas"][rail], server["hcas"][rail]
    text = bundle.perftest_text("ib_write_bw", client, mine, server, theirs, _MESSAGE, _BW_ITERATIONS)
    read = parse_bandwidth(text, True)
    row |= {"bw_gbps": read.average_gbps, "bw_peak_gbps": read.peak_gbps, "error": read.error}


def _latency(row: dict[str, Any], client: Hw, server: Hw, rail: int) -> None:
    mine, theirs = client["hcas"][rail], server["hcas"][rail]
    text = bundle.perftest_text("ib_write_lat", client, mine, server, theirs, 2, _ITERATIONS)
    read = parse_latency(text, _ITERATIONS)
    measured = dataclasses.asdict(read)
    row |= {key: measured[key] for key in ("t_min_us", "t_typical_us", "p99_us", "p999_us", "t_max_us")}
    row["error"] = read.error
    if mine["link_layer"] == "ethernet":
        row["retransmissions"] = round(1e4 * (float(mine["port"]["loss"]) + float(theirs["port"]["loss"])))
        return
    ping = parse_statistics(bundle.ibping_text(mine, theirs, f"{server['name']}.(none)", _PINGS))
    row |= {"sent": ping.sent, "received": ping.received, "loss": ping.loss_percent, "mad_rtt_ms": 0.05}
    row["error"] = row["error"] or ping.error

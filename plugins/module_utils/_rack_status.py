# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What Consul's answers say of each node of a rack. Pure functions over decoded JSON.

Who takes traffic *now* is in the catalog (docs/consul.md, "A unit"); why a node is out, and what its gates measured
when it joined, is in the record that the last run left under the key `gpu_rack/nodes/<host>`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._membership import KV_PREFIX, STAGES, passing

RECORDS = f"{KV_PREFIX}/nodes/"
_SERF = "serfHealth"
_NODE_MAINTENANCE = "_node_maintenance"
_MAINTENANCE = "_service_maintenance:"
_LONGEST = 1000
# The stages of a bring-up in their order: a gate behind the one that failed was not reached.
_ORDER = ("firmware", "base", "hardware", "serving", "join")
# The fact of each gate that stands for it on a narrow line.
_HEAD = {
    "gpu_driver": "driver",
    "nvlink_topology": "matrix",
    "inference_units": "units",
    "ib_port": "rate",
    "ib_latency": "latency",
    "clock_sync": "offset",
    "cpu_idle": "exit_latency",
    "token_probe": "token",
}
# How a unit says that it is kept out on purpose: the maintenance and check texts of iu_membership and iu_probe.
_KEPT_OUT = re.compile(r"(?:^|; )(?:refused: )?(quarantined in |held by )")


def line(text: object) -> str:
    """Return a text as one line without control characters, cut at a length that a table can hold."""
    flat = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"


def rack_view(
    nodes: Sequence[str],
    entries: Sequence[Mapping[str, Any]],
    checks: Sequence[Mapping[str, Any]],
    records: Mapping[str, bytes | None],
    consul_names: Mapping[str, str],
) -> dict[str, Any]:
    """Return `nodes`, `units_passing` and `units_total` of the expected nodes, in the order they were named.

    `entries` is the answer of /v1/health/service, `checks` of /v1/health/state/any, `records` host → value of its key.
    `consul_names` gives the name in Consul of a host that has another one there.
    """
    shown = []
    for name in nodes:
        known = consul_names.get(name) or name
        own = [e for e in entries if (e.get("Node") or {}).get("Node") == known]
        serf = next((c for c in checks if c.get("Node") == known and c.get("CheckID") == _SERF), None)
        shown.append(node_view(name, own, serf, records.get(name)))
    units = [u for node in shown for u in node["units"]]
    return {
        "nodes": shown,
        "units_passing": sum(1 for u in units if u["state"] == "passing"),
        "units_total": len(units),
    }


def node_view(
    name: str, entries: Sequence[Mapping[str, Any]], serf: Mapping[str, Any] | None, raw: bytes | None
) -> dict[str, Any]:
    """Return one node: its state with the reason, serf, units and gates."""
    record, problem = read_record(name, raw)
    units = [unit_view(e) for e in entries]
    there = {u["id"] for u in units}
    promised = record.get("units")
    units += [
        {
            "id": str(u),
            "address": "",
            "port": None,
            "state": "absent",
            "note": "joined once, not in Consul's catalog now",
        }
        for u in (promised if isinstance(promised, list) else ())
        if u not in there
    ]
    units.sort(key=lambda u: str(u["id"]))
    serf_state = "absent" if serf is None else str(serf.get("Status") or "unknown")
    state, reason = judge(units, serf_state, line((serf or {}).get("Output") or ""), record, problem)
    return {
        "name": name,
        "state": state,
        "serf": serf_state,
        "units": units,
        "gates": {stage: gate_text(stage, record) for stage in STAGES},
        "reason": reason,
    }


def read_record(name: str, raw: bytes | None) -> tuple[dict[str, Any], str]:
    """Return a node's record and what is wrong with it. Both are empty when there is none."""
    if raw is None:
        return {}, ""
    try:
        record = json.loads(raw)
    except ValueError:
        record = None
    if not isinstance(record, dict) or record.get("verdict") not in ("pass", "fail"):
        return {}, f"the record {RECORDS}{name} cannot be read"
    return record, ""


def unit_view(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return one unit of the answer of /v1/health/service: where it is reached, its state, and why."""
    service = entry.get("Service") or {}
    checks = entry.get("Checks") or []
    unit = str(service.get("ID") or "")
    good, why = passing([entry], unit)
    kept = next((c for c in checks if str(c.get("CheckID", "")).startswith((_MAINTENANCE, _NODE_MAINTENANCE))), None)
    down = next((c for c in checks if c.get("CheckID") == _SERF and c.get("Status") != "passing"), None)
    own = [c for c in checks if c.get("ServiceID") == unit and c is not kept]
    if good:
        state, note = "passing", "; ".join(str(c.get("Output") or "").strip() for c in own) or "passing"
    elif down is not None:
        # The unit's own check still says what it said before its agent died.
        state, note = "critical", "its node does not answer"
    elif kept is not None:
        state, note = "maintenance", str(kept.get("Notes") or "no reason was given")
    else:
        bad = [c for c in own if c.get("Status") != "passing"]
        state = "warning" if bad and all(c.get("Status") == "warning" for c in bad) else "critical"
        note = "; ".join(str(c.get("Output") or "").strip() or "no token has been generated yet" for c in bad) or why
    return {
        "id": unit,
        "address": str(service.get("Address") or (entry.get("Node") or {}).get("Address") or ""),
        "port": service.get("Port"),
        "state": state,
        "note": line(note),
    }


def judge(
    units: Sequence[Mapping[str, Any]], serf: str, serf_output: str, record: Mapping[str, Any], problem: str
) -> tuple[str, str]:
    """Return the node's state and the reason for it; a node is `serving` only when Consul shows every unit passing."""
    good = [u for u in units if u["state"] == "passing"]
    bad = [u for u in units if u["state"] != "passing"]
    quarantine = record.get("quarantine") if record.get("verdict") == "fail" else None
    recorded = quarantine_text(quarantine) if record.get("verdict") == "fail" else ""
    if serf not in ("passing", "absent"):
        after = f"; before that, {recorded}" if recorded else ""
        return "failed", f"the node does not answer (serfHealth {serf}: {serf_output or 'no output'}){after}"
    if recorded:
        # The run could not reach the node to turn its units critical: a person must know that it still takes traffic.
        still = f"; STILL TAKES TRAFFIC: {', '.join(u['id'] for u in good)}" if good else ""
        return "quarantined", f"{recorded}{still}"
    if not units or serf == "absent":
        seen = "Consul does not know the node" if serf == "absent" else "no inference unit is registered"
        return "absent", f"{seen}; {problem}" if problem else seen
    kept_out = [u for u in bad if _KEPT_OUT.search(str(u["note"]))]
    if kept_out:
        return "quarantined", _notes(kept_out)
    drained = [u for u in bad if u["state"] == "maintenance"]
    if len(drained) == len(units):
        return "drained", _notes(drained)
    if not good:
        return "failed", _notes(bad)
    if bad:
        return "degraded", _notes(bad)
    if problem:
        return "degraded", problem
    return "serving", ""


def quarantine_text(quarantine: Any) -> str:
    """Return a quarantine record as one line: stage, the failed check with what it measured, and the reason."""
    if not isinstance(quarantine, Mapping):
        return "quarantined, no reason was recorded"
    reason = str(quarantine.get("reason") or "no reason was recorded")
    check = str(quarantine.get("check") or "")
    measured = f"{_measured(quarantine)}: " if check and check not in reason else ""
    return line(f"{quarantine.get('stage') or 'unknown stage'}: {measured}{reason}")


def _measured(quarantine: Mapping[str, Any]) -> str:
    unit = f" {quarantine['unit']}" if quarantine.get("unit") else ""
    value = "nothing read" if quarantine.get("value") is None else f"{quarantine['value']}{unit}"
    limit = "" if quarantine.get("limit") is None else f" (limit {quarantine['limit']}{unit})"
    return f"{' '.join(str(quarantine[k]) for k in ('check', 'subject') if quarantine.get(k))} {value}{limit}"


def _notes(units: Sequence[Mapping[str, Any]]) -> str:
    """Return the notes of units, the same note of several units once."""
    by_note: dict[str, list[str]] = {}
    for unit in units:
        by_note.setdefault(f"{unit['state']}: {unit['note']}", []).append(str(unit["id"]))
    return "; ".join(f"{', '.join(names)} {note}" for note, names in by_note.items())


def gate_text(stage: str, record: Mapping[str, Any]) -> str:
    """Return what the record holds of a gate: verdict and measured values, or the failed check."""
    gate = (record.get("gates") or {}).get(stage)
    if isinstance(gate, Mapping):
        measured = gate.get("measured")
        values = "; ".join(measured_heads(measured)) if isinstance(measured, Mapping) else ""
        return f"{gate.get('verdict') or 'unknown'}: {values}" if values else str(gate.get("verdict") or "unknown")
    quarantine = record.get("quarantine")
    if not isinstance(quarantine, Mapping):
        return "no record"
    failed = str(quarantine.get("stage") or "")
    if failed == stage:
        if not quarantine.get("check"):
            return "unknown: the gate itself failed"
        return line(f"{quarantine.get('verdict') or 'fail'}: {_measured(quarantine)}")
    if failed in _ORDER and _ORDER.index(failed) < _ORDER.index(stage):
        return f"not reached: {failed} failed"
    return "no record"


def measured_heads(measured: Mapping[str, Any]) -> list[str]:
    """Return one short text a gate: its name and its leading fact."""
    gates: dict[str, dict[str, str]] = {}
    for check, text in measured.items():
        gate, _dot, fact = str(check).partition(".")
        gates.setdefault(gate, {})[fact] = str(text)
    heads = []
    for gate, facts in gates.items():
        text = facts.get(_HEAD.get(gate, "")) or next(iter(facts.values()))
        heads.append(f"{gate} {line(text.partition(', ')[0])}")
    return heads


def lines(view: Mapping[str, Any]) -> list[str]:
    """Return the rack in a line a node, for those who run the playbook without gpurack."""
    shown = []
    for node in view["nodes"]:
        good = sum(1 for u in node["units"] if u["state"] == "passing")
        why = f": {node['reason']}" if node["reason"] else ""
        shown.append(f"{node['name']} {node['state']}, {good} of {len(node['units'])} units pass{why}")
    return shown

"""The report as one HTML file that needs nothing else: no network, no fonts, no scripts of others.

What a node wrote is hostile text. The template escapes everything; data for the script lies in a block that holds no
`<`; a content security policy allows this file's one script and one style by their digest, and no connection at all.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup

from gpurack.report.model import ORDER, STATES, Report, grouped, number
from gpurack.report.read import Json

_DASH = "\N{EN DASH}"
GLYPHS = {"pass": "✓", "warn": "▲", "unknown": "?", "fail": "✕", "unreachable": "⊘", "no evidence": "○"}
# An output longer than this is shown with its head and its tail; the whole lies in the archive beside the report.
OUTPUT_LIMIT = 192 * 1024
_TAIL = 32 * 1024
# All outputs of a report together, compressed. Those of nodes that are out come first.
TOTAL_LIMIT = 24 << 20
_SHOWN = {"fail": 60, "unknown": 60, "warn": 30}
_TOPOLOGIES = 6
_NCCL = 24


def render(report: Report, *, output_limit: int = OUTPUT_LIMIT, total_limit: int = TOTAL_LIMIT) -> str:
    """Return the HTML file. Outputs over the limits are cut or left out, and the file says so in their place."""
    document = report.document
    style, script = _asset("report.css"), _asset("report.js")
    return _template().render(
        report=document,
        glyphs=GLYPHS,
        states=[state for state in ORDER if document["counts"][state] or state in ("pass", "fail")],
        all_states=STATES,
        out=[node for node in document["nodes"] if node["state"] in ORDER and node["state"] not in ("pass", "warn")],
        dense=len(document["nodes"]) > 24,
        gates=_gates(document["nodes"]),
        findings=_findings(document["findings"]),
        topologies=document["topology"][:_TOPOLOGIES],
        more_topologies=document["topology"][_TOPOLOGIES:],
        nccl=_bars(document["nccl"]),
        nccl_worst=_NCCL,
        times=_shares(document["times"]),
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        data=Markup(_embedded(_payload(report, output_limit, total_limit))),
    )


def display(value: Any) -> str:
    """Return a value as people read it."""
    if value is None:
        return _DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    return str(value)


def ranges(names: Sequence[str]) -> str:
    """Return names in short: node1 to node3, node7, with a dash."""
    parts: list[tuple[str, int, int]] = []
    for name in names:
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        # node007 and node7 are two names.
        place = int(digits) if digits and str(int(digits)) == digits else -1
        if parts and place > 0 and parts[-1][0] == stem and parts[-1][2] == place - 1:
            parts[-1] = (stem, parts[-1][1], place)
        else:
            parts.append((stem, place, place) if place >= 0 else (name, -1, -1))
    return ", ".join(
        stem if first < 0 else f"{stem}{first}" if first == last else f"{stem}{first}{_DASH}{stem}{last}"
        for stem, first, last in parts
    )


def _unit(unit: str) -> str:
    return "µs" if unit == "us" else unit


def _seconds(value: float | None) -> str:
    if value is None:
        return _DASH
    return f"{value:.2f} s" if value < 10 else f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"


@functools.cache
def _template() -> Template:
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"number": display, "unit": _unit, "seconds": _seconds, "ranges": ranges}
    return environment.from_string(_asset("report.html.j2"))


def _asset(name: str) -> str:
    return (files("gpurack.report") / name).read_text("utf-8")


def _digest(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()


def _embedded(value: Any) -> str:
    """Return JSON that can stand in a script element whatever it holds."""
    encoded = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return encoded.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _packed(value: str) -> str:
    # No time of making in it: the same run gives the same file.
    return base64.b64encode(gzip.compress(value.encode("utf-8", "replace"), 6, mtime=0)).decode()


def _payload(report: Report, output_limit: int, total_limit: int) -> Json:
    document = report.document
    nodes = {
        node["name"]: _packed(json.dumps({key: node[key] for key in ("stages", "checks", "evidence", "units")}))
        for node in document["nodes"]
    }
    return {
        "run": document["run"],
        "glyphs": GLYPHS,
        "order": [[node["name"], node["state"], node["reason"]] for node in document["nodes"]],
        "nodes": nodes,
        "outputs": _outputs(report, output_limit, total_limit),
        "fabric": _packed(json.dumps(document["fabric"])) if document["fabric"]["pairs"] else None,
    }


def _outputs(report: Report, output_limit: int, total_limit: int) -> Json:
    """Return digest → [compressed text, bytes left out], null where the report would have become too large."""
    found: Json = {}
    left = total_limit
    for node in sorted(report.document["nodes"], key=lambda n: ORDER[n["state"]]):
        for reading in (reading for gate in node["evidence"] for reading in gate["readings"]):
            for kept in (reading["stdout"], reading["stderr"]):
                if not kept or kept["sha256"] in found:
                    continue
                output = report.outputs[kept["sha256"]]
                cut = max(0, len(output) - output_limit)
                if cut:
                    tail = min(_TAIL, output_limit // 2)
                    note = f"\n\n[… {cut} characters are left out here; SHA-256 of the whole: {kept['sha256']} …]\n\n"
                    output = output[: output_limit - tail] + note + output[len(output) - tail :]
                packed = _packed(output)
                left -= len(packed)
                found[kept["sha256"]] = [packed, cut] if left >= 0 else None
    return found


def _gates(nodes: Sequence[Json]) -> list[tuple[str, str]]:
    """Return stage and gate of every gate in this run, in the order in which they were decided."""
    found: dict[tuple[str, str], None] = {}
    for node in nodes:
        for stage, head in node["stages"].items():
            found |= dict.fromkeys((stage, gate) for gate in head["gates"])
    return list(found)


def _findings(findings: Sequence[Json]) -> list[Json]:
    groups = []
    for first, items in grouped(findings):
        shown = items[: _SHOWN[first["verdict"]]]
        nodes = list(dict.fromkeys(item["node"] for item in items))
        # What is the same in all of a group is said once.
        same = [
            name
            for name, keys in (("limit", ("limit", "limit_source")), ("reason", ("reason",)), ("remedy", ("remedy",)))
            if all(item[key] == first[key] for item in items for key in keys)
        ]
        groups.append({
            "first": first, "nodes": nodes, "count": len(items), "items": shown, "same": same,
            "more": len(items) - len(shown),
        })  # fmt: skip
    return groups


def _bars(rows: Sequence[Json]) -> list[Json]:
    """Return a group of bars for each benchmark, the worst first, with lengths in percent of the longest."""
    groups: dict[tuple[str, str, str], list[Json]] = {}
    for row in rows:
        groups.setdefault((row["check"], row["subject"], row["unit"]), []).append(row)
    shown = []
    for (check, subject, unit), items in groups.items():
        top = max(max(item["value"], item["floor"]) for item in items) or 1.0
        bars = [
            {**item, "width": round(100 * item["value"] / top, 2), "mark": round(100 * item["floor"] / top, 2)}
            for item in sorted(items, key=lambda item: item["value"] / (item["floor"] or 1.0))
        ]
        floors = sorted({(item["floor"], item["limit_source"]) for item in items})
        shown.append({"check": check, "subject": subject, "unit": unit, "bars": bars, "floors": floors})
    return shown


def _shares(times: Mapping[str, Any]) -> Json:
    longest = max((step["seconds"] for step in times["steps"]), default=0.0) or 1.0
    slowest = max((gate["max"] for gate in times["gates"]), default=0.0) or 1.0
    return {
        "total": number(times["total"]),
        "steps": [{**step, "width": round(100 * step["seconds"] / longest, 2)} for step in times["steps"]],
        "gates": [
            {**gate, "width": round(100 * gate["max"] / slowest, 2), "mark": round(100 * gate["median"] / slowest, 2)}
            for gate in times["gates"]
        ],
    }

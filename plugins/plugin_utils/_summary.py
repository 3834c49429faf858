# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The summary of a run: what each node came to, and the next command to type. Pure functions over plain data.

The summary is a dict: `playbook`, `seconds`, `refused` (lines of a refused inventory), `steps` (name → seconds) and
`nodes`: host → `{"changed": int, "gates": {stage: {"verdict", "headline": [...]}}, "units": {iu: state}, "out"}`.
`out` is None or says why the node is out: `kind` (quarantined, failed, unreachable), `stage`, `check`, `subject`,
`value`, `limit`, `limit_source`, `reason`, `next_command`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_OUT_KEYS = ("check", "subject", "value", "unit", "limit", "limit_source", "reason", "remedy")


def headline(checks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one short text a gate: its name, and the measured value nearest to the limit or the worst verdict.

    Numeric checks of one gate are represented by the largest measured value; others by their number.
    """
    by_gate: dict[str, list[Mapping[str, Any]]] = {}
    for check in checks:
        by_gate.setdefault(str(check["check"]).partition(".")[0], []).append(check)
    return [f"{gate} {_measured(items)}" for gate, items in by_gate.items()]


def _measured(items: Sequence[Mapping[str, Any]]) -> str:
    bad = [c for c in items if c["verdict"] in ("fail", "unknown")]
    if bad:
        return f"{bad[0]['verdict']}: {_value(bad[0])}"
    numeric = [
        c
        for c in items
        if isinstance(c.get("value"), int | float) and not isinstance(c["value"], bool) and c.get("unit")
    ]
    if numeric:
        top = max(numeric, key=lambda c: float(c["value"]))
        return f"{_value(top)} (limit {top['limit']})" if top.get("limit") is not None else _value(top)
    if len(items) == 1 and isinstance(items[0].get("value"), str):
        return str(items[0]["value"])
    return f"{len(items)} ok"


def _value(check: Mapping[str, Any]) -> str:
    if check.get("value") is None:
        return "nothing read"
    unit = f" {check['unit']}" if check.get("unit") else ""
    value = f"{check['value']:.4g}" if isinstance(check["value"], float) else str(check["value"])
    return f"{value}{unit}"


def out(kind: str, stage: str, task: str, result: Mapping[str, Any], next_command: str) -> dict[str, Any]:
    """Return why a node is out, from the result of the task that failed."""
    given = result.get("quarantine")
    if isinstance(given, Mapping):
        return {"kind": "quarantined", "next_command": next_command, "stage": stage, **given}
    worst: Mapping[str, Any] = next((c for c in result.get("checks") or () if c.get("verdict") == result.get("verdict")), {})
    reason = str(worst.get("reason") or result.get("msg") or result.get("reason") or "no reason was given")
    found = {key: worst.get(key) for key in _OUT_KEYS if worst.get(key) not in (None, "")}
    return {
        "kind": kind,
        "stage": stage,
        "check": worst.get("check") or task,
        **found,
        "reason": reason,
        "next_command": next_command,
    }


def render(summary: Mapping[str, Any]) -> list[str]:
    """Return the lines of the summary as people read it at the end of a run."""
    if summary.get("refused"):
        return [
            "",
            f"INVENTORY REFUSED, nothing was touched. Wrong values: {len(summary['refused'])}",
            *(f"  {line}" for line in summary["refused"]),
        ]
    nodes: Mapping[str, Any] = summary.get("nodes") or {}
    lines = ["", f"RACK SUMMARY  {summary.get('playbook', '')}  {summary.get('seconds', 0):.0f} s"]
    width = max((len(n) for n in nodes), default=4)
    for host, node in sorted(nodes.items()):
        why = node.get("out")
        state = str(why["kind"]).upper() if why else ("SERVING" if node.get("units") else "OK")
        units = "  ".join(f"{iu}={state_}" for iu, state_ in sorted((node.get("units") or {}).items()))
        lines.append(f"  {host:<{width}}  {state:<11}  changed={node.get('changed', 0)}  {units}".rstrip())
        for stage, gate in (node.get("gates") or {}).items():
            lines.append(f"  {'':<{width}}    {stage} gate {gate['verdict']}: {'; '.join(gate['headline'])}")
        if why:
            lines += [f"  {'':<{width}}    {line}" for line in reason_lines(why)]
    steps: Mapping[str, float] = summary.get("steps") or {}
    if steps:
        lines.append("  time: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in steps.items()))
    bad = sorted(host for host, node in nodes.items() if node.get("out"))
    if bad:
        lines.append(f"  {len(bad)} of {len(nodes)} hosts did not make it: {', '.join(bad)}")
    return lines


def reason_lines(why: Mapping[str, Any]) -> list[str]:
    """Return the lines that say why a node is out: check, value, limit, reason, remedy and the next command."""
    subject = f" {why['subject']}" if why.get("subject") else ""
    unit = f" {why['unit']}" if why.get("unit") else ""
    value = f"{why['value']}{unit}" if why.get("value") is not None else "nothing read"
    limit = f"{why['limit']}{unit}" if why.get("limit") is not None else "none"
    source = f" ({why['limit_source']})" if why.get("limit_source") else ""
    lines = [
        f"step   {why.get('stage', '')}",
        f"check  {why.get('check', '')}{subject}",
        f"value  {value}",
        f"limit  {limit}{source}",
    ]
    lines += [
        f"reason {line}" if i == 0 else f"       {line}"
        for i, line in enumerate(str(why.get("reason", "")).splitlines())
    ]
    if why.get("remedy"):
        lines.append(f"remedy {why['remedy']}")
    lines.append(f"next   {why.get('next_command', '')}")
    return lines

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The summary of a run: what each node came to, and the next command to type. Pure functions over plain data.

Standard library only and no Ansible: the callback rack_summary and the command gpurack both render with this file.

The summary is a dict: `playbook`, `seconds`, `check` (whether it was a run in check mode), `refused` (lines of a
refused inventory), `steps` (name → seconds), `not_reached` (names of steps, when ansible stopped early) and `nodes`:
host → `changed` (a number), `gates` (stage → `verdict` and `headline`, a list), `units` (id → state) and `out`, which
is None or says why the node is out: `kind` (quarantined, failed, unreachable), `stage`, `check`, `subject`, `value`,
`unit`, `limit`, `limit_source`, `reason`, `remedy`, `next_command`.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH = 160
_NO_BREAK = "\u00a0"
_OUT_KEYS = ("check", "subject", "verdict", "value", "unit", "limit", "limit_source", "reason", "remedy")
_RANK = {"fail": 0, "unknown": 1}
_WORTH_SAYING = {**_RANK, "warn": 2}
_HIDDEN = "its output is withheld because it may hold a secret"


def headline(checks: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return one short text a gate: its worst check that does not pass, else the value nearest to its limit."""
    by_gate: dict[str, list[Mapping[str, Any]]] = {}
    for check in checks:
        by_gate.setdefault(str(check["check"]).partition(".")[0], []).append(check)
    return [_of_gate(gate, items) for gate, items in by_gate.items()]


def _of_gate(gate: str, items: Sequence[Mapping[str, Any]]) -> str:
    bad = sorted((c for c in items if c["verdict"] in _WORTH_SAYING), key=lambda c: _WORTH_SAYING[c["verdict"]])
    if bad:
        more = f" (+{len(bad) - 1} more)" if len(bad) > 1 else ""
        return f"{bad[0]['check']} {bad[0]['subject']} {bad[0]['verdict']}: {_measured(bad[0])}{more}"
    numbers = [c for c in items if _number(c.get("value")) and _number(c.get("limit"))]
    if numbers:
        top = max(numbers, key=_nearness)
        return f"{top['check']} {_measured(top)}"
    if len(items) == 1 and isinstance(items[0].get("value"), str):
        return f"{gate} {items[0]['value']}"
    return f"{gate} {len(items)} ok"


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _nearness(check: Mapping[str, Any]) -> tuple[bool, float]:
    """Return a key that grows as the value nears its limit.

    A value that equals its limit is a count or a rate that can only be met (8 of 8 GPUs): it says less than a
    measured value with room left, so it comes last.
    """
    value, limit = abs(float(check["value"])), abs(float(check["limit"]))
    return value != limit, min(value, limit) / max(value, limit) if value or limit else 1.0


def _measured(check: Mapping[str, Any]) -> str:
    limit = f" (limit {_short(check['limit'])})" if check.get("limit") is not None else ""
    return f"{_value(check)}{limit}"


def _value(check: Mapping[str, Any]) -> str:
    if check.get("value") is None:
        return "nothing read"
    unit = f" {check['unit']}" if check.get("unit") else ""
    return f"{_short(check['value'])}{unit}"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def out(
    kind: str,
    stage: str,
    task: str,
    result: Mapping[str, Any],
    next_command: str,
    before: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return why a node is out, from the result of the task that failed.

    `before` is what was known already: the quarantine's record is one line, so where it tells what the failed task told
    in several, those are kept.
    """
    given = result.get("quarantine")
    if isinstance(given, Mapping):
        told = str((before or {}).get("reason") or "")
        kept = bool(told) and _flat(told) in str(given.get("reason"))
        return {
            "stage": stage,
            **given,
            "kind": "quarantined",
            "check": given.get("check") or given.get("task") or task,
            "reason": told if kept else given.get("reason"),
            "next_command": next_command,
        }
    item = _failed_item(result)
    blocking = sorted(
        (c for c in item.get("checks") or () if isinstance(c, Mapping) and c.get("verdict") in _RANK),
        key=lambda c: _RANK[c["verdict"]],
    )
    worst: Mapping[str, Any] = blocking[0] if blocking else {}
    hidden = _HIDDEN if "censored" in result else "no reason was given"
    found = {key: worst.get(key) for key in _OUT_KEYS if worst.get(key) not in (None, "")}
    return {
        "kind": kind,
        "stage": stage,
        "check": task,
        "reason": str(item.get("msg") or result.get("msg") or result.get("reason") or hidden),
        **found,
        "next_command": next_command,
    }


def _failed_item(result: Mapping[str, Any]) -> Mapping[str, Any]:
    items = result.get("results")
    for item in items if isinstance(items, Sequence) and not isinstance(items, str) else ():
        if isinstance(item, Mapping) and item.get("failed"):
            return item
    return result


def _flat(text: str) -> str:
    return " ".join(text.split())


def render(summary: Mapping[str, Any]) -> list[str]:
    """Return the lines of the summary as people read it at the end of a run."""
    if summary.get("refused"):
        return [
            "",
            f"INVENTORY REFUSED, nothing was touched. Wrong values: {len(summary['refused'])}",
            *(line for text in summary["refused"] for line in _wrap("  ", "    ", str(text))),
        ]
    nodes: Mapping[str, Any] = summary.get("nodes") or {}
    mode = "  (check mode: nothing was changed)" if summary.get("check") else ""
    lines = ["", f"RACK SUMMARY  {summary.get('playbook', '')}  {summary.get('seconds', 0):.0f} s{mode}"]
    width = max((len(n) for n in nodes), default=4)
    margin = " " * (width + 6)
    left: Sequence[str] = summary.get("not_reached") or ()
    for host, node in sorted(nodes.items()):
        why = node.get("out")
        units = "  ".join(f"{iu}={state}" for iu, state in sorted((node.get("units") or {}).items()))
        lines += _wrap(
            f"  {host:<{width}}  ",
            margin,
            f"{_state(node, bool(left)):<11}  changed={node.get('changed', 0)}  {units}".rstrip(),
        )
        for stage, gate in (node.get("gates") or {}).items():
            text = f"{stage} gate {gate['verdict']}: {_together(gate['headline'])}"
            lines += _wrap(margin, f"{margin}  ", text)
        if why:
            lines += [f"{margin}{line}" for line in reason_lines(why, WIDTH - len(margin))]
    steps: Mapping[str, float] = summary.get("steps") or {}
    if steps:
        lines += _wrap("  time: ", "        ", _together(f"{name} {seconds:.0f} s" for name, seconds in steps.items()))
    if left:
        lines += _wrap("  stopped, not reached: ", "        ", _together(left))
    bad = sorted(host for host, node in nodes.items() if node.get("out"))
    if bad:
        lines += _wrap("  ", "    ", f"{len(bad)} of {len(nodes)} hosts did not make it: {', '.join(bad)}")
    return lines


def _state(node: Mapping[str, Any], stopped: bool) -> str:
    if node.get("out"):
        return str(node["out"]["kind"]).upper()
    units = node.get("units")
    if not units:
        return "NOT DONE" if stopped else "OK"
    return "SERVING" if all(state == "passing" for state in units.values()) else "NOT SERVING"


def reason_lines(why: Mapping[str, Any], width: int = WIDTH) -> list[str]:
    """Return the lines that say why a node is out: step, check, value, limit, reason, remedy and the next command."""
    subject = f" {why['subject']}" if why.get("subject") else ""
    unit = f" {why['unit']}" if why.get("unit") else ""
    if why.get("value") is not None:
        value = _value(why)
    else:
        # Without subject or limit it was no check but a task, which measures nothing.
        task = "no connection" if why.get("kind") == "unreachable" else "the task itself failed"
        value = "nothing read" if subject or why.get("limit") is not None else f"none, {task}"
    limit = f"{_short(why['limit'])}{unit}" if why.get("limit") is not None else "none"
    source = f" ({why['limit_source']})" if why.get("limit_source") else ""
    fields = [
        ("step", str(why.get("stage") or "")),
        ("check", f"{why.get('check') or ''}{subject}"),
        ("value", value),
        ("limit", f"{limit}{source}"),
        ("reason", str(why.get("reason") or "no reason was given")),
    ]
    if why.get("remedy"):
        fields.append(("remedy", str(why["remedy"])))
    lines = []
    for name, text in fields:
        for number, part in enumerate(p for p in text.splitlines() if p.strip()):
            lines += _wrap(f"{name:<6} " if number == 0 else " " * 7, " " * 7, part.rstrip(), width)
    # A command stays one command when it is copied.
    command = _wrap("next   ", " " * 9, str(why.get("next_command") or ""), width - 2)
    return [*lines, *(f"{line} \\" for line in command[:-1]), command[-1]]


def _together(items: Iterable[str]) -> str:
    """Join items so that lines are broken between them and not inside."""
    return "; ".join(item.replace(" ", _NO_BREAK) for item in items)


def _wrap(first: str, rest: str, text: str, width: int = WIDTH) -> list[str]:
    lines = textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
        drop_whitespace=True,
    )
    return [line.replace(_NO_BREAK, " ") for line in lines] or [first.rstrip()]

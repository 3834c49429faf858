# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Why a host failed, in one record that a person can act on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_LONGEST = 1000
_RANK = {"fail": 0, "unknown": 1}
_FIELDS = ("check", "subject", "verdict", "value", "limit", "unit", "limit_source", "reason", "remedy")


def worst_check(result: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first of the worst blocking checks of a gate's result, None when the task was no gate."""
    checks = result.get("checks")
    if not isinstance(checks, Sequence) or isinstance(checks, str):
        return None
    blocking = [c for c in checks if isinstance(c, Mapping) and c.get("verdict") in _RANK]
    if not blocking:
        return None
    worst = min(blocking, key=lambda c: _RANK[c["verdict"]])
    return {name: worst.get(name) for name in _FIELDS}


def failed_item(result: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the first failed item of a loop's result, the result itself when there was no loop."""
    items = result.get("results")
    if isinstance(items, Sequence) and not isinstance(items, str):
        for item in items:
            if isinstance(item, Mapping) and item.get("failed"):
                return item
    return result


def censored(task: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Tell whether the task's output may hold a secret: the task or its result asks for no log."""
    return bool(task.get("no_log")) or bool(result.get("_ansible_no_log")) or "censored" in result


def clean(text: object) -> str:
    """Return a text as one line without control characters, cut at a length that a table can hold."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def record(
    node: str, stage: str, task: Mapping[str, Any], result: Mapping[str, Any], next_command: str
) -> dict[str, Any]:
    """Return the quarantine record: where and why, what was measured against which limit, and what to type next.

    Only a failed task's message, verdict and checks are used, never its arguments, output or invocation; of a task that
    asks for no log, not even those.
    """
    name = clean(task.get("name") or task.get("action") or "an unnamed task")
    check: dict[str, Any] | None = None
    if censored(task, result):
        reason = f"{name}: failed, its output is withheld because it may hold a secret"
    else:
        item = failed_item(result)
        check = worst_check(item)
        said = clean(item.get("msg") or result.get("msg") or "failed without a message")
        reason = clean(check["reason"]) if check else f"{name}: {said}"
    return {
        "node": node,
        "stage": stage,
        "task": name,
        "reason": reason,
        "next_command": next_command,
        "check": check["check"] if check else None,
        "subject": check["subject"] if check else None,
        "verdict": check["verdict"] if check else "fail",
        "value": check["value"] if check else None,
        "limit": check["limit"] if check else None,
        "unit": check["unit"] if check else "",
        "limit_source": check["limit_source"] if check else None,
        "remedy": check["remedy"] if check else None,
    }

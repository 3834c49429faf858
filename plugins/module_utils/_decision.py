# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The decision of a stage from the stored results of its gates. Pure functions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, describe, unknown, worst

_VERDICTS = frozenset({"pass", "warn", "fail", "unknown"})
_FIELDS = frozenset(f.name for f in dataclasses.fields(Check))
_TEXTS = ("check", "subject", "reason", "unit", "limit_source", "remedy")
_RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SKEW_S = 300.0
_RERUN = "Run the gate again and look at its task's output."


@dataclasses.dataclass(frozen=True, slots=True)
class GateResult:
    """One gate's part of the decision."""

    gate: str
    verdict: str
    summary: str
    sha256: str | None
    time: float | None
    checks: tuple[dict[str, Any], ...]


def _refused(gate: str, reason: str, raw: bytes | None) -> GateResult:
    check = unknown(f"{gate}.evidence", "node", reason, _RERUN).as_dict()
    return GateResult(
        gate, "unknown", describe(check), hashlib.sha256(raw).hexdigest() if raw is not None else None, None, (check,)
    )


def run_problem(run: str, directory_run: str) -> str | None:
    """Return why evidence from a directory of `directory_run` does not count for this run, None when it does."""
    if not _RUN_ID.fullmatch(run):
        return f"the run {run[:80]!r} is not named like 20261130T180000Z"
    if run != directory_run:
        return f"the evidence is of run {directory_run[:80]!r} and not of {run}"
    return None


def refuse_all(gates: Sequence[str], reason: str) -> list[GateResult]:
    """Return `unknown` for every gate, for evidence that does not count as a whole."""
    return [_refused(gate, reason, None) for gate in gates]


def read_result(gate: str, raw: bytes | None, now: float = math.inf) -> GateResult:
    """Return a gate's stored result. A missing file, or one that does not prove what it says, is `unknown`.

    `now` is the node's time: a result of the future does not count, but for some skew.
    """
    if raw is None:
        return _refused(gate, "there is no evidence of this gate in this run", None)
    try:
        data: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return _refused(gate, "the evidence is not JSON", raw)
    problem = _problem(gate, data) or _time_problem(data.get("time"), now)
    if problem:
        return _refused(gate, f"the evidence cannot be used: {problem}", raw)
    return GateResult(
        gate,
        data["verdict"],
        str(data.get("summary", "")),
        hashlib.sha256(raw).hexdigest(),
        float(data["time"]),
        tuple(data["checks"]),
    )


def _problem(gate: str, data: Any) -> str | None:
    """Return why a stored result does not count, None when it does."""
    if not isinstance(data, dict):
        return "it is not a dictionary"
    try:
        json.dumps(data, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        return "it holds characters that are no text, or is nested too deep"
    if data.get("gate") != gate:
        return f"it is of gate {data.get('gate')!r}"
    checks = data.get("checks")
    if not isinstance(checks, list) or not checks:
        return "it holds no checks"
    for check in checks:
        if not isinstance(check, dict) or set(check) != _FIELDS:
            return "a check lacks a field or has one too many"
        try:
            Check(**check)
        except (ValueError, TypeError) as exc:
            return str(exc)
        if reason := _check_problem(gate, check):
            return reason
    verdict = data.get("verdict")
    if not isinstance(verdict, str) or verdict not in _VERDICTS or verdict != worst(c["verdict"] for c in checks):
        return f"its verdict {data.get('verdict')!r} is not the worst of its checks"
    readings = data.get("evidence")
    if not isinstance(readings, list):
        return "it holds no readings"
    for reading in readings:
        if not isinstance(reading, dict) or not isinstance(reading.get("stdout"), str):
            return "a reading has no output"
        digest = hashlib.sha256(reading["stdout"].encode("utf-8", "surrogateescape")).hexdigest()
        if reading.get("sha256") != digest:
            return f"the output of {reading.get('command')!r} does not match its digest"
    return None


def _check_problem(gate: str, check: dict[str, Any]) -> str | None:
    """Return why a check of a result does not count: another gate's, or a pass with a value that is no measurement."""
    odd = next((name for name in _TEXTS if not isinstance(check[name], str)), None)
    if odd:
        return f"the {odd} of a check is not text"
    if not check["check"].startswith(f"{gate}."):
        return f"it holds a check {check['check'][:80]!r}, which is not of this gate"
    value = check["value"]
    scalar = isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
    if check["verdict"] in ("pass", "warn") and (not scalar or value == ""):
        return f"{check['check']}: {check['verdict']} with the value {str(value)[:80]!r}, which is no measurement"
    return None


def _time_problem(when: Any, now: float) -> str | None:
    """Return why the time of a result cannot be, None when it can."""
    if isinstance(when, bool) or not isinstance(when, (int, float)):
        return "its time is not a number"
    # Compared before it is made a float: an integer may be too large for one.
    if not 0 < when < 1e12:
        return "its time is not a date"
    if when > now + _SKEW_S:
        return f"it is {float(when) - now:.0f} s from the future; check the clock"
    return None


def decide(stage: str, results: Sequence[GateResult]) -> dict[str, Any]:
    """Return verdict, summary, the worst check, and all checks of a stage."""
    checks = [c for r in results for c in r.checks]
    verdict = worst(r.verdict for r in results)
    top = next((c for c in checks if c["verdict"] == verdict), None) if verdict != "pass" else None
    if top is None:
        summary = f"{stage} gate: {verdict}, {len(checks)} checks of {', '.join(r.gate for r in results) or 'no gate'}"
    else:
        same = sum(1 for c in checks if c["verdict"] == verdict) - 1
        summary = f"{stage} gate: {verdict}. {describe(top)}" + (f" (+{same} more)" if same else "")
    return {
        "stage": stage,
        "verdict": verdict,
        "summary": summary,
        "worst": top,
        "gates": {
            r.gate: {
                "verdict": r.verdict,
                "summary": r.summary,
                "sha256": r.sha256,
                "time": r.time,
                "checks": len(r.checks),
            }
            for r in results
        },
        "checks": checks,
    }


def runs_to_prune(names: Sequence[str], current: str, keep: int) -> list[str]:
    """Return the runs to delete, oldest first, so that `keep` are left. Run ids sort by time; the current run stays."""
    ordered = sorted(set(names) - {current})
    surplus = len(ordered) - max(keep - 1, 0)
    return ordered[: max(surplus, 0)]

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The decision of a stage from the stored results of its gates. Pure functions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, describe, unknown, worst

_VERDICTS = frozenset({"pass", "warn", "fail", "unknown"})
_FIELDS = frozenset(f.name for f in dataclasses.fields(Check))
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


def read_result(gate: str, raw: bytes | None) -> GateResult:
    """Return a gate's stored result. A missing file, or one that does not prove what it says, is `unknown`."""
    if raw is None:
        return _refused(gate, "there is no evidence of this gate in this run", None)
    try:
        data: Any = json.loads(raw)
    except (ValueError, RecursionError):
        return _refused(gate, "the evidence is not JSON", raw)
    problem = _problem(gate, data)
    if problem:
        return _refused(gate, f"the evidence cannot be used: {problem}", raw)
    when = data.get("time")
    return GateResult(
        gate,
        data["verdict"],
        str(data.get("summary", "")),
        hashlib.sha256(raw).hexdigest(),
        float(when) if isinstance(when, (int, float)) and not isinstance(when, bool) else None,
        tuple(data["checks"]),
    )


def _problem(gate: str, data: Any) -> str | None:
    """Return why a stored result does not count, None when it does."""
    if not isinstance(data, dict):
        return "it is not a dictionary"
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
    if data.get("verdict") not in _VERDICTS or data["verdict"] != worst(c["verdict"] for c in checks):
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

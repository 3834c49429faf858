# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The decision of a stage from the stored results of its gates. Pure functions."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import (
    BLOCKING,
    Check,
    content_digest,
    describe,
    unknown,
    worst,
)

_VERDICTS = frozenset({"pass", "warn", "fail", "unknown"})
_FIELDS = frozenset(f.name for f in dataclasses.fields(Check))
_TEXTS = ("check", "subject", "reason", "unit", "limit_source", "remedy")
_RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_SKEW_S = 300.0
# A run takes minutes; what is a day old was left behind by a run that was stopped.
_MAX_AGE_S = 86400.0
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


@dataclasses.dataclass(frozen=True, slots=True)
class Here:
    """The node and the moment the decision is made: wall clock, seconds since the boot, and which machine and boot."""

    now: float
    uptime: float
    machine_id: str | None
    boot_id: str | None


CHECKS: dict[str, str] = {
    "gate.evidence": (
        "Whether a required gate left a result in this run, on this machine and in this boot, that is whole by its own "
        "digests and consistent in itself; anything else is unknown."
    ),
}


def _refused(gate: str, reason: str, raw: bytes | None) -> GateResult:
    check = unknown("gate.evidence", gate, reason, _RERUN).as_dict()
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


def read_result(gate: str, raw: bytes | None, here: Here | None = None, *, allow_captured: bool = False) -> GateResult:
    """Return a gate's stored result. A missing file, or one that does not prove what it says, is `unknown`.

    `here` None: only the content is held against itself, not against the machine, the boot and the clocks. What was
    judged from captured output says nothing about this node, unless `allow_captured`.
    """
    if raw is None:
        return _refused(gate, "there is no evidence of this gate in this run", None)
    try:
        data: Any = json.loads(raw, parse_constant=_no_number, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as exc:
        detail = f": {exc}" if isinstance(exc, _Odd) else ""
        return _refused(gate, f"the evidence is not JSON{detail}", raw)
    problem = (
        _problem(gate, data)
        or _time_problem(data.get("time"))
        or (_elsewhere(data, here) if here else None)
        or (None if allow_captured else _captured(data["evidence"]))
    )
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


class _Odd(ValueError):
    """What Python's json takes and JSON does not know."""


def _no_number(word: str) -> Any:
    raise _Odd(f"{word} is no number")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Odd("a key is there twice")
    return found


def _problem(gate: str, data: Any) -> str | None:
    """Return why a stored result does not count, None when it does."""
    if not isinstance(data, dict):
        return "it is not a dictionary"
    try:
        json.dumps(data, ensure_ascii=False).encode()
        digest = content_digest(data)
    except (ValueError, RecursionError):
        return "it holds what is no text or no number, or is nested too deep"
    if data.get("gate") != gate:
        return f"it is of gate {str(data.get('gate'))[:80]!r}"
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
        return f"its verdict {str(data.get('verdict'))[:80]!r} is not the worst of its checks"
    problem = _contradiction(checks) or _readings_problem(data.get("evidence"), good=verdict not in BLOCKING)
    if problem:
        return problem
    # Last, so that what is wrong is named where it can be; this finds what no rule can, such as a check taken out.
    if data.get("digest") != digest:
        return "it does not match its own digest"
    return None


def _contradiction(checks: Sequence[dict[str, Any]]) -> str | None:
    """Return which fact of one subject passed with two values: one of them was not of this subject.

    A warning may come more than once, each with its own value: two harmless Xids of one GPU.
    """
    passed: dict[tuple[str, str], Any] = {}
    for check in checks:
        if check["verdict"] == "pass":
            key = (check["check"], check["subject"])
            if key in passed and passed[key] != check["value"]:
                return f"{check['check']} of {check['subject'][:80]} passed with two different values"
            passed[key] = check["value"]
    return None


def _readings_problem(readings: Any, good: bool) -> str | None:
    """Return why the readings do not carry a verdict that lets the node go on (`good`) or were changed."""
    if not isinstance(readings, list):
        return "it holds no readings"
    for reading in readings:
        if not isinstance(reading, dict) or not isinstance(reading.get("stdout"), str):
            return "a reading has no output"
        command = str(reading.get("command"))[:160]
        digest = hashlib.sha256(reading["stdout"].encode("utf-8", "surrogateescape")).hexdigest()
        if reading.get("sha256") != digest:
            return f"the output of {command!r} does not match its digest"
        rc, needed = reading.get("rc"), reading.get("needed")
        well = reading.get("error") is None and isinstance(rc, int) and rc == 0
        if good and needed is not False and not well:
            said = reading.get("error") or f"status {rc}"
            return f"it passed although a reading it needs failed, {command!r}: {str(said)[:160]}"
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


def _captured(readings: Sequence[dict[str, Any]]) -> str | None:
    reading = next((r for r in readings if r.get("captured")), None)
    return f"it was judged from captured output, {str(reading.get('command'))[:160]!r}" if reading else None


def _time_problem(when: Any) -> str | None:
    """Return why the time of a result is none, None when it is one."""
    if isinstance(when, bool) or not isinstance(when, (int, float)):
        return "its time is not a number"
    # Compared before it is made a float: an integer may be too large for one.
    if not 0 < when < 1e12:
        return "its time is not a date"
    return None


def _elsewhere(data: Mapping[str, Any], here: Here) -> str | None:
    """Return why a result is not of this machine, this boot and this time, None when it is.

    The age is taken by two clocks. The one that counts from the boot cannot be set; when the wall clock differs from
    it, somebody set the clock between the reading and the decision, and neither time can be trusted.
    """
    if not here.machine_id or not here.boot_id:
        return "this machine's id or its boot's id cannot be read (/etc/machine-id, /proc/sys/kernel/random/boot_id)"
    if data.get("machine_id") != here.machine_id:
        return "it was made on another machine or installation"
    if data.get("boot_id") != here.boot_id:
        return "it was made before this boot"
    uptime = data.get("uptime")
    if isinstance(uptime, bool) or not isinstance(uptime, (int, float)) or not 0 <= uptime < 1e12:
        return "its time since the boot is not a number"
    age, by_wall = here.uptime - float(uptime), here.now - float(data["time"])
    if by_wall < -_SKEW_S:
        return f"it is {-by_wall:.0f} s from the future; check the clock"
    if age < -1:
        return f"it is {-age:.0f} s from the future by the clock that counts from the boot"
    if abs(age - by_wall) > _SKEW_S:
        return f"the clock was set by {by_wall - age:+.0f} s between the reading and the decision"
    if age > _MAX_AGE_S:
        return f"it is {age:.0f} s old, limit {_MAX_AGE_S:.0f} s"
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

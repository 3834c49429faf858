# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One vocabulary for every check: what was measured, what the limit is, where the limit comes from, and the verdict.

Pure functions and value types, no I/O. `unknown` blocks a join exactly as `fail` does: a tool that is missing, silent,
late or unreadable has not shown that the hardware is good.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, TypeAlias, cast

Verdict = Literal["pass", "warn", "fail", "unknown"]
Value: TypeAlias = "str | int | float | bool | None"

# From harmless to worst. `fail` outranks `unknown`: a measured defect is the more useful headline.
_RANK: dict[str, int] = {"pass": 0, "warn": 1, "unknown": 2, "fail": 3}
BLOCKING: frozenset[str] = frozenset({"fail", "unknown"})


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """One raw reading: the command, how it ended, and its untouched output.

    `rc` is None when the command never ended by itself (deadline) or never started; `error` then says why.

    A reading that was captured is named after its file. `stands_for` is then the command it was taken for, `name` the
    file name that reading has in a bundle, and `captured` says what it came from ("file": the one text of the whole
    capture), so that the stored evidence can be judged again. `needed` False: the gate can do without this reading;
    True: no gate passes beside it when it failed (see _decision.py).
    """

    command: str
    rc: int | None
    stdout: str
    stderr: str = ""
    seconds: float | None = None
    error: str | None = None
    stands_for: str = ""
    name: str = ""
    captured: Literal["", "file", "directory"] = ""
    needed: bool = False

    @property
    def failed(self) -> bool:
        """Whether the command did not end well or has no output that could be read."""
        return self.error is not None or self.rc != 0

    @property
    def sha256(self) -> str:
        """SHA-256 of the standard output, hexadecimal."""
        return hashlib.sha256(self.stdout.encode("utf-8", "surrogateescape")).hexdigest()

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form that is stored beside the results."""
        return {**dataclasses.asdict(self), "sha256": self.sha256}


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
    """One judged fact about one subject (a GPU, link, port, pair, unit).

    `value` is what was measured (None: could not be read), `limit` what it was held against, `limit_source` where that
    limit comes from (board profile, inventory, fleet median, specification). `unit` is a plain unit symbol or empty.
    """

    check: str
    subject: str
    verdict: Verdict
    reason: str
    value: Value = None
    limit: Value = None
    unit: str = ""
    limit_source: str = ""
    remedy: str = ""

    def __post_init__(self) -> None:
        """Refuse a verdict outside the vocabulary and a pass that measured nothing."""
        if self.verdict not in _RANK:
            raise ValueError(
                f"verdict of {self.check} on {self.subject}: {self.verdict!r}. Use one of {', '.join(_RANK)}."
            )
        if self.verdict in ("pass", "warn") and self.value is None:
            raise ValueError(f"{self.check} on {self.subject}: {self.verdict} without a measured value.")

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self)


def worst(verdicts: Iterable[str]) -> Verdict:
    """Return the worst verdict. No verdict at all is `unknown`: nothing was proven."""
    found: str = max(verdicts, key=lambda v: _RANK[v], default="unknown")
    return cast(Verdict, found)


def unknown(
    check: str, subject: str, reason: str, remedy: str = "", limit: Value = None, limit_source: str = ""
) -> Check:
    """Return a check that could not be decided."""
    return Check(check, subject, "unknown", reason, None, limit, "", limit_source, remedy)


def compare(
    check: str,
    subject: str,
    value: Value,
    limit: Value,
    *,
    ok: bool,
    unit: str = "",
    limit_source: str = "",
    reason: str,
    remedy: str = "",
) -> Check:
    """Return pass or fail for a value that was read; `unknown` when either side is missing, whatever `ok` says."""
    if value is None:
        return unknown(check, subject, f"{reason}: no value could be read", remedy, limit, limit_source)
    if limit is None:
        return Check(
            check, subject, "unknown", f"{reason}: no limit is known for it", value, None, unit, limit_source, remedy
        )
    verdict: Verdict = "pass" if ok else "fail"
    return Check(check, subject, verdict, reason, value, limit, unit, limit_source, "" if ok else remedy)


def describe(item: Mapping[str, Any]) -> str:
    """Return one line for people: check, subject, measured value, limit with its source, reason, remedy."""
    unit = f" {item['unit']}" if item.get("unit") else ""
    measured = "nothing" if item.get("value") is None else f"{item['value']}{unit}"
    limit = "" if item.get("limit") is None else f", limit {item['limit']}{unit}"
    source = f" ({item['limit_source']})" if item.get("limit_source") and limit else ""
    remedy = f" {item['remedy']}" if item.get("remedy") else ""
    head = f"{item['check']} {item['subject']}: {item['verdict']}"
    return f"{head}, measured {measured}{limit}{source}. {item['reason']}.{remedy}"


def result(gate: str, checks: Iterable[Check], evidence: Iterable[Evidence] = ()) -> dict[str, Any]:
    """Return what every gate module returns and stores: verdict, checks, evidence and a one-line summary.

    The summary names the first of the worst checks, since that is the line a person acts on.
    """
    items = [c.as_dict() for c in checks]
    verdict = worst(c["verdict"] for c in items)
    if not items:
        summary = f"{gate}: unknown, nothing was checked"
    elif verdict == "pass":
        summary = f"{gate}: pass, {len(items)} checks"
    else:
        bad = [c for c in items if c["verdict"] == verdict]
        more = f" (+{len(bad) - 1} more)" if len(bad) > 1 else ""
        summary = describe(bad[0]) + more
    return {
        "gate": gate,
        "verdict": verdict,
        "summary": summary,
        "checks": items,
        "evidence": [e.as_dict() for e in evidence],
    }


def content_digest(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a stored result without its own `digest`, however the JSON is laid out.

    Raises ValueError for what is no JSON (NaN, infinity) or no text.
    """
    content = {key: value for key, value in data.items() if key != "digest"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return a result as it is stored: with a digest of the whole, so that a file that was changed is not believed."""
    stored: dict[str, Any] = json.loads(json.dumps(data))
    return {**stored, "digest": content_digest(stored)}

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parser of perftest's latency tests (ib_write_lat, ib_send_lat, ib_read_lat). Pure.

perftest prints half of the measured round trip in microseconds. "typical" is the median; the first sample is usually
the maximum, so t_max is information, not a reason to judge.
"""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

# Completion statuses that name a cause a person can act on (enum ibv_wc_status of libibverbs).
_STATUS = {
    5: "work request flushed",
    9: "remote invalid request",
    10: "remote access error",
    12: "transport retries exhausted, the other port did not answer",
    13: "receiver-not-ready retries exhausted",
}
_FAILED = re.compile(r"Failed status (\d+)")
_COLUMN = re.compile(r"(#bytes|#iterations|t_\w+|[\d.]+%\s*percentile|tps\s+average)\s*(?:\[(\w+)\])?")
_JSON_PAIR = re.compile(r"[\"']?([A-Za-z_][\w.]*)[\"']?\s*:\s*[\"']?(-?[\d.]+(?:[eE][+-]?\d+)?)[\"']?\s*[,}\n]")
_FIELDS = {
    "#bytes": "size",
    "MsgSize": "size",
    "#iterations": "iterations",
    "n_iterations": "iterations",
    "t_min": "t_min_us",
    "t_max": "t_max_us",
    "t_typical": "t_typical_us",
    "t_avg": "t_avg_us",
    "t_stdev": "t_stdev_us",
    "99%percentile": "p99_us",
    "percentile_99": "p99_us",
    "99.9%percentile": "p999_us",
    "percentile_99.9": "p999_us",
}
_NOTED = (
    re.compile(r"Couldn't connect to \S+"),
    re.compile(r"Port number \d+ state is \w+"),
    re.compile(r"IB device \S+ not found"),
    re.compile(r"Unable to find the Infiniband/RoCE device"),
    re.compile(r"Unable to Connect the HCA's through the link"),
    re.compile(r"Failed to exchange data between server and clients"),
    re.compile(r"Completion with error at \w+"),
    re.compile(r"Unable to init the socket connection"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Latency:
    """One row of a latency test. A number that was not printed or not readable is None; `error` says why."""

    size: int | None = None
    iterations: int | None = None
    t_min_us: float | None = None
    t_max_us: float | None = None
    t_typical_us: float | None = None
    t_avg_us: float | None = None
    t_stdev_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self)


def parse_latency(text: str) -> Latency:
    """Return the row of the smallest message, or a Latency without numbers and with the reason.

    Reads the text table of every release (with and without percentiles) and the JSON report, whose keys older releases
    print without quotes.
    """
    rows = parse_rows(text)
    good = [row for row in rows if row.error is None]
    failure = explain(text)
    if failure is not None and not good:
        return Latency(error=failure)
    if not rows:
        return Latency(error=f"no result row in {_excerpt(text)}")
    if not good:
        return rows[0]
    return min(good, key=lambda row: math.inf if row.size is None else row.size)


def parse_rows(text: str) -> list[Latency]:
    """Return every result row in the order printed; a row that does not fit its header carries `error`."""
    if "#bytes" not in text and re.search(r"[\"']?t_(?:typical|avg)[\"']?\s*:", text):
        return _json_rows(text)
    rows: list[Latency] = []
    columns: list[str] | None = None
    for line in text.splitlines():
        if "#bytes" in line and "t_" in line:
            found = _COLUMN.findall(line)
            units = {unit for name, unit in found if name.startswith("t_") and unit}
            columns = ["".join(name.split()) for name, _unit in found]
            if units - {"usec"}:
                rows.append(Latency(error=f"times are in {', '.join(sorted(units))}, not usec (run without -C)"))
                columns = None
        elif columns is not None and re.match(r"\s*\d+\s", line + " "):
            rows.append(_row(dict(zip(columns, line.split(), strict=False)), len(line.split()) < len(columns), line))
        elif columns is not None and set(line.strip()) == {"-"}:
            columns = None
    return rows


def explain(text: str) -> str | None:
    """Return the cause a failed perftest names in its output, or None when it names none."""
    match = _FAILED.search(text)
    if match:
        code = int(match.group(1))
        return f"completion with status {code} ({_STATUS.get(code, 'see enum ibv_wc_status')})"
    for pattern in _NOTED:
        found = pattern.search(text)
        if found:
            return found.group(0)
    return None


def _json_rows(text: str) -> list[Latency]:
    values: dict[str, str] = {}
    for key, value in _JSON_PAIR.findall(text + "\n"):
        # A run over all sizes prints one object a size; the first holds the smallest message.
        values.setdefault(key, value)
    return [_row(values, False, text)]


def _row(cells: dict[str, str], short: bool, line: str) -> Latency:
    if short:
        return Latency(error=f"result row is cut off: {line.strip()!r}")
    fields: dict[str, Any] = {}
    for name, cell in cells.items():
        field = _FIELDS.get(name)
        if field is None:
            continue
        number = _number(cell)
        if number is None:
            return Latency(error=f"{name} is {cell!r}, not a number, in {line.strip()[:120]!r}")
        fields[field] = int(number) if field in ("size", "iterations") else number
    for field in ("t_min_us", "t_typical_us", "t_avg_us", "p99_us"):
        # Light needs 5 ns for a metre of fibre: a latency of zero was not measured.
        if fields.get(field) == 0:
            return Latency(error=f"{field} is 0, which no link can do, in {line.strip()[:120]!r}")
    if "t_typical_us" not in fields and "t_avg_us" not in fields:
        return Latency(error=f"no latency in {line.strip()[:120]!r}")
    return Latency(**fields)


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _excerpt(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    return repr(lines[-1][:120]) if lines else "empty output"

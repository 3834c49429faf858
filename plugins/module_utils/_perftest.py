# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parser of perftest's latency tests (ib_write_lat, ib_send_lat, ib_read_lat). Pure.

perftest prints half of the measured round trip in microseconds. "typical" is the median; the first sample is usually
the maximum, so t_max is information, not a reason to judge.
"""

from __future__ import annotations

import dataclasses
import itertools
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
# A number too long to be a status is still a failure that was named.
_FAILED = re.compile(r"Failed status ([0-9]{1,9}(?![0-9]))?")
_COLUMN = re.compile(r"(#bytes|#iterations|t_\w+|[\d.]+%\s*percentile|tps\s+average|CPU_Util)\s*(?:\[([\w%]+)\])?")
_JSON_PAIR = re.compile(r"[\"']?([A-Za-z_][\w.]*)[\"']?\s*:\s*[\"']?(-?[\d.]+(?:[eE][+-]?\d+)?)[\"']?\s*[,}\n]")
_INTEGER = re.compile(r"[0-9]{1,9}")
# perftest prints plain decimals; the bound keeps a damaged output from becoming a number of any size.
_DECIMAL = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
MIN_ITERATIONS = 2
"""A median of fewer samples is none; perftest itself refuses less than 5."""
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


def parse_latency(text: str, asked: int | None = None) -> Latency:
    """Return the row of the smallest message, or a Latency without numbers and with the reason.

    Reads the text table of every release (with and without percentiles) and the JSON report, whose keys older releases
    print without quotes. A failure the tool names wins over its rows, one damaged row spoils the output, and so does a
    size measured twice: nobody can say which of the rows counts. `asked`: number of iterations on the command line.
    """
    failure = explain(text)
    if failure is not None:
        return Latency(error=failure)
    rows = parse_rows(text)
    if not rows:
        return Latency(error=f"no result row in {_excerpt(text)}")
    damaged = next((row for row in rows if row.error is not None), None)
    if damaged is not None:
        return damaged
    sizes = [row.size for row in rows]
    doubled = next((size for size in sizes if sizes.count(size) > 1), None)
    if len(set(sizes)) < len(sizes):
        return Latency(error=f"more than one result row for {doubled if doubled is not None else '?'} bytes")
    first = min(rows, key=lambda row: math.inf if row.size is None else row.size)
    if asked is not None and first.iterations is not None and first.iterations < asked:
        return Latency(error=f"{first.iterations} iterations were measured, {asked} were asked for")
    return first


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
        elif columns is not None and re.match(r"\s*[0-9]+\s", line + " "):
            rows.append(_table_row(columns, line))
        elif columns is not None and set(line.strip()) == {"-"}:
            columns = None
    return rows


def explain(text: str) -> str | None:
    """Return the cause a failed perftest names in its output, or None when it names none."""
    match = _FAILED.search(text)
    if match:
        if match.group(1) is None:
            return "completion with a status that cannot be read"
        code = int(match.group(1))
        return f"completion with status {code} ({_STATUS.get(code, 'see enum ibv_wc_status')})"
    for pattern in _NOTED:
        found = pattern.search(text)
        if found:
            return found.group(0)
    return None


def _json_rows(text: str) -> list[Latency]:
    if text.count("{") != text.count("}"):
        return [Latency(error=f"the JSON report is cut off at {_excerpt(text)}")]
    # A run over all sizes prints one object a size, so a name that comes again begins the next one.
    objects: list[dict[str, str]] = [{}]
    for key, value in _JSON_PAIR.findall(text):
        if key not in _FIELDS:
            continue
        if key in objects[-1]:
            objects.append({})
        objects[-1][key] = value
    return [_row(values, text) for values in objects]


def _table_row(columns: list[str], line: str) -> Latency:
    cells = line.split()
    if len(cells) < len(columns):
        return Latency(error=f"result row is cut off: {line.strip()[:120]!r}")
    if len(cells) > len(columns):
        return Latency(error=f"{len(cells)} cells under {len(columns)} columns in {line.strip()[:120]!r}")
    return _row(dict(zip(columns, cells, strict=True)), line)


def _row(cells: dict[str, str], line: str) -> Latency:
    fields: dict[str, Any] = {}
    for name, cell in cells.items():
        field = _FIELDS.get(name)
        if field is None:
            continue
        whole = field in ("size", "iterations")
        if not (_INTEGER if whole else _DECIMAL).fullmatch(cell):
            return Latency(error=f"{name} is {cell[:40]!r}, not a number, in {line.strip()[:120]!r}")
        fields[field] = int(cell) if whole else float(cell)
    for field in ("t_min_us", "t_typical_us", "t_avg_us", "p99_us"):
        # Light needs 5 ns for a metre of fibre: a latency of zero was not measured.
        if fields.get(field) == 0:
            return Latency(error=f"{field} is 0, which no link can do, in {line.strip()[:120]!r}")
    if "t_typical_us" not in fields and "t_avg_us" not in fields:
        return Latency(error=f"no latency in {line.strip()[:120]!r}")
    if fields.get("iterations", MIN_ITERATIONS) < MIN_ITERATIONS:
        return Latency(error=f"{fields['iterations']} iterations are no measurement, in {line.strip()[:120]!r}")
    ordered = [name for name in ("t_min_us", "t_typical_us", "t_max_us") if name in fields]
    for low, high in itertools.pairwise(ordered):
        if fields[low] > fields[high]:
            return Latency(
                error=f"{low} {fields[low]:g} is above {high} {fields[high]:g}, which cannot be, in "
                f"{line.strip()[:120]!r}"
            )
    return Latency(**fields)


def _excerpt(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" -\t")]
    return repr(lines[-1][:120]) if lines else "empty output"

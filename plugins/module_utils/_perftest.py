# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parser of perftest's latency and bandwidth tests (ib_write_lat, ib_read_lat, ib_send_lat, ib_write_bw, ...). Pure.

Latency: perftest prints half of the measured round trip in microseconds (a read or an atomic is a whole one). "typical"
is the median; the first sample is usually the maximum, so t_max is information, not a reason to judge.

Bandwidth: in Gb/s here, whatever was printed. Older releases print "MB/sec" and newer ones "MiB/sec" for the same
2^20 bytes; only "Gb/sec" is decimal. A run by time (-D) prints a peak of 0.00, which is none.
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
_TITLE = re.compile(
    r"(RDMA_Write|RDMA_Read|Send|Atomic)((?:[ _][A-Za-z_-]{1,20}){0,3}?)[ _](Latency|BW)(?:[ _]\w{1,12}){0,3}?[ _]Test"
)
_TOOL = re.compile(r"\bib_(write|read|send|atomic)_(lat|bw)\b")
_DEVICE = re.compile(r"\bDevice\W{1,12}(\w{1,64})")
_QPS = re.compile(r"\bNumber[ _]of[ _]qps\W{1,12}([0-9]{1,6})")
_LINK = re.compile(r"\bLink[ _]type\W{1,12}(\w{1,16})")
_BW_COLUMN = re.compile(
    r"(#bytes|#sl|#iterations|BW peak|BW average|MsgRate Port\d|BW Port\d|MsgRate|CPU_Util)\s*(?:\[([^\]]{1,12})\])?"
)
# Factor to Gb/s.
_BW_UNITS = {"Gb/sec": 1.0, "MB/sec": 8 * 2**20 / 1e9, "MiB/sec": 8 * 2**20 / 1e9}
_COLUMN = re.compile(r"(#bytes|#iterations|t_\w+|[\d.]+%\s*percentile|tps\s+average|CPU_Util)\s*(?:\[([\w%]+)\])?")
_JSON_PAIR = re.compile(
    r"(?<![\w.])[\"']?([A-Za-z_][\w.]{0,63})[\"']?\s*:\s*"
    r"[\"']?(-?[\d.]+(?:[eE][+-]?\d+)?)[\"']?\s*(?:,(?![0-9])|[}\n])"
)
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
    re.compile(r"No IB devices found"),
    re.compile(r"Did not detect devices"),
    re.compile(r"Couldn't get context for the device"),
    re.compile(r"Couldn't allocate MR"),
    re.compile(r"Failed to modify .{0,40}to RT[RS]"),
    re.compile(r"Failed to complete run_iter_\w+ function"),
    re.compile(r"Couldn't read remote address"),
    re.compile(r"Unable to open file descriptor for socket connection"),
    re.compile(r"Parser function exited with Error"),
)
DEFECTS = ("completion with", "Completion with", "Unable to Connect", "Port number", "Failed to complete run_iter")
"""How the failures begin that show RDMA itself not working; the others only say that nothing was measured."""


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


@dataclasses.dataclass(frozen=True, slots=True)
class Bandwidth:
    """One row of a bandwidth test in Gb/s; None where it was not printed. `error` says why nothing can be judged.

    The numbers of a bidirectional run are the sum of both directions, as perftest prints them.
    """

    size: int | None = None
    iterations: int | None = None
    peak_gbps: float | None = None
    average_gbps: float | None = None
    message_rate_mpps: float | None = None
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """What a run says about itself; None or False where it does not say it.

    `verb` is write, read, send or atomic, `what` latency or bandwidth, `link` as printed (IB, Ethernet).
    """

    verb: str | None = None
    what: str | None = None
    bidirectional: bool = False
    device: str | None = None
    qps: int | None = None
    link: str | None = None


def header(text: str) -> Header:
    """Return what the block above the table (or the JSON report's test_info) says."""
    title, tool = _TITLE.search(text), _TOOL.search(text)
    verb = what = None
    if title:
        verb = title.group(1).removeprefix("RDMA_").lower()
        what = "latency" if title.group(3) == "Latency" else "bandwidth"
    elif tool:
        verb, what = tool.group(1), "latency" if tool.group(2) == "lat" else "bandwidth"
    elif "BW average[" in text or "BW_average" in text:
        what = "bandwidth"
    elif "t_typical" in text or "t_avg" in text:
        what = "latency"
    device, qps, link = _DEVICE.search(text), _QPS.search(text), _LINK.search(text)
    return Header(
        verb,
        what,
        title is not None and "Bidirectional" in title.group(2),
        device.group(1) if device else None,
        int(qps.group(1)) if qps else None,
        link.group(1) if link else None,
    )


def runs(text: str) -> list[str]:
    """Return the text of each run in it, cut where a new title begins; the text itself where there is one or none.

    What stands above the first title (command line, warnings) belongs to the first run.
    """
    titles = [match.start() for match in _TITLE.finditer(text)]
    if len(titles) < 2:
        return [text]
    starts = [0, *titles[1:]]
    found = list(zip(titles, starts, [*starts[1:], len(text)], strict=True))
    # The server of a read or an older release ends without a table: what counts is in the client's run.
    client = [
        text[start:end]
        for title, start, end in found
        if "#bytes" in text[start:end] or "Waiting for client" not in text[max(0, title - 400) : title]
    ]
    return client or [text]


def parse_bandwidth(text: str, gbits: bool = False) -> Bandwidth:
    """Return the row with the highest average: a run over all sizes shows what the link carries in its best row.

    Otherwise as `parse_latency`. The JSON report has no unit: it is in Gb/s for `gbits` (--report_gbits was given) or
    where the message rate says so.
    """
    failure = explain(text)
    if failure is not None:
        return Bandwidth(error=failure)
    rows = bandwidth_rows(text, gbits)
    if not rows:
        return Bandwidth(error=f"no result row in {_excerpt(text)}")
    damaged = next((row for row in rows if row.error is not None), None)
    if damaged is not None:
        return damaged
    sizes = [row.size for row in rows]
    doubled = next((size for size in sizes if sizes.count(size) > 1), None)
    if len(set(sizes)) < len(sizes):
        return Bandwidth(error=f"more than one result row for {doubled if doubled is not None else '?'} bytes")
    return max(rows, key=lambda row: row.average_gbps or 0.0)


def bandwidth_rows(text: str, gbits: bool = False) -> list[Bandwidth]:
    """Return every result row of a bandwidth test in the order printed; a row that does not fit carries `error`."""
    if "#bytes" not in text and "BW_average" in text:
        return _json_bandwidth(text, gbits)
    rows: list[Bandwidth] = []
    columns: list[tuple[str, str]] | None = None
    for line in text.splitlines():
        if "#bytes" in line and "BW average" in line:
            columns = _BW_COLUMN.findall(line)
            wrong = {unit for name, unit in columns if name.startswith("BW") and unit not in _BW_UNITS}
            if wrong:
                rows.append(
                    Bandwidth(error=f"bandwidth in {', '.join(sorted(wrong)) or 'no unit'}, not MB/sec or Gb/sec")
                )
                columns = None
        elif columns is not None and re.match(r"\s*[0-9]+\s", line + " "):
            rows.append(_bandwidth_row(columns, line))
        elif columns is not None and set(line.strip()) == {"-"}:
            columns = None
    return rows


def _bandwidth_row(columns: list[tuple[str, str]], line: str) -> Bandwidth:
    cells, shown = line.split(), repr(line.strip()[:120])
    if len(cells) < len(columns):
        return Bandwidth(error=f"result row is cut off: {shown}")
    if len(cells) > len(columns):
        return Bandwidth(error=f"{len(cells)} cells under {len(columns)} columns in {shown}")
    values: dict[str, float] = {}
    factor = 1.0
    for (name, unit), cell in zip(columns, cells, strict=True):
        pattern = _INTEGER if name.startswith("#") else _DECIMAL
        if not pattern.fullmatch(cell):
            return Bandwidth(error=f"{name} is {cell[:40]!r}, not a number, in {shown}")
        values[name] = float(cell)
        factor = _BW_UNITS.get(unit, factor)
    return _bandwidth(values, factor, shown)


def _bandwidth(values: dict[str, float], factor: float, shown: str) -> Bandwidth:
    """Return a row whose numbers agree with each other: the message rate is the average in messages."""
    average, size, rate = values.get("BW average", 0.0), values.get("#bytes", 0.0), values.get("MsgRate")
    peak = values.get("BW peak") or None
    if average <= 0:
        return Bandwidth(error=f"BW average is {average:g}, which is no measurement, in {shown}")
    if size <= 0 or values.get("#iterations", 1.0) < 1:
        return Bandwidth(error=f"no message or no iteration in {shown}")
    if peak is not None and average > peak * 1.05 + 0.01:
        return Bandwidth(error=f"BW average {average:g} is above BW peak {peak:g}, which cannot be, in {shown}")
    if rate is not None:
        told = rate * size * 8 / 1e3 / factor
        # Half of the last printed digit of both, and 2 % for how perftest counts.
        if abs(told - average) > 0.02 * average + 0.006 + 5e-7 * size * 8 / 1e3 / factor:
            return Bandwidth(error=f"BW average {average:g} and MsgRate {rate:g} contradict each other in {shown}")
    return Bandwidth(
        int(size),
        int(values["#iterations"]) if "#iterations" in values else None,
        None if peak is None else round(peak * factor, 4),
        round(average * factor, 4),
        rate,
    )


def _json_bandwidth(text: str, gbits: bool) -> list[Bandwidth]:
    if text.count("{") != text.count("}"):
        return [Bandwidth(error=f"the JSON report is cut off at {_excerpt(text)}")]
    names = {
        "MsgSize": "#bytes",
        "n_iterations": "#iterations",
        "BW_peak": "BW peak",
        "BW_average": "BW average",
        "MsgRate": "MsgRate",
    }
    objects: list[dict[str, float]] = [{}]
    for key, cell in _JSON_PAIR.findall(text):
        if key not in names:
            continue
        if not _DECIMAL.fullmatch(cell):
            return [Bandwidth(error=f"{key} is {cell[:40]!r}, not a number")]
        if names[key] in objects[-1]:
            objects.append({})
        objects[-1][names[key]] = float(cell)
    return [_json_row(values, gbits) for values in objects]


def _json_row(values: dict[str, float], gbits: bool) -> Bandwidth:
    """The report carries no unit. The message rate tells MiB/s from Gb/s, which are a factor of 119 apart."""
    if missing := [name for name in ("#bytes", "BW average") if name not in values]:
        return Bandwidth(error=f"the JSON report has no {' and no '.join(missing)}")
    if gbits:
        return _bandwidth(values, 1.0, "the JSON report")
    if "MsgRate" not in values:
        return Bandwidth(error="the JSON report names no unit and no MsgRate that would tell it")
    read = [_bandwidth(values, factor, "the JSON report") for factor in (1.0, _BW_UNITS["MiB/sec"])]
    return next((row for row in read if row.error is None), read[0])


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
    for middle in (("t_typical_us", "p99_us", "p999_us"), ("t_avg_us",)):
        ordered = [name for name in ("t_min_us", *middle, "t_max_us") if name in fields]
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

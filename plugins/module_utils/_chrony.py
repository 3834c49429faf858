# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reader of `chronyc tracking` and `chronyc sources`, as CSV (-c) and as people see it, and their judgement. Pure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Sequence

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, compare, unknown

GATE = "clock_sync"
_LEAPS = frozenset({"Normal", "Insert second", "Delete second", "Not synchronised"})
_CSV_FIELDS = 14
_REFID = re.compile(r"[0-9A-Fa-f]{8}")
_FLOAT = re.compile(r"[+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,3})?")
_SOURCE = re.compile(r"([\^=#])([*+?x~-])\s+(\S+)\s+([0-9]{1,2})\s+(-?[0-9]{1,2})\s+([0-7]{1,3})\s+\S+\s+\S.*")
_REFUSED = re.compile(r"^[ \t]*(5[0-9]{2}) (.*)$", re.MULTILINE)
_ERROR_LINE = re.compile(r"\b(error|fatal|failed|cannot|could not)\b", re.IGNORECASE)
# Reference ids of a clock that follows nothing but itself: 127.127.x.x, and none at all.
_LOCAL_REFID = re.compile(r"7F7F[0-9A-F]{4}|00000000", re.IGNORECASE)


class ChronyError(ValueError):
    """The text is not what chronyc prints for this command; the message shows the line."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tracking:
    """The clock's state: reference, stratum, offset in seconds (sign as printed) and leap status."""

    ref_id: str
    ref_name: str
    stratum: int
    ref_time: str
    offset_s: float
    root_delay_s: float | None
    root_dispersion_s: float | None
    leap: str


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """One source: state "*" is the selected one; `reach` holds the last 8 polls as bits."""

    mode: str
    state: str
    name: str
    stratum: int
    reach: int


def _shown(line: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in line.strip())
    return text if len(text) <= 160 else f"{text[:160]}..."


def _float(text: str) -> float | None:
    if not _FLOAT.fullmatch(text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _refuse_answer(text: str) -> None:
    """Raise for chronyc's own error answers, which it may print with exit status 0."""
    if match := _REFUSED.search(text):
        raise ChronyError(f"chronyc answers {_shown(match[0])}")


def parse_tracking(text: str) -> Tracking:
    """Read either form. Raises ChronyError when a field the verdict needs is missing or unreadable."""
    _refuse_answer(text)
    fields: dict[str, str] = {}
    reports: list[str] = []
    for line in text.splitlines():
        key, colon, value = (part.strip() for part in line.partition(" : "))
        if line.count(",") == _CSV_FIELDS - 1:
            reports.append(line)
        elif not colon:
            if _ERROR_LINE.search(line):
                raise ChronyError(f"an error message beside the report: {_shown(line)}")
        elif key in fields:
            raise ChronyError(f"more than one report, {key!r} is there twice: {_shown(line)}")
        else:
            fields[key] = value
    human = "Leap status" in fields or "Reference ID" in fields
    if len(reports) + human > 1:
        raise ChronyError(f"more than one report: {_shown(reports[-1])}")
    if human:
        return _human_tracking(fields)
    if not reports:
        first = next((c for c in text.splitlines() if c.strip()), "")
        raise ChronyError(f"no tracking report: {_shown(first)}" if first else "the output is empty")
    line = reports[0]
    cells = [c.strip() for c in line.split(",")]
    return _tracking(cells[0], cells[1], cells[2], cells[3], cells[4], cells[10], cells[11], cells[13], line)


def _human_tracking(fields: dict[str, str]) -> Tracking:
    missing = [n for n in ("Reference ID", "Stratum", "System time", "Leap status") if n not in fields]
    if missing:
        raise ChronyError(f"the tracking report has no line {', '.join(missing)}")
    ref_id, _sep, rest = fields["Reference ID"].partition(" ")
    words = fields["System time"].split()
    if len(words) < 2 or words[1] != "seconds":
        raise ChronyError(f"System time cannot be read: {_shown(fields['System time'])}")
    delay, dispersion = (fields.get(n, "").removesuffix(" seconds") for n in ("Root delay", "Root dispersion"))
    return _tracking(
        ref_id,
        rest.strip().removeprefix("(").removesuffix(")"),
        fields["Stratum"],
        fields.get("Ref time (UTC)", ""),
        words[0],
        delay,
        dispersion,
        fields["Leap status"],
        fields["Reference ID"],
    )


def _tracking(
    ref_id: str, name: str, stratum: str, ref_time: str, offset: str, delay: str, dispersion: str, leap: str, line: str
) -> Tracking:
    seconds = _float(offset)
    dotted = re.fullmatch(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})", ref_id, re.ASCII)
    if dotted:
        # chrony before 3.0 prints the id as an address.
        ref_id = "".join(f"{int(n) & 255:02X}" for n in dotted.groups())
    if not _REFID.fullmatch(ref_id):
        raise ChronyError(f"the reference id cannot be read: {_shown(line)}")
    if not (stratum.isascii() and stratum.isdigit() and len(stratum) < 4):
        raise ChronyError(f"the stratum cannot be read: {_shown(line)}")
    if seconds is None:
        raise ChronyError(f"the offset of the system time cannot be read: {_shown(line)}")
    if leap not in _LEAPS:
        raise ChronyError(f"unknown leap status {_shown(leap)!r}: {_shown(line)}")
    return Tracking(ref_id.upper(), name, int(stratum), ref_time, seconds, _float(delay), _float(dispersion), leap)


def parse_sources(text: str) -> list[Server]:
    """Read the list of sources in either form. Raises ChronyError for a line that is not one."""
    _refuse_answer(text)
    servers: list[Server] = []
    for line in text.splitlines():
        stripped = line.strip()
        if (
            not stripped
            or set(stripped) == {"="}
            or stripped.startswith(("MS Name", "210 Number", ".-- ", "/ .-", "| /", "||"))
        ):
            continue
        cells = [c.strip() for c in stripped.split(",")]
        if len(cells) == 10 and len(cells[0]) == 1 and len(cells[1]) == 1:
            found = _server(cells[0], cells[1], cells[2], cells[3], cells[5])
        else:
            match = _SOURCE.fullmatch(stripped)
            found = _server(match[1], match[2], match[3], match[4], match[6]) if match else None
        if found is None:
            raise ChronyError(f"a source cannot be read: {_shown(line)}")
        servers.append(found)
    return servers


def _server(mode: str, state: str, name: str, stratum: str, reach: str) -> Server | None:
    if mode not in "^=#" or state not in "*+-?x~" or not name:
        return None
    if not re.fullmatch(r"[0-9]{1,2}", stratum) or not re.fullmatch(r"[0-7]{1,3}", reach):
        return None
    return Server(mode, state, name, int(stratum), int(reach, 8))


def is_source_line(line: str) -> bool:
    """Return whether a line belongs to a list of sources (for captures that hold both reports)."""
    return bool(re.match(r"\s*[\^=#],?[*+?x~-][,\s]", line)) or "MS Name" in line or set(line.strip()) == {"="}


_NTP = (
    "Check the servers in the chrony configuration, the network to them and chronyc sources; chronyc "
    "makestep sets a far-off clock."
)


def judge(
    tracking: Tracking,
    servers: Sequence[Server] | None,
    *,
    allowed: Collection[str],
    max_offset_ms: float | None,
    offset_source: str,
    max_stratum: int,
) -> list[Check]:
    """Hold the clock against the limits. `servers` None: the list of sources is not part of this capture."""
    checks = [
        compare(
            f"{GATE}.leap",
            "clock",
            tracking.leap,
            "Normal",
            # A coming leap second is announced by a synchronised clock.
            ok=tracking.leap != "Not synchronised",
            limit_source="chrony",
            reason="leap status" if tracking.leap != "Not synchronised" else "the clock follows no server",
            remedy=_NTP,
        ),
        _judge_reference(tracking, max_stratum),
        *_judge_sources(tracking, servers, allowed),
    ]
    offset_ms = round(abs(tracking.offset_s) * 1000, 6)
    checks.append(
        compare(
            f"{GATE}.offset",
            "clock",
            offset_ms,
            max_offset_ms,
            ok=max_offset_ms is not None and offset_ms <= max_offset_ms,
            unit="ms",
            limit_source=offset_source,
            reason="offset of the system time from the time of the servers",
            remedy="Wait until chrony has slewed it away, or step it with chronyc makestep before anything serves.",
        )
    )
    return checks


def _judge_reference(tracking: Tracking, max_stratum: int) -> Check:
    value = f"{tracking.ref_id} ({tracking.ref_name}), stratum {tracking.stratum}"
    limit = f"a server, stratum 1-{max_stratum}"
    if _LOCAL_REFID.fullmatch(tracking.ref_id):
        reason = "the clock has no reference"
        if tracking.ref_id != "00000000":
            reason = "the clock follows itself (chrony's local directive) and not a server"
    elif not 1 <= tracking.stratum <= max_stratum:
        reason = f"stratum {tracking.stratum} is outside 1 to {max_stratum}"
    else:
        return Check(
            f"{GATE}.reference", "clock", "pass", "reference of the clock", value, limit, "", "option max_stratum"
        )
    return Check(f"{GATE}.reference", "clock", "fail", reason, value, limit, "", "option max_stratum", _NTP)


def _judge_sources(tracking: Tracking, servers: Sequence[Server] | None, allowed: Collection[str]) -> list[Check]:
    listed = ", ".join(sorted(allowed))
    if servers is None:
        # Only the tracking report was captured: it names the selected source.
        names = [tracking.ref_name] if tracking.ref_name else []
        selected = tracking.ref_name or None
    else:
        names = [s.name for s in servers]
        chosen = [s for s in servers if s.state == "*"]
        selected = chosen[0].name if len(chosen) == 1 else None
    if servers is not None and not servers:
        checks = [
            Check(
                f"{GATE}.source",
                "clock",
                "fail",
                "chrony has no source at all",
                "none",
                "one selected",
                "",
                "chrony",
                _NTP,
            )
        ]
    elif selected is None:
        states = ", ".join(f"{s.state}{s.name}" for s in servers or ()) or "none"
        reason = (
            "no source is selected"
            if servers is None or not any(s.state == "*" for s in servers)
            else "two sources are selected"
        )
        checks = [Check(f"{GATE}.source", "clock", "fail", reason, states, "one selected", "", "chrony", _NTP)]
    else:
        reach = next((s.reach for s in servers or () if s.name == selected), None)
        dead = reach == 0
        reason = "selected source" if not dead else "the selected source did not answer the last 8 polls"
        checks = [
            Check(
                f"{GATE}.source",
                "clock",
                "fail" if dead else "pass",
                reason,
                selected if reach is None else f"{selected}, reach {reach:o}",
                "one selected that answers",
                "",
                "chrony",
                _NTP if dead else "",
            )
        ]
    if allowed:
        foreign = [n for n in names if n not in allowed]
        if not names:
            checks.append(
                unknown(
                    f"{GATE}.servers",
                    "clock",
                    "no source to compare with the site's list",
                    _NTP,
                    listed,
                    "option servers",
                )
            )
        else:
            checks.append(
                compare(
                    f"{GATE}.servers",
                    "clock",
                    ", ".join(names),
                    listed,
                    ok=not foreign,
                    limit_source="option servers",
                    reason=f"{', '.join(foreign)} is not a server of this site"
                    if foreign
                    else "all sources are servers of this site",
                    remedy="Let the chrony role write the configuration, and remove other sources (sourcedir, DHCP).",
                )
            )
    return checks

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reader of `chronyc tracking` and `chronyc sources`, as CSV (-c) and as people see it, and their judgement. Pure."""

from __future__ import annotations

import calendar
import dataclasses
import math
import re
from collections.abc import Collection, Sequence

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Verdict, compare, unknown

GATE = "clock_sync"
CHECKS: dict[str, str] = {
    "clock_sync.output": (
        "Whether chronyc printed whole reports that can be read; anything else, also its own errors such as 506, is "
        "unknown."
    ),
    "clock_sync.leap": (
        "Leap status of the clock, which must not be Not synchronised; an announced leap second is no defect."
    ),
    "clock_sync.reference": (
        "Reference and stratum of the clock, which must be a server and not the clock itself (7F7F0101), with a "
        "stratum from 1 to the option max_stratum."
    ),
    "clock_sync.ref_age": (
        "Seconds since the clock was last corrected by its reference, held against the option max_ref_age_s (four "
        "polls at chrony's longest default interval)."
    ),
    "clock_sync.offset": (
        "Offset of the system time from the time of the servers in ms, held against the option max_offset_ms or the "
        "board profile; from the selected source's last sample when only the list of sources was captured."
    ),
    "clock_sync.root_distance": (
        "Largest possible error of the clock against the reference of all servers in ms, half the root delay plus the "
        "root dispersion, held against the option max_root_distance_ms."
    ),
    "clock_sync.source": "The selected source, of which there must be one, that answered one of the last 8 polls.",
    "clock_sync.servers": "Every configured source, held against the site's list in the option servers.",
    "clock_sync.reach": (
        "Register of the last 8 polls of each source in octal; one that answered none is a fail when the option "
        "servers names it, and a warning beside a good selected one otherwise."
    ),
    "clock_sync.agreement": (
        "Whether chrony trusts each source; one whose time is in error against the others (x) or too variable (~) is a "
        "warning."
    ),
}
_LEAPS = frozenset({"Normal", "Insert second", "Delete second", "Not synchronised"})
_CSV_FIELDS = 14
_REFID = re.compile(r"[0-9A-Fa-f]{8}")
_FLOAT = re.compile(r"[+-]?[0-9]{1,15}(?:\.[0-9]{1,15})?(?:[eE][+-]?[0-9]{1,3})?")
_SAMPLE = r"([+-][0-9]{1,9}(?:ns|us|ms|[smhdy]))"
_SOURCE = re.compile(
    r"([\^=#])([*+?x~-])\s+(\S+)\s+([0-9]{1,2})\s+(-?[0-9]{1,2})\s+([0-7]{1,3})\s+(?:-|[0-9]{1,9}[mhdy]?)\s+"
    rf"{_SAMPLE}\[\s*{_SAMPLE}\]\s+\+/-\s+[0-9]{{1,9}}(?:ns|us|ms|[smhdy])"
)
_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "y": 31556952.0}
_COUNT = re.compile(r"210 Number of sources = ([0-9]{1,4})")
_LEGEND = ("MS Name", "210 Number of sources", ".-- ", "/ .-", "| /", "||")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DATE = re.compile(r"\w{3} (\w{3}) +([0-9]{1,2}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) (19[7-9][0-9]|2[0-9]{3})", re.ASCII)
# A time before this is none: chrony prints the start of 1970 for a clock that was never corrected.
_NEVER = 86400.0
# Readings of two programs one after the other, and the sub-second part that the date may lack.
_AHEAD_S = 2.0
_REFUSED = re.compile(r"^[ \t]*(5[0-9]{2}) (.*)$", re.MULTILINE)
_ERROR_LINE = re.compile(r"\b(error|fatal|failed|cannot|could not)\b", re.IGNORECASE)
# Other reports about a clock that somebody may take for one of the two.
_OTHER_FORMS = tuple(
    (name, re.compile(mark, re.MULTILINE))
    for name, mark in (
        ("timedatectl timesync-status", r"^[ \t]*(?:Poll interval|Root distance|Packet count): "),
        (
            "timedatectl",
            r"^[ \t]*(?:Local time|RTC time|System clock synchronized|NTP synchronized|NTP service): "
            r"|^NTPSynchronized=",
        ),
        ("ntpq -p", r"^[ \t]*remote\s+refid\s+st\s+t\s+when\s+poll\s+reach"),
        ("ntpq -c rv", r"^associd=\d+ status="),
        ("ntpstat", r"^(?:un)?synchroni[sz]ed(?: to |$)"),
        ("chronyc ntpdata", r"^[ \t]*(?:Remote address|Total TX)\s+: "),
        ("chronyc sourcestats", r"^[ \t]*Name/IP Address\s+NP\s+NR"),
        ("chronyc activity", r"^\d+ sources? (?:online|offline)"),
        ("chronyc serverstats", r"^[ \t]*(?:NTP|Command) packets received\s*: "),
        ("chronyc selectdata", r"^[ \t]*S Name/IP Address\s+Auth"),
    )
)
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
    ref_time_s: float | None
    offset_s: float
    root_delay_s: float | None
    root_dispersion_s: float | None
    leap: str


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """One source: state "*" is the selected one; `reach` holds the last 8 polls as bits, `offset_s` the last sample."""

    mode: str
    state: str
    name: str
    stratum: int
    reach: int
    offset_s: float


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


def _refuse_form(text: str) -> None:
    """Raise for a report of another command, naming it: what it says of a clock is not what is judged."""
    form = next((name for name, mark in _OTHER_FORMS if mark.search(text)), None)
    if form is not None:
        raise ChronyError(f"this is {form}, and neither chronyc tracking nor chronyc sources")


def parse_tracking(text: str) -> Tracking:
    """Read either form. Raises ChronyError when a field the verdict needs is missing or unreadable."""
    _refuse_answer(text)
    if not re.search(r"^[ \t]*System time[ \t]+:|^(?:[^,\n]*,){13}[^,\n]*$", text, re.MULTILINE):
        _refuse_form(text)
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
    return Tracking(
        ref_id.upper(), name, int(stratum), _epoch(ref_time), seconds, _float(delay), _float(dispersion), leap
    )


def _epoch(text: str) -> float | None:
    """Return a time as seconds since 1970: chronyc prints it so in CSV, and as UTC for people. None: cannot be read."""
    found = _DATE.fullmatch(text)
    if found and found[1] in _MONTHS:
        day, hour, minute, second, year = (int(found[i]) for i in (2, 3, 4, 5, 6))
        month = _MONTHS.index(found[1]) + 1
        if not 1 <= day <= calendar.monthrange(year, month)[1] or hour > 23 or minute > 59 or second > 60:
            return None
        return float(calendar.timegm((year, month, day, hour, minute, second)))
    return _float(text)


def parse_sources(text: str) -> list[Server]:
    """Read the list of sources in either form. Raises ChronyError for a line that is not one."""
    _refuse_answer(text)
    servers: list[Server] = []
    announced: int | None = None
    for line in text.splitlines():
        stripped = line.strip()
        if announced is None and (count := _COUNT.fullmatch(stripped)):
            # The first: a capture may go on with sourcestats, which announces its lines alike.
            announced = int(count[1])
        if not stripped or set(stripped) == {"="} or stripped.startswith(_LEGEND):
            continue
        cells = [c.strip() for c in stripped.split(",")]
        if len(cells) == 10 and len(cells[0]) == 1 and len(cells[1]) == 1:
            found = _server(cells[0], cells[1], cells[2], cells[3], cells[5], _float(cells[7]))
        else:
            match = _SOURCE.fullmatch(stripped)
            found = _server(match[1], match[2], match[3], match[4], match[6], _span(match[7])) if match else None
        if found is None:
            raise ChronyError(f"a source cannot be read: {_shown(line)}")
        servers.append(found)
    names = [server.name for server in servers if not server.name.endswith(">")]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ChronyError(f"a source is there twice: {_shown(twice[0])}")
    if announced is not None and announced != len(servers):
        raise ChronyError(f"chronyc announces {announced} sources and lists {len(servers)}, the list is not whole")
    return servers


def _span(text: str) -> float:
    number = text.rstrip("nsumhdy")
    return int(number) * _UNITS[text[len(number) :]]


def _server(mode: str, state: str, name: str, stratum: str, reach: str, offset: float | None) -> Server | None:
    if mode not in "^=#" or state not in "*+-?x~" or not name or offset is None:
        return None
    if not re.fullmatch(r"[0-9]{1,2}", stratum) or not re.fullmatch(r"[0-7]{1,3}", reach):
        return None
    return Server(mode, state, name, int(stratum), int(reach, 8), offset)


def is_source_line(line: str) -> bool:
    """Return whether a line belongs to a list of sources (for captures that hold both reports)."""
    stripped = line.strip()
    return (
        bool(re.match(r"[\^=#],?[*+?x~-][,\s]", stripped))
        or stripped.startswith(_LEGEND)
        or (set(stripped) == {"="})
        # The rest of the legend that -v prints.
        or bool(re.match(r"\|+ {3,}|\\(?:\s|$)", stripped))
    )


def is_tracking_line(line: str) -> bool:
    """Return whether a line belongs to a tracking report."""
    return line.count(",") == _CSV_FIELDS - 1 or bool(re.match(r"\s*(?:Reference ID|Leap status)\s+: ", line))


_NTP = (
    "Check the servers in the chrony configuration, the network to them and chronyc sources; chronyc "
    "makestep sets a far-off clock."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a clock is held against. `offset_source` is where the limit of the offset comes from."""

    allowed: Collection[str] = ()
    max_offset_ms: float | None = None
    offset_source: str = ""
    max_stratum: int = 15
    max_ref_age_s: float = 4096.0
    max_root_distance_ms: float = 500.0


def judge(
    tracking: Tracking | None, servers: Sequence[Server] | None, limits: Limits, now: float | None = None
) -> list[Check]:
    """Hold the clock against the limits.

    `tracking` or `servers` None: that report is not part of this capture. `now` is the node's own time of the reading,
    None when the capture does not tell it; the age of the last correction is then not judged.
    """
    checks: list[Check] = []
    if tracking is not None:
        checks += [_leap(tracking), _reference(tracking, limits.max_stratum), *_ref_age(tracking, limits, now)]
    checks += _sources(tracking, servers)
    if limits.allowed:
        checks.append(_servers(tracking, servers, limits.allowed))
    for server in servers or ():
        checks += _each_source(server, limits.allowed)
    checks += _offset(tracking, servers, limits)
    if tracking is not None:
        checks.append(_root_distance(tracking, limits))
    return checks


def _leap(tracking: Tracking) -> Check:
    good = tracking.leap != "Not synchronised"
    reason = "leap status" if good else "the clock follows no server"
    # A coming leap second is announced by a synchronised clock.
    return compare(
        "clock_sync.leap",
        "clock",
        tracking.leap,
        "Normal",
        ok=good,
        limit_source="chrony",
        reason=reason,
        remedy=_NTP,
    )


def _reference(tracking: Tracking, max_stratum: int) -> Check:
    value = f"{tracking.ref_id} ({tracking.ref_name}), stratum {tracking.stratum}"
    reason, good = "reference of the clock", False
    if tracking.ref_id == "00000000":
        reason = "the clock has no reference"
    elif _LOCAL_REFID.fullmatch(tracking.ref_id):
        reason = "the clock follows itself (chrony's local directive) and not a server"
    elif not 1 <= tracking.stratum <= max_stratum:
        reason = f"stratum {tracking.stratum} is outside 1 to {max_stratum}"
    else:
        good = True
    return compare(
        "clock_sync.reference",
        "clock",
        value,
        f"a server, stratum 1-{max_stratum}",
        ok=good,
        limit_source="option max_stratum",
        reason=reason,
        remedy=_NTP,
    )


def _ref_age(tracking: Tracking, limits: Limits, now: float | None) -> list[Check]:
    name, limit, source = "clock_sync.ref_age", limits.max_ref_age_s, "option max_ref_age_s"
    last = tracking.ref_time_s
    if last is not None and last < _NEVER:
        return [Check(name, "clock", "fail", "the clock was never corrected", "never", limit, "s", source, _NTP)]
    if last is None:
        return [unknown(name, "clock", "the time of the last correction cannot be read", _NTP, limit, source)]
    if now is None:
        return []
    age = round(now - last, 1)
    if age < -_AHEAD_S:
        reason = f"the last correction is {-age:g} s in the future of the node's own clock: it was set back since"
        return [unknown(name, "clock", reason, _NTP, limit, source)]
    return [
        compare(
            name,
            "clock",
            max(age, 0.0),
            limit,
            ok=age <= limit,
            unit="s",
            limit_source=source,
            reason="time since the last correction by the reference",
            remedy=_NTP,
        )
    ]


def _root_distance(tracking: Tracking, limits: Limits) -> Check:
    delay, dispersion = tracking.root_delay_s, tracking.root_dispersion_s
    whole = delay is not None and dispersion is not None and delay >= 0 and dispersion >= 0
    distance = round(((delay or 0.0) / 2 + (dispersion or 0.0)) * 1000, 6) if whole else None
    return compare(
        "clock_sync.root_distance",
        "clock",
        distance,
        limits.max_root_distance_ms,
        ok=distance is not None and distance <= limits.max_root_distance_ms,
        unit="ms",
        limit_source="option max_root_distance_ms",
        reason="largest possible error (half the root delay plus the root dispersion)",
        remedy="Use servers that are nearer; look at chronyc ntpdata.",
    )


def _offset(tracking: Tracking | None, servers: Sequence[Server] | None, limits: Limits) -> list[Check]:
    reason = "offset of the system time from the time of the servers"
    if tracking is not None:
        seconds = tracking.offset_s
    else:
        chosen = [s for s in servers or () if s.state == "*"]
        if len(chosen) != 1:
            return []
        seconds, reason = chosen[0].offset_s, "offset of the last sample of the selected source"
    offset_ms = round(abs(seconds) * 1000, 6)
    return [
        compare(
            "clock_sync.offset",
            "clock",
            offset_ms,
            limits.max_offset_ms,
            ok=limits.max_offset_ms is not None and offset_ms <= limits.max_offset_ms,
            unit="ms",
            limit_source=limits.offset_source,
            reason=reason,
            remedy="Wait until chrony has slewed it away, or step it with chronyc makestep before anything serves.",
        )
    ]


def _sources(tracking: Tracking | None, servers: Sequence[Server] | None) -> list[Check]:
    """Judge the selected source. Only the tracking report was captured: it names it."""
    value, reason, good = "none", "no source is selected", False
    if servers is None:
        if tracking is None:
            return []
        if tracking.ref_name or not _LOCAL_REFID.fullmatch(tracking.ref_id):
            value, reason, good = tracking.ref_name or tracking.ref_id, "selected source", True
    elif not servers:
        reason = "chrony has no source at all"
    else:
        chosen = [s for s in servers if s.state == "*"]
        value = ", ".join(f"{s.state}{s.name}" for s in servers)
        if len(chosen) > 1:
            reason = "two sources are selected"
        elif chosen:
            value = f"{chosen[0].name}, reach {chosen[0].reach:o}"
            good = chosen[0].reach != 0
            reason = "selected source" if good else "the selected source did not answer the last 8 polls"
    return [
        compare(
            "clock_sync.source",
            "clock",
            value,
            "one selected" if servers is None else "one selected that answers",
            ok=good,
            limit_source="chrony",
            reason=reason,
            remedy=_NTP,
        )
    ]


def _servers(tracking: Tracking | None, servers: Sequence[Server] | None, allowed: Collection[str]) -> Check:
    listed = ", ".join(sorted(allowed))
    names = [s.name for s in servers or ()]
    if servers is None and tracking is not None and tracking.ref_name:
        names = [tracking.ref_name]
    if not names:
        reason = "no source to compare with the site's list"
        return unknown("clock_sync.servers", "clock", reason, _NTP, listed, "option servers")
    foreign = [n for n in names if not _listed(n, allowed)]
    good = "all sources are servers of this site"
    return compare(
        "clock_sync.servers",
        "clock",
        ", ".join(names),
        listed,
        ok=not foreign,
        limit_source="option servers",
        reason=f"{', '.join(foreign)} is not a server of this site" if foreign else good,
        remedy="Let the chrony role write the configuration, and remove other sources (sourcedir, DHCP).",
    )


def _listed(name: str, allowed: Collection[str]) -> bool:
    """Return whether a source is one of the site's. In the list for people chronyc ends a name that it cut in >."""
    if name.endswith(">") and len(name) > 16:
        return sum(other.startswith(name[:-1]) for other in allowed) == 1
    return name in allowed


def _each_source(server: Server, allowed: Collection[str]) -> list[Check]:
    """Judge what is no reason to hold a node back as long as another source is selected, and worth a look.

    A server the site names has to answer every node: behind a firewall the clocks drift one by one.
    """
    named = bool(allowed) and _listed(server.name, allowed)
    silent: Verdict = "pass" if server.reach else "fail" if named else "warn"
    reach = "it answered none of the last 8 polls" if server.reach == 0 else "the last 8 polls as bits, octal"
    look = "Check the server, and the network and firewall to it."
    odd = {"x": "its time is in error against the other sources", "~": "its time is too variable"}.get(server.state)
    return [
        Check(
            "clock_sync.reach",
            server.name,
            silent,
            reach,
            f"{server.reach:o}",
            "above 0",
            "",
            "option servers" if named else "chrony",
            look if server.reach == 0 else "",
        ),
        Check(
            "clock_sync.agreement",
            server.name,
            "warn" if odd else "pass",
            odd or "chrony can use it",
            server.state,
            "not x or ~",
            "",
            "chrony",
            look if odd else "",
        ),
    ]

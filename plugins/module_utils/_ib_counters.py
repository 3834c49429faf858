# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Error counters of InfiniBand ports: perfquery, the kernel's files, ibqueryerrors, and what they mean. Pure.

Parsing never raises. Two things make a counter lie, and both are judged: the counters of the standard stop at their
largest value (65535, 255, 15), and a port that was reset starts again at 0.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Verdict, unknown

DIAGS = "infiniband-diags error_thresholds"

CHECKS: dict[str, str] = {
    "ib_port.counters": "Whether every error counter of the port could be read and is no baseline that was reset.",
    "ib_port.symbol_errors": (
        "SymbolErrorCounter: over 10 since the last clear (infiniband-diags error_thresholds), or growing faster than "
        "10 an hour (bit error rate 1e-14 at 400 Gb/s; cables are tested to 1e-15, the standard asks for 1e-12)."
    ),
    "ib_port.link_error_recovery": (
        "LinkErrorRecoveryCounter: over 10 since the last clear (infiniband-diags error_thresholds), or growing faster "
        "than 1 an hour (estimate)."
    ),
    "ib_port.link_downed": (
        "LinkDownedCounter: over 1 since the last clear, as a switch that restarts once is no defect (estimate), or "
        "growing at all, as a link that drops while it is watched is bad."
    ),
    "ib_port.rcv_errors": (
        "PortRcvErrors: over 10 since the last clear (infiniband-diags error_thresholds), or growing faster than 5 an "
        "hour (estimate)."
    ),
    "ib_port.rcv_remote_physical_errors": (
        "PortRcvRemotePhysicalErrors, packets another link broke: over 100 since the last clear (infiniband-diags "
        "error_thresholds), or growing faster than 5 an hour (estimate)."
    ),
    "ib_port.xmit_discards": (
        "PortXmitDiscards: over 100 since the last clear (infiniband-diags error_thresholds), or growing faster than "
        "200 an hour (UFM's default threshold)."
    ),
    "ib_port.local_link_integrity": (
        "LocalLinkIntegrityErrors: over 10 since the last clear (infiniband-diags error_thresholds), or growing faster "
        "than 5 an hour (estimate)."
    ),
    "ib_port.buffer_overrun": (
        "ExcessiveBufferOverrunErrors: over 10 since the last clear (infiniband-diags error_thresholds), or growing "
        "faster than 100 an hour (UFM's default threshold)."
    ),
    "ib_port.vl15_dropped": (
        "VL15Dropped, management packets lost: over 100 since the last clear (infiniband-diags error_thresholds), or "
        "growing faster than 50 an hour (UFM's default threshold)."
    ),
    "ib_port.fabric_report": (
        "Whether ibqueryerrors ended with its summary, listed as many ports as the summary counts, and asked every "
        "port it found."
    ),
    "ib_port.fabric_path": "A path ibqueryerrors got no answer over; the ports behind it are not in the report: warn.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Counter:
    """One judged counter. `bits` is its width in the standard's PortCounters; it stops at its largest value."""

    name: str
    check: str
    bits: int
    limit: int
    source: str
    per_hour: int
    remedy: str

    @property
    def most(self) -> int:
        """The value at which the counter stops counting."""
        return (1 << self.bits) - 1


_OPTION = "option counter_limits"
_OLD = (
    "If the cause is known and past, clear the counters (perfquery -C HCA -P PORT -R), or raise option counter_limit, "
    "counter_limits for this counter alone."
)
_CABLE = "Clean or replace the cable or transceiver, clear the counters (perfquery -R) and measure again."
_CONGESTED = "Look for congestion and for a port that is not Active on the way; clear the counters and measure again."

COUNTERS: tuple[Counter, ...] = (
    Counter("SymbolErrorCounter", "ib_port.symbol_errors", 16, 10, DIAGS, 10, _CABLE),
    Counter("LinkErrorRecoveryCounter", "ib_port.link_error_recovery", 8, 10, DIAGS, 1, _CABLE),
    Counter(
        "LinkDownedCounter",
        "ib_port.link_downed",
        8,
        1,
        "estimate: a switch may have been restarted once",
        0,
        "See whether the switch was restarted (its uptime, the other nodes of this rail); else clean or replace the "
        "cable or transceiver.",
    ),
    Counter("PortRcvErrors", "ib_port.rcv_errors", 16, 10, DIAGS, 5, _CABLE),
    Counter(
        "PortRcvRemotePhysicalErrors",
        "ib_port.rcv_remote_physical_errors",
        16,
        100,
        DIAGS,
        5,
        "Another link on the way breaks packets: find the port with symbol errors with ibqueryerrors.",
    ),
    Counter("PortXmitDiscards", "ib_port.xmit_discards", 16, 100, DIAGS, 200, _CONGESTED),
    Counter("LocalLinkIntegrityErrors", "ib_port.local_link_integrity", 4, 10, DIAGS, 5, _CABLE),
    Counter("ExcessiveBufferOverrunErrors", "ib_port.buffer_overrun", 4, 10, DIAGS, 100, _CABLE),
    Counter(
        "VL15Dropped",
        "ib_port.vl15_dropped",
        16,
        100,
        DIAGS,
        50,
        "The port was flooded with management packets: look for two masters or a tool that scans the fabric.",
    ),
)
BY_NAME: Mapping[str, Counter] = {c.name: c for c in COUNTERS}
# Counted by right on a healthy fabric; shown, not judged.
INFORMATION: tuple[str, ...] = (
    "PortXmitWait",
    "PortRcvSwitchRelayErrors",
    "PortXmitConstraintErrors",
    "PortRcvConstraintErrors",
    "QP1Dropped",
)
# Names of infiniband-diags before 1.5, and of the kernel's files.
_ALIASES: Mapping[str, str] = {
    "SymbolErrors": "SymbolErrorCounter",
    "LinkRecovers": "LinkErrorRecoveryCounter",
    "LinkDowned": "LinkDownedCounter",
    "RcvErrors": "PortRcvErrors",
    "RcvRemotePhysErrors": "PortRcvRemotePhysicalErrors",
    "RcvSwRelayErrors": "PortRcvSwitchRelayErrors",
    "XmtDiscards": "PortXmitDiscards",
    "PortXmtDiscards": "PortXmitDiscards",
    "XmtConstraintErrors": "PortXmitConstraintErrors",
    "RcvConstraintErrors": "PortRcvConstraintErrors",
    "LinkIntegrityErrors": "LocalLinkIntegrityErrors",
    "ExcBufOverrunErrors": "ExcessiveBufferOverrunErrors",
    "XmtWait": "PortXmitWait",
    "symbol_error": "SymbolErrorCounter",
    "link_error_recovery": "LinkErrorRecoveryCounter",
    "link_downed": "LinkDownedCounter",
    "port_rcv_errors": "PortRcvErrors",
    "port_rcv_remote_physical_errors": "PortRcvRemotePhysicalErrors",
    "port_rcv_switch_relay_errors": "PortRcvSwitchRelayErrors",
    "port_xmit_discards": "PortXmitDiscards",
    "port_xmit_constraint_errors": "PortXmitConstraintErrors",
    "port_rcv_constraint_errors": "PortRcvConstraintErrors",
    "local_link_integrity_errors": "LocalLinkIntegrityErrors",
    "excessive_buffer_overrun_errors": "ExcessiveBufferOverrunErrors",
    "VL15_dropped": "VL15Dropped",
    "port_xmit_wait": "PortXmitWait",
}
_KNOWN = frozenset(BY_NAME) | frozenset(INFORMATION)

_NUMBER = re.compile(r"[0-9]{1,20}")
_HEADER = re.compile(
    r"# Port (extended )?counters:\s*(?:DR path slid \S+ dlid \S+ \S+|Lid ([0-9]{1,6})) port ([0-9]{1,3})\b.*"
)
_DOTTED = re.compile(r"([A-Za-z][A-Za-z0-9_]*):\.*\s*(\S*)")
_SYSFS = re.compile(
    r"/sys/class/(?:net/[^/\s]+/device/)?infiniband/([A-Za-z0-9][A-Za-z0-9_.-]*)/ports/([0-9]{1,3})/"
    r"(counters|counters_ext|hw_counters)/([A-Za-z0-9_]+)\s*[:=]\s*(.*)"
)


@dataclasses.dataclass(frozen=True, slots=True)
class PortCounters:
    """The counters of one port. `wide` tells that they are of 64 bits, which no port fills."""

    lid: int | None
    port: int
    values: dict[str, int]
    wide: bool
    problems: tuple[str, ...] = ()


def shown(line: str) -> str:
    """Return a line for people: printable, not endless."""
    text = "".join(c if c.isprintable() else " " for c in line.strip())
    return text if len(text) <= 160 else f"{text[:160]}..."


_TYPED = re.compile(
    r"(?:\[[^\]]{1,80}\]|[\w.-]{1,40}@[\w.-]{1,80}(?::[^#$]{0,80})?)?\s*[#$]\s*(?:sudo\s+)?(?:/\S{1,60}/)?"
    r"(?:ibstat|ibstatus|ibv_devinfo|perfquery|ibqueryerrors|iblinkinfo|ibcheckerrors)(?:\s.{0,120})?"
)


def typed(line: str) -> bool:
    """Return whether a line of a capture is the prompt with the command that was typed, and no output of a tool."""
    return _TYPED.fullmatch(line.strip()) is not None


def canonical(name: str) -> str:
    """Return a counter's name in the standard, whatever tool named it."""
    return _ALIASES.get(name, name)


def parse_perfquery(text: str) -> tuple[list[PortCounters], list[str]]:
    """Read the output of `perfquery` or `perfquery -x`, of one port or of many, and the lines that are not of it."""
    ports: list[PortCounters] = []
    problems: list[str] = []
    values: dict[str, int] | None = None
    bad: list[str] = []
    seen: set[str] = set()

    def finish(lid: int | None, port: int, wide: bool) -> None:
        if values is not None:
            ports.append(PortCounters(lid, port, values, wide, tuple(bad)))

    lid, port, wide = None, 0, False
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or typed(line):
            continue
        if match := _HEADER.fullmatch(line):
            finish(lid, port, wide)
            values, bad, seen = {}, [], set()
            lid = int(match[2]) if match[2] else None
            port, wide = int(match[3]), match[1] is not None
        elif values is not None and (match := _DOTTED.fullmatch(line)):
            name = canonical(match[1])
            if name not in _KNOWN:
                continue
            if not _NUMBER.fullmatch(match[2]):
                bad.append(f"line {number} cannot be read: {shown(line)}")
            elif name in seen:
                bad.append(f"line {number} gives {name} a second time: {shown(line)}")
                values.pop(name, None)
            else:
                values[name] = int(match[2])
            seen.add(name)
        else:
            problems.append(f"line {number} cannot be read: {shown(line)}")
    finish(lid, port, wide)
    return ports, problems


def parse_sysfs(text: str) -> tuple[dict[tuple[str, int], PortCounters], list[str]]:
    """Read `file:value` lines of /sys/class/infiniband/*/ports/*/counters, by HCA and port."""
    found: dict[tuple[str, int], PortCounters] = {}
    problems: list[str] = []
    seen: set[tuple[str, int, str]] = set()
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line:
            continue
        match = _SYSFS.fullmatch(line)
        if match is None:
            problems.append(f"line {number} cannot be read: {shown(line)}")
            continue
        key, name, value = (match[1], int(match[2])), canonical(match[4]), match[5].strip()
        entry = found.setdefault(key, PortCounters(None, key[1], {}, False))
        if match[3] != "counters" or name not in _KNOWN:
            continue
        if not _NUMBER.fullmatch(value):
            # The kernel's files of a port without the counter say N/A.
            problems.append(f"line {number} cannot be read: {shown(line)}")
        elif (*key, name) in seen:
            # Which of the two is true is not known, so neither counts.
            problems.append(f"line {number} gives {name} a second time: {shown(line)}")
            entry.values.pop(name, None)
        else:
            entry.values[name] = int(value)
        seen.add((*key, name))
    return found, problems


@dataclasses.dataclass(frozen=True, slots=True)
class Baseline:
    """An earlier reading: the values then, and the seconds since."""

    values: Mapping[str, int]
    seconds: float
    source: str


LONG_S = 600.0
"""From this length on a baseline says more of a link than what its counters gathered before."""


@dataclasses.dataclass(frozen=True, slots=True)
class Allowed:
    """Limits since the last clear that take the place of a counter's own: of every counter, and of single ones."""

    every: int | None = None
    single: Mapping[str, int] = dataclasses.field(default_factory=dict)

    def of(self, counter: Counter) -> tuple[int, str]:
        """Return the limit of a counter and where it comes from."""
        if counter.name in self.single:
            return self.single[counter.name], _OPTION
        return (counter.limit, counter.source) if self.every is None else (self.every, "option counter_limit")


OWN = Allowed()


def judge_port(subject: str, port: PortCounters, baseline: Baseline | None, allowed: Allowed = OWN) -> list[Check]:
    """Judge every counter of a port: how many errors it has gathered, and how fast they come."""
    checks: list[Check] = [
        unknown("ib_port.counters", subject, problem, "Read the counters by hand with perfquery.")
        for problem in port.problems
    ]
    missing = [c.name for c in COUNTERS if c.name not in port.values]
    if missing:
        reason = f"no line for {', '.join(missing)}"
        checks.append(unknown("ib_port.counters", subject, reason, "Read the counters by hand with perfquery."))
    if baseline is not None:
        lost = [n for n, v in baseline.values.items() if n in port.values and port.values[n] < v]
        if lost:
            name = lost[0]
            reason = (
                f"{name} fell from {baseline.values[name]} to {port.values[name]}: the counters were reset since "
                f"{baseline.source}, so this reading is the new baseline"
            )
            checks.append(
                unknown("ib_port.counters", subject, reason, "Measure again with this run's evidence as before.")
            )
            baseline = None
    for counter in COUNTERS:
        if counter.name in port.values:
            checks.append(_judge(subject, counter, port.values[counter.name], port.wide, baseline, allowed))
    return checks


def _judge(
    subject: str, counter: Counter, value: int, wide: bool, baseline: Baseline | None, allowed: Allowed
) -> Check:
    most, source = allowed.of(counter)

    def check(verdict: Verdict, reason: str, measured: int = value, against: int = most, why: str = source) -> Check:
        remedy = "" if verdict == "pass" else counter.remedy
        return Check(counter.check, subject, verdict, reason, measured, against, "", why, remedy)

    if not wide and value == counter.most:
        reason = f"{counter.name} is saturated: it stops at {value}, so nobody knows how many errors there were"
        remedy = "Clear the counters (perfquery -R) before a delta is measured, then see to the link."
        return Check(counter.check, subject, "fail", reason, value, most, "", source, remedy)
    grown = None if baseline is None or counter.name not in baseline.values else value - baseline.values[counter.name]
    if baseline is not None and grown is not None:
        hours = baseline.seconds / 3600
        during = f"{counter.name} grew by {grown} in {baseline.seconds:g} s"
        if grown > counter.per_hour * hours:
            rate = "per hour, docs/thresholds.md"
            if grown == 1 and counter.per_hour > 0:
                return check("warn", f"{during}: one event is too few for a rate", grown, counter.per_hour, rate)
            return check("fail", f"{during}, which is {grown / hours:.3g} an hour", grown, counter.per_hour, rate)
        if baseline.seconds >= LONG_S:
            if value - grown > most:
                reason = f"{counter.name} stood at {value - grown} in {baseline.source} and grew by {grown} since"
                return check("warn", reason)
            return check("pass", during)
    if value > most:
        past = check("fail", f"{counter.name} since it was last cleared")
        return dataclasses.replace(past, remedy=f"{counter.remedy} {_OLD}")
    if value:
        return check("warn", f"{counter.name} since it was last cleared, below the limit; measure its rate")
    return check("pass", f"{counter.name} since it was last cleared")


# --- ibqueryerrors

_ERRORS_FOR = re.compile(r'Errors for (?:(0x[0-9a-fA-F]{1,16}) )?"(.*)"')
_GUID_LINE = re.compile(r"GUID 0x([0-9a-fA-F]{1,16}) port (ALL|[0-9]{1,3}):\s*((?:\[[^\[\]]*\]\s*)*)")
_CELL = re.compile(r"\[([A-Za-z][A-Za-z0-9_]*) == ([0-9]{1,20})(?: \([^()]*\))?\]")
_SUMMARY = re.compile(r"## Summary: ([0-9]{1,7}) nodes checked, ([0-9]{1,7}) bad nodes found")
_PORTS = re.compile(r"## +([0-9]{1,7}) ports checked, ([0-9]{1,7}) ports have errors beyond threshold")
_PMA = re.compile(r"## +([0-9]{1,7}) PMA query failures")
_NO_ANSWER = re.compile(
    r"timed? ?-?out|bad status|recv failed|_do_madrpc|query failed|Connection refused", re.IGNORECASE
)
_OLD_WARNING = re.compile(
    r"#warn: counter ([A-Za-z0-9]+) = ([0-9]{1,20})\s*\(threshold [0-9]+\)(?: lid ([0-9]{1,6}) port (\w+))?"
)
_OLD_FAILED = re.compile(r"Error check on lid [0-9]{1,6} \(.*\) port \w+:\s+FAILED\s*")


@dataclasses.dataclass(frozen=True, slots=True)
class FabricReport:
    """What ibqueryerrors says. Ports by name for people; None is a number the summary did not give."""

    ports: dict[str, PortCounters]
    nodes_checked: int | None
    ports_checked: int | None
    bad_nodes: int | None
    bad_ports: int | None
    nodes_listed: int
    ports_listed: int
    unanswered: tuple[str, ...]
    problems: tuple[str, ...]


def parse_ibqueryerrors(stdout: str, stderr: str = "") -> FabricReport:
    """Read the report. The two streams are read apart; a line of no answer is also known in the middle of a capture."""
    ports: dict[str, PortCounters] = {}
    unanswered: list[str] = []
    problems: list[str] = []
    numbers: dict[str, int] = {}
    node = ""
    nodes_listed = ports_listed = 0
    old = False
    for number, raw in enumerate(stdout.splitlines(), 1):
        line = raw.strip()
        if not line or typed(line) or line.startswith(("Link info:", "## Suppressed:", "## Thresholds:")):
            continue
        if match := _ERRORS_FOR.fullmatch(line):
            node = match[2]
            nodes_listed += 1
        elif match := _GUID_LINE.fullmatch(line):
            cells = match[3].strip()
            read = _CELL.findall(cells)
            if "".join(_CELL.sub("", cells).split()) or not read:
                problems.append(f"line {number} cannot be read: {shown(line)}")
            elif match[2] != "ALL":
                ports_listed += 1
                subject = f"{node or 'GUID 0x' + match[1]} port {match[2]}"
                values = {canonical(name): int(value) for name, value in read}
                if subject in ports or len(values) != len(read):
                    problems.append(f"line {number} repeats a port or counter: {shown(line)}")
                ports.setdefault(subject, PortCounters(None, int(match[2]), values, False))
        elif match := _SUMMARY.fullmatch(line):
            numbers |= {"nodes": int(match[1]), "bad_nodes": int(match[2])}
        elif match := _PORTS.fullmatch(line):
            numbers |= {"ports": int(match[1]), "bad_ports": int(match[2])}
        elif match := _PMA.fullmatch(line):
            problems.append(f"{match[1]} ports did not give their counters (PMA query failures)")
        elif match := _OLD_WARNING.fullmatch(line):
            old = True
            if match[4] is not None and match[4].isdigit():
                subject = f"lid {match[3]} port {match[4]}"
                entry = ports.setdefault(subject, PortCounters(int(match[3]), int(match[4]), {}, False))
                entry.values[canonical(match[1])] = int(match[2])
        elif _OLD_FAILED.fullmatch(line) or (old and line.startswith("# Checked ")):
            continue
        elif _NO_ANSWER.search(line):
            unanswered.append(shown(line))
        else:
            problems.append(f"line {number} cannot be read: {shown(line)}")
    for raw in stderr.splitlines():
        if raw.strip():
            unanswered.append(shown(raw))
    if old:
        nodes_listed, ports_listed = numbers.get("bad_nodes", 0), len(ports)
    return FabricReport(
        ports,
        numbers.get("nodes"),
        numbers.get("ports"),
        numbers.get("bad_nodes"),
        numbers.get("bad_ports"),
        nodes_listed,
        ports_listed,
        tuple(unanswered),
        tuple(problems),
    )


def judge_fabric(report: FabricReport, allowed: Allowed = OWN) -> list[Check]:
    """Judge the report as a whole, and each port it lists."""
    name, tool = "ib_port.fabric_report", "ibqueryerrors"
    again = "Run ibqueryerrors again from a node whose port is Active."
    checks = [unknown(name, tool, problem, again) for problem in report.problems]
    if report.nodes_checked is None or report.ports_checked is None:
        reason = "there is no summary at its end, so nobody knows how many ports were asked"
        if report.unanswered:
            reason += f" (it says: {report.unanswered[0]})"
        checks.append(unknown(name, tool, reason, again))
    elif report.nodes_checked == 0 or report.ports_checked == 0:
        checks.append(unknown(name, tool, "it checked no node or no port", again))
    elif report.ports_listed != report.bad_ports or report.nodes_listed != report.bad_nodes:
        reason = (
            f"its summary counts {report.bad_nodes} nodes and {report.bad_ports} ports with errors, it lists "
            f"{report.nodes_listed} and {report.ports_listed}"
        )
        checks.append(unknown(name, tool, reason, again))
    elif not report.problems:
        reason = f"every port of {report.nodes_checked} nodes was asked"
        checks.append(Check(name, tool, "pass", reason, report.ports_checked, None, "ports", "its own summary"))
    whole = report.nodes_checked is not None
    for line in dict.fromkeys(report.unanswered if whole else ()):
        reason = "no answer over this path, the ports behind it are not in the report"
        checks.append(Check("ib_port.fabric_path", tool, "warn", reason, line, "an answer", "", "ibqueryerrors", again))
    for subject, port in report.ports.items():
        for counter in COUNTERS:
            if counter.name in port.values:
                checks.append(_judge(subject, counter, port.values[counter.name], port.wide, None, allowed))
    return checks


def information(port: PortCounters) -> dict[str, int]:
    """Return every counter that was read, by its name in the standard."""
    return dict(port.values)


def baseline_values(stored: object) -> dict[str, dict[str, int]]:
    """Return the counters of an earlier run by port, of the key `counters` in its evidence; {} when there are none."""
    if not isinstance(stored, Mapping):
        return {}
    ports: dict[str, dict[str, int]] = {}
    for subject, values in stored.items():
        if isinstance(subject, str) and isinstance(values, Mapping):
            ports[subject] = {
                name: value
                for name, value in values.items()
                if isinstance(name, str) and isinstance(value, int) and not isinstance(value, bool) and value >= 0
            }
    return ports


def subjects(ports: Iterable[PortCounters], lids: Mapping[int, str]) -> Sequence[tuple[str, PortCounters]]:
    """Return the ports with a name for people: the HCA with that LID, or the LID itself."""
    named = []
    for index, port in enumerate(ports):
        number = "local" if port.lid is None else f"lid {port.lid}"
        named.append((lids.get(port.lid or 0, f"{number} port {port.port}"), port))
        if any(name == named[-1][0] for name, _port in named[:-1]):
            named[-1] = (f"{named[-1][0]} (report {index + 1})", port)
    return named

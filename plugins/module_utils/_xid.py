# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Errors the GPU driver wrote to the kernel log, and what has to be done about each. Pure functions.

A log is read in any of the forms `dmesg`, `journalctl` and syslog write. Only the running kernel's lines count: those
after the last "Linux version". A log that does not reach back to that line cannot show that there was no error.
"""

from __future__ import annotations

import calendar
import dataclasses
import functools
import io
import json
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Verdict, unknown

CHECKS: dict[str, str] = {
    "xid.log": "The kernel log reaches back to the start of this boot, or as far as option since asks, or to what the "
    "run kept by option last had read, without a gap; a log that does not has not shown that there was no error.",
    "xid.event": "Every Xid of a GPU is held against the action table, which follows NVIDIA's Xid catalog; "
    "an Xid that is not in the table is unknown.",
    "xid.switch": "Every SXid of an NVSwitch is judged by the driver's own word Fatal or Non-fatal, as NVIDIA's "
    "Fabric Manager guide has them.",
    "xid.driver": "Lines of the driver about a GPU that is gone or cannot be initialised, which carry no Xid.",
    "xid.growth": "Errors that were not there in the evidence named by option before: the burn-in must bring none; "
    "those that ask for the application's restart only warn.",
    "xid.output": "Every line that mentions an Xid can be read.",
}

Action = Literal[
    "none", "follow the other Xid", "restart the application", "reset the GPU", "reboot the node", "drain and RMA"
]

CATALOG = "NVIDIA Xid catalog (docs.nvidia.com/deploy/xid-errors, r580 to r590)"
_STRICTER = CATALOG + ", stricter here: "
FABRIC_GUIDE = "NVIDIA Fabric Manager guide"

_REMEDY: dict[Action, str] = {
    "none": "",
    "follow the other Xid": "Look for the other Xid of the same second; alone, restart the application.",
    "restart the application": "Restart the application. If it comes with a known good one too, drain the node.",
    "reset the GPU": "Drain the board's units, reset the GPU (nvidia-smi --gpu-reset) or reboot, and gate again. After "
    "a reset the Xid stays in the log: it blocks until Xid 154 says None, a reboot, or an option since (role "
    "node_gate: node_gate_xid_since) shorter than the time since the repair.",
    "reboot the node": "Drain the node, power-cycle it, look at power and seating; RMA the GPU when it comes back.",
    "drain and RMA": "Drain the node, run the field diagnostic and replace the part; a reset does not mend it.",
}
_VERDICT: dict[Action, Verdict] = {
    "none": "pass",
    "follow the other Xid": "warn",
    "restart the application": "warn",
    "reset the GPU": "fail",
    "reboot the node": "fail",
    "drain and RMA": "fail",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One Xid of the table: what it means, what is to be done, and who says so."""

    meaning: str
    action: Action
    source: str = CATALOG

    @property
    def verdict(self) -> Verdict:
        """Whether a node with this Xid may join."""
        return _VERDICT[self.action]


def _table() -> dict[int, Entry]:
    """Return the action table. docs/xid.md is the same for people, and a test compares them."""
    table: dict[int, Entry] = {}

    def add(action: Action, meanings: Mapping[int, str], source: str = CATALOG) -> None:
        table.update({xid: Entry(meaning, action, source) for xid, meaning in meanings.items()})

    def group(action: Action, xids: Sequence[int], meaning: str) -> None:
        add(action, dict.fromkeys(xids, meaning))

    add("none", {14: "test error", 106: "SMBPBI test message", 107: "silent SMBPBI test message"})
    add("follow the other Xid", {45: "channels are removed because of an earlier error"})
    add(
        "restart the application",
        {
            8: "GPU stopped processing",
            11: "invalid push buffer",
            13: "graphics engine exception, mostly an illegal address of the application",
            25: "illegal push buffer",
            31: "page fault, mostly an illegal address of the application",
            32: "corrupted push buffer",
            37: "firmware method not implemented",
            38: "watchdog of the context switch firmware",
            43: "the application's channel was reset",
            44: "fault during a context switch",
            60: "video processor exception",
            66: "illegal register access by the driver",
            67: "illegal access by the driver",
            68: "NVDEC exception",
            69: "graphics class error",
            78: "vGPU start error",
            80: "corrupted data sent to the GPU",
            86: "optical flow exception",
            93: "InfoROM wear limit",
            137: "NVLink privilege error, mostly an illegal peer address of the application",
            139: "optical flow exception",
            141: "CUDA fast path error",
            160: "channel retirement",
            162: "power smoothing engaged",
            163: "power smoothing disengaged",
            164: "power smoothing circuit near its end of life",
        },
    )
    group(
        "restart the application", (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)), "copy engine exception"
    )
    group("restart the application", (83, 84, 88, 89, 96, 97, 98), "NVDEC exception")
    group("restart the application", (82, *range(99, 106)), "NVJPG exception")
    add(
        "reset the GPU",
        {
            46: "GPU stopped processing",
            48: "uncorrectable double bit ECC error",
            62: "internal micro-controller halted",
            95: "uncontained memory error",
            109: "context switch timeout",
            110: "security fault",
            119: "GSP firmware did not answer",
            120: "GSP firmware error",
            136: "NVLink training failed",
            140: "unrecovered ECC error",
            143: "GPU initialisation failed",
            155: "NVLink error defined by software",
            156: "resource retirement",
            158: "fatal timeout",
            169: "internal micro-controller halted",
            171: "uncorrectable DRAM error",
            172: "uncorrectable SRAM error",
        },
    )
    add(
        "reset the GPU",
        {63: "a memory row is to be remapped at the next reset"},
        _STRICTER + "a pending remapping blocks until the reset (aws/eks-node-monitoring-agent 245)",
    )
    add(
        "reset the GPU",
        {94: "contained memory error"},
        _STRICTER + "it came with 48 and 63 on a failing HBM stack (wtdcode/vllm-backport 62)",
    )
    add("reset the GPU", {74: "NVLink error"})
    add(
        "reset the GPU",
        {
            144: "NVLink SAW error",
            145: "NVLink RLW error",
            146: "NVLink TLW error",
            147: "NVLink TREX error",
            148: "NVLink NVLPW error",
            149: "NVLink NETIR error",
            150: "NVLink MSE error",
        },
        _STRICTER + "non-fatal ones too, links were lost after them (NVIDIA/open-gpu-kernel-modules 1150, 1355)",
    )
    add("reboot the node", {79: "GPU has fallen off the bus", 151: "key rotation error", 167: "PCIe fatal timeout"})
    add(
        "drain and RMA",
        {
            54: "auxiliary power is not connected",
            64: "row remapping failed, no spare row is left",
            92: "high rate of single bit ECC errors",
            121: "C2C link error",
            142: "NVENC error",
            157: "resource retirement failed",
            161: "channel retirement failed",
            165: "power smoothing circuit at its end of life",
            166: "unencrypted traffic on a secure NVLink",
            168: "GPU memory is smaller than it should be",
            170: "secure NVLink interrupt",
        },
    )
    return table


TABLE: dict[int, Entry] = _table()
RECOVERY_CHANGED = 154
"""The driver's own recovery action: what it says counts, not a table."""

_RECOVERY: tuple[tuple[str, Action], ...] = (
    ("reboot", "reboot the node"),
    ("drain", "drain and RMA"),
    ("reset", "reset the GPU"),
    ("flr", "reset the GPU"),
)
OVERLAP = 60.0
"""Seconds two logs must have in common: a line's time in the journal may be later than in the ring buffer."""
SWITCH_FATAL: dict[int, str] = {
    12028: "traffic of the GPU behind the link stalls although the driver calls it non-fatal"
}
"""SXids that are not taken at the driver's word Non-fatal."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """One line of a log: seconds since boot and since 1970 where the line tells, and the kernel's words."""

    raw: str
    text: str
    uptime: float | None = None
    epoch: float | None = None
    time: str = ""
    kernel: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """One Xid or SXid. `pci` is domain:bus:device in lower case, `switch` the NVSwitch's number."""

    xid: int
    pci: str
    time: str
    text: str
    line: str
    switch: int | None = None
    uptime: float | None = None
    epoch: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Log:
    """What the running kernel's part of a log says. `reaches_boot`: it begins with that kernel's first line."""

    events: tuple[Event, ...]
    driver: tuple[Line, ...]
    unreadable: tuple[Line, ...]
    gaps: tuple[Line, ...]
    lines: int
    kernel_lines: int
    reaches_boot: bool
    driver_seen: bool
    first: Line | None
    last: Line | None
    whole: bool

    def covers(self, since: float | None, now: float | None, read_until: float | None = None) -> bool:
        """Tell whether the log reaches back to the boot, or `since` seconds; `now` is the node's uptime.

        `read_until`: seconds after the boot up to which an earlier run had read.
        """
        begin = self.first.uptime if self.first is not None else None
        if read_until is not None and begin is not None and begin <= read_until - OVERLAP:
            return True
        if self.reaches_boot or since is None or self.first is None or self.last is None:
            return self.reaches_boot
        age = _age(self.first.uptime, self.first.epoch, self.last, now)
        return age is not None and age >= since


_PCI = r"(?:PCI:)?([0-9A-Fa-f]{1,8}:[0-9A-Fa-f]{1,4}(?::[0-9A-Fa-f]{1,2})?)(?:[.:][0-9A-Fa-f])?"
_XID = re.compile(r"NVRM: Xid \(" + _PCI + r"(?:\s[^)]{0,200})?\): ([0-9]{1,5})(?:[,:]\s*(.*)|\s*)$")
_SXID = re.compile(r"nvidia-nvswitch([0-9]{1,3}):? SXid \(" + _PCI + r"\): ([0-9]{1,6})(?:[,:]\s*(.*)|\s*)$")
# Words after other words are looked for one after another: in one expression a line of a megabyte takes hours.
_MENTIONS = re.compile(r"\bS?Xid\b\s*[(:=]")
_XID_WORD = re.compile(r"\bXid\b")
_NVRM = re.compile(r"NVRM:", re.IGNORECASE)
_LOST = re.compile(
    r"(fallen off the bus|RmInitAdapter failed|rm_init_adapter failed|probe routine failed|"
    r"GPU lost from the bus|GPU is lost)",
    re.IGNORECASE,
)
_SUPPRESSED = re.compile(r"\b[0-9]+ (callbacks|messages) suppressed", re.IGNORECASE)
_OURS = re.compile(r"\b(nvidia[a-z0-9_-]*|NVRM|Xid)\b", re.IGNORECASE)
_GAP = re.compile(
    r"\bMissed [0-9]+ kernel messages|\bSuppressed [0-9]+ messages from kernel\b",
    re.IGNORECASE,
)
_RECOVERY_TEXT = re.compile(r"recovery action changed from (.{0,100}) to (0x[0-9A-Fa-f]{1,16}) \(([^)]{0,100})\)")
_LINUX = re.compile(r"Linux version [0-9]")
_BOOT = re.compile(r"-- (Re)?[Bb]oot\b.*--")

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_CALLER = r"(?:\s*\[\s*[TC][0-9]+\])?"
_LEVEL = r"(?:<[0-9]{1,3}>|[a-z]+ *: *[a-z]+ *: )?"
_MONOTONIC = re.compile(_LEVEL + r"\[\s*([0-9]{1,10}\.[0-9]{1,9})(?:\s*<[^>]*>)?\]" + _CALLER + r"\s?(.*)")
_RELATIVE = re.compile(_LEVEL + r"\[(\s*\+[0-9]+\.[0-9]+|[A-Z][a-z]{2} ?[0-9]{1,2} [0-9]{2}:[0-9]{2})\]\s?(.*)")
_UNIX = re.compile(r"([0-9]{9,11}\.[0-9]{1,6}) (\S+ \S.*)")
_CTIME = re.compile(_LEVEL + r"\[([A-Z][a-z]{2} [A-Z][a-z]{2} +[0-9]{1,2} [0-9:]{8} [0-9]{4})\]" + _CALLER + r"\s?(.*)")
_ISO = re.compile(
    _LEVEL + r"(?:[A-Z][a-z]{2} )?([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(?:[.,]([0-9]{1,9}))?"
    r"(Z|[+-][0-9]{2}:?[0-9]{2})?\s(.*)"
)
# "kern: warning: [2026-04-22T21:30:51.795769959Z]: text", with the node before it: talosctl dmesg.
_TALOS = re.compile(r"(?:\S+: )?kern: *[a-z]+: \[([0-9-]{10})T([0-9:]{8})(?:\.[0-9]{1,9})?Z\]: (.*)")
_SYSLOG = re.compile(r"(\S{1,12} +[0-9]{1,2} [0-9]{2}:[0-9]{2}:[0-9]{2})(?:\.[0-9]+)? (\S+ .*)")
_KMSG = re.compile(r"[0-9]{1,4},[0-9]+,([0-9]+),[^;]*;(.*)")
_HOST_TAG = re.compile(r"(?:\S+ ){0,2}kernel:\s?(.*)")
_STAMP = re.compile(r"\[\s*([0-9]{1,10}\.[0-9]{1,9})\]" + _CALLER + r"\s?(.*)")


def parse(text: str) -> Log:
    """Read a kernel log in any of its forms; never raises."""
    log = _Reading()
    # One line after another: a log of 64 MiB may have 30 million of them.
    for piece in io.StringIO(text):
        for raw in piece.splitlines():
            if not raw.strip():
                continue
            line = _line(raw)
            if _LINUX.match(line.text) or (line.text.startswith("-- ") and _BOOT.fullmatch(line.text)):
                log = _Reading()
            log.take(line)
    start = log.start
    return Log(
        events=tuple(log.events),
        driver=tuple(log.driver),
        unreadable=tuple(log.unreadable),
        gaps=tuple(log.gaps),
        lines=log.lines,
        kernel_lines=log.kernel_lines,
        reaches_boot=start is not None
        and bool(_LINUX.match(start.text) or (start.uptime is not None and start.uptime < 0.5)),
        driver_seen=log.driver_seen,
        first=log.first,
        last=log.last,
        whole=not text or text.endswith("\n"),
    )


@dataclasses.dataclass(slots=True)
class _Reading:
    """What was read since the last start of a kernel."""

    events: list[Event] = dataclasses.field(default_factory=list)
    driver: list[Line] = dataclasses.field(default_factory=list)
    unreadable: list[Line] = dataclasses.field(default_factory=list)
    gaps: list[Line] = dataclasses.field(default_factory=list)
    lines: int = 0
    kernel_lines: int = 0
    driver_seen: bool = False
    start: Line | None = None
    first: Line | None = None
    last: Line | None = None

    def take(self, line: Line) -> None:
        """Take a line."""
        text = line.text
        self.lines += 1
        if self.start is None and not text.startswith("-- "):
            self.start = line
        if line.kernel:
            self.kernel_lines += 1
            if line.uptime is not None or line.epoch is not None:
                self.first = self.first or line
                self.last = line
        self.driver_seen = self.driver_seen or "NVRM:" in text or text.startswith("nvidia")
        if _is_gap(text):
            self.gaps.append(line)
        if (event := _event(line)) is not None:
            self.events.append(event)
            return
        driver = _NVRM.search(text)
        exact = text.find("NVRM:")
        mentions = _MENTIONS.search(text) or (exact >= 0 and _XID_WORD.search(text, exact))
        if mentions and (line.kernel or "NVRM" in text or "nvswitch" in text):
            self.unreadable.append(line)
        elif driver and _LOST.search(text, driver.end()):
            self.driver.append(line)


def _is_gap(text: str) -> bool:
    """Tell whether a line says that lines of the driver, or of nobody in particular, are missing."""
    words = text.lower()
    if "suppressed" not in words and "missed" not in words:
        return False
    if _GAP.search(text):
        return True
    ends = [match.start() for match in _SUPPRESSED.finditer(text)]
    return bool(ends) and _OURS.search(text, 0, ends[-1]) is not None


def _line(raw: str) -> Line:
    """Split the time off a line, whichever tool wrote it."""
    text = _COLOUR.sub("", raw).strip()
    if text.startswith("{"):
        return _json_line(raw, text)
    if match := _KMSG.fullmatch(text):
        return Line(raw, match[2], int(match[1]) / 1e6, None, f"{int(match[1]) / 1e6:.6f}", True)
    if match := _MONOTONIC.fullmatch(text):
        tagged = _HOST_TAG.fullmatch(match[2])
        return Line(raw, tagged[1] if tagged else match[2], float(match[1]), None, match[1], True)
    if match := _CTIME.fullmatch(text):
        return Line(raw, match[2], None, _epoch(match[1], "%a %b %d %H:%M:%S %Y"), match[1], True)
    if match := _TALOS.fullmatch(text):
        seconds = _epoch(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S")
        return Line(raw, match[3], None, seconds, f"{match[1]}T{match[2]}Z", True)
    if match := _RELATIVE.fullmatch(text):
        return Line(raw, match[2], None, None, match[1].strip(), True)
    epoch: float | None = None
    stamp, rest = "", text
    if match := _ISO.fullmatch(text):
        zone = match[4] or "Z"
        epoch = _epoch(f"{match[1]} {match[2]}", "%Y-%m-%d %H:%M:%S")
        if epoch is not None:
            epoch += float(f"0.{match[3] or 0}") - _offset(zone)
        stamp, rest = f"{match[1]}T{match[2]}{match[4] or ''}", match[5]
        if not _HOST_TAG.fullmatch(rest) and not re.match(r"\S+ \S+(\[[0-9]+\])?: ", rest):
            return Line(raw, rest, None, epoch, stamp, True)
    elif match := _UNIX.fullmatch(text):
        epoch, stamp, rest = float(match[1]), match[1], match[2]
    elif match := _SYSLOG.fullmatch(text):
        # The year is not in the line. 2000 has a 29 February; only differences are taken.
        epoch = _epoch(f"2000 {match[1]}", "%Y %b %d %H:%M:%S")
        stamp, rest = match[1], match[2]
    tagged = _HOST_TAG.fullmatch(rest)
    if tagged is None:
        return Line(raw, rest, None, epoch, stamp)
    if inner := _STAMP.fullmatch(tagged[1]):
        return Line(raw, inner[2], float(inner[1]), epoch, stamp or inner[1], True)
    return Line(raw, tagged[1], None, epoch, stamp, True)


def _json_line(raw: str, text: str) -> Line:
    """Read a line of `journalctl -o json`; its numbers are texts of microseconds."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return Line(raw, text)
    if not isinstance(data, dict) or not isinstance(data.get("MESSAGE"), str):
        return Line(raw, text)
    uptime = _micros(data.get("_SOURCE_MONOTONIC_TIMESTAMP"))
    epoch = _micros(data.get("__REALTIME_TIMESTAMP"))
    stamp = "" if epoch is None else f"{epoch:.6f}"
    return Line(raw, data["MESSAGE"], uptime, epoch, stamp, data.get("_TRANSPORT", "kernel") == "kernel")


def _micros(value: Any) -> float | None:
    return int(value) / 1e6 if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else None


# The lines of one second have one time, and reading it is what takes longest.
@functools.lru_cache(maxsize=1024)
def _epoch(text: str, form: str) -> float | None:
    try:
        return float(calendar.timegm(time.strptime(" ".join(text.split()), form)))
    except (ValueError, OverflowError):
        return None


def _offset(zone: str) -> float:
    digits = zone.replace(":", "")
    if digits == "Z":
        return 0.0
    seconds = int(digits[1:3]) * 3600 + int(digits[3:5]) * 60
    return float(-seconds if digits[0] == "-" else seconds)


def _age(uptime: float | None, epoch: float | None, last: Line, now: float | None) -> float | None:
    """Return how many seconds ago a line was written: by the node's uptime, else by the last line of the log."""
    if uptime is not None and (now is not None or last.uptime is not None):
        return (now if now is not None else last.uptime or 0.0) - uptime
    if epoch is not None and last.epoch is not None:
        seconds = last.epoch - epoch
        return seconds if seconds >= 0 else seconds + 366 * 86400  # a year's end in lines without a year
    return None


def bus_id(text: str) -> str:
    """Return a PCI address as domain:bus:device in lower case, whatever tool wrote it."""
    parts = text.lower().split(".")[0].split(":")
    if len(parts) == 2:
        parts = ["0", *parts]
    try:
        domain, bus, device = (int(p, 16) for p in parts)
    except ValueError:
        return text.lower()
    return f"{domain:04x}:{bus:02x}:{device:02x}"


def _event(line: Line) -> Event | None:
    if match := _XID.search(line.text):
        words = (match[3] or "").strip()
        return Event(int(match[2]), bus_id(match[1]), line.time, words, line.raw, None, line.uptime, line.epoch)
    if match := _SXID.search(line.text):
        words, switch = (match[4] or "").strip(), int(match[1])
        return Event(int(match[3]), bus_id(match[2]), line.time, words, line.raw, switch, line.uptime, line.epoch)
    return None


def parse_gpus(text: str) -> dict[str, str]:
    """Return the GPU number by PCI address from nvidia-smi's CSV of index, uuid and pci.bus_id."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.split(",")]
        if (
            len(cells) == 3
            and cells[0].isdigit()
            and re.fullmatch(r"[0-9A-Fa-f]{4,8}(:[0-9A-Fa-f]{2}){2}\.[0-9]", cells[2])
        ):
            found[bus_id(cells[2])] = cells[0]
    return found


def window(log: Log, since: float | None, now: float | None) -> Log:
    """Return the log with the findings of the last `since` seconds; one whose age cannot be told counts."""
    last = log.last
    if since is None or last is None:
        return log

    def recent(found: Event | Line) -> bool:
        age = _age(found.uptime, found.epoch, last, now)
        return age is None or age <= since

    return dataclasses.replace(
        log,
        events=tuple(filter(recent, log.events)),
        driver=tuple(filter(recent, log.driver)),
        unreadable=tuple(filter(recent, log.unreadable)),
        gaps=tuple(filter(recent, log.gaps)),
    )


def judge(
    log: Log,
    refusal: str | None,
    since: float | None = None,
    now: float | None = None,
    gpus: Mapping[str, str] | None = None,
    before: Mapping[tuple[str, int, str], int] | str | None = None,
    new_boot: bool = False,
    excerpt: bool = False,
    read_until: float | None = None,
) -> list[Check]:
    """Return the checks.

    `before`: the errors counted by the earlier run, or why they cannot be read. `excerpt`: this is one file that
    somebody kept; errors in it are judged, though it does not reach back. It can never show that there was none.
    `read_until`: seconds after the boot up to which an earlier run that did not block had read the log.
    """
    numbers = gpus or {}
    wanted = "since this boot" if since is None else f"the last {since:g} s"
    log = window(log, since, now)
    events = log.events
    checks = [*_log(log, refusal, since, now, wanted, read_until)]
    known = any(event.switch is not None or event.xid in {*TABLE, RECOVERY_CHANGED} for event in events)
    if excerpt and refusal is None and (known or log.driver) and log.whole and checks[0].verdict == "unknown":
        reason = f"only what is in this excerpt is judged: {checks[0].reason}"
        checks = [dataclasses.replace(checks[0], verdict="warn", value=f"{log.lines} lines", reason=reason)]
    checks += [
        unknown("xid.output", "kernel log", f"a line about an Xid cannot be read: {_shown(x.raw)}")
        for x in log.unreadable
    ]
    checks += _gpu_events([e for e in events if e.switch is None], numbers)
    checks += _switch_events([e for e in events if e.switch is not None])
    checks += _driver([line.raw for line in log.driver])
    if before is not None:
        part = since is None and not log.reaches_boot
        checks += _growth(events, before, new_boot, numbers, part=part)
    if checks[0].verdict in ("pass", "warn") and not events:
        checks.append(Check("xid.event", "all GPUs", "pass", f"errors of the driver {wanted}", "no Xid", "no Xid"))
    return checks


def _shown(text: str) -> str:
    return repr(text.strip()[:200])


def _log(
    log: Log, refused: str | None, since: float | None, now: float | None, wanted: str, read_until: float | None
) -> list[Check]:
    """Judge whether the log can show anything: it is one, it is whole, and it reaches back far enough."""
    remedy = (
        "Keep a persistent journal (Storage=persistent) or a larger ring buffer (log_buf_len), reboot, and gate again; "
        "option since asks for less, and option last keeps how far a run that did not block had read."
    )
    source = "this boot's first line" if since is None else "option since"
    if refused is not None:
        return [unknown("xid.log", "kernel log", refused, remedy, wanted, source)]
    if not log.kernel_lines:
        said = f": {_shown(log.first.raw)}" if log.first else ""
        reason = (
            f"it has no line of a kernel log{said}" if log.lines else "it is empty, and a kernel always says something"
        )
        return [unknown("xid.log", "kernel log", reason, remedy, wanted, source)]
    if not log.whole:
        return [unknown("xid.log", "kernel log", "its last line is cut off", remedy, wanted, source)]
    if not log.covers(since, now, read_until):
        begin = f"it begins at {log.first.time} ({_shown(log.first.raw)})" if log.first else "its lines carry no time"
        reason = f"the log does not reach back far enough, {begin}: older lines were dropped, cleared or filtered out"
        return [unknown("xid.log", "kernel log", reason, remedy, wanted, source)]
    covered = f"{log.kernel_lines} lines, {wanted}"
    if log.gaps:
        reason = f"messages were dropped, {_shown(log.gaps[0].raw)}; an Xid may be among them"
        return [Check("xid.log", "kernel log", "warn", reason, covered, wanted, "", source, remedy)]
    if not log.covers(since, now):
        reason = f"the log begins at {log.first.time if log.first else ''}, what was before an earlier run had read"
        return [Check("xid.log", "kernel log", "pass", reason, covered, wanted, "", "option last")]
    if not log.driver_seen and since is None:
        reason = "the NVIDIA driver has written no line since this boot, so it was not loaded"
        return [Check("xid.log", "kernel log", "warn", reason, covered, wanted, "", source, "See gpu_driver.")]
    return [Check("xid.log", "kernel log", "pass", "the log covers what is judged", covered, wanted, "", source)]


def _subject(pci: str, gpus: Mapping[str, str]) -> str:
    if pci in gpus:
        return f"GPU {gpus[pci]} {pci}"
    return f"GPU {pci}" + (" (not seen by nvidia-smi)" if gpus else "")


def _gpu_events(events: Sequence[Event], gpus: Mapping[str, str]) -> list[Check]:
    """Judge each Xid of each GPU once, with the number of times it was seen."""
    grouped: dict[tuple[str, int], list[Event]] = {}
    cured: dict[str, Event] = {}
    uncured: dict[str, set[int]] = {}  # Xids by GPU since its last reset
    for event in events:
        grouped.setdefault((event.pci, event.xid), []).append(event)
        if _is_reset(event):
            cured[event.pci] = event
            uncured.pop(event.pci, None)
        else:
            uncured.setdefault(event.pci, set()).add(event.xid)
    checks: list[Check] = []
    for (pci, xid), seen in grouped.items():
        subject = _subject(pci, gpus)
        if xid == RECOVERY_CHANGED:
            checks.append(_recovery(subject, seen[-1]))
            continue
        entry = TABLE.get(xid)
        told = f"{len(seen)} times since {seen[0].time or 'an unknown time'}" if len(seen) > 1 else f"at {seen[0].time}"
        words = f"{told}: {_shown(seen[-1].text)}"
        if entry is None:
            reason = f"Xid {xid} is not in the action table, {words}"
            remedy = f"Look Xid {xid} up in NVIDIA's Xid catalog and drain the node until it is understood."
            checks.append(
                Check("xid.event", subject, "unknown", reason, f"Xid {xid}", "a known Xid", "", CATALOG, remedy)
            )
            continue
        reason = f"{entry.meaning}, {words}; {entry.action}"
        remedy, verdict = _REMEDY[entry.action], entry.verdict
        if entry.action == "reset the GPU" and xid not in uncured.get(pci, ()):
            reason = f"{reason}; done, at {cured[pci].time} the driver took its recovery action back"
            remedy, verdict = "Watch the GPU: an Xid that comes back after a reset asks for more than a reset.", "warn"
        limit = "no Xid that asks for more than the application's restart"
        checks.append(Check("xid.event", subject, verdict, reason, f"Xid {xid}", limit, "", entry.source, remedy))
    return checks


def _is_reset(event: Event) -> bool:
    """Tell whether Xid 154 takes back an action that asked for a reset, which Drain P2P alone does not."""
    found = _RECOVERY_TEXT.search(event.text) if event.xid == RECOVERY_CHANGED else None
    return found is not None and _is_none(found) and re.search(r"reset|flr|reboot", found[1].lower()) is not None


def _is_none(found: re.Match[str]) -> bool:
    return int(found[2], 16) == 0 and found[3].strip().lower() == "none"


def _recovery(subject: str, event: Event) -> Check:
    """Judge Xid 154, in which the driver itself says what has to be done; the last one holds."""
    source = "Xid 154, the driver's own words"
    found = _RECOVERY_TEXT.search(event.text)
    if found is None:
        reason = f"Xid 154 without a recovery action that can be read: {_shown(event.text)}"
        return unknown("xid.event", subject, reason, "Ask nvidia-smi -q for the GPU Recovery Action.", "None", source)
    words = found[3].strip()
    if _is_none(found):
        reason = f"at {event.time} the driver took its recovery action back"
        return Check("xid.event", subject, "pass", reason, "Xid 154, None", "None", "", source)
    action: Action = next((a for word, a in _RECOVERY if word in words.lower()), "drain and RMA")
    reason = f"at {event.time} the driver asked for a recovery action"
    return Check("xid.event", subject, "fail", reason, f"Xid 154, {words}", "None", "", source, _REMEDY[action])


def _switch_events(events: Sequence[Event]) -> list[Check]:
    """Judge each SXid of each NVSwitch. Lines with only Data or Severity belong to the one that has the word."""
    grouped: dict[tuple[int, str, int], list[Event]] = {}
    for event in events:
        grouped.setdefault((event.switch or 0, event.pci, event.xid), []).append(event)
    checks: list[Check] = []
    for (switch, pci, sxid), seen in grouped.items():
        told = [e for e in seen if re.match(r"(Non-)?fatal\b", e.text, re.IGNORECASE)]
        subject, value = f"NVSwitch {switch} {pci}", f"SXid {sxid}"
        remedy = "Drain the whole board: reset all its GPUs with Fabric Manager stopped, or reboot the node."
        if not told:
            reason = f"the driver does not say whether it is fatal: {_shown(seen[0].text)}"
            checks.append(Check("xid.switch", subject, "unknown", reason, value, "no SXid", "", FABRIC_GUIDE, remedy))
            continue
        worst = next((e for e in told if e.text.lower().startswith("fatal")), None)
        words = f"{len(told)} times: {_shown((worst or told[-1]).text)}"
        if worst is not None or sxid in SWITCH_FATAL:
            reason = f"{SWITCH_FATAL.get(sxid, 'fatal error of the switch')}, {words}"
            checks.append(Check("xid.switch", subject, "fail", reason, value, "no SXid", "", FABRIC_GUIDE, remedy))
        else:
            reason = f"non-fatal error of the switch, {words}"
            remedy = "Watch the link's error counters (nvlink_status)."
            checks.append(Check("xid.switch", subject, "warn", reason, value, "no SXid", "", FABRIC_GUIDE, remedy))
    return checks


def _driver(lines: Sequence[str]) -> list[Check]:
    """Judge what the driver says about lost GPUs without an Xid."""
    if not lines:
        return []
    more = f" (and {len(lines) - 1} more lines)" if len(lines) > 1 else ""
    reason = f"the driver lost a GPU or cannot start it{more}"
    return [
        Check(
            "xid.driver",
            "driver",
            "fail",
            reason,
            lines[0].strip()[:200],
            "no such line",
            "",
            CATALOG,
            _REMEDY["reboot the node"],
        )
    ]


def listed(events: Sequence[Event], gpus: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the JSON form: each error of each device once, with its number and what was said first."""
    grouped: dict[tuple[str, int, str], list[Event]] = {}
    for event in events:
        grouped.setdefault(("Xid" if event.switch is None else "SXid", event.xid, event.pci), []).append(event)
    return [
        {
            "kind": kind,
            "xid": xid,
            "pci": pci,
            "gpu": gpus.get(pci, ""),
            "count": len(seen),
            "time": seen[0].time,
            "last_time": seen[-1].time,
            "text": seen[0].text,
            "line": seen[0].line,
        }
        for (kind, xid, pci), seen in grouped.items()
    ]


def counted(events: Any) -> dict[tuple[str, int, str], int]:
    """Count an evidence file's events by kind, number and PCI address; raise ValueError when they are not there."""
    if not isinstance(events, list) or not all(isinstance(e, dict) for e in events):
        raise ValueError("it has no list of events, as a result of the gate xid has")
    found: Counter[tuple[str, int, str]] = Counter()
    for event in events:
        kind, xid, pci, count = event.get("kind"), event.get("xid"), event.get("pci"), event.get("count")
        numbers = isinstance(xid, int) and isinstance(count, int) and count > 0
        if kind not in ("Xid", "SXid") or not numbers or not isinstance(pci, str):
            raise ValueError(f"an event of it cannot be read: {event!r:.160}")
        found[(kind, xid, pci)] += count
    return dict(found)


def _growth(
    events: Sequence[Event],
    before: Mapping[tuple[str, int, str], int] | str,
    new_boot: bool,
    gpus: Mapping[str, str],
    *,
    part: bool,
) -> list[Check]:
    """Judge what came after the earlier run. After a reboot the log is a new one, so all of it came after.

    `part`: lines of this boot are gone from the log, so that a new error may stand in the place of an old one.
    """
    if isinstance(before, str):
        return [unknown("xid.growth", "all GPUs", before, "Give the xid.json of the earlier run.", 0, "option before")]
    now = Counter(("Xid" if e.switch is None else "SXid", e.xid, e.pci) for e in events)
    old: Mapping[tuple[str, int, str], int] = {} if new_boot else before
    grown = {key: count - old.get(key, 0) for key, count in now.items() if count > old.get(key, 0)}
    hidden = [key for key, count in now.items() if part and not new_boot and count <= before.get(key, 0)]
    if hidden:
        kind, xid, pci = hidden[0]
        reason = f"older lines are gone from the log, so {kind} {xid} of {pci} may be one of before or a new one"
        return [unknown("xid.growth", "all GPUs", reason, "Reboot, and gate again.", 0, "option before")]
    actions = {("Xid", xid): entry.action for xid, entry in TABLE.items()}
    grown = {key: count for key, count in grown.items() if actions.get(key[:2]) != "none"}
    if not grown:
        return [Check("xid.growth", "all GPUs", "pass", "errors since the earlier run", 0, 0, "", "option before")]
    # A new Xid 154 is no error when its last line says None.
    last = {e.pci: _RECOVERY_TEXT.search(e.text) for e in events if e.switch is None and e.xid == RECOVERY_CHANGED}
    none = {pci for pci, found in last.items() if found is not None and _is_none(found)}
    checks = []
    for (kind, xid, pci), count in grown.items():
        subject = _subject(pci, gpus) if kind == "Xid" else f"NVSwitch {pci}"
        reason = f"{kind} {xid} came after the earlier run"
        action = actions.get((kind, xid))
        verdict: Verdict = "fail"
        remedy = "The GPU does not hold under load: drain the node and look at the Xid above."
        if action is not None and _VERDICT[action] == "warn":
            verdict, remedy = "warn", _REMEDY[action]
        elif kind == "Xid" and xid == RECOVERY_CHANGED and pci in none:
            verdict, remedy = "warn", "See the Xid that asked for the reset."
        checks.append(Check("xid.growth", subject, verdict, reason, count, 0, "new", "option before", remedy))
    return checks

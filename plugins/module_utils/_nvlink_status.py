# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether every NVLink of every GPU is up, at full speed and without errors, and the GPU is part of the NVLink fabric.

Reads `nvidia-smi nvlink -s` and `-e` of all drivers from Pascal on, by the words of each line. Pure functions.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import PROFILES, Profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import shown
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._smi_query import Query, number, printed
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Verdict, unknown

CHECKS: dict[str, str] = {
    "nvlink_status.output": "The output of nvidia-smi nvlink and -q can be read to the end and holds no error message.",
    "nvlink_status.gpus": "The number of GPUs that have links listed, held against option gpus or the board profile.",
    "nvlink_status.links": (
        "The number of active links of each GPU, held against option links or the board profile; each inactive link of "
        "a GPU that has too few is named."
    ),
    "nvlink_status.speed": (
        "The speed of each active link in one direction, held against option link_speed or the board profile."
    ),
    "nvlink_status.errors": (
        "The error counters of each link since they were reset, held against 0: recovery, CRC and those of NVLink 5 "
        "fail, replay and CRC FLIT, which were sent again, are a warning; corrected bits (FEC, raw BER) are not judged."
    ),
    "nvlink_status.growth": (
        "The error counters of each link, held against an earlier reading (option before): none is added (NVIDIA DCGM "
        "health watch), of CRC FLIT fewer than option crc_flit, which are a warning."
    ),
    "nvlink_status.fabric_state": (
        "Fabric State Completed and Status Success on every GPU of a board with NVSwitch; other boards have no fabric."
    ),
    "nvlink_status.fabric_health": "The Fabric Health lines of each GPU, none of which may name a fault.",
    "nvlink_status.fabric_clique": "All GPUs of the node are in one cluster and clique, so that they reach each other.",
}

GATE = "nvlink_status"
_AGAIN = "Run nvidia-smi nvlink -s, -e and nvidia-smi -q by hand and look into the kernel log for NVRM."
_DOWN = "Drain the node and reset its GPUs; if it stays so, look for XID 74 and SXid and have the board replaced."
_LANES = (
    "Reset the counters (nvidia-smi nvlink -re) and judge again after a load; a link whose errors grow belongs to a "
    "GPU, board or NVSwitch that needs service."
)
_DCGM = "NVIDIA DCGM health watch"
_ZERO = "facebookresearch/gcm, scitix/sichek"

# Some builds print what they say of all links behind the GPU's name.
_GPU = re.compile(r"GPU ([0-9]{1,3}): (.*?)(?: \(UUID: ([^()]{0,80})\)(.*))?")
_LINK = re.compile(r"Link ([0-9]{1,3})\s*:\s*(.*)")
_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,6})?) GB/s")
_INACTIVE = re.compile(r"<?(inactive|disabled|down|off)>?", re.IGNORECASE)
_ALL_INACTIVE = re.compile(r"\ball links are inactive\b|\bdoes not have or support nvlink\b", re.IGNORECASE)
# Modules of a baseboard, which joins them. A card, or a superchip, may have no partner.
_MODULE = re.compile(r"SXM|HGX|\bH(100|200|800|20)\b(?!.*(PCIe|NVL))|\bB(100|200|300)\b", re.IGNORECASE)
_ERRORS = re.compile(
    r"\b(unable to|failed to|has failed|unknown error|could\s?n[o']t|is lost|no devices|fallen off|not supported"
    r"|mismatch|invalid|insufficient|not found)\b|^NVML:",
    re.IGNORECASE,
)
_COUNTER = re.compile(r"([A-Za-z][A-Za-z0-9 ./()-]*?)\s*:\s*(\S.*)")

# What each counter means for the verdict. The first three are those of NVLink 4 and before (data link layer), the
# others those of NVLink 5 and newer drivers. DCGM's limits are changes: it fails any replay or recovery that is added
# and any failed recovery, warns of a successful one, and takes CRC errors for serious from 100 a second on. What was
# counted since boot has no time, so packets that were only sent again (replay, CRC of a FLIT) fail by their growth.
_FAIL = frozenset(
    {
        "replay",
        "recovery",
        "crc",
        "crc data",
        "malformed packet",
        "buffer overrun",
        "rx",
        "rx remote",
        "rx general",
        "local link integrity",
        "tx discards",
        "link recovery failed events",
        "effective",
        "symbol",
    }
)
_WARN = frozenset({"link recovery successful events"})
_FLIT = "crc flit"
_RESENT = frozenset({"replay", _FLIT})
_BER = frozenset({"effective ber", "symbol ber"})
# Sums of others, bits that were corrected, and traffic.
_IGNORED = re.compile(
    r"total link recovery events|fec( errors)? ?-? ?[0-9]+|raw .*|plr .*|(tx|rx) (packets|bytes).*|fec .*"
)
_BER_LIMIT = 1e-12
_FASTEST = 1.1  # of the board's speed, which the tool prints with the line's overhead: 26.562 of 25


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the output. A link's value is its speed in GB/s, None when it is inactive."""

    index: int
    uuid: str | None
    links: Mapping[int, float | None]
    counters: Mapping[int, Mapping[str, int | float]]
    none: bool = False
    """The tool said that all links are inactive, or that there is none, in place of a list."""
    product: str = ""

    @property
    def subject(self) -> str:
        """Name of the GPU in check results."""
        return f"GPU {self.index}"

    @property
    def active(self) -> list[int]:
        """Numbers of the links that are up."""
        return sorted(link for link, speed in self.links.items() if speed is not None)


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What was read, and each line that could not be."""

    gpus: tuple[Gpu, ...]
    problems: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What the links are held against; None in an option leaves it to the board.

    Without a board and an option every link that is listed must be active, and as fast as the fastest of the node.
    """

    board: Profile | None
    gpus: int | None = None
    links: int | None = None
    link_speed: float | None = None

    @property
    def gpu_count(self) -> int | None:
        """Number of GPUs expected."""
        if self.gpus is not None:
            return self.gpus
        return self.board.gpu_count if self.board else None

    @property
    def source(self) -> str:
        """Where a limit comes from that no option gives."""
        return self.board.source if self.board else "the other links of the node"

    def due(self, listed: int) -> int:
        """Return how many links are listed for each GPU: all of the chip, or those the board uses."""
        if self.board is None or self.links is not None or listed in self.allowed(listed):
            return listed
        return int(self.board.links_listed.value)

    def allowed(self, listed: int) -> tuple[int, ...]:
        """Return how many active links a GPU may have. A card with an optional bridge has all of its links, or none."""
        if self.links is not None:
            return (self.links,)
        if self.board is None:
            return (listed,)
        if self.board.links_per_gpu is not None:
            return (int(self.board.links_per_gpu.value),)
        return (0, int(self.board.nvlink_width.value))

    @property
    def links_source(self) -> str:
        """Where the number of links comes from."""
        return "option links" if self.links is not None else self.source


# --- reading


def parse(text: str) -> Report:
    """Read the links and counters of `nvidia-smi nvlink -s` or `-e`, or of both in one file. Never raises."""
    gpus: dict[int, tuple[str | None, dict[int, float | None], dict[int, dict[str, int | float]], list[bool], str]]
    gpus = {}
    problems: list[str] = []
    current: int | None = None
    link: int | None = None
    headers: dict[int, list[int]] = {}  # by GPU: how many lines came below each of its headers
    for raw in text.removeprefix("\ufeff").splitlines():
        line = raw.strip()
        if not line:
            continue
        if found := _GPU.fullmatch(line):
            current, link = int(found[1]), None
            known = gpus.setdefault(current, (found[3], {}, {}, [], found[2]))
            headers.setdefault(current, []).append(0)
            if known[0] != found[3]:
                problems.append(f"GPU {current} is there twice with another UUID: {shown(line)}")
            if behind := (found[4] or "").strip():
                headers[current][-1] += 1
                if _ALL_INACTIVE.search(behind):
                    known[3].append(True)
                else:
                    problems.append(f"this line cannot be read: {shown(line)}")
            continue
        if current is not None:
            headers[current][-1] += 1
        if _ALL_INACTIVE.search(line):
            if current is None:
                problems.append(f"no GPU is named before this line: {shown(line)}")
            else:
                gpus[current][3].append(True)
            continue
        if re.match(r"Link [0-9]+\s*,", line):
            continue  # nvlink -c beside the others: capabilities are not judged
        if found := _LINK.fullmatch(line):
            if current is None:
                problems.append(f"no GPU is named before this line: {shown(line)}")
                continue
            link = int(found[1])
            problems += _take(line, link, found[2].strip(), gpus[current][1], gpus[current][2], current)
            continue
        if link is not None and current is not None and (found := _COUNTER.fullmatch(line)) and raw[0] in " \t":
            # The form with a heading "Link 0:" and its counters below.
            problems += _take(line, link, line, gpus[current][1], gpus[current][2], current)
            continue
        if re.match(r"Link\b|GPU\b", line) or _ERRORS.search(line):
            problems.append(f"this line cannot be read: {shown(line)}")
    # Status and counters in one file name each GPU once for either; a header with nothing below is a doubled line.
    problems += [
        f"GPU {index} is named {len(counts)} times, once with nothing below it"
        for index, counts in headers.items()
        if len(counts) > 1 and 0 in counts
    ]
    return Report(
        tuple(
            Gpu(index, uuid, links, counters, bool(none), product)
            for index, (uuid, links, counters, none, product) in sorted(gpus.items())
        ),
        tuple(problems),
    )


def _take(
    line: str,
    link: int,
    rest: str,
    links: dict[int, float | None],
    counters: dict[int, dict[str, int | float]],
    gpu: int,
) -> list[str]:
    """Take what one line says of a link: its speed, that it is inactive, or a counter. Return why it cannot be."""
    if not rest:
        return []
    speed = _SPEED.fullmatch(rest)
    if speed or _INACTIVE.fullmatch(rest):
        if link in links:
            return [f"link {link} of GPU {gpu} is there twice: {shown(line)}"]
        links[link] = float(speed[1]) if speed else None
        return []
    counter = _COUNTER.fullmatch(rest)
    if counter is None:
        return [f"this line cannot be read: {shown(line)}"]
    name = _counter_name(counter[1])
    if not _judged(name) and not re.search(r"\berrors?\b", counter[1], re.IGNORECASE):
        return []
    value = _counter_value(counter[2], name in _BER)
    if value is None:
        return [] if not _judged(name) else [f"this counter cannot be read: {shown(line)}"]
    of_link = counters.setdefault(link, {})
    if name in of_link and _judged(name):
        return [f"{shown(counter[1])} of link {link} of GPU {gpu} is there twice: {shown(line)}"]
    of_link.setdefault(name, value)
    return []


def _counter_name(text: str) -> str:
    """Return a counter's name without the words that come and go ("Replay Errors", "CRC Flit Error Count")."""
    name = re.sub(r"\s+(error|errors)(\s+(count|counter|counters))?$", "", " ".join(text.lower().split()))
    return re.sub(r"^(dl|nvlink) ", "", name)


def _judged(name: str) -> bool:
    return name in _FAIL or name in _WARN or name in _BER or name == _FLIT


def _counter_value(text: str, rate: bool) -> int | float | None:
    if re.fullmatch(r"[0-9]{1,20}", text):
        return int(text)
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,9})?)[eE](-?[0-9]{1,3})", text) if rate else None
    return float(text) if found else None


def kinds(report: Report) -> set[Literal["status", "errors"]]:
    """Return what a text holds: the links themselves, their counters, or both."""
    found: set[Literal["status", "errors"]] = set()
    if any(gpu.links or gpu.none for gpu in report.gpus):
        found.add("status")
    if any(gpu.counters for gpu in report.gpus):
        found.add("errors")
    return found


# --- judgement


def judge_output(report: Report, what: str) -> list[Check]:
    """Return an `unknown` for every line that could not be read."""
    return [unknown("nvlink_status.output", what, problem, _AGAIN) for problem in report.problems]


def judge_count(report: Report, limits: Limits) -> Check:
    """Hold the number of GPUs in the output against the option or the board."""
    found, expected = len(report.gpus), limits.gpu_count
    source = "option gpus" if limits.gpus is not None else limits.source
    if not found:
        return unknown("nvlink_status.gpus", "node", "no GPU is in the output", _AGAIN, expected, source)
    if expected is None and limits.board is None:
        reason = "GPUs with links; neither a board nor option gpus says how many belong there"
        return Check("nvlink_status.gpus", "node", "pass", reason, found, None, "GPUs")
    if expected is None:
        name = limits.board.name if limits.board else ""
        reason = f"{name} does not fix the number of GPUs, so a missing card would not be noticed"
        hint = "Set gpus to the number of cards in the server."
        return Check("nvlink_status.gpus", "node", "warn", reason, found, None, "GPUs", "", hint)
    if found == expected and [gpu.index for gpu in report.gpus] == list(range(found)):
        return Check("nvlink_status.gpus", "node", "pass", "GPUs with links", found, expected, "GPUs", source)
    if found == expected:
        reason = f"the GPUs are numbered {', '.join(str(gpu.index) for gpu in report.gpus)}"
        return unknown("nvlink_status.gpus", "node", reason, _AGAIN, expected, source)
    if found < expected and _cut_off(report):
        reason = f"{found} of {expected} GPUs are in the output, and it is cut off or broken"
        return unknown("nvlink_status.gpus", "node", reason, _AGAIN, expected, source)
    remedy = "Look for a GPU that fell off the bus (XID 79, lspci); if all are there, the output is not whole."
    reason = f"{found} GPUs are in the output"
    return Check("nvlink_status.gpus", "node", "fail", reason, found, expected, "GPUs", source, remedy)


def _cut_off(report: Report) -> bool:
    """Return whether the output ends within a GPU: then the GPUs that are not in it may well be there."""
    first, last = report.gpus[0], report.gpus[-1]
    counters = [sum(len(of_link) for of_link in gpu.counters.values()) for gpu in (first, last)]
    return bool(report.problems) or len(last.links) < len(first.links) or counters[1] < counters[0]


def judge_links(report: Report, limits: Limits) -> list[Check]:
    """Hold the number of active links of each GPU against the board, exactly: 17 of 18 is a fail."""
    limits = _by_product(report, limits)
    listed = max((len(gpu.links) for gpu in report.gpus), default=0)
    allowed, source = limits.allowed(listed), limits.links_source
    if limits.board is None and limits.links is None and not any(gpu.active for gpu in report.gpus):
        return [_all_down(report)]
    limit = " or ".join(str(n) for n in allowed)
    # All links of the chip are listed, or those the board uses; never a different number for one GPU.
    due = limits.due(listed)
    checks: list[Check] = []
    good: list[int] = []
    for position, gpu in enumerate(report.gpus):
        if not gpu.links:
            checks.append(_no_links(gpu, allowed, limit, source))
            continue
        numbers, active = sorted(gpu.links), gpu.active
        if gpu.none or numbers != list(range(due)):
            last = position == len(report.gpus) - 1
            gone = [n for n in range(due) if n not in gpu.links]
            what = f"{len(numbers)} links are listed, {due} belong there" + (f", without {_list(gone)}" if gone else "")
            if gone and not last and not gpu.none and not report.problems and len(active) not in allowed:
                checks.append(
                    Check("nvlink_status.links", gpu.subject, "fail", what, len(active), limit, "links", source, _DOWN)
                )
            else:
                reason = f"{what}: the output may be cut off"
                checks.append(unknown("nvlink_status.links", gpu.subject, reason, _AGAIN, limit, source))
            continue
        if len(active) in allowed:
            good.append(len(active))
            continue
        down = [n for n in numbers if n not in active]
        reason = f"inactive: link {_list(down)}" if down else "more links than this board has: wrong profile"
        subject = gpu.subject
        if down and len(down) == 1:
            subject = f"{gpu.subject} link {down[0]}"
        checks.append(Check("nvlink_status.links", subject, "fail", reason, len(active), limit, "links", source, _DOWN))
    if good:
        value = good[0] if len(set(good)) == 1 else ", ".join(str(n) for n in sorted(set(good)))
        subject = f"all {len(good)} GPUs" if not checks else f"{len(good)} GPUs"
        checks.append(
            Check("nvlink_status.links", subject, "pass", "active links of each GPU", value, limit, "links", source)
        )
    if len(allowed) > 1 and len({len(gpu.active) for gpu in report.gpus}) > 1:
        bridged = sum(1 for gpu in report.gpus if gpu.active)
        if bridged % 2:
            reason = f"{bridged} cards have a bridge, and a bridge joins two"
            checks.append(
                Check("nvlink_status.links", "node", "fail", reason, bridged, "an even number", "", source, _DOWN)
            )
    return checks


def _by_product(report: Report, limits: Limits) -> Limits:
    """Return the limits with the board of bridged cards: a bridge uses some of the chip's links, and may be missing."""
    if limits.board is not None or limits.links is not None or not report.gpus:
        return limits
    for board in PROFILES.values():
        if board.nvlink_rule != "all" and all(board.product_matches(gpu.product) for gpu in report.gpus):
            return dataclasses.replace(limits, board=dataclasses.replace(board, links_per_gpu=None))
    return limits


def _all_down(report: Report) -> Check:
    """Judge GPUs none of which has a link, by their names: modules of one baseboard must, cards need no bridge."""
    modules = [gpu for gpu in report.gpus if _MODULE.search(gpu.product)]
    subject, limit = f"all {len(report.gpus)} GPUs", "at least 1 of each module of a baseboard"
    if any(not gpu.none and not gpu.links for gpu in report.gpus):
        return unknown("nvlink_status.links", subject, "no link is listed for a GPU", _AGAIN, limit)
    if len(report.gpus) > 1 and modules:
        reason = f"no link of {shown(modules[0].product)} is active, and a baseboard joins its modules"
        return Check("nvlink_status.links", subject, "fail", reason, 0, limit, "links", "product name", _DOWN)
    reason = "no link is active; neither a board nor option links says that there is a bridge"
    return Check("nvlink_status.links", subject, "pass", reason, 0, None, "links")


def _no_links(gpu: Gpu, allowed: Sequence[int], limit: str, source: str) -> Check:
    if not gpu.none:
        reason = "no link is listed for it"
        return unknown("nvlink_status.links", gpu.subject, reason, _AGAIN, limit, source)
    reason = "the driver says that all links are inactive"
    if 0 in allowed:
        return Check("nvlink_status.links", gpu.subject, "pass", reason, 0, limit, "links", source)
    return Check("nvlink_status.links", gpu.subject, "fail", reason, 0, limit, "links", source, _DOWN)


def _list(numbers: Iterable[int]) -> str:
    return ", ".join(str(n) for n in numbers)


def judge_speed(report: Report, limits: Limits) -> list[Check]:
    """Hold the speed of each active link against the board's: a link at half speed is a fail."""
    if limits.link_speed is not None:
        limit, source = limits.link_speed, "option link_speed"
    elif limits.board is not None:
        limit, source = float(limits.board.link_speed_gbytes.value), limits.source
    else:
        limit, source = max((s for gpu in report.gpus for s in gpu.links.values() if s), default=0.0), limits.source
        if not limit and any(gpu.active for gpu in report.gpus):
            return [unknown("nvlink_status.speed", "node", "every active link has a speed of 0 GB/s", _AGAIN)]
    speeds = [(gpu, link, gpu.links[link]) for gpu in report.gpus for link in gpu.active]
    checks: list[Check] = []
    good: list[float] = []
    for gpu, link, speed in speeds:
        if speed is None:
            continue
        if limits.board is not None and limits.link_speed is None and speed > _FASTEST * limit:
            reason = f"{speed:g} GB/s is more than a link of this board can have"
            subject = f"{gpu.subject} link {link}"
            checks.append(unknown("nvlink_status.speed", subject, reason, _AGAIN, limit, source))
            continue
        if speed >= limit:
            good.append(speed)
            continue
        reason = "the link is slow"
        subject = f"{gpu.subject} link {link}"
        checks.append(Check("nvlink_status.speed", subject, "fail", reason, speed, limit, "GB/s", source, _DOWN))
    if good:
        reason = f"slowest of {len(good)} active links" + (" that are fast enough" if checks else "")
        checks.append(Check("nvlink_status.speed", "all links", "pass", reason, min(good), limit, "GB/s", source))
    return checks


def slowest(report: Report) -> float | None:
    """Return the speed of the slowest active link in GB/s."""
    return min((s for gpu in report.gpus for s in gpu.links.values() if s is not None), default=None)


def judge_errors(report: Report, limits: Limits, status: Report | None) -> list[Check]:
    """Judge the counters of each link; a link whose counters are missing is unknown.

    The links that must have counters are the active ones of `status`, or as many as the board has.
    """
    checks: list[Check] = []
    names = {name for gpu in report.gpus for of_link in gpu.counters.values() for name in of_link if _judged(name)}
    good = 0
    most = max((len(gpu.counters) for gpu in report.gpus), default=0)
    allowed = limits.allowed(most)
    for gpu in report.gpus:
        due = _due(gpu, status)
        if due is not None:
            missing = [link for link in due if link not in gpu.counters]
            if missing:
                reason = f"no counters of link {_list(missing)}, the output may be cut off"
                checks.append(unknown("nvlink_status.errors", gpu.subject, reason, _AGAIN))
        elif not (gpu.none and not gpu.counters and 0 in allowed) and not _enough(gpu, limits, most):
            reason = f"counters of {len(gpu.counters)} links, {' or '.join(str(n) for n in allowed)} belong there"
            checks.append(unknown("nvlink_status.errors", gpu.subject, reason, _AGAIN))
        for link, of_link in sorted(gpu.counters.items()):
            subject = f"{gpu.subject} link {link}"
            gone = sorted(names - set(of_link))
            if gone or not names:
                reason = f"no counter {', '.join(gone) or 'that is known'}, the output may be cut off"
                checks.append(unknown("nvlink_status.errors", subject, reason, _AGAIN))
            found = _bad_counters(of_link)
            if not found:
                good += 1
                continue
            verdict: Verdict = "fail" if any(v == "fail" for v, _text in found) else "warn"
            said = ", ".join(text for v, text in found)
            reason = "errors since the counters were reset (boot or nvidia-smi nvlink -re)"
            checks.append(Check("nvlink_status.errors", subject, verdict, reason, said, "0", "", _ZERO, _LANES))
    if good and not checks:
        reason = f"{', '.join(sorted(names))} of {good} links"
        checks.append(Check("nvlink_status.errors", "all links", "pass", reason, 0, 0, "errors", _ZERO))
    elif not checks and report.gpus and all(gpu.none for gpu in report.gpus):
        reason = "no link is active, so none can have errors"
        checks.append(Check("nvlink_status.errors", "node", "pass", reason, 0, 0, "errors", _ZERO))
    return checks or [unknown("nvlink_status.errors", "node", "no counter of any link is in the output", _AGAIN)]


def _due(gpu: Gpu, status: Report | None) -> list[int] | None:
    """Return the links that must have counters, None when the status of this GPU was not read."""
    if status is None:
        return None
    of_status = next((other for other in status.gpus if other.index == gpu.index), None)
    return of_status.active if of_status is not None else None


def _enough(gpu: Gpu, limits: Limits, most: int) -> bool:
    """Return whether there are counters of as many links as the board has active ones, or of all it lists."""
    found = len(gpu.counters)
    every = int(limits.board.links_listed.value) if limits.board else most
    return found > 0 and (found in limits.allowed(most) or found == every)


def _bad_counters(of_link: Mapping[str, int | float]) -> list[tuple[Verdict, str]]:
    found: list[tuple[Verdict, str]] = []
    for name, value in of_link.items():
        if name in _BER:
            if value > _BER_LIMIT:
                found.append(("warn", f"{name} {value:g}"))
        elif not value:
            continue
        elif name in _FAIL - _RESENT:
            found.append(("fail", f"{name} {value}"))
        elif not _IGNORED.fullmatch(name):
            found.append(("warn", f"{name} {value}"))
    return found


def judge_growth(report: Report, before: Report, crc_flit: int = 100) -> list[Check]:
    """Hold the counters against an earlier reading's; only what is judged at all counts.

    DCGM's limit of CRC errors is 100 a second. A capture tells no time, so as many in all are the limit of FLITs here.
    """
    source = "the earlier reading (option before)"
    if not any(gpu.counters for gpu in before.gpus):
        reason = before.problems[0] if before.problems else "it holds no counter"
        return [unknown("nvlink_status.growth", "node", f"the earlier reading: {reason}", "", 0, source)]
    checks: list[Check] = []
    compared = 0
    for gpu in report.gpus:
        old = next(
            (o for o in before.gpus if (o.uuid == gpu.uuid if o.uuid and gpu.uuid else o.index == gpu.index)), None
        )
        for link, of_link in sorted(gpu.counters.items()):
            subject = f"{gpu.subject} link {link}"
            then = old.counters.get(link) if old is not None else None
            if then is None:
                reason = "it is not in the earlier reading"
                checks.append(unknown("nvlink_status.growth", subject, reason, "", 0, source))
                continue
            compared += 1
            grown = [
                (name, value - then[name])
                for name, value in of_link.items()
                if (name in _FAIL or name == _FLIT) and name in then and value > then[name]
            ]
            if grown:
                bad = any(name in _FAIL or more >= crc_flit for name, more in grown)
                verdict: Verdict = "fail" if bad else "warn"
                said = ", ".join(f"{name} +{more}" for name, more in grown)
                reason = "errors were added since the earlier reading"
                checks.append(Check("nvlink_status.growth", subject, verdict, reason, said, "0", "", source, _LANES))
    if compared and not checks:
        reason = f"no error was added on {compared} links"
        checks.append(Check("nvlink_status.growth", "all links", "pass", reason, 0, 0, "errors", source))
    return checks or [unknown("nvlink_status.growth", "node", "there is no counter to compare", "", 0, source)]


# --- fabric

_HEALTHY: dict[str, tuple[str, ...]] = {
    "Summary": ("Healthy",),
    "Bandwidth": ("Full",),
    "Route Recovery in progress": ("False", "No"),
    "Route Unhealthy": ("False", "No"),
    "Access Timeout Recovery": ("False", "No"),
    "Incorrect Configuration": ("None", "False", "No"),
}


def judge_fabric(query: Query, limits: Limits) -> list[Check]:
    """Judge the Fabric block of every GPU of a board with NVSwitch. Other boards have no fabric."""
    registered = any(printed(gpu.get("Fabric/State")) is not None for gpu in query.gpus)
    if not (limits.board.nvswitch if limits.board else registered):
        states = sorted({shown(gpu.get("Fabric/State") or "no Fabric block") for gpu in query.gpus})
        if not states:
            return []
        board = limits.board.name if limits.board else "this board"
        reason = f"{board} has no NVSwitch, so there is no fabric its GPUs must be part of"
        value, subject = ", ".join(states), "all GPUs"
        return [Check("nvlink_status.fabric_state", subject, "pass", reason, value, None, "", limits.source)]
    problems = [p.text for p in query.problems if p.kind != "inforom"]
    checks = [unknown("nvlink_status.output", "nvidia-smi -q", problem, _AGAIN) for problem in problems]
    wanted, source = "Completed, Success", "board with NVSwitch"
    expected = limits.gpu_count
    if not query.gpus:
        return checks or [unknown("nvlink_status.fabric_state", "node", "no GPU is described", _AGAIN, wanted, source)]
    described = len(query.gpus)
    if query.attached is not None and query.attached != described:
        reason = f"nvidia-smi -q announces {query.attached} GPUs and describes {described}"
        checks.append(unknown("nvlink_status.fabric_state", "node", reason, _AGAIN, wanted, source))
    if query.form == "csv" and expected is not None and described < expected:
        reason = f"{described} Fabric blocks for {expected} GPUs: those of the others are not in the capture"
        checks.append(unknown("nvlink_status.gpus", "node", reason, _AGAIN, expected, source))
    elif expected is not None and query.attached not in (None, described):
        reason = f"{described} of {expected} GPUs are described, and the report announces {query.attached}: not whole"
        checks.append(unknown("nvlink_status.gpus", "node", reason, _AGAIN, expected, source))
    elif expected is not None and described != expected:
        reason = f"{described} of {expected} GPUs are described, so not every GPU is in the fabric"
        checks.append(Check("nvlink_status.gpus", "node", "fail", reason, described, expected, "GPUs", source, _DOWN))
    remedy = (
        "See that nvidia-fabricmanager is active; restart it when the board is drained. One GPU alone needs a reset."
    )
    good = 0
    for gpu in query.gpus:
        state, status = gpu.get("Fabric/State"), gpu.get("Fabric/Status")
        if state is None or status is None:
            missing = "State" if state is None else "Status"
            reason = f"nvidia-smi -q has no Fabric {missing} for it"
            checks.append(unknown("nvlink_status.fabric_state", gpu.subject, reason, _AGAIN, wanted, source))
        elif (printed(state), printed(status)) == ("Completed", "Success"):
            good += 1
        else:
            found = f"{shown(state)}, {shown(status)}"
            reason = "registration with the NVLink fabric (state, status)"
            checks.append(
                Check("nvlink_status.fabric_state", gpu.subject, "fail", reason, found, wanted, "", source, remedy)
            )
    if good:
        subject = f"all {good} GPUs" if good == described else f"{good} GPUs"
        reason = "registration with the NVLink fabric (state, status)"
        checks.append(Check("nvlink_status.fabric_state", subject, "pass", reason, wanted, wanted, "", source))
    return fold_all([*checks, *_fabric_health(query), *_fabric_clique(query)], described)


def fold_all(checks: Sequence[Check], gpus: int) -> list[Check]:
    """Put checks that say the same of every GPU into one: what hits all of them has one cause."""
    same: dict[Check, list[Check]] = {}
    for check in checks:
        same.setdefault(dataclasses.replace(check, subject=""), []).append(check)
    folded: list[Check] = []
    for bare, of_each in same.items():
        everywhere = len(of_each) == gpus > 1 and all(check.subject.startswith("GPU ") for check in of_each)
        folded += [dataclasses.replace(bare, subject=f"all {gpus} GPUs")] if everywhere else of_each
    return folded


def _fabric_health(query: Query) -> list[Check]:
    """Judge the health lines a driver prints; N/A and words of a driver that has none are left alone."""
    checks: list[Check] = []
    lines = {name for gpu in query.gpus for name in gpu.section("Fabric/Health") if name in _HEALTHY}
    said = 0
    for gpu in query.gpus:
        health = gpu.section("Fabric/Health")
        for name in sorted(lines):
            value = health.get(name)
            word = printed(value)
            if value is None:
                reason = f"nvidia-smi -q has no Fabric Health {name} for it"
                checks.append(unknown("nvlink_status.fabric_health", gpu.subject, reason, _AGAIN))
            elif word is None:
                continue
            elif word in _HEALTHY[name]:
                said += 1
            else:
                reason = f"Fabric Health {name}"
                limit = " or ".join(_HEALTHY[name])
                checks.append(
                    Check(
                        "nvlink_status.fabric_health", gpu.subject, "fail", reason, shown(word), limit, "", _DCGM, _DOWN
                    )
                )
    if said and not checks:
        reason = f"{said} Fabric Health lines of {len(query.gpus)} GPUs"
        checks.append(Check("nvlink_status.fabric_health", "all GPUs", "pass", reason, "healthy", "healthy", "", _DCGM))
    return checks


def _fabric_clique(query: Query) -> list[Check]:
    """Judge that all GPUs that are in the fabric are in the same part of it."""
    cliques: dict[str, list[str]] = {}
    for gpu in query.gpus:
        cluster, clique = printed(gpu.get("Fabric/ClusterUUID")), printed(gpu.get("Fabric/CliqueId"))
        if cluster is not None and clique is not None and gpu.get("Fabric/State") == "Completed":
            cliques.setdefault(f"{cluster.lower()} clique {clique}", []).append(gpu.subject)
    if not cliques:
        return []
    source, reason = "board with NVSwitch", "cluster and clique of the GPUs"
    if len(cliques) == 1:
        value = next(iter(cliques))
        return [Check("nvlink_status.fabric_clique", "all GPUs", "pass", reason, shown(value), "one", "", source)]
    value = "; ".join(f"{shown(name)}: {', '.join(gpus)}" for name, gpus in sorted(cliques.items()))
    reason = "the GPUs are in several parts of the fabric and cannot reach each other"
    return [Check("nvlink_status.fabric_clique", "node", "fail", reason, value, "one", "", source, _DOWN)]


def readings(status: Report | None, errors: Report | None, query: Query | None) -> list[dict[str, Any]]:
    """Return what was read of each GPU, for reports. A speed of None is an inactive link."""
    rows: dict[int, dict[str, Any]] = {}

    def row(index: int) -> dict[str, Any]:
        return rows.setdefault(index, {"index": index})

    for gpu in status.gpus if status else ():
        row(gpu.index).update(
            uuid=gpu.uuid, active=len(gpu.active), speeds={str(n): speed for n, speed in sorted(gpu.links.items())}
        )
    for gpu in errors.gpus if errors else ():
        row(gpu.index)["errors"] = {
            str(link): nonzero
            for link, of_link in sorted(gpu.counters.items())
            if (nonzero := {name: value for name, value in of_link.items() if value and name not in _BER})
        }
    for described in query.gpus if query else ():
        row(described.index).update(
            fabric_state=described.get("Fabric/State"),
            fabric_status=described.get("Fabric/Status"),
            fabric_clique=number(described.get("Fabric/CliqueId")),
            fabric_cluster=printed(described.get("Fabric/ClusterUUID")),
        )
    return [rows[index] for index in sorted(rows)]

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limits of the fabric sweep by the number of switches on the way, and the judgement of one stored output."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _board_profiles, _cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ibping import Ping, parse_statistics
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._perftest import (
    DEFECTS,
    explain,
    header,
    parse_latency,
    runs,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, compare, unknown

LONGEST_PATH = 3
"""Switches between two leaves of a two-tier fabric: leaf, spine, leaf."""
P99_US = 4.2
P99_SOURCE = "imbue-ai/cluster-health gates NDR at p99 4.2 us"
READ_US = 4.5
READ_SOURCE = "Mellanox/ngc_multinode_perf pull request 97: 4.5 us for read"
READ_P99_US = 2 * P99_US
READ_P99_SOURCE = f"a read is a whole round trip, so twice the write's: {P99_SOURCE}"
SMALL_MESSAGE = 256
"""Bytes up to which a message adds nothing to see to a latency; the limits were measured with 2 to 32 bytes."""
INVENTORY = "inventory"

LATENCY_REMEDY = "Reseat or replace the cable, compare firmware and PCIe link of both HCAs, then run the gate again."
LOSS_REMEDY = (
    "Read the error counters of both ports (ibqueryerrors), reseat or replace the cable, then run the gate again."
)


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """A limit and where it comes from; value None: no limit is known."""

    value: float | None
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Explicit limits beat the profile's; without either there is no limit and nothing may pass."""

    profile: _board_profiles.Profile | None = None
    max_latency_us: float | None = None
    max_p99_us: float | None = None
    max_loss_percent: float | None = None

    @classmethod
    def of(
        cls, profile: str | None, max_latency_us: float | None, max_p99_us: float | None, max_loss_percent: float | None
    ) -> Limits:
        """Return the limits of a module's options; raise ValueError for a profile that is not known."""
        return cls(_board_profiles.profile(profile) if profile else None, max_latency_us, max_p99_us, max_loss_percent)

    def latency(self, switches: int | None) -> Limit:
        """Return the limit of the typical latency; a path that is not known is held to the limit of the longest one."""
        if self.max_latency_us is not None:
            return Limit(self.max_latency_us, INVENTORY)
        if self.profile is None:
            return Limit(None, "")
        number = self.profile.ib_write_lat_us(LONGEST_PATH if switches is None else switches)
        path = (
            "leaf not known, longest path" if switches is None else f"{switches} switch{'es' if switches != 1 else ''}"
        )
        return Limit(float(number.value) if number else None, f"{self.profile.source}, {path}")

    def p99(self) -> Limit:
        """Return the limit of the 99th percentile."""
        return Limit(P99_US, P99_SOURCE) if self.max_p99_us is None else Limit(self.max_p99_us, INVENTORY)

    def of_verb(self, verb: str | None) -> tuple[Limit, Limit]:
        """Return the limits of the typical latency and its 99th percentile over one switch by what was measured.

        A read or an atomic is a whole round trip, a write or a send half of one.
        """
        typical, tail = self.latency(1), self.p99()
        if verb in ("read", "atomic"):
            if self.max_latency_us is None and self.profile is not None:
                typical = Limit(READ_US, READ_SOURCE)
            if self.max_p99_us is None:
                tail = Limit(READ_P99_US, READ_P99_SOURCE)
        return typical, tail

    def loss(self) -> Limit:
        """Return the limit of the loss in percent."""
        if self.max_loss_percent is not None:
            return Limit(self.max_loss_percent, INVENTORY)
        if self.profile is None:
            return Limit(None, "")
        return Limit(float(self.profile.ibping_loss.value) * 100.0, self.profile.source)


def options_problem(options: Mapping[str, Any]) -> str | None:
    """Return which limit among a module's options is none and could pass or fail everything, None when all are fit."""
    for name in ("max_latency_us", "max_p99_us"):
        value = options.get(name)
        if value is not None and not (0 < value < math.inf):
            return f"Option {name}: {value}. Give microseconds above 0."
    loss = options.get("max_loss_percent")
    if loss is not None and not 0 <= loss < 100:
        return f"Option max_loss_percent: {loss}. Give percent from 0 to below 100."
    above = options.get("max_above_median_us")
    if above is not None and not math.isfinite(above):
        return f"Option max_above_median_us: {above}. Give microseconds, or a negative number to switch it off."
    return None


def loss_reason(sent: int, received: int) -> str:
    """Return what the two counts show. Without a loss, n packets rule out a loss above 3/n with 95 % confidence."""
    proof = f", which rules out a loss above {round(300.0 / sent, 4):g} % (95 % confidence)" if sent == received else ""
    return f"{sent - received} of {sent} packets lost{proof}"


def switches_between(one: str | None, other: str | None) -> int | None:
    """Return the number of switches between HCAs on two leaves: 1 on the same, 3 over a spine, None when not known."""
    if not one or not other:
        return None
    return 1 if one == other else LONGEST_PATH


def judge_latency(subject: str, text: str, limits: Limits) -> list[Check]:
    """Return the checks of one run of a perftest latency test, held to the limits for one switch."""
    name = "ib_latency.latency"
    read, verb = parse_latency(text), header(text).verb
    limit, tail = limits.of_verb(verb)
    if read.error is not None:
        if not read.error.startswith(DEFECTS):
            return [unknown(name, subject, read.error, "Run it again with -n 1000 and keep all of its output.")]
        remedy = "RDMA does not work between these ports, whatever IP says: check both ports and the subnet manager."
        return [Check(name, subject, "fail", read.error, None, limit.value, "us", limit.source, remedy)]
    if read.t_typical_us is None:
        return [
            unknown(
                name, subject, "the run has no median", "Run it with -n 1000 in place of -D.", limit.value, limit.source
            )
        ]
    what = "a whole round trip" if verb in ("read", "atomic") else "half of the round trip"
    largest = f"; t_max {read.t_max_us:g} us is information only" if read.t_max_us is not None else ""
    ok = limit.value is not None and 0 < read.t_typical_us <= limit.value
    if not ok and (read.size or 0) > SMALL_MESSAGE:
        reason = f"the run has messages of {read.size} bytes, and the limit is one for {SMALL_MESSAGE} or less"
        return [unknown(name, subject, reason, "Run it without -s.", limit.value, limit.source)]
    checks = [
        compare(
            name,
            subject,
            read.t_typical_us,
            limit.value,
            ok=ok,
            unit="us",
            limit_source=limit.source,
            reason=f"typical latency, {what}{largest}",
            remedy=LATENCY_REMEDY,
        )
    ]
    if read.p99_us is not None:
        ok = tail.value is not None and 0 < read.p99_us <= tail.value
        checks.append(
            compare(
                "ib_latency.p99",
                subject,
                read.p99_us,
                tail.value,
                ok=ok,
                unit="us",
                limit_source=tail.source,
                reason=f"99th percentile, {what}",
                remedy=LATENCY_REMEDY,
            )
        )
    return checks


def judge_ping(subject: str, read: Ping, limits: Limits) -> list[Check]:
    """Return the check of one ibping output: the loss from its two counts, never its printed percentage or times."""
    limit, loss = limits.loss(), read.loss_percent
    if loss is None or read.sent is None or read.received is None:
        return [
            unknown(
                "ib_latency.loss", subject, read.error or "nothing was sent", "Run it again and keep all of its output."
            )
        ]
    return [
        compare(
            "ib_latency.loss",
            subject,
            round(loss, 6),
            limit.value,
            ok=limit.value is not None and loss <= limit.value,
            unit="%",
            limit_source=limit.source,
            reason=loss_reason(read.sent, read.received),
            remedy=LOSS_REMEDY,
        )
    ]


def judge_captured(path: str, limits: Limits) -> tuple[list[Check], list[Evidence], list[dict[str, Any]]]:
    """Judge stored outputs of perftest's latency tests and ibping: a file, or every file of a directory.

    Return the checks, what was read, and the numbers of each run.
    """
    checks: list[Check] = []
    readings: list[dict[str, Any]] = []
    evidence = captured_files(path)
    for file, read in evidence:
        if read.error is not None:
            checks.append(unknown("ib_latency.latency", file, read.error, "Name a file that holds the tool's output."))
            continue
        if looks_like_ibping(read.stdout):
            ping = parse_statistics(read.stdout)
            checks += judge_ping(file, ping, limits)
            readings.append(
                {"subject": file, "tool": "ibping", "sent": ping.sent, "received": ping.received,
                 "loss_percent": ping.loss_percent, "error": ping.error}
            )  # fmt: skip
            continue
        for subject, text in each_run(file, read.stdout):
            checks += judge_latency(subject, text, limits)
            readings.append({"subject": subject, **dataclasses.asdict(header(text)), **parse_latency(text).as_dict()})
    return checks, [read for _file, read in evidence], readings


def captured_files(path: str) -> list[tuple[str, Evidence]]:
    """Return (name, text) of a stored file or of every file of a directory."""
    files = sorted(p for p in Path(path).iterdir() if p.is_file()) if Path(path).is_dir() else [Path(path)]
    return [(file.name, _cli.read_captured(str(file))) for file in files]


def each_run(file: str, text: str) -> list[tuple[str, str]]:
    """Return (subject, text) of each run in a file; a failure below the last table belongs to the run above it."""
    found = runs(text)
    if len(found) == 1:
        return [(file, text)]
    return [
        (f"{file} run {index + 1}" + (f" {device}" if (device := header(part).device) else ""), part)
        for index, part in enumerate(found)
    ]


def looks_like_ibping(text: str) -> bool:
    """Return whether the text is ibping's and not perftest's."""
    if explain(text) is not None or "#bytes" in text:
        return False
    return any(mark in text for mark in ("ibping", "Pong from", "packets transmitted"))

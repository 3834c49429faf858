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
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._perftest import Latency, explain, parse_latency
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, compare, unknown

LONGEST_PATH = 3
"""Switches between two leaves of a two-tier fabric: leaf, spine, leaf."""
P99_US = 4.2
P99_SOURCE = "imbue-ai/cluster-health gates NDR at p99 4.2 us"
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


def judge_latency(subject: str, read: Latency, limits: Limits) -> list[Check]:
    """Return the checks of one ib_write_lat output, held to the limit for one switch."""
    name = "ib_latency.latency"
    limit, tail = limits.latency(1), limits.p99()
    if read.error is not None:
        failed = read.error.startswith(("completion with", "Completion with", "Unable to Connect", "Port number"))
        remedy = (
            "RDMA does not work between these ports, whatever IP says: check both ports and the subnet manager."
            if failed
            else ""
        )
        verdict = Check(name, subject, "fail", read.error, None, limit.value, "us", limit.source, remedy)
        return [
            verdict
            if failed
            else unknown(name, subject, read.error, "Run it again with -n 1000 and keep all of its output.")
        ]
    if read.t_typical_us is None:
        return [
            unknown(
                name, subject, "the run has no median", "Run it with -n 1000 in place of -D.", limit.value, limit.source
            )
        ]
    checks = [
        compare(
            name,
            subject,
            read.t_typical_us,
            limit.value,
            ok=limit.value is not None and 0 < read.t_typical_us <= limit.value,
            unit="us",
            limit_source=limit.source,
            reason="typical latency, half of the round trip",
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
                reason="99th percentile, half of the round trip",
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


def judge_captured(path: str, limits: Limits) -> tuple[list[Check], list[Evidence]]:
    """Judge one stored output of ib_write_lat or ibping, or every file of a directory of them."""
    files = sorted(p for p in Path(path).iterdir() if p.is_file()) if Path(path).is_dir() else [Path(path)]
    checks: list[Check] = []
    evidence = [_cli.read_captured(str(file)) for file in files]
    for file, read in zip(files, evidence, strict=True):
        if read.error is not None:
            checks.append(
                unknown("ib_latency.latency", file.name, read.error, "Name a file that holds the tool's output.")
            )
        elif looks_like_ibping(read.stdout):
            checks += judge_ping(file.name, parse_statistics(read.stdout), limits)
        else:
            checks += judge_latency(file.name, parse_latency(read.stdout), limits)
    return checks, evidence


def looks_like_ibping(text: str) -> bool:
    """Return whether the text is ibping's and not perftest's."""
    if explain(text) is not None or "#bytes" in text:
        return False
    return any(mark in text for mark in ("ibping", "Pong from", "packets transmitted"))

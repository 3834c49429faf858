# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limits of RDMA bandwidth and the judgement of stored perftest output. Pure but for reading the files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _board_profiles
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._latency_limits import (
    INVENTORY,
    Limit,
    captured_files,
    each_run,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._perftest import DEFECTS, header, parse_bandwidth
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, compare, unknown

SHARE_OF_RATE = 0.9
SHARE_SOURCE = "0.9 of the port's rate (Mellanox/ngc_multinode_perf)"
REMEDY = "Check PCIe width and speed of both HCAs (LnkSta), the port's rate and its cable, then run the gate again."
WEAK_PROBE = (
    "64 KiB on one queue pair shows less than the link carries (linux-rdma/perftest issues 252, 318): run it with "
    "-s 1048576 -q 4 before any hardware is touched."
)


@dataclasses.dataclass(frozen=True, slots=True)
class BandwidthLimits:
    """The floor of one direction: named, or a share of the port's rate, or the profile's."""

    profile: _board_profiles.Profile | None = None
    min_gbps: float | None = None
    rate_gbps: float | None = None

    @classmethod
    def of(cls, profile: str | None, min_gbps: float | None, rate_gbps: float | None) -> BandwidthLimits:
        """Return the limits of a module's options; raise ValueError for a profile that is not known."""
        return cls(_board_profiles.profile(profile) if profile else None, min_gbps, rate_gbps)

    def floor(self, bidirectional: bool = False) -> Limit:
        """Return the lowest bandwidth in Gb/s, for the sum of both directions where the run has both."""
        limit = self._floor()
        if limit.value is None or not bidirectional:
            return limit
        return Limit(2 * limit.value, f"both directions, each {limit.value:g}: {limit.source}")

    def _floor(self) -> Limit:
        if self.min_gbps is not None:
            return Limit(self.min_gbps, INVENTORY)
        if self.rate_gbps is not None:
            return Limit(round(SHARE_OF_RATE * self.rate_gbps, 2), SHARE_SOURCE)
        if self.profile is None:
            return Limit(None, "")
        return Limit(float(self.profile.ib_write_bw_gbps.value), self.profile.source)


def judge_run(subject: str, text: str, limits: BandwidthLimits) -> Check:
    """Return the check of one run of a perftest bandwidth test."""
    name, about = "ib_bandwidth.bandwidth", header(text)
    limit = limits.floor(about.bidirectional)
    if about.what == "latency":
        return unknown(name, subject, "this is the output of a latency test", "Judge it with ib_latency.")
    read = parse_bandwidth(text, "--report_gbits" in text)
    if read.error is not None:
        if not read.error.startswith(DEFECTS):
            return unknown(name, subject, read.error, "Run it again and keep all of its output.", limit.value)
        remedy = "RDMA does not work between these ports, whatever IP says: check both ports and the subnet manager."
        return Check(name, subject, "fail", read.error, None, limit.value, "Gb/s", limit.source, remedy)
    weak = (read.size or 0) <= 65536 and (about.qps or 1) == 1
    value = None if read.average_gbps is None else round(read.average_gbps, 2)
    return compare(
        name,
        subject,
        value,
        limit.value,
        ok=value is not None and limit.value is not None and value >= limit.value,
        unit="Gb/s",
        limit_source=limit.source,
        reason=f"average of RDMA {about.verb or 'traffic'}, {read.size} bytes a message, {about.qps or 1} queue pairs",
        remedy=WEAK_PROBE if weak else REMEDY,
    )


def judge_captured(path: str, limits: BandwidthLimits) -> tuple[list[Check], list[Evidence], list[dict[str, Any]]]:
    """Judge stored outputs of perftest's bandwidth tests: a file, or every file of a directory.

    Return the checks, what was read, and the numbers of each run.
    """
    checks: list[Check] = []
    readings: list[dict[str, Any]] = []
    evidence = captured_files(path)
    for file, read in evidence:
        if read.error is not None:
            checks.append(
                unknown("ib_bandwidth.bandwidth", file, read.error, "Name a file that holds the tool's output.")
            )
            continue
        for subject, text in each_run(file, read.stdout):
            checks.append(judge_run(subject, text, limits))
            numbers = parse_bandwidth(text, "--report_gbits" in text)
            readings.append({"subject": subject, **dataclasses.asdict(header(text)), **numbers.as_dict()})
    return checks, [read for _file, read in evidence], readings


def options_problem(options: Mapping[str, Any]) -> str | None:
    """Return what is wrong with the limits among a module's options, None when nothing is."""
    for name in ("min_gbps", "rate_gbps"):
        value = options.get(name)
        if value is not None and not 0 < value < 1e5:
            return f"Option {name}: {value}. Give Gb/s above 0."
    return None

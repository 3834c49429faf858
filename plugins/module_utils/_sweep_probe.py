# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a sweep measures: the perftest tool, its arguments, and how its output becomes fields of a row. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._perftest import parse_bandwidth, parse_latency

FIELDS = (
    "t_min_us",
    "t_typical_us",
    "p99_us",
    "p999_us",
    "t_max_us",
    "iterations",
    "bw_gbps",
    "bw_peak_gbps",
    "sent",
    "received",
    "loss",
    "mad_rtt_ms",
    "retransmissions",
)
"""The measured fields of a row; null where the sweep does not measure it or could not."""


@dataclasses.dataclass(frozen=True, slots=True)
class Probe:
    """One kind of measurement between two ports. `read` returns fields of the row, or the reason why there are none."""

    tool: str
    arguments: tuple[str, ...]
    read: Callable[[str], tuple[dict[str, Any], str | None]]
    ping: bool


def latency(iterations: int) -> Probe:
    """Return the measurement of RDMA write latency, with ibping for the loss."""

    def read(text: str) -> tuple[dict[str, Any], str | None]:
        row = parse_latency(text, iterations)
        return {key: value for key, value in row.as_dict().items() if key in FIELDS}, row.error

    return Probe("ib_write_lat", ("-n", str(iterations), "-F"), read, True)


def bandwidth(iterations: int, message_size: int, queue_pairs: int) -> Probe:
    """Return the measurement of RDMA write bandwidth in one direction."""

    def read(text: str) -> tuple[dict[str, Any], str | None]:
        row = parse_bandwidth(text, gbits=True)
        if row.error is None and row.iterations is not None and row.iterations < iterations:
            return {}, f"{row.iterations} iterations were measured, {iterations} were asked for"
        return {"bw_gbps": row.average_gbps, "bw_peak_gbps": row.peak_gbps, "iterations": row.iterations}, row.error

    size, pairs = str(message_size), str(queue_pairs)
    return Probe("ib_write_bw", ("-s", size, "-q", pairs, "-n", str(iterations), "-F", "--report_gbits"), read, False)

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parser of ibping's statistics. Pure.

Only the two counts are used. The printed percentage is cut to an integer (9 lost of 1000 reads 0%), and the printed
times are wrong by a factor of ten inside a second and by about 900 ms across one (rdma-core,
infiniband-diags/ibping.c).
"""

from __future__ import annotations

import dataclasses
import re

_COUNTS = re.compile(r"^[ \t]*([0-9]{1,9}) packets transmitted, ([0-9]{1,9}) received\b", re.MULTILINE)
_TROUBLE = re.compile(r"(?:ibpanic|iberror|ibwarn)\S{0,40}\s|can't (?:resolve|register|serve)|Failed to open")


@dataclasses.dataclass(frozen=True, slots=True)
class Ping:
    """Packets sent and answered, or None for both with the reason in `error`."""

    sent: int | None = None
    received: int | None = None
    error: str | None = None

    @property
    def loss_percent(self) -> float | None:
        """Return lost packets in percent from the two counts; None when nothing was sent."""
        if not self.sent or self.received is None:
            return None
        return (self.sent - self.received) * 100.0 / self.sent


def parse_statistics(text: str, interrupted: bool = False) -> Ping:
    """Return the counts of the statistics block.

    `interrupted`: ibping was stopped by a signal. It counts the packet that was under way as sent, though nobody waited
    for its answer, so one missing answer is not held against the link then (unless nothing at all was answered).
    """
    found = _COUNTS.findall(text)
    if not found:
        trouble = next((line for line in text.splitlines() if _TROUBLE.search(line)), None)
        return Ping(error=trouble.strip()[:200] if trouble else f"no statistics line in {_excerpt(text)}")
    # Also a line whose counts cannot be read is one: which of the two is the truth nobody can say.
    if (lines := text.count("packets transmitted")) > 1:
        return Ping(error=f"{lines} statistics lines, one was expected")
    sent, received = (int(count) for count in found[0])
    if received > sent:
        return Ping(error=f"{received} received of {sent} sent cannot be")
    if sent == 0:
        return Ping(error="no packet was sent")
    if interrupted and 0 < received < sent:
        sent -= 1
    return Ping(sent, received)


def round_trip_ms(sent: int | None, received: int | None, seconds: float | None) -> float | None:
    """Return an upper bound of the mean MAD round trip by the wall clock, None when nothing came back.

    `seconds` is the run time of `ibping -f`, start of the program included, so the true round trip is shorter.
    """
    if not sent or not received or seconds is None:
        return None
    return round(seconds * 1000.0 / sent, 4)


def _excerpt(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return repr(lines[-1][:120]) if lines else "empty output"

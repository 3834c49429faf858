# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""No text makes a parser of the fabric raise, and no garbage passes."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._bandwidth import BandwidthLimits, judge_run
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ibping import parse_statistics
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._latency_limits import (
    Limits,
    each_run,
    judge_latency,
    judge_ping,
    looks_like_ibping,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._perftest import (
    header,
    parse_bandwidth,
    parse_latency,
    runs,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import worst
from hypothesis import example, given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
LATENCY = Limits.of("hgx_h100_8", None, None, None)
BANDWIDTH = BandwidthLimits.of("hgx_h100_8", None, None)

Judge = Callable[[str], str]


def latency(text: str) -> str:
    return worst(
        check.verdict for subject, run in each_run("x", text) for check in judge_latency(subject, run, LATENCY)
    )


def bandwidth(text: str) -> str:
    return worst(judge_run(subject, run, BANDWIDTH).verdict for subject, run in each_run("x", text))


def ping(text: str) -> str:
    return worst(check.verdict for check in judge_ping("x", parse_statistics(text), LATENCY))


CASES: list[tuple[Judge, str]] = [
    (latency, "perftest-4.5-ib_write_lat.txt"),
    (latency, "perftest-4.5-ib_write_lat.json"),
    (latency, "perftest-4.5-ib_read_lat.txt"),
    (bandwidth, "perftest-24.10-ib_write_bw-ndr.txt"),
    (bandwidth, "perftest-24.10-ib_write_bw-all-sizes.txt"),
    (bandwidth, "perftest-24.10-ib_write_bw.json"),
    (bandwidth, "perftest-24.10-ib_write_bw-bidirectional.txt"),
]


@given(st.text())
@example("BW average[")
@example("{results: BW_average: 1,}")
@example("RDMA_Write BW Test" * 3)
def test_any_text_is_read_and_never_passes(text: str) -> None:
    assert len("".join(runs(text))) <= len(text)
    header(text)
    looks_like_ibping(text)
    assert {latency(text), bandwidth(text), ping(text)} <= {"fail", "unknown"}


@given(st.text(alphabet='0123456789. \n#bytesBWavergkpi[Gb/sec]MsgRate{}:,"_t-', max_size=400))
def test_text_of_the_tools_own_letters_never_passes(text: str) -> None:
    table = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    for judge in (latency, bandwidth, ping):
        judge(text)
        judge(table + text)


@pytest.mark.parametrize(("judge", "name"), CASES)
def test_a_cut_output_never_passes(judge: Judge, name: str) -> None:
    text = (FIXTURES / name).read_text()
    assert judge(text) == "pass"
    # Everything up to the last digit of the last row is judged; what is below it is a line of dashes or braces.
    last = max(index for index, letter in enumerate(text) if letter.isdigit())
    for end in range(0, last, 7):
        assert judge(text[:end]) != "pass" or _same_row(judge, text, text[:end]), (name, end, text[end - 30 : end])


def _same_row(judge: Judge, text: str, cut: str) -> bool:
    """Return whether the cut took no digit of what is judged: rows of other sizes, or the digits after the decision."""
    if judge is bandwidth:
        whole, part = parse_bandwidth(text), parse_bandwidth(cut)
        return (whole.average_gbps, whole.size) == (part.average_gbps, part.size) and part.error is None
    return parse_latency(text).t_typical_us == parse_latency(cut).t_typical_us


@pytest.mark.parametrize(("judge", "name"), CASES)
@pytest.mark.parametrize("seed", range(60))
def test_a_mutated_output_is_judged_and_a_lost_row_never_passes(judge: Judge, name: str, seed: int) -> None:
    draw = random.Random(seed)
    lines = (FIXTURES / name).read_text().splitlines(keepends=True)
    kind = draw.choice(["delete", "duplicate", "swap", "digit"])
    one, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    gone = lines[one]
    if kind == "delete":
        del lines[one]
    elif kind == "duplicate":
        lines.insert(one, lines[one])
    elif kind == "swap":
        lines[one], lines[other] = lines[other], lines[one]
    else:
        lines[one] = "".join(str(draw.randrange(10)) if c.isdigit() and draw.random() < 0.3 else c for c in lines[one])
    verdict = judge("".join(lines))
    assert verdict in ("pass", "warn", "fail", "unknown")
    if kind == "delete" and ("#bytes" in gone or "BW_average" in gone or "t_typical" in gone):
        assert verdict != "pass"


@given(st.integers(0, 10**12), st.integers(0, 10**12))
def test_only_counts_decide_about_a_loss(sent: int, received: int) -> None:
    text = f"--- x (Lid 3) ibping statistics ---\n{sent} packets transmitted, {received} received, 0% packet loss"
    expected = "pass" if sent == received and 0 < sent < 10**9 else None
    verdict = ping(text)
    assert verdict == expected if expected else verdict in ("fail", "unknown")


@pytest.mark.parametrize(
    "text",
    [
        "Pong from node3.(none) (Lid 205): time 0.008 ms\n--- node3.(none) (Lid 205) ibping statistics ---\n"
        "5 packets transmitted, 5 received, 0% packet loss, time 4045ms\nrtt min/avg/max = 0.007/0.009/0.016 ms\n",
        "--- lid 3 ibping statistics ---\n5 packets transmitted, 5 received, 0% packet loss\n",
        "^C\n--- ampere.(none) (Lid 2) ibping statistics ---\n28 packets transmitted, 28 received, 0% packet loss, "
        "time 27905 ms\nrtt min/avg/max = 0.057/0.075/0.081 ms\n",
    ],
)
def test_statistics_of_several_releases(text: str) -> None:
    assert looks_like_ibping(text)
    assert ping(text) == "pass"

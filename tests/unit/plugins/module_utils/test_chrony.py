# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the reader and the judgement of chronyc."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _chrony as chrony
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, worst
from hypothesis import given, settings
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
TRACKING, SOURCES, UNSYNC, LOCAL, HUMAN, HUMAN_SOURCES = (
    (FIXTURES / f"chrony-4.3-{name}").read_text()
    for name in (
        "tracking.csv",
        "sources.csv",
        "tracking-unsynchronised.csv",
        "tracking-local.csv",
        "tracking.txt",
        "sources.txt",
    )
)
SERVER = "172.31.77.10"


def judge(
    tracking: str, sources: str | None, allowed: set[str] | None = None, limit: float | None = 5.0
) -> list[Check]:
    return chrony.judge(
        chrony.parse_tracking(tracking),
        None if sources is None else chrony.parse_sources(sources),
        allowed=allowed or set(),
        max_offset_ms=limit,
        offset_source="test",
        max_stratum=15,
    )


def bad(checks: list[Check]) -> dict[str, str]:
    return {c.check.removeprefix("clock_sync."): c.verdict for c in checks if c.verdict != "pass"}


def test_csv_reads_what_the_verdict_needs() -> None:
    found = chrony.parse_tracking(TRACKING)
    assert (found.ref_id, found.ref_name, found.stratum, found.offset_s, found.leap) == (
        "AC1F4D0A",
        SERVER,
        9,
        0.000012345,
        "Normal",
    )
    assert chrony.parse_sources(SOURCES) == [chrony.Server("^", "*", SERVER, 8, 0o377)]


def test_the_form_people_see_reads_alike() -> None:
    found = chrony.parse_tracking(HUMAN)
    assert (found.ref_id, found.ref_name, found.stratum, found.offset_s, found.leap) == (
        "AC1F4D0A",
        "ntp1.site.example",
        3,
        0.000412345,
        "Normal",
    )
    assert [(s.state, s.name, s.reach) for s in chrony.parse_sources(HUMAN_SOURCES)] == [
        ("*", "ntp1.site.example", 255),
        ("+", "ntp2.site.example", 255),
    ]


FOREIGN = SOURCES + "^,+,203.0.113.7,2,6,377,23,0.000012345,0.000015432,0.000234567\n"
CASES = {
    "synchronised": (TRACKING, SOURCES, {SERVER}, {}),
    "synchronised, tracking alone": (HUMAN, None, None, {}),
    "leap second announced": (TRACKING.replace("Normal", "Insert second"), SOURCES, None, {}),
    "not synchronised": (
        UNSYNC,
        SOURCES.replace("^,*", "^,?").replace("377", "0"),
        None,
        {"leap": "fail", "reference": "fail", "source": "fail"},
    ),
    "follows itself": (LOCAL, SOURCES.replace("^,*", "^,?"), None, {"reference": "fail", "source": "fail"}),
    "follows itself, tracking alone": (LOCAL, None, None, {"reference": "fail", "source": "fail"}),
    "no source configured": (TRACKING, "", None, {"source": "fail"}),
    "selected source silent": (TRACKING, SOURCES.replace("377", "0"), None, {"source": "fail"}),
    "source is no server of the site": (TRACKING, SOURCES, {"10.0.0.1"}, {"servers": "fail"}),
    "a second, foreign source": (TRACKING, FOREIGN, {SERVER}, {"servers": "fail"}),
    "6 ms off": (TRACKING.replace("0.000012345", "-0.006"), SOURCES, None, {"offset": "fail"}),
    "stratum 16": (TRACKING.replace(",9,", ",16,"), SOURCES, None, {"reference": "fail"}),
    "stratum 0": (TRACKING.replace(",9,", ",0,"), SOURCES, None, {"reference": "fail"}),
}


@pytest.mark.parametrize(("tracking", "sources", "allowed", "wanted"), CASES.values(), ids=CASES.keys())
def test_verdicts(tracking: str, sources: str | None, allowed: set[str] | None, wanted: dict[str, str]) -> None:
    assert bad(judge(tracking, sources, allowed)) == wanted


def test_offset_at_the_limit_passes_and_above_fails() -> None:
    at, above = (TRACKING.replace("0.000012345", value) for value in ("0.005000000", "0.005000100"))
    assert bad(judge(at, SOURCES)) == {}
    assert bad(judge(above, SOURCES)) == {"offset": "fail"}


def test_a_missing_limit_is_unknown() -> None:
    assert bad(judge(TRACKING, SOURCES, limit=None)) == {"offset": "unknown"}


REFUSED = {
    "daemon not running": ("506 Cannot talk to daemon\n", "506 Cannot talk to daemon"),
    "empty": ("", "the output is empty"),
    "not a report": ("chronyc: command not found\n", "no tracking report"),
    "cut off": (TRACKING[:60], "no tracking report"),
    "leap unknown": (TRACKING.replace("Normal", "Fine"), "unknown leap status"),
    "offset no number": (TRACKING.replace("0.000012345", "nan"), "offset of the system time"),
    "stratum no number": (TRACKING.replace(",9,", ",nine,"), "stratum cannot be read"),
    "reference no id": (TRACKING.replace("AC1F4D0A", "XYZ"), "reference id"),
    "line missing from the human form": (HUMAN.replace("Leap status     : Normal\n", ""), "has no line Leap status"),
    "words in the human form": (HUMAN.replace("0.000412345 seconds slow", "very slow"), "System time cannot be read"),
}


@pytest.mark.parametrize(("text", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_report_that_cannot_be_read_is_refused(text: str, reason: str) -> None:
    with pytest.raises(chrony.ChronyError, match=reason):
        chrony.parse_tracking(text)


@pytest.mark.parametrize("line", ["^,!,a,1,6,377,1,0,0,0", "^,*,a,x,6,377,1,0,0,0", "^,*,a,1,6,999,1,0,0,0", "hello"])
def test_a_source_that_cannot_be_read_is_refused(line: str) -> None:
    with pytest.raises(chrony.ChronyError, match="a source cannot be read"):
        chrony.parse_sources(line)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.text(max_size=200), st.text("0123456789,.:^*?- \nNormal", max_size=200)))
def test_garbage_raises_only_the_typed_error(garbage: str) -> None:
    with contextlib.suppress(chrony.ChronyError):
        chrony.parse_sources(garbage)
    with contextlib.suppress(chrony.ChronyError):
        assert worst(c.verdict for c in judge(garbage, "")) != "pass"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (TRACKING + UNSYNC, "more than one report: 00000000,"),
        (HUMAN + HUMAN, "more than one report, 'Reference ID' is there twice"),
        (UNSYNC + HUMAN, "more than one report: 00000000,"),
        (HUMAN + "Fatal error: could not connect\n", "an error message beside the report: Fatal error"),
    ],
    ids=["csv twice", "for people twice", "both forms", "an error after it"],
)
def test_more_than_one_report_is_unreadable(text: str, reason: str) -> None:
    with pytest.raises(chrony.ChronyError, match=reason):
        chrony.parse_tracking(text)


def test_many_blank_lines_cost_no_time() -> None:
    start = time.monotonic()
    assert chrony.parse_tracking("\n" * 100_000 + TRACKING) == chrony.parse_tracking(TRACKING)
    assert time.monotonic() - start < 2

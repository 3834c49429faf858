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
from hypothesis import given
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
    tracking: str,
    sources: str | None,
    allowed: set[str] | None = None,
    limit: float | None = 5.0,
    now: float | None = None,
) -> list[Check]:
    return chrony.judge(
        chrony.parse_tracking(tracking),
        None if sources is None else chrony.parse_sources(sources),
        chrony.Limits(allowed or set(), limit, "test"),
        now,
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
    assert chrony.parse_sources(SOURCES) == [chrony.Server("^", "*", SERVER, 8, 0o377, 0.000012345)]


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
        {
            "leap": "fail",
            "reference": "fail",
            "ref_age": "fail",
            "source": "fail",
            "root_distance": "fail",
            "reach": "warn",
        },
    ),
    "follows itself": (LOCAL, SOURCES.replace("^,*", "^,?"), None, {"reference": "fail", "source": "fail"}),
    "follows itself, tracking alone": (LOCAL, None, None, {"reference": "fail", "source": "fail"}),
    "no source configured": (TRACKING, "", None, {"source": "fail"}),
    "selected source silent": (TRACKING, SOURCES.replace("377", "0"), None, {"source": "fail", "reach": "warn"}),
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
    start = time.process_time()
    assert chrony.parse_tracking("\n" * 100_000 + TRACKING) == chrony.parse_tracking(TRACKING)
    assert time.process_time() - start < 2


V_LIST, DISAGREE, OLD, OLD_LOCAL, NEVER = (
    (FIXTURES / f"chrony-{name}.txt").read_text()
    for name in (
        "3.4-sources-v",
        "4.6-sources-disagree",
        "2.1-tracking",
        "2.1-tracking-local",
        "3.5-tracking-unsynchronised",
    )
)


def test_the_list_with_its_legend_is_read() -> None:
    assert chrony.parse_sources(V_LIST) == [
        chrony.Server("^", "+", "ntp1.site.example", 2, 0o377, pytest.approx(-0.00182)),
        chrony.Server("^", "*", "ntp2.site.example", 2, 0o377, pytest.approx(0.000741)),
        chrony.Server("^", "?", "ntp3.site.example", 0, 0, 0.0),
    ]
    assert all(chrony.is_source_line(line) for line in V_LIST.splitlines() if line.strip())
    assert not any(chrony.is_source_line(line) for line in (OLD + NEVER + TRACKING).splitlines())


def test_a_list_that_is_not_whole_is_refused() -> None:
    cut = "".join(V_LIST.splitlines(keepends=True)[:-1])
    with pytest.raises(chrony.ChronyError, match="announces 3 sources and lists 2, the list is not whole"):
        chrony.parse_sources(cut)
    with pytest.raises(chrony.ChronyError, match="a source cannot be read"):
        chrony.parse_sources(HUMAN_SOURCES.rstrip()[:-2])
    assert len(chrony.parse_sources(V_LIST + "210 Number of sources = 1\n")) == 3


def test_sources_that_disagree() -> None:
    found = chrony.parse_sources(DISAGREE)
    assert [(s.mode, s.state, s.name, s.reach, round(s.offset_s, 9)) for s in found] == [
        ("#", "-", "PPS0", 255, -8.3e-08),
        ("^", "*", "time-server-of-hall-two-a>", 255, -1.2e-05),
        ("^", "x", "2001:db8::17", 255, 1140.0),
        ("^", "~", "192.0.2.44", 31, 0.00812),
    ]
    checks = judge(OLD, DISAGREE)
    assert [(c.check, c.subject, c.verdict) for c in checks if c.verdict != "pass"] == [
        ("clock_sync.agreement", "2001:db8::17", "warn"),
        ("clock_sync.agreement", "192.0.2.44", "warn"),
    ]


@pytest.mark.parametrize(
    ("allowed", "wanted"),
    [
        ({"time-server-of-hall-two-a.site.example"}, {}),
        ({"time-server-of-hall-three.site.example"}, {"servers": "fail"}),
        ({"time-server-of-hall-two-a.one", "time-server-of-hall-two-a.two"}, {"servers": "fail"}),
    ],
)
def test_a_name_that_chronyc_cut_is_known_by_its_beginning(allowed: set[str], wanted: dict[str, str]) -> None:
    line = "\n".join(line for line in DISAGREE.splitlines() if "hall" in line)
    assert bad(judge(OLD, line, allowed)) == wanted


def test_reports_of_old_chrony() -> None:
    found = chrony.parse_tracking(OLD)
    assert (found.ref_id, found.stratum, found.ref_time_s, found.root_delay_s, found.root_dispersion_s) == (
        "C000020A",
        3,
        1486134029.0,
        0.012169,
        0.02478,
    )
    assert bad(judge(OLD, None)) == {}
    assert bad(judge(OLD_LOCAL, None)) == {"reference": "fail", "source": "fail"}
    assert bad(judge(NEVER, None)) == {
        "leap": "fail",
        "reference": "fail",
        "ref_age": "fail",
        "source": "fail",
        "root_distance": "fail",
    }


def by_name(checks: list[Check], name: str) -> Check:
    return next(c for c in checks if c.check == f"clock_sync.{name}")


@pytest.mark.parametrize(
    ("age", "verdict", "value"),
    [
        (0.0, "pass", 0.0),
        (4096.0, "pass", 4096.0),
        (4097.0, "fail", 4097.0),
        (-1.0, "pass", 0.0),
        (-60.0, "unknown", None),
    ],
)
def test_the_age_of_the_last_correction(age: float, verdict: str, value: float | None) -> None:
    check = by_name(judge(OLD, None, now=1486134029.0 + age), "ref_age")
    assert (check.verdict, check.value, check.limit) == (verdict, value, 4096.0)


def test_a_time_of_the_last_correction_that_cannot_be_read_is_unknown() -> None:
    for text in ("Fri Feb  3 15:00:29 0017", "yesterday", ""):
        check = by_name(judge(OLD.replace("Fri Feb  3 15:00:29 2017", text), None, now=1.5e9), "ref_age")
        assert check.verdict == "unknown"
    assert not any(c.check == "clock_sync.ref_age" for c in judge(OLD, None))


def test_the_root_distance_is_half_the_delay_and_the_dispersion() -> None:
    check = by_name(judge(OLD, None), "root_distance")
    assert (check.value, check.limit, check.verdict) == (30.8645, 500.0, "pass")
    far = OLD.replace("0.024780", "0.494000")
    assert by_name(judge(far, None), "root_distance").verdict == "fail"
    for text in ("nan", "-0.1", "much"):
        assert by_name(judge(OLD.replace("0.024780", text), None), "root_distance").verdict == "unknown"


def test_a_list_of_sources_alone_is_judged_for_what_it_shows() -> None:
    checks = chrony.judge(None, chrony.parse_sources(V_LIST), chrony.Limits(max_offset_ms=0.5, offset_source="test"))
    assert [
        (c.check.removeprefix("clock_sync."), c.subject, c.verdict) for c in checks if "agreement" not in c.check
    ] == [
        ("source", "clock", "pass"),
        ("reach", "ntp1.site.example", "pass"),
        ("reach", "ntp2.site.example", "pass"),
        ("reach", "ntp3.site.example", "warn"),
        ("offset", "clock", "fail"),
    ]
    assert by_name(checks, "offset").value == 0.741
    assert chrony.judge(None, None, chrony.Limits()) == []


def test_a_reference_without_a_name_is_one_all_the_same() -> None:
    nameless = OLD.replace("192.0.2.10 (ntp1.site.example)", "C000020A ()")
    assert bad(judge(nameless, None)) == {}
    assert by_name(judge(nameless, None), "source").value == "C000020A"
    # Which server it is cannot be told, so it is not said to be one of the site's.
    assert bad(judge(nameless, None, {"192.0.2.10"})) == {"servers": "unknown"}


def test_a_server_of_the_site_that_does_not_answer_is_a_fault() -> None:
    names = {f"ntp{n}.site.example" for n in (1, 2, 3)}
    checks = chrony.judge(
        None, chrony.parse_sources(V_LIST), chrony.Limits(names, max_offset_ms=5.0, offset_source="test")
    )
    silent = [(c.check, c.subject, c.verdict) for c in checks if c.verdict != "pass"]
    assert silent == [("clock_sync.reach", "ntp3.site.example", "fail")]
    others = chrony.judge(
        None, chrony.parse_sources(V_LIST), chrony.Limits(names - {"ntp3.site.example"}, max_offset_ms=5.0)
    )
    assert by_name([c for c in others if c.subject.startswith("ntp3")], "reach").verdict == "warn"


OTHER_FORMS = {
    "timedatectl": "               Local time: Tue 2026-07-21 07:28:11 CEST\nSystem clock synchronized: yes\n",
    "timedatectl timesync-status": "       Server: 192.0.2.1 (ntp.example)\nPoll interval: 34min 8s (min: 32s)\n",
    "ntpq -p": "     remote           refid      st t when poll reach   delay   offset  jitter\n",
    "ntpq -c rv": "associd=0 status=0615 leap_none, sync_ntp, 1 event, clock_sync,\n",
    "ntpstat": "synchronised to NTP server (192.0.2.1) at stratum 3\n",
    "chronyc ntpdata": "Remote address  : 192.0.2.1 (C0000201)\nLeap status     : Normal\nStratum         : 2\n",
    "chronyc sourcestats": "Name/IP Address            NP  NR  Span  Frequency  Freq Skew  Offset  Std Dev\n",
    "chronyc activity": "200 OK\n8 sources online\n",
}


@pytest.mark.parametrize(("name", "text"), OTHER_FORMS.items(), ids=OTHER_FORMS)
def test_a_report_of_another_command_is_named(name: str, text: str) -> None:
    with pytest.raises(chrony.ChronyError, match=f"this is {name}, and neither"):
        chrony.parse_tracking(text)

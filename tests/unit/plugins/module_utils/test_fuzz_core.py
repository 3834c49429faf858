# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Arbitrary and damaged input to the readers every gate stands on: no exception escapes, garbage never passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _chrony as chrony
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import read_captured
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._decision import Here, decide, read_result
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._opensm import parse_sminfo
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import (
    BLOCKING,
    Check,
    Evidence,
    result,
    seal,
    worst,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
GOOD_TRACKING = [
    (FIXTURES / f"chrony-{n}").read_text() for n in ("4.3-tracking.csv", "4.3-tracking.txt", "2.1-tracking.txt")
]
BAD_TRACKING = [
    (FIXTURES / f"chrony-{n}").read_text()
    for n in (
        "4.3-tracking-local.csv",
        "4.3-tracking-unsynchronised.csv",
        "2.1-tracking-local.txt",
        "3.5-tracking-unsynchronised.txt",
    )
]
SOURCES = [(FIXTURES / f"chrony-{n}").read_text() for n in ("4.3-sources.csv", "4.3-sources.txt", "3.4-sources-v.txt")]
LIMITS = chrony.Limits(max_offset_ms=5.0, offset_source="test")
NOW = 1764525000.0


def judged(tracking: str, sources: str | None) -> str:
    """Return the verdict as the module makes it: a report that cannot be read is unknown."""
    try:
        report = chrony.parse_tracking(tracking)
        servers = None if sources is None else chrony.parse_sources(sources)
    except chrony.ChronyError:
        return "unknown"
    return worst(c.verdict for c in chrony.judge(report, servers, LIMITS))


@st.composite
def damaged(draw: st.DrawFn, texts: list[str]) -> tuple[str, str, str]:
    """Return a real report, the same one damaged in one way, and how."""
    text = draw(st.sampled_from(texts))
    lines = text.splitlines(keepends=True)
    at, other = (draw(st.integers(0, len(lines) - 1)) for _unused in range(2))
    how = draw(st.sampled_from(["delete", "double", "swap", "cut", "digit", "insert"]))
    if how == "delete":
        del lines[at]
    elif how == "double":
        lines.insert(other, lines[at])
    elif how == "swap":
        lines[at], lines[other] = lines[other], lines[at]
    elif how == "insert":
        lines.insert(at, draw(st.text(max_size=40)) + "\n")
    changed = "".join(lines)
    if how == "cut":
        changed = text[: draw(st.integers(0, len(text) - 1))]
    elif how == "digit":
        places = [i for i, c in enumerate(text) if c.isdigit()]
        place = draw(st.sampled_from(places))
        changed = text[:place] + draw(st.sampled_from("0123456789")) + text[place + 1 :]
    return text, changed, how


@given(
    st.one_of(st.text(max_size=300), st.text("0123456789,.:^*?-+[]/ \nnsumLeapNormal()", max_size=300)), st.booleans()
)
def test_no_text_is_a_synchronised_clock(text: str, alone: bool) -> None:
    assert judged(text, None if alone else text) in BLOCKING


@given(damaged(GOOD_TRACKING))
def test_a_tracking_report_that_lost_or_doubled_a_line_does_not_pass(case: tuple[str, str, str]) -> None:
    text, changed, how = case
    verdict = judged(changed, None)
    if how == "cut" and not changed.rstrip().endswith("Normal"):
        assert verdict in BLOCKING
    if how == "double":
        assert verdict in BLOCKING
    if how == "delete":
        gone = set(text.splitlines()) - set(changed.splitlines())
        if "," in text or any(line.startswith(("Ref", "Str", "System", "Leap", "Root")) for line in gone):
            assert verdict in BLOCKING or gone == {line for line in gone if line.startswith("Ref time")}


@given(damaged(BAD_TRACKING))
def test_no_damage_makes_a_bad_clock_good(case: tuple[str, str, str]) -> None:
    _text, changed, how = case
    # One digit of the reference id can make another clock of it; that is then what was read.
    if how != "digit":
        assert judged(changed, None) in BLOCKING


@given(damaged(SOURCES), st.sampled_from(GOOD_TRACKING))
def test_a_list_of_sources_that_is_damaged_never_raises(case: tuple[str, str, str], tracking: str) -> None:
    _text, changed, how = case
    verdict = judged(tracking, changed)
    rows = [line for line in changed.splitlines() if line[:1] in ("^", "#", "=") and "===" not in line]
    if how == "cut" and not rows:
        assert verdict in BLOCKING
    assert not any(chrony.is_tracking_line(line) and chrony.is_source_line(line) for line in changed.splitlines())


@given(st.text(max_size=200))
def test_any_answer_of_sminfo_is_read(text: str) -> None:
    info = parse_sminfo(text)
    assert info is None or info.contradiction is None or "do not belong together" in info.contradiction


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "gate",
                    "evidence",
                    "command",
                    "stdout",
                    "stderr",
                    "rc",
                    "error",
                    "stands_for",
                    "name",
                    "sha256",
                    "digest",
                ]
            ),
            inner,
            max_size=7,
        ),
    ),
    max_leaves=16,
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=80), _JSON.map(lambda data: json.dumps({"gate": "g", "evidence": data}).encode())))
def test_any_captured_file_is_read(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "captured"
    file.write_bytes(content)
    read_captured(str(file))
    source = Source(str(file), 1.0)
    got = source.read(["tool", "x"], "name")
    assert isinstance(source.single_file, bool)
    assert refusal(got) is None or isinstance(refusal(got), str)
    # It can be stored again whatever it was.
    again = seal(result("g", [], source.used))
    assert json.dumps(again).encode()


TREE = seal(
    {
        **result(
            "g",
            [Check("g.one", "a", "pass", "fine", 1, 2, "ms"), Check("g.two", "b", "pass", "fine", "Active", "Active")],
            [Evidence("tool", 0, "report\n", needed=True), Evidence("side", 1, "", "no\n")],
        ),
        "time": NOW,
        "uptime": 50.0,
        "machine_id": "m",
        "boot_id": "b",
    }
)


@given(st.data())
def test_two_results_spliced_into_one_never_pass(draw: st.DataObject) -> None:
    """Parts of a good result of another node or boot in a bad one, by keys."""
    bad: dict[str, Any] = seal(
        {
            **result("g", [Check("g.one", "a", "fail", "bad", 3, 2, "ms")], [Evidence("tool", 9, "", needed=True)]),
            "time": NOW,
            "uptime": 50.0,
            "machine_id": "m",
            "boot_id": "b",
        }
    )
    taken = draw.draw(st.sets(st.sampled_from(sorted(bad)), max_size=len(bad) - 1))
    mixed = {**bad, **{key: TREE[key] for key in taken}}
    found = read_result("g", json.dumps(mixed).encode(), Here(NOW, 50.0, "m", "b"))
    if mixed != TREE:
        assert found.verdict in BLOCKING
    assert decide("hardware", [found])["verdict"] == found.verdict

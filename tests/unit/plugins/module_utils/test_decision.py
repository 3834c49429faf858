# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of a stage's decision."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._decision import (
    Here,
    decide,
    read_result,
    run_problem,
    runs_to_prune,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import (
    Check,
    Evidence,
    result,
    seal,
    unknown,
)
from hypothesis import given
from hypothesis import strategies as st

GOOD = Check("ib_port.state", "mlx5_0", "pass", "state", "Active", "Active")
WARN = Check("ib_port.note", "mlx5_0", "warn", "note", 1)
BAD = Check("ib_port.rate", "mlx5_1", "fail", "rate of the link", 200, 400, "Gb/s", "board profile", "Clean the cable.")
DARK = unknown("ib_port.output", "ibstat", "ibstat printed nothing")


NOW = 1764525000.5
HERE = Here(NOW, 1000.0, "machine", "boot")


def stored(*checks: Check, gate: str = "ib_port") -> dict[str, Any]:
    readings = [Evidence("ibstat", 0, "CA 'mlx5_0'\n", needed=True), Evidence("readlink x", 1, "")]
    me = {"time": NOW, "uptime": 1000.0, "machine_id": "machine", "boot_id": "boot"}
    return seal({**result(gate, checks, readings), **me})


def raw(data: Any) -> bytes:
    return json.dumps(data).encode()


def resealed(data: Any) -> bytes:
    """Return the file with a digest that fits again, as far as there can be one, so that the other rules are seen."""
    try:
        return raw(seal(data))
    except ValueError:
        return raw(data)


def test_a_stored_result_is_taken_as_it_is() -> None:
    found = read_result("ib_port", raw(stored(GOOD, BAD)))
    assert (found.verdict, found.time, len(found.checks)) == ("fail", 1764525000.5, 2)
    assert len(found.sha256 or "") == 64


def drop(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda data: data.pop(key)


REFUSED: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "of another gate": (lambda d: d.update(gate="clock_sync"), "of gate 'clock_sync'"),
    "no checks": (lambda d: d.update(checks=[]), "holds no checks"),
    "verdict better than its checks": (lambda d: d.update(verdict="pass"), "not the worst of its checks"),
    "verdict outside the vocabulary": (lambda d: d.update(verdict="ok"), "not the worst of its checks"),
    "a check without a field": (lambda d: d["checks"][0].pop("limit"), "lacks a field"),
    "a pass that measured nothing": (lambda d: d["checks"][0].update(value=None), "pass without a measured value"),
    "a check of odd verdict": (lambda d: d["checks"][0].update(verdict="fine"), "'fine'"),
    "output changed": (lambda d: d["evidence"][0].update(stdout="CA 'mlx5_9'\n"), "does not match its digest"),
    "no readings": (drop("evidence"), "holds no readings"),
}


@pytest.mark.parametrize(("edit", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_result_that_does_not_prove_itself_is_unknown(edit: Callable[[dict[str, Any]], Any], reason: str) -> None:
    data = stored(GOOD, BAD)
    edit(data)
    found = read_result("ib_port", resealed(data))
    assert found.verdict == "unknown"
    assert reason in found.checks[0]["reason"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 5000])
def test_a_missing_or_broken_file_is_unknown(content: bytes | None) -> None:
    assert read_result("ib_port", content).verdict == "unknown"


def test_several_warnings_of_one_subject_are_no_contradiction() -> None:
    """Two harmless Xids of one GPU are two events, not two values of one fact."""
    xids = [Check("xid.event", "GPU 0", "warn", "harmless", f"Xid {n}", "none") for n in (31, 43, 31)]
    found = read_result("xid", raw(stored(*xids, gate="xid")), HERE)
    assert (found.verdict, len(found.checks)) == ("warn", 3)
    # A pass beside them keeps its one value.
    twice = [Check("xid.log", "kernel log", "pass", "lines", n, 1) for n in (7, 8)]
    assert read_result("xid", raw(stored(*xids, *twice, gate="xid")), HERE).verdict == "unknown"
    assert read_result("xid", raw(stored(*xids, twice[0], twice[0], gate="xid")), HERE).verdict == "warn"
    # A fail made a warn does not pass for an event: the digest is of the whole.
    lost = stored(*xids, Check("xid.event", "GPU 0", "fail", "lost", "Xid 79", "none"), gate="xid")
    lost["checks"][-1]["verdict"] = lost["verdict"] = "warn"
    assert "does not match its own digest" in read_result("xid", raw(lost), HERE).checks[0]["reason"]


STAGES = {
    "all pass": ([GOOD], "pass", None),
    "a warning goes on": ([GOOD, WARN], "warn", WARN),
    "unknown blocks": ([GOOD, WARN, DARK], "unknown", DARK),
    "a defect is the headline before what is unknown": ([DARK, GOOD, BAD], "fail", BAD),
}


@pytest.mark.parametrize(("checks", "verdict", "worst"), STAGES.values(), ids=STAGES.keys())
def test_the_worst_check_decides(checks: list[Check], verdict: str, worst: Check | None) -> None:
    found = decide("hardware", [read_result("ib_port", raw(stored(*checks)))])
    assert found["verdict"] == verdict
    assert found["worst"] == (worst.as_dict() if worst else None)


def test_the_summary_tells_check_value_limit_and_remedy() -> None:
    found = decide("hardware", [read_result("ib_port", raw(stored(GOOD, BAD))), read_result("clock_sync", None)])
    assert found["summary"] == (
        "hardware gate: fail. ib_port.rate mlx5_1: fail, measured 200 Gb/s, limit 400 Gb/s (board profile). "
        "rate of the link. Clean the cable."
    )
    assert {g: v["verdict"] for g, v in found["gates"].items()} == {"ib_port": "fail", "clock_sync": "unknown"}
    assert len(found["checks"]) == 3


def test_no_gate_at_all_is_unknown() -> None:
    assert decide("hardware", [])["verdict"] == "unknown"


RUNS = [f"2026113{d}T000000Z" for d in range(5)]
PRUNE = {
    "under the number": (RUNS[:3], RUNS[2], 5, []),
    "oldest first": (RUNS, RUNS[4], 2, RUNS[:3]),
    "the current run stays though it is the oldest": (RUNS, RUNS[0], 2, RUNS[1:4]),
    "the current run is not there yet": (RUNS[:4], RUNS[4], 2, RUNS[:3]),
    "only the current one": (RUNS, RUNS[4], 1, RUNS[:4]),
}


@pytest.mark.parametrize(("names", "current", "keep", "wanted"), PRUNE.values(), ids=PRUNE.keys())
def test_old_runs_are_pruned(names: list[str], current: str, keep: int, wanted: list[str]) -> None:
    assert runs_to_prune(names, current, keep) == wanted


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.sampled_from(["pass", "ib_port"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["gate", "verdict", "checks", "evidence", "stdout", "time"]), inner, max_size=5
        ),
    ),
    max_leaves=12,
)


@given(st.one_of(st.binary(max_size=60), _JSON.map(raw)))
def test_garbage_never_passes(content: bytes) -> None:
    assert read_result("ib_port", content).verdict == "unknown"


ODD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "verdict a list": (lambda d: d.update(verdict=[]), "its verdict '[]' is not the worst of its checks"),
    "verdict a dictionary": (lambda d: d.update(verdict={}), "its verdict '{}' is not the worst of its checks"),
    "verdict of a check a list": (lambda d: d["checks"][0].update(verdict=[]), "unhashable type: 'list'"),
    "time too large": (lambda d: d.update(time=10**400), "its time is not a date"),
    "time NaN": (lambda d: d.update(time=float("nan")), "the evidence is not JSON: NaN is no number"),
    "time text": (lambda d: d.update(time="x"), "its time is not a number"),
    "no time": (drop("time"), "its time is not a number"),
    "time of the future": (lambda d: d.update(time=NOW + 401), "it is 401 s from the future; check the clock"),
    "half a character": (lambda d: d["evidence"][0].update(stdout="\ud800"), "it holds what is no text or no number"),
    "another machine": (lambda d: d.update(machine_id="m2"), "made on another machine"),
    "no machine": (drop("machine_id"), "made on another machine"),
    "another boot": (lambda d: d.update(boot_id="b2"), "made before this boot"),
    "uptime NaN": (lambda d: d.update(uptime=float("nan")), "NaN is no number"),
    "uptime text": (lambda d: d.update(uptime="1000"), "time since the boot is not a number"),
    "later than now since the boot": (lambda d: d.update(uptime=1002.0), "2 s from the future by the clock that"),
    "clock set back between": (
        lambda d: d.update(time=NOW - 10, uptime=600.0),
        "the clock was set by -390 s between the reading and the decision",
    ),
    "clock set forward between": (lambda d: d.update(time=NOW - 4000), "the clock was set by +4000 s between"),
    "its tool failed": (lambda d: d["evidence"][0].update(rc=9), "a reading it needs failed, 'ibstat': status 9"),
    "its tool hung": (
        lambda d: d["evidence"][0].update(rc=None, error="still running"),
        "a reading it needs failed, 'ibstat': still running",
    ),
    "status true": (lambda d: d["evidence"][0].update(rc=False, error=""), "a reading it needs failed"),
    "captured": (lambda d: d["evidence"][0].update(captured="file"), "it was judged from captured output, 'ibstat'"),
    "two values of one fact": (
        lambda d: d["checks"].append({**d["checks"][0], "value": "Down"}),
        "ib_port.state of mlx5_0 passed with two different values",
    ),
    "check of another gate": (
        lambda d: d["checks"][0].update(check="clock_sync.leap"),
        "it holds a check 'clock_sync.leap', which is not of this gate",
    ),
    "check without a name": (lambda d: d["checks"][0].update(check=None), "the check of a check is not text"),
    **{
        f"pass with {value!r}": (
            lambda d, v=value: d["checks"][0].update(value=v),
            f"ib_port.state: pass with the value {str(value)!r}, which is no measurement",
        )
        for value in ({}, [], "")
    },
    **{
        f"pass with {word}": (lambda d, v=value: d["checks"][0].update(value=v), f"not JSON: {word} is no number")
        for value, word in ((float("nan"), "NaN"), (float("inf"), "Infinity"), (-float("inf"), "-Infinity"))
    },
}


@pytest.mark.parametrize(("edit", "reason"), ODD.values(), ids=ODD.keys())
def test_an_odd_result_is_unknown_and_no_traceback(edit: Callable[[dict[str, Any]], Any], reason: str) -> None:
    data = stored(GOOD)
    edit(data)
    found = read_result("ib_port", resealed(data), HERE)
    assert (found.verdict, found.checks[0]["check"], found.checks[0]["subject"]) == (
        "unknown",
        "gate.evidence",
        "ib_port",
    )
    assert reason in found.checks[0]["reason"]


def test_some_skew_of_the_clock_is_allowed() -> None:
    assert read_result("ib_port", raw(stored(GOOD)), HERE).verdict == "pass"
    assert read_result("ib_port", raw(stored(GOOD)), Here(NOW - 299, 1000.0, "machine", "boot")).verdict == "pass"


def test_a_result_of_yesterday_is_too_old() -> None:
    content = raw(stored(GOOD))
    for age, verdict in ((86_400, "pass"), (86_402, "unknown")):
        assert read_result("ib_port", content, Here(NOW + age, 1000.0 + age, "machine", "boot")).verdict == verdict


def test_a_reading_the_gate_can_do_without_may_fail_and_a_blocked_gate_may_have_failed_readings() -> None:
    assert read_result("ib_port", raw(stored(GOOD)), HERE).verdict == "pass"
    data = stored(BAD)
    data["evidence"][0].update(rc=None, error="still running")
    assert read_result("ib_port", resealed(data), HERE).verdict == "fail"


def test_a_key_that_is_there_twice_is_no_result() -> None:
    text = raw(stored(BAD)).decode()
    twice = text[:-1] + ', "verdict": "pass"}'
    assert read_result("ib_port", twice.encode(), HERE).checks[0]["reason"].endswith("a key is there twice")


def test_the_layout_of_the_file_does_not_matter() -> None:
    data = stored(GOOD)
    for text in (json.dumps(data, indent=3), json.dumps(dict(reversed(data.items()))), json.dumps(data) + "\n \n"):
        assert read_result("ib_port", text.encode(), HERE).verdict == "pass"


def _places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(place for key, value in items for place in _places(value, (*path, key)))]


TREE = stored(GOOD, WARN)
_ODD_VALUES = [None, True, False, 0, 1, -1, 2, 1e300, 10**400, "", "pass", "fail", "x", [], {}, ["pass"], {"pass": 1}]


@given(
    st.sampled_from([p for p in _places(TREE) if p]),
    st.sampled_from(["drop", "replace", "double", "add"]),
    st.sampled_from(_ODD_VALUES),
)
def test_no_change_in_any_single_place_passes(place: tuple[Any, ...], how: str, value: Any) -> None:
    data = json.loads(json.dumps(TREE))
    holder = data
    for key in place[:-1]:
        holder = holder[key]
    last = place[-1]
    if how == "drop":
        del holder[last]
    elif how == "replace":
        holder[last] = value
    elif how == "double" and isinstance(holder, list):
        holder.append(holder[last])
    elif isinstance(holder, dict):
        holder[f"{last}_"] = value
    found = read_result("ib_port", raw(data), HERE)
    same = json.dumps(data, sort_keys=True) == json.dumps(TREE, sort_keys=True)
    assert found.verdict == ("warn" if same else "unknown")
    assert decide("hardware", [found])["verdict"] == found.verdict


@given(st.data())
def test_no_cut_or_flipped_byte_passes(draw: st.DataObject) -> None:
    content = raw(TREE)
    at = draw.draw(st.integers(0, len(content) - 1))
    cut = draw.draw(st.booleans())
    byte = draw.draw(st.integers(0, 255))
    changed = content[:at] if cut else content[:at] + bytes([byte]) + content[at + 1 :]
    found = read_result("ib_port", changed, HERE)
    harmless = False
    if not cut:
        try:
            harmless = json.loads(changed) == TREE
        except ValueError:
            harmless = False
    assert found.verdict == ("warn" if harmless else "unknown")


@pytest.mark.parametrize(
    ("run", "directory", "reason"),
    [
        (RUNS[0], RUNS[0], None),
        (RUNS[1], RUNS[0], "the evidence is of run '20261130T000000Z' and not of 20261131T000000Z"),
        ("../x\n", "../x\n", "the run '../x\\n' is not named like 20261130T180000Z"),
    ],
)
def test_the_run_must_be_the_one_of_the_directory(run: str, directory: str, reason: str | None) -> None:
    assert run_problem(run, directory) == reason


@pytest.mark.parametrize("here", [Here(NOW, 1000.0, None, "boot"), Here(NOW, 1000.0, "machine", None)])
def test_a_machine_that_does_not_know_itself_accepts_no_evidence(here: Here) -> None:
    same = stored(GOOD) | {"machine_id": here.machine_id, "boot_id": here.boot_id}
    result = read_result("ib_port", resealed(same), here)
    assert result.verdict == "unknown"
    assert "this machine's id or its boot's id cannot be read" in result.summary

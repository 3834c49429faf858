# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of a stage's decision."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._decision import (
    decide,
    read_result,
    run_problem,
    runs_to_prune,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, result, unknown
from hypothesis import given, settings
from hypothesis import strategies as st

GOOD = Check("ib_port.state", "mlx5_0", "pass", "state", "Active", "Active")
WARN = Check("ib_port.note", "mlx5_0", "warn", "note", 1)
BAD = Check("ib_port.rate", "mlx5_1", "fail", "rate of the link", 200, 400, "Gb/s", "board profile", "Clean the cable.")
DARK = unknown("ib_port.output", "ibstat", "ibstat printed nothing")


def stored(*checks: Check, gate: str = "ib_port") -> dict[str, Any]:
    return {**result(gate, checks, [Evidence("ibstat", 0, "CA 'mlx5_0'\n")]), "time": 1764525000.5}


def raw(data: Any) -> bytes:
    return json.dumps(data).encode()


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
    found = read_result("ib_port", raw(data))
    assert found.verdict == "unknown"
    assert reason in found.checks[0]["reason"]


@pytest.mark.parametrize("content", [None, b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 5000])
def test_a_missing_or_broken_file_is_unknown(content: bytes | None) -> None:
    assert read_result("ib_port", content).verdict == "unknown"


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


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=60), _JSON.map(raw)))
def test_garbage_never_passes(content: bytes) -> None:
    assert read_result("ib_port", content).verdict == "unknown"


ODD: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "verdict a list": (lambda d: d.update(verdict=[]), "its verdict [] is not the worst of its checks"),
    "verdict a dictionary": (lambda d: d.update(verdict={}), "its verdict {} is not the worst of its checks"),
    "verdict of a check a list": (lambda d: d["checks"][0].update(verdict=[]), "unhashable type: 'list'"),
    "time too large": (lambda d: d.update(time=10**400), "its time is not a date"),
    "time NaN": (lambda d: d.update(time=float("nan")), "its time is not a date"),
    "time text": (lambda d: d.update(time="x"), "its time is not a number"),
    "no time": (drop("time"), "its time is not a number"),
    "time of the future": (lambda d: d.update(time=1764525401.5), "it is 401 s from the future; check the clock"),
    "half a character": (lambda d: d["evidence"][0].update(stdout="\ud800"), "it holds characters that are no text"),
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
        for value in (float("nan"), float("inf"), {}, [], "")
    },
}


@pytest.mark.parametrize(("edit", "reason"), ODD.values(), ids=ODD.keys())
def test_an_odd_result_is_unknown_and_no_traceback(edit: Callable[[dict[str, Any]], Any], reason: str) -> None:
    data = stored(GOOD)
    edit(data)
    found = read_result("ib_port", raw(data), now=1764525000.5)
    assert (found.verdict, found.checks[0]["check"]) == ("unknown", "ib_port.evidence")
    assert reason in found.checks[0]["reason"]


def test_some_skew_of_the_clock_is_allowed() -> None:
    assert read_result("ib_port", raw(stored(GOOD)), now=1764524701.0).verdict == "pass"


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

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Nothing that a parser of a benchmark, of Consul or of the fleet's rows is given makes it raise or pass on garbage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _consul_health, _fleet, _nccl_tests
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import PROFILES
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nccl_tests import Expect, Outcome
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence, result, worst
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
TABLES = [
    (FIXTURES / name).read_text()
    for name in (
        "nccl-tests-2.0-error-hgx8.txt",
        "nccl-tests-2.13-wrong-hgx8-4gpus.txt",
        "nccl-tests-2.17.9-wide-hgx8.txt",
        "nccl-tests-2.13-mpi-2nodes.txt",
    )
]
HGX8 = PROFILES["hgx_h100_8"]


def judge_table(text: str) -> tuple[str, list[Outcome]]:
    outcomes = _nccl_tests.judge(Evidence("all_reduce_perf", 0, text), "board", Expect(board=HGX8))
    checks = [check for outcome in outcomes for check in outcome.checks]
    result("nccl_bandwidth", checks)
    return worst(check.verdict for check in checks), outcomes


@given(st.text(max_size=400) | st.text(alphabet="0123456789 .-#\nfloatsumN/A[]<>:busbwsize", max_size=400))
def test_garbage_is_no_table(text: str) -> None:
    assert judge_table(text)[0] not in ("pass", "warn")


@given(st.sampled_from(TABLES), st.data())
def test_mutated_lines(table: str, data: st.DataObject) -> None:
    lines = table.splitlines(keepends=True)
    for _step in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        other = data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(["delete", "duplicate", "swap", "cut line"]))
        if kind == "delete" and len(lines) > 1:
            del lines[at]
        elif kind == "duplicate":
            lines.insert(other, lines[at])
        elif kind == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        else:
            lines[at] = lines[at][: data.draw(st.integers(0, len(lines[at])))] + "\n"
    text = "".join(lines)
    verdict, outcomes = judge_table(text)
    if verdict == "pass":
        (before,) = judge_table(table)[1]
        assert [outcome.measured["busbw"] for outcome in outcomes] == [before.measured["busbw"]] * len(outcomes)


@given(st.sampled_from(TABLES), st.floats(0, 1))
def test_cut_table_never_passes(table: str, share: float) -> None:
    end = table.index("Avg bus bandwidth    : ") + len("Avg bus bandwidth    : ")
    assert judge_table(table[: int(share * end)])[0] not in ("pass", "warn")


@given(st.sampled_from(TABLES), st.lists(st.tuples(st.floats(0, 1), st.sampled_from("0123456789")), max_size=6))
def test_flipped_digits_do_not_lift_the_bandwidth(table: str, flips: list[tuple[float, str]]) -> None:
    letters = list(table)
    digits = [at for at, letter in enumerate(letters) if letter.isdigit()]
    for share, digit in flips:
        letters[digits[int(share * (len(digits) - 1))]] = digit
    verdict, outcomes = judge_table("".join(letters))
    if verdict == "pass":
        wanted = judge_table(table)[1][0].measured["busbw"]
        for outcome in outcomes:
            assert abs(outcome.measured["busbw"] - wanted) <= 0.05 * wanted


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["node", "fleet", "versions", "values", "value", "better", "unit", "rows", "baseline", "x"])
            | st.sampled_from(["Node", "CheckID", "Status", "Output", "Checks", "ServiceID"]),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)
RULES = _fleet.Rules(0.05, "profile")


def rows(count: int = 4) -> list[dict[str, Any]]:
    fact = {"value": 476.0, "unit": "GB/s", "better": "higher"}
    return [{"node": f"node{n}", "fleet": {"versions": {"a.b": "1"}, "values": {"c.d": fact}}} for n in range(count)]


@given(st.text(max_size=200) | JSON.map(json.dumps), st.sampled_from([None, "node1"]))
def test_garbage_is_no_row(text: str, node: str | None) -> None:
    checks = _fleet.judge(Evidence("x", 0, text), node, RULES)
    result("fleet_consistency", checks)
    assert worst(check.verdict for check in checks) == "unknown" or "versions" in text or "values" in text


@given(st.floats(0, 1), st.text(max_size=4))
def test_damaged_rows(share: float, letters: str) -> None:
    text = json.dumps(rows())
    at = int(share * (len(text) - 1))
    for damaged in (text[:at], text[:at] + letters + text[at:], text[:at] + text[at + 1 :]):
        checks = _fleet.judge(Evidence("x", 0, damaged), "node1", RULES)
        result("fleet_consistency", checks)
        assert len(damaged) >= at
    assert worst(c.verdict for c in _fleet.judge(Evidence("x", 0, text[:at]), "node1", RULES)) == "unknown"


@given(st.lists(st.floats(allow_nan=False, min_value=0, max_value=1e17), min_size=3, max_size=8))
def test_any_numbers_are_compared(numbers: list[float]) -> None:
    fleet = rows(len(numbers))
    for row, number in zip(fleet, numbers, strict=True):
        row["fleet"]["values"]["c.d"] = {"value": number, "unit": "", "better": "lower"}
    checks = _fleet.judge(Evidence("x", 0, json.dumps(fleet)), None, RULES)
    assert {check.verdict for check in checks} <= {"pass", "fail"}
    worst_of_all = max(range(len(numbers)), key=lambda n: numbers[n])
    best = min(range(len(numbers)), key=lambda n: numbers[n])
    verdicts = {c.subject: c.verdict for c in checks if c.check == "fleet_consistency.value"}
    assert verdicts[f"node{best} c.d"] == "pass"
    if verdicts[f"node{worst_of_all} c.d"] == "pass":
        assert set(verdicts.values()) == {"pass"}


ANSWER = (FIXTURES / "consul-1.8-health-node.json").read_text()


@given(st.text(max_size=200) | JSON.map(json.dumps), st.sampled_from([None, "node1"]))
def test_garbage_is_no_health(text: str, node: str | None) -> None:
    checks = _consul_health.judge(Evidence("x", 0, text), node, ["iu"], "fail")
    result("consul_health", checks)
    assert worst(check.verdict for check in checks) not in ("pass", "warn")


@given(st.floats(0, 1), st.text(max_size=4))
def test_damaged_answer(share: float, letters: str) -> None:
    at = int(share * (len(ANSWER.rstrip()) - 1))
    units = ["node1-iu0", "node1-iu1"]
    for damaged in (ANSWER[:at] + letters + ANSWER[at:], ANSWER[:at] + ANSWER[at + 1 :]):
        result("consul_health", _consul_health.judge(Evidence("x", 0, damaged), "node1", units, "fail"))
    checks = _consul_health.judge(Evidence("x", 0, ANSWER[:at]), "node1", units, "fail")
    assert worst(check.verdict for check in checks) == "unknown"


@given(st.lists(st.integers(0, 2), max_size=3, unique=True), st.integers(0, 2), st.sampled_from(["critical", "x", ""]))
def test_every_check_counts(removed: list[int], broken: int, status: str) -> None:
    checks = json.loads(ANSWER)
    checks[broken]["Status"] = status
    left = [check for number, check in enumerate(checks) if number not in removed]
    units = ["node1-iu0", "node1-iu1"]
    reading = Evidence("x", 0, json.dumps(left))
    assert worst(c.verdict for c in _consul_health.judge(reading, "node1", units, "fail")) in ("fail", "unknown")

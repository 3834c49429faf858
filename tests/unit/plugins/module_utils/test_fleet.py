# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The comparison of a node with its rack and fleet."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _fleet
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._fleet import Rules
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, worst

RULES = Rules(0.05, "board profile hgx_h100_8")
BUSBW = "nccl_bandwidth.busbw_board"
LATENCY = "ib_latency.typical"
DRIVER = "gpu_driver.version"


def row(node: str, busbw: Any = 476.0, driver: Any = "580.95.05", **more: Any) -> dict[str, Any]:
    values = {} if busbw is None else {BUSBW: {"value": busbw, "unit": "GB/s", "better": "higher"}}
    versions = {} if driver is None else {DRIVER: driver}
    return {"node": node, "board": "hgx_h100_8", "fleet": {"versions": versions, "values": values}, **more}


def checks_of(rows: Any, node: str | None = "node1", rules: Rules = RULES, baseline: Any = None) -> list[Check]:
    data = rows if baseline is None else {"rows": rows, "baseline": baseline}
    return _fleet.judge(Evidence("fleet-rows", 0, json.dumps(data)), node, rules)


def judge(rows: Any, node: str | None = "node1", **options: Any) -> tuple[str, Check]:
    checks = checks_of(rows, node, **options)
    verdict = worst(c.verdict for c in checks)
    return verdict, next(c for c in checks if c.verdict == verdict)


def four(**first: Any) -> list[dict[str, Any]]:
    return [row("node1", **first), row("node2", 477.0), row("node3", 475.0), row("node4", 478.0)]


def test_lost_rows_of_earlier_runs_are_a_warning() -> None:
    lost = {"problem": "the rows of earlier runs, since fleet.json cannot be read"}
    verdict, check = judge([*four(), lost])
    assert (verdict, check.check, check.value) == ("warn", "fleet_consistency.size", 4)
    assert "not counted: the rows of earlier runs, since fleet.json cannot be read" in check.reason
    assert {c.verdict for c in checks_of([*four(), lost], None)} == {"warn", "pass"}
    assert judge([row("node1"), lost])[0] == "warn"
    # It hides no defect, and it is no row by itself.
    assert judge([*four(busbw=300.0), lost])[0] == "fail"
    assert judge([lost])[0] == "unknown"
    assert "not counted" in judge([lost], None)[1].reason
    assert judge([*four(), {"problem": 1}], None)[0] == "unknown"


def test_even_fleet_passes_with_everything_compared() -> None:
    checks = checks_of(four())
    assert [(c.check, c.subject, c.verdict) for c in checks] == [
        ("fleet_consistency.size", "node1", "pass"),
        ("fleet_consistency.version", f"node1 {DRIVER}", "pass"),
        ("fleet_consistency.value", f"node1 {BUSBW}", "pass"),
    ]
    assert checks[0].value == 4


@pytest.mark.parametrize(("busbw", "verdict"), [(453.15, "pass"), (453.14, "fail"), (900.0, "pass"), (0.0, "fail")])
def test_value_is_held_against_the_median_of_the_others(busbw: float, verdict: str) -> None:
    found, check = judge(four(busbw=busbw))
    assert found == verdict
    check = next(c for c in checks_of(four(busbw=busbw)) if c.check == "fleet_consistency.value")
    assert (check.limit, check.unit) == (453.15, "GB/s")
    assert "against the median 477 of 3 other nodes" in check.reason


def test_two_of_four_that_are_slow_alike_are_both_found() -> None:
    rows = [row("node1", 430.0), row("node2", 430.0), row("node3", 476.0), row("node4", 476.0)]
    assert [judge(rows, f"node{n}")[0] for n in range(1, 5)] == ["fail", "fail", "pass", "pass"]


def test_lower_is_better() -> None:
    def latency(*numbers: float) -> list[dict[str, Any]]:
        return [
            {"node": f"node{n}", "fleet": {"values": {LATENCY: {"value": v, "unit": "us", "better": "lower"}}}}
            for n, v in enumerate(numbers, 1)
        ]

    assert judge(latency(2.1, 2.0, 2.0))[0] == "pass"
    assert judge(latency(2.11, 2.0, 2.0))[0] == "fail"
    assert judge(latency(1.0, 2.0, 2.0))[0] == "pass"
    assert judge(latency(0.0, 0.0, 0.0))[0] == "pass"
    assert judge(latency(0.1, 0.0, 0.0))[0] == "fail"


def test_odd_version_fails_and_the_majority_passes() -> None:
    rows = four(driver="580.82.07")
    verdict, check = judge(rows)
    assert (verdict, check.check, check.value, check.limit) == (
        "fail",
        "fleet_consistency.version",
        "580.82.07",
        "580.95.05",
    )
    assert check.reason == "the rack has 580.95.05 on node2, node3, node4; 580.82.07 on node1"
    assert judge(rows, "node2")[0] == "pass"


def test_tie_is_unknown_and_names_both_groups() -> None:
    rows = [row("node1"), row("node2"), row("node3", driver="580.82.07"), row("node4", driver="580.82.07")]
    for node in ("node1", "node4"):
        verdict, check = judge(rows, node)
        assert verdict == "unknown"
        assert "cannot be told which is right" in check.reason
        assert "580.95.05 on node1, node2" in check.reason
        assert "580.82.07 on node3, node4" in check.reason
    rows.append(row("node5", driver="570.1"))
    assert judge(rows, "node5")[0] == "fail", "neither of both groups"
    assert judge([row("node1"), row("node2", driver="580.82.07")])[0] == "unknown"


def test_mixed_versions_of_a_rollout_are_a_warning_where_they_are_allowed() -> None:
    rollout = Rules(0.05, "board profile hgx_h100_8", mixed_versions="warn")
    verdict, check = judge(four(driver="580.105.08"), rules=rollout)
    assert verdict == "warn"
    assert (check.value, check.limit) == ("580.105.08", "580.95.05")
    assert "580.105.08 on node1" in check.reason
    assert judge(four(), rules=rollout)[0] == "pass"


def test_versions_are_those_of_the_rack_and_values_those_of_the_fleet() -> None:
    rows = [row(f"a{n}", rack="A") for n in range(3)] + [row(f"b{n}", rack="B", driver="570.1") for n in range(3)]
    assert judge(rows, "b1")[0] == "pass"
    rows[4]["fleet"]["values"][BUSBW]["value"] = 400.0
    assert judge(rows, "b1")[0] == "fail"
    rows[0]["fleet"]["versions"][DRIVER] = "570.1"
    assert judge(rows, "a0")[1].check == "fleet_consistency.version"


def test_other_boards_are_not_compared() -> None:
    rows = [*four(busbw=115.0, board="h100_pcie"), row("node5", 115.0, board="h100_pcie")]
    assert judge(rows)[0] == "pass"
    assert checks_of(rows)[0].value == 2


def test_reading_that_most_others_have_is_missed() -> None:
    verdict, check = judge(four(driver=None))
    assert (verdict, check.check) == ("unknown", "fleet_consistency.version")
    assert check.reason == "3 of 3 other nodes of the rack have it, this one does not"
    assert judge([row("node1", driver=None), row("node2"), row("node3", driver=None)])[0] == "pass"


def test_value_that_only_the_others_have_is_the_business_of_its_own_gate() -> None:
    # A node that is brought up alone has measured nothing between nodes.
    checks = checks_of(four(busbw=None))
    assert [(c.check, c.verdict) for c in checks] == [
        ("fleet_consistency.size", "pass"),
        ("fleet_consistency.version", "pass"),
    ]


def test_few_nodes() -> None:
    verdict, check = judge([row("node1")])
    assert (verdict, check.check, check.value) == ("warn", "fleet_consistency.size", 1)
    checks = checks_of([row("node1", 100.0), row("node2")])
    assert worst(c.verdict for c in checks) == "pass"
    assert [c.check for c in checks] == ["fleet_consistency.size", "fleet_consistency.version"]
    assert "1 values left out, of which fewer than 3 nodes have one" in checks[0].reason
    assert judge([row("node1", 100.0), row("node2")], rules=Rules(0.05, "x", 2))[0] == "fail"


def test_nothing_to_compare_is_unknown() -> None:
    assert judge([row("node1", None, None), row("node2")])[0] == "unknown"
    assert judge([row("node1", None), row("node2", driver=None)])[0] == "unknown"
    assert judge([row("node1", None, None)])[0] == "unknown"


def test_units_must_agree() -> None:
    rows = four()
    rows[2]["fleet"]["values"][BUSBW]["unit"] = "Gb/s"
    verdict, check = judge(rows)
    assert (verdict, check.reason) == ("unknown", "the nodes give it in different units: GB/s, Gb/s")


def test_baseline_counts_for_the_other_nodes_only() -> None:
    old = [row("node1", 400.0), row("node2"), row("node3"), row("node4")]
    assert judge([row("node1")], baseline=old)[0] == "pass"
    assert judge([row("node1", 400.0)], baseline=old)[0] == "fail"
    assert checks_of([row("node1")], baseline=old)[0].value == 4


def test_all_nodes_without_a_name() -> None:
    checks = checks_of(four(driver="580.82.07"), node=None)
    assert [c.subject for c in checks if c.verdict == "fail"] == [f"node1 {DRIVER}"]
    assert len([c for c in checks if c.check == "fleet_consistency.size"]) == 4


BAD_ROWS: dict[str, Any] = {
    "no list": {"node": "node1"},
    "empty": [],
    "twice": [row("node1"), row("node1")],
    "absent": [row("node2"), row("node3")],
    "no fleet": [{"node": "node1"}, row("node2")],
    "text for a number": [row("node1", "476"), row("node2")],
    "truth": [row("node1", True), row("node2")],
    "negative": [row("node1", -1.0), row("node2")],
    "too large": [row("node1", 10**400), row("node2")],
    "empty version": [row("node1", driver=""), row("node2")],
    "no text": [row("node1", driver=580), row("node2")],
}


@pytest.mark.parametrize("rows", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_rows_that_cannot_be_used(rows: Any) -> None:
    verdict, check = judge(rows)
    assert (verdict, check.check) == ("unknown", "fleet_consistency.rows")


@pytest.mark.parametrize(
    "text", ["", "{", "NaN", '[{"node": "node1", "fleet": {"values": {"x": {"value": Infinity}}}}]']
)
def test_text_that_cannot_be_used(text: str) -> None:
    checks = _fleet.judge(Evidence("x", 0, text), "node1", RULES)
    assert worst(c.verdict for c in checks) == "unknown"
    checks = _fleet.judge(Evidence("x", None, "", error="could not read"), None, RULES)
    assert "could not read" in checks[0].reason


def test_bad_row_of_another_node_is_named_and_does_not_stop_this_one() -> None:
    checks = checks_of([*four(), {"node": "node5"}, 7])
    assert worst(c.verdict for c in checks) == "pass"
    assert "not counted: the row of node5 has no versions and values" in checks[0].reason


def test_checks_are_documented() -> None:
    names = {c.check for rows in (four(), four(driver=None), []) for c in checks_of(rows)}
    assert names <= set(_fleet.CHECKS)

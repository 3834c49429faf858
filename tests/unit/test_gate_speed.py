# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The measure of what the gates cost beyond their tools."""

from __future__ import annotations

from typing import Any

from bench import gatespeed


def event(host: str, duration: float, result: dict[str, Any], kind: str = "runner_on_ok") -> dict[str, Any]:
    return {"event": kind, "event_data": {"host": host, "duration": duration, "res": result}}


def test_the_tools_own_time_is_taken_out() -> None:
    smi = {"gate": "nvlink_topology", "verdict": "pass", "evidence": [{"seconds": 2.5}, {"seconds": None}, {}]}
    clock = {"gate": "clock_sync", "verdict": "fail", "evidence": [{"seconds": 0.25}]}
    costs = gatespeed.costs_of(
        [
            event("node1", 3.0, smi),
            event("node1", 1.0, clock, "runner_on_failed"),
            event("node2", 2.0, smi),
            event("node1", 9.0, {"changed": False}),
            event("node1", 9.0, clock, "runner_item_on_ok"),
            {"event": "playbook_on_stats"},
        ]
    )
    assert {n: [(c.gate, c.ours, c.tools, c.verdict) for c in found] for n, found in costs.items()} == {
        "node1": [("nvlink_topology", 0.5, 2.5, "pass"), ("clock_sync", 0.75, 0.25, "fail")],
        "node2": [("nvlink_topology", 0.0, 2.5, "pass")],
    }
    assert [line.split() for line in gatespeed.table(costs["node1"], None)][1:] == [
        ["clock_sync", "fail", "1.00", "0.25", "0.75"],
        ["nvlink_topology", "pass", "3.00", "2.50", "0.50"],
    ]


def test_an_empty_module_is_the_unit_of_what_runs_no_tool() -> None:
    lines = gatespeed.table([gatespeed.Cost("clock_sync", 0.4, 0.0, "pass")], 0.2)
    assert lines[1].split() == ["clock_sync", "pass", "0.40", "2.00", "0.20"]
    seconds, printed = gatespeed.timed("print(name, arguments['a'])", "x", {"a": 1}, 1)
    assert (printed, seconds > 0) == ("x 1\n", True)
    assert gatespeed.verdict_of("Traceback") == "broken"

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gate fleet_consistency and the filter that makes its rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.ai_infra.gpu_rack.plugins.filter.fleet_rows import FilterModule, fleet_rows
from ansible_collections.ai_infra.gpu_rack.plugins.modules import fleet_consistency

from tests.unit.module_runner import Run, runner

BUSBW = "nccl_bandwidth.busbw_board"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(fleet_consistency, capsys)


def results(busbw: float, driver: str = "580.95.05", **more: Any) -> dict[str, Any]:
    """Return the variables of a host with two registered gates."""
    value = {"value": busbw, "unit": "GB/s", "better": "higher"}
    return {
        "gpu_rack_board": "hgx_h100_8",
        "__nccl": {"verdict": "pass", "fleet": {"versions": {}, "values": {BUSBW: value}}},
        "__health": {"verdict": "pass", "fleet": {"versions": {"gpu_health.driver": driver}}},
        "__failed": {"failed": True, "msg": "no fleet"},
        **more,
    }


HOSTS = {f"node{n}": results(476.0 + n) for n in range(1, 5)}
NAMES = ["__nccl", "__health", "__failed", "__skipped"]


def test_rows_of_a_run() -> None:
    rows = fleet_rows(["node2", "node1"], HOSTS, NAMES)
    assert [row["node"] for row in rows] == ["node1", "node2"]
    assert rows[0] == {
        "node": "node1",
        "board": "hgx_h100_8",
        "rack": "",
        "fleet": {
            "versions": {"gpu_health.driver": "580.95.05"},
            "values": {BUSBW: {"value": 477.0, "unit": "GB/s", "better": "higher"}},
        },
    }
    assert fleet_rows(["node1"], {"node1": results(1.0, gpu_rack_rack="A")}, NAMES)[0]["rack"] == "A"
    assert fleet_rows(["node1"], {"node1": {}}, NAMES) == []
    assert FilterModule().filters()["fleet_rows"] is fleet_rows


def test_limited_run_keeps_the_rows_of_the_others(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    assert fleet_rows(["node1"], HOSTS, NAMES, str(file))[0]["node"] == "node1"
    before = fleet_rows(list(HOSTS), HOSTS, NAMES, str(file), list(HOSTS))
    file.write_text(json.dumps({"rows": before}))

    slow = {**HOSTS, "node4": results(300.0)}
    after = fleet_rows(["node4"], slow, NAMES, str(file), list(HOSTS))
    assert after[:3] == before[:3]
    assert after[3]["fleet"]["values"][BUSBW]["value"] == 300.0
    assert run(node="node4", rows=after, enforce=False)["verdict"] == "fail"
    assert run(node="node3", rows=after, enforce=False)["verdict"] == "pass"
    gone = fleet_rows(["node4"], slow, NAMES, str(file), ["node3", "node4"])
    assert [row["node"] for row in gone] == ["node3", "node4"]


def test_node_without_a_result_keeps_its_old_row(tmp_path: Path) -> None:
    file = tmp_path / "fleet.json"
    file.write_text(json.dumps(fleet_rows(list(HOSTS), HOSTS, NAMES)))
    rows = fleet_rows(["node1", "node2"], {**HOSTS, "node2": {}}, NAMES, str(file))
    assert [row["node"] for row in rows] == ["node1", "node2", "node3", "node4"]


@pytest.mark.parametrize("text", ["", "{", "{}", "[1]", '[{"node": 1}]', "[" * 200000, '{"rows": {}}'])
def test_damaged_baseline_counts_as_none_and_warns(run: Run, tmp_path: Path, text: str) -> None:
    """It lies on the controller: an error would quarantine every node of the run."""
    file = tmp_path / "fleet.json"
    file.write_text(text)
    rows = fleet_rows(list(HOSTS), HOSTS, NAMES, str(file), list(HOSTS))
    assert rows[:-1] == fleet_rows(list(HOSTS), HOSTS, NAMES)
    assert list(rows[-1]) == ["problem"]
    result = run(node="node1", rows=rows, enforce=False)
    assert (result["verdict"], result["checks"][0]["check"]) == ("warn", "fleet_consistency.size")
    assert f"not counted: the rows of earlier runs, since {file}" in result["summary"]
    # What this run then stores is a baseline again, with or without the row about the old one.
    file.write_text(json.dumps({"rows": rows}))
    again = fleet_rows(["node1"], HOSTS, NAMES, str(file), list(HOSTS))
    assert again == rows[:-1]
    assert run(node="node1", rows=again)["verdict"] == "pass"


def test_wrong_arguments_of_the_filter() -> None:
    with pytest.raises(AnsibleFilterError, match="give lists"):
        fleet_rows("node1", HOSTS, NAMES)


def test_module(run: Run, tmp_path: Path) -> None:
    rows = fleet_rows(list(HOSTS), HOSTS, NAMES)
    result = run(node="node1", rows=rows, evidence_dir=str(tmp_path / "evidence"))
    assert (result["verdict"], result["changed"]) == ("pass", False)
    stored = tmp_path / "evidence/fleet_consistency.json"
    assert run(captured=str(stored), node="node1")["verdict"] == "pass"
    (tmp_path / "fleet.json").write_text(json.dumps({"rows": rows}))
    assert run(captured=str(tmp_path))["verdict"] == "pass"
    assert run(captured=str(tmp_path / "fleet.json"), profile="hgx_h100_8")["verdict"] == "pass"
    assert run(captured=str(tmp_path / "absent.json"), enforce=False)["verdict"] == "unknown"
    assert run(node="node1", rows=rows[:1], baseline=rows[1:])["verdict"] == "pass"
    assert run(node="node1", rows=rows, max_below=0.001, enforce=False)["verdict"] == "fail"


@pytest.mark.parametrize(
    "options",
    [{"rows": []}, {"node": "n"}, {"max_below": 1.0}, {"max_below": "nan"}, {"max_below": -0.1}, {"min_nodes": 1}],
)
def test_options(run: Run, options: dict[str, Any]) -> None:
    rows = {} if set(options) & {"rows", "node"} else {"rows": fleet_rows(["node1"], HOSTS, NAMES), "node": "node1"}
    assert run(**{**rows, **options, "enforce": False})["failed"]

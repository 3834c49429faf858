# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gate nccl_bandwidth on stand-in tools, on captured output, and on GPUs that are in use."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import nccl_bandwidth

from tests.unit.module_runner import Run, runner

FIXTURES = Path(__file__).parents[2] / "fixtures"
BOARD = (FIXTURES / "nccl-tests-2.17.9-wide-hgx8.txt").read_text()
UNIT = (FIXTURES / "nccl-tests-2.13-wrong-hgx8-4gpus.txt").read_text()
UNITS = {
    "board": "hgx_h100_8",
    "units": [
        {"id": f"node1-iu{n}", "gpus": [{"index": i, "uuid": f"GPU-{i}"} for i in range(4 * n, 4 * n + 4)]}
        for n in range(2)
    ],
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(nccl_bandwidth, capsys)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with stand-in tools first on PATH: the test answers by CUDA_VISIBLE_DEVICES and logs its calls."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "units.json").write_text(json.dumps(UNITS))
    (tmp_path / "board.txt").write_text(BOARD)
    (tmp_path / "unit.txt").write_text(UNIT)
    tool(
        tmp_path,
        "all_reduce_perf",
        f'echo "$CUDA_VISIBLE_DEVICES $NCCL_ALGO $*" >>{tmp_path}/calls\n'
        f'if [ -n "$CUDA_VISIBLE_DEVICES" ]; then cat {tmp_path}/unit.txt; else cat {tmp_path}/board.txt; fi',
    )
    tool(tmp_path, "nvidia-smi", f"cat {tmp_path}/apps 2>/dev/null || true")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


def tool(node: Path, name: str, script: str) -> None:
    path = node / "bin" / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def live(run: Run, node: Path, **args: Any) -> dict[str, Any]:
    options = {"profile": "hgx_h100_8", "units_file": str(node / "units.json"), "last": str(node / "last/nccl.json")}
    return run(**{**options, "enforce": False, **args})


def calls(node: Path) -> list[str]:
    file = node / "calls"
    found = file.read_text().splitlines() if file.exists() else []
    file.unlink(missing_ok=True)
    return found


def names(result: dict[str, Any], verdict: str) -> list[str]:
    return [f"{c['check']} {c['subject']}" for c in result["checks"] if c["verdict"] == verdict]


def test_board_and_units_are_measured(run: Run, node: Path) -> None:
    result = live(run, node)
    assert result["verdict"] == "pass", result["summary"]
    assert [(m["set"], m["gpus"], m["busbw"]) for m in result["measured"]] == [
        ("board", 8, 476.51),
        ("node1-iu0", 4, 368.0),
        ("node1-iu1", 4, 368.0),
    ]
    size = 8589934592
    assert calls(node) == [
        f"  -b {size} -e {size} -g 8 -n 20 -w 5 -c 1",
        f"GPU-0,GPU-1,GPU-2,GPU-3  -b {size} -e {size} -g 4 -n 20 -w 5 -c 1",
        f"GPU-4,GPU-5,GPU-6,GPU-7  -b {size} -e {size} -g 4 -n 20 -w 5 -c 1",
    ]
    assert result["fleet"]["values"]["nccl_bandwidth.busbw_unit1"] == {
        "value": 368.0,
        "unit": "GB/s",
        "better": "higher",
    }
    assert result["fleet"]["versions"]["nccl_bandwidth.nccl_tests"] == "2.17.9"


def test_options_reach_the_test(run: Run, node: Path) -> None:
    live(run, node, sets="board", size="16G", algorithm="ring", iterations=7, warmup=0)
    assert calls(node) == [" Ring -b 17179869184 -e 17179869184 -g 8 -n 7 -w 0 -c 1"]


def test_unit_that_is_the_board_is_measured_once(run: Run, node: Path) -> None:
    (node / "board.txt").write_text(UNIT)
    (node / "units.json").write_text(json.dumps({"units": UNITS["units"][:1]}))
    result = live(run, node, profile="hgx_h100_4")
    assert result["verdict"] == "pass", result["summary"]
    assert len(calls(node)) == 1


def test_units_of_one_gpu_have_nothing_to_measure(run: Run, node: Path) -> None:
    units = [{"id": f"node1-iu{i}", "gpus": [{"index": i, "uuid": f"GPU-{i}"}]} for i in range(8)]
    (node / "units.json").write_text(json.dumps({"units": units}))
    result = live(run, node)
    assert (result["verdict"], [m["set"] for m in result["measured"]]) == ("pass", ["board"])
    alone = live(run, node, sets="units")
    assert alone["verdict"] == "pass"
    assert {(c["check"], c["verdict"], c["value"]) for c in alone["checks"]} == {("nccl_bandwidth.units", "pass", 1)}
    assert "nothing to measure" in alone["checks"][0]["reason"]
    assert live(run, node, profile="h100_pcie")["verdict"] == "pass"


def test_cards_are_measured_in_their_units_only(run: Run, node: Path) -> None:
    units = [
        {"id": f"node1-iu{n}", "gpus": [{"index": i, "uuid": f"GPU-{i}"} for i in (2 * n, 2 * n + 1)]} for n in (0, 1)
    ]
    (node / "units.json").write_text(json.dumps({"units": units}))
    (node / "unit.txt").write_text(
        (FIXTURES / "nccl-tests-2.17.9-wide-pcie2.txt").read_text().replace("H100 PCIe", "H100 NVL")
    )
    result = live(run, node, profile="h100_nvl")
    assert result["verdict"] == "pass", result["summary"]
    assert [m["set"] for m in result["measured"]] == ["node1-iu0", "node1-iu1"]
    # Whoever says how many cards there are, or what they have to reach, has them all measured.
    assert live(run, node, profile="h100_nvl", min_busbw=50)["measured"][0]["set"] == "board"


def test_slow_unit_is_named(run: Run, node: Path) -> None:
    slow = re.sub(r" 35013.*", " 46000  186.74  280.11      0    46000  186.74  280.11      0", UNIT)
    assert slow != UNIT
    (node / "unit.txt").write_text(slow)
    result = live(run, node)
    assert names(result, "fail") == ["nccl_bandwidth.busbw node1-iu0", "nccl_bandwidth.busbw node1-iu1"]


@pytest.mark.parametrize(
    "text", ["", "{", "{}", '{"units": []}', '{"units": [{"id": "a/b", "gpus": [{"uuid": "x"}]}]}']
)
def test_units_that_cannot_be_read(run: Run, node: Path, text: str) -> None:
    (node / "units.json").write_text(text)
    result = live(run, node)
    assert names(result, "unknown") == ["nccl_bandwidth.units node"]
    assert live(run, node, sets="board")["verdict"] == "pass"


def test_number_of_gpus_must_be_known(run: Run, node: Path) -> None:
    result = live(run, node, profile="h100_nvl", sets="board")
    assert calls(node)[0].split()[5] == "8", "the GPUs of all units"
    (node / "units.json").unlink()
    result = live(run, node, profile="h100_nvl", sets="board")
    assert "nccl_bandwidth.gpus board" in names(result, "unknown")


def test_missing_tool_and_deadline(run: Run, node: Path) -> None:
    result = live(run, node, tool="/nowhere/all_reduce_perf", sets="board")
    assert result["verdict"] == "unknown"
    assert "could not start" in result["summary"]
    tool(node, "all_reduce_perf", "sleep 30")
    result = live(run, node, sets="board", timeout=0.2)
    assert result["verdict"] == "unknown"
    assert "still running after 0.2 s" in result["summary"]


def test_missing_tool_behind_env(run: Run, node: Path) -> None:
    result = live(run, node, tool="no_such_test", sets="units")
    assert result["verdict"] == "unknown"
    assert "status 127" in result["summary"]


def test_gpus_in_use_are_left_alone_and_the_last_result_counts(run: Run, node: Path) -> None:
    (node / "apps").write_text("GPU-5, 4711, /opt/vllm/bin/python3\n")
    result = live(run, node)
    assert names(result, "unknown") == ["nccl_bandwidth.busy board", "nccl_bandwidth.busy node1-iu1"]
    assert "process 4711 (/opt/vllm/bin/python3)" in result["summary"]
    assert len(calls(node)) == 1

    (node / "apps").write_text("")
    assert live(run, node)["verdict"] == "pass"
    assert len(calls(node)) == 3
    (node / "apps").write_text("GPU-5, 4711, /opt/vllm/bin/python3\n")
    result = live(run, node)
    assert (result["verdict"], len(result["measured"])) == ("pass", 3)
    assert len(calls(node)) == 1, "the free unit is measured again"
    assert live(run, node, min_busbw=400.0)["verdict"] == "fail", "held against the limits of today"


def test_nothing_starts_while_it_is_not_known_who_uses_the_gpus(run: Run, node: Path) -> None:
    assert live(run, node)["verdict"] == "pass", "a last result does not help either"
    calls(node)
    for script, said, timeout in (
        ("exit 9", "status 9", 30),
        ("sleep 30", "still running", 0.3),
        ("echo 'GPU-5, 4711, python3'; exit 15", "status 15", 30),
        ("echo 'Failed to initialize NVML'", "a line cannot be read: 'Failed to initialize NVML'", 30),
        ("echo 'GPU-5, 4711'", "a line cannot be read", 30),
    ):
        tool(node, "nvidia-smi", script)
        result = live(run, node, timeout=timeout)
        assert [n.split()[0] for n in names(result, "unknown")] == ["nccl_bandwidth.busy"] * 3
        assert said in result["summary"]
        assert calls(node) == []


def test_a_process_with_commas_in_its_name_uses_its_gpu(run: Run, node: Path) -> None:
    (node / "apps").write_text("GPU-5, 4711, python3 a,b, c\n")
    result = live(run, node, sets="units")
    assert names(result, "unknown") == ["nccl_bandwidth.busy node1-iu1"]
    assert "process 4711 (python3 a,b, c)" in result["summary"]
    assert len(calls(node)) == 1


def test_last_result_of_another_boot_does_not_count(run: Run, node: Path) -> None:
    assert live(run, node)["verdict"] == "pass"
    file = node / "last/nccl.json"
    stored = json.loads(file.read_text())
    stored["evidence"] = [e for e in stored["evidence"] if "boot_id" not in e["command"]]
    file.write_text(json.dumps(stored))
    (node / "apps").write_text("GPU-5, 4711, python3\n")
    assert live(run, node)["verdict"] == "unknown"


def test_evidence_can_be_judged_again(run: Run, node: Path) -> None:
    assert live(run, node, evidence_dir=str(node / "evidence"))["verdict"] == "pass"
    calls(node)
    stored = {"captured": str(node / "evidence/nccl_bandwidth.json"), "evidence_dir": None}
    assert live(run, node, **stored)["verdict"] == "pass"
    assert live(run, node, **stored, min_busbw=400.0)["verdict"] == "fail"
    assert calls(node) == []


def test_support_bundle(run: Run, tmp_path: Path) -> None:
    (tmp_path / "inference_units.json").write_text(json.dumps(UNITS))
    (tmp_path / "all_reduce_perf-board.txt").write_text(BOARD)
    for unit in ("node1-iu0", "node1-iu1"):
        (tmp_path / f"all_reduce_perf-{unit}.txt").write_text(UNIT)
    options: dict[str, Any] = {"captured": str(tmp_path), "profile": "hgx_h100_8", "enforce": False}
    assert run(**options)["verdict"] == "pass"
    (tmp_path / "all_reduce_perf-node1-iu1.txt").unlink()
    assert run(**options)["verdict"] == "unknown"
    assert run(**options, sets="board")["verdict"] == "pass"


def test_one_file(run: Run) -> None:
    options = {"captured": str(FIXTURES / "nccl-tests-2.13-wrong-hgx8-4gpus.txt"), "enforce": False}
    assert run(**options, profile="hgx_h100_8")["verdict"] == "pass"
    assert run(**options)["verdict"] == "pass"
    assert "hgx_h100_8" in run(**options)["checks"][-1]["limit_source"]
    assert run(**options, min_busbw=360)["verdict"] == "pass"
    assert run(captured="/nowhere", enforce=False, profile="hgx_h100_8")["verdict"] == "unknown"
    assert run(**options, min_busbw="nan")["failed"]
    assert run(**options, profile="hgx_h100_8", gpus=0)["failed"]


def test_unwritable_record_of_the_last_result(run: Run, node: Path) -> None:
    (node / "file").write_text("")
    result = live(run, node, last=str(node / "file/x.json"))
    assert result["failed"]
    assert "The verdict was pass" in result["msg"]


def test_command_is_a_plain_line(node: Path) -> None:
    words = nccl_bandwidth.GpuSet("u", "unit0", ["GPU-1", "GPU-2"], 2, "").command(
        {"algorithm": "nvls", "size": 1, "iterations": 2, "warmup": 3, "tool": "t"}
    )
    assert shlex.join(words) == "env CUDA_VISIBLE_DEVICES=GPU-1,GPU-2 NCCL_ALGO=NVLS t -b 1 -e 1 -g 2 -n 2 -w 3 -c 1"


def test_a_node_with_two_libraries_names_both_for_the_comparison() -> None:
    """Without the fact the comparison could only say unknown."""
    readings = [nccl_bandwidth.Evidence("t", 0, text) for text in (BOARD, BOARD.replace("2.17.9", "2.18.0"))]
    versions = nccl_bandwidth.fleet_of([], readings)["versions"]
    assert versions["nccl_bandwidth.nccl_tests"] == "2.17.9, 2.18.0"

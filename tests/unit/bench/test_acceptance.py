# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""tools/acceptance: reads indexes of several forms, compares by name, and never calls matched what it did not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.acceptance import cli, corpus, tools
from bench.acceptance.compare import compare

CORPUS = Path(__file__).resolve().parents[1] / "fixtures" / "corpus"


def write(folder: Path, index: str, **files: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.yaml").write_text(index)
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    return folder


# --- the whole runner


def test_the_mini_corpus_matches(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    assert cli.main(["--corpus", str(CORPUS), "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert "nvidia-smi topo -m: 3/3 matched, 2 values compared, 0 not compared" in out
    assert "total: 15/15 matched, 0 differ, 0 not read, 1 reference only" in out
    assert json.loads(file.read_text())["totals"]["matched"] == 15


def test_a_wrong_verdict_and_a_wrong_value_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (CORPUS / "ibstat/slow.txt").read_text()
    index = "- {file: a.txt, verdict: pass, args: {rate: 400}, values: {mlx5_0: {rate: 100}}}\n"
    write(tmp_path / "ibstat", index, a=text)
    assert cli.main(["--corpus", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "verdict: expected 'pass', got 'fail'" in out
    assert "mlx5_0.rate: expected 100, got 200" in out
    assert "total: 0/1 matched, 1 differ" in out


@pytest.mark.parametrize(
    ("index", "reason"),
    [
        ("- {file: gone.txt, verdict: pass}", "its file is not there: gone.txt"),
        ("- {file: a.txt}", "the index gives neither a verdict nor a value"),
        ("- {file: a.txt, values: {nothing_like_it: 3}}", "no value could be compared: nothing_like_it"),
    ],
)
def test_what_was_not_read_is_not_matched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], index: str, reason: str
) -> None:
    write(tmp_path / "chrony", index + "\n", a=(CORPUS / "chrony/tracking.txt").read_text())
    assert cli.main(["--corpus", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert f"not read: {reason}" in out
    assert "0/1 matched" in out


def test_a_text_no_module_is_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "misc", "- {file: a.txt, verdict: pass}\n", a="hello\n")
    assert cli.main(["--corpus", str(tmp_path)]) == 1
    assert "no module is known for it" in capsys.readouterr().out


@pytest.mark.parametrize("index", [None, "", "a: [", "- - x\n- 3", "text"])
def test_a_corpus_that_is_not_there_or_unreadable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], index: str | None
) -> None:
    if index is not None:
        write(tmp_path / "x", index)
    result = cli.main(["--corpus", str(tmp_path if index is not None else tmp_path / "gone")])
    assert result in ((1,) if index == "- - x\n- 3" else (2,))
    assert result == 1 or capsys.readouterr().err.startswith("acceptance: ")


# --- the index


@pytest.mark.parametrize(
    "index",
    [
        "- {file: a.txt, verdict: fail, values: {rate: 200}}",
        "captures: [{path: a.txt, expected: {verdict: bad, rate: 200}}]",
        "a.txt: {expect: {verdict: failed}, right: {rate: 200}}",
        "files: {a.txt: {verdict: FAIL, rate: 200, fidelity: verbatim}}",
        "- {id: a, verdict: fail, facts: {rate: {value: 200}}}",
        "tool: ibstat\nitems:\n  - {capture: a.txt, result: {verdict: fail}, truth: {rate: 200}}",
    ],
)
def test_forms_of_an_index(tmp_path: Path, index: str) -> None:
    write(tmp_path, index, a="CA 'mlx5_0'\n")
    (capture,) = corpus.read_index(tmp_path, "ibstat")
    assert capture.path == tmp_path / "a.txt"
    assert (capture.verdict, dict(capture.values), capture.problem) == ("fail", {"rate": 200}, "")


def test_error_is_our_unknown(tmp_path: Path) -> None:
    write(tmp_path, "- {file: a.txt, verdict: error}", a="x")
    assert corpus.read_index(tmp_path, "x")[0].verdict == "unknown"


def test_facts_without_a_capture(tmp_path: Path) -> None:
    write(tmp_path, "- {id: sixteen GPUs, reference_only: true, gpus: 16}\n- {note: nothing}\n")
    assert [c.reference for c in corpus.read_index(tmp_path, "x")] == [True, True]


def test_a_file_outside_of_the_folder_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("x")
    write(tmp_path / "x", "- {file: ../secret.txt, verdict: pass}")
    (capture,) = corpus.read_index(tmp_path / "x", "x")
    assert capture.path is None
    assert capture.problem


def test_several_files_are_a_bundle(tmp_path: Path) -> None:
    (tmp_path / "n1").mkdir()
    for name in ("tracking.txt", "sources.txt"):
        (tmp_path / "n1" / name).write_text("x")
    write(tmp_path, "- {files: [n1/tracking.txt, n1/sources.txt], verdict: pass}")
    assert corpus.read_index(tmp_path, "x")[0].path == tmp_path / "n1"


# --- values


@pytest.mark.parametrize(
    ("expected", "measured", "outcome"),
    [
        ({"rate": 400}, {"ports.mlx5_0.rate": ("400", "")}, "matched"),
        ({"mlx5_3.Rate": 400}, {"mlx5_0.rate": (200, ""), "mlx5_3.rate": (400, "")}, "matched"),
        ({"mlx5_3.Rate": 200}, {"mlx5_0.rate": (200, ""), "mlx5_3.rate": (400, "")}, "differs"),
        ({"mlx5_3.rate": 200}, {"mlx5_0.rate": (200, "")}, "not compared"),
        ({"gpus.3.pcie_width": 8}, {"GPU 3 00000000:61:00_0.pcie_width": (8, "")}, "matched"),
        ({"gpus.3.pcie_width": 8}, {"GPU 30 00000000:61:00_0.pcie_width": (8, "")}, "not compared"),
        ({"offset_us": 250000}, {"offset": (250.0, "ms")}, "matched"),
        ({"offset_us": 250}, {"offset": (250.0, "ms")}, "differs"),
        ({"loss_percent": 0.9}, {"loss": (0.9, "percent")}, "matched"),
        ({"typical": 1.91}, {"t_typical_us": (1.91, "")}, "matched"),
        ({"p99": None}, {"p99_us": (None, "")}, "matched"),
        ({"p99": None}, {"p99_us": (2.0, "")}, "differs"),
        ({"p99": 0}, {"p99_us": (None, "")}, "differs"),
        ({"mig": True}, {"mig": ("Enabled", "")}, "matched"),
        ({"mig": False}, {"mig": ("Enabled", "")}, "differs"),
        ({"xids": [48, 63]}, {"events.xid": ([63, 48, 48], "")}, "matched"),
        ({"xids": [48]}, {"events.xid": ([63, 48], "")}, "differs"),
        ({"gpus": 8}, {"gpus": ([str(n) for n in range(8)], "")}, "matched"),
        ({"rate": 400}, {"mlx5_0.rate": (400, ""), "mlx5_1.rate": (200, "")}, "not compared"),
        ({"leap_status": "normal"}, {"leap": ("Normal", "")}, "matched"),
        ({"colour": "red"}, {"rate": (1, "")}, "not compared"),
    ],
)
def test_values_are_compared_by_name(
    expected: dict[str, Any], measured: dict[str, tuple[Any, str]], outcome: str
) -> None:
    found = compare(expected, measured)
    states = {"matched": found.matched, "differs": len(found.differences), "not compared": len(found.not_compared)}
    assert states == {**dict.fromkeys(states, 0), outcome: 1}


# --- tool and board


@pytest.mark.parametrize(
    ("file", "tool"),
    [
        ("nvidia-smi-470-topo-formD-hgx8.txt", "nvlink_topology"),
        ("nvidia-smi-580.95.05-q-hgx8.txt", "gpu_health"),
        ("nvidia-smi-580.95.05-nvlink-s-hgx8.txt", "nvlink_status"),
        ("nvidia-smi-580.95.05-query-gpu-health-hgx8.csv", "gpu_health"),
        ("infiniband-diags-44.0-ibstat-8xndr.txt", "ib_port"),
        ("infiniband-diags-44.0-ibping-lossy.txt", "ib_latency"),
        ("perftest-3.0-ib_write_lat.txt", "ib_latency"),
        ("nccl-tests-2.0-error-hgx8.txt", "nccl_bandwidth"),
        ("chrony-4.3-tracking.csv", "clock_sync"),
        ("chrony-4.3-sources.txt", "clock_sync"),
        ("dmesg-2.38-clean-hgx8.txt", "xid"),
        ("consul-1.8-health-node.json", "consul_health"),
        ("opensm-5.17-nvidia.conf", "rdma_congestion"),
    ],
)
def test_a_text_tells_its_module(file: str, tool: str) -> None:
    text = (CORPUS.parent / file).read_text()
    found = tools.find(corpus.Capture("x", file, None, None, {}, None, {}, None), text)
    assert found is not None
    assert found.module == tool


@pytest.mark.parametrize(
    ("file", "board"),
    [
        ("nvidia-smi-580-topo-formG-hgx8.txt", "hgx_h100_8"),
        ("nvidia-smi-550-topo-formF-hgx4.txt", "hgx_h100_4"),
        ("nvidia-smi-570-topo-formF-pcie4.txt", None),
        ("nvidia-smi-460.91.03-q-a100x2.txt", None),
        ("nvidia-smi-565.57.01-q-nvl2.txt", "h100_nvl"),
        ("nvidia-smi-535.129.03-q-hgx4.txt", "hgx_h100_4"),
    ],
)
def test_a_text_tells_its_board(file: str, board: str | None) -> None:
    assert tools.board_of((CORPUS.parent / file).read_text()) == board

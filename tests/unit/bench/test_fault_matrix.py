# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The fault matrix: its runner tells caught from missed, and its table covers what the issue asks for.

The whole table runs as `bench/fault_matrix` (tools/test), here a few lines of it do.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.faultmatrix import cli
from bench.faultmatrix.cli import Entry, Result, compare, compare_healthy, evaluate, read_table, totals
from bench.faultmatrix.judge import Case

ROOT = Path(__file__).resolve().parents[3]
FAULTS, HEALTHY = read_table(cli.TABLE)


def entry(name: str) -> Entry:
    return next(e for e in (*FAULTS, *HEALTHY) if e.name == name)


def check(name: str, subject: str, verdict: str, reason: str = "because") -> dict[str, Any]:
    return {
        "check": name, "subject": subject, "verdict": verdict, "reason": reason, "value": 1, "limit": 2, "unit": "",
        "limit_source": "", "remedy": "",
    }  # fmt: skip


def decision(*checks: dict[str, Any]) -> dict[str, Any]:
    bad = [c for c in checks if c["verdict"] in ("fail", "unknown")]
    return {"verdict": bad[0]["verdict"] if bad else "pass", "checks": list(checks), "worst": bad[0] if bad else None}


WANTED = Entry("x", Case(faults=("f",)), "a.b", "GPU 3", "fail", says=("because",), also=(r"c\..*",))


@pytest.mark.parametrize(
    ("checks", "problem"),
    [
        ([check("a.b", "GPU 3", "fail")], ""),
        ([check("a.b", "GPU 3", "fail"), check("c.d", "x", "unknown")], ""),
        ([check("a.b", "GPU 3", "fail"), check("fleet_consistency.value", "x", "fail")], ""),
        ([check("a.b", "GPU 3", "pass")], "no check blocks the node"),
        ([check("a.b", "GPU 3", "warn")], "no check blocks the node"),
        ([check("e.f", "GPU 3", "fail")], "caught by e.f, not by a.b"),
        ([check("a.b", "GPU 4", "fail")], "a.b blames 'GPU 4', not 'GPU 3'"),
        ([check("a.b", "GPU 3", "fail"), check("a.b", "GPU 4", "fail")], "a.b also blames 'GPU 4'"),
        ([check("a.b", "GPU 3", "unknown")], "a.b says unknown, not fail"),
        ([check("a.b", "GPU 3", "fail", "so")], "the reason does not say 'because'"),
        (
            [check("a.b", "GPU 3", "fail"), check("e.f", "x", "fail")],
            "e.f blocks too, which this fault does not explain",
        ),
    ],
)
def test_compare(checks: list[dict[str, Any]], problem: str) -> None:
    assert compare(WANTED, decision(*checks))[0] == problem


def test_a_neighbours_fault_may_not_keep_the_node_out() -> None:
    warned = dataclasses.replace(WANTED, verdict="warn")
    assert compare(warned, decision(check("a.b", "GPU 3", "warn")))[0] == ""
    assert compare(warned, decision(check("a.b", "GPU 3", "fail")))[0] == "a.b keeps the node out"


def test_healthy_nodes_pass_or_warn_as_documented() -> None:
    assert compare_healthy(decision(check("a.b", "x", "pass")), ()) == ("", None)
    assert compare_healthy(decision(check("a.b", "x", "warn")), (r"a\..*",))[0] == ""
    assert compare_healthy(decision(check("a.b", "x", "warn")), ())[0] == "warn of a.b"
    assert compare_healthy(decision(check("a.b", "x", "unknown")), (r"a\..*",))[0] == "unknown of a.b"


def test_the_table_has_what_the_issue_asks_for() -> None:
    assert len(FAULTS) >= 60
    assert len(HEALTHY) >= 15
    texts = " ".join([f for e in FAULTS for f in (*e.case.faults, *(f"{t} {how}" for t, how in e.tools.items()))])
    texts += " ".join(e.name for e in FAULTS)
    for words in (
        "gpu 3: missing", "NV17", ": SYS", "nvlink 3/5: down", "fabric: in progress", "fabricmanager: version",
        "ecc gpu 1: uncorrected", "remap gpu 1: pending", "remap gpu 1: failed", "xid 79", "xid 48", "xid 63",
        "xid 64", "xid 94", "xid 119", ": x8", ": gen4", "hw slowdown", "mig gpu 0: on", "Polling", "Initializing",
        "Disabled", "rate 200", "mlx5_1: ethernet", "firmware 28.39.1002", "symbol errors", "0.1%",
        "latency mlx5_1: +1us", "latency leaf leaf1", "nccl: 60%", "nccl: wrong", "nccl: cut off", "missing", "hangs",
        "garbage", "empty", "error exit 0", "C6 enabled", "bios: ignores writes", "clock: local only",
        "clock: unsynchronised", "clock: wrong servers", "numa gpu 2: 1", "numactl: ignores binding",
        "weights: corrupt", "no token", "service consul.service: killed",
    ):  # fmt: skip
        assert words in texts, words


@pytest.mark.parametrize(
    "name",
    [
        "NV17 on one link",
        "port Polling",
        "loss 0.1 %",
        "agent dead with service passing",
        "unit unbound",
        "a failed result that was made to pass",
        "live: nvidia-smi hangs",
    ],
)
def test_a_fault_is_caught_and_heals(name: str) -> None:
    result = evaluate(entry(name))
    assert (result.outcome, result.problem, result.healed) == ("caught", "", "pass")


@pytest.mark.parametrize("name", ["HGX H100 4-GPU", "RoCE", "driver 590", "affinity blank in a cpuset"])
def test_a_healthy_node_passes(name: str) -> None:
    result = evaluate(entry(name))
    assert (result.outcome, result.problem) == ("passed", "")


def test_a_fault_nobody_looks_for_is_missed() -> None:
    # Corrected errors are no defect, so a table that asks for a verdict on them must be told that there is none.
    wanted = Entry("x", Case(board="hgx_h100_4", faults=("ecc gpu 1: corrected 1",)), "gpu_health.ecc_volatile")
    result = evaluate(wanted)
    assert (result.outcome, result.problem) == ("missed", "no check blocks the node")


def test_a_wrong_line_is_reported_and_does_not_end_the_run() -> None:
    result = evaluate(Entry("x", Case(faults=("gpu 99: missing",)), "a.b"))
    assert result.outcome == "wrong"
    assert "no GPU 99" in result.problem


def test_an_edit_that_changes_nothing_is_an_error() -> None:
    edits = ({"file": "ibstat.txt", "from": "no such words", "to": ""},)
    assert "'no such words' is not in ibstat.txt" in evaluate(Entry("x", Case(edits=edits), "a.b")).problem


def test_totals_and_markdown() -> None:
    results = [
        Result("one", "fault", (), "a.b", "", "fail", "a.b", "GPU 3", "x | y"),
        Result("two", "fault", (), "a.b", "no check blocks the node", "pass"),
        Result("three", "healthy", (), "", "fail of a.b", "fail"),
    ]
    assert totals(results) == {
        "faults": 2, "caught": 1, "missed": 1, "wrong": 0, "healthy": 1, "false_alarms": 1,
    }  # fmt: skip
    text = cli.markdown(results)
    assert "| one | caught | a.b | GPU 3 | x \\| y |" in text
    assert "| three | false alarm: fail of a.b |" in text


def test_a_wrong_table_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "t.yml"
    table.write_text("faults: [{name: x, chek: a.b}]\nhealthy: []\n")
    assert cli.main(["--table", str(table)]) == 2
    assert "'x' has unknown keys: chek" in capsys.readouterr().err
    assert cli.main(["--only", "no such line"]) == 2


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "out.json"
    command = [str(ROOT / "bench/fault_matrix"), "--only", "^MIG on$", "--json", str(file), "--jobs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 1 faults caught" in done.stdout
    data = json.loads(file.read_text())
    assert data["results"][0]["check"] == "gpu_health.mig"
    assert "measured Enabled" in data["results"][0]["reason"]

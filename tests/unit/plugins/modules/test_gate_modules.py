# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the gate modules as Ansible runs them: captured output, fake tools, stored evidence, the decision."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import run as run_tool
from ansible_collections.ai_infra.gpu_rack.plugins.modules import (
    clock_sync,
    cpu_idle,
    gate,
    gpu_driver,
    ib_port,
    inference_units,
    nvlink_topology,
)

FIXTURES = Path(__file__).parents[2] / "fixtures"
TOPO = FIXTURES / "nvidia-smi-580-topo-formG-hgx8.txt"
HCAS = [f"mlx5_{i}" for i in range(8)]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a module in this process and return what it printed, with its exit status as `status`."""

    def call(module: Any, check: bool = False, **args: Any) -> dict[str, Any]:
        with patch_module_args({**args, "_ansible_check_mode": check}), pytest.raises(SystemExit) as ended:
            module.main()
        printed: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        return {**printed, "status": ended.value.code}

    return call


def fake(directory: Path, name: str, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")


def test_topology_passes_with_four_facts(run: Run) -> None:
    got = run(nvlink_topology, captured=str(TOPO), profile="hgx_h100_8", hcas=HCAS)
    assert (got["status"], got["verdict"], got["changed"]) == (0, "pass", False)
    assert [(c["check"], c["value"]) for c in got["checks"]] == [
        ("nvlink_topology.gpus", 8),
        ("nvlink_topology.matrix", "56 cells NV18"),
        ("nvlink_topology.nic_affinity", "8 PIX"),
        ("nvlink_topology.numa", "GPU0-3: 0, GPU4-7: 1"),
    ]
    assert got["matrix"]["GPU3"]["mlx5_3"] == "PIX"


def test_a_blocking_verdict_fails_the_task_with_the_reason(run: Run, tmp_path: Path) -> None:
    bad = tmp_path / "topo.txt"
    bad.write_text(
        TOPO.read_text().replace("GPU2\tNV18", "GPU2\tNV17").replace("GPU0\t X \tNV18\tNV18", "GPU0\t X \tNV18\tNV17")
    )
    got = run(nvlink_topology, captured=str(bad), profile="hgx_h100_8")
    assert got["status"] == 1
    assert got["msg"].startswith("nvlink_topology.matrix GPU0-GPU2: fail, measured NV17, limit NV18")
    assert run(nvlink_topology, captured=str(bad), profile="hgx_h100_8", enforce=False)["status"] == 0


LIVE = {
    "tool missing": (None, "could not start"),
    "empty output": ("exit 0", "the output is empty"),
    "error text with status 0": (
        "echo 'Failed to initialize NVML: Driver/library version mismatch'",
        "Failed to initialize",
    ),
    "matrix but status 15": (f"cat {TOPO}; exit 15", "ended with status 15"),
    "hangs": ("sleep 30", "still running after 0.3 s"),
}


@pytest.mark.parametrize(("body", "reason"), LIVE.values(), ids=LIVE.keys())
def test_a_tool_that_does_not_answer_is_unknown(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str | None, reason: str
) -> None:
    if body is not None:
        fake(tmp_path, "nvidia-smi", body, monkeypatch)
    got = run(nvlink_topology, profile="hgx_h100_8", enforce=False, timeout=0.3 if body == "sleep 30" else 10)
    assert got["verdict"] == "unknown"
    assert reason in got["summary"]


def test_stored_evidence_is_judged_again_with_the_same_result(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, "nvidia-smi", f"cat {TOPO}", monkeypatch)
    live = run(nvlink_topology, profile="hgx_h100_8", hcas=HCAS, evidence_dir=str(tmp_path / "e"))
    stored = tmp_path / "e/nvlink_topology.json"
    assert stored.stat().st_mode & 0o777 == 0o600
    assert "stdout" not in live["evidence"][0]
    again = run(nvlink_topology, profile="hgx_h100_8", hcas=HCAS, captured=str(stored))
    assert again["checks"] == live["checks"]
    assert run(ib_port, hcas=["mlx5_0"], rate=400, captured=str(stored), enforce=False)["verdict"] == "unknown"


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a support bundle of an HGX-8 node."""
    root = tmp_path / "bundle"
    for node, cpus in (("0", "0-55,112-167"), ("1", "56-111,168-223")):
        directory = root / f"sys/devices/system/node/node{node}"
        directory.mkdir(parents=True)
        (directory / "cpulist").write_text(cpus + "\n")
    (root / "topo.txt").write_text(TOPO.read_text())
    (root / "query-gpu.csv").write_text((FIXTURES / "nvidia-smi-580-query-gpu-hgx8.csv").read_text())
    return root


def query_lines() -> list[str]:
    return (FIXTURES / "nvidia-smi-580-query-gpu-hgx8.csv").read_text().splitlines(keepends=True)


UNITS: dict[str, Any] = {"profile": "hgx_h100_8", "hcas": HCAS, "node": "node1"}


def test_units_of_an_hgx8(run: Run, bundle: Path) -> None:
    got = run(inference_units, captured=str(bundle), **UNITS)
    assert got["verdict"] == "pass"
    first, second = got["units"]
    assert {k: first[k] for k in ("id", "index", "numa_node", "cpus", "nics", "port")} == {
        "id": "node1-iu0",
        "index": 0,
        "numa_node": 0,
        "cpus": "0-55,112-167",
        "nics": HCAS[:4],
        "port": 8000,
    }
    assert [g["index"] for g in second["gpus"]] == [4, 5, 6, 7]
    assert second["gpus"][0] == {
        "index": 4,
        "uuid": "GPU-5a0e41c2-77d0-4b1a-9c33-000000000004",
        "bus_id": "00000000:9D:00.0",
        "numa_node": 1,
    }
    assert (second["cpus"], second["port"]) == ("56-111,168-223", 8001)


def test_units_of_two_share_a_node_without_sharing_a_cpu(run: Run, bundle: Path) -> None:
    got = run(inference_units, captured=str(bundle), iu_gpus=2, **UNITS)
    assert [u["cpus"] for u in got["units"]] == [
        "0-27,112-139",
        "28-55,140-167",
        "56-83,168-195",
        "84-111,196-223",
    ]
    assert [u["nics"] for u in got["units"]] == [HCAS[i : i + 2] for i in (0, 2, 4, 6)]


def test_a_unit_of_an_hgx4_spans_numa_nodes(run: Run, tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text((FIXTURES / "nvidia-smi-550-topo-formF-hgx4.txt").read_text())
    (tmp_path / "query-gpu.csv").write_text((FIXTURES / "nvidia-smi-550-query-gpu-hgx4.csv").read_text())
    got = run(inference_units, captured=str(tmp_path), profile="hgx_h100_4", node="n")
    assert got["verdict"] == "pass"
    (unit,) = got["units"]
    assert (unit["numa_node"], unit["numa_nodes"]) == (None, [1, 3, 5, 7])
    assert unit["cpus"] == "12-23,36-47,60-71,84-95,108-119,132-143,156-167,180-191"


def test_units_are_written_once_and_not_in_check_mode(run: Run, bundle: Path, tmp_path: Path) -> None:
    dest = tmp_path / "etc/inference_units.json"
    dry = run(inference_units, check=True, captured=str(bundle), dest=str(dest), **UNITS)
    assert (dry["changed"], dest.exists(), dry["diff"]["before"]) == (True, False, "")
    first = run(inference_units, captured=str(bundle), dest=str(dest), **UNITS)
    assert (first["changed"], dest.read_text()) == (True, first["diff"]["after"])
    assert dest.stat().st_mode & 0o777 == 0o644
    assert dest.parent.stat().st_mode & 0o777 == 0o755
    assert json.loads(dest.read_text()) == {"board": "hgx_h100_8", "units": first["units"]}
    assert run(inference_units, captured=str(bundle), dest=str(dest), **UNITS)["changed"] is False
    moved = run(inference_units, captured=str(bundle), dest=str(dest), base_port=9000, **UNITS)
    assert moved["changed"] is True


def test_a_node_in_doubt_keeps_its_old_units(run: Run, bundle: Path, tmp_path: Path) -> None:
    dest = tmp_path / "inference_units.json"
    dest.write_text("{}")
    (bundle / "query-gpu.csv").write_text("0, GPU-aa, 00000000:1B:00.0\n")
    got = run(inference_units, captured=str(bundle), dest=str(dest), enforce=False, **UNITS)
    assert (got["verdict"], got["changed"], dest.read_text()) == ("unknown", False, "{}")


DOUBTS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "query missing": (lambda b: (b / "query-gpu.csv").unlink(), "unknown", "holds none of"),
    "query cut off": (lambda b: (b / "query-gpu.csv").write_text("0, GPU-aa"), "unknown", "a line cannot be read"),
    "CPUs not known": (
        lambda b: [
            (b / "sys/devices/system/node/node0/cpulist").write_text("\n"),
            (b / "topo.txt").write_text(TOPO.read_text().replace("0-55,112-167", "N/A")),
        ],
        "unknown",
        "the CPUs of its NUMA node could not be read",
    ),
    "NUMA not known": (
        lambda b: (b / "topo.txt").write_text((FIXTURES / "nvidia-smi-570-topo-formF-hgx8-cpuset.txt").read_text()),
        "unknown",
        "the NUMA node of GPU0-7 is not known",
    ),
    "cells glued": (
        lambda b: (b / "topo.txt").write_text(TOPO.read_text().replace("PIX\tNODE\tNODE", "PIXNODE\tNODE", 1)),
        "unknown",
        "PIXNODE",
    ),
    "a GPU in one list only": (
        lambda b: (b / "query-gpu.csv").write_text("".join(query_lines()[:7])),
        "unknown",
        "disagree about GPU 7",
    ),
    "island": (
        lambda b: (b / "topo.txt").write_text(TOPO.read_text().replace("GPU0\t X \tNV18", "GPU0\t X \tSYS")),
        "fail",
        "GPU0, GPU1, GPU2, GPU3 do not form a unit",
    ),
}


@pytest.mark.parametrize(("damage", "verdict", "reason"), DOUBTS.values(), ids=DOUBTS.keys())
def test_units_in_doubt(run: Run, bundle: Path, damage: Callable[[Path], Any], verdict: str, reason: str) -> None:
    damage(bundle)
    got = run(inference_units, captured=str(bundle), enforce=False, **UNITS)
    assert got["verdict"] == verdict
    assert reason in got["summary"]


def test_a_plan_that_does_not_fit_fails_and_names_the_gpus(run: Run, bundle: Path) -> None:
    plan = [{"gpus": ["0", "1", "2", "4"]}, {"gpus": ["3", "5", "6", "7"]}]
    got = run(inference_units, captured=str(bundle), plan=plan, enforce=False, **UNITS)
    assert got["verdict"] == "fail"
    assert "GPU0, GPU1, GPU2, GPU4 of unit 0 are on NUMA nodes 0-1" in got["summary"]
    good = run(inference_units, captured=str(bundle), plan=[{"gpus": list("0123")}, {"gpus": list("4567")}], **UNITS)
    assert good["verdict"] == "pass"


def test_ports_by_profile_and_by_rate(run: Run) -> None:
    captured = str(FIXTURES / "infiniband-diags-44.0-ibstat-8xndr.txt")
    assert run(ib_port, captured=captured, hcas=HCAS, profile="hgx_h100_8")["verdict"] == "pass"
    got = run(ib_port, captured=captured, hcas=HCAS, rate=800, enforce=False)
    assert (got["verdict"], len([c for c in got["checks"] if c["verdict"] == "fail"])) == ("fail", 8)


def test_ibpanic_keeps_the_ports_that_were_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = FIXTURES / "infiniband-diags-44.0-ibstat-8xndr.txt"
    fake(
        tmp_path,
        "ibstat",
        f"cat {text}; echo \"ibpanic: [1] main: stat of IB device 'mlx5_8' failed\" >&2; exit 255",
        monkeypatch,
    )
    got = run(ib_port, hcas=[*HCAS, "mlx5_8"], rate=400, enforce=False)
    assert got["verdict"] == "unknown"
    assert [c["subject"] for c in got["checks"] if c["check"] == "ib_port.present"] == ["mlx5_8"]
    assert len([c for c in got["checks"] if c["verdict"] == "pass"]) == 8 * 5


@pytest.mark.parametrize("hcas", [[], ["mlx5_0:one"], ["mlx5_0:"]])
def test_odd_hcas_are_refused(run: Run, hcas: list[str]) -> None:
    assert run(ib_port, hcas=hcas, rate=400, captured=str(TOPO))["msg"].startswith("hcas: ")


CLOCK = ('case "$*" in *tracking) cat {tracking};; *) cat {sources};; esac').replace(
    "{sources}", str(FIXTURES / "chrony-4.3-sources.csv")
)


def test_a_clock_that_becomes_synchronised_is_waited_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, not_yet = (FIXTURES / f"chrony-4.3-tracking{s}.csv" for s in ("", "-unsynchronised"))
    body = (
        f'[ -e {tmp_path}/asked ] && T={good} || T={not_yet}\ncase "$*" in *tracking) touch {tmp_path}/asked; cat $T;;'
    )
    fake(tmp_path, "chronyc", f"{body} *) cat {FIXTURES}/chrony-4.3-sources.csv;; esac", monkeypatch)
    fake(tmp_path, "date", "echo 1764525042", monkeypatch)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    got = run(clock_sync, wait=30, servers=["172.31.77.10"])
    assert got["verdict"] == "pass"
    assert got["offset_ms"] == pytest.approx(0.012345)


def test_a_clock_that_does_not_is_judged_at_once_without_wait(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(tmp_path, "chronyc", CLOCK.format(tracking=FIXTURES / "chrony-4.3-tracking-unsynchronised.csv"), monkeypatch)
    got = run(clock_sync, enforce=False)
    assert (got["verdict"], got["checks"][0]["value"]) == ("fail", "Not synchronised")


def test_506_with_status_0_is_unknown(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path, "chronyc", "echo '506 Cannot talk to daemon'", monkeypatch)
    got = run(clock_sync, enforce=False)
    assert got["verdict"] == "unknown"
    assert "506 Cannot talk to daemon" in got["summary"]


def test_clock_captures(run: Run, tmp_path: Path) -> None:
    human = FIXTURES / "chrony-4.3-tracking.txt"
    assert run(clock_sync, captured=str(human), servers=["ntp1.site.example"])["verdict"] == "pass"
    both = tmp_path / "chrony.txt"
    both.write_text(human.read_text() + "\n" + (FIXTURES / "chrony-4.3-sources.txt").read_text())
    got = run(clock_sync, captured=str(both), servers=["ntp1.site.example"], enforce=False)
    assert (got["verdict"], got["summary"].split(":")[0]) == ("fail", "clock_sync.servers clock")
    (tmp_path / "tracking").write_text((FIXTURES / "chrony-4.3-tracking.csv").read_text())
    (tmp_path / "sources").write_text((FIXTURES / "chrony-4.3-sources.csv").read_text())
    assert run(clock_sync, captured=str(tmp_path))["verdict"] == "pass"


def test_one_file_may_hold_a_list_of_sources_alone(run: Run, tmp_path: Path) -> None:
    got = run(clock_sync, captured=str(FIXTURES / "chrony-3.4-sources-v.txt"))
    assert (got["status"], got["verdict"], got["offset_ms"]) == (0, "warn", None)
    assert got["summary"].startswith("clock_sync.reach ntp3.site.example: warn, measured 0, limit above 0 (chrony)")
    (tmp_path / "both").write_text(
        (FIXTURES / "chrony-2.1-tracking.txt").read_text() + (FIXTURES / "chrony-3.4-sources-v.txt").read_text()
    )
    got = run(clock_sync, captured=str(tmp_path / "both"))
    assert (got["verdict"], len(got["checks"])) == ("warn", 5 + 3 * 2)
    (tmp_path / "empty").write_text("")
    assert run(clock_sync, captured=str(tmp_path / "empty"), enforce=False)["verdict"] == "unknown"


def test_the_age_of_the_last_correction_needs_the_time_of_the_node(run: Run, tmp_path: Path) -> None:
    (tmp_path / "tracking").write_text((FIXTURES / "chrony-4.3-tracking.csv").read_text())
    (tmp_path / "sources").write_text((FIXTURES / "chrony-4.3-sources.csv").read_text())
    assert "clock_sync.ref_age" not in [c["check"] for c in run(clock_sync, captured=str(tmp_path))["checks"]]
    (tmp_path / "date.txt").write_text("1764529097\n")
    got = run(clock_sync, captured=str(tmp_path), enforce=False)
    assert got["summary"].startswith("clock_sync.ref_age clock: fail, measured 4096.9 s, limit 4096.0 s")
    assert run(clock_sync, captured=str(tmp_path), max_ref_age_s=5000)["verdict"] == "pass"


def make_cpus(root: Path, deep: str) -> None:
    for cpu in range(4):
        for index, (name, latency, disable) in enumerate((("POLL", "0", "0"), ("C1", "1", "0"), ("C6", "290", deep))):
            directory = root / f"devices/system/cpu/cpu{cpu}/cpuidle/state{index}"
            directory.mkdir(parents=True)
            for key, value in (("name", name), ("latency", latency), ("disable", disable)):
                (directory / key).write_text(value + "\n")


def test_idle_states_live_and_from_stored_evidence(run: Run, tmp_path: Path) -> None:
    make_cpus(tmp_path / "sys", "0")
    got = run(cpu_idle, sysfs_root=str(tmp_path / "sys"), enforce=False, evidence_dir=str(tmp_path / "e"))
    assert (got["verdict"], got["checks"][0]["subject"], got["checks"][0]["value"]) == ("fail", "CPU 0-3", 290)
    again = run(cpu_idle, captured=str(tmp_path / "e/cpu_idle.json"), enforce=False)
    assert again["checks"] == got["checks"]
    assert run(cpu_idle, captured=str(tmp_path / "sys"), max_exit_latency_us=300)["verdict"] == "pass"


def test_idle_states_that_cannot_be_read_are_unknown(run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run(cpu_idle, captured=str(tmp_path / "empty"), enforce=False)["verdict"] == "unknown"
    assert run(cpu_idle, captured=str(tmp_path / "none"), enforce=False)["verdict"] == "unknown"
    assert run(cpu_idle, captured=str(TOPO), enforce=False)["verdict"] == "unknown"


RUN_ID = "20261130T180000Z"


@pytest.fixture
def state(run: Run, tmp_path: Path) -> Path:
    """Return a state directory with the evidence of two gates that pass."""
    evidence = tmp_path / "state/evidence" / RUN_ID / "hardware"
    run(nvlink_topology, captured=str(TOPO), profile="hgx_h100_8", evidence_dir=str(evidence))
    captured = str(FIXTURES / "infiniband-diags-44.0-ibstat-8xndr.txt")
    run(ib_port, captured=captured, hcas=HCAS, rate=400, evidence_dir=str(evidence))
    return tmp_path / "state"


def decide(run: Run, state: Path, **args: Any) -> dict[str, Any]:
    required = {
        "evidence": str(state / "evidence" / RUN_ID / "hardware"),
        "stage": "hardware",
        "require": ["nvlink_topology", "ib_port"],
        "state_dir": str(state),
        "node": "node1",
        "allow_captured": True,
    }
    return run(gate, **{**required, **args})


def test_the_decision_is_stored_with_its_evidence(run: Run, state: Path) -> None:
    got = decide(run, state)
    assert (got["status"], got["changed"], got["verdict"], got["worst"]) == (0, False, "pass", None)
    path = state / "gate/hardware.json"
    assert path.stat().st_mode & 0o777 == 0o600
    stored = json.loads(path.read_text())
    assert (stored["node"], stored["run"], stored["stage"], stored["verdict"]) == ("node1", RUN_ID, "hardware", "pass")
    assert len(stored["checks"]) == 3 + 8 * 5
    assert {len(g["sha256"]) for g in stored["gates"].values()} == {64}
    assert {"machine_id", "boot_id", "time"} <= set(stored)


def test_a_gate_without_evidence_blocks(run: Run, state: Path) -> None:
    got = decide(run, state, require=["nvlink_topology", "ib_port", "clock_sync"])
    assert got["status"] == 1
    assert (got["worst"]["check"], got["worst"]["subject"]) == ("gate.evidence", "clock_sync")
    assert "there is no evidence of this gate in this run" in got["msg"]
    assert json.loads((state / "gate/hardware.json").read_text())["verdict"] == "unknown"


def test_a_failed_gate_blocks_unless_not_enforced(run: Run, state: Path) -> None:
    captured = str(FIXTURES / "infiniband-diags-44.0-ibstat-8xndr.txt")
    evidence = str(state / "evidence" / RUN_ID / "hardware")
    run(ib_port, captured=captured, hcas=HCAS, rate=800, evidence_dir=evidence, enforce=False)
    assert decide(run, state)["status"] == 1
    got = decide(run, state, enforce=False)
    assert (got["status"], got["worst"]["check"], got["worst"]["value"], got["worst"]["limit"]) == (
        0,
        "ib_port.rate",
        400,
        800,
    )


def test_check_mode_warns_and_stores_nothing(run: Run, state: Path) -> None:
    got = decide(run, state, check=True, require=["clock_sync"])
    assert (got["status"], got["verdict"]) == (0, "unknown")
    assert any("in check mode" in str(w) for w in got["warnings"])
    assert not (state / "gate").exists()


def test_old_runs_are_pruned_and_other_directories_stay(run: Run, state: Path) -> None:
    for name in ("20261101T000000Z", "20261102T000000Z", "kept-by-hand"):
        (state / "evidence" / name / "hardware").mkdir(parents=True)
    decide(run, state, keep_runs=2)
    assert sorted(p.name for p in (state / "evidence").iterdir()) == ["20261102T000000Z", RUN_ID, "kept-by-hand"]


@pytest.mark.parametrize(
    ("option", "value"),
    [("require", []), ("require", ["../gate/hardware"]), ("keep_runs", 0)],
    ids=["none", "path", "zero"],
)
def test_odd_options_of_the_decision_are_refused(run: Run, state: Path, option: str, value: Any) -> None:
    got = decide(run, state, **{option: value})
    assert got["msg"].startswith(f"{option}: ")


def test_evidence_of_another_run_replaces_the_old_decision(run: Run, state: Path) -> None:
    assert decide(run, state)["verdict"] == "pass"
    evidence = str(state / "evidence" / RUN_ID / "hardware")
    args = {"evidence": evidence, "stage": "hardware", "require": ["nvlink_topology", "ib_port"]}
    got = run(gate, **{**args, "state_dir": str(state), "run": "20991231T235959Z"})
    assert (got["status"], got["verdict"]) == (1, "unknown")
    reason = f"the evidence is of run '{RUN_ID}' and not of 20991231T235959Z"
    assert [(c["check"], c["subject"], c["reason"]) for c in got["checks"]] == [
        ("gate.evidence", "nvlink_topology", reason),
        ("gate.evidence", "ib_port", reason),
    ]
    assert json.loads((state / "gate/hardware.json").read_text())["verdict"] == "unknown"
    assert (state / "evidence" / RUN_ID).is_dir()


def test_an_unusable_result_replaces_the_old_decision(run: Run, state: Path) -> None:
    assert decide(run, state)["verdict"] == "pass"
    file = state / "evidence" / RUN_ID / "hardware/ib_port.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "time": 9e11}))
    worst = decide(run, state)["worst"]
    assert (worst["check"], worst["subject"]) == ("gate.evidence", "ib_port")
    assert json.loads((state / "gate/hardware.json").read_text())["verdict"] == "unknown"


def test_evidence_that_is_no_file_does_not_hang_the_decision(run: Run, state: Path) -> None:
    file = state / "evidence" / RUN_ID / "hardware/ib_port.json"
    file.unlink()
    os.mkfifo(file)
    assert decide(run, state)["worst"]["reason"] == "there is no evidence of this gate in this run"


def test_captured_output_is_no_measurement_of_this_node(run: Run, state: Path) -> None:
    got = decide(run, state, allow_captured=False)
    assert (got["status"], got["verdict"], got["worst"]["subject"]) == (1, "unknown", "nvlink_topology")
    assert got["worst"]["reason"] == (
        f"the evidence cannot be used: it was judged from captured output, 'captured {TOPO}'"
    )


def test_a_place_that_cannot_be_written_fails_with_the_verdict(run: Run, state: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    bad = str(tmp_path / "file")
    got = run(nvlink_topology, captured=str(TOPO), profile="hgx_h100_8", evidence_dir=bad)
    reason = "could not be written: File exists. Correct the path or its file system. The verdict was pass: "
    assert (got["status"], got["verdict"]) == (1, "pass")
    assert got["msg"] == f"{bad}/nvlink_topology.json: {reason}nvlink_topology: pass, 3 checks"
    got = decide(run, state, state_dir=bad)
    assert (got["status"], got["verdict"], got["path"]) == (1, "pass", f"{bad}/gate/hardware.json")
    assert "could not be written: Not a directory" in got["msg"]
    assert "The verdict was pass: hardware gate: pass" in got["msg"]


def test_a_capture_with_nul_in_its_path_is_unknown(run: Run) -> None:
    got = run(nvlink_topology, captured="/tmp/a\0b", profile="hgx_h100_8", enforce=False)
    assert (got["status"], got["verdict"]) == (0, "unknown")
    assert "could not read: embedded null byte" in got["summary"]


WRONG_NUMBERS = [
    *((clock_sync, {name: value}, name) for name in ("wait", "max_offset_ms") for value in ("nan", "inf", -1)),
    *((clock_sync, {"timeout": value}, "timeout") for value in ("nan", "inf", -1, 0)),
    *((clock_sync, {"max_stratum": value}, "max_stratum") for value in (0, 16, -1)),
    *(
        (clock_sync, {name: value}, name)
        for name in ("max_ref_age_s", "max_root_distance_ms")
        for value in ("nan", "inf", 0, -1)
    ),
    (cpu_idle, {"max_exit_latency_us": -1}, "max_exit_latency_us"),
    *((nvlink_topology, {"profile": "hgx_h100_8", "gpus": value}, "gpus") for value in (0, -1)),
    *((gpu_driver, {"version": "1", "fabric_manager": False, "gpus": value}, "gpus") for value in (0, -1)),
    *((gpu_driver, {"version": v, "fabric_manager": False}, "version") for v in ("", " ", "580", "latest", "580.95.")),
    *((ib_port, {"hcas": ["mlx5_0"], "rate": value}, "rate") for value in (0, -1)),
    *((ib_port, {"hcas": [name], "rate": 400}, "hcas") for name in ("", " ", "mlx5_0 ", "mlx5_0\n", "mlx5_0:")),
    *((ib_port, {"hcas": ["mlx5_0", name], "rate": 400}, "hcas") for name in ("mlx5_0", "mlx5_0:1")),
    *((inference_units, {"profile": "hgx_h100_8", "base_port": value}, "base_port") for value in (0, -1, 65536)),
    *((inference_units, {"profile": "hgx_h100_8", "node": name}, "node") for name in ("../x", "a b", "-a")),
]


@pytest.mark.parametrize(("module", "args", "option"), WRONG_NUMBERS)
def test_values_no_gate_can_judge_with_are_refused(run: Run, module: Any, args: dict[str, Any], option: str) -> None:
    got = run(module, captured=str(TOPO), enforce=False, **args)
    assert (got["status"], "verdict" in got) == (1, False)
    assert got["msg"].startswith(f"{option}: ")


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 0.0, -1.0])
def test_no_tool_is_run_without_a_deadline(seconds: float) -> None:
    got = run_tool(["sleep", "1"], seconds)
    assert (got.rc, got.error) == (None, f"not started: {seconds} is no deadline in seconds above 0")


def _units_node(tmp_path: Path, query: str, nodes: dict[str, str]) -> str:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "topo.txt").write_text(TOPO.read_text())
    (bundle / "query-gpu.csv").write_text(query)
    (bundle / "numa.json").write_text(json.dumps({"nodes": nodes, "gpus": {}, "cores": {}}))
    return str(bundle)


QUERY_TEXT = (FIXTURES / "nvidia-smi-580-query-gpu-hgx8.csv").read_text()
SOCKETS = {"0": "0-55,112-167", "1": "56-111,168-223"}


def test_numa_nodes_that_share_cpus_are_unknown(run: Run, tmp_path: Path) -> None:
    captured = _units_node(tmp_path, QUERY_TEXT, {**SOCKETS, "1": "50-111,168-223"})
    got = run(inference_units, captured=captured, profile="hgx_h100_8", enforce=False)
    assert [(c["check"], c["reason"]) for c in got["checks"] if c["verdict"] == "unknown"] == [
        ("inference_units.cpus", "CPU 50-55 is on more than one NUMA node")
    ]


def test_gpus_of_one_bus_id_are_unknown(run: Run, tmp_path: Path) -> None:
    lines = QUERY_TEXT.splitlines()
    first = next(line for line in lines if line.startswith("0,")).rsplit(",", 1)[1].strip()
    query = "\n".join(f"{x.rsplit(',', 1)[0]}, {first.lower()}" if x.startswith("1,") else x for x in lines)
    got = run(inference_units, captured=_units_node(tmp_path, query, SOCKETS), profile="hgx_h100_8", enforce=False)
    assert got["verdict"] == "unknown"
    assert got["checks"][0]["reason"].startswith("a line cannot be read: 1, GPU-")


def test_every_unit_needs_a_port(run: Run, tmp_path: Path) -> None:
    captured = _units_node(tmp_path, QUERY_TEXT, SOCKETS)
    got = run(inference_units, captured=captured, profile="hgx_h100_8", base_port=65535)
    assert got["msg"] == "base_port: 65535 gives the last of 2 units port 65536. Use a lower one."
    assert run(inference_units, captured=captured, profile="hgx_h100_8", base_port=65534)["verdict"] == "pass"


def test_units_that_cannot_be_written_fail_with_the_verdict(run: Run, tmp_path: Path) -> None:
    captured = _units_node(tmp_path, QUERY_TEXT, SOCKETS)
    got = run(inference_units, captured=captured, profile="hgx_h100_8", dest=captured)
    assert (got["status"], got["verdict"], len(got["units"])) == (1, "pass", 2)
    assert got["msg"].startswith(f"{captured}: could not be written: Is a directory. ")
    assert got["msg"].endswith("The verdict was pass: inference_units: pass, 3 checks")


def test_half_a_character_in_stored_evidence_is_no_traceback(run: Run, tmp_path: Path) -> None:
    reading = {"command": "nvidia-smi topo -m", "rc": 0, "stdout": TOPO.read_text() + "\ud800\n"}
    (tmp_path / "stored.json").write_text(json.dumps({"gate": "nvlink_topology", "evidence": [reading]}))
    got = run(nvlink_topology, captured=str(tmp_path / "stored.json"), profile="hgx_h100_8")
    assert (got["status"], got["verdict"]) == (0, "pass")
    assert got["evidence"][0]["stdout"].endswith("?\n")


def test_a_board_without_a_profile_is_judged_by_itself_or_by_options(run: Run) -> None:
    got = run(nvlink_topology, captured=str(TOPO))
    assert (got["verdict"], got["checks"][1]["value"]) == ("pass", "28 pairs NV18")
    assert run(nvlink_topology, captured=str(TOPO), width=18, gpus=8, hcas=HCAS)["verdict"] == "pass"
    assert run(nvlink_topology, captured=str(TOPO), width=12, enforce=False)["verdict"] == "fail"
    assert run(nvlink_topology, captured=str(TOPO), gpus=4, enforce=False)["verdict"] == "fail"


def test_one_matrix_shows_the_units_and_writes_none(run: Run, tmp_path: Path) -> None:
    got = run(inference_units, captured=str(TOPO), profile="hgx_h100_8", node="n")
    assert got["verdict"] == "pass"
    assert [[g["index"] for g in unit["gpus"]] for unit in got["units"]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    dest = tmp_path / "units.json"
    wanted = run(inference_units, captured=str(TOPO), profile="hgx_h100_8", node="n", dest=str(dest), enforce=False)
    assert (wanted["verdict"], dest.exists()) == ("unknown", False)

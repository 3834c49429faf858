# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module iu_membership against a fake Consul and a stand-in systemctl."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _files, _membership
from ansible_collections.ai_infra.gpu_rack.plugins.modules import iu_membership

from tests.unit.consul_fake import FakeConsul
from tests.unit.module_runner import Run, runner

TOKEN = "55555555-5555-4555-8555-555555555555"
ME = {"machine_id": "0123456789abcdef0123456789abcdef", "boot_id": "b-1"}

SYSTEMCTL = """#!/bin/sh
state={state}
echo "$@" >> $state/log
verb=$1
shift
case $verb in
show)
    shift
    on=inactive file=disabled started=0
    if [ -e "$state/$1" ]; then on=active file=enabled started=$(cat "$state/$1"); fi
    printf 'LoadState=loaded\\nActiveState=%s\\nUnitFileState=%s\\n' $on $file
    printf 'NeedDaemonReload=no\\nExecMainStartTimestampMonotonic=%s\\n' $started ;;
enable) shift; for unit; do echo 999999999999999 > "$state/$unit"; done ;;
restart) for unit; do echo 999999999999999 > "$state/$unit"; done ;;
disable) shift; for unit; do rm "$state/$unit"; done ;;
reload) exec {python} -c 'import urllib.request as u; u.urlopen(u.Request("{address}/reload", method="PUT"))' ;;
esac
"""


class Node:
    """A node on disk: state directory, plan, agent configuration, systemd."""

    def __init__(self, root: Path, consul: FakeConsul) -> None:
        self.root, self.consul = root, consul
        self.state = root / "state"
        self.config_dir = root / "consul.d"
        self.systemd = root / "systemd"
        for directory in (self.state / "gate", self.config_dir, self.systemd, root / "bin"):
            directory.mkdir(parents=True)
        for stage in _membership.STAGES:
            self.gate(stage)
        self.units(2)
        program = root / "bin" / "systemctl"
        program.write_text(SYSTEMCTL.format(python=sys.executable, state=self.systemd, address=consul.address))
        program.chmod(0o755)

    def gate(self, stage: str, **changes: Any) -> None:
        checks = [{"check": "ib_port.rate", "subject": f"mlx5_{i}", "value": 400, "unit": "Gb/s"} for i in range(2)]
        decision = {"verdict": "pass", "summary": "", "time": time.time(), **ME, "checks": checks, **changes}
        (self.state / "gate" / f"{stage}.json").write_text(json.dumps(decision))

    def units(self, count: int) -> None:
        units = [
            {
                "id": f"node1-iu{i}",
                "index": i,
                "gpus": [{"index": 4 * i + g} for g in range(4)],
                "numa_node": i,
                "port": 8000 + i,
            }
            for i in range(count)
        ]
        (self.root / "plan.json").write_text(json.dumps({"board": "hgx_h100_8", "units": units}))

    def quarantine(self) -> Any:
        return _membership.read_json(self.state / "quarantine.json")

    def log(self) -> list[str]:
        """Return the systemctl commands that were not questions."""
        lines = (self.systemd / "log").read_text().splitlines() if (self.systemd / "log").exists() else []
        return [line for line in lines if not line.startswith("show")]


class ProbedConsul(FakeConsul):
    """A fake whose units pass as soon as they are registered, as if their probes had found a token."""

    engines_answer = True

    def handle(self, method: str, path: str, query: dict[str, str], body: bytes, token: str) -> tuple[int, Any]:
        if path == "/reload" or path == "reload":
            self.reload()
            return 200, b""
        if path.startswith("health/service/") and self.engines_answer:
            for check in self.checks.values():
                if check["CheckID"].startswith("iu:"):
                    check["Status"] = "passing"
        return super().handle(method, path, query, body, token)


@pytest.fixture
def consul(tmp_path: Path) -> Iterator[ProbedConsul]:
    fake = ProbedConsul(config_dir=tmp_path / "consul.d")
    yield fake
    fake.close()


@pytest.fixture
def node(tmp_path: Path, consul: ProbedConsul, monkeypatch: pytest.MonkeyPatch) -> Node:
    made = Node(tmp_path, consul)
    monkeypatch.setattr(_membership, "STATE_DIR", made.state)
    monkeypatch.setattr(_membership, "identity", lambda: ME)
    monkeypatch.setattr(iu_membership, "PROBE_CONFIG", str(tmp_path / "iu_probe.json"))
    monkeypatch.setattr(iu_membership, "PROBE_UNIT_FILE", str(tmp_path / "probe@.service"))
    # Whoever runs the tests owns the files.
    monkeypatch.setattr(os, "fchown", lambda *_args: None)
    monkeypatch.setattr(_files, "_user", lambda _uid: "root")
    monkeypatch.setattr(_files, "_group", lambda _gid: "root")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return made


@pytest.fixture
def run(node: Node, consul: ProbedConsul, capsys: pytest.CaptureFixture[str]) -> Run:
    base = runner(iu_membership, capsys)
    standard = {
        "address": consul.address,
        "token": TOKEN,
        "plan": str(node.root / "plan.json"),
        "config_dir": str(node.config_dir),
        "group": "root",
        "token_file": str(node.root / "token"),
        "wait": 0.3,
    }
    return lambda **args: base(**{**standard, **args})


def join(run: Run, **args: Any) -> dict[str, Any]:
    return run(state="joined", model="tiny", **args)


def test_join_registers_born_critical_units_and_starts_their_probes(run: Run, node: Node, consul: ProbedConsul) -> None:
    result = join(run)
    assert result["changed"] is True
    assert result["units"] == [
        {"id": "node1-iu0", "state": "passing", "output": "passing", "port": 8000},
        {"id": "node1-iu1", "state": "passing", "output": "passing", "port": 8001},
    ]
    service = json.loads((node.config_dir / "iu-node1-iu1.json").read_text())["service"]
    assert service["token"] == TOKEN
    assert service["checks"] == [
        {
            "id": "iu:node1-iu1",
            "name": "a token was generated",
            "notes": "Set by gpu-rack-probe, which asks the engine for a token.",
            "status": "critical",
            "ttl": "13s",
        }
    ]
    assert service["meta"] == {"board": "hgx_h100_8", "gpus": "4,5,6,7", "model": "tiny", "numa": "1", "ttl": "13s"}
    assert (node.config_dir / "iu-node1-iu1.json").stat().st_mode & 0o777 == 0o640
    assert node.log() == [
        "reload consul.service",
        "enable --now gpu-rack-probe@node1-iu0.service gpu-rack-probe@node1-iu1.service",
    ]
    assert result["record"]["gates"]["hardware"] == {"verdict": "pass", "measured": {"ib_port.rate": "400 Gb/s"}}
    assert TOKEN not in json.dumps(result)


def test_join_again_changes_nothing(run: Run, node: Node) -> None:
    join(run)
    before = node.log()
    assert join(run)["changed"] is False
    assert node.log() == before


def test_join_in_check_mode_shows_the_change_and_makes_none(run: Run, node: Node) -> None:
    result = join(run, check_mode=True)
    assert result["changed"] is True
    assert result["diff"]["after"]["units"]["node1-iu0"]["probe"] is True
    assert (list(node.config_dir.iterdir()), node.log()) == ([], [])


def test_join_in_check_mode_on_a_bare_node_would_refuse(run: Run, node: Node) -> None:
    for stage in _membership.STAGES:
        (node.state / "gate" / f"{stage}.json").unlink()
    result = join(run, check_mode=True)
    assert result.get("failed") is None
    assert result["record"]["verdict"] == "unknown"
    assert "the hardware gate has not run on this installation" in result["refusals"][0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param(
            {"verdict": "fail", "summary": "ib_port: fail"}, "the serving gate says fail: ib_port: fail", id="failed"
        ),
        pytest.param({"verdict": "unknown"}, "the serving gate says unknown", id="unknown"),
        pytest.param({"verdict": None}, "the serving gate says None", id="no verdict"),
        pytest.param({"time": 1000.0}, "s old, limit 3600 s", id="old"),
        pytest.param({"time": 9e9}, "in the future: the clock is wrong", id="from the future"),
        pytest.param({"time": None}, "carries no time", id="no time"),
        pytest.param(
            {"machine_id": "ffff"}, "judged machine_id ffff, this is 0123456789abcdef0123456789abcdef", id="reinstalled"
        ),
        pytest.param({"boot_id": "b-0"}, "rebooted since, not proven again", id="rebooted"),
        pytest.param({"boot_id": None}, "judged boot_id none", id="no boot id"),
    ],
)
def test_join_refuses_without_proof(run: Run, node: Node, changes: dict[str, Any], words: str) -> None:
    node.gate("serving", **changes)
    result = join(run)
    assert result["failed"] is True
    assert words in result["msg"]
    assert result["checks"][0]["check"] == "iu_membership.evidence"
    assert (list(node.config_dir.iterdir()), node.log()) == ([], [])


def test_join_refuses_a_gate_that_cannot_be_read(run: Run, node: Node) -> None:
    (node.state / "gate" / "hardware.json").write_text("{")
    assert "hardware.json: cannot be read" in join(run)["msg"]


def test_a_hold_is_respected_even_in_check_mode_and_never_lifted(run: Run, node: Node) -> None:
    (node.state / "hold.json").write_text('{"by": "mia", "reason": "cable work"}')
    for check in (True, False):
        assert "held by mia: cable work" in join(run, check_mode=check)["msg"]
    run(state="quarantined", stage="hardware", reason="x")
    assert json.loads((node.state / "hold.json").read_text()) == {"by": "mia", "reason": "cable work"}


def test_join_fails_when_an_engine_gives_no_token(run: Run, consul: ProbedConsul) -> None:
    consul.engines_answer = False
    result = join(run)
    assert "not passing in Consul after 0.3 s: node1-iu0: iu:node1-iu0 critical" in result["msg"]
    assert result["checks"][0]["check"] == "iu_membership.passing"
    assert (result["checks"][0]["value"], result["checks"][0]["limit"]) == ("critical", "passing")


def test_join_fails_while_the_node_itself_is_dead_for_consul(run: Run, consul: ProbedConsul) -> None:
    consul.serf = "critical"
    assert "serfHealth critical" in join(run)["msg"]


def test_join_without_an_agent_says_so(run: Run, consul: ProbedConsul) -> None:
    consul.close()
    assert "Consul agent: GET" in join(run)["msg"]


def test_a_unit_that_left_the_plan_is_removed(run: Run, node: Node, consul: ProbedConsul) -> None:
    join(run)
    node.units(1)
    assert join(run)["changed"] is True
    assert list(consul.services) == ["node1-iu0"]
    assert node.log()[-1] == "disable --now gpu-rack-probe@node1-iu1.service"


def test_one_unit_leaves_the_other_alone(run: Run, node: Node, consul: ProbedConsul) -> None:
    join(run)
    assert join(run, units=["node1-iu0"])["changed"] is False
    run(state="drained", units=["node1-iu0"], reason="optics")
    assert {s["id"]: s["state"] for s in join(run, units=["node1-iu1"])["units"]} == {"node1-iu1": "passing"}
    assert consul.checks["_service_maintenance:node1-iu0"]["Notes"] == "drained: optics"


def test_a_unit_outside_the_plan_is_refused_with_what_there_is(run: Run) -> None:
    assert "units: node1-iu7 not in" in join(run, units=["node1-iu7"])["msg"]
    assert "It has node1-iu0, node1-iu1." in join(run, units=["node1-iu7"])["msg"]


def test_a_probe_older_than_its_files_is_restarted(run: Run, node: Node) -> None:
    join(run)
    (node.systemd / "gpu-rack-probe@node1-iu0.service").write_text("1")
    assert join(run)["changed"] is True
    assert node.log()[-1] == "restart gpu-rack-probe@node1-iu0.service"


def test_files_without_the_reload_that_a_killed_run_owed(run: Run, node: Node, consul: ProbedConsul) -> None:
    join(run)
    consul.services.clear()
    join(run)
    assert node.log()[-1] == "reload consul.service"
    assert sorted(consul.services) == ["node1-iu0", "node1-iu1"]


def test_quarantine_turns_units_critical_at_once_and_again_changes_nothing(
    run: Run, node: Node, consul: ProbedConsul
) -> None:
    join(run)
    consul.engines_answer = False
    wanted = {
        "state": "quarantined",
        "stage": "hardware",
        "task": "Judge",
        "reason": "NV17",
        "check": {"check": "nvlink.links"},
    }
    assert run(check_mode=True, **wanted)["changed"] is True
    assert node.quarantine() is None
    assert run(**wanted)["changed"] is True
    record = node.quarantine()
    assert {k: record[k] for k in ("stage", "task", "reason")} == {
        "stage": "hardware",
        "task": "Judge",
        "reason": "NV17",
    }
    assert record["check"] == {"check": "nvlink.links"}
    assert consul.checks["iu:node1-iu0"]["Status"] == "critical"
    assert consul.checks["iu:node1-iu0"]["Output"] == "quarantined in hardware: NV17"
    assert consul.checks["_service_maintenance:node1-iu1"]["Notes"] == "quarantined in hardware: NV17"
    assert run(**wanted)["changed"] is False
    assert node.quarantine()["time"] == record["time"]


def test_quarantine_works_without_consul_on_a_node_that_never_joined(
    run: Run, node: Node, consul: ProbedConsul
) -> None:
    consul.close()
    result = run(state="quarantined", stage="firmware", reason="BIOS write ignored")
    assert result["changed"] is True
    assert node.quarantine()["reason"] == "BIOS write ignored"
    assert "no answer" in result["agent"]


def test_join_clears_a_quarantine_only_when_the_gates_passed_after_it(
    run: Run, node: Node, consul: ProbedConsul
) -> None:
    join(run)
    run(state="quarantined", stage="hardware", reason="NV17")
    assert "the hardware gate has not passed since the quarantine in stage hardware" in join(run)["msg"]
    for stage in _membership.STAGES:
        node.gate(stage)
    assert join(run)["changed"] is True
    assert node.quarantine() is None
    assert not [c for c in consul.checks if c.startswith("_service_maintenance")]


def test_drain_is_maintenance_with_a_reason(run: Run, consul: ProbedConsul) -> None:
    join(run)
    assert run(state="drained", reason="optics")["changed"] is True
    assert consul.checks["_service_maintenance:node1-iu0"]["Notes"] == "drained: optics"
    assert run(state="drained", reason="optics")["changed"] is False
    assert run(state="drained", reason="memory")["changed"] is True
    assert consul.checks["_service_maintenance:node1-iu0"]["Notes"] == "drained: memory"


def test_drain_of_a_unit_that_is_not_there_is_refused(run: Run) -> None:
    join(run)
    assert (
        "units: node9-iu0 not registered here. Registered: node1-iu0, node1-iu1."
        in (run(state="drained", units=["node9-iu0"], reason="x")["msg"])
    )


def test_absent_unregisters_and_stops(run: Run, node: Node, consul: ProbedConsul) -> None:
    join(run)
    assert run(state="absent", check_mode=True)["changed"] is True
    assert len(consul.services) == 2
    assert run(state="absent")["changed"] is True
    assert (consul.services, list(node.config_dir.iterdir())) == ({}, [])
    assert run(state="absent")["changed"] is False


@pytest.mark.parametrize(
    ("timing", "words"),
    [
        pytest.param({"ttl": 20}, "ttl: 20 s. Use more than 0 and at most 15", id="too long to be out in time"),
        pytest.param(
            {"probe_timeout": 8}, "probe_interval 5 s + probe_timeout 8 s: not below the ttl of 13 s", id="slow"
        ),
        pytest.param({"probe_interval": 0}, "probe_interval 0 s", id="no pause"),
    ],
)
def test_timings_that_cannot_work_are_refused(run: Run, timing: dict[str, Any], words: str) -> None:
    assert words in join(run, **timing)["msg"]


def test_a_plan_with_a_missing_port_is_refused(run: Run, node: Node) -> None:
    plan = json.loads((node.root / "plan.json").read_text())
    del plan["units"][0]["port"]
    (node.root / "plan.json").write_text(json.dumps(plan))
    assert "node1-iu0: port None" in join(run)["msg"]

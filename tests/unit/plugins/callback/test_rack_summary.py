# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The callback with results as ansible hands them on, and once inside ansible-playbook."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible import context
from ansible.module_utils.common.collections import ImmutableDict
from ansible_collections.ai_infra.gpu_rack.plugins.callback.rack_summary import CallbackModule

ROOT = Path(__file__).resolve().parents[4]
PREFIX = "ai_infra.gpu_rack."


class Run:
    """A run of a playbook, told to the callback event by event."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = file
        self.shown: list[str] = []
        self.callback = CallbackModule()
        monkeypatch.setattr(self.callback, "set_options", lambda: None)
        monkeypatch.setattr(self.callback, "get_option", lambda _name: str(file))
        monkeypatch.setattr(self.callback._display, "display", self.shown.append)
        monkeypatch.setattr(context, "CLIARGS", ImmutableDict(extra_vars=(), check=False))
        self.callback.v2_playbook_on_start(
            SimpleNamespace(
                _file_name=str(Path.cwd() / "site.yml"),
                get_plays=lambda: [
                    SimpleNamespace(get_name=lambda name=name: name) for name in ("Hardware gate", "Join")
                ],
            )
        )
        self.play("Hardware gate")

    def play(self, name: str) -> None:
        manager = SimpleNamespace(_inventory=SimpleNamespace(_sources=[str(Path.cwd() / "inventories/sim")]))
        self.callback.v2_playbook_on_play_start(
            SimpleNamespace(get_name=lambda: name, get_variable_manager=lambda: manager)
        )

    def result(self, host: str, action: str, data: dict[str, Any], task: str = "A task", ignored: bool = False) -> Any:
        return SimpleNamespace(
            host=SimpleNamespace(get_name=lambda: host),
            task=SimpleNamespace(action=action, get_name=lambda include_role_fqcn: task, ignore_unreachable=ignored),
            result=data,
        )

    def end(self, failures: dict[str, int] | None = None, dark: dict[str, int] | None = None) -> dict[str, Any]:
        hosts = set(self.callback._nodes)
        self.callback.v2_playbook_on_stats(
            SimpleNamespace(
                processed=dict.fromkeys(hosts, 1), failures=failures or {}, dark=dark or {}, changed={"node1": 2}
            )
        )
        found: dict[str, Any] = json.loads(self.file.read_text())
        return found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return Run(tmp_path / "summary.json", monkeypatch)


def test_gates_and_units_of_a_good_node(run: Run) -> None:
    checks = [
        {"check": "ib_port.rate", "subject": "mlx5_0", "verdict": "pass", "value": 400, "limit": 400, "unit": "Gb/s"}
    ]
    gate = {"stage": "hardware", "verdict": "pass", "checks": checks}
    run.callback.v2_runner_on_ok(run.result("node1", f"{PREFIX}gate", gate))
    units = {"units": [{"id": "node1-iu0", "state": "passing"}]}
    run.callback.v2_runner_on_ok(run.result("node1", f"{PREFIX}iu_membership", units))
    summary = run.end()
    assert summary["nodes"]["node1"] == {
        "changed": 2,
        "gates": {"hardware": {"verdict": "pass", "headline": ["ib_port.rate 400 Gb/s (limit 400)"]}},
        "units": {"node1-iu0": "passing"},
        "out": None,
    }
    assert summary["check"] is False
    assert any("SERVING" in line for line in run.shown)
    assert stat.S_IMODE(run.file.stat().st_mode) == 0o600


def test_the_quarantine_replaces_the_failure_and_the_command_gets_the_inventory(run: Run) -> None:
    run.callback.v2_runner_on_failed(run.result("node1", "ansible.builtin.apt", {"msg": "no network"}, "Install"))
    record = {
        "stage": "base",
        "task": "Install",
        "check": None,
        "reason": "Install: no network",
        "next_command": "ansible-playbook site.yml --limit node1",
    }
    run.callback.v2_runner_on_failed(run.result("node1", f"{PREFIX}quarantine", {"quarantine": record}))
    out = run.end(failures={"node1": 1})["nodes"]["node1"]["out"]
    assert (out["kind"], out["check"], out["reason"]) == ("quarantined", "Install", "no network")
    assert out["next_command"] == "ansible-playbook -i inventories/sim site.yml --limit node1"


def test_extra_variables_are_mentioned_and_not_repeated(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(extra_vars=("password=hunter2",), check=True))
    run.callback.v2_runner_on_failed(run.result("node1", "ansible.builtin.fail", {"msg": "no"}))
    summary = run.end(failures={"node1": 1})
    command = summary["nodes"]["node1"]["out"]["next_command"]
    assert command == "ansible-playbook -i inventories/sim site.yml --limit node1  # and the -e of this run"
    assert summary["check"] is True
    assert "hunter2" not in run.file.read_text()


def test_a_rescued_failure_is_none(run: Run) -> None:
    run.callback.v2_runner_on_failed(run.result("node1", "ansible.builtin.systemd", {"msg": "no"}))
    assert run.end()["nodes"]["node1"]["out"] is None


def test_an_unreachable_host(run: Run) -> None:
    run.callback.v2_runner_on_unreachable(run.result("node1", "ansible.builtin.ping", {"msg": "timed out"}))
    out = run.end(dark={"node1": 1})["nodes"]["node1"]["out"]
    assert (out["kind"], out["stage"], out["check"], out["reason"]) == (
        "unreachable",
        "Hardware gate",
        "ssh",
        "timed out",
    )


def test_steps_that_were_not_reached(run: Run) -> None:
    run.callback.v2_runner_on_ok(run.result("node1", f"{PREFIX}validate_inventory", {"problems": []}))
    run.callback.v2_runner_on_unreachable(run.result("head1", "ansible.builtin.ping", {"msg": "timed out"}))
    assert run.end(dark={"head1": 1})["not_reached"] == ["Join"]
    assert any(line.split()[:3] == ["node1", "NOT", "DONE"] for line in run.shown)
    assert "  stopped, not reached: Join" in run.shown


def test_all_steps_were_reached(run: Run) -> None:
    run.callback.v2_runner_on_ok(run.result("head1", f"{PREFIX}chrony_config", {}))
    run.play("Join")
    assert run.end()["not_reached"] == []
    assert any(line.split()[:2] == ["head1", "OK"] for line in run.shown)


def test_a_refused_inventory(run: Run) -> None:
    run.callback.v2_runner_on_failed(run.result("node1", f"{PREFIX}validate_inventory", {"problems": ["a.yml:1: x"]}))
    assert run.end(failures={"node1": 1})["refused"] == ["a.yml:1: x"]
    assert run.shown[1].startswith("INVENTORY REFUSED")


def test_reading_the_status_is_no_run(run: Run) -> None:
    run.callback.v2_runner_on_ok(run.result("node1", f"{PREFIX}rack_status_info", {"rack": {}}))
    run.callback.v2_runner_on_failed(run.result("node1", f"{PREFIX}rack_status_info", {"msg": "no answer"}))
    run.end()
    assert run.shown == []


def test_inside_ansible(tmp_path: Path) -> None:
    playbook = tmp_path / "play.yml"
    playbook.write_text(
        """
- name: Early step
  hosts: all
  gather_facts: false
  tasks:
    - name: Break
      ansible.builtin.fail:
        msg: |-
          the first line
          the second line
      when: inventory_hostname == 'bad'
    - name: Keep a secret
      ansible.builtin.fail:
        msg: hunter2
      no_log: true
"""
    )
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("all: {hosts: {bad: {ansible_connection: local}, shy: {ansible_connection: local}}}\n")
    done = subprocess.run(
        [str(Path(sys.executable).parent / "ansible-playbook"), "-i", str(hosts), str(playbook)],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    summary = done.stdout[done.stdout.index("RACK SUMMARY") :].splitlines()
    assert [line.strip() for line in summary[2:8]] == [
        "step   Early step",
        "check  Break",
        "value  none, the task itself failed",
        "limit  none",
        "reason the first line",
        "the second line",
    ]
    # Ansible itself prints the message of a failed task with no_log, as an exception: the summary does not.
    assert "hunter2" not in "\n".join(summary)
    assert any(line.endswith("withheld because it may hold a secret") for line in summary)
    assert summary[-1] == "  2 of 2 hosts did not make it: bad, shy"


def test_the_summary_lies_with_the_decisions_of_its_run(run: Run, tmp_path: Path) -> None:
    place = tmp_path / "runs" / "20261130T180000Z"
    (place / "node1").mkdir(parents=True)
    gate = {"stage": "hardware", "verdict": "pass", "checks": [], "run": "20261130T180000Z"}
    run.callback.v2_runner_on_ok(run.result("node1", f"{PREFIX}gate", gate))
    for dest in ("/etc/passwd", str(place / "node1" / "hardware.json")):
        run.callback.v2_runner_on_ok(run.result("node1", "ansible.builtin.fetch", {"dest": dest}))
    run.end()
    stored = place / "summary.json"
    assert json.loads(stored.read_text()) == json.loads(run.file.read_text())
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600


def test_check_mode_stores_no_summary_with_a_run(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "20261130T180000Z"
    (place / "node1").mkdir(parents=True)
    monkeypatch.setattr(context, "CLIARGS", ImmutableDict(extra_vars=(), check=True))
    gate = {"stage": "hardware", "verdict": "pass", "checks": [], "run": "20261130T180000Z"}
    run.callback.v2_runner_on_ok(run.result("node1", f"{PREFIX}gate", gate))
    run.callback.v2_runner_on_ok(run.result("node1", "ansible.builtin.fetch", {"dest": str(place / "node1/x.json")}))
    run.end()
    assert not (place / "summary.json").exists()


def test_a_host_that_a_playbook_may_miss_is_not_told(run: Run) -> None:
    run.callback.v2_runner_on_unreachable(run.result("node1", "setup", {"msg": "no ssh"}, ignored=True))
    assert run.callback._nodes == {}

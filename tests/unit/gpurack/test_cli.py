# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command line with a runner that plays back what ansible would have done."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import gpurack
from gpurack import cli, runner
from gpurack.errors import GpurackError, Interrupted
from gpurack.runner import Outcome

ROOT = Path(__file__).resolve().parents[3]
GOOD = {"changed": 0, "gates": {}, "units": {"node1-iu0": "passing"}, "out": None}
WHY = {"kind": "quarantined", "stage": "base", "check": "Install", "reason": "no network", "next_command": "again"}
RACK = {
    "address": "http://10.0.0.10:8500",
    "leader": "10.0.0.10:8300",
    "nodes": [
        {
            "name": "node1",
            "state": "serving",
            "serf": "passing",
            "units": [{"id": "node1-iu0", "address": "10.0.0.11", "port": 8000, "state": "passing", "note": "1 token"}],
            "gates": {"hardware": "pass: ib_port 400 Gb/s", "serving": "pass"},
            "reason": "",
        }
    ],
    "units_passing": 1,
    "units_total": 1,
}


class Player:
    """In place of run_playbook: remembers how it was called, and plays events back."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Path, list[str]]] = []
        self.outcome = Outcome(0, {"playbook": "site.yml", "seconds": 1.0, "nodes": {"node1": GOOD}}, {"node1"})
        self.events: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def __call__(self, name: str, inventory: Path, options: Sequence[str], on_event: Callable[[Any], None]) -> Outcome:
        self.calls.append((name, inventory, list(options)))
        for event in self.events:
            on_event(event)
        if self.error is not None:
            raise self.error
        return self.outcome


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Player:
    found = Player()
    monkeypatch.setattr(runner, "run_playbook", found)
    monkeypatch.delenv("GPURACK_INVENTORY", raising=False)
    monkeypatch.chdir(ROOT)
    return found


def status_event(rack: dict[str, Any]) -> dict[str, Any]:
    return {"event": "runner_on_ok", "event_data": {"host": "node1", "res": {"rack": rack}}, "stdout": ""}


def test_up_passes_its_options_on(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--check", "--diff", "-l", "node3", "-e", "a=1", "-e", '{"b": 2}']) == 0
    options = ["--check", "--diff", "--limit", "node3", "--extra-vars", "a=1", "--extra-vars", '{"b": 2}']
    assert player.calls == [("site", ROOT / "inventories/sim", options)]
    assert "RACK SUMMARY  site.yml  1 s\n  node1  SERVING" in capsys.readouterr().out


def test_gate_runs_its_playbook(player: Player) -> None:
    assert cli.main(["gate", "-i", "inventories/example"]) == 0
    assert player.calls == [("gate", ROOT / "inventories/example", [])]


def test_the_inventory_of_the_environment(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPURACK_INVENTORY", "inventories/example")
    cli.main(["up"])
    assert player.calls[0][1] == ROOT / "inventories/example"


def test_a_node_that_is_out_is_exit_code_1(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    player.outcome = Outcome(2, {"nodes": {"node1": {**GOOD, "out": WHY}}}, {"node1"})
    assert cli.main(["up"]) == 1
    assert "reason no network" in capsys.readouterr().out


def test_a_refused_inventory_is_exit_code_2(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    player.outcome = Outcome(2, {"refused": ["a.yml:3: node1: x: 'y'. Allowed: z."]}, {"node1"})
    assert cli.main(["up"]) == 2
    assert "INVENTORY REFUSED" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["up", "gate"])
def test_json_is_one_document(player: Player, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    player.events = [{"event": "playbook_on_play_start", "event_data": {"play": "Base"}, "stdout": "PLAY [Base]"}]
    assert cli.main([verb, "--json", "-v"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert (out["command"], out["exit"], out["nodes"]) == (verb, 0, {"node1": GOOD})


def test_errors_in_json(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    player.error = GpurackError("playbook site: it\n  broke. Mend it.")
    assert cli.main(["up", "--json"]) == 2
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"command": "up", "exit": 2, "error": "playbook site: it broke. Mend it."}
    assert shown.err.endswith("gpurack: playbook site: it broke. Mend it.\n")


def test_a_wrong_path_names_the_inventories(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "-i", "inventories/nowhere"]) == 2
    assert capsys.readouterr().err == (
        "gpurack: inventory inventories/nowhere: no such file or directory. "
        "Name one with -i; this checkout has inventories/example, inventories/sim.\n"
    )
    assert player.calls == []


def test_an_inventory_without_hosts_is_no_success(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    player.outcome = Outcome(0, {}, set())
    assert cli.main(["up"]) == 2
    assert "it has no host in the rack's groups, so nothing was done" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not YAML or JSON"),
        ("[1]", "a list"),
        ("x", "neither NAME=VALUE"),
        ("@/nowhere", "no such file"),
    ],
)
def test_wrong_extra_variables(player: Player, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    assert cli.main(["status", "-e", text]) == 2
    assert said in capsys.readouterr().err
    assert player.calls == []


def test_stopped(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    player.error = Interrupted("SIGTERM")
    assert cli.main(["up"]) == 2
    assert "gpurack: stopped by SIGTERM. Run the same command again" in capsys.readouterr().err


def test_a_missing_library_is_one_line(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    player.error = ModuleNotFoundError("No module named 'rich'", name="rich")
    assert cli.main(["up"]) == 2
    assert capsys.readouterr().err.splitlines()[-1] == (
        f"gpurack: Python package rich: {sys.executable} does not have it. Run `make setup` in the checkout."
    )


def test_status(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    player.events = [status_event(RACK)]
    assert cli.main(["status", "-l", "node1"]) == 0
    assert player.calls == [("status", ROOT / "inventories/sim", ["--limit", "node1"])]
    out = capsys.readouterr().out
    assert "The rack as Consul at http://10.0.0.10:8500 sees it" in out
    assert "node1-iu0 10.0.0.11:8000 passing (1 token)" in out
    assert "1 of 1 IUs take traffic" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("state", ["quarantined", "drained", "degraded", "failed", "absent"])
def test_status_of_a_node_that_does_not_serve(player: Player, capsys: pytest.CaptureFixture[str], state: str) -> None:
    node = {**RACK["nodes"][0], "state": state, "reason": "[why] not", "units": []}  # type: ignore[index]
    player.events = [status_event({**RACK, "nodes": [node]})]
    assert cli.main(["status", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["exit"], document["rack"]["nodes"][0]["state"]) == (1, state)
    assert cli.main(["status"]) == 1
    assert "[why] not" in capsys.readouterr().out


def test_status_without_an_answer_is_one_line(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    message = "Consul at http://10.0.0.10:8500: no answer (timed out). Check the address."
    player.events = [{"event": "runner_on_failed", "event_data": {"host": "node1", "res": {"msg": message}}}]
    player.outcome = Outcome(2, {}, {"node1"})
    assert cli.main(["status"]) == 2
    assert capsys.readouterr().err == f"gpurack: {message}\n"


def test_status_of_no_node(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    player.outcome = Outcome(0, {}, set())
    assert cli.main(["status"]) == 2
    assert "it has no host in the group gpu_nodes" in capsys.readouterr().err


def test_sim_hands_everything_on(player: Player, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[Any] = []

    def execv(path: str, arguments: list[str]) -> None:
        ran.extend([path, arguments])
        raise SystemExit(3)

    monkeypatch.setattr("os.execv", execv)
    with pytest.raises(SystemExit, match="3"):
        cli.main(["sim", "fault", "node2", "link 0-2: NV17", "--json"])
    rack = [sys.executable, str(ROOT / "simulator/rack"), "fault", "node2", "link 0-2: NV17", "--json"]
    assert ran == [sys.executable, rack]


@pytest.mark.parametrize("arguments", [["--help"], ["up", "--help"], ["gate", "-h"], ["status", "-h"]])
def test_help_names_the_exit_status(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(arguments)
    assert "exit status:" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["fly"], ["up", "--nope"], ["status", "--check"]])
def test_a_wrong_command_line_is_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert "usage: gpurack" in capsys.readouterr().err


def test_one_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        cli.main(["--version"])
    assert capsys.readouterr().out == f"gpurack {gpurack.__version__}\n"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == gpurack.__version__ == yaml.safe_load((ROOT / "galaxy.yml").read_text())["version"]

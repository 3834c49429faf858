# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`gpurack report`: what it fetches, prints and returns."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpurack import cli, runner
from gpurack.runner import Outcome
from tests.unit.gpurack.report_data import RUN, Made

ROOT = Path(__file__).resolve().parents[3]


class Player:
    """In place of run_playbook."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any], list[str]]] = []
        self.events: list[dict[str, Any]] = []
        self.hosts = {"node1"}

    def __call__(self, name: str, inventory: Path, options: Sequence[str], on_event: Callable[[Any], None]) -> Outcome:
        self.calls.append((name, json.loads(options[-1]), list(options[:-2])))
        for event in self.events:
            on_event(event)
        return Outcome(0, {}, self.hosts)


@pytest.fixture
def player(monkeypatch: pytest.MonkeyPatch) -> Player:
    found = Player()
    monkeypatch.setattr(runner, "run_playbook", found)
    monkeypatch.delenv("GPURACK_INVENTORY", raising=False)
    monkeypatch.chdir(ROOT)
    return found


def run(*arguments: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = cli.main(["report", *arguments])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_it_fetches_the_last_run_and_names_the_files(
    player: Player, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Made(4).write(tmp_path)
    code, out, _err = run("--runs", str(tmp_path), "-l", "node1", capsys=capsys)
    assert code == 1
    given = {"gpu_rack_report_run": RUN, "gpu_rack_report_runs_dir": str(tmp_path), "gpu_rack_report_render": False}
    assert player.calls == [("report", given, ["--limit", "node1"])]
    assert out.splitlines() == [
        f"Run {RUN}: 2 warn, 2 fail",
        "  node2  fail: nvlink_topology.matrix GPU0-GPU2: NV17, limit NV18",
        "  node3  fail: ib_latency.blame node3: port mlx5_3 of node3 or its cable, limit nothing (+3 more)",
        *(str(tmp_path / RUN / name) for name in ("report.html", "report.json", "junit.xml")),
    ]


def test_a_good_rack_as_json_without_fetching(
    player: Player, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Made(2, healthy=True).write(tmp_path / "runs")
    out_dir = tmp_path / "out"
    code, out, _err = run(
        "--runs", str(tmp_path / "runs"), "--run", RUN, "--output", str(out_dir), "--no-fetch", "--json", capsys=capsys
    )
    found = json.loads(out)
    assert (code, found["exit"], found["verdict"], found["out"]) == (0, 0, "pass", [])
    assert player.calls == []
    assert sorted(path.name for path in out_dir.iterdir()) == ["junit.xml", "report.html", "report.json"]


def test_an_empty_run_is_not_good(player: Player, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / RUN).mkdir()
    code, out, _err = run("--runs", str(tmp_path), "--no-fetch", capsys=capsys)
    assert (code, out.splitlines()[0]) == (1, f"Run {RUN}: no node")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--run", "latest"], "run latest: not the name of a run. Runs are named like 20261130T180000Z."),
        (["--run", "latest", "--no-fetch"], "run latest: not the name of a run. Runs are named like 20261130T180000Z."),
        (["--run", RUN, "--no-fetch"], f"run {RUN}: no directory "),
        (["--no-fetch"], "runs in "),
    ],
)
def test_a_run_that_is_not_there(
    player: Player, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], error: str
) -> None:
    code, out, err = run("--runs", str(tmp_path), *arguments, capsys=capsys)
    assert (code, out) == (2, "")
    assert err.startswith(f"gpurack: {error}")
    assert player.calls == []


def test_a_directory_that_is_not_there(player: Player, capsys: pytest.CaptureFixture[str]) -> None:
    code, _out, err = run("--runs", "/does/not/exist", capsys=capsys)
    assert code == 2
    assert err == ("gpurack: runs /does/not/exist: no such directory. Name the one that holds the runs with --runs.\n")


def test_what_the_playbook_refuses_is_told(player: Player, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    player.events = [{"event": "runner_on_failed", "event_data": {"host": "node1", "res": {"msg": "run x: nobody."}}}]
    code, _out, err = run("--runs", str(tmp_path), "--run", RUN, capsys=capsys)
    assert (code, err) == (2, "gpurack: run x: nobody.\n")


def test_no_host_is_an_error(player: Player, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Made(1).write(tmp_path)
    player.hosts = set()
    code, _out, err = run("--runs", str(tmp_path), "-l", "nobody", capsys=capsys)
    assert code == 2
    assert "no node matches --limit nobody" in err

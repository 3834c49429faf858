# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The board with events in the form in which ansible-runner 2.4 delivers them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from gpurack.board import Board


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def play(name: str) -> dict[str, Any]:
    return {"event": "playbook_on_play_start", "event_data": {"play": name, "name": name}, "stdout": f"PLAY [{name}]"}


def task(kind: str, host: str, name: str, action: str = "ansible.builtin.apt", **res: Any) -> dict[str, Any]:
    data: dict[str, Any] = {"host": host, "task": name, "task_action": action}
    if kind != "start":
        data["res"] = res
    return {"event": f"runner_on_{kind}", "event_data": data, "stdout": ""}


EVENTS = [
    {"event": "playbook_on_start", "event_data": {"playbook": "playbooks/site.yml"}},
    play("Driver, CUDA, fabric and time"),
    task("start", "node1", "Install"),
    task("start", "node2", "Install"),
    task("ok", "node1", "Install"),
    task("failed", "node2", "Install", msg="apt failed:\nno network"),
    task("start", "node2", "Take the node out"),
    task(
        "failed",
        "node2",
        "Take the node out",
        "ai_infra.gpu_rack.quarantine",
        msg="long",
        quarantine={"reason": "Install: apt failed: no network"},
    ),
    play("Hardware gate"),
    task("start", "node1", "Decide"),
    task("ok", "node1", "Decide", "ai_infra.gpu_rack.gate", stage="hardware", verdict="pass"),
    play("Join"),
    task("start", "node1", "Join"),
    task("ok", "node1", "Join", "ai_infra.gpu_rack.iu_membership", units=[{"state": "passing"}, {"state": "critical"}]),
]


def board(live: bool = False, terminal: bool = False, **options: Any) -> tuple[Board, io.StringIO, Clock]:
    text, clock = io.StringIO(), Clock()
    console = Console(file=text, force_terminal=terminal, width=140)
    return Board(console, live, clock=clock, **options), text, clock


def test_plain_lines_without_a_terminal() -> None:
    shown, text, clock = board()
    with shown:
        for event in EVENTS:
            clock.now += 1
            shown.event(event)
    assert text.getvalue().splitlines() == [
        "[   2.0 s] Driver, CUDA, fabric and time",
        "[   6.0 s]   node2: failed at Install: apt failed:",
        "[   8.0 s]   node2: quarantined at Install: Install: apt failed: no network",
        "[   9.0 s]   1 of 2 hosts went through in 6 s, out: node2",
        "[   9.0 s] Hardware gate",
        "[  11.0 s]   node1: hardware gate: pass",
        "[  12.0 s]   1 of 1 hosts went through in 2 s",
        "[  12.0 s] Join",
        "[  14.0 s]   node1: 1 of 2 units take traffic",
        "[  14.0 s]   1 of 1 hosts went through in 1 s".replace("1 s", "1 s"),
    ]
    assert "\x1b" not in text.getvalue()


def test_the_rows_after_a_run() -> None:
    shown, _text, clock = board()
    for event in EVENTS:
        clock.now += 1
        shown.event(event)
    one, two = shown.rows["node1"], shown.rows["node2"]
    assert (one.step, one.task, one.state, one.verdict) == ("Join", "Join", "ok", "1 of 2 units take traffic")
    # What failed stays in its step, with the task that failed and the time it took.
    assert (two.step, two.task, two.state) == ("Driver, CUDA, fabric and time", "Install", "quarantined")
    assert two.until is not None
    assert two.until - two.since == 4.0


def test_the_live_board_ends_with_a_row_for_each_node() -> None:
    shown, text, clock = board(live=True, terminal=True)
    with shown:
        for event in EVENTS:
            clock.now += 1
            shown.event(event)
    last = text.getvalue().rpartition("verdict")[2]
    assert "node1" in last
    assert "1 of 2 units take traffic" in last
    assert "quarantined: Install: apt failed: no network" in last
    # No plain lines in between, they would tear the table.
    assert "went through" not in text.getvalue()


def test_markup_in_what_a_node_says_is_text() -> None:
    shown, text, _clock = board(live=True, terminal=True)
    with shown:
        shown.event(play("Base"))
        shown.event(task("failed", "node1", "Look", msg="[/red] [bold]x"))
    assert "[/red] [bold]x" in text.getvalue()


def test_an_ignored_failure_is_none() -> None:
    shown, _text, _clock = board()
    event = task("failed", "node1", "Look", msg="no")
    event["event_data"]["ignore_errors"] = True
    shown.event(play("Base"))
    shown.event(task("start", "node1", "Look"))
    shown.event(event)
    assert shown.rows["node1"].state == "running"


def test_an_unreachable_host() -> None:
    shown, text, _clock = board()
    shown.event(play("Base"))
    shown.event(task("unreachable", "node1", "Look", msg="Failed to connect to the host via ssh: timed out"))
    assert "node1: unreachable at Look: Failed to connect to the host via ssh: timed out" in text.getvalue()


def test_a_hidden_result_shows_nothing() -> None:
    shown, text, _clock = board()
    shown.event(play("Base"))
    shown.event(task("failed", "node1", "Write", censored="hidden due to no_log"))
    assert text.getvalue().splitlines()[-1].endswith("node1: failed at Write: no reason was given")


@pytest.mark.parametrize(("options", "texts"), [({}, 0), ({"diff": True}, 1), ({"verbose": True}, 2)])
def test_what_ansible_prints(options: dict[str, bool], texts: int) -> None:
    shown, text, _clock = board(**options)
    diff = {"event": "runner_on_file_diff", "event_data": {"host": "node1"}, "stdout": "--- before\r\n+++ after"}
    shown.event(diff)
    shown.event({"event": "verbose", "event_data": {}, "stdout": "ansible says"})
    assert ("--- before\n+++ after" in text.getvalue()) + ("ansible says" in text.getvalue()) == texts

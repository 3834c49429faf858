# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Two ends of a connection: order of messages, long ones, and every way to lose a partner."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _sweep_hub
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_hub import Hub, Lost, Message

from tests.unit.ports import free_port

Ends = tuple[Hub, Hub]


def hello(node: str, sweep: str = "s") -> Message:
    return {"type": "hello", "node": node, "sweep": sweep, "nodes": ["a", "b"], "rails": []}


def soon() -> float:
    return time.monotonic() + 10.0


@pytest.fixture
def ends(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ends]:
    """Two hubs that have met; they tick often, so that ticks fall between the parts of long messages."""
    monkeypatch.setattr(_sweep_hub, "TICK_S", 0.01)
    port = free_port()
    one, other = Hub("127.0.0.2", port, hello("a"), 2.0), Hub("127.0.0.3", port, hello("b"), 2.0)
    assert other.connect("a", "127.0.0.2", port) is None
    until = soon()
    while not (one.partners and other.partners) and time.monotonic() < until:
        time.sleep(0.01)
    yield one, other
    one.close()
    other.close()


def test_message_of_another_kind_is_kept(ends: Ends) -> None:
    one, other = ends
    other.send("a", {"type": "plan", "value": 1})
    other.send("a", {"type": "begin", "round": 0})
    assert one.receive("b", "begin", soon())["round"] == 0
    assert one.receive("b", "plan", soon())["value"] == 1


def test_long_messages_and_ticks_do_not_mix(ends: Ends) -> None:
    one, other = ends
    value = "x" * 3_000_000
    for count in range(3):
        other.send("a", {"type": "rows", "count": count, "value": value})
    for count in range(3):
        message = one.receive("b", "rows", soon())
        assert (message["count"], len(message["value"])) == (count, len(value))


def test_deadline_is_named(ends: Ends) -> None:
    one, _other = ends
    with pytest.raises(Lost, match="budget of the sweep was over"):
        one.receive("b", "begin", time.monotonic() + 0.1)
    with pytest.raises(Lost, match="too late"):
        one.receive("b", "begin", time.monotonic() + 0.1, "too late")


def test_partner_that_gives_up_is_lost(ends: Ends) -> None:
    one, other = ends
    other.send("a", {"type": "abort", "reason": "because"})
    with pytest.raises(Lost, match="gave up: because"):
        one.receive("b", "begin", soon())


def test_what_was_sent_before_the_end_arrives(ends: Ends) -> None:
    one, other = ends
    other.send("a", {"type": "plan", "value": []})
    other.close()
    assert one.receive("b", "plan", soon())["value"] == []
    for _again in range(2):
        with pytest.raises(Lost, match="closed the connection"):
            one.receive("b", "begin", soon())


def test_stranger_and_garbage_are_refused(ends: Ends) -> None:
    one, _other = ends
    port = one._listener.getsockname()[1]
    with socket.create_connection(("127.0.0.2", port)) as stranger:
        stranger.sendall(b'{"type": "hello", "node": "c", "sweep": "s", "nodes": ["a", "b"], "rails": []}\n')
        assert b"different lists of nodes" in stranger.recv(4096)
    with socket.create_connection(("127.0.0.2", port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.settimeout(10)
        assert stranger.recv(4096) == b""
    assert sorted(one.partners) == ["b"]
    with pytest.raises(Lost, match="was never met"):
        one.receive("c", "begin", soon())

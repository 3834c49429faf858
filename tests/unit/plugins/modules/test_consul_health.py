# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gate consul_health against an agent in this process and on saved answers."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import consul_health

from tests.unit.consul_fake import FakeConsul
from tests.unit.module_runner import Run, runner

ANSWER = Path(__file__).parents[2] / "fixtures" / "consul-1.8-health-node.json"
TOKEN = "22222222-2222-4222-8222-222222222222"


class Agent(FakeConsul):
    """A fake agent that also answers /v1/health/node."""

    node: Any = json.loads(ANSWER.read_text())

    def __init__(self, token: str) -> None:
        # What it answers first, before it answers with `node`.
        self.first: list[Any] = []
        super().__init__(token=token)

    def handle(self, method: str, path: str, query: dict[str, str], body: bytes, token: str) -> tuple[int, Any]:
        if path.startswith("health/node/") and (self.token is None or token == self.token):
            if path != "health/node/node1":
                return 200, []
            return 200, self.first.pop(0) if self.first else self.node
        return super().handle(method, path, query, body, token)


@pytest.fixture
def agent() -> Iterator[Agent]:
    fake = Agent(token=TOKEN)
    yield fake
    fake.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(consul_health, capsys)


@pytest.fixture
def token(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    return str(file)


def ask(run: Run, agent: Agent, token: str, **options: Any) -> dict[str, Any]:
    return run(**{"node": "node1", "url": agent.address, "token_file": token, "enforce": False, **options})


def test_agent_is_asked_with_the_token_of_the_file(run: Run, agent: Agent, token: str, tmp_path: Path) -> None:
    result = ask(run, agent, token, services=["node1-iu0", "node1-iu1"], evidence_dir=str(tmp_path / "evidence"))
    assert (result["verdict"], result["changed"]) == ("pass", False)
    stored = (tmp_path / "evidence/consul_health.json").read_text()
    assert TOKEN not in stored + json.dumps(result)
    again = {"captured": str(tmp_path / "evidence/consul_health.json"), "evidence_dir": None}
    assert ask(run, agent, token, **again)["verdict"] == "pass"
    assert ask(run, agent, token, **again, services=["node1-iu7"])["verdict"] == "fail"


def test_agent_that_refuses_or_does_not_answer(run: Run, agent: Agent, token: str, tmp_path: Path) -> None:
    result = ask(run, agent, token, node="node9")
    assert result["verdict"] == "unknown"
    assert "no check of the node node9" in result["summary"]
    wrong = tmp_path / "wrong"
    wrong.write_text("33333333-3333-4333-8333-333333333333")
    result = ask(run, agent, str(wrong))
    assert result["verdict"] == "unknown"
    assert "HTTP 403 Permission denied" in result["summary"]
    assert "33333333" not in json.dumps(result)
    result = ask(run, agent, token, url="http://127.0.0.1:9")
    assert result["verdict"] == "unknown"
    assert "no answer" in result["summary"]


def test_waits_for_the_catalog(run: Run, agent: Agent, token: str) -> None:
    late = json.loads(ANSWER.read_text())
    agent.first = [late[2:], late[2:]]
    result = ask(run, agent, token, services=["node1-iu0"], wait=60)
    assert result["verdict"] == "pass"
    # Twice half a second between three questions.
    assert 1.0 <= result["waited"] < 60
    agent.node = late[2:]
    assert ask(run, agent, token, services=["node1-iu0"], wait=0.6)["verdict"] == "fail"


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"one\ntwo\n"])
def test_token_file_that_cannot_be_used(run: Run, agent: Agent, tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "bad"
    if content is not None:
        file.write_bytes(content)
    result = ask(run, agent, str(file))
    assert result["failed"]
    assert "token_file" in result["msg"]
    assert "one" not in result["msg"].replace("more than one line", "").replace("token alone", "")


def test_options(run: Run, agent: Agent, token: str) -> None:
    assert ask(run, agent, token, url="ftp://x")["failed"]
    assert ask(run, agent, token, wait=-1)["failed"]


def test_saved_answers(run: Run, tmp_path: Path) -> None:
    assert run(captured=str(ANSWER))["verdict"] == "pass"
    assert run(captured=str(ANSWER), node="node2", enforce=False)["verdict"] == "unknown"
    (tmp_path / "consul-health-node.json").write_text(ANSWER.read_text())
    assert run(captured=str(tmp_path))["verdict"] == "pass"
    dead = ANSWER.read_text().replace('"passing",\n        "Notes": ""', '"critical",\n        "Notes": ""')
    (tmp_path / "consul-health-node.json").write_text(dead)
    result = run(captured=str(tmp_path))
    assert result["failed"]
    assert result["verdict"] == "fail"
    assert run(captured=str(tmp_path / "absent"), enforce=False)["verdict"] == "unknown"


HOSTILE = {
    "headers that drip": ((b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"), 0.2, "not whole after 1 s"),
    "a body that drips": ((b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n", b" "), 0.2, "not whole after 1 s"),
    "a body that drips without a length": ((b"HTTP/1.1 200 OK\r\n\r\n", b" "), 0.2, "not whole after 1 s"),
    "a flood": ((b"HTTP/1.1 200 OK\r\n\r\n", b" " * 1_000_000), 0.0, "more than 16 MiB"),
    "a body that is cut off": ((b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n[]", None), 0.0, "cut off, 7 bytes lack"),
    "brackets without end": ((b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, None), 0.0, "did not answer with JSON"),
    "the token": ((f"HTTP/1.1 403 No\r\n\r\nno such token {TOKEN}".encode(), None), 0.0, "HTTP 403 no such token [the"),
}


@pytest.mark.parametrize(("parts", "pause", "words"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_answer_ends_in_time_and_tells_no_token(
    run: Run, token: str, parts: tuple[bytes, bytes | None], pause: float, words: str
) -> None:
    def serve(listener: socket.socket) -> None:
        connection, _address = listener.accept()
        with contextlib.suppress(OSError), connection:
            connection.recv(4096)
            connection.sendall(parts[0])
            while parts[1] is not None:
                connection.sendall(parts[1])
                time.sleep(pause)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        began = time.monotonic()
        result = run(node="node1", url=url, token_file=token, timeout=1 if pause else 30, enforce=False)
    assert time.monotonic() - began < 25
    assert result["verdict"] == "unknown"
    assert words in result["summary"]
    assert TOKEN not in json.dumps(result)

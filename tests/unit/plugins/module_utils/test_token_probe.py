# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The probe against engines that behave well and badly."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _token_probe as tp

GOOD = {"choices": [{"text": " the", "index": 0}], "usage": {"completion_tokens": 1}}


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers as its class attributes say."""

    health = 200
    status = 200
    body: Any = GOOD
    delay = 0.0
    trickle = False
    asked: list[dict[str, Any]]
    authorization: str | None = None

    def _send(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        if self.path == "/health":
            self._send(self.health, b"")
        else:
            self._send(200, json.dumps({"data": [{"id": "m"}]}).encode())

    def do_POST(self) -> None:
        type(self).asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        type(self).authorization = self.headers.get("Authorization")
        time.sleep(self.delay)
        data = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        if self.trickle:
            self.send_response(200)
            self.end_headers()
            for byte in data * 100:
                self.wfile.write(bytes([byte]))
                time.sleep(0.05)
        self._send(self.status, data)

    def log_message(self, *_args: Any) -> None:
        pass


@pytest.fixture
def engine() -> Iterator[tuple[type[Engine], int]]:
    handler: type[Engine] = type("Handler", (Engine,), {"asked": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_args: None  # type: ignore[method-assign]
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield handler, server.server_address[1]
    server.shutdown()
    server.server_close()


def test_a_token_passes_with_its_time(engine: tuple[type[Engine], int]) -> None:
    handler, port = engine
    outcome = tp.judge(tp.probe("127.0.0.1", port, 5, "key"))
    assert outcome.ok
    assert outcome.tokens == 1
    assert outcome.seconds is not None
    assert 0 < outcome.seconds < 5
    assert handler.asked[0]["model"] == "m"
    assert handler.asked[0]["max_tokens"] == 1
    assert handler.authorization == "Bearer key"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"health": 503}, "answers /health with status 503"),
        ({"delay": 2.0}, "answers /health but generates no token: no whole answer within"),
        ({"trickle": True}, "answers /health but generates no token: no whole answer within"),
        ({"status": 500, "body": b"boom"}, "refuses a completion with status 500: boom"),
        ({"body": b"<html>"}, "cannot be read: '<html>'"),
        ({"body": []}, "cannot be read"),
        ({"body": {"choices": [], "usage": {"completion_tokens": 1}}}, "cannot be read"),
        ({"body": {"choices": [{"text": ""}], "usage": {"completion_tokens": 0}}}, "0 tokens and text ''"),
        ({"body": {"choices": [{"text": ""}], "usage": {"completion_tokens": 1}}}, "1 tokens and text ''"),
        ({"body": {"choices": [{"text": "x"}], "usage": {"completion_tokens": 0}}}, "0 tokens and text 'x'"),
        ({"body": {"choices": [{"text": "x"}], "usage": {"completion_tokens": None}}}, "no count of tokens"),
        ({"body": {"choices": [{"text": "x"}], "usage": {"completion_tokens": True}}}, "generates no token"),
    ],
)
def test_everything_else_fails_with_its_reason(
    engine: tuple[type[Engine], int], changes: dict[str, Any], words: str
) -> None:
    handler, port = engine
    for name, value in changes.items():
        setattr(handler, name, value)
    start = time.monotonic()
    outcome = tp.judge(tp.probe("127.0.0.1", port, 0.5))
    assert time.monotonic() - start < 1.5
    assert not outcome.ok
    assert words in outcome.reason


def test_a_token_without_text_counts_when_its_id_is_there(engine: tuple[type[Engine], int]) -> None:
    handler, port = engine
    handler.body = {"choices": [{"text": "", "token_ids": [17]}], "usage": {"completion_tokens": 1}}
    assert tp.judge(tp.probe("127.0.0.1", port, 5)).ok


def test_nothing_listens() -> None:
    outcome = tp.judge(tp.probe("127.0.0.1", 1, 1))
    assert outcome == tp.Outcome(False, "engine does not answer /health: 127.0.0.1:1: Connection refused")


def test_reading_survives_its_json_form(engine: tuple[type[Engine], int]) -> None:
    reading = tp.probe("127.0.0.1", engine[1], 5)
    assert tp.from_dict(json.loads(json.dumps(reading.as_dict()))) == reading
    for bad in ({}, {"health": {"state": 1}, "completion": None}, []):
        with pytest.raises(ValueError, match="not a token probe's reading"):
            tp.from_dict(bad)  # type: ignore[arg-type]


def test_wait_ends_when_the_process_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    time.sleep(0.3)
    # A zombie, not yet waited for: as dead as a process can be.
    start = time.monotonic()
    outcome = tp.wait("127.0.0.1", 1, 30, 1, process.pid)
    process.wait()
    assert time.monotonic() - start < 5
    assert outcome == tp.Outcome(False, f"process {process.pid} has ended before it generated a token")


def test_wait_ends_at_its_deadline() -> None:
    start = time.monotonic()
    assert not tp.wait("127.0.0.1", 1, 0.6, 1, os.getpid()).ok
    assert time.monotonic() - start < 1.5


@pytest.mark.parametrize(
    ("text", "key"),
    [('VLLM_API_KEY="a b"\n', "a b"), ('OTHER=1\nVLLM_API_KEY="a\\"b\\\\c"\n', 'a"b\\c'), ("OTHER=1\n", "")],
)
def test_key_of_the_environment_file(tmp_path: Path, text: str, key: str) -> None:
    file = tmp_path / "secret.env"
    file.write_text(text)
    assert tp.read_api_key(str(file)) == key
    assert tp.read_api_key(str(tmp_path / "none")) == ""


def test_copy_runs_on_a_node_without_ansible(tmp_path: Path, engine: tuple[type[Engine], int]) -> None:
    copy = shutil.copy(tp.__file__, tmp_path / "token_probe.py")
    base = ["/usr/bin/env", "-i", "VLLM_API_KEY=k", "python3", "-I", str(copy), "--port"]
    good = subprocess.run(
        [*base, str(engine[1]), "--timeout", "5"], capture_output=True, text=True, timeout=20, check=False
    )
    assert good.returncode == 0
    assert good.stdout.startswith("token_probe: pass, 1 token in ")
    bad = subprocess.run([*base, "1", "--timeout", "0.3"], capture_output=True, text=True, timeout=20, check=False)
    assert (bad.returncode, "Connection refused" in bad.stdout) == (1, True)

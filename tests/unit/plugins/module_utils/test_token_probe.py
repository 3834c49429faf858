# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The probe against engines that behave well and badly."""

from __future__ import annotations

import http.server
import json
import math
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
MODELS = {"data": [{"id": "m"}]}


class Engine(http.server.BaseHTTPRequestHandler):
    """Answers as its class attributes say."""

    health = 200
    status = 200
    body: Any = GOOD
    models: Any = MODELS
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
            self._send(200, self.models if isinstance(self.models, bytes) else json.dumps(self.models).encode())

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
    outcome = tp.judge(tp.probe("127.0.0.1", port, 30, "key"))
    assert outcome.ok
    assert outcome.tokens == 1
    assert outcome.seconds is not None
    assert 0 < outcome.seconds < 30
    assert handler.asked[0]["model"] == "m"
    assert handler.asked[0]["max_tokens"] == 1
    assert handler.authorization == "Bearer key"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"health": 503}, "answers /health with status 503"),
        ({"delay": 60.0}, "answers /health but generates no token: no whole answer within"),
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
    slow = "delay" in changes or "trickle" in changes
    start = time.monotonic()
    outcome = tp.judge(tp.probe("127.0.0.1", port, 0.5 if slow else 30))
    assert time.monotonic() - start < 20
    assert not outcome.ok
    assert words in outcome.reason


def test_a_token_without_text_counts_when_its_id_is_there(engine: tuple[type[Engine], int]) -> None:
    handler, port = engine
    handler.body = {"choices": [{"text": "", "token_ids": [17]}], "usage": {"completion_tokens": 1}}
    assert tp.judge(tp.probe("127.0.0.1", port, 30)).ok


def test_nothing_listens() -> None:
    outcome = tp.judge(tp.probe("127.0.0.1", 1, 1))
    assert outcome == tp.Outcome(False, "engine does not answer /health: 127.0.0.1:1: Connection refused")


def test_reading_survives_its_json_form(engine: tuple[type[Engine], int]) -> None:
    reading = tp.probe("127.0.0.1", engine[1], 30)
    assert tp.from_dict(json.loads(json.dumps(reading.as_dict()))) == reading
    for bad in ({}, {"health": {"state": 1}, "completion": None}, []):
        with pytest.raises(ValueError, match="not a token probe's reading"):
            tp.from_dict(bad)  # type: ignore[arg-type]


def test_wait_ends_when_the_process_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    # A zombie, not yet waited for: as dead as a process can be.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    start = time.monotonic()
    outcome = tp.wait("127.0.0.1", 1, 30, 1, process.pid)
    process.wait()
    assert time.monotonic() - start < 20
    assert outcome == tp.Outcome(False, f"process {process.pid} has ended before it generated a token")


def test_wait_ends_at_its_deadline() -> None:
    start = time.monotonic()
    assert not tp.wait("127.0.0.1", 1, 0.6, 1, os.getpid()).ok
    assert time.monotonic() - start < 20


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


@pytest.mark.parametrize(
    "body",
    [
        {"choices": ["x"], "usage": {"completion_tokens": 1}},
        {"choices": [None], "usage": {"completion_tokens": 1}},
        {"choices": "x", "usage": {"completion_tokens": 1}},
        {"choices": [{"text": ["x"]}], "usage": {"completion_tokens": 1}},
        {"choices": [{"text": 7}], "usage": {"completion_tokens": 1}},
        {"choices": [{"text": "", "token_ids": "17"}], "usage": {"completion_tokens": 1}},
        {"choices": [{"text": "x"}], "usage": ["completion_tokens"]},
    ],
)
def test_an_answer_of_another_shape_is_a_failed_probe(body: Any) -> None:
    text = json.dumps(body)
    outcome = tp.judge(tp.Reading(tp.Answer(200), tp.Answer(200, text, "", 0.1), "m"))
    assert outcome == tp.Outcome(False, f"engine's completion cannot be read: {text!r}")


def test_json_too_deep_to_read_is_a_failed_probe() -> None:
    outcome = tp.judge(tp.Reading(tp.Answer(200), tp.Answer(200, "[" * 100000, "", 0.1), "m"))
    assert outcome == tp.Outcome(False, f"engine's completion cannot be read: {'[' * 200!r}")


def test_what_an_engine_says_stays_on_one_line() -> None:
    outcome = tp.judge(tp.Reading(tp.Answer(200), tp.Answer(500, " a\nSTOPPING=1\r\n", "", 0.1), "m"))
    assert outcome.reason == "engine answers /health but refuses a completion with status 500: a STOPPING=1"


@pytest.mark.parametrize("models", [{"data": [{"id": 5}]}, b"[" * 100000, {"data": [{"id": ""}]}, GOOD])
def test_a_list_of_models_is_never_taken_for_a_completion(engine: tuple[type[Engine], int], models: Any) -> None:
    handler, port = engine
    handler.models = models
    outcome = tp.judge(tp.probe("127.0.0.1", port, 30))
    assert outcome == tp.Outcome(False, "engine answers /health but generates no token: engine lists no model")
    assert handler.asked == []


@pytest.mark.parametrize(
    ("address", "timeout", "key", "error"),
    [
        ("127.0.0.1", 5, "\udcff", "UnicodeEncodeError"),
        ("127.0.0.1", 1e300, "", "OverflowError"),
        ("a" * 64 + ".example", 5, "", "UnicodeError"),
    ],
)
def test_what_cannot_be_asked_is_an_answer(
    engine: tuple[type[Engine], int], address: str, timeout: float, key: str, error: str
) -> None:
    answer = tp.request(address, engine[1], "GET", "/", time.monotonic() + timeout, api_key=key)
    assert (answer.status, answer.error) == (None, f"{address}:{engine[1]} cannot be asked: {error}")


STORED = {
    "health": {"status": 200, "body": "", "error": "", "seconds": 0.001},
    "completion": {"status": 200, "body": json.dumps(GOOD), "error": "", "seconds": 0.25},
    "model": "m",
}


@pytest.mark.parametrize("seconds", [True, 0, -1, 0.0, math.nan, math.inf, -math.inf, "1", None, 10**400])
@pytest.mark.parametrize("part", ["health", "completion"])
def test_a_stored_time_that_is_none_is_refused(part: str, seconds: Any) -> None:
    stored = {**STORED, part: {**STORED[part], "seconds": seconds}}  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=rf"not a token probe's reading: {part}\.seconds is "):
        tp.from_dict(stored)


@pytest.mark.parametrize("field", ["status", "body", "error", "seconds"])
def test_a_stored_answer_without_a_field_is_refused(field: str) -> None:
    answer = {k: v for k, v in STORED["completion"].items() if k != field}  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="completion does not have exactly body, error, seconds, status"):
        tp.from_dict({**STORED, "completion": answer})


@pytest.mark.parametrize(
    ("field", "value"), [("status", True), ("status", "200"), ("body", None), ("body", 1), ("error", None)]
)
def test_a_stored_field_of_another_type_is_refused(field: str, value: Any) -> None:
    answer = {**STORED["completion"], field: value}  # type: ignore[dict-item]
    with pytest.raises(ValueError, match=rf"^not a token probe's reading: completion\.{field} is {value!r}$"):
        tp.from_dict({**STORED, "completion": answer})


def test_a_stored_reading_is_read() -> None:
    assert tp.from_dict(STORED) == tp.Reading(
        tp.Answer(200, "", "", 0.001), tp.Answer(200, json.dumps(GOOD), "", 0.25), "m"
    )
    with pytest.raises(ValueError, match="model is 5"):
        tp.from_dict({**STORED, "model": 5})
    with pytest.raises(ValueError, match="completion does not have exactly"):
        tp.from_dict({**STORED, "completion": []})


@pytest.mark.parametrize(
    ("value", "zero", "problem"),
    [
        (0.5, False, None),
        (0.0, True, None),
        (604800.0, False, None),
        (0.0, False, "wait: 0.0. Give a finite number of seconds above 0 to 604800."),
        (-1.0, True, "wait: -1.0. Give a finite number of seconds from 0 to 604800."),
        (math.nan, True, "wait: nan. Give a finite number of seconds from 0 to 604800."),
        (math.inf, True, "wait: inf. Give a finite number of seconds from 0 to 604800."),
        (1e300, True, "wait: 1e+300. Give a finite number of seconds from 0 to 604800."),
    ],
)
def test_seconds_problem(value: float, zero: bool, problem: str | None) -> None:
    assert tp.seconds_problem("wait", value, zero=zero) == problem


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "x"])
def test_the_command_line_refuses_a_wait_without_end(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        tp.main(["--port", "1", f"--wait={value}"])
    assert caught.value.code == 2
    assert "Give a finite number of seconds from 0 to 604800." in capsys.readouterr().err

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The simulated engine: command line, API, batching, faults and graceful end, over real sockets."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from engine import cli, make_model, model
from engine.hardware import Hardware, Speed, parse

from tests.unit.ports import free_port

VLLM = Path(cli.__file__).parent / "bin" / "vllm"
Start = Callable[..., "Running"]


class Running:
    """One engine process."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process = process
        self.port = port

    def call(self, method: str, path: str, body: Any = None, key: str = "") -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text

    def complete(self, **body: Any) -> tuple[int, dict[str, Any]]:
        status, text = self.call("POST", "/v1/completions", {"model": "tiny", "prompt": "Hello", **body})
        return status, json.loads(text)

    def metric(self, name: str) -> float:
        lines = [line for line in self.call("GET", "/metrics")[1].splitlines() if line.startswith(f"vllm:{name}{{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model") / "tiny"
    make_model.write(directory)
    return directory


@pytest.fixture
def start(tmp_path: Path, model_dir: Path) -> Iterator[Start]:
    processes = []

    def run(*words: str, hardware: str = "engine: {}\n", env: dict[str, str] | None = None) -> Running:
        port = free_port()
        (tmp_path / "hw.yml").write_text(hardware)
        config = tmp_path / "engine.yaml"
        config.write_text(f'---\nmodel: "{model_dir}"\nport: {port}\nserved-model-name: tiny\nenforce-eager: true\n')
        command = [sys.executable, "-I", str(VLLM), "serve", "--config", str(config), "--host", "127.0.0.1", *words]
        environment = {"SIMHW_DESCRIPTION": str(tmp_path / "hw.yml"), "GPU_RACK_IU": "n-iu0", **(env or {})}
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        processes.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if "startup complete" in line:
                break
        return Running(process, port)

    yield run
    for process in processes:
        process.kill()
        process.wait()


FAST = "engine:\n  load_s: 0\n  tokens_per_s: 2000\nfaults: []\n"
SLOW = "engine:\n  load_s: 0\n  tokens_per_s: 20\n"


def test_api(start: Start) -> None:
    engine = start(hardware=FAST)
    assert engine.call("GET", "/health") == (200, "")
    assert json.loads(engine.call("GET", "/version")[1])["version"]
    assert json.loads(engine.call("GET", "/v1/models")[1])["data"][0]["id"] == "tiny"
    status, answer = engine.complete(max_tokens=3)
    assert status == 200
    assert answer["object"] == "text_completion"
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5}
    assert len(answer["choices"][0]["text"].split()) == 3
    assert engine.complete(max_tokens=3)[1]["choices"][0]["text"] == answer["choices"][0]["text"]
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    message = json.loads(engine.call("POST", "/v1/chat/completions", chat)[1])["choices"][0]["message"]
    assert message["role"] == "assistant"
    assert engine.metric("generation_tokens_total") == 8
    assert engine.metric("prompt_tokens_total") == 2 + 2 + 7
    assert engine.metric("request_success_total") == 3
    assert engine.metric("time_to_first_token_seconds_count") == 3


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ({"model": "other"}, 404, "does not exist"),
        ({"max_tokens": 0}, 400, "max_tokens must be an integer of at least 1"),
        ({"max_tokens": 100000}, 400, "max_tokens is 100000"),
        ({"prompt": ""}, 400, "prompt"),
        ({"prompt": [1] * 9000}, 400, "maximum context length is 8192"),
        ({"n": 2}, 400, "n must be 1"),
    ],
)
def test_bad_requests(start: Start, body: dict[str, Any], status: int, words: str) -> None:
    got, answer = start(hardware=FAST).complete(**body)
    assert got == status
    assert words in answer["error"]["message"]


def test_stream_has_tokens_usage_and_end_mark(start: Start) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}, "max_tokens": 4}
    status, text = start(hardware=FAST).call("POST", "/v1/completions", {"prompt": "Hello", **options})
    events = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert status == 200
    assert events[-1] == "[DONE]"
    assert json.loads(events[-2])["usage"]["completion_tokens"] == 4
    assert sum(bool(json.loads(e)["choices"][0]["text"]) for e in events[:4]) == 4
    assert json.loads(events[4])["choices"][0]["finish_reason"] == "length"


def test_key_from_the_environment(start: Start) -> None:
    engine = start(hardware=FAST, env={"VLLM_API_KEY": "k"})
    assert engine.call("GET", "/health")[0] == 200
    assert engine.call("GET", "/v1/models")[0] == 401
    assert engine.call("GET", "/v1/models", key="wrong")[0] == 401
    assert engine.call("GET", "/v1/models", key="k")[0] == 200


def _open(engine: Running, tokens: int) -> socket.socket:
    """Send a completion and leave the connection open."""
    body = json.dumps({"prompt": "Hello", "max_tokens": tokens, "ignore_eos": True}).encode()
    connection = socket.create_connection(("127.0.0.1", engine.port))
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    return connection


def _until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_batching_waits_above_max_num_seqs_and_frees_on_disconnect(start: Start) -> None:
    engine = start("--max-num-seqs", "2", "--num-gpu-blocks-override", "512", hardware=SLOW)
    connections = [_open(engine, 500) for _n in range(3)]
    assert _until(lambda: engine.metric("num_requests_running") == 2)
    assert engine.metric("num_requests_waiting") == 1
    assert engine.metric("kv_cache_usage_perc") > 0
    connections[0].close()
    assert _until(lambda: engine.metric("num_requests_waiting") == 0)
    for connection in connections[1:]:
        connection.close()
    assert _until(lambda: engine.metric("num_requests_running") == 0)
    assert engine.metric("kv_cache_usage_perc") == 0


def test_sigterm_lets_running_requests_end_and_refuses_new_ones(start: Start) -> None:
    engine = start("--shutdown-timeout", "10", hardware=SLOW)
    connection = _open(engine, 10)
    assert _until(lambda: engine.metric("num_requests_running") == 1)
    engine.process.send_signal(signal.SIGTERM)
    answer = connection.makefile("rb").read()
    assert b'"completion_tokens":10' in answer
    assert engine.process.wait(5) == 0
    with pytest.raises(ConnectionRefusedError):
        engine.call("GET", "/health")


def test_sigterm_without_timeout_aborts(start: Start) -> None:
    engine = start(hardware=SLOW)
    connection = _open(engine, 1000)
    assert _until(lambda: engine.metric("num_requests_running") == 1)
    engine.process.send_signal(signal.SIGTERM)
    assert engine.process.wait(5) == 0
    connection.close()


def test_faults_are_read_while_it_runs(start: Start, tmp_path: Path) -> None:
    engine = start(hardware=FAST)
    (tmp_path / "hw.yml").write_text(FAST.replace("faults: []", "faults:\n- 'engine: no token'"))
    assert engine.complete()[1]["usage"]["completion_tokens"] == 0
    (tmp_path / "hw.yml").write_text(FAST.replace("faults: []", "faults:\n- 'engine: never answers'"))
    connection = _open(engine, 1)
    connection.settimeout(0.5)
    with pytest.raises(TimeoutError):
        connection.recv(1)
    assert engine.call("GET", "/health")[0] == 200
    assert engine.metric("num_requests_running") == 1
    connection.close()
    (tmp_path / "hw.yml").write_text(FAST.replace("faults: []", "faults:\n- 'engine iu1: no token'"))
    assert engine.complete(max_tokens=1)[1]["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["m", "--swap-space", "4"], "unrecognized arguments: --swap-space 4"),
        (["m", "--block-size", "17"], "invalid choice: 17"),
        (["m", "--config", "/nonexistent.yaml"], "No such file"),
        ([], "required: model_tag or --model"),
    ],
)
def test_wrong_command_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as info:
        cli.parse(words)
    assert info.value.code == 2
    assert message in capsys.readouterr().err


def test_command_line_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("model: /m\nmax_num_seqs: 8\nenforce-eager: true\nenable-prefix-caching: false\nport: 1\n")
    args = cli.parse(["--config", str(file), "--port=2"])
    assert (args.model, args.max_num_seqs, args.port) == ("/m", 8, 2)
    assert (args.enforce_eager, args.enable_prefix_caching) == (True, False)


@pytest.mark.parametrize("text", ["a:\n  b: 1\n", "- a\n", "word\n"])
def test_config_file_that_is_not_flat_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        cli.config_arguments(text)


def test_model_is_the_same_on_every_run_and_loads(tmp_path: Path, model_dir: Path) -> None:
    make_model.write(tmp_path / "again")
    names = sorted(p.name for p in model_dir.iterdir())
    assert all((tmp_path / "again" / n).read_bytes() == (model_dir / n).read_bytes() for n in names)
    assert model.load(str(model_dir)).max_model_len == 8192
    done = subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=model_dir, check=False)
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d[:-1], "incomplete metadata"),
        (lambda d: d[:4], "header too small"),
        (lambda d: struct.pack("<Q", 1 << 40) + d[8:], "invalid header length"),
        (lambda d: d[:8] + b"x" * (len(d) - 8), "invalid header"),
    ],
)
def test_damaged_weights_are_refused(tmp_path: Path, change: Callable[[bytes], bytes], words: str) -> None:
    make_model.write(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(model.ModelError, match=words) as info:
        model.load(str(tmp_path))
    assert str(file) in str(info.value)


@pytest.mark.parametrize(
    "text",
    [
        "numa:\n- id: 0\n  cpus: 0-1\nengine:\n  tokens_per_s: 7.5\nfaults:\n- 'engine: no token'\n- \"a: b\"\n",
        "engine:\n    tokens_per_s: 7.5\nfaults: ['engine: no token', \"a: b\"]\n",
        '{"engine": {"tokens_per_s": 7.5}, "faults": ["engine: no token", "a: b"]}',
    ],
    ids=["block", "flow", "json"],
)
def test_description_is_read_in_every_form(text: str) -> None:
    data = parse(text)
    assert data["engine"]["tokens_per_s"] == 7.5
    assert data["faults"] == ["engine: no token", "a: b"]


def test_speed_and_faults_of_the_description(tmp_path: Path) -> None:
    file = tmp_path / "hw.yml"
    assert (Hardware(file).speed(), Hardware(file).fault()) == (Speed(), "")
    file.write_text("engine: {}\nfaults:\n- 'engine: slow 2.5 tokens/s'\n- 'engine iu1: crashes'\n")
    assert Hardware(file).speed().tokens_per_s == 2.5
    assert (Hardware(file, "n-iu0").fault(), Hardware(file, "n-iu1").fault()) == ("", "crashes")

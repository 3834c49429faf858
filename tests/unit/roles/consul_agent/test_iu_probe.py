# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The probe of an inference unit, as it is installed: its own file beside its siblings."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.unit.consul_fake import FakeConsul

ROOT = Path(__file__).resolve().parents[4]
TOKEN = "s3cret-token"
ME = {"machine_id": "m-1", "boot_id": "b-1"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Put the files where the role puts them, under their names on the node."""
    directory = tmp_path_factory.mktemp("gpu_rack")
    shutil.copy(ROOT / "roles/consul_agent/files/iu_probe.py", directory / "iu_probe")
    for name in ("_consul.py", "_membership.py", "_token_probe.py"):
        shutil.copy(ROOT / "plugins/module_utils" / name, directory)
    return directory


@pytest.fixture
def probe(installed: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setattr(sys, "path", list(sys.path))
    loader = importlib.machinery.SourceFileLoader("iu_probe", str(installed / "iu_probe"))
    spec = importlib.util.spec_from_loader("iu_probe", loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "iu_probe", module)
    loader.exec_module(module)
    monkeypatch.setattr(module, "identity", lambda: ME)
    return module


class Engine:
    """An engine that can answer, refuse, or hang."""

    def __init__(self) -> None:
        self.mood = "well"
        self.body = b""
        self.closed = threading.Event()
        engine = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer({})

            def do_POST(self) -> None:
                self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if engine.mood == "hung":
                    engine.closed.wait(60)
                    return
                self.answer({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}})

            def answer(self, body: dict[str, Any]) -> None:
                data = engine.body or json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.closed.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


@pytest.fixture
def consul(tmp_path: Path) -> Iterator[FakeConsul]:
    fake = FakeConsul(token=TOKEN)
    fake.checks["iu:node1-iu0"] = {
        "CheckID": "iu:node1-iu0",
        "Status": "critical",
        "Output": "",
        "ServiceID": "node1-iu0",
    }
    yield fake
    fake.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "gate").mkdir()
    for stage in ("hardware", "serving"):
        (tmp_path / "gate" / f"{stage}.json").write_text(json.dumps({"verdict": "pass", "time": 1.0, **ME}))
    return tmp_path


def config(tmp_path: Path, engine: Engine, consul: FakeConsul, timeout: float = 30) -> Path:
    (tmp_path / "token").write_text(TOKEN + "\n")
    path = tmp_path / "iu_probe.json"
    content = {
        "consul_address": consul.address,
        "consul_ca_path": None,
        "consul_token_file": str(tmp_path / "token"),
        "interval": 0.1,
        "timeout": timeout,
        "units": {"node1-iu0": {"port": engine.port, "model": "tiny"}},
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def settings(probe: ModuleType, tmp_path: Path, engine: Engine, consul: FakeConsul) -> Any:
    return probe.load(config(tmp_path, engine, consul), "node1-iu0")


def test_a_token_is_passing_with_its_time(probe: ModuleType, settings: Any, state: Path) -> None:
    status, output = probe.examine(settings, state)
    assert status == "passing"
    assert output.startswith("1 token in 0.")


def test_a_hung_engine_is_critical_within_its_deadline(
    probe: ModuleType, tmp_path: Path, state: Path, engine: Engine, consul: FakeConsul
) -> None:
    engine.mood = "hung"
    settings = probe.load(config(tmp_path, engine, consul, timeout=0.3), "node1-iu0")
    start = time.monotonic()
    status, output = probe.examine(settings, state)
    assert (status, time.monotonic() - start < 20) == ("critical", True)
    assert "generates no token: no whole answer within 0.3 s" in output


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        pytest.param("hold.json", {"by": "mia", "reason": "cable work"}, "held by mia: cable work", id="held"),
        pytest.param("quarantine.json", {"stage": "hardware", "reason": "NV17"}, "hardware: NV17", id="quarantined"),
        pytest.param("gate/hardware.json", {"verdict": "fail"}, "the hardware gate says fail", id="gate failed"),
        pytest.param("gate/serving.json", None, "the serving gate has not run", id="gate missing"),
        pytest.param(
            "gate/serving.json",
            {"verdict": "pass", **ME, "machine_id": "m-0"},
            "judged machine_id m-0, this is m-1: reinstalled since",
            id="reinstalled behind our back",
        ),
    ],
)
def test_what_keeps_a_unit_out_is_said_and_the_engine_is_not_asked(
    probe: ModuleType, settings: Any, state: Path, file: str, content: dict[str, Any] | None, words: str
) -> None:
    path = state / file
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_text(json.dumps(content))
    status, output = probe.examine(settings, state)
    assert status == "critical"
    assert output.startswith("refused: ")
    assert words in output


def test_the_report_goes_to_the_units_own_check(probe: ModuleType, settings: Any, consul: FakeConsul) -> None:
    probe.report(settings, "passing", "1 token in 0.043 s")
    assert consul.checks["iu:node1-iu0"]["Status"] == "passing"
    assert consul.checks["iu:node1-iu0"]["Output"] == "1 token in 0.043 s"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        pytest.param(None, "does not exist. Join the node", id="no file"),
        pytest.param({"units": {}}, "unit node1-iu0: KeyError('node1-iu0')", id="unknown unit"),
        pytest.param([], "unit node1-iu0: TypeError", id="not an object"),
    ],
)
def test_settings_that_cannot_be_used_say_why(probe: ModuleType, tmp_path: Path, content: Any, words: str) -> None:
    path = tmp_path / "p.json"
    if content is not None:
        path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"p\.json") as caught:
        probe.load(path, "node1-iu0")
    assert words in str(caught.value)


def test_a_stopped_probe_takes_its_unit_out_and_shows_no_token(
    installed: Path, tmp_path: Path, engine: Engine, consul: FakeConsul
) -> None:
    source = (
        (installed / "iu_probe")
        .read_text()
        .replace("/etc/gpu_rack/iu_probe.json", str(config(tmp_path, engine, consul)))
    )
    program = installed / "iu_probe_here"
    program.write_text(source)
    # Without gates on this machine it reports a refusal, which is a report as well.
    process = subprocess.Popen(
        [sys.executable, str(program), "node1-iu0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    deadline = time.monotonic() + 60
    while not consul.checks["iu:node1-iu0"]["Output"] and time.monotonic() < deadline:
        time.sleep(0.02)
    command_line = Path(f"/proc/{process.pid}/cmdline").read_text()
    environment = Path(f"/proc/{process.pid}/environ").read_text()
    process.send_signal(signal.SIGTERM)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert consul.checks["iu:node1-iu0"]["Output"] == "the probe was stopped"
    assert TOKEN not in command_line + environment + output


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices":["x"],"usage":{"completion_tokens":1}}',
        b'{"choices":[null],"usage":{"completion_tokens":1}}',
        b'{"choices":[{"text":5}],"usage":{"completion_tokens":1}}',
        b"[" * 100000,
        b"\xff\n\x00",
    ],
)
def test_an_answer_of_another_shape_is_critical(
    probe: ModuleType, settings: Any, state: Path, engine: Engine, body: bytes
) -> None:
    engine.body = body
    status, output = probe.examine(settings, state)
    assert status == "critical"
    assert output.startswith("engine's completion cannot be read: ")
    assert "\n" not in output


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"interval": float("nan")}, "interval: nan. Give a finite number of seconds above 0 to 604800."),
        ({"timeout": 0}, "timeout: 0.0. Give a finite number of seconds above 0 to 604800."),
        ({"units": {"node1-iu0": {"port": 0}}}, "port: 0. Give a port of 1 to 65535."),
    ],
)
def test_numbers_that_cannot_be_used_are_refused(
    probe: ModuleType, tmp_path: Path, engine: Engine, consul: FakeConsul, change: dict[str, Any], words: str
) -> None:
    path = config(tmp_path, engine, consul)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError, match="iu_probe") as caught:
        probe.load(path, "node1-iu0")
    assert str(caught.value) == f"{path}: unit node1-iu0: {words}"

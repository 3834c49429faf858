# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module token_probe on captured readings and on a live socket that refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _capture
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._token_probe import from_dict
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence
from ansible_collections.ai_infra.gpu_rack.plugins.modules import token_probe

UNITS = [{"id": "n-iu0", "port": 1, "numa_node": 0}, {"id": "n-iu1", "port": 2}]
BODY = json.dumps({"choices": [{"text": " a"}], "usage": {"completion_tokens": 1}})
GOOD = {
    "health": {"status": 200, "body": "", "error": "", "seconds": 0.001},
    "completion": {"status": 200, "body": BODY, "error": "", "seconds": 0.25},
    "model": "m",
}
WEDGED = GOOD | {"completion": {"status": None, "body": "", "error": "no whole answer within 10.0 s", "seconds": 10.0}}
ACTIVE = "ActiveState=active\nSubState=running\nResult=success\nExecMainStatus=0\nNRestarts=0\n"
FAILED = "ActiveState=failed\nSubState=failed\nResult=exit-code\nExecMainStatus=1\nNRestarts=5\n"


class Ended(Exception):
    def __init__(self, failed: bool, result: dict[str, Any]) -> None:
        super().__init__(result.get("msg", ""))
        self.failed = failed
        self.result = result


@pytest.fixture(autouse=True)
def module(monkeypatch: pytest.MonkeyPatch) -> None:
    def end(failed: bool, result: dict[str, Any]) -> None:
        raise Ended(failed, result)

    monkeypatch.setattr(AnsibleModule, "exit_json", lambda _self, **result: end(False, result))
    monkeypatch.setattr(AnsibleModule, "fail_json", lambda _self, **result: end(True, result))


def run(**options: Any) -> tuple[bool, dict[str, Any]]:
    with patch_module_args({"units": UNITS, **options}), pytest.raises(Ended) as info:
        token_probe.main()
    return info.value.failed, info.value.result


def capture(directory: Path, unit: str, reading: Any, state: str = ACTIVE, journal: str = "") -> None:
    (directory / f"{unit}.json").write_text(json.dumps(reading))
    (directory / f"{unit}.systemctl.txt").write_text(state)
    (directory / f"{unit}.journal.txt").write_text(journal)


def verdicts(result: dict[str, Any]) -> list[str]:
    return [c["verdict"] for c in result["checks"]]


def test_both_units_pass(tmp_path: Path) -> None:
    capture(tmp_path, "n-iu0", GOOD)
    capture(tmp_path, "n-iu1", GOOD)
    failed, result = run(captured=str(tmp_path))
    assert not failed
    assert (result["verdict"], verdicts(result)) == ("pass", ["pass", "pass"])
    assert result["seconds"] == {"n-iu0": 0.25, "n-iu1": 0.25}
    assert result["checks"][0]["check"] == "token_probe.token"


def test_one_bad_unit_fails_the_gate_and_is_named(tmp_path: Path) -> None:
    capture(tmp_path, "n-iu0", GOOD)
    capture(tmp_path, "n-iu1", GOOD, FAILED, "model.safetensors: FAILED\n")
    failed, result = run(captured=str(tmp_path))
    assert failed
    assert verdicts(result) == ["pass", "fail"]
    assert "token_probe.token n-iu1" in result["msg"]
    assert "model.safetensors" in result["msg"]
    assert result["seconds"] == {"n-iu0": 0.25}


def test_wedged_engine_fails(tmp_path: Path) -> None:
    capture(tmp_path, "n-iu0", WEDGED)
    failed, result = run(captured=str(tmp_path), units=UNITS[:1])
    assert failed
    assert "engine answers /health but generates no token" in result["msg"]


def test_missing_captures_are_unknown_and_block(tmp_path: Path) -> None:
    failed, result = run(captured=str(tmp_path))
    assert failed
    assert verdicts(result) == ["unknown", "unknown"]


def test_enforce_off_only_tells(tmp_path: Path) -> None:
    failed, result = run(captured=str(tmp_path), enforce=False)
    assert not failed
    assert result["verdict"] == "unknown"


def test_one_file_holds_one_reading(tmp_path: Path) -> None:
    (tmp_path / "reading.json").write_text(json.dumps(GOOD))
    failed, result = run(captured=str(tmp_path / "reading.json"), units=UNITS[:1])
    assert not failed
    assert result["checks"][0]["value"] == 0.25
    assert run(captured=str(tmp_path / "reading.json"), units=UNITS[:1], max_seconds=0.2)[0]


def test_stored_result_of_a_live_run_gives_the_same_verdict_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tool(argv: list[str], timeout: float) -> Evidence:
        failed = "vllm@n-iu1.service" in argv
        shown = FAILED if failed else ACTIVE
        return Evidence(shlex.join(argv), 0, "RuntimeError: x\n" if argv[0] == "journalctl" else shown)

    monkeypatch.setattr(_capture, "run", tool)
    monkeypatch.setattr(token_probe, "probe", lambda *_args: from_dict(GOOD))
    _failed, first = run(evidence_dir=str(tmp_path), enforce=False)
    assert verdicts(first) == ["pass", "fail"]
    assert "RuntimeError: x" in first["summary"]
    stored = tmp_path / "token_probe.json"
    assert stored.stat().st_mode & 0o777 == 0o600
    _failed, second = run(captured=str(stored), enforce=False)
    assert second["checks"] == first["checks"]


def test_units_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "inference_units.json"
    failed, result = run(units=None, units_file=str(file), captured=str(tmp_path))
    assert failed
    assert "Run the gate inference_units first" in result["msg"]
    file.write_text(json.dumps({"units": UNITS[:1]}))
    assert (
        run(units=None, units_file=str(file), captured=str(tmp_path), enforce=False)[1]["checks"][0]["subject"]
        == "n-iu0"
    )


def test_live_without_systemd_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(argv: list[str], timeout: float) -> Evidence:
        return Evidence(shlex.join(argv), None, "", "", 0.0, "could not start: No such file or directory")

    monkeypatch.setattr(_capture, "run", missing)
    failed, result = run()
    assert failed
    assert verdicts(result) == ["unknown", "unknown"]


def test_one_file_is_no_reading_of_two_units(tmp_path: Path) -> None:
    file = tmp_path / "reading.json"
    file.write_text(json.dumps(GOOD))
    failed, result = run(captured=str(file))
    assert failed
    assert verdicts(result) == ["unknown", "unknown"]
    assert result["checks"][1]["reason"] == f"{file} holds one reading, and there are 2 units"
    assert result["seconds"] == {}


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("wait", "nan", "wait: nan. Give a finite number of seconds from 0 to 604800."),
        ("wait", "inf", "wait: inf. Give a finite number of seconds from 0 to 604800."),
        ("wait", -1, "wait: -1.0. Give a finite number of seconds from 0 to 604800."),
        ("timeout", "nan", "timeout: nan. Give a finite number of seconds above 0 to 604800."),
        ("timeout", 0, "timeout: 0.0. Give a finite number of seconds above 0 to 604800."),
        ("max_seconds", "inf", "max_seconds: inf. Give a finite number of seconds above 0 to 604800."),
    ],
)
def test_a_time_that_never_ends_is_refused(option: str, value: Any, words: str) -> None:
    failed, result = run(**{option: value})
    assert (failed, result["msg"]) == (True, f"token_probe: {words}")


def test_a_binary_units_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "inference_units.json"
    file.write_bytes(b"\xff\x00")
    failed, result = run(units=None, units_file=str(file))
    assert failed
    assert result["msg"] == (
        f"token_probe: units_file: {file} is not readable JSON (UnicodeDecodeError). "
        "Run the gate inference_units again."
    )

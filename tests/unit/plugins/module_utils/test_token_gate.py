# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The judgement of one unit."""

from __future__ import annotations

import json

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _token_gate as gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._token_probe import Answer, Reading
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

ACTIVE = "ActiveState=active\nSubState=running\nResult=success\nExecMainStatus=0\nNRestarts=0\n"
STARTING = "ActiveState=activating\nSubState=start-post\nResult=success\nExecMainStatus=0\nNRestarts=0\n"
FAILED = "ActiveState=failed\nSubState=failed\nResult=exit-code\nExecMainStatus=1\nNRestarts=5\n"
AGAIN = "ActiveState=activating\nSubState=auto-restart\nResult=exit-code\nExecMainStatus=1\nNRestarts=0\n"
STOPPED = "ActiveState=inactive\nSubState=dead\nResult=success\nExecMainStatus=0\nNRestarts=0\n"
BODY = json.dumps({"choices": [{"text": " a"}], "usage": {"completion_tokens": 1}})


def reading(seconds: float = 0.0124) -> Reading:
    return Reading(Answer(200, "", "", 0.001), Answer(200, BODY, "", seconds), "m")


WEDGED = Reading(Answer(200), Answer(None, "", "no whole answer within 5.0 s", 5.0), "m")
JOURNAL = """model.safetensors: FAILED
sha256sum: WARNING: 1 computed checksum did NOT match
vllm@n-iu0.service: Control process exited, code=exited, status=1/FAILURE
model.safetensors: FAILED
tokenizer.json: FAILED open or read
"""
CRASH = """Starting vllm@n-iu0.service - vLLM inference unit n-iu0...
Traceback (most recent call last):
RuntimeError: Engine core initialization failed.
vllm@n-iu0.service: Main process exited, code=exited, status=1/FAILURE
vllm@n-iu0.service: Failed with result 'exit-code'.
Failed to start vllm@n-iu0.service - vLLM inference unit n-iu0.
"""


@pytest.mark.parametrize(
    ("state", "journal", "seen", "verdict", "value", "words"),
    [
        (ACTIVE, "", reading(), "pass", 0.012, "a token was generated"),
        (ACTIVE, "", reading(5.0), "pass", 5.0, "a token was generated"),
        (ACTIVE, "", reading(5.001), "fail", 5.001, "too slowly"),
        (ACTIVE, "", WEDGED, "fail", None, "answers /health but generates no token"),
        (STARTING, "", WEDGED, "fail", None, "; unit is activating (start-post)"),
        (STARTING, "", reading(), "fail", 0.012, "the start has not ended; unit is activating (start-post)"),
        (FAILED, JOURNAL, None, "fail", None, "manifest: model.safetensors, tokenizer.json"),
        (FAILED, CRASH, None, "fail", None, "RuntimeError: Engine core initialization failed."),
        (FAILED, "", None, "fail", None, "unit is failed (exit-code, 5 restarts), its journal is empty"),
        (AGAIN, "", reading(), "fail", None, "unit is activating (auto-restart, exit-code)"),
        (STOPPED, "", None, "fail", None, "unit is inactive (dead)"),
        ("", "", reading(), "unknown", None, "systemd says nothing"),
        (ACTIVE[: ACTIVE.index("NRestarts")], "", reading(), "unknown", None, "not whole, it lacks NRestarts"),
        (ACTIVE.replace("Restarts=0", "Restarts="), "", reading(), "unknown", None, "it lacks NRestarts"),
        (ACTIVE.replace("Restarts=0", "Restarts=x"), "", reading(), "unknown", None, "read: NRestarts=x"),
        (ACTIVE.rstrip(), "", reading(), "unknown", None, "does not end in a newline"),
        ("ActiveState=activ", "", reading(), "unknown", None, "systemd says nothing"),
        (FAILED[:20], "", None, "fail", None, "unit is failed"),
        (ACTIVE, "", None, "unknown", None, "no reading of the probe"),
        (None, "", reading(), "pass", 0.012, "a token was generated"),
        (None, "", None, "unknown", None, "no reading of the probe"),
    ],
)
def test_judge_unit(
    state: str | None, journal: str, seen: Reading | None, verdict: str, value: float | None, words: str
) -> None:
    check = gate.judge_unit("n-iu0", state, journal, seen, 5.0)
    assert (check.check, check.subject, check.verdict, check.value) == ("token_probe.token", "n-iu0", verdict, value)
    assert (check.limit, check.limit_source) == (5.0, "option max_seconds")
    assert words in check.reason
    assert bool(check.remedy) is (verdict != "pass")


def test_last_words_leave_systemd_out_unless_there_is_nothing_else() -> None:
    assert (
        gate.last_words(CRASH)
        == "Traceback (most recent call last): | RuntimeError: Engine core initialization failed."
    )
    assert gate.last_words("Started vllm@x.service - y\n") == "Started vllm@x.service - y"
    assert gate.last_words("\n") == ""


def test_state_is_read_and_written() -> None:
    state = gate.parse_state(STARTING)
    assert state is not None
    assert (state.starting, state.serving, str(state)) == (True, False, "activating (start-post)")
    second_try = gate.parse_state(STARTING.replace("NRestarts=0", "NRestarts=1"))
    assert second_try is not None
    assert not second_try.starting
    assert gate.parse_state("garbage") is None


def test_reading_that_is_not_one_is_none() -> None:
    assert gate.parse_reading(None) is None
    assert gate.parse_reading(Evidence("x", 0, "[1]")) is None
    assert gate.parse_reading(Evidence("x", 0, "{")) is None
    assert gate.parse_reading(Evidence("x", None, "", "", None, "no such reading")) is None
    assert gate.parse_reading(Evidence("x", 0, json.dumps(reading().as_dict()))) == reading()


@pytest.mark.parametrize("data", [[], {}, {"units": [{"id": "x"}]}, {"units": [{"id": "x", "port": "8000"}]}, [3]])
def test_units_without_id_or_port_are_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"^units: the file"):
        gate.units_of(data, "the file")


def test_a_number_of_restarts_is_ascii() -> None:
    for text, restarts in (("12", 12), ("²", None), ("\uff11\uff12", None), ("9" * 5000, None), ("-1", None)):
        state = gate.parse_state(ACTIVE.replace("NRestarts=0", f"NRestarts={text}"))
        assert state is not None
        assert state.restarts == restarts


def test_json_too_deep_is_no_reading() -> None:
    assert gate.parse_reading(Evidence("x", 0, "[" * 100000)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"id": 5},
        {"id": "../x"},
        {"id": "a b"},
        {"id": "a\n"},
        {"id": "-a"},
        {"id": "²"},
        {"port": True},
        {"port": 0},
        {"port": 65536},
        {"port": 8000.0},
        {"address": 5},
        {"address": "a\r\nX: y"},
        {"model": ["m"]},
    ],
)
def test_a_unit_that_cannot_be_probed_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="the file has a unit without a usable id, port, address or model"):
        gate.units_of([{"id": "n-iu0", "port": 8000, **change}], "the file")


def test_units_are_read_with_their_defaults() -> None:
    assert gate.units_of([{"id": "n.a-iu0", "port": 65535, "model": None}], "the file") == [
        {"id": "n.a-iu0", "port": 65535, "address": "127.0.0.1", "model": ""}
    ]
    with pytest.raises(ValueError, match="the file has the id a more than once"):
        gate.units_of([{"id": "a", "port": 1}, {"id": "a", "port": 2}], "the file")


@pytest.mark.parametrize(
    ("raw", "error"),
    [(b"\xff\x00", "UnicodeDecodeError"), (b"[" * 100000, "RecursionError"), (b"{", "JSONDecodeError")],
)
def test_a_units_file_that_cannot_be_read_is_named(raw: bytes, error: str) -> None:
    with pytest.raises(ValueError, match="units_file") as caught:
        gate.parse_units(raw, "/x.json")
    assert str(caught.value) == (
        f"units_file: /x.json is not readable JSON ({error}). Run the gate inference_units again."
    )

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module consul_kv against a fake Consul."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import consul_kv

from tests.unit.consul_fake import FakeConsul
from tests.unit.module_runner import Run, runner

KEY = "gpu_rack/nodes/node1"


@pytest.fixture
def consul() -> Iterator[FakeConsul]:
    fake = FakeConsul(token="s3cret-token")
    yield fake
    fake.close()


@pytest.fixture
def run(consul: FakeConsul, capsys: pytest.CaptureFixture[str]) -> Run:
    base = runner(consul_kv, capsys)
    return lambda **args: base(**{"address": consul.address, "token": "s3cret-token", "key": KEY, **args})


def test_a_key_is_made_kept_changed_and_removed(run: Run, consul: FakeConsul) -> None:
    assert run(value={"b": 1, "a": [2]}, check_mode=True)["changed"] is True
    assert consul.kv == {}
    assert run(value={"b": 1, "a": [2]})["changed"] is True
    assert consul.kv[KEY] == b'{"a":[2],"b":1}'
    assert run(value={"a": [2], "b": 1})["changed"] is False
    changed = run(value={"b": 2})
    assert changed["value"] == {"a": [2], "b": 1}
    assert changed["diff"]["after"] == '{\n "b": 2\n}\n'
    assert run(state="absent")["changed"] is True
    assert run(state="absent")["changed"] is False
    assert consul.kv == {}


def test_a_new_measurement_is_stored_and_is_no_change(run: Run, consul: FakeConsul) -> None:
    run(value={"verdict": "pass", "time": 1}, volatile=["time"])
    again = run(value={"verdict": "pass", "time": 2}, volatile=["time"])
    assert again["changed"] is False
    assert json.loads(consul.kv[KEY])["time"] == 2
    assert run(value={"verdict": "fail", "time": 3}, volatile=["time"])["changed"] is True


def test_check_mode_does_not_store_a_new_measurement(run: Run, consul: FakeConsul) -> None:
    run(value={"verdict": "pass", "time": 1}, volatile=["time"])
    run(value={"verdict": "pass", "time": 2}, volatile=["time"], check_mode=True)
    assert json.loads(consul.kv[KEY])["time"] == 1


def test_a_plain_text_stays_a_text(run: Run, consul: FakeConsul) -> None:
    run(value="hello")
    assert consul.kv[KEY] == b"hello"
    assert run(value="hello")["changed"] is False


def test_a_refused_token_fails_with_what_to_do_and_without_the_token(run: Run) -> None:
    result = run(value="x", token="wrong-token")
    assert result["failed"] is True
    assert "HTTP 403 Permission denied" in result["msg"]
    assert "Check the address, the token" in result["msg"]
    assert "wrong-token" not in json.dumps(result)


def test_no_consul_is_an_error_but_not_in_check_mode_on_a_bare_rack(run: Run, consul: FakeConsul) -> None:
    consul.close()
    assert "no answer" in run(value="x")["msg"]
    assert run(value="x", check_mode=True)["changed"] is True


def test_a_wrong_address_names_the_right_form(run: Run) -> None:
    assert run(value="x", address="ftp://head1")["msg"] == (
        "Consul address: 'ftp://head1'. Use http://host:8500 or https://host:8501."
    )

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module consul_acl against a fake Consul."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import consul_acl

from tests.unit.consul_fake import MANAGEMENT, FakeConsul
from tests.unit.module_runner import Run, runner

SECRET = "22222222-2222-4222-8222-222222222222"
POLICY = {"name": "agent", "description": "Agents", "rules": 'node_prefix "" { policy = "write" }\n'}
TOKEN = {"description": "agents", "secret": SECRET, "policies": ["agent"]}


@pytest.fixture
def consul() -> Iterator[FakeConsul]:
    fake = FakeConsul()
    yield fake
    fake.close()


@pytest.fixture
def run(consul: FakeConsul, capsys: pytest.CaptureFixture[str]) -> Run:
    base = runner(consul_acl, capsys)
    standard = {"address": consul.address, "token": MANAGEMENT, "policies": [POLICY], "tokens": [TOKEN], "wait": 0.1}
    return lambda **args: base(**{**standard, **args})


def test_policies_and_tokens_are_made_once(run: Run, consul: FakeConsul) -> None:
    assert run(check_mode=True)["changed"] is True
    assert consul.policies == {}
    first = run()
    assert (first["policies"], first["tokens"]) == (["agent"], ["agents"])
    assert consul.tokens[SECRET]["Policies"] == [{"Name": "agent"}]
    assert SECRET not in json.dumps(first)
    again = run()
    assert (again["changed"], again["policies"], again["tokens"]) == (False, [], [])


def test_changed_rules_and_policies_are_brought_back(run: Run, consul: FakeConsul) -> None:
    run()
    next(iter(consul.policies.values()))["Rules"] = 'node_prefix "" { policy = "read" }'
    consul.tokens[SECRET]["Policies"] = []
    drift = run(check_mode=True)
    assert (drift["policies"], drift["tokens"]) == (["agent"], ["agents"])
    run()
    assert next(iter(consul.policies.values()))["Rules"] == POLICY["rules"]
    assert consul.tokens[SECRET]["Policies"] == [{"Name": "agent"}]
    assert len(consul.policies) == 1


def test_a_policy_that_someone_gave_to_anonymous_is_taken_away(run: Run, consul: FakeConsul) -> None:
    run()
    consul.tokens["anonymous"]["Policies"] = [{"Name": "global-management"}]
    assert run()["tokens"] == ["anonymous"]
    assert consul.tokens["anonymous"]["Policies"] == []


def test_a_secret_that_is_no_uuid_is_refused_by_its_description(run: Run) -> None:
    result = run(tokens=[{**TOKEN, "secret": "abcdefghi"}])
    assert result["msg"] == "token 'agents': its secret is not a UUID. Make one with uuidgen."


def test_a_wrong_management_token_is_reported_after_the_wait(run: Run) -> None:
    result = run(token="33333333-3333-4333-8333-333333333333")
    assert "HTTP 403 ACL not found, 0.1 s waited" in result["msg"]


def test_check_mode_before_consul_runs_reports_everything(run: Run, consul: FakeConsul) -> None:
    consul.close()
    result = run(check_mode=True)
    assert (result["changed"], result["policies"], result["tokens"]) == (True, ["agent"], ["agents"])

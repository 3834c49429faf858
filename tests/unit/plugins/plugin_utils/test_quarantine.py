# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The record of a quarantine, and the action that writes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.action import quarantine
from ansible_collections.ai_infra.gpu_rack.plugins.plugin_utils._quarantine import clean, record

from tests.unit.consul_fake import FakeConsul

NEXT = "ansible-playbook site.yml --limit node3"
LINK = {
    "check": "nvlink_topology.links",
    "subject": "gpu 0 - gpu 3",
    "verdict": "fail",
    "value": 17,
    "limit": 18,
    "unit": "links",
    "limit_source": "board profile hgx_h100_8",
    "reason": "one link is down",
    "remedy": "Reseat the board.",
}
PASSED = {**LINK, "verdict": "pass", "subject": "gpu 0 - gpu 1", "value": 18}
SILENT = {**LINK, "verdict": "unknown", "subject": "gpu 7", "value": None}


def make(result: dict[str, Any], task: dict[str, Any] | None = None) -> dict[str, Any]:
    return record("node3", "hardware", task or {"name": "Judge the links"}, result, NEXT)


def test_a_failed_gate_gives_its_worst_check() -> None:
    made = make({"msg": "nvlink_topology.links: fail", "checks": [PASSED, SILENT, LINK]})
    assert made == {
        "node": "node3",
        "stage": "hardware",
        "task": "Judge the links",
        "reason": "one link is down",
        "next_command": NEXT,
        "check": "nvlink_topology.links",
        "subject": "gpu 0 - gpu 3",
        "verdict": "fail",
        "value": 17,
        "limit": 18,
        "unit": "links",
        "limit_source": "board profile hgx_h100_8",
        "remedy": "Reseat the board.",
    }


def test_a_plain_failure_names_the_task() -> None:
    made = make({"msg": "No package matching 'x'"}, {"name": "", "action": "ansible.builtin.apt"})
    assert (made["reason"], made["check"], made["verdict"]) == (
        "ansible.builtin.apt: No package matching 'x'",
        None,
        "fail",
    )


def test_the_failed_item_of_a_loop_is_the_reason() -> None:
    items = [{"msg": "fine"}, {"failed": True, "msg": "disk full"}]
    assert make({"msg": "One or more items failed", "results": items})["reason"] == "Judge the links: disk full"


@pytest.mark.parametrize(
    ("task", "result"),
    [
        pytest.param({"name": "t", "no_log": True}, {"msg": "hunter2"}, id="the task asks for no log"),
        pytest.param({"name": "t"}, {"msg": "hunter2", "_ansible_no_log": True}, id="the result does"),
        pytest.param({"name": "t"}, {"censored": "hidden", "msg": "hunter2"}, id="it is censored"),
    ],
)
def test_what_may_hold_a_secret_is_withheld(task: dict[str, Any], result: dict[str, Any]) -> None:
    assert "hunter2" not in json.dumps(make(result, task))


def test_output_arguments_and_invocation_are_never_used() -> None:
    secrets = {"stdout": "hunter2", "stderr": "hunter2", "cmd": ["x", "hunter2"], "invocation": {"p": "hunter2"}}
    assert "hunter2" not in json.dumps(make({"msg": "non-zero return code", **secrets}))


def test_a_reason_is_one_line_of_bounded_length() -> None:
    assert clean("a\n\tb\x1b[31mc") == "a b [31mc"
    assert len(clean("x" * 5000)) == 1000


def test_what_happened_on_the_node_is_told() -> None:
    assert quarantine.outcome_on_node({"changed": True}) == (True, [])
    assert quarantine.outcome_on_node({"changed": False}) == (False, [])
    assert quarantine.outcome_on_node({"failed": True, "msg": "disk full"}) == (
        False,
        ["the quarantine could not be written to the node: disk full"],
    )
    assert quarantine.outcome_on_node({"unreachable": True, "msg": "no route"})[1] == [
        "the quarantine could not be written to the node: no route"
    ]


@pytest.fixture
def consul() -> Iterator[FakeConsul]:
    fake = FakeConsul(token="s3cret")
    yield fake
    fake.close()


def args(consul: FakeConsul, **changes: Any) -> dict[str, Any]:
    standard = {"consul_address": consul.address, "consul_token": "s3cret", "consul_ca_path": None, "run": "r1"}
    return {**standard, **changes}


def test_the_controller_records_the_reason_in_consul(consul: FakeConsul) -> None:
    assert quarantine.in_consul(args(consul), make({"msg": "x", "checks": [LINK]}), 5.0) == []
    stored = json.loads(consul.kv["gpu_rack/nodes/node3"])
    assert (stored["verdict"], stored["run"], stored["time"]) == ("fail", "r1", 5.0)
    assert stored["quarantine"]["value"] == 17


def test_a_consul_that_cannot_be_told_is_a_visible_warning(consul: FakeConsul) -> None:
    refused = quarantine.in_consul(args(consul, consul_token="wrong"), make({"msg": "x"}), 5.0)
    assert "could not be recorded in Consul: PUT" in refused[0]
    assert "wrong" not in refused[0]
    consul.close()
    assert "no answer" in quarantine.in_consul(args(consul), make({"msg": "x"}), 5.0)[0]
    assert "Consul address" in quarantine.in_consul(args(consul, consul_address="x://y"), make({"msg": "x"}), 5.0)[0]


def test_without_an_address_nothing_is_recorded_and_nothing_warned(consul: FakeConsul) -> None:
    assert quarantine.in_consul(args(consul, consul_address=""), make({"msg": "x"}), 5.0) == []

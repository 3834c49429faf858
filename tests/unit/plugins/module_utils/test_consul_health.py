# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Node and services together, as Consul shows them."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _consul_health
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, worst

HEALTHY: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "consul-1.8-health-node.json").read_text()
)
UNITS = ["node1-iu0", "node1-iu1"]


def changed(**changes: Any) -> list[dict[str, Any]]:
    """Return the healthy answer with changes by check: iu0, iu1 and serf; None removes the check."""
    checks = copy.deepcopy(HEALTHY)
    for key, change in changes.items():
        at = next(
            n for n, check in enumerate(checks) if check["CheckID"].endswith({"serf": "serfHealth"}.get(key, key))
        )
        if change is None:
            del checks[at]
        else:
            checks[at].update(change)
    return checks


def maintenance(service: str = "", reason: str = "replace the optics of mlx5_3") -> dict[str, Any]:
    check = f"_service_maintenance:{service}" if service else "_node_maintenance"
    return {
        "Node": "node1", "CheckID": check, "Name": "Service Maintenance Mode", "Status": "critical", "Notes": reason,
        "Output": "", "ServiceID": service, "ServiceName": "vllm" if service else "",
    }  # fmt: skip


def checks_of(
    data: Any, node: str | None = "node1", services: list[str] | None = None, mode: Any = "fail"
) -> list[Check]:
    text = data if isinstance(data, str) else json.dumps(data)
    return _consul_health.judge(Evidence("GET x", 0, text), node, UNITS if services is None else services, mode)


def judge(data: Any, **options: Any) -> tuple[str, Check]:
    checks = checks_of(data, **options)
    verdict = worst(c.verdict for c in checks)
    return verdict, next(c for c in checks if c.verdict == verdict)


def test_healthy_node() -> None:
    checks = checks_of(HEALTHY)
    assert {c.verdict for c in checks} == {"pass"}
    assert [(c.check, c.subject) for c in checks] == [
        ("consul_health.serf", "node1"),
        ("consul_health.check", "node1 node1-iu0: iu:node1-iu0"),
        ("consul_health.check", "node1 node1-iu1: iu:node1-iu1"),
        ("consul_health.service", "node1 node1-iu0"),
        ("consul_health.service", "node1 node1-iu1"),
    ]
    assert checks[1].reason == "a token was generated: token in 0.213 s"
    assert judge(HEALTHY, node=None, services=[])[0] == "pass"
    assert judge(HEALTHY, node="NODE1")[0] == "pass"
    assert judge(HEALTHY, services=["vllm"])[0] == "pass"


def test_dead_agent_makes_passing_services_stale() -> None:
    dead = changed(serf={"Status": "critical", "Output": "Agent not live or unreachable"})
    checks = checks_of(dead)
    stale = [c for c in checks if c.check == "consul_health.stale"]
    assert [c.subject for c in stale] == [f"node1 {unit}: iu:{unit}" for unit in UNITS]
    assert all("Agent not live or unreachable" in c.reason for c in stale)
    assert {c.verdict for c in checks} == {"fail"}
    assert [c.value for c in checks if c.check == "consul_health.service"] == ["critical", "critical"]
    assert judge(dead, services=[])[0] == "fail"


def test_missing_serf_health_is_unknown() -> None:
    verdict, check = judge(changed(serf=None))
    assert (verdict, check.check) == ("unknown", "consul_health.serf")
    assert {c.verdict for c in checks_of(changed(serf=None)) if c.check == "consul_health.service"} == {"unknown"}


def test_critical_check_is_quoted() -> None:
    verdict, check = judge(
        changed(iu1={"Status": "critical", "Output": "TTL expired\n(last output before timeout follows): x"})
    )
    assert (verdict, check.subject) == ("fail", "node1 node1-iu1: iu:node1-iu1")
    assert "TTL expired (last output before timeout follows): x" in check.reason


def test_warning_is_a_warning() -> None:
    verdict, check = judge(changed(iu0={"Status": "warning", "Output": "slow"}))
    assert (verdict, check.value) == ("warn", "warning")


def test_unknown_status() -> None:
    assert judge(changed(iu0={"Status": "fine"}))[0] == "unknown"
    assert judge(changed(serf={"Status": "left"}))[0] == "unknown"


def test_expected_service_that_is_absent() -> None:
    verdict, check = judge(changed(iu1=None))
    assert (verdict, check.subject, check.value) == ("fail", "node1 node1-iu1", "absent")
    assert "services with checks on the node: node1-iu0" in check.reason
    only = [*changed(iu1=None), maintenance("node1-iu1")]
    assert [c.value for c in checks_of(only) if c.subject == "node1 node1-iu1"] == ["absent"]


@pytest.mark.parametrize("mode", ["fail", "warn"])
def test_maintenance_is_told_from_a_failure(mode: str) -> None:
    data = [*HEALTHY, maintenance("node1-iu0")]
    checks = checks_of(data, mode=mode)
    assert worst(c.verdict for c in checks) == mode
    (check,) = [c for c in checks if c.check == "consul_health.maintenance"]
    assert check.reason == "in maintenance mode: replace the optics of mlx5_3"
    values = {c.subject: c.value for c in checks if c.check == "consul_health.service"}
    assert values == {"node1 node1-iu0": "maintenance", "node1 node1-iu1": "passing"}
    node = checks_of([*HEALTHY, maintenance()], mode=mode)
    assert [c.value for c in node if c.check == "consul_health.service"] == ["maintenance", "maintenance"]
    both = [*changed(iu0={"Status": "critical"}), maintenance("node1-iu0")]
    assert judge(both, mode=mode)[0] == "fail", "a failure is not hidden by a maintenance"


def test_check_of_the_node_counts() -> None:
    disk = {"Node": "node1", "CheckID": "disk", "Name": "disk", "Status": "critical", "Output": "full", "ServiceID": ""}
    checks = checks_of([*HEALTHY, disk])
    assert worst(c.verdict for c in checks) == "fail"
    assert next(c for c in checks if c.check == "consul_health.service").reason == (
        "it takes no traffic: disk is critical (full)"
    )


def test_other_forms_of_the_api() -> None:
    serf, own = HEALTHY[2], HEALTHY[:2]
    entries = [
        {"Node": {"Node": "node1"}, "Service": {"ID": c["ServiceID"], "Service": "vllm"}, "Checks": [serf, c]}
        for c in own
    ]
    assert judge(entries)[0] == "pass"
    assert judge({c["CheckID"]: c for c in own})[0] == "unknown", "/v1/agent/checks has no serfHealth"
    other = [{**c, "Node": "node2"} for c in HEALTHY]
    other[2]["Status"] = "critical"
    assert judge([*HEALTHY, *other])[0] == "pass"
    assert judge([*HEALTHY, *other], node=None, services=[])[0] == "fail"


BAD: dict[str, Any] = {
    "empty": "",
    "HTML": "<html>502 Bad Gateway</html>",
    "no list": "7",
    "error": {"error": "x"},
    "no checks": [{"Checks": None}],
    "no status": [{"Node": "node1", "CheckID": "serfHealth"}],
    "status no text": [{"Node": "node1", "CheckID": "serfHealth", "Status": 1}],
    "output no text": [{"Node": "node1", "CheckID": "serfHealth", "Status": "passing", "Output": 1}],
    "contradiction": [*HEALTHY, {**HEALTHY[2], "Status": "critical"}],
    "nobody": [],
    "another node": [{**check, "Node": "node2"} for check in HEALTHY],
    "null": "null",
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD.keys())
def test_answers_that_prove_nothing(data: Any) -> None:
    assert judge(data)[0] == "unknown"
    assert judge(data, services=[])[0] == "unknown"


def test_checks_are_documented() -> None:
    names = {c.check for data in (HEALTHY, [], "", [*HEALTHY, maintenance()]) for c in checks_of(data)}
    assert names <= set(_consul_health.CHECKS)


PROGRESS = (
    "  % Total    % Received % Xferd  Average Speed   Time    Time     Time  Current\n"
    "                                 Dload  Upload   Total   Spent    Left  Speed\n"
    "\r  0     0    0     0    0     0      0      0 --:--:-- --:--:-- --:--:--     0"
    "\r100 10444    0 10444    0     0   285k      0 --:--:-- --:--:-- --:--:--  291k\n"
)
HEAD = "HTTP/1.1 200 OK\nContent-Type: application/json\nX-Consul-Knownleader: true\n\n"


def test_what_curl_writes_before_the_answer() -> None:
    text = json.dumps(HEALTHY, indent=4)
    assert _consul_health.parse(PROGRESS + text) == _consul_health.parse(text)
    assert _consul_health.parse(HEAD + text) == _consul_health.parse(text)
    for other in ("HTTP/1.1 500 Internal Server Error\n\n", "rpc error making call: No cluster leader\n", "]\n"):
        assert _consul_health.parse(other + text)[1] is not None

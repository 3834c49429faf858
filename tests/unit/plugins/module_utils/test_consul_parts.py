# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure parts behind the Consul roles: option names, unit states, headlines, quarantine records."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _consul_config, _membership, _systemd
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._consul import Consul


@pytest.mark.parametrize(
    ("text", "version"),
    [
        pytest.param("Consul v1.8.7\nProtocol 2 spoken by default\n", (1, 8, 7), id="Debian's"),
        pytest.param("Consul v1.18.2\nRevision 68f81912\n", (1, 18, 2), id="new"),
        pytest.param("Consul v1.15.4+ent\n", (1, 15, 4), id="enterprise"),
        pytest.param("consul: not found\n", None, id="no Consul"),
        pytest.param("", None, id="nothing"),
    ],
)
def test_the_version_is_read_or_unknown(text: str, version: tuple[int, int, int] | None) -> None:
    assert _consul_config.parse_version(text) == version


@pytest.mark.parametrize(
    ("version", "name"),
    [
        pytest.param((1, 8, 7), "master", id="1.8.7"),
        pytest.param((1, 10, 12), "master", id="the last with the old name"),
        pytest.param((1, 11, 0), "initial_management", id="the first with the new name"),
        pytest.param(None, "initial_management", id="not installed yet"),
    ],
)
def test_the_management_token_has_the_name_that_the_version_knows(
    version: tuple[int, int, int] | None, name: str
) -> None:
    text = _consul_config.secrets("key", {"initial_management": "m", "agent": "a"}, version)
    assert json.loads(text or "") == {"encrypt": "key", "acl": {"tokens": {name: "m", "agent": "a"}}}


def test_no_secret_is_no_file() -> None:
    assert _consul_config.secrets(None, {}, (1, 8, 7)) is None


def show(active: str = "active", microseconds: str = "5000000") -> str:
    return (
        f"LoadState=loaded\nActiveState={active}\nUnitFileState=enabled\nNeedDaemonReload=no\n"
        f"ExecMainStartTimestampMonotonic={microseconds}\n"
    )


def test_the_start_of_a_unit_is_counted_back_on_the_monotonic_clock() -> None:
    unit = _systemd.parse_unit("consul.service", show(), wall=1000.0, monotonic=25.0)
    assert unit == _systemd.Unit("consul.service", True, True, True, False, 980.0)


def test_a_unit_that_never_ran_is_never_stale(tmp_path: Any) -> None:
    file = tmp_path / "f"
    file.write_text("x")
    unit = _systemd.parse_unit("x", show("inactive", "0"), wall=1000.0, monotonic=25.0)
    assert (unit.started, unit.active, _systemd.stale(unit, [str(file)])) == (None, False, False)


def test_a_process_older_than_its_file_is_stale(tmp_path: Any) -> None:
    file = tmp_path / "f"
    file.write_text("x")
    wall = file.stat().st_mtime + 1
    old = _systemd.parse_unit("x", show(), wall=wall, monotonic=10.0)
    young = _systemd.parse_unit("x", show(), wall=wall, monotonic=5.5)
    assert (_systemd.stale(old, [str(file)]), _systemd.stale(young, [str(file)])) == (True, False)
    assert _systemd.stale(young, [str(tmp_path / "missing")]) is False


def test_headlines_are_one_value_a_range_or_the_words_there_were() -> None:
    checks = [
        {"check": "ib_port.rate", "value": 400, "unit": "Gb/s"},
        {"check": "ib_port.rate", "value": 400, "unit": "Gb/s"},
        {"check": "ib_latency.typical", "value": 1.61, "unit": "us"},
        {"check": "ib_latency.typical", "value": 1.92, "unit": "us"},
        {"check": "ib_port.state", "value": "Active"},
        {"check": "clock_sync.offset", "value": None, "unit": "s"},
    ]
    assert _membership.measured(checks) == {
        "ib_port.rate": "400 Gb/s",
        "ib_latency.typical": "1.61..1.92 us",
        "ib_port.state": "Active",
    }
    assert _membership.measured(None) == {}


def entry(*checks: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"Service": {"ID": "node1-iu0"}, "Checks": list(checks)}]


SERF = {"CheckID": "serfHealth", "Status": "passing"}
TOKEN = {"CheckID": "iu:node1-iu0", "Status": "passing"}


@pytest.mark.parametrize(
    ("entries", "verdict"),
    [
        pytest.param(entry(SERF, TOKEN), (True, "passing"), id="everything passes"),
        pytest.param([], (False, "not in the catalog"), id="not there"),
        pytest.param(entry(TOKEN), (False, "the node has no serfHealth check"), id="no serfHealth"),
        pytest.param(entry(SERF), (False, "the token check is not in the catalog"), id="no token check"),
        pytest.param(
            entry({**SERF, "Status": "critical", "Output": "Agent not live or unreachable\n"}, TOKEN),
            (False, "serfHealth critical: Agent not live or unreachable"),
            id="dead node whose service is frozen at passing",
        ),
        pytest.param(
            entry(SERF, {**TOKEN, "Status": "warning"}), (False, "iu:node1-iu0 warning: no output"), id="warning"
        ),
    ],
)
def test_passing_needs_every_check_of_service_and_node(
    entries: list[dict[str, Any]], verdict: tuple[bool, str]
) -> None:
    assert _membership.passing(entries, "node1-iu0") == verdict


@pytest.mark.parametrize(
    ("units", "words"),
    [
        pytest.param([], "units: no inference unit is described", id="none"),
        pytest.param({"a": 1}, "units: no inference unit is described", id="no list"),
        pytest.param([{"id": "a/b"}], "units[0]: no usable id", id="an id that is a path"),
        pytest.param([{"id": "a", "port": True, "numa_node": 0, "gpus": []}], "a: gpus []", id="no GPUs"),
        pytest.param([{"id": "a", "port": 1, "numa_node": None, "gpus": []}], "a: numa_node None", id="no NUMA node"),
    ],
)
def test_a_plan_that_cannot_be_registered_says_why(units: Any, words: str) -> None:
    assert words in _membership.unit_problems(units)


def test_a_unit_over_several_numa_nodes_can_be_registered() -> None:
    unit = {"id": "a", "port": 1, "numa_node": None, "numa_nodes": [1, 3], "gpus": [{"index": 0}]}
    assert _membership.unit_problems([unit]) == []
    definition = _membership.service_definition(unit, board="b", model="m", address="", ttl=30)
    assert definition["meta"]["numa"] == "1,3"


def test_a_port_is_taken_from_the_scheme_and_a_path_is_refused() -> None:
    assert Consul("https://head1").address == "https://head1"
    assert Consul("head1:8500").address == "http://head1:8500"
    with pytest.raises(ValueError, match="Use http://host:8500"):
        Consul("http://head1/v1")

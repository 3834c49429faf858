# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The module against a Consul in this process, asked through the real py-consul."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import rack_status_info

from tests.unit.module_runner import Run, runner
from tests.unit.ports import free_port

TOKEN = "5e3c8c0e-0000-4000-8000-00000000beef"
PASS = MappingProxyType(
    {
        "verdict": "pass",
        "time": 1796064117.6,
        "run": "20261130T184126Z",
        "gates": {
            "hardware": {"verdict": "pass", "measured": {"ib_port.rate": "400 Gb/s", "clock_sync.offset": "0.0104 ms"}},
            "serving": {"verdict": "pass", "measured": {"token_probe.token": "0.011 s"}},
        },
    }
)


class Servers:
    """What a Consul server answers: nodes with their serfHealth, units with their checks, and keys."""

    def __init__(self) -> None:
        self.leader = "10.0.0.10:8300"
        self.serf = {"head1": "passing"}
        self.units: dict[str, tuple[str, list[dict[str, Any]]]] = {}
        self.kv: dict[str, Any] = {}
        self.asked: list[str] = []
        servers = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = urllib.parse.urlsplit(self.path)
                servers.asked.append(self.path)
                # Anybody may ask for the leader, as in Consul; py-consul sends no token there.
                allowed = path.path == "/v1/status/leader" or self.headers.get("X-Consul-Token") == TOKEN
                status, value = servers.answer(path.path) if allowed else (403, "ACL not found")
                data = json.dumps(value).encode()
                self.send_response(status)
                self.send_header("X-Consul-Index", "7")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def node(self, name: str, *states: str, serf: str = "passing", record: Any = PASS) -> None:
        """Add a node with a unit for each state: passing, critical, or `maintenance: why`."""
        self.serf[name] = serf
        for index, state in enumerate(states):
            unit = f"{name}-iu{index}"
            kind, _colon, why = state.partition(": ")
            output = "1 token in 0.011 s" if kind == "passing" else why
            status = "critical" if kind == "maintenance" else kind
            checks = [{"CheckID": f"iu:{unit}", "Status": status, "Output": output, "ServiceID": unit}]
            if kind == "maintenance":
                checks.append(
                    {"CheckID": f"_service_maintenance:{unit}", "Status": "critical", "Notes": why, "ServiceID": unit}
                )
            self.units[unit] = (name, checks)
        if record is not None:
            units = [f"{name}-iu{index}" for index in range(len(states))]
            self.kv[f"gpu_rack/nodes/{name}"] = {**record, "units": units} if record is PASS else record

    def answer(self, path: str) -> tuple[int, Any]:
        if path == "/v1/status/leader":
            return 200, self.leader
        if path == "/v1/catalog/nodes":
            return 200, [{"Node": name, "Address": "10.0.0.1"} for name in self.serf]
        health = {
            name: {"Node": name, "CheckID": "serfHealth", "Status": status, "Output": "Agent not live or unreachable"}
            for name, status in self.serf.items()
        }
        if path == "/v1/health/state/any":
            return 200, [*health.values(), *(c for _node, checks in self.units.values() for c in checks)]
        if path == "/v1/health/service/vllm":
            return 200, [
                {
                    "Node": {"Node": node, "Address": f"10.0.0.{node[-1]}"},
                    "Service": {"ID": unit, "Service": "vllm", "Address": "", "Port": 8000 + int(unit[-1])},
                    "Checks": [health[node], *checks],
                }
                for unit, (node, checks) in self.units.items()
            ]
        if path == "/v1/kv/gpu_rack/nodes/":
            keys = [
                {"Key": key, "Value": base64.b64encode(v if isinstance(v, bytes) else json.dumps(v).encode()).decode()}
                for key, v in self.kv.items()
            ]
            return (200, keys) if keys else (404, "")
        return 500, f"not expected: {path}"


@pytest.fixture
def servers() -> Iterator[Servers]:
    found = Servers()
    yield found
    found.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], servers: Servers) -> Run:
    module = runner(rack_status_info, capsys)
    return lambda **args: module(**{"address": servers.address, "token": TOKEN, **args})


def test_a_rack_that_serves(servers: Servers, run: Run) -> None:
    servers.node("node1", "passing", "passing")
    result = run(nodes=["node1"])
    assert result["changed"] is False
    assert result["rack"] == {
        "address": servers.address,
        "leader": "10.0.0.10:8300",
        "nodes": [
            {
                "name": "node1",
                "state": "serving",
                "serf": "passing",
                "units": [
                    {
                        "id": f"node1-iu{n}",
                        "address": "10.0.0.1",
                        "port": 8000 + n,
                        "state": "passing",
                        "note": "1 token in 0.011 s",
                    }
                    for n in (0, 1)
                ],
                "gates": {
                    "hardware": "pass: ib_port 400 Gb/s; clock_sync 0.0104 ms",
                    "serving": "pass: token_probe 0.011 s",
                },
                "reason": "",
            }
        ],
        "units_passing": 2,
        "units_total": 2,
    }
    assert result["lines"] == ["node1 serving, 2 of 2 units pass"]


def test_a_node_consul_does_not_know_is_absent(servers: Servers, run: Run) -> None:
    servers.node("node1", "passing")
    found = run(nodes=["node1", "node2"])["rack"]
    assert [n["state"] for n in found["nodes"]] == ["serving", "absent"]
    assert found["nodes"][1]["serf"] == "absent"
    assert found["nodes"][1]["gates"] == {"hardware": "no record", "serving": "no record"}
    assert found["units_total"] == 1


def test_every_node_down(servers: Servers, run: Run) -> None:
    for name in ("node1", "node2"):
        # The checks of the units stay as they were when the agent died.
        servers.node(name, "passing", "passing", serf="critical")
    found = run(nodes=["node1", "node2"], check_mode=True)["rack"]
    assert [n["state"] for n in found["nodes"]] == ["failed", "failed"]
    assert found["units_passing"] == 0
    assert found["nodes"][0]["units"][0]["note"] == "its node does not answer"
    assert found["nodes"][0]["reason"] == (
        "the node does not answer (serfHealth critical: Agent not live or unreachable)"
    )


@pytest.mark.parametrize(
    ("states", "state", "reason"),
    [
        (["passing", "critical: no answer"], "degraded", "node1-iu1 critical: no answer"),
        (["critical: no answer", "critical: no answer"], "failed", "node1-iu0, node1-iu1 critical: no answer"),
        (["critical: "], "failed", "node1-iu0 critical: no token has been generated yet"),
        (["maintenance: drained: optics"], "drained", "node1-iu0 maintenance: drained: optics"),
        (["maintenance: drained: optics", "passing"], "degraded", "node1-iu0 maintenance: drained: optics"),
        (
            ["passing", "maintenance: quarantined in hardware: NV17"],
            "quarantined",
            "node1-iu1 maintenance: quarantined in hardware: NV17",
        ),
        (
            ["critical: refused: held by root: do not touch (/var/lib/gpu_rack/hold.json)"],
            "quarantined",
            "node1-iu0 critical: refused: held by root: do not touch (/var/lib/gpu_rack/hold.json)",
        ),
        ([], "absent", "no inference unit is registered"),
    ],
)
def test_states_of_units(servers: Servers, run: Run, states: list[str], state: str, reason: str) -> None:
    servers.node("node1", *states)
    node = run(nodes=["node1"])["rack"]["nodes"][0]
    assert (node["state"], node["reason"]) == (state, reason)


def test_a_unit_that_left_the_catalog_is_missed(servers: Servers, run: Run) -> None:
    servers.node("node1", "passing", "passing")
    del servers.units["node1-iu1"]
    found = run(nodes=["node1"])["rack"]
    assert found["nodes"][0]["state"] == "degraded"
    assert found["nodes"][0]["units"][1]["state"] == "absent"
    assert (found["units_passing"], found["units_total"]) == (1, 2)


QUARANTINE = {
    "verdict": "fail",
    "time": 1796064200.0,
    "quarantine": {
        "node": "node1",
        "stage": "hardware",
        "task": "Judge the links",
        "check": "nvlink_topology.matrix",
        "subject": "GPU0-GPU2",
        "verdict": "fail",
        "value": "NV17",
        "limit": "NV18",
        "unit": "",
        "reason": "1 of 18 links are missing",
    },
}


def test_a_quarantine_names_check_value_and_limit(servers: Servers, run: Run) -> None:
    servers.node("node1", "maintenance: quarantined in hardware: x", record=QUARANTINE)
    node = run(nodes=["node1"])["rack"]["nodes"][0]
    assert node["state"] == "quarantined"
    assert node["reason"] == "hardware: nvlink_topology.matrix GPU0-GPU2 NV17 (limit NV18): 1 of 18 links are missing"
    assert node["gates"] == {
        "hardware": "fail: nvlink_topology.matrix GPU0-GPU2 NV17 (limit NV18)",
        "serving": "not reached: hardware failed",
    }


def test_a_quarantined_node_that_still_takes_traffic_is_said_so(servers: Servers, run: Run) -> None:
    servers.node("node1", "passing", "critical: x", record=QUARANTINE)
    node = run(nodes=["node1"])["rack"]["nodes"][0]
    assert node["state"] == "quarantined"
    assert node["reason"].endswith("; STILL TAKES TRAFFIC: node1-iu0")


def test_a_quarantine_before_the_node_ever_joined(servers: Servers, run: Run) -> None:
    record = {"verdict": "fail", "quarantine": {"stage": "base", "task": "Install", "check": None, "reason": "no apt"}}
    servers.kv["gpu_rack/nodes/node1"] = record
    node = run(nodes=["node1"])["rack"]["nodes"][0]
    assert (node["state"], node["serf"], node["reason"]) == ("quarantined", "absent", "base: no apt")
    assert node["gates"]["hardware"] == "not reached: base failed"


def test_a_dead_node_with_a_quarantine_is_failed_with_both_reasons(servers: Servers, run: Run) -> None:
    servers.node("node1", "critical: x", serf="critical", record=QUARANTINE)
    node = run(nodes=["node1"])["rack"]["nodes"][0]
    assert node["state"] == "failed"
    assert "before that, hardware: nvlink_topology.matrix" in node["reason"]


@pytest.mark.parametrize("raw", [b"{", b"[]", b'{"verdict": "maybe"}'])
def test_an_unreadable_record_is_never_serving(servers: Servers, run: Run, raw: bytes) -> None:
    servers.node("node1", "passing", record=None)
    servers.kv["gpu_rack/nodes/node1"] = raw
    node = run(nodes=["node1"])["rack"]["nodes"][0]
    assert (node["state"], node["reason"]) == ("degraded", "the record gpu_rack/nodes/node1 cannot be read")


def test_another_name_in_consul(servers: Servers, run: Run) -> None:
    servers.node("rack7-node1", "passing", record=None)
    servers.kv["gpu_rack/nodes/node1"] = dict(PASS)
    found = run(nodes=["node1"], consul_names={"node1": "rack7-node1"})["rack"]["nodes"][0]
    assert (found["name"], found["state"]) == ("node1", "serving")


def test_a_wrong_token_is_refused_and_not_shown(servers: Servers, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    # py-consul would let this variable win over the option.
    monkeypatch.setenv("CONSUL_HTTP_TOKEN", TOKEN)
    result = run(nodes=["node1"], token="wrong-token-1")
    assert result["failed"] is True
    assert result["msg"].startswith(f"Consul at {servers.address}: refused the token (")
    assert "wrong-token-1" not in json.dumps(result)


def test_no_answer(run: Run) -> None:
    address = f"http://127.0.0.1:{free_port()}"
    assert run(nodes=["node1"], address=address)["msg"] == (
        f"Consul at {address}: no answer (Connection refused). Check the address, and that its server runs."
    )


@pytest.mark.parametrize("address", ["", "ftp://x", "http://host/path"])
def test_a_wrong_address(run: Run, address: str) -> None:
    assert "Use http://host:8500 or https://host:8501" in run(nodes=["node1"], address=address)["msg"]


def test_no_leader(servers: Servers, run: Run) -> None:
    servers.leader = ""
    assert "has no leader" in run(nodes=["node1"])["msg"]


def test_an_empty_catalog_is_no_rack_of_absent_nodes(servers: Servers, run: Run) -> None:
    servers.serf.clear()
    assert "may read nodes" in run(nodes=["node1"])["msg"]


def test_a_missing_library_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rack_status_info, "CONSUL_IMPORT_ERROR", "Traceback: no consul")
    result = run(nodes=["node1"])
    assert result["failed"] is True
    assert "py-consul" in result["msg"]
    assert "required Python library" in result["msg"]


def test_five_requests_whatever_the_number_of_nodes(servers: Servers, run: Run) -> None:
    for n in range(9):
        servers.node(f"node{n}", "passing", "passing")
    run(nodes=[f"node{n}" for n in range(9)])
    assert len(servers.asked) == 5

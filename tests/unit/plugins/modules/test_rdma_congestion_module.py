# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gate rdma_congestion on stand-in tools, on captures, and on the simulated switch over real SSH."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paramiko
import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _switch_cli, _switch_ssh
from ansible_collections.ai_infra.gpu_rack.plugins.modules import rdma_congestion
from switch import answers
from switch.server import Switch

from tests.unit.module_runner import runner

FIXTURES = Path(__file__).parents[2] / "fixtures"
PASSWORD = "not-a-secret-of-anybody"
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(rdma_congestion, capsys)


def found(result: dict[str, Any]) -> list[tuple[str, str, str, Any]]:
    return [
        (c["check"].partition(".")[2], c["subject"], c["verdict"], c["value"])
        for c in result["checks"]
        if c["verdict"] != "pass"
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"dcqcn": "enabled"}, "dcqcn: enabled on InfiniBand"),
        ({"adaptive_routing": "static"}, "adaptive_routing: static. With static routing"),
        ({"adaptive_routing": "some"}, "adaptive_routing: 'some'"),
        ({"link_layer": "ethernet"}, "hcas: none given"),
        ({"link_layer": "ethernet", "proof": ["opensm"]}, "proof: opensm on ethernet"),
        ({"proof": ["node"]}, "proof: node on infiniband"),
        ({"proof": ["switch"]}, "switch: not given"),
        ({"proof": ["switch"], "switch": {"os": "onyx", "host": "x"}}, "switch.os: onyx on infiniband"),
        ({"priority": 8}, "priority: 8 is not from 0 to 7"),
        ({"timeout": 0}, "timeout: "),
    ],
)
def test_the_wrong_knob_is_refused(run: Run, args: dict[str, Any], words: str) -> None:
    result = run(**args)
    assert result["failed"]
    assert result["msg"].startswith(words)
    assert "checks" not in result


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put stand-in tools of a healthy RoCE node first on PATH; return their directory."""
    directory = tmp_path / "bin"
    directory.mkdir()
    ecn = FIXTURES / "mlx5-5.8-sysfs-ecn.txt"
    netdevs = r"/sys/class/net/eth_rail0/device/infiniband/mlx5_0\n/sys/class/net/eth_rail1/device/infiniband/mlx5_1\n"
    write(directory, "sh", f'case "$2" in ls*) printf "{netdevs}";; *) cat {ecn};; esac')
    query = FIXTURES / "mft-4.33-mlxconfig-e-query-roce.txt"
    write(directory, "mlxconfig", f'sed "s/mlx5_0/$2/" {query}')
    write(directory, "mlnx_qos", f"cat {FIXTURES / 'mlnx-tools-5.8-mlnx_qos.txt'}")
    write(directory, "cma_roce_tos", "echo 106")
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    return directory


def write(directory: Path, name: str, body: str) -> None:
    (directory / name).write_text(f"#!/bin/bash\n{body}\n")
    (directory / name).chmod(0o755)


ROCE = {"link_layer": "ethernet", "hcas": ["mlx5_0", "mlx5_1"]}


def test_a_healthy_roce_node_passes(run: Run, tools: Path) -> None:
    result = run(**ROCE)
    assert (result["verdict"], len(result["checks"])) == ("pass", 2 * 8)
    assert result["fleet"]["versions"] == {
        "rdma_congestion.cc_priorities": "CNP_802P_PRIO_P1=6 CNP_DSCP_P1=48 ROCE_CC_PRIO_MASK_P1=255"
    }


def test_each_part_of_dcqcn_flips_the_verdict(run: Run, tools: Path) -> None:
    write(tools, "cma_roce_tos", "echo 0")
    assert found(run(**ROCE, enforce=False)) == [("tos", "mlx5_0", "fail", 0), ("tos", "mlx5_1", "fail", 0)]
    (tools / "mlxconfig").unlink()
    result = run(**ROCE)
    assert ("cnp_dscp", "mlx5_1", "unknown", None) in found(result)
    assert result["failed"]


def test_an_hca_without_interface_is_unknown(run: Run, tools: Path) -> None:
    assert ("netdev", "mlx5_9", "unknown", None) in found(run(link_layer="ethernet", hcas=["mlx5_9"], enforce=False))


def test_dcqcn_turned_off_is_a_warning(run: Run, tools: Path) -> None:
    assert found(run(**ROCE, dcqcn="disabled")) == [("dcqcn", "node", "warn", "disabled")]


def test_the_same_from_a_bundle_and_from_its_stored_evidence(run: Run, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    for name, fixture in (
        ("mlxconfig-mlx5_0.txt", "mft-4.33-mlxconfig-e-query-roce.txt"),
        ("ecn.txt", "mlx5-5.8-sysfs-ecn.txt"),
        ("mlnx_qos-eth_rail0.txt", "mlnx-tools-5.8-mlnx_qos.txt"),
    ):
        (bundle / name).write_text((FIXTURES / fixture).read_text())
    (bundle / "netdevs.txt").write_text("mlx5_0 port 1 ==> eth_rail0 (Up)\n")
    (bundle / "cma_roce_tos-mlx5_0.txt").write_text("106\n")
    args = {"link_layer": "ethernet", "hcas": ["mlx5_0"]}
    assert run(**args, captured=str(bundle), evidence_dir=str(tmp_path / "e"))["verdict"] == "pass"
    assert run(**args, captured=str(tmp_path / "e/rdma_congestion.json"))["verdict"] == "pass"
    (bundle / "ecn.txt").unlink()
    assert run(**args, captured=str(bundle), enforce=False)["verdict"] == "unknown"


def test_opensm_and_ibdiagnet_from_a_bundle(run: Run, tmp_path: Path) -> None:
    (tmp_path / "opensm.conf").write_text((FIXTURES / "opensm-5.17-nvidia.conf").read_text())
    (tmp_path / "ibdiagnet.txt").write_text((FIXTURES / "ibdiagnet-2.13-routing.txt").read_text())
    assert run(captured=str(tmp_path), proof=["opensm", "ibdiagnet"])["verdict"] == "pass"
    (tmp_path / "ibdiagnet.txt").unlink()
    result = run(captured=str(tmp_path), proof=["opensm", "ibdiagnet"], enforce=False)
    assert found(result) == [("ar_switches", "fabric", "unknown", None)]


def test_a_missing_configuration_is_unknown(run: Run, tmp_path: Path) -> None:
    result = run(opensm_config=str(tmp_path / "none.conf"), enforce=False)
    assert found(result) == [("opensm", "fabric", "unknown", None)]


# --- the switch


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Switch]]:
    """Return a function that starts a simulated switch on a free port."""
    switches: list[Switch] = []

    def begin(system: str) -> Switch:
        directory = tmp_path / f"switch{len(switches)}"
        directory.mkdir()
        switches.append(Switch(directory, system, ("127.0.0.1", 0), "monitor", PASSWORD))
        threading.Thread(target=switches[-1].serve, daemon=True).start()
        return switches[-1]

    yield begin
    for one in switches:
        one.close()


def asking(switch: Switch, **more: Any) -> dict[str, Any]:
    system = _switch_cli.SYSTEMS[switch.system]
    option = {
        "os": switch.system,
        "host": "127.0.0.1",
        "port": switch.address[1],
        "username": "monitor",
        "password": PASSWORD,
        "known_hosts": str(switch.directory / "known_hosts"),
        **more,
    }
    return {"link_layer": system.link_layer, "proof": ["switch"], "switch": option, "timeout": 10, "enforce": False}


@pytest.mark.parametrize("system", answers.SYSTEMS)
def test_a_healthy_switch_passes_over_ssh(run: Run, start: Callable[[str], Switch], system: str) -> None:
    switch = start(system)
    result = run(**asking(switch))
    assert (result["verdict"], found(result)) == ("pass", [])
    assert PASSWORD not in json.dumps(result)
    assert {c["subject"] for c in result["checks"]} == {f"127.0.0.1:{switch.address[1]}"}


@pytest.mark.parametrize(
    ("system", "fault", "wanted"),
    [
        ("nvos", answers.STATIC, ("switch_adaptive_routing", "fail", "disabled")),
        ("mlnx_os", answers.STATIC, ("switch_subnet_manager", "fail", "enable")),
        ("cumulus", answers.STATIC, ("switch_adaptive_routing", "fail", "off")),
        ("cumulus", answers.NO_CONTROL, ("switch_ecn", "fail", "off")),
        ("onyx", answers.NO_CONTROL, ("switch_ecn", "fail", "N/A")),
        ("nvos", answers.GARBAGE, ("switch_adaptive_routing", "unknown", None)),
    ],
)
def test_a_switch_fault_is_caught_and_healed(
    run: Run, start: Callable[[str], Switch], system: str, fault: str, wanted: tuple[str, str, Any]
) -> None:
    switch = start(system)
    (switch.directory / "faults").write_text(f"{fault}\n")
    assert [(n, v, value) for n, _subject, v, value in found(run(**asking(switch)))] == [wanted]
    (switch.directory / "faults").unlink()
    assert run(**asking(switch))["verdict"] == "pass"


@pytest.mark.parametrize("system", ["nvos", "onyx"])
def test_a_switch_that_hangs_is_given_up_in_time(run: Run, start: Callable[[str], Switch], system: str) -> None:
    switch = start(system)
    (switch.directory / "faults").write_text(f"{answers.HANGS}\n")
    result = run(**{**asking(switch), "timeout": 0.7})
    assert [(n, v) for n, _s, v, _value in found(result)] == [("switch", "unknown")]
    assert "given up" in result["summary"]


class Mute(paramiko.ServerInterface):
    """A switch that takes every login and channel and never answers a request on it, or floods it."""

    def __init__(self, flood: bool) -> None:
        self.flood = flood
        self.done = threading.Event()

    def check_auth_password(self, username: str, password: str) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        return self.answer(channel)

    def check_channel_pty_request(self, channel: paramiko.Channel, *_args: Any) -> bool:
        return self.flood or self.answer(channel)

    def check_channel_shell_request(self, channel: paramiko.Channel) -> bool:
        return self.answer(channel)

    def answer(self, channel: paramiko.Channel) -> bool:
        if self.flood:
            threading.Thread(target=self.write, args=(channel,), daemon=True).start()
        else:
            self.done.wait(60)
        return True

    def write(self, channel: paramiko.Channel) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while not self.done.is_set():
                channel.sendall(b"a" * 30000)


@pytest.mark.parametrize("flood", [False, True], ids=["never answers", "one endless line"])
@pytest.mark.parametrize("system", ["nvos", "onyx"])
def test_a_hostile_switch_is_given_up_in_time(
    run: Run, start: Callable[[str], Switch], system: str, flood: bool, tmp_path: Path
) -> None:
    mute, kept = Mute(flood), []

    def serve(listener: socket.socket) -> None:
        connection, _address = listener.accept()
        transport = paramiko.Transport(connection)
        transport.add_server_key(paramiko.RSAKey.generate(2048))
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            transport.start_server(server=mute)
            while transport.is_active():
                kept.append(transport.accept(1))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=serve, args=(listener,), daemon=True).start()
        (tmp_path / "none").touch()
        options = {"port": listener.getsockname()[1], "known_hosts": str(tmp_path / "none"), "host_key_checking": False}
        began = time.monotonic()
        result = run(**{**asking(start(system), **options), "timeout": 1})
        mute.done.set()
    assert [(n, v) for n, _s, v, _value in found(result)] == [("switch", "unknown")]
    assert "given up" in result["summary"]
    assert time.monotonic() - began < 30


def test_a_changed_or_unknown_host_key_is_refused(run: Run, start: Callable[[str], Switch], tmp_path: Path) -> None:
    switch, other = start("nvos"), start("nvos")
    line = (other.directory / "known_hosts").read_text().replace(str(other.address[1]), str(switch.address[1]))
    (tmp_path / "changed").write_text(line)
    result = run(**asking(switch, known_hosts=str(tmp_path / "changed")))
    assert "another host key than the known one" in result["summary"]
    (tmp_path / "empty").write_text("")
    assert "not found in known_hosts" in run(**asking(switch, known_hosts=str(tmp_path / "empty")))["summary"]
    open_door = asking(switch, known_hosts=str(tmp_path / "empty"), host_key_checking=False)
    assert run(**open_door)["verdict"] == "pass"


def test_a_wrong_password_and_a_dead_switch_are_unknown(run: Run, start: Callable[[str], Switch]) -> None:
    switch = start("nvos")
    assert "does not take the login of monitor" in run(**asking(switch, password="wrong"))["summary"]
    switch.close()
    result = run(**asking(switch))
    assert result["verdict"] == "unknown"
    assert "no connection" in result["summary"]


def test_without_paramiko_the_task_says_where_to_run(
    run: Run, start: Callable[[str], Switch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_switch_ssh, "PARAMIKO_ERROR", "Traceback")
    result = run(**asking(start("nvos")))
    assert result["failed"]
    assert "paramiko" in result["msg"]
    assert "Delegate the task to the controller" in result["msg"]


def test_answers_of_a_switch_from_a_bundle(run: Run, start: Callable[[str], Switch], tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "switch-nv-show-qos-roce.txt").write_text((FIXTURES / "cumulus-5.9-show-qos-roce.txt").read_text())
    args = {"link_layer": "ethernet", "proof": ["switch"], "switch": {"os": "cumulus", "host": "leaf1"}}
    result = run(**args, captured=str(bundle), enforce=False)
    assert [(n, s, v) for n, s, v, _value in found(result)] == [("switch", "leaf1", "unknown")]
    (bundle / "switch-nv-show-router-adaptive-routing.txt").write_text(
        answers.answer("cumulus", "nv show router adaptive-routing", ())
    )
    assert run(**args, captured=str(bundle))["verdict"] == "pass"


def test_stored_answers_of_a_switch_are_judged_again(run: Run, start: Callable[[str], Switch], tmp_path: Path) -> None:
    switch = start("cumulus")
    args = asking(switch)
    first = run(**args, evidence_dir=str(tmp_path / "e"))
    assert PASSWORD not in (tmp_path / "e/rdma_congestion.json").read_text()
    switch.close()
    again = run(**args, captured=str(tmp_path / "e/rdma_congestion.json"))
    assert (again["verdict"], again["checks"]) == ("pass", first["checks"])

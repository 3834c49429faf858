# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the proof of congestion control and adaptive routing."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _rdma_congestion as rdma
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _switch_cli as cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, worst
from switch import answers

FIXTURES = Path(__file__).parents[2] / "fixtures"
NVIDIA = (FIXTURES / "opensm-5.17-nvidia.conf").read_text()
UPSTREAM = (FIXTURES / "opensm-3.3.23-upstream.conf").read_text()
DIAGNET = (FIXTURES / "ibdiagnet-2.13-routing.txt").read_text()
QOS = (FIXTURES / "mlnx-tools-5.8-mlnx_qos.txt").read_text()
ECN = (FIXTURES / "mlx5-5.8-sysfs-ecn.txt").read_text()
FIRMWARE = (FIXTURES / "mft-4.33-mlxconfig-e-query-roce.txt").read_text()
INTENT = rdma.Intent()


def text(stdout: str) -> Evidence:
    return Evidence("captured x", 0, stdout)


def bad(checks: list[Check]) -> list[tuple[str, str, object]]:
    return [(c.check.partition(".")[2], c.verdict, c.value) for c in checks if c.verdict != "pass"]


def opensm(stdout: str, flavour: str = "auto", intent: rdma.Intent = INTENT) -> list[Check]:
    return rdma.judge_opensm(text(stdout), flavour, intent)


def test_nvidias_opensm_with_both_passes() -> None:
    checks = opensm(NVIDIA)
    assert bad(checks) == []
    assert [(c.check.partition(".")[2], c.value, c.limit) for c in checks] == [
        ("opensm", "nvidia", "nvidia"),
        ("congestion_control", "2", "2"),
        ("adaptive_routing", "ar_updn", "an ar_ engine"),
        ("service_level", 0, "0xFFFF"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "wanted"),
    [
        ("mlnx_congestion_control 2", "mlnx_congestion_control 1", [("congestion_control", "fail", "1")]),
        ("mlnx_congestion_control 2\n", "", [("congestion_control", "fail", "not set")]),
        ("routing_engine ar_updn", "routing_engine updn", [("adaptive_routing", "fail", "updn")]),
        ("routing_engine ar_updn", "routing_engine updn,ar_updn", [("adaptive_routing", "fail", "updn")]),
        ("routing_engine ar_updn\n", "", [("adaptive_routing", "unknown", None)]),
        ("ar_mode 1", "ar_mode 0", [("adaptive_routing", "fail", "ar_mode 0")]),
        ("ar_sl_mask 0xFFFF", "ar_sl_mask 0xFFFE", [("service_level", "fail", 0)]),
        ("ar_sl_mask 0xFFFF", "ar_sl_mask many", [("service_level", "unknown", None)]),
        ("lmc 0", "mlnx_congestion_control 1", [("opensm", "unknown", None)]),
        ("lmc 0", "%%%%", [("opensm", "unknown", None)]),
    ],
)
def test_each_setting_of_nvidias_opensm_flips_the_verdict(old: str, new: str, wanted: object) -> None:
    assert old in NVIDIA
    assert bad(opensm(NVIDIA.replace(old, new, 1))) == wanted


def test_nccls_service_level_is_held_against_the_mask() -> None:
    one = dataclasses.replace(INTENT, nccl_ib_sl=1)
    assert bad(opensm(NVIDIA.replace("0xFFFF", "0x0001"), intent=one)) == [("service_level", "fail", 1)]
    assert bad(opensm(NVIDIA.replace("0xFFFF", "0x0002"), intent=one)) == []


def test_community_opensm_has_no_adaptive_routing() -> None:
    checks = opensm(UPSTREAM)
    assert bad(checks) == [("congestion_control", "fail", "FALSE"), ("adaptive_routing", "fail", "updn")]
    assert "no ar_ engine at all" in checks[-1].reason
    on = UPSTREAM.replace("congestion_control FALSE", "congestion_control TRUE")
    assert bad(opensm(on)) == [("adaptive_routing", "fail", "updn")]
    unmanaged = dataclasses.replace(INTENT, adaptive_routing=False)
    assert bad(opensm(on, intent=unmanaged)) == [("adaptive_routing", "warn", "unmanaged")]


def test_nvidias_settings_under_community_opensm_are_ignored() -> None:
    assert ("opensm", "fail", "nvidia") in bad(opensm(NVIDIA, "opensm"))


@pytest.mark.parametrize("stdout", ["", "Segmentation fault\n", "guid 0x0\nsm_priority 14\n", "CA 'mlx5_0'\n"])
def test_what_is_no_configuration_or_nobodys_is_unknown(stdout: str) -> None:
    assert worst(c.verdict for c in opensm(stdout)) == "unknown"


def test_ibdiagnet_wants_every_switch() -> None:
    assert bad(rdma.judge_ibdiagnet(text(DIAGNET))) == []
    one_off = DIAGNET.replace("enabled on 6 switches", "enabled on 5 switches")
    assert bad(rdma.judge_ibdiagnet(text(one_off))) == [("ar_switches", "fail", 5)]
    none = DIAGNET.replace("Adaptive Routing is enabled on 6 switches\n", "")
    assert bad(rdma.judge_ibdiagnet(text(none))) == [("ar_switches", "fail", 0)]


@pytest.mark.parametrize(
    "stdout",
    [
        "",
        DIAGNET[: DIAGNET.index("Fabric Summary")],
        DIAGNET.replace("enabled on 6", "enabled on 7"),
        DIAGNET.replace("IB Switches             : 6", "IB Switches             : 0"),
        "-E- Failed to find local device\n",
    ],
)
def test_ibdiagnet_that_is_not_whole_is_unknown(stdout: str) -> None:
    assert bad(rdma.judge_ibdiagnet(text(stdout))) == [("ar_switches", "unknown", None)]


def test_qos() -> None:
    assert rdma.parse_qos(QOS) == rdma.Qos("dscp", (3,))
    assert bad(rdma.judge_qos("eth0", rdma.parse_qos(QOS), INTENT, "why")) == []
    five = dataclasses.replace(INTENT, priority=5)
    assert bad(rdma.judge_qos("eth0", rdma.parse_qos(QOS), five, "why")) == [("pfc", "fail", "3")]
    two = QOS.replace("0   0   0   1   0   0   0   0", "0   0   0   1   0   1   0   0", 1)
    assert bad(rdma.judge_qos("eth0", rdma.parse_qos(two), INTENT, "why")) == [("pfc", "fail", "3,5")]
    pcp = QOS.replace("state: dscp", "state: pcp")
    assert bad(rdma.judge_qos("eth0", rdma.parse_qos(pcp), INTENT, "why")) == [("trust", "fail", "pcp")]
    assert [c.verdict for c in rdma.judge_qos("eth0", rdma.parse_qos("?"), INTENT, "why")] == ["unknown", "unknown"]


def test_ecn() -> None:
    values = rdma.parse_ecn(ECN)
    assert bad(rdma.judge_ecn("eth_rail1", values, INTENT, "why")) == []
    off = rdma.parse_ecn(ECN.replace("roce_np/enable/3:1", "roce_np/enable/3:0"))
    assert bad(rdma.judge_ecn("eth_rail1", off, INTENT, "why")) == [("ecn_notification", "fail", "0")]
    assert [c.verdict for c in rdma.judge_ecn("eth7", values, INTENT, "why")] == ["unknown", "unknown"]
    other = "ECN Enabled for priority 3: /sys/class/net/eth0/ecn/roce_rp/enable/3 = 1\n"
    assert rdma.parse_ecn(other) == {("eth0", "roce_rp", 3): "1"}


def firmware(stdout: str) -> list[Check]:
    devices = rdma.parse_firmware(stdout)
    assert len(devices) == 1
    settings = devices.popitem()[1]
    return rdma.judge_firmware("mlx5_0", 1, settings, INTENT, "mlxconfig does not list it")


def test_firmware() -> None:
    assert bad(firmware(FIRMWARE)) == []
    assert bad(firmware(FIRMWARE.replace("255                 255                 255", "255   8   255"))) == [
        ("cc_priorities", "fail", "8")
    ]
    missing = "\n".join(line for line in FIRMWARE.splitlines() if "CNP_DSCP" not in line)
    assert bad(firmware(missing)) == [("cnp_dscp", "unknown", None)]
    plain = (
        "Device #1:\n\nDevice:  mlx5_0\n\nConfigurations:    Next Boot\n ROCE_CC_PRIO_MASK_P1   0xff\n CNP_DSCP_P1  4\n"
    )
    assert bad(firmware(plain)) == [
        ("cc_priorities", "warn", "0xff"),
        ("cnp_dscp", "fail", "4"),
        ("cnp_priority", "unknown", None),
    ]
    current = plain.replace("Next Boot", "Current").replace("DSCP_P1  4", "DSCP_P1  48")
    assert bad(firmware(current)) == [("cnp_priority", "unknown", None)]


def test_tos_and_netdevs() -> None:
    assert [rdma.parse_tos(t) for t in ("106\n", "Global tclass=106", "", "x", "300")] == [106, 106, None, None, None]
    assert rdma.judge_tos("mlx5_0", text("0\n"), INTENT).verdict == "fail"
    assert rdma.judge_tos("mlx5_0", text("Can't find device"), INTENT).verdict == "unknown"
    assert rdma.parse_netdevs("/sys/class/net/eth0/device/infiniband/mlx5_0\n") == {"mlx5_0": ["eth0"]}
    assert rdma.parse_netdevs("mlx5_1 port 1 ==> enp1s0f1np1 (Up)\n") == {"mlx5_1": ["enp1s0f1np1"]}


def test_kinds_are_told_by_the_text() -> None:
    kinds = {rdma.kind_of(t): t for t in (NVIDIA, DIAGNET, QOS, ECN, FIRMWARE)}
    assert set(kinds) == {"opensm", "ibdiagnet", "qos", "ecn", "firmware"}
    assert rdma.kind_of(UPSTREAM) == "opensm"
    for system in cli.SYSTEMS.values():
        for key, command in system.commands.items():
            shown = answers.answer(system.name, command, ())
            assert (rdma.kind_of(shown), cli.kind_of(shown)) == ("switch", (system.name, key))


def asked(system: str, key: str, *faults: str, stdout: str | None = None, **options: object) -> list[Check]:
    shown = answers.answer(system, cli.SYSTEMS[system].commands[key], faults) if stdout is None else stdout
    wanted = {"priority": 3, "adaptive_routing": True, "congestion_control": True, **options}
    return cli.judge(system, key, shown, "leaf1", **wanted)  # type: ignore[arg-type]


def test_healthy_switches_pass() -> None:
    for system in cli.SYSTEMS.values():
        for key in system.commands:
            assert bad(asked(system.name, key)) == []


@pytest.mark.parametrize(
    ("system", "key", "fault", "wanted"),
    [
        ("nvos", "profile", answers.STATIC, [("switch_adaptive_routing", "fail", "disabled")]),
        ("cumulus", "routing", answers.STATIC, [("switch_adaptive_routing", "fail", "off")]),
        ("mlnx_os", "sm", answers.STATIC, [("switch_subnet_manager", "fail", "enable")]),
        ("cumulus", "roce", answers.NO_CONTROL, [("switch_ecn", "fail", "off")]),
        ("onyx", "roce", answers.NO_CONTROL, [("switch_ecn", "fail", "N/A")]),
    ],
)
def test_switch_faults_are_named(system: str, key: str, fault: str, wanted: object) -> None:
    assert bad(asked(system, key, fault)) == wanted


def test_switch_details() -> None:
    roce = answers.answer("cumulus", "nv show qos roce", ())
    assert bad(asked("cumulus", "roce", stdout=roce.replace("0,3", "0,1"))) == [("switch_ecn", "fail", "ECN on TC 0,1")]
    assert bad(asked("cumulus", "roce", stdout=roce.replace("pfc-priority      3", "pfc-priority      -"))) == [
        ("switch_pfc", "fail", "-")
    ]
    assert bad(asked("cumulus", "roce", stdout=roce.replace("pcp,dscp", "pcp"))) == [("switch_trust", "fail", "pcp")]
    onyx = answers.answer("onyx", "show roce", ())
    assert bad(asked("onyx", "roce", stdout=onyx.replace("switch-priority 3", "switch-priority 4"))) == [
        ("switch_pfc", "fail", "4")
    ]
    assert bad(asked("onyx", "roce", stdout=onyx.replace("trust mode: L3", "trust mode: L2"))) == [
        ("switch_trust", "fail", "L2")
    ]
    assert bad(asked("nvos", "profile", adaptive_routing=False)) == [("switch", "warn", "not judged")]


def test_nvue_as_json_and_by_its_columns() -> None:
    assert cli.parse_nvue('{"congestion-control": {"congestion-mode": "ECN"}, "mode": "lossless"}') == {
        "congestion-control/congestion-mode": "ECN",
        "mode": "lossless",
    }
    table = "        operational  applied\n------  -----------  -------\nenable  on           off\n"
    assert cli.parse_nvue(table) == {"enable": "on"}
    assert cli.parse_nvue("{") == cli.parse_nvue("nothing") == {}


@pytest.mark.parametrize("stdout", ["", "% Unrecognized command\n", "Error: no such thing\n", "\x00~~\n"])
@pytest.mark.parametrize("system", ["nvos", "mlnx_os", "cumulus", "onyx"])
def test_what_a_switch_does_not_say_is_unknown(system: str, stdout: str) -> None:
    for key in cli.SYSTEMS[system].commands:
        assert {c.verdict for c in asked(system, key, stdout=stdout)} == {"unknown"}


@pytest.mark.parametrize("value", ["9" * 5000, "010", "0x" + "f" * 5000, "\u0663"])
def test_a_number_of_the_firmware_that_is_none_ends_in_a_verdict(value: str) -> None:
    text = re.sub(r"ROCE_CC_PRIO_MASK_P1 .*", f"ROCE_CC_PRIO_MASK_P1   255  {value}  {value}", FIRMWARE)
    assert text != FIRMWARE
    (settings, *_others) = rdma.parse_firmware(text).values()
    checks = rdma.judge_firmware("mlx5_0", 1, settings, INTENT, "mlxconfig does not list it")
    assert "pass" not in {c.verdict for c in checks if c.check.endswith("priorities")}

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the error counters of RDMA ports: readers, limits, rates, saturation, resets."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _ib_counters as counters
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, worst

FIXTURES = Path(__file__).parents[2] / "fixtures"
BASIC = (FIXTURES / "infiniband-diags-44.0-perfquery.txt").read_text()
EXTENDED = (FIXTURES / "infiniband-diags-44.0-perfquery-x.txt").read_text()
SYSFS = (FIXTURES / "mlx5-6.1-sysfs-counters-8xndr.txt").read_text()
CLEAN = (FIXTURES / "infiniband-diags-44.0-ibqueryerrors-clean.txt").read_text()
BAD = (FIXTURES / "infiniband-diags-44.0-ibqueryerrors-bad.txt").read_text()


def bad(checks: list[Check]) -> list[tuple[str, str, str, object]]:
    return [(c.check, c.subject, c.verdict, c.value) for c in checks if c.verdict != "pass"]


def judged(text: str, baseline: counters.Baseline | None = None) -> list[Check]:
    ports, problems = counters.parse_perfquery(text)
    assert problems == []
    return [c for p in ports for c in counters.judge_port(f"lid {p.lid}", p, baseline)]


def with_value(name: str, value: int) -> str:
    assert f"{name}:" in BASIC
    lines = [f"{name}:....{value}" if line.startswith(f"{name}:") else line for line in BASIC.splitlines()]
    return "\n".join(lines) + "\n"


def test_a_clean_port_passes_each_counter_once() -> None:
    checks = judged(BASIC)
    assert bad(checks) == []
    assert [c.check for c in checks] == [c.check for c in counters.COUNTERS]


def test_old_names_mean_the_same() -> None:
    old = BASIC
    for name, canonical in (
        ("SymbolErrors", "SymbolErrorCounter"),
        ("LinkRecovers", "LinkErrorRecoveryCounter"),
        ("LinkDowned", "LinkDownedCounter"),
        ("RcvErrors", "PortRcvErrors"),
        ("XmtDiscards", "PortXmitDiscards"),
    ):
        old = old.replace(f"{canonical}:", f"{name}:")
    assert counters.parse_perfquery(old)[0][0].values == counters.parse_perfquery(BASIC)[0][0].values


@pytest.mark.parametrize(
    ("name", "value", "verdict"),
    [
        ("SymbolErrorCounter", 5000, "fail"),
        ("SymbolErrorCounter", 11, "fail"),
        ("SymbolErrorCounter", 10, "warn"),
        ("LinkDownedCounter", 3, "fail"),
        ("LinkDownedCounter", 1, "warn"),
        ("LinkErrorRecoveryCounter", 11, "fail"),
        ("PortRcvErrors", 11, "fail"),
        ("PortXmitDiscards", 101, "fail"),
        ("PortXmitDiscards", 100, "warn"),
        ("VL15Dropped", 101, "fail"),
        ("LocalLinkIntegrityErrors", 11, "fail"),
        ("ExcessiveBufferOverrunErrors", 11, "fail"),
        ("PortRcvRemotePhysicalErrors", 101, "fail"),
    ],
)
def test_absolute_limits(name: str, value: int, verdict: str) -> None:
    assert bad(judged(with_value(name, value))) == [(counters.BY_NAME[name].check, "lid 3", verdict, value)]


@pytest.mark.parametrize("name", ["PortXmitWait", "PortRcvSwitchRelayErrors"])
def test_what_a_healthy_fabric_counts_is_not_judged(name: str) -> None:
    assert bad(judged(with_value(name, 4294967295))) == []


@pytest.mark.parametrize(
    ("name", "most"),
    [("SymbolErrorCounter", 65535), ("LinkDownedCounter", 255), ("LocalLinkIntegrityErrors", 15)],
)
def test_a_counter_at_its_largest_value_is_saturated(name: str, most: int) -> None:
    (check,) = [c for c in judged(with_value(name, most)) if c.verdict != "pass"]
    assert check.verdict == "fail"
    assert "saturated" in check.reason
    assert "Clear the counters" in check.remedy


def test_a_wide_counter_is_not_saturated_at_65535() -> None:
    (check,) = [c for c in judged(EXTENDED) if c.verdict != "pass"]
    assert (check.check, check.subject, check.value) == ("ib_port.symbol_errors", "lid 4", 65535)
    assert "saturated" not in check.reason


def test_data_counters_alone_are_unknown() -> None:
    text = "# Port extended counters: Lid 3 port 1 (CapMask: 0x1200 CapMask2: 0x0000000)\nPortXmitData:......648\n"
    assert bad(judged(text))[0][:3] == ("ib_port.counters", "lid 3", "unknown")


def test_a_counter_that_is_no_number_or_twice_is_unknown() -> None:
    odd = BASIC.replace("SymbolErrorCounter:..............0", "SymbolErrorCounter:..............N/A")
    assert "line 4 cannot be read" in next(c.reason for c in judged(odd) if c.verdict == "unknown")
    twice = BASIC.replace("LinkDownedCounter:", "LinkDownedCounter:....3\nLinkDownedCounter:")
    assert worst(c.verdict for c in judged(twice)) == "unknown"


def since(seconds: float, **before: int) -> counters.Baseline:
    return counters.Baseline(before, seconds, "before.json")


@pytest.mark.parametrize(
    ("name", "before", "now", "seconds", "verdict"),
    [
        ("SymbolErrorCounter", 0, 10, 3600, "pass"),
        ("SymbolErrorCounter", 0, 11, 3600, "fail"),
        ("SymbolErrorCounter", 100, 101, 1, "warn"),
        ("SymbolErrorCounter", 100, 102, 1, "fail"),
        ("SymbolErrorCounter", 5000, 5000, 86400, "warn"),
        ("SymbolErrorCounter", 5000, 5000, 1, "fail"),
        ("LinkDownedCounter", 0, 1, 86400, "fail"),
        ("LinkErrorRecoveryCounter", 0, 24, 86400, "pass"),
        ("PortXmitDiscards", 0, 201, 3600, "fail"),
    ],
)
def test_rates(name: str, before: int, now: int, seconds: float, verdict: str) -> None:
    found = [c for c in judged(with_value(name, now), since(seconds, **{name: before})) if c.verdict != "pass"]
    assert [(c.check, c.verdict) for c in found] == (
        [] if verdict == "pass" else [(counters.BY_NAME[name].check, verdict)]
    )


def test_a_counter_that_fell_was_reset_and_is_a_new_baseline() -> None:
    checks = judged(with_value("SymbolErrorCounter", 2), since(3600, SymbolErrorCounter=5000))
    assert bad(checks) == [
        ("ib_port.counters", "lid 3", "unknown", None),
        ("ib_port.symbol_errors", "lid 3", "warn", 2),
    ]
    assert "fell from 5000 to 2" in checks[0].reason


def test_sysfs() -> None:
    ports, problems = counters.parse_sysfs(SYSFS)
    assert problems == []
    assert sorted(ports) == [(f"mlx5_{i}", 1) for i in range(8)]
    assert {c.verdict for p in ports.values() for c in counters.judge_port("x", p, None)} == {"pass"}
    _ports, problems = counters.parse_sysfs("/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error:N/A (no PMA)\n")
    assert problems == [
        "line 1 cannot be read: /sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error:N/A (no PMA)"
    ]


def test_ibqueryerrors_without_errors_passes() -> None:
    checks = counters.judge_fabric(counters.parse_ibqueryerrors(CLEAN))
    assert [(c.check, c.verdict, c.value) for c in checks] == [("ib_port.fabric_report", "pass", 176)]


def test_ibqueryerrors_names_node_and_port() -> None:
    checks = counters.judge_fabric(counters.parse_ibqueryerrors(BAD))
    assert bad(checks) == [
        ("ib_port.symbol_errors", "node3 mlx5_2 port 1", "fail", 3120),
        ("ib_port.link_downed", "node3 mlx5_2 port 1", "fail", 4),
        ("ib_port.symbol_errors", "leaf1 port 3", "fail", 65535),
        ("ib_port.link_downed", "leaf1 port 11", "warn", 1),
    ]
    assert "saturated" in next(c.reason for c in checks if c.subject == "leaf1 port 3")


PATH = (
    "ibwarn: [2471] _do_madrpc: recv failed: Connection timed out\n"
    "ibwarn: [2471] mad_rpc: _do_madrpc failed; dport (Lid 12)\n"
)


@pytest.mark.parametrize(("stdout", "stderr"), [(CLEAN, PATH), (PATH + CLEAN, "")])
def test_a_path_without_answer_beside_a_whole_report_is_a_warning_that_names_it(stdout: str, stderr: str) -> None:
    checks = counters.judge_fabric(counters.parse_ibqueryerrors(stdout, stderr))
    assert worst(c.verdict for c in checks) == "warn"
    assert "ibwarn: [2471] mad_rpc: _do_madrpc failed; dport (Lid 12)" in [c.value for c in checks]


@pytest.mark.parametrize(
    "text",
    [
        BAD[: BAD.index("## Summary")],
        PATH,
        "",
        CLEAN.replace("42 nodes", "0 nodes").replace("176 ports", "0 ports"),
        CLEAN.replace("0 ports have", "2 ports have"),
        CLEAN + "##          3 PMA query failures\n",
    ],
)
def test_a_report_that_is_not_whole_is_unknown(text: str) -> None:
    checks = counters.judge_fabric(counters.parse_ibqueryerrors(text))
    assert ("ib_port.fabric_report", "unknown") in [(c.check, c.verdict) for c in checks]
    assert worst(c.verdict for c in checks) in ("unknown", "fail")


def test_ibcheckerrors_of_old_releases() -> None:
    text = (
        "#warn: counter SymbolErrors = 65535     (threshold 10) lid 193 port 4\n"
        "Error check on lid 193 (ISR9288 sLB-24) port 4:  FAILED \n"
        "## Summary: 209 nodes checked, 0 bad nodes found\n"
        "##          716 ports checked, 1 ports have errors beyond threshold\n"
    )
    assert bad(counters.judge_fabric(counters.parse_ibqueryerrors(text))) == [
        ("ib_port.symbol_errors", "lid 193 port 4", "fail", 65535)
    ]


def test_baselines_of_stored_evidence_hold_only_numbers() -> None:
    stored = {"mlx5_0": {"SymbolErrorCounter": 3, "LinkDownedCounter": True, "x": -1, "y": "4"}, "mlx5_1": 7, 5: {}}
    assert counters.baseline_values(stored) == {"mlx5_0": {"SymbolErrorCounter": 3}}
    assert counters.baseline_values([1]) == {}


@pytest.mark.parametrize(
    "line",
    [
        "$ perfquery",
        "# perfquery -x 3 1",
        "[root@node1 ~]# perfquery -C mlx5_0",
        "me@node1:~$ sudo perfquery -C mlx5_0 1",
    ],
)
def test_the_typed_command_in_front_of_a_capture_is_no_output(line: str) -> None:
    assert bad(judged(f"{line}\n{BASIC}")) == []
    assert not counters.typed("# Port counters: Lid 3 port 1 (CapMask: 0x5A00)")

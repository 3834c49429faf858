# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whatever the RDMA tools and switches print: no parser raises, and garbage or a cut report never passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import (
    _ib_counters,
    _iblinkinfo,
    _ibstat,
    _mlxconfig,
    _rdma_congestion,
    _switch_cli,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, worst
from hypothesis import given, settings
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
INTENT = _rdma_congestion.Intent()
Judge = Callable[[str], list[Check]]


def ports(number: int) -> Judge:
    def judge(text: str) -> list[Check]:
        report = _ibstat.parse_report(text)
        return _ibstat.judge(
            report, None, rate=400, rate_source="x", link_layer="infiniband", firmware=None, ports=number
        )

    return judge


def perfquery(text: str) -> list[Check]:
    found, problems = _ib_counters.parse_perfquery(text)
    checks = [_ib_counters.unknown("ib_port.counters", "x", p) for p in problems]
    return checks + [c for p in found for c in _ib_counters.judge_port("x", p, None)]


def sysfs(text: str) -> list[Check]:
    found, problems = _ib_counters.parse_sysfs(text)
    checks = [_ib_counters.unknown("ib_port.counters", "x", p) for p in problems]
    return checks + [c for p in found.values() for c in _ib_counters.judge_port("x", p, None)]


def fabric(text: str) -> list[Check]:
    return _ib_counters.judge_fabric(_ib_counters.parse_ibqueryerrors(text))


def linkinfo(text: str) -> list[Check]:
    return _iblinkinfo.judge(text, 400, "x")


def opensm(text: str) -> list[Check]:
    return _rdma_congestion.judge_opensm(Evidence("x", 0, text), "auto", INTENT)


def ibdiagnet(text: str) -> list[Check]:
    return _rdma_congestion.judge_ibdiagnet(Evidence("x", 0, text))


def qos(text: str) -> list[Check]:
    return _rdma_congestion.judge_qos("x", _rdma_congestion.parse_qos(text), INTENT, "why")


def ecn(text: str) -> list[Check]:
    return _rdma_congestion.judge_ecn("eth_rail1", _rdma_congestion.parse_ecn(text), INTENT, "why")


def firmware(text: str) -> list[Check]:
    described = _rdma_congestion.parse_firmware(text)
    found = described.get("mlx5_0", {})
    return _rdma_congestion.judge_firmware("x", 1, found, INTENT, "why")


def switch(system: str, key: str) -> Judge:
    return lambda text: _switch_cli.judge(
        system, key, text, "x", priority=3, adaptive_routing=True, congestion_control=True
    )


# The last column: where a cut takes away something that is judged, up to its last occurrence (None: the whole text).
CASES: list[tuple[str, Judge, str | None]] = [
    ("infiniband-diags-44.0-ibstat-8xndr.txt", ports(8), None),
    ("infiniband-diags-44.0-ibstatus-4xndr-1eth.txt", ports(4), "Infiniband device 'mlx5_4'"),
    ("rdma-core-44.0-ibv_devinfo-v-2xndr.txt", ports(2), "\t\t\tphys_state"),
    ("infiniband-diags-44.0-perfquery.txt", perfquery, "VL15Dropped"),
    ("mlx5-6.1-sysfs-counters-8xndr.txt", sysfs, "/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error"),
    ("infiniband-diags-44.0-ibqueryerrors-clean.txt", fabric, "0 ports have errors"),
    ("infiniband-diags-44.0-iblinkinfo.txt", linkinfo, "      0x58a2e10300a1b200"),
    ("opensm-5.17-nvidia.conf", opensm, "mlnx_congestion_control 2"),
    ("ibdiagnet-2.13-routing.txt", ibdiagnet, "Adaptive Routing is enabled"),
    ("mlnx-tools-5.8-mlnx_qos.txt", qos, "\tbuffer "),
    ("mlx5-5.8-sysfs-ecn.txt", ecn, "/sys/class/net/eth_rail1/ecn/roce_rp/enable/3"),
    ("mft-4.33-mlxconfig-e-query-roce.txt", firmware, "        CNP_802P_PRIO_P1"),
    ("nvos-25.02-show-system-profile.txt", switch("nvos", "profile"), "adaptive-routing "),
    ("cumulus-5.9-show-qos-roce.txt", switch("cumulus", "roce"), "  trust-mode"),
    ("onyx-3.10-show-roce.txt", switch("onyx", "roce"), "switch-priority 3: enabled"),
]
NAMES = [name for name, _judge, _cut in CASES]


@pytest.mark.parametrize(("name", "judge", "_cut"), CASES, ids=NAMES)
def test_the_fixture_itself_passes(name: str, judge: Judge, _cut: str | None) -> None:
    assert worst(c.verdict for c in judge((FIXTURES / name).read_text())) == "pass"


@pytest.mark.parametrize(("name", "judge", "_cut"), CASES, ids=NAMES)
@settings(max_examples=60)
@given(garbage=st.text(max_size=300))
def test_garbage_never_passes(name: str, judge: Judge, _cut: str | None, garbage: str) -> None:
    assert worst(c.verdict for c in judge(garbage)) != "pass"


@pytest.mark.parametrize(("name", "judge", "cut"), CASES, ids=NAMES)
@settings(max_examples=60)
@given(data=st.data())
def test_a_cut_report_never_passes(name: str, judge: Judge, cut: str | None, data: st.DataObject) -> None:
    text = (FIXTURES / name).read_text()
    last = len(text.rstrip()) - 1 if cut is None else len(text[: text.rindex(cut)].rstrip()) - 1
    assert worst(c.verdict for c in judge(text[: data.draw(st.integers(0, last))])) != "pass"


@pytest.mark.parametrize(("name", "judge", "_cut"), CASES, ids=NAMES)
@settings(max_examples=60)
@given(data=st.data())
def test_a_mutated_report_never_raises(name: str, judge: Judge, _cut: str | None, data: st.DataObject) -> None:
    lines = (FIXTURES / name).read_text().splitlines(keepends=True)
    for _step in range(data.draw(st.integers(1, 4))):
        at, other = data.draw(st.integers(0, len(lines) - 1)), data.draw(st.integers(0, len(lines) - 1))
        kind = data.draw(st.sampled_from(["delete", "double", "swap", "digit", "junk"]))
        if kind == "delete" and len(lines) > 1:
            del lines[at]
        elif kind == "double":
            lines.insert(at, lines[at])
        elif kind == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == "digit":
            lines[at] = "".join(data.draw(st.sampled_from("0123456789")) if c.isdigit() else c for c in lines[at])
        else:
            lines[at] = data.draw(st.text(max_size=40)) + "\n"
    text = "".join(lines)
    judge(text)
    _mlxconfig.parse_query(text)
    _rdma_congestion.kind_of(text)
    _rdma_congestion.parse_netdevs(text)
    _rdma_congestion.parse_tos(text)
    _switch_cli.kind_of(text)
    _switch_cli.parse_traffic_classes(text)

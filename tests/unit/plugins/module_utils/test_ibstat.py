# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the reader and the judgement of ibstat."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _ibstat as ibstat
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, worst
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
GOOD = (FIXTURES / "infiniband-diags-44.0-ibstat-8xndr.txt").read_text()
ROCE = (FIXTURES / "infiniband-diags-44.0-ibstat-roce.txt").read_text()
HCAS = [f"mlx5_{i}" for i in range(8)]


def judge(
    stdout: str, stderr: str = "", hcas: list[str] | None = None, layer: str = "infiniband", firmware: str | None = None
) -> list[Check]:
    report = ibstat.parse(stdout, stderr)
    return ibstat.judge(
        report,
        HCAS if hcas is None else hcas,
        rate=400,
        rate_source="board profile",
        link_layer=layer,
        firmware=firmware,
    )


def bad(checks: list[Check]) -> list[tuple[str, str, str, object]]:
    return [(c.check, c.subject, c.verdict, c.value) for c in checks if c.verdict != "pass"]


def test_eight_ndr_ports_pass_one_check_for_each_port_and_fact() -> None:
    checks = judge(GOOD, firmware="28.39.1002")
    assert bad(checks) == []
    assert len(checks) == 8 * 6
    assert [(c.check, c.value, c.limit) for c in checks if c.subject == "mlx5_3"] == [
        ("ib_port.link_layer", "InfiniBand", "InfiniBand"),
        ("ib_port.physical_state", "LinkUp", "LinkUp"),
        ("ib_port.state", "Active", "Active"),
        ("ib_port.rate", 400, 400),
        ("ib_port.sm_lid", 1, "not 0"),
        ("ib_port.firmware", "28.39.1002", "28.39.1002"),
    ]


def block(index: int) -> str:
    return "CA '" + GOOD.split("CA '")[index + 1]


def change(index: int, old: str, new: str) -> str:
    old_block = block(index)
    assert old in old_block
    return GOOD.replace(old_block, old_block.replace(old, new, 1))


FAULTS = {
    "Polling": (
        change(1, "State: Active", "State: Down").replace(
            block(1).replace("State: Active", "State: Down", 1),
            block(1).replace("State: Active", "State: Down", 1).replace("LinkUp", "Polling"),
        ),
        [("ib_port.physical_state", "mlx5_1", "fail", "Polling"), ("ib_port.state", "mlx5_1", "fail", "Down")],
    ),
    "Initializing, so no subnet manager": (
        change(1, "State: Active", "State: Initializing").replace(
            block(1).replace("State: Active", "State: Initializing", 1),
            block(1).replace("State: Active", "State: Initializing", 1).replace("SM lid: 1", "SM lid: 0"),
        ),
        [("ib_port.state", "mlx5_1", "fail", "Initializing"), ("ib_port.sm_lid", "mlx5_1", "fail", 0)],
    ),
    "HDR instead of NDR": (change(2, "Rate: 400", "Rate: 200"), [("ib_port.rate", "mlx5_2", "fail", 200)]),
    "no cable": (change(2, "Rate: 400", "Rate: 0"), [("ib_port.rate", "mlx5_2", "fail", 0)]),
    "Ethernet on an InfiniBand rail": (
        change(3, "Link layer: InfiniBand", "Link layer: Ethernet"),
        [("ib_port.link_layer", "mlx5_3", "fail", "Ethernet")],
    ),
    "no SM": (change(4, "SM lid: 1", "SM lid: 0"), [("ib_port.sm_lid", "mlx5_4", "fail", 0)]),
    "an adapter gone": (GOOD.replace(block(7), ""), [("ib_port.present", "mlx5_7", "fail", "missing")]),
    "a line missing": (change(5, "\t\tState: Active\n", ""), [("ib_port.state", "mlx5_5", "unknown", None)]),
    "rate is no number": (change(5, "Rate: 400", "Rate: ???"), [("ib_port.rate", "mlx5_5", "unknown", None)]),
    "link layer missing": (
        change(5, "\t\tLink layer: InfiniBand\n", ""),
        [("ib_port.link_layer", "mlx5_5", "unknown", None)],
    ),
}


@pytest.mark.parametrize(("text", "wanted"), FAULTS.values(), ids=FAULTS.keys())
def test_each_fault_is_named_at_its_port(text: str, wanted: list[tuple[str, str, str, object]]) -> None:
    assert bad(judge(text)) == wanted


def test_other_firmware_fails_at_its_port() -> None:
    text = change(6, "Firmware version: 28.39.1002", "Firmware version: 28.38.1900")
    assert bad(judge(text, firmware="28.39.1002")) == [("ib_port.firmware", "mlx5_6", "fail", "28.38.1900")]
    assert bad(judge(text)) == []


def test_an_adapter_that_left_while_ibstat_ran_is_unknown_and_the_others_are_judged() -> None:
    text = GOOD.replace(block(7), "").replace("Rate: 400", "Rate: 200", 1)
    checks = judge(text, "ibpanic: [4711] main: stat of IB device 'mlx5_7' failed: No such file or directory\n")
    assert worst(c.verdict for c in checks) == "fail"
    assert ("ib_port.present", "mlx5_7", "unknown", None) in bad(checks)
    assert ("ib_port.rate", "mlx5_0", "fail", 200) in bad(checks)
    assert "ibpanic" in checks[0].reason


def test_no_output_is_unknown() -> None:
    assert {c.verdict for c in judge("")} == {"unknown"}


def test_a_line_that_is_not_ibstats_is_shown() -> None:
    checks = judge(GOOD + "Segmentation fault\n")
    assert "Segmentation fault" in next(c.reason for c in checks if c.check == "ib_port.output")


def test_roce_ports_need_no_subnet_manager() -> None:
    assert bad(judge(ROCE, hcas=["mlx5_0", "mlx5_1"], layer="ethernet")) == []
    assert {c.check for c in judge(ROCE, hcas=["mlx5_0"]) if c.verdict == "fail"} == {"ib_port.link_layer"}


def test_ports_may_be_named() -> None:
    assert ibstat.split_hca("mlx5_0:2") == ("mlx5_0", 2)
    assert bad(judge(GOOD, hcas=["mlx5_0:1"])) == []
    assert bad(judge(GOOD, hcas=["mlx5_0:2"])) == [("ib_port.present", "mlx5_0:2", "fail", "missing")]


FIELDS = [
    ("State: Active", "State: Armed"),
    ("Physical state: LinkUp", "Physical state: LinkErrorRecovery"),
    ("Rate: 400", "Rate: 399"),
    ("SM lid: 1", "SM lid: x"),
    ("Link layer: InfiniBand", "Link layer: Unspecified"),
    ("Firmware version: 28.39.1002", "Firmware version: 28.39.1003"),
    ("Port 1:", "Port 2:"),
]


@pytest.mark.parametrize("index", range(8))
@pytest.mark.parametrize(("old", "new"), FIELDS, ids=[new for _unused, new in FIELDS])
def test_each_field_of_each_port_flips_the_verdict(index: int, old: str, new: str) -> None:
    checks = judge(change(index, old, new), firmware="28.39.1002")
    assert {c.subject for c in checks if c.verdict != "pass"} == {f"mlx5_{index}"}


@given(st.text(max_size=200), st.integers(0, len(GOOD)))
def test_garbage_never_raises_and_never_passes(garbage: str, cut: int) -> None:
    assert worst(c.verdict for c in judge(garbage)) != "pass"
    if cut < len(GOOD.rstrip()):
        assert worst(c.verdict for c in judge(GOOD[:cut])) != "pass"


def test_a_repeated_field_is_unreadable_and_not_the_last_one() -> None:
    checks = judge(GOOD.replace("\t\tState: Active", "\t\tState: Down\n\t\tState: Active", 1))
    assert bad(checks) == [("ib_port.output", "ibstat", "unknown", None), ("ib_port.state", "mlx5_0", "unknown", None)]
    assert checks[0].reason == "line 10 gives 'State' a second time: State: Active"


def test_a_repeated_port_is_unreadable_and_not_the_last_one() -> None:
    port = GOOD[GOOD.index("\tPort 1:") : GOOD.index("CA 'mlx5_1'")]
    checks = judge(GOOD.replace(port, port.replace("State: Active", "State: Down") + port, 1))
    assert checks[0].reason == "line 18 names port 1 of mlx5_0 a second time"
    assert {(c.subject, c.verdict) for c in checks if c.verdict != "pass"} == {
        ("ibstat", "unknown"),
        ("mlx5_0", "unknown"),
    }


def test_a_rate_that_cannot_be_read_does_not_blame_the_cable() -> None:
    found = [c for c in judge(GOOD.replace("Rate: 400", "Rate: nan", 1)) if c.verdict != "pass"]
    assert [(c.check, c.verdict, c.remedy) for c in found] == [
        ("ib_port.rate", "unknown", "Run ibstat by hand: what it prints is no rate.")
    ]

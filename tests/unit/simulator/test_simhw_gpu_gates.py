# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The fake nvidia-smi shows each GPU fault where the gates look for it, as text, XML and csv alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _gpu_health, _nvlink_status, _smi_query
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence
from ansible_collections.ai_infra.gpu_rack.plugins.modules import nvlink_status
from simhw import bundle

Make = Callable[..., Any]


def brought_up(make_node: Make, board: str = "hgx_h100_8") -> Any:
    """A node after a good bring-up: one VBIOS, persistence mode on."""
    node = make_node(board=board)
    node.hw = bundle.brought_up(node.hw)
    node.write()
    node.run("nvidia-smi", "-pm", "1")
    return node


def health(node: Any, *form: str, board: str = "hgx_h100_8", gpus: int | None = None) -> list[Check]:
    query = _smi_query.parse(node.run("nvidia-smi", "-q", *form)[1])
    return _gpu_health.judge(query, _gpu_health.Limits(profile(board), gpus=gpus))


def nvlink(node: Any, board: str = "hgx_h100_8", gpus: int | None = None) -> list[Check]:
    def read(*args: str) -> Evidence:
        rc, out, err = node.run("nvidia-smi", *args)
        return Evidence("nvidia-smi", rc, out, err)

    limits = _nvlink_status.Limits(profile(board), gpus=gpus)
    query = read("-q") if limits.board.nvswitch else None
    return nvlink_status.judge_readings(read("nvlink", "-s"), read("nvlink", "-e"), query, limits)[0]


def wrong(checks: list[Check]) -> list[tuple[str, str]]:
    return [(c.check, c.verdict) for c in checks if c.verdict != "pass"]


FAULTS = [
    ("gpu 3: fell off the bus", "gpu_health.gpus", "fail"),
    ("gpu 3: missing", "gpu_health.gpus", "fail"),
    ("gpu 3: product NVIDIA H200", "gpu_health.product", "fail"),
    ("gpu 3: vbios 96.00.89.00.01", "gpu_health.vbios", "fail"),
    ("gpu 3: temperature 91", "gpu_health.temperature", "fail"),
    ("ecc gpu 1: uncorrected 2", "gpu_health.ecc_volatile", "fail"),
    ("ecc gpu 1: off", "gpu_health.ecc_mode", "fail"),
    ("remap gpu 1: pending", "gpu_health.remap_pending", "fail"),
    ("remap gpu 1: failed", "gpu_health.remap_failed", "fail"),
    ("pcie gpu 2: x8", "gpu_health.pcie_width", "fail"),
    ("pcie gpu 2: gen4", "gpu_health.pcie_gen", "fail"),
    ("clocks gpu 2: hw slowdown", "gpu_health.clocks", "fail"),
    ("mig gpu 0: on", "gpu_health.mig", "fail"),
    ("persistence gpu 0: off", "gpu_health.persistence", "fail"),
    ("recovery gpu 4: reboot", "gpu_health.recovery", "fail"),
    ("nvlink 3/5: down", "nvlink_status.links", "fail"),
    ("nvlink 3/5: speed 13.281", "nvlink_status.speed", "fail"),
    ("nvlink 3/5: crc errors 12", "nvlink_status.errors", "fail"),
    ("fabric: in progress", "nvlink_status.fabric_state", "fail"),
    ("fabric gpu 5: in progress", "nvlink_status.fabric_state", "fail"),
    ("fabric: insufficient resources", "nvlink_status.fabric_state", "fail"),
]


@pytest.mark.parametrize(("fault", "check", "verdict"), FAULTS)
def test_a_fault_is_caught_by_its_check_and_heals(make_node: Make, fault: str, check: str, verdict: str) -> None:
    node = brought_up(make_node)
    gate = nvlink if check.startswith("nvlink") else health
    assert wrong(gate(node)) == []
    node.fault(fault)
    assert (check, verdict) in wrong(gate(node))
    node.fault()
    assert wrong(gate(node)) == []


def test_xml_and_text_are_judged_alike(make_node: Make) -> None:
    node = brought_up(make_node)
    node.fault("ecc gpu 1: uncorrected 2", "pcie gpu 2: gen4", "clocks gpu 2: sw thermal slowdown", "mig gpu 0: on")
    text, xml = health(node), health(node, "-x")
    assert wrong(xml) == wrong(text)
    assert [c.subject for c in xml] == [c.subject for c in text]


@pytest.mark.parametrize(("board", "gpus"), [("hgx_h100_4", None), ("h100_nvl", 8), ("h100_pcie", 4)])
def test_every_board_is_healthy(make_node: Make, board: str, gpus: int | None) -> None:
    node = brought_up(make_node, board)
    assert wrong(health(node, board=board, gpus=gpus)) == []
    assert wrong(nvlink(node, board, gpus)) == []


def test_a_bridged_card_lists_all_links_of_the_chip(make_node: Make) -> None:
    lines = make_node(board="h100_nvl").run("nvidia-smi", "nvlink", "-s")[1].splitlines()
    assert [line.split(": ")[1] for line in lines[1:19]] == ["26.562 GB/s"] * 12 + ["<inactive>"] * 6

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The simulated all_reduce_perf as the gate nccl_bandwidth reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _nccl_tests
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import PROFILES
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nccl_tests import Expect
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, worst

from tests.unit.simulator.simhw_node import Node

MakeNode = Callable[..., Node]


def judge(node: Node, gpus: int, board: str = "hgx_h100_8") -> tuple[str, Check, dict[str, object]]:
    """Run the tool as the module does; return the verdict, the first of the worst checks and what was measured."""
    size = str(8 * _nccl_tests.GIB)
    arguments = ("-b", size, "-e", size, "-g", str(gpus), "-n", "20", "-w", "5", "-c", "1")
    code, out, err = node.run("all_reduce_perf", *arguments)
    reading = Evidence("all_reduce_perf", code, out, err)
    expect = Expect(board=PROFILES[board], gpus=gpus, checked=True)
    (outcome,) = _nccl_tests.judge(reading, "board", expect)
    verdict = worst(c.verdict for c in outcome.checks)
    return verdict, next(c for c in outcome.checks if c.verdict == verdict), outcome.measured


@pytest.mark.parametrize(("board", "gpus"), [("hgx_h100_8", 8), ("hgx_h100_4", 4), ("h100_nvl", 2)])
def test_good_boards_pass(make_node: MakeNode, board: str, gpus: int) -> None:
    assert judge(make_node(board=board), gpus, board)[0] == "pass"


def test_unit_is_measured_by_uuid(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node()
    chosen = [gpu["uuid"] for gpu in node.hw["gpus"][4:]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(chosen))
    verdict, _check, measured = judge(node, 4)
    assert (verdict, measured["gpus"]) == ("pass", 4)
    assert judge(node, 8)[1].check == "nccl_bandwidth.failure", "it sees four GPUs only"


FAULTS = {
    "nccl: 60%": ("fail", "nccl_bandwidth.busbw"),
    "nccl: wrong": ("fail", "nccl_bandwidth.correct"),
    "nccl: unchecked": ("unknown", "nccl_bandwidth.correct"),
    "nccl: cut off": ("unknown", "nccl_bandwidth.output"),
    "nccl: fails": ("unknown", "nccl_bandwidth.failure"),
    "link 0-2: NV9": ("fail", "nccl_bandwidth.busbw"),
    "gpu 3: fell off the bus": ("fail", "nccl_bandwidth.failure"),
    "tool all_reduce_perf: missing": ("unknown", "nccl_bandwidth.failure"),
    "tool all_reduce_perf: garbage": ("unknown", "nccl_bandwidth.output"),
    "tool all_reduce_perf: empty": ("unknown", "nccl_bandwidth.output"),
    "tool all_reduce_perf: error exit 0": ("unknown", "nccl_bandwidth.output"),
}


@pytest.mark.parametrize(("fault", "wanted"), FAULTS.items(), ids=FAULTS.keys())
def test_faults_are_caught_and_heal(make_node: MakeNode, fault: str, wanted: tuple[str, str]) -> None:
    node = make_node()
    node.fault(fault)
    verdict, check, _measured = judge(node, 8)
    assert (verdict, check.check) == wanted, check
    node.fault()
    assert judge(node, 8)[0] == "pass"

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the simulated kernel says about a bound process, judged by the gate itself."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _numa_binding
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._numa_binding import Unit
from simhw import host, numa
from simhw import hw as store

MakeNode = Callable[..., Any]
STATUS = (
    "Name:\tpython3\nVmSize:\t9 kB\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n"
    "Mems_allowed:\t1\nMems_allowed_list:\t0\n"
)
MAPS = (
    "00400000 bind:0 file=/usr/bin/python3.11 mapped=31 N0=31 kernelpagesize_kB=4\n"
    "38576000 bind:0 heap anon=5000 dirty=5000 N0=5000 kernelpagesize_kB=4\n"
    "7ffee94f9000 bind:0 stack anon=8 dirty=8 N0=8 kernelpagesize_kB=4\n"
    "7ffee9500000 bind:0\n"
)
BINDING = {"node": "1", "nodes": "1", "cpus": "56-83"}
UNIT = Unit("iu1", frozenset(range(56, 84)), 1)


def verdicts(binding: dict[str, str] | None) -> list[str]:
    hw = store.effective()
    made = numa.status(STATUS, hw, binding), numa.numa_maps(MAPS, hw, binding)
    return [c.verdict for c in _numa_binding.judge_process(UNIT, "pid 7", *made)]


def test_a_bound_process_passes_its_gate(make_node: MakeNode) -> None:
    make_node()
    assert verdicts(BINDING) == ["pass", "pass", "pass"]
    assert verdicts({**BINDING, "cpus": ""}) == ["fail", "pass", "pass"]


def test_faults_show(make_node: MakeNode) -> None:
    node = make_node()
    node.fault("numa memory: 22% remote")
    assert verdicts(BINDING) == ["pass", "pass", "fail"]
    assert "N0=1100 N1=3900" in numa.numa_maps(MAPS, store.effective(), BINDING)
    node.fault("unit iu1: unbound")
    assert store.effective()["numactl"]["unbound_units"] == ["iu1"]
    assert verdicts(None) == ["fail", "warn", "fail"]


def test_pages_of_files_stay(make_node: MakeNode) -> None:
    make_node()
    made = numa.numa_maps(MAPS, store.effective(), BINDING).splitlines()
    assert made[0] == "00400000 bind:1 file=/usr/bin/python3.11 mapped=31 N0=31 kernelpagesize_kB=4"
    assert made[1] == "38576000 bind:1 heap anon=5000 dirty=5000 N1=5000 kernelpagesize_kB=4"


def test_numactl_leaves_a_note(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node()
    monkeypatch.setattr("os.execv", lambda file, argv: None)
    monkeypatch.delenv(numa.NOTE, raising=False)
    node.run("numactl", "--cpunodebind=1", "--physcpubind=56-83", "--membind=1", "prog")
    assert json.loads(os.environ[numa.NOTE]) == BINDING


def test_the_kernel_log_says_that_the_driver_was_loaded(make_node: MakeNode) -> None:
    node = make_node()
    log = node.root / "run/simhw/kmsg"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("[    0.000000] Linux version 6.1.0-40-amd64\n")
    host.driver_loaded("580.95.05")
    assert "NVRM: loading NVIDIA UNIX Open Kernel Module" in log.read_text().splitlines()[1]

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the readers and the judgement of where a running unit's CPUs and memory are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _numa_binding as numa
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._numa_binding import Unit
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import worst

FIXTURES = Path(__file__).parents[2] / "fixtures"
BOUND = (FIXTURES / "linux-6.1-numa_maps-bound.txt").read_text()
REMOTE = (FIXTURES / "linux-6.1-numa_maps-22-percent-remote.txt").read_text()
STATUS = (FIXTURES / "linux-6.1-status-vllm.txt").read_text()
UNIT = Unit("iu0", frozenset(range(28)), 0)
OTHER = Unit("iu1", frozenset(range(56, 84)), 1)


def judged(unit: Unit, status: str | None, maps: str | None) -> list[tuple[str, str, object]]:
    return [(c.check, c.verdict, c.value) for c in numa.judge_process(unit, "pid 7", status, maps)]


def test_a_bound_process_passes() -> None:
    assert judged(UNIT, STATUS, BOUND) == [
        ("numa_binding.cpus", "pass", "0-27"),
        ("numa_binding.policy", "pass", "bind:0"),
        ("numa_binding.local_memory", "pass", 100.0),
    ]
    (first, *_rest) = numa.judge_process(UNIT, "pid 7", STATUS, BOUND)
    assert first.subject == "iu0 pid 7 (VLLM::Worker_TP)"


def test_pages_of_files_do_not_count_and_huge_pages_count_by_their_size() -> None:
    memory = numa.parse_numa_maps(BOUND)
    assert memory.local == {0: 4 * (89 + 182344 + 33792 + 4096 + 41) + 2048 * 512}
    assert (memory.problems, memory.lines) == ((), 10)


def test_the_known_failure_of_a_late_binding() -> None:
    assert judged(UNIT, STATUS, REMOTE) == [
        ("numa_binding.cpus", "pass", "0-27"),
        ("numa_binding.policy", "warn", "default"),
        ("numa_binding.local_memory", "fail", 78.07),
    ]


def test_the_wrong_node() -> None:
    assert judged(OTHER, STATUS, BOUND) == [
        ("numa_binding.cpus", "fail", "0-27"),
        ("numa_binding.policy", "fail", "bind:0"),
        ("numa_binding.local_memory", "fail", 0.0),
    ]


POLICIES = {
    "bound with a mode": ("bind=static:0", "pass"),
    "preferred": ("prefer:0", "warn"),
    "preferred elsewhere": ("prefer:1", "fail"),
    "local": ("local", "warn"),
    "interleaved": ("interleave:0-1", "fail"),
    "two nodes": ("bind:0-1", "fail"),
}


@pytest.mark.parametrize(("policy", "verdict"), POLICIES.values(), ids=POLICIES.keys())
def test_policy(policy: str, verdict: str) -> None:
    found = judged(UNIT, None, BOUND.replace("bind:0", policy))
    assert found[0][:2] == ("numa_binding.policy", verdict)


def test_a_cpuset_of_one_node_needs_no_policy() -> None:
    status = STATUS.replace("Mems_allowed_list:\t0-1", "Mems_allowed_list:\t0")
    assert judged(UNIT, status, BOUND.replace("bind:0", "default"))[1] == (
        "numa_binding.policy",
        "pass",
        "Mems_allowed 0",
    )
    wrong = STATUS.replace("Mems_allowed_list:\t0-1", "Mems_allowed_list:\t1")
    assert judged(UNIT, wrong, BOUND)[1] == ("numa_binding.policy", "fail", "Mems_allowed 1")


UNREADABLE = {
    "empty": "",
    "garbage": "\x7fELF 8<<<\n",
    "only files": "7e2f20000000 default file=/usr/lib/libc.so.6 mapped=391 N0=20 N1=371 kernelpagesize_kB=4\n",
    "cut in a number": BOUND[: BOUND.index("N0=182344") + 6],
    "a line of another format": BOUND + "total 12 MiB\n",
    "pages on no node": BOUND + "7ffd9c0b0000 default anon=41 dirty=41 kernelpagesize_kB=4\n",
    "more anonymous pages than pages": BOUND + "7ffd9c0b0000 default anon=41 N0=4 kernelpagesize_kB=4\n",
    "an error": "!cat /proc/7/numa_maps ended with status 1: Permission denied",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_memory_that_cannot_be_read_is_unknown(text: str) -> None:
    assert {v for _check, v, _value in judged(UNIT, None, text)} == {"unknown"}


@pytest.mark.parametrize(
    "status",
    [
        "",
        "garbage\n",
        STATUS[:-4],
        STATUS.replace("Cpus_allowed_list:\t0-27", "Cpus_allowed_list:\t"),
        STATUS.replace("VmSize", "VmLck"),
        "!late",
    ],
)
def test_cpus_that_cannot_be_read_are_unknown(status: str) -> None:
    assert judged(UNIT, status, BOUND)[0][:2] == ("numa_binding.cpus", "unknown")


def test_without_a_limit_nothing_passes() -> None:
    assert {v for _check, v, _value in judged(Unit("unit", None, None), STATUS, BOUND)} == {"unknown"}


SHOW = "policy: bind\npreferred node: 0\nphyscpubind: 0 1 2 3 \ncpubind: 0 \nnodebind: 0 \nmembind: 0 \npreferred: \n"
FREE = (
    "policy: default\npreferred node: current\nphyscpubind: 0 1 56 57 \ncpubind: 0 1 \nnodebind: 0 1 \nmembind: 0 1 \n"
)
STAT = """
Per-node process memory usage (in MBs) for PID 12345 (VLLM::Worker_TP)
                           Node 0          Node 1           Total
                  --------------- --------------- ---------------
Huge                         0.00            0.00            0.00
Heap                       712.28            0.00          712.28
Stack                        0.16            0.00            0.16
Private                   1203.00           12.30         1215.30
----------------  --------------- --------------- ---------------
Total                     1915.44           12.30         1927.74
"""
TEXTS = {
    "numastat": (STAT, ["pass"]),
    "numastat remote": (STAT.replace("1915.44           12.30", "1503.64          424.10"), ["fail"]),
    "numastat cut": (STAT[:-30], ["unknown"]),
    "numastat wrong sum": (STAT.replace("1915.44", "115.44"), ["unknown"]),
    "numactl": (SHOW, ["pass", "pass"]),
    "numactl unbound": (FREE, ["fail", "warn"]),
    "numactl elsewhere": (SHOW.replace(" 0 \npref", " 1 \npref").replace("node: 0", "node: 1"), ["pass", "fail"]),
    "numactl cut": (SHOW[:60], ["unknown", "unknown"]),
    "taskset": ("pid 4242's current affinity list: 0-27\npid 4243's current affinity list: 0-27\n", ["pass", "pass"]),
    "taskset unbound": ("pid 4242's current affinity list: 0-111\n", ["fail"]),
    "taskset cut": ("pid 4242's current affinity list: 0-2", ["pass", "unknown"]),
    "status": (STATUS, ["pass"]),
    "two lines of status": ("Cpus_allowed_list:\t0-27\nMems_allowed_list:\t0\n", ["pass", "pass"]),
    "numa_maps": (BOUND, ["pass", "pass"]),
    "garbage": ("hello\n", ["unknown", "unknown"]),
}


@pytest.mark.parametrize(("text", "verdicts"), TEXTS.values(), ids=TEXTS.keys())
def test_one_file(text: str, verdicts: list[str]) -> None:
    assert [c.verdict for c in numa.judge_text(UNIT, text)] == verdicts


HARDWARE = (FIXTURES / "numactl-2.0.18-hardware.txt").read_text()
NO_MEMORY = HARDWARE.replace("0 size: 1031702", "0 size: 0").replace("0 free: 1012345", "0 free: 0")


def test_numactl_hardware() -> None:
    values = numa.parse(HARDWARE)
    assert (values["nodes"], values["cpus"]) == (2, {0: "0-3,8-11", 1: "4-7,12-15"})
    assert (values["size_mb"], values["distances"]) == ({0: 1031702, 1: 1032192}, {0: [10, 21], 1: [21, 10]})

    def verdict(unit: Unit, text: str = HARDWARE) -> str:
        return worst(c.verdict for c in numa.judge_text(unit, text))

    assert verdict(Unit("unit", frozenset({0, 8}), 0)) == "pass"
    assert verdict(Unit("unit", frozenset({0, 4}), 0)) == "fail"
    assert verdict(Unit("unit", frozenset({0}), 2)) == "fail"
    assert verdict(Unit("unit", frozenset({0}), 0), NO_MEMORY) == "fail"
    assert verdict(Unit("unit", frozenset({0}), 0), HARDWARE[:150]) == "unknown"
    assert verdict(Unit("unit", None, 1)) == "pass"
    assert verdict(Unit("unit", None, 2)) == "fail"


def test_numactl_hardware_alone_is_judged_for_what_the_host_has() -> None:
    nobody = Unit("unit", None, None)

    def judge(text: str) -> tuple[str, str, object]:
        (check,) = numa.judge_text(nobody, text)
        return check.check, check.verdict, check.value

    assert judge(HARDWARE) == ("numa_binding.nodes", "pass", "2 nodes, 16 CPUs")
    bare = HARDWARE.replace("1 size: 1032192", "1 size: 0").replace("1 free: 1020001", "1 free: 0")
    assert judge(bare)[:2] == ("numa_binding.nodes", "fail")
    one = "available: 1 nodes (0)\nnode 0 cpus: 0 1\nnode 0 size: 16383 MB\nnode 0 free: 530 MB\n"
    assert judge(one + "node distances:\nnode   0 \n  0:  10 \n")[1:] == ("pass", "1 nodes, 2 CPUs")
    assert judge(one + "No distance information available.\n")[1] == "pass"
    lines = HARDWARE.splitlines(keepends=True)
    for number in range(len(lines)):
        if "node distances" not in lines[number] and not lines[number].startswith("node   0"):
            assert judge("".join(lines[:number] + lines[number + 1 :]))[1] == "unknown", lines[number]
    for old, new in ((" 10  21", " 21  10"), ("4 5 6", "4 5 0"), ("0 free: 1012345", "0 free: 9912345")):
        assert judge(HARDWARE.replace(old, new))[1] == "unknown"
    # Many distances and a line that does not end cost no time.
    start = time.process_time()
    judge(HARDWARE + "  2: " + " 120" * 500 + "x\n")
    assert time.process_time() - start < 2


ALONE = {
    "bound": (SHOW, "pass"),
    "free on two nodes": (FREE, "fail"),
    "CPUs and memory of different nodes": (SHOW.replace("membind: 0", "membind: 1"), "fail"),
    "interleaved": (
        SHOW.replace("policy: bind", "policy: weighted-interleave").replace("membind: 0", "membind: 0 1"),
        "fail",
    ),
    "no nodebind": (SHOW.replace("nodebind", "nodebint").replace("cpubind: 0", "cpubint: 0"), "unknown"),
    "numa_maps bound": (BOUND, "pass"),
    "numa_maps remote": (REMOTE, "fail"),
    "numastat": (STAT, "pass"),
    "numastat remote": (STAT.replace("1915.44           12.30", "1503.64          424.10"), "fail"),
    "taskset": ("pid 4242's current affinity list: 0-27\n", "unknown"),
    "status": (STATUS, "unknown"),
}


@pytest.mark.parametrize(("text", "verdict"), ALONE.values(), ids=ALONE)
def test_one_file_without_options_is_held_against_the_node_it_shows(text: str, verdict: str) -> None:
    assert worst(c.verdict for c in numa.judge_text(Unit("unit", None, None), text)) == verdict


def test_values_of_the_other_reports() -> None:
    assert numa.parse(SHOW)["physcpubind"] == "0 1 2 3"
    assert numa.parse("pid 4242's current affinity list: 0-27\n") == {"cpus": {"4242": "0-27"}}
    assert numa.parse(STATUS) == {"name": "VLLM::Worker_TP", "cpus": "0-27", "mems": "0-1"}
    assert numa.parse(STAT)["kilobytes"] == {0: 1961410, 1: 12595}
    assert numa.parse(BOUND)["policies"] == {"bind:0": 1930024}


UNITS = {
    "runs": ({"ActiveState": "active", "MainPID": "7"}, [7, 8], None, "pass"),
    "stopped": ({"ActiveState": "inactive", "MainPID": "0"}, [], None, "fail"),
    "starting": ({"ActiveState": "activating", "MainPID": "7"}, [7], None, "fail"),
    "no process": ({"ActiveState": "active", "MainPID": "7"}, [], None, "unknown"),
    "main process not listed": ({"ActiveState": "active", "MainPID": "7"}, [8], None, "unknown"),
    "systemd says nothing": ({}, [], None, "unknown"),
    "cut before the main process": ({"ActiveState": "active"}, [7], None, "unknown"),
    "not read": ({"ActiveState": "active"}, [], "late", "unknown"),
}


@pytest.mark.parametrize(("state", "pids", "problem", "verdict"), UNITS.values(), ids=UNITS.keys())
def test_unit(state: dict[str, str], pids: list[int], problem: str | None, verdict: str) -> None:
    assert numa.unit_check("iu0", state, pids, problem).verdict == verdict

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the reader and the judgement of idle states."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cpuidle as cpuidle
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cpuidle import Idle, State
from hypothesis import given, settings
from hypothesis import strategies as st

POLL, C1, C1E = State(0, "POLL", "0", "0"), State(1, "C1", "1", "0"), State(2, "C1E", "2", "0")
C6, C6_OFF = State(3, "C6", "290", "0"), State(3, "C6", "290", "1")


def idle(
    states: dict[int, tuple[State, ...]], driver: str = "intel_idle", cmdline: str = "", present: int | None = None
) -> Idle:
    return Idle(states, frozenset(range(len(states) if present is None else present)), driver, cmdline)


def verdicts(found: Idle, limit: int | None = 2) -> list[tuple[str, str, object]]:
    return [(c.subject, c.verdict, c.value) for c in cpuidle.judge(found, limit, "test")]


SHALLOW = (POLL, C1, C1E, C6_OFF)
CASES = {
    "deep state off everywhere": (idle(dict.fromkeys(range(4), SHALLOW)), [("CPU 0-3", "pass", 2)]),
    "only C1 offered": (idle(dict.fromkeys(range(4), (POLL, C1))), [("CPU 0-3", "pass", 1)]),
    "C6 on one CPU": (
        idle({**dict.fromkeys(range(8), SHALLOW), 5: (POLL, C1, C1E, C6)}),
        [("CPU 5", "fail", 290)],
    ),
    "C6 on some CPUs": (
        idle({c: (POLL, C1, C6) if c in (0, 1, 2, 6) else SHALLOW for c in range(8)}),
        [("CPU 0-2,6", "fail", 290)],
    ),
    "a deep state under a harmless name": (idle({0: (POLL, State(1, "C1", "41", "0"))}), [("CPU 0", "fail", 41)]),
    "C1E of an older CPU": (idle({0: (POLL, C1, State(2, "C1E", "10", "0"))}), [("CPU 0", "fail", 10)]),
    "latency cannot be read": (idle({0: (POLL, State(1, "C1", "", "0"))}), [("CPU 0", "unknown", None)]),
    "flag cannot be read": (idle({0: (POLL, State(1, "C6", "290", ""))}), [("CPU 0", "unknown", None)]),
    "negative latency": (idle({0: (POLL, State(1, "C6", "-1", "0"))}), [("CPU 0", "unknown", None)]),
    "disabled by the driver": (idle({0: (POLL, State(1, "C6", "290", "2"))}), [("CPU 0", "pass", 0)]),
    "a CPU without the directory": (idle({0: SHALLOW, 1: SHALLOW}, present=3), [("CPU 2", "unknown", None)]),
    "no states, told to poll": (idle({}, "none", "quiet idle=poll", 4), [("all CPUs", "pass", "no idle driver")]),
    "no states, max_cstate 0": (
        idle({}, "none", "intel_idle.max_cstate=0 processor.max_cstate=0", 4),
        [("all CPUs", "pass", "no idle driver")],
    ),
    "no states, nobody asked": (idle({}, "none", "quiet", 4), [("all CPUs", "unknown", None)]),
    "no states, driver not readable": (idle({}, "", "idle=poll", 4), [("all CPUs", "unknown", None)]),
    "no states with a driver": (idle({}, "intel_idle", "idle=poll", 4), [("all CPUs", "unknown", None)]),
    "a word that only resembles it": (idle({}, "none", "intel_idle.max_cstate=09", 4), [("all CPUs", "unknown", None)]),
}


@pytest.mark.parametrize(("found", "wanted"), CASES.values(), ids=CASES.keys())
def test_verdicts(found: Idle, wanted: list[tuple[str, str, object]]) -> None:
    assert verdicts(found) == wanted


def test_the_limit_is_an_input() -> None:
    found = idle({0: (POLL, State(1, "C1E", "10", "0"))})
    assert verdicts(found, 10) == [("CPU 0", "pass", 10)]
    assert verdicts(found, None) == [("all CPUs", "unknown", None)]


def make_tree(root: Path, cpus: int, deep_on: int | None) -> Path:
    base = root / "devices/system/cpu"
    for cpu in range(cpus):
        for state in (POLL, C1, C6 if cpu == deep_on else C6_OFF):
            directory = base / f"cpu{cpu}/cpuidle/state{state.index}"
            directory.mkdir(parents=True)
            for name in ("name", "latency", "disable"):
                (directory / name).write_text(getattr(state, name) + "\n")
    (base / "cpufreq").mkdir()
    (base / "cpuidle").mkdir()
    (base / "cpuidle/current_driver").write_text("intel_idle\n")
    (base / "online").write_text(f"0-{cpus - 1}\n")
    return root


def test_a_tree_reads_the_same_from_sysfs_and_from_the_cpu_directory(tmp_path: Path) -> None:
    root = make_tree(tmp_path, 12, 10)
    found = cpuidle.read_tree(root, None)
    assert found == cpuidle.read_tree(root / "devices/system/cpu", None)
    assert (found.driver, found.present) == ("intel_idle", frozenset(range(12)))
    assert verdicts(found) == [("CPU 10", "fail", 290)]


def test_a_dump_is_short_and_reads_back(tmp_path: Path) -> None:
    found = cpuidle.read_tree(make_tree(tmp_path, 64, 10), None)
    text = cpuidle.dump(found)
    assert '"0-9,11-63"' in text
    assert cpuidle.parse(text) == found


def test_output_of_grep_is_read() -> None:
    lines = [
        f"/sys/devices/system/cpu/cpu{c}/cpuidle/state{s.index}/{k}:{getattr(s, k)}"
        for c in (0, 1)
        for s in (POLL, C6)
        for k in ("name", "latency", "disable")
    ]
    assert verdicts(cpuidle.parse("\n".join([*lines, "/sys/devices/system/cpu/cpu0/cpuidle/state0/usage:7", ""]))) == [
        ("CPU 0-1", "fail", 290)
    ]


@pytest.mark.parametrize("text", ["", "hello", "{", "{}", '{"cpus": {"x": []}}', '{"cpus": {"0": [1]}}', "[" * 5000])
def test_text_that_holds_no_states_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        cpuidle.parse(text)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.text(max_size=120), st.text('{}[]":0123456789,cpusnamelatencydisable/state\n', max_size=200)))
def test_garbage_raises_only_value_error_and_never_passes(garbage: str) -> None:
    with contextlib.suppress(ValueError):
        assert all(v != "pass" for _unused, v, _unused in verdicts(cpuidle.parse(garbage)))


def _grep(*lines: str) -> str:
    return "".join(f"/sys/devices/system/cpu/cpu0/cpuidle/state0/{line}\n" for line in lines)


AMBIGUOUS = {
    "cut in a number": (_grep("name:C6", "disable:0", "latency:133")[:-3], "the last line is cut"),
    "a file twice": (
        _grep("name:C6", "latency:133", "disable:0", "latency:1"),
        "latency of state0 of cpu0 is there twice",
    ),
    "empty list of states": ('{"cpus": {"0-111": []}}', "the list of states of CPU '0-111' is empty"),
    "a key twice": ('{"cpus": {"0": [{"latency": 133}], "0": [{"latency": 1}]}}', "a key is there twice"),
    "a CPU twice": (
        '{"cpus": {"0-3": [{"name": "C1", "latency": 1}], "2": [{"name": "C1", "latency": 1}]}}',
        "CPU 2 is there twice",
    ),
    "a state twice": ('{"cpus": {"0": [{"index": 1}, {"index": 1}]}}', "a state of CPU '0' is there twice"),
}


@pytest.mark.parametrize(("text", "reason"), AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_text_that_can_be_read_in_two_ways_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        cpuidle.parse(text)


@pytest.mark.parametrize("lines", [("name:C1", "disable:0"), ("latency:1", "disable:0")], ids=["latency", "name"])
def test_a_state_without_name_or_latency_is_unknown(lines: tuple[str, ...]) -> None:
    assert [c.verdict for c in cpuidle.judge(cpuidle.parse(_grep(*lines)), 2, "profile")] == ["unknown"]

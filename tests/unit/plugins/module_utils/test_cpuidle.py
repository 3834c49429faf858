# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the reader and the judgement of idle states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cpuidle as cpuidle
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cpuidle import Idle, State
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
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


def test_output_of_head_and_relative_paths() -> None:
    base = "cpu3/cpuidle/state1"
    files = (("name", "C6"), ("latency", "290"), ("disable", "0"), ("usage", "5"), ("time", "7"))
    head = "\n".join(f"==> /sys/devices/system/cpu/{base}/{name} <==\n{value}\n" for name, value in files)
    grep = "".join(f"{base}/{name}:{value}\n" for name, value in files)
    assert cpuidle.parse(head) == cpuidle.parse(grep)
    assert verdicts(cpuidle.parse(grep)) == [("CPU 3", "fail", 290)]
    assert cpuidle.parse(grep).counters == ({(3, 1): ("5", "7")},)


@pytest.mark.parametrize("text", ["", "hello", "{", "{}", '{"cpus": {"x": []}}', '{"cpus": {"0": [1]}}', "[" * 5000])
def test_text_that_holds_no_states_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        cpuidle.parse(text)


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


def counted(*readings: dict[tuple[int, int], tuple[str, str]]) -> Idle:
    states = {0: (POLL, C1, C6_OFF), 1: (POLL, C1, C6_OFF)}
    return Idle(states, frozenset(states), "intel_idle", "", readings)


STILL = {(cpu, 3): ("10", "5000") for cpu in (0, 1)}
RESIDENCY = {
    "nothing grows": (counted(STILL, STILL), ("CPU 0-1", "pass", 0)),
    "a disabled state grows": (counted(STILL, {**STILL, (1, 3): ("12", "7500")}), ("CPU 1", "fail", 2500)),
    "only its use grows": (counted(STILL, {**STILL, (1, 3): ("11", "5000")}), ("CPU 1", "fail", 0)),
    "a shallow state may grow": (
        counted({**STILL, (0, 1): ("1", "1")}, {**STILL, (0, 1): ("9", "9")}),
        ("CPU 0-1", "pass", 0),
    ),
    "backwards": (counted(STILL, {**STILL, (1, 3): ("9", "5000")}), ("CPU 1", "unknown", None)),
    "not readable": (counted(STILL, {**STILL, (1, 3): ("10", "")}), ("CPU 1", "unknown", None)),
    "gone": (counted(STILL, {(0, 3): ("10", "5000")}), ("CPU 1", "unknown", None)),
}


@pytest.mark.parametrize(("found", "wanted"), RESIDENCY.values(), ids=RESIDENCY.keys())
def test_residency_between_two_readings(found: Idle, wanted: tuple[str, str, object]) -> None:
    checks = [c for c in cpuidle.judge(found, 2, "test") if c.check == "cpu_idle.residency"]
    assert [(c.subject, c.verdict, c.value) for c in checks] == [wanted]
    assert cpuidle.parse(cpuidle.dump(found)) == found


def test_one_reading_says_nothing_about_growth() -> None:
    assert {c.check for c in cpuidle.judge(counted(STILL), 2, "test")} == {"cpu_idle.exit_latency"}


def test_two_trees(tmp_path: Path) -> None:
    root = make_tree(tmp_path, 2, None)
    base = root / "devices/system/cpu/cpu1/cpuidle/state3"
    for name, value in (("usage", "7"), ("time", "900")):
        for cpu in (0, 1):
            (root / f"devices/system/cpu/cpu{cpu}/cpuidle/state3/{name}").write_text(value + "\n")
    first = cpuidle.read_tree(root, None)
    (base / "time").write_text("1900\n")
    found = cpuidle.later(first, cpuidle.read_tree(root, None))
    assert ("CPU 1", "fail", 1000) in verdicts(found)


CPUPOWER = (FIXTURES / "cpupower-6.1-idle-info.txt").read_text()


def test_cpupower_idle_info() -> None:
    found = cpuidle.parse(CPUPOWER)
    assert found.driver == "intel_idle"
    assert found.cpus == {0: (POLL, C1, C1E, C6_OFF)}
    assert verdicts(found) == [("CPU 0", "pass", 2)]
    assert verdicts(cpuidle.parse(CPUPOWER.replace("C6 (DISABLED) :", "C6:"))) == [("CPU 0", "fail", 290)]
    two = CPUPOWER + CPUPOWER[CPUPOWER.index("analyzing") :].replace("CPU 0", "CPU 1").replace(" (DISABLED) ", "")
    assert verdicts(cpuidle.parse(two)) == [("CPU 1", "fail", 290)]


@pytest.mark.parametrize("size", range(1, len(CPUPOWER) - 1, 7))
def test_a_cut_report_of_cpupower_never_passes(size: int) -> None:
    with contextlib.suppress(ValueError):
        assert "pass" not in [v for _subject, v, _value in verdicts(cpuidle.parse(CPUPOWER[:size]))]


def grep_of(cpus: Iterable[int], states: tuple[State, ...] = (POLL, C1, C6_OFF), counted: str = "5") -> str:
    lines = []
    for cpu in cpus:
        for state in states:
            base = f"/sys/devices/system/cpu/cpu{cpu}/cpuidle/state{state.index}"
            lines += [f"{base}/{name}:{getattr(state, name)}" for name in ("name", "latency", "disable")]
            lines += [f"{base}/{name}:{counted}" for name in ("usage", "time")]
    return "\n".join(lines) + "\n"


def test_a_text_that_is_cut_between_lines() -> None:
    by_name = sorted(range(112), key=str)
    assert verdicts(cpuidle.parse(grep_of(by_name))) == [("CPU 0-111", "pass", 1)]
    # In the order of a shell's wildcard the first third of the text has CPU 100 and not CPU 2.
    cut = verdicts(cpuidle.parse(grep_of(by_name[:30])))
    assert cut[0] == ("CPU 3-9,25-99", "unknown", None)
    whole = "/sys/devices/system/cpu/online:0-111\n" + grep_of(range(28))
    assert verdicts(cpuidle.parse(whole))[0] == ("CPU 28-111", "unknown", None)
    offline = "/sys/devices/system/cpu/online:0,2-3\n" + grep_of((0, 2, 3))
    assert verdicts(cpuidle.parse(offline)) == [("CPU 0,2-3", "pass", 1)]
    with pytest.raises(ValueError, match="list of online CPUs cannot be read"):
        cpuidle.parse("/sys/devices/system/cpu/online:0-\n" + grep_of((0, 1)))
    # One CPU was asked for; within a CPU the lines of its last states are missing.
    assert verdicts(cpuidle.parse(grep_of((7,)))) == [("CPU 7", "pass", 1)]
    lines = grep_of(range(4)).splitlines(keepends=True)
    assert verdicts(cpuidle.parse("".join(lines[:-5]))) == [("CPU 3", "unknown", None)]


def test_two_readings_of_different_cpus() -> None:
    cut, whole = cpuidle.parse(grep_of(range(29))), cpuidle.parse(grep_of(range(112)))
    for first, second in ((cut, whole), (whole, cut)):
        checks = cpuidle.judge(cpuidle.later(first, second), 2, "test")
        assert ("cpu_idle.whole", "CPU 29-111", "unknown") in [(c.check, c.subject, c.verdict) for c in checks]
    same = cpuidle.judge(cpuidle.later(whole, whole), 2, "test")
    assert [c.verdict for c in same] == ["pass", "pass"]


def test_grep_in_a_cpu_s_own_directory() -> None:
    text = grep_of((0,)).replace("/sys/devices/system/cpu/cpu0/cpuidle/", "")
    assert verdicts(cpuidle.parse(text)) == [("CPU 0", "pass", 1)]


def test_cpupower_of_all_cpus_with_one_offline() -> None:
    block = CPUPOWER[CPUPOWER.index("analyzing") :]
    head = CPUPOWER.removesuffix(block)
    three = [block.replace("CPU 0", f"CPU {n}") for n in (0, 1, 2)]
    offline = "analyzing CPU 1:\n *is offline\n"
    assert verdicts(cpuidle.parse(head + three[0] + offline + three[2])) == [("CPU 0,2", "pass", 2)]
    assert verdicts(cpuidle.parse(head + three[0] + three[2]))[0] == ("CPU 1", "unknown", None)
    bare = CPUPOWER.replace("CPUIDLE CORE POLL IDLE", "")
    assert verdicts(cpuidle.parse(bare)) == [("CPU 0", "pass", 2)]

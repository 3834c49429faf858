# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Idle states of the CPUs as the kernel offers them, and their judgement. `read_tree` reads, the rest is pure."""

from __future__ import annotations

import collections
import dataclasses
import json
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import format_set, number_set
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, unknown

GATE = "cpu_idle"

CHECKS: dict[str, str] = {
    "cpu_idle.exit_latency": "No idle state the kernel may use takes longer to leave than the board profile or option "
    "max_exit_latency_us allows, on every CPU.",
    "cpu_idle.residency": "Between two readings no CPU has spent time in a state over that limit, whatever the disable "
    "flags, the BIOS and the command line say.",
    "cpu_idle.output": "The idle states can be read.",
    "cpu_idle.whole": "The reading is whole: every online CPU is in it, none lacks states that most CPUs have, and "
    "both readings hold the same CPUs; one that is cut off proves nothing for the CPUs that are missing.",
}

Counters = dict[tuple[int, int], tuple[str, str]]
"""Usage and time in microseconds, as printed, by CPU and number of the state."""
_CPU = re.compile(r"cpu([0-9]{1,5})")
_STATE = re.compile(r"state([0-9]{1,3})")
# In a CPU's own directory grep names no CPU: it is called 0 then.
_GREP = re.compile(r"(?:(?:.*/)?cpu([0-9]{1,5})/cpuidle/)?state([0-9]{1,3})/(name|latency|disable|usage|time):(.*)")
_ONLINE = re.compile(r"(?:.*/)?cpu/online:(.*)")
# Each of these keeps the kernel out of every state that needs an idle driver.
_NO_DRIVER_WORDS = ("idle=poll", "idle=halt", "cpuidle.off=1", "intel_idle.max_cstate=0", "processor.max_cstate=0")
_REMEDY = (
    "Turn C-states off in the BIOS and on the kernel command line (role cstates), then reboot; disable "
    "the state in sysfs until then."
)


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """One idle state as printed; a missing file is an empty string."""

    index: int
    name: str
    latency: str
    disable: str


@dataclasses.dataclass(frozen=True, slots=True)
class Idle:
    """What the kernel offers: states by CPU (no entry: the CPU has no cpuidle directory), and the circumstances.

    `counters` holds one reading of the counters, or two that were taken one after the other.
    """

    cpus: dict[int, tuple[State, ...]]
    present: frozenset[int]
    driver: str
    cmdline: str
    counters: tuple[Counters, ...] = ()


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def read_tree(sysfs: Path, cmdline: Path | None) -> Idle:
    """Read a sysfs tree: `sysfs` is /sys, a copy of it, or the cpu directory itself."""
    root = sysfs / "devices/system/cpu"
    if not root.is_dir():
        root = sysfs
    cpus: dict[int, tuple[State, ...]] = {}
    counters: Counters = {}
    directories = {int(m[1]): path for path in root.glob("cpu[0-9]*") if (m := _CPU.fullmatch(path.name))}
    for number, path in directories.items():
        states = []
        for state in (path / "cpuidle").glob("state[0-9]*"):
            if not (m := _STATE.fullmatch(state.name)):
                continue
            states.append(State(int(m[1]), _text(state / "name"), _text(state / "latency"), _text(state / "disable")))
            counted = _text(state / "usage"), _text(state / "time")
            if any(counted):
                counters[number, int(m[1])] = counted
        if states:
            cpus[number] = tuple(sorted(states, key=lambda s: s.index))
    online = number_set(_text(root / "online"))
    return Idle(
        cpus,
        online if online is not None else frozenset(directories),
        _text(root / "cpuidle/current_driver"),
        _text(cmdline) if cmdline else "",
        (counters,) if counters else (),
    )


def later(first: Idle, second: Idle) -> Idle:
    """Return the second reading with the counters of both."""
    return dataclasses.replace(second, counters=(*first.counters[:1], *second.counters[:1]))


def dump(idle: Idle) -> str:
    """Return the JSON form that is kept as evidence; CPUs with the same states share an entry."""
    groups: dict[tuple[State, ...], set[int]] = {}
    for cpu, states in idle.cpus.items():
        groups.setdefault(states, set()).add(cpu)
    readings: list[dict[str, dict[str, tuple[str, str]]]] = []
    for reading in idle.counters:
        by_cpu: dict[str, dict[str, tuple[str, str]]] = {}
        for (cpu, index), counted in sorted(reading.items()):
            by_cpu.setdefault(str(cpu), {})[str(index)] = counted
        readings.append(by_cpu)
    return json.dumps(
        {
            "driver": idle.driver,
            "cmdline": idle.cmdline,
            "present": format_set(idle.present),
            "cpus": {format_set(cpus): [dataclasses.asdict(s) for s in states] for states, cpus in groups.items()},
            "counters": readings,
        }
    )


def parse(text: str) -> Idle:
    """Read a dump, the output of grep over the sysfs files, or `cpupower idle-info`.

    Raises ValueError that says what cannot be read.
    """
    if text.lstrip().startswith("{"):
        return _parse_dump(text)
    if text.strip() and not text.endswith("\n"):
        raise ValueError("the last line is cut: it does not end in a newline")
    if re.search(r"^[ \t]*(Number of idle states:|CPUidle driver:)", text, re.MULTILINE):
        return _parse_cpupower(text)
    # What head and tail write over several files is turned into what grep writes.
    text = re.sub(r"^==> (\S+) <==\n([^\n]*)\n", r"\1:\2\n", text, flags=re.MULTILINE)
    found: dict[int, dict[int, dict[str, str]]] = {}
    online: frozenset[int] | None = None
    for line in text.splitlines():
        if match := _GREP.fullmatch(line.strip()):
            fields = found.setdefault(int(match[1] or 0), {}).setdefault(int(match[2]), {})
            if match[3] in fields:
                raise ValueError(f"{match[3]} of state{match[2]} of cpu{match[1] or 0} is there twice")
            fields[match[3]] = match[4].strip()
        elif match := _ONLINE.fullmatch(line.strip()):
            online = number_set(match[1].strip())
            if online is None:
                raise ValueError(f"the list of online CPUs cannot be read: {line.strip()[:160]!r}")
    if not found:
        first = next((c.strip() for c in text.splitlines() if c.strip()), "")
        raise ValueError(f"no idle states in it: {first[:160]!r}" if first else "it is empty")
    cpus = {
        cpu: tuple(
            State(i, s.get("name", ""), s.get("latency", ""), s.get("disable", "")) for i, s in sorted(states.items())
        )
        for cpu, states in found.items()
    }
    counters: Counters = {
        (cpu, i): (s.get("usage", ""), s.get("time", ""))
        for cpu, states in found.items()
        for i, s in states.items()
        if "usage" in s or "time" in s
    }
    return Idle(cpus, online or _expected(cpus), "", "", (counters,) if counters else ())


def _expected(cpus: Collection[int]) -> frozenset[int]:
    """Return the CPUs a text is about: one that was asked for, or all from 0 on, so that a gap tells of a cut."""
    return frozenset(cpus) if len(cpus) == 1 else frozenset(range(max(cpus) + 1))


def _parse_cpupower(text: str) -> Idle:
    """Read `cpupower idle-info`, which shows one CPU unless it is told `-c all`; only those it shows are judged."""
    driver = ""
    cpus: dict[int, list[dict[str, str]]] = {}
    announced: dict[int, int] = {}
    offline: set[int] = set()
    named: dict[int, list[str]] = {}
    cpu = 0
    for line in (raw.strip() for raw in text.splitlines()):
        if match := re.fullmatch(r"CPUidle driver: (\S+)", line):
            driver = match[1]
        elif match := re.fullmatch(r"[Aa]nalyzing CPU ([0-9]{1,5}):", line):
            cpu = int(match[1])
            if cpu in cpus:
                raise ValueError(f"CPU {cpu} is there twice")
            cpus[cpu] = []
        elif match := re.fullmatch(r"Available idle states: (.*)", line):
            named[cpu] = match[1].split()
        elif line == "*is offline":
            offline.add(cpu)
        elif line.startswith("Flags/Description:"):
            continue
        elif match := re.fullmatch(r"Number of idle states: ([0-9]{1,3})", line):
            if cpu in announced:
                raise ValueError(f"the number of idle states of CPU {cpu} is there twice")
            announced[cpu] = int(match[1])
        elif match := re.fullmatch(r"(\S[^:]*?)(?:(?<!\s)(\s+\(DISABLED\)\s*))?:", line):
            cpus.setdefault(cpu, []).append({"name": match[1], "disable": "1" if match[2] else "0"})
        elif match := re.fullmatch(r"(Latency|Usage|Duration): (\S+)", line):
            state = cpus[cpu][-1] if cpus.get(cpu) else {}
            if match[1] in state or not state:
                raise ValueError(f"{line!r} belongs to no state")
            state[match[1]] = match[2]
    for number, states in cpus.items():
        if announced.get(number, 0) != len(states):
            raise ValueError(
                f"{announced.get(number, 0)} idle states of CPU {number} are announced and {len(states)} described"
            )
        described = " ".join(state["name"] for state in states).split()
        if number in named and described and described != named[number]:
            raise ValueError(f"CPU {number} has the states {named[number]} and others are described: {described}")
        if lacks := [s["name"] for s in states if not {"Latency", "Usage", "Duration"} <= set(s)]:
            raise ValueError(f"the lines of state {lacks[0]} of CPU {number} are not whole")
    shown = {
        n: tuple(State(i, s["name"], s.get("Latency", ""), s["disable"]) for i, s in enumerate(states))
        for n, states in cpus.items()
        if states
    }
    if not shown:
        raise ValueError(f"no idle states in it: {text.strip()[:160]!r}")
    counters: Counters = {
        (n, i): (s.get("Usage", ""), s.get("Duration", "")) for n, states in cpus.items() for i, s in enumerate(states)
    }
    # With -c all every CPU is there, those that are offline too.
    present = frozenset(shown) if len(cpus) == 1 else _expected(cpus) - offline
    return Idle(shown, present, driver, "", (counters,))


def _parse_dump(text: str) -> Idle:
    try:
        data: Any = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as exc:
        raise ValueError(f"the dump is not JSON: {exc}") from None
    if not isinstance(data, dict) or not isinstance(data.get("cpus"), dict):
        raise ValueError("the dump has no dictionary cpus")
    cpus: dict[int, tuple[State, ...]] = {}
    for key, items in data["cpus"].items():
        numbers = number_set(str(key))
        if numbers is None or not isinstance(items, list) or not all(isinstance(i, dict) for i in items):
            raise ValueError(f"the states of CPU {key!r} cannot be read")
        if not items:
            raise ValueError(f"the list of states of CPU {key!r} is empty")
        if twice := numbers & set(cpus):
            raise ValueError(f"CPU {format_set(twice)} is there twice")
        states = tuple(_state(position, item) for position, item in enumerate(items))
        if len({s.index for s in states}) != len(states):
            raise ValueError(f"a state of CPU {key!r} is there twice")
        cpus.update(dict.fromkeys(numbers, states))
    present = number_set(str(data.get("present", "")))
    return Idle(
        cpus,
        present if present is not None else frozenset(cpus),
        str(data.get("driver", "")),
        str(data.get("cmdline", "")),
        _parse_counters(data.get("counters")),
    )


def _parse_counters(readings: Any) -> tuple[Counters, ...]:
    """Read the counters of a dump; one without them was made before there were any."""
    if readings is None:
        return ()
    if not isinstance(readings, list) or len(readings) > 2:
        raise ValueError("the counters are no list of one or two readings")
    found: list[Counters] = []
    for reading in readings:
        counters: Counters = {}
        for cpu, states in reading.items() if isinstance(reading, dict) else [("", None)]:
            for index, counted in states.items() if isinstance(states, dict) else [("", None)]:
                if not (_is_number(cpu) and _is_number(index) and isinstance(counted, list) and len(counted) == 2):
                    raise ValueError(f"the counters of CPU {cpu!r} cannot be read")
                counters[int(cpu), int(index)] = str(counted[0]), str(counted[1])
        found.append(counters)
    return tuple(found)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dictionary; a key that is there twice is an error and not the last one's."""
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is there twice")
    return found


def _state(position: int, item: dict[str, Any]) -> State:
    index = item.get("index", position)
    texts = ["" if item.get(k) is None else str(item[k]).strip() for k in ("name", "latency", "disable")]
    return State(index if isinstance(index, int) else position, *texts)


def judge(idle: Idle, limit: int | float | None, limit_source: str) -> list[Check]:
    """Hold the exit latency of every state the kernel may use against the limit; a state's name decides nothing."""
    name = "cpu_idle.exit_latency"
    if limit is None:
        return [unknown(name, "all CPUs", "no limit is known")]
    if not idle.cpus:
        return [_judge_without_states(idle, limit, limit_source)]
    checks: list[Check] = []
    checks += _whole(idle)
    unreadable: dict[str, set[int]] = {}
    deep: dict[tuple[int, str], set[int]] = {}
    worst = 0
    for cpu, states in idle.cpus.items():
        for state in states:
            if not state.name or not _is_number(state.latency) or not _is_number(state.disable):
                read = f"latency {state.latency!r}, disable {state.disable!r}"
                what = f"state{state.index} ({state.name or 'no name'}): {read}"
                unreadable.setdefault(what, set()).add(cpu)
            elif int(state.disable) == 0:
                worst = max(worst, int(state.latency))
                if int(state.latency) > limit:
                    deep.setdefault((int(state.latency), state.name), set()).add(cpu)
    for what, cpus in unreadable.items():
        reason = f"an idle state cannot be read, {what}"
        checks.append(unknown(name, f"CPU {format_set(cpus)}", reason, _REMEDY, limit, limit_source))
    for (latency, label), cpus in sorted(deep.items(), key=lambda item: -item[0][0]):
        reason = f"idle state {label or 'without a name'} is enabled on {len(cpus)} of {len(idle.cpus)} CPUs"
        checks.append(
            Check(name, f"CPU {format_set(cpus)}", "fail", reason, latency, limit, "us", limit_source, _REMEDY)
        )
    if not checks:
        reason = "no CPU may enter a state that takes longer to leave"
        checks.append(
            Check(name, f"CPU {format_set(set(idle.cpus))}", "pass", reason, worst, limit, "us", limit_source)
        )
    return [*checks, *_residency(idle, limit, limit_source)] if len(idle.counters) == 2 else checks


def _whole(idle: Idle) -> list[Check]:
    """Return what is missing in the reading; nothing when it is whole."""
    name, remedy = "cpu_idle.whole", "Read it again, with /sys/devices/system/cpu/online to tell which CPUs there are."
    checks: list[Check] = []
    bare = (idle.present | set(idle.cpus)) - {cpu for cpu, states in idle.cpus.items() if states}
    if bare:
        reason = "these CPUs have no idle states in it while others have: it is cut off, or they are offline"
        checks.append(unknown(name, f"CPU {format_set(bare)}", reason, remedy))
    indexes = {n: frozenset(s.index for s in states) for n, states in idle.cpus.items() if states}
    common = collections.Counter(indexes.values()).most_common(1)[0][0] if indexes else frozenset()
    fewer = {n for n, found in indexes.items() if found < common}
    if fewer:
        reason = "states are missing that most CPUs have"
        checks.append(unknown(name, f"CPU {format_set(fewer)}", reason, remedy))
    if len(idle.counters) == 2:
        first, second = ({cpu for cpu, _state in reading} for reading in idle.counters)
        if first != second and first and second:
            reason = "these CPUs are in one of the two readings only"
            checks.append(unknown(name, f"CPU {format_set(first ^ second)}", reason, remedy))
    return checks


def _residency(idle: Idle, limit: int | float, limit_source: str) -> list[Check]:
    """Judge the growth between two readings; with one reading nothing is said about it.

    The kernel counts when a CPU leaves a state: one that sleeps through both readings is seen by its flag only.
    """
    name = "cpu_idle.residency"
    first, second = idle.counters
    grown: dict[str, dict[int, int]] = {}
    unreadable: dict[str, set[int]] = {}
    deep = 0
    for cpu, states in idle.cpus.items():
        for state in states:
            if not _is_number(state.latency) or int(state.latency) <= limit:
                continue
            deep += 1
            old, new = first.get((cpu, state.index)), second.get((cpu, state.index))
            if old is None or new is None or not all(_is_counter(text) for text in (*old, *new)):
                unreadable.setdefault(f"{state.name}: {old} and then {new}", set()).add(cpu)
                continue
            uses, time = int(new[0]) - int(old[0]), int(new[1]) - int(old[1])
            if uses < 0 or time < 0:
                unreadable.setdefault(f"{state.name} counts backwards: {old} and then {new}", set()).add(cpu)
            elif uses or time:
                grown.setdefault(state.name, {})[cpu] = time
    checks: list[Check] = []
    for what, cpus in unreadable.items():
        reason = f"the counters of an idle state cannot be read, {what}"
        checks.append(unknown(name, f"CPU {format_set(cpus)}", reason, _REMEDY, 0, limit_source))
    for label, times in grown.items():
        reason = f"{len(times)} of {len(idle.cpus)} CPUs were in {label}, which takes more than {limit:g} us to leave"
        subject = f"CPU {format_set(set(times))}"
        checks.append(Check(name, subject, "fail", reason, sum(times.values()), 0, "us", limit_source, _REMEDY))
    if not checks:
        every = f"CPU {format_set(set(idle.cpus))}"
        reason = f"time spent between two readings in the {deep} states that take more than {limit:g} us to leave"
        checks.append(Check(name, every, "pass", reason, 0, 0, "us", limit_source))
    return checks


def _is_counter(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 21


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def words_without_driver(cmdline: str) -> list[str]:
    """Return the kernel command line's words that explain why there is no idle driver."""
    words: Iterable[str] = cmdline.split()
    return [w for w in words if w in _NO_DRIVER_WORDS]


def _judge_without_states(idle: Idle, limit: int | float, limit_source: str) -> Check:
    """Judge a node whose CPUs have no idle states: proven only when the kernel says no driver and was told so."""
    name = "cpu_idle.exit_latency"
    words = words_without_driver(idle.cmdline)
    if idle.driver == "none" and words:
        reason = f"the kernel has no idle driver, as {' '.join(words)} on its command line asks for"
        return Check(name, "all CPUs", "pass", reason, "no idle driver", limit, "us", limit_source)
    if idle.driver == "none":
        reason = "no CPU has idle states and the driver is none, but nothing on the kernel command line asks for that"
    else:
        reason = f"no CPU has a cpuidle directory (driver {idle.driver or 'not readable'})"
    remedy = "In a guest judge the host. On metal check that the kernel has cpuidle and that sysfs is mounted."
    return unknown(name, "all CPUs", reason, remedy, limit, limit_source)

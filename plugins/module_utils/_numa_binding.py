# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where a unit's running processes may run and where their memory is. Pure functions, they never raise on a text.

What counts as a process's memory: pages it has to itself or shares with its own workers (heap, stack, anonymous
mappings, shared memory, huge pages). Pages of files (libraries, mapped weights) are the page cache's: whoever read the
file first decides where they are, so they say nothing about this process.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import format_set, number_set
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Verdict, unknown

CHECKS: dict[str, str] = {
    "numa_binding.unit": "The unit of every inference unit is active and has processes.",
    "numa_binding.cpus": "The CPUs each process of the unit may run on are within the unit's CPU set, which the gate "
    "inference_units derived.",
    "numa_binding.policy": "The memory of each process is bound to the unit's NUMA node, or to one of its nodes where "
    "its GPUs are on several, by the policy of its mappings or by its cpuset.",
    "numa_binding.spread": "The workers of a unit whose GPUs are on several NUMA nodes are on all of these nodes, as "
    "inference_units lists them.",
    "numa_binding.nodes": "The NUMA nodes numactl --hardware lists: as many as it announces, each with its lines and a "
    "whole table of distances; one with CPUs and without memory fails.",
    "numa_binding.local_memory": "The share of the process's own pages on the unit's NUMA node is at least option "
    "min_local; 78 % was seen where binding came too late (NVIDIA/TensorRT-LLM 18117).",
}

MIN_LOCAL = 0.95
_LIMIT_SOURCE = "inference_units"
_REMEDY = (
    "Start the engine under numactl in its unit (role vllm_iu, binding unit); a later taskset leaves memory behind."
)
_SPREAD_REMEDY = "See that vLLM's numa-bind finds each GPU's node: nvidia-smi topo -m, and the unit's journal."

# Files without a disk behind them: memory of the process all the same.
_MEMORY_FILES = re.compile(r"/dev/shm/|/dev/zero|/dev/hugepages|/memfd:|/SYSV|/anon_hugepage|memfd:")
_MAP = re.compile(r"([0-9a-f]{1,16}) ([a-z]\S*)((?: \S+)*)\s*")


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """What a unit's processes are held against; None: not known. `nodes`: each process belongs on one of them."""

    name: str
    cpus: frozenset[int] | None
    node: int | None
    nodes: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """What /proc/PID/status says about a process; None: the line is not there or cannot be read."""

    name: str
    cpus: frozenset[int] | None
    mems: frozenset[int] | None
    kernel_thread: bool
    cut: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Memory:
    """Kilobytes of a process's own memory by NUMA node, the policies of those mappings, and lines not understood."""

    local: dict[int, int]
    policies: dict[str, int]
    problems: tuple[str, ...]
    lines: int

    @property
    def own_node(self) -> int | None:
        """The node most of it is on, None when there is none."""
        return max(self.local, key=lambda node: self.local[node]) if self.total else None

    @property
    def total(self) -> int:
        """Kilobytes on all nodes."""
        return sum(self.local.values())


def parse_status(text: str) -> Status:
    """Read /proc/PID/status."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return Status(
        fields.get("Name", ""),
        number_set(fields.get("Cpus_allowed_list")),
        number_set(fields.get("Mems_allowed_list")),
        "State" in fields and "VmSize" not in fields,
        bool(text) and not text.endswith("\n"),
    )


def parse_numa_maps(text: str) -> Memory:
    """Read /proc/PID/numa_maps. Page counts are in pages of the line's own size."""
    local: dict[int, int] = {}
    policies: dict[str, int] = {}
    problems: list[str] = []
    lines = [line for line in text.splitlines() if line.strip()]
    if text and not text.endswith("\n"):
        problems.append(f"the last line is cut off: {_shown(lines[-1] if lines else text)}")
    seen: set[str] = set()
    for line in lines:
        match = _MAP.fullmatch(
            line.replace("prefer (many)", "prefer_many").replace("weighted interleave", "interleave")
        )
        if match is None:
            problems.append(f"a line cannot be read: {_shown(line)}")
            continue
        if match[1] in seen:
            problems.append(f"a mapping is there twice: {_shown(line)}")
            continue
        seen.add(match[1])
        words = match[3].split()
        counts = {int(m[1]): int(m[2]) for w in words if (m := re.fullmatch(r"N([0-9]{1,4})=([0-9]{1,15})", w))}
        fields = dict(w.split("=", 1) for w in words if "=" in w)
        pages = sum(counts.values())
        if not pages:
            if _number(fields.get("anon")):
                problems.append(f"a line has pages and no node: {_shown(line)}")
            continue
        file = fields.get("file", "")
        anon = _number(fields.get("anon"))
        if file and not _MEMORY_FILES.match(file) and "huge" not in words and anon != pages:
            continue
        # The kernel leaves mapped= out where it equals one of the other two.
        told = [_number(fields[name]) for name in ("mapped", "anon", "dirty") if name in fields]
        if pages not in (told[:1] if "mapped" in fields else told):
            problems.append(f"its pages by node are not those it counts: {_shown(line)}")
            continue
        size = _number(fields.get("kernelpagesize_kB")) or (2048 if "huge" in words else 4)
        if size & (size - 1):
            problems.append(f"there are no pages of {size} kB: {_shown(line)}")
            continue
        policies[match[2]] = policies.get(match[2], 0) + pages * size
        for node, count in counts.items():
            local[node] = local.get(node, 0) + count * size
    return Memory(local, policies, tuple(problems), len(lines))


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,15}", text) else None


def _shown(text: str) -> str:
    return repr(text.strip()[:160])


def judge_process(
    unit: Unit, subject: str, status: str | None, numa_maps: str | None, min_local: float = MIN_LOCAL
) -> list[Check]:
    """Judge one process by its two files. None: not read and not judged; a text with '!' says why it was not read."""
    read = None if status is None or status.startswith("!") else parse_status(status)
    unit = _placed(unit, read, numa_maps)
    label = f"{unit.name} {subject}" + (f" ({read.name})" if read is not None and read.name else "")
    checks: list[Check] = []
    if status is not None:
        reason = status[1:] if read is None else _status_problem(read)
        checks.append(cpus_check(unit, label, read.cpus if read else None, reason))
    if numa_maps is None:
        # Several allowed nodes show nothing either way.
        if (
            read is not None
            and read.mems
            and unit.node is not None
            and (len(read.mems) == 1 or unit.node not in read.mems)
        ):
            checks.append(policy_check(unit, label, {}, read.mems))
        return checks
    if numa_maps.startswith("!"):
        reasons = numa_maps[1:]
        return [
            *checks,
            unknown("numa_binding.policy", label, reasons, _REMEDY, unit.node, _LIMIT_SOURCE),
            unknown("numa_binding.local_memory", label, reasons, _REMEDY, min_local, "option min_local"),
        ]
    memory = parse_numa_maps(numa_maps)
    problem = memory.problems[0] if memory.problems else None
    if problem is None and not memory.lines:
        problem = "numa_maps is empty: a kernel thread, or a process that is just starting or ending"
    if problem is None and not memory.total:
        problem = "no page of its own is listed, so nothing is proven"
    checks.append(policy_check(unit, label, memory.policies, read.mems if read else None, problem))
    checks.append(_memory_check(unit, label, memory, min_local, problem))
    return checks


def _placed(unit: Unit, read: Status | None, numa_maps: str | None) -> Unit:
    """Return a unit of several nodes on the one of them that has most of this process's memory."""
    if not unit.nodes:
        return unit
    local = parse_numa_maps(numa_maps or "").local
    allowed = (read.mems if read is not None else None) or frozenset()
    node = max(sorted(unit.nodes), key=lambda n: (local.get(n, 0), n in allowed))
    return dataclasses.replace(unit, name=f"{unit.name} (one of nodes {format_set(unit.nodes)})", node=node)


def spread_check(unit: Unit, maps: Sequence[str]) -> Check:
    """Judge whether the workers of a unit of several nodes are on each of them: each GPU's worker is beside its GPU."""
    name, limit = "numa_binding.spread", f"nodes {format_set(unit.nodes)}"
    used = {parse_numa_maps(text).own_node for text in maps}
    if None in used or not used:
        reason = "the memory of a worker could not be read"
        return unknown(name, unit.name, reason, "See the other checks.", limit, _LIMIT_SOURCE)
    value = f"nodes {format_set({n for n in used if n is not None})}"
    if missing := unit.nodes - used:
        reason = f"no worker is on node {format_set({n for n in missing if n is not None})}, though GPUs are"
        return Check(name, unit.name, "fail", reason, value, limit, "", _LIMIT_SOURCE, _SPREAD_REMEDY)
    return Check(name, unit.name, "pass", "NUMA nodes of the workers", value, limit, "", _LIMIT_SOURCE)


def _status_problem(read: Status) -> str | None:
    if read.cut:
        return "its status is cut off"
    if read.cpus is None:
        return "its status has no Cpus_allowed_list that can be read"
    return "it is a kernel thread or has just ended" if read.kernel_thread else None


def cpus_check(unit: Unit, subject: str, cpus: frozenset[int] | None, problem: str | None = None) -> Check:
    """Judge the CPUs a process may run on."""
    limit = format_set(unit.cpus) if unit.cpus else None
    if problem is not None or cpus is None:
        reason = problem or "its CPUs cannot be read"
        return unknown("numa_binding.cpus", subject, reason, _REMEDY, limit, _LIMIT_SOURCE)
    if unit.cpus is None:
        reason = "no CPU set is known to hold it against"
        return Check(
            "numa_binding.cpus", subject, "unknown", reason, format_set(cpus), None, "", "", "Give option cpus."
        )
    outside = cpus - unit.cpus
    reason = f"it may run on CPUs of others: {format_set(outside)}" if outside else "CPUs it may run on"
    return Check(
        "numa_binding.cpus",
        subject,
        "fail" if outside else "pass",
        reason,
        format_set(cpus),
        limit,
        "",
        _LIMIT_SOURCE,
        _REMEDY if outside else "",
    )


def policy_check(
    unit: Unit,
    subject: str,
    policies: Mapping[str, int],
    mems: frozenset[int] | None,
    problem: str | None = None,
) -> Check:
    """Judge what decides where memory comes from: the cpuset's nodes, or the policy of every mapping.

    numactl sets a policy and leaves Mems_allowed alone, so several allowed nodes are no fault by themselves.
    """
    name, limit = "numa_binding.policy", None if unit.node is None else f"bind:{unit.node}"
    if unit.node is None:
        return unknown(name, subject, "no NUMA node is known to hold it against", "Give option node.")
    allowed = f"Mems_allowed {format_set(mems)}" if mems is not None else None
    if mems is not None and unit.node not in mems:
        reason = "its cpuset has no memory of this node"
        return Check(name, subject, "fail", reason, allowed, limit, "", _LIMIT_SOURCE, _REMEDY)
    if mems is not None and len(mems) == 1:
        reason = "its cpuset has only this node's memory"
        return Check(name, subject, "pass", reason, allowed, limit, "", _LIMIT_SOURCE)
    if problem is not None or not policies:
        reason = problem or "memory of several nodes is allowed and the policy of its mappings was not read"
        return Check(name, subject, "unknown", reason, allowed, limit, "", _LIMIT_SOURCE, _REMEDY)
    other = {policy: size for policy, size in policies.items() if not _bound(policy, unit.node)}
    if not other:
        return Check(name, subject, "pass", "policy of its mappings", ", ".join(policies), limit, "", _LIMIT_SOURCE)
    # Local and preferred memory is this node's until it is full; another node's name is a wrong binding.
    wrong = {policy: size for policy, size in other.items() if not _lenient(policy, unit.node)}
    worst = max(wrong or other, key=lambda policy: other[policy])
    share = 100 * sum((wrong or other).values()) / sum(policies.values())
    what = "in mappings of another policy" if wrong else "not bound, it is local only as long as the node has room"
    verdict: Verdict = "fail" if wrong else "warn"
    reason = f"{share:.1f} % of its memory is {what}"
    return Check(name, subject, verdict, reason, worst, limit, "", _LIMIT_SOURCE, _REMEDY)


def _lenient(policy: str, node: int) -> bool:
    return policy in ("default", "local") or re.fullmatch(rf"prefer(=[a-z|]+)?:{node}", policy) is not None


def _bound(policy: str, node: int) -> bool:
    """Tell whether a policy takes memory of this node only. A mode flag may stand between the name and the nodes."""
    found = re.fullmatch(r"bind(?:=[a-z|]+)?:([0-9,-]+)", policy)
    return found is not None and number_set(found[1]) == frozenset({node})


def _memory_check(unit: Unit, subject: str, memory: Memory, min_local: float, problem: str | None) -> Check:
    name, source = "numa_binding.local_memory", "option min_local"
    limit = round(100 * min_local, 2)
    if problem is not None:
        return unknown(name, subject, problem, _REMEDY, limit, source)
    if unit.node is None:
        return unknown(name, subject, "no NUMA node is known to hold it against", "Give option node.", limit, source)
    share = 100 * memory.local.get(unit.node, 0) / memory.total
    good = share >= 100 * min_local
    where = ", ".join(f"node {node}: {size / 1024:.1f} MiB" for node, size in sorted(memory.local.items()))
    return Check(
        name,
        subject,
        "pass" if good else "fail",
        f"share of its own memory on node {unit.node} ({where})",
        round(share, 2),
        limit,
        "%",
        source,
        "" if good else _REMEDY,
    )


# --- other tools that tell the same


def kind(text: str) -> str:
    """Tell which report one captured text is."""
    if re.search(r"^pid [0-9]+'s (current|new) affinity list: ", text, re.MULTILINE):
        return "taskset"
    if re.search(r"^(physcpubind|nodebind|membind): ", text, re.MULTILINE):
        return "numactl"
    if re.search(r"^(available: [0-9]+ nodes |node [0-9]+ cpus:)", text, re.MULTILINE):
        return "hardware"
    if "Per-node process memory usage" in text:
        return "numastat"
    if re.search(r"^(Cpus_allowed|Mems_allowed|Name|Pid)\w*:\s", text, re.MULTILINE):
        return "status"
    return "numa_maps"


def judge_text(unit: Unit, text: str, min_local: float = MIN_LOCAL) -> list[Check]:
    """Judge one captured file by what it can show."""
    form = kind(text)
    if form == "taskset":
        return _taskset(unit, text)
    if form == "numactl":
        return _numactl(unit, text)
    if form == "hardware":
        return _hardware(unit, text)
    if form == "numastat":
        memory, limit, problem = _numastat(text, min_local)
        return [_memory_check(_own(unit, memory.own_node), f"{unit.name} process", memory, limit, problem)]
    if form == "status":
        return judge_process(unit, "process", text, None, min_local)
    return judge_process(_own(unit, parse_numa_maps(text).own_node), "process", None, text, min_local)


def _own(unit: Unit, node: int | None) -> Unit:
    """Return the unit on a node that the reading itself shows, unless the caller told the node.

    That a process keeps to one node, whichever it is, is what such a reading can show by itself.
    """
    if unit.node is not None or node is None:
        return unit
    return dataclasses.replace(unit, name=f"{unit.name} (held against node {node}, its own)", node=node)


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """What `numactl --hardware` says: CPUs and MB of each NUMA node, and the distances from it."""

    announced: int | None
    cpus: dict[int, frozenset[int]]
    size_mb: dict[int, int]
    free_mb: dict[int, int]
    distances: dict[int, tuple[int, ...]]


def parse_hardware(text: str) -> Hardware:
    """Read `numactl --hardware`."""
    announced = re.search(r"^available: ([0-9]{1,4}) nodes ", text, re.MULTILINE)
    cpus: dict[int, frozenset[int]] = {}
    for match in re.finditer(r"^node ([0-9]{1,4}) cpus:((?: [0-9]{1,5})*) *$", text, re.MULTILINE):
        listed = [int(c) for c in match[2].split()]
        if len(set(listed)) == len(listed):
            cpus.setdefault(int(match[1]), frozenset(listed))
    numbers: dict[str, dict[int, int]] = {"size": {}, "free": {}}
    for match in re.finditer(r"^node ([0-9]{1,4}) (size|free): ([0-9]{1,12}) MB *$", text, re.MULTILINE):
        numbers[match[2]].setdefault(int(match[1]), int(match[3]))
    distances = {
        int(match[1]): tuple(int(d) for d in match[2].split())
        for match in re.finditer(r"^ *([0-9]{1,4}):((?: +[0-9]{1,4})+) *$", text, re.MULTILINE)
    }
    return Hardware(int(announced[1]) if announced else None, cpus, numbers["size"], numbers["free"], distances)


def _hardware_problem(read: Hardware, text: str) -> str | None:
    """Return why the list of nodes is not whole, None when it is."""
    nodes = set(read.cpus)
    if read.announced != len(nodes) or set(read.size_mb) != nodes or set(read.free_mb) != nodes:
        listed = f"CPUs of {len(nodes)}, size of {len(read.size_mb)} and free of {len(read.free_mb)}"
        return f"{read.announced} nodes are announced, {listed} are listed"
    named = re.search(r"^available: [0-9]+ nodes \(([0-9,-]+)\)", text, re.MULTILINE)
    if named is not None and number_set(named[1]) != frozenset(nodes):
        return f"nodes {named[1]} are announced, nodes {format_set(nodes)} are listed"
    if larger := [n for n in nodes if read.free_mb[n] > read.size_mb[n]]:
        return f"node {larger[0]} has more memory free than it has"
    every = [cpu for cpus in read.cpus.values() for cpu in cpus]
    if len(set(every)) != len(every) or not every:
        return "a CPU is on two nodes" if every else "no node has a CPU"
    if "No distance information available" in text:
        return None
    order = sorted(nodes)
    rows = [read.distances.get(n, ()) for n in order]
    if set(read.distances) != nodes or any(len(row) != len(order) for row in rows):
        return "the table of node distances is not whole"
    header = re.search(r"^node distances:\s*^node((?: +[0-9]{1,4})+) *$", text, re.MULTILINE)
    if header is None or [int(n) for n in header[1].split()] != order:
        return "the table of node distances has no head of its nodes"
    # 10 is a node's distance to itself, by the ACPI specification.
    if wrong := [n for i, n in enumerate(order) if rows[i][i] != 10 or min(rows[i]) < 10]:
        return f"the distances of node {wrong[0]} contradict themselves"
    return None if text.endswith("\n") else "the last line is cut off"


def _hardware(unit: Unit, text: str) -> list[Check]:
    """Judge the node's own layout, and hold a unit's CPUs against it; what a process does is not in this report."""
    name, remedy = "numa_binding.nodes", "Run numactl --hardware again."
    read = parse_hardware(text)
    if (problem := _hardware_problem(read, text)) is not None:
        return [unknown(name, "NUMA nodes", problem, remedy)]
    value = f"{read.announced} nodes, {sum(map(len, read.cpus.values()))} CPUs"
    limit = "memory on each node with CPUs"
    if bare := {n for n, cpus in read.cpus.items() if cpus and not read.size_mb[n]}:
        reason = f"node {format_set(bare)} has CPUs and no memory, so all its memory is remote"
        seated = "See that the memory of this socket is seated and enabled."
        checks = [Check(name, "NUMA nodes", "fail", reason, value, limit, "", "numactl", seated)]
    else:
        checks = [Check(name, "NUMA nodes", "pass", "NUMA nodes of the host", value, limit, "", "numactl")]
    if unit.node is not None:
        checks.append(_node_of(unit, read))
    return checks


def _node_of(unit: Unit, read: Hardware) -> Check:
    """Hold the unit's node and CPUs against those the host has."""
    name, subject = "numa_binding.cpus", f"{unit.name} node {unit.node}"
    own = read.cpus.get(unit.node) if unit.node is not None else None
    if own is None or not own or not read.size_mb.get(unit.node or 0):
        reason = "the node is not there, or has no CPUs or no memory"
        value = f"nodes {format_set(set(read.cpus))}"
        return Check(name, subject, "fail", reason, value, f"node {unit.node}", "", "option node", _REMEDY)
    if unit.cpus is None:
        reason = "numactl --hardware shows no process; the node has CPUs and memory"
        return Check(name, subject, "pass", reason, format_set(own), "the node's own", "", "option node")
    outside = unit.cpus - own
    reason = f"these CPUs are not the node's: {format_set(outside)}" if outside else "CPUs of the node"
    verdict: Verdict = "fail" if outside else "pass"
    return Check(name, subject, verdict, reason, format_set(own), format_set(unit.cpus), "", "option cpus")


def parse(text: str) -> dict[str, Any]:
    """Return the values of any of the reports by name, for whoever wants numbers and no verdict."""
    form = kind(text)
    if form == "hardware":
        hardware = parse_hardware(text)
        lists = {node: format_set(cpus) for node, cpus in hardware.cpus.items()}
        values = {**dataclasses.asdict(hardware), "cpus": lists, "nodes": hardware.announced}
        values["distances"] = {node: list(row) for node, row in hardware.distances.items()}
        return values
    if form == "taskset":
        found = re.findall(r"^pid ([0-9]+)'s (?:current|new) affinity list: (\S+)$", text, re.MULTILINE)
        return {"cpus": dict(found)}
    if form == "numactl":
        fields = dict(re.findall(r"^([a-z ]+): *(.*?) *$", text, re.MULTILINE))
        return {name.replace(" ", "_"): value for name, value in fields.items()}
    if form == "numastat":
        memory, _limit, problem = _numastat(text, MIN_LOCAL)
        return {"kilobytes": memory.local, "total": memory.total, "problem": problem}
    if form == "status":
        status = parse_status(text)
        cpus, mems = (format_set(v) if v is not None else None for v in (status.cpus, status.mems))
        return {"name": status.name, "cpus": cpus, "mems": mems}
    maps = parse_numa_maps(text)
    return {
        "kilobytes": maps.local,
        "total": maps.total,
        "policies": maps.policies,
        "problem": maps.problems[0] if maps.problems else None,
    }


def _taskset(unit: Unit, text: str) -> list[Check]:
    """Read `taskset -pc` (with -a a line for each thread)."""
    checks: list[Check] = []
    for line in (x.strip() for x in text.splitlines() if x.strip()):
        match = re.fullmatch(r"pid ([0-9]{1,10})'s (?:current|new) affinity list: (\S+)", line)
        if match is None:
            checks.append(cpus_check(unit, unit.name, None, f"a line cannot be read: {_shown(line)}"))
        else:
            checks.append(cpus_check(unit, f"{unit.name} pid {match[1]}", number_set(match[2])))
    if not text.endswith("\n"):
        checks.append(cpus_check(unit, unit.name, None, "the last line is cut off"))
    return checks


def _numastat(text: str, min_local: float) -> tuple[Memory, float, str | None]:
    """Read `numastat -p PID`, in MB by node. Its row Private holds pages of private files too."""
    nodes: list[int] = []
    rows: dict[str, list[float]] = {}
    reports = 0
    for line in text.splitlines():
        words = line.split()
        reports += line.startswith("Per-node process memory usage")
        if words[:1] == ["Node"]:
            nodes += [int(n) for n in re.findall(r"Node ([0-9]{1,4})", line)]
        elif words[:1] and words[0] in ("Huge", "Heap", "Stack", "Private", "Total"):
            numbers = [float(w) for w in words[1:] if re.fullmatch(r"[0-9]{1,12}(\.[0-9]{1,6})?", w)]
            rows.setdefault(words[0], []).extend(numbers)
    total = rows.get("Total", [])
    count = len(nodes)
    # The last column is the sum; with many nodes the tables follow one another.
    own = [row for name, row in rows.items() if name != "Total"]
    problem: str | None = None
    if (
        reports != 1
        or not count
        or len(total) != count + 1
        or any(len(row) != count + 1 for row in own)
        or len(own) < 3
    ):
        problem = f"the table of numastat is not whole: {_shown(text)}"
    elif abs(sum(total[:-1]) - total[-1]) > 0.05 * count + 0.001 * total[-1] or not total[-1]:
        problem = f"its sums are wrong or nothing is counted: total {total}"
    local = {node: int(1024 * total[i]) for i, node in enumerate(nodes)} if problem is None else {}
    if problem is None and not sum(local.values()):
        problem = "no page of its own is listed, so nothing is proven"
    return Memory(local, {}, (), len(rows)), min_local, problem


def _numactl(unit: Unit, text: str) -> list[Check]:
    """Read `numactl --show`, which tells about the process that ran it."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    label = f"{unit.name} process"
    cpus = number_set(",".join(fields.get("physcpubind", "").split()))
    mems = number_set(",".join(fields.get("membind", "").split()))
    cut = None if text.endswith("\n") else "the last line is cut off"
    listed = fields.get("physcpubind", "").split()
    if len(set(listed)) != len(listed):
        cut = "a CPU is in physcpubind twice"
    elif fields.get("cpubind", "").split() != fields.get("nodebind", fields.get("cpubind", "")).split():
        cut = "cpubind and nodebind, which are the same, differ"
    nodes = number_set(",".join(fields.get("nodebind", fields.get("cpubind", "")).split()))
    if unit.node is None and nodes is not None and len(nodes) == 1:
        unit = _own(unit, min(nodes))
    checks = [_nodebind(unit, label, cpus, nodes, cut) if unit.cpus is None else cpus_check(unit, label, cpus, cut)]
    policy = fields.get("policy", "")
    known = r"default|bind|preferred|(?:weighted-)?interleave|local|prefer-many|preferred-many"
    if mems is None or not re.fullmatch(known, policy):
        checks.append(policy_check(unit, label, {}, None, cut or "policy or membind cannot be read"))
        return checks
    preferred = fields.get("preferred node", "")
    told = {"preferred": f"prefer:{preferred}", "bind": f"bind:{format_set(mems)}"}.get(policy, policy)
    checks.append(policy_check(unit, label, {told: 1}, mems, cut))
    return checks


def _nodebind(
    unit: Unit, label: str, cpus: frozenset[int] | None, nodes: frozenset[int] | None, cut: str | None
) -> Check:
    """Judge the nodes of the CPUs a process may run on, where no CPU set is known to hold the CPUs against."""
    name, limit = "numa_binding.cpus", "one node" if unit.node is None else f"node {unit.node}"
    if cut is not None or not cpus or not nodes:
        return unknown(name, label, cut or "physcpubind or nodebind cannot be read", _REMEDY, limit, "numactl")
    good = nodes == frozenset({unit.node})
    reason = "NUMA nodes of the CPUs it may run on"
    if not good:
        reason = f"it may run on CPUs of other nodes: {format_set(nodes - {unit.node})}"
    value = f"node {format_set(nodes)}"
    return Check(name, label, "pass" if good else "fail", reason, value, limit, "", "numactl", "" if good else _REMEDY)


def unit_check(unit: str, state: Mapping[str, str], processes: Sequence[int], problem: str | None) -> Check:
    """Judge whether there is anything to look at: the service is active and has processes."""
    subject, wanted = f"{unit} vllm@{unit}.service", "active with processes"
    remedy = f"See journalctl -u vllm@{unit} and systemctl status vllm@{unit}."
    if problem is not None or "ActiveState" not in state:
        reason = problem or "systemd printed no ActiveState"
        return unknown("numa_binding.unit", subject, reason, remedy, wanted, _LIMIT_SOURCE)
    active = state["ActiveState"]
    if active != "active":
        reason = "the unit does not run, so its binding is not proven"
        return Check("numa_binding.unit", subject, "fail", reason, active, wanted, "", _LIMIT_SOURCE, remedy)
    main = _number(state.get("MainPID")) or 0
    if "MainPID" not in state:
        reason = "systemd's answer is not whole, it lacks MainPID"
        return unknown("numa_binding.unit", subject, reason, remedy, wanted, _LIMIT_SOURCE)
    if not processes or (main and main not in processes):
        missing = f"its main process {main} is not among them" if processes else "it lists none"
        reason = f"the unit is active and the list of its processes cannot be right: {missing}"
        return unknown("numa_binding.unit", subject, reason, remedy, wanted, _LIMIT_SOURCE)
    value = f"active, {len(processes)} processes"
    return Check("numa_binding.unit", subject, "pass", "the running unit", value, wanted, "", _LIMIT_SOURCE)

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""bench/fault_matrix: every fault must be caught by the right check with the right reason, and no healthy node."""

from __future__ import annotations

import argparse
import dataclasses
import json
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench import gaterun
from bench.faultmatrix import gates, live
from bench.faultmatrix.judge import Case, blocking, judge, make, shown, stored

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "bench" / "fault_matrix.yml"
_RUNS = ("20261130T120000Z", "20261130T130000Z")
# A fact that differs from the rack's follows from nearly every fault. Where it is the fault, the table names it.
_FOLLOWS = (r"fleet_consistency\..*",)
# What a wrong line of the table, or a defect in a gate, can raise.
_FAILURES = (
    gaterun.ModuleBroken,
    ArithmeticError,
    AttributeError,
    AssertionError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
_CASE_KEYS = frozenset(f.name for f in dataclasses.fields(Case)) - {"faults"}
_KEYS = _CASE_KEYS | {"name", "fault", "check", "subject", "verdict", "says", "also", "live", "tools", "warns", "line"}


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One line of the table. Without a `check` it is a healthy variant, and `warns` are the checks that may warn."""

    name: str
    case: Case
    check: str = ""
    subject: str = ".*"
    verdict: str = "fail"
    says: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    warns: tuple[str, ...] = ()
    live: str = ""
    tools: dict[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What came of one line: `problem` is empty when all is as the table says."""

    name: str
    kind: str
    faults: tuple[str, ...]
    expected: str
    problem: str
    verdict: str
    check: str = ""
    subject: str = ""
    reason: str = ""
    others: tuple[str, ...] = ()
    healed: str = ""
    seconds: float = 0.0

    @property
    def outcome(self) -> str:
        """Return one word for people."""
        if not self.problem:
            return "caught" if self.kind == "fault" else "passed"
        if self.kind == "healthy":
            return "false alarm"
        return "missed" if self.verdict in ("pass", "warn") else "wrong"


def _list(value: Any) -> tuple[Any, ...]:
    return () if value is None else tuple(value) if isinstance(value, list) else (value,)


def _words(item: dict[str, Any], key: str) -> tuple[str, ...]:
    return tuple(str(word) for word in _list(item.get(key)))


def read_table(path: Path) -> tuple[list[Entry], list[Entry]]:
    """Return (faults, healthy variants); ValueError says which line is wrong."""
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    kinds: list[list[Entry]] = []
    for kind in ("faults", "healthy"):
        entries = []
        for item in data[kind]:
            if unknown := set(item) - _KEYS:
                raise ValueError(f"{path}: {item.get('name')!r} has unknown keys: {', '.join(sorted(unknown))}")
            case = {k: item[k] for k in _CASE_KEYS if k in item}
            if "rack" in case:
                case["rack"] = {node: _list(texts) for node, texts in case["rack"].items()}
            for key in ("edits", "dead"):
                if key in case:
                    case[key] = _list(case[key])
            entry = Entry(
                item["name"],
                Case(faults=_list(item.get("fault")), **case),
                item.get("check", ""),
                item.get("subject", ".*"),
                item.get("verdict", "fail"),
                says=_words(item, "says"),
                also=_words(item, "also"),
                warns=_words(item, "warns"),
                live=item.get("live", ""),
                tools=item.get("tools", {}),
            )
            if (kind == "faults") != bool(entry.check):
                raise ValueError(f"{path}: {entry.name!r}: a fault names its check, a healthy variant has none")
            entries.append(entry)
        kinds.append(entries)
    names = [e.name for entries in kinds for e in entries]
    if twice := sorted({n for n in names if names.count(n) > 1}):
        raise ValueError(f"{path}: names that are there twice: {', '.join(twice)}")
    return kinds[0], kinds[1]


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(p, name) for p in patterns)


def compare(entry: Entry, decision: dict[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Return what is wrong with a decision on a fault ("": nothing), and the check that caught it."""
    blocked = blocking(decision)
    if entry.verdict == "warn":
        # A neighbour's fault: this node must say so and may not be kept out.
        if blocked:
            return f"{blocked[0]['check']} keeps the node out", blocked[0]
        blocked = [c for c in decision["checks"] if c["verdict"] == "warn"]
    hits = [c for c in blocked if c["check"] == entry.check]
    caught = next((c for c in hits if re.fullmatch(entry.subject, c["subject"])), None)
    if not blocked:
        return "no check blocks the node", None
    if caught is None:
        if hits:
            return f"{entry.check} blames {hits[0]['subject']!r}, not {entry.subject!r}", hits[0]
        return f"caught by {', '.join(dict.fromkeys(c['check'] for c in blocked))}, not by {entry.check}", blocked[0]
    if strangers := [c["subject"] for c in hits if not re.fullmatch(entry.subject, c["subject"])]:
        return f"{entry.check} also blames {strangers[0]!r}", caught
    if caught["verdict"] != entry.verdict:
        return f"{entry.check} says {caught['verdict']}, not {entry.verdict}", caught
    lines = [shown(c) for c in hits]
    for words in entry.says:
        if not any(words.lower() in line.lower() for line in lines):
            return f"the reason does not say {words!r}", caught
    others = [c["check"] for c in blocked if c["check"] != entry.check and not _fits(c["check"], _FOLLOWS)]
    if strange := [name for name in others if not _fits(name, entry.also)]:
        return f"{strange[0]} blocks too, which this fault does not explain", caught
    worst = (decision["worst"] or caught)["check"]
    if worst != entry.check and not _fits(worst, entry.also):
        return f"the headline is {worst}", caught
    return "", caught


def compare_healthy(decision: dict[str, Any], warns: Sequence[str]) -> tuple[str, dict[str, Any] | None]:
    """Return what alarms on a healthy node ("": nothing), and the check that does."""
    alarms = [
        c
        for c in decision["checks"]
        if c["verdict"] != "pass" and not (c["verdict"] == "warn" and _fits(c["check"], warns))
    ]
    if alarms:
        return f"{alarms[0]['verdict']} of {alarms[0]['check']}", alarms[0]
    return ("" if decision["verdict"] in ("pass", "warn") else f"the decision is {decision['verdict']}"), None


def _decide(entry: Entry, case: Case, tools: dict[str, str], place: Path, run: str) -> dict[str, Any]:
    if entry.live:
        return live.judge(case, entry.live, tools, place, run)[1]
    directory = place / f"bundle-{run}"
    directory.mkdir()
    node, views = make(case, directory)
    return judge(node, views, place / "state", run)


def _run(entry: Entry, place: Path) -> Result:
    start = time.monotonic()
    decision = _decide(entry, entry.case, entry.tools, place, _RUNS[0])
    healed = ""
    if entry.check:
        problem, check = compare(entry, decision)
        # The next run on the same state: what the broken node left there must not keep the healed one out.
        after = _decide(entry, entry.case.healed(), {}, place, _RUNS[1])
        healed = compare_healthy(after, entry.warns)[0]
        if healed:
            problem = problem or f"after healing: {healed}"
        kept = stored(place / "state" / "gate" / "hardware.json") if not entry.live else after
        if kept["verdict"] not in ("pass", "warn"):
            problem = problem or "after healing the stored decision still keeps the node out"
        others = tuple(dict.fromkeys(c["check"] for c in blocking(decision) if c["check"] != entry.check))
    else:
        problem, check = compare_healthy(decision, entry.warns)
        others = tuple(dict.fromkeys(c["check"] for c in decision["checks"] if c["verdict"] == "warn"))
    return Result(
        entry.name,
        "fault" if entry.check else "healthy",
        tuple(entry.case.faults) or tuple(f"{t}: {how}" for t, how in entry.tools.items()),
        entry.check,
        problem,
        decision["verdict"],
        check["check"] if check else "",
        check["subject"] if check else "",
        shown(check),
        others,
        ("" if healed else "pass") if entry.check else "",
        round(time.monotonic() - start, 3),
    )


def evaluate(entry: Entry) -> Result:
    """Judge one line of the table in a directory of its own. What goes wrong in it is that line's problem."""
    memory = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="fault-matrix-", dir=memory if os.access(memory, os.W_OK) else None))
    try:
        return _run(entry, place)
    except _FAILURES as exc:  # one line of the table must not end the run: it is reported as failed
        kind = "fault" if entry.check else "healthy"
        return Result(entry.name, kind, entry.case.faults, entry.check, f"{type(exc).__name__}: {exc}", "error")
    finally:
        shutil.rmtree(place, ignore_errors=True)


def run(entries: Sequence[Entry], jobs: int) -> Iterator[Result]:
    """Yield the results in the table's order."""
    if jobs <= 1:
        yield from map(evaluate, entries)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(evaluate, entries)


def totals(results: Sequence[Result]) -> dict[str, int]:
    """Return the counts of the run."""
    return {
        "faults": sum(r.kind == "fault" for r in results),
        "caught": sum(r.outcome == "caught" for r in results),
        "missed": sum(r.outcome == "missed" for r in results),
        "wrong": sum(r.outcome == "wrong" for r in results),
        "healthy": sum(r.kind == "healthy" for r in results),
        "false_alarms": sum(r.outcome == "false alarm" for r in results),
    }


def markdown(results: Sequence[Result]) -> str:
    """Return the report as a Markdown table."""
    count = totals(results)

    def cell(text: str) -> str:
        return text.replace("|", "\\|").replace("\n", " ")

    lines = [
        f"{count['caught']} of {count['faults']} faults caught, {count['missed']} missed, {count['wrong']} by the "
        f"wrong check or reason; {count['false_alarms']} false alarms on {count['healthy']} healthy variants.",
        "",
        "| fault | outcome | check | subject | reason shown |",
        "| --- | --- | --- | --- | --- |",
    ]
    for r in (r for r in results if r.kind == "fault"):
        outcome = r.outcome + (f": {r.problem}" if r.problem else "")
        lines.append(f"| {cell(r.name)} | {cell(outcome)} | {r.check} | {cell(r.subject)} | {cell(r.reason)} |")
    lines += ["", "| healthy variant | outcome | warnings |", "| --- | --- | --- |"]
    for r in (r for r in results if r.kind == "healthy"):
        outcome = r.outcome + (f": {r.problem}" if r.problem else "")
        lines.append(f"| {cell(r.name)} | {cell(outcome)} | {', '.join(r.others)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the matrix; 0 when all is caught and nothing healthy alarms, 1 when not, 2 for a wrong table or option."""
    parser = argparse.ArgumentParser(
        prog="bench/fault_matrix",
        description="Break a simulated node in every known way and hold each gate module's judgement of its support "
        "bundle against the table bench/fault_matrix.yml: the right check, subject, verdict and reason. Healthy "
        "variants must pass, and so must each node once healed.",
        epilog="Exit status: 0 all as the table says; 1 a fault was missed, caught by the wrong check or for the wrong "
        "reason, or a healthy variant alarms; 2 the table or an option is wrong. See docs/fault-matrix.md.",
    )
    parser.add_argument("--only", metavar="REGEX", help="only lines whose name matches")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON")
    parser.add_argument("--markdown", metavar="FILE", type=Path, help="write the results as a Markdown table")
    parser.add_argument("--table", metavar="FILE", type=Path, default=TABLE, help="another table")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per CPU)")
    parser.add_argument("--list", action="store_true", help="print the names of the lines and end")
    parser.add_argument("--quiet", action="store_true", help="print only problems and the totals")
    options = parser.parse_args(argv)
    try:
        faults, healthy = read_table(options.table)
        wanted = re.compile(options.only or "")
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError, re.error) as exc:
        print(f"fault_matrix: {exc}", file=sys.stderr)
        return 2
    entries = [e for e in (*faults, *healthy) if wanted.search(e.name)]
    if options.list:
        print("\n".join(e.name for e in entries))
        return 0
    if not entries:
        print(f"fault_matrix: no line of the table matches {options.only!r}.", file=sys.stderr)
        return 2
    start = time.monotonic()
    results: list[Result] = []
    for result in run(entries, options.jobs):
        results.append(result)
        if result.problem or not options.quiet:
            where = f"  {result.check} {result.subject}" if result.kind == "fault" and not result.problem else ""
            print(f"[{len(results):3}/{len(entries)}] {result.outcome:<11} {result.name}{where}", flush=True)
        if result.problem:
            print(f"      {result.problem}\n      {result.reason[:300]}", flush=True)
    count = totals(results)
    missing = gates.absent()
    if missing:
        print(f"not driven: {', '.join(missing)}")
    print(
        f"{count['caught']} of {count['faults']} faults caught, {count['missed']} missed, {count['wrong']} wrong; "
        f"{count['false_alarms']} false alarms on {count['healthy']} healthy variants; {time.monotonic() - start:.0f} s"
    )
    document = {
        "totals": count,
        "not_driven": missing,
        "results": [{**dataclasses.asdict(r), "outcome": r.outcome} for r in results],
    }
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.markdown:
        options.markdown.write_text(markdown(results), encoding="utf-8")
    return 0 if count["caught"] == count["faults"] and not count["false_alarms"] else 1

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Seconds each gate module needs, beside the seconds of the tools it runs.

Captured (the default): every module judges the bundle of a healthy simulated node in a process of its own, as Ansible
starts it. No tool runs, so all of its time is ours. It is given as a multiple of an empty module's in the same run,
because seconds of a shared machine mean little.

Live: the gate playbook runs on a rack, and for each task of a gate the time of its tools, which stands in its evidence,
is taken from the time of the task. What is left over all gates of a node is held against the limit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import gaterun

LIMIT_S = 20.0
_EMPTY = "from ansible.module_utils.basic import AnsibleModule; AnsibleModule({}, supports_check_mode=True).exit_json()"
_START = (
    "import importlib, sys; from ansible.module_utils.testing import patch_module_args; import json; "
    "name, arguments = sys.argv[1], json.loads(sys.argv[2])\n"
    "with patch_module_args(arguments):\n    {body}"
)
_MODULE = "importlib.import_module(f'ansible_collections.ai_infra.gpu_rack.plugins.modules.{name}').main()"


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """One gate's seconds: the whole, and the part its tools took themselves."""

    gate: str
    seconds: float
    tools: float
    verdict: str

    @property
    def ours(self) -> float:
        """Seconds that are not the tools'."""
        return max(self.seconds - self.tools, 0.0)


def timed(body: str, name: str, arguments: Mapping[str, Any], times: int) -> tuple[float, str]:
    """Run a module `times` times in processes of their own; return the least seconds and what the last one printed."""
    paths = json.dumps([p for p in sys.path if p])
    code = f"import sys; sys.path[:] = {paths}; " + _START.format(body=body)
    least, printed = float("inf"), ""
    for _unused in range(times):
        start = time.monotonic()
        got = subprocess.run(
            [sys.executable, "-c", code, name, json.dumps(arguments)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        least = min(least, time.monotonic() - start)
        printed = got.stdout
    return least, printed


def captured(times: int) -> tuple[float, list[Cost]]:
    """Return the seconds of an empty module and the cost of every gate on the bundle of a healthy node."""
    from bench.faultmatrix.gates import GATES
    from bench.faultmatrix.judge import Case, make

    empty = float("inf")
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as place:
        node, _views = make(Case(), Path(place) / "bundle")
        for gate in GATES:
            name = gate.module or gate.name
            # A sweep is judged from the rows of all nodes; bench/fault_matrix makes those.
            if gate.sweep or not gaterun.exists(name):
                continue
            arguments = {**gate.options(node), "captured": str(node.bundle), "enforce": False}
            # Between the gates, so that the same noise is in both; the least of all is the unit.
            empty = min(empty, timed(_EMPTY, "empty", {}, times)[0])
            seconds, printed = timed(_MODULE, name, arguments, times)
            costs.append(Cost(gate.name, seconds, 0.0, verdict_of(printed)))
    return empty, costs


def verdict_of(printed: str) -> str:
    """Return the verdict a module printed, or that it gave none."""
    try:
        result = json.loads(printed)
    except ValueError:
        return "broken"
    return str(result.get("verdict", "broken"))


def live(inventory: str, limit: str | None) -> dict[str, list[Cost]]:
    """Run the gate playbook and return the costs by node."""
    from gpurack import project
    from gpurack.runner import run_playbook

    events: list[Mapping[str, Any]] = []
    options = ["--limit", limit] if limit else []
    run_playbook("gate", project.inventory(inventory), options, events.append)
    return costs_of(events)


def costs_of(events: Sequence[Mapping[str, Any]]) -> dict[str, list[Cost]]:
    """Return the costs by node from the events of a run: every result of a task that is a gate's."""
    costs: dict[str, list[Cost]] = defaultdict(list)
    for event in events:
        data = event.get("event_data") or {}
        result = data.get("res")
        if event.get("event") not in ("runner_on_ok", "runner_on_failed") or not isinstance(result, dict):
            continue
        if isinstance(result.get("gate"), str) and isinstance(result.get("evidence"), list):
            tools = sum(seconds_of(result["evidence"]))
            verdict = str(result.get("verdict"))
            costs[str(data.get("host"))].append(Cost(result["gate"], float(data.get("duration") or 0), tools, verdict))
    return dict(costs)


def seconds_of(evidence: Sequence[Any]) -> Iterator[float]:
    """Return the seconds of each reading that was a run of a tool."""
    for reading in evidence:
        seconds = reading.get("seconds") if isinstance(reading, dict) else None
        if isinstance(seconds, int | float):
            yield float(seconds)


def table(costs: Sequence[Cost], empty: float | None) -> list[str]:
    """Return the lines of one node's table; `empty` are the seconds of an empty module, None on a rack."""
    head = "x empty" if empty is not None else "tools s"
    lines = [f"{'gate':24} {'verdict':8} {'seconds':>8} {head:>8} {'ours s':>8}"]
    for cost in sorted(costs, key=lambda c: -c.ours):
        ours = cost.ours - (empty or 0.0)
        middle = f"{cost.seconds / empty:8.2f}" if empty else f"{cost.tools:8.2f}"
        lines.append(f"{cost.gate:24} {cost.verdict:8} {cost.seconds:8.2f} {middle} {max(ours, 0.0):8.2f}")
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 when a gate is broken or a node is over the limit."""
    parser = argparse.ArgumentParser(
        prog="bench/gate_speed",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--times", type=int, default=3, metavar="N", help="runs of each module, the fastest counts")
    parser.add_argument("--live", metavar="INVENTORY", help="run the gate playbook on this rack")
    parser.add_argument("--limit", metavar="HOSTS", help="only these hosts, with --live")
    parser.add_argument("--json", action="store_true", help="one JSON document in place of the tables")
    args = parser.parse_args(argv)
    if args.live:
        nodes, empty = live(args.live, args.limit), None
    else:
        empty, costs = captured(max(args.times, 1))
        nodes = {"captured": costs}
    ours = {node: sum(max(c.ours - (empty or 0.0), 0.0) for c in costs) for node, costs in nodes.items()}
    if args.json:
        shown = {n: [dataclasses.asdict(c) for c in costs] for n, costs in nodes.items()}
        print(json.dumps({"empty": empty, "nodes": shown, "ours": ours, "limit": LIMIT_S}, indent=1))
    else:
        for node, costs in nodes.items():
            print("\n".join([f"{node}", *table(costs, empty), f"{'all gates':51} {ours[node]:8.2f}"]))
        if empty is not None:
            print(
                f"an empty module: {empty:.2f} s. All gates beside their starts: {ours['captured'] / empty:.1f} x that"
            )
        print(f"limit for a node beyond its tools: {LIMIT_S:g} s")
    broken = [c.gate for costs in nodes.values() for c in costs if c.verdict == "broken"]
    if broken:
        print(f"gate_speed: no verdict from {', '.join(broken)}. Run the module by hand.", file=sys.stderr)
    if not any(nodes.values()):
        print("gate_speed: no gate ran, so nothing was measured.", file=sys.stderr)
    return int(bool(broken) or not any(nodes.values()) or any(s > LIMIT_S for s in ours.values()))

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One node as the gates see it: bundle, every gate module on it, the decision of both stages."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import re
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import BLOCKING, describe, worst
from simhw import bundle, faults
from simhw import describe as description
from simhw.bundle import Site
from simhw.hw import Hw

from bench import gaterun
from bench.faultmatrix import fabric

NODES = ("node1", "node2", "node3", "node4")


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """What a node is and what is wrong with it. `rack` are faults of the other nodes, by name."""

    board: str = "hgx_h100_8"
    vendor: str = "dell"
    link_layer: str = "infiniband"
    faults: tuple[str, ...] = ()
    rack: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    site: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    edits: tuple[Mapping[str, str], ...] = ()
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    dead: tuple[str, ...] = ()
    evidence: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def healed(self) -> Case:
        """Return the same node with everything cured."""
        return dataclasses.replace(self, faults=(), rack={}, edits=(), dead=(), evidence={})


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """The judged node with all that a gate's options depend on."""

    case: Case
    hw: Hw
    view: Hw
    site: Site
    bundle: Path

    @property
    def hcas(self) -> list[str]:
        """Names of the HCAs the node must have."""
        return [h["name"] for h in self.hw["hcas"]]

    @property
    def infiniband(self) -> bool:
        """Whether the rails are InfiniBand."""
        return self.case.link_layer == "infiniband"


@functools.lru_cache(maxsize=64)
def _description(board: str, vendor: str, link_layer: str, name: str, broken: tuple[str, ...]) -> tuple[Hw, Hw]:
    """Return a node's description and its effective form, which nobody may change: it is kept."""
    nodes, heads = list(NODES), ["head1"]
    rack = {"name": "matrix", "id": 99, "board": board, "vendor": vendor, "link_layer": link_layer}
    hw = description.build({**rack, "nodes": nodes, "heads": heads}, name)
    hw["faults"] = list(broken)
    for text in broken:
        faults.parse(text, hw)
    hw = bundle.brought_up(hw)
    return hw, {**faults.effective(hw), "fabric_layer": link_layer}


def make(case: Case, place: Path) -> tuple[Node, dict[str, Hw]]:
    """Write the node's bundle and return the node, and the effective descriptions of the whole rack."""
    chosen: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in case.site.items()}
    site = Site(**chosen)
    views: dict[str, Hw] = {}
    own: Hw = {}
    for name in NODES:
        broken = tuple(case.faults if name == NODES[0] else case.rack.get(name, ()))
        hw, views[name] = _description(case.board, case.vendor, case.link_layer, name, broken)
        own = hw if name == NODES[0] else own
    texts = bundle.files(own, site)
    for edit in case.edits:
        if not edit.get("late"):
            _edit(texts, edit)
    for name, text in texts.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return Node(case, own, views[NODES[0]], site, place), views


def _edit(texts: dict[str, str], edit: Mapping[str, str]) -> None:
    """Change a file of the bundle for what no part of the simulated hardware can do. A change that changes nothing is
    an error of the table."""
    name = edit["file"]
    if name not in texts:
        raise ValueError(f"edit: the bundle has no file {name}. It has {', '.join(sorted(texts))}.")
    if edit.get("remove"):
        del texts[name]
        return
    if "append" in edit:
        texts[name] += edit["append"]
        return
    if "text" in edit:
        texts[name] = edit["text"]
        return
    changed = re.sub(edit["from"], edit["to"], texts[name], count=int(edit.get("count", 1)), flags=re.MULTILINE)
    if changed == texts[name]:
        raise ValueError(f"edit: {edit['from']!r} is not in {name}.")
    texts[name] = changed


Options = Callable[[Node], dict[str, Any]]


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """A gate in the chain: its module, its stage, its options for a node; `when` leaves it out on some nodes."""

    name: str
    stage: str
    options: Options
    module: str = ""
    sweep: str = ""
    fleet: bool = False
    when: Callable[[Node], bool] = lambda node: True


def judge(node: Node, views: dict[str, Hw], state: Path, run: str) -> dict[str, Any]:
    """Run every gate on the node's bundle and let module `gate` decide; return both decisions as one.

    The decision is module `gate`'s own, over the files the gates stored, so a result that does not prove what it says
    is refused here as on a node.
    """
    from bench.faultmatrix.gates import GATES

    checks: list[dict[str, Any]] = []
    verdicts: dict[str, str] = {}
    headline: dict[str, Any] | None = None
    verdict = "pass"
    fleet: dict[str, dict[str, Any]] = {"versions": {}, "values": {}}
    for stage in ("hardware", "serving"):
        evidence = state / "evidence" / run / stage
        required = []
        for gate in GATES:
            if gate.stage != stage or not gaterun.exists(gate.module or gate.name) or not gate.when(node):
                continue
            required.append(gate.name)
            given = {**gate.options(node), **node.case.options.get(gate.name, {})}
            arguments = {k: v for k, v in given.items() if v is not None}
            if gate.sweep:
                stored = node.bundle / "sweep" / f"{gate.name}_sweep.json"
                stored.parent.mkdir(exist_ok=True)
                stored.write_text(json.dumps(fabric.sweep(views, gate.sweep, node.case.dead)), encoding="utf-8")
                arguments["captured"] = str(stored)
            elif gate.fleet:
                arguments["rows"] = _fleet_rows(node, fleet)
            else:
                arguments["captured"] = str(node.bundle)
            result = gaterun.run_module(
                gate.module or gate.name, {**arguments, "evidence_dir": str(evidence), "enforce": False}
            )
            for kind, facts in fleet.items():
                facts.update((result.get("fleet") or {}).get(kind) or {})
        if stage == "hardware":
            _start_units(node)
        for name, how in node.case.evidence.items():
            if (evidence / f"{name}.json").is_file():
                _tamper(evidence / f"{name}.json", how)
        decision = decide(stage, required, evidence, state, run)
        verdicts[stage] = decision["verdict"]
        checks += decision["checks"]
        if decision["worst"] and worst([decision["verdict"], verdict]) != verdict:
            verdict, headline = decision["verdict"], decision["worst"]
    return {"verdict": verdict, "stages": verdicts, "checks": checks, "worst": headline}


def _tamper(path: Path, how: str) -> None:
    """Do to a gate's stored result what keeps it from being proof."""
    text = path.read_text(encoding="utf-8")
    if how == "missing":
        path.unlink()
    elif how == "cut off":
        path.write_text(text[: len(text) // 2], encoding="utf-8")
    elif how == "says pass":
        data = json.loads(text)
        for check in data["checks"]:
            check["verdict"] = "pass"
        path.write_text(json.dumps({**data, "verdict": "pass", "summary": "pass"}), encoding="utf-8")
    elif how == "of another boot":
        path.write_text(json.dumps({**json.loads(text), "boot_id": "0"}), encoding="utf-8")
    else:
        raise ValueError(f"evidence: {how!r} is none of missing, cut off, says pass, of another boot.")


def _start_units(node: Node) -> None:
    """Write what /proc shows of the units' processes: they run as the gate inference_units has laid them out."""
    path = node.bundle / "inference_units.json"
    if path.is_file():
        units = json.loads(path.read_text(encoding="utf-8"))["units"]
        texts = bundle.processes(node.view, node.site, units)
        for edit in node.case.edits:
            if edit.get("late"):
                _edit(texts, edit)
        for name, text in texts.items():
            (node.bundle / name).write_text(text, encoding="utf-8")


_HEALTHY: dict[str, dict[str, Any]] = {}
"""What the gates found on a healthy node, by kind of node: the other nodes of its rack."""


def _fleet_rows(node: Node, fleet: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the rows of the rack: this node's facts, and the others', which are healthy and like it."""
    case = node.case.healed()
    key = repr((case.board, case.vendor, case.link_layer, dict(case.site), dict(case.options)))
    if key not in _HEALTHY:
        if case == node.case:
            _HEALTHY[key] = copy.deepcopy(dict(fleet))
        else:
            with tempfile.TemporaryDirectory(prefix="fault-matrix-") as place:
                good, views = make(case, Path(place))
                # Judging it keeps its facts; its own decision is of no interest here.
                judge(good, views, Path(place) / "state", "20261130T110000Z")
    rows = dict.fromkeys(NODES[1:], _HEALTHY[key]) | {NODES[0]: fleet}
    return [{"node": n, "board": case.board, "rack": "matrix", "fleet": f} for n, f in sorted(rows.items())]


def decide(stage: str, required: list[str], evidence: Path, state: Path, run: str) -> dict[str, Any]:
    """Return module `gate`'s decision."""
    arguments = {"stage": stage, "require": required, "evidence": str(evidence), "run": run, "enforce": False}
    arguments["allow_captured"] = True
    return gaterun.run_module("gate", {**arguments, "state_dir": str(state), "node": NODES[0]})


def blocking(decision: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the checks that keep the node out."""
    return [c for c in decision["checks"] if c["verdict"] in BLOCKING]


def shown(check: Mapping[str, Any] | None) -> str:
    """Return the line a person sees."""
    return describe(check) if check else ""


def stored(path: Path) -> dict[str, Any]:
    """Return a stored decision."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data

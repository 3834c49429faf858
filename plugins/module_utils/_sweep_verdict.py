# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judgement of a whole sweep for one node: what is bad, who is to blame, and what that means for this node. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._blame import Blame, Element, Trial, name_all
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_matrix import (
    Assessment,
    Judged,
    Measured,
    Row,
    Rules,
    assess,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Verdict, unknown

CHECKS: dict[str, str] = {
    "ib_latency.blame": "Bad pairs of the node and what explains them over the whole sweep (port, path, node, leaf), "
    "after suspects were measured again against known good ports; held against nothing to blame.",
    "ib_latency.port": "Whether each HCA can be measured at all (port Active, link layer), by ibstat.",
    "ib_latency.coverage": "Pairs of the node that were measured, held against the sweep's schedule.",
    "ib_latency.latency": "Typical RDMA write latency of each pair (ib_write_lat), held against the board profile's "
    "limit for the number of switches and the median of the sweep.",
    "ib_latency.p99": "99th percentile of the same, held against 4.2 us (imbue-ai/cluster-health) or the inventory.",
    "ib_latency.loss": "Packets lost of those ibping sent, from its two counts, held against the board profile (none).",
    "ib_latency.retransmissions": "Retransmissions the HCA counted during the test, where there is no ibping; held "
    "against none.",
    "ib_latency.values": "Values of a pair that nothing can have measured, or that its two ends report differently.",
    "ib_bandwidth.blame": "Slow pairs of the node and what explains them over the whole sweep, after suspects were "
    "measured again against known good ports; held against nothing to blame.",
    "ib_bandwidth.port": "Whether each HCA can be measured at all (port Active, link layer), by ibstat.",
    "ib_bandwidth.coverage": "Pairs of the node that were measured, held against the sweep's schedule.",
    "ib_bandwidth.bandwidth": "Average RDMA write bandwidth of each pair (ib_write_bw), held against the board "
    "profile's floor, 0.9 of the port's rate, or the inventory.",
    "ib_bandwidth.values": "Values of a pair that nothing can have measured, or that its two ends report differently.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Names:
    """The names of the checks of a gate."""

    blame: str
    port: str
    coverage: str
    values: str
    main: str


LATENCY = Names("ib_latency.blame", "ib_latency.port", "ib_latency.coverage", "ib_latency.values", "ib_latency.latency")
BANDWIDTH = Names(
    "ib_bandwidth.blame",
    "ib_bandwidth.port",
    "ib_bandwidth.coverage",
    "ib_bandwidth.values",
    "ib_bandwidth.bandwidth",
)


@dataclasses.dataclass(frozen=True, slots=True)
class SweepVerdict:
    """What a sweep means for one node."""

    checks: list[Check]
    culprits: tuple[Element, ...]
    suspects: tuple[Element, ...]
    matrix: list[dict[str, Any]]
    fleet: dict[str, Any]


def judge(node: str, results: Sequence[Mapping[str, Any]], rules: Rules) -> SweepVerdict:
    """Return the checks of one node from the results of all nodes."""
    names = BANDWIDTH if rules.bandwidth else LATENCY
    matrix = assess(results, rules)
    found = matrix.found
    own = next((result for result in results if result.get("node") == node), None)
    if own is None:
        missing = unknown(names.coverage, node, "the node has no result of the sweep", "Run the sweep on it again.")
        return SweepVerdict([missing], found.culprits, found.suspects, _matrix(matrix), {})
    mine = [j for j in matrix.judged if j.concerns(node)]
    checks = [
        _blame_check(names, node, matrix, mine),
        *_port_checks(names, node, own),
        _coverage(names, node, own, mine),
    ]
    checks += [_quantity_check(node, j, q, matrix) for j in mine for q in j.quantities]
    checks += [
        unknown(names.values, j.subject, "; ".join(j.unreadable), "Run the sweep again.") for j in mine if j.unreadable
    ]
    return SweepVerdict(checks, found.culprits, found.suspects, _matrix(matrix), _fleet(names, mine))


def _fleet(names: Names, mine: Sequence[Judged]) -> dict[str, Any]:
    """Return the node's number for the comparison of all nodes: the median bandwidth over its pairs with others.

    Latency has none. It depends on where the partners are (one switch or three), so a healthy node alone on its leaf
    would be the odd one out; and 5 % of it is 0.1 us, what 20 m more of fibre add. The sweep itself
    compares each pair with those over as many switches, which finds what a median over all pairs would hide.
    """
    found = [
        float(one.value)
        for j in mine
        if j.row["kind"] == "pair"
        for one in j.quantities
        if one.check == BANDWIDTH.main and isinstance(one.value, int | float)
    ]
    if names is not BANDWIDTH or not found:
        return {"values": {}}
    return {
        "values": {BANDWIDTH.main: {"value": round(statistics.median(found), 3), "unit": "Gb/s", "better": "higher"}}
    }


def _touches(node: str, element: Element, mine: Sequence[Judged]) -> bool:
    """Return whether an element is the node's own or one it hangs on: its leaf, the fabric."""
    if element.node:
        return element.node == node
    return any(j.trial is not None and j.trial.bad and element in j.trial.elements() for j in mine)


def _blame_check(names: Names, node: str, matrix: Assessment, mine: Sequence[Judged]) -> Check:
    name, limit, source, found = names.blame, "nothing", "every node of the sweep", matrix.found
    own = [e for e in found.culprits if _touches(node, e, mine)]
    maybe = [e for e in found.suspects if _touches(node, e, mine)]
    if not own and maybe and all(e.node == node for e in found.suspects):
        own = maybe
    lasting = [j for j in mine if j.bad and not matrix.is_transient(j)]
    if own:
        word = " or ".join if own is maybe else " and ".join
        text = word(str(e) for e in own)
        count = len({j.ends for j in lasting if j.trial is not None and j.trial.elements() & set(own)})
        reason = (
            f"{count} bad pair{'s' if count != 1 else ''} of this node {'are' if count != 1 else 'is'} explained by it"
            f"; {_measured_again(own, matrix)}"
        )
        return Check(name, node, "fail", reason, text, limit, "", source, _remedy(names, own))
    if maybe:
        reason = f"cannot tell which of these is broken: {name_all(found.suspects)}; {_measured_again(maybe, matrix)}"
        remedy = "Run the sweep with one more good node, or swap a cable: the fault moves with what is broken."
        return Check(name, node, "unknown", reason, None, limit, "", source, remedy)
    loose = [j for j in mine if j.trial is not None and j.trial in found.unexplained]
    if loose:
        reason = f"cannot tell: {loose[0].subject} is bad while most other pairs of both its ports are good"
        remedy = "Run the sweep again; a fault that comes and goes shows more."
        return Check(name, node, "unknown", reason, None, limit, "", source, remedy)
    others = [e for e in (*found.culprits, *found.suspects) if e.node != node]
    if others and lasting:
        reason = "bad pairs of this node are explained by another node"
        return Check(
            name, node, "warn", reason, name_all(others), limit, "", source, "Repair what is named; this node is good."
        )
    once = [j for j in mine if matrix.is_transient(j)]
    if once:
        reason = f"bad once and good when measured again: {', '.join(j.subject for j in once[:4])}"
        remedy = "Watch the counters of these ports; a fault that comes back is named then."
        return Check(name, node, "warn", reason, "nothing that lasted", limit, "", source, remedy)
    if not any(j.trial is not None for j in mine):
        return unknown(name, node, "no pair of this node was measured", f"See {names.coverage}.")
    return Check(name, node, "pass", "no bad pair points to this node", "nothing", limit, "", source)


def _measured_again(elements: Sequence[Element], matrix: Assessment) -> str:
    """Return what measuring again showed of some elements."""
    again = [
        j
        for j in matrix.judged
        if j.row["kind"] == "retest" and j.trial is not None and j.trial.elements() & set(elements)
    ]
    if not again:
        return "it was not measured again"
    bad = sum(1 for j in again if j.bad)
    with_whom = ", ".join(
        f"{j.subject.removesuffix(', measured again')} {'bad' if j.bad else 'good'}" for j in again[:4]
    )
    return f"measured again, bad in {bad} of {len(again)} ({with_whom})"


def _remedy(names: Names, elements: Sequence[Element]) -> str:
    kinds = {element.kind for element in elements}
    if "fabric" in kinds:
        return "Check the limits against the fabric (profile, max_latency_us), then spines and subnet manager."
    if "path" in kinds:
        return (
            "Neither port is at fault: trace the route between them (ibtracert) and replace the cable between switches "
            "that only this pair uses, then run the gate again."
        )
    if "leaf" in kinds:
        return "Repair the leaf switch or its uplinks: every node on it is held back, none of them is at fault itself."
    if "node" in kinds:
        return "All its rails are bad: look at what they share (C-states, PCIe, NUMA binding, firmware), not at cables."
    if names is BANDWIDTH:
        return "Check the HCA's PCIe width and speed (LnkSta) and the port's rate, then the cable, then the HCA."
    return "Reseat or replace the cable, then the transceiver, then the HCA."


def _port_checks(names: Names, node: str, own: Mapping[str, Any]) -> list[Check]:
    checks = []
    if not own.get("ports"):
        return [unknown(names.port, node, "its result names no port", "Run the sweep on it again.", "usable")]
    for port in own["ports"]:
        subject, trouble = f"{node} {port['hca']}", port["trouble"]
        if trouble is None:
            checks.append(
                Check(
                    names.port,
                    subject,
                    "pass",
                    "the port can be measured",
                    "usable",
                    "usable",
                    "",
                    "specification",
                )
            )
        elif trouble.startswith("ibstat") and "does not list" not in trouble:
            checks.append(
                unknown(names.port, subject, trouble, "Install infiniband-diags and run the gate again.", "usable")
            )
        else:
            remedy = "Check cable and subnet manager (ibstat, iblinkinfo), then run the gate again."
            checks.append(Check(names.port, subject, "fail", trouble, trouble, "usable", "", "specification", remedy))
    return checks


def _coverage(names: Names, node: str, own: Mapping[str, Any], mine: Sequence[Judged]) -> Check:
    name, source = names.coverage, "the sweep's schedule"
    pairs = [j for j in mine if j.row["kind"] == "pair"]
    alone = [j for j in mine if j.row["kind"] == "self"]
    usable = [port["hca"] for port in own.get("ports") or () if port["trouble"] is None]
    reached = {hca for j in mine if _complete(j) for hca in _hcas(node, j.row)}
    unseen = [hca for hca in usable if hca not in reached]
    if not pairs:
        value = f"{len(usable) - len(unseen)} of {len(usable)} usable rails, within the node"
        if not alone or unseen or not usable:
            why = next(
                (str(j.row["error"]) for j in alone if j.row["error"]), "fewer than two usable HCAs and no partner"
            )
            return unknown(
                name,
                node,
                f"{', '.join(unseen) or 'its rails'} could not be measured: {why}",
                "Run it with a partner in the play.",
            )
        reason = (
            "measured between the node's own HCAs, which proves them, their cables and leaf ports; the way to other "
            "nodes is not proven, as the play has no partner"
        )
        return Check(
            name,
            node,
            "warn",
            reason,
            value,
            f"{len(usable)} rails",
            "",
            source,
            "Run the gate on all nodes to prove the pairs.",
        )
    open_ = [j for j in pairs if not _complete(j)]
    value = f"{len(pairs) - len(open_)} of {len(pairs)} pairs"
    if not open_:
        return Check(name, node, "pass", "every pair was measured", value, f"{len(pairs)} pairs", "", source)
    why = "; ".join(dict.fromkeys(str(j.row["error"] or "not measured") for j in open_))
    if len(open_) == len(pairs) and own.get("absent"):
        remedy = (
            "Set forks to at least the number of nodes, and let the sweep's TCP ports through the management network."
        )
        return Check(
            name, node, "unknown", f"met none of its partners: {why}", value, f"{len(pairs)} pairs", "", source, remedy
        )
    at_home = [j for j in open_ if _at_home(node, j.row)]
    if unseen or at_home:
        remedy = "Cure the reason given and run the gate again."
        what = f"{', '.join(unseen)} was measured with nobody: {why}" if unseen else why
        return Check(name, node, "unknown", what, value, f"{len(pairs)} pairs", "", source, remedy)
    return Check(
        name,
        node,
        "warn",
        f"not measured because of others: {why}",
        value,
        f"{len(pairs)} pairs",
        "",
        source,
        "See the nodes named.",
    )


def _complete(judged: Judged) -> bool:
    """Return whether everything of a pair was measured: bandwidth, or latency and loss or retransmissions."""
    kinds = {q.check for q in judged.quantities}
    if "ib_latency.latency" not in kinds:
        return "ib_bandwidth.bandwidth" in kinds
    return judged.row["path_failed"] or bool(kinds & {"ib_latency.loss", "ib_latency.retransmissions"})


def _at_home(node: str, row: Row) -> bool:
    """Return whether this node is the reason that a pair was not measured. A broken port is judged by its own check."""
    fault = row.get("fault")
    if fault is not None:
        return bool(fault["node"] == node) and fault["hca"] is None
    absent = str(row["error"] or "").startswith(
        tuple(f"{row[side]} " for side in ("client", "server") if row[side] != node)
    )
    return row["client"] == node and not absent


def _hcas(node: str, row: Row) -> set[str]:
    return {row[f"{side}_hca"] for side in ("client", "server") if row[side] == node}


def _quantity_check(node: str, judged: Judged, measured: Measured, matrix: Assessment) -> Check:
    verdict: Verdict = "pass"
    reason, remedy = measured.reason, ""
    if measured.limit.value is None:
        verdict, reason = "unknown", f"{reason}: no limit is known for it, name a board profile or a limit"
    elif measured.bad and matrix.is_transient(judged):
        verdict, reason = "warn", f"{reason}; good when it was measured again, so nobody is blamed"
    elif measured.bad and judged.trial is not None:
        verdict, why = _consequence(node, judged.trial, matrix.found)
        reason, remedy = f"{reason}; {why}", measured.remedy if verdict == "fail" else ""
    return Check(
        measured.check,
        judged.subject,
        verdict,
        reason,
        measured.value,
        measured.limit.value,
        measured.unit,
        measured.limit.source,
        remedy,
    )


def _consequence(node: str, trial: Trial, found: Blame) -> tuple[Verdict, str]:
    """Return what a bad pair means for one of its ends."""
    culprit = found.culprit_of(trial)
    if culprit is not None:
        own = culprit.node in ("", node)
        return ("fail" if own else "warn"), f"explained by {culprit}"
    suspects = found.suspects_of(trial)
    if suspects:
        nodes = {element.node for element in suspects}
        text = " or ".join(str(element) for element in suspects)
        if nodes == {node}:
            return "fail", f"explained by {text}"
        return ("unknown" if node in nodes or "" in nodes else "warn"), f"cannot tell whether {text}"
    return "unknown", "cannot tell which end: most other pairs of both ports are good"


def _matrix(matrix: Assessment) -> list[dict[str, Any]]:
    """Return the whole matrix in short, for the report. `bad` is null where nothing was measured."""
    keys = ("kind", "client", "client_hca", "server", "server_hca", "rail", "t_typical_us", "p99_us", "loss", "error")
    return [
        {
            **{key: j.row[key] for key in keys},
            "bw_gbps": j.row.get("bw_gbps"),
            "bad": j.trial.bad if j.trial is not None else None,
            "transient": matrix.is_transient(j),
        }
        for j in matrix.judged
    ]

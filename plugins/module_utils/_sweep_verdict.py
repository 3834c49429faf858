# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judgement of a whole sweep for one node: what is bad, who is to blame, and what that means for this node. Pure."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._blame import (
    Blame,
    Element,
    End,
    Trial,
    blame,
    name_all,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._latency_limits import (
    LATENCY_REMEDY,
    LOSS_REMEDY,
    Limit,
    Limits,
    loss_reason,
    switches_between,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Verdict, unknown

Row = Mapping[str, Any]

# A median over fewer pairs is moved too far by the pairs it is meant to judge.
_MEDIAN_OF = 6
# No latency, count or share of a sweep comes near it.
_BOUND = 1e9


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """One judged quantity of one pair."""

    check: str
    value: float | str | None
    unit: str
    limit: Limit
    bad: bool
    reason: str
    remedy: str


@dataclasses.dataclass(frozen=True, slots=True)
class Judged:
    """A pair with its quantities; none when nothing was measured."""

    row: Row
    quantities: tuple[Measured, ...]
    trial: Trial | None
    unreadable: tuple[str, ...] = ()

    @property
    def subject(self) -> str:
        """Return the pair's name for people."""
        row = self.row
        return f"{row['client']} {row['client_hca']} - {row['server']} {row['server_hca']}"

    def concerns(self, node: str) -> bool:
        """Return whether the node is one of the ends."""
        return node in (self.row["client"], self.row["server"])


@dataclasses.dataclass(frozen=True, slots=True)
class SweepVerdict:
    """What a sweep means for one node."""

    checks: list[Check]
    culprits: tuple[Element, ...]
    suspects: tuple[Element, ...]
    matrix: list[dict[str, Any]]


def merge(results: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return every pair once. Both ends report it; the report with a measurement wins, then the client's."""
    merged: dict[tuple[Any, ...], Row] = {}
    for result in results:
        for row in result.get("pairs") or ():
            key = _key(row)
            known = merged.get(key)
            better = known is None or _weight(row, result) > _weight(known, {"node": None})
            if better:
                merged[key] = row
    return [merged[key] for key in sorted(merged)]


def clean(row: Row) -> tuple[Row, tuple[str, ...]]:
    """Return a pair without the numbers that nothing can have measured, and what they were.

    A NaN is not above any limit and a count of sent packets that is too small hides a loss, so neither may be judged.
    """
    wrong: dict[str, str] = {}
    for key in ("t_typical_us", "p99_us"):
        if row[key] is not None and not (_is_number(row[key]) and 0 < row[key] < _BOUND):
            wrong[key] = "no latency"
    sent, received = row["sent"], row["received"]
    if (sent is not None or received is not None) and not (
        _is_count(sent) and _is_count(received) and 0 <= received <= sent and sent > 0
    ):
        wrong["sent"] = wrong["received"] = "no counts of packets"
    if row["retransmissions"] is not None and not (_is_count(row["retransmissions"]) and row["retransmissions"] >= 0):
        wrong["retransmissions"] = "no count"
    if row["loss"] is not None and not (_is_number(row["loss"]) and 0 <= row["loss"] <= 100):
        wrong["loss"] = "no share"
    found = tuple(f"{key} is {str(row[key])[:40]}, {why}" for key, why in wrong.items())
    return ({**row, **dict.fromkeys(wrong)} if wrong else row), found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value < _BOUND


def _key(row: Row) -> tuple[Any, ...]:
    return (row["kind"], row["client"], row["server"], row["client_rail"], row["server_rail"])


def judge(
    node: str, results: Sequence[Mapping[str, Any]], limits: Limits, above_median_us: float | None
) -> SweepVerdict:
    """Return the checks of one node from the results of all nodes.

    `above_median_us`: how far a typical latency may lie above the sweep's median over as many switches.
    """
    unreadable: dict[tuple[Any, ...], tuple[str, ...]] = {}
    seen: dict[tuple[Any, ...], float] = {}
    cleaned = []
    for result in results:
        pairs = []
        for row in result.get("pairs") or ():
            good, found_wrong = clean(row)
            pairs.append(good)
            # A report of the other end does not heal it: one of the two is wrong, and nobody knows which.
            if found_wrong:
                unreadable.setdefault(_key(row), found_wrong)
            # The server copies what the client measured, so two reports of one pair are equal or not of one sweep.
            if good["t_typical_us"] is not None:
                first = seen.setdefault(_key(row), good["t_typical_us"])
                if first != good["t_typical_us"]:
                    differ = f"reported as {first} us and as {good['t_typical_us']} us"
                    unreadable.setdefault(_key(row), (differ,))
        cleaned.append({**result, "pairs": pairs})
    rows = merge(cleaned)
    medians = _medians(rows) if above_median_us is not None else {}
    judged = [
        dataclasses.replace(
            _judge_row(row, limits, medians, above_median_us or 0.0), unreadable=unreadable.get(_key(row), ())
        )
        for row in rows
    ]
    trials = [j.trial for j in judged if j.trial is not None]
    found = blame(trials)
    own = next((result for result in results if result.get("node") == node), None)
    if own is None:
        missing = unknown(
            "ib_latency.coverage", node, "the node has no result of the sweep", "Run the sweep on it again."
        )
        return SweepVerdict([missing], found.culprits, found.suspects, _matrix(judged))
    mine = [j for j in judged if j.concerns(node)]
    checks = [_blame_check(node, found, mine), *_port_checks(node, own), _coverage(node, own, mine)]
    checks += [_quantity_check(node, j, q, found) for j in mine for q in j.quantities]
    checks += [
        unknown("ib_latency.values", j.subject, "; ".join(j.unreadable), "Run the sweep again.")
        for j in mine
        if j.unreadable
    ]
    return SweepVerdict(checks, found.culprits, found.suspects, _matrix(judged))


def _weight(row: Row, result: Mapping[str, Any]) -> int:
    """Return how much a report of a pair is worth."""
    measured = row["t_typical_us"] is not None or row["path_failed"] or row["sent"] is not None
    return 4 * int(measured) + 2 * int(row.get("fault") is not None) + int(row["client"] == result.get("node"))


def _medians(rows: Sequence[Row]) -> dict[int | None, float]:
    """Return the median of the typical latencies by number of switches, where enough pairs were measured."""
    values: dict[int | None, list[float]] = {}
    for row in rows:
        if row["kind"] == "pair" and row["t_typical_us"] is not None:
            values.setdefault(switches_between(row["client_leaf"], row["server_leaf"]), []).append(row["t_typical_us"])
    return {switches: statistics.median(v) for switches, v in values.items() if len(v) >= _MEDIAN_OF}


def _judge_row(row: Row, limits: Limits, medians: Mapping[int | None, float], above: float) -> Judged:
    quantities: list[Measured] = []
    switches = switches_between(row["client_leaf"], row["server_leaf"])
    limit = limits.latency(switches)
    median = medians.get(switches) if row["kind"] == "pair" else None
    if median is not None and limit.value is not None and median + above < limit.value:
        limit = Limit(round(median + above, 2), f"median of this sweep {median:.2f} us + {above:g}")
    if row["t_typical_us"] is not None:
        value = row["t_typical_us"]
        reason = "typical RDMA write latency, half of the round trip"
        bad = limit.value is None or not 0 < value <= limit.value
        quantities.append(Measured("ib_latency.latency", value, "us", limit, bad, reason, LATENCY_REMEDY))
        if row["p99_us"] is not None:
            tail = limits.p99()
            bad = tail.value is None or not 0 < row["p99_us"] <= tail.value
            quantities.append(
                Measured("ib_latency.p99", row["p99_us"], "us", tail, bad, "99th percentile of it", LATENCY_REMEDY)
            )
    elif row["path_failed"]:
        remedy = "Check both ports, their cables and the routes (ibtracert), then run the gate again."
        quantities.append(Measured("ib_latency.latency", "no connection", "us", limit, True, str(row["error"]), remedy))
    if row["sent"] is not None and row["received"] is not None:
        allowed = limits.loss()
        loss = round((row["sent"] - row["received"]) * 100.0 / row["sent"], 6)
        bad = allowed.value is None or not 0 <= loss <= allowed.value
        quantities.append(
            Measured("ib_latency.loss", loss, "%", allowed, bad, loss_reason(row["sent"], row["received"]), LOSS_REMEDY)
        )
    elif row["retransmissions"] is not None and row["t_typical_us"] is not None:
        count, none = row["retransmissions"], Limit(0.0, "reliable RDMA on a lossless fabric")
        reason = f"{count} retransmissions counted by {row['client_hca']} of {row['client']} during the test"
        quantities.append(Measured("ib_latency.retransmissions", count, "", none, count > 0, reason, LOSS_REMEDY))
    trial = None
    if quantities:
        one = End(row["client"], row["client_hca"], row["client_leaf"])
        other = End(row["server"], row["server_hca"], row["server_leaf"])
        trial = Trial(one, other, any(q.bad for q in quantities))
    return Judged(row, tuple(quantities), trial)


def _touches(node: str, element: Element, mine: Sequence[Judged]) -> bool:
    """Return whether an element is the node's own or one it hangs on: its leaf, the fabric."""
    if element.node:
        return element.node == node
    return any(j.trial is not None and j.trial.bad and element in j.trial.elements() for j in mine)


def _blame_check(node: str, found: Blame, mine: Sequence[Judged]) -> Check:
    name, limit, source = "ib_latency.blame", "nothing", "every node of the sweep"
    own = [e for e in found.culprits if _touches(node, e, mine)]
    maybe = [e for e in found.suspects if _touches(node, e, mine)]
    if not own and maybe and all(e.node == node for e in found.suspects):
        own = maybe
    if own:
        word = " or ".join if own is maybe else " and ".join
        text = word(str(e) for e in own)
        count = sum(1 for j in mine if j.trial is not None and j.trial.bad and j.trial.elements() & set(own))
        reason = (
            f"{count} bad pair{'s' if count != 1 else ''} of this node {'are' if count != 1 else 'is'} explained by it"
        )
        return Check(name, node, "fail", reason, text, limit, "", source, _remedy(own))
    if maybe:
        reason = f"cannot tell which of these is broken: {name_all(found.suspects)}"
        remedy = "Run the sweep with one more good node, or swap a cable: the fault moves with what is broken."
        return Check(name, node, "unknown", reason, None, limit, "", source, remedy)
    loose = [j for j in mine if j.trial is not None and j.trial in found.unexplained]
    if loose:
        reason = f"cannot tell: {loose[0].subject} is bad while most other pairs of both its ports are good"
        return Check(
            name,
            node,
            "unknown",
            reason,
            None,
            limit,
            "",
            source,
            "Run the sweep again; a fault that comes and goes shows more.",
        )
    others = [e for e in (*found.culprits, *found.suspects) if e.node != node]
    if others and any(j.trial is not None and j.trial.bad for j in mine):
        reason = "bad pairs of this node are explained by another node"
        return Check(
            name, node, "warn", reason, name_all(others), limit, "", source, "Repair what is named; this node is good."
        )
    if not any(j.trial is not None for j in mine):
        return unknown(name, node, "no pair of this node was measured", "See ib_latency.coverage.")
    return Check(name, node, "pass", "no bad pair points to this node", "nothing", limit, "", source)


def _remedy(elements: Sequence[Element]) -> str:
    kinds = {element.kind for element in elements}
    if "fabric" in kinds:
        return "Check the limits against the fabric (profile, max_latency_us), then spines and subnet manager."
    if "leaf" in kinds:
        return "Repair the leaf switch or its uplinks: every node on it is held back, none of them is at fault itself."
    if "node" in kinds:
        return "All its rails are bad: look at what they share (C-states, PCIe, NUMA binding, firmware), not at cables."
    return "Reseat or replace the cable, then the transceiver, then the HCA."


def _port_checks(node: str, own: Mapping[str, Any]) -> list[Check]:
    checks = []
    if not own.get("ports"):
        return [unknown("ib_latency.port", node, "its result names no port", "Run the sweep on it again.", "usable")]
    for port in own["ports"]:
        subject, trouble = f"{node} {port['hca']}", port["trouble"]
        if trouble is None:
            checks.append(
                Check(
                    "ib_latency.port",
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
                unknown(
                    "ib_latency.port", subject, trouble, "Install infiniband-diags and run the gate again.", "usable"
                )
            )
        else:
            remedy = "Check cable and subnet manager (ibstat, iblinkinfo), then run the gate again."
            checks.append(
                Check("ib_latency.port", subject, "fail", trouble, trouble, "usable", "", "specification", remedy)
            )
    return checks


def _coverage(node: str, own: Mapping[str, Any], mine: Sequence[Judged]) -> Check:
    name, source = "ib_latency.coverage", "the sweep's schedule"
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
    """Return whether everything of a pair was measured: latency (or its failure), and loss or retransmissions."""
    kinds = {q.check for q in judged.quantities}
    return "ib_latency.latency" in kinds and (
        judged.row["path_failed"] or len(kinds & {"ib_latency.loss", "ib_latency.retransmissions"}) > 0
    )


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


def _quantity_check(node: str, judged: Judged, measured: Measured, found: Blame) -> Check:
    verdict: Verdict = "pass"
    reason, remedy = measured.reason, ""
    if measured.limit.value is None:
        verdict, reason = "unknown", f"{reason}: no limit is known for it, name a board profile or a limit"
    elif measured.bad and judged.trial is not None:
        verdict, why = _consequence(node, judged.trial, found)
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


def _matrix(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """Return the whole matrix in short, for the report."""
    keys = ("kind", "client", "client_hca", "server", "server_hca", "rail", "t_typical_us", "p99_us", "loss", "error")
    return [{**{key: j.row[key] for key in keys}, "bad": j.trial.bad if j.trial is not None else None} for j in judged]

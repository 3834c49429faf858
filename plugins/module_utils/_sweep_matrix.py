# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The matrix of a sweep: every pair once, what is bad about it, what measuring again showed, and who is to blame. Pure.

What a retest is worth (docs/fabric-sweep.md argues it):

- bad again: the pair is bad, whatever the first reading was;
- good, of a port that was accused: the port is cleared, unless nothing else explains what is bad;
- good again: a latency or a loss that did not come back is transient and blames nobody. A connection that failed is
  not healed by one that works: a link that goes away for seconds ends every job on it;
- a good reading of a port that is bad now and then proves nothing about that port, unless it would have shown the
  fault: of a loss that was seen in p of all packets, 4.6/p packets show one with 99 % confidence.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._bandwidth import REMEDY as BANDWIDTH_REMEDY
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._bandwidth import BandwidthLimits
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._blame import Blame, End, Trial, blame
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._latency_limits import (
    LATENCY_REMEDY,
    LOSS_REMEDY,
    Limit,
    Limits,
    loss_reason,
    switches_between,
)

Row = Mapping[str, Any]
Port = tuple[str, str]

# A median over fewer pairs is moved too far by the pairs it is meant to judge.
_MEDIAN_OF = 6
# No latency, count or share of a sweep comes near it.
_BOUND = 1e9
# So many packets per lost one show a loss with 99 % confidence (1 - e^-4.6).
_SURE = 4.6

RETEST_WEIGHT = 8
"""Pairs a good retest counts for: a port that was cleared is not named to spare a second culprit."""
PATH_REMEDY = "Check both ports, their cables and the routes (ibtracert), then run the gate again."


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """What the pairs of a sweep are held against: latency and loss, or with `bandwidth` that alone.

    `above_median_us`: how far a typical latency may lie above the sweep's median over as many switches; None: not
    looked at.
    """

    limits: Limits = dataclasses.field(default_factory=Limits)
    above_median_us: float | None = None
    bandwidth: BandwidthLimits | None = None


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
        again = ", measured again" if row["kind"] == "retest" else ""
        return f"{row['client']} {row['client_hca']} - {row['server']} {row['server_hca']}{again}"

    @property
    def ends(self) -> frozenset[Port]:
        """Return the two ports."""
        return frozenset((row_port(self.row, "client"), row_port(self.row, "server")))

    @property
    def bad(self) -> bool:
        """Return whether something of it is bad."""
        return self.trial is not None and self.trial.bad

    def concerns(self, node: str) -> bool:
        """Return whether the node is one of the ends."""
        return node in (self.row["client"], self.row["server"])


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
    for key, what in (("t_typical_us", "latency"), ("p99_us", "latency"), ("bw_gbps", "bandwidth")):
        value = row.get(key)
        if value is not None and not (_is_number(value) and 0 < value < _BOUND):
            wrong[key] = f"no {what}"
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


@dataclasses.dataclass(frozen=True, slots=True)
class Assessment:
    """The whole matrix, judged."""

    judged: tuple[Judged, ...]
    found: Blame
    transient: frozenset[frozenset[Port]]
    """Pairs of ports that were bad once and good when they or what explained them was measured again."""

    def is_transient(self, judged: Judged) -> bool:
        """Return whether a bad reading did not come back."""
        return judged.bad and judged.row["kind"] != "retest" and judged.ends in self.transient

    def retests(self, port: Port) -> list[Judged]:
        """Return what was measured again with a port."""
        return [j for j in self.judged if j.row["kind"] == "retest" and j.trial is not None and port in j.ends]


def assess(results: Sequence[Mapping[str, Any]], rules: Rules) -> Assessment:
    """Return every pair judged, and what explains the bad ones."""
    unreadable: dict[tuple[Any, ...], tuple[str, ...]] = {}
    cleaned = []
    seen: dict[tuple[Any, ...], float] = {}
    for result in results:
        pairs = []
        for row in result.get("pairs") or ():
            good, found_wrong = clean(row)
            pairs.append(good)
            # A report of the other end does not heal it: one of the two is wrong, and nobody knows which.
            if found_wrong:
                unreadable.setdefault(_key(row), found_wrong)
            # The server copies what the client measured, so two reports of one pair are equal or not of one sweep.
            for field, unit in (("t_typical_us", "us"), ("bw_gbps", "Gb/s")):
                if good.get(field) is not None:
                    first = seen.setdefault((*_key(row), field), good[field])
                    if first != good[field]:
                        differ = f"reported as {first} {unit} and as {good[field]} {unit}"
                        unreadable.setdefault(_key(row), (differ,))
        cleaned.append({**result, "pairs": pairs})
    rows = merge(cleaned)
    medians = _medians(rows) if rules.above_median_us is not None else {}
    judged = tuple(
        dataclasses.replace(_judge_row(row, rules, medians), unreadable=unreadable.get(_key(row), ())) for row in rows
    )
    return _weigh(judged)


def _weigh(judged: tuple[Judged, ...]) -> Assessment:
    """Return the blame after what was measured again has had its say."""
    first = [j for j in judged if j.row["kind"] != "retest" and j.trial is not None]
    again: dict[frozenset[Port], Judged] = {
        j.ends: j for j in judged if j.row["kind"] == "retest" and j.trial is not None
    }
    before = blame([j.trial for j in first if j.trial is not None])
    if not again:
        return Assessment(judged, before, frozenset())
    transient = frozenset(
        j.ends for j in first if j.bad and not j.row["path_failed"] and _did_not_come_back(j, again, before)
    )
    trials: dict[frozenset[Port], Judged] = {}
    for one in first:
        if one.ends not in transient and not (one.ends in again and not one.row["path_failed"]):
            trials[one.ends] = one
    for ends, one in again.items():
        trials.setdefault(ends, one)
    suspects = {port for j in first if j.bad and j.ends not in transient for port in j.ends}
    bad_again = {port for j in again.values() if j.bad for port in j.ends}
    shares = _loss_shares(trials.values())
    kept = [
        dataclasses.replace(j.trial, excused=_not_cleared(j, suspects & bad_again, shares))
        for j in trials.values()
        if j.trial is not None
    ]
    found = blame(kept)
    paths = {
        trial.path
        for trial in found.unexplained
        if trial.ends in again and all(_good_with_another(port, trial, kept) for port in trial.ends)
    }
    if paths:
        left = tuple(trial for trial in found.unexplained if trial.path not in paths)
        found = dataclasses.replace(found, culprits=tuple(sorted({*found.culprits, *paths})), unexplained=left)
    return Assessment(judged, found, transient)


def _did_not_come_back(one: Judged, again: Mapping[frozenset[Port], Judged], before: Blame) -> bool:
    """Return whether a bad pair was good again, or what explained it was good with everybody it was measured with."""
    if one.ends in again:
        return not again[one.ends].bad
    culprit = before.culprit_of(one.trial) if one.trial is not None else None
    if culprit is None or culprit.kind not in ("port", "node"):
        return False
    proofs = [j for j in again.values() if j.trial is not None and culprit in j.trial.elements()]
    return len(proofs) >= 2 and not any(j.bad for j in proofs)


def _loss_shares(judged: Any) -> dict[Port, float]:
    """Return the share of packets lost by each port whose bad pairs are bad by loss alone."""
    lost: dict[Port, list[int]] = {}
    other: set[Port] = set()
    for one in judged:
        if not one.bad:
            continue
        kinds = {q.check for q in one.quantities if q.bad}
        for port in one.ends:
            if kinds == {"ib_latency.loss"} and one.row["received"] is not None:
                counts = lost.setdefault(port, [0, 0])
                counts[0] += one.row["sent"] - one.row["received"]
                counts[1] += one.row["sent"]
            else:
                other.add(port)
    return {port: counts[0] / counts[1] for port, counts in lost.items() if port not in other}


def _not_cleared(one: Judged, doubted: set[Port], shares: Mapping[Port, float]) -> frozenset[Port]:
    """Return the ports of a good pair that could be broken all the same."""
    if one.bad:
        return frozenset()
    first = one.row["kind"] != "retest"
    sent = one.row["sent"]
    return frozenset(
        port
        for port in one.ends
        if (first and port in doubted) or (port in shares and (sent is None or sent * shares[port] < _SURE))
    )


def _good_with_another(port: Port, trial: Trial, trials: Sequence[Trial]) -> bool:
    """Return whether a port is good with another node than that of the trial."""
    nodes = {node for node, _hca in trial.ends}
    return any(
        not known.bad and port in known.ends - known.excused and any(node not in nodes for node, _hca in known.ends)
        for known in trials
    )


def row_port(row: Row, side: str) -> Port:
    """Return one end of a row."""
    return str(row[side]), str(row[f"{side}_hca"])


def _weight(row: Row, result: Mapping[str, Any]) -> int:
    """Return how much a report of a pair is worth."""
    measured = (
        row["t_typical_us"] is not None
        or row.get("bw_gbps") is not None
        or row["path_failed"]
        or row["sent"] is not None
    )
    return 4 * int(measured) + 2 * int(row.get("fault") is not None) + int(row["client"] == result.get("node"))


def _medians(rows: Sequence[Row]) -> dict[int | None, float]:
    """Return the median of the typical latencies by number of switches, where enough pairs were measured."""
    values: dict[int | None, list[float]] = {}
    for row in rows:
        if row["kind"] == "pair" and row["t_typical_us"] is not None:
            values.setdefault(switches_between(row["client_leaf"], row["server_leaf"]), []).append(row["t_typical_us"])
    return {switches: statistics.median(v) for switches, v in values.items() if len(v) >= _MEDIAN_OF}


def _judge_row(row: Row, rules: Rules, medians: Mapping[int | None, float]) -> Judged:
    quantities = _bandwidth(row, rules.bandwidth) if rules.bandwidth else _latency_and_loss(row, rules, medians)
    trial = None
    if quantities:
        one = End(row["client"], row["client_hca"], row["client_leaf"])
        other = End(row["server"], row["server_hca"], row["server_leaf"])
        weight = RETEST_WEIGHT if row["kind"] == "retest" else 1
        trial = Trial(one, other, any(q.bad for q in quantities), weight)
    return Judged(row, tuple(quantities), trial)


def _bandwidth(row: Row, limits: BandwidthLimits) -> list[Measured]:
    floor = limits.floor()
    if row.get("bw_gbps") is not None:
        value = round(row["bw_gbps"], 2)
        bad = floor.value is not None and not value >= floor.value
        reason = "average of RDMA writes in one direction"
        return [Measured("ib_bandwidth.bandwidth", value, "Gb/s", floor, bad, reason, BANDWIDTH_REMEDY)]
    if row["path_failed"]:
        error = str(row["error"])
        return [Measured("ib_bandwidth.bandwidth", "no connection", "Gb/s", floor, True, error, PATH_REMEDY)]
    return []


def _latency_and_loss(row: Row, rules: Rules, medians: Mapping[int | None, float]) -> list[Measured]:
    quantities: list[Measured] = []
    limits = rules.limits
    switches = switches_between(row["client_leaf"], row["server_leaf"])
    limit = limits.latency(switches)
    median = medians.get(switches) if row["kind"] != "self" else None
    above = rules.above_median_us or 0.0
    if median is not None and limit.value is not None and median + above < limit.value:
        limit = Limit(round(median + above, 2), f"median of this sweep {median:.2f} us + {above:g}")
    if row["t_typical_us"] is not None:
        value = row["t_typical_us"]
        reason = "typical RDMA write latency, half of the round trip"
        bad = limit.value is not None and not 0 < value <= limit.value
        quantities.append(Measured("ib_latency.latency", value, "us", limit, bad, reason, LATENCY_REMEDY))
        if row["p99_us"] is not None:
            tail = limits.p99()
            bad = tail.value is not None and not 0 < row["p99_us"] <= tail.value
            quantities.append(
                Measured("ib_latency.p99", row["p99_us"], "us", tail, bad, "99th percentile of it", LATENCY_REMEDY)
            )
    elif row["path_failed"]:
        error = str(row["error"])
        quantities.append(Measured("ib_latency.latency", "no connection", "us", limit, True, error, PATH_REMEDY))
    if row["sent"] is not None and row["received"] is not None:
        allowed = limits.loss()
        loss = round((row["sent"] - row["received"]) * 100.0 / row["sent"], 6)
        bad = allowed.value is not None and not 0 <= loss <= allowed.value
        quantities.append(
            Measured("ib_latency.loss", loss, "%", allowed, bad, loss_reason(row["sent"], row["received"]), LOSS_REMEDY)
        )
    elif row["retransmissions"] is not None and row["t_typical_us"] is not None:
        count, none = row["retransmissions"], Limit(0.0, "reliable RDMA on a lossless fabric")
        reason = f"{count} retransmissions counted by {row['client_hca']} of {row['client']} during the test"
        quantities.append(Measured("ib_latency.retransmissions", count, "", none, count > 0, reason, LOSS_REMEDY))
    return quantities

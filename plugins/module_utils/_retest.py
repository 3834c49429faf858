# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is measured again before anybody is named. Pure: from the rows of all nodes to rounds of meetings.

A port that is accused is measured against up to two ports of other nodes on the same rail that are known to be good,
if possible against those with which it was bad. With none (two nodes), it is measured against a good port of its own
node. A bad pair that no one element explains is repeated as well, and so are two pairs of a leaf that is accused. What
the first retest clears accuses others, so the plan is made once more with the rows of the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._blame import Blame, Element, Trial
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep import Meeting, pack
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_matrix import (
    Judged,
    Port,
    Rules,
    assess,
    row_port,
)

PEERS = 2
PORTS_OF_NODE = 2
REPEATS = 2
RAILS_AT_ONCE = 4
_SIDES = ("client", "server")
MAX_TESTS = 256
"""More than any one fault needs; a fabric on which everything is bad is not measured twice."""


def retest_plan(results: Sequence[Mapping[str, Any]], rules: Rules) -> list[list[Meeting]]:
    """Return the rounds of a retest; none when no pair is bad, or all that is accused was measured again already."""
    matrix = assess(results, rules)
    measured = [j for j in matrix.judged if j.trial is not None]
    bad = [j for j in measured if j.bad and not matrix.is_transient(j)]
    again = [j for j in measured if j.row["kind"] == "retest"]
    if not bad:
        return []
    places: dict[Port, tuple[int, str | None]] = {}
    for j in measured:
        for side in _SIDES:
            places[row_port(j.row, side)] = (j.row[f"{side}_rail"], j.row[f"{side}_leaf"])
    accused, repeats = _accused(bad, matrix.found, again)
    doubted = {element.node for element in (*matrix.found.culprits, *matrix.found.suspects) if element.kind == "node"}
    good = _known_good(measured, matrix.found, accused, doubted)
    # Only a known good port on the other side makes it a test of this one.
    tested = {port for j in again for port in j.ends if j.ends - {port} <= good.keys()}
    wanted: dict[frozenset[Port], None] = {}
    load: dict[str, int] = {}
    for port in sorted(accused - tested):
        for peer in _peers(port, good, places, {j.ends for j in bad}, load):
            wanted[frozenset((port, peer))] = None
            load[peer[0]] = load.get(peer[0], 0) + 1
    wanted |= dict.fromkeys(repeats)
    for j in again:
        wanted.pop(j.ends, None)
    return pack(_meetings(list(wanted)[:MAX_TESTS], places))


def makeup_plan(results: Sequence[Mapping[str, Any]]) -> list[list[Meeting]]:
    """Return meetings for ports that nobody measured through no fault of their own: their only partner was broken."""
    usable = {
        (str(result["node"]), str(port["hca"])): rail
        for result in results
        for rail, port in enumerate(result["ports"])
        if port["trouble"] is None
    }
    rows = [row for result in results for row in result["pairs"]]
    faults = {(row["fault"]["node"], row["fault"]["hca"]) for row in rows if row["fault"] is not None}
    # A fault without an HCA is one of the node's tool, and concerns all its ports.
    fit = {port: rail for port, rail in usable.items() if not faults & {port, (port[0], None)}}
    seen = {row_port(row, side) for row in rows if row["error"] is None or row["path_failed"] for side in _SIDES}
    left = [port for port in sorted(fit) if port not in seen]
    load: dict[Port, int] = {}
    pairs: dict[frozenset[Port], None] = {}
    for port in left:
        peers = [peer for peer in fit if peer[0] != port[0] and fit[peer] == fit[port]]
        if port in load or not peers:
            continue
        peer = min(peers, key=lambda p: (load.get(p, 0), p not in left, p))
        for end in (port, peer):
            load[end] = load.get(end, 0) + 1
        pairs[frozenset((port, peer))] = None
    return pack(_meetings(pairs, {port: (rail, None) for port, rail in fit.items()}))


def _accused(bad: Iterable[Judged], found: Blame, again: Iterable[Judged]) -> tuple[set[Port], list[frozenset[Port]]]:
    """Return the ports to measure against good ones, and the pairs to repeat."""
    accused: set[Port] = set()
    repeats: dict[frozenset[Port], None] = {}
    count: dict[Element, set[Any]] = {}
    for j in again:
        for element in j.trial.elements() if j.trial is not None else ():
            if element.kind in ("leaf", "fabric"):
                count.setdefault(element, set()).add(j.ends)
    for j in bad:
        trial = j.trial
        if trial is None:
            continue
        culprit = found.culprit_of(trial)
        suspects = found.suspects_of(trial)
        for element in (culprit,) if culprit is not None else suspects:
            taken = count.setdefault(element, set())
            if element.kind in ("leaf", "fabric"):
                if len(taken) < REPEATS:
                    taken.add(j.ends)
                    repeats[j.ends] = None
                continue
            ports = _ports_of(element, trial)
            if element.kind == "node":
                ports = {port for port in ports if port in taken or len(taken) < PORTS_OF_NODE}
                taken |= ports
            accused |= ports
        if culprit is None:
            repeats[j.ends] = None
            if not suspects:
                accused |= j.ends
    return accused, list(repeats)


def _ports_of(element: Element, trial: Trial) -> set[Port]:
    return {(node, hca) for node, hca in trial.ends if node == element.node and element.port in ("", hca)}


def _known_good(measured: Sequence[Judged], found: Blame, accused: set[Port], doubted: set[str]) -> dict[Port, int]:
    """Return the ports nothing speaks against, with the number of their good pairs."""
    good: dict[Port, int] = {}
    against: set[Port] = set()
    for j in measured:
        for port in j.ends:
            if not j.bad:
                good[port] = good.get(port, 0) + 1
            elif j.trial is None or found.culprit_of(j.trial) is None:
                against.add(port)
    return {
        port: count
        for port, count in good.items()
        if port not in accused and port not in against and port[0] not in doubted
    }


def _peers(
    port: Port,
    good: Mapping[Port, int],
    places: Mapping[Port, tuple[int, str | None]],
    bad: set[frozenset[Port]],
    load: Mapping[str, int],
) -> list[Port]:
    """Return the known good ports to measure a port against, the best first."""
    rail, leaf = places[port]

    def order(peer: Port) -> tuple[Any, ...]:
        return (
            frozenset((port, peer)) not in bad,
            places[peer][1] != leaf,
            load.get(peer[0], 0),
            -good[peer],
            peer,
        )

    elsewhere = [peer for peer in good if peer[0] != port[0] and places[peer][0] == rail]
    if elsewhere:
        return sorted(elsewhere, key=order)[:PEERS]
    return sorted((peer for peer in good if peer[0] == port[0]), key=order)[:1]


def _meetings(pairs: Iterable[frozenset[Port]], places: Mapping[Port, tuple[int, str | None]]) -> list[Meeting]:
    """Return the pairs by the two nodes that meet for them."""
    rails: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for pair in pairs:
        server, client = sorted(pair)
        rails.setdefault((server[0], client[0]), []).append((places[server][0], places[client][0]))
    return [
        Meeting(*nodes, tuple(used[start : start + RAILS_AT_ONCE]))
        for nodes, used in rails.items()
        for start in range(0, len(used), RAILS_AT_ONCE)
    ]

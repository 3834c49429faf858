# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From a matrix of good and bad pairs to the one thing that is broken, or to "cannot tell". Pure.

A pair that is slow or loses packets accuses both of its ends. What is broken is found by parsimony: every element (a
port with its cable, a node, a leaf, the fabric) accuses the pairs that use it, and the smallest set of elements that
accounts for all bad pairs while accusing the fewest good ones is the explanation. Where two sets do equally well, what
they disagree about stays open. A bad pair whose both ends are good with everybody else is nobody's until it was bad
again; then it is the way between its ends.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import Literal

Kind = Literal["port", "path", "node", "leaf", "fabric"]

# One more element in an explanation weighs as much as this many good pairs wrongly accused.
_ELEMENT_WEIGHT = 4
# Above this many viable elements or this size of an explanation all sets are no longer tried one by one.
_MAX_EXACT = 40
_MAX_SIZE = 3


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Element:
    """A thing that can be broken. `node` and `port` are empty where they do not apply.

    `port` is the HCA of a port, the GUID of a leaf, or the two ends of a path.
    """

    kind: Kind
    node: str = ""
    port: str = ""

    def __str__(self) -> str:
        """Return the words a person is told."""
        return {
            "port": f"port {self.port} of {self.node} or its cable",
            "path": f"the way between {self.port}, each good with others (a cable between switches or a route)",
            "node": f"node {self.node}",
            "leaf": f"leaf {self.port}",
            "fabric": "the whole fabric (or a limit that does not fit it)",
        }[self.kind]

    @property
    def nodes(self) -> frozenset[str]:
        """Return the node it belongs to; empty for a leaf and the fabric, which belong to all."""
        return frozenset({self.node}) if self.node else frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """One end of a measured pair: node, HCA, and the leaf switch the HCA is cabled to (None: not known)."""

    node: str
    port: str
    leaf: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Trial:
    """One measured pair of ports and whether it was bad.

    Of a good one: `weight` is how many ordinary pairs it counts for; one that was measured to clear its ports counts
    for more than one more element in an explanation. `excused` are those of its ports that it does not clear, because
    their fault comes and goes and it could have been missed.
    """

    one: End
    other: End
    bad: bool
    weight: int = 1
    excused: frozenset[tuple[str, str]] = frozenset()

    @property
    def ends(self) -> frozenset[tuple[str, str]]:
        """Return the two ports (node, HCA), whichever of them was the client."""
        return frozenset(((self.one.node, self.one.port), (self.other.node, self.other.port)))

    @property
    def path(self) -> Element:
        """Return what lies between its ports."""
        return Element("path", port=" and ".join(f"{node} {port}" for node, port in sorted(self.ends)))

    def elements(self) -> frozenset[Element]:
        """Return everything the pair's packets depend on."""
        found = {Element("fabric"), self.path}
        for end in (self.one, self.other):
            found |= {Element("port", end.node, end.port), Element("node", end.node)}
            if end.leaf:
                found.add(Element("leaf", port=end.leaf))
        return frozenset(found)


@dataclasses.dataclass(frozen=True, slots=True)
class Blame:
    """What explains the bad pairs.

    `culprits` are in every best explanation; `suspects` are the elements the best explanations disagree about, so
    one of them is broken and the measurements cannot say which. `unexplained` are bad pairs no element accounts for.
    """

    culprits: tuple[Element, ...] = ()
    suspects: tuple[Element, ...] = ()
    unexplained: tuple[Trial, ...] = ()

    def culprit_of(self, trial: Trial) -> Element | None:
        """Return the culprit a pair depends on, the most specific one first."""
        return min((e for e in self.culprits if e in trial.elements()), key=_specific, default=None)

    def suspects_of(self, trial: Trial) -> tuple[Element, ...]:
        """Return the suspects a pair depends on."""
        return tuple(e for e in self.suspects if e in trial.elements())


@dataclasses.dataclass(slots=True)
class _Candidate:
    element: Element
    bad: frozenset[int]
    good: int


def blame(trials: Sequence[Trial]) -> Blame:
    """Return what explains the bad ones of the trials.

    A candidate must be bad in more than half of its pairs: a port that loses a little does not fail every short test,
    while a port with one bad pair among good ones is only the other end of somebody else's fault.
    """
    bad = frozenset(index for index, trial in enumerate(trials) if trial.bad)
    if not bad:
        return Blame()
    candidates = _candidates(trials, bad)
    reachable = frozenset().union(*(c.bad for c in candidates)) if candidates else frozenset()
    best = _best_sets(candidates, reachable) if reachable else []
    named = [frozenset(c.element for c in chosen) for chosen in best]
    certain = frozenset.intersection(*named) if named else frozenset()
    open_ = frozenset().union(*named) - certain if named else frozenset()
    unexplained = tuple(trials[index] for index in sorted(bad - reachable))
    return Blame(tuple(sorted(certain)), tuple(sorted(open_)), unexplained)


def _candidates(trials: Sequence[Trial], bad: frozenset[int]) -> list[_Candidate]:
    """Return the viable elements; of several that account for the same bad pairs on one node only the most specific."""
    pairs: dict[Element, list[int]] = {}
    for index, trial in enumerate(trials):
        for element in trial.elements():
            if element.kind == "port" and not trial.bad and (element.node, element.port) in trial.excused:
                continue
            pairs.setdefault(element, []).append(index)
    nodes = {end.node for trial in trials for end in (trial.one, trial.other)}
    viable = []
    for element, indexes in pairs.items():
        hit = frozenset(indexes) & bad
        # Every bad pair has a path of its own, which would explain anything.
        if element.kind == "path":
            continue
        if not hit or 2 * len(hit) <= len(indexes):
            continue
        # With fewer than three nodes the fabric and any one node are the same pairs: it would always be a rival.
        if element.kind in ("fabric", "leaf") and len(nodes) < 3:
            continue
        good = sum(trials[index].weight for index in indexes if index not in hit)
        viable.append(_Candidate(element, hit, good))
    kept: list[_Candidate] = []
    for candidate in sorted(viable, key=lambda c: (_specific(c.element), c.element)):
        # A leaf that serves one node's port only, or a node tested on one rail only, cannot be told from that port.
        if any(
            k.bad == candidate.bad and k.good == candidate.good and _same_place(k.element, candidate.element)
            for k in kept
        ):
            continue
        kept.append(candidate)
    # An element is no rival to one that accounts for more and accuses no more good pairs: a leaf to each of its ports.
    return [c for c in kept if not any(c.bad < k.bad and k.good <= c.good for k in kept)]


def _best_sets(candidates: list[_Candidate], wanted: frozenset[int]) -> list[tuple[_Candidate, ...]]:
    """Return all cheapest sets of candidates that cover the wanted pairs."""
    if len(candidates) > _MAX_EXACT:
        return [_greedy(candidates, wanted)]
    best: list[tuple[_Candidate, ...]] = []
    cheapest: int | None = None
    for size in range(1, _MAX_SIZE + 1):
        if cheapest is not None and size * _ELEMENT_WEIGHT > cheapest:
            break
        for chosen in itertools.combinations(candidates, size):
            cost = size * _ELEMENT_WEIGHT + sum(c.good for c in chosen)
            if cheapest is not None and cost > cheapest:
                continue
            if frozenset().union(*(c.bad for c in chosen)) != wanted:
                continue
            if cheapest is None or cost < cheapest:
                best, cheapest = [], cost
            best.append(chosen)
    return best or [_greedy(candidates, wanted)]


def _greedy(candidates: Sequence[_Candidate], wanted: frozenset[int]) -> tuple[_Candidate, ...]:
    """Return a cover for many faults at once: always the element that explains most of what is left."""
    left, chosen = set(wanted), []
    while left:
        best = max(candidates, key=lambda c: (len(c.bad & left) - c.good / _ELEMENT_WEIGHT, -_specific(c.element)))
        gained = best.bad & left
        if not gained:
            best = max(candidates, key=lambda c: len(c.bad & left))
            gained = best.bad & left
        left -= gained
        chosen.append(best)
    return tuple(chosen)


def _specific(element: Element) -> int:
    return ("port", "path", "node", "leaf", "fabric").index(element.kind)


def _same_place(small: Element, large: Element) -> bool:
    """Return whether the smaller element is part of the larger one."""
    return large.kind in ("leaf", "fabric") or (
        small.node == large.node and small.kind == "port" and large.kind == "node"
    )


def name_all(elements: Iterable[Element]) -> str:
    """Return several elements as words."""
    return " and ".join(str(element) for element in elements)

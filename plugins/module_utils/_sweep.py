# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who meets whom in a fabric sweep. Pure: every node computes the same schedule from the same list."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

Pair = tuple[str, str]
"""(server, client): the node that comes first in the alphabet serves."""


def schedule(nodes: Sequence[str], dead: Collection[str] = ()) -> list[list[Pair]]:
    """Return rounds of disjoint pairs in which every two nodes meet exactly once.

    The circle method: one node stands still, the others move by one place a round; N - 1 rounds for N even, N for N odd
    (one node rests a round). Pairs with a `dead` node are left out, the others keep their round, so nodes that do not
    agree about who is dead still agree about when they meet.
    """
    if len(set(nodes)) != len(nodes):
        raise ValueError(f"nodes of a sweep: {sorted(n for n in set(nodes) if list(nodes).count(n) > 1)} named twice.")
    ring: list[str | None] = list(nodes)
    if len(ring) % 2:
        ring.append(None)
    rounds: list[list[Pair]] = []
    for _n in range(len(ring) - 1):
        half = len(ring) // 2
        pairs = [
            (min(a, b), max(a, b))
            for a, b in zip(ring[:half], reversed(ring[half:]), strict=True)
            if a is not None and b is not None and a not in dead and b not in dead
        ]
        rounds.append(pairs)
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return rounds


def mesh(racks: Sequence[Sequence[str]], dead: Collection[str] = ()) -> list[list[Pair]]:
    """Return the rounds of a full mesh inside every rack, all racks at the same time: as many as the largest needs."""
    flat = [node for rack in racks for node in rack]
    if len(set(flat)) != len(flat):
        raise ValueError("nodes of a sweep: one node is in two racks.")
    rounds: list[list[Pair]] = []
    for inside in (schedule(rack, dead) for rack in racks):
        for index, pairs in enumerate(inside):
            if index == len(rounds):
                rounds.append([])
            rounds[index].extend(pairs)
    return rounds


@dataclasses.dataclass(frozen=True, slots=True)
class Meeting:
    """Two nodes that measure (server rail, client rail) one after the other. A node may meet itself on two rails."""

    server: str
    client: str
    rails: tuple[tuple[int, int], ...]

    @property
    def nodes(self) -> frozenset[str]:
        """Return who is busy with it."""
        return frozenset((self.server, self.client))


def leaf_cover(
    leaves: Mapping[str, Sequence[str | None]], met: Iterable[Pair] = (), between_rails: bool = True
) -> list[list[Meeting]]:
    """Return rounds of disjoint meetings so that every two leaves have met, on every rail on which they can.

    `leaves`: of each node that takes part, the leaf each of its rails hangs on (None: the rail cannot be used).
    `met`: pairs of nodes that have measured all their rails against each other already.
    `between_rails`: whether two leaves that share no rail meet too; not, where the names of leaves are mere guesses.

    Nodes that are cabled alike form a group, and two groups meet once: on the rails on which their leaves have not
    met, and with one pair of ports for every two of their leaves that share no rail. What is left are leaves of one
    group (rail 0 and rail 4 of one rack); one pair of ports each. Every meeting goes into the first round in which
    both nodes are free, the node with the fewest meetings of its group first. 128 nodes in 32 racks of two leaves take
    3 rounds inside the racks and 9 for the cover, in place of 127.
    """
    rounds: list[list[Meeting]] = []
    busy: list[set[str]] = []
    load = dict.fromkeys(leaves, 0)
    free_from = dict.fromkeys(leaves, 0)
    done = {
        (rail, frozenset(ends))
        for one, other in met
        if one in leaves and other in leaves
        for rail, ends in enumerate(zip(leaves[one], leaves[other], strict=False))
        if None not in ends
    }

    def place(ones: Iterable[str], others: Iterable[str]) -> tuple[int, str, str] | None:
        """Return the first round in which one of `ones` and one of `others` are free, and who they are then."""
        ones, others = sorted(ones, key=lambda n: (load[n], n)), sorted(others, key=lambda n: (load[n], n))
        for index in range(max(min(free_from[n] for n in ones), min(free_from[n] for n in others)), len(busy) + 1):
            taken = busy[index] if index < len(busy) else set()
            for one in ones:
                other = None if one in taken else next((n for n in others if n != one and n not in taken), None)
                if other is not None:
                    if index == len(busy):
                        busy.append(set())
                        rounds.append([])
                    busy[index] |= {one, other}
                    for node in (one, other):
                        load[node] += 1
                        while free_from[node] < len(busy) and node in busy[free_from[node]]:
                            free_from[node] += 1
                    return index, one, other
        return None

    groups: dict[tuple[str | None, ...], list[str]] = {}
    for node in sorted(leaves):
        groups.setdefault(tuple(leaves[node]), []).append(node)
    alike = list(groups)
    own = {ends: list({leaf: ends.index(leaf) for leaf in ends if leaf is not None}.items()) for ends in alike}
    joined: set[frozenset[str | None]] = {ends for _rail, ends in done}
    for pairs in schedule([str(index) for index in range(len(alike))]):
        for first, second in pairs:
            ours, theirs = alike[int(first)], alike[int(second)]
            wanted: list[tuple[int, int]] = []
            for rail, ends in enumerate(zip(ours, theirs, strict=False)):
                key = (rail, frozenset(ends))
                if None not in ends and ends[0] != ends[1] and key not in done:
                    wanted.append((rail, rail))
                    done.add(key)
                    joined.add(key[1])
            for (here, rail), (there, other_rail) in itertools.product(own[ours], own[theirs]):
                both: frozenset[str | None] = frozenset((here, there))
                if between_rails and len(both) == 2 and both not in joined:
                    wanted.append((rail, other_rail))
                    joined.add(both)
            chosen = place(groups[ours], groups[theirs]) if wanted else None
            if chosen is not None:
                index, one, other = chosen
                turned = wanted if one < other else [(theirs_rail, rail) for rail, theirs_rail in wanted]
                rounds[index].append(Meeting(min(one, other), max(one, other), tuple(turned)))

    ports: dict[str, dict[str, int]] = {}
    for node in sorted(leaves):
        for rail, leaf in enumerate(leaves[node]):
            if leaf is not None:
                ports.setdefault(leaf, {}).setdefault(node, rail)
    names = sorted(ports)
    for pairs in schedule(names) if between_rails else ():
        for first, second in pairs:
            if frozenset((first, second)) in joined:
                continue
            chosen = place(ports[first], ports[second])
            if chosen is None:
                # Only one node hangs on both: it measures from one of its own HCAs to another.
                alone = min(ports[first])
                index = next((index for index, taken in enumerate(busy) if alone not in taken), len(busy))
                if index == len(busy):
                    busy.append(set())
                    rounds.append([])
                busy[index].add(alone)
                rounds[index].append(Meeting(alone, alone, ((ports[first][alone], ports[second][alone]),)))
                continue
            index, one, other = chosen
            rail_of = {one: ports[first][one], other: ports[second][other]}
            server, client = min(one, other), max(one, other)
            rounds[index].append(Meeting(server, client, ((rail_of[server], rail_of[client]),)))
    return rounds


def pack(meetings: Iterable[Meeting]) -> list[list[Meeting]]:
    """Return the meetings in rounds in which no node has two, each as early as it fits."""
    rounds: list[list[Meeting]] = []
    for meeting in meetings:
        free = (index for index, known in enumerate(rounds) if not any(m.nodes & meeting.nodes for m in known))
        index = next(free, len(rounds))
        if index == len(rounds):
            rounds.append([])
        rounds[index].append(meeting)
    return rounds


def few_rounds(rounds: Sequence[Sequence[Pair]], wanted: int) -> list[list[Pair]]:
    """Return the first rounds in which every node that meets anybody has met `wanted` others; all for wanted = 0."""
    if wanted <= 0:
        return [list(pairs) for pairs in rounds]
    left = {node: wanted for pairs in rounds for pair in pairs for node in pair}
    chosen: list[list[Pair]] = []
    for pairs in rounds:
        if not any(count > 0 for count in left.values()):
            break
        chosen.append(list(pairs))
        for node in (node for pair in pairs for node in pair):
            left[node] -= 1
    return chosen


def meetings_of(node: str, rounds: Sequence[Sequence[Pair]]) -> list[tuple[int, Pair]]:
    """Return (round, pair) for each meeting of one node, in order."""
    return [(index, pair) for index, pairs in enumerate(rounds) for pair in pairs if node in pair]


def rails_of_round(rails: Sequence[int], round_index: int, wanted: int) -> list[int]:
    """Return the rails a pair tests in a round: all for wanted = 0, else `wanted` of them, moving on each round."""
    if wanted <= 0 or wanted >= len(rails):
        return list(rails)
    return sorted({rails[(round_index * wanted + offset) % len(rails)] for offset in range(wanted)})


def tcp_port(base: int, round_index: int, rail: int, rails: int) -> int:
    """Return the port of one measurement: another one each (round, rail), so that a stale server is never met."""
    return base + 1 + (round_index * max(rails, 1) + rail) % 2000


def self_pairs(rails: Sequence[int]) -> list[tuple[int, int]]:
    """Return (client rail, server rail) so that a node alone uses each of its rails at least once."""
    if len(rails) < 2:
        return []
    pairs = [(rails[i], rails[i + 1]) for i in range(0, len(rails) - 1, 2)]
    if len(rails) % 2:
        pairs.append((rails[-1], rails[0]))
    return pairs

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Who meets whom in a fabric sweep. Pure: every node computes the same schedule from the same list."""

from __future__ import annotations

from collections.abc import Collection, Sequence

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


def schedule_racks(racks: Sequence[Sequence[str]], dead: Collection[str] = ()) -> list[list[Pair]]:
    """Return rounds for a fleet: a full mesh inside every rack at the same time, then every two racks meet once.

    Where two racks meet, the k-th node of one meets the k-th of the other; nodes a larger rack has in excess rest.
    Rails are wired alike in all racks, so each pair of leaves is covered by every rail of these pairs. 128 nodes in
    32 racks take 3 + 31 rounds in place of 127.
    """
    rounds: list[list[Pair]] = []
    for inside in (schedule(rack, dead) for rack in racks):
        for index, pairs in enumerate(inside):
            if index == len(rounds):
                rounds.append([])
            rounds[index].extend(pairs)
    names = [str(index) for index in range(len(racks))]
    for meetings in schedule(names):
        pairs = [
            (min(a, b), max(a, b))
            for one, other in meetings
            for a, b in zip(racks[int(one)], racks[int(other)], strict=False)
            if a not in dead and b not in dead
        ]
        rounds.append(pairs)
    flat = [node for rack in racks for node in rack]
    if len(set(flat)) != len(flat):
        raise ValueError("nodes of a sweep: one node is in two racks.")
    return rounds


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

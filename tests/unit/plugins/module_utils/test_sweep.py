# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Properties of the sweep's schedule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep import (
    Meeting,
    few_rounds,
    leaf_cover,
    meetings_of,
    mesh,
    pack,
    rails_of_round,
    schedule,
    self_pairs,
    tcp_port,
)
from hypothesis import given
from hypothesis import strategies as st

NODES = st.lists(st.text("abcdef0123456789", min_size=1, max_size=6), unique=True, max_size=24)


@given(NODES)
def test_every_pair_meets_once_and_no_node_twice_in_a_round(nodes: list[str]) -> None:
    rounds = schedule(nodes)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(map(sorted, itertools.combinations(nodes, 2)))
    for pairs in rounds:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy))
    assert all(server < client for pairs in rounds for server, client in pairs)


@pytest.mark.parametrize(("count", "rounds"), [(1, 0), (2, 1), (3, 3), (4, 3), (5, 5), (8, 7)])
def test_number_of_rounds(count: int, rounds: int) -> None:
    assert len([r for r in schedule([f"n{i}" for i in range(count)]) if r]) == rounds


@given(NODES, st.data())
def test_dead_nodes_leave_the_rounds_of_the_others_alone(nodes: list[str], data: st.DataObject) -> None:
    dead = data.draw(st.sets(st.sampled_from(nodes))) if nodes else set()
    full, thin = schedule(nodes), schedule(nodes, dead)
    assert [[p for p in pairs if not set(p) & dead] for pairs in full] == thin


def test_node_named_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="named twice"):
        schedule(["a", "b", "a"])


def test_four_nodes_by_hand() -> None:
    assert schedule(["node1", "node2", "node3", "node4"]) == [
        [("node1", "node4"), ("node2", "node3")],
        [("node1", "node3"), ("node2", "node4")],
        [("node1", "node2"), ("node3", "node4")],
    ]


def disjoint(rounds: Sequence[Sequence[Meeting]]) -> bool:
    return all(len(busy) == len(set(busy)) for busy in ([n for m in r for n in m.nodes] for r in rounds))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_racks_mesh_inside_at_the_same_time(sizes: list[int]) -> None:
    racks = [[f"r{r}n{n}" for n in range(size)] for r, size in enumerate(sizes)]
    rounds = mesh(racks)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert sorted(map(sorted, met)) == sorted(
        sorted(pair) for rack in racks for pair in itertools.combinations(rack, 2)
    )
    for pairs in rounds:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy))
    assert len(rounds) == max(len(schedule(rack)) for rack in racks)


CABLING = st.integers(1, 4).flatmap(
    lambda rails: st.dictionaries(
        st.text("abcdef", min_size=1, max_size=3),
        st.lists(st.sampled_from(["L1", "L2", "L3", "L4", None]), min_size=rails, max_size=rails),
        max_size=8,
    )
)


@given(CABLING)
def test_every_two_leaves_meet_on_every_rail_they_share(leaves: dict[str, list[str | None]]) -> None:
    rounds = leaf_cover(leaves)
    met: set[tuple[int | None, frozenset[str | None]]] = set()
    for meeting in itertools.chain(*rounds):
        for server, client in meeting.rails:
            ends = frozenset((leaves[meeting.server][server], leaves[meeting.client][client]))
            assert None not in ends
            met |= {(server if server == client else None, ends), (None, ends)}
    ports = [(node, rail, leaf) for node, ends in leaves.items() for rail, leaf in enumerate(ends) if leaf]
    for (node, rail, leaf), (other, other_rail, other_leaf) in itertools.combinations(ports, 2):
        if leaf != other_leaf:
            assert (None, frozenset((leaf, other_leaf))) in met
            if node != other and rail == other_rail:
                assert (rail, frozenset((leaf, other_leaf))) in met
    assert disjoint(rounds)
    assert all(m.server <= m.client for m in itertools.chain(*rounds))


@given(CABLING, st.data())
def test_what_has_met_is_not_covered_again(leaves: dict[str, list[str | None]], data: st.DataObject) -> None:
    pairs = [tuple(sorted(pair)) for pair in itertools.combinations(leaves, 2)]
    met = data.draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    done = {
        (rail, frozenset(ends))
        for one, other in met
        for rail, ends in enumerate(zip(leaves[one], leaves[other], strict=True))
    }
    for meeting in itertools.chain(*leaf_cover(leaves, met)):
        for server, client in meeting.rails:
            ends = frozenset((leaves[meeting.server][server], leaves[meeting.client][client]))
            assert server != client or (server, ends) not in done


def rack(number: int, nodes: int = 4) -> dict[str, list[str]]:
    return {f"r{number:02}n{n}": [f"r{number:02}L{int(rail >= 4)}" for rail in range(8)] for n in range(nodes)}


def test_one_rack_needs_one_measurement_over_the_spine() -> None:
    leaves = rack(0)
    met = [pair for pairs in mesh([list(leaves)]) for pair in pairs]
    assert leaf_cover(leaves, met) == [[Meeting("r00n0", "r00n1", ((0, 4),))]]


def test_two_racks_by_hand() -> None:
    leaves = {**rack(0, 2), **rack(1, 2)}
    met = [pair for pairs in mesh([list(rack(0, 2)), list(rack(1, 2))]) for pair in pairs]
    # All that the racks have between each other in one meeting, then leaf 0 and leaf 1 within each rack.
    across = (*((rail, rail) for rail in range(8)), (0, 4), (4, 0))
    assert leaf_cover(leaves, met) == [
        [Meeting("r00n0", "r01n0", across)],
        [Meeting("r00n0", "r00n1", ((4, 0),)), Meeting("r01n0", "r01n1", ((4, 0),))],
    ]


def test_128_nodes_take_12_rounds() -> None:
    racks = [rack(number) for number in range(32)]
    inside = mesh([list(one) for one in racks])
    cover = leaf_cover({node: ends for one in racks for node, ends in one.items()}, itertools.chain(*inside))
    assert (len(inside), len(cover)) == (3, 9)
    assert len(schedule([node for one in racks for node in one])) == 127


def test_dead_nodes_are_covered_by_their_neighbours() -> None:
    leaves = {**rack(0), **rack(1)}
    alive = {node: ends for node, ends in leaves.items() if node not in ("r00n0", "r01n2")}
    used = {node for meeting in itertools.chain(*leaf_cover(alive)) for node in meeting.nodes}
    assert used <= set(alive)
    assert mesh([["a", "b", "c"]], dead={"b"}) == [[], [("a", "c")], []]


def test_leaves_that_are_guessed_meet_on_their_own_rail_only() -> None:
    leaves = {"a": ["a0", "a1"], "b": ["b0", "b1"]}
    assert leaf_cover(leaves, between_rails=False) == [[Meeting("a", "b", ((0, 0), (1, 1)))]]


def test_node_alone_on_two_leaves_meets_itself() -> None:
    assert leaf_cover({"a": ["L1", "L2"]}) == [[Meeting("a", "a", ((0, 1),))]]
    assert leaf_cover({"a": ["L1", "L1"]}) == []
    assert leaf_cover({}) == []


def test_node_in_two_racks_is_refused() -> None:
    with pytest.raises(ValueError, match="two racks"):
        mesh([["a"], ["a"]])


@given(NODES, st.integers(1, 3))
def test_few_rounds_give_every_node_its_partners(nodes: list[str], wanted: int) -> None:
    rounds = few_rounds(schedule(nodes), wanted)
    met = [node for pairs in rounds for pair in pairs for node in pair]
    for node in nodes if len(nodes) > 1 else ():
        assert met.count(node) >= min(wanted, len(nodes) - 1)
    assert len(rounds) <= wanted + 1
    assert few_rounds(schedule(nodes), 0) == schedule(nodes)


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd")), max_size=20))
def test_packed_meetings_are_disjoint_and_complete(pairs: list[tuple[str, str]]) -> None:
    meetings = [Meeting(min(pair), max(pair), ((0, 0),)) for pair in pairs]
    rounds = pack(meetings)
    assert disjoint(rounds)
    assert sorted(itertools.chain(*rounds), key=repr) == sorted(meetings, key=repr)


def test_meetings_of_one_node() -> None:
    assert meetings_of("b", schedule(["a", "b", "c"])) == [(0, ("b", "c")), (2, ("a", "b"))]


def test_rails_move_on_and_cover_all() -> None:
    rails = list(range(8))
    assert rails_of_round(rails, 3, 0) == rails
    assert rails_of_round(rails, 1, 3) == [3, 4, 5]
    assert {rail for r in range(3) for rail in rails_of_round(rails, r, 3)} == set(rails)
    assert rails_of_round([], 0, 2) == []


def test_ports_differ_by_round_and_rail() -> None:
    ports = {tcp_port(18500, r, rail, 8) for r in range(127) for rail in range(8)}
    assert len(ports) == 127 * 8
    assert min(ports) == 18501


@pytest.mark.parametrize(("rails", "pairs"), [([], []), ([3], []), ([0, 1], [(0, 1)]), ([0, 1, 4], [(0, 1), (4, 0)])])
def test_self_pairs_use_every_rail(rails: list[int], pairs: list[tuple[int, int]]) -> None:
    assert self_pairs(rails) == pairs

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Properties of the sweep's schedule."""

from __future__ import annotations

import itertools
import time

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep import (
    meetings_of,
    rails_of_round,
    schedule,
    schedule_racks,
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


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6))
def test_racks_mesh_inside_and_meet_each_other(sizes: list[int]) -> None:
    racks = [[f"r{r}n{n}" for n in range(size)] for r, size in enumerate(sizes)]
    rounds = schedule_racks(racks)
    met = [frozenset(pair) for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met))
    inside = {frozenset(pair) for rack in racks for pair in itertools.combinations(rack, 2)}
    assert inside <= set(met)
    for one, other in itertools.combinations(range(len(racks)), 2):
        assert frozenset({f"r{one}n0", f"r{other}n0"}) in met
    for pairs in rounds:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy))


def test_fleet_plan_is_quick_and_short() -> None:
    racks = [[f"rack{r:02}-node{n}" for n in range(4)] for r in range(32)]
    start = time.monotonic()
    assert len([r for r in schedule_racks(racks) if r]) == 34
    assert len(schedule([node for rack in racks for node in rack])) == 127
    assert time.monotonic() - start < 1.0


def test_node_in_two_racks_is_refused() -> None:
    with pytest.raises(ValueError, match="two racks"):
        schedule_racks([["a"], ["a"]])


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

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Blame: one broken thing is named, two fitting explanations are not decided."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._blame import Blame, Element, End, Trial, blame
from hypothesis import given
from hypothesis import strategies as st


def mesh(nodes: int, rails: int, bad: Callable[[int, int, int], bool], leaves: bool = True) -> list[Trial]:
    """Return the trials of a full mesh; rails 0..half hang on leaf L0, the others on L1."""
    trials = []
    for (a, b), rail in itertools.product(itertools.combinations(range(nodes), 2), range(rails)):
        leaf = f"L{int(rail >= (rails + 1) // 2)}" if leaves else None
        ends = (End(f"n{a}", f"m{rail}", leaf), End(f"n{b}", f"m{rail}", leaf))
        trials.append(Trial(*ends, bad(a, b, rail)))
    return trials


def port(node: int, rail: int) -> Element:
    return Element("port", f"n{node}", f"m{rail}")


def test_good_fabric_blames_nobody() -> None:
    assert blame(mesh(4, 8, lambda a, b, r: False)) == Blame()


@given(st.integers(3, 6), st.integers(1, 4), st.data())
def test_one_bad_port_is_named(nodes: int, rails: int, data: st.DataObject) -> None:
    node, rail = data.draw(st.integers(0, nodes - 1)), data.draw(st.integers(0, rails - 1))
    found = blame(mesh(nodes, rails, lambda a, b, r: node in (a, b) and r == rail))
    assert found == Blame(culprits=(port(node, rail),))


@given(st.integers(3, 6), st.integers(2, 4), st.data())
def test_one_bad_node_is_named(nodes: int, rails: int, data: st.DataObject) -> None:
    node = data.draw(st.integers(0, nodes - 1))
    found = blame(mesh(nodes, rails, lambda a, b, r: node in (a, b)))
    assert found == Blame(culprits=(Element("node", f"n{node}"),))


def test_one_bad_leaf_is_named() -> None:
    assert blame(mesh(4, 8, lambda a, b, r: r >= 4)) == Blame(culprits=(Element("leaf", port="L1"),))
    assert blame(mesh(16, 8, lambda a, b, r: r < 4)) == Blame(culprits=(Element("leaf", port="L0"),))


def test_all_bad_is_the_fabric_or_the_limit() -> None:
    assert blame(mesh(4, 8, lambda a, b, r: True)) == Blame(culprits=(Element("fabric"),))


def test_two_bad_ports_on_different_nodes() -> None:
    found = blame(mesh(4, 8, lambda a, b, r: (0 in (a, b) and r == 1) or (2 in (a, b) and r == 5)))
    assert found == Blame(culprits=(port(0, 1), port(2, 5)))


def test_port_that_loses_now_and_then_is_still_named() -> None:
    # Two of the three pairs of n3 m2 showed the loss.
    found = blame(mesh(4, 8, lambda a, b, r: b == 3 and r == 2 and a != 1))
    assert found == Blame(culprits=(port(3, 2),))


def test_two_nodes_cannot_tell() -> None:
    found = blame(mesh(2, 8, lambda a, b, r: r == 3))
    assert found == Blame(suspects=(port(0, 3), port(1, 3)))
    found = blame(mesh(2, 8, lambda a, b, r: True))
    assert found == Blame(suspects=(Element("node", "n0"), Element("node", "n1")))


def test_one_bad_pair_among_good_ones_is_nobodys() -> None:
    trials = mesh(4, 8, lambda a, b, r: (a, b, r) == (0, 1, 3))
    found = blame(trials)
    assert (found.culprits, found.suspects) == ((), ())
    assert found.unexplained == (next(t for t in trials if t.bad),)


def test_self_test_of_a_node_without_partner() -> None:
    ends = [End("n0", f"m{r}", "L0") for r in range(4)]
    found = blame([Trial(ends[0], ends[1], True), Trial(ends[2], ends[3], False)])
    assert found.culprits == ()
    assert found.suspects == (port(0, 0), port(0, 1))


def test_self_tests_decide_between_two_nodes() -> None:
    trials = mesh(2, 2, lambda a, b, r: r == 0)
    trials.append(Trial(End("n0", "m0", "L0"), End("n0", "m1", "L1"), False))
    trials.append(Trial(End("n1", "m0", "L0"), End("n1", "m1", "L1"), True))
    assert blame(trials).culprits == (port(1, 0),)


@given(st.integers(2, 5), st.integers(1, 4), st.data())
def test_every_bad_pair_is_explained_or_said_not_to_be(nodes: int, rails: int, data: st.DataObject) -> None:
    trials = mesh(nodes, rails, lambda a, b, r: False)
    marks = data.draw(st.lists(st.booleans(), min_size=len(trials), max_size=len(trials)))
    trials = [Trial(t.one, t.other, mark) for t, mark in zip(trials, marks, strict=True)]
    found = blame(trials)
    for trial in trials:
        if trial.bad:
            assert found.culprit_of(trial) or found.suspects_of(trial) or trial in found.unexplained
    assert any(marks) or found == Blame()

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A made fabric with one cause, swept, suspects measured again, judged: the cause is named and nobody else fails."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._bandwidth import BandwidthLimits
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._latency_limits import Limits
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._retest import makeup_plan, retest_plan
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep import Meeting, Pair, few_rounds, mesh
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_matrix import Rules
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_run import RETESTS
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_verdict import judge

LATENCY = Rules(Limits.of("hgx_h100_8", None, None, None), 0.5)
BANDWIDTH = Rules(bandwidth=BandwidthLimits.of("hgx_h100_8", None, None))

Row = dict[str, Any]
Fault = Callable[[Row], None]
"""Changes a healthy row where it is at work; the row's kind and `pings` tell how it was measured."""


class Fabric:
    """Nodes n01.. with `rails` HCAs, the first half of them on leaf L0, the others on L1."""

    def __init__(self, nodes: int, rails: int = 4, fault: Fault = lambda row: None) -> None:
        self.names = [f"n{index + 1:02}" for index in range(nodes)]
        self.rails, self.fault = rails, fault
        self.rows: list[Row] = []

    def leaf(self, rail: int) -> str:
        return f"L{int(rail >= self.rails // 2)}"

    def measure(self, pair: Pair, rails: tuple[int, int], kind: str, pings: int) -> None:
        server, client = pair
        row: Row = {
            "kind": kind, "round": 0, "rail": rails[1], "server": server, "client": client, "error": None,
            "fault": None, "path_failed": False, "command": "c", "t_typical_us": 1.9, "p99_us": 2.1,
            "sent": pings, "received": pings, "loss": 0.0, "retransmissions": None, "bw_gbps": 392.0,
        }  # fmt: skip
        for side, rail in zip(("server", "client"), rails, strict=True):
            row |= {f"{side}_hca": f"mlx5_{rail}", f"{side}_rail": rail, f"{side}_leaf": self.leaf(rail)}
        if row["server_leaf"] != row["client_leaf"]:
            row["t_typical_us"] = 2.3
        self.fault(row)
        self.rows.append(row)

    def sweep(self, rules: Rules, rounds: int = 0) -> list[list[Meeting]]:
        """Measure the mesh and what the plans ask for again; return the plans."""
        for pairs in few_rounds(mesh([self.names]), rounds):
            for pair in pairs:
                for rail in range(self.rails):
                    self.measure(pair, (rail, rail), "pair", 1000)
        plan = []
        for _turn in range(RETESTS):
            more = retest_plan(self.results(), rules)
            plan += more
            for meetings in more:
                busy = [node for meeting in meetings for node in meeting.nodes]
                assert len(busy) == len(set(busy))
                for meeting in meetings:
                    for rails in meeting.rails:
                        self.measure((meeting.server, meeting.client), rails, "retest", 10000)
        return plan

    def results(self) -> list[dict[str, Any]]:
        ports = [{"hca": f"mlx5_{rail}", "trouble": None} for rail in range(self.rails)]
        return [
            {"node": name, "ports": ports, "absent": {}, "pairs": [r for r in self.rows if name in ends(r)]}
            for name in self.names
        ]

    def judged(self, rules: Rules = LATENCY) -> tuple[list[str], list[str], dict[str, str]]:
        """Return culprits, suspects, and the verdict of each node whose verdict is not pass."""
        verdicts = {}
        for name in self.names:
            outcome = judge(name, self.results(), rules)
            order = ("pass", "warn", "unknown", "fail")
            verdict = max((check.verdict for check in outcome.checks), key=order.index)
            if verdict != "pass":
                verdicts[name] = verdict
        return [str(e) for e in outcome.culprits], [str(e) for e in outcome.suspects], verdicts


def ends(row: Row) -> set[str]:
    return {row["client"], row["server"]}


def uses(row: Row, node: str, rail: int | None = None) -> bool:
    return any(row[side] == node and rail in (None, row[f"{side}_rail"]) for side in ("client", "server"))


def slow(row: Row) -> None:
    row["t_typical_us"] += 1.0
    row["bw_gbps"] /= 2


def broken(row: Row) -> None:
    row.update(t_typical_us=None, p99_us=None, bw_gbps=None, received=0, path_failed=True, error="status 12")


def loses(row: Row, share: float = 0.001) -> None:
    row["received"] -= round(row["sent"] * share)


def loses_sometimes(counter: list[int], every: int = 3) -> Fault:
    """0.1 % loss that shows in a thousand packets only now and then, and always in ten thousand."""

    def fault(row: Row) -> None:
        if row["kind"] == "retest":
            loses(row)
            return
        counter[0] += 1
        if counter[0] % every == 1:
            row["received"] -= 1

    return fault


def at(where: Callable[[Row], bool], fault: Fault) -> Fault:
    return lambda row: fault(row) if where(row) else None


PORT = ["port mlx5_1 of n02 or its cable"]


def others(nodes: int, but: str = "n02", verdict: str = "warn") -> dict[str, str]:
    return {f"n{index + 1:02}": verdict for index in range(nodes) if f"n{index + 1:02}" != but}


@pytest.mark.parametrize("nodes", [3, 4, 16])
@pytest.mark.parametrize("fault", [slow, broken, loses])
def test_one_port(nodes: int, fault: Fault) -> None:
    fabric = Fabric(nodes, fault=at(lambda row: uses(row, "n02", 1), fault))
    plan = fabric.sweep(LATENCY)
    assert [m.nodes for meetings in plan for m in meetings] == [{"n01", "n02"}, {"n02", "n03"}]
    assert fabric.judged() == (PORT, [], {**others(nodes), "n02": "fail"})


@pytest.mark.parametrize("nodes", [3, 4, 16])
def test_loss_that_showed_in_few_pairs_is_named_after_ten_thousand_packets(nodes: int) -> None:
    fabric = Fabric(nodes, fault=at(lambda row: uses(row, "n02", 1), loses_sometimes([0])))
    fabric.sweep(LATENCY)
    culprits, suspects, verdicts = fabric.judged()
    assert (culprits, suspects, verdicts["n02"]) == (PORT, [], "fail")
    assert set(verdicts.values()) == {"warn", "fail"}
    blame = judge("n02", fabric.results(), LATENCY).checks[0]
    assert "measured again, bad in" in blame.reason


def test_loss_too_rare_for_the_retest_stays_open() -> None:
    # One of 1000 in one pair, and again one of 10000 with the same partner: 10000 to others could well miss it.
    def rare(row: Row) -> None:
        if ends(row) == {"n01", "n02"} and row["rail"] == 1:
            row["received"] -= 1

    fabric = Fabric(4, fault=rare)
    fabric.sweep(LATENCY)
    culprits, suspects, verdicts = fabric.judged()
    assert (culprits, len(suspects)) == ([], 2)
    assert verdicts == {"n01": "unknown", "n02": "unknown"}


@pytest.mark.parametrize("nodes", [4, 16])
def test_port_bad_in_one_pair_and_bad_again_with_a_good_one(nodes: int) -> None:
    def comes_and_goes(row: Row) -> None:
        if uses(row, "n02", 1) and (row["kind"] == "retest" or "n01" in ends(row)):
            slow(row)

    fabric = Fabric(nodes, fault=comes_and_goes)
    fabric.sweep(LATENCY)
    culprits, _suspects, verdicts = fabric.judged()
    assert (culprits, verdicts["n01"], verdicts["n02"]) == (PORT, "warn", "fail")


@pytest.mark.parametrize("nodes", [4, 16])
def test_one_pair_that_is_bad_again_is_the_way_between_its_ends(nodes: int) -> None:
    fabric = Fabric(nodes, fault=at(lambda row: ends(row) == {"n01", "n02"} and row["rail"] == 1, slow))
    fabric.sweep(LATENCY)
    way = "the way between n01 mlx5_1 and n02 mlx5_1, each good with others (a cable between switches or a route)"
    assert fabric.judged() == ([way], [], {"n01": "fail", "n02": "fail"})


@pytest.mark.parametrize("fault", [slow, loses])
def test_pair_that_is_good_again_is_a_warning(fault: Fault) -> None:
    def once(row: Row) -> None:
        if ends(row) == {"n01", "n02"} and row["rail"] == 1 and row["kind"] == "pair":
            fault(row)

    fabric = Fabric(4, fault=once)
    fabric.sweep(LATENCY)
    assert fabric.judged() == ([], [], {"n01": "warn", "n02": "warn"})
    reasons = [c.reason for c in judge("n01", fabric.results(), LATENCY).checks if c.verdict == "warn"]
    assert reasons[0] == "bad once and good when measured again: n02 mlx5_1 - n01 mlx5_1"
    assert reasons[1].endswith("good when it was measured again, so nobody is blamed")


def test_port_that_is_good_with_all_later_is_a_warning() -> None:
    fabric = Fabric(16, fault=at(lambda row: uses(row, "n02", 1) and row["kind"] == "pair", slow))
    fabric.sweep(LATENCY)
    assert fabric.judged() == ([], [], {**others(16, "none")})


def test_connection_that_failed_is_not_healed_by_one_that_works() -> None:
    fabric = Fabric(
        4, fault=at(lambda row: ends(row) == {"n01", "n02"} and row["rail"] == 1 and row["kind"] == "pair", broken)
    )
    fabric.sweep(LATENCY)
    _culprits, _suspects, verdicts = fabric.judged()
    assert verdicts["n01"] in ("fail", "unknown")
    assert verdicts["n02"] in ("fail", "unknown")


@pytest.mark.parametrize("nodes", [3, 4, 16])
@pytest.mark.parametrize("fault", [slow, broken])
def test_one_node(nodes: int, fault: Fault) -> None:
    fabric = Fabric(nodes, fault=at(lambda row: uses(row, "n02"), fault))
    fabric.sweep(LATENCY)
    assert fabric.judged() == (["node n02"], [], {**others(nodes), "n02": "fail"})


@pytest.mark.parametrize("nodes", [4, 16])
def test_one_leaf_on_all_nodes(nodes: int) -> None:
    fabric = Fabric(nodes, fault=at(lambda row: "L1" in (row["client_leaf"], row["server_leaf"]), slow))
    plan = fabric.sweep(LATENCY)
    assert sum(len(m.rails) for meetings in plan for m in meetings) == 2
    assert fabric.judged() == (["leaf L1"], [], others(nodes, "none", "fail"))


def test_two_ports_of_different_nodes() -> None:
    fabric = Fabric(4, fault=at(lambda row: uses(row, "n01", 0) or uses(row, "n03", 3), slow))
    fabric.sweep(LATENCY)
    culprits, suspects, verdicts = fabric.judged()
    assert culprits == ["port mlx5_0 of n01 or its cable", "port mlx5_3 of n03 or its cable"]
    assert suspects == []
    assert verdicts == {"n01": "fail", "n02": "warn", "n03": "fail", "n04": "warn"}


def test_two_nodes_decide_by_ports_of_their_own() -> None:
    fabric = Fabric(2, fault=at(lambda row: uses(row, "n02", 1), slow))
    plan = fabric.sweep(LATENCY)
    assert {m.nodes for meetings in plan for m in meetings} == {
        frozenset({"n01"}),
        frozenset({"n02"}),
        frozenset({"n01", "n02"}),
    }
    assert fabric.judged() == (PORT, [], {"n01": "warn", "n02": "fail"})


@pytest.mark.parametrize("fault", [slow, broken])
def test_two_nodes_with_everything_bad_cannot_tell(fault: Fault) -> None:
    fabric = Fabric(2, fault=at(lambda row: len(ends(row)) == 2, fault))
    fabric.sweep(LATENCY)
    culprits, suspects, verdicts = fabric.judged()
    assert (culprits, suspects) == ([], ["node n01", "node n02"])
    assert verdicts == {"n01": "unknown", "n02": "unknown"}


def test_good_fabric_measures_nothing_again() -> None:
    fabric = Fabric(4)
    assert fabric.sweep(LATENCY) == []
    assert fabric.judged() == ([], [], {})


def test_without_limits_only_a_loss_is_suspect() -> None:
    fabric = Fabric(4, fault=at(lambda row: uses(row, "n02", 1), slow))
    assert fabric.sweep(Rules(above_median_us=0.5)) == []


@pytest.mark.parametrize("nodes", [2, 3, 4, 5, 16])
@pytest.mark.parametrize("fault", [slow, broken])
def test_bandwidth_of_one_port_with_one_partner_each(nodes: int, fault: Fault) -> None:
    fabric = Fabric(nodes, fault=at(lambda row: uses(row, "n02", 1), fault))
    fabric.sweep(BANDWIDTH, rounds=1)
    culprits, suspects, verdicts = fabric.judged(BANDWIDTH)
    assert (culprits, suspects, verdicts["n02"]) == (PORT, [], "fail")
    assert {verdict for name, verdict in verdicts.items() if name != "n02"} <= {"warn"}


def test_port_that_two_bad_ones_accuse_is_cleared() -> None:
    # With one partner each n03 is bad with both, which alone would name n03.
    fabric = Fabric(3, fault=at(lambda row: uses(row, "n01", 0) or uses(row, "n02", 0), slow))
    plan = fabric.sweep(BANDWIDTH, rounds=1)
    assert [(m.server, m.client) for meetings in plan for m in meetings] == [
        ("n03", "n03"),
        ("n01", "n03"),
        ("n02", "n03"),
    ]
    culprits, suspects, verdicts = fabric.judged(BANDWIDTH)
    assert culprits == ["port mlx5_0 of n01 or its cable", "port mlx5_0 of n02 or its cable"]
    assert (suspects, verdicts) == ([], {"n01": "fail", "n02": "fail", "n03": "warn"})


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("nodes", [4, 8])
def test_any_two_ports_are_named(nodes: int, seed: int) -> None:
    draw = random.Random(seed)
    chosen = draw.sample([(f"n{n + 1:02}", rail) for n in range(nodes) for rail in range(4)], 2)
    fault = draw.choice([slow, broken, loses])
    fabric = Fabric(nodes, fault=at(lambda row: any(uses(row, node, rail) for node, rail in chosen), fault))
    fabric.sweep(LATENCY)
    culprits, suspects, verdicts = fabric.judged()
    assert culprits == [f"port mlx5_{rail} of {node} or its cable" for node, rail in sorted(chosen)]
    assert suspects == []
    assert {node for node, verdict in verdicts.items() if verdict == "fail"} == {node for node, _rail in chosen}


def test_bandwidth_of_one_node() -> None:
    fabric = Fabric(4, fault=at(lambda row: uses(row, "n02"), slow))
    fabric.sweep(BANDWIDTH, rounds=1)
    culprits, suspects, verdicts = fabric.judged(BANDWIDTH)
    assert (culprits, suspects, verdicts["n02"]) == (["node n02"], [], "fail")


def test_fleet_value_is_the_median_bandwidth_of_the_pairs() -> None:
    fabric = Fabric(3)
    fabric.sweep(LATENCY)
    # Latency depends on where the partners are, so the nodes' medians say nothing about each other.
    assert judge("n01", fabric.results(), LATENCY).fleet == {"values": {}}
    assert judge("n01", fabric.results(), BANDWIDTH).fleet == {
        "values": {"ib_bandwidth.bandwidth": {"value": 392.0, "unit": "Gb/s", "better": "higher"}}
    }


def test_plan_is_the_same_for_every_order_of_the_results() -> None:
    fabric = Fabric(4, fault=at(lambda row: uses(row, "n02", 1), slow))
    fabric.sweep(LATENCY)
    results = [{**r, "pairs": [p for p in r["pairs"] if p["kind"] == "pair"]} for r in fabric.results()]
    plans = [retest_plan(order, LATENCY) for order in itertools.permutations(results)]
    assert all(plan == plans[0] for plan in plans)


def result(node: str, pairs: list[Row], trouble: dict[int, str] | None = None) -> dict[str, Any]:
    ports = [{"hca": f"mlx5_{rail}", "trouble": (trouble or {}).get(rail)} for rail in range(2)]
    return {"node": node, "ports": ports, "pairs": pairs}


def pair(server: str, client: str, rail: int, fault: dict[str, Any] | None = None) -> Row:
    hca = f"mlx5_{rail}"
    return {
        "server": server, "client": client, "server_hca": hca, "client_hca": hca, "fault": fault, "path_failed": False,
        "error": None if fault is None else "could not be measured",
    }  # fmt: skip


def test_partner_of_a_node_without_the_tool_gets_another_one() -> None:
    missing = {"node": "n03", "hca": None, "why": "ib_write_bw could not start"}
    rows = [pair("n02", "n03", rail, missing) for rail in range(2)] + [pair("n01", "n03", r, missing) for r in range(2)]
    results = [result("n01", rows[2:]), result("n02", rows[:2]), result("n03", rows)]
    assert makeup_plan(results) == [[Meeting("n01", "n02", ((0, 0), (1, 1)))]]


def test_partner_of_a_port_that_is_down_gets_another_one() -> None:
    down = {"node": "n02", "hca": "mlx5_1", "why": "port is Down"}
    results = [
        result("n01", [pair("n01", "n02", 0), pair("n01", "n02", 1, down)]),
        result("n02", [], {1: "port is Down"}),
        result("n03", [pair("n03", "n04", 0), pair("n03", "n04", 1)]),
        result("n04", []),
    ]
    assert makeup_plan(results) == [[Meeting("n01", "n03", ((1, 1),))]]


def test_nothing_is_made_up_where_all_was_measured_or_nobody_is_left() -> None:
    assert makeup_plan([result("n01", [pair("n01", "n02", r) for r in range(2)]), result("n02", [])]) == []
    missing = {"node": "n02", "hca": None, "why": "missing"}
    assert makeup_plan([result("n01", [pair("n01", "n02", 0, missing)]), result("n02", [])]) == []

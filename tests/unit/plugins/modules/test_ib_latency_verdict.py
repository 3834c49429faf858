# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a sweep means for each node: only the one to blame fails."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.modules import ib_latency_verdict

Change = Callable[[dict[str, Any]], None]


def row(client: str, server: str, rail: int, kind: str = "pair", server_rail: int | None = None) -> dict[str, Any]:
    other = rail if server_rail is None else server_rail
    return {
        "kind": kind, "round": 0, "rail": rail, "client": client, "server": server,
        "client_hca": f"mlx5_{rail}", "server_hca": f"mlx5_{other}", "client_rail": rail, "server_rail": other,
        "client_leaf": f"0x{rail // 2}", "server_leaf": f"0x{other // 2}", "iterations": 1000, "t_min_us": 1.8,
        "t_typical_us": 1.9, "p99_us": 2.1, "p999_us": 3.0, "t_max_us": 6.0, "sent": 1000, "received": 1000,
        "loss": 0.0, "mad_rtt_ms": 0.05, "retransmissions": None, "path_failed": False, "error": None, "fault": None,
        "command": "c",
    }  # fmt: skip


def results(nodes: int, change: Change = lambda row: None, rails: int = 4) -> list[dict[str, Any]]:
    """Return the results of n1..nN; each pair is reported by both of its ends."""
    names = [f"n{i + 1}" for i in range(nodes)]
    rows = [row(b, a, rail) for (a, b), rail in itertools.product(itertools.combinations(names, 2), range(rails))]
    for one in rows:
        change(one)
    ports = [
        {"rail": r, "hca": f"mlx5_{r}", "guid": "0x1", "leaf": f"0x{r // 2}", "trouble": None} for r in range(rails)
    ]
    return [
        {
            "node": n,
            "ports": [dict(p) for p in ports],
            "absent": {},
            "pairs": [r for r in rows if n in (r["client"], r["server"])],
        }
        for n in names
    ]


def judge(
    rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], node: str = "n1", **extra: Any
) -> dict[str, Any]:
    arguments = {"node": node, "rows": rows, "profile": "hgx_h100_8", "enforce": False, **extra}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        ib_latency_verdict.main()
    outcome: dict[str, Any] = json.loads(capsys.readouterr().out)
    return outcome


def verdicts(rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str], **extra: Any) -> dict[str, str]:
    return {r["node"]: judge(rows, capsys, r["node"], **extra)["verdict"] for r in rows}


def uses(one: dict[str, Any], node: str, rail: int | None = None) -> bool:
    return node in (one["client"], one["server"]) and rail in (None, one["rail"])


def test_good_rack_passes(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = judge(results(4), capsys)
    assert outcome["verdict"] == "pass"
    names = [check["check"] for check in outcome["checks"]]
    assert names.count("ib_latency.port") == 4
    assert names.count("ib_latency.latency") == names.count("ib_latency.p99") == names.count("ib_latency.loss") == 12
    coverage = next(check for check in outcome["checks"] if check["check"] == "ib_latency.coverage")
    assert coverage["value"] == "12 of 12 pairs"
    latency = next(check for check in outcome["checks"] if check["check"] == "ib_latency.latency")
    assert (latency["value"], latency["limit"], latency["unit"]) == (1.9, 2.4, "us")
    assert latency["limit_source"] == "median of this sweep 1.90 us + 0.5"
    loss = next(check for check in outcome["checks"] if check["check"] == "ib_latency.loss")
    assert loss["reason"] == "0 of 1000 packets lost, which rules out a loss above 0.3 % (95 % confidence)"
    assert len(outcome["matrix"]) == 24


def test_slow_cable_fails_its_node_only(capsys: pytest.CaptureFixture[str]) -> None:
    rows = results(4, lambda r: r.update(t_typical_us=2.9) if uses(r, "n3", 2) else None)
    assert verdicts(rows, capsys) == {"n1": "warn", "n2": "warn", "n3": "fail", "n4": "warn"}
    outcome = judge(rows, capsys, "n3")
    assert outcome["culprits"] == ["port mlx5_2 of n3 or its cable"]
    assert outcome["summary"].startswith("ib_latency.blame n3: fail, measured port mlx5_2 of n3 or its cable")
    other = judge(rows, capsys, "n1")
    reasons = [
        check["reason"]
        for check in other["checks"]
        if check["verdict"] == "warn" and check["check"] == "ib_latency.latency"
    ]
    assert reasons == [
        "typical RDMA write latency, half of the round trip; explained by port mlx5_2 of n3 or its cable"
    ]


def test_loss_on_a_port_fails_its_node_only(capsys: pytest.CaptureFixture[str]) -> None:
    rows = results(4, lambda r: r.update(received=999, loss=0.1) if uses(r, "n2", 0) else None)
    assert verdicts(rows, capsys) == {"n1": "warn", "n2": "fail", "n3": "warn", "n4": "warn"}


def test_path_that_never_connects(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(one: dict[str, Any]) -> None:
        if uses(one, "n4", 1):
            one.update(
                t_typical_us=None, p99_us=None, sent=1, received=0, loss=100.0, path_failed=True, error="status 12"
            )

    rows = results(4, broken)
    assert verdicts(rows, capsys) == {"n1": "warn", "n2": "warn", "n3": "warn", "n4": "fail"}


def test_port_polling_is_the_nodes_own_fault(capsys: pytest.CaptureFixture[str]) -> None:
    fault = {"node": "n3", "hca": "mlx5_1", "why": "port is Down, physical state Polling"}

    def polling(one: dict[str, Any]) -> None:
        if uses(one, "n3", 1):
            one.update(
                t_typical_us=None,
                p99_us=None,
                sent=None,
                received=None,
                loss=None,
                error="mlx5_1 of n3: port is Down",
                fault=fault,
            )

    rows = results(4, polling)
    rows[2]["ports"][1]["trouble"] = fault["why"]
    assert verdicts(rows, capsys) == {"n1": "warn", "n2": "warn", "n3": "fail", "n4": "warn"}
    failed = [check for check in judge(rows, capsys, "n3")["checks"] if check["verdict"] == "fail"]
    assert [(check["check"], check["subject"]) for check in failed] == [("ib_latency.port", "n3 mlx5_1")]
    coverage = next(check for check in judge(rows, capsys, "n1")["checks"] if check["check"] == "ib_latency.coverage")
    assert coverage["value"] == "11 of 12 pairs"
    assert "mlx5_1 of n3" in coverage["reason"]


def test_two_nodes_cannot_tell_and_both_are_blocked(capsys: pytest.CaptureFixture[str]) -> None:
    rows = results(2, lambda r: r.update(t_typical_us=4.0) if r["rail"] == 1 else None)
    assert verdicts(rows, capsys) == {"n1": "unknown", "n2": "unknown"}
    assert judge(rows, capsys)["suspects"] == ["port mlx5_1 of n1 or its cable", "port mlx5_1 of n2 or its cable"]


def test_slow_leaf_fails_all_on_it_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    rows = results(4, lambda r: r.update(t_typical_us=2.9) if r["rail"] >= 2 else None)
    assert set(verdicts(rows, capsys).values()) == {"fail"}
    outcome = judge(rows, capsys)
    assert outcome["culprits"] == ["leaf 0x1"]
    assert "none of them is at fault itself" in outcome["summary"]


def test_limit_that_fits_nothing_points_to_the_limit(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = judge(results(4), capsys, profile="article")
    assert outcome["verdict"] == "fail"
    assert outcome["culprits"] == ["the whole fabric (or a limit that does not fit it)"]


def test_no_limit_never_passes(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = judge(results(3), capsys, profile=None, max_above_median_us=-1.0)
    assert {c["verdict"] for c in outcome["checks"] if c["check"] in ("ib_latency.latency", "ib_latency.loss")} == {
        "unknown"
    }
    assert outcome["verdict"] != "pass"


def test_absent_partner_is_a_warning_for_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    def away(one: dict[str, Any]) -> None:
        if uses(one, "n4"):
            one.update(
                t_typical_us=None, p99_us=None, sent=None, received=None, loss=None, error="n4 did not take part"
            )

    rows = results(4, away)[:3]
    for one in rows:
        one["absent"] = {"n4": "did not take part"}
    assert verdicts(rows, capsys) == {"n1": "warn", "n2": "warn", "n3": "warn"}


def test_node_that_met_nobody_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    def away(one: dict[str, Any]) -> None:
        one.update(t_typical_us=None, p99_us=None, sent=None, received=None, loss=None, error="n1 did not take part")

    rows = results(2, away)
    rows[1]["absent"] = {"n1": "did not take part"}
    outcome = judge(rows, capsys, "n2")
    assert outcome["verdict"] == "unknown"
    assert any("forks" in check["remedy"] for check in outcome["checks"])


def test_node_alone_says_what_was_not_proven(capsys: pytest.CaptureFixture[str]) -> None:
    [alone] = results(1)
    alone["pairs"] = [row("n1", "n1", 0, "self", 1), row("n1", "n1", 2, "self", 3)]
    outcome = judge([alone], capsys)
    assert outcome["verdict"] == "warn"
    coverage = next(check for check in outcome["checks"] if check["check"] == "ib_latency.coverage")
    assert coverage["value"] == "4 of 4 usable rails, within the node"
    assert "the way to other nodes is not proven" in coverage["reason"]
    alone["pairs"][0]["t_typical_us"] = 9.0
    outcome = judge([alone], capsys)
    assert outcome["verdict"] == "fail"


def test_self_test_over_the_spine_is_held_to_its_own_limit(capsys: pytest.CaptureFixture[str]) -> None:
    [alone] = results(1)
    alone["pairs"] = [row("n1", "n1", 0, "self", 3), row("n1", "n1", 1, "self", 2)]
    limits = {c["limit_source"] for c in judge([alone], capsys)["checks"] if c["check"] == "ib_latency.latency"}
    assert limits == {"board profile hgx_h100_8, 3 switches"}


def test_missing_tool_blocks_the_node_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    def missing(one: dict[str, Any]) -> None:
        if uses(one, "n2"):
            fault = {"node": "n2", "hca": None, "why": "ib_write_lat could not start"}
            one.update(t_typical_us=None, p99_us=None, error="ib_write_lat: could not start", fault=fault)

    assert verdicts(results(3, missing), capsys) == {"n1": "warn", "n2": "unknown", "n3": "warn"}


def test_retransmissions_are_the_loss_of_ethernet(capsys: pytest.CaptureFixture[str]) -> None:
    def roce(one: dict[str, Any]) -> None:
        one.update(sent=None, received=None, loss=None, retransmissions=7 if uses(one, "n2", 0) else 0)

    assert verdicts(results(4, roce), capsys) == {"n1": "warn", "n2": "fail", "n3": "warn", "n4": "warn"}


def test_failed_measurement_of_a_node_does_not_stop_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*results(3), {"failed": True, "msg": "TCP port 18500: Address already in use"}]
    assert judge(rows, capsys)["verdict"] == "pass"


def test_node_without_result_is_unknown(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(results(3), capsys, "n9")["verdict"] == "unknown"


@pytest.mark.parametrize(
    "rows", [[{"node": "n1"}], [{"pairs": []}], [{"node": "n1", "pairs": [{}]}], [{"node": "n1", "pairs": [1]}]]
)
def test_rows_of_something_else_are_refused(rows: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = judge(rows, capsys)
    assert outcome["failed"]
    assert outcome["msg"].startswith("Option rows: ")


def test_stored_sweeps_are_judged_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for one in results(3):
        (tmp_path / f"{one['node']}.json").write_text(json.dumps(one))
    arguments = {
        "node": "n1",
        "captured": str(tmp_path),
        "profile": "hgx_h100_8",
        "evidence_dir": str(tmp_path / "out"),
    }
    with patch_module_args(arguments), pytest.raises(SystemExit):
        ib_latency_verdict.main()
    assert json.loads(capsys.readouterr().out)["verdict"] == "pass"
    assert json.loads((tmp_path / "out" / "ib_latency.json").read_text())["gate"] == "ib_latency"


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"'])
def test_captured_garbage_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    file.write_text(text)
    with patch_module_args({"node": "n1", "captured": str(file)}), pytest.raises(SystemExit):
        ib_latency_verdict.main()
    assert json.loads(capsys.readouterr().out)["msg"].startswith("Option captured: ")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"t_typical_us": float("nan")}, "t_typical_us is nan, no latency"),
        ({"t_typical_us": float("inf")}, "t_typical_us is inf, no latency"),
        ({"t_typical_us": 0}, "t_typical_us is 0, no latency"),
        ({"t_typical_us": -1.5}, "t_typical_us is -1.5, no latency"),
        ({"t_typical_us": True}, "t_typical_us is True, no latency"),
        ({"t_typical_us": "1.6"}, "t_typical_us is 1.6, no latency"),
        ({"t_typical_us": 10**400}, "t_typical_us is 1" + "0" * 39 + ", no latency"),
        ({"p99_us": float("nan")}, "p99_us is nan, no latency"),
        (
            {"received": 2000},
            "sent is 1000, no counts of packets; received is 2000, no counts of packets",
        ),
        ({"sent": 0, "received": 0}, "sent is 0, no counts of packets; received is 0, no counts of packets"),
        ({"sent": None}, "sent is None, no counts of packets; received is 1000, no counts of packets"),
        ({"loss": float("nan")}, "loss is nan, no share"),
        ({"retransmissions": "0"}, "retransmissions is 0, no count"),
    ],
)
def test_number_nobody_measured_is_unknown_for_both_ends(
    change: dict[str, Any], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = results(3, lambda r: r.update(change) if uses(r, "n1", 0) and uses(r, "n2", 0) else None)
    file = tmp_path / "rows.json"
    file.write_text(json.dumps(rows))
    for node, verdict in {"n1": "unknown", "n2": "unknown", "n3": "pass"}.items():
        arguments = {"node": node, "captured": str(file), "profile": "hgx_h100_8", "enforce": False}
        with patch_module_args(arguments), pytest.raises(SystemExit):
            ib_latency_verdict.main()
        outcome = json.loads(capsys.readouterr().out)
        assert "NaN" not in json.dumps([outcome["matrix"], outcome["checks"]])
        assert outcome["verdict"] == verdict
        found = [(c["subject"], c["reason"]) for c in outcome["checks"] if c["check"] == "ib_latency.values"]
        assert found == ([] if node == "n3" else [("n2 mlx5_0 - n1 mlx5_0", reason)])


def test_good_report_of_the_other_end_does_not_heal_a_bad_one(capsys: pytest.CaptureFixture[str]) -> None:
    rows = results(2)
    rows[0]["pairs"] = [dict(r) for r in rows[0]["pairs"]]
    rows[0]["pairs"][0]["t_typical_us"] = -1
    assert verdicts(rows, capsys) == {"n1": "unknown", "n2": "unknown"}


@pytest.mark.parametrize("ports", [[], None])
def test_result_without_ports_is_unknown(ports: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = results(3)
    rows[0]["ports"] = ports
    outcome = judge(rows, capsys)
    assert outcome["verdict"] == "unknown"
    [port] = [c for c in outcome["checks"] if c["check"] == "ib_latency.port"]
    assert (port["subject"], port["verdict"], port["reason"]) == ("n1", "unknown", "its result names no port")


@pytest.mark.parametrize(
    ("result", "pair", "problem"),
    [
        ({"ports": "mlx5_0"}, {}, "n1: ports is 'mlx5_0', not a list"),
        ({"ports": [{"trouble": None}]}, {}, "n1: port {'trouble': None} has no hca and trouble"),
        ({"ports": [{"hca": "a", "trouble": 1}]}, {}, "n1: trouble of port a is 1, not a text or null"),
        ({"node": None}, {}, "entry 0 has the node None, which is no name"),
        ({}, {"client_rail": None}, "n1: a pair has the client_rail 'None'"),
        ({}, {"server_rail": True}, "n1: a pair has the server_rail 'True'"),
        ({}, {"client": 5}, "n1: a pair has the client '5'"),
        ({}, {"kind": []}, "n1: a pair has the kind []"),
        ({}, {"path_failed": "no"}, "n1: a pair has the path_failed 'no'"),
        ({}, {"fault": "x"}, "n1: a pair has the fault 'x'"),
    ],
)
def test_result_of_another_shape_is_refused(
    result: dict[str, Any], pair: dict[str, Any], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = results(2)
    rows[0].update(result)
    rows[0]["pairs"][0].update(pair)
    outcome = judge(rows, capsys)
    assert outcome["msg"] == f"Option rows: {problem}. Give the results of ib_latency of all nodes."


def test_deep_json_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.json"
    file.write_text("[" * 100000)
    with patch_module_args({"node": "n1", "captured": str(file)}), pytest.raises(SystemExit):
        ib_latency_verdict.main()
    assert json.loads(capsys.readouterr().out)["msg"].startswith(f"Option captured: {file}: not JSON (")


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_latency_us", "nan", "Option max_latency_us: nan. Give microseconds above 0."),
        ("max_p99_us", "inf", "Option max_p99_us: inf. Give microseconds above 0."),
        ("max_p99_us", -1, "Option max_p99_us: -1.0. Give microseconds above 0."),
        ("max_loss_percent", "inf", "Option max_loss_percent: inf. Give percent from 0 to below 100."),
        (
            "max_above_median_us",
            "nan",
            "Option max_above_median_us: nan. Give microseconds, or a negative number to switch it off.",
        ),
    ],
)
def test_limit_that_is_none_is_refused(
    option: str, value: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = judge(results(2), capsys, **{option: value})
    assert (outcome["failed"], outcome["msg"]) == (True, message)


def test_loss_of_zero_may_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert judge(results(3), capsys, max_loss_percent=0)["verdict"] == "pass"


@pytest.mark.parametrize("values", [(50.0, 1.6), (1.6, 50.0)])
def test_reports_that_contradict_each_other_never_pass(
    values: tuple[float, float], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = results(2, rails=1)
    for one, value in zip(rows, values, strict=True):
        one["pairs"] = [{**one["pairs"][0], "t_typical_us": value}]
    outcome = judge(rows, capsys)
    assert outcome["verdict"] == "unknown"
    [found] = [c["reason"] for c in outcome["checks"] if c["check"] == "ib_latency.values"]
    assert found == f"reported as {values[0]} us and as {values[1]} us"

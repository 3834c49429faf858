# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A sweep of several nodes on this machine: each a thread with an address of its own, stand-ins for the IB tools."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._latency_limits import Limits
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_run import Sweep
from ansible_collections.ai_infra.gpu_rack.plugins.modules import ib_latency

from tests.unit.sweep_nodes import control_port, options, stand_ins, together

FIXTURES = Path(__file__).parents[2] / "fixtures"
LIMITS = Limits.of("hgx_h100_8", None, None, None)

# The stand-ins answer like the real tools; `state` is a directory with one file a fault.
TOOLS = {
    "ibstat": """
for i in 0 1; do
  state=Active; physical=LinkUp
  [ -e "$STATE/down-mlx5_$i" ] && state=Down && physical=Polling
  printf "CA 'mlx5_%s'\\n\\tPort 1:\\n\\t\\tState: %s\\n\\t\\tPhysical state: %s\\n" $i $state $physical
  layer=InfiniBand
  [ -e "$STATE/ethernet" ] && layer=Ethernet
  printf "\\t\\tPort GUID: 0x000000000000000%s\\n\\t\\tLink layer: %s\\n" $i $layer
done
""",
    "smpquery": """
leaf=aa
case " $* " in *" mlx5_1 "*) [ -e "$STATE/two-leaves" ] && leaf=bb;; esac
echo "NodeType:........................Switch"
echo "Guid:............................0x00000000000000$leaf"
""",
    "ibping": """
case " $* " in *" -S "*) [ -e "$STATE/deaf" ] && echo "%#x" && exit 0; exec sleep 60;; esac
sent=$2; received=$2
case " $* " in *" -C mlx5_1 "*) [ -e "$STATE/lossy" ] && received=$((sent - sent / 100));; esac
echo "--- node (Lid 1) ibping statistics ---"
echo "$sent packets transmitted, $received received, 0% packet loss, time 1 ms"
""",
    "ib_write_lat": """
[ -e "$STATE/hangs" ] && exec sleep 60
exec PYTHON - "$@" <<'END'
import os, socket, sys
args = sys.argv[1:]
port = int(args[args.index("-p") + 1])
server = args[-1] == "-F"
if server:
    with socket.create_server(("", port)) as listener:
        listener.settimeout(20)
        listener.accept()[0].close()
else:
    try:
        socket.create_connection((args[-1], port), 5).close()
    except OSError:
        sys.exit(f"Couldn't connect to {args[-1]}:{port}")
    if os.path.exists(os.environ["STATE"] + "/broken"):
        print("Completion with error at client\\n Failed status 12: wr_id 0 syndrom 0x81", file=sys.stderr)
        sys.exit(1)
print(open("FIXTURE").read())
END
""",
}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return stand_ins(TOOLS, FIXTURES / "perftest-4.5-ib_write_lat.txt", tmp_path, monkeypatch)


def sweep(
    names: list[str], present: list[str] | None = None, **extra: Any
) -> dict[str, tuple[list[dict[str, Any]], dict[str, str]]]:
    """Run the sweep on the present nodes at the same time. A sweep that is a dictionary is each node's own."""
    results: dict[str, tuple[list[dict[str, Any]], dict[str, str]]] = {}
    extra.setdefault("control_port", control_port())
    ident = extra.pop("sweep", "s")

    def one(name: str) -> None:
        own = {**extra, "sweep": ident[name] if isinstance(ident, dict) else ident}
        results[name] = ib_latency.sweep_of(options(ib_latency.ARGUMENTS, name, names, **own), [], LIMITS).run()

    together(present or names, one)
    return results


def test_three_nodes_measure_every_pair_on_every_rail(state: Path) -> None:
    results = sweep(["n1", "n2", "n3"])
    for name, (rows, absent) in results.items():
        assert absent == {}
        assert len(rows) == 4
        assert all(name in (row["client"], row["server"]) for row in rows)
        assert [row["error"] for row in rows] == [None] * 4
        assert {row["t_typical_us"] for row in rows} == {1.91}
        assert {(row["sent"], row["received"], row["loss"]) for row in rows} == {(1000, 1000, 0.0)}
        assert {row["client_leaf"] for row in rows} == {"0x00000000000000aa"}
    client = next(row for row in results["n2"][0] if row["server"] == "n1" and row["rail"] == 0)
    server = next(row for row in results["n1"][0] if row["client"] == "n2" and row["rail"] == 0)
    assert client == server
    assert client["command"].startswith("ib_write_lat -d mlx5_0 -i 1 -p ")


def test_dead_partner_costs_one_wait_and_the_others_are_measured(state: Path) -> None:
    start = time.monotonic()
    results = sweep(["n1", "n2", "n3"], present=["n1", "n2"], meet_timeout=3.0)
    assert time.monotonic() - start < 20
    rows, absent = results["n1"]
    assert list(absent) == ["n3"]
    assert "did not take part" in absent["n3"]
    assert {row["t_typical_us"] for row in rows if "n2" in (row["client"], row["server"])} == {1.91}
    assert all(row["t_typical_us"] is None and "n3 did not" in row["error"] for row in rows if row["client"] == "n3")


def test_port_that_is_down_is_not_waited_for(state: Path) -> None:
    (state / "down-mlx5_1").touch()
    rows, _absent = sweep(["n1", "n2"])["n1"]
    assert rows[0]["t_typical_us"] == 1.91
    assert rows[1]["error"] == "mlx5_1 of n1: port is Down, physical state Polling"
    assert rows[1]["fault"] == {"node": "n1", "hca": "mlx5_1", "why": "port is Down, physical state Polling"}


def test_path_that_fails_is_told_from_a_partner_that_is_missing(state: Path) -> None:
    (state / "broken").touch()
    for rows, _absent in sweep(["n1", "n2"]).values():
        assert all(row["path_failed"] for row in rows)
        assert all("transport retries exhausted" in row["error"] for row in rows)
        assert all(row["fault"] is None for row in rows)


def test_loss_is_counted(state: Path) -> None:
    (state / "lossy").touch()
    rows, _absent = sweep(["n1", "n2"], retest=False)["n2"]
    assert [row["error"] for row in rows] == [None, None]
    assert [row["loss"] for row in rows] == [0.0, 1.0]


def test_suspects_are_measured_again_with_more_packets(state: Path) -> None:
    (state / "lossy").touch()
    results = sweep(["n1", "n2", "n3"])
    again = [row for rows, _absent in results.values() for row in rows if row["kind"] == "retest"]
    # Every client loses on mlx5_1, so n2 and n3 do with n1 and n3 with n2: all of rail 1 is suspect.
    assert {row["rail"] for row in again} == {1}
    assert {(row["sent"], row["received"]) for row in again} == {(10000, 9900)}
    assert [(row["error"], row["round"] >= 3) for row in again] == [(None, True)] * len(again)
    # No port of rail 1 is known to be good, so each is measured against the node's own mlx5_0 as well.
    within = {row["client"] for row in again if row["client"] == row["server"]}
    assert within == {"n1", "n2", "n3"}
    results = sweep(["n1", "n2", "n3"], retest=False)
    assert all(row["kind"] == "pair" for rows, _absent in results.values() for row in rows)


def test_node_that_does_not_answer_pings_is_at_fault_and_nothing_is_lost(state: Path) -> None:
    (state / "deaf").touch()
    rows, _absent = sweep(["n1", "n2"])["n2"]
    assert {(row["kind"], row["t_typical_us"], row["sent"]) for row in rows} == {("pair", 1.91, None)}
    assert {row["error"] for row in rows} == {"ibping -S: ended with status 0 (%#x) on n1"}
    assert {(row["fault"]["node"], row["fault"]["hca"]) for row in rows} == {("n1", None)}


def test_leaves_that_share_no_rail_meet_once(state: Path) -> None:
    (state / "two-leaves").touch()
    results = sweep(["n1", "n2", "n3"])
    assert {name: len(rows) for name, (rows, _absent) in results.items()} == {"n1": 5, "n2": 5, "n3": 4}
    [row] = [r for r in results["n1"][0] if r["client_rail"] != r["server_rail"]]
    assert (row["kind"], row["server"], row["server_hca"], row["client"], row["client_hca"], row["error"]) == (
        "pair",
        "n1",
        "mlx5_0",
        "n2",
        "mlx5_1",
        None,
    )
    assert row == next(r for r in results["n2"][0] if r["client_rail"] != r["server_rail"])


def test_racks_cover_their_leaves_without_a_full_mesh(state: Path) -> None:
    # Both racks hang on one leaf a rail, so nothing is left to cover: only the racks mesh inside.
    names = ["n1", "n2", "n3", "n4"]
    racks = {"n1": "a", "n2": "a", "n3": "b", "n4": "b"}
    results = sweep(names, racks=racks)
    assert {
        name: {r["client"] for r in rows} | {r["server"] for r in rows} for name, (rows, _a) in results.items()
    } == {
        "n1": {"n1", "n2"},
        "n2": {"n1", "n2"},
        "n3": {"n3", "n4"},
        "n4": {"n3", "n4"},
    }
    # On Ethernet no leaf is known, and every rail of a rack counts as one.
    (state / "ethernet").touch()
    results = sweep(names, racks=racks, link_layer="ethernet")
    across = [r for r in results["n1"][0] if r["client"] in ("n3", "n4")]
    assert [(r["client"], r["rail"], r["error"]) for r in across] == [("n3", 0, None), ("n3", 1, None)]


def test_lead_that_is_away_is_replaced(state: Path) -> None:
    (state / "lossy").touch()
    results = sweep(["n1", "n2", "n3"], present=["n2", "n3"], meet_timeout=3.0)
    again = [row for row in results["n3"][0] if row["kind"] == "retest"]
    assert any(row["sent"] == 10000 for row in again)


def test_other_sweep_is_refused(state: Path) -> None:
    results = sweep(["n1", "n2"], sweep={"n1": "s1", "n2": "s2"}, meet_timeout=2.0)
    assert "sweep 's2' met a node of sweep 's1'" in results["n2"][1]["n1"]


def test_node_alone_measures_between_its_own_rails(state: Path) -> None:
    rows, absent = sweep(["n1"])["n1"]
    assert absent == {}
    [row] = rows
    assert (row["kind"], row["client_hca"], row["server_hca"], row["t_typical_us"]) == (
        "self",
        "mlx5_0",
        "mlx5_1",
        1.91,
    )


def test_budget_ends_the_sweep(state: Path) -> None:
    results = sweep(["n1", "n2"], budget=0.0)
    assert all(row["t_typical_us"] is None for rows, _absent in results.values() for row in rows)


def test_missing_tool_is_the_fault_of_the_node_without_it(state: Path) -> None:
    (state.parent / "bin" / "ib_write_lat").unlink()
    rows, _absent = sweep(["n1", "n2"])["n2"]
    assert {row["fault"]["node"] for row in rows} == {"n1"}
    assert {row["path_failed"] for row in rows} == {False}


def test_tool_that_hangs_is_tried_twice_only(state: Path) -> None:
    (state / "hangs").touch()
    start = time.monotonic()
    # n2 meets n3, then n1, which has had its two time-outs with n3 by then.
    rows, _absent = sweep(["n1", "n2", "n3"], timeout=1.0)["n2"]
    assert time.monotonic() - start < 30
    assert {row["path_failed"] for row in rows} == {False}
    assert {row["fault"]["node"] for row in rows} == {"n1", "n2"}
    assert any("not tried again" in row["error"] for row in rows)


def test_partner_that_is_busy_for_long_is_waited_for(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # n3 comes to n1 only after n2; a server of n1 started at once would have reached its deadline by then.
    real = Sweep._meet

    def slow(self: Sweep, hub: Any, index: int, *rest: Any) -> Any:
        if (self._me, index) == ("n3", 1):
            time.sleep(3)
        return real(self, hub, index, *rest)

    monkeypatch.setattr(Sweep, "_meet", slow)
    rows, absent = sweep(["n1", "n2", "n3"], timeout=1.3)["n1"]
    assert absent == {}
    assert {row["t_typical_us"] for row in rows} == {1.91}


def run(arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        ib_latency.main()
    outcome: dict[str, Any] = json.loads(capsys.readouterr().out)
    return outcome


def test_module_stores_the_raw_outputs(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {
        "node": "n1",
        "peers": [{"name": "n1", "address": "127.0.0.2"}],
        "hcas": ["mlx5_0", "mlx5_1"],
        "control_port": control_port(),
        "evidence_dir": str(tmp_path / "evidence"),
    }
    outcome = run(arguments, capsys)
    assert (outcome["changed"], outcome["expected"], outcome["node"]) == (False, 1, "n1")
    file = tmp_path / "evidence" / "raw" / "ib_latency_sweep.json"
    stored = json.loads(file.read_text())
    assert file.stat().st_mode & 0o777 == 0o600
    assert any(
        item["command"].startswith("ib_write_lat") and "t_typical" in item["stdout"] for item in stored["evidence"]
    )


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"node": "n9"}, "'n9' is not one of peers (n1)"),
        ({"peers": [{"name": "n1", "address": "a"}, {"name": "n1", "address": "b"}]}, "n1 named twice"),
        ({"hcas": []}, "hcas: empty"),
        ({"hcas": ["mlx5_0", "mlx5_0"]}, "names an HCA twice"),
        ({"control_port": 80}, "control_port: 80"),
        ({"pings": 0}, "pings: 0"),
        ({"retest_pings": 0}, "retest_pings: 0"),
        ({"budget": -1}, "budget: -1"),
    ],
)
def test_wrong_input_is_refused(change: dict[str, Any], part: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"node": "n1", "peers": [{"name": "n1", "address": "127.0.0.2"}], "hcas": ["mlx5_0"], **change}
    outcome = run(arguments, capsys)
    assert outcome["failed"]
    assert part in outcome["msg"]


def test_port_in_use_names_the_port(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port = control_port()
    arguments = {
        "node": "n1",
        "peers": [{"name": "n1", "address": "127.0.0.2"}, {"name": "n2", "address": "127.0.0.3"}],
        "hcas": ["mlx5_0"],
        "control_port": port,
    }
    with socket.create_server(("127.0.0.2", port)):
        assert f"TCP port {port}: Address already in use" in run(arguments, capsys)["msg"]


@pytest.mark.parametrize(
    ("name", "extra", "verdict", "check"),
    [
        ("perftest-4.5-ib_write_lat.txt", {"profile": "hgx_h100_8"}, "pass", "ib_latency.latency"),
        ("perftest-4.5-ib_write_lat.txt", {"profile": "article"}, "fail", "ib_latency.latency"),
        ("perftest-4.5-ib_write_lat.txt", {"max_latency_us": 1.9}, "fail", "ib_latency.latency"),
        ("perftest-4.5-ib_write_lat.txt", {}, "unknown", "ib_latency.latency"),
        ("infiniband-diags-44.0-ibping-lossy.txt", {"profile": "hgx_h100_8"}, "fail", "ib_latency.loss"),
        ("infiniband-diags-44.0-ibping-lossy.txt", {"max_loss_percent": 1.0}, "pass", "ib_latency.loss"),
        ("infiniband-diags-44.0-ibstat-mixed.txt", {"profile": "hgx_h100_8"}, "unknown", "ib_latency.latency"),
        ("no-such-file", {"profile": "hgx_h100_8"}, "unknown", "ib_latency.latency"),
        ("perftest-4.5-ib_read_lat.txt", {"profile": "hgx_h100_8"}, "pass", "ib_latency.latency"),
        ("perftest-4.5-ib_read_lat.txt", {"max_latency_us": 2.5}, "fail", "ib_latency.latency"),
        ("perftest-4.5-ib_send_lat-roce.txt", {"profile": "hgx_h100_8"}, "pass", "ib_latency.latency"),
        ("perftest-4.5-ib_write_lat-duration.txt", {"profile": "hgx_h100_8"}, "unknown", "ib_latency.latency"),
        ("perftest-24.10-ib_write_bw-ndr.txt", {"profile": "hgx_h100_8"}, "unknown", "ib_latency.latency"),
    ],
)
def test_captured_output_is_judged(
    name: str, extra: dict[str, Any], verdict: str, check: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run({"captured": str(FIXTURES / name), "enforce": False, **extra}, capsys)
    assert (outcome["gate"], outcome["verdict"]) == ("ib_latency", verdict)
    assert outcome["checks"][0]["check"] == check


def test_unknown_profile_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    outcome = run({"captured": "x", "profile": "h100"}, capsys)
    assert "'h100' is not known" in outcome["msg"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("max_latency_us", "nan", "Option max_latency_us: nan. Give microseconds above 0."),
        ("max_latency_us", "inf", "Option max_latency_us: inf. Give microseconds above 0."),
        ("max_latency_us", 0, "Option max_latency_us: 0.0. Give microseconds above 0."),
        ("max_loss_percent", "nan", "Option max_loss_percent: nan. Give percent from 0 to below 100."),
        ("max_loss_percent", -1, "Option max_loss_percent: -1.0. Give percent from 0 to below 100."),
    ],
)
def test_limit_that_is_none_is_refused(
    option: str, value: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = run({"captured": str(FIXTURES / "perftest-4.5-ib_write_lat.txt"), option: value}, capsys)
    assert (outcome["failed"], outcome["msg"]) == (True, message)


def test_row_followed_by_a_failure_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "lat.txt"
    file.write_text((FIXTURES / "perftest-4.5-ib_write_lat.txt").read_text() + " Completion with error at client\n")
    outcome = run({"captured": str(file), "profile": "hgx_h100_8", "enforce": False}, capsys)
    assert [(c["check"], c["verdict"], c["reason"]) for c in outcome["checks"]] == [
        ("ib_latency.latency", "fail", "Completion with error at client")
    ]


def test_captured_numbers_are_returned(capsys: pytest.CaptureFixture[str]) -> None:
    path = FIXTURES / "perftest-4.5-ib_read_lat.txt"
    [reading] = run({"captured": str(path), "profile": "hgx_h100_8"}, capsys)["readings"]
    assert (reading["verb"], reading["what"], reading["device"], reading["link"]) == ("read", "latency", "mlx5_1", "IB")
    assert (reading["t_typical_us"], reading["p99_us"], reading["t_max_us"], reading["iterations"]) == (
        3.42,
        4.02,
        18.44,
        1000,
    )


def test_ping_without_an_answer_has_no_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ibping.txt"
    file.write_text(
        "\n---  (Lid 9) ibping statistics ---\n10 packets transmitted, 0 received, 100% packet loss, time 10999 ms\n"
        "rtt min/avg/max = 0.000/0.000/0.000 ms\n"
    )
    outcome = run({"captured": str(file), "profile": "hgx_h100_8", "enforce": False}, capsys)
    assert [(c["check"], c["verdict"], c["value"]) for c in outcome["checks"]] == [("ib_latency.loss", "fail", 100.0)]
    assert outcome["readings"][0]["received"] == 0
    assert not [key for key in outcome["readings"][0] if "rtt" in key or "time" in key]


def test_each_run_of_a_file_is_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "all.txt"
    read = FIXTURES / "perftest-4.5-ib_read_lat.txt"
    slow = read.read_text().replace("3.42", "9.42").replace("4.02", "10.02")
    file.write_text((FIXTURES / "perftest-4.5-ib_write_lat.txt").read_text() + slow)
    outcome = run({"captured": str(file), "profile": "hgx_h100_8", "enforce": False}, capsys)
    assert outcome["verdict"] in ("fail", "unknown")
    assert [r["device"] for r in outcome["readings"]] == ["mlx5_0", "mlx5_1"]
    assert outcome["checks"][0]["subject"] == "all.txt run 1 mlx5_0"

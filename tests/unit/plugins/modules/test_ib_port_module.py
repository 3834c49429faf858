# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gate ib_port on stand-in tools and captures: its counters, the baseline, and what a single file shows."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import ib_port

from tests.unit.module_runner import runner

FIXTURES = Path(__file__).parents[2] / "fixtures"
IBSTAT = FIXTURES / "infiniband-diags-44.0-ibstat-8xndr.txt"
SYSFS = (FIXTURES / "mlx5-6.1-sysfs-counters-8xndr.txt").read_text()
HCAS = [f"mlx5_{i}" for i in range(8)]
Run = Callable[..., dict[str, Any]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(ib_port, capsys)


def found(result: dict[str, Any]) -> list[tuple[str, str, str, Any]]:
    return [
        (c["check"].partition(".")[2], c["subject"], c["verdict"], c["value"])
        for c in result["checks"]
        if c["verdict"] != "pass"
    ]


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Return a support bundle of a healthy node."""
    directory = tmp_path / "bundle"
    directory.mkdir()
    (directory / "ibstat.txt").write_text(IBSTAT.read_text())
    (directory / "sysfs-counters.txt").write_text(SYSFS)
    return directory


def counter(hca: str, name: str, value: int) -> str:
    line = f"/sys/class/infiniband/{hca}/ports/1/counters/{name}:"
    assert f"{line}0\n" in SYSFS
    return SYSFS.replace(f"{line}0\n", f"{line}{value}\n")


def test_a_healthy_bundle_passes_with_its_counters(run: Run, bundle: Path) -> None:
    result = run(captured=str(bundle), hcas=HCAS, profile="hgx_h100_8")
    assert (result["verdict"], len(result["checks"])) == ("pass", 8 * (5 + 9))
    assert result["counters"]["mlx5_3"]["SymbolErrorCounter"] == 0
    assert result["fleet"]["versions"] == {"ib_port.firmware": "28.39.1002"}


def test_symbol_errors_and_a_link_that_went_down_are_caught(run: Run, bundle: Path) -> None:
    (bundle / "sysfs-counters.txt").write_text(counter("mlx5_1", "symbol_error", 5000))
    result = run(captured=str(bundle), hcas=HCAS, rate=400, enforce=False)
    assert found(result) == [("symbol_errors", "mlx5_1", "fail", 5000)]
    (bundle / "sysfs-counters.txt").write_text(counter("mlx5_1", "link_downed", 3))
    result = run(captured=str(bundle), hcas=HCAS, rate=400, enforce=False)
    assert found(result) == [("link_downed", "mlx5_1", "fail", 3)]
    assert run(captured=str(bundle), hcas=HCAS, rate=400, counter_limit=5)["verdict"] == "warn"
    (check,) = [c for c in result["checks"] if c["verdict"] == "fail"]
    assert "perfquery -C HCA -P PORT -R" in check["remedy"]
    assert "option counter_limit, counter_limits for this counter alone" in check["remedy"]


@pytest.mark.parametrize(("single", "every", "verdict"), [(4, None, "warn"), ("4", 0, "warn"), (2, 9, "fail")])
def test_a_limit_of_one_counter_leaves_the_others_alone(
    run: Any, bundle: Path, single: int | str, every: int | None, verdict: str
) -> None:
    options = {"counter_limits": {"LinkDownedCounter": single}}
    if every is not None:
        options["counter_limit"] = every
    args = {"captured": str(bundle), "hcas": HCAS, "rate": 400, **options}
    (bundle / "sysfs-counters.txt").write_text(counter("mlx5_1", "link_downed", 3))
    result = run(**args)
    assert found(result) == [("link_downed", "mlx5_1", verdict, 3)]
    (check,) = [c for c in result["checks"] if c["verdict"] == verdict]
    assert (check["limit"], check["limit_source"]) == (int(single), "option counter_limits")
    (bundle / "sysfs-counters.txt").write_text(counter("mlx5_1", "symbol_error", 11))
    result = run(**args)
    assert found(result) == [("symbol_errors", "mlx5_1", "fail" if every != 20 else "warn", 11)]


@pytest.mark.parametrize("limits", [{"LinkDowned": 3}, {"LinkDownedCounter": -1}, {"LinkDownedCounter": "many"}])
def test_limits_of_unknown_counters_are_refused(run: Any, bundle: Path, limits: dict[str, Any]) -> None:
    result = run(captured=str(bundle), hcas=HCAS, rate=400, counter_limits=limits)
    assert result["failed"]
    assert "counter_limits" in result["msg"]


def test_a_bundle_without_counters_is_unknown_unless_they_are_not_wanted(run: Run, bundle: Path) -> None:
    (bundle / "sysfs-counters.txt").unlink()
    result = run(captured=str(bundle), hcas=HCAS, rate=400, enforce=False)
    assert {(n, v) for n, _s, v, _value in found(result)} == {("counters", "unknown")}
    assert run(captured=str(bundle), hcas=HCAS, rate=400, counters=False)["verdict"] == "pass"


def test_perfquery_of_a_port_is_told_by_its_lid(run: Run, bundle: Path) -> None:
    (bundle / "sysfs-counters.txt").unlink()
    text = (FIXTURES / "infiniband-diags-44.0-perfquery.txt").read_text()
    (bundle / "perfquery.txt").write_text(text.replace("Lid 3", "Lid 2") + text)
    assert run(captured=str(bundle), hcas=["mlx5_0", "mlx5_1"], rate=400)["verdict"] == "pass"
    result = run(captured=str(bundle), hcas=["mlx5_2"], rate=400, enforce=False)
    assert found(result) == [("counters", "mlx5_2", "unknown", None)]


def test_errors_that_come_while_it_looks_are_seen(run: Run, bundle: Path) -> None:
    (bundle / "sysfs-counters-2.txt").write_text(counter("mlx5_6", "symbol_error", 4))
    result = run(captured=str(bundle), hcas=HCAS, rate=400, enforce=False)
    assert found(result) == [("symbol_errors", "mlx5_6", "fail", 4)]
    assert "grew by 4 in 1 s" in result["summary"]


def test_an_earlier_run_is_the_baseline(run: Run, bundle: Path, tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    run(captured=str(bundle), hcas=HCAS, rate=400, evidence_dir=str(evidence))
    (bundle / "sysfs-counters.txt").write_text(counter("mlx5_2", "port_rcv_errors", 9))
    args = {"captured": str(bundle), "hcas": HCAS, "rate": 400, "before": str(evidence / "ib_port.json")}
    assert "nobody knows how long ago" in run(**args, enforce=False)["summary"]
    result = run(**args, elapsed=3600, enforce=False)
    assert found(result) == [("rcv_errors", "mlx5_2", "fail", 9)]
    assert run(**args, elapsed=7200)["verdict"] == "pass"
    stored = json.loads((evidence / "ib_port.json").read_text())
    stored["counters"]["mlx5_2"]["PortRcvErrors"] = 700
    (tmp_path / "reset.json").write_text(json.dumps(stored))
    result = run(**{**args, "before": str(tmp_path / "reset.json")}, elapsed=3600, enforce=False)
    assert ("counters", "mlx5_2", "unknown", None) in found(result)
    (tmp_path / "no.json").write_text("{}")
    assert (
        "there are no counters in it" in run(**{**args, "before": str(tmp_path / "no.json")}, enforce=False)["summary"]
    )


def test_two_captures_of_perfquery(run: Run, tmp_path: Path) -> None:
    text = (FIXTURES / "infiniband-diags-44.0-perfquery.txt").read_text()
    (tmp_path / "before.txt").write_text(text)
    (tmp_path / "after.txt").write_text(text.replace("LinkDownedCounter:...............0", "LinkDownedCounter:....1"))
    args = {"captured": str(tmp_path / "after.txt"), "rate": 400, "enforce": False}
    assert found(run(**args)) == [("link_downed", "lid 3 port 1", "warn", 1)]
    result = run(**args, before=str(tmp_path / "before.txt"), elapsed=86400)
    assert found(result) == [("link_downed", "lid 3 port 1", "fail", 1)]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put stand-in tools first on PATH: a node whose kernel shows no counters, so perfquery is asked."""
    tools = tmp_path / "bin"
    tools.mkdir()
    write(tools, "ibstat", f"cat {IBSTAT}")
    write(tools, "sh", "exit 2")
    perfquery = FIXTURES / "infiniband-diags-44.0-perfquery.txt"
    write(tools, "perfquery", f'sed "s/Lid 3/Lid $((${{2#mlx5_}} + 2))/" {perfquery}')
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    return tools


def write(tools: Path, name: str, body: str) -> None:
    (tools / name).write_text(f"#!/bin/bash\n{body}\n")
    (tools / name).chmod(0o755)


def test_a_live_node_without_the_kernels_files_is_asked_by_perfquery(run: Run, live: Path) -> None:
    result = run(hcas=HCAS, rate=400)
    assert result["verdict"] == "pass"
    assert [e["command"].split()[0] for e in result["evidence"]] == ["ibstat", "sh", *["perfquery"] * 8]


def test_the_kernels_files_are_read_twice(run: Run, live: Path, tmp_path: Path) -> None:
    for name, text in (("first", SYSFS), ("second", counter("mlx5_4", "link_error_recovery", 2))):
        (tmp_path / name).write_text(text)
    write(live, "sh", f'case "$2" in sleep*) cat {tmp_path}/second;; *) cat {tmp_path}/first;; esac')
    result = run(hcas=HCAS, rate=400, evidence_dir=str(tmp_path / "e"), enforce=False)
    assert found(result) == [("link_error_recovery", "mlx5_4", "fail", 2)]
    again = run(hcas=HCAS, rate=400, captured=str(tmp_path / "e/ib_port.json"), enforce=False)
    assert again["checks"] == result["checks"]
    assert run(hcas=HCAS, rate=400, interval=0)["verdict"] == "pass"


def test_a_live_run_needs_to_know_what_must_be_there(run: Run, live: Path) -> None:
    assert run(rate=400)["msg"].startswith("hcas: a live run needs the devices")
    assert run(rate=400, ports=8)["verdict"] == "pass"
    result = run(rate=400, ports=9, enforce=False)
    assert found(result) == [("count", "ibstat", "fail", 8)]


def test_perfquery_that_fails_is_unknown(run: Run, live: Path) -> None:
    write(live, "perfquery", "echo 'ibwarn: [7] mad_rpc_open_port: client_register for mgmt 1 failed' >&2; exit 255")
    result = run(hcas=HCAS, rate=400)
    assert result["failed"]
    assert {(n, v) for n, _s, v, _value in found(result)} == {("counters", "unknown")}
    assert "client_register for mgmt 1 failed" in result["msg"]


def test_ports_of_the_wrong_link_layer_fail_before_any_tool_crashes(run: Run, live: Path, tmp_path: Path) -> None:
    (tmp_path / "eth.txt").write_text(IBSTAT.read_text().replace("layer: InfiniBand", "layer: Ethernet"))
    result = run(captured=str(tmp_path / "eth.txt"), rate=400, enforce=False)
    assert {(n, v, value) for n, _s, v, value in found(result)} == {("link_layer", "fail", "Ethernet")}
    write(live, "ibstat", f"cat {tmp_path / 'eth.txt'}")
    write(live, "perfquery", "exit 255")
    assert ("link_layer", "mlx5_0", "fail", "Ethernet") in found(run(hcas=HCAS, rate=400, enforce=False))


def test_ibstatus_and_devinfo_are_judged_like_ibstat(run: Run) -> None:
    status = str(FIXTURES / "infiniband-diags-44.0-ibstatus-4xndr-1eth.txt")
    result = run(captured=status, ports=4, rate=400)
    assert (result["verdict"], len(result["checks"])) == ("pass", 1 + 4 * 5)
    assert found(run(captured=status, hcas=["mlx5_4"], rate=400, enforce=False)) == [
        ("link_layer", "mlx5_4", "fail", "Ethernet")
    ]
    devinfo = str(FIXTURES / "rdma-core-44.0-ibv_devinfo-v-2xndr.txt")
    assert run(captured=devinfo, ports=2, rate=400, firmware="28.39.1002")["verdict"] == "pass"


def test_a_port_that_is_down_is_not_asked_for_counters(run: Run, bundle: Path) -> None:
    text = IBSTAT.read_text().replace("State: Active", "State: Down", 1).replace("LinkUp", "Polling", 1)
    (bundle / "ibstat.txt").write_text(text)
    result = run(captured=str(bundle), hcas=HCAS, rate=400, enforce=False)
    assert found(result) == [("physical_state", "mlx5_0", "fail", "Polling"), ("state", "mlx5_0", "fail", "Down")]


def test_old_forms_of_the_rate(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(IBSTAT.read_text().replace("Rate: 400", "Rate: 40 (FDR10)"))
    assert run(captured=str(tmp_path / "x"), rate=40)["verdict"] == "pass"


def test_a_port_without_cable_fails_for_that_reason(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x").write_text(IBSTAT.read_text().replace("Rate: 400", "Rate: 0", 1))
    result = run(captured=str(tmp_path / "x"), rate=400, enforce=False)
    assert found(result) == [("rate", "mlx5_0", "fail", 0)]
    assert "no cable" in result["summary"]


def test_ibqueryerrors_in_a_bundle_is_judged_too(run: Run, bundle: Path) -> None:
    (bundle / "ibqueryerrors.txt").write_text((FIXTURES / "infiniband-diags-44.0-ibqueryerrors-clean.txt").read_text())
    (bundle / "ibqueryerrors.txt.stderr").write_text("ibwarn: [1] mad_rpc: _do_madrpc failed; dport (Lid 12)\n")
    result = run(captured=str(bundle), hcas=HCAS, rate=400)
    assert [(n, v) for n, _s, v, _value in found(result)] == [("fabric_path", "warn")]


def test_stored_evidence_of_a_live_run_gives_the_same_checks(run: Run, live: Path, tmp_path: Path) -> None:
    first = run(hcas=HCAS, rate=400, evidence_dir=str(tmp_path / "e"))
    again = run(hcas=HCAS, rate=400, captured=str(tmp_path / "e/ib_port.json"))
    assert (again["verdict"], again["checks"]) == ("pass", first["checks"])

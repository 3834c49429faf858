# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bandwidth: stored output of every layout, and a sweep of nodes that are threads on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._bandwidth import BandwidthLimits
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_matrix import Rules
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_run import Sweep
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_verdict import judge
from ansible_collections.ai_infra.gpu_rack.plugins.modules import ib_bandwidth

from tests.unit.sweep_nodes import control_port, options, stand_ins, together

FIXTURES = Path(__file__).parents[2] / "fixtures"
RULES = Rules(bandwidth=BandwidthLimits.of("hgx_h100_8", None, None))


def run(arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        ib_bandwidth.main()
    outcome: dict[str, Any] = json.loads(capsys.readouterr().out)
    return outcome


def judged(name: str, capsys: pytest.CaptureFixture[str], **extra: Any) -> dict[str, Any]:
    return run({"captured": str(FIXTURES / name), "enforce": False, **extra}, capsys)


@pytest.mark.parametrize(
    ("name", "extra", "verdict", "value", "limit"),
    [
        ("perftest-24.10-ib_write_bw-ndr.txt", {"profile": "hgx_h100_8"}, "pass", 392.05, 380.0),
        ("perftest-24.10-ib_write_bw.json", {"profile": "hgx_h100_8"}, "pass", 392.05, 380.0),
        ("perftest-24.10-ib_write_bw-ndr-1qp.txt", {"profile": "hgx_h100_8"}, "fail", 370.44, 380.0),
        ("perftest-24.10-ib_write_bw-all-sizes.txt", {"profile": "hgx_h100_8"}, "pass", 391.52, 380.0),
        ("perftest-24.10-ib_write_bw-bidirectional.txt", {"profile": "hgx_h100_8"}, "pass", 781.02, 760.0),
        ("perftest-24.10-ib_write_bw-bidirectional.txt", {"min_gbps": 391}, "fail", 781.02, 782.0),
        ("perftest-3.0-ib_write_bw-hdr.txt", {"rate_gbps": 200}, "pass", 195.46, 180.0),
        ("perftest-3.0-ib_write_bw-hdr.txt", {"profile": "hgx_h100_8"}, "fail", 195.46, 380.0),
        ("perftest-24.10-ib_write_bw-duration-roce.txt", {"rate_gbps": 100}, "pass", 92.4, 90.0),
        ("perftest-24.10-ib_write_bw-duration-roce.txt", {"rate_gbps": 100, "min_gbps": 95}, "fail", 92.4, 95.0),
        ("perftest-24.10-ib_write_bw-ndr.txt", {}, "unknown", 392.05, None),
        ("perftest-24.10-ib_write_bw-status12.txt", {"profile": "hgx_h100_8"}, "fail", None, 380.0),
        ("perftest-4.5-ib_write_lat.txt", {"profile": "hgx_h100_8"}, "unknown", None, None),
        ("infiniband-diags-44.0-ibstat-mixed.txt", {"profile": "hgx_h100_8"}, "unknown", None, 380.0),
        ("no-such-file", {"profile": "hgx_h100_8"}, "unknown", None, None),
    ],
)
def test_captured_output_is_judged(
    name: str,
    extra: dict[str, Any],
    verdict: str,
    value: float | None,
    limit: float | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    outcome = judged(name, capsys, **extra)
    assert (outcome["gate"], outcome["verdict"]) == ("ib_bandwidth", verdict)
    [check] = outcome["checks"]
    assert (check["check"], check["value"], check["limit"]) == ("ib_bandwidth.bandwidth", value, limit)


def test_numbers_of_a_run_are_returned_in_gbps(capsys: pytest.CaptureFixture[str]) -> None:
    [reading] = judged("perftest-3.0-ib_write_bw-hdr.txt", capsys, min_gbps=190)["readings"]
    assert (reading["average_gbps"], reading["peak_gbps"], reading["message_rate_mpps"]) == (
        195.4648,
        195.7071,
        0.37282,
    )
    assert (reading["size"], reading["iterations"], reading["qps"], reading["verb"]) == (65536, 5000, 1, "write")
    [reading] = judged("perftest-24.10-ib_write_bw-duration-roce.txt", capsys, min_gbps=90)["readings"]
    assert (reading["average_gbps"], reading["peak_gbps"], reading["link"]) == (92.4036, None, "Ethernet")


def test_weak_probe_asks_for_a_better_one(capsys: pytest.CaptureFixture[str]) -> None:
    [check] = judged("perftest-24.10-ib_write_bw-ndr-1qp.txt", capsys, profile="hgx_h100_8")["checks"]
    assert "-s 1048576 -q 4" in check["remedy"]
    assert check["reason"] == "average of RDMA write, 65536 bytes a message, 1 queue pairs"


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("min_gbps", 0, "Option min_gbps: 0.0. Give Gb/s above 0."),
        ("min_gbps", "nan", "Option min_gbps: nan. Give Gb/s above 0."),
        ("rate_gbps", "inf", "Option rate_gbps: inf. Give Gb/s above 0."),
        ("profile", "h100", "Option profile: board profile: 'h100' is not known."),
    ],
)
def test_limit_that_is_none_is_refused(
    option: str, value: Any, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = judged("perftest-24.10-ib_write_bw-ndr.txt", capsys, **{option: value})
    assert outcome["failed"]
    assert outcome["msg"].startswith(message)


TOOLS = {
    "ibstat": """
for i in 0 1; do
  printf "CA 'mlx5_%s'\\n\\tPort 1:\\n\\t\\tState: Active\\n\\t\\tPhysical state: LinkUp\\n" $i
  printf "\\t\\tPort GUID: 0x000000000000000%s\\n\\t\\tLink layer: InfiniBand\\n" $i
done
""",
    "smpquery": 'echo "NodeType:...Switch"; echo "Guid:...0x00000000000000aa"',
    # Between two nodes the server prints nothing that counts. The address of a slow node is in the state directory.
    "ib_write_bw": """
exec PYTHON - "$@" <<'END'
import os, socket, sys
args = sys.argv[1:]
port, hca = int(args[args.index("-p") + 1]), args[args.index("-d") + 1]
if args[-1] == "--report_gbits":
    with socket.create_server(("", port)) as listener:
        listener.settimeout(20)
        listener.accept()[0].close()
    sys.exit(0)
socket.create_connection((args[-1], port), 5).close()
text = open("FIXTURE").read()
slow = os.environ["STATE"] + "/slow-" + hca
if os.path.exists(slow):
    text = text.replace("392.05", "196.03").replace("392.18", "196.10").replace("0.046736", "0.023369")
print(text)
END
""",
}


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return stand_ins(TOOLS, FIXTURES / "perftest-24.10-ib_write_bw-ndr.txt", tmp_path, monkeypatch)


def sweep(names: list[str], present: list[str] | None = None, **extra: Any) -> dict[str, Sweep]:
    """Run the sweep on the present nodes at the same time; the results are in each one's `results`."""
    sweeps: dict[str, Sweep] = {}
    extra.setdefault("control_port", control_port())

    def one(name: str) -> None:
        sweeps[name] = ib_bandwidth.sweep_of(options(ib_bandwidth.ARGUMENTS, name, names, **extra), [], RULES)
        sweeps[name].run(share=True)

    together(present or names, one)
    return sweeps


def test_every_node_has_the_results_of_all(state: Path) -> None:
    sweeps = sweep(["n1", "n2", "n3", "n4"])
    for name, one in sweeps.items():
        assert sorted(result["node"] for result in one.results) == ["n1", "n2", "n3", "n4"]
        rows = [row for result in one.results for row in result["pairs"] if row["client"] == result["node"]]
        # One partner each: two pairs of nodes, two rails.
        assert len(rows) == 4
        assert {row["bw_gbps"] for row in rows} == {392.05}
        assert all("-s 1048576 -q 4 -n 5000 -F --report_gbits" in row["command"] for row in rows)
        outcome = judge(name, one.results, RULES)
        assert {check.verdict for check in outcome.checks} == {"pass"}


def test_node_whose_partner_is_away_gets_another_one(state: Path) -> None:
    sweeps = sweep(["n1", "n2", "n3", "n4"], present=["n1", "n2", "n3"], meet_timeout=3.0)
    for name, one in sweeps.items():
        assert {check.verdict for check in judge(name, one.results, RULES).checks} == {"pass"}


def test_node_that_meets_nobody_is_unknown(state: Path) -> None:
    sweeps = sweep(["n1", "n2"], present=["n2"], meet_timeout=1.0)
    checks = judge("n2", sweeps["n2"].results, RULES).checks
    [coverage] = [check for check in checks if check.check == "ib_bandwidth.coverage"]
    assert coverage.verdict == "unknown"
    assert coverage.reason.startswith("met none of its partners: n1 did not take part")


def test_slow_rail_is_measured_again(state: Path) -> None:
    (state / "slow-mlx5_1").touch()
    sweeps = sweep(["n1", "n2"])
    kinds = {(row["kind"], row["client"], row["server"]) for row in sweeps["n1"].results[0]["pairs"]}
    assert kinds == {("pair", "n2", "n1"), ("retest", "n2", "n1"), ("retest", "n1", "n1")}
    outcome = judge("n1", sweeps["n1"].results, RULES)
    assert any(check.verdict == "fail" and check.value == 196.03 for check in outcome.checks)


def test_node_alone_is_a_warning(state: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {
        "node": "n1",
        "peers": [{"name": "n1", "address": "127.0.0.2"}],
        "hcas": ["mlx5_0", "mlx5_1"],
        "control_port": control_port(),
        "profile": "hgx_h100_8",
        "evidence_dir": str(tmp_path / "evidence"),
    }
    outcome = run(arguments, capsys)
    assert outcome["verdict"] == "warn"
    assert [row["kind"] for row in outcome["pairs"]] == ["self"]
    values = {check["check"]: check["value"] for check in outcome["checks"]}
    assert values["ib_bandwidth.bandwidth"] == 392.05
    assert values["ib_bandwidth.coverage"] == "2 of 2 usable rails, within the node"
    assert json.loads((tmp_path / "evidence" / "ib_bandwidth.json").read_text())["gate"] == "ib_bandwidth"
    stored = tmp_path / "evidence" / "raw" / "ib_bandwidth_sweep.json"
    again = run({"node": "n1", "captured": str(stored), "profile": "hgx_h100_8"}, capsys)
    assert [(c["check"], c["verdict"]) for c in again["checks"]] == [
        (c["check"], c["verdict"]) for c in outcome["checks"]
    ]


def test_tool_that_is_missing_is_unknown(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (state.parent / "bin" / "ib_write_bw").unlink()
    arguments = {
        "node": "n1",
        "peers": [{"name": "n1", "address": "127.0.0.2"}],
        "hcas": ["mlx5_0", "mlx5_1"],
        "control_port": control_port(),
        "profile": "hgx_h100_8",
        "enforce": False,
    }
    assert run(arguments, capsys)["verdict"] == "unknown"


def test_wrong_input_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = {"node": "n1", "peers": [{"name": "n1", "address": "a"}], "hcas": ["mlx5_0"], "queue_pairs": 0}
    assert run(arguments, capsys)["msg"] == "Option queue_pairs: 0. Give at least 1."

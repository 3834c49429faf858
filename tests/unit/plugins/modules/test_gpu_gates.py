# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The modules gpu_health and nvlink_status as Ansible runs them: one file, a bundle, live tools, earlier readings."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.modules import gpu_driver, gpu_health, nvlink_status, nvlink_topology

FIXTURES = Path(__file__).parents[2] / "fixtures"
Q590 = FIXTURES / "nvidia-smi-590.48.01-q-hgx8.txt"
STATUS = FIXTURES / "nvidia-smi-580.95.05-nvlink-s-hgx8.txt"
ERRORS = FIXTURES / "nvidia-smi-580.95.05-nvlink-e-hgx8.txt"
CSV = FIXTURES / "nvidia-smi-580.95.05-query-gpu-health-hgx8.csv"
NOHEADER = FIXTURES / "nvidia-smi-525.85.12-query-gpu-health-hgx8-noheader.csv"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a module in this process and return what it printed, with its exit status as `status`."""

    def call(module: Any, **args: Any) -> dict[str, Any]:
        board = {} if module is gpu_driver else {"profile": "hgx_h100_8"}
        given = {**board, **args, "_ansible_check_mode": False}
        with patch_module_args(given), pytest.raises(SystemExit) as ended:
            module.main()
        printed: dict[str, Any] = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
        return {**printed, "status": ended.value.code}

    return call


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    place = tmp_path / "bundle"
    place.mkdir()
    shutil.copy(Q590, place / "nvidia-smi-q.txt")
    shutil.copy(STATUS, place / "nvidia-smi-nvlink-s.txt")
    shutil.copy(ERRORS, place / "nvidia-smi-nvlink-e.txt")
    return place


@pytest.fixture
def smi(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put an nvidia-smi on PATH that prints the bundle's files; the file `rc` beside them is its exit status."""
    tools = tmp_path / "bin"
    tools.mkdir()
    script = f"""#!/bin/sh
case "$*" in
  -q) cat {bundle}/nvidia-smi-q.txt ;;
  "nvlink -s") cat {bundle}/nvidia-smi-nvlink-s.txt ;;
  "nvlink -e") cat {bundle}/nvidia-smi-nvlink-e.txt ;;
  *) exit 2 ;;
esac
[ ! -f {bundle}/rc ] || exit "$(cat {bundle}/rc)"
"""
    (tools / "nvidia-smi").write_text(script)
    (tools / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return bundle


def wrong(got: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(c["check"], c["subject"], c["verdict"]) for c in got["checks"] if c["verdict"] != "pass"]


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_health_of_one_file_a_bundle_and_a_live_node(run: Any, smi: Path) -> None:
    for where in ({"captured": str(Q590)}, {"captured": str(smi)}, {}):
        got = run(gpu_health, **where)
        assert (got["status"], got["verdict"], got["driver"], got["attached"]) == (0, "pass", "590.48.01", 8)
        assert got["gpus"][7]["vbios"] == "96.00.99.00.01"
        assert got["fleet"]["versions"]["gpu_health.driver"] == "590.48.01"


def test_health_of_csv_with_and_without_header(run: Any) -> None:
    columns = CSV.read_text().splitlines()[0].split(", ")
    assert run(gpu_health, captured=str(CSV))["verdict"] == "pass"
    assert run(gpu_health, captured=str(NOHEADER), columns=columns)["verdict"] == "pass"
    got = run(gpu_health, captured=str(NOHEADER))
    assert (got["status"], got["verdict"]) == (1, "unknown")
    assert "no csv with a header" in got["msg"]


def test_a_bundle_with_one_section_only_is_unknown(run: Any, bundle: Path) -> None:
    rows = Q590.read_text().splitlines(keepends=True)
    path = bundle / "nvidia-smi-q.txt"
    path.write_text(
        "".join(r for r in rows if r.startswith(("GPU", "Att", "Dri", "    MIG", "        Curr", "    ECC M")))
    )
    assert run(gpu_health, captured=str(bundle), enforce=False)["verdict"] == "unknown"
    assert run(gpu_health, captured=str(path), enforce=False)["verdict"] != "pass"


def test_a_lost_gpu_fails_with_the_others_judged_whatever_the_status(run: Any, smi: Path) -> None:
    text = Q590.read_text()
    cut = text.index("GPU 00000000:DF:00.0")
    lost = (
        "Unable to determine the device handle for GPU7: 0000:DF:00.0: GPU is lost.  Reboot the system to recover it\n"
    )
    (smi / "nvidia-smi-q.txt").write_text(text[:cut] + lost)
    (smi / "rc").write_text("15")
    got = run(gpu_health)
    assert (got["status"], got["verdict"]) == (1, "fail")
    assert wrong(got) == [("gpu_health.gpus", "GPU 0000:DF:00.0", "fail"), ("gpu_health.gpus", "node", "fail")]
    assert len(got["gpus"]) == 7


@pytest.mark.parametrize(
    ("text", "rc", "reason"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch\n", "18", "a reboot is needed"),
        ("Failed to initialize NVML: Driver/library version mismatch\n", "0", "a reboot is needed"),
        (
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
            "0",
            "couldn't communicate",
        ),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "9", "status 9"),
        ("No devices were found\n", "0", "No devices were found"),
        ("Unable to determine the device handle for GPU 0000:BA:00.0: Unknown Error\n", "0", "Unknown Error"),
        ("", "0", "empty"),
    ],
)
@pytest.mark.parametrize("module", [gpu_health, nvlink_status])
def test_an_error_text_is_unknown_whatever_the_status(
    run: Any, smi: Path, module: Any, text: str, rc: str, reason: str
) -> None:
    for name in ("nvidia-smi-q.txt", "nvidia-smi-nvlink-s.txt", "nvidia-smi-nvlink-e.txt"):
        (smi / name).write_text(text)
    (smi / "rc").write_text(rc)
    got = run(module)
    assert (got["status"], got["verdict"]) == (1, "unknown")
    assert any(reason in c["reason"] for c in got["checks"]) or module is nvlink_status
    assert run(module, captured=str(smi / "nvidia-smi-q.txt"))["verdict"] == "unknown"


def test_no_tool_is_unknown(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for module in (gpu_health, nvlink_status):
        assert run(module)["verdict"] == "unknown"


def test_health_before_and_after_a_burn_in(run: Any, smi: Path, tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    assert run(gpu_health, evidence_dir=str(evidence))["verdict"] == "pass"
    before = str(evidence / "gpu_health.json")
    assert run(gpu_health, before=before)["verdict"] == "pass"
    edit(smi / "nvidia-smi-q.txt", "Uncorrectable Error                            : 0", "Uncorrectable Error : 1")
    got = run(gpu_health, before=before)
    assert wrong(got) == [("gpu_health.growth", "GPU 0 00000000:1B:00.0", "fail")]
    assert run(gpu_health, before=str(Q590))["verdict"] == "fail"
    assert wrong(run(gpu_health, before=str(tmp_path / "none.json"))) == [("gpu_health.growth", "node", "unknown")]


def test_nvlink_of_a_bundle_and_live(run: Any, smi: Path) -> None:
    for where in ({"captured": str(smi)}, {}):
        got = run(nvlink_status, **where)
        assert (got["status"], got["verdict"]) == (0, "pass")
        assert {c["check"] for c in got["checks"]} == {
            f"nvlink_status.{n}"
            for n in ("gpus", "links", "speed", "errors", "fabric_state", "fabric_health", "fabric_clique")
        }
        assert got["fleet"]["values"] == {"nvlink_status.speed": {"value": 26.562, "unit": "GB/s", "better": "higher"}}
        assert got["gpus"][3]["fabric_state"] == "Completed"


@pytest.mark.parametrize("gone", ["nvidia-smi-nvlink-s.txt", "nvidia-smi-nvlink-e.txt", "nvidia-smi-q.txt"])
def test_a_bundle_without_one_of_the_readings_is_unknown(run: Any, bundle: Path, gone: str) -> None:
    (bundle / gone).unlink()
    got = run(nvlink_status, captured=str(bundle))
    assert (got["status"], got["verdict"]) == (1, "unknown")


def test_one_file_is_judged_by_what_is_in_it(run: Any, tmp_path: Path) -> None:
    def facts(path: Path, **args: Any) -> set[str]:
        got = run(nvlink_status, captured=str(path), **args)
        assert got["verdict"] == "pass"
        return {c["check"].removeprefix("nvlink_status.") for c in got["checks"]}

    assert facts(STATUS) == {"gpus", "links", "speed"}
    assert facts(ERRORS) == {"gpus", "errors"}
    assert facts(Q590) == {"fabric_state", "fabric_health", "fabric_clique"}
    both = tmp_path / "both.txt"
    both.write_text(STATUS.read_text() + ERRORS.read_text())
    assert facts(both) == {"gpus", "links", "speed", "errors"}
    assert facts(FIXTURES / "nvidia-smi-535.129.03-nvlink-s-pcie2.txt", profile="h100_pcie", gpus=2) == {
        *("gpus", "links", "speed")
    }
    assert facts(FIXTURES / "nvidia-smi-565.57.01-q-nvl2.txt", profile="h100_nvl") == {"fabric_state"}


@pytest.mark.parametrize("content", ["", "no links here\n", "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"])
def test_a_file_about_something_else_is_unknown(run: Any, tmp_path: Path, content: str) -> None:
    path = tmp_path / "file.txt"
    path.write_text(content)
    assert run(nvlink_status, captured=str(path))["verdict"] == "unknown"
    assert run(gpu_health, captured=str(path))["verdict"] == "unknown"


def test_counters_that_grew_name_the_link(run: Any, smi: Path, tmp_path: Path) -> None:
    evidence = tmp_path / "evidence"
    assert run(nvlink_status, evidence_dir=str(evidence))["verdict"] == "pass"
    edit(smi / "nvidia-smi-nvlink-e.txt", "Link 5: CRC Errors: 0", "Link 5: CRC Errors: 2")
    got = run(nvlink_status, before=str(evidence / "nvlink_status.json"))
    assert ("nvlink_status.growth", "GPU 0 link 5", "fail") in wrong(got)
    assert wrong(run(nvlink_status, before=str(tmp_path / "none"), captured=str(ERRORS))) == [
        ("nvlink_status.growth", "node", "unknown")
    ]


def test_stored_evidence_is_judged_again_with_the_same_result(run: Any, smi: Path, tmp_path: Path) -> None:
    for module in (gpu_health, nvlink_status):
        name = module.__name__.rpartition(".")[2]
        first = run(module, evidence_dir=str(tmp_path))
        again = run(module, captured=str(tmp_path / f"{name}.json"))
        assert (again["verdict"], again["checks"]) == (first["verdict"], first["checks"])


@pytest.mark.parametrize(
    ("module", "option", "value"),
    [
        (gpu_health, "gpus", 0),
        (gpu_health, "temperature", float("nan")),
        (gpu_health, "remapped_rows", -1),
        (nvlink_status, "links", -1),
        (nvlink_status, "link_speed", float("inf")),
        (nvlink_status, "crc_flit", 0),
    ],
)
def test_numbers_no_gate_can_judge_with_are_refused(run: Any, module: Any, option: str, value: Any) -> None:
    got = run(module, captured=str(Q590), **{option: value})
    assert got["status"] == 1
    assert got["msg"].startswith(f"{option}: ")


def test_the_driver_gate_reads_the_same_report(run: Any) -> None:
    got = run(gpu_driver, captured=str(Q590), version="590.48.01", fabric_manager=False)
    assert got["verdict"] == "pass"


@pytest.mark.parametrize("hcas", [["mlx5_0", "mlx5_0"], [f"mlx5_{i // 2}" for i in range(8)]])
def test_an_hca_that_is_named_twice_is_a_wrong_option(run: Any, hcas: list[str]) -> None:
    topo = FIXTURES / "nvidia-smi-580-topo-formG-hgx8.txt"
    got = run(nvlink_topology, captured=str(topo), hcas=hcas)
    assert got["status"] == 1
    assert got["msg"] == "hcas: 'mlx5_0' is there twice. Name each rail's HCA once."
    assert "checks" not in got


def test_fabric_blocks_without_their_report(run: Any, tmp_path: Path) -> None:
    block = (
        "    Fabric\n        State                             : {}\n        Status                            : {}\n"
    )
    path = tmp_path / "fabric.txt"

    def verdict(*states: tuple[str, str]) -> str:
        path.write_text("--\n".join(block.format(*state) for state in states))
        return str(run(nvlink_status, captured=str(path))["verdict"])

    good, bad = ("Completed", "Success"), ("In Progress", "N/A")
    assert verdict(*[good] * 8) == "pass"
    assert verdict(*[good] * 7, bad) == "fail"
    assert verdict(good) == "unknown"
    assert verdict(bad) == "fail"


def test_a_list_of_gpus_is_counted(run: Any, tmp_path: Path) -> None:
    lines = [f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{i}-1111-2222-3333-444444444444)\n" for i in range(8)]
    path = tmp_path / "nvidia-smi-L.txt"
    path.write_text("".join(lines))
    assert run(gpu_health, captured=str(path))["verdict"] == "pass"
    path.write_text("".join(lines[:7]))
    assert wrong(run(gpu_health, captured=str(path))) == [("gpu_health.gpus", "node", "fail")]
    path.write_text("".join([*lines, "  MIG 1g.10gb     Device  0: (UUID: MIG-6f7a)\n"]))
    assert ("gpu_health.mig", "GPU 7", "fail") in wrong(run(gpu_health, captured=str(path)))

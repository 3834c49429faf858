# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What people were bitten by in `nvidia-smi topo -m`, one test each: the form of the text, and the verdict it deserves.

The layouts of a matrix are in test_nvidia_topo.py, single changed cells in test_topology.py; these are whole outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _nvidia_topo as topo
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, worst
from ansible_collections.ai_infra.gpu_rack.plugins.modules import nvlink_topology

FIXTURES = Path(__file__).parents[2] / "fixtures"
FORM_G = (FIXTURES / "nvidia-smi-580-topo-formG-hgx8.txt").read_text()
FORM_F = (FIXTURES / "nvidia-smi-570-topo-formF-hgx8.txt").read_text()
LEGEND = "\nLegend:\n\n  X    = Self\n  SYS  = Connection traversing PCIe\n  NV#  = Connection traversing NVLinks\n"


def judge(text: str, board: str = "hgx_h100_8", gpus: int | None = None, hcas: list[str] | None = None) -> list[Check]:
    return nvlink_topology.judge(text, board, gpus, hcas or [])[0]


def wrong(checks: list[Check]) -> set[tuple[str, str]]:
    return {(c.check.removeprefix("nvlink_topology."), c.verdict) for c in checks if c.verdict != "pass"}


def matrix(
    count: int,
    cell: Callable[[int, int], str],
    numa: Callable[[int], str] = lambda i: str(i // 4),
    nics: int = 0,
    legend: str = LEGEND,
    gpu_numa: str = "N/A",
) -> str:
    """Return a matrix of form F. Each GPU is PIX from the NIC of its number."""
    names = [f"GPU{i}" for i in range(count)] + [f"NIC{i}" for i in range(nics)]
    lines = ["\t" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])]
    for i in range(count):
        cells = [" X " if i == j else cell(i, j) for j in range(count)]
        cells += ["PIX" if i == j else "SYS" for j in range(nics)]
        lines.append("\t".join([f"GPU{i}", *cells, "0-31", numa(i), "", gpu_numa]))
    for i in range(nics):
        cells = ["PIX" if i == j else "SYS" for j in range(count)]
        lines.append("\t".join([f"NIC{i}", *cells, *(" X " if i == j else "SYS" for j in range(nics)), "", "", "", ""]))
    return "\n".join(lines) + "\n" + legend


def full(_i: int, _j: int) -> str:
    return "NV18"


def pairs(width: int) -> Callable[[int, int], str]:
    return lambda i, j: f"NV{width}" if i // 2 == j // 2 else "SYS"


# --- the form of the text


def test_escapes_also_without_their_first_byte_and_the_column_gpu_numa_id_is_no_gpu() -> None:
    assert topo.parse(FORM_G.replace("\x1b", "")).gpus == tuple(f"GPU{i}" for i in range(8))
    assert wrong(judge(FORM_G)) == set()


def test_sixteen_gpus_and_ten_nics_in_rows_of_over_200_columns() -> None:
    text = matrix(16, full, lambda i: str(i // 8), nics=10)
    assert max(len(line.expandtabs()) for line in text.splitlines()) > 200
    found = topo.parse(text)
    assert (len(found.gpus), len(found.nics), found.problems) == (16, 10, ())
    assert wrong(judge(text)) == {("gpus", "fail"), ("numa", "unknown")}
    assert [c.value for c in judge(text) if c.check == "nvlink_topology.matrix"] == ["240 cells NV18"]


def test_nic_columns_out_of_order_and_bonds() -> None:
    text = matrix(2, full, nics=3).replace("NIC0", "mlx5_10").replace("NIC1", "mlx5_bond_0").replace("NIC2", "mlx4_0")
    found = topo.parse(text)
    assert (found.nics, found.problems) == (("mlx5_10", "mlx5_bond_0", "mlx4_0"), ())
    assert found.cells[("GPU1", "mlx5_bond_0")] == "PIX"


@pytest.mark.parametrize("numa", ["0-1", "0,5-11", "8", "0-3"])
def test_a_numa_cell_that_is_no_single_number_is_kept_as_it_is(numa: str) -> None:
    found = topo.parse(matrix(2, full, lambda _i: numa, gpu_numa="1"))
    assert (found.affinity["GPU0"], found.problems) == (topo.Affinity("0-31", numa, "1"), ())


def test_no_legend_is_no_reason_to_doubt_whole_rows() -> None:
    assert wrong(judge(FORM_F.split("\nLegend")[0])) == set()
    hcas = [f"mlx5_{i}" for i in range(8)]
    assert wrong(judge(FORM_F.split("\nNIC Legend")[0], hcas=hcas)) == {("nic_affinity", "unknown")}


def test_rows_that_were_flowed_anew_are_unknown() -> None:
    flowed = FORM_F.replace("\tNV18\tPIX", "\nNV18\tPIX")
    assert flowed != FORM_F
    assert worst(c.verdict for c in judge(flowed)) == "unknown"


def test_pcie_paths_of_topo_mp_prove_nothing_about_nvlink() -> None:
    text = FORM_F.replace("NV18", "NODE")
    legend = "\n".join(line for line in text.splitlines() if "NV#" not in line)
    (check,) = judge(legend)
    assert (check.verdict, check.check) == ("unknown", "nvlink_topology.output")
    assert "topo -mp" in check.reason
    assert ("matrix", "fail") in wrong(judge(text))  # topo -m of a board that has lost all its links


@pytest.mark.parametrize(
    "text",
    [
        "Failed to initialize NVML: Driver/library version mismatch\n",
        "No devices were found\n",
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "Unable to determine the device handle for GPU 0000:1B:00.0: Unknown Error\n",
        "The -i command line argument must be used in conjunction with -n or -p.\n",
        "Option \"-m\" is not recognized. Please run 'nvidia-smi topo -h'.\n",
    ],
)
def test_errors_come_as_text_and_with_status_0(text: str) -> None:
    (check,) = judge(text)
    assert check.verdict == "unknown"
    assert text.strip()[:40] in check.reason


# --- the verdict


def test_a_bridge_in_partial_contact_shows_a_smaller_width() -> None:
    text = matrix(4, lambda i, j: ("NV3" if {i, j} == {0, 1} else "NV12") if i // 2 == j // 2 else "SYS")
    (bad,) = [c for c in judge(text, "h100_nvl", 4) if c.verdict == "fail"]
    assert (bad.subject, bad.value, bad.limit) == ("GPU0-GPU1", "NV3", "NV12")


def test_connected_is_not_fully_connected() -> None:
    ring = matrix(8, lambda i, j: "NV18" if (i - j) % 8 in (1, 7) else "NODE")
    assert wrong(judge(ring)) == {("matrix", "fail")}
    assert wrong(judge(matrix(8, pairs(18)))) == {("matrix", "fail")}


def test_a_gpu_whose_links_are_all_inactive_is_out_of_the_group() -> None:
    text = matrix(8, lambda i, j: "NODE" if 5 in (i, j) else "NV18")
    bad = [c.subject for c in judge(text) if c.verdict == "fail"]
    assert len(bad) == 7
    assert all("GPU5" in subject for subject in bad)


def test_a_guest_without_the_hosts_pcie_layout_is_unknown_for_pcie_and_still_needs_nvlink() -> None:
    hcas = [f"NIC{i}" for i in range(8)]
    guest = matrix(8, full, nics=8).replace("PIX", "PHB").replace("SYS\t", "PHB\t").replace("SYS\n", "PHB\n")
    assert wrong(judge(guest, hcas=hcas)) == {("nic_affinity", "unknown")}
    assert ("matrix", "fail") in wrong(judge(guest.replace("NV18", "PHB"), hcas=hcas))


def test_a_guest_whose_numa_nodes_are_not_the_boards_fails() -> None:
    assert wrong(judge(matrix(8, full, lambda i: str(i % 2)))) == {("numa", "fail")}


def test_one_numa_node_on_a_board_of_two_sockets_fails() -> None:
    assert wrong(judge((FIXTURES / "nvidia-smi-570-topo-formF-hgx8-numa-off.txt").read_text())) >= {("numa", "fail")}


def test_values_that_are_no_number_are_data_and_no_crash() -> None:
    assert wrong(judge(matrix(8, full, lambda _i: "N/A"))) == {("numa", "unknown")}
    assert wrong(judge(matrix(8, full, lambda i: "0-1" if i < 4 else "2-3"))) <= {("numa", "warn")}


@pytest.mark.parametrize(
    ("board", "cell", "gpus", "verdict"),
    [
        ("h100_pcie", lambda _i, _j: "SYS", 2, "pass"),
        ("h100_pcie", pairs(12), 4, "pass"),
        ("h100_nvl", pairs(12), 4, "pass"),
        ("h100_nvl", lambda _i, _j: "SYS", 4, "fail"),
        ("hgx_h100_4", lambda _i, _j: "NV6", 4, "pass"),
        ("hgx_h100_8", lambda _i, _j: "NV12", 8, "fail"),
    ],
)
def test_the_expected_width_belongs_to_the_board(
    board: str, cell: Callable[[int, int], str], gpus: int, verdict: str
) -> None:
    found = [c.verdict for c in judge(matrix(gpus, cell), board, gpus) if c.check == "nvlink_topology.matrix"]
    assert worst(found) == verdict


def test_a_lone_card_passes_where_bridges_are_optional() -> None:
    assert wrong(judge(matrix(1, full), "h100_pcie", 1)) == set()


def test_a_batch_job_that_hides_the_cpus_is_a_warning() -> None:
    assert wrong(judge((FIXTURES / "nvidia-smi-570-topo-formF-hgx8-cpuset.txt").read_text())) == {("numa", "warn")}


def test_a_host_with_six_numa_nodes_is_not_held_against_two() -> None:
    assert wrong(judge(matrix(8, full, lambda i: str([0, 0, 1, 1, 3, 3, 4, 5][i])))) == {("numa", "warn")}


def test_only_a_fresh_reading_counts() -> None:
    lost = matrix(8, lambda i, j: "NV17" if 3 in (i, j) else "NV18")
    assert {c.subject for c in judge(lost) if c.verdict == "fail"} == {
        *(f"GPU{i}-GPU3" for i in range(3)),
        *(f"GPU3-GPU{i}" for i in range(4, 8)),
    }

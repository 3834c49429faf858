# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the reader of `nvidia-smi topo -m`."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _nvidia_topo as topo
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"


def text(name: str) -> str:
    return (FIXTURES / name).read_bytes().decode()


FORM_F = text("nvidia-smi-570-topo-formF-hgx8.txt")
HGX8 = {
    "form C, CPU affinity only": "nvidia-smi-460-topo-formC-hgx8.txt",
    "form D, device names as columns": "nvidia-smi-470-topo-formD-hgx8.txt",
    "form E, NIC legend": "nvidia-smi-535-topo-formE-hgx8.txt",
    "form F, GPU NUMA ID": "nvidia-smi-570-topo-formF-hgx8.txt",
    "form G, escape sequences in the header": "nvidia-smi-580-topo-formG-hgx8.txt",
}


@pytest.mark.parametrize("name", HGX8.values(), ids=HGX8.keys())
def test_every_form_of_an_hgx8_reads_alike(name: str) -> None:
    found = topo.parse(text(name))
    assert found.problems == ()
    assert found.gpus == tuple(f"GPU{i}" for i in range(8))
    assert [found.nic_name(n) for n in found.nics] == [f"mlx5_{i}" for i in range(8)]
    assert found.cells[("GPU0", "GPU7")] == "NV18"
    assert found.cells[("GPU5", str(found.nic_column("mlx5_5")))] == "PIX"
    assert found.cells[("GPU5", str(found.nic_column("mlx5_1")))] == "SYS"
    assert found.affinity["GPU0"].cpu == "0-55,112-167"
    assert found.affinity["GPU7"].numa == (None if "formC" in name else "1")
    assert found.affinity["GPU7"].gpu_numa == ("N/A" if "F" in name or "G-" in name else None)


def test_form_a_reads_soc_as_sys() -> None:
    found = topo.parse(text("nvidia-smi-340-topo-formA.txt"))
    assert found.problems == ()
    assert found.cells[("GPU0", "GPU3")] == "SYS"
    assert found.affinity["GPU3"] == topo.Affinity(cpu="10-19,30-39")


def test_form_b_reads_nvlink_beside_soc() -> None:
    found = topo.parse(text("nvidia-smi-375-topo-formB.txt"))
    assert found.problems == ()
    assert (found.cells[("GPU0", "GPU1")], found.cells[("GPU0", "GPU3")]) == ("NV2", "SYS")
    assert found.nics == ("mlx5_0",)


def test_nic_number_and_device_number_differ() -> None:
    found = topo.parse(text("nvidia-smi-580-topo-formF-hgx8-offset.txt"))
    assert found.nic_column("mlx5_2") == "NIC0"
    assert found.nic_column("mlx5_0") is None


def test_blank_affinity_cells_stay_blank_and_shift_nothing() -> None:
    found = topo.parse(text("nvidia-smi-570-topo-formF-hgx8-cpuset.txt"))
    assert found.problems == ()
    assert found.affinity["GPU3"] == topo.Affinity(cpu="", numa="", gpu_numa="N/A")


AFFINITY = {
    "extra tab before N/A, form D": ("\t0-31\t\tN/A", 2, ["0-31", "N/A"]),
    "extra tab before N/A, form F": ("\t0-31\t0\t\tN/A", 3, ["0-31", "0", "N/A"]),
    "CPU blank, NUMA there": ("\t\t1\t\tN/A", 3, ["", "1", "N/A"]),
    "all blank": ("\t\t\t", 3, ["", "", ""]),
    "row ends early": ("\t0-31", 3, ["0-31", "", ""]),
    "Grace with a GPU NUMA id": ("\t0-71\t0,5-11\t5", 3, ["0-71", "0,5-11", "5"]),
    "NUMA as a range": ("\t0-31\t0-1\t\tN/A", 3, ["0-31", "0-1", "N/A"]),
    "tabs turned into spaces, full set": ("   0-31   0   N/A", 3, ["0-31", "0", "N/A"]),
}


def one_gpu(tail: str, columns: int) -> str:
    header = ["CPU Affinity", "NUMA Affinity", "GPU NUMA ID"][:columns]
    first = "GPU0\t X " if "\t" in tail else "GPU0     X "
    return "\tGPU0\t" + "\t".join(header) + f"\n{first}{tail}\n"


@pytest.mark.parametrize(("tail", "columns", "cells"), AFFINITY.values(), ids=AFFINITY.keys())
def test_affinity_cells(tail: str, columns: int, cells: list[str]) -> None:
    found = topo.parse(one_gpu(tail, columns))
    assert found.problems == ()
    assert found.affinity["GPU0"] == topo.Affinity(*cells)


UNCERTAIN = {
    "fewer values than columns, no tabs": ("   0-31   N/A", 3),
    "a word where a list belongs": ("\t0-31\tnode0\t\tN/A", 3),
    "one value too many": ("\t0-31\t0\t1\tN/A", 2),
    "mask instead of a list": ("\tffffffff\t0", 2),
}


@pytest.mark.parametrize(("tail", "columns"), UNCERTAIN.values(), ids=UNCERTAIN.keys())
def test_affinity_that_is_not_certain_is_a_problem_and_not_a_guess(tail: str, columns: int) -> None:
    found = topo.parse(one_gpu(tail, columns))
    assert [p.subject for p in found.problems] == ["GPU0 affinity"]
    assert "GPU0" not in found.affinity


def edit(old: str, new: str) -> str:
    assert old in FORM_F
    return FORM_F.replace(old, new, 1)


ROW0 = next(line for line in FORM_F.splitlines() if line.startswith("GPU0\t X "))
LAYOUTS = {
    "leading tab of the header lost": FORM_F.lstrip("\t"),
    "four spaces before each line": "".join(f"    {line}\n" for line in FORM_F.splitlines()),
    "four spaces and a tab before rows": FORM_F.replace("\nGPU", "\n    \tGPU"),
    "two spaces before the tab": FORM_F.replace("\nGPU", "\n  \tGPU"),
    "CRLF": FORM_F.replace("\n", "\r\n"),
    "blank lines between rows": FORM_F.replace("\nGPU", "\n\nGPU"),
    "quoted with >": "".join(f"> {line}\n" for line in FORM_F.splitlines()),
    "commented with #": "".join(f"# {line}\n" for line in FORM_F.splitlines()),
    "colour without the ESC byte": text("nvidia-smi-580-topo-formG-hgx8.txt").replace("\x1b", ""),
    "prompt before and after": "root@node1:~# nvidia-smi topo -m\n" + FORM_F + "root@node1:~#\n",
    "no legend": FORM_F.split("\nLegend")[0] + "\n\nNIC Legend:\n\n" + FORM_F.split("NIC Legend:\n\n")[1],
    "tabs and spaces mixed in one row": edit("GPU1\tNV18\t X \tNV18", "GPU1\tNV18     X    NV18"),
    "tabs turned into spaces": FORM_F.expandtabs(8).replace("N/A", "  N/A"),
    "tabs of the header turned into spaces": FORM_F.splitlines()[0].expandtabs(8) + "\n" + FORM_F.split("\n", 1)[1],
    "byte order mark": "\ufeff" + FORM_F,
}


@pytest.mark.parametrize("changed", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layout_damage_that_loses_nothing_is_read(changed: str) -> None:
    found = topo.parse(changed)
    assert found.problems == ()
    assert found == topo.parse(FORM_F)


def test_markdown_table_is_read() -> None:
    table = (
        "|      | GPU0 | GPU1 | CPU Affinity | NUMA Affinity |\n|---|---|---|---|---|\n"
        "| GPU0 | X | NV12 | 0-31 | 0 |\n| GPU1 | NV12 | X | 0-31 | 0 |\n"
    )
    found = topo.parse(table)
    assert found.problems == ()
    assert found.cells[("GPU1", "GPU0")] == "NV12"
    assert found.affinity["GPU1"] == topo.Affinity("0-31", "0")


BROKEN = {
    "cells glued at the wrap column": (edit("PIX\tNODE\tNODE\tNODE\tSYS", "PIXNODE\tNODE\tNODE\tSYS"), "GPU0"),
    "link and affinity glued": (edit("SYS\t0-55,112-167", "SYS0-55,112-167"), "GPU0"),
    "unknown token": (edit("GPU3\tNV18", "GPU3\tC2C"), "GPU3"),
    "peer-to-peer-like token in a NIC row": (edit("NIC0\tPIX", "NIC0\tPSB"), "NIC0"),
    "width zero": (edit("GPU3\tNV18", "GPU3\tNV0"), "GPU3"),
    "lower case": (edit("GPU3\tNV18", "GPU3\tnv18"), "GPU3"),
    "X off the diagonal": (edit("GPU3\tNV18", "GPU3\t X "), "GPU3"),
    "no X on the diagonal": (edit("GPU0\t X ", "GPU0\tNV18"), "GPU0"),
    "blank link cell": (edit("GPU3\tNV18", "GPU3\t"), "GPU3"),
    "row missing": (FORM_F.replace(ROW0 + "\n", ""), "GPU0"),
    "row twice": (FORM_F.replace(ROW0, ROW0 + "\n" + ROW0), "GPU0"),
    "output cut off in a row": (FORM_F[: FORM_F.index("GPU5\tNV18") + 30], "GPU5"),
    "row wrapped over two lines": (edit("GPU2\tNV18\tNV18", "GPU2\tNV18\nNV18"), "GPU2"),
    "error message above the matrix": (
        "Unable to determine the device handle for gpu 0000:1B:00.0\n" + FORM_F,
        "output",
    ),
    "error message below the rows": (edit("\nLegend:", "\nError: GPU is lost\n\nLegend:"), "output"),
}


@pytest.mark.parametrize(("changed", "subject"), BROKEN.values(), ids=BROKEN.keys())
def test_what_cannot_be_read_names_its_row_and_shows_its_line(changed: str, subject: str) -> None:
    found = topo.parse(changed)
    assert subject in {p.subject for p in found.problems}
    problem = next(p for p in found.problems if p.subject == subject)
    assert problem.line in changed
    assert str(problem).startswith(f"line {problem.number} cannot be read (")


GLUED = {
    "two links": edit("PIX\tNODE\tNODE\tNODE\tSYS", "PIXNODE\tNODE\tNODE\tSYS"),
    "link and affinity": edit("SYS\t0-55,112-167", "SYS0-55,112-167"),
    "overwritten": edit("PIX\tNODE\tNODE\tNODE\tSYS", "PH0-115\tNODE\tNODE\tSYS"),
}


@pytest.mark.parametrize("changed", GLUED.values(), ids=GLUED.keys())
def test_after_glued_cells_no_cell_of_the_row_is_trusted(changed: str) -> None:
    found, good = topo.parse(changed), topo.parse(FORM_F)
    row = {column: cell for (name, column), cell in found.cells.items() if name == "GPU0"}
    assert row.items() <= {c: cell for (name, c), cell in good.cells.items() if name == "GPU0"}.items()
    assert len([c for c in row if c.startswith("GPU")]) == 8
    assert "GPU0" not in found.affinity


REFUSED = {
    "empty": ("", "the output is empty"),
    "only blanks": (" \n\t\n", "the output is empty"),
    "driver not loaded": (
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n",
        "no topology matrix: NVIDIA-SMI has failed",
    ),
    "library mismatch": (
        "Failed to initialize NVML: Driver/library version mismatch\n",
        "no topology matrix: Failed to",
    ),
    "peer-to-peer matrix": (text("nvidia-smi-570-topo-p2p.txt"), "peer-to-peer matrix of topo -p2p"),
    "no header": (FORM_F.split("\n", 1)[1], "no header line"),
    "unknown column": (edit("GPU NUMA ID", "Clique ID"), "unknown column 'Clique ID'"),
    "unknown column after the known ones": (
        edit("GPU NUMA ID", "GPU NUMA ID\tClique ID"),
        "unknown column 'Clique ID'",
    ),
    "a device twice": (edit("\tGPU1\tGPU2", "\tGPU1\tGPU1"), "names a device twice"),
}


@pytest.mark.parametrize(("changed", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_text_that_is_no_matrix_is_refused_with_its_line(changed: str, reason: str) -> None:
    with pytest.raises(topo.TopoError, match=reason):
        topo.parse(changed)


SETS = {
    "range and single": ("0-3,8", {0, 1, 2, 3, 8}),
    "one": ("5", {5}),
    "list": ("6,14,22", {6, 14, 22}),
    "not a list": ("N/A", None),
    "blank": ("", None),
    "backwards": ("3-1", None),
    "absurd": ("0-999999", None),
}


@pytest.mark.parametrize(("given_text", "numbers"), SETS.values(), ids=SETS.keys())
def test_number_set(given_text: str, numbers: set[int] | None) -> None:
    assert topo.number_set(given_text) == numbers


@given(st.frozensets(st.integers(0, 999), min_size=1, max_size=40))
def test_format_set_is_the_inverse_of_number_set(numbers: frozenset[int]) -> None:
    assert topo.number_set(topo.format_set(numbers)) == numbers


_ALPHABET = st.sampled_from(
    [*"GPUNVXSY0189\t\n ,-/A|#>[m", "\x1b", "GPU0", "NV18", "\tGPU1", "CPU Affinity", "Legend", "é", "\x00"]
)


@given(st.one_of(st.text(max_size=300), st.lists(_ALPHABET, max_size=120).map("".join)))
def test_garbage_raises_only_the_typed_error(garbage: str) -> None:
    with contextlib.suppress(topo.TopoError):
        topo.parse(garbage)


@given(st.integers(0, len(FORM_F) - 1), st.integers(0, 40), st.text(max_size=6))
def test_a_damaged_matrix_never_reads_as_other_links_unnoticed(start: int, length: int, insert: str) -> None:
    damaged = FORM_F[:start] + insert + FORM_F[start + length :]
    good = topo.parse(FORM_F)
    try:
        found = topo.parse(damaged)
    except topo.TopoError:
        return
    if found.problems or found.devices != good.devices:
        return
    # Only a replaced token that is itself valid may differ without a problem.
    assert len(found.cells) == len(good.cells)
    assert set(found.cells.values()) <= {"X", *topo.PCIE_CLASSES} | {f"NV{i}" for i in range(1, 1000)}


FORM_G = text("nvidia-smi-580-topo-formG-hgx8.txt")


@pytest.mark.parametrize(
    ("after", "reasons"),
    [
        (FORM_G, {"a second matrix after the legend"}),
        ("Unable to determine the device handle for GPU 0000:3B:00.0\n", {"an error message beside the matrix"}),
        ("  NIC0: mlx5_7\n", {"a second name for NIC0"}),
        ("root@node1:~# \n", set()),
    ],
    ids=["a second matrix", "an error", "a name twice", "a prompt"],
)
def test_what_follows_the_legend_is_read_too(after: str, reasons: set[str]) -> None:
    assert {p.reason for p in topo.parse(FORM_G + "\n" + after).problems} == reasons


def test_the_peer_matrix_behind_the_legend_is_left_alone() -> None:
    text = (FIXTURES / "nvidia-smi-570-topo-formF-hgx8.txt").read_text()
    names = [f"GPU{i}" for i in range(8)]
    rows = "".join(f" {a}\t" + "\t".join("X" if a == b else "OK" for b in names) + "\n" for a in names)
    peers = " \t" + "\t".join(names) + f"\n{rows}\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n"
    assert topo.parse(text + "\n" + peers) == topo.parse(text)
    assert "a second matrix" in topo.parse(text + "\n" + text).problems[0].reason

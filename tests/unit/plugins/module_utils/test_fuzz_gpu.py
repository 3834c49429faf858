# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The readers of nvidia-smi on any text: nothing is raised, and no garbage and no cut-off report passes."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import (
    _gpu_health,
    _nvidia_topo,
    _nvlink_status,
    _smi_query,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import HGX_H100_8, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, worst
from ansible_collections.ai_infra.gpu_rack.plugins.modules import nvlink_status, nvlink_topology
from hypothesis import example, given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"


def read(name: str) -> str:
    return (FIXTURES / name).read_text()


Q590 = read("nvidia-smi-590.48.01-q-hgx8.txt")
Q535 = read("nvidia-smi-535.129.03-q-hgx4.txt")
XML = read("nvidia-smi-580.95.05-q-x-hgx4.xml")
CSV = read("nvidia-smi-580.95.05-query-gpu-health-hgx8.csv")
STATUS = read("nvidia-smi-580.95.05-nvlink-s-hgx8.txt")
ERRORS = read("nvidia-smi-580.95.05-nvlink-e-hgx8.txt")
NEW_ERRORS = read("nvidia-smi-595.58.03-nvlink-e-hgx2.txt")
TOPO = read("nvidia-smi-580-topo-formG-hgx8.txt")
# By name: hypothesis shows what it tried, and a report is long.
REPORTS = {
    "590": (Q590, "hgx_h100_8"),
    "535": (Q535, "hgx_h100_4"),
    "xml": (XML, "hgx_h100_4"),
    "csv": (CSV, "hgx_h100_8"),
}
LINKS = {"status": STATUS, "errors": ERRORS, "errors of 595": NEW_ERRORS}
KINDS = st.sampled_from(["delete", "duplicate", "swap", "digits"])
HGX8 = _nvlink_status.Limits(HGX_H100_8)


def health(text: str, board: str = "hgx_h100_8", whole: bool = True) -> list[Check]:
    return _gpu_health.judge(_smi_query.parse(text), _gpu_health.Limits(profile(board), whole=whole))


def nvlink(text: str) -> list[Check]:
    return nvlink_status.judge_file(text, HGX8)[0]


def verdict(checks: list[Check]) -> str:
    return worst(check.verdict for check in checks)


FORMATS = st.one_of(
    st.text(max_size=400),
    st.lists(
        st.sampled_from(
            [
                *(
                    "Attached GPUs : 8",
                    "GPU 00000000:1B:00.0",
                    "    ECC Errors",
                    "        Pending : No",
                    "<?xml",
                    "<!ENTITY",
                ),
                *(
                    "    Remapped Rows : N/A",
                    "index, name, pci.bus_id",
                    "0, a, b",
                    "GPU 0: x (UUID: y)",
                    "\t Link 0: 1 GB/s",
                ),
                *("\t Link 3: Replay Errors: 1", "<nvidia_smi_log>", "</nvidia_smi_log>", "<gpu id='1'>", "</gpu>"),
                "| NVIDIA-SMI 550.90.07   Driver Version: 550.90.07   CUDA Version: 12.4 |",
                *("|   0  NVIDIA H100 80GB HBM3   On  | 00000000:1B:00.0 Off |  0 |", "| Processes: |"),
                *("\tGPU0\tGPU1", "GPU0\t X \tNV18", "    Product Name : ERR!", "Legend:", ": ", "    : ", "\x00"),
            ]
        ),
        max_size=30,
    ).map("\n".join),
)


@given(FORMATS)
def test_garbage_raises_nothing_and_never_passes(text: str) -> None:
    for whole in (True, False):
        assert verdict(health(text, whole=whole)) in ("unknown", "fail")
    assert verdict(nvlink(text)) in ("unknown", "fail")
    assert verdict(nvlink_topology.judge(text, "hgx_h100_8", None, [])[0]) in ("unknown", "fail")
    nvlink_topology.judge(text, None, None, [])
    nvlink_topology.judge(text, None, None, ["mlx5_0"], 4)
    query = _smi_query.parse(text)
    _gpu_health.readings(query)
    _gpu_health.fleet(query)
    _gpu_health.judge(query, _gpu_health.Limits(None), query)
    nvlink_status.judge_file(text, _nvlink_status.Limits(None))
    _nvlink_status.readings(_nvlink_status.parse(text), None, query)


def mutated(text: str, kind: str, at: float, other: float) -> str:
    lines = text.splitlines(keepends=True)
    i, j = int(at * len(lines)) % len(lines), int(other * len(lines)) % len(lines)
    if kind == "delete":
        del lines[i]
    elif kind == "duplicate":
        lines.insert(i, lines[i])
    elif kind == "swap":
        lines[i], lines[j] = lines[j], lines[i]
    else:
        lines[i] = "".join(
            str((int(c) + 1 + int(other * 8)) % 10) if c.isascii() and c.isdigit() else c for c in lines[i]
        )
    return "".join(lines)


FRACTION = st.floats(0, 1, exclude_max=True)


@given(st.sampled_from(sorted(REPORTS)), KINDS, FRACTION, FRACTION)
def test_damaged_reports_raise_nothing(name: str, kind: str, at: float, other: float) -> None:
    text, board = REPORTS[name]
    changed = mutated(text, kind, at, other)
    health(changed, board)
    nvlink(changed)
    nvlink_topology.judge(changed, "hgx_h100_8", None, [])


@given(st.sampled_from(sorted(LINKS)), KINDS, FRACTION, FRACTION)
def test_damaged_links_raise_nothing(name: str, kind: str, at: float, other: float) -> None:
    changed = mutated(LINKS[name], kind, at, other)
    nvlink(changed)
    _smi_query.parse(changed)


# The last line of the last GPU that is judged: a cut before its end must not pass.
LAST = {"590": "        GPU Shutdown", "535": "        GPU Shutdown", "xml": "</nvidia_smi_log>"}


@given(st.sampled_from(sorted(LAST)), FRACTION)
@example("590", 0.99999).via("the limit of the last GPU's temperature is cut off")
def test_a_report_that_is_cut_off_passes_only_after_its_last_judged_line(name: str, at: float) -> None:
    text, board = REPORTS[name]
    end = text.rindex(LAST[name]) - 2  # without the unit of the last value
    assert verdict(health(text[: int(at * end)], board)) != "pass"


@given(st.integers(0, len(CSV) - len("Not Active\n")))
def test_a_csv_that_is_cut_off_never_passes(end: int) -> None:
    assert verdict(health(CSV[:end], whole=False)) != "pass"


@given(st.integers(0, len(STATUS) - 6))
def test_links_that_are_cut_off_never_pass(end: int) -> None:
    assert verdict(nvlink(STATUS[:end])) != "pass"


@given(st.integers(0, len(ERRORS.rstrip()) - 1))
def test_counters_that_are_cut_off_never_pass(end: int) -> None:
    assert verdict(nvlink(ERRORS[:end])) != "pass"


@pytest.mark.parametrize("end", range(0, len(TOPO), 7))
def test_a_matrix_that_is_cut_off_passes_only_when_all_its_rows_are_there(end: int) -> None:
    """The last row of a GPU ends with its NUMA node; what comes after the last link of a NIC's row is not judged."""
    cut = TOPO[:end]
    rows = [line.split("\t") for line in cut.splitlines()]
    names = {row[0] for row in rows if len(row) >= 17}
    whole = names >= {*(f"GPU{i}" for i in range(8)), *(f"NIC{i}" for i in range(8))}
    if not whole:
        assert verdict(nvlink_topology.judge(cut, "hgx_h100_8", None, [])[0]) != "pass"


def test_nested_deeper_than_python_may_call() -> None:
    deep = "<nvidia_smi_log><gpu>" + "<a>" * 5000 + "</a>" * 5000 + "</gpu></nvidia_smi_log>"
    assert verdict(health(deep)) == "unknown"
    assert isinstance(_nvidia_topo.shown(deep), str)

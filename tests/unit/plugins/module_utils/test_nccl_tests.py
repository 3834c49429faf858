# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The table of nccl-tests in its layouts, and its judgement."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _nccl_tests
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import PROFILES
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nccl_tests import Expect, Half, parse
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, worst

FIXTURES = Path(__file__).parents[2] / "fixtures"
ERROR = (FIXTURES / "nccl-tests-2.0-error-hgx8.txt").read_text()
WRONG = (FIXTURES / "nccl-tests-2.13-wrong-hgx8-4gpus.txt").read_text()
WIDE = (FIXTURES / "nccl-tests-2.17.9-wide-hgx8.txt").read_text()
PCIE = (FIXTURES / "nccl-tests-2.17.9-wide-pcie2.txt").read_text()
MPI = (FIXTURES / "nccl-tests-2.13-mpi-2nodes.txt").read_text()
FAILURE = (FIXTURES / "nccl-tests-2.13-failure.txt").read_text()
HGX8 = PROFILES["hgx_h100_8"]


def checks_of(text: str, rc: int | None = 0, error: str | None = None, **expect: Any) -> list[Check]:
    reading = Evidence("all_reduce_perf", rc, text, "", None, error)
    outcomes = _nccl_tests.judge(reading, "board", Expect(**{"board": HGX8, **expect}))
    return [check for outcome in outcomes for check in outcome.checks]


def judge(text: str, **options: Any) -> tuple[str, Check]:
    """Return the verdict and the first of the worst checks."""
    checks = checks_of(text, **options)
    verdict = worst(c.verdict for c in checks)
    return verdict, next(c for c in checks if c.verdict == verdict)


def last_row(text: str) -> str:
    return next(line for line in reversed(text.splitlines()) if "17179869184" in line or "8589934592 " in line)


LAYOUTS = {
    "error without root": (ERROR, 8, 17179869184, 475.48),
    "#wrong with root": (WRONG, 4, 8589934592, 368.0),
    "wide, with version": (WIDE, 8, 17179869184, 476.51),
    "mpi prefix, torn row": (MPI, 16, 17179869184, 464.98),
}


@pytest.mark.parametrize(("text", "gpus", "largest", "busbw"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_layouts(text: str, gpus: int, largest: int, busbw: float) -> None:
    (run,) = parse(text)
    assert (run.ranks, run.rows[-1].size, run.damage) == (gpus, largest, [])
    assert {d.product for d in run.devices} == {"NVIDIA H100 80GB HBM3"}
    (outcome,) = _nccl_tests.judge(Evidence("x", 0, text), "board", Expect(board=HGX8))
    assert outcome.measured["busbw"] == busbw
    assert worst(c.verdict for c in outcome.checks) == "pass"


def test_values_of_a_row() -> None:
    row = parse(WIDE)[0].rows[-1]
    assert (row.count, row.dtype, row.redop, row.root) == (4294967296, "float", "sum", -1)
    assert row.halves == (Half(62903.3, 273.12, 477.95, 0.0), Half(62838.7, 273.40, 478.44, 0.0))
    run = parse(WIDE)[0]
    assert (run.version, run.library, run.validation, run.max_bytes) == ("2.17.9", "22807", 1, 17179869184)
    assert parse(ERROR)[0].rows[0].root is None


def test_row_torn_by_messages_is_put_together() -> None:
    run = parse(MPI)[0]
    assert [row.size >> 30 for row in run.rows] == [1, 2, 4, 8, 16]
    assert run.rows[0].halves[0] == Half(4461.1, 240.69, 451.30, 0.0)
    assert run.hosts == ("node1", "node2")


PREFIXES = (
    "[1,0]<stdout>:",
    " 0: ",
    "[0] ",
    "x3005c0s13b0n0 0: ",
    "pod-0 | ",
    "2026-11-30T18:00:00.000Z ",
    "\x1b[0m",
    "\t",
)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_prefixes_do_not_matter(prefix: str) -> None:
    assert judge("".join(f"{prefix}{line}\n" for line in WIDE.splitlines()))[0] == "pass"


def test_labels_inside_a_row_do_not_matter() -> None:
    assert judge(WRONG.replace("      -1 ", "      -1[0] "))[0] == "pass"


def test_table_without_hash_signs() -> None:
    assert judge(ERROR.replace("#", ""))[0] == "pass"


def test_columns_of_each_iteration_and_timestamps() -> None:
    lines = []
    for line in WIDE.splitlines():
        if "algbw" in line:
            line = line.replace("#wrong", "#wrong  i_min  i_max  i_p99  i_cv%") + " timestamp"
        elif line.startswith(" "):
            first, second = line[:-33], line[-33:]
            line = f"{first}  100  200  300  0.10{second}  100  200  300  0.20  2026-11-30 18:00:00"
        lines.append(line)
    assert judge("\n".join(lines))[0] == "pass"


def test_busbw_is_held_against_the_floor_of_gpu_count_and_algorithm() -> None:
    check = next(c for c in checks_of(WIDE) if c.check == "nccl_bandwidth.busbw")
    assert (check.value, check.limit, check.unit) == (476.51, 460, "GB/s")
    assert check.limit_source == "board profile hgx_h100_8, 8 GPUs with NVLS"
    check = next(c for c in checks_of(WRONG) if c.check == "nccl_bandwidth.busbw")
    assert (check.value, check.limit) == (368.0, 351)


def ring(text: str = WIDE, factor: float = 0.77) -> str:
    """Return the output of a run that reaches a part; 77 % is what Ring reaches."""
    lines = []
    for line in text.splitlines():
        if line.startswith(" ") and "float" in line:
            words = line.split()
            for at in (5, 6, 7, 9, 10, 11):
                words[at] = f"{float(words[at]) * (1 / factor if at in (5, 9) else factor):.2f}"
            line = "  ".join(words)
        lines.append(line)
    return "\n".join(lines) + "\n"


def test_ring_on_an_nvswitch_board_is_a_fault_that_says_what_is_missing() -> None:
    verdict, check = judge(ring())
    assert (verdict, check.check, check.value) == ("fail", "nccl_bandwidth.busbw", 366.91)
    assert "NVLink SHARP is not at work" in check.reason
    assert "NCCL_NVLS_ENABLE" in check.remedy


def test_a_run_between_ring_and_nvls_is_no_run_of_ring() -> None:
    verdict, check = judge(ring(factor=0.92))
    assert (verdict, check.check, check.limit) == ("fail", "nccl_bandwidth.busbw", 460)
    assert "more than Ring reaches (365), so NVLink SHARP is at work and slow" in check.reason
    verdict, check = judge(ring(factor=0.6))
    assert (verdict, "Ring" in check.reason, "SHARP" in check.reason) == ("fail", False, False)


@pytest.mark.parametrize(
    ("product", "board"),
    [
        ("NVIDIA H100 80GB HBM3", "hgx_h100_8"),
        ("NVIDIA H100 NVL", "h100_nvl"),
        ("NVIDIA H100 PCIe", "h100_pcie"),
        ("Tesla V100-SXM2-16GB", None),
    ],
)
def test_the_board_of_the_rank_lines(product: str, board: str | None) -> None:
    found = _nccl_tests.board_of(WIDE.replace("NVIDIA H100 80GB HBM3", product))
    assert (found.name if found else None) == board
    mixed = WIDE.replace("NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", 1)
    assert _nccl_tests.board_of(mixed) is None
    assert _nccl_tests.board_of("") is None


ALGORITHMS = {
    "option": ("", {"algorithm": "ring"}),
    "environment in the log": ("node1:1:1 [0] NCCL INFO NCCL_ALGO set by environment to RING\n", {}),
    "command in the log": ("$ NCCL_ALGO=Ring ./all_reduce_perf -b 1G -e 16G -f 2 -g 8\n", {}),
    "for one collective": ("$ mpirun -x NCCL_ALGO=allreduce:ring all_reduce_perf\n", {}),
    "NVLS switched off": ("node1:1:1 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.\n", {}),
}


@pytest.mark.parametrize(("line", "options"), ALGORITHMS.values(), ids=ALGORITHMS.keys())
def test_ring_by_intent_has_its_own_floor(line: str, options: dict[str, Any]) -> None:
    checks = checks_of(line + ring(), **options)
    check = next(c for c in checks if c.check == "nccl_bandwidth.busbw")
    assert (check.verdict, check.limit) == ("pass", 347)
    assert worst(c.verdict for c in checks) == "pass"


def test_ring_by_nccls_own_choice_is_held_against_the_floor_of_nvls() -> None:
    line = "n:1:1 [0] NCCL INFO AllReduce: 17179869184 Bytes -> Algo 1 proto 2 time 91000.0\n"
    (outcome,) = _nccl_tests.judge(Evidence("x", 0, line + ring()), "board", Expect(board=HGX8))
    assert outcome.measured["algorithm"] == "Ring"
    assert worst(c.verdict for c in outcome.checks) == "fail"


def test_another_algorithm_than_the_one_asked_for_has_no_floor() -> None:
    assert judge("NCCL_ALGO=Ring\n" + ring(), algorithm="nvls")[0] == "unknown"
    assert judge("NCCL_ALGO=Tree\n" + WIDE)[0] == "unknown"


def test_explicit_floor_wins() -> None:
    assert judge(WIDE, min_busbw=500.0)[1].limit_source == "option min_busbw"
    assert judge(WIDE, min_busbw=500.0)[0] == "fail"
    assert judge(PCIE, min_busbw=100.0)[0] == "pass"


def test_no_floor_of_an_sxm_board_for_pcie_cards() -> None:
    verdict, check = judge(PCIE)
    assert (verdict, check.check) == ("unknown", "nccl_bandwidth.product")
    assert "'NVIDIA H100 PCIe'" in check.reason
    assert judge(PCIE, board=PROFILES["h100_pcie"])[0] == "pass"


def test_no_floor_no_verdict() -> None:
    assert judge(WIDE, board=None)[0] == "unknown"
    assert judge(WRONG, board=PROFILES["hgx_h100_4"])[0] == "pass"
    assert judge(WIDE, board=PROFILES["hgx_h100_4"])[0] == "unknown"


def test_size_below_8_gib_is_no_measurement() -> None:
    text = WRONG.replace("8589934592", "268435456").replace("2147483648", "67108864")
    verdict, check = judge(text)
    assert verdict == "unknown"
    assert "no row of 8589934592 B or more" in check.reason
    assert "the largest is 268435456 B" in check.reason


def test_algbw_is_not_busbw() -> None:
    assert judge(WIDE, min_busbw=275.0)[1].check != "nccl_bandwidth.output"
    swapped = WIDE.replace("273.12  477.95", "477.95  273.12")
    assert swapped != WIDE
    assert judge(swapped)[0] in ("fail", "unknown")


def test_lower_half_counts() -> None:
    cells = [*last_row(WRONG).split()[:9], "46000", "186.74", "280.11", "0"]
    verdict, check = judge(WRONG.replace(last_row(WRONG), " ".join(cells)))
    assert (verdict, check.value) == ("fail", 280.11)


CUTS = {
    "no average": "# Avg bus bandwidth",
    "no bounds": "# Out of bounds",
    "a large row": " 17179869184",
    "the other large row": "  8589934592",
    "one Rank line": "#  Rank  3",
    "all Rank lines": "#  Rank",
}


@pytest.mark.parametrize("start", CUTS.values(), ids=CUTS.keys())
def test_missing_lines_are_noticed(start: str) -> None:
    text = "".join(line for line in WIDE.splitlines(keepends=True) if not line.startswith(start))
    assert text != WIDE
    assert judge(text)[0] == "unknown"


def test_cut_off_anywhere_never_passes() -> None:
    for text in (ERROR, WRONG, WIDE, MPI):
        end = text.index("Avg bus bandwidth    : ") + len("Avg bus bandwidth    : ")
        for at in range(0, end + 1, 7):
            assert judge(text[:at])[0] not in ("pass", "warn"), at


def test_wrong_sums_fail_at_any_size() -> None:
    row = next(line for line in WIDE.splitlines() if line.startswith("  1073741824"))
    verdict, check = judge(WIDE.replace(row, row[:-1] + "2e+06"))
    assert (verdict, check.check, check.value) == ("fail", "nccl_bandwidth.correct", "2e+06")
    verdict, check = judge(WIDE.replace("values : 0 OK", "values : 3 FAILED"), rc=1)
    assert (verdict, check.value) == ("fail", "3 FAILED")
    assert judge(ERROR.replace("5e-07", "3e-01"))[0] == "fail"
    assert judge(ERROR.replace("5e-07", "  nan"))[0] == "fail"
    assert judge(ERROR.replace("5e-07", "9e-06"))[0] == "pass"


def unchecked(text: str) -> str:
    return text.replace("       0\n", "     N/A\n").replace("       0  ", "     N/A  ")


def test_unchecked_sums() -> None:
    told = unchecked(WIDE).replace("validation: 1", "validation: 0")
    verdict, check = judge(told)
    assert (verdict, check.check, check.value) == ("warn", "nccl_bandwidth.correct", "N/A")
    assert judge(told, checked=True)[0] == "unknown"
    assert judge(unchecked(WIDE))[0] == "unknown"


def test_two_nodes_are_judged_by_the_share_of_a_port() -> None:
    checks = checks_of(MPI)
    (check,) = [c for c in checks if c.check == "nccl_bandwidth.port_share"]
    assert (check.value, check.limit, check.verdict) == (58.12, 43.7, "pass")
    assert "over 2 nodes, divided by 8 ports" in check.reason
    assert judge(MPI, ports=12)[0] == "fail"
    assert judge(MPI, min_busbw=470.0)[0] == "fail"
    assert "nccl_bandwidth.busbw" not in [c.check for c in checks]


FAILURES = {
    "NCCL": ("node1: Test NCCL failure common.cu:1005 'unhandled system error'", "unknown"),
    "crash": ("mpirun noticed that process rank 3 exited on signal 11 (Segmentation fault).", "unknown"),
    "memory": ("node1: Test CUDA failure common.cu:1234 'out of memory'", "unknown"),
    "fabric": ("gpu: Test CUDA failure common.cu:1030 'system not yet initialized'", "fail"),
    "ECC": ("Cuda failure 'uncorrectable ECC error encountered'", "fail"),
    "GPUs": ("node1: Test CUDA failure common.cu:1025 'invalid device ordinal'", "fail"),
    "GPUs, new words": ("Invalid number of GPUs: 8 requested but only 7 were found.", "fail"),
}


@pytest.mark.parametrize(("line", "wanted"), FAILURES.values(), ids=FAILURES.keys())
def test_errors_are_named(line: str, wanted: str) -> None:
    for text in (WIDE + line + "\n", f"{line}\n"):
        for rc in (0, 2):
            verdict, check = judge(text, rc=rc)
            assert (verdict, check.check) == (wanted, "nccl_bandwidth.failure")
            assert line in check.reason or line == check.value


def test_messages_of_nccl_are_no_errors() -> None:
    line = "n:1:1 [0] NCCL INFO NET/Plugin: dlerror=libnccl-net.so: No such file or directory, internal error"
    assert judge(f"{line}\n{WIDE}")[0] == "pass"
    verdict, check = judge(WIDE + "# error: Missing iommu=pt on the kernel command line\n")
    assert (verdict, check.value) == ("warn", "Missing iommu=pt on the kernel command line")


def test_exit_status_and_deadline() -> None:
    assert judge(WIDE, rc=1)[0] == "unknown"
    verdict, check = judge(WIDE[:900], rc=None, error="still running after 300 s, killed")
    assert verdict == "unknown"
    assert "still running after 300 s" in check.reason
    assert judge("")[1].reason == "the output is empty"
    assert "'Hello'" in judge("Hello\n")[1].reason


def test_number_of_gpus() -> None:
    verdict, check = judge(WRONG, gpus=8, asked="inference unit")
    assert (verdict, check.check, check.value, check.limit) == ("fail", "nccl_bandwidth.gpus", 4, 8)


def test_table_without_its_head_needs_the_number_of_gpus() -> None:
    text = WIDE[WIDE.index("#       size") :]
    assert judge(text)[0] == "unknown"
    assert judge(text, gpus=8, stated=True)[0] == "pass"
    assert judge(text, min_busbw=450.0, stated=True)[0] == "pass"
    assert judge(text, gpus=8, stated=True, checked=True)[0] == "unknown"
    assert judge(text, gpus=7, stated=True)[0] == "unknown", "busbw is not that of 7 GPUs"
    # Whoever names the board: busbw is 1.75 times algbw, which is 8 GPUs.
    checks = checks_of(text, profiled=True)
    assert {(c.check, c.verdict, c.value) for c in checks} >= {
        ("nccl_bandwidth.gpus", "pass", 8),
        ("nccl_bandwidth.busbw", "pass", 476.51),
    }
    assert judge(text, profiled=True, gpus=4)[0] == "unknown"
    assert judge(text[text.index("8589934592    2147483648") :], profiled=True)[0] == "unknown", "no head of the table"
    lost = "".join(line for line in WIDE.splitlines(keepends=True) if "#  Rank" not in line)
    assert judge(lost, profiled=True)[0] == "unknown"


def test_table_of_several_nodes_without_its_head() -> None:
    text = re.sub(r"\[1,[0-9]+\]<stdout>:", "", MPI)
    text = "\n".join(line for line in text[text.index("#       size") :].splitlines() if "NCCL" not in line)
    text = re.sub(r" *1073741824.*\n", "", text) + "\n"
    checks = checks_of(text, profiled=True)
    (share,) = [c for c in checks if c.check == "nccl_bandwidth.port_share"]
    assert (share.verdict, "2 nodes, divided by 8 ports" in share.reason) == ("pass", True)


def test_a_rank_line_that_is_lost_shows_in_the_factor() -> None:
    lines = [line for line in MPI.splitlines(keepends=True) if "Rank 15" not in line]
    verdict, check = judge("".join(lines))
    assert (verdict, "for 15 GPUs" in check.reason) == ("unknown", True)


def test_ranks_that_ran_alone() -> None:
    text = MPI
    for rank in range(1, 16):
        text = text.replace(f"Rank {rank:2d} ", "Rank  0 ")
    verdict, check = judge(text)
    assert verdict == "unknown"
    assert "built without MPI" in check.reason


def test_ranks_that_share_a_gpu() -> None:
    text = WIDE.replace("device  1 [0000:43:00]", "device  0 [0000:1b:00]")
    assert "several ranks share a GPU" in judge(text)[1].reason
    bound = re.sub(r"device  \d ", "device  0 ", WIDE)
    assert judge(bound)[0] == "pass", "each rank sees only its own GPU"


def test_contradictory_numbers() -> None:
    for old, new in (("477.95", "977.95"), ("273.12", "173.12"), ("62903.3", "92903.3"), ("478.44", "0.00")):
        assert judge(WIDE.replace(old, new))[0] in ("unknown", "fail"), new
    assert "is not algbw x 2(n-1)/n for 8 GPUs" in judge(WIDE.replace("477.95", "977.95"))[1].reason


OTHERS = {
    "by name": WIDE.replace("all_reduce_perf", "all_gather_perf"),
    "no reduction": ERROR.replace("  sum ", " none "),
    "root": WRONG.replace(" -1 ", "  0 "),
    "elements": WRONG.replace("2147483648", "536870912"),
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS.keys())
def test_other_collectives_have_no_floor(text: str) -> None:
    assert judge(text)[0] == "unknown"


def test_all_reduce_is_picked_out_of_a_log_of_several_tests() -> None:
    other = WIDE.replace("all_reduce_perf", "broadcast_perf").replace("476.51", "300.00")
    assert judge(other + WIDE)[0] == "pass"
    outcomes = _nccl_tests.judge(Evidence("x", 0, WIDE + other + ring()), "captured", Expect(board=HGX8))
    assert [(o.measured["set"], worst(c.verdict for c in o.checks)) for o in outcomes] == [
        ("captured run 1", "pass"),
        ("captured run 2", "fail"),
    ]


def test_size_that_was_reduced_for_memory() -> None:
    line = next(line for line in WIDE.splitlines() if line.startswith(" 17179869184"))
    text = WIDE.replace(line + "\n", "").replace(
        "#\n#  ", "#\n# Reducing maxBytes to 9000000000 due to memory limitation\n#  ", 1
    )
    assert judge(text)[0] == "pass"


def test_own_minimum_of_the_test() -> None:
    average = next(line for line in WIDE.splitlines() if "Avg bus" in line)
    verdict, check = judge(WIDE.replace(average, average + "FAILED"), rc=1)
    assert (verdict, check.limit_source) == ("fail", "NCCL_TESTS_MIN_BW")


def test_checks_are_documented() -> None:
    names = {c.check for text in (WIDE, MPI, FAILURE, PCIE) for c in checks_of(text, gpus=8)}
    assert names <= set(_nccl_tests.CHECKS)

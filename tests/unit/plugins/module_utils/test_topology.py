# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the judgement of a topology and of the inference units derived from it."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _topology as judge
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import Topology, parse
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, worst
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
HGX8, HGX4, NVL, PCIE = (profile(n) for n in ("hgx_h100_8", "hgx_h100_4", "h100_nvl", "h100_pcie"))
HCAS = [f"mlx5_{i}" for i in range(8)]


def text(name: str) -> str:
    return (FIXTURES / name).read_text()


FORM_F = text("nvidia-smi-570-topo-formF-hgx8.txt")


def change(cells: dict[tuple[str, str], str], source: str = FORM_F) -> Topology:
    """Return the matrix with cells replaced in the text itself, so that the reader is tested too."""
    lines = source.split("\n")
    header = lines[0].strip("\t").split("\t")
    for (row, column), token in cells.items():
        index = next(i for i, line in enumerate(lines) if line.startswith(f"{row}\t"))
        parts = lines[index].split("\t")
        parts[1 + header.index(column)] = token
        lines[index] = "\t".join(parts)
    return parse("\n".join(lines))


def change_affinity(numa: dict[int, str], source: str = FORM_F) -> Topology:
    lines = source.split("\n")
    for gpu, value in numa.items():
        index = next(i for i, line in enumerate(lines) if line.startswith(f"GPU{gpu}\t"))
        parts = lines[index].split("\t")
        parts[18] = value
        lines[index] = "\t".join(parts)
    return parse("\n".join(lines))


def only(checks: list[Check], verdict: str) -> list[tuple[str, object]]:
    return [(c.subject, c.value) for c in checks if c.verdict == verdict]


def test_whole_hgx8_passes_with_one_check_for_56_cells() -> None:
    checks = judge.judge_matrix(parse(FORM_F), HGX8)
    assert [(c.verdict, c.value, c.limit) for c in checks] == [("pass", "56 cells NV18", "NV18 in every pair")]


PAIRS = list(itertools.permutations([f"GPU{i}" for i in range(8)], 2))


@pytest.mark.parametrize("token", ["NV17", "NV1", "SYS", "NV19"])
@pytest.mark.parametrize("pair", PAIRS, ids=["-".join(p) for p in PAIRS])
def test_each_of_56_cells_alone_flips_the_verdict_and_names_its_pair(pair: tuple[str, str], token: str) -> None:
    checks = judge.judge_matrix(change({pair: token}), HGX8)
    assert [(c.verdict, c.subject) for c in checks] == [("fail", "-".join(sorted(pair)))]
    assert "not symmetric" in checks[0].reason


@pytest.mark.parametrize(
    ("token", "reason"),
    [
        ("NV17", "1 of 18 links are missing"),
        ("SYS", "joined by SYS, not by NVLink"),
        ("NV24", "hgx_h100_8 is the wrong profile"),
    ],
)
def test_a_degraded_pair_says_what_is_wrong(token: str, reason: str) -> None:
    checks = judge.judge_matrix(change({("GPU0", "GPU2"): token, ("GPU2", "GPU0"): token}), HGX8)
    assert [(c.verdict, c.subject, c.value, c.limit) for c in checks] == [("fail", "GPU0-GPU2", token, "NV18")]
    assert reason in checks[0].reason


def test_an_unreadable_cell_is_unknown_and_not_a_pass() -> None:
    topology = change({("GPU0", "GPU2"): "C2C"})
    assert only(judge.judge_matrix(topology, HGX8), "unknown") == [("GPU0-GPU2", None)]
    output = judge.judge_output(topology)
    assert [c.subject for c in output] == ["GPU0"]
    assert "'C2C' under GPU2" in output[0].reason


def test_two_islands_of_four_fail_in_every_pair_between_them() -> None:
    between = {(f"GPU{a}", f"GPU{b}"): "SYS" for a in range(8) for b in range(8) if a // 4 != b // 4}
    assert len(only(judge.judge_matrix(change(between), HGX8), "fail")) == 16


def test_hgx4_is_nv6_and_an_hgx8_profile_refuses_it() -> None:
    topology = parse(text("nvidia-smi-550-topo-formF-hgx4.txt"))
    assert [c.value for c in judge.judge_matrix(topology, HGX4)] == ["12 cells NV6"]
    assert worst(c.verdict for c in judge.judge_matrix(topology, HGX8)) == "fail"
    assert judge.judge_count(topology, HGX8, None).verdict == "fail"


NVL4 = text("nvidia-smi-570-topo-formF-nvl4.txt")
NVL_CASES = {
    "whole": ({}, "pass", "all pairs"),
    "one bridge unseated": ({("GPU0", "GPU1"): "NV8", ("GPU1", "GPU0"): "NV8"}, "fail", "GPU0-GPU1"),
    "no bridge": ({("GPU0", "GPU1"): "NODE", ("GPU1", "GPU0"): "NODE"}, "fail", "GPU0"),
    "two partners": ({("GPU1", "GPU2"): "NV12", ("GPU2", "GPU1"): "NV12"}, "fail", "GPU1"),
    "one way only": ({("GPU0", "GPU1"): "NODE"}, "fail", "GPU0-GPU1"),
    "unreadable": ({("GPU0", "GPU1"): "??"}, "unknown", "GPU0-GPU1"),
}


@pytest.mark.parametrize(("cells", "verdict", "subject"), NVL_CASES.values(), ids=NVL_CASES.keys())
def test_bridged_pairs(cells: dict[tuple[str, str], str], verdict: str, subject: str) -> None:
    checks = judge.judge_matrix(change(cells, NVL4), NVL)
    assert worst(c.verdict for c in checks) == verdict
    assert subject in {c.subject for c in checks if c.verdict == verdict}


def test_pcie_cards_pass_without_bridges_and_warn_when_only_some_have_one() -> None:
    bare = parse(text("nvidia-smi-570-topo-formF-pcie4.txt"))
    assert [(c.verdict, c.value) for c in judge.judge_matrix(bare, PCIE)] == [("pass", "0 pairs NV12")]
    some = change({("GPU2", "GPU3"): "NODE", ("GPU3", "GPU2"): "NODE"}, NVL4)
    assert only(judge.judge_matrix(some, PCIE), "warn") == [("GPU2", "0 partners"), ("GPU3", "0 partners")]


def test_a_count_no_one_fixed_is_a_warning() -> None:
    topology = parse(NVL4)
    assert judge.judge_count(topology, NVL, None).verdict == "warn"
    assert judge.judge_count(topology, NVL, 4).verdict == "pass"
    assert judge.judge_count(topology, NVL, 8).verdict == "fail"


def lose_last_gpu() -> Topology:
    rows = [line for line in FORM_F.split("\n") if not line.startswith("GPU7\t")]
    kept = ["\t".join(p for i, p in enumerate(line.split("\t")) if i != 8) if "\t" in line else line for line in rows]
    return parse("\n".join(kept))


def test_seven_of_eight_gpus_fail_the_count_and_blame_no_rail_or_socket() -> None:
    topology = lose_last_gpu()
    assert topology.problems == ()
    assert judge.judge_count(topology, HGX8, None).value == 7
    assert [c.value for c in judge.judge_matrix(topology, HGX8)] == ["42 cells NV18"]
    assert [c.verdict for c in judge.judge_nics(topology, HGX8, HCAS)] == ["unknown"]
    assert [c.verdict for c in judge.judge_numa(topology, HGX8)] == ["unknown"]


def test_rails_pass_in_one_check() -> None:
    checks = judge.judge_nics(parse(FORM_F), HGX8, HCAS)
    assert [(c.verdict, c.value) for c in checks] == [("pass", "8 PIX")]


@pytest.mark.parametrize("gpu", range(8))
def test_each_rail_alone_flips_the_verdict(gpu: int) -> None:
    pair = (f"GPU{gpu}", f"NIC{gpu}")
    checks = judge.judge_nics(change({pair: "SYS", pair[::-1]: "SYS"}), HGX8, HCAS)
    assert only(checks, "fail") == [(f"GPU{gpu}-mlx5_{gpu}", "SYS")]


RAILS = {
    "two swapped": (["mlx5_1", "mlx5_0", *HCAS[2:]], "fail"),
    "an HCA that is not there": ([*HCAS[:7], "mlx5_9"], "fail"),
    "one HCA for two GPUs, near every other": (HCAS[::2], "fail"),
    "three HCAs for eight GPUs": (HCAS[:3], "unknown"),
}


@pytest.mark.parametrize(("hcas", "verdict"), RAILS.values(), ids=RAILS.keys())
def test_wrong_rails(hcas: list[str], verdict: str) -> None:
    assert worst(c.verdict for c in judge.judge_nics(parse(FORM_F), HGX8, hcas)) == verdict


def test_a_legend_that_lost_a_name_is_unknown() -> None:
    topology = parse(FORM_F.replace("  NIC3: mlx5_3\n", ""))
    assert only(judge.judge_nics(topology, HGX8, HCAS), "unknown") == [("GPU3-mlx5_3", None)]


def test_every_nic_phb_is_a_virtual_machine_and_unknown() -> None:
    cells = {(f"GPU{g}", f"NIC{n}"): "PHB" for g in range(8) for n in range(8)}
    checks = judge.judge_nics(change(cells | {(b, a): t for (a, b), t in cells.items()}), HGX8, HCAS)
    assert {c.verdict for c in checks} == {"unknown"}


NUMA = {
    "as the board is": ({}, "pass", "all GPUs"),
    "sockets numbered the other way": ({g: "1" if g < 4 else "0" for g in range(8)}, "pass", "all GPUs"),
    "one GPU on the other socket": ({2: "1"}, "fail", "GPU2"),
    "numa=off": (dict.fromkeys(range(8), "0"), "fail", "node"),
    "sub-NUMA clustering": ({2: "2", 3: "2", 6: "3", 7: "3"}, "warn", "GPU0-3"),
    "not known to the firmware": ({5: "N/A"}, "unknown", "GPU5"),
    "every GPU near both nodes": (dict.fromkeys(range(8), "0-1"), "fail", "GPU0"),
    "blank on one row": ({5: ""}, "unknown", "GPU5"),
    "blank on all rows": (dict.fromkeys(range(8), ""), "warn", "node"),
}


@pytest.mark.parametrize(("numa", "verdict", "subject"), NUMA.values(), ids=NUMA.keys())
def test_numa(numa: dict[int, str], verdict: str, subject: str) -> None:
    checks = judge.judge_numa(change_affinity(numa), HGX8)
    assert worst(c.verdict for c in checks) == verdict
    assert subject in {c.subject for c in checks if c.verdict == verdict}


@pytest.mark.parametrize("gpu", range(8))
def test_a_stray_gpu_blames_no_other(gpu: int) -> None:
    checks = judge.judge_numa(change_affinity({gpu: "0" if gpu > 3 else "1"}), HGX8)
    assert [s for s, _unused in only(checks, "fail")] == [f"GPU{gpu}"]


def test_numa_without_a_numa_column_goes_by_the_cpus() -> None:
    checks = judge.judge_numa(parse(text("nvidia-smi-460-topo-formC-hgx8.txt")), HGX8)
    assert [(c.verdict, c.value) for c in checks] == [("pass", "GPU0-3: 0-55,112-167, GPU4-7: 56-111,168-223")]


def test_numa_of_hgx4_may_differ_for_each_gpu() -> None:
    checks = judge.judge_numa(parse(text("nvidia-smi-550-topo-formF-hgx4.txt")), HGX4)
    assert [(c.verdict, c.value) for c in checks] == [("pass", "GPU0: 3, GPU1: 1, GPU2: 7, GPU3: 5")]


TWO_NODES = {g: g // 4 for g in range(8)}


def test_units_of_four_follow_the_sockets() -> None:
    grouping = judge.derive_groups(parse(FORM_F), TWO_NODES, 4, spans_numa=False)
    assert grouping == judge.Grouping(((0, 1, 2, 3), (4, 5, 6, 7)))


def test_units_of_two_on_bridged_cards_are_the_bridges() -> None:
    nodes = {0: 0, 1: 0, 2: 1, 3: 1}
    assert judge.derive_groups(parse(NVL4), nodes, 2, spans_numa=False).units == ((0, 1), (2, 3))


def test_units_of_one_need_no_nvlink() -> None:
    topology = parse(text("nvidia-smi-570-topo-formF-pcie4.txt"))
    assert len(judge.derive_groups(topology, {0: 0, 1: 0, 2: 1, 3: 1}, 1, spans_numa=False).units) == 4


def test_a_later_choice_may_be_needed_to_use_every_gpu() -> None:
    # 0-1, 0-2, 1-3: taking 0 with 1 first would leave 2 and 3 alone.
    join = {(0, 1), (0, 2), (1, 3)}
    cells = {
        (f"GPU{a}", f"GPU{b}"): "NV12" if (a, b) in join else "NODE" for a, b in itertools.combinations(range(4), 2)
    }
    topology = change(cells | {(b, a): t for (a, b), t in cells.items()}, NVL4)
    assert judge.derive_groups(topology, dict.fromkeys(range(4), 0), 2, spans_numa=False).units == ((0, 2), (1, 3))


def test_gpus_that_form_no_unit_are_named() -> None:
    grouping = judge.derive_groups(parse(NVL4), {0: 0, 1: 0, 2: 1, 3: 1}, 4, spans_numa=False)
    assert grouping.units == ()
    assert grouping.problems == (
        "GPU0, GPU1, GPU2, GPU3 do not form a unit of 4 GPUs pairwise joined by NVLink on one NUMA node",
    )


def gpus() -> list[judge.Gpu]:
    return [judge.Gpu(i, f"GPU-{i}", f"00000000:{i:02X}:00.0") for i in range(8)]


PLANS = {
    "as measured, by index": ([{"gpus": ["0", "1", "2", "3"]}, {"gpus": ["4", "5", "6", "7"], "numa_node": 1}], None),
    "as measured, by UUID": ([{"gpus": [f"GPU-{i}" for i in r]} for r in (range(4), range(4, 8))], None),
    "over two sockets": (
        [{"gpus": list("0145")}, {"gpus": list("2367")}],
        "GPU0, GPU1, GPU4, GPU5 of unit 0 are on NUMA",
    ),
    "wrong node": (
        [{"gpus": list("0123"), "numa_node": 1}, {"gpus": list("4567")}],
        "GPU0, GPU1, GPU2, GPU3 of unit 0",
    ),
    "a GPU twice": ([{"gpus": list("0123")}, {"gpus": list("3567")}], "GPU3 is planned for unit 0 and for unit 1"),
    "a GPU that is not there": ([{"gpus": list("0123")}, {"gpus": list("4569")}], "wants GPU 9"),
    "a GPU left over": ([{"gpus": list("0123")}], "GPU4, GPU5, GPU6, GPU7 are on the board and in no unit"),
    "too few in a unit": ([{"gpus": list("012")}, {"gpus": list("4567")}], "has 3 GPUs (GPU0, GPU1, GPU2)"),
}


@pytest.mark.parametrize(("plan", "problem"), PLANS.values(), ids=PLANS.keys())
def test_a_plan_is_held_against_the_measurement(plan: list[dict[str, object]], problem: str | None) -> None:
    grouping = judge.check_plan(plan, gpus(), parse(FORM_F), TWO_NODES, 4, spans_numa=False)
    if problem is None:
        assert grouping == judge.Grouping(((0, 1, 2, 3), (4, 5, 6, 7)))
    else:
        assert any(problem in p for p in grouping.problems)


SPLITS = {
    "whole node": ("0-55,112-167", 1, ["0-55,112-167"]),
    "siblings stay together": ("0-55,112-167", 2, ["0-27,112-139", "28-55,140-167"]),
    "no hyper-threading": ("0-31", 2, ["0-15", "16-31"]),
    "an odd CPU stays unused": ("0-4", 2, ["0-1", "2-3"]),
    "interleaved numbering": ("0,2,4,6", 2, ["0,2", "4,6"]),
    "ranges of different length": ("0-3,8-9", 2, ["0-2", "3,8-9"]),
}


@pytest.mark.parametrize(("cpus", "parts", "wanted"), SPLITS.values(), ids=SPLITS.keys())
def test_cpus_are_split(cpus: str, parts: int, wanted: list[str]) -> None:
    numbers = judge.number_set(cpus)
    assert numbers is not None
    assert [judge.format_set(p) for p in judge.split_cpus(numbers, parts)] == wanted


def test_interleaved_cores_are_kept_whole_when_their_threads_are_known() -> None:
    cpus = frozenset(range(0, 16, 2))
    cores = [frozenset({c, c + 8}) for c in range(8)]
    assert [judge.format_set(p) for p in judge.split_cpus(cpus, 2, cores)] == ["0,2,8,10", "4,6,12,14"]


@given(st.frozensets(st.integers(0, 300), max_size=80), st.integers(1, 8))
def test_cpu_sets_are_disjoint_and_of_the_node(cpus: frozenset[int], parts: int) -> None:
    found = judge.split_cpus(cpus, parts)
    assert len(found) == parts
    assert len(set().union(*found)) == sum(map(len, found))
    assert set().union(*found) <= cpus
    assert len({len(f) for f in found}) == 1


def test_nearest_nics_are_those_below_the_same_switches() -> None:
    topology = parse(FORM_F)
    assert judge.nearest_nics(topology, (4, 5, 6, 7), HCAS) == ["mlx5_4", "mlx5_5", "mlx5_6", "mlx5_7"]
    assert judge.nearest_nics(topology, (0, 1), ["mlx5_1", "mlx5_0"]) == ["mlx5_1", "mlx5_0"]


@given(
    st.dictionaries(st.sampled_from(PAIRS), st.sampled_from(["NV18", "NV17", "SYS", "X", "", "NODE", "?"]), max_size=6)
)
def test_no_changed_matrix_passes(cells: dict[tuple[str, str], str]) -> None:
    topology = change(cells)
    checks = [*judge.judge_output(topology), *judge.judge_matrix(topology, HGX8)]
    same = all(token == "NV18" for token in cells.values())
    assert (worst(c.verdict for c in checks) == "pass") == same


# A board no profile describes is held against itself.

DGX1 = """
X NV1 NV1 NV2 NV2 SYS SYS SYS
NV1 X NV2 NV1 SYS NV2 SYS SYS
NV1 NV2 X NV2 SYS SYS NV1 SYS
NV2 NV1 NV2 X SYS SYS SYS NV1
NV2 SYS SYS SYS X NV1 NV1 NV2
SYS NV2 SYS SYS NV1 X NV2 NV1
SYS SYS NV1 SYS NV1 NV2 X NV2
SYS SYS SYS NV1 NV2 NV1 NV2 X
"""


def matrix(rows: str) -> Topology:
    cells = [row.split() for row in rows.strip().splitlines()]
    head = "\t" + "\t".join(f"GPU{i}" for i in range(len(cells))) + "\tCPU Affinity\tNUMA Affinity\n"
    lines = ["\t".join([f"GPU{i}", *row, "0-31", "0"]) for i, row in enumerate(cells)]
    return parse(head + "\n".join(lines) + "\n")


def uniform(gpus: int, cell: str) -> str:
    return "\n".join(" ".join("X" if i == j else cell for j in range(gpus)) for i in range(gpus))


PAIR_AND_ONE = "X NV4 PHB\nNV4 X PHB\nPHB PHB X"


@pytest.mark.parametrize(
    ("rows", "verdict", "value"),
    [
        (DGX1, "pass", "8 pairs NV1, 8 pairs NV2, 12 pairs SYS"),
        (uniform(8, "NV12"), "pass", "28 pairs NV12"),
        (uniform(2, "PHB"), "pass", "1 pairs PHB"),
        ("X", "pass", "1 GPU"),
        (PAIR_AND_ONE, "warn", "0 NVLinks"),
    ],
)
def test_a_matrix_without_a_board_is_held_against_itself(rows: str, verdict: str, value: str) -> None:
    (check,) = judge.judge_alike(matrix(rows))
    assert (check.verdict, check.value) == (verdict, value)


@pytest.mark.parametrize(
    ("old", "new", "bad"),
    [
        ("NV2 SYS SYS SYS X NV1 NV1 NV2", "NV2 SYS SYS SYS X NV1 NV1 SYS", ["GPU4-GPU7"]),
        (DGX1, uniform(8, "NV18").replace("X NV18", "X NV17", 1).replace("NV18 X", "NV17 X", 1), ["GPU0", "GPU1"]),
    ],
)
def test_a_lost_link_shows_without_a_board(old: str, new: str, bad: list[str]) -> None:
    assert [s for s, _v in only(judge.judge_alike(matrix(DGX1.replace(old, new))), "fail")] == bad


def test_a_gpu_outside_the_net_fails_without_a_board() -> None:
    rows = [row.split() for row in uniform(4, "NV18").splitlines()]
    for other in range(3):
        rows[3][other] = rows[other][3] = "SYS"
    checks = judge.judge_alike(matrix("\n".join(map(" ".join, rows))))
    assert only(checks, "fail") == [("GPU3", "0 NVLinks")]


@pytest.mark.parametrize(
    ("rows", "width", "verdict"),
    [
        (uniform(8, "NV12"), 12, "pass"),
        (uniform(8, "NV12"), 18, "fail"),
        (uniform(4, "SYS"), 0, "pass"),
        (uniform(4, "NV4"), 0, "fail"),
        (PAIR_AND_ONE, 4, "fail"),
        ("X", 0, "pass"),
        ("X", 4, "unknown"),
    ],
)
def test_option_width_holds_for_every_pair(rows: str, width: int, verdict: str) -> None:
    assert worst(c.verdict for c in judge.judge_options(matrix(rows), width)) == verdict

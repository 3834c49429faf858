# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The judgement of a node's GPUs: one changed line of one GPU, one verdict."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _gpu_health
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import HGX_H100_8, Number, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._gpu_health import CHECKS, Limits
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._smi_query import parse
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, worst

FIXTURES = Path(__file__).parents[2] / "fixtures"
H100 = (FIXTURES / "nvidia-smi-590.48.01-q-hgx8.txt").read_text()
CSV = (FIXTURES / "nvidia-smi-580.95.05-query-gpu-health-hgx8.csv").read_text()
HGX8 = Limits(HGX_H100_8)
A100 = dataclasses.replace(
    HGX_H100_8,
    name="a100",
    products=(r"(NVIDIA )?A100-SXM4-40GB",),
    gpus=Number(2, "GPUs", "cut down for a test"),
    pcie_gen=Number(4, "", "A100 data sheet"),
)


def judge(text: str, limits: Limits = HGX8, before: str | None = None) -> list[Check]:
    return _gpu_health.judge(parse(text), limits, None if before is None else parse(before))


def wrong(checks: list[Check]) -> list[tuple[str, str]]:
    return [(check.check.removeprefix("gpu_health."), check.verdict) for check in checks if check.verdict != "pass"]


def one(checks: list[Check], name: str) -> Check:
    (found,) = [check for check in checks if check.check == f"gpu_health.{name}" and check.verdict != "pass"]
    return found


def change(text: str, gpu: int, line: str, value: str | None, nth: int = 0) -> str:
    """Give the nth line of that name in one GPU's section another value; None takes the line out."""
    parts = re.split(r"(?m)^(?=GPU )", text)
    lines = parts[gpu + 1].splitlines(keepends=True)
    at = [i for i, printed in enumerate(lines) if printed.split(":")[0].strip() == line and ":" in printed][nth]
    lines[at] = "" if value is None else f"{lines[at].split(': ')[0]}: {value}\n"
    parts[gpu + 1] = "".join(lines)
    return "".join(parts)


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        ("nvidia-smi-460.91.03-q-a100x2.txt", Limits(A100)),
        ("nvidia-smi-470.82.01-q-a100x2.txt", Limits(A100)),
        ("nvidia-smi-535.129.03-q-hgx4.txt", Limits(profile("hgx_h100_4"))),
        ("nvidia-smi-550.90.07-q-hgx4.txt", Limits(profile("hgx_h100_4"))),
        ("nvidia-smi-565.57.01-q-nvl2.txt", Limits(profile("h100_nvl"), gpus=2)),
        ("nvidia-smi-570.133.20-q-hgx4.txt", Limits(profile("hgx_h100_4"))),
        ("nvidia-smi-580.95.05-q-x-hgx4.xml", Limits(profile("hgx_h100_4"))),
        ("nvidia-smi-590.48.01-q-hgx8.txt", HGX8),
    ],
)
def test_a_healthy_node_passes_with_any_driver(name: str, limits: Limits) -> None:
    checks = judge((FIXTURES / name).read_text(), limits)
    assert wrong(checks) == []
    names = {check.check for check in checks}
    assert names >= {f"gpu_health.{n}" for n in ("gpus", "product", "driver", "vbios", "inforom", "ecc_mode")}
    assert names >= {f"gpu_health.{n}" for n in ("ecc_volatile", "ecc_aggregate", "remap_pending", "remap_failed")}
    assert names >= {
        f"gpu_health.{n}" for n in ("pcie_width", "pcie_gen", "clocks", "mig", "persistence", "temperature")
    }
    assert names <= set(CHECKS)


def test_a_csv_is_judged_by_its_columns() -> None:
    checks = judge(CSV, dataclasses.replace(HGX8, whole=False))
    assert wrong(checks) == []
    assert {c.check.removeprefix("gpu_health.") for c in checks} == {
        *("gpus", "product", "driver", "vbios", "inforom", "ecc_mode", "ecc_volatile", "ecc_aggregate"),
        *("remap_pending", "remap_failed", "remapped_rows", "pcie_width", "pcie_gen", "clocks", "mig"),
        *("persistence", "recovery", "temperature"),
    }


# (line, which of that name, new value, check, verdict)
LINES: list[tuple[str, int, str | None, str, str]] = [
    ("Product Name", 0, "NVIDIA H200", "product", "fail"),
    ("Product Name", 0, "NVIDIA H100 PCIe", "product", "fail"),
    ("Product Name", 0, None, "product", "unknown"),
    ("Product Name", 0, "ERR!", "product", "unknown"),
    ("VBIOS Version", 0, "96.00.89.00.01", "vbios", "fail"),
    ("VBIOS Version", 0, "N/A", "vbios", "unknown"),
    ("VBIOS Version", 0, None, "vbios", "unknown"),
    ("Image Version", 0, "G520.0200.00.03", "inforom", "warn"),
    ("Image Version", 0, "N/A", "inforom", "unknown"),
    ("Image Version", 0, "Corrupted InfoROM", "inforom", "fail"),
    ("Persistence Mode", 0, "Disabled", "persistence", "fail"),
    ("Persistence Mode", 0, "Unknown Error", "persistence", "unknown"),
    ("GPU Recovery Action", 0, "Reset", "recovery", "fail"),
    ("GPU Recovery Action", 0, "Reboot", "recovery", "fail"),
    ("GPU Recovery Action", 0, "Drain P2P", "recovery", "fail"),
    ("GPU Recovery Action", 0, "Drain and Reset", "recovery", "fail"),
    ("GPU Recovery Action", 0, "N/A", "recovery", "unknown"),
    ("GPU Recovery Action", 0, None, "recovery", "unknown"),
    ("HW Slowdown", 0, "Active", "clocks", "fail"),
    ("HW Thermal Slowdown", 0, "Active", "clocks", "fail"),
    ("HW Power Brake Slowdown", 0, "Active", "clocks", "fail"),
    ("SW Thermal Slowdown", 0, "Active", "clocks", "warn"),
    ("HW Slowdown", 0, "N/A", "clocks", "unknown"),
    ("HW Power Brake Slowdown", 0, None, "clocks", "unknown"),
    ("SRAM Uncorrectable Parity", 0, "1", "ecc_volatile", "fail"),
    ("SRAM Uncorrectable SEC-DED", 0, "1", "ecc_volatile", "fail"),
    ("DRAM Uncorrectable", 0, "4294967295", "ecc_volatile", "fail"),
    ("DRAM Uncorrectable", 0, "N/A", "ecc_volatile", "unknown"),
    ("DRAM Uncorrectable", 0, "GPU requires reset", "ecc_volatile", "fail"),
    ("DRAM Uncorrectable", 0, None, "ecc_volatile", "unknown"),
    ("DRAM Uncorrectable", 1, "2", "ecc_aggregate", "warn"),
    ("SRAM Uncorrectable Parity", 1, "7", "ecc_aggregate", "warn"),
    ("DRAM Uncorrectable", 1, None, "ecc_aggregate", "unknown"),
    ("SRAM Threshold Exceeded", 0, "Yes", "sram_threshold", "fail"),
    ("SRAM Threshold Exceeded", 0, None, "sram_threshold", "unknown"),
    ("Channel Repair Pending", 0, "Yes", "memory_repair", "fail"),
    ("TPC Repair Pending", 0, "GPU requires reset", "memory_repair", "fail"),
    ("Unrepairable Memory", 0, "Yes", "memory_repair", "fail"),
    ("Unrepairable Memory", 0, None, "memory_repair", "unknown"),
    ("Pending Page Blacklist", 0, "Yes", "memory_repair", "fail"),
    ("Uncorrectable Error", 0, "513", "remapped_rows", "fail"),
    ("Uncorrectable Error", 0, "N/A", "remapped_rows", "unknown"),
    ("None", 0, "2 bank(s)", "remapped_rows", "warn"),
    ("Remapping Failure Occurred", 0, "Yes", "remap_failed", "fail"),
    ("Remapping Failure Occurred", 0, None, "remap_failed", "unknown"),
    ("Max", 1, "8x", "pcie_width", "unknown"),
    ("Current", 4, "8x", "pcie_width", "fail"),
    ("Current", 4, "N/A", "pcie_width", "unknown"),
    ("GPU Current Temp", 0, "88 C", "temperature", "pass"),
    ("GPU Current Temp", 0, "N/A", "temperature", "unknown"),
    ("GPU T.Limit Temp", 0, "-1 C", "temperature", "fail"),
]


@pytest.mark.parametrize("gpu", [0, 7])
@pytest.mark.parametrize(("line", "nth", "value", "check", "verdict"), LINES)
def test_one_changed_line_of_one_gpu(gpu: int, line: str, nth: int, value: str, check: str, verdict: str) -> None:
    text = change(H100, gpu, line, value, nth)
    assert text != H100
    got = wrong(judge(text))
    assert got == ([] if verdict == "pass" else [(check, verdict)])


SECTIONS = [
    ("MIG Mode", "Current", "Enabled", "mig", "fail"),
    ("MIG Mode", "Pending", "Enabled", "mig", "fail"),
    ("MIG Mode", "Current", "N/A", "mig", "pass"),
    ("MIG Mode", "Current", None, "mig", "unknown"),
    ("ECC Mode", "Current", "Disabled", "ecc_mode", "fail"),
    ("ECC Mode", "Current", "N/A", "ecc_mode", "unknown"),
    ("ECC Mode", "Pending", "Disabled", "ecc_mode", "fail"),
    ("Remapped Rows", "Pending", "Yes", "remap_pending", "fail"),
    ("Remapped Rows", "Pending", "GPU requires reset", "remap_pending", "fail"),
    ("Remapped Rows", "Pending", "N/A", "remap_pending", "unknown"),
    ("Remapped Rows", "Pending", None, "remap_pending", "unknown"),
    ("PCIe Generation", "Current", "4", "pcie_gen", "fail"),
    ("PCIe Generation", "Current", "ERR!", "pcie_gen", "unknown"),
    ("PCIe Generation", "Current", None, "pcie_gen", "unknown"),
    ("PCIe Generation", "Max", "4", "pcie_gen", "unknown"),
]


def change_in(text: str, section: str, line: str, value: str | None) -> str:
    new = "" if value is None else rf"\g<3>: {value}\n"
    return re.sub(
        rf"(?s)(GPU 00000000:61.*?^ +{section}\n)(.*?)(^ +{line} +): [^\n]*\n",
        rf"\1\2{new}",
        text,
        count=1,
        flags=re.M | re.S,
    )


@pytest.mark.parametrize(("section", "line", "value", "check", "verdict"), SECTIONS)
def test_lines_whose_name_is_in_several_sections(section: str, line: str, value: str, check: str, verdict: str) -> None:
    checks = judge(change_in(H100, section, line, value))
    assert wrong(checks) == ([] if verdict == "pass" else [(check, verdict)])
    if verdict != "pass":
        assert one(checks, check).subject == "GPU 3 00000000:61:00.0"


def link(text: str, state: str, current: int, most: int) -> str:
    text = change_in(change_in(text, "PCIe Generation", "Current", str(current)), "PCIe Generation", "Max", str(most))
    return change(text, 3, "Performance State", state)


@pytest.mark.parametrize(
    ("state", "current", "most", "verdict", "reason"),
    [
        ("P0", 5, 5, "pass", ""),
        ("P0", 4, 5, "fail", "PCIe generation in use in P0"),
        ("P2", 1, 5, "fail", "PCIe generation in use in P2"),
        ("P8", 1, 5, "warn", "PCIe generation in use in P8, where the driver slows the link"),
        ("P8", 5, 5, "pass", ""),
        ("P8", 1, 4, "fail", "the link can reach generation 4 at most (host 5, GPU 5)"),
        ("P0", 5, 4, "unknown", "PCI/GPU Link Info/PCIe Generation/Max is '4'"),
        ("N/A", 1, 5, "unknown", "generation 1 in use, and no performance state says whether the GPU saves power"),
    ],
)
def test_only_a_power_saving_gpu_may_have_a_slow_link(
    state: str, current: int, most: int, verdict: str, reason: str
) -> None:
    checks = judge(link(H100, state, current, most))
    assert wrong(checks) == ([] if verdict == "pass" else [("pcie_gen", verdict)])
    if verdict != "pass":
        assert one(checks, "pcie_gen").reason == reason


def test_the_width_may_not_shrink_in_any_state() -> None:
    text = change(change(H100, 3, "Performance State", "P8"), 3, "Current", "8x", 4)
    check = one(judge(text), "pcie_width")
    assert (check.verdict, check.value, check.limit) == ("fail", 8, 16)


def test_missing_gpu_fails_and_the_others_are_judged() -> None:
    text = re.sub(r"(?s)^GPU 00000000:DF.*\Z", "", H100, flags=re.M)
    assert one(judge(text), "gpus").verdict == "unknown"  # announced: 8
    text = change(
        text.replace("Attached GPUs                                          : 8", "Attached GPUs : 7"),
        2,
        "HW Slowdown",
        "Active",
    )
    checks = judge(text)
    assert wrong(checks) == [("gpus", "fail"), ("clocks", "fail")]
    assert (one(checks, "gpus").value, one(checks, "gpus").limit) == (7, 8)


def test_a_lost_gpu_is_named_and_the_others_are_judged() -> None:
    message = "Unable to determine the device handle for GPU0000:DF:00.0: GPU is lost.  Reboot the system to recover it"
    text = re.sub(r"(?s)^GPU 00000000:DF.*\Z", message + "\n", H100, flags=re.M)
    checks = judge(text)
    assert wrong(checks) == [("gpus", "fail"), ("gpus", "fail")]
    assert [(c.subject, c.value) for c in checks if c.verdict == "fail"] == [("GPU 0000:DF:00.0", "lost"), ("node", 7)]


def test_an_error_beside_the_report_is_unknown() -> None:
    checks = judge(H100 + "Unable to determine the device handle for GPU 0000:E1:00.0: Unknown Error\n")
    assert wrong(checks) == [("output", "unknown")]


def test_a_corrupt_inforom_warning_fails() -> None:
    check = one(judge(H100 + "WARNING: infoROM is corrupted at gpu 0000:1B:00.0\n"), "inforom")
    assert (check.verdict, check.reason) == (
        "fail",
        "the driver says: WARNING: infoROM is corrupted at gpu 0000:1B:00.0",
    )


@pytest.mark.parametrize("line", ["SRAM Uncorrectable SEC-DED", "None", "Max"])
def test_a_line_that_only_the_other_gpus_have_was_lost(line: str) -> None:
    check = one(judge(change(H100, 4, line, None)), "output")
    assert (check.subject, check.verdict) == ("GPU 4 00000000:9D:00.0", "unknown")
    assert check.reason.startswith("other GPUs have a line ")


def test_two_gpus_of_one_uuid_are_unknown() -> None:
    uuid = re.findall(r"GPU-[0-9a-f-]{36}", H100)
    assert one(judge(H100.replace(uuid[1], uuid[0])), "output").verdict == "unknown"


def test_pins_win_over_the_other_gpus() -> None:
    pinned = dataclasses.replace(HGX8, vbios="96.00.89.00.01", driver="590.44.01")
    checks = judge(H100, pinned)
    assert wrong(checks) == [("driver", "fail"), ("vbios", "fail")]
    assert one(checks, "vbios").subject == "all 8 GPUs"
    assert (one(checks, "driver").value, one(checks, "driver").limit) == ("590.48.01", "590.44.01")


def test_an_even_split_of_vbios_blames_both_halves() -> None:
    text = H100
    for gpu in range(4):
        text = change(text, gpu, "VBIOS Version", "96.00.89.00.01")
    checks = [c for c in judge(text) if c.check == "gpu_health.vbios"]
    assert [c.verdict for c in checks] == ["fail"] * 8
    assert checks[0].limit == "96.00.89.00.01 or 96.00.99.00.01"


def test_ecc_that_is_off_fails_once_and_asks_for_no_count() -> None:
    text = change_in(H100, "ECC Mode", "Current", "Disabled")
    for name in ("SRAM Correctable", "SRAM Uncorrectable Parity", "DRAM Uncorrectable", "SRAM Uncorrectable SEC-DED"):
        for nth in (0, 1):
            text = change(text, 3, name, "N/A", nth)
    assert wrong(judge(change(text, 3, "SRAM Threshold Exceeded", "N/A"))) == [("ecc_mode", "fail")]


def test_sram_errors_without_the_drivers_flag_have_a_limit() -> None:
    old = (FIXTURES / "nvidia-smi-470.82.01-q-a100x2.txt").read_text()
    for count, verdict in (("4", "warn"), ("5", "fail")):
        assert wrong(judge(change(old, 1, "SRAM Uncorrectable", count, 1), Limits(A100))) == [
            ("ecc_aggregate", verdict)
        ]


def test_a_gpu_without_row_remapping_is_unknown_on_a_board_that_has_it() -> None:
    text = re.sub(
        r"(?ms)^(    Remapped Rows)\n(?:     .*?\n)+", r"\1                                      : N/A\n", H100, count=1
    )
    assert wrong(judge(text)) == [("remap_failed", "unknown")]


def test_reset_status_of_drivers_before_the_recovery_action() -> None:
    old = (FIXTURES / "nvidia-smi-550.90.07-q-hgx4.txt").read_text()
    status = "    GPU Reset Status\n        Reset Required : {}\n        Drain and Reset Recommended : N/A\n    PCI\n"
    limits = Limits(profile("hgx_h100_4"))
    assert wrong(judge(old.replace("    PCI\n", status.format("No")), limits)) == []
    assert wrong(judge(old.replace("    PCI\n", status.format("Yes")), limits))[0] == ("recovery", "fail")


@pytest.mark.parametrize(("count", "verdict"), [(None, "warn"), (2, "pass"), (4, "fail")])
def test_cards_are_counted_by_the_option(count: int | None, verdict: str) -> None:
    text = (FIXTURES / "nvidia-smi-565.57.01-q-nvl2.txt").read_text()
    found = [c for c in judge(text, Limits(profile("h100_nvl"), gpus=count)) if c.check == "gpu_health.gpus"]
    assert [c.verdict for c in found] == [verdict]


def test_a_temperature_option_wins_over_the_gpus_own_limit() -> None:
    hot = change(change(H100, 2, "GPU Current Temp", "76 C"), 2, "GPU T.Limit Temp", "11 C")
    assert wrong(judge(hot)) == []
    check = one(judge(hot, dataclasses.replace(HGX8, temperature=75.0)), "temperature")
    assert (check.value, check.limit, check.limit_source) == (76, 75.0, "option temperature")


# --- parts of a report


def only(text: str, *sections: str) -> str:
    """Return what nvidia-smi -q -d prints: the head and these sections of each GPU."""
    kept, keep = [], False
    for line in text.splitlines(keepends=True):
        if not line.startswith(" "):
            keep = False
            kept.append(line)
        elif re.match(r" {4}\S", line):
            keep = line.split(":")[0].strip() in sections
        if keep:
            kept.append(line)
    return "".join(kept)


def test_one_file_of_one_section_is_judged_by_that_section() -> None:
    text = only(H100, "ECC Mode", "ECC Errors")
    checks = judge(text, dataclasses.replace(HGX8, whole=False))
    assert wrong(checks) == []
    assert {c.check.removeprefix("gpu_health.") for c in checks} == {
        *("gpus", "driver", "ecc_mode", "ecc_volatile", "ecc_aggregate", "sram_threshold", "memory_repair")
    }
    bad = judge(change(text, 4, "DRAM Uncorrectable", "3"), dataclasses.replace(HGX8, whole=False))
    assert wrong(bad) == [("ecc_volatile", "fail")]
    assert {"product", "clocks", "remap_failed"} <= {name for name, _verdict in wrong(judge(text))}


def test_a_file_with_nothing_to_judge_is_no_pass() -> None:
    text = only(H100, "FB Memory Usage").replace("Driver Version", "Something")
    assert worst(c.verdict for c in judge(text, dataclasses.replace(HGX8, whole=False))) == "unknown"
    csv = "index, memory.used [MiB]\n" + "".join(f"{i}, 0 MiB\n" for i in range(8))
    assert wrong(judge(csv, dataclasses.replace(HGX8, whole=False)))[0] == ("output", "unknown")


def test_a_csv_without_a_gpu_or_cut_within_a_row() -> None:
    some = dataclasses.replace(HGX8, whole=False)
    rows = CSV.splitlines(keepends=True)
    assert wrong(judge("".join(rows[:8]), some)) == [("gpus", "fail")]
    assert wrong(judge(CSV[:-40], some)) == [("output", "unknown"), ("gpus", "unknown")]


def test_a_mask_of_a_csv_names_the_reasons() -> None:
    text = "index, clocks_throttle_reasons.active\n" + "".join(f"{i}, 0x0000000000000001\n" for i in range(8))
    some = dataclasses.replace(HGX8, whole=False)
    assert wrong(judge(text, some)) == []
    check = one(judge(text.replace("3, 0x0000000000000001", "3, 0x0000000000000048"), some), "clocks")
    assert (check.subject, check.verdict, check.value) == ("GPU 3", "fail", "HW Slowdown, HW Thermal Slowdown")
    assert wrong(judge(text.replace("3, 0x0000000000000001", "3, [N/A]"), some)) == [("clocks", "unknown")]


# --- growth


def test_growth_since_an_earlier_reading_fails_however_small() -> None:
    assert wrong(judge(H100, before=H100)) == []
    after = change(H100, 5, "Uncorrectable Error", "1")
    check = one(judge(after, before=H100), "growth")
    assert (check.subject, check.verdict, check.value) == ("GPU 5 00000000:C3:00.0", "fail", 1)
    assert check.reason == "grew since the earlier reading: rows remapped for uncorrectable errors 0 to 1"
    assert wrong(judge(after, before=after)) == []


def test_an_earlier_reading_of_other_gpus_proves_nothing() -> None:
    other = re.sub(r"GPU-[0-9a-f]{8}", "GPU-00000000", H100)
    assert wrong(judge(H100, before=other)) == [("growth", "unknown")]
    assert wrong(judge(H100, before="No devices were found\n")) == [("growth", "unknown")]


def test_counters_that_fell_are_contradictory() -> None:
    before = change(H100, 5, "DRAM Uncorrectable", "9", 1)
    assert one(judge(H100, before=before), "growth").verdict == "unknown"


HELD = "Clocks Event Reasons Counters"


@pytest.mark.parametrize(
    ("name", "nth", "verdict", "value"),
    [
        ("HW Thermal Slowdown", 1, "fail", 850000),
        ("HW Power Braking", 0, "fail", 850000),
        ("SW Thermal Slowdown", 1, "warn", 850000),
        ("SW Power Capping", 0, None, None),
        ("Sync Boost", 1, None, None),
    ],
)
def test_a_slowdown_during_the_load_shows_in_its_time(
    name: str, nth: int, verdict: str | None, value: int | None
) -> None:
    before = change(H100, 4, name, "12 us", nth)
    after = change(H100, 4, name, "850012 us", nth)
    checks = judge(after, before=before)
    if verdict is None:
        assert wrong(checks) == []
        return
    check = one(checks, "growth")
    assert (check.verdict, check.value, check.unit, check.limit) == (verdict, value, "us", 0)
    assert check.subject == "GPU 4 00000000:9D:00.0"
    assert check.reason == f"the clocks were held down since the earlier reading: {name} for 850000 us"
    # What was held down before the load says nothing of it, and a driver that was loaded again starts at 0.
    assert wrong(judge(after, before=after)) == wrong(judge(before, before=after)) == []


def test_the_worst_slowdown_and_lost_memory_are_both_told() -> None:
    after = change(change(H100, 4, "SW Thermal Slowdown", "900 us", 1), 4, "HW Thermal Slowdown", "5 us", 1)
    check = one(judge(after, before=H100), "growth")
    assert (check.verdict, check.value) == ("fail", 5)
    assert "SW Thermal Slowdown for 900 us" in check.reason
    both = judge(change(after, 4, "Uncorrectable Error", "1"), before=H100)
    assert wrong(both) == [("growth", "fail"), ("growth", "fail")]


def test_a_driver_that_counts_no_time_is_not_judged_by_it() -> None:
    old = re.sub(rf"(?m)^    {HELD}\n(        .*\n){{5}}", "", H100)
    assert HELD not in old
    assert wrong(judge(old, before=old)) == wrong(judge(H100, before=old)) == []
    text = (FIXTURES / "nvidia-smi-550.90.07-q-hgx4.txt").read_text()
    assert wrong(judge(text, Limits(profile("hgx_h100_4")), before=text)) == []
    lost = judge(change(H100, 4, "HW Power Braking", None), before=H100)
    assert wrong(lost) == [("growth", "unknown")]
    assert wrong(judge(change(H100, 4, "HW Power Braking", "N/A"), before=H100)) == []


def test_a_limit_of_the_link_wins_over_the_board() -> None:
    gen4 = H100
    for gpu in range(8):
        for line, nth in (("Max", 0), ("Current", 3), ("Host Max", 0)):
            gen4 = change(gen4, gpu, line, "4", nth)
    assert [(c.check, c.verdict, c.limit_source) for c in judge(gen4) if c.verdict != "pass"] == [
        ("gpu_health.pcie_gen", "fail", HGX_H100_8.source)
    ]
    checks = judge(gen4, dataclasses.replace(HGX8, pcie_gen=4))
    assert wrong(checks) == []
    (link,) = [c for c in checks if c.check == "gpu_health.pcie_gen"]
    assert (link.value, link.limit, link.limit_source) == (4, 4, "option pcie_gen")
    slow = change(H100, 2, "Current", "8x", 4)
    assert one(judge(slow), "pcie_width").limit == 16
    (width,) = [c for c in judge(slow, dataclasses.replace(HGX8, pcie_width=8)) if c.check == "gpu_health.pcie_width"]
    assert (width.verdict, width.limit, width.limit_source) == ("pass", 8, "option pcie_width")
    for limits in (dataclasses.replace(HGX8, pcie_width=32), dataclasses.replace(HGX8, pcie_gen=6)):
        assert "fail" in {verdict for _name, verdict in wrong(judge(H100, limits))}


def test_fleet_names_all_versions_of_the_node() -> None:
    assert _gpu_health.fleet(parse(H100))["versions"] == {
        "gpu_health.driver": "590.48.01",
        "gpu_health.vbios": "96.00.99.00.01",
    }
    mixed = _gpu_health.fleet(parse(change(H100, 1, "VBIOS Version", "96.00.89.00.01")))
    assert mixed["versions"]["gpu_health.vbios"] == "96.00.89.00.01, 96.00.99.00.01"
    # A GPU that was replaced has a newer image; only its own node tells it, as a warning.
    swapped = change(H100, 1, "Image Version", "G520.0200.00.07")
    assert wrong(judge(swapped)) == [("inforom", "warn")]
    assert _gpu_health.fleet(parse(swapped)) == _gpu_health.fleet(parse(H100))


def test_readings_are_numbers_and_words() -> None:
    row = _gpu_health.readings(parse(H100))[3]
    assert (row["index"], row["bus_id"], row["pcie_gen_current"], row["pcie_width_max"]) == (
        3,
        "00000000:61:00.0",
        5,
        16,
    )
    assert (row["clocks_event_reasons"], row["recovery_action"], row["remapped_uncorrectable"]) == (["Idle"], "None", 0)


# --- without a board


ANY = Limits(None)


@pytest.mark.parametrize("name", ["460.91.03-q-a100x2", "565.57.01-q-nvl2", "590.48.01-q-hgx8", "550.90.07-q-hgx4"])
def test_without_a_board_any_gpu_is_judged_by_what_it_says_of_itself(name: str) -> None:
    text = (FIXTURES / f"nvidia-smi-{name}.txt").read_text()
    checks = judge(text, ANY)
    assert wrong(checks) == []
    assert "gpu_health.product" not in {c.check for c in checks}
    assert wrong(judge(text, dataclasses.replace(ANY, gpus=1))) == [("gpus", "fail")]
    assert wrong(judge(change(text, 1, "HW Slowdown", "Active"), ANY)) == [("clocks", "fail")]


def test_without_a_board_what_a_gpu_does_not_have_is_not_asked_of_it() -> None:
    text = H100.replace("Image Version                                  : G520.0200.00.05", "Image Version : N/A")
    for gpu in range(8):
        for name in ("SRAM Uncorrectable Parity", "SRAM Uncorrectable SEC-DED", "DRAM Uncorrectable"):
            for nth in (0, 1):
                text = change(text, gpu, name, "N/A", nth)
        text = change(text, gpu, "SRAM Threshold Exceeded", "N/A")
    text = re.sub(
        r"(?ms)^(    ECC Mode)\n.*?\n(    ECC Errors)", r"\1\n        Current : N/A\n        Pending : N/A\n\2", text
    )
    text = re.sub(r"(?ms)^(    Remapped Rows)\n(?:     .*?\n)+?(?=    \S)", r"\1 : N/A\n", text)
    assert wrong(judge(text, ANY)) == []
    assert {check for check, _verdict in wrong(judge(text))} >= {"ecc_mode", "ecc_volatile", "remap_failed", "inforom"}


def test_without_a_board_the_link_is_held_against_the_gpus_own_maximum() -> None:
    text = link(H100, "P0", 4, 5)
    assert wrong(judge(text, ANY)) == [("pcie_gen", "fail")]
    assert wrong(judge(link(H100, "P0", 4, 4), ANY)) == []
    assert wrong(judge(change(H100, 3, "Current", "8x", 4), ANY)) == [("pcie_width", "fail")]


def board(text: str, product: str) -> str:
    """Return the report with every GPU of another product."""
    return re.sub(r"(?m)^(    Product Name\s+: ).*$", rf"\g<1>{product}", text)


def test_settings_of_a_board_that_is_not_ours_are_warnings() -> None:
    text = change(
        change(board(H100, "NVIDIA RTX A6000"), 0, "Persistence Mode", "Disabled"), 1, "Current", "Disabled", 3
    )
    found = wrong(judge(text, Limits(None)))
    assert ("persistence", "warn") in found
    assert not [name for name, verdict in found if verdict == "fail" and name == "persistence"]
    assert ("persistence", "fail") in wrong(judge(change(H100, 0, "Persistence Mode", "Disabled")))


@pytest.mark.parametrize(("product", "verdict"), [("NVIDIA RTX A6000", "warn"), ("NVIDIA A100-SXM4-80GB", "fail")])
def test_ecc_off_is_a_defect_where_cards_are_sold_with_it(product: str, verdict: str) -> None:
    off = re.sub(
        r"(?m)^(    ECC Mode\n\s+Current\s+: )Enabled(\n\s+Pending\s+: )Enabled",
        r"\1Disabled\2Disabled",
        board(H100, product),
    )
    assert {v for n, v in wrong(judge(off, Limits(None))) if n == "ecc_mode"} == {verdict}


def test_a_link_that_saves_power_is_no_alarm_without_a_board() -> None:
    parts = re.split(r"(?m)^(?=GPU )", H100)
    slow = re.sub(r"(PCIe Generation\n\s+Max\s+: 5\n\s+Current\s+: )5", r"\g<1>1", parts[1])
    assert slow != parts[1]
    idle = re.sub(r"(Performance State\s+: )P0", r"\g<1>P8", slow)
    assert not [v for n, v in wrong(judge("".join([parts[0], idle, *parts[2:]]), Limits(None))) if n == "pcie_gen"]
    assert ("pcie_gen", "warn") in wrong(judge("".join([parts[0], idle, *parts[2:]])))
    assert ("pcie_gen", "fail") in wrong(judge("".join([parts[0], slow, *parts[2:]]), Limits(None)))


def test_a_lost_gpu_is_a_defect_without_a_report_too() -> None:
    text = "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system\n"
    assert [(c.check, c.verdict, c.subject) for c in judge(text)] == [("gpu_health.gpus", "fail", "GPU 0000:02:00.0")]


def test_the_report_of_one_gpu_is_judged_when_option_gpus_says_so() -> None:
    parts = re.split(r"(?m)^(?=GPU )", H100)
    alone = parts[0] + parts[3]
    one_file = dataclasses.replace(HGX8, whole=False)
    assert ("gpus", "unknown") in wrong(judge(alone, one_file))
    assert not [name for name, _v in wrong(judge(alone, dataclasses.replace(one_file, gpus=1))) if name == "gpus"]
    assert ("gpus", "unknown") in wrong(judge(alone, dataclasses.replace(HGX8, gpus=1)))


def test_slowdowns_an_older_gpu_does_not_have_are_not_asked_of_it() -> None:
    head = "Driver Version : 430.26\nAttached GPUs : 1\nGPU 00000000:01:00.0\n    Clocks Throttle Reasons\n"
    lines = "        HW Slowdown : Not Active\n            HW Thermal Slowdown : N/A\n"
    text = head + lines + "            HW Power Brake Slowdown : N/A\n        SW Thermal Slowdown : Not Active\n"
    assert wrong(judge(text, Limits(None, whole=False))) == []
    assert ("clocks", "unknown") in wrong(judge(text.replace("Not Active", "N/A"), Limits(None, whole=False)))

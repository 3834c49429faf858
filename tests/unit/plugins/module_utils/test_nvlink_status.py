# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The judgement of links, their counters and the fabric: one changed line, one verdict."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _nvlink_status, _smi_query
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import HGX_H100_8, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvlink_status import CHECKS, Limits, parse
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check

FIXTURES = Path(__file__).parents[2] / "fixtures"
STATUS = (FIXTURES / "nvidia-smi-580.95.05-nvlink-s-hgx8.txt").read_text()
ERRORS = (FIXTURES / "nvidia-smi-580.95.05-nvlink-e-hgx8.txt").read_text()
NEW_ERRORS = (FIXTURES / "nvidia-smi-595.58.03-nvlink-e-hgx2.txt").read_text()
PCIE = (FIXTURES / "nvidia-smi-535.129.03-nvlink-s-pcie2.txt").read_text()
QUERY = (FIXTURES / "nvidia-smi-590.48.01-q-hgx8.txt").read_text()
HGX8 = Limits(HGX_H100_8)
TWO = dataclasses.replace(HGX8, gpus=2)


def links(text: str, limits: Limits = HGX8) -> list[Check]:
    report = parse(text)
    return [
        *_nvlink_status.judge_output(report, "nvlink -s"),
        _nvlink_status.judge_count(report, limits),
        *_nvlink_status.judge_links(report, limits),
        *_nvlink_status.judge_speed(report, limits),
    ]


def errors(text: str, limits: Limits = HGX8, status: str | None = None) -> list[Check]:
    report = parse(text)
    return [
        *_nvlink_status.judge_output(report, "nvlink -e"),
        *_nvlink_status.judge_errors(report, limits, None if status is None else parse(status)),
    ]


def fabric(text: str, limits: Limits = HGX8) -> list[Check]:
    return _nvlink_status.judge_fabric(_smi_query.parse(text), limits)


def wrong(checks: list[Check]) -> list[tuple[str, str, str]]:
    assert {check.check for check in checks} <= set(CHECKS)
    return [(c.check.removeprefix("nvlink_status."), c.verdict, c.subject) for c in checks if c.verdict != "pass"]


def change(text: str, gpu: int, old: str, new: str) -> str:
    parts = re.split(r"(?m)^(?=GPU )", text)
    assert re.search(old, parts[gpu + 1], re.MULTILINE)
    parts[gpu + 1] = re.sub(old, new, parts[gpu + 1], count=1, flags=re.MULTILINE)
    return "".join(parts)


# --- links


def test_a_whole_board_passes_with_three_facts() -> None:
    assert [(c.check, c.value, c.limit) for c in links(STATUS)] == [
        ("nvlink_status.gpus", 8, 8),
        ("nvlink_status.links", 18, "18"),
        ("nvlink_status.speed", 26.562, 25.0),
    ]


@pytest.mark.parametrize("word", ["<inactive>", "inactive", "Inactive", "<disabled>", "down"])
def test_one_of_144_links_down_names_gpu_and_link(word: str) -> None:
    for gpu in range(8):
        for link in (0, 5, 17):
            checks = links(change(STATUS, gpu, rf"Link {link}: 26.562 GB/s", f"Link {link}: {word}"))
            assert wrong(checks) == [("links", "fail", f"GPU {gpu} link {link}")]
            (bad,) = [c for c in checks if c.verdict == "fail"]
            assert (bad.value, bad.limit, bad.reason) == (17, "18", f"inactive: link {link}")


@pytest.mark.parametrize("speed", ["13.281", "24.999", "0", "0.000"])
def test_a_slow_link_names_gpu_and_link(speed: str) -> None:
    checks = links(change(STATUS, 3, r"Link 5: 26.562 GB/s", f"Link 5: {speed} GB/s"))
    assert wrong(checks) == [("speed", "fail", "GPU 3 link 5")]
    assert next(c.value for c in checks if c.verdict == "fail") == float(speed)


def test_speed_of_another_generation_has_its_own_option() -> None:
    blackwell = STATUS.replace("26.562", "53.125")
    assert wrong(
        links(blackwell.replace("Link 4: 53.125", "Link 4: 26.562"), dataclasses.replace(HGX8, link_speed=50.0))
    )
    assert wrong(links(blackwell, dataclasses.replace(HGX8, link_speed=50.0))) == []


INACTIVE = "\t NVML: Unable to retrieve NVLink information as all links are inActive\n"
HEAD = "GPU {}: NVIDIA H100 80GB HBM3 (UUID: GPU-0000000{}-1111-2222-3333-444444444444)\n"


def test_a_gpu_whose_links_are_all_inactive_fails() -> None:
    text = "".join(
        HEAD.format(g, g) + ("".join(f"\t Link {n}: 26.562 GB/s\n" for n in range(18)) if g != 2 else INACTIVE)
        for g in range(8)
    )
    checks = links(text)
    assert wrong(checks) == [("links", "fail", "GPU 2")]
    assert "all links are inactive" in next(c.reason for c in checks if c.verdict == "fail")


UNREADABLE = {
    "a line cut off": (change(STATUS, 7, r"(?s)Link 17: 26.562 GB/s\n", "Link 17: 26.5"), "GPU 7"),
    "an odd word": (change(STATUS, 1, r"Link 3: 26.562 GB/s", "Link 3: <sleep>"), "GPU 1"),
    "the last lines gone": (change(STATUS, 7, r"(?s)\t Link 16:.*\Z", ""), "GPU 7"),
    "a link twice": (change(STATUS, 2, r"Link 3:", "Link 4:"), "GPU 2"),
}


@pytest.mark.parametrize(("text", "subject"), UNREADABLE.values(), ids=UNREADABLE.keys())
def test_what_cannot_be_read_is_unknown(text: str, subject: str) -> None:
    got = wrong(links(text))
    assert ("links", "unknown", subject) in got
    assert "fail" not in {verdict for _check, verdict, _subject in got}


def test_a_link_that_is_not_listed_in_the_middle_of_the_output_is_missing() -> None:
    assert wrong(links(change(STATUS, 2, r"\t Link 9: .*\n", ""))) == [("links", "fail", "GPU 2")]


def test_gpus_are_counted_and_a_cut_is_told_from_a_missing_gpu() -> None:
    seven = re.sub(r"(?ms)^GPU 7.*\Z", "", STATUS)
    assert wrong(links(seven)) == [("gpus", "fail", "node")]
    cut = re.sub(r"(?ms)^\t Link 9[^\n]*\n(?:\t[^\n]*\n)*GPU 7.*\Z", "", STATUS)
    assert ("gpus", "unknown", "node") in wrong(links(cut))


def test_bridged_cards_have_twelve_links_of_eighteen() -> None:
    for board in ("h100_pcie", "h100_nvl"):
        assert wrong(links(PCIE, Limits(profile(board), gpus=2))) == []
    assert wrong(links(PCIE, TWO)) == [("links", "fail", "GPU 0"), ("links", "fail", "GPU 1")]
    bridge = change(PCIE, 0, r"Link 12: 26.562 GB/s", "Link 12: <inactive>")
    assert wrong(links(bridge, Limits(profile("h100_nvl"), gpus=2))) == [("links", "fail", "GPU 0")]
    assert wrong(links(bridge, Limits(profile("h100_pcie"), gpus=2))) == [("links", "fail", "GPU 0")]


def test_pcie_cards_without_a_bridge_pass_and_a_bridge_has_two_ends() -> None:
    alone = HEAD.format(0, 0) + INACTIVE + HEAD.format(1, 1) + INACTIVE
    assert wrong(links(alone, Limits(profile("h100_pcie"), gpus=2))) == []
    assert {v for _c, v, _s in wrong(links(alone, Limits(profile("h100_nvl"), gpus=2)))} == {"fail"}
    half = re.sub(r"(?ms)^GPU 1.*\Z", HEAD.format(1, 1) + INACTIVE, PCIE)
    assert ("links", "fail", "node") in wrong(links(half, Limits(profile("h100_pcie"), gpus=2)))


def test_the_option_links_serves_other_boards() -> None:
    a100 = "".join(
        f"GPU {g}: A100-SXM4-40GB\n" + "".join(f"\t Link {n}: 25 GB/s\n" for n in range(12)) for g in range(8)
    )
    assert wrong(links(a100, dataclasses.replace(HGX8, links=12))) == []
    assert wrong(links(a100))[0] == ("links", "fail", "GPU 0")


# --- counters

BAD_COUNTERS = [
    ("Replay Errors", 1, "warn"),
    ("Replay Errors", 400, "warn"),
    ("Recovery Errors", 1, "fail"),
    ("CRC Errors", 12, "fail"),
]


@pytest.mark.parametrize(("name", "count", "verdict"), BAD_COUNTERS)
def test_one_error_on_one_link(name: str, count: int, verdict: str) -> None:
    text = change(ERRORS, 3, rf"Link 5: {name}: 0", f"Link 5: {name}: {count}")
    assert wrong(errors(text)) == [("errors", verdict, "GPU 3 link 5")]
    assert wrong(errors(text, status=STATUS)) == [("errors", verdict, "GPU 3 link 5")]


def test_clean_counters_pass_in_one_check() -> None:
    (check,) = errors(ERRORS, status=STATUS)
    assert (check.verdict, check.value, check.reason) == ("pass", 0, "crc, recovery, replay of 144 links")


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("Malformed packet Errors: 0", "Malformed packet Errors: 3", "fail"),
        ("Buffer overrun Errors: 0", "Buffer overrun Errors: 1", "fail"),
        ("Link recovery failed events: 0", "Link recovery failed events: 1", "fail"),
        ("Link recovery successful events: 0", "Link recovery successful events: 1", "warn"),
        ("Total link recovery events: 0", "Total link recovery events: 1", "pass"),
        ("Effective Errors: 0", "Effective Errors: 1", "fail"),
        ("Symbol Errors: 0", "Symbol Errors: 4", "fail"),
        ("Symbol BER: 15e-255", "Symbol BER: 15e-9", "warn"),
        ("Effective BER: 15e-255", "Effective BER: nonsense", "unknown"),
        ("FEC Errors - 2: 0", "FEC Errors - 2: 7", "pass"),
        ("Raw Errors Lane 0: 82", "Raw Errors Lane 0: 9999999", "pass"),
        ("Tx discards: 0", "Tx discards: 2", "fail"),
        ("Tx discards: 0", "Strange new Errors: 2", "unknown"),
    ],
)
def test_counters_of_newer_drivers(old: str, new: str, verdict: str) -> None:
    assert wrong(errors(NEW_ERRORS, TWO)) == []
    got = {v for _c, v, _s in wrong(errors(NEW_ERRORS.replace(f"Link 7: {old}", f"Link 7: {new}", 1), TWO))}
    if verdict == "unknown":
        assert "unknown" in got
    else:
        assert got == (set() if verdict == "pass" else {verdict})


@pytest.mark.parametrize(("count", "verdict"), [(0, None), (1, "warn"), (100, "warn"), (99999, "warn")])
def test_crc_of_a_flit_is_sent_again_by_the_hardware(count: int, verdict: str | None) -> None:
    text = ERRORS.replace("CRC Errors", "CRC FLIT Errors")
    got = wrong(errors(change(text, 0, r"Link 2: CRC FLIT Errors: 0", f"Link 2: CRC FLIT Errors: {count}")))
    assert got == ([] if verdict is None else [("errors", verdict, "GPU 0 link 2")])


def test_a_heading_for_each_link_reads_alike() -> None:
    text = re.sub(r"\t Link (\d+): Replay", r"\t Link \1:\n\t\t Replay", ERRORS)
    text = re.sub(r"\t Link \d+: (Recovery|CRC)", r"\t\t \1", text)
    assert wrong(errors(text)) == []
    assert parse(text).gpus[3].counters == parse(ERRORS).gpus[3].counters


MISSING = {
    "a counter gone": change(ERRORS, 7, r"\t Link 17: CRC Errors: 0\n", ""),
    "a link gone": change(ERRORS, 7, r"(?s)\t Link 17: .*\Z", ""),
    "no number": change(ERRORS, 1, r"Link 2: Replay Errors: 0", "Link 2: Replay Errors: N/A"),
    "empty": "",
    "only heads": "".join(HEAD.format(g, g) for g in range(8)),
}


@pytest.mark.parametrize("text", MISSING.values(), ids=MISSING.keys())
def test_counters_that_are_not_there_are_unknown(text: str) -> None:
    for status in (None, STATUS):
        assert {v for _c, v, _s in wrong(errors(text, status=status))} == {"unknown"}


def test_growth() -> None:
    now = change(ERRORS, 3, r"Link 5: CRC Errors: 0", "Link 5: CRC Errors: 7")
    then = change(ERRORS, 3, r"Link 5: CRC Errors: 0", "Link 5: CRC Errors: 4")
    (check,) = _nvlink_status.judge_growth(parse(now), parse(then))
    assert (check.verdict, check.subject, check.value) == ("fail", "GPU 3 link 5", "crc +3")
    assert wrong(_nvlink_status.judge_growth(parse(now), parse(now))) == []
    assert wrong(_nvlink_status.judge_growth(parse(now), parse("")))[0][1] == "unknown"


@pytest.mark.parametrize(
    ("name", "then", "now", "verdict"),
    [
        ("Replay Errors", 40, 40, "pass"),
        ("Replay Errors", 40, 41, "fail"),
        ("Recovery Errors", 0, 1, "fail"),
        ("CRC FLIT Errors", 5000, 5099, "warn"),
        ("CRC FLIT Errors", 5000, 5100, "fail"),
    ],
)
def test_what_counts_is_what_was_added(name: str, then: int, now: int, verdict: str) -> None:
    text = ERRORS.replace("CRC Errors", "CRC FLIT Errors")
    old, new = (parse(change(text, 3, rf"Link 5: {name}: 0", f"Link 5: {name}: {n}")) for n in (then, now))
    (check,) = _nvlink_status.judge_growth(new, old)
    assert check.verdict == verdict
    if "FLIT" in name:
        assert _nvlink_status.judge_growth(new, old, 1000)[0].verdict == "warn"
        assert _nvlink_status.judge_growth(new, old, 1)[0].verdict == "fail"


# --- fabric


def test_the_fabric_of_every_gpu_is_judged() -> None:
    assert [(c.check.removeprefix("nvlink_status."), c.verdict, c.subject) for c in fabric(QUERY)] == [
        ("fabric_state", "pass", "all 8 GPUs"),
        ("fabric_health", "pass", "all GPUs"),
        ("fabric_clique", "pass", "all GPUs"),
    ]


@pytest.mark.parametrize("gpu", range(8))
@pytest.mark.parametrize(
    ("line", "value", "check", "verdict"),
    [
        ("State", "In Progress", "fabric_state", "fail"),
        ("State", "Not Started", "fabric_state", "fail"),
        ("State", "N/A", "fabric_state", "fail"),
        ("Status", "Insufficient Resources", "fabric_state", "fail"),
        ("Status", "N/A", "fabric_state", "fail"),
        ("Bandwidth", "Degraded", "fabric_health", "fail"),
        ("Summary", "Unhealthy", "fabric_health", "fail"),
        ("Route Unhealthy", "True", "fabric_health", "fail"),
        ("Incorrect Configuration", "Insufficient NVLinks", "fabric_health", "fail"),
        ("Bandwidth", "N/A", "fabric_health", "pass"),
        ("CliqueId", "1", "fabric_clique", "fail"),
    ],
)
def test_one_gpu_out_of_the_fabric(gpu: int, line: str, value: str, check: str, verdict: str) -> None:
    text = change(QUERY, gpu, rf"(?s)^(    Fabric\n.*?^ +{line} +): [^\n]*", rf"\1: {value}")
    got = [(c, v) for c, v, _s in wrong(fabric(text))]
    assert got == ([] if verdict == "pass" else [(check, verdict)])


def test_a_fabric_block_that_is_not_there_is_unknown() -> None:
    text = change(QUERY, 4, r"(?s)^    Fabric\n.*?^    Processes", "    Processes")
    assert ("fabric_state", "unknown", "GPU 4 00000000:9D:00.0") in wrong(fabric(text))
    old = (FIXTURES / "nvidia-smi-470.82.01-q-a100x2.txt").read_text()
    assert wrong(fabric(old, TWO)) == [("fabric_state", "unknown", "all 2 GPUs")]


def test_a_board_without_nvswitch_has_no_fabric() -> None:
    for name, board in (("565.57.01-q-nvl2", "h100_nvl"), ("550.90.07-q-hgx4", "hgx_h100_4")):
        text = (FIXTURES / f"nvidia-smi-{name}.txt").read_text()
        checks = fabric(text, Limits(profile(board)))
        assert [c.verdict for c in checks] == ["pass"]
        assert "has no NVSwitch" in checks[0].reason


def test_seven_of_eight_gpus_are_not_every_gpu() -> None:
    text = re.sub(r"(?ms)^GPU 00000000:DF.*\Z", "", QUERY)
    assert ("gpus", "unknown", "node") in wrong(fabric(text))
    announced = re.sub(r"(?m)^(Attached GPUs\s+: )8$", r"\g<1>7", text)
    assert ("gpus", "fail", "node") in wrong(fabric(announced))


def test_readings() -> None:
    row = _nvlink_status.readings(parse(STATUS), parse(ERRORS), _smi_query.parse(QUERY))[5]
    assert (row["index"], row["active"], row["speeds"]["17"], row["errors"]) == (5, 18, 26.562, {})
    assert (row["fabric_state"], row["fabric_status"], row["fabric_clique"]) == ("Completed", "Success", 0)


# --- without a board


def test_without_a_board_every_listed_link_must_be_active_and_as_fast_as_the_others() -> None:
    anything = Limits(None)
    v100 = "".join(
        f"GPU {g}: Tesla V100\n" + "".join(f"\t Link {n}: 25.781 GB/s\n" for n in range(6)) for g in range(4)
    )
    assert wrong(links(v100, anything)) == []
    down = change(v100, 3, r"Link 3: 25.781 GB/s", "Link 3: <inactive>")
    assert wrong(links(down, anything)) == [("links", "fail", "GPU 3 link 3")]
    slow = change(v100, 3, r"Link 3: 25.781 GB/s", "Link 3: 12.890 GB/s")
    assert wrong(links(slow, anything)) == [("speed", "fail", "GPU 3 link 3")]
    assert wrong(links(v100, dataclasses.replace(anything, gpus=8))) == [("gpus", "fail", "node")]
    assert wrong(errors(ERRORS, anything)) == []
    assert {v for _c, v, _s in wrong(errors(MISSING["a link gone"], anything))} == {"unknown"}


def test_without_a_board_the_fabric_is_judged_where_the_driver_prints_a_state() -> None:
    anything = Limits(None)
    assert wrong(fabric(QUERY, anything)) == []
    text = change(QUERY, 2, r"(?s)^(    Fabric\n.*?^ +State +): [^\n]*", r"\1: In Progress")
    assert wrong(fabric(text, anything)) == [("fabric_state", "fail", "GPU 2 00000000:52:00.0")]
    assert wrong(fabric((FIXTURES / "nvidia-smi-565.57.01-q-nvl2.txt").read_text(), anything)) == []


def named(product: str, lines: str, gpus: int = 2) -> str:
    return "".join(f"GPU {i}: {product} (UUID: GPU-{i})\n{lines}" for i in range(gpus))


NONE = "NVML: Unable to retrieve NVLink information as all links are inActive\n"
BRIDGED = "".join(f"\t Link {n}: {'<inactive>' if n in (4, 5, 10, 11, 16, 17) else '26.562 GB/s'}\n" for n in range(18))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (named("NVIDIA GeForce RTX 3090", NONE), []),
        (named("NVIDIA L4", "\t Link 0: <inactive>\n", 1), []),
        (named("NVIDIA GH200 480GB", NONE, 1), []),
        (named("NVIDIA RTX A4000", "Device does not have or support Nvlink\n"), []),
        (named("NVIDIA H100 PCIe", BRIDGED), []),
        (named("NVIDIA H100 NVL", NONE), []),
        (named("NVIDIA B200", NONE, 8), [("links", "fail", "all 8 GPUs")]),
        (named("NVIDIA A100-SXM4-80GB", NONE), [("links", "fail", "all 2 GPUs")]),
        (named("NVIDIA H200", NONE), [("links", "fail", "all 2 GPUs")]),
        (named("NVIDIA H100 80GB HBM3", BRIDGED), [("links", "fail", "GPU 0"), ("links", "fail", "GPU 1")]),
    ],
)
def test_without_a_board_the_product_tells_whether_links_may_be_down(text: str, found: list[object]) -> None:
    assert wrong(links(text, Limits(None))) == found


def test_what_is_said_behind_the_name_counts() -> None:
    text = (
        "GPU 0: NVIDIA RTX A4000 (UUID: GPU-a) Device does not have or support Nvlink\n"
        "GPU 1: Quadro RTX 5000 (UUID: GPU-b) NVML: Unable to retrieve Nvlink information as all links are inActive\n"
    )
    assert [gpu.none for gpu in parse(text).gpus] == [True, True]
    assert parse("GPU 0: NVIDIA H200 (UUID: GPU-a) what else\n").problems


def test_a_doubled_name_is_not_a_reading() -> None:
    doubled = re.sub(r"(?m)^(GPU 3: .*\n)", r"\1\1", STATUS)
    assert wrong(links(doubled)) == [("output", "unknown", "nvlink -s")]
    assert parse(STATUS + ERRORS).problems == ()


def test_a_counter_that_is_there_twice_is_not_a_reading() -> None:
    doubled = ERRORS.replace("\t Link 5: CRC Errors: 0\n", "\t Link 5: CRC Errors: 0\n" * 2, 1)
    assert ("output", "unknown", "nvlink -e") in wrong(errors(doubled))


def test_a_link_faster_than_the_board_is_not_believed() -> None:
    assert wrong(links(change(STATUS, 2, "Link 7: 26.562", "Link 7: 96.562"))) == [("speed", "unknown", "GPU 2 link 7")]

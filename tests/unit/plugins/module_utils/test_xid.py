# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the reader and the judgement of the GPU driver's errors in the kernel log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _xid
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import worst

FIXTURES = Path(__file__).parents[2] / "fixtures"
CLEAN = (FIXTURES / "dmesg-2.38-clean-hgx8.txt").read_text()
ECC = (FIXTURES / "dmesg-2.38-ecc-hgx8.txt").read_text()
FALLEN = (FIXTURES / "journalctl-252-short-iso-fallen.txt").read_text()
TWO_BOOTS = (FIXTURES / "kern.log-2-boots.txt").read_text()


def judged(text: str, **options: object) -> list[tuple[str, str, str, object]]:
    checks = _xid.judge(_xid.parse(text), None, **options)  # type: ignore[arg-type]
    return [(c.check, c.subject, c.verdict, c.value) for c in checks]


def verdict(text: str, **options: object) -> str:
    return worst(v for _check, _subject, v, _value in judged(text, **options))


def test_a_log_since_boot_without_an_error_passes() -> None:
    assert judged(CLEAN) == [
        ("xid.log", "kernel log", "pass", "11 lines, since this boot"),
        ("xid.event", "all GPUs", "pass", "no Xid"),
    ]


def test_every_xid_of_a_failing_memory_is_named_once() -> None:
    assert judged(ECC, gpus={"0000:3b:00": "1", "0000:9b:00": "5"}) == [
        ("xid.log", "kernel log", "pass", "19 lines, since this boot"),
        ("xid.event", "GPU 1 0000:3b:00", "warn", "Xid 31"),
        ("xid.event", "GPU 5 0000:9b:00", "fail", "Xid 48"),
        ("xid.event", "GPU 5 0000:9b:00", "fail", "Xid 63"),
        ("xid.event", "GPU 5 0000:9b:00", "fail", "Xid 94"),
        ("xid.event", "GPU 5 0000:9b:00", "warn", "Xid 45"),
        ("xid.event", "GPU 5 0000:9b:00", "fail", "Xid 154, Drain and Reset"),
    ]


def test_a_lost_gpu_and_its_switch() -> None:
    assert judged(FALLEN)[1:] == [
        ("xid.event", "GPU 0000:cb:00", "fail", "Xid 79"),
        ("xid.event", "GPU 0000:cb:00", "fail", "Xid 154, Node Reboot Required"),
        ("xid.switch", "NVSwitch 3 0000:05:00", "fail", "SXid 24007"),
        ("xid.switch", "NVSwitch 0 0000:02:00", "warn", "SXid 20009"),
        (
            "xid.driver",
            "driver",
            "fail",
            "2025-11-14T09:41:30+0000 gpu-17 kernel: NVRM: GPU 0000:cb:00.0: GPU has fallen off the bus.",
        ),
    ]


def test_only_the_last_boot_of_a_file_counts() -> None:
    assert judged(TWO_BOOTS) == [
        ("xid.log", "kernel log", "pass", "3 lines, since this boot"),
        ("xid.event", "GPU 0000:01:00", "warn", "Xid 13"),
    ]


SHAPES = {
    "dmesg": ("[ 8659.726062] NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", 79, "0000:01:00"),
    "without PCI": ("[  10.1] NVRM: Xid (0000:03:00): 31, Ch 00000010, engmask 00000101", 31, "0000:03:00"),
    "bus and device": ("NVRM: Xid (0001:00): 13, 0003 00000000 00008297 000015e0 00000000", 13, "0000:01:00"),
    "with function": ("NVRM: Xid (PCI:0001:00:00.0): 79, GPU has fallen off the bus", 79, "0001:00:00"),
    "MIG": ("[1.5] NVRM: Xid (PCI:0000:C4:00 GPU-I:05): 95, pid=1, Uncontained: FBHUB. RST: Yes", 95, "0000:c4:00"),
    "NVRM twice": ("NVRM: NVRM: Xid (PCI:0000:3b:00): 48, DBE", 48, "0000:3b:00"),
    "no text": ("NVRM: Xid (PCI:0000:3b:00): 62", 62, "0000:3b:00"),
    "caller": ("[   12.345678][ T1234] NVRM: Xid (PCI:0000:3b:00): 119, pid=1, name=x, Timeout", 119, "0000:3b:00"),
    "level": ("kern  :err   : 2025-01-25T10:34:54,859532+00:00 NVRM: Xid (PCI:0000:3b:00): 74, x", 74, "0000:3b:00"),
    "ctime": (
        "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics",
        13,
        "0000:cb:00",
    ),
    "another language": ("kwi 15 07:56:59 testowy kernel: NVRM: Xid (PCI:0000:07:00): 109, p", 109, "0000:07:00"),
    "since the line before": ("[    9.10 <    0.000010>] NVRM: Xid (PCI:0000:3b:00): 62, x", 62, "0000:3b:00"),
    "relative": ("[  +0.000005] NVRM: Xid (PCI:0000:3b:00): 62, x", 62, "0000:3b:00"),
    "coloured": ("\x1b[32m[   9.1] \x1b[0m\x1b[33mNVRM: \x1b[0mXid (PCI:0000:3b:00): 62, x", 62, "0000:3b:00"),
    "short-full": ("Fri 2025-11-14 09:41:30 UTC gpu-17 kernel: NVRM: Xid (PCI:0000:3b:00): 62, x", 62, "0000:3b:00"),
    "short-unix": ("1763113290.123456 gpu-17 kernel: NVRM: Xid (PCI:0000:3b:00): 62, x", 62, "0000:3b:00"),
    "kmsg": ("3,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 64, Row Remapper: Error", 64, "0000:3b:00"),
    "json": (
        '{"MESSAGE":"NVRM: Xid (PCI:0000:3b:00): 64, Row","__REALTIME_TIMESTAMP":"1700000000000000"}',
        64,
        "0000:3b:00",
    ),
}


@pytest.mark.parametrize(("line", "xid", "pci"), SHAPES.values(), ids=SHAPES.keys())
def test_shapes_of_a_line(line: str, xid: int, pci: str) -> None:
    log = _xid.parse(line + "\n")
    assert [(e.xid, e.pci) for e in log.events] == [(xid, pci)]
    assert not log.unreadable
    assert log.kernel_lines == (0 if line.startswith("NVRM") else 1)


GPU = "[ 99.0] NVRM: Xid (PCI:0000:66:00): "
SWITCH = "[ 99.0] nvidia-nvswitch3: SXid (PCI:0000:05:00.0): "
CHANGED = "154, GPU recovery action changed from"
CASES = {
    "empty": ("", "unknown", "it is empty"),
    "an error text": ("-- No entries --\n", "unknown", "it has no line of a kernel log"),
    "garbage": ("\x7fELF 8<<<\n", "unknown", "it has no line of a kernel log"),
    "the buffer has wrapped": (CLEAN.split("\n", 6)[6], "unknown", "does not reach back far enough"),
    "cut off": (CLEAN[:-10], "unknown", "its last line is cut off"),
    "an Xid nobody knows": (f"{CLEAN}{GPU}999, new\n", "unknown", "Xid 999 is not in the action table"),
    "an Xid without a number": (f"{CLEAN}{GPU}abc, pid=1\n", "unknown", "cannot be read"),
    "recovery action None": (
        f"{CLEAN}{GPU}{CHANGED} 0x2 (Node Reboot Required) to 0x0 (None)\n",
        "pass",
        "took its recovery action back",
    ),
    "recovery action in other words": (
        f"{CLEAN}{GPU}{CHANGED} 0x0 (None) to 0x1 (PF FLR)\n",
        "fail",
        "asked for a recovery action",
    ),
    "recovery action not readable": (f"{CLEAN}{GPU}{CHANGED}\n", "unknown", "without a recovery action"),
    "only data of a switch": (f"{CLEAN}{SWITCH}12030, Data {{0x1}}\n", "unknown", "does not say whether"),
    "12028 stalls": (f"{CLEAN}{SWITCH}12028, Non-fatal, Link 32 egress non-posted PRIV error\n", "fail", "stalls"),
    "a word of somebody else": (f"{CLEAN}Dec  6 17:49:03 node3 monitor[7]: Xid: none\n", "pass", "covers"),
    "lost messages": (f"{CLEAN}[ 9.5] nvidia_error: 12 callbacks suppressed\n", "warn", "messages were dropped"),
    "no driver": (
        "\n".join(x for x in CLEAN.split("\n") if "NVRM" not in x and "nvidia" not in x),
        "warn",
        "no line since this boot",
    ),
    "adapter does not start": (
        f"{CLEAN}[ 9.5] NVRM: GPU 0000:66:00.0: RmInitAdapter failed! (0x22:0x56:884)\n",
        "fail",
        "cannot start",
    ),
}


@pytest.mark.parametrize(("text", "wanted", "reason"), CASES.values(), ids=CASES.keys())
def test_verdicts(text: str, wanted: str, reason: str) -> None:
    checks = _xid.judge(_xid.parse(text), None)
    assert worst(c.verdict for c in checks) == wanted
    assert any(reason in c.reason for c in checks if c.verdict == wanted)


def test_a_window_needs_a_log_that_is_as_old() -> None:
    wrapped = CLEAN.split("\n", 6)[6] + "[ 900.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=1\n[ 2000.0] eth0: up\n"
    assert verdict(wrapped) == "unknown"
    assert verdict(wrapped, since=500.0) == "pass"
    assert verdict(wrapped, since=1500.0) == "warn"
    assert verdict(wrapped, since=5000.0) == "unknown"
    assert verdict(wrapped, since=500.0, now=1300.0) == "warn"


def test_a_window_over_dates() -> None:
    assert verdict(TWO_BOOTS + "Dec  6 19:30:00 node3 kernel: eth0: up\n", since=60.0) == "pass"
    assert verdict(FALLEN, since=60.0) == "fail"


def test_the_drivers_other_lines_are_in_the_window_too() -> None:
    lost = "[ 20.0] NVRM: GPU 0000:66:00.0: RmInitAdapter failed! (0x22:0x56:884)\n"
    for line in (lost, f"{GPU}abc, pid=1\n", "[ 20.0] nvidia_error: 12 callbacks suppressed\n"):
        text = f"{CLEAN}{line}[ 2000.0] eth0: up\n"
        assert verdict(text) == verdict(text, since=1990.0) != "pass"
        assert verdict(text, since=600.0) == "pass"


RESET = f"{GPU}{CHANGED} 0x1 (GPU Reset Required) to 0x0 (None)\n"


@pytest.mark.parametrize(
    ("tail", "wanted"),
    [
        (RESET, "warn"),
        (RESET.replace("GPU Reset Required", "PF FLR"), "warn"),
        (RESET.replace("0x1 (GPU Reset Required)", "0x4 (Drain and Reset)"), "warn"),
        (RESET.replace("0x1 (GPU Reset Required)", "0x3 (Drain P2P)"), "fail"),
        (RESET.replace("0000:66:00", "0000:3b:00"), "fail"),
        (f"{RESET}{GPU}95, pid=1, Uncontained\n", "fail"),
        (f"{RESET}{GPU}31, pid=1\n", "warn"),
        (f"{RESET}{GPU}{CHANGED} 0x0 (None) to 0x1 (GPU Reset Required)\n", "fail"),
        (f"{RESET}{GPU}79, GPU has fallen off the bus.\n{RESET}", "fail"),
        (f"{GPU}64, Row Remapper: Error\n{RESET}", "fail"),
        (f"{GPU}{CHANGED}\n", "fail"),
    ],
)
def test_a_reset_that_the_driver_confirms_ends_the_xids_before_it(tail: str, wanted: str) -> None:
    failed = f"{CLEAN}{GPU}95, pid=1, Uncontained\n{GPU}{CHANGED} 0x0 (None) to 0x1 (GPU Reset Required)\n"
    assert verdict(failed) == "fail"
    assert verdict(failed + tail) == wanted


def test_errors_of_the_burn_in() -> None:
    before = _xid.counted(_xid.listed(_xid.parse(CLEAN).events, {}))
    more = CLEAN + "[ 900.0] NVRM: Xid (PCI:0000:3b:00): 31, pid=1\n"
    assert judged(CLEAN, before=before)[1] == ("xid.growth", "all GPUs", "pass", 0)
    assert judged(more, before=before)[2] == ("xid.growth", "GPU 0000:3b:00", "warn", 1)
    assert judged(more.replace(": 31,", ": 45,"), before=before)[2][2] == "warn"
    assert judged(more.replace(": 31,", ": 106,"), before=before)[2][2] == "pass"
    worse = more.replace(": 31,", ": 63,")
    assert judged(worse, before=before)[2] == ("xid.growth", "GPU 0000:3b:00", "fail", 1)
    assert judged(CLEAN + RESET, before=before)[2][2] == "warn"
    old = _xid.counted(_xid.listed(_xid.parse(more).events, {}))
    assert verdict(more, before=old) == "warn"
    assert verdict(worse, before=_xid.counted(_xid.listed(_xid.parse(worse).events, {})), new_boot=True) == "fail"
    assert judged(more, before=old, new_boot=True)[2] == ("xid.growth", "GPU 0000:3b:00", "warn", 1)
    assert verdict(CLEAN, before="xid.json cannot be read") == "unknown"


def test_growth_in_a_log_that_has_lost_lines() -> None:
    part = "[ 900.0] NVRM: Xid (PCI:0000:3b:00): 63, x\n[ 2000.0] eth0: up\n"
    before = {("Xid", 63, "0000:3b:00"): 1}
    (found,) = (c for c in _xid.judge(_xid.parse(part), None, before=before, read_until=1e3) if "growth" in c.check)
    assert (found.verdict, "may be one of before" in found.reason) == ("unknown", True)
    assert judged(part, before={}, read_until=1e3)[2][:3] == ("xid.growth", "GPU 0000:3b:00", "fail")
    assert judged("[ 900.0] eth0: up\n", before=before, read_until=1e3)[0][2] == "pass"
    assert judged("[ 950.0] eth0: up\n", before=before, read_until=1e3)[0][2] == "unknown"


@pytest.mark.parametrize("events", [None, "x", [1], [{}], [{"kind": "Xid", "xid": 1, "pci": "", "count": 0}]])
def test_evidence_without_events_is_refused(events: object) -> None:
    with pytest.raises(ValueError, match=r"it has no list|cannot be read"):
        _xid.counted(events)


def test_the_list_of_errors_is_short() -> None:
    listed = _xid.listed(_xid.parse(ECC).events, {"0000:9b:00": "5"})
    assert [(e["xid"], e["gpu"], e["count"]) for e in listed] == [
        (31, "", 1),
        (48, "5", 1),
        (63, "5", 1),
        (94, "5", 1),
        (45, "5", 2),
        (154, "5", 1),
    ]
    assert listed[4]["text"] == "pid=52111, name=VLLM::Worker_TP, Ch 00000009 caused by previous Xid 94"


def test_gpus_by_address() -> None:
    text = "0, GPU-8f2b, 00000000:3B:00.0\n1, GPU-9c1d, 00000000:9B:00.0\nNo devices were found\n"
    assert _xid.parse_gpus(text) == {"0000:3b:00": "0", "0000:9b:00": "1"}


def test_the_page_for_people_has_the_same_table() -> None:
    page = (Path(__file__).parents[4] / "docs/xid.md").read_text()
    rows = {
        int(number): (meaning, action)
        for numbers, meaning, action in re.findall(r"^\| ([0-9][0-9, -]*) \| ([^|]+) \| ([^|]+) \|", page, re.MULTILINE)
        for number in _numbers(numbers)
    }
    assert rows == {xid: (e.meaning, e.action) for xid, e in _xid.TABLE.items()}


def _numbers(text: str) -> list[int]:
    found: list[int] = []
    for part in text.replace(" ", "").split(","):
        low, _dash, high = part.partition("-")
        found += range(int(low), int(high or low) + 1)
    return found


EXCERPT = "[Wed Jul 31 23:14:18 2024] NVRM: Xid (PCI:0000:00:05): 43, pid=1045242, name=pt_main_thread, Ch 00000008\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (EXCERPT, "warn"),
        (EXCERPT.replace(": 43,", ": 79,"), "fail"),
        (EXCERPT.replace(": 43,", ": 999,"), "unknown"),
        (EXCERPT.rstrip("\n"), "unknown"),
        ("[Wed Jul 31 23:14:18 2024] NVRM: GPU at PCI:0000:00:05: GPU-efbd\n", "unknown"),
    ],
)
def test_an_excerpt_is_judged_by_the_errors_in_it(text: str, found: str) -> None:
    assert verdict(text, excerpt=True) == found
    assert verdict(text) == ("fail" if found == "fail" else "unknown")


def test_the_log_of_talos_is_a_kernel_log() -> None:
    line = "10.0.0.7: kern: warning: [2026-04-22T21:30:51.870495804Z]: NVRM: Xid (PCI:0000:0b:00): 154, GPU recovery "
    log = _xid.parse(f"{line}action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n")
    assert (log.kernel_lines, log.events[0].xid, log.events[0].time) == (1, 154, "2026-04-22T21:30:51Z")


def test_a_function_behind_the_bus_id_is_read_with_either_mark() -> None:
    for address in ("0000:01:00.0", "0000:01:00:0", "0000:01:00"):
        (event,) = _xid.parse(f"kernel: NVRM: Xid (PCI:{address}): 79, GPU has fallen off the bus.\n").events
        assert (event.xid, event.pci) == (79, "0000:01:00")

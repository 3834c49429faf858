# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The readers of the host's gates on arbitrary and on damaged text: no exception, and nothing is passed by garbage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cpuidle, _kernel_params, _numa_binding, _xid
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._kernel_params import Readings, Wanted
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._numa_binding import Unit
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, worst
from hypothesis import given
from hypothesis import strategies as st

FIXTURES = Path(__file__).parents[2] / "fixtures"
UNIT = Unit("iu0", frozenset(range(28)), 0)
WANTED = Wanted(
    parameters=["intel_idle.max_cstate=0"],
    forbidden=["nomodeset"],
    release="6.1.0-40-amd64",
    sysctls={"kernel.numa_balancing": ["0"]},
    modules={"nvme_core.multipath": ["Y"]},
    governor="performance",
    hugepages="madvise",
    acs_off=True,
)


def xid(text: str) -> list[Check]:
    return _xid.judge(_xid.parse(text), None)


def xid_window(text: str) -> list[Check]:
    return _xid.judge(_xid.parse(text), None, since=60.0, now=100.0, gpus={"0000:3b:00": "0"}, before={})


def kernel(text: str) -> list[Check]:
    return _kernel_params.judge(Readings(**{_kernel_params.kind(text): text}), WANTED)


def kernel_all(text: str) -> list[Check]:
    return _kernel_params.judge(Readings(text, text, text, text, text, text, text), WANTED)


def numa(text: str) -> list[Check]:
    _numa_binding.parse(text)
    return _numa_binding.judge_text(UNIT, text)


def numa_process(text: str) -> list[Check]:
    return _numa_binding.judge_process(UNIT, "pid 7", text, text)


def idle(text: str) -> list[Check]:
    try:
        return _cpuidle.judge(_cpuidle.parse(text), 2, "test")
    except ValueError:
        return []


JUDGES: dict[str, Callable[[str], list[Check]]] = {
    "xid": xid,
    "xid_window": xid_window,
    "kernel": kernel,
    "kernel_all": kernel_all,
    "numa": numa,
    "numa_process": numa_process,
    "idle": idle,
}
SEEDS: dict[str, tuple[str, ...]] = {
    "xid": ("dmesg-2.38-ecc-hgx8.txt", "journalctl-252-short-iso-fallen.txt", "kern.log-2-boots.txt"),
    "xid_window": ("dmesg-2.38-ecc-hgx8.txt", "journalctl-252-short-iso-fallen.txt", "kern.log-2-boots.txt"),
    "kernel": ("pciutils-3.9-lspci-vvv-acs-off.txt",),
    "kernel_all": ("pciutils-3.9-lspci-vvv-acs-off.txt",),
    "numa": ("linux-6.1-numa_maps-22-percent-remote.txt", "linux-6.1-status-vllm.txt"),
    "numa_process": ("linux-6.1-numa_maps-22-percent-remote.txt", "linux-6.1-status-vllm.txt"),
    "idle": ("cpupower-6.1-idle-info.txt",),
}
TEXTS = {name: (FIXTURES / name).read_text() for names in SEEDS.values() for name in names}

# Words of the formats, so that arbitrary text comes near them.
WORDS = (
    "available: 2 nodes (0-1)\n",
    "node 0 cpus: 0 1\n",
    "node 0 size: 12 MB\n",
    "Per-node process memory usage (in MBs) for PID 1 (x)\n",
    "Total 1.00 2.00 3.00\n",
    "Node 0 Node 1 Total\n",
    "NVRM: Xid (PCI:0000:3b:00): 79, x\n",
    "[ 12.5] ",
    "SXid (PCI:",
    "nvidia-nvswitch1: ",
    "Linux version 6\n",
    "-- Boot x --\n",
    "2025-11-14T06:02:11+0000 ",
    "ACSCtl: ReqRedir- CmpltRedir-",
    "16:00.0 PCI bridge: x\n",
    "\tBus: primary=00, secondary=01, subordinate=ff\n",
    " = ",
    "a.b = 1\n",
    "7f00 bind:0 anon=1 N0=1 kernelpagesize_kB=4\n",
    "N0=",
    "anon=",
    "huge ",
    "bind:",
    "default ",
    "Cpus_allowed_list:\t0-3\n",
    "pid 1's current affinity list: 0\n",
    "physcpubind: 0 \n",
    "Number of idle states: 1\n",
    "C6:\n",
    "Latency: 1\n",
    "analyzing CPU 0:\n",
    "/cpu0/cpuidle/state0/latency:1\n",
    "\n",
    "\t",
    "\x00",
    "�",
    "0",
    "9",
)
soup = st.lists(st.one_of(st.sampled_from(WORDS), st.text(max_size=8)), max_size=20).map("".join)


@pytest.mark.parametrize("name", JUDGES)
@given(text=st.one_of(st.text(max_size=200), soup))
def test_arbitrary_text_raises_nothing(name: str, text: str) -> None:
    JUDGES[name](text)


@pytest.mark.parametrize("name", JUDGES)
@given(text=st.text(max_size=200))
def test_garbage_never_passes(name: str, text: str) -> None:
    assert worst(c.verdict for c in JUDGES[name](text)) != "pass"


@st.composite
def damaged(draw: st.DrawFn, names: tuple[str, ...]) -> str:
    """A real report with lines taken out, doubled or swapped, digits changed, and cut anywhere."""
    lines = TEXTS[draw(st.sampled_from(names))].splitlines(keepends=True)
    for _step in range(draw(st.integers(0, 4))):
        if not lines:
            break
        at = draw(st.integers(0, len(lines) - 1))
        how = draw(st.sampled_from(["delete", "double", "swap", "digit", "cut"]))
        if how == "delete":
            del lines[at]
        elif how == "double":
            lines.insert(at, lines[at])
        elif how == "swap":
            other = draw(st.integers(0, len(lines) - 1))
            lines[at], lines[other] = lines[other], lines[at]
        elif how == "digit":
            places = [i for i, c in enumerate(lines[at]) if c.isdigit()]
            if places:
                place = draw(st.sampled_from(places))
                lines[at] = lines[at][:place] + draw(st.sampled_from("0123456789x ")) + lines[at][place + 1 :]
        else:
            lines[at] = lines[at][: draw(st.integers(0, len(lines[at])))]
    return "".join(lines)


@pytest.mark.parametrize("name", JUDGES)
@given(data=st.data())
def test_damaged_reports_raise_nothing(name: str, data: st.DataObject) -> None:
    JUDGES[name](data.draw(damaged(SEEDS[name])))


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_log_cut_inside_a_line_never_passes(cut: int) -> None:
    text = TEXTS["dmesg-2.38-ecc-hgx8.txt"]
    size = len(text) * cut // 60
    if text[size - 1] != "\n":
        assert worst(c.verdict for c in xid(text[:size])) in ("fail", "unknown")


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_cut_numa_maps_of_a_bad_process_never_passes(cut: int) -> None:
    text = TEXTS["linux-6.1-numa_maps-22-percent-remote.txt"]
    assert worst(c.verdict for c in numa(text[: len(text) * cut // 60])) in ("fail", "unknown", "warn")


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_cut_lspci_never_passes(cut: int) -> None:
    text = TEXTS["pciutils-3.9-lspci-vvv-acs-off.txt"]
    part = text[: len(text) * cut // 60]
    checks = _kernel_params.judge(Readings(lspci=part), Wanted(acs_off=True))
    whole = "GH100" in part and part.endswith("\n")
    assert whole or worst(c.verdict for c in checks) != "pass"


@given(line=st.integers(11, 18))
def test_any_xid_that_is_left_is_seen(line: int) -> None:
    lines = TEXTS["dmesg-2.38-ecc-hgx8.txt"].splitlines(keepends=True)
    only = [*lines[:11], lines[line]]
    assert ("Xid (" in lines[line]) == any(c.value != "no Xid" for c in xid("".join(only)) if c.check == "xid.event")

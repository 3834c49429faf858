# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the readers and the judgement of the running kernel's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _kernel_params as kernel
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._kernel_params import Readings, Wanted

LSPCI = (Path(__file__).parents[2] / "fixtures/pciutils-3.9-lspci-vvv-acs-off.txt").read_text()
CMDLINE = (
    "BOOT_IMAGE=/boot/vmlinuz-6.1.0-40-amd64 root=UUID=5d1f ro quiet console=tty0 console=ttyS0,115200 "
    'intel_idle.max_cstate=9 dyndbg="file a.c +p" intel_idle.max_cstate=0 processor.max_cstate=1 -- 3 nokaslr\n'
)
CSTATES = ["intel_idle.max_cstate=0", "processor.max_cstate=1"]


def judged(read: Readings, wanted: Wanted) -> list[tuple[str, str, str, object]]:
    return [(c.check, c.subject, c.verdict, c.value) for c in kernel.judge(read, wanted)]


def one(read: Readings, wanted: Wanted) -> tuple[str, object]:
    (check,) = [c for c in kernel.judge(read, wanted) if c.check != "kernel_params.duplicates"]
    return check.verdict, check.value


def test_the_last_of_several_values_counts_and_both_are_named() -> None:
    checks = kernel.judge(Readings(cmdline=CMDLINE), Wanted(parameters=CSTATES, forbidden=["nokaslr", "quiet=1"]))
    assert [(c.check, c.subject, c.verdict, c.value) for c in checks] == [
        ("kernel_params.cmdline", "intel_idle.max_cstate", "pass", "intel_idle.max_cstate=0"),
        ("kernel_params.cmdline", "processor.max_cstate", "pass", "processor.max_cstate=1"),
        ("kernel_params.forbidden", "nokaslr", "pass", "not there"),
        ("kernel_params.forbidden", "quiet=1", "pass", "not there"),
        ("kernel_params.duplicates", "command line", "warn", "intel_idle.max_cstate=9 intel_idle.max_cstate=0"),
    ]
    assert "the last one counts" in checks[0].reason


CMDLINES = {
    "there": ("ro intel_idle.max_cstate=0\n", ("pass", "intel_idle.max_cstate=0")),
    "a dash for an underscore": ("ro intel-idle.max-cstate=0\n", ("pass", "intel_idle.max_cstate=0")),
    "a later one wins": ("intel_idle.max_cstate=0 intel_idle.max_cstate=1\n", ("fail", "intel_idle.max_cstate=1")),
    "not there": ("ro quiet\n", ("fail", "not there")),
    "another parameter that ends like it": ("xintel_idle.max_cstate=0\n", ("fail", "not there")),
    "after the end": ("ro -- intel_idle.max_cstate=0\n", ("fail", "not there")),
    "empty": ("", ("unknown", None)),
    "cut off": ("ro intel_idle.max_cstate=0", ("unknown", None)),
    "an error text": ("cat: /proc/cmdline: No such file or directory\n", ("unknown", None)),
    "garbage": ("\x7fELF 8<<< ###\n", ("unknown", None)),
    "words of something else": ("hello world\n", ("unknown", None)),
    "a report of chronyc": ("^,*,172.31.77.10,8,6,377,23,0.1,0.1,0.2\n", ("unknown", None)),
    "two lines": ("ro\nintel_idle.max_cstate=0\n", ("unknown", None)),
}


@pytest.mark.parametrize(("text", "wanted"), CMDLINES.values(), ids=CMDLINES.keys())
def test_one_parameter(text: str, wanted: tuple[str, object]) -> None:
    assert one(Readings(cmdline=text), Wanted(parameters=CSTATES[:1])) == wanted


def test_a_forbidden_parameter() -> None:
    assert one(Readings(cmdline="ro nomodeset a=2\n"), Wanted(forbidden=["nomodeset"])) == ("fail", "nomodeset")
    assert one(Readings(cmdline="ro a=2\n"), Wanted(forbidden=["a"])) == ("fail", "a=2")
    assert one(Readings(cmdline="ro a=2\n"), Wanted(forbidden=["a=1"])) == ("pass", "not there")


SYSCTLS = "kernel.numa_balancing = 1\nvm.swappiness = 10\nnet.ipv4.tcp_rmem = 4096\t131072\t6291456\n"
SYSCTL_CASES = {
    "equal": ("kernel.numa_balancing", ["1"], ("pass", "1")),
    "not equal": ("kernel.numa_balancing", ["0"], ("fail", "1")),
    "one of": ("vm.swappiness", ["1", "10"], ("pass", "10")),
    "at most": ("vm.swappiness", ["<=10"], ("pass", "10")),
    "at least": ("vm.swappiness", [">=60"], ("fail", "10")),
    "three numbers": ("net.ipv4.tcp_rmem", ["4096 131072 6291456"], ("pass", "4096 131072 6291456")),
    "with slashes": ("net/ipv4/tcp_rmem", ["0"], ("fail", "4096 131072 6291456")),
    "not there": ("vm.nr_hugepages", ["0"], ("unknown", None)),
}


@pytest.mark.parametrize(("name", "allowed", "wanted"), SYSCTL_CASES.values(), ids=SYSCTL_CASES.keys())
def test_sysctl(name: str, allowed: list[str], wanted: tuple[str, object]) -> None:
    assert one(Readings(sysctls=SYSCTLS), Wanted(sysctls={name: allowed})) == wanted


def test_a_sysctl_with_two_values_is_unknown() -> None:
    assert one(Readings(sysctls="a.b = 1\na.b = 2\n"), Wanted(sysctls={"a.b": ["1"]})) == ("unknown", None)


MODULES = "/sys/module/nvme_core/parameters/multipath:Y\n/sys/module/intel_idle/parameters/max_cstate:0\n"


@pytest.mark.parametrize(
    ("name", "allowed", "wanted"),
    [
        ("nvme_core.multipath", "1", ("pass", "Y")),
        ("nvme-core.multipath", "N", ("fail", "Y")),
        ("intel_idle.max_cstate", "0", ("pass", "0")),
        ("nvidia.NVreg_EnableGpuFirmware", "1", ("unknown", None)),
    ],
)
def test_module_parameters(name: str, allowed: str, wanted: tuple[str, object]) -> None:
    assert one(Readings(modules=MODULES), Wanted(modules={name: [allowed]})) == wanted


def test_release() -> None:
    wanted = Wanted(release="6.1.0-41-amd64")
    assert one(Readings(release="6.1.0-40-amd64\n"), wanted) == ("fail", "6.1.0-40-amd64")
    assert one(Readings(release="6.1.0-41-amd64\n"), wanted) == ("pass", "6.1.0-41-amd64")
    for text in ("", "uname: not found\n", "6.1.0-41-amd64", "!uname -r: still running after 1 s"):
        assert one(Readings(release=text), wanted) == ("unknown", None)


def test_governors_of_every_policy() -> None:
    base = "/sys/devices/system/cpu/cpufreq"
    text = "".join(f"{base}/policy{n}/scaling_governor:performance\n" for n in range(3))
    wanted = Wanted(governor="performance")
    assert judged(Readings(governors=text), wanted) == [
        ("kernel_params.governor", "policy0 and 2 more", "pass", "performance")
    ]
    slow = text + f"{base}/policy3/scaling_governor:powersave\n"
    assert judged(Readings(governors=slow), wanted)[1] == ("kernel_params.governor", "policy3", "fail", "powersave")
    assert one(Readings(governors="!none"), wanted) == ("warn", "no cpufreq")
    for garbage in ("", "performance\n", text + "x\n", text[:-1]):
        assert one(Readings(governors=garbage), wanted) == ("unknown", None)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("always [madvise] never\n", ("pass", "madvise")),
        ("[always] madvise never\n", ("fail", "always")),
        ("always madvise never\n", ("unknown", None)),
        ("", ("unknown", None)),
    ],
)
def test_transparent_huge_pages(text: str, wanted: tuple[str, object]) -> None:
    assert one(Readings(hugepages=text), Wanted(hugepages="madvise")) == wanted


OFF = "ACSCtl:\tSrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl- DirectTrans-"
ON = "ACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-"
ACS = {
    "off": (LSPCI, "pass", "2 of 3 bridges have ACS, none redirects"),
    "on at the root port": (LSPCI.replace(OFF, ON, 1), "fail", ON.split("\t")[1]),
    "on at a bridge of another device": (
        OFF.join(LSPCI.split(OFF)[:2]) + ON + OFF.join(LSPCI.split(OFF)[2:]),
        "pass",
        None,
    ),
    "not root": (
        LSPCI.replace("Capabilities: [148 v1] Access Control Services", "Capabilities: <access denied>")
        .replace("\t\tACSCap:", "\t\tx")
        .replace("\t\tACSCtl:", "\t\ty"),
        "unknown",
        None,
    ),
    "bits not readable": (LSPCI.replace("ReqRedir- Cmplt", "ReqRedir? Cmplt"), "unknown", None),
    "no GPU": (LSPCI.replace("NVIDIA", "Nobody"), "unknown", None),
    "a bridge without buses": (
        LSPCI.replace("Bus: primary=17, secondary=19", "Bus: primary=17, secondary=??"),
        "unknown",
        None,
    ),
    "cut": (LSPCI[:-3], "unknown", None),
    "empty": ("", "unknown", None),
}


@pytest.mark.parametrize(("text", "verdict", "value"), ACS.values(), ids=ACS.keys())
def test_acs_of_the_bridges_above_a_gpu(text: str, verdict: str, value: str | None) -> None:
    (check,) = kernel.judge(Readings(lspci=text), Wanted(acs_off=True))
    assert check.verdict == verdict
    assert value is None or check.value == value


def test_nothing_is_judged_without_a_limit() -> None:
    everything = Readings(CMDLINE, "6.1\n", SYSCTLS, MODULES, "x", "x", LSPCI)
    assert [c.check for c in kernel.judge(everything, Wanted())] == ["kernel_params.duplicates"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (LSPCI, "lspci"),
        (SYSCTLS, "sysctls"),
        (MODULES, "modules"),
        ("/sys/devices/system/cpu/cpufreq/policy0/scaling_governor:performance\n", "governors"),
        ("always [madvise] never\n", "hugepages"),
        ("6.1.0-40-amd64\n", "release"),
        (CMDLINE, "cmdline"),
        ("", "cmdline"),
    ],
)
def test_what_one_file_holds(text: str, kind: str) -> None:
    assert kernel.kind(text) == kind

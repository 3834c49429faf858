# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The judgement of driver, GSP firmware and Fabric Manager."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _gpu_driver
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._gpu_driver import FabricManager
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, worst

FIXTURES = Path(__file__).parents[2] / "fixtures"
SMI = (FIXTURES / "nvidia-smi-580.95.05-q-hgx8.txt").read_text()
DRIVER = "580.95.05"
ACTIVE = (
    "LoadState=loaded\nActiveState=active\nSubState=running\nResult=success\nMainPID=812\n"
    "ExecMainStartTimestampMonotonic=5000000\n"
)


def evidence(stdout: str, rc: int | None = 0, stderr: str = "", error: str | None = None) -> Evidence:
    return Evidence("tool", rc, stdout, stderr, None, error)


def fabric_manager(
    daemon: str = DRIVER,
    package: str = "installed 580.95.05-1\n",
    service: str = ACTIVE,
    ages: tuple[float | None, float | None] = (100.0, 200.0),
) -> FabricManager:
    return FabricManager(
        evidence(package), evidence(f"Fabric Manager version is : {daemon}\n"), evidence(service), ages[0], ages[1]
    )


def judge(text: str = SMI, fm: FabricManager | None = None, version: str = DRIVER, gpus: int | None = 8) -> list[Check]:
    return _gpu_driver.judge(evidence(text), version, gpus, fm)


def blocking(checks: list[Check]) -> list[Check]:
    return [c for c in checks if c.verdict in ("fail", "unknown")]


def change_gpu(index: int, old: str, new: str) -> str:
    """Change the first occurrence of a line's value inside one GPU's section."""
    parts = SMI.split("GPU 00000000:")
    assert old in parts[index + 1]
    parts[index + 1] = parts[index + 1].replace(old, new, 1)
    return "GPU 00000000:".join(parts)


def test_parser_reads_every_gpu_and_only_its_own_fabric_state() -> None:
    read = _gpu_driver.parse_smi(SMI)
    assert (read.driver, read.attached, len(read.gpus)) == (DRIVER, 8, 8)
    assert read.gpus[3] == _gpu_driver.Gpu(3, "00000000:61:00.0", "Enabled", DRIVER, "Completed", "Success")


def test_parser_follows_the_colon_to_the_column_of_driver_590() -> None:
    wider = "\n".join(line.replace(" : ", " " * 14 + ": ", 1) if " : " in line else line for line in SMI.splitlines())
    assert _gpu_driver.parse_smi(wider) == _gpu_driver.parse_smi(SMI)


def test_healthy_board_passes_with_every_gpu_judged() -> None:
    checks = judge(fm=fabric_manager())
    assert worst(c.verdict for c in checks) == "pass"
    names = [c.check for c in checks]
    assert names.count("gpu_driver.fabric_state") == 8
    assert names.count("gpu_driver.gsp") == 8
    assert names.count("gpu_driver.persistence") == 8
    assert names.count("gpu_driver.fabric_manager") == 3


def test_board_without_nvswitch_is_not_judged_by_its_fabric() -> None:
    text = SMI.replace("State                             : Completed", "State                             : N/A")
    assert text != SMI
    checks = judge(text, fm=None)
    assert worst(c.verdict for c in checks) == "pass"
    assert not [c for c in checks if "fabric" in c.check]


def test_fabric_manager_one_patch_off_fails_with_value_and_limit() -> None:
    bad = blocking(judge(fm=fabric_manager(daemon="580.95.06")))
    assert [(c.check, c.verdict, c.value, c.limit) for c in bad] == [
        ("gpu_driver.fabric_manager", "fail", "580.95.06", DRIVER)
    ]
    assert bad[0].limit_source == "version of the running driver"


def test_right_daemon_with_a_wrong_package_fails() -> None:
    bad = blocking(judge(fm=fabric_manager(package="installed 580.82.07-1\n")))
    assert [(c.subject, c.value) for c in bad] == [("package", "580.82.07")]


@pytest.mark.parametrize(
    ("package", "verdict", "value"),
    [
        pytest.param(
            Evidence("dpkg-query", 1, "", "dpkg-query: no packages found matching nvidia-fabricmanager\n"),
            "fail",
            "not installed",
            id="package is not installed",
        ),
        pytest.param(
            evidence("half-configured 580.95.05-1\n"), "fail", "half-configured", id="package is half installed"
        ),
        pytest.param(
            evidence("", None, error="could not start: No such file or directory"), "unknown", None, id="no dpkg"
        ),
        pytest.param(evidence(""), "unknown", None, id="no output"),
    ],
)
def test_package_states(package: Evidence, verdict: str, value: str | None) -> None:
    fm = FabricManager(package, evidence(f"Fabric Manager version is : {DRIVER}"), evidence(ACTIVE), 1.0, 2.0)
    bad = blocking(judge(fm=fm))
    assert [(c.subject, c.verdict, c.value) for c in bad] == [("package", verdict, value)]


def test_stopped_service_fails_although_every_gpu_is_still_registered() -> None:
    stopped = "LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\nMainPID=0\n"
    bad = blocking(judge(fm=fabric_manager(service=stopped)))
    assert [(c.subject, c.value, c.limit) for c in bad] == [("service nvidia-fabricmanager", "failed", "active")]
    assert "exit-code" in bad[0].reason


@pytest.mark.parametrize("gpu", range(8))
def test_one_unregistered_gpu_fails_whichever_it_is(gpu: int) -> None:
    text = change_gpu(
        gpu, "State                             : Completed", "State                             : In Progress"
    )
    bad = blocking(judge(text, fm=fabric_manager()))
    assert len(bad) == 1
    assert (bad[0].check, bad[0].value) == ("gpu_driver.fabric_state", "In Progress, Success")
    assert bad[0].subject.startswith(f"GPU {gpu} ")


def test_missing_fabric_section_is_unknown() -> None:
    text = change_gpu(5, "        Status                            : Success\n", "")
    bad = blocking(judge(text, fm=fabric_manager()))
    assert [(c.check, c.verdict) for c in bad] == [("gpu_driver.fabric_state", "unknown")]


@pytest.mark.parametrize(
    ("old", "new", "check", "verdict"),
    [
        (
            "GSP Firmware Version                  : 580.95.05",
            "GSP Firmware Version                  : 580.82.07",
            "gsp",
            "fail",
        ),
        (
            "GSP Firmware Version                  : 580.95.05",
            "GSP Firmware Version                  : N/A",
            "gsp",
            "fail",
        ),
        ("    GSP Firmware Version                  : 580.95.05\n", "", "gsp", "unknown"),
        (
            "Persistence Mode                      : Enabled",
            "Persistence Mode                      : Disabled",
            "persistence",
            "fail",
        ),
        ("    Persistence Mode                      : Enabled\n", "", "persistence", "unknown"),
    ],
)
def test_one_changed_line_of_one_gpu_flips_the_verdict(old: str, new: str, check: str, verdict: str) -> None:
    bad = blocking(judge(change_gpu(6, old, new), fm=fabric_manager()))
    assert [(c.check, c.verdict) for c in bad] == [(f"gpu_driver.{check}", verdict)]


def test_other_driver_than_pinned_fails() -> None:
    bad = blocking(judge(version="580.82.07"))
    assert [(c.check, c.value, c.limit) for c in bad] == [("gpu_driver.version", DRIVER, "580.82.07")]


def test_missing_gpu_is_counted_and_the_others_are_judged() -> None:
    text = SMI.split("GPU 00000000:DF")[0].replace(
        "Attached GPUs                             : 8", "Attached GPUs                             : 7"
    )
    checks = judge(text, fm=fabric_manager())
    bad = blocking(checks)
    assert [(c.check, c.value, c.limit) for c in bad] == [("gpu_driver.gpus", 7, 8)]
    assert [c.check for c in checks].count("gpu_driver.fabric_state") == 7


def test_output_that_was_cut_off_is_unknown() -> None:
    bad = blocking(judge(SMI.split("GPU 00000000:DF")[0], fm=fabric_manager(), gpus=None))
    assert [(c.check, c.verdict) for c in bad] == [("gpu_driver.gpus", "unknown")]


@pytest.mark.parametrize("rc", [0, 18, 255])
def test_version_mismatch_asks_for_a_reboot_whatever_the_exit_status(rc: int) -> None:
    smi = evidence("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.95\n", rc)
    assert _gpu_driver.reboot_required(smi)
    (check,) = _gpu_driver.judge(smi, DRIVER, 8, fabric_manager())
    assert (check.check, check.verdict, check.limit) == ("gpu_driver.version", "unknown", DRIVER)
    assert "a reboot is needed" in check.reason
    assert check.remedy.startswith("Reboot the node")


@pytest.mark.parametrize(
    "smi",
    [
        pytest.param(evidence("", None, error="could not start: No such file or directory"), id="no nvidia-smi"),
        pytest.param(evidence("", None, error="still running after 60 s, killed"), id="nvidia-smi hangs"),
        pytest.param(
            evidence("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.", 9),
            id="driver not loaded",
        ),
        pytest.param(evidence(""), id="empty output"),
        pytest.param(evidence("No devices were found\n"), id="no devices"),
    ],
)
def test_what_cannot_be_read_is_unknown_and_never_a_pass(smi: Evidence) -> None:
    checks = _gpu_driver.judge(smi, DRIVER, None, fabric_manager())
    assert "unknown" in {c.verdict for c in checks if c.check == "gpu_driver.version"}
    assert worst(c.verdict for c in checks) in ("unknown", "fail")


def test_unreadable_driver_leaves_nothing_to_hold_fabric_manager_against() -> None:
    checks = judge("No devices were found\n", fm=fabric_manager())
    assert {c.verdict for c in checks if c.subject in ("package", "daemon nv-fabricmanager")} == {"unknown"}


@pytest.mark.parametrize(
    ("daemon", "package", "stale"),
    [(100.0, 200.0, False), (200.0, 100.0, True), (100.0, 100.0, False), (None, 5.0, False), (500.0, None, False)],
)
def test_daemon_older_than_its_package_is_stale(daemon: float | None, package: float | None, stale: bool) -> None:
    fm = fabric_manager(ages=(daemon, package))
    assert _gpu_driver.stale_daemon(fm) is stale
    assert (worst(c.verdict for c in judge(fm=fm)) == "fail") is stale


@pytest.mark.parametrize(
    ("service", "ages", "reason"),
    [
        (ACTIVE.replace("MainPID=812\n", ""), (None, 200.0), "printed no MainPID"),
        (ACTIVE.replace("MainPID=812", "MainPID=0"), (1.0, 2.0), "printed MainPID=0"),
        (ACTIVE.replace("=5000000", ""), (None, 200.0), "printed no ExecMainStartTimestampMonotonic"),
        (ACTIVE, (None, 200.0), "the time of the daemon's start could not be read"),
        (ACTIVE, (100.0, None), "the time of the package's installation could not be read"),
    ],
)
def test_a_daemon_whose_age_cannot_be_told_is_unknown(
    service: str, ages: tuple[float | None, float | None], reason: str
) -> None:
    bad = blocking(judge(fm=fabric_manager(service=service, ages=ages)))
    assert [(c.subject, c.verdict) for c in bad] == [("daemon nv-fabricmanager", "unknown")]
    assert reason in bad[0].reason


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the output is empty"),
        ("\n \n", "the output is empty"),
        ("quite\nelse\n", "no report of nvidia-smi -q: quite"),
    ],
)
def test_a_text_that_is_no_report_says_so_first(text: str, said: str) -> None:
    checks = judge(text, fm=fabric_manager())
    assert (checks[0].check, checks[0].verdict, checks[0].reason) == ("gpu_driver.output", "unknown", said)
    assert not any("None" in check.remedy for check in checks)


@pytest.mark.parametrize(("driver", "found"), [("460.91.03", set()), ("580.95.05", {"unknown"})])
def test_a_driver_too_old_for_the_line_has_no_gsp_firmware_to_judge(driver: str, found: set[str]) -> None:
    text = "".join(line for line in SMI.splitlines(keepends=True) if "GSP Firmware" not in line)
    checks = judge(text.replace(DRIVER, driver), version=driver)
    assert {c.verdict for c in checks if c.check == "gpu_driver.gsp"} == found


@pytest.mark.parametrize(("driver", "verdict"), [("535.129.03", "pass"), ("580.95.05", "fail")])
def test_a_driver_may_have_worked_without_gsp_firmware(driver: str, verdict: str) -> None:
    text = SMI.replace(
        f"GSP Firmware Version                  : {DRIVER}", "GSP Firmware Version                  : N/A"
    )
    checks = judge(text.replace(DRIVER, driver), version=driver)
    assert {c.verdict for c in checks if c.check == "gpu_driver.gsp"} == {verdict}


def test_one_file_shows_the_fabric_without_fabric_manager() -> None:
    text = change_gpu(
        3, "State                             : Completed", "State                             : In Progress"
    )
    bad = blocking(_gpu_driver.judge(evidence(text), DRIVER, 8, None, nvswitch=True))
    assert [(c.check, c.value) for c in bad] == [("gpu_driver.fabric_state", "In Progress, Success")]


def test_daemon_that_prints_no_version_is_unknown() -> None:
    fm = FabricManager(evidence("installed 580.95.05-1"), evidence("nonsense"), evidence(ACTIVE), 1.0, 2.0)
    bad = blocking(judge(fm=fm))
    assert [(c.subject, c.verdict, c.reason) for c in bad] == [
        ("daemon nv-fabricmanager", "unknown", "tool printed no version")
    ]


_SECTIONS = SMI.split("GPU 00000000:")
AMBIGUOUS = {
    "a bus id twice": (
        "GPU 00000000:".join([*_SECTIONS[:8], _SECTIONS[1]]),
        "GPU 00000000:1B:00.0 is described twice",
    ),
    "an error after the report": (
        SMI + "Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error\n",
        "an error message beside the report: Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error",
    ),
    "a field twice": (
        change_gpu(2, "    Persistence Mode", "    Persistence Mode : Disabled\n    Persistence Mode"),
        "'Persistence Mode' is there twice for GPU 00000000:52:00.0",
    ),
}


@pytest.mark.parametrize(("text", "problem"), AMBIGUOUS.values(), ids=AMBIGUOUS.keys())
def test_a_report_that_can_be_read_in_two_ways_is_unknown(text: str, problem: str) -> None:
    assert _gpu_driver.parse_smi(text).problems == (problem,)
    check = judge(text)[0]
    assert (check.check, check.verdict, check.reason) == ("gpu_driver.output", "unknown", problem)


def test_digits_are_ascii() -> None:
    assert _gpu_driver.parse_smi(SMI.replace(": 8\n", ": ²\n", 1)).attached is None
    assert _gpu_driver.parse_smi(SMI).problems == ()

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""opensm_config and subnet_manager_state: an unknown setting is never put in place and never passes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _capture
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._opensm import (
    parse_settings,
    parse_sminfo,
    render,
    same_guid,
    unrecognized,
    version,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence
from ansible_collections.ai_infra.gpu_rack.plugins.modules import opensm_config, subnet_manager_state
from hypothesis import given
from hypothesis import strategies as st

OPENSM = """#!PYTHON
import sys
print("OpenSM 3.3.23")
for line in open(sys.argv[sys.argv.index("-F") + 1]):
    if line.split()[0] not in ("#", "guid", "sm_priority", "routing_engine"):
        print(f' Unrecognized token: "{line.split()[0]}"')
"""

JOURNAL = "OpenSM 3.3.23\n Loading Cached Option:sm_priority = 14\nEntering MASTER state\n"
SMINFO = "sminfo: sm lid 1 sm guid 0xe8ebd30300530011, activity count 490 priority 14 state 3 SMINFO_MASTER\n"


def outcome_of(module: Any, arguments: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    outcome: dict[str, Any] = json.loads(capsys.readouterr().out)
    return outcome


@pytest.fixture
def config(tmp_path: Path) -> dict[str, Any]:
    tool = tmp_path / "opensm"
    tool.write_text(OPENSM.replace("PYTHON", sys.executable))
    tool.chmod(0o755)
    return {"path": str(tmp_path / "etc" / "opensm.conf"), "opensm": str(tool), "settings": {"sm_priority": 14}}


def test_writes_once(config: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_of(opensm_config, config, capsys)
    assert (outcome["changed"], outcome["version"]) == (True, "3.3.23")
    assert Path(config["path"]).read_text().endswith("\nsm_priority 14\n")
    assert Path(config["path"]).stat().st_mode & 0o777 == 0o644
    again = outcome_of(opensm_config, config, capsys)
    assert (again["changed"], again["version"]) == (False, None)


def test_unknown_setting_is_refused_and_nothing_written(
    config: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config["settings"] = {"sm_priority": 14, "ar_sl_mask": "0xffff"}
    outcome = outcome_of(opensm_config, config, capsys)
    assert outcome["failed"]
    assert "does not know ar_sl_mask" in outcome["msg"]
    assert not Path(config["path"]).exists()


def test_missing_opensm_names_it(config: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_of(opensm_config, {**config, "opensm": "/no/opensm"}, capsys)
    assert "/no/opensm" in outcome["msg"]
    assert not Path(config["path"]).exists()


def test_check_mode_shows_the_difference(config: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_of(opensm_config, {**config, "opensm": "/no/opensm", "_ansible_check_mode": True}, capsys)
    assert outcome["changed"]
    assert "sm_priority 14" in outcome["diff"]["after"]
    assert not Path(config["path"]).exists()


def capture(directory: Path, **change: str) -> dict[str, Any]:
    files = {
        "systemctl": "ActiveState=active\nSubState=running\nInvocationID=0123\n",
        "sminfo": SMINFO,
        "ibstat": "0x00e8ebd30300530011\n",
        "journal": JOURNAL,
        "opensm.conf": "routing_engine updn\n",
        **change,
    }
    for name, text in files.items():
        (directory / name).write_text(text)
    return {"captured": str(directory), "enforce": False}


def verdicts(outcome: dict[str, Any]) -> dict[str, str]:
    return {check["check"].removeprefix("subnet_manager."): check["verdict"] for check in outcome["checks"]}


def test_community_opensm_warns_of_what_it_cannot_prove(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_of(subnet_manager_state, capture(tmp_path), capsys)
    assert verdicts(outcome) == {
        "service": "pass",
        "master": "pass",
        "config": "pass",
        "adaptive_routing": "warn",
        "congestion_control": "warn",
    }
    assert "not proven here: community OpenSM cannot do it" in outcome["checks"][3]["reason"]
    assert outcome["checks"][3]["value"] == "OpenSM 3.3.23"


NVIDIA = "routing_engine ar_updn\nmlnx_congestion_control 2\n"


@pytest.mark.parametrize(
    ("conf", "journal", "adaptive", "congestion"),
    [
        (NVIDIA, JOURNAL, "pass", "pass"),
        (NVIDIA, JOURNAL + ' Unrecognized token: "mlnx_congestion_control"\n', "pass", "fail"),
        ("routing_engine updn\nmlnx_congestion_control 1\n", JOURNAL, "fail", "fail"),
        ("# nothing set\n", JOURNAL, "unknown", "unknown"),
        ("", JOURNAL, "unknown", "unknown"),
    ],
)
def test_nvidias_opensm_is_held_to_its_configuration(
    conf: str, journal: str, adaptive: str, congestion: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {**capture(tmp_path, journal=journal, **{"opensm.conf": conf}), "flavour": "nvidia"}
    found = verdicts(outcome_of(subnet_manager_state, arguments, capsys))
    assert (found["adaptive_routing"], found["congestion_control"]) == (adaptive, congestion)


@pytest.mark.parametrize(
    ("change", "check", "verdict"),
    [
        ({"systemctl": "ActiveState=failed\n"}, "service", "fail"),
        ({"systemctl": ""}, "service", "unknown"),
        ({"sminfo": ""}, "master", "unknown"),
        ({"sminfo": SMINFO.replace("state 3 SMINFO_MASTER", "state 2 SMINFO_STANDBY")}, "master", "fail"),
        ({"sminfo": SMINFO.replace("state 3 ", "state 2 ")}, "master", "unknown"),
        ({"sminfo": SMINFO.replace("SMINFO_MASTER", "SMINFO_STANDBY")}, "master", "unknown"),
        ({"sminfo.rc": "1"}, "master", "unknown"),
        ({"systemctl.rc": "1"}, "service", "unknown"),
        ({"ibstat": ""}, "master", "unknown"),
        ({"ibstat": "0x01\n"}, "master", "pass"),
        ({"journal": ""}, "config", "unknown"),
        ({"journal": JOURNAL + ' Unrecognized token: "ar_sl_mask"\n'}, "config", "fail"),
    ],
)
def test_each_fault_turns_its_check(
    change: dict[str, str], check: str, verdict: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = outcome_of(subnet_manager_state, capture(tmp_path, **change), capsys)
    assert verdicts(outcome)[check] == verdict


def test_standby_says_who_is_master(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = outcome_of(subnet_manager_state, capture(tmp_path, ibstat="0x01\n"), capsys)
    assert outcome["checks"][1]["reason"].startswith("this host is standby, port 0xe8ebd30300530011 is master")


def test_text_round_trip() -> None:
    assert parse_settings(render({"sm_priority": 14, "accum_log_file": False})) == {
        "sm_priority": "14",
        "accum_log_file": "FALSE",
    }
    assert unrecognized(' Unrecognized token: "a"\n Unrecognized token: "b"\n Unrecognized token: "a"\n') == ["a", "b"]
    assert version("OpenSM 5.20.0.MLNX20240925.3e9e2b2\n") == "5.20.0.MLNX20240925.3e9e2b2"
    info = parse_sminfo(SMINFO)
    assert info is not None
    assert (info.lid, info.priority, info.activity) == (1, 14, 490)
    assert same_guid("0x00e8", "0xe8")
    assert not same_guid("0xe8", "x")


@given(st.text())
def test_any_text_is_read(text: str) -> None:
    parse_sminfo(text)
    parse_settings(text)
    unrecognized(text)
    assert version(text) is None or "OpenSM" in text


SILENT = "the journal has no line of OpenSM since it was started"
NO_VERSION = "the journal does not hold OpenSM's version, which it prints at its start"


@pytest.mark.parametrize(
    ("journal", "flavour", "verdict", "reason"),
    [
        ("-- No entries --\n", "opensm", "unknown", SILENT),
        ("-- No entries --\n", "nvidia", "unknown", SILENT),
        ("Failed to open journal: Permission denied\n", "nvidia", "unknown", SILENT),
        ("Entering MASTER state\n", "nvidia", "unknown", NO_VERSION),
        ("Entering MASTER state\n", "opensm", "pass", "OpenSM of unknown version knows every setting"),
        (JOURNAL, "nvidia", "pass", "OpenSM 3.3.23 knows every setting"),
        (
            ' Unrecognized token: "x"\n',
            "nvidia",
            "fail",
            "OpenSM of unknown version went on without settings it does not know",
        ),
    ],
)
def test_configuration_is_proven_by_opensm_only(
    journal: str, flavour: str, verdict: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {**capture(tmp_path, journal=journal, **{"opensm.conf": NVIDIA}), "flavour": flavour}
    outcome = outcome_of(subnet_manager_state, arguments, capsys)
    [config] = [c for c in outcome["checks"] if c["check"] == "subnet_manager.config"]
    assert (config["verdict"], config["reason"]) == (verdict, reason)
    if verdict == "unknown":
        assert "adaptive_routing" not in verdicts(outcome)


def test_live_journal_is_read_quietly_and_its_status_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def fake(argv: list[str], _timeout: float) -> Evidence:
        asked.append(argv)
        answers = {"systemctl": "ActiveState=active\nInvocationID=0123\n", "sminfo": SMINFO, "ibstat": "0x1\n"}
        if argv[0] == "journalctl":
            return Evidence("journalctl", 1, JOURNAL, "Failed to open files: No such file\n")
        return Evidence(argv[0], 0, answers.get(argv[0], ""))

    monkeypatch.setattr(_capture, "run", fake)
    params = {"unit": "opensm.service", "wait": 0.0, "config_path": "/no/opensm.conf", "flavour": "opensm"}
    read = subnet_manager_state.read(_capture.Source(None, 1.0), params)
    assert asked[-1] == ["journalctl", "--quiet", "--no-pager", "--output=cat", "_SYSTEMD_INVOCATION_ID=0123"]
    config = subnet_manager_state.judge(read, "opensm.service", "opensm")[-1]
    assert (config.check, config.verdict) == ("subnet_manager.config", "unknown")
    assert config.reason == "journalctl ended with status 1: Failed to open files: No such file"


def test_sminfo_of_any_length_is_no_answer() -> None:
    assert parse_sminfo(SMINFO.replace("lid 1 ", f"lid {'9' * 5000} ")) is None
    assert parse_sminfo(SMINFO.replace("490", "4294967295")) is not None


def test_nvidias_configuration_that_cannot_be_read_is_unknown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = {**capture(tmp_path), "flavour": "nvidia"}
    (tmp_path / "opensm.conf").unlink()
    (tmp_path / "opensm.conf").mkdir()
    outcome = outcome_of(subnet_manager_state, arguments, capsys)
    assert verdicts(outcome) == {
        "service": "pass",
        "master": "pass",
        "config": "pass",
        "adaptive_routing": "unknown",
        "congestion_control": "unknown",
    }
    assert outcome["checks"][3]["reason"] == f"captured {tmp_path}/opensm.conf: could not read: Is a directory"


def test_the_answer_of_sminfo_alone_shows_the_master(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "f").write_text(SMINFO)
    arguments = {"captured": str(tmp_path / "f"), "enforce": False, "evidence_dir": str(tmp_path)}
    outcome = outcome_of(subnet_manager_state, arguments, capsys)
    assert verdicts(outcome) == {"master": "pass"}
    again = {"captured": str(tmp_path / "subnet_manager.json"), "enforce": False}
    assert outcome_of(subnet_manager_state, again, capsys)["checks"] == outcome["checks"]

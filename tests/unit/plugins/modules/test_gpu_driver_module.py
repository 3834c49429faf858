# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gate gpu_driver on stand-in tools, on captured output and on its own evidence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.modules import gpu_driver

SMI = Path(__file__).parents[2] / "fixtures" / "nvidia-smi-580.95.05-q-hgx8.txt"
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch\n"


class Ended(Exception):
    def __init__(self, failed: bool, result: dict[str, Any]) -> None:
        super().__init__(result.get("msg", ""))
        self.failed = failed
        self.result = result


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the module; return (failed, result)."""

    def exit_json(self: AnsibleModule, **result: Any) -> None:
        raise Ended(False, result)

    def fail_json(self: AnsibleModule, msg: str, **result: Any) -> None:
        raise Ended(True, {**result, "msg": msg})

    monkeypatch.setattr(AnsibleModule, "exit_json", exit_json)
    monkeypatch.setattr(AnsibleModule, "fail_json", fail_json)

    def call(**params: Any) -> tuple[bool, dict[str, Any]]:
        with (
            patch_module_args({"version": "580.95.05", "fabric_manager": True, **params}),
            pytest.raises(Ended) as ended,
        ):
            gpu_driver.main()
        return ended.value.failed, ended.value.result

    return call


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put stand-in tools of a healthy node first on PATH; return their directory."""
    tools = tmp_path / "bin"
    tools.mkdir()
    show = "ActiveState=active\\nResult=success\\nMainPID=1\\nExecMainStartTimestampMonotonic=5000000\\n"
    write(tools, "nvidia-smi", f"cat {SMI}")
    write(tools, "nv-fabricmanager", "echo 'Fabric Manager version is : 580.95.05'")
    write(tools, "systemctl", f"printf '{show}'")
    write(tools, "dpkg-query", "echo installed 580.95.05-1")
    write(tools, "stat", "echo 1000")
    write(tools, "date", "echo 2000")
    write(tools, "readlink", "echo /usr/bin/python3.11")
    write(tools, "cat", '[ "$1" = /proc/uptime ] && echo "500.00 1.0" || exec /bin/cat "$@"')
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    return tools


def write(tools: Path, name: str, body: str) -> None:
    (tools / name).write_text(f"#!/bin/sh\n{body}\n")
    (tools / name).chmod(0o755)


def test_healthy_node_passes(run: Any, node: Path) -> None:
    failed, result = run(gpus=8)
    assert (failed, result["verdict"], result["changed"]) == (False, "pass", False)
    assert (result["reboot_required"], result["restart_required"]) == (False, False)


def test_fault_one_patch_off_fails_with_value_limit_and_remedy(run: Any, node: Path) -> None:
    write(node, "nv-fabricmanager", "echo 'Fabric Manager version is : 580.82.07'")
    failed, result = run()
    assert failed
    assert "measured 580.82.07, limit 580.95.05 (version of the running driver)" in result["msg"]
    assert "restart the service" in result["msg"]


def test_running_daemon_is_asked_even_when_its_file_was_replaced(run: Any, node: Path) -> None:
    write(node, "readlink", "echo '/usr/bin/nv-fabricmanager (deleted)'")
    _failed, result = run(enforce=False)
    assert "/proc/1/exe --version" in [e["command"] for e in result["evidence"]]


def test_missing_nvidia_smi_is_unknown(run: Any, node: Path) -> None:
    (node / "nvidia-smi").unlink()
    failed, result = run(fabric_manager=False)
    assert (failed, result["verdict"]) == (True, "unknown")
    assert "No such file or directory" in result["msg"]


def test_late_nvidia_smi_is_unknown(run: Any, node: Path) -> None:
    write(node, "nvidia-smi", "sleep 30")
    failed, result = run(fabric_manager=False, timeout=0.2)
    assert (failed, result["verdict"]) == (True, "unknown")
    assert "still running after 0.2 s" in result["msg"]


@pytest.mark.parametrize(("allow", "fails"), [(True, False), (False, True)])
def test_owed_reboot_is_told_and_only_tolerated_on_request(run: Any, node: Path, allow: bool, fails: bool) -> None:
    write(node, "nvidia-smi", f"printf '{MISMATCH}'; exit 18")
    failed, result = run(allow_pending=allow)
    assert (failed, result["verdict"], result["reboot_required"]) == (fails, "unknown", True)


@pytest.mark.parametrize(("allow", "fails"), [(True, False), (False, True)])
def test_daemon_older_than_its_package_needs_a_restart(run: Any, node: Path, allow: bool, fails: bool) -> None:
    write(node, "date", "echo 1060")
    failed, result = run(allow_pending=allow)
    assert (failed, result["verdict"], result["restart_required"]) == (fails, "fail", True)
    assert "started 435 s before its package was installed" in result["summary"]


def test_board_without_nvswitch_does_not_ask_for_fabric_manager(run: Any, node: Path) -> None:
    for tool in ("nv-fabricmanager", "systemctl", "dpkg-query"):
        write(node, tool, "exit 1")
    failed, result = run(fabric_manager=False)
    assert (failed, result["verdict"]) == (False, "pass")
    assert [e["command"] for e in result["evidence"]] == ["nvidia-smi -q"]


def test_captured_directory_is_judged_without_the_tools(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "nvidia-smi-q.txt").write_text(SMI.read_text())
    (bundle / "nv-fabricmanager-version.txt").write_text("Fabric Manager version is : 580.95.05\n")
    (bundle / "dpkg-query-fabricmanager.txt").write_text("installed 580.95.05-1\n")
    (bundle / "systemctl-show-fabricmanager.txt").write_text(
        "ActiveState=active\nMainPID=812\nExecMainStartTimestampMonotonic=5000000\n"
    )
    (bundle / "uptime.txt").write_text("500.00 1.0\n")
    (bundle / "date.txt").write_text("2000\n")
    (bundle / "stat-fabricmanager-list.txt").write_text("1000\n")
    assert run(captured=str(bundle))[1]["verdict"] == "pass"
    (bundle / "nv-fabricmanager-version.txt").unlink()
    failed, result = run(captured=str(bundle))
    assert (failed, result["verdict"]) == (True, "unknown")


def test_one_captured_file_is_judged_by_what_it_can_show(run: Any, tmp_path: Path) -> None:
    result = run(captured=str(SMI))[1]
    assert result["verdict"] == "pass"
    assert "gpu_driver.fabric_state" in {check["check"] for check in result["checks"]}
    assert "gpu_driver.fabric_manager" not in {check["check"] for check in result["checks"]}
    bad = tmp_path / "q.txt"
    bad.write_text(SMI.read_text().replace(": Completed", ": In Progress", 1))
    assert run(captured=str(bad))[1]["verdict"] == "fail"


def test_stored_evidence_is_judged_again_to_the_same_result(run: Any, node: Path, tmp_path: Path) -> None:
    write(node, "nv-fabricmanager", "echo 'Fabric Manager version is : 580.82.07'")
    _failed, first = run(evidence_dir=str(tmp_path / "evidence"))
    stored = tmp_path / "evidence" / "gpu_driver.json"
    assert stored.stat().st_mode & 0o777 == 0o600
    assert json.loads(stored.read_text())["verdict"] == "fail"
    _failed, second = run(captured=str(stored))
    assert second["checks"] == first["checks"]

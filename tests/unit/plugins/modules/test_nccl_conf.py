# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module nccl_conf: create, again, update, hand-made drift, refusal, check mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.modules import nccl_conf

LINES = "NCCL_IB_HCA==mlx5_0:1,mlx5_1:1\nNCCL_SOCKET_IFNAME==eth0\n"


class Ended(Exception):
    def __init__(self, failed: bool, result: dict[str, Any]) -> None:
        super().__init__(result.get("msg", ""))
        self.failed = failed
        self.result = result


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the module on a file of the test's own; return (failed, result)."""
    warnings: list[str] = []

    def exit_json(self: AnsibleModule, **result: Any) -> None:
        raise Ended(False, {**result, "warnings": list(warnings)})

    def fail_json(self: AnsibleModule, msg: str, **result: Any) -> None:
        raise Ended(True, {**result, "msg": msg})

    monkeypatch.setattr(AnsibleModule, "exit_json", exit_json)
    monkeypatch.setattr(AnsibleModule, "fail_json", fail_json)
    monkeypatch.setattr(AnsibleModule, "warn", lambda self, text, *a, **k: warnings.append(text))

    def call(check: bool = False, **params: Any) -> tuple[bool, dict[str, Any]]:
        args = {"path": str(tmp_path / "nccl.conf"), "_ansible_check_mode": check, **params}
        with patch_module_args(args), pytest.raises(Ended) as ended:
            nccl_conf.main()
        return ended.value.failed, ended.value.result

    return call


WANTED: dict[str, Any] = {
    "hcas": ["mlx5_0", "mlx5_1"],
    "variables": {"NCCL_SOCKET_IFNAME": "=eth0"},
    "link_layer": "infiniband",
}


def test_create_again_update(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    assert run(check=True, **WANTED)[1]["changed"] is True
    assert not file.exists()
    assert run(**WANTED)[1]["changed"] is True
    assert file.read_text().endswith(LINES)
    assert file.stat().st_mode & 0o777 == 0o644
    assert run(**WANTED)[1]["changed"] is False
    assert run(**{**WANTED, "hcas": ["mlx5_0"]})[1]["changed"] is True
    assert "NCCL_IB_HCA==mlx5_0:1\n" in file.read_text()


def test_drift_made_by_hand_is_shown_and_corrected(run: Any, tmp_path: Path) -> None:
    file = tmp_path / "nccl.conf"
    run(**WANTED)
    file.write_text(file.read_text() + "NCCL_DEBUG=TRACE\n")
    _failed, result = run(check=True, **WANTED)
    assert result["changed"] is True
    assert "NCCL_DEBUG=TRACE" in result["diff"][0]["before"]
    assert "NCCL_DEBUG=TRACE" in file.read_text()
    run(**WANTED)
    assert file.read_text().endswith(LINES)


def test_refused_variables_leave_the_file_alone(run: Any, tmp_path: Path) -> None:
    run(**WANTED)
    failed, result = run(variables={"NCCL_ASYNC_ERROR_HANDLING": 1, "NCCL_IB_HCAS": "x"})
    assert failed
    assert len(result["problems"]) == 2
    assert "Use TORCH_NCCL_ASYNC_ERROR_HANDLING" in result["msg"]
    assert (tmp_path / "nccl.conf").read_text().endswith(LINES)


def test_devices_given_twice_are_refused(run: Any) -> None:
    failed, result = run(hcas=["mlx5_0"], variables={"NCCL_IB_HCA": "=mlx5_0:1"})
    assert failed
    assert "Give only hcas" in result["msg"]


def test_unwise_variables_warn(run: Any) -> None:
    failed, result = run(variables={"NCCL_DEBUG": "INFO"})
    assert not failed
    assert len(result["warnings"]) == 1


def test_library_version_decides_what_is_known(run: Any) -> None:
    assert run(variables={"NCCL_IB_OOO_RQ": 1}, library_version="2.27.7-1+cuda13.0")[0] is True
    assert run(variables={"NCCL_IB_OOO_RQ": 1}, library_version="2.30")[0] is False
    assert run(library_version="newest")[0] is True


def test_framework_placement_takes_pytorch_and_not_the_library(run: Any) -> None:
    assert run(variables={"TORCH_NCCL_ASYNC_ERROR_HANDLING": 1}, placement="framework")[0] is False
    assert run(variables={"NCCL_IB_TIMEOUT": 22}, placement="framework")[0] is True


@pytest.mark.parametrize("entry", ["mlx5_0,mlx5_1", "mlx5_0 ", "mlx5_0 mlx5_1", "", "^mlx5_0", "mlx5_0\n"])
def test_entry_that_is_not_one_device_is_refused(run: Any, tmp_path: Path, entry: str) -> None:
    failed, result = run(hcas=[entry])
    assert failed
    assert result["msg"] == (
        f"nccl_conf: hcas: {entry!r} is not one device. Give each as an entry of its own, as mlx5_0 or mlx5_0:1."
    )
    assert not (tmp_path / "nccl.conf").exists()

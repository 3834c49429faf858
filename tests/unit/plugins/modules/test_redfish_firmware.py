# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""redfish_firmware against the simulated BMC."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import redfish_firmware

if TYPE_CHECKING:
    from tests.unit.bmc_server import SimulatedBmc

pytest_plugins = ("tests.unit.bmc_server",)

Make = Callable[[str], "SimulatedBmc"]
Run = Callable[..., dict[str, Any]]

NEW = "96.00.99.00.01"
OLD = "96.00.89.00.01"


def arguments(bmc: SimulatedBmc, content: Any = None, **package: Any) -> dict[str, Any]:
    """Return module arguments for one package that is served with this content."""
    if content is None:
        content = {"name": "board", "version": "1", "components": {"HGX_FW_GPU_SXM_*": NEW}}
    (bmc.packages / "board.fwpkg").write_text(content if isinstance(content, str) else json.dumps(content))
    pinned = {"name": "board 1", "uri": f"{bmc.package_uri}/board.fwpkg", "components": {"HGX_FW_GPU_SXM_*": NEW}}
    return {**bmc.params, "packages": [{**pinned, **package}], "poll_interval": 0.05, "task_timeout": 10}


def test_life_of_an_update(make_bmc: Make, run_module: Run) -> None:
    """Check mode, update, again before the power cycle, power cycle, again after it, verified."""
    bmc = make_bmc("dell")
    args = arguments(bmc)
    planned = run_module(redfish_firmware.main, args, check=True)
    assert (planned["changed"], planned["updated"]) == (True, ["board 1"])
    assert bmc.machine.tasks() == []

    staged = run_module(redfish_firmware.main, args)
    assert (staged["changed"], staged["updated"]) == (True, ["board 1"])
    assert staged["diff"] == planned["diff"]
    assert staged["components"]["HGX_FW_GPU_SXM_8"] == {
        "wanted": NEW,
        "running": OLD,
        "staged": NEW,
        "package": "board 1",
    }
    assert staged["reboot_reasons"][0] == f"firmware HGX_FW_GPU_SXM_1 runs {OLD}, wanted {NEW}"
    assert staged["activation"] == ["DC power cycle or AC power cycle."]
    assert bmc.hardware.read()["firmware"]["pending"] == {f"HGX_FW_GPU_SXM_{n}": NEW for n in range(1, 9)}

    again = run_module(redfish_firmware.main, args)
    assert (again["changed"], again["updated"], again["reboot_required"]) == (False, [], True)
    early = run_module(redfish_firmware.main, {**args, "state": "verified"})
    assert early["failed"] is True
    assert f"HGX_FW_GPU_SXM_1: wanted {NEW}, running {OLD}, staged {NEW}" in early["msg"]

    bmc.power_cycle()
    after = run_module(redfish_firmware.main, args)
    assert (after["changed"], after["reboot_reasons"]) == (False, [])
    assert len(bmc.machine.tasks()) == 1
    assert run_module(redfish_firmware.main, {**args, "state": "verified"})["verified"] is True


def test_only_what_differs_is_updated(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")

    def change(hw: dict[str, Any]) -> dict[str, Any]:
        hw["firmware"]["current"].update({f"HGX_FW_GPU_SXM_{n}": NEW for n in range(1, 8)})
        return hw

    bmc.machine._change(change)
    run_module(redfish_firmware.main, arguments(bmc))
    assert bmc.hardware.read()["firmware"]["pending"] == {"HGX_FW_GPU_SXM_8": NEW}


def test_a_staged_version_lost_by_a_power_cycle_is_sent_again(make_bmc: Make, run_module: Run) -> None:
    """The task still says it waits for activation; the power cycle since then says it does not."""
    bmc = make_bmc("dell")
    args = arguments(bmc)
    run_module(redfish_firmware.main, args)

    def lose(hw: dict[str, Any]) -> dict[str, Any]:
        hw["firmware"]["pending"] = {}
        return hw

    bmc.machine._change(lose)
    bmc.power_cycle()
    again = run_module(redfish_firmware.main, args)
    assert (again["changed"], again["updated"]) == (True, ["board 1"])


@pytest.mark.parametrize(
    ("content", "package", "message"),
    [
        (None, {"components": {"HGX_FW_GPU_SXM_9": NEW}}, "'HGX_FW_GPU_SXM_9' fits no component of the inventory"),
        (None, {"uri": "ftp://127.0.0.1/board.fwpkg"}, "uses FTP. The BMC fetches by HTTP, HTTPS"),
        (None, {"uri": None}, "and the package has no uri. Give it one."),
        ("not json", {}, "ended as Exception (Critical): Verification of image"),
        ({"components": {"CPLD": "1"}}, {}, "it holds nothing for it"),
    ],
    ids=["unknown component", "unknown protocol", "no uri", "broken package", "package of another board"],
)
def test_refusals_say_what_is_wrong(
    make_bmc: Make, run_module: Run, content: Any, package: dict[str, Any], message: str
) -> None:
    bmc = make_bmc("dell")
    result = run_module(redfish_firmware.main, arguments(bmc, content, **package))
    assert result["failed"] is True
    assert message in result["msg"]
    assert bmc.hardware.read()["firmware"]["pending"] == {}


def test_an_image_server_that_is_away_is_named(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    result = run_module(redfish_firmware.main, arguments(bmc, uri="http://127.0.0.1:9/board.fwpkg"))
    assert "Transfer of image 'http://127.0.0.1:9/board.fwpkg' to 'BMC' failed" in result["msg"]


def test_a_task_that_never_ends_is_left_at_the_deadline(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    bmc.machine._task_seconds = 1
    result = run_module(redfish_firmware.main, {**arguments(bmc), "task_timeout": 0.2})
    assert "task /redfish/v1/TaskService/Tasks/1 still Running, 0 % after 0.2 s" in result["msg"]
    bmc.machine.settle()


def test_two_pins_for_one_component_are_refused(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    args = arguments(bmc)
    args["packages"].append({"name": "board 2", "components": {"HGX_FW_GPU_SXM_1": OLD}})
    result = run_module(redfish_firmware.main, args)
    assert f"HGX_FW_GPU_SXM_1: pinned to {NEW} by board 1 and to {OLD} by board 2" in result["msg"]


def test_an_empty_set_verifies_nothing_and_says_so(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    result = run_module(redfish_firmware.main, {**arguments(bmc), "packages": [], "state": "verified"})
    assert result.get("failed", False) is False
    assert result["msg"] == (
        f"firmware on BMC {bmc.params['address']}: no firmware is pinned for this board, so nothing was verified"
    )
    assert (result["verdict"], result["checks"], result["components"]) == ("unknown", [], {})


@pytest.mark.parametrize("state", ["present", "verified"])
def test_a_package_without_components_is_refused(make_bmc: Make, run_module: Run, state: str) -> None:
    bmc = make_bmc("dell")
    result = run_module(redfish_firmware.main, {**arguments(bmc, components={}), "state": state})
    assert result["failed"] is True
    assert result["msg"] == (
        "firmware package board 1: components is empty. Name the components it pins, or remove the package."
    )

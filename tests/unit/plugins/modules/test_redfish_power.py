# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""redfish_power against the simulated BMC."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import redfish_power

if TYPE_CHECKING:
    from tests.unit.bmc_server import SimulatedBmc

pytest_plugins = ("tests.unit.bmc_server",)

Make = Callable[[str], "SimulatedBmc"]
Run = Callable[..., dict[str, Any]]


@pytest.mark.parametrize(
    ("before", "state", "actions"),
    [
        (True, "cycled", ["GracefulShutdown", "On"]),
        (False, "cycled", ["On"]),
        (True, "off", ["GracefulShutdown"]),
        (False, "off", []),
        (False, "on", ["On"]),
        (True, "on", []),
    ],
    ids=["cycle a running one", "cycle one that is off", "off", "off already", "on", "on already"],
)
def test_states(make_bmc: Make, run_module: Run, before: bool, state: str, actions: list[str]) -> None:
    bmc = make_bmc("dell")
    bmc.hardware._on = before
    args = {**bmc.params, "state": state, "power_timeout": 10}
    planned = run_module(redfish_power.main, args, check=True)
    assert (planned["changed"], planned["actions"]) == (bool(actions), actions)
    assert bmc.hardware.is_on() is before
    result = run_module(redfish_power.main, args)
    assert (result["changed"], result["actions"], result["forced"]) == (bool(actions), actions, False)
    assert result["power_state"] == ("Off" if state == "off" else "On")
    assert bmc.hardware.is_on() is (state != "off")
    assert bmc.machine.counters["PowerCycles"] == int("On" in actions)


def test_an_operating_system_that_hangs_is_forced_off(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    bmc.hardware.hangs = True
    args = {**bmc.params, "state": "cycled", "graceful_timeout": 0.5, "power_timeout": 10}
    result = run_module(redfish_power.main, args)
    assert result["actions"] == ["GracefulShutdown", "ForceOff", "On"]
    assert result["forced"] is True
    assert bmc.machine.counters["PowerCycles"] == 1


def test_power_that_stays_is_an_error(make_bmc: Make, run_module: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    bmc = make_bmc("dell")
    monkeypatch.setattr(bmc.hardware, "stop", lambda graceful: None)
    args = {**bmc.params, "state": "off", "graceful_timeout": 0, "power_timeout": 0.3}
    result = run_module(redfish_power.main, args)
    assert result["failed"] is True
    assert "still On 0.3 s after ForceOff" in result["msg"]


def test_reasons_are_shown(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    args = {**bmc.params, "state": "cycled", "reasons": ["firmware BMC runs 1, wanted 2", "kernel"]}
    result = run_module(redfish_power.main, args, check=True)
    assert result["msg"] == "would be power-cycled: firmware BMC runs 1, wanted 2; kernel"
    assert result["diff"]["after"] == "power: On\npower-cycled, because\n- firmware BMC runs 1, wanted 2\n- kernel\n"


@pytest.mark.parametrize("value", ["nan", "inf", "-1"])
@pytest.mark.parametrize("option", ["timeout", "power_timeout", "graceful_timeout"])
def test_a_time_that_is_no_finite_number_is_refused(make_bmc: Make, run_module: Run, option: str, value: str) -> None:
    bmc = make_bmc("dell")
    result = run_module(redfish_power.main, {**bmc.params, "state": "on", option: value})
    assert result["msg"].startswith(f"{option}: {float(value)} is not a finite number")

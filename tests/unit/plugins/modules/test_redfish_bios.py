# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""redfish_bios against the simulated BMC of every vendor."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import redfish_bios

if TYPE_CHECKING:
    from tests.unit.bmc_server import SimulatedBmc

pytest_plugins = ("tests.unit.bmc_server",)

Make = Callable[[str], "SimulatedBmc"]
Run = Callable[..., dict[str, Any]]
OFF = {"c_states": "disabled", "c1e": "disabled"}

EXPECTED = {
    "dell": {"SysProfile": "Custom", "ProcCStates": "Disabled", "ProcC1E": "Disabled"},
    "hpe": {"MinProcIdlePower": "NoCStates", "MinProcIdlePkgState": "NoState"},
    "lenovo": {"Processors_CStates": "Disable", "Processors_C1EnhancedMode": "Disable"},
    "supermicro": {
        "PowerTechnology#0838": "Custom",
        "PackageCState#0843": "C0/C1 state",
        "CPUC6Report#0840": "Disabled",
        "EnhancedHaltState(C1E)#0841": "Disabled",
    },
}


@pytest.mark.parametrize("vendor", sorted(EXPECTED))
def test_life_of_an_intent(make_bmc: Make, run_module: Run, vendor: str) -> None:
    """Check mode, write, again before the reboot, reboot, again after it, verified."""
    bmc = make_bmc(vendor)
    args = {**bmc.params, "intents": OFF}

    planned = run_module(redfish_bios.main, args, check=True)
    assert planned["changed"] is True
    assert {n: s["pending"] for n, s in planned["settings"].items()} == EXPECTED[vendor]
    assert bmc.hardware.read()["bios"]["pending"] == {}

    staged = run_module(redfish_bios.main, args)
    assert staged["changed"] is True
    assert staged["diff"] == planned["diff"]
    assert staged["reboot_required"] is True
    assert staged["ignored"] == []
    assert bmc.hardware.read()["bios"]["pending"] == EXPECTED[vendor]

    again = run_module(redfish_bios.main, args)
    assert again["changed"] is False
    assert again["reboot_required"] is True

    early = run_module(redfish_bios.main, {**args, "state": "verified"})
    assert early["failed"] is True
    assert "still waits: power-cycle" in early["msg"]

    bmc.power_cycle()
    after = run_module(redfish_bios.main, args)
    assert after["changed"] is False
    assert after["reboot_reasons"] == []
    done = run_module(redfish_bios.main, {**args, "state": "verified"})
    assert done["verified"] is True
    current = bmc.hardware.read()["bios"]["current"]
    assert {n: current[n] for n in EXPECTED[vendor]} == EXPECTED[vendor]


def test_only_the_difference_is_written(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    run_module(redfish_bios.main, {**bmc.params, "intents": {"c_states": "disabled"}})
    staged = run_module(redfish_bios.main, {**bmc.params, "intents": OFF})
    assert staged["diff"]["before"] == {"ProcCStates": "Disabled", "ProcC1E": "Enabled"}
    assert bmc.hardware.read()["bios"]["pending"] == EXPECTED["dell"]


def test_a_bmc_that_ignores_writes_is_shown_in_four_columns(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    bmc.write(ignore_writes=True)
    args = {**bmc.params, "intents": OFF}
    staged = run_module(redfish_bios.main, args)
    assert staged["changed"] is False
    assert staged["ignored"] == ["SysProfile", "ProcCStates", "ProcC1E"]
    assert staged["reboot_required"] is True
    bmc.power_cycle()
    kernel = {"verdict": "fail", "summary": "cpu_idle.state cpu 0-223: C6 takes 290 us."}
    result = run_module(redfish_bios.main, {**args, "state": "verified", "kernel": kernel})
    assert result["failed"] is True
    assert result["msg"] == (
        "BIOS setting not in effect: ProcCStates: desired Disabled, pending Enabled, current Enabled; "
        "ProcC1E: desired Disabled, pending Enabled, current Enabled; kernel: fail, cpu_idle.state cpu 0-223: C6 takes "
        "290 us. The BMC accepted the setting and dropped it: set it in the BIOS setup or update the BMC and BIOS, "
        "then run again."
    )


@pytest.mark.parametrize(
    ("verdict", "verified"), [("pass", True), ("warn", True), ("fail", False), ("unknown", False)], ids=str
)
def test_the_kernel_has_a_say(make_bmc: Make, run_module: Run, verdict: str, verified: bool) -> None:
    bmc = make_bmc("lenovo")
    args = {**bmc.params, "intents": OFF}
    run_module(redfish_bios.main, args)
    bmc.power_cycle()
    kernel = {"verdict": verdict, "summary": "as seen"}
    result = run_module(redfish_bios.main, {**args, "state": "verified", "kernel": kernel, "enforce": False})
    assert result["verified"] is verified
    assert result.get("failed", False) is False
    if not verified:
        assert f"kernel: {verdict}, as seen" in result["msg"]


def test_a_kernel_that_passes_is_shown_with_what_it_measured(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("lenovo")
    check = {
        "check": "cpu_idle.exit_latency",
        "subject": "CPU 0-111",
        "verdict": "pass",
        "reason": "no CPU may enter a state that takes longer to leave",
        "value": 1,
        "limit": 2,
        "unit": "us",
    }
    kernel = {"verdict": "pass", "summary": "cpu_idle: pass, 1 checks", "checks": [check]}
    result = run_module(redfish_bios.main, {**bmc.params, "intents": OFF, "state": "verified", "kernel": kernel})
    assert "kernel: pass, cpu_idle.exit_latency CPU 0-111: pass, measured 1 us, limit 2 us." in result["msg"]


def test_attributes_by_name(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    result = run_module(redfish_bios.main, {**bmc.params, "attributes": {"LogicalProc": "Enabled"}})
    assert result["settings"] == {
        "LogicalProc": {"desired": "Enabled", "pending": "Enabled", "current": "Disabled", "why": "attributes"}
    }
    assert "vendor" not in result


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"attributes": {"ProcCState": "Disabled"}}, "Similar ones: ProcCStates"),
        ({"attributes": {"LogicalProc": "off"}}, "The value off for the property LogicalProc is not in the list"),
        ({"attributes": {"ProcCStates": "Disabled"}}, "ProcCStates is a read only property"),
        (
            {"attributes": {"ProcC1E": "Enabled"}, "intents": OFF},
            "ProcC1E: attributes wants Enabled, c1e=disabled wants Disabled",
        ),
        ({"intents": OFF, "vendor": "hpe"}, "no attribute like MinProcIdlePower"),
        (
            {"attributes": {"LogicalProc": "Enabled"}, "system_id": "GPU"},
            "Use one of 11111111-2222-3333-4444-555555555555",
        ),
        ({"attributes": {"LogicalProc": "Enabled"}, "password": "wrong"}, "HTTP 401"),
        (
            {"attributes": {"LogicalProc": "Enabled"}, "ca_path": "/no/such.pem"},
            "ca_path /no/such.pem: there is no such file",
        ),
        ({"attributes": {"LogicalProc": "Enabled"}, "address": "127.0.0.1:9"}, "Connection refused"),
        ({}, "one of the following is required: intents, attributes"),
    ],
    ids=[
        "unknown name",
        "unknown value",
        "locked",
        "contradiction",
        "wrong map",
        "wrong system",
        "wrong password",
        "no ca",
        "no bmc",
        "nothing",
    ],
)
def test_refusals_say_what_is_wrong(make_bmc: Make, run_module: Run, args: dict[str, Any], message: str) -> None:
    bmc = make_bmc("dell")
    result = run_module(redfish_bios.main, {**bmc.params, **args})
    assert result["failed"] is True
    assert message in result["msg"]
    assert bmc.params["password"] not in str(result)
    assert bmc.hardware.read()["bios"]["pending"] == {}


def test_an_untrusted_certificate_is_refused(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    args = {**bmc.params, "attributes": {"LogicalProc": "Enabled"}}
    del args["ca_path"]
    result = run_module(redfish_bios.main, args)
    assert "for a certificate error check ca_path" in result["msg"]

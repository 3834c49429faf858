# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The simulated BMC itself: what it refuses, what waits for power, what a boot override does."""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from bmc import bios_table

if TYPE_CHECKING:
    from tests.unit.bmc_server import SimulatedBmc

pytest_plugins = ("tests.unit.bmc_server",)

Make = Callable[[str], "SimulatedBmc"]
SYSTEM = "/redfish/v1/Systems/11111111-2222-3333-4444-555555555555"
SETTINGS = f"{SYSTEM}/BIOS/Settings"


def call(
    bmc: SimulatedBmc, method: str, path: str, body: Any = None, auth: bool = True, **headers: str
) -> tuple[int, dict[str, Any]]:
    """Send a request without our own client and return status and JSON."""
    token = b64encode(f"admin:{bmc.params['password']}".encode()).decode()
    request = urllib.request.Request(
        f"https://{bmc.params['address']}{path}",
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json", **({"Authorization": f"Basic {token}"} if auth else {}), **headers},
        method=method,
    )
    context = ssl.create_default_context(cafile=bmc.params["ca_path"])
    try:
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:
            raw, status = answer.read(), answer.status
    except urllib.error.HTTPError as error:
        raw, status = error.read(), error.code
    return status, json.loads(raw) if raw else {}


def message_id(body: dict[str, Any]) -> str:
    """Return the message id of a refusal."""
    return str(body["error"]["@Message.ExtendedInfo"][0]["MessageId"])


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ({"NoSuch": "x"}, "Base.1.8.PropertyUnknown"),
        ({"LogicalProc": "Maybe"}, "Base.1.8.PropertyValueNotInList"),
        ({"ProcCStates": "Disabled"}, "Base.1.8.PropertyNotWritable"),
        ({}, "Base.1.8.PropertyMissing"),
        ({"LogicalProc": "Enabled", "NoSuch": "x"}, "Base.1.8.PropertyUnknown"),
    ],
    ids=["unknown attribute", "unknown value", "locked by the profile", "empty", "one of two is wrong"],
)
def test_bios_writes_that_are_refused(make_bmc: Make, attributes: dict[str, str], expected: str) -> None:
    bmc = make_bmc("dell")
    status, body = call(bmc, "PATCH", SETTINGS, {"Attributes": attributes})
    assert (status, message_id(body)) == (400, expected)
    assert bmc.hardware.read()["bios"]["pending"] == {}


def test_a_dell_write_without_an_apply_time_waits_for_ever(make_bmc: Make) -> None:
    bmc = make_bmc("dell")
    assert call(bmc, "PATCH", SETTINGS, {"Attributes": {"LogicalProc": "Enabled"}})[0] == 200
    assert call(bmc, "GET", SETTINGS)[1]["Attributes"] == {"LogicalProc": "Enabled"}
    bmc.power_cycle()
    assert bmc.hardware.read()["bios"]["current"]["LogicalProc"] == "Disabled"


def test_a_write_held_to_an_old_tag_is_refused(make_bmc: Make) -> None:
    bmc = make_bmc("hpe")
    body = {"Attributes": {"Sriov": "Disabled"}}
    tag = call(bmc, "GET", SETTINGS)[1]["@odata.etag"]
    assert call(bmc, "PATCH", SETTINGS, body, **{"If-Match": tag})[0] == 200
    assert call(bmc, "PATCH", SETTINGS, body, **{"If-Match": tag})[0] == 412


def test_settings_are_spelled_as_the_vendor_does(make_bmc: Make) -> None:
    assert call(make_bmc("dell"), "GET", SETTINGS)[1]["Attributes"] == {}
    assert call(make_bmc("lenovo"), "GET", SETTINGS)[1]["Attributes"] == bios_table.defaults("lenovo")


def test_who_is_let_in(make_bmc: Make) -> None:
    bmc = make_bmc("dell")
    assert call(bmc, "GET", "/redfish/v1", auth=False)[0] == 200
    assert call(bmc, "GET", SYSTEM, auth=False)[0] == 401
    assert call(bmc, "GET", "/redfish/v1/Systems/another-nodes-system")[0] == 404
    assert call(bmc, "GET", "/redfish/v1/Systems/another-nodes-system/BIOS")[0] == 404


def test_resets_that_are_refused(make_bmc: Make) -> None:
    bmc = make_bmc("dell")
    reset = f"{SYSTEM}/Actions/ComputerSystem.Reset"
    status, body = call(bmc, "POST", reset, {"ResetType": "Nmi"})
    assert (status, message_id(body)) == (400, "Base.1.8.ActionParameterNotSupported")
    bmc.hardware.stop(graceful=False)
    status, body = call(bmc, "POST", reset, {"ResetType": "GracefulShutdown"})
    assert (status, message_id(body)) == (409, "Base.1.8.ResourceInStandby")


@pytest.mark.parametrize(
    ("reset_type", "on", "cycles"),
    [
        ("On", True, 0),
        ("ForceOff", False, 0),
        ("GracefulShutdown", False, 0),
        ("GracefulRestart", True, 1),
        ("ForceRestart", True, 1),
        ("PowerCycle", True, 1),
    ],
)
def test_resets(make_bmc: Make, reset_type: str, on: bool, cycles: int) -> None:
    bmc = make_bmc("dell")
    before = call(bmc, "GET", SYSTEM)[1]["LastResetTime"]
    assert call(bmc, "POST", f"{SYSTEM}/Actions/ComputerSystem.Reset", {"ResetType": reset_type})[0] == 204
    bmc.machine.settle()
    system = call(bmc, "GET", SYSTEM)[1]
    assert system["PowerState"] == ("On" if on else "Off")
    assert system["Oem"]["Sim"] == {"PowerCycles": cycles, "Installs": 0}
    assert (system["LastResetTime"] > before) is bool(cycles)


@pytest.mark.parametrize(
    ("boot", "first", "second"),
    [
        ({"BootSourceOverrideTarget": "Pxe", "BootSourceOverrideEnabled": "Once"}, 1, 1),
        ({"BootSourceOverrideTarget": "Cd", "BootSourceOverrideEnabled": "Continuous"}, 1, 2),
        ({"BootSourceOverrideTarget": "Hdd", "BootSourceOverrideEnabled": "Once"}, 0, 0),
        ({"BootSourceOverrideTarget": "None", "BootSourceOverrideEnabled": "Disabled"}, 0, 0),
    ],
    ids=["network once", "media always", "disk", "none"],
)
def test_boot_override(make_bmc: Make, boot: dict[str, str], first: int, second: int) -> None:
    bmc = make_bmc("dell")
    assert call(bmc, "PATCH", SYSTEM, {"Boot": boot})[0] == 204
    shown = call(bmc, "GET", SYSTEM)[1]["Boot"]
    assert {k: shown[k] for k in boot} == boot
    bmc.power_cycle()
    assert bmc.machine.counters["Installs"] == bmc.hardware.images == first
    bmc.power_cycle()
    assert bmc.machine.counters["Installs"] == bmc.hardware.images == second


def test_the_bmc_remembers_over_a_restart(make_bmc: Make) -> None:
    bmc = make_bmc("dell")
    bmc.power_cycle()
    again = type(bmc.machine)("node1", bmc.machine.uuid, "dell", bmc.hardware, bmc.machine._state_file)
    assert again.counters == {"PowerCycles": 1, "Installs": 0}
    assert again.last_reset == bmc.machine.last_reset


@pytest.mark.parametrize("vendor", sorted(bios_table.VENDORS))
def test_the_registry_knows_every_attribute_and_value(make_bmc: Make, vendor: str) -> None:
    bmc = make_bmc(vendor)
    current = call(bmc, "GET", f"{SYSTEM}/BIOS")[1]
    file = call(bmc, "GET", f"/redfish/v1/Registries/{current['AttributeRegistry']}")[1]
    registry = call(bmc, "GET", file["Location"][0]["Uri"])[1]
    entries = {a["AttributeName"]: a for a in registry["RegistryEntries"]["Attributes"]}
    assert set(entries) == set(current["Attributes"])
    for name, value in current["Attributes"].items():
        assert value in [v["ValueName"] for v in entries[name]["Value"]]
        assert entries[name]["DisplayName"]
    for dependency in registry["RegistryEntries"]["Dependencies"]:
        assert dependency["Dependency"]["MapFrom"][0]["MapFromAttribute"] in entries


def test_the_table_follows_the_hardware_description() -> None:
    """The simulated hardware and its BMC must agree on the factory values."""
    from simhw import describe

    for vendor, values in describe._BIOS.items():
        assert bios_table.defaults(vendor) == values


def test_a_silent_client_does_not_block_the_bmc(make_bmc: Make) -> None:
    bmc = make_bmc("dell")
    host, port = bmc.params["address"].split(":")
    silent = http.client.HTTPConnection(host, int(port), timeout=5)
    silent.connect()
    try:
        assert call(bmc, "GET", SYSTEM)[0] == 200
    finally:
        silent.close()

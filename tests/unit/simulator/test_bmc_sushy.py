# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""OpenStack's Redfish client as an independent witness: it sees what our modules did, and they see what it did."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import sushy
from ansible_collections.ai_infra.gpu_rack.plugins.modules import redfish_bios, redfish_firmware

if TYPE_CHECKING:
    from tests.unit.bmc_server import SimulatedBmc

pytest_plugins = ("tests.unit.bmc_server",)

Make = Callable[[str], "SimulatedBmc"]
Run = Callable[..., dict[str, Any]]


def connect(bmc: SimulatedBmc) -> Any:
    """Return sushy's view of the BMC."""
    auth = sushy.auth.BasicAuth(bmc.params["username"], bmc.params["password"])
    return sushy.Sushy(f"https://{bmc.params['address']}", verify=bmc.params["ca_path"], auth=auth)


def test_a_setting_of_ours_is_seen_by_sushy(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    system = connect(bmc).get_system()
    assert (system.manufacturer, system.power_state.value) == ("Dell Inc.", "On")
    run_module(redfish_bios.main, {**bmc.params, "intents": {"c_states": "disabled"}})
    assert system.bios.attributes["ProcCStates"] == "Enabled"
    assert system.bios.pending_attributes == {"SysProfile": "Custom", "ProcCStates": "Disabled"}
    system.reset_system(sushy.ResetType.FORCE_RESTART)
    bmc.machine.settle()
    system.bios.refresh(force=True)
    assert system.bios.attributes["ProcCStates"] == "Disabled"


def test_a_setting_of_sushys_is_seen_by_us(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("hpe")
    bios = connect(bmc).get_system().bios
    bios.set_attributes({"MinProcIdlePower": "NoCStates", "MinProcIdlePkgState": "NoState"})
    result = run_module(redfish_bios.main, {**bmc.params, "intents": {"c_states": "disabled"}})
    assert (result["changed"], result["reboot_required"]) == (False, True)


def test_the_registry_is_valid_for_sushy(make_bmc: Make) -> None:
    bios = connect(make_bmc("supermicro")).get_system().bios
    registry = bios.get_attribute_registry()
    names = {a.name for a in registry.registry_entries.attributes}
    assert "PackageCState#0843" in names


def test_firmware_of_ours_is_seen_by_sushy(make_bmc: Make, run_module: Run) -> None:
    bmc = make_bmc("dell")
    (bmc.packages / "one.fwpkg").write_text('{"components": {"HGX_FW_GPU_SXM_1": "96.00.99.00.01"}}')
    package = {
        "name": "one",
        "uri": f"{bmc.package_uri}/one.fwpkg",
        "components": {"HGX_FW_GPU_SXM_1": "96.00.99.00.01"},
    }
    run_module(redfish_firmware.main, {**bmc.params, "packages": [package], "poll_interval": 0.05})
    bmc.power_cycle()
    inventory = connect(bmc).get_update_service().firmware_inventory
    versions = {m.identity: m.version for m in inventory.get_members()}
    assert versions["HGX_FW_GPU_SXM_1"] == "96.00.99.00.01"
    assert versions["HGX_FW_GPU_SXM_2"] == "96.00.89.00.01"

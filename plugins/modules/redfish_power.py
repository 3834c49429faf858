#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Power a system on, off, or through one cycle by its BMC."""

from __future__ import annotations

DOCUMENTATION = r"""
module: redfish_power
short_description: Power a system on, off, or through one power cycle over Redfish
description:
  - Asks the operating system to shut down, waits, and forces the power off only when it does not obey in time.
  - Every step is proven by the power state the BMC reports. A cycle is off seen, then on seen, so that staged
    firmware and BIOS settings are applied.
version_added: "0.1.0"
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  state:
    description:
      - V(cycled) powers off and on again, once. A system that is off is only powered on.
      - V(on) and V(off) bring that state about.
    type: str
    choices: [cycled, "on", "off"]
    required: true
  graceful_timeout:
    description: Seconds the operating system gets to shut down before the power is forced off. V(0) forces at once.
    type: float
    default: 300.0
  power_timeout:
    description: Seconds the BMC gets to reach a power state it was told to take.
    type: float
    default: 120.0
  reasons:
    description: Why, for the diff and for the operator. They change nothing else.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - ai_infra.gpu_rack.redfish
attributes:
  check_mode:
    description: Says what would be done and why, and leaves the power alone.
    support: full
  diff_mode:
    description: Shows the power state and the reasons.
    support: full
notes:
  - Run it on the controller, with C(delegate_to).
"""

EXAMPLES = r"""
- name: Power-cycle once, so that staged firmware and BIOS settings are applied
  ai_infra.gpu_rack.redfish_power:
    address: bmc-node1.example
    username: admin
    password: "{{ bmc_password }}"
    state: cycled
    reasons:
      - BIOS ProcCStates is Enabled, wanted Disabled
  delegate_to: localhost
"""

RETURN = r"""
actions:
  description: Redfish reset types that were sent, in order. In check mode those that would be.
  type: list
  elements: str
  returned: always
  sample: [GracefulShutdown, "On"]
forced:
  description: Whether the power was forced off because the operating system did not shut down in time.
  type: bool
  returned: always
power_state:
  description: The power state at the end.
  type: str
  returned: always
seconds:
  description: How long it took.
  type: float
  returned: always
"""

import time
from collections.abc import Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import check_numbers
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._redfish import (
    REDFISH_ARGS,
    Bmc,
    RedfishError,
    odata_id,
)

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    **REDFISH_ARGS,
    "state": {"type": "str", "choices": ["cycled", "on", "off"], "required": True},
    "graceful_timeout": {"type": "float", "default": 300.0},
    "power_timeout": {"type": "float", "default": 120.0},
    "reasons": {"type": "list", "elements": "str", "default": []},
}


class Power:
    """The power of one system."""

    def __init__(self, bmc: Bmc, system: Mapping[str, Any], power_timeout: float) -> None:
        """Find out how to reset the system and which ways it knows."""
        self.bmc = bmc
        self.path = str(system["@odata.id"])
        self.power_timeout = power_timeout
        self.actions: list[str] = []
        action = (system.get("Actions") or {}).get("#ComputerSystem.Reset") or {}
        self.target = str(action.get("target") or f"{self.path}/Actions/ComputerSystem.Reset")
        allowed = action.get("ResetType@Redfish.AllowableValues")
        info = odata_id(action, "@Redfish.ActionInfo") or action.get("@Redfish.ActionInfo")
        if allowed is None and isinstance(info, str):
            found = [p for p in bmc.get(info).get("Parameters") or [] if p.get("Name") == "ResetType"]
            allowed = found[0].get("AllowableValues") if found else None
        self.allowed: list[str] | None = allowed

    def state(self) -> str:
        """Return the power state now."""
        return str(self.bmc.get(self.path).get("PowerState"))

    def send(self, reset_type: str) -> None:
        """Send one reset."""
        self.actions.append(reset_type)
        self.bmc.request("POST", self.target, {"ResetType": reset_type})

    def can(self, reset_type: str) -> bool:
        """Return whether the BMC knows the reset type. One that does not list them is believed to."""
        return self.allowed is None or reset_type in self.allowed

    def off(self, graceful_timeout: float) -> bool:
        """Power off and return whether it had to be forced."""
        if graceful_timeout > 0 and self.can("GracefulShutdown"):
            self.send("GracefulShutdown")
            if self.bmc.wait_for(self.state, "Off", graceful_timeout):
                return False
        self.send("ForceOff")
        self._reached("Off")
        return True

    def on(self) -> None:
        """Power on."""
        self.send("On")
        self._reached("On")

    def _reached(self, wanted: str) -> None:
        """Wait for a power state, or raise with what the BMC shows."""
        if not self.bmc.wait_for(self.state, wanted, self.power_timeout):
            raise RedfishError(
                f"power of {self.path} on BMC {self.bmc.address}: still {self.state()} {self.power_timeout:g} s "
                f"after {self.actions[-1]}. "
                f"Look at the system's console and the BMC's log, then raise power_timeout if it only is slow."
            )


def planned(state: str, before: str, graceful: bool) -> list[str]:
    """Return the resets that lead from a power state to the wanted one."""
    off = [] if before == "Off" else ["GracefulShutdown" if graceful else "ForceOff"]
    on = [] if before == "On" and state != "cycled" else ["On"]
    return {"off": off, "on": on, "cycled": [*off, "On"]}[state]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, positive=["power_timeout"], not_negative=["graceful_timeout"])
    params = module.params
    start = time.monotonic()
    forced = False
    try:
        bmc = Bmc(params)
        system = bmc.system(params["system_id"])
        power = Power(bmc, system, params["power_timeout"])
        before = str(system.get("PowerState"))
        plan = planned(params["state"], before, params["graceful_timeout"] > 0 and power.can("GracefulShutdown"))
        after = before
        if plan and module.check_mode:
            power.actions = plan
            after = "Off" if params["state"] == "off" else "On"
        elif plan:
            if params["state"] != "on" and before != "Off":
                forced = power.off(params["graceful_timeout"])
            if params["state"] != "off":
                power.on()
            after = power.state()
    except RedfishError as exc:
        module.fail_json(msg=str(exc))
    why = [f"- {r}" for r in params["reasons"]]
    would = "would be " if module.check_mode else ""
    deed = {"cycled": "power-cycled", "on": "powered on", "off": "powered off"}[params["state"]]
    message = (
        f"{would}{deed}{': ' + '; '.join(params['reasons']) if params['reasons'] else ''}"
        if plan
        else f"is {before.lower()} already"
    )
    module.exit_json(
        changed=bool(plan),
        msg=message,
        actions=power.actions,
        forced=forced,
        power_state=after,
        seconds=round(time.monotonic() - start, 1),
        diff={
            "before": f"power: {before}\n",
            "after": "\n".join([f"power: {after}", *([f"{deed}, because", *why] if plan and why else []), ""]),
        },
    )


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Bring firmware components to pinned versions over Redfish, and verify them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: redfish_firmware
short_description: Update and verify firmware over Redfish
description:
  - Compares the BMC's firmware inventory with a pinned set, and updates only the components that differ, through
    C(UpdateService.SimpleUpdate).
  - The BMC fetches the package itself. Its task is followed to the end, with a deadline.
  - A new version is often I(staged) and runs only after a power cycle. What is staged is told by the BMC's own
    completed tasks since the last reset,
    so a second run before the power cycle changes nothing.
version_added: "0.1.0"
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  packages:
    description:
      - The pinned set, one entry a package. An empty list pins nothing, and then nothing is verified.
    type: list
    elements: dict
    required: true
    suboptions:
      name:
        description: Name of the package, for messages.
        type: str
        required: true
      uri:
        description: Where the BMC fetches the package, HTTP or HTTPS. A package without one is only compared, and a
          difference is an error.
        type: str
      components:
        description: Wanted version by inventory id. Shell patterns are allowed (V(HGX_FW_GPU_SXM_*)); one that fits
          no component is an error. At least one is needed.
        type: dict
        required: true
  state:
    description:
      - V(present) updates what differs.
      - V(verified) updates nothing and fails unless every component runs its version.
    type: str
    choices: [present, verified]
    default: present
  task_timeout:
    description: Seconds an update task may take. A full HGX baseboard takes up to an hour.
    type: float
    default: 3600.0
  poll_interval:
    description: Seconds between two looks at an update task.
    type: float
    default: 5.0
  enforce:
    description: With O(state=verified), fail when not verified. With V(false) the result is only returned in
      RV(verified).
    type: bool
    default: true
extends_documentation_fragment:
  - ai_infra.gpu_rack.redfish
attributes:
  check_mode:
    description: Reads from the BMC and updates nothing.
    support: full
  diff_mode:
    description: Shows running or staged versions before and after.
    support: full
notes:
  - Run it on the controller, with C(delegate_to).
"""

EXAMPLES = r"""
- name: Stage the pinned firmware of the HGX baseboard
  ai_infra.gpu_rack.redfish_firmware:
    address: bmc-node1.example
    username: admin
    password: "{{ bmc_password }}"
    packages:
      - name: HGX H100 8-GPU 1.4.0
        uri: http://firmware.example/hgx_h100_8.fwpkg
        components:
          HGX_FW_GPU_SXM_*: 96.00.89.00.01
          HGX_FW_NVSwitch_*: 96.10.57.00.01
  delegate_to: localhost

- name: Show that it runs after the power cycle
  ai_infra.gpu_rack.redfish_firmware:
    address: bmc-node1.example
    username: admin
    password: "{{ bmc_password }}"
    packages: "{{ packages }}"
    state: verified
  delegate_to: localhost
"""

RETURN = r"""
checks:
  description: One check for each pinned component, in the form of the gate modules.
  type: list
  elements: dict
  returned: O(state=verified)
verdict:
  description: The worst verdict of RV(checks). V(unknown) when O(packages) is empty, since nothing was looked at.
  type: str
  returned: O(state=verified)
components:
  description: Every pinned component, by inventory id.
  type: dict
  returned: always
  contains:
    wanted:
      description: The pinned version.
      type: str
    running:
      description: The version the inventory reports.
      type: str
    staged:
      description: The version that waits for activation, or null.
      type: str
    package:
      description: Name of the package.
      type: str
updated:
  description: Names of the packages that were sent to the BMC. In check mode those that would be.
  type: list
  elements: str
  returned: O(state=present)
reboot_required:
  description: Whether a pinned version does not run yet.
  type: bool
  returned: always
reboot_reasons:
  description: One line for each component whose pinned version does not run yet.
  type: list
  elements: str
  returned: always
activation:
  description: What the BMC says is needed to activate the staged versions.
  type: list
  elements: str
  returned: always
verified:
  description: Whether no pinned component runs another version; also true when O(packages) is empty, see RV(verdict).
  type: bool
  returned: O(state=verified)
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import check_numbers
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._redfish import (
    REDFISH_ARGS,
    Bmc,
    RedfishError,
    Response,
    odata_id,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._redfish_tasks import ENDED, failure, staged_versions
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import compare, worst

CHECKS: dict[str, str] = {
    "redfish_firmware.version": (
        "The version each component runs by Redfish's firmware inventory, held against the pinned firmware set."
    ),
}
ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    **REDFISH_ARGS,
    "packages": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "name": {"type": "str", "required": True},
            "uri": {"type": "str"},
            "components": {"type": "dict", "required": True},
        },
    },
    "state": {"type": "str", "choices": ["present", "verified"], "default": "present"},
    "task_timeout": {"type": "float", "default": 3600.0},
    "poll_interval": {"type": "float", "default": 5.0},
    "enforce": {"type": "bool", "default": True},
}


class Firmware:
    """The update service of one BMC."""

    def __init__(self, bmc: Bmc, system_id: str | None) -> None:
        """Read the update service and the inventory's list."""
        self.bmc = bmc
        self._system_id = system_id
        self.service = bmc.get("/redfish/v1/UpdateService")
        path = odata_id(self.service, "FirmwareInventory")
        if path is None:
            raise RedfishError(f"firmware inventory on BMC {bmc.address}: the BMC offers none. Update its firmware.")
        self.paths = {p.rstrip("/").rsplit("/", 1)[-1]: p for p in bmc.members(path)}

    def versions(self, ids: Sequence[str]) -> dict[str, str | None]:
        """Return the running versions of components."""
        return {i: self.bmc.get(self.paths[i]).get("Version") for i in ids}

    def staged(self) -> tuple[dict[str, str], list[str]]:
        """Return versions that wait for activation, and how to activate them, from the tasks since the last reset."""
        tasks = odata_id(self.bmc.get("/redfish/v1"), "Tasks")
        listing = odata_id(self.bmc.get(tasks), "Tasks") if tasks else None
        if listing is None:
            return {}, []
        last_reset = self.bmc.system(self._system_id).get("LastResetTime")
        return staged_versions([self.bmc.get(p) for p in self.bmc.members(listing)], last_reset)

    def update(self, name: str, uri: str, ids: Sequence[str], timeout: float, interval: float) -> None:
        """Send one package to the BMC for these components and follow the task to its end."""
        action = (self.service.get("Actions") or {}).get("#UpdateService.SimpleUpdate") or {}
        if "target" not in action:
            raise RedfishError(
                f"firmware package {name} on BMC {self.bmc.address}: the BMC has no SimpleUpdate. Update it with "
                "the vendor's tool."
            )
        body: dict[str, Any] = {"ImageURI": uri, "Targets": [self.paths[i] for i in ids]}
        protocol = uri.split(":", 1)[0].upper()
        allowed = action.get("TransferProtocol@Redfish.AllowableValues")
        if allowed is not None and protocol not in allowed:
            raise RedfishError(
                f"firmware package {name}: uri {uri} uses {protocol}. The BMC fetches by {', '.join(allowed)}."
            )
        body["TransferProtocol"] = protocol
        path = task_path(self.bmc.request("POST", str(action["target"]), body))
        if path is None:
            # Without a task there is nothing to follow; the inventory read afterwards tells.
            return
        task: dict[str, Any] = {}

        def state() -> str:
            nonlocal task
            task = self.bmc.get(path)
            return "ended" if task.get("TaskState") in ENDED or "TaskState" not in task else "running"

        if not self.bmc.wait_for(state, "ended", timeout, interval):
            raise RedfishError(
                f"firmware package {name} on BMC {self.bmc.address}: task {path} still {task.get('TaskState')}, "
                f"{task.get('PercentComplete', '?')} % after {timeout:g} s. Let it end before the next run, or "
                "raise task_timeout."
            )
        problem = failure(task)
        if problem:
            raise RedfishError(
                f"firmware package {name} ({uri}) on BMC {self.bmc.address}: {problem} Correct the package or its "
                "uri and run again."
            )


def task_path(answer: Response) -> str | None:
    """Return the path of the task an update started: the body's own, else the Location header's."""
    if "Task" in str(answer.body.get("@odata.type", "")):
        return odata_id(answer.body)
    location = answer.headers.get("location")
    if location is None:
        return None
    return "/" + location.split("://", 1)[1].split("/", 1)[1] if "://" in location else location


def expand(packages: Sequence[Mapping[str, Any]], known: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return (wanted version, package name) by component.

    A pattern without a component, or two versions for one, is an error.
    """
    result: dict[str, tuple[str, str]] = {}
    for package in packages:
        if not package["components"]:
            raise RedfishError(
                f"firmware package {package['name']}: components is empty. Name the components it pins, or remove the "
                "package."
            )
        for pattern, version in package["components"].items():
            found = sorted(fnmatch.filter(known, str(pattern)))
            if not found:
                raise RedfishError(
                    f"firmware package {package['name']}: '{pattern}' fits no component of the inventory. "
                    f"The BMC lists {', '.join(sorted(known)) or 'none'}."
                )
            for component in found:
                if component in result and result[component][0] != str(version):
                    raise RedfishError(
                        f"firmware component {component}: pinned to {result[component][0]} by "
                        f"{result[component][1]} and to {version} "
                        f"by {package['name']}. Keep one of them."
                    )
                result[component] = (str(version), str(package["name"]))
    return result


def table(components: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the components that do not run their version, wanted against running."""
    bad = {n: c for n, c in components.items() if c["running"] != c["wanted"]}
    return "; ".join(
        f"{n}: wanted {c['wanted']}, running {c['running']}" + (f", staged {c['staged']}" if c["staged"] else "")
        for n, c in bad.items()
    )


def checks(components: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one check for each component: the running version against the pinned one."""
    return [
        compare(
            "redfish_firmware.version",
            name,
            c["running"],
            c["wanted"],
            ok=c["running"] == c["wanted"],
            limit_source=f"firmware set {c['package']}",
            reason=f"pinned {c['wanted']}, running {c['running']}, staged {c['staged'] or 'nothing'}",
            remedy="Power-cycle the node if a version is staged, else run the firmware role again; read the BMC's log.",
        ).as_dict()
        for name, c in components.items()
    ]


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, positive=["task_timeout", "poll_interval"])
    params = module.params
    packages = params["packages"]
    try:
        firmware = Firmware(Bmc(params), params["system_id"])
        pinned = expand(packages, list(firmware.paths))

        def read() -> tuple[dict[str, dict[str, Any]], list[str]]:
            running = firmware.versions(list(pinned))
            # Tasks are read only when something differs: on a BMC each is a slow request.
            staged, activation = (
                firmware.staged() if any(running[i] != v for i, (v, _name) in pinned.items()) else ({}, [])
            )
            rows = {
                i: {
                    "wanted": v,
                    "running": running[i],
                    "staged": staged.get(i) if staged.get(i) != running[i] else None,
                    "package": name,
                }
                for i, (v, name) in pinned.items()
            }
            return rows, activation

        before, activation = read()
        if params["state"] == "verified":
            bad = table(before)
            judged = checks(before)
            outcome = {
                "changed": False,
                "components": before,
                "reboot_reasons": reasons(before),
                "reboot_required": bool(reasons(before)),
                "activation": activation,
                "verified": not bad,
                "checks": judged,
                "verdict": worst(c["verdict"] for c in judged),
            }
            waits = any(c["staged"] for c in before.values())
            remedy = (
                "Power-cycle the node: staged versions run after that."
                if waits
                else "Nothing is staged: run the firmware role again, and if it stays so look at the BMC's log."
            )
            message = f"firmware on BMC {params['address']} is not the pinned set: {bad}. {remedy}"
            if bad and params["enforce"]:
                module.fail_json(msg=message, **outcome)
            good = (
                f"{len(before)} components run their pinned version"
                if before
                else f"firmware on BMC {params['address']}: no firmware is pinned for this board, "
                "so nothing was verified"
            )
            module.exit_json(msg=message if bad else good, **outcome)
        updated: list[str] = []
        after = {i: dict(c) for i, c in before.items()}
        for package in packages:
            name = package["name"]
            due = [
                i for i, c in before.items() if c["package"] == name and c["wanted"] not in (c["running"], c["staged"])
            ]
            if not due:
                continue
            if not package["uri"]:
                raise RedfishError(
                    f"firmware package {name}: {table({i: before[i] for i in due})}, and the package has no uri. "
                    "Give it one."
                )
            updated.append(name)
            for component in due:
                after[component]["staged"] = after[component]["wanted"]
            if not module.check_mode:
                firmware.update(name, package["uri"], due, params["task_timeout"], params["poll_interval"])
        if updated and not module.check_mode:
            after, activation = read()
    except RedfishError as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(
        # A package that was sent is a change even where the BMC cannot show what is staged.
        changed=before != after or bool(updated),
        components=after,
        updated=updated,
        reboot_reasons=reasons(after),
        reboot_required=bool(reasons(after)),
        activation=activation,
        diff={
            "before": {i: c["staged"] or c["running"] for i, c in before.items()},
            "after": {i: c["staged"] or c["running"] for i, c in after.items()},
            "before_header": f"firmware of {params['address']}",
            "after_header": f"firmware of {params['address']}",
        },
    )


def reasons(components: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return why a power cycle is needed."""
    return [
        f"firmware {n} runs {c['running']}, wanted {c['wanted']}"
        for n, c in components.items()
        if c["running"] != c["wanted"]
    ]


if __name__ == "__main__":
    main()

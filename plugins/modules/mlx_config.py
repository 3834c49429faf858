#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: mlx_config
short_description: Set the firmware configuration of ConnectX adapters
version_added: 0.1.0
description:
  - Sets parameters with C(mlxconfig) where the value for the next boot differs from the wanted one.
  - The adapter works with the new values only after a reset or reboot. RV(reboot_required) tells when the values it
    works with differ from the wanted ones, also when they were set by an earlier run.
options:
  devices:
    description: Adapters, as C(mlxconfig -d) takes them, such as V(mlx5_0).
    type: list
    elements: str
    required: true
  settings:
    description:
      - Wanted parameters and values, the same for all O(devices). Values may be names or numbers (V(IB), V(1), V(255)).
    type: dict
    required: true
  require_current:
    description:
      - Fail when the adapter does not work with the wanted values yet, in place of asking for a reboot. For use after
        the reboot.
    type: bool
    default: false
  tool:
    description: The program, C(mlxconfig) of NVIDIA's MFT or C(mstconfig) of mstflint.
    type: str
    default: mlxconfig
  timeout:
    description: Deadline in seconds for each command.
    type: float
    default: 60.0
attributes:
  check_mode:
    description: Tells what would be set, changes nothing.
    support: full
  diff_mode:
    description: Shows the values for the next boot before and after.
    support: full
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Make the ports InfiniBand
  ai_infra.gpu_rack.mlx_config:
    devices: [mlx5_0, mlx5_1]
    settings:
      LINK_TYPE_P1: IB
  register: __mlx

- name: Prove it after the reboot
  ai_infra.gpu_rack.mlx_config:
    devices: [mlx5_0, mlx5_1]
    settings:
      LINK_TYPE_P1: IB
    require_current: true
"""

RETURN = r"""
reboot_required:
  description: Whether an adapter works with other values than the wanted ones.
  returned: success
  type: bool
reboot_reasons:
  description: One line for each parameter that waits for the reboot.
  returned: success
  type: list
  elements: str
  sample: ["mlx5_0 LINK_TYPE_P1: works with ETH(2), IB comes with the next boot"]
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._mlxconfig import Setting, argument, parse_query, same
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

ARGUMENTS: dict[str, dict[str, Any]] = {
    "devices": {"type": "list", "elements": "str", "required": True},
    "settings": {"type": "dict", "required": True},
    "require_current": {"type": "bool", "default": False},
    "tool": {"type": "str", "default": "mlxconfig"},
    "timeout": {"type": "float", "default": 60.0},
}


def said(read: Evidence) -> str:
    """Return what a failed command said, in one line."""
    text = (read.stderr.strip() or read.stdout.strip()).splitlines()
    return read.error or (text[-1].strip() if text else f"exit status {read.rc} without a word")


def query(module: AnsibleModule, device: str) -> dict[str, Setting]:
    """Return the wanted parameters of a device as they are, or fail naming what is missing."""
    read = _cli.run([module.params["tool"], "-d", device, "-e", "query"], module.params["timeout"])
    if read.error is not None or read.rc != 0:
        module.fail_json(
            msg=f"Reading the configuration of {device}: {said(read)}. Check that the adapter is there and that "
            f"{module.params['tool']} is installed."
        )
    found = parse_query(read.stdout)
    missing = sorted(set(module.params["settings"]) - set(found))
    if missing:
        module.fail_json(
            msg=f"Option settings: {device} has no parameter {', '.join(missing)}. "
            f"See `{module.params['tool']} -d {device} query` for those it has."
        )
    return {name: found[name] for name in module.params["settings"]}


def main() -> None:
    """Set what differs, say what waits for a reboot."""
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True)
    params = module.params
    wanted: dict[str, Any] = params["settings"]
    before: dict[str, dict[str, str]] = {}
    after: dict[str, dict[str, str]] = {}
    reasons: list[str] = []
    todo: dict[str, list[str]] = {}
    for device in params["devices"]:
        now = query(module, device)
        before[device] = {name: setting.next_boot for name, setting in now.items()}
        differing = [name for name, setting in now.items() if not same(setting.next_boot, wanted[name])]
        after[device] = {**before[device], **{name: str(wanted[name]) for name in differing}}
        if differing:
            todo[device] = [f"{name}={argument(wanted[name])}" for name in differing]
        for name, setting in now.items():
            # Without the column nobody knows what the adapter works with; what was just set it cannot work with yet.
            waits = name in differing if setting.current is None else not same(setting.current, wanted[name])
            if waits:
                works = setting.current or setting.next_boot
                reasons.append(f"{device} {name}: works with {works}, {wanted[name]} comes with the next boot")
    if params["require_current"] and reasons:
        module.fail_json(
            msg=f"Firmware configuration: {'; '.join(reasons)}. Power-cycle the node; an adapter that "
            "keeps the old value after a cold boot has it locked in firmware.",
            reboot_required=True,
            reboot_reasons=reasons,
        )
    for device, arguments in todo.items() if not module.check_mode else ():
        read = _cli.run([params["tool"], "-d", device, "-y", "set", *arguments], params["timeout"])
        if read.error is not None or read.rc != 0:
            module.fail_json(msg=f"Setting {', '.join(arguments)} on {device}: {said(read)}. Correct settings.")
        for name, setting in query(module, device).items():
            if not same(setting.next_boot, wanted[name]):
                module.fail_json(
                    msg=f"Setting {name} on {device}: the tool reported success and the next boot still has "
                    f"{setting.next_boot}. Look for a firmware that locks the parameter."
                )
    module.exit_json(
        changed=before != after,
        diff={"before": before, "after": after},
        reboot_required=bool(reasons),
        reboot_reasons=reasons,
    )


if __name__ == "__main__":
    main()

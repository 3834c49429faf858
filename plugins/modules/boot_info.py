#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tell one boot of a node from another."""

from __future__ import annotations

DOCUMENTATION = r"""
module: boot_info
short_description: Tell one boot of a node from another
description:
  - Returns an identity of the running boot, and fails on request when the node still runs a boot it should have left.
  - The identity pairs the kernel's boot id with the start of process 1. The boot id alone stays the same where the
    userspace is started anew
    under a kernel that keeps running, and a node that answers from its old userspace while it goes down must not
    pass for a new boot.
version_added: "0.1.0"
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  previous:
    description: Identity of an earlier boot. The module fails when the node still runs it.
    type: str
attributes:
  check_mode:
    description: Reads only, so check mode does the same.
    support: full
  diff_mode:
    description: There is no difference to show, nothing is changed.
    support: none
"""

EXAMPLES = r"""
- name: Note which boot this is
  ai_infra.gpu_rack.boot_info:
  register: boot

- name: Show that the node has booted since
  ai_infra.gpu_rack.boot_info:
    previous: "{{ boot.identity }}"
"""

RETURN = r"""
identity:
  description: Identity of the running boot.
  type: str
  returned: always
  sample: 5f0c0d4b-0c5c-4f6e-9c1c-0f2d5a3c9b11/1834
boot_id:
  description: The kernel's boot id.
  type: str
  returned: always
init_start_ticks:
  description: When process 1 started, in clock ticks since the kernel did.
  type: int
  returned: always
"""

from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {"previous": {"type": "str"}}

PROC = Path("/proc")


def start_ticks(stat: str) -> int:
    """Return field 22 (starttime) of /proc/<pid>/stat.

    The command's name may hold blanks and brackets, so count after it.
    """
    return int(stat.rsplit(")", 1)[1].split()[19])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    boot_id = (PROC / "sys/kernel/random/boot_id").read_text().strip()
    ticks = start_ticks((PROC / "1/stat").read_text())
    identity = f"{boot_id}/{ticks}"
    outcome = {"changed": False, "identity": identity, "boot_id": boot_id, "init_start_ticks": ticks}
    if module.params["previous"] == identity:
        module.fail_json(
            msg=f"boot {identity}: the node still runs it. Look at its console through the BMC; it has not rebooted.",
            **outcome,
        )
    module.exit_json(**outcome)


if __name__ == "__main__":
    main()

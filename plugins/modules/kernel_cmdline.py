#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keep kernel parameters in a boot-loader drop-in."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_cmdline
short_description: Keep kernel parameters in a GRUB drop-in
description:
  - Writes a drop-in below C(/etc/default/grub.d), regenerates the boot loader's configuration when that lacks the
    parameters,
    and compares them with the command line of the running kernel.
  - All three are read on every run, so a run that was cut off between two steps is completed by the next one.
version_added: "0.1.0"
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  name:
    description: Name of the drop-in, without directory and C(.cfg).
    type: str
    required: true
  parameters:
    description: Kernel parameters, each C(name) or C(name=value) without blanks and quotes.
    type: list
    elements: str
    required: true
  comment:
    description: Why, as a comment on top of the drop-in.
    type: str
    default: ""
  timeout:
    description: Deadline in seconds for C(update-grub).
    type: float
    default: 120.0
attributes:
  check_mode:
    description: Reads and writes nothing.
    support: full
  diff_mode:
    description: Shows the drop-in before and after.
    support: full
"""

EXAMPLES = r"""
- name: Keep the kernel out of deep idle states
  ai_infra.gpu_rack.kernel_cmdline:
    name: 60-gpu_rack_cstates
    comment: Deep idle states add microseconds to RDMA latency.
    parameters:
      - intel_idle.max_cstate=0
      - processor.max_cstate=1
"""

RETURN = r"""
path:
  description: The drop-in.
  type: str
  returned: always
boot_loader_updated:
  description: Whether the boot loader's configuration was regenerated. In check mode whether it would be.
  type: bool
  returned: always
running:
  description: The running kernel's command line.
  type: str
  returned: always
reboot_required:
  description: Whether the running kernel lacks a parameter.
  type: bool
  returned: always
reboot_reasons:
  description: One line when the running kernel lacks parameters.
  type: list
  elements: str
  returned: always
"""

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import run

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "name": {"type": "str", "required": True},
    "parameters": {"type": "list", "elements": "str", "required": True},
    "comment": {"type": "str", "default": ""},
    "timeout": {"type": "float", "default": 120.0},
}

ROOT = Path("/")


def drop_in(parameters: Sequence[str], comment: str) -> str:
    """Return the drop-in's text."""
    lines = ["# Managed by Ansible (ai_infra.gpu_rack.kernel_cmdline)", *(f"# {line}" for line in comment.splitlines())]
    return "\n".join([*lines, f'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX {" ".join(parameters)}"', ""])


def missing(parameters: Sequence[str], line: str) -> list[str]:
    """Return the parameters not in effect on a command line: the last word of a name wins, as in the kernel."""
    words = {word.split("=", 1)[0]: word for word in line.split()}
    return [p for p in parameters if words.get(p.split("=", 1)[0]) != p]


def lacking_entries(parameters: Sequence[str], grub_cfg: str) -> bool:
    """Return whether a boot entry lacks a parameter, or there is no entry at all."""
    entries = re.findall(r"^\s*linux(?:efi|16)?\s+(.*)$", grub_cfg, re.MULTILINE)
    return not entries or any(missing(parameters, entry) for entry in entries)


def read(path: Path) -> str | None:
    """Return a file's text, or None when there is no such file."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return None


def write(path: Path, text: str) -> None:
    """Replace a file in one step, readable by all."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".gpu_rack.")
    with os.fdopen(handle, "w") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    os.chmod(temporary, 0o644)
    os.replace(temporary, path)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    parameters = params["parameters"]
    for parameter in parameters:
        if not re.fullmatch(r"[A-Za-z0-9_.\-]+(=[^\s\"'`$\\]*)?", parameter):
            module.fail_json(
                msg=f"kernel parameter {parameter!r}: it has blanks, quotes or shell characters. Write it as name "
                "or name=value."
            )
    if not re.fullmatch(r"[A-Za-z0-9_.\-]+", params["name"]):
        module.fail_json(msg=f"name {params['name']!r}: not a file name. Use letters, digits, '_', '-' and '.'.")
    path = ROOT / "etc/default/grub.d" / f"{params['name']}.cfg"
    grub_cfg = ROOT / "boot/grub/grub.cfg"
    before, wanted = read(path), drop_in(parameters, params["comment"])
    running = (ROOT / "proc/cmdline").read_text().strip()
    update = before != wanted or lacking_entries(parameters, read(grub_cfg) or "")
    if update and not module.check_mode:
        if before != wanted:
            write(path, wanted)
        evidence = run(["update-grub"], params["timeout"])
        if evidence.rc != 0:
            said = evidence.error or f"exit status {evidence.rc}: {(evidence.stderr or evidence.stdout).strip()[-300:]}"
            module.fail_json(msg=f"update-grub: {said}. Correct /etc/default/grub and its drop-ins, then run again.")
        if lacking_entries(parameters, read(grub_cfg) or ""):
            module.fail_json(
                msg=f"boot loader configuration {grub_cfg}: update-grub succeeded, but its entries lack "
                f"{' '.join(parameters)}. "
                "Look for a later drop-in or an /etc/default/grub that overwrites GRUB_CMDLINE_LINUX."
            )
    lack = missing(parameters, running)
    module.exit_json(
        changed=update,
        path=str(path),
        boot_loader_updated=update,
        running=running,
        reboot_required=bool(lack),
        reboot_reasons=[f"running kernel lacks {' '.join(lack)}"] if lack else [],
        diff={"before": before or "", "after": wanted, "before_header": str(path), "after_header": str(path)},
    )


if __name__ == "__main__":
    main()

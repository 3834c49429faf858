# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module chrony_config: chronyd's configuration, accepted by chronyd before it is put in place."""

from __future__ import annotations

DOCUMENTATION = r"""
module: chrony_config
short_description: Write chronyd's configuration after chronyd has accepted it
version_added: 0.1.0
description:
  - Gives the new text to C(chronyd -p) and puts it in place only when chronyd accepts it, so that a node that keeps
    time never loses it to a typing error.
  - Is also changed when the running chronyd is older than the file, so that the handler restarts it. A run that was
    killed between
    writing and restarting is repaired by the next one.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  content:
    description: The whole text of the configuration.
    type: str
    required: true
  path:
    description: The configuration file.
    type: path
    default: /etc/chrony/chrony.conf
  unit:
    description: Unit of the daemon that reads the file.
    type: str
    default: chrony.service
attributes:
  check_mode:
    description: Validates, and reports what would be written.
    support: full
  diff_mode:
    description: Shows the file before and after.
    support: full
"""

EXAMPLES = r"""
- name: Follow the head of the rack
  ai_infra.gpu_rack.chrony_config:
    content: |
      server 172.31.77.10 iburst
      makestep 1.0 3
  notify: Restart chrony
"""

RETURN = r"""
path:
  description: The file.
  returned: success
  type: str
stale:
  description: Whether the running daemon is older than the file.
  returned: success
  type: bool
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _files, _systemd
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import run
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

ARGUMENT_SPEC = {
    "content": {"type": "str", "required": True},
    "path": {"type": "path", "default": "/etc/chrony/chrony.conf"},
    "unit": {"type": "str", "default": "chrony.service"},
}
_TIMEOUT_S = 10.0


def validate(content: str) -> Evidence:
    """Return what chronyd says about a configuration: `-p` parses it, prints it and ends without touching the clock."""
    with tempfile.NamedTemporaryFile("w", prefix="chrony.", suffix=".conf") as candidate:
        candidate.write(content)
        candidate.flush()
        # chronyd gives up root for its own user before it reads some of its files.
        os.chmod(candidate.name, 0o644)
        return run(["chronyd", "-p", "-f", candidate.name], _TIMEOUT_S)


def main() -> None:
    """Validate, compare and write."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    path = module.params["path"]
    wanted = _files.WantedFile(path, module.params["content"])
    try:
        if _files.differs(_files.read_file(path), wanted):
            verdict = validate(module.params["content"])
            if verdict.rc != 0 and not (module.check_mode and verdict.rc is None):
                said = verdict.error or verdict.stderr.strip() or verdict.stdout.strip() or f"exit status {verdict.rc}"
                module.fail_json(
                    msg=f"{path}: chronyd refuses the new text: {said}. The old file is untouched. Correct it."
                )
        changed, difference = _files.apply([wanted], module.check_mode)
        stale = _systemd.stale(_systemd.unit(module.params["unit"]), [path])
    except (OSError, KeyError, _systemd.UnitError) as exc:
        module.fail_json(msg=f"{path}: {exc}. Correct that and run again.")
    module.exit_json(changed=bool(changed) or stale, path=path, stale=stale, diff=difference)


if __name__ == "__main__":
    main()

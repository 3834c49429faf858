#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: opensm_config
short_description: Write OpenSM's configuration after OpenSM itself has read it
version_added: 0.1.0
description:
  - Writes a configuration file with one line for each setting.
  - OpenSM goes on without a setting it does not know, prints C(Unrecognized token) and exits 0. So a changed file is
    first read by the installed OpenSM itself (C(opensm -F FILE -c OUT) only parses and leaves), and refused when it
    does not know a setting.
options:
  path:
    description: The configuration file.
    type: path
    default: /etc/opensm/opensm.conf
  settings:
    description: Names and values in the order of the file. Booleans become C(TRUE) and C(FALSE).
    type: dict
    required: true
  opensm:
    description: The OpenSM program.
    type: str
    default: opensm
  timeout:
    description: Deadline in seconds for OpenSM to read the file.
    type: float
    default: 30.0
attributes:
  check_mode:
    description: Shows the difference. OpenSM is not asked, as it may not be installed yet.
    support: full
  diff_mode:
    description: Shows the file before and after.
    support: full
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Configure OpenSM
  ai_infra.gpu_rack.opensm_config:
    settings:
      sm_priority: 14
      routing_engine: updn
  notify: Restart OpenSM
"""

RETURN = r"""
path:
  description: The configuration file.
  returned: success
  type: str
version:
  description: Version of the OpenSM that read the file, null when it did not have to.
  returned: success
  type: str
"""

import os
import tempfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._opensm import render, unrecognized, version

ARGUMENTS: dict[str, dict[str, Any]] = {
    "path": {"type": "path", "default": "/etc/opensm/opensm.conf"},
    "settings": {"type": "dict", "required": True},
    "opensm": {"type": "str", "default": "opensm"},
    "timeout": {"type": "float", "default": 30.0},
}


def ask_opensm(module: AnsibleModule, text: str) -> str | None:
    """Let OpenSM read the text; fail when it does not know a setting. Return its version."""
    params = module.params
    with tempfile.TemporaryDirectory(prefix="gpu_rack_opensm") as directory:
        candidate = Path(directory) / "opensm.conf"
        candidate.write_text(text)
        read = _cli.run(
            [params["opensm"], "-F", str(candidate), "-c", str(Path(directory) / "parsed.conf")], params["timeout"]
        )
    if read.error is not None or read.rc != 0:
        said = (read.stderr.strip() or read.stdout.strip()).splitlines()[-1:]
        module.fail_json(
            msg=f"Letting {params['opensm']} read its new configuration: {read.error or f'exit status {read.rc}'} "
            f"{' '.join(said)}. Check that OpenSM is installed; {params['path']} was not touched."
        )
    known = version(read.stdout)
    names = unrecognized(read.stdout + "\n" + read.stderr)
    if names:
        module.fail_json(
            msg=f"Option settings: OpenSM {known or ''} does not know {', '.join(names)} and would go on without. "
            "Remove what it does not know, or install an OpenSM that does (adaptive routing and "
            f"mlnx_congestion_control are NVIDIA's); {params['path']} was not touched.",
            unrecognized=names,
        )
    return known


def main() -> None:
    """Write the configuration when it differs and OpenSM takes it."""
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True)
    path = Path(module.params["path"])
    before = path.read_text() if path.exists() else ""
    after = render(module.params["settings"])
    known = None
    if before != after and not module.check_mode:
        known = ask_opensm(module, after)
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "w") as stream:
            stream.write(after)
        os.chmod(temporary, 0o644)
        module.atomic_move(temporary, str(path))
    module.exit_json(
        changed=before != after,
        path=str(path),
        version=known,
        diff={"before": before, "after": after, "before_header": str(path), "after_header": str(path)},
    )


if __name__ == "__main__":
    main()

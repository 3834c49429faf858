# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module node_files: a set of whole files in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
module: node_files
short_description: Write a set of whole files in one call
version_added: 0.1.0
description:
  - Compares content, mode, owner and group of every file of the set and writes what differs, each atomically.
  - One call for all the files of a role, because every task costs a connection and a Python start on each host.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  files:
    description: The files.
    type: list
    elements: dict
    required: true
    suboptions:
      path:
        description: Absolute path of the file. Missing parent directories are made with mode 0755.
        type: path
        required: true
      content:
        description: The whole text of the file. Without O(files[].content) and O(files[].secret_content) the file is
          removed.
        type: str
      secret_content:
        description: The whole text of a file that holds a secret. It is in no output, and the difference does not
          show it.
        type: str
      mode:
        description: Mode in octal.
        type: str
        default: "0644"
      owner:
        description: Name of the owner.
        type: str
        default: root
      group:
        description: Name of the group.
        type: str
        default: root
  unit:
    description:
      - Unit that reads these files. When its running process is older than one of the files, the task is changed, so
        that the handler
        restarts it. A run that was killed between writing and restarting is repaired by the next one.
    type: str
attributes:
  check_mode:
    description: Reports what would be written and writes nothing.
    support: full
  diff_mode:
    description: Shows the texts, but for secret files only that they differ.
    support: full
"""

EXAMPLES = r"""
- name: Write the unit and its token
  ai_infra.gpu_rack.node_files:
    files:
      - path: /etc/systemd/system/example.service
        content: "{{ lookup('ansible.builtin.template', 'example.service.j2') }}"
      - path: /etc/gpu_rack/example_token
        secret_content: "{{ example_token }}\n"
        mode: "0600"
  notify: Restart example
"""

RETURN = r"""
files:
  description: Paths that were, or would be, written or removed.
  returned: always
  type: list
  elements: str
stale:
  description: Whether the process of O(unit) is older than one of its files.
  returned: always
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _files, _systemd

ARGUMENT_SPEC = {
    "files": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "options": {
            "path": {"type": "path", "required": True},
            "content": {"type": "str"},
            "secret_content": {"type": "str", "no_log": True},
            "mode": {"type": "str", "default": "0644"},
            "owner": {"type": "str", "default": "root"},
            "group": {"type": "str", "default": "root"},
        },
    },
    "unit": {"type": "str"},
}


def main() -> None:
    """Compare the set with the node and write what differs."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        wanted = _files.from_params(module.params["files"])
        changed, differences = _files.apply(wanted, module.check_mode)
        unit = module.params["unit"]
        stale = bool(unit) and _systemd.stale(_systemd.unit(unit), [f.path for f in wanted])
    except (ValueError, OSError, KeyError, _systemd.UnitError) as exc:
        module.fail_json(msg=f"files: {exc}")
    module.exit_json(changed=bool(changed) or stale, files=changed, stale=stale, diff=differences)


if __name__ == "__main__":
    main()

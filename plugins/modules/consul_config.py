# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module consul_config: the configuration of a Consul server or agent, validated by Consul itself."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_config
short_description: Write the configuration of a Consul agent, validated by Consul
version_added: 0.1.0
description:
  - Writes C(consul.json) and, apart from it, C(secrets.json) with the gossip key and the ACL tokens, both V(0640) and
    readable by Consul's group.
  - Names of options that changed between Consul versions follow the binary on the host. C(acl.tokens.master) became
    C(initial_management) in
    Consul 1.11.
  - New content is checked with C(consul validate) before it replaces the old.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  config:
    description: The configuration without secrets, in the names of the newest Consul.
    type: dict
    required: true
  gossip_key:
    description: Key of the gossip encryption, 32 bytes in base64 (C(consul keygen)).
    type: str
  tokens:
    description: ACL tokens by purpose, such as V(agent) and V(initial_management).
    type: dict
    default: {}
  directory:
    description: Configuration directory. Made with mode 0750 and Consul's group.
    type: path
    default: /etc/consul.d
  binary:
    description: Consul's executable.
    type: path
    default: /usr/local/bin/consul
  group:
    description: Group that may read the files.
    type: str
    default: consul
  unit:
    description: Unit that runs Consul. When its process is older than its files the task is changed, so that the
      handler restarts it.
    type: str
    default: consul.service
  watch:
    description: More files whose change needs a restart, such as the unit file.
    type: list
    elements: path
    default: []
attributes:
  check_mode:
    description: Reports what would be written. C(consul validate) is not run, since the binary may not be there yet.
    support: full
  diff_mode:
    description: Shows the configuration. Of secrets it shows only that they differ.
    support: full
"""

EXAMPLES = r"""
- name: Configure the agent
  ai_infra.gpu_rack.consul_config:
    config:
      data_dir: /var/lib/consul
      bind_addr: 10.0.0.11
      retry_join: [10.0.0.10]
      acl: {enabled: true, default_policy: deny}
    gossip_key: "{{ vault_consul_gossip_key }}"
    tokens:
      agent: "{{ vault_consul_agent_token }}"
  notify: Restart Consul agent
"""

RETURN = r"""
version:
  description: Version of the binary, null in check mode when it is not installed yet.
  returned: always
  type: str
  sample: 1.8.7
files:
  description: Paths that were, or would be, written.
  returned: always
  type: list
  elements: str
stale:
  description: Whether the running process has not read the files as they are.
  returned: always
  type: bool
"""

import grp
import os
import stat
import tempfile
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _consul_config, _files, _systemd
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import run

ARGUMENT_SPEC: dict[str, Any] = {
    "config": {"type": "dict", "required": True},
    "gossip_key": {"type": "str", "no_log": True},
    "tokens": {"type": "dict", "default": {}, "no_log": True},
    "directory": {"type": "path", "default": "/etc/consul.d"},
    "binary": {"type": "path", "default": "/usr/local/bin/consul"},
    "group": {"type": "str", "default": "consul"},
    "unit": {"type": "str", "default": "consul.service"},
    "watch": {"type": "list", "elements": "path", "default": []},
}
_DIRECTORY_MODE = 0o750
_FILE_MODE = 0o640


def read_version(module: AnsibleModule) -> _consul_config.Version | None:
    """Return the binary's version. Only check mode goes on without a binary: it may be what the run would install."""
    binary = module.params["binary"]
    evidence = run([binary, "version"], 20.0)
    version = _consul_config.parse_version(evidence.stdout)
    if version is None:
        if module.check_mode and not os.path.exists(binary):
            return None
        seen = evidence.error or evidence.stderr.strip() or evidence.stdout.strip() or f"exit status {evidence.rc}"
        module.fail_json(
            msg=f"consul version of {binary}: {seen}. "
            "Install Consul there or set the role's binary option to where it is."
        )
    elif version < _consul_config.OLDEST:
        shown = ".".join(map(str, version))
        oldest = ".".join(map(str, _consul_config.OLDEST))
        module.fail_json(
            msg=f"Consul {binary}: version {shown} is older than {oldest}, the oldest supported. Install a newer one."
        )
    return version


def validate(module: AnsibleModule, files: list[_files.WantedFile]) -> None:
    """Let Consul judge the new files before they replace the old ones."""
    with tempfile.TemporaryDirectory(prefix="gpu_rack_consul_") as directory:
        paths = []
        for number, file in enumerate(files):
            path = os.path.join(directory, f"{number}.json")
            _files.write_file(_files.WantedFile(path, file.content, 0o600))
            paths.append(path)
        evidence = run([module.params["binary"], "validate", *paths], 30.0)
    if evidence.rc != 0:
        said = (evidence.error or evidence.stderr or evidence.stdout).strip().replace(directory, "")
        module.fail_json(msg=f"consul validate: {said}. Correct the configuration, the old one is still in place.")


def directory_change(path: str, group: str) -> dict[str, str] | None:
    """Return the difference of the configuration directory, None when it is as it shall be."""
    wanted = f"root:{group} {_DIRECTORY_MODE:04o}\n"
    try:
        info = os.stat(path)
    except FileNotFoundError:
        return {"before_header": path, "after_header": path, "before": "", "after": wanted}
    owner = "root" if info.st_uid == 0 else str(info.st_uid)
    try:
        found_group = grp.getgrgid(info.st_gid).gr_name
    except KeyError:
        found_group = str(info.st_gid)
    found = f"{owner}:{found_group} {stat.S_IMODE(info.st_mode):04o}\n"
    return None if found == wanted else {"before_header": path, "after_header": path, "before": found, "after": wanted}


def make_directory(path: str, group: str) -> None:
    """Make the configuration directory, or set its owner and mode."""
    os.makedirs(path, exist_ok=True)
    os.chown(path, 0, grp.getgrnam(group).gr_gid)
    os.chmod(path, _DIRECTORY_MODE)


def main() -> None:
    """Compare the two files with what is wanted, have them validated, write them."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    p = module.params
    version = read_version(module)
    main_path, secrets_path = (os.path.join(p["directory"], name) for name in ("consul.json", "secrets.json"))
    tokens = {name: str(value) for name, value in p["tokens"].items() if value}
    wanted = [
        _files.WantedFile(main_path, _consul_config.render(p["config"]), _FILE_MODE, "root", p["group"]),
        _files.WantedFile(
            secrets_path,
            _consul_config.secrets(p["gossip_key"], tokens, version),
            _FILE_MODE,
            "root",
            p["group"],
            secret=True,
        ),
    ]
    try:
        new_directory = directory_change(p["directory"], p["group"])
        if not module.check_mode:
            if any(_files.differs(_files.read_file(f.path), f) for f in wanted):
                validate(module, [f for f in wanted if f.content is not None])
            if new_directory:
                make_directory(p["directory"], p["group"])
        changed, differences = _files.apply(wanted, module.check_mode)
        stale = _systemd.stale(_systemd.unit(p["unit"]), [main_path, secrets_path, *p["watch"]])
    except (OSError, KeyError, _systemd.UnitError) as exc:
        module.fail_json(msg=f"Consul configuration in {p['directory']}: {exc}")
    if new_directory:
        differences.insert(0, new_directory)
    module.exit_json(
        changed=bool(differences) or stale,
        version=".".join(map(str, version)) if version else None,
        files=changed,
        stale=stale,
        diff=differences,
    )


if __name__ == "__main__":
    main()

#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: subnet_manager_state
short_description: Prove that this host's subnet manager runs, is master and took its configuration
version_added: 0.1.0
description:
  - Reads the service, C(sminfo) and what OpenSM said since it was started.
  - A host whose OpenSM is standby passes, as long as some subnet manager is master.
  - Adaptive routing and congestion control are proven only with NVIDIA's OpenSM, from the configuration it took.
    Community OpenSM has neither, which is a V(warn), not proven here.
options:
  flavour:
    description: Whose OpenSM it is.
    type: str
    choices: [opensm, nvidia]
    default: opensm
  unit:
    description: The systemd unit.
    type: str
    default: opensm.service
  config_path:
    description: OpenSM's configuration file.
    type: path
    default: /etc/opensm/opensm.conf
  wait:
    description: Seconds to wait until a subnet manager is master. A new one needs a sweep of the fabric first.
    type: float
    default: 60.0
  captured:
    description:
      - Judge stored output in place of running the tools. A directory with the files C(systemctl), C(sminfo),
        C(ibstat) (C(ibstat -p)), C(journal) and C(opensm.conf).
    type: path
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Prove the subnet manager
  ai_infra.gpu_rack.subnet_manager_state:
    flavour: opensm
"""

RETURN = r"""
gate:
  description: Name of the gate, V(subnet_manager).
  returned: always
  type: str
verdict:
  description: Worst verdict of the checks.
  returned: always
  type: str
summary:
  description: One line for people.
  returned: always
  type: str
checks:
  description: One judged fact each.
  returned: always
  type: list
  elements: dict
evidence:
  description: What was read.
  returned: always
  type: list
  elements: dict
"""

import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._opensm import (
    parse_settings,
    parse_sminfo,
    same_guid,
    speaks,
    unrecognized,
    version,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, Verdict, unknown

ARGUMENTS: dict[str, dict[str, Any]] = {
    **_cli.GATE_ARGS,
    "flavour": {"type": "str", "choices": ["opensm", "nvidia"], "default": "opensm"},
    "unit": {"type": "str", "default": "opensm.service"},
    "config_path": {"type": "path", "default": "/etc/opensm/opensm.conf"},
    "wait": {"type": "float", "default": 60.0},
}


def read_live(module: AnsibleModule) -> dict[str, Evidence]:
    """Run the tools; wait for a master while the service is there."""
    timeout, unit = module.params["timeout"], module.params["unit"]
    deadline = time.monotonic() + module.params["wait"]
    show = ["systemctl", "show", unit, "--property=ActiveState,SubState,InvocationID"]
    while True:
        state, info = _cli.run(show, timeout), _cli.run(["sminfo"], timeout)
        answer = parse_sminfo(info.stdout)
        if answer is not None and answer.state == "SMINFO_MASTER":
            break
        if time.monotonic() >= deadline or "ActiveState=active" not in state.stdout:
            break
        time.sleep(1.0)
    invocation = parse_properties(state.stdout).get("InvocationID", "")
    journal = ["journalctl", "--quiet", "--no-pager", "--output=cat", f"_SYSTEMD_INVOCATION_ID={invocation}"]
    return {
        "systemctl": state,
        "sminfo": info,
        "ibstat": _cli.run(["ibstat", "-p"], timeout),
        "journal": _cli.run(journal, timeout)
        if invocation
        else Evidence("journalctl", None, "", "", None, "no invocation"),
        "opensm.conf": _cli.read_captured(module.params["config_path"]),
    }


def parse_properties(text: str) -> dict[str, str]:
    """Return systemctl show's properties."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def judge(read: dict[str, Evidence], unit: str, flavour: str) -> list[Check]:
    """Return the checks of the service, the master, the configuration, and what that proves."""
    return [_service(read, unit), _master(read), *_configuration(read, flavour)]


def _service(read: dict[str, Evidence], unit: str) -> Check:
    name = "subnet_manager.service"
    state = parse_properties(read["systemctl"].stdout).get("ActiveState")
    if state is None:
        return unknown(
            name, unit, read["systemctl"].error or "systemctl printed no state", "Look at `systemctl status`."
        )
    remedy = "" if state == "active" else f"Look at `journalctl -u {unit}`."
    verdict: Verdict = "pass" if state == "active" else "fail"
    return Check(name, unit, verdict, f"the unit is {state}", state, "active", "", "specification", remedy)


def _master(read: dict[str, Evidence]) -> Check:
    name, limit, source = "subnet_manager.master", "SMINFO_MASTER", "InfiniBand needs one"
    remedy = "Look at OpenSM's log; check that this host's port is cabled (ibstat)."
    info = parse_sminfo(read["sminfo"].stdout)
    if info is None:
        said = (read["sminfo"].stderr.strip() or read["sminfo"].stdout.strip()).splitlines()[-1:]
        return unknown(
            name, "fabric", read["sminfo"].error or f"sminfo: {' '.join(said) or 'no answer'}", remedy, limit, source
        )
    guids = [line.strip() for line in read["ibstat"].stdout.splitlines() if line.strip().startswith("0x")]
    here = any(same_guid(info.guid, guid) for guid in guids)
    who = "this host is master" if here else f"this host is standby, port {info.guid} is master"
    if info.state != "SMINFO_MASTER":
        return Check(
            name,
            "fabric",
            "fail",
            f"the subnet manager at {info.guid} is not master",
            info.state,
            limit,
            "",
            source,
            remedy,
        )
    if not guids:
        return unknown(
            name, "fabric", f"ibstat -p lists no port of this host, {info.guid} is master", remedy, limit, source
        )
    return Check(name, "fabric", "pass", f"{who}, priority {info.priority}", info.state, limit, "", source)


def _silent(journal: Evidence, flavour: str) -> str | None:
    """Return why the journal does not show what OpenSM said of its configuration, None when it does."""
    if journal.error is not None:
        return journal.error
    if journal.rc != 0:
        said = (journal.stderr.strip() or journal.stdout.strip()).splitlines()[-1:]
        return f"journalctl ended with status {journal.rc}: {' '.join(said) or 'no message'}"
    if not speaks(journal.stdout):
        return "the journal has no line of OpenSM since it was started"
    # Which settings are understood is a property of NVIDIA's release; community OpenSM is only held to its words.
    if flavour == "nvidia" and version(journal.stdout) is None:
        return "the journal does not hold OpenSM's version, which it prints at its start"
    return None


def _configuration(read: dict[str, Evidence], flavour: str) -> list[Check]:
    journal, config = read["journal"], read["opensm.conf"]
    name, source = "subnet_manager.config", "OpenSM's own words"
    label = f"OpenSM {version(journal.stdout) or 'of unknown version'}"
    names = unrecognized(journal.stdout + "\n" + journal.stderr)
    why = _silent(journal, flavour)
    if why is not None and not names:
        return [unknown(name, "opensm.conf", why, "Restart the unit and look at its journal.")]
    if names:
        reason = f"{label} went on without settings it does not know"
        remedy = "Remove them, or install the OpenSM that knows them."
        checks = [Check(name, "opensm.conf", "fail", reason, ", ".join(names), "none", "", source, remedy)]
    else:
        checks = [
            Check(
                name, "opensm.conf", "pass", f"{label} knows every setting", "no unrecognized token", "none", "", source
            )
        ]
    settings = parse_settings(config.stdout) if config.error is None else {}
    wanted = {
        "subnet_manager.adaptive_routing": (
            "routing_engine",
            "an ar_ engine",
            settings.get("routing_engine", "").startswith("ar_"),
        ),
        "subnet_manager.congestion_control": (
            "mlnx_congestion_control",
            "2",
            settings.get("mlnx_congestion_control") == "2",
        ),
    }
    for check, (key, limit, good) in wanted.items():
        if flavour == "opensm":
            reason = "not proven here: community OpenSM cannot do it; on this fabric only the switches could show it"
            checks.append(
                Check(
                    check, "fabric", "warn", reason, label, limit, "", "design: AR and CC belong to the subnet manager"
                )
            )
            continue
        value = settings.get(key)
        taken = good and key not in names
        reason = f"{key} as OpenSM took it" if taken else f"{key} is not what turns it on"
        remedy = "" if taken else f"Set {key} to {limit} in OpenSM's configuration."
        verdict: Verdict = "pass" if taken else "fail"
        checks.append(
            Check(
                check, "fabric", verdict, reason, value or ("not set" if not taken else None), limit, "", source, remedy
            )
        )
    return checks


def main() -> None:
    """Read and judge."""
    module = AnsibleModule(ARGUMENTS, supports_check_mode=True)
    params = module.params
    if params["captured"]:
        names = ("systemctl", "sminfo", "ibstat", "journal", "opensm.conf")
        read = {name: _cli.read_captured(str(Path(params["captured"]) / name)) for name in names}
    else:
        read = read_live(module)
    _cli.finish_gate(module, "subnet_manager", judge(read, params["unit"], params["flavour"]), list(read.values()))


if __name__ == "__main__":
    main()

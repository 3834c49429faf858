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
      - A single file is the answer of C(sminfo), and only the master is judged.
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

import shlex
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._opensm import (
    parse_settings,
    parse_sminfo,
    same_guid,
    speaks,
    unrecognized,
    version,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, Verdict, unknown

CHECKS: dict[str, str] = {
    "subnet_manager.service": "State of OpenSM's systemd unit, which must be active.",
    "subnet_manager.master": (
        "State of the subnet manager this host's port answers to by sminfo, in number and words, which must be master "
        "as InfiniBand needs one."
    ),
    "subnet_manager.config": (
        "Settings OpenSM said since its start that it does not know; there must be none, and the journal must show "
        "that it spoke."
    ),
    "subnet_manager.adaptive_routing": (
        "The routing engine in the configuration OpenSM took, which must be an ar_ engine; community OpenSM cannot "
        "prove it and warns."
    ),
    "subnet_manager.congestion_control": (
        "The setting mlnx_congestion_control in the configuration OpenSM took, which must be 2; community OpenSM "
        "cannot prove it and warns."
    ),
}
ARGUMENTS: dict[str, dict[str, Any]] = {
    **GATE_ARGS,
    "flavour": {"type": "str", "choices": ["opensm", "nvidia"], "default": "opensm"},
    "unit": {"type": "str", "default": "opensm.service"},
    "config_path": {"type": "path", "default": "/etc/opensm/opensm.conf"},
    "wait": {"type": "float", "default": 60.0},
}


def read(source: Source, params: Mapping[str, Any]) -> dict[str, Evidence]:
    """Read the tools; a live run waits for a master while the service is there."""
    unit, nvidia = params["unit"], params["flavour"] == "nvidia"
    deadline = time.monotonic() + params["wait"]
    show = ["systemctl", "show", unit, "--property=ActiveState,SubState,InvocationID"]
    while True:
        source.used.clear()
        info = source.read(["sminfo"], "sminfo")
        state = source.read(show, "systemctl", primary=False, needed=True)
        answer = parse_sminfo(info.stdout)
        if not source.live or (answer is not None and answer.state == "SMINFO_MASTER"):
            break
        if time.monotonic() >= deadline or "ActiveState=active" not in state.stdout:
            break
        time.sleep(1.0)
    invocation = parse_properties(state.stdout).get("InvocationID", "")
    journal = ["journalctl", "--quiet", "--no-pager", "--output=cat", f"_SYSTEMD_INVOCATION_ID={invocation}"]
    found = {
        "systemctl": state,
        "sminfo": info,
        "ibstat": source.read(["ibstat", "-p"], "ibstat", primary=False, needed=True),
        "opensm.conf": source.read(["cat", params["config_path"]], "opensm.conf", primary=False, needed=nvidia),
    }
    if source.live and not invocation:
        # An empty id would match every line of the journal.
        found["journal"] = Evidence(
            "journalctl", None, "", "", None, "no invocation", shlex.join(journal), "journal", needed=True
        )
        source.used.append(found["journal"])
    else:
        found["journal"] = source.read(journal, "journal", primary=False, needed=True)
    return found


def parse_properties(text: str) -> dict[str, str]:
    """Return systemctl show's properties."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def judge(read: dict[str, Evidence], unit: str, flavour: str) -> list[Check]:
    """Return the checks of the service, the master, the configuration, and what that proves."""
    guids = [line.strip() for line in read["ibstat"].stdout.splitlines() if line.strip().startswith("0x")]
    return [_service(read, unit), master(read, guids), *_configuration(read, flavour)]


def _service(read: dict[str, Evidence], unit: str) -> Check:
    name = "subnet_manager.service"
    state = parse_properties(read["systemctl"].stdout).get("ActiveState")
    problem = refusal(read["systemctl"])
    if state is None or problem is not None:
        return unknown(name, unit, problem or "systemctl printed no state", "Look at `systemctl status`.")
    remedy = "" if state == "active" else f"Look at `journalctl -u {unit}`."
    verdict: Verdict = "pass" if state == "active" else "fail"
    return Check(name, unit, verdict, f"the unit is {state}", state, "active", "", "specification", remedy)


def master(read: dict[str, Evidence], guids: Sequence[str] | None) -> Check:
    """Judge the answer of the fabric's subnet manager. `guids` are this host's ports, None when they are not asked."""
    name, limit, source = "subnet_manager.master", "SMINFO_MASTER", "InfiniBand needs one"
    remedy = "Look at OpenSM's log; check that this host's port is cabled (ibstat)."
    info = parse_sminfo(read["sminfo"].stdout)
    problem = refusal(read["sminfo"])
    if problem is None and info is None:
        said = read["sminfo"].stdout.strip().splitlines()[-1:]
        problem = f"sminfo: {' '.join(said) or 'no answer'}"
    if problem is not None or info is None:
        return unknown(name, "fabric", problem or "no answer", remedy, limit, source)
    if info.contradiction:
        return unknown(name, "fabric", info.contradiction, remedy, limit, source)
    if info.state != "SMINFO_MASTER":
        reason = f"the subnet manager at {info.guid} is not master"
        return Check(name, "fabric", "fail", reason, info.state, limit, "", source, remedy)
    if guids is None:
        return Check(name, "fabric", "pass", f"port {info.guid} is master", info.state, limit, "", source)
    if not guids:
        why = f"ibstat -p lists no port of this host, {info.guid} is master"
        return unknown(name, "fabric", why, remedy, limit, source)
    here = any(same_guid(info.guid, guid) for guid in guids)
    who = "this host is master" if here else f"this host is standby, port {info.guid} is master"
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
    unread = refusal(config)
    if unread is None and flavour == "nvidia" and not parse_settings(config.stdout):
        unread = f"{config.command} holds no setting"
    settings = parse_settings(config.stdout)
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
        if unread is not None:
            # What was not read is not proven to be missing.
            checks.append(unknown(check, "fabric", unread, "Give the path of OpenSM's configuration.", limit))
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
    check_numbers(module, not_negative=["wait"])
    params = module.params
    source = Source(params["captured"], params["timeout"])
    found = read(source, params)
    # The answer of sminfo alone shows whether the fabric has a master, and nothing of this host's service.
    checks = [master(found, None)] if source.single_file else judge(found, params["unit"], params["flavour"])
    finish_gate(module, "subnet_manager", checks, source.used)


if __name__ == "__main__":
    main()

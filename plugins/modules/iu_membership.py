# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module iu_membership: whether a node's inference units take traffic."""

from __future__ import annotations

DOCUMENTATION = r"""
module: iu_membership
short_description: Join, drain, quarantine or remove the inference units of a node in Consul
version_added: 0.1.0
description:
  - Each inference unit (IU) is a Consul service with one check that is born critical. The unit
    C(gpu-rack-probe@<iu>.service) turns it passing
    when the engine has generated a token, and only then.
  - O(state=joined) refuses a node without fresh passing decisions of both gates, and a node that a person holds. It
    then registers the units,
    starts their probes and waits until the catalog shows every check of the service and of the node (C(serfHealth))
      as passing.
  - O(state=quarantined) records the reason on the node and turns its units critical at once. It works when Consul
    does not run.
  - A hold (C(/var/lib/gpu_rack/hold.json)) is written and lifted by people only.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
extends_documentation_fragment: ai_infra.gpu_rack.consul
options:
  state:
    description:
      - V(joined), units are registered and take traffic. Clears a quarantine that is older than the gates' decisions.
      - V(drained), units stay registered and healthy in maintenance mode, so that no new request comes.
      - V(quarantined), the node is out with a reason until its gates pass again.
      - V(absent), units are not registered and not probed.
    type: str
    choices: [joined, drained, quarantined, absent]
    required: true
  units:
    description: Ids of the units. All units of the node without it, and then O(state=joined) also removes units that
      are no longer in the plan.
    type: list
    elements: str
  plan:
    description: File with the node's inference units, as the module P(ai_infra.gpu_rack.inference_units#module)
      derives them.
    type: path
    default: /etc/gpu_rack/inference_units.json
  model:
    description: Name of the model that the engines serve. Required with O(state=joined).
    type: str
  service:
    description: Name of the Consul service.
    type: str
    default: vllm
  service_address:
    description: Address under which the units are reached. The agent's own address without it.
    type: str
    default: ""
  ttl:
    description: Seconds without a word from the probe after which a unit is critical. At most 15.
    type: float
    default: 13.0
  probe_interval:
    description: Seconds from the start of one probe to the start of the next.
    type: float
    default: 5.0
  probe_timeout:
    description: Seconds an engine has for a token. Together with O(probe_interval) below O(ttl), or a slow token
      would look like a dead probe.
    type: float
    default: 6.0
  token_file:
    description: File with the Consul token that the probes use.
    type: path
    default: /etc/gpu_rack/consul_service_token
  config_dir:
    description: Configuration directory of the Consul agent.
    type: path
    default: /etc/consul.d
  group:
    description: Group of the Consul agent.
    type: str
    default: consul
  consul_unit:
    description: Unit of the Consul agent.
    type: str
    default: consul.service
  max_evidence_age:
    description: Age in seconds above which a gate's decision no longer lets a node join.
    type: float
    default: 3600.0
  wait:
    description: Seconds to wait until Consul's catalog shows the wanted state.
    type: float
    default: 60.0
  stage:
    description: Stage that failed. Required with O(state=quarantined).
    type: str
  reason:
    description: Why, in words. Required with O(state=quarantined) and O(state=drained).
    type: str
  task:
    description: Name of the task that failed.
    type: str
    default: ""
  check:
    description: The check that failed, as a gate returned it.
    type: dict
attributes:
  check_mode:
    description: Reports the change. Where evidence is still missing, O(state=joined) warns that it would refuse in
      place of failing.
    support: full
  diff_mode:
    description: Shows services without their token, probes, maintenance and quarantine.
    support: full
"""

EXAMPLES = r"""
- name: Take traffic
  ai_infra.gpu_rack.iu_membership:
    state: joined
    model: llama-3.1-70b
    token: "{{ consul_agent_service_token }}"

- name: Take a unit out for work
  ai_infra.gpu_rack.iu_membership:
    state: drained
    units: [node1-iu0]
    reason: replace the optics of mlx5_3
    token: "{{ consul_agent_service_token }}"
"""

RETURN = r"""
units:
  description: State of each unit after the task.
  returned: always
  type: list
  elements: dict
  sample: [{id: node1-iu0, state: passing, output: "passing", port: 8000}]
quarantine:
  description: The quarantine after the task, null when there is none.
  returned: always
  type: dict
  sample: {time: 1767225600.0, stage: hardware, task: Judge the links, reason: "nvlink_topology.links gpu 0: fail",
    check: null}
agent:
  description: V(ok), or why the node's Consul agent does not answer.
  returned: always
  type: str
record:
  description: What is worth keeping in Consul's key-value store about a node that joined, with the measured values of
    its gates.
  returned: O(state=joined)
  type: dict
  sample: {verdict: pass, units: [node1-iu0], gates: {hardware: {verdict: pass, measured: {ib_port.rate: 400 Gb/s}}},
    time: 1767225600.0}
refusals:
  description: Reasons why O(state=joined) was, or in check mode would be, refused.
  returned: O(state=joined)
  type: list
  elements: str
checks:
  description: What keeps the node out, in the form of a gate's checks.
  returned: when O(state=joined) fails
  type: list
  elements: dict
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _consul, _files, _membership, _systemd
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check

CHECKS: dict[str, str] = {
    "iu_membership.evidence": (
        "Whether each stage was decided on this machine, in this boot, with a pass, not longer ago than the option "
        "max_evidence_age and after any quarantine, and whether the node is on hold."
    ),
    "iu_membership.passing": "State of each unit's check in Consul, which must be passing when the join is over.",
}
PROBE_CONFIG = "/etc/gpu_rack/iu_probe.json"
PROBE_UNIT_FILE = "/etc/systemd/system/gpu-rack-probe@.service"
PROBE_PROGRAMS = tuple(
    f"/usr/local/lib/gpu_rack/{name}" for name in ("iu_probe", "_consul.py", "_membership.py", "_token_probe.py")
)
MAX_TTL = 15.0
_FILE_PREFIX = "iu-"
_MAINTENANCE = "_service_maintenance:"

ARGUMENT_SPEC: dict[str, Any] = {
    "address": {"type": "str", "default": "http://127.0.0.1:8500"},
    "token": {"type": "str", "no_log": True},
    "ca_path": {"type": "path"},
    "state": {"type": "str", "choices": ["joined", "drained", "quarantined", "absent"], "required": True},
    "units": {"type": "list", "elements": "str"},
    "plan": {"type": "path", "default": "/etc/gpu_rack/inference_units.json"},
    "model": {"type": "str"},
    "service": {"type": "str", "default": _membership.SERVICE},
    "service_address": {"type": "str", "default": ""},
    "ttl": {"type": "float", "default": 13.0},
    "probe_interval": {"type": "float", "default": 5.0},
    "probe_timeout": {"type": "float", "default": 6.0},
    "token_file": {"type": "path", "default": "/etc/gpu_rack/consul_service_token", "no_log": False},
    "config_dir": {"type": "path", "default": "/etc/consul.d"},
    "group": {"type": "str", "default": "consul"},
    "consul_unit": {"type": "str", "default": "consul.service"},
    "max_evidence_age": {"type": "float", "default": 3600.0},
    "wait": {"type": "float", "default": 60.0},
    "stage": {"type": "str"},
    "reason": {"type": "str"},
    "task": {"type": "str", "default": ""},
    "check": {"type": "dict"},
}


def probe_unit(unit: str) -> str:
    """Return the name of the unit that probes an inference unit."""
    return f"gpu-rack-probe@{unit}.service"


def service_file(config_dir: str, unit: str) -> str:
    """Return the path of a unit's service definition. A file, so that it survives a restart of the agent."""
    return f"{config_dir}/{_FILE_PREFIX}{unit}.json"


class Node:
    """The node's membership as it is: plan, files, agent and probes."""

    def __init__(self, module: AnsibleModule) -> None:
        """Open the connection to the agent; fail the module for a wrong address."""
        self.module = module
        self.p = module.params
        self.state_dir = _membership.STATE_DIR
        try:
            self.consul = _consul.Consul(self.p["address"], self.p["token"] or "", ca_file=self.p["ca_path"])
        except (ValueError, OSError) as exc:
            module.fail_json(msg=str(exc))
        self.services: dict[str, Any] = {}
        self.checks: dict[str, Any] = {}
        self.agent_error: _consul.ConsulError | None = None

    def read_agent(self) -> Node:
        """Read what the agent has loaded and return the node.

        An agent that does not answer is remembered, not fatal.
        """
        try:
            self.services = self.consul.get("agent/services") or {}
            self.checks = self.consul.get("agent/checks") or {}
            self.agent_error = None
        except _consul.ConsulError as exc:
            self.services, self.checks, self.agent_error = {}, {}, exc
        return self

    def definition(self, unit: str) -> dict[str, Any] | None:
        """Return the unit's service definition on disk without its token, None when there is none."""
        try:
            content = _membership.read_json(Path(service_file(self.p["config_dir"], unit)))
        except ValueError:
            return {}
        service = content.get("service") if isinstance(content, dict) else None
        return None if content is None else {k: v for k, v in (service or {}).items() if k != "token"}

    def on_disk(self) -> list[str]:
        """Return the ids of the units that have a service definition."""
        names = [path.name for path in Path(self.p["config_dir"]).glob(f"{_FILE_PREFIX}*.json")]
        return sorted(name.removeprefix(_FILE_PREFIX).removesuffix(".json") for name in names)

    def maintenance(self, unit: str) -> str | None:
        """Return the reason of a unit's maintenance, None when it is in none."""
        check = self.checks.get(f"{_MAINTENANCE}{unit}")
        return None if check is None else str(check.get("Notes", ""))

    def view(self, units: list[str]) -> dict[str, Any]:
        """Return what is compared and shown as the difference."""
        entry = _membership.read_entry(self.state_dir / "quarantine.json")
        probes = {name: _systemd.unit(probe_unit(name)) for name in units}
        return {
            "quarantine": entry,
            "units": {
                name: {
                    "service": self.definition(name),
                    "probe": probes[name].enabled and probes[name].active,
                    "maintenance": self.maintenance(name),
                }
                for name in units
            },
        }

    def catalog(self) -> list[dict[str, Any]]:
        """Return the catalog's entries of the service."""
        return self.consul.get(f"health/service/{self.p['service']}") or []

    def states(self, units: list[str]) -> list[dict[str, Any]]:
        """Return each unit's state in the catalog."""
        try:
            entries = self.catalog()
        except _consul.ConsulError as exc:
            return [{"id": name, "state": "unknown", "output": str(exc), "port": None} for name in units]
        found = []
        for name in units:
            good, output = _membership.passing(entries, name)
            entry = next((e["Service"] for e in entries if e.get("Service", {}).get("ID") == name), None)
            status = "absent" if entry is None else "passing" if good else "critical"
            found.append({"id": name, "state": status, "output": output, "port": entry["Port"] if entry else None})
        return found

    def reload(self) -> None:
        """Let the agent read its files again.

        By SIGHUP and not by the API, which would need a token with agent:write on every node.
        """
        _systemd.systemctl("reload", self.p["consul_unit"])


def check_timing(module: AnsibleModule) -> None:
    """Refuse timings that cannot work."""
    p = module.params
    if not 0 < p["ttl"] <= MAX_TTL:
        module.fail_json(
            msg=f"ttl: {p['ttl']:g} s. Use more than 0 and at most {MAX_TTL:g}, a dead engine must be out by then."
        )
    if min(p["probe_interval"], p["probe_timeout"]) <= 0 or p["probe_interval"] + p["probe_timeout"] >= p["ttl"]:
        module.fail_json(
            msg=f"probe_interval {p['probe_interval']:g} s + probe_timeout {p['probe_timeout']:g} s: "
            f"not below the ttl of {p['ttl']:g} s. Shorten one of them, or a slow token looks like a dead probe."
        )


def join_refusals(node: Node, now: float) -> list[_membership.Refusal]:
    """Return why the node may not join.

    A quarantine does not refuse by itself, but the gates must have passed after it.
    """
    found = _membership.refusals(node.state_dir, _membership.identity(), now, node.p["max_evidence_age"])
    named = {r.what for r in found}
    old = [r for r in _membership.gates_before_quarantine(node.state_dir) if r.what not in named]
    return [r for r in found if r.what != "quarantine"] + old


def refusal_checks(refusals: list[_membership.Refusal]) -> list[dict[str, Any]]:
    """Return the refusals as checks, so that they are shown and recorded like a gate's."""
    return [
        Check(
            "iu_membership.evidence",
            r.what,
            "fail",
            r.reason,
            r.reason,
            "no hold" if r.what == "hold" else "fresh passing evidence",
            limit_source="join",
            remedy="Ask who holds it." if r.what == "hold" else "Run the gates again.",
        ).as_dict()
        for r in refusals
    ]


def passing_check(state: dict[str, Any], wait: float) -> dict[str, Any]:
    """Return a unit that does not pass as a check."""
    return Check(
        "iu_membership.passing",
        state["id"],
        "fail",
        f"in Consul after {wait:g} s: {state['output']}",
        state["state"],
        "passing",
        limit_source="Consul",
        remedy=f"Read journalctl -u {probe_unit(state['id'])}.",
    ).as_dict()


def read_plan(node: Node) -> tuple[str, list[dict[str, Any]], list[str]]:
    """Return the board, the wanted units of the plan, and what is wrong with it."""
    p = node.p
    try:
        plan = _membership.read_json(Path(p["plan"]))
    except ValueError as exc:
        return "", [], [str(exc)]
    if plan is None:
        return (
            "",
            [],
            [f"plan {p['plan']}: does not exist, so the node's units are not known. Run the hardware gate first."],
        )
    units: list[dict[str, Any]] = (plan.get("units") if isinstance(plan, dict) else None) or []
    problems = [f"plan {p['plan']}: {line}" for line in _membership.unit_problems(units)]
    if problems:
        return "", [], problems
    known = {unit["id"]: unit for unit in units}
    missing = sorted(set(p["units"] or []) - set(known))
    if missing:
        return "", [], [f"units: {', '.join(missing)} not in {p['plan']}. It has {', '.join(sorted(known))}."]
    return str(plan.get("board", "")), [known[name] for name in (p["units"] or known)], []


def joined(node: Node) -> None:
    """Register the units, start their probes and wait until they pass."""
    module, p = node.module, node.p
    check_timing(module)
    board, units, problems = read_plan(node)
    refused = join_refusals(node, time.time()) + [_membership.Refusal("plan", line) for line in problems]
    refusals = [r.reason for r in refused]
    if refused:
        text = "; ".join(refusals)
        if not module.check_mode or any(r.what == "hold" for r in refused):
            module.fail_json(
                msg=f"join refused: {text}. Lift the hold or run the gates again.",
                refusals=refusals,
                checks=refusal_checks(refused),
            )
        # Check mode runs before the gates have left anything on a bare node.
        module.warn(f"join would be refused now: {text}")
    names = [unit["id"] for unit in units]
    gone = sorted(set(node.on_disk()) - set(names)) if p["units"] is None and units else []
    node.read_agent()
    if node.agent_error and not module.check_mode:
        module.fail_json(msg=f"Consul agent: {node.agent_error}. Start it (role consul_agent) and check its token.")
    before = node.view(sorted(names + gone))
    wanted = {
        unit["id"]: _membership.service_definition(
            unit, board=board, model=p["model"], address=p["service_address"], ttl=p["ttl"], service=p["service"]
        )
        for unit in units
    }
    after = {
        "quarantine": None,
        "units": {
            name: {"service": wanted.get(name), "probe": name in wanted, "maintenance": None}
            for name in sorted(names + gone)
        },
    }
    files = service_files(node, wanted, gone) + ([probe_config(node, units)] if units else [])
    changed_files = [f.path for f in files if _files.differs(_files.read_file(f.path), f)]
    stale = [name for name in names if _systemd.stale(_systemd.unit(probe_unit(name)), probe_files(p))]
    changed = before != after or bool(changed_files) or bool(stale)
    if not module.check_mode:
        _files.apply(files, check_mode=False)
        if any(path != PROBE_CONFIG for path in changed_files) or not loaded(node, wanted, gone):
            node.reload()
            if not _consul.wait_for(lambda: loaded(node.read_agent(), wanted, gone), p["wait"]):
                module.fail_json(
                    msg=f"Consul agent: has not loaded {', '.join(names)} after a reload. "
                    f"Read journalctl -u {p['consul_unit']}."
                )
        (node.state_dir / "quarantine.json").unlink(missing_ok=True)
        for name in names:
            if node.maintenance(name) is not None:
                set_maintenance(node, name, None)
        run_probes(names, stale, gone, probe_files(p))
        states: list[dict[str, Any]] = []

        def all_pass() -> bool:
            states[:] = node.states(names)
            return all(s["state"] == "passing" for s in states)

        if not _consul.wait_for(all_pass, p["wait"], 0.5):
            bad = [s for s in states if s["state"] != "passing"]
            lines = [f"{s['id']}: {s['output']}" for s in bad]
            module.fail_json(
                msg=f"join: not passing in Consul after {p['wait']:g} s: {'; '.join(lines)}. "
                "Read journalctl -u 'gpu-rack-probe@*'.",
                units=states,
                checks=[passing_check(s, p["wait"]) for s in bad],
                changed=changed,
            )
    record = {
        "verdict": "unknown" if refusals else "pass",
        "units": names,
        "gates": _membership.headlines(node.state_dir),
        "time": round(time.time(), 3),
    }
    finish(node, names, before, after, changed, refusals=refusals, record=record)


def service_files(node: Node, wanted: dict[str, dict[str, Any]], gone: list[str]) -> list[_files.WantedFile]:
    """Return the definitions as files.

    The token is in them: a definition without one would be synced with the agent's own.
    """
    found = []
    for name, definition in wanted.items():
        service = {**definition, **({"token": node.p["token"]} if node.p["token"] else {})}
        text = json.dumps({"service": service}, indent=2, sort_keys=True) + "\n"
        found.append(
            _files.WantedFile(
                service_file(node.p["config_dir"], name), text, 0o640, "root", node.p["group"], secret=True
            )
        )
    return found + [_files.WantedFile(service_file(node.p["config_dir"], name), None) for name in gone]


def probe_config(node: Node, units: list[dict[str, Any]]) -> _files.WantedFile:
    """Return the file that tells the probes what to ask and where to report. Units of an earlier call stay in it."""
    p = node.p
    try:
        known = _membership.read_json(Path(PROBE_CONFIG))
    except ValueError:
        known = None
    earlier = known.get("units", {}) if p["units"] is not None and isinstance(known, dict) else {}
    config = {
        "consul_address": p["address"],
        "consul_ca_path": p["ca_path"],
        "consul_token_file": p["token_file"],
        "interval": p["probe_interval"],
        "timeout": p["probe_timeout"],
        "units": {**earlier, **{unit["id"]: {"port": unit["port"], "model": p["model"]} for unit in units}},
    }
    return _files.WantedFile(PROBE_CONFIG, json.dumps(config, indent=1, sort_keys=True) + "\n", 0o644)


def probe_files(p: dict[str, Any]) -> list[str]:
    """Return the files that a running probe has read once."""
    return [PROBE_CONFIG, PROBE_UNIT_FILE, p["token_file"], *PROBE_PROGRAMS]


def loaded(node: Node, wanted: dict[str, dict[str, Any]], gone: list[str]) -> bool:
    """Tell whether the agent has the services as wanted and none of those that are gone."""
    for name, definition in wanted.items():
        service = node.services.get(name)
        if service is None or _membership.check_id(name) not in node.checks:
            return False
        seen = {"port": service.get("Port"), "meta": service.get("Meta"), "address": service.get("Address", "")}
        if seen != {"port": definition["port"], "meta": definition["meta"], "address": definition.get("address", "")}:
            return False
        if service.get("Service") != definition["name"]:
            return False
    return not any(name in node.services for name in gone)


def run_probes(names: list[str], stale: list[str], gone: list[str], files: list[str]) -> None:
    """Enable and start the probes, restart those that run on old files, stop those of units that are gone."""
    states = {name: _systemd.unit(probe_unit(name)) for name in (*names, *gone)}
    if any(state.outdated for state in states.values()):
        _systemd.systemctl("daemon-reload")
    start = [probe_unit(name) for name in names if not (states[name].enabled and states[name].active)]
    if start:
        _systemd.systemctl("enable", "--now", *start)
    # Files written by this very call make a running probe stale as well.
    restart = [
        probe_unit(name)
        for name in names
        if probe_unit(name) not in start and (name in stale or _systemd.stale(states[name], files))
    ]
    if restart:
        _systemd.systemctl("restart", *restart)
    stop_probes(gone)


def stop_probes(names: list[str]) -> None:
    """Disable and stop the probes that are there."""
    probes = {probe_unit(name): _systemd.unit(probe_unit(name)) for name in names}
    running = [name for name, probe in probes.items() if probe.enabled or probe.active]
    if running:
        _systemd.systemctl("disable", "--now", *running)


def set_maintenance(node: Node, unit: str, reason: str | None) -> None:
    """Switch a unit's maintenance on with a reason, or off."""
    query = {"enable": "false"} if reason is None else {"enable": "true", "reason": reason}
    node.consul.put(f"agent/service/maintenance/{unit}", query=query)


def out_of_traffic(node: Node, prefix: str) -> None:
    """Drain or quarantine: maintenance for every registered unit; for a quarantine also the record and the check."""
    module, p = node.module, node.p
    node.read_agent()
    quarantine = p["state"] == "quarantined"
    if node.agent_error and not quarantine and not module.check_mode:
        module.fail_json(
            msg=f"Consul agent: {node.agent_error}. "
            "Without it the units cannot be drained; start it, or stop the engines."
        )
    registered = sorted(name for name, s in node.services.items() if s.get("Service") == p["service"])
    names = [name for name in (p["units"] or registered) if name in registered]
    unknown = sorted(set(p["units"] or []) - set(registered) - set(node.on_disk()))
    if unknown and not node.agent_error and not quarantine:
        module.fail_json(
            msg=f"units: {', '.join(unknown)} not registered here. Registered: {', '.join(registered) or 'none'}."
        )
    before = node.view(names)
    reason = f"{prefix}: {p['reason']}"
    after = {
        "quarantine": quarantine_entry(node, before["quarantine"]) if quarantine else before["quarantine"],
        "units": {name: {**before["units"][name], "maintenance": reason} for name in names},
    }
    if not module.check_mode:
        if quarantine and after["quarantine"] != before["quarantine"]:
            write_state(node.state_dir / "quarantine.json", after["quarantine"])
        for name in names:
            if before["units"][name]["maintenance"] == reason:
                continue
            if quarantine:
                node.consul.put(
                    f"agent/check/update/{_membership.check_id(name)}", {"Status": "critical", "Output": reason}
                )
            if before["units"][name]["maintenance"] is not None:
                # Consul keeps the first reason when maintenance is on already.
                set_maintenance(node, name, None)
            set_maintenance(node, name, reason)
        if names:
            _consul.wait_for(lambda: all(s["state"] != "passing" for s in node.states(names)), min(p["wait"], 10.0))
    finish(node, names, before, after, before != after)


def quarantine_entry(node: Node, known: dict[str, Any] | None) -> dict[str, Any]:
    """Return the record to store.

    The same reason again keeps its first time, so that a second failing run changes nothing.
    """
    p = node.p
    entry = {"stage": p["stage"], "task": p["task"], "reason": p["reason"], "check": p["check"]}
    if known is not None and {k: known.get(k) for k in entry} == entry and isinstance(known.get("time"), (int, float)):
        return {**entry, "time": known["time"]}
    return {**entry, "time": round(time.time(), 3)}


def write_state(path: Path, entry: dict[str, Any]) -> None:
    """Write a file of the state directory, which is made with mode 0750 on a node that has none yet."""
    if not path.parent.is_dir():
        path.parent.mkdir(mode=0o750, parents=True)
    _files.write_file(_files.WantedFile(str(path), json.dumps(entry, indent=1, sort_keys=True) + "\n", 0o640))


def absent(node: Node) -> None:
    """Unregister the units and stop their probes."""
    module, p = node.module, node.p
    node.read_agent()
    names = sorted(
        p["units"] or {*node.on_disk(), *(n for n, s in node.services.items() if s.get("Service") == p["service"])}
    )
    before = node.view(names)
    after = {
        "quarantine": before["quarantine"],
        "units": {name: {"service": None, "probe": False, "maintenance": None} for name in names},
    }
    still = [name for name in names if name in node.services]
    if not module.check_mode:
        stop_probes(names)
        files = [_files.WantedFile(service_file(p["config_dir"], name), None) for name in names]
        _files.apply(files, check_mode=False)
        for name in still:
            if node.maintenance(name) is not None:
                set_maintenance(node, name, None)
        if still:
            node.reload()
            if not _consul.wait_for(lambda: not set(names) & set(node.read_agent().services), p["wait"]):
                module.fail_json(
                    msg=f"Consul agent: still has {', '.join(still)} after a reload. "
                    f"Read journalctl -u {p['consul_unit']}."
                )
    finish(node, names, before, after, before != after or bool(still))


def finish(
    node: Node, names: list[str], before: dict[str, Any], after: dict[str, Any], changed: bool, **extra: Any
) -> None:
    """Return the states, the quarantine and the difference."""
    node.module.exit_json(
        changed=changed,
        units=node.states(names) if names else [],
        quarantine=after["quarantine"],
        agent="ok" if node.agent_error is None else str(node.agent_error),
        diff={"before": before, "after": after},
        **extra,
    )


def main() -> None:
    """Read the state that is wanted and bring the node to it."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC,
        supports_check_mode=True,
        required_if=[
            ("state", "joined", ["model"]),
            ("state", "quarantined", ["stage", "reason"]),
            ("state", "drained", ["reason"]),
        ],
    )
    node = Node(module)
    try:
        if module.params["state"] == "joined":
            joined(node)
        elif module.params["state"] == "absent":
            absent(node)
        else:
            out_of_traffic(
                node, "drained" if module.params["state"] == "drained" else f"quarantined in {module.params['stage']}"
            )
    except _consul.ConsulError as exc:
        module.fail_json(msg=f"Consul: {exc}. Check that the agent runs and the token may write the service.")
    except (OSError, KeyError, _systemd.UnitError) as exc:
        module.fail_json(msg=f"membership of {os.uname().nodename}: {exc}")


if __name__ == "__main__":
    main()

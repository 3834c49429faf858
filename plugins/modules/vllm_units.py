# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module vllm_units: the vLLM services of a node, as one set."""

from __future__ import annotations

DOCUMENTATION = r"""
module: vllm_units
short_description: Keep the vLLM services of a node's inference units
version_added: 0.1.0
description:
  - Writes the template unit C(vllm@.service), the engine's configuration and the environment of every unit, and the
    program that proves readiness; enables and starts the units; stops and removes units that no longer exist.
  - Units that do not run are started at once and not waited for; M(ai_infra.gpu_rack.token_probe) waits and judges.
  - A unit that serves is restarted only when its own files, the template or the secret have changed, or when it runs
    with files older than those on disk. Serving units are restarted one after another, and a restart that fails ends
    the work before the next unit.
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  units:
    description: The units, in the form of C(inference_units.json). Without it O(units_file) is read.
    type: list
    elements: dict
  units_file:
    description:
      - File on the node with the units that M(ai_infra.gpu_rack.inference_units) derived.
      - In check mode a missing file only means that the hardware gate has not run on this node yet.
    type: path
    default: /etc/gpu_rack/inference_units.json
  unit_file:
    description: Whole text of C(/etc/systemd/system/vllm@.service).
    type: str
    required: true
  command:
    description: The engine's command, absolute. It gets C(--config) and the unit's file.
    type: list
    elements: str
    required: true
  version:
    description: vLLM's release. Options that this release does not have are refused.
    type: str
    required: true
  model_dir:
    description: Directory of the model.
    type: path
    required: true
  served_model_name:
    description: Name of the model in the API.
    type: str
    required: true
  listen_address:
    description: Address the engines listen on.
    type: str
    default: 0.0.0.0
  unit_class:
    description: Class of the units; it decides block size and number of concurrent sequences.
    type: str
    choices: [short, medium, long]
    default: medium
  unit_classes:
    description: Class of single units, by unit id.
    type: dict
    default: {}
  options:
    description: Further engine options, by vLLM's names.
    type: dict
    default: {}
  environment:
    description: Further environment variables of the engines. Variables of NCCL and PyTorch are linted.
    type: dict
    default: {}
  binding:
    description:
      - Who binds to the NUMA node, the unit's numactl or the engine's own option.
      - A unit whose GPUs are on several NUMA nodes needs V(engine), which binds each worker to its own GPU's node.
    type: str
    choices: [unit, engine]
    default: unit
  log_requests:
    description: Whether the engines log every request.
    type: bool
    default: false
  shutdown_timeout:
    description: Seconds a stopping engine gives its running requests.
    type: int
    default: 60
  restart_timeout:
    description: Deadline in seconds for the restart of one serving unit, its readiness included.
    type: float
    default: 1800.0
  api_key:
    description: Key that the API of the engines wants. It is only in C(/etc/gpu_rack/vllm/secret.env), mode 0600.
    type: str
attributes:
  check_mode:
    description: Reports what would be written, started, restarted and removed, and changes nothing.
    support: full
  diff_mode:
    description: Shows the files and the units' states, but of the secret only that it differs.
    support: full
"""

EXAMPLES = r"""
- name: Keep the units
  ai_infra.gpu_rack.vllm_units:
    unit_file: "{{ lookup('ansible.builtin.template', 'vllm@.service.j2') }}"
    command: [/opt/vllm/bin/vllm, serve]
    version: 0.32.0
    model_dir: /srv/models/llama
    served_model_name: llama
"""

RETURN = r"""
files:
  description: Paths that were, or would be, written or removed.
  returned: always
  type: list
  elements: str
actions:
  description: What was, or would be, done by unit; V(none), V(enabled), V(started), V(restarted) or V(removed).
  returned: always
  type: dict
"""

import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _files, _systemd, _token_probe, _vllm
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import run
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._token_gate import (
    PROPERTIES,
    State,
    last_words,
    parse_state,
)

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    "units": {"type": "list", "elements": "dict"},
    "units_file": {"type": "path", "default": "/etc/gpu_rack/inference_units.json"},
    "unit_file": {"type": "str", "required": True},
    "command": {"type": "list", "elements": "str", "required": True},
    "version": {"type": "str", "required": True},
    "model_dir": {"type": "path", "required": True},
    "served_model_name": {"type": "str", "required": True},
    "listen_address": {"type": "str", "default": "0.0.0.0"},
    "unit_class": {"type": "str", "choices": list(_vllm.CLASSES), "default": "medium"},
    "unit_classes": {"type": "dict", "default": {}},
    "options": {"type": "dict", "default": {}},
    "environment": {"type": "dict", "default": {}},
    "binding": {"type": "str", "choices": ["unit", "engine"], "default": "unit"},
    "log_requests": {"type": "bool", "default": False},
    "shutdown_timeout": {"type": "int", "default": 60},
    "restart_timeout": {"type": "float", "default": 1800.0},
    "api_key": {"type": "str", "no_log": True},
}
UNIT_FILE = "/etc/systemd/system/vllm@.service"
CONFIG_DIR = "/etc/gpu_rack/vllm"
PROBE = "/usr/local/lib/gpu_rack/token_probe.py"
_ENGINE_FIELDS = (
    "version",
    "model_dir",
    "served_model_name",
    "listen_address",
    "unit_class",
    "unit_classes",
    "options",
    "environment",
    "binding",
    "log_requests",
    "shutdown_timeout",
)


def _service(unit_id: str) -> str:
    return f"vllm@{unit_id}.service"


def _own_files(unit_id: str) -> tuple[str, str]:
    """Return the paths of a unit's configuration and environment."""
    return f"{CONFIG_DIR}/{unit_id}.yaml", f"{CONFIG_DIR}/{unit_id}.env"


def _probe_source() -> str:
    """Return the probe's source from this module's own payload, so that gate and readiness cannot differ."""
    source = _token_probe.__loader__.get_source(_token_probe.__name__)  # type: ignore[union-attr]
    if source is None:
        raise ValueError("the probe's source is not in the module's payload")
    return str(source)


def _wanted(params: dict[str, Any], units: list[_vllm.Unit]) -> list[_files.WantedFile]:
    """Return every file as it shall be."""
    engine = _vllm.Engine(**{name: params[name] for name in _ENGINE_FIELDS})
    unknown = sorted(set(params["unit_classes"]) - {u.id for u in units})
    if unknown:
        raise ValueError(
            f"unit_classes: {', '.join(unknown)} is not a unit of this node. Units: {', '.join(u.id for u in units)}."
        )
    key = params["api_key"]
    secret = _vllm.environment_text({"VLLM_API_KEY": key}) if key else None
    files = [
        _files.WantedFile(PROBE, _probe_source()),
        _files.WantedFile(_token_probe.SECRET_FILE, secret, 0o600, secret=True),
        _files.WantedFile(UNIT_FILE, params["unit_file"]),
    ]
    for unit in units:
        config, environment = _own_files(unit.id)
        files.append(_files.WantedFile(config, _vllm.config_text(_vllm.config(unit, engine))))
        files.append(_files.WantedFile(environment, _vllm.environment_text(_vllm.environment(unit, engine))))
    return files


def _read_units(params: dict[str, Any], check_mode: bool) -> list[_vllm.Unit] | None:
    """Return the units; None in check mode on a node where the hardware gate has not run yet."""
    if params["units"] is not None:
        return _vllm.parse_units(params["units"])
    try:
        return _vllm.parse_units(json.loads(Path(params["units_file"]).read_text()))
    except FileNotFoundError as exc:
        if check_mode:
            return None
        raise ValueError(
            f"units: {params['units_file']} does not exist. Run the gate inference_units first, or give units."
        ) from exc


def _gone(units: list[_vllm.Unit]) -> list[str]:
    """Return the ids of units that have files and no longer exist."""
    present = {p.stem for p in Path(CONFIG_DIR).glob("*.yaml")} if os.path.isdir(CONFIG_DIR) else set()
    return sorted(present - {u.id for u in units})


def _show(service: str) -> tuple[_systemd.Unit, State | None]:
    """Return a unit's state in both readings: of the files' age and of the start."""
    properties = f"LoadState,UnitFileState,ExecMainStartTimestampMonotonic,{PROPERTIES}"
    evidence = run(["systemctl", "show", f"--property={properties}", service], 10)
    if evidence.rc != 0:
        error = evidence.error or evidence.stderr.strip() or f"exit status {evidence.rc}"
        raise _systemd.UnitError(f"systemctl show {service}: {error}")
    text = evidence.stdout
    unit = _systemd.parse_unit(service, text, time.time(), time.clock_gettime(time.CLOCK_MONOTONIC))
    return unit, parse_state(text)


def _plan(units: list[_vllm.Unit], changed: list[str]) -> tuple[dict[str, str], set[str]]:
    """Return what has to be done with each unit, and which units serve now."""
    common = {UNIT_FILE, _token_probe.SECRET_FILE}
    actions, serving = {}, set()
    for unit in units:
        own = _own_files(unit.id)
        loaded, state = _show(_service(unit.id))
        if state and state.serving:
            serving.add(unit.id)
        if not state or not (state.serving or state.starting):
            # Stopped, failed, or waiting for another try after a failure: start now, with a new count of tries.
            actions[unit.id] = "started"
        elif {*common, *own} & set(changed) or _systemd.stale(loaded, [*common, *own]):
            actions[unit.id] = "restarted"
        else:
            actions[unit.id] = "none" if loaded.enabled else "enabled"
    return actions, serving


def _fail_restart(module: AnsibleModule, unit_id: str, rest: list[str], error: _systemd.UnitError) -> None:
    """Fail with the unit's own last words, and say who was left alone."""
    service = _service(unit_id)
    journal = run(["journalctl", "--unit", service, "--lines", "40", "--output", "cat", "--no-pager"], 10)
    left = f" Not restarted, still as before: {', '.join(rest)}." if rest else ""
    remedy = f"Look at journalctl -u {service} on the node.{left}"
    module.fail_json(msg=f"restart of {service}: {error}; last journal lines: {last_words(journal.stdout)}. {remedy}")


def _apply(
    module: AnsibleModule, actions: dict[str, str], serving: set[str], gone: list[str], changed: list[str]
) -> None:
    """Carry the plan out: remove, reload, enable, start without waiting, restart the serving ones one by one."""
    for unit_id in gone:
        _systemd.systemctl("disable", "--now", _service(unit_id), timeout=module.params["shutdown_timeout"] + 60)
    if changed or any(action != "none" for action in actions.values()):
        _systemd.systemctl("daemon-reload")
        _systemd.systemctl("enable", *map(_service, actions))
    due = [u for u, action in actions.items() if action in ("started", "restarted")]
    idle = [_service(u) for u in due if u not in serving]
    if idle:
        # A unit that was refused too often may only start again after this.
        _systemd.systemctl("reset-failed", *idle)
        _systemd.systemctl("restart", "--no-block", *idle)
    busy = [u for u in due if u in serving]
    for number, unit_id in enumerate(busy):
        try:
            _systemd.systemctl("restart", _service(unit_id), timeout=module.params["restart_timeout"])
        except _systemd.UnitError as exc:
            _fail_restart(module, unit_id, busy[number + 1 :], exc)


def main() -> None:
    """Compare the set of units with the node and bring the node to it."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    try:
        units = _read_units(params, module.check_mode)
        if units is None:
            note = "the units are not known yet: the gate inference_units writes them"
            module.exit_json(changed=True, files=[], actions={}, diff={"before": "", "after": f"# {note}\n"}, msg=note)
            return
        command = params["command"][0]
        if not os.path.isabs(command):
            raise ValueError(f"command: {command!r} is not absolute. Give the whole path of the engine.")
        if not os.access(command, os.X_OK) and not module.check_mode:
            raise ValueError(
                f"command: {command} does not exist or is not executable on this node. Install the engine first."
            )
        gone = _gone(units)
        wanted = _wanted(params, units)
        if not module.check_mode:
            os.makedirs(CONFIG_DIR, mode=0o755, exist_ok=True)
        changed, differences = _files.apply(wanted, module.check_mode)
        actions, serving = _plan(units, changed)
        if not module.check_mode:
            _apply(module, actions, serving, gone, changed)
        # Files of units that are gone go last: a run that is killed before finds them and removes the unit again.
        leftovers = [_files.WantedFile(path, None) for unit_id in gone for path in _own_files(unit_id)]
        removed, more = _files.apply(leftovers, module.check_mode)
    except (ValueError, OSError, KeyError, _systemd.UnitError) as exc:
        module.fail_json(msg=f"vllm_units: {exc}")
    actions.update(dict.fromkeys(gone, "removed"))
    done = [f"{_service(u)} {action}\n" for u, action in actions.items() if action != "none"]
    differences += more
    if done:
        differences.append({"before_header": "units", "after_header": "units", "before": "", "after": "".join(done)})
    module.exit_json(
        changed=bool(changed or removed or done), files=changed + removed, actions=actions, diff=differences
    )


if __name__ == "__main__":
    main()

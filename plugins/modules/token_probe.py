# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module token_probe: the serving gate, which takes nothing but a generated token for an answer."""

from __future__ import annotations

DOCUMENTATION = r"""
module: token_probe
short_description: Prove that every inference unit of a node generates a token
version_added: 0.1.0
description:
  - Asks each unit's engine for one token over its OpenAI API, within a deadline, and measures the time to it.
  - An engine that answers C(/health) but generates nothing fails, because vLLM does just that when its GPU is wedged.
  - A unit that is not running fails with its systemd state and the cause from its journal, such as the file whose
    checksum is wrong.
  - When the engine wants an API key, it is read from C(/etc/gpu_rack/vllm/secret.env) on the node.
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
extends_documentation_fragment: ai_infra.gpu_rack.gate
options:
  units:
    description:
      - The units to probe, in the form of C(inference_units.json). Without it the units of O(units_file) are probed.
      - Of each, C(id) (its service is C(vllm@<id>.service)) and C(port) are required, C(address) (127.0.0.1) and
        C(model) (the first model the engine lists) are optional; other keys are ignored.
    type: list
    elements: dict
  units_file:
    description: File on the node with the units that M(ai_infra.gpu_rack.inference_units) derived.
    type: path
    default: /etc/gpu_rack/inference_units.json
  max_seconds:
    description: Longest time to the token in seconds that passes.
    type: float
    default: 5.0
  wait:
    description:
      - Seconds in which a unit that is still starting may become ready. A unit that has failed is not waited for.
      - With V(0) each unit is asked once.
    type: float
    default: 0.0
notes:
  - O(captured) is a file with one reading (for one unit only), a directory with C(<id>.json) (the reading),
    C(<id>.systemctl.txt) and C(<id>.journal.txt), or the stored result of an earlier run.
"""

EXAMPLES = r"""
- name: Wait until every unit has generated a token
  ai_infra.gpu_rack.token_probe:
    wait: 900
    evidence_dir: /var/lib/gpu_rack/evidence/20260101T000000Z/serving

- name: Judge a stored answer again
  ai_infra.gpu_rack.token_probe:
    units:
      - id: node1-iu0
        port: 8000
    captured: node1-iu0.json
  delegate_to: localhost
"""

RETURN = r"""
gate:
  description: Name of the gate.
  returned: always
  type: str
verdict:
  description: Worst verdict of all checks.
  returned: always
  type: str
summary:
  description: One line for people about the worst check.
  returned: always
  type: str
checks:
  description: One C(token_probe.token) for each unit, with the seconds to the token and the limit.
  returned: always
  type: list
  elements: dict
evidence:
  description: The probes' readings, the units' states and their journals.
  returned: always
  type: list
  elements: dict
seconds:
  description: Seconds to the token by unit. A unit without a token is missing.
  returned: always
  type: dict
"""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._token_gate import (
    PROPERTIES,
    judge_unit,
    parse_reading,
    parse_state,
    parse_units,
    shared_reading,
    units_of,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._token_probe import (
    probe,
    read_api_key,
    seconds_problem,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    **GATE_ARGS,
    "units": {"type": "list", "elements": "dict"},
    "units_file": {"type": "path", "default": "/etc/gpu_rack/inference_units.json"},
    "max_seconds": {"type": "float", "default": 5.0},
    "wait": {"type": "float", "default": 0.0},
}
_POLL_S = 0.5
_JOURNAL_LINES = "40"


def _probe(source: Source, unit: dict[str, Any], seconds: float, api_key: str) -> Evidence:
    """Probe a live engine, or take the stored reading."""
    argv = ["token_probe", unit["id"], f"{unit['address']}:{unit['port']}"]
    if not source.live:
        return source.read(argv, f"{unit['id']}.json")
    start = time.monotonic()
    reading = probe(unit["address"], unit["port"], seconds, api_key, unit["model"])
    evidence = Evidence(" ".join(argv), 0, json.dumps(reading.as_dict()), "", time.monotonic() - start)
    source.used.append(evidence)
    return evidence


def _attempt(source: Source, unit: dict[str, Any], max_seconds: float, api_key: str) -> tuple[Check, bool]:
    """Read and judge one unit; also return whether asking again later makes sense."""
    service = f"vllm@{unit['id']}.service"
    if source.single_file:
        return judge_unit(unit["id"], None, "", parse_reading(_probe(source, unit, 0, "")), max_seconds), False
    shown = source.read(["systemctl", "show", f"--property={PROPERTIES}", service], f"{unit['id']}.systemctl.txt")
    state = parse_state(shown.stdout) if shown.rc == 0 else None
    journal, reading = "", None
    if state and (state.serving or state.starting):
        # Longer than the limit, so that a slow token is measured and not only missed.
        reading = parse_reading(_probe(source, unit, min(source.timeout, 2 * max_seconds), api_key))
    elif state:
        argv = ["journalctl", "--unit", service, "--lines", _JOURNAL_LINES, "--output", "cat", "--no-pager"]
        journal = source.read(argv, f"{unit['id']}.journal.txt").stdout
    check = judge_unit(unit["id"], shown.stdout if shown.rc == 0 else "", journal, reading, max_seconds)
    return check, bool(state and state.starting)


def _unit(params: dict[str, Any], unit: dict[str, Any], count: int, api_key: str) -> tuple[Check, list[Evidence]]:
    """Return the last judgement of one of `count` units and the evidence for it."""
    end = time.monotonic() + params["wait"]
    while True:
        source = Source(params["captured"], params["timeout"])
        if source.single_file and count > 1:
            return shared_reading(unit["id"], params["captured"], count, params["max_seconds"]), source.used
        check, starting = _attempt(source, unit, params["max_seconds"], api_key)
        if check.verdict == "pass" or not (starting and source.live) or time.monotonic() + _POLL_S >= end:
            return check, source.used
        time.sleep(_POLL_S)


def main() -> None:
    """Probe every unit at the same time and judge."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    for name in ("timeout", "max_seconds", "wait"):
        problem = seconds_problem(name, params[name], zero=name == "wait")
        if problem:
            module.fail_json(msg=f"token_probe: {problem}")
    try:
        if params["units"] is not None:
            units = units_of(params["units"], "the option units")
        else:
            units = parse_units(Path(params["units_file"]).read_bytes(), params["units_file"])
        api_key = "" if params["captured"] else read_api_key()
    except OSError as exc:
        module.fail_json(
            msg=f"token_probe: {exc.filename}: {exc.strerror}. Run the gate inference_units first, or give units."
        )
    except ValueError as exc:
        module.fail_json(msg=f"token_probe: {exc}")
    with ThreadPoolExecutor(len(units)) as pool:
        results = list(pool.map(lambda unit: _unit(params, unit, len(units), api_key), units))
    checks = [check for check, _unused in results]
    seconds = {c.subject: c.value for c in checks if c.value is not None}
    finish_gate(module, "token_probe", checks, [e for _unused, used in results for e in used], seconds=seconds)


if __name__ == "__main__":
    main()

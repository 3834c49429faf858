# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module consul_kv: one key of Consul's key-value store."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_kv
short_description: Set or remove one key in Consul
version_added: 0.1.0
description:
  - Sets a key of Consul's key-value store. A dict or list is stored as JSON with sorted keys, so that the same value
    is the same text.
  - Needs nothing but Python's standard library where it runs.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
extends_documentation_fragment: ai_infra.gpu_rack.consul
options:
  key:
    description: The key, without a leading slash.
    type: str
    required: true
  value:
    description: The value. Required with O(state=present).
    type: raw
  volatile:
    description:
      - Top-level keys of a dict value that differ from run to run, such as the time of a measurement.
      - They are stored with every run, but a difference in them alone is not a change, as a new measurement is no
        drift.
    type: list
    elements: str
    default: []
  state:
    description: Whether the key exists.
    type: str
    choices: [present, absent]
    default: present
attributes:
  check_mode:
    description: Reports the change and stores nothing.
    support: full
  diff_mode:
    description: Shows the value before and after.
    support: full
"""

EXAMPLES = r"""
- name: Record that the node serves
  ai_infra.gpu_rack.consul_kv:
    token: "{{ consul_agent_service_token }}"
    key: "gpu_rack/nodes/{{ inventory_hostname }}"
    value: {verdict: pass, run: 20260101T000000Z, units: [node1-iu0, node1-iu1]}
    volatile: [run]
"""

RETURN = r"""
value:
  description: The value before the task, null when there was none.
  returned: always
  type: raw
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._consul import Consul, ConsulError

CONSUL_ARGS: dict[str, Any] = {
    "address": {"type": "str", "default": "http://127.0.0.1:8500"},
    "token": {"type": "str", "no_log": True},
    "ca_path": {"type": "path"},
}
ARGUMENT_SPEC: dict[str, Any] = {
    **CONSUL_ARGS,
    "key": {"type": "str", "required": True, "no_log": False},
    "value": {"type": "raw"},
    "volatile": {"type": "list", "elements": "str", "default": []},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
}


def encode(value: Any) -> str:
    """Return the stored text: a string as it is, everything else as canonical JSON."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, separators=(",", ":"))


def decode(text: str | None) -> Any:
    """Return the value behind a stored text; text that is no JSON object or list stays text."""
    if text is None:
        return None
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (dict, list)) else text


def steady(value: Any, volatile: list[str]) -> Any:
    """Return a value without its volatile top-level keys."""
    return {k: v for k, v in value.items() if k not in volatile} if isinstance(value, dict) else value


def main() -> None:
    """Compare the stored value with the wanted one and store it."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC, supports_check_mode=True, required_if=[("state", "present", ["value"])]
    )
    p = module.params
    key = p["key"].strip("/")
    try:
        consul = Consul(p["address"], p["token"] or "", ca_file=p["ca_path"])
    except (ValueError, OSError) as exc:
        module.fail_json(msg=str(exc))
    try:
        raw = consul.kv_get(key)
    except ConsulError as exc:
        # A bare rack has no Consul yet when a check-mode run comes by.
        if not (module.check_mode and exc.unreachable):
            module.fail_json(msg=f"Consul key {key}: {exc}. Check the address, the token and that the agent runs.")
        raw = None
    before = None if raw is None else raw.decode("utf-8", "replace")
    wanted = encode(p["value"]) if p["state"] == "present" else None
    held, new = steady(decode(before), p["volatile"]), steady(decode(wanted), p["volatile"])
    changed = held != new
    if before != wanted and not module.check_mode:
        try:
            if wanted is None:
                consul.kv_delete(key)
            else:
                consul.kv_put(key, wanted.encode())
        except ConsulError as exc:
            module.fail_json(msg=f"Consul key {key}: {exc}. Give a token with write access to it.")
    module.exit_json(
        changed=changed,
        value=decode(before),
        diff={"before_header": key, "after_header": key, "before": _text(held), "after": _text(new)},
    )


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    main()

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Take a failed node out: on the node, in Consul, and in the run's result. Runs in the rescue of a play."""

from __future__ import annotations

import json
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._consul import Consul, ConsulError
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._membership import KV_PREFIX
from ansible_collections.ai_infra.gpu_rack.plugins.plugin_utils._quarantine import record

_SPEC: dict[str, dict[str, Any]] = {
    "stage": {"type": "str", "required": True},
    "failed_task": {"type": "dict", "required": True},
    "failed_result": {"type": "dict", "required": True},
    "next_command": {"type": "str", "required": True},
    "run": {"type": "str", "default": ""},
    "service": {"type": "str", "default": "vllm"},
    "consul_address": {"type": "str", "default": ""},
    "consul_ca_path": {"type": "path"},
    "consul_token": {"type": "str", "default": "", "no_log": True},
    "agent_address": {"type": "str", "default": "http://127.0.0.1:8500"},
}


class ActionModule(ActionBase):  # type: ignore[misc]
    """Record the reason wherever it can be recorded, then fail with it."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return a failed result that carries the original reason."""
        super().run(tmp, task_vars)
        variables = task_vars or {}
        _validation, args = self.validate_argument_spec(argument_spec=_SPEC)
        node = str(variables["inventory_hostname"])
        entry = record(node, args["stage"], args["failed_task"], args["failed_result"], args["next_command"])
        changed = False
        warnings: list[str] = []
        if not self._task.check_mode:
            changed, warnings = outcome_on_node(self._on_node(args, entry, variables))
            warnings.extend(in_consul(args, entry, time.time()))
        happened = "would be quarantined" if self._task.check_mode else "quarantined"
        message = f"{node} {happened} in {entry['stage']}: {entry['reason'].rstrip('.')}. Next: {entry['next_command']}"
        return {
            "failed": True,
            "changed": changed,
            "msg": message,
            "quarantine": entry,
            **({"warnings": warnings} if warnings else {}),
        }

    def _on_node(self, args: dict[str, Any], entry: dict[str, Any], variables: dict[str, Any]) -> dict[str, Any]:
        """Write the reason on the node and turn its units critical; return the module's result."""
        check = {
            k: entry[k] for k in ("check", "subject", "verdict", "value", "limit", "unit", "limit_source", "remedy")
        }
        wanted = {
            "state": "quarantined",
            "stage": entry["stage"],
            "reason": entry["reason"],
            "task": entry["task"],
            "check": check if entry["check"] else None,
            "service": args["service"],
            "address": args["agent_address"],
            "token": args["consul_token"],
        }
        try:
            done: dict[str, Any] = self._execute_module(
                module_name="ai_infra.gpu_rack.iu_membership", module_args=wanted, task_vars=variables
            )
        except AnsibleConnectionFailure as exc:
            return {"unreachable": True, "msg": str(exc)}
        return done


def outcome_on_node(done: dict[str, Any]) -> tuple[bool, list[str]]:
    """Return whether the node changed, and what could not be done there."""
    warnings = []
    if done.get("failed") or done.get("unreachable"):
        warnings.append(f"the quarantine could not be written to the node: {done.get('msg', 'no message')}")
    return bool(done.get("changed")), warnings


def in_consul(args: dict[str, Any], entry: dict[str, Any], now: float) -> list[str]:
    """Record the reason in Consul from here, which works when the node is dead; return what could not be done."""
    if not args["consul_address"]:
        return []
    value = {"verdict": "fail", "run": args["run"], "time": round(now, 3), "quarantine": entry}
    try:
        consul = Consul(args["consul_address"], args["consul_token"], ca_file=args["consul_ca_path"])
        consul.kv_put(
            f"{KV_PREFIX}/nodes/{entry['node']}", json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
        )
    except (ConsulError, ValueError, OSError) as exc:
        return [f"the quarantine could not be recorded in Consul: {exc}"]
    return []

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Controller side of the module validate_inventory: reads the whole inventory, connects to nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible.plugins.action import ActionBase
from ansible_collections.ai_infra.gpu_rack.plugins.plugin_utils._inventory_rules import (
    Problem,
    RoleUse,
    Unresolved,
    problems,
)
from ansible_collections.ai_infra.gpu_rack.plugins.plugin_utils._origin import origin_of

_COLLECTION = Path(__file__).resolve().parents[2]


class ActionModule(ActionBase):  # type: ignore[misc]
    """Check every host's variables against the roles that will run on it."""

    TRANSFERS_FILES = False
    _VALID_ARGS: frozenset[str] = frozenset()
    _requires_connection = False

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the problems found; fail when there is one."""
        super().run(tmp, task_vars)
        task_vars = task_vars or {}
        hostvars = task_vars["hostvars"]
        groups = {name: list(members) for name, members in task_vars["groups"].items()}
        specs = role_specs(_COLLECTION / "roles")
        raw = {host: hostvars.raw_get(host) for host in groups["all"]}
        wanted = (*(f"{role}_" for role in specs), "gpu_rack_", "ansible_host")
        resolved = {}
        for host, values in raw.items():
            variables = {**values, "hostvars": hostvars}
            resolved[host] = {name: self._resolve(variables, name) for name in values if name.startswith(wanted)}
        found = problems(resolved, groups, specs, role_uses(_COLLECTION / "playbooks"))
        lines = _lines(found, raw)
        if not found:
            return {"changed": False, "msg": f"{len(raw)} hosts are well described.", "problems": []}
        many = "s" if len(lines) > 1 else ""
        return {
            "changed": False,
            "failed": True,
            "msg": f"Inventory refused: {len(lines)} wrong value{many}, nothing was touched.",
            "problems": lines,
        }

    def _resolve(self, variables: dict[str, Any], name: str) -> Any:
        """Return a variable as the host's tasks will see it, `hostvars` of other hosts included."""
        try:
            return self._templar.copy_with_new_env(available_variables=variables).template(variables[name])
        except AnsibleError as exc:
            return Unresolved(" ".join(str(exc).split()).rstrip("."))


def role_specs(roles: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return role → option → specification, the options of all entry points together."""
    specs: dict[str, dict[str, dict[str, Any]]] = {}
    for file in sorted(roles.glob("*/meta/argument_specs.yml")):
        options: dict[str, dict[str, Any]] = {}
        for entry, spec in yaml.safe_load(file.read_text())["argument_specs"].items():
            for name, option in (spec.get("options") or {}).items():
                known = options.setdefault(name, {**option, "__entry_points": []})
                if option.get("required"):
                    known["required"] = True
                    known["__entry_points"].append(entry)
        specs[file.parent.parent.name] = options
    return specs


def role_uses(playbooks: Path) -> list[RoleUse]:
    """Return which role runs on which group, read from the playbooks that bring a rack up."""
    uses = []
    for line in yaml.safe_load((playbooks / "site.yml").read_text()):
        for play in yaml.safe_load((playbooks / line["ansible.builtin.import_playbook"]).read_text()):
            for task in _tasks(play.get("tasks", ())):
                call = task.get("ansible.builtin.import_role") or task.get("ansible.builtin.include_role")
                if call:
                    wired = frozenset({**play.get("vars", {}), **task.get("vars", {})})
                    uses.append(
                        RoleUse(call["name"].rpartition(".")[2], play["hosts"], wired, call.get("tasks_from", "main"))
                    )
    return uses


def _tasks(tasks: Any) -> Any:
    for task in tasks:
        yield task
        for key in ("block", "rescue", "always"):
            yield from _tasks(task.get(key, ()))


def _lines(found: Sequence[Problem], raw: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each wrong value. A value that many hosts share is one mistake, so it is one line."""
    hosts: dict[tuple[str, str, str, str], list[str]] = {}
    for problem in found:
        name = problem.variable.partition(".")[0]
        where = origin_of(raw.get(problem.host, {}).get(name)) or "the inventory"
        hosts.setdefault((where, problem.variable, problem.shown, problem.allowed), []).append(problem.host)
    return [
        f"{where}: {', '.join(names)}: {variable}: {shown}. Allowed: {allowed}."
        for (where, variable, shown, allowed), names in hosts.items()
    ]

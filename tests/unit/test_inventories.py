# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""inventories/example names every public variable of every role, with the role's own defaults, and nothing else.

A default stands there as a comment, `# name: value` with its further lines indented. An option that is neither
required nor has a default stands there in the same form with an example. What a playbook fills in
is listed as `#   name: where from`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.ai_infra.gpu_rack.plugins.plugin_utils import _inventory_rules as rules

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "inventories" / "example"
INVENTORIES = [ROOT / "inventories" / "sim", EXAMPLE]
SITE_VARIABLES = {"bmc_address", "site_consul_servers"}
"""Variables of the example that belong to no role: what the site would otherwise write down twice."""
GROUPS = {"gpu_nodes", "consul_servers", "time_servers", "subnet_managers"}


def _specs() -> dict[str, dict[str, Any]]:
    """Every public role variable, with its specification; required where one entry point requires it."""
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(ROOT.glob("roles/*/meta/argument_specs.yml")):
        for entry in yaml.safe_load(file.read_text())["argument_specs"].values():
            for name, option in (entry.get("options") or {}).items():
                known = found.setdefault(name, dict(option))
                known["required"] = known.get("required", False) or option.get("required", False)
    return found


def _filled_in() -> set[str]:
    """Role variables that site.yml or a calling role gives, and two of entry points that nothing calls."""
    names: set[str] = {"node_gate_stage", "consul_agent_drain_reason"}
    site = yaml.safe_load((ROOT / "playbooks" / "site.yml").read_text())
    playbooks = [ROOT / "playbooks" / play["ansible.builtin.import_playbook"] for play in site]
    for file in [*playbooks, *ROOT.glob("roles/*/tasks/*.yml")]:
        for task in _tasks(yaml.safe_load(file.read_text())):
            if "ansible.builtin.import_role" in task or "ansible.builtin.include_role" in task:
                names |= set(task.get("vars", ()))
    return names


def _tasks(items: Any) -> Iterator[Mapping[str, Any]]:
    for item in items or ():
        yield item
        for key in ("tasks", "block", "rescue", "always"):
            yield from _tasks(item.get(key))


SPECS = _specs()
FILLED_IN = _filled_in() & set(SPECS)
FILES = sorted(EXAMPLE.glob("group_vars/*/*.yml"))


def _set(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text()) or {}


def _commented(file: Path) -> dict[str, Any]:
    """The values that stand in a file as comments."""
    blocks: list[list[str]] = []
    open_block = False
    for line in file.read_text().splitlines():
        if re.match(r"# [a-z][a-z0-9_]*:( |$)", line) and line[2:].partition(":")[0] in {
            *SPECS,
            *rules._RACK_VARIABLES,
        }:
            blocks.append([line[2:]])
            open_block = True
        elif open_block and re.match(r"#   ", line):
            blocks[-1].append(line[2:])
        else:
            open_block = False
    values: dict[str, Any] = {}
    for block in blocks:
        values |= yaml.safe_load("\n".join(block))
    return values


def _listed(file: Path) -> set[str]:
    """The names in a file's list of what the playbooks fill in."""
    return {m[1] for line in file.read_text().splitlines() if (m := re.match(r"#   ([a-z][a-z0-9_]*): \S", line))}


def test_every_public_variable_is_there() -> None:
    """Set, commented with its default, or listed as filled in."""
    there = {name for file in FILES for name in {*_set(file), *_commented(file)}}
    listed = {name for file in FILES for name in _listed(file)} & set(SPECS)
    assert set(SPECS) - FILLED_IN - there == set()
    assert FILLED_IN - listed == set()


def test_no_file_sets_what_the_playbooks_fill_in() -> None:
    """Such a value would have no effect, and its reader would not know."""
    assert {name for file in FILES for name in {*_set(file), *_commented(file)}} & FILLED_IN == set()


def test_no_unknown_variable() -> None:
    """Every variable is a role's, the rack's, or one of the few that the site keeps for itself."""
    known = {*SPECS, *rules._RACK_VARIABLES, *SITE_VARIABLES}
    assert {n for f in FILES for n in _set(f) if not n.startswith("ansible_")} - known == set()


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_commented_values_are_the_defaults(file: Path) -> None:
    """A reader who takes the comment away changes nothing; an option without default shows a value the role accepts."""
    for name, value in _commented(file).items():
        if name in rules._RACK_VARIABLES:
            continue
        if file.parent.name == "time_servers":
            continue
        spec = SPECS[name]
        assert not spec["required"], f"{name} is required: give it a value"
        if "default" in spec:
            assert value == spec["default"], name
            assert type(value) is type(spec["default"]), name
        else:
            errors = ArgumentSpecValidator({name: rules._validatable(spec)}).validate({name: value}).error_messages
            assert not errors, name


def test_rack_variables_are_there() -> None:
    """All gpu_rack_ variables are in one file."""
    file = EXAMPLE / "group_vars" / "gpu_nodes" / "gpu_rack.yml"
    assert {*_set(file), *_commented(file)} == set(rules._RACK_VARIABLES)


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.name}/{f.name}")
def test_every_variable_is_explained(file: Path) -> None:
    """A comment stands above each value, set or commented out."""
    lines = file.read_text().splitlines()
    for index, line in enumerate(lines):
        name = line.removeprefix("# ").partition(":")[0]
        if name in SPECS and re.match(r"(# )?[a-z]", line):
            assert re.match(r"# \S", lines[index - 1]), f"{file.name}: {name} has no comment"


@pytest.mark.parametrize("inventory", INVENTORIES, ids=lambda p: p.name)
def test_groups_are_those_of_the_playbooks(inventory: Path) -> None:
    """A group the playbooks do not know would be a set of hosts that nothing is done to."""
    assert set(yaml.safe_load((inventory / "hosts.yml").read_text())["all"]["children"]) == GROUPS
    assert {p.name for p in (inventory / "group_vars").iterdir()} <= {"all", *GROUPS}


def test_example_addresses_are_nobodys() -> None:
    """Only addresses and names that are reserved for documentation (RFC 5737, RFC 2606), and no secret."""
    text = "\n".join(
        f.read_text() for f in [EXAMPLE / "hosts.yml", *FILES, EXAMPLE / "group_vars/all/vault.yml.example"]
    )
    for address in re.findall(r"(?<![\d.])\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}(?![\d.])", text):
        assert address.startswith(("192.0.2.", "198.51.100.")) or address in ("0.0.0.0", "127.0.0.1"), address
    for host in re.findall(r"https?://([a-z][a-z0-9.-]*)", text):
        assert host.endswith("example.com"), host


def test_the_vault_names_what_the_inventory_asks_for() -> None:
    """Every vault_ variable in use stands in the vault's example as a placeholder that validate refuses."""
    vault = yaml.safe_load((EXAMPLE / "group_vars/all/vault.yml.example").read_text())
    used = {
        n
        for f in FILES
        for line in f.read_text().splitlines()
        if not line.startswith("#")
        for n in re.findall(r"vault_\w+", line)
    }
    assert set(vault) == used
    assert set(vault.values()) == {"CHANGE_ME"}
    assert rules._secret_strength("node", "consul_agent_gossip_key", "CHANGE_ME")

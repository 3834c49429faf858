# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What belongs together in the collection is there: scenarios, tests, action group, files of a role."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [f"ansible_collections.ai_infra.gpu_rack.plugins.{kind}" for kind in ("modules", "action")]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
MODULES = sorted(path.stem for path in (ROOT / "plugins/modules").glob("*.py") if not path.stem.startswith("_"))
SCENARIOS = sorted(path.parent.name for path in (ROOT / "molecule").glob("*/molecule.yml"))


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


@cache
def imported_by_tests() -> set[str]:
    """Names of the modules, and of the action plugins that do a module's work, that a unit test imports."""
    found: set[str] = set()
    for path in (ROOT / "tests/unit").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            package = node.module or ""
            if package in PACKAGES:
                found.update(alias.name for alias in node.names)
            elif package.rpartition(".")[0] in PACKAGES:
                found.add(package.rpartition(".")[2])
    return found


def test_there_are_roles_and_modules() -> None:
    assert "cstates" in ROLES
    assert "gate" in MODULES


def test_the_action_group_is_the_modules() -> None:
    assert load(ROOT / "meta/runtime.yml")["action_groups"]["gpu_rack"] == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_a_unit_test(module: str) -> None:
    assert module in imported_by_tests(), f"no tests/unit/**/test_*.py imports plugins/modules/{module}.py. Write one."


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("file", ["README.md", "meta/main.yml", "meta/argument_specs.yml", "tasks/main.yml"])
def test_a_role_has_its_files(role: str, file: str) -> None:
    assert (ROOT / "roles" / role / file).read_text("utf-8").strip()


@pytest.mark.parametrize("role", ROLES)
def test_a_role_has_a_scenario(role: str) -> None:
    scenario = ROOT / "molecule" / role
    assert (scenario / "molecule.yml").exists()
    assert (scenario / "vars.yml").exists(), "molecule/converge.yml reads it"
    plays = load(scenario / "verify.yml")
    asserted = yaml.safe_dump(plays)
    assert "ansible.builtin.assert" in asserted, f"molecule/{role}/verify.yml asserts nothing"


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_scenario_is_a_role_and_leaves_no_step_out(scenario: str) -> None:
    """Only `default`, which makes and removes the nodes, has another sequence than the shared configuration."""
    own = load(ROOT / "molecule" / scenario / "molecule.yml") or {}
    if scenario == "default":
        assert own["scenario"]["test_sequence"] == ["create", "destroy"]
        return
    assert scenario in ROLES
    assert "scenario" not in own, "its sequence is the shared one"


def test_every_scenario_does_check_converge_idempotence_verify() -> None:
    shared = load(ROOT / ".config/molecule/config.yml")
    assert shared["scenario"]["test_sequence"] == ["prepare", "check", "converge", "idempotence", "verify"]
    assert shared["shared_state"] is True

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A role's defaults, its argument specification and its entry points say the same.

Ansible checks the types that a specification names, but takes no default from it and accepts unknown names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
COLLECTION = "ai_infra.gpu_rack."
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
INCLUDES = ("ansible.builtin.include_tasks", "ansible.builtin.import_tasks")
ROLE_CALLS = ("ansible.builtin.include_role", "ansible.builtin.import_role")


@cache
def load(path: Path) -> Any:
    """Return a file's YAML, None where there is no file."""
    return yaml.safe_load(path.read_text("utf-8")) if path.exists() else None


def specs(role: str) -> dict[str, dict[str, Any]]:
    """Return the options of each entry point."""
    read = load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]
    return {entry: spec.get("options") or {} for entry, spec in read.items()}


def defaults(role: str) -> dict[str, Any]:
    return load(ROOT / "roles" / role / "defaults/main.yml") or {}


def tasks(value: Any) -> Iterator[dict[str, Any]]:
    """Walk every task of plays, blocks and task files."""
    for item in value or []:
        yield item
        for key in ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always"):
            yield from tasks(item.get(key))


def included(role: str) -> set[str]:
    """Return the task files that a role's own tasks pull in; a templated name stands for the option's choices."""
    found: set[str] = set()
    for path in (ROOT / "roles" / role / "tasks").glob("*.yml"):
        for task in tasks(load(path)):
            for key in INCLUDES:
                if key not in task:
                    continue
                name = task[key]["file"] if isinstance(task[key], dict) else task[key]
                templated = re.fullmatch(r"\{\{ (\w+) \}\}\.yml", name)
                if templated:
                    found.update(specs(role)["main"][templated[1]]["choices"])
                else:
                    found.add(name.removesuffix(".yml"))
    return found


def called() -> Iterator[tuple[str, str, str]]:
    """Yield file, role and entry point of each call in playbooks, roles and scenarios."""
    files = [ROOT / "site.yml", *(ROOT / "playbooks").glob("*.yml"), *(ROOT / "molecule").rglob("*.yml")]
    for path in sorted([*files, *(ROOT / "roles").glob("*/tasks/*.yml")]):
        content = load(path)
        for task in tasks(content if isinstance(content, list) else []):
            for key in ROLE_CALLS:
                if key not in task:
                    continue
                entries = [str(task[key].get("tasks_from", "main"))]
                if entries == ["{{ item }}"]:
                    entries = task["loop"]
                for entry in entries:
                    yield str(path.relative_to(ROOT)), task[key]["name"], entry


def test_there_are_roles() -> None:
    assert "cstates" in ROLES


@pytest.mark.parametrize("role", ROLES)
def test_defaults_equal_the_specification(role: str) -> None:
    written = defaults(role)
    for entry, options in specs(role).items():
        specified = {name: option["default"] for name, option in options.items() if "default" in option}
        assert specified == {name: written[name] for name in options if name in written}, entry
        types = {name: type(value) for name, value in specified.items()}
        assert types == {name: type(written[name]) for name in specified}, entry


@pytest.mark.parametrize("role", ROLES)
def test_every_default_is_an_option(role: str) -> None:
    options = {name for entry in specs(role).values() for name in entry}
    assert set(defaults(role)) <= options


@pytest.mark.parametrize("role", ROLES)
def test_a_required_option_has_no_default(role: str) -> None:
    for entry, options in specs(role).items():
        required = {name for name, option in options.items() if option.get("required")}
        assert not required & set(defaults(role)), entry


@pytest.mark.parametrize("role", ROLES)
def test_options_begin_with_the_role_and_internals_with_underscores(role: str) -> None:
    for entry, options in specs(role).items():
        assert [name for name in options if not name.startswith(f"{role}_")] == [], entry
    internal = load(ROOT / "roles" / role / "vars/main.yml") or {}
    assert [name for name in internal if not name.startswith(f"__{role}_")] == []


@pytest.mark.parametrize("role", ROLES)
def test_options_are_described_in_sentences(role: str) -> None:
    for entry, options in specs(role).items():
        for name, option in options.items():
            texts = option["description"]
            for text in texts if isinstance(texts, list) else [texts]:
                assert re.match(r"[A-Z0-9]", text), (entry, name, text)
                assert text.rstrip().endswith((".", ")")), (entry, name, text)


@pytest.mark.parametrize("role", ROLES)
def test_every_entry_point_has_a_specification(role: str) -> None:
    """A task file that no other file of the role pulls in can only be an entry point."""
    files = {path.stem for path in (ROOT / "roles" / role / "tasks").glob("*.yml")}
    assert "main" in files
    assert files - included(role) <= set(specs(role))
    assert set(specs(role)) <= files


def test_every_call_of_a_role_names_a_specified_entry_point() -> None:
    calls = list(called())
    assert ("playbooks/firmware.yml", "ai_infra.gpu_rack.cstates", "verify") in calls
    for file, role, entry in calls:
        if "{{" in role:
            continue
        assert role.startswith(COLLECTION), file
        assert entry in specs(role.removeprefix(COLLECTION)), (file, role, entry)

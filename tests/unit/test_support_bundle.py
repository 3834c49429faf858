# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""docs/support-bundle.md names every file that a gate looks for in a support bundle, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._switch_cli import SYSTEMS

ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / "plugins" / "modules"
PAGE = ROOT / "docs" / "support-bundle.md"
ROW = re.compile(r"^\| `([a-z_]+)` \| ([^|]*) \| ([^|]*) \|$", re.M)
FILE = re.compile(r"[\w.<>-]+\.(?:txt|csv|json|xml|conf|log)")


def text_of(node: ast.expr) -> str | None:
    """Return a literal's text; what an f-string puts in is the name of the value in angle brackets."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            words = [word for word in re.findall(r"\w+", ast.unparse(part.value)) if word not in ("id", "name", "self")]
            parts.append(f"<{words[-1] if words else 'name'}>")
        elif isinstance(part, ast.Constant):
            parts.append(str(part.value))
    return "".join(parts)


def names_in(file: Path) -> set[str]:
    """Return the file names in a module.

    These are literals that end as file names do, what stands beside one in a tuple, and what a call of read is given.
    """
    found = set()
    tree = ast.parse(file.read_text(encoding="utf-8"))
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        texts: list[str | None] = []
        if isinstance(node, ast.Tuple):
            texts = [text_of(item) for item in node.elts]
            texts = texts if any(text and FILE.fullmatch(text) for text in texts) else []
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "read":
            texts = [text_of(item) for item in node.args[1:]]
        elif isinstance(node, ast.expr) and id(node) not in parts:
            text = text_of(node)
            texts = [text] if text and FILE.fullmatch(text) else []
        found |= {text for text in texts if text}
    return found


def used_by(gate: str) -> set[str]:
    names = names_in(MODULES / f"{gate}.py")
    if gate == "rdma_congestion":
        names |= {system.file(key) for system in SYSTEMS.values() for key in system.commands}
    return names


def gates() -> list[str]:
    """Return the modules that read through Source."""
    return sorted(file.stem for file in MODULES.glob("*.py") if " Source(" in file.read_text(encoding="utf-8"))


def page() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for gate, _reading, names in ROW.findall(PAGE.read_text(encoding="utf-8")):
        found.setdefault(gate, set()).update(re.findall(r"`([^`]+)`", names))
    return found


@pytest.mark.parametrize("gate", gates())
def test_the_page_names_the_files_of_a_gate(gate: str) -> None:
    assert page().get(gate) == used_by(gate)


def test_the_page_names_no_other_gate() -> None:
    assert sorted(page()) == gates()


def test_names_are_found_in_all_their_forms(tmp_path: Path) -> None:
    file = tmp_path / "gate.py"
    file.write_text(
        'NAMES = ("topo.txt", "topo")\n'
        'OTHER = ("nvidia-smi", "-q")\n'
        'a = source.read(["x"], "tracking", f"status-{pid}.txt")\n'
        'b = source.read(["x"], f"{unit[\'id\']}.json", *NAMES)\n'
        'remedy = "Give the ib_port.json of a run."\n'
    )
    assert names_in(file) == {"topo.txt", "topo", "tracking", "status-<pid>.txt", "<unit>.json"}

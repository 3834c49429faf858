"""Every check the gates make, read from their code: the dictionaries CHECKS of the collection's modules and utils.

The files are parsed, not imported: a gate may need what is not installed here, and a list must not run anything.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from gpurack.errors import GpurackError

_PLACES = ("plugins/modules", "plugins/module_utils")


def checks_of(checkout: Path) -> dict[str, str]:
    """Return the sentence of every check by its name `<gate>.<fact>`, sorted. Raises GpurackError for a double one."""
    found: dict[str, str] = {}
    for place in _PLACES:
        for file in sorted((checkout / place).glob("*.py")):
            for name, sentence in checks_in(file):
                if name in found:
                    raise GpurackError(f"check {name}: described twice, also in {file}. Remove one of them.")
                found[name] = sentence
    return dict(sorted(found.items()))


def checks_in(file: Path) -> Iterator[tuple[str, str]]:
    """Return the checks a file describes. Raises GpurackError when its CHECKS is more than a dictionary of texts."""
    for node in ast.parse(file.read_text(encoding="utf-8"), str(file)).body:
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        if not (
            isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(target, ast.Name) and target.id == "CHECKS"
        ):
            continue
        for name, text in _items(node.value):
            if name is None or text is None:
                raise GpurackError(f"{file}: CHECKS on line {node.lineno} is no dictionary of plain texts. Write one.")
            yield name, text


def _items(node: ast.expr | None) -> Iterator[tuple[str | None, str | None]]:
    """Return the pairs of a dictionary of texts, None for what is no text. `**other.CHECKS` stands in its own file."""
    if not isinstance(node, ast.Dict):
        yield None, None
        return
    for key, value in zip(node.keys, node.values, strict=True):
        if key is not None:
            yield _text(key), _text(value)
        elif not (isinstance(value, ast.Attribute) and value.attr == "CHECKS"):
            yield None, None


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None

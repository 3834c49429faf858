# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reader of `mlxconfig -e query` and the comparison of its values with wanted ones. Pure."""

from __future__ import annotations

import dataclasses
import re

_ROW = re.compile(r"^\*?\s+([A-Z][A-Z0-9_]*(?:\[\d+\])?)\s+(\S.*?)\s*$")
_COLUMNS = ("Default", "Current", "Next Boot")
_NAMED = re.compile(r"^(.*?)\(([^()]*)\)$")
# mlxconfig takes names only in newer releases; the numbers work in all of them.
_NUMBERS = {"ib": "1", "eth": "2", "vpi": "3", "true": "1", "false": "0"}


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One parameter as the tool prints it. `current` is None when the tool did not print that column."""

    current: str | None
    next_boot: str


def parse_query(text: str) -> dict[str, Setting]:
    """Return the settings of one device by name; rows that do not fit the header are left out."""
    settings: dict[str, Setting] = {}
    columns: list[str] = []
    for line in text.splitlines():
        if line.lstrip().startswith("Configurations:"):
            columns = [name for name in _COLUMNS if name in line]
            continue
        match = _ROW.match(line) if columns else None
        if match is None:
            continue
        cells = match.group(2).split()
        if len(cells) == len(columns):
            values = dict(zip(columns, cells, strict=True))
            # Some releases print one column only, the value at work; it is then the next boot's too.
            current = values.get("Current")
            settings[match.group(1)] = Setting(current, values.get("Next Boot") or current or values["Default"])
    return settings


def forms(value: object) -> set[str]:
    """Return every way to write a value: `IB(1)` is ib and 1, 0xff is 255, true is 1."""
    text = str(value).strip().lower()
    match = _NAMED.match(text)
    words = {part.strip() for part in match.groups()} if match else {text}
    found = set(words)
    for word in words:
        found.add(_NUMBERS.get(word, word))
        if re.fullmatch(r"0x[0-9a-f]{1,16}|[0-9]{1,20}", word):
            found.add(str(int(word, 16 if word.startswith("0x") else 10)))
    return found


def same(one: object, other: object) -> bool:
    """Return whether two values mean the same setting."""
    return bool(forms(one) & forms(other))


def argument(value: object) -> str:
    """Return a value as `mlxconfig set` takes it."""
    text = str(value).strip()
    return _NUMBERS.get(text.lower(), text)

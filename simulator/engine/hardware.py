# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the engine takes from the node's hardware description: its speed and the faults that concern it.

The description is YAML and the engine has only the standard library, so this reads the two top-level sections it needs
(`engine:`, a flat mapping, and `faults:`, a list of strings) as PyYAML writes them, or the whole file when it is JSON.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

DESCRIPTION = Path("/var/lib/simhw/hw.yml")
_FAULT = re.compile(
    r"engine(?: (?P<unit>iu\d+))?: "
    r"(?:(?P<what>never answers|no token|not ready|crashes)|slow (?P<slow>[\d.]+) tokens/s)"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Speed:
    """The service-time model. One step costs prefill time plus one decode step that grows with the batch."""

    tokens_per_s: float = 60.0
    """Tokens a second of one sequence alone in the batch."""
    prefill_tokens_per_s: float = 20000.0
    batch_slowdown: float = 0.6
    """How much longer a step takes with a full batch than with one sequence: 0.6 is 60 % longer."""
    kv_blocks: int = 2048
    """KV cache blocks the engine has."""
    load_s: float = 0.3
    """Seconds from start to ready."""


def _scalar(text: str) -> Any:
    """Return a YAML scalar: number, boolean, null or string."""
    text = text.strip()
    if text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text[:1] == '"':
        return json.loads(text)
    if text in ("null", "~", ""):
        return None
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def parse(text: str) -> dict[str, Any]:
    """Return {"engine": {...}, "faults": [...]} of a hardware description."""
    if text.lstrip().startswith("{"):
        data = json.loads(text)
        return {"engine": data.get("engine") or {}, "faults": data.get("faults") or []}
    engine: dict[str, Any] = {}
    faults: list[str] = []
    section = ""
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line.startswith((" ", "-")):
            section, _sep, rest = line.partition(":")
            if section == "faults" and rest.strip().startswith("["):
                inner = rest.strip()[1:-1]
                faults = [
                    str(_scalar(item)) for item in re.findall(r"'(?:[^']|'')*'|\"[^\"]*\"|[^,]+", inner) if item.strip()
                ]
        elif section == "faults" and line.lstrip().startswith("- "):
            faults.append(str(_scalar(line.lstrip()[2:])))
        elif section == "engine" and re.match(r" +[A-Za-z_]+:", line):
            key, _sep, value = line.strip().partition(":")
            engine[key] = _scalar(value)
    return {"engine": engine, "faults": faults}


class Hardware:
    """The description on disk, read again when the file has changed (a fault may be set while the engine runs)."""

    def __init__(self, path: Path = DESCRIPTION, unit: str = "") -> None:
        """Watch a description; `unit` is this engine's IU ("node1-iu0"), for faults of one IU."""
        self._path = path
        self._unit = unit.rpartition("-")[2]
        self._stamp: tuple[int, int] | None = None
        self._data: dict[str, Any] = {"engine": {}, "faults": []}

    def _read(self) -> dict[str, Any]:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return {"engine": {}, "faults": []}
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._data = parse(self._path.read_text())
            self._stamp = stamp
        return self._data

    def speed(self) -> Speed:
        """Return the service-time model; keys the description lacks have the default."""
        names = {f.name for f in dataclasses.fields(Speed)}
        given: dict[str, Any] = {
            k: v for k, v in self._read()["engine"].items() if k in names and isinstance(v, int | float)
        }
        for match in self._faults():
            if match["slow"]:
                given["tokens_per_s"] = float(match["slow"])
        return Speed(**given)

    def _faults(self) -> list[re.Match[str]]:
        """Return the faults that concern this engine."""
        matches = [_FAULT.fullmatch(text) for text in self._read()["faults"]]
        return [m for m in matches if m and m["unit"] in (None, self._unit)]

    def fault(self) -> str:
        """Return "never answers", "no token", "not ready", "crashes" or ""."""
        return next((m["what"] for m in self._faults() if m["what"]), "")

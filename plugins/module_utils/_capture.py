# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One reader for a gate's commands: the live tool, a directory of captures, one file, or stored evidence of a gate."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import read_captured, run
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence


class Source:
    """Where a gate's readings come from; `used` collects them for the result."""

    def __init__(self, captured: str | None, timeout: float) -> None:
        """Run tools with this deadline in seconds, or read `captured` in their place."""
        self.captured = captured
        self.timeout = timeout
        self.used: list[Evidence] = []
        self._stored = _stored_evidence(captured) if captured else None

    @property
    def live(self) -> bool:
        """Whether tools are run on this host."""
        return self.captured is None

    @property
    def single_file(self) -> bool:
        """Whether there is only one captured text for all commands."""
        return self.captured is not None and self._stored is None and not Path(self.captured).is_dir()

    def read(self, argv: Sequence[str], *names: str, primary: bool = True) -> Evidence:
        """Return the reading of a command.

        `names` are the file names it may have in a directory of captures, best first. With one captured file only the
        `primary` command has a reading; the others say that they were not captured.
        """
        evidence = self._read(argv, names, primary)
        self.used.append(evidence)
        return evidence

    def _read(self, argv: Sequence[str], names: Sequence[str], primary: bool) -> Evidence:
        if self.captured is None:
            return run(argv, self.timeout)
        command = shlex.join(argv)
        if self._stored is not None:
            return self._stored.get(command) or _missing(command, f"no such reading in {self.captured}")
        if Path(self.captured).is_dir():
            name = next((n for n in names if (Path(self.captured) / n).is_file()), None)
            return (
                read_captured(self.captured, name)
                if name
                else _missing(command, f"{self.captured} holds none of {', '.join(names)}")
            )
        return (
            read_captured(self.captured)
            if primary
            else _missing(command, f"not in the one captured file {self.captured}")
        )


def _missing(command: str, reason: str) -> Evidence:
    return Evidence(f"captured {command}", None, "", "", None, reason)


def _stored_evidence(captured: str) -> dict[str, Evidence] | None:
    """Return the readings in a gate's evidence file by command, None when the file is not one."""
    try:
        data: Any = json.loads(Path(captured).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("gate"), str)
        or not isinstance(data.get("evidence"), list)
    ):
        return None
    readings: dict[str, Evidence] = {}
    for item in data["evidence"]:
        if isinstance(item, dict) and isinstance(item.get("command"), str) and isinstance(item.get("stdout"), str):
            rc, error = item.get("rc"), item.get("error")
            readings[item["command"]] = Evidence(
                item["command"],
                rc if isinstance(rc, int) else None,
                _text(item["stdout"]),
                _text(str(item.get("stderr") or "")),
                None,
                str(error) if error else None,
            )
    return readings


def _text(text: str) -> str:
    """Return text without lone surrogates, which JSON can hold and no file can."""
    return text.encode("utf-8", "replace").decode()


def refusal(evidence: Evidence) -> str | None:
    """Return why a reading cannot be judged at all (tool missing, late, or failed), None when it can."""
    if evidence.error:
        return f"{evidence.command}: {evidence.error}"
    if evidence.rc != 0:
        words = (evidence.stderr.strip() or evidence.stdout.strip()).splitlines()
        said = f": {words[0].strip()[:160]}" if words else ""
        return f"{evidence.command} ended with status {evidence.rc}{said}"
    return None

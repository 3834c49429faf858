# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One reader for a gate's commands: the live tool, a directory of captures, one file, or stored evidence of a gate."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shlex
from collections.abc import Sequence
from typing import Any, Literal

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import read_captured, run
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence, content_digest

BUDGET = 3
"""All commands of one Source together get this many times its deadline."""

# What a shell leaves in the file when the tool was never there: not a report of the tool, whatever the file is called.
_SHELL_ERROR = re.compile(
    r"(?:\S*/)?(?:ba|da|z|k|a)?sh:.{0,200}"
    r"(?:not found(?:: .{0,80})?|Permission denied|No such file or directory|cannot execute.{0,80})"
    r"|(?:sudo|env|timeout|nsenter|chroot): .{0,200}(?:command not found|No such file or directory)"
)


class Source:
    """Where a gate's readings come from; `used` collects them for the result."""

    def __init__(self, captured: str | None, timeout: float) -> None:
        """Run tools with this deadline in seconds, or read `captured` in their place."""
        self.captured = captured
        self.timeout = timeout
        self.used: list[Evidence] = []
        self._left = BUDGET * timeout
        self._stored = _stored_evidence(captured) if captured else None

    @property
    def live(self) -> bool:
        """Whether tools are run on this host."""
        return self.captured is None

    @property
    def single_file(self) -> bool:
        """Whether there is only one captured text for all commands, also when its stored evidence is judged again."""
        if self.captured is None:
            return False
        if self._stored is not None:
            return any(reading.captured == "file" for reading in self._stored)
        return not os.path.isdir(self.captured)

    def read(self, argv: Sequence[str], *names: str, primary: bool = True, needed: bool | None = None) -> Evidence:
        """Return the reading of a command.

        `names` are the file names it may have in a directory of captures, best first. With one captured file only the
        `primary` command has a reading; the others say that they were not captured. A command that is read more than
        once, for a difference over time, has another best name each time.

        The gate cannot pass without a reading that is `needed`, which is every primary one unless it is said otherwise.
        """
        command = shlex.join(argv)
        evidence = dataclasses.replace(
            self._read(argv, command, names, primary),
            stands_for=command,
            name=names[0] if names else "",
            needed=primary if needed is None else needed,
        )
        self.used.append(evidence)
        return evidence

    def _read(self, argv: Sequence[str], command: str, names: Sequence[str], primary: bool) -> Evidence:
        if self.captured is None:
            return self._run(argv, command)
        if self._stored is not None:
            return _find(self._stored, command, names) or _missing(command, f"no such reading in {self.captured}")
        if os.path.isdir(self.captured):
            found = _in_directory(self.captured, names)
            missing = _missing(command, f"{self.captured} holds none of {', '.join(names)}")
            return dataclasses.replace(found or missing, captured="directory")
        one = (
            read_captured(self.captured)
            if primary
            else _missing(command, f"not in the one captured file {self.captured}")
        )
        return dataclasses.replace(one, captured="file")

    def _run(self, argv: Sequence[str], command: str) -> Evidence:
        """Run a tool within what is left of the time for all of them: ten tools that hang must not take ten times."""
        if self._left <= 0 < self.timeout:
            used = (
                f"the commands of this gate have used {BUDGET * self.timeout:g} s, {BUDGET} times the deadline of one"
            )
            return Evidence(command, None, "", "", None, f"not started: {used}")
        evidence = run(argv, min(self.timeout, self._left) if self.timeout > 0 else self.timeout)
        self._left -= evidence.seconds or 0.0
        return evidence


def _missing(command: str, reason: str) -> Evidence:
    return Evidence(f"captured {command}", None, "", "", None, reason)


def _in_directory(directory: str, names: Sequence[str]) -> Evidence | None:
    """Return the first of the names that is there, with the exit status and error output kept beside it.

    What is there and cannot be read is an answer too: a file of a later name must not hide it.
    """
    for name in names:
        path = os.path.join(directory, name)
        file = next((n for n in (name, f"{name}.gz") if os.path.lexists(os.path.join(directory, n))), None)
        status = f"{path}.rc"
        if file is None and not os.path.lexists(status):
            continue
        found = read_captured(directory, file) if file else Evidence(f"captured {path}", 0, "")
        return _with_sidecars(found, path)
    return None


def _with_sidecars(found: Evidence, path: str) -> Evidence:
    """Add what `<name>.stderr` and `<name>.rc` say of a captured command."""
    if found.error is None and os.path.lexists(f"{path}.stderr"):
        stderr = read_captured(f"{path}.stderr")
        found = dataclasses.replace(found, stderr=stderr.stdout, error=stderr.error)
    if found.error is None and os.path.lexists(f"{path}.rc"):
        status = read_captured(f"{path}.rc")
        text = status.stdout.strip()
        if status.error is None and re.fullmatch(r"-?[0-9]{1,3}", text):
            return dataclasses.replace(found, rc=int(text))
        error = status.error or f"{path}.rc holds no exit status: {text[:80]!r}"
        return dataclasses.replace(found, rc=None, error=error)
    return found


def _stored_evidence(captured: str) -> list[Evidence] | None:
    """Return the readings in a gate's evidence file, None when the file is not one."""
    raw = read_captured(captured)
    if raw.error is not None or not raw.stdout.lstrip().startswith("{"):
        return None
    try:
        data: Any = json.loads(raw.stdout)
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(data, dict)
        or not isinstance(data.get("gate"), str)
        or not isinstance(data.get("evidence"), list)
    ):
        return None
    damaged = "digest" in data and not _whole(data)
    return [
        _stored_reading(item, damaged)
        for item in data["evidence"]
        if isinstance(item, dict) and isinstance(item.get("command"), str)
    ]


def _whole(data: dict[str, Any]) -> bool:
    try:
        return bool(data["digest"] == content_digest(data))
    except (ValueError, RecursionError):
        return False


def _stored_reading(item: dict[str, Any], damaged: bool) -> Evidence:
    """Return one reading of stored evidence; one that is not whole has an error."""
    rc, error, stdout = item.get("rc"), item.get("error"), item.get("stdout")
    problem = str(error) if error else None
    if damaged:
        problem = "the stored evidence does not match its own digest"
    if not isinstance(stdout, str):
        problem = problem or "its output is not stored here; give the file of the evidence directory"
    elif problem is None and isinstance(item.get("sha256"), str) and item["sha256"] != _digest(stdout):
        problem = "its stored output does not match its digest"
    elif problem is None and (not isinstance(rc, int) or isinstance(rc, bool)):
        problem = "its exit status is not stored"
    kind: Literal["", "file", "directory"] = ""
    if item.get("captured") == "file":
        kind = "file"
    elif item.get("captured") == "directory":
        kind = "directory"
    command = _text(item["command"])
    return Evidence(
        command,
        rc if isinstance(rc, int) and not isinstance(rc, bool) else None,
        _text(stdout if isinstance(stdout, str) else ""),
        _text(str(item.get("stderr") or "")),
        None,
        _text(problem) if problem else None,
        _text(str(item.get("stands_for") or "")) or command,
        _text(str(item.get("name") or "")),
        kind,
    )


def _find(stored: Sequence[Evidence], command: str, names: Sequence[str]) -> Evidence | None:
    """Return the stored reading of a command. Two that differ are no reading: neither is more true than the other."""
    same = [reading for reading in stored if reading.stands_for == command]
    named = [reading for reading in same if names and reading.name == names[0]]
    # Evidence stored before readings had names is found by its command alone.
    found = named or [reading for reading in same if not reading.name or not names]
    if not found:
        return None
    first = found[0]
    if any((r.rc, r.stdout, r.stderr, r.error) != (first.rc, first.stdout, first.stderr, first.error) for r in found):
        return dataclasses.replace(first, rc=None, error="two different readings of this command are stored")
    return first


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


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
    if evidence.captured:
        first = evidence.stdout.strip().partition("\n")[0].strip()
        if len(first) < 400 and _SHELL_ERROR.fullmatch(first):
            return f"{evidence.command} holds an error of the shell and no report: {first[:160]}"
    return None

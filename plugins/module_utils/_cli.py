# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The only place that runs tools and touches evidence files. Everything else in module_utils is pure."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import BLOCKING, Check, Evidence, result

GATE_ARGS: dict[str, dict[str, Any]] = {
    "captured": {"type": "path"},
    "evidence_dir": {"type": "path"},
    "enforce": {"type": "bool", "default": True},
    "timeout": {"type": "float", "default": 60.0},
}
"""Options every gate module takes; documented in the fragment ai_infra.gpu_rack.gate."""

_KILL_GRACE_S = 2.0


def run(
    argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> Evidence:
    """Run a tool in a session of its own with a deadline in seconds and return what it printed.

    Never raises for what a tool does: a missing tool, a time-out and a signal are in the evidence. A tool stuck in the
    kernel (D state) cannot be reaped, so after the deadline its process group is killed and left behind.
    """
    command = shlex.join(argv)
    if not (math.isfinite(timeout) and timeout > 0):
        return Evidence(command, None, "", "", None, f"not started: {timeout} is no deadline in seconds above 0")
    start = time.monotonic()
    environment = {**os.environ, "LC_ALL": "C", "PATH": _search_path(), **(env or {})}
    # Files, not pipes: a grandchild that keeps a pipe open must not be able to hang the reader.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                start_new_session=True,
            )
        except OSError as exc:
            return Evidence(command, None, "", "", time.monotonic() - start, f"could not start: {exc.strerror or exc}")
        error: str | None = None
        try:
            if stdin is not None and process.stdin is not None:
                with contextlib.suppress(BrokenPipeError):
                    process.stdin.write(stdin.encode())
                process.stdin.close()
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            error = f"still running after {timeout:g} s, killed"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILL_GRACE_S)
        seconds = time.monotonic() - start
        out.seek(0)
        err.seek(0)
        stdout, stderr = (f.read().decode("utf-8", "replace") for f in (out, err))
    return Evidence(command, None if error else process.returncode, stdout, stderr, seconds, error)


def _search_path() -> str:
    """Return PATH with the administrator's directories: a non-login ssh session often lacks them."""
    path = os.environ.get("PATH", "/usr/bin:/bin").split(":")
    return ":".join(
        [
            *path,
            *(
                d
                for d in ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")
                if d not in path
            ),
        ]
    )


def read_captured(path: str, name: str | None = None) -> Evidence:
    """Return stored output in place of a run: a file, or `name` inside a directory of captures."""
    file = Path(path) / name if name and Path(path).is_dir() else Path(path)
    try:
        text = file.read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError) as exc:  # ValueError: a NUL in the path
        return Evidence(f"captured {file}", None, "", "", None, f"could not read: {_why(exc)}")
    return Evidence(f"captured {file}", 0, text)


def write_json(path: Path, data: Any, mode: int = 0o600) -> None:
    """Write JSON so that a reader sees the old or the new file, never half of one; the mode is set before the data."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump(data, stream, indent=1, sort_keys=True)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _why(exc: OSError | ValueError) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)


def check_numbers(module: Any, positive: Sequence[str] = (), not_negative: Sequence[str] = ()) -> None:
    """Refuse options that are no finite number in range: a NaN limit compares as false, an infinite one lets all pass.

    Every gate's `timeout` is checked too. An option that is not given is left alone.
    """
    for name in (*positive, "timeout", *not_negative):
        value = module.params.get(name)
        if value is None:
            continue
        above = name not in not_negative
        finite = not isinstance(value, float) or math.isfinite(value)
        if not finite or value < 0 or (above and value == 0):
            allowed = "above 0" if above else "of 0 or more"
            module.fail_json(msg=f"{name}: {value} is not a finite number {allowed}. Use one.")


def fail_unwritten(
    module: Any, path: Path, exc: OSError | ValueError, outcome: Mapping[str, Any], changed: bool = False
) -> None:
    """Fail the task because a file could not be written, and still tell what was measured."""
    told = f"The verdict was {outcome['verdict']}: {outcome['summary']}"
    message = f"{path}: could not be written: {_why(exc)}. Correct the path or its file system. {told}"
    module.fail_json(msg=message, changed=changed, **outcome)


def finish_gate(
    module: Any,
    gate: str,
    checks: Sequence[Check],
    evidence: Sequence[Evidence],
    *,
    changed: bool = False,
    **extra: Any,
) -> None:
    """Store and return a gate's result. A blocking verdict fails the task unless O(enforce=false).

    `changed` is for the gate that also writes a file of its own (inference_units).

    Evidence is written in check mode too: it is a record of what was read, not a change to the node's configuration.
    """
    check_numbers(module)
    outcome = {**result(gate, checks, evidence), **extra}
    directory = module.params.get("evidence_dir")
    if directory:
        path = Path(directory) / f"{gate}.json"
        try:
            write_json(path, {**outcome, "time": time.time()})
        except (OSError, ValueError) as exc:
            fail_unwritten(module, path, exc, outcome, changed)
    # The raw outputs are on the node; the controller gets their digests, so that 128 nodes do not fill its memory.
    if directory:
        outcome["evidence"] = [
            {k: v for k, v in e.items() if k not in ("stdout", "stderr")} for e in outcome["evidence"]
        ]
    if outcome["verdict"] in BLOCKING and module.params["enforce"]:
        module.fail_json(msg=outcome["summary"], changed=changed, **outcome)
    module.exit_json(changed=changed, **outcome)

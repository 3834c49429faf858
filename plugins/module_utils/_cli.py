# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The only place that runs tools and touches evidence files. Everything else in module_utils is pure."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import gzip
import io
import itertools
import json
import math
import os
import re
import selectors
import shlex
import signal
import stat
import subprocess
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._decision import read_result
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import (
    BLOCKING,
    Check,
    Evidence,
    result,
    seal,
    unknown,
)

GATE_ARGS: dict[str, dict[str, Any]] = {
    "captured": {"type": "path"},
    "evidence_dir": {"type": "path"},
    "enforce": {"type": "bool", "default": True},
    "timeout": {"type": "float", "default": 60.0},
}
"""Options every gate module takes; documented in the fragment ai_infra.gpu_rack.gate."""

EARLIER: dict[str, str] = {
    "gpu_health": "gpu_health.growth",
    "ib_port": "ib_port.counters",
    "nvlink_status": "nvlink_status.growth",
    "xid": "xid.growth",
}
"""Gates with the option before, and the check that says when the earlier result cannot be used."""

MAX_OUTPUT_BYTES = 64 << 20
"""Largest output of a tool and largest captured file that is read. A whole `nvidia-smi -q` of 8 GPUs has 0.1 MiB."""

# Of a flood the beginning tells what it is; the rest would only fill the disk with evidence.
_KEPT_OF_FLOOD = 1 << 20
_KILL_GRACE_S = 2.0
_POLL_S = 0.05
_EARLIER_MARK = " before the load"


def run(
    argv: Sequence[str], timeout: float, env: Mapping[str, str] | None = None, stdin: str | None = None
) -> Evidence:
    """Run a tool in a session of its own with a deadline in seconds and return what it printed.

    Never raises for what a tool does: a missing tool, a time-out, a flood and a signal are in the evidence. Returns at
    the latest 2 s after the deadline: a tool stuck in the kernel (D state) cannot be reaped, so its process group is
    killed and left behind. A tool that prints more than MAX_OUTPUT_BYTES is killed; output lies in memory, not on disk.
    """
    command = shlex.join(argv)
    if not (math.isfinite(timeout) and timeout > 0):
        return Evidence(command, None, "", "", None, f"not started: {timeout} is no deadline in seconds above 0")
    start = time.monotonic()
    environment = {**os.environ, "LC_ALL": "C", "PATH": _search_path(), **(env or {})}
    # The input is a file, so that a tool which does not read it cannot make us wait.
    with tempfile.TemporaryFile() as given:
        if stdin is not None:
            given.write(stdin.encode())
            given.seek(0)
        try:
            process = subprocess.Popen(
                list(argv),
                stdin=given if stdin is not None else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as exc:  # ValueError: a NUL in an argument
            return Evidence(command, None, "", "", time.monotonic() - start, f"could not start: {_why(exc)}")
    outputs, error = _watch(process, start + timeout, timeout)
    if error:
        # A tool of another user cannot be killed by us; it is left behind like one that is stuck in the kernel.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_KILL_GRACE_S)
    seconds = time.monotonic() - start
    stdout, stderr = (output.decode("utf-8", "replace") for output in outputs)
    return Evidence(command, None if error else process.returncode, stdout, stderr, seconds, error)


def _watch(process: subprocess.Popen[bytes], deadline: float, timeout: float) -> tuple[list[bytes], str | None]:
    """Read both outputs until the process has ended; return them and why it must be killed, None when it ended.

    A pipe that a grandchild keeps open does not count: what is there when the tool itself has ended is its output.
    """
    streams = [stream for stream in (process.stdout, process.stderr) if stream is not None]
    outputs = [bytearray() for _unused in streams]
    error: str | None = None
    with selectors.DefaultSelector() as selector:
        for stream, output in zip(streams, outputs, strict=True):
            selector.register(stream, selectors.EVENT_READ, output)
        ended = False
        while error is None:
            left = deadline - time.monotonic()
            if left <= 0 and not ended:
                error = f"still running after {timeout:g} s, killed"
                break
            if not selector.get_map():
                # Both outputs are closed, so there is only its end to wait for.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(left)
                    break
                continue
            ready = selector.select(0 if ended else min(left, _POLL_S))
            for key, _unused in ready:
                chunk = os.read(key.fd, 1 << 16)
                if not chunk:
                    selector.unregister(key.fileobj)
                key.data.extend(chunk)
                if len(key.data) > MAX_OUTPUT_BYTES:
                    error = f"printed more than {MAX_OUTPUT_BYTES >> 20} MiB, killed"
                    del key.data[_KEPT_OF_FLOOD:]
            if ended and not ready:
                break
            ended = ended or process.poll() is not None
    for stream in streams:
        stream.close()
    return [bytes(output) for output in outputs], error


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
    """Return stored output in place of a run: a file, or `name` inside a directory of captures.

    Text as it comes from other machines is taken too: compressed by gzip, UTF-8 or UTF-16 with a byte order mark, lines
    ended by CR LF.
    """
    file = os.path.join(path, name) if name and os.path.isdir(path) else path
    try:
        raw = _read_file(file)
    except (OSError, ValueError, EOFError, zlib.error) as exc:  # ValueError: a NUL in the path
        return Evidence(f"captured {file}", None, "", "", None, f"could not read: {_why(exc)}")
    return Evidence(f"captured {file}", 0, _decode(raw))


def read_bytes(path: Path) -> bytes | None:
    """Return a file's bytes, None when it cannot be read: missing, no regular file, or larger than any evidence."""
    try:
        return _read_file(str(path), unpack=False)
    except (OSError, ValueError):
        return None


def _read_file(path: str, *, unpack: bool = True) -> bytes:
    """Return a regular file's content, decompressed. Raises ValueError for one that is too large or no regular file."""
    # Not blocking: opening a FIFO would wait for a writer that never comes.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise ValueError("it is not a file")
        # In pieces: the kernel makes a buffer as large as the read for a file of /proc/sys, and refuses a large one.
        raw = b"".join(itertools.islice(iter(lambda: stream.read(1 << 16), b""), MAX_OUTPUT_BYTES // (1 << 16) + 1))
    if unpack and raw.startswith(b"\x1f\x8b"):
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as unpacked:
            raw = unpacked.read(MAX_OUTPUT_BYTES + 1)
    if len(raw) > MAX_OUTPUT_BYTES:
        raise ValueError(f"it is larger than {MAX_OUTPUT_BYTES >> 20} MiB")
    return raw


def _decode(raw: bytes) -> str:
    encoding = "utf-16" if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    # The look behind keeps it linear: a file of carriage returns alone took hours.
    return re.sub("(?<!\r)\r+\n", "\n", raw.decode(encoding, "replace"))


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


def _why(exc: Exception) -> str:
    return (exc.strerror if isinstance(exc, OSError) else None) or str(exc)


def identity() -> dict[str, Any]:
    """Return which machine and boot this is and how long it is up: evidence of another one does not count here."""
    return {
        "machine_id": _first_line("/etc/machine-id"),
        "boot_id": _first_line("/proc/sys/kernel/random/boot_id"),
        "uptime": time.monotonic(),
    }


def _first_line(path: str) -> str | None:
    return read_captured(path).stdout.strip() or None


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


def _carried(module: Any, gate: str, directory: str | None) -> list[Check]:
    """Return what blocked in the result that this one replaces, when the option before names that very file.

    The second of two readings is stored over the first. What was wrong at rest and is gone under load, a link that
    came back, was wrong all the same.
    """
    before = module.params.get("before")
    if not before or not directory or gate not in EARLIER:
        return []
    path = os.path.join(directory, f"{gate}.json")
    if os.path.realpath(before) != os.path.realpath(path):
        return []
    earlier = read_result(gate, read_bytes(Path(path)), allow_captured=bool(module.params.get("captured")))
    if earlier.time is None:
        reason = f"{path}: {earlier.checks[0]['reason']}"
        return [unknown(EARLIER[gate], "earlier reading", reason, "Run both readings again in a new run.")]
    return [_marked(Check(**check)) for check in earlier.checks if check["verdict"] in BLOCKING]


def _marked(check: Check) -> Check:
    """Return a check of the earlier reading that says so; one that was carried before already does."""
    if check.subject.endswith(_EARLIER_MARK):
        return check
    reason = f"{check.reason} (so it was in the first reading, which this one replaced)"
    return dataclasses.replace(check, subject=f"{check.subject}{_EARLIER_MARK}", reason=reason)


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

    `changed` is for the gate that also writes a file of its own (inference_units). What blocked in an earlier result
    that this one replaces still blocks (option before).

    Evidence is written in check mode too: it is a record of what was read, not a change to the node's configuration.
    """
    check_numbers(module)
    directory = module.params.get("evidence_dir")
    outcome = {**result(gate, [*checks, *_carried(module, gate, directory)], evidence), **extra}
    if directory:
        path = Path(directory) / f"{gate}.json"
        try:
            write_json(path, seal({**outcome, "time": time.time(), **identity()}))
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

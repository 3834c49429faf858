# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The hardware description and the node's volatile state: the only place that reads or writes them.

Every tool call starts by reading the description, so the YAML is parsed once and kept as JSON next to the
identity (inode, size, times) of the file it came from; a call then costs a stat and a JSON parse.
"""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Hw = dict[str, Any]

HW_FILE = "/var/lib/simhw/hw.yml"
RUN_DIR = "/run/simhw"
_DIST_PACKAGES = "/usr/lib/python3/dist-packages"


class NoHardware(Exception):
    """There is no hardware description on this machine."""


def path(name: str) -> str:
    """A path of the node; SIMHW_ROOT moves all of them (tests)."""
    return os.environ.get("SIMHW_ROOT", "") + name


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:  # the launcher runs python with -S to start faster
        sys.path.append(_DIST_PACKAGES)
        import yaml
    return yaml


def parse_yaml(text: str) -> Any:
    yaml = _yaml()
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def dump_yaml(hw: Hw) -> str:
    yaml = _yaml()
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(hw, Dumper=dumper, sort_keys=False, width=120))


def load() -> Hw:
    """The description as written, faults not applied."""
    file = path(HW_FILE)
    try:
        st = os.stat(file)
    except FileNotFoundError:
        raise NoHardware(f"{file} is missing: this machine has no simulated hardware") from None
    key = [st.st_ino, st.st_size, st.st_mtime_ns, st.st_ctime_ns]
    cache = path(RUN_DIR + "/hw.json")
    try:
        with open(cache, encoding="utf-8") as f:
            kept = json.load(f)
        if kept["key"] == key:
            return dict(kept["hw"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with open(file, encoding="utf-8") as f:
        hw = parse_yaml(f.read())
    if not isinstance(hw, dict):
        raise NoHardware(f"{file} is not a hardware description (a YAML mapping)")
    try:
        os.makedirs(path(RUN_DIR), exist_ok=True)
        _write(cache, json.dumps({"key": key, "hw": hw}))
    except OSError:
        pass  # a read-only or foreign /run only costs speed
    return hw


def _write(file: str, text: str) -> None:
    temporary = f"{file}.{os.getpid()}"
    with open(temporary, "w", encoding="utf-8") as f:
        f.write(text)
    os.chmod(temporary, 0o644)  # engines and numactl of unprivileged units read it too
    os.replace(temporary, file)


@contextmanager
def _locked(name: str) -> Iterator[None]:
    with open(name, "a", encoding="utf-8") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def update(change: Callable[[Hw], None]) -> Hw:
    """Change the description under its lock, atomically."""
    with _locked(path("/var/lib/simhw/.lock")):
        hw = load()
        change(hw)
        _write(path(HW_FILE), dump_yaml(hw))
    return hw


def state() -> Hw:
    """What the running kernel and daemons hold: gone after a power cycle."""
    try:
        with open(path(RUN_DIR + "/state.json"), encoding="utf-8") as f:
            return dict(json.load(f))
    except (OSError, ValueError):
        return {}


def update_state(change: Callable[[Hw], None]) -> Hw:
    os.makedirs(path(RUN_DIR), exist_ok=True)
    with _locked(path(RUN_DIR + "/state.lock")):
        now = state()
        change(now)
        _write(path(RUN_DIR + "/state.json"), json.dumps(now))
    return now


def effective() -> Hw:
    """The description with its faults applied: what the tools see."""
    from simhw import faults

    return faults.effective(load())


def alive(pid: int) -> bool:
    return pid > 0 and os.path.exists(f"/proc/{pid}")

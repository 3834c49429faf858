# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What systemd says about a unit. All calls go through _cli.run, with a deadline."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterable

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import run

_PROPERTIES = "LoadState,ActiveState,UnitFileState,NeedDaemonReload,ExecMainStartTimestampMonotonic"


class UnitError(Exception):
    """systemd refused, was late or is not there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """A unit's state. `started` is the wall-clock time of its main process in seconds, None when it has none.

    `outdated` says that systemd has not read the unit file as it is now.
    """

    name: str
    loaded: bool
    active: bool
    enabled: bool
    outdated: bool
    started: float | None


def parse_unit(name: str, text: str, wall: float, monotonic: float) -> Unit:
    """Return the state from `systemctl show`. The start is counted back on the monotonic clock, which no one sets."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    microseconds = values.get("ExecMainStartTimestampMonotonic", "0")
    started = wall - (monotonic - int(microseconds) / 1e6) if microseconds.isdigit() and microseconds != "0" else None
    active = values.get("ActiveState") in ("active", "activating", "reloading")
    enabled = values.get("UnitFileState") in ("enabled", "enabled-runtime")
    return Unit(
        name, values.get("LoadState") == "loaded", active, enabled, values.get("NeedDaemonReload") == "yes", started
    )


def unit(name: str, timeout: float = 10.0) -> Unit:
    """Read a unit's state; raise UnitError when systemd does not answer."""
    evidence = run(["systemctl", "show", f"--property={_PROPERTIES}", name], timeout)
    if evidence.rc != 0:
        raise UnitError(
            f"systemctl show {name}: {evidence.error or evidence.stderr.strip() or f'exit status {evidence.rc}'}"
        )
    return parse_unit(name, evidence.stdout, time.time(), time.clock_gettime(time.CLOCK_MONOTONIC))


def systemctl(*words: str, timeout: float = 60.0) -> None:
    """Run one systemctl command; raise UnitError with systemd's own words when it fails."""
    evidence = run(["systemctl", *words], timeout)
    if evidence.rc != 0:
        raise UnitError(
            f"systemctl {' '.join(words)}: {evidence.error or evidence.stderr.strip() or f'exit status {evidence.rc}'}"
        )


def newest(paths: Iterable[str]) -> float:
    """Return the latest modification time of the files that exist, 0.0 when none does."""
    times = [0.0]
    for path in paths:
        try:
            times.append(os.stat(path).st_mtime)
        except FileNotFoundError:
            continue
    return max(times)


def stale(state: Unit, paths: Iterable[str]) -> bool:
    """Tell whether the running process is older than one of its files.

    This finds the restart that a killed controller still owed: the files are right, the process has never read them.
    """
    return state.active and state.started is not None and state.started < newest(paths)

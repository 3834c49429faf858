"""Runs a playbook through ansible-runner and hands its events on."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner

from gpurack.errors import GpurackError, Interrupted
from gpurack.project import playbook, program, root

Event = Mapping[str, Any]

# Ansible needs a moment to end its workers; then it is killed.
_GRACE = 10.0
_KEPT = 400
_PRIVATE = "gpurack-run-"
_ERROR = re.compile(r"^(?:\[ERROR\]:?|ERROR!|ansible-playbook: error:)\s*(.*)")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass
class Outcome:
    """How a playbook ended: ansible's exit code, the summary of the callback rack_summary, and the hosts it met."""

    code: int
    summary: dict[str, Any]
    hosts: set[str] = field(default_factory=set)


def run_playbook(name: str, inventory: Path, options: Sequence[str], on_event: Callable[[Event], None]) -> Outcome:
    """Run a playbook of the collection. `on_event` gets every event as ansible-runner delivers it.

    Raises GpurackError when no play ran, Interrupted after SIGINT, SIGTERM or SIGHUP, when ansible has ended too.
    Nothing is left behind but the evidence that the playbook itself stores: runner's own artifacts, which repeat module
    results, lie in a private directory that is removed.
    """
    ansible = program("ansible-playbook")
    hosts: set[str] = set()
    said: list[str] = []

    def handle(event: Event) -> bool:
        said[:] = [*said, *_CONTROL.sub("", str(event.get("stdout") or "")).splitlines()][-_KEPT:]
        if event.get("event") == "playbook_on_stats":
            hosts.update((event.get("event_data") or {}).get("processed") or ())
        on_event(event)
        return False

    _sweep()
    with tempfile.TemporaryDirectory(prefix=f"{_PRIVATE}{os.getpid()}-") as private:
        summary, pid_file, start = (Path(private) / part for part in ("summary.json", "pid", "bin/ansible-playbook"))
        child = [sys.executable, str(Path(__file__).with_name("child.py")), str(pid_file), str(os.getpid()), ansible]
        # First on the PATH: with its option `binary` ansible-runner would leave the playbook out of the command.
        start.parent.mkdir()
        start.write_text(f'#!/bin/sh\nexec {shlex.join(child)} "$@"\n')
        start.chmod(0o700)
        with _signals(pid_file) as stop:
            runner = ansible_runner.run(
                private_data_dir=private,
                project_dir=str(root()),
                playbook=str(playbook(name)),
                inventory=str(inventory),
                cmdline=shlex.join(options) or None,
                envvars={**_environment(start.parent), "GPU_RACK_SUMMARY_FILE": str(summary)},
                settings={"suppress_env_files": True, "suppress_output_file": True, "pexpect_timeout": 1},
                event_handler=handle,
                cancel_callback=stop.overdue,
                quiet=True,
            )
        if stop.name:
            _end_workers(private)
            raise Interrupted(stop.name)
        data = json.loads(summary.read_text()) if summary.exists() else {}
    if runner.rc and not hosts and not data.get("refused"):
        raise GpurackError(
            f"playbook {name} with inventory {inventory}: ansible ended with {runner.rc} before any task ran: "
            f"{_last_error(said)}"
        )
    return Outcome(int(runner.rc or 0), data, hosts)


def _sweep() -> None:
    """Remove what runs that were killed left behind: module results of the whole rack."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PRIVATE}*-*"):
        pid = path.name.removeprefix(_PRIVATE).partition("-")[0]
        if path.stat().st_uid == os.getuid() and pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(path, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class _Stop:
    """Set by a signal. Ansible is told at once, and killed by ansible-runner when it is overdue."""

    def __init__(self, pid_file: Path) -> None:
        self.name = ""
        self._pid_file = pid_file
        self._since = 0.0

    def signal(self, number: int, _frame: object) -> None:
        if not self.name:
            self.name, self._since = signal.Signals(number).name, time.monotonic()
        try:
            os.kill(int(self._pid_file.read_text()), signal.SIGTERM)
        except (FileNotFoundError, ProcessLookupError, ValueError):
            # Not started yet, or ended already; overdue() looks after the former.
            self._since = 0.0

    def overdue(self) -> bool:
        return bool(self.name) and time.monotonic() - self._since > _GRACE


@contextmanager
def _signals(pid_file: Path) -> Iterator[_Stop]:
    stop = _Stop(pid_file)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, stop.signal) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_workers(private: str) -> None:
    """End workers that ansible had only just started when it was told to stop, so that it could not tell them.

    They are known by the private directory in their environment. Where there is no /proc they end with their task.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 2
        for pid in _processes_of(private):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        while _processes_of(private) and time.monotonic() < deadline:
            time.sleep(0.05)


def _processes_of(private: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        # Processes of others cannot be read, and a process may end meanwhile.
        with suppress(OSError):
            if private.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def _environment(programs: Path) -> dict[str, str]:
    return {
        "ANSIBLE_CONFIG": str(root() / "ansible.cfg"),
        "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}",
        # ansible-runner turns it off where nobody says otherwise.
        "ANSIBLE_HOST_KEY_CHECKING": os.environ.get("ANSIBLE_HOST_KEY_CHECKING", "True"),
        # An inventory that cannot be read must not pass for one without hosts.
        "ANSIBLE_INVENTORY_UNPARSED_FAILED": "true",
        # Results of a whole rack are large, and runner empties those above a limit.
        "MAX_EVENT_RES": "100000000",
    }


def _last_error(said: Sequence[str]) -> str:
    """Return ansible's own error as one line: the last one it printed, with the lines that belong to it."""
    start = next((i for i in reversed(range(len(said))) if _ERROR.match(said[i])), None)
    if start is None:
        return next((line.strip() for line in reversed(said) if line.strip()), "it said nothing") + "."
    words = [_ERROR.sub(r"\1", said[start])]
    for line in said[start + 1 :]:
        if not line.strip() or line.startswith("["):
            break
        words.append(line)
    return " ".join(" ".join(words).split())

"""Runs a playbook through ansible-runner and hands its events on."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ansible_runner

from gpurack.errors import GpurackError
from gpurack.project import playbook, program, root

Event = Mapping[str, Any]


def run_playbook(
    name: str, inventory: Path, options: Sequence[str], on_event: Callable[[Event], None], log: Callable[[str], None]
) -> tuple[int, dict[str, Any]]:
    """Run a playbook of the collection and return ansible's exit code and the summary of the callback rack_summary.

    `on_event` gets every event as ansible-runner delivers it, `log` every line ansible printed. Nothing is left behind
    but the evidence that the playbook itself stores: runner's own artifacts, which repeat module results, are removed.
    """
    program("ansible-playbook")
    with tempfile.TemporaryDirectory(prefix="gpurack-") as private:
        summary = Path(private) / "summary.json"
        runner = ansible_runner.run(
            private_data_dir=private,
            project_dir=str(root()),
            playbook=str(playbook(name)),
            inventory=str(inventory),
            cmdline=" ".join(_quote(o) for o in options) or None,
            envvars={**_environment(), "GPU_RACK_SUMMARY_FILE": str(summary)},
            settings={"suppress_env_files": True},
            event_handler=lambda event: _handle(event, on_event, log),
            quiet=True,
        )
        if runner.status == "canceled":
            raise KeyboardInterrupt
        data = json.loads(summary.read_text()) if summary.exists() else {}
    if not data and runner.rc:
        raise GpurackError(
            f"playbook {name}: ansible ended with {runner.rc} before any play ran. Read its message above."
        )
    return int(runner.rc), data


def _handle(event: Event, on_event: Callable[[Event], None], log: Callable[[str], None]) -> bool:
    if event.get("stdout"):
        log(str(event["stdout"]))
    on_event(event)
    return False


def _environment() -> dict[str, str]:
    path = f"{Path(program('ansible-playbook')).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    return {"ANSIBLE_CONFIG": str(root() / "ansible.cfg"), "PATH": path}


def _quote(option: str) -> str:
    # ansible-runner splits its cmdline with shlex.
    return "'" + option.replace("'", "'\"'\"'") + "'"

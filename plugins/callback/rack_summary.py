# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Prints, at the end of a run, what each node came to."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rack_summary
type: aggregate
short_description: Says what each node of the rack came to
version_added: 0.1.0
description:
  - Prints a summary after the last play, also when every node failed. It holds each node's gates with the measured
    values, its IUs, and for a node that is out the step, the check, the value, the limit with its source, the reason
    and the next command to type.
  - Prints nothing for a run in which no module of this collection reported.
  - Stores the same as C(summary.json), with mode 0600, beside the decisions that the role
    P(ai_infra.gpu_rack.node_gate#role) fetches to the controller. The report of the run takes its times from there.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
requirements:
  - Enable it with C(callbacks_enabled = ai_infra.gpu_rack.rack_summary).
options:
  summary_file:
    description: A file to which the summary is also written as JSON, with mode 0600.
    type: path
    env:
      - name: GPU_RACK_SUMMARY_FILE
    ini:
      - section: callback_rack_summary
        key: summary_file
"""

import json
import os
import shlex
import time
from pathlib import Path
from typing import Any

from ansible import context
from ansible.plugins.callback import CallbackBase
from ansible_collections.ai_infra.gpu_rack.plugins.plugin_utils._summary import headline, out, render

_PREFIX = "ai_infra.gpu_rack."


class CallbackModule(CallbackBase):  # type: ignore[misc]
    """Collects the results of gate, membership and quarantine, and renders them once."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "ai_infra.gpu_rack.rack_summary"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        """Start with nothing known."""
        super().__init__()
        self._start = time.monotonic()
        self._ours = False
        self._playbook = ""
        self._inventory = ""
        self._steps: dict[str, float] = {}
        self._step = ""
        self._step_start = self._start
        self._refused: list[str] = []
        self._not_reached: list[str] = []
        self._nodes: dict[str, dict[str, Any]] = {}
        self._run = ""
        self._run_place: Path | None = None

    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Remember which playbook runs."""
        self._playbook = os.path.relpath(playbook._file_name)
        self._not_reached = [play.get_name() for play in playbook.get_plays()]

    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Close the step before and start the next."""
        self._close_step()
        # Ansible stops when every host of a play has failed, such as a lone server: the plays behind it never start.
        self._not_reached = self._not_reached[1:]
        self._step, self._step_start = play.get_name(), time.monotonic()
        sources = getattr(play.get_variable_manager()._inventory, "_sources", None) or []
        self._inventory = " ".join(f"-i {shlex.quote(_shorter(str(s)))}" for s in sources)

    def v2_runner_on_ok(self, result: Any) -> None:
        """Take what a gate decided and which units joined."""
        action, data = result.task.action, result.result
        if action == "ansible.builtin.fetch":
            self._find_run(str(data.get("dest") or ""))
        # A module that only reads decides nothing about a node.
        if not action.startswith(_PREFIX) or action.endswith("_info"):
            return
        self._ours = True
        self._take(self._node(result.host.get_name()), action, data)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Take why a node is out. The quarantine that follows a failure replaces it with the full reason."""
        if ignore_errors:
            return
        action, data = result.task.action, result.result
        if action.startswith(_PREFIX) and action.endswith("_info"):
            return
        if action == f"{_PREFIX}validate_inventory":
            self._ours = True
            self._refused = list(data.get("problems", ()))
            return
        host = result.host.get_name()
        node = self._node(host)
        self._take(node, action, data)
        if node["out"] is None or "quarantine" in data:
            task = result.task.get_name(include_role_fqcn=False)
            command = self._next_command(host, data.get("quarantine"))
            node["out"] = out("failed", self._step, task, data, command, node["out"])

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Take a host that does not answer, unless the playbook carries on with it on purpose."""
        if result.task.ignore_unreachable:
            return
        host = result.host.get_name()
        self._node(host)["out"] = out("unreachable", self._step, "ssh", result.result, self._next_command(host))

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the summary, and write it where it was asked for."""
        self._close_step()
        for host in stats.processed:
            if host in self._nodes or stats.failures.get(host) or stats.dark.get(host):
                node = self._node(host)
                node["changed"] = stats.changed.get(host, 0)
                if not stats.failures.get(host) and not stats.dark.get(host):
                    # What failed was rescued, as a role may do on purpose.
                    node["out"] = None
        summary = {
            "playbook": self._playbook,
            "seconds": time.monotonic() - self._start,
            "check": bool(context.CLIARGS.get("check")),
            "refused": self._refused,
            "steps": self._steps,
            "not_reached": self._not_reached,
            "nodes": self._nodes,
        }
        self.set_options()
        file = self.get_option("summary_file")
        if file:
            _store(Path(file), summary)
        if self._run_place and not summary["check"]:
            try:
                _store(self._run_place / "summary.json", summary)
            except OSError as exc:
                self._display.warning(
                    f"{self._run_place}: the summary was not stored: {exc}. The report lacks its times."
                )
        if self._ours or self._nodes:
            for line in render(summary):
                self._display.display(line)

    def _take(self, node: dict[str, Any], action: str, data: dict[str, Any]) -> None:
        if action == f"{_PREFIX}gate" and data.get("stage"):
            self._run = str(data.get("run") or "")
            node["gates"][data["stage"]] = {"verdict": data["verdict"], "headline": headline(data.get("checks", ()))}
        elif action == f"{_PREFIX}iu_membership":
            node["units"] = {unit["id"]: unit["state"] for unit in data.get("units", ())}

    def _find_run(self, fetched: str) -> None:
        """Learn where the run is kept from a decision that was fetched: <place>/<run>/<host>/<stage>.json."""
        place = Path(fetched).parent.parent
        if self._run and place.name == self._run:
            self._run_place = place

    def _node(self, host: str) -> dict[str, Any]:
        return self._nodes.setdefault(host, {"changed": 0, "gates": {}, "units": {}, "out": None})

    def _next_command(self, host: str, quarantine: Any = None) -> str:
        """Return the command that brings the host in again: the quarantine's own, or this playbook once more."""
        given = quarantine.get("next_command") if isinstance(quarantine, dict) else None
        command = str(given or f"ansible-playbook {self._playbook} --limit {host}")
        words = command.split()
        if words[:1] == ["ansible-playbook"] and self._inventory and not {"-i", "--inventory"} & set(words):
            command = command.replace("ansible-playbook", f"ansible-playbook {self._inventory}", 1)
            if context.CLIARGS.get("extra_vars"):
                # Not repeated here: they may hold a secret.
                command += "  # and the -e of this run"
        return command

    def _close_step(self) -> None:
        if self._step:
            self._steps[self._step] = self._steps.get(self._step, 0.0) + time.monotonic() - self._step_start


def _store(path: Path, summary: dict[str, Any]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as stream:
        json.dump(summary, stream)


def _shorter(path: str) -> str:
    """Return a path as one would type it here."""
    return min(path, os.path.relpath(path), key=len)

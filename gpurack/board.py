"""The live board: a row for each node with its step, its time and its verdict. Plain lines without a terminal.

Everything it shows comes from the events of ansible-runner; ansible's text is never parsed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

_PREFIX = "ai_infra.gpu_rack."
_STYLE = {
    "ok": "green",
    "failed": "red",
    "quarantined": "red",
    "unreachable": "red",
    "running": "cyan",
    "waiting": "dim",
}
_OUT = ("failed", "quarantined", "unreachable")
_LONGEST = 160


@dataclass
class Row:
    """What is known of one host. `since` and `until` are seconds since the start of the board."""

    step: str = ""
    task: str = ""
    state: str = "waiting"
    since: float = 0.0
    until: float | None = None
    verdict: str = ""
    note: str = ""


class Board:
    """Follows the events of one run. Use as a context manager; `live` chooses the table that redraws itself.

    `diff` also shows the differences that tasks report, `verbose` whatever ansible prints.
    """

    def __init__(
        self,
        console: Console,
        live: bool,
        diff: bool = False,
        verbose: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start with an empty board; rows appear with the first event of a host."""
        self.rows: dict[str, Row] = {}
        self._play = ""
        self._console = console
        self._clock = clock
        self._start = clock()
        self._diff = diff
        self._verbose = verbose
        self._live = Live(get_renderable=self.table, console=console, refresh_per_second=4) if live else None

    def __enter__(self) -> Self:
        """Show the board."""
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state of the board on the screen."""
        self._close_play()
        if self._live:
            self._live.__exit__(kind, value, trace)

    def event(self, event: Mapping[str, Any]) -> None:
        """Take one event of ansible-runner."""
        kind, data = str(event.get("event", "")), event.get("event_data") or {}
        host = str(data.get("host") or "")
        if self._verbose or (self._diff and kind == "runner_on_file_diff"):
            self._print_ansible(str(event.get("stdout") or ""), host if not self._verbose else "")
        if kind == "playbook_on_play_start":
            self._close_play()
            self._play = str(data.get("play") or data.get("name") or "")
            self._line(self._play)
        elif kind == "runner_on_start" and host:
            self._set(host, "running", data)
        elif kind in ("runner_on_ok", "runner_on_skipped") and host:
            self._set(host, "ok", data)
            if kind == "runner_on_ok":
                self._verdict(host, str(data.get("task_action") or ""), data.get("res") or {})
        elif kind == "runner_on_failed" and host and not data.get("ignore_errors"):
            self._failed(host, "failed", data)
        elif kind == "runner_on_unreachable" and host:
            self._failed(host, "unreachable", data)

    def table(self) -> Table:
        """Return the board as it is now."""
        title = f"{self._play}  {self._now():.0f} s" if self._play else "reading the inventory"
        table = Table(title=title, title_justify="left", expand=False)
        table.add_column("node", no_wrap=True)
        table.add_column("step", no_wrap=True, overflow="ellipsis", max_width=28)
        table.add_column("task", no_wrap=True, overflow="ellipsis", max_width=44)
        table.add_column("elapsed", no_wrap=True, justify="right")
        table.add_column("verdict", overflow="fold", min_width=12)
        for host, row in sorted(self.rows.items()):
            elapsed = (self._now() if row.until is None else row.until) - row.since
            text = f"{row.state}: {row.note}" if row.note else row.verdict or row.state
            table.add_row(
                Text(host), Text(row.step), Text(row.task), f"{elapsed:.0f} s", Text(text, style=_STYLE[row.state])
            )
        return table

    def _now(self) -> float:
        return self._clock() - self._start

    def _at(self, host: str, data: Mapping[str, Any]) -> Row:
        """Return the host's row, moved to the current step and task."""
        row = self.rows.setdefault(host, Row(since=self._now()))
        if row.step != self._play:
            row.step, row.since = self._play, self._now()
        if row.state not in _OUT:
            row.until = None
            row.task = str(data.get("task") or row.task)
        return row

    def _set(self, host: str, state: str, data: Mapping[str, Any]) -> None:
        row = self._at(host, data)
        # A failure stays visible: the rescue that follows it must not paint the row green.
        if row.state not in _OUT:
            row.state = state

    def _verdict(self, host: str, action: str, result: Mapping[str, Any]) -> None:
        """Take what a gate decided and which units joined."""
        row = self.rows[host]
        if action == f"{_PREFIX}gate" and result.get("stage"):
            row.verdict = f"{result['stage']} gate: {result.get('verdict')}"
        elif action == f"{_PREFIX}iu_membership" and result.get("units"):
            units = result["units"]
            good = sum(1 for unit in units if unit.get("state") == "passing")
            row.verdict = f"{good} of {len(units)} units take traffic"
        else:
            return
        self._line(f"  {host}: {row.verdict}")

    def _failed(self, host: str, state: str, data: Mapping[str, Any]) -> None:
        row = self._at(host, data)
        result = data.get("res") or {}
        quarantine = result.get("quarantine")
        if isinstance(quarantine, Mapping):
            row.state, row.note = "quarantined", _first_line(quarantine.get("reason"))
        elif row.state not in _OUT:
            row.state, row.note = state, _first_line(result.get("msg"))
        else:
            return
        row.until = self._now()
        self._line(f"  {host}: {row.state} at {row.task}: {row.note or 'no reason was given'}")

    def _close_play(self) -> None:
        """Stop the clocks of the step, and say how it went."""
        rows = [(host, row) for host, row in sorted(self.rows.items()) if self._play and row.step == self._play]
        for _host, row in rows:
            row.until = self._now() if row.until is None else row.until
        if rows:
            out = [host for host, row in rows if row.state in _OUT]
            lost = f", out: {' '.join(out)}" if out else ""
            seconds = self._now() - min(row.since for _host, row in rows)
            self._line(f"  {len(rows) - len(out)} of {len(rows)} hosts went through in {seconds:.0f} s{lost}")

    def _print_ansible(self, text: str, host: str) -> None:
        # Ansible writes to a pseudo terminal, which ends lines its own way.
        text = text.replace("\r\n", "\n").replace("\r", "")
        if text.strip():
            self._console.print(Text.from_ansi(f"{host}:\n{text.strip()}" if host else text), soft_wrap=True)

    def _line(self, text: str) -> None:
        if self._live is None:
            self._console.print(f"[{self._now():6.1f} s] {text}", markup=False, highlight=False, soft_wrap=True)


def _first_line(text: object) -> str:
    line = next((part.strip() for part in str(text or "").splitlines() if part.strip()), "")
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 1]}…"

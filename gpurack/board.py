"""The live board: a row for each node with its step, its time and its verdict. Plain lines without a terminal."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

_STYLE = {"ok": "green", "failed": "red", "unreachable": "red", "running": "cyan", "waiting": "dim"}


@dataclass
class Row:
    """What is known of one host."""

    step: str = ""
    task: str = ""
    state: str = "waiting"
    since: float = field(default_factory=time.monotonic)
    note: str = ""


class Board:
    """Follows the events of one run. Use as a context manager; `live` chooses the table that redraws itself."""

    def __init__(self, console: Console, live: bool) -> None:
        """Start with an empty board; rows appear with the first event of a host."""
        self.rows: dict[str, Row] = {}
        self._play = ""
        self._console = console
        self._start = time.monotonic()
        self._live = Live(get_renderable=self._table, console=console, refresh_per_second=4) if live else None

    def __enter__(self) -> Self:
        """Show the board."""
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Leave the last state of the board on the screen."""
        if self._live:
            self._live.__exit__(kind, value, trace)

    def event(self, event: Mapping[str, Any]) -> None:
        """Take one event of ansible-runner."""
        kind, data = event.get("event", ""), event.get("event_data") or {}
        host = data.get("host")
        if kind == "playbook_on_play_start":
            self._play = str(data.get("play") or data.get("name") or "")
            self._line(f"{self._play}")
        elif kind == "runner_on_start" and host:
            self._set(host, "running", data)
        elif kind in ("runner_on_ok", "runner_on_skipped") and host:
            self._set(host, "ok", data)
        elif kind in ("runner_on_failed", "runner_on_unreachable") and host and not data.get("ignore_errors"):
            self._set(host, "failed" if kind == "runner_on_failed" else "unreachable", data)
            self.rows[host].note = (
                str((data.get("res") or {}).get("msg", "")).splitlines()[0][:160] if data.get("res") else ""
            )
            self._line(f"{host}: {self.rows[host].state} at {data.get('task')}: {self.rows[host].note}")

    def _set(self, host: str, state: str, data: Mapping[str, Any]) -> None:
        row = self.rows.setdefault(host, Row())
        if row.step != self._play:
            row.step, row.since = self._play, time.monotonic()
            if state == "running":
                self._line(f"  {host}: {self._play}")
        row.task = str(data.get("task") or row.task)
        # A failure stays visible: the rescue that follows it must not paint the row green.
        if row.state not in ("failed", "unreachable"):
            row.state = state

    def _line(self, text: str) -> None:
        if self._live is None:
            self._console.print(
                f"[{time.monotonic() - self._start:6.1f} s] {text}", markup=False, highlight=False, soft_wrap=True
            )

    def _table(self) -> Table:
        table = Table(title=f"{self._play}  {time.monotonic() - self._start:.0f} s", title_justify="left", expand=False)
        for column in ("node", "step", "task", "elapsed", "verdict"):
            table.add_column(column, overflow="ellipsis", no_wrap=True)
        for host, row in sorted(self.rows.items()):
            elapsed = f"{time.monotonic() - row.since:.0f} s"
            table.add_row(host, row.step, row.task, elapsed, Text(row.note or row.state, style=_STYLE[row.state]))
        return table

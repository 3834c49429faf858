"""The rack's state as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

_STYLE = {"serving": "green", "passing": "green", "drained": "yellow", "degraded": "yellow", "maintenance": "yellow"}


def table(rack: Mapping[str, Any]) -> Table:
    """Return the table of what the module rack_status_info found."""
    total = f"{rack['units_passing']} of {rack['units_total']} IUs take traffic"
    shown = Table(
        title=f"The rack as Consul at {rack['address']} sees it",
        title_justify="left",
        caption=f"{total}. Gates: as measured when the last run ended.",
        caption_justify="left",
        show_lines=True,
    )
    shown.add_column("node", no_wrap=True)
    shown.add_column("state", no_wrap=True)
    shown.add_column("serf", no_wrap=True)
    shown.add_column("IUs", overflow="fold", min_width=24)
    shown.add_column("gates, or why not", overflow="fold", ratio=1)
    for node in rack["nodes"]:
        units = Text("\n").join(_unit(u) for u in node["units"]) if node["units"] else Text("-")
        why = [Text(node["reason"], style="red" if node["state"] != "drained" else "yellow")] if node["reason"] else []
        # The check that failed is in the reason already.
        gates = [
            Text(f"{stage} {text}")
            for stage, text in node["gates"].items()
            if not node["reason"] or text.partition(": ")[2] not in node["reason"] or ": " not in text
        ]
        shown.add_row(
            Text(node["name"]),
            _state(node["state"]),
            _state(node["serf"]),
            units,
            Text("\n").join([*why, *gates]),
        )
    return shown


def _unit(unit: Mapping[str, Any]) -> Text:
    where = f"{unit['address']}:{unit['port']}" if unit["address"] and unit["port"] else ""
    # Why a unit is not passing is in the node's reason.
    note = f" ({unit['note']})" if unit["state"] == "passing" else ""
    return Text(" ").join(part for part in (Text(unit["id"]), Text(where), _state(unit["state"]) + note) if part)


def _state(state: str) -> Text:
    return Text(state, style=_STYLE.get(state, "red"))

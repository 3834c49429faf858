# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a node has the versions of its rack and the values of its fleet. Pure functions."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, compare, unknown

CHECKS: dict[str, str] = {
    "fleet_consistency.rows": "The rows of facts can be read, and there is exactly one of the node.",
    "fleet_consistency.size": "Number of nodes of the same board that there are to compare with; alone is a warn, so "
    "are lost rows of earlier runs, and values need option min_nodes.",
    "fleet_consistency.version": "A version that other gates read (driver, firmware, VBIOS, library), held against the "
    "one that most nodes of the rack have.",
    "fleet_consistency.value": "A value that other gates measured, held against the median of the other nodes of the "
    "fleet with the margin of option max_below or the board profile.",
}

_TOO_LARGE = 1e18
"""No gate measures such a number. Means of such numbers would overflow."""
RACK_MAJORITY = "most nodes of the rack"


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """One measured number. `better` is "higher" or "lower"."""

    number: float
    unit: str
    better: str


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """What the gates found on one node. Only nodes of one board are compared; `problem` says why a row is of no use.

    `lost`: it is no node's row and stands for those of earlier runs that could not be read.
    """

    node: str
    rack: str
    board: str
    versions: Mapping[str, str]
    values: Mapping[str, Value]
    problem: str | None = None
    lost: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
    """How far below the median is too far (a share), how many nodes make a median, what another version is."""

    max_below: float
    source: str
    min_nodes: int = 3
    mixed_versions: Literal["fail", "warn"] = "fail"


def parse(text: str) -> tuple[list[Row], str | None]:
    """Return the rows in a JSON text and why it cannot be used. Rows of C(baseline) count for nodes without another."""
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        return [], f"not JSON ({str(exc)[:120]})"
    return rows_of(data)


def rows_of(data: Any) -> tuple[list[Row], str | None]:
    """Return the rows in a list, or in a dictionary with C(rows) and perhaps C(baseline)."""
    current, baseline = (data.get("rows"), data.get("baseline")) if isinstance(data, dict) else (data, None)
    if not isinstance(current, list) or not isinstance(baseline, list | None):
        return [], "it is no list of rows"
    rows = [_row(entry) for entry in current]
    names = [row.node for row in rows]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        return [], f"there are two rows of {', '.join(twice)}"
    return rows + [row for entry in baseline or () if (row := _row(entry)).node not in names], None


def _row(entry: Any) -> Row:
    """Return a row; one that is not in order has a problem and no facts."""
    if isinstance(entry, dict) and set(entry) == {"problem"} and isinstance(entry["problem"], str):
        return Row("", "", "", {}, {}, entry["problem"][:400], lost=True)
    name = entry.get("node") if isinstance(entry, dict) else None
    if not isinstance(name, str) or not name:
        return Row("", "", "", {}, {}, f"a row without a node: {str(entry)[:80]}")
    rack, board = str(entry.get("rack") or ""), str(entry.get("board") or "")
    fleet = entry.get("fleet")
    versions = fleet.get("versions", {}) if isinstance(fleet, dict) else None
    values = fleet.get("values", {}) if isinstance(fleet, dict) else None
    if not isinstance(versions, dict) or not isinstance(values, dict):
        return Row(name, rack, board, {}, {}, f"the row of {name} has no versions and values")
    read = {}
    for fact, value in values.items():
        number = _value(value)
        if number is None:
            return Row(name, rack, board, {}, {}, f"{name}: {fact} is {str(value)[:80]}, which is no value")
        read[str(fact)] = number
    for fact, text in versions.items():
        if not isinstance(text, str) or not text:
            return Row(name, rack, board, {}, {}, f"{name}: {fact} is {str(text)[:80]!r}, which is no version")
    return Row(name, rack, board, {str(fact): text for fact, text in versions.items()}, read)


def _value(value: Any) -> Value | None:
    if not isinstance(value, dict) or value.get("better") not in ("higher", "lower"):
        return None
    number, unit = value.get("value"), value.get("unit", "")
    if isinstance(number, bool) or not isinstance(number, int | float) or not isinstance(unit, str):
        return None
    try:
        real = float(number)
    except OverflowError:
        return None
    return Value(real, unit, value["better"]) if 0 <= real < _TOO_LARGE else None


def judge(reading: Evidence, node: str | None, rules: Rules) -> list[Check]:
    """Return the checks of one node, of every node in the rows without a name."""
    remedy = "Give the rows as the filter fleet_rows makes them."
    if reading.error or reading.rc != 0:
        return [unknown("fleet_consistency.rows", node or "rows", f"{reading.command}: {reading.error}", remedy)]
    rows, problem = parse(reading.stdout)
    if problem is None and all(row.lost for row in rows):
        problem = "; ".join(["there is no row", *(f"not counted: {row.problem}" for row in rows)])
    if problem is not None:
        return [unknown("fleet_consistency.rows", node or "rows", problem, remedy)]
    if node is not None:
        return judge_node(rows, node, rules)
    nameless = [
        unknown("fleet_consistency.rows", "rows", str(row.problem), remedy)
        for row in rows
        if not row.node and not row.lost
    ]
    return nameless + [check for row in rows if row.node for check in judge_node(rows, row.node, rules)]


def judge_node(rows: Sequence[Row], node: str, rules: Rules) -> list[Check]:
    """Judge one node against the others of its board."""
    mine = next((row for row in rows if row.node == node), None)
    if mine is None or mine.problem:
        reason = str(mine.problem) if mine else f"there is no row of {node}"
        return [unknown("fleet_consistency.rows", node, reason, "See whether the gates ran on this node.")]
    others = [row for row in rows if row is not mine and not row.problem and row.board == mine.board]
    rack = [row for row in others if row.rack == mine.rack]
    checks = []
    for fact in sorted({*mine.versions, *(fact for row in rack for fact in row.versions)}):
        checks += _version(fact, mine, rack, rules)
    few = 0
    # Only what this node has: one that is alone in its run measures nothing between nodes. That a gate measured what it
    # must is that gate's own verdict.
    for fact in sorted(mine.values):
        judged = _value_check(fact, mine.values[fact], mine, others, rules)
        if judged is None:
            few += 1
        else:
            checks.append(judged)
    broken = [row for row in rows if row.problem]
    return [_size(mine, others, len(checks), few, broken, rules), *checks]


def _size(mine: Row, others: Sequence[Row], compared: int, few: int, broken: Sequence[Row], rules: Rules) -> Check:
    """Say how many nodes were compared, so that a node that had nobody to compare with is not taken for an even one."""
    name, count = "fleet_consistency.size", len(others) + 1
    source = "option min_nodes"
    notes = "".join(f"; not counted: {row.problem}" for row in broken)
    if not mine.versions and not mine.values:
        return unknown(name, mine.node, f"its row holds no fact to compare{notes}", "See whether its gates ran.")
    if count == 1:
        reason = f"no other node of its board to compare with, so nothing was compared{notes}"
        remedy = "Run the gate on the next node as well; this one is compared then."
        return Check(name, mine.node, "warn", reason, 1, rules.min_nodes, "nodes", source, remedy)
    if not compared and not few:
        return unknown(name, mine.node, f"no other node has a fact of this one{notes}", "See whether their gates ran.")
    left = f", {few} values left out, of which fewer than {rules.min_nodes} nodes have one" if few else ""
    reason = f"nodes of the board that were compared, {compared} facts{left}{notes}"
    if any(row.lost for row in broken):
        remedy = "Put the file of earlier runs back, or run the gate on all nodes, which writes it again."
        return Check(name, mine.node, "warn", reason, count, rules.min_nodes, "nodes", source, remedy)
    return Check(name, mine.node, "pass", reason, count, rules.min_nodes, "nodes", source)


def _version(fact: str, mine: Row, rack: Sequence[Row], rules: Rules) -> list[Check]:
    """Hold a version against the one that most nodes of the rack have, this one among them."""
    name, subject = "fleet_consistency.version", f"{mine.node} {fact}"
    having = [row for row in rack if fact in row.versions]
    if fact not in mine.versions:
        if 2 * len(having) <= len(rack):
            return []
        reason = f"{len(having)} of {len(rack)} other nodes of the rack have it, this one does not"
        remedy = "Run the gate on all nodes of the rack with one release of the collection."
        return [unknown(name, subject, reason, remedy, _groups(having, fact), RACK_MAJORITY)]
    if not having:
        return []
    groups: dict[str, list[str]] = {}
    for row in (mine, *having):
        groups.setdefault(row.versions[fact], []).append(row.node)
    most = max(len(nodes) for nodes in groups.values())
    leading = [text for text, nodes in groups.items() if len(nodes) == most]
    found, shown = mine.versions[fact], _groups((mine, *having), fact)
    remedy = f"Bring {mine.node} to the rack's version, or the rack to this one, in the inventory's pins."
    mixed = len(groups) > 1
    if mixed and rules.mixed_versions == "warn":
        reason = f"the rack has {shown}, which option mixed_versions allows"
        return [Check(name, subject, "warn", reason, found, " or ".join(leading), "", RACK_MAJORITY, remedy)]
    if len(leading) > 1 and found in leading:
        reason = f"as many nodes have the one as the other, so it cannot be told which is right: {shown}"
        return [Check(name, subject, "unknown", reason, found, " or ".join(leading), "", RACK_MAJORITY, remedy)]
    reason = f"on {most} of {len(having) + 1} nodes" if not mixed else f"the rack has {shown}"
    limit = " or ".join(leading)
    good = found in leading
    return [compare(name, subject, found, limit, ok=good, limit_source=RACK_MAJORITY, reason=reason, remedy=remedy)]


def _groups(rows: Sequence[Row], fact: str) -> str:
    """Return who has which version, the most frequent first."""
    groups: dict[str, list[str]] = {}
    for row in rows:
        groups.setdefault(row.versions[fact], []).append(row.node)
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    return "; ".join(f"{text} on {_some(nodes)}" for text, nodes in ordered)


def _some(nodes: Sequence[str]) -> str:
    names = sorted(nodes)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _value_check(fact: str, own: Value, mine: Row, others: Sequence[Row], rules: Rules) -> Check | None:
    """Hold a value against the median of the other nodes; None when too few have it.

    Of the others, not of all: a node must not be its own yardstick. Where two of four are slow alike, the median of all
    four lies half-way down and lets both pass; that of the other three does not.
    """
    name, subject = "fleet_consistency.value", f"{mine.node} {fact}"
    having = [row.values[fact] for row in others if fact in row.values]
    if len(having) + 1 < rules.min_nodes:
        return None
    if any((value.unit, value.better) != (own.unit, own.better) for value in having):
        reason = f"the nodes give it in different units: {', '.join(sorted({v.unit for v in (own, *having)}))}"
        return unknown(name, subject, reason, "Run the gate on all nodes with one release of the collection.")
    median = statistics.median(value.number for value in having)
    sign = -1 if own.better == "higher" else 1
    limit = median * (1 + sign * rules.max_below)
    # Rounding must not fail a node that is at the limit.
    slack = 1e-9 * abs(limit)
    good = own.number >= limit - slack if own.better == "higher" else own.number <= limit + slack
    off = f"{(own.number / median - 1) * 100:+.1f} %" if median else f"{own.number:g}"
    reason = f"{off} against the median {median:g} of {len(having)} other nodes ({own.better} is better)"
    return compare(
        name,
        subject,
        own.number,
        round(limit, 6),
        ok=good,
        unit=own.unit,
        limit_source=f"{rules.max_below * 100:g} % off the median of the other nodes ({rules.source})",
        reason=reason,
        remedy="It lags behind its peers: compare clocks, links and firmware with those of a good node.",
    )

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What lets an inference unit in and what keeps it out.

Standard library only, no Ansible: the probe on the node runs this very file. The functions that take a path read the
node's own files, the others are pure.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

STATE_DIR = Path("/var/lib/gpu_rack")
STAGES = ("hardware", "serving")
SERVICE = "vllm"
KV_PREFIX = "gpu_rack"


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """One reason why a unit may not pass: `what` is the file or fact, `reason` says it for people."""

    what: str
    reason: str


def read_json(path: Path) -> Any:
    """Return the decoded file, None when it does not exist.

    An unreadable file raises ValueError: it must not pass for absent.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as exc:
        raise ValueError(f"{path}: cannot be read ({exc})") from exc


def identity(root: Path = Path("/")) -> dict[str, str]:
    """Return the machine id and the boot id of this installation; a part that cannot be read is an empty string."""
    return {
        name: _word(root / path)
        for name, path in (("machine_id", "etc/machine-id"), ("boot_id", "proc/sys/kernel/random/boot_id"))
    }


def _word(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""


def refusals(state_dir: Path, me: Mapping[str, str], now: float, max_age: float | None = None) -> list[Refusal]:
    """Return every reason in the node's state directory against passing, worst first: hold, quarantine, gates.

    `max_age` in seconds bounds the age of the gates' decisions; None accepts any age, for the probe of a unit that has
    long joined. A file that is there and cannot be read refuses, whatever it holds.
    """
    found = [r for r in (_hold(state_dir), _quarantine(state_dir)) if r is not None]
    for stage in STAGES:
        refusal = _gate(state_dir / "gate" / f"{stage}.json", stage, me, now, max_age)
        if refusal is not None:
            found.append(refusal)
    return found


def _hold(state_dir: Path) -> Refusal | None:
    path = state_dir / "hold.json"
    try:
        hold = read_json(path)
    except ValueError as exc:
        return Refusal("hold", str(exc))
    if hold is None:
        return None
    fields = hold if isinstance(hold, dict) else {}
    by = fields.get("by") or fields.get("user") or "a person"
    why = fields.get("reason") or "no reason given"
    return Refusal("hold", f"held by {by}: {why} ({path})")


def _quarantine(state_dir: Path) -> Refusal | None:
    try:
        entry = read_json(state_dir / "quarantine.json")
    except ValueError as exc:
        return Refusal("quarantine", str(exc))
    if entry is None:
        return None
    fields = entry if isinstance(entry, dict) else {}
    return Refusal(
        "quarantine",
        f"quarantined in stage {fields.get('stage', 'unknown')}: {fields.get('reason', 'no reason recorded')}",
    )


def _gate(path: Path, stage: str, me: Mapping[str, str], now: float, max_age: float | None) -> Refusal | None:
    what = f"gate {stage}"
    try:
        decision = read_json(path)
    except ValueError as exc:
        return Refusal(what, str(exc))
    if decision is None:
        return Refusal(what, f"the {stage} gate has not run on this installation ({path} is missing)")
    if not isinstance(decision, dict) or decision.get("verdict") not in ("pass", "warn"):
        verdict = decision.get("verdict", "unknown") if isinstance(decision, dict) else "unknown"
        summary = decision.get("summary", "") if isinstance(decision, dict) else ""
        return Refusal(what, f"the {stage} gate says {verdict}" + (f": {summary}" if summary else ""))
    for part, since in (("machine_id", "reinstalled"), ("boot_id", "rebooted")):
        recorded, mine = decision.get(part), me.get(part)
        # A part that is missing on either side proves nothing, so it refuses like one that differs.
        if not recorded or recorded != mine:
            return Refusal(
                what,
                f"the {stage} gate judged {part} {recorded or 'none'}, this is {mine or 'unknown'}: "
                f"{since} since, not proven again",
            )
    if max_age is None:
        return None
    taken = decision.get("time")
    if not isinstance(taken, (int, float)):
        return Refusal(what, f"the {stage} gate's decision carries no time")
    if now - taken > max_age:
        return Refusal(what, f"the {stage} gate's decision is {now - taken:.0f} s old, limit {max_age:.0f} s")
    if taken - now > max_age:
        return Refusal(what, f"the {stage} gate's decision is {taken - now:.0f} s in the future: the clock is wrong")
    return None


def read_entry(path: Path) -> dict[str, Any] | None:
    """Return a state file for showing; one that cannot be read is shown as such, since it counts as a refusal."""
    try:
        entry = read_json(path)
    except ValueError as exc:
        return {"reason": str(exc)}
    return entry if entry is None or isinstance(entry, dict) else {"reason": f"{path}: not an object"}


def gates_before_quarantine(state_dir: Path) -> list[Refusal]:
    """Return a refusal for each gate that decided before the node was quarantined: it has not seen the repair."""
    quarantine = read_entry(state_dir / "quarantine.json")
    if quarantine is None:
        return []
    since = quarantine.get("time")
    refused = []
    for stage in STAGES:
        taken = (read_entry(state_dir / "gate" / f"{stage}.json") or {}).get("time")
        if not isinstance(since, (int, float)) or not isinstance(taken, (int, float)) or taken < since:
            reason = (
                f"the {stage} gate has not passed since the quarantine in stage {quarantine.get('stage', 'unknown')}"
            )
            refused.append(Refusal(f"gate {stage}", reason))
    return refused


def headlines(state_dir: Path) -> dict[str, Any]:
    """Return each gate's verdict and, for each kind of check, the measured value or the range over its subjects."""
    found: dict[str, Any] = {}
    for stage in STAGES:
        decision = read_entry(state_dir / "gate" / f"{stage}.json") or {}
        found[stage] = {"verdict": decision.get("verdict", "unknown"), "measured": measured(decision.get("checks"))}
    return found


def measured(checks: Any) -> dict[str, str]:
    """Return check name -> value with unit, or lowest..highest where subjects differ.

    Values that are no numbers are listed.
    """
    values: dict[str, list[Any]] = {}
    units: dict[str, str] = {}
    for check in checks if isinstance(checks, list) else []:
        if isinstance(check, dict) and check.get("value") is not None:
            values.setdefault(str(check["check"]), []).append(check["value"])
            units[str(check["check"])] = str(check.get("unit") or "")
    lines = {}
    for name, seen in values.items():
        numbers = [v for v in seen if isinstance(v, (int, float)) and not isinstance(v, bool)]
        if len(numbers) == len(seen):
            low, high = min(numbers), max(numbers)
            text = f"{low:g}" if low == high else f"{low:g}..{high:g}"
        else:
            text = ", ".join(sorted({str(v) for v in seen}))
        lines[name] = f"{text} {units[name]}".strip()
    return lines


def check_id(unit: str) -> str:
    """Return the id of the TTL check of a unit."""
    return f"iu:{unit}"


def gpu_indices(unit: Mapping[str, Any]) -> str:
    """Return the GPU indices of a unit as Consul metadata, which holds text only."""
    return ",".join(str(gpu["index"]) for gpu in unit["gpus"])


def _numa_nodes(unit: Mapping[str, Any]) -> list[int]:
    """Return the NUMA nodes of a unit, several where numa_node is null; empty when they cannot be read."""
    node = unit.get("numa_node")
    nodes = unit.get("numa_nodes") if node is None else [node]
    return nodes if isinstance(nodes, list) and all(isinstance(n, int) for n in nodes) else []


def service_definition(
    unit: Mapping[str, Any], *, board: str, model: str, address: str, ttl: float, service: str = SERVICE
) -> dict[str, Any]:
    """Return the Consul service of a unit, without its token. The check is born critical: nothing has been proven yet.

    Not deregistered when critical: the entry is where a person reads why the unit is out, and the file would bring it
    back at the next agent start anyway.
    """
    definition: dict[str, Any] = {
        "id": unit["id"],
        "name": service,
        "tags": ["iu"],
        "port": unit["port"],
        "meta": {
            "board": board,
            "gpus": gpu_indices(unit),
            "model": model,
            "numa": ",".join(map(str, _numa_nodes(unit))),
            "ttl": f"{ttl:g}s",
        },
        "checks": [
            {
                "id": check_id(unit["id"]),
                "name": "a token was generated",
                "notes": "Set by gpu-rack-probe, which asks the engine for a token.",
                "ttl": f"{ttl:g}s",
                "status": "critical",
            }
        ],
    }
    if address:
        definition["address"] = address
    return definition


def unit_problems(units: Any) -> list[str]:
    """Return what is wrong with a list of units, one line each; empty when they can be registered."""
    if not isinstance(units, list) or not units:
        return ["units: no inference unit is described"]
    lines = []
    seen: set[str] = set()
    for number, unit in enumerate(units):
        name = unit.get("id") if isinstance(unit, dict) else None
        if not isinstance(unit, dict) or not isinstance(name, str) or not name or "/" in name:
            lines.append(f"units[{number}]: no usable id")
            continue
        if name in seen:
            lines.append(f"{name}: described twice")
        seen.add(name)
        if not isinstance(unit.get("port"), int) or not 0 < unit["port"] < 65536:
            lines.append(f"{name}: port {unit.get('port')!r}")
        if not _numa_nodes(unit):
            lines.append(f"{name}: numa_node {unit.get('numa_node')!r}")
        gpus = unit.get("gpus")
        if (
            not isinstance(gpus, list)
            or not gpus
            or not all(isinstance(g, dict) and isinstance(g.get("index"), int) for g in gpus)
        ):
            lines.append(f"{name}: gpus {gpus!r}")
    return lines


def passing(entries: Sequence[Mapping[str, Any]], unit: str) -> tuple[bool, str]:
    """Judge the answer of /v1/health/service for one unit: passing needs every check, of the service and of its node.

    A dead agent leaves its services' checks as they were; only serfHealth tells, so both are read (consul 1790, 3734).
    """
    for entry in entries:
        if entry.get("Service", {}).get("ID") != unit:
            continue
        checks = entry.get("Checks", [])
        bad = [c for c in checks if c.get("Status") != "passing"]
        if bad:
            return False, "; ".join(
                f"{c.get('CheckID')} {c.get('Status')}: {(c.get('Output') or '').strip() or 'no output'}" for c in bad
            )
        if not any(c.get("CheckID") == "serfHealth" for c in checks):
            return False, "the node has no serfHealth check"
        if not any(c.get("CheckID") == check_id(unit) for c in checks):
            return False, "the token check is not in the catalog"
        return True, "passing"
    return False, "not in the catalog"

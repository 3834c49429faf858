# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Judge one inference unit from its systemd state, its journal and a probe's reading. Pure functions, no I/O."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._token_probe import Reading, from_dict, judge
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, unknown

CHECK = "token_probe.token"
CHECKS: dict[str, str] = {
    "token_probe.token": (
        "Seconds until the unit's engine made a real token, held against the option max_seconds; a unit that is not "
        "active or answers without a token fails, and one whose state from systemd is not whole is unknown."
    ),
}
PROPERTIES = "ActiveState,SubState,Result,ExecMainStatus,NRestarts"
_WEIGHTS = re.compile(r"^(?P<file>.+): FAILED(?P<unread> open or read)?$", re.M)
_SYSTEMD = re.compile(r"vllm@\S+\.service: |(Starting|Started|Stopping|Stopped|Failed to start|Failed to attach) |-- ")
_UNIT_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_ADDRESS = re.compile(r"[A-Za-z0-9:](?:[A-Za-z0-9.:%_-]{0,252})")
_JUDGED = ("ActiveState", "SubState", "Result", "NRestarts")
_STATES = frozenset(
    {"active", "reloading", "inactive", "failed", "activating", "deactivating", "maintenance", "refreshing"}
)
_RESTARTS = re.compile(r"[0-9]{1,9}")
_JOURNAL_LINES = 3
_LINE_CHARS = 200


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What systemd says about a unit."""

    active: str
    sub: str
    result: str
    restarts: int | None

    @property
    def serving(self) -> bool:
        """Whether the unit has finished its start, readiness included."""
        return self.active == "active"

    @property
    def starting(self) -> bool:
        """Whether the first start is still going on. Waiting for another try after a failure is not starting."""
        return self.active in ("activating", "reloading") and self.sub != "auto-restart" and not self.restarts

    def __str__(self) -> str:
        """Return the state as people write it: "failed (exit-code, 3 restarts)"."""
        details = [w for w in (self.sub, self.result if self.result != "success" else "") if w and w != self.active]
        details += [f"{self.restarts} restarts"] if self.restarts else []
        return f"{self.active} ({', '.join(details)})" if details else self.active


def _values(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def state_problem(text: str) -> str | None:
    """Return why the answer of `systemctl show` is not whole: cut off, it hides restarts and a failed start."""
    values = _values(text)
    missing = [name for name in _JUDGED if not values.get(name)]
    if missing:
        return f"systemd's answer is not whole, it lacks {', '.join(missing)}"
    if not _RESTARTS.fullmatch(values["NRestarts"]):
        return f"systemd's answer cannot be read: NRestarts={values['NRestarts'][:_LINE_CHARS]}"
    return None if text.endswith("\n") else "systemd's answer is cut off, it does not end in a newline"


def parse_state(text: str) -> State | None:
    """Return the state from `systemctl show`, None when the text has none."""
    values = _values(text)
    if values.get("ActiveState") not in _STATES:
        return None
    restarts = values.get("NRestarts", "")
    number = int(restarts) if _RESTARTS.fullmatch(restarts) else None
    return State(values["ActiveState"], values.get("SubState", ""), values.get("Result", "success"), number)


def corrupted(journal: str) -> list[str]:
    """Return the files that `sha256sum --check` refused, in the order of the journal, each once."""
    return list(dict.fromkeys(match["file"] for match in _WEIGHTS.finditer(journal)))


def parse_reading(evidence: Evidence | None) -> Reading | None:
    """Return the probe's reading of an evidence; None when the probe did not run or its record cannot be read."""
    if evidence is None or evidence.error:
        return None
    try:
        data = json.loads(evidence.stdout)
        return from_dict(data)
    except (ValueError, TypeError, RecursionError):
        return None


def judge_unit(
    unit_id: str, state_text: str | None, journal: str, reading: Reading | None, max_seconds: float
) -> Check:
    """Return the check of one unit. `state_text` None: systemd was not asked (offline with one captured answer)."""
    source = "option max_seconds"
    state = parse_state(state_text) if state_text is not None else None
    if state_text is not None and state is None:
        remedy = f"Look at systemctl status vllm@{unit_id} on the node."
        return unknown(CHECK, unit_id, "systemd says nothing about the unit", remedy, max_seconds, source)
    if state and not state.serving and not state.starting:
        return _fail(unit_id, f"unit is {state}{_cause(journal)}", _remedy(unit_id, journal), max_seconds)
    if reading is None:
        return unknown(
            CHECK, unit_id, "no reading of the probe", "Run the gate again on the node.", max_seconds, source
        )
    outcome = judge(reading)
    suffix = f"; unit is {state}" if state and not state.serving else ""
    if not outcome.ok or outcome.seconds is None:
        return _fail(unit_id, outcome.reason + suffix, f"Restart vllm@{unit_id} and read its journal.", max_seconds)
    if state_text is not None and (problem := state_problem(state_text)) is not None:
        remedy = f"Look at systemctl show vllm@{unit_id} on the node."
        return unknown(CHECK, unit_id, problem, remedy, max_seconds, source)
    seconds = round(outcome.seconds, 3)
    if state and not state.serving:
        return Check(
            CHECK,
            unit_id,
            "fail",
            f"token came, but the start has not ended{suffix}",
            seconds,
            max_seconds,
            "s",
            source,
            _remedy(unit_id, ""),
        )
    ok = seconds <= max_seconds
    reason = "a token was generated" if ok else "a token was generated too slowly"
    remedy = "" if ok else f"Look for other load on the GPUs of {unit_id} and for remote memory in its numa_maps."
    return Check(CHECK, unit_id, "pass" if ok else "fail", reason, seconds, max_seconds, "s", source, remedy)


def _fail(unit_id: str, reason: str, remedy: str, limit: float) -> Check:
    return Check(CHECK, unit_id, "fail", reason, None, limit, "s", "option max_seconds", remedy)


def last_words(journal: str) -> str:
    """Return the last lines of a journal that say something: systemd's own remarks only when there is nothing else."""
    lines = [line.strip()[:_LINE_CHARS] for line in journal.splitlines() if line.strip()]
    words = [line for line in lines if not _SYSTEMD.match(line)] or lines
    return " | ".join(words[-_JOURNAL_LINES:])


def _cause(journal: str) -> str:
    """Return the journal's explanation: the corrupted files, else its last words."""
    files = corrupted(journal)
    if files:
        return f", weights do not match their manifest: {', '.join(files)}"
    words = last_words(journal)
    return f", last journal lines: {words}" if words else ", its journal is empty"


def _remedy(unit_id: str, journal: str) -> str:
    if corrupted(journal):
        return f"Fetch these files again, then systemctl restart vllm@{unit_id}."
    return f"Look at journalctl -u vllm@{unit_id} on the node."


def units_of(data: Any, source: str) -> list[dict[str, Any]]:
    """Return the units to probe (id, port, address, model) from the option or the file; raise ValueError."""
    items = data.get("units") if isinstance(data, Mapping) else data
    if not isinstance(items, list) or not items:
        raise ValueError(f"units: {source} holds no inference unit. Run the gate inference_units first.")
    result: list[dict[str, Any]] = []
    for item in items:
        unit = _unit_of(item)
        if unit is None:
            raise ValueError(
                f"units: {source} has a unit without a usable id, port, address or model: {str(item)[:_LINE_CHARS]}. "
                "Give an id of letters, digits, '.', '_' and '-', a port of 1 to 65535 and an address and a model "
                "that are texts, or run the gate inference_units again."
            )
        if any(unit["id"] == other["id"] for other in result):
            raise ValueError(
                f"units: {source} has the id {unit['id']} more than once. Run the gate inference_units again."
            )
        result.append(unit)
    return result


def _unit_of(item: Any) -> dict[str, Any] | None:
    """Return one unit with its defaults, None when it cannot be probed under its name."""
    if not isinstance(item, Mapping):
        return None
    unit_id, port = item.get("id"), item.get("port")
    address, model = item.get("address"), item.get("model")
    address = "127.0.0.1" if address is None or address == "" else address
    model = "" if model is None else model
    if not isinstance(unit_id, str) or not _UNIT_ID.fullmatch(unit_id):
        return None
    if not isinstance(port, int) or isinstance(port, bool) or not 1 <= port <= 65535:
        return None
    if not isinstance(address, str) or not _ADDRESS.fullmatch(address) or not isinstance(model, str):
        return None
    return {"id": unit_id, "port": port, "address": address, "model": model}


def shared_reading(unit_id: str, captured: str, count: int, max_seconds: float) -> Check:
    """Return the check of a unit when one captured reading is offered for several units."""
    return unknown(
        CHECK,
        unit_id,
        f"{captured} holds one reading, and there are {count} units",
        "Give one unit, or a directory with a reading <id>.json for each.",
        max_seconds,
        "option max_seconds",
    )


def parse_units(raw: bytes, path: str) -> list[dict[str, Any]]:
    """Return the units of a units file; raise ValueError with the file and what to do."""
    try:
        data = json.loads(raw.decode("utf-8"))
    except (ValueError, RecursionError) as exc:
        raise ValueError(
            f"units_file: {path} is not readable JSON ({type(exc).__name__}). Run the gate inference_units again."
        ) from exc
    return units_of(data, path)

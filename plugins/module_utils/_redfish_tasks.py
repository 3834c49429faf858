# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What Redfish tasks of firmware updates say: failed, done, or waiting for activation. Pure functions."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

# Suspended and Interrupted tasks end only when a person acts, so a client stops waiting for them too.
ENDED = frozenset({"Completed", "Exception", "Killed", "Cancelled", "Suspended", "Interrupted"})


def failure(task: Mapping[str, Any]) -> str | None:
    """Return why an ended task failed, in the BMC's words, or None.

    A task without a state ended well: its monitor answered 200.
    """
    state, status = task.get("TaskState", "Completed"), task.get("TaskStatus", "OK")
    if state == "Completed" and status in ("OK", "Warning", None):
        return None
    said = [
        str(m["Message"]).strip() for m in task.get("Messages") or [] if m.get("Message") and m.get("Severity") != "OK"
    ]
    return f"the update task ended as {state} ({status}): {' '.join(said) or 'no explanation'}"


def moment(text: Any) -> datetime.datetime | None:
    """Return a Redfish date-time, or None when it is missing, unreadable or without a zone."""
    if not isinstance(text, str):
        return None
    try:
        value = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        return None
    return value if value.tzinfo else None


def staged_versions(tasks: Sequence[Mapping[str, Any]], last_reset: Any) -> tuple[dict[str, str], list[str]]:
    """Return the versions that wait for activation by component, and what the BMC says activates them.

    Redfish's update registry has a message for it, AwaitToActivate(image, component). It counts only when the task
    ended
    after the system's last reset, and only when both times are known: an update sent twice costs minutes, one
    believed to
    be staged that is not would never be sent.
    """
    reset = moment(last_reset)
    staged: dict[str, str] = {}
    activation: list[str] = []
    ended = [(end, t) for t in tasks if (end := moment(t.get("EndTime"))) is not None and failure(t) is None]
    for end, task in sorted(ended, key=lambda pair: pair[0]):
        if reset is None or end <= reset:
            continue
        for message in task.get("Messages") or []:
            arguments = message.get("MessageArgs") or []
            if str(message.get("MessageId", "")).endswith(".AwaitToActivate") and len(arguments) >= 2:
                staged[str(arguments[1]).rstrip("/").rsplit("/", 1)[-1]] = str(arguments[0])
                if message.get("Resolution"):
                    activation.append(str(message["Resolution"]))
    return staged, list(dict.fromkeys(activation))

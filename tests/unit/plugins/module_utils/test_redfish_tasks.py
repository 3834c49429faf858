# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Firmware update tasks."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._redfish_tasks import failure, moment, staged_versions

RESET = "2026-11-30T10:00:00+00:00"


def task(end: str | None, *awaiting: tuple[str, str], state: str = "Completed") -> dict[str, Any]:
    """Return a task that ended with AwaitToActivate messages."""
    messages = [
        {
            "MessageId": "Update.1.0.AwaitToActivate",
            "MessageArgs": [version, component],
            "Message": "Awaiting.",
            "Resolution": "AC power cycle.",
            "Severity": "OK",
        }
        for component, version in awaiting
    ]
    return {"TaskState": state, "TaskStatus": "OK", "EndTime": end, "Messages": messages}


@pytest.mark.parametrize(
    ("tasks", "reset", "staged"),
    [
        ([task("2026-11-30T10:05:00Z", ("GPU_1", "2"))], RESET, {"GPU_1": "2"}),
        (
            [task("2026-11-30T10:05:00+00:00", ("/redfish/v1/UpdateService/FirmwareInventory/GPU_1", "2"))],
            RESET,
            {"GPU_1": "2"},
        ),
        ([task("2026-11-30T11:05:00+02:00", ("GPU_1", "2"))], RESET, {}),
        ([task("2026-11-30T09:55:00Z", ("GPU_1", "2"))], RESET, {}),
        ([task("2026-11-30T10:05:00Z", ("GPU_1", "2"), state="Exception")], RESET, {}),
        ([task("2026-11-30T10:05:00Z", ("GPU_1", "2"))], None, {}),
        ([task(None, ("GPU_1", "2"))], RESET, {}),
        ([task("2026-11-30T10:05:00", ("GPU_1", "2"))], RESET, {}),
        (
            [task("2026-11-30T10:07:00Z", ("GPU_1", "3")), task("2026-11-30T10:05:00Z", ("GPU_1", "2"))],
            RESET,
            {"GPU_1": "3"},
        ),
        ([task("2026-11-30T10:05:00Z")], RESET, {}),
    ],
    ids=[
        "after the reset",
        "component as a path",
        "another time zone, before the reset",
        "before the reset",
        "failed",
        "no time of reset",
        "no end",
        "end without a zone",
        "the later task wins",
        "nothing waits",
    ],
)
def test_staged_versions(tasks: list[dict[str, Any]], reset: str | None, staged: dict[str, str]) -> None:
    found, activation = staged_versions(tasks, reset)
    assert found == staged
    assert activation == (["AC power cycle."] if staged else [])


def test_failure_has_the_words_of_the_bmc() -> None:
    bad = {
        "TaskState": "Exception",
        "TaskStatus": "Critical",
        "Messages": [{"Message": "No power.", "Severity": "Critical"}],
    }
    assert failure(bad) == "the update task ended as Exception (Critical): No power."
    assert (
        failure({"TaskState": "Completed", "TaskStatus": "Critical"})
        == "the update task ended as Completed (Critical): no explanation"
    )
    assert failure({"TaskState": "Completed", "TaskStatus": "OK"}) is None


@pytest.mark.parametrize("text", [None, 7, "", "soon", "2026-11-30T10:00:00"])
def test_a_moment_that_is_not_certain_is_none(text: Any) -> None:
    assert moment(text) is None

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The filter with registered results as ansible-core 2.19 hands them on."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.filter.fetched_nodes import FilterModule

RUN = "20261130T180000Z"
ARCHIVE = {"changed": False, "path": "/tmp/ansible.x.tar.gz"}
PACKED = {"rc": 0, "start": "2026-11-30 18:00:00", "stderr": ""}
NOT_PACKED = {"rc": 0, "start": None, "stdout": "skipped, since /var/lib/gpu_rack/evidence/x does not exist"}
SKIPPED = {"skipped": True, "changed": False, "skip_reason": "Conditional result was False"}
fetched_nodes = FilterModule().filters()["fetched_nodes"]


def state(**registered: Any) -> dict[str, str]:
    variables = {f"__report_{name}": value for name, value in registered.items()}
    found: dict[str, str] = fetched_nodes(["n"], {"n": variables}, RUN)["nodes"]["n"]
    return found


@pytest.mark.parametrize(
    ("registered", "expected"),
    [
        ({"archive": ARCHIVE, "packed": PACKED, "fetched": {"checksum": "a"}}, ("fetched", "")),
        ({"archive": ARCHIVE, "packed": NOT_PACKED, "fetched": SKIPPED}, ("no evidence", "")),
        (
            {"archive": {"unreachable": True, "msg": "ssh: timed out"}, "packed": SKIPPED, "fetched": SKIPPED},
            ("unreachable", "ssh: timed out"),
        ),
        (
            {"archive": ARCHIVE, "packed": PACKED, "fetched": {"unreachable": True, "msg": "a\nb"}},
            ("unreachable", "b"),
        ),
        (
            {
                "archive": ARCHIVE,
                "packed": {"rc": 1, "start": "x", "stderr": "Traceback\nOSError: full"},
                "fetched": SKIPPED,
            },
            ("failed", "OSError: full"),
        ),
        (
            {"archive": {"failed": True, "msg": "no space"}, "packed": SKIPPED, "fetched": SKIPPED},
            ("failed", "no space"),
        ),
        ({}, ("failed", "nothing was fetched")),
    ],
    ids=["fetched", "no evidence", "unreachable", "lost on the way", "packing failed", "no file", "nothing registered"],
)
def test_a_state(registered: dict[str, Any], expected: tuple[str, str]) -> None:
    assert tuple(state(**registered).values()) == expected


@pytest.mark.parametrize("known", ["", [], "{", '{"nodes": 1}', None])
def test_unreadable_notes_are_replaced(known: Any) -> None:
    assert list(fetched_nodes(["n"], {"n": {}}, RUN, known)["nodes"]) == ["n"]


def test_nodes_outside_the_limit_are_kept() -> None:
    known = json.dumps({"run": RUN, "nodes": {"m": {"state": "unreachable"}, "n": {"state": "unreachable"}}})
    variables = {"n": {"__report_fetched": {"checksum": "a"}}}
    found = fetched_nodes(["n"], variables, RUN, known)
    assert found == {"run": RUN, "nodes": {"m": {"state": "unreachable"}, "n": {"state": "fetched", "message": ""}}}

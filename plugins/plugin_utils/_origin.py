# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Where in the inventory a value was written."""

from __future__ import annotations

from typing import Any

# Private in ansible-core 2.19, and the only place that knows the file and line that won the variable precedence.
# requirements.txt pins the minor version; tests/unit/plugins/action/test_validate_inventory.py fails when it moves.
from ansible._internal._datatag._tags import Origin


def origin_of(value: Any) -> str | None:
    """Return `file:line` of the inventory value, or None when it did not come from a file."""
    origin = Origin.get_tag(value)
    if origin is None or not origin.path:
        return None
    return f"{origin.path}:{origin.line_num}" if origin.line_num else str(origin.path)

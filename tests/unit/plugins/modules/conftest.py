# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fixtures of the modules' tests."""

from __future__ import annotations

import pytest
from ansible.module_utils import _internal


@pytest.fixture(autouse=True)
def on_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return warnings in the result as on a node, also after another test has imported parts of the controller."""
    monkeypatch.setattr(_internal, "is_controller", False)

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fixtures of the simulator's tests."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# pytest's importlib mode does not put this directory on sys.path.
_spec = importlib.util.spec_from_file_location("simhw_node", Path(__file__).with_name("simhw_node.py"))
assert _spec is not None
assert _spec.loader is not None
simhw_node = importlib.util.module_from_spec(_spec)
sys.modules["simhw_node"] = simhw_node
_spec.loader.exec_module(simhw_node)


@pytest.fixture
def make_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Any]:
    """make_node(board=…) describes node1 of a rack; make_node(driver=False) leaves it bare."""

    def make(driver: bool = True, **rack: Any) -> Any:
        monkeypatch.setenv("SIMHW_ROOT", str(tmp_path))
        node = simhw_node.Node(tmp_path, capsys, **rack)
        if driver:
            node.install_driver()
            node.train_fabric()
        return node

    return make

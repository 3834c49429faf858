# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The whole fault matrix. Not among the unit tests, because it takes a minute or two."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_fault_is_caught_and_nothing_healthy_alarms(tmp_path: Path) -> None:
    file = tmp_path / "fault_matrix.json"
    command = [str(ROOT / "bench/fault_matrix"), "--quiet", "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600, env=dict(os.environ))
    assert done.returncode == 0, done.stdout + done.stderr
    data = json.loads(file.read_text())
    assert data["not_driven"] == []
    assert data["totals"]["caught"] == data["totals"]["faults"] >= 60
    assert data["totals"]["healthy"] >= 15
    assert data["totals"]["false_alarms"] == 0
    assert all(r["healed"] == "pass" for r in data["results"] if r["kind"] == "fault")

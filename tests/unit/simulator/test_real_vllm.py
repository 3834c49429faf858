# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The scenario with the real vLLM, where it cannot run: it must say so and never look like a pass."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from realvllm import scenario


def test_lock_is_pinned_and_free_of_cuda_builds() -> None:
    lines = [line for line in scenario.LOCK.read_text().splitlines() if not line.startswith("#")]
    names = {line.split("==")[0].lower() for line in lines}
    assert all(line.count("==") == 1 for line in lines)
    assert not names & {"torchvision", "torchaudio", "torchcodec", "triton"}
    assert not [n for n in names if n.startswith("nvidia-")]
    assert scenario.torch_requirement(scenario.LOCK.read_text()) == "torch==2.13.0+cpu"


def test_no_cpu_torch_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenario, "VENV", tmp_path / "venv")
    monkeypatch.setattr(scenario.engine, "run", lambda *_args, **_words: None)
    monkeypatch.setattr(scenario.engine, "docker_try", lambda *_args: None)

    def refuses(*_args: Any, **_words: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution found")

    monkeypatch.setattr(subprocess, "run", refuses)
    assert scenario.main([]) == 3
    assert "NOT RUN: real vLLM scenario: pip finds no torch==2.13.0+cpu" in capsys.readouterr().err


def test_ready_environment_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scenario, "VENV", tmp_path)
    monkeypatch.setattr(subprocess, "run", None)
    (tmp_path / "lock.sha256").write_text(scenario.lock_digest() + "\n")
    scenario.ensure_venv()

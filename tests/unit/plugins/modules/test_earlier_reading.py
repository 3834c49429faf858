# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A second reading that is stored over the first: what was wrong in the first one still blocks."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._decision import read_result
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import seal
from ansible_collections.ai_infra.gpu_rack.plugins.modules import gpu_health, xid

from tests.unit.module_runner import Run, runner

ROOT = Path(__file__).parents[4]
Q590 = ROOT / "tests/unit/fixtures/nvidia-smi-590.48.01-q-hgx8.txt"
GPU0 = "GPU 0 00000000:1B:00.0"


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file that `nvidia-smi` on PATH prints: eight healthy GPUs."""
    file = tmp_path / "q.txt"
    file.write_text(Q590.read_text())
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin/nvidia-smi"
    tool.write_text(f"#!/bin/sh\ncat {file}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:{os.environ['PATH']}")
    return file


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    call = runner(gpu_health, capsys)
    return lambda **args: call(profile="hgx_h100_8", enforce=False, **args)


def remap(report: Path) -> None:
    """Let GPU 0 ask for a reset because of a pending row remapping."""
    text = Q590.read_text()
    found = re.sub(r"(Pending +: )No", r"\1Yes", text, count=1)
    assert found != text
    report.write_text(found)


def blocking(result: dict[str, Any]) -> list[tuple[str, str]]:
    return [(c["subject"], c["verdict"]) for c in result["checks"] if c["verdict"] in ("fail", "unknown")]


def test_a_defect_that_is_gone_in_the_second_reading_still_blocks(run: Run, report: Path, tmp_path: Path) -> None:
    evidence, file = str(tmp_path / "evidence"), tmp_path / "evidence/gpu_health.json"
    remap(report)
    first = run(evidence_dir=evidence)
    assert blocking(first) == [(GPU0, "fail")]
    report.write_text(Q590.read_text())
    # Another name of the same file is the same file.
    second = run(evidence_dir=evidence, before=f"{evidence}/../evidence/gpu_health.json")
    assert blocking(second) == [(f"{GPU0} before the load", "fail")]
    carried = next(c for c in second["checks"] if c["verdict"] == "fail")
    old = next(c for c in first["checks"] if c["verdict"] == "fail")
    assert carried["reason"] == f"{old['reason']} (so it was in the first reading, which this one replaced)"
    assert {k: v for k, v in carried.items() if k not in ("subject", "reason")} == {
        k: v for k, v in old.items() if k not in ("subject", "reason")
    }
    # The stored result proves itself, and holds the second reading alone.
    stored = json.loads(file.read_text())
    assert read_result("gpu_health", file.read_bytes()).verdict == "fail"
    assert [e["stdout"] for e in stored["evidence"]] == [Q590.read_text()]
    # A third reading says it once more, not twice.
    third = run(evidence_dir=evidence, before=str(file))
    assert [c for c in third["checks"] if c["verdict"] == "fail"] == [carried]


def test_a_reading_somewhere_else_carries_nothing(run: Run, report: Path, tmp_path: Path) -> None:
    remap(report)
    run(evidence_dir=str(tmp_path / "first"))
    report.write_text(Q590.read_text())
    before = str(tmp_path / "first/gpu_health.json")
    assert run(evidence_dir=str(tmp_path / "second"), before=before)["verdict"] == "pass"
    assert run(before=before)["verdict"] == "pass"
    # Without the option the earlier reading is simply replaced.
    assert run(evidence_dir=str(tmp_path / "first"))["verdict"] == "pass"


def test_a_good_first_reading_changes_nothing(run: Run, report: Path, tmp_path: Path) -> None:
    evidence = str(tmp_path / "evidence")
    assert run(evidence_dir=evidence)["verdict"] == "pass"
    assert run(evidence_dir=evidence, before=f"{evidence}/gpu_health.json")["verdict"] == "pass"


@pytest.mark.parametrize("how", ["cut off", "says pass", "missing", "of another gate", "captured"])
def test_an_earlier_result_that_does_not_prove_itself_is_unknown(
    run: Run, report: Path, tmp_path: Path, how: str
) -> None:
    file = tmp_path / "gpu_health.json"
    remap(report)
    run(evidence_dir=str(tmp_path), **({"captured": str(report)} if how == "captured" else {}))
    report.write_text(Q590.read_text())
    data = json.loads(file.read_text())
    if how == "cut off":
        file.write_text(file.read_text()[:900])
    elif how == "says pass":
        data["checks"] = [c for c in data["checks"] if c["verdict"] == "pass"]
        file.write_text(json.dumps({**data, "verdict": "pass"}))
    elif how == "missing":
        file.unlink()
    elif how == "of another gate":
        file.write_text(json.dumps(seal({**data, "gate": "gpu_driver"})))
    result = run(evidence_dir=str(tmp_path), before=str(file))
    assert result["verdict"] == "unknown"
    found = [c for c in result["checks"] if c["subject"] == "earlier reading"]
    assert [(c["check"], c["verdict"]) for c in found] == [("gpu_health.growth", "unknown")]
    assert found[0]["reason"].startswith(f"{file}: ")


def test_xids_are_carried_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    call = runner(xid, capsys)
    log, before = tmp_path / "dmesg.txt", str(tmp_path / "xid.json")
    clean = (
        "[    0.000000] Linux version 6.8.0\n[   10.000000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.95.05\n"
    )
    lost = "[  100.000000] NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n"
    log.write_text(clean + lost)
    options = {"captured": str(log), "evidence_dir": str(tmp_path), "enforce": False}
    assert call(**options)["verdict"] == "fail"
    log.write_text(clean)
    result = call(before=before, **options)
    assert result["verdict"] == "fail"
    carried = [c["subject"] for c in result["checks"] if c["verdict"] == "fail"]
    assert carried
    assert all(subject.endswith(" before the load") for subject in carried)


def test_every_gate_that_takes_an_earlier_reading_carries_it() -> None:
    found = set()
    for file in sorted((ROOT / "plugins/modules").glob("*.py")):
        module = importlib.import_module(f"ansible_collections.ai_infra.gpu_rack.plugins.modules.{file.stem}")
        spec = getattr(module, "ARGUMENT_SPEC", {})
        if "before" in spec and "evidence_dir" in spec:
            found.add(file.stem)
    assert found == set(_cli.EARLIER)

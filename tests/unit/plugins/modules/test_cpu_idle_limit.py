# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""cpu_idle_limit and boot_info over directories that stand in for /sys and /proc."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import boot_info, cpu_idle_limit

pytest_plugins = ("tests.unit.bmc_server",)

Run = Callable[..., dict[str, Any]]
STATES = [("POLL", 0), ("C1", 1), ("C1E", 2), ("C6", 290)]


@pytest.fixture
def cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a CPU directory with 4 CPUs."""
    for cpu in range(4):
        for index, (name, latency) in enumerate(STATES):
            state = tmp_path / f"cpu{cpu}" / "cpuidle" / f"state{index}"
            state.mkdir(parents=True)
            for file, text in (("name", name), ("latency", str(latency)), ("disable", "0")):
                (state / file).write_text(f"{text}\n")
    (tmp_path / "cpuidle").mkdir()
    monkeypatch.setattr(cpu_idle_limit, "CPU_DIR", tmp_path)
    return tmp_path


def flags(cpus: Path) -> list[str]:
    """Return the disable flags of the first CPU."""
    return [(cpus / f"cpu0/cpuidle/state{n}/disable").read_text().strip() for n in range(4)]


def test_life(cpus: Path, run_module: Run) -> None:
    planned = run_module(cpu_idle_limit.main, {"max_latency_us": 2}, check=True)
    assert (planned["changed"], planned["disabled"]) == (True, {"C6 (290 us)": 4})
    assert flags(cpus) == ["0", "0", "0", "0"]
    done = run_module(cpu_idle_limit.main, {"max_latency_us": 2})
    assert (done["changed"], done["cpus"], done["diff"]["before"], done["diff"]["after"]) == (
        True,
        4,
        {},
        {"C6 (290 us)": 4},
    )
    assert flags(cpus) == ["0", "0", "0", "1"]
    assert run_module(cpu_idle_limit.main, {"max_latency_us": 2})["changed"] is False
    run_module(cpu_idle_limit.main, {"max_latency_us": 1})
    assert flags(cpus) == ["0", "0", "1", "1"]
    run_module(cpu_idle_limit.main, {"max_latency_us": 300})
    assert flags(cpus) == ["0", "0", "0", "0"]


def test_one_cpu_that_drifted(cpus: Path, run_module: Run) -> None:
    run_module(cpu_idle_limit.main, {"max_latency_us": 2})
    (cpus / "cpu3/cpuidle/state3/disable").write_text("0\n")
    result = run_module(cpu_idle_limit.main, {"max_latency_us": 2})
    assert (result["changed"], result["diff"]["before"]) == (True, {"C6 (290 us)": 3})


def test_disabled_by_the_kernel_too_is_a_mask(cpus: Path, run_module: Run) -> None:
    for cpu in range(4):
        (cpus / f"cpu{cpu}/cpuidle/state3/disable").write_text("3\n")
    assert run_module(cpu_idle_limit.main, {"max_latency_us": 2})["changed"] is False


def test_no_idle_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run) -> None:
    monkeypatch.setattr(cpu_idle_limit, "CPU_DIR", tmp_path)
    result = run_module(cpu_idle_limit.main, {"max_latency_us": 2})
    assert (result["changed"], result["cpus"], result["disabled"]) == (False, 0, {})


@pytest.mark.parametrize("text", ["", "fast"])
def test_an_unreadable_state_is_an_error(cpus: Path, run_module: Run, text: str) -> None:
    (cpus / "cpu1/cpuidle/state2/latency").write_text(text)
    result = run_module(cpu_idle_limit.main, {"max_latency_us": 2})
    assert result["failed"] is True
    assert "cpu1/cpuidle/state2" in result["msg"]


def test_a_negative_limit_is_refused(cpus: Path, run_module: Run) -> None:
    assert "max_latency_us -1: below zero" in run_module(cpu_idle_limit.main, {"max_latency_us": -1})["msg"]


@pytest.mark.parametrize(
    ("boot_id", "ticks", "same"),
    [("a", 100, True), ("b", 100, False), ("a", 101, False)],
    ids=["nothing happened", "another kernel", "another userspace under the same kernel"],
)
def test_boot_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_module: Run, boot_id: str, ticks: int, same: bool
) -> None:
    (tmp_path / "sys/kernel/random").mkdir(parents=True)
    (tmp_path / "1").mkdir()
    monkeypatch.setattr(boot_info, "PROC", tmp_path)

    def boot(identity: str, start: int) -> None:
        (tmp_path / "sys/kernel/random/boot_id").write_text(f"{identity}\n")
        (tmp_path / "1/stat").write_text(
            f"1 (systemd (x) y) S 0 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 {start} 170 30\n"
        )

    boot("a", 100)
    before = run_module(boot_info.main, {})
    assert (before["identity"], before["init_start_ticks"], before["changed"]) == ("a/100", 100, False)
    boot(boot_id, ticks)
    after = run_module(boot_info.main, {"previous": before["identity"]})
    assert after.get("failed", False) is same

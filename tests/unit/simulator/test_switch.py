# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The simulated switch as a program, and its words."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from simhw import mlx
from switch import answers

SIMULATOR = Path(__file__).parents[3] / "simulator"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "switch", "--dir", str(tmp_path), "--os", "onyx", "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": str(SIMULATOR)}
    with subprocess.Popen(command, cwd=SIMULATOR, env=environment, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.terminate()


def test_the_program_says_where_it_listens_and_keeps_its_secret(program: subprocess.Popen[str], tmp_path: Path) -> None:
    assert program.stdout is not None
    line = program.stdout.readline()
    match = re.fullmatch(r"switch: onyx at 127\.0\.0\.1:([0-9]+)\n", line)
    assert match
    known = (tmp_path / "known_hosts").read_text()
    assert known.startswith(f"[127.0.0.1]:{match[1]} ecdsa-sha2-nistp256 ")
    secret = (tmp_path / "password").read_text().strip()
    assert len(secret) >= 24
    assert secret not in line
    assert ((tmp_path / "password").stat().st_mode & 0o777, (tmp_path / "host_key").stat().st_mode & 0o777) == (
        0o600,
        0o600,
    )


@pytest.mark.parametrize("listen", ["127.0.0.1", "127.0.0.1:ssh"])
def test_a_wrong_address_is_refused(listen: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "switch", "--dir", str(tmp_path), "--os", "nvos", "--listen", listen]
    done = subprocess.run(command, cwd=SIMULATOR, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "is not ADDRESS:PORT" in done.stderr


@pytest.mark.parametrize("system", answers.SYSTEMS)
def test_a_command_it_does_not_have_is_refused_in_its_own_words(system: str) -> None:
    with pytest.raises(answers.Unknown) as refused:
        answers.answer(system, "reload now", ())
    assert str(refused.value).startswith(("% Unrecognized command", "bash: reload now: command not found"))


def test_counters_of_the_kernel_saturate() -> None:
    counters = mlx.kernel_counters({"port": {"symbol_errors": 70000, "link_downed": 300}})
    assert (counters["symbol_error"], counters["link_downed"], counters["port_rcv_errors"]) == (65535, 255, 0)

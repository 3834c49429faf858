# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Starting a rack's BMC process: waited for while it lives, reported with its last words when it ends."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from racksim import bmcproc, rackfile
from racksim.errors import SimError
from racksim.rackfile import Rack


@pytest.fixture
def rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rack]:
    """A rack whose process cannot be found in /proc, as in the moment after its exec."""
    monkeypatch.setattr(rackfile, "PROJECT_DIR", tmp_path)
    monkeypatch.setattr(bmcproc, "pid", lambda rack: None)
    made = rackfile.load(rackfile.SIMULATOR_DIR / "racks/molecule.yml", "molecule")
    bmcproc.pid_file(made).parent.mkdir(parents=True)
    yield made
    if bmcproc.pid_file(made).exists():
        number = int(bmcproc.pid_file(made).read_text())
        os.kill(number, signal.SIGTERM)
        os.waitpid(number, 0)


def program(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(bmcproc, "_command", lambda rack: [sys.executable, "-c", text])


def test_a_process_that_proc_does_not_show_yet_is_waited_for(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, "import time; time.sleep(60)")
    answers = iter([False, False, False, False, True, True])
    monkeypatch.setattr(bmcproc, "_accepts", lambda address: next(answers))
    bmcproc.start(rack)
    assert list(answers) == []
    assert bmcproc.pid_file(rack).exists()


def test_a_process_that_ends_is_reported_with_its_last_words(rack: Rack, monkeypatch: pytest.MonkeyPatch) -> None:
    program(monkeypatch, "raise SystemExit('no certificate')")
    monkeypatch.setattr(bmcproc, "_accepts", lambda address: False)
    with pytest.raises(SimError, match="no certificate"):
        bmcproc.start(rack)
    assert not bmcproc.pid_file(rack).exists()

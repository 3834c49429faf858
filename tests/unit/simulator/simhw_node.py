# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A simulated node in a directory: the fake tools run in this process and answer from its description."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from simhw import __main__ as program
from simhw import describe, driver
from simhw import hw as store

RACK: dict[str, Any] = {
    "name": "unit",
    "id": 99,
    "board": "hgx_h100_8",
    "vendor": "dell",
    "nodes": [{"name": "node1"}, {"name": "node2"}],
    "heads": [{"name": "head1"}],
}


class Node:
    """A node under `root`; `run` calls a tool as the shell would and gives (exit status, stdout, stderr)."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str], **rack: Any) -> None:
        self.root = root
        self._capsys = capsys
        self.hw = describe.build({**RACK, **rack}, "node1")
        (root / "var/lib/simhw").mkdir(parents=True)
        self.write()

    def write(self) -> None:
        (self.root / "var/lib/simhw/hw.yml").write_text(store.dump_yaml(self.hw), encoding="utf-8")

    def fault(self, *faults: str) -> None:
        self.hw["faults"] = list(faults)
        self.write()

    def install_driver(self, version: str = "580.95.05") -> None:
        library = self.root / driver.LIBRARY_DIR.lstrip("/")
        library.mkdir(parents=True, exist_ok=True)
        for old in library.glob("libnvidia-ml.so.*"):
            old.unlink()
        (library / f"libnvidia-ml.so.{version}").touch()
        driver.load(version)

    def train_fabric(self) -> None:
        store.update_state(lambda s: s.update(fabric_trained=True))

    def run(self, tool: str, *args: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = program.main([f"/usr/bin/{tool}", *args])
        out = self._capsys.readouterr()
        return code, out.out, out.err

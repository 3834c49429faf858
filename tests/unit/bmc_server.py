# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Fixtures: the simulated BMC on a local port over a node that is a file, and modules run in this process."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.testing import patch_module_args
from bmc import __main__ as bmc_main
from bmc import bios_table, certs, service
from bmc.hardware import Description, FileHardware
from bmc.machine import Machine

UUID = "11111111-2222-3333-4444-555555555555"
PASSWORD = "s3cret-of-the-bmc"


def power_on(hw: Description) -> Description:
    """What simhw.power.power_on does to BIOS and firmware, without its board data."""
    if not hw["bios"].get("ignore_writes"):
        hw["bios"]["current"].update(hw["bios"]["pending"])
    hw["bios"]["pending"] = {}
    hw["firmware"]["current"].update(hw["firmware"]["pending"])
    hw["firmware"]["pending"] = {}
    return hw


@dataclasses.dataclass
class SimulatedBmc:
    """One BMC under test."""

    params: dict[str, Any]
    packages: Path
    package_uri: str
    machine: Machine
    hardware: FileHardware

    def power_cycle(self) -> None:
        """Power-cycle as a person at the BMC would, and wait for the end."""
        self.machine.reset("PowerCycle")
        self.machine.settle()

    def write(self, **changes: Any) -> None:
        """Change the node's description: keys of its `bios`."""

        def change(hw: Description) -> Description:
            hw["bios"].update(changes)
            return hw

        self.machine._change(change)


@pytest.fixture(scope="session")
def bmc_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Path, str]]:
    """Serve the emulator once: sushy-tools' application can be set up only once a process."""
    directory = tmp_path_factory.mktemp("bmc")
    certificate, key = certs.ensure(directory / "tls", ["127.0.0.1"])
    idle = Machine("node1", UUID, "dell", FileHardware(directory / "none.yml", power_on), directory / "none.json")
    app = service.configure({"unused": idle}, directory / "state", "admin", PASSWORD)
    server = bmc_main.make_server("127.0.0.1", 0, app, certificate, key)
    packages = directory / "packages"
    packages.mkdir()
    files = bmc_main.package_server("127.0.0.1", 0, packages)
    for running in (server, files):
        threading.Thread(target=running.serve_forever, daemon=True).start()
    params = {
        "address": f"127.0.0.1:{server.server_port}",
        "username": "admin",
        "password": PASSWORD,
        "validate_certs": True,
        "ca_path": str(directory / "tls" / "ca.pem"),
        "timeout": 10.0,
        "retries": 0,
    }
    yield params, packages, f"http://127.0.0.1:{files.server_port}"
    for running in (server, files):
        running.shutdown()


@pytest.fixture
def make_bmc(
    bmc_process: tuple[dict[str, Any], Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], SimulatedBmc]:
    """Return a maker of a fresh BMC of a vendor."""
    params, packages, uri = bmc_process

    def make(vendor: str) -> SimulatedBmc:
        description = {
            "bios": {"current": bios_table.defaults(vendor), "pending": {}, "ignore_writes": False},
            "firmware": {
                "current": {
                    **{f"HGX_FW_GPU_SXM_{n}": "96.00.89.00.01" for n in range(1, 9)},
                    "HGX_FW_NVSwitch_0": "96.10.5C.00.01",
                    "BMC": "7.20.10.50",
                },
                "pending": {},
            },
        }
        path = tmp_path / "hw.yml"
        path.write_text(yaml.safe_dump(description))
        hardware = FileHardware(path, power_on)
        machine = Machine("node1", UUID, vendor, hardware, tmp_path / "bmc.json", task_seconds=0.01)
        monkeypatch.setattr(service.RackDriver, "machines", {params["address"]: machine})
        return SimulatedBmc(dict(params), packages, uri, machine, hardware)

    return make


@pytest.fixture
def run_module(capsys: pytest.CaptureFixture[str]) -> Callable[..., dict[str, Any]]:
    """Return a function that runs a module's main() and gives its result; `check` runs it in check mode."""

    def run(main: Callable[[], None], args: dict[str, Any], check: bool = False) -> dict[str, Any]:
        capsys.readouterr()
        with (
            patch_module_args({**args, "_ansible_check_mode": check, "_ansible_diff": True}),
            pytest.raises(SystemExit),
        ):
            main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        return result

    return run

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The BMC process of a rack (simulator/bmc): started by `up`, ended by `down`. It outlives the command."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from racksim.errors import SimError
from racksim.rackfile import BMC_PORT, SIMULATOR_DIR, Rack

_START_TIMEOUT_S = 45.0
_STOP_TIMEOUT_S = 10.0


def available() -> bool:
    return (SIMULATOR_DIR / "bmc" / "__main__.py").exists()


def pid_file(rack: Rack) -> Path:
    return rack.dir / "bmc" / "bmc.pid"


def log_file(rack: Rack) -> Path:
    return rack.dir / "bmc" / "bmc.log"


def pid(rack: Rack) -> int | None:
    """Process id of the rack's BMC if it runs.

    Told by its command line, so that neither a recycled id nor a lost file misleads; the file is for people.
    """
    try:
        likely = [pid_file(rack).read_text(encoding="ascii").strip()]
    except OSError:
        likely = []
    for number in (*likely, *(entry.name for entry in Path("/proc").iterdir() if entry.name.isdigit())):
        try:
            arguments = Path("/proc", number, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if _command(rack)[1:5] == [argument.decode(errors="replace") for argument in arguments[1:5]]:
            return int(number)
    return None


def _command(rack: Rack) -> list[str]:
    return [sys.executable, "-m", "bmc", "--rack-dir", str(rack.dir), "--rack-file", str(rack.file)]


def start(rack: Rack) -> None:
    """Start the BMC and wait until each node's address accepts connections; nothing when it runs."""
    # A process that was just started is asked itself: right after its exec its command line in /proc is still empty.
    process: subprocess.Popen[bytes] | None = None
    if pid(rack) is None:
        for node in rack.nodes:
            if _accepts(node.bmc_address):
                raise SimError(
                    f"BMC of {node.name}",
                    f"something else listens at {node.bmc_address}:{BMC_PORT}",
                    "End it (`ss -ltnp` names it), or give the rack file another id",
                )
        with log_file(rack).open("ab") as log:
            process = subprocess.Popen(
                _command(rack),
                cwd=SIMULATOR_DIR,
                env={**os.environ, "PYTHONPATH": str(SIMULATOR_DIR)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        pid_file(rack).write_text(f"{process.pid}\n", encoding="ascii")
    deadline = time.monotonic() + _START_TIMEOUT_S
    for node in rack.nodes:
        while not _accepts(node.bmc_address):
            ended = pid(rack) is None if process is None else process.poll() is not None
            if ended or time.monotonic() > deadline:
                lines = log_file(rack).read_text(encoding="utf-8", errors="replace").strip().splitlines()
                stop(rack)
                last = lines[-1] if lines else "it ended without a word"
                raise SimError(f"BMC of rack '{rack.name}'", last, f"See {log_file(rack)}")
            time.sleep(0.2)


def _accepts(address: str) -> bool:
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex((address, BMC_PORT)) == 0


def stop(rack: Rack) -> None:
    """End exactly the rack's BMC."""
    number = pid(rack)
    if number is not None:
        _end(number, rack)
    pid_file(rack).unlink(missing_ok=True)


def _end(number: int, rack: Rack) -> None:
    try:
        os.kill(number, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while pid(rack) is not None and not _reaped(number):
            if time.monotonic() > deadline:
                os.kill(number, signal.SIGKILL)
                return
            time.sleep(0.1)
    except ProcessLookupError:
        return


def _reaped(number: int) -> bool:
    """Collect the process when it is our own child and has ended."""
    try:
        return os.waitpid(number, os.WNOHANG)[0] == number
    except ChildProcessError:
        return False

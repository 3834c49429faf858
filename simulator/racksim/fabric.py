# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The rack's InfiniBand fabric: one container that runs ibsim, and its console.

ibsim keeps no record we could ask for, so the state of its ports is kept in .sim/<rack>/fabric.json; a fabric that
starts anew starts with all cables in and counters at 0.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from racksim import engine, netfile
from racksim.errors import SimError
from racksim.rackfile import Rack

CONSOLE = "/run/simrack/console"
NET = "/run/simrack-net"
_START_TIMEOUT_S = 20.0


def container(rack: Rack) -> str:
    return f"gpurack-{rack.name}-fabric"


def running(rack: Rack) -> bool:
    done = engine.docker_try("inspect", "--format", "{{.State.Running}}", container(rack))
    return done.returncode == 0 and done.stdout.strip() == b"true"


def start(
    rack: Rack, image: str, network: str, labels: Sequence[str], hardware: Mapping[str, Mapping[str, Any]]
) -> None:
    """Make the container and start ibsim on a net file of the rack's present hardware; nothing when it runs."""
    if running(rack):
        return
    name = container(rack)
    engine.docker_try("rm", "--force", name)
    net = netfile.generate(rack, hardware)
    engine.docker(
        *("create", "--name", name, "--hostname", "fabric", "--network", network, "--ip", rack.fabric.address),
        *labels,
        *("--stop-signal", "SIGKILL", "--restart", "no", "--log-opt", "max-size=1m"),
        *(image, "/usr/local/lib/simrack/fabric", str(rack.fabric.port), NET),
        what="container of the fabric",
    )
    engine.docker("cp", "-", f"{name}:/", what="net file of the fabric", stdin=_net_tar(net))
    with _record(rack) as known:
        known.clear()
        known.update({ca.sim_host: netfile.Port() for ca in netfile.cas(rack, hardware)})
    engine.docker("start", name, what="start of the fabric")
    deadline = time.monotonic() + _START_TIMEOUT_S
    while b"Network simulator ready" not in (log := engine.docker_try("logs", name).stdout):
        if time.monotonic() > deadline or not running(rack):
            last = log.decode(errors="replace").strip().splitlines()
            raise SimError("fabric", last[-1] if last else "ibsim did not start", f"See `docker logs {name}`")
        time.sleep(0.1)


def _net_tar(text: str) -> bytes:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(NET.lstrip("/"))
        data = text.encode()
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def command(rack: Rack, lines: Sequence[str]) -> None:
    """Type lines into ibsim's console."""
    if not lines:
        return
    text = "".join(f"{line}\n" for line in lines).encode()
    engine.docker(
        *("exec", "--interactive", container(rack), "/bin/sh", "-c", f"cat > {CONSOLE}"),
        what="console of the fabric",
        remedy="Run `simulator/rack up`",
        stdin=text,
    )


def sync(rack: Rack, node: str, *, powered: bool, view: Mapping[str, Any]) -> None:
    """Bring the node's cables and port counters in ibsim to what its power and its hardware say.

    `view` is the hardware with its faults applied (simhw.faults.effective). Nothing when the fabric does not run.
    """
    if not running(rack):
        return
    wanted = netfile.ports(node, view, powered=powered)
    with _record(rack) as known:
        # Only HCAs that were on the fabric when it started have a port in ibsim.
        for ca in set(wanted) - set(known):
            del wanted[ca]
        before = {ca: known[ca] for ca in wanted}
        command(rack, netfile.console(before, wanted))
        known.update(wanted)


def detach(rack: Rack, host: str) -> None:
    """Free the client slots of a host that was cut off: a dead subnet manager would go on receiving answers."""
    if running(rack):
        command(rack, [f"@release {host}"])


@contextlib.contextmanager
def _record(rack: Rack) -> Iterator[dict[str, netfile.Port]]:
    """The ports as ibsim has them, under a lock; what the block leaves in the mapping is stored."""
    path = rack.dir / "fabric.json"
    with path.open("a+", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        text = stream.read()
        ports = {ca: netfile.Port(*values) for ca, values in json.loads(text).items()} if text else {}
        yield ports
        stream.seek(0)
        stream.truncate()
        json.dump(ports, stream)

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The rack's hosts as containers, and a node's hardware in its volume.

`rack up`, `fault`, `heal` and the BMC use these functions, each from a process of its own: changes of a hardware
description happen under a file lock (`update_hw`). A node's container may be thrown away and made again at any time;
its volume, addresses and ssh host key stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import yaml

from racksim import credentials, engine, fabric, image
from racksim.errors import SimError
from racksim.rackfile import SIMULATOR_DIR, Head, Node, Rack

Power = Literal["on", "off", "absent"]

HW_DIR = "/var/lib/simhw"
HW_FILE = "hw.yml"
LABEL = "ai_infra.gpu_rack.rack"
STOP_TIMEOUT_S = 20


def container(rack: Rack, host: str) -> str:
    return f"gpurack-{rack.name}-{host}"


def volume(rack: Rack, node: str) -> str:
    return f"gpurack-{rack.name}-{node}-hw"


def network(rack: Rack) -> str:
    return f"gpurack-{rack.name}-net"


# ---- power ------------------------------------------------------------------------------------------------------


def node_state(rack: Rack, host: str) -> Power:
    """Whether the host's container runs, is stopped, or is not there."""
    done = engine.docker_try("inspect", "--format", "{{.State.Running}}", container(rack, host))
    if done.returncode != 0:
        return "absent"
    return "on" if done.stdout.strip() == b"true" else "off"


def was_started(rack: Rack, host: str) -> bool:
    """Whether the container has run before. Docker writes the year 1 for one that has not."""
    done = engine.docker_try("inspect", "--format", "{{.State.StartedAt}}", container(rack, host))
    return done.returncode == 0 and not done.stdout.startswith(b"0001-")


def image_of(rack: Rack, host: str) -> str:
    """Reference of the image the container was made from; empty when there is no container."""
    done = engine.docker_try("inspect", "--format", "{{.Config.Image}}", container(rack, host))
    return done.stdout.decode().strip() if done.returncode == 0 else ""


def start_node(rack: Rack, host: str) -> None:
    """Start the container as it is; nothing when it runs. A power-on of hardware is `power_on`."""
    name = container(rack, host)
    if node_state(rack, host) == "absent":
        raise SimError(f"start of {host}", f"container {name} does not exist", "Run `simulator/rack up`")
    if was_started(rack, host):
        fabric.detach(rack, host)
    engine.docker("start", name, what=f"start of {host}")
    if isinstance(rack.host(host), Node):
        fabric.sync(rack, host, powered=True, view=effective(read_hw(rack, host)))


def stop_node(rack: Rack, host: str, graceful: bool = True, timeout: int = STOP_TIMEOUT_S) -> None:
    """Stop the container: systemd's shutdown, or the power cord. Nothing when it does not run."""
    name = container(rack, host)
    if node_state(rack, host) != "on":
        return
    if graceful:
        engine.docker("stop", "--time", str(timeout), name, what=f"stop of {host}")
    else:
        done = engine.docker_try("kill", name)
        if done.returncode != 0 and node_state(rack, host) == "on":
            raise SimError(f"power-off of {host}", done.stderr.decode(errors="replace"), "See `docker ps`")
    if isinstance(rack.host(host), Node):
        fabric.sync(rack, host, powered=False, view=read_hw(rack, host))


def power_on(rack: Rack, node: str) -> None:
    """What the power button does: pending BIOS values and firmware become current, then the node boots."""
    power = hardware_module("power")
    if node_state(rack, node) == "on":
        return
    update_hw(rack, node, power.power_on)
    start_node(rack, node)


# ---- containers -------------------------------------------------------------------------------------------------


def create_node(rack: Rack, node: str) -> None:
    """Make the host's container anew from the pristine image, powered off. Hardware, addresses, ssh keys stay."""
    host = rack.host(node)
    name = container(rack, node)
    if node_state(rack, node) != "absent":
        stop_node(rack, node, graceful=False)
        engine.docker("rm", "--force", name, what=f"removal of {node}'s container")
    # A reimage installs what the rack was made from, also when the checkout has changed since.
    reference = _rack_image(rack) or image.tag()
    argv = ["create", "--name", name, "--hostname", node, *_container_flags(rack, host), reference]
    engine.docker(*argv, what=f"container of {node}", remedy="See the message; `simulator/rack build` makes the image")
    try:
        engine.docker("cp", "-", f"{name}:/", what=f"keys of {node}", stdin=_identity(rack, host))
    except BaseException:
        # Interrupted: half a host would be taken for a whole one by the next `up`.
        engine.docker_try("rm", "--force", name)
        raise


def remember_image(rack: Rack, reference: str) -> None:
    (rack.dir / "image").write_text(reference + "\n", encoding="ascii")


def _rack_image(rack: Rack) -> str | None:
    path = rack.dir / "image"
    return path.read_text(encoding="ascii").strip() if path.exists() else None


def _container_flags(rack: Rack, host: Node | Head) -> list[str]:
    flags = ["--network", network(rack), "--ip", host.address, "--label", f"{LABEL}={rack_identity(rack)}"]
    for other in rack.hosts:
        if other.name != host.name:
            flags += ["--add-host", f"{other.name}:{other.address}"]
    # Not --privileged: machines whose own capabilities are limited refuse it. SYS_ADMIN for systemd's mounts, NET_ADMIN
    # for iptables, SYS_TIME for chronyd's start, SYS_NICE for numactl.
    for capability in ("SYS_ADMIN", "NET_ADMIN", "SYS_TIME", "SYS_NICE"):
        flags += ["--cap-add", capability]
    if _may_trace():
        # On metal root may read every process's numa_maps. Left out where the machine itself may not.
        flags += ["--cap-add", "SYS_PTRACE"]
    flags += ["--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"]
    # A private cgroup tree on v1 and v2 alike; on v2 /usr/local/lib/simrack/init makes it writable.
    flags += ["--cgroupns", "private"]
    flags += ["--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec,mode=1777", "--shm-size", "1g"]
    flags += ["--stop-signal", "SIGRTMIN+3", "--restart", "no", "--log-opt", "max-size=1m"]
    if isinstance(host, Node):
        flags += ["--volume", f"{volume(rack, host.name)}:{HW_DIR}"]
    return flags


def _may_trace() -> bool:
    """Whether this machine has CAP_SYS_PTRACE (bit 19) to give."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as status:
        bounding = next((line.split()[1] for line in status if line.startswith("CapBnd:")), "0")
    return bool(int(bounding, 16) >> 19 & 1)


def rack_identity(rack: Rack) -> str:
    """Says whose a container is: two checkouts may share one engine and use the same rack name."""
    path = rack.dir / "identity"
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def _identity(rack: Rack, host: Node | Head) -> bytes:
    """A tar with what makes a pristine image this host: ssh keys and its place on the fabric."""
    key = credentials.host_key(rack, host.name)
    settings = {
        "SIM_RACK": rack.name,
        "SIM_NODE": host.name,
        "SIM_ROLE": "node" if isinstance(host, Node) else "head",
        "IBSIM_SERVER_NAME": rack.fabric.address,
        "IBSIM_SERVER_PORT": str(rack.fabric.port),
    }
    files = {
        "etc/ssh/ssh_host_ed25519_key": (key.read_bytes(), 0o600),
        "etc/ssh/ssh_host_ed25519_key.pub": (key.with_suffix(".pub").read_bytes(), 0o644),
        "root/.ssh/authorized_keys": (credentials.authorized_key(rack).encode(), 0o600),
        "etc/simrack/rack.env": ("".join(f"{k}={v}\n" for k, v in settings.items()).encode(), 0o644),
    }
    return _tar(files)


def _tar(files: Mapping[str, tuple[bytes, int]]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, (data, mode) in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode, info.mtime = len(data), mode, time.time()
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


# ---- hardware ---------------------------------------------------------------------------------------------------


def read_hw(rack: Rack, node: str) -> dict[str, Any]:
    """The node's hardware description, out of its volume; the node may be off."""
    done = engine.docker_try("cp", f"{container(rack, node)}:{HW_DIR}/{HW_FILE}", "-")
    if done.returncode != 0:
        observed = done.stderr.decode(errors="replace") or "it cannot be read"
        raise SimError(f"hardware description of {node}", observed, "Run `simulator/rack up`")
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as tar:
        member = tar.extractfile(HW_FILE)
        return _parse_hw(node, member.read() if member else b"")


def _parse_hw(node: str, text: bytes) -> dict[str, Any]:
    try:
        description = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise SimError(
            f"hardware description of {node}", " ".join(str(error).split()), "Run `simulator/rack up --fresh`"
        ) from None
    if not isinstance(description, dict):
        raise SimError(f"hardware description of {node}", "it is not a mapping", "Run `simulator/rack up --fresh`")
    return description


def _dump_hw(hw: Mapping[str, Any]) -> bytes:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(dict(hw), Dumper=dumper, sort_keys=False, width=120)
    return text.encode()


def write_hw(rack: Rack, node: str, hw: Mapping[str, Any]) -> None:
    """Put the description into the node's volume. To change one, use `update_hw`: it holds the lock."""
    data = _tar({HW_FILE: (_dump_hw(hw), 0o644)})
    engine.docker("cp", "-", f"{container(rack, node)}:{HW_DIR}", what=f"hardware description of {node}", stdin=data)


def update_hw(rack: Rack, node: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Read, change, write under the node's lock. Returns what was written; `change` returns the new description.

    A running node's tools change the description too: then the lock is the one they take, held in the node.
    """
    with hw_lock(rack, node):
        if node_state(rack, node) == "on":
            return _update_inside(rack, node, change)
        hw = change(read_hw(rack, node))
        write_hw(rack, node, hw)
        return hw


_UPDATE_SCRIPT = f"""cd {HW_DIR} && cat {HW_FILE} && printf '\\0' && cat > {HW_FILE}.new || exit 1
if [ -s {HW_FILE}.new ]; then mv {HW_FILE}.new {HW_FILE}; else rm -f {HW_FILE}.new; exit 1; fi"""
"""Under the lock: give the description out, end it with a zero byte, take the new one in, put it in place at once."""


def _update_inside(rack: Rack, node: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    argv = ["docker", "exec", "--interactive", container(rack, node)]
    argv += ["flock", "--timeout", "30", f"{HW_DIR}/.lock", "/bin/sh", "-c", _UPDATE_SCRIPT]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        text = bytearray()
        while not text.endswith(b"\0") and (chunk := os.read(process.stdout.fileno(), 1 << 16)):
            text += chunk
        try:
            if not text.endswith(b"\0"):
                observed = process.stderr.read().decode(errors="replace") or "it cannot be read"
                raise SimError(f"hardware description of {node}", observed, "Run the command again")
            hw = change(_parse_hw(node, bytes(text[:-1])))
            process.stdin.write(_dump_hw(hw))
        finally:
            # Without input the script leaves the description as it was.
            process.stdin.close()
            process.stdin = None
            errors = process.stderr.read().decode(errors="replace")
    if process.returncode != 0:
        raise SimError(f"hardware description of {node}", errors or "it was not written", "Run the command again")
    return hw


@contextlib.contextmanager
def hw_lock(rack: Rack, node: str) -> Iterator[None]:
    """One writer of a node's description at a time, over processes."""
    directory = rack.dir / "hw-locks"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (directory / node).open("w", encoding="ascii") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def ensure_hw(rack: Rack, node: str) -> dict[str, Any]:
    """The node's description; a new volume gets hardware fresh from the factory, with the rack file's faults."""
    with hw_lock(rack, node):
        probe = engine.docker_try("cp", f"{container(rack, node)}:{HW_DIR}/{HW_FILE}", "-")
        if probe.returncode == 0:
            return read_hw(rack, node)
        hw = factory_hw(rack, node)
        write_hw(rack, node, hw)
        return hw


def factory_hw(rack: Rack, node: str) -> dict[str, Any]:
    """The description a node leaves the factory with."""
    description: dict[str, Any] = hardware_module("describe").build(rack.file, node)
    return description


def faults(hw: Mapping[str, Any]) -> list[str]:
    return [str(fault) for fault in hw.get("faults") or []]


def effective(hw: dict[str, Any]) -> dict[str, Any]:
    """The hardware with its faults applied: what the tools in the node see."""
    view: dict[str, Any] = hardware_module("faults").effective(hw)
    return view


def exec_in(
    rack: Rack, host: str, argv: list[str], stdin: bytes | None = None, timeout: float = 60.0
) -> subprocess.CompletedProcess[bytes]:
    """Run a command in the running host and give its result back, whatever it is."""
    return engine.docker_try("exec", "--interactive", container(rack, host), *argv, stdin=stdin, timeout=timeout)


def hardware_module(name: str) -> Any:
    """A module of the simulated hardware (simulator/simhw), which is also what runs in the nodes."""
    import importlib

    if str(SIMULATOR_DIR) not in sys.path:
        sys.path.insert(0, str(SIMULATOR_DIR))
    try:
        return importlib.import_module(f"simhw.{name}")
    except ModuleNotFoundError as error:
        if error.name not in ("simhw", f"simhw.{name}"):
            raise
        where = Path("simulator/simhw") / f"{name}.py"
        raise SimError("simulated hardware", f"{where} is not there", "Check the checkout with `git status`") from None

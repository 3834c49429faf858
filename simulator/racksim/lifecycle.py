# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A rack's life: up, down, status, faults."""

from __future__ import annotations

import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from racksim import bmcproc, credentials, engine, fabric, image, nodes
from racksim.errors import SimError, UnknownFault
from racksim.rackfile import Node, Rack

BOOT_TIMEOUT_S = 120.0
_WORKERS = 4
"""Containers made at a time: more only queue up behind two cores."""


@dataclass(frozen=True)
class HostStatus:
    """One host. `boot` is systemd's word for a running host; `faults` and `bmc` are for nodes only."""

    name: str
    role: str
    power: str
    boot: str
    address: str
    bmc: str
    faults: list[str]
    power_cycles: int | None


@dataclass(frozen=True)
class RackStatus:
    rack: str
    up: bool
    image: str
    fabric: str
    bmc_pid: int | None
    hosts: list[HostStatus]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def up(rack: Rack, say: engine.Say, fresh: bool = False) -> None:
    """Start what is missing. With `fresh` everything is made anew, secrets and keys too."""
    engine.ensure(say)
    with _alone(rack, say):
        _refuse_foreign(rack)
        if fresh:
            _down(rack, say)
        _up(rack, say)


def _alone(rack: Rack, say: engine.Say) -> AbstractContextManager[None]:
    # Beside the rack's directory: `down` removes that.
    return engine.exclusive(rack.dir.with_suffix(".lock"), f"rack '{rack.name}'", say)


def _up(rack: Rack, say: engine.Say) -> None:
    reference = image.ensure(say)
    credentials.ensure(rack)
    (rack.dir / "rack-file").write_text(f"{rack.file}\n", encoding="utf-8")
    identity = rack.dir / "identity"
    if not identity.exists():
        identity.write_text(f"{uuid.uuid4()}\n", encoding="ascii")
    _ensure_network(rack)

    missing = [host for host in rack.hosts if nodes.node_state(rack, host.name) == "absent"]
    if missing:
        say(f"making {', '.join(host.name for host in missing)}")
        nodes.remember_image(rack, reference)
        _each(missing, lambda host: nodes.create_node(rack, host.name))
    hardware = {node.name: nodes.ensure_hw(rack, node.name) for node in rack.nodes}
    if not fabric.running(rack):
        say("starting the InfiniBand fabric")
        fabric.start(rack, reference, nodes.network(rack), _labels(rack), hardware)
        # A fabric that starts anew has all cables in: pull those of hosts that already run or are off for good.
        for node in rack.nodes:
            powered = nodes.node_state(rack, node.name) == "on"
            fabric.sync(rack, node.name, powered=powered, view=nodes.effective(hardware[node.name]))
        # A subnet manager cannot find its way back into an ibsim that was made anew.
        for head in rack.heads:
            if nodes.node_state(rack, head.name) == "on":
                nodes.exec_in(rack, head.name, ["systemctl", "try-restart", "opensm.service"])
    off = [host for host in rack.hosts if nodes.node_state(rack, host.name) == "off"]
    if off:
        say(f"powering on {', '.join(host.name for host in off)}")
        _each(off, lambda host: _switch_on(rack, host.name))
    _start_bmc(rack, say)
    wait_booted(rack, say)
    _warn_of_old_image(rack, reference, say)


def _switch_on(rack: Rack, host: str) -> None:
    """The first start of a new container is the factory's and counts as no power cycle; later ones are the button."""
    if isinstance(rack.host(host), Node) and nodes.was_started(rack, host):
        nodes.power_on(rack, host)
    else:
        nodes.start_node(rack, host)


def _warn_of_old_image(rack: Rack, reference: str, say: engine.Say) -> None:
    """Hosts keep the image they were made from; a changed checkout reaches them with --fresh only."""
    old = [host.name for host in rack.hosts if nodes.image_of(rack, host.name) not in ("", reference)]
    if old:
        say(f"note: {', '.join(old)} run an older image than this checkout's; `up --fresh` makes them anew")


def _start_bmc(rack: Rack, say: engine.Say) -> None:
    if not bmcproc.available():
        say("BMCs skipped: simulator/bmc/__main__.py is not there yet")
        return
    if bmcproc.pid(rack) is None:
        say(f"starting the BMCs at {rack.nodes[0].bmc_address} to {rack.nodes[-1].bmc_address}")
    bmcproc.start(rack)


def wait_booted(rack: Rack, say: engine.Say) -> None:
    """Wait until systemd of every host is done and its sshd answers; a host with failed units is named."""
    deadline = time.monotonic() + BOOT_TIMEOUT_S
    waiting = [host for host in rack.hosts if nodes.node_state(rack, host.name) == "on"]
    for host in waiting:
        while (state := boot_state(rack, host.name)) not in ("running", "degraded") or not _ssh_answers(host.address):
            if nodes.node_state(rack, host.name) != "on":
                raise SimError(
                    f"boot of {host.name}",
                    "its container ended",
                    f"See `docker logs {nodes.container(rack, host.name)}`",
                )
            if time.monotonic() > deadline:
                raise SimError(
                    f"boot of {host.name}",
                    f"systemd says '{state}' after {BOOT_TIMEOUT_S:.0f} s",
                    f"See `simulator/rack exec {host.name} systemctl list-jobs`",
                )
            time.sleep(0.2)
        if state == "degraded":
            failed = nodes.exec_in(rack, host.name, ["systemctl", "--failed", "--plain", "--no-legend"])
            units = " ".join(line.split()[0] for line in failed.stdout.decode().splitlines() if line.split())
            say(f"warning: {host.name} has failed units: {units}")


def boot_state(rack: Rack, host: str) -> str:
    done = nodes.exec_in(rack, host, ["systemctl", "is-system-running"])
    return done.stdout.decode(errors="replace").strip() or "starting"


def _ssh_answers(address: str) -> bool:
    with socket.socket() as client:
        client.settimeout(1.0)
        return client.connect_ex((address, 22)) == 0


def down(rack: Rack, say: engine.Say) -> None:
    """Remove containers, volumes, network and state. Nothing is left of the rack."""
    with _alone(rack, say):
        _down(rack, say)


def _down(rack: Rack, say: engine.Say) -> None:
    answers = engine.answers()
    if answers:
        _refuse_foreign(rack)
    bmcproc.stop(rack)
    if answers:
        names = _listed("ps", "--all", "--format", "{{.Names}}", rack=rack)
        if names:
            say(f"removing {len(names)} containers")
            engine.docker("rm", "--force", "--volumes", *names, what=f"removal of rack '{rack.name}'")
        volumes = _listed("volume", "ls", "--format", "{{.Name}}", rack=rack)
        if volumes:
            engine.docker("volume", "rm", *volumes, what=f"removal of the volumes of rack '{rack.name}'")
        if engine.docker_try("network", "inspect", nodes.network(rack)).returncode == 0:
            engine.docker("network", "rm", nodes.network(rack), what=f"removal of the network of rack '{rack.name}'")
    shutil.rmtree(rack.dir, ignore_errors=True)


def _listed(*args: str, rack: Rack) -> list[str]:
    """Names of containers or volumes of this rack. Docker's name filter finds substrings: check the prefix."""
    prefix = f"gpurack-{rack.name}-"
    listed = engine.docker(*args, "--filter", f"name={prefix}", what=f"list of rack '{rack.name}'").split()
    # A rack 'a' must not take down the rack 'a-b': what follows the prefix must be a host of ours.
    hosts = {"fabric", *(host.name for host in rack.hosts)}
    return [name for name in listed if name.startswith(prefix) and name[len(prefix) :].removesuffix("-hw") in hosts]


def _refuse_foreign(rack: Rack) -> None:
    """Leave the rack of the same name of another checkout alone."""
    listed = engine.docker(
        *("ps", "--all", "--filter", f"label={nodes.LABEL}", "--filter", f"name=gpurack-{rack.name}-"),
        *("--format", '{{.Names}} {{.Label "' + nodes.LABEL + '"}}'),
        what="list of containers",
    )
    names = {nodes.container(rack, host.name) for host in rack.hosts}
    for line in listed.splitlines():
        name, _sep, owner = line.partition(" ")
        if name in names and owner != nodes.rack_identity(rack):
            raise SimError(
                f"rack '{rack.name}'",
                f"container {name} belongs to a rack of the same name from another checkout",
                "Take it down there, or use another --rack NAME with a rack file of another id",
            )


def _labels(rack: Rack) -> list[str]:
    return ["--label", f"{nodes.LABEL}={nodes.rack_identity(rack)}"]


def _ensure_network(rack: Rack) -> None:
    name = nodes.network(rack)
    if engine.docker_try("network", "inspect", name).returncode == 0:
        return
    # A bridge name of our own keeps `ip link` readable; Linux allows 15 characters.
    engine.docker(
        *("network", "create", "--subnet", rack.subnet, "--gateway", rack.gateway),
        *("--opt", f"com.docker.network.bridge.name=gpurack{rack.id}"),
        *_labels(rack),
        name,
        what=f"network {rack.subnet} of rack '{rack.name}'",
        remedy="Give the rack file another id if the network is taken (`docker network ls`, `ip route`)",
    )


def _each(items: Iterable[Any], work: Callable[[Any], None]) -> None:
    """Do the work for all in parallel; the first error is raised when all are done."""
    with ThreadPoolExecutor(_WORKERS) as pool:
        for future in [pool.submit(work, item) for item in items]:
            future.result()


# ---- status -----------------------------------------------------------------------------------------------------


def status(rack: Rack) -> RackStatus:
    """The rack as it is. `up` is true when every host runs and has booted."""
    if not engine.answers():
        raise SimError("Docker engine", "no engine answers", "Run `simulator/rack up`, it starts one")
    with ThreadPoolExecutor(_WORKERS) as pool:
        hosts = list(pool.map(lambda host: _host_status(rack, host.name), rack.hosts))
    return RackStatus(
        rack=rack.name,
        up=all(host.power == "on" and host.boot in ("running", "degraded") for host in hosts),
        image=nodes.image_of(rack, rack.hosts[0].name),
        fabric="on" if fabric.running(rack) else "off",
        bmc_pid=bmcproc.pid(rack),
        hosts=hosts,
    )


def _host_status(rack: Rack, name: str) -> HostStatus:
    host = rack.host(name)
    power = nodes.node_state(rack, name)
    boot = boot_state(rack, name) if power == "on" else "-"
    bmc: str = "-"
    faults: list[str] = []
    cycles: int | None = None
    if isinstance(host, Node):
        bmc = f"{host.bmc_address}:8443"
        if power != "absent":
            hw = nodes.read_hw(rack, name)
            faults = nodes.faults(hw)
            cycles = (hw.get("counters") or {}).get("power_cycles")
    role = "node" if isinstance(host, Node) else "head"
    return HostStatus(name, role, power, boot, host.address, bmc, faults, cycles)


# ---- faults -----------------------------------------------------------------------------------------------------


def catalog() -> list[tuple[str, str, str]]:
    """(pattern, example, description) of every fault there is."""
    rows = nodes.hardware_module("faults").CATALOG
    return [(str(row[0]), str(row[1]), str(row[2])) for row in rows]


def add_fault(rack: Rack, node: str, fault: str) -> None:
    """Break the node's hardware, while it runs or before its next start."""
    rack.node(node)
    module = nodes.hardware_module("faults")
    text = " ".join(fault.split())

    def change(hw: dict[str, Any]) -> dict[str, Any]:
        try:
            module.parse(text, hw)
        except ValueError as error:
            first = str(error).split("\n", 1)[0]
            if first.startswith("Unknown fault"):
                raise UnknownFault(f"fault '{text}'", "it is not known", "Use one of the faults below", 2) from None
            raise SimError(f"fault '{text}' for {node}", first, "Name a part the node has", 2) from None
        present = nodes.faults(hw)
        hw["faults"] = present if text in present else [*present, text]
        return hw

    _apply(rack, node, nodes.update_hw(rack, node, change))


def heal(rack: Rack, node: str) -> list[str]:
    """Take all faults off the node. The faults that were there."""
    rack.node(node)
    healed: list[str] = []

    def change(hw: dict[str, Any]) -> dict[str, Any]:
        healed.extend(nodes.faults(hw))
        hw["faults"] = []
        return hw

    _apply(rack, node, nodes.update_hw(rack, node, change))
    return healed


def _apply(rack: Rack, node: str, hw: dict[str, Any]) -> None:
    """Make the faults felt: on the fabric, and in the node where the kernel has to show them."""
    powered = nodes.node_state(rack, node) == "on"
    fabric.sync(rack, node, powered=powered, view=nodes.effective(hw))
    if powered:
        done = nodes.exec_in(rack, node, ["simhw", "apply-faults"])
        if done.returncode != 0:
            lines = done.stderr.decode(errors="replace").strip().splitlines()
            raise SimError(
                f"applying the faults in {node}",
                lines[-1] if lines else f"`simhw apply-faults` exited {done.returncode}",
                f"See `simulator/rack exec {node} simhw apply-faults`",
            )

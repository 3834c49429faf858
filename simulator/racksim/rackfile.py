# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reads and checks rack files (simulator/racks/*.yml). Pure but for reading the file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from racksim.errors import SimError

SIMULATOR_DIR = Path(__file__).resolve().parent.parent
PROJECT_DIR = SIMULATOR_DIR.parent
RACKS_DIR = SIMULATOR_DIR / "racks"

BOARDS = ("hgx_h100_8", "hgx_h100_4", "h100_nvl", "h100_pcie")
VENDORS = ("dell", "hpe", "lenovo", "supermicro")
MAX_NODES = 200
"""Addresses .11 to .210 of the rack's network; what is above is free for tests."""

FABRIC_PORT = 7070
BMC_PORT = 8443

_NAME = re.compile(r"[a-z][a-z0-9-]{0,19}")


@dataclass(frozen=True)
class Node:
    """One GPU node. `index` counts from 1 in rack order and gives both addresses."""

    name: str
    index: int
    board: str
    vendor: str
    address: str
    bmc_address: str
    faults: tuple[str, ...] = ()
    hardware: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Head:
    """A host without GPUs and without BMC: time server, Consul server, subnet manager."""

    name: str
    index: int
    address: str


@dataclass(frozen=True)
class Fabric:
    """The ibsim process of the rack and its switches. `uplinks` is cables per leaf and spine."""

    address: str
    port: int
    spines: int
    uplinks: int


@dataclass(frozen=True)
class Rack:
    """A checked rack file. All addresses are derived from `id`."""

    name: str
    id: int
    board: str
    vendor: str
    nodes: tuple[Node, ...]
    heads: tuple[Head, ...]
    fabric: Fabric
    file: Path

    @property
    def subnet(self) -> str:
        return f"172.31.{self.id}.0/24"

    @property
    def gateway(self) -> str:
        return f"172.31.{self.id}.1"

    @property
    def firmware_address(self) -> str:
        """Where the rack's firmware files are served, on the machine itself."""
        return f"127.0.{self.id}.1"

    @property
    def dir(self) -> Path:
        """State of this rack on the controller: keys, secrets, BMC. Ignored by git."""
        return PROJECT_DIR / ".sim" / self.name

    @property
    def hosts(self) -> tuple[Node | Head, ...]:
        return (*self.heads, *self.nodes)

    def host(self, name: str) -> Node | Head:
        """The host of that name, or a SimError that lists the hosts there are."""
        for host in self.hosts:
            if host.name == name:
                return host
        known = ", ".join(h.name for h in self.hosts)
        raise SimError(f"host '{name}' of rack '{self.name}'", "there is no such host", f"Name one of {known}", 2)

    def node(self, name: str) -> Node:
        """The GPU node of that name, or a SimError that lists the nodes there are."""
        host = self.host(name)
        if isinstance(host, Node):
            return host
        known = ", ".join(n.name for n in self.nodes)
        raise SimError(
            f"host '{name}' of rack '{self.name}'", "it has no simulated hardware", f"Name one of {known}", 2
        )


def find(name: str, rack_file: str | None) -> Path:
    """Path of the rack file for `--rack NAME` and `--rack-file FILE`."""
    if rack_file is not None:
        return Path(rack_file).resolve()
    path = RACKS_DIR / f"{name}.yml"
    if not path.exists():
        # A rack started from a file of its own is known by its copy until it is taken down.
        remembered = PROJECT_DIR / ".sim" / name / "rack-file"
        if remembered.exists():
            return Path(remembered.read_text(encoding="utf-8").strip())
        known = ", ".join(sorted(p.stem for p in RACKS_DIR.glob("*.yml")))
        raise SimError(
            f"rack '{name}'",
            f"{path} does not exist",
            f"Name one of {known} with --rack, or give a rack file with --rack-file",
            2,
        )
    return path


def load(path: Path, name: str | None = None) -> Rack:
    """Read a rack file and check it. `name` is the rack's name, the file's stem when None."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SimError(f"rack file {path}", str(error.strerror), "Give a readable rack file", 2) from None
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SimError(f"rack file {path}", " ".join(str(error).split()), "Correct the YAML", 2) from None
    return parse(data, name or path.stem, path)


def parse(data: object, name: str, path: Path) -> Rack:
    """A rack from the loaded YAML. Each wrong value is named with its key and what is allowed."""
    check = _Checker(path)
    if not _NAME.fullmatch(name):
        raise SimError(
            f"rack name '{name}'",
            "it becomes part of container names",
            "Use up to 20 lower-case letters, digits and '-', a letter first",
            2,
        )
    top = check.mapping("", data, {"id", "board", "vendor", "nodes", "heads", "fabric"}, {"id", "board", "nodes"})
    rack_id = check.integer("id", top["id"], 1, 254)
    board = check.choice("board", top["board"], BOARDS)
    vendor = check.choice("vendor", top.get("vendor", "dell"), VENDORS)
    seen: set[str] = set()

    nodes = []
    for index, raw in enumerate(check.sequence("nodes", top["nodes"], 1, MAX_NODES), 1):
        where = f"nodes[{index - 1}]"
        item = check.mapping(where, raw, {"name", "board", "vendor", "faults", "hardware"}, {"name"})
        nodes.append(
            Node(
                name=check.hostname(f"{where}.name", item["name"], seen),
                index=index,
                board=check.choice(f"{where}.board", item.get("board", board), BOARDS),
                vendor=check.choice(f"{where}.vendor", item.get("vendor", vendor), VENDORS),
                address=f"172.31.{rack_id}.{10 + index}",
                bmc_address=f"127.0.{rack_id}.{10 + index}",
                faults=tuple(check.strings(f"{where}.faults", item.get("faults", []))),
                hardware=check.mapping(f"{where}.hardware", item.get("hardware", {}), None, set()),
            )
        )

    heads = []
    for index, raw in enumerate(check.sequence("heads", top.get("heads", []), 0, 6)):
        where = f"heads[{index}]"
        item = check.mapping(where, raw, {"name"}, {"name"})
        name_ = check.hostname(f"{where}.name", item["name"], seen)
        # head1 has .10; more heads count down from there, towards the fabric at .2.
        heads.append(Head(name=name_, index=index + 1, address=f"172.31.{rack_id}.{10 - index}"))

    raw_fabric = check.mapping("fabric", top.get("fabric", {}), {"spines", "uplinks"}, set())
    fabric = Fabric(
        address=f"172.31.{rack_id}.2",
        port=FABRIC_PORT,
        spines=check.integer("fabric.spines", raw_fabric.get("spines", 2), 1, 8),
        uplinks=check.integer("fabric.uplinks", raw_fabric.get("uplinks", 4), 1, 16),
    )
    return Rack(name, rack_id, board, vendor, tuple(nodes), tuple(heads), fabric, path)


class _Checker:
    """Type checks whose errors name file, key, value and what is allowed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def _error(self, key: str, observed: str, remedy: str) -> SimError:
        return SimError(f"rack file {self._path}" + (f", {key}" if key else ""), observed, remedy, 2)

    def mapping(self, key: str, value: object, allowed: set[str] | None, required: set[str]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._error(key, f"{value!r} is not a mapping", "Write keys and values")
        if allowed is not None and (unknown := sorted(set(map(str, value)) - allowed)):
            raise self._error(key, f"unknown key '{unknown[0]}'", f"Use only {', '.join(sorted(allowed))}")
        if missing := sorted(required - set(map(str, value))):
            raise self._error(key, f"key '{missing[0]}' is missing", "Add it")
        return {str(k): v for k, v in value.items()}

    def sequence(self, key: str, value: object, least: int, most: int) -> list[Any]:
        if not isinstance(value, list) or not least <= len(value) <= most:
            raise self._error(key, f"{value!r} is not a list of {least} to {most} items", "Write such a list")
        return value

    def strings(self, key: str, value: object) -> list[str]:
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._error(key, f"{value!r} is not a list of strings", "Write such a list")
        return value

    def integer(self, key: str, value: object, low: int, high: int) -> int:
        # bool is an int in Python: `id: yes` must not pass as 1.
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self._error(key, f"{value!r} is not a whole number from {low} to {high}", "Give such a number")
        return value

    def choice(self, key: str, value: object, allowed: tuple[str, ...]) -> str:
        if value not in allowed:
            raise self._error(key, f"{value!r} is not known", f"Use one of {', '.join(allowed)}")
        return str(value)

    def hostname(self, key: str, value: object, seen: set[str]) -> str:
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            remedy = "Use up to 20 lower-case letters, digits and '-', a letter first"
            raise self._error(key, f"{value!r} is not a host name", remedy)
        if value in seen or value == "fabric":
            raise self._error(key, f"'{value}' is taken", "Give each host a name of its own")
        seen.add(value)
        return value

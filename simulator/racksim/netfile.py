# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The InfiniBand fabric as ibsim's net file, and console commands for ibsim. Pure.

Shape: a leaf pair and the rack file's spines (two). The hardware description names each HCA's leaf: rails 0 to 3 are
cabled to leaf1, rails 4 to 7 to leaf2 (with four HCAs two and two; the one of a head node to leaf1), so that a node
keeps half of its rails when a leaf is lost and a pair of equal rails is always one hop apart. Each leaf has `uplinks`
cables to each spine. Ports of a leaf: the nodes' HCAs in rack order, then the heads', then the uplinks, spine by spine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from racksim.errors import SimError
from racksim.rackfile import Rack

LEAVES = 2
RAILS_PER_LEAF = 4
MAX_SWITCH_PORTS = 254
"""ibsim counts ports in one byte and keeps the last for itself."""

# Extended speed 4 is HDR, the fastest ibsim knows; the wrappers of the diags print the description's rate instead.
_WIDTH, _SPEED, _EXT_SPEED = 2, 4, 4

_LEAF_GUID = 0x946DAE0300000000
_HEAD_GUID = 0xE8EBD30300000000


@dataclass(frozen=True)
class Ca:
    """One HCA as ibsim knows it. `sim_host` goes into SIM_HOST, `description` is its node description."""

    sim_host: str
    description: str
    node_guid: int
    leaf: int


def sim_host(host: str, hca: str) -> str:
    """Name of an HCA in ibsim: no blanks, unique in the rack, under ibsim's 31 characters."""
    return f"{host}-{hca}"


def head_guid(rack: Rack, index: int) -> int:
    """Node GUID of a head's HCA. ibsim gives port 1 the GUID after it."""
    return _HEAD_GUID | rack.id << 16 | index << 4


def cas(rack: Rack, hardware: Mapping[str, Mapping[str, Any]]) -> list[Ca]:
    """Every InfiniBand HCA of the rack: nodes in rack order, then heads. `hardware`: description per node.

    HCAs whose `link_layer` is not InfiniBand are not on this fabric.
    """
    found: list[Ca] = []
    for node in rack.nodes:
        for hca in hardware[node.name].get("hcas", []):
            if str(hca.get("link_layer", "infiniband")).lower() != "infiniband":
                continue
            # ibsim numbers ports itself, from the node GUID + 1; it is the port GUID that peers go by.
            node_guid = int(str(hca["guid"]), 16) - 1
            found.append(
                Ca(sim_host(node.name, hca["name"]), f"{node.name} {hca['name']}", node_guid, _leaf(node.name, hca))
            )
    for head in rack.heads:
        found.append(Ca(sim_host(head.name, "mlx5_0"), f"{head.name} mlx5_0", head_guid(rack, head.index), 1))
    return found


def _leaf(node: str, hca: Mapping[str, Any]) -> int:
    """Number of the HCA's leaf: the description's word, else by rail."""
    named = hca.get("leaf")
    if named is None:
        return int(hca["rail"]) // RAILS_PER_LEAF % LEAVES + 1
    leaves = {f"leaf{number}": number for number in range(1, LEAVES + 1)}
    if named not in leaves:
        what = f"hardware of {node}, leaf of HCA {hca['name']}"
        raise SimError(what, f"{named!r} is not a leaf", f"Use one of {', '.join(leaves)}", 2)
    return leaves[str(named)]


def leaf_ports(fabric_cas: Sequence[Ca]) -> dict[str, tuple[int, int]]:
    """Where each HCA is cabled: {sim_host: (leaf from 1, port from 1)}, in the order of the HCAs."""
    used = dict.fromkeys(range(1, LEAVES + 1), 0)
    ports: dict[str, tuple[int, int]] = {}
    for ca in fabric_cas:
        used[ca.leaf] += 1
        ports[ca.sim_host] = (ca.leaf, used[ca.leaf])
    return ports


def generate(rack: Rack, hardware: Mapping[str, Mapping[str, Any]]) -> str:
    """ibsim's net file. The first HCA is ibsim's default; the tools never use the default."""
    fabric_cas = cas(rack, hardware)
    where = leaf_ports(fabric_cas)
    spines, uplinks = rack.fabric.spines, rack.fabric.uplinks
    down = {leaf: sum(1 for at, _unused in where.values() if at == leaf) for leaf in range(1, LEAVES + 1)}
    width = max(down.values()) + spines * uplinks
    if width > MAX_SWITCH_PORTS:
        raise SimError(
            f"fabric of rack '{rack.name}'",
            f"a leaf would need {width} ports of at most {MAX_SWITCH_PORTS}",
            "Use fewer nodes or fewer uplinks",
            2,
        )
    out = [f"width={_WIDTH}", f"speed={_SPEED}", f"extspeed={_EXT_SPEED}", ""]

    def uplink(leaf: int, spine: int, cable: int) -> tuple[int, int]:
        """Ports (of the leaf, of the spine) of cable 0.. between them."""
        return down[leaf] + (spine - 1) * uplinks + cable + 1, (leaf - 1) * uplinks + cable + 1

    for leaf in range(1, LEAVES + 1):
        guid = _LEAF_GUID | rack.id << 16 | 0x100 * leaf
        out += [f"switchguid={guid:#x}", f'Switch {width} "leaf{leaf}" # "leaf{leaf}"']
        out += [f'[{port}] "{ca}"[1]' for ca, (at, port) in where.items() if at == leaf]
        for spine in range(1, spines + 1):
            for cable in range(uplinks):
                leaf_port, spine_port = uplink(leaf, spine, cable)
                out.append(f'[{leaf_port}] "spine{spine}"[{spine_port}]')
        out.append("")
    for spine in range(1, spines + 1):
        guid = _LEAF_GUID | rack.id << 16 | 0x8000 | 0x100 * spine
        out += [f"switchguid={guid:#x}", f'Switch {LEAVES * uplinks} "spine{spine}" # "spine{spine}"']
        for leaf in range(1, LEAVES + 1):
            for cable in range(uplinks):
                leaf_port, spine_port = uplink(leaf, spine, cable)
                out.append(f'[{spine_port}] "leaf{leaf}"[{leaf_port}]')
        out.append("")
    for ca in fabric_cas:
        leaf, port = where[ca.sim_host]
        out += [
            f"caguid={ca.node_guid:#x}",
            f'Hca 1 "{ca.sim_host}" # "{ca.description}"',
            f'[1] "leaf{leaf}"[{port}]',
            "",
        ]
    return "\n".join(out)


class Port(NamedTuple):
    """One HCA's port as ibsim is to show it."""

    cable: bool = True
    symbol_errors: int = 0
    link_downed: int = 0


def ports(node: str, view: Mapping[str, Any], *, powered: bool) -> dict[str, Port]:
    """{sim_host: port} of a node, from its hardware with faults applied.

    The cable counts as out when the port is physically not up, the HCA is missing or in Ethernet mode, or the node is
    off. Logical states short of Active (Initializing, Armed) leave the cable in; the diags' wrappers show them.
    """
    found = {}
    for hca in view.get("hcas", []):
        port = hca.get("port") or {}
        up = (
            powered
            and str(port.get("phys", "LinkUp")) == "LinkUp"
            and hca.get("state") != "missing"
            and str(hca.get("link_layer", "infiniband")).lower() == "infiniband"
        )
        counters = (int(port.get("symbol_errors", 0)), int(port.get("link_downed", 0)))
        found[sim_host(node, str(hca["name"]))] = Port(up, *counters)
    return found


_COUNTERS = (("symbol_errors", "SymbolErrorCounter", 0xFFFF), ("link_downed", "LinkDownedCounter", 0xFF))


def console(before: Mapping[str, Port], after: Mapping[str, Port]) -> list[str]:
    """Console commands of ibsim that bring its ports from `before` to `after`. Same keys in both."""
    lines = []
    for ca, port in sorted(after.items()):
        if before[ca].cable != port.cable:
            lines.append(f'{"Relink" if port.cable else "Unlink"} "{ca}"[1]')
        for key, field, most in _COUNTERS:
            value = getattr(port, key)
            if getattr(before[ca], key) != value:
                # The counters of the standard saturate, they do not wrap.
                lines.append(f'PerformanceSet "{ca}"[1] PortCounters.{field}={min(value, most)}')
    return lines

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the sweep must know of a host's RDMA ports before it measures: usable or not, GUID, leaf. Pure parsers."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

_CA = re.compile(r"^CA '([^']+)'")
_PORT = re.compile(r"^\s+Port (\d+):")
_FIELD = re.compile(r"^\s+([A-Za-z ]+):\s*(.*?)\s*$")


@dataclasses.dataclass(frozen=True, slots=True)
class FabricPort:
    """One port of an HCA as ibstat tells it. None: not printed."""

    hca: str
    port: int
    state: str | None = None
    physical: str | None = None
    guid: str | None = None
    link_layer: str | None = None

    def trouble(self, link_layer: str) -> str | None:
        """Return why nothing can be measured over the port, None when it can."""
        if self.link_layer is not None and self.link_layer.lower() != link_layer:
            return f"link layer is {self.link_layer}, not {link_layer}"
        if self.state is None:
            return "ibstat prints no state for it"
        if self.state != "Active":
            physical = f", physical state {self.physical}" if self.physical and self.physical != "LinkUp" else ""
            return f"port is {self.state}{physical}"
        return None


def parse_ibstat(text: str) -> list[FabricPort]:
    """Return the ports of `ibstat` in the order printed; lines that are missing stay None."""
    ports: list[FabricPort] = []
    hca = ""
    for line in text.splitlines():
        found_ca, found_port = _CA.match(line), _PORT.match(line)
        if found_ca:
            hca = found_ca.group(1)
        elif found_port and hca:
            ports.append(FabricPort(hca, int(found_port.group(1))))
        elif ports and ports[-1].hca == hca:
            field = _FIELD.match(line)
            name = {
                "State": "state",
                "Physical state": "physical",
                "Port GUID": "guid",
                "Link layer": "link_layer",
            }.get(field.group(1) if field else "")
            if field and name and field.group(2):
                change: dict[str, Any] = {name: field.group(2)}
                ports[-1] = dataclasses.replace(ports[-1], **change)
    return ports


def parse_node_guid(text: str) -> str | None:
    """Return the node GUID `smpquery nodeinfo` prints for a switch; None for another kind of node or no answer."""
    if not re.search(r"^NodeType:\.*\s*Switch\s*$", text, re.MULTILINE):
        return None
    found = re.search(r"^Guid:\.*\s*(0x[0-9a-fA-F]+)\s*$", text, re.MULTILINE)
    return found.group(1).lower() if found else None

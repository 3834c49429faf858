# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What a BMC does to its node: read and write the hardware description, power, reimage.

The Redfish service only knows the protocol `Hardware`. `RackHardware` is a container of the simulated rack,
`FileHardware`
a file for unit tests.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import yaml

Description = dict[str, Any]
Change = Callable[[Description], Description]


class Hardware(Protocol):
    """One node as its BMC sees it."""

    def read(self) -> Description:
        """Return the hardware description."""

    def update(self, change: Change) -> Description:
        """Replace the description by what `change` makes of it, under the node's lock, and return it."""

    def is_on(self) -> bool:
        """Return whether the node has power."""

    def start(self) -> None:
        """Power on: pending BIOS and firmware values become current, then the node boots."""

    def stop(self, graceful: bool) -> None:
        """Power off, by asking the operating system when `graceful`. Returns when it is off."""

    def reimage(self) -> None:
        """Replace the powered-off node's disk by the pristine image; the hardware stays."""


class RackHardware:
    """A node of the simulated rack, by the names of racksim."""

    def __init__(self, rack: Any, node: str) -> None:
        """Bind the rack (racksim.rackfile.Rack) and the node's name."""
        # Imported here: the unit tests of the Redfish service need no Docker.
        from racksim import nodes
        from simhw import faults

        self._nodes: Any = nodes
        self._effective: Change = faults.effective
        self._rack = rack
        self._node = node

    def read(self) -> Description:
        """Return hw.yml of the node's volume as its faults make it look."""
        return self._effective(self._nodes.read_hw(self._rack, self._node))

    def update(self, change: Change) -> Description:
        """Change hw.yml under the rack's lock."""
        description: Description = self._nodes.update_hw(self._rack, self._node, change)
        return description

    def is_on(self) -> bool:
        """Return whether the container runs."""
        return bool(self._nodes.node_state(self._rack, self._node) == "on")

    def start(self) -> None:
        """Apply pending values and start the container."""
        self._nodes.power_on(self._rack, self._node)

    def stop(self, graceful: bool) -> None:
        """Stop the container: by systemd's power-off signal, or by killing it."""
        self._nodes.stop_node(self._rack, self._node, graceful=graceful)

    def reimage(self) -> None:
        """Make the container again from the pristine image."""
        self._nodes.create_node(self._rack, self._node)


class FileHardware:
    """A node that is a YAML file, for tests. `power_on` is simhw.power.power_on or a stand-in."""

    def __init__(self, path: Path, power_on: Change, on: bool = True) -> None:
        """Keep the description in `path`."""
        self.path = path
        self.images = 0
        self.hangs = False
        self._power_on = power_on
        self._on = on
        self._lock = threading.Lock()

    def read(self) -> Description:
        """Return the description."""
        description: Description = yaml.safe_load(self.path.read_text())
        return description

    def update(self, change: Change) -> Description:
        """Rewrite the file."""
        with self._lock:
            description = change(copy.deepcopy(self.read()))
            self.path.write_text(yaml.safe_dump(description, sort_keys=False))
        return description

    def is_on(self) -> bool:
        """Return the power state."""
        return self._on

    def start(self) -> None:
        """Power on."""
        if not self._on:
            self.update(self._power_on)
            self._on = True

    def stop(self, graceful: bool) -> None:
        """Power off, unless the operating system hangs and was only asked."""
        if not (graceful and self.hangs):
            self._on = False

    def reimage(self) -> None:
        """Count the image."""
        self.images += 1

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What switching a node on does to its hardware. Pure: the BMC calls it between reading and writing hw.yml."""

from __future__ import annotations

import copy
from typing import Any

from simhw import faults
from simhw.cstates import apply_bios


def power_on(hw: dict[str, Any]) -> dict[str, Any]:
    """The description after a power-on: everything pending becomes current, one power cycle more."""
    seen = faults.effective(hw)
    new = copy.deepcopy(hw)

    bios = new.setdefault("bios", {})
    pending = bios.get("pending") or {}
    if pending and not seen["bios"].get("ignore_writes"):
        bios["current"] = apply_bios(str(new.get("vendor", "")), bios.get("current") or {}, pending)
    bios["pending"] = {}

    firmware = new.setdefault("firmware", {})
    stuck = seen["firmware"].get("stuck") or []
    for name, version in (firmware.get("pending") or {}).items():
        if "*" not in stuck and name not in stuck:
            firmware.setdefault("current", {})[name] = version
    firmware["pending"] = {}

    mlxconfig = new.setdefault("mlxconfig", {})
    for device, values in (mlxconfig.get("pending") or {}).items():
        mlxconfig.setdefault("current", {}).setdefault(device, {}).update(values)
    mlxconfig["pending"] = {}

    counters = new.setdefault("counters", {})
    counters["power_cycles"] = int(counters.get("power_cycles", 0)) + 1
    return new

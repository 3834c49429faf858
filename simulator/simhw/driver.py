# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the loaded driver knows: versions, persistence, fabric registration."""

from __future__ import annotations

import os
from typing import Any

from simhw import hw as store
from simhw.hw import Hw

LIBRARY_DIR = "/usr/lib/x86_64-linux-gnu"
_NVML = "libnvidia-ml.so."


def installed() -> str | None:
    """The driver version on disk, from the real name of the NVML library."""
    try:
        names = os.listdir(store.path(LIBRARY_DIR))
    except FileNotFoundError:
        return None
    versions = [n[len(_NVML) :] for n in names if n.startswith(_NVML) and n[len(_NVML) :].count(".") == 2]
    return max(versions) if versions else None


def loaded() -> str | None:
    version = store.state().get("driver_loaded")
    return str(version) if version else None


def load(version: str) -> None:
    """modprobe nvidia: nothing happens when a version is loaded already."""

    def change(s: Hw) -> None:
        s.setdefault("driver_loaded", version)

    store.update_state(change)


def present(hw: Hw) -> list[Hw]:
    """The GPUs the driver enumerates (lost ones are still enumerated)."""
    return [g for g in hw["gpus"] if g.get("state") != "missing"]


def fabric_manager_pid() -> int:
    pid = int(store.state().get("fabricmanager", {}).get("pid", 0))
    return pid if store.alive(pid) else 0


def fabric(hw: Hw, gpu: Hw) -> tuple[str, str]:
    """Fabric State and Status. A GPU stays registered when Fabric Manager ends, as on a real board."""
    if not hw.get("nvswitches"):
        return "N/A", "N/A"
    if "fabric" in gpu:
        return str(gpu["fabric"][0]), str(gpu["fabric"][1])
    if store.state().get("fabric_trained") and "fabricmanager" not in hw["driver"]:
        return "Completed", "Success"
    return "In Progress", "N/A"


def persistence(hw: Hw, gpu: Hw) -> bool:
    if gpu.get("persistence") == "off":
        return False
    s = store.state()
    daemon = int(s.get("persistenced", {}).get("pid", 0))
    mode: Any = s.get("persistence", {}).get(str(gpu["index"]))
    return bool(mode) if mode is not None else store.alive(daemon)


def processes(gpu: Hw) -> list[Hw]:
    """Compute processes on a GPU: whoever wrote /run/simhw/gpu-procs/*.json and still lives."""
    import json

    directory = store.path(store.RUN_DIR + "/gpu-procs")
    found = []
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
    for name in names:
        try:
            with open(os.path.join(directory, name), encoding="utf-8") as f:
                p = json.load(f)
        except (OSError, ValueError):
            continue
        if gpu["uuid"] in p.get("gpus", []) and store.alive(int(p.get("pid", 0))):
            found.append(p)
    return found


def used_mib(gpu: Hw) -> int:
    return sum(int(p.get("used_mib", 0)) for p in processes(gpu))


def product_architecture(gpu: Hw) -> str:
    return "Ampere" if "A100" in gpu["product"] else "Hopper"

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nv-fabricmanager, nvidia-persistenced, dcgmi and nvfwupd."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

from simhw import driver
from simhw import hw as store
from simhw.hw import Hw

FM_VERSION_FILE = "/usr/share/nvidia/nvswitch/fabricmanager.version"


def _stay(pid_file: str | None) -> int:
    """Be a daemon in the foreground until SIGTERM."""
    if pid_file:
        os.makedirs(os.path.dirname(pid_file), exist_ok=True)
        with open(pid_file, "w", encoding="utf-8") as f:
            f.write(f"{os.getpid()}\n")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    if pid_file:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(pid_file)
    return 0


def _version() -> str:
    try:
        with open(store.path(FM_VERSION_FILE), encoding="utf-8") as f:
            return f.read().strip()
    except FileNotFoundError:
        return "unknown"


def fabricmanager(argv: list[str]) -> int:
    hw = store.effective()
    version = str(hw["driver"].get("fabricmanager") or _version())
    if "-v" in argv or "--version" in argv:
        print(f"Fabric Manager version is : {version}")
        return 0
    loaded = driver.loaded()
    if loaded is None or hw["driver"].get("unloaded"):
        print(
            "request to query NVIDIA GPU driver version failed. Make sure the NVIDIA driver is loaded.", file=sys.stderr
        )
        return 1
    if version != loaded:
        print(
            f"fabric manager NVIDIA GPU driver interface version {version} don't match with driver version {loaded}. "
            "Please update with matching NVIDIA driver package.",
            file=sys.stderr,
        )
        return 1
    if not hw.get("nvswitches"):
        print(
            "request to query NVSwitch device information from NVSwitch driver failed with error:WARNING "
            "Nothing to do [NV_WARN_NOTHING_TO_DO]",
            file=sys.stderr,
        )
        return 1

    def start(s: Hw) -> None:
        s["fabricmanager"] = {"pid": os.getpid(), "version": version}
        s["fabric_trained"] = True

    store.update_state(start)
    print("Connected to 1 node.", flush=True)
    print(
        "Successfully configured all the available NVSwitches to route GPU NVLink traffic. "
        "NVLink Peer-to-Peer support will be enabled once the GPUs are successfully registered with the NVLink fabric.",
        flush=True,
    )
    try:
        return _stay(None)
    finally:
        store.update_state(lambda s: s.pop("fabricmanager", None))


def persistenced(argv: list[str]) -> int:
    hw = store.effective()
    if "--version" in argv:
        print(f"nvidia-persistenced:  version {driver.installed()}")
        return 0
    if driver.loaded() is None or hw["driver"].get("unloaded"):
        print("nvidia-persistenced failed to initialize. Check syslog for more details.", file=sys.stderr)
        return 1

    def start(s: Hw) -> None:
        s["persistenced"] = {"pid": os.getpid()}
        s["persistence"] = {}

    store.update_state(start)
    try:
        return _stay(store.path("/run/nvidia-persistenced/nvidia-persistenced.pid"))
    finally:
        store.update_state(lambda s: s.pop("persistenced", None))


def dcgmi(argv: list[str]) -> int:
    hw = store.effective()
    if argv[:1] in (["-v"], ["--version"]):
        print("\nVersion : 4.4.1\nBuild ID : 1\n")
        return 0
    loaded = driver.loaded()
    if loaded is None or loaded != driver.installed():
        print(
            "Error: unable to establish a connection to the specified host: localhost\n"
            "Error: Unable to connect to host engine at localhost. Host engine connection invalid/disconnected."
        )
        return 255
    gpus = [g for g in driver.present(hw) if g.get("state") != "lost"]
    if argv[:2] == ["discovery", "-l"]:
        print(f"{len(gpus)} GPUs found.")
        line = "+--------+----------------------------------------------------------------------+"
        print(line + "\n| GPU ID | Device Information                                                   |\n" + line)
        for i, g in enumerate(gpus):
            rows = (f"Name: {g['product']}", f"PCI Bus ID: {g['bus_id']}", f"Device UUID: {g['uuid']}")
            for n, row in enumerate(rows):
                print(f"| {str(i) if n == 0 else '':<6} | {row:<68} |")
            print(line)
        switches = hw.get("nvswitches") or []
        print(f"{len(switches)} NvSwitches found.\n+-----------+\n| Switch ID |\n+-----------+")
        for s in switches:
            print(f"| {s['index']:<9} |")
        print("+-----------+")
        return 0
    if argv[:1] == ["health"] and ("-c" in argv or "--check" in argv):
        problems = []
        for i, g in enumerate(driver.present(hw)):
            if g.get("state") == "lost":
                problems.append((i, "Failure", "GPU has fallen off the bus (Xid 79)"))
            if g["ecc"]["volatile_uncorrected"]:
                problems.append((i, "Failure", f"{g['ecc']['volatile_uncorrected']} uncorrectable ECC errors"))
            if g["remap"]["failed"]:
                problems.append((i, "Failure", "row remapping failure"))
            elif g["remap"]["pending"]:
                problems.append((i, "Warning", "row remapping pending: reset the GPU"))
            if g["pcie"]["current_width"] < g["pcie"]["width"]:
                problems.append((i, "Warning", f"PCIe link width {g['pcie']['current_width']}"))
        line = "+---------------------------+----------------------------------------------------------+"
        worst = "Healthy" if not problems else ("Failure" if any(p[1] == "Failure" for p in problems) else "Warning")
        print("Health Monitor Report\n" + line.replace("+-", "+=", 1))
        print(f"| {'Overall Health':<25} | {worst:<56} |\n{line}")
        for i, level, text in problems:
            print(f"| {f'GPU {i}':<25} | {f'{level}: {text}':<56} |")
        if problems:
            print(line)
        return 0
    print("PARSE ERROR: Couldn't find match for argument\n\nUsage: dcgmi [subsystem]", file=sys.stderr)
    return 1


def nvfwupd(argv: list[str]) -> int:
    hw = store.effective()
    if "--version" in argv or argv[:1] == ["version"]:
        print("nvfwupd version 2.0.5")
        return 0
    if "show_version" not in argv:
        print("usage: nvfwupd [ global options ] <command>\n\nCommands: show_version", file=sys.stderr)
        return 1
    firmware = hw["firmware"]
    print(
        f"System Model: {hw['system']['model']}\nPart number: {hw['gpu_board']['part']}\nSerial number: "
        f"{hw['system']['serial']}\nPackages: {', '.join(a for a in argv if a.endswith('.fwpkg')) or 'N/A'}\n"
        "Connection Status: Successful\n\nFirmware Devices:"
    )
    row = "{:<40} {:<35} {:<35} {:<10}"
    print(row.format("AP Name", "Sys Version", "Pkg Version", "Up-To-Date"))
    print(row.format("-------", "-----------", "-----------", "----------"))
    latest = firmware.get("latest") or {}
    for name, version in firmware["current"].items():
        package = latest.get(name, "N/A")
        print(row.format(name, version, package, "Yes" if package in (version, "N/A") else "No"))
    print("-" * 120)
    print("Error Code: 0")
    return 0

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nvidia-smi, in the text of driver 580."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from simhw import driver
from simhw import hw as store
from simhw.hw import Hw

_NOT_LOADED = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n\n"
)
_RC_INVALID, _RC_NOT_FOUND, _RC_DRIVER, _RC_LOST, _RC_MISMATCH = 2, 6, 9, 15, 18

_REASONS = (
    ("gpu_idle", "Idle", 0),
    ("applications_clocks_setting", "Applications Clocks Setting", 0),
    ("sw_power_cap", "SW Power Cap", 0),
    ("hw_slowdown", "HW Slowdown", 0),
    ("hw_thermal_slowdown", "HW Thermal Slowdown", 4),
    ("hw_power_brake_slowdown", "HW Power Brake Slowdown", 4),
    ("sync_boost", "Sync Boost", 0),
    ("sw_thermal_slowdown", "SW Thermal Slowdown", 0),
)


class Stop(Exception):
    def __init__(self, code: int, text: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def _reasons(g: Hw) -> set[str]:
    active = set(g.get("reasons", []))
    if active & {"hw_thermal_slowdown", "hw_power_brake_slowdown"}:
        active.add("hw_slowdown")
    if not active and not driver.used_mib(g):
        active.add("gpu_idle")
    return active


def _temperature(g: Hw) -> int:
    return int(g.get("temperature", 28 + (int(g["index"]) * 7) % 5))


def _power(g: Hw) -> float:
    return 68.0 + (int(g["index"]) * 37 % 60) / 10


def _ecc_mode(g: Hw) -> str:
    return str(g.get("ecc_mode", "Enabled"))


def _lost_text(g: Hw) -> str:
    return (
        f"Unable to determine the device handle for GPU{g['index']}: {g['bus_id'][4:]}: GPU is lost.  "
        "Reboot the system to recover this GPU\n"
    )


# --- selection


def _select(hw: Hw, chosen: str | None) -> list[Hw]:
    gpus = driver.present(hw)
    if chosen is None:
        return gpus
    result = []
    for word in chosen.split(","):
        hit = [
            g
            for position, g in enumerate(gpus)
            if word == str(position) or word == g["uuid"] or word.lower() in _bus_names(g) or word == g["serial"]
        ]
        if not hit:
            raise Stop(_RC_NOT_FOUND, "No devices were found\n")
        result += hit
    return result


def _bus_names(g: Hw) -> tuple[str, str]:
    bus = str(g["bus_id"]).lower()
    return bus, bus[4:]


def _check_lost(gpus: list[Hw]) -> None:
    for g in gpus:
        if g.get("state") == "lost":
            raise Stop(_RC_LOST, _lost_text(g))


# --- -L


def _list(hw: Hw, gpus: list[Hw]) -> int:
    rc = 0
    for position, g in enumerate(driver.present(hw)):
        if g not in gpus:
            continue
        if g.get("state") == "lost":
            sys.stdout.write(_lost_text(g))
            rc = _RC_LOST
        else:
            print(f"GPU {position}: {g['product']} (UUID: {g['uuid']})")
    return rc


# --- the table


def _table(hw: Hw, gpus: list[Hw], version: str) -> int:
    print(time.strftime("%a %b %e %H:%M:%S %Y", time.localtime()) + "       ")
    full = "+" + "-" * 89 + "+"
    split = "+" + "-" * 41 + "+" + "-" * 24 + "+" + "-" * 22 + "+"
    cuda = hw["driver"].get("cuda", "13.0")
    print(full)
    print(f"| NVIDIA-SMI {version:<22} Driver Version: {version:<14} CUDA Version: {cuda:<8} |")
    print(split)
    print("| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |")
    print("| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |")
    print("|                                         |                        |               MIG M. |")
    print("|" + "=" * 41 + "+" + "=" * 24 + "+" + "=" * 22 + "|")
    order = driver.present(hw)
    for g in gpus:
        i = order.index(g)
        mode = "On" if driver.persistence(hw, g) else "Off"
        errors = g["ecc"]["volatile_uncorrected"] if _ecc_mode(g) == "Enabled" else "Off"
        mig = "Enabled" if g.get("mig") else "Disabled"
        if g.get("state") == "lost":
            print(f"|{i:>4}  ERR!                       {mode:>6}   |   {g['bus_id']} ERR! |                 ERR! |")
        else:
            print(f"|{i:>4}  {g['product'][:24]:<24}  {mode:>7}  |   {g['bus_id']} Off |{errors:>21} |")
        memory = f"{driver.used_mib(g)}MiB / {g['memory_mib']:>6}MiB"
        print(
            f"| N/A {_temperature(g):>4}C    P0          {int(_power(g)):>5}W / {g['power_limit_w']:>4}W | "
            f"{memory:>22} |"
            "      0%      Default |"
        )
        print(f"|                                         |                        |{mig:>21} |")
        print(split)
    print()
    print(full)
    print("| Processes:" + " " * 78 + "|")
    print("|  GPU   GI   CI              PID   Type   Process name                        GPU Memory |")
    print("|        ID   ID                                                               Usage      |")
    print("|" + "=" * 89 + "|")
    rows = [(order.index(g), p) for g in gpus for p in driver.processes(g)]
    for i, p in rows:
        print(
            f"|{i:>5}   N/A  N/A {p['pid']:>16}      C   {str(p.get('name', ''))[:30]:<30} "
            f"{p.get('used_mib', 0):>10}MiB |"
        )
    if not rows:
        print("|  No running processes found" + " " * 61 + "|")
    print(full)
    return 0


# --- -q

_SECTIONS = {
    "ECC": ("ECC Mode", "ECC Errors"),
    "ROW_REMAPPER": ("Remapped Rows",),
    "PERFORMANCE": ("Performance State", "Clocks Event Reasons", "Sparse Operation Mode"),
    "TEMPERATURE": ("Temperature",),
    "POWER": ("GPU Power Readings",),
    "CLOCK": ("Clocks", "Applications Clocks", "Max Clocks"),
    "MEMORY": ("FB Memory Usage", "BAR1 Memory Usage"),
    "UTILIZATION": ("Utilization",),
    "COMPUTE": ("Compute Mode",),
    "PIDS": ("Processes",),
    "PAGE_RETIREMENT": ("Retired Pages",),
}

Row = tuple[int, str, str | None]


def query_rows(hw: Hw, g: Hw, version: str) -> list[Row]:
    """One GPU of nvidia-smi -q as (indent, name, value); a value of None is a heading."""
    rows: list[Row] = []

    def head(indent: int, name: str) -> None:
        rows.append((indent, name, None))

    def put(indent: int, name: str, value: Any) -> None:
        rows.append((indent, name, str(value)))

    def block(name: str, pairs: list[tuple[str, Any]]) -> None:
        head(4, name)
        for key, value in pairs:
            put(8, key, value)

    bus = str(g["bus_id"])
    pcie = g["pcie"]
    ecc_on = _ecc_mode(g) == "Enabled"
    put(4, "Product Name", g["product"])
    put(4, "Product Brand", "NVIDIA")
    put(4, "Product Architecture", driver.product_architecture(g))
    put(4, "Display Mode", "Requested functionality has been deprecated")
    put(4, "Display Attached", "No")
    put(4, "Display Active", "Disabled")
    put(4, "Persistence Mode", "Enabled" if driver.persistence(hw, g) else "Disabled")
    put(4, "Addressing Mode", "HMM")
    block(
        "MIG Mode",
        [
            ("Current", "Enabled" if g.get("mig") else "Disabled"),
            ("Pending", "Enabled" if g.get("mig") else "Disabled"),
        ],
    )
    put(4, "Accounting Mode", "Disabled")
    put(4, "Accounting Mode Buffer Size", 4000)
    block("Driver Model", [("Current", "N/A"), ("Pending", "N/A")])
    put(4, "Serial Number", g["serial"])
    put(4, "GPU UUID", g["uuid"])
    put(4, "Minor Number", g["index"])
    put(4, "VBIOS Version", g["vbios"])
    put(4, "MultiGPU Board", "No")
    put(4, "Board ID", f"0x{int(bus[9:11], 16) << 8:x}")
    put(4, "Board Part Number", hw["gpu_board"]["part"])
    put(4, "GPU Part Number", f"{hw['gpu_board']['device_id'][2:6]}-885-A1")
    put(4, "FRU Part Number", "N/A")
    block(
        "Platform Info",
        [
            ("Chassis Serial Number", "N/A"),
            ("Slot Number", "N/A"),
            ("Tray Index", "N/A"),
            ("Host ID", "N/A"),
            ("Peer Type", "N/A"),
            ("Module Id", int(g["index"]) + 1),
            ("GPU Fabric GUID", "N/A"),
        ],
    )
    block(
        "Inforom Version",
        [
            ("Image Version", g["inforom"]),
            ("OEM Object", "2.1"),
            ("ECC Object", "7.16"),
            ("Power Management Object", "N/A"),
        ],
    )
    block("Inforom BBX Object Flush", [("Latest Timestamp", "N/A"), ("Latest Duration", "N/A")])
    block("GPU Operation Mode", [("Current", "N/A"), ("Pending", "N/A")])
    put(4, "GPU C2C Mode", "Disabled")
    block(
        "GPU Virtualization Mode",
        [("Virtualization Mode", "None"), ("Host VGPU Mode", "N/A"), ("vGPU Heterogeneous Mode", "N/A")],
    )
    put(4, "GPU Recovery Action", g.get("recovery", "None"))
    put(4, "GSP Firmware Version", g.get("gsp", version))
    block("IBMNPU", [("Relaxed Ordering Mode", "N/A")])
    block(
        "PCI",
        [
            ("Bus", f"0x{bus[9:11]}"),
            ("Device", "0x00"),
            ("Domain", "0x0000"),
            ("Base Classcode", "0x3"),
            ("Sub Classcode", "0x2"),
            ("Device Id", hw["gpu_board"]["device_id"]),
            ("Bus Id", bus),
            ("Sub System Id", hw["gpu_board"]["subsystem_id"]),
        ],
    )
    head(8, "GPU Link Info")
    head(12, "PCIe Generation")
    for key, value in (
        ("Max", pcie["gen"]),
        ("Current", pcie["current_gen"]),
        ("Device Current", pcie["current_gen"]),
        ("Device Max", pcie["gen"]),
        ("Host Max", pcie["gen"]),
    ):
        put(16, key, value)
    head(12, "Link Width")
    put(16, "Max", f"{pcie['width']}x")
    put(16, "Current", f"{pcie['current_width']}x")
    head(8, "Bridge Chip")
    put(12, "Type", "N/A")
    put(12, "Firmware", "N/A")
    for key, value in (
        ("Replays Since Reset", 0),
        ("Replay Number Rollovers", 0),
        ("Tx Throughput", "525 KB/s"),
        ("Rx Throughput", "472 KB/s"),
        ("Atomic Caps Outbound", "N/A"),
        ("Atomic Caps Inbound", "N/A"),
    ):
        put(8, key, value)
    put(4, "Fan Speed", "N/A")
    put(4, "Performance State", "P0")
    head(4, "Clocks Event Reasons")
    active = _reasons(g)
    for key, label, extra in _REASONS:
        put(8 + extra, label, "Active" if key in active else "Not Active")
    put(8, "Display Clock Setting", "Not Active")
    block(
        "Clocks Event Reasons Counters",
        [
            (label, f"{850000 if key in active else 0} us")
            for label, key in (
                ("SW Power Capping", "sw_power_cap"),
                ("Sync Boost", "sync_boost"),
                ("SW Thermal Slowdown", "sw_thermal_slowdown"),
                ("HW Thermal Slowdown", "hw_thermal_slowdown"),
                ("HW Power Braking", "hw_power_brake_slowdown"),
            )
        ],
    )
    put(4, "Sparse Operation Mode", "N/A")
    used = driver.used_mib(g)
    block(
        "FB Memory Usage",
        [
            ("Total", f"{g['memory_mib']} MiB"),
            ("Reserved", "634 MiB"),
            ("Used", f"{used} MiB"),
            ("Free", f"{g['memory_mib'] - 634 - used} MiB"),
        ],
    )
    block("BAR1 Memory Usage", [("Total", "131072 MiB"), ("Used", "1 MiB"), ("Free", "131071 MiB")])
    block("Conf Compute Protected Memory Usage", [("Total", "0 MiB"), ("Used", "0 MiB"), ("Free", "0 MiB")])
    put(4, "Compute Mode", "Default")
    block("Utilization", [(k, "0 %") for k in ("GPU", "Memory", "Encoder", "Decoder", "JPEG", "OFA")])
    block("Encoder Stats", [("Active Sessions", 0), ("Average FPS", 0), ("Average Latency", 0)])
    block("FBC Stats", [("Active Sessions", 0), ("Average FPS", 0), ("Average Latency", 0)])
    block("DRAM Encryption Mode", [("Current", "N/A"), ("Pending", "N/A")])
    block("ECC Mode", [("Current", _ecc_mode(g)), ("Pending", _ecc_mode(g))])
    head(4, "ECC Errors")
    for span in ("volatile", "aggregate"):
        head(8, span.capitalize())
        values = (
            ("SRAM Correctable", 0),
            ("SRAM Uncorrectable Parity", 0),
            ("SRAM Uncorrectable SEC-DED", 0),
            ("DRAM Correctable", g["ecc"][f"{span}_corrected"]),
            ("DRAM Uncorrectable", g["ecc"][f"{span}_uncorrected"]),
        )
        for key, value in values:
            put(12, key, value if ecc_on else "N/A")
        if span == "aggregate":
            exceeded = "Yes" if g["ecc"].get("sram_threshold") else "No"
            put(12, "SRAM Threshold Exceeded", exceeded if ecc_on else "N/A")
    head(8, "Aggregate Uncorrectable SRAM Sources")
    for key in ("SRAM L2", "SRAM SM", "SRAM Microcontroller", "SRAM PCIE", "SRAM Other"):
        put(12, key, 0 if ecc_on else "N/A")
    put(8, "Channel Repair Pending", "Yes" if g.get("repair") == "channel" else "No")
    put(8, "TPC Repair Pending", "Yes" if g.get("repair") == "tpc" else "No")
    block("Retired Pages", [("Single Bit ECC", "N/A"), ("Double Bit ECC", "N/A"), ("Pending Page Blacklist", "N/A")])
    remap = g["remap"]
    block(
        "Remapped Rows",
        [
            ("Correctable Error", remap["correctable"]),
            ("Uncorrectable Error", remap["uncorrectable"]),
            ("Pending", "Yes" if remap["pending"] else "No"),
            ("Remapping Failure Occurred", "Yes" if remap["failed"] else "No"),
        ],
    )
    head(8, "Bank Remap Availability Histogram")
    spent = 1 if remap["uncorrectable"] else 0
    for key, value in (
        ("Max", 2560 - spent),
        ("High", spent if not remap["failed"] else 0),
        ("Partial", 0),
        ("Low", 0),
        ("None", 1 if remap["failed"] else 0),
    ):
        put(12, key, f"{value} bank(s)")
    t = _temperature(g)
    block(
        "Temperature",
        [
            ("GPU Current Temp", f"{t} C"),
            ("GPU T.Limit Temp", f"{87 - t} C"),
            ("GPU Shutdown T.Limit Temp", "-8 C"),
            ("GPU Slowdown T.Limit Temp", "-2 C"),
            ("GPU Max Operating T.Limit Temp", "0 C"),
            ("GPU Target Temperature", "N/A"),
            ("Memory Current Temp", f"{t + 8} C"),
            ("Memory Max Operating T.Limit Temp", "0 C"),
        ],
    )
    limit = f"{float(g['power_limit_w']):.2f} W"
    block(
        "GPU Power Readings",
        [
            ("Average Power Draw", f"{_power(g):.2f} W"),
            ("Instantaneous Power Draw", f"{_power(g):.2f} W"),
            ("Current Power Limit", limit),
            ("Requested Power Limit", limit),
            ("Default Power Limit", limit),
            ("Min Power Limit", "200.00 W"),
            ("Max Power Limit", limit),
        ],
    )
    block("GPU Memory Power Readings", [("Average Power Draw", "N/A"), ("Instantaneous Power Draw", "N/A")])
    block(
        "Module Power Readings",
        [
            (k, "N/A")
            for k in (
                "Average Power Draw",
                "Instantaneous Power Draw",
                "Current Power Limit",
                "Requested Power Limit",
                "Default Power Limit",
                "Min Power Limit",
                "Max Power Limit",
            )
        ],
    )
    put(4, "Power Smoothing", "N/A")
    block("Workload Power Profiles", [("Requested Profiles", "N/A"), ("Enforced Profiles", "N/A")])
    slow = active & {"hw_slowdown", "sw_thermal_slowdown", "sw_power_cap"}
    sm = "345 MHz" if slow else "1980 MHz"
    block("Clocks", [("Graphics", sm), ("SM", sm), ("Memory", "2619 MHz"), ("Video", "1545 MHz")])
    block("Applications Clocks", [("Graphics", "1980 MHz"), ("Memory", "2619 MHz")])
    block("Default Applications Clocks", [("Graphics", "1980 MHz"), ("Memory", "2619 MHz")])
    block("Deferred Clocks", [("Memory", "N/A")])
    block("Max Clocks", [("Graphics", "1980 MHz"), ("SM", "1980 MHz"), ("Memory", "2619 MHz"), ("Video", "1545 MHz")])
    block("Max Customer Boost Clocks", [("Graphics", "1980 MHz")])
    block("Clock Policy", [("Auto Boost", "N/A"), ("Auto Boost Default", "N/A")])
    fabric_state, fabric_status = driver.fabric(hw, g)
    done = fabric_state == "Completed"
    block(
        "Fabric",
        [
            ("State", fabric_state),
            ("Status", fabric_status),
            ("CliqueId", g.get("clique", "0") if done else "N/A"),
            ("ClusterUUID", "00000000-0000-0000-0000-000000000000" if done else "N/A"),
        ],
    )
    head(8, "Health")
    for key in ("Summary", "Bandwidth", "Route Recovery in progress", "Route Unhealthy", "Access Timeout Recovery"):
        put(12, key, "True" if key == "Route Unhealthy" and g.get("route_unhealthy") else "N/A")
    procs = driver.processes(g)
    if not procs:
        put(4, "Processes", "None")
    else:
        head(4, "Processes")
        for p in procs:
            put(8, "GPU instance ID", "N/A")
            put(8, "Compute instance ID", "N/A")
            put(8, "Process ID", p["pid"])
            put(12, "Type", "C")
            put(12, "Name", p.get("name", ""))
            put(12, "Used GPU Memory", f"{p.get('used_mib', 0)} MiB")
    block("Capabilities", [("EGM", "disabled")])
    return rows


def _log_line(indent: int, name: str, value: str | None) -> str:
    text = " " * indent + name
    return text if value is None else f"{text:<42}: {value}"


def _pick(rows: list[Row], displays: list[str]) -> list[Row]:
    wanted = {name for d in displays for name in _SECTIONS[d]}
    picked: list[Row] = []
    keep = False
    for row in rows:
        if row[0] == 4:
            keep = row[1] in wanted
        if keep:
            picked.append(row)
    return picked


def _query(hw: Hw, gpus: list[Hw], version: str, displays: list[str]) -> int:
    out = ["", "==============NVSMI LOG==============", ""]
    out.append(_log_line(0, "Timestamp", time.strftime("%a %b %e %H:%M:%S %Y", time.localtime())))
    out.append(_log_line(0, "Driver Version", version))
    out.append(_log_line(0, "CUDA Version", str(hw["driver"].get("cuda", "13.0"))))
    out.append("")
    out.append(_log_line(0, "Attached GPUs", str(len(driver.present(hw)))))
    rc = 0
    for g in gpus:
        if g.get("state") == "lost":
            out.append(_lost_text(g).rstrip("\n"))
            rc = _RC_LOST
            continue
        out.append(f"GPU {g['bus_id']}")
        rows = query_rows(hw, g, version)
        out += [_log_line(*row) for row in (_pick(rows, displays) if displays else rows)]
        out.append("")
    print("\n".join(out))
    return rc


def _tag(name: str) -> str:
    return name.lower().replace(" ", "_").replace(".", "").replace("-", "_").replace("(", "").replace(")", "")


# Tags that are not the text's name in lower case: by the tag of the section and the name, or by the name alone.
_XML_TAGS = {
    "GPU UUID": "uuid",
    "Serial Number": "serial",
    "mig_mode/Current": "current_mig",
    "mig_mode/Pending": "pending_mig",
    "driver_model/Current": "current_dm",
    "driver_model/Pending": "pending_dm",
    "inforom_version/Image Version": "img_version",
    "inforom_version/Power Management Object": "pwr_object",
    "GPU C2C Mode": "c2c_mode",
    "pci/Bus": "pci_bus",
    "pci/Device": "pci_device",
    "pci/Domain": "pci_domain",
    "pci/Device Id": "pci_device_id",
    "pci/Bus Id": "pci_bus_id",
    "pci/Sub System Id": "pci_sub_system_id",
    "GPU Link Info": "pci_gpu_link_info",
    "PCIe Generation": "pcie_gen",
    "pcie_gen/Max": "max_link_gen",
    "pcie_gen/Current": "current_link_gen",
    "pcie_gen/Device Current": "device_current_link_gen",
    "pcie_gen/Device Max": "max_device_link_gen",
    "pcie_gen/Host Max": "max_host_link_gen",
    "Link Width": "link_widths",
    "link_widths/Max": "max_link_width",
    "link_widths/Current": "current_link_width",
    "Bridge Chip": "pci_bridge_chip",
    "Replays Since Reset": "replay_counter",
    "Replay Number Rollovers": "replay_rollover_counter",
    "ecc_mode/Current": "current_ecc",
    "ecc_mode/Pending": "pending_ecc",
    "SRAM Uncorrectable SEC-DED": "sram_uncorrectable_secded",
    "remapped_rows/Correctable Error": "remapped_row_corr",
    "remapped_rows/Uncorrectable Error": "remapped_row_unc",
    "remapped_rows/Pending": "remapped_row_pending",
    "remapped_rows/Remapping Failure Occurred": "remapped_row_failure",
    "Bank Remap Availability Histogram": "row_remapper_histogram",
    **{
        f"row_remapper_histogram/{name}": f"row_remapper_histogram_{name.lower()}"
        for name in ("Max", "High", "Partial", "Low", "None")
    },
    "GPU Current Temp": "gpu_temp",
    "GPU T.Limit Temp": "gpu_temp_tlimit",
    "GPU Shutdown T.Limit Temp": "gpu_temp_max_tlimit_threshold",
    "GPU Slowdown T.Limit Temp": "gpu_temp_slow_tlimit_threshold",
    "GPU Max Operating T.Limit Temp": "gpu_temp_max_gpu_tlimit_threshold",
    "Memory Current Temp": "memory_temp",
    "Memory Max Operating T.Limit Temp": "gpu_temp_max_mem_tlimit_threshold",
    "CliqueId": "cliqueId",
    "ClusterUUID": "clusterUuid",
}


def _query_xml(hw: Hw, gpus: list[Hw], version: str) -> int:
    """-q -x: same facts, with the tag names of nvsmi_device_v12.dtd."""
    from xml.sax.saxutils import escape

    now = time.strftime("%a %b %e %H:%M:%S %Y", time.localtime())
    out = [
        '<?xml version="1.0" ?>',
        '<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">',
        "<nvidia_smi_log>",
        f"\t<timestamp>{now}</timestamp>",
        f"\t<driver_version>{version}</driver_version>",
        f"\t<cuda_version>{hw['driver'].get('cuda', '13.0')}</cuda_version>",
        f"\t<attached_gpus>{len(driver.present(hw))}</attached_gpus>",
    ]
    for g in gpus:
        _check_lost([g])
        out.append(f'\t<gpu id="{g["bus_id"]}">')
        stack: list[tuple[int, str]] = []
        for indent, name, value in query_rows(hw, g, version):
            while stack and stack[-1][0] >= indent:
                depth, tag = stack.pop()
                out.append("\t" * (depth // 4 + 1) + f"</{tag}>")
            parent = stack[-1][1] if stack else ""
            tag = _XML_TAGS.get(f"{parent}/{name}") or _XML_TAGS.get(name) or _tag(name)
            if parent == "clocks_event_reasons":
                tag = f"clocks_event_reason_{'gpu_idle' if name == 'Idle' else _tag(name)}"
            tabs = "\t" * (indent // 4 + 1)
            if value is None:
                out.append(f"{tabs}<{tag}>")
                stack.append((indent, tag))
            else:
                out.append(f"{tabs}<{tag}>{escape(value)}</{tag}>")
        while stack:
            depth, tag = stack.pop()
            out.append("\t" * (depth // 4 + 1) + f"</{tag}>")
        out.append("\t</gpu>")
    out.append("</nvidia_smi_log>")
    print("\n".join(out))
    return 0


# --- --query-gpu

_NA = "[N/A]"
Value = Callable[[Hw, Hw, str], Any]


def _reason_value(key: str) -> Value:
    return lambda hw, g, v: "Active" if key in _reasons(g) else "Not Active"


def _ecc_value(key: str) -> Value:
    """A counter of the description; SRAM never errs, the other places are not counted on this GPU."""

    def value(hw: Hw, g: Hw, v: str) -> Any:
        if _ecc_mode(g) != "Enabled" or not key:
            return _NA
        return 0 if key == "sram" else g["ecc"][key]

    return value


def _fields() -> dict[str, tuple[str, Value]]:
    """name: (unit, value). Names as `nvidia-smi --help-query-gpu` lists them, with both names where two are taken."""
    f: dict[str, tuple[str, Value]] = {}

    def put(names: str, value: Value, unit: str = "") -> None:
        for name in names.split():
            f[name] = (unit, value)

    def const(names: str, value: Any, unit: str = "") -> None:
        put(names, lambda hw, g, v: value, unit)

    put("timestamp", lambda hw, g, v: time.strftime("%Y/%m/%d %H:%M:%S.000", time.localtime()))
    put("driver_version", lambda hw, g, v: v)
    put("count", lambda hw, g, v: len(driver.present(hw)))
    put("name gpu_name", lambda hw, g, v: g["product"])
    put("serial gpu_serial", lambda hw, g, v: g["serial"])
    put("uuid gpu_uuid", lambda hw, g, v: g["uuid"])
    put("index", lambda hw, g, v: driver.present(hw).index(g))
    put("pci.bus_id gpu_bus_id", lambda hw, g, v: g["bus_id"])
    const("pci.domain", "0x0000")
    put("pci.bus", lambda hw, g, v: f"0x{g['bus_id'][9:11]}")
    const("pci.device", "0x00")
    put("pci.device_id", lambda hw, g, v: hw["gpu_board"]["device_id"])
    put("pci.sub_device_id", lambda hw, g, v: hw["gpu_board"]["subsystem_id"])
    put("pcie.link.gen.current pcie.link.gen.gpucurrent", lambda hw, g, v: g["pcie"]["current_gen"])
    put("pcie.link.gen.max pcie.link.gen.gpumax pcie.link.gen.hostmax", lambda hw, g, v: g["pcie"]["gen"])
    put("pcie.link.width.current", lambda hw, g, v: g["pcie"]["current_width"])
    put("pcie.link.width.max", lambda hw, g, v: g["pcie"]["width"])
    put("display_mode", lambda hw, g, v: "[Requested functionality has been deprecated]")
    const("display_attached", "No")
    const("display_active", "Disabled")
    put("persistence_mode", lambda hw, g, v: "Enabled" if driver.persistence(hw, g) else "Disabled")
    const("addressing_mode", "HMM")
    const("accounting.mode", "Disabled")
    const("accounting.buffer_size", 4000)
    const("driver_model.current driver_model.pending", _NA)
    put("vbios_version", lambda hw, g, v: g["vbios"])
    put("inforom.img inforom.image", lambda hw, g, v: g["inforom"])
    const("inforom.oem", "2.1")
    const("inforom.ecc", "7.16")
    const("inforom.pwr inforom.power", _NA)
    put("gpu_recovery_action", lambda hw, g, v: g.get("recovery", "None"))
    const("gom.current gpu_operation_mode.current gom.pending gpu_operation_mode.pending", _NA)
    const("fan.speed", _NA, "%")
    const("pstate", "P0")
    for family in ("clocks_event_reasons", "clocks_throttle_reasons"):
        put(f"{family}.supported", lambda hw, g, v: "0x00000000000001FF")
        put(f"{family}.active", lambda hw, g, v: f"0x{_mask(_reasons(g)):016X}")
        for key, _label, _extra in _REASONS:
            put(f"{family}.{key}", _reason_value(key))
    put("memory.total", lambda hw, g, v: g["memory_mib"], "MiB")
    const("memory.reserved", 634, "MiB")
    put("memory.used", lambda hw, g, v: driver.used_mib(g), "MiB")
    put("memory.free", lambda hw, g, v: g["memory_mib"] - 634 - driver.used_mib(g), "MiB")
    const("compute_mode", "Default")
    const("compute_cap", "9.0")
    for key in ("gpu", "memory", "encoder", "decoder", "jpeg", "ofa"):
        const(f"utilization.{key}", 0, "%")
    put("ecc.mode.current ecc.mode.pending", lambda hw, g, v: _ecc_mode(g))
    for kind in ("corrected", "uncorrected"):
        for span in ("volatile", "aggregate"):
            for place in ("device_memory", "dram", "total"):
                put(
                    f"ecc.errors.{kind}.{span}.{place}",
                    _ecc_value(f"{span}_{kind}"),
                )
            for place in ("register_file", "l1_cache", "l2_cache", "texture_memory", "cbu", "sram"):
                put(
                    f"ecc.errors.{kind}.{span}.{place}",
                    _ecc_value("sram" if place == "sram" else ""),
                )
    const(
        "retired_pages.single_bit_ecc.count retired_pages.sbe retired_pages.double_bit.count retired_pages.dbe "
        "retired_pages.pending",
        _NA,
    )
    put("remapped_rows.correctable", lambda hw, g, v: g["remap"]["correctable"])
    put("remapped_rows.uncorrectable", lambda hw, g, v: g["remap"]["uncorrectable"])
    put("remapped_rows.pending", lambda hw, g, v: "Yes" if g["remap"]["pending"] else "No")
    put("remapped_rows.failure", lambda hw, g, v: "Yes" if g["remap"]["failed"] else "No")
    put("remapped_rows.histogram.max", lambda hw, g, v: 2560 - bool(g["remap"]["uncorrectable"]))
    put(
        "remapped_rows.histogram.high",
        lambda hw, g, v: int(bool(g["remap"]["uncorrectable"]) and not g["remap"]["failed"]),
    )
    const("remapped_rows.histogram.partial remapped_rows.histogram.low", 0)
    put("remapped_rows.histogram.none", lambda hw, g, v: int(bool(g["remap"]["failed"])))
    put("temperature.gpu", lambda hw, g, v: _temperature(g))
    put("temperature.gpu.tlimit", lambda hw, g, v: 87 - _temperature(g))
    put("temperature.memory", lambda hw, g, v: _temperature(g) + 8)
    const("power.management", "Enabled")
    put("power.draw power.draw.average power.draw.instant", lambda hw, g, v: f"{_power(g):.2f}", "W")
    put(
        "power.limit enforced.power.limit power.default_limit power.max_limit",
        lambda hw, g, v: f"{float(g['power_limit_w']):.2f}",
        "W",
    )
    const("power.min_limit", "200.00", "W")
    slow = ("hw_slowdown", "sw_thermal_slowdown", "sw_power_cap")
    put(
        "clocks.current.graphics clocks.gr clocks.current.sm clocks.sm",
        lambda hw, g, v: 345 if _reasons(g) & set(slow) else 1980,
        "MHz",
    )
    const("clocks.current.memory clocks.mem", 2619, "MHz")
    const("clocks.current.video clocks.video", 1545, "MHz")
    const(
        "clocks.max.graphics clocks.max.gr clocks.max.sm clocks.applications.graphics clocks.applications.gr "
        "clocks.default_applications.graphics clocks.default_applications.gr",
        1980,
        "MHz",
    )
    const(
        "clocks.max.memory clocks.max.mem clocks.applications.memory clocks.applications.mem "
        "clocks.default_applications.memory clocks.default_applications.mem",
        2619,
        "MHz",
    )
    put("mig.mode.current mig.mode.pending", lambda hw, g, v: "Enabled" if g.get("mig") else "Disabled")
    const("gsp.mode.current", "Enabled")
    const("gsp.mode.default", "Enabled")
    const("c2c.mode", "Disabled")
    const("protected_memory.total protected_memory.used protected_memory.free", 0, "MiB")
    put("fabric.state", lambda hw, g, v: _cell(driver.fabric(hw, g)[0]))
    put("fabric.status", lambda hw, g, v: _cell(driver.fabric(hw, g)[1]))
    put("fabric.cliqueId", lambda hw, g, v: "0" if driver.fabric(hw, g)[0] == "Completed" else _NA)
    put(
        "fabric.clusterUuid",
        lambda hw, g, v: "00000000-0000-0000-0000-000000000000" if driver.fabric(hw, g)[0] == "Completed" else _NA,
    )
    const("fabric.health.bandwidth fabric.health.summary", _NA)
    return f


def _cell(value: str) -> str:
    return _NA if value == "N/A" else value


def _mask(active: set[str]) -> int:
    bits = {
        "gpu_idle": 0x1,
        "applications_clocks_setting": 0x2,
        "sw_power_cap": 0x4,
        "hw_slowdown": 0x8,
        "sync_boost": 0x10,
        "sw_thermal_slowdown": 0x20,
        "hw_thermal_slowdown": 0x40,
        "hw_power_brake_slowdown": 0x80,
    }
    return sum(bits[a] for a in active)


def _csv(hw: Hw, gpus: list[Hw], version: str, text: str, form: str) -> int:
    options = [o.strip() for o in form.split(",")]
    if "csv" not in options:
        raise Stop(_RC_INVALID, "\"--format=\" value is not recognized. Please run 'nvidia-smi -h'.\n")
    fields = _fields()
    names = [n.strip() for n in text.split(",") if n.strip()]
    for name in names:
        if name not in fields:
            raise Stop(_RC_INVALID, f'Field "{name}" is not a valid field to query.\n\n')
    _check_lost(gpus)
    if "noheader" not in options:
        print(", ".join(f"{n} [{fields[n][0]}]" if fields[n][0] else n for n in names))
    for g in gpus:
        cells = []
        for name in names:
            unit, value = fields[name]
            cell = str(value(hw, g, version))
            cells.append(f"{cell} {unit}" if unit and "nounits" not in options and not cell.startswith("[") else cell)
        print(", ".join(cells))
    return 0


def _compute_apps(hw: Hw, gpus: list[Hw], text: str, form: str) -> int:
    options = [o.strip() for o in form.split(",")]
    names = [n.strip() for n in text.split(",")]
    known = {
        "timestamp": "",
        "gpu_name": "",
        "gpu_bus_id": "",
        "gpu_serial": "",
        "gpu_uuid": "",
        "pid": "",
        "process_name": "",
        "name": "",
        "used_gpu_memory": "MiB",
        "used_memory": "MiB",
    }
    for name in names:
        if name not in known:
            raise Stop(_RC_INVALID, f'Field "{name}" is not a valid field to query.\n\n')
    if "noheader" not in options:
        print(", ".join(f"{n} [{known[n]}]" if known[n] else n for n in names))
    for g in gpus:
        for p in driver.processes(g):
            row = {
                "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
                "gpu_name": g["product"],
                "gpu_bus_id": g["bus_id"],
                "gpu_serial": g["serial"],
                "gpu_uuid": g["uuid"],
                "pid": p["pid"],
                "process_name": p.get("name", ""),
                "name": p.get("name", ""),
            }
            for key in ("used_gpu_memory", "used_memory"):
                row[key] = f"{p.get('used_mib', 0)}" + ("" if "nounits" in options else " MiB")
            print(", ".join(str(row[n]) for n in names))
    return 0


# --- topo


def link_width(hw: Hw, a: int, b: int) -> int:
    """NVLinks between two GPUs, links that are down taken off; 0 for none."""
    nvlink = hw["nvlink"]
    mesh = nvlink.get("mesh", "none")
    width = int(nvlink.get("width", 0))

    def down(gpu: int, links: range) -> int:
        return sum(1 for key in nvlink["down"] if int(key.split("/")[0]) == gpu and int(key.split("/")[1]) in links)

    if mesh == "switch":
        every = range(int(nvlink["links"]))
        return width - max(down(a, every), down(b, every))
    if mesh == "pairs":
        if a // 2 != b // 2:
            return 0
        return width - max(down(a, range(width)), down(b, range(width)))
    if mesh == "direct":
        return width - max(down(a, _direct_links(width, a, b)), down(b, _direct_links(width, b, a)))
    return 0


def _direct_links(width: int, gpu: int, peer: int) -> range:
    """On a direct mesh, `width` links go to each peer, in the order of the peers."""
    slot = peer if peer < gpu else peer - 1
    return range(slot * width, (slot + 1) * width)


def _cell_between(hw: Hw, a: Hw, b: Hw) -> str:
    key = f"{min(a['index'], b['index'])}-{max(a['index'], b['index'])}"
    if key in hw["nvlink"]["cells"]:
        return str(hw["nvlink"]["cells"][key])
    width = link_width(hw, a["index"], b["index"])
    if width > 0:
        return f"NV{width}"
    return "NODE" if a["numa"] == b["numa"] else "SYS"


def _gpu_nic(hw: Hw, g: Hw, h: Hw) -> str:
    key = f"{g['index']}-{h['name']}"
    if key in hw["nvlink"]["nic_cells"]:
        return str(hw["nvlink"]["nic_cells"][key])
    if g["numa"] != h["numa"]:
        return "SYS"
    return "PXB" if g["index"] in h.get("gpus", []) else "NODE"


def topo_matrix(hw: Hw) -> str:
    gpus = driver.present(hw)
    nics = [h for h in hw["hcas"] if h.get("state") != "missing"]
    cpus = {n["id"]: n["cpus"] for n in hw["numa"]}
    header = [f"GPU{i}" for i in range(len(gpus))] + [f"NIC{i}" for i in range(len(nics))]
    out = ["\t\x1b[4m" + "\t".join([*header, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"]) + "\x1b[0m"]
    for i, g in enumerate(gpus):
        cells = [" X " if i == j else _cell_between(hw, g, o) for j, o in enumerate(gpus)]
        cells += [_gpu_nic(hw, g, h) for h in nics]
        out.append("\t".join([f"GPU{i}", *cells, cpus[g["numa"]], str(g["numa"]), "", "N/A"]))
    for i, h in enumerate(nics):
        cells = [_gpu_nic(hw, g, h) for g in gpus]
        cells += [" X " if i == j else ("NODE" if h["numa"] == o["numa"] else "SYS") for j, o in enumerate(nics)]
        out.append("\t".join([f"NIC{i}", *cells, "", "", "", ""]))
    out += [
        "",
        "Legend:",
        "",
        "  X    = Self",
        "  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)",
        "  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node",
        "  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)",
        "  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)",
        "  PIX  = Connection traversing at most a single PCIe bridge",
        "  NV#  = Connection traversing a bonded set of # NVLinks",
        "",
    ]
    if nics:
        out += ["NIC Legend:", "", *[f"  NIC{i}: {h['name']}" for i, h in enumerate(nics)], ""]
    return "\n".join(out) + "\n"


def _topo(hw: Hw, args: list[str]) -> int:
    if not args or args[0] in ("-h", "--help"):
        print("    topo -- Display topological information about the system.\n\n    Usage: nvidia-smi topo [options]")
        return 0
    if args[0] not in ("-m", "--matrix"):
        raise Stop(_RC_INVALID, f"Option \"{args[0]}\" is not recognized. Please run 'nvidia-smi topo -h'.\n")
    if "-i" in args[1:]:
        raise Stop(_RC_INVALID, "The -i command line argument must be used in conjunction with -n or -p.\n")
    _check_lost(driver.present(hw))
    sys.stdout.write(topo_matrix(hw))
    return 0


# --- nvlink

_CHIP_LINKS = 18


def _nvlink(hw: Hw, args: list[str]) -> int:
    chosen = None
    what = []
    rest = list(args)
    while rest:
        word = rest.pop(0)
        if word in ("-i", "--id") and rest:
            chosen = rest.pop(0)
        elif word in ("-s", "--status", "-c", "--capabilities", "-e", "--errorcounters", "-R", "--remotelinkinfo"):
            what.append(
                {"--status": "-s", "--capabilities": "-c", "--errorcounters": "-e", "--remotelinkinfo": "-R"}.get(
                    word, word
                )
            )
        elif word in ("-h", "--help"):
            print("    nvlink -- Display NvLink information.\n\n    Usage: nvidia-smi nvlink [options]")
            return 0
        else:
            raise Stop(_RC_INVALID, f"Option \"{word}\" is not recognized. Please run 'nvidia-smi nvlink -h'.\n")
    nvlink = hw["nvlink"]
    order = driver.present(hw)
    for g in _select(hw, chosen):
        _check_lost([g])
        print(f"GPU {order.index(g)}: {g['product']} (UUID: {g['uuid']})")
        links = int(nvlink.get("links", 0))
        if not links:
            print("\t NVML: Unable to retrieve NVLink information as all links are inActive")
            continue
        for link in range(links):
            key = f"{g['index']}/{link}"
            if "-s" in what or not what:
                speed = float(nvlink["speeds"].get(key, nvlink.get("speed_gbs", 26.562)))
                print(f"\t Link {link}: " + ("<inactive>" if key in nvlink["down"] else f"{speed:.3f} GB/s"))
                if link == links - 1:
                    # The chip has 18 links and lists them all, also those that lead to no bridge.
                    for spare in range(links, _CHIP_LINKS):
                        print(f"\t Link {spare}: <inactive>")
                continue
            if key in nvlink["down"]:
                continue
            if "-e" in what:
                errors = nvlink["errors"].get(key, {})
                print(f"\t Link {link}: Replay Errors: {errors.get('replay', 0)}")
                print(f"\t Link {link}: Recovery Errors: {errors.get('recovery', 0)}")
                print(f"\t Link {link}: CRC Errors: {errors.get('crc', 0)}\n")
            if "-c" in what:
                for name in (
                    "P2P is supported",
                    "Access to system memory supported",
                    "P2P atomics supported",
                    "System memory atomics supported",
                    "SLI is supported",
                    "Link is supported",
                ):
                    print(f"\t Link {link}, {name}: {'false' if name.startswith('SLI') else 'true'}")
            if "-R" in what:
                remote = f"00000000:{8 + link % 4:02X}:00.0" if hw.get("nvswitches") else "00000000:00:00.0"
                print(f"\t Link {link}: Remote Device {remote}: Link {(link * 5 + g['index']) % 64}")
    return 0


# --- changes


def _persistence_mode(hw: Hw, gpus: list[Hw], value: str) -> int:
    if value not in ("0", "1", "DISABLED", "ENABLED"):
        raise Stop(_RC_INVALID, f"Invalid persistence mode '{value}'.\n")
    on = value in ("1", "ENABLED")
    for g in gpus:
        _check_lost([g])
        before = driver.persistence(hw, g)
        word = "enabled" if on else "disabled"
        if before == on:
            print(f"Persistence mode is already {word.capitalize()} for GPU {g['bus_id']}.")
        else:

            def change(s: Hw, g: Hw = g) -> None:
                s.setdefault("persistence", {})[str(g["index"])] = on

            store.update_state(change)
            print(f"{word.capitalize()} persistence mode for GPU {g['bus_id']}.")
    print("All done.")
    return 0


def _reset(hw: Hw, gpus: list[Hw]) -> int:
    for g in gpus:
        _check_lost([g])
        daemon = store.alive(int(store.state().get("persistenced", {}).get("pid", 0)))
        if driver.processes(g) or driver.persistence(hw, g) or daemon or driver.fabric_manager_pid():
            raise Stop(
                3,
                "The following GPUs could not be reset:\n"
                f"  GPU {g['bus_id']}: In use by another client\n\n"
                "1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA "
                "application, graphics application such as an X server, or a monitoring application such as another "
                "instance of nvidia-smi). Please first kill all processes using this device and all compute "
                "applications running in the system.\n",
            )
    for g in gpus:
        print(f"GPU {g['bus_id']} was successfully reset.")
    if hw.get("nvswitches"):
        store.update_state(lambda s: s.pop("fabric_trained", None))
    print("All done.")
    return 0


# --- main


def _guard(hw: Hw) -> str:
    """The loaded driver's version, or the failure nvidia-smi prints."""
    library = driver.installed()
    loaded = driver.loaded()
    if library is None or loaded is None or hw["driver"].get("unloaded"):
        raise Stop(_RC_DRIVER, _NOT_LOADED)
    if library != loaded or hw["driver"].get("mismatch"):
        raise Stop(
            _RC_MISMATCH,
            "Failed to initialize NVML: Driver/library version mismatch\n"
            f"NVML library version: {library.rsplit('.', 1)[0]}\n",
        )
    return loaded


def main(argv: list[str]) -> int:
    hw = store.effective()
    try:
        return _main(hw, argv)
    except Stop as stop:
        sys.stdout.write(stop.text)
        return stop.code


def _main(hw: Hw, argv: list[str]) -> int:
    args: list[str] = []
    for word in argv:
        if word.startswith("--") and "=" in word:
            args += word.split("=", 1)
        else:
            args.append(word)
    if args and args[0] in ("-h", "--help"):
        print(f"NVIDIA System Management Interface -- v{driver.installed()}")
        return 0
    if args and args[0] == "--version":
        version = _guard(hw)
        for key, value in (
            ("NVIDIA-SMI version", version),
            ("NVML version", version.rsplit(".", 1)[0]),
            ("DRIVER version", version),
            ("CUDA Version", hw["driver"].get("cuda", "13.0")),
        ):
            print(f"{key:<19} : {value}")
        return 0
    version = _guard(hw)
    if args and args[0] == "topo":
        return _topo(hw, args[1:])
    if args and args[0] == "nvlink":
        return _nvlink(hw, args[1:])
    if not driver.present(hw):
        raise Stop(_RC_NOT_FOUND, "No devices were found\n")
    chosen: str | None = None
    action = ""
    query, form, xml = "", "", False
    displays: list[str] = []
    value = ""
    rest = args
    while rest:
        word, rest = rest[0], rest[1:]

        def take(word: str = word) -> str:
            nonlocal rest
            if not rest:
                raise Stop(_RC_INVALID, f"Option \"{word}\" requires a value. Please run 'nvidia-smi -h'.\n")
            taken, rest = rest[0], rest[1:]
            return taken

        if word in ("-i", "--id"):
            chosen = take()
        elif word in ("-L", "--list-gpus"):
            action = "list"
        elif word in ("-q", "--query"):
            action = "query"
        elif word in ("-x", "--xml-format"):
            xml = True
        elif word in ("-d", "--display"):
            displays += [d.strip().upper() for d in take().split(",")]
            for d in displays:
                if d not in _SECTIONS:
                    raise Stop(_RC_INVALID, f"Display type {d} is not recognized. Please run 'nvidia-smi -h'.\n")
        elif word == "--query-gpu":
            action, query = "csv", take()
        elif word == "--query-compute-apps":
            action, query = "apps", take()
        elif word == "--format":
            form = take()
        elif word in ("-pm", "--persistence-mode"):
            action, value = "pm", take()
        elif word in ("-r", "--gpu-reset"):
            action = "reset"
        elif word in ("-f", "--filename"):
            sys.stdout = open(take(), "w", encoding="utf-8")  # noqa: SIM115 - closed at exit, as the tool does
        else:
            raise Stop(_RC_INVALID, "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n\n")
    gpus = _select(hw, chosen)
    if action == "list":
        return _list(hw, gpus)
    if action == "query":
        return _query_xml(hw, gpus, version) if xml else _query(hw, gpus, version, displays)
    if action == "csv":
        if not form:
            raise Stop(_RC_INVALID, '"--query-gpu" requires "--format=" to be set.\n')
        return _csv(hw, gpus, version, query, form)
    if action == "apps":
        return _compute_apps(hw, gpus, query, form or "csv")
    if action == "pm":
        return _persistence_mode(hw, gpus, value)
    if action == "reset":
        return _reset(hw, gpus)
    return _table(hw, gpus, version)

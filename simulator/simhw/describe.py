# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make a node's hardware description from a rack file: same rack and node, same serials, UUIDs and GUIDs.

The rack file is described in simulator/racks/default.yml, the description in schema.md.
"""

from __future__ import annotations

import copy
import hashlib
import os
import sys
from typing import Any

from simhw import faults
from simhw.hw import dump_yaml, parse_yaml

BOARDS = ("hgx_h100_8", "hgx_h100_4", "h100_nvl", "h100_pcie")
VENDORS = ("dell", "hpe", "lenovo", "supermicro")

# Everything a board decides. bus ids as HGX and PCIe servers typically enumerate them; `nics` pairs HCA n with
# the GPUs of nics[n]; the switch between a GPU and its HCA makes the pair PXB.
_BOARD: dict[str, dict[str, Any]] = {
    "hgx_h100_8": {
        "product": "NVIDIA H100 80GB HBM3",
        "device_id": "0x233010DE",
        "subsystem_id": "0x16C110DE",
        "memory_mib": 81559,
        "power_w": 700,
        "buses": ["1B", "43", "52", "61", "9D", "C3", "D1", "DF"],
        "nic_buses": ["18", "40", "4F", "5E", "9A", "C0", "CE", "DC"],
        "gpu_numa": [0, 0, 0, 0, 1, 1, 1, 1],
        "nic_gpus": [[0], [1], [2], [3], [4], [5], [6], [7]],
        "links": 18,
        "mesh": "switch",
        "nvswitches": 4,
        "numa_nodes": 2,
        "vbios": "96.00.99.00.01",
        "old_vbios": "96.00.89.00.01",
        "inforom": "G520.0200.00.05",
        "part": "692-2G520-0200-000",
        "bundle": "HGX-22.10-1-rev17",
        "chassis": "SXM",
    },
    "hgx_h100_4": {
        "product": "NVIDIA H100 80GB HBM3",
        "device_id": "0x233010DE",
        "subsystem_id": "0x16C210DE",
        "memory_mib": 81559,
        "power_w": 700,
        "buses": ["19", "4D", "5F", "87"],
        "nic_buses": ["16", "4A", "5C", "84"],
        "gpu_numa": [0, 0, 0, 0],
        "nic_gpus": [[0], [1], [2], [3]],
        "links": 18,
        "mesh": "direct",
        "width": 6,
        "nvswitches": 0,
        "numa_nodes": 1,
        "vbios": "96.00.99.00.02",
        "old_vbios": "96.00.89.00.02",
        "inforom": "G520.0200.00.05",
        "part": "692-2G520-0225-000",
        "bundle": "HGX-22.10-1-rev17",
        "chassis": "SXM",
    },
    "h100_nvl": {
        "product": "NVIDIA H100 NVL",
        "device_id": "0x232110DE",
        "subsystem_id": "0x183910DE",
        "memory_mib": 95830,
        "power_w": 400,
        "buses": ["2A", "3D", "4A", "5B", "AA", "BC", "CA", "DB"],
        "nic_buses": ["29", "49", "A9", "C9"],
        "gpu_numa": [0, 0, 0, 0, 1, 1, 1, 1],
        "nic_gpus": [[0, 1], [2, 3], [4, 5], [6, 7]],
        "links": 12,
        "mesh": "pairs",
        "width": 12,
        "nvswitches": 0,
        "numa_nodes": 2,
        "vbios": "96.00.99.00.0A",
        "old_vbios": "96.00.88.00.0A",
        "inforom": "1010.0210.00.03",
        "part": "900-21010-0020-000",
        "bundle": "",
        "chassis": "PCIe",
    },
    "h100_pcie": {
        "product": "NVIDIA H100 PCIe",
        "device_id": "0x233110DE",
        "subsystem_id": "0x162610DE",
        "memory_mib": 81559,
        "power_w": 350,
        "buses": ["2A", "3D", "AA", "BC"],
        "nic_buses": ["29", "A9"],
        "gpu_numa": [0, 0, 1, 1],
        "nic_gpus": [[0, 1], [2, 3]],
        "links": 0,
        "mesh": "none",
        "nvswitches": 0,
        "numa_nodes": 2,
        "vbios": "96.00.99.00.0B",
        "old_vbios": "96.00.30.00.0B",
        "inforom": "1010.0200.00.02",
        "part": "900-21010-0000-000",
        "bundle": "",
        "chassis": "PCIe",
    },
}

# C-states enabled: what vendors ship. The attribute registry belongs to the BMC.
_BIOS: dict[str, dict[str, Any]] = {
    "dell": {
        "SysProfile": "PerfPerWattOptimizedDapc",
        "ProcCStates": "Enabled",
        "ProcC1E": "Enabled",
        "ProcPwrPerf": "SysDbpm",
        "UncoreFrequency": "DynamicUFS",
        "MonitorMwait": "Enabled",
        "LogicalProc": "Disabled",
        "ProcVirtualization": "Enabled",
        "SriovGlobalEnable": "Enabled",
        "WorkloadProfile": "NotConfigured",
        "BootMode": "Uefi",
    },
    "hpe": {
        "WorkloadProfile": "Custom",
        "MinProcIdlePower": "C6",
        "MinProcIdlePkgState": "C6Retention",
        "EnergyPerfBias": "BalancedPerf",
        "PowerRegulator": "DynamicPowerSavings",
        "ProcHyperthreading": "Disabled",
        "Sriov": "Enabled",
        "BootMode": "Uefi",
    },
    "lenovo": {
        "OperatingModes_ChooseOperatingMode": "CustomMode",
        "Processors_CStates": "Legacy",
        "Processors_C1EnhancedMode": "Enable",
        "Processors_MONITORMWAIT": "Enable",
        "Processors_HyperThreading": "Disable",
        "DevicesandIOPorts_SRIOV": "Enable",
        "BootModes_SystemBootMode": "UEFIMode",
    },
    "supermicro": {
        "PackageCState#0843": "Auto",
        "CPUC6Report#0840": "Enabled",
        "EnhancedHaltState(C1E)#0841": "Enabled",
        "EnableMonitorMWAIT#0842": "Enabled",
        "PowerTechnology#0838": "Energy Efficient",
        "Hyper-Threading[ALL]#0033": "Disabled",
        "SR-IOVSupport#00B5": "Enabled",
        "BootModeSelect#0027": "UEFI",
    },
}

_SYSTEM: dict[str, dict[str, str]] = {
    "dell": {"manufacturer": "Dell Inc.", "model": "PowerEdge XE9680", "bios": "2.6.3", "bmc": "7.20.10.50"},
    "hpe": {"manufacturer": "HPE", "model": "Cray XD670", "bios": "1.48", "bmc": "1.73"},
    "lenovo": {"manufacturer": "Lenovo", "model": "ThinkSystem SR680a V3", "bios": "5.20", "bmc": "4.10"},
    "supermicro": {"manufacturer": "Supermicro", "model": "SYS-821GE-TNHR", "bios": "2.3", "bmc": "01.03.18"},
}

# Intel Sapphire Rapids, as intel_idle knows it (exit latency and target residency in microseconds).
_CSTATES = [
    {"name": "POLL", "desc": "CPUIDLE CORE POLL IDLE", "latency_us": 0, "residency_us": 0},
    {"name": "C1", "desc": "MWAIT 0x00", "latency_us": 1, "residency_us": 1},
    {"name": "C1E", "desc": "MWAIT 0x01", "latency_us": 2, "residency_us": 4},
    {"name": "C6", "desc": "MWAIT 0x20", "latency_us": 290, "residency_us": 800},
]

_CPUS_PER_NODE = 56
_HCA_FIRMWARE = "28.43.2566"


def _digest(*parts: object) -> str:
    return hashlib.sha256("/".join(str(p) for p in parts).encode()).hexdigest()


def _uuid(*parts: object) -> str:
    h = _digest(*parts)
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:32]}"


def _number(digits: int, *parts: object) -> str:
    return str(int(_digest(*parts), 16))[-digits:].rjust(digits, "1")


def guid(rack_id: int, node_index: int, hca_index: int) -> str:
    """Port GUID of a ConnectX-7: NVIDIA's OUI, then rack, node and HCA, so that it is unique in a rack."""
    return f"0xb83fd2{rack_id & 0xFF:02x}{node_index & 0xFFFF:04x}{hca_index & 0xFF:02x}{0:02x}"


def _load(rack: Any) -> dict[str, Any]:
    if isinstance(rack, dict):
        return rack
    with open(os.fspath(rack), encoding="utf-8") as f:
        data = parse_yaml(f.read())
    if not isinstance(data, dict):
        raise ValueError(f"{rack} is not a rack file: it holds no mapping. See simulator/racks/default.yml.")
    data.setdefault("name", os.path.splitext(os.path.basename(os.fspath(rack)))[0])
    return data


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` merged into `base`: mappings by key, lists of mappings by position when over is a mapping of positions."""
    new = dict(base)
    for key, value in over.items():
        old = new.get(key)
        if isinstance(value, dict) and isinstance(old, dict):
            new[key] = merge(old, value)
        elif isinstance(value, dict) and isinstance(old, list):
            items = list(old)
            for position, part in value.items():
                index = int(position)
                items[index] = merge(items[index], part) if isinstance(part, dict) else part
            new[key] = items
        else:
            new[key] = copy.deepcopy(value)
    return new


def _leaf(index: int, count: int) -> str:
    return "leaf1" if index < max(1, count // 2) or count == 1 else "leaf2"


def _hcas(
    board: dict[str, Any], rack_id: int, node_index: int, link_layer: str, numa: list[int]
) -> list[dict[str, Any]]:
    count = len(board["nic_buses"])
    result = []
    for i, bus in enumerate(board["nic_buses"]):
        port_guid = guid(rack_id, node_index, i)
        result.append(
            {
                "name": f"mlx5_{i}",
                "rail": i,
                "numa": numa[i],
                "gpus": list(board["nic_gpus"][i]),
                "leaf": _leaf(i, count),
                "guid": port_guid,
                "node_guid": port_guid,
                "link_layer": link_layer,
                "rate_gbps": 400,
                "firmware": _HCA_FIRMWARE,
                "psid": "MT_0000000838",
                "model": "ConnectX7",
                "part_number": "MCX75310AAS-NEA_Ax",
                "description": "NVIDIA ConnectX-7 HHHL Adapter card; 400GbE / NDR IB (default mode); Single-port OSFP; "
                "PCIe 5.0 x16; Crypto Disabled; Secure Boot Enabled",
                "pci": f"0000:{bus.lower()}:00.0",
                "netdev": f"ibs{i}" if link_layer == "infiniband" else f"eth_rail{i}",
            }
        )
    return result


def _firmware(
    board: dict[str, Any], vendor: str, gpus: list[dict[str, Any]], hcas: list[dict[str, Any]]
) -> dict[str, Any]:
    current: dict[str, str] = {"BIOS": _SYSTEM[vendor]["bios"], "BMC": _SYSTEM[vendor]["bmc"]}
    sxm = board["chassis"] == "SXM"
    for g in gpus:
        name = f"HGX_FW_GPU_SXM_{g['index'] + 1}" if sxm else f"GPU_{g['index'] + 1}_VBIOS"
        current[name] = g["vbios"]
        current[f"HGX_InfoROM_GPU_SXM_{g['index'] + 1}" if sxm else f"GPU_{g['index'] + 1}_InfoROM"] = g["inforom"]
    if sxm:
        for i in range(board["nvswitches"]):
            current[f"HGX_FW_NVSwitch_{i}"] = "96.10.5C.00.01"
            current[f"HGX_InfoROM_NVSwitch_{i}"] = "5612.0002.00.02"
        current["HGX_FW_BMC_0"] = "HGX-22.10-1-rc44"
        current["HGX_FW_FPGA_0"] = "2.53"
        current["HGX_FW_ERoT_BMC_0"] = "00.02.0182.0000_n00"
        current["HGX_0"] = board["bundle"]
    for h in hcas:
        current[f"NIC_{h['rail'] + 1}"] = h["firmware"]
    latest = dict(current)
    # One GPU left behind: firmware work to do on a bare node.
    old = "HGX_FW_GPU_SXM_3" if sxm else "GPU_1_VBIOS"
    if old in current:
        current[old] = board["old_vbios"]
    return {"current": current, "pending": {}, "latest": latest}


def _peers(rack: dict[str, Any], rack_id: int) -> dict[str, Any]:
    """Who answers at which port GUID: the part of the fabric the fake RDMA tools need."""
    peers: dict[str, Any] = {}
    for index, node in enumerate(rack["nodes"], start=1):
        name = node["name"] if isinstance(node, dict) else str(node)
        board = _BOARD[(node.get("board") if isinstance(node, dict) else None) or rack.get("board", "hgx_h100_8")]
        count = len(board["nic_buses"])
        for i in range(count):
            peers[guid(rack_id, index, i)] = {
                "ip": f"172.31.{rack_id}.{10 + index}",
                "node": name,
                "hca": f"mlx5_{i}",
                "leaf": _leaf(i, count),
            }
    return peers


def build(rack: Any, node: str) -> dict[str, Any]:
    """The hardware description of `node` in `rack` (a rack file's path, or its content)."""
    rack = _load(rack)
    rack_name = str(rack.get("name", "rack"))
    rack_id = int(rack["id"])
    names = [n["name"] if isinstance(n, dict) else str(n) for n in rack["nodes"]]
    if node not in names:
        raise ValueError(f"The rack {rack_name} has no node {node!r}. Its nodes are: {', '.join(names)}.")
    index = names.index(node) + 1
    own = rack["nodes"][index - 1]
    own = own if isinstance(own, dict) else {}
    board_name = own.get("board") or rack.get("board", "hgx_h100_8")
    vendor = own.get("vendor") or rack.get("vendor", "dell")
    if board_name not in _BOARD:
        raise ValueError(f"Unknown board {board_name!r} of node {node}. Use one of: {', '.join(BOARDS)}.")
    if vendor not in _BIOS:
        raise ValueError(f"Unknown vendor {vendor!r} of node {node}. Use one of: {', '.join(VENDORS)}.")
    link_layer = own.get("link_layer") or rack.get("link_layer", "infiniband")
    if link_layer not in ("infiniband", "ethernet"):
        raise ValueError(f"Unknown link_layer {link_layer!r} of node {node}. Use infiniband or ethernet.")
    board = _BOARD[board_name]

    numa = [
        {
            "id": i,
            "cpus": f"{i * _CPUS_PER_NODE}-{(i + 1) * _CPUS_PER_NODE - 1}",
            "mem_gb": 1024,
        }
        for i in range(board["numa_nodes"])
    ]
    gpus = [
        {
            "index": i,
            "uuid": "GPU-" + _uuid(rack_name, node, "gpu", i),
            "product": board["product"],
            "vbios": board["vbios"],
            "inforom": board["inforom"],
            "serial": "165" + _number(10, rack_name, node, "serial", i),
            "bus_id": f"00000000:{bus}:00.0",
            "numa": board["gpu_numa"][i],
            "memory_mib": board["memory_mib"],
            "power_limit_w": board["power_w"],
            "pcie": {"gen": 5, "width": 16},
            "ecc": {
                "volatile_corrected": 0,
                "volatile_uncorrected": 0,
                "aggregate_corrected": 0,
                "aggregate_uncorrected": 0,
            },
            "remap": {"correctable": 0, "uncorrectable": 0, "pending": False, "failed": False},
            "mig": False,
        }
        for i, bus in enumerate(board["buses"])
    ]
    nic_numa = [board["gpu_numa"][g[0]] for g in board["nic_gpus"]]
    hcas = _hcas(board, rack_id, index, link_layer, nic_numa)
    mlxconfig = {
        "LINK_TYPE_P1": "IB(1)" if link_layer == "infiniband" else "ETH(2)",
        "ROCE_CC_PRIO_MASK_P1": "0",
        "CNP_DSCP_P1": "48",
        "CNP_802P_PRIO_P1": "6",
        "ATS_ENABLED": "False(0)",
        "PCI_WR_ORDERING": "per_mkey(0)",
        "ADVANCED_PCI_SETTINGS": "False(0)",
        "MAX_ACC_OUT_READ": "0",
        "ROCE_ADAPTIVE_ROUTING_EN": "False(0)",
        "USER_PROGRAMMABLE_CC": "False(0)",
        "SRIOV_EN": "False(0)",
        "NUM_OF_VFS": "0",
        "KEEP_IB_LINK_UP_P1": "False(0)",
        "KEEP_ETH_LINK_UP_P1": "True(1)",
        "ROCE_NEXT_PROTOCOL": "254",
    }
    hw: dict[str, Any] = {
        "name": node,
        "rack": rack_name,
        "board": board_name,
        "vendor": vendor,
        "system": {
            "manufacturer": _SYSTEM[vendor]["manufacturer"],
            "model": _SYSTEM[vendor]["model"],
            "serial": _digest(rack_name, node, "system")[:7].upper(),
            "uuid": _uuid(rack_name, node, "system"),
            "cpu": "Intel(R) Xeon(R) Platinum 8480C",
        },
        "numa": numa,
        "gpus": gpus,
        "gpu_board": {"device_id": board["device_id"], "subsystem_id": board["subsystem_id"], "part": board["part"]},
        "nvlink": {
            "links": board["links"],
            "mesh": board["mesh"],
            "width": board.get("width", board["links"]),
            "speed_gbs": 26.562,
        },
        "nvswitches": [{"index": i} for i in range(board["nvswitches"])],
        "hcas": hcas,
        "driver": {"cuda": "13.0"},
        "firmware": _firmware(board, vendor, gpus, hcas),
        "bios": {"current": dict(_BIOS[vendor]), "pending": {}, "ignore_writes": False},
        "mlxconfig": {
            "default": mlxconfig,
            "current": {h["name"]: dict(mlxconfig) for h in hcas},
            "pending": {},
        },
        "cstates": {"states": [dict(s) for s in _CSTATES], "kernel_ignores_bios": False},
        "ib": {"server": f"172.31.{rack_id}.2", "port": 7070, "peers": _peers(rack, rack_id)},
        "rdma": {"direct_us": 1.45, "switch_us": 0.2, "bandwidth_share": 0.98},
        "nccl": {"share": 1.0},
        "engine": {"model": "sim-8b", "tokens_per_s": 120.0, "weights": "/srv/models/tiny-llama"},
        "clock": {},
        "faults": list(own.get("faults") or []),
        "counters": {"power_cycles": 0, "installs": 0},
    }
    hw = merge(hw, own.get("hardware") or {})
    for fault in hw["faults"]:
        faults.parse(fault, hw)
    return hw


def main() -> int:
    if len(sys.argv) != 3:
        print("usage: python -m simhw.describe RACK_FILE NODE", file=sys.stderr)
        return 2
    try:
        sys.stdout.write(dump_yaml(build(sys.argv[1], sys.argv[2])))
    except (ValueError, OSError, KeyError) as e:
        print(f"describe: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

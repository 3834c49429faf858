# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every fault the simulated hardware knows: one table, one parser.

A fault is a string in the description's `faults`. `effective(hw)` applies them to a copy, and the tools answer
from that copy, so a fault is healed by removing the string. Faults that live in the kernel (idle states, clock,
kernel log, services, weights, missing tools) are listed under the copy's `kernel` key; `simhw apply-faults`
brings the node in line with it in both directions.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any, NamedTuple

Hw = dict[str, Any]
Match = re.Match[str]

XIDS: dict[int, str] = {
    13: "Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address",
    31: "pid=4242, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted @ "
    "0x7f2d_36e00000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ",
    48: "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the "
    "framebuffer at partition 0, subpartition 0.",
    63: "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate.",
    64: "pid='<unknown>', name=<unknown>, Row Remapper: Error: All reserved rows for bank are remapped.",
    74: "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 3(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, "
    "0x0)",
    79: "pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    94: "pid=4242, name=python3, Contained: CE User Channel (0x9). RST: No, D-RST: No",
    95: "pid=4242, name=python3, Uncontained: FBHUB. RST: Yes, D-RST: No",
    119: "pid=4242, name=nvidia-smi, Timeout after 6s of waiting for RPC response from GPU3 GSP! Expected function 76 "
    "(GSP_RM_CONTROL) (0x20802a02 0x4).",
    145: "pid='<unknown>', name=<unknown>, NVLINK: RLW Error, link 07 Sub-error 0x4, Non-fatal",
    149: "pid='<unknown>', name=<unknown>, NVLINK: NETIR Error, link 07 Sub-error 0x2, Fatal",
    154: "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
}


class Fault(NamedTuple):
    pattern: str
    example: str
    description: str
    effect: Callable[[Hw, Match], None]


def _gpu(hw: Hw, m: Match) -> Hw:
    index = int(m["gpu"])
    for g in hw["gpus"]:
        if g["index"] == index:
            return dict_of(g)
    raise ValueError(f"the node has no GPU {index}: it has {', '.join(str(g['index']) for g in hw['gpus'])}")


def dict_of(value: Any) -> Hw:
    assert isinstance(value, dict)
    return value


def _hca(hw: Hw, m: Match) -> Hw:
    for h in hw["hcas"]:
        if h["name"] == m["hca"]:
            return dict_of(h)
    raise ValueError(f"the node has no HCA {m['hca']}: it has {', '.join(h['name'] for h in hw['hcas'])}")


def _port(hw: Hw, m: Match) -> Hw:
    return dict_of(_hca(hw, m)["port"])


def _gpu_lost(hw: Hw, m: Match) -> None:
    g = _gpu(hw, m)
    g["state"] = "lost"
    hw["kernel"]["xids"].append([79, g["index"]])


def _gpu_set(key: str, value: Any = None, group: str = "value") -> Callable[[Hw, Match], None]:
    def effect(hw: Hw, m: Match) -> None:
        _gpu(hw, m)[key] = m[group] if value is None else value

    return effect


def _cell(hw: Hw, m: Match) -> None:
    a, b = int(m["a"]), int(m["b"])
    count = len(hw["gpus"])
    if a == b or a >= count or b >= count:
        raise ValueError(f"a link joins two different GPUs of 0-{count - 1}")
    hw["nvlink"]["cells"][f"{min(a, b)}-{max(a, b)}"] = m["value"]


def _nic_cell(hw: Hw, m: Match) -> None:
    g, h = _gpu(hw, m), _hca(hw, m)
    hw["nvlink"]["nic_cells"][f"{g['index']}-{h['name']}"] = m["value"]


def _link(hw: Hw, m: Match) -> tuple[str, Hw]:
    g = _gpu(hw, m)
    links = int(hw["nvlink"]["links"])
    if int(m["link"]) >= links:
        raise ValueError(f"the GPUs of this board have {links} NVLinks, numbered from 0")
    return f"{g['index']}/{int(m['link'])}", dict_of(hw["nvlink"])


def _link_down(hw: Hw, m: Match) -> None:
    key, nvlink = _link(hw, m)
    nvlink["down"].append(key)


def _link_speed(hw: Hw, m: Match) -> None:
    key, nvlink = _link(hw, m)
    nvlink["speeds"][key] = float(m["value"])


def _link_errors(hw: Hw, m: Match) -> None:
    key, nvlink = _link(hw, m)
    nvlink["errors"][key] = {m["kind"]: int(m["value"])}


def _fabric(state: str, status: str) -> Callable[[Hw, Match], None]:
    def effect(hw: Hw, m: Match) -> None:
        for g in hw["gpus"] if "gpu" not in m.re.groupindex else [_gpu(hw, m)]:
            g["fabric"] = [state, status]

    return effect


def _set(*keys: str, value: Any = None, number: bool = False, scale: float = 1.0) -> Callable[[Hw, Match], None]:
    """Set one value of the view: the pattern's group `value`, or a constant."""

    def effect(hw: Hw, m: Match) -> None:
        place = hw
        for key in keys[:-1]:
            place = place.setdefault(key, {})
        place[keys[-1]] = (float(m["value"]) * scale if number else m["value"]) if value is None else value

    return effect


def _ecc(hw: Hw, m: Match) -> None:
    ecc = _gpu(hw, m)["ecc"]
    for span in ("volatile", "aggregate"):
        ecc[f"{span}_{m['kind']}"] += int(m["value"])


def _sram_threshold(hw: Hw, m: Match) -> None:
    _gpu(hw, m)["ecc"]["sram_threshold"] = True


def _remap(hw: Hw, m: Match) -> None:
    g = _gpu(hw, m)
    g["remap"]["uncorrectable"] += 1
    g["remap"][m["value"]] = True
    g["recovery"] = "Reset" if m["value"] == "pending" else "None"


def _pcie(hw: Hw, m: Match) -> None:
    pcie = _gpu(hw, m)["pcie"]
    if m["value"].startswith("x"):
        pcie["current_width"] = int(m["value"][1:])
    else:
        pcie["current_gen"] = int(m["value"][3:])


CLOCK_REASONS = {
    "hw slowdown": "hw_slowdown",
    "hw thermal slowdown": "hw_thermal_slowdown",
    "hw power brake": "hw_power_brake_slowdown",
    "sw thermal slowdown": "sw_thermal_slowdown",
    "sw power cap": "sw_power_cap",
    "sync boost": "sync_boost",
}


def _clocks(hw: Hw, m: Match) -> None:
    _gpu(hw, m).setdefault("reasons", []).append(CLOCK_REASONS[m["value"]])


def _xid(hw: Hw, m: Match) -> None:
    g = _gpu(hw, m)
    hw["kernel"]["xids"].append([int(m["xid"]), g["index"]])


_PORT_STATES = {
    # ibstat's State and Physical state
    "Polling": ("Down", "Polling"),
    "Initializing": ("Initializing", "LinkUp"),
    "Armed": ("Armed", "LinkUp"),
    "Disabled": ("Down", "Disabled"),
    "Down": ("Down", "Polling"),
}


def _port_state(hw: Hw, m: Match) -> None:
    p = _port(hw, m)
    p["state"], p["phys"] = _PORT_STATES[m["value"]]


def _no_cable(hw: Hw, m: Match) -> None:
    p = _port(hw, m)
    p["state"], p["phys"] = _PORT_STATES["Polling"]
    _hca(hw, m)["rate_gbps"] = 0


def _dcqcn_off(hw: Hw, m: Match) -> None:
    h = _hca(hw, m)
    h["dcqcn"] = "off"
    _mlx(hw, h["name"])["ROCE_CC_PRIO_MASK_P1"] = "0"


def _port_ethernet(hw: Hw, m: Match) -> None:
    _hca(hw, m)["link_layer"] = "ethernet"


def _hca_set(key: str, number: bool = False) -> Callable[[Hw, Match], None]:
    def effect(hw: Hw, m: Match) -> None:
        _hca(hw, m)[key] = int(m["value"]) if number else m["value"]

    return effect


def _hca_firmware(hw: Hw, m: Match) -> None:
    h = _hca(hw, m)
    h["firmware"] = m["value"]
    hw["firmware"]["current"][f"NIC_{h['rail'] + 1}"] = m["value"]


def _port_count(key: str) -> Callable[[Hw, Match], None]:
    def effect(hw: Hw, m: Match) -> None:
        _port(hw, m)[key] = int(m["value"])

    return effect


def _port_number(key: str, scale: float = 1.0) -> Callable[[Hw, Match], None]:
    def effect(hw: Hw, m: Match) -> None:
        _port(hw, m)[key] = float(m["value"]) * scale

    return effect


def _hca_missing(hw: Hw, m: Match) -> None:
    _hca(hw, m)["state"] = "missing"


def _latency_all(hw: Hw, m: Match) -> None:
    for h in hw["hcas"]:
        h["port"]["extra_us"] += float(m["value"])


def _latency_leaf(hw: Hw, m: Match) -> None:
    hw["rdma"]["leaf_us"][m["leaf"]] = float(m["value"])


def _tool(hw: Hw, m: Match) -> None:
    hw["tools"][m["tool"]] = m["value"]
    if m["value"] == "missing":
        hw["kernel"]["missing_tools"].append(m["tool"])
    else:
        hw["kernel"]["shimmed_tools"].append(m["tool"])


def _cstate(hw: Hw, m: Match) -> None:
    cpus = sum(int(n["cpus"].split("-")[1]) - int(n["cpus"].split("-")[0]) + 1 for n in hw["numa"])
    names = [s["name"] for s in hw["cstates"]["states"]]
    if int(m["cpu"]) >= cpus:
        raise ValueError(f"the node has CPUs 0-{cpus - 1}")
    if m["value"] not in names:
        raise ValueError(f"the CPU has the idle states {', '.join(names)}")
    hw["cstates"]["forced"][str(int(m["cpu"]))] = m["value"]


def _stuck(hw: Hw, m: Match) -> None:
    name = m["value"] or "*"
    if name != "*" and name not in hw["firmware"]["current"]:
        raise ValueError(f"the node has no firmware {name}: it has {', '.join(hw['firmware']['current'])}")
    hw["firmware"].setdefault("stuck", []).append(name)


def _service(hw: Hw, m: Match) -> None:
    hw["kernel"]["services"][m["unit"]] = m["value"]


def _engine(hw: Hw, m: Match) -> None:
    """For one inference unit (`engine iu0: …`), or for all of the node."""
    hw["engine"].setdefault("faults", {})["*" if m["iu"] is None else f"iu{int(m['iu'])}"] = m["value"]


def _fm_version(hw: Hw, m: Match) -> None:
    hw["driver"]["fabricmanager"] = m["value"]
    hw["kernel"]["restart"].append("nvidia-fabricmanager.service")


def _numa_gpu(hw: Hw, m: Match) -> None:
    node = int(m["value"])
    if node not in [n["id"] for n in hw["numa"]]:
        raise ValueError(f"the node has the NUMA nodes {', '.join(str(n['id']) for n in hw['numa'])}")
    _gpu(hw, m)["numa"] = node


def _numa_off(hw: Hw, m: Match) -> None:
    last = hw["numa"][-1]["cpus"].split("-")[1]
    hw["numa"] = [{"id": 0, "cpus": f"0-{last}", "mem_gb": sum(n["mem_gb"] for n in hw["numa"])}]
    for device in [*hw["gpus"], *hw["hcas"]]:
        device["numa"] = 0


def _recovery(hw: Hw, m: Match) -> None:
    _gpu(hw, m)["recovery"] = {
        "reset": "Reset",
        "reboot": "Reboot",
        "drain p2p": "Drain P2P",
        "drain and reset": "Drain and Reset",
    }[m["value"]]


_G = r"gpu (?P<gpu>\d{1,2})"
_H = r"(?P<hca>[a-z][a-z0-9_]*)"
_VERSION = r"(?P<value>[0-9A-Za-z][0-9A-Za-z.\-_]*)"


def _unit_unbound(hw: Hw, m: Match) -> None:
    hw["numactl"].setdefault("unbound_units", []).append(m["iu"])


def _cstate_ignored(hw: Hw, m: Match) -> None:
    """Force the deepest state; simhw apply-faults sets its disable flag, and simhw tick does not care."""
    cpus = sum(int(n["cpus"].split("-")[1]) - int(n["cpus"].split("-")[0]) + 1 for n in hw["numa"])
    if int(m["cpu"]) >= cpus:
        raise ValueError(f"the node has CPUs 0-{cpus - 1}")
    deepest = max(hw["cstates"]["states"], key=lambda s: int(s["latency_us"]))
    hw["cstates"]["forced"][str(int(m["cpu"]))] = deepest["name"]
    hw["cstates"].setdefault("ignores_flag", []).append(int(m["cpu"]))


CATALOG: tuple[Fault, ...] = (
    # --- GPUs
    Fault(
        rf"{_G}: fell off the bus",
        "gpu 3: fell off the bus",
        "nvidia-smi cannot open the GPU ('GPU is lost', rc 15), Xid 79 in the kernel log",
        _gpu_lost,
    ),
    Fault(
        rf"{_G}: missing",
        "gpu 3: missing",
        "the GPU is not there after boot: one fewer in every list",
        _gpu_set("state", "missing"),
    ),
    Fault(
        rf"{_G}: product (?P<value>.+)",
        "gpu 3: product NVIDIA H200",
        "another GPU model in that slot",
        _gpu_set("product"),
    ),
    Fault(
        rf"{_G}: vbios {_VERSION}",
        "gpu 3: vbios 96.00.89.00.01",
        "the GPU runs another VBIOS than the firmware inventory says",
        _gpu_set("vbios_override"),
    ),
    Fault(
        rf"{_G}: temperature (?P<value>\d+)", "gpu 3: temperature 91", "GPU temperature in C", _gpu_set("temperature")
    ),
    Fault(
        rf"ecc {_G}: (?P<kind>uncorrected|corrected) (?P<value>\d+)",
        "ecc gpu 1: uncorrected 2",
        "ECC errors, volatile and aggregate",
        _ecc,
    ),
    Fault(
        rf"ecc {_G}: sram threshold",
        "ecc gpu 1: sram threshold",
        "the driver says that the GPU has too many uncorrectable SRAM errors",
        _sram_threshold,
    ),
    Fault(
        rf"repair {_G}: (?P<value>channel|tpc) pending",
        "repair gpu 1: channel pending",
        "a memory channel or a TPC waits for a reset to be repaired",
        _gpu_set("repair"),
    ),
    Fault(
        rf"gsp {_G}: version {_VERSION}",
        "gsp gpu 1: version 580.82.07",
        "the GPU's GSP runs firmware of another driver",
        _gpu_set("gsp"),
    ),
    Fault(rf"ecc {_G}: off", "ecc gpu 1: off", "ECC mode disabled", _gpu_set("ecc_mode", "Disabled")),
    Fault(
        rf"remap {_G}: (?P<value>pending|failed)",
        "remap gpu 1: pending",
        "row remapping pending (needs a reset) or failed",
        _remap,
    ),
    Fault(
        rf"pcie {_G}: (?P<value>x(?:1|2|4|8)|gen[1-4])",
        "pcie gpu 2: x8",
        "PCIe link trained narrower or slower than the slot",
        _pcie,
    ),
    Fault(
        rf"clocks {_G}: (?P<value>{'|'.join(CLOCK_REASONS)})",
        "clocks gpu 2: hw slowdown",
        "a clocks event reason is Active",
        _clocks,
    ),
    Fault(rf"mig {_G}: on", "mig gpu 0: on", "MIG mode enabled", _gpu_set("mig", True)),
    Fault(
        rf"persistence {_G}: off",
        "persistence gpu 0: off",
        "persistence mode stays off",
        _gpu_set("persistence", "off"),
    ),
    Fault(
        rf"recovery {_G}: (?P<value>reset|reboot|drain p2p|drain and reset)",
        "recovery gpu 4: reboot",
        "the driver asks for this recovery action",
        _recovery,
    ),
    Fault(
        rf"xid (?P<xid>{'|'.join(str(x) for x in XIDS)}) {_G}",
        "xid 79 gpu 3",
        f"an NVRM Xid line in the kernel log (known: {', '.join(str(x) for x in XIDS)})",
        _xid,
    ),
    # --- NVLink and fabric
    Fault(
        r"link (?P<a>\d)-(?P<b>\d): (?P<value>NV\d{1,2}|PIX|PXB|PHB|NODE|SYS)",
        "link 0-2: NV17",
        "this cell of nvidia-smi topo -m, both directions",
        _cell,
    ),
    Fault(
        rf"affinity {_G} {_H}: (?P<value>PIX|PXB|PHB|NODE|SYS)",
        "affinity gpu 2 mlx5_2: SYS",
        "this GPU-NIC cell of nvidia-smi topo -m, both directions",
        _nic_cell,
    ),
    Fault(
        r"nvlink (?P<gpu>\d)/(?P<link>\d{1,2}): down",
        "nvlink 3/5: down",
        "one link of one GPU inactive: nvlink -s shows <inactive>, its pairs lose one NV#",
        _link_down,
    ),
    Fault(
        r"nvlink (?P<gpu>\d)/(?P<link>\d{1,2}): speed (?P<value>\d+(?:\.\d+)?)",
        "nvlink 3/5: speed 13.281",
        "one link runs at this speed in GB/s",
        _link_speed,
    ),
    Fault(
        r"nvlink (?P<gpu>\d)/(?P<link>\d{1,2}): (?P<kind>replay|recovery|crc) errors (?P<value>\d+)",
        "nvlink 3/5: crc errors 12",
        "error counters of one link (nvlink -e)",
        _link_errors,
    ),
    Fault(
        r"fabric: in progress",
        "fabric: in progress",
        "no GPU finishes its fabric registration",
        _fabric("In Progress", "N/A"),
    ),
    Fault(
        rf"fabric {_G}: in progress",
        "fabric gpu 5: in progress",
        "one GPU does not finish its fabric registration",
        _fabric("In Progress", "N/A"),
    ),
    Fault(
        rf"fabric {_G}: route unhealthy",
        "fabric gpu 5: route unhealthy",
        "the fabric's health of one GPU names an unhealthy route",
        _gpu_set("route_unhealthy", True),
    ),
    Fault(
        rf"fabric {_G}: clique (?P<value>\d{{1,4}})",
        "fabric gpu 5: clique 1",
        "one GPU is in another clique of the fabric",
        _gpu_set("clique"),
    ),
    Fault(
        r"fabric: insufficient resources",
        "fabric: insufficient resources",
        "fabric state Completed, but status Insufficient Resources",
        _fabric("Completed", "Insufficient Resources"),
    ),
    Fault(
        rf"fabricmanager: version {_VERSION}",
        "fabricmanager: version 580.82.07",
        "nv-fabricmanager is of another version than the driver: it refuses to start",
        _fm_version,
    ),
    Fault(
        r"driver: mismatch",
        "driver: mismatch",
        "nvidia-smi: Driver/library version mismatch (rc 18)",
        _set("driver", "mismatch", value=True),
    ),
    Fault(
        r"driver: not loaded",
        "driver: not loaded",
        "nvidia-smi cannot communicate with the NVIDIA driver (rc 9)",
        _set("driver", "unloaded", value=True),
    ),
    # --- NCCL
    Fault(
        r"nccl: (?P<value>\d{1,3})%",
        "nccl: 60%",
        "all_reduce_perf reaches this share of the usual bandwidth",
        _set("nccl", "share", number=True, scale=0.01),
    ),
    Fault(r"nccl: wrong", "nccl: wrong", "#wrong above 0 in the last rows", _set("nccl", "wrong", value=3)),
    Fault(
        r"nccl: unchecked",
        "nccl: unchecked",
        "all_reduce_perf prints N/A for #wrong though it was asked to check",
        _set("nccl", "unchecked", value=True),
    ),
    Fault(
        r"nccl: cut off",
        "nccl: cut off",
        "all_reduce_perf ends in the middle of its table, rc 0",
        _set("nccl", "cut", value=True),
    ),
    Fault(
        r"nccl: fails",
        "nccl: fails",
        "all_reduce_perf stops with an unhandled system error",
        _set("nccl", "fails", value=True),
    ),
    # --- HCAs and ports
    Fault(
        rf"port {_H}: (?P<value>Polling|Initializing|Armed|Disabled|Down)",
        "port mlx5_1: Polling",
        "logical/physical port state",
        _port_state,
    ),
    Fault(
        rf"port {_H}: no cable",
        "port mlx5_1: no cable",
        "the port has no cable or no transceiver: Down, Polling, and a rate of 0",
        _no_cable,
    ),
    Fault(
        rf"dcqcn {_H}: off",
        "dcqcn mlx5_1: off",
        "the adapter's firmware reacts to congestion on no priority (ROCE_CC_PRIO_MASK_P1 is 0)",
        _dcqcn_off,
    ),
    Fault(
        rf"port {_H}: rate (?P<value>\d+)",
        "port mlx5_1: rate 200",
        "link trained at this rate in Gb/s",
        _hca_set("rate_gbps", number=True),
    ),
    Fault(rf"port {_H}: ethernet", "port mlx5_1: ethernet", "link layer Ethernet on an IB rail", _port_ethernet),
    Fault(
        rf"port {_H}: firmware {_VERSION}", "port mlx5_1: firmware 28.39.1002", "another HCA firmware", _hca_firmware
    ),
    Fault(
        rf"port {_H}: symbol errors (?P<value>\d+)",
        "port mlx5_1: symbol errors 5000",
        "SymbolErrorCounter of the port",
        _port_count("symbol_errors"),
    ),
    Fault(
        rf"port {_H}: link downed (?P<value>\d+)",
        "port mlx5_1: link downed 3",
        "LinkDownedCounter of the port",
        _port_count("link_downed"),
    ),
    Fault(rf"hca {_H}: missing", "hca mlx5_5: missing", "the adapter is not on the bus", _hca_missing),
    Fault(
        rf"loss {_H}: (?P<value>\d+(?:\.\d+)?)%",
        "loss mlx5_1: 0.1%",
        "ibping through this port loses this share of its packets",
        _port_number("loss", 0.01),
    ),
    Fault(
        rf"latency {_H}: \+(?P<value>\d+(?:\.\d+)?)us",
        "latency mlx5_1: +1us",
        "one cable: every path through this port is slower",
        _port_number("extra_us"),
    ),
    Fault(r"latency: \+(?P<value>\d+(?:\.\d+)?)us", "latency: +1us", "every port of the node is slower", _latency_all),
    Fault(
        r"latency leaf (?P<leaf>[a-z]+\d+): \+(?P<value>\d+(?:\.\d+)?)us",
        "latency leaf leaf1: +1us",
        "every path of this node through that leaf is slower (set it on every node for a bad leaf)",
        _latency_leaf,
    ),
    Fault(
        rf"bandwidth {_H}: (?P<value>\d{{1,3}})%",
        "bandwidth mlx5_1: 50%",
        "ib_write_bw through this port reaches this share",
        _port_number("bandwidth", 0.01),
    ),
    # --- CPU, BIOS, firmware, NUMA
    Fault(
        r"cstate cpu (?P<cpu>\d{1,3}): (?P<value>C\w+) enabled",
        "cstate cpu 7: C6 enabled",
        "one CPU offers a deep idle state, enabled, and its residency grows",
        _cstate,
    ),
    Fault(
        r"cstate cpu (?P<cpu>\d{1,3}): grows although disabled",
        "cstate cpu 7: grows although disabled",
        "the residency of the CPU's deepest state grows whatever its disable flag says",
        _cstate_ignored,
    ),
    Fault(
        r"cstates: kernel ignores bios",
        "cstates: kernel ignores bios",
        "intel_idle uses its own table whatever the BIOS says",
        _set("cstates", "kernel_ignores_bios", value=True),
    ),
    Fault(
        r"bios: ignores writes",
        "bios: ignores writes",
        "the BMC accepts BIOS settings and nothing changes at power-on",
        _set("bios", "ignore_writes", value=True),
    ),
    Fault(
        r"firmware(?: (?P<value>[A-Za-z0-9_]+))?: update fails",
        "firmware: update fails",
        "accepted firmware (all, or one component) is not there after the power-on",
        _stuck,
    ),
    Fault(rf"numa {_G}: (?P<value>\d)", "numa gpu 2: 1", "the GPU reports another NUMA node", _numa_gpu),
    Fault(r"numa: off", "numa: off", "the host was booted with one NUMA node", _numa_off),
    Fault(
        r"numactl: ignores binding",
        "numactl: ignores binding",
        "numactl runs the command unbound",
        _set("numactl", "unbound", value=True),
    ),
    Fault(
        r"numa memory: (?P<value>\d{1,2})% remote",
        "numa memory: 22% remote",
        "so much of every bound engine's memory is on the other NUMA node, as when it is bound after its start",
        _set("numactl", "remote", number=True, scale=0.01),
    ),
    Fault(
        r"unit (?P<iu>iu\d{1,2}): unbound",
        "unit iu0: unbound",
        "the engine runs without its binding: on every CPU, its memory spread over the nodes",
        _unit_unbound,
    ),
    # --- clock
    Fault(
        r"clock: unsynchronised",
        "clock: unsynchronised",
        "UDP 123 is dropped in the node: chronyd loses its servers",
        _set("kernel", "clock_drop", value=True),
    ),
    Fault(
        r"clock: offset (?P<value>-?\d+(?:\.\d+)?)ms",
        "clock: offset 250ms",
        "every time server answers with this error",
        _set("kernel", "clock_offset_s", number=True, scale=0.001),
    ),
    Fault(
        r"clock: local only",
        "clock: local only",
        "UDP 123 is dropped and chronyd serves its own clock as a reference",
        _set("kernel", "clock_local", value=True),
    ),
    Fault(
        r"clock: wrong servers",
        "clock: wrong servers",
        "chronyd has a time server nobody configured",
        _set("kernel", "clock_foreign", value=True),
    ),
    # --- serving
    Fault(
        r"engine(?: iu(?P<iu>\d{1,2}))?: (?P<value>never answers)",
        "engine: never answers",
        "the engine accepts requests and never answers",
        _engine,
    ),
    Fault(
        r"engine(?: iu(?P<iu>\d{1,2}))?: (?P<value>no token)",
        "engine: no token",
        "the engine is healthy and its answers hold no token",
        _engine,
    ),
    Fault(
        r"engine(?: iu(?P<iu>\d{1,2}))?: (?P<value>not ready)",
        "engine: not ready",
        "the engine never becomes healthy",
        _engine,
    ),
    Fault(
        r"engine(?: iu(?P<iu>\d{1,2}))?: (?P<value>crashes)",
        "engine: crashes",
        "the engine exits during start",
        _engine,
    ),
    Fault(
        r"engine(?: iu(?P<iu>\d{1,2}))?: slow (?P<value>\d+(?:\.\d+)?) tokens/s",
        "engine: slow 2 tokens/s",
        "decoding speed",
        _engine,
    ),
    Fault(
        r"weights: corrupt",
        "weights: corrupt",
        "one byte of the largest file under the weights directory is flipped",
        _set("kernel", "weights", value=True),
    ),
    Fault(
        r"service (?P<unit>[A-Za-z0-9@_.\-]+): (?P<value>stopped|killed)",
        "service consul.service: killed",
        "a systemd unit is stopped, or killed without a goodbye, and kept down",
        _service,
    ),
    # --- any tool
    Fault(
        r"tool (?P<tool>[A-Za-z0-9_\-]+): (?P<value>missing|hangs|garbage|empty|error exit 0|exit \d{1,3}|slow "
        r"\d{1,4}s)",
        "tool nvidia-smi: hangs",
        "the tool is missing, hangs, prints garbage, prints nothing, prints an error with exit status 0, exits with a "
        "status, or answers late",
        _tool,
    ),
)

_COMPILED: list[tuple[re.Pattern[str], Fault]] = []


def _find(text: str) -> tuple[Match, Fault] | None:
    if not _COMPILED:
        _COMPILED.extend((re.compile(f.pattern), f) for f in CATALOG)
    for pattern, fault in _COMPILED:
        m = pattern.fullmatch(text)
        if m:
            return m, fault
    return None


def catalogue_text() -> str:
    """The faults for people: one line each."""
    width = max(len(f.example) for f in CATALOG)
    return "\n".join(f"  {f.example.ljust(width)}  {f.description}" for f in CATALOG)


def parse(text: str, hw: Hw) -> Fault:
    """The fault `text` means on this hardware; ValueError says what is wrong and lists the good ones."""
    found = _find(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"Unknown fault {text!r}. Good ones look like:\n{catalogue_text()}")
    m, fault = found
    try:
        fault.effect(_view(hw), m)
    except ValueError as e:
        raise ValueError(f"The fault {text!r} does not fit this node: {e}.") from None
    return fault


def _view(hw: Hw) -> Hw:
    v = copy.deepcopy(hw)
    v["kernel"] = {
        "xids": [],
        "missing_tools": [],
        "shimmed_tools": [],
        "services": {},
        "restart": [],
    }
    v["tools"] = {}
    for key in ("nvlink", "driver", "bios", "firmware", "cstates", "rdma", "nccl", "engine", "numactl", "mlxconfig"):
        v.setdefault(key, {})
    v["nvlink"].update({"cells": {}, "nic_cells": {}, "down": [], "speeds": {}, "errors": {}})
    v["cstates"].setdefault("forced", {})
    v["rdma"].setdefault("leaf_us", {})
    v["firmware"].setdefault("current", {})
    for key in ("gpus", "hcas", "numa"):
        v.setdefault(key, [])
    for h in v["hcas"]:
        link = "ETH" if str(_mlx(v, h["name"]).get("LINK_TYPE_P1", "")).startswith("ETH") else "IB"
        if _mlx(v, h["name"]).get("LINK_TYPE_P1"):
            h["link_layer"] = "ethernet" if link == "ETH" else "infiniband"
        h["firmware"] = v["firmware"]["current"].get(f"NIC_{h['rail'] + 1}", h.get("firmware", ""))
        h["port"] = {
            "state": "Active",
            "phys": "LinkUp",
            "symbol_errors": 0,
            "link_downed": 0,
            "loss": 0.0,
            "extra_us": 0.0,
            "bandwidth": 1.0,
        }
    for g in v["gpus"]:
        number = int(g["index"]) + 1
        current = v["firmware"]["current"]
        g["vbios"] = current.get(f"HGX_FW_GPU_SXM_{number}", current.get(f"GPU_{number}_VBIOS", g.get("vbios", "")))
        g["inforom"] = current.get(
            f"HGX_InfoROM_GPU_SXM_{number}", current.get(f"GPU_{number}_InfoROM", g.get("inforom", ""))
        )
        g["pcie"].setdefault("current_gen", g["pcie"]["gen"])
        g["pcie"].setdefault("current_width", g["pcie"]["width"])
    return v


def _mlx(hw: Hw, device: str) -> Hw:
    return dict_of((hw["mlxconfig"].get("current") or {}).get(device) or {})


def effective(hw: Hw) -> Hw:
    """The description with its faults applied (and firmware, mlxconfig carried into the devices)."""
    v = _view(hw)
    for text in hw.get("faults") or []:
        found = _find(text)
        if found is None:
            continue  # a hand-written line nobody knows must not take every tool down; parse() refuses it on entry
        m, fault = found
        try:
            fault.effect(v, m)
        except ValueError:
            continue
    for g in v["gpus"]:
        if "vbios_override" in g:
            g["vbios"] = g["vbios_override"]
    return v

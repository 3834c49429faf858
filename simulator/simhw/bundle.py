# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A support bundle of a simulated node, made in this process: file name to text, no container, no network.

The fake tools run as they do in a node, on a description in a temporary directory. What a node gets from its kernel and
daemons (idle states, kernel log, chrony, systemd, Consul, the engine) is written here from the same description in the
format of the real program, so one fault shows in every file it would show in. The same description, faults and site
give the same bytes, whenever and wherever they are made.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import io
import json
import math
import os
import random
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from simhw import __main__ as program
from simhw import cstates, driver, faults, host, power, rdma, smi_forms
from simhw import hw as store
from simhw.hw import Hw

# The moment every bundle is taken at: 12:00:00 UTC on 30 November 2026, 6000 s after the node's boot.
NOW = 1796040000
UPTIME_S = 6000.0
_TIMESTAMP = "Mon Nov 30 12:00:00 2026"
_FM_STARTED_S = 41.5
_PACKAGE_AGE_S = 86400
_GARBAGE = "\x7fELF\x02\x01\x01 8<<< ### ?\ufffd 0x7fff\tnan,,nan;;\n{]}(( 3.14.15 GPU?? NV-1\n"

KERNEL_PARAMETERS = ("intel_idle.max_cstate=0", "processor.max_cstate=1")


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """What the description does not hold: how the site brought the node up, and how its tools are of age."""

    driver: str = "580.95.05"
    topo_form: str = ""
    chrony: str = "csv"
    time_servers: tuple[str, ...] = ("172.31.99.10",)
    kernel_parameters: tuple[str, ...] = KERNEL_PARAMETERS
    cpuset: str | None = None
    unit_gpus: int = 4
    nccl_size: str = "8G"
    counters: str = "perfquery"
    priority: int = 3
    tos: int = 106


def brought_up(hw: Hw) -> Hw:
    """The description after a good bring-up: BIOS for low latency, all firmware at its latest."""
    new = copy.deepcopy(hw)
    new["firmware"]["current"] = dict(new["firmware"]["latest"])
    new["bios"]["pending"] = {
        "dell": {"SysProfile": "PerfOptimized"},
        "hpe": {"WorkloadProfile": "LowLatency"},
        "lenovo": {"OperatingModes_ChooseOperatingMode": "MaximumPerformance"},
        "supermicro": {"CPUC6Report#0840": "Disabled", "EnhancedHaltState(C1E)#0841": "Disabled"},
    }[str(new["vendor"])]
    if faults.effective(new)["bios"].get("ignore_writes"):
        new["bios"]["pending"] = {}
    if any(h["link_layer"] == "ethernet" for h in new["hcas"]):
        for device in new["mlxconfig"]["current"]:
            new["mlxconfig"]["pending"][device] = {"ROCE_CC_PRIO_MASK_P1": "255"}
    return power.power_on(new)


@contextlib.contextmanager
def machine(hw: Hw, version: str) -> Iterator[Path]:
    """A directory that is the node for the fake tools, named by SIMHW_ROOT while it lives."""
    with tempfile.TemporaryDirectory(prefix="simhw-") as place:
        root = Path(place)
        before = os.environ.get("SIMHW_ROOT")
        os.environ["SIMHW_ROOT"] = place
        try:
            _furnish(root, hw, version)
            yield root
        finally:
            if before is None:
                del os.environ["SIMHW_ROOT"]
            else:
                os.environ["SIMHW_ROOT"] = before


def _furnish(root: Path, hw: Hw, version: str) -> None:
    """Put the description, the installed driver and the state of a running node into the directory."""
    library = root / driver.LIBRARY_DIR.lstrip("/")
    for directory in (root / "var/lib/simhw", root / "run/simhw", library):
        directory.mkdir(parents=True)
    (library / f"libnvidia-ml.so.{version}").touch()
    fm_version = root / "usr/share/nvidia/nvswitch/fabricmanager.version"
    fm_version.parent.mkdir(parents=True)
    fm_version.write_text(version + "\n", encoding="ascii")
    (root / "var/lib/simhw/hw.yml").write_text(json.dumps(hw), encoding="utf-8")
    store.update_state(
        lambda s: s.update(
            driver_loaded=version,
            fabric_trained=True,
            persistence={str(g["index"]): True for g in hw["gpus"]},
        )
    )


def run_tool(*argv: str) -> tuple[int, str]:
    """A fake tool's exit status and what a shell's `> file 2>&1` would hold."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = program.main([f"/usr/bin/{argv[0]}", *argv[1:]])
    return code, out.getvalue() + err.getvalue()


def files(hw: Hw, site: Site | None = None) -> dict[str, str]:
    """Every file of the bundle. A tool that is missing, or that never answered, leaves no file."""
    site = site or Site()
    view = faults.effective(hw)
    texts: dict[str, str] = {}
    with machine(hw, site.driver):
        for tool, name, argv in _tool_runs(view, site):
            if view["tools"].get(tool) not in ("missing", "hangs"):
                texts[name] = _in_style(run_tool(*argv)[1], argv, site)
        texts.update(_nccl(view, site))
        texts.update(_driver_service(view, site))
        texts.update(_roce(view, site))
    for tool, made in (
        ("ibstat", {"ibstat.txt": ibstat(view)}),
        ("perfquery", _counters(view, site)),
        ("chronyc", _chrony(view, site)),
        ("dmesg", _kernel_log(view, site)),
        ("systemctl", _units(view, site)),
        ("curl", _consul(view, site)),
        ("", _host(view, site)),
        ("", _opensm(view)),
    ):
        for name, text in made.items():
            broken = _broken(view, tool, text)
            if broken is not None:
                texts[name] = broken
    return texts


def write(directory: Path, hw: Hw, site: Site | None = None) -> None:
    """Write the bundle's files into a directory."""
    for name, text in files(hw, site).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def _broken(view: Hw, tool: str, text: str) -> str | None:
    """What a broken tool that is not one of the fake ones leaves; None: nothing, not even a file."""
    fault = view["tools"].get(tool)
    if fault in ("missing", "hangs"):
        return None
    if fault == "empty":
        return ""
    if fault == "garbage":
        return _GARBAGE
    if fault == "error exit 0":
        return f"{tool}: Unknown Error\n"
    if fault and fault.startswith("exit "):
        return f"{tool}: failed\n"
    return text


# --- the fake tools


def _tool_runs(view: Hw, site: Site) -> list[tuple[str, str, tuple[str, ...]]]:
    """(tool, file name, command)."""
    smi = "nvidia-smi"
    runs: list[tuple[str, str, tuple[str, ...]]] = [
        (smi, "nvidia-smi-topo-m.txt", (smi, "topo", "-m")),
        (smi, "nvidia-smi-q.txt", (smi, "-q")),
        (smi, "nvidia-smi-nvlink-s.txt", (smi, "nvlink", "-s")),
        (smi, "nvidia-smi-nvlink-e.txt", (smi, "nvlink", "-e")),
        (smi, "nvidia-smi-query-gpu.csv", (smi, "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader")),
        (smi, "nvidia-smi-bus-ids.csv", (smi, "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader")),
        ("numactl", "numactl-hardware.txt", ("numactl", "--hardware")),
    ]
    if view.get("nvswitches"):
        runs.append(("nv-fabricmanager", "nv-fabricmanager-version.txt", ("nv-fabricmanager", "--version")))
    return runs


def _nccl(view: Hw, site: Site) -> dict[str, str]:
    """all_reduce_perf over the whole board and over each inference unit."""
    if view["tools"].get("all_reduce_perf") in ("missing", "hangs"):
        return {}
    size = site.nccl_size
    sets = {"board": driver.present(view)}
    if site.unit_gpus < len(view["gpus"]):
        sets |= dict(zip(unit_names(view, site.unit_gpus), unit_gpus(view, site.unit_gpus), strict=True))
    texts: dict[str, str] = {}
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    try:
        for name, gpus in sets.items():
            os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(g["uuid"] for g in gpus)
            argv = ("all_reduce_perf", "-b", size, "-e", size, "-g", str(len(gpus)), "-n", "20", "-w", "5", "-c", "1")
            texts[f"all_reduce_perf-{name}.txt"] = _in_style(run_tool(*argv)[1], argv, site)
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before
    return texts


def _roce(view: Hw, site: Site) -> dict[str, str]:
    """DCQCN of a RoCE node as the role rdma_fabric leaves it: firmware, queues, connections, the kernel's ECN."""
    texts: dict[str, str] = {}
    ports = [h for h in view["hcas"] if h.get("state") != "missing" and h["link_layer"] == "ethernet"]
    lossless = ",".join("1" if priority == site.priority else "0" for priority in range(8))
    for h in ports:
        run_tool("mlnx_qos", "-i", h["netdev"], "--trust", "dscp", f"--pfc={lossless}")
        run_tool("cma_roce_tos", "-d", h["name"], "-t", str(site.tos))
        texts[f"mlnx_qos-{h['netdev']}.txt"] = run_tool("mlnx_qos", "-i", h["netdev"])[1]
        texts[f"cma_roce_tos-{h['name']}.txt"] = run_tool("cma_roce_tos", "-d", h["name"], "-p", "1")[1]
        texts[f"mlxconfig-{h['name']}.txt"] = run_tool("mlxconfig", "-d", h["name"], "-e", "query")[1]
    if ports:
        texts["netdevs.txt"] = "".join(f"/sys/class/net/{h['netdev']}/device/infiniband/{h['name']}\n" for h in ports)
        texts["ecn.txt"] = "".join(
            f"/sys/class/net/{h['netdev']}/ecn/{side}/enable/{priority}:{int(priority == site.priority)}\n"
            for h in ports
            for side in ("roce_np", "roce_rp")
            for priority in range(8)
        )
    return texts


def _in_style(text: str, argv: tuple[str, ...], site: Site) -> str:
    text = re.sub(r"(?m)^(Timestamp +: ).*$", rf"\g<1>{_TIMESTAMP}", text)
    if argv[1:] == ("-q",):
        return smi_forms.query_text(text, site.driver)
    if argv[1:2] == ("topo",):
        text = smi_forms.topo_text(text, site.topo_form or smi_forms.topo_form(site.driver))
        return text if site.cpuset is None else smi_forms.limit_cpus(text, site.cpuset)
    if argv[0] == "all_reduce_perf":
        # The host's name and the process id are of the machine the bundle is made on.
        text = re.sub(r"(?<=pid )\d+|(?<=Pid )\s*\d+", "4242", text)
        text = re.sub(rf"\b{re.escape(os.uname().nodename)}\b", "node1", text)
    return text


def _driver_service(view: Hw, site: Site) -> dict[str, str]:
    """systemd, dpkg and /proc on Fabric Manager: it refuses to start when it is of another version."""
    if not view.get("nvswitches"):
        return {}
    wrong = str(view["driver"].get("fabricmanager") or site.driver) != site.driver
    state = _service_state(view, "nvidia-fabricmanager.service", failed=wrong or bool(view["driver"].get("unloaded")))
    pid = "1203" if state["ActiveState"] == "active" else "0"
    started = str(int(_FM_STARTED_S * 1e6))
    shown = {**state, "MainPID": pid, "ExecMainStartTimestampMonotonic": started}
    texts = {
        "systemctl-show-fabricmanager.txt": _properties(shown),
        "dpkg-query-fabricmanager.txt": f"installed {view['driver'].get('fabricmanager') or site.driver}-1\n",
        "stat-fabricmanager-list.txt": f"{NOW - _PACKAGE_AGE_S}\n",
    }
    if pid != "0":
        texts["readlink-fabricmanager-exe.txt"] = "/usr/bin/nv-fabricmanager\n"
    return texts


# --- systemd


def _service_state(view: Hw, unit: str, failed: bool = False) -> dict[str, str]:
    how = view["kernel"]["services"].get(unit)
    if how == "stopped":
        return {"LoadState": "loaded", "ActiveState": "inactive", "SubState": "dead", "Result": "success"}
    if how == "killed":
        return {"LoadState": "loaded", "ActiveState": "failed", "SubState": "failed", "Result": "signal"}
    if failed:
        return {"LoadState": "loaded", "ActiveState": "failed", "SubState": "failed", "Result": "exit-code"}
    return {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success"}


def _properties(values: dict[str, str]) -> str:
    return "".join(f"{key}={value}\n" for key, value in values.items())


def unit_names(view: Hw, size: int) -> list[str]:
    """The inference units of a node as the gate inference_units names them."""
    return [f"{view['name']}-iu{i}" for i in range(-(-len(view["gpus"]) // size))]


def unit_gpus(view: Hw, size: int) -> list[list[Hw]]:
    """The GPUs of each unit, those that are not there left out."""
    there = {g["index"] for g in driver.present(view)}
    gpus = view["gpus"]
    return [[g for g in gpus[i : i + size] if g["index"] in there] for i in range(0, len(gpus), size)]


def _engine_fault(view: Hw, index: int) -> str:
    kept = view["engine"].get("faults") or {}
    return str(kept.get(f"iu{index}") or kept.get("*") or "")


def _unit_state(view: Hw, index: int, name: str) -> dict[str, str]:
    fault = _engine_fault(view, index)
    if fault == "not ready":
        return {"LoadState": "loaded", "ActiveState": "activating", "SubState": "start-post", "Result": "success"}
    failed = bool(view["kernel"].get("weights")) or fault == "crashes"
    return _service_state(view, f"vllm@{name}.service", failed=failed)


def _units(view: Hw, site: Site) -> dict[str, str]:
    """State, journal and token reading of each inference unit."""
    texts: dict[str, str] = {}
    for index, name in enumerate(unit_names(view, site.unit_gpus)):
        fault = _engine_fault(view, index)
        unit = f"vllm@{name}.service"
        corrupt = bool(view["kernel"].get("weights"))
        state = _unit_state(view, index, name)
        starting = state["ActiveState"] == "activating"
        down = state["ActiveState"] == "failed"
        shown = {k: v for k, v in state.items() if k != "LoadState"}
        shown |= {"ExecMainStatus": "1" if down else "0", "NRestarts": "3" if down else "0"}
        up = state["ActiveState"] == "active"
        shown["MainPID"] = str(main_pid(index)) if up else "0"
        shown["ControlGroup"] = f"/system.slice/system-vllm.slice/{unit}" if up else ""
        texts[f"{name}.systemctl.txt"] = _properties(shown)
        if corrupt:
            texts[f"{name}.journal.txt"] = (
                "model-00001-of-00002.safetensors: FAILED\n"
                "sha256sum: WARNING: 1 computed checksum did NOT match\n"
                f"{unit}: Control process exited, code=exited, status=1/FAILURE\n"
            )
        elif fault == "crashes":
            texts[f"{name}.journal.txt"] = (
                "RuntimeError: Engine core initialization failed. See root cause above.\n"
                f"{unit}: Main process exited, code=exited, status=1/FAILURE\n"
            )
        elif down or state["ActiveState"] == "inactive":
            texts[f"{name}.journal.txt"] = f"Stopped {unit} - vLLM inference unit {name}.\n"
        texts[f"{name}.json"] = json.dumps(_reading(view, fault, answers=not down and not starting))
    return texts


def _reading(view: Hw, fault: str, answers: bool) -> Hw:
    """What the token probe saw: the engine's /health and /v1/completions."""
    model = str(view["engine"].get("model", "sim-8b"))
    if not answers:
        refused = {"status": None, "body": "", "seconds": 0.002, "error": "Connection refused"}
        return {"health": refused, "completion": None, "model": model}
    health = {"status": 200, "body": "", "seconds": 0.003, "error": ""}
    if fault == "never answers":
        late = {"status": None, "body": "", "seconds": 10.0, "error": "no answer within 10 s"}
        return {"health": health, "completion": late, "model": model}
    text = "" if fault == "no token" else " the"
    slow = re.fullmatch(r"([\d.]+)", fault)
    seconds = 0.12 + 1 / (float(slow[1]) if slow else float(view["engine"].get("tokens_per_s", 120.0)))
    body = {
        "id": "cmpl-0",
        "object": "text_completion",
        "created": NOW,
        "model": model,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "length" if text else "stop"}],
        "usage": {"prompt_tokens": 1, "total_tokens": 2 if text else 1, "completion_tokens": 1 if text else 0},
    }
    answer = {"status": 200, "body": json.dumps(body), "seconds": round(seconds, 3), "error": ""}
    return {"health": health, "completion": answer, "model": model}


# --- InfiniBand


def ibstat(view: Hw) -> str:
    """ibstat of infiniband-diags 44.0."""
    out = []
    for h in view["hcas"]:
        if h.get("state") == "missing":
            continue
        port = h["port"]
        ethernet = h["link_layer"] == "ethernet"
        up = port["state"] == "Active"
        rate = h["rate_gbps"] if port["phys"] == "LinkUp" or not h["rate_gbps"] else 10
        lid = 0 if ethernet or port["state"] in ("Down", "Initializing") else h["rail"] + 12
        out += [
            f"CA '{h['name']}'",
            "\tCA type: MT4129",
            "\tNumber of ports: 1",
            f"\tFirmware version: {h['firmware']}",
            "\tHardware version: 0",
            f"\tNode GUID: {h['node_guid']}",
            f"\tSystem image GUID: {h['node_guid']}",
            "\tPort 1:",
            f"\t\tState: {port['state']}",
            f"\t\tPhysical state: {port['phys']}",
            f"\t\tRate: {rate}",
            f"\t\tBase lid: {lid}",
            "\t\tLMC: 0",
            f"\t\tSM lid: {1 if up and not ethernet else 0}",
            f"\t\tCapability mask: {'0x00010000' if ethernet else '0xa651e848'}",
            f"\t\tPort GUID: {h['guid']}",
            f"\t\tLink layer: {'Ethernet' if ethernet else 'InfiniBand'}",
        ]
    return "".join(line + "\n" for line in out)


def _opensm(view: Hw) -> dict[str, str]:
    """The configuration of NVIDIA's OpenSM, which manages the fabric, with adaptive routing and congestion control."""
    if all(h["link_layer"] == "ethernet" for h in view["hcas"]):
        return {}
    return {
        "opensm.conf": "# OpenSM configuration of the fabric\nguid 0x0000000000000000\nsm_priority 14\n"
        "routing_engine ar_updn\nar_sl_mask 0xFFFF\nmlnx_congestion_control 2\nsweep_interval 10\n"
    }


# (perfquery's name, the kernel's, the description's where a fault may set it)
_COUNTERS = (
    ("SymbolErrorCounter", "symbol_error", "symbol_errors"),
    ("LinkErrorRecoveryCounter", "link_error_recovery", ""),
    ("LinkDownedCounter", "link_downed", "link_downed"),
    ("PortRcvErrors", "port_rcv_errors", ""),
    ("PortRcvRemotePhysicalErrors", "port_rcv_remote_physical_errors", ""),
    ("PortRcvSwitchRelayErrors", "port_rcv_switch_relay_errors", ""),
    ("PortXmitDiscards", "port_xmit_discards", ""),
    ("PortXmitConstraintErrors", "port_xmit_constraint_errors", ""),
    ("PortRcvConstraintErrors", "port_rcv_constraint_errors", ""),
    ("CounterSelect2", "", ""),
    ("LocalLinkIntegrityErrors", "local_link_integrity_errors", ""),
    ("ExcessiveBufferOverrunErrors", "excessive_buffer_overrun_errors", ""),
    ("QP1Dropped", "", ""),
    ("VL15Dropped", "VL15_dropped", ""),
    ("PortXmitData", "port_xmit_data", ""),
    ("PortRcvData", "port_rcv_data", ""),
    ("PortXmitPkts", "port_xmit_packets", ""),
    ("PortRcvPkts", "port_rcv_packets", ""),
    ("PortXmitWait", "port_xmit_wait", ""),
)


def _counters(view: Hw, site: Site) -> dict[str, str]:
    """perfquery of each port that is up, or what grep prints over the kernel's files; only these know RoCE ports."""
    files, queries = "", {}
    for h in view["hcas"]:
        if h.get("state") == "missing":
            continue
        values = {name: int(h["port"].get(key, 0)) if key else 0 for name, _file, key in _COUNTERS}
        values |= {"PortXmitData": 123456789, "PortRcvData": 123450000, "PortXmitPkts": 654321, "PortRcvPkts": 654300}
        base = f"/sys/class/infiniband/{h['name']}/ports/1/counters"
        files += "".join(f"{base}/{file}:{values[name]}\n" for name, file, _key in _COUNTERS if file)
        lines = [f"# Port counters: Lid {h['rail'] + 12} port 1 (CapMask: 0x5A00)", _dotted("PortSelect", 1)]
        lines.append(_dotted("CounterSelect", "0x0000"))
        lines += [_dotted(name, "0x00" if name == "CounterSelect2" else value) for name, value in values.items()]
        if h["link_layer"] == "infiniband" and h["port"]["state"] == "Active":
            queries[f"perfquery-{h['name']}.txt"] = "\n".join(lines) + "\n"
    ethernet = any(h["link_layer"] == "ethernet" for h in view["hcas"])
    return {"sysfs-counters.txt": files} if site.counters == "sysfs" or ethernet else queries


def _dotted(name: str, value: Any) -> str:
    return f"{name}:".ljust(33, ".") + str(value)


# --- the clock


def _chrony(view: Hw, site: Site) -> dict[str, str]:
    """chronyc tracking and sources, with -c or as people read them."""
    want = view["kernel"]
    offset = float(want.get("clock_offset_s") or 0.0) or 0.000012345
    silent = bool(want.get("clock_drop") or want.get("clock_local"))
    servers = [*site.time_servers, *([host.FOREIGN_SERVER] if want.get("clock_foreign") else [])]
    if want.get("clock_local"):
        tracked: tuple[str, str, int, float, str] = ("7F7F0101", "", 5, 0.0, "Normal")
    elif silent:
        tracked = ("00000000", "", 0, 0.0, "Not synchronised")
    else:
        tracked = ("AC1F630A", site.time_servers[0], 9, offset, "Normal")
    csv = site.chrony == "csv"
    return {
        "chronyc-tracking.txt": _tracking_csv(*tracked) if csv else _tracking_text(*tracked),
        "chronyc-sources.txt": (_sources_csv if csv else _sources_text)(servers, silent, offset),
    }


def _tracking_csv(reference: str, name: str, stratum: int, offset: float, leap: str) -> str:
    when = f"{NOW - 25}.123456789" if stratum else "0.000000000"
    return (
        f"{reference},{name},{stratum},{when},{-offset:.9f},-0.000004321,0.000023456,-12.345,0.001,0.234,"
        f"0.000345678,0.000123456,64.2,{leap}\n"
    )


def _tracking_text(reference: str, name: str, stratum: int, offset: float, leap: str) -> str:
    when = "Mon Nov 30 11:59:35 2026" if stratum else "Thu Jan 01 00:00:00 1970"
    side = "fast" if offset < 0 else "slow"
    return (
        f"Reference ID    : {reference} ({name})\nStratum         : {stratum}\nRef time (UTC)  : {when}\n"
        f"System time     : {abs(offset):.9f} seconds {side} of NTP time\nLast offset     : -0.000004321 seconds\n"
        "RMS offset      : 0.000023456 seconds\nFrequency       : 12.345 ppm slow\nResidual freq   : +0.001 ppm\n"
        "Skew            : 0.234 ppm\nRoot delay      : 0.000345678 seconds\nRoot dispersion : 0.000123456 seconds\n"
        f"Update interval : 64.2 seconds\nLeap status     : {leap}\n"
    )


def _sources_csv(servers: list[str], silent: bool, offset: float) -> str:
    lines = []
    for server in servers:
        if silent or server == host.FOREIGN_SERVER:
            lines.append(f"^,?,{server},0,6,0,4294967295,0.000000000,0.000000000,0.000000000\n")
        else:
            chosen = "*" if server == servers[0] else "+"
            lines.append(f"^,{chosen},{server},8,6,377,23,{offset:.9f},0.000015432,0.000234567\n")
    return "".join(lines)


def _sources_text(servers: list[str], silent: bool, offset: float) -> str:
    lines = [
        "MS Name/IP address         Stratum Poll Reach LastRx Last sample               \n",
        "=" * 79 + "\n",
    ]
    for server in servers:
        if silent or server == host.FOREIGN_SERVER:
            lines.append(f"^? {server:<27}   0   6     0     -     +0ns[   +0ns] +/-    0ns\n")
        else:
            us = round(offset * 1e6)
            chosen = "*" if server == servers[0] else "+"
            lines.append(f"^{chosen} {server:<27}   8   6   377    23  {us:+5d}us[{us:+5d}us] +/-  234us\n")
    return "".join(lines)


# --- the kernel


def cmdline(site: Site) -> str:
    """The command line of a node that was booted with the site's parameters."""
    words = " ".join(site.kernel_parameters)
    root = "root=UUID=5d1f3c7e-0000-4000-8000-000000000001 ro"
    return f"BOOT_IMAGE=/boot/vmlinuz-6.1.0-40-amd64 {root} quiet {words}".rstrip()


def _kernel_log(view: Hw, site: Site) -> dict[str, str]:
    """dmesg with the seconds since the boot in brackets."""
    lines = [
        (0.0, "Linux version 6.1.0-40-amd64 (debian-kernel@lists.debian.org) #1 SMP PREEMPT_DYNAMIC Debian 6.1.153-1"),
        (0.0, f"Command line: {cmdline(site)}"),
    ]
    lines += [
        (2.4 + i / 100, f"mlx5_core {h['pci']}: firmware version: {h['firmware']}")
        for i, h in enumerate(view["hcas"])
        if h.get("state") != "missing"
    ]
    lines.append((9.102334, f"NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  {site.driver}  Release Build"))
    buses = {g["index"]: str(g["bus_id"])[4:-2].lower() for g in view["gpus"]}
    lines += [
        (5400.5 + n, f"NVRM: Xid (PCI:{buses[index]}): {xid}, {faults.XIDS[xid]}")
        for n, (xid, index) in enumerate(view["kernel"]["xids"])
    ]
    return {"dmesg.txt": "".join(f"[{t:12.6f}] {text}\n" for t, text in lines)}


def _idle_states(view: Hw, site: Site) -> dict[int, list[Hw]]:
    line = cmdline(site)
    common = cstates.kernel_states({**view, "cstates": {**view["cstates"], "forced": {}}}, line)
    forced = {int(c) for c in view["cstates"]["forced"]}
    return {cpu: cstates.kernel_states(view, line, cpu) if cpu in forced else common for cpu in host.all_cpus(view)}


def _idle_text(view: Hw, site: Site) -> dict[str, str]:
    """What grep prints over the idle states, twice half a second apart: CPUs rest in the deepest state they may use."""
    texts = {}
    for reading in (1, 2):
        lines = []
        for cpu, states in _idle_states(view, site).items():
            for n, s in enumerate(states):
                used = n == len(states) - 1 and reading == 2
                values = {
                    "disable": 0,
                    "latency": s["latency_us"],
                    "name": s["name"],
                    "time": 2500000 + (475000 if used else 0),
                    "usage": 5000 + (75 if used else 0),
                }
                base = f"/sys/devices/system/cpu/cpu{cpu}/cpuidle/state{n}"
                lines += [f"{base}/{key}:{value}\n" for key, value in values.items()]
        texts[f"cpuidle-{reading}.txt"] = "".join(lines)
    return texts


def _host(view: Hw, site: Site) -> dict[str, str]:
    """Files of /proc and /sys: what grep prints over the idle states, NUMA nodes, command line."""
    line = cmdline(site)
    nodes = {str(n["id"]): n["cpus"] for n in view["numa"]}
    numa = {
        "nodes": nodes,
        "gpus": {g["bus_id"]: str(g["numa"]) for g in driver.present(view)},
        "cores": {str(c): "" for c in host.all_cpus(view)},
    }
    return {
        **_idle_text(view, site),
        "cmdline": line + "\n",
        "proc-cmdline.txt": line + "\n",
        "numa.json": json.dumps(numa, sort_keys=True),
        "uname-r.txt": "6.1.0-40-amd64\n",
        "uptime.txt": f"{UPTIME_S:.2f} {UPTIME_S * 90:.2f}\n",
        "date.txt": f"{NOW}\n",
    }


# --- Consul


def _consul(view: Hw, site: Site) -> dict[str, str]:
    """/v1/health/node of Consul 1.8. What an agent said of its services stays as it was when the agent dies."""
    dead = view["kernel"]["services"].get("consul.service") is not None
    head = {"Node": view["name"], "Namespace": "", "Notes": "", "Definition": {}, "CreateIndex": 40, "ModifyIndex": 90}
    checks = [
        {
            **head,
            "CheckID": "serfHealth",
            "Name": "Serf Health Status",
            "Status": "critical" if dead else "passing",
            "Output": "Agent not live or unreachable" if dead else "Agent alive and reachable",
            "ServiceID": "",
            "ServiceName": "",
            "ServiceTags": [],
            "Type": "",
        }
    ]
    for index, name in enumerate(unit_names(view, site.unit_gpus)):
        up = _unit_state(view, index, name)["ActiveState"] == "active"
        checks.append(
            {
                **head,
                "CheckID": f"service:{name}",
                "Name": "HTTP GET /health",
                "Status": "passing" if up else "critical",
                "Output": "HTTP GET http://127.0.0.1:8000/health: 200 OK Output: "
                if up
                else 'Get "http://127.0.0.1:8000/health": dial tcp 127.0.0.1:8000: connect: connection refused',
                "ServiceID": name,
                "ServiceName": "vllm",
                "ServiceTags": [],
                "Type": "http",
            }
        )
    return {"consul-health-node.json": json.dumps(checks, indent=1) + "\n"}


# --- the processes of inference units

_FIRST_PID = 5000


def main_pid(index: int) -> int:
    """The first process of a unit; its workers have the numbers after it."""
    return _FIRST_PID + 100 * index


def processes(view: Hw, site: Site, units: list[Hw]) -> dict[str, str]:
    """/proc of the units' processes: bound as numactl was told (a unit's `cpus` and `numa_node`), or not at all."""
    texts: dict[str, str] = {}
    nodes = [int(n["id"]) for n in view["numa"]]
    every = host.all_cpus(view)
    for index, unit in enumerate(units):
        if _unit_state(view, index, unit["id"])["ActiveState"] != "active":
            continue
        main = main_pid(index)
        named = str(unit["id"]).rsplit("-", 1)[-1] in view["numactl"].get("unbound_units", ())
        unbound = named or bool(view["numactl"].get("unbound"))
        remote = 0.5 if unbound else float(view["numactl"].get("remote", 0.0))
        pids = range(main, main + 1 + len(unit["gpus"]))
        texts[f"{unit['id']}.cgroup.procs.txt"] = "".join(f"{pid}\n" for pid in pids)
        cpus = f"{every[0]}-{every[-1]}" if unbound else str(unit["cpus"])
        allowed = f"{nodes[0]}-{nodes[-1]}" if len(nodes) > 1 else str(nodes[0])
        for pid in pids:
            name = "vllm" if pid == main else f"VLLM::Worker_TP{pid - main - 1}"
            texts[f"status-{pid}.txt"] = (
                f"Name:\t{name}\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t{pid}\nPid:\t{pid}\nPPid:\t1\n"
                "VmPeak:\t71303168 kB\nVmSize:\t71303168 kB\nVmRSS:\t 4194304 kB\nThreads:\t64\n"
                f"Cpus_allowed_list:\t{cpus}\nMems_allowed_list:\t{allowed}\n"
                "voluntary_ctxt_switches:\t4242\nnonvoluntary_ctxt_switches:\t7\n"
            )
            texts[f"numa_maps-{pid}.txt"] = _numa_maps(nodes, int(unit["numa_node"]), unbound, remote)
    return texts


def _numa_maps(nodes: list[int], node: int, unbound: bool, remote: float) -> str:
    """A process of 4 GiB, that share of it on another node; libraries lie where they like."""
    policy = "default" if unbound or remote else f"bind:{node}"
    others = [n for n in nodes if n != node]

    def pages(count: int) -> str:
        away = int(count * remote) if others else 0
        share = {node: count - away, **({others[0]: away} if away else {})}
        return " ".join(f"N{n}={share[n]}" for n in sorted(share))

    return (
        f"55d0c0a00000 {policy} file=/usr/bin/python3.11 mapped=640 active=0 N{nodes[-1]}=640 kernelpagesize_kB=4\n"
        f"55d0c2400000 {policy} heap anon=262144 dirty=262144 active=0 {pages(262144)} kernelpagesize_kB=4\n"
        f"7f2c00000000 {policy} anon=786432 dirty=786432 active=0 {pages(786432)} kernelpagesize_kB=4\n"
        f"7f2e10000000 {policy} file=/usr/lib/x86_64-linux-gnu/libc.so.6 mapped=380 mapmax=40 N{nodes[0]}=380 "
        "kernelpagesize_kB=4\n"
        f"7ffd10000000 {policy} stack anon=12 dirty=12 {pages(12)} kernelpagesize_kB=4\n"
    )


def read_description(rack: Any, node: str) -> Hw:
    """The description of a node that was brought up well."""
    from simhw import describe

    return brought_up(describe.build(rack, node))


# --- tests between two nodes


def _identity(view: Hw, h: Hw) -> Hw:
    """What one end of perftest tells the other, as simhw.rdma exchanges it."""
    return {
        "guid": h["guid"],
        "leaf": h["leaf"],
        "lid": h["rail"] + 12,
        "extra_us": h["port"]["extra_us"],
        "leaf_us": view["rdma"]["leaf_us"],
        "rate": h["rate_gbps"],
        "bandwidth": h["port"]["bandwidth"],
    }


def perftest_text(tool: str, client: Hw, client_hca: Hw, server: Hw, server_hca: Hw, size: int, iters: int) -> str:
    """The client's output of ib_write_lat or ib_write_bw between two ports of effective descriptions.

    The jitter of a pair is drawn from the two GUIDs, so it is the same each time.
    """
    me, peer = _identity(client, client_hca), _identity(server, server_hca)
    ethernet = client_hca["link_layer"] == "ethernet"
    latency = tool.endswith("_lat")
    state = random.getstate()
    random.seed(f"{me['guid']}/{peer['guid']}/{tool}")
    try:
        results = (
            rdma._latency(client, me, peer, tool, size, iters, 0)
            if latency
            else rdma._bandwidth(client, me, peer, size, iters, True)
        )
    finally:
        random.setstate(state)
    head = rdma._header(tool, client_hca, 1, {}, latency, ethernet)
    return "\n".join([*head, *rdma._report(results, latency, 0, True), "-" * 87]) + "\n"


def ibping_text(client_hca: Hw, server_hca: Hw, name: str, count: int) -> str:
    """ibping's statistics between two ports: the losses of both ends add up."""
    share = 1 - (1 - float(client_hca["port"]["loss"])) * (1 - float(server_hca["port"]["loss"]))
    received = count - math.floor(count * share + 0.5)
    percent = 100 - received * 100 // count if not received else (count - received) * 100 // count
    rtt = "0.021/0.033/0.048" if received else "0.000/0.000/0.000"
    shown = name if received else ""
    return (
        f"\n--- {shown} (Lid {server_hca['rail'] + 12}) ibping statistics ---\n{count} packets transmitted, "
        f"{received} received, {percent}% packet loss, time {count // 20} ms\nrtt min/avg/max = {rtt} ms\n"
    )

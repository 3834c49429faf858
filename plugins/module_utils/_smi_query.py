# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one reader of what `nvidia-smi -q` says about GPUs: as text (drivers 460 to 595), XML, or csv of `--query-gpu`.

All three become the same fields, named as the text of driver 580 names them, sections joined by "/". A value is kept as
it was printed. Nothing is raised for any text: what cannot be read is in `Query.problems`, with the line.
"""

from __future__ import annotations

import dataclasses
import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from typing import Literal

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import shown

MISMATCH = "Driver/library version mismatch"
"""nvidia-smi's words for a kernel module that is older than the library: only a reboot helps."""

Form = Literal["text", "xml", "csv", "none"]
Kind = Literal["error", "lost", "inforom", "twice", "unreadable"]

_BUS_ID = r"[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]"
_GPU_LINE = re.compile(rf"([ \t]*)GPU ({_BUS_ID})\s*")
_VALUE_LINE = re.compile(r"(\S.*?)(?<!\s)\s+:(?:\s+(.*))?")
_ERRORS = re.compile(
    r"\b(unable to|failed to|has failed|unknown error|could\s?n[o']t|is lost|no devices|fallen off|not supported on)\b",
    re.IGNORECASE,
)
_LOST = re.compile(r"\bGPU is lost\b|\bfallen off the bus\b", re.IGNORECASE)
_INFOROM = re.compile(r"\binfoROM is corrupted\b", re.IGNORECASE)
# Sections and lines a gate judges: one of them twice is a report that can be read in two ways. Others, such as those of
# processes and supported clocks, are there several times by right.
_JUDGED = re.compile(
    r"(Product Name|Persistence Mode|VBIOS Version|GPU UUID|GSP Firmware Version|GPU Recovery Action|Performance State"
    r"|(MIG Mode|Inforom Version|ECC Mode|ECC Errors|Retired Pages|Remapped Rows|Fabric|GPU Reset Status|Temperature"
    r"|Clocks Event Reasons|PCI/GPU Link Info)(/.*)?)"
)
_RENAMED = {
    "Clocks Throttle Reasons": "Clocks Event Reasons",
    "GPU Current T.Limit Temp": "GPU T.Limit Temp",  # since 610
}
_ABSENT = frozenset({"", "n/a", "not supported", "requested functionality has been deprecated", "not available"})
_BROKEN = re.compile(r"err!?|.*(error|is lost|requires reset|permission|corrupt|timeout|insufficient).*", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU in the order of the report, with what was printed about it."""

    index: int
    bus_id: str
    fields: Mapping[str, str]
    columns: bool = False
    """Whether these are the columns somebody asked for and not the lines of a section."""

    @property
    def subject(self) -> str:
        """Name of the GPU in check results."""
        return f"GPU {self.index} {self.bus_id}".rstrip()

    def get(self, name: str) -> str | None:
        """Return the printed value of a line, None when there is no such line."""
        return self.fields.get(name)

    def section(self, name: str) -> dict[str, str]:
        """Return the lines below a heading, by the rest of their names."""
        return {key[len(name) + 1 :]: value for key, value in self.fields.items() if key.startswith(f"{name}/")}


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """What cannot be trusted about a reading, in words, and of what kind it is."""

    kind: Kind
    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """A reading. `whole` says that it has all sections, not those of `-q -d` or the columns of a csv.

    The form csv also stands for the list of `nvidia-smi -L`, the table of `nvidia-smi` and for Fabric blocks without
    their report: a part of what there is to know, for each GPU.
    """

    form: Form
    driver: str | None
    attached: int | None
    gpus: tuple[Gpu, ...]
    problems: tuple[Problem, ...] = ()
    whole: bool = False

    @property
    def branch(self) -> int | None:
        """Return the driver's branch, 580 of 580.95.05."""
        found = re.match(r"([0-9]{2,4})\.", self.driver or "")
        return int(found[1]) if found else None


def parse(text: str, columns: Sequence[str] = ()) -> Query:
    """Read a capture in whatever form it is. `columns` names the columns of a csv that has no header line."""
    text = text.removeprefix("\ufeff")
    if re.search(r"<\?xml|<nvidia_smi_log", text[:4096]):
        return _parse_xml(text)
    if re.search(rf"^[ \t]*(Attached GPUs[ \t]+:|GPU {_BUS_ID}[ \t\r]*$)", text, re.MULTILINE):
        return parse_text(text)
    if re.search(r"^[ \t]*Fabric[ \t]*\r?$", text, re.MULTILINE):
        return _parse_fabric(text)
    if re.search(r"^[ \t]*\|[ \t]*NVIDIA-SMI\s+\S+\s+Driver Version:", text, re.MULTILINE):
        return _parse_table(text)
    return _parse_list(text) or _parse_csv(text, columns)


def printed(value: str | None) -> str | None:
    """Return a value without the brackets a csv puts around words, None when there is none or it is not supported."""
    if value is None:
        return None
    bare = value.strip()
    if bare.startswith("[") and bare.endswith("]"):
        bare = bare[1:-1].strip()
    return None if bare.lower() in _ABSENT else bare


def broken(value: str | None) -> bool:
    """Return whether the tool printed an error in place of a value (ERR!, [Unknown Error], GPU requires reset)."""
    bare = printed(value)
    return bare is not None and _BROKEN.fullmatch(bare) is not None


def needs_reset(value: str | None) -> bool:
    """Return whether the driver says in place of a value that the GPU is gone or must be reset: a defect, not a gap."""
    return re.search(r"requires reset|is lost", value or "", re.IGNORECASE) is not None


def number(value: str | None, unit: str = "") -> int | None:
    """Return a whole number with its unit ("16x", "45 C", "0 bank(s)"; a csv may have left the unit out), else None."""
    found = re.fullmatch(rf"(-?[0-9]{{1,18}})(\s*{re.escape(unit)})?", printed(value) or "", re.ASCII)
    return int(found[1]) if found else None


# --- text


def parse_text(text: str) -> Query:
    """Read `nvidia-smi -q`. Depth is told by indentation, because State and Status are names in several sections."""
    top: dict[str, str] = {}
    gpus: list[tuple[str, dict[str, str]]] = []
    problems: list[Problem] = []
    path: list[tuple[int, str]] = []
    # A capture that was pasted into another text may be indented as a whole.
    base = next((len(m[1]) for line in text.splitlines() if (m := _GPU_LINE.fullmatch(line))), 0)
    for raw in text.splitlines():
        if not raw.strip():
            continue
        indent = max(len(raw) - len(raw.lstrip()) - base, 0)
        line = raw.strip()
        found = _GPU_LINE.fullmatch(raw)
        if found:
            if any(found[2].lower() == bus_id.lower() for bus_id, _fields in gpus):
                problems.append(Problem("twice", f"GPU {found[2]} is described twice"))
            gpus.append((found[2], {}))
            path = []
            continue
        path = [(depth, name) for depth, name in path if depth < indent]
        value_line = _VALUE_LINE.fullmatch(line)
        if value_line is None:
            problems += _stray(line)
            if indent or not gpus:
                path.append((indent, line))
            continue
        name, value = value_line[1], (value_line[2] or "").strip()
        fields = gpus[-1][1] if gpus and indent else top
        key = "/".join([*(_RENAMED.get(section, section) for _unused, section in path), _RENAMED.get(name, name)])
        if key in fields and (fields is top or _JUDGED.fullmatch(key)):
            of = f" for GPU {gpus[-1][0]}" if fields is not top else ""
            problems.append(Problem("twice", f"{key!r} is there twice{of}"))
        fields.setdefault(key, value)
    attached = top.get("Attached GPUs", "")
    return Query(
        "text",
        _driver_version(top),
        int(attached) if re.fullmatch(r"[0-9]{1,4}", attached) else None,
        tuple(Gpu(index, bus_id, fields) for index, (bus_id, fields) in enumerate(gpus)),
        tuple(problems),
        any("Product Name" in fields for _bus_id, fields in gpus),
    )


def _driver_version(top: Mapping[str, str]) -> str | None:
    """Return the driver's version. Since 610 it has a second name, and a remark in brackets behind the first one."""
    value = top.get("Driver Version", top.get("KMD Version"))
    return None if value is None else re.sub(r"\s*\[Deprecated[^\]]*\]$", "", value)


def _stray(line: str) -> list[Problem]:
    """Return the problem of a line that is no part of the report but an error message in it."""
    if _INFOROM.search(line):
        return [Problem("inforom", shown(line))]
    if _ERRORS.search(line):
        kind: Kind = "lost" if _LOST.search(line) else "error"
        return [Problem(kind, f"an error message beside the report: {shown(line)}")]
    return []


# --- XML

_SPANS = {"volatile": "Volatile", "aggregate": "Aggregate"}
_ECC_TAGS = {
    "sram_correctable": "SRAM Correctable",
    "sram_uncorrectable": "SRAM Uncorrectable",
    "sram_uncorrectable_parity": "SRAM Uncorrectable Parity",
    "sram_uncorrectable_secded": "SRAM Uncorrectable SEC-DED",
    "dram_correctable": "DRAM Correctable",
    "dram_uncorrectable": "DRAM Uncorrectable",
    "sram_threshold_exceeded": "SRAM Threshold Exceeded",
    "double_bit/total": "Double Bit/Total",
    "single_bit/total": "Single Bit/Total",
}
_REASONS = {
    "gpu_idle": "Idle",
    "applications_clocks_setting": "Applications Clocks Setting",
    "sw_power_cap": "SW Power Cap",
    "hw_slowdown": "HW Slowdown",
    "hw_thermal_slowdown": "HW Thermal Slowdown",
    "hw_power_brake_slowdown": "HW Power Brake Slowdown",
    "sync_boost": "Sync Boost",
    "sw_thermal_slowdown": "SW Thermal Slowdown",
}
_LINK = "PCI/GPU Link Info"
_XML: dict[str, str] = {
    "product_name": "Product Name",
    "persistence_mode": "Persistence Mode",
    "mig_mode/current_mig": "MIG Mode/Current",
    "mig_mode/pending_mig": "MIG Mode/Pending",
    "serial": "Serial Number",
    "uuid": "GPU UUID",
    "vbios_version": "VBIOS Version",
    "inforom_version/img_version": "Inforom Version/Image Version",
    "gpu_reset_status/reset_required": "GPU Reset Status/Reset Required",
    "gpu_reset_status/drain_and_reset_recommended": "GPU Reset Status/Drain and Reset Recommended",
    "gpu_recovery_action": "GPU Recovery Action",
    "gsp_firmware_version": "GSP Firmware Version",
    "pci/pci_gpu_link_info/pcie_gen/max_link_gen": f"{_LINK}/PCIe Generation/Max",
    "pci/pci_gpu_link_info/pcie_gen/current_link_gen": f"{_LINK}/PCIe Generation/Current",
    "pci/pci_gpu_link_info/pcie_gen/max_device_link_gen": f"{_LINK}/PCIe Generation/Device Max",
    "pci/pci_gpu_link_info/pcie_gen/max_host_link_gen": f"{_LINK}/PCIe Generation/Host Max",
    "pci/pci_gpu_link_info/link_widths/max_link_width": f"{_LINK}/Link Width/Max",
    "pci/pci_gpu_link_info/link_widths/current_link_width": f"{_LINK}/Link Width/Current",
    "performance_state": "Performance State",
    "ecc_mode/current_ecc": "ECC Mode/Current",
    "ecc_mode/pending_ecc": "ECC Mode/Pending",
    "ecc_errors/channel_repair_pending": "ECC Errors/Channel Repair Pending",
    "ecc_errors/tpc_repair_pending": "ECC Errors/TPC Repair Pending",
    "ecc_errors/unrepairable_memory": "ECC Errors/Unrepairable Memory",
    "retired_pages/pending_blacklist": "Retired Pages/Pending Page Blacklist",
    "retired_pages/pending_retirement": "Retired Pages/Pending Page Blacklist",
    "remapped_rows": "Remapped Rows",
    "remapped_rows/remapped_row_corr": "Remapped Rows/Correctable Error",
    "remapped_rows/remapped_row_unc": "Remapped Rows/Uncorrectable Error",
    "remapped_rows/remapped_row_pending": "Remapped Rows/Pending",
    "remapped_rows/remapped_row_failure": "Remapped Rows/Remapping Failure Occurred",
    "temperature/gpu_temp": "Temperature/GPU Current Temp",
    "temperature/gpu_temp_tlimit": "Temperature/GPU T.Limit Temp",
    "temperature/gpu_temp_slow_threshold": "Temperature/GPU Slowdown Temp",
    "temperature/gpu_temp_max_gpu_threshold": "Temperature/GPU Max Operating Temp",
    "temperature/memory_temp": "Temperature/Memory Current Temp",
    "fabric/state": "Fabric/State",
    "fabric/status": "Fabric/Status",
    "fabric/cliqueId": "Fabric/CliqueId",
    "fabric/clusterUuid": "Fabric/ClusterUUID",
    "fabric/health/summary": "Fabric/Health/Summary",
    "fabric/health/bandwidth": "Fabric/Health/Bandwidth",
    "fabric/health/route_recovery_in_progress": "Fabric/Health/Route Recovery in progress",
    "fabric/health/route_unhealthy": "Fabric/Health/Route Unhealthy",
    "fabric/health/access_timeout_recovery": "Fabric/Health/Access Timeout Recovery",
    "fabric/health/incorrect_configuration": "Fabric/Health/Incorrect Configuration",
    **{f"ecc_errors/{s}/{t}": f"ECC Errors/{n}/{name}" for s, n in _SPANS.items() for t, name in _ECC_TAGS.items()},
    **{
        f"clocks_{family}_reasons/clocks_{family}_reason_{tag}": f"Clocks Event Reasons/{name}"
        for family in ("event", "throttle")
        for tag, name in _REASONS.items()
    },
    **{
        f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{tag}": (
            f"Remapped Rows/Bank Remap Availability Histogram/{tag.capitalize()}"
        )
        for tag in ("max", "high", "partial", "low", "none")
    },
}
_DEEPEST = 12


def _parse_xml(text: str) -> Query:
    """Read `nvidia-smi -q -x`. The tool's DOCTYPE names an outer DTD; entities are not its way, and not ours."""
    if re.search(r"<!ENTITY", text, re.IGNORECASE):
        return _nothing("the XML declares entities, which nvidia-smi never does; it is not read", "xml")
    start = text.find("<")
    try:
        root = ET.fromstring(text[start:].rstrip("\x00 \t\r\n"))
    except (ET.ParseError, ValueError) as exc:
        return _nothing(f"the XML cannot be read, it may be cut off: {shown(str(exc))}", "xml")
    if root.tag != "nvidia_smi_log":
        return _nothing(f"the XML is a {shown(root.tag)!r}, not an nvidia_smi_log", "xml")
    problems = [problem for line in text[:start].splitlines() for problem in _stray(line)]
    gpus: list[Gpu] = []
    for index, element in enumerate(root.findall("gpu")):
        bus_id = (element.findtext("pci/pci_bus_id") or element.get("id") or "").strip()
        if any(bus_id.lower() == other.bus_id.lower() for other in gpus):
            problems.append(Problem("twice", f"GPU {shown(bus_id)} is described twice"))
        gpus.append(Gpu(index, shown(bus_id), _xml_fields(element, bus_id, problems)))
    attached = (root.findtext("attached_gpus") or "").strip()
    return Query(
        "xml",
        (root.findtext("driver_version") or "").strip() or None,
        int(attached) if re.fullmatch(r"[0-9]{1,4}", attached) else None,
        tuple(gpus),
        tuple(problems),
        any("Product Name" in gpu.fields for gpu in gpus),
    )


def _xml_fields(gpu: ET.Element, bus_id: str, problems: list[Problem]) -> dict[str, str]:
    """Return the known leaves of one GPU. Not recursive: a file can be nested deeper than Python may call."""
    fields: dict[str, str] = {}
    waiting = [(child, child.tag) for child in gpu]
    while waiting:
        element, path = waiting.pop()
        children = list(element)
        if children and path.count("/") < _DEEPEST:
            waiting += [(child, f"{path}/{child.tag}") for child in children]
            continue
        name, value = _XML.get(path), (element.text or "").strip()
        if name is None:
            continue
        if fields.setdefault(name, value) != value:
            problems.append(Problem("twice", f"{name!r} is there twice for GPU {shown(bus_id)}"))
    return fields


# --- excerpts


def _parse_fabric(text: str) -> Query:
    """Read Fabric blocks that were cut out of a report (`nvidia-smi -q | grep -A 4 Fabric`), one for each GPU."""
    blocks = re.split(r"(?m)^[ \t]*Fabric[ \t]*\r?$", text)
    gpus = [parse_text(f"GPU 00000000:00:00.0\n    Fabric\n{block}").gpus[0] for block in blocks[1:]]
    stray = [problem for line in text.splitlines() for problem in _stray(line.strip())]
    return Query("csv", None, None, tuple(Gpu(i, "", gpu.fields, True) for i, gpu in enumerate(gpus)), tuple(stray))


_LISTED = re.compile(r"GPU ([0-9]{1,3}): (.+?) \(UUID: (GPU-[0-9A-Fa-f-]+)\)")


def _parse_list(text: str) -> Query | None:
    """Read `nvidia-smi -L`, which has a line a GPU and, below it, one for each of its MIG devices."""
    gpus: list[Gpu] = []
    problems: list[Problem] = []
    for line in (line.strip() for line in text.splitlines() if line.strip()):
        found = _LISTED.fullmatch(line)
        stray = _stray(line)
        if found:
            fields = {"Product Name": found[2], "GPU UUID": found[3]}
            gpus.append(Gpu(int(found[1]), "", fields, columns=True))
        elif line.startswith("MIG ") and gpus:
            gpus[-1] = dataclasses.replace(gpus[-1], fields={**gpus[-1].fields, "MIG Mode/Current": "Enabled"})
        elif stray:
            problems += stray
        else:
            return None
    return Query("csv", None, None, tuple(gpus), tuple(problems)) if gpus else None


_ROW = re.compile(
    r"\|\s*([0-9]{1,3})\s+(\S.*?)(?<!\s)\s+(On|Off|N/A|WDDM|TCC|MCDM)\s*"
    rf"\|\s*({_BUS_ID})\s+\S+\s*\|\s*(\S+)\s*\|"
)
_ROW_STATE = re.compile(r"\|\s*\S+\s+([0-9]{1,3})C\s+(P[0-9]{1,2})\s[^|]*\|[^|]*\|[^|]*\|")
_ROW_MIG = re.compile(r"\|\s*\|\s*\|\s*(Enabled|Disabled|N/A|ERR!)\s*\|")


def _parse_table(text: str) -> Query:
    """Read the table of `nvidia-smi` without options: three rows a GPU, then the processes."""
    gpus: list[Gpu] = []
    problems: list[Problem] = []
    driver: str | None = None
    processes = False
    for line in (line.strip() for line in text.splitlines()):
        head = re.search(r"Driver Version:\s*(\S+)", line)
        driver = head[1] if head and driver is None else driver
        processes = processes or re.match(r"\|\s*Processes:", line) is not None
        more: dict[str, str] = {}
        if processes:
            continue
        if found := _ROW.fullmatch(line):
            ecc = found[5]
            more = {"Persistence Mode": {"On": "Enabled", "Off": "Disabled"}.get(found[3], "N/A")}
            more["ECC Mode/Current"] = {"N/A": "N/A", "Off": "Disabled"}.get(ecc, "Enabled")
            more["ECC Errors/Volatile/Total Uncorrectable"] = "N/A" if ecc == "Off" else ecc
            if "..." not in found[2]:  # a long name is cut short
                more["Product Name"] = found[2]
            gpus.append(Gpu(int(found[1]), found[4], more, columns=True))
            continue
        if (found := _ROW_STATE.fullmatch(line)) and gpus:
            more = {"Temperature/GPU Current Temp": f"{found[1]} C", "Performance State": found[2]}
        elif (found := _ROW_MIG.fullmatch(line)) and gpus:
            more = {"MIG Mode/Current": found[1]}
        elif re.match(r"\|\s*[0-9]+\s+\S|\|.*ERR!", line):
            problems.append(Problem("unreadable", f"a row of the table cannot be read: {shown(line)}"))
        problems += _stray(line)
        if more:
            gpus[-1] = dataclasses.replace(gpus[-1], fields={**gpus[-1].fields, **more})
    if not processes:
        problems.append(Problem("unreadable", "the table ends before the processes, it is cut off"))
    return Query("csv", driver, None, tuple(gpus), tuple(problems))


# --- csv

_CSV: dict[str, str] = {
    "name": "Product Name",
    "gpu_name": "Product Name",
    "serial": "Serial Number",
    "gpu_serial": "Serial Number",
    "uuid": "GPU UUID",
    "gpu_uuid": "GPU UUID",
    "driver_version": "Driver Version",
    "count": "Attached GPUs",
    "pci.bus_id": "Bus Id",
    "gpu_bus_id": "Bus Id",
    "index": "Index",
    "vbios_version": "VBIOS Version",
    "inforom.img": "Inforom Version/Image Version",
    "inforom.image": "Inforom Version/Image Version",
    "persistence_mode": "Persistence Mode",
    "pstate": "Performance State",
    "mig.mode.current": "MIG Mode/Current",
    "mig.mode.pending": "MIG Mode/Pending",
    "ecc.mode.current": "ECC Mode/Current",
    "ecc.mode.pending": "ECC Mode/Pending",
    "pcie.link.gen.max": f"{_LINK}/PCIe Generation/Max",
    "pcie.link.gen.current": f"{_LINK}/PCIe Generation/Current",
    "pcie.link.gen.gpucurrent": f"{_LINK}/PCIe Generation/Device Current",
    "pcie.link.gen.gpumax": f"{_LINK}/PCIe Generation/Device Max",
    "pcie.link.gen.hostmax": f"{_LINK}/PCIe Generation/Host Max",
    "pcie.link.width.max": f"{_LINK}/Link Width/Max",
    "pcie.link.width.current": f"{_LINK}/Link Width/Current",
    "gpu_recovery_action": "GPU Recovery Action",
    "reset_status.reset_required": "GPU Reset Status/Reset Required",
    "reset_status.drain_and_reset_recommended": "GPU Reset Status/Drain and Reset Recommended",
    "retired_pages.pending": "Retired Pages/Pending Page Blacklist",
    "remapped_rows.correctable": "Remapped Rows/Correctable Error",
    "remapped_rows.uncorrectable": "Remapped Rows/Uncorrectable Error",
    "remapped_rows.pending": "Remapped Rows/Pending",
    "remapped_rows.failure": "Remapped Rows/Remapping Failure Occurred",
    "temperature.gpu": "Temperature/GPU Current Temp",
    "temperature.gpu.tlimit": "Temperature/GPU T.Limit Temp",
    "temperature.memory": "Temperature/Memory Current Temp",
    "fabric.state": "Fabric/State",
    "fabric.status": "Fabric/Status",
    "fabric.cliqueid": "Fabric/CliqueId",
    "fabric.clusteruuid": "Fabric/ClusterUUID",
    "fabric.health.summary": "Fabric/Health/Summary",
    "fabric.health.bandwidth": "Fabric/Health/Bandwidth",
    "fabric.health.route_recovery_in_progress": "Fabric/Health/Route Recovery in progress",
    "fabric.health.route_unhealthy": "Fabric/Health/Route Unhealthy",
    "fabric.health.access_timeout_recovery": "Fabric/Health/Access Timeout Recovery",
    "fabric.health.incorrect_configuration": "Fabric/Health/Incorrect Configuration",
    **{
        f"clocks_{f}_reasons.{t}": f"Clocks Event Reasons/{n}"
        for f in ("event", "throttle")
        for t, n in _REASONS.items()
    },
    "clocks_event_reasons.active": "Clocks Event Reasons/Active",
    "clocks_throttle_reasons.active": "Clocks Event Reasons/Active",
    **{
        f"remapped_rows.histogram.{tag}": f"Remapped Rows/Bank Remap Availability Histogram/{tag.capitalize()}"
        for tag in ("max", "high", "partial", "low", "none")
    },
}
_ECC_COLUMN = re.compile(r"ecc\.errors\.(corrected|uncorrected)\.(volatile|aggregate)\.([a-z0-9_.-]+)")
_COLUMN = re.compile(r"([a-z][a-z0-9_.-]*)(?: \[[^\]]*\])?", re.IGNORECASE)


def _column(text: str) -> str | None:
    """Return a field's name for a column, "" for a column that is not judged, None for a cell that names no column."""
    found = _COLUMN.fullmatch(text.strip())
    if not found:
        return None
    name = found[1].lower()
    if name in _CSV:
        return _CSV[name]
    ecc = _ECC_COLUMN.fullmatch(name)
    if ecc:
        span = _SPANS[ecc[2]]
        if "threshold" in ecc[3]:
            return f"ECC Errors/{span}/SRAM Threshold Exceeded"
        word = "Correctable" if ecc[1] == "corrected" else "Uncorrectable"
        place = {"dram": "DRAM", "sram": "SRAM", "total": "Total"}.get(ecc[3], ecc[3])
        return f"ECC Errors/{span}/{place} {word}"
    return "" if re.search(r"[._]", name) or name in ("timestamp", "pid") else None


def _parse_csv(text: str, columns: Sequence[str]) -> Query:
    """Read `nvidia-smi --query-gpu=... --format=csv`, with or without header and units."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    names: list[str] | None = [_column(c) or "" for c in columns] or None
    problems: list[Problem] = []
    gpus: list[Gpu] = []
    top: dict[str, set[str]] = {"Driver Version": set(), "Attached GPUs": set()}
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        header = [_column(cell) for cell in cells]
        if all(name is not None for name in header) and any(header):
            if names is not None and not columns:
                problems.append(Problem("twice", f"a second header line: {shown(line)}"))
            names = [name or "" for name in header]
            continue
        stray = _stray(line)
        if stray or names is None:
            problems += stray
            continue
        if len(cells) != len(names):
            problems.append(
                Problem("unreadable", f"{len(cells)} cells for {len(names)} columns, it may be cut off: {shown(line)}")
            )
            continue
        fields: dict[str, str] = {}
        for name, cell in zip(names, cells, strict=True):
            if name and fields.setdefault(name, cell) != cell:
                problems.append(Problem("twice", f"{name!r} is there twice and differs: {shown(line)}"))
        for name, values in top.items():
            values.update([fields[name]] if name in fields else [])
        bus_id = fields.get("Bus Id", "")
        if bus_id and any(bus_id.lower() == other.bus_id.lower() for other in gpus):
            problems.append(Problem("twice", f"GPU {shown(bus_id)} is described twice"))
        index = number(fields.get("Index"))
        gpus.append(Gpu(len(gpus) if index is None else index, shown(bus_id), fields, columns=True))
    if names is None:
        what = shown(lines[0]) if lines else ""
        reason = "the output is empty" if not lines else f"no report of nvidia-smi -q and no csv with a header: {what}"
        kept = [p for p in problems if p.kind in ("lost", "error")]
        return Query("none", None, None, (), tuple(kept or [Problem("unreadable", reason)]))
    drivers, counts = top["Driver Version"], {number(c) for c in top["Attached GPUs"]}
    if len(drivers) > 1 or len(counts) > 1:
        problems.append(Problem("twice", "driver_version or count differs from line to line"))
    return Query(
        "csv",
        printed(min(drivers)) if drivers else None,
        counts.pop() if len(counts) == 1 else None,
        tuple(gpus),
        tuple(problems),
    )


def _nothing(reason: str, form: Form) -> Query:
    return Query(form, None, None, (), (Problem("unreadable", reason),))

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""nvidia-smi's text of driver 580 rewritten as other drivers print it. Pure.

The fake nvidia-smi speaks one dialect. Support bundles come from drivers of five years, so what the newer ones added
is taken out, and what they renamed gets its old name, from the table "nvidia-smi names by driver version" of the
field reports and the forms A to G of the notes on `topo -m`.
"""

from __future__ import annotations

import re

_COLUMN = 42
_COLUMN_590 = 55
_NIC = re.compile(r"NIC(\d+)")
_LEGEND = re.compile(r"  NIC(\d+): (\S+)")


def branch(version: str) -> int:
    """550 of 550.127.05."""
    return int(version.split(".", 1)[0])


# --- nvidia-smi -q


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _name(line: str) -> str:
    return line.split(":", 1)[0].strip()


def _without(lines: list[str], name: str, indent: int) -> list[str]:
    """Take a line of that name and indent out, with everything below it."""
    kept: list[str] = []
    inside = False
    for line in lines:
        if inside and line.strip() and _indent(line) > indent:
            continue
        inside = _indent(line) == indent and _name(line) == name
        if not inside:
            kept.append(line)
    return kept


def _replaced(lines: list[str], old: str, new: str) -> list[str]:
    """Rename a line, keeping its colon in its column."""
    result = []
    for line in lines:
        if _name(line) == old:
            _head, colon, rest = line.partition(": ")
            text = " " * _indent(line) + new
            line = f"{text:<{_COLUMN}}: {rest}" if colon else text
        result.append(line)
    return result


# (first driver branch that has it, indent, name): older ones do not print it.
_ADDED: tuple[tuple[int, int, str], ...] = (
    (535, 4, "Addressing Mode"),
    (520, 4, "Product Architecture"),
    (535, 4, "Fabric"),
    (550, 8, "CliqueId"),
    (550, 8, "ClusterUUID"),
    (550, 8, "Health"),
    (565, 4, "Platform Info"),
    (565, 4, "GPU Recovery Action"),
    (550, 4, "GPU C2C Mode"),
    (575, 4, "Inforom BBX Object Flush"),
    (575, 4, "DRAM Encryption Mode"),
    (580, 12, "Summary"),
    (580, 12, "Route Recovery in progress"),
    (580, 12, "Route Unhealthy"),
    (580, 12, "Access Timeout Recovery"),
    (570, 4, "Power Smoothing"),
    (570, 4, "Workload Power Profiles"),
    (570, 4, "Clocks Event Reasons Counters"),
    (580, 4, "Capabilities"),
    (580, 8, "Channel Repair Pending"),
    (580, 8, "TPC Repair Pending"),
    (550, 4, "GPU Memory Power Readings"),
    (550, 4, "Module Power Readings"),
    (530, 4, "Conf Compute Protected Memory Usage"),
    (535, 8, "Aggregate Uncorrectable SRAM Sources"),
    (535, 12, "SRAM Threshold Exceeded"),
    (535, 12, "SRAM Uncorrectable SEC-DED"),
    (535, 4, "Sparse Operation Mode"),
)


def query_text(text: str, version: str) -> str:
    """nvidia-smi -q as the driver `version` prints it."""
    known = branch(version)
    if known == 580:
        return text
    lines = text.split("\n")
    for first, indent, name in _ADDED:
        if known < first:
            lines = _without(lines, name, indent)
    if known < 535:
        lines = _replaced(lines, "Clocks Event Reasons", "Clocks Throttle Reasons")
        lines = _replaced(lines, "SRAM Uncorrectable Parity", "SRAM Uncorrectable")
        lines = _replaced(lines, "GPU Power Readings", "Power Readings")
    if known >= 590:
        lines = _as_590(lines)
    return "\n".join(lines)


def _as_590(lines: list[str]) -> list[str]:
    result = []
    for line in lines:
        head, colon, value = line.partition(": ")
        if colon and len(head) == _COLUMN:
            line = f"{head.rstrip():<{_COLUMN_590}}: {value}"
        result.append(line)
        name = _name(line)
        if name == "TPC Repair Pending":
            result.append(f"{'        Unrepairable Memory':<{_COLUMN_590}}: No")
        elif name == "Access Timeout Recovery":
            result.append(f"{'            Incorrect Configuration':<{_COLUMN_590}}: N/A")
    return result


# --- nvidia-smi topo -m

TOPO_FORMS = ("D", "E", "F", "G")


def topo_form(version: str) -> str:
    """The form a driver of that branch was seen with."""
    known = branch(version)
    if known < 510:
        return "D"
    if known < 550:
        return "E"
    return "G" if known >= 580 else "F"


def topo_text(text: str, form: str) -> str:
    """nvidia-smi topo -m, printed in form G, in one of the older forms."""
    if form not in TOPO_FORMS:
        raise ValueError(f"There is no form {form!r} of nvidia-smi topo -m here: use {', '.join(TOPO_FORMS)}.")
    if form == "G":
        return text
    text = re.sub(r"\x1b\[\d*m", "", text)
    if form == "F":
        return text
    lines = []
    for line in text.split("\n"):
        cells = line.split("\t")
        if cells[-1] == "GPU NUMA ID":
            cells = cells[:-1]
        elif re.fullmatch(r"(GPU|NIC)\d+", cells[0]):
            cells = cells[:-2]
        lines.append("\t".join(cells))
    text = "\n".join(lines)
    if form == "E":
        return text
    names = dict(_LEGEND.findall(text))
    text = text.split("NIC Legend:", 1)[0]
    return _NIC.sub(lambda m: names.get(m[1], m[0]), text)


def limit_cpus(text: str, cpus: str) -> str:
    """The matrix as a job bound to these CPUs by a cpuset sees it; the empty string leaves the affinity blank."""
    lines = []
    header: list[str] = []
    for line in text.split("\n"):
        cells = line.split("\t")
        if not header and "CPU Affinity" in re.sub(r"\x1b\[\d*m", "", line):
            header = [re.sub(r"\x1b\[\d*m", "", c) for c in cells]
        elif header and re.fullmatch(r"GPU\d+", cells[0]):
            at = header.index("CPU Affinity")
            cells[at] = cpus
            if not cpus and "NUMA Affinity" in header:
                cells[header.index("NUMA Affinity")] = ""
        lines.append("\t".join(cells))
    return "\n".join(lines)

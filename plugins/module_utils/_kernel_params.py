# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Settings of the running kernel against what the inventory wants. Pure functions, they never raise on a text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, unknown

CHECKS: dict[str, str] = {
    "kernel_params.cmdline": "Every parameter of option parameters is on the running kernel's command line with its "
    "value; of several the last one counts, as for the kernel.",
    "kernel_params.forbidden": "No parameter of option forbidden is on the running kernel's command line.",
    "kernel_params.duplicates": "No parameter stands on the command line with two values; those the kernel takes "
    "several times, such as console, are left out.",
    "kernel_params.release": "The kernel that runs is the release of option release; another one waits for a reboot.",
    "kernel_params.sysctl": "Every sysctl of option sysctls has its value.",
    "kernel_params.module": "Every kernel module parameter of option module_parameters has its value in /sys/module.",
    "kernel_params.governor": "The frequency governor of every CPU policy is that of option governor.",
    "kernel_params.hugepages": "The choice of transparent huge pages is that of option transparent_hugepages.",
    "kernel_params.acs": "No PCI bridge above a GPU redirects peer-to-peer traffic (ACSCtl ReqRedir or CmpltRedir), "
    "with option acs=off.",
}

# Parameters the kernel or early user space takes several times by right.
_REPEATED = frozenset(
    (
        *("console", "earlycon", "earlyprintk", "hugepagesz", "hugepages", "ip", "nameserver", "initrd", "memmap"),
        *("module_blacklist", "modprobe.blacklist", "blacklist", "crashkernel", "dyndbg", "video"),
        *("ifname", "vlan", "bond", "bridge"),
    )
)
_ERROR = re.compile(
    r"No such file or directory|command not found|Permission denied|Operation not permitted|Input/output error", re.I
)


@dataclasses.dataclass(frozen=True, slots=True)
class Readings:
    """Texts of the node by what they hold; None: not read. A text that starts with '!' is why it could not be read."""

    cmdline: str | None = None
    release: str | None = None
    sysctls: str | None = None
    modules: str | None = None
    governors: str | None = None
    hugepages: str | None = None
    lspci: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What the inventory wants; empty or None is not judged."""

    parameters: Sequence[str] = ()
    forbidden: Sequence[str] = ()
    release: str | None = None
    sysctls: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    modules: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    governor: str | None = None
    hugepages: str | None = None
    acs_off: bool = False


def kind(text: str) -> str:
    """Tell which of the readings one captured text is."""
    if re.search(r"^[ \t]+(Capabilities: |Bus: primary=|ACSCtl:|LnkSta:|Kernel driver in use:)", text, re.MULTILINE):
        return "lspci"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if any(re.match(r"\S*/scaling_governor:", line) for line in lines):
        return "governors"
    if any(re.match(r"\S*/module/[^/\s]+/parameters/[^/\s:]+:", line) for line in lines):
        return "modules"
    if any(re.match(r"[a-z][\w./-]+ = ", line) for line in lines):
        return "sysctls"
    if len(lines) == 1 and re.fullmatch(r"(always|madvise|never|\[(always|madvise|never)\]| )+", lines[0]):
        return "hugepages"
    if len(lines) == 1 and re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}[\w.+~-]*", lines[0]):
        return "release"
    return "cmdline"


def parse_cmdline(text: str) -> tuple[list[tuple[str, str | None]], str | None]:
    """Return the kernel's words as (name, value), and why the text is no command line."""
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return [], "the kernel command line is empty"
    if len(lines) > 1 or _ERROR.search(lines[0]) or not lines[0].isprintable() or not lines[0].isascii():
        return [], f"this is no kernel command line: {_shown(lines[0])}"
    if not text.endswith("\n"):
        return [], "the kernel command line is cut off, it does not end in a newline"
    words: list[tuple[str, str | None]] = []
    for word in re.findall(r'(?:[^\s"]|"[^"]*")+', lines[0]):
        if word == "--":
            break  # the rest is for init
        name, equals, value = word.partition("=")
        words.append((name.replace('"', ""), value.replace('"', "") if equals else None))
    # Any words could be parameters of somebody; no kernel is booted without one of these.
    real = any(value is not None or name in ("ro", "rw", "quiet") for name, value in words)
    odd = any(not re.match(r"[A-Za-z0-9_.]", name) for name, _value in words)
    return words, None if real and not odd else f"this is no kernel command line: {_shown(lines[0])}"


def _same(name: str) -> str:
    """Return a parameter's name as the kernel compares it: '-' and '_' are the same."""
    return name.replace("-", "_")


def _word(name: str, value: str | None) -> str:
    return name if value is None else f"{name}={value}"


def _shown(text: str) -> str:
    return repr(text.strip()[:160])


def judge(read: Readings, wanted: Wanted) -> list[Check]:
    """Return the checks of everything that is wanted and was read."""
    checks: list[Check] = []
    if read.cmdline is not None:
        checks += _cmdline(read.cmdline, wanted)
    if wanted.release is not None and read.release is not None:
        checks.append(_release(read.release, wanted.release))
    if wanted.sysctls and read.sysctls is not None:
        checks += _sysctls(read.sysctls, wanted.sysctls)
    if wanted.modules and read.modules is not None:
        checks += _modules(read.modules, wanted.modules)
    if wanted.governor is not None and read.governors is not None:
        checks += _governors(read.governors, wanted.governor)
    if wanted.hugepages is not None and read.hugepages is not None:
        checks.append(_hugepages(read.hugepages, wanted.hugepages))
    if wanted.acs_off and read.lspci is not None:
        checks += _acs(read.lspci)
    return checks


def _refused(text: str) -> str | None:
    """Return why a reading cannot be judged, None when it can."""
    if text.startswith("!"):
        return text[1:]
    if not text.strip():
        return "it is empty"
    return "its last line is cut off" if not text.endswith("\n") else None


def _cmdline(text: str, wanted: Wanted) -> list[Check]:
    remedy = "Configure it (role cstates, module kernel_cmdline) and reboot; a boot loader's own file may win."
    words, problem = parse_cmdline(text) if not text.startswith("!") else ([], text[1:])
    if problem is not None:
        names = [
            *(("kernel_params.cmdline", p, "option parameters") for p in wanted.parameters),
            *(("kernel_params.forbidden", p, "option forbidden") for p in wanted.forbidden),
            ("kernel_params.duplicates", "command line", ""),
        ]
        return [unknown(name, subject, problem, remedy, None, source) for name, subject, source in names]
    checks = [_parameter(p, words, remedy) for p in wanted.parameters]
    checks += [_forbidden(p, words) for p in wanted.forbidden]
    return [*checks, _duplicates(words)]


def _parameter(parameter: str, words: Sequence[tuple[str, str | None]], remedy: str) -> Check:
    name, equals, value = parameter.partition("=")
    seen = [v for n, v in words if _same(n) == _same(name)]
    told = ""
    if len(set(seen)) > 1:
        told = f"; it is there {len(seen)} times ({', '.join(_word(name, v) for v in seen)}) and the last one counts"
    found = _word(name, seen[-1]) if seen else "not there"
    good = bool(seen) and seen[-1] == (value if equals else None)
    return Check(
        "kernel_params.cmdline",
        name,
        "pass" if good else "fail",
        f"parameter of the running kernel{told}",
        found,
        parameter,
        "",
        "option parameters",
        "" if good else remedy,
    )


def _forbidden(parameter: str, words: Sequence[tuple[str, str | None]]) -> Check:
    name, equals, value = parameter.partition("=")
    seen = [_word(n, v) for n, v in words if _same(n) == _same(name) and (not equals or v == value)]
    return Check(
        "kernel_params.forbidden",
        parameter,
        "fail" if seen else "pass",
        "parameter that must not be on the command line",
        " ".join(seen) or "not there",
        "not there",
        "",
        "option forbidden",
        "Take it off the boot loader's configuration and reboot." if seen else "",
    )


def _duplicates(words: Sequence[tuple[str, str | None]]) -> Check:
    values: dict[str, list[str]] = {}
    for name, value in words:
        known = values.setdefault(_same(name), [])
        if _word(name, value) not in known:
            known.append(_word(name, value))
    double = [
        " ".join(v) for name, v in values.items() if len(v) > 1 and name not in _REPEATED and not name.startswith("rd.")
    ]
    if double:
        reason = "parameters stand on the command line with several values, the last one counts"
        remedy = "Look for two files that configure it, /etc/default/grub and a drop-in."
        return Check(
            "kernel_params.duplicates",
            "command line",
            "warn",
            reason,
            "; ".join(double),
            "one value each",
            "",
            "kernel",
            remedy,
        )
    reason = "no parameter stands on the command line with two values"
    return Check(
        "kernel_params.duplicates",
        "command line",
        "pass",
        reason,
        f"{len(words)} parameters",
        "one value each",
        "",
        "kernel",
    )


def _release(text: str, wanted: str) -> Check:
    name, source = "kernel_params.release", "option release"
    remedy = "Reboot into it: the node still runs the kernel it was booted with."
    if (reason := _refused(text)) is not None:
        return unknown(name, "kernel", reason, remedy, wanted, source)
    found = text.strip()
    if not re.fullmatch(r"[0-9]{1,4}\.[0-9]{1,4}\S*", found):
        return unknown(name, "kernel", f"this is no kernel release: {_shown(found)}", remedy, wanted, source)
    good = found == wanted
    return Check(
        name,
        "kernel",
        "pass" if good else "fail",
        "the kernel that runs",
        found,
        wanted,
        "",
        source,
        "" if good else remedy,
    )


def matches(found: str, allowed: Sequence[str]) -> bool:
    """Return whether a value is one of those allowed. '>=N' and '<=N' compare whole numbers; spaces do not count."""
    text = " ".join(found.split())
    for item in allowed:
        bound = re.fullmatch(r"([<>]=)\s*(-?[0-9]{1,20})", item.strip())
        if bound and re.fullmatch(r"-?[0-9]{1,20}", text):
            number, limit = int(text), int(bound[2])
            if (number >= limit) if bound[1] == ">=" else (number <= limit):
                return True
        elif " ".join(item.split()) == text:
            return True
    return False


def _values(text: str, separator: str) -> tuple[dict[str, str], set[str]]:
    """Return name and value of each line, and the names that have two values."""
    found: dict[str, str] = {}
    double: set[str] = set()
    for line in text.splitlines():
        name, mark, value = line.strip().partition(separator)
        name = name.strip()
        if mark and name:
            if found.get(name, value.strip()) != value.strip():
                double.add(name)
            found[name] = value.strip()
    return found, double


def _sysctls(text: str, wanted: Mapping[str, Sequence[str]]) -> list[Check]:
    name, source = "kernel_params.sysctl", "option sysctls"
    problem = _refused(text)
    found, double = _values(text, " =") if problem is None else ({}, set())
    dotted = {key.replace("/", "."): value for key, value in found.items()}
    checks: list[Check] = []
    for key, allowed in wanted.items():
        limit = " or ".join(allowed)
        remedy = f"Set {key} in /etc/sysctl.d and look for a later file that sets it otherwise."
        value = dotted.get(key.replace("/", "."))
        if problem is not None:
            checks.append(unknown(name, key, problem, remedy, limit, source))
        elif value is None or key in double:
            said = next((x for x in text.splitlines() if key.split(".")[-1] in x), "")
            reason = f"its value cannot be read{f': {_shown(said)}' if said else ''}"
            checks.append(unknown(name, key, reason, remedy, limit, source))
        else:
            good = matches(value, allowed)
            checks.append(
                Check(
                    name,
                    key,
                    "pass" if good else "fail",
                    "value in the running kernel",
                    " ".join(value.split()),
                    limit,
                    "",
                    source,
                    "" if good else remedy,
                )
            )
    return checks


def _modules(text: str, wanted: Mapping[str, Sequence[str]]) -> list[Check]:
    name, source = "kernel_params.module", "option module_parameters"
    problem = _refused(text)
    found: dict[str, str] = {}
    for line in text.splitlines() if problem is None else []:
        if match := re.match(r"\S*/module/([^/\s]+)/parameters/([^/\s:]+):(.*)", line.strip()):
            found[f"{_same(match[1])}.{match[2]}"] = match[3].strip()
    checks: list[Check] = []
    for key, allowed in wanted.items():
        module, _dot, parameter = key.partition(".")
        limit = " or ".join(allowed)
        remedy = f"Set it in /etc/modprobe.d or as {key} on the command line, and reload the module or reboot."
        value = found.get(f"{_same(module)}.{parameter}")
        if value is None:
            reason = problem or "the module is not loaded, or the kernel does not show this parameter of it"
            checks.append(unknown(name, key, reason, remedy, limit, source))
            continue
        good = matches(_truth(value), [_truth(a) for a in allowed])
        checks.append(
            Check(
                name,
                key,
                "pass" if good else "fail",
                "parameter of the loaded module",
                value,
                limit,
                "",
                source,
                "" if good else remedy,
            )
        )
    return checks


def _truth(text: str) -> str:
    """Return a switch as the kernel prints it: Y and N, whatever was written."""
    return {"y": "Y", "n": "N", "1": "Y", "0": "N", "true": "Y", "false": "N"}.get(text.strip().lower(), text)


def _governors(text: str, wanted: str) -> list[Check]:
    name, source = "kernel_params.governor", "option governor"
    remedy = f"Set the governor {wanted} at every boot (cpupower, tuned)."
    if text == "!none":
        no_driver = "the kernel does not scale the frequency, there is no cpufreq directory"
        return [
            Check(name, "all CPUs", "warn", no_driver, "no cpufreq", wanted, "", source, "Look at the BIOS setting.")
        ]
    if (reason := _refused(text)) is not None:
        return [unknown(name, "all CPUs", reason, remedy, wanted, source)]
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        match = re.fullmatch(r"\S*/(policy[0-9]+|cpu[0-9]+)(?:/cpufreq)?/scaling_governor:([a-z_]+)", line.strip())
        if match is None:
            return [unknown(name, "all CPUs", f"a line cannot be read: {_shown(line)}", remedy, wanted, source)]
        found.setdefault(match[2], []).append(match[1])
    checks: list[Check] = []
    for governor, places in found.items():
        good = governor == wanted
        subject = places[0] if len(places) == 1 else f"{places[0]} and {len(places) - 1} more"
        checks.append(
            Check(
                name,
                subject,
                "pass" if good else "fail",
                "frequency governor",
                governor,
                wanted,
                "",
                source,
                "" if good else remedy,
            )
        )
    return checks


def _hugepages(text: str, wanted: str) -> Check:
    name, source = "kernel_params.hugepages", "option transparent_hugepages"
    remedy = f"Set transparent_hugepage={wanted} on the kernel command line."
    chosen = re.findall(r"\[([a-z]+)\]", text)
    if (reason := _refused(text)) is not None or len(chosen) != 1:
        return unknown(name, "kernel", reason or f"no choice is marked: {_shown(text)}", remedy, wanted, source)
    good = chosen[0] == wanted
    return Check(
        name,
        "kernel",
        "pass" if good else "fail",
        "choice of transparent huge pages",
        chosen[0],
        wanted,
        "",
        source,
        "" if good else remedy,
    )


# --- PCI bridges


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One device of `lspci -vvv`: its address, what it is, the buses behind it, and its ACS control bits."""

    address: str
    domain: int
    bus: int
    title: str
    secondary: int | None
    subordinate: int | None
    acs: str | None
    denied: bool

    @property
    def gpu(self) -> bool:
        """Whether it is a GPU of NVIDIA."""
        return "NVIDIA" in self.title and bool(re.search(r"\b(3D|VGA compatible) controller\b", self.title))

    @property
    def bridge(self) -> bool:
        """Whether it is a PCI bridge."""
        return "PCI bridge" in self.title


_HEAD = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})\.([0-7]) (.*)")


def parse_lspci(text: str) -> list[Device]:
    """Read `lspci -vvv`: a line at the margin begins a device, those below it are indented."""
    devices: list[Device] = []
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line[:1].isspace():
            block.append(line)
            continue
        if block and (device := _device(block)) is not None:
            devices.append(device)
        block = [line] if line else []
    return devices


def _device(block: Sequence[str]) -> Device | None:
    head = _HEAD.match(block[0])
    if head is None:
        return None
    body = "\n".join(block[1:])
    buses = re.search(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", body)
    acs = re.search(r"ACSCtl:\s*(.*)", body)
    return Device(
        block[0].split()[0],
        int(head[1] or "0", 16),
        int(head[2], 16),
        head[5],
        int(buses[1], 16) if buses else None,
        int(buses[2], 16) if buses else None,
        acs[1].strip() if acs else None,
        "access denied" in body,
    )


def _acs(text: str) -> list[Check]:
    name, source = "kernel_params.acs", "option acs"
    remedy = "Turn ACS off in the BIOS, or clear it on this bridge at every boot with setpci ECAP_ACS+6.w=0."
    limit = "ReqRedir- CmpltRedir-"
    if (reason := _refused(text)) is not None:
        return [unknown(name, "PCI bridges", reason, remedy, limit, source)]
    devices = parse_lspci(text)
    gpus = [d for d in devices if d.gpu]
    if not gpus:
        first = next((x for x in text.splitlines() if x.strip()), "")
        return [unknown(name, "PCI bridges", f"there is no GPU in lspci: {_shown(first)}", remedy, limit, source)]
    checks: list[Check] = []
    for gpu in gpus:
        above = [d for d in devices if d.bridge and d.domain == gpu.domain and _holds(d, gpu.bus)]
        lost = [d for d in devices if d.bridge and d.secondary is None and d.domain == gpu.domain]
        checks.append(_acs_of(gpu, above, lost, limit, source, remedy))
    return checks


def _holds(bridge: Device, bus: int) -> bool:
    return (
        bridge.secondary is not None
        and bridge.subordinate is not None
        and bridge.secondary <= bus <= bridge.subordinate
    )


def _acs_of(
    gpu: Device, above: Sequence[Device], lost: Sequence[Device], limit: str, source: str, remedy: str
) -> Check:
    """Judge the bridges between one GPU and the root. A bridge without the capability cannot redirect."""
    name, subject = "kernel_params.acs", f"GPU {gpu.address}"
    redirecting = [d for d in above if d.acs and re.search(r"(Req|Cmplt)Redir\+", d.acs)]
    if redirecting:
        bridges = ", ".join(d.address for d in redirecting)
        reason = f"bridges above it send peer-to-peer traffic through the CPU: {bridges}"
        return Check(name, subject, "fail", reason, redirecting[0].acs, limit, "", source, remedy)
    garbled = [d for d in above if d.acs is not None and not re.search(r"ReqRedir- CmpltRedir-", d.acs)]
    if garbled:
        reason = f"the ACS bits of bridge {garbled[0].address} cannot be read: {_shown(garbled[0].acs or '')}"
        return unknown(name, subject, reason, remedy, limit, source)
    if any(d.denied for d in above):
        return unknown(name, subject, "lspci may not read the capabilities, run it as root", remedy, limit, source)
    if not above or lost:
        where = f"bridge {lost[0].address} shows no buses" if lost else "no bridge above it is listed"
        return unknown(name, subject, f"the bridges above it are not known: {where}", remedy, limit, source)
    capable = [d for d in above if d.acs is not None]
    value = f"{len(capable)} of {len(above)} bridges have ACS, none redirects"
    return Check(name, subject, "pass", "PCI bridges between the GPU and the root", value, limit, "", source)

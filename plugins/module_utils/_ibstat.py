# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Readers of `ibstat`, `ibstatus` and `ibv_devinfo`, and the judgement of the ports. Pure; parsing never raises.

`ibstat` differs little by version: old ones have no line of the link layer, and those of FDR10 write the rate as
`40 (FDR10)`. The other two tools are put into ibstat's words, so that one judgement serves all.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ib_counters import typed
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Value, compare, unknown

GATE = "ib_port"

CHECKS: dict[str, str] = {
    "ib_port.output": "Whether the list of adapters could be read whole; an error message or an odd line makes it not.",
    "ib_port.present": "Every expected HCA and port is in the list (option hcas).",
    "ib_port.count": "Number of ports of the expected link layer, held against option ports.",
    "ib_port.link_layer": "Link layer of the port, held against option link_layer: a rail in the wrong mode fails.",
    "ib_port.physical_state": "Physical state of the port, held against LinkUp.",
    "ib_port.state": "Logical state of the port, held against Active.",
    "ib_port.rate": "Rate of the port, held against option rate or the board profile, where 0 is no cable.",
    "ib_port.sm_lid": "LID of the subnet manager an InfiniBand port knows, where 0 is none.",
    "ib_port.firmware": "Firmware of the adapter, held against option firmware.",
}
_CA = re.compile(r"CA:? '([^']+)'")
_PORT = re.compile(r"Port ([0-9]{1,3}):")
_FIELD = re.compile(r"([A-Za-z][A-Za-z ()]*?)\s*:\s*(.*)")
_NUMBER = re.compile(r"([0-9]{1,7}(?:\.[0-9]{1,3})?)(?: \(FDR10\)| Gb/sec(?: \([^()]*\))?)?")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,8}")
_PANIC = re.compile(r"\b(ibpanic|ibwarn|error|failed|cannot|can't|unable)\b", re.IGNORECASE)


@dataclasses.dataclass(frozen=True, slots=True)
class Adapter:
    """One CA: its own fields, and the fields of each port by port number, as printed."""

    name: str
    fields: dict[str, str]
    ports: dict[int, dict[str, str]]


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What was read, and each line that could not be."""

    adapters: dict[str, Adapter]
    problems: tuple[str, ...]

    @property
    def complete(self) -> bool:
        """Whether the list of adapters is whole: an adapter that is not listed is then really missing."""
        return bool(self.adapters) and not self.problems


def parse(stdout: str, stderr: str = "") -> Report:
    """Read the report. Lines that are not of it, and error messages in either stream, become problems."""
    adapters: dict[str, Adapter] = {}
    problems: list[str] = []
    adapter: Adapter | None = None
    fields: dict[str, str] | None = None
    for number, raw in enumerate(stdout.splitlines(), 1):
        line = raw.strip()
        if not line or typed(line):
            continue
        if match := _CA.fullmatch(line):
            adapter = Adapter(match[1], {}, {})
            if match[1] in adapters:
                # Which of the two is true is not known, so neither counts.
                problems.append(f"line {number} names {match[1]} a second time")
                adapters[match[1]] = Adapter(match[1], {}, {})
            else:
                adapters[match[1]] = adapter
            fields = adapter.fields
        elif adapter is not None and (match := _PORT.fullmatch(line)):
            fields = {}
            if int(match[1]) in adapter.ports:
                problems.append(f"line {number} names port {match[1]} of {adapter.name} a second time")
                adapter.ports[int(match[1])] = {}
            else:
                adapter.ports[int(match[1])] = fields
        elif fields is not None and not _PANIC.search(line) and (match := _FIELD.fullmatch(line)):
            if match[1] in fields:
                problems.append(f"line {number} gives {match[1]!r} a second time: {_shown(line)}")
                fields[match[1]] = ""
            else:
                fields[match[1]] = match[2]
        else:
            problems.append(f"line {number} cannot be read: {_shown(line)}")
    for found in adapters.values():
        announced = found.fields.get("Number of ports", "")
        if announced.isascii() and announced.isdigit() and int(announced[:4]) != len(found.ports):
            problems.append(f"{found.name} announces {announced[:4]} ports and {len(found.ports)} are described")
        elif not found.ports:
            problems.append(f"{found.name} is there without a port")
    problems.extend(f"stderr says: {_shown(line)}" for line in stderr.splitlines() if _PANIC.search(line))
    return Report(adapters, tuple(problems))


# --- ibstatus and ibv_devinfo, in ibstat's words

_STATUS = re.compile(r"Infiniband device '([^']+)' port ([0-9]{1,3}) status:")
_STATUS_FIELDS: dict[str, str] = {
    "base lid": "Base lid",
    "sm lid": "SM lid",
    "state": "State",
    "phys state": "Physical state",
    "rate": "Rate",
    "link_layer": "Link layer",
}
_STATES: dict[str, str] = {
    "DOWN": "Down",
    "INIT": "Initializing",
    "ARMED": "Armed",
    "ACTIVE": "Active",
    "ACTIVE_DEFER": "Active defer",
}
_PHYSICAL: dict[str, str] = {
    "SLEEP": "Sleep",
    "POLLING": "Polling",
    "DISABLED": "Disabled",
    "PORT_CONFIGURATION TRAINNING": "PortConfigurationTraining",
    "LINK_UP": "LinkUp",
    "LINK_ERROR_RECOVERY": "LinkErrorRecovery",
    "PHY TEST": "PhyTest",
}


def parse_report(stdout: str, stderr: str = "") -> Report:
    """Read whichever of the three reports this is; `ibstat` when it cannot be told."""
    if re.search(r"^[ \t]*Infiniband device '", stdout, re.MULTILINE):
        return parse_ibstatus(stdout, stderr)
    if re.search(r"^[ \t]*hca_id:", stdout, re.MULTILINE):
        return parse_devinfo(stdout, stderr)
    return parse(stdout, stderr)


class _Builder:
    """Adapters and ports as they come; what comes twice is not known."""

    def __init__(self, stderr: str) -> None:
        self.adapters: dict[str, Adapter] = {}
        self.problems = [f"stderr says: {_shown(line)}" for line in stderr.splitlines() if _PANIC.search(line)]

    def adapter(self, name: str) -> Adapter:
        return self.adapters.setdefault(name, Adapter(name, {}, {}))

    def port(self, name: str, number: int, line: int) -> dict[str, str]:
        ports = self.adapter(name).ports
        if number in ports:
            self.problems.append(f"line {line} names port {number} of {name} a second time")
            ports[number] = {}
            return {}
        return ports.setdefault(number, {})

    def put(self, fields: dict[str, str], name: str, value: str, line: int, raw: str) -> None:
        if name in fields:
            self.problems.append(f"line {line} gives {name!r} a second time: {_shown(raw)}")
            fields[name] = ""
        else:
            fields[name] = value

    def odd(self, line: int, raw: str) -> None:
        self.problems.append(f"line {line} cannot be read: {_shown(raw.strip())}")

    def report(self) -> Report:
        return Report(self.adapters, tuple(self.problems))


def parse_ibstatus(stdout: str, stderr: str = "") -> Report:
    """Read `ibstatus`: states are numbers with words (`4: ACTIVE`), LIDs hexadecimal."""
    read = _Builder(stderr)
    fields: dict[str, str] | None = None
    for line, raw in enumerate(stdout.splitlines(), 1):
        text = raw.strip()
        if not text or typed(text):
            continue
        if match := _STATUS.fullmatch(text):
            fields = read.port(match[1], int(match[2]), line)
            continue
        name, colon, value = (part.strip() for part in text.partition(":"))
        if fields is None or not colon or _PANIC.search(text):
            read.odd(line, raw)
        elif name in _STATUS_FIELDS:
            word = re.sub(r"^[0-9]{1,2}:\s*", "", value)
            if name == "state":
                word = _STATES.get(word, word)
            elif name.endswith("lid"):
                word = str(int(value, 16)) if _HEX.fullmatch(value) else value
            read.put(fields, _STATUS_FIELDS[name], word, line, raw)
        elif name not in ("default gid", "gid"):
            read.odd(line, raw)
    return read.report()


_SPEED = re.compile(r"([0-9]{1,4}(?:\.[0-9]{1,3})?) Gbps \([0-9]+\)")
_WIDTH = re.compile(r"([0-9]{1,2})X \([0-9]+\)")


def parse_devinfo(stdout: str, stderr: str = "") -> Report:
    """Read `ibv_devinfo` and `ibv_devinfo -v`. Only the long form has physical state, width and speed, so the rate."""
    read = _Builder(stderr)
    name = ""
    fields: dict[str, str] | None = None
    for line, raw in enumerate(stdout.splitlines(), 1):
        text = raw.strip()
        if not text or typed(text):
            continue
        key, colon, value = (part.strip() for part in text.partition(":"))
        if key == "hca_id" and value:
            name, fields = value, None
            if name in read.adapters:
                read.problems.append(f"line {line} names {name} a second time")
            read.adapter(name)
        elif not name or not colon or re.search(r"\b(failed|error|cannot|unable)\b", text, re.IGNORECASE):
            # `GID[  0]:` and flags in capitals belong to the long form.
            if not name or not re.fullmatch(r"[A-Z0-9_]+|GID\[.*|Unknown flags:.*|[a-z ]+ not supported", text):
                read.odd(line, raw)
        elif key == "port" and value.isascii() and value.isdigit() and len(value) <= 3:
            fields = read.port(name, int(value), line)
        elif fields is None:
            if key == "fw_ver":
                read.put(read.adapter(name).fields, "Firmware version", value, line, raw)
        elif key in ("state", "phys_state", "sm_lid", "port_lid", "link_layer", "active_width", "active_speed"):
            word = re.sub(r"\s*\([0-9-]+\)$", "", value)
            label, shown = {
                "state": ("State", _STATES.get(word.removeprefix("PORT_"), word)),
                "phys_state": ("Physical state", _PHYSICAL.get(word, word)),
                "sm_lid": ("SM lid", word),
                "port_lid": ("Base lid", word),
                "link_layer": ("Link layer", word),
                "active_width": ("active_width", value),
                "active_speed": ("active_speed", value),
            }[key]
            read.put(fields, label, shown, line, raw)
    for adapter in read.adapters.values():
        for port in adapter.ports.values():
            speed = _SPEED.fullmatch(port.get("active_speed", ""))
            width = _WIDTH.fullmatch(port.get("active_width", ""))
            if speed and width:
                rate = float(speed[1]) * int(width[1])
                port["Rate"] = f"{rate:.1f}"
    return read.report()


def _shown(line: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in line)
    return text if len(text) <= 160 else f"{text[:160]}..."


def number(text: str | None) -> int | float | None:
    """Return a field's number, None when it is missing or not a plain decimal number."""
    match = _NUMBER.fullmatch(text or "")
    if match is None:
        return None
    value = float(match[1])
    return int(value) if value.is_integer() else value


def split_hca(name: str) -> tuple[str, int]:
    """Return device and port of an entry such as mlx5_0 or mlx5_0:1 (port 1 where none is given)."""
    device, _sep, port = name.partition(":")
    return device, int(port) if port.isascii() and port.isdigit() else 1


def select(report: Report, link_layer: str) -> list[str]:
    """Return the ports of a link layer by name, all ports when there is none: never told apart by the device's name.

    A port that does not say its link layer is among them, since it may be a rail.
    """
    named = {
        (adapter.name if port == 1 else f"{adapter.name}:{port}"): fields.get("Link layer")
        for adapter in report.adapters.values()
        for port, fields in adapter.ports.items()
    }
    chosen = [name for name, layer in named.items() if layer in (None, "", _LAYERS[link_layer])]
    return chosen or list(named)


def judge(
    report: Report,
    hcas: Sequence[str] | None,
    *,
    rate: int | float | None,
    rate_source: str,
    link_layer: str,
    firmware: str | None,
    ports: int | None = None,
) -> list[Check]:
    """Hold each expected HCA's port against the limits: one check for each port and fact.

    Without `hcas` every port of the link layer is judged; `ports` is the number of them.
    """
    remedy = "Run ibstat by hand; an ibpanic in the middle of the list is an adapter that left the bus."
    checks = [unknown("ib_port.output", "ibstat", p, remedy) for p in report.problems]
    if not report.adapters and not report.problems:
        reason = "ibstat printed no adapter"
        checks.append(
            unknown(
                "ib_port.output",
                "ibstat",
                reason,
                "Load mlx5_ib (DOCA or the kernel's driver) and check lspci for ConnectX.",
            )
        )
    if ports is not None and report.adapters:
        checks.append(_count(report, ports, link_layer))
    for hca in select(report, link_layer) if hcas is None else hcas:
        checks.extend(_judge_hca(report, hca, rate, rate_source, link_layer, firmware))
    return checks


def _count(report: Report, ports: int, link_layer: str) -> Check:
    layers = [f.get("Link layer") for a in report.adapters.values() for f in a.ports.values()]
    found, other = layers.count(_LAYERS[link_layer]), len(layers) - layers.count(_LAYERS[link_layer])
    reason = f"{_LAYERS[link_layer]} ports" + (f" ({other} of another or no link layer)" if other else "")
    remedy = "Check lspci and the kernel log for an adapter that left the bus; or correct the number."
    if found < ports and not report.complete:
        reason = f"{found} {reason}, and the list could not be read whole"
        return unknown("ib_port.count", "ibstat", reason, remedy, ports, "option ports")
    return compare(
        "ib_port.count",
        "ibstat",
        found,
        ports,
        ok=found == ports,
        unit="ports",
        limit_source="option ports",
        reason=reason,
        remedy=remedy,
    )


def _judge_hca(
    report: Report, hca: str, rate: int | float | None, rate_source: str, link_layer: str, firmware: str | None
) -> list[Check]:
    device, port_number = split_hca(hca)
    adapter = report.adapters.get(device)
    remedy = "Check lspci and the kernel log for the adapter, then its driver and its slot; or correct hcas."
    if adapter is None or port_number not in adapter.ports:
        what = "the adapter is not in the list" if adapter is None else f"it has no port {port_number}"
        if not report.complete:
            return [
                unknown(
                    "ib_port.present",
                    hca,
                    f"{what}, and the list could not be read whole",
                    remedy,
                    "present",
                    "option hcas",
                )
            ]
        there = ", ".join(report.adapters)
        return [
            Check("ib_port.present", hca, "fail", f"{what} ({there})", "missing", "present", "", "option hcas", remedy)
        ]
    port = adapter.ports[port_number]
    if number(port.get("Rate")) == 0 and port.get("Link layer", "InfiniBand") == "InfiniBand":
        reason = "the port has no rate: no cable or no transceiver"
        checks = [
            Check("ib_port.rate", hca, "fail", reason, 0, rate, "Gb/s", rate_source, "Plug or replace the cable.")
        ]
        return checks + _judge_firmware(adapter, hca, firmware)
    checks = _judge_link(port, hca, link_layer)
    up = port.get("Physical state") == "LinkUp"
    right_layer = port.get("Link layer") == _LAYERS[link_layer]
    if up and right_layer:
        found = number(port.get("Rate"))
        reason = (
            "rate of the link"
            if found is not None or "Rate" not in port
            else f"its rate reads {_shown(port['Rate'])!r}"
        )
        bad = "The link trained down: clean or replace the cable, then check the other end's port with iblinkinfo."
        good = found is not None and rate is not None and found >= rate
        checks.append(
            compare(
                "ib_port.rate",
                hca,
                found,
                rate,
                ok=good,
                unit="Gb/s",
                limit_source=rate_source,
                reason=reason,
                remedy=bad if found is not None else "Run ibstat by hand: what it prints is no rate.",
            )
        )
        if link_layer == "infiniband":
            lid = number(port.get("SM lid"))
            no_sm = (
                "Start the subnet manager (opensm or the one on the switch) and check that it is in this port's subnet."
            )
            reason = "LID of the subnet manager" if lid != 0 else "no subnet manager has configured the port"
            checks.append(
                compare(
                    "ib_port.sm_lid",
                    hca,
                    lid,
                    "not 0",
                    ok=bool(lid),
                    limit_source="InfiniBand",
                    reason=reason,
                    remedy=no_sm,
                )
            )
    return checks + _judge_firmware(adapter, hca, firmware)


_LAYERS: Mapping[str, str] = {"infiniband": "InfiniBand", "ethernet": "Ethernet"}
_STATE_REASONS = {
    "Polling": "the port looks for a partner and finds none: no cable, a dead cable, or the other end is off",
    "Disabled": "the port was turned off",
    "Sleep": "the port is asleep",
    "LinkErrorRecovery": "the link is in error recovery: the cable or a transceiver is bad",
    "Initializing": "the link is up and no subnet manager has brought it to Active",
    "Armed": "the subnet manager has not finished with the port",
    "Down": "the port is down",
}
_REMEDIES = {
    "ib_port.physical_state": (
        "Check the cable and the switch port (iblinkinfo); a Disabled port is turned on with ibportstate."
    ),
    "ib_port.state": (
        "Check the subnet manager (sminfo, opensm's log); without a link look at the physical state first."
    ),
    "ib_port.link_layer": (
        "Set LINK_TYPE_P1 with mlxconfig and reset the adapter, or correct the link layer in the inventory."
    ),
}


def _judge_link(port: Mapping[str, str], hca: str, link_layer: str) -> list[Check]:
    checks = []
    facts = (
        ("ib_port.link_layer", "Link layer", _LAYERS[link_layer], "option link_layer"),
        ("ib_port.physical_state", "Physical state", "LinkUp", "InfiniBand"),
        ("ib_port.state", "State", "Active", "InfiniBand"),
    )
    for name, field, wanted, source in facts:
        found: Value = port.get(field) or None
        label = field[0].lower() + field[1:]
        reason = label if found == wanted else _STATE_REASONS.get(str(found), f"{label} is {_shown(str(found))}")
        if found is None:
            reason = f"ibstat shows no line {field!r} for the port"
        checks.append(
            compare(
                name,
                hca,
                found,
                wanted,
                ok=found == wanted,
                limit_source=source,
                reason=reason,
                remedy=_REMEDIES[name],
            )
        )
    return checks


def _judge_firmware(adapter: Adapter, hca: str, firmware: str | None) -> list[Check]:
    if firmware is None:
        return []
    found = adapter.fields.get("Firmware version") or None
    remedy = "Burn the pinned firmware and reset the adapter, or correct the pin."
    reason = "adapter firmware" if found == firmware else "adapter firmware differs from the pinned one"
    return [
        compare(
            "ib_port.firmware",
            hca,
            found,
            firmware,
            ok=found == firmware,
            limit_source="option firmware",
            reason=reason,
            remedy=remedy,
        )
    ]

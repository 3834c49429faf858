# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reader of `ibstat` (rdma-core 44) and the judgement of its ports. Pure functions; parsing never raises."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Value, compare, unknown

GATE = "ib_port"
_CA = re.compile(r"CA '([^']+)'")
_PORT = re.compile(r"Port ([0-9]{1,3}):")
_FIELD = re.compile(r"([A-Za-z][A-Za-z ()]*?)\s*:\s*(.*)")
_NUMBER = re.compile(r"[0-9]{1,7}(?:\.[0-9]{1,3})?")
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
        if not line:
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
    problems.extend(f"stderr says: {_shown(line)}" for line in stderr.splitlines() if _PANIC.search(line))
    return Report(adapters, tuple(problems))


def _shown(line: str) -> str:
    text = "".join(c if c.isprintable() else " " for c in line)
    return text if len(text) <= 160 else f"{text[:160]}..."


def number(text: str | None) -> int | float | None:
    """Return a field's number, None when it is missing or not a plain decimal number."""
    if text is None or not _NUMBER.fullmatch(text):
        return None
    value = float(text)
    return int(value) if value.is_integer() else value


def split_hca(name: str) -> tuple[str, int]:
    """Return device and port of an entry such as mlx5_0 or mlx5_0:1 (port 1 where none is given)."""
    device, _sep, port = name.partition(":")
    return device, int(port) if port.isascii() and port.isdigit() else 1


def judge(
    report: Report,
    hcas: Sequence[str],
    *,
    rate: int | float | None,
    rate_source: str,
    link_layer: str,
    firmware: str | None,
) -> list[Check]:
    """Hold each expected HCA's port against the limits: one check for each port and fact."""
    remedy = "Run ibstat by hand; an ibpanic in the middle of the list is an adapter that left the bus."
    checks = [unknown(f"{GATE}.output", "ibstat", p, remedy) for p in report.problems]
    if not report.adapters and not report.problems:
        reason = "ibstat printed no adapter"
        checks.append(
            unknown(
                f"{GATE}.output",
                "ibstat",
                reason,
                "Load mlx5_ib (DOCA or the kernel's driver) and check lspci for ConnectX.",
            )
        )
    for hca in hcas:
        checks.extend(_judge_hca(report, hca, rate, rate_source, link_layer, firmware))
    return checks


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
                    f"{GATE}.present",
                    hca,
                    f"{what}, and the list could not be read whole",
                    remedy,
                    "present",
                    "option hcas",
                )
            ]
        there = ", ".join(report.adapters)
        return [
            Check(f"{GATE}.present", hca, "fail", f"{what} ({there})", "missing", "present", "", "option hcas", remedy)
        ]
    port = adapter.ports[port_number]
    if number(port.get("Rate")) == 0 and port.get("Link layer", "InfiniBand") == "InfiniBand":
        reason = "the port has no rate: no cable or no transceiver"
        checks = [
            Check(f"{GATE}.rate", hca, "fail", reason, 0, rate, "Gb/s", rate_source, "Plug or replace the cable.")
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
                f"{GATE}.rate",
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
                    f"{GATE}.sm_lid",
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
    "physical_state": (
        "Check the cable and the switch port (iblinkinfo); a Disabled port is turned on with ibportstate."
    ),
    "state": "Check the subnet manager (sminfo, opensm's log); without a link look at the physical state first.",
    "link_layer": (
        "Set LINK_TYPE_P1 with mlxconfig and reset the adapter, or correct the link layer in the inventory."
    ),
}


def _judge_link(port: Mapping[str, str], hca: str, link_layer: str) -> list[Check]:
    checks = []
    facts = (
        ("link_layer", "Link layer", _LAYERS[link_layer], "option link_layer"),
        ("physical_state", "Physical state", "LinkUp", "InfiniBand"),
        ("state", "State", "Active", "InfiniBand"),
    )
    for fact, field, wanted, source in facts:
        found: Value = port.get(field) or None
        label = field[0].lower() + field[1:]
        reason = label if found == wanted else _STATE_REASONS.get(str(found), f"{label} is {_shown(str(found))}")
        if found is None:
            reason = f"ibstat shows no line {field!r} for the port"
        checks.append(
            compare(
                f"{GATE}.{fact}",
                hca,
                found,
                wanted,
                ok=found == wanted,
                limit_source=source,
                reason=reason,
                remedy=_REMEDIES[fact],
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
            f"{GATE}.firmware",
            hca,
            found,
            firmware,
            ok=found == firmware,
            limit_source="option firmware",
            reason=reason,
            remedy=remedy,
        )
    ]

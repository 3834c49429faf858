# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What switches say about adaptive routing, ECN and PFC in their command lines. Pure; parsing never raises.

Four systems, two for each link layer. NVOS (InfiniBand) and Cumulus (Ethernet) print NVUE tables, MLNX-OS (InfiniBand)
and Onyx (Ethernet) their own lines. An InfiniBand switch shows whether its profile has adaptive routing, but nothing
about congestion control: that is the subnet manager's. The subnet manager inside MLNX-OS can do neither (NVIDIA
MLNX-OS User Manual, "Subnet Manager"), so one that is enabled there is a defect.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Literal

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, compare, unknown

Shell = Literal["exec", "prompt"]
MANUAL = "NVIDIA MLNX-OS User Manual, Subnet Manager"

CHECKS: dict[str, str] = {
    "rdma_congestion.switch": "Whether the switch could be asked and its answers read.",
    "rdma_congestion.switch_adaptive_routing": (
        "Adaptive routing as the switch reports it (NVOS: system profile; Cumulus: router adaptive-routing), held "
        "against enabled, as the article refuses static routing."
    ),
    "rdma_congestion.switch_subnet_manager": (
        "The subnet manager inside a switch of MLNX-OS, held against disabled: it can do neither adaptive routing nor "
        "congestion control (its manual)."
    ),
    "rdma_congestion.switch_ecn": "ECN marking on the traffic class of the RoCE priority, held against on (DCQCN).",
    "rdma_congestion.switch_pfc": "The priority with flow control on the switch, held against the RoCE priority alone.",
    "rdma_congestion.switch_trust": "What the switch's ports take the priority from, held against the DSCP.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class System:
    """A switch's operating system: how it is asked and what. `commands` maps a key to the command line."""

    name: str
    link_layer: str
    shell: Shell
    commands: Mapping[str, str]

    def file(self, key: str) -> str:
        """Return the file name of a command's output in a bundle."""
        return f"switch-{self.commands[key].replace(' ', '-')}.txt"


SYSTEMS: Mapping[str, System] = {
    s.name: s
    for s in (
        System("nvos", "infiniband", "exec", {"profile": "nv show system profile"}),
        System("mlnx_os", "infiniband", "prompt", {"sm": "show ib sm"}),
        System(
            "cumulus", "ethernet", "exec", {"roce": "nv show qos roce", "routing": "nv show router adaptive-routing"}
        ),
        System("onyx", "ethernet", "prompt", {"roce": "show roce"}),
    )
}
# What a command line says when it refuses, with exit status 0 in the interactive shells.
_REFUSED = re.compile(
    r"^[ \t]*(%|Error:|ERROR|Invalid|Unrecognized|Unknown command|Insufficient)|^.*command not found", re.MULTILINE
)


def refused(text: str) -> str | None:
    """Return the line in which a switch refuses a command, None when there is none."""
    match = _REFUSED.search(text)
    return text[match.start() :].strip().splitlines()[0][:160] if match else None


def parse_nvue(text: str) -> dict[str, str]:
    """Return the values of the first NVUE table by path (`pfc/pfc-priority`), or of its JSON form.

    The column `operational` wins over `applied`: the first is what the switch does, the second what it was told.
    """
    stripped = text.strip()
    if stripped.startswith("{"):
        try:
            data: Any = json.loads(stripped)
        except (ValueError, RecursionError):
            return {}
        return _flat(data) if isinstance(data, dict) else {}
    lines = text.splitlines()
    rule = next((i for i, line in enumerate(lines) if i and re.fullmatch(r"\s*-{3,}( +-{3,})+\s*", line)), None)
    if rule is None:
        return {}
    spans = [match.span() for match in re.finditer(r"-+", lines[rule])]
    titles = lines[rule - 1].split()
    columns = [c for c in ("operational", "applied") if c in titles]
    if not columns or len(spans) != 1 + len(titles):
        return {}
    order = [titles.index(c) for c in columns]
    values: dict[str, str] = {}
    path: list[tuple[int, str]] = []
    for line in lines[rule + 1 :]:
        key = line[: spans[1][0]].rstrip()
        if not key.strip() or not re.fullmatch(r"\s*[a-z][a-z0-9-]*", key):
            break
        indent = len(key) - len(key.lstrip())
        path = [(depth, name) for depth, name in path if depth < indent]
        name = "/".join([*(section for _unused, section in path), key.strip()])
        cells = [line[start:end].strip() for start, end in zip(*_bounds(spans), strict=True)]
        value = next((cells[i] for i in order if cells[i]), "")
        if name in values:
            return {}
        values[name] = value
        path.append((indent, key.strip()))
    return values


def _bounds(spans: list[tuple[int, int]]) -> tuple[list[int], list[int | None]]:
    """Return where the value columns begin and end; the last one has no end, since a value may be wider."""
    starts = [start for start, _end in spans[1:]]
    return starts, [*starts[1:], None]


def _flat(data: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    values: dict[str, str] = {}
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            values |= _flat(value, f"{name}/") if name.count("/") < 8 else {}
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            values[name] = str(value)
    return values


def parse_traffic_classes(text: str) -> dict[int, int]:
    """Return the traffic class of each priority, of the table `RoCE SP->TC mapping` of `nv show qos roce`."""
    classes: dict[int, int] = {}
    _before, _title, rest = text.partition("SP->TC mapping")
    for line in rest.splitlines()[1:]:
        if match := re.match(r"\s*\S+\s+([0-7])\s+([0-7])\s+\S", line):
            classes[int(match[1])] = int(match[2])
        elif classes:
            break
    return classes


def parse_onyx_roce(text: str) -> dict[str, str]:
    """Return the lines `name : value` of Onyx's `show roce`; those of a section carry its name."""
    values: dict[str, str] = {}
    section = ""
    for line in text.splitlines():
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not colon:
            continue
        if not value:
            section = name
            continue
        # Lines of a section are indented, except in the manual's own rendering.
        in_section = section in ("Application TLV", "Port congestion-control") and name in (
            "Selector",
            "Protocol",
            "Priority",
            "Mode",
            "Min",
            "Max",
            "Min (KB)",
            "Max (KB)",
        )
        key = f"{section}/{name}" if in_section else name
        values[key] = "" if key in values else value
    return values


def kind_of(text: str) -> tuple[str, str] | None:
    """Return the system and the command a captured text is of, None when it is none of them."""
    if re.search(r"^[ \t]*RoCE mode[ \t]*:", text, re.MULTILINE):
        return "onyx", "roce"
    values = parse_nvue(text)
    if "adaptive-routing" in values or "num-of-swids" in values:
        return "nvos", "profile"
    if any(name.startswith(("congestion-control", "pfc", "trust", "lldp-app-tlv")) for name in values):
        return "cumulus", "roce"
    if set(values) & {"enable", "state"}:
        return "cumulus", "routing"
    words = [line.strip() for line in text.splitlines() if line.strip()]
    return ("mlnx_os", "sm") if words and words[-1] in ("enable", "disable") else None


def judge(
    system: str, key: str, text: str, switch: str, *, priority: int, adaptive_routing: bool, congestion_control: bool
) -> list[Check]:
    """Judge one command's output of one switch."""
    if (line := refused(text)) is not None:
        reason = f"{SYSTEMS[system].commands[key]}: the switch says {line!r}"
        return [unknown("rdma_congestion.switch", switch, reason, "Check the option switch.os and the user's role.")]
    judged = _JUDGES[system, key](text, switch, priority, adaptive_routing, congestion_control)
    if not judged:
        reason = f"nothing is asked of {SYSTEMS[system].commands[key]}, as adaptive_routing and dcqcn are not enabled"
        return [Check("rdma_congestion.switch", switch, "warn", reason, "not judged")]
    return judged


def _nvos_profile(
    text: str, switch: str, _priority: int, adaptive_routing: bool, _congestion_control: bool
) -> list[Check]:
    return [_routing(switch, parse_nvue(text).get("adaptive-routing"))] if adaptive_routing else []


def _routing(switch: str, found: str | None) -> Check:
    on = (found or "").lower() in ("on", "enabled", "yes", "true")
    return compare(
        "rdma_congestion.switch_adaptive_routing",
        switch,
        found or None,
        "enabled",
        ok=on,
        limit_source="article: static routing is refused",
        reason="adaptive routing of the switch" if on or not found else "the switch routes statically",
        remedy="Enable adaptive routing: in the system profile (NVOS), with nv set router adaptive-routing (Cumulus).",
    )


def _mlnx_sm(text: str, switch: str, _priority: int, adaptive_routing: bool, congestion_control: bool) -> list[Check]:
    if not (adaptive_routing or congestion_control):
        return []
    words = [line.strip() for line in text.splitlines() if line.strip() in ("enable", "disable")]
    found = words[0] if len(words) == 1 else None
    good = found == "disable"
    return [
        compare(
            "rdma_congestion.switch_subnet_manager",
            switch,
            found,
            "disable",
            ok=good,
            limit_source=MANUAL,
            reason=(
                "the subnet manager is not the switch's own, so NVIDIA's OpenSM can turn both on (its configuration is "
                "the proof)"
                if good
                else "MLNX-OS's own subnet manager supports neither adaptive routing nor congestion control"
            ),
            remedy="Run NVIDIA's OpenSM or UFM on a host and disable the subnet manager of the switch (no ib sm).",
        )
    ]


def _cumulus_routing(
    text: str, switch: str, _priority: int, adaptive_routing: bool, _congestion_control: bool
) -> list[Check]:
    values = parse_nvue(text)
    return [_routing(switch, values.get("enable") or values.get("state"))] if adaptive_routing else []


_ECN_REMEDY = "Configure RoCE on the switch (nv set qos roce; roce on Onyx)."


def _cumulus_roce(
    text: str, switch: str, priority: int, _adaptive_routing: bool, congestion_control: bool
) -> list[Check]:
    if not congestion_control:
        return []
    values = parse_nvue(text)
    if not values:
        return [unknown("rdma_congestion.switch", switch, "nv show qos roce printed no table that can be read")]
    if (values.get("enable") or values.get("state") or "").lower() in ("off", "disabled"):
        off = "RoCE is off on the switch, so are ECN and flow control"
        source = "DCQCN needs ECN marks"
        return [Check("rdma_congestion.switch_ecn", switch, "fail", off, "off", "ECN", "", source, _ECN_REMEDY)]
    tc = parse_traffic_classes(text).get(priority, priority)
    mode, classes = values.get("congestion-control/congestion-mode"), values.get("congestion-control/enabled-tc")
    listed = [c.strip() for c in (classes or "").split(",")]
    found = f"{mode} on TC {classes}" if mode and classes else mode or None
    return [
        _ecn(switch, found, f"ECN on TC {tc}", "ecn" in (mode or "").lower() and str(tc) in listed),
        _pfc(switch, values.get("pfc/pfc-priority"), priority, [values.get(f"pfc/{d}x-enabled") for d in "rt"]),
        _trust(switch, values.get("trust/trust-mode"), "dscp"),
    ]


def _onyx_roce(text: str, switch: str, priority: int, _adaptive_routing: bool, congestion_control: bool) -> list[Check]:
    if not congestion_control:
        return []
    values = parse_onyx_roce(text)
    if values.get("RoCE mode") == "N/A":
        reason = "RoCE is off on the switch, so are ECN and flow control"
        source = "DCQCN needs ECN marks"
        return [Check("rdma_congestion.switch_ecn", switch, "fail", reason, "N/A", "ecn", "", source, _ECN_REMEDY)]
    mode = values.get("Port congestion-control/Mode") or None
    on = [
        match[1]
        for name, value in values.items()
        if (match := re.fullmatch(r"switch-priority ([0-7])", name)) and value == "enabled"
    ]
    state = values.get("PFC")
    priorities = None if state is None or (state == "enabled" and not on) else ",".join(on) or "-"
    return [
        _ecn(switch, mode, "ecn", "ecn" in (mode or "").lower()),
        _pfc(switch, priorities, priority, [state, state]),
        _trust(switch, values.get("Port trust mode"), "L3"),
    ]


def _ecn(switch: str, found: str | None, limit: str, good: bool) -> Check:
    return compare(
        "rdma_congestion.switch_ecn",
        switch,
        found,
        limit,
        ok=good,
        limit_source="DCQCN needs ECN marks",
        reason="congestion control of the switch's RoCE queue",
        remedy=_ECN_REMEDY,
    )


def _pfc(switch: str, found: str | None, priority: int, directions: list[str | None]) -> Check:
    on = all((d or "").lower() in ("enabled", "yes", "on") for d in directions)
    reason = "priorities with flow control" if on else f"flow control is {directions[0] or 'not shown'} on the switch"
    return compare(
        "rdma_congestion.switch_pfc",
        switch,
        found or None,
        str(priority),
        ok=on and found == str(priority),
        limit_source="option priority",
        reason=reason,
        remedy="Enable flow control for the RoCE priority only (nv set qos roce mode lossless; roce lossless on Onyx).",
    )


def _trust(switch: str, found: str | None, wanted: str) -> Check:
    good = wanted.lower() in [word.strip().lower() for word in (found or "").split(",")] or found == "both"
    return compare(
        "rdma_congestion.switch_trust",
        switch,
        found or None,
        wanted,
        ok=good,
        limit_source="the nodes mark the DSCP (role rdma_fabric)",
        reason="what the switch takes the priority from",
        remedy="Let the switch's ports trust the DSCP (trust L3 on Onyx).",
    )


_JUDGES = {
    ("nvos", "profile"): _nvos_profile,
    ("mlnx_os", "sm"): _mlnx_sm,
    ("cumulus", "roce"): _cumulus_roce,
    ("cumulus", "routing"): _cumulus_routing,
    ("onyx", "roce"): _onyx_roce,
}

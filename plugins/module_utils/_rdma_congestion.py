# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Proof of congestion control and adaptive routing. Pure; parsing never raises.

On RoCE both are the node's and the Ethernet switches': DCQCN is proven in firmware, kernel and QoS of each port. On
InfiniBand they belong to the subnet manager, so its configuration is the proof, and what ibdiagnet finds on the
switches.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _switch_cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._mlxconfig import Setting, forms, parse_query, same
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._opensm import parse_settings
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import (
    Check,
    Evidence,
    Verdict,
    compare,
    unknown,
)

GATE = "rdma_congestion"
ROLE = "role rdma_fabric"
UFM = "UFM Enterprise User Manual, OpenSM configuration"
Flavour = Literal["opensm", "nvidia", "unknown"]

CHECKS: dict[str, str] = {
    "rdma_congestion.dcqcn": "DCQCN was turned off by option dcqcn, so nothing of it is judged: warn.",
    "rdma_congestion.netdev": "The network interface of each RDMA device, whose settings are judged.",
    "rdma_congestion.cc_priorities": (
        "Priorities DCQCN works on in the adapter's firmware (ROCE_CC_PRIO_MASK), held against option "
        "cc_priority_mask; the value at work, not the next boot's."
    ),
    "rdma_congestion.cnp_dscp": "DSCP of congestion notifications in firmware (CNP_DSCP), against option cnp_dscp.",
    "rdma_congestion.cnp_priority": (
        "Priority of congestion notifications in firmware (CNP_802P_PRIO), held against option cnp_priority."
    ),
    "rdma_congestion.ecn_reaction": (
        "ECN of the reaction point (roce_rp, the sender) on the RoCE priority in the running kernel, held against 1."
    ),
    "rdma_congestion.ecn_notification": (
        "ECN of the notification point (roce_np, the receiver) on the RoCE priority in the running kernel, against 1."
    ),
    "rdma_congestion.trust": "What the port takes the priority from (mlnx_qos), held against dscp.",
    "rdma_congestion.pfc": "Priorities with flow control (mlnx_qos), held against the RoCE priority alone.",
    "rdma_congestion.tos": "Type of service of connections (cma_roce_tos), held against option tos.",
    "rdma_congestion.opensm": "Whether OpenSM's configuration could be read, and whose OpenSM it is for.",
    "rdma_congestion.congestion_control": (
        "Congestion control in OpenSM's configuration: mlnx_congestion_control 2 of NVIDIA's (UFM Enterprise User "
        "Manual), congestion_control TRUE of the community's."
    ),
    "rdma_congestion.adaptive_routing": (
        "The first routing engine in OpenSM's configuration, held against an ar_ engine; community OpenSM has none."
    ),
    "rdma_congestion.service_level": (
        "NCCL's service level (NCCL_IB_SL), held against ar_sl_mask of the subnet manager: on another level NCCL's "
        "packets are routed statically (NVIDIA/nccl issues 1050, 1687)."
    ),
    "rdma_congestion.ar_switches": "Switches with adaptive routing by ibdiagnet -r, held against all of its switches.",
    **_switch_cli.CHECKS,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Intent:
    """What is wanted, in the terms of the role rdma_fabric."""

    priority: int = 3
    tos: int = 106
    cnp_dscp: int = 48
    cnp_priority: int = 6
    cc_priority_mask: int = 255
    adaptive_routing: bool = True
    congestion_control: bool = True
    nccl_ib_sl: int = 0


def shown(line: str) -> str:
    """Return a line for people: printable, not endless."""
    text = "".join(c if c.isprintable() else " " for c in line.strip())
    return text if len(text) <= 160 else f"{text[:160]}..."


# --- RoCE: the node


def parse_netdevs(text: str) -> dict[str, list[str]]:
    """Return the interfaces of each RDMA device: of sysfs paths `/sys/class/net/IF/device/infiniband/HCA`, or of
    `ibdev2netdev`."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        path = re.fullmatch(r"\s*/sys/class/net/([^/\s]+)/device/infiniband/([^/\s]+)/?\s*", line)
        arrow = re.match(r"\s*(\S+) port [0-9]{1,3} ==> (\S+)", line)
        if path and path[1] not in found.setdefault(path[2], []):
            found[path[2]].append(path[1])
        elif arrow and arrow[2] not in found.setdefault(arrow[1], []):
            found[arrow[1]].append(arrow[2])
    return found


def parse_firmware(text: str) -> dict[str, dict[str, Setting]]:
    """Return the settings by device of `mlxconfig query`, which may describe several; "" is a device without name."""
    devices: dict[str, dict[str, Setting]] = {}
    for part in re.split(r"^Device #[0-9]+:", text, flags=re.MULTILINE):
        settings = parse_query(part)
        if settings:
            match = re.search(r"^Device:\s+(\S+)", part, re.MULTILINE)
            name = match[1] if match else ""
            # The same device twice: which of the two is true is not known.
            devices[name] = {} if name in devices else settings
    return devices


@dataclasses.dataclass(frozen=True, slots=True)
class Qos:
    """What mlnx_qos says of an interface; None is a line it did not print."""

    trust: str | None
    pfc: tuple[int, ...] | None


def parse_qos(text: str) -> Qos:
    """Return trust state and the priorities with flow control of `mlnx_qos -i`."""
    trusts = re.findall(r"^[ \t]*Priority trust state:[ \t]*(\w+)[ \t]*$", text, re.MULTILINE)
    rows = re.findall(
        r"^[ \t]*PFC configuration:[ \t]*\n\s*priority(?:[ \t]+[0-7]){8}[ \t]*\n[ \t]*enabled((?:\s+[01]){8})[ \t]*$",
        text,
        re.MULTILINE,
    )
    pfc = tuple(i for i, bit in enumerate(rows[0].split()) if bit == "1") if len(rows) == 1 else None
    return Qos(trusts[0] if len(trusts) == 1 else None, pfc)


_ECN = re.compile(r"/sys/class/net/([^/\s]+)/ecn/(roce_rp|roce_np)/enable/([0-7])\s*[:=]\s*(\S+)\s*$", re.MULTILINE)


def parse_ecn(text: str) -> dict[tuple[str, str, int], str | None]:
    """Return the switches of ECN by interface, role and priority; None is one that is there twice."""
    found: dict[tuple[str, str, int], str | None] = {}
    for netdev, role, priority, value in _ECN.findall(text):
        key = (netdev, role, int(priority))
        found[key] = None if key in found and found[key] != value else value
    return found


def parse_tos(text: str) -> int | None:
    """Return the type of service that cma_roce_tos or the file traffic_class holds."""
    match = re.fullmatch(r"(?:Global tclass=)?([0-9]{1,3})", text.strip())
    return int(match[1]) if match and int(match[1]) < 256 else None


_NOT_SET = "Run the role rdma_fabric again; what a reboot forgets is set by gpu-rack-roce.service."


def judge_firmware(subject: str, port: int, settings: Mapping[str, Setting], intent: Intent, why: str) -> list[Check]:
    """Judge the firmware half of DCQCN on one port. `why` tells what kept a setting from being read."""
    facts = (
        ("rdma_congestion.cc_priorities", f"ROCE_CC_PRIO_MASK_P{port}", intent.cc_priority_mask),
        ("rdma_congestion.cnp_dscp", f"CNP_DSCP_P{port}", intent.cnp_dscp),
        ("rdma_congestion.cnp_priority", f"CNP_802P_PRIO_P{port}", intent.cnp_priority),
    )
    checks = []
    for name, parameter, wanted in facts:
        setting = settings.get(parameter)
        value = None if setting is None else (setting.current or setting.next_boot)
        remedy = "Run the role rdma_fabric and reboot: the adapter takes its settings at a reset."
        if value is None or not any(form.isdigit() for form in forms(value)):
            reason = f"{parameter}: {why}" if value is None else f"{parameter} reads {shown(value)!r}"
            checks.append(unknown(name, subject, reason, remedy, wanted, ROLE))
            continue
        good = same(value, wanted)
        verdict: Verdict = "pass" if good else "fail"
        reason = f"{parameter} the adapter works with"
        if good and setting is not None and setting.current is None:
            verdict, reason = "warn", f"{parameter} of the next boot; mlxconfig -e query shows the one at work"
        checks.append(Check(name, subject, verdict, reason, value, wanted, "", ROLE, "" if good else remedy))
    return checks


def judge_ecn(netdev: str, values: Mapping[tuple[str, str, int], str | None], intent: Intent, why: str) -> list[Check]:
    """Judge ECN of both roles on the RoCE priority."""
    return [
        compare(
            name,
            netdev,
            values.get((netdev, role, intent.priority)),
            "1",
            ok=values.get((netdev, role, intent.priority)) == "1",
            limit_source=ROLE,
            reason=f"{role} on priority {intent.priority}"
            + ("" if values.get((netdev, role, intent.priority)) is not None else f", {why}"),
            remedy=_NOT_SET,
        )
        for name, role in (
            ("rdma_congestion.ecn_reaction", "roce_rp"),
            ("rdma_congestion.ecn_notification", "roce_np"),
        )
    ]


def judge_qos(netdev: str, qos: Qos, intent: Intent, why: str) -> list[Check]:
    """Judge trust and flow control of an interface."""
    priorities = None if qos.pfc is None else ",".join(map(str, qos.pfc)) or "none"
    more = qos.pfc is not None and intent.priority in qos.pfc
    reason = "flow control stops other traffic too" if more and qos.pfc != (intent.priority,) else "flow control (PFC)"
    return [
        compare(
            "rdma_congestion.trust",
            netdev,
            qos.trust,
            "dscp",
            ok=qos.trust == "dscp",
            limit_source=ROLE,
            reason="what the port takes the priority from" + ("" if qos.trust else f", {why}"),
            remedy=_NOT_SET,
        ),
        compare(
            "rdma_congestion.pfc",
            netdev,
            priorities,
            str(intent.priority),
            ok=qos.pfc == (intent.priority,),
            limit_source=ROLE,
            reason=reason if priorities else f"flow control (PFC), {why}",
            remedy=_NOT_SET,
        ),
    ]


def judge_tos(hca: str, evidence: Evidence, intent: Intent) -> Check:
    """Judge the type of service of the connection manager."""
    why = refusal(evidence)
    found = None if why else parse_tos(evidence.stdout)
    reason = "type of service of connections" + (f", {why or 'no number printed'}" if found is None else "")
    return compare(
        "rdma_congestion.tos",
        hca,
        found,
        intent.tos,
        ok=found == intent.tos,
        limit_source=ROLE,
        reason=reason,
        remedy=_NOT_SET,
    )


# --- InfiniBand: OpenSM's configuration

_NVIDIA_KEYS = re.compile(r"(mlnx_|ar_|shield_|pfrn_|ppcc_|enable_ar_|adv_routing|hbf_)")
_COMMUNITY_KEYS = ("congestion_control", "cc_sw_cong_setting_control_map", "cc_ca_cong_setting_control_map")
_OPENSM_LINE = re.compile(r"[a-z][a-z0-9_]*(\s+\S.*)?")


def looks_like_opensm(text: str) -> bool:
    """Return whether a text is a configuration of OpenSM at all."""
    settings = parse_settings(text)
    known = ("routing_engine", "sm_priority", "sweep_interval", "guid", "subnet_prefix", "log_file", *_COMMUNITY_KEYS)
    return any(name in known or _NVIDIA_KEYS.match(name) for name in settings)


def flavour_of(settings: Mapping[str, str]) -> Flavour:
    """Return whose OpenSM a configuration is for, by the settings only one of them has."""
    if any(_NVIDIA_KEYS.match(name) for name in settings) or _engines(settings)[0].startswith("ar_"):
        return "nvidia"
    return "opensm" if any(name in settings for name in _COMMUNITY_KEYS) else "unknown"


def _engines(settings: Mapping[str, str]) -> list[str]:
    """Return the routing engines in order; one empty word where none is set."""
    value = settings.get("routing_engine", "")
    words = [word for word in re.split(r"[,\s]+", value) if word and word != "(null)"]
    return words or [""]


def contradictions(text: str) -> list[str]:
    """Return the judged settings that are there twice with different values, and lines that are no setting."""
    seen: dict[str, str] = {}
    problems: list[str] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if not _OPENSM_LINE.fullmatch(line):
            problems.append(f"line {number} cannot be read: {shown(line)}")
            continue
        name, _space, value = line.partition(" ")
        if name in seen and seen[name] != value.strip():
            problems.append(f"line {number} sets {name} a second time: {shown(line)}")
        seen[name] = value.strip()
    return problems


def judge_opensm(evidence: Evidence, wanted_flavour: str, intent: Intent, subject: str = "fabric") -> list[Check]:
    """Judge OpenSM's configuration: congestion control, adaptive routing, and NCCL's service level in its mask."""
    name = "rdma_congestion.opensm"
    remedy = "Run the role subnet_manager, or judge the configuration of the host whose OpenSM is master."
    if (why := refusal(evidence)) is not None:
        return [unknown(name, subject, why, remedy)]
    if not looks_like_opensm(evidence.stdout):
        lines = [line for line in evidence.stdout.splitlines() if line.strip()]
        said = f": {shown(lines[0])}" if lines else ""
        return [unknown(name, subject, f"no setting of OpenSM is in the text{said}", remedy)]
    settings = parse_settings(evidence.stdout)
    found = flavour_of(settings)
    flavour = found if wanted_flavour == "auto" else wanted_flavour
    checks = [unknown(name, subject, problem, remedy) for problem in contradictions(evidence.stdout)]
    if flavour == "unknown":
        reason = "neither NVIDIA's nor the community's own settings are in it, so nobody knows what OpenSM makes of it"
        return [*checks, unknown(name, subject, reason, "Give the option flavour.")]
    if flavour == "opensm" and found == "nvidia":
        reason = "it holds settings of NVIDIA's OpenSM, which the community's ignores"
        fix = "Install NVIDIA's OpenSM, or take the settings out."
        checks.append(Check(name, subject, "fail", reason, found, flavour, "", "option flavour", fix))
    elif not checks:
        reason = "the configuration OpenSM was given"
        checks.append(Check(name, subject, "pass", reason, flavour, flavour, "", "option flavour"))
    unmanaged = "unmanaged by option, so it is not proven here"
    if intent.congestion_control:
        checks.append(_congestion_control(settings, flavour, subject))
    else:
        checks.append(
            Check("rdma_congestion.congestion_control", subject, "warn", unmanaged, "unmanaged", "enabled", "", UFM)
        )
    if not intent.adaptive_routing:
        checks.append(
            Check("rdma_congestion.adaptive_routing", subject, "warn", unmanaged, "unmanaged", "enabled", "", UFM)
        )
        return checks
    checks.append(_adaptive_routing(settings, flavour, subject))
    if flavour == "nvidia":
        checks.append(_service_level(settings, intent.nccl_ib_sl, subject))
    return checks


def _congestion_control(settings: Mapping[str, str], flavour: str, subject: str) -> Check:
    nvidia = flavour == "nvidia"
    key, limit = ("mlnx_congestion_control", "2") if nvidia else ("congestion_control", "TRUE")
    found = settings.get(key)
    default = "0, which leaves it as it is" if nvidia else "FALSE"
    reason = f"{key} of the subnet manager" if found else f"{key} is not set, and its default is {default}"
    return Check(
        "rdma_congestion.congestion_control",
        subject,
        "pass" if (found or "").upper() == limit else "fail",
        reason,
        found or "not set",
        limit,
        "",
        UFM if nvidia else "opensm.conf of OpenSM 3.3",
        "" if (found or "").upper() == limit else f"Set {key} {limit} (role subnet_manager).",
    )


def _adaptive_routing(settings: Mapping[str, str], flavour: str, subject: str) -> Check:
    name, limit, source = "rdma_congestion.adaptive_routing", "an ar_ engine", "article: static routing is refused"
    first = _engines(settings)[0]
    if flavour == "opensm":
        reason = "community OpenSM has no ar_ engine at all, so every path is static"
        remedy = "Run NVIDIA's OpenSM (DOCA, MLNX_OFED) or UFM as the subnet manager."
        return Check(name, subject, "fail", reason, first or "its default", limit, "", source, remedy)
    remedy = "Set routing_engine ar_updn (role subnet_manager, adaptive routing enabled)."
    if "armgr" in settings.get("event_plugin_name", "") and not first.startswith("ar_"):
        reason = "the plugin armgr does the adaptive routing, and its own file (ar_mgr.conf) is not judged"
        return unknown(name, subject, reason, remedy, limit, source)
    if not first:
        reason = "routing_engine is not set, and its default differs by release"
        return unknown(name, subject, reason, remedy, limit, source)
    if settings.get("ar_mode", "1").strip() == "0":
        return Check(name, subject, "fail", "ar_mode 0 turns adaptive routing off", "ar_mode 0", limit, "", UFM, remedy)
    good = first.startswith("ar_")
    reason = "the first routing engine" if good else f"routing_engine {first} routes statically"
    return Check(name, subject, "pass" if good else "fail", reason, first, limit, "", source, "" if good else remedy)


def _service_level(settings: Mapping[str, str], level: int, subject: str) -> Check:
    name, source = "rdma_congestion.service_level", "ar_sl_mask of the subnet manager"
    text = settings.get("ar_sl_mask", "0xFFFF")
    given = "ar_sl_mask" in settings
    remedy = "Set NCCL_IB_SL to a level in the mask, or ar_sl_mask to hold it."
    if not re.fullmatch(r"0x[0-9a-fA-F]{1,4}|[0-9]{1,5}", text):
        return unknown(name, subject, f"ar_sl_mask reads {shown(text)!r}", remedy, level, source)
    mask = int(text, 0) if text.startswith("0x") else int(text)
    good = bool(mask >> level & 1)
    reason = f"NCCL sends on service level {level}, ar_sl_mask is {text}{'' if given else ' by default'}"
    if not good:
        reason += ", so its packets are routed statically"
    return Check(name, subject, "pass" if good else "fail", reason, level, text, "", source, "" if good else remedy)


# --- InfiniBand: ibdiagnet


def judge_ibdiagnet(evidence: Evidence) -> list[Check]:
    """Judge how many of the switches ibdiagnet found have adaptive routing enabled."""
    name, source = "rdma_congestion.ar_switches", "every switch ibdiagnet found"
    again = "Run ibdiagnet -r from the subnet manager's host and look at ibdiagnet2.log."
    text = evidence.stdout
    if evidence.error:
        return [unknown(name, "fabric", f"{evidence.command}: {evidence.error}", again)]
    # ibdiagnet ends with another status than 0 for any finding, so its words count.
    switches = re.findall(r"^(?:-I-)?[ \t]*IB Switches[ \t]*:[ \t]*([0-9]{1,6})[ \t]*$", text, re.MULTILINE)
    enabled = re.findall(r"Adaptive Routing is enabled on ([0-9]{1,6}) switch(?:es)?\b", text)
    if not switches:
        counted = re.findall(r"([0-9]{1,6}) nodes \(([0-9]{1,6}) Switches &", text)
        switches = [counted[-1][1]] if counted else []
    if len(set(switches)) != 1:
        lines = [line for line in text.splitlines() if line.strip()]
        said = f" (it says: {shown(lines[-1])})" if lines and not switches else ""
        reason = f"it gives {'no number' if not switches else 'several numbers'} of switches{said}"
        return [unknown(name, "fabric", reason, again)]
    total = int(switches[0])
    if total == 0:
        return [unknown(name, "fabric", "it found no switch", again)]
    if len(set(enabled)) > 1:
        return [unknown(name, "fabric", "it gives several numbers of switches with adaptive routing", again)]
    finished = re.search(r"^(-I- Stage\s+Warnings|Summary\s*$|-I- ibdiagnet database file)", text, re.MULTILINE)
    if not enabled and not finished:
        return [unknown(name, "fabric", "its report ends before the summary of the routing", again)]
    found = int(enabled[0]) if enabled else 0
    reason = "switches with adaptive routing" if enabled else "it names no switch with adaptive routing"
    remedy = "Enable adaptive routing in the subnet manager; a switch that stays out needs newer firmware."
    if found > total:
        return [unknown(name, "fabric", f"it has {found} switches with adaptive routing of {total}", again)]
    good = found == total
    return [
        Check(
            name,
            "fabric",
            "pass" if good else "fail",
            reason,
            found,
            total,
            "switches",
            source,
            "" if good else remedy,
        )
    ]


Kind = Literal["firmware", "qos", "ecn", "netdevs", "ibdiagnet", "switch", "opensm"]


def kind_of(text: str) -> Kind:
    """Return what a single captured text is about; `opensm` when it cannot be told."""
    marks: Sequence[tuple[Kind, str]] = (
        ("firmware", r"^Configurations:"),
        ("qos", r"^[ \t]*(Priority trust state:|PFC configuration:|DCBX mode:)"),
        ("ecn", r"/ecn/roce_(rp|np)/enable/"),
        ("ibdiagnet", r"^(-[IWE]- |Fabric Summary|Running version:\s+\"IBDIAGNET)|Adaptive Routing is enabled on"),
    )
    for kind, mark in marks:
        if re.search(mark, text, re.MULTILINE):
            return kind
    if looks_like_opensm(text) and not _switch_cli.parse_nvue(text):
        return "opensm"
    return "switch" if _switch_cli.kind_of(text) else "opensm"

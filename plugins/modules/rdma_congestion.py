#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate rdma_congestion: congestion control and adaptive routing are on, proven where they are set."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rdma_congestion
short_description: Prove congestion control and adaptive routing of the RDMA fabric
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - On B(RoCE) DCQCN is proven on the node, in each port's firmware (C(mlxconfig)), ECN in the running kernel, trust and
    flow control (C(mlnx_qos)) and type of service (C(cma_roce_tos)), against what the role
    P(ai_infra.gpu_rack.rdma_fabric#role) sets.
  - On B(InfiniBand) both belong to the subnet manager. The proof is OpenSM's configuration, and how many switches have
    adaptive routing by C(ibdiagnet -r). A service level of NCCL that is not in the subnet manager's mask is routed
    statically and fails.
  - Switches are asked B(read-only over SSH) with paramiko, from the controller (C(delegate_to=localhost)), as nodes
    have no paramiko.
  - DCQCN on InfiniBand, and static routing, are refused with an explanation.
  - The formats of C(nv show qos roce), C(show roce), C(nv show router adaptive-routing), C(nv show system profile) and
    C(show ib sm) are those of NVIDIA's manuals and of public captures. No switch was at hand to try them on.
  - An InfiniBand switch's command line shows nothing about congestion control, and MLNX-OS nothing about adaptive
    routing either; there only its own subnet manager can be judged, which supports neither.
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  captured:
    description:
      - Judge stored output in place of asking.
      - One file may be the output of C(mlxconfig query), C(mlnx_qos), C(ibdiagnet -r), of a switch's command, lines
        C(file:value) of the kernel's ECN switches, or an C(opensm.conf); which one is told by its text, and only that
        is judged.
      - A directory holds, by O(proof), C(netdevs.txt), C(mlxconfig-<HCA>.txt) or C(mlxconfig.txt), C(ecn.txt),
        C(mlnx_qos-<interface>.txt), C(cma_roce_tos-<HCA>.txt), C(opensm.conf), C(ibdiagnet.txt), and
        C(switch-<command>.txt) with C(-) for blanks.
    type: path
  profile:
    description: Taken so that one command line fits every gate. No limit of this gate depends on the board.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  link_layer:
    description: Link layer of the RDMA ports.
    type: str
    choices: [infiniband, ethernet]
    default: infiniband
  proof:
    description:
      - Where the proof is looked for, V(node) (RoCE), V(opensm) and V(ibdiagnet) (InfiniBand), or V(switch).
      - By default V(node) on Ethernet and V(opensm) on InfiniBand.
    type: list
    elements: str
    choices: [node, opensm, ibdiagnet, switch]
  hcas:
    description: RDMA devices of the node, with the port after a colon where it is not port 1. Needed for V(proof=node).
    type: list
    elements: str
  dcqcn:
    description: As the role's option. V(enabled) on InfiniBand is refused.
    type: str
    choices: [auto, enabled, disabled]
    default: auto
  congestion_control:
    description: Whether InfiniBand's congestion control has to be enabled. V(unmanaged) is not judged.
    type: str
    choices: [enabled, unmanaged]
    default: enabled
  adaptive_routing:
    description: Whether adaptive routing has to be enabled. V(unmanaged) is not judged. V(static) is refused.
    type: str
    default: enabled
  flavour:
    description: Whose OpenSM the configuration is for. V(auto) tells it by the settings that are in it.
    type: str
    choices: [auto, opensm, nvidia]
    default: auto
  opensm_config:
    description: OpenSM's configuration file.
    type: path
    default: /etc/opensm/opensm.conf
  nccl_ib_sl:
    description: Service level NCCL sends on (NCCL_IB_SL). NCCL's own default is V(0).
    type: int
    default: 0
  priority:
    description: Priority of RoCE.
    type: int
    default: 3
  tos:
    description: Type of service of RoCE connections.
    type: int
    default: 106
  cnp_dscp:
    description: DSCP of congestion notifications.
    type: int
    default: 48
  cnp_priority:
    description: Priority of congestion notifications.
    type: int
    default: 6
  cc_priority_mask:
    description: Mask of the priorities DCQCN works on.
    type: int
    default: 255
  mlxconfig:
    description: The program, C(mlxconfig) of NVIDIA's MFT or C(mstconfig) of mstflint.
    type: str
    default: mlxconfig
  switch:
    description: The switch that is asked. Needed for V(proof=switch), except with a single captured file.
    type: dict
    suboptions:
      os:
        description: V(nvos) and V(mlnx_os) are InfiniBand's systems, V(cumulus) and V(onyx) Ethernet's.
        type: str
        choices: [nvos, mlnx_os, cumulus, onyx]
        required: true
      host:
        description: Name or address.
        type: str
        required: true
      port:
        description: Port of SSH.
        type: int
        default: 22
      username:
        description: User with the right to look.
        type: str
        default: admin
      password:
        description: Password. Without one the key file or the agent is used.
        type: str
      key_file:
        description: Private key.
        type: path
      known_hosts:
        description: File of known host keys, by default the user's own.
        type: path
      host_key_checking:
        description: Refuse a switch whose host key is not known.
        type: bool
        default: true
requirements:
  - paramiko, on the controller and for V(proof=switch) only
seealso:
  - module: ai_infra.gpu_rack.subnet_manager_state
  - module: ai_infra.gpu_rack.mlx_config
"""

EXAMPLES = r"""
- name: Prove DCQCN on a RoCE node
  ai_infra.gpu_rack.rdma_congestion:
    link_layer: ethernet
    hcas: [mlx5_0, mlx5_1]

- name: Prove congestion control and adaptive routing on the subnet manager's host
  ai_infra.gpu_rack.rdma_congestion:
    flavour: nvidia
    proof: [opensm, ibdiagnet]

- name: Ask an InfiniBand switch
  ai_infra.gpu_rack.rdma_congestion:
    proof: [switch]
    switch:
      os: nvos
      host: leaf1.mgmt.example.com
      username: monitor
      key_file: ~/.ssh/switches
  delegate_to: localhost

# ansible localhost -m ai_infra.gpu_rack.rdma_congestion -a "captured=bundle/opensm.conf"
- name: Judge a stored configuration
  ai_infra.gpu_rack.rdma_congestion:
    captured: bundle/opensm.conf
"""

RETURN = r"""
verdict:
  description: The worst verdict, V(pass), V(warn), V(fail) or V(unknown).
  returned: always
  type: str
summary:
  description: One line with the worst check, the measured value and the limit.
  returned: always
  type: str
gate:
  description: Name of the gate, V(rdma_congestion).
  returned: always
  type: str
checks:
  description: Every judged fact. C(gpurack gate --list-checks) says what each is.
  returned: always
  type: list
  elements: dict
evidence:
  description: The commands, how they ended, and the SHA-256 of what they printed.
  returned: always
  type: list
  elements: dict
fleet:
  description: Values to be compared over the rack, the firmware settings of DCQCN.
  returned: always
  type: dict
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _rdma_congestion as judge
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _switch_cli, _switch_ssh
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ibstat import split_hca
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, unknown

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES)},
    "link_layer": {"type": "str", "choices": ["infiniband", "ethernet"], "default": "infiniband"},
    "proof": {"type": "list", "elements": "str", "choices": ["node", "opensm", "ibdiagnet", "switch"]},
    "hcas": {"type": "list", "elements": "str"},
    "dcqcn": {"type": "str", "choices": ["auto", "enabled", "disabled"], "default": "auto"},
    "congestion_control": {"type": "str", "choices": ["enabled", "unmanaged"], "default": "enabled"},
    "adaptive_routing": {"type": "str", "default": "enabled"},
    "flavour": {"type": "str", "choices": ["auto", "opensm", "nvidia"], "default": "auto"},
    "opensm_config": {"type": "path", "default": "/etc/opensm/opensm.conf"},
    "nccl_ib_sl": {"type": "int", "default": 0},
    "priority": {"type": "int", "default": 3},
    "tos": {"type": "int", "default": 106},
    "cnp_dscp": {"type": "int", "default": 48},
    "cnp_priority": {"type": "int", "default": 6},
    "cc_priority_mask": {"type": "int", "default": 255},
    "mlxconfig": {"type": "str", "default": "mlxconfig"},
    "switch": {
        "type": "dict",
        "options": {
            "os": {"type": "str", "choices": list(_switch_cli.SYSTEMS), "required": True},
            "host": {"type": "str", "required": True},
            "port": {"type": "int", "default": 22},
            "username": {"type": "str", "default": "admin"},
            "password": {"type": "str", "no_log": True},
            "key_file": {"type": "path", "no_log": False},
            "known_hosts": {"type": "path"},
            "host_key_checking": {"type": "bool", "default": True},
        },
    },
}
_PROOFS = {"infiniband": ("opensm", "ibdiagnet", "switch"), "ethernet": ("node", "switch")}
_RANGES = {"nccl_ib_sl": 15, "priority": 7, "tos": 255, "cnp_dscp": 63, "cnp_priority": 7, "cc_priority_mask": 255}
_ECN = "grep -Hs '' /sys/class/net/*/ecn/roce_*/enable/*"
_NETDEVS = "ls -d /sys/class/net/*/device/infiniband/*"


def check_options(module: AnsibleModule) -> list[str]:
    """Refuse the wrong knob; return where the proof is looked for."""
    params = module.params
    layer = params["link_layer"]
    if layer == "infiniband" and params["dcqcn"] == "enabled":
        module.fail_json(
            msg="dcqcn: enabled on InfiniBand. DCQCN is the congestion control of RoCE; an InfiniBand fabric has its "
            "own, which the subnet manager turns on. Use auto here and congestion_control for the fabric."
        )
    if params["adaptive_routing"] == "static":
        module.fail_json(
            msg="adaptive_routing: static. With static routing flows collide on one path while others are idle. Use "
            "enabled, or unmanaged where the switches are somebody else's."
        )
    if params["adaptive_routing"] not in ("enabled", "unmanaged"):
        module.fail_json(msg=f"adaptive_routing: {params['adaptive_routing']!r}. Use enabled or unmanaged.")
    for name, most in _RANGES.items():
        if not 0 <= params[name] <= most:
            module.fail_json(msg=f"{name}: {params[name]} is not from 0 to {most}.")
    proof = params["proof"] or [_PROOFS[layer][0]]
    wrong = [p for p in proof if p not in _PROOFS[layer]]
    if wrong:
        module.fail_json(msg=f"proof: {wrong[0]} on {layer}. Use one of {', '.join(_PROOFS[layer])}.")
    if params["switch"] and _switch_cli.SYSTEMS[params["switch"]["os"]].link_layer != layer:
        names = [s.name for s in _switch_cli.SYSTEMS.values() if s.link_layer == layer]
        module.fail_json(msg=f"switch.os: {params['switch']['os']} on {layer}. Use one of {', '.join(names)}.")
    return list(proof)


def check_sources(module: AnsibleModule, source: Source, proof: list[str]) -> None:
    """Refuse a proof without what it needs."""
    if source.single_file:
        return
    if "node" in proof and not module.params["hcas"]:
        module.fail_json(msg="hcas: none given. Name the RDMA devices that must run DCQCN.")
    if "switch" in proof and not module.params["switch"]:
        module.fail_json(msg="switch: not given. Name the switch and its system.")
    if "switch" in proof and source.live and _switch_ssh.PARAMIKO_ERROR:
        why = missing_required_lib("paramiko", reason="for proof=switch. Delegate the task to the controller")
        module.fail_json(msg=why, exception=_switch_ssh.PARAMIKO_ERROR)


def read_node(source: Source, params: dict[str, Any], intent: judge.Intent) -> tuple[list[Check], set[str]]:
    """Read and judge DCQCN on every HCA of the node; return the checks and the firmware settings that were read."""
    checks: list[Check] = []
    seen: set[str] = set()
    # The shell ends with another status than 0 when one pattern has no file, so the files that are there count.
    devices = source.read(["sh", "-c", _NETDEVS], "netdevs.txt", "ibdev2netdev.txt", primary=False)
    ecn = source.read(["sh", "-c", _ECN], "ecn.txt", primary=False)
    netdevs, switches = judge.parse_netdevs(devices.stdout), judge.parse_ecn(ecn.stdout)
    for hca in params["hcas"]:
        device, port = split_hca(hca)
        query = [params["mlxconfig"], "-d", device, "-e", "query"]
        firmware = source.read(query, f"mlxconfig-{device}.txt", "mlxconfig.txt", primary=False)
        why = refusal(firmware) or "mlxconfig does not list it"
        described = judge.parse_firmware(firmware.stdout) if refusal(firmware) is None else {}
        settings = described.get(device, next(iter(described.values())) if len(described) == 1 else {})
        checks += judge.judge_firmware(hca, port, settings, intent, why)
        seen |= {f"{n}={s.current or s.next_boot}" for n, s in settings.items() if n.startswith(("ROCE_CC", "CNP_"))}
        names = netdevs.get(device, [])
        if not names:
            reason = devices.error or "no network interface belongs to it, so it is no RoCE port"
            remedy = "Check the link layer (LINK_TYPE) and that mlx5_core has made its interface."
            checks.append(unknown("rdma_congestion.netdev", hca, reason, remedy))
        for netdev in names:
            why = ecn.error or "the kernel has no such switch; it comes with NVIDIA's driver"
            checks += judge.judge_ecn(netdev, switches, intent, why)
            qos = source.read(["mlnx_qos", "-i", netdev], f"mlnx_qos-{netdev}.txt", "mlnx_qos.txt", primary=False)
            refused = refusal(qos)
            read = judge.Qos(None, None) if refused else judge.parse_qos(qos.stdout)
            checks += judge.judge_qos(netdev, read, intent, refused or "mlnx_qos does not print it")
        tos = ["cma_roce_tos", "-d", device, "-p", str(port)]
        checks.append(judge.judge_tos(hca, source.read(tos, f"cma_roce_tos-{device}.txt", primary=False), intent))
    return checks, seen


def read_switch(source: Source, params: dict[str, Any], intent: judge.Intent) -> list[Check]:
    """Ask the switch and judge its answers."""
    option = params["switch"]
    system = _switch_cli.SYSTEMS[option["os"]]
    login = _switch_ssh.Login(**{k: v for k, v in option.items() if k != "os"})
    if source.live:
        answers = _switch_ssh.read_all(login, system.shell, dict(system.commands), params["timeout"])
        source.used += answers.values()
    else:
        answers = {
            key: source.read(["ssh", login.name, *command.split()], system.file(key), primary=False)
            for key, command in system.commands.items()
        }
    checks: list[Check] = []
    for key, evidence in answers.items():
        why = refusal(evidence)
        if why is not None:
            remedy = "Check address, login and host key (ssh by hand), and that the user may run the command."
            checks.append(unknown("rdma_congestion.switch", login.name, why, remedy))
            continue
        checks += judge_switch(option["os"], key, evidence.stdout, login.name, intent)
    return checks


def judge_switch(system: str, key: str, text: str, subject: str, intent: judge.Intent) -> list[Check]:
    """Judge one answer of a switch."""
    return _switch_cli.judge(
        system,
        key,
        text,
        subject,
        priority=intent.priority,
        adaptive_routing=intent.adaptive_routing,
        congestion_control=intent.congestion_control,
    )


def judge_text(evidence: Evidence, params: dict[str, Any], intent: judge.Intent) -> list[Check]:
    """Judge a single captured text by what it is about."""
    text = evidence.stdout
    kind = judge.kind_of(text)
    reason = refusal(evidence)
    if reason is not None or kind == "opensm":
        return judge.judge_opensm(evidence, params["flavour"], intent)
    if kind == "ibdiagnet":
        return judge.judge_ibdiagnet(evidence)
    if kind == "firmware":
        return [
            check
            for device, settings in (judge.parse_firmware(text) or {"": {}}).items()
            for check in judge.judge_firmware(device or "adapter", 1, settings, intent, "mlxconfig does not list it")
        ]
    if kind == "qos":
        return judge.judge_qos("interface", judge.parse_qos(text), intent, "mlnx_qos does not print it")
    if kind == "ecn":
        switches = judge.parse_ecn(text)
        names = dict.fromkeys(netdev for netdev, _role, _priority in switches) or {"interface": None}
        return [c for name in names for c in judge.judge_ecn(name, switches, intent, "it is not in the file")]
    found = _switch_cli.kind_of(text)
    if found is None:
        return judge.judge_opensm(evidence, params["flavour"], intent)
    return judge_switch(*found, text, params["switch"]["host"] if params["switch"] else "switch", intent)


def main() -> None:
    """Read, judge, and report."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module)
    params = module.params
    proof = check_options(module)
    source = Source(params["captured"], params["timeout"])
    check_sources(module, source, proof)
    ethernet = params["link_layer"] == "ethernet"
    intent = judge.Intent(
        priority=params["priority"],
        tos=params["tos"],
        cnp_dscp=params["cnp_dscp"],
        cnp_priority=params["cnp_priority"],
        cc_priority_mask=params["cc_priority_mask"],
        adaptive_routing=params["adaptive_routing"] == "enabled",
        congestion_control=params["dcqcn"] != "disabled" if ethernet else params["congestion_control"] == "enabled",
        nccl_ib_sl=params["nccl_ib_sl"],
    )
    checks: list[Check] = []
    seen: set[str] = set()
    if source.single_file:
        checks = judge_text(source.read(["cat", params["opensm_config"]], "opensm.conf"), params, intent)
    else:
        if ethernet and not intent.congestion_control:
            reason = "DCQCN is turned off by the site, so it is not judged"
            checks.append(Check("rdma_congestion.dcqcn", "node", "warn", reason, "disabled", None, "", "option dcqcn"))
        elif "node" in proof:
            checks, seen = read_node(source, params, intent)
        if "opensm" in proof:
            text = source.read(["cat", params["opensm_config"]], "opensm.conf")
            checks += judge.judge_opensm(text, params["flavour"], intent)
        if "ibdiagnet" in proof:
            text = source.read(["ibdiagnet", "-r"], "ibdiagnet.txt", "ibdiagnet2.log", primary=False)
            checks += judge.judge_ibdiagnet(text)
        if "switch" in proof:
            checks += read_switch(source, params, intent)
    settings = {"rdma_congestion.cc_priorities": " ".join(sorted(seen))} if seen else {}
    finish_gate(module, judge.GATE, checks, source.used, fleet={"versions": settings, "values": {}})


if __name__ == "__main__":
    main()

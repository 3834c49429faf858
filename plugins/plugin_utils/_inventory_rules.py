# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every rule an inventory must keep before anything is touched. Pure functions over values that are already resolved.

Three kinds: what a role's argument specification says about one variable, what only the rack as a whole can say
(one BMC a node), and what a playbook needs and the inventory does not give.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import difflib
import ipaddress
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import PROFILES

BOARDS = {name: board for name, board in PROFILES.items() if name != "article"}
"""The profile `article` holds the source article's limits; it describes no board."""
LINK_LAYERS = ("infiniband", "ethernet")
_HCA = re.compile(r"[a-z][a-z0-9]*_[a-z0-9_]*[0-9]+")
_HOST_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:]+\]|[^:\s/]+)(:(?P<port>[0-9]{1,5}))?")
_UUID = re.compile(r"[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")
# Whole numbers of these names are seconds, counts or limits; others, such as a makestep limit, may be -1 by right.
_AMOUNT = re.compile(r"_(timeout|wait|ttl|interval|age|seconds|delay|retries|attempts)$|_max_")
_PLACEHOLDER = re.compile(r"change[_ -]?me|replace|todo|xxx+|<.*>", re.IGNORECASE)
_RACK_VARIABLES = (
    "gpu_rack_board",
    "gpu_rack_gpus",
    "gpu_rack_iu_gpus",
    "gpu_rack_link_layer",
    "gpu_rack_hcas",
    "gpu_rack_bmc",
    "gpu_rack_subnet_manager",
)
_BMC_KEYS = {"address", "username", "password", "validate_certs", "ca_path"}


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """One wrong value: whose, which variable, what was seen, and what is allowed. `shown` never holds a secret."""

    host: str
    variable: str
    shown: str
    allowed: str


@dataclasses.dataclass(frozen=True, slots=True)
class RoleUse:
    """One role in one play: the group it runs on, and the role options that the play itself fills in."""

    role: str
    group: str
    wired: frozenset[str]
    entry_point: str = "main"


@dataclasses.dataclass(frozen=True, slots=True)
class Unresolved:
    """Stands for a value whose template could not be resolved; `why` is the reason in words."""

    why: str


def problems(
    hosts: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
    specs: Mapping[str, Mapping[str, Mapping[str, Any]]],
    uses: Iterable[RoleUse],
) -> list[Problem]:
    """Return every problem of the inventory, sorted by host and variable; an empty list means that it is good.

    `hosts`: the resolved variables of each host. `groups`: the hosts of each group. `specs`: role → option → argument
    specification. `uses`: which role runs where.
    """
    found: list[Problem] = []
    nodes = list(groups.get("gpu_nodes", ()))
    if not nodes:
        found.append(
            Problem("(inventory)", "gpu_nodes", "no host in the group", "at least one host in the group gpu_nodes")
        )
    for host, values in hosts.items():
        found += _known_variables(host, values, specs)
    found += _missing(hosts, groups, specs, uses)
    for node in nodes:
        found += _node(node, hosts[node])
    found += _unique(
        nodes, hosts, "gpu_rack_bmc", lambda v: v.get("address") if isinstance(v, Mapping) else None, "one BMC a node"
    )
    found += _unique(list(hosts), hosts, "ansible_host", lambda v: v, "one address a host")
    found += _subnet_manager(nodes, hosts, groups)
    found += _consul(hosts, groups)
    return sorted(set(found), key=lambda p: (p.host, p.variable, p.allowed))


def _subnet_manager(
    nodes: Sequence[str], hosts: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
) -> list[Problem]:
    """InfiniBand ports never become Active without a subnet manager, ours or the site's own."""
    orphans = [
        node
        for node in nodes
        if hosts[node].get("gpu_rack_link_layer") == "infiniband"
        and hosts[node].get("gpu_rack_subnet_manager", "ours") != "external"
    ]
    if not orphans or groups.get("subnet_managers"):
        return []
    return [
        Problem(
            "(inventory)",
            "subnet_managers",
            f"no host in the group, and {orphans[0]} has gpu_rack_link_layer infiniband",
            "a host in the group, or gpu_rack_subnet_manager: external when the fabric has one elsewhere",
        )
    ]


def _consul(hosts: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]) -> list[Problem]:
    """A quorum that can't form and agents that look for another datacenter only show as a rack that never joins."""
    found = []
    servers = groups.get("consul_servers", ())
    for server in servers:
        expect = hosts[server].get("consul_server_bootstrap_expect", 1)
        if expect != len(servers):
            allowed = f"{len(servers)}, the number of hosts in the group consul_servers"
            found.append(Problem(server, "consul_server_bootstrap_expect", _shown(expect), allowed))
    for option in ("datacenter", "service"):
        seen = {
            (name, hosts[host][name])
            for host in hosts
            for name in (f"consul_server_{option}", f"consul_agent_{option}", f"quarantine_{option}")
            if isinstance(hosts[host].get(name), str)
        }
        if len({value for _name, value in seen}) > 1:
            shown = ", ".join(f"{name}: {value}" for name, value in sorted(seen))
            found.append(Problem("(inventory)", f"consul_server_{option}", shown, "one name for servers and agents"))
    return found


def _shown(value: Any, secret: bool = False) -> str:
    if isinstance(value, Unresolved):
        return f"not resolved: {value.why}"
    if secret:
        return "(hidden)" if value not in (None, "") else "empty"
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _known_variables(
    host: str, values: Mapping[str, Any], specs: Mapping[str, Mapping[str, Mapping[str, Any]]]
) -> list[Problem]:
    """Check each role variable against the role's specification; a name no role knows is a typing error."""
    found = []
    for name, value in values.items():
        if name.startswith("gpu_rack_") and name not in _RACK_VARIABLES:
            near = difflib.get_close_matches(name, _RACK_VARIABLES, n=1)
            hint = f"{near[0]}, or another of " if near else "one of "
            found.append(Problem(host, name, _shown(value, True), f"{hint}{', '.join(_RACK_VARIABLES)}"))
        role = _role_of(name, specs)
        if role is None:
            continue
        spec = specs[role].get(name)
        if spec is None:
            near = difflib.get_close_matches(name, specs[role], n=1)
            hint = f", perhaps {near[0]}" if near else ""
            found.append(Problem(host, name, _shown(value, True), f"an option that role {role} has{hint}"))
        elif isinstance(value, Unresolved):
            found.append(Problem(host, name, _shown(value), "a value that can be resolved"))
        else:
            found += _against_spec(host, name, value, spec)
    return found


def _role_of(name: str, specs: Mapping[str, Any]) -> str | None:
    """Return the role whose prefix the variable has, the longest one when two fit."""
    fitting = [role for role in specs if name.startswith(f"{role}_")]
    return max(fitting, key=len, default=None)


def _against_spec(host: str, name: str, value: Any, spec: Mapping[str, Any]) -> list[Problem]:
    secret = bool(spec.get("no_log"))
    try:
        checked = ArgumentSpecValidator({name: _validatable(spec)}).validate({name: value})
    except OverflowError:
        return [Problem(host, name, _shown(value, secret), _FINITE)]
    if not checked.error_messages:
        if _bad_number(name, checked.validated_parameters.get(name), spec):
            return [Problem(host, name, _shown(value, secret), _FINITE)]
        return _secret_strength(host, name, value) if secret else []
    allowed = "; ".join(checked.error_messages)
    if secret:
        allowed = f"a value of type {spec.get('type', 'str')}"
    return [Problem(host, name, _shown(value, secret), allowed)]


_FINITE = "a finite number of 0 or more"


def _bad_number(name: str, value: Any, spec: Mapping[str, Any]) -> bool:
    """Return whether a number is not finite or negative where it is an amount; lists and sub-options too."""
    if isinstance(value, (list, tuple)):
        inner = {**spec, "type": spec.get("elements", "str")}
        return any(_bad_number(name, item, inner) for item in value)
    if isinstance(value, Mapping):
        options = spec.get("options") or {}
        return any(_bad_number(f"{name}_{k}", v, options[k]) for k, v in value.items() if k in options)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if spec.get("type") == "float":
        return not math.isfinite(value) or value < 0
    return spec.get("type") == "int" and _AMOUNT.search(name) is not None and value < 0


def _validatable(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification without what the validator does not know (descriptions, versions)."""
    known = {k: spec[k] for k in ("type", "choices", "elements", "required", "default", "no_log") if k in spec}
    if isinstance(spec.get("options"), Mapping):
        known["options"] = {k: _validatable(v) for k, v in spec["options"].items()}
    known.pop("default", None) if known.get("required") else None
    return known


def _secret_strength(host: str, name: str, value: Any) -> list[Problem]:
    """Refuse an empty or a left-over placeholder secret; check the two forms that are known."""
    text = str(value)
    if not text or _PLACEHOLDER.search(text):
        return [
            Problem(
                host, name, "empty" if not text else "a placeholder", "a secret of your own, best from Ansible Vault"
            )
        ]
    if name.endswith("gossip_key"):
        try:
            size = len(base64.b64decode(text, validate=True))
        except (binascii.Error, ValueError):
            size = 0
        if size not in (16, 24, 32):
            return [Problem(host, name, "(hidden)", "16, 24 or 32 bytes in base64, as `consul keygen` prints")]
    if name.endswith("_token") and not _UUID.fullmatch(text):
        return [Problem(host, name, "(hidden)", "a UUID, as `uuidgen` prints")]
    return []


def _missing(
    hosts: Mapping[str, Mapping[str, Any]],
    groups: Mapping[str, Sequence[str]],
    specs: Mapping[str, Mapping[str, Mapping[str, Any]]],
    uses: Iterable[RoleUse],
) -> list[Problem]:
    """Return the required role options that neither the play nor the inventory gives."""
    found = []
    for use in uses:
        for name, spec in specs.get(use.role, {}).items():
            if (
                not spec.get("required")
                or name in use.wired
                or use.entry_point not in spec.get("__entry_points", ("main",))
            ):
                continue
            for host in groups.get(use.group, ()):
                if hosts[host].get(name) is None:
                    what = "secret" if spec.get("no_log") else "value"
                    found.append(
                        Problem(
                            host, name, "not set", f"a {what}: role {use.role} requires it on the group {use.group}"
                        )
                    )
    return found


def _node(node: str, values: Mapping[str, Any]) -> list[Problem]:
    """Check the rack variables of one GPU node."""
    found: list[Problem] = []

    def wrong(name: str, allowed: str) -> None:
        value = values.get(name)
        found.append(Problem(node, name, "not set" if value is None else _shown(value), allowed))

    board = values.get("gpu_rack_board")
    known_board = isinstance(board, str) and board in BOARDS
    if not known_board:
        wrong("gpu_rack_board", f"one of {', '.join(BOARDS)}")
    count = BOARDS[str(board)].gpus if known_board else None
    gpus: Any = count.value if count else values.get("gpu_rack_gpus")
    if known_board and not _whole(gpus):
        wrong("gpu_rack_gpus", f"the number of GPUs in the server: board {board} does not fix it")
    elif count and values.get("gpu_rack_gpus", gpus) != gpus:
        wrong("gpu_rack_gpus", f"{gpus}, or leave it out: board {board} has that many")
    iu_gpus: Any = values.get("gpu_rack_iu_gpus")
    if not _whole(iu_gpus):
        wrong("gpu_rack_iu_gpus", "a whole number of GPUs, at least 1")
    elif _whole(gpus) and gpus % iu_gpus:
        divisors = ", ".join(str(d) for d in range(1, gpus + 1) if gpus % d == 0)
        wrong("gpu_rack_iu_gpus", f"a divisor of the {gpus} GPUs of board {board}: {divisors}")
    if values.get("gpu_rack_link_layer") not in LINK_LAYERS:
        wrong("gpu_rack_link_layer", f"one of {', '.join(LINK_LAYERS)}")
    hcas = values.get("gpu_rack_hcas")
    if (
        not isinstance(hcas, Sequence)
        or isinstance(hcas, str)
        or not hcas
        or not all(isinstance(h, str) and _HCA.fullmatch(h) for h in hcas)
    ):
        wrong("gpu_rack_hcas", "a list of HCA names in rail order, such as [mlx5_0, mlx5_1]")
    elif len(set(hcas)) != len(hcas):
        wrong("gpu_rack_hcas", "each HCA once")
    if values.get("gpu_rack_subnet_manager", "ours") not in ("ours", "external"):
        wrong("gpu_rack_subnet_manager", "ours (a host of the group subnet_managers) or external")
    found += _bmc(node, values.get("gpu_rack_bmc"))
    return found


def _whole(value: Any) -> bool:
    """Return whether a value is a whole number of at least 1; YAML's true is not."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _bmc(node: str, bmc: Any) -> list[Problem]:
    name = "gpu_rack_bmc"
    if not isinstance(bmc, Mapping):
        return [
            Problem(
                node,
                name,
                "not set" if bmc is None else _shown(bmc, True),
                "a mapping with address, username and password",
            )
        ]
    found = []
    for key in sorted(set(bmc) - _BMC_KEYS):
        found.append(Problem(node, f"{name}.{key}", "unknown key", f"one of {', '.join(sorted(_BMC_KEYS))}"))
    address = bmc.get("address")
    if not isinstance(address, str) or not _address(address):
        found.append(
            Problem(
                node, f"{name}.address", _shown(address), "an IP address or host name, with :PORT where it is not 443"
            )
        )
    for key in ("username", "password"):
        value = bmc.get(key)
        if not isinstance(value, str) or not value:
            found.append(
                Problem(
                    node,
                    f"{name}.{key}",
                    "not set" if value is None else "empty",
                    "a secret" if key == "password" else "a name",
                )
            )
        elif key == "password":
            found += [dataclasses.replace(p, variable=f"{name}.{key}") for p in _secret_strength(node, key, value)]
    if not isinstance(bmc.get("validate_certs", True), bool):
        found.append(Problem(node, f"{name}.validate_certs", _shown(bmc["validate_certs"]), "true or false"))
    return found


def _address(text: str) -> bool:
    match = _HOST_PORT.fullmatch(text)
    if match is None:
        return False
    host = match["host"].strip("[]")
    if match["port"] and not 0 < int(match["port"]) < 65536:
        return False
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", host) is not None and not re.fullmatch(
            r"[0-9.]+", host
        )
    return True


def _unique(
    names: Sequence[str], hosts: Mapping[str, Mapping[str, Any]], variable: str, key: Callable[[Any], Any], rule: str
) -> list[Problem]:
    users: dict[Any, list[str]] = defaultdict(list)
    for name in names:
        value = hosts[name].get(variable)
        value = None if value is None or isinstance(value, Unresolved) else key(value)
        if isinstance(value, str):
            users[value].append(name)
    return [
        Problem(host, variable, repr(value), f"{rule}: {', '.join(h for h in shared if h != host)} has the same")
        for value, shared in users.items()
        if len(shared) > 1
        for host in shared
    ]

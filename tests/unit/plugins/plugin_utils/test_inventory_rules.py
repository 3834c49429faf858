"""Every wrong value an operator can type, and the sentence that refuses it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.plugin_utils import _inventory_rules
from ansible_collections.ai_infra.gpu_rack.plugins.plugin_utils._inventory_rules import (
    Problem,
    RoleUse,
    Unresolved,
    problems,
)

SPECS: dict[str, dict[str, dict[str, Any]]] = {
    "vllm_iu": {
        "vllm_iu_base_port": {"type": "int", "default": 8000},
        "vllm_iu_model_dir": {"type": "path", "required": True, "__entry_points": ["main"]},
    },
    "consul_agent": {
        "consul_agent_gossip_key": {"type": "str", "required": True, "no_log": True, "__entry_points": ["main"]},
        "consul_agent_token": {"type": "str", "required": True, "no_log": True, "__entry_points": ["main"]},
        "consul_agent_install": {"type": "str", "choices": ["package", "url", "present"]},
    },
}
USES = [
    RoleUse("vllm_iu", "gpu_nodes", frozenset()),
    RoleUse("consul_agent", "gpu_nodes", frozenset()),
]
GROUPS = {"gpu_nodes": ["node1", "node2"], "subnet_managers": ["head1"], "all": ["node1", "node2", "head1"]}


def rack() -> dict[str, dict[str, Any]]:
    """Return a good inventory of two nodes and a head."""

    def node(number: int) -> dict[str, Any]:
        return {
            "ansible_host": f"10.0.0.{number}",
            "gpu_rack_board": "hgx_h100_8",
            "gpu_rack_iu_gpus": 4,
            "gpu_rack_link_layer": "infiniband",
            "gpu_rack_hcas": [f"mlx5_{i}" for i in range(8)],
            "gpu_rack_bmc": {"address": f"10.1.0.{number}:8443", "username": "admin", "password": "hunter22"},
            "vllm_iu_model_dir": "/srv/models/m",
            "consul_agent_gossip_key": "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=",
            "consul_agent_token": "3f0e5ba2-5f6e-4f2c-9e55-0d2f1bd6a111",
        }

    return {"node1": node(1), "node2": node(2), "head1": {"ansible_host": "10.0.0.100"}}


def judged(hosts: dict[str, dict[str, Any]], groups: dict[str, list[str]] | None = None) -> list[Problem]:
    return problems(hosts, groups or GROUPS, SPECS, USES)


def test_a_good_inventory_has_no_problem() -> None:
    assert judged(rack()) == []


@pytest.mark.parametrize(
    ("variable", "value", "named", "shown", "allowed"),
    [
        (
            "gpu_rack_board",
            "hgx_h100",
            "gpu_rack_board",
            "'hgx_h100'",
            "one of hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie",
        ),
        (
            "gpu_rack_board",
            "article",
            "gpu_rack_board",
            "'article'",
            "one of hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie",
        ),
        ("gpu_rack_board", None, "gpu_rack_board", "not set", "one of hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie"),
        ("gpu_rack_iu_gpus", 3, "gpu_rack_iu_gpus", "3", "a divisor of the 8 GPUs of board hgx_h100_8: 1, 2, 4, 8"),
        ("gpu_rack_iu_gpus", "4", "gpu_rack_iu_gpus", "'4'", "a whole number of GPUs, at least 1"),
        ("gpu_rack_iu_gpus", True, "gpu_rack_iu_gpus", "True", "a whole number of GPUs, at least 1"),
        ("gpu_rack_gpus", 4, "gpu_rack_gpus", "4", "8, or leave it out: board hgx_h100_8 has that many"),
        ("gpu_rack_link_layer", "roce", "gpu_rack_link_layer", "'roce'", "one of infiniband, ethernet"),
        (
            "gpu_rack_hcas",
            "mlx5_0",
            "gpu_rack_hcas",
            "'mlx5_0'",
            "a list of HCA names in rail order, such as [mlx5_0, mlx5_1]",
        ),
        ("gpu_rack_hcas", ["mlx5_0", "mlx5_0"], "gpu_rack_hcas", "['mlx5_0', 'mlx5_0']", "each HCA once"),
        ("gpu_rack_bmc", None, "gpu_rack_bmc", "not set", "a mapping with address, username and password"),
        ("vllm_iu_base_port", "high", "vllm_iu_base_port", "'high'", None),
        (
            "vllm_iu_base_prot",
            1,
            "vllm_iu_base_prot",
            "(hidden)",
            "an option that role vllm_iu has, perhaps vllm_iu_base_port",
        ),
        ("gpu_rack_bord", 1, "gpu_rack_bord", "(hidden)", None),
        (
            "vllm_iu_model_dir",
            None,
            "vllm_iu_model_dir",
            "not set",
            "a value: role vllm_iu requires it on the group gpu_nodes",
        ),
        (
            "consul_agent_token",
            None,
            "consul_agent_token",
            "not set",
            "a secret: role consul_agent requires it on the group gpu_nodes",
        ),
        (
            "consul_agent_token",
            "change-me",
            "consul_agent_token",
            "a placeholder",
            "a secret of your own, best from Ansible Vault",
        ),
        ("consul_agent_token", "s3cret", "consul_agent_token", "(hidden)", "a UUID, as `uuidgen` prints"),
        (
            "consul_agent_gossip_key",
            "c2hvcnQ=",
            "consul_agent_gossip_key",
            "(hidden)",
            "16, 24 or 32 bytes in base64, as `consul keygen` prints",
        ),
        ("consul_agent_install", "docker", "consul_agent_install", "'docker'", None),
        (
            "consul_agent_token",
            Unresolved("file not found"),
            "consul_agent_token",
            "not resolved: file not found",
            "a value that can be resolved",
        ),
    ],
)
def test_a_wrong_value_is_named(variable: str, value: Any, named: str, shown: str, allowed: str | None) -> None:
    hosts = rack()
    if value is None:
        del hosts["node1"][variable]
    else:
        hosts["node1"][variable] = value
    (problem,) = judged(hosts)
    assert (problem.host, problem.variable, problem.shown) == ("node1", named, shown)
    assert allowed is None or problem.allowed == allowed


@pytest.mark.parametrize(
    ("change", "named", "allowed"),
    [
        ({"password": ""}, "gpu_rack_bmc.password", "a secret"),
        ({"password": "changeme"}, "gpu_rack_bmc.password", "a secret of your own, best from Ansible Vault"),
        (
            {"address": "10.1.0.300"},
            "gpu_rack_bmc.address",
            "an IP address or host name, with :PORT where it is not 443",
        ),
        ({"address": "bmc 1"}, "gpu_rack_bmc.address", "an IP address or host name, with :PORT where it is not 443"),
        ({"adress": "x"}, "gpu_rack_bmc.adress", "one of address, ca_path, password, username, validate_certs"),
        ({"validate_certs": "no"}, "gpu_rack_bmc.validate_certs", "true or false"),
    ],
)
def test_a_wrong_bmc_is_named_and_its_password_never_shown(change: dict[str, Any], named: str, allowed: str) -> None:
    hosts = rack()
    hosts["node1"]["gpu_rack_bmc"].update(change)
    found = judged(hosts)
    assert [(p.variable, p.allowed) for p in found] == [(named, allowed)]
    assert "hunter22" not in repr(found)


def test_two_nodes_with_one_bmc_are_both_named() -> None:
    hosts = rack()
    hosts["node2"]["gpu_rack_bmc"] = copy.deepcopy(hosts["node1"]["gpu_rack_bmc"])
    assert [(p.host, p.variable, p.allowed) for p in judged(hosts)] == [
        ("node1", "gpu_rack_bmc", "one BMC a node: node2 has the same"),
        ("node2", "gpu_rack_bmc", "one BMC a node: node1 has the same"),
    ]


def test_two_hosts_with_one_address_are_both_named() -> None:
    hosts = rack()
    hosts["head1"]["ansible_host"] = "10.0.0.2"
    assert {p.host for p in judged(hosts)} == {"head1", "node2"}


def test_infiniband_without_a_subnet_manager_is_refused() -> None:
    groups = {**GROUPS, "subnet_managers": []}
    (problem,) = judged(rack(), groups)
    assert problem.variable == "subnet_managers"
    hosts = rack()
    for node in ("node1", "node2"):
        hosts[node]["gpu_rack_subnet_manager"] = "external"
    assert judged(hosts, groups) == []


def test_an_empty_inventory_is_refused() -> None:
    (problem,) = judged({}, {"gpu_nodes": []})
    assert problem.variable == "gpu_nodes"


def test_a_board_that_leaves_the_number_of_gpus_open_needs_it() -> None:
    hosts = rack()
    for node in ("node1", "node2"):
        hosts[node].update(gpu_rack_board="h100_pcie", gpu_rack_iu_gpus=1)
    assert {(p.host, p.variable) for p in judged(hosts)} == {("node1", "gpu_rack_gpus"), ("node2", "gpu_rack_gpus")}
    for node in ("node1", "node2"):
        hosts[node]["gpu_rack_gpus"] = 4
    assert judged(hosts) == []


def test_a_quorum_that_cannot_form_is_refused() -> None:
    hosts = rack()
    hosts["head1"]["consul_server_bootstrap_expect"] = 3
    (problem,) = judged(hosts, {**GROUPS, "consul_servers": ["head1"]})
    assert (problem.host, problem.variable, problem.shown) == ("head1", "consul_server_bootstrap_expect", "3")
    assert problem.allowed == "1, the number of hosts in the group consul_servers"


def test_agents_of_another_datacenter_than_the_servers_are_refused() -> None:
    hosts = rack()
    hosts["head1"]["consul_server_datacenter"] = "rack-a"
    hosts["node1"]["consul_agent_datacenter"] = "rack-b"
    found = [p for p in judged(hosts) if p.host == "(inventory)"]
    assert [p.shown for p in found] == ["consul_agent_datacenter: rack-b, consul_server_datacenter: rack-a"]


@pytest.mark.parametrize(
    ("name", "kind", "value", "good"),
    [
        ("r_wait", "float", 0, True),
        ("r_wait", "float", "2.5", True),
        *(("r_wait", "float", value, False) for value in ("nan", float("inf"), -1, "-0.5", 10**400)),
        ("r_timeout", "int", -1, False),
        ("r_timeout", "int", 30, True),
        ("r_makestep_limit", "int", -1, True),
    ],
)
def test_numbers_are_finite_and_amounts_not_negative(name: str, kind: str, value: Any, good: bool) -> None:
    found = _inventory_rules._against_spec("node1", name, value, {"type": kind})
    assert [(p.variable, p.allowed) for p in found] == ([] if good else [(name, "a finite number of 0 or more")])

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The chain of gates and the options a site gives them. A gate whose module is not there is left out, and reported."""

from __future__ import annotations

from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import PROFILES
from simhw import bundle

from bench import gaterun
from bench.faultmatrix.judge import NODES, Gate, Node


def _board(node: Node) -> dict[str, Any]:
    return {"profile": node.case.board}


def _gpus(node: Node) -> dict[str, Any]:
    """Cards have no count of their own: there the site says it."""
    board = PROFILES[node.case.board]
    return {} if board.gpu_count else {"gpus": len(node.hw["gpus"])}


def _driver(node: Node) -> dict[str, Any]:
    return {
        "version": node.site.driver,
        "fabric_manager": PROFILES[node.case.board].fabric_manager,
        "gpus": len(node.hw["gpus"]),
    }


def _topology(node: Node) -> dict[str, Any]:
    return {**_board(node), **_gpus(node), "hcas": node.hcas}


def _units(node: Node) -> dict[str, Any]:
    return {
        **_topology(node),
        "iu_gpus": node.site.unit_gpus,
        "node": NODES[0],
        "dest": str(node.bundle / "inference_units.json"),
    }


def _ports(node: Node) -> dict[str, Any]:
    return {
        **_board(node),
        "hcas": node.hcas,
        "link_layer": node.case.link_layer,
        "firmware": node.hw["firmware"]["latest"]["NIC_1"],
    }


def _clock(node: Node) -> dict[str, Any]:
    return {**_board(node), "servers": list(node.site.time_servers)}


def _sweep(node: Node) -> dict[str, Any]:
    return {**_board(node), "node": NODES[0]}


def _congestion(node: Node) -> dict[str, Any]:
    proof = "opensm" if node.infiniband else "node"
    return {"link_layer": node.case.link_layer, "proof": [proof], "hcas": node.hcas}


def _consul(node: Node) -> dict[str, Any]:
    return {"node": NODES[0], "services": bundle.unit_names(node.view, node.site.unit_gpus)}


def _tokens(node: Node) -> dict[str, Any]:
    names = bundle.unit_names(node.view, node.site.unit_gpus)
    return {"units": [{"id": name, "port": 8000 + i, "model": "sim-8b"} for i, name in enumerate(names)]}


def _health(node: Node) -> dict[str, Any]:
    return {**_board(node), **_gpus(node), "driver": node.site.driver}


def _kernel(node: Node) -> dict[str, Any]:
    return {"parameters": list(node.site.kernel_parameters)}


def _nccl(node: Node) -> dict[str, Any]:
    return {**_board(node), **_gpus(node)}


GATES: tuple[Gate, ...] = (
    Gate("gpu_driver", "hardware", _driver),
    Gate("gpu_health", "hardware", _health),
    Gate("xid", "hardware", lambda node: {}),
    Gate("nvlink_topology", "hardware", _topology),
    Gate("nvlink_status", "hardware", lambda node: {**_board(node), **_gpus(node)}),
    Gate("inference_units", "hardware", _units),
    Gate("ib_port", "hardware", _ports),
    Gate("ib_latency", "hardware", _sweep, module="ib_latency_verdict", sweep="latency"),
    Gate("ib_bandwidth", "hardware", _sweep, sweep="bandwidth"),
    Gate("rdma_congestion", "hardware", _congestion),
    Gate("clock_sync", "hardware", _clock),
    Gate("cpu_idle", "hardware", _board),
    Gate("kernel_params", "hardware", _kernel),
    Gate("nccl_bandwidth", "hardware", _nccl),
    Gate("fleet_consistency", "hardware", lambda node: {**_board(node), "node": NODES[0]}, fleet=True),
    Gate("token_probe", "serving", _tokens),
    Gate("numa_binding", "serving", lambda node: {}),
    Gate("consul_health", "serving", _consul),
)

# Of the contract, by name: what is not there yet is told at the end of a run, so that nobody takes it for judged.
EXPECTED = (
    "gpu_health",
    "nvlink_status",
    "xid",
    "kernel_params",
    "numa_binding",
    "nccl_bandwidth",
    "fleet_consistency",
    "consul_health",
    "ib_bandwidth",
    "rdma_congestion",
)


def absent() -> list[str]:
    """Return the gates of the chain that the collection does not have, or that this table does not drive."""
    driven = {gate.module or gate.name for gate in GATES}
    return [name for name in EXPECTED if not gaterun.exists(name) or name not in driven]

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Options of the modules that sweep the fabric, and what is refused among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS

SWEEP_ARGS: dict[str, dict[str, Any]] = {
    **GATE_ARGS,
    "node": {"type": "str"},
    "peers": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "rack": {"type": "str", "default": ""},
        },
    },
    "hcas": {"type": "list", "elements": "str"},
    "ib_port": {"type": "int", "default": 1},
    "link_layer": {"type": "str", "choices": ["infiniband", "ethernet"], "default": "infiniband"},
    "sweep": {"type": "str", "default": ""},
    "rails": {"type": "int", "default": 0},
    "retest": {"type": "bool", "default": True},
    "control_port": {"type": "int", "default": 18500},
    "meet_timeout": {"type": "float", "default": 30.0},
    "timeout": {"type": "float", "default": 15.0},
    "budget": {"type": "float", "default": 900.0},
    "profile": {"type": "str"},
}


def problem(params: Mapping[str, Any], counts: Sequence[str]) -> str | None:
    """Return what is wrong with the options of a sweep; `counts` are options that must be at least 1."""
    names = [peer["name"] for peer in params["peers"]]
    doubles = sorted({name for name in names if names.count(name) > 1})
    if params["node"] not in names:
        return f"Option node: {params['node']!r} is not one of peers ({', '.join(names)}). Name this node as in peers."
    if doubles:
        return f"Option peers: {', '.join(doubles)} named twice. Name each node once."
    if not params["hcas"]:
        return "Option hcas: empty. Name the HCAs of this node in rail order."
    if len(set(params["hcas"])) != len(params["hcas"]):
        return f"Option hcas: {params['hcas']} names an HCA twice. Each rail has an HCA of its own."
    for option in counts:
        if params[option] < 1:
            return f"Option {option}: {params[option]}. Give at least 1."
    for option in ("timeout", "meet_timeout", "ping_timeout", "budget"):
        if option in params and not (params[option] >= 0 and math.isfinite(params[option])):
            return f"Option {option}: {params[option]}. Give seconds from 0."
    if not 1024 <= params["control_port"] <= 63000:
        return f"Option control_port: {params['control_port']}. Give 1024 to 63000: 2000 ports above it are used too."
    return None

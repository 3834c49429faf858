# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""vLLM's options, environment and files of an inference unit. Pure functions, no I/O.

What differs between vLLM releases stands in one table, OPTIONS: an option that the installed release does not have
stops vLLM at start with a usage text, after the play has gone on, so it is refused here, by name and release.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nccl_variables import hca_list, lint

Version = tuple[int, ...]
MAX_NUM_SEQS = 256
"""Upper limit of concurrent sequences of a unit (requirement A9)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """Releases that have an option: from `since` on, and before `until`. None means: no bound."""

    since: Version | None = None
    until: Version | None = None
    instead: str = ""


# Sources, by number in vllm-project/vllm: 34730 (shutdown-timeout), 21739 and 29402 (log requests), 38635 (numa-bind);
# swap-space: present in 0.17.1 and absent from 0.18.0 on (unslothai/unsloth-zoo 1210).
OPTIONS: dict[str, Span] = {
    "shutdown-timeout": Span(since=(0, 18, 0)),
    "enable-log-requests": Span(since=(0, 10, 1), instead="disable-log-requests"),
    "disable-log-requests": Span(until=(0, 12, 0), instead="enable-log-requests"),
    "numa-bind": Span(since=(0, 20, 0)),
    "numa-bind-nodes": Span(since=(0, 20, 0)),
    "numa-bind-cpus": Span(since=(0, 20, 0)),
    "swap-space": Span(until=(0, 18, 0)),
}
# Full GPU UUIDs in CUDA_VISIBLE_DEVICES stop older releases with "invalid literal for int()" (13815, 20939, 41848:
# still so in 0.20.1); the first release in which we have read the code that resolves them is 0.32.0.
GPU_UUID_SINCE: Version = (0, 32, 0)

_NUMA_OPTIONS = frozenset({"numa-bind", "numa-bind-nodes", "numa-bind-cpus"})
_MANAGED: dict[str, str] = {
    "model": "the option model_dir",
    "served-model-name": "the option served_model_name",
    "host": "the option listen_address",
    "port": "the unit's port (gate inference_units)",
    "tensor-parallel-size": "the unit's number of GPUs",
    "shutdown-timeout": "the option shutdown_timeout",
    "enable-log-requests": "the option log_requests",
    "disable-log-requests": "the option log_requests",
    "api-key": "the option api_key, which keeps the key off the command line",
    "config": "the generated file",
}


@dataclasses.dataclass(frozen=True, slots=True)
class UnitClass:
    """What a kind of traffic wants of an engine. Block size by input length (requirement A9); None: no upper bound."""

    max_input_tokens: int | None
    block_size: int
    max_num_seqs: int


CLASSES: dict[str, UnitClass] = {
    "short": UnitClass(512, 16, 256),
    "medium": UnitClass(4096, 32, 128),
    "long": UnitClass(None, 64, 32),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Unit:
    """One inference unit as the gate inference_units derived it."""

    id: str
    port: int
    numa_nodes: tuple[int, ...]
    """One; several when its GPUs sit on several, as on HGX boards of four GPUs."""
    cpus: str
    gpu_indexes: tuple[int, ...]
    gpu_uuids: tuple[str, ...]
    nics: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Engine:
    """What all units of a node share."""

    version: str
    model_dir: str
    served_model_name: str
    listen_address: str
    unit_class: str
    unit_classes: Mapping[str, str]
    options: Mapping[str, Any]
    environment: Mapping[str, Any]
    binding: str
    """"unit": numactl in the unit binds the process; "engine": vLLM binds its workers (--numa-bind)."""
    log_requests: bool
    shutdown_timeout: int


def parse_version(text: str) -> Version:
    """Return (major, minor, patch) of a release; raise ValueError for another text."""
    match = re.match(r"v?(\d+)\.(\d+)(?:\.(\d+))?", text)
    if not match:
        raise ValueError(f"version: {text!r} is not a vLLM release. Write it like 0.32.0.")
    return int(match[1]), int(match[2]), int(match[3] or 0)


def parse_units(data: Any) -> list[Unit]:
    """Return the units of inference_units.json (or its list); raise ValueError naming what is wrong with which unit."""
    items = data.get("units") if isinstance(data, Mapping) else data
    if not isinstance(items, Sequence) or isinstance(items, str) or not items:
        raise ValueError("units: there is no inference unit. Run the gate inference_units first.")
    units = [_unit(item) for item in items]
    seen: dict[str, list[str]] = {
        "id": [u.id for u in units],
        "port": [str(u.port) for u in units],
        "GPU": [uuid for u in units for uuid in u.gpu_uuids],
    }
    for what, values in seen.items():
        double = sorted({v for v in values if values.count(v) > 1})
        if double:
            raise ValueError(f"units: {what} {', '.join(double)} is in two units. Run the gate inference_units again.")
    return units


def _unit(item: Any) -> Unit:
    name = item.get("id") if isinstance(item, Mapping) else None
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ValueError(f"units: id {name!r} cannot name a systemd instance. Use letters, digits, '_', '.' and '-'.")
    try:
        gpus = [(int(g["index"]), str(g["uuid"])) for g in item["gpus"]]
        unit = Unit(
            id=name,
            port=int(item["port"]),
            numa_nodes=_nodes(item),
            cpus=str(item["cpus"]),
            gpu_indexes=tuple(i for i, _unused in gpus),
            gpu_uuids=tuple(u for _unused, u in gpus),
            nics=tuple(str(n) for n in item.get("nics") or ()),
        )
    except (KeyError, TypeError, ValueError) as exc:
        raise ValueError(f"units: {name} lacks or has a bad {exc}. Run the gate inference_units again.") from exc
    if (
        not gpus
        or not re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", unit.cpus)
        or not unit.numa_nodes
        or min(unit.numa_nodes) < 0
        or not 0 < unit.port < 65536
    ):
        raise ValueError(
            f"units: {name} has {len(gpus)} GPUs, CPUs {unit.cpus!r}, NUMA node {nodes_text(unit)} and port "
            f"{unit.port}. "
            "It needs a GPU, a CPU list like 0-27, a NUMA node and a port. Run the gate inference_units again."
        )
    return unit


def _nodes(item: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the unit's NUMA nodes; numa_node is null where numa_nodes lists several."""
    node = item["numa_node"]
    return (int(node),) if node is not None else tuple(sorted({int(n) for n in item["numa_nodes"]}))


def nodes_text(unit: Unit) -> str:
    """Return the unit's NUMA nodes as numactl takes them."""
    return ",".join(map(str, unit.numa_nodes))


def normalize(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with vLLM's spelling (dashes); raise ValueError for one that is there twice."""
    result: dict[str, Any] = {}
    for name, value in options.items():
        key = name.removeprefix("--").replace("_", "-")
        if key in result:
            raise ValueError(f"options: {key} is set twice, with '_' and with '-'. Keep one of them.")
        result[key] = value
    return result


def has_option(name: str, version: str) -> bool:
    """Tell whether a release has an option. Options that are not in the table are taken to be there."""
    span, release = OPTIONS.get(name, Span()), parse_version(version)
    return not ((span.since and release < span.since) or (span.until and release >= span.until))


def _check_option(name: str, engine: Engine) -> None:
    if name in _MANAGED:
        raise ValueError(f"options: {name} is set by the role. Use {_MANAGED[name]}.")
    # no-x turns x off: it exists when x does.
    bare = name.removeprefix("no-")
    if not has_option(bare, engine.version):
        span = OPTIONS[bare]
        when = (
            f"came with {_text(span.since)}"
            if span.since and parse_version(engine.version) < span.since
            else f"left in {_text(span.until)}"
        )
        instead = f" Use {span.instead}." if span.instead else " Remove it."
        raise ValueError(f"options: vLLM {engine.version} does not have {name}, it {when}.{instead}")


def _text(version: Version | None) -> str:
    return ".".join(map(str, version or ()))


def block_size(input_tokens: int) -> int:
    """Return the KV block size for an input length (requirement A9): up to 512 tokens 16, up to 4096 32, above 64."""
    for unit_class in CLASSES.values():
        if unit_class.max_input_tokens is None or input_tokens <= unit_class.max_input_tokens:
            return unit_class.block_size
    raise AssertionError("the last class has no upper bound")


def config(unit: Unit, engine: Engine) -> dict[str, Any]:
    """Return the engine options of a unit in vLLM's spelling; raise ValueError naming option, value and cure."""
    name = engine.unit_classes.get(unit.id, engine.unit_class)
    if name not in CLASSES:
        raise ValueError(f"class of {unit.id}: {name!r} is unknown. Use one of {', '.join(CLASSES)}.")
    chosen = CLASSES[name]
    extra = normalize(engine.options)
    for option in extra:
        _check_option(option, engine)
    numa = sorted(o for o in extra if o in _NUMA_OPTIONS and extra[o] is not False)
    if numa and engine.binding == "unit":
        raise ValueError(
            f"options: {', '.join(numa)} binds the workers and the unit binds the process with numactl. "
            "Bind once: set binding to engine, or remove the option."
        )
    if engine.binding == "unit" and len(unit.numa_nodes) > 1:
        raise ValueError(
            f"binding: the GPUs of {unit.id} are on NUMA nodes {nodes_text(unit)}, and numactl in the unit would leave "
            "each worker on all of them. Set binding to engine (role vllm_iu: vllm_iu_binding: engine)."
        )
    result: dict[str, Any] = {
        "model": engine.model_dir,
        "served-model-name": engine.served_model_name,
        "host": engine.listen_address,
        "port": unit.port,
        "tensor-parallel-size": len(unit.gpu_uuids),
        "block-size": chosen.block_size,
        "max-num-seqs": chosen.max_num_seqs,
    }
    if has_option("shutdown-timeout", engine.version):
        result["shutdown-timeout"] = engine.shutdown_timeout
    result |= _log_option(engine)
    if engine.binding == "engine":
        if not has_option("numa-bind", engine.version):
            raise ValueError(
                f"binding: vLLM {engine.version} has no numa-bind, it came with 0.20.0. Set binding to unit."
            )
        result["numa-bind"] = True
    result |= extra
    sequences = result["max-num-seqs"]
    if isinstance(sequences, bool) or not isinstance(sequences, int) or not 1 <= sequences <= MAX_NUM_SEQS:
        raise ValueError(f"options: max-num-seqs of {unit.id} is {sequences!r}. It must be from 1 to {MAX_NUM_SEQS}.")
    return result


def _log_option(engine: Engine) -> dict[str, bool]:
    """Return the option that logs requests or does not, under the name the release has for it."""
    if has_option("enable-log-requests", engine.version):
        return {"enable-log-requests": True} if engine.log_requests else {}
    return {} if engine.log_requests else {"disable-log-requests": True}


def config_text(options: Mapping[str, Any]) -> str:
    """Return a `--config` file: one `name: value` a line, values as JSON, which is YAML too."""
    return "---\n" + "".join(f"{name}: {json.dumps(value)}\n" for name, value in options.items())


def environment(unit: Unit, engine: Engine) -> dict[str, str]:
    """Return the environment of a unit; raise ValueError for a variable that is ours or that NCCL's linter refuses."""
    by_uuid = parse_version(engine.version) >= GPU_UUID_SINCE
    gpus = unit.gpu_uuids if by_uuid else tuple(map(str, unit.gpu_indexes))
    result = {
        "GPU_RACK_IU": unit.id,
        "GPU_RACK_IU_PORT": str(unit.port),
        "GPU_RACK_IU_NUMA_NODE": nodes_text(unit),
        "GPU_RACK_IU_CPUS": unit.cpus,
        # nvidia-smi's numbers are in PCI order; CUDA's own order is "fastest first" unless it is told.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
    }
    for name, value in engine.environment.items():
        if name in result:
            raise ValueError(
                f"environment: {name} of {unit.id} comes from the inference unit. Remove it from the environment."
            )
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise ValueError(f"environment: {name!r} is not a variable's name.")
        if name == "VLLM_API_KEY":
            raise ValueError("environment: VLLM_API_KEY is a secret. Use the option api_key.")
        result[name] = str(value)
    if unit.nics and "NCCL_IB_HCA" not in result:
        result["NCCL_IB_HCA"] = hca_list(unit.nics)
    problems = lint({k: v for k, v in result.items() if "NCCL" in k}, "framework")
    if problems:
        raise ValueError(f"environment: {problems[0]}")
    return result


def environment_text(variables: Mapping[str, str]) -> str:
    """Return a systemd EnvironmentFile; raise ValueError for a value with a line break."""
    lines = []
    for name, value in variables.items():
        if "\n" in value:
            raise ValueError(f"environment: {name} has a line break in its value.")
        quoted = value.replace("\\", "\\\\").replace('"', '\\"').replace("`", "\\`").replace("$", "\\$")
        lines.append(f'{name}="{quoted}"\n')
    return "".join(lines)

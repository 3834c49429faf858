# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Engine options, environment and files of inference units."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import yaml
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _vllm

ITEM: dict[str, Any] = {
    "id": "node1-iu0",
    "index": 0,
    "gpus": [{"index": i, "uuid": f"GPU-{i}"} for i in range(4)],
    "numa_node": 0,
    "cpus": "0-27,56-83",
    "nics": ["mlx5_0", "mlx5_1"],
    "port": 8000,
}
UNIT = _vllm.parse_units([ITEM])[0]
ENGINE = _vllm.Engine(
    version="0.32.0",
    model_dir="/srv/models/m",
    served_model_name="m",
    listen_address="0.0.0.0",
    unit_class="medium",
    unit_classes={},
    options={},
    environment={},
    binding="unit",
    log_requests=False,
    shutdown_timeout=60,
)


def engine(**changes: Any) -> _vllm.Engine:
    return dataclasses.replace(ENGINE, **changes)


def test_config_of_a_unit() -> None:
    assert _vllm.config(UNIT, ENGINE) == {
        "model": "/srv/models/m",
        "served-model-name": "m",
        "host": "0.0.0.0",
        "port": 8000,
        "tensor-parallel-size": 4,
        "block-size": 32,
        "max-num-seqs": 128,
        "shutdown-timeout": 60,
    }


@pytest.mark.parametrize(
    ("tokens", "size"), [(1, 16), (512, 16), (513, 32), (4096, 32), (4097, 64), (131072, 64)], ids=str
)
def test_block_size_follows_the_input_length(tokens: int, size: int) -> None:
    assert _vllm.block_size(tokens) == size


def test_class_of_one_unit_wins_over_the_common_class() -> None:
    config = _vllm.config(UNIT, engine(unit_classes={"node1-iu0": "long"}))
    assert (config["block-size"], config["max-num-seqs"]) == (64, 32)


@pytest.mark.parametrize(
    ("version", "log", "name"),
    [
        ("0.9.2", False, "disable-log-requests"),
        ("0.9.2", True, None),
        ("0.10.1", False, None),
        ("0.10.1", True, "enable-log-requests"),
        ("0.32.0", True, "enable-log-requests"),
    ],
)
def test_request_log_has_the_name_of_the_release(version: str, log: bool, name: str | None) -> None:
    config = _vllm.config(UNIT, engine(version=version, log_requests=log))
    assert [k for k in config if "log-requests" in k] == ([name] if name else [])


@pytest.mark.parametrize(("version", "there"), [("0.17.1", False), ("0.18.0", True), ("v0.32.0rc1", True)])
def test_shutdown_timeout_only_where_the_release_has_it(version: str, there: bool) -> None:
    assert ("shutdown-timeout" in _vllm.config(UNIT, engine(version=version))) is there


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"options": {"max_num_seqs": 257}}, "max-num-seqs of node1-iu0 is 257. It must be from 1 to 256"),
        ({"options": {"max-num-seqs": True}}, "is True"),
        ({"options": {"max-num-seqs": "64"}}, "is '64'"),
        ({"options": {"--swap-space": 4}}, "vLLM 0.32.0 does not have swap-space, it left in 0.18.0"),
        ({"options": {"disable_log_requests": True}}, "Use the option log_requests"),
        ({"options": {"api-key": "x"}}, "Use the option api_key"),
        ({"options": {"numa-bind": True}}, "Bind once"),
        ({"options": {"numa-bind": True}, "version": "0.19.0"}, "came with 0.20.0"),
        ({"options": {"no-swap-space": True}}, "no-swap-space"),
        ({"options": {"max-model-len": 1, "max_model_len": 2}}, "set twice"),
        ({"binding": "engine", "version": "0.18.0"}, "has no numa-bind"),
        ({"unit_class": "huge"}, "'huge' is unknown. Use one of short, medium, long"),
        ({"version": "newest"}, "'newest' is not a vLLM release"),
    ],
)
def test_refused_options_name_option_value_and_cure(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=r"^[a-z]") as info:
        _vllm.config(UNIT, engine(**changes))
    assert words in str(info.value)


def test_numa_bind_switched_off_is_no_second_binding() -> None:
    assert _vllm.config(UNIT, engine(options={"numa-bind": False}))["numa-bind"] is False


def test_engine_binding_sets_numa_bind() -> None:
    assert _vllm.config(UNIT, engine(binding="engine"))["numa-bind"] is True


SPANNING = _vllm.parse_units([{**ITEM, "numa_node": None, "numa_nodes": [1, 3, 5, 7]}])[0]


def test_a_unit_over_several_numa_nodes_is_bound_by_the_engine() -> None:
    assert SPANNING.numa_nodes == (1, 3, 5, 7)
    assert _vllm.config(SPANNING, engine(binding="engine"))["numa-bind"] is True
    assert _vllm.environment(SPANNING, engine(binding="engine"))["GPU_RACK_IU_NUMA_NODE"] == "1,3,5,7"
    with pytest.raises(ValueError, match=r"node1-iu0 are on NUMA nodes 1,3,5,7.*vllm_iu_binding: engine"):
        _vllm.config(SPANNING, ENGINE)


def test_config_text_is_yaml_with_the_same_values() -> None:
    config = {"model": 'a "b": #c', "flag": True, "no-x": False, "list": ["a", 1], "map": {"k": [1]}, "n": 0.9}
    assert yaml.safe_load(_vllm.config_text(config)) == config


def test_environment_of_a_unit() -> None:
    assert _vllm.environment(UNIT, engine(environment={"TORCH_NCCL_ASYNC_ERROR_HANDLING": 1})) == {
        "GPU_RACK_IU": "node1-iu0",
        "GPU_RACK_IU_PORT": "8000",
        "GPU_RACK_IU_NUMA_NODE": "0",
        "GPU_RACK_IU_CPUS": "0-27,56-83",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1,GPU-2,GPU-3",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "NCCL_IB_HCA": "=mlx5_0:1,mlx5_1:1",
    }


def test_releases_that_cannot_read_uuids_get_indexes() -> None:
    assert _vllm.environment(UNIT, engine(version="0.20.1"))["CUDA_VISIBLE_DEVICES"] == "0,1,2,3"


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"NCCL_ASYNC_ERROR_HANDLING": "1"}, "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
        ({"NCCL_IB_TIMEOUTT": "20"}, "NCCL_IB_TIMEOUTT"),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "comes from the inference unit"),
        ({"VLLM_API_KEY": "x"}, "Use the option api_key"),
        ({"A-B": "x"}, "not a variable's name"),
    ],
)
def test_refused_environment(variables: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=r"^environment") as info:
        _vllm.environment(UNIT, engine(environment=variables))
    assert words in str(info.value)


def test_environment_text_is_quoted_for_systemd() -> None:
    assert _vllm.environment_text({"A": 'x "y" \\z $w `v`'}) == 'A="x \\"y\\" \\\\z \\$w \\`v\\`"\n'
    with pytest.raises(ValueError, match="line break"):
        _vllm.environment_text({"A": "x\ny"})


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"units": []}, "no inference unit"),
        ("node1-iu0", "no inference unit"),
        ([{**ITEM, "id": "a/b"}], "'a/b' cannot name a systemd instance"),
        ([{**ITEM, "cpus": ""}], "CPUs ''"),
        ([{**ITEM, "gpus": []}], "0 GPUs"),
        ([{**ITEM, "port": 0}], "port 0"),
        ([{k: v for k, v in ITEM.items() if k != "numa_node"}], "'numa_node'"),
        ([{**ITEM, "numa_node": None}], "'numa_nodes'"),
        ([{**ITEM, "numa_node": None, "numa_nodes": []}], "NUMA node  and port 8000"),
        ([{**ITEM, "numa_node": None, "numa_nodes": [-1, 0]}], "NUMA node -1,0 and port 8000"),
        ([ITEM, {**ITEM, "id": "node1-iu1", "port": 8001}], "GPU GPU-0, GPU-1, GPU-2, GPU-3 is in two units"),
        ([ITEM, {**ITEM, "id": "node1-iu1", "gpus": [{"index": 4, "uuid": "GPU-4"}]}], "port 8000 is in two units"),
    ],
)
def test_refused_units_name_the_fault(data: Any, words: str) -> None:
    with pytest.raises(ValueError, match=r"^units") as info:
        _vllm.parse_units(data)
    assert words in str(info.value)


def test_units_come_from_the_gates_file() -> None:
    assert _vllm.parse_units({"board": "hgx_h100_8", "units": [ITEM]}) == [UNIT]

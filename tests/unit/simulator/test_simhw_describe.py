# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The hardware description, its power-on, its idle states and its faults."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from simhw import cstates, describe, faults, power

RACK: dict[str, Any] = {"name": "r", "id": 77, "nodes": [{"name": f"node{i}"} for i in range(1, 5)]}
OFF = "intel_idle.max_cstate=0 processor.max_cstate=1"


def build(node: str = "node1", **rack: Any) -> dict[str, Any]:
    return describe.build({**RACK, **rack}, node)


def names(hw: dict[str, Any], cmdline: str = "", cpu: int = 0) -> list[str]:
    return [s["name"] for s in cstates.kernel_states(hw, cmdline, cpu)]


def test_same_rack_and_node_give_the_same_hardware() -> None:
    assert build() == build()


def test_every_gpu_and_port_of_a_rack_is_unique() -> None:
    nodes = [build(f"node{i}") for i in range(1, 5)]
    assert len({g["uuid"] for n in nodes for g in n["gpus"]}) == 32
    guids = {h["guid"] for n in nodes for h in n["hcas"]}
    assert len(guids) == 32
    assert guids == set(nodes[0]["ib"]["peers"])


def test_peers_know_address_and_leaf() -> None:
    hw = build()
    assert hw["ib"]["peers"][describe.guid(77, 3, 6)] == {
        "ip": "172.31.77.13",
        "node": "node3",
        "hca": "mlx5_6",
        "leaf": "leaf2",
    }


@pytest.mark.parametrize(
    ("board", "gpus", "hcas", "switches"),
    [("hgx_h100_8", 8, 8, 4), ("hgx_h100_4", 4, 4, 0), ("h100_nvl", 8, 4, 0), ("h100_pcie", 4, 2, 0)],
)
def test_boards(board: str, gpus: int, hcas: int, switches: int) -> None:
    hw = build(board=board)
    assert (len(hw["gpus"]), len(hw["hcas"]), len(hw["nvswitches"])) == (gpus, hcas, switches)


@pytest.mark.parametrize(
    ("rack", "words"),
    [({"board": "hgx"}, "hgx_h100_8"), ({"vendor": "ibm"}, "supermicro"), ({"link_layer": "token"}, "infiniband")],
)
def test_wrong_rack_values_name_the_good_ones(rack: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(**rack)


def test_unknown_node_is_refused() -> None:
    with pytest.raises(ValueError, match="node1, node2"):
        build("node9")


def test_overrides_reach_into_lists() -> None:
    hw = build(nodes=[{"name": "node1", "hardware": {"gpus": {3: {"product": "NVIDIA H200"}}, "nccl": {"share": 0.5}}}])
    assert [g["product"] for g in hw["gpus"]].count("NVIDIA H200") == 1
    assert hw["gpus"][3]["product"] == "NVIDIA H200"
    assert hw["nccl"]["share"] == 0.5


def test_a_bare_node_has_work_to_do() -> None:
    hw = build()
    firmware = hw["firmware"]
    old = {k for k in firmware["current"] if firmware["current"][k] != firmware["latest"][k]}
    assert old == {"HGX_FW_GPU_SXM_3"}
    assert names(hw) == ["POLL", "C1", "C1E", "C6"]


# --- power


def test_power_on_applies_what_is_pending_and_changes_nothing_else() -> None:
    hw = build()
    hw["bios"]["pending"] = {"ProcCStates": "Disabled"}
    hw["firmware"]["pending"] = {"HGX_FW_GPU_SXM_3": "96.00.99.00.01"}
    hw["mlxconfig"]["pending"] = {"mlx5_0": {"LINK_TYPE_P1": "ETH(2)"}}
    before = copy.deepcopy(hw)
    new = power.power_on(hw)
    assert hw == before
    assert new["bios"]["current"]["ProcCStates"] == "Disabled"
    assert new["firmware"]["current"]["HGX_FW_GPU_SXM_3"] == "96.00.99.00.01"
    assert new["mlxconfig"]["current"]["mlx5_0"]["LINK_TYPE_P1"] == "ETH(2)"
    assert (new["bios"]["pending"], new["firmware"]["pending"], new["mlxconfig"]["pending"]) == ({}, {}, {})
    assert new["counters"]["power_cycles"] == 1


def test_bios_that_ignores_writes() -> None:
    hw = build()
    hw["bios"]["pending"] = {"ProcCStates": "Disabled"}
    hw["faults"] = ["bios: ignores writes"]
    new = power.power_on(hw)
    assert new["bios"]["current"]["ProcCStates"] == "Enabled"
    assert new["bios"]["pending"] == {}


def test_firmware_update_that_fails() -> None:
    hw = build()
    hw["firmware"]["pending"] = {"HGX_FW_GPU_SXM_3": "96.00.99.00.01", "BMC": "8.0"}
    hw["faults"] = ["firmware HGX_FW_GPU_SXM_3: update fails"]
    current = power.power_on(hw)["firmware"]["current"]
    assert current["HGX_FW_GPU_SXM_3"] == "96.00.89.00.01"
    assert current["BMC"] == "8.0"


# --- idle states


@pytest.mark.parametrize(
    ("vendor", "pending"),
    [
        ("dell", {"ProcCStates": "Disabled", "ProcC1E": "Disabled"}),
        ("dell", {"SysProfile": "PerfOptimized"}),
        ("hpe", {"MinProcIdlePower": "NoCStates"}),
        ("hpe", {"WorkloadProfile": "LowLatency"}),
        ("lenovo", {"Processors_CStates": "Disable", "Processors_C1EnhancedMode": "Disable"}),
        ("supermicro", {"CPUC6Report#0840": "Disabled", "EnhancedHaltState(C1E)#0841": "Disabled"}),
    ],
)
def test_bios_switches_idle_states_off(vendor: str, pending: dict[str, str]) -> None:
    hw = build(vendor=vendor)
    assert names(hw) == ["POLL", "C1", "C1E", "C6"]
    hw["bios"]["pending"] = pending
    assert names(power.power_on(hw)) == ["POLL", "C1"]


def test_command_line_switches_idle_states_off() -> None:
    assert names(build(), OFF) == ["POLL", "C1"]
    assert cstates.idle_driver(OFF) == "acpi_idle"


def test_intel_idle_off_alone_leaves_the_deep_state_to_acpi() -> None:
    states = cstates.kernel_states(build(), "intel_idle.max_cstate=0")
    assert [(s["name"], s["latency_us"]) for s in states] == [("POLL", 0), ("C1", 1), ("C2", 290)]


def test_the_last_word_of_the_command_line_counts() -> None:
    assert names(build(), "intel_idle.max_cstate=0 intel_idle.max_cstate=1") == ["POLL", "C1"]


def test_kernel_that_ignores_the_bios() -> None:
    hw = build()
    hw["bios"]["current"]["ProcCStates"] = "Disabled"
    hw["faults"] = ["cstates: kernel ignores bios"]
    assert "C6" in names(faults.effective(hw))


def test_one_cpu_with_c6() -> None:
    hw = build()
    hw["faults"] = ["cstate cpu 7: C6 enabled"]
    view = faults.effective(hw)
    assert names(view, OFF, 7) == ["POLL", "C1", "C6"]
    assert names(view, OFF, 8) == ["POLL", "C1"]


# --- faults


@pytest.mark.parametrize("fault", faults.CATALOG, ids=lambda f: f.example)
def test_every_example_is_a_fault_of_the_default_node(fault: faults.Fault) -> None:
    hw = build()
    assert faults.parse(fault.example, hw) is fault
    before = faults.effective(hw)
    hw["faults"] = [fault.example]
    assert faults.effective(hw) != {**before, "faults": [fault.example]}, "the fault changes nothing a tool could see"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "gpu 3: fell off",
        "GPU 3: missing",
        "link 0-2: NV",
        "port mlx5_1: polling",
        "tool x: breaks",
        "nccl: 60",
    ],
)
def test_bad_faults_list_the_good_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"gpu 3: fell off the bus(.|\n)*link 0-2: NV17"):
        faults.parse(text, build())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpu 8: missing", "no GPU 8"),
        ("link 0-0: NV17", "two different GPUs"),
        ("nvlink 0/18: down", "18 NVLinks"),
        ("port mlx5_9: Polling", "no HCA mlx5_9"),
        ("cstate cpu 112: C6 enabled", "CPUs 0-111"),
        ("cstate cpu 1: C9 enabled", "POLL, C1, C1E, C6"),
        ("numa gpu 1: 4", "NUMA nodes 0, 1"),
        ("firmware NOPE: update fails", "no firmware NOPE"),
    ],
)
def test_faults_of_parts_the_node_lacks(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        faults.parse(text, build())


def test_no_text_means_two_faults() -> None:
    import re

    for fault in faults.CATALOG:
        hits = [f.example for f in faults.CATALOG if re.fullmatch(f.pattern, fault.example)]
        assert hits == [fault.example]


def test_a_healed_node_is_as_before() -> None:
    hw = build()
    clean = faults.effective(hw)
    hw["faults"] = [f.example for f in faults.CATALOG]
    assert faults.effective(hw)["kernel"]["xids"]
    hw["faults"] = []
    assert faults.effective(hw) == clean


def test_port_view_for_the_fabric() -> None:
    hw = build()
    hw["faults"] = [
        "port mlx5_1: Polling",
        "port mlx5_2: rate 200",
        "port mlx5_3: symbol errors 5000",
        "hca mlx5_5: missing",
    ]
    hcas = {h["name"]: h for h in faults.effective(hw)["hcas"]}
    assert (hcas["mlx5_1"]["port"]["state"], hcas["mlx5_1"]["port"]["phys"]) == ("Down", "Polling")
    assert hcas["mlx5_2"]["rate_gbps"] == 200
    assert hcas["mlx5_3"]["port"]["symbol_errors"] == 5000
    assert hcas["mlx5_5"]["state"] == "missing"


def test_link_type_in_force_decides_the_link_layer() -> None:
    hw = build()
    hw["mlxconfig"]["current"]["mlx5_0"]["LINK_TYPE_P1"] = "ETH(2)"
    assert [h["link_layer"] for h in faults.effective(hw)["hcas"][:2]] == ["ethernet", "infiniband"]

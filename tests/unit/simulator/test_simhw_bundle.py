# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Support bundles made from the hardware description."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from simhw import bundle, smi_forms
from simhw.bundle import Site

UNREACHED = "^,?,172.31.99.10,0,6,0,4294967295,0.000000000,0.000000000,0.000000000"
RACK: dict[str, Any] = {"name": "unit", "id": 99, "board": "hgx_h100_8", "vendor": "dell", "nodes": ["node1", "node2"]}


def made(*faults: str, site: Site | None = None, **rack: Any) -> dict[str, str]:
    hw = bundle.read_description({**RACK, **rack}, "node1")
    hw["faults"] = list(faults)
    return bundle.files(hw, site)


def test_the_same_description_gives_the_same_bytes() -> None:
    assert made() == made()


def test_nothing_of_this_machine_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMHW_ROOT", "/before")
    texts = made()
    assert os.environ["SIMHW_ROOT"] == "/before"
    assert re.search(rf"\b{re.escape(os.uname().nodename)}\b", "".join(texts.values())) is None
    assert " on node1 device" in re.sub(" +", " ", texts["all_reduce_perf-board.txt"])
    assert "Timestamp                                 : Mon Nov 30 12:00:00 2026" in texts["nvidia-smi-q.txt"]


def test_written_files(tmp_path: Path) -> None:
    bundle.write(tmp_path, bundle.read_description(RACK, "node1"))
    assert (tmp_path / "ibstat.txt").read_text().count("Rate: 400") == 8
    assert (tmp_path / "nvidia-smi-nvlink-s.txt").read_text().count("26.562 GB/s") == 144


def test_a_good_bring_up_leaves_no_deep_idle_state() -> None:
    for vendor in ("dell", "hpe", "lenovo", "supermicro"):
        assert ":C6" not in made(vendor=vendor, site=Site(kernel_parameters=()))["cpuidle-1.txt"]
    assert "96.00.89.00.01" not in made()["nvidia-smi-q.txt"]


def test_one_fault_shows_in_every_file_it_would_show_in() -> None:
    texts = made("gpu 3: fell off the bus")
    assert "GPU is lost" in texts["nvidia-smi-topo-m.txt"]
    assert "GPU is lost" in texts["nvidia-smi-q.txt"]
    assert "NVRM: Xid (PCI:0000:61:00): 79" in texts["dmesg.txt"]
    texts = made("service consul.service: killed")
    checks = {c["CheckID"]: c["Status"] for c in json.loads(texts["consul-health-node.json"])}
    assert checks["serfHealth"] == "critical"
    assert checks["service:node1-iu0"] == "passing"


@pytest.mark.parametrize(
    ("fault", "file", "line"),
    [
        ("port mlx5_1: Polling", "ibstat.txt", "\t\tPhysical state: Polling"),
        ("port mlx5_1: rate 200", "ibstat.txt", "\t\tRate: 200"),
        ("port mlx5_1: ethernet", "ibstat.txt", "\t\tLink layer: Ethernet"),
        ("port mlx5_1: symbol errors 5000", "perfquery-mlx5_1.txt", "SymbolErrorCounter:..............5000"),
        ("clock: unsynchronised", "chronyc-sources.txt", UNREACHED),
        ("fabricmanager: version 580.82.07", "systemctl-show-fabricmanager.txt", "ActiveState=failed"),
        ("fabricmanager: version 580.82.07", "nv-fabricmanager-version.txt", "Fabric Manager version is : 580.82.07"),
        ("weights: corrupt", "node1-iu0.journal.txt", "model-00001-of-00002.safetensors: FAILED"),
        ("engine iu1: crashes", "node1-iu1.systemctl.txt", "ActiveState=failed"),
        ("cstate cpu 7: C6 enabled", "cpuidle-1.txt", "/sys/devices/system/cpu/cpu7/cpuidle/state2/name:C6"),
    ],
)  # fmt: skip
def test_faults_of_what_no_fake_tool_prints(fault: str, file: str, line: str) -> None:
    assert line not in made().get(file, "").splitlines()
    assert line in made(fault)[file].splitlines()


@pytest.mark.parametrize(
    ("fault", "file", "text"),
    [
        ("tool ibstat: missing", "ibstat.txt", None),
        ("tool nvidia-smi: hangs", "nvidia-smi-q.txt", None),
        ("tool chronyc: empty", "chronyc-tracking.txt", ""),
        ("tool nvidia-smi: error exit 0", "nvidia-smi-topo-m.txt", "nvidia-smi: Unknown Error\n"),
        ("tool ibstat: exit 5", "ibstat.txt", "ibstat: failed\n"),
    ],
)
def test_broken_tools(fault: str, file: str, text: str | None) -> None:
    assert made(fault).get(file) == text


def test_processes_are_bound_as_the_units_say() -> None:
    hw = bundle.read_description(RACK, "node1")
    units = [{"id": "node1-iu0", "cpus": "0-55", "numa_node": 0, "gpus": [0, 1, 2, 3]}]
    view = bundle.faults.effective(hw)
    texts = bundle.processes(view, Site(), units)
    assert texts["node1-iu0.cgroup.procs.txt"].split() == ["5000", "5001", "5002", "5003", "5004"]
    assert "Cpus_allowed_list:\t0-55" in texts["status-5001.txt"]
    assert "bind:0 anon=786432 dirty=786432 active=0 N0=786432" in texts["numa_maps-5001.txt"]
    unbound = bundle.processes({**view, "numactl": {"unbound": True}}, Site(), units)
    assert "Cpus_allowed_list:\t0-111" in unbound["status-5001.txt"]
    assert "default anon=786432 dirty=786432 active=0 N0=393216 N1=393216" in unbound["numa_maps-5001.txt"]


def test_loss_is_in_the_counts() -> None:
    views = [bundle.faults.effective(bundle.read_description(RACK, n)) for n in ("node1", "node2")]
    ends = [v["hcas"][0] for v in views]
    ends[0]["port"]["loss"] = 0.001
    text = bundle.ibping_text(ends[0], ends[1], "node2.(none)", 1000)
    assert "1000 packets transmitted, 999 received, 0% packet loss" in text
    ends[0]["port"]["loss"] = 1.0
    text = bundle.ibping_text(ends[0], ends[1], "node2.(none)", 1000)
    assert "---  (Lid 12) ibping statistics ---" in text
    assert "1000 packets transmitted, 0 received, 100% packet loss" in text


# --- nvidia-smi of other drivers


@pytest.mark.parametrize(
    ("version", "there", "gone"),
    [
        ("525.147.05", ["    Clocks Throttle Reasons", "            SRAM Uncorrectable            : 0"],
         ["    Clocks Event Reasons", "    Fabric", "    Platform Info"]),
        ("535.183.01", ["    Clocks Event Reasons", "        Status                            : Success"],
         ["        CliqueId                          : 0", "        Health", "    Platform Info"]),
        ("550.127.05", ["        CliqueId                          : 0", "        Health"],
         ["    Platform Info", "    GPU Recovery Action                   : None"]),
        ("565.57.01", ["    Platform Info", "    GPU Recovery Action                   : None"],
         ["            Summary                       : N/A"]),
        ("590.44.01", ["    GPU Recovery Action                                : None",
                       "        Unrepairable Memory                            : No"],
         ["    GPU Recovery Action                   : None"]),
    ],
)  # fmt: skip
def test_forms_of_the_query(version: str, there: list[str], gone: list[str]) -> None:
    lines = made(site=Site(driver=version))["nvidia-smi-q.txt"].splitlines()
    assert [x for x in there if x not in lines] == []
    assert [x for x in gone if x in lines] == []


@pytest.mark.parametrize(
    ("form", "header"),
    [
        ("D", "mlx5_7\tCPU Affinity\tNUMA Affinity"),
        ("E", "NIC7\tCPU Affinity\tNUMA Affinity"),
        ("F", "NIC7\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"),
        ("G", "NIC7\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"),
    ],
)
def test_forms_of_the_matrix(form: str, header: str) -> None:
    lines = made(site=Site(topo_form=form))["nvidia-smi-topo-m.txt"].splitlines()
    assert lines[0].endswith(header)
    assert ("NIC Legend:" in lines) == (form != "D")
    assert (lines[9].split("\t")[0] == "mlx5_0") == (form == "D")


def test_a_cpuset_hides_cpus() -> None:
    row = made(site=Site(cpuset="0-7"))["nvidia-smi-topo-m.txt"].splitlines()[1].split("\t")
    assert row[17:19] == ["0-7", "0"]
    row = made(site=Site(cpuset=""))["nvidia-smi-topo-m.txt"].splitlines()[1].split("\t")
    assert row[17:19] == ["", ""]


def test_there_is_no_such_form() -> None:
    with pytest.raises(ValueError, match="no form 'Z'"):
        smi_forms.topo_text("", "Z")

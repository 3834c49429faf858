# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the fake tools print, against formats seen on real machines."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import pytest
from simhw import debs, host, rdma
from simhw import hw as store

from tests.unit.ports import free_port

MakeNode = Callable[..., Any]


# --- nvidia-smi


def test_no_driver(make_node: MakeNode) -> None:
    code, out, _err = make_node(driver=False).run("nvidia-smi")
    assert code == 9
    assert out.startswith("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.")


def test_new_library_over_an_old_loaded_driver(make_node: MakeNode) -> None:
    node = make_node()
    node.install_driver("580.82.07")
    assert node.run("nvidia-smi", "-L")[:2] == (
        18,
        "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.82\n",
    )


def test_list(make_node: MakeNode) -> None:
    node = make_node()
    code, out, _err = node.run("nvidia-smi", "-L")
    assert code == 0
    assert out.splitlines()[2] == f"GPU 2: NVIDIA H100 80GB HBM3 (UUID: {node.hw['gpus'][2]['uuid']})"
    assert len(out.splitlines()) == 8


def test_lost_gpu(make_node: MakeNode) -> None:
    node = make_node()
    node.fault("gpu 3: fell off the bus")
    code, out, _err = node.run("nvidia-smi", "-L")
    assert code == 15
    assert "0000:61:00.0: GPU is lost.  Reboot the system to recover this GPU" in out
    assert node.run("nvidia-smi", "topo", "-m")[0] == 15


def test_topo_matrix_of_an_nvswitch_board(make_node: MakeNode) -> None:
    lines = make_node().run("nvidia-smi", "topo", "-m")[1].splitlines()
    assert lines[0] == (
        "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tNIC0\tNIC1\tNIC2\tNIC3\tNIC4\tNIC5\tNIC6\tNIC7\t"
        "CPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"
    )
    assert lines[1] == (
        "GPU0\t X \tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tNV18\tPXB\tNODE\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t0-55\t0\t\tN/A"
    )
    assert (
        lines[9] == "NIC0\tPXB\tNODE\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t X \tNODE\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t\t\t\t"
    )
    assert lines[17:20] == ["", "Legend:", ""]
    assert lines[-9:-1] == [f"  NIC{i}: mlx5_{i}" for i in range(8)]


@pytest.mark.parametrize(
    ("board", "cells"),
    [
        ("hgx_h100_4", [" X ", "NV6", "NV6", "NV6"]),
        ("h100_nvl", [" X ", "NV12", "NODE", "NODE", "SYS", "SYS", "SYS", "SYS"]),
        ("h100_pcie", [" X ", "NODE", "SYS", "SYS"]),
    ],
)
def test_topo_matrix_of_other_boards(make_node: MakeNode, board: str, cells: list[str]) -> None:
    row = make_node(board=board).run("nvidia-smi", "topo", "-m")[1].splitlines()[1].split("\t")
    assert row[1 : 1 + len(cells)] == cells


def test_topo_faults(make_node: MakeNode) -> None:
    node = make_node()
    node.fault("link 0-2: SYS", "nvlink 5/1: down", "affinity gpu 1 mlx5_1: SYS", "gpu 7: missing")
    rows = [x.split("\t") for x in node.run("nvidia-smi", "topo", "-m")[1].splitlines()[1:8]]
    assert (rows[0][3], rows[2][1]) == ("SYS", "SYS")
    assert rows[5][1:6] == ["NV17"] * 5
    assert rows[1][9] == "SYS"
    assert len(rows) == 7
    assert all(r[0].startswith("GPU") for r in rows)


def test_nvlink_status(make_node: MakeNode) -> None:
    node = make_node()
    node.fault("nvlink 3/5: down", "nvlink 3/6: speed 13.281", "nvlink 3/7: crc errors 12")
    lines = node.run("nvidia-smi", "nvlink", "-s", "-i", "3")[1].splitlines()
    assert len(lines) == 19
    assert lines[5:8] == ["\t Link 4: 26.562 GB/s", "\t Link 5: <inactive>", "\t Link 6: 13.281 GB/s"]
    assert "\t Link 7: CRC Errors: 12" in node.run("nvidia-smi", "nvlink", "-e", "-i", "3")[1]


def test_query_gpu(make_node: MakeNode) -> None:
    node = make_node()
    args = ("--query-gpu=index,memory.total,vbios_version,fabric.state,fabric.status", "--format=csv", "-i", "2")
    assert node.run("nvidia-smi", *args)[1] == (
        "index, memory.total [MiB], vbios_version, fabric.state, fabric.status\n"
        "2, 81559 MiB, 96.00.89.00.01, Completed, Success\n"
    )
    args = ("--query-gpu=memory.total,pcie.link.width.current", "--format=csv,noheader,nounits", "-i", "2")
    assert node.run("nvidia-smi", *args)[1] == "81559, 16\n"


def test_query_gpu_field_that_does_not_exist(make_node: MakeNode) -> None:
    code, out, _err = make_node().run("nvidia-smi", "--query-gpu=name,nope", "--format=csv")
    assert (code, out) == (2, 'Field "nope" is not a valid field to query.\n\n')


@pytest.mark.parametrize(
    ("fault", "field", "value"),
    [
        ("ecc gpu 1: uncorrected 2", "ecc.errors.uncorrected.volatile.total", "2"),
        ("remap gpu 1: pending", "remapped_rows.pending", "Yes"),
        ("remap gpu 1: failed", "remapped_rows.failure", "Yes"),
        ("pcie gpu 1: x8", "pcie.link.width.current", "8"),
        ("pcie gpu 1: gen4", "pcie.link.gen.current", "4"),
        ("clocks gpu 1: hw thermal slowdown", "clocks_event_reasons.hw_slowdown", "Active"),
        ("clocks gpu 1: hw slowdown", "clocks_throttle_reasons.hw_slowdown", "Active"),
        ("mig gpu 1: on", "mig.mode.current", "Enabled"),
        ("fabric: in progress", "fabric.state", "In Progress"),
        ("fabric: insufficient resources", "fabric.status", "Insufficient Resources"),
        ("fabricmanager: version 580.82.07", "fabric.state", "In Progress"),
        ("recovery gpu 1: reboot", "gpu_recovery_action", "Reboot"),
        ("gpu 1: vbios 96.00.30.00.01", "vbios_version", "96.00.30.00.01"),
    ],
)
def test_gpu_faults_show_in_the_query(make_node: MakeNode, fault: str, field: str, value: str) -> None:
    node = make_node()
    args = (f"--query-gpu={field}", "--format=csv,noheader,nounits", "-i", "1")
    assert node.run("nvidia-smi", *args)[1].strip() != value
    node.fault(fault)
    assert node.run("nvidia-smi", *args)[1].strip() == value


def test_full_query_text(make_node: MakeNode) -> None:
    node = make_node()
    node.fault("ecc gpu 0: uncorrected 2")
    lines = node.run("nvidia-smi", "-q", "-i", "0")[1].splitlines()
    for line in (
        "Driver Version                            : 580.95.05",
        "Attached GPUs                             : 8",
        "GPU 00000000:1B:00.0",
        "    GPU Recovery Action                   : None",
        "    GSP Firmware Version                  : 580.95.05",
        "    Clocks Event Reasons",
        "            HW Thermal Slowdown           : Not Active",
        "            DRAM Uncorrectable            : 2",
        "        Remapping Failure Occurred        : No",
        "        State                             : Completed",
        "        Status                            : Success",
    ):
        assert line in lines
    fabric = lines.index("    Fabric")
    assert lines[fabric + 3] == "        CliqueId                          : 0"


def test_boards_without_a_switch_have_no_fabric(make_node: MakeNode) -> None:
    args = ("--query-gpu=fabric.state", "--format=csv,noheader", "-i", "0")
    assert make_node(board="hgx_h100_4").run("nvidia-smi", *args)[1] == "[N/A]\n"


def test_xml_is_well_formed(make_node: MakeNode) -> None:
    root = ElementTree.fromstring(make_node().run("nvidia-smi", "-q", "-x")[1])
    assert [g.findtext("fabric/state") for g in root.findall("gpu")] == ["Completed"] * 8


def test_table_is_a_box(make_node: MakeNode) -> None:
    lines = make_node().run("nvidia-smi")[1].splitlines()[1:]
    assert {len(x) for x in lines if x} == {91}


def test_reset_is_refused_while_persistence_is_on(make_node: MakeNode) -> None:
    node = make_node()
    assert node.run("nvidia-smi", "-pm", "1", "-i", "2")[0] == 0
    code, out, _err = node.run("nvidia-smi", "--gpu-reset", "-i", "2")
    assert code != 0
    assert "In use by another client" in out
    node.run("nvidia-smi", "-pm", "0", "-i", "2")
    assert node.run("nvidia-smi", "--gpu-reset", "-i", "2")[:2] == (
        0,
        "GPU 00000000:52:00.0 was successfully reset.\nAll done.\n",
    )


def test_fabric_manager_of_another_version(make_node: MakeNode) -> None:
    node = make_node()
    node.fault("fabricmanager: version 580.82.07")
    code, _out, err = node.run("nv-fabricmanager")
    assert code == 1
    assert err.startswith(
        "fabric manager NVIDIA GPU driver interface version 580.82.07 don't match with driver version 580.95.05."
    )


# --- broken tools


@pytest.mark.parametrize(
    ("fault", "code", "out"),
    [
        ("empty", 0, ""),
        ("error exit 0", 0, "nvidia-smi: Unknown Error\n"),
        ("exit 5", 5, ""),
        ("missing", 127, ""),
    ],
)
def test_broken_tool(make_node: MakeNode, fault: str, code: int, out: str) -> None:
    node = make_node()
    node.fault(f"tool nvidia-smi: {fault}")
    assert node.run("nvidia-smi", "-L")[:2] == (code, out)


# --- NIC tools


def test_mlxconfig_is_pending_until_the_reset(make_node: MakeNode) -> None:
    node = make_node()
    assert node.run("mlxconfig", "-d", "mlx5_0", "-y", "set", "ROCE_CC_PRIO_MASK_P1=255")[0] == 0
    out = node.run("mlxconfig", "-d", "mlx5_0", "-e", "q", "ROCE_CC_PRIO_MASK_P1")[1]
    row = next(x for x in out.splitlines() if "ROCE_CC_PRIO_MASK_P1" in x)
    assert row.split() == ["*", "ROCE_CC_PRIO_MASK_P1", "0", "0", "255"]
    assert node.run("mlxfwreset", "-d", "mlx5_0", "-y", "reset")[0] == 0
    assert store.load()["mlxconfig"]["current"]["mlx5_0"]["ROCE_CC_PRIO_MASK_P1"] == "255"
    assert store.load()["mlxconfig"]["pending"] == {}


def test_mlxconfig_plain_query(make_node: MakeNode) -> None:
    out = make_node().run("mlxconfig", "-d", "0000:18:00.0", "q", "LINK_TYPE_P1")[1].splitlines()
    assert "Device:             0000:18:00.0    " in out
    assert out[-1].split() == ["LINK_TYPE_P1", "IB(1)"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("-d", "mlx5_9", "q"), "Failed to open device"),
        (("-d", "mlx5_0", "-y", "set", "NOPE=1"), "doesn't support NOPE"),
        (("-d", "mlx5_0", "-y", "set", "ROCE_CC_PRIO_MASK_P1=256"), "out of range"),
        (("-d", "mlx5_0", "-y", "set", "LINK_TYPE_P1=7"), "Failed to set value"),
    ],
)
def test_mlxconfig_refuses(make_node: MakeNode, args: tuple[str, ...], words: str) -> None:
    code, _out, err = make_node().run("mlxconfig", *args)
    assert code == 3
    assert words in err


def test_qos_only_on_ethernet(make_node: MakeNode) -> None:
    assert make_node().run("mlnx_qos", "-i", "ibs0")[0] == 1


def test_qos(make_node: MakeNode) -> None:
    node = make_node(link_layer="ethernet")
    node.run("mlnx_qos", "-i", "eth_rail0", "--trust", "dscp", "--pfc=0,0,0,1,0,0,0,0")
    out = node.run("mlnx_qos", "-i", "eth_rail0")[1].splitlines()
    assert "Priority trust state: dscp" in out
    assert "\tenabled     0   0   0   1   0   0   0   0" in out


# --- RDMA


def pair(node: Any, tool: str, server_hca: str, client_hca: str, *more: str) -> tuple[int, str]:
    """Client's exit status and output, with a server on the same node."""
    port = str(free_port())
    done: list[int] = []

    def serve() -> None:
        done.append(rdma.perftest(tool, ["-d", server_hca, "-p", port, *more]))

    with mock.patch("signal.signal"):  # a thread may not set handlers
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        for _n in range(100):
            code, out, _err = node.run(tool, "-d", client_hca, "-p", port, *more, "127.0.0.1")
            if code == 0:
                break
            thread.join(0.02)
        thread.join(10)
    assert done == [0]
    return code, out


def typical(out: str) -> float:
    lines = out.splitlines()
    at = next(i for i, x in enumerate(lines) if "t_typical[usec]" in x)
    return float(next(x for x in lines[at + 1 :] if x.startswith(" 2 ")).split()[4])


@pytest.mark.parametrize(
    ("client", "fault", "low", "high"),
    [
        ("mlx5_0", "", 1.6, 1.7),  # one leaf
        ("mlx5_4", "", 2.0, 2.1),  # leaf, spine, leaf
        ("mlx5_0", "latency mlx5_1: +1us", 2.6, 2.7),
        ("mlx5_0", "latency leaf leaf1: +1us", 2.6, 2.7),
    ],
)
def test_write_latency_follows_the_hops(make_node: MakeNode, client: str, fault: str, low: float, high: float) -> None:
    node = make_node()
    if fault:
        node.fault(fault)
    assert low <= typical(pair(node, "ib_write_lat", "mlx5_1", client)[1]) <= high


def test_write_latency_text(make_node: MakeNode) -> None:
    out = pair(make_node(), "ib_write_lat", "mlx5_1", "mlx5_0", "-n", "1000")[1]
    assert "                    RDMA_Write Latency Test\n Dual-port       : OFF\t\tDevice         : mlx5_0\n" in out
    assert (
        " #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   "
        "99% percentile[usec]   99.9% percentile[usec] \n 2       1000 "
    ) in out


def test_write_bandwidth_json(make_node: MakeNode, tmp_path: Path) -> None:
    node = make_node()
    node.fault("port mlx5_1: rate 200")
    file = tmp_path / "out.json"
    out = pair(node, "ib_write_bw", "mlx5_1", "mlx5_0", "--report_gbits", "--out_json", f"--out_json_file={file}")[1]
    assert "BW average[Gb/sec]" in out
    assert 195 < json.loads(file.read_text())["results"]["BW_average"] < 197


def test_perftest_without_a_server(make_node: MakeNode) -> None:
    port = free_port()
    code, _out, err = make_node().run("ib_write_lat", "-d", "mlx5_0", "-p", str(port), "127.0.0.1")
    assert code == 1
    assert err.startswith(f" Couldn't connect to 127.0.0.1:{port}\n")


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("port mlx5_0: Polling", "Port number 1 state is Down"),
        ("port mlx5_0: Initializing", "Port number 1 state is Init"),
        ("hca mlx5_0: missing", "IB device mlx5_0 not found"),
    ],
)
def test_perftest_needs_an_active_port(make_node: MakeNode, fault: str, words: str) -> None:
    node = make_node()
    node.fault(fault)
    code, _out, err = node.run("ib_write_lat", "-d", "mlx5_0", "127.0.0.1")
    assert code == 1
    assert words in err


def test_ibping_of_a_guid_nobody_has(make_node: MakeNode) -> None:
    code, _out, err = make_node().run("ibping", "-c", "3", "-C", "mlx5_0", "-G", "0x1234")
    assert code == 255
    assert "can't resolve destination port 0x1234" in err


def test_ibping_without_an_answer(make_node: MakeNode) -> None:
    node = make_node()
    node.hw["ib"]["peers"][node.hw["hcas"][1]["guid"]]["ip"] = "127.0.0.1"
    node.write()
    code, out, _err = node.run("ibping", "-f", "-c", "2", "-t", "20", "-C", "mlx5_0", "-G", node.hw["hcas"][1]["guid"])
    assert code == 0
    assert out.splitlines()[1].startswith("---  (Lid ")
    assert out.splitlines()[2].startswith("2 packets transmitted, 0 received, 100% packet loss, time ")
    assert out.splitlines()[3] == "rtt min/avg/max = 0.000/0.000/0.000 ms"


def test_loss_is_one_of_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rdma, "_carry", {})
    assert sum(rdma._lost("x", 0.001) for _n in range(1000)) == 1
    assert sum(rdma._lost("y", 0.0) for _n in range(1000)) == 0


# --- NCCL


def rows(out: str) -> list[list[str]]:
    return [x.split() for x in out.splitlines() if x.strip() and not x.startswith("#")]


@pytest.mark.parametrize(
    ("rack", "gpus", "environment", "low", "high"),
    [
        ({}, "8", {}, 475, 480),
        ({}, "4", {}, 368, 372),
        ({}, "8", {"NCCL_ALGO": "Ring"}, 362, 368),
        ({"board": "hgx_h100_4"}, "4", {}, 360, 364),
        ({"board": "h100_pcie"}, "4", {}, 40, 43),
    ],
)
def test_all_reduce(
    make_node: MakeNode, monkeypatch: pytest.MonkeyPatch, rack: dict[str, str], gpus: str, environment: dict[str, str],
    low: float, high: float,
) -> None:  # fmt: skip
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    code, out, _err = make_node(**rack).run("all_reduce_perf", "-b", "16G", "-e", "16G", "-f", "2", "-g", gpus)
    assert code == 0
    (row,) = rows(out)
    assert row[:5] == ["17179869184", "4294967296", "float", "sum", "-1"]
    assert len(row) == 13
    assert low <= float(row[7]) <= high
    assert (row[8], row[12]) == ("0", "0")
    assert "# Out of bounds values : 0 OK" in out


def test_all_reduce_faults(make_node: MakeNode) -> None:
    node = make_node()
    args = ("-b", "8G", "-e", "8G", "-g", "8")
    node.fault("nccl: 60%")
    assert 280 < float(rows(node.run("all_reduce_perf", *args)[1])[0][7]) < 290
    node.fault("nccl: wrong")
    code, out, _err = node.run("all_reduce_perf", *args)
    assert code == 1
    assert rows(out)[0][8] == "3"
    assert "# Out of bounds values : 3 FAILED" in out
    node.fault("nccl: cut off")
    code, out, _err = node.run("all_reduce_perf", *args)
    assert code == 0
    assert "Avg bus bandwidth" not in out
    node.fault("link 0-2: NV9")
    assert float(rows(node.run("all_reduce_perf", *args)[1])[0][7]) < 250


# --- host


def test_numactl_refuses_what_is_not_there(make_node: MakeNode) -> None:
    node = make_node()
    assert node.run("numactl", "--cpunodebind=2", "true")[0] == 1
    assert "node argument 2 is out of range" in node.run("numactl", "-m", "2", "true")[2]
    assert "cpu argument 112 is out of range" in node.run("numactl", "-C", "0,112", "true")[2]


def test_numactl_hardware(make_node: MakeNode) -> None:
    lines = make_node().run("numactl", "--hardware")[1].splitlines()
    assert lines[0] == "available: 2 nodes (0-1)"
    assert lines[-2:] == ["  0:  10  21 ", "  1:  21  10 "]


def test_numactl_execs_the_real_one_on_node_0(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def execv(file: str, argv: list[str]) -> None:
        called.append(argv)
        raise FileNotFoundError

    monkeypatch.setattr("os.execv", execv)
    make_node().run("numactl", "--cpunodebind=1", "--physcpubind=56-83", "--membind=1", "prog", "-x")
    assert called == [["/usr/bin/numactl", "--cpunodebind=0", "--membind=0", "prog", "-x"]]


def test_update_grub_reads_drop_ins(make_node: MakeNode) -> None:
    node = make_node()
    drop = node.root / "etc/default/grub.d"
    drop.mkdir(parents=True)
    (node.root / "etc/default/grub").write_text('GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n')
    (drop / "50-x.cfg").write_text('GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX intel_idle.max_cstate=0"\n')
    assert node.run("update-grub")[0] == 0
    assert host.kernel_cmdline().split()[-2:] == ["intel_idle.max_cstate=0", "quiet"]


def test_broken_grub_drop_in_is_an_error(make_node: MakeNode) -> None:
    node = make_node()
    drop = node.root / "etc/default/grub.d"
    drop.mkdir(parents=True)
    (drop / "50-x.cfg").write_text("if then\n")
    assert node.run("update-grub")[0] == 1
    assert not (node.root / "boot/grub/grub.cfg").exists()


def test_idle_state_tree(make_node: MakeNode) -> None:
    node = make_node()
    base = node.root / "run/simhw/sys/cpu"
    host._cpu_tree(store.effective(), str(base), "")
    assert (base / "online").read_text() == "0-111\n"
    assert [(base / f"cpu111/cpuidle/state{i}/name").read_text().strip() for i in range(4)] == [
        "POLL",
        "C1",
        "C1E",
        "C6",
    ]
    assert (base / "cpu60/topology/physical_package_id").read_text() == "1\n"


def test_tick_counts_the_deepest_enabled_state_only(make_node: MakeNode) -> None:
    node = make_node()
    base = node.root / "run/simhw/sys/cpu"
    host._cpu_tree(store.effective(), str(base), "")
    (base / "cpu1/cpuidle/state3/disable").write_text("1\n")
    before = (base / "cpu1/cpuidle/state3/time").read_text()
    host.tick(once=True)
    assert (base / "cpu1/cpuidle/state3/time").read_text() == before
    assert int((base / "cpu1/cpuidle/state2/time").read_text()) > int(before)
    assert int((base / "cpu0/cpuidle/state3/time").read_text()) > int(before)


def test_missing_tool_is_hidden_and_comes_back(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node()
    monkeypatch.setattr(host, "_run", lambda *a: subprocess.CompletedProcess(a, 0, "", ""))
    tool = node.root / "usr/bin/nvidia-smi"
    tool.parent.mkdir(parents=True)
    tool.symlink_to("/opt/simhw/bin/nvidia-smi")
    view = store.effective()["kernel"]
    host._apply_tools({}, {**view, "missing_tools": ["nvidia-smi"]}, None)
    assert not tool.is_symlink()
    host._apply_tools({}, view, None)
    assert tool.is_symlink()


def test_description_is_read_once(make_node: MakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_node()
    first = store.load()
    monkeypatch.setattr(store, "parse_yaml", lambda text: pytest.fail("the YAML was parsed again"))
    assert store.load() == first
    monkeypatch.undo()
    monkeypatch.setenv("SIMHW_ROOT", str(node.root))
    node.fault("gpu 1: missing")
    assert store.load()["faults"] == ["gpu 1: missing"]


# --- packages


def test_packages(tmp_path: Path) -> None:
    assert debs.build(str(tmp_path)) == 0
    index = (tmp_path / "Packages").read_text()
    wanted = {
        ("nvidia-open", "580.95.05-1"),
        ("nvidia-open", "580.82.07-1"),
        ("nvidia-fabricmanager", "580.95.05-1"),
        ("nvidia-fabricmanager", "580.82.07-1"),
        ("nvidia-persistenced", "580.95.05-1"),
        ("cuda-runtime-13-0", "13.0.2-1"),
        ("libnccl2", "2.27.7-1+cuda13.0"),
    }
    found = {
        (e.split("Package: ")[1].split("\n")[0], e.split("Version: ")[1].split("\n")[0])
        for e in index.split("\n\n")
        if e.strip()
    }
    assert wanted <= found
    fm = next(e for e in index.split("\n\n") if "nvidia-fabricmanager\nVersion: 580.82.07" in e)
    assert "Depends" not in fm
    file = tmp_path / "nvidia-open_580.95.05-1_amd64.deb"
    listing = subprocess.run(["dpkg-deb", "-c", str(file)], capture_output=True, text=True, check=True).stdout
    assert "./usr/bin/nvidia-smi -> /opt/simhw/bin/nvidia-smi" in listing

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The program that sets what a reboot forgets of RoCE, with a sysfs of files and stand-ins for NVIDIA's tools."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[3] / "roles" / "rdma_fabric" / "files" / "roce_qos"

MLNX_QOS = """#!PYTHON
import json, pathlib, sys
file = pathlib.Path("STATE")
state = json.loads(file.read_text())
for option in ("--trust", "--pfc"):
    if option in sys.argv and not state.get("deaf"):
        state[option] = sys.argv[sys.argv.index(option) + 1]
file.write_text(json.dumps(state))
pfc = state["--pfc"].split(",")
print("DCBX mode: OS controlled")
print("Priority trust state:", state["--trust"])
print("PFC configuration:")
print("\\tpriority    " + "   ".join("01234567"))
print("\\tenabled     " + "   ".join(pfc))
print("\\tbuffer      " + "   ".join(pfc))
"""
TOS = """#!PYTHON
import pathlib, sys
file = pathlib.Path("STATE.tos")
if "-t" in sys.argv:
    file.write_text(sys.argv[sys.argv.index("-t") + 1])
print(file.read_text())
"""


class Node:
    """A made node with one RDMA device and its interface."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.state.write_text(json.dumps({"--trust": "pcp", "--pfc": "0,0,0,0,0,0,0,0"}))
        Path(f"{self.state}.tos").write_text("0")
        (root / "bin").mkdir()
        for name, text in (("mlnx_qos", MLNX_QOS), ("cma_roce_tos", TOS)):
            (root / "bin" / name).write_text(text.replace("PYTHON", sys.executable).replace("STATE", str(self.state)))
            (root / "bin" / name).chmod(0o755)
        (root / "sys/class/infiniband/mlx5_0/device/net/eth0").mkdir(parents=True)
        for role in ("roce_rp", "roce_np"):
            directory = root / "sys/class/net/eth0/ecn" / role / "enable"
            directory.mkdir(parents=True)
            (directory / "3").write_text("0\n")
        config = {"hcas": ["mlx5_0"], "priority": 3, "tos": 106, "trust": "dscp"}
        (root / "config.json").write_text(json.dumps(config))

    def run(self, command: str) -> tuple[int, dict[str, Any], str]:
        done = subprocess.run(
            [sys.executable, PROGRAM, command, "--config", self.root / "config.json", "--sysfs", self.root / "sys"],
            capture_output=True,
            text=True,
            env={"PATH": f"{self.root}/bin:/usr/bin:/bin"},
            check=False,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else {}, done.stderr


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_apply_sets_all_and_a_second_time_nothing(node: Node) -> None:
    rc, said, _error = node.run("apply")
    assert rc == 0
    assert said["changed"] == {
        "eth0 ecn roce_np": {"current": "0", "wanted": "1"},
        "eth0 ecn roce_rp": {"current": "0", "wanted": "1"},
        "eth0 pfc": {"current": "0,0,0,0,0,0,0,0", "wanted": "0,0,0,1,0,0,0,0"},
        "eth0 trust": {"current": "pcp", "wanted": "dscp"},
        "mlx5_0 tos": {"current": "0", "wanted": "106"},
    }
    assert said["differences"] == {}
    assert (node.root / "sys/class/net/eth0/ecn/roce_np/enable/3").read_text() == "1\n"
    assert node.run("apply") == (0, {"changed": {}, "differences": {}}, "")


def test_verify_only_reads(node: Node) -> None:
    rc, said, _error = node.run("verify")
    assert rc == 0
    assert len(said["changed"]) == 5
    assert node.run("verify")[1] == said


def test_value_that_does_not_stay_is_a_failure(node: Node) -> None:
    node.state.write_text(json.dumps({**json.loads(node.state.read_text()), "deaf": True}))
    rc, said, error = node.run("apply")
    assert rc == 1
    assert set(said["differences"]) == {"eth0 pfc", "eth0 trust"}
    assert "eth0 trust is still pcp, not dscp" in error


@pytest.mark.parametrize(
    ("remove", "part"),
    [
        ("bin/mlnx_qos", "mlnx_qos -i eth0"),
        ("sys/class/net/eth0/ecn/roce_np/enable/3", "ecn/roce_np/enable/3: No such file"),
        ("state", "mlnx_qos -i eth0: exit status 1"),
    ],
)
def test_what_cannot_be_read_is_named(node: Node, remove: str, part: str) -> None:
    (node.root / remove).unlink()
    rc, said, error = node.run("apply")
    assert (rc, said) == (1, {})
    assert part in error


def test_device_without_interface_is_named(node: Node) -> None:
    (node.root / "sys/class/infiniband/mlx5_0/device/net/eth0").rmdir()
    assert "network interface of mlx5_0" in node.run("verify")[2]


@pytest.mark.parametrize("text", ["", "{}", "[]"])
def test_wrong_configuration_is_refused(node: Node, text: str) -> None:
    (node.root / "config.json").write_text(text)
    rc, _said, error = node.run("apply")
    assert rc == 2
    assert "Run the role rdma_fabric again" in error

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The fabric's net file and the console commands, as ibsim 0.10 takes them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from racksim import netfile, rackfile
from racksim.errors import SimError
from racksim.netfile import Port


def make_rack(nodes: int = 2, uplinks: int = 4, spines: int = 2) -> rackfile.Rack:
    data = {
        "id": 5,
        "board": "hgx_h100_8",
        "nodes": [{"name": f"node{n}"} for n in range(1, nodes + 1)],
        "heads": [{"name": "head1"}],
        "fabric": {"spines": spines, "uplinks": uplinks},
    }
    return rackfile.parse(data, "test", Path("test.yml"))


def make_hardware(rack: rackfile.Rack) -> dict[str, dict[str, Any]]:
    return {
        node.name: {
            "hcas": [
                {
                    "name": f"mlx5_{i}",
                    "rail": i,
                    "guid": f"0x{0xB83FD20000000000 + node.index * 0x10000 + i * 0x100:016x}",
                }
                for i in range(8)
            ]
        }
        for node in rack.nodes
    }


def cables(text: str) -> Iterator[tuple[tuple[str, int], tuple[str, int]]]:
    """((node, port), (node, port)) of each cable end in a net file."""
    here = ""
    for line in text.splitlines():
        if header := re.match(r'(?:Switch|Hca) \d+ "([^"]+)"', line):
            here = header[1]
        elif end := re.fullmatch(r'\[(\d+)\] "([^"]+)"\[(\d+)\]', line):
            yield (here, int(end[1])), (end[2], int(end[3]))


def test_two_nodes_and_a_head_give_this_file() -> None:
    rack = make_rack()
    text = netfile.generate(rack, make_hardware(rack))
    lines = text.splitlines()
    assert lines[:3] == ["width=2", "speed=4", "extspeed=4"]
    # 2 nodes x 4 rails + head1 + 2 spines x 4 uplinks
    assert 'Switch 17 "leaf1" # "leaf1"' in lines
    assert 'Switch 8 "spine2" # "spine2"' in lines
    # The port GUID ...010000 is port 1 of a CA whose node GUID is one less.
    at = lines.index("caguid=0xb83fd2000000ffff")
    assert lines[at + 1 : at + 3] == ['Hca 1 "node1-mlx5_0" # "node1 mlx5_0"', '[1] "leaf1"[1]']
    # Rail 4 is the first of leaf2.
    assert lines[lines.index('Hca 1 "node1-mlx5_4" # "node1 mlx5_4"') + 1] == '[1] "leaf2"[1]'
    assert lines[lines.index('Hca 1 "node2-mlx5_7" # "node2 mlx5_7"') + 1] == '[1] "leaf2"[8]'
    assert lines[lines.index('Hca 1 "head1-mlx5_0" # "head1 mlx5_0"') + 1] == '[1] "leaf1"[9]'


@given(nodes=st.integers(1, 40), uplinks=st.integers(1, 16), spines=st.integers(1, 4))
def test_every_cable_has_two_ends_that_agree_and_no_port_two_cables(nodes: int, uplinks: int, spines: int) -> None:
    rack = make_rack(nodes, uplinks, spines)
    ends = dict(cables(netfile.generate(rack, make_hardware(rack))))
    assert all(ends[there] == here for here, there in ends.items())
    hca_cables = nodes * 8 + 1
    assert len(ends) == 2 * (hca_cables + 2 * spines * uplinks)


def test_guids_are_unique() -> None:
    rack = make_rack(40)
    guids = re.findall(r"(?:caguid|switchguid)=(\S+)", netfile.generate(rack, make_hardware(rack)))
    assert len(set(guids)) == len(guids) == 40 * 8 + 1 + 4


def test_hcas_in_ethernet_mode_are_not_on_the_fabric() -> None:
    rack = make_rack(1)
    hardware = make_hardware(rack)
    hardware["node1"]["hcas"][2]["link_layer"] = "ethernet"
    assert [ca.sim_host for ca in netfile.cas(rack, hardware)][1:3] == ["node1-mlx5_1", "node1-mlx5_3"]


def test_the_description_names_the_leaf() -> None:
    rack = make_rack(1)
    hardware = make_hardware(rack)
    hardware["node1"]["hcas"][0]["leaf"] = "leaf2"
    assert [ca.leaf for ca in netfile.cas(rack, hardware)] == [2, 1, 1, 1, 2, 2, 2, 2, 1]
    hardware["node1"]["hcas"][0]["leaf"] = "leaf3"
    with pytest.raises(SimError, match=r"leaf of HCA mlx5_0: 'leaf3' is not a leaf\. Use one of leaf1, leaf2\."):
        netfile.cas(rack, hardware)


def test_a_leaf_too_large_for_ibsim_is_refused() -> None:
    rack = make_rack(62)
    with pytest.raises(SimError, match=r"a leaf would need 257 ports of at most 254. Use fewer nodes or fewer uplinks"):
        netfile.generate(rack, make_hardware(rack))


def view(**port: Any) -> dict[str, Any]:
    return {"hcas": [{"name": "mlx5_0", "port": {"state": "Active", "phys": "LinkUp", **port}}, {"name": "mlx5_1"}]}


def test_ports_follow_power_faults_and_presence() -> None:
    both_up = {"node1-mlx5_0": Port(), "node1-mlx5_1": Port()}
    assert netfile.ports("node1", view(), powered=True) == both_up
    assert netfile.ports("node1", view(), powered=False) == dict.fromkeys(both_up, Port(cable=False))
    polling = netfile.ports("node1", view(state="Down", phys="Polling"), powered=True)
    assert [port.cable for port in polling.values()] == [False, True]
    # A logical state on a good cable is not ibsim's to show.
    assert netfile.ports("node1", view(state="Initializing"), powered=True) == both_up
    assert not netfile.ports("node1", {"hcas": [{"name": "mlx5_0", "state": "missing"}]}, powered=True)[
        "node1-mlx5_0"
    ].cable
    ethernet = {"hcas": [{"name": "mlx5_0", "link_layer": "ethernet"}]}
    assert not netfile.ports("node1", ethernet, powered=True)["node1-mlx5_0"].cable
    assert netfile.ports("node1", view(symbol_errors=5000), powered=True)["node1-mlx5_0"].symbol_errors == 5000


def test_the_console_gets_only_what_changes() -> None:
    up, down = {"a-mlx5_0": Port()}, {"a-mlx5_0": Port(cable=False)}
    assert netfile.console(up, up) == []
    assert netfile.console(up, down) == ['Unlink "a-mlx5_0"[1]']
    assert netfile.console(down, up) == ['Relink "a-mlx5_0"[1]']
    errors = {"a-mlx5_0": Port(symbol_errors=70000, link_downed=3)}
    assert netfile.console(up, errors) == [
        'PerformanceSet "a-mlx5_0"[1] PortCounters.SymbolErrorCounter=65535',
        'PerformanceSet "a-mlx5_0"[1] PortCounters.LinkDownedCounter=3',
    ]
    assert netfile.console(errors, up) == [
        'PerformanceSet "a-mlx5_0"[1] PortCounters.SymbolErrorCounter=0',
        'PerformanceSet "a-mlx5_0"[1] PortCounters.LinkDownedCounter=0',
    ]

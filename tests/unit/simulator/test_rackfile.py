# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Rack files: the shipped ones, derived addresses, and an error for each wrong value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from racksim import rackfile
from racksim.errors import SimError

FILE = Path("/racks/test.yml")


def good(**changes: Any) -> dict[str, Any]:
    return {
        "id": 5,
        "board": "hgx_h100_8",
        "nodes": [{"name": "node1"}, {"name": "node2", "vendor": "hpe", "faults": ["gpu 3: missing"]}],
        "heads": [{"name": "head1"}],
        **changes,
    }


def test_the_default_rack_is_the_articles() -> None:
    rack = rackfile.load(rackfile.RACKS_DIR / "default.yml")
    assert (rack.name, rack.id, rack.subnet, rack.gateway) == ("default", 77, "172.31.77.0/24", "172.31.77.1")
    assert [node.name for node in rack.nodes] == ["node1", "node2", "node3", "node4"]
    assert [(head.name, head.address) for head in rack.heads] == [("head1", "172.31.77.10")]
    assert rack.nodes[3].address == "172.31.77.14"
    assert rack.nodes[3].bmc_address == "127.0.77.14"
    assert rack.firmware_address == "127.0.77.1"


def test_the_molecule_rack_has_two_nodes_and_its_own_network() -> None:
    rack = rackfile.load(rackfile.RACKS_DIR / "molecule.yml")
    assert (rack.id, [host.name for host in rack.hosts]) == (78, ["head1", "node1", "node2"])


def test_a_node_takes_the_racks_board_and_vendor_unless_it_has_its_own() -> None:
    rack = rackfile.parse(good(), "test", FILE)
    assert [(node.board, node.vendor) for node in rack.nodes] == [("hgx_h100_8", "dell"), ("hgx_h100_8", "hpe")]
    assert rack.nodes[1].faults == ("gpu 3: missing",)


def test_hosts_are_found_by_name_and_heads_have_no_hardware() -> None:
    rack = rackfile.parse(good(), "test", FILE)
    assert rack.node("node2").index == 2
    with pytest.raises(SimError, match=r"host 'head1' of rack 'test': it has no simulated hardware. Name one of node1"):
        rack.node("head1")
    with pytest.raises(SimError, match=r"there is no such host. Name one of head1, node1, node2\."):
        rack.host("node9")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": 0}, "id: 0 is not a whole number from 1 to 254"),
        ({"id": "77"}, "id: '77' is not a whole number"),
        ({"id": True}, "id: True is not a whole number"),
        ({"board": "h100"}, "board: 'h100' is not known. Use one of hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie"),
        ({"vendor": "acer"}, "vendor: 'acer' is not known. Use one of dell, hpe, lenovo, supermicro"),
        ({"nodes": []}, "nodes: [] is not a list of 1 to 200 items"),
        ({"nodes": ["node1"]}, "nodes[0]: 'node1' is not a mapping"),
        ({"nodes": [{"name": "Node 1"}]}, "nodes[0].name: 'Node 1' is not a host name"),
        ({"nodes": [{"name": "node1", "gpu": 4}]}, "nodes[0]: unknown key 'gpu'. Use only board, faults, hardware"),
        ({"nodes": [{"name": "n1"}, {"name": "n1"}]}, "nodes[1].name: 'n1' is taken"),
        ({"nodes": [{"name": "fabric"}]}, "nodes[0].name: 'fabric' is taken"),
        ({"nodes": [{"name": "n1", "faults": "gpu 3: missing"}]}, "nodes[0].faults: 'gpu 3: missing' is not a list"),
        ({"heads": [{}]}, "heads[0]: key 'name' is missing"),
        ({"fabric": {"spines": 0}}, "fabric.spines: 0 is not a whole number from 1 to 8"),
        ({"colour": "red"}, "unknown key 'colour'. Use only board, fabric, heads, id, nodes, vendor"),
    ],
)
def test_a_wrong_value_is_named_with_file_key_and_what_is_allowed(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SimError) as error:
        rackfile.parse(good(**changes), "test", FILE)
    assert str(error.value).startswith(f"rack file {FILE}")
    assert message in str(error.value)
    assert error.value.code == 2


@pytest.mark.parametrize("data", [None, [], "id: 5"])
def test_a_file_that_is_no_mapping_is_refused(data: object) -> None:
    with pytest.raises(SimError, match="is not a mapping"):
        rackfile.parse(data, "test", FILE)


def test_a_missing_key_is_named() -> None:
    data = good()
    del data["id"]
    with pytest.raises(SimError, match=r"rack file /racks/test.yml: key 'id' is missing. Add it\."):
        rackfile.parse(data, "test", FILE)


def test_broken_yaml_and_unreadable_files_are_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("id: [1\nboard: x\n", encoding="utf-8")
    with pytest.raises(SimError) as error:
        rackfile.load(broken)
    assert "\n" not in str(error.value)
    with pytest.raises(SimError, match=r"No such file or directory. Give a readable rack file"):
        rackfile.load(tmp_path / "none.yml")


@pytest.mark.parametrize("name", ["", "Rack", "a_b", "1a", "x" * 21])
def test_a_rack_name_that_cannot_name_containers_is_refused(name: str) -> None:
    with pytest.raises(SimError, match="rack name"):
        rackfile.parse(good(), name, FILE)


def test_an_unknown_rack_lists_those_there_are() -> None:
    with pytest.raises(SimError, match=r"Name one of .*default, molecule"):
        rackfile.find("no-such-rack", None)

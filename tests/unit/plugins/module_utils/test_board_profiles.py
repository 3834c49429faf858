# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the board profiles, and that docs/thresholds.md says the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _board_profiles as boards

THRESHOLDS = Path(__file__).parents[4] / "docs" / "thresholds.md"


def numbers(value: Any, path: str) -> Iterator[tuple[str, boards.Number]]:
    if isinstance(value, boards.Number):
        yield path, value
    elif isinstance(value, tuple):
        for item in value:
            yield from numbers(item, path)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from numbers(getattr(value, field.name), f"{path}.{field.name}")


ALL = [(path, n) for p in boards.PROFILES.values() for path, n in numbers(p, p.name)]


@pytest.mark.parametrize(("path", "number"), ALL, ids=[f"{p}={n.value}" for p, n in ALL])
def test_every_number_has_a_source(path: str, number: boards.Number) -> None:
    assert len(number.source) > 8, path


def test_every_number_is_in_the_document() -> None:
    text = THRESHOLDS.read_text()
    missing = sorted({f"{n.value:g} ({p})" for p, n in ALL if f"{n.value:g}" not in text})
    assert missing == []


def test_an_unknown_board_is_refused_with_the_names() -> None:
    with pytest.raises(
        ValueError, match=r"'H100' is not known. Use one of hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie"
    ):
        boards.profile("H100")


PRODUCTS = {
    "SXM": ("NVIDIA H100 80GB HBM3", {"hgx_h100_8", "hgx_h100_4", "article"}),
    "NVL": ("NVIDIA H100 NVL", {"h100_nvl"}),
    "PCIe": ("NVIDIA H100 PCIe", {"h100_pcie"}),
    "another generation": ("NVIDIA A100-SXM4-80GB", set()),
    "a longer name": ("NVIDIA H100 NVL2", set()),
}


@pytest.mark.parametrize(("product", "wanted"), PRODUCTS.values(), ids=PRODUCTS.keys())
def test_products(product: str, wanted: set[str]) -> None:
    assert {p.name for p in boards.PROFILES.values() if p.product_matches(product)} == wanted


LATENCY = [(0, 2.0), (1, 2.5), (2, 3.0), (3, 3.0), (4, None), (-1, None)]


@pytest.mark.parametrize(("switches", "limit"), LATENCY)
def test_latency_limit_by_hop_count(switches: int, limit: float | None) -> None:
    found = boards.HGX_H100_8.ib_write_lat_us(switches)
    assert (found.value if found else None) == limit


FLOORS = [(8, "NVLS", 460), (8, "Ring", 347), (4, "ring", 347), (4, "NVLS", 351), (9, "Ring", None), (8, "Tree", None)]


@pytest.mark.parametrize(("gpus", "algo", "floor"), FLOORS)
def test_nccl_floors(gpus: int, algo: str, floor: int | None) -> None:
    found = boards.HGX_H100_8.nccl_floor(gpus, algo)
    assert (found.floor.value if found else None) == floor


def test_every_nccl_floor_is_within_ten_percent_of_what_a_good_board_reaches() -> None:
    for board in boards.PROFILES.values():
        for floor in board.nccl:
            assert 0.9 * floor.expected.value <= floor.floor.value <= floor.expected.value, (board.name, floor)


def test_the_article_is_not_a_board_an_inventory_may_name() -> None:
    assert set(boards.BOARDS) == {"hgx_h100_8", "hgx_h100_4", "h100_nvl", "h100_pcie"}
    assert boards.HGX_H100_8.gpu_count == 8
    assert boards.H100_NVL.gpu_count is None

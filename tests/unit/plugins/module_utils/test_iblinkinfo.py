# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Tests of the reader and the judgement of iblinkinfo."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _iblinkinfo as links

TEXT = (Path(__file__).parents[2] / "fixtures" / "infiniband-diags-44.0-iblinkinfo.txt").read_text()


def bad(text: str, rate: int = 400) -> list[tuple[str, str, str, object]]:
    return [(c.check, c.subject, c.verdict, c.value) for c in links.judge(text, rate, "x") if c.verdict != "pass"]


def test_a_healthy_fabric_passes_and_an_empty_port_is_no_defect() -> None:
    (check,) = links.judge(TEXT, 400, "x")
    assert (check.verdict, check.value) == ("pass", 5)


NODE2 = TEXT.splitlines()[3]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (NODE2.replace("Active/  LinkUp", "Initialize/  LinkUp"), ("node2 mlx5_0 port 1", "fail", "Initialize/LinkUp")),
        (NODE2.replace("106.25", "53.125"), ("node2 mlx5_0 port 1", "fail", 200)),
        (NODE2.replace(" 4X", " 1X").replace("( )", "( Could be 4X )"), ("node2 mlx5_0 port 1", "fail", 100)),
        (
            NODE2[: NODE2.index("==(")] + '==(   Down/ Polling)==>  [  ] "" ( )',
            ("node2 mlx5_0 port 1", "fail", "Down/Polling"),
        ),
        (NODE2.replace("106.25", "7"), ("node2 mlx5_0 port 1", "unknown", None)),
    ],
)
def test_a_bad_link_is_named(line: str, wanted: tuple[str, str, object]) -> None:
    assert bad(TEXT.replace(NODE2, line)) == [("ib_port.fabric_link", *wanted)]


def test_a_line_a_link_of_old_and_of_line_mode() -> None:
    line = (
        '0x0002c90200404ad8 "SwitchX -  Mellanox Technologies"      4   17[  ] ==( 4X 25.78125 Gbps Active/  LinkUp)==>'
        '  0x0011220300334455      5    1[  ] "exe0001 HCA-1" ( )\n'
    )
    ((link,), problems) = links.parse(line)
    assert (problems, link.node, link.port, link.rate_gbps) == ([], "SwitchX -  Mellanox Technologies", 17, 100)
    assert bad(line) == []


def test_what_is_no_report_is_unknown() -> None:
    assert bad("") == [("ib_port.fabric_links", "iblinkinfo", "unknown", None)]
    assert ("ib_port.fabric_links", "iblinkinfo", "unknown", None) in bad(TEXT + "Segmentation fault\n")
    assert ("ib_port.fabric_links", "iblinkinfo", "fail", 0) in bad(TEXT.replace("Active", "Down"))

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The HTML file: what it holds, what it cuts, and that nothing a node writes gets out of its text."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import nvlink_topology

from gpurack.report.html import display, ranges, render
from gpurack.report.model import build
from gpurack.report.read import read_run
from tests.unit.gpurack.report_data import FIXTURES, RUN, Made
from tests.unit.gpurack.test_report_model import pack
from tests.unit.module_runner import runner

HOSTILE = "</script><img src=x onerror=alert(1)>\"'><script>alert(2)</script><!--"
VOID = {"meta", "link", "br", "input", "rect", "img"}


class Elements(HTMLParser):
    """Collects the elements, and whether they nest."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page(place: Path, **limits: int) -> str:
    return render(build(read_run(place), "now"), **limits)


def elements(html: str) -> Elements:
    found = Elements()
    found.feed(html)
    assert found.open == []
    return found


def data_of(html: str) -> dict[str, Any]:
    match = re.search(r'<script type="application/json" id="data">(.*?)</script>', html, re.DOTALL)
    assert match
    found: dict[str, Any] = json.loads(match[1])
    return found


def unpack(packed: str) -> str:
    return gzip.decompress(base64.b64decode(packed)).decode()


@pytest.mark.parametrize("size", [0, 1, 4, 9, 30])
def test_the_elements_nest_and_nothing_comes_from_elsewhere(tmp_path: Path, size: int) -> None:
    html = page(Made(size).write(tmp_path))
    found = elements(html).found
    for tag, attributes in found:
        for name in ("src", "href", "action", "data", "srcset"):
            target = attributes.get(name) or "#"
            assert target.startswith(("#", "data:,")), f"{tag} {name}={target}"
        assert not [name for name in attributes if name.startswith("on") or name == "style"], (tag, attributes)
    assert "@import" not in html
    assert "url(" not in html


def test_the_policy_allows_its_own_style_and_script_only(tmp_path: Path) -> None:
    html = page(Made(4).write(tmp_path))
    policy = next(a["content"] for _t, a in elements(html).found if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    for tag in ("style", "script"):
        source = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        assert source
        assert f"{tag}-src 'sha256-{base64.b64encode(hashlib.sha256(source[1].encode()).digest()).decode()}'" in policy


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    place = Made(4, hostile=HOSTILE).write(tmp_path)
    summary = json.loads((place / "summary.json").read_text())
    summary["steps"][HOSTILE] = 1.0
    summary["playbook"] = HOSTILE
    summary["nodes"]["node2"]["out"] = {"kind": "quarantined", "stage": HOSTILE, "check": HOSTILE, "reason": HOSTILE}
    (place / "summary.json").write_text(json.dumps(summary))
    found = elements(page(place))
    assert [tag for tag, _a in found.found if tag == "img"] == []
    assert len([tag for tag, _a in found.found if tag == "script"]) == 2
    assert any(HOSTILE in text for text in found.text)


def test_tiles_findings_and_marks(tmp_path: Path) -> None:
    html = page(Made(9).write(tmp_path))
    found = elements(html)
    tiles = {str(a["href"]): a for _t, a in found.found if str(a.get("class", "")).startswith("tile ")}
    assert len(tiles) == 9
    assert tiles["#node/node2"]["aria-label"] == "node2: fail. nvlink_topology.matrix GPU0-GPU2: NV17, limit NV18"
    assert tiles["#node/node5"]["class"] == "tile s-unreachable"
    text = " ".join(" ".join(found.text).split())
    assert "6 of 9 nodes are out" in text
    assert "Blamed port mlx5_3 of node3 or its cable" in text
    assert "NV17 ✕" in text
    assert "96.00.30.00.01 node8" in text


def test_a_good_rack_says_so(tmp_path: Path) -> None:
    text = " ".join(" ".join(elements(page(Made(4, healthy=True).write(tmp_path))).text).split())
    assert "All 4 nodes are good" in text
    assert "None: every check passed." in text


def test_evidence_is_embedded_once(tmp_path: Path) -> None:
    place = Made(4).write(tmp_path)
    found = data_of(page(place))
    nodes = {name: json.loads(unpack(packed)) for name, packed in found["nodes"].items()}
    digests = {
        name: next(e for e in node["evidence"] if e["gate"] == "ib_port")["readings"][0]["stdout"]["sha256"]
        for name, node in nodes.items()
    }
    assert len(set(digests.values())) == 1
    packed, cut = found["outputs"][digests["node1"]]
    assert unpack(packed) == (FIXTURES / "infiniband-diags-44.0-ibstat-8xndr.txt").read_text()
    assert cut == 0


def test_long_outputs_are_cut_and_say_so(tmp_path: Path) -> None:
    place = tmp_path / RUN
    output = "".join(f"line {n}\n" for n in range(5000))
    gate = {"gate": "xid", "checks": [], "evidence": [{"command": "dmesg", "rc": 0, "stdout": output}]}
    pack(place / "n1" / "evidence.tar.gz", {"x/hardware/xid.json": json.dumps(gate).encode()})
    ((packed, cut),) = data_of(page(place, output_limit=4000))["outputs"].values()
    shown = unpack(packed)
    assert cut == len(output) - 4000
    assert shown.startswith("line 0\n")
    assert shown.endswith("line 4999\n")
    assert (
        f"{cut} characters are left out here; SHA-256 of the whole: {hashlib.sha256(output.encode()).hexdigest()}"
        in shown
    )


def test_outputs_that_would_make_the_file_too_large_are_left_out(tmp_path: Path) -> None:
    place = Made(4).write(tmp_path)
    outputs = data_of(page(place, total_limit=1500))["outputs"]
    assert None in outputs.values()
    assert sum(len(kept[0]) for kept in outputs.values() if kept) <= 1500


def test_a_credential_in_an_output_is_not_embedded(tmp_path: Path) -> None:
    place = tmp_path / RUN
    reading = {"command": "curl -H 'Authorization: Bearer s3cr3t-abcdef'", "rc": 0, "stdout": "token=s3cr3t-abcdef\n"}
    gate = {"gate": "token_probe", "checks": [], "evidence": [reading]}
    pack(place / "n1" / "evidence.tar.gz", {"x/serving/token_probe.json": json.dumps(gate).encode()})
    html = page(place)
    found = data_of(html)
    assert "s3cr3t" not in html
    assert "s3cr3t" not in unpack(found["nodes"]["n1"])
    assert unpack(next(iter(found["outputs"].values()))[0]) == "token=[redacted]\n"


def test_a_run_of_a_real_gate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From the module's own evidence file to the matrix on the page."""
    stored = tmp_path / "node"
    runner(nvlink_topology, capsys)(
        captured=str(FIXTURES / "nvidia-smi-580-topo-formG-hgx8.txt"), profile="hgx_h100_8", evidence_dir=str(stored)
    )
    place = tmp_path / RUN
    pack(
        place / "node1" / "evidence.tar.gz",
        {"var/hardware/nvlink_topology.json": (stored / "nvlink_topology.json").read_bytes()},
    )
    (group,) = build(read_run(place), "now").document["topology"]
    assert group["nodes"] == ["node1"]
    assert group["cells"][0][:9] == ["X", *["NV18"] * 7, "PIX"]


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["node1", "node2", "node3", "node7"], "node1-node3, node7"),
        (["a", "b"], "a, b"),
        (["n007", "n8"], "n007, n8"),
        ([], ""),
    ],
)
def test_names_in_short(names: list[str], short: str) -> None:
    assert ranges(names).replace("\N{EN DASH}", "-") == short


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "\N{EN DASH}"), (True, "yes"), (1.66, "1.66"), (400, "400"), (1e9, "1,000,000,000")]
)
def test_values_as_people_read_them(value: Any, shown: str) -> None:
    assert display(value) == shown

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The report's document from the files of a run, whatever is missing, broken or hostile in them."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gpurack.errors import GpurackError
from gpurack.report import junit, write
from gpurack.report.html import render
from gpurack.report.model import Report, build, redact
from gpurack.report.read import last_run, natural, read_run
from tests.unit.gpurack.report_data import RUN, Made

KEYS = [
    "checks",
    "evidence",
    "fleet",
    "versions",
    "values",
    "matrix",
    "pairs",
    "rows",
    "culprits",
    "suspects",
    "seconds",
    "verdict",
    "check",
    "subject",
    "value",
    "limit",
    "unit",
    "reason",
    "client",
    "server",
    "rail",
    "client_hca",
    "t_typical_us",
    "loss",
    "bw_gbps",
    "bad",
    "error",
    "command",
    "stdout",
    "stderr",
    "sha256",
    "rc",
    "gates",
    "time",
]
SCHEMA = json.loads((Path(__file__).parents[3] / "gpurack/report/schema.json").read_text())


def report(place: Path) -> Report:
    return build(read_run(place), "now")


def nodes(found: Report) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in found.document["nodes"]}


def pack(path: Path, files: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, raw in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(raw)
            archive.addfile(member, io.BytesIO(raw))


@pytest.fixture
def four(tmp_path: Path) -> Path:
    return Made(4).write(tmp_path)


def test_every_state_of_a_node(tmp_path: Path) -> None:
    found = report(Made(9).write(tmp_path))
    assert {name: node["state"] for name, node in nodes(found).items()} == {
        "node1": "warn",
        "node2": "fail",
        "node3": "fail",
        "node4": "unknown",
        "node5": "unreachable",
        "node6": "no evidence",
        "node7": "warn",
        "node8": "fail",
        "node9": "warn",
    }
    assert nodes(found)["node2"]["reason"] == "nvlink_topology.matrix GPU0-GPU2: NV17, limit NV18"
    assert nodes(found)["node5"]["reason"] == "ssh: connect to host 10.0.0.15 port 22: timed out"
    assert found.document["verdict"] == "fail"
    assert found.document["counts"]["fail"] == 3


def test_a_healthy_rack_passes(tmp_path: Path) -> None:
    found = report(Made(4, healthy=True).write(tmp_path))
    assert found.document["verdict"] == "pass"
    assert found.document["counts"]["pass"] == 4
    assert found.document["findings"] == []


@pytest.mark.parametrize("size", [1, 4, 9])
def test_the_document_is_as_the_schema_says(tmp_path: Path, size: int) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    found = report(Made(size).write(tmp_path))
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(found.document)))


def test_the_same_run_gives_the_same_document(four: Path) -> None:
    assert report(four) == report(four)


def test_fabric_topology_nccl_versions_and_times(tmp_path: Path) -> None:
    document = report(Made(9).write(tmp_path)).document
    fabric = document["fabric"]
    assert [q["key"] for q in fabric["quantities"]] == ["t_typical_us", "p99_us", "loss", "bw_gbps"]
    assert fabric["quantities"][0]["limits"] == [2.15]
    assert fabric["quantities"][3] | {"limit_source": ""} == {
        "key": "bw_gbps",
        "label": "Bandwidth",
        "unit": "Gb/s",
        "gate": "ib_bandwidth",
        "better": "higher",
        "limits": [370.0],
        "limit_source": "",
    }
    # 9 nodes are 36 pairs, on 8 rails.
    assert len(fabric["pairs"]) == 36 * 8
    assert fabric["blamed"] == [
        {"text": "port mlx5_3 of node3 or its cable", "certain": True, "nodes": ["node3"], "hcas": ["mlx5_3"]}
    ]
    bad = {(pair[0], pair[1], pair[2]) for pair in fabric["pairs"] if pair[5]}
    assert {rail for _a, _b, rail in bad} == {3}
    assert all(2 in pair[:2] for pair in bad)
    assert [(group["nodes"], group["bad"]) for group in document["topology"]] == [
        (["node1", "node3", "node4", "node7", "node8", "node9"], []),
        (["node2"], [[0, 2], [2, 0]]),
    ]
    assert document["topology"][1]["cells"][0][2] == "NV17"
    assert document["topology"][1]["differs"] == [[0, 2], [2, 0]]
    assert document["topology"][0]["devices"][8] == "mlx5_0"
    slow = [row for row in document["nccl"] if row["verdict"] == "fail"]
    assert [(row["node"], row["value"], row["floor"]) for row in slow] == [("node8", 287.4, 430.0)]
    versions = {row["fact"]: row for row in document["versions"]}
    assert versions["gpu_driver.version"]["common"] == "580.95.05"
    assert versions["gpu_driver.version"]["groups"][1] == {"value": "580.82.07", "nodes": ["node7"]}
    assert document["values"][0]["odd"] == [{"node": "node8", "value": 287.4}]
    assert document["times"]["steps"][3] == {"step": "BIOS, kernel and firmware", "seconds": 214.0}
    hang = next(gate for gate in document["times"]["gates"] if gate["gate"] == "gpu_health")
    assert (hang["max"], hang["slowest"]) == (180.0, "node4")


def test_two_versions_as_common_as_each_other_have_no_odd_one(tmp_path: Path) -> None:
    place = tmp_path / RUN
    for name, version in (("a", "1"), ("b", "2")):
        gate = {"gate": "ib_port", "evidence": [], "checks": [], "fleet": {"versions": {"ib_port.firmware": version}}}
        pack(place / name / "evidence.tar.gz", {"x/hardware/ib_port.json": json.dumps(gate).encode()})
    (row,) = report(place).document["versions"]
    assert row["common"] is None
    assert [group["value"] for group in row["groups"]] == ["1", "2"]


def test_decisions_alone_are_enough_for_verdicts(four: Path) -> None:
    for archive in four.glob("*/evidence.tar.gz"):
        archive.unlink()
    (four / "nodes.json").unlink()
    (four / "summary.json").unlink()
    found = report(four)
    assert [node["state"] for node in found.document["nodes"]] == ["warn", "fail", "fail", "warn"]
    assert found.document["fabric"]["pairs"] == []
    Draft202012Validator(SCHEMA).validate(found.document)


def test_evidence_without_a_decision_is_not_good(four: Path) -> None:
    (four / "node1" / "hardware.json").unlink()
    node = nodes(report(four))["node1"]
    assert node["state"] == "unknown"
    assert node["stages"]["hardware"]["decided"] is False
    assert node["reason"] == "report.decision hardware: there is evidence, and no decision of this run"


def test_evidence_that_is_not_what_was_decided_on_is_not_good(four: Path) -> None:
    path = four / "node1" / "hardware.json"
    decision = json.loads(path.read_text())
    decision["gates"]["gpu_driver"]["sha256"] = "0" * 64
    path.write_text(json.dumps(decision))
    node = nodes(report(four))["node1"]
    assert node["state"] == "unknown"
    assert "gpu_driver: the fetched evidence has SHA-256 " in node["reason"]


def test_a_decision_whose_verdict_is_not_its_worst_check_is_not_good(tmp_path: Path) -> None:
    place = Made(4, healthy=True).write(tmp_path)
    path = place / "node1" / "hardware.json"
    decision = json.loads(path.read_text())
    decision["verdict"] = "fail"
    path.write_text(json.dumps(decision))
    assert nodes(report(place))["node1"]["state"] == "unknown"


def test_a_stage_that_only_others_went_through_is_not_good(tmp_path: Path) -> None:
    place = Made(4, healthy=True).write(tmp_path)
    (place / "node1" / "serving.json").unlink()
    (place / "node1" / "evidence.tar.gz").unlink()
    node = nodes(report(place))["node1"]
    assert node["state"] == "unknown"
    assert "other nodes have a decision of the stage serving" in node["reason"]


@pytest.mark.parametrize(
    "spoiled",
    [
        b"",
        b"{",
        b"[]",
        b'{"run": "20200101T000000Z", "stage": "hardware", "gates": {"a": {}}}',
        b"\xff\xfe",
        b"[" * 99999,
    ],
    ids=["empty", "cut off", "a list", "of another run", "no text", "nested deep"],
)
def test_a_decision_that_cannot_be_read_is_not_good(tmp_path: Path, spoiled: bytes) -> None:
    place = Made(2, healthy=True).write(tmp_path)
    (place / "node1" / "hardware.json").write_bytes(spoiled)
    found = report(place)
    assert nodes(found)["node1"]["state"] == "unknown"
    Draft202012Validator(SCHEMA).validate(found.document)


def test_an_archive_that_is_cut_off_is_not_good(tmp_path: Path) -> None:
    place = Made(2, healthy=True).write(tmp_path)
    archive = place / "node1" / "evidence.tar.gz"
    archive.write_bytes(archive.read_bytes()[:3000])
    assert nodes(report(place))["node1"]["state"] == "unknown"


def test_a_small_archive_that_unpacks_to_very_much_ends_soon(tmp_path: Path) -> None:
    place = tmp_path / RUN
    archive = place / "n1" / "evidence.tar.gz"
    archive.parent.mkdir(parents=True)
    member = tarfile.TarInfo("x/hardware/other.bin")
    member.size = 1 << 40
    with gzip.open(archive, "wb", 9) as stream:
        stream.write(member.tobuf())
        for _unused in range(300):
            stream.write(bytes(1 << 20))
    (problem,) = [c["reason"] for c in nodes(report(place))["n1"]["checks"]]
    assert "more than 256 MiB" in problem


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    place = tmp_path / RUN
    (place / "n1").mkdir(parents=True)
    for name in ("nodes.json", "summary.json", "n1/hardware.json", "n1/evidence.tar.gz"):
        os.mkfifo(place / name)
    reasons = [c["reason"] for c in nodes(report(place))["n1"]["checks"]]
    assert any("evidence.tar.gz cannot be read" in reason for reason in reasons)
    assert nodes(report(place))["n1"]["state"] == "unknown"


def test_a_name_with_a_number_of_any_length_and_a_flood_of_suspects(tmp_path: Path) -> None:
    place = tmp_path / RUN
    rows = [{"client": f"n{'1' * 6000}", "server": "n2", "client_hca": "9" * 5000, "t_typical_us": 2.0}]
    gate = {
        "gate": "ib_latency",
        "evidence": [],
        "checks": [],
        "matrix": rows,
        "suspects": [str(n) for n in range(9000)],
    }
    pack(place / "n1" / "evidence.tar.gz", {"x/hardware/ib_latency.json": json.dumps(gate).encode()})
    fabric = report(place).document["fabric"]
    assert len(fabric["nodes"]) == 3
    assert len(fabric["blamed"]) == 2000
    assert sorted(["n10", "n9", "n²", "n09"], key=natural) == ["n9", "n09", "n10", "n²"]


def test_an_archive_is_never_unpacked_and_other_members_are_ignored(tmp_path: Path) -> None:
    place = tmp_path / RUN
    pack(
        place / "n1" / "evidence.tar.gz",
        {
            "../../../escape/hardware/x.json": b'{"gate": "x", "checks": [], "evidence": []}',
            "/etc/passwd": b"root",
            "a/hardware/y.json": b'{"gate": "z"}',
            "a/other/y.json": b'{"gate": "y"}',
        },
    )
    found = report(place)
    assert not (tmp_path.parent / "escape").exists()
    assert sorted(p.name for p in place.rglob("*")) == ["evidence.tar.gz", "n1"]
    assert [check["reason"] for check in nodes(found)["n1"]["checks"] if check["check"] == "report.files"] == [
        "hardware/y.json is not the evidence of y"
    ]


@pytest.mark.parametrize(
    "junk", [None, 1, "x", [], {}, [[]], [None], {"a": 1}, [{"verdict": 5, "check": [], "value": {"x": 1e999}}]]
)
def test_odd_structures_never_raise_and_never_pass(tmp_path: Path, junk: Any) -> None:
    keys = ("checks", "evidence", "fleet", "matrix", "pairs", "culprits", "seconds")
    gate = json.dumps({"gate": "ib_port", "verdict": "pass", **dict.fromkeys(keys, junk)}).encode()
    place = tmp_path / RUN
    pack(place / "n1" / "evidence.tar.gz", {"x/hardware/ib_port.json": gate})
    decision = {"run": RUN, "stage": "hardware", "verdict": "pass", "gates": {"ib_port": junk}, "checks": junk}
    (place / "n1" / "hardware.json").write_text(json.dumps(decision))
    (place / "summary.json").write_text(json.dumps({"nodes": junk, "steps": junk, "seconds": junk}))
    found = report(place)
    assert nodes(found)["n1"]["state"] == "unknown"
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(found.document)))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8) | st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(evidence=st.dictionaries(st.sampled_from(KEYS), JSON), decision=st.dictionaries(st.sampled_from(KEYS), JSON))
def test_no_structure_raises_or_passes_by_itself(
    tmp_path: Path, evidence: dict[str, Any], decision: dict[str, Any]
) -> None:
    place = tmp_path / RUN
    raw = json.dumps({**evidence, "gate": "ib_port"}).encode()
    pack(place / "n1" / "evidence.tar.gz", {"x/hardware/ib_port.json": raw})
    stored = {"verdict": "pass", **decision, "run": RUN, "stage": "hardware", "gates": {"ib_port": {}}}
    (place / "n1" / "hardware.json").write_text(json.dumps(stored))
    found = report(place)
    # The decision names no digest of the evidence that is here, so that nothing can be good.
    assert nodes(found)["n1"]["state"] == "unknown"
    Draft202012Validator(SCHEMA).validate(json.loads(json.dumps(found.document)))
    render(found)
    ET.fromstring(junit.render(found))


def test_an_output_that_does_not_match_its_digest_is_told(tmp_path: Path) -> None:
    place = tmp_path / RUN
    reading = {"command": "ibstat", "rc": 0, "stdout": "changed", "sha256": "0" * 64}
    gate = {"gate": "ib_port", "checks": [], "evidence": [reading]}
    pack(place / "n1" / "evidence.tar.gz", {"x/hardware/ib_port.json": json.dumps(gate).encode()})
    reasons = [check["reason"] for check in nodes(report(place))["n1"]["checks"]]
    assert "the output of ibstat does not match the SHA-256 stored with it" in reasons


def test_a_node_that_was_out_before_any_gate(four: Path) -> None:
    summary = json.loads((four / "summary.json").read_text())
    out = {"kind": "quarantined", "stage": "firmware", "check": "Set the BIOS", "reason": "no answer of the BMC"}
    summary["nodes"] |= {
        "node9": {"out": out},
        "head1": {"out": None},
        "head2": {"out": {**out, "kind": "unreachable"}},
    }
    (four / "summary.json").write_text(json.dumps(summary))
    found = nodes(report(four))
    assert (found["node9"]["state"], found["node9"]["reason"]) == (
        "fail",
        "out at firmware, Set the BIOS: no answer of the BMC",
    )
    assert found["head2"]["state"] == "unreachable"
    assert "head1" not in found


def test_a_node_that_went_out_after_good_gates_is_not_good(tmp_path: Path) -> None:
    place = Made(2, healthy=True).write(tmp_path)
    summary = json.loads((place / "summary.json").read_text())
    summary["nodes"]["node1"]["out"] = {"kind": "quarantined", "stage": "join", "check": "Join", "reason": "refused"}
    (place / "summary.json").write_text(json.dumps(summary))
    assert nodes(report(place))["node1"]["state"] == "fail"


def test_what_could_not_be_fetched_is_not_good(tmp_path: Path) -> None:
    place = Made(2, healthy=True).write(tmp_path)
    (place / "node1" / "evidence.tar.gz").unlink()
    state = {"node1": {"state": "failed", "message": "No space left on device"}}
    (place / "nodes.json").write_text(json.dumps({"run": RUN, "nodes": state}))
    node = nodes(report(place))["node1"]
    assert (node["state"], node["reason"]) == (
        "unknown",
        "report.files node1: the evidence could not be fetched: No space left on device",
    )


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("Authorization: Bearer abcdef1234567890", "Authorization: Bearer [redacted]"),
        ("CONSUL_HTTP_TOKEN=3c1f6b1a-aaaa-bbbb x", "CONSUL_HTTP_TOKEN=[redacted] x"),
        ('"HF_TOKEN": "hf_abcdefgh"', '"HF_TOKEN": "[redacted]"'),
        ("vllm serve --api-key sk-abcdefgh m", "vllm serve --api-key [redacted] m"),
        ("https://u:hunter2hunter2@h/x", "https://u:[redacted]@h/x"),
        ("http://127.0.0.1:8500/v1/health", "http://127.0.0.1:8500/v1/health"),
        ("first_token: measured 0.2 s", "first_token: measured 0.2 s"),
        ("X-Consul-Token: 3c1f6b1a-aaaa-bbbb", "X-Consul-Token: [redacted]"),
        ('{"password": "hunter2hunter2"}', '{"password": "[redacted]"}'),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----", "[redacted]"),
        ("-----BEGIN PRIVATE KEY-----\nabc", "[redacted]"),
        ("completion_tokens: 1, token: 12345678", "completion_tokens: 1, token: 12345678"),
        ("GPU0 NV18", "GPU0 NV18"),
    ],
)
def test_what_looks_like_a_credential_is_not_shown(given: str, kept: str) -> None:
    assert redact(given) == kept


def test_junit_has_every_check(tmp_path: Path) -> None:
    found = report(Made(9).write(tmp_path))
    root = ET.fromstring(junit.render(found))
    checks = sum(len(node["checks"]) for node in found.document["nodes"])
    # The unreachable node and the one without evidence have no check, and a case of their own.
    assert int(root.get("tests", 0)) == checks + 2 == len(root.findall(".//testcase"))
    assert int(root.get("errors", 0)) == 3
    fails = sum(1 for finding in found.document["findings"] if finding["verdict"] == "fail")
    assert int(root.get("failures", 0)) == fails == len(root.findall(".//failure"))
    case = root.find(".//testcase[@name='nvlink_topology.matrix GPU0-GPU2']")
    assert case is not None
    assert case.get("classname") == "node2.hardware.nvlink_topology"
    assert case.find("failure").get("message") == "NV17, limit NV18"  # type: ignore[union-attr]
    warned = root.find(".//testcase[@classname='node7.hardware.gpu_health']/system-out")
    assert warned is not None
    assert str(warned.text).startswith("warn: SW power cap")


def test_junit_is_xml_whatever_a_node_wrote(tmp_path: Path) -> None:
    hostile = "]]>\x00\x1b[31m<![CDATA[ \udc80 &amp; \ufffe"
    root = ET.fromstring(junit.render(report(Made(2, hostile=hostile).write(tmp_path))))
    assert root.find(".//failure") is not None


def test_write_makes_private_files(four: Path, tmp_path: Path) -> None:
    found = write(four, tmp_path / "there")
    assert [node["node"] for node in found["out"]] == ["node2", "node3"]
    for path in map(Path, found["files"].values()):
        assert path.parent == tmp_path / "there"
        assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(Path(found["files"]["json"]).read_text())["run"] == RUN


def test_write_says_where_it_may_not_write(four: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(GpurackError, match=r"cannot be written: .*--output"):
        write(four, tmp_path / "file")


def test_the_last_run(tmp_path: Path) -> None:
    for name in ("20261130T000000Z", "20261201T000000Z", "zzz"):
        (tmp_path / name).mkdir()
    (tmp_path / "20270101T000000Z").write_text("a file")
    assert last_run(tmp_path) == "20261201T000000Z"
    with pytest.raises(GpurackError, match="there is none"):
        last_run(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["../20261130T000000Z/x", "latest", "20261130T000000Z"])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(GpurackError, match="run "):
        read_run(tmp_path / name)


def test_names_sort_as_people_count() -> None:
    assert sorted(["n10", "n2", "n", "2"], key=natural) == ["2", "n", "n2", "n10"]

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Every gate's stored evidence is judged again with the same checks, whatever it was made from."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import (
    clock_sync,
    gpu_driver,
    ib_port,
    inference_units,
    nvlink_topology,
    subnet_manager_state,
    token_probe,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.module_runner import Run, runner

FIXTURES = Path(__file__).parents[2] / "fixtures"
Gate = tuple[ModuleType, dict[str, Any]]
BOARD = {"profile": "hgx_h100_8"}
HCAS = [f"mlx5_{i}" for i in range(8)]
DRIVER: Gate = (gpu_driver, {"version": "580.95.05", "fabric_manager": True, "gpus": 8})
PORTS: Gate = (ib_port, {"hcas": HCAS, "rate": 400})
TOKEN: Gate = (
    token_probe,
    {"units": [{"id": "node1-iu0", "address": "10.0.0.1", "port": 8000, "model": "m"}]},
)
READING = json.dumps(
    {
        "model": "m",
        "health": {"status": 200, "body": "", "error": "", "seconds": 0.001},
        "completion": {
            "status": 200,
            "body": json.dumps({"choices": [{"text": " a"}], "usage": {"completion_tokens": 1}}),
            "error": "",
            "seconds": 0.0124,
        },
    }
)
SMINFO = "sminfo: sm lid 1 sm guid 0xe8ebd30300530011, activity count 490 priority 14 state 3 SMINFO_MASTER\n"
# One captured text each: good, bad and unreadable ones.
FILES: dict[str, tuple[Gate, str]] = {
    **{
        f"topology {name}": ((nvlink_topology, BOARD), f"nvidia-smi-{name}.txt")
        for name in (
            "460-topo-formC-hgx8",
            "535-topo-formE-hgx8",
            "580-topo-formG-hgx8",
            "570-topo-formF-nvl4",
            "570-topo-p2p",
        )
    },
    **{
        f"clock {name}": ((clock_sync, {}), f"chrony-{name}")
        for name in (
            "4.3-tracking.csv",
            "4.3-tracking.txt",
            "4.3-tracking-local.csv",
            "4.3-tracking-unsynchronised.csv",
            "3.5-tracking-unsynchronised.txt",
            "2.1-tracking.txt",
            "3.4-sources-v.txt",
            "4.6-sources-disagree.txt",
        )
    },
    "driver": (DRIVER, "nvidia-smi-580.95.05-q-hgx8.txt"),
    "ports": (PORTS, "infiniband-diags-44.0-ibstat-8xndr.txt"),
    "ports mixed": (PORTS, "infiniband-diags-44.0-ibstat-mixed.txt"),
    "ports of something else": (PORTS, "nvidia-smi-570-topo-p2p.txt"),
    "driver of something else": (DRIVER, "chrony-4.3-tracking.txt"),
    "units": ((inference_units, BOARD), "nvidia-smi-580-topo-formG-hgx8.txt"),
}


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> dict[ModuleType, Run]:
    """Return a function for each module that runs it."""
    modules = {gate[0] for gate, _file in FILES.values()} | {subnet_manager_state, token_probe}
    return {module: runner(module, capsys) for module in modules}


def judge_twice(run: Run, place: Path, captured: str | None, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Judge, and judge the stored evidence again, and the evidence of that; return what each one said."""
    said: list[dict[str, Any]] = []
    for step in range(3):
        directory = place / f"evidence{step}"
        source = {} if captured is None else {"captured": captured}
        said.append(run(evidence_dir=str(directory), enforce=False, **source, **options))
        (stored,) = directory.iterdir()
        captured = str(stored)
    return said


def assert_same(said: list[dict[str, Any]]) -> None:
    first = said[0]
    for again in said[1:]:
        assert again["checks"] == first["checks"]
        assert (again["verdict"], again["summary"]) == (first["verdict"], first["summary"])


@pytest.mark.parametrize(("gate", "file"), FILES.values(), ids=FILES.keys())
def test_a_captured_file_gives_evidence_that_is_judged_alike(
    run: dict[ModuleType, Run], gate: Gate, file: str, tmp_path: Path
) -> None:
    module, options = gate
    said = judge_twice(run[module], tmp_path, str(FIXTURES / file), options)
    assert_same(said)


@pytest.mark.parametrize(("gate", "file"), FILES.values(), ids=FILES.keys())
def test_a_compressed_file_of_another_system_is_judged_alike(
    run: dict[ModuleType, Run], gate: Gate, file: str, tmp_path: Path
) -> None:
    module, options = gate
    text = (FIXTURES / file).read_text()
    (tmp_path / "plain").write_text(text)
    plain = run[module](captured=str(tmp_path / "plain"), enforce=False, **options)
    (tmp_path / "plain").write_bytes(gzip.compress(text.replace("\n", "\r\n").encode("utf-16")))
    assert run[module](captured=str(tmp_path / "plain"), enforce=False, **options)["checks"] == plain["checks"]


def bundle(place: Path) -> Path:
    """Make a bundle with the file names of all these gates."""
    names = {
        "topo.txt": "nvidia-smi-580-topo-formG-hgx8.txt",
        "nvidia-smi-topo.txt": "nvidia-smi-580-topo-formG-hgx8.txt",
        "query-gpu.csv": "nvidia-smi-580-query-gpu-hgx8.csv",
        "nvidia-smi-q.txt": "nvidia-smi-580.95.05-q-hgx8.txt",
        "ibstat.txt": "infiniband-diags-44.0-ibstat-8xndr.txt",
        "tracking.txt": "chrony-4.3-tracking.csv",
        "sources.txt": "chrony-4.3-sources.csv",
    }
    place.mkdir()
    for name, fixture in names.items():
        (place / name).write_text((FIXTURES / fixture).read_text())
    texts = {
        "date.txt": "1764525042\n",
        "numa.json": json.dumps({"nodes": {"0": "0-55,112-167", "1": "56-111,168-223"}, "gpus": {}, "cores": {}}),
        "node1-iu0.json": READING,
        "node1-iu0.systemctl.txt": "ActiveState=active\nSubState=running\nResult=success\nNRestarts=0\n",
        "sminfo": SMINFO,
        "systemctl": "ActiveState=active\nSubState=running\nInvocationID=0123\n",
        "ibstat": "0x00e8ebd30300530011\n",
        "journal": "OpenSM 3.3.23\nEntering MASTER state\n",
        "opensm.conf": "routing_engine updn\n",
        "systemctl-show-fabricmanager.txt": "ActiveState=active\nMainPID=812\n"
        "ExecMainStartTimestampMonotonic=5000000\n",
        "uptime.txt": "500.00 1.0\n",
        "stat-fabricmanager-list.txt": "1764500000\n",
        "dpkg-query-fabricmanager.txt": "installed 580.95.05-1\n",
        "nv-fabricmanager-version.txt": "Fabric Manager version is : 580.95.05\n",
    }
    for name, text in texts.items():
        (place / name).write_text(text)
    return place


BUNDLED: dict[str, Gate] = {
    "nvlink_topology": (nvlink_topology, {**BOARD, "hcas": HCAS}),
    "clock_sync": (clock_sync, {"servers": ["172.31.77.10"]}),
    "gpu_driver": DRIVER,
    "ib_port": PORTS,
    "inference_units": (inference_units, {**BOARD, "hcas": HCAS}),
    "subnet_manager": (subnet_manager_state, {}),
    "token_probe": TOKEN,
}


@pytest.mark.parametrize(("module", "options"), BUNDLED.values(), ids=BUNDLED.keys())
def test_a_bundle_gives_evidence_that_is_judged_alike(
    run: dict[ModuleType, Run], module: ModuleType, options: dict[str, Any], tmp_path: Path
) -> None:
    said = judge_twice(run[module], tmp_path, str(bundle(tmp_path / "bundle")), options)
    assert_same(said)
    # The counters of the ports are no part of this bundle.
    assert said[0]["verdict"] in ("pass", "warn") or module is ib_port, said[0]["summary"]


LIVE: dict[str, Gate] = {n: g for n, g in BUNDLED.items() if n not in ("token_probe", "ib_port")}
FAKES = {
    "nvidia-smi": f'case "$*" in *topo*) cat {FIXTURES}/nvidia-smi-580-topo-formG-hgx8.txt;; '
    f"*query-gpu*) cat {FIXTURES}/nvidia-smi-580-query-gpu-hgx8.csv;; "
    f"*) cat {FIXTURES}/nvidia-smi-580.95.05-q-hgx8.txt;; esac",
    "chronyc": f'case "$*" in *tracking) cat {FIXTURES}/chrony-4.3-tracking.csv;; '
    f"*) cat {FIXTURES}/chrony-4.3-sources.csv;; esac",
    "date": "echo 1764525042",
    "sminfo": f"printf '%s' '{SMINFO}'",
    "systemctl": "echo ActiveState=active; echo InvocationID=0123; echo MainPID=77",
    "journalctl": "echo 'OpenSM 3.3.23'; echo warn >&2",
    "ibstat": "echo 0x00e8ebd30300530011",
    "readlink": "echo oops >&2; exit 1",
    "dpkg-query": "echo 'installed 580.95.05-1'",
    "nv-fabricmanager": "echo 'Fabric Manager version is : 580.95.05'",
    "stat": "echo 1764525000",
    "cat": 'exec /bin/cat "$@"',
}


@pytest.mark.parametrize("broken", [None, "nvidia-smi", "chronyc", "sminfo", "systemctl", "journalctl", "ibstat"])
@pytest.mark.parametrize(("module", "options"), LIVE.values(), ids=LIVE.keys())
def test_a_live_reading_is_judged_alike_from_its_evidence(
    run: dict[ModuleType, Run],
    module: ModuleType,
    options: dict[str, Any],
    broken: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "bin").mkdir()
    for name, body in FAKES.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{'echo half; exit 3' if name == broken else body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    quick = {"wait": 0} if module is subnet_manager_state else {}
    assert_same(judge_twice(run[module], tmp_path, None, {**options, **quick}))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_evidence_never_passes(run: dict[ModuleType, Run], tmp_path: Path, data: st.DataObject) -> None:
    """Cut, flip or take out anywhere: the stored file is then no evidence, or it holds what it held before."""
    module, options = data.draw(st.sampled_from([BUNDLED["nvlink_topology"], BUNDLED["clock_sync"]]))
    place = tmp_path / module.__name__.rpartition(".")[2]
    if not place.exists():
        run[module](captured=str(bundle(tmp_path / f"{place.name}-bundle")), evidence_dir=str(place), **options)
    (stored,) = place.iterdir()
    content = stored.read_bytes()
    at = data.draw(st.integers(0, len(content) - 3))
    how = data.draw(st.sampled_from(["cut", "flip", "take"]))
    changed = {
        "cut": content[:at],
        "flip": content[:at] + bytes([data.draw(st.integers(0, 255))]) + content[at + 1 :],
        "take": content[:at] + content[at + data.draw(st.integers(1, 400)) :],
    }[how]
    damaged = tmp_path / "damaged.json"
    damaged.write_bytes(changed)
    got = run[module](captured=str(damaged), enforce=False, **options)
    if got["verdict"] in ("pass", "warn"):
        assert json.loads(changed.decode("utf-8-sig", "replace")) == json.loads(content)

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The gates xid, kernel_params, numa_binding and cpu_idle on stand-in tools, on captures and on their own evidence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.modules import cpu_idle, kernel_params, numa_binding, xid

from tests.unit.module_runner import Run, runner

FIXTURES = Path(__file__).parents[2] / "fixtures"
CLEAN = FIXTURES / "dmesg-2.38-clean-hgx8.txt"
ECC = FIXTURES / "dmesg-2.38-ecc-hgx8.txt"
BOUND = FIXTURES / "linux-6.1-numa_maps-bound.txt"
REMOTE = FIXTURES / "linux-6.1-numa_maps-22-percent-remote.txt"
STATUS = FIXTURES / "linux-6.1-status-vllm.txt"
LSPCI = FIXTURES / "pciutils-3.9-lspci-vvv-acs-off.txt"


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a directory for stand-in tools first on PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    return directory


def write(tools: Path, name: str, body: str) -> None:
    (tools / name).write_text(f"#!/bin/sh\n{body}\n")
    (tools / name).chmod(0o755)


# --- xid


@pytest.fixture
def run_xid(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(xid, capsys)


def node_log(tools: Path, journal: str, dmesg: str) -> None:
    write(tools, "journalctl", journal)
    write(tools, "dmesg", dmesg)
    write(tools, "nvidia-smi", "echo '5, GPU-9c1d, 00000000:9B:00.0'")


def test_the_journal_is_enough(run_xid: Run, tools: Path) -> None:
    node_log(tools, f"sed 's/\\] /] node1 kernel: /' {ECC}", "exit 1")
    got = run_xid(enforce=False)
    assert (got["gate"], got["verdict"]) == ("xid", "fail")
    assert [(e["xid"], e["gpu"]) for e in got["events"]][:2] == [(31, ""), (48, "5")]
    assert got["xids"] == [31, 45, 48, 63, 94, 154]
    assert "GPU 5 0000:9b:00" in got["summary"]
    assert "reset the GPU" in got["summary"]


@pytest.mark.parametrize(
    ("journal", "dmesg", "verdict"),
    [
        ("echo '-- No entries --'", f"cat {CLEAN}", "pass"),
        (f"tail -n 3 {CLEAN}", f"cat {CLEAN}", "pass"),
        (f"tail -n 3 {ECC}", f"tail -n 5 {CLEAN}", "fail"),
        (f"tail -n 3 {CLEAN}", f"tail -n 5 {CLEAN}", "unknown"),
        ("exit 0", "exit 0", "unknown"),
        ("exit 1", "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1", "unknown"),
        ("sleep 99", "sleep 99", "unknown"),
    ],
)
def test_which_log_is_judged(run_xid: Run, tools: Path, journal: str, dmesg: str, verdict: str) -> None:
    node_log(tools, journal, dmesg)
    assert run_xid(enforce=False, timeout=0.3 if journal == "sleep 99" else 30)["verdict"] == verdict


def test_new_errors_since_an_earlier_run(run_xid: Run, tools: Path, tmp_path: Path) -> None:
    node_log(tools, f"cat {CLEAN}", "exit 1")
    assert run_xid(evidence_dir=str(tmp_path / "before"))["verdict"] == "pass"
    more = tmp_path / "more"
    more.write_text(CLEAN.read_text() + "[ 99.0] NVRM: Xid (PCI:0000:9b:00): 31, pid=1\n")
    node_log(tools, f"cat {more}", "exit 1")
    before = str(tmp_path / "before/xid.json")
    assert run_xid()["verdict"] == "warn"
    got = run_xid(before=before, enforce=False)
    assert [c["subject"] for c in got["checks"] if c["check"] == "xid.growth"] == ["GPU 5 0000:9b:00"]
    assert got["verdict"] == "warn"
    assert run_xid(before=str(tmp_path / "none.json"), enforce=False)["verdict"] == "unknown"


def test_a_stored_log_and_stored_evidence(run_xid: Run, tmp_path: Path) -> None:
    assert run_xid(captured=str(CLEAN))["verdict"] == "pass"
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "dmesg.txt").write_text(ECC.read_text())
    first = run_xid(captured=str(bundle), evidence_dir=str(tmp_path / "e"), enforce=False)
    again = run_xid(captured=str(tmp_path / "e/xid.json"), enforce=False)
    assert first["verdict"] == again["verdict"] == "fail"
    assert first["checks"] == again["checks"]


def test_what_an_earlier_run_had_read_need_not_be_in_the_log(run_xid: Run, tools: Path, tmp_path: Path) -> None:
    last = tmp_path / "last/xid.json"
    log = tmp_path / "log"
    log.write_text(CLEAN.read_text() + "[ 5000.0] eth0: up\n")
    node_log(tools, f"cat {log}", "exit 1")
    assert run_xid(last=str(last), since=60.0)["verdict"] == "pass"
    assert not last.exists()
    assert run_xid(last=str(last))["verdict"] == "pass"
    assert json.loads(last.read_text())["read_until"] == 5000.0
    log.write_text("[ 4000.0] eth0: down\n[ 9000.0] NVRM: Xid (PCI:0000:9b:00): 31, pid=1\n")
    assert run_xid(enforce=False)["verdict"] == "unknown"
    got = run_xid(last=str(last))
    assert [(c["check"], c["verdict"]) for c in got["checks"]] == [("xid.log", "pass"), ("xid.event", "warn")]
    assert json.loads(last.read_text())["read_until"] == 9000.0
    log.write_text("[ 8000.0] eth0: down\n[ 9500.0] NVRM: Xid (PCI:0000:9b:00): 79, x\n")
    assert run_xid(last=str(last), enforce=False)["verdict"] == "fail"
    log.write_text("[ 8950.0] eth0: down\n[ 9600.0] eth0: up\n")
    assert run_xid(last=str(last), enforce=False)["verdict"] == "unknown", "the run that failed is not remembered"
    log.write_text("[ 8000.0] eth0: down\n")
    last.write_text(last.read_text().replace('"boot": "', '"boot": "x'))
    assert run_xid(last=str(last), enforce=False)["verdict"] == "unknown", "another boot"
    last.write_text("[")
    assert run_xid(last=str(last), enforce=False)["verdict"] == "unknown"
    log.write_text(CLEAN.read_text())
    assert "xid.json" in run_xid(last=str(log / "xid.json"), enforce=False)["msg"]


def test_the_window_is_an_option(run_xid: Run) -> None:
    assert run_xid(captured=str(ECC), since=60.0, enforce=False)["verdict"] == "fail"
    assert run_xid(captured=str(ECC), since=-1.0)["failed"]


# --- kernel_params


@pytest.fixture
def run_kernel(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(kernel_params, capsys)


def test_a_running_node(run_kernel: Run, tools: Path) -> None:
    write(tools, "cat", 'case $1 in /proc/cmdline) echo ro intel_idle.max_cstate=0;; *) exec /bin/cat "$@";; esac')
    write(tools, "uname", "echo 6.1.0-40-amd64")
    write(tools, "sysctl", "echo 'kernel.numa_balancing = 0'; echo 'sysctl: cannot stat /proc/sys/x' >&2; exit 255")
    options: dict[str, Any] = {"parameters": ["intel_idle.max_cstate=0"], "sysctls": {"kernel.numa_balancing": False}}
    got = run_kernel(**options)
    assert (got["verdict"], got["reboot_required"]) == ("pass", False)
    assert got["fleet"]["versions"] == {"kernel_params.release": "6.1.0-40-amd64"}
    got = run_kernel(parameters=["processor.max_cstate=1"], release="6.1.0-41-amd64", enforce=False)
    assert (got["verdict"], got["reboot_required"]) == ("fail", True)
    assert run_kernel(sysctls={"vm.x": 1}, enforce=False)["verdict"] == "unknown"


def test_a_node_without_a_command_line(run_kernel: Run, tools: Path) -> None:
    write(tools, "cat", "sleep 99")
    assert run_kernel(parameters=["a=1"], timeout=0.5, enforce=False)["verdict"] == "unknown"


@pytest.mark.parametrize("word", ["", "=1", "a b", '"a"=1'])
@pytest.mark.parametrize("option", ["parameters", "forbidden"])
def test_a_word_that_is_no_parameter_is_refused(run_kernel: Run, option: str, word: str) -> None:
    assert run_kernel(**{option: [word]})["msg"].startswith(f"{option}: {word!r} is no kernel parameter")


@pytest.mark.parametrize("option", [{"sysctls": {"a b": 1}}, {"sysctls": {"a.b": []}}, {"module_parameters": {"x": 1}}])
def test_options_that_cannot_be_meant(run_kernel: Run, option: dict[str, Any]) -> None:
    assert run_kernel(captured=str(LSPCI), **option)["failed"]


def test_one_file_and_a_bundle(run_kernel: Run, tmp_path: Path) -> None:
    assert run_kernel(captured=str(LSPCI), acs="off")["verdict"] == "pass"
    assert run_kernel(captured=str(LSPCI), acs="off", parameters=["a=1"])["verdict"] == "pass"
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    (bundle / "cmdline.txt").write_text("ro a=1\n")
    assert run_kernel(captured=str(bundle), parameters=["a=1"])["verdict"] == "pass"
    for option in ({"acs": "off"}, {"governor": "performance"}, {"release": "6.1"}, {"transparent_hugepages": "never"}):
        assert run_kernel(captured=str(bundle), enforce=False, **option)["verdict"] == "unknown"
    (bundle / "lspci-vvv.txt").write_text(LSPCI.read_text())
    assert run_kernel(captured=str(bundle), acs="off")["verdict"] == "pass"


# --- numa_binding


@pytest.fixture
def run_numa(capsys: pytest.CaptureFixture[str]) -> Run:
    return runner(numa_binding, capsys)


def unit_file(place: Path) -> None:
    gpus = [{"index": 0, "uuid": "GPU-0"}]
    unit = {"id": "iu0", "port": 8000, "numa_node": 0, "cpus": "0-27", "gpus": gpus, "nics": []}
    place.write_text(json.dumps({"units": [unit]}))


def bundle_of(tmp_path: Path) -> Path:
    bundle = tmp_path / "bundle"
    bundle.mkdir()
    unit_file(bundle / "inference_units.json")
    (bundle / "iu0.systemctl.txt").write_text("ActiveState=active\nMainPID=7\nControlGroup=/system.slice/x.service\n")
    (bundle / "iu0.cgroup.procs.txt").write_text("7\n8\n")
    for pid in (7, 8):
        (bundle / f"status-{pid}.txt").write_text(STATUS.read_text())
        (bundle / f"numa_maps-{pid}.txt").write_text(BOUND.read_text())
    return bundle


def test_a_bundle_of_a_bound_unit(run_numa: Run, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path)
    got = run_numa(captured=str(bundle))
    assert (got["verdict"], len(got["checks"])) == ("pass", 7)
    assert run_numa(captured=str(bundle), node=0, cpus="0-27")["verdict"] == "pass"
    assert run_numa(captured=str(bundle), node=1, cpus="56-83", enforce=False)["verdict"] == "fail"
    assert run_numa(captured=str(bundle), binding="engine")["verdict"] == "pass"
    (bundle / "numa_maps-8.txt").write_text(REMOTE.read_text())
    got = run_numa(captured=str(bundle), enforce=False)
    assert got["verdict"] == "fail"
    assert "iu0 pid 8 (VLLM::Worker_TP): fail, measured 78.07 %, limit 95.0 %" in got["summary"]
    assert run_numa(captured=str(bundle), min_local=0.7)["verdict"] == "warn"
    (bundle / "numa_maps-8.txt").unlink()
    assert run_numa(captured=str(bundle), enforce=False)["verdict"] == "unknown"


def test_a_unit_over_several_numa_nodes(run_numa: Run, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path)
    units = json.loads((bundle / "inference_units.json").read_text())
    units["units"][0] |= {"numa_node": None, "numa_nodes": [0, 1], "cpus": "0-55"}
    (bundle / "inference_units.json").write_text(json.dumps(units))
    got = run_numa(captured=str(bundle), enforce=False)
    assert (got["verdict"], len(got["checks"])) == ("unknown", 1)
    assert "vllm_iu_binding: engine" in got["checks"][0]["remedy"]
    got = run_numa(captured=str(bundle), binding="engine", enforce=False)
    assert [c["check"] for c in got["checks"] if c["verdict"] == "fail"] == ["numa_binding.spread"]
    assert "no worker is on node 1" in got["summary"]
    (bundle / "numa_maps-8.txt").write_text(BOUND.read_text().replace("bind:0", "bind:1").replace(" N0=", " N1="))
    got = run_numa(captured=str(bundle), binding="engine")
    assert got["verdict"] == "pass"
    assert any("iu0 (one of nodes 0-1) pid 8" in c["subject"] and c["limit"] == "bind:1" for c in got["checks"])
    (bundle / "numa_maps-8.txt").write_text(BOUND.read_text().replace("bind:0", "bind:0-1"))
    assert run_numa(captured=str(bundle), binding="engine", enforce=False)["verdict"] == "fail"
    (bundle / "numa_maps-8.txt").write_text(REMOTE.read_text())
    assert run_numa(captured=str(bundle), binding="engine", enforce=False)["verdict"] == "fail"
    (bundle / "numa_maps-8.txt").write_text(BOUND.read_text().replace("bind:0", "bind:2").replace(" N0=", " N2="))
    got = run_numa(captured=str(bundle), binding="engine", enforce=False)
    assert {c["check"] for c in got["checks"] if c["verdict"] == "fail"} == {
        "numa_binding.policy",
        "numa_binding.local_memory",
        "numa_binding.spread",
    }
    (bundle / "numa_maps-8.txt").write_text("")
    got = run_numa(captured=str(bundle), binding="engine", enforce=False)
    assert [c["verdict"] for c in got["checks"] if c["check"] == "numa_binding.spread"] == ["unknown"]


def test_a_bundle_of_another_engine_has_no_worker(run_numa: Run, tmp_path: Path) -> None:
    bundle = bundle_of(tmp_path)
    for pid in (7, 8):
        (bundle / f"status-{pid}.txt").write_text(STATUS.read_text().replace("VLLM::Worker_TP", "python3"))
    assert run_numa(captured=str(bundle), binding="engine", enforce=False)["verdict"] == "unknown"


@pytest.mark.parametrize(("name", "text"), [("inference_units.json", "{}"), ("iu0.cgroup.procs.txt", "x\n")])
def test_a_bundle_that_cannot_be_read(run_numa: Run, tmp_path: Path, name: str, text: str) -> None:
    bundle = bundle_of(tmp_path)
    (bundle / name).write_text(text)
    assert run_numa(captured=str(bundle), enforce=False)["verdict"] == "unknown"


def test_one_file_of_numa(run_numa: Run) -> None:
    assert run_numa(captured=str(BOUND), node=0)["verdict"] == "pass"
    assert run_numa(captured=str(BOUND))["verdict"] == "pass"
    assert run_numa(captured=str(STATUS), enforce=False)["verdict"] == "unknown"
    assert run_numa(captured=str(STATUS), cpus="0-27")["verdict"] == "pass"
    assert run_numa(captured=str(STATUS), cpus="0,2", enforce=False)["verdict"] == "fail"


@pytest.mark.parametrize("option", [{"cpus": "x"}, {"min_local": 2.0}, {"node": -1}])
def test_numa_options_that_cannot_be_meant(run_numa: Run, option: dict[str, Any]) -> None:
    assert run_numa(captured=str(BOUND), **option)["failed"]


def test_node_is_for_captures(run_numa: Run) -> None:
    assert "captured" in run_numa(node=0)["msg"]


def test_a_real_process_and_a_stopped_unit(run_numa: Run, tools: Path, tmp_path: Path) -> None:
    units = tmp_path / "units.json"
    unit_file(units)
    me = os.getpid()
    write(tools, "systemctl", f"printf 'ActiveState=active\\nMainPID={me}\\nControlGroup=/x\\n'")
    write(tools, "grep", f"echo {me}")
    got = run_numa(units_file=str(units), enforce=False)
    assert {c["check"] for c in got["checks"]} == {
        "numa_binding.unit",
        "numa_binding.cpus",
        "numa_binding.policy",
        "numa_binding.local_memory",
    }
    assert next(c for c in got["checks"] if c["check"] == "numa_binding.local_memory")["verdict"] == "pass"
    write(tools, "systemctl", "printf 'ActiveState=failed\\nMainPID=0\\nControlGroup=\\n'")
    assert run_numa(units_file=str(units), enforce=False)["verdict"] == "fail"
    assert run_numa(units_file=str(tmp_path / "none"), enforce=False)["verdict"] == "unknown"


# --- cpu_idle


def test_growth_is_read_twice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "devices/system/cpu/cpu0/cpuidle/state1"
    place.mkdir(parents=True)
    for name, text in (("name", "C6"), ("latency", "290"), ("disable", "1"), ("usage", "5"), ("time", "100")):
        (place / name).write_text(text + "\n")
    run = runner(cpu_idle, capsys)
    options = {"sysfs_root": str(tmp_path), "enforce": False}
    assert [c["check"] for c in run(interval=0, **options)["checks"]] == ["cpu_idle.exit_latency"]
    assert run(interval=0.01, **options)["verdict"] == "pass"

    def sleep(seconds: float) -> None:
        (place / "time").write_text(f"{100 + int(seconds * 1e6)}\n")

    monkeypatch.setattr("time.sleep", sleep)
    got = run(interval=0.5, evidence_dir=str(tmp_path / "e"), **options)
    assert (got["verdict"], got["checks"][1]["value"]) == ("fail", 500000)
    again = run(captured=str(tmp_path / "e/cpu_idle.json"), enforce=False)
    assert again["checks"] == got["checks"]


def test_two_files_of_a_bundle(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = (FIXTURES / "cpupower-6.1-idle-info.txt").read_text()
    (tmp_path / "cpuidle-1.txt").write_text(text)
    run = runner(cpu_idle, capsys)
    assert len(run(captured=str(tmp_path))["checks"]) == 1
    (tmp_path / "cpuidle-2.txt").write_text(text.replace("Duration: 1258804", "Duration: 1259999"))
    got = run(captured=str(tmp_path), enforce=False)
    assert (got["verdict"], got["checks"][1]["value"]) == ("fail", 1195)

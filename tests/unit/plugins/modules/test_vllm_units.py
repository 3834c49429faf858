# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module vllm_units with a stand-in systemd that keeps each unit's state in a file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _files, _token_probe
from ansible_collections.ai_infra.gpu_rack.plugins.modules import vllm_units

SYSTEMCTL = """#!/usr/bin/python3
import json, pathlib, sys, time
home = pathlib.Path(HOME)
verb, words = sys.argv[1], [w for w in sys.argv[2:] if not w.startswith("--")]
with open(home / "calls", "a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
for name in words:
    file = home / name
    state = json.loads(file.read_text()) if file.exists() else {}
    if verb == "show":
        started = int(state.get("started", 0) * 1e6)
        print("LoadState=loaded\\nResult=success")
        print(f"ActiveState={state.get('active', 'inactive')}\\nSubState={state.get('sub', 'dead')}")
        print(f"NRestarts={state.get('restarts', 0)}\\nUnitFileState={state.get('enabled', 'disabled')}")
        print(f"ExecMainStartTimestampMonotonic={started}")
    if verb == "restart":
        if state.get("broken") and "--no-block" not in sys.argv:
            sys.exit("Job for " + name + " failed.")
        now = time.clock_gettime(time.CLOCK_MONOTONIC)
        state |= {"active": "active", "sub": "running", "started": now + 0.01, "restarts": 0}
    if verb == "enable":
        state["enabled"] = "enabled"
    if verb == "disable":
        state = {}
    if verb in ("restart", "enable", "disable"):
        file.write_text(json.dumps(state))
"""


class Ended(Exception):
    def __init__(self, failed: bool, result: dict[str, Any]) -> None:
        super().__init__(result.get("msg", ""))
        self.failed = failed
        self.result = result


class Node:
    """A node in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "state"
        self.engine = root / "vllm"

    def units(self, count: int = 2) -> list[dict[str, Any]]:
        return [
            {
                "id": f"n-iu{i}",
                "gpus": [{"index": i, "uuid": f"GPU-{i}"}],
                "numa_node": i,
                "cpus": f"{i}",
                "nics": [],
                "port": 8000 + i,
            }
            for i in range(count)
        ]

    def run(self, check: bool = False, **options: Any) -> dict[str, Any]:
        (self.state / "calls").write_text("")
        args = {
            "units": self.units(),
            "unit_file": "[Service]\n",
            "command": [str(self.engine), "serve"],
            "version": "0.32.0",
            "model_dir": "/srv/m",
            "served_model_name": "m",
            **options,
        }
        with (
            patch_module_args({k: v for k, v in args.items() if v is not None} | {"_ansible_check_mode": check}),
            pytest.raises(Ended) as info,
        ):
            vllm_units.main()
        return info.value.result | {"failed": info.value.failed}

    def calls(self) -> list[str]:
        return [c for c in (self.state / "calls").read_text().splitlines() if not c.startswith("show")]

    def set(self, unit: str, **state: Any) -> None:
        file = self.state / f"vllm@{unit}.service"
        file.write_text(json.dumps(json.loads(file.read_text()) | state))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (tmp_path / "state").mkdir()
    result = Node(tmp_path)
    (binaries / "systemctl").write_text(SYSTEMCTL.replace("HOME", repr(str(result.state))))
    (binaries / "journalctl").write_text("#!/bin/sh\necho RuntimeError: bad option\n")
    result.engine.write_text("#!/bin/sh\n")
    for program in (*binaries.iterdir(), result.engine):
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}:/usr/bin:/bin")
    monkeypatch.setattr(vllm_units, "UNIT_FILE", str(tmp_path / "vllm@.service"))
    monkeypatch.setattr(vllm_units, "CONFIG_DIR", str(tmp_path / "vllm.d"))
    monkeypatch.setattr(vllm_units, "PROBE", str(tmp_path / "token_probe.py"))
    monkeypatch.setattr(_token_probe, "SECRET_FILE", str(tmp_path / "vllm.d/secret.env"))
    monkeypatch.setattr(_files, "_user", lambda _uid: "root")
    monkeypatch.setattr(_files, "_group", lambda _gid: "root")
    monkeypatch.setattr(_files.os, "fchown", lambda *_args: None)
    monkeypatch.setattr(AnsibleModule, "exit_json", lambda _self, **result: _end(False, result))
    monkeypatch.setattr(AnsibleModule, "fail_json", lambda _self, **result: _end(True, result))
    return result


def _end(failed: bool, result: dict[str, Any]) -> None:
    raise Ended(failed, result)


def test_first_run_starts_both_at_once_and_second_changes_nothing(node: Node) -> None:
    first = node.run()
    assert first["changed"]
    assert first["actions"] == {"n-iu0": "started", "n-iu1": "started"}
    both = "vllm@n-iu0.service vllm@n-iu1.service"
    assert node.calls() == ["daemon-reload", f"enable {both}", f"reset-failed {both}", f"restart --no-block {both}"]
    assert "port: 8001\n" in (node.root / "vllm.d/n-iu1.yaml").read_text()
    assert (node.root / "token_probe.py").read_text() == Path(_token_probe.__file__).read_text()
    second = node.run()
    assert not second["changed"]
    assert (second["files"], node.calls()) == ([], [])


def test_check_mode_tells_and_does_nothing(node: Node) -> None:
    result = node.run(check=True)
    assert result["changed"]
    assert result["actions"] == {"n-iu0": "started", "n-iu1": "started"}
    assert node.calls() == []
    assert not (node.root / "vllm.d").exists()


def test_change_of_one_unit_restarts_that_one_and_waits_for_it(node: Node) -> None:
    node.run()
    result = node.run(unit_classes={"n-iu1": "long"})
    assert result["actions"] == {"n-iu0": "none", "n-iu1": "restarted"}
    assert result["files"] == [str(node.root / "vllm.d/n-iu1.yaml")]
    assert node.calls()[-1] == "restart vllm@n-iu1.service"


def test_serving_units_are_restarted_one_after_another_and_stop_at_the_first_failure(node: Node) -> None:
    node.run()
    node.run(options={"max-model-len": 512})
    assert node.calls()[-2:] == ["restart vllm@n-iu0.service", "restart vllm@n-iu1.service"]
    node.set("n-iu0", broken=True)
    result = node.run(options={"max-model-len": 1})
    assert result["failed"]
    assert "restart of vllm@n-iu0.service" in result["msg"]
    assert "RuntimeError: bad option" in result["msg"]
    assert "Not restarted, still as before: n-iu1" in result["msg"]
    assert node.calls()[-1] == "restart vllm@n-iu0.service"


def test_unit_that_failed_or_waits_for_another_try_is_started_afresh(node: Node) -> None:
    node.run()
    node.set("n-iu0", active="failed", sub="failed")
    node.set("n-iu1", active="activating", sub="auto-restart", restarts=2)
    assert node.run()["actions"] == {"n-iu0": "started", "n-iu1": "started"}
    assert "reset-failed vllm@n-iu0.service vllm@n-iu1.service" in node.calls()


def test_unit_in_its_first_start_is_left_alone(node: Node) -> None:
    node.run()
    node.set("n-iu0", active="activating", sub="start-post", restarts=0)
    assert not node.run()["changed"]


def test_restart_owed_by_a_killed_run_is_made(node: Node) -> None:
    node.run()
    time.sleep(0.05)
    (node.root / "vllm.d/n-iu1.env").touch()
    assert node.run()["actions"] == {"n-iu0": "none", "n-iu1": "restarted"}


def test_unit_that_no_longer_exists_is_removed(node: Node) -> None:
    node.run()
    result = node.run(units=node.units(1))
    assert result["actions"] == {"n-iu0": "none", "n-iu1": "removed"}
    assert node.calls()[0] == "disable --now vllm@n-iu1.service"
    assert sorted(p.name for p in (node.root / "vllm.d").iterdir()) == ["n-iu0.env", "n-iu0.yaml"]
    assert not node.run(units=node.units(1))["changed"]


def test_key_is_secret_and_its_removal_restarts(node: Node) -> None:
    result = node.run(api_key="sekret")
    secret = node.root / "vllm.d/secret.env"
    assert (secret.read_text(), secret.stat().st_mode & 0o777) == ('VLLM_API_KEY="sekret"\n', 0o600)
    assert "sekret" not in json.dumps(result)
    assert node.run()["actions"] == {"n-iu0": "restarted", "n-iu1": "restarted"}
    assert not secret.exists()


def test_missing_units_file(node: Node) -> None:
    missing = str(node.root / "none.json")
    assert node.run(check=True, units=None, units_file=missing)["changed"]
    result = node.run(units=None, units_file=missing)
    assert result["failed"]
    assert "Run the gate inference_units first" in result["msg"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"command": ["vllm", "serve"]}, "'vllm' is not absolute"),
        ({"command": ["/nonexistent/vllm"]}, "Install the engine first"),
        ({"unit_classes": {"n-iu7": "long"}}, "n-iu7 is not a unit of this node. Units: n-iu0, n-iu1"),
        ({"options": {"max-num-seqs": 500}}, "max-num-seqs of n-iu0 is 500"),
    ],
)
def test_bad_input_touches_nothing(node: Node, options: dict[str, Any], words: str) -> None:
    result = node.run(**options)
    assert result["failed"]
    assert words in result["msg"]
    assert node.calls() == []
    assert not (node.root / "vllm@.service").exists()

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module chrony_config with a stand-in chronyd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.testing import patch_module_args
from ansible_collections.ai_infra.gpu_rack.plugins.modules import chrony_config

GOOD = "server 172.31.84.10 iburst\n"


class Ended(Exception):
    def __init__(self, failed: bool, result: dict[str, Any]) -> None:
        super().__init__(result.get("msg", ""))
        self.failed = failed
        self.result = result


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a chronyd that refuses the word `serve` and a systemd with a young daemon first on PATH."""
    directory = tmp_path / "bin"
    directory.mkdir()
    write(directory, "chronyd", 'grep -qv "^serve " "$3" || { echo "Fatal error : Invalid directive" >&2; exit 1; }')
    started(directory, 0)
    monkeypatch.setenv("PATH", f"{directory}:/usr/bin:/bin")
    return directory


def write(directory: Path, name: str, body: str) -> None:
    (directory / name).write_text(f"#!/bin/sh\n{body}\n")
    (directory / name).chmod(0o755)


def started(directory: Path, microseconds: int) -> None:
    """Make systemd answer that the daemon was started so long after the boot; 0 is not running."""
    state = "active" if microseconds else "inactive"
    text = f"LoadState=loaded\\nActiveState={state}\\nExecMainStartTimestampMonotonic={microseconds}\\n"
    write(directory, "systemctl", f"printf '{text}'")


@pytest.fixture
def run(tmp_path: Path, tools: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the module; return (failed, result)."""

    def exit_json(self: AnsibleModule, **result: Any) -> None:
        raise Ended(False, result)

    def fail_json(self: AnsibleModule, msg: str, **result: Any) -> None:
        raise Ended(True, {**result, "msg": msg})

    monkeypatch.setattr(AnsibleModule, "exit_json", exit_json)
    monkeypatch.setattr(AnsibleModule, "fail_json", fail_json)

    def call(content: str, check: bool = False) -> tuple[bool, dict[str, Any]]:
        args = {"path": str(tmp_path / "chrony.conf"), "content": content, "_ansible_check_mode": check}
        with patch_module_args(args), pytest.raises(Ended) as ended:
            chrony_config.main()
        return ended.value.failed, ended.value.result

    return call


def test_create_again(run: Any, tmp_path: Path) -> None:
    assert run(GOOD, check=True)[1]["changed"] is True
    assert not (tmp_path / "chrony.conf").exists()
    assert run(GOOD)[1]["changed"] is True
    assert run(GOOD)[1]["changed"] is False


def test_refused_text_leaves_the_old_file_and_says_why(run: Any, tmp_path: Path) -> None:
    run(GOOD)
    failed, result = run("serve 1.2.3.4\n")
    assert failed
    assert "Invalid directive" in result["msg"]
    assert (tmp_path / "chrony.conf").read_text() == GOOD


def test_refused_text_is_refused_in_check_mode_too(run: Any) -> None:
    assert run("serve 1.2.3.4\n", check=True)[0] is True


def test_check_mode_on_a_node_without_chronyd_says_what_would_be_written(run: Any, tools: Path) -> None:
    (tools / "chronyd").unlink()
    failed, result = run(GOOD, check=True)
    assert (failed, result["changed"]) == (False, True)
    assert run(GOOD)[0] is True


def test_daemon_older_than_the_file_is_restarted_by_the_next_run(run: Any, tools: Path) -> None:
    run(GOOD)
    started(tools, 1)
    _failed, result = run(GOOD)
    assert (result["changed"], result["stale"]) == (True, True)

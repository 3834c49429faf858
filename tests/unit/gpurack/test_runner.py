# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The runner with real ansible on this machine: outcome, errors, and that nobody is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpurack import runner
from gpurack.errors import GpurackError

# Unique, so that the processes of this test are told from those of another run of it.
NAP = f"61.{os.getpid()}"
PLAY = """
- name: {name}
  hosts: all
  gather_facts: false
  tasks:
    - name: Work
      ansible.builtin.command:
        argv: [sleep, "{seconds}"]
      changed_when: false
    - name: Fail
      ansible.builtin.fail:
        msg: as asked
      when: fail | default(false)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with one playbook, and an inventory of this machine."""
    (tmp_path / "playbooks").mkdir()
    (tmp_path / "galaxy.yml").write_text("---\n")
    (tmp_path / "ansible.cfg").write_text("[defaults]\n")
    (tmp_path / "playbooks/site.yml").write_text(PLAY.format(name="Quick", seconds=0))
    (tmp_path / "playbooks/slow.yml").write_text(PLAY.format(name="Slow", seconds=NAP))
    here = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    (tmp_path / "hosts.yml").write_text(json.dumps({"all": {"hosts": {"here": here}}}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_events_hosts_and_the_exit_code(site: Path) -> None:
    events: list[Any] = []
    outcome = runner.run_playbook("site", site / "hosts.yml", ["--extra-vars", '{"fail": true}'], events.append)
    assert (outcome.code, outcome.hosts) == (2, {"here"})
    failed = next(e for e in events if e["event"] == "runner_on_failed")
    assert (failed["event_data"]["task"], failed["event_data"]["res"]["msg"]) == ("Fail", "as asked")
    assert not list(Path(tempfile.gettempdir()).glob(f"gpurack-run-{os.getpid()}-*"))


def test_an_inventory_that_is_none(site: Path) -> None:
    (site / "hosts.yml").write_text("[nonsense\n")
    with pytest.raises(GpurackError, match=r"ansible ended with .* before any task ran: No inventory was parsed"):
        runner.run_playbook("site", site / "hosts.yml", [], lambda _event: None)


def test_a_limit_that_matches_nobody(site: Path) -> None:
    with pytest.raises(GpurackError, match="no hosts"):
        runner.run_playbook("site", site / "hosts.yml", ["--limit", "nobody"], lambda _event: None)


def test_a_missing_program(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(site / "bin/python"))
    with pytest.raises(GpurackError, match=r"program ansible-playbook: not in .*/bin. Run `make setup`"):
        runner.run_playbook("site", site / "hosts.yml", [], lambda _event: None)


def children_of(marker: str) -> list[int]:
    """Return the processes, not this one, whose command line holds the marker."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if marker in text and int(path.parent.name) != os.getpid():
            found.append(int(path.parent.name))
    return found


def wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_workers_that_ansible_did_not_know_yet_are_ended(tmp_path: Path) -> None:
    ours = {**os.environ, "GPU_RACK_SUMMARY_FILE": str(tmp_path / "summary.json")}
    with subprocess.Popen(["sleep", NAP], env=ours) as worker, subprocess.Popen(["sleep", NAP]) as other:
        runner._end_workers(str(tmp_path))
        assert worker.wait(5) == -signal.SIGTERM
        assert other.poll() is None
        other.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_ansible_ends_with_gpurack(site: Path, number: signal.Signals) -> None:
    program = (
        "import sys; from pathlib import Path; from gpurack import runner\n"
        "from gpurack.errors import Interrupted\n"
        "try: runner.run_playbook('slow', Path('hosts.yml').resolve(), [], lambda e: print(e['event'], flush=True))\n"
        "except Interrupted as exc: sys.exit(f'stopped by {exc}')\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(runner.__file__).parents[1])}
    command = [sys.executable, "-c", program]
    with subprocess.Popen(
        command, cwd=site, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        assert any(line.strip() == "runner_on_start" for line in run.stdout)
        wait_for(lambda: bool(children_of(f"sleep {NAP}")))
        run.send_signal(number)
        _out, errors = run.communicate(timeout=30)
    wait_for(lambda: not children_of(str(site / "playbooks/slow.yml")) and not children_of(f"sleep {NAP}"))
    if number != signal.SIGKILL:
        assert errors.strip().endswith(f"stopped by {number.name}")


def test_what_a_killed_run_left_is_swept(site: Path) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    left = Path(tempfile.mkdtemp(prefix=f"gpurack-run-{dead.stdout.strip()}-"))
    mine = Path(tempfile.mkdtemp(prefix=f"gpurack-run-{os.getppid()}-"))
    runner.run_playbook("site", site / "hosts.yml", [], lambda _event: None)
    assert not left.exists()
    assert mine.exists()
    mine.rmdir()

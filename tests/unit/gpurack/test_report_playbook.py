# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""playbooks/report.yml itself, with hosts on this machine and one that does not answer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.unit.gpurack.report_data import RUN, Made

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = Path(sys.executable).with_name("ansible-playbook")
INVENTORY = """
gpu_nodes:
  hosts:
    dead1: {ansible_host: 127.0.0.1, ansible_port: 1}
    node1: {ansible_connection: local}
    node2: {ansible_connection: local}
    node3: {ansible_connection: local, evidence: /does/not/exist}
  vars:
    ansible_python_interpreter: %s
    evidence: "%s/{{ inventory_hostname }}"
"""


def test_the_report_of_the_last_run(tmp_path: Path) -> None:
    runs, evidence = tmp_path / "runs", tmp_path / "evidence"
    made = Made(2).write(runs)
    for node in ("node1", "node2"):
        with tarfile.open(made / node / "evidence.tar.gz") as archive:
            for member in archive:
                target = evidence / node / Path(member.name).relative_to("var/lib/gpu_rack/evidence")
                target.parent.mkdir(parents=True, exist_ok=True)
                stream = archive.extractfile(member)
                target.write_bytes(stream.read() if stream else b"")
        (made / node / "evidence.tar.gz").unlink()
    (made / "nodes.json").write_text(json.dumps({"nodes": {"node9": {"state": "unreachable", "message": "no ssh"}}}))
    (runs / "20200101T000000Z").mkdir()
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(INVENTORY % (sys.executable, evidence))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    given = {"gpu_rack_report_runs_dir": str(runs), "gpu_rack_report_evidence_dir": "{{ evidence }}"}
    ended = subprocess.run(
        [PLAYBOOK, "-i", inventory, ROOT / "playbooks/report.yml", "-e", json.dumps(given)],
        env={
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".ansible/collections"),
            "ANSIBLE_REMOTE_TMP": str(temporary),
            "ANSIBLE_NOCOLOR": "1",
        },
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    document = json.loads((made / "report.json").read_text())
    states = {node["name"]: node["state"] for node in document["nodes"]}
    assert states == {
        "dead1": "unreachable",
        "node1": "pass",
        "node2": "fail",
        "node3": "no evidence",
        "node9": "unreachable",
    }
    assert "Connection refused" in next(n["reason"] for n in document["nodes"] if n["name"] == "dead1")
    assert (made / "report.html").stat().st_mode & 0o777 == 0o600
    assert made.stat().st_mode & 0o777 == 0o700
    assert ET.fromstring((made / "junit.xml").read_text()).get("name") == f"rack report {RUN}"
    # The summary of a playbook that reads says nothing, least of all that a dead host is fine.
    assert "RACK SUMMARY" not in ended.stdout
    assert "changed=0" in ended.stdout
    assert [path.name for path in temporary.rglob("*.tar.gz")] == []

"""The action plugin as ansible-playbook runs it: file and line of the wrong value, and no connection."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import yaml
from ansible_collections.ai_infra.gpu_rack.plugins.action.validate_inventory import role_specs, role_uses

ROOT = Path(__file__).resolve().parents[4]
ANSIBLE_PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"


def run(inventory: Path) -> subprocess.CompletedProcess[str]:
    """Run playbooks/validate.yml on an inventory."""
    return subprocess.run(
        [str(ANSIBLE_PLAYBOOK), "-i", str(inventory), str(ROOT / "playbooks/validate.yml")],
        env={**os.environ, "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_file_and_line_of_a_wrong_value_are_named(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(
        yaml.safe_dump({"all": {"children": {"gpu_nodes": {"hosts": {"node1": {"ansible_host": "192.0.2.1"}}}}}})
    )
    (tmp_path / "group_vars" / "all").mkdir(parents=True)
    file = tmp_path / "group_vars" / "all" / "rack.yml"
    file.write_text("---\n# a comment\ngpu_rack_board: hgx_h200\n")
    done = run(tmp_path)
    assert done.returncode != 0
    refusal = f"{file}:3: node1: gpu_rack_board: 'hgx_h200'. Allowed: one of hgx_h100_8"
    assert refusal in done.stdout.replace("\\n", "\n")
    # 192.0.2.1 is a documentation address: had anything connected, the run would have said unreachable.
    assert "UNREACHABLE" not in done.stdout
    assert "INVENTORY REFUSED, nothing was touched" in done.stdout


def test_every_role_the_playbooks_use_has_a_specification() -> None:
    specs, uses = role_specs(ROOT / "roles"), role_uses(ROOT / "playbooks")
    assert {use.role for use in uses} <= set(specs)
    assert {use.group for use in uses} == {"gpu_nodes", "time_servers", "consul_servers", "subnet_managers"}

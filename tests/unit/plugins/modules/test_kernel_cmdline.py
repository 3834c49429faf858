# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""kernel_cmdline over a directory that stands in for the node's root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence
from ansible_collections.ai_infra.gpu_rack.plugins.modules import kernel_cmdline

pytest_plugins = ("tests.unit.bmc_server",)

Run = Callable[..., dict[str, Any]]
PARAMETERS = ["intel_idle.max_cstate=0", "processor.max_cstate=1"]
ARGS = {"name": "60-test", "parameters": PARAMETERS, "comment": "Why."}
GRUB = "menuentry 'Debian' {\n\tlinux\t/boot/vmlinuz-6.1 root=UUID=1 ro quiet%s\n\tinitrd /boot/initrd\n}\n"


class Node:
    """A root directory with an update-grub that works, fails or does nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls = 0
        self.rc = 0
        self.effective = True
        for directory in ("etc/default", "boot/grub", "proc"):
            (root / directory).mkdir(parents=True)
        (root / "boot/grub/grub.cfg").write_text(GRUB % "")
        (root / "proc/cmdline").write_text("BOOT_IMAGE=/boot/vmlinuz root=UUID=1 ro quiet\n")

    @property
    def drop_in(self) -> Path:
        """Return the drop-in."""
        return self.root / "etc/default/grub.d/60-test.cfg"

    def update_grub(self, argv: list[str], timeout: float) -> Evidence:
        """Stand in for the tool."""
        assert argv == ["update-grub"]
        self.calls += 1
        if self.rc == 0 and self.effective:
            (self.root / "boot/grub/grub.cfg").write_text(GRUB % (" " + " ".join(PARAMETERS)))
        return Evidence("update-grub", self.rc, "", "no space left" if self.rc else "")


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """Return a node and point the module at it."""
    made = Node(tmp_path)
    monkeypatch.setattr(kernel_cmdline, "ROOT", tmp_path)
    monkeypatch.setattr(kernel_cmdline, "run", made.update_grub)
    return made


def test_life(node: Node, run_module: Run) -> None:
    """Check mode, write, again before the reboot, reboot."""
    planned = run_module(kernel_cmdline.main, ARGS, check=True)
    assert planned["changed"] is True
    assert not node.drop_in.exists()
    assert node.calls == 0

    done = run_module(kernel_cmdline.main, ARGS)
    assert (done["changed"], done["diff"]) == (True, planned["diff"])
    assert node.drop_in.read_text() == (
        "# Managed by Ansible (ai_infra.gpu_rack.kernel_cmdline)\n# Why.\n"
        'GRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX intel_idle.max_cstate=0 processor.max_cstate=1"\n'
    )
    assert node.drop_in.stat().st_mode & 0o777 == 0o644
    assert done["reboot_reasons"] == ["running kernel lacks intel_idle.max_cstate=0 processor.max_cstate=1"]

    again = run_module(kernel_cmdline.main, ARGS)
    assert (again["changed"], again["reboot_required"], node.calls) == (False, True, 1)

    (node.root / "proc/cmdline").write_text("ro intel_idle.max_cstate=0 processor.max_cstate=1\n")
    assert run_module(kernel_cmdline.main, ARGS)["reboot_reasons"] == []


def test_a_run_cut_off_before_update_grub_is_completed(node: Node, run_module: Run) -> None:
    run_module(kernel_cmdline.main, ARGS)
    (node.root / "boot/grub/grub.cfg").write_text(GRUB % "")
    result = run_module(kernel_cmdline.main, ARGS)
    assert (result["changed"], result["boot_loader_updated"], node.calls) == (True, True, 2)


def test_update_grub_that_fails(node: Node, run_module: Run) -> None:
    node.rc = 1
    result = run_module(kernel_cmdline.main, ARGS)
    assert "update-grub: exit status 1: no space left. Correct" in result["msg"]


def test_update_grub_without_effect(node: Node, run_module: Run) -> None:
    node.effective = False
    result = run_module(kernel_cmdline.main, ARGS)
    assert "its entries lack intel_idle.max_cstate=0 processor.max_cstate=1" in result["msg"]


@pytest.mark.parametrize(
    ("line", "lack"),
    [
        ("a=1 b", []),
        ("a=1 b a=2", ["a=1"]),
        ("a=2 b a=1", []),
        ("aa=1 b", ["a=1"]),
        ("", ["a=1", "b"]),
    ],
    ids=["there", "overridden later", "overriding", "longer name", "empty"],
)
def test_the_last_word_wins(line: str, lack: list[str]) -> None:
    assert kernel_cmdline.missing(["a=1", "b"], line) == lack


@pytest.mark.parametrize("parameter", ["a b", 'a="x"', "a=$(id)", "a=`id`", ""])
def test_shell_characters_are_refused(node: Node, run_module: Run, parameter: str) -> None:
    result = run_module(kernel_cmdline.main, {**ARGS, "parameters": [parameter]})
    assert result["failed"] is True
    assert node.calls == 0

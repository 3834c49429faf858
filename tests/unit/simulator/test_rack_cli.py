# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command line of simulator/rack where it needs no Docker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from racksim import cli, engine, image
from racksim.errors import SimError


def test_a_wrong_rack_file_is_one_line_and_exit_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--rack-file", "/no/such.yml", "status"]) == 2
    captured = capsys.readouterr()
    assert captured.err == "rack: rack file /no/such.yml: No such file or directory. Give a readable rack file.\n"
    assert captured.out == ""


@pytest.mark.parametrize("argv", [["--json", "status", "--rack", "nope"], ["--rack", "nope", "status", "--json"]])
def test_options_count_before_and_after_the_command(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(argv) == 2
    printed = json.loads(capsys.readouterr().out)
    assert printed["code"] == 2
    assert printed["error"].startswith("rack 'nope': ")


def test_an_unknown_node_is_refused_before_anything_is_touched(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["fault", "node9", "gpu 3: missing"]) == 2
    assert "Name one of head1, node1, node2, node3, node4." in capsys.readouterr().err


def test_fault_list_needs_no_node(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main(["fault", "--list"])
    assert exit_.value.code == 0
    assert "port mlx5_1: Polling" in capsys.readouterr().out


def listing(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    class Done:
        stdout = text.encode()

    def run(*_args: Any, **_kwargs: Any) -> Done:
        return Done()

    monkeypatch.delenv(image.MIRROR_VARIABLE, raising=False)
    monkeypatch.setattr(engine, "run", run)


def test_the_mirror_is_the_one_apt_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    listing(
        monkeypatch,
        "Debian|main|bookworm-security|http://mirror.example/debian-security/\n"
        "Other|main|bookworm|http://mirror.example/other/\n"
        "Debian|contrib|bookworm|http://mirror.example/debian/\n"
        "Debian|main|bookworm|http://mirror.example/debian/\n",
    )
    assert image.debian_mirror() == "http://mirror.example/debian"


def test_the_mirror_is_found_before_the_first_update(monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch, "$(ORIGIN)|main|trixie|http://mirror.example/debian/\n")
    assert image.debian_mirror() == "http://mirror.example/debian"


def test_a_machine_that_is_not_debian_is_told_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    listing(monkeypatch, "Ubuntu|main|noble|http://mirror.example/ubuntu/\n")
    with pytest.raises(SimError, match=image.MIRROR_VARIABLE):
        image.debian_mirror()
    monkeypatch.setenv(image.MIRROR_VARIABLE, "http://other.example/debian")
    assert image.debian_mirror() == "http://other.example/debian"

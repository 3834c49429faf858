# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Modules node_files and zip_binary."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from pathlib import Path

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _files
from ansible_collections.ai_infra.gpu_rack.plugins.modules import node_files, zip_binary

from tests.unit.module_runner import Run, runner


@pytest.fixture
def files(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(os, "fchown", lambda *_args: None)
    monkeypatch.setattr(_files, "_user", lambda _uid: "root")
    monkeypatch.setattr(_files, "_group", lambda _gid: "root")
    return runner(node_files, capsys)


def test_a_set_of_files_is_written_once(files: Run, tmp_path: Path) -> None:
    wanted = [
        {"path": str(tmp_path / "etc" / "a"), "content": "one\n"},
        {"path": str(tmp_path / "b"), "secret_content": "hunter2\n", "mode": "0600"},
    ]
    shown = files(files=wanted, check_mode=True)
    assert (shown["changed"], list(tmp_path.iterdir())) == (True, [])
    result = files(files=wanted)
    assert result["files"] == [str(tmp_path / "etc" / "a"), str(tmp_path / "b")]
    assert "hunter2" not in json.dumps(result)
    assert (tmp_path / "b").stat().st_mode & 0o777 == 0o600
    assert files(files=wanted)["changed"] is False
    assert not [p for p in tmp_path.iterdir() if p.name.startswith(".")]


def test_mode_and_text_are_drift_and_a_file_without_text_goes(files: Run, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("two\n")
    path.chmod(0o666)
    result = files(files=[{"path": str(path), "content": "one\n"}])
    assert result["diff"][0]["before"] == "# root:root 0666\ntwo\n"
    assert result["diff"][0]["after"] == "# root:root 0644\none\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert files(files=[{"path": str(path)}])["changed"] is True
    assert not path.exists()
    assert files(files=[{"path": str(path)}])["changed"] is False


def test_a_link_is_replaced_and_its_target_is_left_alone(files: Run, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("theirs")
    (tmp_path / "a").symlink_to(tmp_path / "target")
    files(files=[{"path": str(tmp_path / "a"), "content": "ours"}])
    assert ((tmp_path / "target").read_text(), (tmp_path / "a").is_symlink()) == ("theirs", False)


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        pytest.param(
            {"path": "/x", "content": "a", "secret_content": "b"}, "has content and secret_content", id="both"
        ),
        pytest.param({"path": "/x", "content": "a", "mode": "u+x"}, "has mode 'u+x'", id="mode in words"),
        pytest.param({"path": "x/y", "content": "a"}, "is not absolute", id="relative"),
    ],
)
def test_an_entry_that_says_nothing_clear_is_refused(files: Run, entry: dict[str, str], words: str) -> None:
    assert words in files(files=[entry])["msg"]


@pytest.fixture
def archive(tmp_path: Path) -> tuple[str, str]:
    """Return address and checksum of an archive with a consul in it."""
    path = tmp_path / "consul.zip"
    with zipfile.ZipFile(path, "w") as bundle:
        bundle.writestr("LICENSE.txt", "x")
        bundle.writestr("consul", "#!/bin/sh\necho Consul v1.18.2\n")
    return path.as_uri(), "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_executable_is_installed_once_and_put_back(
    archive: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = runner(zip_binary, capsys)
    path = tmp_path / "bin" / "consul"
    args = {"url": archive[0], "checksum": archive[1], "member": "consul", "path": str(path)}
    args["record"] = str(tmp_path / "consul.source.json")
    assert run(**args, check_mode=True)["changed"] is True
    assert not path.exists()
    assert run(**args)["changed"] is True
    assert path.stat().st_mode & 0o777 == 0o755
    assert run(**args)["changed"] is False
    path.write_text("another")
    assert run(**args)["changed"] is True
    assert "1.18.2" in path.read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({"checksum": "sha256:" + "0" * 64}, "wanted sha256:000000", id="another archive"),
        pytest.param({"checksum": "md5:1"}, "Write it as sha256:<64 hexadecimal digits>", id="weak checksum"),
        pytest.param({"member": "vault"}, "It must be a zip archive that holds vault", id="not in the archive"),
        pytest.param({"url": "file:///nowhere.zip"}, "download of file:///nowhere.zip", id="not there"),
    ],
)
def test_what_cannot_be_verified_is_not_installed(
    archive: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, str],
    words: str,
) -> None:
    args = {"url": archive[0], "checksum": archive[1], "member": "consul", "path": str(tmp_path / "consul")}
    result = runner(zip_binary, capsys)(**{**args, "record": str(tmp_path / "r.json"), **changes})
    assert words in result["msg"]
    assert not (tmp_path / "consul").exists()

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Getting a Docker engine, with programs of ours in the place of docker, dockerd and apt-get."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from racksim import engine
from racksim.errors import SimError


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is the whole PATH; state files go beside it. The machine seems to have no systemd."""
    directory = tmp_path / "bin"
    directory.mkdir()
    for name in ("sh", "cat", "touch", "env", "test", "cp", "chmod"):
        (directory / name).symlink_to(
            Path("/bin") / name if (Path("/bin") / name).exists() else Path("/usr/bin") / name
        )
    monkeypatch.setenv("PATH", str(directory))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setattr(engine, "PROJECT_DIR", tmp_path)
    monkeypatch.setattr(engine, "SYSTEMD", tmp_path / "no-systemd")
    monkeypatch.setattr(engine, "POLICY", tmp_path / "policy-rc.d")
    monkeypatch.setattr(engine, "INOTIFY_INSTANCES", tmp_path / "max_user_instances")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    (tmp_path / "max_user_instances").write_text("128\n", encoding="ascii")
    return directory


def tool(directory: Path, name: str, script: str) -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    path.chmod(0o755)


def test_without_anything_packages_are_installed_with_services_held_back_and_dockerd_is_started(
    tools: Path, tmp_path: Path
) -> None:
    for name, script in (
        ("docker", f"test -e {tmp_path}/alive"),
        ("dockerd", f"touch {tmp_path}/alive"),
        ("iptables", ":"),
    ):
        tool(tmp_path, name, script)
    tool(
        tools,
        "apt-get",
        f"cd {tmp_path} && cp docker dockerd iptables {tools} && cp policy-rc.d seen",
    )
    said: list[str] = []
    engine.ensure(said.append)
    assert said[0] == "installing docker.io, iptables"
    assert said[1].startswith("starting dockerd in the background, log ")
    assert (tmp_path / "seen").read_text(encoding="ascii").endswith("exit 101\n")
    assert not (tmp_path / "policy-rc.d").exists()
    assert (tmp_path / "max_user_instances").read_text(encoding="ascii") == "1024\n"


def test_an_engine_that_answers_is_left_alone(tools: Path, tmp_path: Path) -> None:
    tool(tools, "docker", ":")
    said: list[str] = []
    engine.ensure(said.append)
    assert said == []


def test_a_higher_inotify_limit_stays(tools: Path, tmp_path: Path) -> None:
    tool(tools, "docker", ":")
    (tmp_path / "max_user_instances").write_text("4096\n", encoding="ascii")
    engine.ensure(lambda _message: None)
    assert (tmp_path / "max_user_instances").read_text(encoding="ascii") == "4096\n"


def test_an_engine_that_never_answers_names_its_log(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "START_TIMEOUT_S", 0.5)
    for name, script in (("docker", "exit 1"), ("dockerd", "exit 1"), ("iptables", ":")):
        tool(tools, name, script)
    with pytest.raises(SimError, match=r"it does not answer after 0 s\. See .*dockerd\.log\."):
        engine.ensure(lambda _message: None)


def test_a_package_that_cannot_be_installed_says_what_to_type(tools: Path) -> None:
    tool(tools, "apt-get", "echo 'E: Unable to locate package docker.io' >&2; exit 100")
    with pytest.raises(SimError) as error:
        engine.ensure(lambda _message: None)
    assert "Unable to locate package docker.io" in str(error.value)
    assert "Run `apt-get update && apt-get install docker.io iptables` by hand." in str(error.value)


def test_a_user_who_is_not_root_is_told_so(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(SimError, match="Run as root, or start Docker and join its group"):
        engine.ensure(lambda _message: None)


def test_a_docker_host_that_does_not_answer_is_not_replaced(tools: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2375")
    with pytest.raises(SimError, match=r"nothing answers at DOCKER_HOST=tcp://192\.0\.2\.1:2375"):
        engine.ensure(lambda _message: None)


def test_without_docker_a_command_fails_in_one_line(tools: Path) -> None:
    with pytest.raises(SimError, match=r"docker cannot be run .*Run `simulator/docker-engine`\."):
        engine.docker_try("ps")


def test_in_a_chroot_dockerd_gets_a_root_that_is_a_mount_point(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("36 35 98:0 / /proc rw shared:1 - proc proc rw\n")
    assert engine._dockerd(mounts)[1:] == ["-m", "racksim.ownroot", "dockerd"]
    mounts.write_text("25 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n36 25 98:0 / /proc rw - proc proc rw\n")
    assert engine._dockerd(mounts) == ["dockerd"]

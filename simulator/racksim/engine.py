# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The Docker engine: its command line, and getting one where none answers."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from racksim.errors import SimError
from racksim.rackfile import PROJECT_DIR, SIMULATOR_DIR

INOTIFY_INSTANCES = Path("/proc/sys/fs/inotify/max_user_instances")
MIN_INOTIFY_INSTANCES = 1024
"""Each systemd needs several; the kernel's default of 128 is used up by about 20 nodes."""

START_TIMEOUT_S = 60.0
POLICY = Path("/usr/sbin/policy-rc.d")
SYSTEMD = Path("/run/systemd/system")

Say = Callable[[str], None]


def run(
    argv: Sequence[str], *, what: str, remedy: str, stdin: bytes | None = None, timeout: float = 600.0
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end. A non-zero exit, a time-out or a missing program is a SimError."""
    try:
        done = subprocess.run(argv, input=stdin, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        raise SimError(what, f"{argv[0]} did not end within {timeout:.0f} s", remedy) from None
    except OSError as error:
        raise SimError(what, f"{argv[0]} cannot be run ({error.strerror})", remedy) from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
        raise SimError(what, lines[-1] if lines else f"{argv[0]} exited {done.returncode}", remedy)
    return done


def docker(
    *args: str, what: str, remedy: str = "See `docker info`", stdin: bytes | None = None, timeout: float = 600.0
) -> str:
    """Run one docker command; its output without the last newline."""
    done = run(["docker", *args], what=what, remedy=remedy, stdin=stdin, timeout=timeout)
    return done.stdout.decode(errors="replace").rstrip("\n")


def docker_try(*args: str, stdin: bytes | None = None, timeout: float = 60.0) -> subprocess.CompletedProcess[bytes]:
    """Run one docker command whose failure is an answer too (`inspect` of what may not be there)."""
    try:
        return subprocess.run(["docker", *args], input=stdin, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        what = f"docker {' '.join(args[:2])}"
        raise SimError(
            what, f"it did not end within {timeout:.0f} s", "See `docker info` and the engine's log"
        ) from None
    except OSError as error:
        observed = f"docker cannot be run ({error.strerror})"
        raise SimError("Docker engine", observed, "Run `simulator/docker-engine`") from None


def answers() -> bool:
    """Whether there is a docker command and an engine behind it."""
    if shutil.which("docker") is None:
        return False
    try:
        return docker_try("version", "--format", "{{.Server.Version}}", timeout=15).returncode == 0
    except SimError:
        return False


def cgroup_version() -> int:
    """1 or 2, as the engine uses it (it may live in another mount namespace than we)."""
    return int(docker("info", "--format", "{{.CgroupVersion}}", what="cgroup version of the Docker engine") or "1")


def ensure(say: Say) -> None:
    """Make sure an engine answers: install it from Debian's packages and start it where needed."""
    if not answers():
        if os.geteuid() != 0:
            raise SimError(
                "Docker engine",
                "no engine answers and this user may not install one",
                "Run as root, or start Docker and join its group",
            )
        if os.environ.get("DOCKER_HOST"):
            raise SimError(
                "Docker engine",
                f"nothing answers at DOCKER_HOST={os.environ['DOCKER_HOST']}",
                "Correct or unset DOCKER_HOST",
            )
        missing = [p for p, tool in (("docker.io", "docker"), ("iptables", "iptables")) if shutil.which(tool) is None]
        if shutil.which("dockerd") is None and "docker.io" not in missing:
            missing.append("docker.io")
        if missing:
            install(missing, say)
        if shutil.which("docker") is None:
            # From Debian 13 on the command is a package of its own.
            install(["docker-cli"], say)
        if not answers():
            _start(say)
    _raise_inotify_limit()


def install(packages: Sequence[str], say: Say) -> None:
    """Install Debian packages without letting them start services: we start what we need."""
    if shutil.which("apt-get") is None:
        raise SimError(
            f"packages {', '.join(packages)}", "this machine has no apt-get", "Install them with your package manager"
        )
    say(f"installing {', '.join(packages)}")
    env_argv = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-q", "-y"]
    argv = [*env_argv, "install", "--no-install-recommends", *packages]
    remedy = f"Run `apt-get update && apt-get install {' '.join(packages)}` by hand"
    with _services_held_back():
        try:
            run(argv, what="apt-get install", remedy=remedy, timeout=900)
        except SimError:
            # Mostly a stale or missing package list.
            run([*env_argv, "update"], what="apt-get update", remedy=remedy, timeout=300)
            run(argv, what="apt-get install", remedy=remedy, timeout=900)


@contextlib.contextmanager
def _services_held_back() -> Iterator[None]:
    """Without systemd a package's start script may start a second dockerd beside the one whose socket we were lent."""
    if SYSTEMD.exists() or POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n", encoding="utf-8")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink()


def _start(say: Say) -> None:
    log = PROJECT_DIR / ".sim" / "dockerd.log"
    log.parent.mkdir(exist_ok=True)
    if SYSTEMD.exists():
        say("starting Docker (systemctl start docker)")
        run(["systemctl", "start", "docker"], what="Docker engine", remedy="See `journalctl -u docker`")
        where = "`journalctl -u docker`"
    else:
        say(f"starting dockerd in the background, log {log}")
        with log.open("ab") as stream:
            # A session of its own: it outlives this command and its terminal.
            subprocess.Popen(
                _dockerd(),
                cwd=SIMULATOR_DIR,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=stream,
                start_new_session=True,
            )
        where = str(log)
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers():
        if time.monotonic() > deadline:
            raise SimError("Docker engine", f"it does not answer after {START_TIMEOUT_S:.0f} s", f"See {where}")
        time.sleep(0.3)


def _dockerd(mounts: Path = Path("/proc/self/mountinfo")) -> list[str]:
    """Return the command that starts dockerd; in a chroot, where "/" is no mount point, with a root of its own."""
    points = {line.split()[4] for line in mounts.read_text(encoding="utf-8").splitlines()}
    return ["dockerd"] if "/" in points else [sys.executable, "-m", "racksim.ownroot", "dockerd"]


@contextlib.contextmanager
def exclusive(path: Path, what: str, say: Say) -> Iterator[None]:
    """Hold a file lock: two commands at once would build one image twice or half of one rack each."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="ascii") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command that works on {what}")
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _raise_inotify_limit() -> None:
    """32 nodes fail with the kernel's default. Where it cannot be set (no root), small racks work all the same."""
    try:
        if int(INOTIFY_INSTANCES.read_text(encoding="ascii")) < MIN_INOTIFY_INSTANCES:
            INOTIFY_INSTANCES.write_text(f"{MIN_INOTIFY_INSTANCES}\n", encoding="ascii")
    except PermissionError:
        return
    except OSError as error:
        raise SimError(str(INOTIFY_INSTANCES), str(error.strerror), "Set fs.inotify.max_user_instances=1024") from None

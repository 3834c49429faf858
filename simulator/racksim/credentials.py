# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A rack's ssh keys and secrets under .sim/<rack>/, made once and kept until the rack is taken down."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from racksim import engine
from racksim.rackfile import Rack

TOKENS = ("consul_management_token", "consul_agent_token", "consul_service_token")


def ensure(rack: Rack) -> None:
    """Make what is missing. Directories 0700, files 0600, one value a file without a newline."""
    for name in ("", "ssh", "ssh/host_keys", "secrets", "bmc", "hw-locks"):
        (rack.dir / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        (rack.dir / name).chmod(0o700)
    values: dict[str, Callable[[], str]] = {
        "bmc_password": lambda: secrets.token_urlsafe(18),
        "consul_gossip_key": lambda: base64.b64encode(secrets.token_bytes(32)).decode(),
        **{token: lambda: str(uuid.uuid4()) for token in TOKENS},
    }
    for name, make in values.items():
        path = rack.dir / "secrets" / name
        if not path.exists():
            _write_private(path, make())
    keygen(rack.dir / "ssh" / "id_ed25519", f"gpurack-{rack.name}")
    known = []
    for host in rack.hosts:
        key = host_key(rack, host.name)
        keygen(key, host.name)
        kind, public = key.with_suffix(".pub").read_text(encoding="ascii").split()[:2]
        known.append(f"{host.address},{host.name} {kind} {public}\n")
    _write_private(rack.dir / "ssh" / "known_hosts", "".join(known))


def host_key(rack: Rack, host: str) -> Path:
    """The host's private ssh key: fixed per rack and host, so that a reimaged node keeps its identity."""
    return rack.dir / "ssh" / "host_keys" / host


def authorized_key(rack: Rack) -> str:
    return (rack.dir / "ssh" / "id_ed25519.pub").read_text(encoding="ascii")


def keygen(path: Path, comment: str) -> None:
    """Make an ed25519 key pair at `path` if there is none."""
    if path.exists() and path.with_suffix(".pub").exists():
        return
    if shutil.which("ssh-keygen") is None:
        engine.install(["openssh-client"], lambda _message: None)
    path.unlink(missing_ok=True)
    engine.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        what=f"ssh key {path}",
        remedy="Install openssh-client",
    )


def _write_private(path: Path, text: str) -> None:
    """Write without a moment in which others could read it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as stream:
        stream.write(text)
    temporary.replace(path)

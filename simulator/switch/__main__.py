# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`python -m switch --dir DIR --os nvos --listen 127.0.77.2:2222`: one simulated switch in the foreground."""

from __future__ import annotations

import argparse
import secrets
import sys
from pathlib import Path

from switch import answers
from switch.server import Switch


def main() -> int:
    """Run one switch until it is ended."""
    parser = argparse.ArgumentParser(prog="switch", description="A simulated switch that answers over SSH.")
    parser.add_argument("--dir", type=Path, required=True, help="its key, known_hosts, password and faults")
    parser.add_argument("--os", choices=answers.SYSTEMS, required=True)
    parser.add_argument("--listen", default="127.0.0.1:2222", metavar="ADDRESS:PORT")
    parser.add_argument("--user", default="admin")
    options = parser.parse_args()
    host, colon, port = options.listen.rpartition(":")
    if not colon or not port.isdigit():
        parser.error(f"--listen: {options.listen!r} is not ADDRESS:PORT")
    options.dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    secret = options.dir / "password"
    if not secret.exists():
        secret.touch(mode=0o600)
        secret.write_text(secrets.token_urlsafe(18) + "\n", encoding="ascii")
    try:
        switch = Switch(options.dir, options.os, (host, int(port)), options.user, secret.read_text().strip())
    except OSError as exc:
        print(f"switch: {options.listen}: {exc.strerror}. Choose another address.", file=sys.stderr)
        return 1
    print(f"switch: {options.os} at {switch.address[0]}:{switch.address[1]}", flush=True)
    try:
        switch.serve()
    except KeyboardInterrupt:
        switch.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())

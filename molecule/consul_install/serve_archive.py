# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pack the node's own Consul into a zip archive, serve it on the loopback, print the archive's SHA-256."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

directory = Path("/srv/consul-archive")
directory.mkdir(parents=True, exist_ok=True)
archive = directory / "consul.zip"
if not archive.exists():
    # Stored, not compressed: the test is about pinning and unpacking, and two nodes must agree byte for byte.
    source, member = Path("/usr/local/bin/consul"), zipfile.ZipInfo("consul")
    with source.open("rb") as binary, zipfile.ZipFile(archive, "w") as bundle, bundle.open(member, "w") as packed:
        shutil.copyfileobj(binary, packed, 1 << 20)
serve = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", "--directory", str(directory), "8099"]
running = subprocess.run(["systemctl", "is-active", "--quiet", "consul-archive.service"], check=False)
if running.returncode:
    subprocess.run(["systemd-run", "--quiet", "--unit", "consul-archive", *serve], check=True)
print(hashlib.sha256(archive.read_bytes()).hexdigest())

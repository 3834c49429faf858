# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module zip_binary: one executable out of a zip archive that is pinned by its checksum."""

from __future__ import annotations

DOCUMENTATION = r"""
module: zip_binary
short_description: Install one executable from a zip archive that is pinned by its checksum
version_added: 0.1.0
description:
  - Downloads the archive, refuses it unless its SHA-256 is the one given, and installs one file of it.
  - Notes beside O(record) what was installed, so that a second run downloads nothing and a binary that was replaced
    by hand is drift.
  - Needs no C(unzip) on the host.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  url:
    description: Address of the archive.
    type: str
    required: true
  checksum:
    description: SHA-256 of the archive, as V(sha256:<64 hexadecimal digits>).
    type: str
    required: true
  member:
    description: Name of the file in the archive.
    type: str
    required: true
  path:
    description: Where the executable goes. Its mode becomes 0755.
    type: path
    required: true
  record:
    description: File with the note of what was installed.
    type: path
    required: true
  timeout:
    description: Seconds for the connection and for each read.
    type: int
    default: 60
attributes:
  check_mode:
    description: Reports the change and downloads nothing.
    support: full
  diff_mode:
    description: Shows the checksums.
    support: full
"""

EXAMPLES = r"""
- name: Install Consul
  ai_infra.gpu_rack.zip_binary:
    url: https://releases.hashicorp.com/consul/1.18.2/consul_1.18.2_linux_amd64.zip
    checksum: sha256:<64 hexadecimal digits from the vendor's list>
    member: consul
    path: /usr/local/bin/consul
    record: /usr/local/lib/gpu_rack/consul.source.json
"""

RETURN = r"""
sha256:
  description: SHA-256 of the installed executable after the task, null in check mode when it would change.
  returned: always
  type: str
"""

import hashlib
import json
import os
import re
import shutil
import tempfile
import urllib.error
import zipfile
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import ConnectionError as UrlConnectionError
from ansible.module_utils.urls import SSLValidationError, open_url
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import write_json

ARGUMENT_SPEC: dict[str, Any] = {
    "url": {"type": "str", "required": True},
    "checksum": {"type": "str", "required": True},
    "member": {"type": "str", "required": True},
    "path": {"type": "path", "required": True},
    "record": {"type": "path", "required": True},
    "timeout": {"type": "int", "default": 60},
}
_CHECKSUM = re.compile(r"sha256:[0-9a-f]{64}")
_BLOCK = 1 << 20


class DownloadError(Exception):
    """The archive could not be had, or is not what was asked for."""


def digest(path: Path) -> str | None:
    """Return the SHA-256 of a file, None when it does not exist."""
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return None


def installed(path: Path, record: Path) -> dict[str, Any]:
    """Return the archive's checksum when the executable is the one that was installed from it, else what is there."""
    found = digest(path)
    try:
        note = json.loads(record.read_text("utf-8"))
    except (FileNotFoundError, ValueError):
        note = {}
    known = isinstance(note, dict) and found is not None and note.get("sha256") == found
    return {"archive": note.get("archive") if known else None, "sha256": found}


def download(url: str, checksum: str, timeout: int, target: Path) -> None:
    """Store the archive; raise DownloadError when it cannot be had or is another one."""
    sha = hashlib.sha256()
    try:
        with open_url(url, timeout=timeout) as answer, target.open("wb") as stream:
            while block := answer.read(_BLOCK):
                sha.update(block)
                stream.write(block)
    except (urllib.error.URLError, UrlConnectionError, SSLValidationError, OSError) as exc:
        raise DownloadError(f"download of {url}: {exc}. Check the address and the way to it.") from exc
    if f"sha256:{sha.hexdigest()}" != checksum:
        raise DownloadError(
            f"download of {url}: has sha256:{sha.hexdigest()}, wanted {checksum}. Correct one of the two."
        )


def install(archive: Path, member: str, path: Path) -> str:
    """Put the archive's member in place and return its SHA-256. A running program keeps its old file."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with zipfile.ZipFile(archive) as bundle, bundle.open(member) as source, os.fdopen(handle, "wb") as target:
            shutil.copyfileobj(source, target, _BLOCK)
        os.chmod(temporary, 0o755)
        sha = digest(Path(temporary)) or ""
        os.replace(temporary, path)
    except (zipfile.BadZipFile, KeyError) as exc:
        os.unlink(temporary)
        raise DownloadError(f"archive: {exc}. It must be a zip archive that holds {member}.") from exc
    return sha


def main() -> None:
    """Compare the installed executable with the pinned archive and install it."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    p = module.params
    if not _CHECKSUM.fullmatch(p["checksum"]):
        module.fail_json(msg=f"checksum: {p['checksum']!r}. Write it as sha256:<64 hexadecimal digits>.")
    path, record = Path(p["path"]), Path(p["record"])
    try:
        before = installed(path, record)
        changed = before["archive"] != p["checksum"]
        sha = None if changed else before["sha256"]
        if changed and not module.check_mode:
            with tempfile.TemporaryDirectory(prefix="gpu_rack_zip_") as directory:
                archive = Path(directory) / "archive.zip"
                download(p["url"], p["checksum"], p["timeout"], archive)
                sha = install(archive, p["member"], path)
            write_json(record, {"archive": p["checksum"], "sha256": sha, "url": p["url"]}, 0o644)
    except (DownloadError, OSError) as exc:
        module.fail_json(msg=f"{p['path']}: {exc}")
    module.exit_json(
        changed=changed,
        sha256=sha,
        diff={
            "before": f"{p['path']} from {before['archive'] or 'elsewhere' if before['sha256'] else 'nothing'}\n",
            "after": f"{p['path']} from {p['checksum']}\n",
        },
    )


if __name__ == "__main__":
    main()

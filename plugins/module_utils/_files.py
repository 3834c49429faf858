# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whole files of the node, compared and written as one set. The texts of secret files never leave this code."""

from __future__ import annotations

import contextlib
import dataclasses
import grp
import os
import pwd
import stat
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class WantedFile:
    """A file as it shall be. `content` None: it shall not exist."""

    path: str
    content: str | None
    mode: int = 0o644
    owner: str = "root"
    group: str = "root"
    secret: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class FoundFile:
    """A file as it is."""

    content: str
    mode: int
    owner: str
    group: str


def read_file(path: str) -> FoundFile | None:
    """Return the file as it is, None when it does not exist. A directory or device in its place raises OSError."""
    try:
        info = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(info.st_mode):
        # A link is replaced by a file: what it points to is not ours.
        return FoundFile(f"-> {os.readlink(path)}", 0, "", "")
    text = Path(path).read_bytes().decode("utf-8", "replace")
    return FoundFile(text, stat.S_IMODE(info.st_mode), _user(info.st_uid), _group(info.st_gid))


def differs(found: FoundFile | None, wanted: WantedFile) -> bool:
    """Tell whether the file has to be written or removed."""
    if found is None or wanted.content is None:
        return not (found is None and wanted.content is None)
    return (found.content, found.mode, found.owner, found.group) != (
        wanted.content,
        wanted.mode,
        wanted.owner,
        wanted.group,
    )


def write_file(wanted: WantedFile) -> None:
    """Write or remove one file so that a reader sees the old or the new one; mode and owner are set before the data."""
    if wanted.content is None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(wanted.path)
        return
    path = Path(wanted.path)
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.fchown(handle, pwd.getpwnam(wanted.owner).pw_uid, grp.getgrnam(wanted.group).gr_gid)
        os.fchmod(handle, wanted.mode)
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(wanted.content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def diff(found: FoundFile | None, wanted: WantedFile) -> dict[str, str]:
    """Return Ansible's before/after of one file. A secret file shows that it differs, never how."""
    before = (
        "" if found is None else _shown(found.content, found.mode, found.owner, found.group, wanted.secret, "a secret")
    )
    after = (
        ""
        if wanted.content is None
        else _shown(wanted.content, wanted.mode, wanted.owner, wanted.group, wanted.secret, "a secret")
    )
    if wanted.secret and found is not None and wanted.content is not None and found.content != wanted.content:
        after = _shown(wanted.content, wanted.mode, wanted.owner, wanted.group, True, "another secret")
    return {"before_header": wanted.path, "after_header": wanted.path, "before": before, "after": after}


def apply(files: Iterable[WantedFile], check_mode: bool) -> tuple[list[str], list[dict[str, str]]]:
    """Bring a set of files to what is wanted; return the paths that changed and their differences."""
    changed: list[str] = []
    differences: list[dict[str, str]] = []
    for wanted in files:
        found = read_file(wanted.path)
        if not differs(found, wanted):
            continue
        changed.append(wanted.path)
        differences.append(diff(found, wanted))
        if not check_mode:
            write_file(wanted)
    return changed, differences


def from_params(items: Iterable[dict[str, Any]]) -> list[WantedFile]:
    """Return the files of a module's O(files) option; raise ValueError for one that says nothing or two things."""
    files = []
    for item in items:
        path, content, secret = item["path"], item.get("content"), item.get("secret_content")
        if not path.startswith("/"):
            raise ValueError(f"files: path {path!r} is not absolute. Give the whole path.")
        if content is not None and secret is not None:
            raise ValueError(f"files: {path} has content and secret_content. Give one of them.")
        try:
            mode = int(item["mode"], 8)
        except ValueError as exc:
            raise ValueError(f"files: {path} has mode {item['mode']!r}. Write it as octal text, like '0644'.") from exc
        files.append(
            WantedFile(
                path, secret if content is None else content, mode, item["owner"], item["group"], secret is not None
            )
        )
    return files


def _shown(content: str, mode: int, owner: str, group: str, secret: bool, words: str) -> str:
    body = f"<{words}>\n" if secret else content
    return f"# {owner}:{group} {mode:04o}\n{body}"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)

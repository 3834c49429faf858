# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`python -m racksim.ownroot COMMAND…`: run a command with this root as the root of a mount namespace of its own.

A Docker engine does not work in a chroot: unpacking an image remounts "/", which is no mount point there, and
`docker exec` enters a container's namespace at the namespace's root, which a chroot does not change. Here the directory
becomes a mount, and that mount the namespace's root, as if the machine had booted from it.
"""

from __future__ import annotations

import ctypes
import os
import sys

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_MNT_DETACH = 2


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def enter() -> None:
    """Make the directory that is "/" now the root of a new mount namespace, and change into it."""
    here = os.open("/", os.O_PATH | os.O_DIRECTORY)
    _call("unshare", _CLONE_NEWNS)
    # Entering the namespace one is in leads out of the chroot, to the namespace's own root.
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    _call("setns", own, _CLONE_NEWNS)
    os.close(own)
    _call("mount", None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None)
    os.fchdir(here)
    os.close(here)
    path = os.readlink("/proc/self/cwd").encode()
    _call("mount", path, path, None, ctypes.c_ulong(_MS_BIND | _MS_REC), None)
    os.chdir(path)
    # With one directory for both, the old root ends up over the new one, and is taken off from there.
    _call("pivot_root", b".", b".")
    _call("umount2", b".", _MNT_DETACH)
    os.chdir("/")


if __name__ == "__main__":
    enter()
    os.execvp(sys.argv[1], sys.argv[1:])

"""Becomes the program it is given, once the kernel knows to end it together with gpurack. Run by its path.

ansible-runner starts ansible in a session of its own, so that neither Ctrl-C nor a killed gpurack would end it: a rack
would go on changing with nobody watching.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main(pid_file: str, parent: str, program: str, *arguments: str) -> None:
    """Write the process id to a file, and become `program`. Ends at once when gpurack has died already."""
    libc = ctypes.CDLL(None)
    # Linux only. Elsewhere a killed gpurack leaves ansible running; Ctrl-C still ends both.
    if hasattr(libc, "prctl"):
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Path(pid_file).write_text(str(os.getpid()))
    os.execv(program, [program, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])

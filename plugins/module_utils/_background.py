# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A tool that runs beside its caller: servers of a measurement, stopped or dead by themselves, never left behind."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

_GRACE_S = 2.0


class Background:
    """A tool that runs in a session of its own; made by `background`."""

    def __init__(self, argv: Sequence[str], deadline: float, out: IO[bytes], err: IO[bytes]) -> None:
        """Start the tool. What goes wrong is in `evidence()`, nothing is raised."""
        self._argv = list(argv)
        self._start = time.monotonic()
        self._error: str | None = None
        self._out, self._err = out, err
        self._process: subprocess.Popen[bytes] | None = None
        path = _cli._search_path()
        # Looked up here: `timeout` itself always starts, so a missing tool would look like a tool that ended.
        if shutil.which(self._argv[0], path=path) is None:
            self._error = "could not start: No such file or directory"
            return
        try:
            self._process = subprocess.Popen(
                ["timeout", "--signal=INT", f"--kill-after={_GRACE_S:g}", f"{deadline:g}", *self._argv],
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._err,
                env={**os.environ, "LC_ALL": "C", "PATH": path},
                start_new_session=True,
            )
        except OSError as exc:
            self._error = f"could not start: {exc.strerror or exc}"

    def running(self) -> bool:
        """Return whether the tool is still there."""
        return self._process is not None and self._process.poll() is None

    def stop(self) -> Evidence:
        """End the tool (SIGINT, then SIGKILL) and return what it printed."""
        if self._process is not None:
            for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                if self._process.poll() is not None:
                    break
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signum)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_GRACE_S)
        return self.evidence()

    def wait(self, seconds: float) -> None:
        """Give the tool up to `seconds` to end by itself."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(seconds, 0.0))

    def evidence(self) -> Evidence:
        """Return the command, its exit status (None while it runs) and its output so far."""
        texts = []
        for stream in (self._out, self._err):
            stream.seek(0)
            texts.append(stream.read().decode("utf-8", "replace"))
        rc = self._process.returncode if self._process is not None else None
        return Evidence(shlex.join(self._argv), rc, texts[0], texts[1], time.monotonic() - self._start, self._error)


@contextlib.contextmanager
def background(argv: Sequence[str], deadline: float) -> Iterator[Background]:
    """Run a tool while the block runs, `deadline` seconds at most.

    coreutils' `timeout` stands over it with the same deadline, so that the tool ends even if its caller was killed.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        tool = Background(argv, deadline, out, err)
        try:
            yield tool
        finally:
            tool.stop()

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The one error of the simulator: what failed, what was observed, what to do."""

from __future__ import annotations


class SimError(Exception):
    """A failure a person can act on. `str()` is the one line the command prints; `code` is its exit status.

    Code 1: the rack is not as asked. Code 2: what was asked is wrong (a bad option, rack file or fault).
    """

    def __init__(self, what: str, observed: str, remedy: str, code: int = 1) -> None:
        super().__init__(f"{what}: {observed.strip().rstrip('.')}. {remedy.strip().rstrip('.')}.")
        self.code = code


class UnknownFault(SimError):
    """A fault text that no pattern of the catalogue matches: the command line shows the catalogue."""

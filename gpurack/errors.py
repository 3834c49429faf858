"""The errors that the command line turns into a sentence and exit code 2."""

from __future__ import annotations


class GpurackError(Exception):
    """Something the operator can mend, such as a wrong path. Reads `<what failed>: <observed>. <what to do>.`"""


class Interrupted(Exception):
    """The operator, or the system, told this run to stop. Carries the signal's name."""

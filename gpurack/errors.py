"""The one error that the command line turns into a sentence and exit code 2."""

from __future__ import annotations


class GpurackError(Exception):
    """Something the operator can mend, such as a wrong path. Reads `<what failed>: <observed>. <what to do>.`"""

"""The report of a run: one HTML file, JSON and JUnit, made from what the gates stored. Connects to nothing."""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from gpurack.errors import GpurackError
from gpurack.report import html, junit
from gpurack.report.model import build, out_of
from gpurack.report.read import Json, read_run

NAMES = {"html": "report.html", "json": "report.json", "junit": "junit.xml"}


def write(place: Path, output: Path | None = None) -> Json:
    """Make the report of the run in `place`, beside the run's files or in `output`.

    Returns the run, its verdict, the counts of nodes by state, the nodes that are out, and the paths of the files.
    """
    report = build(read_run(place), time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))
    files = {
        "html": html.render(report),
        "json": json.dumps(report.document, separators=(",", ":")) + "\n",
        "junit": junit.render(report),
    }
    paths = {}
    for kind, content in files.items():
        path = (output or place) / NAMES[kind]
        try:
            _store(path, content)
        except OSError as exc:
            raise GpurackError(
                f"report {path}: cannot be written: {exc.strerror}. Name a directory you may write to with --output."
            ) from None
        paths[kind] = str(path)
    document = report.document
    return {
        "run": document["run"],
        "verdict": document["verdict"],
        "counts": document["counts"],
        "out": [
            {"node": node["name"], "state": node["state"], "reason": node["reason"]}
            for node in document["nodes"]
            if node["name"] in set(out_of(document))
        ],
        "files": paths,
    }


def _store(path: Path, content: str) -> None:
    """Write a whole file or none. Evidence tells much of a site, so only the owner may read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise

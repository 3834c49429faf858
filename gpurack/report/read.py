"""Reads a run's directory on the controller. What cannot be read is kept as a problem of its node, never left out.

Nodes wrote most of it, and a node under suspicion may have written anything: sizes are bounded, nothing is unpacked to
disk, and every structure is checked before it is used.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import re
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpurack.errors import GpurackError

STAGES = ("hardware", "serving")
ARCHIVE = "evidence.tar.gz"
RUN_ID = re.compile(r"[0-9]{8}T[0-9]{6}Z")
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}")
_GATE = re.compile(r"[a-z][a-z0-9_]{0,63}")
_MAX_FILE = 64 << 20
_MAX_NODE = 256 << 20

Json = dict[str, Any]


@dataclasses.dataclass
class GateFile:
    """A gate's evidence file: its digest as stored, and its content."""

    sha256: str
    path: str
    data: Json


@dataclasses.dataclass
class NodeFiles:
    """What the controller holds of one node. `fetch` is "" when nobody tried to fetch its evidence."""

    name: str
    fetch: str = ""
    message: str = ""
    decisions: dict[str, Json] = dataclasses.field(default_factory=dict)
    evidence: dict[tuple[str, str], GateFile] = dataclasses.field(default_factory=dict)
    problems: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class RunFiles:
    """What the controller holds of a run. Nodes are read one after another, so that a large rack fits in memory."""

    run: str
    place: Path
    names: list[str]
    fetched: Mapping[str, Json]
    summary: Json

    def nodes(self) -> Iterator[NodeFiles]:
        """Read the nodes in the order of their names."""
        for name in self.names:
            yield _read_node(self.place / name, name, self.run, self.fetched.get(name, {}))


def last_run(runs: Path) -> str:
    """Return the newest run that has a directory. Raises GpurackError when there is none."""
    found = [path.name for path in runs.glob("*") if RUN_ID.fullmatch(path.name) and path.is_dir()]
    if not found:
        raise GpurackError(
            f"runs in {runs}: there is none. Run `gpurack gate` first, or name the directory with --runs and the run "
            "with --run."
        )
    return max(found)


def read_run(place: Path) -> RunFiles:
    """Read what a run's directory says of its nodes. Raises GpurackError when it is no run's directory."""
    if not RUN_ID.fullmatch(place.name):
        raise GpurackError(f"run {place.name}: not the name of a run. Runs are named like 20261130T180000Z.")
    if not place.is_dir():
        raise GpurackError(
            f"run {place.name}: no directory {place}. `ls {place.parent}` shows the runs that are there."
        )
    fetched = as_dict(as_dict(_json_file(place / "nodes.json")).get("nodes"))
    summary = as_dict(_json_file(place / "summary.json"))
    names = {path.name for path in place.iterdir() if path.is_dir()}
    names |= {str(name) for name in fetched}
    # The summary also names servers, which no gate looks at: they matter here only when they are out.
    names |= {str(name) for name, node in as_dict(summary.get("nodes")).items() if as_dict(node).get("out")}
    return RunFiles(
        place.name,
        place,
        sorted((name for name in names if _HOST.fullmatch(name)), key=natural),
        {str(name): as_dict(value) for name, value in fetched.items()},
        summary,
    )


def natural(name: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts node2 before node10, also for a number of any length."""
    parts = [part for part in re.split(r"([0-9]+)", name) if part]
    numbers = [part.lstrip("0") if part.isascii() and part.isdecimal() else None for part in parts]
    return [
        (1, 0, part) if digits is None else (0, len(digits), digits)
        for part, digits in zip(parts, numbers, strict=True)
    ]


def as_dict(value: Any) -> Json:
    """Return a dictionary as it is, and an empty one for everything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, and an empty one for everything else."""
    return value if isinstance(value, list) else []


def text(value: Any) -> str:
    """Return text that any file can hold: lone surrogates become a question mark."""
    given = value if isinstance(value, str) else "" if value is None else str(value)
    return given.encode("utf-8", "replace").decode()


def _json_file(path: Path) -> Any:
    """Return the content of a JSON file. A FIFO would make us wait, and a device would never end."""
    try:
        small = path.is_file() and path.stat().st_size <= _MAX_FILE
        return json.loads(path.read_bytes()) if small else None
    except (OSError, ValueError, RecursionError):
        return None


def _read_node(place: Path, name: str, run: str, fetched: Json) -> NodeFiles:
    node = NodeFiles(name, text(fetched.get("state")), text(fetched.get("message")))
    if node.fetch == "failed":
        node.problems.append(f"the evidence could not be fetched: {node.message}")
    for stage in STAGES:
        path = place / f"{stage}.json"
        if not path.exists():
            continue
        decision = as_dict(_json_file(path))
        if decision.get("run") == run and decision.get("stage") == stage and decision.get("gates"):
            node.decisions[stage] = decision
        else:
            node.problems.append(f"{stage}.json is not the decision of this run and stage, or cannot be read")
    archive = place / ARCHIVE
    if archive.exists():
        try:
            _read_archive(archive, node)
        except _TooLarge:
            node.problems.append(f"{ARCHIVE} holds more than {_MAX_NODE >> 20} MiB, the rest is not read")
        except (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, RecursionError) as exc:
            node.problems.append(f"{ARCHIVE} cannot be read to its end: {type(exc).__name__} {exc}")
    return node


class _TooLarge(Exception):
    """An archive unpacks to more than any node's evidence has."""


class _Limited(gzip.GzipFile):
    """A stream that ends with an error when too much was read: a small archive can hold a terabyte of nothing."""

    left = _MAX_NODE

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes."""
        data = super().read(size)
        self.left -= len(data)
        if self.left < 0:
            raise _TooLarge
        return data


def _read_archive(path: Path, node: NodeFiles) -> None:
    if not path.is_file():
        raise ValueError("it is not a file")
    # Everything that is unpacked counts, also what is passed over: other members, long names, sparse files.
    with _Limited(path) as unpacked, tarfile.open(fileobj=unpacked, mode="r|") as archive:
        for member in archive:
            parts = Path(member.name).parts
            stage, file = (parts[-2], parts[-1]) if len(parts) > 1 else ("", "")
            gate = file.removesuffix(".json")
            if not member.isfile() or stage not in STAGES or not file.endswith(".json") or not _GATE.fullmatch(gate):
                continue
            if member.size > _MAX_FILE:
                node.problems.append(f"{stage}/{file} has {member.size} bytes, more than is read")
                continue
            stream = archive.extractfile(member)
            raw = stream.read() if stream else b""
            data = _parsed(raw)
            if data.get("gate") != gate:
                node.problems.append(f"{stage}/{file} is not the evidence of {gate}")
                continue
            node.evidence[(stage, gate)] = GateFile(
                hashlib.sha256(raw).hexdigest(), "/" + member.name.lstrip("/"), data
            )


def _parsed(raw: bytes) -> Json:
    try:
        return as_dict(json.loads(raw))
    except (ValueError, RecursionError):
        return {}

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read a corpus: folders with an index of captures and what a person found to be right about each. Tolerant, pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

INDEX_NAMES = ("index.yaml", "index.yml")
_FILE_KEYS = ("file", "path", "capture", "filename", "stdout_file", "files", "name", "id")
_SURE_FILE_KEYS = _FILE_KEYS[:6]
_LIST_KEYS = ("captures", "files", "entries", "items", "cases", "samples", "index", "records")
_VERDICT_KEYS = ("verdict", "expected_verdict", "right_verdict", "result", "outcome", "status")
_VALUE_KEYS = (
    "values",
    "expected",
    "expect",
    "right",
    "right_values",
    "facts",
    "truth",
    "measured",
    "parsed",
    "fields",
)
_OPTION_KEYS = ("args", "options", "params", "parameters", "limits", "module_args")
_PROFILE_KEYS = ("profile", "board", "board_profile", "expected_profile")
_NOTE_KEYS = frozenset(
    (
        *("fidelity", "source", "sources", "license", "note", "notes", "comment", "description", "title", "command"),
        *("cmd", "origin", "driver", "version", "tool", "url", "tags", "why", "reason", "remark", "remarks", "summary"),
        *("date", "captured_on", "reference_only", "edited", "changes", "kind", "format", "form", "host"),
    )
)
VERDICTS = {
    "pass": "pass", "passed": "pass", "ok": "pass", "good": "pass", "healthy": "pass", "accept": "pass",
    "warn": "warn", "warning": "warn",
    "fail": "fail", "failed": "fail", "bad": "fail", "failure": "fail", "reject": "fail",
    "error": "unknown", "unknown": "unknown", "unreadable": "unknown", "refuse": "unknown",
}  # fmt: skip


_REMARKS = ("note", "notes", "comment", "why", "reason", "remark", "remarks", "source", "description")
UNIT_NAMES = {
    "s": "s", "ms": "ms", "us": "us", "usec": "us", "ns": "ns", "Gb/s": "gbps", "Gb/sec": "gbps", "GB/s": "gbs",
    "MB/s": "mbs", "%": "percent", "percent": "percent",
}  # fmt: skip
"""Units as they are printed, and as a name carries them at its end."""


class CorpusError(Exception):
    """The corpus, or one index of it, is not there or cannot be read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Capture:
    """One capture with what is right about it. `problem` says why it cannot be judged."""

    folder: str
    name: str
    path: Path | None
    verdict: str | None
    values: Mapping[str, Any]
    profile: str | None
    options: Mapping[str, Any]
    tool: str | None
    reference: bool = False
    problem: str = ""
    fidelity: str = ""


def folders(root: Path) -> list[Path]:
    """Return the folders that have an index, the root itself included; CorpusError when there is none."""
    if not root.is_dir():
        raise CorpusError(f"{root} is not there. Give the corpus's folder with --corpus or CORPUS.")
    found = sorted({path.parent for name in INDEX_NAMES for path in root.rglob(name)})
    if not found:
        raise CorpusError(f"{root} has no index.yaml in it or below it. Give the corpus's folder with --corpus.")
    return found


def read(root: Path) -> Iterator[Capture]:
    """Yield every capture of the corpus; CorpusError when an index cannot be read."""
    for folder in folders(root):
        yield from read_index(folder, str(folder.relative_to(root)))


def read_index(folder: Path, name: str) -> list[Capture]:
    """Return the captures that a folder's index lists."""
    path = next(folder / n for n in INDEX_NAMES if (folder / n).is_file())
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise CorpusError(f"{path}: cannot be read: {str(exc).splitlines()[0]}") from exc
    entries, common = entries_of(data)
    if not entries:
        raise CorpusError(f"{path}: lists no capture: neither a list nor a mapping of entries is in it.")
    return [_capture(folder, name, entry, common) for entry in entries]


def entries_of(data: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return the entries of an index and what stands beside them and holds for all."""
    if isinstance(data, list):
        return [_as_entry(item) for item in data], {}
    if not isinstance(data, dict):
        return [], {}
    for key in _LIST_KEYS:
        inner = data.get(key)
        if isinstance(inner, (list, dict)) and inner:
            common = {k: v for k, v in data.items() if k != key}
            entries, _none = entries_of(inner) if isinstance(inner, list) else (_mapping_entries(inner), {})
            return entries, common
    return _mapping_entries(data), {k: v for k, v in data.items() if not isinstance(v, dict)}


def _mapping_entries(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of a mapping from a capture's name to what is known of it."""
    return [{"file": str(name), **item} for name, item in data.items() if isinstance(item, dict)]


def _as_entry(item: Any) -> dict[str, Any]:
    return {str(k): v for k, v in item.items()} if isinstance(item, dict) else {"file": str(item)}


def _first(entry: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    return next((entry[k] for k in keys if entry.get(k) is not None), None)


def _capture(folder: Path, name: str, entry: dict[str, Any], common: Mapping[str, Any]) -> Capture:
    file = _find_file(folder, entry)
    shown = str(_first(entry, ("id", "name", *_SURE_FILE_KEYS)) or "?")
    verdict = _verdict(entry)
    values = _values(entry)
    profile = _first(entry, _PROFILE_KEYS) or _first(common, _PROFILE_KEYS)
    options: dict[str, Any] = {}
    for key in _OPTION_KEYS:
        for source in (common.get(key), entry.get(key)):
            options |= source if isinstance(source, dict) else {}
    problem = ""
    reference = bool(entry.get("reference_only")) or (file is None and _first(entry, _SURE_FILE_KEYS) is None)
    if file is None and not reference:
        problem = f"its file is not there: {_first(entry, _SURE_FILE_KEYS)}"
    elif not reference and verdict is None and not values:
        problem = "the index gives neither a verdict nor a value"
    tool = entry.get("tool") or entry.get("module") or common.get("tool") or common.get("module")
    return Capture(
        name,
        file.relative_to(folder).as_posix() if file else shown,
        file,
        verdict,
        values,
        str(profile) if isinstance(profile, str) else None,
        options,
        str(tool) if isinstance(tool, str) else None,
        reference,
        problem,
        str(entry.get("fidelity") or ""),
    )


def _find_file(folder: Path, entry: Mapping[str, Any]) -> Path | None:
    """Return the entry's file, or its folder when it names several; None when there is none."""
    for key in _FILE_KEYS:
        value = entry.get(key)
        names = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else [value]
        paths = [folder / str(n) for n in names if isinstance(n, str) and n and not Path(n).is_absolute()]
        there = [p for p in paths if p.exists() and folder.resolve() in (p.resolve(), *p.resolve().parents)]
        if there and len(there) == len(paths):
            parents = {p.parent for p in there}
            # Several readings of one machine lie in a folder of their own: a support bundle.
            return there[0] if len(there) == 1 or parents == {folder} else parents.pop()
    for key in _FILE_KEYS:
        # "007" for 007-nv17.txt.
        stem = entry.get(key)
        if isinstance(stem, (str, int)) and not isinstance(stem, bool) and "/" not in str(stem):
            there = [p for p in sorted(folder.iterdir()) if p.is_file() and p.name.startswith(f"{stem}")]
            there = [p for p in there if p.name not in INDEX_NAMES and not p.name[len(str(stem)) :][:1].isalnum()]
            if len(there) == 1:
                return there[0]
    return None


def _verdict(entry: Mapping[str, Any]) -> str | None:
    """Return the right verdict in the gates' words."""
    places: list[Any] = [entry, *(entry[k] for k in _VALUE_KEYS if isinstance(entry.get(k), dict))]
    for place in places:
        for key in _VERDICT_KEYS:
            word = place.get(key)
            if isinstance(word, dict):
                word = word.get("verdict") or word.get("expected") or word.get("value")
            if isinstance(word, str) and word.strip().lower() in VERDICTS:
                return VERDICTS[word.strip().lower()]
    return None


def _values(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the right values by dotted path: those under a key that says so, else all that is no remark."""
    found: dict[str, Any] = {}
    for key in _VALUE_KEYS:
        if isinstance(entry.get(key), (dict, list)):
            found |= flatten(entry[key])
    if not found:
        skip = {*_NOTE_KEYS, *_FILE_KEYS, *_VERDICT_KEYS, *_OPTION_KEYS, *_PROFILE_KEYS, *_VALUE_KEYS, "module"}
        found = flatten({k: v for k, v in entry.items() if k not in skip})
    for path in [p for p in found if p.endswith(".value")]:
        # A value with its unit beside it, such as {value: 400, unit: Gb/s}.
        bare = path.removesuffix(".value")
        unit = UNIT_NAMES.get(str(found.pop(f"{bare}.unit", "")), "")
        found[f"{bare}_{unit}" if unit else bare] = found.pop(path)
    kept = {k: v for k, v in found.items() if k.rsplit(".", 1)[-1] not in _VERDICT_KEYS}
    return {k: v for k, v in kept.items() if "." in k or k not in _REMARKS}


def flatten(data: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested data by dotted path. A list of plain values is one leaf."""
    if isinstance(data, Mapping) and data:
        found: dict[str, Any] = {}
        for key, value in data.items():
            found |= flatten(value, f"{path}.{key}" if path else str(key))
        return found
    if isinstance(data, (list, tuple)) and any(isinstance(x, (Mapping, list, tuple)) for x in data):
        found = {}
        for name, value in zip(_item_names(data), data, strict=True):
            found |= flatten(value, f"{path}.{name}" if path else name)
        return found
    if not path or isinstance(data, Mapping):
        return {}
    return {path: list(data) if isinstance(data, (list, tuple)) else data}


def _item_names(items: Sequence[Any]) -> list[str]:
    """Return what the items of a list are called: their own names where each has one, else their places."""
    for key in ("name", "device", "hca", "subject", "gpu", "index", "link", "id"):
        names = [
            str(item[key]).replace(".", "_")
            for item in items
            if isinstance(item, Mapping) and isinstance(item.get(key), (str, int)) and str(item[key])
        ]
        if len(set(names)) == len(items):
            return names
    return [str(place) for place in range(len(items))]

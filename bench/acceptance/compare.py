# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Hold the right values of an index against what a module measured: names and units differ, numbers may not. Pure."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from bench.acceptance.corpus import UNIT_NAMES

# A number behind a unit in a name; the first unit of each kind is what values are turned into.
_UNITS: dict[str, tuple[str, float]] = {
    "s": ("time", 1.0), "sec": ("time", 1.0), "seconds": ("time", 1.0), "ms": ("time", 1e-3), "us": ("time", 1e-6),
    "usec": ("time", 1e-6), "ns": ("time", 1e-9),
    "gbps": ("rate", 1.0), "gbs": ("byterate", 1.0), "gbytes": ("byterate", 1.0), "mbs": ("byterate", 1e-3),
    "percent": ("share", 1.0), "pct": ("share", 1.0), "fraction": ("share", 100.0),
    "bytes": ("size", 1.0), "kib": ("size", 1024.0), "mib": ("size", 2.0**20), "gib": ("size", 2.0**30),
}  # fmt: skip
# Words that name the same thing in an index and in a gate's report.
_SAME: tuple[frozenset[str], ...] = tuple(
    frozenset(words.split())
    for words in (
        "gpus gpucount numgpus ngpus gpunum attachedgpus count",
        "driver driverversion",
        "lat latency typical ttypical tmedian typicallatency typ median",
        "p99 99percentile percentile99 t99",
        "p999 999percentile percentile999 t999",
        "tmin min", "tmax max", "tavg avg average mean",
        "sent transmitted packetstransmitted packetssent",
        "received packetsreceived answered",
        "loss packetloss losspercent",
        "bwaverage bwavg bandwidth avgbw averagebw bw",
        "bwpeak peakbw peak",
        "busbw busbandwidth maxbusbw peakbusbw",
        "algbw algbandwidth", "avgbusbw avgbusbandwidth averagebusbandwidth",
        "wrong errors nwrong wrongcount outofbounds outofboundsvalues",
        "offset systemoffset offsets systemtime", "stratum", "leap leapstatus", "reference refid referenceid",
        "xids xid xidcodes codes", "state logicalstate portstate", "physicalstate physical phys physstate",
        "rate speed portrate", "smlid", "baselid lid", "linklayer layer", "firmware firmwareversion fw fwversion",
        "serf serfhealth", "maxenabledlatency exitlatency deepestlatency maxlatency latencyus maxexitlatency",
        "nodes numanodes numnodes available",
        "links activelinks linkcount", "width nvlinkwidth nvlink linkwidth nv",
        "nics niccount hcas numnics", "iterations iters", "size bytes messagesize msgsize",
    )
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """A right value that the module did not measure so."""

    name: str
    expected: Any
    got: Any


@dataclasses.dataclass(frozen=True, slots=True)
class Comparison:
    """What came of all right values of a capture."""

    matched: int
    differences: tuple[Difference, ...]
    not_compared: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class _Name:
    """A dotted name as it is compared: its last word without a unit, the parts before it as words, the unit."""

    leaf: str
    context: tuple[tuple[str, ...], ...]
    unit: str


def _words(text: str) -> list[str]:
    return [w for w in re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower()) if w]


def _tokens(text: str) -> tuple[str, ...]:
    """mlx5_3 as (mlx, 5, 3), and GPU 3 as (gpu, 3)."""
    return tuple(re.findall(r"[a-z]+|[0-9]+", text.lower()))


def _name(path: str, unit: str = "") -> _Name:
    *before, last = [p for p in path.split(".") if p] or [""]
    words = _words(last)
    if len(words) > 1 and words[-1] in _UNITS:
        unit = unit or words.pop()
    return _Name("".join(words), tuple(_tokens(part) for part in before), unit)


def _fits(wanted: tuple[str, ...], there: tuple[str, ...]) -> bool:
    """Whether a part of a name is what the index calls it: gpu3 or 3 is GPU 3 at 0000:61:00, and not GPU 30."""
    bare = there[1:] if there and there[0].isalpha() else ()
    return bool(wanted) and (there[: len(wanted)] == wanted or bare[: len(wanted)] == wanted)


def _closeness(wanted: _Name, name: _Name) -> int | None:
    """Return how many parts of the wanted name the other one has; None when it is of another subject."""
    score = 0
    for part in wanted.context:
        if any(_fits(part, other) for other in name.context):
            score += 1
        elif any(token.isdigit() for token in part):
            return None
    return score


def _meant(right: Any, wanted: _Name, found: list[tuple[_Name, Any]]) -> list[tuple[_Name, Any]]:
    """Return those of the values with a fitting name that are meant: of one kind, called so, the least deep."""
    many = isinstance(right, (list, tuple))
    found = [x for x in found if isinstance(x[1], (list, tuple)) == many] or found
    found = [x for x in found if x[0].leaf == wanted.leaf] or found
    depth = min((len(n.context) for n, _value in found), default=0)
    return [x for x in found if len(x[0].context) == depth]


def _same_leaf(one: str, other: str) -> bool:
    return one == other or any(one in words and other in words for words in _SAME)


def compare(expected: Mapping[str, Any], measured: Mapping[str, tuple[Any, str]]) -> Comparison:
    """Compare by name. A right value that no measured one is named like is not compared, which is no match."""
    names = [(_name(path, unit), value) for path, (value, unit) in measured.items()]
    matched = 0
    differences: list[Difference] = []
    not_compared: list[str] = []
    for path, right in expected.items():
        wanted = _name(path)
        scored = [(_closeness(wanted, n), n, v) for n, v in names if _same_leaf(wanted.leaf, n.leaf)]
        best = max((score for score, _n, _v in scored if score is not None), default=0)
        found = [(n, v) for score, n, v in scored if score == best]
        found = _meant(right, wanted, found)
        same = [equal(right, wanted.unit, value, n.unit) for n, value in found]
        if not same or (any(same) and not all(same)):
            # None has that name, or several have and do not agree: nobody can say which one is meant.
            not_compared.append(path)
        elif all(same):
            matched += 1
        else:
            differences.append(Difference(path, right, found[0][1]))
    return Comparison(matched, tuple(differences), tuple(not_compared))


def equal(right: Any, right_unit: str, got: Any, got_unit: str) -> bool:
    """Return whether two values are the same, units and spelling aside."""
    if isinstance(right, (list, tuple)) or isinstance(got, (list, tuple)):
        many, one = (right, got) if isinstance(right, (list, tuple)) else (got, right)
        if isinstance(one, int) and not isinstance(one, bool):
            return len(many) == one
        if not isinstance(one, (list, tuple)):
            return _texts(many) == _texts([one])
        # How often a thing happened is another value than what happened.
        return _texts(right) == _texts(got) or set(_texts(right)) == set(_texts(got))
    one, other = number(right), number(got)
    if one is not None and other is not None:
        factor = _factor(right_unit) / _factor(got_unit) if _kind(right_unit) == _kind(got_unit) else 1.0
        # 1 in the last place that was printed is no difference.
        return math.isclose(one * factor, other, rel_tol=2e-3, abs_tol=1e-9)
    if isinstance(right, bool) or isinstance(got, bool):
        return _truth(right) is not None and _truth(right) == _truth(got)
    if right is None or got is None:
        return right is got
    return _text(right) == _text(got)


def number(value: Any) -> float | None:
    """Return the number a value is or begins with, such as 400 of "400 Gb/s"; None when it is none."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, (int, float)):
        return float(value) if math.isfinite(value) else None
    match = re.fullmatch(r"\s*([-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*[A-Za-z/%#]{0,8}\s*", str(value))
    return float(match[1]) if match else None


def _factor(unit: str) -> float:
    return _UNITS[unit][1] if unit in _UNITS else 1.0


def _kind(unit: str) -> str:
    return _UNITS[unit][0] if unit in _UNITS else ""


def _truth(value: Any) -> bool | None:
    if isinstance(value, bool):
        return value
    words = {"yes": True, "true": True, "on": True, "enabled": True, "active": True, "no": False, "false": False}
    return {**words, "off": False, "disabled": False, "not active": False}.get(str(value).strip().lower())


def _text(value: Any) -> str:
    return re.sub(r"\s+", " ", str(value)).strip().lower()


def _texts(values: Iterable[Any]) -> list[str]:
    numbers = [number(v) for v in values]
    return sorted(f"{n:g}" if n is not None else _text(v) for n, v in zip(numbers, values, strict=True))


def measured_unit(unit: str) -> str:
    """Return the unit of a check as names carry it."""
    return UNIT_NAMES.get(unit, "")

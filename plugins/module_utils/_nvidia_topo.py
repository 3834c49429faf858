# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Strict reader of `nvidia-smi topo -m`, by header text and never by driver version.

What cannot be read with certainty is reported as a `Problem` with its line; nothing is guessed. The only exception that
leaves `parse` is `TopoError`, when the text holds no matrix of this kind at all.

What proves that the output is whole is the matrix itself, not the legend behind it. The header names every device; each
of them must have a row, and a row must have a cell for every device, an X on its diagonal and nowhere else. Both cells
of a pair are compared, so half of a cut cell ("NV1" of "NV18") shows too. The drivers of forms F and G always print a
legend, but captures are often kept without it (and `topo -mp` has another one), so its absence alone is no reason to
doubt the rows above: only HCAs that need it to be named are unknown then. What a cut can take away unseen is behind the
last link cell of the last row. In a GPU's row those are the affinity cells, where a NUMA cell that is not there is
unknown unless it is blank for all GPUs; in a NIC's row nothing is judged there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

PCIE_CLASSES: tuple[str, ...] = ("PIX", "PXB", "PHB", "NODE", "SYS")
"""PCIe link classes from near to far."""

_P2P_TOKENS = frozenset({"OK", "CNS", "GNS", "TNS", "NS", "U", "DR"})
# Whole escape sequences, and what is left of a colour sequence when something already removed the ESC byte.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]|\[[0-9;]*m")
_COMMENT = re.compile(r"^\s*(?:[#>]+\s?)+")
# Digits are ASCII and few: a name is a number to sort by, and garbage must stay garbage.
_GPU = re.compile(r"GPU[0-9]{1,4}")
_DEVICE = re.compile(r"[A-Za-z][A-Za-z0-9_.:-]*[0-9][A-Za-z0-9_.:-]*")
_NVLINK = re.compile(r"NV([1-9][0-9]{0,2})")
# A link class with something stuck to it: two cells have become one, and every cell after it is under a wrong column.
_SHIFTS = re.compile(r"(?:PIX|PXB|PHB|NODE|SYS|SOC|NV[0-9]|PH|X).")
_LIST = re.compile(r"[0-9]{1,6}(-[0-9]{1,6})?(,[0-9]{1,6}(-[0-9]{1,6})?)*")
_NIC_LEGEND = re.compile(r"(NIC[0-9]+)\s*:\s*(\S+)")
_TRAILING = (
    ("cpu", re.compile(r"CPU\s+Affinity")),
    ("numa", re.compile(r"NUMA\s+Affinity")),
    ("gpu_numa", re.compile(r"GPU\s+NUMA\s+ID")),
)
_ERROR_WORDS = re.compile(
    r"\b(error|errors|fail|failed|unable|lost|mismatch|could\s?n[o']t|cannot|not found|invalid|timed? ?out)\b",
    re.IGNORECASE,
)
_SHOWN = 160


class TopoError(ValueError):
    """The text is not a `topo -m` matrix; the message says what it is and `line` shows it."""

    def __init__(self, reason: str, line: str = "") -> None:
        """Keep the reason and the line that gave it away."""
        super().__init__(f"{reason}: {shown(line)}" if line else reason)
        self.reason = reason
        self.line = line


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """A line that could not be read, counted from 1, as it was printed, and why."""

    number: int
    line: str
    reason: str
    subject: str = "output"

    def __str__(self) -> str:
        """Return one line for people."""
        return f"line {self.number} cannot be read ({self.reason}): {shown(self.line)}"


@dataclasses.dataclass(frozen=True, slots=True)
class Affinity:
    """The trailing cells of a GPU row. "" is a blank cell, "N/A" is what the tool printed, None: the form lacks it."""

    cpu: str | None = None
    numa: str | None = None
    gpu_numa: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Topology:
    """A matrix as read. `cells[(row, column)]` is a link class (SOC reads as SYS); unreadable cells are absent."""

    devices: tuple[str, ...]
    cells: dict[tuple[str, str], str]
    affinity: dict[str, Affinity]
    nic_names: dict[str, str]
    problems: tuple[Problem, ...]

    @property
    def gpus(self) -> tuple[str, ...]:
        """GPU names in the order of their numbers."""
        return tuple(sorted((d for d in self.devices if _GPU.fullmatch(d)), key=gpu_index))

    @property
    def nics(self) -> tuple[str, ...]:
        """Names of the NIC columns as printed."""
        return tuple(d for d in self.devices if not _GPU.fullmatch(d))

    def nic_column(self, hca: str) -> str | None:
        """Return the column of an HCA by its device name, through the NIC legend where columns are numbered."""
        if hca in self.nics:
            return hca
        return next((column for column, name in self.nic_names.items() if name == hca and column in self.nics), None)

    def nic_name(self, column: str) -> str | None:
        """Return the device name of a NIC column; None when it is numbered and the legend does not name it."""
        return self.nic_names.get(column) if re.fullmatch(r"NIC[0-9]+", column) else column


def gpu_index(name: str) -> int:
    """Return the number in a name such as GPU3."""
    return int(name[3:])


def width(cell: str | None) -> int:
    """Return the number of bonded NVLinks of a cell, 0 when it is no NVLink."""
    match = _NVLINK.fullmatch(cell or "")
    return int(match[1]) if match else 0


def shown(line: str) -> str:
    """Return a line fit for a message: visible, stripped and not longer than a terminal or two."""
    text = " ".join("".join(c if c.isprintable() else " " for c in line).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def number_set(text: str | None) -> frozenset[int] | None:
    """Return the numbers of a list such as 0-3,8 (None: blank, N/A, or not a list)."""
    if text is None or not _LIST.fullmatch(text):
        return None
    numbers: set[int] = set()
    for part in text.split(","):
        low, _sep, high = part.partition("-")
        first, last = int(low), int(high or low)
        if last < first or last - first > 65536:
            return None
        numbers.update(range(first, last + 1))
    return frozenset(numbers)


def format_set(numbers: frozenset[int] | set[int]) -> str:
    """Return numbers as a range list, the inverse of `number_set`."""
    ranges: list[list[int]] = []
    for n in sorted(numbers):
        if ranges and n == ranges[-1][1] + 1:
            ranges[-1][1] = n
        else:
            ranges.append([n, n])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


@dataclasses.dataclass(frozen=True, slots=True)
class _Line:
    number: int
    raw: str
    text: str


def parse(text: str) -> Topology:
    """Read a matrix. Raises TopoError when there is none; everything else unreadable becomes a Problem."""
    lines = [_Line(n, raw, _clean(raw)) for n, raw in enumerate(text.lstrip("\ufeff").splitlines(), 1)]
    start, devices, trailing = _find_header(lines)
    cells: dict[tuple[str, str], str] = {}
    affinity: dict[str, Affinity] = {}
    problems = [p for line in lines[:start] for p in _stray(line)]
    seen: set[str] = set()
    legend = False
    for line in lines[start + 1 :]:
        stripped = line.text.strip().strip("|").strip()
        if not stripped or set(stripped) <= set("-|: "):
            continue
        if re.match(r"(NIC\s+)?Legend\b", stripped, re.IGNORECASE):
            legend = True
        name = re.split(r"[\s|]", stripped, maxsplit=1)[0]
        if legend:
            if name in devices:
                # The matrix of topo -p2p is often kept behind this one, and is another matter.
                if not set(stripped.replace("|", " ").split()[1:]) <= {*_P2P_TOKENS, "X", *devices}:
                    problems.append(Problem(line.number, line.raw, "a second matrix after the legend"))
            else:
                problems.extend(_stray(line))
            continue
        if name not in devices:
            # After the last row a capture may go on with a prompt; before it, any other line is a broken row.
            if len(seen) < len(devices):
                problems.append(Problem(line.number, line.raw, "not the row of a device in the header"))
            else:
                problems.extend(_stray(line))
            continue
        if name in seen:
            problems.append(Problem(line.number, line.raw, f"a second row for {name}", name))
            continue
        seen.add(name)
        row = _read_row(line, name, devices, trailing)
        problems.extend(row.problems)
        cells.update({(name, column): token for column, token in row.links.items()})
        if row.affinity is not None:
            affinity[name] = row.affinity
    for device in devices:
        if device not in seen:
            problems.append(
                Problem(lines[start].number, lines[start].raw, f"{device} is in the header and has no row", device)
            )
    _refuse_pcie_only(lines[start + 1 :], cells)
    names: dict[str, str] = {}
    for line in lines[start + 1 :]:
        if (match := _NIC_LEGEND.fullmatch(line.text.strip())) and names.setdefault(match[1], match[2]) != match[2]:
            problems.append(Problem(line.number, line.raw, f"a second name for {match[1]}", match[1]))
    return Topology(devices, cells, affinity, names, tuple(problems))


def _clean(raw: str) -> str:
    return _COMMENT.sub("", _ESCAPES.sub("", raw.rstrip("\r\n")))


def _stray(line: _Line) -> Iterator[Problem]:
    """Yield a problem for an error message printed beside the matrix: such a reading is not to be trusted."""
    if _ERROR_WORDS.search(line.text):
        yield Problem(line.number, line.raw, "an error message beside the matrix")


def _find_header(lines: list[_Line]) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    """Return the header's index in `lines`, the device columns and the trailing columns."""
    for index, line in enumerate(lines):
        found = _read_header(line.text)
        if found is not None:
            if len(set(found[0])) != len(found[0]):
                raise TopoError("the header names a device twice", line.raw)
            _refuse_p2p(lines[index + 1 :])
            return index, *found
    for line in lines:
        if re.match(r"GPU[0-9]+(\s|\|)", line.text.strip().strip("|").strip()):
            raise TopoError("no header line that names the columns", line.raw)
    first = next((line.raw for line in lines if line.text.strip()), "")
    raise TopoError("no topology matrix" if first else "the output is empty", first)


def _read_header(text: str) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Return device columns and trailing columns of a header line, None when the line is no header."""
    flat = " ".join(text.replace("|", " ").split())
    trailing: list[str] = []
    rest = flat
    first_trailing = len(flat)
    for key, pattern in _TRAILING:
        match = pattern.search(flat)
        if match:
            trailing.append(key)
            first_trailing = min(first_trailing, match.start())
            rest = rest.replace(match[0], " ", 1)
    tokens = tuple(flat[:first_trailing].split())
    if not tokens or not _GPU.fullmatch(tokens[0]) or not all(_DEVICE.fullmatch(t) and not _is_link(t) for t in tokens):
        return None
    extra = rest.split()[len(tokens) :]
    if extra:
        raise TopoError(f"unknown column {' '.join(extra)!r} in the header", text)
    return tokens, tuple(trailing)


def _refuse_p2p(rows: list[_Line]) -> None:
    """Refuse the peer-to-peer status matrix, which has the same header and other cells."""
    for line in rows:
        tokens = line.text.replace("|", " ").split()
        if tokens and tokens[0].startswith("Legend"):
            return
        if tokens and _GPU.fullmatch(tokens[0]) and any(t in _P2P_TOKENS for t in tokens[1:]):
            raise TopoError("this is the peer-to-peer matrix of topo -p2p, not the one of topo -m", line.raw)


def _refuse_pcie_only(lines: list[_Line], cells: dict[tuple[str, str], str]) -> None:
    """Refuse the matrix of PCIe paths: GPUs that are joined by NVLink show SYS or NODE there.

    It has the cells of `topo -m` on a board without NVLink, but its legend does not explain NV#, which that of
    `topo -m` does on every board since SYS is called so.
    """
    first = next((line for line in lines if re.match(r"\s*SYS\s*=", line.text)), None)
    if first is None or any(width(cell) for cell in cells.values()):
        return
    if not any(re.match(r"\s*NV#\s*=", line.text) for line in lines):
        raise TopoError(
            "this is the matrix of PCIe paths of topo -mp, not the one of topo -m: no NV# in its legend", first.raw
        )


def _is_link(token: str) -> bool:
    return token == "X" or token == "SOC" or token in PCIE_CLASSES or _NVLINK.fullmatch(token) is not None


@dataclasses.dataclass(slots=True)
class _Row:
    links: dict[str, str]
    affinity: Affinity | None
    problems: list[Problem]


def _read_row(line: _Line, name: str, devices: tuple[str, ...], trailing: tuple[str, ...]) -> _Row:
    """Read one row: the link cells, then on GPU rows the affinity cells."""
    row = _Row({}, None, [])
    body = line.text.strip().lstrip("|").strip(" ")[len(name) :]
    exact = "\t" in body or "|" in body
    separator = "|" if "|" in body else "\t"
    if exact:
        fields = [f.strip() for f in body.split(separator)]
        # The text up to the first separator is what follows the row's name: normally nothing.
        fields = fields[1:] if not fields[0] else fields
    else:
        fields = body.split()
    tokens: list[str] = []
    rest: list[str] = []
    for position, field in enumerate(fields):
        parts = field.split() if field else [""]
        room = len(devices) - len(tokens)
        tokens.extend(parts[:room])
        if len(parts) > room:
            rest.append(" ".join(parts[room:]))
        if len(tokens) == len(devices):
            rest.extend(fields[position + 1 :])
            break
    if len(tokens) < len(devices):
        row.problems.append(Problem(line.number, line.raw, f"{len(tokens)} cells for {len(devices)} columns", name))
        # A cell is missing somewhere: which column each remaining one belongs to is not known.
        return row
    for column, token in zip(devices, tokens, strict=True):
        reason = _refuse_cell(name, column, token)
        if reason:
            row.problems.append(Problem(line.number, line.raw, reason, name))
            if _SHIFTS.match(token) or _plausible(token):
                return row
        else:
            row.links[column] = "SYS" if token == "SOC" else token
    if _GPU.fullmatch(name):
        values = _trailing_cells(rest, len(trailing), exact)
        if values is None:
            row.problems.append(
                Problem(
                    line.number, line.raw, f"affinity cells do not fit the {len(trailing)} columns", f"{name} affinity"
                )
            )
        else:
            row.affinity = Affinity(**dict(zip(trailing, values, strict=True)))
    elif any(cell and not _plausible(cell) for cell in rest):
        row.problems.append(Problem(line.number, line.raw, "more cells than columns", name))
    return row


def _refuse_cell(row: str, column: str, token: str) -> str | None:
    """Return why a cell cannot be taken, None when it can."""
    if not token:
        return f"blank cell under {column}"
    if not _is_link(token):
        return f"unknown cell {shown(token)!r} under {column}"
    if (token == "X") != (row == column):
        return f"{token} under {column}, X belongs on the diagonal only"
    return None


def _plausible(cell: str) -> bool:
    return cell in ("", "N/A") or _LIST.fullmatch(cell) is not None


def _trailing_cells(fields: list[str], count: int, exact: bool) -> list[str] | None:
    """Return the affinity cells, None when they cannot be told apart.

    With cell boundaries (tabs), a cell may be blank, and the tool prints an extra tab in front of the last one. Without
    them (tabs turned into spaces) only a full set of values is certain.
    """
    if any(" " in f for f in fields):
        fields, exact = " ".join(fields).split(), False
    cells = list(fields)
    if exact:
        while cells and not cells[-1]:
            cells.pop()
        surplus = len(cells) - count
        position = len(cells) - 1
        while surplus > 0 and position > 0:
            # GPU NUMA ID, the third column, is N/A or on Grace a number; both come after two tabs.
            numbered = count == 3 and position == len(cells) - 1 and cells[position].isdecimal()
            if cells[position - 1] == "" and (cells[position] == "N/A" or numbered):
                del cells[position - 1]
                surplus -= 1
                position -= 1
            position -= 1
        cells += [""] * (count - len(cells))
    if len(cells) != count or not all(_plausible(c) for c in cells):
        return None
    return cells

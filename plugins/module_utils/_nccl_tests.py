# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What all_reduce_perf of nccl-tests printed, and whether it is enough for the board. Pure functions.

The table has had several layouts: an "error" column and no root, "#wrong" with root, more columns with a report for
each iteration, and behind prefixes of MPI, Slurm or a log collector. So the columns are taken from the header, a row is
found wherever it stands in its line, and a row that NCCL's messages tore apart is put together again.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import BOARDS, NcclFloor, Profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import (
    Check,
    Evidence,
    Verdict,
    compare,
    unknown,
)

CHECKS: dict[str, str] = {
    "nccl_bandwidth.units": "The node's inference units can be read, so that it is known which GPUs work together; "
    "only judged when units are to be measured, and a unit of one GPU, which has nothing to measure, passes.",
    "nccl_bandwidth.busy": "No process uses the GPUs that are to be measured, as nvidia-smi lists them, or there is "
    "a result of this boot to judge in place of a new one.",
    "nccl_bandwidth.failure": "Neither the exit status nor the text of all_reduce_perf tells of an error; an error "
    "that names a defect is a fail, any other leaves the bandwidth unmeasured.",
    "nccl_bandwidth.output": "The output is one whole all_reduce table: every announced size from option size on, "
    "numbers that agree with each other, the closing lines.",
    "nccl_bandwidth.gpus": "Number of GPUs that took part (Rank lines), held against the unit, the option gpus or the "
    "board profile.",
    "nccl_bandwidth.product": "Product name of every GPU in the Rank lines, held against the board profile whose floor "
    "is used.",
    "nccl_bandwidth.correct": "Wrong elements (#wrong, or the error column) over all sizes and the closing line 'Out "
    "of bounds values'; the limit is 0.",
    "nccl_bandwidth.busbw": "The lower of the out-of-place and in-place busbw of every row from option size on, held "
    "against option min_busbw or the profile's floor for the number of GPUs and the algorithm.",
    "nccl_bandwidth.port_share": "Over several nodes, the same busbw divided by the RDMA ports of a node, held against "
    "the profile's share of one port.",
}

GIB = 1 << 30
ALGORITHMS = {"ring": "Ring", "nvls": "NVLS"}
"""Values of option algorithm that have a floor, and what NCCL_ALGO and the profiles call them."""
_TIME_TOLERANCE = 0.03
"""How far algbw may be from size / time, which is printed with as few as four digits and is a mean."""
_RING_REACH = 1.03
"""Up to this many times the reported Ring value a run is one of Ring: 365 to 370 were reported (NVIDIA/nccl 1455)."""
_FACTOR_TOLERANCE = 0.01
"""How far busbw may be from its factor times algbw when somebody only told the number of GPUs."""
_ROUNDING = 0.03
"""How far it may be with the Rank lines: both are printed with two decimals, so a Rank line that is lost shows."""
_MOST_SIZES = 100_000

_TYPES = {
    "int8": 1, "uint8": 1, "char": 1, "f8e4m3": 1, "f8e5m2": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "half": 2, "float16": 2,
    "bfloat16": 2, "int": 4, "int32": 4, "uint32": 4, "float": 4, "float32": 4, "int64": 8, "uint64": 8, "double": 8,
    "float64": 8,
}  # fmt: skip
"""Bytes of an element. A row of all_reduce holds size / bytes elements, one of reduce_scatter does not."""
_ERROR_LIMIT = {1: 0.0, 2: 1e-2, 4: 1e-5, 8: 1e-12}
"""What the old error column may show for a floating-point type of that many bytes (nccl-tests before 2.13)."""

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_THREADS = re.compile(r"nThreads?:?\s+(\d{1,6})\s+nGpus:?\s+(\d{1,6})\b")
_BYTES = re.compile(r"minBytes:?\s+(\d{1,18})\s+maxBytes:?\s+(\d{1,18})\s+step:?\s+(\d{1,18})\((factor|bytes)\)")
_VALIDATION = re.compile(r"validation:\s*(\d{1,6})")
_REDUCED = re.compile(r"Reducing maxBytes to (\d{1,18})")
_STARTING = re.compile(r"Collective test starting:\s*(\S+)")
_VERSION = re.compile(r"nccl-tests version (\S+)(?:.*nccl-library=(\d+))?")
_LIBRARY = re.compile(r"\bNCCL version (\d+\.\d+(?:\.\d+)?)")
_RANK = re.compile(
    r"\bRank\s+(\d{1,6})\s+(?:Group\s+\d+\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+(\d+)\s+\[([^\]]{0,64})\]\s*(.*)$"
)
_HEADER = re.compile(r"\b(?:size|bytes)\s+(?:count|N)\s+type\b.{0,400}\bbusbw\b")
_ROW = re.compile(
    r"(?<![\w.,-])(\d{1,18})\s+(\d{1,18})\s+"
    rf"({'|'.join(sorted(_TYPES, key=len, reverse=True))})\s+([A-Za-z]\w*)(?=\s|$)"
)
_ROOT = re.compile(r"\s+(-?\d{1,6})(?![\d.])")
_CELL = re.compile(r"(?:[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?\*?|N/A|[-+]?nan|[-+]?inf)", re.IGNORECASE)
_LABEL = re.compile(r"\[\d{1,5}\]")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\S+)\s*(\S*)")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)\s*(\S*)")
_LAST_ERROR = re.compile(r"^\s*#\s*error:\s*(\S.*)")

_ALGO_SET = re.compile(
    r"\bNCCL_ALGO(?:\s+set by environment to\s+|=)[\"']?(?:allreduce:)?(\^?[A-Za-z]+)[\"'.]?(?=\s|$)", re.IGNORECASE
)
_ALGO_CHOSEN = re.compile(r"AllReduce:? .{0,200}Algo (\w+) proto", re.IGNORECASE)
_NO_NVLS = re.compile(r"\bNCCL_NVLS_ENABLE(?:\s+set by environment to\s+|=)[\"']?0\b")
_ALGOS = {
    "ring": "Ring", "1": "Ring", "nvls": "NVLS", "4": "NVLS", "tree": "Tree", "0": "Tree", "nvlstree": "NVLSTree",
    "5": "NVLSTree", "collnetdirect": "CollNetDirect", "2": "CollNetDirect", "collnetchain": "CollNetChain",
    "3": "CollNetChain", "pat": "PAT", "6": "PAT",
}  # fmt: skip

# The first of these that a line holds is what the line tells. A defect that is named is a fail.
_DEFECTS: tuple[tuple[re.Pattern[str], str, str], ...] = (
    (
        re.compile(r"system not yet initialized", re.IGNORECASE),
        "the NVLink fabric is not initialised",
        "Start nvidia-fabricmanager of the driver's version and wait for Fabric State Completed on every GPU.",
    ),
    (
        re.compile(r"uncorrectable (?:ECC|NVLink) error|ECC error encountered", re.IGNORECASE),
        "a GPU reported an uncorrectable error",
        "See the kernel log for the XID and the gate gpu_health for the GPU.",
    ),
    (
        re.compile(r"GPU is lost|fallen off the bus", re.IGNORECASE),
        "a GPU was lost",
        "See the kernel log for XID 79 and reset or reseat the GPU.",
    ),
    (
        re.compile(r"invalid device ordinal|Invalid number of GPUs|no CUDA-capable device", re.IGNORECASE),
        "fewer GPUs are there than were asked for",
        "Compare nvidia-smi -L with the inference units.",
    ),
)
_FAILURES = re.compile(
    r"Test (?:\w+ )?failure|\b(?:NCCL|CUDA|MPI) (?:failure|error)\b|unhandled (?:system|cuda) error|Segmentation fault"
    r"|Caught signal \d|exited on signal|core dumped|out of memory|Bus error|MPI_ABORT was invoked|terminate called"
    r"|internal error - please report|remote process exited|error while loading shared libraries|command not found"
    r"|Aborted|exiting improperly|process(?:es)? exited with|srun: error|^\s*Killed",
    re.IGNORECASE,
)
# NCCL's own messages: plugins that are not there, peers that went away. What ended the test, the test says itself.
_CHATTER = re.compile(r"\bNCCL (?:INFO|WARN|TRACE)\b")
_BY_HAND = "Run it again by hand with NCCL_DEBUG=INFO; the first NCCL WARN tells what failed."


@dataclasses.dataclass(frozen=True, slots=True)
class Half:
    """One half of a row. `wrong` is None where the tool printed N/A: the sums were not checked."""

    time_us: float
    algbw: float
    busbw: float
    wrong: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One size. `root` is None in the layout without that column; `halves` are out-of-place and in-place."""

    line: str
    size: int
    count: int
    dtype: str
    redop: str
    root: int | None
    halves: tuple[Half, ...]

    @property
    def busbw(self) -> float:
        """The lower of both halves in GB/s."""
        return min(half.busbw for half in self.halves)


@dataclasses.dataclass(frozen=True, slots=True)
class Device:
    """One Rank line."""

    rank: int
    host: str
    index: int
    bus: str
    product: str


@dataclasses.dataclass(slots=True)
class Run:
    """One run of a test as it was printed; None is a line that is not there. `damage` are lines that make no row."""

    collective: str | None = None
    version: str | None = None
    library: str | None = None
    per_process: int | None = None
    min_bytes: int | None = None
    max_bytes: int | None = None
    step: int = 0
    by_factor: bool = False
    validation: int | None = None
    devices: list[Device] = dataclasses.field(default_factory=list)
    columns: tuple[str, ...] = ()
    rows: list[Row] = dataclasses.field(default_factory=list)
    damage: list[str] = dataclasses.field(default_factory=list)
    bounds: tuple[str, str] | None = None
    average: tuple[str, str] | None = None
    closed: int = 0

    @property
    def ranks(self) -> int | None:
        """GPUs that took part, by the Rank lines."""
        return len(self.devices) or None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Names of the hosts in the Rank lines."""
        return tuple(dict.fromkeys(device.host for device in self.devices))

    @property
    def products(self) -> tuple[str, ...]:
        """Product names in the Rank lines."""
        return tuple(dict.fromkeys(device.product for device in self.devices))

    @property
    def empty(self) -> bool:
        """Whether nothing was measured."""
        return not self.rows and not self.damage and not self.devices


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
    """A line that tells of an error. `verdict` is fail where it names a defect."""

    line: str
    verdict: Verdict
    meaning: str
    remedy: str


@dataclasses.dataclass(frozen=True, slots=True)
class Expect:
    """What a run is held against. `gpus` None: as many as the Rank lines name; `asked` says who asks for the number."""

    size: int = 8 * GIB
    board: Profile | None = None
    algorithm: str = "auto"
    min_busbw: float | None = None
    gpus: int | None = None
    asked: str = "option gpus"
    stated: bool = False
    """The caller says of a table without its head what it was measured on, or what it has to reach."""
    profiled: bool = False
    """The caller names the board of a table without its head, whose numbers then tell how many GPUs it had."""
    ports: int | None = None
    checked: bool = False
    """The test was told to check its sums (-c 1), whatever its output says."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The checks of one run and what was measured, for reports."""

    checks: tuple[Check, ...]
    measured: dict[str, Any]


def board_of(text: str) -> Profile | None:
    """Return the board whose floors hold for the GPUs in the Rank lines, None when no board has all of them.

    Two boards share a product's name; the one with NVSwitch is the usual one, and its floors are the higher ones.
    """
    products = {device.product for run in parse(text) for device in run.devices}
    boards = [b for b in BOARDS.values() if products and all(b.product_matches(product) for product in products)]
    return boards[0] if boards else None


def parse(text: str) -> list[Run]:
    """Return the runs in a text, in their order. Never raises."""
    reader = _Reader()
    for line in _ANSI.sub("", text).splitlines():
        reader.read(line)
    reader.end_row()
    return [run for run in reader.runs if not run.empty or run.per_process is not None]


class _Reader:
    """Reads line by line: the run that is open, what was told of the next one, and a row that is not whole yet."""

    def __init__(self) -> None:
        self.runs: list[Run] = []
        self._next = Run()
        self._open: list[str] = []
        self._cells: list[str] = []

    def read(self, line: str) -> None:
        """Take one line."""
        if found := _VERSION.search(line):
            self._next.version, self._next.library = found[1], found[2]
        elif found := _LIBRARY.search(line):
            (self.runs[-1] if self.runs else self._next).library = found[1]
        elif found := _STARTING.search(line):
            self._next.collective = found[1]
        elif found := _THREADS.search(line):
            self._start(line, int(found[1]) * int(found[2]))
        elif found := _RANK.search(line):
            self._run().devices.append(Device(int(found[1]), found[2], int(found[3]), found[4], found[5].strip()))
        elif found := _REDUCED.search(line):
            self._run().max_bytes = int(found[1])
        elif _HEADER.search(line):
            self.end_row()
            self._run().columns = tuple(line.replace("#wrong", "wrong").replace("#", " ").split())
        elif found := _ROW.search(line):
            self._start_row(line, found)
        elif found := _BOUNDS.search(line):
            self.end_row()
            self._run().bounds = (found[1], found[2])
        elif found := _AVERAGE.search(line):
            self.end_row()
            run = self._run()
            run.average, run.closed = (found[1], found[2]), run.closed + 1
        elif self._open:
            self._continue_row(line)

    def _run(self) -> Run:
        if not self.runs:
            self.runs.append(self._next)
            self._next = Run()
        return self.runs[-1]

    def _start(self, line: str, per_process: int) -> None:
        self.end_row()
        if self.runs:
            self.runs.append(self._next)
            self._next = Run()
        run = self._run()
        run.per_process = per_process
        if found := _BYTES.search(line):
            run.min_bytes, run.max_bytes, run.step = int(found[1]), int(found[2]), int(found[3])
            run.by_factor = found[4] == "factor"
        if found := _VALIDATION.search(line):
            run.validation = int(found[1])

    def _start_row(self, line: str, found: re.Match[str]) -> None:
        self.end_row()
        self._open = [found[1], found[2], found[3], found[4], line.strip()]
        self._cells = []
        rest = _LABEL.sub(" ", line[found.end() :])
        columns = self._run().columns
        root = _ROOT.match(rest)
        if "root" in columns or (not columns and root):
            if root is None:
                return
            self._open.append(root[1])
            rest = rest[root.end() :]
        self._take(rest)

    def _continue_row(self, line: str) -> None:
        """Take the rest of a row whose head was followed by NCCL's messages."""
        words = _LABEL.sub(" ", re.sub(r"^.*<std(?:out|err|diag)>:", "", line)).split()
        # Fewer than the cells of one half are some other line's numbers.
        if len(words) >= 4 and all(_CELL.fullmatch(word) for word in words[:4]):
            self._take(" ".join(words))

    def _take(self, text: str) -> None:
        for word in text.split():
            if not _CELL.fullmatch(word):
                return
            self._cells.append(word)

    def end_row(self) -> None:
        """Close the row that is open: a row, or damage when it is not whole."""
        if not self._open:
            return
        run, head, cells = self._run(), self._open, self._cells
        self._open, self._cells = [], []
        row = _row(head, cells, run.columns)
        if row is None:
            run.damage.append(head[4])
        else:
            run.rows.append(row)


def _row(head: Sequence[str], cells: Sequence[str], columns: Sequence[str]) -> Row | None:
    """Return a row, None when it has not the cells its header announces."""
    measures = [c for c in columns if c in ("time", "cputime", "algbw", "busbw", "wrong", "error", "res")]
    halves = measures.count("busbw") or 2
    width = 4
    if columns:
        if measures != [*(m for m in measures[:4])] * halves or len(measures) != 4 * halves:
            return None
        extra = sum(1 for c in columns if re.fullmatch(r"i_[a-z0-9]+%?", c))
        width += extra // halves
    if len(cells) != halves * width:
        return None
    found = []
    for number in range(halves):
        half = _half(cells[number * width : number * width + 4])
        if half is None:
            return None
        found.append(half)
    root = int(head[5]) if len(head) > 5 else None
    return Row(head[4], int(head[0]), int(head[1]), head[2], head[3], root, tuple(found))


def _half(cells: Sequence[str]) -> Half | None:
    """Return one half; None when a number of it is missing, not finite or negative. A NaN of sums is kept."""
    numbers = []
    for cell in cells[:3]:
        number = _number(cell)
        if number is None or not math.isfinite(number) or number < 0:
            return None
        numbers.append(number)
    wrong = _number(cells[3])
    if wrong is None and cells[3].upper() != "N/A":
        return None
    return Half(numbers[0], numbers[1], numbers[2], wrong)


def _number(cell: str) -> float | None:
    try:
        return float(cell.rstrip("*"))
    except ValueError:
        return None


def failures(text: str) -> list[Failure]:
    """Return the lines that tell of an error, those that name a defect first; each meaning once."""
    found: dict[str, Failure] = {}
    for line in _ANSI.sub("", text).splitlines():
        words = line.strip()[:240]
        defect = next(((meaning, remedy) for pattern, meaning, remedy in _DEFECTS if pattern.search(line)), None)
        if defect:
            found.setdefault(defect[0], Failure(words, "fail", *defect))
        elif _FAILURES.search(line) and not _CHATTER.search(line):
            found.setdefault("error", Failure(words, "unknown", "the test ended with an error", _BY_HAND))
        elif told := _LAST_ERROR.search(line):
            found.setdefault("told", Failure(told[1][:240], "warn", "NCCL's last warning", _BY_HAND))
    return sorted(found.values(), key=lambda failure: ("fail", "unknown", "warn").index(failure.verdict))


def chosen_algorithm(text: str) -> str | None:
    """Return the algorithm that NCCL says it used for the last size, None when it does not say. For information."""
    chosen = [_ALGOS.get(found[1].lower()) for found in _ALGO_CHOSEN.finditer(text)]
    return chosen[-1] if chosen else None


def set_algorithm(text: str) -> str | None:
    """Return the algorithm that the environment asked for by the text, None when it does not say.

    What NCCL chose by itself is no reason to judge it by another floor: where it fell back to Ring, something is wrong.
    """
    names = {found[1].lower() for found in _ALGO_SET.finditer(text)}
    if len(names) == 1:
        name = names.pop()
        return "Ring" if name == "^nvls" else _ALGOS.get(name)
    return "Ring" if _NO_NVLS.search(text) and not names else None


def judge(reading: Evidence, subject: str, expect: Expect) -> list[Outcome]:
    """Judge what one command printed: an outcome for each run, or one that says why there is none."""
    text = f"{reading.stdout}\n{reading.stderr}"
    runs = parse(reading.stdout)
    kept = [run for run in runs if _is_all_reduce(run)] or runs
    errors = list(_errors(reading, text, subject))
    if not kept:
        if not errors:
            errors = [_output(subject, _nothing(reading))]
        return [Outcome(tuple(errors), {"set": subject})]
    algorithm = set_algorithm(f"{reading.stands_for or reading.command}\n{text}")
    used = algorithm or chosen_algorithm(text)
    outcomes = []
    for number, run in enumerate(kept, 1):
        name = subject if len(kept) == 1 else f"{subject} run {number}"
        outcome = judge_run(run, name, expect, algorithm)
        checks = (*(errors if number == 1 else ()), *outcome.checks)
        outcomes.append(Outcome(checks, {**outcome.measured, "algorithm": used}))
    return outcomes


def _errors(reading: Evidence, text: str, subject: str) -> Iterator[Check]:
    """Yield what keeps the reading from being a good run: a defect, an error, a deadline, a bad exit status."""
    told = failures(text)
    for failure in told:
        value = failure.line if failure.verdict != "unknown" else None
        reason = f"{failure.meaning}: {failure.line}" if value is None else failure.meaning
        yield Check("nccl_bandwidth.failure", subject, failure.verdict, reason, value, remedy=failure.remedy)
    if reading.error:
        remedy = "Look for a GPU or a link that hangs: XIDs in the kernel log, processes in state D."
        yield unknown("nccl_bandwidth.failure", subject, f"{reading.command}: {reading.error}", remedy)
    elif reading.rc != 0 and not any(failure.verdict != "warn" for failure in told):
        yield unknown("nccl_bandwidth.failure", subject, f"{reading.command} ended with status {reading.rc}", _BY_HAND)


def _nothing(reading: Evidence) -> str:
    first = next((line.strip() for line in reading.stdout.splitlines() if line.strip(" \t-=*#")), "")
    return f"no table of nccl-tests in it; its first line is {first[:120]!r}" if first else "the output is empty"


def _is_all_reduce(run: Run) -> bool:
    """Whether a run is one of all_reduce_perf, by its name or else by its rows."""
    if run.collective is not None:
        return "all_reduce" in run.collective.lower()
    return not any(_other_collective(row) for row in run.rows)


def _other_collective(row: Row) -> bool:
    if row.redop.lower() == "none" or row.root not in (None, -1):
        return True
    return row.count * _TYPES[row.dtype] != row.size


def _output(subject: str, reason: str) -> Check:
    remedy = "Keep the whole output of all_reduce_perf, from its first line to the line of the average."
    return unknown("nccl_bandwidth.output", subject, reason, remedy)


def judge_run(run: Run, subject: str, expect: Expect, algorithm: str | None) -> Outcome:
    """Judge one run."""
    large = [row for row in run.rows if row.size >= expect.size]
    ranks = run.ranks or (expect.gpus if expect.stated else None)
    if ranks is None and expect.profiled and run.columns and run.per_process is None:
        ranks = _ranks_of(large)
    checks = [_output(subject, problem) for problem in _problems(run, large, expect, ranks)]
    checks += _gpus(run, subject, expect, ranks)
    if expect.board is not None and expect.min_busbw is None:
        checks += _product(run, subject, expect.board)
    checks.append(_correct(run, subject, expect))
    checks += _own_minimum(run, subject)
    measured: dict[str, Any] = {
        "set": subject,
        "gpus": ranks,
        "nodes": len(run.hosts) or None,
        "product": ", ".join(run.products) or None,
        "average": _number(run.average[0]) if run.average else None,
        "rows": [
            {
                "size": row.size,
                "busbw": [half.busbw for half in row.halves],
                "algbw": [half.algbw for half in row.halves],
                "wrong": [half.wrong for half in row.halves],
            }
            for row in run.rows
        ],
        "busbw": None,
    }
    if large:
        lowest = min(large, key=lambda row: row.busbw)
        measured |= {"busbw": lowest.busbw, "size": lowest.size}
        checks += _bandwidth(run, lowest, subject, expect, algorithm, ranks)
    finite = {key: value for key, value in measured.items() if not isinstance(value, float) or math.isfinite(value)}
    return Outcome(tuple(checks), finite)


def _problems(run: Run, large: Sequence[Row], expect: Expect, ranks: int | None) -> Iterator[str]:
    """Yield why the text is not one whole table of all_reduce."""
    if run.collective is not None and "all_reduce" not in run.collective.lower():
        yield f"the test is {run.collective}, the floors are those of all_reduce"
    elif other := next((row for row in run.rows if _other_collective(row)), None):
        yield f"this row is not one of all_reduce: {other.line}"
    for line in run.damage:
        yield f"a row of the table could not be read: {line[:160]}"
    if not large:
        most = max((row.size for row in run.rows), default=None)
        seen = "there is no row at all" if most is None else f"the largest is {most} B"
        yield f"no row of {expect.size} B or more, where busbw is at its peak; {seen}"
    for size in _missing_sizes(run, expect.size):
        yield f"the head announces sizes up to {run.max_bytes} B, the row of {size} B is missing"
    if run.bounds is None:
        yield "the closing line 'Out of bounds values' is missing: the output is cut off"
    if run.average is None:
        yield "the closing line 'Avg bus bandwidth' is missing: the output is cut off"
    elif (_number(run.average[0]) or 0) <= 0:
        yield f"the average bus bandwidth is {run.average[0]}"
    if run.closed > 1:
        yield "two tables under one head"
    yield from _rank_problems(run, expect.stated and not expect.checked)
    for row in large:
        if problem := _contradiction(row, run, ranks):
            yield problem


def _missing_sizes(run: Run, size: int) -> Iterator[int]:
    """Yield the first announced size from `size` on that has no row."""
    if run.min_bytes is None or run.max_bytes is None:
        return
    there = sorted(row.size for row in run.rows)
    wanted = run.min_bytes
    for _number_of_size in range(_MOST_SIZES):
        if wanted > run.max_bytes:
            return
        # A size is rounded down to whole elements.
        if wanted >= size and not any(wanted - 256 < seen <= wanted for seen in there):
            yield wanted
            return
        wanted = wanted * run.step if run.by_factor else wanted + run.step
        if run.step < (2 if run.by_factor else 1):
            return


def _rank_problems(run: Run, stated: bool) -> Iterator[str]:
    if not run.devices:
        if run.per_process is not None and not stated:
            yield "the Rank lines, which name the GPUs, are missing"
        return
    if run.max_bytes is None or run.per_process is None:
        yield "the line with nGpus, minBytes and maxBytes is missing: it is not known which sizes were asked for"
    numbers = [device.rank for device in run.devices]
    if sorted(numbers) != list(range(len(numbers))):
        twice = [number for number in numbers if numbers.count(number) > 1]
        if twice:
            yield f"rank {twice[0]} is there twice: several runs in one text, as of a test that was built without MPI"
        else:
            yield f"the Rank lines do not count from 0 to {len(numbers) - 1}: lines are missing"
    elif len({(device.host, device.index, device.bus) for device in run.devices}) < len(numbers):
        yield "several ranks share a GPU, which is no measurement of the links"
    elif run.per_process and len(numbers) % run.per_process:
        yield f"{len(numbers)} Rank lines for processes of {run.per_process} GPUs: lines are missing"


def _contradiction(row: Row, run: Run, ranks: int | None) -> str | None:
    """Return how the numbers of a row contradict each other, None when they agree."""
    for half in row.halves:
        if half.busbw <= 0 or half.algbw <= 0 or half.time_us <= 0:
            return f"a bandwidth or time of 0 was not measured: {row.line}"
        if "cputime" not in run.columns and not _near(half.algbw, row.size / half.time_us / 1e3, _TIME_TOLERANCE):
            return f"algbw {half.algbw} is not size / time: {row.line}"
        factor = 2 * (ranks - 1) / ranks if ranks is not None and ranks > 1 else None
        exact = run.ranks is not None and half.busbw < 1000
        if factor is not None and not (
            abs(half.busbw - half.algbw * factor) <= _ROUNDING
            if exact
            else _near(half.busbw, half.algbw * factor, _FACTOR_TOLERANCE)
        ):
            return f"busbw {half.busbw} is not algbw x 2(n-1)/n for {ranks} GPUs: {row.line}"
    return None


def _near(value: float, wanted: float, tolerance: float) -> bool:
    return abs(value - wanted) <= tolerance * wanted + 0.02


def _ranks_of(rows: Sequence[Row]) -> int | None:
    """Return the only number of GPUs whose factor 2(n-1)/n lies between busbw and algbw of every row."""
    halves = [half for row in rows for half in row.halves if half.algbw > 0 and half.busbw < 1000]
    found = {round(2 / (2 - half.busbw / half.algbw)) if half.busbw < 1.99 * half.algbw else None for half in halves}
    ranks = found.pop() if len(found) == 1 else None
    return ranks if ranks is not None and ranks > 1 else None


def _gpus(run: Run, subject: str, expect: Expect, ranks: int | None) -> list[Check]:
    """Judge the number of GPUs; several nodes are judged by the share of a port, the number is then the job's."""
    name, remedy = "nccl_bandwidth.gpus", "Compare nvidia-smi -L with the inference units."
    if run.ranks is None:
        if expect.stated and not expect.checked:
            return []
        if ranks is not None and expect.profiled and not expect.checked and expect.gpus in (None, ranks):
            reason = "GPUs that took part, by busbw / algbw = 2(n-1)/n; no Rank line names them"
            return [Check(name, subject, "pass", reason, ranks, expect.gpus, "GPUs", expect.asked)]
        reason = "no Rank line names the GPUs"
        return [unknown(name, subject, reason, "Keep the whole output, or give the option gpus.", expect.gpus)]
    if expect.gpus is None:
        return []
    reason = f"GPUs that took part, on {', '.join(run.hosts)}"
    good = run.ranks == expect.gpus
    return [
        compare(
            name,
            subject,
            run.ranks,
            expect.gpus,
            ok=good,
            unit="GPUs",
            limit_source=expect.asked,
            reason=reason,
            remedy=remedy,
        )
    ]


def _product(run: Run, subject: str, board: Profile) -> list[Check]:
    """Judge that the floors are those of the cards that were measured."""
    name, limit = "nccl_bandwidth.product", " or ".join(board.products)
    if not run.devices:
        return []
    strange = [device for device in run.devices if not board.product_matches(device.product)]
    if not strange:
        return [Check(name, subject, "pass", "product of the GPUs", run.products[0], limit, "", board.source)]
    first = strange[0]
    reason = f"rank {first.rank} on {first.host} is {first.product!r}, the floors of {board.name} do not hold for it"
    return [unknown(name, subject, reason, "Give the profile of this board, or min_busbw.", limit, board.source)]


def _correct(run: Run, subject: str, expect: Expect) -> Check:
    """Judge the sums over all rows, and the closing line."""
    name, limit, source = "nccl_bandwidth.correct", 0, "nccl-tests"
    remedy = "Wrong sums are broken hardware or driver: see XIDs and ECC counters, then test the GPUs in pairs."
    for row in run.rows:
        for half in row.halves:
            # The older column is the largest relative error, not a number of elements.
            relative = "wrong" not in run.columns if run.columns else row.root is None
            allowed = _ERROR_LIMIT[_TYPES[row.dtype]] if relative else 0.0
            if half.wrong is not None and not half.wrong <= allowed:
                reason = f"wrong elements at {row.size} B: {row.line}"
                return Check(name, subject, "fail", reason, f"{half.wrong:g}", limit, "", source, remedy)
    if run.bounds is not None and (run.bounds[1].upper().startswith("FAIL") or _number(run.bounds[0]) not in (None, 0)):
        reason = "the closing line 'Out of bounds values' tells of wrong elements"
        return Check(name, subject, "fail", reason, " ".join(run.bounds), limit, "", source, remedy)
    if run.bounds is None or run.bounds != ("0", "OK"):
        said = "is missing" if run.bounds is None else f"reads {' '.join(run.bounds)!r}"
        return unknown(name, subject, f"the closing line 'Out of bounds values' {said}", remedy, limit, source)
    unchecked = [row for row in run.rows if any(half.wrong is None for half in row.halves)]
    if not unchecked:
        rows = len(run.rows)
        if not rows:
            return unknown(name, subject, "there is no row whose sums were checked", remedy, limit, source)
        return Check(name, subject, "pass", f"wrong elements in {rows} rows", 0, limit, "", source)
    reason = f"the sums were not checked: {unchecked[0].line}"
    again = "Measure with -c 1."
    if run.validation == 0 and not expect.checked:
        # The test was told not to look: its bandwidth counts, and that its sums are right is not known.
        return Check(name, subject, "warn", reason, "N/A", limit, "", source, again)
    return unknown(name, subject, reason, again, limit, source)


def _own_minimum(run: Run, subject: str) -> list[Check]:
    """Return the test's own verdict on its average, which it gives where NCCL_TESTS_MIN_BW is set."""
    if run.average is None or not run.average[1].upper().startswith("FAIL"):
        return []
    reason = "the average of all sizes is below the test's own minimum (NCCL_TESTS_MIN_BW)"
    return [Check("nccl_bandwidth.busbw", subject, "fail", reason, run.average[0], limit_source="NCCL_TESTS_MIN_BW")]


def _bandwidth(
    run: Run, lowest: Row, subject: str, expect: Expect, algorithm: str | None, ranks: int | None
) -> list[Check]:
    """Judge the lowest busbw of the large rows."""
    halves = " and ".join(f"{half.busbw:g}" for half in lowest.halves)
    reason = (
        f"busbw at {lowest.size} B over {ranks or 'an unknown number of'} GPUs (out-of-place and in-place {halves})"
    )
    remedy = "Compare with the other units and nodes; look at nvlink_topology, nvlink_status and gpu_health first."
    if expect.min_busbw is not None:
        return [_held(lowest.busbw, expect.min_busbw, "option min_busbw", subject, reason, remedy)]
    if expect.board is None:
        return [_unlimited(f"{reason}: no limit is known, give a profile or min_busbw", lowest.busbw, subject)]
    if any(not expect.board.product_matches(product) for product in run.products):
        why = f"{expect.board.name} has no floor for {', '.join(run.products)}"
        return [_unlimited(f"{reason}: {why}", lowest.busbw, subject)]
    # Without Rank lines a job of whole boards is over several nodes all the same.
    whole = expect.board.gpu_count
    boards = ranks // whole if ranks is not None and whole and ranks % whole == 0 else 1
    nodes = len(run.hosts) or boards
    if nodes > 1:
        return [_port_share(run, lowest, subject, expect, expect.board, nodes)]
    wanted = _wanted(expect, algorithm)
    if isinstance(wanted, str):
        return [_unlimited(f"{reason}: {wanted}", lowest.busbw, subject)]
    floors = [expect.board.nccl_floor(ranks, algo) for algo in wanted] if ranks is not None else []
    floor = next((found for found in floors if found is not None), None)
    if floor is None:
        why = f"{expect.board.name} has no floor for {ranks or 'an unknown number of'} GPUs with {' or '.join(wanted)}"
        return [_unlimited(f"{reason}: {why}", lowest.busbw, subject)]
    source = f"{expect.board.source}, {floor.gpus} GPUs with {floor.algo}"
    ring = expect.board.nccl_floor(ranks, "Ring") if ranks is not None else None
    if floor.algo == "NVLS" and ring is not None and lowest.busbw < floor.floor.value:
        reason, remedy = _below_nvls(lowest.busbw, ring, reason, remedy)
    return [_held(lowest.busbw, floor.floor.value, source, subject, reason, remedy)]


def _below_nvls(busbw: float, ring: NcclFloor, reason: str, remedy: str) -> tuple[str, str]:
    """Return reason and remedy of a run that is below the floor of NVLink SHARP: which kind of defect it looks like."""
    if busbw < ring.floor.value:
        return reason, remedy
    if busbw <= _RING_REACH * ring.expected.value:
        return f"{reason}: what Ring reaches, so NVLink SHARP is not at work", (
            "See NCCL_ALGO and NCCL_NVLS_ENABLE in /etc/nccl.conf and Fabric Manager's log. If that is meant, set "
            "algorithm to ring."
        )
    return f"{reason}: more than Ring reaches ({ring.expected.value:g}), so NVLink SHARP is at work and slow", (
        "One GPU or link slows all: look at nvlink_status for errors and links that are down, and at gpu_health for "
        "clocks that are held back."
    )


def _wanted(expect: Expect, algorithm: str | None) -> tuple[str, ...] | str:
    """Return the algorithms whose floor counts, best first, or why none does."""
    asked = ALGORITHMS.get(expect.algorithm)
    if asked is not None:
        if algorithm is not None and algorithm != asked:
            return f"it was measured with {algorithm}, the floor that is asked for is that of {asked}"
        return (asked,)
    if algorithm is not None:
        return (algorithm,)
    # NCCL itself takes NVLS on a board with NVSwitch; if it did not, its result is below this floor, as it should be.
    return ("NVLS", "Ring") if expect.board is not None and expect.board.nvswitch else ("Ring",)


def _unlimited(reason: str, value: float, subject: str) -> Check:
    return Check("nccl_bandwidth.busbw", subject, "unknown", reason, value, None, "GB/s")


def _held(value: float, limit: float, source: str, subject: str, reason: str, remedy: str) -> Check:
    return compare(
        "nccl_bandwidth.busbw",
        subject,
        value,
        limit,
        ok=value >= limit,
        unit="GB/s",
        limit_source=source,
        reason=reason,
        remedy=remedy,
    )


def _port_share(run: Run, lowest: Row, subject: str, expect: Expect, board: Profile, nodes: int) -> Check:
    """Judge several nodes by what one RDMA port carries."""
    name = "nccl_bandwidth.port_share"
    per_node = {host: sum(1 for device in run.devices if device.host == host) for host in run.hosts}
    rule = board.nccl_port_gbytes
    # On a board with a rail for each GPU every GPU of the job has its port.
    ports = expect.ports or (min(per_node.values(), default=board.gpu_count) if rule is not None else None)
    if ports is None or rule is None:
        reason = (
            f"{nodes} nodes reach {lowest.busbw} GB/s: {board.name} has no floor over several nodes, give min_busbw"
        )
        return Check(name, subject, "unknown", reason, lowest.busbw, None, "GB/s", board.source)
    share = round(lowest.busbw / ports, 2)
    return compare(
        name,
        subject,
        share,
        rule.value,
        ok=share >= rule.value,
        unit="GB/s",
        limit_source=f"{board.source}: {rule.source}",
        reason=f"busbw {lowest.busbw} GB/s at {lowest.size} B over {nodes} nodes, divided by {ports} ports a node",
        remedy="Measure the ports with ib_bandwidth; NCCL_ALGO=Ring shows the network alone.",
    )

#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate nccl_bandwidth: the GPUs that work together reach the bandwidth of their board, with right sums."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_bandwidth
short_description: Prove the all_reduce bandwidth of a node's GPUs with nccl-tests
version_added: 0.1.0
description:
  - Runs C(all_reduce_perf) at one large size over the GPUs of each inference unit (C(CUDA_VISIBLE_DEVICES) by UUID) and
    over all GPUs of the board, with the sums checked.
  - Judges C(busbw), never C(algbw) and never the average line, of every row of at least O(size), and of out-of-place
    and in-place the lower one. A link or GPU that is slow slows both, and they differ by less than a percent on good
    hardware, so the lower one hides nothing and raises no false alarm.
  - The floor belongs to the board, the number of GPUs and the algorithm. A number of GPUs without a floor, a missing
    row, a table that is cut off and numbers that contradict each other are V(unknown).
  - Reads every layout of the table that nccl-tests has had, also behind the prefixes of MPI and Slurm.
  - It loads the GPUs and needs about three times O(size) of memory on each. GPUs that a process uses are not disturbed.
    For them the result in O(last) is judged again when it is of this boot. When C(nvidia-smi) does not tell who uses
    the GPUs, nothing is started and the bandwidth is V(unknown).
author: The ai_infra.gpu_rack authors (!UNKNOWN)
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  profile:
    description:
      - Board profile the floors come from. Its product names must match the Rank lines.
      - Without it captured output is held against the board its Rank lines name, V(hgx_h100_8) for H100 SXM. On a node
        there are no floors without it.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  min_busbw:
    description: Floor in GB/s for every measured set in place of the profile's, for any product and number of nodes.
    type: float
  size:
    description:
      - Size that is measured, and the smallest one that is judged. NCCL is below its peak at less than 8 GiB.
      - A number of bytes, or with a suffix as V(16G).
    type: bytes
    default: 8589934592
  iterations:
    description: Timed iterations of each half.
    type: int
    default: 20
  warmup:
    description: Iterations before the timed ones.
    type: int
    default: 5
  algorithm:
    description:
      - Whose floor counts. V(ring) and V(nvls) also set C(NCCL_ALGO) for the test.
      - With V(auto), NCCL chooses. Where the output says that the environment asked for an algorithm (C(NCCL_ALGO),
        C(NCCL_NVLS_ENABLE)), its floor counts, else that of the best one the board has, NVLS with NVSwitch and Ring
        without. NCCL that fell back to Ring on an NVSwitch board is a fault, so its own choice does not count.
    type: str
    choices: [auto, ring, nvls]
    default: auto
  sets:
    description:
      - Which GPUs are measured together, those of the V(board), those of each of the V(units), or V(both). A unit that
        has all GPUs of the board is measured once, and a unit of one GPU has nothing to measure, which is a V(pass) of
        C(nccl_bandwidth.units) that says so.
      - The profiles of single cards have no floor for the whole board. There, V(both) is V(units) unless O(gpus) or
        O(min_busbw) is given, and V(board) is V(unknown).
      - Not used when O(captured) is one file.
    type: str
    choices: [board, units, both]
    default: both
  gpus:
    description:
      - Number of GPUs of the board, by default the profile's, or else those of all units.
      - With one captured file, the number of GPUs in the job. A table without its Rank lines is only judged when this,
        O(min_busbw) or O(profile) is given. With the last alone its busbw and algbw tell how many GPUs there were,
        unless the head of the run is there, which makes it one that lost its Rank lines.
    type: int
  ports:
    description:
      - RDMA ports of a node, for output over several nodes. By default one for each GPU of the job on HGX boards.
    type: int
  units_file:
    description: File with the inference units, as M(ai_infra.gpu_rack.inference_units) writes it.
    type: path
    default: /etc/gpu_rack/inference_units.json
  tool:
    description: Name or path of the test.
    type: str
    default: all_reduce_perf
  last:
    description: File on the host that keeps the last measurement, for GPUs that are in use by the next run.
    type: path
    default: /var/lib/gpu_rack/last/nccl_bandwidth.json
notes:
  - In a support bundle the readings are C(all_reduce_perf-board.txt), C(all_reduce_perf-<unit>.txt) and
    C(inference_units.json).
  - With one captured file everything in it is judged, each run of all_reduce on its own; what only other files tell
    (the units, processes on the GPUs) is not asked for.
  - Sums that were not checked because the captured test was told so (C(-c 0)) are a V(warn), as its bandwidth still
    counts; a live run always checks them, and C(N/A) there is V(unknown).
seealso:
  - module: ai_infra.gpu_rack.nvlink_topology
  - module: ai_infra.gpu_rack.fleet_consistency
"""

EXAMPLES = r"""
- name: Prove the bandwidth of the board and of each unit
  ai_infra.gpu_rack.nccl_bandwidth:
    profile: hgx_h100_8
    timeout: 300
    evidence_dir: /var/lib/gpu_rack/evidence/20261130T120000Z/hardware

- name: Judge what somebody else measured over two nodes
  ai_infra.gpu_rack.nccl_bandwidth:
    profile: hgx_h100_8
    ports: 8
    captured: /tmp/nccl-2-nodes.txt
"""

RETURN = r"""
verdict:
  description: The worst verdict, V(pass), V(warn), V(fail) or V(unknown).
  returned: always
  type: str
summary:
  description: One line with the worst check, the measured value and the limit.
  returned: always
  type: str
gate:
  description: Name of the gate.
  returned: always
  type: str
  sample: nccl_bandwidth
checks:
  description: Every judged fact, with value, limit, source of the limit, reason and remedy.
  returned: always
  type: list
  elements: dict
evidence:
  description: The commands that were run, how they ended, and the SHA-256 of what they printed.
  returned: always
  type: list
  elements: dict
measured:
  description: What each set of GPUs reached.
  returned: always
  type: list
  elements: dict
  contains:
    set:
      description: V(board), the id of a unit, or V(captured).
      type: str
    gpus:
      description: Number of GPUs that took part.
      type: int
    nodes:
      description: Number of hosts in the Rank lines.
      type: int
    product:
      description: Product names of the GPUs.
      type: str
    algorithm:
      description: Algorithm that was asked for or that NCCL says it used, null when the output names none.
      type: str
    size:
      description: Size in bytes of the judged row.
      type: int
    busbw:
      description: The judged bus bandwidth in GB/s, null without a row that is large enough.
      type: float
    average:
      description: The average of all sizes as printed, for information only.
      type: float
    rows:
      description: Every row with C(size), and C(busbw), C(algbw) and C(wrong) of both halves.
      type: list
      elements: dict
fleet:
  description: Values and versions that M(ai_infra.gpu_rack.fleet_consistency) compares over the nodes.
  returned: always
  type: dict
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _nccl_tests
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import (
    GATE_ARGS,
    check_numbers,
    fail_unwritten,
    finish_gate,
    write_json,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import (
    Check,
    Evidence,
    result,
    unknown,
    worst,
)

GATE = "nccl_bandwidth"
ARGUMENT_SPEC: dict[str, Any] = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES)},
    "min_busbw": {"type": "float"},
    "size": {"type": "bytes", "default": 8 * _nccl_tests.GIB},
    "iterations": {"type": "int", "default": 20},
    "warmup": {"type": "int", "default": 5},
    "algorithm": {"type": "str", "choices": ["auto", "ring", "nvls"], "default": "auto"},
    "sets": {"type": "str", "choices": ["board", "units", "both"], "default": "both"},
    "gpus": {"type": "int"},
    "ports": {"type": "int"},
    "units_file": {"type": "path", "default": "/etc/gpu_rack/inference_units.json"},
    "tool": {"type": "str", "default": "all_reduce_perf"},
    "last": {"type": "path", "default": "/var/lib/gpu_rack/last/nccl_bandwidth.json"},
}
_BOOT = ("cat", "/proc/sys/kernel/random/boot_id")
_GPU_UUID = re.compile(r"GPU-\S+")
_IN_USE = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,process_name", "--format=csv,noheader")


class GpuSet:
    """GPUs that are measured together. `uuids` empty: all the tool sees; `gpus` None: it is not known how many."""

    def __init__(self, name: str, key: str, uuids: Sequence[str], gpus: int | None, asked: str) -> None:
        """Keep the name in results, the key among the fleet's values, and who asks for the number of GPUs."""
        self.name, self.key, self.uuids, self.gpus, self.asked = name, key, tuple(uuids), gpus, asked

    def command(self, params: Mapping[str, Any]) -> list[str]:
        """Return the command that measures the set."""
        settings = [f"CUDA_VISIBLE_DEVICES={','.join(self.uuids)}"] if self.uuids else []
        if params["algorithm"] != "auto":
            settings.append(f"NCCL_ALGO={_nccl_tests.ALGORITHMS[params['algorithm']]}")
        numbers = {"-b": params["size"], "-e": params["size"], "-g": self.gpus or 1, "-n": params["iterations"]}
        numbers |= {"-w": params["warmup"], "-c": 1}
        words = [str(word) for pair in numbers.items() for word in pair]
        return [*(["env", *settings] if settings else []), params["tool"], *words]

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the reading in a bundle."""
        if self.uuids:
            return (f"all_reduce_perf-{self.name}.txt", f"nccl-{self.name}.txt")
        return ("all_reduce_perf-board.txt", "all_reduce_perf.txt", "nccl-board.txt", "nccl-tests.txt", "nccl.txt")


def read_units(text: str) -> list[dict[str, Any]] | None:
    """Return the units in the file's text, None when it is not what inference_units writes."""
    try:
        units = json.loads(text)["units"]
        good = isinstance(units, list) and all(
            isinstance(unit["id"], str)
            and unit["id"]
            and "/" not in unit["id"]
            and unit["gpus"]
            and all(isinstance(gpu["uuid"], str) and gpu["uuid"] for gpu in unit["gpus"])
            for unit in units
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return units if good and units else None


def gpu_sets(source: Source, params: Mapping[str, Any]) -> tuple[list[GpuSet], list[Check]]:
    """Return what is to be measured, and why some of it is not known."""
    board = profile(params["profile"]) if params["profile"] else None
    count, asked = params["gpus"], "option gpus"
    if count is None and board is not None and board.gpu_count is not None:
        count, asked = board.gpu_count, board.source
    units: list[dict[str, Any]] | None = None
    checks: list[Check] = []
    # Single cards are no board: how many there are is the server's affair, and there is no floor for all of them.
    single = board is not None and board.gpu_count is None and params["min_busbw"] is None and params["gpus"] is None
    with_board = params["sets"] == "board" or (params["sets"] == "both" and not single)
    if params["sets"] != "board" or count is None:
        reading = source.read(["cat", params["units_file"]], "inference_units.json", primary=False)
        reason = refusal(reading)
        units = None if reason else read_units(reading.stdout)
        if units is None:
            reason = reason or f"{params['units_file']} does not hold inference units: {reading.stdout[:80]!r}"
            remedy = "Run the module inference_units first, or measure the board alone (sets: board)."
            checks.append(unknown("nccl_bandwidth.units", "node", reason, remedy))
    if count is None and units is not None:
        count, asked = sum(len(unit["gpus"]) for unit in units), params["units_file"]
    found = []
    if with_board:
        found.append(GpuSet("board", "board", (), count, asked))
    for number, unit in enumerate(units or []) if params["sets"] != "board" else ():
        uuids = [gpu["uuid"] for gpu in unit["gpus"]]
        if len(uuids) < 2:
            alone = "a unit of one GPU: there is nothing to measure between GPUs"
            checks.append(
                Check("nccl_bandwidth.units", unit["id"], "pass", alone, 1, None, "GPUs", params["units_file"])
            )
            continue
        if with_board and params["sets"] == "both" and len(uuids) == count:
            continue
        found.append(GpuSet(unit["id"], f"unit{number}", uuids, len(uuids), "inference unit"))
    return found, checks


class Meter:
    """Measures sets of GPUs, or takes the last result of this boot for those that a process uses."""

    def __init__(self, source: Source, params: Mapping[str, Any]) -> None:
        """Ask who uses the GPUs, and read the last result."""
        self.source, self.params = source, params
        self.fresh = False
        self._used: dict[str, str] = {}
        self._unread: str | None = None
        self._last: Source | None = None
        if not source.live:
            return
        boot = source.read(_BOOT, "boot_id.txt", primary=False)
        apps = source.read(_IN_USE, "nvidia-smi-compute-apps.csv", primary=False)
        self._unread = refusal(apps)
        for line in apps.stdout.splitlines():
            # The process's name comes last and may have commas.
            cells = [cell.strip() for cell in line.split(",", 2)]
            if len(cells) == 3 and _GPU_UUID.fullmatch(cells[0]):
                self._used.setdefault(cells[0], f"process {cells[1]} ({cells[2]})")
            elif line.strip() and not line.strip().lower().startswith("no running processes found"):
                self._unread = self._unread or f"{apps.command}: a line cannot be read: {line.strip()[:160]!r}"
        if self._used:
            last = Source(params["last"], params["timeout"])
            before = last.read(_BOOT, "boot_id.txt", primary=False)
            if not last.single_file and before.rc == 0 and before.stdout == boot.stdout and boot.stdout.strip():
                self._last = last

    def measure(self, gpus: GpuSet) -> Evidence | Check:
        """Return the reading of a set, or why there is none."""
        command = gpus.command(self.params)
        if self._unread is not None:
            reason = f"it is not known who uses its GPUs, so nothing was started; {self._unread}"
            remedy = "Repair nvidia-smi (see gpu_driver) and run the gate again."
            return unknown("nccl_bandwidth.busy", gpus.name, reason, remedy)
        user = next((self._used[u] for u in gpus.uuids or self._used if u in self._used), None)
        if user is None:
            self.fresh = self.source.live
            return self.source.read(command, *gpus.files)
        reading = self._last.read(command, *gpus.files) if self._last is not None else None
        if reading is None or reading.error:
            reason = f"{user} uses its GPUs, and {self.params['last']} has no result of this boot for it"
            return unknown("nccl_bandwidth.busy", gpus.name, reason, "Stop the unit and run the gate again.")
        self.source.used.append(reading)
        return reading


def fleet_of(sets: Sequence[tuple[GpuSet, _nccl_tests.Outcome]], readings: Sequence[Evidence]) -> dict[str, Any]:
    """Return what is compared over the nodes."""
    values = {
        f"nccl_bandwidth.busbw_{gpus.key}": {"value": outcome.measured["busbw"], "unit": "GB/s", "better": "higher"}
        for gpus, outcome in sets
        if outcome.measured.get("busbw") is not None
        and outcome.measured.get("nodes") == 1
        and worst(c.verdict for c in outcome.checks) != "unknown"
    }
    runs = [run for reading in readings for run in _nccl_tests.parse(reading.stdout)]
    versions = {}
    for name, found in (
        ("nccl_bandwidth.nccl_tests", {run.version for run in runs if run.version}),
        ("nccl_bandwidth.nccl_library", {run.library for run in runs if run.library}),
    ):
        # A node with two is told with both; without the fact nobody could compare it.
        if found:
            versions[name] = ", ".join(sorted(found))
    return {"versions": versions, "values": values}


def main() -> None:
    """Measure, judge and report."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    check_numbers(module, positive=["min_busbw", "size", "iterations", "gpus", "ports"], not_negative=["warmup"])
    board = profile(params["profile"]) if params["profile"] else None
    source = Source(params["captured"], params["timeout"])
    checks: list[Check] = []
    if source.single_file:
        sets = [GpuSet("captured", "board", (), params["gpus"], "option gpus")]
    else:
        sets, checks = gpu_sets(source, params)
    meter = Meter(source, params)
    outcomes: list[tuple[GpuSet, _nccl_tests.Outcome]] = []
    readings = []
    for gpus in sets:
        if gpus.gpus is None and source.live:
            reason = "it is not known how many GPUs the board has; give the option gpus"
            checks.append(unknown("nccl_bandwidth.gpus", gpus.name, reason))
            continue
        reading = meter.measure(gpus)
        if isinstance(reading, Check):
            checks.append(reading)
            continue
        readings.append(reading)
        expect = _nccl_tests.Expect(
            size=params["size"],
            board=board or (_nccl_tests.board_of(reading.stdout) if reading.captured else None),
            algorithm=params["algorithm"],
            min_busbw=params["min_busbw"],
            gpus=gpus.gpus,
            asked=gpus.asked,
            stated=params["gpus"] is not None or params["min_busbw"] is not None,
            profiled=board is not None and source.single_file,
            ports=params["ports"],
            checked=not reading.captured,
        )
        outcomes += [(gpus, outcome) for outcome in _nccl_tests.judge(reading, gpus.name, expect)]
    checks += [check for _gpus, outcome in outcomes for check in outcome.checks]
    extra: dict[str, Any] = {
        "measured": [outcome.measured for _gpus, outcome in outcomes],
        "fleet": fleet_of(outcomes, readings),
    }
    if meter.fresh and worst(check.verdict for check in checks) != "unknown":
        try:
            write_json(Path(params["last"]), result(GATE, checks, source.used))
        except (OSError, ValueError) as exc:
            fail_unwritten(module, Path(params["last"]), exc, {**result(GATE, checks, source.used), **extra})
    finish_gate(module, GATE, checks, source.used, **extra)


if __name__ == "__main__":
    main()

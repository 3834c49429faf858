# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""all_reduce_perf of nccl-tests 2.17.6, one process with -g GPUs."""

from __future__ import annotations

import os
import socket
import sys

from simhw import driver, smi
from simhw import hw as store
from simhw.hw import Hw

# Bus bandwidth in GB/s at large sizes (nccl issue 1455): Ring, and NVLS by number of GPUs on an NVSwitch board.
_RING = 366.0
_NVLS = {2: 368.0, 3: 369.0, 4: 371.0, 5: 421.0, 6: 441.0, 7: 461.0, 8: 478.5}
_DIRECT_4 = 363.0  # four H100 on NV6 pairs
_PAIR = 245.0  # NVL bridge, 12 links
_PCIE = 42.0
_LATENCY_US = 32.0
_SUFFIX = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def _size(text: str) -> int:
    last = text[-1:].upper()
    return int(float(text[:-1]) * _SUFFIX[last]) if last in _SUFFIX else int(text)


def busbw(hw: Hw, gpus: list[Hw]) -> float:
    """What this set of GPUs reaches at large sizes."""
    n = len(gpus)
    if n < 2:
        return 0.0
    algorithm = os.environ.get("NCCL_ALGO", "").lower()
    widths = [smi.link_width(hw, a["index"], b["index"]) for a in gpus for b in gpus if a is not b]
    cells = hw["nvlink"]["cells"]
    for a in gpus:
        for b in gpus:
            cell = cells.get(f"{a['index']}-{b['index']}")
            if cell is not None:
                widths.append(int(cell[2:]) if cell.startswith("NV") else 0)
    full = int(hw["nvlink"].get("width", 0))
    worst = min(widths)
    mesh = hw["nvlink"].get("mesh")
    if mesh == "switch":
        base = _RING if "ring" in algorithm or os.environ.get("NCCL_NVLS_ENABLE") == "0" else _NVLS.get(n, 478.5)
    elif mesh == "direct":
        base = _DIRECT_4
    else:
        base = _PAIR
    value = _PCIE if worst == 0 or not full else base * worst / full
    slow = {"hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown"}
    if any(slow & set(g.get("reasons", [])) for g in gpus):
        value *= 0.55
    return value * float(hw["nccl"].get("share", 1.0))


def main(argv: list[str]) -> int:
    hw = store.effective()
    options = {
        "-b": "32M",
        "-e": "32M",
        "-f": "",
        "-i": "1M",
        "-g": "1",
        "-t": "1",
        "-n": "20",
        "-w": "1",
        "-c": "1",
        "-d": "float",
        "-o": "sum",
    }
    names = {
        "--minbytes": "-b",
        "--maxbytes": "-e",
        "--stepfactor": "-f",
        "--stepbytes": "-i",
        "--ngpus": "-g",
        "--nthreads": "-t",
        "--iters": "-n",
        "--warmup_iters": "-w",
        "--check": "-c",
        "--datatype": "-d",
        "--op": "-o",
    }
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        name = names.get(key, key)
        if name not in options:
            print(
                f"invalid option -- '{word}'\nUSAGE: all_reduce_perf \n\t[-t,--nthreads <num threads>] \n"
                f"\t[-g,--ngpus <gpus per "
                "thread>] \n\t[-b,--minbytes <min size in bytes>] \n\t[-e,--maxbytes <max size in bytes>] ..."
            )
            return 1
        if not equals:
            if not rest:
                print(f"option requires an argument -- '{word}'")
                return 1
            value = rest.pop(0)
        options[name] = value
    try:
        low, high = _size(options["-b"]), _size(options["-e"])
        factor = int(options["-f"]) if options["-f"] else 0
        step, count = _size(options["-i"]), int(options["-g"]) * int(options["-t"])
    except ValueError:
        print("invalid size specified for 'minbytes' or 'maxbytes'")
        return 1
    loaded = driver.loaded()
    host = socket.gethostname()
    if loaded is None or loaded != driver.installed() or hw["driver"].get("unloaded"):
        print(
            f"{host}: Test CUDA failure common.cu:1025 'CUDA driver version is insufficient for CUDA runtime version'"
        )
        return 1
    gpus = [g for g in driver.present(hw) if g.get("state") != "lost"]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        words = [w.strip() for w in chosen.split(",") if w.strip()]
        by_name = {**{str(i): g for i, g in enumerate(driver.present(hw))}, **{g["uuid"]: g for g in gpus}}
        gpus = [by_name[w] for w in words if w in by_name and by_name[w].get("state") != "lost"]
    version = "2.17.6"
    print(f"# nccl-tests version {version} nccl-headers=22707 nccl-library=22707")
    print("# Collective test starting: all_reduce_perf")
    stepping = f"{factor}(factor)" if factor else f"{step}(bytes)"
    print(
        f"# nThread {options['-t']} nGpus {options['-g']} minBytes {low} maxBytes {high} step: {stepping} warmup "
        f"iters: "
        f"{options['-w']} iters: {options['-n']} agg iters: 1 validation: {options['-c']} graph: 0\n#"
    )
    if any(driver.fabric(hw, g)[0] not in ("Completed", "N/A") for g in gpus) or hw["nccl"].get("fails"):
        reason = (
            "'unhandled system error (run with NCCL_DEBUG=INFO for details)'"
            if hw["nccl"].get("fails")
            else "'system not yet initialized'"
        )
        kind = "NCCL" if hw["nccl"].get("fails") else "CUDA"
        print(
            f"{host}: Test {kind} failure common.cu:1025 {reason}\n .. {host} pid {os.getpid()}: Test failure "
            f"common.cu:891"
        )
        return 3 if kind == "NCCL" else 2
    print("# Using devices")
    if count > len(gpus):
        print(f"Invalid number of GPUs: {count} requested but only {len(gpus)} were found.", file=sys.stderr)
        print("Please check the number of processes and GPUs per process.", file=sys.stderr)
        print(f" .. {host} pid {os.getpid()}: Test failure common.cu:1204")
        return 5
    gpus = gpus[:count]
    for rank, g in enumerate(gpus):
        print(
            f"#  Rank {rank:2d} Group  0 Pid {os.getpid():6d} on {host:>10} device {rank:2d} "
            f"[{g['bus_id'][4:-2].lower()}] {g['product']}"
        )
    print("#")
    print(
        "#                                                              out-of-place                       "
        "in-place          "
    )
    print(
        "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   "
        "busbw  #wrong "
    )
    print(
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  "
        "(GB/s)         "
    )
    peak = busbw(hw, gpus)
    checked = options["-c"] != "0" and not hw["nccl"].get("unchecked")
    n = len(gpus)
    share = 2 * (n - 1) / n if n > 1 else 1.0
    size, seen = low, []
    sizes = []
    while size <= high and size > 0:
        sizes.append(size)
        size = size * factor if factor > 1 else size + step
    for rows, size in enumerate(sizes, start=1):
        cells = []
        for place in range(2):
            latency = _LATENCY_US + (1.5 if place else 0.0)
            if n > 1 and peak:
                us = latency + size * share / (peak * 1e3) * (1.0 + 0.002 * place)
            else:
                us = latency / 4 + size / 2.6e6
            alg = size / us / 1e3
            bus = alg * share if n > 1 else 0.0
            seen.append(bus)
            wrong = str(hw["nccl"].get("wrong", 0) if rows == len(sizes) else 0) if checked else "N/A"
            cells.append(f"  {_time(us):>7}  {alg:6.2f}  {bus:6.2f}  {wrong:>6}")
        line = f"{size:12d}  {size // 4:12d}  {options['-d']:>8}  {options['-o']:>6}  {-1:6d}{cells[0]}{cells[1]}"
        if hw["nccl"].get("cut") and rows == len(sizes):
            sys.stdout.write(line[: len(line) // 2])
            return 0
        print(line)
    bad = int(hw["nccl"].get("wrong", 0)) if checked else 0
    print(f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}")
    print(
        f"# Avg bus bandwidth    : {sum(seen) / len(seen):.6g} \n#\n# Collective test concluded: all_reduce_perf\n#\n"
    )
    return 1 if bad else 0


def _time(us: float) -> str:
    """Print a time in seven columns, as the tool does."""
    if us >= 100000:
        return f"{us:.0f}"
    return f"{us:.1f}" if us >= 10000 else f"{us:.2f}"

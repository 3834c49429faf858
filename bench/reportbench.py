# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Seconds, sizes and memory of the rack report on made runs, and the seconds until a browser shows it."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

from gpurack.report import write
from tests.unit.gpurack.browser import Page, chromium
from tests.unit.gpurack.report_data import Made

_READY = "document.querySelector('#matrix')?.dataset.ready === 'true'"


def measure(nodes: int, full_mesh: bool, place: str) -> dict[str, Any]:
    """Return what one report costs. Runs in a process of its own, so that its memory is its own."""
    run = Made(nodes, full_mesh=full_mesh).write(Path(place))
    given = sum(path.stat().st_size for path in run.rglob("*") if path.is_file())
    start = time.perf_counter()
    found = write(run)
    seconds = time.perf_counter() - start
    return {
        "nodes": nodes,
        "pairs": len(json.loads(Path(found["files"]["json"]).read_text())["fabric"]["pairs"]),
        "run_bytes": given,
        "seconds": round(seconds, 2),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        **{f"{kind}_bytes": Path(path).stat().st_size for kind, path in found["files"].items()},
        "file": found["files"]["html"],
    }


def shown_after(file: Path) -> float | None:
    """Return the seconds from opening the file until its matrix is drawn, None without a browser."""
    path = chromium()
    if path is None:
        return None
    with Page(path) as page:
        start = time.perf_counter()
        page.open(file)
        page.until(_READY)
        return round(time.perf_counter() - start, 2)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench/report", description=__doc__)
    parser.add_argument("nodes", nargs="*", type=int, default=[4, 128], help="sizes of the racks (default: 4 128)")
    parser.add_argument("--full-mesh", action="store_true", help="every pair on every rail, more than any sweep's plan")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args()
    rows = []
    for nodes in args.nodes:
        with tempfile.TemporaryDirectory() as place, multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(measure, (nodes, args.full_mesh, place))
            row["browser_seconds"] = shown_after(Path(row.pop("file")))
            rows.append(row)
    if args.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(
        "".join(
            f"{name:>9}" for name in ("nodes", "pairs", "run", "seconds", "peak", "html", "json", "junit", "browser")
        )
    )
    for row in rows:
        sizes = [f"{row[key] / 1e6:.1f} MB" for key in ("run_bytes", "html_bytes", "json_bytes", "junit_bytes")]
        seconds = "-" if row["browser_seconds"] is None else f"{row['browser_seconds']:.2f} s"
        cells = (
            row["nodes"],
            row["pairs"],
            sizes[0],
            f"{row['seconds']:.2f} s",
            f"{row['peak_mb']} MB",
            *sizes[1:],
            seconds,
        )
        print("".join(f"{cell!s:>9}" for cell in cells))
    return 0

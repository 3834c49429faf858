# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""tools/acceptance: every capture of a corpus through its module, held against the values a person checked."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import gaterun
from bench.acceptance import corpus, tools
from bench.acceptance.compare import Difference, compare

ROOT = Path(__file__).resolve().parents[2]
DEFAULT = ROOT.parent / "shared" / "corpus"

_FORM = """\
The index, one index.yaml a folder, is a list of entries, a mapping with such a list under captures, files, entries,
items, cases or samples, or a mapping from file name to entry. Of an entry are read:

  file, path, capture, filename, files   the capture below the folder; several files of one machine are its bundle
  verdict                                pass, warn, fail, or error/unknown; also inside expected:
  values, expected, expect, right, facts the right values, nested as you like: mlx5_3: {rate: 200}. Without such a key
                                         every other key of the entry is a right value
  profile, board                         a board profile; without it the text decides (product, NVLink widths)
  tool, module                           what printed it; without it the text and then the folder's name decide
  args, options, limits                  options of the module
  reference_only: true                   a fact without a capture: counted, not judged

A right value is compared with what the module measured under the same name; case, separators, and a unit at the end
(_us, _ms, _gbps) do not matter. One that nothing measured is named like is told as "not compared".

Exit status: 0 every capture matches; 1 one differs or was not read; 2 the folder or an index is not there or cannot
be read.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one capture."""

    capture: corpus.Capture
    tool: str
    state: str
    differences: tuple[Difference, ...] = ()
    values: int = 0
    not_compared: tuple[str, ...] = ()
    reason: str = ""


def judge(capture: corpus.Capture) -> Outcome:
    """Judge one capture."""
    if capture.reference:
        return Outcome(capture, capture.tool or capture.folder, "reference")
    if capture.problem or capture.path is None:
        return Outcome(capture, capture.tool or capture.folder, "not read", reason=capture.problem)
    text = _text(capture.path)
    tool = tools.find(capture, text)
    if tool is None:
        return Outcome(capture, capture.folder, "not read", reason="no module is known for it")
    if not gaterun.exists(tool.module):
        return Outcome(capture, tool.name, "not read", reason=f"the collection has no module {tool.module}")
    try:
        result = tools.judge(tool, capture, capture.path, text)
    except (gaterun.ModuleBroken, ValueError, LookupError, TypeError, AttributeError, OSError, ImportError) as exc:
        return Outcome(capture, tool.name, "not read", reason=f"{type(exc).__name__}: {exc}")
    return _compared(capture, tool, result, text)


def _compared(capture: corpus.Capture, tool: tools.Tool, result: dict[str, Any], text: str) -> Outcome:
    found = compare(capture.values, tools.measured(tool, result, text))
    differences = list(found.differences)
    if capture.verdict is not None and capture.verdict != result["verdict"]:
        differences.insert(0, Difference("verdict", capture.verdict, result["verdict"]))
    reason = str(result.get("summary", ""))
    if differences:
        return Outcome(capture, tool.name, "differs", tuple(differences), found.matched, found.not_compared, reason)
    if capture.verdict is None and not found.matched:
        why = f"no value could be compared: {', '.join(found.not_compared)}"
        return Outcome(capture, tool.name, "not read", (), 0, found.not_compared, why)
    return Outcome(capture, tool.name, "matched", (), found.matched, found.not_compared, reason)


def _text(path: Path) -> str:
    """Return the capture's text; of a bundle all its files, which is enough to tell what it is."""
    files = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return "\n".join(p.read_bytes().decode("utf-8", "replace") for p in files)


def report(outcomes: Sequence[Outcome], verbose: bool) -> list[str]:
    """Return the lines of the report."""
    lines = []
    for tool in dict.fromkeys(o.tool for o in outcomes):
        mine = [o for o in outcomes if o.tool == tool]
        judged = [o for o in mine if o.state != "reference"]
        good = sum(o.state == "matched" for o in judged)
        values = sum(o.values for o in judged)
        open_ = sum(len(o.not_compared) for o in judged)
        lines.append(f"{tool}: {good}/{len(judged)} matched, {values} values compared, {open_} not compared")
        for o in mine:
            where = f"{o.capture.folder}/{o.capture.name}"
            if o.state == "differs":
                lines.append(f"  {where}")
                lines += [f"    {d.name}: expected {d.expected!r}, got {d.got!r}" for d in o.differences]
                lines.append(f"    {o.reason[:300]}")
            elif o.state == "not read":
                lines.append(f"  {where}: not read: {o.reason[:300]}")
            if verbose and o.not_compared and o.state != "not read":
                lines.append(f"  {where}: not compared: {', '.join(o.not_compared)}")
    return lines


def as_json(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return the JSON form."""
    return [
        {
            "folder": o.capture.folder,
            "name": o.capture.name,
            "tool": o.tool,
            "state": o.state,
            "values": o.values,
            "not_compared": list(o.not_compared),
            "differences": [{"name": d.name, "expected": str(d.expected), "got": str(d.got)} for d in o.differences],
            "reason": o.reason,
        }
        for o in outcomes
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Judge a corpus."""
    parser = argparse.ArgumentParser(
        prog="tools/acceptance",
        description="Judge every capture of a corpus with the gate module it is for, through `captured`, and hold "
        "verdict and values against those a person checked.",
        epilog=_FORM,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--corpus", type=Path, help="folder of the corpus (default: $CORPUS, else ../shared/corpus)")
    parser.add_argument("--only", metavar="WORD", default="", help="only folders whose name contains the word")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the results as JSON")
    parser.add_argument("--verbose", action="store_true", help="name the values that could not be compared")
    options = parser.parse_args(argv)
    root = options.corpus or Path(os.environ.get("CORPUS") or DEFAULT)
    try:
        captures = [c for c in corpus.read(root) if options.only in c.folder]
    except corpus.CorpusError as exc:
        print(f"acceptance: {exc}", file=sys.stderr)
        return 2
    outcomes = [judge(c) for c in captures]
    print("\n".join(report(outcomes, options.verbose)))
    judged = [o for o in outcomes if o.state != "reference"]
    counts = {s: sum(o.state == s for o in outcomes) for s in ("matched", "differs", "not read", "reference")}
    print(
        f"total: {counts['matched']}/{len(judged)} matched, {counts['differs']} differ, {counts['not read']} not read, "
        f"{counts['reference']} reference only"
    )
    if options.json:
        options.json.write_text(json.dumps({"totals": counts, "captures": as_json(outcomes)}, indent=1) + "\n", "utf-8")
    return 0 if judged and counts["matched"] == len(judged) else 1

"""gpurack: bring a rack up, gate it, see where it stands. Each verb runs the playbook of the same name."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from gpurack.board import Board
from gpurack.errors import GpurackError
from gpurack.project import inventory, root
from gpurack.runner import run_playbook

EXIT_OK, EXIT_BAD_RACK, EXIT_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 when all is well, 1 when a node is out, 2 when the request itself was wrong."""
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        if given[:1] == ["sim"]:
            return _sim(given[1:])
        args = _parser().parse_args(given)
        return int(args.run(args))
    except GpurackError as exc:
        print(f"gpurack: {exc}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("gpurack: interrupted. Run the same command again: it goes on where the rack stands.", file=sys.stderr)
        return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpurack",
        description="Bring a GPU rack up, prove it, and see where it stands.",
        epilog="Exit status: 0 all is well, 1 a node is out (quarantined, failed, unreachable), 2 wrong request.",
    )
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "-i", "--inventory", help="inventory directory (default: $GPURACK_INVENTORY, then inventories/sim)"
    )
    common.add_argument(
        "--json", action="store_true", help="print one JSON document on standard output and nothing else"
    )
    run = argparse.ArgumentParser(add_help=False)
    run.add_argument("-l", "--limit", help="only these hosts (Ansible's pattern)")
    run.add_argument(
        "-e",
        "--extra-vars",
        action="append",
        default=[],
        metavar="VARS",
        help="extra variables, as for ansible-playbook",
    )
    run.add_argument("--plain", action="store_true", help="plain lines in place of the live board")
    run.add_argument("-v", "--verbose", action="store_true", help="also print what Ansible prints")

    up = verbs.add_parser("up", parents=[common, run], help="bring the rack up (playbooks/site.yml)")
    up.add_argument("--check", action="store_true", help="change nothing, say what would change")
    up.add_argument("--diff", action="store_true", help="show the differences (implies --verbose)")
    up.set_defaults(run=_up)
    gate = verbs.add_parser("gate", parents=[common, run], help="run the gates, change nothing (playbooks/gate.yml)")
    gate.set_defaults(run=_gate)
    status = verbs.add_parser(
        "status", parents=[common], help="what Consul says of every node and IU (playbooks/status.yml)"
    )
    status.set_defaults(run=_status)
    # Only for --help: main() hands everything behind `sim` on untouched.
    verbs.add_parser(
        "sim",
        help="the simulated rack: gpurack sim up | down | status | fault NODE 'FAULT' | heal NODE",
        add_help=False,
    )
    return parser


def _up(args: argparse.Namespace) -> int:
    extra = ["--check"] if args.check else []
    extra += ["--diff"] if args.diff else []
    args.verbose = args.verbose or args.diff
    return _play("site", args, extra)


def _gate(args: argparse.Namespace) -> int:
    return _play("gate", args, [])


def _play(name: str, args: argparse.Namespace, extra: list[str]) -> int:
    options = list(extra)
    options += ["--limit", args.limit] if args.limit else []
    for item in args.extra_vars:
        options += ["--extra-vars", item]
    console = Console(stderr=args.json)
    board = Board(console, live=console.is_terminal and not args.plain and not args.verbose)
    last: list[str] = []

    def log(text: str) -> None:
        last[:] = [*last, *text.splitlines()][-200:]
        if args.verbose:
            print(text, file=sys.stderr if args.json else sys.stdout, flush=True)

    with board:
        code, summary = run_playbook(name, inventory(args.inventory), options, board.event, log)
    if args.json:
        print(json.dumps({"exit": code, **summary}, indent=1))
    elif not args.verbose:
        print("\n".join(_summary_lines(last, summary)))
    if summary.get("refused"):
        return EXIT_USAGE
    return EXIT_OK if code == 0 else EXIT_BAD_RACK


def _summary_lines(last: list[str], summary: dict[str, Any]) -> list[str]:
    """Return the summary as the callback printed it; ansible's own last words when there is none."""
    if not summary:
        return last[-30:]
    start = next((i for i, line in enumerate(last) if line.startswith(("RACK SUMMARY", "INVENTORY REFUSED"))), None)
    return last[start:] if start is not None else last[-30:]


def _status(args: argparse.Namespace) -> int:
    state: dict[str, Any] = {}
    last: list[str] = []

    def take(event: Any) -> None:
        result = (event.get("event_data") or {}).get("res") or {}
        if event.get("event") == "runner_on_ok" and "rack" in result:
            state.update(result["rack"])

    code, _ = run_playbook("status", inventory(args.inventory), [], take, last.append)
    if not state:
        raise GpurackError(
            "rack status: Consul gave no answer. "
            + next((x for x in reversed(last) if "msg" in x or "fatal" in x), "Is the rack up?")
        )
    bad = [n for n in state["nodes"] if n["state"] != "serving"]
    if args.json:
        print(json.dumps(state, indent=1))
    else:
        _status_table(state)
    return EXIT_BAD_RACK if bad or code else EXIT_OK


def _status_table(state: dict[str, Any]) -> None:
    table = Table(title=f"rack, as Consul at {state['address']} sees it", title_justify="left")
    for column in ("node", "state", "serf", "IUs", "gates", "reason"):
        table.add_column(column, overflow="fold")
    for node in state["nodes"]:
        units = (
            "\n".join(f"{u['id']} {u['address']}:{u['port']} {u['state']} ({u['note']})" for u in node["units"]) or "-"
        )
        gates = "\n".join(f"{stage}: {text}" for stage, text in node["gates"].items()) or "-"
        table.add_row(node["name"], node["state"], node["serf"], units, gates, node["reason"])
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)


def _sim(arguments: list[str]) -> int:
    rack = root() / "simulator" / "rack"
    if not os.access(rack, os.X_OK):
        raise GpurackError(
            f"simulator {rack}: not there. The simulated rack comes with a checkout, not with the installed collection."
        )
    return subprocess.run([str(rack), *arguments], check=False).returncode

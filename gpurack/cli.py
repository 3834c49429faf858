"""gpurack: bring a rack up, gate it, see where it stands. Each verb runs the playbook of the same name."""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpurack import __version__
from gpurack.checks import checks_of
from gpurack.errors import GpurackError, Interrupted
from gpurack.project import inventory, root, summary_lines

if TYPE_CHECKING:
    from gpurack.runner import Outcome

EXIT_OK, EXIT_BAD_RACK, EXIT_USAGE = 0, 1, 2
_EXITS = """exit status:
  0  all is well
  1  a node is out: quarantined, failed, unreachable, drained or not there
  2  the request was wrong or could not be carried out: inventory refused, no such path, no answer from Consul, stopped
"""
_EXAMPLES = {
    "up": """examples:
  gpurack up                                   the simulated rack (inventories/sim)
  gpurack up -i inventories/mysite             a real one
  gpurack up -i inventories/mysite -l node3    one node, the others are not touched
  gpurack up --check --diff                    what has drifted; changes nothing
""",
    "gate": """examples:
  gpurack gate -i inventories/mysite           every node
  gpurack gate -l node3 --json                 one node, for a program
  gpurack gate --list-checks                   what the gates check, from their code
""",
    "status": """examples:
  gpurack status -i inventories/mysite
  gpurack status --json | jq -r '.rack.nodes[] | select(.state != "serving") | .name'
""",
    "report": """examples:
  gpurack report -i inventories/mysite                       the last run, with its evidence from the nodes
  gpurack report --run 20261130T180000Z --output /tmp/rack   another run, to another place
  gpurack report --no-fetch                                  what is on this machine; connects to nothing
""",
    "sim": """examples:
  gpurack sim up                                    build and boot the simulated rack
  gpurack sim fault node2 'link 0-2: NV17'          break something while it runs
  gpurack sim heal node2
  gpurack sim status --json
  gpurack sim --help                                everything simulator/rack can do
""",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 when all is well, 1 when a node is out, 2 for a request that could not be met."""
    given = list(sys.argv[1:] if argv is None else argv)
    as_json, verb = False, "gpurack"
    try:
        if given[:1] == ["sim"]:
            _sim(given[1:])
        args = _parser().parse_args(given)
        as_json, verb = args.json, args.command
        return int(args.run(args))
    except GpurackError as exc:
        return _refuse(verb, str(exc), as_json)
    except ModuleNotFoundError as exc:
        text = f"Python package {exc.name}: {sys.executable} does not have it. Run `make setup` in the checkout."
        return _refuse(verb, text, as_json)
    except Interrupted as exc:
        return _refuse(
            verb, f"stopped by {exc}. Run the same command again: it goes on where the rack stands.", as_json
        )
    except KeyboardInterrupt:
        return _refuse(verb, "stopped by SIGINT. Run the same command again.", as_json)
    except BrokenPipeError:
        # Whoever read the output has gone; Python would complain once more when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_USAGE


def _refuse(verb: str, text: str, as_json: bool) -> int:
    line = " ".join(text.split())
    if as_json:
        print(json.dumps({"command": verb, "exit": EXIT_USAGE, "error": line}, indent=1))
    print(f"gpurack: {line}", file=sys.stderr)
    return EXIT_USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpurack",
        description="Bring a GPU rack up, prove it, and see where it stands. Each command runs one playbook.",
        epilog=f"`gpurack COMMAND --help` tells more.\n\n{_EXITS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"gpurack {__version__}")
    verbs = parser.add_subparsers(title="commands", required=True, metavar="COMMAND", dest="command")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "-i",
        "--inventory",
        metavar="PATH",
        help="inventory directory or file (default: $GPURACK_INVENTORY, else inventories/sim)",
    )
    common.add_argument("-l", "--limit", metavar="HOSTS", help="only these hosts (Ansible's pattern)")
    common.add_argument(
        "-e",
        "--extra-vars",
        action="append",
        default=[],
        metavar="VARS",
        help="extra variables, as for ansible-playbook; a secret belongs in a vault or a file: -e @FILE",
    )
    common.add_argument(
        "--vault-password-file", metavar="FILE", help="password of the inventory's vault, as for ansible-playbook"
    )
    common.add_argument("--json", action="store_true", help="one JSON document on standard output, and nothing else")
    run = argparse.ArgumentParser(add_help=False)
    run.add_argument(
        "--plain", action="store_true", help="plain lines in place of the live board, as without a terminal"
    )
    run.add_argument("-v", "--verbose", action="store_true", help="also print what Ansible prints")

    def verb(name: str, playbook: str, text: str, what: Callable[[argparse.Namespace], int], *more: Any) -> Any:
        found = verbs.add_parser(
            name,
            parents=[common, *more],
            help=f"{text} ({playbook})",
            description=f"{text[0].upper()}{text[1:]}. Runs {playbook}.",
            epilog=f"{_EXAMPLES[name]}\n{_EXITS}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        found.set_defaults(run=what)
        return found

    up = verb("up", "playbooks/site.yml", "bring the rack up, or bring it back to what the inventory says", _up, run)
    up.add_argument("--check", action="store_true", help="change nothing, say what would change")
    up.add_argument("--diff", action="store_true", help="show the differences")
    gate = verb(
        "gate", "playbooks/gate.yml", "run both gates; starts and joins nothing, quarantines what fails", _gate, run
    )
    gate.add_argument("--list-checks", action="store_true", help="run nothing; list every check from the gates' code")
    verb("status", "playbooks/status.yml", "what Consul says of every node and inference unit", _status)
    report = verb(
        "report", "playbooks/report.yml", "one HTML file of a run with its evidence, and JSON and JUnit", _report
    )
    report.add_argument("--run", dest="run_id", metavar="RUN", help="id of the run (default: the last one)")
    report.add_argument("--output", metavar="DIR", help="directory of the report (default: the run's own)")
    report.add_argument("--runs", metavar="DIR", help="directory of the runs (default: .gpu_rack/runs)")
    report.add_argument("--no-fetch", action="store_true", help="connect to no node, use what was fetched before")
    # Only for --help: main() hands everything behind `sim` on untouched.
    verbs.add_parser(
        "sim",
        help="the simulated rack: gpurack sim up | down | status | fault NODE 'FAULT' | heal NODE (simulator/rack)",
        epilog=_EXAMPLES["sim"],
        add_help=False,
    )
    return parser


def _up(args: argparse.Namespace) -> int:
    return _play("site", args, [*(["--check"] if args.check else []), *(["--diff"] if args.diff else [])])


def _gate(args: argparse.Namespace) -> int:
    if args.list_checks:
        return _list_checks(args)
    return _play("gate", args, [])


def _list_checks(args: argparse.Namespace) -> int:
    checks = checks_of(root())
    if args.json:
        listed = [{"check": name, "gate": name.partition(".")[0], "text": text} for name, text in checks.items()]
        print(json.dumps({"command": "gate", "exit": EXIT_OK, "checks": listed}, indent=1))
        return EXIT_OK
    gates = dict.fromkeys(name.partition(".")[0] for name in checks)
    for gate in gates:
        print(f"{gate}")
        for name, text in checks.items():
            if name.startswith(f"{gate}."):
                print(textwrap.fill(text, 100, initial_indent=f"  {name}\n      ", subsequent_indent="      "))
    print(f"{len(checks)} checks of {len(gates)} gates")
    return EXIT_OK


def _play(name: str, args: argparse.Namespace, extra: Sequence[str]) -> int:
    from rich.console import Console

    from gpurack.board import Board
    from gpurack.runner import run_playbook

    path = inventory(args.inventory)
    console = Console(stderr=args.json)
    board = Board(
        console,
        live=console.is_terminal and not args.plain and not args.verbose,
        diff="--diff" in extra,
        verbose=args.verbose,
    )
    with board:
        outcome = run_playbook(name, path, [*extra, *_options(args)], board.event)
    code = _exit_code(outcome, path, args.limit)
    if args.json:
        document = {"command": args.command, "exit": code, "inventory": str(path), **outcome.summary}
        print(json.dumps(document, indent=1))
    elif not args.verbose:
        print("\n".join(summary_lines(outcome.summary)))
    return code


def _options(args: argparse.Namespace) -> list[str]:
    options = ["--limit", args.limit] if args.limit else []
    for item in args.extra_vars:
        _check_variables(item)
        options += ["--extra-vars", item]
    if args.vault_password_file:
        options += ["--vault-password-file", str(Path(args.vault_password_file).resolve())]
    return options


def _check_variables(text: str) -> None:
    """Refuse what Ansible would blame on the inventory. The text is not repeated, it may hold a secret."""
    import yaml

    if text.startswith("@"):
        if not Path(text[1:]).is_file():
            raise GpurackError(f"extra variables -e {text}: no such file. Name one that exists after the @.")
    elif text.startswith(("{", "[")):
        try:
            given = yaml.safe_load(text)
        except yaml.YAMLError as exc:
            raise GpurackError(
                f"extra variables -e: not YAML or JSON ({getattr(exc, 'problem', None)}). Quote it for the shell."
            ) from None
        if not isinstance(given, dict):
            raise GpurackError('extra variables -e: a list. Give a dictionary: -e \'{"name": "value"}\'.')
    elif "=" not in text:
        raise GpurackError("extra variables -e: neither NAME=VALUE, a dictionary nor @FILE. Use one of these.")


def _exit_code(outcome: Outcome, path: Path, limit: str | None) -> int:
    if outcome.summary.get("refused"):
        return EXIT_USAGE
    if not outcome.hosts:
        which = f"no host matches --limit {limit}" if limit else "it has no host in the rack's groups"
        raise GpurackError(
            f"inventory {path}: {which}, so nothing was done. See `ansible-inventory -i {path} --graph`."
        )
    out = [host for host, node in (outcome.summary.get("nodes") or {}).items() if node.get("out")]
    return EXIT_OK if outcome.code == 0 and not out else EXIT_BAD_RACK


def _status(args: argparse.Namespace) -> int:
    from rich.console import Console

    from gpurack.runner import run_playbook
    from gpurack.status import table

    rack: dict[str, Any] = {}
    failures: list[str] = []

    def take(event: Mapping[str, Any]) -> None:
        data = event.get("event_data") or {}
        result = data.get("res") or {}
        if event.get("event") == "runner_on_ok" and "rack" in result:
            rack.update(result["rack"])
        elif event.get("event") in ("runner_on_failed", "runner_on_unreachable"):
            failures.append(str(result.get("msg") or "no reason was given"))

    path = inventory(args.inventory)
    outcome = run_playbook("status", path, _options(args), take)
    if failures:
        raise GpurackError(failures[0])
    if not rack:
        which = f"no node matches --limit {args.limit}" if args.limit else "it has no host in the group gpu_nodes"
        raise GpurackError(f"inventory {path}: {which}. See `ansible-inventory -i {path} --graph`.")
    serving = all(node["state"] == "serving" for node in rack["nodes"])
    code = EXIT_OK if serving and outcome.code == 0 else EXIT_BAD_RACK
    if args.json:
        print(json.dumps({"command": "status", "exit": code, "inventory": str(path), "rack": rack}, indent=1))
    else:
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(table(rack))
    return code


def _report(args: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.text import Text

    from gpurack.report import write
    from gpurack.report.read import RUN_ID, last_run
    from gpurack.runner import run_playbook

    runs = _runs_directory(args.runs)
    run = args.run_id or last_run(runs)
    place = runs / run
    failures: list[str] = []
    if not args.no_fetch:
        if not RUN_ID.fullmatch(run):
            raise GpurackError(f"run {run}: not the name of a run. Runs are named like 20261130T180000Z.")

        def take(event: Mapping[str, Any]) -> None:
            data = event.get("event_data") or {}
            if event.get("event") == "runner_on_failed" and not data.get("ignore_errors"):
                failures.append(str((data.get("res") or {}).get("msg") or "no reason was given"))

        path = inventory(args.inventory)
        given = {"gpu_rack_report_run": run, "gpu_rack_report_runs_dir": str(runs), "gpu_rack_report_render": False}
        waiting = Console(stderr=True)
        with waiting.status(f"fetching the evidence of run {run}") if waiting.is_terminal else nullcontext():
            outcome = run_playbook("report", path, [*_options(args), "--extra-vars", json.dumps(given)], take)
        if not outcome.hosts:
            which = f"no node matches --limit {args.limit}" if args.limit else "it has no host in the group gpu_nodes"
            raise GpurackError(f"inventory {path}: {which}. See `ansible-inventory -i {path} --graph`.")
        if failures:
            raise GpurackError(failures[0])
    found = write(place, Path(args.output) if args.output else None)
    code = EXIT_BAD_RACK if found["out"] or not sum(found["counts"].values()) else EXIT_OK
    if args.json:
        print(json.dumps({"command": "report", "exit": code, **found}, indent=1))
        return code
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False)
    counts = ", ".join(f"{count} {state}" for state, count in found["counts"].items() if count)
    console.print(Text(f"Run {run}: {counts or 'no node'}"))
    for node in found["out"]:
        console.print(Text(f"  {node['node']}  {node['state']}: {node['reason']}", style="red"), soft_wrap=True)
    for path in found["files"].values():
        console.print(Text(path), soft_wrap=True)
    return code


def _runs_directory(given: str | None) -> Path:
    """Return the directory of the runs: the given one, else that of this directory, else the checkout's."""
    if given:
        if not Path(given).is_dir():
            raise GpurackError(f"runs {given}: no such directory. Name the one that holds the runs with --runs.")
        return Path(given).resolve()
    here = Path.cwd() / ".gpu_rack" / "runs"
    return here if here.is_dir() else root() / ".gpu_rack" / "runs"


def _sim(arguments: Sequence[str]) -> NoReturn:
    rack = root() / "simulator" / "rack"
    if not os.access(rack, os.X_OK):
        raise GpurackError(
            f"simulator {rack}: not there. The simulated rack comes with a checkout, not with the installed collection."
        )
    # Becomes the program, so that signals and the exit status are its own.
    os.execv(sys.executable, [sys.executable, str(rack), *arguments])

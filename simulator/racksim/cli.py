# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command line of simulator/rack."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from racksim import engine, image, lifecycle, nodes, rackfile
from racksim.errors import SimError, UnknownFault

_DESCRIPTION = """\
A rack of GPU nodes without hardware: Debian nodes with systemd and sshd in containers, an InfiniBand fabric, BMCs.
Exit status: 0 done, 1 the rack is not as asked, 2 what was asked is wrong."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; an error is one line on standard error."""
    # Defaults come in by the namespace: the options are shared by parser and subcommands, whose own default would
    # overwrite what stood before the subcommand.
    arguments = _parser().parse_args(argv, argparse.Namespace(rack="default", rack_file=None, json=False))
    started = time.monotonic()
    as_json: bool = arguments.json

    def say(message: str) -> None:
        # Progress is for people: with --json it goes to standard error so that the output stays one document.
        stream = sys.stderr if as_json else sys.stdout
        print(f"[{time.monotonic() - started:6.1f} s] {message}", file=stream, flush=True)

    try:
        result = _run(arguments, say)
    except SimError as error:
        if as_json:
            print(json.dumps({"error": str(error), "code": error.code}))
        print(f"rack: {error}", file=sys.stderr)
        if isinstance(error, UnknownFault):
            _print_faults(sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("rack: interrupted. Run the same command again: it goes on where it stopped.", file=sys.stderr)
        return 1
    if as_json and result.data is not None:
        print(json.dumps(result.data, indent=2))
    return result.code


class _Result:
    def __init__(self, data: Any = None, code: int = 0) -> None:
        self.data = data
        self.code = code


def _run(arguments: argparse.Namespace, say: engine.Say) -> _Result:
    if arguments.command == "build":
        engine.ensure(say)
        reference = image.ensure(say)
        say(f"node image {reference}")
        return _Result({"image": reference})
    rack = rackfile.load(rackfile.find(arguments.rack, arguments.rack_file), arguments.rack)
    if arguments.command == "up":
        lifecycle.up(rack, say, fresh=arguments.fresh)
        say(f"rack '{rack.name}' is up: {len(rack.nodes)} nodes, {len(rack.heads)} head, {rack.subnet}")
        return _Result(lifecycle.status(rack).as_dict() if arguments.json else None)
    if arguments.command == "down":
        lifecycle.down(rack, say)
        say(f"rack '{rack.name}' is down")
        return _Result({"rack": rack.name, "up": False})
    if arguments.command == "status":
        return _status(rack, arguments.json)
    if arguments.command == "fault":
        lifecycle.add_fault(rack, arguments.node, arguments.fault)
        say(f"{arguments.node}: {arguments.fault}")
        return _Result({"node": arguments.node, "faults": nodes.faults(nodes.read_hw(rack, arguments.node))})
    if arguments.command == "heal":
        healed = lifecycle.heal(rack, arguments.node)
        say(f"{arguments.node}: healed {', '.join(healed) if healed else 'nothing, it had no fault'}")
        return _Result({"node": arguments.node, "healed": healed})
    return _exec(rack, arguments.node, arguments.argv)


def _status(rack: rackfile.Rack, as_json: bool) -> _Result:
    state = lifecycle.status(rack)
    if not as_json:
        rows = [("HOST", "POWER", "BOOT", "ADDRESS", "BMC", "CYCLES", "FAULTS")]
        for host in state.hosts:
            cycles = "-" if host.power_cycles is None else str(host.power_cycles)
            faults = "; ".join(host.faults) or "-"
            rows.append((host.name, host.power, host.boot, host.address, host.bmc, cycles, faults))
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
        bmc = f"on (pid {state.bmc_pid})" if state.bmc_pid else "off"
        print(f"\nrack '{state.rack}' is {'up' if state.up else 'not up'} · fabric {state.fabric} · BMCs {bmc}")
    return _Result(state.as_dict(), 0 if state.up else 1)


def _exec(rack: rackfile.Rack, host: str, argv: Sequence[str]) -> _Result:
    """Become `docker exec`: its output and exit status are the command's own."""
    rack.host(host)
    argv = [*argv]
    if argv[:1] == ["--"]:
        del argv[0]
    if not argv:
        raise SimError(f"exec in {host}", "no command is given", "Write one, for example `ibstat`", 2)
    if nodes.node_state(rack, host) != "on":
        raise SimError(f"exec in {host}", f"it is {nodes.node_state(rack, host)}", "Run `simulator/rack up`")
    terminal = ["--tty"] if sys.stdin.isatty() and sys.stdout.isatty() else []
    command = ["docker", "exec", "--interactive", *terminal, nodes.container(rack, host), *argv]
    sys.stdout.flush()
    os.execvp(command[0], command)


def _print_faults(stream: Any) -> None:
    try:
        rows = lifecycle.catalog()
    except SimError:
        return
    width = max(len(example) for _pattern, example, _text in rows)
    print("faults:", file=stream)
    for _pattern, example, description in rows:
        print(f"  {example.ljust(width)}  {description}", file=stream)


class _ListFaults(argparse.Action):
    """`fault --list`: needs neither node nor fault."""

    def __call__(self, *_args: Any, **_kwargs: Any) -> None:
        _print_faults(sys.stdout)
        raise SystemExit(0)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--rack", metavar="NAME", default=argparse.SUPPRESS, help="name of the rack (default: default)")
    common.add_argument(
        "--rack-file", metavar="FILE", default=argparse.SUPPRESS, help="rack file (default: simulator/racks/NAME.yml)"
    )
    common.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print the result as JSON")
    parser = argparse.ArgumentParser(
        prog="rack", description=_DESCRIPTION, parents=[common], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", parents=[common])

    command("build", "build the node image if its inputs changed")
    up = command("up", "start what is missing of the rack")
    up.add_argument("--fresh", action="store_true", help="make everything anew, also hardware, keys and secrets")
    command("down", "remove the rack: containers, volumes, network, keys, secrets")
    command("status", "show each host; exit 1 unless the rack is up")
    fault = command("fault", "break a node's hardware; `fault --list` shows what can break")
    fault.add_argument("--list", action=_ListFaults, nargs=0, help="list the faults there are")
    fault.add_argument("node", metavar="NODE")
    fault.add_argument("fault", metavar="FAULT", help="for example 'port mlx5_1: Polling'")
    heal = command("heal", "take all faults off a node")
    heal.add_argument("node", metavar="NODE")
    execute = command("exec", "run a command in a host")
    execute.add_argument("node", metavar="HOST")
    execute.add_argument("argv", metavar="CMD", nargs=argparse.REMAINDER)
    return parser

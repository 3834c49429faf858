#!/usr/bin/python3
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Keep the Consul check of one inference unit (IU) honest: passing only while its engine generates tokens.

Installed as /usr/local/lib/gpu_rack/iu_probe beside _consul.py, _membership.py and _token_probe.py, run by
gpu-rack-probe@<iu>.service. Standard library only. The check is born critical and has a TTL: when this program dies or
hangs, the check turns critical by itself. The Consul token is read from a file and is never an argument or a variable.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

# The siblings lie in the program's own directory, wherever the program was started from.
sys.path.insert(0, str(Path(__file__).resolve().parent))

from _consul import Consul, ConsulError
from _membership import STATE_DIR, check_id, identity, read_json, refusals
from _token_probe import judge, probe, seconds_problem

CONFIG = Path("/etc/gpu_rack/iu_probe.json")
_CONSUL_TIMEOUT_S = 3.0


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """What the probe of one unit needs. Times in seconds."""

    unit: str
    port: int
    model: str
    interval: float
    timeout: float
    consul_address: str
    consul_ca_path: str | None
    token_file: Path


def load(path: Path, unit: str) -> Settings:
    """Return the settings of a unit; raise ValueError with the file and what is wrong with it."""
    config = read_json(path)
    if config is None:
        raise ValueError(f"{path}: does not exist. Join the node: the module iu_membership writes it.")
    try:
        mine = config["units"][unit]
        settings = Settings(
            unit=unit,
            port=int(mine["port"]),
            model=str(mine.get("model") or ""),
            interval=float(config["interval"]),
            timeout=float(config["timeout"]),
            consul_address=str(config["consul_address"]),
            consul_ca_path=config.get("consul_ca_path"),
            token_file=Path(config["consul_token_file"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as exc:
        raise ValueError(
            f"{path}: unit {unit}: {exc!r}. Join the node again: the module iu_membership writes it."
        ) from exc
    # An interval that is no number of seconds would make a loop without rest.
    problems = [seconds_problem("interval", settings.interval), seconds_problem("timeout", settings.timeout)]
    problems += [None if 1 <= settings.port <= 65535 else f"port: {settings.port}. Give a port of 1 to 65535."]
    for problem in filter(None, problems):
        raise ValueError(f"{path}: unit {unit}: {problem}")
    return settings


def examine(settings: Settings, state_dir: Path = STATE_DIR) -> tuple[str, str]:
    """Return Consul's status and the output that says why. No engine is asked while something keeps the unit out."""
    reasons = refusals(state_dir, identity(), time.time())
    if reasons:
        return "critical", "refused: " + "; ".join(r.reason for r in reasons)
    outcome = judge(
        probe("127.0.0.1", settings.port, settings.timeout, os.environ.get("VLLM_API_KEY", ""), settings.model)
    )
    return ("passing" if outcome.ok else "critical"), outcome.reason


def report(settings: Settings, status: str, output: str) -> None:
    """Tell the agent; raise ConsulError or OSError when it cannot be told."""
    token = settings.token_file.read_text("ascii").strip()
    consul = Consul(settings.consul_address, token, _CONSUL_TIMEOUT_S, settings.consul_ca_path)
    consul.put(f"agent/check/update/{check_id(settings.unit)}", {"Status": status, "Output": output})


def notify(message: str) -> None:
    """Send systemd a state line, when it listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as connection:
        connection.sendto(
            message.encode("utf-8", "replace"), f"\0{address[1:]}" if address.startswith("@") else address
        )


class _Stop(Exception):
    """SIGTERM or SIGINT has come."""


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _Stop


def watch(settings: Settings) -> int:
    """Examine and report until a signal comes. Starts are `interval` apart, so a slow token delays nothing."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    notify("READY=1")
    said = ""
    try:
        while True:
            start = time.monotonic()
            status, output = examine(settings)
            try:
                report(settings, status, output)
            except (ConsulError, OSError) as exc:
                # The agent may be restarting; the TTL speaks for us until it is back.
                output = f"{output}; not reported: {exc}"
                status = "unreported"
            if status != said:
                print(f"{settings.unit}: {status}, {output}", flush=True)
                said = status
            notify(f"WATCHDOG=1\nSTATUS={status}, {output[:200]}")
            time.sleep(max(0.0, start + settings.interval - time.monotonic()))
    except _Stop:
        # Nobody watches the engine from here on. On a shutdown this is what takes the unit out, before the agent stops.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            report(settings, "critical", "the probe was stopped")
        except (ConsulError, OSError) as exc:
            print(f"{settings.unit}: stopped, not reported: {exc}", flush=True)
        return 0


def main(argv: Sequence[str]) -> int:
    """Command line. Exit status with --once: 0 passing, 1 critical; 2 when the settings cannot be read."""
    parser = argparse.ArgumentParser(description="Keep the Consul check of one inference unit honest.")
    parser.add_argument("unit", help="id of the inference unit")
    parser.add_argument("--once", action="store_true", help="examine once, print, report nothing")
    args = parser.parse_args(argv)
    try:
        settings = load(CONFIG, args.unit)
    except ValueError as exc:
        print(f"iu_probe: {exc}", file=sys.stderr)
        return 2
    if not args.once:
        return watch(settings)
    status, output = examine(settings)
    print(f"{settings.unit}: {status}, {output}")
    return 0 if status == "passing" else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Ask an inference engine for one token and judge the answer. Standard library only, and no import of Ansible.

This file is three things, so that readiness, gate and registry can never disagree about what "it serves" means:
the module token_probe imports it; the role vllm_iu installs a copy as /usr/local/lib/gpu_rack/token_probe.py for the
unit's ExecStartPost; the updater of Consul's TTL checks imports that copy (`from token_probe import probe`).

Why a token: vLLM's /health answers 200 while its engine is wedged (vllm-project/vllm issues 24207, 36960, 39863).
"""

from __future__ import annotations

import argparse
import dataclasses
import http.client
import io
import json
import math
import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

SECRET_FILE = "/etc/gpu_rack/vllm/secret.env"
"""Environment file with VLLM_API_KEY, 0600, written by the role vllm_iu when a key is set."""
_RECV = 65536
_POLL_S = 0.2
_MAX_ANSWER = 8 << 20
_MAX_SECONDS = 604800.0
_SHOWN = 200


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One HTTP exchange. `status` is None when there was no whole answer; `error` then says why."""

    status: int | None
    body: str = ""
    error: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a probe saw: the answers of /health and of /v1/completions (None: not asked)."""

    health: Answer
    completion: Answer | None = None
    model: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form that is stored as evidence and that from_dict reads."""
        return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The judgement of a reading. `seconds` is the time to the token; None when there was none."""

    ok: bool
    reason: str
    tokens: int | None = None
    seconds: float | None = None


def from_dict(data: dict[str, Any]) -> Reading:
    """Return a stored reading; raise ValueError when it is not one."""
    try:
        health, completion, model = data["health"], data["completion"], data.get("model", "")
    except (KeyError, TypeError, AttributeError) as exc:
        raise ValueError(f"not a token probe's reading: {exc}") from exc
    if not isinstance(model, str):
        raise ValueError(f"not a token probe's reading: model is {model!r}")
    return Reading(_answer("health", health), None if completion is None else _answer("completion", completion), model)


def _answer(name: str, data: Any) -> Answer:
    """Return one stored answer; raise ValueError unless every field is there and of its type."""
    fields = {field.name for field in dataclasses.fields(Answer)}
    if not isinstance(data, dict) or set(data) != fields:
        raise ValueError(f"not a token probe's reading: {name} does not have exactly {', '.join(sorted(fields))}")
    status, seconds = data["status"], data["seconds"]
    if status is not None and (isinstance(status, bool) or not isinstance(status, int)):
        raise ValueError(f"not a token probe's reading: {name}.status is {status!r}")
    for field in ("body", "error"):
        if not isinstance(data[field], str):
            raise ValueError(f"not a token probe's reading: {name}.{field} is {data[field]!r}")
    # A bool is an int in Python, and a time of 0 or NaN would pass every limit or none.
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= _MAX_SECONDS:
        raise ValueError(f"not a token probe's reading: {name}.seconds is {seconds!r}")
    return Answer(status, data["body"], data["error"], float(seconds))


def seconds_problem(name: str, value: float, *, zero: bool = False) -> str | None:
    """Return why a number of seconds cannot be used, None when it can. `zero`: whether 0 is allowed."""
    if math.isfinite(value) and (value > 0 or (zero and value == 0)) and value <= _MAX_SECONDS:
        return None
    least = "from 0" if zero else "above 0"
    return f"{name}: {value}. Give a finite number of seconds {least} to {_MAX_SECONDS:g}."


def judge(reading: Reading) -> Outcome:
    """Return whether a token was generated. Pure."""
    health = reading.health
    if health.status is None:
        return Outcome(False, f"engine does not answer /health: {health.error}")
    if health.status != 200:
        return Outcome(False, f"engine answers /health with status {health.status}")
    answer = reading.completion
    if answer is None:
        return Outcome(False, "engine answers /health and was not asked for a token")
    if answer.status is None:
        return Outcome(False, f"engine answers /health but generates no token: {answer.error}")
    if answer.status != 200:
        return Outcome(
            False,
            f"engine answers /health but refuses a completion with status {answer.status}: {_shown(answer.body)}",
        )
    unreadable = Outcome(False, f"engine's completion cannot be read: {_shown(answer.body)!r}")
    try:
        body = json.loads(answer.body)
        choice = body["choices"][0]
        tokens = body["usage"]["completion_tokens"]
    except (ValueError, KeyError, IndexError, TypeError, RecursionError):
        return unreadable
    if (
        not isinstance(body["choices"], list)
        or not isinstance(choice, dict)
        or not isinstance(choice.get("text"), str | None)
        or not isinstance(choice.get("token_ids"), list | None)
    ):
        return unreadable
    # Some real tokens have no text (half of a character): then the ids count, where the engine returns them.
    produced = bool(choice.get("text")) or bool(choice.get("token_ids"))
    if isinstance(tokens, bool) or not isinstance(tokens, int) or tokens < 1 or not produced:
        count = tokens if isinstance(tokens, int) else "no count of"
        seen = f"its completion has {count} tokens and text {(choice.get('text') or '')[:_SHOWN]!r}"
        return Outcome(False, f"engine answers /health but generates no token: {seen}")
    return Outcome(True, f"{tokens} token in {answer.seconds:.3f} s", tokens, answer.seconds)


def _shown(body: str) -> str:
    """Return the start of an answer on one line: a report of it must not look like several (sd_notify, journal)."""
    return " ".join(body[:_SHOWN].split())


def request(
    address: str, port: int, method: str, path: str, deadline: float, body: object = None, api_key: str = ""
) -> Answer:
    """Do one HTTP exchange that ends by `deadline` (time.monotonic) whatever the peer does; never raises for it."""
    start = time.monotonic()
    payload = b"" if body is None else json.dumps(body).encode()
    head = [
        f"{method} {path} HTTP/1.1",
        f"Host: {address}:{port}",
        "Connection: close",
        f"Content-Length: {len(payload)}",
    ]
    head += ["Content-Type: application/json"] if payload else []
    head += [f"Authorization: Bearer {api_key}"] if api_key else []
    raw = bytearray()
    try:
        sent = "\r\n".join([*head, "", ""]).encode() + payload
        with socket.create_connection((address, port), max(0.01, deadline - start)) as connection:
            connection.sendall(sent)
            while True:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise TimeoutError
                connection.settimeout(left)
                data = connection.recv(_RECV)
                if not data:
                    break
                raw += data
                if len(raw) > _MAX_ANSWER:
                    return Answer(None, "", f"answer is larger than {_MAX_ANSWER} bytes", time.monotonic() - start)
    except TimeoutError:
        return Answer(None, "", f"no whole answer within {deadline - start:.1f} s", time.monotonic() - start)
    except OSError as exc:
        return Answer(None, "", f"{address}:{port}: {exc.strerror or exc}", time.monotonic() - start)
    except (UnicodeError, OverflowError) as exc:
        # A host name, port, key or time that cannot be used. The text of an encoding error would show the key.
        return Answer(None, "", f"{address}:{port} cannot be asked: {type(exc).__name__}", time.monotonic() - start)
    seconds = time.monotonic() - start
    try:
        response = http.client.HTTPResponse(_Replay(bytes(raw)))  # type: ignore[arg-type]
        response.begin()
        return Answer(response.status, response.read().decode("utf-8", "replace"), "", seconds)
    except (http.client.HTTPException, ValueError) as exc:
        return Answer(None, "", f"{address}:{port} does not speak HTTP: {exc!r}", seconds)


class _Replay:
    """A socket that has already received everything, for http.client to parse."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, mode: str) -> io.BytesIO:
        return io.BytesIO(self._raw)


def probe(address: str, port: int, timeout: float, api_key: str = "", model: str = "") -> Reading:
    """Ask an engine for one token within `timeout` seconds. Without `model` the first one it serves is asked."""
    deadline = time.monotonic() + timeout
    health = request(address, port, "GET", "/health", deadline)
    if health.status != 200:
        return Reading(health)
    if not model:
        listed = request(address, port, "GET", "/v1/models", deadline, api_key=api_key)
        try:
            model = json.loads(listed.body)["data"][0]["id"]
        except (ValueError, KeyError, IndexError, TypeError, RecursionError):
            model = ""
        if not isinstance(model, str) or not model:
            # Without status: the list of models must never be judged as if it were a completion.
            status = None if listed.status == 200 else listed.status
            return Reading(
                health, dataclasses.replace(listed, status=status, error=listed.error or "engine lists no model")
            )
    # ignore_eos and the options below: a model that would stop at once must still show a token.
    wish = {"model": model, "prompt": "1", "max_tokens": 1, "temperature": 0, "ignore_eos": True, "min_tokens": 1}
    wish |= {"skip_special_tokens": False, "return_token_ids": True}
    return Reading(health, request(address, port, "POST", "/v1/completions", deadline, wish, api_key), model)


def read_api_key(path: str = SECRET_FILE) -> str:
    """Return VLLM_API_KEY of the environment file; "" when there is no file, which means that there is no key."""
    try:
        with open(path, encoding="utf-8") as stream:
            lines = stream.read().splitlines()
    except FileNotFoundError:
        return ""
    for line in lines:
        name, _sep, value = line.partition("=")
        if name == "VLLM_API_KEY":
            return re.sub(r"\\(.)", r"\1", value.strip().removeprefix('"').removesuffix('"'))
    return ""


def alive(pid: int) -> bool:
    """Tell whether a process exists and is not a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as stream:
            return stream.read().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return False


def wait(address: str, port: int, wait_s: float, timeout: float, pid: int = 0, api_key: str = "") -> Outcome:
    """Probe until a token comes, the process `pid` is gone, or `wait_s` seconds have passed."""
    end = time.monotonic() + wait_s
    while True:
        left = end - time.monotonic()
        if pid and not alive(pid):
            return Outcome(False, f"process {pid} has ended before it generated a token")
        outcome = judge(probe(address, port, max(0.1, min(timeout, left)), api_key))
        if outcome.ok or end - time.monotonic() <= _POLL_S:
            return outcome
        time.sleep(_POLL_S)


def _seconds(text: str) -> float:
    """Return a number of seconds of the command line; raise argparse's error for one that would never end."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    problem = seconds_problem(repr(text), value, zero=True)
    if problem:
        raise argparse.ArgumentTypeError(problem)
    return value


def main(argv: Sequence[str]) -> int:
    """Command line of the installed copy: exit 0 when a token was generated, 1 when not."""
    parser = argparse.ArgumentParser(description="Ask an inference engine for one token.")
    parser.add_argument("--address", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--timeout", type=_seconds, default=10.0, help="seconds for one try")
    parser.add_argument("--wait", type=_seconds, default=0.0, help="seconds in which to try again")
    parser.add_argument("--pid", type=int, default=0, help="stop waiting when this process has ended")
    args = parser.parse_args(argv)
    # The key is never an argument: arguments are in the process list.
    outcome = wait(
        args.address, args.port, args.wait or args.timeout, args.timeout, args.pid, os.environ.get("VLLM_API_KEY", "")
    )
    sys.stdout.write(f"token_probe: {'pass' if outcome.ok else 'fail'}, {outcome.reason}\n")
    sys.stdout.flush()
    return 0 if outcome.ok else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

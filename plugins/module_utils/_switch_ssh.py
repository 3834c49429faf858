# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Read-only commands on a switch over SSH with paramiko. Runs on the controller; the nodes have no paramiko.

Every command has a deadline of its own, and nothing a switch does raises: what went wrong is in the evidence. The host
key is checked against a file of known keys unless the caller turns that off.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import threading
import time
import traceback
from collections.abc import Iterator
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._switch_cli import Shell
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

PARAMIKO_ERROR: str | None = None
try:
    import paramiko
except ImportError:
    PARAMIKO_ERROR = traceback.format_exc()

_MOST = 1 << 20
# `switch >`, `switch [standalone: master] #`: MLNX-OS and Onyx before and after `enable`.
_PROMPT = re.compile(r"(?:^|\n)[^\n]*\S [>#] ?$")
_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]{0,32}[A-Za-z]|[=>])")
# What breaks in paramiko's own thread on a malformed message is raised again where the answer is waited for.
_MALFORMED = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, AssertionError)
# Answers are not cut into pages; it holds for this session only.
_PREPARE = ("no cli session paging enable", "enable")


@dataclasses.dataclass(frozen=True, slots=True)
class Login:
    """Where and as whom. `known_hosts` None means the user's own file."""

    host: str
    port: int
    username: str
    password: str | None
    key_file: str | None
    known_hosts: str | None
    host_key_checking: bool

    @property
    def name(self) -> str:
        """Name of the switch in check results."""
        return self.host if self.port == 22 else f"{self.host}:{self.port}"


def read_all(login: Login, shell: Shell, commands: dict[str, str], timeout: float) -> dict[str, Evidence]:
    """Run the commands one after another and return what each printed. `timeout` is for each, and for the login."""
    client = paramiko.SSHClient()
    try:
        failure = _connect(client, login, timeout)
        if failure is not None:
            return {key: _failed(login, command, failure) for key, command in commands.items()}
        if shell == "exec":
            return {key: _execute(client, login, command, timeout) for key, command in commands.items()}
        return _converse(client, login, commands, timeout)
    finally:
        client.close()


def _label(login: Login, command: str) -> str:
    return f"ssh {login.name} {command}"


def _failed(login: Login, command: str, why: str) -> Evidence:
    return Evidence(_label(login, command), None, "", "", None, why)


def _connect(client: Any, login: Login, timeout: float) -> str | None:
    """Log in; return why it did not work, None when it did."""
    try:
        if login.known_hosts is None:
            client.load_system_host_keys()
        else:
            client.load_host_keys(login.known_hosts)
        policy = paramiko.RejectPolicy() if login.host_key_checking else paramiko.AutoAddPolicy()
        client.set_missing_host_key_policy(policy)
        client.connect(
            login.host,
            port=login.port,
            username=login.username,
            password=login.password,
            key_filename=login.key_file,
            allow_agent=login.password is None and login.key_file is None,
            look_for_keys=False,
            timeout=timeout,
            banner_timeout=timeout,
            auth_timeout=timeout,
        )
    except paramiko.BadHostKeyException:
        return "the switch shows another host key than the known one"
    except paramiko.AuthenticationException:
        return f"the switch does not take the login of {login.username}"
    except (paramiko.SSHException, OSError, EOFError, *_MALFORMED) as exc:
        return f"no connection: {exc or type(exc).__name__}"
    return None


def _receive(channel: Any, deadline: float, data: bytearray) -> bool:
    """Add what comes next; return whether more may come. Raises TimeoutError past the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    channel.settimeout(left)
    chunk = channel.recv(65536)
    data.extend(chunk[: max(0, _MOST - len(data))])
    return bool(chunk)


def _close(channel: Any) -> None:
    """Close a channel, also one whose switch has gone: it is told so, and need not listen."""
    with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
        channel.close()


@contextlib.contextmanager
def _closed_at(channel: Any, deadline: float) -> Iterator[None]:
    """Close the channel at the deadline: paramiko waits without end for the answer to a request such as exec."""
    timer = threading.Timer(max(0.0, deadline - time.monotonic()), _close, (channel,))
    timer.daemon = True
    timer.start()
    try:
        yield
    except (paramiko.SSHException, EOFError):
        if time.monotonic() >= deadline:
            raise TimeoutError from None
        raise
    finally:
        timer.cancel()


def _execute(client: Any, login: Login, command: str, timeout: float) -> Evidence:
    start = time.monotonic()
    deadline = start + timeout
    out, err = bytearray(), bytearray()
    code: int | None = None
    error: str | None = None
    try:
        channel = client.get_transport().open_session(timeout=timeout)
        try:
            channel.settimeout(timeout)
            with _closed_at(channel, deadline):
                channel.exec_command(command)
            while _receive(channel, deadline, out):
                pass
            while len(err) < _MOST and channel.recv_stderr_ready():
                err.extend(channel.recv_stderr(65536))
            # A switch that closes its output and hangs has not ended either.
            if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
            code = channel.recv_exit_status()
        finally:
            _close(channel)
    except TimeoutError:
        error = f"still running after {timeout:g} s, given up"
    except (paramiko.SSHException, OSError, EOFError, *_MALFORMED) as exc:
        error = f"the connection broke: {exc or type(exc).__name__}"
    return Evidence(_label(login, command), code, _text(out), _text(err), time.monotonic() - start, error)


def _text(data: bytes | bytearray) -> str:
    text = _ESCAPES.sub("", bytes(data).decode("utf-8", "replace").replace("\r\n", "\n"))
    # A carriage return starts the line anew: what was before it is no longer on the screen.
    return "\n".join(line[line.rfind("\r", 0, -1) + 1 :] for line in text.split("\n"))


def _until_prompt(channel: Any, timeout: float) -> str:
    """Return what comes until the prompt, without it. Raises TimeoutError when it does not come."""
    deadline = time.monotonic() + timeout
    data = bytearray()
    while True:
        text = _text(data)
        if match := _PROMPT.search(text):
            return text[: match.start()]
        if not _receive(channel, deadline, data):
            raise EOFError("the switch closed the session")


def _converse(client: Any, login: Login, commands: dict[str, str], timeout: float) -> dict[str, Evidence]:
    """Type the commands into the switch's own shell, which takes none with the login."""
    found: dict[str, Evidence] = {}
    why: str | None = None
    try:
        channel = client.get_transport().open_session(timeout=timeout)
    except (paramiko.SSHException, OSError, EOFError, *_MALFORMED) as exc:
        return {key: _failed(login, command, f"no shell: {exc}") for key, command in commands.items()}
    try:
        with _closed_at(channel, time.monotonic() + timeout):
            channel.get_pty(width=512, height=1000)
            channel.invoke_shell()
        _until_prompt(channel, timeout)
        for command in _PREPARE:
            channel.sendall(f"{command}\n".encode())
            _until_prompt(channel, timeout)
        for key, command in commands.items():
            start = time.monotonic()
            channel.sendall(f"{command}\n".encode())
            text = _until_prompt(channel, timeout)
            # The shell echoes what is typed.
            _echo, _newline, answer = text.partition(command)
            found[key] = Evidence(
                _label(login, command), 0, (answer or text).lstrip("\n") + "\n", "", time.monotonic() - start
            )
    except TimeoutError:
        why = f"no prompt after {timeout:g} s, given up"
    except (paramiko.SSHException, OSError, EOFError, *_MALFORMED) as exc:
        why = f"the connection broke: {exc or type(exc).__name__}"
    finally:
        _close(channel)
    return {key: found.get(key) or _failed(login, command, why or "no answer") for key, command in commands.items()}

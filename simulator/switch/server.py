# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The SSH server of the simulated switch, with paramiko: one thread for each connection."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
from pathlib import Path
from typing import Any

import paramiko

from switch import answers

_HANG_S = 3600.0


def host_key(directory: Path) -> paramiko.PKey:
    """Return the switch's own key; the first start makes it."""
    path = directory / "host_key"
    if not path.exists():
        paramiko.ECDSAKey.generate().write_private_key_file(str(path))
    return paramiko.ECDSAKey.from_private_key_file(str(path))


def faults(directory: Path) -> set[str]:
    """Return the switch's faults, one a line; they are read anew for each command."""
    try:
        lines = (directory / "faults").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return set()
    return {line.strip() for line in lines if line.strip()}


class Switch:
    """A listening switch. `directory` holds its key, `known_hosts` for clients, and its faults."""

    def __init__(self, directory: Path, system: str, address: tuple[str, int], user: str, password: str) -> None:
        """Listen; port 0 takes a free one. Raises OSError when the address is taken."""
        self.directory, self.system, self.user, self.password = directory, system, user, password
        self.key = host_key(directory)
        self.listener = socket.create_server(address)
        self.address: tuple[str, int] = self.listener.getsockname()[:2]
        self.ended = threading.Event()
        name = f"[{self.address[0]}]:{self.address[1]}" if self.address[1] != 22 else self.address[0]
        line = f"{name} {self.key.get_name()} {self.key.get_base64()}\n"
        (directory / "known_hosts").write_text(line, encoding="ascii")

    def serve(self) -> None:
        """Answer connections until `close`."""
        while not self.ended.is_set():
            try:
                connection, _peer = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connection, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """End listening."""
        self.ended.set()
        # Wakes the thread that waits in accept.
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def _connection(self, connection: socket.socket) -> None:
        transport = paramiko.Transport(connection)
        transport.add_server_key(self.key)
        session = _Session(self)
        try:
            transport.start_server(server=session)
            while (channel := transport.accept(60)) is not None:
                if session.asked.wait(10):
                    self._talk(channel, session.command)
                session.asked.clear()
        except (paramiko.SSHException, OSError, EOFError):
            pass
        finally:
            transport.close()

    def _talk(self, channel: Any, command: str | None) -> None:
        if command is None:
            self._shell(channel)
        elif self.system in answers.PROMPTED:
            channel.sendall_stderr(b"This system takes no commands with the login.\n")
            channel.send_exit_status(1)
        else:
            text, code = self._answer(command)
            (channel.sendall if code == 0 else channel.sendall_stderr)(text.encode())
            channel.send_exit_status(code)
        channel.close()

    def _answer(self, command: str) -> tuple[str, int]:
        now = faults(self.directory)
        if answers.HANGS in now:
            self.ended.wait(_HANG_S)
        try:
            return answers.answer(self.system, command, now), 0
        except answers.Unknown as exc:
            return str(exc), 127

    def _shell(self, channel: Any) -> None:
        """The interactive shell: it echoes, ends lines with CR LF, and prompts `>` until `enable`."""
        prompt = "switch-1 [standalone: master] > "
        channel.sendall(f"\r\nNVIDIA Switch\r\n\r\n{prompt}".encode())
        line = b""
        while chunk := channel.recv(1024):
            for byte in chunk:
                if byte not in b"\r\n":
                    line += bytes([byte])
                    continue
                command, line = line.decode("utf-8", "replace").strip(), b""
                text = ""
                if command == "enable":
                    prompt = prompt.replace(" > ", " # ")
                elif command in ("exit", "quit"):
                    return
                elif command and not command.startswith("no cli session"):
                    text = self._answer(command)[0]
                channel.sendall(f"{command}\r\n{text}{prompt}".replace("\r\n", "\n").replace("\n", "\r\n").encode())


class _Session(paramiko.ServerInterface):  # type: ignore[misc]
    """One login and what it asks for."""

    def __init__(self, switch: Switch) -> None:
        self.switch = switch
        self.command: str | None = None
        self.asked = threading.Event()

    def get_allowed_auths(self, username: str) -> str:
        return "password"

    def check_auth_password(self, username: str, password: str) -> int:
        good = username == self.switch.user and hmac.compare_digest(password.encode(), self.switch.password.encode())
        return int(paramiko.AUTH_SUCCESSFUL if good else paramiko.AUTH_FAILED)

    def check_channel_request(self, kind: str, chanid: int) -> int:
        refused = paramiko.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED
        return int(paramiko.OPEN_SUCCEEDED if kind == "session" else refused)

    def check_channel_exec_request(self, channel: Any, command: bytes) -> bool:
        self.command = command.decode("utf-8", "replace")
        self.asked.set()
        return True

    def check_channel_pty_request(self, *args: Any) -> bool:
        return True

    def check_channel_shell_request(self, channel: Any) -> bool:
        self.command = None
        self.asked.set()
        return True

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Connections between the nodes of a sweep: who is there, who is still alive, and messages of one line of JSON."""

from __future__ import annotations

import contextlib
import json
import queue
import selectors
import socket
import threading
import time
from typing import Any

TICK_S = 2.0
CONNECT_S = 1.0
MAX_LINE = 1 << 24
"""All rows of 128 nodes with 8 rails fit well."""

BUDGET = "the time budget of the sweep was over"

Message = dict[str, Any]


class Lost(Exception):
    """A partner that is gone, with the reason for people."""


class Hub:
    """Connections to all partners on the management network, kept up by one thread.

    A partner may be busy for minutes with others, so every node says every two seconds that it is alive; one that has
    closed its connection or was silent for `silence` seconds is lost.
    """

    def __init__(self, address: str, port: int, hello: Message, silence: float) -> None:
        """Listen on the node's own address; raises OSError when the port is taken."""
        self._hello = hello
        self._silence = silence
        self._lock = threading.Lock()
        self._sockets: dict[str, socket.socket] = {}
        self._inbox: dict[str, queue.Queue[Message | None]] = {}
        self._heard: dict[str, float] = {}
        self._buffers: dict[socket.socket, bytes] = {}
        self._names: dict[socket.socket, str] = {}
        self._held: dict[str, list[Message]] = {}
        # Two threads send on one connection, and a long message goes out in parts.
        self._writing = threading.Lock()
        self.partners: dict[str, Message] = {}
        self.refused: dict[str, str] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(address, port)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def connect(self, name: str, address: str, port: int) -> str | None:
        """Try once to reach a partner; return why it could not be reached, None when the hello is on its way."""
        try:
            sock = socket.create_connection((address, port), CONNECT_S)
            sock.settimeout(5.0)
            sock.sendall(_line(self._hello))
        except OSError as exc:
            return str(exc.strerror or exc)
        with self._lock:
            self._buffers[sock] = b""
            self._names[sock] = name
            self._selector.register(sock, selectors.EVENT_READ)
        return None

    def send(self, name: str, message: Message) -> None:
        """Send a message; a broken connection is found by the next `receive`."""
        with self._lock:
            sock = self._sockets.get(name)
        if sock is not None:
            self._write(sock, message)

    def receive(self, name: str, kind: str, deadline: float, late: str = BUDGET) -> Message:
        """Return the partner's next message of that kind; raise Lost when it is gone, or `late` after the deadline.

        Messages of other kinds are kept for a later call.
        """
        held = self._held.setdefault(name, [])
        for index, message in enumerate(held):
            if message.get("type") == kind:
                return held.pop(index)
        inbox = self._inbox.get(name)
        while inbox is not None:
            now = time.monotonic()
            if now >= deadline:
                raise Lost(late)
            if now - self._heard.get(name, now) > self._silence:
                raise Lost(f"silent on the management network for {self._silence:g} s")
            try:
                received = inbox.get(timeout=min(1.0, deadline - now))
            except queue.Empty:
                continue
            if received is None:
                inbox.put(None)
                raise Lost("closed the connection in the middle of the sweep")
            message = received
            if message.get("type") == kind:
                return message
            if message.get("type") == "abort":
                raise Lost(f"gave up: {message.get('reason')}")
            held.append(message)
        raise Lost("was never met")

    def _write(self, sock: socket.socket, message: Message) -> None:
        try:
            with self._writing:
                sock.sendall(_line(message))
        except OSError:
            # Part of the message may be out: what follows would be unreadable, so the reader shall find the end.
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close everything."""
        self._stop.set()
        self._thread.join(5.0)
        with self._lock:
            for sock in (*self._buffers, self._listener):
                sock.close()
        self._selector.close()

    def _serve(self) -> None:
        next_tick = time.monotonic() + TICK_S
        while not self._stop.is_set():
            for key, _events in self._selector.select(0.2):
                sock = key.fileobj
                if sock is self._listener:
                    self._accept()
                elif isinstance(sock, socket.socket):
                    self._read(sock)
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK_S
                for name in list(self._sockets):
                    self.send(name, {"type": "tick"})

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            sock, _peer = self._listener.accept()
            sock.settimeout(5.0)
            with self._lock:
                self._buffers[sock] = b""
                self._selector.register(sock, selectors.EVENT_READ)

    def _read(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536)
        except OSError:
            data = b""
        buffer = self._buffers.get(sock, b"") + data
        *lines, rest = buffer.split(b"\n")
        self._buffers[sock] = rest
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                data = b""
                break
            if isinstance(message, dict):
                self._take(sock, message)
        if not data or len(rest) > MAX_LINE:
            self._drop(sock)

    def _take(self, sock: socket.socket, message: Message) -> None:
        name = self._names.get(sock)
        if message.get("type") == "hello":
            self._welcome(sock, message)
        elif message.get("type") == "refuse" and name is not None:
            self.refused[name] = str(message.get("reason"))
        elif name is not None and name in self._inbox:
            self._heard[name] = time.monotonic()
            if message.get("type") != "tick":
                self._inbox[name].put(message)

    def _welcome(self, sock: socket.socket, message: Message) -> None:
        """Answer a partner's hello with ours; refuse a stranger and a node of another sweep."""
        name = str(message.get("node"))
        answer = sock not in self._names
        reason = None
        if message.get("sweep") != self._hello["sweep"]:
            reason = f"sweep {message.get('sweep')!r} met a node of sweep {self._hello['sweep']!r}"
        elif name not in self._hello["nodes"] or message.get("nodes") != self._hello["nodes"]:
            reason = f"{name} and {self._hello['node']} were given different lists of nodes"
        if reason is not None:
            self.refused[name] = reason
            self._write(sock, {"type": "refuse", "reason": reason})
            return
        with self._lock:
            self._names[sock] = name
            self._inbox.setdefault(name, queue.Queue())
            self._heard[name] = time.monotonic()
            self._sockets[name] = sock
        if answer:
            self.send(name, self._hello)
        self.partners[name] = message

    def _drop(self, sock: socket.socket) -> None:
        with self._lock:
            self._selector.unregister(sock)
            self._buffers.pop(sock, None)
            name = self._names.pop(sock, None)
            sock.close()
            if name is not None and self._sockets.get(name) is sock:
                del self._sockets[name]
                self._inbox[name].put(None)


def _listen(address: str, port: int) -> socket.socket:
    """Listen on one address of the node; on all of them where it is not the node's own (NAT)."""
    family, _type, _proto, _name, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server((target[0], port), family=family, backlog=256)
    except OSError as exc:
        if exc.errno == 98:  # EADDRINUSE
            raise
        return socket.create_server(("", port), backlog=256)


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"

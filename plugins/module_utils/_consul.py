# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Small client of Consul's HTTP API.

Standard library only, no Ansible: the engine probe on the node runs this very file.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

_BODY_SHOWN = 300
# A node has a few dozen checks of a few hundred bytes, a rack some hundred keys.
_MAX_BODY = 16 << 20


class ConsulError(Exception):
    """A request that Consul refused or did not answer. `status` is the HTTP status, None when there was no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """Keep the status beside the message."""
        super().__init__(message)
        self.status = status

    @property
    def unreachable(self) -> bool:
        """True when nothing answered, which is normal before the agent runs."""
        return self.status is None


class Consul:
    """One Consul agent or server.

    `address` is `http://host[:8500]`, `https://host[:8501]` or `host[:port]`. The token goes into a header, never into
    the URL, so that it is in no log. `timeout` is in seconds for each request. Proxies of the environment are not used.
    """

    def __init__(self, address: str, token: str = "", timeout: float = 5.0, ca_file: str | None = None) -> None:
        """Parse the address; raise ValueError when it is not one."""
        parts = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(f"Consul address: {address!r}. Use http://host:8500 or https://host:8501.")
        self.address = f"{parts.scheme}://{parts.netloc}"
        self._host = parts.hostname
        self._port = parts.port or (8501 if parts.scheme == "https" else 8500)
        self._context = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None
        self._token = token
        self._timeout = timeout

    def request(self, method: str, path: str, body: Any = None, query: dict[str, str] | None = None) -> bytes:
        """Send one request and return the body of a 2xx answer; raise ConsulError for everything else."""
        url = f"/v1/{path}" + (f"?{urllib.parse.urlencode(query)}" if query else "")
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", **({"X-Consul-Token": self._token} if self._token else {})}
        connection: http.client.HTTPConnection
        if self._context is not None:
            connection = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout, context=self._context
            )
        else:
            connection = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout)
        late = threading.Event()
        # The socket's own timeout is for each byte: an answer that drips would never end.
        sockets: list[socket.socket] = []
        watch = threading.Timer(self._timeout, _cut, (sockets, late))
        watch.daemon = True
        try:
            watch.start()
            connection.connect()
            # Kept, as the connection lets go of it when only the answer holds it.
            sockets.append(connection.sock)
            connection.request(method, url, body=data, headers=headers)
            answer = connection.getresponse()
            content = answer.read(_MAX_BODY + 1)
        except (OSError, http.client.HTTPException, ValueError, AttributeError) as exc:
            why = f"not whole after {self._timeout:g} s" if late.is_set() else str(exc)[:_BODY_SHOWN]
            raise ConsulError(f"{method} {self.address}/v1/{path}: no answer ({why or type(exc).__name__})") from exc
        finally:
            watch.cancel()
            connection.close()
        # What was cut at the deadline looks like an answer that ended.
        if late.is_set():
            raise ConsulError(f"{method} {self.address}/v1/{path}: no answer (not whole after {self._timeout:g} s)")
        if len(content) > _MAX_BODY:
            raise ConsulError(f"{self.address}/v1/{path}: more than {_MAX_BODY >> 20} MiB, is this Consul?", 200)
        if answer.length and 200 <= answer.status < 300:
            raise ConsulError(f"{method} {self.address}/v1/{path}: no answer (cut off, {answer.length} bytes lack)")
        if not 200 <= answer.status < 300:
            text = content.decode("utf-8", "replace").strip()
            # An error may repeat what it was asked with, and this text goes to logs.
            text = text.replace(self._token, "[the token]") if self._token else text
            raise ConsulError(
                f"{method} {self.address}/v1/{path}: HTTP {answer.status} {text[:_BODY_SHOWN]}", answer.status
            )
        return content

    def get(self, path: str, query: dict[str, str] | None = None) -> Any:
        """Return the decoded JSON of a GET, or None for 404."""
        try:
            content = self.request("GET", path, query=query)
        except ConsulError as exc:
            if exc.status == 404:
                return None
            raise
        return self._decode(path, content)

    def put(self, path: str, body: Any = None, query: dict[str, str] | None = None) -> Any:
        """PUT a value (JSON unless bytes) and return the decoded answer, None when it is empty."""
        content = self.request("PUT", path, body, query)
        return self._decode(path, content) if content.strip() else None

    def delete(self, path: str) -> None:
        """DELETE a resource."""
        self.request("DELETE", path)

    def kv_get(self, key: str) -> bytes | None:
        """Return the stored bytes of a key, None when there is no such key."""
        found = self.get(f"kv/{urllib.parse.quote(key)}")
        if not found:
            return None
        value = found[0].get("Value")
        return b"" if value is None else base64.b64decode(value)

    def kv_put(self, key: str, value: bytes) -> None:
        """Store the bytes of a key; raise ConsulError when Consul says that it did not."""
        if self.put(f"kv/{urllib.parse.quote(key)}", value) is not True:
            raise ConsulError(f"PUT {self.address}/v1/kv/{key}: Consul did not store the value", 200)

    def kv_delete(self, key: str) -> None:
        """Remove a key."""
        self.delete(f"kv/{urllib.parse.quote(key)}")

    def _decode(self, path: str, content: bytes) -> Any:
        try:
            return json.loads(content)
        except (ValueError, RecursionError) as exc:
            raise ConsulError(f"{self.address}/v1/{path}: answered without JSON, is this Consul?", 200) from exc


def _cut(sockets: list[socket.socket], late: threading.Event) -> None:
    """End a request whose time is over, wherever it waits."""
    late.set()
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def wait_for(
    probe: Callable[[], bool], timeout: float, interval: float = 0.25, clock: Callable[[], float] = time.monotonic
) -> bool:
    """Call `probe` until it is true or `timeout` seconds have passed; return whether it became true."""
    deadline = clock() + timeout
    while True:
        if probe():
            return True
        if clock() >= deadline:
            return False
        time.sleep(interval)

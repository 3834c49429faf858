# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A small Redfish client on ansible.module_utils.urls: nothing to install on the controller."""

from __future__ import annotations

import dataclasses
import http.client
import json
import os
import time
import urllib.error
from collections.abc import Callable, Mapping
from typing import Any

from ansible.module_utils.urls import ConnectionError as UrlConnectionError
from ansible.module_utils.urls import open_url

REDFISH_ARGS: dict[str, dict[str, Any]] = {
    "address": {"type": "str", "required": True},
    "username": {"type": "str", "required": True},
    "password": {"type": "str", "required": True, "no_log": True},
    "validate_certs": {"type": "bool", "default": True},
    "ca_path": {"type": "path"},
    "system_id": {"type": "str"},
    "timeout": {"type": "float", "default": 30.0},
    "retries": {"type": "int", "default": 4},
}
"""Options every Redfish module takes; documented in the fragment ai_infra.gpu_rack.redfish."""

_MAX_WAIT_S = 30.0
_MAX_PAGES = 1000
_ADDRESS_REMEDY = "Give the option address as host or host:port."
_DROPPED = (ConnectionError, http.client.RemoteDisconnected, http.client.IncompleteRead, TimeoutError)


class RedfishError(Exception):
    """The BMC did not do what was asked; the text is complete and safe to show.

    `status` is the HTTP status, or None.
    """

    def __init__(self, message: str, status: int | None = None) -> None:
        """Keep text and status."""
        super().__init__(message)
        self.status = status


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
    """One answer: HTTP status, headers with lower-case names, JSON object ({} when the body is empty)."""

    status: int
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def etag(self) -> str | None:
        """Entity tag for If-Match, from the header or the resource."""
        return self.headers.get("etag") or self.body.get("@odata.etag")


def extended_message(raw: bytes) -> str:
    """Return what the BMC itself says in an error body: its extended messages, else its message, else the raw text."""
    text = raw.decode("utf-8", "replace").strip()
    try:
        error = json.loads(text)["error"]
        infos = [i for i in error.get("@Message.ExtendedInfo") or [] if isinstance(i, dict)]
        said = [str(i["Message"]).strip() for i in infos if i.get("Message")] or [
            i["MessageId"] for i in infos if i.get("MessageId")
        ]
        return " ".join(dict.fromkeys(said)) or str(error.get("message") or error.get("code"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return text[:300] or "no explanation"


def odata_id(resource: Mapping[str, Any], *keys: str) -> str | None:
    """Return the path of a link nested under `keys`, or None."""
    value: Any = resource
    for key in (*keys, "@odata.id"):
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value if isinstance(value, str) else None


class Bmc:
    """One BMC. Paths are absolute (`/redfish/v1/...`)."""

    def __init__(
        self,
        params: Mapping[str, Any],
        opener: Callable[..., Any] = open_url,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Take the options REDFISH_ARGS of a module."""
        self.address: str = params["address"]
        self.sleep = sleep
        self.clock = clock
        self._params = params
        self._open = opener
        ca_path = params["ca_path"]
        if ca_path and not os.path.isfile(ca_path):
            raise RedfishError(
                f"ca_path {ca_path}: there is no such file on this host. Name the PEM file of the BMC's authority."
            )

    def _clean(self, text: str) -> str:
        """Return text that cannot show the password, whatever a BMC echoes."""
        password = self._params["password"]
        return text.replace(password, "********") if password else text

    def _error(self, method: str, path: str, observed: str, remedy: str, status: int | None = None) -> RedfishError:
        """Return an error that names request, BMC and remedy."""
        return RedfishError(
            self._clean(f"{method} {path} on BMC {self.address}: {observed.rstrip('. ')}. {remedy}"), status
        )

    def request(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, etag: str | None = None
    ) -> Response:
        """Send one request, again while the BMC is busy or drops the connection, and return its answer.

        A POST whose connection broke is not sent again: the BMC may have acted on it.
        """
        if not path.startswith("/"):
            # Behind "https://<address>" it would name another host, and the password would go there.
            raise self._error(method, path, "not an absolute path", "Update the BMC: its links must begin with '/'.")
        attempts = 1 + max(0, self._params["retries"])
        for attempt in range(1, attempts + 1):
            wait = min(2.0 ** (attempt - 1) * 0.5, _MAX_WAIT_S)
            try:
                return self._send(method, path, body, etag)
            except urllib.error.HTTPError as exc:
                said = _error_body(exc)
                if exc.code == 503 and attempt < attempts:
                    asked = exc.headers.get("Retry-After", "") if exc.headers else ""
                    self.sleep(min(float(asked), _MAX_WAIT_S) if asked.isascii() and asked.isdecimal() else wait)
                    continue
                raise self._error(method, path, f"HTTP {exc.code}: {said}", _advice(exc.code), exc.code) from exc
            except (OSError, UrlConnectionError, *_DROPPED) as exc:
                reason = getattr(exc, "reason", exc)
                dropped = isinstance(reason, _DROPPED) or isinstance(exc, _DROPPED)
                again = isinstance(reason, ConnectionRefusedError) or (dropped and method != "POST")
                if again and attempt < attempts:
                    self.sleep(wait)
                    continue
                remedy = "Check address and the management network; for a certificate error check ca_path."
                raise self._error(method, path, f"{reason or type(reason).__name__}", remedy) from exc
            except http.client.InvalidURL as exc:
                raise self._error(method, path, f"not a usable address ({exc})", _ADDRESS_REMEDY) from exc
            except http.client.HTTPException as exc:
                observed = f"the answer is not HTTP ({exc!r})"
                raise self._error(
                    method, path, observed, "Check that this address is a Redfish service over HTTPS."
                ) from exc
            except ValueError as exc:
                raise self._error(method, path, f"not a usable address ({exc})", _ADDRESS_REMEDY) from exc
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None, etag: str | None) -> Response:
        """Send one request once."""
        headers = {"Accept": "application/json", "OData-Version": "4.0"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if etag:
            headers["If-Match"] = etag
        with self._open(
            f"https://{self.address}{path}",
            data=None if body is None else json.dumps(body),
            headers=headers,
            method=method,
            timeout=self._params["timeout"],
            validate_certs=self._params["validate_certs"],
            ca_path=self._params["ca_path"],
            url_username=self._params["username"],
            url_password=self._params["password"],
            force_basic_auth=True,
            follow_redirects="safe",
            use_netrc=False,
            # A management network is not behind the proxy of the controller's environment.
            use_proxy=False,
            http_agent="ai_infra.gpu_rack",
        ) as answer:
            raw = answer.read()
            status = answer.status
            received = {k.lower(): v for k, v in answer.headers.items()}
        try:
            parsed = json.loads(raw) if raw.strip() else {}
        except (ValueError, RecursionError) as exc:
            shown = raw[:200].decode("utf-8", "replace")
            raise self._error(
                method, path, f"the answer is not JSON: {shown}", "Check that this address is a Redfish service."
            ) from exc
        return Response(status, received, parsed if isinstance(parsed, dict) else {"value": parsed})

    def get(self, path: str) -> dict[str, Any]:
        """Return a resource."""
        return self.request("GET", path).body

    def members(self, path: str) -> list[str]:
        """Return the paths of a collection's members, over all its pages."""
        found: list[str] = []
        seen: set[str] = set()
        page: str | None = path
        remedy = "Update the BMC's firmware: its collection does not follow Redfish."
        while page is not None:
            seen.add(page)
            resource = self.get(page)
            members = resource.get("Members")
            if members is None and "Members" not in resource and resource.get("Members@odata.count") == 0:
                members = []
            if not isinstance(members, list):
                raise self._error("GET", page, f"Members is {members!r:.100}, not a list", remedy)
            for member in members:
                link = odata_id(member)
                if link is None or not link.startswith("/"):
                    raise self._error("GET", page, f"a member is {member!r:.100}, not a link", remedy)
                found.append(link)
            following = resource.get("Members@odata.nextLink")
            if following is not None and not isinstance(following, str):
                raise self._error("GET", page, f"the link to the next page is {following!r:.100}", remedy)
            if following and (following in seen or len(seen) >= _MAX_PAGES):
                raise self._error("GET", page, f"the pages do not end, {following} is the next", remedy)
            page = following or None
        return found

    def system(self, system_id: str | None = None) -> dict[str, Any]:
        """Return the computer system: the one of that id, else the only one, else the only one with a BIOS."""
        paths = self.members("/redfish/v1/Systems")
        ids = {p.rstrip("/").rsplit("/", 1)[-1]: p for p in paths}
        if system_id is not None:
            if system_id not in ids:
                raise RedfishError(
                    f"system_id '{system_id}' on BMC {self.address}: there is no such system. Use one of "
                    f"{', '.join(sorted(ids)) or 'none'}."
                )
            return self.get(ids[system_id])
        systems = [self.get(p) for p in paths]
        if len(systems) > 1:
            systems = [s for s in systems if odata_id(s, "Bios")]
        if len(systems) != 1:
            raise RedfishError(
                f"computer system on BMC {self.address}: {len(paths)} systems, {len(systems)} of them with a BIOS. "
                f"Choose one with system_id: {', '.join(sorted(ids)) or 'none is there'}."
            )
        return systems[0]

    def wait_for(self, what: Callable[[], str | None], wanted: str, deadline_s: float, interval_s: float = 1.0) -> bool:
        """Poll until `what()` is `wanted`, ever more slowly. Returns False at the deadline; polls at least once."""
        end = self.clock() + deadline_s
        pause = min(0.2, interval_s)
        while True:
            if what() == wanted:
                return True
            if self.clock() >= end:
                return False
            self.sleep(min(pause, max(0.0, end - self.clock())))
            pause = min(pause * 2, interval_s)


def _error_body(exc: urllib.error.HTTPError) -> str:
    """Return what the body of a refusal says; a connection that breaks in it must not hide the status."""
    try:
        return extended_message(exc.read())
    except (OSError, http.client.HTTPException, ValueError) as broken:
        return f"its explanation broke off ({type(broken).__name__})"


def _advice(status: int) -> str:
    """Return what to do about an HTTP status."""
    return {
        401: "Check username and password of the BMC account.",
        403: "Give the BMC account the right to configure the system.",
        404: "Check that this BMC offers the resource; its firmware may be too old.",
        412: "Somebody else changed it in between; run again.",
        503: "The BMC stayed busy; wait for its running job to end and run again.",
    }.get(status, "Correct the value the BMC objects to, or update the BMC.")

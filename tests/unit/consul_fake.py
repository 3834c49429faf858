# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A Consul agent and server in one, in this process: the part of the HTTP API that the collection uses."""

from __future__ import annotations

import base64
import json
import threading
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MANAGEMENT = "11111111-1111-4111-8111-111111111111"
ANONYMOUS = "00000000-0000-0000-0000-000000000002"


class FakeConsul:
    """State behind the API. `token` None means that every token is accepted."""

    def __init__(self, config_dir: Path | None = None, token: str | None = None) -> None:
        self.config_dir = config_dir
        self.token = token
        self.kv: dict[str, bytes] = {}
        self.services: dict[str, dict[str, Any]] = {}
        self.checks: dict[str, dict[str, Any]] = {}
        self.policies: dict[str, dict[str, Any]] = {}
        self.tokens: dict[str, dict[str, Any]] = {
            MANAGEMENT: {
                "AccessorID": "a-management",
                "SecretID": MANAGEMENT,
                "Policies": [{"Name": "global-management"}],
            },
            "anonymous": {
                "AccessorID": ANONYMOUS,
                "SecretID": "anonymous",
                "Description": "Anonymous Token",
                "Policies": [],
            },
        }
        self.serf = "passing"
        self.write_log: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.answer("GET")

            def do_PUT(self) -> None:
                self.answer("PUT")

            def do_DELETE(self) -> None:
                self.answer("DELETE")

            def answer(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                parts = urllib.parse.urlsplit(self.path)
                query = {k: v[0] for k, v in urllib.parse.parse_qs(parts.query).items()}
                path = urllib.parse.unquote(parts.path).removeprefix("/v1/")
                status, value = fake.handle(method, path, query, body, self.headers.get("X-Consul-Token", ""))
                data = value if isinstance(value, bytes) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        """Stop listening, as a dead agent does."""
        self._server.shutdown()
        self._server.server_close()

    def reload(self) -> None:
        """Read the service definitions again. Known checks keep their status, new ones have the defined one."""
        old, self.services = self.checks, {}
        self.checks = {k: c for k, c in old.items() if k.startswith("_service_maintenance:")}
        for path in sorted(self.config_dir.glob("*.json")) if self.config_dir else []:
            service = json.loads(path.read_text()).get("service")
            if not service:
                continue
            self.services[service["id"]] = {
                "ID": service["id"],
                "Service": service["name"],
                "Tags": service["tags"],
                "Meta": service["meta"],
                "Port": service["port"],
                "Address": service.get("address", ""),
            }
            for check in service["checks"]:
                new = {
                    "CheckID": check["id"],
                    "Status": check["status"],
                    "Output": "",
                    "Notes": "",
                    "ServiceID": service["id"],
                }
                self.checks[check["id"]] = old.get(check["id"], new)
        self.checks = {k: c for k, c in self.checks.items() if c["ServiceID"] in self.services}

    def handle(self, method: str, path: str, query: dict[str, str], body: bytes, token: str) -> tuple[int, Any]:
        """Answer one request."""
        if self.token is not None and token != self.token:
            return 403, b"Permission denied"
        if method != "GET":
            self.write_log.append(f"{method} {path}")
        area, _slash, rest = path.partition("/")
        if area == "kv":
            return self._kv(method, rest, body)
        if area == "acl":
            return self._acl(method, rest, body, token)
        if path == "agent/services":
            return 200, self.services
        if path == "agent/checks":
            return 200, self.checks
        if path.startswith("agent/check/update/"):
            check = self.checks.get(path.removeprefix("agent/check/update/"))
            if check is None:
                return 500, b"does not have associated TTL"
            update = json.loads(body)
            check["Status"], check["Output"] = update["Status"], update["Output"]
            return 200, b""
        if path.startswith("agent/service/maintenance/"):
            return self._maintenance(path.removeprefix("agent/service/maintenance/"), query)
        if path.startswith("health/service/"):
            name = path.removeprefix("health/service/")
            serf = {"CheckID": "serfHealth", "Status": self.serf, "Output": "Agent alive and reachable"}
            found = [s for s in self.services.values() if s["Service"] == name]
            own = [(s, [serf, *(c for c in self.checks.values() if c["ServiceID"] == s["ID"])]) for s in found]
            return 200, [{"Node": {"Node": "node1"}, "Service": s, "Checks": checks} for s, checks in own]
        return 404, b"no such endpoint"

    def _kv(self, method: str, key: str, body: bytes) -> tuple[int, Any]:
        if method == "PUT":
            self.kv[key] = body
            return 200, True
        if method == "DELETE":
            self.kv.pop(key, None)
            return 200, True
        if key not in self.kv:
            return 404, b""
        return 200, [{"Key": key, "Value": base64.b64encode(self.kv[key]).decode() if self.kv[key] else None}]

    def _maintenance(self, unit: str, query: dict[str, str]) -> tuple[int, Any]:
        if unit not in self.services:
            return 404, b"unknown service"
        key = f"_service_maintenance:{unit}"
        if query["enable"] == "false":
            self.checks.pop(key, None)
        else:
            new = {"CheckID": key, "Status": "critical", "Output": "", "Notes": query["reason"], "ServiceID": unit}
            self.checks.setdefault(key, new)
        return 200, b""

    def _acl(self, method: str, path: str, body: bytes, token: str) -> tuple[int, Any]:
        if path == "token/self":
            found = self.tokens.get(token)
            return (200, found) if found else (403, b"ACL not found")
        if token != MANAGEMENT:
            return 403, b"Permission denied"
        data = json.loads(body) if body else {}
        if path == "policies":
            return 200, [{"ID": p["ID"], "Name": p["Name"]} for p in self.policies.values()]
        if path.startswith("policy/") and method == "GET":
            return 200, self.policies[path.removeprefix("policy/")]
        if path == "policy" or path.startswith("policy/"):
            key = data.get("ID") or str(uuid.uuid4())
            self.policies[key] = {**data, "ID": key}
            return 200, self.policies[key]
        by_accessor = {t["AccessorID"]: t for t in self.tokens.values()}
        if path.startswith("token/") and method == "GET":
            return 200, by_accessor[path.removeprefix("token/")]
        if path.startswith("token/"):
            known = by_accessor[path.removeprefix("token/")]
            known.update(data)
            return 200, known
        new = {**data, "AccessorID": str(uuid.uuid4())}
        self.tokens[data["SecretID"]] = new
        return 200, new

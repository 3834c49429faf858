# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The least that answers a token probe: this scenario is about Consul, not about engines."""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Handler(BaseHTTPRequestHandler):
    """Healthy, and one token for every wish."""

    def do_GET(self) -> None:
        """Answer /health."""
        self.answer({})

    def do_POST(self) -> None:
        """Answer /v1/completions."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.answer({"choices": [{"text": "a"}], "usage": {"completion_tokens": 1}})

    def answer(self, body: dict[str, Any]) -> None:
        """Send JSON."""
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()

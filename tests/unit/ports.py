# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""TCP ports for tests that must name one before it is bound."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path


def free_port(above: int = 0) -> int:
    """Return a port that is free with those above it, below the range from which the kernel takes client ports."""
    first_client_port = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(1024, first_client_port - above)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for offset in range(above + 1):
                stack.enter_context(socket.create_server(("", port + offset)))
            return port

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Serve the BMCs of a rack: `python -m bmc --rack-dir .sim/<rack> --rack-file FILE`, until SIGTERM."""

from __future__ import annotations

import argparse
import functools
import http.server
import logging
import signal
import ssl
import sys
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from racksim import rackfile
from werkzeug import serving

from bmc import certs, service
from bmc.hardware import RackHardware
from bmc.machine import Machine

PORT = 8443
PACKAGE_PORT = 8080
USERNAME = "admin"
PACKAGES = Path(__file__).parent / "packages"


def make_server(address: str, port: int, app: Any, certificate: Path, key: Path) -> serving.BaseWSGIServer:
    """Return a TLS server of the application on one address.

    The handshake is left to the connection's own thread: in the accepting one a silent client would block the BMC.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = serving.make_server(address, port, app, threaded=True)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.ssl_context = context
    return server


def package_server(address: str, port: int, directory: Path) -> http.server.ThreadingHTTPServer:
    """Return a plain HTTP server of the firmware packages."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(directory))
    return http.server.ThreadingHTTPServer((address, port), handler)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="bmc", description=__doc__)
    parser.add_argument("--rack-dir", type=Path, required=True, help="controller state of the rack, .sim/<rack>")
    parser.add_argument(
        "--rack-file", type=Path, required=True, help="the rack's description, simulator/racks/<rack>.yml"
    )
    parser.add_argument("--packages", type=Path, default=PACKAGES, help="directory with firmware packages")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("werkzeug").setLevel(logging.WARNING)

    # A file can be up under another name than its own: containers and state are named after the directory.
    rack = rackfile.load(arguments.rack_file, arguments.rack_dir.resolve().name)
    password_file = arguments.rack_dir / "secrets" / "bmc_password"
    try:
        password = password_file.read_text().strip()
    except OSError as exc:
        print(
            f"BMC password {password_file}: {exc.strerror}. Bring the rack up with simulator/rack up.", file=sys.stderr
        )
        return 2

    directory = arguments.rack_dir / "bmc"
    machines: dict[str, Machine] = {}
    addresses: list[str] = []
    for node in rack.nodes:
        address = node.bmc_address.split(":")[0]
        addresses.append(address)
        identity = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{node.name}.{rack.name}.gpurack"))
        machines[f"{address}:{PORT}"] = Machine(
            node.name, identity, node.vendor, RackHardware(rack, node.name), directory / "state" / f"{node.name}.json"
        )
    certificate, key = certs.ensure(directory, addresses)
    app = service.configure(machines, directory / "state", USERNAME, password)
    servers: list[Any] = [make_server(a, PORT, app, certificate, key) for a in addresses]
    servers.append(package_server(rack.firmware_address.split(":", maxsplit=1)[0], PACKAGE_PORT, arguments.packages))

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_args: stop.set())
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    logging.getLogger("bmc").info(
        "rack %s: %d BMCs at %s port %d", rack.name, len(addresses), ", ".join(addresses), PORT
    )
    stop.wait()
    for server in servers:
        server.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate consul_health: a node that joined is seen healthy in Consul, node and services together."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_health
short_description: Prove that a node and its inference units are healthy in Consul
version_added: 0.1.0
description:
  - Asks an agent for all checks of the node (C(/v1/health/node/<node>)) and judges them together. When an agent dies,
    the checks of its services stay as they were and only C(serfHealth) turns critical, so a service that passes on such
    a node is a V(fail), stale, and a node without C(serfHealth) is V(unknown).
  - Each check is judged by its status, and its last output is quoted. Maintenance modes of the node and of services are
    told from failures.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  profile:
    description: Taken so that one command line fits every gate. No limit of this gate depends on the board.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  node:
    description:
      - Name of the node in Consul. The host's own short name without it.
      - With O(captured) every node in the file is judged without it.
    type: str
  services:
    description:
      - Ids (or names) of services that must be on the node and pass, for example the ids of its inference units.
    type: list
    elements: str
    default: []
  maintenance:
    description: Verdict on a node or service in maintenance mode.
    type: str
    choices: [fail, warn]
    default: fail
  url:
    description: Address of the agent's HTTP API.
    type: str
    default: http://127.0.0.1:8500
  token_file:
    description: File on the host with a token that may read nodes and services. It is sent as a header and never shown.
    type: path
  ca_path:
    description: File with the certificate authority of an https address.
    type: path
  wait:
    description: Seconds to wait for a verdict that does not block. The catalog needs a moment after a join.
    type: float
    default: 0
notes:
  - In a support bundle the answer is C(consul-health-node.json).
  - O(captured) takes the answers of C(/v1/health/node/<node>), C(/v1/health/checks/<service>), C(/v1/health/state/any),
    C(/v1/health/service/<service>) and C(/v1/agent/checks). The last one never holds C(serfHealth), so it is
    V(unknown).
seealso:
  - module: ai_infra.gpu_rack.iu_membership
"""

EXAMPLES = r"""
- name: Prove that the units take traffic
  ai_infra.gpu_rack.consul_health:
    node: "{{ inventory_hostname }}"
    services: [node1-iu0, node1-iu1]
    token_file: /etc/gpu_rack/consul_service_token
    wait: 30
    evidence_dir: /var/lib/gpu_rack/evidence/20261130T120000Z/join

- name: Judge a saved answer
  ai_infra.gpu_rack.consul_health:
    captured: /tmp/health-node1.json
"""

RETURN = r"""
verdict:
  description: The worst verdict, V(pass), V(warn), V(fail) or V(unknown).
  returned: always
  type: str
summary:
  description: One line with the worst check, the measured value and the limit.
  returned: always
  type: str
gate:
  description: Name of the gate.
  returned: always
  type: str
  sample: consul_health
checks:
  description: serfHealth, every check of the node and its services, and every expected service.
  returned: always
  type: list
  elements: dict
evidence:
  description: The answer that was judged.
  returned: always
  type: list
  elements: dict
waited:
  description: Seconds waited.
  returned: always
  type: float
"""

import socket
import time
import urllib.parse
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _consul_health
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._consul import Consul, ConsulError
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import BLOCKING, Evidence, worst

GATE = "consul_health"
ARGUMENT_SPEC: dict[str, Any] = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES)},
    "node": {"type": "str"},
    "services": {"type": "list", "elements": "str", "default": []},
    "maintenance": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
    "url": {"type": "str", "default": "http://127.0.0.1:8500"},
    # A path, not the token.
    "token_file": {"type": "path", "no_log": False},
    "ca_path": {"type": "path"},
    "wait": {"type": "float", "default": 0},
}
_FILES = ("consul-health-node.json", "health-node.json", "consul-health.json", "consul-health-service.json")


def ask(consul: Consul, command: list[str], path: str) -> Evidence:
    """Return the agent's answer as a reading. A refusal or no answer is its error."""
    start = time.monotonic()
    text, error = "", None
    try:
        text = consul.request("GET", path).decode("utf-8", "replace")
    except ConsulError as exc:
        error = str(exc)
    line = " ".join(command)
    rc = 0 if error is None else None
    return Evidence(line, rc, text, "", time.monotonic() - start, error, line, _FILES[0], needed=True)


def client(module: AnsibleModule) -> Consul:
    """Return a client with the token of the file; fail the module for a wrong address or a file that cannot be read."""
    params = module.params
    token = ""
    try:
        if params["token_file"]:
            token = Path(params["token_file"]).read_text("ascii").strip()
    except (OSError, ValueError) as exc:
        # A UnicodeDecodeError would show a part of the token.
        why = exc.strerror if isinstance(exc, OSError) else "it is not ASCII"
        module.fail_json(msg=f"token_file {params['token_file']}: cannot be read ({why}).")
    if any(letter in token for letter in "\r\n\0"):
        module.fail_json(msg=f"token_file {params['token_file']}: holds more than one line. Use the token alone.")
    try:
        consul = Consul(params["url"], token, min(params["timeout"], 10.0), params["ca_path"])
    except (OSError, ValueError) as exc:
        module.fail_json(msg=f"url {params['url']}: {exc}")
    return consul


def main() -> None:
    """Ask, judge, and ask again while there is time and the verdict blocks."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, not_negative=["wait"])
    params = module.params
    source = Source(params["captured"], params["timeout"])
    name = params["node"] or (socket.gethostname().partition(".")[0] if source.live else None)
    path = f"health/node/{urllib.parse.quote(name or '', safe='')}"
    command = ["GET", f"{params['url'].rstrip('/')}/v1/{path}"]
    if not source.live:
        reading = source.read(command, *_FILES)
        checks = _consul_health.judge(reading, name, params["services"], params["maintenance"])
        finish_gate(module, GATE, checks, source.used, waited=0.0)
    consul = client(module)
    start = time.monotonic()
    while True:
        reading = ask(consul, command, path)
        checks = _consul_health.judge(reading, name, params["services"], params["maintenance"])
        waited = time.monotonic() - start
        if waited >= params["wait"] or worst(check.verdict for check in checks) not in BLOCKING:
            break
        time.sleep(min(0.5, params["wait"] - waited))
    finish_gate(module, GATE, checks, [reading], waited=round(waited, 1))


if __name__ == "__main__":
    main()

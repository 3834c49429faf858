# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module rack_status_info: what Consul says of every node and inference unit of a rack."""

from __future__ import annotations

DOCUMENTATION = r"""
module: rack_status_info
short_description: Read from Consul which nodes of a rack serve, and why the others do not
version_added: 0.1.0
description:
  - Reads the rack's state from a Consul server and connects to no node, so it works when every node is down.
  - A node is V(serving) only when Consul's catalog shows every check of every unit B(and) of the node as passing. A
    dead agent leaves the checks of its units as they were; C(serfHealth) decides, so such a node is V(failed).
  - A node whose last run ended in a quarantine is V(quarantined) with the recorded reason, whatever its units say. If
    one of them still takes traffic, the reason says so.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
requirements:
  - py-consul (Python) where the module runs, which is the controller
extends_documentation_fragment: ai_infra.gpu_rack.consul
options:
  nodes:
    description: Names of the nodes that the rack should have. One that Consul does not know is shown as V(absent).
    type: list
    elements: str
    required: true
  consul_names:
    description: Consul's name of each node that has another one there. An empty name is no other name.
    type: dict
    default: {}
  service:
    description: Name of the Consul service of the inference units.
    type: str
    default: vllm
  timeout:
    description: Seconds to wait for each answer of Consul.
    type: float
    default: 5.0
attributes:
  check_mode:
    description: Reads only, so check mode does the same.
    support: full
  diff_mode:
    description: Nothing is changed.
    support: none
seealso:
  - module: ai_infra.gpu_rack.iu_membership
notes:
  - Delegate it to C(localhost), run it once, and with the Python that runs Ansible.
"""

EXAMPLES = r"""
- name: Read the state of the rack
  ai_infra.gpu_rack.rack_status_info:
    address: http://10.0.0.10:8500
    token: "{{ vault_consul_service_token }}"
    nodes: "{{ ansible_play_hosts_all }}"
  delegate_to: localhost
  run_once: true
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
"""

RETURN = r"""
rack:
  description: The rack as Consul sees it.
  returned: success
  type: dict
  contains:
    address:
      description: The Consul server that was asked.
      type: str
      sample: http://10.0.0.10:8500
    leader:
      description: Address of Consul's leader.
      type: str
      sample: 10.0.0.10:8300
    units_passing:
      description: Number of units that take traffic.
      type: int
      sample: 2
    units_total:
      description: Number of units that are registered, or were when their node joined.
      type: int
      sample: 2
    nodes:
      description: The expected nodes, in the order they were named.
      type: list
      elements: dict
      sample:
        - name: node1
          state: serving
          serf: passing
          units:
            - {id: node1-iu0, address: 10.0.0.11, port: 8000, state: passing, note: 1 token in 0.011 s}
          gates: {hardware: "pass: ib_port 400 Gb/s; clock_sync 0.0104 ms", serving: "pass: token_probe 0.011 s"}
          reason: ""
      contains:
        name:
          description: Name of the node.
          type: str
        state:
          description: >-
            One of V(serving), V(quarantined), V(drained), V(degraded) (some units pass), V(failed) (the node does not
            answer, or no unit passes) and V(absent) (Consul does not know it, or it has no unit).
          type: str
        serf:
          description: State of the node's C(serfHealth), V(absent) when Consul does not know the node.
          type: str
        units:
          description: >-
            The node's units with C(id), C(address), C(port), C(state) (V(passing), V(warning), V(critical),
            V(maintenance), or V(absent) for one that joined once and is no longer in the catalog) and C(note).
          type: list
          elements: dict
        gates:
          description: What the last run recorded of the gates C(hardware) and C(serving).
          type: dict
        reason:
          description: Why the node does not serve, empty when it does.
          type: str
lines:
  description: The rack in a few lines for people.
  returned: success
  type: list
  elements: str
  sample: ["node1 serving, 2 of 2 units pass", "node2 failed, 0 of 2 units pass: the node does not answer"]
"""

import traceback
import urllib.parse
from typing import Any

from ansible.module_utils.basic import AnsibleModule, missing_required_lib
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._membership import SERVICE
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._rack_status import RECORDS, lines, rack_view

CONSUL_IMPORT_ERROR: str | None
try:
    import consul
except ImportError:
    CONSUL_IMPORT_ERROR = traceback.format_exc()
else:
    CONSUL_IMPORT_ERROR = None

ARGUMENT_SPEC: dict[str, Any] = {
    "address": {"type": "str", "default": "http://127.0.0.1:8500"},
    "token": {"type": "str", "no_log": True},
    "ca_path": {"type": "path"},
    "nodes": {"type": "list", "elements": "str", "required": True},
    "consul_names": {"type": "dict", "default": {}},
    "service": {"type": "str", "default": SERVICE},
    "timeout": {"type": "float", "default": 5.0},
}


def client(address: str, token: str, ca_path: str | None, timeout: float) -> Any:
    """Return a client of py-consul; raise ValueError for an address that is none.

    Environment variables decide nothing: py-consul would let CONSUL_HTTP_TOKEN win over the given token.
    """
    parts = urllib.parse.urlsplit(address if "://" in address else f"http://{address}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
        raise ValueError(
            f"Consul address: {address!r}. Use http://host:8500 or https://host:8501 "
            "(playbooks/status.yml takes it from quarantine_consul_address)."
        )
    found = consul.Consul(
        host=f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname,
        port=parts.port or (8501 if parts.scheme == "https" else 8500),
        scheme=parts.scheme,
        verify=ca_path or True,
        connections_timeout=timeout,
    )
    found.token = token
    found.http.session.trust_env = False
    return found


def cause(exc: BaseException) -> str:
    """Return the innermost cause: the HTTP library wraps a refused connection in three sentences."""
    inner: BaseException = exc
    while inner.__context__ is not None:
        inner = inner.__context__
    return (inner.strerror if isinstance(inner, OSError) else None) or str(inner) or type(inner).__name__


def read(api: Any, service: str) -> dict[str, Any]:
    """Ask Consul for everything that the view needs, in five requests whatever the number of nodes."""
    leader = api.status.leader()
    _index, members = api.catalog.nodes()
    _index, entries = api.health.service(service)
    _index, checks = api.health.state("any")
    _index, records = api.kv.get(RECORDS, recurse=True)
    return {
        "leader": str(leader or ""),
        "members": members or [],
        "entries": entries or [],
        "checks": checks or [],
        "records": {r["Key"].removeprefix(RECORDS): r["Value"] for r in records or ()},
    }


def main() -> None:
    """Read Consul and return the rack."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    if CONSUL_IMPORT_ERROR is not None:
        module.fail_json(
            msg=missing_required_lib("py-consul", url="https://pypi.org/project/py-consul/"),
            exception=CONSUL_IMPORT_ERROR,
        )
    p = module.params
    try:
        answers = read(client(p["address"], p["token"] or "", p["ca_path"], p["timeout"]), p["service"])
    except ValueError as exc:
        module.fail_json(msg=str(exc))
    except consul.ACLPermissionDenied as exc:
        module.fail_json(
            msg=f"Consul at {p['address']}: refused the token ({exc}). Give one that may read nodes, services and keys."
        )
    except consul.ConsulException as exc:
        module.fail_json(msg=f"Consul at {p['address']}: unusable answer ({exc}). Is this a Consul server, and well?")
    except OSError as exc:
        module.fail_json(
            msg=f"Consul at {p['address']}: no answer ({cause(exc)}). Check the address, and that its server runs."
        )
    if not answers["leader"]:
        module.fail_json(
            msg=f"Consul at {p['address']}: has no leader, so what it knows may be old. Start the other Consul servers."
        )
    if not answers["members"]:
        # The servers themselves are in the catalog: an empty one means that the token may not see it.
        module.fail_json(
            msg=f"Consul at {p['address']}: shows no node, not even itself. Give a token that may read nodes."
        )
    view = rack_view(p["nodes"], answers["entries"], answers["checks"], answers["records"], p["consul_names"])
    module.exit_json(
        changed=False, rack={"address": p["address"], "leader": answers["leader"], **view}, lines=lines(view)
    )


if __name__ == "__main__":
    main()

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module consul_acl: policies and tokens with known secrets."""

from __future__ import annotations

DOCUMENTATION = r"""
module: consul_acl
short_description: Policies and tokens of Consul, with secrets given
version_added: 0.1.0
description:
  - Brings ACL policies and tokens to what is given, in one call. Tokens are found by their secret, so a second run
    changes nothing and a
    rebuilt server gets the same tokens again.
  - Waits until the ACL system answers, since a new server needs a moment to elect itself.
  - Policies and tokens that are not listed are left alone.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
extends_documentation_fragment: ai_infra.gpu_rack.consul
options:
  policies:
    description: Policies.
    type: list
    elements: dict
    default: []
    suboptions:
      name:
        description: Name of the policy.
        type: str
        required: true
      description:
        description: What it is for.
        type: str
        default: ""
      rules:
        description: Rules in Consul's language.
        type: str
        required: true
  tokens:
    description: Tokens.
    type: list
    elements: dict
    default: []
    suboptions:
      description:
        description: What the token is for. Names the token in messages and in the difference.
        type: str
        required: true
      secret:
        description: The token itself, a UUID.
        type: str
        required: true
      policies:
        description: Names of the token's policies.
        type: list
        elements: str
        default: []
  anonymous_policies:
    description: Policies of requests without a token. None by default, so nothing is allowed without a token.
    type: list
    elements: str
    default: []
  wait:
    description: Seconds to wait until the ACL system answers.
    type: float
    default: 60.0
attributes:
  check_mode:
    description: Reports the change. When Consul does not run yet, everything is reported as missing.
    support: full
  diff_mode:
    description: Shows policies and tokens, never a secret.
    support: full
"""

EXAMPLES = r"""
- name: Give the agents their token
  ai_infra.gpu_rack.consul_acl:
    token: "{{ consul_server_management_token }}"
    policies:
      - name: gpu-rack-agent
        rules: |
          node_prefix "" { policy = "write" }
    tokens:
      - description: agents
        secret: "{{ consul_server_agent_token }}"
        policies: [gpu-rack-agent]
"""

RETURN = r"""
policies:
  description: Names of the policies that were, or would be, made or changed.
  returned: always
  type: list
  elements: str
tokens:
  description: Descriptions of the tokens that were, or would be, made or changed.
  returned: always
  type: list
  elements: str
"""

import uuid
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._consul import Consul, ConsulError, wait_for

ANONYMOUS = "00000000-0000-0000-0000-000000000002"
"""Accessor id of the anonymous token, the same in every Consul."""

ARGUMENT_SPEC: dict[str, Any] = {
    "address": {"type": "str", "default": "http://127.0.0.1:8500"},
    "token": {"type": "str", "no_log": True},
    "ca_path": {"type": "path"},
    "policies": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "options": {
            "name": {"type": "str", "required": True},
            "description": {"type": "str", "default": ""},
            "rules": {"type": "str", "required": True},
        },
    },
    "tokens": {
        "type": "list",
        "elements": "dict",
        "default": [],
        "no_log": False,
        "options": {
            "description": {"type": "str", "required": True},
            "secret": {"type": "str", "required": True, "no_log": True},
            "policies": {"type": "list", "elements": "str", "default": []},
        },
    },
    "anonymous_policies": {"type": "list", "elements": "str", "default": []},
    "wait": {"type": "float", "default": 60.0},
}
_NOT_FOUND = (403, 404)


def wait_for_acl(consul: Consul, seconds: float) -> ConsulError | None:
    """Wait until the management token is known to an elected server; return the last refusal when it never is."""
    last: list[ConsulError] = []

    def ready() -> bool:
        try:
            consul.get("acl/token/self")
            consul.get("acl/policies")
        except ConsulError as exc:
            last[:] = [exc]
            return False
        last.clear()
        return True

    wait_for(ready, seconds, 0.5)
    return last[0] if last else None


def read_policies(consul: Consul, names: list[str]) -> dict[str, dict[str, Any]]:
    """Return the named policies that exist, with their rules and ids."""
    ids = {item["Name"]: item["ID"] for item in consul.get("acl/policies") or []}
    return {name: consul.get(f"acl/policy/{ids[name]}") for name in names if name in ids}


def read_token(address: str, secret: str, ca_path: str | None) -> dict[str, Any] | None:
    """Return the token behind a secret as it sees itself, None when Consul does not know it."""
    try:
        found: dict[str, Any] | None = Consul(address, secret, ca_file=ca_path).get("acl/token/self")
    except ConsulError as exc:
        if exc.status in _NOT_FOUND:
            return None
        raise
    # Some versions answer with the anonymous token for a secret they do not know.
    return None if found is None or found.get("AccessorID") == ANONYMOUS else found


def policy_names(token: dict[str, Any] | None) -> list[str]:
    """Return the sorted names of a token's policies."""
    return sorted(link["Name"] for link in (token or {}).get("Policies") or [])


def policy_view(description: str, rules: str) -> dict[str, Any]:
    """Return what of a policy is compared. Consul keeps the rules' text, so surrounding space is not a difference."""
    return {"description": description, "rules": rules.strip()}


def main() -> None:
    """Read policies and tokens, compare, apply."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    p = module.params
    for item in p["tokens"]:
        try:
            uuid.UUID(item["secret"])
        except ValueError:
            module.fail_json(msg=f"token {item['description']!r}: its secret is not a UUID. Make one with uuidgen.")
    try:
        consul = Consul(p["address"], p["token"] or "", ca_file=p["ca_path"])
    except (ValueError, OSError) as exc:
        module.fail_json(msg=str(exc))
    refusal = wait_for_acl(consul, 0.0 if module.check_mode else p["wait"])
    if refusal and not (module.check_mode and refusal.unreachable):
        module.fail_json(
            msg=f"Consul's ACL system: {refusal}, {p['wait']:g} s waited. "
            "Check that the management token is the servers' own."
        )
    try:
        run(module, consul, up=refusal is None)
    except ConsulError as exc:
        module.fail_json(msg=f"Consul ACL: {exc}. Check the management token and the rules.")


def run(module: AnsibleModule, consul: Consul, up: bool) -> None:
    """Compare and apply; leave by exit_json."""
    p = module.params
    policies = read_policies(consul, [item["name"] for item in p["policies"]]) if up else {}
    tokens = [read_token(p["address"], item["secret"], p["ca_path"]) if up else None for item in p["tokens"]]
    anonymous = consul.get(f"acl/token/{ANONYMOUS}") if up else None

    before: dict[str, Any] = {"policies": {}, "tokens": {}}
    after: dict[str, Any] = {"policies": {}, "tokens": {}}
    for item in p["policies"]:
        found = policies.get(item["name"])
        after["policies"][item["name"]] = policy_view(item["description"], item["rules"])
        if found:
            before["policies"][item["name"]] = policy_view(found.get("Description", ""), found.get("Rules", ""))
    for item, token in zip(p["tokens"], tokens, strict=True):
        after["tokens"][item["description"]] = {"policies": sorted(item["policies"])}
        if token:
            before["tokens"][item["description"]] = {"policies": policy_names(token)}
    after["tokens"]["anonymous"] = {"policies": sorted(p["anonymous_policies"])}
    before["tokens"]["anonymous"] = {"policies": policy_names(anonymous)}

    new_policies = [name for name, view in after["policies"].items() if before["policies"].get(name) != view]
    new_tokens = [name for name, view in after["tokens"].items() if before["tokens"].get(name) != view]
    if not module.check_mode:
        for item in p["policies"]:
            if item["name"] in new_policies:
                known = policies.get(item["name"])
                body = {"Name": item["name"], "Description": item["description"], "Rules": item["rules"]}
                consul.put(
                    f"acl/policy/{known['ID']}" if known else "acl/policy",
                    {**body, **({"ID": known["ID"]} if known else {})},
                )
        for item, token in zip(p["tokens"], tokens, strict=True):
            if item["description"] in new_tokens:
                put_token(consul, token, item["description"], item["policies"], item["secret"])
        if "anonymous" in new_tokens and anonymous:
            put_token(consul, anonymous, anonymous.get("Description", ""), p["anonymous_policies"])
    module.exit_json(
        changed=before != after, policies=new_policies, tokens=new_tokens, diff={"before": before, "after": after}
    )


def put_token(
    consul: Consul, known: dict[str, Any] | None, description: str, policies: list[str], secret: str | None = None
) -> None:
    """Make a token with its secret, or give a known one its policies."""
    body: dict[str, Any] = {
        "Description": description,
        "Local": False,
        "Policies": [{"Name": name} for name in policies],
    }
    if known:
        consul.put(
            f"acl/token/{known['AccessorID']}",
            {**body, "AccessorID": known["AccessorID"], "Local": known.get("Local", False)},
        )
    else:
        consul.put("acl/token", {**body, "SecretID": secret})


if __name__ == "__main__":
    main()

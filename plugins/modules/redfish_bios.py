#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Set BIOS attributes over Redfish, by intent or by name, and verify them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: redfish_bios
short_description: Set and verify BIOS settings over Redfish
description:
  - Sets BIOS attributes, given by intent (V(c_states=disabled)) or by the vendor's own name, and reads them back.
  - An intent is translated by the vendor's map and the BIOS attribute registry of the machine itself. Spellings are
    never guessed;
    an intent without a certain meaning is refused.
  - What is wanted is compared with the pending settings over the current ones, so a second run before the reboot
    changes nothing,
    and only the difference is written.
  - A profile that locks the attributes (Dell's V(SysProfile), HPE's V(WorkloadProfile)) is switched to its custom
    setting when the registry says so.
  - BIOS settings apply at the next reboot. With O(state=verified) the module fails unless they are in effect.
version_added: "0.1.0"
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  intents:
    description:
      - What is wanted, whatever the vendor calls it.
    type: dict
    suboptions:
      c_states:
        description: Processor idle states deeper than C1, in core and package.
        type: str
        choices: [disabled]
      c1e:
        description: The enhanced halt state, which lowers frequency and voltage when idle.
        type: str
        choices: [disabled]
      monitor_mwait:
        description: The MONITOR and MWAIT instructions.
        type: str
        choices: [disabled, enabled]
  attributes:
    description: BIOS attributes and values as the vendor spells them. They win over nothing, a contradiction to
      O(intents) is an error.
    type: dict
  vendor:
    description: Map used for O(intents). By default the one of the system's manufacturer.
    type: str
    choices: [dell, hpe, lenovo, supermicro, ami]
  state:
    description:
      - V(present) writes what differs.
      - V(verified) writes nothing and fails when a wanted value is not the current one, or when O(kernel) says that
        the operating system does not follow.
    type: str
    choices: [present, verified]
    default: present
  kernel:
    description: What the running kernel shows about the same intent, as M(ai_infra.gpu_rack.cpu_idle) returns it.
      Judged and shown with O(state=verified).
    type: dict
    suboptions:
      verdict:
        description: The verdict. Anything but V(pass) and V(warn) fails.
        type: str
        required: true
        choices: [pass, warn, fail, unknown]
      summary:
        description: What was seen, in words.
        type: str
        required: true
      checks:
        description: The checks behind it. The first one is shown in place of a summary that only says V(pass).
        type: list
        elements: dict
        default: []
  enforce:
    description: With O(state=verified), fail when not verified. With V(false) the result is only returned in
      RV(verified).
    type: bool
    default: true
extends_documentation_fragment:
  - ai_infra.gpu_rack.redfish
attributes:
  check_mode:
    description: Reads from the BMC and writes nothing.
    support: full
  diff_mode:
    description: Shows the pending values before and after.
    support: full
notes:
  - Run it on the controller, with C(delegate_to).
seealso:
  - module: ai_infra.gpu_rack.redfish_power
  - module: ai_infra.gpu_rack.cpu_idle
"""

EXAMPLES = r"""
- name: Switch C-states off at the next reboot
  ai_infra.gpu_rack.redfish_bios:
    address: bmc-node1.example
    username: admin
    password: "{{ bmc_password }}"
    ca_path: /etc/ssl/bmc-ca.pem
    intents:
      c_states: disabled
      c1e: disabled
  delegate_to: localhost
  register: bios

- name: Show that they are off after the reboot, in BIOS and kernel
  ai_infra.gpu_rack.redfish_bios:
    address: bmc-node1.example
    username: admin
    password: "{{ bmc_password }}"
    ca_path: /etc/ssl/bmc-ca.pem
    intents:
      c_states: disabled
      c1e: disabled
    state: verified
    kernel:
      verdict: "{{ cpu_idle.verdict }}"
      summary: "{{ cpu_idle.summary }}"
      checks: "{{ cpu_idle.checks }}"
  delegate_to: localhost
"""

RETURN = r"""
settings:
  description: Every attribute that was wanted, by name.
  type: dict
  returned: always
  contains:
    desired:
      description: The wanted value.
      type: raw
    pending:
      description: The value the next reboot would bring, as the BMC reports it.
      type: raw
    current:
      description: The value in effect.
      type: raw
    why:
      description: The intent, V(attributes), or the attribute it makes writable.
      type: str
  sample: {ProcCStates: {desired: Disabled, pending: Disabled, current: Enabled, why: c_states=disabled}}
reboot_required:
  description: Whether a wanted value is not in effect yet.
  type: bool
  returned: always
reboot_reasons:
  description: One line for each wanted value that is not in effect.
  type: list
  elements: str
  returned: always
ignored:
  description: Attributes whose write the BMC accepted without showing it as pending.
  type: list
  elements: str
  returned: O(state=present)
verified:
  description: Whether all wanted values are in effect and the kernel follows.
  type: bool
  returned: O(state=verified)
checks:
  description: One check for each setting, and those of O(kernel), in the form of the gate modules.
  type: list
  elements: dict
  returned: O(state=verified)
verdict:
  description: The worst verdict of RV(checks).
  type: str
  returned: O(state=verified)
vendor:
  description: The map that was used.
  type: str
  returned: when O(intents) is set
"""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._bios_intents import (
    INTENTS,
    VENDORS,
    IntentError,
    Wanted,
    resolve,
    unlock,
    vendor_of,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import check_numbers
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._redfish import (
    REDFISH_ARGS,
    Bmc,
    RedfishError,
    odata_id,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import compare, describe, worst

CHECKS: dict[str, str] = {
    "redfish_bios.setting": (
        "The BIOS setting in effect by Redfish, held against the wanted one; a pending value does not count."
    ),
}
ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    **REDFISH_ARGS,
    "intents": {
        "type": "dict",
        "options": {name: {"type": "str", "choices": list(values)} for name, values in INTENTS.items()},
    },
    "attributes": {"type": "dict"},
    "vendor": {"type": "str", "choices": list(VENDORS)},
    "state": {"type": "str", "choices": ["present", "verified"], "default": "present"},
    "kernel": {
        "type": "dict",
        "options": {
            "verdict": {"type": "str", "required": True, "choices": ["pass", "warn", "fail", "unknown"]},
            "summary": {"type": "str", "required": True},
            "checks": {"type": "list", "elements": "dict", "default": []},
        },
    },
    "enforce": {"type": "bool", "default": True},
}


class Bios:
    """The BIOS of one system: current and pending values, and where to write."""

    def __init__(self, bmc: Bmc, system_id: str | None) -> None:
        """Read the system and its BIOS."""
        self.bmc = bmc
        self.system = bmc.system(system_id)
        path = odata_id(self.system, "Bios")
        if path is None:
            raise RedfishError(
                f"BIOS of system {self.system.get('Id')} on BMC {bmc.address}: the BMC offers none. Update its "
                "firmware."
            )
        answer = bmc.request("GET", path)
        self.resource = answer.body
        self.current: dict[str, Any] = dict(self.resource.get("Attributes") or {})
        self._etag = answer.etag
        self.settings_path = odata_id(self.resource, "@Redfish.Settings", "SettingsObject")
        self.pending: dict[str, Any] = dict(self.current)
        self.read_pending()

    def read_pending(self) -> None:
        """Read what the next reboot would bring: the Settings resource laid over the current values."""
        if self.settings_path is None:
            self.pending = dict(
                self.bmc.get(str(self.resource.get("@odata.id") or odata_id(self.system, "Bios"))).get("Attributes")
                or {}
            )
            return
        answer = self.bmc.request("GET", self.settings_path)
        self._etag = answer.etag
        self.pending = {**self.current, **(answer.body.get("Attributes") or {})}

    def registry(self) -> dict[str, Any]:
        """Return the BIOS attribute registry."""
        name = str(self.resource.get("AttributeRegistry") or "BiosAttributeRegistry")
        paths = {p.rstrip("/").rsplit("/", 1)[-1]: p for p in self.bmc.members("/redfish/v1/Registries")}
        stem = name.split(".", maxsplit=1)[0]
        found = paths.get(name) or next((p for i, p in sorted(paths.items()) if i.split(".")[0] == stem), None)
        if found is None:
            raise RedfishError(
                f"BIOS attribute registry {name} on BMC {self.bmc.address}: it is not among the registries. "
                "Without it an intent cannot be translated; set attributes instead."
            )
        locations = self.bmc.get(found).get("Location") or []
        english = [x for x in locations if str(x.get("Language", "en")).startswith("en")]
        uri = next((x["Uri"] for x in english or locations if x.get("Uri")), None)
        if uri is None:
            raise RedfishError(
                f"BIOS attribute registry {name} on BMC {self.bmc.address}: it has no address. Set attributes instead."
            )
        return self.bmc.get(uri)

    def write(self, changes: Mapping[str, Any], first: Sequence[str]) -> None:
        """Make values pending, all in one request. A BMC that refuses this gets those of `first` before the others."""
        try:
            self._patch(changes)
        except RedfishError as exc:
            rest = {k: v for k, v in changes.items() if k not in first}
            if exc.status != 400 or not first or not rest:
                raise
            self._patch({k: changes[k] for k in first})
            self.read_pending()
            self._patch(rest)

    def _patch(self, changes: Mapping[str, Any]) -> None:
        """Send one write. Some BMCs never apply a write that does not say when."""
        body: dict[str, Any] = {"Attributes": dict(changes)}
        supported = (self.resource.get("@Redfish.Settings") or {}).get("SupportedApplyTimes") or []
        if "OnReset" in supported:
            body["@Redfish.SettingsApplyTime"] = {
                "@odata.type": "#Settings.v1_3_0.PreferredApplyTime",
                "ApplyTime": "OnReset",
            }
        path = self.settings_path or str(self.resource["@odata.id"])
        self.bmc.request("PATCH", path, body, self._etag)


def like_current(value: Any, current: Any) -> Any:
    """Return a value from YAML in the type the BIOS uses for the attribute."""
    if isinstance(current, bool) or isinstance(value, type(current)):
        return value
    if isinstance(current, str):
        return str(value)
    if isinstance(current, int) and isinstance(value, str) and value.strip().lstrip("-").isdigit():
        return int(value)
    return value


def wanted_settings(bios: Bios, params: Mapping[str, Any], vendor: str | None) -> list[Wanted]:
    """Return what must be set, what makes it writable first."""
    wanted: dict[str, Wanted] = {}
    registry: dict[str, Any] | None = None
    intents = {k: v for k, v in (params["intents"] or {}).items() if v is not None}
    if intents and vendor:
        registry = bios.registry()
        wanted = {w.attribute: w for w in resolve(vendor, intents, registry)}
    for name, value in (params["attributes"] or {}).items():
        item = Wanted(name, like_current(value, bios.current.get(name)), "attributes")
        if name in wanted and wanted[name].value != item.value:
            raise IntentError(
                f"BIOS attribute {name}: attributes wants {item.value}, {wanted[name].why} wants "
                f"{wanted[name].value}. Drop one of them."
            )
        wanted.setdefault(name, item)
    for name in wanted:
        if name not in bios.current:
            near = ", ".join(difflib.get_close_matches(name, bios.current, 3, 0.5)) or "none"
            raise IntentError(f"BIOS attribute {name}: the BIOS has none of that name. Similar ones: {near}.")
    # Explicit attributes alone do not pay for the registry: it is the largest resource of a BMC.
    if registry is None or params["state"] == "verified":
        return list(wanted.values())
    before = unlock(vendor, registry, list(wanted.values()), bios.pending)
    return [*before, *wanted.values()]


def rows(wanted: Sequence[Wanted], bios: Bios) -> dict[str, dict[str, Any]]:
    """Return desired, pending and current value of every wanted attribute."""
    return {
        w.attribute: {
            "desired": w.value,
            "pending": bios.pending.get(w.attribute),
            "current": bios.current.get(w.attribute),
            "why": w.why,
        }
        for w in wanted
    }


def reasons(settings: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return why a reboot is needed."""
    return [
        f"BIOS {name} is {s['current']}, wanted {s['desired']}"
        for name, s in settings.items()
        if s["current"] != s["desired"]
    ]


def judge(settings: Mapping[str, Mapping[str, Any]], kernel: Mapping[str, Any] | None) -> str | None:
    """Return None when all is in effect, else one message that shows desired, pending, current and kernel."""
    bad = {n: s for n, s in settings.items() if s["current"] != s["desired"]}
    kernel_bad = kernel is not None and kernel["verdict"] not in ("pass", "warn")
    if not bad and not kernel_bad:
        return None
    shown = bad or settings
    parts = [f"{n}: desired {s['desired']}, pending {s['pending']}, current {s['current']}" for n, s in shown.items()]
    seen = "kernel: not asked"
    if kernel:
        # A passing gate's summary only counts its checks; what the kernel shows is in them.
        text = describe(kernel["checks"][0]) if kernel["checks"] and not kernel_bad else kernel["summary"]
        seen = f"kernel: {kernel['verdict']}, {text.rstrip('.')}"
    if any(s["pending"] != s["desired"] for s in bad.values()):
        remedy = (
            "The BMC accepted the setting and dropped it: set it in the BIOS setup or update the BMC and "
            "BIOS, then run again."
        )
    elif bad:
        remedy = "The setting still waits: power-cycle the node, and if it stays so look at the BMC's job queue."
    else:
        remedy = (
            "The BIOS is right and the kernel does not follow: compare /proc/cmdline with the boot loader and reboot."
        )
    return f"BIOS setting not in effect: {'; '.join(parts)}; {seen}. {remedy}"


def checks(settings: Mapping[str, Mapping[str, Any]], kernel: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Return one check for each setting, then the kernel's. Value is the setting in effect, limit the wanted one."""
    judged = [
        compare(
            "redfish_bios.setting",
            name,
            None if s["current"] is None else str(s["current"]),
            str(s["desired"]),
            ok=s["current"] == s["desired"],
            limit_source=s["why"],
            reason=f"desired {s['desired']}, pending {s['pending']}, current {s['current']}",
            remedy="Power-cycle the node; if the setting stays, set it in the BIOS setup or update the BMC and BIOS.",
        ).as_dict()
        for name, s in settings.items()
    ]
    return judged + list(kernel["checks"] if kernel else [])


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec=ARGUMENT_SPEC, supports_check_mode=True, required_one_of=[("intents", "attributes")]
    )
    check_numbers(module)
    params = module.params
    try:
        bios = Bios(Bmc(params), params["system_id"])
        vendor = None
        if params["intents"] and any(params["intents"].values()):
            vendor = params["vendor"] or vendor_of(str(bios.system.get("Manufacturer") or ""))
        wanted = wanted_settings(bios, params, vendor)
        before = rows(wanted, bios)
        extra: dict[str, Any] = {"vendor": vendor} if vendor else {}
        if params["state"] == "verified":
            message = judge(before, params["kernel"])
            outcome = {
                "changed": False,
                "settings": before,
                "reboot_reasons": reasons(before),
                "verified": message is None,
                "checks": checks(before, params["kernel"]),
                **extra,
            }
            outcome["verdict"] = worst(c["verdict"] for c in outcome["checks"])
            outcome["reboot_required"] = bool(outcome["reboot_reasons"])
            if message and params["enforce"]:
                module.fail_json(msg=message, **outcome)
            module.exit_json(msg=message or "in effect", **outcome)
        changes = {name: s["desired"] for name, s in before.items() if s["pending"] != s["desired"]}
        after = {name: {**s, "pending": s["desired"]} for name, s in before.items()}
        ignored: list[str] = []
        if changes and not module.check_mode:
            bios.write(
                changes, [w.attribute for w in wanted if w.why.startswith("needed for") and w.attribute in changes]
            )
            bios.read_pending()
            after = rows(wanted, bios)
            ignored = [name for name in changes if after[name]["pending"] != after[name]["desired"]]
            if ignored:
                module.warn(
                    f"BIOS write on BMC {params['address']}: accepted, but {', '.join(ignored)} is not among the "
                    "pending settings. "
                    "Whether it is in effect shows after the reboot."
                )
    except (RedfishError, IntentError) as exc:
        module.fail_json(msg=str(exc))
    module.exit_json(
        changed=before != after,
        settings=after,
        reboot_reasons=reasons(after),
        reboot_required=bool(reasons(after)),
        ignored=ignored,
        diff={
            "before": {name: s["pending"] for name, s in before.items()},
            "after": {name: s["pending"] for name, s in after.items()},
            "before_header": f"BIOS pending on {params['address']}",
            "after_header": f"BIOS pending on {params['address']}",
        },
        **extra,
    )


if __name__ == "__main__":
    main()

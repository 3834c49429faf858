# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""From an intent ("C-states off") to a vendor's BIOS attributes, resolved through the BMC's own attribute registry.

The tables below say how vendors *name* things, as patterns over attribute names and displayed texts. The spelling
that is
written to a BMC is always the one its registry offers: names differ between models, BIOS versions and releases of one
vendor (Supermicro appends `#hex` to them on some boards).

Sources of the names: public Redfish dumps and manuals of Dell 15G/16G, HPE Gen10/Gen11, Lenovo SR6xx, Supermicro
X12/X13,
and ZT Systems (AMI's opaque ids, resolved by displayed text).
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

INTENTS: dict[str, tuple[str, ...]] = {
    "c_states": ("disabled",),
    "c1e": ("disabled",),
    "monitor_mwait": ("disabled", "enabled"),
}
"""The intents and their values."""


class IntentError(Exception):
    """An intent has no certain meaning on this BIOS; the text says why and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """How a vendor names one attribute and the value an intent wants; patterns match whole texts, whatever their case.

    `names` are tried on AttributeName without a `#hex` suffix, `displays` on DisplayName; `values` in order of
    preference
    on ValueDisplayName and ValueName. A setting that is not `required` may be missing on a board.
    """

    names: tuple[str, ...]
    displays: tuple[str, ...]
    values: tuple[str, ...]
    required: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Vendor:
    """A vendor's names. `unlock` is the profile switch that makes single attributes writable."""

    manufacturers: str
    intents: Mapping[tuple[str, str], tuple[Setting, ...]]
    unlock: Setting | None = None


_OFF = ("disabled?",)
_ON = ("enabled?",)
_MWAIT_DISPLAY = (r"(enable )?monitor ?/? ?mwait",)

VENDORS: dict[str, Vendor] = {
    "dell": Vendor(
        r"dell\b.*",
        {
            ("c_states", "disabled"): (Setting(("ProcCStates",), (r"c[ -]states?",), _OFF),),
            ("c1e", "disabled"): (Setting(("ProcC1E",), ("c1e",), _OFF),),
            ("monitor_mwait", "disabled"): (Setting(("MonitorMwait",), _MWAIT_DISPLAY, _OFF),),
            ("monitor_mwait", "enabled"): (Setting(("MonitorMwait",), _MWAIT_DISPLAY, _ON),),
        },
        Setting(("SysProfile",), ("system profile",), ("custom",)),
    ),
    "hpe": Vendor(
        r"(hpe|hewlett[ -]packard.*)",
        {
            ("c_states", "disabled"): (
                Setting(("MinProcIdlePower",), (r"minimum processor idle power core c-state",), (r"no ?c-?states?",)),
                Setting(
                    ("MinProcIdlePkgState",),
                    (r"minimum processor idle power package c-state",),
                    (r"no ?(package )?state",),
                    False,
                ),
            ),
            # One attribute rules core states down to C1E: without C-states there is no C1E.
            ("c1e", "disabled"): (
                Setting(("MinProcIdlePower",), (r"minimum processor idle power core c-state",), (r"no ?c-?states?",)),
            ),
        },
        Setting(("WorkloadProfile",), ("workload profile",), ("custom",)),
    ),
    "lenovo": Vendor(
        r"lenovo\b.*",
        {
            ("c_states", "disabled"): (Setting((r"Processors_C-?States",), (r"c-states?",), _OFF),),
            ("c1e", "disabled"): (Setting(("Processors_C1EnhancedMode",), ("c1 enhanced mode",), _OFF),),
            ("monitor_mwait", "disabled"): (Setting((r"Processors_MONITOR_?MWAIT",), _MWAIT_DISPLAY, _OFF),),
            ("monitor_mwait", "enabled"): (Setting((r"Processors_MONITOR_?MWAIT",), _MWAIT_DISPLAY, _ON),),
        },
        Setting(("OperatingModes_ChooseOperatingMode",), ("choose operating mode",), (r"custom( mode)?",)),
    ),
    "supermicro": Vendor(
        r"super ?micro\b.*",
        {
            ("c_states", "disabled"): (
                Setting(("PackageCState",), (r"package c[ -]?state( control| limit)?",), (r"c0\s*/\s*c1( state)?",)),
                Setting(("CPUC6Report",), (r"cpu c6 report",), _OFF),
            ),
            ("c1e", "disabled"): (
                Setting((r"EnhancedHaltState\(C1E\)", "EnhancedHaltState"), (r"enhanced halt state \(c1e\)",), _OFF),
            ),
            ("monitor_mwait", "disabled"): (Setting((r"(Enable)?MonitorMWAIT",), _MWAIT_DISPLAY, _OFF),),
            ("monitor_mwait", "enabled"): (Setting((r"(Enable)?MonitorMWAIT",), _MWAIT_DISPLAY, _ON),),
        },
        Setting(("PowerTechnology",), ("power technology",), ("custom",)),
    ),
    "ami": Vendor(
        r"(zt ?systems|ami|american megatrends.*)",
        {
            ("c_states", "disabled"): (
                Setting((), (r"package c[ -]?state( control| limit)?",), (r"c0\s*/\s*c1( state)?",)),
                Setting((), (r"cpu c6 report",), _OFF),
            ),
            ("c1e", "disabled"): (Setting((), (r"enhanced halt state \(c1e\)", "c1e( support)?"), _OFF),),
            ("monitor_mwait", "disabled"): (Setting((), _MWAIT_DISPLAY, _OFF),),
            ("monitor_mwait", "enabled"): (Setting((), _MWAIT_DISPLAY, _ON),),
        },
    ),
}
"""Vendor by the name O(vendor) takes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """One attribute with the value it must get, and why: the intent, or the attribute it unlocks."""

    attribute: str
    value: Any
    why: str


def vendor_of(manufacturer: str) -> str:
    """Return the table for a ComputerSystem's Manufacturer."""
    for name, vendor in VENDORS.items():
        if re.fullmatch(vendor.manufacturers, manufacturer.strip(), re.IGNORECASE):
            return name
    raise IntentError(
        f"manufacturer '{manufacturer}': there is no BIOS attribute map for it. "
        f"Name a map with vendor ({', '.join(VENDORS)}), or set BIOS attributes with attributes."
    )


def _bare(name: str) -> str:
    """Return an attribute's name without Supermicro's `#hex` suffix."""
    return re.sub(r"[#_][0-9A-Fa-f]{4}$", "", name)


def _matches(patterns: Iterable[str], text: str) -> bool:
    """Return whether one of the patterns is the whole text."""
    return any(re.fullmatch(p, text.strip(), re.IGNORECASE) for p in patterns)


def find(setting: Setting, entries: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the registry entries a setting means: by name, and only when no name matches by displayed text."""
    named = [e for e in entries if _matches(setting.names, _bare(str(e.get("AttributeName", ""))))]
    return named or [e for e in entries if _matches(setting.displays, str(e.get("DisplayName") or ""))]


def choose(setting: Setting, entry: Mapping[str, Any]) -> str | None:
    """Return the ValueName of the entry's value the setting wants, or None."""
    for pattern in setting.values:
        for value in entry.get("Value") or []:
            if _matches((pattern,), str(value.get("ValueDisplayName") or "")) or _matches(
                (pattern,), str(value.get("ValueName") or "")
            ):
                return str(value["ValueName"])
    return None


def resolve(vendor: str, intents: Mapping[str, str], registry: Mapping[str, Any]) -> list[Wanted]:
    """Return the attributes that carry out the intents on this BIOS, in the order of the tables.

    Raises IntentError when an intent has no rule for the vendor, when the registry has no such attribute, or when the
    attribute offers no such value: a guess would be written to a BIOS.
    """
    entries = registry_entries(registry)
    result: dict[str, Wanted] = {}
    for intent, value in intents.items():
        rules = VENDORS[vendor].intents.get((intent, value))
        why = f"{intent}={value}"
        if rules is None:
            raise IntentError(
                f"intent {why}: the map for vendor '{vendor}' has no rule for it. Set the BIOS attribute with "
                "attributes."
            )
        for rule in rules:
            found = find(rule, entries)
            if not found and rule.required:
                raise IntentError(
                    f"intent {why}: the BIOS attribute registry has no attribute like "
                    f"{' or '.join((*rule.names, *rule.displays))}. "
                    "Look it up in the registry and set it with attributes."
                )
            for entry in found:
                name = str(entry["AttributeName"])
                chosen = choose(rule, entry)
                if chosen is None:
                    offered = (
                        ", ".join(
                            str(v.get("ValueDisplayName") or v.get("ValueName")) for v in entry.get("Value") or []
                        )
                        or "none"
                    )
                    raise IntentError(
                        f"intent {why}: BIOS attribute {name} offers {offered}, and none of them means '{value}'. "
                        "Choose one and set it with attributes."
                    )
                if name in result and result[name].value != chosen:
                    raise IntentError(
                        f"BIOS attribute {name}: {result[name].why} wants {result[name].value}, {why} wants "
                        f"{chosen}. Drop one."
                    )
                why_all = f"{result[name].why}, {why}" if name in result else why
                result[name] = Wanted(name, chosen, why_all)
    return list(result.values())


def registry_entries(registry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the attributes of a registry."""
    return list((registry.get("RegistryEntries") or {}).get("Attributes") or [])


_CONDITIONS = {
    "EQU": lambda a, b: a == b,
    "NEQ": lambda a, b: a != b,
    "GTR": lambda a, b: a > b,
    "GEQ": lambda a, b: a >= b,
    "LSS": lambda a, b: a < b,
    "LEQ": lambda a, b: a <= b,
}


def _holds(dependency: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether a dependency's condition is met. One over anything but known current values counts as not met."""
    outcome: bool | None = None
    for term in dependency.get("MapFrom") or []:
        name, operator = term.get("MapFromAttribute"), _CONDITIONS.get(str(term.get("MapFromCondition")))
        known = term.get("MapFromProperty") == "CurrentValue" and name in values and operator is not None
        met = False
        if known and operator is not None:
            try:
                met = bool(operator(values[name], term.get("MapFromValue")))
            except TypeError:
                met = False
        outcome = met if outcome is None else (outcome or met) if term.get("MapTerms") == "OR" else (outcome and met)
    return bool(outcome)


def locks(registry: Mapping[str, Any], attribute: str, values: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the registry's dependencies that make an attribute read-only while the BIOS has these values."""
    found = []
    for entry in (registry.get("RegistryEntries") or {}).get("Dependencies") or []:
        dependency = entry.get("Dependency") or {}
        locking = (
            dependency.get("MapToProperty") in ("ReadOnly", "GrayOut")
            and str(dependency.get("MapToValue")).lower() == "true"
        )
        if locking and dependency.get("MapToAttribute") == attribute and _holds(dependency, values):
            found.append(dependency)
    return found


def unlock(
    vendor: str | None, registry: Mapping[str, Any], wanted: Sequence[Wanted], values: Mapping[str, Any]
) -> list[Wanted]:
    """Return what must be set before the wanted attributes can be written (Dell: SysProfile=Custom).

    The registry's own dependencies decide. Where it lists none, the vendor's profile switch is used if the board has
    it. A
    lock that only a guess would open raises IntentError.
    """
    entries = {str(e.get("AttributeName")): e for e in registry_entries(registry)}
    has_dependencies = bool((registry.get("RegistryEntries") or {}).get("Dependencies"))
    rule = VENDORS[vendor].unlock if vendor else None
    result: dict[str, Wanted] = {}
    after = {**values, **{w.attribute: w.value for w in wanted}}
    for item in wanted:
        if values.get(item.attribute) == item.value:
            continue
        if not has_dependencies and rule:
            for entry in find(rule, list(entries.values())):
                name, chosen = str(entry["AttributeName"]), choose(rule, entry)
                if chosen is not None and after.get(name) != chosen and name not in {w.attribute for w in wanted}:
                    result[name] = Wanted(name, chosen, f"needed for {item.attribute}")
                    after[name] = chosen
            continue
        for dependency in locks(registry, item.attribute, after):
            opened = _open(dependency, entries, registry, item.attribute, after, frozenset(w.attribute for w in wanted))
            if opened is None:
                sources = ", ".join(
                    f"{t.get('MapFromAttribute')}={after.get(str(t.get('MapFromAttribute')))}"
                    for t in dependency["MapFrom"]
                )
                raise IntentError(
                    f"BIOS attribute {item.attribute}: read-only while {sources}, and no single value opens it. "
                    "Add that to attributes."
                )
            result[opened.attribute] = opened
            after[opened.attribute] = opened.value
    return list(result.values())


def _open(
    dependency: Mapping[str, Any],
    entries: Mapping[str, Mapping[str, Any]],
    registry: Mapping[str, Any],
    attribute: str,
    values: Mapping[str, Any],
    fixed: frozenset[str],
) -> Wanted | None:
    """Return the one change that opens a lock: the only value that does, or the one called custom."""
    for term in dependency.get("MapFrom") or []:
        name = str(term.get("MapFromAttribute"))
        if name in fixed:
            continue
        opening = [
            v
            for v in entries.get(name, {}).get("Value") or []
            if dependency not in locks(registry, attribute, {**values, name: v.get("ValueName")})
        ]
        custom = [
            v
            for v in opening
            if _matches((r"custom( mode)?",), str(v.get("ValueDisplayName") or v.get("ValueName") or ""))
        ]
        if len(opening) == 1 or len(custom) == 1:
            value = (custom or opening)[0]["ValueName"]
            return Wanted(name, value, f"needed for {attribute}")
    return None

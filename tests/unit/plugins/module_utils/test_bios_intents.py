# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Intents, registries and locks."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._bios_intents import (
    IntentError,
    Wanted,
    resolve,
    unlock,
    vendor_of,
)


def attribute(name: str, display: str, *values: str) -> dict[str, Any]:
    """Return a registry entry whose values are displayed as they are named."""
    return {
        "AttributeName": name,
        "DisplayName": display,
        "Type": "Enumeration",
        "Value": [{"ValueName": v, "ValueDisplayName": v} for v in values],
    }


def registry(*attributes: dict[str, Any], dependencies: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return a registry."""
    return {"RegistryEntries": {"Attributes": list(attributes), "Dependencies": dependencies or []}}


def lock(attribute_name: str, source: str, condition: str, value: Any, **more: Any) -> dict[str, Any]:
    """Return a dependency that makes an attribute read-only."""
    term = {
        "MapFromAttribute": source,
        "MapFromProperty": "CurrentValue",
        "MapFromCondition": condition,
        "MapFromValue": value,
    }
    dependency = {"MapFrom": [term], "MapToAttribute": attribute_name, "MapToProperty": "ReadOnly", "MapToValue": True}
    return {"Type": "Map", "DependencyFor": attribute_name, "Dependency": {**dependency, **more}}


@pytest.mark.parametrize(
    ("manufacturer", "vendor"),
    [
        ("Dell Inc.", "dell"),
        ("HPE", "hpe"),
        ("Hewlett Packard Enterprise", "hpe"),
        ("Lenovo", "lenovo"),
        ("Supermicro", "supermicro"),
        ("Super Micro Computer", "supermicro"),
        ("ZT Systems", "ami"),
        ("ZTSYSTEMS", "ami"),
    ],
)
def test_manufacturers(manufacturer: str, vendor: str) -> None:
    assert vendor_of(manufacturer) == vendor


def test_an_unknown_manufacturer_is_refused() -> None:
    with pytest.raises(IntentError, match="manufacturer 'Contoso': there is no BIOS attribute map"):
        vendor_of("Contoso")


@pytest.mark.parametrize(
    ("vendor", "entries", "expected"),
    [
        (
            "supermicro",
            [
                attribute("PackageCState#0843", "Package C State", "C0/C1 state", "C6(Retention) state", "Auto"),
                attribute("CPUC6Report#0840", "CPU C6 Report", "Disable", "Enable"),
            ],
            {"PackageCState#0843": "C0/C1 state", "CPUC6Report#0840": "Disable"},
        ),
        (
            "supermicro",
            [
                attribute("PackageCState", "Package C State", "C0/C1 state", "Auto"),
                attribute("CPUC6report", "CPU C6 report", "Disabled", "Enabled"),
            ],
            {"PackageCState": "C0/C1 state", "CPUC6report": "Disabled"},
        ),
        (
            "ami",
            [
                attribute("PMS005", "CPU C6 report", "Disable", "Enable", "Auto"),
                attribute("PMS007", "Package C State", "C0/C1 state", "C2 state", "No Limit"),
                attribute("PRSS011", "Hyper-Threading [ALL]", "Disable", "Enable"),
            ],
            {"PMS007": "C0/C1 state", "PMS005": "Disable"},
        ),
        (
            "hpe",
            [
                {
                    "AttributeName": "MinProcIdlePower",
                    "DisplayName": "Minimum Processor Idle Power Core C-State",
                    "Value": [
                        {"ValueName": "C6", "ValueDisplayName": "C6 State"},
                        {"ValueName": "NoCStates", "ValueDisplayName": "No C-states"},
                    ],
                }
            ],
            {"MinProcIdlePower": "NoCStates"},
        ),
    ],
    ids=[
        "supermicro with numbers",
        "supermicro without",
        "opaque ids by displayed text",
        "optional attribute is missing",
    ],
)
def test_c_states_disabled(vendor: str, entries: list[dict[str, Any]], expected: dict[str, str]) -> None:
    wanted = resolve(vendor, {"c_states": "disabled"}, registry(*entries))
    assert {w.attribute: w.value for w in wanted} == expected
    assert {w.why for w in wanted} == {"c_states=disabled"}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "the BIOS attribute registry has no attribute like ProcCStates"),
        (
            [attribute("ProcCStates", "C States", "Autonomous", "Enabled")],
            "ProcCStates offers Autonomous, Enabled, and none of them",
        ),
        ([attribute("ProcCStates", "C States")], "ProcCStates offers none"),
    ],
    ids=["no attribute", "no such value", "no values"],
)
def test_an_intent_without_a_meaning_is_refused(entries: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(IntentError, match=message):
        resolve("dell", {"c_states": "disabled"}, registry(*entries))


def test_two_intents_on_one_attribute_agree_or_are_refused() -> None:
    entry = attribute("MinProcIdlePower", "x", "C6", "NoCStates")
    both = resolve("hpe", {"c_states": "disabled", "c1e": "disabled"}, registry(entry))
    assert both == [Wanted("MinProcIdlePower", "NoCStates", "c_states=disabled, c1e=disabled")]


C_STATES = attribute("ProcCStates", "C States", "Enabled", "Disabled")
PROFILE = attribute("SysProfile", "System Profile", "PerfOptimized", "PerfPerWatt", "Custom")
WANTED = [Wanted("ProcCStates", "Disabled", "c_states=disabled")]


@pytest.mark.parametrize(
    ("dependencies", "values", "expected"),
    [
        ([lock("ProcCStates", "SysProfile", "NEQ", "Custom")], {"SysProfile": "PerfPerWatt"}, {"SysProfile": "Custom"}),
        ([lock("ProcCStates", "SysProfile", "NEQ", "Custom")], {"SysProfile": "Custom"}, {}),
        (
            [lock("ProcCStates", "SysProfile", "NEQ", "Custom", MapToValue="true")],
            {"SysProfile": "PerfPerWatt"},
            {"SysProfile": "Custom"},
        ),
        (
            [lock("ProcCStates", "SysProfile", "EQU", "PerfPerWatt")],
            {"SysProfile": "PerfPerWatt"},
            {"SysProfile": "Custom"},
        ),
        (
            [lock("ProcCStates", "SysProfile", "NEQ", "Custom", MapToProperty="Hidden")],
            {"SysProfile": "PerfPerWatt"},
            {},
        ),
        ([lock("Other", "SysProfile", "NEQ", "Custom")], {"SysProfile": "PerfPerWatt"}, {}),
        (None, {"SysProfile": "PerfPerWatt"}, {"SysProfile": "Custom"}),
        (None, {"SysProfile": "Custom"}, {}),
        (
            [lock("ProcCStates", "SysProfile", "NEQ", "Custom")],
            {"SysProfile": "PerfOptimized", "ProcCStates": "Disabled"},
            {},
        ),
    ],
    ids=[
        "locked",
        "open",
        "true as text",
        "several values open it, one is custom",
        "hidden is not locked",
        "another attribute",
        "no dependencies: the vendor's switch",
        "no dependencies, switched already",
        "nothing to write",
    ],
)
def test_unlock(dependencies: list[dict[str, Any]] | None, values: dict[str, Any], expected: dict[str, str]) -> None:
    found = unlock(
        "dell", registry(C_STATES, PROFILE, dependencies=dependencies), WANTED, {"ProcCStates": "Enabled", **values}
    )
    assert {w.attribute: w.value for w in found} == expected


def test_a_lock_only_a_guess_would_open_is_refused() -> None:
    source = attribute("Mode", "Mode", "A", "B", "C")
    locked = registry(C_STATES, source, dependencies=[lock("ProcCStates", "Mode", "EQU", "A")])
    with pytest.raises(IntentError, match="ProcCStates: read-only while Mode=A, and no single value opens it"):
        unlock("dell", locked, WANTED, {"ProcCStates": "Enabled", "Mode": "A"})

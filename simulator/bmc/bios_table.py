# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""BIOS attributes of the simulated vendors: names, choices and factory values, as their BMCs spell them.

Only what bears on processor idle states, and the profile switch each vendor puts in front of it. Names and choices are
those seen in public Redfish dumps and manuals (see docs/simulator.md); no real BIOS offers so few.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

REGISTRY = "BiosAttributeRegistry.v1_0_0"
MANUFACTURER = {"dell": "Dell Inc.", "hpe": "HPE", "lenovo": "Lenovo", "supermicro": "Supermicro"}
MODEL = {
    "dell": "PowerEdge XE9680",
    "hpe": "Cray XD670",
    "lenovo": "ThinkSystem SR680a V3",
    "supermicro": "SYS-821GE-TNHR",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Attribute:
    """One enumeration attribute. `values` are (ValueName, ValueDisplayName); `needs` is what makes it writable."""

    name: str
    display: str
    values: tuple[tuple[str, str], ...]
    default: str
    help: str = ""
    needs: tuple[str, str] | None = None


def _same(*names: str) -> tuple[tuple[str, str], ...]:
    """Return choices whose name is also what is displayed."""
    return tuple((n, n) for n in names)


_ON_OFF = _same("Enabled", "Disabled")
_ENABLE = _same("Enable", "Disable")
_DELL = ("SysProfile", "Custom")
_HPE = ("WorkloadProfile", "Custom")
_LENOVO = ("OperatingModes_ChooseOperatingMode", "CustomMode")
_SUPERMICRO = ("PowerTechnology#0838", "Custom")

VENDORS: Mapping[str, tuple[Attribute, ...]] = {
    "dell": (
        Attribute(
            "SysProfile",
            "System Profile",
            (
                ("PerfPerWattOptimizedDapc", "Performance Per Watt (DAPC)"),
                ("PerfPerWattOptimizedOs", "Performance Per Watt (OS)"),
                ("PerfOptimized", "Performance"),
                ("PerfWorkStationOptimized", "Workstation Performance"),
                ("Custom", "Custom"),
            ),
            "PerfPerWattOptimizedDapc",
            "Sets the power settings below to the values of a profile. With Custom each can be changed.",
        ),
        Attribute(
            "ProcPwrPerf",
            "CPU Power Management",
            (("SysDbpm", "System DBPM (DAPC)"), ("MaxPerf", "Maximum Performance"), ("OsDbpm", "OS DBPM")),
            "SysDbpm",
            "Who manages the power of the processors.",
            _DELL,
        ),
        Attribute(
            "ProcCStates",
            "C States",
            (*_ON_OFF, ("Autonomous", "Autonomous")),
            "Enabled",
            "Whether the processors may enter all power states when they are idle.",
            _DELL,
        ),
        Attribute(
            "ProcC1E", "C1E", _ON_OFF, "Enabled", "Whether idle processors lower voltage and frequency in C1.", _DELL
        ),
        Attribute(
            "MonitorMwait",
            "Monitor/Mwait",
            _ON_OFF,
            "Enabled",
            "Whether the MONITOR and MWAIT instructions exist.",
            _DELL,
        ),
        Attribute(
            "UncoreFrequency",
            "Uncore Frequency",
            (("DynamicUFS", "Dynamic"), ("MaxUFS", "Maximum")),
            "DynamicUFS",
            "Who chooses the frequency of caches and memory controllers.",
            _DELL,
        ),
        Attribute(
            "LogicalProc", "Logical Processor", _ON_OFF, "Disabled", "Whether cores offer two logical processors."
        ),
        Attribute("ProcVirtualization", "Virtualization Technology", _ON_OFF, "Enabled", "Virtualization extensions."),
        Attribute(
            "SriovGlobalEnable", "SR-IOV Global Enable", _ON_OFF, "Enabled", "Virtual functions of PCIe devices."
        ),
        Attribute(
            "WorkloadProfile",
            "Workload Profile",
            (("NotConfigured", "Not Configured"), ("HpcProfile", "HPC Profile")),
            "NotConfigured",
            "Sets many options for a kind of work.",
        ),
        Attribute("BootMode", "Boot Mode", (("Bios", "BIOS"), ("Uefi", "UEFI")), "Uefi", "How the system boots."),
    ),
    "hpe": (
        Attribute(
            "WorkloadProfile",
            "Workload Profile",
            (
                ("GeneralPowerEfficientCompute", "General Power Efficient Compute"),
                ("GeneralPeakFrequencyCompute", "General Peak Frequency Compute"),
                ("LowLatency", "Low Latency"),
                ("Custom", "Custom"),
            ),
            "Custom",
            "Sets several options to the values of a profile. With Custom each can be changed.",
        ),
        Attribute(
            "PowerRegulator",
            "Power Regulator",
            (
                ("DynamicPowerSavings", "Dynamic Power Savings Mode"),
                ("StaticHighPerf", "Static High Performance Mode"),
                ("OsControl", "OS Control Mode"),
            ),
            "DynamicPowerSavings",
            "Who chooses the frequency of the processors.",
            _HPE,
        ),
        Attribute(
            "MinProcIdlePower",
            "Minimum Processor Idle Power Core C-State",
            (("C6", "C6 State"), ("C1E", "C1E State"), ("NoCStates", "No C-states")),
            "C6",
            "The deepest idle state of a core.",
            _HPE,
        ),
        Attribute(
            "MinProcIdlePkgState",
            "Minimum Processor Idle Power Package C-State",
            (
                ("C6Retention", "Package C6 (retention) State"),
                ("C6NonRetention", "Package C6 (non-retention) State"),
                ("NoState", "No Package State"),
            ),
            "C6Retention",
            "The deepest idle state of a package.",
            _HPE,
        ),
        Attribute(
            "EnergyPerfBias",
            "Energy/Performance Bias",
            (
                ("MaxPerf", "Maximum Performance"),
                ("BalancedPerf", "Balanced Performance"),
                ("PowerSaver", "Power Saver"),
            ),
            "BalancedPerf",
            "What the processor optimizes.",
            _HPE,
        ),
        Attribute(
            "ProcHyperthreading", "Intel(R) Hyper-Threading", _ON_OFF, "Disabled", "Two logical processors a core."
        ),
        Attribute("Sriov", "SR-IOV", _ON_OFF, "Enabled", "Virtual functions of PCIe devices."),
        Attribute("BootMode", "Boot Mode", (("Uefi", "UEFI Mode"),), "Uefi", "How the system boots."),
    ),
    "lenovo": (
        Attribute(
            "OperatingModes_ChooseOperatingMode",
            "Choose Operating Mode",
            (
                ("MinimalPower", "Minimal Power"),
                ("EfficiencyFavorPower", "Efficiency - Favor Power"),
                ("EfficiencyFavorPerformance", "Efficiency - Favor Performance"),
                ("MaximumPerformance", "Maximum Performance"),
                ("CustomMode", "Custom Mode"),
            ),
            "CustomMode",
            "Sets processor and memory options to the values of a mode. With Custom Mode each can be changed.",
        ),
        Attribute(
            "Processors_CStates",
            "C-States",
            (("Autonomous", "Autonomous"), ("Legacy", "Legacy"), ("Disable", "Disable")),
            "Legacy",
            "Who manages the idle states of the processors.",
            _LENOVO,
        ),
        Attribute(
            "Processors_C1EnhancedMode",
            "C1 Enhanced Mode",
            _ENABLE,
            "Enable",
            "Whether C1 lowers the voltage.",
            _LENOVO,
        ),
        Attribute(
            "Processors_MONITORMWAIT",
            "MONITOR/MWAIT",
            _ENABLE,
            "Enable",
            "Whether the MONITOR and MWAIT instructions exist.",
            _LENOVO,
        ),
        Attribute("Processors_HyperThreading", "Hyper-Threading", _ENABLE, "Disable", "Two logical processors a core."),
        Attribute("DevicesandIOPorts_SRIOV", "SR-IOV", _ENABLE, "Enable", "Virtual functions of PCIe devices."),
        Attribute(
            "BootModes_SystemBootMode", "System Boot Mode", (("UEFIMode", "UEFI Mode"),), "UEFIMode", "How it boots."
        ),
    ),
    "supermicro": (
        Attribute(
            "PowerTechnology#0838",
            "Power Technology",
            _same("Disable", "Energy Efficient", "Custom"),
            "Energy Efficient",
            "Switches power management. With Custom each option can be changed.",
        ),
        Attribute(
            "EnableMonitorMWAIT#0842", "Enable Monitor MWAIT", _ON_OFF, "Enabled", "MONITOR and MWAIT.", _SUPERMICRO
        ),
        Attribute(
            "CPUC6Report#0840",
            "CPU C6 Report",
            _same("Disabled", "Enabled", "Auto"),
            "Enabled",
            "Reports C6 to the operating system.",
            _SUPERMICRO,
        ),
        Attribute(
            "EnhancedHaltState(C1E)#0841",
            "Enhanced Halt State (C1E)",
            _ON_OFF,
            "Enabled",
            "Lowers the voltage in C1.",
            _SUPERMICRO,
        ),
        Attribute(
            "PackageCState#0843",
            "Package C State",
            _same("C0/C1 state", "C2 state", "C6(non Retention) state", "C6(Retention) state", "No Limit", "Auto"),
            "Auto",
            "The deepest idle state of a package.",
            _SUPERMICRO,
        ),
        Attribute(
            "Hyper-Threading[ALL]#0033", "Hyper-Threading [ALL]", _ON_OFF, "Disabled", "Two logical processors a core."
        ),
        Attribute("SR-IOVSupport#00B5", "SR-IOV Support", _ON_OFF, "Enabled", "Virtual functions of PCIe devices."),
        Attribute("BootModeSelect#0027", "Boot Mode Select", _same("LEGACY", "UEFI", "DUAL"), "UEFI", "How it boots."),
    ),
}


def attributes(vendor: str) -> dict[str, Attribute]:
    """Return a vendor's attributes by name. An unknown vendor raises ValueError with the known ones."""
    if vendor not in VENDORS:
        raise ValueError(f"vendor {vendor!r} has no BIOS table. Use one of {', '.join(sorted(VENDORS))}.")
    return {a.name: a for a in VENDORS[vendor]}


def defaults(vendor: str) -> dict[str, str]:
    """Return the factory value of every attribute."""
    return {name: a.default for name, a in attributes(vendor).items()}


def writable(attribute: Attribute, values: Mapping[str, str]) -> bool:
    """Return whether the attribute can be written while the others have these values."""
    return attribute.needs is None or values.get(attribute.needs[0]) == attribute.needs[1]


def registry(vendor: str) -> dict[str, Any]:
    """Return the Redfish AttributeRegistry resource, dependencies included."""
    entries = [
        {
            "AttributeName": a.name,
            "DisplayName": a.display,
            "HelpText": a.help,
            "Type": "Enumeration",
            "Value": [{"ValueName": name, "ValueDisplayName": display} for name, display in a.values],
            "DefaultValue": a.default,
            "ReadOnly": False,
            "Hidden": False,
            "Immutable": False,
            "ResetRequired": True,
        }
        for a in VENDORS[vendor]
    ]
    dependencies = [
        {
            "DependencyFor": a.name,
            "Type": "Map",
            "Dependency": {
                "MapFrom": [
                    {
                        "MapFromAttribute": a.needs[0],
                        "MapFromProperty": "CurrentValue",
                        "MapFromCondition": "NEQ",
                        "MapFromValue": a.needs[1],
                    }
                ],
                "MapToAttribute": a.name,
                "MapToProperty": "ReadOnly",
                "MapToValue": True,
            },
        }
        for a in VENDORS[vendor]
        if a.needs
    ]
    return {
        "@odata.type": "#AttributeRegistry.v1_3_0.AttributeRegistry",
        "Id": REGISTRY,
        "Name": "BIOS Attribute Registry",
        "Language": "en",
        "OwningEntity": MANUFACTURER[vendor],
        "RegistryVersion": "1.0.0",
        "RegistryEntries": {"Attributes": entries, "Dependencies": dependencies},
    }

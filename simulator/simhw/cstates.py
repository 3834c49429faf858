# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Which idle states the kernel offers, from the BIOS values and the kernel command line. Pure."""

from __future__ import annotations

from typing import Any

# Per vendor: (attribute, values that switch it off). Spellings as the vendors' Redfish attribute registries have
# them; Supermicro's carry a number behind '#', so only the part before it is compared.
_DEEP_OFF: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "dell": [("ProcCStates", ("Disabled",))],
    "hpe": [("MinProcIdlePower", ("NoCStates", "C1E"))],
    "lenovo": [("Processors_CStates", ("Disable", "Disabled"))],
    "supermicro": [("CPUC6Report", ("Disabled", "Disable"))],
}
_C1E_OFF: dict[str, list[tuple[str, tuple[str, ...]]]] = {
    "dell": [("ProcC1E", ("Disabled",))],
    "hpe": [("MinProcIdlePower", ("NoCStates",))],
    "lenovo": [("Processors_C1EnhancedMode", ("Disable", "Disabled"))],
    "supermicro": [("EnhancedHaltState(C1E)", ("Disabled", "Disable"))],
}

# Choosing this value of one attribute sets the others, as the vendors' profile attributes do.
_COUPLED: dict[str, list[tuple[str, str, dict[str, str]]]] = {
    "dell": [
        ("SysProfile", "PerfOptimized", {"ProcCStates": "Disabled", "ProcC1E": "Disabled", "ProcPwrPerf": "MaxPerf"}),
        (
            "SysProfile",
            "PerfPerWattOptimizedDapc",
            {"ProcCStates": "Enabled", "ProcC1E": "Enabled", "ProcPwrPerf": "SysDbpm"},
        ),
    ],
    "hpe": [
        (
            "WorkloadProfile",
            "LowLatency",
            {"MinProcIdlePower": "NoCStates", "MinProcIdlePkgState": "NoState", "PowerRegulator": "StaticHighPerf"},
        ),
    ],
    "lenovo": [
        (
            "OperatingModes_ChooseOperatingMode",
            "MaximumPerformance",
            {"Processors_CStates": "Disable", "Processors_C1EnhancedMode": "Disable"},
        ),
    ],
}


def apply_bios(vendor: str, current: dict[str, Any], pending: dict[str, Any]) -> dict[str, Any]:
    """Current values after the pending ones were taken over; a profile that was chosen carries its attributes along."""
    new = {**current, **pending}
    for attribute, value, sets in _COUPLED.get(vendor, []):
        if pending.get(attribute) == value:
            new.update({k: v for k, v in sets.items() if k in new})
    return new


def _off(rules: dict[str, list[tuple[str, tuple[str, ...]]]], vendor: str, bios: dict[str, Any]) -> bool:
    bare = {name.split("#", 1)[0]: value for name, value in bios.items()}
    checks = rules.get(vendor, [])
    return bool(checks) and all(bare.get(attribute) in values for attribute, values in checks)


def _parameter(cmdline: str, name: str) -> int | None:
    value: int | None = None
    for word in cmdline.split():
        key, equals, text = word.partition("=")
        if key == name and equals and text.isdigit():
            value = int(text)  # the kernel takes the last one
    return value


def idle_driver(cmdline: str) -> str:
    if "cpuidle.off=1" in cmdline.split():
        return "none"
    return "acpi_idle" if _parameter(cmdline, "intel_idle.max_cstate") == 0 else "intel_idle"


def kernel_states(hw: dict[str, Any], cmdline: str, cpu: int = 0) -> list[dict[str, Any]]:
    """The states of one CPU in the kernel's order, each with name, desc, latency and residency in microseconds."""
    vendor = str(hw.get("vendor", ""))
    bios = (hw.get("bios") or {}).get("current") or {}
    settings = hw.get("cstates") or {}
    table = [dict(s) for s in settings.get("states", [])]
    ignores = bool(settings.get("kernel_ignores_bios"))
    driver = idle_driver(cmdline)
    if driver == "none":
        return []
    deep_off = _off(_DEEP_OFF, vendor, bios) and not ignores
    c1e_off = _off(_C1E_OFF, vendor, bios) and not ignores
    wanted = []
    for s in table:
        name = str(s["name"])
        if name not in ("POLL", "C1", "C1E") and deep_off:
            continue
        if name == "C1E" and c1e_off:
            continue
        wanted.append(s)
    if driver == "acpi_idle":
        # acpi_idle numbers what the firmware hands it (_CST): C1, then C2 for the deepest.
        deep = [s for s in wanted if s["name"] not in ("POLL", "C1", "C1E")]
        shown = [s for s in wanted if s["name"] in ("POLL", "C1")]
        for s in shown:
            s["desc"] = "ACPI FFH MWAIT 0x0" if s["name"] == "C1" else s["desc"]
        shown += [{**s, "name": f"C{n}", "desc": "ACPI FFH MWAIT 0x20"} for n, s in enumerate(deep, start=2)]
        limit = _parameter(cmdline, "processor.max_cstate")
    else:
        shown = wanted
        limit = _parameter(cmdline, "intel_idle.max_cstate")
    if limit is not None and limit >= 1:
        shown = shown[: limit + 1]
    if str(cpu) in {str(c) for c in settings.get("forced", {})}:
        names = {s["name"] for s in shown}
        for s in table:
            if s["name"] == settings["forced"][str(cpu)] and s["name"] not in names:
                shown.append(s)
    return shown

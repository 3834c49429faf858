# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether every GPU of a node is there, alike, and without a defect the driver knows of. Pure functions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import Profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import shown
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._smi_query import (
    Gpu,
    Query,
    broken,
    needs_reset,
    number,
    printed,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Verdict, compare, unknown

CHECKS: dict[str, str] = {
    "gpu_health.output": (
        "The report of nvidia-smi is whole, says nothing twice and holds no error message; there is no limit to set."
    ),
    "gpu_health.gpus": (
        "The number of GPUs the driver describes, held against option gpus or the board profile; a GPU the driver "
        "calls lost fails it."
    ),
    "gpu_health.product": "The product name of each GPU, held against the names of the board profile.",
    "gpu_health.driver": "The version of the driver, one for all GPUs, held against option driver where it is set.",
    "gpu_health.vbios": "The VBIOS version of each GPU, held against option vbios or else against the other GPUs.",
    "gpu_health.inforom": (
        "The InfoROM image of each GPU can be read and is not corrupted; images that differ on one node are a warning."
    ),
    "gpu_health.ecc_mode": "ECC is enabled now and after the next reset on each GPU, as the board is sold.",
    "gpu_health.ecc_volatile": (
        "Uncorrectable ECC errors since the driver was loaded, DRAM and SRAM, held against 0 (imbue-ai/cluster-health)."
    ),
    "gpu_health.ecc_aggregate": (
        "Uncorrectable ECC errors in the life of the GPU: any is a warning, as row remapping repairs them; SRAM errors "
        "over option sram_uncorrected fail where the driver does not judge them itself."
    ),
    "gpu_health.sram_threshold": "The driver's own flag SRAM Threshold Exceeded, NVIDIA's criterion for a replacement.",
    "gpu_health.remap_pending": "No row remapping waits for a reset of the GPU (NVIDIA GPU Memory Error Management).",
    "gpu_health.remap_failed": (
        "No row remapping has failed, NVIDIA's criterion for a replacement; it fails the node on its own."
    ),
    "gpu_health.remapped_rows": (
        "Rows remapped for uncorrectable errors, held against option remapped_rows (512 spare rows on a GPU), and "
        "banks that have no spare row left, which are a warning."
    ),
    "gpu_health.memory_repair": (
        "No memory repair is pending (channel, TPC, page retirement) and none is impossible (Unrepairable Memory)."
    ),
    "gpu_health.pcie_width": (
        "The width of the PCIe link, held against option pcie_width or the board profile; it never shrinks when idle."
    ),
    "gpu_health.pcie_gen": (
        "The generation of the PCIe link, held against option pcie_gen or the board profile; in a power saving state a "
        "lower current generation is a warning, as the driver slows an idle link."
    ),
    "gpu_health.clocks": (
        "No hardware slowdown, thermal slowdown or power brake holds the clocks down (NVML clocks event reasons); the "
        "driver's own thermal slowdown is a warning."
    ),
    "gpu_health.mig": "MIG is disabled now and after the next reset: the units use whole GPUs.",
    "gpu_health.persistence": "Persistence mode is enabled, as the role cuda sets it.",
    "gpu_health.recovery": "The driver asks for no recovery action (reset, reboot, drain) of a GPU.",
    "gpu_health.temperature": (
        "The temperature of each GPU, held against the GPU's own limit (T.Limit margin or slowdown temperature) or "
        "option temperature."
    ),
    "gpu_health.growth": (
        "Uncorrectable ECC errors, remapped rows and, where the driver counts it, the time a thermal slowdown or the "
        "power brake held the clocks down, held against an earlier reading (option before): none is added."
    ),
}

GATE = "gpu_health"
_AGAIN = "Run nvidia-smi -q by hand and look into the kernel log for NVRM."
_MEMORY_NOTE = "NVIDIA GPU Memory Error Management"
_RESET = "Drain the node and reset the GPU, then judge again."
_REPLACE = "Take the GPU out of service and have it replaced; NVIDIA's field diagnostic confirms it."
_RECOVERY_SINCE = 565  # the driver branch that brought GPU Recovery Action
_HOTTEST = 87.0  # see docs/thresholds.md


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """What a node is held against.

    Without a board each GPU is held against what it says of itself, and what it does not have is not asked of it.
    `whole`: a fact that is not in the reading at all is unknown, not left out.
    """

    board: Profile | None
    gpus: int | None = None
    driver: str | None = None
    vbios: str | None = None
    sram_uncorrected: int = 4
    remapped_rows: int = 512
    temperature: float | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    whole: bool = True

    @property
    def source(self) -> str:
        """Where a limit comes from that no option gives."""
        return self.board.source if self.board else "the GPU itself"


def judge(query: Query, limits: Limits, before: Query | None = None) -> list[Check]:
    """Return the checks of one reading, and of its growth since `before`."""
    if not query.gpus:
        if any(problem.kind == "lost" for problem in query.problems):
            return [check for check in _count(query, limits) if check.value == "lost"]
        reason = query.problems[0].text if query.problems else "nvidia-smi -q describes no GPU"
        return [unknown("gpu_health.output", "driver", reason, _AGAIN)]
    facts: list[Check] = [
        *_count(query, limits),
        *_products(query, limits),
        *_driver(query, limits),
        *_vbios(query, limits),
        *_inforom(query, limits),
        *_ecc_mode(query, limits),
        *_ecc_volatile(query, limits),
        *_ecc_aggregate(query, limits),
        *_sram_threshold(query, limits),
        *_remapping(query, limits),
        *_memory_repair(query, limits),
        *_pcie_width(query, limits),
        *_pcie_gen(query, limits),
        *_clocks(query, limits),
        *_mig(query, limits),
        *_persistence(query, limits),
        *_recovery(query, limits),
        *_temperature(query, limits),
    ]
    output = _output(query)
    if not output and all(check.check == "gpu_health.gpus" for check in facts):
        output = [unknown("gpu_health.output", "driver", "the capture holds nothing this gate judges", _AGAIN)]
    return [*output, *facts, *(_growth(query, before) if before is not None else [])]


def fleet(query: Query) -> dict[str, Any]:
    """Return what should be one version over the rack; a node that has several names them all.

    The InfoROM image is not among them: a GPU that was replaced comes with a newer one, which breaks nothing, and
    nobody can give the others the same.
    """
    lines = {
        "gpu_health.driver": {query.driver},
        "gpu_health.vbios": {printed(gpu.get("VBIOS Version")) for gpu in query.gpus},
    }
    versions = {name: ", ".join(sorted(v for v in values if v)) for name, values in lines.items()}
    return {"versions": {name: value for name, value in versions.items() if value}, "values": {}}


def readings(query: Query) -> list[dict[str, Any]]:
    """Return what was read of each GPU, for reports; None is what could not be read or is not supported."""
    return [
        {
            "index": gpu.index,
            "bus_id": gpu.bus_id,
            "uuid": printed(gpu.get("GPU UUID")),
            "product": printed(gpu.get("Product Name")),
            "vbios": printed(gpu.get("VBIOS Version")),
            "inforom": printed(gpu.get("Inforom Version/Image Version")),
            "ecc_mode": printed(gpu.get("ECC Mode/Current")),
            "ecc_volatile_uncorrected": _uncorrectable(gpu, "Volatile")[0],
            "ecc_aggregate_uncorrected": _uncorrectable(gpu, "Aggregate")[0],
            "remapped_correctable": number(gpu.get("Remapped Rows/Correctable Error")),
            "remapped_uncorrectable": number(gpu.get("Remapped Rows/Uncorrectable Error")),
            "remap_pending": printed(gpu.get("Remapped Rows/Pending")),
            "remap_failed": printed(gpu.get("Remapped Rows/Remapping Failure Occurred")),
            "pcie_gen_max": number(gpu.get(f"{_GEN}/Max")),
            "pcie_gen_current": number(gpu.get(f"{_GEN}/Current")),
            "pcie_width_max": number(gpu.get(f"{_WIDTH}/Max"), "x"),
            "pcie_width_current": number(gpu.get(f"{_WIDTH}/Current"), "x"),
            "performance_state": printed(gpu.get("Performance State")),
            "clocks_event_reasons": _active(gpu),
            "mig": printed(gpu.get("MIG Mode/Current")),
            "persistence": printed(gpu.get("Persistence Mode")),
            "recovery_action": printed(gpu.get("GPU Recovery Action")),
            "temperature": number(gpu.get("Temperature/GPU Current Temp"), "C"),
        }
        for gpu in query.gpus
    ]


# --- common


def _wanted(query: Query, limits: Limits, names: Sequence[str]) -> bool:
    """Return whether a fact is to be judged: the reading should have it, or at least one GPU has it."""
    return limits.whole or query.whole or _somewhere(query, names)


def _somewhere(query: Query, names: Sequence[str]) -> bool:
    return any(key == name or key.startswith(f"{name}/") for gpu in query.gpus for key in gpu.fields for name in names)


def _fold(checks: Iterable[Check]) -> list[Check]:
    """Put the passes of one fact into one check, and so what is wrong with every GPU alike: it has one cause."""
    checks = list(checks)
    good = [check for check in checks if check.verdict == "pass"]
    bad = [check for check in checks if check.verdict != "pass"]
    if len(bad) > 1 and not good and len({dataclasses.replace(check, subject="") for check in bad}) == 1:
        return [dataclasses.replace(bad[0], subject=f"all {len(bad)} GPUs")]
    if len(good) < 2:
        return checks
    values = sorted({str(check.value) for check in good})
    value = good[0].value if len(values) == 1 else ", ".join(values)
    subject = f"all {len(good)} GPUs" if not bad else f"{len(good)} GPUs"
    return [*bad, dataclasses.replace(good[0], subject=subject, value=value)]


def _unreadable(check: str, gpu: Gpu, line: str, limit: str | int | float | None, source: str) -> Check:
    """Return why a line cannot be judged. A GPU that says it needs a reset is a defect; other words are no reading."""
    value = gpu.get(line)
    if value is not None and needs_reset(value):
        reason = f"the driver answers {shown(value)!r} in place of {line}"
        return Check(check, gpu.subject, "fail", reason, shown(value), limit, "", source, _RESET)
    reason = f"there is no line {line}" if value is None else f"{line} is {shown(value)!r}"
    return unknown(check, gpu.subject, reason, _AGAIN, limit, source)


def _word(
    check: str,
    gpu: Gpu,
    line: str,
    wanted: str,
    source: str,
    reason: str,
    remedy: str,
    bad: Sequence[str],
    absent: bool = False,
) -> Check:
    """Judge a line of one word: pass for the wanted one, fail for a known bad one, unknown for anything else."""
    value = gpu.get(line)
    word = printed(value)
    if absent and value is not None and word is None:
        said = f"{line.replace('/', ', ')}: not supported here"
        return Check(check, gpu.subject, "pass", said, "N/A", wanted, "", source)
    if word == wanted:
        return Check(check, gpu.subject, "pass", line.replace("/", ", "), word, wanted, "", source)
    if word in bad:
        return Check(check, gpu.subject, "fail", reason, word, wanted, "", source, remedy)
    return _unreadable(check, gpu, line, wanted, source)


def _softer(check: Check) -> Check:
    return dataclasses.replace(check, verdict="warn") if check.verdict == "fail" else check


# --- what is there

_REMAP = "Remapped Rows"
_LINK = "PCI/GPU Link Info"
_GEN, _WIDTH = f"{_LINK}/PCIe Generation", f"{_LINK}/Link Width"
_ALIKE = re.compile(
    r"ECC Errors/(Volatile|Aggregate)/SRAM Uncorrectable .*|Remapped Rows/Bank Remap Availability Histogram/None"
    rf"|({_GEN}|{_WIDTH})/Max"
)


def _output(query: Query) -> list[Check]:
    checks = [
        unknown("gpu_health.output", "driver", problem.text, _AGAIN)
        for problem in query.problems
        if problem.kind not in ("lost", "inforom")
    ]
    # Lines without which a GPU could still be judged: one that only some GPUs have was lost on the way.
    lines = {key for gpu in query.gpus for key in gpu.fields if _ALIKE.fullmatch(key)}
    for gpu in query.gpus:
        gone = sorted(key for key in lines if key not in gpu.fields and _REMAP not in gpu.fields)
        if gone:
            reason = f"other GPUs have a line {gone[0]}" + (f" and {len(gone) - 1} more" if len(gone) > 1 else "")
            checks.append(unknown("gpu_health.output", gpu.subject, f"{reason}, this one has not", _AGAIN))
    uuids = [uuid for gpu in query.gpus if (uuid := printed(gpu.get("GPU UUID")))]
    if len(set(uuids)) < len(uuids):
        checks.append(unknown("gpu_health.output", "driver", "two GPUs have the same UUID in the report", _AGAIN))
    return checks


def _count(query: Query, limits: Limits) -> list[Check]:
    board = limits.board
    expected = limits.gpus if limits.gpus is not None else board.gpu_count if board else query.attached
    source = "option gpus" if limits.gpus is not None else board.source if board else "the driver's own count"
    remedy = "Look for XID 79 in the kernel log and for the device with lspci, then power-cycle the node."
    lost = [problem for problem in query.problems if problem.kind == "lost"]
    described = len(query.gpus)
    checks = [
        Check("gpu_health.gpus", _lost_gpu(problem.text), "fail", problem.text, "lost", "present", "", "driver", remedy)
        for problem in lost
    ]
    if query.attached is None and query.form in ("text", "xml"):
        reason = f"the report announces no number of GPUs and describes {described}"
        return [*checks, unknown("gpu_health.gpus", "node", reason, _AGAIN, expected, source)]
    # The report of one GPU (nvidia-smi -q -i 2) announces all; option gpus says that no more are in the capture.
    asked = not limits.whole and limits.gpus == described and not lost
    if query.attached is not None and query.attached != described + len(lost) and not asked:
        reason = f"the report announces {query.attached} GPUs and describes {described}, it is not whole"
        return [*checks, unknown("gpu_health.gpus", "node", reason, _AGAIN, expected, source)]
    if expected is None:
        if board is None:
            return checks
        reason = f"{board.name} does not fix the number of GPUs, so a missing card would not be noticed"
        hint = "Set gpus to the number of cards in the server."
        return [*checks, Check("gpu_health.gpus", "node", "warn", reason, described, None, "GPUs", "", hint)]
    ok = described == expected
    if described < expected and any(problem.kind == "unreadable" for problem in query.problems):
        reason = f"{described} of {expected} GPUs could be read, and the capture is cut off or broken"
        return [*checks, unknown("gpu_health.gpus", "node", reason, _AGAIN, expected, source)]
    reason = "GPUs the driver describes"
    if not ok and query.form == "csv" and described < expected:
        reason = f"{described} of {expected} GPUs are in the capture"
    return [
        *checks,
        compare(
            "gpu_health.gpus",
            "node",
            described,
            expected,
            ok=ok,
            unit="GPUs",
            limit_source=source,
            reason=reason,
            remedy=remedy,
        ),
    ]


def _lost_gpu(text: str) -> str:
    """Return the GPU an error message names."""
    found = re.search(r"GPU\s*(?:[0-9]+:\s*)?([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])", text)
    return f"GPU {found[1]}" if found else "driver"


def _products(query: Query, limits: Limits) -> list[Check]:
    line, board = "Product Name", limits.board
    if board is None:
        return []
    wanted = " or ".join(re.sub(r"\(([^)]*)\)\?", r"[\1]", product) for product in board.products)
    remedy = "Name the node's board in the inventory (gpu_rack_board), or have the GPU replaced."

    def one(gpu: Gpu) -> Check:
        name = printed(gpu.get(line))
        if name is None or broken(name):
            return _unreadable("gpu_health.product", gpu, line, wanted, board.source)
        return compare(
            "gpu_health.product",
            gpu.subject,
            shown(name),
            wanted,
            ok=board.product_matches(name),
            limit_source=board.source,
            reason="product the driver names",
            remedy=remedy,
        )

    return _fold(map(one, query.gpus)) if _wanted(query, limits, [line]) else []


def _driver(query: Query, limits: Limits) -> list[Check]:
    version, source = query.driver, "option driver"
    if version is None:
        if not (limits.whole or query.form in ("text", "xml") or limits.driver):
            return []
        return [unknown("gpu_health.driver", "driver", "the report names no driver version", _AGAIN, limits.driver)]
    if re.fullmatch(r"[0-9]{3,4}(\.[0-9]{1,4}){1,3}", version) is None:
        reason = f"the driver version is {shown(version)!r}"
        return [unknown("gpu_health.driver", "driver", reason, _AGAIN, limits.driver)]
    if limits.driver is None:
        reason = "one driver for all GPUs; without option driver its version is not judged here"
        return [Check("gpu_health.driver", "driver", "pass", reason, version)]
    return [
        compare(
            "gpu_health.driver",
            "driver",
            version,
            limits.driver,
            ok=version == limits.driver,
            limit_source=source,
            reason="the driver that runs",
            remedy="Run the role cuda, which installs the pinned version.",
        )
    ]


def _vbios(query: Query, limits: Limits) -> list[Check]:
    line = "VBIOS Version"
    if not _wanted(query, limits, [line]):
        return []
    versions = {gpu.subject: printed(gpu.get(line)) for gpu in query.gpus}
    readable = [v for v in versions.values() if v and re.fullmatch(r"[0-9A-Fa-f]{1,3}(\.[0-9A-Fa-f]{1,3}){3,5}", v)]
    pinned, source = limits.vbios, "option vbios"
    if pinned is None:
        # What most GPUs of the node have. With an even split neither half is the right one, so both are named.
        order = sorted(set(readable), key=lambda v: (-readable.count(v), v))
        even = len(order) > 1 and readable.count(order[0]) == readable.count(order[1])
        pinned = None if not order else " or ".join(order) if even else order[0]
        source = "the other GPUs of the node"

    def one(gpu: Gpu) -> Check:
        version = versions[gpu.subject]
        if version not in readable:
            return _unreadable("gpu_health.vbios", gpu, line, pinned, source)
        return compare(
            "gpu_health.vbios",
            gpu.subject,
            version,
            pinned,
            ok=version == pinned,
            limit_source=source,
            reason="VBIOS of the GPU, which must be one version on the node",
            remedy="Flash the GPU to the VBIOS of the others (role gpu_firmware).",
        )

    return _fold(map(one, query.gpus))


def _inforom(query: Query, limits: Limits) -> list[Check]:
    line = "Inforom Version/Image Version"
    checks = [
        Check(
            "gpu_health.inforom",
            "driver",
            "fail",
            f"the driver says: {problem.text}",
            "corrupted",
            "valid",
            "",
            "driver",
            _REPLACE,
        )
        for problem in query.problems
        if problem.kind == "inforom"
    ]
    if not _wanted(query, limits, [line]):
        return checks
    images: dict[str, list[str]] = {}
    for gpu in query.gpus:
        image = printed(gpu.get(line))
        if image is not None and "corrupt" in image.lower():
            reason = "the driver cannot trust the InfoROM"
            checks.append(
                Check("gpu_health.inforom", gpu.subject, "fail", reason, shown(image), "valid", "", "driver", _REPLACE)
            )
        elif image is None and gpu.get(line) is not None and limits.board is None:
            continue
        elif image is None or broken(image):
            checks.append(_unreadable("gpu_health.inforom", gpu, line, "valid", "driver"))
        else:
            images.setdefault(shown(image), []).append(gpu.subject)
    if len(images) > 1:
        said = "; ".join(f"{image}: {len(gpus)} GPUs" for image, gpus in sorted(images.items()))
        odd = min(images.values(), key=len)
        reason = f"the InfoROM images of the node differ, {', '.join(odd)} apart from the rest"
        checks.append(
            Check("gpu_health.inforom", "node", "warn", reason, said, "one image", "", "the other GPUs of the node")
        )
    elif images and not checks:
        image, gpus = images.popitem()
        checks.append(
            Check(
                "gpu_health.inforom",
                f"all {len(gpus)} GPUs",
                "pass",
                "InfoROM can be read",
                image,
                "valid",
                "",
                "driver",
            )
        )
    return checks


# --- memory


def _ecc_mode(query: Query, limits: Limits) -> list[Check]:
    lines = ("ECC Mode/Current", "ECC Mode/Pending")
    remedy = "Enable ECC (nvidia-smi -e 1) and reset the GPU."
    checks: list[Check] = []
    for line in lines:
        if _somewhere(query, [line]) or ((limits.whole or query.whole) and line == lines[0]):
            reason = "ECC now" if line == lines[0] else "ECC after the next reset"
            found = [
                _word(
                    "gpu_health.ecc_mode",
                    gpu,
                    line,
                    "Enabled",
                    limits.source,
                    reason,
                    remedy,
                    ["Disabled"],
                    absent=limits.board is None,
                )
                for gpu in query.gpus
            ]
            soft = [limits.board is None and _WORKSTATION.search(gpu.get("Product Name") or "") for gpu in query.gpus]
            checks += _fold(_softer(check) if is_soft else check for check, is_soft in zip(found, soft, strict=True))
    return checks


# Cards that are sold with ECC off.
_WORKSTATION = re.compile(r"\b(GeForce|RTX|Quadro|TITAN)\b", re.IGNORECASE)


def _uncorrectable(gpu: Gpu, span: str) -> tuple[int | None, list[str]]:
    """Return the sum of uncorrectable errors, and the lines that are no number. None: not every kind was read.

    Ampere and Hopper count DRAM and SRAM. Older GPUs count by place and give a total; a csv has what was asked for.
    """
    lines = gpu.section(f"ECC Errors/{span}")
    kinds = {n: number(v) for n, v in lines.items() if re.search(r"\bUncorrectable\b|^Double Bit/Total$", n)}
    total = max(
        (v for n in ("Total Uncorrectable", "Double Bit/Total") if (v := kinds.get(n)) is not None), default=None
    )
    if total is not None and total >= 0:
        return total, []
    if gpu.columns:
        # Places this GPU does not have are [N/A] in a csv, and device_memory is another name of dram.
        kinds = {
            n: v for n, v in kinds.items() if n.startswith(("DRAM", "SRAM", "Total")) or printed(lines[n]) is not None
        }
        if "DRAM Uncorrectable" in kinds:
            kinds.pop("device_memory Uncorrectable", None)
    bad = [f"{name} is {shown(lines[name])!r}" for name, value in kinds.items() if value is None or value < 0]
    if not gpu.columns:
        bad += [
            f"there is no line {kind} Uncorrectable"
            for kind in ("DRAM", "SRAM")
            if not any(name.startswith(f"{kind} Uncorrectable") for name in kinds)
        ]
    values = [value for value in kinds.values() if value is not None]
    return (None, bad) if bad or not values else (sum(values), [])


def _ecc_off(gpu: Gpu, limits: Limits) -> bool:
    """Return whether ECC is off, so that nothing is counted; the mode has failed already, or the GPU has no ECC."""
    mode = gpu.get("ECC Mode/Current")
    return printed(mode) == "Disabled" or (limits.board is None and mode is not None and printed(mode) is None)


def _ecc_volatile(query: Query, limits: Limits) -> list[Check]:
    source = "imbue-ai/cluster-health; any uncorrectable error is a lost job"

    def one(gpu: Gpu) -> Check | None:
        found, bad = _uncorrectable(gpu, "Volatile")
        if found is None and _ecc_off(gpu, limits):
            return None
        if found is None:
            return _no_count("gpu_health.ecc_volatile", gpu, "Volatile", bad, source)
        return compare(
            "gpu_health.ecc_volatile",
            gpu.subject,
            found,
            0,
            ok=found == 0,
            unit="errors",
            limit_source=source,
            reason="uncorrectable ECC errors since the driver was loaded",
            remedy="Drain the node, look for XID 48, 63, 64, 94 and 95, reset the GPU and burn it in again.",
        )

    if not _wanted(query, limits, ["ECC Errors/Volatile"]):
        return []
    return _fold(check for gpu in query.gpus if (check := one(gpu)) is not None)


def _no_count(check: str, gpu: Gpu, span: str, bad: Sequence[str], source: str) -> Check:
    lines = gpu.section(f"ECC Errors/{span}")
    if any(needs_reset(value) for value in lines.values()):
        reason = f"the driver answers that the GPU needs a reset: {', '.join(bad)}"
        return Check(check, gpu.subject, "fail", reason, "requires reset", 0, "errors", source, _RESET)
    reason = f"{span.lower()} uncorrectable errors: {', '.join(bad) or 'there is no such line'}"
    return unknown(check, gpu.subject, reason, _AGAIN, 0, source)


def _ecc_aggregate(query: Query, limits: Limits) -> list[Check]:
    source = f"{_MEMORY_NOTE}: a remapped row is repaired"
    if not _wanted(query, limits, ["ECC Errors/Aggregate"]):
        return []
    checks: list[Check] = []
    for gpu in query.gpus:
        found, bad = _uncorrectable(gpu, "Aggregate")
        sram = [
            value
            for name, text in gpu.section("ECC Errors/Aggregate").items()
            if re.match(r"SRAM.* Uncorrectable|SRAM Uncorrectable", name) and (value := number(text)) is not None
        ]
        own = printed(gpu.get("ECC Errors/Aggregate/SRAM Threshold Exceeded")) in ("Yes", "No")
        if found is None:
            if not _ecc_off(gpu, limits):
                checks.append(_no_count("gpu_health.ecc_aggregate", gpu, "Aggregate", bad, source))
        elif not own and sum(sram) > limits.sram_uncorrected:
            checks.append(
                Check(
                    "gpu_health.ecc_aggregate",
                    gpu.subject,
                    "fail",
                    "uncorrectable SRAM errors in the life of the GPU; SRAM has no spare rows",
                    sum(sram),
                    limits.sram_uncorrected,
                    "errors",
                    "option sram_uncorrected",
                    _REPLACE,
                )
            )
        elif found:
            checks.append(
                Check(
                    "gpu_health.ecc_aggregate",
                    gpu.subject,
                    "warn",
                    "uncorrectable errors in the life of the GPU; see that they do not grow",
                    found,
                    0,
                    "errors",
                    source,
                )
            )
        else:
            reason = "uncorrectable errors in the life of the GPU"
            checks.append(Check("gpu_health.ecc_aggregate", gpu.subject, "pass", reason, 0, 0, "errors", source))
    return _fold(checks)


def _sram_threshold(query: Query, limits: Limits) -> list[Check]:
    """Judge the flag where the driver has it: it does where it counts parity and SEC-DED errors apart."""
    line = "ECC Errors/Aggregate/SRAM Threshold Exceeded"
    parity = "ECC Errors/Aggregate/SRAM Uncorrectable Parity"
    if not _somewhere(query, [line, parity]):
        return []
    return _fold(
        _word(
            "gpu_health.sram_threshold",
            gpu,
            line,
            "No",
            _MEMORY_NOTE,
            "NVIDIA's threshold of uncorrectable SRAM errors is exceeded",
            _REPLACE,
            ["Yes"],
        )
        for gpu in query.gpus
        if not (_ecc_off(gpu, limits) and gpu.get(line) is not None and printed(gpu.get(line)) is None)
    )


def _remapping(query: Query, limits: Limits) -> list[Check]:
    if not _wanted(query, limits, [_REMAP]):
        return []
    pending, failed = f"{_REMAP}/Pending", f"{_REMAP}/Remapping Failure Occurred"
    count, source = f"{_REMAP}/Uncorrectable Error", "option remapped_rows"
    gpus, checks = [], []
    for gpu in query.gpus:
        whole = gpu.get(_REMAP)
        if whole is not None and not gpu.section(_REMAP):
            # One line in place of the section: N/A on a GPU without row remapping, which no board profile has.
            if limits.board is None and printed(whole) is None:
                reason = "this GPU has no row remapping"
                checks.append(
                    Check("gpu_health.remap_failed", gpu.subject, "pass", reason, "N/A", "No", "", _MEMORY_NOTE)
                )
                continue
            checks.append(_unreadable("gpu_health.remap_failed", gpu, _REMAP, "No", _MEMORY_NOTE))
        else:
            gpus.append(gpu)
    columns = [line for line in (pending, failed, count) if query.form != "csv" or _somewhere(query, [line])]
    if pending in columns:
        reason = "a row waits for a reset to be remapped"
        checks += _fold(_flag("gpu_health.remap_pending", gpu, pending, reason, _RESET) for gpu in gpus)
    if failed in columns:
        reason = "a row could not be remapped, so known bad memory is in use"
        checks += _fold(_flag("gpu_health.remap_failed", gpu, failed, reason, _REPLACE) for gpu in gpus)
    if count in columns:
        checks += _fold(_rows(gpu, count, limits.remapped_rows, source) for gpu in gpus)
    return checks


def _flag(check: str, gpu: Gpu, line: str, reason: str, remedy: str) -> Check:
    """Judge a line of Yes and No; --query-remapped-rows and some csv write 0 and 1."""
    value = gpu.get(line)
    word = {"0": "No", "1": "Yes"}.get(printed(value) or "", value)
    if word != value:
        gpu = dataclasses.replace(gpu, fields={**gpu.fields, line: word or ""})
    return _word(check, gpu, line, "No", _MEMORY_NOTE, reason, remedy, ["Yes"])


def _rows(gpu: Gpu, line: str, limit: int, source: str) -> Check:
    found = number(gpu.get(line))
    if found is None or found < 0:
        return _unreadable("gpu_health.remapped_rows", gpu, line, limit, source)
    reason = "rows remapped for uncorrectable errors"
    if found > limit:
        return Check("gpu_health.remapped_rows", gpu.subject, "fail", reason, found, limit, "rows", source, _REPLACE)
    histogram = gpu.section(f"{_REMAP}/Bank Remap Availability Histogram")
    for name, text in histogram.items():
        banks = number(text, "bank(s)")
        if banks is None or banks < 0:
            at = f"{_REMAP}/Bank Remap Availability Histogram/{name}"
            return _unreadable("gpu_health.remapped_rows", gpu, at, limit, source)
    spent = number(histogram.get("None"), "bank(s)") or 0
    if spent:
        reason = f"{spent} banks have no spare row left: the next error in one of them cannot be repaired"
        return Check("gpu_health.remapped_rows", gpu.subject, "warn", reason, found, limit, "rows", source)
    return Check("gpu_health.remapped_rows", gpu.subject, "pass", reason, found, limit, "rows", source)


_REPAIRS = (
    ("ECC Errors/Channel Repair Pending", "a memory channel waits for a reset to be repaired", _RESET),
    ("ECC Errors/TPC Repair Pending", "a TPC waits for a reset to be repaired", _RESET),
    ("ECC Errors/Unrepairable Memory", "the GPU has memory that cannot be repaired", _REPLACE),
    ("Retired Pages/Pending Page Blacklist", "a memory page waits for a reset to be retired", _RESET),
)


def _memory_repair(query: Query, limits: Limits) -> list[Check]:
    """Judge what the drivers since 580 (580, 590) and before row remapping (retired pages) say of repairs."""
    checks: list[Check] = []
    for line, reason, remedy in _REPAIRS:
        if _somewhere(query, [line]):
            checks += [
                _word("gpu_health.memory_repair", gpu, line, "No", _MEMORY_NOTE, reason, remedy, ["Yes"], absent=True)
                for gpu in query.gpus
            ]
    return _fold(checks) if any(c.verdict != "pass" for c in checks) else _one_pass(checks, len(query.gpus))


def _one_pass(checks: Sequence[Check], gpus: int) -> list[Check]:
    """Return one pass for several lines of several GPUs, none of which is bad."""
    if not checks:
        return []
    first, said = checks[0], sum(1 for check in checks if check.value == "No")
    reason = f"no repair of memory is pending or impossible ({said} lines read)"
    return [dataclasses.replace(first, subject=f"all {gpus} GPUs", reason=reason, value="No" if said else "N/A")]


# --- link to the host

_SLOT = "Reseat the board, look at the slot and its riser, and at the BIOS limit of the slot; compare with lspci -vv."


_LANES = (1, 2, 4, 8, 12, 16, 32)


def _pcie_width(query: Query, limits: Limits) -> list[Check]:
    line, most = f"{_WIDTH}/Current", f"{_WIDTH}/Max"
    own = limits.pcie_width
    source = limits.source if own is None else "option pcie_width"

    def one(gpu: Gpu) -> Check:
        found, best = number(gpu.get(line), "x"), number(gpu.get(most), "x")
        wanted = own if own is not None else int(limits.board.pcie_width.value) if limits.board else best
        if found is None or found < 1:
            return _unreadable("gpu_health.pcie_width", gpu, line, wanted, source)
        if gpu.get(most) is not None and (best not in _LANES or best < found):
            return _unreadable("gpu_health.pcie_width", gpu, most, wanted, source)
        limit = f", the slot allows {best}" if best is not None and wanted is not None and best < wanted else ""
        return compare(
            "gpu_health.pcie_width",
            gpu.subject,
            found,
            wanted,
            ok=wanted is not None and found >= wanted,
            unit="lanes",
            limit_source=source,
            reason=f"lanes of the PCIe link in use{limit}",
            remedy=_SLOT,
        )

    names = [line] if query.form == "csv" else [_LINK]
    return _fold(map(one, query.gpus)) if _wanted(query, limits, names) else []


def _saves_power(gpu: Gpu) -> bool | None:
    """Return whether the GPU is in a power saving state (P3 to P15), None when the report does not say."""
    state = re.fullmatch(r"P([0-9]{1,2})", printed(gpu.get("Performance State")) or "")
    return int(state[1]) > 2 if state else None


def _pcie_gen(query: Query, limits: Limits) -> list[Check]:
    """Judge the generation.

    The manual of nvidia-smi says that the current generation may be reduced when the GPU is not in use. That is part of
    the low performance states; in P0 to P2, where an idle H100 stays, the link runs as fast as GPU and slot allow. So
    the maximum always has to be the board's, and the current one too unless the GPU saves power.
    """
    line, most = f"{_GEN}/Current", f"{_GEN}/Max"
    own = limits.pcie_gen
    source = limits.source if own is None else "option pcie_gen"

    def one(gpu: Gpu) -> Check:
        found, best = number(gpu.get(line)), number(gpu.get(most))
        wanted = own if own is not None else int(limits.board.pcie_gen.value) if limits.board else best
        if found is None or found < 1:
            return _unreadable("gpu_health.pcie_gen", gpu, line, wanted, source)
        if gpu.get(most) is not None and (best is None or best < found):
            return _unreadable("gpu_health.pcie_gen", gpu, most, wanted, source)
        if wanted is None:
            reason = "PCIe generation in use: neither a board nor the GPU says which it should be"
            return unknown("gpu_health.pcie_gen", gpu.subject, reason, _AGAIN)
        if best is not None and best < wanted:
            host, device = number(gpu.get(f"{_GEN}/Host Max")), number(gpu.get(f"{_GEN}/Device Max"))
            parts = [f"{name} {v}" for name, v in (("host", host), ("GPU", device)) if v is not None]
            reason = f"the link can reach generation {best} at most ({', '.join(parts) or 'host or GPU limits it'})"
            return Check("gpu_health.pcie_gen", gpu.subject, "fail", reason, best, wanted, "", source, _SLOT)
        if found >= wanted:
            reason = "PCIe generation in use"
            return Check("gpu_health.pcie_gen", gpu.subject, "pass", reason, found, wanted, "", source)
        idle = _saves_power(gpu)
        if idle is None:
            reason = f"generation {found} in use, and no performance state says whether the GPU saves power"
            return unknown("gpu_health.pcie_gen", gpu.subject, reason, "Read it under load.", wanted, source)
        if idle and limits.board is None and own is None:
            reason = f"PCIe generation in use in {gpu.get('Performance State')}, where the driver slows the link"
            return Check("gpu_health.pcie_gen", gpu.subject, "pass", reason, found, wanted, "", source)
        verdict: Verdict = "warn" if idle else "fail"
        state = gpu.get("Performance State")
        reason = f"PCIe generation in use in {state}" + (", where the driver slows the link" if idle else "")
        remedy = "Read it again under load." if idle else _SLOT
        return Check("gpu_health.pcie_gen", gpu.subject, verdict, reason, found, wanted, "", source, remedy)

    names = [line] if query.form == "csv" else [_LINK]
    return _fold(map(one, query.gpus)) if _wanted(query, limits, names) else []


# --- state

_REASON = "Clocks Event Reasons"
_COOL = "Look at fans, air or coolant, power supplies and their cables; then at nvidia-smi -q -d PERFORMANCE."
_SLOW: dict[str, Verdict] = {
    "HW Slowdown": "fail",
    "HW Thermal Slowdown": "fail",
    "HW Power Brake Slowdown": "fail",
    "SW Thermal Slowdown": "warn",
}
_BITS = {
    0x1: "Idle",
    0x2: "Applications Clocks Setting",
    0x4: "SW Power Cap",
    0x8: "HW Slowdown",
    0x10: "Sync Boost",
    0x20: "SW Thermal Slowdown",
    0x40: "HW Thermal Slowdown",
    0x80: "HW Power Brake Slowdown",
}


def _mask(gpu: Gpu) -> int | None:
    """Return the bit mask of a csv's clocks_event_reasons.active."""
    found = re.fullmatch(r"0x([0-9A-Fa-f]{1,16})", printed(gpu.get(f"{_REASON}/Active")) or "")
    return int(found[1], 16) if found else None


def _active(gpu: Gpu) -> list[str]:
    """Return the reasons that hold the clocks down."""
    named = [name for name, value in gpu.section(_REASON).items() if printed(value) == "Active"]
    mask = _mask(gpu) or 0
    return sorted({*named, *(name for bit, name in _BITS.items() if mask & bit)})


def _clocks(query: Query, limits: Limits) -> list[Check]:
    if not _wanted(query, limits, [_REASON]):
        return []
    source, remedy = "NVML clocks event reasons", _COOL
    asked = [name for name in _SLOW if query.form != "csv" or _somewhere(query, [f"{_REASON}/{name}"])]
    checks: list[Check] = []
    for gpu in query.gpus:
        active = _active(gpu)
        bad = [name for name in _SLOW if name in active]
        lines = [f"{_REASON}/{name}" for name in asked]
        if query.form == "csv" and _somewhere(query, [f"{_REASON}/Active"]) and _mask(gpu) is None:
            lines.append(f"{_REASON}/Active")
        unread = [
            line
            for line in lines
            if line == f"{_REASON}/Active" or printed(gpu.get(line)) not in ("Active", "Not Active")
        ]
        if limits.board is None and any(printed(gpu.get(line)) == "Not Active" for line in lines):
            # An older GPU has not all of them.
            unread = [line for line in unread if gpu.get(line) is None or printed(gpu.get(line)) is not None]
        if bad:
            verdict: Verdict = "fail" if any(_SLOW[name] == "fail" for name in bad) else "warn"
            reason = "the clocks are held down"
            checks.append(
                Check("gpu_health.clocks", gpu.subject, verdict, reason, ", ".join(bad), "none", "", source, remedy)
            )
        elif unread:
            checks.append(_unreadable("gpu_health.clocks", gpu, unread[0], "none", source))
        else:
            reason = "no slowdown; idle, application clocks and the power cap are harmless"
            value = "none"
            checks.append(Check("gpu_health.clocks", gpu.subject, "pass", reason, value, "none", "", source))
    return _fold(checks)


def _mig(query: Query, limits: Limits) -> list[Check]:
    checks: list[Check] = []
    remedy = "Disable MIG (nvidia-smi -mig 0) and reset the GPU."
    for line, reason in (("MIG Mode/Current", "MIG now"), ("MIG Mode/Pending", "MIG after the next reset")):
        if _somewhere(query, [line]) or ((limits.whole or query.whole) and line == "MIG Mode/Current"):
            checks += _fold(
                _word(
                    "gpu_health.mig",
                    gpu,
                    line,
                    "Disabled",
                    "units use whole GPUs",
                    reason,
                    remedy,
                    ["Enabled"],
                    absent=True,
                )
                for gpu in query.gpus
            )
    return checks


def _persistence(query: Query, limits: Limits) -> list[Check]:
    line = "Persistence Mode"
    remedy = "Start nvidia-persistenced; its journal says why it is not at work."
    if not _wanted(query, limits, [line]):
        return []
    checks = [
        _word("gpu_health.persistence", gpu, line, "Enabled", "role cuda", "persistence mode", remedy, ["Disabled"])
        for gpu in query.gpus
    ]
    # Of a board that is not ours it says nothing about the GPU: nobody has asked for it there.
    return _fold(_softer(check) if limits.board is None else check for check in checks)


_ACTIONS = ("Reset", "GPU Reset", "Reboot", "Node Reboot", "Drain P2P", "Drain and Reset")


def _recovery(query: Query, limits: Limits) -> list[Check]:
    """Judge the recovery action; drivers before 565 say only whether a reset is required, and older ones nothing."""
    action = "GPU Recovery Action"
    source = "driver (XID 154 names the same action)"
    checks: list[Check] = []
    due = (limits.whole or query.whole) and (query.branch or 0) >= _RECOVERY_SINCE
    if _somewhere(query, [action]) or due:
        remedy = "Drain the node and do what the driver asks for; its XID is in the kernel log."
        checks += _fold(
            _word(
                "gpu_health.recovery",
                gpu,
                action,
                "None",
                source,
                "what the driver asks for",
                remedy,
                _ACTIONS,
                absent=limits.board is None,
            )
            for gpu in query.gpus
        )
    for line in ("GPU Reset Status/Reset Required", "GPU Reset Status/Drain and Reset Recommended"):
        if _somewhere(query, [line]):
            found = [
                _word("gpu_health.recovery", gpu, line, "No", source, line, _RESET, ["Yes"], absent=True)
                for gpu in query.gpus
            ]
            # The newer line is the judgement; these are shown only when they say something else.
            checks += [check for check in found if check.verdict != "pass"] if checks else _fold(found)
    return checks


_OWN_LIMITS = ("GPU Max Operating Temp", "GPU Slowdown Temp")


def _degrees(gpu: Gpu, line: str) -> int | None:
    """Return a temperature; only a csv may leave the unit out, elsewhere a number without it is cut off."""
    value = gpu.get(line)
    return number(value, "C") if gpu.columns or (value or "").rstrip().endswith("C") else None


def _temperature(query: Query, limits: Limits) -> list[Check]:
    line = "Temperature/GPU Current Temp"
    margin_line = "Temperature/GPU T.Limit Temp"
    remedy = "Look at fans, air flow or coolant of the node."
    margins = _somewhere(query, [margin_line])

    def one(gpu: Gpu) -> Check:
        found, margin = _degrees(gpu, line), _degrees(gpu, margin_line)
        if found is None:
            return _unreadable("gpu_health.temperature", gpu, line, limits.temperature, "option temperature")
        own = [v for n in _OWN_LIMITS if (v := _degrees(gpu, f"Temperature/{n}")) is not None and v > 0]
        if margin is None and printed(gpu.get(margin_line)) is not None:
            return _unreadable("gpu_health.temperature", gpu, margin_line, limits.temperature, "the GPU's own T.Limit")
        # Cards of other boards may be of several generations, each with the limits it has.
        mixed = limits.board is None and any(gpu.get(f"Temperature/{n}") is not None for n in _OWN_LIMITS)
        if gpu.get(margin_line) is None and not mixed and (margins or not (own or gpu.columns)):
            # Every report has the GPU's limit below its temperature: one without it is cut off.
            return _unreadable("gpu_health.temperature", gpu, margin_line, limits.temperature, "the GPU's own T.Limit")
        if limits.temperature is not None:
            limit, source = limits.temperature, "option temperature"
        elif margin is not None:
            limit, source = float(found + margin), "the GPU's own T.Limit"
        elif own:
            limit, source = float(min(own)), "the GPU's own limit"
        else:
            limit, source = _HOTTEST, "docs/thresholds.md (estimate)"
        return compare(
            "gpu_health.temperature",
            gpu.subject,
            found,
            limit,
            ok=found <= limit,
            unit="C",
            limit_source=source,
            reason="temperature of the GPU",
            remedy=remedy,
        )

    if not _wanted(query, limits, [line]):
        return []
    checks = [one(gpu) for gpu in query.gpus]
    good = [check for check in checks if check.verdict == "pass"]
    if len(good) < 2:
        return checks
    hottest = max(good, key=lambda check: int(check.value or 0))
    name = f"hottest of {len(good)} GPUs, {hottest.subject}"
    return [*(check for check in checks if check.verdict != "pass"), dataclasses.replace(hottest, subject=name)]


# --- growth

_COUNTERS: tuple[tuple[str, Callable[[Gpu], int | None]], ...] = (
    ("volatile uncorrectable errors", lambda gpu: _uncorrectable(gpu, "Volatile")[0]),
    ("aggregate uncorrectable errors", lambda gpu: _uncorrectable(gpu, "Aggregate")[0]),
    ("rows remapped for uncorrectable errors", lambda gpu: number(gpu.get(f"{_REMAP}/Uncorrectable Error"))),
    ("rows remapped for correctable errors", lambda gpu: number(gpu.get(f"{_REMAP}/Correctable Error"))),
)

# Microseconds that a reason held the clocks down since the driver was loaded; older drivers do not print them. The
# flags show only the moment they are read in, these show the whole load.
_HELD = f"{_REASON} Counters"
_HELD_DOWN: dict[str, Verdict] = {
    "HW Thermal Slowdown": "fail",
    "HW Power Braking": "fail",
    "SW Thermal Slowdown": "warn",
}


def _held_down(gpu: Gpu, old: Gpu, source: str) -> list[Check]:
    """Return what held the clocks of a GPU down since the earlier reading."""
    grown: dict[str, int] = {}
    for name in _HELD_DOWN:
        then, now = number(old.get(f"{_HELD}/{name}"), "us"), number(gpu.get(f"{_HELD}/{name}"), "us")
        if then is not None and gpu.get(f"{_HELD}/{name}") is None:
            reason = f"there is no line {_HELD}/{name}, which the earlier reading has"
            return [unknown("gpu_health.growth", gpu.subject, reason, _AGAIN, 0, source)]
        if then is not None and now is not None and now > then:
            grown[name] = now - then
    if not grown:
        return []
    verdict: Verdict = "fail" if any(_HELD_DOWN[name] == "fail" for name in grown) else "warn"
    said = ", ".join(f"{name} for {time} us" for name, time in grown.items())
    reason = f"the clocks were held down since the earlier reading: {said}"
    worst = max(time for name, time in grown.items() if _HELD_DOWN[name] == verdict)
    return [Check("gpu_health.growth", gpu.subject, verdict, reason, worst, 0, "us", source, _COOL)]


def _growth(query: Query, before: Query) -> list[Check]:
    """Hold each GPU's counters against the earlier reading's. What grew during a gate is a failing GPU, however few."""
    source = "the earlier reading (option before)"
    if not before.gpus:
        reason = before.problems[0].text if before.problems else "it describes no GPU"
        return [unknown("gpu_health.growth", "node", f"the earlier reading: {reason}", "", 0, source)]
    checks: list[Check] = []
    for gpu in query.gpus:
        old = next((other for other in before.gpus if _same(gpu, other)), None)
        if old is None:
            reason = "this GPU is not in the earlier reading"
            checks.append(unknown("gpu_health.growth", gpu.subject, reason, "", 0, source))
            continue
        held = _held_down(gpu, old, source)
        checks += held
        grown: list[str] = []
        total = 0
        unread: list[str] = []
        for name, count in _COUNTERS:
            then, now = count(old), count(gpu)
            if then is None or now is None:
                unread.append(name)
            elif now > then:
                grown.append(f"{name} {then} to {now}")
                total += now - then
            elif now < then and not name.startswith("volatile"):
                unread.append(f"{name} fell from {then} to {now}")
        if grown:
            reason = f"grew since the earlier reading: {', '.join(grown)}"
            checks.append(Check("gpu_health.growth", gpu.subject, "fail", reason, total, 0, "events", source, _REPLACE))
        elif unread:
            reason = f"cannot be compared: {', '.join(unread)}"
            checks.append(unknown("gpu_health.growth", gpu.subject, reason, "", 0, source))
        elif not held:
            reason = "nothing was added since the earlier reading"
            checks.append(Check("gpu_health.growth", gpu.subject, "pass", reason, 0, 0, "events", source))
    return _fold(checks)


def _same(gpu: Gpu, other: Gpu) -> bool:
    """Return whether two readings are of one GPU: by UUID where both have it, else by bus id."""
    a, b = printed(gpu.get("GPU UUID")), printed(other.get("GPU UUID"))
    if a and b:
        return a == b
    return bool(gpu.bus_id) and gpu.bus_id.lower() == other.bus_id.lower()

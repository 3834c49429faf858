# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether the driver, its GSP firmware and Fabric Manager on a node are one version and at work. Pure functions."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _smi_query
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cuda_pins import upstream_version
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nvidia_topo import shown
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, compare, unknown

PINNED = "pinned version"
RUNNING_DRIVER = "version of the running driver"
BOARD = "board with NVSwitch"

_REBOOT = "Reboot the node: the new driver is installed, the kernel still runs the old one."
CHECKS: dict[str, str] = {
    "gpu_driver.output": "Whether nvidia-smi -q is one whole report without an error message beside it.",
    "gpu_driver.version": "Version of the driver that runs, held against the pinned one in the option version.",
    "gpu_driver.gpus": (
        "Number of GPUs the driver announces and describes, which must agree, held against the option gpus."
    ),
    "gpu_driver.gsp": "Version of each GPU's GSP firmware, held against the version of the running driver.",
    "gpu_driver.persistence": "Persistence mode of each GPU, which must be Enabled.",
    "gpu_driver.fabric_manager": (
        "Version of Fabric Manager's daemon and package, held against the running driver's to the last digit, and the "
        "state of its service, on boards with NVSwitch."
    ),
    "gpu_driver.fabric_state": (
        "State and status of each GPU's registration with the NVLink fabric, which must be Completed and Success on "
        "boards with NVSwitch."
    ),
}
_FM_VERSION = re.compile(r"Fabric Manager version is\s*:\s*(\S+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Gpu:
    """What `nvidia-smi -q` says about one GPU; None is a line it did not print."""

    index: int
    bus_id: str
    persistence: str | None
    gsp: str | None
    fabric_state: str | None
    fabric_status: str | None

    @property
    def subject(self) -> str:
        """Name of the GPU in check results."""
        return f"GPU {self.index} {self.bus_id}"


@dataclasses.dataclass(frozen=True, slots=True)
class Smi:
    """What `nvidia-smi -q` says: the running driver, the number of GPUs it announces, and those it describes."""

    driver: str | None
    attached: int | None
    gpus: tuple[Gpu, ...]
    problems: tuple[str, ...] = ()
    nothing: str | None = None
    """Why the text is no report at all."""

    @property
    def branch(self) -> int | None:
        """Return the driver's branch, 580 of 580.95.05."""
        found = re.match(r"([0-9]{2,4})\.", self.driver or "")
        return int(found[1]) if found else None


@dataclasses.dataclass(frozen=True, slots=True)
class FabricManager:
    """The readings about Fabric Manager. An age is in seconds, None when it could not be read or nothing runs."""

    package: Evidence
    daemon: Evidence
    service: Evidence
    daemon_age_s: float | None
    package_age_s: float | None


def parse_smi(text: str) -> Smi:
    """Return what this gate judges of `nvidia-smi -q`. A corrupted InfoROM is gpu_health's business."""
    query = _smi_query.parse_text(text)
    return Smi(
        query.driver,
        query.attached,
        tuple(
            Gpu(
                gpu.index,
                gpu.bus_id,
                gpu.get("Persistence Mode"),
                gpu.get("GSP Firmware Version"),
                gpu.get("Fabric/State"),
                gpu.get("Fabric/Status"),
            )
            for gpu in query.gpus
        ),
        tuple(problem.text for problem in query.problems if problem.kind != "inforom"),
        None if query.gpus or query.driver else _nothing_read(text),
    )


def _nothing_read(text: str) -> str:
    """Return why a text is no report at all, with its first line."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    return f"no report of nvidia-smi -q: {shown(first)}" if first else "the output is empty"


def reboot_required(smi: Evidence) -> bool:
    """Return whether the tool says that the kernel still runs another driver, whatever its exit status."""
    return _smi_query.MISMATCH in smi.stdout or _smi_query.MISMATCH in smi.stderr


def properties(text: str) -> dict[str, str]:
    """Return the properties of `systemctl show`."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def stale_daemon(fabric_manager: FabricManager) -> bool:
    """Return whether the daemon was started before its package was installed, so that it is another version.

    Both are ages, not dates: the clock of a new node is set after its boot and dates would lie.
    """
    daemon, package = fabric_manager.daemon_age_s, fabric_manager.package_age_s
    return daemon is not None and package is not None and package + 1 < daemon


def judge(
    smi: Evidence,
    version: str,
    gpus: int | None,
    fabric_manager: FabricManager | None,
    nvswitch: bool | None = None,
) -> list[Check]:
    """Return the checks. A board without NVSwitch has no fabric to be judged; without `nvswitch` Fabric Manager tells.

    `fabric_manager` is None, too, where there is only one captured file, which cannot show the daemon.
    """
    nvswitch = fabric_manager is not None if nvswitch is None else nvswitch
    if reboot_required(smi):
        # Nothing was measured: the version that runs is not known, only that it is not the library's.
        mismatch = f"{_smi_query.MISMATCH}, the kernel still runs another driver: a reboot is needed"
        return [unknown("gpu_driver.version", "driver", mismatch, _REBOOT, version, PINNED)]
    if (reason := refusal(smi)) is not None:
        remedy = "Install the driver (role cuda) and look into the kernel log for NVRM."
        names = ["gpu_driver.version", "gpu_driver.gsp", "gpu_driver.persistence"]
        names += ["gpu_driver.fabric_manager"] if fabric_manager else []
        names += ["gpu_driver.fabric_state"] if nvswitch else []
        return [unknown(name, "driver", reason, remedy, version, PINNED) for name in names]
    read = parse_smi(smi.stdout)
    by_hand = "Run nvidia-smi -q by hand and look into the kernel log for NVRM."
    if read.nothing is not None and not read.problems:
        read = dataclasses.replace(read, problems=(read.nothing,))
    return [
        *(unknown("gpu_driver.output", "driver", problem, by_hand) for problem in read.problems),
        *_driver(read, version, gpus),
        *(_fabric_manager(fabric_manager, read.driver) if fabric_manager else []),
        *(_fabric_states(read.gpus) if nvswitch else []),
        *_gsp(read),
        *_each(read, "gpu_driver.persistence", "persistence", "Enabled", "persistence mode", _PERSISTENCE_REMEDY),
    ]


_GSP_LINE_SINCE = 470
"""The driver branch that brought the line GSP Firmware Version."""
_GSP_NEEDED_SINCE = 560
"""The branch whose open kernel modules, which need the firmware, became the usual ones; before it could be off."""


def _gsp(read: Smi) -> list[Check]:
    """Judge the GSP firmware; a driver that is too old for the line has nothing to be judged."""
    if read.branch is not None and read.branch < _GSP_LINE_SINCE and all(gpu.gsp is None for gpu in read.gpus):
        return []
    off = bool(read.gpus) and all(gpu.gsp == "N/A" for gpu in read.gpus)
    if off and read.branch is not None and read.branch < _GSP_NEEDED_SINCE:
        reason = "the driver works without GSP firmware, so none of another version is loaded"
        return [Check("gpu_driver.gsp", "all GPUs", "pass", reason, "N/A", read.driver, "", RUNNING_DRIVER)]
    return _each(read, "gpu_driver.gsp", "gsp", read.driver, "GSP firmware", _GSP_REMEDY)


_GSP_REMEDY = "Reload the driver or reboot: the firmware comes with the driver's package and is loaded with it."
_PERSISTENCE_REMEDY = "Start nvidia-persistenced; its journal says why it is not at work."


def _driver(read: Smi, version: str, gpus: int | None) -> list[Check]:
    """Judge the driver's version and the number of GPUs it announces and describes."""
    checks = [
        compare(
            "gpu_driver.version",
            "driver",
            read.driver,
            version,
            ok=read.driver == version,
            limit_source=PINNED,
            reason="the driver that runs",
            remedy="Run the role cuda, which installs the pinned version.",
        )
    ]
    described = len(read.gpus)
    if read.attached is None or read.attached != described:
        announced = "no number of GPUs" if read.attached is None else f"{read.attached} GPUs"
        reason = f"nvidia-smi -q announces {announced} and describes {described}, the output is not whole"
        checks.append(unknown("gpu_driver.gpus", "driver", reason, "Run nvidia-smi -q by hand.", gpus, PINNED))
    elif gpus is not None:
        checks.append(
            compare(
                "gpu_driver.gpus",
                "driver",
                described,
                gpus,
                ok=described == gpus,
                unit="GPUs",
                limit_source="option gpus",
                reason="GPUs the driver sees",
                remedy="Look for XID 79 in the kernel log and for the missing device with lspci.",
            )
        )
    if not read.gpus:
        checks.append(unknown("gpu_driver.gpus", "driver", "nvidia-smi -q describes no GPU", "", gpus, PINNED))
    return checks


def _fabric_manager(read: FabricManager, driver: str | None) -> list[Check]:
    """Judge the daemon's version before the package's: a running daemon of another version is what hurts."""
    name = "gpu_driver.fabric_manager"
    wanted = driver or "of the running driver's version"
    pin = f"Install nvidia-fabricmanager {wanted} (role cuda) and restart the service; it hits every unit of the board."
    checks = [
        _version_check(name, "daemon nv-fabricmanager", read.daemon, _daemon_version(read.daemon), driver, pin),
        _version_check(name, "package", read.package, _package_version(read.package), driver, pin),
    ]
    state = properties(read.service.stdout)
    reason = refusal(read.service)
    if reason is not None or "ActiveState" not in state:
        checks.append(unknown(name, "service nvidia-fabricmanager", reason or "systemd printed no ActiveState"))
    else:
        found = state["ActiveState"]
        detail = "" if found == "active" else f" (load {state.get('LoadState')}, result {state.get('Result')})"
        checks.append(
            compare(
                name,
                "service nvidia-fabricmanager",
                found,
                "active",
                ok=found == "active",
                limit_source=BOARD,
                reason=f"state of the service{detail}",
                remedy="See journalctl -u nvidia-fabricmanager; a version apart from the driver's stops it.",
            )
        )
    checks += _daemon_times(read, state)
    if stale_daemon(read):
        seconds = f"{(read.daemon_age_s or 0) - (read.package_age_s or 0):.0f}"
        checks.append(
            Check(
                name,
                "daemon nv-fabricmanager",
                "fail",
                f"the daemon started {seconds} s before its package was installed, so the old version still runs",
                "started before the package was installed",
                "started after it",
                "",
                BOARD,
                "Restart nvidia-fabricmanager; it hits every unit of the board.",
            )
        )
    return checks


def _daemon_times(read: FabricManager, state: dict[str, str]) -> list[Check]:
    """Return an `unknown` when nothing says whether the daemon that runs is older than its package."""
    if state.get("ActiveState") != "active":
        return []
    name, subject = "gpu_driver.fabric_manager", "daemon nv-fabricmanager"
    gone = [p for p in (_PID, _STARTED) if not re.fullmatch(r"[1-9][0-9]{0,19}", state.get(p, ""))]
    if gone:
        said = ", ".join(f"{p}={state[p]}" if p in state else f"no {p}" for p in gone)
        reason = f"the service is active and systemctl show printed {said}, so the running daemon is not known"
        return [unknown(name, subject, reason, "Run systemctl show nvidia-fabricmanager by hand.", None, BOARD)]
    if read.package_age_s is None or read.daemon_age_s is None:
        what = "the package's installation" if read.package_age_s is None else "the daemon's start"
        reason = f"the time of {what} could not be read, so the daemon may be older than its package"
        return [unknown(name, subject, reason, "Look at /proc/uptime and /var/lib/dpkg/info by hand.", None, BOARD)]
    return []


_PID, _STARTED = "MainPID", "ExecMainStartTimestampMonotonic"


def _daemon_version(evidence: Evidence) -> str | None:
    found = _FM_VERSION.search(evidence.stdout) or _FM_VERSION.search(evidence.stderr)
    return found[1] if found else None


def _package_version(evidence: Evidence) -> str | None:
    """Return the upstream version of an installed package from `dpkg-query -W -f '${db:Status-Status} ${Version}'`."""
    words = evidence.stdout.split()
    if evidence.rc == 1 and "no packages found" in evidence.stderr:
        return "not installed"
    if len(words) != 2:
        return None
    return upstream_version(words[1]) if words[0] == "installed" else words[0]


def _version_check(
    name: str, subject: str, evidence: Evidence, found: str | None, driver: str | None, remedy: str
) -> Check:
    """Compare a version with the running driver's, to the last digit."""
    if found is None:
        reason = refusal(evidence) or f"{evidence.command} printed no version"
        return unknown(name, subject, reason, remedy, driver, RUNNING_DRIVER)
    return compare(
        name,
        subject,
        found,
        driver,
        ok=found == driver,
        limit_source=RUNNING_DRIVER,
        reason="Fabric Manager must be exactly the driver's version",
        remedy=remedy,
    )


def _fabric_states(gpus: Sequence[Gpu]) -> list[Check]:
    """Judge every GPU: one that did not register with the fabric loses peer access and is listed all the same."""
    checks = []
    for gpu in gpus:
        name, wanted = "gpu_driver.fabric_state", "Completed, Success"
        if gpu.fabric_state is None or gpu.fabric_status is None:
            missing = "State" if gpu.fabric_state is None else "Status"
            reason = f"nvidia-smi -q has no Fabric {missing} for it"
            checks.append(unknown(name, gpu.subject, reason, "", wanted, BOARD))
            continue
        found = f"{gpu.fabric_state}, {gpu.fabric_status}"
        checks.append(
            compare(
                name,
                gpu.subject,
                found,
                wanted,
                ok=found == wanted,
                limit_source=BOARD,
                reason="the GPU's registration with the NVLink fabric (state, status)",
                remedy="Restart nvidia-fabricmanager when the board is drained; a GPU that stays out needs a reset.",
            )
        )
    return checks


def _each(read: Smi, check: str, field: str, limit: str | None, reason: str, remedy: str) -> list[Check]:
    """Compare one field of every GPU with one value."""
    source = RUNNING_DRIVER if field == "gsp" else "role cuda"
    return [
        compare(
            check,
            gpu.subject,
            getattr(gpu, field),
            limit,
            ok=getattr(gpu, field) == limit,
            limit_source=source,
            reason=reason,
            remedy=remedy,
        )
        for gpu in read.gpus
    ]

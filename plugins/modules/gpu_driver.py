# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate gpu_driver: driver, GSP firmware and Fabric Manager are one version and at work."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_driver
short_description: Prove that the GPU driver and Fabric Manager are the pinned version and at work
version_added: 0.1.0
description:
  - Reads the driver that B(runs) with C(nvidia-smi -q), not only the package that is installed.
  - On a board with NVSwitch (O(fabric_manager=true)) it holds Fabric Manager against the driver, to the last digit
    (the running daemon's own
    answer, the package, and whether the daemon was started before its package was installed), wants its service
    active, and wants
    Fabric State C(Completed) and Status C(Success) on B(every) GPU.
  - Holds the GSP firmware of every GPU against the driver, and wants persistence mode on.
  - The words C(Driver/library version mismatch) mean that the node needs a reboot, whatever the exit status. The
    verdict is V(unknown), as nothing could be measured, and RV(reboot_required) is set.
  - One captured file shows the driver, GSP firmware, persistence and Fabric State of each GPU. What runs as Fabric
    Manager is in other files, so it is judged only live, in a directory, or in stored evidence.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  version:
    description: Version the driver must have, for example V(580.95.05).
    type: str
    required: true
  fabric_manager:
    description: Whether the board has NVSwitch and therefore needs Fabric Manager (HGX H100 8-GPU has, HGX H100
      4-GPU has not).
    type: bool
    required: true
  fabric_manager_package:
    description: Name of Fabric Manager's package.
    type: str
    default: nvidia-fabricmanager
  gpus:
    description: Number of GPUs the driver must see. Without it the number is not judged, only that the output is whole.
    type: int
  allow_pending:
    description:
      - Do not fail the task when the node needs a reboot (RV(reboot_required)) or Fabric Manager a restart
        (RV(restart_required)), so that the caller
        can see to it and check again. The verdict is the same.
    type: bool
    default: false
seealso:
  - module: ai_infra.gpu_rack.gate
"""

EXAMPLES = r"""
- name: Prove the driver of an HGX H100 8-GPU node
  ai_infra.gpu_rack.gpu_driver:
    version: 580.95.05
    fabric_manager: true
    gpus: 8
    evidence_dir: /var/lib/gpu_rack/evidence/20261130T120000Z/hardware

- name: Judge a support bundle again (a directory, or a gpu_driver.json of an earlier run)
  ai_infra.gpu_rack.gpu_driver:
    version: 580.95.05
    fabric_manager: true
    captured: /tmp/bundle
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
  sample: >-
    gpu_driver.fabric_manager daemon nv-fabricmanager: fail, measured 580.82.07, limit 580.95.05 (version of the
    running driver).
gate:
  description: Name of the gate.
  returned: always
  type: str
  sample: gpu_driver
checks:
  description: Every judged fact, with value, limit, source of the limit, reason and remedy.
  returned: always
  type: list
  elements: dict
evidence:
  description: The commands that were run, how they ended, and the SHA-256 of what they printed.
  returned: always
  type: list
  elements: dict
reboot_required:
  description: Whether the kernel still runs another driver than the one that is installed.
  returned: always
  type: bool
restart_required:
  description: Whether the Fabric Manager that runs was started before its package was installed.
  returned: always
  type: bool
"""

import math
import re

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _gpu_driver
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "version": {"type": "str", "required": True},
    "fabric_manager": {"type": "bool", "required": True},
    "fabric_manager_package": {"type": "str", "default": "nvidia-fabricmanager"},
    "gpus": {"type": "int"},
    "allow_pending": {"type": "bool", "default": False},
}
_SERVICE = "nvidia-fabricmanager.service"
_PROPERTIES = "LoadState,ActiveState,SubState,Result,MainPID,ExecMainStartTimestampMonotonic"


def read_fabric_manager(source: Source, package: str) -> _gpu_driver.FabricManager:
    """Read what is needed to know which Fabric Manager runs."""
    service = source.read(
        ["systemctl", "show", _SERVICE, f"--property={_PROPERTIES}"], "systemctl-show-fabricmanager.txt", primary=False
    )
    state = _gpu_driver.properties(service.stdout)
    return _gpu_driver.FabricManager(
        package=source.read(
            ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}\\n", package],
            "dpkg-query-fabricmanager.txt",
            primary=False,
        ),
        daemon=source.read(
            [_daemon(source, state.get("MainPID", "0")), "--version"], "nv-fabricmanager-version.txt", primary=False
        ),
        service=service,
        daemon_age_s=_daemon_age(source, state.get("ExecMainStartTimestampMonotonic", "0")),
        package_age_s=_package_age(source, package),
    )


def _daemon(source: Source, pid: str) -> str:
    """Return the program to ask for its version: the file the running process was started from, even if it is deleted.

    A daemon that was started by an interpreter or is not running cannot be asked this way; then it is the one on PATH.
    """
    if re.fullmatch(r"[1-9][0-9]*", pid):
        link = source.read(["readlink", f"/proc/{pid}/exe"], "readlink-fabricmanager-exe.txt", primary=False)
        if link.rc == 0 and re.search(r"/nv-fabricmanager( \(deleted\))?$", link.stdout.strip()):
            return f"/proc/{pid}/exe"
    return "nv-fabricmanager"


def _daemon_age(source: Source, started_us: str) -> float | None:
    """Return the seconds since the daemon's start, None when it does not run. systemd counts from the node's boot."""
    uptime = source.read(["cat", "/proc/uptime"], "uptime.txt", primary=False)
    try:
        seconds = float(uptime.stdout.split()[0]) - int(started_us) / 1e6
    except (IndexError, ValueError):
        return None
    return seconds if started_us != "0" and math.isfinite(seconds) else None


def _package_age(source: Source, package: str) -> float | None:
    """Return the seconds since dpkg unpacked the package: it writes the package's list of files then."""
    listing = source.read(
        ["stat", "--format=%Y", f"/var/lib/dpkg/info/{package}.list"], "stat-fabricmanager-list.txt", primary=False
    )
    now = source.read(["date", "+%s"], "date.txt", primary=False)
    try:
        age = float(now.stdout) - float(listing.stdout)
    except ValueError:
        return None
    return age if math.isfinite(age) else None


def main() -> None:
    """Read the tools, judge, and report."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, positive=["gpus"])
    params = module.params
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)+", params["version"]):
        module.fail_json(msg=f"version: {params['version']!r} is no version of a driver. Use one such as 580.95.05.")
    source = Source(params["captured"], params["timeout"])
    smi = source.read(["nvidia-smi", "-q"], "nvidia-smi-q.txt", "nvidia-smi-q")
    nvswitch = params["fabric_manager"]
    fabric_manager: _gpu_driver.FabricManager | None = None
    if nvswitch and not source.single_file:
        fabric_manager = read_fabric_manager(source, params["fabric_manager_package"])
    checks = _gpu_driver.judge(smi, params["version"], params["gpus"], fabric_manager, nvswitch)
    reboot = _gpu_driver.reboot_required(smi)
    restart = fabric_manager is not None and _gpu_driver.stale_daemon(fabric_manager)
    if params["allow_pending"] and (reboot or restart):
        params["enforce"] = False
    finish_gate(module, "gpu_driver", checks, source.used, reboot_required=reboot, restart_required=restart)


if __name__ == "__main__":
    main()

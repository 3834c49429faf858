# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether the pinned packages belong together. Pure functions, no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def upstream_version(version: str) -> str:
    """Return the upstream part of a Debian version: without the epoch and without the distribution's revision."""
    without_epoch = version.split(":", 1)[-1]
    return without_epoch.rsplit("-", 1)[0]


def pin_errors(
    driver_version: str,
    driver_packages: Sequence[Mapping[str, str]],
    fabric_manager_packages: Sequence[Mapping[str, str]] = (),
) -> list[str]:
    """Return one sentence for each package whose upstream version is not exactly the driver's; empty is a pass.

    Fabric Manager stops at its start, and CUDA then answers "system not yet initialized", when it is one patch release
    apart from the driver (NVIDIA/gpu-operator issue 544), so nothing but equality will do.
    """
    groups = {"cuda_driver_packages": driver_packages, "cuda_fabric_manager_packages": fabric_manager_packages}
    return [
        f"{option}: {package['name']} is pinned to {found}, and the driver (cuda_driver_version) to {driver_version}. "
        "Pin both to exactly the same version: one patch release apart is refused by the driver."
        for option, packages in groups.items()
        for package in packages
        if (found := upstream_version(str(package["version"]))) != driver_version
    ]

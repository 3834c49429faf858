# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Filters around the NCCL linter and the driver's pins."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cuda_pins import pin_errors
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nccl_variables import hca_list, lint, parse_version


def nccl_lint(
    variables: Mapping[str, Any], placement: str = "library", link_layer: str | None = None, version: str = "2.27"
) -> list[str]:
    """Return what must be refused in a set of NCCL variables; an empty list is a pass."""
    if not isinstance(variables, Mapping):
        raise AnsibleFilterError(f"nccl_lint: a {type(variables).__name__} was given. Give a mapping of variables.")
    try:
        return lint(variables, placement, link_layer, parse_version(str(version)))
    except ValueError as exc:
        raise AnsibleFilterError(f"nccl_lint: {exc}") from exc


def nccl_hca(hcas: Sequence[str], port: int = 1) -> str:
    """Return NCCL_IB_HCA in the exact-match form."""
    if isinstance(hcas, str):
        raise AnsibleFilterError(f"nccl_hca: the string {hcas!r} was given. Give a list of device names.")
    return hca_list(hcas, port)


def cuda_pin_errors(
    driver_version: str,
    driver_packages: Sequence[Mapping[str, str]],
    fabric_manager_packages: Sequence[Mapping[str, str]] = (),
) -> list[str]:
    """Return the pins that do not carry the driver's version; an empty list is a pass."""
    return pin_errors(driver_version, driver_packages, fabric_manager_packages)


class FilterModule:
    """Register the filters."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"nccl_lint": nccl_lint, "nccl_hca": nccl_hca, "cuda_pin_errors": cuda_pin_errors}

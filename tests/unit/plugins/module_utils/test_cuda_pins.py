# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether pins belong together."""

from __future__ import annotations

import pytest
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cuda_pins import pin_errors, upstream_version


@pytest.mark.parametrize(
    ("version", "upstream"),
    [
        ("580.95.05-1", "580.95.05"),
        ("580.95.05-0ubuntu0.22.04.1", "580.95.05"),
        ("1:580.95.05-1", "580.95.05"),
        ("580.95.05", "580.95.05"),
        ("2.27.7-1+cuda13.0", "2.27.7"),
    ],
)
def test_upstream_version(version: str, upstream: str) -> None:
    assert upstream_version(version) == upstream


def test_equal_pins_pass() -> None:
    driver = [{"name": "nvidia-open", "version": "580.95.05-1"}]
    assert pin_errors("580.95.05", driver, [{"name": "nvidia-fabricmanager", "version": "580.95.05-3"}]) == []


def test_fabric_manager_one_patch_off_is_named_with_both_versions() -> None:
    (error,) = pin_errors("580.95.05", [], [{"name": "nvidia-fabricmanager", "version": "580.95.06-1"}])
    assert error.startswith("cuda_fabric_manager_packages: nvidia-fabricmanager is pinned to 580.95.06")
    assert "580.95.05" in error


def test_driver_package_of_another_release_is_named() -> None:
    (error,) = pin_errors("580.95.05", [{"name": "nvidia-persistenced", "version": "580.82.07-1"}])
    assert error.startswith("cuda_driver_packages: nvidia-persistenced is pinned to 580.82.07")

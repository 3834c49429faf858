# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The filters are thin shells; what they add is the refusal of a wrong type."""

from __future__ import annotations

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.ai_infra.gpu_rack.plugins.filter.nccl import FilterModule

FILTERS = FilterModule().filters()


def test_lint_takes_placement_link_layer_and_version() -> None:
    lint = FILTERS["nccl_lint"]
    assert lint({"TORCH_NCCL_BLOCKING_WAIT": 1}, "framework") == []
    assert len(lint({"NCCL_IB_GID_INDEX": 3}, "library", "infiniband", "2.27.7")) == 1


def test_hca() -> None:
    assert FILTERS["nccl_hca"](["mlx5_0", "mlx5_1"]) == "=mlx5_0:1,mlx5_1:1"


def test_pins() -> None:
    assert FILTERS["cuda_pin_errors"]("580.95.05", [{"name": "nvidia-open", "version": "580.95.05-1"}]) == []


def test_wrong_types_are_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="a list was given"):
        FILTERS["nccl_lint"](["NCCL_DEBUG=WARN"])
    with pytest.raises(AnsibleFilterError, match="Give it as"):
        FILTERS["nccl_lint"]({}, "library", None, "newest")
    with pytest.raises(AnsibleFilterError, match="the string 'mlx5_0'"):
        FILTERS["nccl_hca"]("mlx5_0")

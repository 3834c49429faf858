# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run an Ansible module in this process."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args

Run = Callable[..., dict[str, Any]]


def runner(module: ModuleType, capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs the module with arguments and returns what it printed."""

    def run(check_mode: bool = False, **args: Any) -> dict[str, Any]:
        with (
            patch_module_args({**args, "_ansible_check_mode": check_mode, "_ansible_diff": True}),
            pytest.raises(SystemExit),
        ):
            module.main()
        result: dict[str, Any] = json.loads(capsys.readouterr().out)
        result.pop("invocation", None)
        return result

    return run

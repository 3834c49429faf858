# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Run a module of the collection in this process, through its own main(), as Ansible would run it on a node."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
from typing import Any

from ansible.module_utils.testing import patch_module_args

_MODULES = "ansible_collections.ai_infra.gpu_rack.plugins.modules"


class ModuleBroken(Exception):
    """A module that gave no result, or was given options it does not know."""


def exists(name: str) -> bool:
    """Return whether the collection has the module."""
    return importlib.util.find_spec(f"{_MODULES}.{name}") is not None


def run_module(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what the module printed. A result without a verdict is an error of the call, not a judgement."""
    module = importlib.import_module(f"{_MODULES}.{name}")
    out = io.StringIO()
    with (
        patch_module_args({**arguments, "_ansible_check_mode": False}),
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
    ):
        module.main()
    text = out.getvalue()
    try:
        result: dict[str, Any] = json.loads(text)
    except ValueError:
        raise ModuleBroken(f"{name} printed no JSON: {text[:200]!r}") from None
    result.pop("invocation", None)
    if "verdict" not in result:
        raise ModuleBroken(f"{name}: {result.get('msg', 'no verdict in its result')}")
    return result

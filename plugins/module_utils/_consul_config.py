# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Pure part of consul_config: option names by Consul version and the two files."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

Version = tuple[int, int, int]

# (name today, first version that knows it, name before). Source: Consul's changelog of 1.11.0.
_TOKEN_NAMES: tuple[tuple[str, Version, str], ...] = (
    ("initial_management", (1, 11, 0), "master"),
    ("agent_recovery", (1, 11, 0), "agent_master"),
)
OLDEST: Version = (1, 8, 0)
"""The oldest version this was run with."""


def parse_version(text: str) -> Version | None:
    """Return the version from the output of `consul version`, None when it is not there."""
    match = re.search(r"^Consul v([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})", text, re.MULTILINE)
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def token_names(tokens: Mapping[str, str], version: Version | None) -> dict[str, str]:
    """Return acl.tokens under the names this version knows.

    An unknown version (check mode before the install) is a new one.
    """
    older = {new: old for new, since, old in _TOKEN_NAMES if version is not None and version < since}
    return {older.get(name, name): value for name, value in tokens.items()}


def render(config: Mapping[str, Any]) -> str:
    """Return canonical JSON: sorted keys, so that the same configuration is the same file."""
    return json.dumps(config, indent=2, sort_keys=True) + "\n"


def secrets(gossip_key: str | None, tokens: Mapping[str, str], version: Version | None) -> str | None:
    """Return the secrets file, None when there is no secret."""
    content: dict[str, Any] = {}
    if gossip_key:
        content["encrypt"] = gossip_key
    named = token_names(tokens, version)
    if named:
        content["acl"] = {"tokens": named}
    return render(content) if content else None

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""OpenSM: its configuration file, its own complaints about it, and sminfo's answer. Pure."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

_TOKEN = re.compile(r"Unrecognized token:\s*\"?([^\"\n]+?)\"?\s*$", re.MULTILINE)
_VERSION = re.compile(r"OpenSM\s+([0-9]\S*)")
# What only OpenSM says, in the journal of a start whose greeting is gone.
_OWN_WORDS = re.compile(
    r"Entering (?:MASTER|STANDBY|DISCOVERING|NOT-ACTIVE) state|SM port is (?:up|down)|SUBNET UP"
    r"|(?:Loading|Reading) Cached Option|Unrecognized token:|\bosm_\w+:"
)
_SMINFO = re.compile(
    r"^sminfo: sm lid ([0-9]{1,9}) sm guid (0x[0-9a-fA-F]{1,16}), activity count ([0-9]{1,10}) "
    r"priority ([0-9]{1,9}) state ([0-9]{1,9}) (\S+)",
    re.MULTILINE,
)


_STATES = {0: "SMINFO_NOTACT", 1: "SMINFO_DISCOVER", 2: "SMINFO_STANDBY", 3: "SMINFO_MASTER"}


@dataclasses.dataclass(frozen=True, slots=True)
class SmInfo:
    """The subnet manager a port answers to."""

    lid: int
    guid: str
    activity: int
    priority: int
    state: str
    code: int

    @property
    def contradiction(self) -> str | None:
        """What is wrong with the state as sminfo gives it twice, as a number and in words; None when both agree."""
        if _STATES.get(self.code) == self.state:
            return None
        return f"sminfo gives the state as {self.code} and as {self.state[:80]}, which do not belong together"


def render(settings: Mapping[str, Any]) -> str:
    """Return the text of opensm.conf, one `name value` a line in the order given. TRUE and FALSE as OpenSM writes
    them."""
    lines = ["# Written by Ansible (ai_infra.gpu_rack.opensm_config). Changes made here are lost."]
    for name, value in settings.items():
        text = {True: "TRUE", False: "FALSE"}[value] if isinstance(value, bool) else str(value)
        lines.append(f"{name} {text}")
    return "\n".join(lines) + "\n"


def parse_settings(text: str) -> dict[str, str]:
    """Return the settings of an opensm.conf."""
    pairs = (line.split(None, 1) for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))
    return {pair[0]: pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def unrecognized(text: str) -> list[str]:
    """Return the names OpenSM did not know, each once. It goes on without them and exits 0."""
    return list(dict.fromkeys(_TOKEN.findall(text)))


def version(text: str) -> str | None:
    """Return OpenSM's version from its greeting or log."""
    match = _VERSION.search(text)
    return match.group(1) if match else None


def speaks(text: str) -> bool:
    """Return whether the text holds a line of OpenSM at all: a greeting or something only OpenSM says."""
    return version(text) is not None or _OWN_WORDS.search(text) is not None


def parse_sminfo(text: str) -> SmInfo | None:
    """Return what sminfo says of the master subnet manager; None when it says nothing."""
    match = _SMINFO.search(text)
    if match is None:
        return None
    lid, guid, activity, priority, code, state = match.groups()
    return SmInfo(int(lid), guid, int(activity), int(priority), state, int(code))


def same_guid(one: str, other: str) -> bool:
    """Return whether two GUIDs are equal, however many zeros lead them."""
    try:
        return int(one, 16) == int(other, 16)
    except ValueError:
        return False

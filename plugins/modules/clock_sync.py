#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate: the clock follows one of the site's servers within a limit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: clock_sync
short_description: Judge the clock of a node by C(chronyc)
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - Reads C(chronyc -c tracking) and C(chronyc -c sources) and judges leap status, reference, selected source and
    offset.
  - C(chronyc) ends with status 0 for a clock that is not synchronised, so the words are judged and not the exit
    status.
  - With O(captured) the reports may also be in the form people see. One file may hold both, or the tracking
    report alone.
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  servers:
    description:
      - Names or addresses of the site's time servers. Any other configured source is a V(fail). Names are
        resolved on the node.
      - Empty means that every source is accepted.
    type: list
    elements: str
    default: []
  profile:
    description: Board profile the offset limit is taken from.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
    default: hgx_h100_8
  max_offset_ms:
    description: Largest accepted offset of the system time in milliseconds, in place of the profile's.
    type: float
  max_stratum:
    description: Largest accepted stratum.
    type: int
    default: 15
  wait:
    description:
      - Seconds to wait for a clock that passes, asking once a second. A clock needs a few seconds after
        C(chronyd) has started.
      - Captured output does not change and is judged at once.
    type: float
    default: 0
"""

EXAMPLES = r"""
- name: Prove that the clock follows the site's servers
  ai_infra.gpu_rack.clock_sync:
    servers: [ntp1.site.example, 10.0.0.10]
    wait: 30

# ansible localhost -m ai_infra.gpu_rack.clock_sync -a "captured=tracking.txt max_offset_ms=1"
- name: Judge stored reports
  ai_infra.gpu_rack.clock_sync:
    captured: bundle/chrony/
"""

RETURN = r"""
verdict:
  description: The worst verdict of all checks, one of V(pass), V(warn), V(unknown), V(fail).
  type: str
  returned: always
summary:
  description: One line that names the first of the worst checks with its measured value and limit.
  type: str
  returned: always
gate:
  description: Name of the gate, V(clock_sync).
  type: str
  returned: always
checks:
  description:
    - Every judged fact, C(clock_sync.leap), C(.reference), C(.source), C(.servers), C(.offset) and C(.output).
  type: list
  elements: dict
  returned: always
evidence:
  description: Command, exit status and digest of each reading; the output too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
offset_ms:
  description: Offset of the system time in milliseconds, null when it could not be read.
  type: float
  returned: always
waited:
  description: Seconds waited for the clock.
  type: float
  returned: always
"""

import socket
import time
from collections.abc import Iterable, Mapping
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._chrony import (
    GATE,
    ChronyError,
    Server,
    Tracking,
    is_source_line,
    judge,
    parse_sources,
    parse_tracking,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import (
    BLOCKING,
    Check,
    Evidence,
    unknown,
    worst,
)

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "servers": {"type": "list", "elements": "str", "default": []},
    "profile": {"type": "str", "choices": list(NAMES), "default": "hgx_h100_8"},
    "max_offset_ms": {"type": "float"},
    "max_stratum": {"type": "int", "default": 15},
    "wait": {"type": "float", "default": 0},
}
TRACKING = ("chronyc", "-n", "-c", "tracking")
# -n: addresses, which do not depend on reverse lookups; the site's names are resolved instead.
SOURCES = ("chronyc", "-n", "-c", "sources")
_REMEDY = "Start chronyd (systemctl status chrony) and run chronyc tracking by hand."


def resolve(names: Iterable[str]) -> set[str]:
    """Return the names with the addresses they resolve to on this host; a name that does not stands for itself."""
    known = set(names)
    for name in tuple(known):
        try:
            known.update(str(info[4][0]) for info in socket.getaddrinfo(name, None))
        except (OSError, UnicodeError):
            continue
    return known


def read(source: Source) -> tuple[Tracking | None, list[Server] | None, list[Check], list[Evidence]]:
    """Return both reports, the checks for what could not be read, and the readings."""
    source.used.clear()
    checks: list[Check] = []
    tracking: Tracking | None = None
    servers: list[Server] | None = None
    first = source.read(TRACKING, "chronyc-tracking.txt", "tracking.txt", "tracking")
    second = None if source.single_file else source.read(SOURCES, "chronyc-sources.txt", "sources.txt", "sources")
    text = first.stdout
    if second is None:
        listed = [line for line in text.splitlines() if is_source_line(line)]
        text = "\n".join(line for line in text.splitlines() if not is_source_line(line))
        sources_text = "\n".join(listed) if listed else None
    else:
        sources_text = second.stdout
    try:
        if reason := refusal(first):
            raise ChronyError(reason)
        tracking = parse_tracking(text)
    except ChronyError as exc:
        checks.append(unknown(f"{GATE}.output", "chronyc tracking", str(exc), _REMEDY))
    try:
        if second is not None and (reason := refusal(second)):
            raise ChronyError(reason)
        servers = parse_sources(sources_text) if sources_text is not None else None
    except ChronyError as exc:
        checks.append(unknown(f"{GATE}.output", "chronyc sources", str(exc), _REMEDY))
    return tracking, servers, checks, list(source.used)


def measure(
    source: Source, params: Mapping[str, Any], allowed: set[str]
) -> tuple[list[Check], list[Evidence], float | None]:
    """Read the clock once and judge it."""
    tracking, servers, checks, evidence = read(source)
    limit, limit_source = params["max_offset_ms"], "option max_offset_ms"
    if limit is None:
        board = profile(params["profile"])
        limit, limit_source = board.clock_offset_ms.value, board.source
    if tracking is None:
        return checks, evidence, None
    checks += judge(
        tracking,
        servers,
        allowed=allowed,
        max_offset_ms=limit,
        offset_source=limit_source,
        max_stratum=params["max_stratum"],
    )
    return checks, evidence, abs(tracking.offset_s) * 1000


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, not_negative=["max_offset_ms", "wait"])
    params = module.params
    source = Source(params["captured"], params["timeout"])
    allowed = resolve(params["servers"]) if source.live else set(params["servers"])
    start = time.monotonic()
    while True:
        checks, evidence, offset_ms = measure(source, params, allowed)
        waited = time.monotonic() - start
        if not source.live or waited >= params["wait"] or worst(c.verdict for c in checks) not in BLOCKING:
            break
        time.sleep(min(1.0, params["wait"] - waited))
    finish_gate(module, GATE, checks, evidence, offset_ms=offset_ms, waited=round(waited, 1))


if __name__ == "__main__":
    main()

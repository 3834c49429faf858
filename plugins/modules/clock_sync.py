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
  - Reads C(chronyc -c tracking) and C(chronyc -c sources) and judges leap status, reference, age of the last
    correction, offset, root distance and the sources.
  - C(chronyc) ends with status 0 for a clock that is not synchronised, so the words are judged and not the exit
    status.
  - With O(captured) the reports may also be in the form people see, also with C(-v), of chrony 1 to 4. One file may
    hold both reports or one of them; what only the other would show is then not judged. A directory holds
    C(chronyc-tracking.txt), C(chronyc-sources.txt) and, for the age of the last correction, C(date.txt) with the
    output of C(date +%s).
  - A single source that does not answer, or that chrony does not trust, beside a good selected one is a V(warn). One
    that O(servers) names and that does not answer is a V(fail).
  - The list of sources only says how many there are up to chrony 3; of a later one, lost lines cannot be seen.
  - Reports of other commands (C(timedatectl), C(ntpq), C(chronyc ntpdata), C(chronyc sourcestats)) are V(unknown), and
    the reason names the command.
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  servers:
    description:
      - Names or addresses of the site's time servers. Any other configured source is a V(fail), and so is one of these
        that answers no poll. Names are resolved on the node.
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
    description: Largest accepted stratum, 1 to 15. 16 means not synchronised and is never accepted.
    type: int
    default: 15
  max_ref_age_s:
    description:
      - Longest accepted time in seconds since the clock was last corrected by its reference.
      - The default is four polls at the longest interval chrony uses by itself (1024 s). A site with a larger
        C(maxpoll) needs a larger value.
    type: float
    default: 4096
  max_root_distance_ms:
    description:
      - Largest accepted error bound of the clock in milliseconds, half the root delay plus the root dispersion.
      - It is a worst case that real servers far away reach, so the default is wide. Servers in the rack stay under 10.
    type: float
    default: 500
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
    - Every judged fact, C(clock_sync.leap), C(.reference), C(.ref_age), C(.source), C(.servers), C(.reach),
      C(.agreement), C(.offset), C(.root_distance) and C(.output).
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

import dataclasses
import re
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
    Limits,
    Server,
    Tracking,
    is_source_line,
    is_tracking_line,
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
    "max_ref_age_s": {"type": "float", "default": 4096.0},
    "max_root_distance_ms": {"type": "float", "default": 500.0},
    "wait": {"type": "float", "default": 0},
}
TRACKING = ("chronyc", "-n", "-c", "tracking")
# -n: addresses, which do not depend on reverse lookups; the site's names are resolved instead.
SOURCES = ("chronyc", "-n", "-c", "sources")
# The node's own clock at the time of the reading, so that stored readings are judged alike later.
DATE = ("date", "+%s")
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


@dataclasses.dataclass(frozen=True)
class Reports:
    """Both reports, None where there is none, the node's time, and the checks for what could not be read."""

    tracking: Tracking | None
    servers: list[Server] | None
    now: float | None
    unread: list[Check]


def read(source: Source) -> Reports:
    """Return what chronyc says. One captured file may hold one of the reports or both."""
    source.used.clear()
    first = source.read(TRACKING, "chronyc-tracking.txt", "tracking.txt", "tracking")
    if source.single_file:
        lines = first.stdout.splitlines()
        listed = [line for line in lines if is_source_line(line)]
        told = [line for line in lines if not is_source_line(line)]
        # A list of sources alone is no broken tracking report.
        alone = bool(listed) and not any(is_tracking_line(line) for line in told)
        problem = refusal(first)
        return _parse(
            None if alone and problem is None else "\n".join(told), "\n".join(listed) if listed else None, problem, None
        )
    second = source.read(SOURCES, "chronyc-sources.txt", "sources.txt", "sources")
    date = source.read(DATE, "date.txt", primary=False)
    stamp = re.fullmatch(r"[0-9]{1,12}", date.stdout.strip(), re.ASCII)
    now = float(stamp[0]) if stamp and refusal(date) is None else None
    return _parse(first.stdout, second.stdout, refusal(first), refusal(second), now)


def _parse(
    tracking: str | None, sources: str | None, no_tracking: str | None, no_sources: str | None, now: float | None = None
) -> Reports:
    unread: list[Check] = []
    found: Tracking | None = None
    servers: list[Server] | None = None
    try:
        if no_tracking:
            raise ChronyError(no_tracking)
        found = parse_tracking(tracking) if tracking is not None else None
    except ChronyError as exc:
        unread.append(unknown("clock_sync.output", "chronyc tracking", str(exc), _REMEDY))
    try:
        if no_sources:
            raise ChronyError(no_sources)
        servers = parse_sources(sources) if sources is not None else None
    except ChronyError as exc:
        unread.append(unknown("clock_sync.output", "chronyc sources", str(exc), _REMEDY))
    return Reports(found, servers, now, unread)


def measure(
    source: Source, params: Mapping[str, Any], allowed: set[str]
) -> tuple[list[Check], list[Evidence], float | None]:
    """Read the clock once and judge it."""
    reports = read(source)
    limit, limit_source = params["max_offset_ms"], "option max_offset_ms"
    if limit is None:
        board = profile(params["profile"])
        limit, limit_source = board.clock_offset_ms.value, board.source
    limits = Limits(
        allowed,
        limit,
        limit_source,
        params["max_stratum"],
        params["max_ref_age_s"],
        params["max_root_distance_ms"],
    )
    checks = [*reports.unread, *judge(reports.tracking, reports.servers, limits, reports.now)]
    offset_ms = abs(reports.tracking.offset_s) * 1000 if reports.tracking else None
    return checks, list(source.used), offset_ms


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, positive=["max_ref_age_s", "max_root_distance_ms"], not_negative=["max_offset_ms", "wait"])
    params = module.params
    if not 1 <= params["max_stratum"] <= 15:
        module.fail_json(msg=f"max_stratum: {params['max_stratum']} is no stratum of a clock. Use 1 to 15.")
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

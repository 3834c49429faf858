#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate: the GPU driver has reported no error that keeps the node out."""

from __future__ import annotations

DOCUMENTATION = r"""
module: xid
short_description: Judge the errors the GPU driver wrote to the kernel log
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - Reads the kernel log since this boot from the journal, from C(dmesg) where the journal does not reach back that far,
    and judges every Xid of a GPU and every SXid of an NVSwitch by the action it asks for. The table is in
    C(docs/xid.md).
  - An Xid that is not in the table is V(unknown) and named. Xid 154 is judged by the recovery action in its own words.
    Where it goes from a reset or reboot back to None, earlier Xids of this GPU that asked for a reset are a V(warn).
  - Everything else stays in the log after the repair and blocks until a reboot or a shorter O(since).
  - An empty log, one that cannot be read, and one that does not reach back to the first line of this boot are
    V(unknown), because errors may be among the lines that are gone. O(since) asks for less than the whole boot.
  - One captured file with errors in it may be an excerpt, such as the lines of C(NVRM) alone. Then it is judged by
    those errors and its reach is a V(warn). An excerpt without an error shows nothing and is V(unknown).
  - A kernel log in the forms of C(dmesg), C(dmesg -T), C(dmesg --time-format=iso), C(journalctl -k) in its output modes
    C(short), C(short-iso), C(short-monotonic) and C(json), C(/dev/kmsg) and C(/var/log/kern.log) is read. Of a file
    that holds several boots only the last one is judged.
  - A log that was cut off between two lines cannot be told from one of a quiet kernel.
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  captured:
    description:
      - Judge a stored log in place of reading the node's, so that a support bundle is judged without the hardware.
      - A directory holds it as C(journalctl-k.txt) or C(dmesg.txt), optionally with C(nvidia-smi-bus-ids.csv).
    type: path
  profile:
    description: Accepted so that all gates can be called alike. No limit of this gate depends on the board.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  since:
    description:
      - Judge only this many last seconds of this boot, Xids and the driver's other lines alike. Without it all of it.
      - The age is taken from the node's uptime, of a stored log from its last line. A line without a time counts.
    type: float
  before:
    description:
      - Evidence file C(xid.json) of an earlier run, taken before the burn-in. An error that is new since then is a
        V(fail), or a V(warn) when it asks for no more than the application's restart. After a reboot in between every
        error is new.
    type: path
  last:
    description:
      - File on the host, such as C(/var/lib/gpu_rack/last/xid.json), that keeps how far a run had read the log that
        judged the whole boot and did not block. A later log of the same boot need not reach back farther than a minute
        before that, as on a node whose journal was vacuumed.
      - Not used with O(captured), not written with O(since) and in check mode.
    type: path
seealso:
  - module: ai_infra.gpu_rack.gpu_driver
"""

EXAMPLES = r"""
- name: Prove that no GPU has reported an error since this boot
  ai_infra.gpu_rack.xid:
    evidence_dir: /var/lib/gpu_rack/evidence/20261130T120000Z/hardware

- name: Prove that the burn-in brought no new error
  ai_infra.gpu_rack.xid:
    before: /var/lib/gpu_rack/evidence/20261130T120000Z/hardware/xid.json

# ansible localhost -m ai_infra.gpu_rack.xid -a "captured=dmesg.txt"
- name: Judge a stored log
  ai_infra.gpu_rack.xid:
    captured: dmesg.txt
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
  description: Name of the gate, V(xid).
  type: str
  returned: always
checks:
  description: Every judged fact, C(xid.log), C(xid.event), C(xid.switch), C(xid.driver), C(xid.growth), C(xid.output).
  type: list
  elements: dict
  returned: always
evidence:
  description: The readings with their digests; the texts too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
events:
  description: >-
    Every error of every device with C(kind), C(xid), C(pci), C(gpu), its C(count), C(time) and C(last_time), and the
    first C(text) and C(line).
  type: list
  elements: dict
  returned: always
xids:
  description: The numbers of the Xids, each once.
  type: list
  elements: int
  returned: always
boot:
  description: The kernel's identifier of this boot, empty when it could not be read.
  type: str
  returned: always
"""

import json
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _xid
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import (
    GATE_ARGS,
    check_numbers,
    fail_unwritten,
    finish_gate,
    write_json,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import BLOCKING, result, worst

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES)},
    "since": {"type": "float"},
    "before": {"type": "path"},
    "last": {"type": "path"},
}
JOURNAL = ("journalctl", "--dmesg", "--boot", "--output=short-monotonic", "--no-pager")
DMESG = ("dmesg",)
GPUS = ("nvidia-smi", "--query-gpu=index,uuid,pci.bus_id", "--format=csv,noheader")


def read_log(
    source: Source, since: float | None, now: float | None, read_until: float | None
) -> tuple[_xid.Log, str | None]:
    """Return the log that reaches back farthest enough, and why none can be judged."""
    found: list[tuple[_xid.Log, str | None]] = []
    for argv, names in (
        (JOURNAL, ("journalctl-k.txt", "journal-kernel.txt", "kern.log")),
        (DMESG, ("dmesg.txt", "dmesg", "dmesg.log")),
    ):
        # Neither is needed as long as the other one is there.
        evidence = source.read(argv, *names, needed=False)
        log, reason = _xid.parse(evidence.stdout), refusal(evidence)
        found.append((log, reason))
        if source.single_file or (reason is None and log.kernel_lines and log.covers(since, now, read_until)):
            return log, reason
    # None is enough; the one that shows more errors is the more useful headline.
    return max(found, key=lambda item: (item[1] is None, len(item[0].events), item[0].kernel_lines))


def read_last(path: str | None, boot: str) -> float | None:
    """Return the seconds after this boot up to which an earlier run had read, None when that is not known."""
    if path is None or not boot:
        return None
    try:
        data: Any = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    until = data.get("read_until") if isinstance(data, dict) and data.get("boot") == boot else None
    return until if isinstance(until, float) else None


def read_before(path: str | None) -> tuple[dict[tuple[str, int, str], int] | str | None, str]:
    """Return the earlier run's errors (or why they cannot be read) and its boot."""
    if path is None:
        return None, ""
    try:
        data: Any = json.loads(Path(path).read_bytes())
        if not isinstance(data, dict) or data.get("gate") != "xid":
            raise ValueError("it is no result of the gate xid")
        return _xid.counted(data.get("events")), str(data.get("boot") or "")
    except (OSError, ValueError, RecursionError) as exc:
        return f"{path} cannot be read: {exc}", ""


def main() -> None:
    """Read the log, judge, and report."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, positive=["since"])
    params = module.params
    source = Source(params["captured"], params["timeout"])
    uptime = source.read(["cat", "/proc/uptime"], "uptime.txt", primary=False)
    words = uptime.stdout.split()
    now = float(words[0]) if uptime.rc == 0 and words and words[0].replace(".", "", 1).isdecimal() else None
    boot = source.read(["cat", "/proc/sys/kernel/random/boot_id"], "boot_id.txt", primary=False).stdout.strip()
    read_until = read_last(params["last"], boot) if source.live else None
    log, refused = read_log(source, params["since"], now, read_until)
    gpus = _xid.parse_gpus(source.read(GPUS, "nvidia-smi-bus-ids.csv", primary=False).stdout)
    before, old_boot = read_before(params["before"])
    checks = _xid.judge(
        log,
        refused,
        params["since"],
        now,
        gpus,
        before,
        new_boot=bool(boot and old_boot and boot != old_boot),
        excerpt=source.single_file,
        read_until=read_until,
    )
    events = _xid.listed(_xid.window(log, params["since"], now).events, gpus)
    xids = sorted({e["xid"] for e in events if e["kind"] == "Xid"})
    extra: dict[str, Any] = {"events": events, "xids": xids, "boot": boot}
    until = log.last.uptime if log.last is not None else None
    if (
        params["last"]
        and source.live
        and not module.check_mode
        and params["since"] is None
        and boot
        and until is not None
        # A log with a gap is a warn, and what was in the gap has not been read.
        and checks[0].verdict == "pass"
        and worst(check.verdict for check in checks) not in BLOCKING
    ):
        path = Path(params["last"])
        try:
            write_json(path, {"boot": boot, "read_until": until})
        except (OSError, ValueError) as exc:
            fail_unwritten(module, path, exc, {**result("xid", checks, source.used), **extra})
    finish_gate(module, "xid", checks, source.used, **extra)


if __name__ == "__main__":
    main()

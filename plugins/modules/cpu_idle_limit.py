#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Limit the idle states of all CPUs at run time."""

from __future__ import annotations

DOCUMENTATION = r"""
module: cpu_idle_limit
short_description: Disable deep processor idle states at run time
description:
  - Disables every idle state whose exit latency is above a limit, and enables those up to it, on all CPUs with one
    call.
  - The setting lasts until the next boot. It bridges the time until BIOS and kernel command line take effect.
  - A state is chosen by its exit latency, not by its name. Names differ between idle drivers.
version_added: "0.1.0"
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  max_latency_us:
    description: Exit latency in microseconds up to which a state stays enabled.
    type: int
    required: true
attributes:
  check_mode:
    description: Reads and writes nothing.
    support: full
  diff_mode:
    description: Shows the disabled states with the number of CPUs, before and after.
    support: full
seealso:
  - module: ai_infra.gpu_rack.cpu_idle
"""

EXAMPLES = r"""
- name: Keep all CPUs in states that wake up within a microsecond
  ai_infra.gpu_rack.cpu_idle_limit:
    max_latency_us: 1
"""

RETURN = r"""
cpus:
  description: Number of CPUs that have idle states. With 0 the kernel has no idle driver, and there is nothing to
    disable.
  type: int
  returned: always
disabled:
  description: Idle states that are disabled, with the number of CPUs.
  type: dict
  returned: always
  sample: {"C6 (290 us)": 224}
"""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.basic import AnsibleModule

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {"max_latency_us": {"type": "int", "required": True}}

CPU_DIR = Path("/sys/devices/system/cpu")


class State(NamedTuple):
    """One idle state of one CPU."""

    name: str
    latency_us: int
    disabled: bool


class UnreadableStateError(Exception):
    """The kernel's files are not as documented; the text names the file."""


def read_states(directory: Path) -> dict[Path, State]:
    """Return all idle states by their directory. `disable` is a bit mask in new kernels; bit 0 is the one users set."""
    states: dict[Path, State] = {}
    for path in directory.glob("cpu[0-9]*/cpuidle/state[0-9]*"):
        try:
            name, latency, disable = ((path / f).read_text().strip() for f in ("name", "latency", "disable"))
            states[path] = State(name, int(latency), bool(int(disable) & 1))
        except (OSError, ValueError) as exc:
            raise UnreadableStateError(f"idle state {path}: {exc}. Check the kernel's cpuidle driver.") from exc
    return states


def summary(states: Mapping[Path, State]) -> dict[str, int]:
    """Return the number of CPUs by disabled state."""
    counted = Counter(f"{s.name} ({s.latency_us} us)" for s in states.values() if s.disabled)
    return dict(sorted(counted.items()))


def main() -> None:
    """Run the module."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    limit = module.params["max_latency_us"]
    if limit < 0:
        module.fail_json(msg=f"max_latency_us {limit}: below zero. Use 0 to keep only polling, or the latency of C1.")
    try:
        before = read_states(CPU_DIR)
        after = {path: state._replace(disabled=state.latency_us > limit) for path, state in before.items()}
        changes = {path: state for path, state in after.items() if state != before[path]}
        if not module.check_mode:
            for path, state in changes.items():
                (path / "disable").write_text("1" if state.disabled else "0")
            after = read_states(CPU_DIR) if changes else after
            kept = [p for p in changes if after[p].disabled != changes[p].disabled]
            if kept:
                raise UnreadableStateError(
                    f"idle state {kept[0]} (+{len(kept) - 1} more): the kernel kept its disable flag. Check dmesg."
                )
    except UnreadableStateError as exc:
        module.fail_json(msg=str(exc))
    except OSError as exc:
        module.fail_json(
            msg=f"idle state {exc.filename}: {exc.strerror}. Check that the module runs as root and /sys is writable."
        )
    cpus = len({re.sub(r"/cpuidle/.*", "", str(p)) for p in before})
    module.exit_json(
        changed=before != after,
        cpus=cpus,
        disabled=summary(after),
        diff={
            "before": summary(before),
            "after": summary(after),
            "before_header": "disabled idle states",
            "after_header": "disabled idle states",
        },
    )


if __name__ == "__main__":
    main()

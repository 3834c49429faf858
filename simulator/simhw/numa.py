# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the kernel would say about an engine's binding if the described NUMA nodes were there.

The machine has one NUMA node. The fake numactl binds the process to it and notes in the environment what was asked for;
children inherit the note. For every process of a vllm@ unit a made /proc/PID/status and numa_maps are mounted over the
real ones: the real pages, on the node they would be on. Without the note the process is unbound, so it may run anywhere
and its pages are spread. A mount goes with its process.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from typing import Any

from simhw import hw as store
from simhw.hw import RUN_DIR, Hw

NOTE = "SIMHW_NUMA"
_DIR = RUN_DIR + "/proc"
_made: dict[int, tuple[str, int]] = {}


def expand(cpus: str) -> list[int]:
    """The numbers of a list such as 0-3,8."""
    result: list[int] = []
    for part in cpus.split(","):
        low, dash, high = part.partition("-")
        result += range(int(low), int(high if dash else low) + 1)
    return result


def note(bind: dict[str, str]) -> str:
    """What the process's environment carries: the nodes and CPUs numactl was asked for."""
    names = {"node": "--membind", "nodes": "--cpunodebind", "cpus": "--physcpubind"}
    return json.dumps({key: bind.get(name, "") for key, name in names.items()})


def status(text: str, hw: Hw, binding: dict[str, str] | None) -> str:
    """The real /proc/PID/status with the CPUs the binding allows. numactl leaves Mems_allowed alone."""
    every = sorted({c for n in hw["numa"] for c in expand(n["cpus"])})
    cpus = f"{every[0]}-{every[-1]}"
    if binding and binding["cpus"]:
        cpus = binding["cpus"]
    elif binding and binding["nodes"]:
        wanted = {n["id"]: n["cpus"] for n in hw["numa"]}
        cpus = ",".join(wanted[i] for i in expand(binding["nodes"]) if i in wanted) or cpus
    mask = sum(1 << c for c in expand(cpus))
    words = max(every) // 32 + 1
    mask_text = ",".join(f"{(mask >> (32 * i)) & 0xFFFFFFFF:08x}" for i in reversed(range(words)))
    last = hw["numa"][-1]["id"]
    for name, value in (
        ("Cpus_allowed", mask_text),
        ("Cpus_allowed_list", cpus),
        ("Mems_allowed_list", "0" if last == 0 else f"0-{last}"),
    ):
        text = re.sub(rf"^{name}:.*$", f"{name}:\t{value}", text, flags=re.MULTILINE)
    return text


def numa_maps(text: str, hw: Hw, binding: dict[str, str] | None) -> str:
    """The real numa_maps with its pages on the nodes they would be on; pages of files stay where they are."""
    nodes = [int(n["id"]) for n in hw["numa"]]
    bound = bool(binding and binding["node"].isdigit())
    home = int(binding["node"]) if binding and bound else nodes[0]
    others = [n for n in nodes if n != home]
    remote = float(hw["numactl"].get("remote", 0.0)) if bound else 0.5
    lines = []
    for number, line in enumerate(text.splitlines()):
        fields = line.split(" ")
        policy = f"bind:{home}" if bound else "default"
        own = [w for w in fields[2:] if not re.fullmatch(r"N[0-9]+=[0-9]+", w)]
        pages = sum(int(w.split("=")[1]) for w in fields[2:] if re.fullmatch(r"N[0-9]+=[0-9]+", w))
        if pages and not (any(w.startswith("file=") for w in own) and not any(w.startswith("anon=") for w in own)):
            # One page alone is here or there: by turns, so that small mappings spread as well.
            away = int(pages * remote + (number % 100) / 100) if others else 0
            split = {home: pages - away, **({others[0]: away} if others else {})}
            counts = [f"N{n}={c}" for n, c in sorted(split.items()) if c]
            size = [w for w in own if w.startswith("kernelpagesize_kB=")]
            own = [*(w for w in own if w not in size), *counts, *size]
        else:
            own = fields[2:]
        lines.append(" ".join([*fields[:1], policy, *own]))
    return "".join(f"{line}\n" for line in lines)


def _read(file: str) -> str:
    with open(file, "rb") as f:
        return f.read().decode("utf-8", "replace")


def _unit(pid: int) -> str | None:
    """The inference unit a process belongs to."""
    found = re.search(r"/vllm@([^/]+)\.service", _read(f"/proc/{pid}/cgroup"))
    return found[1] if found else None


def _binding(pid: int) -> dict[str, str] | None:
    for word in _read(f"/proc/{pid}/environ").split("\0"):
        if word.startswith(NOTE + "="):
            found: Any = json.loads(word.split("=", 1)[1])
            return {key: str(value) for key, value in found.items()}
    return None


def _mount(source: str, target: str) -> None:
    with open("/proc/self/mountinfo", encoding="utf-8") as f:
        if any(line.split()[4] == target for line in f):
            return
    subprocess.run(["mount", "--bind", source, target], check=False, timeout=10, capture_output=True)


def _write(file: str, text: str) -> None:
    """In place, since it is mounted; not through an empty file, since somebody may be reading."""
    data = text.encode("utf-8", "replace")
    handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(handle, data, 0)
        os.ftruncate(handle, len(data))
    finally:
        os.close(handle)


def refresh() -> None:
    """Make the files of every process of a vllm@ unit; those whose binding and size are as before stay."""
    if os.geteuid() != 0:
        return
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    for gone in set(_made) - set(pids):
        _made.pop(gone, None)
        for name in ("status", "numa_maps"):
            if os.path.exists(f"{_DIR}/{gone}-{name}"):
                os.unlink(f"{_DIR}/{gone}-{name}")
    hw: Hw | None = None
    for pid in pids:
        try:
            unit = _unit(pid)
            if unit is None:
                continue
            hw = hw or store.effective()
            # Units are called <node>-iu<n>; a fault names the last part.
            unbound = unit.rsplit("-", 1)[-1] in hw["numactl"].get("unbound_units", [])
            binding = None if unbound else _binding(pid)
            size = int(_read(f"/proc/{pid}/statm").split()[1])
            key = json.dumps([binding, hw["numactl"], hw["numa"]])
            old_key, old_size = _made.get(pid, ("", 0))
            if key == old_key and abs(size - old_size) * 4 <= old_size:
                continue
            os.makedirs(_DIR, exist_ok=True)
            # The way through the thread is not covered by the mounts.
            for name, make in (("status", status), ("numa_maps", numa_maps)):
                text = _read(f"/proc/{pid}/task/{pid}/{name}")
                if not text:
                    raise OSError(f"/proc/{pid}/{name} is empty")
                _write(f"{_DIR}/{pid}-{name}", make(text, hw, binding))
                _mount(f"{_DIR}/{pid}-{name}", f"/proc/{pid}/{name}")
            _made[pid] = (key, size)
        except (OSError, ValueError, KeyError, subprocess.SubprocessError, store.NoHardware):
            continue  # the process has ended meanwhile, or the description is being written

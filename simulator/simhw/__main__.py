# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One program for every fake tool: the name it is called by decides."""

from __future__ import annotations

import os
import sys

TOOLS: dict[str, str] = {
    # name: where its link belongs. "base" is on the image (/usr/local/bin), "deb" comes with a package (/usr/bin).
    "nvidia-smi": "deb",
    "nvidia-persistenced": "deb",
    "nv-fabricmanager": "deb",
    "all_reduce_perf": "deb",
    "dcgmi": "deb",
    "nvfwupd": "base",
    "mlxconfig": "base",
    "mlxfwreset": "base",
    "mlxlink": "base",
    "mst": "base",
    "flint": "base",
    "mlnx_qos": "base",
    "cma_roce_tos": "base",
    "ibping": "base",
    "ib_write_lat": "base",
    "ib_send_lat": "base",
    "ib_read_lat": "base",
    "ib_write_bw": "base",
    "ib_send_bw": "base",
    "ib_read_bw": "base",
    "numactl": "base",
    "update-grub": "base",
    "grub-mkconfig": "base",
    "dmesg": "base",
    "journalctl": "base",
}

_LAUNCHER = """#!/usr/bin/python3 -IS
import sys
sys.path.insert(0, "/opt/simhw")
from simhw.__main__ import main
sys.exit(main(sys.argv))
"""

_USAGE = """usage: simhw COMMAND
  boot                      build sysfs, command line and driver state from the hardware description
  apply-faults              bring the running node in line with the description's faults
  fault TEXT | heal [TEXT]  add a fault, or remove one (or all), and apply
  faults                    list the faults this hardware knows
  check-fault TEXT          rc 0 when TEXT is a fault of this node
  show                      the description with its faults applied, as JSON
  install-links             launcher in /opt/simhw/bin and links of the base tools in /usr/local/bin
  debs build DIR            build the local apt repository
  driver-installed VERSION  the driver package's postinst: load the driver if none is loaded
  driver-removed            the driver package's postrm
  chrony-started            after every start of chronyd: clock faults that live in its memory
  tick                      let the counters of deep idle states grow, show the engines' NUMA binding
  ntp-skew SECONDS          a time server that is wrong by so much
"""


def _misbehave(fault: str, tool: str) -> int | None:
    """What a broken tool does instead of its work; None when it only comes late."""
    import time

    if fault == "missing":
        print(f"bash: line 1: {tool}: command not found", file=sys.stderr)
        return 127
    if fault == "hangs":
        while True:
            time.sleep(3600)
    if fault == "empty":
        return 0
    if fault == "garbage":
        sys.stdout.write("\x7fELF\x02\x01\x01 8<<< ### ?\ufffd 0x7fff\tnan,,nan;;\n{]}(( 3.14.15 GPU?? NV-1\n")
        return 0
    if fault == "error exit 0":
        print(f"{tool}: Unknown Error")
        return 0
    if fault.startswith("exit "):
        print(f"{tool}: failed", file=sys.stderr)
        return int(fault.split()[1])
    if fault.startswith("slow "):
        time.sleep(int(fault.split()[1][:-1]))
    return None


def run_tool(tool: str, argv: list[str]) -> int:
    from simhw import hw as store

    try:
        fault = store.effective()["tools"].get(tool)
    except store.NoHardware as e:
        if tool in ("journalctl", "dmesg"):
            os.execv(f"/usr/bin/{tool}", [tool, *argv])
        print(f"{tool}: {e}", file=sys.stderr)
        return 127
    if fault:
        code = _misbehave(fault, tool)
        if code is not None:
            return code
    if tool not in TOOLS:  # a shim in front of a real program
        for directory in ("/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"):
            file = f"{directory}/{tool}"
            if os.path.exists(file):
                os.execv(file, [tool, *argv])
        print(f"bash: line 1: {tool}: command not found", file=sys.stderr)
        return 127
    if tool == "nvidia-smi":
        from simhw import smi

        return smi.main(argv)
    if tool in ("nv-fabricmanager", "nvidia-persistenced", "dcgmi", "nvfwupd"):
        from simhw import daemons

        return {
            "nv-fabricmanager": daemons.fabricmanager,
            "nvidia-persistenced": daemons.persistenced,
            "dcgmi": daemons.dcgmi,
            "nvfwupd": daemons.nvfwupd,
        }[tool](argv)
    if tool in ("mlxconfig", "mlxfwreset", "mst", "mlxlink", "mlnx_qos", "cma_roce_tos", "flint"):
        from simhw import mlx

        return {
            "mlxconfig": mlx.mlxconfig,
            "mlxfwreset": mlx.mlxfwreset,
            "mst": mlx.mst,
            "mlxlink": mlx.mlxlink,
            "mlnx_qos": mlx.mlnx_qos,
            "cma_roce_tos": mlx.cma_roce_tos,
            "flint": mlx.flint,
        }[tool](argv)
    if tool == "ibping":
        from simhw import rdma

        return rdma.ibping(argv)
    if tool.startswith("ib_"):
        from simhw import rdma

        return rdma.perftest(tool, argv)
    if tool == "all_reduce_perf":
        from simhw import nccl

        return nccl.main(argv)
    from simhw import host

    if tool in ("update-grub", "grub-mkconfig"):
        return host.grub_mkconfig(tool, argv)
    return {"numactl": host.numactl, "dmesg": host.dmesg, "journalctl": host.journalctl}[tool](argv)


def _install_links() -> int:
    os.makedirs("/opt/simhw/bin", exist_ok=True)
    with open("/opt/simhw/bin/simhw", "w", encoding="utf-8") as f:
        f.write(_LAUNCHER)
    os.chmod("/opt/simhw/bin/simhw", 0o755)
    os.makedirs("/usr/local/bin", exist_ok=True)
    for tool, where in [*TOOLS.items(), ("simhw", "base")]:
        for link in ([f"/opt/simhw/bin/{tool}"] if tool != "simhw" else []) + (
            [f"/usr/local/bin/{tool}"] if where == "base" else []
        ):
            if os.path.lexists(link):
                os.unlink(link)
            os.symlink("/opt/simhw/bin/simhw", link)
    # Byte code beside the sources: a tool's start must not compile.
    import compileall

    compileall.compile_dir(os.path.dirname(os.path.abspath(__file__)), quiet=1)
    return 0


def _change_faults(command: str, text: str | None) -> int:
    from simhw import faults, host
    from simhw import hw as store

    def change(hw: store.Hw) -> None:
        now = list(hw.get("faults") or [])
        if command == "fault" and text is not None:
            faults.parse(text, hw)
            if text not in now:
                now.append(text)
        elif text is None:
            now = []
        elif text in now:
            now.remove(text)
        else:
            raise ValueError(f"The node has no fault {text!r}. It has: {', '.join(map(repr, now)) or 'none'}.")
        hw["faults"] = now

    try:
        store.update(change)
    except ValueError as e:
        print(f"simhw: {e}", file=sys.stderr)
        return 2
    return host.apply_faults()


def simhw(argv: list[str]) -> int:
    from simhw import hw as store

    command, args = (argv[0], argv[1:]) if argv else ("", [])
    if command == "install-links":
        return _install_links()
    if command == "debs" and len(args) == 2 and args[0] == "build":
        from simhw import debs

        return debs.build(args[1])
    if command == "ntp-skew" and len(args) == 1:
        from simhw import host

        return host.ntp_skew(float(args[0]))
    if command == "faults":
        from simhw import faults

        print(faults.catalogue_text())
        return 0
    if (command in ("fault", "check-fault") and len(args) == 1) or (command == "heal" and len(args) < 2):
        if command == "check-fault":
            from simhw import faults

            try:
                faults.parse(args[0], store.load())
            except ValueError as e:
                print(f"simhw: {e}", file=sys.stderr)
                return 2
            return 0
        return _change_faults(command, args[0] if args else None)
    if command == "show":
        import json

        print(json.dumps(store.effective(), indent=1))
        return 0
    if command in ("boot", "apply-faults", "tick", "chrony-started", "driver-installed", "driver-removed"):
        from simhw import driver, host

        if command == "boot":
            return host.boot()
        if command == "apply-faults":
            return host.apply_faults()
        if command == "tick":
            return host.tick()
        if command == "chrony-started":
            return host.chrony_started()
        if command == "driver-installed" and len(args) == 1:
            if driver.loaded() is None:
                driver.load(args[0])
                host.driver_loaded(args[0])
            return host.apply_faults()
        if command == "driver-removed":
            return 0  # the module stays loaded until the next boot
    sys.stderr.write(_USAGE)
    return 2


def main(argv: list[str]) -> int:
    from simhw import hw as store

    name = os.path.basename(argv[0])
    try:
        code = simhw(argv[1:]) if name in ("simhw", "__main__.py") else run_tool(name, argv[1:])
        sys.stdout.flush()
        return code
    except store.NoHardware as e:
        print(f"simhw: {e}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 141
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv))

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Real .deb packages with the vendors' names and versions, and a flat apt repository of them.

The payload is links to the simulator's launcher plus the files roles look at. Needs dpkg-deb, nothing else.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

DRIVERS = ("580.95.05", "580.82.07")
_LIB = "usr/lib/x86_64-linux-gnu"
_EPOCH = 1760000000  # packages are the same on every build


class Package(NamedTuple):
    name: str
    version: str
    description: str
    depends: str = ""
    section: str = "libs"
    links: tuple[tuple[str, str], ...] = ()  # path, target
    files: tuple[tuple[str, str, int], ...] = ()  # path, content, mode
    postinst: str = ""
    prerm: str = ""
    postrm: str = ""
    extra: str = ""


def _tool(name: str, where: str = "usr/bin") -> tuple[str, str]:
    return f"{where}/{name}", "/opt/simhw/bin/" + name


_FM_UNIT = """[Unit]
Description=NVIDIA fabric manager service
After=network-online.target
Requires=network-online.target

[Service]
User=root
PrivateTmp=false
Type=exec
TimeoutStartSec=240
ExecStart=/usr/bin/nv-fabricmanager -c /usr/share/nvidia/nvswitch/fabricmanager.cfg
LimitCORE=infinity

[Install]
WantedBy=multi-user.target
"""

_FM_CFG = """# Fabric Manager configuration
LOG_LEVEL=4
LOG_FILE_NAME=/var/log/fabricmanager.log
LOG_APPEND_TO_LOG=1
DAEMONIZE=0
FABRIC_MODE=0
FABRIC_MODE_RESTART=0
FM_CMD_BIND_INTERFACE=127.0.0.1
FM_CMD_PORT_NUMBER=6666
"""

_PERSISTENCED_UNIT = """[Unit]
Description=NVIDIA Persistence Daemon
Before=nvidia-fabricmanager.service

[Service]
Type=exec
ExecStart=/usr/bin/nvidia-persistenced --verbose
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""

_RELOAD = "if [ -d /run/systemd/system ]; then systemctl daemon-reload; fi\n"


def _enable(unit: str) -> str:
    return (
        'if [ "$1" = configure ]; then\n  if command -v deb-systemd-helper >/dev/null; then\n'
        f"    deb-systemd-helper enable {unit} >/dev/null || true\n  fi\n"
        f"  if [ -d /run/systemd/system ]; then systemctl daemon-reload; systemctl --no-block try-restart "
        f"{unit}; fi\nfi\n"
    )


def _driver(version: str) -> list[Package]:
    v = f"{version}-1"
    return [
        Package(
            "nvidia-open",
            v,
            "NVIDIA driver metapackage (open kernel modules), simulated",
            section="metapackages",
            extra="Provides: nvidia-driver, libnvidia-ml1, nvidia-smi, nvidia-kernel-open-dkms\n",
            links=(
                _tool("nvidia-smi"),
                (f"{_LIB}/libnvidia-ml.so.1", f"libnvidia-ml.so.{version}"),
                (f"{_LIB}/libcuda.so.1", f"libcuda.so.{version}"),
            ),
            files=(
                (f"{_LIB}/libnvidia-ml.so.{version}", f"simulated NVML {version}\n", 0o644),
                (f"{_LIB}/libcuda.so.{version}", f"simulated CUDA driver {version}\n", 0o644),
                (f"usr/lib/firmware/nvidia/{version}/gsp_ga10x.bin", f"simulated GSP firmware {version}\n", 0o644),
                ("etc/modprobe.d/nvidia-graphics-drivers.conf", "blacklist nouveau\n", 0o644),
            ),
            postinst=f'if [ "$1" = configure ]; then /opt/simhw/bin/simhw driver-installed {version} || true; fi\n',
            postrm="/opt/simhw/bin/simhw driver-removed || true\n",
        ),
        Package(
            "nvidia-fabricmanager",
            v,
            "Fabric Manager for NVSwitch based systems, simulated",
            section="utils",
            links=(_tool("nv-fabricmanager"),),
            files=(
                ("usr/share/nvidia/nvswitch/fabricmanager.cfg", _FM_CFG, 0o644),
                ("usr/share/nvidia/nvswitch/fabricmanager.version", version + "\n", 0o644),
                ("lib/systemd/system/nvidia-fabricmanager.service", _FM_UNIT, 0o644),
            ),
            postinst=_RELOAD,
            postrm=_RELOAD,
            prerm='if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl stop '
            "nvidia-fabricmanager.service "
            "|| true; fi\n",
        ),
        Package(
            "nvidia-persistenced",
            v,
            "daemon to maintain persistent software state in the NVIDIA driver, simulated",
            section="utils",
            links=(_tool("nvidia-persistenced"),),
            files=(("lib/systemd/system/nvidia-persistenced.service", _PERSISTENCED_UNIT, 0o644),),
            postinst=_enable("nvidia-persistenced.service"),
            postrm=_RELOAD,
            prerm='if [ "$1" = remove ] && [ -d /run/systemd/system ]; then systemctl stop nvidia-persistenced.service '
            "|| true; fi\n",
        ),
    ]


def packages() -> list[Package]:
    result = [p for version in DRIVERS for p in _driver(version)]
    result += [
        Package(
            "cuda-runtime-13-0",
            "13.0.2-1",
            "CUDA Runtime 13.0 meta-package, simulated",
            section="multiverse/devel",
            links=(("usr/local/cuda-13", "/usr/local/cuda-13.0"), ("usr/local/cuda", "/usr/local/cuda-13.0")),
            files=(
                (
                    "usr/local/cuda-13.0/version.json",
                    '{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}, "cuda_cudart": {"name": "CUDA Runtime '
                    '(cudart)", '
                    '"version": "13.0.96"}}\n',
                    0o644,
                ),
                (
                    "usr/local/cuda-13.0/targets/x86_64-linux/lib/libcudart.so.13",
                    "simulated CUDA runtime 13.0\n",
                    0o644,
                ),
            ),
        ),
        Package(
            "libnccl2",
            "2.27.7-1+cuda13.0",
            "NVIDIA Collective Communication Library (NCCL) Runtime, simulated",
            links=((f"{_LIB}/libnccl.so.2", "libnccl.so.2.27.7"),),
            files=((f"{_LIB}/libnccl.so.2.27.7", "simulated NCCL 2.27.7\n", 0o644),),
        ),
        Package(
            "nccl-tests",
            "2.17.6-1",
            "NCCL performance and correctness tests, simulated",
            section="utils",
            depends="libnccl2, cuda-runtime-13-0",
            links=(_tool("all_reduce_perf"),),
        ),
        Package(
            "datacenter-gpu-manager-4-core",
            "1:4.4.1-1",
            "NVIDIA Datacenter GPU Manager, simulated",
            section="utils",
            links=(_tool("dcgmi"),),
        ),
        Package(
            "mft",
            "4.33.0-169",
            "NVIDIA Firmware Tools, simulated",
            section="utils",
            links=tuple(_tool(t) for t in ("mlxconfig", "mlxfwreset", "mlxlink", "mst", "flint")),
        ),
        Package(
            "mlnx-tools",
            "25.07-0.2507097",
            "userland tools for NVIDIA NICs, simulated",
            section="utils",
            links=(_tool("mlnx_qos"), _tool("cma_roce_tos")),
        ),
        Package(
            "nvfwupd", "2.0.5-1", "NVIDIA firmware update tool, simulated", section="utils", links=(_tool("nvfwupd"),)
        ),
    ]
    return result


def _file_name(p: Package) -> str:
    return f"{p.name}_{p.version.split(':', 1)[-1]}_amd64.deb"


def _control(p: Package, size: int) -> str:
    depends = f"Depends: {p.depends}\n" if p.depends else ""
    return (
        f"Package: {p.name}\nVersion: {p.version}\nArchitecture: amd64\nMaintainer: gpu_rack simulator "
        f"<root@localhost>\n"
        f"Installed-Size: {size}\n{depends}{p.extra}Section: {p.section}\nPriority: optional\nDescription: "
        f"{p.description}\n"
    )


def _build_one(p: Package, target: str) -> str:
    with tempfile.TemporaryDirectory(prefix="simhw-deb-") as tree:
        os.makedirs(f"{tree}/DEBIAN", mode=0o755)
        os.chmod(tree, 0o755)
        for path, link in p.links:
            os.makedirs(os.path.dirname(f"{tree}/{path}"), exist_ok=True)
            os.symlink(link, f"{tree}/{path}")
        for path, content, mode in p.files:
            os.makedirs(os.path.dirname(f"{tree}/{path}"), exist_ok=True)
            with open(f"{tree}/{path}", "w", encoding="utf-8") as f:
                f.write(content)
            os.chmod(f"{tree}/{path}", mode)
        size = sum(len(content) for _path, content, _mode in p.files) // 1024 + 1
        control = _control(p, size)
        with open(f"{tree}/DEBIAN/control", "w", encoding="utf-8") as f:
            f.write(control)
        for name, body in (("postinst", p.postinst), ("prerm", p.prerm), ("postrm", p.postrm)):
            if body:
                with open(f"{tree}/DEBIAN/{name}", "w", encoding="utf-8") as f:
                    f.write("#!/bin/sh\nset -e\n" + body)
                os.chmod(f"{tree}/DEBIAN/{name}", 0o755)
        conffiles = [f"/{path}\n" for path, _content, _mode in p.files if path.startswith("etc/")]
        if conffiles:
            with open(f"{tree}/DEBIAN/conffiles", "w", encoding="utf-8") as f:
                f.writelines(conffiles)
        out = f"{target}/{_file_name(p)}"
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, out],
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(_EPOCH)},
        )
        return control


def build(directory: str) -> int:
    """Build every package into `directory` with the Packages and Release files of a flat repository."""
    if not shutil.which("dpkg-deb"):
        print("debs: dpkg-deb is missing. Build on Debian, or install the package dpkg.", file=sys.stderr)
        return 1
    os.makedirs(directory, exist_ok=True)
    entries = []
    for p in packages():
        control = _build_one(p, directory)
        name = _file_name(p)
        with open(f"{directory}/{name}", "rb") as f:
            data = f.read()
        head, description = control.rsplit("Description:", 1)
        entries.append(
            f"{head}Filename: ./{name}\nSize: {len(data)}\nMD5sum: "
            f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}\n"
            f"SHA256: {hashlib.sha256(data).hexdigest()}\nDescription:{description}"
        )
    text = "\n".join(entries)
    with open(f"{directory}/Packages", "w", encoding="utf-8") as f:
        f.write(text)
    raw = text.encode()
    with open(f"{directory}/Release", "w", encoding="utf-8") as f:
        f.write(
            "Origin: gpu_rack-simulator\nLabel: gpu_rack-simulator\nArchitectures: amd64\n"
            f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S UTC', time.gmtime(_EPOCH))}\n"
            f"SHA256:\n {hashlib.sha256(raw).hexdigest()} {len(raw)} Packages\n"
        )
    print(f"{len(entries)} packages in {directory}")
    return 0


def main() -> int:
    if len(sys.argv) == 3 and sys.argv[1] == "build":
        return build(sys.argv[2])
    print("usage: python -m simhw.debs build DIR", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

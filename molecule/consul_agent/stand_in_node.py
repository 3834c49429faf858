# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Make the node look as it does after both gates: a plan of two units, their engines, and two passing decisions."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

# Ports of their own, so that engines of other scenarios on the same rack are not in the way.
PORTS = (18000, 18001)
name = os.uname().nodename.partition(".")[0]
state = Path("/var/lib/gpu_rack")
state.mkdir(mode=0o750, exist_ok=True)
(state / "gate").mkdir(exist_ok=True)
(state / "quarantine.json").unlink(missing_ok=True)
for stage in ("hardware", "serving"):
    decision = {
        "verdict": "pass",
        "time": time.time(),
        "machine_id": Path("/etc/machine-id").read_text().strip(),
        "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        "checks": [{"check": "ib_port.rate", "subject": "mlx5_0", "verdict": "pass", "value": 400, "unit": "Gb/s"}],
    }
    (state / "gate" / f"{stage}.json").write_text(json.dumps(decision))
units = [
    {"id": f"{name}-iu{i}", "index": i, "gpus": [{"index": 4 * i + g} for g in range(4)], "numa_node": i, "port": port}
    for i, port in enumerate(PORTS)
]
Path("/etc/gpu_rack").mkdir(exist_ok=True)
Path("/etc/gpu_rack/inference_units.json").write_text(json.dumps({"board": "hgx_h100_8", "units": units}))
for port in PORTS:
    unit = f"stand-in-engine-{port}"
    if subprocess.run(["systemctl", "is-active", "--quiet", unit], check=False).returncode:
        engine = [sys.executable, "/usr/local/lib/stand_in_engine.py", str(port)]
        subprocess.run(["systemd-run", "--quiet", "--unit", unit, *engine], check=True)

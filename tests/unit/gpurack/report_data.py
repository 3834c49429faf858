# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Made runs of any size, in the files and the shapes of a real one: decisions, archives of evidence, summary.

The verdict structures come from the collection's own code, so a made run cannot drift from what the gates store.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._decision import GateResult, decide
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import (
    Check,
    Evidence,
    Value,
    Verdict,
    result,
    seal,
    unknown,
)

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
RUN = "20261130T203834Z"
WHEN = 1796071115.0
HCAS = [f"mlx5_{rail}" for rail in range(8)]
PROFILE = "board profile hgx_h100_8"
HARDWARE = (
    "gpu_driver",
    "gpu_health",
    "nvlink_topology",
    "ib_port",
    "ib_latency",
    "ib_bandwidth",
    "nccl_bandwidth",
    "clock_sync",
    "cpu_idle",
)
STEPS = {
    "Refuse a wrong inventory before anything is touched": 0.4,
    "Set up the rack's time servers": 2.1,
    "Set up the Consul servers": 2.3,
    "BIOS, kernel and firmware": 214.0,
    "Driver, CUDA, fabric and time": 96.0,
    "Hardware gate": 61.0,
    "Serve": 38.0,
    "Join": 3.2,
}
Row = dict[str, Any]


class Made:
    """One made rack. node2 has a degraded NVLink, node3 a bad port; from 8 nodes on there is one of every other state.

    `hostile` is put where a node could put text of its own choice.
    """

    def __init__(self, nodes: int, full_mesh: bool = False, hostile: str = "", healthy: bool = False) -> None:
        """Choose what is wrong with which node."""
        self.names = [f"node{n}" for n in range(1, nodes + 1)]
        self.full_mesh = full_mesh or nodes <= 16
        self.hostile = hostile
        self.random = random.Random(nodes)
        faults = {"node2": "nvlink", "node3": "port"}
        if nodes >= 8:
            faults |= {
                "node4": "hangs",
                "node5": "unreachable",
                "node6": "no evidence",
                "node7": "warns",
                "node8": "nccl",
            }
        self.faults = {} if healthy else {name: fault for name, fault in faults.items() if name in self.names}
        self.rows = list(self._sweep())

    def write(self, runs: Path, run: str = RUN) -> Path:
        """Write the run below `runs` and return its directory."""
        place = runs / run
        place.mkdir(parents=True, exist_ok=True)
        fetched: dict[str, Any] = {}
        for name in self.names:
            fault = self.faults.get(name, "")
            if fault == "unreachable":
                fetched[name] = {"state": "unreachable", "message": "ssh: connect to host 10.0.0.15 port 22: timed out"}
                continue
            if fault == "no evidence":
                fetched[name] = {"state": "no evidence", "message": ""}
                continue
            fetched[name] = {"state": "fetched", "message": ""}
            self._write_node(place / name, name, run)
        (place / "nodes.json").write_text(json.dumps({"run": run, "nodes": fetched}))
        (place / "summary.json").write_text(json.dumps(self._summary()))
        return place

    def _write_node(self, place: Path, name: str, run: str) -> None:
        place.mkdir(parents=True, exist_ok=True)
        stages = {"hardware": self._hardware(name)}
        if self.faults.get(name) in (None, "warns"):
            stages["serving"] = {"token_probe": self._token(name)}
        with tarfile.open(place / "evidence.tar.gz", "w:gz", compresslevel=1) as archive:
            for stage, gates in stages.items():
                stored = {
                    gate: json.dumps(seal({**data, "time": WHEN + 20.0})).encode() for gate, data in gates.items()
                }
                for gate, raw in stored.items():
                    member = tarfile.TarInfo(f"var/lib/gpu_rack/evidence/{run}/{stage}/{gate}.json")
                    member.size = len(raw)
                    archive.addfile(member, io.BytesIO(raw))
                decision = {
                    **decide(stage, [_decided(gates[gate], raw) for gate, raw in stored.items()]),
                    "run": run,
                    "node": name,
                    "time": WHEN + 30.0,
                    "machine_id": f"{self.names.index(name):032x}",
                    "boot_id": "2ccf5d73-c65b-4b34-adf7-b96dd785457f",
                    "evidence": f"/var/lib/gpu_rack/evidence/{run}/{stage}",
                }
                (place / f"{stage}.json").write_text(json.dumps(decision))

    def _hardware(self, name: str) -> dict[str, dict[str, Any]]:
        makers = {gate: getattr(self, f"_{gate}") for gate in HARDWARE}
        return {gate: make(name) for gate, make in makers.items()}

    def _seconds(self, typical: float) -> float:
        return round(typical * self.random.uniform(0.9, 1.2), 3)

    def _gpu_driver(self, name: str) -> dict[str, Any]:
        text = (FIXTURES / "nvidia-smi-580.95.05-q-hgx8.txt").read_text()
        # Every node has serial numbers of its own.
        text = text.replace("Serial Number                         : 16", f"Serial Number : {name}16")
        version = "580.82.07" if self.faults.get(name) == "warns" else "580.95.05"
        checks = [
            Check(
                "gpu_driver.version", "driver", "pass", "the driver that runs", version, version, "", "pinned version"
            )
        ]
        for gpu in range(8):
            checks += [
                Check("gpu_driver.gsp", f"GPU {gpu}", "pass", "GSP firmware", version, version, "", "running driver"),
                Check(
                    "gpu_driver.persistence",
                    f"GPU {gpu}",
                    "pass",
                    "persistence mode",
                    "Enabled",
                    "Enabled",
                    "",
                    "role cuda",
                ),
            ]
        fleet = {
            "versions": {
                "gpu_driver.version": version,
                "gpu_driver.vbios": "96.00.5E.00.01" if self.faults.get(name) != "nccl" else "96.00.30.00.01",
            }
        }
        return {
            **result("gpu_driver", checks, [Evidence("nvidia-smi -q", 0, text, "", self._seconds(1.9))]),
            "fleet": fleet,
        }

    def _gpu_health(self, name: str) -> dict[str, Any]:
        if self.faults.get(name) == "hangs":
            command = "nvidia-smi --query-gpu=index,ecc.errors.uncorrected.volatile.total --format=csv"
            reason = f"{command}: no answer within 180 s, ended with its process group"
            check = unknown(
                "gpu_health.output", "nvidia-smi", reason, "See dmesg for XIDs; reset or power-cycle the node."
            )
            evidence = Evidence(command, None, "", "", 180.0, "no answer within 180 s, ended with its process group")
            return result("gpu_health", [check], [evidence])
        text = "index, ecc.errors.uncorrected.volatile.total\n" + "".join(f"{gpu}, 0\n" for gpu in range(8))
        warm = self.faults.get(name) == "warns"
        checks = [
            Check("gpu_health.ecc", f"GPU {gpu}", "pass", "uncorrected errors since boot", 0, 0, "", PROFILE)
            for gpu in range(8)
        ]
        verdict: Verdict = "warn" if warm else "pass"
        value: Value = "SW power cap" if warm else "none"
        checks.append(
            Check("gpu_health.clocks", "GPU 4", verdict, "what holds the clocks back", value, "none", "", PROFILE,
                  "Look at the node's power limit." if warm else "")
        )  # fmt: skip
        return result(
            "gpu_health", checks, [Evidence("nvidia-smi --query-gpu=index,ecc", 0, text, "", self._seconds(0.8))]
        )

    def _nvlink_topology(self, name: str) -> dict[str, Any]:
        text = (FIXTURES / "nvidia-smi-580-topo-formG-hgx8.txt").read_text()
        bad = self.faults.get(name) == "nvlink"
        if bad:
            lines = text.split("\n")
            for row, column in ((1, 3), (3, 1)):
                cells = lines[row].split("\t")
                cells[column] = "NV17"
                lines[row] = "\t".join(cells)
            text = "\n".join(lines)
        if self.hostile:
            text += f"\n{self.hostile}\n"
        checks = [Check("nvlink_topology.gpus", "node", "pass", "8 GPUs are in the matrix", 8, 8, "GPUs", PROFILE)]
        if bad:
            remedy = "Reset the GPUs or power-cycle the node; if it comes back, reseat the board and look for XID 74."
            checks.append(
                Check("nvlink_topology.matrix", "GPU0-GPU2", "fail", f"1 of 18 links is missing{self.hostile}", "NV17",
                      "NV18", "", PROFILE, remedy)
            )  # fmt: skip
        else:
            checks.append(
                Check("nvlink_topology.matrix", "all pairs", "pass", "every pair of GPUs is joined at full width",
                      "56 cells NV18", "NV18 in every pair", "", PROFILE)
            )  # fmt: skip
        return result("nvlink_topology", checks, [Evidence("nvidia-smi topo -m", 0, text, "", self._seconds(0.6))])

    def _ib_port(self, name: str) -> dict[str, Any]:
        text = (FIXTURES / "infiniband-diags-44.0-ibstat-8xndr.txt").read_text()
        checks = [
            check
            for hca in HCAS
            for check in (
                Check("ib_port.state", hca, "pass", "state", "Active", "Active", "", "InfiniBand"),
                Check("ib_port.physical_state", hca, "pass", "physical state", "LinkUp", "LinkUp", "", "InfiniBand"),
                Check("ib_port.rate", hca, "pass", "rate of the link", 400, 400, "Gb/s", PROFILE),
            )
        ]
        fleet = {"versions": {"ib_port.firmware": "28.39.1002"}}
        return {**result("ib_port", checks, [Evidence("ibstat", 0, text, "", self._seconds(0.2))]), "fleet": fleet}

    def _ib_latency(self, name: str) -> dict[str, Any]:
        mine = [row for row in self.rows if name in (row["client"], row["server"])]
        checks = []
        for row in mine:
            subject = f"{row['client']} {row['client_hca']} - {row['server']} {row['server_hca']}"
            if row["t_typical_us"] is None:
                continue
            guilty = self.faults.get(name) == "port"
            verdict: Verdict = "pass" if not row["bad"] else "fail" if guilty else "warn"
            remedy = "Reseat or replace the cable." if verdict == "fail" else ""
            reason = "typical RDMA write latency, half of the round trip"
            checks += [
                Check("ib_latency.latency", subject, verdict, reason, row["t_typical_us"], 2.15, "us", PROFILE, remedy),
                Check("ib_latency.p99", subject, "pass", "99th percentile", row["p99_us"], 4.2, "us", PROFILE),
                Check("ib_latency.loss", subject, "pass", "0 of 1000 packets lost", row["loss"], 0.0, "%", PROFILE),
            ]
        if self.faults.get(name) == "port":
            checks.insert(0, Check("ib_latency.blame", name, "fail", "3 bad pairs of this node are explained by it",
                                   f"port mlx5_3 of {name} or its cable", "nothing", "", "every node of the sweep",
                                   "Reseat or replace the cable, then the transceiver, then the HCA."))  # fmt: skip
        culprits = [f"port mlx5_3 of {n} or its cable" for n, fault in self.faults.items() if fault == "port"]
        return {
            **result("ib_latency", checks or [unknown("ib_latency.coverage", name, "no pair was measured")]),
            "culprits": culprits,
            "suspects": [],
            # What one node stores: the whole matrix on a small rack, its own rows on a large one.
            "matrix": self.rows if len(self.names) <= 16 else mine,
        }

    def _ib_bandwidth(self, name: str) -> dict[str, Any]:
        rows = [
            {
                "kind": "pair", "rail": row["rail"], "client": row["client"], "client_hca": row["client_hca"],
                "server": row["server"], "server_hca": row["server_hca"], "bw_gbps": row["gbps"],
                "error": row["error"],
            }
            for row in self.rows
            if row["client"] == name and row["rail"] == 0
        ]  # fmt: skip
        measured = [row["bw_gbps"] for row in rows if row["bw_gbps"] is not None]
        low = min(measured, default=388.0)
        check = Check("ib_bandwidth.bandwidth", name, "pass", "slowest pair of this node", low, 370.0, "Gb/s", PROFILE)
        return {**result("ib_bandwidth", [check]), "pairs": rows, "seconds": self._seconds(9.0)}

    def _nccl_bandwidth(self, name: str) -> dict[str, Any]:
        slow = self.faults.get(name) == "nccl"
        value = round(self.random.uniform(451, 468), 1) if not slow else 287.4
        verdict: Verdict = "fail" if slow else "pass"
        remedy = "Compare NVLink states and clocks with a good node." if slow else ""
        check = Check("nccl_bandwidth.busbw", "all_reduce 8 GiB", verdict, "bus bandwidth", value, 430.0, "GB/s",
                      PROFILE, remedy)  # fmt: skip
        text = f"#  size  busbw\n 8589934592  {value}\n# Out of bounds values : 0 OK\n"
        return {
            **result(
                "nccl_bandwidth",
                [check],
                [Evidence("all_reduce_perf -b 8G -e 8G -g 8", 0, text, "", self._seconds(21.0))],
            ),
            "fleet": {"values": {"nccl_bandwidth.busbw": {"value": value, "unit": "GB/s", "better": "higher"}}},
        }

    def _clock_sync(self, name: str) -> dict[str, Any]:
        text = (FIXTURES / "chrony-4.3-tracking.txt").read_text()
        offset = round(self.random.uniform(0.002, 0.009), 6)
        check = Check("clock_sync.offset", "clock", "pass", "offset of the system time", offset, 5.0, "ms", PROFILE)
        return result("clock_sync", [check], [Evidence("chronyc tracking", 0, text, "", self._seconds(0.05))])

    def _cpu_idle(self, name: str) -> dict[str, Any]:
        check = Check(
            "cpu_idle.exit_latency", "CPU 0-223", "pass", "no CPU may enter a slower state", 1, 2, "us", PROFILE
        )
        return result("cpu_idle", [check])

    def _token(self, name: str) -> dict[str, Any]:
        checks = [
            Check("token_probe.token", f"{name}-iu{iu}", "pass", "a token was generated", 0.012, 5.0, "s", "option")
            for iu in range(2)
        ]
        return result(
            "token_probe", checks, [Evidence("POST /v1/completions", 0, '{"choices": [{"text": "Hi"}]}', "", 0.012)]
        )

    def _sweep(self) -> Iterator[Row]:
        """Yield a row a measured pair: all pairs, or those of a rack of 16 and one partner in each other rack."""
        dead = {name for name, fault in self.faults.items() if fault in ("unreachable", "no evidence")}
        for (a, one), (b, two) in itertools.combinations(enumerate(self.names), 2):
            if not self.full_mesh and a // 16 != b // 16 and a % 16 != b % 16:
                continue
            for rail, hca in enumerate(HCAS):
                lost = next((name for name in (one, two) if name in dead), None)
                bad = rail == 3 and "port" in (self.faults.get(one), self.faults.get(two))
                near = a // 16 == b // 16
                typical = round(self.random.gauss(1.66 if near else 2.05, 0.02) + (1.4 if bad else 0.0), 2)
                yield {
                    "kind": "pair", "rail": rail, "client": two, "client_hca": hca, "server": one, "server_hca": hca,
                    "t_typical_us": None if lost else typical,
                    "p99_us": None if lost else round(typical + abs(self.random.gauss(0.12, 0.03)), 2),
                    "loss": None if lost else 0.0,
                    "gbps": None if lost else round(self.random.gauss(392, 1.0) - (31.0 if bad else 0.0), 1),
                    "error": f"{lost} was not met: no route to host" if lost else None,
                    "bad": None if lost else bad,
                }  # fmt: skip

    def _summary(self) -> dict[str, Any]:
        return {
            "playbook": "site.yml",
            "seconds": sum(STEPS.values()),
            "check": False,
            "refused": [],
            "steps": STEPS,
            "not_reached": [],
            "nodes": {name: {"changed": 0, "gates": {}, "units": {}, "out": None} for name in self.names},
        }


def _decided(data: dict[str, Any], raw: bytes) -> GateResult:
    """Return a gate's part of the decision, as the module gate takes it from a file it accepts."""
    digest = hashlib.sha256(raw).hexdigest()
    return GateResult(data["gate"], data["verdict"], data["summary"], digest, WHEN + 20.0, tuple(data["checks"]))

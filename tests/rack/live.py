"""A simulated rack for the tests of the whole: four nodes, one of each vendor, reached as an operator does."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
NAME, NUMBER = "ci", 79
NODES = ("node1", "node2", "node3", "node4")


@dataclass
class Run:
    """One finished run of ansible-playbook: exit status, output, and the summary the callback wrote."""

    rc: int
    output: str
    summary: dict[str, Any]

    def changed(self) -> dict[str, int]:
        """Return the number of changed tasks by host, from the recap."""
        recap = re.findall(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)", self.output, re.MULTILINE)
        return {host: int(n) for host, n in recap}

    def out(self, node: str) -> dict[str, Any]:
        """Return why a node is out; fails when it is not."""
        why = self.summary["nodes"][node]["out"]
        assert why is not None, f"{node} is not out:\n{self.output[-3000:]}"
        return dict(why)


class Rack:
    """Drives the simulated rack and looks at it from outside: over ssh, the BMC and Consul's API."""

    def __init__(self, logs: Path) -> None:
        """Keep every run's output in `logs`, where the secrets are looked for at the end."""
        self.state = ROOT / ".sim" / NAME
        self.logs = logs
        self._bin = Path(sys.executable).parent

    def simulator(self, *arguments: str) -> str:
        """Run simulator/rack on this rack and return what it printed."""
        command = [str(ROOT / "simulator/rack"), "--rack", NAME, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=900).stdout

    def start(self, *options: str, playbook: str = "site.yml") -> tuple[subprocess.Popen[str], Path, Path]:
        """Start ansible-playbook in a session of its own; returns the process, its log and its summary file."""
        number = len(list(self.logs.glob("*.log")))
        log, summary = self.logs / f"{number:02}.log", self.logs / f"{number:02}.json"
        rack = json.dumps({"sim_rack": NAME, "sim_id": NUMBER})
        command = [str(self._bin / "ansible-playbook"), "-i", "inventories/sim", "-e", rack, playbook, *options]
        environment = {
            **os.environ,
            "PATH": f"{self._bin}:{os.environ['PATH']}",
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_NOCOLOR": "1",
            "GPU_RACK_SUMMARY_FILE": str(summary),
        }
        with log.open("w") as stream:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=stream, stderr=stream, text=True, start_new_session=True
            )
        return process, log, summary

    def play(self, *options: str, playbook: str = "site.yml") -> Run:
        """Run ansible-playbook to its end."""
        process, log, summary = self.start(*options, playbook=playbook)
        rc = process.wait(timeout=900)
        return Run(rc, log.read_text(), json.loads(summary.read_text()) if summary.exists() else {})

    def kill_at(self, line: str, *options: str) -> str:
        """Start site.yml and kill the controller, workers and all, as soon as `line` shows; returns the output."""
        process, log, _summary = self.start(*options)
        deadline = time.monotonic() + 600
        while line not in log.read_text():
            assert process.poll() is None, f"ended before {line!r} showed:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, f"{line!r} never showed"
            time.sleep(0.1)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=30)
        return log.read_text()

    def ssh(self, host: str, command: str, stdin: str = "") -> str:
        """Run a shell command on a host, as root."""
        number = 10 if host == "head1" else 10 + int(host.removeprefix("node"))
        done = subprocess.run(
            [
                *("ssh", "-i", str(self.state / "ssh/id_ed25519"), "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"),
                *(
                    "-o",
                    f"UserKnownHostsFile={self.state / 'ssh/known_hosts'}",
                    f"root@172.31.{NUMBER}.{number}",
                    command,
                ),
            ],
            check=True,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.stdout

    def secret(self, name: str) -> str:
        """Return one of the rack's secrets."""
        return (self.state / "secrets" / name).read_text().strip()

    def bmc(self, node: str, path: str = "", body: dict[str, Any] | None = None, method: str = "PATCH") -> Any:
        """Ask a node's BMC for its System resource, or for a Redfish `path`; with a `body` it is told."""
        number = 10 + int(node.removeprefix("node"))
        url = f"https://127.0.{NUMBER}.{number}:8443{path or f'/redfish/v1/Systems/{node}'}"
        login = base64.b64encode(f"admin:{self.secret('bmc_password')}".encode()).decode()
        request = urllib.request.Request(
            url,
            data=json.dumps(body).encode() if body else None,
            method=method if body else "GET",
            headers={"Authorization": f"Basic {login}", "Content-Type": "application/json"},
        )
        context = ssl.create_default_context(cafile=str(self.state / "bmc/ca.pem"))
        with urllib.request.urlopen(request, timeout=30, context=context) as answer:
            content = answer.read()
        return json.loads(content) if content else {}

    def power_off(self, node: str) -> None:
        """Cut a node's power at its BMC."""
        reset = self.bmc(node)["Actions"]["#ComputerSystem.Reset"]["target"]
        self.bmc(node, reset, {"ResetType": "ForceOff"}, method="POST")

    def bios(self, node: str) -> tuple[dict[str, Any], str]:
        """Return the BIOS attributes in effect and the path where settings for the next boot are written."""
        bios = self.bmc(node, self.bmc(node)["Bios"]["@odata.id"])
        return bios["Attributes"], bios["@Redfish.Settings"]["SettingsObject"]["@odata.id"]

    def power_cycles(self, node: str) -> int:
        """Return how often the BMC has powered the node on."""
        return int(self.bmc(node)["Oem"]["Sim"]["PowerCycles"])

    def consul(self, path: str) -> Any:
        """Return an answer of Consul's HTTP API on the head."""
        request = urllib.request.Request(
            f"http://172.31.{NUMBER}.10:8500/v1/{path}",
            headers={"X-Consul-Token": self.secret("consul_management_token")},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.loads(answer.read())

    def passing(self) -> set[str]:
        """Return the IUs that take traffic: every check of service and node passes."""
        return {entry["Service"]["ID"] for entry in self.consul("health/service/vllm?passing=true")}


def units(*nodes: str) -> set[str]:
    """Return the ids of the nodes' inference units."""
    return {f"{node}-iu{i}" for node in nodes for i in (0, 1)}

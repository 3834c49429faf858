#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)

from __future__ import annotations

DOCUMENTATION = r"""
module: ib_latency
short_description: Measure RDMA latency and loss between every pair of nodes of a play
version_added: 0.1.0
description:
  - Measures this node's pairs of a full mesh. Every node of the play runs the module in one task, computes the same
    schedule from the same O(peers) and meets one partner a round, rail by rail, so that no HCA is ever used twice at
    a time.
  - Latency is measured with C(ib_write_lat), which prints half of the round trip, loss with C(ibping) from its two
    counts. On Ethernet, where there is no C(ibping), retransmissions are read from the HCA's counters.
  - Two partners agree over a connection on the management network (O(control_port)). A partner that is not there
    costs one O(meet_timeout), and is told apart from a fabric that does not work.
  - A node without a partner measures from each of its HCAs to another of its own. That proves its HCAs, cables and leaf
    ports, not the way to other nodes; M(ai_infra.gpu_rack.ib_latency_verdict) says so.
  - The module measures and does not judge. Judge the results of all nodes with
    M(ai_infra.gpu_rack.ib_latency_verdict), which blames a bad pair on one of its ends. Only with O(captured) it
    judges, one stored output at a time.
  - The play must run all nodes at the same time, so C(forks) must be at least the number of nodes.
options:
  node:
    description: Name of this node in O(peers). Required unless O(captured) is given.
    type: str
  peers:
    description: All nodes of the sweep including this one, the same list on every node. Required unless O(captured)
      is given.
    type: list
    elements: dict
    suboptions:
      name:
        description: Name of the node.
        type: str
        required: true
      address:
        description: Address on the management network at which the others reach it.
        type: str
        required: true
      rack:
        description:
          - Rack of the node. With more than one rack only nodes of the same rack all meet; every two racks meet in
            one round.
        type: str
        default: ""
  hcas:
    description: HCAs of this node in rail order. Partners measure rail 0 with rail 0 and so on.
    type: list
    elements: str
  ib_port:
    description: Port number used on each HCA.
    type: int
    default: 1
  link_layer:
    description: Link layer of the HCAs.
    type: str
    choices: [infiniband, ethernet]
    default: infiniband
  sweep:
    description: Name of the sweep, such as the run id. Nodes of different sweeps refuse each other.
    type: str
    default: ""
  rails:
    description: How many rails each pair measures, moving on from round to round. V(0) means all.
    type: int
    default: 0
  iterations:
    description: Number of RDMA writes a measurement; percentiles need at least 1000.
    type: int
    default: 1000
  pings:
    description: Number of packets C(ibping) sends a measurement. Without a loss, 1000 rule out a loss above 0.3 %
      (95 % confidence).
    type: int
    default: 1000
  control_port:
    description:
      - TCP port of the management network on which partners meet. C(ib_write_lat) uses ports of the 2000 above it.
    type: int
    default: 18500
  meet_timeout:
    description: Seconds to wait for partners at the start, and silence after which a partner counts as lost.
    type: float
    default: 30.0
  timeout:
    description: Deadline in seconds for each command.
    type: float
    default: 15.0
  ping_timeout:
    description: Seconds after which C(ibping) is asked for its statistics, so that a dead path still gives its two
      counts.
    type: float
    default: 8.0
  budget:
    description: Seconds for the whole task. What was not measured by then is reported as not measured.
    type: float
    default: 900.0
  profile:
    description: Board profile whose limits judge O(captured).
    type: str
  max_latency_us:
    description: Limit in microseconds for the typical latency in O(captured), in place of the profile's for one switch.
    type: float
  max_loss_percent:
    description: Limit in percent for the loss in O(captured), in place of the profile's.
    type: float
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
seealso:
  - module: ai_infra.gpu_rack.ib_latency_verdict
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
"""

EXAMPLES = r"""
- name: Measure every pair of the play
  ai_infra.gpu_rack.ib_latency:
    node: "{{ inventory_hostname }}"
    peers: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'ansible_host')))
      | dict2items('name', 'address') }}"
    hcas: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]
    sweep: 20261130T180000Z
  register: __sweep

- name: Judge the output of ib_write_lat from a support bundle
  ai_infra.gpu_rack.ib_latency:
    captured: bundle/ib_write_lat.txt
    profile: hgx_h100_8
"""

RETURN = r"""
node:
  description: Name of this node.
  returned: without O(captured)
  type: str
ports:
  description: This node's rails, each with C(rail), C(hca), C(guid), C(leaf) and C(trouble) (null when usable).
  returned: without O(captured)
  type: list
  elements: dict
expected:
  description: Number of measurements this node had to take part in.
  returned: without O(captured)
  type: int
absent:
  description: Partners that were not met, each with the reason.
  returned: without O(captured)
  type: dict
pairs:
  description:
    - This node's row of the matrix. Times are in microseconds, C(loss) in percent, null where nothing was measured.
    - C(error) says why a pair was not measured, C(fault) which node and HCA that is known to lie with, if it is known.
      C(path_failed) tells that both tools met and the RDMA connection between them failed.
  returned: without O(captured)
  type: list
  elements: dict
  sample:
    - {kind: pair, round: 0, rail: 0, client: node2, client_hca: mlx5_0, client_leaf: "0xa1", server: node1,
      server_hca: mlx5_0,
       server_leaf: "0xa1", t_typical_us: 1.87, p99_us: 2.03, sent: 1000, received: 1000, loss: 0.0, error: null,
         fault: null,
       path_failed: false}
seconds:
  description: How long the sweep took on this node.
  returned: without O(captured)
  type: float
gate:
  description: Name of the gate, as in every gate module.
  returned: with O(captured)
  type: str
verdict:
  description: Worst verdict of the checks.
  returned: with O(captured)
  type: str
summary:
  description: One line for people.
  returned: with O(captured)
  type: str
checks:
  description: One judged fact each.
  returned: with O(captured)
  type: list
  elements: dict
evidence:
  description: What was read.
  returned: with O(captured)
  type: list
  elements: dict
"""

import contextlib
import dataclasses
import json
import queue
import selectors
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._background import Background, background
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._fabric_ports import parse_ibstat, parse_node_guid
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ibping import parse_statistics, round_trip_ms
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._latency_limits import (
    Limits,
    judge_captured,
    options_problem,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._perftest import explain, parse_latency
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep import (
    Pair,
    meetings_of,
    rails_of_round,
    schedule_racks,
    self_pairs,
    tcp_port,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

ARGUMENTS: dict[str, dict[str, Any]] = {
    **_cli.GATE_ARGS,
    "node": {"type": "str"},
    "peers": {
        "type": "list",
        "elements": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "address": {"type": "str", "required": True},
            "rack": {"type": "str", "default": ""},
        },
    },
    "hcas": {"type": "list", "elements": "str"},
    "ib_port": {"type": "int", "default": 1},
    "link_layer": {"type": "str", "choices": ["infiniband", "ethernet"], "default": "infiniband"},
    "sweep": {"type": "str", "default": ""},
    "rails": {"type": "int", "default": 0},
    "iterations": {"type": "int", "default": 1000},
    "pings": {"type": "int", "default": 1000},
    "control_port": {"type": "int", "default": 18500},
    "meet_timeout": {"type": "float", "default": 30.0},
    "timeout": {"type": "float", "default": 15.0},
    "ping_timeout": {"type": "float", "default": 8.0},
    "budget": {"type": "float", "default": 900.0},
    "profile": {"type": "str"},
    "max_latency_us": {"type": "float"},
    "max_loss_percent": {"type": "float"},
}

TICK_S = 2.0
STUCK_LIMIT = 2
CONNECT_S = 1.0
MAX_LINE = 1 << 20
RETRANSMISSIONS = ("local_ack_timeout_err", "out_of_sequence", "packet_seq_err")

Message = dict[str, Any]


class Lost(Exception):
    """A partner that is gone, with the reason for people."""


class Hub:
    """Connections to all partners on the management network, kept up by one thread.

    A partner may be busy for minutes with others, so every node says every two seconds that it is alive; one that has
    closed its connection or was silent for `silence` seconds is lost.
    """

    def __init__(self, address: str, port: int, hello: Message, silence: float) -> None:
        """Listen on the node's own address; raises OSError when the port is taken."""
        self._hello = hello
        self._silence = silence
        self._lock = threading.Lock()
        self._sockets: dict[str, socket.socket] = {}
        self._inbox: dict[str, queue.Queue[Message | None]] = {}
        self._heard: dict[str, float] = {}
        self._buffers: dict[socket.socket, bytes] = {}
        self._names: dict[socket.socket, str] = {}
        self.partners: dict[str, Message] = {}
        self.refused: dict[str, str] = {}
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(address, port)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def connect(self, name: str, address: str, port: int) -> str | None:
        """Try once to reach a partner; return why it could not be reached, None when the hello is on its way."""
        try:
            sock = socket.create_connection((address, port), CONNECT_S)
            sock.settimeout(5.0)
            sock.sendall(_line(self._hello))
        except OSError as exc:
            return str(exc.strerror or exc)
        with self._lock:
            self._buffers[sock] = b""
            self._names[sock] = name
            self._selector.register(sock, selectors.EVENT_READ)
        return None

    def send(self, name: str, message: Message) -> None:
        """Send a message; a broken connection is found by the next `receive`."""
        with self._lock:
            sock = self._sockets.get(name)
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.sendall(_line(message))

    def receive(self, name: str, kind: str, deadline: float) -> Message:
        """Return the partner's next message of that kind; raise Lost when it is gone or the deadline is over."""
        inbox = self._inbox.get(name)
        while inbox is not None:
            now = time.monotonic()
            if now >= deadline:
                raise Lost("the time budget of the sweep was over")
            if now - self._heard.get(name, now) > self._silence:
                raise Lost(f"silent on the management network for {self._silence:g} s")
            try:
                message = inbox.get(timeout=min(1.0, deadline - now))
            except queue.Empty:
                continue
            if message is None:
                inbox.put(None)
                raise Lost("closed the connection in the middle of the sweep")
            if message.get("type") == kind:
                return message
            if message.get("type") == "abort":
                raise Lost(f"gave up: {message.get('reason')}")
        raise Lost("was never met")

    def close(self) -> None:
        """Close everything."""
        self._stop.set()
        self._thread.join(5.0)
        with self._lock:
            for sock in (*self._buffers, self._listener):
                sock.close()
        self._selector.close()

    def _serve(self) -> None:
        next_tick = time.monotonic() + TICK_S
        while not self._stop.is_set():
            for key, _events in self._selector.select(0.2):
                sock = key.fileobj
                if sock is self._listener:
                    self._accept()
                elif isinstance(sock, socket.socket):
                    self._read(sock)
            if time.monotonic() >= next_tick:
                next_tick = time.monotonic() + TICK_S
                for name in list(self._sockets):
                    self.send(name, {"type": "tick"})

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            sock, _peer = self._listener.accept()
            sock.settimeout(5.0)
            with self._lock:
                self._buffers[sock] = b""
                self._selector.register(sock, selectors.EVENT_READ)

    def _read(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(65536)
        except OSError:
            data = b""
        buffer = self._buffers.get(sock, b"") + data
        *lines, rest = buffer.split(b"\n")
        self._buffers[sock] = rest
        for line in lines:
            try:
                message = json.loads(line)
            except ValueError:
                data = b""
                break
            if isinstance(message, dict):
                self._take(sock, message)
        if not data or len(rest) > MAX_LINE:
            self._drop(sock)

    def _take(self, sock: socket.socket, message: Message) -> None:
        name = self._names.get(sock)
        if message.get("type") == "hello":
            self._welcome(sock, message)
        elif message.get("type") == "refuse" and name is not None:
            self.refused[name] = str(message.get("reason"))
        elif name is not None and name in self._inbox:
            self._heard[name] = time.monotonic()
            if message.get("type") != "tick":
                self._inbox[name].put(message)

    def _welcome(self, sock: socket.socket, message: Message) -> None:
        """Answer a partner's hello with ours; refuse a stranger and a node of another sweep."""
        name = str(message.get("node"))
        answer = sock not in self._names
        reason = None
        if message.get("sweep") != self._hello["sweep"]:
            reason = f"sweep {message.get('sweep')!r} met a node of sweep {self._hello['sweep']!r}"
        elif name not in self._hello["nodes"] or message.get("nodes") != self._hello["nodes"]:
            reason = f"{name} and {self._hello['node']} were given different lists of nodes"
        if reason is not None:
            self.refused[name] = reason
            with contextlib.suppress(OSError):
                sock.sendall(_line({"type": "refuse", "reason": reason}))
            return
        with self._lock:
            self._names[sock] = name
            self._inbox.setdefault(name, queue.Queue())
            self._heard[name] = time.monotonic()
            self._sockets[name] = sock
        if answer:
            self.send(name, self._hello)
        self.partners[name] = message

    def _drop(self, sock: socket.socket) -> None:
        with self._lock:
            self._selector.unregister(sock)
            self._buffers.pop(sock, None)
            name = self._names.pop(sock, None)
            sock.close()
            if name is not None and self._sockets.get(name) is sock:
                del self._sockets[name]
                self._inbox[name].put(None)


def _listen(address: str, port: int) -> socket.socket:
    """Listen on one address of the node; on all of them where it is not the node's own (NAT)."""
    family, _type, _proto, _name, target = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
    try:
        return socket.create_server((target[0], port), family=family, backlog=256)
    except OSError as exc:
        if exc.errno == 98:  # EADDRINUSE
            raise
        return socket.create_server(("", port), backlog=256)


def _line(message: Message) -> bytes:
    return json.dumps(message).encode() + b"\n"


@dataclasses.dataclass(frozen=True, slots=True)
class Rail:
    """One HCA of a node in rail order; `trouble` says why it cannot be used."""

    rail: int
    hca: str
    guid: str | None
    leaf: str | None
    trouble: str | None


class Sweep:
    """One node's part of the sweep."""

    def __init__(self, params: Mapping[str, Any], evidence: list[Evidence]) -> None:
        """Take the module's options; the evidence of every command is appended to `evidence`."""
        self._p = params
        self._me: str = params["node"]
        self._peers: dict[str, Mapping[str, Any]] = {peer["name"]: peer for peer in params["peers"]}
        self._evidence = evidence
        self._deadline = time.monotonic() + params["budget"]
        self._rails = self._read_rails()
        self._numa: dict[str, list[str]] = {}
        # How often in a row this node's own ib_write_lat ran into its deadline. A tool that hangs would otherwise cost
        # a deadline a rail and partner.
        self._stuck = 0

    @property
    def rails(self) -> list[Rail]:
        """Return this node's rails."""
        return self._rails

    def run(self) -> tuple[list[Message], dict[str, str]]:
        """Return this node's measurements and the partners that were not met with the reasons."""
        racks: dict[str, list[str]] = {}
        for name in sorted(self._peers):
            racks.setdefault(self._peers[name]["rack"], []).append(name)
        meetings = meetings_of(self._me, schedule_racks(list(racks.values())))
        if not meetings:
            return self._alone(), {}
        hello = {
            "type": "hello",
            "node": self._me,
            "sweep": self._p["sweep"],
            "nodes": sorted(self._peers),
            "rails": [dataclasses.asdict(rail) for rail in self._rails],
        }
        hub = Hub(
            self._peers[self._me]["address"], self._p["control_port"], hello, max(self._p["meet_timeout"], 5 * TICK_S)
        )
        with contextlib.ExitStack() as stack:
            stack.callback(hub.close)
            partners = [server if client == self._me else client for _round, (server, client) in meetings]
            absent = self._roll_call(hub, partners)
            if any(server == self._me and client not in absent for _round, (server, client) in meetings):
                self._serve_pings(stack)
            rows: list[Message] = []
            for index, pair in meetings:
                rows += self._meet(hub, index, pair, absent)
        if all(partner in absent for partner in partners):
            rows += self._alone()
        return rows, absent

    # What this node has

    def _read_rails(self) -> list[Rail]:
        layer = self._p["link_layer"]
        read = self._run(["ibstat"])
        found = {(port.hca, port.port): port for port in parse_ibstat(read.stdout)}
        rails = []
        for index, hca in enumerate(self._p["hcas"]):
            port = found.get((hca, self._p["ib_port"]))
            trouble = (
                port.trouble(layer)
                if port
                else (f"ibstat {read.error}" if read.error else "ibstat does not list the HCA")
            )
            leaf = self._read_leaf(hca) if trouble is None and layer == "infiniband" else None
            rails.append(Rail(index, hca, port.guid if port else None, leaf, trouble))
        return rails

    def _read_leaf(self, hca: str) -> str | None:
        # The node one hop away by directed route: the switch at the other end of the cable.
        read = self._run(["smpquery", "-C", hca, "-P", str(self._p["ib_port"]), "-D", "nodeinfo", "0,1"], 5.0)
        return parse_node_guid(read.stdout) if read.rc == 0 else None

    def _bound(self, hca: str) -> list[str]:
        """Return the command prefix that runs a tool on the HCA's NUMA node, empty where the node is not known."""
        if hca not in self._numa:
            self._numa[hca] = []
            with contextlib.suppress(OSError, ValueError):
                node = int(Path(f"/sys/class/infiniband/{hca}/device/numa_node").read_text())
                self._numa[hca] = ["numactl", f"--cpunodebind={node}"] if node >= 0 else []
        return self._numa[hca]

    # Meeting

    def _roll_call(self, hub: Hub, partners: Sequence[str]) -> dict[str, str]:
        """Wait until every partner said hello; return those that did not, with the reason."""
        deadline = min(time.monotonic() + self._p["meet_timeout"], self._deadline)
        mine = [name for name in partners if name < self._me]
        reached: set[str] = set()
        reasons: dict[str, str] = {}
        while True:
            # A refusal by a partner we called is final; one we refused may be a leftover of an older sweep.
            missing = [n for n in partners if n not in hub.partners and not (n in mine and n in hub.refused)]
            if not missing or time.monotonic() >= deadline:
                break
            for name in (name for name in mine if name in missing and name not in reached):
                reason = hub.connect(name, self._peers[name]["address"], self._p["control_port"])
                if reason is None:
                    reached.add(name)
                else:
                    reasons[name] = reason
            time.sleep(0.1)
        waited = (
            f"did not take part: no hello on TCP port {self._p['control_port']} within {self._p['meet_timeout']:g} s"
        )
        absent = {}
        for name in partners:
            if name in hub.partners:
                continue
            if name in hub.refused:
                absent[name] = f"refused: {hub.refused[name]}"
            else:
                absent[name] = f"{waited} ({reasons[name]})" if name in reasons else waited
        return absent

    def _meet(self, hub: Hub, index: int, pair: Pair, absent: dict[str, str]) -> list[Message]:
        """Measure one partner on all rails both have and this round asks for."""
        server, client = pair
        partner = server if client == self._me else client
        theirs = [Rail(**rail) for rail in hub.partners[partner]["rails"]] if partner in hub.partners else []
        ends = (theirs, self._rails) if client == self._me else (self._rails, theirs)
        if partner in absent:
            chosen = rails_of_round([rail.rail for rail in self._rails], index, self._p["rails"])
            return [self._row("pair", index, pair, ends, rail, error=f"{partner} {absent[partner]}") for rail in chosen]
        common = sorted({rail.rail for rail in self._rails} & {rail.rail for rail in theirs})
        chosen = rails_of_round(common, index, self._p["rails"])
        rows: list[Message] = []
        begun = False
        for rail in chosen:
            row = self._row("pair", index, pair, ends, rail)
            rows.append(row)
            if row["error"] is None and time.monotonic() >= self._deadline:
                row["error"] = f"not measured: the budget of {self._p['budget']:g} s was over"
            if row["error"] is not None:
                continue
            try:
                if not begun:
                    # The partner may be busy with an earlier one for long; a server started now would die waiting.
                    hub.send(partner, {"type": "begin", "round": index})
                    hub.receive(partner, "begin", self._deadline)
                    begun = True
                if client == self._me:
                    self._as_client(hub, row, theirs[rail].guid)
                else:
                    self._as_server(hub, row)
            except Lost as exc:
                # A partner that is still there must not wait for the rest of the rails.
                hub.send(partner, {"type": "abort", "reason": str(exc)})
                absent[partner] = str(exc)
                row["error"] = f"{partner} {exc}"
                done = len(rows)
                rows += [self._row("pair", index, pair, ends, r, error=f"{partner} {exc}") for r in chosen[done:]]
                break
        return rows

    def _row(
        self,
        kind: str,
        index: int,
        pair: Pair,
        ends: tuple[Sequence[Rail], Sequence[Rail]],
        rail: int,
        error: str | None = None,
    ) -> Message:
        """Return an empty measurement; with an error at once where a port cannot be used."""
        server, client = pair
        sides: dict[str, Rail | None] = {}
        for side, rails in zip(("server", "client"), ends, strict=True):
            sides[side] = next((r for r in rails if r.rail == rail), None)
        fault = None
        for side, name in (("server", server), ("client", client)):
            used = sides[side]
            if error is None and used is not None and used.trouble is not None:
                error = f"{used.hca} of {name}: {used.trouble}"
                fault = {"node": name, "hca": used.hca, "why": used.trouble}
        row = {
            "kind": kind,
            "round": index,
            "rail": rail,
            "server": server,
            "client": client,
            "error": error,
            "fault": fault,
        }
        for side, used in sides.items():
            row[f"{side}_hca"] = used.hca if used else None
            row[f"{side}_leaf"] = used.leaf if used else None
            row[f"{side}_rail"] = rail
        for name in (
            "t_min_us",
            "t_typical_us",
            "p99_us",
            "p999_us",
            "t_max_us",
            "iterations",
            "sent",
            "received",
            "loss",
        ):
            row[name] = None
        return {**row, "mad_rtt_ms": None, "retransmissions": None, "path_failed": False, "command": None}

    # Measuring

    def _latency_command(self, hca: str, port: int, address: str | None = None) -> list[str]:
        command = [
            "ib_write_lat",
            "-d",
            hca,
            "-i",
            str(self._p["ib_port"]),
            "-p",
            str(port),
            "-n",
            str(self._p["iterations"]),
            "-F",
        ]
        return [*self._bound(hca), *command, *([address] if address else [])]

    def _serve_pings(self, stack: contextlib.ExitStack, only: Sequence[int] | None = None) -> None:
        """Answer pings on every usable rail until the stack ends."""
        if self._p["link_layer"] != "infiniband":
            return
        for rail in self._rails:
            if rail.trouble is None and (only is None or rail.rail in only):
                command = ["ibping", "-S", "-C", rail.hca, "-P", str(self._p["ib_port"])]
                stack.enter_context(background(command, max(1.0, self._deadline - time.monotonic())))

    def _as_server(self, hub: Hub, row: Message) -> None:
        port = tcp_port(self._p["control_port"], row["round"], row["rail"], len(self._rails))
        client, hca = row["client"], row["server_hca"]
        if self._stuck >= STUCK_LIMIT:
            hub.send(client, {"type": "ready", "rail": row["rail"], "port": port, "problem": self._stuck_text()})
            result = hub.receive(client, "result", min(self._deadline, time.monotonic() + 4 * self._p["timeout"]))
            row.update({key: value for key, value in result["row"].items() if key in row})
            return
        with background(self._latency_command(hca, port), 2 * self._p["timeout"]) as server:
            problem = self._await_listener(server, port)
            hub.send(client, {"type": "ready", "rail": row["rail"], "port": port, "problem": problem})
            result = hub.receive(client, "result", min(self._deadline, time.monotonic() + 4 * self._p["timeout"]))
            server.wait(1.0 if problem is None and result["row"]["error"] is None else 0.0)
            evidence = server.stop()
        self._evidence.append(evidence)
        row.update({key: value for key, value in result["row"].items() if key in row})

    def _as_client(self, hub: Hub, row: Message, guid: str | None) -> None:
        server = row["server"]
        ready = hub.receive(server, "ready", self._deadline)
        if ready["problem"] is not None:
            row["error"] = f"ib_write_lat on {server}: {ready['problem']}"
            row["fault"] = {"node": server, "hca": row["server_hca"], "why": ready["problem"]}
        else:
            self._measure(row, int(ready["port"]), self._peers[server]["address"], guid)
        hub.send(server, {"type": "result", "row": row})

    def _measure(self, row: Message, port: int, address: str, guid: str | None) -> None:
        """Measure from this node to a server that listens."""
        hca = row["client_hca"]
        if self._stuck >= STUCK_LIMIT:
            row["error"] = self._stuck_text()
            row["fault"] = {"node": self._me, "hca": None, "why": self._stuck_text()}
            return
        before = _retransmissions(hca, self._p["ib_port"])
        command = self._latency_command(hca, port, address)
        read = self._run(command)
        # The server listens already, so this is a management network that drops a connection; once more is enough.
        if read.error is None and "Couldn't connect to" in read.stdout + read.stderr:
            read = self._run(command)
        row["command"] = read.command
        late = read.error is not None and "still running" in read.error
        self._stuck = self._stuck + 1 if late else 0
        latency = parse_latency(read.stdout, self._p["iterations"])
        named = explain(read.stdout + "\n" + read.stderr)
        if read.error is not None or read.rc != 0 or named is not None or latency.error is not None:
            why = read.error or named or latency.error
            row["error"] = f"ib_write_lat: {why or f'exit status {read.rc}'}"
            if read.error is not None and read.error.startswith("could not start"):
                row["fault"] = {"node": self._me, "hca": None, "why": f"ib_write_lat {read.error}"}
            else:
                # Both tools met on the management network and then got stuck or failed: that is the fabric. A client
                # that could not connect, or printed what nobody can read with exit status 0, says nothing about it.
                failed = read.rc != 0 or (named or "").lower().startswith("completion with")
                row["path_failed"] = failed and "Couldn't connect to" not in read.stdout + read.stderr
        else:
            row.update({key: value for key, value in latency.as_dict().items() if key in row and key != "error"})
        if self._p["link_layer"] == "infiniband":
            self._ping(row, hca, guid)
            if late and row["received"]:
                # On a broken path the HCA gives up after seconds, with a status. A tool that hangs while the ports do
                # answer is itself the trouble.
                row["path_failed"] = False
        after = _retransmissions(hca, self._p["ib_port"])
        row["retransmissions"] = after - before if before is not None and after is not None else None

    def _ping(self, row: Message, hca: str, guid: str | None) -> None:
        if guid is None:
            row["error"] = row["error"] or f"ibping: the GUID of {row['server_hca']} of {row['server']} is not known"
            return
        ping = ["ibping", "-c", str(self._p["pings"]), "-f", "-C", hca, "-P", str(self._p["ib_port"]), "-G", guid]
        seconds = self._p["ping_timeout"]
        # SIGINT makes ibping print its statistics: a dead path then shows its counts in place of a time-out.
        read = self._run(["timeout", "--signal=INT", "--kill-after=2", f"{seconds:g}", *ping], seconds + 5.0)
        counts = parse_statistics(read.stdout + "\n" + read.stderr, interrupted=read.rc == 124)
        row.update(sent=counts.sent, received=counts.received, loss=counts.loss_percent)
        row["mad_rtt_ms"] = round_trip_ms(counts.sent, counts.received, read.seconds)
        if counts.error is not None and row["error"] is None:
            row["error"] = f"ibping: {read.error or counts.error}"

    def _alone(self) -> list[Message]:
        """Measure from rail to rail of this node: all that can be proven without a partner."""
        usable = [rail.rail for rail in self._rails if rail.trouble is None]
        pair = (self._me, self._me)
        broken = [r.rail for r in self._rails if r.trouble is not None]
        rows = [self._row("self", 0, pair, (self._rails, self._rails), rail) for rail in broken]
        with contextlib.ExitStack() as stack:
            pairs = self_pairs(usable)
            self._serve_pings(stack, [server for _client, server in pairs])
            for client, server in pairs:
                row = self._row("self", 0, pair, (self._rails, self._rails), client)
                used = self._rails[server]
                row.update(server_rail=server, server_hca=used.hca, server_leaf=used.leaf)
                rows.append(row)
                if time.monotonic() >= self._deadline:
                    row["error"] = f"not measured: the budget of {self._p['budget']:g} s was over"
                    continue
                port = tcp_port(self._p["control_port"], 0, client, len(self._rails))
                with background(self._latency_command(used.hca, port), 2 * self._p["timeout"]) as process:
                    problem = self._await_listener(process, port)
                    if problem is None:
                        self._measure(row, port, "127.0.0.1", used.guid)
                        process.wait(1.0 if row["error"] is None else 0.0)
                    else:
                        row["error"] = f"ib_write_lat: {problem}"
                        row["fault"] = {"node": self._me, "hca": used.hca, "why": problem}
                    self._evidence.append(process.stop())
        return rows

    def _await_listener(self, server: Background, port: int) -> str | None:
        """Wait until the server listens on the port; return why it does not, None when it does."""
        until = min(self._deadline, time.monotonic() + self._p["timeout"])
        while time.monotonic() < until:
            if _listening(port):
                self._stuck = 0
                return None
            if not server.running():
                read = server.evidence()
                text = explain(read.stdout + "\n" + read.stderr)
                last = next(iter(read.stderr.strip().splitlines()[-1:]), "")
                return (
                    read.error or text or last or f"ended with status {read.rc} before it listened on TCP port {port}"
                )
            time.sleep(0.02)
        self._stuck += 1
        return f"did not listen on TCP port {port} within {self._p['timeout']:g} s"

    def _stuck_text(self) -> str:
        return f"ib_write_lat ran into its deadline {STUCK_LIMIT} times in a row and is not tried again"

    def _run(self, argv: Sequence[str], timeout: float | None = None) -> Evidence:
        limit = min(timeout or self._p["timeout"], max(1.0, self._deadline - time.monotonic()))
        read = _cli.run(argv, limit)
        self._evidence.append(read)
        return read


def _listening(port: int) -> bool:
    """Return whether any process of the host listens on the TCP port (state 0A in the kernel's table)."""
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                cells = line.split()
                if cells[3] == "0A" and int(cells[1].rsplit(":", 1)[1], 16) == port:
                    return True
    return False


def _retransmissions(hca: str, port: int) -> int | None:
    """Return the sum of the HCA's retransmission counters, None where the driver has none of them."""
    total: int | None = None
    for name in RETRANSMISSIONS:
        with contextlib.suppress(OSError, ValueError):
            total = (total or 0) + int(Path(f"/sys/class/infiniband/{hca}/ports/{port}/hw_counters/{name}").read_text())
    return total


def _refuse_wrong_input(module: AnsibleModule) -> None:
    params = module.params
    names = [peer["name"] for peer in params["peers"]]
    if params["node"] not in names:
        module.fail_json(
            msg=f"Option node: {params['node']!r} is not one of peers ({', '.join(names)}). Name this node as in peers."
        )
    doubles = sorted({name for name in names if names.count(name) > 1})
    if doubles:
        module.fail_json(msg=f"Option peers: {', '.join(doubles)} named twice. Name each node once.")
    if not params["hcas"]:
        module.fail_json(msg="Option hcas: empty. Name the HCAs of this node in rail order.")
    if len(set(params["hcas"])) != len(params["hcas"]):
        module.fail_json(msg=f"Option hcas: {params['hcas']} names an HCA twice. Each rail has an HCA of its own.")
    for option in ("iterations", "pings"):
        if params[option] < 1:
            module.fail_json(msg=f"Option {option}: {params[option]}. Give at least 1.")
    if not 1024 <= params["control_port"] <= 63000:
        module.fail_json(
            msg=f"Option control_port: {params['control_port']}. Give 1024 to 63000: 2000 ports above it are used too."
        )


def main() -> None:
    """Measure this node's pairs, or judge captured output."""
    module = AnsibleModule(
        ARGUMENTS,
        supports_check_mode=True,
        required_one_of=[("captured", "peers")],
        required_by={"peers": ("node", "hcas")},
    )
    params = module.params
    if problem := options_problem(params):
        module.fail_json(msg=problem)
    if params["captured"]:
        try:
            limits = Limits.of(params["profile"], params["max_latency_us"], None, params["max_loss_percent"])
        except ValueError as exc:
            module.fail_json(msg=f"Option profile: {exc}")
        checks, evidence = judge_captured(params["captured"], limits)
        _cli.finish_gate(module, "ib_latency", checks, evidence)
    _refuse_wrong_input(module)
    start = time.monotonic()
    evidence = []
    sweep = Sweep(params, evidence)
    try:
        pairs, absent = sweep.run()
    except OSError as exc:
        module.fail_json(
            msg=f"Listening on TCP port {params['control_port']}: {exc.strerror or exc}. "
            "Another sweep may be running on this node; wait for it or set control_port."
        )
    outcome = {
        "node": params["node"],
        "ports": [dataclasses.asdict(rail) for rail in sweep.rails],
        "pairs": pairs,
        "absent": absent,
        "expected": len(pairs),
        "seconds": round(time.monotonic() - start, 1),
    }
    if params["evidence_dir"]:
        stored = {**outcome, "evidence": [read.as_dict() for read in evidence], "time": time.time()}
        _cli.write_json(Path(params["evidence_dir"]) / "raw" / "ib_latency_sweep.json", stored)
    module.exit_json(changed=False, **outcome)


if __name__ == "__main__":
    main()

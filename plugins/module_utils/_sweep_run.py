# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""One node's part of a fabric sweep: read its rails, meet its partners round by round, measure, measure again.

The order is the same for latency and bandwidth (docs/fabric-sweep.md):

1. the mesh inside the rack, which every node computes by itself from the same list of peers;
2. the cover of the leaf pairs the mesh did not touch, which the lead plans from the leaves all nodes have named;
3. the retests, which the lead plans from the rows of all nodes.

The lead is the first of the nodes in the alphabet that is there. It plans and answers; it is no single point: without
it every node keeps what it has measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _cli
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._background import Background, background
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._fabric_ports import parse_ibstat, parse_node_guid
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ibping import parse_statistics, round_trip_ms
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._perftest import explain
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._retest import makeup_plan
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep import (
    Meeting,
    Pair,
    few_rounds,
    leaf_cover,
    meetings_of,
    mesh,
    rails_of_round,
    self_pairs,
    tcp_port,
)
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_hub import TICK_S, Hub, Lost, Message
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._sweep_probe import FIELDS, Probe
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

STUCK_LIMIT = 2
LEADS = 3
"""So many nodes, the first in the alphabet, know all others: the first of them that is there is the lead."""
RETESTS = 2
"""What the first retest clears accuses others, and they are measured again in the second."""
RETRANSMISSIONS = ("local_ack_timeout_err", "out_of_sequence", "packet_seq_err")

Plan = list[list[Meeting]]
Planner = Callable[[Sequence[Mapping[str, Any]]], Plan]
"""From the results of all nodes (node, ports, pairs) to the rounds in which suspects are measured again."""


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

    def __init__(
        self,
        params: Mapping[str, Any],
        evidence: list[Evidence],
        probe: Probe,
        planner: Planner | None = None,
        rounds: int = 0,
        cover: bool = True,
    ) -> None:
        """Take the module's options; the evidence of every command is appended to `evidence`.

        `planner` None: nothing is measured again. `rounds`: partners of the mesh a node measures, 0 for all.
        """
        self._p = params
        self._me: str = params["node"]
        self._peers: dict[str, Mapping[str, Any]] = {peer["name"]: peer for peer in params["peers"]}
        self._evidence = evidence
        self._probe, self._planner, self._rounds, self._cover = probe, planner, rounds, cover
        self._deadline: float = time.monotonic() + params["budget"]
        self._rails = self._read_rails()
        self._numa: dict[str, list[str]] = {}
        self._pings: int = params.get("pings", 0)
        self._ping_s: float = params.get("ping_timeout", 0.0)
        self._answering: dict[int, Background] = {}
        # How often in a row this node's own tool ran into its deadline. A tool that hangs would otherwise cost
        # a deadline a rail and partner.
        self._stuck = 0
        self.results: list[Mapping[str, Any]] = []
        """The results of all nodes, where they were exchanged; of this node alone, where not."""

    @property
    def rails(self) -> list[Rail]:
        """Return this node's rails."""
        return self._rails

    def run(self, share: bool = False) -> tuple[list[Message], dict[str, str]]:
        """Return this node's measurements and the partners that were not met with the reasons.

        `share`: fetch the results of all nodes into `results` at the end.
        """
        names = sorted(self._peers)
        if names == [self._me]:
            return self._finish(self._alone(), {})
        # With few partners, who is there decides who meets whom, and that the lead knows.
        rounds = [] if self._rounds else mesh(_racks(self._peers, names))
        hello = {
            "type": "hello",
            "node": self._me,
            "sweep": self._p["sweep"],
            "nodes": names,
            "rails": [dataclasses.asdict(rail) for rail in self._rails],
        }
        hub = Hub(
            self._peers[self._me]["address"], self._p["control_port"], hello, max(self._p["meet_timeout"], 5 * TICK_S)
        )
        with contextlib.ExitStack() as stack:
            stack.callback(hub.close)
            return self._all_phases(hub, stack, names, rounds, share)

    def _all_phases(
        self, hub: Hub, stack: contextlib.ExitStack, names: list[str], rounds: list[list[Pair]], share: bool
    ) -> tuple[list[Message], dict[str, str]]:
        meetings = meetings_of(self._me, rounds)
        partners = {node for _round, pair in meetings for node in pair} - {self._me}
        leads = names[:LEADS]
        known = set(names) if self._me in leads else partners | set(leads)
        absent = self._roll_call(hub, sorted(known - {self._me}))
        lead = min((name for name in leads if name == self._me or name not in absent), default=None)
        others = [name for name in names if name != self._me and name not in absent]
        plan: Plan = []
        planned = self._cover or self._rounds > 0
        if planned and lead == self._me:
            plan = self._plan_few(hub, absent) if self._rounds else self._plan_cover(hub, rounds, absent)
            for name in others:
                hub.send(name, {"type": "plan", "value": _packed(plan)})
        rows: list[Message] = []
        if any(self._me == server for _round, (server, _client) in meetings):
            self._serve_pings(stack)
        for index, pair in meetings:
            rows += self._meet(hub, index, pair, absent, "pair", None)
        base = len(rounds)
        if planned and lead is not None:
            if lead != self._me:
                plan = self._answer(hub, lead, "plan")
            rows += self._follow(hub, stack, plan, base, absent, "pair")
            base += len(plan)
        if not rows and absent:
            # Nobody to meet, though there are others: that is not a node that is alone.
            away = min(absent)
            rows += self._meet(hub, 0, (min(self._me, away), max(self._me, away)), absent, "pair", None)
        if self._rounds:
            plan = self._exchange(hub, leads, lead, others, "open", rows, makeup_plan)
            rows += self._follow(hub, stack, plan, base, absent, "pair")
            base += len(plan)
        if self._planner is not None:
            self._pings = self._p.get("retest_pings", 0)
            for turn in range(RETESTS):
                plan = self._exchange(hub, leads, lead, others, f"rows {turn}", rows, self._planner)
                rows += self._follow(hub, stack, plan, base, absent, "retest")
                base += len(plan)
                if not plan:
                    break
        absent = {name: why for name, why in absent.items() if any(_between(row, self._me, name) for row in rows)}
        if all(name in absent for name in partners) and not any(row["error"] is None for row in rows):
            rows += self._alone()
        if share:
            self._share(hub, leads, lead, others, rows, absent)
        return self._finish(rows, absent)

    def _finish(self, rows: list[Message], absent: dict[str, str]) -> tuple[list[Message], dict[str, str]]:
        self.results = self.results or [self._result(rows, absent)]
        return rows, absent

    def _result(self, rows: Sequence[Message], absent: Mapping[str, str]) -> Message:
        ports = [dataclasses.asdict(rail) for rail in self._rails]
        return {"node": self._me, "ports": ports, "absent": dict(absent), "pairs": list(rows)}

    # Agreeing

    def _plan_cover(self, hub: Hub, rounds: Sequence[Sequence[Pair]], absent: Mapping[str, str]) -> Plan:
        """Return the meetings that cover the leaf pairs the mesh does not."""
        leaves: dict[str, list[str | None]] = {}
        for name in sorted(self._peers):
            if name == self._me:
                leaves[name] = [rail.leaf if rail.trouble is None else None for rail in self._rails]
            elif name not in absent:
                rails = hub.partners[name]["rails"]
                leaves[name] = [rail["leaf"] if rail["trouble"] is None else None for rail in rails]
        met = [pair for pairs in rounds for pair in pairs]
        if any(leaf for ends in leaves.values() for leaf in ends):
            return leaf_cover(leaves, met)
        # No leaf is known (Ethernet): every rail of a rack counts as one of its own.
        guessed = {
            name: [f"rack {self._peers[name]['rack']} rail {rail}" for rail in range(len(ends))]
            for name, ends in leaves.items()
        }
        return leaf_cover(guessed, met, between_rails=False)

    def _plan_few(self, hub: Hub, absent: Mapping[str, str]) -> Plan:
        """Return the meetings of those that are there, on all rails both have: a few partners for every node."""
        names = [name for name in sorted(self._peers) if name not in absent]
        count = {name: len(self._rails if name == self._me else hub.partners[name]["rails"]) for name in names}
        rounds = few_rounds(mesh(_racks(self._peers, names)), self._rounds)
        return [
            [
                Meeting(
                    *pair,
                    tuple(
                        (rail, rail)
                        for rail in rails_of_round(range(min(count[n] for n in pair)), index, self._p["rails"])
                    ),
                )
                for pair in pairs
            ]
            for index, pairs in enumerate(rounds)
        ]

    def _exchange(
        self,
        hub: Hub,
        leads: Sequence[str],
        lead: str | None,
        others: Sequence[str],
        topic: str,
        rows: Sequence[Message],
        planner: Planner,
    ) -> Plan:
        """Give this node's rows to the lead and return the plan it makes from all of them."""
        mine = self._result([_compact(row) for row in rows if row["client"] == self._me or row["error"]], {})
        for name in leads:
            if name != self._me:
                hub.send(name, {"type": topic, "value": mine})
        if lead is None:
            return []
        if lead != self._me:
            return self._answer(hub, lead, f"{topic} plan")
        plan = planner([mine, *self._gather(hub, others, topic)])
        for name in others:
            hub.send(name, {"type": f"{topic} plan", "value": _packed(plan)})
        return plan

    def _share(
        self,
        hub: Hub,
        leads: Sequence[str],
        lead: str | None,
        others: Sequence[str],
        rows: Sequence[Message],
        absent: Mapping[str, str],
    ) -> None:
        """Fetch the results of all nodes from the lead."""
        mine = self._result(rows, absent)
        for name in leads:
            if name != self._me:
                hub.send(name, {"type": "result of node", "value": mine})
        if lead == self._me:
            self.results = [mine, *self._gather(hub, others, "result of node")]
            for name in others:
                hub.send(name, {"type": "results", "value": self.results})
        elif lead is not None:
            with contextlib.suppress(Lost):
                self.results = hub.receive(lead, "results", self._deadline)["value"]

    def _gather(self, hub: Hub, others: Sequence[str], topic: str) -> list[Message]:
        gathered = []
        for name in others:
            with contextlib.suppress(Lost):
                gathered.append(hub.receive(name, topic, self._deadline)["value"])
        return gathered

    def _answer(self, hub: Hub, lead: str, topic: str) -> Plan:
        """Return the lead's plan; none when the lead is gone."""
        try:
            return _unpacked(hub.receive(lead, topic, self._deadline)["value"])
        except Lost:
            return []

    def _follow(
        self, hub: Hub, stack: contextlib.ExitStack, plan: Plan, base: int, absent: dict[str, str], kind: str
    ) -> list[Message]:
        """Take part in this node's meetings of a plan; its rounds count on from `base`."""
        mine = [(base + index, m) for index, meetings in enumerate(plan) for m in meetings if self._me in m.nodes]
        if any(meeting.server == self._me for _index, meeting in mine):
            self._serve_pings(stack)
        rows: list[Message] = []
        for index, meeting in mine:
            if meeting.server == meeting.client:
                rows += self._within(index, kind, meeting.rails)
                continue
            partner = meeting.server if meeting.client == self._me else meeting.client
            if partner not in absent and partner not in hub.partners:
                absent.update(self._roll_call(hub, [partner]))
            rows += self._meet(hub, index, (meeting.server, meeting.client), absent, kind, meeting.rails)
        return rows

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

    def _meet(
        self,
        hub: Hub,
        index: int,
        pair: Pair,
        absent: dict[str, str],
        kind: str,
        rails: Sequence[tuple[int, int]] | None,
    ) -> list[Message]:
        """Measure one partner on (server rail, client rail); None: the rails both have and this round asks for."""
        server, client = pair
        partner = server if client == self._me else client
        theirs = [Rail(**rail) for rail in hub.partners[partner]["rails"]] if partner in hub.partners else []
        ends = (theirs, self._rails) if client == self._me else (self._rails, theirs)
        if rails is None:
            common = [rail.rail for rail in self._rails]
            if partner not in absent:
                common = sorted({*common} & {rail.rail for rail in theirs})
            rails = [(rail, rail) for rail in rails_of_round(common, index, self._p["rails"])]
        if partner in absent:
            return [self._row(kind, index, pair, ends, used, error=f"{partner} {absent[partner]}") for used in rails]
        rows: list[Message] = []
        begun = False
        for done, used in enumerate(rails):
            row = self._row(kind, index, pair, ends, used)
            rows.append(row)
            if row["error"] is None and time.monotonic() >= self._deadline:
                row["error"] = f"not measured: the budget of {self._p['budget']:g} s was over"
            if row["error"] is not None:
                continue
            try:
                if not begun:
                    # The partner may be busy with an earlier one for long; a server started now would die waiting.
                    hub.send(partner, {"type": "begin", "round": index})
                    while hub.receive(partner, "begin", self._deadline)["round"] != index:
                        pass
                    begun = True
                if client == self._me:
                    self._as_client(hub, row, theirs[used[0]].guid)
                else:
                    self._as_server(hub, row)
            except Lost as exc:
                # A partner that is still there must not wait for the rest of the rails.
                hub.send(partner, {"type": "abort", "reason": str(exc)})
                absent[partner] = str(exc)
                why = f"{partner} {exc}"
                row["error"] = why
                rows += [self._row(kind, index, pair, ends, later, error=why) for later in rails[done + 1 :]]
                break
        return rows

    def _row(
        self,
        kind: str,
        index: int,
        pair: Pair,
        ends: tuple[Sequence[Rail], Sequence[Rail]],
        rails: tuple[int, int],
        error: str | None = None,
    ) -> Message:
        """Return an empty measurement; with an error at once where a port cannot be used."""
        server, client = pair
        row: Message = {
            "kind": kind,
            "round": index,
            "rail": rails[1],
            "server": server,
            "client": client,
            "error": error,
            "fault": None,
        }
        for side, name, known, rail in zip(("server", "client"), pair, ends, rails, strict=True):
            used = next((r for r in known if r.rail == rail), None)
            if row["error"] is None and used is not None and used.trouble is not None:
                row["error"] = f"{used.hca} of {name}: {used.trouble}"
                row["fault"] = {"node": name, "hca": used.hca, "why": used.trouble}
            row[f"{side}_hca"] = used.hca if used else None
            row[f"{side}_leaf"] = used.leaf if used else None
            row[f"{side}_rail"] = rail
        return {**row, **dict.fromkeys(FIELDS), "path_failed": False, "command": None}

    # Measuring

    def _tool(self, hca: str, port: int, address: str | None = None) -> list[str]:
        common = ["-d", hca, "-i", str(self._p["ib_port"]), "-p", str(port)]
        command = [self._probe.tool, *common, *self._probe.arguments]
        return [*self._bound(hca), *command, *([address] if address else [])]

    def _serve_pings(self, stack: contextlib.ExitStack, only: Sequence[int] | None = None) -> None:
        """Answer pings on every usable rail until the stack ends."""
        if self._p["link_layer"] != "infiniband" or not self._probe.ping:
            return
        for rail in self._rails:
            if rail.trouble is None and rail.rail not in self._answering and (only is None or rail.rail in only):
                command = ["ibping", "-S", "-C", rail.hca, "-P", str(self._p["ib_port"])]
                server = stack.enter_context(background(command, max(1.0, self._deadline - time.monotonic())))
                self._answering[rail.rail] = server
                stack.callback(self._answering.pop, rail.rail)

    def _ping_trouble(self, rail: int) -> str | None:
        """Return why this node does not answer pings on a rail. Without it a broken tool would look like a loss."""
        server = self._answering.get(rail)
        if server is None or server.running():
            return None
        read = server.evidence()
        said = next(iter((read.stderr + "\n" + read.stdout).strip().splitlines()[-1:]), "")
        return f"ibping -S: {read.error or f'ended with status {read.rc}'}" + (f" ({said[:120]})" if said else "")

    def _pair_deadline(self) -> float:
        """Return when the other end is stuck: its commands have deadlines of their own."""
        seconds: float = 4 * self._p["timeout"] + self._ping_s
        return min(self._deadline, time.monotonic() + seconds)

    def _as_server(self, hub: Hub, row: Message) -> None:
        port = tcp_port(self._p["control_port"], row["round"], row["rail"], len(self._rails))
        client, hca = row["client"], row["server_hca"]
        late = "gave no result of the pair in time"
        if self._stuck >= STUCK_LIMIT:
            hub.send(client, {"type": "ready", "rail": row["rail"], "port": port, "problem": self._stuck_text()})
            result = hub.receive(client, "result", self._pair_deadline(), late)
            row.update({key: value for key, value in result["row"].items() if key in row})
            return
        with background(self._tool(hca, port), 2 * self._p["timeout"]) as server:
            problem = self._await_listener(server, port)
            deaf = self._ping_trouble(row["server_rail"])
            ready = {"type": "ready", "rail": row["rail"], "port": port, "problem": problem, "deaf": deaf}
            hub.send(client, ready)
            result = hub.receive(client, "result", self._pair_deadline(), late)
            server.wait(1.0 if problem is None and result["row"]["error"] is None else 0.0)
            evidence = server.stop()
        self._evidence.append(evidence)
        row.update({key: value for key, value in result["row"].items() if key in row})

    def _as_client(self, hub: Hub, row: Message, guid: str | None) -> None:
        server = row["server"]
        ready = hub.receive(server, "ready", self._pair_deadline(), "did not start its side of the pair in time")
        if ready["problem"] is not None:
            row["error"] = f"{self._probe.tool} on {server}: {ready['problem']}"
            row["fault"] = {"node": server, "hca": row["server_hca"], "why": ready["problem"]}
        else:
            self._measure(row, int(ready["port"]), self._peers[server]["address"], guid, ready.get("deaf"))
        hub.send(server, {"type": "result", "row": row})

    def _measure(self, row: Message, port: int, address: str, guid: str | None, deaf: str | None) -> None:
        """Measure from this node to a server that listens; `deaf` says why it does not answer pings."""
        hca, tool = row["client_hca"], self._probe.tool
        if self._stuck >= STUCK_LIMIT:
            row["error"] = self._stuck_text()
            row["fault"] = {"node": self._me, "hca": None, "why": self._stuck_text()}
            return
        before = _retransmissions(hca, self._p["ib_port"])
        command = self._tool(hca, port, address)
        read = self._run(command)
        # The server listens already, so this is a management network that drops a connection; once more is enough.
        if read.error is None and "Couldn't connect to" in read.stdout + read.stderr:
            read = self._run(command)
        row["command"] = read.command
        late = read.error is not None and "still running" in read.error
        self._stuck = self._stuck + 1 if late else 0
        measured, problem = self._probe.read(read.stdout)
        named = explain(read.stdout + "\n" + read.stderr)
        if read.error is not None or read.rc != 0 or named is not None or problem is not None:
            why = read.error or named or problem
            row["error"] = f"{tool}: {why or f'exit status {read.rc}'}"
            if read.error is not None and read.error.startswith("could not start"):
                row["fault"] = {"node": self._me, "hca": None, "why": f"{tool} {read.error}"}
            else:
                # Both tools met on the management network and then got stuck or failed: that is the fabric. A client
                # that could not connect, or printed what nobody can read with exit status 0, says nothing about it.
                failed = read.rc != 0 or (named or "").lower().startswith("completion with")
                row["path_failed"] = failed and "Couldn't connect to" not in read.stdout + read.stderr
        else:
            row.update(measured)
        if self._probe.ping and self._p["link_layer"] == "infiniband" and deaf is not None:
            row["error"] = row["error"] or f"{deaf} on {row['server']}"
            row["fault"] = row["fault"] or {"node": row["server"], "hca": None, "why": deaf}
        elif self._probe.ping and self._p["link_layer"] == "infiniband":
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
        ping = ["ibping", "-c", str(self._pings), "-f", "-C", hca, "-P", str(self._p["ib_port"]), "-G", guid]
        seconds = self._ping_s
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
        pair, ends = (self._me, self._me), (self._rails, self._rails)
        broken = [r.rail for r in self._rails if r.trouble is not None]
        rows = [self._row("self", 0, pair, ends, (rail, rail)) for rail in broken]
        return rows + self._within(0, "self", [(server, client) for client, server in self_pairs(usable)])

    def _within(self, index: int, kind: str, rails: Sequence[tuple[int, int]]) -> list[Message]:
        """Measure (server rail, client rail) of this node's own."""
        rows: list[Message] = []
        with contextlib.ExitStack() as stack:
            self._serve_pings(stack, [server for server, _client in rails])
            for used in rails:
                row = self._row(kind, index, (self._me, self._me), (self._rails, self._rails), used)
                rows.append(row)
                if row["error"] is None and time.monotonic() >= self._deadline:
                    row["error"] = f"not measured: the budget of {self._p['budget']:g} s was over"
                if row["error"] is not None:
                    continue
                server = self._rails[used[0]]
                port = tcp_port(self._p["control_port"], index, used[1], len(self._rails))
                with background(self._tool(server.hca, port), 2 * self._p["timeout"]) as process:
                    problem = self._await_listener(process, port)
                    if problem is None:
                        self._measure(row, port, "127.0.0.1", server.guid, self._ping_trouble(used[0]))
                        process.wait(1.0 if row["error"] is None else 0.0)
                    else:
                        row["error"] = f"{self._probe.tool}: {problem}"
                        row["fault"] = {"node": self._me, "hca": server.hca, "why": problem}
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
        return f"{self._probe.tool} ran into its deadline {STUCK_LIMIT} times in a row and is not tried again"

    def _run(self, argv: Sequence[str], timeout: float | None = None) -> Evidence:
        limit = min(timeout or self._p["timeout"], max(1.0, self._deadline - time.monotonic()))
        read = _cli.run(argv, limit)
        self._evidence.append(read)
        return read


def _racks(peers: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> list[list[str]]:
    """Return the names by rack."""
    racks: dict[str, list[str]] = {}
    for name in names:
        racks.setdefault(peers[name]["rack"], []).append(name)
    return list(racks.values())


def _between(row: Mapping[str, Any], one: str, other: str) -> bool:
    return {row["client"], row["server"]} == {one, other}


def _compact(row: Message) -> Message:
    """Return a row without what no plan needs."""
    return {key: value for key, value in row.items() if key != "command"}


def _packed(plan: Plan) -> list[list[Any]]:
    """Return a plan as JSON."""
    return [[[m.server, m.client, [list(rails) for rails in m.rails]] for m in meetings] for meetings in plan]


def _unpacked(value: Any) -> Plan:
    return [
        [Meeting(server, client, tuple((one, other) for one, other in rails)) for server, client, rails in meetings]
        for meetings in value
    ]


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

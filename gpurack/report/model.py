"""The report of a run as one document (see schema.json), and the raw outputs it refers to by digest. Pure."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from gpurack.report.read import STAGES, GateFile, Json, NodeFiles, RunFiles, as_dict, as_list, natural, text
from gpurack.report.topology import Topologies

SCHEMA = "gpu_rack.report/1"
VERDICTS = ("pass", "warn", "unknown", "fail")
STATES = (*VERDICTS, "unreachable", "no evidence")
# What takes a node out. Nothing but a measured pass or warn is fine.
OUT = frozenset({"unknown", "fail", "unreachable", "no evidence"})
# Worst first, as people want to read them.
ORDER = {state: place for place, state in enumerate(("fail", "unreachable", "unknown", "no evidence", "warn", "pass"))}
_CHECK = ("check", "subject", "verdict", "value", "unit", "limit", "limit_source", "reason", "remedy")
_VERSION = re.compile(r"version|firmware|vbios|gsp|fabric_manager", re.IGNORECASE)
_FLEET_PERCENT = 5.0

_SECRET = re.compile(
    r"(?i)(\bbearer\s+|\bbasic\s+|x-consul-token:\s*|"
    r"\b(?:password|passwd|secret|token|api[_-]?key|private[_-]?key|access[_-]?key)\b[\"']?\s*[:=]\s*[\"']?|"
    # CONSUL_HTTP_TOKEN=, --api-key value
    r"_(?:password|passwd|secret|token|(?:api|private|access)_?key)(?:=|[\"']\s*:\s*)[\"']?|"
    r"(?<!\S)--?(?:[a-z]{1,16}-){0,3}(?:password|secret|token|api-key)[=\s]\s*[\"']?)"
    r"(?=[^\s\"',;]*[A-Za-z])([^\s\"',;]{8,})"
)
_PEM = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_URL = re.compile(r"(://[^\s/:@]{1,64}:)[^\s/@]{1,256}@")
REDACTED = "[redacted]"


@dataclasses.dataclass
class Report:
    """`document` is what report.json holds; `outputs` the text of every reading by its digest."""

    document: Json
    outputs: dict[str, str]


@dataclasses.dataclass
class _Node:
    """What is kept of a node until all are read."""

    name: str
    state: str
    reason: str
    stages: dict[str, Json]
    checks: list[Json]
    evidence: list[Json]
    units: dict[str, str]


def redact(given: str) -> str:
    """Return text without what looks like a credential. No gate reads one; a tool may print one all the same."""
    given = _URL.sub(rf"\1{REDACTED}@", given)
    return _PEM.sub(REDACTED, _SECRET.sub(lambda match: match[1] + REDACTED, given))


def _words(value: Any) -> str:
    """Return text of a node for people: one line of visible characters, without what looks like a credential."""
    return _one_line(text(value))


# A rack's checks say the same few thousand words.
@functools.lru_cache(maxsize=1 << 16)
def _one_line(given: str) -> str:
    return redact(" ".join("".join(c if c.isprintable() else " " for c in given).split()))


def build(files: RunFiles, generated: str) -> Report:
    """Return the report of a run. `generated` is the time of its making, for the reader."""
    outputs: dict[str, str] = {}
    nodes: list[_Node] = []
    fabric, topologies, times, fleet = _Fabric(), Topologies(), _Times(), _Fleet()
    summaries = as_dict(files.summary.get("nodes"))
    for raw in files.nodes():
        nodes.append(_node(raw, as_dict(summaries.get(raw.name)), outputs))
        for (stage, gate), file in raw.evidence.items():
            fabric.take(gate, file.data)
            topologies.take(raw.name, file.data)
            times.take(raw.name, stage, gate, file.data)
            fleet.take(raw.name, file.data)
    _missing_stages(nodes)
    for node in nodes:
        fleet.take_checks(node.name, node.checks)
    counts = {state: sum(1 for node in nodes if node.state == state) for state in STATES}
    findings = sorted(
        ({"node": node.name, **check} for node in nodes for check in node.checks if check["verdict"] != "pass"),
        key=lambda f: (ORDER[f["verdict"]], f["check"], natural(f["node"]), f["subject"]),
    )
    document = {
        "schema": SCHEMA,
        "run": files.run,
        "generated": generated,
        "playbook": text(files.summary.get("playbook")),
        "verdict": _worst(node.state for node in nodes),
        "counts": counts,
        "nodes": [vars(node) for node in nodes],
        "findings": findings,
        "fabric": fabric.document([node.name for node in nodes], [c for node in nodes for c in node.checks]),
        "topology": topologies.document([c | {"node": node.name} for node in nodes for c in node.checks]),
        "nccl": _nccl(nodes),
        "versions": fleet.versions(),
        "values": fleet.values(),
        "times": times.document(files.summary),
    }
    return Report(document, outputs)


def out_of(document: Mapping[str, Any]) -> list[str]:
    """Return the nodes that are out."""
    return [node["name"] for node in document["nodes"] if node["state"] in OUT]


def _worst(states: Iterable[str]) -> str:
    return min(states, key=ORDER.__getitem__, default="no evidence")


def number(value: Any) -> float | None:
    """Return a finite number, None for everything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # An integer may be too large for a float.
    return value if abs(value) < 1e15 and math.isfinite(value) else None


def _scalar(value: Any) -> str | int | float | bool | None:
    if value is None or isinstance(value, bool):
        return value
    return number(value) if number(value) is not None else _words(value)


def _check(stage: str, given: Any) -> Json:
    item = as_dict(given)
    found: Json = {key: _words(item.get(key)) for key in _CHECK}
    found |= {"value": _scalar(item.get("value")), "limit": _scalar(item.get("limit")), "stage": stage}
    found["gate"] = found["check"].partition(".")[0]
    if found["verdict"] not in VERDICTS:
        found |= {"verdict": "unknown", "reason": f"the verdict {found['verdict']!r} is none. {found['reason']}"}
    return found


def own_check(name: str, subject: str, reason: str, stage: str = "") -> Json:
    """Return a check of the report itself: something that should be there and is not."""
    return {
        "check": name, "subject": subject, "verdict": "unknown", "value": None, "unit": "", "limit": None,
        "limit_source": "", "reason": reason, "remedy": "", "stage": stage, "gate": "report",
    }  # fmt: skip


def _node(raw: NodeFiles, summary: Json, outputs: dict[str, str]) -> _Node:
    checks: list[Json] = []
    stages: dict[str, Json] = {}
    for stage in STAGES:
        own = {gate: file for (of, gate), file in raw.evidence.items() if of == stage}
        if stage in raw.decisions:
            stages[stage], found = _decided(stage, raw.decisions[stage], own, bool(raw.evidence))
        elif own:
            stages[stage], found = _undecided(stage, own)
        else:
            continue
        checks += found
    checks += [own_check("report.files", raw.name, redact(problem)) for problem in raw.problems]
    evidence = [_evidence(stage, gate, file, checks, outputs) for (stage, gate), file in sorted(raw.evidence.items())]
    checks.sort(key=lambda c: STAGES.index(c["stage"]) if c["stage"] in STAGES else -1)
    state, reason = _state(raw, summary, checks)
    units = {text(unit): text(value) for unit, value in as_dict(summary.get("units")).items()}
    return _Node(raw.name, state, reason, stages, checks, evidence, units)


def _state(raw: NodeFiles, summary: Json, checks: Sequence[Json]) -> tuple[str, str]:
    out = as_dict(summary.get("out"))
    said = _words(out.get("reason"))
    where = f"out at {text(out.get('stage'))}, {text(out.get('check'))}: {said}"
    if raw.fetch == "unreachable":
        return "unreachable", _words(raw.message) or "no answer when the evidence was fetched"
    if not checks:
        if out:
            return "unreachable" if out.get("kind") == "unreachable" else "fail", where
        return "no evidence", "neither a decision nor evidence of this run"
    state = _worst(check["verdict"] for check in checks)
    if out and state not in OUT:
        return "unreachable" if out.get("kind") == "unreachable" else "fail", where
    if state == "pass":
        return state, ""
    same = [check for check in checks if check["verdict"] == state]
    more = f" (+{len(same) - 1} more)" if len(same) > 1 else ""
    return state, f"{same[0]['check']} {same[0]['subject']}: {measured(same[0])}{more}"


def measured(check: Mapping[str, Any]) -> str:
    """Return the value of a check with its limit, or the reason when nothing was read."""
    if check["value"] is None:
        return str(check["reason"])
    unit = f" {check['unit']}" if check["unit"] else ""
    limit = "" if check["limit"] is None else f", limit {check['limit']}{unit}"
    return f"{check['value']}{unit}{limit}"


def _decided(stage: str, decision: Json, own: Mapping[str, GateFile], fetched: bool) -> tuple[Json, list[Json]]:
    checks = [_check(stage, item) for item in as_list(decision.get("checks"))]
    gates: dict[str, Json] = {}
    for name, item in as_dict(decision.get("gates")).items():
        gate, found = text(name), as_dict(item)
        digest = text(found.get("sha256"))
        if gate in own and own[gate].sha256 != digest:
            why = f"the fetched evidence has SHA-256 {own[gate].sha256}, the decision was made on {digest or 'none'}"
            checks.append(own_check("report.evidence", gate, why, stage))
        elif fetched and digest and gate not in own:
            why = "the decision names evidence that was not on the node any more"
            checks.append(own_check("report.evidence", gate, why, stage))
        gates[gate] = {"verdict": _verdict(found.get("verdict")), "sha256": digest, "time": number(found.get("time"))}
    stated = _verdict(decision.get("verdict"))
    if not checks or stated != _worst(c["verdict"] for c in checks if c["gate"] != "report"):
        checks.append(
            own_check("report.decision", stage, f"its verdict {stated} is not the worst of its checks", stage)
        )
    head = {"verdict": stated, "decided": True, "time": number(decision.get("time")), "gates": gates}
    return head, checks


def _undecided(stage: str, own: Mapping[str, GateFile]) -> tuple[Json, list[Json]]:
    checks = [_check(stage, item) for file in own.values() for item in as_list(file.data.get("checks"))]
    checks.append(own_check("report.decision", stage, "there is evidence, and no decision of this run", stage))
    gates = {
        gate: {
            "verdict": _verdict(file.data.get("verdict")),
            "sha256": file.sha256,
            "time": number(file.data.get("time")),
        }
        for gate, file in own.items()
    }
    return {"verdict": "unknown", "decided": False, "time": None, "gates": gates}, checks


def _verdict(value: Any) -> str:
    return value if isinstance(value, str) and value in VERDICTS else "unknown"


def _missing_stages(nodes: Sequence[_Node]) -> None:
    """A stage that others went through and a good node did not is not good: nobody knows."""
    for stage in STAGES:
        if not any(stage in node.stages for node in nodes):
            continue
        for node in nodes:
            if node.state in ("pass", "warn") and stage not in node.stages:
                why = f"other nodes have a decision of the stage {stage} in this run, this one has none"
                node.checks.append(own_check("report.decision", stage, why, stage))
                node.state, node.reason = "unknown", f"{stage}: {why}"


def _evidence(stage: str, gate: str, file: GateFile, checks: list[Json], outputs: dict[str, str]) -> Json:
    readings = []
    for item in map(as_dict, as_list(file.data.get("evidence"))):
        entry: Json = {
            "command": _words(item.get("command")),
            "rc": item.get("rc") if isinstance(item.get("rc"), int) else None,
            "seconds": number(item.get("seconds")),
            "error": _words(item.get("error")),
        }
        stdout, stderr = (part if isinstance(part, str) else "" for part in map(item.get, ("stdout", "stderr")))
        if item.get("sha256") not in (None, _digest(stdout)):
            why = f"the output of {entry['command']} does not match the SHA-256 stored with it"
            checks.append(own_check("report.evidence", gate, why, stage))
        entry["stdout"] = _keep(stdout, outputs)
        entry["stderr"] = _keep(stderr, outputs)
        readings.append(entry)
    return {"stage": stage, "gate": gate, "path": text(file.path), "sha256": file.sha256, "readings": readings}


def _digest(output: str) -> str:
    """Return the digest of an output as the gates make it: of the bytes that the tool printed."""
    try:
        return hashlib.sha256(output.encode("utf-8", "surrogateescape")).hexdigest()
    except UnicodeEncodeError:
        return hashlib.sha256(output.encode("utf-8", "replace")).hexdigest()


def _keep(output: str, outputs: dict[str, str]) -> Json | None:
    if not output:
        return None
    digest = _digest(output)
    outputs.setdefault(digest, redact(text(output)))
    return {"sha256": digest, "bytes": len(output.encode("utf-8", "replace"))}


# -- fabric ---------------------------------------------------------------------------------------------------------

_QUANTITIES: dict[str, tuple[str, str, str]] = {
    "t_typical_us": ("Latency, typical", "us", "latency"),
    "p99_us": ("Latency, 99th percentile", "us", "p99"),
    "loss": ("Loss", "%", "loss"),
    "retransmissions": ("Retransmissions", "", "retransmissions"),
    "bw_gbps": ("Bandwidth", "Gb/s", "bandwidth"),
    "bandwidth_gbps": ("Bandwidth", "Gb/s", "bandwidth"),
}
_UNITS = {"_us": "us", "_ms": "ms", "_gbps": "Gb/s", "_gbit_s": "Gb/s", "_gb_s": "GB/s", "_gbs": "GB/s"}
_NO_QUANTITY = frozenset({"timeout_ms", "budget_us"})
# A fabric of 128 nodes has 1,152 cables; a node that names more suspects is one itself.
_MOST_BLAMED = 2000


class _Fabric:
    """Collects the rows that nodes measured of each other. The same row is stored by several nodes."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str, str, int], Json] = {}
        self._quantities: dict[str, str] = {}
        self._last: dict[tuple[str, str], list[Any]] = {}
        self._blamed: dict[str, str] = {}
        self._leaves: dict[str, set[tuple[str, str]]] = defaultdict(set)

    def take(self, gate: str, data: Json) -> None:
        """Take the rows of one gate's evidence."""
        for key in ("matrix", "pairs", "rows"):
            rows = as_list(data.get(key))
            # Every node may store the whole matrix: 128 times the same rows.
            if rows and rows != self._last.get((gate, key)):
                self._last[(gate, key)] = rows
                for row in map(as_dict, rows):
                    self._row(gate, row)
        for key in ("culprits", "suspects"):
            for item in as_list(data.get(key)):
                words = text(item) if isinstance(item, str) else " ".join(text(v) for v in as_dict(item).values() if v)
                known = words in self._blamed or len(self._blamed) < _MOST_BLAMED
                if words and known and self._blamed.get(words) != "culprits":
                    self._blamed[words] = key

    def _row(self, gate: str, row: Json) -> None:
        client, server = row.get("client"), row.get("server")
        # What was measured again explains a row and is none of its own.
        if not isinstance(client, str) or not isinstance(server, str) or row.get("kind") == "retest":
            return
        rail = row.get("rail")
        rail = rail if isinstance(rail, int) and 0 <= rail < 1024 else 0
        hcas = text(row.get("client_hca")), text(row.get("server_hca"))
        known = self._rows.setdefault((client, server, *hcas, rail), {"bad": None, "error": ""})
        for key, value in row.items():
            if not isinstance(key, str) or key in _NO_QUANTITY or number(value) is None:
                continue
            if key in _QUANTITIES or key.endswith(tuple(_UNITS)):
                self._quantities.setdefault(key, gate)
                known.setdefault(key, number(value))
        if isinstance(row.get("bad"), bool):
            known["bad"] = known["bad"] or row["bad"]
        again = "bad once, good when it was measured again" if row.get("transient") is True else ""
        known["error"] = known["error"] or _words(row.get("error")) or again
        for end, name, hca in (("client", client, hcas[0]), ("server", server, hcas[1])):
            leaf = row.get(f"{end}_leaf")
            if isinstance(leaf, str) and leaf:
                self._leaves[leaf].add((name, hca))

    def document(self, names: Sequence[str], checks: Sequence[Json]) -> Json:
        """Return nodes, rails, quantities with their limits, the pairs, and what is blamed."""
        measured_names = {end for key in self._rows for end in key[:2]}
        nodes = sorted({*names, *measured_names}, key=natural) if self._rows else []
        index = {name: place for place, name in enumerate(nodes)}
        keys = [key for key in _QUANTITIES if key in self._quantities]
        keys += sorted(key for key in self._quantities if key not in _QUANTITIES)
        quantities = [self._quantity(key, checks) for key in keys]
        errors = {message: place for place, message in enumerate(sorted({r["error"] for r in self._rows.values()}))}
        hcas = sorted({hca for key in self._rows for hca in key[2:4]}, key=natural)
        hca = {name: place for place, name in enumerate(hcas)}
        pairs = [
            [
                index[key[0]], index[key[1]], key[4], hca[key[2]], hca[key[3]], row["bad"], errors[row["error"]],
                *(row.get(quantity) for quantity in keys),
            ]
            for key, row in sorted(self._rows.items(), key=lambda item: (index[item[0][0]], index[item[0][1]], item[0]))
        ]  # fmt: skip
        return {
            "nodes": nodes,
            "rails": sorted({key[4] for key in self._rows}),
            "hcas": hcas,
            "errors": list(errors),
            "quantities": quantities,
            "columns": ["client", "server", "rail", "client_hca", "server_hca", "bad", "error", *keys],
            "pairs": pairs,
            "blamed": [
                self._element(words, key == "culprits", nodes, set(hcas)) for words, key in sorted(self._blamed.items())
            ],
        }

    def _quantity(self, key: str, checks: Sequence[Json]) -> Json:
        gate = self._quantities[key]
        ending = next((end for end in _UNITS if key.endswith(end)), "")
        fallback = (key.removesuffix(ending).replace("_", " ").capitalize(), _UNITS.get(ending, ""), "")
        label, unit, fact = _QUANTITIES.get(key, fallback)
        own = [
            c
            for c in checks
            if (c["check"].endswith(f".{fact}") and c["gate"].startswith("ib_") if fact else c["gate"] == gate)
            and c["unit"] == unit
            and None not in (number(c["limit"]), number(c["value"]))
        ]
        better = "higher" if unit in ("Gb/s", "GB/s") else "lower"
        limits = sorted({float(c["limit"]) for c in own})
        source = Counter(c["limit_source"] for c in own).most_common(1)[0][0] if own else ""
        return {
            "key": key, "label": label, "unit": unit, "gate": gate, "better": better, "limits": limits,
            "limit_source": source,
        }  # fmt: skip

    def _element(self, words: str, certain: bool, nodes: Sequence[str], hcas: Set[str]) -> Json:
        """Return a blamed element with the nodes and ports it names, so that a matrix can mark them."""
        parts = set(re.findall(r"[A-Za-z0-9_.:-]+", words))
        ports = sorted(hcas & parts, key=natural)
        leaf = sorted(
            {name for leaf, ends in self._leaves.items() if leaf in parts for name, _hca in ends}, key=natural
        )
        return {
            "text": _words(words), "certain": certain,
            "nodes": [name for name in nodes if name in parts] or leaf, "hcas": ports,
        }  # fmt: skip


# -- the fleet ------------------------------------------------------------------------------------------------------


class _Fleet:
    """Facts that should be equal over the rack, and values that should be near each other."""

    def __init__(self) -> None:
        self._versions: dict[str, dict[str, str]] = defaultdict(dict)
        self._values: dict[str, dict[str, float]] = defaultdict(dict)
        self._kinds: dict[str, tuple[str, str]] = {}

    def take(self, node: str, data: Json) -> None:
        """Take what a gate says of it in its evidence."""
        fleet = as_dict(data.get("fleet"))
        for fact, value in as_dict(fleet.get("versions")).items():
            if isinstance(fact, str) and value not in (None, ""):
                self._versions[fact][node] = _words(value)
        for fact, item in as_dict(fleet.get("values")).items():
            found = number(as_dict(item).get("value"))
            if isinstance(fact, str) and found is not None:
                self._values[fact][node] = found
                better = "lower" if item.get("better") == "lower" else "higher"
                self._kinds[fact] = (text(item.get("unit")), better)

    def take_checks(self, node: str, checks: Sequence[Json]) -> None:
        """Take versions from checks, of facts that no gate gives for the fleet."""
        found: dict[str, set[str]] = defaultdict(set)
        for check in checks:
            if (
                _VERSION.search(check["check"])
                and isinstance(check["value"], str)
                and any(map(str.isdigit, check["value"]))
            ):
                found[check["check"]].add(check["value"])
        for fact, values in found.items():
            self._versions[fact].setdefault(node, ", ".join(sorted(values)))

    def versions(self) -> list[Json]:
        """Return a row a fact: the most common value, how many nodes have it, and the odd ones out."""
        rows = []
        for fact, by_node in sorted(self._versions.items()):
            counted = Counter(by_node.values()).most_common()
            # Two values as common as each other: nobody can say which is the odd one.
            common = counted[0][0] if len(counted) == 1 or counted[0][1] > counted[1][1] else None
            groups = [
                {"value": value, "nodes": sorted((n for n, v in by_node.items() if v == value), key=natural)}
                for value, _count in counted
            ]
            rows.append({"fact": fact, "common": common, "groups": groups})
        return rows

    def values(self) -> list[Json]:
        """Return a row a value: median, extremes, and the nodes more than 5 % worse than the median."""
        rows = []
        for fact, by_node in sorted(self._values.items()):
            unit, better = self._kinds[fact]
            median = statistics.median(by_node.values())
            room = abs(median) * _FLEET_PERCENT / 100
            odd = {
                node: value
                for node, value in by_node.items()
                if (value < median - room if better == "higher" else value > median + room)
            }
            rows.append({
                "fact": fact, "unit": unit, "better": better, "median": median, "nodes": len(by_node),
                "min": min(by_node.values()), "max": max(by_node.values()),
                "odd": [{"node": node, "value": odd[node]} for node in sorted(odd, key=natural)],
            })  # fmt: skip
        return rows


def _nccl(nodes: Sequence[_Node]) -> list[Json]:
    rows = []
    for node in nodes:
        for check in node.checks:
            value, limit = number(check["value"]), number(check["limit"])
            if check["gate"].startswith("nccl") and "/s" in check["unit"] and value is not None and limit is not None:
                keys = ("check", "subject", "verdict", "unit", "limit_source")
                rows.append({"node": node.name, "value": value, "floor": limit, **{key: check[key] for key in keys}})
    return rows


# -- time -----------------------------------------------------------------------------------------------------------


class _Times:
    """Seconds of every gate and command on every node."""

    def __init__(self) -> None:
        self._gates: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
        self._commands: dict[tuple[str, str], dict[str, list[tuple[float, str]]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def take(self, node: str, stage: str, gate: str, data: Json) -> None:
        """Take the seconds of one gate: its own where it states them, else the sum of its commands."""
        total = 0.0
        for item in map(as_dict, as_list(data.get("evidence"))):
            seconds = number(item.get("seconds"))
            if seconds is not None and seconds >= 0:
                total += seconds
                self._commands[(stage, gate)][_words(item.get("command"))].append((float(seconds), node))
        own = number(data.get("seconds"))
        if own is not None and own >= 0:
            total = float(own)
        if total:
            self._gates[(stage, gate)][node] = round(total, 3)

    def document(self, summary: Json) -> Json:
        """Return steps of the playbook, and per gate the median and the slowest node, with its commands."""
        steps = [
            {"step": _words(step), "seconds": round(float(seconds), 3)}
            for step, seconds in as_dict(summary.get("steps")).items()
            if number(seconds) is not None
        ]
        gates = []
        for (stage, gate), by_node in sorted(self._gates.items(), key=lambda item: (STAGES.index(item[0][0]), item[0])):
            commands = [
                {"command": command, "runs": len(found), **_spread(found)}
                for command, found in self._commands[(stage, gate)].items()
            ]
            commands.sort(key=lambda c: -c["max"])
            gates.append({
                "stage": stage, "gate": gate, "nodes": len(by_node),
                **_spread([(seconds, node) for node, seconds in by_node.items()]), "commands": commands,
            })  # fmt: skip
        return {"total": number(summary.get("seconds")), "steps": steps, "gates": gates}


def _spread(found: Sequence[tuple[float, str]]) -> Json:
    slowest = max(found, key=lambda item: item[0])
    median = statistics.median(seconds for seconds, _node in found)
    return {"median": round(median, 3), "max": round(slowest[0], 3), "slowest": slowest[1]}


def grouped(findings: Sequence[Json]) -> list[tuple[Json, list[Json]]]:
    """Return sorted findings by verdict and check, each group with its first finding as the example."""
    groups: dict[tuple[str, str], list[Json]] = {}
    for finding in findings:
        groups.setdefault((finding["verdict"], finding["check"]), []).append(finding)
    return [(items[0], items) for items in groups.values()]

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether a node and its services are healthy in Consul, all checks together. Pure functions.

A dead agent leaves the checks of its services as they were (hashicorp/consul issues 1790, 2740, 3734, 4721). Only
serfHealth, which the servers keep, tells of it, so a passing service means nothing without it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, Verdict, unknown

CHECKS: dict[str, str] = {
    "consul_health.output": "Consul's answer is a list of health checks that can be read.",
    "consul_health.node": "The node has checks in the catalog at all.",
    "consul_health.serf": "serfHealth of the node, by which the servers say that its agent is alive; the limit is "
    "passing.",
    "consul_health.stale": "No service shows passing on a node whose serfHealth is critical: its status would be from "
    "before the agent died.",
    "consul_health.check": "Status of every other check of the node and its services with its output; warning is a "
    "warn, critical a fail.",
    "consul_health.maintenance": "Neither the node nor a service is in maintenance mode; option maintenance says "
    "whether that is a warn or a fail.",
    "consul_health.service": "Every service of option services is in the catalog on this node with a check that "
    "passes.",
}

SERF = "serfHealth"
_CURL = re.compile(
    r"% Total\b.*|Dload\b.*|(?:\d+\s+[\d.]+[kMG]?\s+){3}.*[\d.:-]+\s+[\d.]+[kMG]?"
    r"|HTTP/[\d.]+ 200(?: OK)?|[A-Za-z][A-Za-z0-9-]*: .*"
)
_NODE_MAINTENANCE = "_node_maintenance"
_SERVICE_MAINTENANCE = "_service_maintenance:"
_STATUSES = frozenset({"passing", "warning", "critical"})
_CATALOG = "Consul's catalog"
_SEE_AGENT = "See journalctl -u consul on the node, and consul members on a server."


@dataclasses.dataclass(frozen=True, slots=True)
class Health:
    """One check of the catalog. `service` is the id of its service, empty for a check of the node."""

    node: str
    check: str
    name: str
    status: str
    output: str
    notes: str
    service: str
    service_name: str

    @property
    def subject(self) -> str:
        """Name of the check in results."""
        return f"{self.node} {self.service}: {self.check}" if self.service else f"{self.node} {self.check}"

    @property
    def said(self) -> str:
        """What the check said last, or the reason of a maintenance, in one line."""
        text = " ".join((self.output or self.notes).split())
        return text[:240] or "no output"


def parse(text: str) -> tuple[list[Health], str | None]:
    """Return the checks in an answer and why it cannot be read.

    Takes the answers of /v1/health/node, /v1/health/checks and /v1/health/state (a list of checks), of
    /v1/health/service (a list of services with their checks) and of /v1/agent/checks (checks by id).
    """
    text = _without_curl(text)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        first = text.strip().partition("\n")[0][:120]
        return [], f"Consul did not answer with JSON ({str(exc)[:80]}): {first!r}" if first else "the answer is empty"
    if isinstance(data, dict):
        data = list(data.values())
    if not isinstance(data, list):
        return [], f"Consul's answer is no list of checks: {text.strip()[:120]!r}"
    found: dict[tuple[str, str], Health] = {}
    for entry in data:
        checks = entry.get("Checks") if isinstance(entry, dict) and "Checks" in entry else [entry]
        if not isinstance(checks, list):
            return [], f"the checks of an entry are no list: {str(checks)[:120]}"
        for item in checks:
            health = _health(item)
            if health is None:
                return [], f"this is no check of Consul: {str(item)[:120]}"
            before = found.setdefault((health.node, health.check), health)
            if before.status != health.status:
                return [], f"{health.subject} is there twice, as {before.status} and as {health.status}"
    return list(found.values()), None


def _without_curl(text: str) -> str:
    """Return the answer without what curl writes before it: its progress with 2>&1, the head of a good answer with -i.

    Anything else before the answer stays, and makes it unreadable.
    """
    lines = text.splitlines(keepends=True)
    start = next((i for i, line in enumerate(lines) if line.lstrip().startswith(("[", "{"))), 0)
    if start and all(not line.strip() or _CURL.fullmatch(line.strip()) for line in lines[:start]):
        return "".join(lines[start:])
    return text


def _health(item: Any) -> Health | None:
    if not isinstance(item, dict):
        return None
    node, check, status = item.get("Node"), item.get("CheckID"), item.get("Status")
    if not (isinstance(node, str) and isinstance(check, str) and check and isinstance(status, str)):
        return None
    texts = [item.get(key) or "" for key in ("Name", "Output", "Notes", "ServiceID", "ServiceName")]
    if not all(isinstance(text, str) for text in texts):
        return None
    name, output, notes, service, service_name = texts
    return Health(node, check, name, status, output, notes, service, service_name)


def judge(reading: Evidence, node: str | None, services: Sequence[str], maintenance: Verdict) -> list[Check]:
    """Return the checks of a node, of all nodes in the answer without a name.

    `maintenance` is the verdict on a maintenance mode. `services` are ids (or names) that must be there and pass.
    """
    subject = node or "Consul"
    if reason := refusal(reading):
        return [unknown("consul_health.output", subject, reason, "See that the agent runs and the token may read.")]
    found, problem = parse(reading.stdout)
    if problem:
        return [unknown("consul_health.output", subject, problem, "Ask the agent's /v1/health/node/<node>.")]
    nodes = [node] if node is not None else list(dict.fromkeys(health.node for health in found))
    checks: list[Check] = []
    for name in nodes:
        # Consul's names know no case.
        own = [health for health in found if health.node.lower() == name.lower()]
        checks += _node(name, own, services, maintenance)
    if not checks:
        reason = "the answer holds no check: Consul knows no such node, or the token may not read it"
        checks.append(unknown("consul_health.node", subject, reason, _SEE_AGENT))
    return checks


def _node(name: str, own: Sequence[Health], services: Sequence[str], maintenance: Verdict) -> Iterator[Check]:
    """Yield the checks of one node."""
    if not own:
        reason = f"Consul has no check of the node {name}, or the token may not read it"
        yield unknown("consul_health.node", name, reason, _SEE_AGENT, "present", _CATALOG)
        return
    serf = next((health for health in own if health.check == SERF), None)
    yield _serf(name, serf)
    for health in own:
        if health.check == SERF:
            continue
        if health.check == _NODE_MAINTENANCE or health.check.startswith(_SERVICE_MAINTENANCE):
            yield _maintenance(health, maintenance)
        elif serf is not None and serf.status == "critical" and health.status == "passing" and health.service:
            reason = (
                f"stale: it passes in the catalog while {SERF} is critical ({serf.said}), so it is from before the "
                f"agent died; last output: {health.said}"
            )
            yield Check(
                "consul_health.stale", health.subject, "fail", reason, "passing", "critical", "", SERF, _SEE_AGENT
            )
        else:
            yield _status(health)
    for service in services:
        yield _service(name, service, own, maintenance)


def _serf(name: str, serf: Health | None) -> Check:
    check, limit = "consul_health.serf", "passing"
    if serf is None:
        reason = f"the node has no {SERF} check, so nothing tells whether its agent is alive"
        return unknown(check, name, reason, _SEE_AGENT, limit, _CATALOG)
    if serf.status not in _STATUSES:
        return unknown(check, name, f"{SERF} has the status {serf.status[:40]!r}", _SEE_AGENT, limit, _CATALOG)
    good = serf.status == "passing"
    reason = f"{SERF}: {serf.said}"
    verdict: Verdict = "pass" if good else "fail"
    return Check(check, name, verdict, reason, serf.status, limit, "", _CATALOG, "" if good else _SEE_AGENT)


def _maintenance(health: Health, verdict: Verdict) -> Check:
    reason = f"in maintenance mode: {' '.join((health.notes or health.output).split())[:240] or 'no reason given'}"
    remedy = "End it with consul maint -disable (-service <id>) when the work is done."
    value = "maintenance" if health.status == "critical" else health.status[:40] or "none"
    return Check("consul_health.maintenance", health.subject, verdict, reason, value, "none", "", _CATALOG, remedy)


def _status(health: Health) -> Check:
    """Judge a check by its status alone; what it said last goes into the reason."""
    name, limit = "consul_health.check", "passing"
    verdicts: dict[str, Verdict] = {"passing": "pass", "warning": "warn", "critical": "fail"}
    verdict = verdicts.get(health.status)
    if verdict is None:
        reason = f"the status {health.status[:40]!r} is none that Consul has"
        return unknown(name, health.subject, reason, _SEE_AGENT, limit, _CATALOG)
    remedy = "" if verdict == "pass" else "The output tells what the probe saw; run the probe by hand on the node."
    reason = f"{health.name or health.check}: {health.said}"
    return Check(name, health.subject, verdict, reason, health.status, limit, "", _CATALOG, remedy)


def _service(node: str, service: str, own: Sequence[Health], maintenance: Verdict) -> Check:
    """Judge that an expected service is there and takes traffic: every check of its own and of the node passes."""
    name, subject, limit = "consul_health.service", f"{node} {service}", "passing"
    mine = [h for h in own if h.service == service] or [h for h in own if h.service and h.service_name == service]
    source = "option services"
    remedy = "Join it with iu_membership (playbook join); its probe turns the check passing when it generates a token."
    probes = [h for h in mine if not h.check.startswith(_SERVICE_MAINTENANCE)]
    if not probes:
        there = ", ".join(sorted({h.service for h in own if h.service})) or "none"
        reason = f"no check of this service is in the catalog; services with checks on the node: {there}"
        return Check(name, subject, "fail", reason, "absent", limit, "", source, remedy)
    of_node = [h for h in own if not h.service]
    if not any(h.check == SERF for h in of_node):
        return unknown(name, subject, f"the node has no {SERF} check", _SEE_AGENT, limit, source)
    if strange := next((h for h in (*mine, *of_node) if h.status not in _STATUSES), None):
        return unknown(name, subject, f"{strange.subject} has the status {strange.status[:40]!r}", "", limit, source)
    kept_out = [h for h in (*mine, *of_node) if h.status == "critical"]
    real = [h for h in kept_out if h.check != _NODE_MAINTENANCE and not h.check.startswith(_SERVICE_MAINTENANCE)]
    if real or kept_out:
        first = (real or kept_out)[0]
        verdict: Verdict = "fail" if real else maintenance
        value = "critical" if real else "maintenance"
        reason = f"it takes no traffic: {first.check} is {first.status} ({first.said})"
        return Check(name, subject, verdict, reason, value, limit, "", source, remedy)
    warned = next((h for h in (*mine, *of_node) if h.status == "warning"), None)
    if warned is not None:
        reason = f"{warned.check} is warning ({warned.said})"
        return Check(name, subject, "warn", reason, "warning", limit, "", source, remedy)
    reason = f"{len(probes)} checks of its own pass: {probes[0].said}"
    return Check(name, subject, "pass", reason, "passing", limit, "", source)

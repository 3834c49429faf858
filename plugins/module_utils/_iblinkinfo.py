# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Reader of `iblinkinfo`, which lists every link of the fabric, and its judgement. Pure; parsing never raises."""

from __future__ import annotations

import dataclasses
import re

from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ib_counters import shown, typed
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, unknown

CHECKS: dict[str, str] = {
    "ib_port.fabric_links": "Number of links that are up in iblinkinfo's report, which must have some and be readable.",
    "ib_port.fabric_link": (
        "A link of iblinkinfo's report: an adapter's must be Active, LinkUp and at its rate, a switch's must not be "
        "stuck below Active nor trained below what both ends could do."
    ),
}

_HEADER = re.compile(r"(CA|Switch|Router):\s+(?:(0x[0-9a-fA-F]{1,16})\s+)?(.*?):?")
# The look behind keeps a long line of blanks from being tried in every way to share it out.
_LINK = re.compile(
    r"(?P<head>.{0,200}?)(?<!\s)\s*(?P<lid>[0-9]{1,6})\s+(?P<port>[0-9]{1,3})\[[^\]]{0,20}\]\s*==\(\s*"
    r"(?:(?P<width>[0-9]{1,2})X\s+(?P<speed>[0-9]{1,4}(?:\.[0-9]{1,6})?) Gbps\s+)?"
    r"(?P<state>\w+)/\s*(?P<phys>\w+)\)==>(?P<far>.{0,200}?)(?<!\s)\s*\((?P<hint>[^()]*)\)"
)
# Signalling rate of a lane and what it carries: SDR, DDR, QDR, FDR10, FDR, EDR, HDR, NDR, XDR.
_LANE_GBPS: tuple[tuple[float, float], ...] = (
    (2.5, 2.5),
    (5.0, 5.0),
    (10.0, 10.0),
    (10.3125, 10.0),
    (14.0625, 14.0),
    (25.78125, 25.0),
    (53.125, 50.0),
    (106.25, 100.0),
    (212.5, 200.0),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
    """One line: the near port and how it is connected. `rate_gbps` is None for a link without width and speed."""

    kind: str
    node: str
    port: int
    state: str
    physical: str
    rate_gbps: float | None
    far: str
    hint: str

    @property
    def subject(self) -> str:
        """Name of the near port for check results."""
        return f"{self.node} port {self.port}"


def _rate(width: str | None, speed: str | None) -> float | None:
    if width is None or speed is None:
        return None
    lane = next((carried for signalled, carried in _LANE_GBPS if abs(signalled - float(speed)) < 0.07), None)
    return None if lane is None else lane * int(width)


def parse(text: str) -> tuple[list[Link], list[str]]:
    """Read the report, also that of `iblinkinfo -l`, and the lines that are not of it."""
    links: list[Link] = []
    problems: list[str] = []
    kind = node = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or typed(line):
            continue
        if match := _LINK.fullmatch(line):
            quoted = re.search(r'"([^"]*)"', match["head"])
            links.append(
                Link(
                    "Switch" if quoted else kind,
                    quoted[1].strip() if quoted else node or f"lid {match['lid']}",
                    int(match["port"]),
                    match["state"],
                    match["phys"],
                    _rate(match["width"], match["speed"]),
                    match["far"].strip(),
                    match["hint"].strip(),
                )
            )
        elif match := _HEADER.fullmatch(line):
            kind, node = match[1], match[3]
        else:
            problems.append(f"line {number} cannot be read: {shown(line)}")
    return links, problems


def judge(text: str, rate: int | float | None, rate_source: str) -> list[Check]:
    """Judge every adapter's link, and those of the switches that are stuck or slower than they could be."""
    links, problems = parse(text)
    name, tool = "ib_port.fabric_links", "iblinkinfo"
    again = "Run iblinkinfo again from a node whose port is Active."
    checks = [unknown(name, tool, problem, again) for problem in problems]
    up = [link for link in links if link.state == "Active" and link.physical == "LinkUp"]
    if not links:
        checks.append(unknown(name, tool, "it lists no link", again))
    elif not up:
        checks.append(Check(name, tool, "fail", "no link is up", 0, "1 or more", "links", "InfiniBand", again))
    elif not problems:
        checks.append(Check(name, tool, "pass", "links that are up", len(up), "1 or more", "links", "InfiniBand"))
    for link in links:
        if (check := _bad(link, rate, rate_source)) is not None:
            checks.append(check)
    return checks


def _bad(link: Link, rate: int | float | None, rate_source: str) -> Check | None:
    """Return what is wrong with a link, None when nothing is. An empty port of a switch is no defect."""
    name = "ib_port.fabric_link"
    adapter = link.kind == "CA"
    cable = "Check the cable and both ports (ibportstate); clean or replace it."
    found, wanted = f"{link.state}/{link.physical}", "Active/LinkUp"
    if found != wanted:
        if not adapter and link.state == "Down":
            return None
        remedy = "Check the subnet manager (sminfo)." if link.physical == "LinkUp" else cable
        return Check(name, link.subject, "fail", "the link is not up", found, wanted, "", "InfiniBand", remedy)
    if "could be" in link.hint.lower():
        reason = f"the link trained below what both ends can: {shown(link.hint)}"
        return Check(
            name, link.subject, "fail", reason, link.rate_gbps, "what both ends can", "Gb/s", "iblinkinfo", cable
        )
    if not adapter or rate is None:
        return None
    if link.rate_gbps is None:
        return unknown(name, link.subject, "its width and speed are not shown", cable, rate, rate_source)
    if link.rate_gbps < rate:
        return Check(name, link.subject, "fail", "rate of the link", link.rate_gbps, rate, "Gb/s", rate_source, cable)
    return None

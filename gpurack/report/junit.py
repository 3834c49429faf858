"""The report as JUnit XML, which every CI system shows: a suite a node and stage, a test case a check."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from gpurack.report.model import OUT, Report, measured
from gpurack.report.read import STAGES, Json

# What XML 1.0 cannot hold, however it is written.
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(report: Report) -> str:
    """Return the XML. A failed check is a failure, an unknown one an error, a warning passes with its text."""
    root = ET.Element("testsuites", name=f"rack report {report.document['run']}")
    totals = {"tests": 0, "failures": 0, "errors": 0}
    for node in report.document["nodes"]:
        for stage in ("", *STAGES):
            cases = [_case(node["name"], check) for check in node["checks"] if check["stage"] == stage]
            if not stage:
                cases = [*_node_cases(node), *cases]
            if not cases:
                continue
            counts = {
                "tests": len(cases),
                "failures": sum(1 for case in cases if case.find("failure") is not None),
                "errors": sum(1 for case in cases if case.find("error") is not None),
            }
            suite = ET.SubElement(root, "testsuite", name=f"{node['name']} {stage}".strip())
            for key, value in counts.items():
                suite.set(key, str(value))
                totals[key] += value
            suite.extend(cases)
    for key, value in totals.items():
        root.set(key, str(value))
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def _node_cases(node: Json) -> list[ET.Element]:
    """Return a case for a node that is out without a check that says so: no answer, nothing of this run, quarantine."""
    if node["state"] not in OUT or any(check["verdict"] == node["state"] for check in node["checks"]):
        return []
    case = ET.Element("testcase", classname=_safe(node["name"]), name="node")
    kind = "failure" if node["state"] == "fail" else "error"
    ET.SubElement(case, kind, message=_safe(f"{node['state']}: {node['reason']}"), type=node["state"])
    return [case]


def _case(node: str, check: Json) -> ET.Element:
    place = ".".join(part for part in (node, check["stage"], check["gate"]) if part)
    case = ET.Element("testcase", classname=_safe(place), name=_safe(f"{check['check']} {check['subject']}"))
    text = f"{check['reason']}. {check['remedy']}".strip()
    verdict = check["verdict"]
    if verdict in ("fail", "unknown"):
        kind = "failure" if verdict == "fail" else "error"
        ET.SubElement(case, kind, message=_safe(measured(check)), type=verdict).text = _safe(text)
    elif verdict == "warn":
        ET.SubElement(case, "system-out").text = _safe(f"warn: {measured(check)}. {text}")
    return case


def _safe(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)

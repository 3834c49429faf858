#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate: every RDMA port of the node is up at its rate and known to the subnet manager."""

from __future__ import annotations

DOCUMENTATION = r"""
module: ib_port
short_description: Judge the RDMA ports of a node and their error counters
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - Holds state, physical state, rate, link layer, LID of the subnet manager and firmware of every expected HCA
    against the limits.
  - Reads the error counters of every port that is Active, from the kernel's files or, where there are none, with
    C(perfquery). The files are read twice, O(interval) apart, so that errors that come now are seen beside those that
    were counted since the last clear. With O(before) the rate over a longer time is judged.
  - A counter that stopped at its largest value is a V(fail), since nobody knows how many errors there were. One that
    fell was reset, which is V(unknown).
  - An adapter that is not listed is a V(fail). When the list could not be read whole, because C(ibstat) stopped
    in the middle, it
    is V(unknown) and the ports read so far are still judged.
  - Ports are told apart by O(hcas) and link layer, never by the name of the device or the state of its interface.
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  captured:
    description:
      - Judge stored output of the tools in place of running them.
      - A file of C(ibstat), C(ibstatus) or C(ibv_devinfo -v) is judged for the ports, one of C(perfquery),
        C(perfquery -x), C(ibqueryerrors) or of C(file:value) lines of the kernel's counters for the counters, one of
        C(iblinkinfo) for the links of the fabric. What a file is about is told by its text, and what only another
        tool shows is then not judged.
      - A directory holds C(ibstat.txt) (or C(ibstatus.txt), C(ibv_devinfo.txt)), C(sysfs-counters.txt) or
        C(perfquery-<HCA>.txt) or C(perfquery.txt), and optionally C(ibqueryerrors.txt). A directory without counters
        is V(unknown) unless O(counters=false).
      - Or the C(ib_port.json) of an earlier run.
    type: path
  hcas:
    description:
      - Expected devices, such as V(mlx5_0), with the port after a colon where it is not port 1.
      - Needed on a live run unless O(ports) is given. Without it every port of the link layer is judged.
    type: list
    elements: str
  ports:
    description: Number of ports of the link layer the node must have.
    type: int
  profile:
    description: Board whose rate is expected. Either this or O(rate) gives the limit.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  rate:
    description: Lowest accepted rate in Gb/s, in place of the profile's.
    type: int
  link_layer:
    description: Expected link layer. On V(ethernet) no subnet manager is asked for.
    type: str
    choices: [infiniband, ethernet]
    default: infiniband
  firmware:
    description: Firmware version every adapter must have. Without it the firmware is not judged.
    type: str
  counters:
    description: Whether the error counters are judged.
    type: bool
    default: true
  interval:
    description: Seconds between the two readings of the kernel's counters. V(0) reads them once.
    type: float
    default: 1.0
  wait:
    description:
      - Seconds to wait for ports whose link is up and which the subnet manager has not yet made Active. After a reboot
        this takes up to its sweep interval. A port without a link is not waited for.
    type: float
    default: 0
  before:
    description:
      - The C(ib_port.json) of an earlier run, or captured counters, as the baseline of a rate over a longer time.
    type: path
  elapsed:
    description: Seconds since O(before) was read, for files that do not tell their time.
    type: float
  counter_limit:
    description:
      - Largest accepted value of every error counter since the last clear, in place of each one's own limit.
      - Growth is judged all the same.
    type: int
  counter_limits:
    description:
      - Largest accepted value since the last clear of single counters by their names in the standard, such as
        C(LinkDownedCounter) of ports whose switch was restarted more than once. They win over O(counter_limit).
      - Growth is judged all the same. The other way out is to clear the counters (C(perfquery -C mlx5_1 -P 1 -R)).
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Prove that all rails are up and free of errors
  ai_infra.gpu_rack.ib_port:
    hcas: [mlx5_0, mlx5_1, mlx5_2, mlx5_3]
    profile: hgx_h100_8

- name: Judge the errors since yesterday's run
  ai_infra.gpu_rack.ib_port:
    hcas: [mlx5_0, mlx5_1, mlx5_2, mlx5_3]
    profile: hgx_h100_8
    before: /var/lib/gpu_rack/evidence/20261129T120000Z/hardware/ib_port.json

# ansible localhost -m ai_infra.gpu_rack.ib_port -a "captured=ibstat.txt ports=8 profile=hgx_h100_8"
- name: Judge a stored report
  ai_infra.gpu_rack.ib_port:
    captured: bundle/ibstat.txt
    hcas: [mlx5_0, mlx5_1]
    rate: 400
"""

RETURN = r"""
verdict:
  description: The worst verdict of all checks, one of V(pass), V(warn), V(unknown), V(fail).
  type: str
  returned: always
summary:
  description: One line that names the first of the worst checks with its measured value and limit.
  type: str
  returned: always
gate:
  description: Name of the gate, V(ib_port).
  type: str
  returned: always
checks:
  description: Every judged fact. C(gpurack gate --list-checks) says what each is.
  type: list
  elements: dict
  returned: always
evidence:
  description: Command, exit status and digest of each reading; the output too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
ports:
  description: Fields of each adapter's ports in C(ibstat)'s words, by device and port number.
  type: dict
  returned: always
counters:
  description: The counters of each port as last read. A later run takes them as O(before).
  type: dict
  returned: always
fleet:
  description: Values to be compared over the rack, the firmware of the judged adapters.
  type: dict
  returned: always
"""

import json
import re
import time
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _ib_counters, _iblinkinfo, _ibstat
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ib_counters import Baseline, PortCounters
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._ibstat import GATE, Report, split_hca
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, unknown

ARGUMENT_SPEC: dict[str, dict[str, Any]] = {
    **GATE_ARGS,
    "hcas": {"type": "list", "elements": "str"},
    "ports": {"type": "int"},
    "profile": {"type": "str", "choices": list(NAMES)},
    "rate": {"type": "int"},
    "link_layer": {"type": "str", "choices": ["infiniband", "ethernet"], "default": "infiniband"},
    "firmware": {"type": "str"},
    "counters": {"type": "bool", "default": True},
    "interval": {"type": "float", "default": 1.0},
    "wait": {"type": "float", "default": 0},
    "before": {"type": "path"},
    "elapsed": {"type": "float"},
    "counter_limit": {"type": "int"},
    "counter_limits": {"type": "dict", "default": {}},
}
_HCA = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*(:[1-9][0-9]{0,2})?")
# The second pattern is the same files by way of the interface, for containers without the class directory.
_SYSFS = (
    'set -- /sys/class/infiniband/*/ports/*/counters/*; [ -e "$1" ] || '
    "set -- /sys/class/net/*/device/infiniband/*/ports/*/counters/*; grep -Hs '' \"$@\""
)
_BY_HAND = "Read the counters by hand with perfquery."


class Before:
    """The baseline: counters by port, and how long ago they were read."""

    def __init__(self, values: dict[str, dict[str, int]], seconds: float, source: str) -> None:
        """Keep the baseline."""
        self.values, self.seconds, self.source = values, seconds, source

    def of(self, subject: str) -> Baseline | None:
        """Return the baseline of a port, None when there is none."""
        values = self.values.get(subject)
        return Baseline(values, self.seconds, self.source) if values else None


def counters_of_text(text: str) -> tuple[list[tuple[str, PortCounters]], list[str]]:
    """Return the ports and their counters in a text of perfquery or of the kernel's files."""
    if re.search(r"^\s*/sys/class/\S+/ports/", text, re.MULTILINE):
        found, problems = _ib_counters.parse_sysfs(text)
        return [(hca_name(device, port), entry) for (device, port), entry in found.items()], problems
    ports, problems = _ib_counters.parse_perfquery(text)
    return list(_ib_counters.subjects(ports, {})), problems


def hca_name(device: str, port: int) -> str:
    """Return a port as the option hcas names it."""
    return device if port == 1 else f"{device}:{port}"


def read_before(module: AnsibleModule) -> Before | str | None:
    """Return the baseline, why it cannot be used, or None when none was asked for."""
    path, elapsed = module.params["before"], module.params["elapsed"]
    if path is None:
        return None
    try:
        text = Path(path).read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError) as exc:
        return f"{path}: could not be read: {exc}"
    then: Any = None
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        values, then = _ib_counters.baseline_values(data.get("counters")), data.get("time")
    else:
        values = {subject: dict(port.values) for subject, port in counters_of_text(text)[0]}
    if not values:
        return f"{path}: there are no counters in it"
    if elapsed is None:
        now = captured_time(module.params["captured"])
        if isinstance(then, bool) or not isinstance(then, int | float) or now is None:
            return f"{path}: nobody knows how long ago it was read; give elapsed"
        elapsed = now - then
        if not 0 < elapsed < 1e9:
            return f"{path}: it was read {elapsed:g} s before this reading, which cannot be"
    return Before(values, elapsed, path)


def captured_time(captured: str | None) -> float | None:
    """Return when the judged reading was taken: now, or what stored evidence says, or None."""
    if captured is None:
        return time.time()
    try:
        stored: Any = json.loads(Path(captured).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    then = stored.get("time") if isinstance(stored, dict) else None
    return float(then) if isinstance(then, int | float) and not isinstance(then, bool) else None


def read_files(source: Source, names: list[str], script: str, file: str) -> dict[str, PortCounters]:
    """Return the counters the kernel shows in files, by port; a port without files is not in it."""
    evidence = source.read(["sh", "-c", script], file, primary=False)
    files, _problems = _ib_counters.parse_sysfs(evidence.stdout)
    return {name: files[split_hca(name)] for name in names if split_hca(name) in files}


def ask_port(source: Source, report: Report, name: str) -> PortCounters | str:
    """Return a port's counters by perfquery, or why there are none."""
    device, port = split_hca(name)
    fields = report.adapters[device].ports[port]
    layer, lid = fields.get("Link layer"), _ibstat.number(fields.get("Base lid"))
    if layer != "InfiniBand":
        return f"the kernel has no counters of it, and perfquery does not work on {layer or 'this'} ports"
    asked = ["perfquery", "-C", device, "-P", str(port)]
    evidence = source.read(asked, f"perfquery-{device}.txt", "perfquery.txt", primary=False)
    ports, problems = _ib_counters.parse_perfquery(evidence.stdout)
    if (reason := refusal(evidence)) is not None or problems:
        return reason or problems[0]
    mine = [p for p in ports if p.lid is None or lid is None or p.lid == lid]
    return mine[0] if len(mine) == 1 else f"{evidence.command} shows {len(mine)} ports with LID {lid}"


def judge_counters(
    source: Source, report: Report, names: list[str], before: Before | None, params: dict[str, Any]
) -> tuple[list[Check], dict[str, PortCounters]]:
    """Read and judge the counters of these ports.

    Only the kernel's files are read twice: they cost nothing, while each perfquery is a packet on the fabric.
    """
    found = read_files(source, names, _SYSFS, "sysfs-counters.txt")
    short: Before | None = None
    if params["interval"] > 0 and found:
        later = f"sleep {params['interval']:g}; {_SYSFS}"
        second = read_files(source, list(found), later, "sysfs-counters-2.txt")
        if second:
            short = Before({n: dict(p.values) for n, p in found.items()}, params["interval"], "the first reading")
            found |= second
        elif not source.live:
            # A bundle holds one reading as a rule; that it has no second one is no finding.
            source.used.pop()
    checks: list[Check] = []
    for name in names:
        port = found[name] if name in found else ask_port(source, report, name)
        if isinstance(port, str):
            checks.append(unknown("ib_port.counters", name, port, _BY_HAND))
            continue
        found[name] = port
        baseline = (before.of(name) if before else None) or (short.of(name) if short else None)
        checks += _ib_counters.judge_port(name, port, baseline, allowed(params))
    return checks, found


def check_limits(module: AnsibleModule) -> None:
    """Refuse limits of counters that are not judged, and what is no count."""
    for name, value in module.params["counter_limits"].items():
        if name not in _ib_counters.BY_NAME:
            known = ", ".join(_ib_counters.BY_NAME)
            module.fail_json(msg=f"counter_limits: {name} is none of {known}")
        # A template makes a text of a number where the inventory is not native.
        if isinstance(value, bool) or not re.fullmatch(r"[0-9]{1,18}", str(value)):
            module.fail_json(msg=f"counter_limits: {name} must be a number that is not negative, not {value!r}")


def allowed(params: dict[str, Any]) -> _ib_counters.Allowed:
    """Return the limits the options give."""
    single = {name: int(value) for name, value in params["counter_limits"].items()}
    return _ib_counters.Allowed(params["counter_limit"], single)


def expected_rate(params: dict[str, Any]) -> tuple[int | float, str]:
    """Return the lowest accepted rate in Gb/s and where it comes from."""
    if params["rate"] is not None:
        return params["rate"], "option rate"
    board = profile(params["profile"])
    return board.ib_rate_gbps.value, board.source


def judge_text(
    evidence: Evidence, before: Before | None, params: dict[str, Any]
) -> tuple[list[Check], dict[str, PortCounters]] | None:
    """Judge a single captured text that is about counters or the fabric's links, None when it is about ports."""
    text = evidence.stdout
    if re.search(r"==\(.*\)==>", text):
        return _iblinkinfo.judge(text, *expected_rate(params)), {}
    if re.search(r"^(## Summary:|Errors for |#warn: counter )", text, re.MULTILINE):
        report = _ib_counters.parse_ibqueryerrors(text)
        return _ib_counters.judge_fabric(report, allowed(params)), report.ports
    if not re.search(r"^\s*(# Port (extended )?counters:|/sys/class/\S+/ports/)", text, re.MULTILINE):
        return None
    ports, problems = counters_of_text(text)
    checks = [unknown("ib_port.counters", "counters", problem, _BY_HAND) for problem in problems]
    for subject, port in ports:
        checks += _ib_counters.judge_port(subject, port, before.of(subject) if before else None, allowed(params))
    return checks, dict(ports)


def judge_ports(module: AnsibleModule, evidence: Evidence) -> tuple[list[Check], Report]:
    """Judge what ibstat, ibstatus or ibv_devinfo says of the ports."""
    params = module.params
    rate, rate_source = expected_rate(params)
    report = _ibstat.parse_report(evidence.stdout, evidence.stderr)
    reason = refusal(evidence)
    if reason and not report.adapters:
        return [unknown("ib_port.output", "ibstat", reason, "Install infiniband-diags and run ibstat by hand.")], report
    if reason:
        # What was printed before a failure is still worth knowing: a port that is down stays a defect.
        report = Report(report.adapters, (*report.problems, reason))
    checks = _ibstat.judge(
        report,
        params["hcas"],
        rate=rate,
        rate_source=rate_source,
        link_layer=params["link_layer"],
        firmware=params["firmware"],
        ports=params["ports"],
    )
    return checks, report


def check_hcas(module: AnsibleModule) -> None:
    """Refuse a list of devices that cannot be meant."""
    hcas = module.params["hcas"]
    if hcas is None:
        if module.params["captured"] is None and module.params["ports"] is None:
            module.fail_json(msg="hcas: a live run needs the devices that must be there. Name them, or give ports.")
        return
    if not hcas:
        module.fail_json(msg="hcas: the list is empty. Name the devices that must be there.")
    for hca in hcas:
        if not _HCA.fullmatch(hca):
            module.fail_json(msg=f"hcas: {hca!r} is not a device or a device and a port. Write mlx5_0 or mlx5_0:1.")
        if sum(split_hca(other) == split_hca(hca) for other in hcas) > 1:
            module.fail_json(msg=f"hcas: {hca!r} is there twice. Name each port once.")


def active(report: Report, name: str) -> bool:
    """Return whether a port is in the report and Active."""
    device, port = split_hca(name)
    adapter = report.adapters.get(device)
    return adapter is not None and adapter.ports.get(port, {}).get("State") == "Active"


def waits_for_subnet_manager(ibstat: str) -> bool:
    """Return whether a port has its link and is not Active yet."""
    ports = [fields for adapter in _ibstat.parse(ibstat).adapters.values() for fields in adapter.ports.values()]
    return any(
        fields.get("Physical state") == "LinkUp" and fields.get("State") in ("Initializing", "Armed")
        for fields in ports
    )


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True, required_one_of=[("profile", "rate")])
    check_numbers(module, positive=["rate", "ports", "elapsed"], not_negative=["interval", "wait", "counter_limit"])
    check_hcas(module)
    check_limits(module)
    params = module.params
    source = Source(params["captured"], params["timeout"])
    names = ("ibstat.txt", "ibstat", "ibstatus.txt", "ibstatus", "ibv_devinfo.txt", "ibv_devinfo")
    evidence = source.read(("ibstat",), *names)
    deadline = time.monotonic() + params["wait"]
    while source.live and waits_for_subnet_manager(evidence.stdout) and time.monotonic() < deadline:
        time.sleep(1.0)
        source.used.remove(evidence)  # Only the last reading is judged, so only that one is kept.
        evidence = source.read(("ibstat",), *names)
    baseline = read_before(module)
    before = baseline if isinstance(baseline, Before) else None
    checks: list[Check] = []
    counters: dict[str, PortCounters] = {}
    report = Report({}, ())
    judged = judge_text(evidence, before, params) if source.single_file else None
    if judged is not None:
        checks, counters = judged
    else:
        checks, report = judge_ports(module, evidence)
        if params["counters"] and not source.single_file:
            hcas = params["hcas"] or _ibstat.select(report, params["link_layer"])
            rails = [name for name in hcas if active(report, name)]
            more, counters = judge_counters(source, report, rails, before, params)
            checks += more + judge_fabric_report(source, allowed(params))
    if isinstance(baseline, str):
        checks.append(unknown("ib_port.counters", "before", baseline, "Give the ib_port.json of an earlier run."))
    finish_gate(
        module,
        GATE,
        checks,
        source.used,
        ports={a.name: {str(n): fields for n, fields in a.ports.items()} for a in report.adapters.values()},
        counters={name: dict(port.values) for name, port in counters.items()},
        fleet=fleet(report, params["hcas"]),
    )


def judge_fabric_report(source: Source, limits: _ib_counters.Allowed) -> list[Check]:
    """Judge ibqueryerrors where a bundle holds it. The gate does not run it: it scans the whole fabric."""
    if source.live:
        return []
    evidence = source.read(("ibqueryerrors",), "ibqueryerrors.txt", "ibqueryerrors", primary=False)
    if evidence.error:
        source.used.pop()
        return []
    return _ib_counters.judge_fabric(_ib_counters.parse_ibqueryerrors(evidence.stdout, evidence.stderr), limits)


def fleet(report: Report, hcas: list[str] | None) -> dict[str, Any]:
    """Return the firmware of the judged adapters, for comparison over the rack."""
    devices = [split_hca(h)[0] for h in hcas] if hcas else list(report.adapters)
    found = {report.adapters[d].fields.get("Firmware version", "") for d in devices if d in report.adapters} - {""}
    return {"versions": {"ib_port.firmware": ", ".join(sorted(found))} if found else {}, "values": {}}


if __name__ == "__main__":
    main()

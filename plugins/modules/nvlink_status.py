#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate nvlink_status: every NVLink is up, at full speed and without errors, and every GPU is in the NVLink fabric."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvlink_status
short_description: Judge each NVLink and the fabric registration of each GPU
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - Reads C(nvidia-smi nvlink -s) and wants exactly the board's number of active links on each GPU, each at full speed.
    17 of 18 links is a V(fail) that names the GPU and the link.
  - Reads C(nvidia-smi nvlink -e) and wants no recovery or CRC error and none of NVLink 5's errors on any link since the
    counters were reset, at boot or by C(nvidia-smi nvlink -re). Replays and CRC errors of a FLIT were sent again, so
    since then they are a V(warn); with O(before) their growth is judged, which fails. Successful link recoveries and a
    bit error rate over 1e-12 are a V(warn). What error correction has repaired is not judged.
  - On a board with NVSwitch it reads C(nvidia-smi -q) and wants Fabric State C(Completed) and Status C(Success) on
    B(every) GPU, no health line that names a fault, and all GPUs in one clique. Other boards have no fabric.
  - One captured file is judged by what is in it, C(nvlink -s), C(nvlink -e), C(-q), or several of them in one. A live
    node and a directory must have all three, or the fact is V(unknown).
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  profile:
    description:
      - Board whose links are expected. A node that may join needs one.
      - Without it, as for a capture of another product, every link that is listed must be active and as fast as the
        fastest of the node unless O(links) and O(link_speed) say otherwise, and the Fabric block is judged where the
        driver prints a state.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  gpus:
    description:
      - Number of GPUs expected in place of the profile's.
      - Boards of single cards (V(h100_nvl), V(h100_pcie)) do not fix it. Without this option their count is a
        V(warn).
    type: int
  links:
    description:
      - Number of active links each GPU must have, in place of the profile's.
      - A V(h100_pcie) card has all links of its bridges (12) or none.
    type: int
  link_speed:
    description: Lowest speed of an active link in GB/s and one direction, in place of the profile's.
    type: float
  crc_flit:
    description:
      - Number of CRC FLIT errors added on a link since O(before) from which on they are a V(fail) and no V(warn).
    type: int
    default: 100
  before:
    description:
      - An earlier reading of the same node, an C(nvlink_status.json) of its evidence or a capture of C(nvlink -e).
        Counters that have grown since are a V(fail), those of CRC FLIT by fewer than O(crc_flit) a V(warn).
    type: path
seealso:
  - module: ai_infra.gpu_rack.nvlink_topology
  - module: ai_infra.gpu_rack.gpu_driver
"""

EXAMPLES = r"""
- name: Prove that each of 18 links of each of 8 GPUs is at work
  ai_infra.gpu_rack.nvlink_status:
    profile: hgx_h100_8
    evidence_dir: /var/lib/gpu_rack/evidence/20261130T120000Z/hardware

# ansible localhost -m ai_infra.gpu_rack.nvlink_status -a "captured=FILE profile=hgx_h100_8"
- name: Judge the output in a support bundle
  ai_infra.gpu_rack.nvlink_status:
    captured: bundle/nvidia-smi-nvlink-s.txt
    profile: hgx_h100_8
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
  description: Name of the gate, V(nvlink_status).
  type: str
  returned: always
checks:
  description: Every judged fact, with value, limit, source of the limit, reason and remedy.
  type: list
  elements: dict
  returned: always
  sample:
    - check: nvlink_status.links
      subject: GPU 3 link 5
      verdict: fail
      value: 17
      limit: "18"
      unit: links
      limit_source: board profile hgx_h100_8
      reason: "inactive: link 5"
      remedy: Drain the node and reset its GPUs.
evidence:
  description: Command, exit status and digest of each reading; the output too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
gpus:
  description: What was read of each GPU, its links with their speed in GB/s (null is inactive), the counters that are
    not 0, and its Fabric block.
  type: list
  elements: dict
  returned: always
fleet:
  description: Speed of the slowest link, which should be near over the rack, for
    M(ai_infra.gpu_rack.fleet_consistency).
  type: dict
  returned: always
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _nvlink_status, _smi_query
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES, profile
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, check_numbers, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Check, Evidence, unknown

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES)},
    "gpus": {"type": "int"},
    "links": {"type": "int"},
    "link_speed": {"type": "float"},
    "crc_flit": {"type": "int", "default": 100},
    "before": {"type": "path"},
}
STATUS = (("nvidia-smi", "nvlink", "-s"), ("nvidia-smi-nvlink-s.txt", "nvidia-smi-nvlink-s", "nvlink-s.txt"))
ERRORS = (("nvidia-smi", "nvlink", "-e"), ("nvidia-smi-nvlink-e.txt", "nvidia-smi-nvlink-e", "nvlink-e.txt"))
QUERY = (("nvidia-smi", "-q"), ("nvidia-smi-q.txt", "nvidia-smi-q", "nvidia-smi-q.xml", "nvidia-smi-q-x.xml"))
_REMEDY = "Install the driver (role cuda) and look into the kernel log for NVRM."


def refused(evidence: Evidence) -> str | None:
    """Return why a reading cannot be judged at all; the words of a driver that waits for a reboot have any status."""
    if any(_smi_query.MISMATCH in text for text in (evidence.stdout, evidence.stderr)):
        return f"{_smi_query.MISMATCH}: a reboot is needed"
    return refusal(evidence)


def judge_file(
    text: str, limits: _nvlink_status.Limits
) -> tuple[list[Check], _nvlink_status.Report, _smi_query.Query | None]:
    """Return the checks of all readings that are in one file."""
    report = _nvlink_status.parse(text)
    kinds = _nvlink_status.kinds(report)
    query = _smi_query.parse(text)
    # A file of links is no report of -q; then only a report that names GPUs is judged as one.
    # Drivers before 525 print no Fabric block, whatever the board.
    block = any("Fabric/State" in gpu.fields for gpu in query.gpus)
    described = query if query.gpus and (block or (query.whole and limits.board is not None)) else None
    if not kinds and described is None:
        said = [*(p.text for p in query.problems), *report.problems] if text.strip() else ["the output is empty"]
        reason = said[0] if said else "neither links nor a Fabric block are in it"
        return [unknown("nvlink_status.output", "nvidia-smi nvlink", reason, _REMEDY)], report, None
    checks: list[Check] = []
    if kinds:
        checks += [
            *_nvlink_status.judge_output(report, "nvidia-smi nvlink"),
            _nvlink_status.judge_count(report, limits),
        ]
    if "status" in kinds:
        checks += [*_nvlink_status.judge_links(report, limits), *_nvlink_status.judge_speed(report, limits)]
    if "errors" in kinds:
        checks += _nvlink_status.judge_errors(report, limits, report if "status" in kinds else None)
    if described is not None:
        checks += _nvlink_status.judge_fabric(described, limits)
    return checks, report, described


def judge_readings(
    status: Evidence, errors: Evidence, query: Evidence | None, limits: _nvlink_status.Limits
) -> tuple[list[Check], _nvlink_status.Report, _nvlink_status.Report, _smi_query.Query | None]:
    """Return the checks of the three readings, each of which must be there."""
    links, counters = _nvlink_status.parse(status.stdout), _nvlink_status.parse(errors.stdout)
    checks: list[Check] = []
    reason = refused(status)
    if reason is not None:
        checks.append(unknown("nvlink_status.output", "nvidia-smi nvlink -s", reason, _REMEDY))
    else:
        checks += [
            *_nvlink_status.judge_output(links, "nvidia-smi nvlink -s"),
            _nvlink_status.judge_count(links, limits),
            *_nvlink_status.judge_links(links, limits),
            *_nvlink_status.judge_speed(links, limits),
        ]
    reason = refused(errors)
    if reason is not None:
        checks.append(unknown("nvlink_status.errors", "nvidia-smi nvlink -e", reason, _REMEDY))
    else:
        checks += _nvlink_status.judge_output(counters, "nvidia-smi nvlink -e")
        checks += _nvlink_status.judge_errors(counters, limits, links if links.gpus else None)
        if links.gpus and [g.index for g in links.gpus] != [g.index for g in counters.gpus]:
            said = f"nvlink -s has {len(links.gpus)} GPUs and nvlink -e has {len(counters.gpus)}"
            checks.append(unknown("nvlink_status.errors", "node", said, _REMEDY))
    described: _smi_query.Query | None = None
    if query is not None:
        reason = refused(query)
        described = _smi_query.parse(query.stdout)
        if reason is not None and not described.gpus:
            checks.append(unknown("nvlink_status.fabric_state", "nvidia-smi -q", reason, _REMEDY))
        else:
            checks += _nvlink_status.judge_fabric(described, limits)
            if reason is not None:
                checks.append(unknown("nvlink_status.output", "nvidia-smi -q", reason, _REMEDY))
    return checks, links, counters, described


def main() -> None:
    """Run the module."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    check_numbers(module, positive=["gpus", "link_speed", "crc_flit"], not_negative=["links"])
    params = module.params
    limits = _nvlink_status.Limits(
        board=profile(params["profile"]) if params["profile"] else None,
        gpus=params["gpus"],
        links=params["links"],
        link_speed=params["link_speed"],
    )
    source = Source(params["captured"], params["timeout"])
    status = source.read(STATUS[0], *STATUS[1])
    counters: _nvlink_status.Report
    if source.single_file and refused(status) is None:
        checks, links, described = judge_file(status.stdout, limits)
        counters = links
    else:
        errors = source.read(ERRORS[0], *ERRORS[1], primary=False)
        query = (
            source.read(QUERY[0], *QUERY[1], primary=False) if limits.board is None or limits.board.nvswitch else None
        )
        checks, links, counters, described = judge_readings(status, errors, query, limits)
    if params["before"]:
        earlier = Source(params["before"], params["timeout"])
        then = earlier.read(ERRORS[0], *ERRORS[1])
        reason = refused(then)
        before = _nvlink_status.Report((), (reason,)) if reason else _nvlink_status.parse(then.stdout)
        checks += _nvlink_status.judge_growth(counters, before, params["crc_flit"])
    speed = _nvlink_status.slowest(links)
    values = {} if speed is None else {"nvlink_status.speed": {"value": speed, "unit": "GB/s", "better": "higher"}}
    finish_gate(
        module,
        _nvlink_status.GATE,
        checks,
        source.used,
        gpus=_nvlink_status.readings(links, counters, described),
        fleet={"versions": {}, "values": values},
    )


if __name__ == "__main__":
    main()

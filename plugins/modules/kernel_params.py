#!/usr/bin/python
# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Gate: the running kernel has the settings the inventory wants."""

from __future__ import annotations

DOCUMENTATION = r"""
module: kernel_params
short_description: Judge the settings of the running kernel
version_added: 0.1.0
author:
  - The ai_infra.gpu_rack authors (!UNKNOWN)
description:
  - Reads what the kernel that B(runs) has, not what is configured for the next boot, and holds it against the options.
    What no option asks for is not judged, except that no parameter may stand on the command line with two values,
    which is a V(warn).
  - Reads C(/proc/cmdline), and where an option asks for it C(uname -r), C(sysctl), C(/sys/module), the frequency
    governors, the choice of transparent huge pages, and C(lspci -vvv).
  - One O(captured) file is judged by what it holds (a command line, C(sysctl -a), C(lspci -vvv), C(uname -r), or the
    output of C(grep .) over files of C(/sys)). Options about other readings are then not judged.
extends_documentation_fragment:
  - ai_infra.gpu_rack.gate
options:
  captured:
    description:
      - Judge stored readings in place of the node's.
      - A directory holds C(cmdline.txt), C(uname-r.txt), C(sysctl.txt), C(module-parameters.txt), C(governors.txt),
        C(transparent_hugepage.txt) and C(lspci-vvv.txt), as far as options ask for them.
    type: path
  profile:
    description: Accepted so that all gates can be called alike. No limit of this gate depends on the board.
    type: str
    choices: [hgx_h100_8, hgx_h100_4, h100_nvl, h100_pcie, article]
  parameters:
    description:
      - Parameters that must be on the kernel command line, as V(name=value) or V(name). Of several the last one counts,
        as for the kernel.
    type: list
    elements: str
    default: []
  forbidden:
    description: Parameters that must not be on the command line. V(name) means with any value.
    type: list
    elements: str
    default: []
  release:
    description: Release the kernel must have, as C(uname -r) prints it. Another one means that a reboot is pending.
    type: str
  sysctls:
    description:
      - Names of sysctls, each with its value or a list of allowed values. V(>=N) and V(<=N) compare whole numbers.
      - For example V({kernel.numa_balancing&#58; 0, vm.swappiness&#58; "<=10"}).
    type: dict
    default: {}
  module_parameters:
    description:
      - Parameters of loaded kernel modules as V(module.parameter), each with its value or a list of allowed values.
    type: dict
    default: {}
  governor:
    description:
      - Frequency governor every CPU policy must have, for example V(performance). A kernel that does not scale the
        frequency is a V(warn).
    type: str
  transparent_hugepages:
    description: Choice of transparent huge pages.
    type: str
    choices: [always, madvise, never]
  acs:
    description:
      - With V(off) no PCI bridge above a GPU may redirect peer-to-peer traffic, which halves GPUDirect bandwidth. A
        node that gives devices to virtual machines needs the redirection.
    type: str
    choices: ['off']
seealso:
  - module: ai_infra.gpu_rack.cpu_idle
  - module: ai_infra.gpu_rack.kernel_cmdline
"""

EXAMPLES = r"""
- name: Prove that the kernel runs with what the role cstates configured
  ai_infra.gpu_rack.kernel_params:
    parameters: [intel_idle.max_cstate=0, processor.max_cstate=1]
    forbidden: [nomodeset]
    sysctls:
      kernel.numa_balancing: 0
    governor: performance

# ansible localhost -m ai_infra.gpu_rack.kernel_params -a "captured=lspci-vvv.txt acs=off"
- name: Judge the PCI bridges of a stored listing
  ai_infra.gpu_rack.kernel_params:
    captured: lspci-vvv.txt
    acs: 'off'
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
  description: Name of the gate, V(kernel_params).
  type: str
  returned: always
checks:
  description: Every judged fact, for example C(kernel_params.cmdline) of one parameter.
  type: list
  elements: dict
  returned: always
evidence:
  description: The readings with their digests; the texts too when O(evidence_dir) is not set.
  type: list
  elements: dict
  returned: always
reboot_required:
  description: Whether a parameter or the release says that the node was not booted with what is configured.
  type: bool
  returned: always
fleet:
  description: The kernel's release, for the comparison of the nodes of a rack.
  type: dict
  returned: always
"""

import re
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _kernel_params
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._board_profiles import NAMES
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._capture import Source, refusal
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._cli import GATE_ARGS, finish_gate
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._kernel_params import Readings, Wanted
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._verdict import Evidence

ARGUMENT_SPEC = {
    **GATE_ARGS,
    "profile": {"type": "str", "choices": list(NAMES)},
    "parameters": {"type": "list", "elements": "str", "default": []},
    "forbidden": {"type": "list", "elements": "str", "default": []},
    "release": {"type": "str"},
    "sysctls": {"type": "dict", "default": {}},
    "module_parameters": {"type": "dict", "default": {}},
    "governor": {"type": "str"},
    "transparent_hugepages": {"type": "str", "choices": ["always", "madvise", "never"]},
    "acs": {"type": "str", "choices": ["off"]},
}
_HUGEPAGES = "/sys/kernel/mm/transparent_hugepage/enabled"


def allowed(module: AnsibleModule, option: str, name_form: str) -> dict[str, list[str]]:
    """Return an option's names with their lists of allowed values, or fail the task naming what is wrong."""
    found: dict[str, list[str]] = {}
    for name, value in module.params[option].items():
        values = value if isinstance(value, list) else [value]
        if not re.fullmatch(name_form, name) or not values or any(isinstance(v, dict) or v is None for v in values):
            module.fail_json(msg=f"{option}: {name!r} with {value!r}. Give a name and its value, or a list of values.")
        found[name] = [str(int(v)) if isinstance(v, bool) else str(v) for v in values]
    return found


def read(source: Source, wanted: Wanted) -> Readings:
    """Read what the options ask for."""
    if source.single_file:
        evidence = source.read(["cat", "/proc/cmdline"])
        return Readings(**{_kernel_params.kind(evidence.stdout): _text(evidence)})

    def get(condition: object, argv: list[str], *names: str, needed: bool = True) -> Evidence | None:
        return source.read(argv, *names, needed=needed) if condition else None

    cmdline = source.read(["cat", "/proc/cmdline"], "cmdline.txt", "cmdline", "proc-cmdline.txt")
    release = source.read(["uname", "-r"], "uname-r.txt", "uname.txt", needed=wanted.release is not None)
    # These end with an error for one name or file that is missing; the others count, and the missing one is named.
    sysctls = get(wanted.sysctls, ["sysctl", *wanted.sysctls], "sysctl.txt", "sysctl-a.txt", needed=False)
    files = [f"/sys/module/{m}/parameters/{p}" for m, _dot, p in (k.partition(".") for k in wanted.modules)]
    modules = get(files, ["grep", "-sH", ".", *files], "module-parameters.txt", needed=False)
    governors = get(
        wanted.governor,
        ["grep", "-rs", "--include=scaling_governor", ".", "/sys/devices/system/cpu/cpufreq"],
        "governors.txt",
        "scaling_governor.txt",
        needed=False,
    )
    return Readings(
        cmdline=_text(cmdline),
        release=_text(release),
        sysctls=_text(sysctls, tolerated=(1, 255)),
        modules=_text(modules, tolerated=(1, 2)),
        governors="!none" if source.live and governors is not None and _nothing(governors) else _text(governors),
        hugepages=_text(get(wanted.hugepages, ["cat", _HUGEPAGES], "transparent_hugepage.txt", "thp.txt")),
        lspci=_text(get(wanted.acs_off, ["lspci", "-vvv"], "lspci-vvv.txt", "lspci.txt")),
    )


def _text(evidence: Evidence | None, tolerated: tuple[int, ...] = ()) -> str | None:
    if evidence is None:
        return None
    if evidence.stdout and evidence.rc in tolerated:
        return evidence.stdout
    reason = refusal(evidence)
    return f"!{reason}" if reason is not None else evidence.stdout


def _nothing(governors: Evidence) -> bool:
    """Tell whether there is no directory of frequency policies: grep then says nothing and ends with 2."""
    return governors.rc in (1, 2) and not governors.stdout and not governors.stderr and not governors.error


def main() -> None:
    """Read, judge, and report."""
    module = AnsibleModule(ARGUMENT_SPEC, supports_check_mode=True)
    params: dict[str, Any] = module.params
    for option in ("parameters", "forbidden"):
        for parameter in params[option]:
            # One word with a name; what no command line can hold would never be found, and so never be forbidden.
            if not re.fullmatch(r'[^\s="]+(=.*)?', parameter):
                module.fail_json(msg=f"{option}: {parameter!r} is no kernel parameter. Write name or name=value.")
    wanted = Wanted(
        parameters=params["parameters"],
        forbidden=params["forbidden"],
        release=params["release"],
        sysctls=allowed(module, "sysctls", r"[A-Za-z0-9_][\w./-]*"),
        modules=allowed(module, "module_parameters", r"[A-Za-z0-9_-]+\.[A-Za-z0-9_]+"),
        governor=params["governor"],
        hugepages=params["transparent_hugepages"],
        acs_off=params["acs"] == "off",
    )
    source = Source(params["captured"], params["timeout"])
    read_texts = read(source, wanted)
    checks = _kernel_params.judge(read_texts, wanted)
    booted = ("kernel_params.cmdline", "kernel_params.forbidden", "kernel_params.release")
    reboot = any(c.verdict == "fail" and c.check in booted for c in checks)
    release = (read_texts.release or "!").strip()
    versions = {} if release.startswith("!") else {"kernel_params.release": release}
    fleet = {"versions": versions, "values": {}}
    finish_gate(module, "kernel_params", checks, source.used, reboot_required=reboot, fleet=fleet)


if __name__ == "__main__":
    main()

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Module nccl_conf: the file of NCCL variables, linted before it is written."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nccl_conf
short_description: Write the NCCL library's configuration file, linted
version_added: 0.1.0
description:
  - Writes C(/etc/nccl.conf), which every process that uses NCCL reads at its start. A variable in a process's own
    environment wins over it.
  - NCCL ignores what it does not know without a word. So a variable that is unknown, renamed, removed, newer than the
    library, in the wrong
    place or out of range is refused, with the name it should have or the place where it belongs, and nothing is
    written.
  - What is allowed but unwise (debugging switches, settings without effect on the link layer) is a warning.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  path:
    description: File to write.
    type: path
    default: /etc/nccl.conf
  variables:
    description: Variables and their values.
    type: dict
    default: {}
  hcas:
    description:
      - RDMA devices NCCL may use, in rail order, each as C(mlx5_0) or with a port as C(mlx5_0:1). They become
        C(NCCL_IB_HCA) in the exact-match form
        C(=mlx5_0:1,mlx5_1:1), because NCCL takes a plain C(mlx5_1) as a prefix that also matches C(mlx5_10).
      - An empty list leaves the choice to NCCL.
    type: list
    elements: str
    default: []
  link_layer:
    description: Link layer of the RDMA devices. Variables that have no meaning on it are refused.
    type: str
    choices: [infiniband, ethernet]
  placement:
    description:
      - Where the file is read. V(library) is NCCL's own file. V(framework) is an environment file of a unit, where
        variables of PyTorch belong and
        those of the library do not.
    type: str
    choices: [library, framework]
    default: library
  library_version:
    description: Version of the NCCL library the file is for. A variable it does not read yet is refused.
    type: str
    default: "2.27"
attributes:
  check_mode:
    description: Lints, and reports what would be written.
    support: full
  diff_mode:
    description: Shows the file before and after.
    support: full
"""

EXAMPLES = r"""
- name: Use the eight rails and no other RDMA device
  ai_infra.gpu_rack.nccl_conf:
    hcas: [mlx5_0, mlx5_1, mlx5_2, mlx5_3, mlx5_4, mlx5_5, mlx5_6, mlx5_7]
    link_layer: infiniband
    variables:
      NCCL_SOCKET_IFNAME: =eth0
"""

RETURN = r"""
path:
  description: The file.
  returned: always
  type: str
variables:
  description: The variables in the file.
  returned: success
  type: dict
problems:
  description: Why the variables were refused, one sentence each.
  returned: when they were refused
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils import _files
from ansible_collections.ai_infra.gpu_rack.plugins.module_utils._nccl_variables import (
    PLACEMENTS,
    advise,
    hca_list,
    hcas_problem,
    lint,
    parse_version,
    render,
)

ARGUMENT_SPEC = {
    "path": {"type": "path", "default": "/etc/nccl.conf"},
    "variables": {"type": "dict", "default": {}},
    "hcas": {"type": "list", "elements": "str", "default": []},
    "link_layer": {"type": "str", "choices": ["infiniband", "ethernet"]},
    "placement": {"type": "str", "choices": list(PLACEMENTS), "default": "library"},
    "library_version": {"type": "str", "default": "2.27"},
}
_HEADER = """Written by Ansible (ai_infra.gpu_rack, module nccl_conf): changes by hand are lost.
One variable a line, no quotes and no comment behind a value: NCCL takes all of the line behind the first '='."""


def main() -> None:
    """Lint, compare the file with the variables and write it when they differ."""
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    variables = dict(params["variables"])
    if params["hcas"]:
        if "NCCL_IB_HCA" in variables:
            module.fail_json(
                msg="nccl_conf: NCCL_IB_HCA is in variables and hcas is given too. Give only hcas, which writes it."
            )
        if problem := hcas_problem(params["hcas"]):
            module.fail_json(msg=f"nccl_conf: {problem}")
        variables["NCCL_IB_HCA"] = hca_list(params["hcas"])
    try:
        version = parse_version(params["library_version"])
    except ValueError as exc:
        module.fail_json(msg=f"library_version: {exc}")
    problems = lint(variables, params["placement"], params["link_layer"], version)
    if problems:
        module.fail_json(msg=f"{params['path']}: {' '.join(problems)}", path=params["path"], problems=problems)
    for advice in advise(variables, params["link_layer"]):
        module.warn(f"{params['path']}: {advice}")
    wanted = _files.WantedFile(params["path"], render(variables, _HEADER))
    changed, difference = _files.apply([wanted], module.check_mode)
    module.exit_json(changed=bool(changed), path=params["path"], variables=variables, diff=difference)


if __name__ == "__main__":
    main()

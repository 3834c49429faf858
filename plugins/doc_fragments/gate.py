# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation shared by every gate module."""

from __future__ import annotations


class ModuleDocFragment:
    """Options, attributes and return values of a gate module."""

    DOCUMENTATION = r"""
options:
  captured:
    description:
      - Judge stored output of the tool in place of running it, so that a support bundle is judged without the hardware.
      - A file, or for a module that runs several tools a directory that holds one file a tool.
    type: path
  evidence_dir:
    description:
      - Directory on the host where the result and the raw output are stored, as C(<gate>.json) with mode 0600.
    type: path
  enforce:
    description:
      - Fail the task when the verdict is V(fail) or V(unknown).
      - With V(false) the verdict is only returned and stored, for P(ai_infra.gpu_rack.gate#module) to decide on.
    type: bool
    default: true
  timeout:
    description:
      - Deadline in seconds for each command the module runs.
      - A command that is late is V(unknown), never a pass.
    type: float
    default: 60.0
attributes:
  check_mode:
    description: Reads only, so check mode does the same.
    support: full
  diff_mode:
    description: There is no difference to show, nothing is changed.
    support: none
"""

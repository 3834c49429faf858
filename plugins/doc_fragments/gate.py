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
      - A file, or for a module that runs several tools a directory that holds one file a tool, or the C(<gate>.json) of
        an O(evidence_dir), which gives the checks it gave when it was made, without those carried over from an earlier
        reading.
      - Files may be compressed (C(.gz)), begin with a byte order mark (UTF-8, UTF-16), and end their lines in CR LF.
        One of more than 64 MiB is not read.
      - In a directory, C(<name>.rc) beside a file holds the exit status of the tool and C(<name>.stderr) what it wrote
        to standard error. Without them the tool ended with status 0 and wrote nothing there; an error text in the
        file itself is still judged as an error.
    type: path
  evidence_dir:
    description:
      - Directory on the host where the result and the raw output are stored, as C(<gate>.json) with mode 0600.
      - Where a module has the option C(before) and it names this very file, the result replaces the earlier reading.
        What was V(fail) or V(unknown) in that one is carried into the new result, with C(before the load) behind the
        subject, so a defect that is gone in the second reading still blocks. An earlier result that is missing or
        damaged is V(unknown).
    type: path
  enforce:
    description:
      - Fail the task when the verdict is V(fail) or V(unknown).
      - With V(false) the verdict is only returned and stored, for P(ai_infra.gpu_rack.gate#module) to decide on.
    type: bool
    default: true
  timeout:
    description:
      - Deadline in seconds for each command the module runs, each in a process group of its own.
      - A command that is late is V(unknown), never a pass. So is one that prints more than 64 MiB.
      - All commands of one module together get three times this. What is beyond that is not started and V(unknown), so
        ten tools that hang do not take ten times as long.
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

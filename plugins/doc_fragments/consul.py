# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation shared by the modules that talk to Consul."""

from __future__ import annotations


class ModuleDocFragment:
    """Options of a connection to Consul."""

    DOCUMENTATION = r"""
options:
  address:
    description: Consul's HTTP API, as V(http://host:8500) or V(https://host:8501).
    type: str
    default: http://127.0.0.1:8500
  token:
    description: ACL token. It goes into a header, never into a URL, a command line or the output.
    type: str
  ca_path:
    description: File with the certificate authority of an https address. Without it the host's own trust store is used.
    type: path
"""

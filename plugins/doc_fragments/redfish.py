# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation shared by the modules that talk to a BMC."""

from __future__ import annotations


class ModuleDocFragment:
    """Options of a Redfish client."""

    DOCUMENTATION = r"""
options:
  address:
    description: The BMC as C(host) or C(host:port), reached by HTTPS.
    type: str
    required: true
  username:
    description: Account on the BMC.
    type: str
    required: true
  password:
    description: Password of O(username). It is sent by HTTP basic authentication and never part of a message.
    type: str
    required: true
  validate_certs:
    description: Verify the BMC's certificate. Set V(false) only on a management network nobody else is on.
    type: bool
    default: true
  ca_path:
    description: PEM file with the certificate authority that signed the BMC's certificate.
    type: path
  system_id:
    description:
      - Identifier of the computer system at the BMC.
      - Without it the only system that has a BIOS is taken. On a baseboard whose BMC also shows the GPU board as a
        system that is the host.
    type: str
  timeout:
    description: Deadline in seconds for each request.
    type: float
    default: 30.0
  retries:
    description: How often a request is tried again when the BMC is busy (HTTP 503) or drops the connection.
    type: int
    default: 4
"""

# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Documentation of quarantine; the work is done by the action plugin of the same name."""

from __future__ import annotations

DOCUMENTATION = r"""
module: quarantine
short_description: Take a failed node out with its reason, then fail it with that reason
version_added: 0.1.0
description:
  - For the C(rescue) of a play that brings a node up. Derives why the node failed from the failed task, writes it to
    the node
    (C(/var/lib/gpu_rack/quarantine.json)), turns the node's inference units critical in Consul, and records the
      reason in Consul's key-value
    store from the controller.
  - Always fails the host with the original reason. A node that cannot be reached or a Consul that does not answer is
    a warning and hides nothing.
  - Uses the message, verdict and checks of the failed task only. Of a task with C(no_log) it uses nothing but its name.
author: The ai_infra.gpu_rack authors (!UNKNOWN)
options:
  stage:
    description: Stage of the bring-up that failed, such as V(firmware) or V(hardware).
    type: str
    required: true
  failed_task:
    description: The failed task, C(ansible_failed_task).
    type: dict
    required: true
  failed_result:
    description: Its result, C(ansible_failed_result).
    type: dict
    required: true
  next_command:
    description: What a person types next.
    type: str
    required: true
  run:
    description: Id of this run.
    type: str
    default: ""
  service:
    description: Name of the Consul service of the units.
    type: str
    default: vllm
  consul_address:
    description: HTTP API of a Consul server as the controller reaches it. Without it nothing is recorded in Consul
      from the controller.
    type: str
    default: ""
  consul_ca_path:
    description: File on the controller with the certificate authority of an https address.
    type: path
  consul_token:
    description: Token with write access to the service and to the key prefix C(gpu_rack/).
    type: str
    default: ""
  agent_address:
    description: HTTP API of the node's own agent.
    type: str
    default: http://127.0.0.1:8500
attributes:
  check_mode:
    description: Fails with the reason and changes nothing.
    support: full
  diff_mode:
    description: A failed task shows no difference.
    support: none
"""

EXAMPLES = r"""
- name: Bring the node up
  block:
    - name: Judge the hardware
      ansible.builtin.import_role:
        name: ai_infra.gpu_rack.node_gate
  rescue:
    - name: Take the node out
      ai_infra.gpu_rack.quarantine:
        stage: hardware
        failed_task: "{{ ansible_failed_task }}"
        failed_result: "{{ ansible_failed_result }}"
        next_command: ansible-playbook site.yml --limit {{ inventory_hostname }}
"""

RETURN = r"""
quarantine:
  description: Why the node is out.
  returned: always
  type: dict
  sample:
    node: node3
    stage: hardware
    task: Judge the links
    check: nvlink_topology.links
    subject: gpu 0 - gpu 3
    verdict: fail
    value: 17
    limit: 18
    unit: links
    limit_source: board profile hgx_h100_8
    reason: "nvlink_topology.links gpu 0 - gpu 3: fail, measured 17 links, limit 18 links (board profile hgx_h100_8)."
    remedy: Reseat the board.
    next_command: ansible-playbook site.yml --limit node3
warnings:
  description: What could not be recorded, and why.
  returned: when something could not be recorded
  type: list
  elements: str
"""

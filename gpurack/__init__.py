"""The operator's command for racks brought up with the collection ai_infra.gpu_rack. The playbooks never need it."""

__version__ = "0.1.0"

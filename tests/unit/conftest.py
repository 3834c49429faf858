# Copyright (c) 2026, The ai_infra.gpu_rack authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What holds for all unit tests."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# A loaded machine is slow, and a slow example is no fault of what is tested.
settings.register_profile("unit", max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")

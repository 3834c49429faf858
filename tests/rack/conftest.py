"""The one rack of these tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.rack.live import Rack


@pytest.fixture(scope="session")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    """Return a bare rack, taken down at the end."""
    made = Rack(tmp_path_factory.mktemp("logs"))
    keep = os.environ.get("GPU_RACK_KEEP") == "1"
    made.simulator("up", *([] if keep else ["--fresh"]))
    yield made
    if not keep:
        made.simulator("down")

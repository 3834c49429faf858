"""`python -m gpurack.report RUN_DIRECTORY [OUTPUT]` makes the report of a run. playbooks/report.yml calls it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpurack.errors import GpurackError
from gpurack.report import write

if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m gpurack.report RUN_DIRECTORY [OUTPUT]")
    try:
        print(json.dumps(write(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None)))
    except GpurackError as exc:
        sys.exit(f"gpurack: {exc}")

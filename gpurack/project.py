"""Where the checkout, its playbooks, its inventories and its renderer of summaries are."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from gpurack.errors import GpurackError

SIMULATED = "inventories/sim"


def root() -> Path:
    """Return the checkout: the nearest directory upwards that holds this collection, else this package's own."""
    for place in (*[Path.cwd(), *Path.cwd().parents], Path(__file__).resolve().parents[1]):
        if (place / "galaxy.yml").is_file() and (place / "playbooks" / "site.yml").is_file():
            return place
    raise GpurackError(f"checkout not found: no playbooks/site.yml in or above {Path.cwd()}. Change into the checkout.")


def playbook(name: str) -> Path:
    """Return the path of a playbook of the collection."""
    return root() / "playbooks" / f"{name}.yml"


def inventory(given: str | None) -> Path:
    """Return the inventory directory: the given one, the one in GPURACK_INVENTORY, or the simulated rack's.

    Raises GpurackError when it does not exist, with the names of those that do.
    """
    chosen = given or os.environ.get("GPURACK_INVENTORY") or SIMULATED
    path = Path(chosen) if Path(chosen).exists() else root() / chosen
    if not path.exists():
        known = ", ".join(sorted(f"inventories/{p.name}" for p in (root() / "inventories").iterdir() if p.is_dir()))
        raise GpurackError(
            f"inventory {chosen}: no such file or directory. Name one with -i; this checkout has {known}."
        )
    return path.resolve()


def program(name: str) -> str:
    """Return the path of a program of the same virtual environment as this one."""
    beside = Path(sys.executable).parent / name
    if not os.access(beside, os.X_OK):
        raise GpurackError(f"program {name}: not in {beside.parent}. Run `make setup` in the checkout.")
    return str(beside)


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """Return the lines of a run's summary, rendered by the very file that the callback rack_summary renders with."""
    lines: list[str] = plugin_util("plugin_utils/_summary.py").render(summary)
    return lines


def plugin_util(path: str) -> ModuleType:
    """Return a util of the collection's plugins that needs nothing but the standard library."""
    file = root() / "plugins" / path
    name = f"gpurack_{file.stem.strip('_')}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None or not file.is_file():
        raise GpurackError(f"checkout {root()}: {file} is missing. Restore it with `git checkout`.")
    module = importlib.util.module_from_spec(spec)
    # Data classes look their module up.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module

"""How rules, metrics, dialects, quantities and importers are found: by the modules of their package being there."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def import_modules(package: str) -> None:
    """Import every module of a package, in alphabetical order, so that what they declare is registered."""
    found = importlib.import_module(package)
    for module in sorted(info.name for info in pkgutil.walk_packages(found.__path__, f"{package}.")):
        importlib.import_module(module)

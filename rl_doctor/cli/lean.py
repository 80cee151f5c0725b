"""Keeping pandas out of the process: no verb that reads runs uses it, and importing it takes as long as checking a small run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        del path, target
        if fullname == "pandas":
            raise ModuleNotFoundError("hidden for the moment", name=fullname)
        return None


def settle_without_pandas() -> None:
    """Let pyarrow find no pandas.

    pyarrow imports pandas, where it is installed, at the first exchange with numpy, and remembers the answer. That first exchange
    is made here, with pandas hidden for the moment. A process that has pandas already is left as it is.
    """
    if "pandas" in sys.modules:
        return
    hidden = _NoPandas()
    sys.meta_path.insert(0, hidden)
    try:
        import numpy as np
        import pyarrow as pa

        pa.array(np.zeros(1)).to_numpy()
    finally:
        sys.meta_path.remove(hidden)

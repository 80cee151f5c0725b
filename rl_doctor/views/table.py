"""The numbers behind a chart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

Table = Mapping[str, Sequence[Any] | NDArray[Any]]
"""Name of a column -> its values; all columns are equally long."""

"""The unit of work: whole sequences of one step, ragged, bounded in size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_doctor.frozen import frozen
from rl_doctor.schema import RunInfo


@frozen(eq=False)
class Batch:
    """Whole sequences of one step.

    Attributes:
        step: the optimizer step that every sequence here belongs to.
        columns: canonical name -> flat array; ``[n_sequences]`` for sequence and context columns, ``[n_tokens]`` for tokens.
            Integers use ``schema.MISSING_INT`` for null, floats NaN, strings None (object arrays); ``role`` is int8, an
            index into ``schema.ROLES`` or -1.
        splits: int64 ``[n_sequences + 1]``; sequence i owns the tokens ``splits[i]:splits[i + 1]``.
        info: the run's description, for metrics that depend on its configuration.
        run_tokens: about how many tokens the run has that the batch is part of, as far as that is known: what is worth
            preparing for depends on it.
        scratch: values derived from this batch, kept so that metrics share them.
    """

    step: int
    columns: Mapping[str, NDArray[Any]]
    splits: NDArray[np.int64]
    info: RunInfo = RunInfo()
    run_tokens: int = 0
    scratch: dict[Any, Any] = field(default_factory=dict, repr=False)

    @property
    def n_sequences(self) -> int:
        """Number of sequences."""
        return len(self.splits) - 1

    @property
    def n_tokens(self) -> int:
        """Number of stored tokens."""
        return int(self.splits[-1]) if len(self.splits) else 0

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Int64 ``[n_sequences]``: stored tokens of each sequence."""
        return self.splits[1:] - self.splits[:-1]  # np.diff takes ten times as long for a few sequences

    def get(self, name: str) -> NDArray[Any] | None:
        """The column of that canonical name, or None where the run does not have it."""
        return self.columns.get(name)

"""Whether a prompt or a group was there before: a column that the engine adds to batches as it reads them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import blake2b

import numpy as np

from rl_doctor.analyzer.derive import SEEN, known
from rl_doctor.schema import MISSING_INT
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes


class Seen:
    """The generation batch that each name, by its digest, was in first, as known before the step that is read."""

    def __init__(self, added: str) -> None:
        self._added = added
        self._first: dict[int, int] = {}
        self._of_step: dict[int, int] = {}

    def told(self, batch: Batch) -> Batch:
        """The batch with the added column: names that are new in a step are new in all its rows, in whatever order they come."""
        names, rollout = batch.columns.get(SEEN[self._added]), batch.get("rollout_step")
        if names is None:
            return batch
        own = np.full(batch.n_sequences, batch.step) if rollout is None else rollout
        own = np.where(own == MISSING_INT["int64"], batch.step, own)
        found, place, member = np.unique(codes(names), return_index=True, return_inverse=True)
        keys = [_digest(names[row]) for row in place]
        lowest = np.full(len(found), np.iinfo(np.int64).max)
        np.minimum.at(lowest, member.reshape(-1), own)
        for key, low in zip(keys, lowest.tolist(), strict=True):
            self._of_step[key] = min(low, self._of_step.get(key, low))
        earliest = np.array([self._first.get(key, np.iinfo(np.int64).max) for key in keys], np.int64)
        seen = (earliest[member.reshape(-1)] < own).astype(np.int32) if len(found) else np.zeros(0, np.int32)
        seen = np.where(known(names), seen, MISSING_INT["int32"]).astype(np.int32)
        return replace(batch, columns={**batch.columns, self._added: seen})

    def close(self) -> None:
        """The step is read."""
        for key, low in self._of_step.items():
            self._first[key] = min(low, self._first.get(key, low))
        self._of_step = {}

    def known(self) -> dict[int, int]:
        """Digest of each name that the steps before had -> the generation batch that it was in first."""
        return dict(self._first)

    def go_on(self, known: Mapping[int, int]) -> None:
        """Go on from what was known."""
        self._first = dict(known)


def _digest(name: str | None) -> int:
    """A number of 64 bits, the same in every process; of no name 0."""
    if name is None:
        return 0
    return int.from_bytes(blake2b(name.encode(errors="surrogatepass"), digest_size=8).digest(), "little", signed=True)

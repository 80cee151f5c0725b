"""Which groups keep their tokens when a recording keeps those of a share of them."""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.errors import UsageError
from rl_doctor.schema import MISSING_INT
from rl_doctor.store.rows import Rows, without_tokens

_CIRCLE: Final = 1 << 64
_BY_SLOT: Final = 0x9E3779B97F4A7C15
"""The golden ratio's part of the circle: neighbouring slots lie far apart, and any few of them are spread evenly over it."""
_BY_BATCH: Final = 0x6A09E667F3BCC909
"""The square root of two's: from one generation batch to the next the circle turns, so that each slot has its turn."""
_SLOT: Final = re.compile(r"(.*?)(\d{1,18})", re.DOTALL)
_REMEMBERED: Final = 16
_PLACES: Final = ("group", "uid")


def place(identity: str, rollout_step: int) -> int:
    """Where on a circle of 2**64 points the identity stands in a generation batch; the same in every process and pass.

    The number at the identity's end is its slot; what stands before it, hashed, says where slot 0 is. Slots of one batch, and one
    slot over the batches, are then spread evenly (Weyl's sequences of irrational step), so that any share of the circle is met as
    often as it is large.
    """
    found = _SLOT.fullmatch(identity)
    head, slot = (identity, 0) if found is None else (found[1], int(found[2]))
    seed = int.from_bytes(hashlib.blake2b(head.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
    return (seed + _BY_SLOT * slot + _BY_BATCH * rollout_step) % _CIRCLE


class GroupSampler:
    """Leaves out the tokens of all but a rotating share of the groups.

    Every process and every pass over a generation batch keeps the same groups, because a group's place depends on its identity
    and its generation batch alone. Where a step of the first rank would keep none, it keeps one.

    Args:
        share: share of the groups that keep their tokens, above 0 and at most 1.
        tell: logs a line, once.

    Raises:
        UsageError: the share is none.
    """

    def __init__(self, share: float, tell: Callable[[str], object]) -> None:
        if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share <= 1:
            raise UsageError(f"sampling is a share of the groups, above 0 and at most 1, not {share!r}")
        self._limit = int(share * _CIRCLE)
        self._tell = tell
        self._always: OrderedDict[int, set[str]] = OrderedDict()

    def thin(self, parts: Sequence[Rows], rank: int) -> list[Rows]:
        """The rows of one step with the tokens of the groups left out whose turn it is not.

        Args:
            parts: rows of one step.
            rank: the writing rank, where the rows have no column ``rank``.
        """
        identities = [self._identities(rows) for rows in parts]
        batches = [_generation_batches(rows) for rows in parts]
        places: dict[tuple[str, int], int] = {}
        for names, steps in zip(identities, batches, strict=True):
            places |= {key: place(*key) for key in dict.fromkeys(zip(names, steps, strict=True)) if key not in places}
        kept = {key for key, at in places.items() if at < self._limit or key[0] in self._always.get(key[1], ())}
        with_tokens = [
            key
            for rows, names, steps in zip(parts, identities, batches, strict=True)
            for key, length in zip(zip(names, steps, strict=True), np.diff(rows.splits).tolist(), strict=True)
            if length
        ]
        if with_tokens and kept.isdisjoint(with_tokens) and _is_first(parts, rank):
            chosen = min(with_tokens, key=lambda key: (places[key], key))
            kept.add(chosen)
            self._remember(chosen)
        return [
            without_tokens(rows, np.array([key not in kept for key in zip(names, steps, strict=True)], np.bool_))
            if rows.n_tokens
            else rows
            for rows, names, steps in zip(parts, identities, batches, strict=True)
        ]

    def _remember(self, key: tuple[str, int]) -> None:
        """Keep the group in later passes over its generation batch too."""
        self._always.setdefault(key[1], set()).add(key[0])
        while len(self._always) > _REMEMBERED:
            self._always.popitem(last=False)

    def _identities(self, rows: Rows) -> list[str]:
        """What tells which rows stay together, for each row: its group, else its uid, else its place among the rows."""
        found = [f"row:{row}" for row in range(rows.n_sequences)]
        for name in reversed(_PLACES):
            if (values := rows.columns.get(name)) is not None:
                found = [old if new is None else f"{name}:{new}" for old, new in zip(found, values.tolist(), strict=True)]
        if "group" not in rows.columns:
            by = "sequences by their uid" if "uid" in rows.columns else "sequences by their place in the batch, pass by pass"
            self._tell(f"sampling keeps the tokens of whole groups, but no column 'group' is logged: it chooses {by}")
        return found


def _generation_batches(rows: Rows) -> list[int]:
    steps: NDArray[np.int64] = rows.columns["step"]
    rollout = rows.columns.get("rollout_step")
    if rollout is not None:
        steps = np.where(rollout == MISSING_INT["int64"], steps, rollout)
    return [int(step) for step in steps]


def _is_first(parts: Sequence[Rows], rank: int) -> bool:
    """Whether these are rows of the first data-parallel rank."""
    ranks = [int(rows.columns["rank"].min()) for rows in parts if "rank" in rows.columns and rows.n_sequences]
    return (min(ranks) if ranks else rank) == 0

"""The same computation from other columns than those that belong into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.recompute.stages import Share
from rl_doctor.analyzer.recompute.variations.measures import Varied
from rl_doctor.store.batch import Batch

Column = NDArray[Any]

_LOGPROBS: Final = ("logprob", "old_logprob", "ref_logprob", "rollout_logprob")
_INSTEAD: Final[Mapping[str, tuple[str, ...]]] = {
    "logprob": ("old_logprob", "rollout_logprob", "ref_logprob"),
    "old_logprob": ("rollout_logprob", "logprob", "ref_logprob"),
    "ref_logprob": ("old_logprob", "rollout_logprob"),
    "rollout_logprob": ("logprob", "ref_logprob"),
    "entropy": ("old_entropy",),
    "old_entropy": ("entropy",),
    "advantage": ("return", "token_reward"),
    "return": ("advantage",),
    "value": ("old_value", "return"),
    "old_value": ("value", "return"),
    "reward": ("score",),
    "score": ("reward",),
    "response_length": ("stored_length", "prompt_length"),
}
"""Columns that are easily taken for another one."""
_NEGATED: Final = ("advantage",)
_ESTIMATED: Final = {"entropy": ("logprob", "old_logprob", "rollout_logprob"), "old_entropy": ("old_logprob", "rollout_logprob")}


def other_columns(own: Varied) -> Iterator[Varied]:
    """The key from other columns: two exchanged, one in another's place, one with the opposite sign."""
    present = {part for need in own.needs for part in need.split("|")}

    def varied(name: str, sentence: str, take: Mapping[str, Callable[[Batch], Column]], *needs: str) -> Varied:
        shares = tuple(_from(share, name, take) for share in own.shares)
        return replace(own, name=name, sentence=sentence, shares=shares, needs=(*own.needs, *needs))

    pairs = [name for name in _LOGPROBS if name in present]
    for at, first in enumerate(pairs):
        for second in pairs[at + 1 :]:
            yield varied(
                f"{first} and {second} exchanged", f"has {first} and {second} the wrong way round",
                {first: _column(second), second: _column(first)},
            )  # fmt: skip
    for name, others in _INSTEAD.items():
        for other in others if name in present else ():
            yield varied(f"{other} for {name}", f"uses {other} where {name} belongs", {name: _column(other)}, other)
    for name in _NEGATED:
        if name in present:
            yield varied(f"{name} negated", f"uses {name} with the opposite sign", {name: _negative(name)})
    for name, others in _ESTIMATED.items():
        for other in others if name in present else ():
            sentence = f"is the mean of minus {other}, an estimate of the entropy from the sampled tokens"
            yield varied(f"minus {other}", sentence, {name: _negative(other)}, other)


def _column(name: str) -> Callable[[Batch], Column]:
    return lambda batch: batch.columns[name]


def _negative(name: str) -> Callable[[Batch], Column]:
    return lambda batch: np.negative(batch.columns[name])


def _from(share: Share, name: str, take: Mapping[str, Callable[[Batch], Column]]) -> Share:
    def other(batch: Batch) -> Any:
        key = ("other columns", name)
        if key not in batch.scratch:
            columns = {**batch.columns, **{target: column(batch) for target, column in take.items()}}
            batch.scratch[key] = replace(batch, columns=columns, scratch={})
        return share(batch.scratch[key])

    return other

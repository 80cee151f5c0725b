"""What the sequences and tokens of a batch are told apart by: rank, data source, version lag, position and the like.

A slicer gives names and, for each sequence or each trained token, which of the names it belongs to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import known, picked, real_rows, selected_positions, selected_splits, selection
from rl_doctor.analyzer.states import Named
from rl_doctor.store.batch import Batch

Names = tuple[list[str], NDArray[np.int64]]
"""Names, and int64 ``[n]``: the index of the name that each item belongs to, or -1."""

_DOUBLING: Final = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)


def _numbered(values: NDArray[Any], fine: NDArray[np.bool_]) -> Names:
    found, member = np.unique(values[fine], return_inverse=True)
    index = np.full(len(values), -1, np.int64)
    index[fine] = member
    return [str(value) for value in found.tolist()], index


def _doubling(values: NDArray[Any], fine: NDArray[np.bool_]) -> Names:
    """Bins whose lower ends are 0, 1, 2, 4 ...; the name is the lower end."""
    index = np.where(fine & (values >= 0), np.searchsorted(_DOUBLING, values, side="right") - 1, -1)
    return [str(low) for low in _DOUBLING], index.astype(np.int64)


def _column(name: str) -> Callable[[Batch], Names]:
    return lambda batch: _numbered(batch.columns[name], known(batch.columns[name]) & real_rows(batch))


def _binned(name: str) -> Callable[[Batch], Names]:
    return lambda batch: _doubling(batch.columns[name], known(batch.columns[name]) & real_rows(batch))


def _lag(batch: Batch) -> Names:
    policy, weight = batch.columns["policy_version"], batch.columns["weight_version"]
    fine = known(policy) & known(weight) & real_rows(batch)
    return _numbered(np.where(fine, policy - weight, 0), fine)


SEQUENCE_SLICES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Batch], Names]]]] = MappingProxyType(
    {
        "rank": (("rank",), _column("rank")),
        "microbatch": (("microbatch",), _column("microbatch")),
        "minibatch": (("minibatch",), _column("minibatch")),
        "source": (("data_source",), _column("data_source")),
        "finish": (("finish_reason",), _column("finish_reason")),
        "lag": (("policy_version", "weight_version"), _lag),
        "left_padding": (("left_padding",), _binned("left_padding")),
        "prompt_length": (("prompt_length",), _binned("prompt_length")),
        "response_length": (("response_length",), _binned("response_length")),
        "turns": (("turns",), _column("turns")),
        "group_seen": (("group_seen",), _column("group_seen")),
        "prompt_seen": (("prompt_seen",), _column("prompt_seen")),
    }
)
"""Slice -> the columns that it needs, and (batch) -> names of sequences, int64 ``[n_sequences]``."""


def _position(batch: Batch) -> Names:
    place = selected_positions(batch)
    names, bins = _doubling(every := np.arange(place.max(initial=0) + 1), np.ones(len(every), np.bool_))
    return names, bins[place]


def _turn(batch: Batch) -> Names:
    turn = batch.columns["turn"][selection(batch)]
    return _numbered(turn, known(turn))


_PROBABILITIES: Final = (0.0, 0.01, 0.1, 0.5, 0.9, 0.99)


def _probability(batch: Batch) -> Names:
    """Bins of the engine's probability of the token; the name is the lower end."""
    chance = np.exp(batch.columns["rollout_logprob"][selection(batch)].astype(np.float64))
    index = np.where(np.isnan(chance), -1, np.searchsorted(_PROBABILITIES, chance, side="right") - 1)
    return [f"{low:g}" for low in _PROBABILITIES], index.astype(np.int64)


def _kind(batch: Batch) -> Names:
    """The first end of a response, padding (later ends too where padding has their id), and all other tokens."""
    ids, info = picked(batch, "token_id"), batch.info
    pad = -1 if info.pad_token_id is None else info.pad_token_id
    ends = np.isin(ids, info.eos_token_ids or ()) & known(ids)
    splits = selected_splits(batch)
    before = np.concatenate([[0], np.cumsum(ends)])
    again = ends & (before[:-1] - np.repeat(before[splits[:-1]], np.diff(splits)) > 0)
    padding = (ids == pad) & (~ends | again)
    index = np.where(padding, 1, np.where(ends, 0, 2))
    return ["end", "padding", "other"], np.where(known(ids), index, -1).astype(np.int64)


TOKEN_SLICES: Final[Mapping[str, tuple[tuple[str, ...], Callable[[Batch], Names]]]] = MappingProxyType(
    {
        "position": ((), _position),
        "turn": (("turn",), _turn),
        "kind": (("token_id",), _kind),
        "probability": (("rollout_logprob",), _probability),
    }
)
"""Slice -> the columns that it needs, and (batch) -> names of trained tokens, int64 ``[n_selected]``."""


def of_sequences(batch: Batch, by: str, sums: NDArray[np.float64], counts: NDArray[np.int64]) -> Named:
    """Sums per sequence ``[k, n_sequences]``, with the items behind each, by the names of a sequence slice."""
    names, member = SEQUENCE_SLICES[by][1](batch)
    return Named.of(names, member, sums, counts)


def of_tokens(batch: Batch, by: str, values: NDArray[np.float64], fine: NDArray[np.bool_]) -> Named:
    """Values of trained tokens ``[k, n_selected]`` where ``fine``, by the names of a token slice.

    They are summed per sequence and name first, so that the result does not depend on how sequences were split into batches.
    """
    names, member = _told(batch, by)
    splits = selected_splits(batch)
    row = np.repeat(np.arange(len(splits) - 1), np.diff(splits))
    chosen = fine & (member >= 0)
    cell, size = row * len(names) + member, (len(splits) - 1) * len(names)
    if size > len(cell):  # few tokens in many parts
        cells, place = np.unique(cell[chosen], return_inverse=True)
        cell = np.full(len(cell), len(cells))
        cell[chosen], size = place, len(cells)
    else:
        cells, cell = np.arange(size), np.where(chosen, cell, size)
    counts = np.bincount(cell, minlength=size + 1)[:size]
    sums = np.array([np.bincount(cell, line, minlength=size + 1)[:size] for line in values], np.float64)
    there = np.flatnonzero(counts)
    return Named.of(names, cells[there] % max(len(names), 1), sums[:, there], counts[there])


def _told(batch: Batch, by: str) -> Names:
    """The names of a token slice, and those of the trained tokens; computed once per batch."""
    key = ("slice", by)
    if key not in batch.scratch:
        batch.scratch[key] = TOKEN_SLICES[by][1](batch)
    told: Names = batch.scratch[key]
    return told

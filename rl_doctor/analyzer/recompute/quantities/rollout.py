"""Quantities per row of a generation batch, each sequence once, and the sums over tokens that they are made of."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import Floats, known, per_sequence_counts, per_sequence_sums, selected
from rl_doctor.analyzer.formulas.groups import group
from rl_doctor.analyzer.formulas.segments import Splits, segment_sums
from rl_doctor.analyzer.formulas.validation import pass_at_k
from rl_doctor.analyzer.recompute.quantities.registry import Arguments, Values, number, quantity, word
from rl_doctor.analyzer.registry import PER_SEQUENCE_PREFIX, sequence_value
from rl_doctor.schema import TOKEN_COLUMNS
from rl_doctor.store.batch import Batch
from rl_doctor.store.codes import codes

_MASKS: Final = ("response_mask", "is_padding")
_TOKENS: Final = PER_SEQUENCE_PREFIX + "tokens"
_SUMMED: Final = tuple(column.name for column in TOKEN_COLUMNS if column.dtype == "float32")


def _sums(batch: Batch, name: str, *, absolute: bool) -> Floats:
    values = selected(batch, name)
    return per_sequence_sums(batch, np.abs(values) if absolute else values)


def _stored_sums(batch: Batch, name: str) -> Floats:
    return segment_sums(batch.columns[name], batch.splits)


sequence_value("tokens", optional=_MASKS)(per_sequence_counts)
sequence_value("loss_tokens", needs=("loss_mask",))(lambda batch: segment_sums(batch.columns["loss_mask"], batch.splits))
sequence_value("stored_tokens", needs=("stored_length",))(lambda batch: batch.lengths)
for _name in _SUMMED:
    sequence_value(f"sum_{_name}", needs=(_name,), optional=_MASKS)(partial(_sums, name=_name, absolute=False))
    sequence_value(f"size_{_name}", needs=(_name,), optional=_MASKS)(partial(_sums, name=_name, absolute=True))
    sequence_value(f"stored_sum_{_name}", needs=(_name,))(partial(_stored_sums, name=_name))


def _per(kind: str, arguments: Arguments) -> str:
    return f"{PER_SEQUENCE_PREFIX}{kind}_{word(arguments, 'name')}"


def _number_column(batch: Batch, name: str) -> Floats:
    """A sequence column, NaN for null."""
    column = batch.columns[name]
    return np.where(known(column), column.astype(np.float64), np.nan)


def _flags(values: NDArray[Any], of: Floats) -> Values:
    return Values.plain(np.where(np.isnan(of), np.nan, values))


@quantity("rows_mean", lambda a: (_per("sum", a), _per("size", a), _TOKENS, *((word(a, "per"),) if "per" in a else ())))
def _rows_mean(batch: Batch, arguments: Arguments) -> Values:
    """The sum of a token column over each row's tokens, over the tokens of all rows with the same ``per``, by default its own."""
    tokens = batch.columns[_TOKENS].astype(np.float64)
    if "per" in arguments:
        label = codes(batch.columns[word(arguments, "per")])
        tokens = np.bincount(label, tokens)[label].astype(np.float64)
    divisor = np.maximum(tokens, 1.0)
    return Values(batch.columns[_per("sum", arguments)] / divisor, batch.columns[_per("size", arguments)] / divisor)


def _counts(arguments: Arguments) -> str:
    """The column that counts tokens: of ``mask`` response_mask, or of loss_mask."""
    return f"{PER_SEQUENCE_PREFIX}loss_tokens" if word(arguments, "mask") == "loss_mask" else _TOKENS


@quantity("rows_tokens", lambda a: (_counts(a),))
def _rows_tokens(batch: Batch, arguments: Arguments) -> Values:
    """The number of tokens that are trained on, or with ``mask`` loss_mask that it covers."""
    return Values.plain(batch.columns[_counts(arguments)].astype(np.float64))


@quantity("rows_length", lambda _: ("prompt_length", "response_length"))
def _rows_length(batch: Batch, _: Arguments) -> Values:
    """Tokens of prompt and response."""
    return Values.plain(_length(batch))


def _length(batch: Batch) -> Floats:
    return _number_column(batch, "prompt_length") + _number_column(batch, "response_length")


@quantity("rows_rest", lambda _: ("prompt_length", "response_length", _TOKENS))
def _rows_rest(batch: Batch, _: Arguments) -> Values:
    """Tokens of prompt and response that are not trained on."""
    return Values.plain(_length(batch) - batch.columns[_TOKENS])


@quantity("rows_other", lambda a: ("response_length", _counts(a)))
def _rows_other(batch: Batch, arguments: Arguments) -> Values:
    """Tokens of the response that ``rows_tokens`` does not count."""
    return Values.plain(_number_column(batch, "response_length") - batch.columns[_counts(arguments)])


def _longest(length: Floats, rank: NDArray[Any] | None) -> Floats:
    """The largest length of each row's rank."""
    label = np.zeros(length.size, np.int64) if rank is None else codes(rank)
    found = np.full(label.max(initial=-1) + 1, -np.inf)
    np.maximum.at(found, label, length)
    return np.asarray(found[label])


@quantity("rows_longest", lambda _: ("prompt_length", "response_length", "rank"))
def _rows_longest(batch: Batch, _: Arguments) -> Values:
    """Whether prompt and response are together as long as the longest of their rank."""
    length = _length(batch)
    return _flags(length == _longest(length, batch.get("rank")), length)


@quantity("rows_width", lambda _: ("prompt_length", "response_length", "rank"))
def _rows_width(batch: Batch, _: Arguments) -> Values:
    """The length of the longest prompt with its response of the row's rank."""
    return Values.plain(_longest(_length(batch), batch.get("rank")))


@quantity("rows_constant", lambda _: ("step",))
def _rows_constant(batch: Batch, arguments: Arguments) -> Values:
    """The number ``value``."""
    return Values.plain(np.full(batch.n_sequences, number(arguments, "value") or 0.0))


_COMPARED: Final[dict[str, Callable[[Floats, float], Any]]] = {
    "at_least": np.greater_equal, "above": np.greater, "at_most": np.less_equal, "equal": np.equal,
}  # fmt: skip


@quantity("rows_compared", lambda a: (word(a, "name"),))
def _rows_compared(batch: Batch, arguments: Arguments) -> Values:
    """Whether a sequence column is ``how`` (at_least, above, at_most, equal) the number ``bound``."""
    column = _number_column(batch, word(arguments, "name"))
    return _flags(_COMPARED[word(arguments, "how", "above")](column, number(arguments, "bound") or 0.0), column)


@quantity("rows_baseline", lambda _: ("reward", "group"))
def _rows_baseline(batch: Batch, arguments: Arguments) -> Values:
    """Whether the mean reward of the group, with ``others`` that of its other rows, is ``value``; a row alone is its own."""
    reward = _number_column(batch, "reward")
    found = group(reward, batch.columns["group"])
    with np.errstate(invalid="ignore", divide="ignore"):
        baseline = found.others(reward) / (found.sizes - 1) if arguments.get("others") else found.mean
    baseline = np.where(found.sizes > 1, baseline, reward)
    return _flags(baseline == (number(arguments, "value") or 0.0), reward)


@quantity("groups_uniform", lambda a: (word(a, "name", "reward"), "group"))
def _groups_uniform(batch: Batch, arguments: Arguments) -> Values:
    """Per group whether all its rows have the same reward, which is written ``text`` with one decimal."""
    ordered, splits = _by_group(batch, word(arguments, "name", "reward"))
    low, high = ordered[splits[:-1]], ordered[splits[1:] - 1]
    same = (low == high) & np.array([str(round(value, 1)) == word(arguments, "text") for value in low.tolist()], np.bool_)
    return Values.plain(same.astype(np.float64))


def _by_group(batch: Batch, name: str) -> tuple[Floats, Splits]:
    """A sequence column in increasing order within each group, and the splits of the groups that have a value."""
    found = group(_number_column(batch, name), batch.columns["group"])
    return found.values[found.order], np.unique(found.splits)


@quantity("groups_pass", lambda a: (word(a, "name", "reward"), "group"))
def _groups_pass(batch: Batch, arguments: Arguments) -> Values:
    """Per group the unbiased estimate of pass@k; a reward of 1 is a pass."""
    ordered, splits = _by_group(batch, word(arguments, "name", "reward"))
    passed = segment_sums(ordered == 1.0, splits).astype(np.int64)
    return Values.plain(pass_at_k(np.diff(splits), passed, int(word(arguments, "k"))))


@quantity("rows_rank_mean", lambda a: (_per("stored_sum", a), f"{PER_SEQUENCE_PREFIX}stored_tokens"))
def _rows_rank_mean(batch: Batch, arguments: Arguments) -> Values:
    """The mean of a token column over all stored tokens of the row's rank, masked ones too."""
    sums, tokens = batch.columns[_per("stored_sum", arguments)], batch.columns[f"{PER_SEQUENCE_PREFIX}stored_tokens"]
    rank = batch.get("rank")
    label = np.zeros(len(sums), np.int64) if rank is None else np.unique(rank, return_inverse=True)[1]
    total, size = np.bincount(label, sums), np.bincount(label, tokens)
    return Values.plain((total / np.maximum(size, 1))[label])

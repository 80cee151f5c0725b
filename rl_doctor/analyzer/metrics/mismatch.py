"""Logprob pairs against each other: the engine's against the trainer's, and the trainer's two passes against each other.

Three pairs, each over the trained tokens at which both are finite:

- *rollout*: rollout_logprob against the trainer's number for the same policy. That is old_logprob; for a sequence whose
  old_logprob simply repeats rollout_logprob, and where old_logprob is absent, it is logprob of the first mini-batch.
- *first*: logprob against old_logprob before any update since sampling, where the two should be equal.
- *nearest*: which of old_logprob, logprob and ref_logprob the rollout_logprob is closest to.

Tokens whose rollout_logprob is exactly 0 although the trainer gives them less than 1/e are placeholders, not measurements: they
are counted and left out of the other rollout numbers.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer import kernels
from rl_doctor.analyzer.derive import (
    FIRST_STEP,
    Bools,
    Floats,
    columns_of,
    derived,
    filled_rows,
    first_rows,
    first_tokens,
    known,
    over_rows,
    picked,
    positions,
    selected_splits,
    selection,
    span,
    spread,
    tokens,
    tokens_of_rows,
)
from rl_doctor.analyzer.formulas.segments import kept_splits, segment_sums
from rl_doctor.analyzer.kernels import PairRows
from rl_doctor.analyzer.stretches import Stretches
from rl_doctor.frozen import frozen
from rl_doctor.store.batch import Batch
from rl_doctor.store.rows import splits_of

CERTAIN: Final = -0.05
"""A rollout_logprob of exactly 0 is missing where the trainer's logprob lies below this; else the token may be certain."""
PLACEHOLDER_BELOW: Final = -1.0
"""A trainer logprob below this at a token that the engine calls certain (exactly 0) cannot be numerics or truncation."""
IMPOSSIBLE: Final = 1e-3
"""A logprob at or above this is no rounding of one; such tokens are counted by the metrics on impossible values and left out."""
PAIR_NEEDS: Final = ("rollout_logprob", "old_logprob|logprob")
PAIR_OPTIONAL: Final = ("old_logprob", "logprob", "minibatch", "epoch", FIRST_STEP, "response_length")
"""Columns that the *rollout* pair needs, and that it reads where a run has them."""


@frozen(eq=False)
class Pair:
    """Two logprobs of the same tokens: ``x`` (the sampler's side) and ``y``.

    ``tokens`` of the two columns, float ``[m]``, belong to the pair; ``splits`` by sequence; ``run_tokens`` is that of the batch.
    """

    x: NDArray[Any]
    y: NDArray[Any]
    tokens: Stretches
    splits: NDArray[np.int64]
    run_tokens: int = 0

    @classmethod
    def whole(cls, x: NDArray[Any], y: NDArray[Any], splits: NDArray[np.int64], run_tokens: int = 0) -> Pair:
        """The pair of columns that hold nothing but its tokens, float ``[n]``."""
        return cls(x, y, Stretches.whole(filled_rows(splits)[1]), splits, run_tokens)

    def _passed(self, name: Literal["pair", "moments", "tail"]) -> Any:
        return getattr(kernels.of(self.run_tokens), name)(self.x, self.y, self.tokens)

    def _over_all(self, sums: Floats) -> Floats:
        return over_rows(sums, filled_rows(self.splits)[0], len(self.splits) - 1)

    @property
    def rows(self) -> PairRows:
        """Sums of the difference per sequence, see ``kernels.pair``."""
        found: PairRows = self._passed("pair")
        return replace(found, sums=self._over_all(found.sums))

    @property
    def moments(self) -> Floats:
        """Sums of x, y, x*x, y*y, x*y per sequence, ``[5, n_sequences]``."""
        return self._over_all(self._passed("moments"))

    @property
    def tail(self) -> Floats:
        """Sums of exp(2 d), min(exp(d), 10) and |exp(y) - exp(x)| per sequence, ``[3, n_sequences]``."""
        return self._over_all(self._passed("tail"))

    def of(self, chosen: Bools) -> Pair:
        """The tokens of the sequences ``chosen``, bool ``[n_sequences]``; the other sequences are empty."""
        if chosen.all():
            return self
        kept = splits_of(np.where(chosen, np.diff(self.splits), 0))
        return replace(self, tokens=self.tokens.of(chosen[filled_rows(self.splits)[0]]), splits=kept)


def _pair(batch: Batch, x: str, y: str | NDArray[Any], keep: Bools | None = None) -> Pair:
    """A pair from two columns at the selected tokens where both are possible values and ``keep`` ``[n_selected]`` holds.

    ``y`` may also be the values ``[n_selected]`` themselves.
    """
    if keep is None and isinstance(y, str) and all_possible(batch, x) and all_possible(batch, y):
        left, right = columns_of(batch, x, y)
        return Pair(left, right, tokens(batch), selected_splits(batch), batch.run_tokens)
    left, right = picked(batch, x), picked(batch, y) if isinstance(y, str) else y
    fine = possible(left) & possible(right)
    if keep is not None:
        fine &= keep
    if fine.all():
        return Pair.whole(left, right, selected_splits(batch), batch.run_tokens)
    return Pair.whole(left[fine], right[fine], kept_splits(selected_splits(batch), fine), batch.run_tokens)


def all_possible(batch: Batch, name: str) -> bool:
    """Whether every trained token has a possible value in the column."""
    low, high = span(batch, name)
    return low > -math.inf and high < IMPOSSIBLE


def possible(values: NDArray[Any]) -> Bools:
    """Finite values that a logprob can have."""
    fine: Bools = np.isfinite(values) & (values < IMPOSSIBLE)
    return fine


@derived
def first_pass(batch: Batch) -> Bools | None:
    """Bool ``[n_sequences]``: rows of the first mini-batch of the first epoch; None where the run does not tell."""
    config = batch.info.config
    minibatch = batch.get("minibatch")
    if minibatch is None:
        return np.ones(batch.n_sequences, np.bool_) if config.minibatches == 1 and config.epochs == 1 else None
    if batch.get("epoch") is not None:
        return first_rows(batch)
    return np.asarray(minibatch == 0, np.bool_) if config.epochs in {None, 1} else None


@derived
def bypassed(batch: Batch) -> Bools:
    """Bool ``[n_sequences]``: old_logprob repeats rollout_logprob at every trained token that has both."""
    if batch.get("old_logprob") is None or batch.get("rollout_logprob") is None:
        return np.zeros(batch.n_sequences, np.bool_)
    splits = selected_splits(batch)
    names = "old_logprob", "rollout_logprob"
    rows = filled_rows(splits)[0]
    rows = rows[~_differs(*(first_tokens(batch, name) for name in names))]  # most rows tell by their first token
    repeats = np.zeros(batch.n_sequences, np.bool_)
    if rows.size:
        old, rollout = (picked(batch, name) for name in names)
        index, inner = tokens_of_rows(splits, rows)
        one, other = old[index], rollout[index]
        both = np.isfinite(one) & np.isfinite(other)
        repeats[rows] = (segment_sums(_differs(one, other), inner) == 0) & (segment_sums(both, inner) > 0)
    return repeats


def _differs(one: NDArray[Any], other: NDArray[Any]) -> Bools:
    """Where both are finite and not equal."""
    differs: Bools = (one != other) & np.isfinite(one) & np.isfinite(other)
    return differs


@derived
def trainer_side(batch: Batch) -> NDArray[Any] | None:
    """The trainer's logprob of the policy that should have sampled, NaN where unknown, ``[n_tokens]``."""
    old, new = batch.get("old_logprob"), batch.get("logprob")
    if new is None:
        return old
    repeats = bypassed(batch)
    if old is not None and not repeats.any():
        return old
    first = first_pass(batch)
    usable = new if first is None or first.all() else np.where(spread(batch, first), new, np.float32(np.nan))
    return usable if old is None else np.where(spread(batch, repeats), usable, old)


@derived
def candidates(batch: Batch) -> Bools:
    """Bool ``[n_tokens]``: trained tokens that lie inside the response, as far as its length is known."""
    chosen = selection(batch)
    length = batch.get("response_length")
    if length is None:
        return chosen
    beyond = known(length) & (length < batch.lengths)
    return chosen & ~(spread(batch, beyond) & (positions(batch) >= spread(batch, length))) if beyond.any() else chosen


@derived
def placeholders(batch: Batch) -> Bools | None:
    """Bool ``[n_selected]``: candidates whose rollout_logprob is a placeholder; None where there is none."""
    if span(batch, "rollout_logprob")[1] < 0.0:
        return None
    trainer = _trainer_selected(batch)
    if trainer is None:
        return None
    zero = picked(batch, "rollout_logprob") == 0.0
    if not zero.any():
        return None
    found: Bools = zero & (trainer < PLACEHOLDER_BELOW) & np.isfinite(trainer)
    inside = candidates_selected(batch)
    found = found if inside is None else found & inside
    return found if found.any() else None


@derived
def _trainer_selected(batch: Batch) -> NDArray[Any] | None:
    trainer = trainer_side(batch)
    for name in ("old_logprob", "logprob"):
        if trainer is not None and trainer is batch.get(name):
            return picked(batch, name)
    return None if trainer is None else trainer[selection(batch)]


def candidates_selected(batch: Batch) -> Bools | None:
    """Bool ``[n_selected]``, or None where all selected tokens are candidates."""
    inside = candidates(batch)
    return None if inside is selection(batch) else inside[selection(batch)]


@derived
def rollout_pair(batch: Batch) -> Pair | None:
    """The *rollout* pair: x is rollout_logprob, y the trainer's; None where the run has no trainer logprob."""
    trainer, placeholder = trainer_side(batch), placeholders(batch)
    if trainer is None:
        return None
    keep = None if placeholder is None else ~placeholder
    if (inside := candidates_selected(batch)) is not None:
        keep = inside if keep is None else keep & inside
    names = [name for name in ("old_logprob", "logprob") if trainer is batch.get(name)]
    return _pair(batch, "rollout_logprob", names[0] if names else trainer[selection(batch)], keep)


@derived
def first_pair(batch: Batch) -> Pair | None:
    """The *first* pair: x is old_logprob, y is logprob, rows before any update; None where the run does not tell."""
    first = first_pass(batch)
    return None if first is None else pass_pair(batch).of(first & ~bypassed(batch))


@derived
def pass_pair(batch: Batch) -> Pair:
    """All rows: x is old_logprob, y is logprob."""
    return _pair(batch, "old_logprob", "logprob")


@derived
def rollout_rows(batch: Batch) -> PairRows | None:
    """Sums of the *rollout* pair per sequence."""
    found = rollout_pair(batch)
    return None if found is None else found.rows


@derived
def rollout_moments(batch: Batch) -> Floats | None:
    """Sums of x, y, x*x, y*y, x*y of the *rollout* pair per sequence, ``[5, n_sequences]``."""
    found = rollout_pair(batch)
    return None if found is None else found.moments


@derived
def pass_moments(batch: Batch) -> Floats:
    """The same of all rows of logprob against old_logprob."""
    return pass_pair(batch).moments

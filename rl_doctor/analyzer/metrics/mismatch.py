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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import (
    FIRST_STEP,
    Bools,
    Floats,
    derived,
    finite,
    first_rows,
    kept_splits,
    known,
    per_sequence_counts,
    positions,
    segment_sums,
    selected,
    selected_splits,
    selection,
    spread,
)
from rl_doctor.analyzer.estimators import k3
from rl_doctor.analyzer.moments import correlation, slope
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.store.batch import Batch

PLACEHOLDER_BELOW: Final = -1.0
"""A trainer logprob below this at a token that the engine calls certain (exactly 0) cannot be numerics or truncation."""
NOISE: Final = 0.02
"""Differences below this (nat) carry no sign: rounding of the engine and of bfloat16."""
IMPOSSIBLE: Final = 1e-3
"""A logprob at or above this is no rounding of one; such tokens are counted by the metrics on impossible values and left out."""
LARGEST: Final = 10.0
_P1: Final = "honest sampling gives E[exp(difference)] = 1: importance sampling identity"


@dataclass(frozen=True, slots=True, eq=False)
class Pair:
    """Two logprobs of the same tokens: ``x`` (the sampler's side) and ``y``, float64 ``[n]``; ``splits`` by sequence."""

    x: Floats
    y: Floats
    splits: NDArray[np.int64]

    def sums(self, values: Floats) -> Floats:
        """Sum of ``values`` ``[n]`` per sequence."""
        return segment_sums(values, self.splits)


def _pair(batch: Batch, x: Floats, y: Floats, keep: Bools | None = None) -> Pair:
    """A pair from two logprobs at the selected tokens, ``[n_selected]``, where both are possible values and ``keep`` holds."""
    fine = possible(x) & possible(y)
    if keep is not None:
        fine &= keep
    if fine.all():
        return Pair(x, y, selected_splits(batch))
    return Pair(x[fine], y[fine], kept_splits(selected_splits(batch), fine))


def possible(values: Floats) -> Bools:
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
    old, rollout = batch.get("old_logprob"), batch.get("rollout_logprob")
    if old is None or rollout is None:
        return np.zeros(batch.n_sequences, np.bool_)
    both = selection(batch) & finite(batch, "old_logprob") & finite(batch, "rollout_logprob")
    differs = segment_sums(both & (old != rollout), batch.splits)
    repeats: Bools = (differs == 0) & (segment_sums(both, batch.splits) > 0)
    return repeats


@derived
def trainer_side(batch: Batch) -> Floats | None:
    """The trainer's logprob of the policy that should have sampled, NaN where unknown, ``[n_tokens]``."""
    old, new = batch.get("old_logprob"), batch.get("logprob")
    if new is None:
        return old
    first = first_pass(batch)
    usable = new if first is None else np.where(spread(batch, first), new, np.float32(np.nan))
    if old is None:
        return usable
    repeats = bypassed(batch)
    return np.where(spread(batch, repeats), usable, old) if repeats.any() else old


@derived
def candidates(batch: Batch) -> Bools:
    """Bool ``[n_tokens]``: trained tokens that lie inside the response, as far as its length is known."""
    chosen = selection(batch)
    length = batch.get("response_length")
    if length is None:
        return chosen
    beyond = known(length) & (length < np.diff(batch.splits))
    return chosen & ~(spread(batch, beyond) & (positions(batch) >= spread(batch, length))) if beyond.any() else chosen


@derived
def _placeholders(batch: Batch) -> Bools | None:
    """Bool ``[n_selected]``: candidates whose rollout_logprob is a placeholder; None where the run has no trainer logprob."""
    trainer = _trainer_selected(batch)
    if trainer is None:
        return None
    rollout = selected(batch, "rollout_logprob")
    found: Bools = (rollout == 0.0) & (trainer < PLACEHOLDER_BELOW) & np.isfinite(trainer)
    inside = _candidates_selected(batch)
    return found if inside is None else found & inside


def _trainer_selected(batch: Batch) -> Floats | None:
    trainer = trainer_side(batch)
    if trainer is None:
        return None
    if trainer is batch.get("old_logprob"):
        return selected(batch, "old_logprob")
    return trainer[selection(batch)].astype(np.float64)


def _candidates_selected(batch: Batch) -> Bools | None:
    """Bool ``[n_selected]``, or None where all selected tokens are candidates."""
    inside = candidates(batch)
    return None if inside is selection(batch) else inside[selection(batch)]


@derived
def rollout_pair(batch: Batch) -> Pair | None:
    """The *rollout* pair: x is rollout_logprob, y the trainer's; None where the run has no trainer logprob."""
    placeholder, trainer = _placeholders(batch), _trainer_selected(batch)
    if placeholder is None or trainer is None:
        return None
    inside = _candidates_selected(batch)
    keep = None if inside is None and not placeholder.any() else ~placeholder
    if keep is not None and inside is not None:
        keep &= inside
    return _pair(batch, selected(batch, "rollout_logprob"), trainer, keep)


@derived
def first_pair(batch: Batch) -> Pair | None:
    """The *first* pair: x is old_logprob, y is logprob, rows before any update; None where the run does not tell."""
    first = first_pass(batch)
    if first is None:
        return None
    rows = first & ~bypassed(batch)
    keep = None if rows.all() else np.repeat(rows, per_sequence_counts(batch))
    return _pair(batch, selected(batch, "old_logprob"), selected(batch, "logprob"), keep)


@derived
def pass_pair(batch: Batch) -> Pair:
    """All rows: x is old_logprob, y is logprob."""
    return _pair(batch, selected(batch, "old_logprob"), selected(batch, "logprob"))


def pair_moments(pair: Pair | None) -> Sums:
    """Sums over a pair: x, y, x*x, y*y, x*y, |d|, exp d, exp 2d, k3(d), clamped exp d, |exp y - exp x|, with d = y - x."""
    if pair is None:
        return Sums()
    x, y = pair.x, pair.y
    d, squares = y - x, x * x
    if not d.any():
        nothing = Sum(count=d.size)
        once, twice, ones = Sum.of(pair.sums(x), d.size), Sum.of(pair.sums(squares), d.size), Sum.counted(d.size, d.size)
        return Sums((once, once, twice, twice, twice, nothing, ones, ones, nothing, ones, nothing))
    with np.errstate(over="ignore", invalid="ignore"):
        grown = np.expm1(d)
        moved = np.exp(x) * np.abs(grown)
        grown += 1.0
        values = (x, y, squares, y * y, x * y, np.abs(d), grown, grown * grown, k3(d), np.minimum(grown, LARGEST), moved)
        return Sums(tuple(Sum.of(pair.sums(value), d.size) for value in values))


def _exp_std(s: Sums) -> float:
    if s.count < 2:
        return math.nan
    first, second = s[6].mean, s[7].mean
    return math.sqrt(max(second - first * first, 0.0)) if math.isfinite(second) else math.inf


_NEEDS: Final = ("rollout_logprob", "old_logprob|logprob")
_ROLLOUT: Final = ("old_logprob", "logprob", "minibatch", "epoch", FIRST_STEP, "response_length")


@reduction(zero=Sums(), needs=_NEEDS, optional=_ROLLOUT)
def _rollout_moments(batch: Batch) -> Sums:
    return pair_moments(rollout_pair(batch))


@reduction(zero=Sums(), needs=("logprob", "old_logprob"), optional=("minibatch", "epoch", FIRST_STEP, "rollout_logprob"))
def _first_moments(batch: Batch) -> Sums:
    return pair_moments(first_pair(batch))


_PAIR_METRICS: Final[tuple[tuple[str, str, int | None, Callable[..., float], str], ...]] = (
    ("abs", "nat", 5, mean, "Mean |d|."),
    ("k3", "nat", 8, mean, "Mean exp(d) - 1 - d, an unbiased estimate of the KL divergence."),
    ("corr", "1", None, correlation, "Pearson correlation of the two logprobs."),
    ("slope", "1", None, slope, "Least-squares slope of the second logprob on the first; away from 1 for another temperature."),
    ("exp_mean", "1", 6, mean, "Mean exp(d): 1 if the first logprob is that of the distribution really sampled."),
    ("exp_mean_clamped", "1", 9, mean, "Mean of min(exp(d), 10), which single tokens cannot dominate."),
    ("exp_std", "1", None, _exp_std, "Standard deviation of exp(d) over tokens, for the error of its mean."),
    ("prob_abs", "1", 10, mean, "Mean absolute difference of the two probabilities."),
)

for _suffix, _unit, _part, _final, _doc in _PAIR_METRICS:
    metric(
        f"mismatch.{_suffix}", _rollout_moments, _final, part=_part, unit=_unit, source=_P1,
        doc=f"{_doc} d = trainer's logprob - rollout_logprob, trained tokens.",
    )  # fmt: skip
    metric(
        f"mismatch.first_{_suffix}", _first_moments, _final, part=_part, unit=_unit, source=_P1,
        doc=f"{_doc} d = logprob - old_logprob, trained tokens of the first mini-batch after sampling.",
    )  # fmt: skip


@reduction(zero=Sum(), needs=_NEEDS, optional=_ROLLOUT)
def _sides(batch: Batch) -> Sum:
    """Of the trained tokens whose |d| stands above the noise, those with d < 0."""
    pair = rollout_pair(batch)
    if pair is None:
        return Sum()
    d = pair.y - pair.x
    return Sum.counted(int(np.count_nonzero(d < -NOISE)), int(np.count_nonzero(np.abs(d) > NOISE)))


@reduction(zero=Extremes(), needs=_NEEDS, optional=_ROLLOUT)
def _range(batch: Batch) -> Extremes:
    pair = rollout_pair(batch)
    return Extremes() if pair is None else Extremes.of(pair.y - pair.x)


metric(
    "mismatch.one_sided_frac",
    _sides,
    mean,
    unit="1",
    source="renormalised sampling gives d <= 0 at every token",
    doc="Of the trained tokens whose |d| is above .02 nat, the share with d < 0.",
)
metric(
    "mismatch.min",
    _range,
    lambda s: s.low,
    unit="nat",
    source="log of the kept mass bounds d under truncation",
    doc="Smallest d.",
)
metric("mismatch.max", _range, lambda s: s.high, unit="nat", source="arithmetic", doc="Largest d.")


@reduction(zero=Sums(), needs=("rollout_logprob",), optional=_ROLLOUT)
def _missing(batch: Batch) -> Sums:
    """Trained tokens: holding a placeholder; rollout_logprob exactly 0; rollout_logprob not finite."""
    rollout, inside = selected(batch, "rollout_logprob"), _candidates_selected(batch)
    flags = [_placeholders(batch), rollout == 0.0, ~np.isfinite(rollout)]
    count = rollout.size if inside is None else int(np.count_nonzero(inside))
    return Sums(
        tuple(
            Sum.counted(0 if flag is None else int(np.count_nonzero(flag if inside is None else flag & inside)), count)
            for flag in flags
        )
    )


metric(
    "mismatch.zero_fill_frac",
    _missing,
    mean,
    part=0,
    unit="1",
    source="engines pad missing logprobs with 0, which is probability 1",
    doc="Share of trained tokens with rollout_logprob exactly 0 where the trainer's is below -1.",
)
metric(
    "mismatch.zero_frac",
    _missing,
    mean,
    part=1,
    unit="1",
    source="arithmetic",
    doc="Share of trained tokens with rollout_logprob exactly 0.",
)
metric(
    "mismatch.nan_frac",
    _missing,
    mean,
    part=2,
    unit="1",
    source="arithmetic",
    doc="Share of trained tokens whose rollout_logprob is NaN or infinite.",
)


@reduction(zero=Sum(), needs=("is_weight",))
def _weights(batch: Batch) -> Sum:
    weight = batch.columns["is_weight"][selection(batch) & finite(batch, "is_weight")]
    return Sum.of(weight.astype(np.float64))


metric(
    "mismatch.is_weight_mean",
    _weights,
    mean,
    unit="1",
    source="truncated importance sampling corrects the loss for the sampler's distribution",
    doc="Mean importance weight of the rollout correction, as applied in the loss.",
)

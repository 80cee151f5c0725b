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
from dataclasses import dataclass, replace
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
    finite,
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
from rl_doctor.analyzer.moments import correlation, slope
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Extremes, Sum, Sums, mean
from rl_doctor.analyzer.stretches import Stretches
from rl_doctor.store.batch import Batch
from rl_doctor.store.rows import splits_of

PLACEHOLDER_BELOW: Final = -1.0
"""A trainer logprob below this at a token that the engine calls certain (exactly 0) cannot be numerics or truncation."""
IMPOSSIBLE: Final = 1e-3
"""A logprob at or above this is no rounding of one; such tokens are counted by the metrics on impossible values and left out."""
_P1: Final = "honest sampling gives E[exp(difference)] = 1: importance sampling identity"


@dataclass(frozen=True, slots=True, eq=False)
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
    beyond = known(length) & (length < np.diff(batch.splits))
    return chosen & ~(spread(batch, beyond) & (positions(batch) >= spread(batch, length))) if beyond.any() else chosen


@derived
def _placeholders(batch: Batch) -> Bools | None:
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
    inside = _candidates_selected(batch)
    found = found if inside is None else found & inside
    return found if found.any() else None


@derived
def _trainer_selected(batch: Batch) -> NDArray[Any] | None:
    trainer = trainer_side(batch)
    for name in ("old_logprob", "logprob"):
        if trainer is not None and trainer is batch.get(name):
            return picked(batch, name)
    return None if trainer is None else trainer[selection(batch)]


def _candidates_selected(batch: Batch) -> Bools | None:
    """Bool ``[n_selected]``, or None where all selected tokens are candidates."""
    inside = candidates(batch)
    return None if inside is selection(batch) else inside[selection(batch)]


@derived
def rollout_pair(batch: Batch) -> Pair | None:
    """The *rollout* pair: x is rollout_logprob, y the trainer's; None where the run has no trainer logprob."""
    trainer, placeholder = trainer_side(batch), _placeholders(batch)
    if trainer is None:
        return None
    keep = None if placeholder is None else ~placeholder
    if (inside := _candidates_selected(batch)) is not None:
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


def _exp_std(s: Sums) -> float:
    if s.count < 2:
        return math.nan
    first, second = s[5].mean, s[6].mean
    return math.sqrt(max(second - first * first, 0.0)) if math.isfinite(second) else math.inf


_NEEDS: Final = ("rollout_logprob", "old_logprob|logprob")
_ROLLOUT: Final = ("old_logprob", "logprob", "minibatch", "epoch", FIRST_STEP, "response_length")
_FIRST: Final = ("minibatch", "epoch", FIRST_STEP, "rollout_logprob")


def _sums(pair: Pair, sums: Floats) -> Sums:
    return Sums.of(sums, int(pair.splits[-1]))


def _spread(pair: Pair, rows: PairRows, moments: Floats) -> Sums:
    """Sums of x, y, x*x, y*y, x*y, exp d, exp 2d, clamped exp d, |exp y - exp x|, with d = y - x."""
    return _sums(pair, np.concatenate([moments, rows.sums[1:2], pair.tail]))


@reduction(zero=Sums(), needs=_NEEDS, optional=_ROLLOUT)
def _rollout_rows(batch: Batch) -> Sums:
    """Sums of |d|, exp d, k3(d)."""
    pair, rows = rollout_pair(batch), rollout_rows(batch)
    return Sums() if pair is None or rows is None else _sums(pair, rows.sums)


@reduction(zero=Sums(), needs=_NEEDS, optional=_ROLLOUT)
def _rollout_spread(batch: Batch) -> Sums:
    pair, rows, moments = rollout_pair(batch), rollout_rows(batch), rollout_moments(batch)
    return Sums() if pair is None or rows is None or moments is None else _spread(pair, rows, moments)


@derived
def _first_pair_rows(batch: Batch) -> PairRows | None:
    pair = first_pair(batch)
    return None if pair is None else pair.rows


@reduction(zero=Sums(), needs=("logprob", "old_logprob"), optional=_FIRST)
def _first_rows(batch: Batch) -> Sums:
    """Sums of |d|, exp d, k3(d)."""
    pair, rows = first_pair(batch), _first_pair_rows(batch)
    return Sums() if pair is None or rows is None else _sums(pair, rows.sums)


@reduction(zero=Sums(), needs=("logprob", "old_logprob"), optional=_FIRST)
def _first_spread(batch: Batch) -> Sums:
    pair, rows = first_pair(batch), _first_pair_rows(batch)
    if pair is None or rows is None:
        return Sums()
    filled = np.diff(pair.splits) > 0
    return _spread(pair, rows, np.where(filled, pass_moments(batch), 0.0))


_PAIR_METRICS: Final[tuple[tuple[str, str, bool, int | None, Callable[..., float], str, str], ...]] = (
    ("abs", "nat", False, 0, mean, "mean |d|", "Mean |d|."),
    ("k3", "nat", False, 2, mean, "mean exp(d) - 1 - d", "Mean exp(d) - 1 - d, an unbiased estimate of the KL divergence."),
    ("corr", "1", True, None, correlation, "corr(a, b)", "Pearson correlation of the two logprobs."),
    (
        "slope", "1", True, None, slope, "cov(a, b) / var(a)",
        "Least-squares slope of the second logprob on the first; away from 1 for another temperature.",
    ),
    (
        "exp_mean", "1", False, 1, mean, "mean exp(d)",
        "Mean exp(d): 1 if the first logprob is that of the distribution really sampled.",
    ),
    (
        "exp_mean_clamped", "1", True, 7, mean, "mean min(exp(d), 10)",
        "Mean of min(exp(d), 10), which single tokens cannot dominate.",
    ),
    ("exp_std", "1", True, None, _exp_std, "std exp(d)", "Standard deviation of exp(d) over tokens, for the error of its mean."),
    ("prob_abs", "1", True, 8, mean, "mean |exp(a) - exp(b)|", "Mean absolute difference of the two probabilities."),
)  # fmt: skip

for _suffix, _unit, _wide, _part, _final, _formula, _doc in _PAIR_METRICS:
    metric(
        f"mismatch.{_suffix}", _rollout_spread if _wide else _rollout_rows, _final, part=_part, unit=_unit, source=_P1,
        formula=_formula,
        doc=f"{_doc} d = trainer's logprob - rollout_logprob, trained tokens.",
    )  # fmt: skip
    metric(
        f"mismatch.first_{_suffix}", _first_spread if _wide else _first_rows, _final, part=_part, unit=_unit, source=_P1,
        formula=_formula,
        doc=f"{_doc} d = logprob - old_logprob, trained tokens of the first mini-batch after sampling.",
    )  # fmt: skip


@reduction(zero=Sum(), needs=_NEEDS, optional=_ROLLOUT)
def _sides(batch: Batch) -> Sum:
    """Of the trained tokens whose |d| stands above the noise, those with d < 0."""
    rows = rollout_rows(batch)
    return Sum() if rows is None else Sum.counted(rows.below, rows.apart)


@reduction(zero=Extremes(), needs=_NEEDS, optional=_ROLLOUT)
def _range(batch: Batch) -> Extremes:
    rows = rollout_rows(batch)
    return Extremes() if rows is None else rows.ends


metric(
    "mismatch.one_sided_frac",
    _sides,
    mean,
    unit="1",
    source="renormalised sampling gives d <= 0 at every token",
    formula="share over T with |d| > .02[d < 0]",
    doc="Of the trained tokens whose |d| is above .02 nat, the share with d < 0.",
)
metric(
    "mismatch.min",
    _range,
    lambda s: s.low,
    unit="nat",
    source="log of the kept mass bounds d under truncation",
    formula="min_T d",
    doc="Smallest d.",
)
metric("mismatch.max", _range, lambda s: s.high, unit="nat", source="arithmetic", formula="max_T d", doc="Largest d.")


@reduction(zero=Sums(), needs=("rollout_logprob",), optional=_ROLLOUT)
def _missing(batch: Batch) -> Sums:
    """Trained tokens: holding a placeholder; rollout_logprob exactly 0; rollout_logprob not finite."""
    rollout, inside = picked(batch, "rollout_logprob"), _candidates_selected(batch)
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
    formula="share_T[rollout_logprob = 0, logprob < -1]",
    doc="Share of trained tokens with rollout_logprob exactly 0 where the trainer's is below -1.",
)
metric(
    "mismatch.zero_frac",
    _missing,
    mean,
    part=1,
    unit="1",
    source="arithmetic",
    formula="share_T[rollout_logprob = 0]",
    doc="Share of trained tokens with rollout_logprob exactly 0.",
)
metric(
    "mismatch.nan_frac",
    _missing,
    mean,
    part=2,
    unit="1",
    source="arithmetic",
    formula="share_T[rollout_logprob not finite]",
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
    formula="mean_T is_weight",
    doc="Mean importance weight of the rollout correction, as applied in the loss.",
)

"""Numbers that are not finite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.reading import lacking, logged
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_TRAINED = "numerics.nonfinite."
_STORED = "numerics.nonfinite_stored."
_UNKNOWN = "numerics.unknown."
_SCALARS = (
    "optim.grad_norm", "policy.loss_total", "policy.loss_pg", "reward.mean", "policy.entropy", "ref.kl_k3", "policy.kl_old_k3",
    "policy.kl_old_k1", "policy.ratio_mean", "adv.mean", "optim.learning_rate", "ref.kl", "ref.kl_k1", "policy.kl_old",
    "value.loss", "pref.loss", "pref.margin", "pref.chosen_logprob", "pref.rejected_logprob", "sft.loss",
)  # fmt: skip
_ALWAYS = (
    "optim.grad_norm", "policy.loss_total", "pref.loss", "pref.margin", "pref.chosen_logprob", "pref.rejected_logprob",
    "sft.loss",
)  # fmt: skip
"""Scalars that every step has: NaN at each of them is a broken run, and not a number that was never measured."""
_ORDER = (
    "old_logprob",
    "ref_logprob",
    "reward",
    "value",
    "adv",
    "logprob",
    "ratio",
    "kl",
    "entropy",
    "loss",
    "grad_norm",
)
"""Numbers in the order in which a step computes them: the first that breaks is the one to look at."""
_AUXILIARY = frozenset(
    {
        "teacher_logprob",
        "old_value",
        "value",
        "return",
        "token_reward",
        "is_weight",
        "ratio",
        "kl",
        "old_entropy",
    }
)
"""Columns in which a null, read as NaN, may mean that the value was not recorded for some tokens."""

_ROWS = 3
_OVERFLOW = 88.0
"""Log-ratio from which exp is infinite in float32 and bfloat16."""
_RARE = 0.1
_NO_REWARD = "numerics.missing_reward_frac"
_INFINITE = "numerics.infinite_reward_frac"
_LEFT_OUT = _TRAINED + "rollout_logprob"
"""Engines return no logprob for some tokens by design or by fault; missing-rollout-logprob tells."""
_IN_LOSS = ("logprob", "old_logprob", "advantage")
"""Columns without which there is no loss: if they hold nothing, that is told."""
_EVERY_LOSS = frozenset({"logprob", "advantage"})
"""Those of them that every loss reads: in a recording, NaN throughout is what the trainer handed over."""


@frozen
class _Break:
    """A quantity that is not finite at some steps."""

    name: str
    series: Series
    bad: NDArray[np.bool_]
    number: int
    partial: bool

    @property
    def step(self) -> int:
        return int(self.series.steps[np.flatnonzero(self.bad)[0]])

    @property
    def rank(self) -> int:
        stem = self.name.removeprefix(_TRAINED).rpartition(".")[2]
        found = [position for position, part in enumerate(_ORDER) if stem == part]
        found += [position for position, part in enumerate(_ORDER) if part in self.name]
        return found[0] if found else len(_ORDER)

    @property
    def transient(self) -> bool:
        """Whether a logged scalar breaks on few steps and is finite again right after each of them and at the end."""
        after = self.bad[-3:].any() or (self.bad[1:] & self.bad[:-1]).any()
        return not self.partial and logged(self.series) and not after and float(np.mean(self.bad)) <= _RARE

    def evidence(self) -> Evidence:
        steps = self.series.steps[self.bad]
        return Evidence(
            self.name, int(steps[0]), int(steps[-1]), float(self.series.values[self.bad][0]), None, 0.0 if self.partial else None,
            self.series.unit, self.number,
        )  # fmt: skip


@rule(
    "RLD601", "non-finite",
    severity="error",
    optional=("numerics.", "mask.empty_frac", *_SCALARS),
    cause="An overflow or an undefined operation (exp of a large log-ratio, log of 0, 0/0 in a normalisation) in the "
    "first number named.",
    advice=(
        "If the loss, the gradient norm or logprobs stay NaN from there on, go back to a checkpoint from before it.",
        "Look at the first number named, at that step: log-ratios above 88 overflow in exp, and empty masks divide by 0.",
        "Mask before exp and log, not after: NaN times 0 is NaN.",
    ),
    avoids=(
        "A NaN outside the response mask only: a warning, or info where the gradient stays finite.",
        "A step on which there is nothing to measure.",
        "A score on held-out prompts, or a column of a log that is NaN everywhere because it is undefined there.",
        "A column that was not recorded.",
    ),
    source="Public reports: 8 of 14 runs died from exp overflow at padding, without precursor in the scalars",
)  # fmt: skip
def non_finite(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """A number that training depends on is NaN or infinite.

    One NaN in the gradient ruins the weights, and everything after it is noise. The first number, in the order of steps and
    within a step in the order of computation, is the one to look at; what follows is consequence.

    Every recorded token column is counted at the tokens trained on and at the other stored tokens; scalars count as they
    are. A column that is NaN everywhere counts as not recorded, which is a warning for what the loss is made of; in a
    recording, where what was not handed over is not written, it is an error for logprob and advantage. An infinite reward is
    an error, a NaN beside other rewards a warning, and so is a null at trained tokens of what the loss is made of: a null is
    not known to be NaN, and breaks nothing. NaN at
    trained tokens or in a scalar is an error (a warning in a column that the update need not read); outside the mask only it
    is a warning, and info if the gradient norm is known to stay finite: harmless as long as the trainer selects, and not if
    it multiplies by the mask. So is a logged number that breaks on single steps and is finite on each next one: weights that
    hold NaN do not come back. Losses, gradients and margins that are NaN at every logged step are an error; other numbers may
    be undefined for the run. Gaps in rollout_logprob are the business of missing-rollout-logprob,
    until all of it is NaN from a step on.
    """
    del limits
    blank = [name for name in _in_loss(view) if _blank(view, name)]
    told = blank if view.info.sessions else []
    if not view.facts.tokens and view.get("mask.empty_frac") is not None:
        told = [*_in_loss(view)]  # the mask is 0 everywhere, which empty-mask tells: there was no token to store a value of
    if empty := [name for name in (*_in_loss(view), "reward") if name in view.facts.empty_columns and name not in told]:
        yield _empty(view, empty)
    infinite = _infinite_reward(view)
    if infinite is not None:
        yield infinite
    yield from _without_reward(view)
    yield from _unknown(view)
    names = [name for name in view.all_series if name.startswith((_TRAINED, _STORED)) and name != _LEFT_OUT]
    scalars = [name for name in _SCALARS if name in view.all_series and len(view.all_series[name])]
    if blank:  # what is computed from a column without numbers says nothing of the training
        scalars = [name for name in scalars if logged(view.all_series[name]) or np.isfinite(view.all_series[name].values).any()]
    if infinite is not None:
        scalars = [name for name in scalars if name != "reward.mean"]
    if not names and not scalars and infinite is None:
        yield lacking(view, "policy.entropy", *_SCALARS)
        return
    broken = [found for name in names if name.startswith(_TRAINED) and (found := _broken_column(view, name)) is not None]
    broken += [found for name in scalars if (found := _broken_scalar(_of_known(view, name))) is not None]
    if broken:
        yield _first(view, broken)
    if blank:
        yield _never_finite(view, blank)
    yield from _engine_ends(view)
    masked = [found for name in names if name.startswith(_STORED) and (found := _masked_only(view, name)) is not None]
    if masked and not broken:
        yield _outside_mask(view, masked)


def _infinite_reward(view: View) -> Hit | None:
    """Sequences whose reward is infinite."""
    series = view.get(_INFINITE)
    if series is None or not np.any(series.values):
        return None
    bad = series.values > 0
    number, steps = int(np.rint(series.values * series.counts).sum()), series.steps[bad]
    highest, count = float(series.values[bad].max()), int(series.counts[bad].sum())
    return Hit(
        f"reward is infinite in {number} of {int(series.counts.sum())} sequences, from step {steps[0]} on "
        f"({int(bad.sum())} of {len(series)} steps)",
        "error",
        (Evidence(_INFINITE, int(steps[0]), int(steps[-1]), highest, None, 0.0, "1", count),),
        cause=f"The reward function divided by 0 or overflowed: {_advantages_then(view, steps)}.",
        suspect="reward-not-finite",
    )


def _advantages_then(view: View, steps: NDArray[np.int64]) -> str:
    """What became of the advantages at these steps."""
    found = view.all_series.get(_TRAINED + "advantage")
    if found is None:
        return "the group's mean is infinite too, and advantages that are computed from it are NaN"
    if found.values[np.isin(found.steps, steps)].any():
        return "the group's mean is infinite too, and its advantages are NaN"
    return "the recorded advantages are finite, so that the reward was replaced before they were computed, or after"


def _without_reward(view: View) -> Iterator[Hit]:
    """Sequences that have no reward, beside others that have one."""
    series = view.get(_NO_REWARD)
    if series is None or not np.any(series.values) or np.all(series.values == 1.0):
        return
    bad = series.values > 0
    number, steps = int(np.rint(series.values * series.counts).sum()), series.steps[bad]
    yield Hit(
        f"reward is NaN or missing in {number} of {int(series.counts.sum())} sequences, from step {steps[0]} on "
        f"({int(bad.sum())} of {len(series)} steps)",
        "warning",
        (
            Evidence(
                _NO_REWARD,
                int(steps[0]),
                int(steps[-1]),
                float(series.values[bad].max()),
                None,
                0.0,
                "1",
                int(series.counts[bad].sum()),
            ),
        ),
        cause="The reward function returned NaN (0/0, a failed verifier), or gave no verdict for these sequences.",
        unchecked=("whether it is NaN or was not recorded: both are read as the same",),
        advice=("Look at the responses without a reward: a verifier that failed, 0/0 on an empty answer, a missing label.",),
        suspect="reward-missing",
    )


def _unknown(view: View) -> Iterator[Hit]:
    """Columns of the loss that are null at some of the trained tokens."""
    for column in _in_loss(view):
        series = view.get(_UNKNOWN + column)
        if series is None or not series.values.any():
            continue
        bad = series.values > 0
        number, of, steps = int(series.values.sum()), int(series.counts.sum()), series.steps[bad]
        yield Hit(
            f"{column} is null at {number} of {of} trained tokens, from step {steps[0]} on ({int(bad.sum())} of {len(series)} "
            "steps)",
            "warning",
            (Evidence(_UNKNOWN + column, int(steps[0]), int(steps[-1]), float(number), None, 0.0, "tokens", of),),
            cause=f"{column} was not recorded for these tokens; what is computed from it is not known at these steps.",
            unchecked=("whether it is NaN or missing: pandas writes both as null",),
            advice=("Write NaN as NaN (with pyarrow, not pandas), and null only where nothing is known.",),
        )


def _of_known(view: View, name: str) -> Series:
    """A scalar; one that is computed from tokens without the steps at which some of these are null."""
    series = view.all_series[name]
    if logged(series):
        return series
    gaps = [found for key, found in view.all_series.items() if key.startswith(_UNKNOWN)]
    steps = [found.steps[found.values > 0] for found in gaps]
    return series.where(~np.isin(series.steps, np.concatenate(steps))) if steps else series


def _in_loss(view: View) -> tuple[str, ...]:
    return (*_IN_LOSS, "ref_logprob") if view.config.kl_coef else _IN_LOSS


def _blank(view: View, column: str) -> bool:
    """Whether a column is there and holds no finite number at any trained token."""
    series = view.all_series.get(_TRAINED + column)
    if series is None or not series.counts.any():
        return False
    told = series.counts > 0
    return bool(np.all(series.values[told] == series.counts[told]))


def _empty(view: View, columns: list[str]) -> Hit:
    facts = view.facts
    several = len(columns) > 1
    by_value = bool(view.info.sessions) and all(name == "reward" and "reward.mean" in view.all_series for name in columns)
    return Hit(
        f"reward is NaN in every one of the {facts.sequences} rows"
        if by_value
        else f"{', '.join(columns)} {'are' if several else 'is'} in the file but hold{'' if several else 's'} no value in any of "
        f"the {facts.sequences} rows",
        "warning",
        (Evidence("store.empty_columns", facts.first_step, facts.last_step, float(len(columns)), None, 0.0, "columns"),),
        cause="Every reward that was recorded is NaN; if these are the numbers that were trained on, the loss is NaN."
        if by_value
        else "Every value is NaN or was not recorded; if these are the numbers that were trained on, the loss is NaN.",
        unchecked=() if by_value else ("whether it is NaN or missing: pandas writes both as null",),
    )


def _never_finite(view: View, columns: list[str]) -> Hit:
    norm, loss = view.get("optim.grad_norm"), view.raw("policy.loss_total")
    series = view.all_series[_TRAINED + columns[0]]
    recorded = bool(view.info.sessions)
    number = int(series.counts.sum())
    trained = norm is not None or (loss is not None and logged(loss) and bool(np.isfinite(loss.values).any()))
    told = "gradient norm" if norm is not None else "loss"
    return Hit(
        f"{', '.join(columns)} {'is' if len(columns) == 1 else 'are'} not finite at any of the {number} trained tokens",
        "error" if view.info.sessions and not _EVERY_LOSS.isdisjoint(columns) else "warning",
        tuple(
            Evidence(_TRAINED + name, int(series.steps[0]), int(series.steps[-1]), float(number), None, 0.0, "tokens", number)
            for name in columns
        ),
        cause=f"The recording is broken here and not the training, whose {told} is finite; nothing that rests on these columns "
        "can be judged."
        if trained
        else "The trainer handed it over as NaN or infinity, so that nothing that rests on it can be judged; if these are the "
        "numbers that were trained on, the loss is NaN."
        if recorded
        else "The column was not filled while recording; if these are the numbers that were trained on, the loss is NaN.",
        ruled_out=(f"a loss that is NaN throughout: the {told} is finite at some steps",) if trained else (),
        unchecked=() if trained else ("whether the update was NaN: grad_norm",),
        suspect="column-without-numbers",
    )


def _engine_ends(view: View) -> Iterator[Hit]:
    """The engine's logprobs, where all are NaN from a step on to the end of the run."""
    series = view.all_series.get(_LEFT_OUT)
    if series is None:
        return
    told = series.counts > 0
    steps, blank, counts = series.steps[told], (series.values == series.counts)[told], series.counts[told]
    last = len(blank) - int(np.argmin(blank[::-1])) if blank.size and not blank.all() else 0
    if not last or len(blank) - last < _ROWS:
        return
    number = int(counts[last:].sum())
    yield Hit(
        f"rollout_logprob is not finite at any of the {number} trained tokens from step {steps[last]} on, and was before",
        "error",
        (Evidence(_LEFT_OUT, int(steps[last]), int(steps[-1]), float(number), None, 0.0, "tokens", number),),
        cause="The engine stopped returning logprobs, or the recorder was no longer handed them: from there on nothing tells "
        "whether it samples what the trainer trains.",
        suspect="rollout-logprobs-end",
    )


def _first(view: View, broken: list[_Break]) -> Hit:
    broken = sorted(broken, key=lambda item: (item.step, item.rank, item.name))
    first = broken[0]
    names = list(dict.fromkeys(item.name.removeprefix(_TRAINED) for item in broken))
    count = int(first.bad.sum())
    auxiliary = all(item.partial and item.name.removeprefix(_TRAINED) in _AUXILIARY for item in broken)
    passing = all(item.transient for item in broken)
    return Hit(
        f"{names[0]} is not finite {'at' if passing else 'from'} step {first.step}{'' if passing else ' on'}"
        + (f", at {count} of {len(first.series)} steps" if not passing else f" and {count - 1} more" if count > 1 else "")
        + (f"; also {', '.join(names[1:6])}" if len(names) > 1 else ""),
        "warning" if auxiliary or passing else "error",
        tuple(item.evidence() for item in broken[:6]),
        cause="Single batches break it: an empty or overlong response, 0/0 in a mean, or an overflow whose update was skipped."
        if passing
        else None
        if len(names) == 1
        else f"{names[0]} is the first number that breaks, at step {first.step}; the others follow from it.",
        ruled_out=("weights that hold NaN: every number is finite again on the next step",) if passing else (),
        unchecked=("the token columns that it is computed from: logprob, old_logprob and advantage",)
        if not first.partial
        else (),
        suspect=_suspect(view, first, passing=passing),
    )


_BROKEN_BY = {
    "old_logprob": "old-logprob-not-finite", "ref_logprob": "reference-not-finite", "reward": "reward-not-finite",
    "value": "value-not-finite", "advantage": "advantage-undefined", "adv": "advantage-undefined",
    "logprob": "forward-not-finite", "entropy": "forward-not-finite", "ratio": "exponent-overflows", "kl": "exponent-overflows",
    "loss": "loss-undefined", "grad_norm": "gradient-overflows", "learning_rate": "learning-rate-not-finite",
}  # fmt: skip
"""What breaks first -> the cause that it points to; the longest name that fits counts."""


_LATE = ("loss", "grad_norm", "kl", "ratio")


def _suspect(view: View, first: _Break, *, passing: bool) -> str:
    if passing:
        return "updates-skipped"
    exponent = view.get("numerics.log_ratio_max_stored")
    if exponent is not None and any(part in first.name for part in _LATE):
        before = exponent.values[exponent.steps <= first.step]
        if before.size and float(before.max()) >= _OVERFLOW:
            return "padding-overflows"
    stem = first.name.removeprefix(_TRAINED)
    fits = [part for part in _BROKEN_BY if stem == part or part in first.name]
    return _BROKEN_BY[max(fits, key=len)] if fits else ""


def _outside_mask(view: View, masked: list[_Break]) -> Hit:
    norm = view.raw("optim.grad_norm")
    finite = norm is not None and bool(np.all(np.isfinite(norm.values)))
    names = [item.name.removeprefix(_STORED) for item in masked]
    return Hit(
        f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} not finite outside the response mask only, from "
        f"step {masked[0].step} on",
        "info" if finite else "warning",
        tuple(item.evidence() for item in masked[:6]),
        cause="Positions that are not trained on hold NaN or infinity; a trainer that multiplies by the mask instead "
        "of selecting spreads it.",
        ruled_out=("a broken update: the gradient norm is finite at every step",) if finite else (),
        unchecked=() if norm is not None else ("whether it reaches the gradient: grad_norm",),
    )


def _broken_column(view: View, name: str) -> _Break | None:
    series = view.all_series[name]
    bad = series.values > 0
    if not bad.any() or _blank(view, name.removeprefix(_TRAINED)):
        return None
    return _Break(name, series, bad, int(series.values[bad].sum()), partial=True)


def _masked_only(view: View, name: str) -> _Break | None:
    series = view.all_series[name]
    trained = view.all_series.get(_TRAINED + name.removeprefix(_STORED))
    if trained is None or len(trained) != len(series) or trained.values.any() or name.removeprefix(_STORED) in _AUXILIARY:
        return None
    bad = series.values > 0
    return _Break(name, series, bad, int(series.values[bad].sum()), partial=True) if bad.any() else None


def _broken_scalar(series: Series) -> _Break | None:
    bad = ~np.isfinite(series.values) & (series.counts > 0)
    if not bad.any() or (bad.all() and (series.metric not in _ALWAYS or len(series) < _ROWS)):
        return None
    return _Break(series.metric, series, bad, int(bad.sum()), partial=False)

"""Tokens outside the clip range, and those whose gradient the clipped surrogate removes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from rl_doctor.analyzer.derive import Bools, derived, first_rows, later_rows, selected, share, tokens_of
from rl_doctor.analyzer.metrics.policy import NEEDS, PASS_NEEDS, PASS_OPTIONAL, log_ratio, ratio
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_RANGE: Final = ("config.clip_low", "config.clip_high")
_PPO: Final = "PPO, arXiv:1707.06347, eq. 7"


@derived
def _below(batch: Batch) -> Bools:
    return ratio(batch) < 1.0 - (batch.info.config.clip_low or 0.0)


@derived
def _above(batch: Batch) -> Bools:
    return ratio(batch) > 1.0 + (batch.info.config.clip_high or 0.0)


@derived
def _outside(batch: Batch) -> Bools:
    return _below(batch) | _above(batch)


@reduction(zero=Sums(), needs=(*NEEDS, *_RANGE))
def _outside_counts(batch: Batch) -> Sums:
    flags = (_outside(batch), _below(batch), _above(batch))
    return Sums(tuple(share(flag, log_ratio(batch)) for flag in flags))


@reduction(zero=Sums(), needs=(*NEEDS, "advantage", *_RANGE))
def _bound(batch: Batch) -> Sums:
    advantage = selected(batch, "advantage")
    low = _below(batch) & (advantage < 0)
    high = _above(batch) & (advantage > 0)
    return Sums(tuple(share(flag, log_ratio(batch), advantage) for flag in (low | high, low, high)))


@reduction(zero=Sum(), needs=(*NEEDS, "advantage", "config.dual_clip"))
def _dual(batch: Batch) -> Sum:
    advantage = selected(batch, "advantage")
    limit = batch.info.config.dual_clip or 0.0
    return share((ratio(batch) > limit) & (advantage < 0), log_ratio(batch), advantage)


for _index, (_suffix, _what) in enumerate(
    (
        ("", "-A clip(r) > -A r strictly: the clipped surrogate binds"),
        ("_low", "the lower clip bound binds: A < 0 and r < 1 - clip_low"),
        ("_high", "the upper clip bound binds: A > 0 and r > 1 + clip_high"),
    )
):
    metric(
        f"policy.clip_frac{_suffix}", _bound, mean, part=_index, unit="1", source=_PPO,
        doc=f"Share of tokens trained on at which {_what}.",
    )  # fmt: skip
metric(
    "policy.clip_frac_dual", _dual, mean, unit="1", source="dual clip, arXiv:1912.09729, eq. 4",
    doc="Share of tokens trained on at which dual clip binds: A < 0 and r > dual_clip.",
)  # fmt: skip
for _index, (_suffix, _what) in enumerate(
    (("", "outside [1 - clip_low, 1 + clip_high]"), ("_low", "below 1 - clip_low"), ("_high", "above 1 + clip_high"))
):
    metric(
        f"policy.outside_frac{_suffix}", _outside_counts, mean, part=_index, unit="1", source=_PPO,
        doc=f"Share of tokens trained on whose ratio is {_what}, whatever the sign of the advantage.",
    )  # fmt: skip


def _declare(prefix: str, rows: Callable[[Batch], Bools], when: str) -> None:
    @reduction(zero=Sum(), needs=(*NEEDS, *PASS_NEEDS, *_RANGE), optional=PASS_OPTIONAL)
    def outside(batch: Batch) -> Sum:
        chosen = tokens_of(batch, rows(batch))
        return share(_outside(batch)[chosen], log_ratio(batch)[chosen])

    metric(
        f"policy.{prefix}_outside_frac", outside, mean, unit="1", source=_PPO,
        doc=f"Share of tokens trained on whose ratio is outside the clip range, {when}.",
    )  # fmt: skip


_declare("first", first_rows, "in the first mini-batch, before any optimizer step on the generation batch")
_declare("later", later_rows, "in mini-batches before which an optimizer step was taken on the generation batch")

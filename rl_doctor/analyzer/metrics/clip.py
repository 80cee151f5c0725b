"""Tokens outside the clip range, and those whose gradient the clipped surrogate removes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from rl_doctor.analyzer.derive import Bools, first_rows, later_rows
from rl_doctor.analyzer.metrics.policy import NEEDS, PASS_NEEDS, PASS_OPTIONAL, share_of
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, Sums, mean
from rl_doctor.store.batch import Batch

_RANGE: Final = ("config.clip_low", "config.clip_high")
_PPO: Final = "PPO, arXiv:1707.06347, eq. 7"


@reduction(zero=Sums(), needs=(*NEEDS, *_RANGE))
def _outside_counts(batch: Batch) -> Sums:
    below, above = (share_of(batch, index, 6) for index in (1, 2))
    return Sums((_either(below, above), below, above))


@reduction(zero=Sums(), needs=(*NEEDS, "advantage", *_RANGE))
def _bound(batch: Batch) -> Sums:
    low, high = (share_of(batch, index, 6, 7) for index in (3, 4))
    return Sums((_either(low, high), low, high))


@reduction(zero=Sum(), needs=(*NEEDS, "advantage", "config.dual_clip"))
def _dual(batch: Batch) -> Sum:
    return share_of(batch, 5, 6, 7)


def _either(one: Sum, other: Sum) -> Sum:
    """The share of the tokens that one of two shares counts, which have none in common."""
    return replace(one, total=one.total + other.total)


for _index, (_suffix, _formula, _what) in enumerate(
    (
        ("", "-A clip(r) > -A r", "-A clip(r) > -A r strictly: the clipped surrogate binds"),
        ("_low", "A < 0, r < 1 - clip_low", "the lower clip bound binds: A < 0 and r < 1 - clip_low"),
        ("_high", "A > 0, r > 1 + clip_high", "the upper clip bound binds: A > 0 and r > 1 + clip_high"),
    )
):
    metric(
        f"policy.clip_frac{_suffix}", _bound, mean, part=_index, unit="1", source=_PPO,
        formula=f"share_T[{_formula}]",
        doc=f"Share of tokens trained on at which {_what}.",
    )  # fmt: skip
metric(
    "policy.clip_frac_dual", _dual, mean, unit="1", source="dual clip, arXiv:1912.09729, eq. 4",
    formula="share_T[A < 0, r > dual_clip]",
    doc="Share of tokens trained on at which dual clip binds: A < 0 and r > dual_clip.",
)  # fmt: skip
for _index, (_suffix, _formula, _what) in enumerate(
    (
        ("", "r < 1 - clip_low or r > 1 + clip_high", "outside [1 - clip_low, 1 + clip_high]"),
        ("_low", "r < 1 - clip_low", "below 1 - clip_low"),
        ("_high", "r > 1 + clip_high", "above 1 + clip_high"),
    )
):
    metric(
        f"policy.outside_frac{_suffix}", _outside_counts, mean, part=_index, unit="1", source=_PPO,
        formula=f"share_T[{_formula}]",
        doc=f"Share of tokens trained on whose ratio is {_what}, whatever the sign of the advantage.",
    )  # fmt: skip


def _declare(prefix: str, letter: str, rows: Callable[[Batch], Bools], when: str) -> None:
    @reduction(zero=Sum(), needs=(*NEEDS, *PASS_NEEDS, *_RANGE), optional=PASS_OPTIONAL)
    def outside(batch: Batch) -> Sum:
        return _either(*(share_of(batch, index, 6, rows=rows(batch)) for index in (1, 2)))

    metric(
        f"policy.{prefix}_outside_frac", outside, mean, unit="1", source=_PPO,
        formula=f"share_{letter}[r < 1 - clip_low or r > 1 + clip_high]",
        doc=f"Share of tokens trained on whose ratio is outside the clip range, {when}.",
    )  # fmt: skip


_declare("first", "F", first_rows, "in the first mini-batch, before any optimizer step on the generation batch")
_declare("later", "S", later_rows, "in mini-batches before which an optimizer step was taken on the generation batch")

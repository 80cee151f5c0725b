"""ROLL's keys of the actor's update: what each micro-batch adds to the sums of an optimizer step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from rl_doctor.analyzer.dialects.recipes import CELL, UNDIVIDED, Argument, Fold, Of, Recipe, Statistic, absent, exact, of
from rl_doctor.analyzer.dialects.registry import Name

Mask = Literal["response_mask", "loss_mask"]
_MINIBATCH: Final = ("rollout_step", "epoch", "minibatch")
_STEPS: Final = "*per optimizer step*"
STAGES: Final = {
    "per optimizer step": "over the samples of all ranks of one optimizer step; mean over the steps",
    "loss_agg_mode": "token-mean: sum / tokens; seq-mean modes: the row's mean or sum, mean over samples with a token; with "
    "-norm: "
    "sum / padded width",
}
AGGREGATION: Final = "native.loss_agg_mode|config.loss_agg"
RECOMPUTE: Final = "native.enable_old_logprobs_recompute"
_FILTERS: Final = "native.train_infer_correction.filters?"
_WEIGHT: Final = "native.train_infer_correction.is_weight."
_UNFILTERED: Final[tuple[Mapping[str, tuple[Argument, ...]], ...]] = ({_FILTERS: (None,)}, {RECOMPUTE: (False,)})
"""Where the masks that were recorded are those that the loss had: the driver's filters change them afterwards."""
_KEPT: Final[Mapping[str, Argument]] = {"filters": _FILTERS, "recompute": f"{RECOMPUTE}?"}
_RATIO: Final[Mapping[str, Argument]] = {
    **_KEPT, "kind": "native.importance_sampling|native.ratio_type", "clip": "native.pg_clip?",
    "ranged": "native.use_pg_clip_range?", "low": "native.pg_clip_low?", "high": "native.pg_clip_high?",
}  # fmt: skip
_LOSS: Final = of(
    "roll_loss", dual="native.dual_clip_loss?", weighted=f"{_WEIGHT}enabled?", unit=f"{_WEIGHT}weight_type?",
    most=f"{_WEIGHT}upper_bound?", **_RATIO,
)  # fmt: skip
_LEFT: Final = of("roll_kept", **_KEPT)
_K3: Final = of("estimate", kind="k3", first="ref_logprob", second="logprob", most=10.0)
_PLAIN_WEIGHTS: Final[Mapping[str, tuple[Argument, ...]]] = {
    "native.difficulty_loss_weight?": (None, False), "native.length_loss_weight?": (None, False),
}  # fmt: skip
_NORMALISED: Final = "*loss_agg_mode*"


def _modes(value: Of, *, masked: bool, factor: str | None = None) -> Iterator[tuple[str, Of, Fold]]:
    """Names of ``loss_agg_mode`` with what is averaged, and how; token-mean itself looks at no mask."""
    kept = of("product", left=value, right=_LEFT)

    def scaled(one: Of) -> Of:
        return one if factor is None else of("times", of=one, weight=factor)

    yield "seq-mean-token-mean", scaled(of("part", of=value, where=_LEFT)), Fold(row="mean", apart=_MINIBATCH)
    yield "seq-mean-token-sum", scaled(kept), Fold(row="sum", apart=_MINIBATCH)
    per_width = of("per_width", of=kept)
    yield "seq-mean-token-sum-norm", scaled(per_width), Fold(row="sum", divisor=UNDIVIDED, apart=_MINIBATCH)
    yield "token-mean", scaled(kept if masked else value), Fold(apart=_MINIBATCH)


def _aggregated(
    value: Of, *, masked: bool = True, mask: tuple[Mask, ...] = ("response_mask",), factor: str | None = None,
    beside: Mapping[str, tuple[Recipe, ...]] | None = None, when: Mapping[str, tuple[Argument, ...]] = _PLAIN_WEIGHTS,
    unit: str = "1",
) -> tuple[Recipe, ...]:  # fmt: skip
    """Recipes for each way of aggregating, with the terms ``beside`` that go with it."""
    return tuple(
        Recipe(
            made, fold, mask=one, beside=(beside or {}).get(mode, ()), unit=unit,
            when={AGGREGATION: (mode,), **held, **when},
        )
        for held in _UNFILTERED for one in mask for mode, made, fold in _modes(value, masked=masked, factor=factor)
    )  # fmt: skip


_ANY: Final[Mapping[str, tuple[Argument, ...]]] = {}
RESPONSE: Final[tuple[Mask, ...]] = ("loss_mask", "response_mask")
"""The mask of the response: where it is not recorded, it is the final one."""


def _terms(value: Of, factor: str, mask: Mask = "response_mask", sign: float = 1.0) -> dict[str, tuple[Recipe, ...]]:
    return {mode: (Recipe(made, fold, mask=mask, factor=sign),) for mode, made, fold in _modes(value, masked=True, factor=factor)}


def _total() -> tuple[Recipe, ...]:
    """The policy loss and the KL term, both times ``rl_loss_coef``, which the agentic pipeline has not."""
    found: list[Recipe] = []
    kl, entropy = _terms(_K3, "native.kl_loss_coef"), _terms(of("column", name="entropy"), "native.entropy_loss_coef", sign=-1.0)
    for coefficient, factor in ((1.0, None), (None, "native.rl_loss_coef")):
        held: dict[str, tuple[Argument, ...]] = dict(_PLAIN_WEIGHTS)
        if coefficient is not None:
            held["native.rl_loss_coef?"] = (None, 1.0)
        for use_kl in (False, True):
            for bonus in (False, True):
                if factor is not None and (use_kl or bonus):
                    continue
                terms = {mode: ((kl[mode] if use_kl else ()) + (entropy[mode] if bonus else ())) for mode in kl}
                when = {**held, "native.use_kl_loss?": (use_kl,) if use_kl else (None, False)}
                if not bonus:
                    when["native.entropy_loss_coef?"] = (None, 0.0)
                found += _aggregated(_LOSS, masked=False, factor=factor, beside=terms, when=when)
    return tuple(found)


def _share(value: Of, **more: Any) -> tuple[Recipe, ...]:
    """Positions of the response over the tokens of the final mask."""
    whole = Fold(row="sum", divisor="batch_num_tokens", apart=_MINIBATCH)
    return tuple(
        recipe
        for held in _UNFILTERED
        for recipe in (
            Recipe(value, whole, mask="loss_mask", when={**held}, **more),
            Recipe(value, Fold(apart=_MINIBATCH), when={**held}, **more),
        )
    )


def _out_of_range(native: str, metric: str, side: str, words: str) -> Name:
    formula = f"sum over all positions of [{words}] / tokens of the final mask, whatever the sign of A; {_STEPS}"
    return Name(native, metric, definition=exact(formula, *_share(of("roll_outside", side=side, **_RATIO))))


def _ends(native: str, metric: str, statistic: Statistic) -> Name:
    value = of("roll_ratio", **_RATIO)
    recipes = (
        Recipe(value, mask=mask, statistic=statistic, where=_LEFT, when={**held})
        for held in _UNFILTERED for mask in RESPONSE
    )  # fmt: skip
    return Name(native, metric, definition=exact(f"{statistic} of the ratio over the response tokens of all updates", *recipes))


def _engine(what: str, unit: str, metric: str | None = None) -> Name:
    """A mean of the engine's ratio, or difference, per update at the workers and of the batch at the driver."""
    value = of(f"roll_engine_{'ratio' if what == 'ratio' else 'change'}", unit=unit)
    recipes = (
        Recipe(value, Fold(row="mean", apart=apart), mask=mask, when={RECOMPUTE: (recompute,)})
        for mask in RESPONSE for recompute, apart in ((False, _MINIBATCH), (True, ()))
    )  # fmt: skip
    words = {"ratio": "exp(d)", "diff": "exp(old) - exp(engine)"}[what]
    formula = f"mean over samples of the token mean of {words} of each {unit}; {_STEPS}, or of the batch where old is recomputed"
    return Name(f"actor/train_infer_{what}_{unit}_mean", metric, definition=exact(formula, *recipes))


def _passed(value: Of, formula: str, native: str) -> Name:
    recipes = (
        Recipe(value, Fold(apart=apart), mask=mask, when={RECOMPUTE: (recompute,)})
        for mask in RESPONSE for recompute, apart in ((False, _MINIBATCH), (True, ()))
    )  # fmt: skip
    note = "may exceed 1: positions outside the mask count as well" if native.endswith("mask_mean") else ""
    return Name(native, None, note=note, definition=exact(f"sum over all padded positions of {formula} / tokens", *recipes))


def _final_share() -> Name:
    formula = (
        "mean over micro-batches of the share of response tokens that the filters keep; of the batch where old is recomputed"
    )
    left = of("roll_kept", filters=_FILTERS)
    recipes = (
        Recipe(left, Fold(apart=apart), mask=mask, when={RECOMPUTE: (recompute,)})
        for mask in RESPONSE for recompute, apart in ((False, CELL), (True, ()))
    )  # fmt: skip
    return Name("actor/train_infer_final_mask_mean", None, definition=exact(formula, *recipes))


_ROW_COUNTS: Final = Fold(row="sum", empty=True, divisor=UNDIVIDED, apart=_MINIBATCH)
_SIGN_NOTE: Final = "is new - old here, and is read with the other sign"

ACTOR: Final = (
    Name(
        "actor/pg_loss", "policy.loss_pg",
        note="with token-mean takes the loss of tokens that the filters of correction drop into the sum",
        definition=exact(
            f"{_NORMALISED}; of -min(r A, clip(r) A), dual = 1 + 2 pg_clip, times the engine's ratio; {_STEPS}",
            *_aggregated(_LOSS, masked=False, when=_ANY),
        ),
    ),
    Name(
        "actor/weighted_pg_loss", None,
        definition=exact(
            f"as actor/pg_loss, each sample weighted; without weights the same; {_STEPS}",
            *_aggregated(_LOSS, masked=False),
        ),
    ),
    Name(
        "actor/total_loss", "policy.loss_total",
        definition=exact(
            f"(weighted policy loss + kl_loss_coef KL) rl_loss_coef - entropy_loss_coef entropy; {_STEPS}", *_total(),
        ),
    ),
    Name(
        "actor/kl_loss", "ref.kl_k3",
        definition=exact(
            f"{_NORMALISED}; of k3(y), at most 10, also where use_kl_loss is false; {_STEPS}",
            *_aggregated(_K3, when=_ANY, unit="nat"),
        ),
    ),
    Name(
        "actor/approxkl", "policy.kl_old_k2",
        definition=exact(
            f"{_NORMALISED}, over the response; of k2(x); {_STEPS}",
            *_aggregated(of("estimate", kind="k2"), mask=RESPONSE, when=_ANY, unit="nat"),
        ),
    ),
    Name(
        "actor/policykl", "policy.kl_old_k1", factor=-1.0, note=_SIGN_NOTE,
        definition=exact(
            f"{_NORMALISED}, over the response; of x: the other sign; {_STEPS}",
            *_aggregated(of("log_ratio"), mask=RESPONSE, when=_ANY, unit="nat"),
        ),
    ),
    Name(
        "actor/clipfrac", "policy.clip_frac",
        definition=exact(
            f"{_NORMALISED}, seq-mean modes over the response, token-mean of the final mask; of [clip(r) A < r A]; {_STEPS}",
            *(
                one
                for one in _aggregated(of("roll_binds", **_RATIO), masked=False, mask=RESPONSE, when=_ANY)
                if one.when[AGGREGATION] != ("token-mean",) or one.mask == "response_mask"
            ),
        ),
    ),
    _out_of_range("actor/ppo_ratio_clipfrac", "policy.outside_frac", "both", "r outside [1 - low, 1 + high]"),
    _out_of_range("actor/ppo_ratio_low_clipfrac", "policy.outside_frac_low", "low", "r < 1 - low"),
    _out_of_range("actor/ppo_ratio_high_clipfrac", "policy.outside_frac_high", "high", "r > 1 + high"),
    Name(
        "actor/ratio_mean", "policy.ratio_mean",
        definition=exact(
            f"mean over samples of the mean over response tokens of r; {_STEPS}",
            *(
                Recipe(
                    of("part", of=of("roll_ratio", **_RATIO), where=_LEFT), Fold(row="mean", apart=_MINIBATCH),
                    mask=mask, when={**held},
                )
                for held in _UNFILTERED for mask in RESPONSE
            ),
        ),
    ),
    _ends("actor/ratio_max", "policy.ratio_max", "max"),
    _ends("actor/ratio_min", "policy.ratio_min", "min"),
    *(
        _engine(what, unit, "mismatch.exp_mean" if (what, unit) == ("ratio", "token") else None)
        for what in ("ratio", "diff") for unit in ("token", "geometric", "sequence", "segment")
    ),
    Name(
        "actor/train_infer_ratio_mean", "mismatch.exp_mean",
        definition=absent("is of other versions, whose code was not read"),
    ),
    *(
        _passed(
            of("roll_filter_passes", unit=unit, kind=kind, filters=_FILTERS),
            f"[the filter of the {unit}'s {kind} passes]",
            f"actor/train_infer_{unit}_{kind}_mask_mean",
        )
        for unit in ("token", "geometric", "sequence", "segment") for kind in ("ratio", "diff")
    ),
    _final_share(),
    _passed(
        of("roll_weight_capped", unit=f"{_WEIGHT}weight_type", most=f"{_WEIGHT}upper_bound"), "[weight > upper_bound]",
        "actor/is_weight_clipfrac",
    ),
    Name(
        "actor/valid_samples", None,
        definition=exact(
            f"samples with a token in the final mask, {_STEPS}",
            *(Recipe(of("roll_valid", **_KEPT), _ROW_COUNTS, when={**held}) for held in _UNFILTERED),
        ),
    ),
    Name("actor/total_samples", None, definition=exact(f"samples, {_STEPS}", Recipe(of("row_count"), _ROW_COUNTS))),
    Name("actor/valid_sample_ratio", None, definition=absent("needs both masks at once")),
    *(
        Name(
            f"actor/sample_weights_{end}", None,
            definition=exact(
                "weight of a sample, 1 without weighting", Recipe(of("constant", value=1.0), when=_PLAIN_WEIGHTS)
            ),
        )
        for end in ("mean", "min", "max")
    ),
)  # fmt: skip

"""ROLL: keys of the RLVR and the agentic pipeline.

Of its two masks ``loss_mask`` is ``response_mask``, the response, and ``response_mask`` is ``final_response_mask``, what is left
of it after whole samples were dropped; a recording without the first has them equal. ``padded_width`` is the width of these
masks, ``batch_num_tokens`` the number of tokens in the final mask of an optimizer step over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

from rl_doctor.analyzer.dialects.recipes import (
    CELL,
    UNDIVIDED,
    Argument,
    Definition,
    Fold,
    Of,
    Recipe,
    Statistic,
    absent,
    derived,
    exact,
    of,
)
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

Mask = Literal["response_mask", "loss_mask"]
_MINIBATCH: Final = ("rollout_step", "epoch", "minibatch")
_STEPS: Final = "per optimizer step over all ranks, averaged over steps"
_RECOMPUTE: Final = "native.enable_old_logprobs_recompute"
_FILTERS: Final = "native.train_infer_correction.filters?"
_WEIGHT: Final = "native.train_infer_correction.is_weight."
_UNFILTERED: Final[tuple[Mapping[str, tuple[Argument, ...]], ...]] = ({_FILTERS: (None,)}, {_RECOMPUTE: (False,)})
"""Where the masks that were recorded are those that the loss had: the driver's filters change them afterwards."""
_KEPT: Final[Mapping[str, Argument]] = {"filters": _FILTERS, "recompute": f"{_RECOMPUTE}?"}
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
_NORMALISED: Final = "token-mean: sum / tokens; seq-mean-*: over samples with a token, -norm: sum / padded width"
_BETWEEN: Final = absent("statistics between groups are not kept")
_OF_WIDTH: Final = absent("the width of the responses, which tells those that were cut, is not in the rows")
_SAMPLES: Final = absent("which samples a mask dropped, and why, is not in the rows")


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
            when={"native.loss_agg_mode": (mode,), **held, **when},
        )
        for held in _UNFILTERED for one in mask for mode, made, fold in _modes(value, masked=masked, factor=factor)
    )  # fmt: skip


_ANY: Final[Mapping[str, tuple[Argument, ...]]] = {}
_RESPONSE: Final[tuple[Mask, ...]] = ("loss_mask", "response_mask")
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
        for held in _UNFILTERED for mask in _RESPONSE
    )  # fmt: skip
    return Name(native, metric, definition=exact(f"{statistic} of the ratio over the response tokens of all updates", *recipes))


def _engine(what: str, unit: str, metric: str | None = None) -> Name:
    """A mean of the engine's ratio, or difference, per update at the workers and of the batch at the driver."""
    value = of(f"roll_engine_{'ratio' if what == 'ratio' else 'change'}", unit=unit)
    recipes = (
        Recipe(value, Fold(row="mean", apart=apart), mask=mask, when={_RECOMPUTE: (recompute,)})
        for mask in _RESPONSE for recompute, apart in ((False, _MINIBATCH), (True, ()))
    )  # fmt: skip
    words = {"ratio": "exp(old - engine)", "diff": "exp(old) - exp(engine)"}[what]
    formula = f"mean over samples of the token mean of {words} of each {unit}; {_STEPS}, or of the batch where old is recomputed"
    return Name(f"actor/train_infer_{what}_{unit}_mean", metric, definition=exact(formula, *recipes))


def _passed(value: Of, formula: str, native: str) -> Name:
    recipes = (
        Recipe(value, Fold(apart=apart), mask=mask, when={_RECOMPUTE: (recompute,)})
        for mask in _RESPONSE for recompute, apart in ((False, _MINIBATCH), (True, ()))
    )  # fmt: skip
    note = "may exceed 1: positions outside the mask count as well" if native.endswith("mask_mean") else ""
    return Name(native, None, note=note, definition=exact(f"sum over all padded positions of {formula} / tokens", *recipes))


def _final_share() -> Name:
    formula = (
        "mean over micro-batches of the share of response tokens that the filters keep; of the batch where old is recomputed"
    )
    left = of("roll_kept", filters=_FILTERS)
    recipes = (
        Recipe(left, Fold(apart=apart), mask=mask, when={_RECOMPUTE: (recompute,)})
        for mask in _RESPONSE for recompute, apart in ((False, CELL), (True, ()))
    )  # fmt: skip
    return Name("actor/train_infer_final_mask_mean", None, definition=exact(formula, *recipes))


def _tokens(native: str, metric: str, column: str, words: str, *, where: Of | None = None) -> Iterator[Name]:
    """Mean, largest and smallest over the tokens of the final mask, before the driver's filters."""
    for statistic in ("mean", "max", "min"):
        recipe = Recipe(of("column", name=column), statistic=statistic, where=where)
        named = f"{metric}.{statistic}" if metric and (metric != "value" or statistic == "mean") else None
        formula = f"{statistic} of {words} over the tokens of the final mask"
        yield Name(f"{native}/{statistic}", named, definition=exact(formula, recipe))


_FIRST_PASS: Final = of("of_row", name="epoch", value=0.0)


def _by_score(side: str, value: float) -> Iterator[Name]:
    """The advantages of the responses that are right, and of those that are wrong."""
    where = of("of_row", name="score", value=value)
    yield from _tokens(
        f"critic/{side}_response/advantages", "", "advantage", f"the advantages of responses of score {value:g}", where=where
    )
    once = of("both", first=where, second=_FIRST_PASS)
    formula = f"std (ddof 1) of the advantages of responses of score {value:g} over the tokens of the final mask"
    recipe = Recipe(of("column", name="advantage"), statistic="std", where=once)
    yield Name(f"critic/{side}_response/advantages/std", None, definition=exact(formula, recipe))
    yield Name(f"critic/{side}_response/raw_advantages/{{statistic}}", None, definition=_RAW_ADVANTAGES)
    yield Name(f"token/{side}_response_length/{{statistic}}", None, definition=_OF_WIDTH)


_RAW_ADVANTAGES: Final = absent("advantages before whitening and clipping are not recorded")


def _rows(native: str, metric: str | None, value: Of, words: str, *, unit: str = "1", **more: Any) -> Name:
    return Name(native, metric, definition=exact(f"{words}, over samples", Recipe(value, level="rollout", unit=unit, **more)))


def _each(native: str, metric: str | None, words: str, made: tuple[Recipe, ...], **more: Any) -> Iterator[Name]:
    """Mean, largest and smallest of a number per row."""
    for statistic in ("mean", "max", "min"):
        recipes = tuple(
            Recipe(one.value, one.fold, level=one.level, mask=one.mask, statistic=statistic, unit=one.unit) for one in made
        )
        named = (
            f"{metric}_{statistic}"
            if metric and metric.startswith("reward.score")
            else f"{metric}.{statistic}"
            if metric
            else None
        )
        yield Name(f"{native}/{statistic}", named, definition=exact(f"{statistic} over samples of {words}", *recipes), **more)


_ROW_SUMS: Final = Fold(row="sum", empty=True)
_LENGTH: Final = tuple(
    Recipe(of("constant", value=1.0), _ROW_SUMS, mask=mask, unit="tokens") for mask in _RESPONSE
)  # fmt: skip
_TOTAL_LENGTH: Final = tuple(
    Recipe(of("row_with_prompt"), _ROW_SUMS, mask=mask, unit="tokens") for mask in _RESPONSE
)  # fmt: skip
_SCORES: Final = (Recipe(of("row", name="score"), level="rollout", unit="reward"),)
_REWARDS: Final = (Recipe(of("column", name="token_reward"), _ROW_SUMS, mask="stored", unit="reward"),)
_REWARD_MEANS: Final = (
    Recipe(of("per_width", of=of("column", name="token_reward")), _ROW_SUMS, mask="stored", unit="reward"),
)  # fmt: skip


def _difference(native: str, words: str, made: tuple[Recipe, ...]) -> Name:
    recipes = tuple(
        Recipe(
            one.value, one.fold, mask=one.mask, statistic="max", unit=one.unit,
            beside=(Recipe(one.value, one.fold, mask=one.mask, statistic="max", factor=-1.0),),
        )
        for one in made
    )  # fmt: skip
    return Name(native, None, definition=exact(f"largest minus smallest over samples of {words}", *recipes))


def _all_of_group(value: float, factor: float = 1.0) -> Recipe:
    return Recipe(of("rows_all_equal", name="score", value=value), level="rollout", per="group", factor=factor)


def _critic(native: str, metric: str | None, words: str, value: Of, *, factor: float = 1.0, note: str = "") -> Name:
    cells = Fold(row="mean", empty=True, apart=CELL)
    recipes = (Recipe(value, cells, mask=mask, factor=factor) for mask in _RESPONSE)
    formula = f"mean over micro-batches, ranks and mini-batches of the mean over rows of their means of {words}"
    return Name(native, metric, note=note, definition=exact(formula, *recipes))


def _kl_of_reward() -> Definition:
    kinds = {"kl": "k1", "abs": "abs", "mse": "k2"}
    recipes = (
        Recipe(
            of("estimate", kind=kind, first="ref_logprob", second="old_logprob"), Fold(row="mean", empty=True),
            mask=mask,
            when={"native.kl_penalty": (name,), _RECOMPUTE: (True,)}, unit="nat",
        )
        for name, kind in kinds.items() for mask in _RESPONSE
    )  # fmt: skip
    return derived(
        "mean over samples of the mean over response tokens of old - ref (kl), its absolute value (abs), half its square (mse); "
        "without recomputed old log-probabilities these are 0 there, and it is minus the mean log-probability of the reference",
        *recipes,
    )


_OLD_ENTROPY: Final = exact(
    "token mean over the response of the entropy at the pass of the old log-probabilities, 0 without that pass",
    *(
        Recipe(of("column", name="old_entropy"), mask=mask, when={_RECOMPUTE: (True,)}, unit="nat")
        for mask in _RESPONSE
    ),
    Recipe(of("constant", value=0.0), when={_RECOMPUTE: (False,)}, unit="nat"),
)  # fmt: skip
_ROW_COUNTS: Final = Fold(row="sum", empty=True, divisor=UNDIVIDED, apart=_MINIBATCH)
_SIGN_NOTE: Final = "is new - old here, and is read with the other sign"

ROLL: Final = trainer(
    Trainer(
        name="roll",
        label="ROLL",
        source="ROLL, August 2026: pipeline/rlvr/actor_worker.py, utils/metrics/metrics_manager.py",
        names=(
            *_each("critic/rewards", "reward", "the sum of token rewards, after normalisation and KL", _REWARDS),
            *_each("critic/token_level_rewards_mean", None, "the sum of token rewards / padded width", _REWARD_MEANS),
            *_each("critic/score", "reward.score", "the score", _SCORES),
            *_tokens("critic/advantages", "adv", "advantage", "the advantages"),
            *_tokens("critic/returns", "return", "return", "the returns"),
            *_tokens("critic/values", "value", "old_value", "the values"),
            Name("critic/raw_advantages/{statistic}", None, definition=_RAW_ADVANTAGES),
            *_by_score("right", 1.0),
            *_by_score("error", 0.0),
            _rows("critic/correct/mean", None, of("rows_compared", name="score", how="equal", bound=1.0), "share with score 1"),
            _rows(
                "critic/score_distribution/correct_samples_ratio", None,
                of("rows_compared", name="score", how="equal", bound=1.0), "share with score 1",
            ),
            _rows(
                "critic/score_distribution/incorrect_samples_ratio", None,
                of("rows_compared", name="score", how="equal", bound=0.0), "share with score 0",
            ),
            Name("critic/score_distribution/{end}_value", None, definition=absent("is a constant")),
            _critic(
                "critic/loss", "value.loss", "half the larger squared error of the value and the clipped value",
                of("value_error", clip="native.value_clip?"), factor=0.5,
            ),
            Name("critic/vf_loss", "value.loss"),
            _critic(
                "critic/clipfrac", "value.clip_frac", "[error of the clipped value > error]; without value_clip the error itself",
                of("value_clipped", clip="native.value_clip"), note="is the squared error where value_clip is not set",
            ),
            _critic("critic/value", None, "the old value", of("column", name="old_value")),
            _critic("critic/vpred", None, "the value", of("column", name="value")),
            _critic("critic/error", None, "the squared error", of("value_error")),
            Name("critic/lr", None, definition=absent("is set by the schedule")),
            Name("critic/entropy/mean", "policy.entropy", definition=_OLD_ENTROPY),
            Name("actor/entropy_mean", "policy.entropy"),
            Name(
                "actor/pg_loss", "policy.loss_pg",
                note="with token-mean takes the loss of tokens that the filters of correction drop into the sum",
                definition=exact(
                    f"{_NORMALISED}; of -min(r A, clip(r) A), dual clip at 1 + 2 pg_clip, times the engine's ratio; {_STEPS}",
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
                    f"{_NORMALISED}; of k3 of reference - policy, at most 10, also where use_kl_loss is false; {_STEPS}",
                    *_aggregated(_K3, when=_ANY, unit="nat"),
                ),
            ),
            Name("critic/kl", "ref.kl", definition=_kl_of_reward()),
            Name("{domain}/critic/kl", None, definition=absent("is of the samples of one domain, with those without a token")),
            Name("{domain}/critic/kl_coef", None, definition=absent("is a setting, or what a controller made of it")),
            Name("critic/kl_coef", None, definition=absent("is a setting, or what a controller made of it")),
            Name(
                "actor/approxkl", "policy.kl_old_k2",
                definition=exact(
                    f"{_NORMALISED}, over the response; of (new - old)^2 / 2; {_STEPS}",
                    *_aggregated(of("estimate", kind="k2"), mask=_RESPONSE, when=_ANY, unit="nat"),
                ),
            ),
            Name(
                "actor/policykl", "policy.kl_old_k1", factor=-1.0, note=_SIGN_NOTE,
                definition=exact(
                    f"{_NORMALISED}, over the response; of new - old: the other sign; {_STEPS}",
                    *_aggregated(of("log_ratio"), mask=_RESPONSE, when=_ANY, unit="nat"),
                ),
            ),
            Name(
                "actor/clipfrac", "policy.clip_frac",
                definition=exact(
                    f"{_NORMALISED}, seq-mean-* over the response, token-mean of the final mask; of [clip(r) A < r A]; {_STEPS}",
                    *(
                        one
                        for one in _aggregated(of("roll_binds", **_RATIO), masked=False, mask=_RESPONSE, when=_ANY)
                        if one.when["native.loss_agg_mode"] != ("token-mean",) or one.mask == "response_mask"
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
                        for held in _UNFILTERED for mask in _RESPONSE
                    ),
                ),
            ),
            _ends("actor/ratio_max", "policy.ratio_max", "max"),
            _ends("actor/ratio_min", "policy.ratio_min", "min"),
            *(
                _engine(what, unit, "mismatch.exp_mean" if (what, unit) == ("ratio", "token") else None)
                for what in ("ratio", "diff") for unit in ("token", "geometric", "sequence", "segment")
            ),
            Name("actor/train_infer_ratio_mean", "mismatch.exp_mean"),
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
            Name("{domain}/actor/{word}", None, definition=_SAMPLES),
            Name("{domain}/critic/{word}", None, definition=absent("is of the samples of one domain")),
            Name("{domain}/token/{word}", None, definition=absent("is of the samples of one domain")),
            Name("actor/lr", "optim.learning_rate", definition=absent("is set by the schedule")),
            Name("actor_train/grad_norm", "optim.grad_norm", definition=absent("gradients are not recorded")),
            Name("actor/grad_norm", "optim.grad_norm", definition=absent("gradients are not recorded")),
            *_each(
                "token/prompt_length", None, "the prompt's length",
                (Recipe(of("row", name="prompt_length"), level="rollout", unit="tokens"),),
            ),
            *_each("token/response_length", "length", "the number of response tokens", _LENGTH),
            _difference("token/response_length/diff", "the number of response tokens", _LENGTH),
            *_each("token/total_length", None, "prompt and response tokens", _TOTAL_LENGTH),
            _difference("token/total_length/diff", "prompt and response tokens", _TOTAL_LENGTH),
            Name("tokens/response_length/mean", "length.mean"),
            Name("tokens/response_length/max", "length.max"),
            Name("tokens/response_length/min", "length.min"),
            Name("token/total_response_length/clip", None, note="is a number of responses, not a share", definition=_OF_WIDTH),
            Name(
                "group/all_correct_groups_ratio", "group.all_max_frac",
                definition=exact("share of groups whose scores are all 1", _all_of_group(1.0)),
            ),
            Name(
                "group/all_incorrect_groups_ratio", "group.all_min_frac",
                definition=exact("share of groups whose scores are all 0", _all_of_group(0.0)),
            ),
            Name(
                "group/mixed_groups_ratio", "group.zero_std_frac", factor=-1.0, offset=1.0,
                note="is the share of groups not all right or all wrong: the rest, at least, has no difference",
                definition=exact(
                    "1 - share of groups all 1 - share of groups all 0",
                    Recipe(
                        of("rows_constant", value=1.0), level="rollout",
                        beside=(_all_of_group(1.0, -1.0), _all_of_group(0.0, -1.0)),
                    ),
                ),
            ),
            _rows(
                "group/correct_ratio/mean", None, of("rows_compared", name="score", how="equal", bound=1.0),
                "share with score 1, groups being of one size",
            ),
            Name("group/correct_ratio/std", None, definition=_BETWEEN),
            Name("group/response_length_diff/{statistic}", None, definition=_BETWEEN),
            Name("group/advantage_diff/{statistic}", None, definition=_BETWEEN),
            Name("group/correct_vs_incorrect_advantage_diff/{statistic}", None, definition=_BETWEEN),
        ),
        marks=(
            "actor/approxkl", "actor/policykl", "actor/ppo_ratio_clipfrac", "actor/ppo_ratio_high_clipfrac",
            "critic/entropy/mean", "token/response_length/mean", "tokens/response_length/mean", "group/mixed_groups_ratio",
            "actor_train/grad_norm", "actor/total_loss", "actor/clipfrac", "critic/correct/mean",
            "token/total_response_length/clip",
        ),
        kinds={"ppo": ("critic/vf_loss", "critic/clipfrac", "critic/values/mean")},
        validation=(
            ("val_correct/all/mean", "val/correct/mean"),
            ("val_correct/{source}/mean",),
            ("val/score/mean", "val_score/all/mean"),
        ),
        settings={"kl_coef": ("critic/kl_coef",)},
    )
)  # fmt: skip

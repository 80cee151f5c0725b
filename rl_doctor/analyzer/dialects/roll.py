"""ROLL: keys of the RLVR and the agentic pipeline.

Of its two masks ``loss_mask`` is ``response_mask``, the response, and ``response_mask`` is ``final_response_mask``, what is left
of it after whole samples were dropped and before the filters of correction; a recording without the first has them equal.
``padded_width`` is the width of these masks, ``batch_num_tokens`` the number of tokens in the final mask of an optimizer step
over all ranks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rl_doctor.analyzer.dialects.recipes import (
    CELL,
    Definition,
    Fold,
    Of,
    Recipe,
    absent,
    derived,
    exact,
    of,
)
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer
from rl_doctor.analyzer.dialects.roll_actor import ACTOR, RECOMPUTE, RESPONSE, STAGES

_BETWEEN: Final = absent("statistics between groups are not kept")
_OF_WIDTH: Final = absent("the width of the responses, which tells those that were cut, is not in the rows")
_SAMPLES: Final = absent("which samples a mask dropped, and why, is not in the rows")


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
    Recipe(of("constant", value=1.0), _ROW_SUMS, mask=mask, unit="tokens") for mask in RESPONSE
)  # fmt: skip
_TOTAL_LENGTH: Final = tuple(
    Recipe(of("row_with_prompt"), _ROW_SUMS, mask=mask, unit="tokens") for mask in RESPONSE
)  # fmt: skip
_PROMPTS: Final = (Recipe(of("row", name="prompt_length"), level="rollout", unit="tokens"),)
_WHOLE: Final = (Recipe(of("row", name="response_length"), level="rollout", unit="tokens"),)
_OF_EPISODES: Final = absent("rewards as they were normalised by episode and by step are not recorded")
_OTHER: Final = absent("is of other versions, whose code was not read")
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
    recipes = (Recipe(value, cells, mask=mask, factor=factor) for mask in RESPONSE)
    formula = f"mean over micro-batches, ranks and mini-batches of the mean over rows of their means of {words}"
    return Name(native, metric, note=note, definition=exact(formula, *recipes))


def _kl_of_reward() -> Definition:
    kinds = {"kl": "k1", "abs": "abs", "mse": "k2"}
    recipes = (
        Recipe(
            of("estimate", kind=kind, first="ref_logprob", second="old_logprob"), Fold(row="mean", empty=True),
            mask=mask,
            when={"native.kl_penalty": (name,), RECOMPUTE: (True,)}, unit="nat",
        )
        for name, kind in kinds.items() for mask in RESPONSE
    )  # fmt: skip
    return derived(
        "mean over samples of the mean over response tokens of old - ref (kl), its absolute value (abs), half its square (mse); "
        "without recomputed old log-probabilities these are 0 there, and it is minus the mean log-probability of the reference",
        *recipes,
    )


_OLD_ENTROPY: Final = exact(
    "token mean over the response of the entropy at the pass of the old log-probabilities, 0 without that pass",
    *(
        Recipe(of("column", name="old_entropy"), mask=mask, when={RECOMPUTE: (True,)}, unit="nat")
        for mask in RESPONSE
    ),
    Recipe(of("constant", value=0.0), when={RECOMPUTE: (False,)}, unit="nat"),
)  # fmt: skip

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
            Name("critic/vf_loss", "value.loss", definition=_OTHER),
            _critic(
                "critic/clipfrac", "value.clip_frac", "[error of the clipped value > error]; without value_clip the error itself",
                of("value_clipped", clip="native.value_clip"), note="is the squared error where value_clip is not set",
            ),
            _critic("critic/value", None, "the old value", of("column", name="old_value")),
            _critic("critic/vpred", None, "the value", of("column", name="value")),
            _critic("critic/error", None, "the squared error", of("value_error")),
            Name("critic/lr", None, definition=absent("is set by the schedule")),
            Name("critic/entropy/mean", "policy.entropy", definition=_OLD_ENTROPY),
            Name("actor/entropy_mean", "policy.entropy", definition=_OTHER),
            Name("critic/kl", "ref.kl", definition=_kl_of_reward()),
            Name("{domain}/critic/kl", None, definition=absent("is of the samples of one domain, with those without a token")),
            Name("{domain}/critic/kl_coef", None, definition=absent("is a setting, or what a controller made of it")),
            Name("critic/kl_coef", None, definition=absent("is a setting, or what a controller made of it")),
            *ACTOR,
            Name("{domain}/actor/{word}", None, definition=_SAMPLES),
            Name("{domain}/critic/{word}", None, definition=absent("is of the samples of one domain")),
            Name("{domain}/token/{word}", None, definition=absent("is of the samples of one domain")),
            Name("actor/lr", "optim.learning_rate", definition=absent("is set by the schedule")),
            Name("actor_train/grad_norm", "optim.grad_norm", definition=absent("gradients are not recorded")),
            Name("actor/grad_norm", "optim.grad_norm", definition=absent("gradients are not recorded")),
            *_each("token/prompt_length", None, "the prompt's length", _PROMPTS),
            *_each("token/response_length", "length", "the number of response tokens", _LENGTH),
            _difference("token/response_length/diff", "the number of response tokens", _LENGTH),
            *_each("token/total_length", None, "prompt and response tokens", _TOTAL_LENGTH),
            _difference("token/total_length/diff", "prompt and response tokens", _TOTAL_LENGTH),
            *_each("tokens/response_length", "length", "the number of response tokens of the mask", _LENGTH),
            *_each("tokens/prompt_length", None, "the prompt's length", _PROMPTS),
            *_each("tokens/non_prompt_length", None, "the number of tokens after the prompt, observations too", _WHOLE),
            Name("critic/episode_rewards_norm/{statistic}", None, definition=_OF_EPISODES),
            Name("critic/step_rewards_norm/{statistic}", None, definition=_OF_EPISODES),
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
        stages=STAGES,
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

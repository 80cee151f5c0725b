"""SkyRL: keys below ``policy/``, ``loss/``, ``reward/``, ``generate/`` and ``async/``.

``response_mask`` is its ``loss_mask``, and ``advantage`` the one before the reduction of the loss divides it.
"""

from __future__ import annotations

from typing import Any, Final

from rl_doctor.analyzer.dialects.recipes import CELL, Definition, Fold, Of, Recipe, Statistic, absent, exact, of
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer
from rl_doctor.analyzer.dialects.skyrl_policy import (
    CORRECTION,
    ESTIMATOR,
    KINDS,
    MEANS,
    NEW,
    OLD,
    ROWS,
    SET,
    TOKENS,
    clip_shares,
    estimates,
    kl,
    losses,
    total,
    when_set,
)

_FLAGS: Final = Fold(row="sum", empty=True, apart=CELL, stages=MEANS)
_STAGED: Final = "*averaged*"
_STAGE_TEXTS: Final = {
    "averaged": "mean over micro-batches, ranks, mini-batches and epochs",
    "normalised": "advantages are divided beforehand: by the mini-batch's tokens (token_mean), its rows and each row's tokens "
    "(sequence_mean), its rows and max_seq_len (seq_mean_token_sum_norm), the micro-batch's tokens and the number of "
    "micro-batches "
    "(token_mean_legacy), the prompts and each prompt's tokens (prompt_mean)",
}
_REDUCED: Final = absent("is 0 wherever a position is padded or masked: how wide the padding was is not in the rows")
_RAW: Final = ("score", "reward")
"""Columns of the reward as the environment gave it, the surest first."""


def _cispo(*, clamped: bool = False) -> Of:
    return of("skyrl_ratio", kind="cispo", clamped=clamped, **KINDS["cispo"])


def _end_of(value: Of, statistic: Statistic) -> Definition:
    return exact(f"{statistic} over the tokens of all updates of the ratio", Recipe(value, statistic=statistic))


def _token_mean(
    native: str, metric: str | None, words: str, value: Of, unit: str = "1", *, where: Of | None = None
) -> Name:  # fmt: skip
    recipe = Recipe(value, TOKENS, where=where, unit=unit)
    return Name(native, metric, definition=exact(f"token mean of a micro-batch of {words}, {_STAGED}", recipe))


def _flagged(native: str, what: str, words: str) -> Name:
    value = of("skyrl_rows", what=what, **CORRECTION)
    return Name(
        f"policy/loss_metrics/{native}", None,
        definition=exact(f"share of the rows of a micro-batch {words}, {_STAGED}", Recipe(value, _FLAGS)),
    )  # fmt: skip


def _of_rows(formula: str, *values: Of, unit: str = "1", **more: Any) -> Definition:
    """A statistic over the responses of a generation batch; of several values the first whose columns are there."""
    return exact(formula, *(Recipe(value, level="rollout", unit=unit, **more) for value in values))


def _raw(name: str, **more: Any) -> tuple[Of, ...]:
    return tuple(of(name, name=column, **more) for column in _RAW)


def _lengths(native: str, metric: str | None, statistic: str, words: str, *, trained: bool = False) -> Name:
    value = of("rows_tokens") if trained else of("row", name="response_length")
    return Name(
        native, metric, definition=_of_rows(f"{words} of a response", value, unit="tokens", statistic=statistic, ddof=0),
    )  # fmt: skip


def _by_reward(native: str, how: str, words: str) -> Name:
    """The mean length of the responses whose reward meets a condition."""
    recipes = []
    for column in _RAW:
        flag = of("rows_compared", name=column, how=how, bound=0.0)
        length = of("product", left=of("row", name="response_length"), right=flag)
        recipes.append(Recipe(length, level="rollout", beside=(Recipe(flag, level="rollout"),), joined="quotient", unit="tokens"))
    return Name(native, None, definition=exact(f"mean number of tokens of the responses with a reward {words} 0", *recipes))


_APART: Final = of("abs_log_ratio", first="rollout_logprob", second="old_logprob")
_APART_NOW: Final = of("abs_log_ratio", first="logprob", second="rollout_logprob")
_FIRST_PASS: Final = of("of_row", name="epoch", value=0.0)
_WEIGHT: Final = of("ratio", first="old_logprob", second="rollout_logprob", clamp=20.0)
_ONE: Final = of("constant", value=1.0)
_SCHEDULE: Final = absent("is set by the schedule")
_GRADIENTS: Final = absent("gradients are not recorded")
_SCHEDULED: Final = absent("at which step a prompt was scheduled is not recorded")
_DROPPED: Final = absent("groups that were dropped before training are not recorded")
_OTHER: Final = absent("is of other versions, whose code was not read")
_TURNS: Final = absent("the lengths of single turns are not kept, only their number and sum")

SKYRL: Final = trainer(
    Trainer(
        name="skyrl",
        label="SkyRL",
        source="SkyRL, August 2026: train/trainer.py, backends/skyrl_train/utils/ppo_utils.py, generators/utils.py",
        names=(
            Name(
                "loss/avg_final_rewards", "reward.mean",
                definition=_of_rows(
                    "mean of the sums of token rewards, after KL in the reward", of("row", name="reward"), unit="reward",
                ),
            ),
            Name(
                "reward/avg_raw_reward", "reward.score_mean",
                definition=_of_rows("mean reward as the environment gave it", *_raw("row"), unit="reward"),
            ),
            Name(
                "policy/policy_loss", "policy.loss_pg",
                definition=exact(
                    "sum over tokens of the loss, *normalised*; r = exp(clip20(x)), of gspo at most exp(10), of "
                    "importance_sampling not clamped; mean over mini-batches and epochs",
                    *losses(),
                ),
            ),
            Name(
                "policy/final_loss", "policy.loss_total",
                definition=exact(
                    "policy loss + kl_loss_coef KL, each rank's KL a mean over its rows of the mini-batch, averaged over ranks",
                    *total(),
                ),
            ),
            _token_mean("policy/policy_entropy", "policy.entropy", "entropy", of("column", name="entropy"), "nat"),
            Name(
                "policy/policy_kl", "ref.kl",
                definition=exact(
                    f"mean over the rows of a micro-batch of their means of the estimate, k3 with its input within 20 and its "
                    f"output within 10; {_STAGED}",
                    *kl(NEW, ROWS),
                ),
            ),
            Name(
                "loss/avg_kl", "ref.kl",
                definition=exact(
                    "mean over rows of their means of the estimate of old against reference",
                    *kl(OLD, Fold(row="mean", empty=True)),
                ),
            ),
            Name(
                "loss/avg_kl_max", None,
                definition=exact(
                    "mean over rows of the largest absolute value of the estimate of old against reference",
                    *(
                        Recipe(
                            of("row_largest", of=of("abs_log_ratio", **OLD) if kind == "k1" else value),
                            Fold(row="mean", empty=True), when=when_set(**{ESTIMATOR: kind}), unit="nat",
                        )
                        for kind, value in estimates(OLD)
                    ),
                ),
            ),
            Name(
                "policy/loss_metrics/clip_ratio", "policy.clip_frac",
                definition=exact(
                    f"token mean of a micro-batch of [clipped loss > unclipped], of cispo [ratio out of range], of rollout_is "
                    f"and dppo [left out], of sapo, kl_cov and cross_entropy 0; dual clip does not count; {_STAGED}",
                    *clip_shares(),
                ),
            ),
            Name("policy/ppo_clip_ratio", "policy.clip_frac", definition=_OTHER),
            _token_mean("policy/loss_metrics/cispo/ratio_mean", None, "the ratio", _cispo()),
            _token_mean("policy/loss_metrics/cispo/ratio_clamped_mean", None, "the clipped ratio", _cispo(clamped=True)),
            Name("policy/loss_metrics/cispo/ratio_max", None, definition=_end_of(_cispo(), "max")),
            Name("policy/loss_metrics/cispo/ratio_min", None, definition=_end_of(_cispo(), "min")),
            _token_mean("policy/loss_metrics/importance_ratio", "policy.ratio_mean", "exp(new - old), unclamped", of("ratio")),
            _token_mean(
                "policy/loss_metrics/is_ratio_mean", "mismatch.exp_mean", "exp(old - engine), clamped at exp(+-20)", _WEIGHT,
            ),
            Name(
                "policy/loss_metrics/is_ratio_max", None,
                definition=exact(
                    "largest exp(old - engine), clamped at exp(+-20)",
                    Recipe(_WEIGHT, statistic="max"),
                ),
            ),
            Name("policy/loss_metrics/is_ratio_min", None, definition=_REDUCED),
            Name(
                "policy/loss_metrics/is_ratio_std", None,
                definition=absent("counts masked and padded positions as 0: how wide the padding was is not in the rows"),
            ),
            _token_mean(
                "policy/loss_metrics/tis_token_clip_high_ratio", None, "[ratio > cap], without what outlier and token masks drop",
                of("skyrl_capped", **CORRECTION), where=of("skyrl_kept", stage="kept", **CORRECTION),
            ),
            _flagged("tis_seq_clip_high_ratio", "capped", "whose ratio is above the cap"),
            _flagged("outlier_seq_masked_ratio", "outlier", "with an outlier"),
            _flagged("outlier_seq_over_high_ratio", "over", "with a token above the threshold"),
            _flagged("outlier_seq_under_low_ratio", "under", "with a token below the threshold"),
            _token_mean(
                "policy/loss_metrics/token_mask_ratio", None, "[ratio out of bounds], without what the outlier mask drops",
                of("skyrl_token_masked", **CORRECTION), where=of("skyrl_kept", stage="whole", **CORRECTION),
            ),
            *(
                _flagged(f"{kind}_sequence_mask_{native}_ratio", what, words)
                for kind in ("geo", "product")
                for native, what, words in (
                    ("masked", "masked", "whose ratio is out of bounds"),
                    ("over_high", "above", "whose ratio is above the upper bound"),
                    ("under_low", "below", "whose ratio is below the lower bound"),
                )
            ),
            _token_mean("policy/minibatch_rollout_logprobs_abs_diff_mean", None, "abs(new - engine)", _APART_NOW, "nat"),
            Name(
                "policy/minibatch_rollout_logprobs_abs_diff_std", None,
                definition=exact(
                    f"sqrt(mean square - mean^2) of abs(new - engine), both {_STAGED}",
                    Recipe(
                        _APART_NOW, TOKENS, unit="nat", joined="deviation",
                        beside=(Recipe(of("square", first="logprob", second="rollout_logprob"), TOKENS),),
                    ),
                ),
            ),
            Name(
                "policy/minibatch_rollout_logprobs_abs_diff_max", None,
                definition=exact("largest abs(new - engine)", Recipe(_APART_NOW, statistic="max", unit="nat")),
            ),
            Name("policy/minibatch_rollout_logprobs_abs_diff_min", None, definition=_REDUCED),
            Name(
                "policy/rollout_train_logprobs_abs_diff_mean", "mismatch.abs",
                definition=exact("token mean of abs(engine - old) of the batch", Recipe(_APART, unit="nat")),
            ),
            Name(
                "policy/rollout_train_logprobs_abs_diff_max", "mismatch.abs_max",
                definition=exact("largest abs(engine - old) of the batch", Recipe(_APART, statistic="max", unit="nat")),
            ),
            Name(
                "policy/rollout_train_logprobs_abs_diff_min", None,
                definition=exact("smallest abs(engine - old) of the batch", Recipe(_APART, statistic="min", unit="nat")),
            ),
            Name(
                "policy/rollout_train_logprobs_abs_diff_std", None,
                definition=exact(
                    "std (ddof 1) over tokens of abs(engine - old) of the batch",
                    Recipe(_APART, statistic="std", where=_FIRST_PASS, unit="nat"), Recipe(_APART, statistic="std", unit="nat"),
                ),
            ),
            Name("policy/policy_lr", "optim.learning_rate", definition=_SCHEDULE),
            Name("policy/grad_norm", "optim.grad_norm", definition=_GRADIENTS),
            Name("policy/raw_grad_norm", "optim.grad_norm", definition=_GRADIENTS),
            Name(
                "policy/response_length", None, note="is the width that the batch was padded to, not a length",
                definition=_of_rows("padded width of the responses", of("row", name="padded_width"), unit="tokens"),
            ),
            Name(
                "loss/avg_raw_advantages", "adv.mean",
                definition=exact(
                    "mean advantage over all response tokens, before any normalisation, observations too",
                    Recipe(of("column", name="advantage"), mask="stored"),
                ),
            ),
            Name(
                "loss/avg_raw_advantages_abs", "adv.abs_mean",
                definition=exact(
                    "mean absolute advantage over all response tokens, before any normalisation, observations too",
                    Recipe(of("abs", name="advantage"), mask="stored"),
                ),
            ),
            Name("loss/kl_loss_coef", None, definition=absent("is a setting, or what a controller made of it")),
            Name(
                "critic/critic_loss", "value.loss",
                definition=exact(
                    f"half the mean over the rows of a micro-batch of their means of max((V - G)^2, "
                    f"(clip(V, V_old -+ value_clip) - G)^2), {_STAGED}",
                    Recipe(of("value_error", clip=f"{SET}value_clip?"), ROWS, factor=0.5),
                ),
            ),
            _token_mean("critic/values_mean", "value.mean", "values", of("column", name="value")),
            _token_mean(
                "critic/values_clipfrac", "value.clip_frac",
                "[error of V_old + clip(V - V_old) > error of V], where rounding counts too",
                of("skyrl_value_clipped", clip=f"{SET}value_clip"),
            ),
            Name("critic/grad_norm", None, definition=_GRADIENTS),
            _lengths("generate/avg_num_tokens", "length.mean", "mean", "mean number of tokens"),
            _lengths("generate/max_num_tokens", "length.max", "max", "largest number of tokens"),
            _lengths("generate/min_num_tokens", "length.min", "min", "smallest number of tokens"),
            _lengths("generate/std_num_tokens", None, "std", "std (ddof 0) of the number of tokens"),
            _lengths("generate/avg_assistant_tokens", None, "mean", "mean number of tokens in the loss", trained=True),
            _lengths("generate/max_assistant_tokens", None, "max", "largest number of tokens in the loss", trained=True),
            _lengths("generate/min_assistant_tokens", None, "min", "smallest number of tokens in the loss", trained=True),
            _lengths("generate/std_assistant_tokens", None, "std", "std (ddof 0) of the tokens in the loss", trained=True),
            _by_reward("generate/avg_tokens_non_zero_rewards", "above", "above"),
            _by_reward("generate/avg_tokens_zero_rewards", "equal", "of"),
            Name(
                "generate/tokens_per_turn_mean", None,
                definition=exact(
                    "tokens in the loss / stretches of them",
                    Recipe(_ONE, beside=(Recipe(of("turn_start")),), joined="quotient", unit="tokens"),
                ),
            ),
            Name("generate/tokens_per_turn_std", None, definition=_TURNS),
            Name("generate/tokens_per_turn_max", None, definition=_TURNS),
            Name(
                "reward/avg_pass_at_{n}", None,
                definition=_of_rows("share of prompts with a reward above 0", *_raw("rows_any_above"), per="group"),
            ),
            Name(
                "reward/mean_positive_reward", None,
                definition=_of_rows(
                    "mean of max(reward, 0)", *(of("rows_at_least", of=one, bound=0.0) for one in _raw("row")), unit="reward",
                ),
            ),
            Name(
                "reward/num_zero_variance_filtered", None,
                definition=absent("which groups the filter dropped is only in their masks, as other causes of an empty one are"),
            ),
            Name("async/staleness_mean", "stale.mean", definition=_SCHEDULED),
            Name("async/staleness_max", "stale.max", definition=_SCHEDULED),
            Name("async/staleness_min", None, definition=_SCHEDULED),
            Name("async/staleness_ratio", None, definition=_SCHEDULED),
            Name("async/staleness_violation_count", None, definition=_SCHEDULED),
            Name("async/num_groups_dropped", None, definition=_DROPPED),
            Name("async/keep_rate", None, definition=_DROPPED),
            Name("generate/batch_num_seq", None, definition=absent("is the size of the batch with its padding rows")),
            Name("generate/batch_padded_seq_len", None, definition=absent("the padded width of prompts is not recorded")),
        ),
        stages=_STAGE_TEXTS,
        marks=(
            "policy/policy_entropy", "policy/policy_kl", "loss/avg_final_rewards", "reward/avg_raw_reward", "policy/final_loss",
            "policy/loss_metrics/clip_ratio", "generate/avg_num_tokens", "reward/avg_pass_at_{n}", "loss/avg_raw_advantages",
            "policy/rollout_train_logprobs_abs_diff_mean", "policy/policy_lr", "policy/raw_grad_norm",
        ),
        kinds={"ppo": ("critic/critic_loss",)},
        validation=(("eval/all/avg_score",), ("eval/{source}/avg_score",)),
        best=(("eval/all/pass_at_{n}",), ("eval/{source}/pass_at_{n}",)),
        settings={"kl_coef": ("loss/kl_loss_coef",)},
    )
)  # fmt: skip

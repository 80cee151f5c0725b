"""slime: training metrics by optimizer step, rollout metrics by generation batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Final, Literal

from rl_doctor.analyzer.dialects.recipes import Argument, Definition, Fold, Of, Recipe, Statistic, absent, derived, exact, of
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

When = Mapping[str, tuple[Argument, ...]]
Case = tuple[Of, When]
"""A quantity, and the settings with which it is the trainer's."""

_POOLED: Final = "native.calculate_per_token_loss?"
_BY_ROLLOUT: Final[When] = {_POOLED: (None, False)}
_MEANS: Final[tuple[tuple[Recipe, When], ...]] = (
    (Recipe(of("one"), Fold(row="mean"), per="session_id"), _BY_ROLLOUT),
    (Recipe(of("one"), Fold(row="mean", divisor="global_batch_size")), _BY_ROLLOUT),
    (Recipe(of("one"), Fold(row="mean", empty=True)), _BY_ROLLOUT),
    (Recipe(of("one"), Fold(row="tokens", empty=True)), {_POOLED: (True,)}),
)
"""Segments of one rollout have the same session_id; without that every row is a rollout."""
_STAGES: Final = "*mean over rollouts* of {}"
_STAGE_TEXTS: Final = {
    "mean over rollouts": "sum over rollouts of (sum over the rollout's mask / max(its tokens, 1)), over micro-batches and "
    "ranks; / "
    "rollouts of the step. With calculate_per_token_loss: sum over mask / sum of max(tokens, 1)",
    "policy loss": "max(-A r, -A clip(r, 1 - eps_clip, 1 + eps_clip_high)), r = exp(x) without a clamp, dual = eps_clip_c; "
    "gspo: r of "
    "the sequence; cispo: -clip(r) A new; times the weight of tis, or the mask of opsm",
}

_LOW: Final = "config.clip_low|native.eps_clip"
_HIGH: Final = "config.clip_high|native.eps_clip_high|native.eps_clip"
_DUAL: Final = "config.dual_clip|native.eps_clip_c?"
_RANGE: Final = {"low": _LOW, "high": _HIGH}
_PLAIN: Final = ("grpo", "ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
_ESTIMATOR: Final = "native.advantage_estimator|config.adv_estimator"
_SEQUENCE: Final = of("row_average", of=of("log_ratio"))
_ICEPOP: Final = "slime.backends.megatron_utils.loss.icepop_function"
_TIS_PATH: Final = "native.custom_tis_function_path?"
_TIS: Final = {"low": "native.tis_clip_low?", "high": "native.tis_clip"}
_MASKING: Final = "native.use_opsm?"
_OWN_OLD: Final[When] = {"native.use_rollout_logprobs?": (None, False)}


def _cases(formula: str, *cases: Case, unit: str = "nat", stages: str = _STAGES) -> Definition:
    """A mean over rollouts, of the first case that holds."""
    recipes = (
        replace(mean, value=quantity, when={**when, **more}, unit=unit)
        for (quantity, when), (mean, more) in product(cases, _MEANS)
    )
    return exact(stages.format(formula), *recipes)


def _mean(formula: str, quantity: Of, unit: str = "nat", when: When | None = None) -> Definition:
    return _cases(formula, (quantity, when or {}), unit=unit)


def _surrogates() -> Iterator[Case]:
    """The loss per token by estimator, before any correction."""
    yield of("surrogate", dual=_DUAL, **_RANGE), {_ESTIMATOR: _PLAIN}
    yield of("surrogate", x=_SEQUENCE, dual=_DUAL, **_RANGE), {_ESTIMATOR: ("gspo",)}
    yield of("cispo", **_RANGE), {_ESTIMATOR: ("cispo",)}


def _losses() -> Iterator[Case]:
    """The loss per token: times the weight that corrects for the engine, or masked by sequence."""
    off: When = {"native.use_tis?": (None, False), "native.get_mismatch_metrics?": (None, False)}
    on: tuple[When, ...] = (
        {"native.use_tis?": (True,)},
        {"native.use_tis?": (None, False), "native.get_mismatch_metrics?": (True,)},
    )
    for loss, when in _surrogates():
        yield loss, {**when, **off, _MASKING: (None, False)}
        for corrected in on:
            settings = {**when, **corrected, **_OWN_OLD, _MASKING: (None, False)}
            yield of("product", left=loss, right=of("weight_truncated", **_TIS)), {**settings, _TIS_PATH: (None,)}
            yield of("product", left=loss, right=of("weight_kept", **_TIS)), {**settings, _TIS_PATH: (_ICEPOP,)}
        kept = of("opsm_kept", delta="native.opsm_delta")
        yield of("product", left=loss, right=kept), {**when, **off, _MASKING: (True,)}


def _totals() -> Iterator[Case]:
    """The whole loss: less the entropy bonus, plus the KL to the reference where that is part of it."""
    bonus = of("scaled", value=of("column", name="entropy"), factor="config.entropy_coef|native.entropy_coef", sign=-1.0)
    for loss, when in _losses():
        less = of("sum", first=loss, second=bonus)
        yield less, {**when, "native.use_kl_loss?": (None, False)}
        penalty = of("scaled", value=_KL, factor="native.kl_loss_coef")
        yield of("sum", first=less, second=penalty), {**when, "native.use_kl_loss?": (True,)}


_KL: Final = of("reference_kl", kind="native.kl_loss_type|config.kl_estimator", weighted="native.use_unbiased_kl?")
_CLIPPED: Final[tuple[Case, ...]] = (
    (of("binds", **_RANGE), {_ESTIMATOR: _PLAIN}),
    (of("binds", x=_SEQUENCE, **_RANGE), {_ESTIMATOR: ("gspo",)}),
    (of("outside", **_RANGE), {_ESTIMATOR: ("cispo",)}),
)
_KNOWN_TIS: Final[When] = {_TIS_PATH: (None, _ICEPOP), **_OWN_OLD}
_VALUE_CLIP: Final = "config.value_clip|native.value_clip"
_MASKED: Final = of("opsm_share", delta="native.opsm_delta")


def _value(prefix: str) -> tuple[Name, ...]:
    error = _mean(
        "max((V - G)^2, (clip(V, V_old -+ value_clip) - G)^2), without one half", of("value_error", clip=_VALUE_CLIP), "1"
    )
    moved = _mean("1[abs(V - V_old) > value_clip]", of("value_moved", clip=_VALUE_CLIP), "1")
    if not prefix:  # a name that the source has no longer
        error, moved = (replace(one, proof="derived") for one in (error, moved))
    return (
        Name(f"train/{prefix}value_loss", "value.loss", definition=error),
        Name(f"train/{prefix}value_clipfrac", "value.clip_frac", definition=moved),
    )


def _rows(value: Of, statistic: Statistic = "mean", unit: str = "tokens") -> Recipe:
    return Recipe(value, level="rollout", statistic=statistic, unit=unit)


def _by_rank(value: Of, statistic: Statistic, unit: str = "tokens") -> Recipe:
    """The mean over ranks of each rank's statistic."""
    return replace(_rows(value, statistic, unit), fold=Fold(apart=("rank",)))


def _tokens(column: str, unit: str = "nat", when: When | None = None) -> Definition:
    """The mean over the rollouts of a generation batch of their means over tokens."""
    whole = of("rows_mean", name=column, per="session_id")
    several = Recipe(whole, level="rollout", per="session_id", unit=unit, when=when or {})
    alone = Recipe(of("rows_mean", name=column), level="rollout", unit=unit, when=when or {})
    return exact(f"sum over rollouts of (sum over mask of {column}) / max(tokens of the rollout, 1); / rollouts", several, alone)


def _raw(formula: str, quantity: str, statistic: Statistic = "mean", unit: str = "1", **arguments: Argument) -> Definition:
    """Of the rewards before they are normalised by group: the scores, or the rewards themselves where none is."""
    first = _rows(of(quantity, name="score", **arguments), statistic, unit)
    plain = _rows(of(quantity, name="reward", **arguments), statistic, unit)
    return exact(
        formula, first, replace(plain, when={"native.rewards_normalization": (False,)}),
        replace(plain, when={_ESTIMATOR: ("ppo", "reinforce_plus_plus")}),
    )  # fmt: skip


def _lengths() -> tuple[Name, ...]:
    found = []
    metrics: Mapping[Statistic, str | None] = {"mean": "length.mean", "max": "length.max", "min": "length.min", "median": None}
    for statistic, metric in metrics.items():
        words = f"{statistic} over samples of the tokens in the loss mask"
        found.append(
            Name(f"rollout/response_len/{statistic}", metric, definition=exact(words, _rows(of("rows_tokens"), statistic)))
        )
    sides: Mapping[Literal["mean", "max", "min"], str] = {"mean": "mean", "max": "max", "min": "min"}
    for statistic, word in sides.items():
        for name, words, value in (
            ("raw_response_length", "response tokens, masked ones too", of("row", name="response_length")),
            ("wo_obs_response_length", "tokens in the loss mask", of("rows_tokens")),
        ):
            formula = f"mean over ranks of the {word} over the rank's samples of the {words}"
            native = f"multi_turn/{name}/response_length_{word}"
            found.append(Name(native, None, definition=exact(formula, _by_rank(value, statistic))))
        formula = f"mean over ranks of the {word} over the rank's samples of the number of turns"
        turns = _by_rank(of("row", name="turns"), statistic, "turns")
        native = f"multi_turn/multi_turn_metric/round_number_{word}"
        found.append(Name(native, "turns.mean" if word == "mean" else None, definition=derived(formula, turns)))
    return tuple(found)


_LONGEST: Final = "native.rollout_max_response_len|config.max_response_length"
_LIMIT: Final = _by_rank(of("rows_compared", name="response_length", how="at_least", bound=_LONGEST), "mean", "1")
_TRUNCATED: Final = of("row_is", name="finish_reason", value="length")
_ENGINE: Final = absent("is a count of the inference engine's")
_HELD_OUT: Final = absent("the rows that were sampled for evaluation are not recorded")

SLIME: Final = trainer(
    Trainer(
        name="slime",
        label="slime",
        source="slime, August 2026: backends/megatron_utils/loss.py, observability/train_metric_utils.py",
        names=(
            Name("rollout/raw_reward", "reward.mean", definition=_raw("mean over samples", "row", unit="reward")),
            Name(
                "rollout/rewards", None, note="is the reward after it was normalised by group: about 0 by design",
                definition=exact(
                    "mean over samples of r - mean of its group, / (std + 1e-6) with ddof 1 unless switched off",
                    _rows(of("row", name="reward"), unit="reward"),
                ),
            ),
            Name("train/loss", "policy.loss_total", definition=_cases(
                "policy loss - entropy_coef entropy + kl_loss_coef KL", *_totals(), unit="1"
            )),
            Name(
                "train/pg_loss", "policy.loss_pg",
                definition=_cases(
                    "the *policy loss*",
                    *_losses(), unit="1",
                ),
            ),
            Name(
                "train/entropy_loss", "policy.entropy", note="is the entropy itself",
                definition=_mean("entropy", of("column", name="entropy")),
            ),
            Name(
                "train/pg_clipfrac", "policy.clip_frac",
                definition=_cases("1[-A clip(r) > -A r]; cispo: 1[r != clip(r)]", *_CLIPPED, unit="1"),
            ),
            Name("train/ppo_kl", "policy.kl_old_k1", measured=True, definition=_mean("(old - new)", of("estimate", kind="k1"))),
            Name(
                "train/kl_loss", "ref.kl", measured=True, note="is signed (k1) unless configured otherwise: it may be negative",
                definition=_mean(
                    "k1, k2, k3 or low_var_kl (k3 within 10 nat) of (new, ref), times exp(new - old) with use_unbiased_kl", _KL
                ),
            ),
            Name(
                "train/ois", "policy.ratio_mean",
                definition=_cases(
                    "exp(new - old); gspo: exp of its mean over the sequence", (of("ratio"), {_ESTIMATOR: (*_PLAIN, "cispo")}),
                    (of("ratio", x=_SEQUENCE), {_ESTIMATOR: ("gspo",)}), unit="1",
                ),
            ),
            Name(
                "train/train_rollout_logprob_abs_diff", "mismatch.abs",
                definition=_cases(
                    "abs(d), with use_rollout_logprobs abs(new - rollout)",
                    (of("abs_log_ratio", first="old_logprob", second="rollout_logprob"), _OWN_OLD),
                    (of("abs_log_ratio", second="rollout_logprob"), {"native.use_rollout_logprobs?": (True,)}),
                ),
            ),
            Name(
                "train/tis", "mismatch.is_weight_mean",
                definition=_mean("exp(old - rollout), as it is before it is truncated", of("weight"), "1", _KNOWN_TIS),
            ),
            Name(
                "train/tis_clipfrac", None,
                definition=_mean(
                    "1[exp(old - rollout) outside [tis_clip_low, tis_clip]]", of("weight_outside", **_TIS), "1", _KNOWN_TIS
                ),
            ),
            Name("train/tis_abs", None, definition=_mean("abs(exp(old - rollout) - 1)", of("weight_change"), "1", _KNOWN_TIS)),
            Name(
                "train/opsm_clipfrac", None,
                definition=exact(
                    "sum over samples with A < 0 and mean(old - new) > opsm_delta of (response tokens, masked ones too) / "
                    "max(tokens, 1); / rollouts of the step",
                    Recipe(_MASKED, Fold(row="sum", divisor="global_batch_size"), when=_BY_ROLLOUT),
                    Recipe(_MASKED, Fold(row="sum", empty=True), when=_BY_ROLLOUT),
                    Recipe(_MASKED, Fold(row="tokens", empty=True), when={_POOLED: (True,)}),
                ),
            ),
            Name(
                "train/opd_reverse_kl", None,
                definition=replace(
                    _mean("(old - teacher)", of("log_ratio", first="old_logprob", second="teacher_logprob")), proof="derived"
                ),
            ),
            *_value(""),
            *_value("critic-"),
            Name("rollout/log_probs", None, definition=_tokens("old_logprob", when=_OWN_OLD)),
            Name("rollout/ref_log_probs", None, definition=_tokens("ref_logprob")),
            Name("rollout/rollout_log_probs", None, definition=_tokens("rollout_logprob")),
            Name("rollout/teacher_log_probs", None, definition=replace(_tokens("teacher_logprob"), proof="derived")),
            Name("rollout/values", "value.mean", definition=_tokens("old_value", "reward")),
            Name("rollout/advantages", "adv.mean", definition=_tokens("advantage", "1")),
            Name("rollout/returns", "return.mean", definition=_tokens("return", "reward")),
            Name(
                "rollout/kl", None,
                definition=exact(
                    "mean over samples of the mean over all response tokens of their rank, masked ones too, of the reward's KL",
                    _rows(of("rows_rank_mean", name="kl"), unit="nat"),
                ),
            ),
            Name("train/grad_norm", "optim.grad_norm", definition=absent("needs gradients", "norm before clipping")),
            Name("train/lr-pg_0", "optim.learning_rate", definition=absent("is set by a schedule")),
            Name("train/global_batch_size", None, definition=absent("is a setting of the step: the number of its rollouts")),
            Name("train/mtp_loss", None, definition=absent("needs the logits of further heads")),
            *_lengths(),
            Name(
                "rollout/response_lengths", "length.mean",
                definition=exact(
                    "mean over samples of response tokens, masked ones too", _rows(of("row", name="response_length"))
                ),
            ),
            Name(
                "rollout/total_lengths", None,
                definition=exact("mean over samples of prompt and response tokens", _rows(of("rows_length"))),
            ),
            *(
                Name(
                    f"rollout/{word}", "length.truncated_frac",
                    definition=exact("share of samples that the length limit ended", _rows(_TRUNCATED, unit="1")),
                )
                for word in ("truncated_ratio", "truncated")
            ),
            Name(
                "multi_turn/raw_response_length/response_length_clip_ratio", "length.limit_frac",
                note="is a share of lengths, not of clipped tokens",
                definition=exact(
                    "mean over ranks of the share of samples with response tokens >= rollout_max_response_len", _LIMIT
                ),
            ),
            Name(
                "rollout/zero_std/count_{reward}", None,
                definition=_raw(
                    "number of groups whose rewards are all equal, by that reward with one decimal", "groups_uniform", "sum",
                    "groups", text="word.reward",
                ),
            ),
            Name(
                "passrate/pass@{n}", None,
                definition=_raw("mean over groups of 1 - C(n - c, k) / C(n, k), c of n rewards are 1", "groups_pass", k="word.n"),
            ),
            Name("rollout/repetition_frac", None, definition=absent("needs the text of the responses")),
            Name("rollout/error_cat/{category}", None, definition=absent("needs the categories of the reward function")),
            Name("rollout/top_p_kept_vocab_per_token", None, definition=absent("needs the tokens that top-p sampling kept")),
            Name("rollout/spec_{word}", None, definition=_ENGINE),
            Name("rollout/prefix_cache_hit_rate", None, definition=_ENGINE),
            Name("rollout/avg_cached_tokens_per_sample", None, definition=_ENGINE),
            Name("perf/{word}", None, definition=absent("is a time or a throughput")),
            Name("eval/{source}-truncated_ratio", None, definition=_HELD_OUT),
        ),
        stages=_STAGE_TEXTS,
        marks=(
            "rollout/raw_reward", "rollout/response_lengths", "rollout/response_len/mean", "rollout/truncated_ratio", "lr-pg_0",
            "train/train_rollout_logprob_abs_diff", "train/ois", "rollout/zero_std/count_{reward}", "rollout/log_probs",
            "rollout/ref_log_probs", "rollout/rollout_log_probs", "rollout/total_lengths", "passrate/pass@{n}",
        ),
        kinds={"ppo": ("train/value_loss", "train/critic-value_loss")},
        validation=(("eval/{source}-pass@1",), ("eval/{source}",)),
        best=(("eval/{source}-pass@{n}",),),
        caps={"mismatch.is_weight_mean": ("tis_clip",)},
        loss_adds_up=True,
    )
)  # fmt: skip

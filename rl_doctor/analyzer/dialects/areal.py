"""AReaL: keys of its statistics tracker, below ``ppo_actor`` or ``grpo_actor``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from rl_doctor.analyzer.dialects.areal_recipes import (
    ACTOR,
    ALL_TOKENS,
    APPROXIMATION,
    CHANGED,
    GRADIENT,
    HELD_OUT,
    KEPT,
    PLAIN,
    REJECTING,
    ROLLOUTS,
    SCHEDULED,
    SETTING,
    UPDATED,
    WEIGHT,
    WIDTHS,
    Case,
    End,
    aged_tokens,
    clipped,
    counted,
    critic,
    gates,
    losses,
    of_correct,
    of_critic,
    of_reward,
    per_microbatch,
    ratios,
    rows,
    sampler,
    staleness,
    total,
    tracked,
)
from rl_doctor.analyzer.dialects.recipes import Definition, Of, Recipe, absent, exact, of
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

_CLIP: Final = ("ppo_actor/eps_clip", "ppo_actor/eps_clip/avg")
_NOT_REJECTED: Final = "tokens that rejection keeps"
_RIGHT: Final = "sequences with a reward above 0"
_WRONG: Final = "sequences with a reward of at most 0"
_APPROXIMATIONS: Final = ("loglinear", "linear", "rollout")
_ADVANTAGES: Final[Mapping[End, str]] = {"avg": "adv.mean", "max": "adv.max", "min": "adv.min"}
_REWARDS: Final[Mapping[End, str]] = {"avg": "reward.mean", "max": "reward.max", "min": "reward.min"}
_ONE: Final = of("constant", value=1.0)
_NEW: Final = of("column", name="logprob")
_KEPT: Final[tuple[Case, ...]] = (
    (KEPT, {**REJECTING, ACTOR + "use_sapo_loss?": (None, False)}), (of("constant", value=1.0), PLAIN),
    (of("constant", value=1.0), {**ALL_TOKENS, ACTOR + "use_sapo_loss?": (True,)}),
)  # fmt: skip
"""Tokens that rejection keeps; SAPO rejects none."""
_STAGES: Final = {
    "policy loss": "max(-A r, -A clip(r, 1 - eps_clip, 1 + eps_clip_higher)), at most c_clip |A|, times the weight of rejection "
    "(0 "
    "where rejected); r = exp(x) without a clamp, of sequences exp of the mean, with the mean of A; or that of SAPO",
}
_DIVERGENCES: Final = (
    ("kl_div_direct", "k1(x)", "k1"), ("kl_div_taylor", "k2(x)", "k2"),
    ("kl_div_dual", "k3(x)", "k3"),
)  # fmt: skip
_VERSION: Final = Recipe(of("row", name="policy_version"), level="rollout", unit="versions")
_LESS: Final = Recipe(of("rows_constant", value=-1.0), level="rollout")
_SETTINGS: Final = ("eps_clip", "c_clip", "use_dual_clip", "mask_no_eos_with_zero", "rs_upper", "rs_lower")
OF_UPDATE: Final[tuple[tuple[str, Definition], ...]] = (
    ("grad_norm", GRADIENT), ("lr", SCHEDULED), ("update_successful", absent("tells whether the gradients were finite")),
    ("num_micro_batches", absent("is how the sequences were packed")),
)  # fmt: skip
_OTHER_CRITIC: Final = absent("is a name of other versions than the one that was read")


def _row(value: Of, unit: str = "tokens") -> Recipe:
    return Recipe(value, level="rollout", unit=unit)


_KL: Final[tuple[Case, ...]] = tuple(
    (of("scaled", value=estimate, factor="config.kl_coef|native.actor.kl_ctl", sign=-1.0), when)
    for estimate, when in sampler(
        "estimate", "second", first="ref_logprob", kind="native.actor.kl_estimator|config.kl_estimator", most=10.0
    )
)

AREAL: Final = trainer(
    Trainer(
        name="areal",
        label="AReaL",
        source="AReaL, May 2026: trainer/ppo/actor.py, utils/functional.py, utils/stats_tracker.py",
        names=(
            *critic("ppo_critic"),
            *(Name(f"ppo_critic/{key}", None, definition=of_critic(definition)) for key, definition in OF_UPDATE),
            *rows("{actor}/task_reward", "sequences of the reward before it is scaled", of_reward("row"), metrics=_REWARDS),
            *rows("{actor}/incorrect_seq_len", f"{_WRONG} of prompt and response tokens", of_correct("at_most")),
            *rows("{actor}/correct_seq_len", f"{_RIGHT} of prompt and response tokens", of_correct("above")),
            *rows("{actor}/seq_len", "sequences of prompt and response tokens", [_row(of("rows_length"))]),
            *rows("{actor}/prompt_len", "sequences of the tokens outside the loss mask", [_row(of("rows_rest"))]),
            *rows(
                "{actor}/no_eos_ratios", "sequences of whether they are as long as the longest of their rank",
                [_row(of("rows_longest"), "1")], note="is the share as long as the longest sequence of the batch, never 0",
            ),
            Name(
                "{actor}/incorrect_n_seqs", None,
                definition=total(of_reward("rows_compared", how="at_most", bound=0.0), _WRONG),
            ),
            Name("{actor}/correct_n_seqs", None, definition=total(of_reward("rows_compared", how="above", bound=0.0), _RIGHT)),
            Name("{actor}/n_seqs", None, definition=total([_row(of("rows_constant", value=1.0))], "sequences")),
            Name("{actor}/update/n_tokens", None, definition=UPDATED),
            Name("{actor}/n_tokens", None, definition=WIDTHS),
            *(counted(f"{{actor}}/{scope}/n_valid_tokens", _NOT_REJECTED, _KEPT) for scope in ("compute_logp", "version_stats")),
            counted("{actor}/update/n_valid_tokens", "tokens in the loss mask", [(_ONE, ALL_TOKENS)]),
            counted("{actor}/n_valid_tokens", "tokens in the loss mask", [(_ONE, {})]),
            counted("{actor}/unclipped_behave_tokens", _NOT_REJECTED, [(KEPT, REJECTING)]),
            counted("{actor}/dual_clipped_tokens", "tokens at which dual clip binds", clipped(dual=True)),
            counted("{actor}/clipped_tokens", "tokens at which the clip range binds", clipped()),
            Name("rollout/reward", "reward.mean", definition=ROLLOUTS),
            *(Name(f"rollout/{key}", None, definition=ROLLOUTS) for key in ("accepted", "rejected")),
            *tracked(
                "{actor}/actor_loss", "the *policy loss*", losses(), metrics={"avg": "policy.loss_pg"},
            ),
            *(Name(f"{{actor}}/compute_logp/{how}/{{what}}", None, definition=APPROXIMATION) for how in _APPROXIMATIONS),
            *tracked(
                "{actor}/importance_weight", "r, 0 where rejected", ratios(),
                metrics={"avg": "policy.ratio_mean", "max": "policy.ratio_max", "min": "policy.ratio_min"},
            ),
            *tracked(
                "{actor}/behave_imp_weight", "exp(old - rollout) as rejection leaves it, of sequences exp of the mean",
                [(WEIGHT, REJECTING)], metrics={"avg": "mismatch.is_weight_mean"}, where=[(KEPT, {})], over=_NOT_REJECTED,
            ),
            *tracked(
                "{actor}/behave_approx_kl", "old - rollout",
                [(of("log_ratio", first="old_logprob", second="rollout_logprob"), REJECTING)], unit="nat",
                metrics={"avg": "mismatch.k1"}, where=[(KEPT, {})], over=_NOT_REJECTED, factor=-1.0,
                note="is trainer - sampler here, and is read with the other sign",
            ),
            *tracked(
                "{actor}/approx_kl", "x, without a clamp", [(of("log_ratio"), ALL_TOKENS)], unit="nat",
                metrics={"avg": "policy.kl_old_k1"}, factor=-1.0, note="is new - old here, and is read with the other sign",
            ),
            *tracked(
                "{actor}/dual_clip_ratio", "1[c_clip |A| < the clipped loss]", clipped(dual=True),
                metrics={"avg": "policy.clip_frac_dual"},
            ),
            *tracked(
                "{actor}/clip_ratio", "1[-A clip(r) > -A r], 0 where rejected", clipped(), metrics={"avg": "policy.clip_frac"}
            ),
            *tracked(
                "{actor}/entropy", "entropy", [(of("column", name="entropy"), ALL_TOKENS)], unit="nat",
                metrics={"avg": "policy.entropy"},
            ),
            *tracked("{actor}/clipped_new_logp", "new", [(_NEW, {})], unit="nat", where=clipped(), over="clipped tokens"),
            *tracked(
                "{actor}/clipped_old_logp", "old", sampler("column", "name"), unit="nat", where=clipped(), over="clipped tokens"
            ),
            *tracked("{actor}/new_logp", "new", [(_NEW, ALL_TOKENS)], unit="nat"),
            *tracked(
                "{actor}/old_logp", "rollout, or old where the loss is not decoupled", sampler("column", "name"), unit="nat"
            ),
            *(name for key, formula, cases in gates() for name in tracked(f"{{actor}}/{key}", formula, cases)),
            Name(
                "{actor}/rs_filtered_fraction", None,
                definition=per_microbatch("1[rejected, or its weight clamped]", [(CHANGED, REJECTING)]),
            ),
            *(
                name
                for key, formula, kind in _DIVERGENCES
                for name in tracked(
                    f"{{actor}}/compute_logp/{key}", formula, sampler("estimate", "second", kind=kind), unit="nat", where=_KEPT,
                    over=_NOT_REJECTED,
                )
            ),
            *tracked(
                "{actor}/compute_logp/prox_logp_gt", "old", [(of("column", name="old_logprob"), ALL_TOKENS)], unit="nat",
                where=_KEPT, over=_NOT_REJECTED,
            ),
            *staleness("{actor}/sample_staleness_theta", 0, {"avg": "stale.mean", "max": "stale.max"}),
            *staleness("{actor}/sample_staleness_proximal", 1, {}),
            Name("{actor}/v_theta", None, definition=exact("the version being trained", _VERSION)),
            Name("{actor}/v_proximal", None, definition=exact("v_theta - 1", replace(_VERSION, beside=(_LESS,)))),
            aged_tokens("{actor}/n_valid_generated_tokens"),
            Name("{actor}/update/grad_norm", "optim.grad_norm", definition=GRADIENT),
            Name("{actor}/update/grad_norm/avg", "optim.grad_norm", definition=GRADIENT),
            Name("{actor}/update/lr", "optim.learning_rate", definition=SCHEDULED),
            Name("{actor}/update/lr/avg", "optim.learning_rate", definition=SCHEDULED),
            *(Name(f"{{actor}}/update/{key}", None, definition=definition) for key, definition in OF_UPDATE[2:]),
            *tracked("{actor}/advantages", "A", [(of("column", name="advantage"), {})], metrics=_ADVANTAGES),
            *tracked(
                "{actor}/kl_rewards", "-kl_ctl times the estimate kl_estimator of (old, ref) within 10 nat", _KL, unit="nat",
                note="is minus the coefficient times the KL, not the KL",
            ),
            *tracked(
                "{actor}/final_reward", "the reward of the token", [(of("column", name="token_reward"), {})], unit="reward",
                note="is a mean over tokens",
            ),
            *(Name(f"{{actor}}/{key}", None, definition=SETTING) for key in _SETTINGS),
            Name("{actor}/rkl_loss/{end}", None, definition=absent("needs the weights of the distillation")),
            Name("{actor}/vocab_{end}_logits/{of}", None, definition=absent("needs logits")),
            Name("ppo_critic/update/value_loss/avg", "value.loss", definition=_OTHER_CRITIC),
            Name("ppo_critic/update/loss/avg", "value.loss", definition=_OTHER_CRITIC),
            Name("critic/update/loss/avg", "value.loss", definition=_OTHER_CRITIC),
            Name("eval-rollout/{what}", None, definition=HELD_OUT),
            Name("timeperf/{what}", None, definition=absent("is a time")),
        ),
        stages=_STAGES,
        marks=(
            "{actor}/approx_kl/avg", "{actor}/importance_weight/avg", "{actor}/clip_ratio/avg", "{actor}/task_reward/avg",
            "{actor}/no_eos_ratios/avg", "{actor}/actor_loss/avg", "{actor}/kl_rewards/avg", "timeperf/{what}",
            "{actor}/version_stats/{what}", "{actor}/correct_seq_len/avg",
        ),
        kinds={"ppo": ("ppo_critic/update/value_loss/avg", "ppo_critic/update/loss/avg", "critic/update/loss/avg")},
        validation=(("eval-rollout/reward", "eval_rollout/reward"),),
        settings={"clip_low": _CLIP},
    )
)  # fmt: skip

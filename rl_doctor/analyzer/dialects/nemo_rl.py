"""NeMo-RL: keys below ``train/`` and ``validation/``."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Final

from rl_doctor.analyzer.dialects.nemo_rl_recipes import (
    ALONE,
    BEFORE,
    COUNTS,
    CRITIC_ALONE,
    DPO,
    ENDS,
    GRADIENT,
    HELD_OUT,
    KIND,
    MIXED,
    NO_NLL,
    NORMALISER,
    NOTHING,
    OVER_TOKENS,
    SCHEDULED,
    SFT,
    STAGES,
    STATISTICS,
    TURNS,
    UNSAMPLED,
    advantage_of,
    against_engine,
    baseline_share,
    critic_names,
    ended_by,
    kl_penalty,
    out_of_bounds,
    over_step,
    positive_nll,
    ratios,
    rows_of,
    sampling_ratio,
    sequence_error,
    token_mean,
    tokens_of,
    told_of_sequences,
    total_loss,
)
from rl_doctor.analyzer.dialects.recipes import Recipe, absent, derived, exact, of
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

_SUPERVISED: Final = absent("the rows of supervised training are not recorded")
_PAIRS: Final = absent("the rows of training on pairs are not recorded")


NEMO_RL: Final = trainer(
    Trainer(
        name="nemo-rl",
        label="NeMo-RL",
        source="NeMo-RL, August 2026: algorithms/loss/loss_functions.py, algorithms/grpo.py, experience/rollouts.py",
        names=(
            Name(
                "train/reward", "reward.mean",
                definition=exact(
                    "mean over samples; with dynamic sampling over those before the filter",
                    replace(rows_of(of("row", name="reward"), unit="reward"), when=UNSAMPLED),
                ),
            ),
            Name(
                "train/filtered_reward", None,
                definition=derived("mean over the samples that are trained on", rows_of(of("row", name="reward"), unit="reward")),
            ),
            Name("train/loss", "sft.loss", algorithms=SFT, definition=_SUPERVISED),
            Name("train/loss", "pref.loss", algorithms=DPO, definition=_PAIRS),
            Name("train/preference_loss", "pref.loss", algorithms=DPO, definition=_PAIRS),
            Name("train/accuracy", "pref.accuracy", algorithms=DPO, definition=_PAIRS),
            Name("train/rewards_chosen_mean", "pref.chosen_reward", algorithms=DPO, definition=_PAIRS),
            Name("train/rewards_rejected_mean", "pref.rejected_reward", algorithms=DPO, definition=_PAIRS),
            Name("train/loss", "policy.loss_total", definition=total_loss()),
            Name("train/probs_ratio", "policy.ratio_mean", definition=token_mean("r", *ratios(clipped=False), unit="1")),
            *(
                Name(
                    f"train/probs_ratio_{end}", f"policy.ratio_{end}",
                    definition=over_step(f"{end} of r over valid tokens", end, ratios(clipped=False)),
                )
                for end in ENDS
            ),
            Name(
                "train/probs_ratio_clamped", "policy.ratio_clamped_mean",
                definition=token_mean("clip(r, 1 - ratio_clip_min, 1 + ratio_clip_max)", *ratios(clipped=True), unit="1"),
            ),
            *(
                Name(
                    f"train/probs_ratio_clamped_{end}", f"policy.ratio_clamped_{end}",
                    definition=over_step(f"{end} of clip(r) over valid tokens", end, ratios(clipped=True)),
                )
                for end in ENDS
            ),
            Name("train/kl_penalty", "ref.kl", definition=kl_penalty()),
            Name(
                "train/gen_kl_error", "mismatch.k3",
                definition=against_engine("KL estimate of d, not clamped, by default k3(d)", "estimate", kind=KIND),
            ),
            Name(
                "train/policy_kl_error", None,
                definition=against_engine("KL estimate of -d, without a clamp", "estimate", kind=KIND, reverse=True),
            ),
            Name(
                "train/js_divergence_error", None,
                definition=against_engine(
                    "(k3(old - z) + k3(rollout - z)) / 2, z = log((p_old + p_rollout) / 2)", "jensen_shannon"
                ),
            ),
            Name(
                "train/token_mult_prob_error", None,
                definition=against_engine("exp(abs(d))", "probability_change", unit="1"),
            ),
            Name(
"train/sampling_importance_ratio", "mismatch.exp_mean", note_by=told_of_sequences, definition=sampling_ratio(),
),
            Name("train/is_oob_ratio", None, definition=out_of_bounds()),
            Name(
                "train/approx_entropy", "policy.entropy",
                note="is estimated from the sampled tokens: it scatters more than the entropy itself",
                definition=token_mean("-exp(new - rollout) new", (of("sampled_entropy", second="rollout_logprob"), {})),
            ),
            Name(
                "train/positive_nll_loss", None,
                note="sums the means of the micro-batches: it grows with their number; in GRPO it stays 0",
                definition=exact(
                    "of each micro-batch -mean of new over tokens of samples with r > 0, summed over micro-batches and ranks; "
                    "mean over global batches",
                    *(Recipe(NOTHING, OVER_TOKENS, unit="nat", when=none) for none in NO_NLL),
                    positive_nll(of("scaled", value=of("column", name="logprob"), factor=-1.0)),
                ),
            ),
            Name(
                "train/num_valid_samples", None,
                definition=exact("number of samples with a sample mask of 1; mean over global batches", *COUNTS),
            ),
            Name("train/global_valid_seqs", None, definition=NORMALISER),
            Name("train/global_valid_toks", None, definition=NORMALISER),
            Name("train/advantages/mean", "adv.mean", definition=advantage_of("mean")),
            Name("train/advantages/max", "adv.max", definition=advantage_of("max")),
            Name("train/advantages/min", "adv.min", definition=advantage_of("min")),
            Name("train/advantages/sum", None, definition=absent("covers the advantages of prompt and padding as well")),
            *(
                Name(f"train/{end}_seq_mult_prob_error{after}", None, definition=sequence_error(end, masked=bool(after)))
                for end, after in product(STATISTICS, ("", "_after_mask"))
            ),
            Name("train/num_masked_seqs_by_logprob_error", None, definition=BEFORE),
            Name("train/masked_correct_pct", None, definition=BEFORE),
            Name(
                "train/mean_prompt_length", None,
                definition=exact("mean over samples of prompt tokens", rows_of(of("row", name="prompt_length"))),
            ),
            Name(
                "train/total_num_tokens", None,
                definition=exact("sum over samples of prompt and response tokens", rows_of(of("rows_length"), "sum")),
            ),
            Name(
                "train/mean_gen_tokens_per_sample", "length.mean",
                definition=tokens_of("rows_tokens", "mean", "assistant tokens"),
            ),
            Name("train/max_gen_tokens_per_sample", "length.max", definition=tokens_of("rows_tokens", "max", "assistant tokens")),
            Name(
                "train/mean_total_tokens_per_sample", None,
                definition=derived("mean over samples of prompt and response tokens", rows_of(of("rows_length"))),
            ),
            Name(
                "train/mean_env_tokens_per_sample", None,
                definition=tokens_of("rows_other", "mean", "response tokens that are not the assistant's"),
            ),
            Name("train/truncation_rate", "length.truncated_frac", definition=ended_by("length", "the length limit ended")),
            Name("train/natural_termination_rate", None, definition=ended_by("stop", "ended of themselves")),
            Name("train/max_turns_reached_rate", None, definition=absent("which samples ran out of turns is not recorded")),
            *(
                Name(
                    f"train/{key}", metric,
                    definition=derived(f"{how} over samples of turns", rows_of(of("row", name="turns"), how, "turns")),
                )
                for key, metric, how in TURNS
            ),
            *(
                Name(
                    f"train/{end}_total_reward", None,
                    definition=derived(f"{end} over samples", rows_of(of("row", name="reward"), end, "reward")),
                )
                for end in STATISTICS
            ),
            Name("train/avg_trajectory_age", "stale.mean", definition=absent("is kept by the replay buffer")),
            Name("train/buffer_size", None, definition=absent("is the size of the replay buffer")),
            Name("train/grad_norm", "optim.grad_norm", definition=GRADIENT),
            Name("train/lr", "optim.learning_rate", definition=SCHEDULED),
            Name("train/wd", None, definition=SCHEDULED),
            *critic_names("critic/"),
            *(Name(f"train/{key}", metric, definition=CRITIC_ALONE) for key, metric in ALONE),
            Name(
                "train/baseline_reward/pct_0", None,
                definition=exact("% of samples whose baseline, the mean of the group's other rewards, is 0", baseline_share(0.0)),
            ),
            Name("train/baseline_reward/pct_1", None, definition=exact("% of samples whose baseline is 1", baseline_share(1.0))),
            Name("train/baseline_reward/pct_mixed", None, definition=exact("100 - pct_0 - pct_1", MIXED)),
            Name("train/baseline_reward/{share}", None, definition=absent("is no share that was read")),
            Name("validation/accuracy", None, definition=HELD_OUT),
            Name("validation/avg_length", None, definition=HELD_OUT),
            Name("validation/pass_k", None, definition=HELD_OUT),
        ),
        stages=STAGES,
        marks=(
            "probs_ratio", "probs_ratio_clamped", "gen_kl_error", "token_mult_prob_error", "approx_entropy", "global_valid_toks",
            "sampling_importance_ratio", "baseline_reward/pct_0", "num_valid_samples", "mean_gen_tokens_per_sample",
            "preference_loss", "rewards_chosen_mean", "performance/{what}",
        ),
        kinds={
            "dpo": ("preference_loss", "rewards_chosen_mean"),
            "ppo": ("critic/loss", "values_mean"),
            "grpo": ("baseline_reward/pct_0", "reward+gen_kl_error"),
            "sft": ("loss+global_valid_toks", "loss+num_valid_samples"),
        },
        validation=(("validation/accuracy",), ("validation/{source}/accuracy",)),
        best=(("validation/pass_k",), ("validation/{source}/pass_k",)),
        leaves_one_out=True,
    )
)  # fmt: skip

"""verl: what it calls its numbers, and what each of them is, from 0.5 to 0.9.1.

The letters of the formulas are those of ``analyzer/notation.py``; what many share has a name in ``STAGES``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np

from rl_doctor.analyzer.dialects.recipes import Definition, absent, derived, exact
from rl_doctor.analyzer.dialects.registry import Lookup, Name, Version

SIX: Final = (0, 6)
SEVEN: Final = (0, 7)
EIGHT: Final = (0, 8)
NINE: Final = (0, 9)
_STATISTICS: Final = ("mean", "max", "min")
_PARTS: Final = (
    ("ppo_kl", "policy.kl_old_k1"), ("pg_clipfrac_lower", "policy.clip_frac_dual"), ("pg_clipfrac", "policy.clip_frac"),
    ("pg_loss", "policy.loss_pg"), ("entropy", "policy.entropy"), ("ratio_mean", "policy.ratio_mean"),
    ("advantage_mean", "adv.mean"), ("token_frac", "token_frac"),
)  # fmt: skip

_PER_MICRO: Final = "*mean per micro-batch*, then the mean over mini-batches"
_FIRST_RANK: Final = "*mean per micro-batch*, of rank 0 alone"
_PER_MICRO_OLD: Final = "*mean per micro-batch*"
_ENGINE: Final = "*aggregation of the mini-batch*"
_LOCAL: Final = "*aggregation of the micro-batch*"
_OLD_STAGES: Final[tuple[tuple[Version | None, Version, str], ...]] = (
    (None, SIX, "mean over the micro-batches of rank 0"),
    (SIX, SEVEN, "*mean of 0.6*"),
    (SEVEN, EIGHT, "*sum of 0.7*"),
)
_LOSS: Final = "*policy loss*"
STAGES: Final[Mapping[str, str]] = {
    "mean per micro-batch": "sum over m / (tokens in m + 1e-8) of each micro-batch; plain mean over the micro-batches of all "
    "ranks",
    "aggregation of the mini-batch": "the loss of the tokens as loss_agg_mode has it: token-mean, sum / tokens of the "
    "mini-batch; "
    "token-sum; seq-mean-token-sum, sum / rows of the mini-batch; seq-mean-token-mean, sum over rows of the row's mean / rows of "
    "the mini-batch; with -norm also / loss_scale_factor, or the width of the micro-batch without one. An empty row adds 0. Then "
    "the sum over micro-batches, the mean over ranks, the mean over mini-batches",
    "aggregation of the micro-batch": "the same of each micro-batch, by its own tokens, or by its own rows with a token (0.5: by "
    "all rows; -norm of 0.5 and 0.6: sum / width)",
    "mean of 0.6": "FSDP: each micro-batch times its share of its mini-batch's rows, then the mean over the micro-batches of all "
    "ranks. Megatron: the mean over the micro-batches of all ranks",
    "sum of 0.7": "FSDP: each micro-batch times its share of its mini-batch's rows, summed over the step, mean over ranks. "
    "Megatron: the mean over the micro-batches of all ranks. Engine workers: as from 0.8",
    "policy loss": "by loss_mode, each times w. vanilla: max(-A r, -A clip(r)), where A < 0 at most -A dual, r = exp(clip20(x)), "
    "dual = clip_ratio_c, by default 3. gspo: the same with r = exp(min(mean_t x, 10)) and without dual, averaged by "
    "seq-mean-token-mean before 0.9.1. dppo: -A min(r, dual) logprob where |p - p_old| or the binary KL is in bounds. cispo: "
    "-clip(r) A logprob. sapo: -A sigmoid(tau (r - 1)) 4 / tau, averaged by seq-mean-token-mean. gpg, reinforce: -A logprob. "
    "dro: "
    "-A logprob + beta x^2 / 2. geo_mean: -mean_t A exp(mean_t of bounded x), plain mean over rows",
    "loss of 0.7": "FSDP workers of 0.7 subtract entropy_coeff times the aggregated entropy in place, so that the logged loss "
    "has "
    "it; with one mini-batch and one epoch old_logprob is logprob (0.6 and 0.7, FSDP)",
    "clipped tokens": "gpg, kl_cov, dro, reinforce log none. dppo: tokens left out. cispo: r out of range, whatever A. "
    "geo_mean: x "
    "out of range and A > 0. sapo: 0. clip_cov: the tokens that it draws, which cannot be recomputed",
    "reference KL": "by kl_loss_type: k1(y), |y|, k2(y), or k3(clip20(y)) kept within [-10, 10]; k3+ as k3",
    "by micro-batch": "with logprob in place of old_logprob, per micro-batch; mean over all micro-batches, or max or min where "
    "the "
    "name says so; engine workers of 0.7 as from 0.8",
    "whole batch": "over the mask of the batch before anything is rejected",
    "weights": "exp(clip20(d)) per token, or exp(clip20(sum_t d)) per row",
    "cut weights": "the weights, cut to the threshold; with two bounds 0 outside them",
    "rejection": "k1(d), k2(d) or k3(d), with clip20(d), per token, or its sum, mean or maximum over the row",
}  # fmt: skip
"""What many formulas share -> what it is."""


def _has_limit(logged: Lookup) -> bool:
    """Whether the width that lengths are held against is a limit: all responses that reach it are then equally long.

    Against the longest of the batch, as in the trainers of verl 0.9, the share is never 0 and the length it stands for varies.
    """
    share, longest = logged("response_length_clip_ratio"), logged("response_length_max")
    if share is None or longest is None:
        return share is not None
    _, at, also = np.intersect1d(share[0], longest[0], assume_unique=True, return_indices=True)
    shares, ends = share[1][at], longest[1][also]
    reached = ends[shares > 0.0]
    return reached.size < 3 or reached.size < shares.size or bool((reached == reached[0]).all())


def _statistics(
    native: str,
    metric: str | None,
    formula: str,
    made: Callable[[str], Definition] = exact,
    *,
    last: tuple[str, ...] = _STATISTICS,
) -> Iterator[Name]:
    """Mean, maximum and minimum of a quantity; ``{}`` in ``metric`` and ``formula`` is the statistic."""
    for one in last:
        canonical = None if metric is None else metric.format(one)
        yield Name(f"{native}/{one}", canonical, definition=made(formula.format(one)))


def _over_versions(native: str, metric: str, formula: str, note: str = "") -> Iterator[Name]:
    """A loss that each version reduces in its own way; last the name alone, for where the version is not known."""
    for since, until, stages in _OLD_STAGES:
        definition = exact(f"{formula}; {_LOCAL}; {stages}{note}")
        yield Name(native, metric, since=since, until=until, definition=definition)
    yield Name(native, metric, since=EIGHT, definition=exact(f"{formula}; {_ENGINE}"))
    yield Name(native, metric, definition=absent("is reduced in another way by each version", formula))


def _by(native: str, metric: str | None, before: str, version: Version, after: str) -> Iterator[Name]:
    """What a name means before and from a version on; last the name alone, for where the version is not known."""
    yield Name(native, metric, until=version, definition=exact(before))
    yield Name(native, metric, since=version, definition=exact(after))
    yield Name(native, metric, definition=absent(f"is something else before {version[0]}.{version[1]}", after))


def _critic_loss() -> Iterator[Name]:
    formula = "max((V - G)^2, (clip(V, V_old -+ cliprange_value) - G)^2) / 2"
    for since, until, stages in _OLD_STAGES:
        yield Name("critic/vf_loss", "value.loss", since=since, until=until, definition=exact(f"{formula}; {_LOCAL}; {stages}"))
    local = f"{formula}; {_LOCAL}; mean over micro-batches and ranks"
    yield Name("critic/vf_loss", "value.loss", since=EIGHT, until=NINE, definition=derived(local))
    yield Name("critic/vf_loss", "value.loss", since=NINE, definition=exact(f"{formula}; {_ENGINE}"))
    yield Name("critic/vf_loss", "value.loss", definition=absent("is reduced in another way by each version", formula))
    yield Name("critic/loss", "value.loss", since=NINE, definition=exact(f"{formula}; {_ENGINE}"))


def _batch() -> Iterator[Name]:
    """Statistics of the whole batch, once per step; rows that fill the batch are left out."""
    for native, metric, what in (("critic/rewards", "reward.", "rewards"), ("critic/score", "reward.score_", "scores")):
        for one in _STATISTICS:
            formula = f"{one} over rows of sum_t token_level_{what}"
            yield from _by(
                f"{native}/{one}", metric + one, f"{formula}, rows of length 0 too", SIX, f"{formula}, rows of length 0 left out"
            )
    for native, metric, what in (
        ("critic/advantages", "adv.{}", "A"), ("critic/returns", "return.{}", "G"), ("critic/values", "value.{}", "V_old"),
    ):  # fmt: skip
        for one in _STATISTICS:
            canonical = metric.format(one) if metric != "value.{}" or one == "mean" else None
            yield Name(f"{native}/{one}", canonical, definition=exact(f"{one} of {what} over the tokens of m"))
    variance = exact("1 - var(G - V_old) / (var G + 1e-5), ddof 1, over the tokens of m")
    yield Name("critic/vf_explained_var", "value.explained_var", definition=variance)
    length = "tokens of the response, the environment's too"
    for one in _STATISTICS:
        yield Name(f"response_length/{one}", f"length.{one}", measured=one == "mean", definition=exact(f"{one} of {length}"))
    share = "mean of 1[length = the limit (old trainer, and before 0.9) or the longest of the batch (new trainer)]"
    yield Name("response_length/clip_ratio", "length.limit_frac", holds=_has_limit, definition=exact(share))
    note = "is the share as long as the longest response of the batch, not as the limit: it says nothing of truncation"
    yield Name("response_length/clip_ratio", None, note=note, definition=exact(share))
    yield from _statistics("response_length_non_aborted", None, f"{{}} of {length}, those of length 0 left out")
    yield Name("response_length_non_aborted/clip_ratio", None, definition=exact(f"{share}, those of length 0 left out"))
    yield Name("response/aborted_ratio", "length.aborted_frac", definition=exact("mean of 1[length = 0]"))
    yield from _statistics("prompt_length", None, "{} of the tokens of the prompt")
    yield Name("prompt_length/clip_ratio", None, definition=exact(share))
    yield Name("num_turns/mean", "turns.mean", definition=exact("mean of the turns of a trajectory"))
    yield from _statistics("num_turns", None, "{} of the turns of a trajectory", last=("max", "min"))
    yield from _statistics("training/num_turns", None, "{} of the turns of a trajectory, new trainer", derived)
    for native, metric, formula in (
        ("trajectory_staleness", "stale.{}", "(step - 1) - newest version that sampled"),
        ("trajectory_staleness_worst", "", "(step - 1) - oldest version that sampled"),
        ("trajectory_spans", "", "newest - oldest version that sampled + 1"),
    ):
        for one in _STATISTICS:
            canonical = metric.format(one) if metric and one != "min" else None
            native_name = f"training/off_policy/{native}/{one}"
            yield Name(native_name, canonical, definition=derived(f"{one} over trajectories of {formula}, new trainer"))


def _engine_distance() -> Iterator[Name]:
    """The old policy against the engine that sampled."""
    apart = "|exp(old_logprob) - exp(rollout_logprob)| over m (0.5: over all tokens of the responses)"
    for one, metric in (("mean", "mismatch.prob_abs"), ("max", "mismatch.prob_max"), ("std", None)):
        of = f"{one} of {apart}" + (", ddof 1" if one == "std" else "")
        yield Name(f"training/rollout_probs_diff_{one}", metric, definition=exact(of))
    yield Name("training/rollout_probs_diff_valid", None, definition=exact("1 where m has a token, else 0"))
    correlation = exact("Pearson's correlation of exp(old_logprob) and exp(rollout_logprob) over m")
    yield Name("training/rollout_actor_probs_pearson_corr", "mismatch.prob_corr", definition=correlation)
    whole = "*whole batch*"
    current = "*by micro-batch*"
    rows = "mean over rows of"
    for key, metric, formula in (
        ("kl", "mismatch.k1", "mean of k1(d)"), ("k3_kl", "mismatch.k3", "mean of k3(d), not clipped"),
        ("training_ppl", None, f"{rows} exp(-mean_t old_logprob)"), ("training_log_ppl", None, f"{rows} -mean_t old_logprob"),
        ("rollout_ppl", None, f"{rows} exp(-mean_t rollout_logprob)"),
        ("rollout_log_ppl", None, f"{rows} -mean_t rollout_logprob"),
        ("log_ppl_diff", None, f"{rows} -mean_t d"), ("log_ppl_abs_diff", None, f"{rows} |mean_t d|"),
        ("log_ppl_diff_max", None, "max over rows of -mean_t d"), ("log_ppl_diff_min", None, "min over rows of -mean_t d"),
        ("ppl_ratio", None, f"{rows} exp(-mean_t d)"), ("chi2_token", None, "mean of exp(2 clip20(d)) - 1"),
        ("chi2_seq", None, f"{rows} exp(2 clip20(sum_t d)) - 1"),
    ):  # fmt: skip
        yield from _by(
            f"rollout_corr/{key}",
            metric,
            f"{formula}; {current}",
            EIGHT,
            f"{formula}; {whole}",
        )
    raw = "*weights*"
    cut = "*cut weights*"
    for key, metric, formula in (
        ("mean", "mismatch.is_weight_mean", "mean over tokens"), ("max", None, "max; of sequences not cut"),
        ("min", None, "min; of sequences not cut"), ("std", None, "sqrt(mean square - squared mean)"),
        ("eff_sample_size", None, "1 / mean of (weight / mean weight)^2"),
        ("ratio_fraction_high", None, "share of uncut weights above the threshold"),
        ("ratio_fraction_low", None, "share of uncut weights below 1 / threshold or the lower bound"),
        ("seq_mean", None, "mean of the rows' means"), ("seq_std", None, "std of the rows' means, ddof 1"),
        ("seq_max", None, "max of the rows' means"), ("seq_min", None, "min of the rows' means"),
        ("seq_max_deviation", None, "max |row's mean - 1|"),
        ("seq_fraction_high", None, "share of rows' means above the threshold (0.9: of uncut weights)"),
        ("seq_fraction_low", None, "share of rows' means below 1 / threshold (0.9: of uncut weights)"),
        ("batch_norm_factor", None, "mean of cut weights over tokens, or over rows with a token (0.6: all rows)"),
    ):  # fmt: skip
        bounded = ", kept within 1 / threshold and threshold" if key in {"std", "eff_sample_size"} else ""
        version = NINE if "seq_fraction" in key else EIGHT
        yield from _by(f"rollout_corr/rollout_is_{key}", metric, f"{formula}; {raw}{bounded}", version, f"{formula}; {cut}")
    yield Name("rollout_corr/rollout_is_oob_ratio", None, definition=exact("share of tokens outside the two bounds"))
    veto = absent("verl 0.6 alone vetoes sequences by their worst token")
    yield Name("rollout_corr/rollout_is_veto_fraction", None, definition=veto)
    yield Name("rollout_corr/rollout_is_catastrophic_token_fraction", None, definition=veto)
    yield from _rejections()


def _rejections() -> Iterator[Name]:
    yield Name("rollout_corr/rollout_rs_masked_fraction", None, definition=exact("share of tokens that are rejected"))
    yield Name("rollout_corr/rollout_rs_seq_masked_fraction", None, definition=exact("share of rows with a rejected token"))
    estimate = "{} of the *rejection* statistic"
    of_rows = ("mean", "std", "max", "min", "max_deviation", "fraction_high", "fraction_low", "masked_fraction")
    for one in (
        *(f"seq_{row}" for row in of_rows),
        "mean",
        "max",
        "min",
        "std",
        "fraction_high",
        "fraction_low",
        "masked_fraction",
    ):
        name = f"rollout_corr/rollout_rs_{{criterion}}_{one}"
        yield Name(name, None, since=SEVEN, definition=exact(estimate.format(one.replace("_", " "))))
    reason = "the criteria of verl 0.6 bound other estimates than those of 0.7 on"
    yield Name("rollout_corr/rollout_rs_{statistic}", None, until=SEVEN, definition=absent(reason))
    bypass = "bypass mode: as without actor/, of logprob against old_logprob per micro-batch; mean over micro-batches and ranks, "
    yield Name(
        "actor/rollout_corr/{statistic}",
        None,
        since=EIGHT,
        definition=exact(f"{bypass}over mini-batches by max or min where so named"),
    )


def _actor() -> Iterator[Name]:
    entropy = "entropy of the old policy's pass over the whole batch, aggregated at once"
    yield Name("actor/entropy", "policy.entropy", until=SEVEN, definition=exact(entropy))
    own = "the actor's, per micro-batch (FSDP workers with calculate_entropy or entropy_coeff)"
    yield Name("actor/entropy", "policy.entropy", since=SEVEN, until=EIGHT, definition=exact(f"{entropy}; or {own}"))
    yield Name("actor/entropy", "policy.entropy", since=EIGHT, definition=exact(entropy))
    yield Name("actor/entropy", "policy.entropy", definition=absent("is of the old or the current policy by version", entropy))
    note = "is the entropy itself, of the policy being trained"
    yield Name("actor/entropy_loss", "policy.entropy", note=note, since=SEVEN, definition=exact(f"entropy; {_ENGINE}"))
    yield Name(
        "actor/entropy_loss", "policy.entropy", note=note, definition=absent("is older than 0.5 where the engine does not log it")
    )
    for native, metric, formula in (
        ("actor/ppo_kl", "policy.kl_old_k1", "mean of -clip20(x); not clipped in gspo, clip_cov, geo_mean, dro; kl_cov: |x|"),
        ("actor/pg_clipfrac", "policy.clip_frac",
         "share where -A clip(r) > -A r, other losses see *clipped tokens*"),
        ("actor/pg_clipfrac_lower", "policy.clip_frac_dual",
         "share where A < 0 and the clipped loss is above -A dual; dppo: r > dual, kept; geo_mean: x out of range, A < 0"),
    ):  # fmt: skip
        measured = native == "actor/ppo_kl"
        yield Name(native, metric, measured=measured, until=SIX, definition=exact(f"{formula}; {_FIRST_RANK}"))
        yield Name(native, metric, measured=measured, since=SIX, until=EIGHT, definition=exact(f"{formula}; {_PER_MICRO_OLD}"))
        yield Name(native, metric, measured=measured, since=EIGHT, definition=exact(f"{formula}; {_PER_MICRO}"))
        yield Name(native, metric, measured=measured, definition=absent("is averaged in another way by version", formula))
    yield from _over_versions("actor/pg_loss", "policy.loss_pg", _LOSS, "; *loss of 0.7*")
    total = exact(f"policy loss - entropy_coeff entropy + kl_loss_coef KL; {_ENGINE}")
    yield Name("actor/loss", "policy.loss_total", definition=total)
    kinds = "*reference KL*"
    for item in _over_versions("actor/kl_loss", "ref.kl", kinds):
        yield Name(item.native, item.metric, since=item.since, until=item.until, measured=True, definition=item.definition)
    penalty = exact(
        "mean over all rows of sum_t KL(old_logprob, ref_logprob) / (tokens in m + 1e-8), the KL as algorithm.kl_penalty says"
    )
    yield Name("actor/reward_kl_penalty", "ref.kl", definition=penalty)


def names() -> tuple[Name, ...]:
    """Every name, in the order in which they are preferred for the same metric."""
    return tuple(_names())


def _names() -> Iterator[Name]:
    setting, clock = absent("is a setting"), absent("is measured by a clock or of the hardware")
    outside = absent("is of gradients or of the optimizer, not of tokens")
    yield from _batch()
    yield from _by("critic/vpred_mean", "value.mean", f"mean of V; {_FIRST_RANK}", SIX, f"mean of V; {_PER_MICRO_OLD}")
    yield from _critic_loss()
    clipped = "share where the clipped error is the larger one"
    yield from _by("critic/vf_clipfrac", "value.clip_frac", f"{clipped}; {_FIRST_RANK}", SIX, f"{clipped}; {_PER_MICRO_OLD}")
    yield from _actor()
    yield Name("critic/kl", "ref.kl", definition=absent("is logged by versions before 0.5 only"))
    yield Name("batch/solve_none", None, definition=absent("is of recipes beside verl"))
    yield Name("batch/solve_all", None, definition=absent("is of recipes beside verl"))
    yield Name("actor/grad_norm", "optim.grad_norm", definition=outside)
    yield Name("actor/lr", "optim.learning_rate", definition=outside)
    yield Name("critic/grad_norm", None, definition=outside)
    yield Name("critic/lr", None, definition=outside)
    yield from _engine_distance()
    for native in ("actor/kl_coef", "critic/kl_coeff", "actor/reward_kl_penalty_coeff"):
        yield Name(native, None, definition=setting)
    yield Name("variance_proxy/{part}", None, definition=absent("needs sum_pi_squared and the norm of the gradient"))
    yield Name("rollout/moe/{part}", None, definition=absent("needs the experts that tokens were routed to"))
    yield Name("tool_call_counts/{statistic}", None, definition=absent("calls of tools are not recorded"))
    for native in ("training/off_policy/evicted_{part}", "training/filter_groups/{part}", "training/rollout_failure/{part}"):
        yield Name(native, None, definition=absent("counts of samples that were thrown away, which are not recorded"))
    for native in ("perf/{part}", "timing_s/{part}", "timing_per_token_ms/{part}"):
        yield Name(native, None, definition=clock)
    yield Name("global_seqlen/{part}", None, definition=absent("how tokens are spread over ranks before the batch is balanced"))
    note = "of the tokens in the part"
    for native, metric in _PARTS:
        reason = "is of recipes beside verl: which tokens are in the part is not recorded"
        yield Name(f"actor/{{part}}_{native}", f"part.{{part}}.{metric}", definition=absent(reason, note))


VALIDATION: Final = (
    Name("val-{tier}/{source}/{score}/mean@{n}", None, definition=absent(
        "scores of held-out responses are not recorded", "mean of n scores, then over prompts")),
    Name("val-{tier}/{source}/{score}/std@{n}", None, definition=absent(
        "scores of held-out responses are not recorded", "std of n scores, ddof 0, then mean over prompts")),
    Name("val-{tier}/{source}/{score}/{kind}@{n}/{statistic}", None, definition=absent(
        "scores of held-out responses are not recorded",
        "mean or std of the best, worst or majority of n over 1,000 draws with replacement, numpy seed 42; mean over prompts")),
)  # fmt: skip
"""Names of scores on held-out prompts; which of them is read is said by ``Trainer.validation`` and ``best``."""

"""Numbers that logs have in a form that tokens do not give: another estimator, another reduction, or one that is not known."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.registry import logged_metric

_KL: Final = "http://joschu.net/blog/kl-approx.html"
_CLAMPED: Final = "NeMo-RL, algorithms/loss/loss_functions.py"
_ENDS: Final = "TRL, GRPOTrainer"
_SAMPLER: Final = "verl, utils/debug/metrics.py and rollout_corr_helper.py; TRL, GRPOTrainer"

logged_metric(
    "policy.kl_old", unit="nat", source=_KL,
    formula="k1, k2 or k3 of x, by whatever mean the trainer takes",
    doc="KL between the old policy and the one being trained as logged, by an estimator that is not known (k1, k2 or k3).",
)  # fmt: skip
logged_metric(
    "policy.entropy_sequence",
    unit="nat",
    source="TRL, PPOTrainer",
    formula="-mean_i sum_Ti logprob",
    doc="Sum over a response of minus the log-probability of each sampled token, mean over the responses; never below 0.",
)
logged_metric(
    "ref.kl_sequence", unit="nat", source="TRL, PPOTrainer",
    formula="mean_i sum_Ti KL term",
    doc="KL to the reference policy as logged, summed over a response (not the mean over its tokens), mean over sequences.",
)  # fmt: skip
logged_metric(
    "reward.spread", unit="reward", source="TRL, GRPOTrainer",
    formula="std_i R, or mean_g std_g R",
    doc="Standard deviation of the reward as logged, where it is not known whether it is that of the batch or the mean of the "
    "groups' own. 0 where no group tells its responses apart, in either case.",
)  # fmt: skip
logged_metric(
    "policy.ratio_clamped_mean", unit="1", source=_CLAMPED,
    formula="mean_T clip(r, 1 - clip_low, 1 + clip_high)",
    doc="Mean of the ratio after it was clamped to the clip range, as logged.",
)  # fmt: skip
logged_metric(
    "policy.ratio_clamped_min",
    unit="1",
    source=_CLAMPED,
    formula="min_T clip(r, 1 - clip_low, 1 + clip_high)",
    doc="Smallest ratio after clamping, as logged.",
)
logged_metric(
    "policy.ratio_clamped_max",
    unit="1",
    source=_CLAMPED,
    formula="max_T clip(r, 1 - clip_low, 1 + clip_high)",
    doc="Largest ratio after clamping, as logged.",
)
logged_metric(
    "policy.clip_frac_low_min", unit="1", source=_ENDS,
    formula="min_i share_Ti[r < 1 - clip_low, A < 0]",
    doc="Smallest share of a response, in some versions of a rank, that is clipped below, as logged.",
)  # fmt: skip
logged_metric(
    "policy.clip_frac_high_max", unit="1", source=_ENDS,
    formula="max_i share_Ti[r > 1 + clip_high, A > 0]",
    doc="Largest share of a response, in some versions of a rank, that is clipped above, as logged.",
)  # fmt: skip
for _end, _word in (("min", "Smallest"), ("mean", "Mean"), ("max", "Largest")):
    logged_metric(
        f"length.ended_{_end}", unit="tokens", source=_ENDS,
        formula=f"{_end}_i L, over responses that ended by themselves",
        doc=f"{_word} length of the responses that ended by themselves, as logged; 0 where none did.",
    )  # fmt: skip
logged_metric(
    "mismatch.k1", unit="nat", source=_SAMPLER,
    formula="-mean_T d",
    doc="Mean of rollout_logprob - the trainer's logprob as logged; signed, near 0 for honest logprobs.",
)  # fmt: skip
logged_metric("mismatch.abs_max", unit="nat", source=_SAMPLER, formula="max_T |d|", doc="Largest |d| as logged.")
logged_metric(
    "mismatch.prob_max",
    unit="1",
    source=_SAMPLER,
    formula="max_T |exp(logprob) - exp(rollout_logprob)|",
    doc="Largest absolute difference of the two probabilities as logged.",
)
logged_metric(
    "mismatch.prob_corr",
    unit="1",
    source=_SAMPLER,
    formula="corr_T(exp(logprob), exp(rollout_logprob))",
    doc="Pearson correlation of the two probabilities as logged.",
)

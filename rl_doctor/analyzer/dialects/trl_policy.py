"""TRL's names where a policy samples: GRPO, RLOO, asynchronous GRPO."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.dialects.recipes import Definition, absent, derived, exact
from rl_doctor.analyzer.dialects.registry import Lookup, Name, Version

RLOO: Final = frozenset({"rloo"})
_NOT_TOLD: Final = frozenset({""})

TOKEN_WEIGHTED: Final[Version] = (1, 9)
"""Means over the tokens of all ranks, which were means over ranks before."""
_DEVIATION: Final[Version] = (0, 27)
_WEIGHTED: Final[Version] = (1, 0)
_UNSCORED: Final[Version] = (1, 6)
_WINDOW: Final[Version] = (1, 9, 1)
_BONUS: Final[Version] = (1, 10)
_SCALED_LOSS: Final[Version] = (0, 22)

_OPEN: Final = absent("what it is depends on the version, which is not known")
_ENTRIES: Final = "*by update*"
_GENERATIONS: Final = "*by generation*"
_OF_ALL: Final = "*token mean*"
_OF_RANKS: Final = "*mean of token means*"
_RATIO: Final = "*ratio*"
BELOW: Final = "1[r < 1 - epsilon and A < 0]"
ABOVE: Final = "1[r > 1 + epsilon_high and A > 0]"
_K3: Final = "k3(y), no clamp"
_MASK: Final = "*completion mask*"

Span = tuple[Version | None, Version | None, Definition]
"""First version, first version without it, what it is."""


def by_version(native: str, metric: str | None, spans: Iterable[Span], **more: Any) -> Iterator[Name]:
    """One name for each span of versions, and one for a version that is not known."""
    for since, until, definition in spans:
        yield Name(native, metric, since=since, until=until, definition=definition, **more)
    yield Name(native, metric, definition=_OPEN, **more)


def _reduced(formula: str) -> tuple[Span, ...]:
    return (
        (TOKEN_WEIGHTED, None, exact(f"{formula}; {_OF_ALL}")),
        (None, TOKEN_WEIGHTED, exact(f"{formula}; {_OF_RANKS}")),
    )


def _end(word: str, flag: str) -> tuple[Span, ...]:
    return (
        (
            TOKEN_WEIGHTED,
            None,
            exact(
                f"{flag}, {_RATIO}; {word} over rows of all ranks of its mean over m, rows without tokens left out; {_ENTRIES}"
            ),
        ),
        (None, TOKEN_WEIGHTED, exact(f"{flag}, {_RATIO}; {word} over ranks of its mean over m; {_ENTRIES}")),
    )


def _where_penalised(logged: Lookup) -> bool:
    """Whether a KL is logged only where a KL term is on. Unsloth, which keeps the old name of the length, always logs one."""
    return logged("completion_length") is None or logged("completions/mean_length") is None


def signed_kl(logged: Lookup) -> bool:
    """Whether the logged KL is below 0 somewhere, as k3 never is."""
    kl = logged("kl")
    return kl is not None and bool((kl[1] < 0.0).any())


def _of_batch(logged: Lookup) -> bool | None:
    """Whether ``reward_std`` is that of the batch, as the only reward function's is; None with several or none."""
    total, single = logged("reward_std"), logged("rewards/{function}/std")
    reward, own = logged("reward"), logged("rewards/{function}/mean")
    if total is None or single is None or reward is None or own is None:
        return None
    steps = np.intersect1d(np.intersect1d(total[0], single[0]), np.intersect1d(reward[0], own[0]))
    spread, other, mean, part = (values[np.isin(at, steps)] for at, values in (total, single, reward, own))
    told = np.isfinite(spread) & np.isfinite(other) & (other > 0.0) & (part != 0.0)
    if not told.any():
        return None
    weight = float(np.median(mean[told] / part[told]))
    return bool(np.allclose(spread[told], abs(weight) * other[told], rtol=5e-3))


def _batch_deviation(logged: Lookup) -> bool:
    return _of_batch(logged) is True


def _group_deviation(logged: Lookup) -> bool:
    return _of_batch(logged) is False


_LOSS_GRPO: Final = "*policy loss*; dapo, cispo, vespo: sum"
_LOSS_SUM: Final = "*summed loss*"
STAGES: Final = {
    "by update": "mean over the micro-batches since the last row of the log",
    "by generation": "mean over the generation batches since the last row of the log",
    "completion mask": "m is the completion mask, from 0.26 times the tool mask",
    "token mean": "sum over m of all ranks / max(tokens, 1), *by update*",
    "mean of token means": "mean over ranks of (sum over m / max(tokens, 1)), *by update*; before 0.20 a rank without tokens is "
    "left "
    "out",
    "ratio": "r = exp(x), no clamp, or exp of the mean of x over m (importance_sampling_level=sequence: then means over rows)",
    "policy loss": "-min(min(r, delta) A, clip(r, 1 - epsilon, 1 + epsilon_high) A); cispo: -min(r, epsilon_high) A logprob; "
    "sapo: "
    "-A (4 / tau) sigmoid(tau (r - 1)); vespo: -phi A logprob; each times off-policy mask and engine weight, + beta k3(y) "
    "(times r "
    "with use_bias_correction_kl). grpo, sapo: mean over rows of means over m; bnpo: mean over m; dr_grpo: sum / (rows "
    "max_completion_length); luspo: mean over rows of sums; these / accumulation",
    "summed loss": "mean over ranks of the sum over micro-batches, per step since the last row; not with top_entropy_quantile < "
    "1",
    "counted tokens": "tokens of the completion, those of tools and environments left out from 0.26, before truncated ones are "
    "masked (from 0.18)",
    "mean of responses": "mean over the response of each micro-batch; mean over micro-batches, epochs and ranks",
    "pair means": "mean over the pairs of all ranks, *by update*",
    "robust loss": "((label_smoothing - 1) log sigmoid(beta z) + label_smoothing log sigmoid(-beta z)) / (1 - 2 label_smoothing)",
    "margin": "(logps_chosen - ref_chosen) - (logps_rejected - ref_rejected), logprobs summed over the completion",
}
_LOSS_SPANS: Final[tuple[Span, ...]] = (
    (
        _BONUS,
        None,
        exact(
            f"{_LOSS_GRPO} ranks steps_per_generation / (accumulation num_items_in_batch); - entropy_coef times the mean "
            f"entropy over m / accumulation; {_LOSS_SUM}"
        ),
    ),
    (
        _WINDOW,
        _BONUS,
        exact(
            f"{_LOSS_GRPO} ranks steps_per_generation / (accumulation num_items_in_batch); - entropy_coef times the "
            f"entropy, in dapo, cispo and vespo summed and divided as the loss; {_LOSS_SUM}"
        ),
    ),
    (_SCALED_LOSS, _WINDOW, exact(f"{_LOSS_GRPO} ranks / num_items_in_batch, whatever the window; {_LOSS_SUM}")),
    (
        None,
        _SCALED_LOSS,
        exact(
            "-min(r A, clip(r) A) + beta k3(y); grpo, bnpo, dr_grpo as later; 0.16 is bnpo; divided by the "
            f"accumulation by the Hugging Face trainer; {_LOSS_SUM}"
        ),
    ),
)


def _reward_spans(word: str, *, of_group: str = "") -> tuple[Span, ...]:
    weighted, raw = "sum of reward_weights times rewards, those of None left out", "sum of the rewards without their weights"
    left = f"{word} over all ranks, rows that no function scored left out; {_GENERATIONS}"
    zero = f"{word} over all ranks, rows that no function scored as 0; {_GENERATIONS}"
    return (
        (_UNSCORED, None, exact(f"{weighted}; {left}")),
        (_WEIGHTED, _UNSCORED, derived(f"{weighted}; {zero}")),
        (_DEVIATION, _WEIGHTED, derived(f"{raw}; {zero}")),
        *(
            ()
            if of_group
            else ((None, _DEVIATION, derived(f"{weighted} (RLOO: clipped, less beta times the summed k1); {zero}")),)
        ),
    )


_REWARD_STD_GROUP: Final = "is the mean of the groups' standard deviations in this version, not that of the batch"
_COUNTED: Final = "*counted tokens*"
_SAMPLING: Final = "abs(d) over m, NaN left out (from 1.11)"
_WEIGHTS: Final = "exp(d), clamped or 0 out of bounds, per token or (sequence modes, 0.26) per row"
_SETTING: Final = absent("is a setting, or follows from what was before with use_adaptive_entropy")

POLICY_NAMES: Final = (
    *by_version(
        "kl",
        "ref.kl_k1",
        (
            (
                TOKEN_WEIGHTED,
                None,
                exact(f"old_logprob - ref_logprob over the completion mask; sum over all ranks / tokens; {_GENERATIONS}"),
            ),
            (
                None,
                TOKEN_WEIGHTED,
                derived(f"old_logprob - ref_logprob; mean over ranks of their token means; {_GENERATIONS}"),
            ),
        ),
        algorithms=RLOO,
        measured=True,
        note="is signed (k1): it may be negative",
    ),
    Name(
        "kl",
        "ref.kl",
        algorithms=_NOT_TOLD,
        holds=signed_kl,
        note="is below 0 at some steps, as RLOO's k1 may be and GRPO's k3 never is: which of them it is is not known",
        definition=absent("what it is depends on the algorithm, which is not known"),
    ),
    *by_version(
        "kl",
        "ref.kl",
        _reduced(f"{_K3}; times r with use_bias_correction_kl (0.26; on by default from 1.10); {_MASK}"),
        measured=True,
        holds=_where_penalised,
    ),
    Name("kl", "ref.kl", definition=_OPEN),
    *by_version("entropy", "policy.entropy", _reduced(f"entropy of the scaled logits over the vocabulary; {_MASK}")),
    *by_version("reward", "reward.mean", _reward_spans("mean")),
    *(
        Name("reward_std", "reward.std", since=since, until=until, definition=definition)
        for since, until, definition in _reward_spans("standard deviation (ddof 1)", of_group="group")
    ),
    Name("reward_std", "reward.std", since=_DEVIATION, definition=_OPEN),
    Name(
        "reward_std",
        "group.std_mean",
        until=_DEVIATION,
        note=_REWARD_STD_GROUP,
        definition=derived(
            "weighted reward (RLOO: clipped and penalised); mean over groups of their deviation (ddof 1), or the "
            'deviation of all with scale_rewards="batch" (in 0.22.0 and 0.22.1 with "group")'
        ),
    ),
    Name("reward_std", "reward.std", holds=_batch_deviation, definition=_OPEN),
    Name(
        "reward_std",
        "group.std_mean",
        holds=_group_deviation,
        definition=_OPEN,
        note="is the mean of the groups' standard deviations: across prompts the reward varies otherwise",
    ),
    Name(
        "reward_std",
        "reward.spread",
        definition=_OPEN,
        note="is that of the batch from TRL 0.27 on and the mean over groups before: which it is here is not known",
    ),
    Name(
        "frac_reward_zero_std",
        "group.zero_std_frac",
        definition=exact(
            "share of rows whose group's deviation (ddof 1) of the reward is within 1e-8 of 0; 0 or 1 with "
            f'scale_rewards="batch"; {_GENERATIONS}. Not with multi_objective_aggregation="normalize_then_sum"'
        ),
    ),
    Name(
        "rewards/{function}/mean",
        "reward.component.{function}.mean",
        definition=exact(f"mean of the function's rewards over all ranks, None left out; {_GENERATIONS}"),
    ),
    Name(
        "rewards/{function}/std",
        "reward.component.{function}.std",
        definition=exact(f"standard deviation (ddof 1) of the function's rewards, None left out; {_GENERATIONS}"),
    ),
    Name(
        "rewards/{function}",
        "reward.component.{function}.mean",
        definition=derived(f"mean of the function's rewards, None left out (0.16); {_GENERATIONS}"),
    ),
    Name(
        "policy_loss",
        "policy.loss_pg",
        definition=exact(
            "loss with the KL term and without entropy bonus, not yet divided by the accumulation; mean over ranks; "
            f"{_ENTRIES}. Only with an entropy bonus (1.8)"
        ),
    ),
    Name("entropy_coef", None, definition=_SETTING),
    Name("aux_loss", None, definition=absent("is of the router's logits, which are not recorded", "load-balancing loss")),
    Name(
        "loss",
        "policy.loss_total",
        algorithms=RLOO,
        definition=exact(
            "-min(r A, clip(r) A), r = exp(sum of logprob - sum of old_logprob) of the row; mean over rows and ranks, "
            "rows without tokens too; / accumulation; per step since the last row"
        ),
    ),
    *by_version("loss", "policy.loss_total", _LOSS_SPANS),
    Name(
        "clip_ratio/region_mean",
        "policy.clip_frac",
        algorithms=RLOO,
        definition=exact(f"{BELOW} or {ABOVE}, r of the whole row; mean over rows and ranks; {_ENTRIES}"),
    ),
    *by_version("clip_ratio/region_mean", "policy.clip_frac", _reduced(f"{BELOW} or {ABOVE}, {_RATIO}, at most delta (0.18)")),
    Name(
        "clip_ratio",
        None,
        until=(0, 17),
        note="counts tokens out of range where the clip does not bind (before TRL 0.17)",
        definition=exact(
            f"1[r A < clip(r) A]: out of range on the side where the clip does not bind; mean over m; mean over ranks; {_ENTRIES}"
        ),
    ),
    Name(
        "clip_ratio",
        "policy.clip_frac",
        since=(0, 17),
        definition=absent("is computed by the Liger kernel, as its own version defines it"),
    ),
    Name("clip_ratio", "policy.clip_frac", definition=_OPEN),
    *(
        Name(
            f"clip_ratio/{word}_mean",
            f"policy.clip_frac_{word}",
            algorithms=RLOO,
            definition=exact(f"{flag}, r of the whole row; mean over rows and ranks; {_ENTRIES}"),
        )
        for word, flag in (("low", BELOW), ("high", ABOVE))
    ),
    *(
        name
        for key, word, flag in (("clip_ratio/low_min", "min", BELOW), ("clip_ratio/high_max", "max", ABOVE))
        for name in by_version(
            key,
            f"policy.clip_frac_{key.rpartition('/')[2]}",
            (
                (TOKEN_WEIGHTED, None, exact(f"{flag}, r of the whole row; {word} over rows and ranks; {_ENTRIES}")),
                (None, TOKEN_WEIGHTED, exact(f"{flag}, r of the whole row; {word} over ranks of its mean; {_ENTRIES}")),
            ),
            algorithms=RLOO,
        )
    ),
    *by_version("clip_ratio/low_mean", "policy.clip_frac_low", _reduced(f"{BELOW}, {_RATIO}")),
    *by_version("clip_ratio/high_mean", "policy.clip_frac_high", _reduced(f"{ABOVE}, {_RATIO}")),
    *by_version("clip_ratio/low_min", "policy.clip_frac_low_min", _end("min", BELOW)),
    *by_version("clip_ratio/high_max", "policy.clip_frac_high_max", _end("max", ABOVE)),
    *by_version(
        "cispo_clip_ratio", "policy.clip_frac", _reduced(f"1[r > epsilon_high and A > 0], {_RATIO}; the cap is absolute")
    ),
    Name(
        "vespo/phi_seq_mean",
        None,
        definition=exact(
            "phi = exp(lambda + k log z - lambda z) of the row, log z = sum over m of clip20(x) "
            f"(+ log of the engine weights) within [log 1e-8, 20]; mean over rows and ranks; {_ENTRIES}"
        ),
    ),
    Name(
        "completions/mean_length",
        "length.mean",
        measured=True,
        definition=exact(f"{_COUNTED}; mean over all ranks; {_GENERATIONS}"),
    ),
    Name(
        "completion_length",
        "length.mean",
        definition=derived(f"tokens up to and with the first EOS; mean; {_GENERATIONS} (0.16)"),
    ),
    Name("completions/max_length", "length.max", definition=exact(f"{_COUNTED}; max; {_GENERATIONS}")),
    Name("completions/min_length", "length.min", definition=exact(f"{_COUNTED}; min; {_GENERATIONS}")),
    *(
        Name(
            f"completions/{word}_terminated_length",
            f"length.ended_{word}",
            definition=exact(f"{_COUNTED}; {word} over responses that ended by themselves, 0 without one; {_GENERATIONS}"),
        )
        for word in ("mean", "min", "max")
    ),
    Name(
        "completions/clipped_ratio",
        "length.truncated_frac",
        definition=exact(
            "share of responses whose last token is neither EOS nor padding; "
            f"{_GENERATIONS}. In 0.18.0 with several ranks 1 - ranks times the share of the others"
        ),
    ),
    Name(
        "sampling/sampling_logp_difference/mean",
        "mismatch.abs",
        definition=derived(f"{_SAMPLING}; mean over ranks of their token means; {_GENERATIONS}"),
    ),
    Name("sampling/sampling_logp_difference/max", "mismatch.abs_max", definition=derived(f"{_SAMPLING}; max; {_GENERATIONS}")),
    Name(
        "sampling/importance_sampling_ratio/mean",
        "mismatch.is_weight_mean",
        definition=derived(f"{_WEIGHTS}; mean over ranks of their means; {_GENERATIONS}"),
    ),
    Name("sampling/importance_sampling_ratio/min", None, definition=derived(f"{_WEIGHTS}; min; {_GENERATIONS}")),
    Name("sampling/importance_sampling_ratio/max", None, definition=derived(f"{_WEIGHTS}; max; {_GENERATIONS}")),
    Name("tools/call_frequency", None, definition=absent("calls of tools are not recorded", "calls / responses")),
    Name("tools/failure_frequency", None, definition=absent("calls of tools are not recorded", "failed calls / calls")),
    Name(
        "num_tokens",
        None,
        definition=absent("is counted from the start of training, over all sessions", "sum of prompt and completion tokens"),
    ),
    Name("step_time", None, definition=absent("is a time")),
    Name(
        "grad_norm",
        "optim.grad_norm",
        definition=absent("gradients are not recorded", "norm before clipping, of the last step since the last row"),
    ),
    Name(
        "learning_rate",
        "optim.learning_rate",
        definition=absent("is a setting of the step", "of the last step since the last row"),
    ),
)

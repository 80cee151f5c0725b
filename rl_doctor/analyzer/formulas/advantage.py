"""Advantages of whole responses from their rewards: GRPO and its relatives, which compare the responses to one prompt.

A reward of NaN (nothing could score the response) counts in no statistic, and its advantage is NaN. With ``singles="raw"`` a
group of one response has mean 0 and deviation 1, as in verl; with ``"zero"`` its own reward as mean, so advantage 0, as in TRL.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.arguments import checked
from rl_doctor.analyzer.formulas.groups import Groups, group
from rl_doctor.analyzer.formulas.segments import Floats, Splits, mean, spread, variance
from rl_doctor.analyzer.formulas.whitening import whiten

Labels = NDArray[Any]
Singles = Literal["raw", "zero"]


@checked
def group_deviation(squares: Floats, sizes: NDArray[np.int64], ddof: int) -> Floats:
    """sqrt(squares / (size - ddof)): standard deviation per group; NaN where the size is at most ``ddof``.

    Source: arithmetic; torch.std for ddof = 1.

    Args:
        squares: sum of squared deviations from the mean, float64 ``[groups]``.
        sizes: int64 ``[groups]``.
        ddof: 0 or 1.

    Returns:
        float64 ``[groups]``, of the unit of the values.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.sqrt(np.where(sizes > ddof, squares / (sizes - ddof), np.nan))


@checked
def grpo_advantage(centred: Floats, deviation: Floats, eps: float) -> Floats:
    """(r - group mean) / (deviation + eps); the deviation is that of the group or of the batch.

    Source: GRPO, arXiv:2402.03300, section 4.1.2; where eps stands and its size are the trainer's choice.

    Args:
        centred: rewards minus the mean of their group, float64 ``[sequences]``.
        deviation: at each sequence, float64 ``[sequences]``.
        eps: what is added to the deviation.

    Returns:
        float64 ``[sequences]``.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        return centred / (deviation + eps)


@checked
def rloo_advantage(centred: Floats, sizes: NDArray[np.int64]) -> Floats:
    """Reward less the mean of the others: size / (size - 1) * (r - group mean). Source: RLOO, arXiv:2402.14740.

    Args:
        centred: rewards minus the mean of their group, float64 ``[sequences]``.
        sizes: of the group of each sequence, int64 ``[sequences]``.

    Returns:
        float64 ``[sequences]``, of the unit of the rewards.
    """
    return centred * (sizes / np.maximum(sizes - 1, 1))


def _centred(rewards: Floats, found: Groups, singles: Singles) -> Floats:
    return np.where(found.sizes == 1, rewards, found.centred) if singles == "raw" else found.centred


@checked
def grpo(rewards: Floats, labels: Labels, *, ddof: int = 1, eps: float = 1e-6, singles: Singles = "raw") -> Floats:
    """(r - group mean) / (group standard deviation + eps).

    Source: GRPO, arXiv:2402.03300; verl 0.9.1, slime, SkyRL, ROLL (ddof 1, eps 1e-6); TRL 1.16 (1, 1e-4, zero); OpenRLHF 0.11.2,
    group_norm (1, 1e-9, zero); minimind (0, 1e-4).

    Args:
        rewards: of the responses, float64 ``[sequences]``.
        labels: the group of each, ``[sequences]``, of any type that can be sorted.
        ddof: 0 or 1.
        eps: what is added to the deviation.
        singles: what a group of one gets.

    Returns:
        float64 ``[sequences]``.
    """
    found = group(rewards, labels)
    single = 1.0 if singles == "raw" else 0.0
    deviation = np.where(found.sizes == 1, single, group_deviation(found.squares, found.sizes, ddof))
    return grpo_advantage(_centred(rewards, found, singles), deviation, eps)


@checked
def grpo_batch(rewards: Floats, labels: Labels, *, ddof: int = 1, eps: float = 1e-4) -> Floats:
    """(r - group mean) / (standard deviation of all rewards of the batch + eps).

    Source: TRL 1.16, ``scale_rewards="batch"``; arXiv:2508.08221.

    Args:
        rewards: of the responses, float64 ``[sequences]``.
        labels: the group of each, ``[sequences]``.
        ddof: 0 or 1.
        eps: what is added to the deviation.

    Returns:
        float64 ``[sequences]``.
    """
    known = rewards[~np.isnan(rewards)]
    deviation = np.sqrt(variance(known, ddof)) if len(known) > 1 else 0.0
    return grpo_advantage(group(rewards, labels).centred, np.full(len(rewards), deviation), eps)


@checked
def dr_grpo(rewards: Floats, labels: Labels, *, singles: Singles = "raw") -> Floats:
    """Reward less the mean: r - group mean.

    Source: Dr. GRPO, arXiv:2503.20783; verl 0.9.1, grpo without ``norm_adv_by_std_in_grpo``; TRL 1.16, ``scale_rewards="none"``
    (zero); OpenRLHF 0.11.2, dr_grpo and reinforce_baseline (zero); prime-rl. Also verl's reinforce_plus_plus_baseline before it
    is whitened over the tokens.

    Args:
        rewards: of the responses, float64 ``[sequences]``.
        labels: the group of each, ``[sequences]``.
        singles: what a group of one gets.

    Returns:
        float64 ``[sequences]``, of the unit of the rewards.
    """
    return _centred(rewards, group(rewards, labels), singles)


@checked
def rloo(rewards: Floats, labels: Labels, *, singles: Singles = "raw") -> Floats:
    """Reward less that of the others: r - mean of the others of the group.

    Source: RLOO, arXiv:2402.14740; verl 0.9.1, rloo, and rloo_vectorized (zero); TRL 1.16, ``RLOOTrainer`` (zero);
    OpenRLHF 0.11.2, rloo.

    Args:
        rewards: of the responses, float64 ``[sequences]``.
        labels: the group of each, ``[sequences]``.
        singles: what a group of one gets.

    Returns:
        float64 ``[sequences]``, of the unit of the rewards.
    """
    found = group(rewards, labels)
    return rloo_advantage(_centred(rewards, found, singles), found.sizes)


@checked
def reinforce_plus_plus_baseline(rewards: Floats, labels: Labels, splits: Splits) -> Floats:
    """Reward less the mean, r - group mean, at each token, whitened over all tokens with ddof 1 and eps 1e-8.

    Source: REINFORCE++, arXiv:2501.03262; verl 0.9.1, reinforce_plus_plus_baseline.

    Args:
        rewards: of the responses, float64 ``[sequences]``.
        labels: the group of each, ``[sequences]``.
        splits: of the tokens of the policy, int64 ``[sequences + 1]``.

    Returns:
        float64 ``[n]``.
    """
    return whiten(spread(dr_grpo(rewards, labels), splits))


@checked
def leave_one_out(rewards: Floats, labels: Labels, *, eps: float = 1e-6) -> Floats:
    """(r - mean of the others) / (standard deviation of the others + eps), divided only where that deviation is above 0.

    The deviation has ddof 1, so that it takes two others. There is no bound: one outlier among nearly equal rewards has an
    advantage of any size. A group of one gets 0. Source: NeMo-RL, ``calculate_baseline_and_std_per_prompt`` and
    ``GRPOAdvantageEstimator`` with ``normalize_rewards``.

    Args:
        rewards: of the responses, float64 ``[sequences]``.
        labels: the group of each, ``[sequences]``.
        eps: what is added to the deviation.

    Returns:
        float64 ``[sequences]``.
    """
    found = group(rewards, labels)
    apart = rewards - found.middle
    number = np.maximum(found.sizes - 1, 1)
    mean_apart = found.others(apart) / number
    centred = np.where(found.sizes > 1, apart - mean_apart, apart)
    squares = np.maximum(found.others(apart * apart) - number * mean_apart * mean_apart, 0.0)
    deviation = np.sqrt(np.where(number > 1, squares / np.maximum(number - 1, 1), 0.0))
    return np.where(deviation > 0, centred / (deviation + eps), centred)


@checked
def opo(rewards: Floats, lengths: NDArray[np.int64], labels: Labels) -> Floats:
    """Reward less a weighted mean: r - sum of length times r of the group over its tokens; r itself in a group of one.

    Source: OPO, arXiv:2505.23585; verl 0.9.1, opo.

    Args:
        rewards: of the responses, float64 ``[sequences]``.
        lengths: tokens of the responses, int64 ``[sequences]``.
        labels: the group of each, ``[sequences]``.

    Returns:
        float64 ``[sequences]``, of the unit of the rewards.
    """
    found = group(rewards, labels)
    weighted, total = found.sum(found.centred * lengths), found.sum(lengths.astype(np.float64))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(found.sizes == 1, rewards, found.centred - weighted / total)


@checked
def gpg(rewards: Floats, labels: Labels, *, f_norm: float = 1.0) -> Floats:
    """Scaled: alpha (r - group mean) / f_norm, alpha = responses over responses with a reward other than 0.

    Source: GPG, arXiv:2504.02546; verl 0.9.1, gpg.

    Args:
        rewards: of the responses, float64 ``[sequences]``.
        labels: the group of each, ``[sequences]``.
        f_norm: constant divisor.

    Returns:
        float64 ``[sequences]``, of the unit of the rewards.
    """
    alpha = len(rewards) / max(int(np.count_nonzero(rewards)), 1)
    return alpha * dr_grpo(rewards, labels) / f_norm


@checked
def maxrl(rewards: Floats, labels: Labels, *, eps: float = 1e-6, singles: Singles = "raw") -> Floats:
    """(r - group mean) / (group mean + eps); 0 where all rewards of a group are equal.

    Source: MaxRL, arXiv:2602.02710; SkyRL, ``compute_maxrl_advantage``; prime-rl, max_rl (eps 0, zero), which has 0 where the
    mean is below 0 as well.

    Args:
        rewards: of the responses, float64 ``[sequences]``.
        labels: the group of each, ``[sequences]``.
        eps: what is added to the mean.
        singles: what a group of one gets: its reward as it is, or 0.

    Returns:
        float64 ``[sequences]``.
    """
    found = group(rewards, labels)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = np.where(found.centred == 0.0, 0.0, found.centred / (found.mean + eps))
    return np.where(found.sizes == 1, rewards, scaled) if singles == "raw" else scaled


@checked
def grpo_pass_k(rewards: Floats, labels: Labels, *, eps: float = 1e-6, scaled: bool = True) -> Floats:
    """Best minus second best reward at the best response of each group, over (deviation + eps) if scaled; 0 elsewhere.

    Of several best responses none gets anything, as the difference is 0; NaN in a group of one, which verl refuses. Source:
    arXiv:2503.19595; verl 0.9.1, grpo_passk.

    Args:
        rewards: of the responses, float64 ``[sequences]``.
        labels: the group of each, ``[sequences]``.
        eps: what is added to the deviation.
        scaled: whether it is divided by the group's standard deviation with ddof 1.

    Returns:
        float64 ``[sequences]``.
    """
    found = group(rewards, labels)
    apart = rewards - found.ranked(1)
    ahead = np.where((rewards == found.ranked(0)) | np.isnan(apart), apart, 0.0)
    if not scaled:
        return ahead
    return grpo_advantage(ahead, group_deviation(found.squares, found.sizes, 1), eps)


@checked
def standardised(values: Floats, *, ddof: int = 1, eps: float = 1e-4) -> Floats:
    """(x - mean of all) / (standard deviation of all + eps), NaN left out of both.

    Source: TRL 1.16, ``RLOOTrainer`` with ``normalize_advantages``, and ``GRPOTrainer`` with normalize_then_sum.

    Args:
        values: float64 ``[sequences]``.
        ddof: 0 or 1.
        eps: what is added to the deviation.

    Returns:
        float64 ``[sequences]``.
    """
    known = values[~np.isnan(values)]
    deviation = np.sqrt(variance(known, ddof)) if len(known) > 1 else 0.0
    return grpo_advantage(values - mean(known), np.full(len(values), deviation), eps)


@checked
def decoupled(rewards: Floats, labels: Labels, weights: Floats, *, eps: float = 1e-6, singles: Singles = "raw") -> Floats:
    """Sum over the rewards of weight times GRPO's advantage of that reward alone; NaN components are left out.

    Source: GDPO, arXiv:2601.05242; verl 0.9.1, gdpo, which then whitens over the tokens; TRL 1.16, normalize_then_sum (eps 1e-4,
    zero), which then takes ``standardised``.

    Args:
        rewards: float64 ``[sequences, rewards]``.
        labels: the group of each, ``[sequences]``.
        weights: float64 ``[rewards]``.
        eps: what is added to each deviation.
        singles: what a group of one gets.

    Returns:
        float64 ``[sequences]``.
    """
    parts = [grpo(column, labels, eps=eps, singles=singles) for column in rewards.T]
    found: Floats = np.nansum(np.stack(parts, axis=1) * weights, axis=1)
    return found

"""Formulas of sequences, groups and whole batches once more, as loops over plain Python numbers, see ``references_tokens``."""

from __future__ import annotations

from itertools import combinations, pairwise
from math import comb
from typing import Any

import mpmath

from tests.unit.analyzer.formulas.numbers import (
    NAN,
    Number,
    average,
    clip,
    exp,
    log,
    most,
    of,
    parts,
    scatter,
    sqrt,
    total,
)
from tests.unit.analyzer.formulas.references_tokens import (
    Numbers,
    floored_binary_kl,
    k1,
    k2,
    k3,
    segment_means,
    segment_sums,
    spread,
)

# aggregation


def aggregated(sums: Numbers, factors: Numbers) -> Number:
    return total([s * f for s, f in zip(sums, factors, strict=True) if f != 0])


def token_mean(counts: list[int], tokens: Number | None = None) -> Numbers:
    return [1 / (of(max(sum(counts), 1)) if tokens is None else tokens) for _ in counts]


def token_sum(counts: list[int]) -> Numbers:
    return [Number(1) for _ in counts]


def sequence_mean_token_sum(counts: list[int], sequences: Number | None = None) -> Numbers:
    number = of(max(sum(1 for count in counts if count), 1)) if sequences is None else sequences
    return [1 / number if count else Number(0) for count in counts]


def sequence_mean_token_sum_norm(counts: list[int], horizon: Number, sequences: Number | None = None) -> Numbers:
    return [one / horizon for one in sequence_mean_token_sum(counts, sequences)]


def sequence_mean_token_mean(counts: list[int], sequences: Number | None = None, eps: float | Number = 0.0) -> Numbers:
    factors = sequence_mean_token_sum(counts, sequences)
    return [one / (count + of(eps)) if count else Number(0) for one, count in zip(factors, counts, strict=True)]


def prompt_mean(counts: list[int], group: list[int]) -> Numbers:
    tokens = {name: max(sum(c for c, g in zip(counts, group, strict=True) if g == name), 1) for name in group}
    return [1 / (of(len(tokens)) * tokens[name]) for name in group]


def window_token_mean(counts: list[int], items: Number, ranks: int = 1, share: float | Number = 1.0) -> Numbers:
    return [ranks / (most(items, 1) * share) for _ in counts]


# groups and advantage


def members(rewards: Numbers, labels: list[int], i: int) -> list[int]:
    return [j for j in range(len(labels)) if labels[j] == labels[i] and not rewards[j].unknown]


def group_deviation(squares: Numbers, sizes: list[int], ddof: int) -> Numbers:
    return [sqrt(s / (n - ddof)) if n > ddof else NAN for s, n in zip(squares, sizes, strict=True)]


def grpo_advantage(centred: Numbers, deviation: Numbers, eps: Number) -> Numbers:
    return [c / (d + eps) for c, d in zip(centred, deviation, strict=True)]


def rloo_advantage(centred: Numbers, sizes: list[int]) -> Numbers:
    return [c * (of(n) / max(n - 1, 1)) for c, n in zip(centred, sizes, strict=True)]


def grpo(rewards: Numbers, labels: list[int], *, ddof: int = 1, eps: float | Number = 1e-6, singles: str = "raw") -> Numbers:
    found = []
    for i, r in enumerate(rewards):
        values = [rewards[j] for j in members(rewards, labels, i)]
        if r.unknown:
            found.append(NAN)
        elif len(values) == 1:
            found.append(r / (1 + of(eps)) if singles == "raw" else Number(0))
        else:
            found.append(centred_of(r, values) / (sqrt(even_scatter(values, ddof)) + eps))
    return found


def even_scatter(values: Numbers, ddof: int) -> Number:
    return Number(0) if len({one.value for one in values}) == 1 else scatter(values, ddof)


def centred_of(r: Number, values: Numbers) -> Number:
    return Number(0) if len({one.value for one in values}) == 1 else r - average(values)


def grpo_batch(rewards: Numbers, labels: list[int], *, ddof: int = 1, eps: float | Number = 1e-4) -> Numbers:
    known = [r for r in rewards if not r.unknown]
    deviation = sqrt(even_scatter(known, ddof)) if len(known) > 1 else Number(0)
    return [one / (deviation + eps) for one in dr_grpo(rewards, labels, singles="zero")]


def dr_grpo(rewards: Numbers, labels: list[int], *, singles: str = "raw") -> Numbers:
    found = []
    for i, r in enumerate(rewards):
        values = [rewards[j] for j in members(rewards, labels, i)]
        if r.unknown:
            found.append(NAN)
        else:
            found.append(r if len(values) == 1 and singles == "raw" else centred_of(r, values))
    return found


def rloo(rewards: Numbers, labels: list[int], *, singles: str = "raw") -> Numbers:
    found = []
    for i, r in enumerate(rewards):
        others = [rewards[j] for j in members(rewards, labels, i) if j != i]
        if r.unknown:
            found.append(NAN)
        elif others:
            found.append(r - average(others))
        else:
            found.append(r if singles == "raw" else Number(0))
    return found


def leave_one_out(rewards: Numbers, labels: list[int], *, eps: float | Number = 1e-6) -> Numbers:
    found = []
    for i, r in enumerate(rewards):
        others = [rewards[j] for j in members(rewards, labels, i) if j != i]
        if r.unknown or not others:
            found.append(NAN if r.unknown else Number(0))
            continue
        deviation = sqrt(even_scatter(others, 1)) if len(others) > 1 else Number(0)
        found.append((r - average(others)) / (deviation + eps) if deviation > 0 else r - average(others))
    return found


def opo(rewards: Numbers, lengths: list[int], labels: list[int]) -> Numbers:
    found = []
    for i, r in enumerate(rewards):
        group = members(rewards, labels, i)
        baseline = total([rewards[j] * lengths[j] for j in group]) / sum(lengths[j] for j in group)
        found.append(r if len(group) == 1 else r - baseline)
    return found


def gpg(rewards: Numbers, labels: list[int], *, f_norm: float | Number = 1.0) -> Numbers:
    alpha = of(len(rewards)) / max(sum(1 for r in rewards if r != 0), 1)
    return [alpha * one / f_norm for one in dr_grpo(rewards, labels)]


def maxrl(rewards: Numbers, labels: list[int], *, eps: float | Number = 1e-6, singles: str = "raw") -> Numbers:
    found = []
    for i, r in enumerate(rewards):
        values = [rewards[j] for j in members(rewards, labels, i)]
        centred = centred_of(r, values)
        scaled = Number(0) if centred == 0 else centred / (average(values) + eps)
        found.append(r if len(values) == 1 and singles == "raw" else scaled)
    return found


def grpo_pass_k(rewards: Numbers, labels: list[int], *, eps: float | Number = 1e-6, scaled: bool = True) -> Numbers:
    found = []
    for i, r in enumerate(rewards):
        values = sorted(rewards[j] for j in members(rewards, labels, i))
        if len(values) < 2 or r.unknown:
            found.append(NAN)
            continue
        ahead = r - values[-2] if r == values[-1] else Number(0)
        found.append(ahead / (sqrt(even_scatter(values, 1)) + eps) if scaled else ahead)
    return found


def standardised(values: Numbers, *, ddof: int = 1, eps: float | Number = 1e-4) -> Numbers:
    known = [one for one in values if not one.unknown]
    deviation = sqrt(scatter(known, ddof)) if len(known) > 1 else Number(0)
    return [(one - average(known)) / (deviation + eps) for one in values]


def decoupled(
    rewards: list[Numbers], labels: list[int], weights: Numbers, *, eps: float | Number = 1e-6, singles: str = "raw"
) -> Numbers:
    columns = [grpo([row[k] for row in rewards], labels, eps=eps, singles=singles) for k in range(len(weights))]
    found = []
    for i in range(len(rewards)):
        known = [weights[k] * column[i] for k, column in enumerate(columns) if not column[i].unknown]
        found.append(total(known))
    return found


def group(values: Numbers, labels: list[int]) -> list[Any]:
    """Sizes, means, sums of squares, largest, second largest, and sum over the others."""
    groups = [members(values, labels, i) for i in range(len(values))]
    found: list[Any] = [[len(one) for one in groups], [average([values[j] for j in one]) for one in groups]]
    found.append([even_scatter([values[j] for j in one], 0) * len(one) if one else Number(0) for one in groups])
    ranked = [sorted(values[j] for j in one) for one in groups]
    found += [[one[-1 - below] if len(one) > below else NAN for one in ranked] for below in (0, 1)]
    found.append([total([values[j] for j in one if j != i]) for i, one in enumerate(groups)])
    return found


# of the returns


def discounted_sums(values: Numbers, splits: list[int], factor: Number) -> Numbers:
    found: Numbers = []
    for part in parts(values, splits):
        carried, backwards = Number(0), []
        for one in reversed(part):
            carried = one + factor * carried
            backwards.append(carried)
        found += backwards[::-1]
    return found


def gae_advantage(rewards: Numbers, values: Numbers, splits: list[int], gamma: Number, lam: Number) -> Numbers:
    return gae_skipping(rewards, values, [True] * len(values), splits, gamma, lam)


def gae_skipping(rewards: Numbers, values: Numbers, mask: list[bool], splits: list[int], gamma: Number, lam: Number) -> Numbers:
    found: Numbers = [NAN] * len(values)
    for start, stop in pairwise(splits):
        carried, following = Number(0), Number(0)
        for t in range(stop - 1, start - 1, -1):
            if mask[t]:
                carried = rewards[t] + gamma * following - values[t] + gamma * lam * carried
                following = values[t]
                found[t] = carried
    return found


def gae_through(rewards: Numbers, values: Numbers, mask: list[bool], splits: list[int], gamma: Number, lam: Number) -> Numbers:
    zero = Number(0)
    shown = [[one if inside else zero for one, inside in zip(column, mask, strict=True)] for column in (rewards, values)]
    return gae_advantage(*shown, splits, gamma, lam)


def remax(returns: Numbers, baselines: Numbers, splits: list[int]) -> Numbers:
    return [one - baseline for one, baseline in zip(returns, spread(baselines, splits), strict=True)]


# token_baseline


def token_energy(old: Numbers, sum_pi_squared: Numbers, splits: list[int], weight: Numbers | None = None) -> Numbers:
    found: Numbers = []
    for i, part in enumerate(parts(list(zip(old, sum_pi_squared, strict=True)), splits)):
        carried = Number(0)
        for t, (p, squares) in enumerate(part):
            energy = 1 - 2 * exp(p) + squares
            if weight is not None:
                energy = energy * weight[splits[i] + t] * weight[splits[i] + t]
            carried = carried + energy
            found.append(carried)
    return found


def optimal_token_baseline(
    returns: Numbers,
    energy: Numbers,
    splits: list[int],
    labels: list[int],
    eps: float | Number = 1e-8,
    place: list[int] | None = None,
) -> Numbers:
    found: Numbers = []
    lengths = [splits[i + 1] - splits[i] for i in range(len(labels))]
    places = [t - splits[i] for i in range(len(labels)) for t in range(splits[i], splits[i + 1])] if place is None else place
    for i in range(len(labels)):
        group = [j for j in range(len(labels)) if labels[j] == labels[i]]
        longest = sorted(lengths[j] for j in group)
        for t in range(splits[i], splits[i + 1]):
            last = len(group) > 1 and lengths[i] > longest[-2] and places[t] >= longest[-2]
            if len(group) == 1 or last:
                found.append(returns[t])
                continue
            same = [u for j in group for u in range(splits[j], splits[j + 1]) if places[u] == places[t]]
            above, below = total([returns[u] * energy[u] for u in same]), total([energy[u] for u in same])
            found.append(returns[t] - above / (below + eps))
    return found


# whitening


def whiten(values: Numbers, *, ddof: int = 1, eps: float | Number = 1e-8, shift: bool = True) -> Numbers:
    centre, scale = average(values), sqrt(scatter(values, ddof) + eps)
    return [(x - centre) / scale if shift else (x - centre) / scale + centre for x in values]


def whiten_floored(values: Numbers, *, ddof: int = 0, floor: float | Number = 1e-8) -> Numbers:
    centre, scale = average(values), sqrt(most(scatter(values, ddof), floor))
    return [(x - centre) / scale for x in values]


def reinforce_plus_plus(rewards: Numbers, splits: list[int], gamma: Number) -> Numbers:
    return whiten(discounted_sums(rewards, splits, gamma))


def reinforce_plus_plus_baseline(rewards: Numbers, labels: list[int], splits: list[int]) -> Numbers:
    return whiten(spread(dr_grpo(rewards, labels), splits))


# reward


def weighted_reward(rewards: list[Numbers], weights: Numbers) -> Numbers:
    found = []
    for row in rewards:
        known = [part * weight for part, weight in zip(row, weights, strict=True) if not part.unknown]
        found.append(total(known) if known else NAN)
    return found


def reward_at_end(rewards: Numbers, splits: list[int]) -> Numbers:
    found = [Number(0)] * splits[-1]
    for i, reward in enumerate(rewards):
        if splits[i + 1] > splits[i]:
            found[splits[i + 1] - 1] = reward
    return found


def less_penalty(rewards: Numbers, kl: Numbers, coef: Number) -> Numbers:
    return [r - coef * one for r, one in zip(rewards, kl, strict=True)]


def penalty_mean(kl: Numbers, splits: list[int]) -> Number:
    return average(segment_means(kl, splits))


def adaptive_coef(coef: Number, kl: Number, target: Number, samples: int, horizon: Number) -> Number:
    return coef * (1 + clip(kl / target - 1, -0.2, 0.2) * samples / horizon)


# the entropy


def entropy(logits: list[Numbers], temperature: float | Number = 1.0) -> Numbers:
    found = []
    for row in logits:
        chances = [exp(one / temperature) for one in row]
        mass = total(chances)
        found.append(total([-(p / mass) * log(p / mass) for p in chances if p > 0]) if mass > 0 else NAN)
    return found


def log_normaliser(logits: list[Numbers]) -> Numbers:
    return [log(total([exp(one) for one in row])) for row in logits]


def logit_sums(logits: list[Numbers], temperature: float | Number = 1.0) -> list[Numbers]:
    tops, masses, moments = [], [], []
    for row in logits:
        z = [one / temperature for one in row]
        top = max(z)
        apart = [one - top for one in z if one.value > float("-inf")]
        tops.append(top)
        masses.append(total([exp(one) for one in apart]))
        moments.append(total([exp(one) * one for one in apart]))
    return [tops, masses, moments]


def sampled_entropy(logprob: Numbers, log_weight: Numbers) -> Numbers:
    return [-exp(w) * p for p, w in zip(logprob, log_weight, strict=True)]


def high_entropy(entropies: Numbers, quantile: Number) -> list[bool]:
    if not entropies:
        return []
    ordered = sorted(entropies)
    at = float(quantile.value) * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    bound = ordered[below] + (ordered[above] - ordered[below]) * (at - below)
    return [bool(one >= bound) for one in entropies]


# of importance weights


def token_weights(log_ratio: Numbers, clamp: float | Number = 20.0) -> Numbers:
    return [exp(clip(x, -of(clamp), clamp)) for x in log_ratio]


def sequence_weights(log_ratio: Numbers, splits: list[int], clamp: float | Number = 20.0) -> Numbers:
    return token_weights(segment_sums(log_ratio, splits), clamp)


def geometric_weights(log_ratio: Numbers, splits: list[int]) -> Numbers:
    return [exp(x) for x in segment_means(log_ratio, splits)]


def truncated(weights: Numbers, upper: Number, lower: float | Number = 0.0) -> Numbers:
    return [clip(w, lower, upper) for w in weights]


def dropped_outside(weights: Numbers, lower: Number, upper: Number) -> Numbers:
    return [w if w >= lower and w <= upper else NAN if w.unknown else Number(0) for w in weights]


def outside_bounds(weights: Numbers, lower: Number, upper: Number) -> list[bool]:
    return [bool(w < lower or w > upper) for w in weights]


def normalised(weights: Numbers, average: Number, least: float | Number = 1e-8) -> Numbers:
    return [w / average if average > of(least) else w for w in weights]


def effective_share(weights: Numbers, upper: float | Number = float("inf"), eps: float | Number = 0.0) -> Number:
    cut = [clip(w, 0, upper) for w in weights]
    centre = average(cut) + eps
    return 1 / average([(w / centre) * (w / centre) for w in cut])


def weight_deviation(weights: Numbers, upper: float | Number = float("inf")) -> Number:
    return sqrt(scatter([clip(w, 0, upper) for w in weights], 0))


def chi_squared_tokens(log_ratio: Numbers, clamp: float | Number = 20.0) -> Number:
    return average([exp(2 * clip(x, -of(clamp), clamp)) - 1 for x in log_ratio])


def chi_squared_sequences(log_ratio: Numbers, splits: list[int], clamp: float | Number = 20.0) -> Number:
    return chi_squared_tokens(segment_sums(log_ratio, splits), clamp)


def log_perplexity(logprob: Numbers, splits: list[int]) -> Numbers:
    return [-one for one in segment_means(logprob, splits)]


def probability_change(logprob: Numbers, other: Numbers) -> Numbers:
    return [exp(abs(p - q)) for p, q in zip(logprob, other, strict=True)]


# rejection


def statistic(log_ratio: Numbers, splits: list[int], over: str, kind: str, clamp: float | Number = 20.0) -> Numbers:
    estimates = {"k1": k1, "k2": k2, "k3": k3}[kind]([clip(x, -of(clamp), clamp) for x in log_ratio])
    if over == "token":
        return estimates
    reduced = {"seq_sum": total, "seq_mean": average, "seq_max": max}[over]
    return [reduced(part) if part else Number(0) for part in parts(estimates, splits)]


def kept(values: Numbers, upper: Number, lower: float | Number = float("-inf")) -> list[bool]:
    return [bool(one >= of(lower) and one <= upper) for one in values]


def kept_tokens(log_ratio: Numbers, splits: list[int], over: str, kind: str, bounds: tuple[Number, Number]) -> list[bool]:
    found = kept(statistic(log_ratio, splits, over, kind), bounds[1], bounds[0])
    return found if over == "token" else spread(found, splits)


def engine_gate(old: Numbers, rollout: Numbers, kind: str) -> Numbers:
    if kind == "ratio":
        return [p - q for p, q in zip(old, rollout, strict=True)]
    if kind == "binary_kl":
        return floored_binary_kl(rollout, old)
    floored = [[clip(exp(one), 1e-6, 1 - Number(1e-6)) for one in column] for column in (old, rollout)]
    return [abs(p - q) for p, q in zip(*floored, strict=True)]


def off_policy_kept(log_ratio: Numbers, advantage: Numbers, splits: list[int], limit: Number) -> list[bool]:
    behind = segment_means([Number(0) if x.unknown else -x for x in log_ratio], splits)
    return [bool(a >= 0 or one <= limit) for a, one in zip(advantage, behind, strict=True)]


# the critic


def clipped_value_errors(value: Numbers, old: Numbers, returns: Numbers, limit: Number) -> list[Numbers]:
    rows = list(zip(value, old, returns, strict=True))
    near = [(clip(v, b - limit, b + limit), r) for v, b, r in rows]
    return [[(v - r) * (v - r) for v, _, r in rows], [(v - r) * (v - r) for v, r in near]]


def value_loss(value: Numbers, old: Numbers, returns: Numbers, limit: float | Number = float("inf")) -> Numbers:
    plain, clipped = clipped_value_errors(value, old, returns, of(limit))
    return [most(a, b) / 2 for a, b in zip(plain, clipped, strict=True)]


def value_clipped(value: Numbers, old: Numbers, returns: Numbers, limit: Number) -> list[bool]:
    plain, clipped = clipped_value_errors(value, old, returns, limit)
    return [bool(b > a) for a, b in zip(plain, clipped, strict=True)]


def value_moved(value: Numbers, old: Numbers, limit: Number) -> list[bool]:
    return [bool(abs(v - b) > limit) for v, b in zip(value, old, strict=True)]


def explained_variance(value: Numbers, returns: Numbers, ddof: int = 1, eps: float | Number = 1e-5) -> Number:
    errors = [r - v for v, r in zip(value, returns, strict=True)]
    return 1 - scatter(errors, ddof) / (scatter(returns, ddof) + eps) if len(errors) > ddof else NAN


# preference


def log_sigmoid(x: Numbers) -> Numbers:
    """Sized as a sum of two positive terms, which it is."""
    found = []
    for one in x:
        value = -mpmath.log1p(mpmath.exp(-one.value))
        found.append(Number(value, abs(value) * (1 + one.size)))
    return found


def preference_logits(chosen: Numbers, rejected: Numbers, ref_chosen: Numbers, ref_rejected: Numbers) -> Numbers:
    return [(a - c) - (b - d) for a, b, c, d in zip(chosen, rejected, ref_chosen, ref_rejected, strict=True)]


def implicit_reward(logprob: Numbers, ref_logprob: Numbers, beta: Number) -> Numbers:
    return [beta * (p - q) for p, q in zip(logprob, ref_logprob, strict=True)]


def dpo_loss(logits: Numbers, beta: Number, smoothing: float | Number = 0.0) -> Numbers:
    sides = (log_sigmoid([sign * beta * x for x in logits]) for sign in (1, -1))
    return [-(1 - of(smoothing)) * right - smoothing * wrong for right, wrong in zip(*sides, strict=True)]


def robust_dpo_loss(logits: Numbers, beta: Number, smoothing: Number) -> Numbers:
    sides = (log_sigmoid([sign * beta * x for x in logits]) for sign in (1, -1))
    return [(smoothing * wrong - (1 - smoothing) * right) / (1 - 2 * smoothing) for right, wrong in zip(*sides, strict=True)]


def ipo_loss(logits: Numbers, beta: Number) -> Numbers:
    return [(x - 1 / (2 * beta)) * (x - 1 / (2 * beta)) for x in logits]


def hinge_loss(logits: Numbers, beta: Number) -> Numbers:
    return [most(1 - beta * x, 0) for x in logits]


def prefers_chosen(chosen_reward: Numbers, rejected_reward: Numbers) -> list[bool]:
    return [bool(a > b) for a, b in zip(chosen_reward, rejected_reward, strict=True)]


# validation


def mean_at_n(scores: Numbers) -> Number:
    return average(scores)


def std_at_n(scores: Numbers) -> Number:
    return sqrt(even_scatter(scores, 0))


def sizes_of_subsets(n: int) -> list[int]:
    found, k = [], 2
    while k < n:
        found.append(k)
        k *= 2
    return [*found, n] if n > 1 else []


def pass_at_k(responses: list[int], correct: list[int], k: int) -> Numbers:
    return [1 - of(comb(n - c, k)) / comb(n, k) for n, c in zip(responses, correct, strict=True)]


def pass_hat_k(responses: list[int], correct: list[int], k: int) -> Numbers:
    """By listing every subset."""
    found = []
    for n, c in zip(responses, correct, strict=True):
        subsets = list(combinations(range(n), k))
        found.append(of(sum(all(i < c for i in subset) for subset in subsets)) / len(subsets))
    return found

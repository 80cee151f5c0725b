"""Every public formula against loops over numbers of 50 digits, on ragged, empty, tiny and extreme batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer import formulas_page
from rl_doctor.analyzer.formulas import entropy, groups, validation
from tests.unit.analyzer.formulas import references_batch, references_tokens
from tests.unit.analyzer.formulas.numbers import NAN, agrees, exact, flat
from tests.unit.analyzer.formulas.samples import LENGTHS, Sample, sample

Case = Callable[[Sample], tuple[Any, ...]]
PUBLIC = {name: found for module in formulas_page.modules() for name, found in formulas_page.functions(module).items()}
INF = float("inf")


def rows(s: Sample, vocabulary: int = 9, scale: float = 3.0) -> np.ndarray[Any, np.dtype[np.float64]]:
    found = np.outer(s.noise, np.linspace(-1.0, 2.0, vocabulary)) * scale + np.sin(np.arange(vocabulary))
    found[:, 3] = -INF
    return found


def components(s: Sample) -> np.ndarray[Any, np.dtype[np.float64]]:
    found = np.stack([s.rewards, np.round(s.of_sequences)], axis=1)
    found[s.of_sequences > 1.2, 0] = np.nan
    found[s.of_sequences > 1.5, 1] = np.nan
    return found


def some_unknown(s: Sample) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.where(s.of_sequences > 0.9, np.nan, s.rewards)


def masked(values: np.ndarray[Any, np.dtype[np.float64]], s: Sample) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.where(s.mask, values, np.nan)


CLIP = 0.2, 0.2
CASES: dict[str, tuple[Case, ...]] = {
    "segment_sums": (lambda s: (s.returns, s.splits),),
    "segment_means": (lambda s: (s.returns, s.splits), lambda s: (s.returns, s.splits, 1e-8)),
    "segment_extremes": (lambda s: (s.returns, s.splits),),
    "spread": (lambda s: (s.rewards, s.splits),),
    "kept_splits": (lambda s: (s.splits, s.mask),),
    "mean": (lambda s: (s.returns,), lambda s: (s.x,)),
    "variance": (lambda s: (s.returns, 0), lambda s: (s.returns + 1e4, 1)),
    **dict.fromkeys(("k1", "k2", "k3", "absolute"), (lambda s: (s.x,), lambda s: (-s.x * 1e-7,))),
    "bounded": (lambda s: (s.x, 0.1),),
    "low_var_kl": (lambda s: (s.x,), lambda s: (s.x, INF, 10.0), lambda s: (-s.x, 2.0, INF)),
    "bias_corrected_k3": (lambda s: (s.ref - s.logprob, s.x),),
    "penalty": tuple(
        lambda s, kind=kind: (s.x, kind)
        for kind in ("k1", "kl", "k2+", "mse", "abs", "k3", "k3+", "low_var_kl", "k1+")
    ),
    "total_variation": (lambda s: (s.logprob - 50.0 * s.mask, s.old), lambda s: (np.minimum(s.logprob, 0.0), s.ref)),
    "binary_kl": (lambda s: (s.old, np.minimum(s.logprob, -1e-3)), lambda s: (s.old, s.old - 1e-4, 0.0)),
    "floored_binary_kl": (lambda s: (s.old, s.logprob), lambda s: (s.old * 10, s.logprob, 1e-4)),
    "jensen_shannon": (lambda s: (s.logprob, s.old), lambda s: (s.old, s.ref)),
    "surrogate_pieces": (lambda s: (s.ratio, s.advantage, *CLIP, 3.0),),
    "surrogate_of_ratio": (lambda s: (s.ratio, s.advantage, *CLIP), lambda s: (s.ratio, s.advantage, 0.1, 0.3, 3.0)),
    "surrogate_loss": (lambda s: (s.x, s.advantage, 0.2, 0.28, 3.0), lambda s: (s.x, s.advantage, *CLIP)),
    "dual_clip_only_loss": (lambda s: (s.ratio, s.advantage, 1.5),),
    "delta_clamped_loss": (lambda s: (s.ratio, s.advantage, *CLIP, 2.0), lambda s: (s.ratio, s.advantage, *CLIP, 1.1)),
    "binds": (lambda s: (s.ratio, s.advantage, *CLIP), lambda s: (s.ratio, s.advantage, 0.1, 0.4)),
    "binds_below": (lambda s: (s.ratio, s.advantage, 0.2),),
    "binds_above": (lambda s: (s.ratio, s.advantage, 0.2),),
    "dual_binds": (lambda s: (s.ratio, s.advantage, 0.2, 1.25), lambda s: (s.ratio, s.advantage, 0.2, 3.0)),
    "outside": (lambda s: (s.ratio, *CLIP),),
    "cispo_loss": (lambda s: (s.ratio, s.advantage, s.logprob, 1.0, 0.28),),
    "cispo_capped_loss": (lambda s: (s.ratio, s.advantage, s.logprob, 1.1),),
    "cispo_capped": (lambda s: (s.ratio, s.advantage, 1.1),),
    "reinforce_loss": (lambda s: (s.logprob, s.advantage),),
    "dro_loss": (lambda s: (s.logprob, s.x, s.advantage, 0.5),),
    "sapo_loss": (lambda s: (s.ratio, s.advantage, 1.0, 1.05),),
    "sequence_log_ratio": (lambda s: (s.x, s.splits), lambda s: (s.x * 20, s.splits, 0.5)),
    "summed_log_ratio": (lambda s: (s.x, s.splits),),
    "pessimistic_log_ratio": (lambda s: (s.x, s.advantage, 0.2, 0.4),),
    "geometric_mean_loss": (
        lambda s: (s.x, s.advantage, s.splits, 0.2, 0.4),
        lambda s: (s.x, s.advantage, s.splits, 0.2, 0.2, 0.0),
    ),
    "geometric_weight": (lambda s: (s.weight * s.mask, s.splits),),
    "log_ratio_outside": (lambda s: (s.x, 0.2, 0.2),),
    "vespo_weight": (
        lambda s: (s.x, s.of_sequences, s.splits, (2.0, 3.0), (3.0, 2.0)),
        lambda s: (s.x, s.of_sequences, s.splits, (2.0, 3.0), (0.0, 2.0), s.weight * s.mask),
    ),
    "luspo_losses": (lambda s: (s.rewards, s.splits),),
    "over_tokens": (lambda s: (s.of_sequences, s.splits),),
    "within_total_variation": (lambda s: (s.logprob, s.old, s.advantage, 0.05, 0.1),),
    "within_binary_kl": (lambda s: (np.minimum(s.logprob, -1e-9), s.old, s.advantage, 0.01, 0.02),),
    "dppo_loss": (lambda s: (s.ratio, s.advantage, s.logprob, s.mask, 1.3),),
    "dppo_capped": (lambda s: (s.ratio, s.mask, 1.1),),
    "kept_ratio_loss": (lambda s: (s.x, s.advantage, s.mask, 1e-3),),
    "covariances": (lambda s: (s.logprob, s.advantage),),
    "clip_cov_candidates": (lambda s: (s.noise, s.mask, -0.5, 0.7),),
    "clip_cov_number": (lambda _: (10_000, 40, 2e-4), lambda _: (100, 40, 2e-4), lambda _: (100, 0, 0.1)),
    "clip_cov_loss": (lambda s: (s.ratio, s.advantage, *CLIP, s.mask),),
    "kl_cov_selected": (lambda s: (np.round(s.noise, 1), 0.25), lambda s: (s.noise, 2e-4)),
    "kl_cov_loss": (lambda s: (s.x, s.advantage, s.mask, 1.5),),
    "aggregated": (
        lambda s: (s.rewards, s.of_sequences),
        lambda s: (np.where(s.counts > 0, s.rewards, np.nan), (s.counts > 0) / 3.0),
    ),
    "token_mean": (lambda s: (s.counts,), lambda s: (s.counts, 37.0)),
    "token_sum": (lambda s: (s.counts,),),
    "sequence_mean_token_sum": (lambda s: (s.counts,), lambda s: (s.counts, 9.0)),
    "sequence_mean_token_sum_norm": (lambda s: (s.counts, 4096.0), lambda s: (s.counts, 12.0, 9.0)),
    "sequence_mean_token_mean": (lambda s: (s.counts,), lambda s: (s.counts, 9.0, 1e-8)),
    "prompt_mean": (lambda s: (s.counts, s.labels),),
    "window_token_mean": (lambda s: (s.counts, 37.0, 2, 0.5), lambda s: (s.counts, 0.0)),
    "group_deviation": (
        lambda s: (s.returns**2, np.arange(len(s.returns)) % 3, 1),
        lambda s: (s.returns**2, s.mask.astype(int), 0),
    ),
    "grpo_advantage": (lambda s: (s.rewards, np.abs(s.of_sequences), 1e-4),),
    "rloo_advantage": (lambda s: (s.of_sequences, s.counts),),
    "grpo": (lambda s: (s.rewards, s.labels), lambda s: (some_unknown(s), s.labels, {"ddof": 0, "eps": 1e-4, "singles": "zero"})),
    "grpo_batch": (lambda s: (s.rewards, s.labels), lambda s: (some_unknown(s), s.labels, {"ddof": 0})),
    "dr_grpo": (lambda s: (s.rewards, s.labels), lambda s: (some_unknown(s), s.labels, {"singles": "zero"})),
    "rloo": (lambda s: (s.rewards, s.labels), lambda s: (some_unknown(s), s.labels, {"singles": "zero"})),
    "leave_one_out": (lambda s: (s.rewards, s.labels), lambda s: (some_unknown(s), s.labels, {"eps": 1e-3})),
    "opo": (lambda s: (s.rewards, s.counts + 1, s.labels),),
    "gpg": (lambda s: (s.rewards, s.labels), lambda s: (s.rewards * 0.0, s.labels, {"f_norm": 2.0})),
    "maxrl": (
        lambda s: (np.abs(s.rewards), s.labels),
        lambda s: (np.abs(s.rewards), s.labels, {"eps": 0.0, "singles": "zero"}),
    ),
    "grpo_pass_k": (lambda s: (s.rewards, s.labels), lambda s: (some_unknown(s), s.labels, {"scaled": False})),
    "standardised": (lambda s: (s.rewards,), lambda s: (some_unknown(s), {"ddof": 0, "eps": 0.1})),
    "decoupled": (
        lambda s: (components(s), s.labels, np.array([1.0, 0.5])),
        lambda s: (components(s), s.labels, np.array([1.0, 0.5]), {"eps": 1e-4, "singles": "zero"}),
    ),
    "group": (lambda s: (s.rewards, s.labels), lambda s: (some_unknown(s), s.labels)),
    "discounted_sums": tuple(lambda s, g=g: (s.returns, s.splits, g) for g in (0.0, 0.9, 1.0)),
    "gae_advantage": (lambda s: (s.returns, s.value, s.splits, 0.99, 0.95), lambda s: (s.returns, s.value, s.splits, 1.0, 1.0)),
    "gae_skipping": (lambda s: (masked(s.returns, s), masked(s.value, s), s.mask, s.splits, 0.99, 0.95),),
    "gae_through": (lambda s: (masked(s.returns, s), masked(s.value, s), s.mask, s.splits, 0.9, 0.95),),
    "remax": (lambda s: (s.returns, s.rewards, s.splits),),
    "token_energy": (lambda s: (s.old, np.exp(2 * s.old), s.splits), lambda s: (s.old, np.exp(s.old), s.splits, s.weight)),
    "optimal_token_baseline": (
        lambda s: (s.returns, np.abs(s.noise), s.splits, s.labels),
        lambda s: (s.returns, np.abs(s.noise), s.splits, s.labels * 0, 1e-6),
        lambda s: (s.returns, np.abs(s.noise), s.splits, s.labels % 2, 1e-8, 2 * references_place(s)),
    ),
    "whiten": (lambda s: (s.returns,), lambda s: (s.returns, {"ddof": 0, "shift": False})),
    "whiten_floored": (lambda s: (s.returns,), lambda s: (s.returns * 0.0 + 3.0, {"ddof": 1})),
    "reinforce_plus_plus": (lambda s: (s.returns, s.splits, 0.95),),
    "reinforce_plus_plus_baseline": (lambda s: (s.rewards, s.labels, s.splits),),
    "weighted_reward": (lambda s: (components(s), np.array([1.0, -0.3])),),
    "reward_at_end": (lambda s: (s.rewards, s.splits),),
    "less_penalty": (lambda s: (s.returns, s.x, 0.05),),
    "penalty_mean": (lambda s: (s.x, s.splits),),
    "adaptive_coef": (lambda _: (0.2, 7.0, 6.0, 256, 10_000.0), lambda _: (0.2, 60.0, 6.0, 256, 10_000.0)),
    "entropy": (lambda s: (rows(s),), lambda s: (rows(s, 5, 1e3).astype(np.float32), 0.7)),
    "logit_sums": (lambda s: (rows(s),), lambda s: (rows(s, 5, 30.0), 2.0)),
    "log_normaliser": (lambda s: (rows(s),),),
    "entropy_of": (lambda s: (rows(s),),),
    "merged": (lambda s: (rows(s),), lambda s: (rows(s, 4, 300.0),)),
    "sampled_entropy": (lambda s: (s.logprob, s.x),),
    "high_entropy": (lambda s: (np.round(np.abs(s.noise), 1), 0.75),),
    "token_weights": (lambda s: (s.x,), lambda s: (s.x, INF)),
    "sequence_weights": (lambda s: (s.x, s.splits), lambda s: (s.x, s.splits, 0.5)),
    "geometric_weights": (lambda s: (s.x, s.splits),),
    "truncated": (lambda s: (s.weight, 1.2), lambda s: (s.weight, 1.2, 0.8)),
    "dropped_outside": (lambda s: (s.weight, 0.8, 1.2), lambda s: (masked(s.weight, s), 0.8, 1.2)),
    "outside_bounds": (lambda s: (s.weight, 0.8, 1.2),),
    "normalised": (lambda s: (s.weight, 0.7), lambda s: (s.weight, 0.0)),
    "effective_share": (lambda s: (s.weight,), lambda s: (s.weight, 1.1, 1e-8)),
    "weight_deviation": (lambda s: (s.weight,), lambda s: (s.weight, 1.1)),
    "chi_squared_tokens": (lambda s: (s.x,), lambda s: (s.x * 1e-6, 1.0)),
    "chi_squared_sequences": (lambda s: (s.x, s.splits),),
    "log_perplexity": (lambda s: (s.logprob, s.splits),),
    "probability_change": (lambda s: (s.logprob, s.old),),
    "statistic": tuple(
        lambda s, over=over, kind=kind: (s.x, s.splits, over, kind)
        for over in ("token", "seq_sum", "seq_mean", "seq_max")
        for kind in ("k1", "k2", "k3")
    ),
    "kept": (lambda s: (s.x, 0.1, -0.1), lambda s: (s.x, 0.1)),
    "kept_tokens": (
        lambda s: (s.x, s.splits, "token", "k1", (-0.15, 0.15)),
        lambda s: (s.x, s.splits, "seq_mean", "k3", (-INF, 0.03)),
        lambda s: (s.x, s.splits, "seq_max", "k2", (-INF, 0.03)),
    ),
    "engine_gate": tuple(lambda s, kind=kind: (s.old, np.minimum(s.logprob, 0.0), kind) for kind in ("ratio", "binary_kl", "tv")),
    "off_policy_kept": (lambda s: (masked(s.x, s), s.of_sequences, s.splits, 0.02),),
    "clipped_value_errors": (lambda s: (s.value, s.value + 0.4 * s.noise, s.returns, 0.2),),
    "value_loss": (lambda s: (s.value, s.value + 0.4 * s.noise, s.returns, 0.2), lambda s: (s.value, s.returns, s.returns)),
    "value_clipped": (lambda s: (s.value, s.value + 0.4 * s.noise, s.returns, 0.2),),
    "value_moved": (lambda s: (s.value, s.value + 0.4 * s.noise, 0.2),),
    "explained_variance": (lambda s: (s.value, s.returns), lambda s: (s.returns + 0.1 * s.noise, s.returns, 0, 0.0)),
    "log_sigmoid": (lambda s: (s.returns,), lambda s: (s.x * 40,)),
    "preference_logits": (lambda s: (s.logprob, s.old, s.ref, s.old + s.noise),),
    "implicit_reward": (lambda s: (s.logprob, s.ref, 0.1),),
    "dpo_loss": (lambda s: (s.returns, 0.1), lambda s: (s.returns, 5.0, 0.1)),
    "robust_dpo_loss": (lambda s: (s.returns, 0.1, 0.2),),
    "ipo_loss": (lambda s: (s.returns, 0.1),),
    "hinge_loss": (lambda s: (s.returns, 0.7),),
    "prefers_chosen": (lambda s: (np.round(s.value), np.round(s.returns)),),
    "mean_at_n": (lambda s: (s.rewards if len(s.rewards) else np.ones(1),),),
    "std_at_n": (lambda s: (s.rewards if len(s.rewards) else np.ones(1),),),
    "sizes_of_subsets": tuple(lambda _, n=n: (n,) for n in range(40)),
    "pass_at_k": tuple(lambda s, k=k: (s.counts + k, s.counts, k) for k in (1, 2, 5)),
    "pass_hat_k": tuple(lambda s, k=k: (s.counts + k, s.counts // 2, k) for k in (1, 2, 3)),
}  # fmt: skip
ELSEWHERE = {"draws", "best_of_k", "worst_of_k", "majority_of_k"}
"""Whose stream of random numbers is the formula: test_validation.py."""


def references_place(s: Sample) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.arange(s.splits[-1]) - np.repeat(s.splits[:-1], s.counts)


def _reference(name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(references_batch, name, None) or getattr(references_tokens, name)
    return found


def _halves(logits: Any, function: Callable[[Any], Any]) -> Any:
    return function(entropy.merged(*(entropy.logit_sums(half) for half in (logits[:, :2], logits[:, 2:]))))


def _group(rewards: Any, labels: Any) -> list[Any]:
    found = groups.group(rewards, labels)
    others = np.where(np.isnan(rewards), np.nan, found.others(rewards))
    return [found.sizes, found.mean, found.squares, found.ranked(0), found.ranked(1), others]


def _reference_group(rewards: Any, labels: Any) -> list[Any]:
    found = references_batch.group(rewards, labels)
    found[-1] = [NAN if own.unknown else one for own, one in zip(rewards, found[-1], strict=True)]
    return found


CALLS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "group": (_group, _reference_group),
    "merged": (lambda logits: _halves(logits, lambda sums: sums), references_batch.logit_sums),
    "entropy_of": (lambda logits: _halves(logits, entropy.entropy_of), references_batch.entropy),
    "log_normaliser": (lambda logits: _halves(logits, entropy.log_normaliser), references_batch.log_normaliser),
}
"""Formulas whose arguments or results are no arrays."""


def test_every_public_formula_is_tried() -> None:
    assert set(PUBLIC) == set(CASES) | ELSEWHERE


@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("name", CASES)
def test_a_formula_equals_its_reference(name: str, kind: str) -> None:
    formula, reference = CALLS.get(name) or (PUBLIC[name], _reference(name))
    for number, case in enumerate(CASES[name]):
        for seed in range(2):
            given = case(sample(kind, seed))
            settings = given[-1] if isinstance(given[-1], dict) else {}
            arguments = given[:-1] if settings else given
            kept = [np.copy(one) if isinstance(one, np.ndarray) else one for one in arguments]
            found = flat(formula(*arguments, **settings))
            expected = flat(reference(*map(exact, arguments), **{key: exact(one) for key, one in settings.items()}))
            assert len(found) == len(expected)
            off = [
                (i, one, getattr(at, "value", at))
                for i, (one, at) in enumerate(zip(found, expected, strict=True))
                if not agrees(one, at)
            ]
            assert not off, (name, kind, number, off[:3])
            for before, after in zip(kept, arguments, strict=True):
                assert np.array_equal(before, after, equal_nan=isinstance(after, np.ndarray) and after.dtype.kind == "f")


def test_validation_is_drawn_from_one_seed() -> None:
    assert np.array_equal(validation.draws(4, 2), validation.draws(4, 2))

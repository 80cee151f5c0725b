"""SkyRL's recipes of policy losses, the KL term and clipped shares: each is chosen by several of its settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from rl_doctor.analyzer.dialects.recipes import CELL, Argument, Fold, Of, Recipe, Stage, of

SET: Final = "native.trainer.algorithm."
_OFF: Final = f"{SET}off_policy_correction."
_MINIBATCH: Final = ("rollout_step", "epoch", "minibatch")
MEANS: Final = (Stage(("microbatch",), "mean"), Stage(("rank",), "mean"))
TOKENS: Final = Fold(apart=CELL, stages=MEANS)
"""Token means of micro-batches, averaged over these, ranks, mini-batches and epochs."""
ROWS: Final = Fold(row="mean", empty=True, apart=CELL, stages=MEANS)
"""The same of the means of rows, one without a token as 0."""
CORRECTION: Final[Mapping[str, Argument]] = {
    "tis": f"{_OFF}tis_ratio_type?", "token_cap": f"{_OFF}token_tis_ratio_clip_high?",
    "sequence_cap": f"{_OFF}sequence_tis_ratio_clip_high?", "sequence_mask": f"{_OFF}sequence_mask_metric?",
    "geometric_low": f"{_OFF}geo_mask_low?", "geometric_high": f"{_OFF}geo_mask_high?",
    "product_low": f"{_OFF}product_mask_low?", "product_high": f"{_OFF}product_mask_high?",
    "outlier_low": f"{_OFF}outlier_token_is_threshold_low?", "outlier_high": f"{_OFF}outlier_token_is_threshold_high?",
    "token_low": f"{_OFF}token_mask_is_threshold_low?", "token_high": f"{_OFF}token_mask_is_threshold_high?",
}  # fmt: skip
_PPO: Final[Mapping[str, Argument]] = {
    "low": f"{SET}eps_clip_low|config.clip_low",
    "high": f"{SET}eps_clip_high|config.clip_high",
}
KINDS: Final[Mapping[str, Mapping[str, Argument]]] = {
    "regular": _PPO,
    "dual_clip": {**_PPO, "dual": f"{SET}clip_ratio_c"},
    "gspo": _PPO,
    "cispo": {
        "cispo_low": f"{SET}cispo.cispo_eps_clip_low", "cispo_high": f"{SET}cispo.cispo_eps_clip_high",
        "anchor": f"{SET}cispo.cispo_anchor",
    },
    "sapo": {"positive": f"{SET}sapo.tau_pos", "negative": f"{SET}sapo.tau_neg"},
    "rollout_is": _PPO,
    "dppo": {
        "dppo": f"{SET}dppo.dppo_type", "delta_low": f"{SET}dppo.delta_low", "delta_high": f"{SET}dppo.delta_high",
    },
    "importance_sampling": {},
}  # fmt: skip
"""Settings that each policy loss depends on. clip_cov draws tokens at random, kl_cov picks the largest of a micro-batch."""
ESTIMATOR: Final = "kl_estimator_type|config.kl_estimator"
OLD: Final = {"first": "ref_logprob", "second": "old_logprob"}
NEW: Final = {"first": "ref_logprob", "second": "logprob"}
_ALWAYS: Final[Mapping[str, Argument | tuple[Argument, ...]]] = {}


def when_set(**settings: Argument | tuple[Argument, ...]) -> dict[str, tuple[Argument, ...]]:
    """Settings of the algorithm with the values that they must have, for ``Recipe.when``."""
    return {f"{SET}{name}": value if isinstance(value, tuple) else (value,) for name, value in settings.items()}


def _reductions(value: Of) -> Iterator[tuple[str, Of, dict[str, Any]]]:
    """The names of ``loss_reduction`` with what is averaged, and in which stages."""
    yield "token_mean", value, {"fold": Fold(apart=_MINIBATCH)}
    yield "sequence_mean", value, {"fold": Fold(row="mean", empty=True, apart=_MINIBATCH)}
    per_length = of("times", of=value, over=f"{SET}max_seq_len")
    yield "seq_mean_token_sum_norm", per_length, {"fold": Fold(row="sum", empty=True, apart=_MINIBATCH)}
    yield "token_mean_legacy", value, {"fold": TOKENS}
    yield "prompt_mean", value, {"fold": Fold(row="mean"), "per": "group"}


def losses(beside: tuple[Recipe, ...] = (), when: Mapping[str, Argument | tuple[Argument, ...]] = _ALWAYS) -> Iterator[Recipe]:
    """The policy loss of each type and reduction, with the terms ``beside`` that are added, under the settings ``when``."""
    as_given: dict[str, tuple[Argument, ...]] = {f"{SET}advantage_batch_normalize?": (None, False)}
    for kind, settings in KINDS.items():
        loss = of("skyrl_loss", kind=kind, **settings, **({} if kind == "importance_sampling" else CORRECTION))
        for reduction, value, stages in _reductions(loss):
            held = when_set(policy_loss_type=kind, loss_reduction=reduction, **when) | as_given
            yield Recipe(value, beside=beside, when=held, **stages)


def estimates(columns: Mapping[str, str]) -> Iterator[tuple[str, Of]]:
    """Names of ``kl_estimator_type`` with what is averaged; only k3 is clamped."""
    yield "k3", of("estimate", kind="k3", clamp=20.0, most=10.0, **columns)
    for kind in ("k1", "k2", "abs"):
        yield kind, of("estimate", kind=kind, **columns)


def kl(columns: Mapping[str, str], fold: Fold) -> tuple[Recipe, ...]:
    """The KL estimate of each type, of two columns, in the stages of ``fold``."""
    return tuple(Recipe(value, fold, when=when_set(**{ESTIMATOR: kind}), unit="nat") for kind, value in estimates(columns))


def total() -> Iterator[Recipe]:
    """The policy loss and the KL term, which each rank averages over its rows."""
    plain: dict[str, Argument | tuple[Argument, ...]] = {"use_entropy_loss?": (None, False)}
    yield from losses((), {**plain, "use_kl_loss": False})
    of_ranks = Fold(row="mean", empty=True, apart=("rank", *_MINIBATCH), stages=(Stage(("rank",), "mean"),))
    for kind, value in estimates(NEW):
        term = Recipe(of("times", of=value, weight=f"{SET}kl_loss_coef|config.kl_coef"), of_ranks)
        yield from losses((term,), {**plain, "use_kl_loss": True, ESTIMATOR: kind})


def clip_shares() -> Iterator[Recipe]:
    """What each type of policy loss counts as clipped."""
    for kind, settings in KINDS.items():
        if kind not in ("sapo", "importance_sampling"):
            yield Recipe(of("skyrl_clipped", kind=kind, **settings), TOKENS, when=when_set(policy_loss_type=kind))
    for kind in ("sapo", "kl_cov", "cross_entropy"):
        yield Recipe(of("constant", value=0.0), TOKENS, when=when_set(policy_loss_type=kind))

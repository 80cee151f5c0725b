"""What canonical metrics are means of, as recipes: where a loop logs one under its own name, it has mistakes like any other."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from rl_doctor.analyzer.dialects.recipes import Argument, Fold, Of, Recipe, Row, of
from rl_doctor.analyzer.recompute.configured import holds, resolved, setting
from rl_doctor.analyzer.recompute.recipes import logged
from rl_doctor.analyzer.recompute.registry import Logged
from rl_doctor.schema import RunInfo

_CLAMP: Final = "config.log_ratio_clamp?"
_LOW, _HIGH = "config.clip_low", "config.clip_high"
_KINDS: Final = ("k1", "k2", "k3", "abs")
_WEIGHT: Final = "is_weight"
_ROWS: Final[Mapping[str, Row]] = MappingProxyType(
    {"token-mean": "tokens", "seq-mean-token-mean": "mean", "seq-mean-token-sum": "sum"}
)
"""Loss aggregation -> what a sequence adds."""


def _reference(kind: Argument) -> Of:
    """The estimate of KL(new||ref); only k3 has clamps."""
    clamped = {"clamp": "config.kl_input_clamp?", "most": "config.kl_output_clamp?"} if kind == "k3" else {}
    return of("estimate", first="ref_logprob", second="logprob", kind=kind, **clamped)


def _when(**settings: tuple[Argument, ...]) -> Mapping[str, tuple[Argument, ...]]:
    return {f"config.{name}": values for name, values in settings.items()}


def _ratios() -> Iterator[tuple[str, Recipe]]:
    yield "policy.ratio_mean", Recipe(of("ratio", clamp=_CLAMP))
    for kind in _KINDS:
        yield f"policy.kl_old_{kind}", Recipe(of("estimate", kind=kind, clamp=_CLAMP), unit="nat")
        yield f"ref.kl_{kind}", Recipe(_reference(kind), unit="nat")
        yield "ref.kl", Recipe(_reference(kind), when=_when(kl_estimator=(kind,)), unit="nat")


def _clips() -> Iterator[tuple[str, Recipe]]:
    for name, bounds in (("", {"low": _LOW, "high": _HIGH}), ("_low", {"low": _LOW}), ("_high", {"high": _HIGH})):
        side = {"side": name.removeprefix("_")} if name else {}
        yield f"policy.clip_frac{name}", Recipe(of("binds", low=_LOW, high=_HIGH, clamp=_CLAMP, **side))
        yield f"policy.outside_frac{name}", Recipe(of("outside", clamp=_CLAMP, **bounds))
    yield "policy.clip_frac_dual", Recipe(of("dual_binds", clamp=_CLAMP, low=_LOW, high=_HIGH, dual="config.dual_clip"))


def _columns() -> Iterator[tuple[str, Recipe]]:
    for name, column, unit in (
        ("policy.entropy", "entropy", "nat"), ("policy.old_entropy", "old_entropy", "nat"),
        ("policy.mean_logprob", "logprob", "nat"), ("policy.mean_old_logprob", "old_logprob", "nat"),
        ("adv.mean", "advantage", "1"), ("return.mean", "return", "reward"), ("value.mean", "value", "reward"),
    ):  # fmt: skip
        yield name, Recipe(of("column", name=column), unit=unit)
    yield "adv.abs_mean", Recipe(of("abs", name="advantage"))
    yield "adv.sequence_mean", Recipe(of("column", name="advantage"), Fold("mean"))
    for prefix, column, unit in (("adv", "advantage", "1"), ("return", "return", "reward")):
        yield f"{prefix}.std", Recipe(of("column", name=column), statistic="std", unit=unit)
    yield "value.loss", Recipe(of("value_error", clip="config.value_clip"), factor=0.5)
    yield "value.clip_frac", Recipe(of("value_clipped", clip="config.value_clip"))


def _rollouts() -> Iterator[tuple[str, Recipe]]:
    for prefix, column in (("reward.", "reward"), ("reward.score_", "score")):
        for statistic in ("mean", "std", "min", "max"):
            yield f"{prefix}{statistic}", Recipe(of("row", name=column), level="rollout", statistic=statistic, unit="reward")
    yield "length.mean", Recipe(of("row", name="response_length"), level="rollout", unit="tokens")


def _losses() -> Iterator[tuple[str, Recipe]]:
    """The policy loss, and the whole of it, under each aggregation; weighted where the run has weights (see ``_weighted``)."""
    surrogate = of("surrogate", low=_LOW, high=_HIGH, dual="config.dual_clip?", clamp=_CLAMP)
    entropy = of("scaled", value=of("column", name="entropy"), factor="config.entropy_coef", sign=-1.0)
    with_entropy = of("sum", first=surrogate, second=entropy)
    for aggregation, row in _ROWS.items():
        yield f"policy.loss_pg_{aggregation.replace('-', '_')}", Recipe(surrogate, Fold(row))
        when = _when(loss_agg=(aggregation,))
        yield "policy.loss_pg", Recipe(surrogate, Fold(row), when=when)
        yield "policy.loss_total", Recipe(with_entropy, Fold(row), when={**when, "config.kl_in_reward": (True,)})
        for kind in _KINDS:
            penalty = of("scaled", value=_reference(kind), factor="config.kl_coef")
            with_penalty = of("sum", first=with_entropy, second=penalty)
            told = {**when, "config.kl_in_reward?": (False, None), "config.kl_estimator": (kind,)}
            yield "policy.loss_total", Recipe(with_penalty, Fold(row), when=told)


RECIPES: Final[tuple[tuple[str, Recipe], ...]] = (*_ratios(), *_clips(), *_columns(), *_rollouts(), *_losses())
"""Canonical metric -> what it is; of several the first whose settings hold."""


def canonical_keys(names: Collection[str], info: RunInfo, columns: Collection[str]) -> Iterator[Logged]:
    """The canonical metrics of these names that are means over parts of a step, as keys.

    Args:
        names: of canonical metrics that the run logged.
        info: the run's description.
        columns: those that the run has.
    """
    done: set[str] = set()
    for name, recipe in RECIPES:
        if name not in names or name in done or not all(holds(setting(key, info), told) for key, told in recipe.when.items()):
            continue
        value = _weighted(recipe.value) if _WEIGHT in columns else recipe.value
        made = resolved(replace(recipe, value=value), info)
        if made is not None:
            done.add(name)
            yield logged(name, name, made)


def _weighted(value: Of) -> Of:
    """A quantity whose policy loss is times the weights of the run."""
    if value.name == "surrogate":
        return of("product", left=value, right=of("column", name=_WEIGHT))
    return replace(
        value, arguments=tuple((name, _weighted(one) if isinstance(one, Of) else one) for name, one in value.arguments)
    )

"""How AReaL arrives at its numbers: what its statistics tracker averages, and over which tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, Literal

from rl_doctor.analyzer.dialects.recipes import UNDIVIDED, Argument, Definition, Fold, Of, Recipe, absent, exact, of
from rl_doctor.analyzer.dialects.registry import Name

When = Mapping[str, tuple[Argument, ...]]
End = Literal["avg", "min", "max"]
Case = tuple[Of, When]
"""A quantity, and the settings with which it is the trainer's."""

ACTOR: Final = "native.actor."
CELLS: Final = ("rank", "epoch", "minibatch", "microbatch")
ENDS: Final[Mapping[End, Literal["mean", "min", "max"]]] = {"avg": "mean", "min": "min", "max": "max"}
_TOTAL: Final = Fold(divisor=UNDIVIDED)

ALL_TOKENS: Final[When] = {ACTOR + "m2_threshold?": (None,)}
"""M2PO drops tokens by their rank within a micro-batch, which sums per sequence do not tell."""
PLAIN: Final[When] = {**ALL_TOKENS, ACTOR + "rejection_sampling.level?": (None,)}
REJECTING: Final[When] = {**ALL_TOKENS, ACTOR + "rejection_sampling.level": ("token", "sequence")}
_SAPO: Final[When] = {ACTOR + "use_sapo_loss?": (True,)}
_PPO: Final[When] = {ACTOR + "use_sapo_loss?": (None, False)}

_REJECTION: Final = {
    **{name: f"{ACTOR}rejection_sampling.{name}" for name in ("level", "action", "metric", "agg", "upper")},
    "lower": f"{ACTOR}rejection_sampling.lower?",
}
KEPT: Final = of("rejection_kept", **_REJECTION)
WEIGHT: Final = of("rejection_weight", **_REJECTION)
CHANGED: Final = of("rejection_changed", **_REJECTION)

_LOW: Final = "config.clip_low|native.actor.eps_clip"
_HIGH: Final = "native.actor.eps_clip_higher|config.clip_high|native.actor.eps_clip"
_DUAL: Final = "config.dual_clip|native.actor.c_clip?"
_SEQUENCE: Final = {"x": of("row_average", of=of("log_ratio"))}
_MEAN_ADVANTAGE: Final = {"advantage": of("row_average", of=of("column", name="advantage"))}
_KEPT_SEQUENCE: Final = {"x": of("row_average", of=of("part", of=of("log_ratio"), where=KEPT))}
_KEPT_ADVANTAGE: Final = {"advantage": of("row_average", of=of("part", of=of("column", name="advantage"), where=KEPT))}
"""Of a sequence of which single tokens are rejected, the means over the others."""
_TEMPERATURES: Final = {"positive": ACTOR + "sapo_tau_pos", "negative": ACTOR + "sapo_tau_neg"}

SAMPLER: Final[tuple[tuple[str, When], ...]] = (
    ("rollout_logprob", {ACTOR + "use_decoupled_loss": (True,)}),
    ("old_logprob", {ACTOR + "use_decoupled_loss": (False,)}),
)
"""The policy that the trainer calls old: the engine's where the loss is decoupled, else the one that the ratio divides by."""


def _levels() -> Iterator[tuple[bool, Mapping[str, Of], Mapping[str, Of], When]]:
    """Whether tokens are rejected, the log-ratio and the advantage of the level that ratios are taken at, and when that is so."""
    for rejects, when in ((False, PLAIN), (True, REJECTING)):
        yield rejects, {}, {}, {**when, ACTOR + "importance_sampling_level": ("token",)}
        by_sequence = {**when, ACTOR + "importance_sampling_level": ("sequence",)}
        if rejects:
            single = {
                **by_sequence,
                ACTOR + "rejection_sampling.level": ("token",),
                ACTOR + "rejection_sampling.action": ("mask",),
            }
            yield rejects, _KEPT_SEQUENCE, _KEPT_ADVANTAGE, single
        yield rejects, _SEQUENCE, _MEAN_ADVANTAGE, by_sequence


def ratios() -> Iterator[Case]:
    """The ratio, 0 where a token is rejected."""
    for rejects, x, _, when in _levels():
        ratio = of("ratio", **x)
        yield (of("product", left=ratio, right=KEPT) if rejects else ratio), {**when, **_PPO}
        yield ratio, {**when, **_SAPO}


def losses() -> Iterator[Case]:
    """The loss per token, times the weight of rejection."""
    for rejects, x, advantage, when in _levels():
        loss = of("surrogate", low=_LOW, high=_HIGH, dual=_DUAL, **x, **advantage)
        yield (of("product", left=loss, right=WEIGHT) if rejects else loss), {**when, **_PPO}
        yield of("sapo", **_TEMPERATURES, **x, **advantage), {**when, **_SAPO}


def clipped(*, dual: bool = False) -> Iterator[Case]:
    """Whether a token is clipped; one that is rejected is not."""
    for rejects, x, advantage, when in _levels():
        flags = (
            of("dual_binds", low=_LOW, dual=_DUAL, **x, **advantage)
            if dual
            else of("binds", low=_LOW, high=_HIGH, **x, **advantage)
        )
        yield (of("product", left=flags, right=KEPT) if rejects else flags), {**when, **_PPO}
        yield of("constant", value=0.0), {**when, **_SAPO}


def sampler(quantity: str, side: str, **arguments: Argument) -> Iterator[Case]:
    """A quantity of the policy that the trainer calls old."""
    for column, when in SAMPLER:
        yield of(quantity, **{side: column}, **arguments), {**when, **ALL_TOKENS}


def gates() -> tuple[tuple[str, str, tuple[Case, ...]], ...]:
    """What SAPO records of its gates."""
    found: list[tuple[str, str, list[Case]]] = [
        ("sapo_soft_gate", "the gate that goes with the sign of A", []),
        ("sapo_scaled_gate_pos", "4 / tau sigmoid(tau (r - 1)), tau_pos", []),
        ("sapo_scaled_gate_neg", "4 / tau sigmoid(tau (r - 1)), tau_neg", []),
    ]  # fmt: skip
    for _, x, advantage, when in _levels():
        found[0][2].append((of("sapo_soft_gate", **_TEMPERATURES, **x, **advantage), when))
        for at, tau in ((1, "sapo_tau_pos"), (2, "sapo_tau_neg")):
            found[at][2].append((of("sapo_gate", tau=ACTOR + tau, **x), when))
    return tuple((key, formula, tuple(cases)) for key, formula, cases in found)


def tracked(  # noqa: PLR0913 - every ingredient of the statistics of a key
    native: str, formula: str, cases: Iterable[Case], *, unit: str = "1", metrics: Mapping[End, str] | None = None,
    where: Iterable[Case] = (), over: str = "n_valid_tokens", factor: float = 1.0, note: str = "",
) -> tuple[Name, ...]:  # fmt: skip
    """A value per token and its keys: the mean over all ranks, mini-batches and micro-batches at once, and its extremes.

    Args:
        native: key without its ending.
        formula: of one token.
        cases: what is averaged.
        unit: of the value.
        metrics: ending of the key -> canonical metric.
        where: further conditions of tokens, each with the settings that it goes with; a case is taken with each of them.
        over: what the tokens are called.
        factor: of the canonical metric.
        note: what the reader must know of the mean.
    """
    conditions: tuple[tuple[Of | None, When], ...] = tuple(where) or ((None, {}),)
    recipes = [
        Recipe(value, unit=unit, where=condition, when={**when, **more})
        for value, when in cases
        for condition, more in conditions
        if all(when.get(name, values) == values for name, values in more.items())
    ]
    found = []
    for end, statistic in ENDS.items():
        definition = exact(f"{statistic} over {over} of {formula}", *(replace(one, statistic=statistic) for one in recipes))
        metric = (metrics or {}).get(end)
        told = note if end == "avg" else ""
        found.append(Name(f"{native}/{end}", metric, factor=factor if metric else 1.0, note=told, definition=definition))
    return tuple(found)


def counted(native: str, formula: str, cases: Iterable[Case]) -> Name:
    """A number of tokens."""
    return Name(
        native, None, definition=exact(formula, *(Recipe(value, _TOTAL, unit="tokens", when=when) for value, when in cases))
    )


def per_microbatch(formula: str, cases: Iterable[Case], *, unit: str = "1", where: Of | None = None) -> Definition:
    """A mean over the tokens of each micro-batch; the mean over micro-batches, mini-batches and ranks, whatever their size."""
    recipes = (Recipe(value, Fold(apart=CELLS), unit=unit, when=when, where=where) for value, when in cases)
    return exact(f"mean over micro-batches of {formula}", *recipes)


_ONE: Final = of("constant", value=1.0)
_AGED: Final[tuple[tuple[Of, When], ...]] = (
    (of("product", left=of("has_previous"), right=KEPT), {**REJECTING, **_PPO}),
    (of("has_previous"), {**PLAIN, **_PPO}),
    (of("has_previous"), {**ALL_TOKENS, **_SAPO}),
)
STALENESS: Final = "it takes the version of the token before the one that the mask is of: the two are shifted by one"


def staleness(native: str, lag: int, metrics: Mapping[End, str | None]) -> tuple[Name, ...]:
    """How old the policy that sampled is, per micro-batch."""
    found = []
    for end, statistic in ENDS.items():
        value = of("previous_age", lag=float(lag))
        parts = Fold(apart=CELLS, filled=True)
        recipes = (
            Recipe(value, parts, statistic=statistic, where=condition, unit="versions", when=when) for condition, when in _AGED
        )
        age = f"version trained - {lag} - version that sampled the token before"
        formula = f"mean over micro-batches of the {statistic} over kept tokens of ({age})"
        found.append(Name(f"{native}_{end}", metrics.get(end), note=STALENESS, definition=exact(formula, *recipes)))
    return tuple(found)


def aged_tokens(native: str) -> Name:
    """How many tokens that is taken over."""
    fold = Fold(apart=CELLS, divisor=UNDIVIDED, filled=True)
    recipes = (Recipe(_ONE, fold, where=condition, unit="tokens", when=when) for condition, when in _AGED)
    return Name(native, None, definition=exact("mean over micro-batches of their kept tokens with one before", *recipes))


def rows(
    native: str, words: str, values: Iterable[Recipe], *, metrics: Mapping[End, str] | None = None, note: str = ""
) -> tuple[Name, ...]:
    """A value per sequence, and its extremes."""
    values = tuple(values)
    found = []
    for end, statistic in ENDS.items():
        definition = exact(f"{statistic} over {words}", *(replace(one, statistic=statistic) for one in values))
        told = note if end == "avg" else ""
        found.append(Name(f"{native}/{end}", (metrics or {}).get(end), note=told, definition=definition))
    return tuple(found)


_RAW: Final[When] = {ACTOR + "reward_norm?": (None,), ACTOR + "reward_scaling": (1.0,), ACTOR + "reward_bias": (0.0,)}
"""With these settings the reward is the one before it was scaled, except where it is clipped."""


def of_reward(quantity: str, unit: str = "reward", **arguments: Argument) -> tuple[Recipe, ...]:
    """Of the reward before it is scaled and normalised: the score, or the reward where that is the same."""
    score, reward = (Recipe(of(quantity, name=name, **arguments), level="rollout", unit=unit) for name in ("score", "reward"))
    return score, replace(reward, when=_RAW)


def of_correct(how: str) -> tuple[Recipe, ...]:
    """The length of sequences whose reward is above 0, or is not."""
    length = Recipe(of("rows_length"), level="rollout", unit="tokens")
    flags = (one.value for one in of_reward("rows_compared", how=how, bound=0.0))
    score, reward = (replace(length, where=flag) for flag in flags)
    return score, replace(reward, when=_RAW)


def total(recipes: Iterable[Recipe], formula: str, unit: str = "sequences") -> Definition:
    """A sum over sequences."""
    return exact(formula, *(replace(one, statistic="sum", unit=unit) for one in recipes))


_CRITIC_CLIP: Final = "config.value_clip|native.critic.eps_clip"


def of_critic(definition: Definition) -> Definition:
    """A number that the critic's update records, though it is computed from what does not tell that there is a critic."""
    return replace(definition, recipes=tuple(replace(one, beside_columns=("value",)) for one in definition.recipes))


def critic(prefix: str) -> tuple[Name, ...]:
    """What the critic's update records."""
    error = of("scaled", value=of("value_error", clip=_CRITIC_CLIP), factor=0.5)
    clips = of("value_clipped", clip=_CRITIC_CLIP)
    value, old = of("column", name="value"), of("column", name="old_value")
    only: tuple[Case, ...] = ((clips, {}),)
    target = of("column", name="return")
    valid = exact("tokens in the loss mask", Recipe(_ONE, _TOTAL, unit="tokens"))
    return (
        *tracked(f"{prefix}/clipped_new_value", "V", [(value, {})], unit="reward", where=only, over="clipped tokens"),
        *tracked(f"{prefix}/clipped_old_value", "V_old", [(old, {})], unit="reward", where=only, over="clipped tokens"),
        *tracked(f"{prefix}/new_value", "V", [(value, {})], unit="reward", metrics={"avg": "value.mean"}),
        *tracked(f"{prefix}/old_value", "V_old", [(old, {})], unit="reward"),
        *tracked(f"{prefix}/target_value", "R", [(target, {})], unit="reward", metrics={"avg": "return.mean"}),
        *tracked(
            f"{prefix}/critic_loss", "0.5 max((V - G)^2, (clip(V, V_old -+ eps_clip) - G)^2)", [(error, {})],
            metrics={"avg": "value.loss"},
        ),
        *tracked(
            f"{prefix}/clip_ratio", "1[the error of the clipped value is the larger]", only, metrics={"avg": "value.clip_frac"}
        ),
        Name(f"{prefix}/n_valid_tokens", None, definition=of_critic(valid)),
        counted(f"{prefix}/clipped_tokens", "clipped tokens", only),
        Name(f"{prefix}/n_tokens", None, definition=of_critic(UPDATED)),
    )  # fmt: skip


_LENGTHS: Final = Recipe(of("rows_length"), level="rollout", statistic="sum", unit="tokens")
UPDATED: Final = exact("prompt and response tokens of all sequences", _LENGTHS)
WIDTHS: Final = exact("sequences times padded width, of all ranks", replace(_LENGTHS, value=of("rows_width")))
SETTING: Final = absent("is a setting of the run")
SCHEDULED: Final = absent("is set by a schedule")
GRADIENT: Final = absent("needs gradients", "norm before clipping, mean over mini-batches and ranks; NaN where there is none")
APPROXIMATION: Final = absent("what an approximation of the old policy would give is not computed")
ROLLOUTS: Final = absent("counts samples that were rejected before the training as well")
HELD_OUT: Final = absent("the rows that were sampled for evaluation are not recorded")

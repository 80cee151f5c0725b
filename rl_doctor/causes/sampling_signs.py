"""What a difference between engine and trainer is told by: its size, its shape, where it sits, and which side moved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from rl_doctor.causes.registry import Look, Role, Sign
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import found_any, sign
from rl_doctor.rules.spans import pooled

CONSEQUENCES: Final = (
    "rollout-trainer-mismatch", "mismatch-in-some-rows", "unlawful-rollout-logprob", "tokens-contradict-entropy",
    "sequence-weight-collapse", "ratio-saturation", "kl-penalty-dominates", "grad-clipped-always",
    "inert-ratio", "kl-spike", "kl-runaway", "reward-flatline",
    "grad-norm-spike", "mismatch-by-part",
)  # fmt: skip
"""What follows where the logprobs of engine and trainer do not go together."""
GAP: Final = ("rollout-trainer-mismatch", "mismatch-in-some-rows")
"""Rules that find a difference without a shape of its own."""
BY: Final = "mismatch.abs_by."
_LEAST: Final = 50
_TIMES: Final = 4.0
_SIGMAS: Final = 4.0
_REST: Final = 0.05
"""Share of the tokens that must lie elsewhere for a difference to sit somewhere."""
_STILL: Final = 0.05
_ABRUPT: Final = 0.7
_FEW: Final = 3


def some_gap(words: str = "engine and trainer differ by more than rounding") -> Sign:
    """That one of the rules on a difference of no special shape has found something."""
    return found_any(words, *GAP)


def honest(role: Role = "needed", *, wanted: bool = True) -> Sign:
    """That the mean of exp(d) is 1, as far as the tokens tell: the engine reports what it sampled from."""
    words = "the mean of exp(d) is 1" if wanted else "the mean of exp(d) is not 1"
    needs = ("mismatch.exp_mean", "mismatch.exp_std")

    @sign(words, *needs, role=role)
    def look(scene: Scene) -> Look:
        mean, spread = (scene.value(name) for name in needs)
        if math.isnan(mean) or math.isnan(spread):
            return Look(None, words, None, scene.missing(*needs))
        error = spread / math.sqrt(max(scene.count("mismatch.exp_mean"), 1))
        told = f"the mean of exp(d) is {mean:.3f} (95%: {mean - 1.96 * error:.3f} to {mean + 1.96 * error:.3f})"
        return Look((abs(mean - 1.0) <= _SIGMAS * error + 0.002) is wanted, told)

    return look


def _parts(scene: Scene, by: str) -> dict[str, tuple[float, int]]:
    """Mean |d| and tokens of the parts of a slice that hold enough tokens, smallest name first."""
    prefix = f"{BY}{by}."
    found = {name: (value, scene.count(prefix + name)) for name, value in scene.named(prefix).items()}
    kept = {name: item for name, item in found.items() if item[1] >= _LEAST and not math.isnan(item[0])}
    return dict(sorted(kept.items(), key=lambda item: (_number(item[0]), item[0])))


def _number(name: str) -> float:
    try:
        return float(name)
    except ValueError:
        return math.inf


def _mean(parts: Sequence[tuple[float, int]]) -> float:
    total = sum(count for _, count in parts)
    return sum(value * count for value, count in parts) / total if total else math.nan


def split(parts: dict[str, tuple[float, int]], *, ordered: bool) -> tuple[list[str], float, float]:
    """The parts that stand above the others, their mean |d| and that of the others; of ordered ones those from some part on."""
    names = list(parts) if ordered else sorted(parts, key=lambda name: parts[name][0])
    best: tuple[list[str], float, float] = ([], math.nan, math.nan)
    contrast = 0.0
    for cut in range(1, len(names)):
        below, above = ([parts[name] for name in side] for side in (names[:cut], names[cut:]))
        low, high = _mean(below), _mean(above)
        rest = sum(count for _, count in below) / sum(count for _, count in (*below, *above))
        if rest >= _REST and low > 0.0 and high / low > contrast:
            contrast, best = high / low, (names[cut:], high, low)
    return best


def contrast_of(scene: Scene, by: str, *, ordered: bool) -> float:
    """How many times larger the mean |d| is in the parts that stand out; 1 where there is nothing to compare."""
    _, high, low = split(_parts(scene, by), ordered=ordered)
    return high / low if low > 0.0 else 1.0


def concentrated(by: str, what: str, columns: tuple[str, ...], *, ordered: bool = False, role: Role = "needed") -> Sign:
    """That the difference sits in some parts of a slice, and is ``_TIMES`` smaller in the others.

    Args:
        by: a slice, see ``analyzer.slices``.
        what: what its parts are called, for the sign's words: "rank", "length from".
        columns: that the slice needs.
        ordered: the parts are numbers, and those from some number on must stand out.
        role: of the sign.
    """
    plain = what.removesuffix(" from")
    words = f"the difference begins at some {plain}" if ordered else f"one {plain} or some hold the difference"

    @sign(words, f"{BY}{by}.", role=role)
    def look(scene: Scene) -> Look:
        parts = _parts(scene, by)
        if not parts:
            return Look(None, words, None, columns)
        names, high, low = split(parts, ordered=ordered)
        if not names:
            few = f"there is one {plain}: {next(iter(parts))}" if len(parts) == 1 else f"nearly all tokens lie at one {plain}"
            return Look(there=False, text=few)
        there = _stands_out(high, low)
        few = f"{what} {names[0]} on" if ordered else f"{what} {', '.join(names[:3])}" + (" ..." if len(names) > 3 else "")
        return Look(there, f"mean |d| is {high:.2g} nat at {few}, {low:.2g} elsewhere", scene.first_step)

    return look


@sign("it begins at one and the same position of all rows", f"{BY}position.", role="against")
def starts_at_one_place(scene: Scene) -> Look:
    """That the positions from one on are off alike, and those before not at all."""
    parts = _parts(scene, "position")
    names, high, low = split(parts, ordered=True)
    if not names:
        return Look(None, starts_at_one_place.words, None, scene.missing(f"{BY}position."))
    first = parts[names[0]][0]
    told = f"mean |d| is {low:.2g} nat before position {names[0]}, {first:.2g} right behind it and {high:.2g} from it on"
    return Look(_stands_out(high, low) and low < _STILL and first > _ABRUPT * high, told)


def calm_elsewhere(by: str, *, ordered: bool = False) -> Sign:
    """That engine and trainer agree in the other parts of a slice."""
    words = "elsewhere engine and trainer agree"

    @sign(words, f"{BY}{by}.")
    def look(scene: Scene) -> Look:
        names, _, low = split(_parts(scene, by), ordered=ordered)
        return Look(low < _STILL, f"elsewhere mean |d| is {low:.2g} nat") if names else Look(None, words)

    return look


def calm_rows(role: Role, *, many: bool) -> Sign:
    """That many rows agree to within the noise of half precision, or that hardly any does."""
    words = "many rows agree within .03 nat a token" if many else "hardly any row agrees within .03 nat a token"

    @sign(words, "mismatch.rows_calm_frac", role=role)
    def look(scene: Scene) -> Look:
        share = scene.value("mismatch.rows_calm_frac")
        if math.isnan(share):
            return Look(None, words, None, scene.missing("mismatch.rows_calm_frac"))
        return Look(share > 0.3 if many else share < 0.3, f"{share:.0%} of the rows agree within .03 nat a token")

    return look


@sign("most rows agree, and engine and trainer are unrelated in the others", "mismatch.rows_calm_frac", "mismatch.off_corr",
      role="against")  # fmt: skip
def some_rows_unrelated(scene: Scene) -> Look:
    """That the difference is in rows that have nothing to do with their logprobs: other weights change all rows."""
    calm, corr = scene.value("mismatch.rows_calm_frac"), scene.value("mismatch.off_corr")
    if math.isnan(calm) or math.isnan(corr):
        return Look(there=False, text="no rows stand out of the others")
    told = f"{calm:.0%} of the rows agree within .03 nat a token; in those that are off the two correlate with {corr:.2g}"
    return Look(calm > 0.5 and corr < 0.3, told)


def whole_rows(role: Role = "needed", *, wanted: bool = True) -> Sign:
    """That in the rows that are off all tokens are, or few of them."""
    words = "in the rows that are off all tokens are" if wanted else "in the rows that are off few tokens are"

    @sign(words, "mismatch.off_tail", role=role)
    def look(scene: Scene) -> Look:
        tail = scene.value("mismatch.off_tail")
        if math.isnan(tail):
            return Look(None, words, None, scene.missing("mismatch.off_tail"))
        return Look((tail < 4.0) is wanted, f"in the rows that are off mean d^2 is {tail:.2g} times the square of mean |d|")

    return look


_PLACES: Final = {
    "rank": False, "microbatch": False, "source": False, "left_padding": True, "response_length": True, "prompt_length": True,
    "turns": True, "position": True, "turn": True,
}  # fmt: skip
"""Slices that a difference may sit in; true where those from some number on must stand out."""


@sign("the difference sits nowhere in particular", *(f"{BY}{by}." for by in _PLACES))
def everywhere(scene: Scene) -> Look:
    """That no slice that was recorded holds the difference."""
    tried = {by: found for by, ordered in _PLACES.items() if len(parts := _parts(scene, by)) > 1
             if (found := split(parts, ordered=ordered))[0]}  # fmt: skip
    if not tried:
        return Look(None, everywhere.words, None, ("rank", "microbatch", "left_padding", "data_source"))
    by = max(tried, key=lambda name: tried[name][1] / tried[name][2])
    names, high, low = tried[by]
    told = f"the largest contrast is by {by.replace('_', ' ')}: {high:.2g} nat ({', '.join(names[:2])}) against {low:.2g}"
    return Look(not _stands_out(high, low), told)


def _stands_out(high: float, low: float) -> bool:
    return high >= _TIMES * low and high > _STILL


def lowered(role: Role, *, least: float = 0.3) -> Sign:
    """That the trainer's logprobs of the sampled tokens are far below the engine's."""
    words = "the trainer gives the sampled tokens far less probability than the engine"
    needs = ("mismatch.rollout_mean", "mismatch.trainer_mean")

    @sign(words, *needs, role=role)
    def look(scene: Scene) -> Look:
        engine, trainer = (scene.value(name) for name in needs)
        if math.isnan(engine) or math.isnan(trainer):
            return Look(None, words, None, scene.missing(*needs))
        told = f"mean logprob is {engine:.2f} in the engine and {trainer:.2f} in the trainer"
        return Look(trainer - engine < -least and trainer < 1.2 * engine, told)

    return look


def there_at_first(role: Role, *, wanted: bool = True) -> Sign:
    """That the difference is there at the first steps, or sets in later from a floor."""
    words = "it is there from the first step on" if wanted else "it sets in at once, after steps without it"

    @sign(words, "mismatch.abs", role=role)
    def look(scene: Scene) -> Look:
        inside, before = scene.series("mismatch.abs"), scene.before("mismatch.abs")
        if inside is None:
            return Look(None, words, None, scene.missing("mismatch.abs"))
        if before is None:
            return Look(wanted, f"it is there from step {inside.steps[0]} on, the first one")
        level, early = pooled(inside), pooled(before)
        at_first = early > 0.3 * level
        return Look(at_first is wanted, f"mean |d| is {early:.2g} nat before step {inside.steps[0]} and {level:.2g} from then on")

    return look


def engine_moved(role: Role, *, wanted: bool = True) -> Sign:
    """That the engine's own mean logprob moves at the onset: other weights, and another text; else only the trainer's moves."""
    words = "the engine's own logprobs move with it" if wanted else "the engine's own logprobs stay as they are"
    needs = ("mismatch.rollout_mean",)

    @sign(words, *needs, role=role)
    def look(scene: Scene) -> Look:
        inside, before = scene.series(*needs), scene.before(*needs)
        if inside is None or before is None:
            return Look(None, f"{words}: there are no steps before it to compare with", None, scene.missing(*needs))
        after, early = inside.values[:_FEW], before.values[-max(_FEW, len(before) // 4) :]
        change = float(np.mean(after) - np.mean(early))
        noise = float(np.std(before.values, ddof=1)) if len(before) > 2 else 0.0
        error = noise * math.sqrt(1.0 / len(after) + 1.0 / len(early))
        moved = abs(change) > max(0.05 * abs(float(np.mean(early))), 2.5 * error, 0.02)
        told = f"the engine's mean logprob goes from {np.mean(early):.2f} to {np.mean(after):.2f} at step {inside.steps[0]}"
        return Look(moved is wanted, told, int(inside.steps[0]))

    return look


@sign("the difference sits at improbable tokens", f"{BY}probability.", role="typical")
def at_improbable_tokens(scene: Scene) -> Look:
    """That |d| falls with the engine's probability of the token, as rounding does."""
    parts = _parts(scene, "probability")
    if len(parts) < 2:
        return Look(None, at_improbable_tokens.words, None, scene.missing(f"{BY}probability."))
    sure, unsure = ([item for name, item in parts.items() if (_number(name) >= 0.9) is certain] for certain in (True, False))
    if not sure or not unsure:
        return Look(there=False, text="all tokens are of about the same probability")
    high, low = _mean(unsure), _mean(sure)
    return Look(high > 2.0 * low, f"mean |d| is {low:.2g} nat at tokens of probability .9 and more, {high:.2g} at others")

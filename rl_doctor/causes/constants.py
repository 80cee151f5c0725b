"""A constant that was added to one of the logprobs: the difference is the same number at every token."""

from __future__ import annotations

import math
from typing import Final

from rl_doctor.causes.registry import Look, Sign, cause
from rl_doctor.causes.sampling_signs import CONSEQUENCES
from rl_doctor.causes.scene import Scene
from rl_doctor.causes.signs import between, found_any, measured, over, sign
from rl_doctor.causes.staleness_signs import nearest
from rl_doctor.rules.spans import ENGINE_SPREAD, LEAST_OFFSET, NO_SPREAD

_OLD: Final = "stale-old-logprob"
_ROLLOUT: Final = ("rollout-trainer-mismatch", "unlawful-rollout-logprob")
_FOLLOWS: Final = (
    *CONSEQUENCES, _OLD, "truncated-sampling-mismatch", "coarse-logprob", "mismatch-within-response", "kl-below-zero",
    "kl-reversed", "wrong-reference", "mismatch-before-explosion", "stale-samples-uncorrected", "part-off-policy",
)  # fmt: skip
_NEEDS: Final = {"passes": ("mismatch.first_bias", "mismatch.first_std"), "engine": ("mismatch.exp_mean", "mismatch.exp_std")}


def _constant(pair: str, words: str) -> Sign:
    """That the difference of a pair is the same number at every token: its spread is a small part of its mean."""

    @sign(words, *_NEEDS[pair])
    def look(scene: Scene) -> Look:
        mean, spread = (scene.value(name) for name in _NEEDS[pair])
        if math.isnan(mean) or math.isnan(spread):
            return Look(None, words, None, scene.missing(*_NEEDS[pair]))
        away, most = (abs(mean), NO_SPREAD) if pair == "passes" else (abs(mean - 1.0), ENGINE_SPREAD)
        told = f"logprob - old_logprob is {mean:+.3f} nat, give or take {spread:.2g}"
        if pair == "engine":
            told = f"exp(trainer - rollout) is {mean:.3f}, give or take {spread:.2g}"
        return Look(away > LEAST_OFFSET and spread < most * away, told)

    return look


_FAR: Final = ("mismatch.rollout_to_new", "mismatch.rollout_to_old")
_ALIKE: Final = (
    measured("mismatch.corr", over(0.99), "engine and trainer correlate fully", "the correlation of engine and trainer is {}"),
    measured("mismatch.slope", between(0.97, 1.03), "they have one temperature", "the slope of trainer on engine is {}"),
)
_SIDES: Final[dict[str, tuple[tuple[str, ...], tuple[Sign, ...]]]] = {
    "old_logprob": (
        (_OLD, *_ROLLOUT), (found_any("two logprobs of one policy differ", _OLD, *_ROLLOUT),
        _constant("passes", "the two passes differ by a constant"),
        nearest("needed", *_FAR, "the engine agrees with logprob",
                "rollout_logprob is {} nat from logprob and {} from old_logprob", 0.2)),
    ),
    "logprob": (
        (_OLD, *_ROLLOUT), (found_any("two logprobs of one policy differ", _OLD, *_ROLLOUT),
        _constant("passes", "the two passes differ by a constant"),
        nearest("needed", *_FAR[::-1], "the engine agrees with old_logprob",
                "rollout_logprob is {} nat from old_logprob and {} from logprob", 0.2)),
    ),
    "rollout_logprob": (
        _ROLLOUT, (found_any("engine and trainer differ", *_ROLLOUT),
        _constant("engine", "engine and trainer differ by a constant"),
        *_ALIKE,
        measured("mismatch.first_abs", lambda value: value < LEAST_OFFSET, "the two passes of the trainer agree",
                 "logprob is {} nat from old_logprob before any update")),
    ),
}  # fmt: skip

for _column, (_explains, _signs) in _SIDES.items():
    cause(
        f"constant-in-{_column.replace('_', '-')}",
        f"a constant is added to {_column}",
        explains=_explains,
        leads_to=_FOLLOWS,
        signs=_signs,
        advice=(
            f"Look at what is added to {_column} or taken from it after log_softmax: a penalty, a normaliser, a loss term.",
            "Compare one token by hand: exp of the logprobs over the whole vocabulary must sum to 1.",
        ),
        source="log_softmax is normalised: a constant more at every token is the logprob of no distribution",
        doc="""The difference is the same number at every token, which neither other weights, nor rounding, nor a cut
    distribution gives: these differ from token to token. Every ratio carries the same factor, and that of a sequence its power.

    Which side it is the third number says: the one that two others contradict.""",
    )  # fmt: skip

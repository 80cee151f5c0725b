"""The KL penalty where it enters: twice, or over tokens that are not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.contradictions import setting
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import at, pooled
from rl_doctor.rules.view import View

_FORMS: Final = ("k1", "k2", "k3", "abs")
_TOKENS: Final = tuple(f"penalty.{what}_{form}" for what in ("explained", "coef") for form in _FORMS)
_OUTSIDE: Final = tuple(f"penalty.unmasked_{what}_{form}" for what in ("explained", "coef") for form in _FORMS)
_ROWS: Final = tuple(
    f"penalty.response_{which}{form}_{what}" for form in ("k1", "k3") for which in ("", "all_") for what in ("corr", "coef")
)
_PLACES: Final[Mapping[str, tuple[tuple[str, str], tuple[str, str]]]] = {
    "verl": (
        ("algorithm.use_kl_in_reward", "algorithm.kl_ctrl.kl_coef"),
        ("actor_rollout_ref.actor.use_kl_loss", "actor_rollout_ref.actor.kl_loss_coef"),
    ),
    "slime": (("kl_coef", "kl_coef"), ("use_kl_loss", "kl_loss_coef")),
}
"""Trainer -> what turns the KL in the reward on and its coefficient, and the same of the KL in the loss."""


@rule(
    "RLD208", "kl-counted-twice",
    severity="error", since="0.2.0",
    optional=(*_TOKENS, "penalty.tokens_frac", *_ROWS),
    limits={"explained": 0.9, "steps": 0.5, "tokens": 50, "tokens_frac": 0.5, "corr": 0.98, "least": 4},
    cause="The KL to the reference is subtracted from the reward and added to the loss.",
    advice=(
        "Keep one of the two: in the loss (with the gradient of the KL itself) or in the reward (credited over the response).",
        "If both are meant, ignore this rule in the project's configuration, and read kl_coef as the sum of the two.",
    ),
    avoids=("Coefficients of 0.", "Rewards per token of another kind: only what follows the log-ratio to the reference counts."),
    source="verl's settings allow both; a closed form: the two pull in the same direction and add up",
)  # fmt: skip
def kl_counted_twice(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL to the reference is penalised in the reward and in the loss at once.

    Each pulls towards the reference; together they pull with the sum of both coefficients, and the one in the reward is also
    spread over the tokens before it. The policy then learns less than kl_coef says it should.

    It fires if the settings turn both on with coefficients above 0, or if the settings say that the KL is in the loss while the
    recorded rewards have it in them as well: token_reward before the last token of each response is, at `steps` of the steps and
    `tokens` tokens or more, at `tokens_frac` of the tokens not 0 and to `explained` of its square a negative multiple of an
    estimator of the log-ratio; or reward - score correlates by -`corr` with its sum over the response, at `least` steps or more.
    """
    config = view.config
    both = _both_set(view)
    if both is None and not (config.kl_coef and config.kl_in_reward is False):
        why = "the KL is not in the loss" if config.kl_coef is not None else "the weight of the KL term is not known"
        yield Skip("config", why, () if config.kl_coef is not None else ("config.kl_coef",))
        return
    found = _in_tokens(view, limits) or _in_responses(view, limits, masked=True)
    if found is None and both is None:
        if not any(view.get(name) is not None for name in (*_TOKENS, *_ROWS)):
            yield lacking(view, _TOKENS[0], _ROWS[0])
        return
    if found is None and both is not None:
        yield Hit(
            f"The settings penalise the KL twice: in the reward with {both[0]:g}, in the loss with {both[1]:g}",
            "warning",
            (Evidence("config.kl_coef", None, None, both[0] + both[1], None, both[1], "1", None),),
            unchecked=("the penalty in the recorded rewards: token_reward, or reward and score",),
        )
    elif found is not None:
        words, evidence, coefficient = found
        loss = both[1] if both is not None else config.kl_coef or 0.0
        yield Hit(
            f"The KL is in the loss with {loss:g}, and {words}: together {loss + coefficient:.3g}", "error", (evidence,),
            ruled_out=("rewards of another kind: they follow the log-ratio to the reference",),
        )  # fmt: skip


def _both_set(view: View) -> tuple[float, float] | None:
    """The coefficients in the reward and in the loss, where the trainer's settings turn both on."""
    places = _PLACES.get("" if view.trainer is None else view.trainer.name)
    if places is None:
        return None
    native = view.config.native
    on = [bool(setting(native, switch)) and (_number(setting(native, factor)) != 0.0) for switch, factor in places]
    if not all(on):
        return None
    first, second = (_number(setting(native, factor)) for _, factor in places)
    return first or 0.0, (view.config.kl_coef or 0.0) if second is None else second


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _in_tokens(view: View, limits: Limits) -> tuple[str, Evidence, float] | None:
    """The penalty in token_reward: in words, as evidence, and its coefficient."""
    there = view.get("penalty.tokens_frac")
    if there is None or pooled(there) < limits["tokens_frac"]:
        return None
    return _following(view, "penalty.", "token_reward", limits)


def _following(view: View, prefix: str, column: str, limits: Limits) -> tuple[str, Evidence, float] | None:
    """The estimator that rewards of tokens follow best, if they do."""
    found = [(form, series) for form in _FORMS if (series := view.get(f"{prefix}explained_{form}")) is not None]
    if not found:
        return None
    form, series = max(found, key=lambda item: pooled(item[1]))
    factor = view.get(f"{prefix}coef_{form}")
    clear = series.values >= limits["explained"]
    if factor is None or int(series.counts[clear].sum()) < limits["tokens"] or float(np.mean(clear)) < limits["steps"]:
        return None
    steps = series.steps[clear]
    level = at(factor, steps)
    coefficient = float("nan") if level is None else float(np.median(level.values))
    if not coefficient > 0.0:
        return None
    share = float(np.median(series.values[clear]))
    evidence = Evidence(
        series.metric, int(steps[0]), int(steps[-1]), share, None, limits["explained"], "1", int(series.counts[clear].sum())
    )
    words = f"{column} is -{coefficient:.3g} times {form} to the reference ({share:.0%} of its square)"
    return words, evidence, coefficient


def _in_responses(view: View, limits: Limits, *, masked: bool) -> tuple[str, Evidence, float] | None:
    """The penalty in reward - score, summed over the trained tokens (``masked``) or over all."""
    best: tuple[float, Series, str] | None = None
    for form in ("k1", "k3"):
        series = view.get(f"penalty.response_{'' if masked else 'all_'}{form}_corr")
        if series is not None and len(series) >= limits["least"]:
            level = float(np.median(series.values))
            best = max(filter(None, (best, (level, series, form))), key=lambda item: item[0])
    if best is None or best[0] < limits["corr"]:
        return None
    level, series, form = best
    factor = view.get(series.metric.replace("_corr", "_coef"))
    coefficient = float("nan") if factor is None else float(np.median(factor.values))
    if not coefficient > 0.0:
        return None
    evidence = Evidence(
        series.metric, int(series.steps[0]), int(series.steps[-1]), level, None, limits["corr"], "1", int(series.counts.sum())
    )
    which = "" if masked else " of all stored tokens, masked ones too"
    return f"reward - score is -{coefficient:.3g} times the sum of {form}{which} (correlation {level:.3f})", evidence, coefficient


@rule(
    "RLD209", "kl-penalty-outside-mask",
    severity="error", since="0.2.0",
    optional=(*_OUTSIDE, "penalty.unmasked_size", "penalty.size", *_ROWS),
    limits={"explained": 0.9, "steps": 0.5, "tokens": 50, "corr": 0.98, "least": 4, "apart": 0.02},
    cause="The KL penalty is added up without the mask: observations, padding or prompts count as if the policy wrote them.",
    advice=(
        "Select the trained tokens before the sum: (kl * response_mask).sum(-1), or better kl[response_mask].",
        "With tools, check which mask the reward code takes: the attention mask covers what the tools wrote.",
    ),
    avoids=("Masked tokens whose recorded reward is 0.", "Responses without a masked token.", "A penalty in the loss."),
    source="Public issue threads on retrieved tokens in the KL penalty, and on returns that accumulate the KL of tool tokens",
)  # fmt: skip
def kl_penalty_outside_mask(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The KL penalty in the reward counts tokens that the policy did not write.

    Retrieved text, tool output and padding have a log-ratio to the reference too, often a large one. Counted in the penalty it
    is noise in the reward that grows with the length of what tools return, and the policy is paid for other observations.

    It fires if token_reward at stored tokens outside the mask is, at `steps` of the steps and `tokens` tokens or more, to
    `explained` of its square a negative multiple of an estimator of the log-ratio; or if reward - score correlates by -`corr`
    with the sum of the estimator over all stored tokens, and by `apart` less with that over the trained ones, over `least`
    steps or more.
    """
    if not any(view.get(name) is not None for name in (*_OUTSIDE, *_ROWS)):
        yield lacking(view, _OUTSIDE[0], _ROWS[0])
        return
    found = _following(view, "penalty.unmasked_", "token_reward outside the mask", limits)
    if found is not None:
        yield Hit(found[0], "error", (found[1],), unchecked=("whether returns are masked afterwards: return and advantage tell",))
        return
    every = _in_responses(view, limits, masked=False)
    if every is None:
        return
    own = view.get(every[1].metric.replace("_all_", "_"))
    level = float("nan") if own is None else float(np.median(own.values))
    if level <= every[1].value - limits["apart"]:
        yield Hit(
            every[0], "error", (every[1],),
            ruled_out=(f"a sum over the trained tokens: the correlation with that is {level:.3f}",),
        )  # fmt: skip

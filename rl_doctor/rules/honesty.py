"""What the identities of honest sampling say: the mean of exp(d) is 1, and the entropy is the mean of minus the logprob."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.alignment import engine_bins
from rl_doctor.rules.logged_gap import only_logged
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.signature import ROLLOUT, ROLLOUT_METRICS, Bins, bins, kinds, stretched
from rl_doctor.rules.spans import at, pooled
from rl_doctor.rules.view import View

_GAPS: Final = ("policy.entropy_gap", "policy.old_entropy_gap")


@rule(
    "RLD111",
    "unlawful-rollout-logprob",
    severity="warning",
    needs=("mismatch.abs",),
    optional=(*ROLLOUT_METRICS, "mismatch.zero_fill_frac"),
    limits={"away": 0.003, "sigmas": 6.0, "zeros": 0.0005},
    cause="rollout_logprob is not the log-probability of the law that the tokens were drawn from.",
    advice=(
        "Ask the engine for processed logprobs: after temperature, penalties, and the cut of the tail.",
        "Sample without top-p, top-k, min-p and penalties, or apply the same to the trainer's logits.",
        "Until then leave these logprobs out of importance weights.",
    ),
    avoids=(
        "engines with other numerics or older weights: theirs is another law, but an honest one, and the mean stays 1",
        "single tokens of enormous ratio: the mean of the cut ratio must agree",
    ),
    source="importance sampling identity: the mean of p(x) / q(x) over x drawn from q is 1 for any p",
    since="0.2.0",
)
def unlawful_rollout_logprob(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """The mean of exp(trainer - rollout) is not 1, and no known shape explains it.

    Whatever the trainer's distribution is, its probability over that of the sampler has the mean 1 over the sampler's own
    tokens. If the mean is something else, the recorded number is not that of the sampler: it was taken before the temperature,
    before a penalty or a cut of the tail, or it was changed afterwards. Importance weights made from it are biased at every
    token, and over a response the bias multiplies.

    It fires where the mean over the run differs from 1 by ``away`` and by ``sigmas`` standard errors, and the mean of the ratio
    cut at 10 differs to the same side. Shifts, temperatures, one-sided and large differences are left to their own rules, and so
    are engine logprobs of exactly 0 at more than ``zeros`` of the tokens.

    Limits: a law that trainer and engine both ignore (a penalty that neither reports) leaves the mean at 1;
    tokens-contradict-entropy sees some of these.
    """
    found = engine_bins(view)
    if isinstance(found, Skip):
        yield found
        return
    sort, zeros = kinds(found, view.config.top_p), view.get("mismatch.zero_fill_frac")
    plain = ~(sort.structural | sort.broken | sort.raised)
    filled = zeros is not None and pooled(zeros) > limits["zeros"]
    if plain.mean() < 0.8 or np.count_nonzero(stretched(found, view.config.top_p)) or filled:
        return
    mean, cut, error = found.mean("exp_mean", plain), found.mean("exp_mean_clamped", plain), found.exp_error(plain)
    away = mean - 1.0
    if not (abs(away) > limits["away"] and abs(away) > limits["sigmas"] * error and (cut - 1.0) * away > 0.5 * away * away):
        return
    message = (
        f"the mean of exp(trainer - rollout) is {mean:.4f} (95%: {mean - 1.96 * error:.4f} to {mean + 1.96 * error:.4f}) "
        f"{found.when(plain)}; for the law that really sampled it is 1"
    )
    evidence = (found.evidence("exp_mean", plain, 1.0), found.evidence("abs", plain))
    ruled_out = ("stale weights, precision and a trainer at another temperature: with all of them the mean is 1",)
    yield Hit(message, "warning", evidence, None, ruled_out)


@rule(
    "RLD112",
    "tokens-contradict-entropy",
    severity="warning",
    optional=(*ROLLOUT_METRICS, *_GAPS, *(f"{name}_{end}" for name in _GAPS for end in ("share", "error"))),
    limits={"share": 0.04, "large": 0.08, "sigmas": 6.0, "agree": 0.05},
    cause="The tokens were not drawn from the distribution whose entropy was recorded.",
    advice=(
        "Compare the sampler's temperature, top-p, top-k, min-p and penalties with what the trainer applies to its logits.",
        "Check that entropy and logprob come from the same logits, after the temperature, at the same positions.",
        "Look for trained tokens that nobody sampled: templates, tool output, forced prefixes.",
    ),
    avoids=(
        "chance: the standard error is that of whole rows",
        "later mini-batches, where the policy has moved",
        "differences to the engine that have a rule of their own",
    ),
    source="the entropy is the expected value of minus the logprob of a sample",
    since="0.2.0",
)
def tokens_contradict_entropy(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """The entropy of the policy and minus the logprob of its tokens, which are equal in the mean, are not.

    A token drawn from the policy costs its entropy, in the mean. If the tokens cost less, the sampler is cooler than the
    trainer believes or cuts the tail; if they cost more, it is hotter, the forward pass is another, or tokens are trained on
    that nobody sampled. It needs no logprobs of the engine, and it sees what two equally wrong logprobs hide.

    It fires where the mean of -logprob - entropy over the first mini-batches (or of the old policy's, over all) is ``share`` of
    the entropy and ``sigmas`` standard errors away from 0; a warning from ``large`` on, else info. Where the engine's logprobs
    differ from the trainer's by more than ``agree`` nat in the mean, the rules on that difference tell.

    Limits: rows that were left out because of what they contain (too long, never right) bias the mean by a per cent or so.
    """
    found = None if only_logged(view) else bins(view, ROLLOUT)
    if found is not None and _differs(view, found, limits):
        return
    gaps = [name for name in _GAPS if view.get(name) is not None]
    if not gaps:
        yield lacking(view, *_GAPS)
        return
    for name in gaps:
        if (hit := _contradicted(view, name, limits)) is not None:
            yield hit
            return


def _differs(view: View, found: Bins, limits: Limits) -> bool:
    """Whether the engine's logprobs are not the trainer's."""
    apart = found.mean("abs", np.ones(len(found), np.bool_)) > limits["agree"]
    return apart or bool(kinds(found, view.config.top_p).shaped.any())


def _contradicted(view: View, name: str, limits: Limits) -> Hit | None:
    gap = view.series(name)
    share, errors = at(view.get(f"{name}_share"), gap.steps), at(view.get(f"{name}_error"), gap.steps)
    if share is None or errors is None:
        return None
    if abs(pooled(share)) < limits["share"] or abs(pooled(gap)) < limits["sigmas"] * _error(errors):
        return None
    since = gap.steps[gap.steps >= _onset(gap, errors)]
    gap, share, errors = (at(series, since) or series for series in (gap, share, errors))
    level, part, error = pooled(gap), pooled(share), _error(errors)
    first, last, count = int(gap.steps[0]), int(gap.steps[-1]), int(gap.counts.sum())
    proof = (
        Evidence(name, first, last, level, 0.0, None, "nat", count, interval=(level - 1.96 * error, level + 1.96 * error)),
        Evidence(f"{name}_share", first, last, part, 0.0, math.copysign(limits["share"], part), "1", count),
    )
    side = "less" if level < 0.0 else "more"
    entropy = "old entropy" if "old" in name else "entropy"
    message = (
        f"the mean -logprob of the sampled tokens is {abs(level):.3f} nat {side} than the {entropy} ({abs(part):.0%} of it), and "
        f"for tokens that the policy itself samples the two are equal, at steps {first} to {last}"
    )
    severity: Severity = "warning" if abs(part) >= limits["large"] else "info"
    cause = (
        "The tokens are likelier than the policy's own would be: the sampler is cooler or cuts the tail."
        if level < 0.0
        else "The tokens are less likely than the policy's own would be: a hotter sampler, another forward pass, or tokens that "
        "nobody sampled."
    )
    return Hit(message, severity, proof, cause)


def _onset(gap: Series, errors: Series) -> int:
    """The first step of the stretch to the end that stands out, where the steps before it are within their noise of 0."""
    same = at(errors, gap.steps)
    if same is None or len(same) != len(gap) or len(gap) < 4:
        return int(gap.steps[0])
    weight = 1.0 / np.maximum(same.values, 1e-9) ** 2
    behind = np.cumsum((weight * gap.values)[::-1])[::-1] / np.sqrt(np.cumsum(weight[::-1])[::-1])
    start = int(np.argmax(np.abs(behind)))
    if start < 3:
        return int(gap.steps[0])
    before = float(np.average(gap.values[:start], weights=weight[:start]))
    return int(gap.steps[start if abs(before) < 3.0 / math.sqrt(weight[:start].sum()) else 0])


def _error(errors: Series) -> float:
    """Standard error of the mean over all steps, from those of the steps."""
    weight = errors.counts.astype(np.float64)
    return float(np.sqrt(np.sum((errors.values * weight) ** 2)) / weight.sum())

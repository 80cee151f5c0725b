"""A KL to the reference that its own samples contradict: below 0 beyond their noise, or growing with padding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules.reading import counted, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import at, pooled
from rl_doctor.rules.view import View

_K1, _ERROR, _ABS, _K3 = "ref.sampled_k1", "ref.sampled_k1_error", "ref.sampled_abs", "ref.sampled_k3"
_BY_PADDING: Final = "ref.abs_by.left_padding."
_SLOPE: Final = "ref.padding_slope"
_95: Final = 1.96


@rule(
    "RLD210", "kl-below-zero",
    severity="error", since="0.2.0",
    needs=(_K1, _ERROR, _ABS), optional=(_K3, "ref.worst_rows"),
    limits={"z": 5.0, "size": 1e-3, "share": 0.1, "steps": 3, "sequences": 24, "severe": 0.05, "doubt": 4.0, "coarse": 0.15},
    cause="The samples are not from the policy that is scored: top-k or top-p, another temperature, a minimum length, a banned "
    "end token, or padding and observations among the tokens; or current and reference are swapped.",
    advice=(
        "Sample with top_k=0, top_p=1, no minimum length and the temperature that the logprobs are computed at.",
        "Look where it is below 0: at the ends of responses, at padding, or everywhere.",
        "Do not lower the penalty: a policy that is paid for a KL below 0 learns to widen the gap, until responses break.",
    ),
    avoids=(
        "An estimate below 0 within the noise of its sequences: k1 scatters around its mean.",
        "The noise of numerics, and of weights that lag a little.",
        "Later passes over a batch, in which the policy has moved away from its samples.",
    ),
    source="Public issue threads on negative KL with generation settings; the expectation of k1 under its own policy is a KL",
)  # fmt: skip
def kl_below_zero(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The mean log-ratio to the reference is below 0 by more than its samples' noise allows.

    Over samples of the policy itself the mean of logprob - ref_logprob is a KL divergence, which cannot be negative; an
    estimate may be, by chance. Where it is so beyond chance, the samples come from another distribution than the one that is
    scored. A penalty on it then pays for leaving the reference, and the policy learns to exploit just that.

    It reads the tokens before any update on them. The mean over steps is held against its standard error, computed from whole
    sequences. It fires if the mean lies `z` errors below 0 (up to twice as many where few sequences tell the error), by
    `size` nat and by `share` of the mean absolute log-ratio, over at least `steps` steps and `sequences` sequences: those from
    the first step to the last one that is below 0 by two of its own errors. An error from `severe` nat on; from `doubt` errors
    on what is not enough is inconclusive, and so is a mean of which `z` errors are more than `coarse` nat.
    """
    mean, error = view.series(_K1), view.series(_ERROR)
    steps = np.intersect1d(mean.steps, error.steps)
    mean_there, error_there = at(mean, steps), at(error, steps)
    if mean_there is None or error_there is None:
        yield Skip("length", "inconclusive: a single sequence a step tells no error")
        return
    sequences = int(mean_there.counts.sum())
    if len(mean_there) < limits["steps"] or sequences < limits["sequences"]:
        yield Skip("length", f"inconclusive: {counted(sequences, 'sequence')} at {counted(len(mean_there), 'step')}")
        return
    chosen = _stretch(mean_there, error_there)
    level, spread, n = _level(mean_there, error_there, chosen)
    size = pooled(kept) if (kept := at(view.series(_ABS), mean_there.steps[chosen])) is not None else 0.0
    if limits["z"] * spread > limits["coarse"] and level >= -2.0 * limits["z"] * spread:
        yield Skip("length", f"inconclusive: the mean over {counted(n, 'sequence')} has an error of {spread:.2g} nat")
        return
    if not (level < -limits["size"] and level < -limits["share"] * size):
        return
    enough = int(chosen.sum()) >= limits["steps"] and n >= limits["sequences"]
    if not enough or level >= -limits["z"] * (1.0 + limits["sequences"] / n) * spread:
        if level < -limits["doubt"] * spread:
            yield Skip("length", f"inconclusive: {-level / spread:.1f} standard errors below 0 over {counted(n, 'sequence')}")
        return
    first, last = int(mean_there.steps[chosen][0]), int(mean_there.steps[chosen][-1])
    k3 = view.get(_K3)
    other = "" if k3 is None or (there := at(k3, mean_there.steps[chosen])) is None else f", while k3 is {pooled(there):.3g}"
    yield Hit(
        f"The mean of logprob - ref_logprob over its own samples is {level:.3g} nat{other}; a KL cannot be below 0, and this is "
        f"{-level / spread:.0f} standard errors",
        "error" if level < -limits["severe"] else "warning",
        (
            Evidence(
                _K1, first, last, level, None, 0.0, "nat", n, interval=(level - _95 * spread, level + _95 * spread),
            ),
        ),
        ruled_out=(f"the noise of k1: {-level / spread:.0f} standard errors of the mean over {counted(n, 'sequence')}",),
        samples=view.samples("ref.worst_rows", first, last),
    )  # fmt: skip


def _stretch(mean: Series, error: Series) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """The steps from the first to the last one that is below 0 by two of its own errors; all, where there is none."""
    low = np.flatnonzero(mean.values < -2.0 * np.maximum(error.values, 1e-12))
    chosen = np.zeros(len(mean), np.bool_)
    chosen[low[0] if low.size else 0 : (low[-1] + 1) if low.size else len(mean)] = True
    return chosen


def _level(
    mean: Series, error: Series, chosen: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> tuple[float, float, int]:  # fmt: skip
    """Mean over the sequences of the chosen steps, its standard error, and the number of sequences."""
    weights = mean.counts[chosen] / mean.counts[chosen].sum()
    level = float(np.sum(weights * mean.values[chosen]))
    spread = float(np.sqrt(np.sum((weights * error.values[chosen]) ** 2)))
    return level, max(spread, 1e-12), int(mean.counts[chosen].sum())


@rule(
    "RLD211", "kl-grows-with-padding",
    severity="error", status="preview", since="0.2.0",
    needs=(_SLOPE, _BY_PADDING), optional=("ref.worst_rows",),
    limits={"factor": 3.0, "size": 0.02, "t": 6.0, "steps": 4, "tokens": 50},
    cause="One of the two passes takes padding on the left for text: position ids that count it, or an attention mask that was "
    "not handed over.",
    advice=(
        "Compute the logprobs of one padded row without padding, with policy and reference: the pass that changes is wrong.",
        "Pass attention_mask and position_ids (cumulative sum of the mask, less 1) to both models.",
    ),
    avoids=("Padding to the right.", "Prompts of which short ones happen to drift more: by less, and not in order of padding."),
    source="Public issue threads on batched generation with left padding: unstable or negative KL only in batches",
)  # fmt: skip
def kl_grows_with_padding(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """Rows with padding on the left are far from the reference, rows without are not.

    Padding is no text: a row's logprobs must not depend on it. Where the distance between policy and reference grows with the
    number of padding tokens, one of the two passes sees padding, and part of the KL penalty is noise that training cannot
    lower.

    Rows are put together by their left padding (0, 1, 2 to 3, 4 to 7 and so on). It fires if the mean |logprob - ref_logprob|
    of the part with the most padding (of those with `tokens` tokens) is `factor` times that of the part with the least and
    `size` nat above it, does not fall along the parts, and if the slope on the padding within steps is above 0 by `t` standard
    errors of its mean, over at least `steps` steps to the end of the run.
    """
    slope = view.series(_SLOPE)
    if skip := too_short(slope, int(limits["steps"])):
        yield skip
        return
    parts = sorted((int(name.removeprefix(_BY_PADDING)), part) for name, part in view.named(_BY_PADDING).items())
    parts = [(low, part) for low, part in parts if int(part.counts.sum()) >= limits["tokens"]]
    if len(parts) < 2:
        yield Skip("data", "all rows have about the same padding")
        return
    begin, steep, error = _steepest(slope, int(limits["steps"]))
    slope = at(slope, slope.steps[begin:]) or slope
    parts = [(low, kept) for low, part in parts if (kept := at(part, slope.steps)) is not None]
    levels = [pooled(part) for _, part in parts]
    in_order = all(after >= 0.7 * before for before, after in pairwise(levels))
    if not in_order or levels[-1] < limits["factor"] * levels[0] or levels[-1] - levels[0] < limits["size"]:
        return
    if steep <= limits["t"] * error:
        return
    first, last = int(slope.steps[0]), int(slope.steps[-1])
    most, least = parts[-1], parts[0]
    yield Hit(
        f"Mean |logprob - ref_logprob| is {levels[-1]:.3g} nat in rows with {most[0]} padding tokens or more to the left, "
        f"{levels[0]:.3g} in rows with {least[0]} or about that, and grows between",
        "error",
        (
            Evidence(
                most[1].metric, first, last, levels[-1], levels[0], limits["factor"] * levels[0], "nat",
                int(most[1].counts.sum()), {"left_padding": most[0]},
            ),
            Evidence(
                _SLOPE, first, last, steep, None, 0.0, "nat", int(slope.counts.sum()),
                interval=(steep - _95 * error, steep + _95 * error),
            ),
        ),
        unchecked=("which of the two passes is wrong: only a pass without padding tells",),
        samples=view.samples("ref.worst_rows", first, last),
    )  # fmt: skip


def _steepest(slope: Series, least: int) -> tuple[int, float, float]:
    """Where the stretch to the end begins on which the mean stands out most; its mean and standard error."""
    steps = max(len(slope) // 40, 1)
    starts = range(0, max(len(slope) - least, 0) + 1, steps)
    begin = max(starts, key=lambda start: float(np.mean(slope.values[start:])) * math.sqrt(len(slope) - start))
    values = slope.values[begin:]
    error = float(np.std(values, ddof=1)) / math.sqrt(values.size) if values.size > 1 else math.inf
    return begin, float(np.mean(values)), max(error, 1e-12)

"""verl: how far the old policy is from the engine that sampled, and how rollout correction answers to it (``rollout_corr/*``).

All of it is computed by the driver over a whole batch, with the mask from before any token is left out. Rows that only fill the
batch have no token; statistics over rows count them with the value of an empty sum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from rl_doctor.analyzer.derive import (
    Floats,
    derived,
    per_sequence_counts,
    per_sequence_sums,
    segment_extremes,
    selected,
    selected_splits,
)
from rl_doctor.analyzer.dialects.registry import EPSILON32, TOLERANCE, Entries, Logged, entry
from rl_doctor.analyzer.dialects.statistics import (
    Reading,
    Statistic,
    Statistics,
    deviation_of,
    largest_of,
    mean_of,
    of_rows,
    of_tokens,
    smallest_of,
)
from rl_doctor.analyzer.dialects.verl_batch import CLAMP, before_rejection, first_pass, once, whole
from rl_doctor.analyzer.dialects.verl_settings import Correction, Settings
from rl_doctor.analyzer.estimators import k3
from rl_doctor.store.batch import Batch

_PREFIX: Final = "rollout_corr/"
_NEEDS: Final = ("old_logprob", "rollout_logprob")
_MASKS: Final = ("epoch", "is_padding", "response_mask", "loss_mask")
_NEAR: Final = 8 * EPSILON32


def keys(settings: Settings) -> Iterator[Logged]:
    """Distances, importance weights and rejections, as far as they are configured and known."""
    yield from _distances()
    correction = settings.correction
    if correction is None:
        return
    if correction.weights in {"token", "sequence"}:
        yield from _weights(settings, correction)
    if correction.rejection:
        masks = whole(_left_out, "loss_mask", "response_mask", optional=("epoch", "is_padding"))
        yield once(f"{_PREFIX}rollout_rs_masked_fraction", None, "1", masks, mean_of("tokens"))
        yield once(f"{_PREFIX}rollout_rs_seq_masked_fraction", None, "1", masks, mean_of("rows"))
        for criterion in criteria(correction):
            yield from _criterion(criterion)


def _difference(batch: Batch) -> Floats:
    """Old logprob minus the engine's, ``[n_selected]``."""
    return selected(batch, "old_logprob") - selected(batch, "rollout_logprob")


def _row_means(batch: Batch, values: Floats) -> Floats:
    return per_sequence_sums(batch, values) / np.maximum(per_sequence_counts(batch), 1)


def _distances() -> Iterator[Logged]:
    reduction = whole(_distance, *_NEEDS, optional=_MASKS)
    of: dict[str, Reading] = {
        name: mean_of(name)
        for name in (
            "training_ppl", "training_log_ppl", "rollout_ppl", "rollout_log_ppl", "kl", "k3_kl", "log_ppl_diff",
            "log_ppl_abs_diff", "ppl_ratio",
        )
    }  # fmt: skip
    of |= {"chi2_token": mean_of("chi2_token", -1.0), "chi2_seq": mean_of("chi2_seq", -1.0)}
    of |= {"log_ppl_diff_max": largest_of("log_ppl_diff"), "log_ppl_diff_min": smallest_of("log_ppl_diff")}
    canonical = {"kl": "mismatch.k1", "k3_kl": "mismatch.k3"}
    for name, read in of.items():
        unit = "1" if "chi2" in name or ("ppl" in name and "log" not in name) else "nat"
        yield once(_PREFIX + name, canonical.get(name), unit, reduction, read)


def _distance(batch: Batch) -> Statistics:
    before = before_rejection(batch)
    trained, sampled = selected(before, "old_logprob"), selected(before, "rollout_logprob")
    ahead = trained - sampled
    size = np.abs(trained) + np.abs(sampled)
    row_trained, row_sampled = _row_means(before, trained), _row_means(before, sampled)
    apart, spread = row_sampled - row_trained, _row_means(before, size)
    total, absolute = per_sequence_sums(before, ahead), per_sequence_sums(before, np.abs(ahead))
    squared = np.exp(2.0 * np.clip(ahead, -CLAMP, CLAMP))
    both = np.exp(2.0 * np.clip(total, -CLAMP, CLAMP))
    return Statistics(
        {
            "training_ppl": of_rows(np.exp(-row_trained), np.exp(-row_trained) * (1.0 + np.abs(row_trained))),
            "training_log_ppl": of_rows(-row_trained, _row_means(before, np.abs(trained))),
            "rollout_ppl": of_rows(np.exp(-row_sampled), np.exp(-row_sampled) * (1.0 + np.abs(row_sampled))),
            "rollout_log_ppl": of_rows(-row_sampled, _row_means(before, np.abs(sampled))),
            "kl": of_tokens(before, -ahead),
            "k3_kl": of_tokens(before, k3(ahead), k3(ahead) + EPSILON32 / TOLERANCE * (np.exp(ahead) + np.abs(ahead) + 1.0)),
            "log_ppl_diff": of_rows(apart, spread),
            "log_ppl_abs_diff": of_rows(np.abs(apart), spread),
            "ppl_ratio": of_rows(np.exp(apart), np.exp(apart) * (1.0 + spread)),
            "chi2_token": of_tokens(before, squared, squared * (1.0 + EPSILON32 / TOLERANCE * np.abs(ahead))),
            "chi2_seq": of_rows(both, both * (1.0 + 2.0 * absolute)),
        }
    )


def _weights(settings: Settings, correction: Correction) -> Iterator[Logged]:
    """The importance weights before they are normalised."""
    reduction = whole(partial(_weight, correction=correction), *_NEEDS, optional=_MASKS)
    whole_rows = correction.weights == "sequence"
    fraction = "raw_seq" if settings.nine else "seq"
    of: dict[str, Reading] = {
        "mean": mean_of("weight"),
        "max": _exponential(largest_of("logarithm"), highest=CLAMP) if whole_rows else largest_of("weight"),
        "min": _exponential(smallest_of("logarithm")) if whole_rows else smallest_of("weight"),
        "std": deviation_of("weight", ddof=0),
        "ratio_fraction_high": mean_of("row_high" if whole_rows else "high"),
        "ratio_fraction_low": mean_of("row_low" if whole_rows else "low"),
        "eff_sample_size": _effective,
        "seq_mean": mean_of("seq"),
        "seq_std": deviation_of("seq", ddof=1),
        "seq_max": largest_of("seq"),
        "seq_min": smallest_of("seq"),
        "seq_max_deviation": largest_of("seq_deviation"),
        "seq_fraction_high": mean_of(f"{fraction}_high"),
        "seq_fraction_low": mean_of(f"{fraction}_low"),
    }
    if correction.drops:
        of["oob_ratio"] = mean_of("outside")
    if correction.normalised:
        of["batch_norm_factor"] = mean_of("filled_seq" if whole_rows else "weight")
    for name, read in of.items():
        metric = "mismatch.is_weight_mean" if name == "mean" else None
        yield once(f"{_PREFIX}rollout_is_{name}", metric, "1", reduction, read)


def _weight(batch: Batch, correction: Correction) -> Statistics:
    before = before_rejection(batch)
    counts = per_sequence_counts(before)
    logarithm, rounding = _difference(before), np.abs(_difference(before))
    row_sums, row_rounding = per_sequence_sums(before, logarithm), per_sequence_sums(before, rounding)
    if correction.weights == "sequence":
        logarithm, rounding = np.repeat(row_sums, counts), np.repeat(row_rounding, counts)
    raw = np.exp(np.clip(logarithm, -CLAMP, CLAMP))
    upper = correction.upper
    lower = 1.0 / upper if correction.lower is None else correction.lower
    slack = _NEAR * (1.0 + rounding)
    near_high, near_low = (np.abs(raw / bound - 1.0) < slack for bound in (upper, lower))
    high, low = raw > upper, raw < lower
    outside = high | low
    weight = np.where(outside, 0.0, raw) if correction.drops else np.minimum(raw, upper)
    lost = np.where(near_high | near_low, raw, 0.0) if correction.drops else np.zeros(raw.size)
    size = weight * (1.0 + EPSILON32 / TOLERANCE * rounding)
    rows, raw_rows = _row_means(before, weight), _row_means(before, raw)
    row_slack = _NEAR * (1.0 + _row_means(before, rounding))
    row_near = _NEAR * (1.0 + row_rounding)
    row_size = _row_means(before, size)
    found = {
        "weight": of_tokens(before, weight, size, lost),
        "high": of_tokens(before, high.astype(np.float64), None, near_high.astype(np.float64)),
        "low": of_tokens(before, low.astype(np.float64), None, near_low.astype(np.float64)),
        "outside": of_tokens(before, outside.astype(np.float64), None, (near_high | near_low).astype(np.float64)),
        "logarithm": of_rows(row_sums, row_rounding),
        "seq": of_rows(rows, row_size, _row_means(before, lost)),
        "filled_seq": of_rows(rows[counts > 0], row_size[counts > 0]),
        "seq_deviation": of_rows(np.abs(rows - 1.0), row_size + 1.0),
    }
    for name, values, near, bounds in (
        ("row", row_sums, row_near, (math.log(upper), math.log(lower))),
        ("raw_seq", raw_rows, row_slack * upper, (upper, lower)),
        ("seq", rows, row_slack * upper, (upper, lower)),
    ):
        found[f"{name}_high"] = of_rows((values > bounds[0]) * 1.0, None, np.abs(values - bounds[0]) < near)
        found[f"{name}_low"] = of_rows((values < bounds[1]) * 1.0, None, np.abs(values - bounds[1]) < near)
    return Statistics(found)


def _exponential(read: Reading, highest: float = math.inf) -> Reading:
    def exponential(found: Statistics) -> Entries:
        logarithm = read(found)
        value = math.exp(min(logarithm.total, highest)) if logarithm.total < math.log(1e300) else math.inf
        return entry(value, value * (TOLERANCE + logarithm.tolerance)) if logarithm.count else Entries()

    return exponential


def _effective(found: Statistics) -> Entries:
    """Effective sample size as a share: the squared mean weight over the mean squared weight."""
    item = found["weight"]
    if not item.count or not item.square > 0:
        return Entries()
    value = item.mean**2 / item.square
    return entry(value, 4 * TOLERANCE * value * max(item.size / item.mean, 1.0) + 2.0 * item.slack / item.mean)


def _left_out(batch: Batch) -> Statistics:
    """Share of tokens that were left out, and of rows of which some were."""
    before, after = before_rejection(batch), first_pass(batch)
    counts = per_sequence_counts(before)
    gone = counts - per_sequence_counts(after)
    share = np.repeat(gone / np.maximum(counts, 1), counts)
    return Statistics({"tokens": of_tokens(before, share), "rows": of_rows((gone > 0).astype(np.float64))})


@dataclass(frozen=True, slots=True)
class Criterion:
    """One criterion for leaving tokens out: a KL estimate per token, or its sum, mean or maximum over the sequence."""

    name: str
    over: str
    kind: str
    lower: float | None
    upper: float


def criteria(correction: Correction) -> tuple[Criterion, ...]:
    """The configured criteria; none where the thresholds are not understood. Those of k1 bound the ratio, not its logarithm."""
    names = list(dict.fromkeys(part.strip() for part in (correction.rejection or "").split(",") if part.strip()))
    given = [part.strip() for part in (correction.thresholds or "").split(",") if part.strip()]
    if len(given) == 1:
        given *= len(names)
    if len(given) != len(names):
        return ()
    found = []
    for name, threshold in zip(names, given, strict=True):
        over, _, kind = name.rpartition("_")
        try:
            numbers = [float(part) for part in threshold.split("_")]
        except ValueError:
            return ()
        if kind == "k1":
            low, high = (1.0 / numbers[0], numbers[0]) if len(numbers) == 1 else numbers[:2]
            found.append(Criterion(name, over, kind, math.log(low), math.log(high)))
        else:
            found.append(Criterion(name, over, kind, None, numbers[0]))
    return tuple(found)


def _criterion(criterion: Criterion) -> Iterator[Logged]:
    reduction = whole(partial(_divergence, criterion=criterion), *_NEEDS, optional=_MASKS)
    ends = "token" if criterion.over == "token" else "row"
    of: dict[str, Reading] = {
        "mean": mean_of("token"), "max": largest_of(ends), "min": smallest_of(ends), "fraction_high": mean_of(f"{ends}_high"),
        "fraction_low": mean_of(f"{ends}_low"), "std": deviation_of("bounded", ddof=0), "seq_mean": mean_of("row"),
        "seq_std": deviation_of("row", ddof=1), "seq_max": largest_of("row"), "seq_min": smallest_of("row"),
        "seq_max_deviation": largest_of("row_size"), "seq_fraction_high": mean_of("row_high"),
        "masked_fraction": mean_of("token_out"), "seq_masked_fraction": mean_of("row_out"),
    }  # fmt: skip
    if criterion.kind == "k1":
        of["seq_fraction_low"] = mean_of("row_low")
    for name, read in of.items():
        yield once(f"{_PREFIX}rollout_rs_{criterion.name}_{name}", None, "nat" if "frac" not in name else "1", reduction, read)


@derived
def _estimates(batch: Batch) -> dict[str, tuple[Floats, Floats]]:
    """The three estimates per token ``[n_selected]``, each with the size of its summands."""
    x = np.clip(_difference(batch), -CLAMP, CLAMP)
    size = np.abs(x)
    third = k3(x)
    return {
        "k1": (-x, size),
        "k2": (0.5 * x * x, 0.5 * x * x),
        "k3": (third, third + EPSILON32 / TOLERANCE * (np.exp(x) + size + 1.0)),
    }


def _divergence(batch: Batch, criterion: Criterion) -> Statistics:
    before = before_rejection(batch)
    counts = per_sequence_counts(before)
    filled = counts > 0
    values, size = _estimates(before)[criterion.kind]
    sums, sizes = per_sequence_sums(before, values), per_sequence_sums(before, size)
    if criterion.over == "seq_max":
        _, highest = segment_extremes(values, selected_splits(before))
        rows, row_size = np.where(filled, highest, 0.0), np.where(filled, np.abs(highest), 0.0)
    elif criterion.over == "seq_sum":
        rows, row_size = sums, sizes
    else:
        rows, row_size = sums / np.maximum(counts, 1), sizes / np.maximum(counts, 1)
    if criterion.over != "token":
        values, size = np.repeat(rows, counts), np.repeat(row_size, counts)
    lower = -math.inf if criterion.lower is None else criterion.lower
    found: dict[str, Statistic] = {}
    for name, item, slack, make in (
        ("token", values, _NEAR * (1.0 + size), partial(of_tokens, before)),
        ("row", rows[filled], _NEAR * (1.0 + row_size[filled]), of_rows),
    ):
        near_high, near_low = np.abs(item - criterion.upper) < slack, np.abs(item - lower) < slack
        found[f"{name}_high"] = make((item > criterion.upper) * 1.0, None, near_high)
        found[f"{name}_low"] = make((item < lower) * 1.0, None, near_low)
    out = (values > criterion.upper) | (values < lower)
    near = np.abs(values - criterion.upper) < _NEAR * (1.0 + size)
    near |= np.abs(values - lower) < _NEAR * (1.0 + size)
    any_out = per_sequence_sums(before, out)[filled] > 0
    any_near = per_sequence_sums(before, near)[filled] > 0
    return Statistics(
        {
            **found,
            "token": of_tokens(before, values, size),
            "bounded": of_tokens(before, np.clip(values, max(lower, 0.0) if criterion.lower is None else lower, criterion.upper)),
            "row": of_rows(rows[filled], row_size[filled]),
            "row_size": of_rows(np.abs(rows[filled]), row_size[filled]),
            "token_out": of_tokens(before, out * 1.0, None, near),
            "row_out": of_rows(any_out * 1.0, None, any_near),
        }
    )

"""Logprob pairs against plain Python, exactness under any split, and the search for shifts."""

from __future__ import annotations

import math
import random
import statistics
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.metrics.lag import scan
from rl_doctor.analyzer.metrics.mismatch import Pair
from rl_doctor.analyzer.registry import metrics
from rl_doctor.schema import RunConfig, RunInfo
from tests.unit.analyzer.memory import MemoryRun, Row, batch, blank, value_of, values_of

ALL = sorted(name for name, item in metrics().items() if name.startswith("mismatch.") and item.reduction.level != "logged")
NAN = math.nan


def single(value: float) -> float:
    return float(np.float32(value))


def rows(seed: int, count: int = 12, *, spoiled: bool = True) -> list[Row]:
    rng = random.Random(seed)
    made: list[Row] = []
    for index in range(count):
        size = rng.choice([0, 1, 5, 20, 40])
        old = [single(-rng.expovariate(0.7)) for _ in range(size)]
        near = {
            name: [single(min(x + rng.gauss(0, 0.1), 0.0)) for x in old] for name in ("rollout_logprob", "logprob", "ref_logprob")
        }
        row: Row = {"step": index % 3, "epoch": index % 2, "minibatch": 0, "old_logprob": old, "response_length": size, **near}
        row["response_mask"] = [rng.random() < 0.8 for _ in range(size)]
        row["is_weight"] = [single(rng.random()) for _ in range(size)]
        if spoiled:
            for name in near:
                row[name] = [rng.choice([x, NAN, math.inf, -math.inf]) if rng.random() < 0.1 else x for x in row[name]]
        made.append(row)
    return made


def pairs(data: list[Row]) -> list[tuple[float, float]]:
    """(rollout, trainer) as the documentation of the metrics says."""
    found = []
    for row in data:
        for r, o, kept in zip(row["rollout_logprob"], row["old_logprob"], row["response_mask"], strict=True):
            if kept and math.isfinite(r) and math.isfinite(o) and not (r == 0.0 and o < -1.0):
                found.append((r, o))
    return found


def reference(name: str, found: list[tuple[float, float]]) -> float:
    d = [y - x for x, y in found]
    plain = {
        "abs": lambda: math.fsum(map(abs, d)) / len(d),
        "k3": lambda: math.fsum(math.expm1(v) - v for v in d) / len(d),
        "exp_mean": lambda: math.fsum(map(math.exp, d)) / len(d),
        "exp_std": lambda: statistics.pstdev(map(math.exp, d)),
        "exp_mean_clamped": lambda: math.fsum(min(math.exp(v), 10.0) for v in d) / len(d),
        "prob_abs": lambda: math.fsum(abs(math.exp(y) - math.exp(x)) for x, y in found) / len(d),
        "corr": lambda: statistics.correlation(*zip(*found, strict=True)),
        "slope": lambda: statistics.linear_regression(*zip(*found, strict=True)).slope,
        "one_sided_frac": lambda: sum(v < -0.02 for v in d) / sum(abs(v) > 0.02 for v in d),
        "min": lambda: min(d),
        "max": lambda: max(d),
    }
    return float(plain[name]())


@pytest.mark.parametrize(
    "name",
    ["abs", "k3", "exp_mean", "exp_std", "exp_mean_clamped", "prob_abs", "corr", "slope", "one_sided_frac", "min", "max"],
)
def test_pair_statistics_equal_plain_python(name: str) -> None:
    data = rows(1)
    series = analyze(MemoryRun(data), [f"mismatch.{name}"]).series[f"mismatch.{name}"]
    for step, value in zip(series.steps.tolist(), series.values.tolist(), strict=True):
        expected = reference(name, pairs([row for row in data if row["step"] == step]))
        assert math.isclose(value, expected, rel_tol=1e-9), step


@pytest.mark.parametrize("seed", range(3))
def test_any_split_gives_the_same_bits(seed: int) -> None:
    data = rows(seed)
    whole = analyze(MemoryRun(data), ALL).series
    for cut in range(3):
        parts = analyze(MemoryRun(data, cut=cut), ALL).series
        for name in whole:
            assert parts[name].values.tobytes() == whole[name].values.tobytes(), name
            assert parts[name].counts.tolist() == whole[name].counts.tolist(), name


def value(name: str, *data: Row, config: RunConfig | None = None) -> float:
    made = batch([{"step": 0, **row} for row in data], RunInfo(config=config or RunConfig()))
    return value_of(name, made)


def test_masked_values_do_not_leak() -> None:
    row = {"response_mask": [True, False], "rollout_logprob": [-1.0, NAN], "old_logprob": [-1.5, math.inf]}
    assert value("mismatch.abs", row) == 0.5


def test_tokens_beyond_the_response_are_left_out() -> None:
    row = {"response_mask": [True, True], "rollout_logprob": [-1.0, -9.0], "old_logprob": [-1.5, -1.0], "response_length": 1}
    assert value("mismatch.abs", row) == 0.5


def test_placeholders_are_counted_and_left_out() -> None:
    row = {"response_mask": [True] * 4, "rollout_logprob": [-1.0, 0.0, 0.0, NAN], "old_logprob": [-1.5, -3.0, -1e-4, -1.0]}
    assert value("mismatch.abs", row) == pytest.approx((0.5 + 1e-4) / 2)
    assert value("mismatch.zero_fill_frac", row) == 0.25
    assert value("mismatch.zero_frac", row) == 0.5
    assert value("mismatch.nan_frac", row) == 0.25


def test_impossible_values_are_left_out() -> None:
    row = {"response_mask": [True, True], "rollout_logprob": [-1.0, 1.0], "old_logprob": [-1.5, -1.0]}
    assert value("mismatch.abs", row) == 0.5


def passes(**more: Any) -> Row:
    return {"response_mask": [True, True], "rollout_logprob": [-1.0, -2.0], "logprob": [-1.1, -2.3], **more}


def test_an_old_logprob_that_repeats_the_engine_gives_way_to_the_first_pass() -> None:
    repeated = passes(old_logprob=[-1.0, -2.0])
    first = repeated | {"epoch": 0, "minibatch": 0}
    assert value("mismatch.bypass_frac", first) == 1.0
    assert value("mismatch.abs", first) == pytest.approx(0.2, rel=1e-6)
    assert math.isnan(value("mismatch.abs", repeated | {"epoch": 1, "minibatch": 0}))
    assert math.isnan(value("mismatch.first_abs", first))


def test_without_old_logprob_only_the_first_pass_counts() -> None:
    assert value("mismatch.abs", passes(epoch=0, minibatch=0), passes(epoch=0, minibatch=1)) == pytest.approx(0.2, rel=1e-6)


def test_first_pass_needs_the_minibatch_or_the_configuration() -> None:
    row = passes(old_logprob=[-1.2, -2.0])
    assert math.isnan(value("mismatch.first_abs", row))
    assert value("mismatch.first_abs", row, config=RunConfig(minibatches=1, epochs=1)) == pytest.approx(0.2, rel=1e-6)
    assert value("mismatch.first_abs", row | {"epoch": 0, "minibatch": 0}) == pytest.approx(0.2, rel=1e-6)


def test_small_differences_keep_their_precision() -> None:
    row = {"response_mask": [True], "rollout_logprob": [-0.5], "old_logprob": [-0.5 + 2.0**-20]}
    d = 2.0**-20
    assert value("mismatch.k3", row) == pytest.approx(d * d / 2 + d**3 / 6, rel=1e-12)


def walk(seed: int, size: int) -> list[float]:
    rng = random.Random(seed)
    return [single(-rng.gammavariate(1.0, 1.5)) for _ in range(size)]


def moved(values: list[float], lag: int) -> list[float]:
    """A copy whose element t is that of t - lag."""
    return [values[(index - lag) % len(values)] for index in range(len(values))]


@pytest.mark.parametrize("lag", [-3, -2, -1, 1, 2, 3])
def test_a_shift_is_found_with_its_sign(lag: int) -> None:
    data = []
    for seed in range(6):
        rollout = walk(seed, 30)
        data.append({"response_mask": [True] * 30, "rollout_logprob": rollout, "old_logprob": moved(rollout, lag)})
    assert value("mismatch.shifted_frac", *data) == 1.0
    assert value("mismatch.lag", *data) == lag
    assert value("mismatch.lag_share", *data) == 1.0
    assert value("mismatch.lag_corr", *data) > 0.99


def test_aligned_and_unrelated_rows_are_not_shifted() -> None:
    aligned = [{"response_mask": [True] * 30, "rollout_logprob": walk(s, 30), "old_logprob": walk(s, 30)} for s in range(6)]
    unrelated = [
        {"response_mask": [True] * 30, "rollout_logprob": walk(s, 30), "old_logprob": walk(s + 50, 30)} for s in range(6)
    ]
    assert value("mismatch.shifted_frac", *aligned) == 0.0
    assert value("mismatch.shifted_frac", *unrelated) == 0.0
    assert value("mismatch.lag", *aligned) == 0.0


def test_short_rows_are_pooled() -> None:
    data = []
    for seed in range(12):
        rollout = walk(seed, 9)
        data.append({"response_mask": [True] * 9, "rollout_logprob": rollout, "old_logprob": moved(rollout, 1)})
    assert math.isnan(value("mismatch.shifted_frac", *data))
    assert value("mismatch.short_lag", *data) == 1.0
    straight = [row | {"old_logprob": row["rollout_logprob"]} for row in data]
    assert value("mismatch.short_lag", *straight) == 0.0
    assert math.isnan(value("mismatch.short_lag", data[0]))


def test_a_gap_in_the_mask_does_not_hide_a_shift() -> None:
    data = []
    for seed in range(6):
        rollout = walk(seed, 40)
        mask = [not 10 <= index < 16 for index in range(40)]
        data.append({"response_mask": mask, "rollout_logprob": rollout, "old_logprob": moved(rollout, -1)})
    assert value("mismatch.lag", *data) == -1.0


def test_what_others_wrote_hides_no_shift() -> None:
    """Neither side counts where a token is not trained on, whatever stands there."""
    data = []
    for seed in range(6):
        rollout = walk(seed, 60)
        mask = [index % 10 < 6 for index in range(60)]
        shifted = zip(moved(rollout, -1), mask, strict=True)
        old = [number if trained else -9.0 * (index % 2) for index, (number, trained) in enumerate(shifted)]
        data.append({"response_mask": mask, "rollout_logprob": rollout, "old_logprob": old})
    assert value("mismatch.lag", *data) == -1.0
    assert value("mismatch.shifted_frac", *data) == 1.0


def test_scan_of_nothing() -> None:
    for x, splits, share in ((np.empty(0), np.zeros(1, np.int64), NAN), (np.full(40, -1.0), np.array([0, 20, 40]), 0.0)):
        found, _ = scan(Pair.whole(x, x, splits), x, x, splits)
        assert str(found[0].mean) == str(share)


@pytest.mark.parametrize("name", ALL)
def test_empty_rows_say_nothing(name: str) -> None:
    empty: Row = {
        column: [] for column in ("logprob", "old_logprob", "rollout_logprob", "ref_logprob", "is_weight", "response_mask")
    }
    row = blank(metrics()[name], {"step": 0, "minibatch": 0, "epoch": 0, **empty})
    assert not any(map(math.isfinite, values_of(name, batch([row])))) or name == "mismatch.bypass_frac"

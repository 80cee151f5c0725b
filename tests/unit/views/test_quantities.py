"""The quantities of tokens against the formulas written out token by token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.views.quantities import (
    BEYOND,
    CUT_DUAL,
    CUT_HIGH,
    CUT_LOW,
    IN_RANGE,
    NOT_TRAINED,
    ONLY_NORMALISED,
    QUANTITIES,
    TRAINED,
    quantity_of,
    row_means,
)

LOGPROBS = ("logprob", "old_logprob", "rollout_logprob", "ref_logprob")
N = 64


def batch(config: RunConfig | None = None, *, lengths: tuple[int, ...] = (N,), **columns: Any) -> Batch:
    splits = np.append(0, np.cumsum(lengths))
    return Batch(1, columns, splits.astype(np.int64), RunInfo(config=config or RunConfig()))


def drawn() -> dict[str, Any]:
    generator = np.random.default_rng(0)
    columns: dict[str, Any] = {name: -generator.exponential(1.0, N).astype(np.float32) for name in LOGPROBS}
    columns["advantage"] = generator.normal(size=N).astype(np.float32)
    columns["entropy"] = generator.exponential(1.0, N).astype(np.float32)
    columns["response_mask"] = generator.random(N) < 0.8
    return columns


def of(name: str, made: Batch) -> list[float]:
    return QUANTITIES[name].values(made).tolist()  # type: ignore[no-any-return]


def test_against_plain_python() -> None:
    columns = drawn()
    made = batch(RunConfig(clip_low=0.2, clip_high=0.28, kl_estimator="k3"), **columns)
    new, old, rollout, ref = ([float(value) for value in columns[name]] for name in LOGPROBS)
    advantage = [float(value) for value in columns["advantage"]]
    for index in range(N):
        x, y = new[index] - old[index], ref[index] - new[index]
        assert of("ratio", made)[index] == pytest.approx(math.exp(x), rel=1e-14)
        assert of("mismatch", made)[index] == old[index] - rollout[index]
        assert of("kl", made)[index] == pytest.approx(math.expm1(y) - y, rel=1e-9, abs=1e-14)
        assert of("kl_old", made)[index] == pytest.approx(math.expm1(x) - x, rel=1e-9, abs=1e-14)
        assert of("contribution", made)[index] == pytest.approx(advantage[index] * math.exp(x), rel=1e-14)
        expected = IN_RANGE
        if math.exp(x) < 0.8 and advantage[index] < 0:
            expected = CUT_LOW
        elif math.exp(x) > 1.28 and advantage[index] > 0:
            expected = CUT_HIGH
        assert of("clipped", made)[index] == expected
        assert of("masked", made)[index] == (TRAINED if columns["response_mask"][index] else NOT_TRAINED)
    assert of("entropy", made) == columns["entropy"].astype(np.float64).tolist()
    assert of("logprob", made) == new


def test_differences_are_taken_in_float64() -> None:
    new, old = np.float32(-1e-3), np.float32(-1.0001e-3)
    made = batch(lengths=(1,), logprob=np.array([new]), old_logprob=np.array([old]))
    assert of("ratio", made) == [math.exp(float(new) - float(old))]


@pytest.mark.parametrize(("estimator", "expected"), [("k1", 0.5), ("k2", 0.125), ("abs", 0.5)])
def test_the_estimator_of_the_run(estimator: str, expected: float) -> None:
    columns = {"logprob": np.array([-1.0], np.float32), "ref_logprob": np.array([-1.5], np.float32)}
    assert of("kl", batch(RunConfig(kl_estimator=estimator), lengths=(1,), **columns)) == [expected]


def test_clamps_of_the_run() -> None:
    columns = {
        name: np.array([value], np.float32) for name, value in (("logprob", -1.0), ("old_logprob", -9.0), ("ref_logprob", -30))
    }
    made = batch(RunConfig(log_ratio_clamp=2.0, kl_input_clamp=20.0, kl_output_clamp=10.0), lengths=(1,), **columns)
    assert of("ratio", made) == [math.exp(2.0)]
    assert of("kl", made) == [10.0]


def test_dual_clip() -> None:
    columns = {"logprob": np.zeros(2, np.float32), "old_logprob": np.full(2, -2.0, np.float32), "advantage": np.array([-1, 1.0])}
    made = batch(RunConfig(clip_low=0.2, clip_high=0.2, dual_clip=3.0), lengths=(2,), **columns)
    assert of("clipped", made) == [CUT_DUAL, CUT_HIGH]


def test_unknown_bounds_stay_unknown() -> None:
    columns = drawn()
    assert np.isnan(QUANTITIES["clipped"].values(batch(**columns))).all()
    assert QUANTITIES["clipped"].lacks(columns, RunConfig(clip_low=0.2)) == ("config.clip_high",)
    assert QUANTITIES["mismatch"].lacks({"rollout_logprob", "logprob"}, RunConfig()) == ()
    assert QUANTITIES["mismatch"].lacks({"logprob"}, RunConfig()) == ("rollout_logprob",)


def test_a_nan_is_a_nan_and_an_impossible_logprob_too() -> None:
    old = np.array([-1.0, np.nan, -1.0, -1.0])
    made = batch(
        RunConfig(clip_low=0.2, clip_high=0.2), lengths=(4,), logprob=np.array([np.nan, -1.0, -1.0, -1.0]), old_logprob=old,
        rollout_logprob=np.array([-1.0, -1.0, 5.0, -2.0]), advantage=np.ones(4),
    )  # fmt: skip
    for name in ("ratio", "clipped", "contribution"):
        assert np.isnan(of(name, made)).tolist() == [True, True, False, False]
    assert np.isnan(of("mismatch", made)).tolist() == [False, True, True, False]


def test_masks() -> None:
    made = batch(
        lengths=(4, 3), response_mask=np.array([1, 1, 0, 1, 1, 0, 0], np.bool_),
        loss_mask=np.array([1, 1, 1, 1, 1, 0, 0], np.bool_), response_length=np.array([3, -(2**31)], np.int32),
    )  # fmt: skip
    assert of("masked", made) == [TRAINED, TRAINED, ONLY_NORMALISED, BEYOND, TRAINED, NOT_TRAINED, NOT_TRAINED]


def test_recorded_ratios_serve_where_the_logprobs_are_absent() -> None:
    made = batch(lengths=(2,), ratio=np.array([1.5, 0.5], np.float32), advantage=np.array([2.0, 2.0]), kl=np.array([0.1, 0.2]))
    assert of("ratio", made) == [1.5, 0.5]
    assert of("contribution", made) == [3.0, 1.0]
    assert of("kl", made) == [0.1, 0.2]


def test_row_means_leave_masked_tokens_and_nan_out() -> None:
    logprob = np.array([-1.0, np.nan, -999.0, -3.0, 0.0, -50.0])
    made = batch(
        lengths=(4, 0, 2), logprob=logprob, old_logprob=np.array([-1.5, -1.0, -1.0, -2.0, 0.0, 0.0]),
        response_mask=np.array([1, 1, 0, 1, 0, 0], np.bool_),
    )  # fmt: skip
    found = row_means(QUANTITIES["ratio"], made)
    assert found[0] == pytest.approx((0.5 + 1.0) / 2)
    assert np.isnan(found[1:]).all()
    assert row_means(QUANTITIES["masked"], made).tolist() == [1.0, 0.0, 2.0]


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        ("policy.ratio_mean", "ratio"), ("policy.outside_frac", "ratio"), ("policy.clip_frac_low", "clipped"),
        ("mismatch.rows_off_frac", "mismatch"), ("mismatch.first_k3", "ratio"), ("ref.kl_k1", "kl"),
        ("policy.entropy", "entropy"), ("mask.extra_tail_frac", "masked"), ("reward.mean", None), (None, None),
        ("nonsense", None),
    ],
)  # fmt: skip
def test_the_quantity_of_a_metric(metric: str | None, expected: str | None) -> None:
    found = quantity_of(metric)
    assert (None if found is None else found.name) == expected


def test_a_link_restores_every_quantity() -> None:
    for quantity in QUANTITIES.values():
        assert quantity_of(quantity.metric) is quantity

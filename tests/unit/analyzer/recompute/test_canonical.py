"""Canonical metrics as recipes are the registered metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.recompute.canonical import RECIPES, canonical_keys
from rl_doctor.analyzer.recompute.registry import dialects
from rl_doctor.analyzer.recompute.stages import Summed
from rl_doctor.analyzer.registry import metrics
from rl_doctor.analyzer.windows import entry_metrics, entry_series
from rl_doctor.schema import RunConfig, RunInfo
from tests.unit.analyzer.mistaken_logs import Shape, source, world
from tests.unit.analyzer.reference_trl import Memory

_ = dialects()  # whatever recipes name is registered
CONFIG = RunConfig(
    clip_low=0.2, clip_high=0.28, dual_clip=1.6, kl_coef=0.05, entropy_coef=0.02, kl_estimator="k3", value_clip=0.2,
    loss_agg="token-mean", kl_in_reward=False,
)  # fmt: skip
MEMORY = ("return", "value", "old_value")


def run(**config: Any) -> Memory:
    """A run in memory with the columns of a critic as well."""
    made = source(world(3, Shape(steps=3)), RunInfo(trainer="custom", world_size=2, config=replace(CONFIG, **config)))
    random = np.random.default_rng(0)
    for row in made.rows:
        size = len(row.tokens["logprob"])
        row.tokens.update({name: random.normal(0, 1, size).astype(np.float32) for name in MEMORY})
    return made


def equal(made: Memory) -> set[str]:
    """Compare every metric that has a recipe with what the recipe gives, and return their names."""
    keys = list(canonical_keys({name for name, _ in RECIPES}, made.info, made.columns))
    entries = [part for key in keys for part in entry_metrics(key.name, key.unit, key.reduction, key.entries)]
    found = analyze(made, [], [*(metrics()[key.name] for key in keys), *entries]).series
    for key in keys:
        series = entry_series(key.name, found)
        assert series is not None, key.name
        steps, (total, number, tolerance) = series
        own = found[key.name]
        assert metrics()[key.name].unit == key.unit
        np.testing.assert_array_equal(steps, own.steps)
        np.testing.assert_array_equal(number, 1)
        np.testing.assert_allclose(total, own.values, rtol=1e-12, atol=1e-12, err_msg=key.name)
        assert (tolerance >= 0).all()
        assert (tolerance < 1e-3).all(), key.name
    return {key.name for key in keys}


def test_every_recipe_is_its_metric() -> None:
    assert equal(run()) == {name for name, _ in RECIPES}


@pytest.mark.parametrize(
    "config",
    [
        {"log_ratio_clamp": 0.3, "kl_input_clamp": 0.4, "kl_output_clamp": 0.05, "kl_estimator": "k1"},
        {"dual_clip": None, "loss_agg": "seq-mean-token-mean", "kl_estimator": "k2", "kl_in_reward": None},
        {"loss_agg": "seq-mean-token-sum", "kl_in_reward": True, "kl_coef": 0.0, "kl_estimator": "abs"},
    ],
)
def test_under_other_settings(config: dict[str, Any]) -> None:
    left = {name for name, _ in RECIPES} - equal(run(**config))
    assert left == ({"policy.clip_frac_dual"} if "dual_clip" in config else set())


def test_the_weights_of_a_run_are_in_its_losses() -> None:
    made = run()
    random = np.random.default_rng(1)
    for row in made.rows:
        row.tokens["is_weight"] = random.uniform(0.5, 1.5, len(row.tokens["logprob"])).astype(np.float32)
    assert "policy.loss_pg" in equal(made)


def test_nothing_is_said_of_what_the_settings_leave_open() -> None:
    found = {key.name for key in canonical_keys(["policy.loss_pg", "ref.kl", "adv.mean"], RunInfo(), ())}
    assert found == {"adv.mean"}


def test_means_over_tokens_have_the_whole_family() -> None:
    names = {
        "ref.kl_k3": {"k1", "k3 reversed"},
        "policy.clip_frac": {"whatever the advantage"},
        "policy.loss_pg": {"without any clip"},
    }
    for key in canonical_keys(names, run().info, run().columns):
        assert isinstance(key.reduction, Summed)
        assert names[key.name] <= {one.name for one in key.hypotheses()}

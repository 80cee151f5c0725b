"""Where a clip range is configured twice, in the trainer's words and in canonical terms, the one that does not count is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.comparison import differing, fits
from rl_doctor.rules.registry import rules
from rl_doctor.schema import RunConfig
from tests.unit.analyzer.mistaken_logs import Array, Recipe, Shape, flags, number, source, trainers, world
from tests.unit.analyzer.reference_trl import logged
from tests.unit.analyzer.test_reconcile_cases import by_step, compared

LOW, HIGH = 0.1, 0.4
CANONICAL = "clip range of config.clip_low / clip_high instead of the trainer's own"
OWN = "the trainer's own instead of the clip range of config.clip_low / clip_high"
CASES: dict[str, tuple[str, dict[str, Any], str]] = {
    "verl": ("actor/pg_clipfrac", {"clip_low": LOW, "clip_high": HIGH}, CANONICAL),
    "trl": ("clip_ratio/region_mean", {"clip_low": LOW, "clip_high": HIGH}, CANONICAL),
    "openrlhf": ("ppo_clip_ratio", {"clip_low": LOW, "clip_high": HIGH}, CANONICAL),
    "slime": ("train/pg_clipfrac", {"native": {"eps_clip": LOW, "eps_clip_high": HIGH}}, OWN),
}  # fmt: skip


def binds(ratio: Array, advantage: Array) -> Array:
    return ((ratio < 1 - LOW) & (advantage < 0)) | ((ratio > 1 + HIGH) & (advantage > 0))


def explained(name: str, config: RunConfig, *, wrong: bool) -> list[str]:
    """What fits the clipped share as it is logged with the other range, or with the one that counts."""
    trainer, (key, _, _) = trainers()[name], CASES[name]
    micros, recipe = world(5, Shape()), trainer.keys[CASES[name][0]][0]
    chosen: Recipe = replace(recipe, value=flags(binds)) if wrong else recipe
    log = {step: {key: float(np.float32(number(chosen, part)))} for step, part in by_step(micros).items()}
    item = compared(replace(source(micros, replace(trainer.info, config=config)), log=logged(log)))[key]
    limits = rules()["RLD801"].limits
    flagged = differing(item, limits)
    if flagged is None:
        return ["right"]
    fitting = [fit.explanation for fit in fits(item, flagged) if fit.fits(limits["explained"])]
    return [one.name for one in fitting if not one.approximate]


def configured(name: str, change: dict[str, Any]) -> RunConfig:
    config = trainers()[name].info.config
    native = {**(config.native or {}), **change.get("native", {})}
    return replace(config, **{**change, "native": native})


@pytest.mark.parametrize("name", CASES)
def test_the_range_that_does_not_count_is_tried_and_named(name: str) -> None:
    _, change, words = CASES[name]
    assert explained(name, configured(name, change), wrong=True) == [words]
    assert explained(name, configured(name, change), wrong=False) == ["right"]


@pytest.mark.parametrize("name", CASES)
def test_it_is_not_where_both_say_the_same(name: str) -> None:
    assert not {CANONICAL, OWN} & {*explained(name, trainers()[name].info.config, wrong=True)}

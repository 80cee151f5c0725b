"""Keys of all dialects come out in the same bits for any cut into batches and any order of the rows of a step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

import numpy as np
import pytest

from rl_doctor.analyzer.dialects.recipes import Recipe
from rl_doctor.analyzer.dialects.registry import trainers
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.needs import lacking
from rl_doctor.analyzer.recompute import configured, recipes
from rl_doctor.analyzer.recompute.registry import Logged, dialects, find_dialect
from rl_doctor.analyzer.registry import Metric
from rl_doctor.analyzer.windows import entry_metrics
from rl_doctor.schema import RunInfo
from tests.property.whole_rows import filled
from tests.unit.analyzer.memory import MemoryRun, Row, batch
from tests.unit.analyzer.recompute import reference_verl, test_openrlhf
from tests.unit.analyzer.reference_trl import trl_run
from tests.unit.analyzer.rows import CONFIG

WORDS: Final[Mapping[str, str | bool]] = {
    "ratio_type": "token", "importance_sampling": "token", "kl_estimator": "k3", "kl_loss_type": "k3", "action": "mask",
    "reference_policy_kl_type": "k3", "agg": "mean", "level": "token", "metric": "ratio", "cispo_anchor": "old",
    "dppo_type": "binary_tv", "weight_type": "token", "adv_estimator": "grpo", "advantage_estimator": "grpo",
    "tis_ratio_type": "token", "sequence_mask_metric": "geometric", "enable_old_logprobs_recompute": True,
    "use_leave_one_out_baseline": True, "enabled": True, "use_pg_clip_range": True, "use_on_policy_kl_approximation": True,
    "use_unbiased_kl": True,
}  # fmt: skip
"""Settings that are words or flags: last part of their name -> one of their values."""
WORD: Final = "2"
"""What stands in the place of a family's name."""


@cache
def every_recipe() -> tuple[tuple[str, Recipe], ...]:
    """A name and each way of recomputing it that differs by more than the settings under which it is taken."""
    found: dict[Any, tuple[str, Recipe]] = {}
    for known in trainers().values():
        for item in known.names:
            for recipe in () if item.definition is None else item.definition.recipes:
                found.setdefault(replace(recipe, when={}).__repr__(), (f"{known.name} {item.native}", recipe))
    return tuple(found.values())


def _settled(recipe: Recipe) -> dict[str, Any]:
    """The settings under which a recipe is taken."""
    return {name.removesuffix("?"): values[-1] for part in (*recipe.beside, recipe) for name, values in part.when.items()}


def keys_of_recipes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Logged]:
    """All recipes, with settings that they can be made with."""
    told: dict[str, Any] = {}

    def setting(name: str, *_: Any, elsewhere: bool = False) -> Any:  # noqa: ARG001 - each has one
        bare = name.removesuffix("?")
        for one in bare.split("|"):
            if one in told or one.startswith("config."):
                value = told[one] if one in told else getattr(CONFIG, one.removeprefix("config."))
                if value is not None:
                    return value
        if name.startswith("word."):
            return WORD
        return None if name.endswith("?") else WORDS.get(bare.rpartition(".")[2], 0.25)

    dialects()  # all quantities are registered then
    monkeypatch.setattr(configured, "setting", setting)
    for label, recipe in every_recipe():
        told.clear()
        told.update(_settled(recipe))
        made = recipes.resolved(recipe, RunInfo(config=CONFIG))
        assert made is not None, label
        yield recipes.logged(label, None, made)


def possible(keys: list[Logged], rows: list[Row]) -> list[Logged]:
    """The keys that have what they need, and whose settings, made up here, go with each other."""
    first = batch([row for row in rows if row["step"] == rows[0]["step"]], RunInfo(config=CONFIG))
    found = []
    for key in keys:
        if not lacking(key.reduction.needs, set(rows[0]), CONFIG):
            try:
                with np.errstate(all="ignore"):
                    key.reduction.partial(first)
            except (KeyError, AssertionError, TypeError, ValueError):
                continue
            found.append(key)
    return found


def metrics_of(keys: list[Logged]) -> list[Metric]:
    """Their entries as metrics."""
    return [
        metric
        for at, key in enumerate(keys)
        for metric in entry_metrics(f"{at} {key.name}", key.unit, key.reduction, key.entries)
    ]


def equal(rows: list[Row], info: RunInfo, metrics: list[Metric], cut: int) -> int:
    """Compare the series of the whole steps and of the cut ones, bit by bit; how many there are."""
    runs = (Described(rows, info.config, cut=seed, described=info) for seed in (None, cut))
    whole, parts = (analyze(run, [], metrics).series for run in runs)
    assert whole.keys() == parts.keys()
    for name, series in whole.items():
        other = parts[name]
        np.testing.assert_array_equal(series.steps, other.steps, err_msg=name)
        if name.startswith("reconcile.tolerance."):  # no number of the run
            np.testing.assert_allclose(series.values, other.values, rtol=1e-12, err_msg=name)
            continue
        np.testing.assert_array_equal(series.values, other.values, err_msg=name, strict=True)
        assert series.values[~np.isnan(series.values)].tobytes() == other.values[~np.isnan(other.values)].tobytes(), name
    return len(whole)


class Described(MemoryRun):
    """A run in memory with a description of its own."""

    def __init__(self, rows: list[Row], config: Any, cut: int | None, described: RunInfo) -> None:
        super().__init__(rows, config, cut)
        self.described = described

    @property
    def info(self) -> RunInfo:
        return self.described


def test_every_recipe_of_every_dialect() -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        keys = list(keys_of_recipes(monkeypatch))
    chosen = possible(keys, filled(0))
    assert len(chosen) > 0.95 * len(keys), sorted({key.name for key in keys} - {key.name for key in chosen})
    metrics = metrics_of(chosen)
    for seed in range(2):
        assert equal(filled(seed), RunInfo(config=CONFIG), metrics, seed + 1) == len(metrics)


def described() -> Iterator[RunInfo]:
    """Runs of the trainers whose keys have code of their own, in each of their ways."""
    for version in ("0.5.0", "0.6.1", "0.7.1", "0.8.0", "0.9.1"):
        yield reference_verl.info(version)
    native = trl_run().info.config.native or {}
    for algorithm in ("grpo", "rloo"):
        for change in ({}, {"importance_sampling_level": "sequence"}, {"loss_type": "bnpo"}, {"loss_type": "cispo"}):
            made = trl_run().info
            yield replace(made, algorithm=algorithm, config=replace(made.config, native={**native, **change}))
    yield test_openrlhf.info_of()


@pytest.mark.parametrize("info", tuple(described()), ids=lambda info: f"{info.trainer} {info.trainer_version} {info.algorithm}")
def test_every_key_with_code_of_its_own(info: RunInfo) -> None:
    dialect = find_dialect(info)
    assert dialect is not None
    rows = filled(0)
    table = trainers()[info.trainer or ""].names
    names = {re.sub(r"\{\w+\}", "fmt", item.native) for item in table}
    columns = set(rows[0])
    keys = [key for key in dialect.logged(info, columns, names) if not lacking(key.reduction.needs, columns, info.config)]
    assert len(keys) >= 8
    metrics = metrics_of(keys)
    for seed in range(3):
        assert equal(filled(seed), info, metrics, seed + 1) == len(metrics)

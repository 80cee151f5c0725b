"""What recipes are made of: settings, families of names, stages, parts, and that the split of a run changes no bit."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.analyzer.derive import restricted
from rl_doctor.analyzer.dialects.recipes import UNDIVIDED, Fold, Recipe, Stage, exact, of
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainers
from rl_doctor.analyzer.recompute import folds
from rl_doctor.analyzer.recompute.configured import resolved, setting
from rl_doctor.analyzer.recompute.native import nested
from rl_doctor.analyzer.recompute.recipes import keys_of
from rl_doctor.analyzer.recompute.registry import Entries, Logged, dialects
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.batch import Batch
from tests.unit.analyzer.dialects import test_areal, test_nemo_rl, test_slime

_ = dialects()  # whatever recipes name is registered

RECORDED = {"slime": test_slime, "areal": test_areal, "nemo-rl": test_nemo_rl}


def info(**config: Any) -> RunInfo:
    return RunInfo(config=RunConfig(**config))


def batch(**columns: Any) -> Batch:
    """Rows of one token each unless ``lengths`` says otherwise."""
    lengths = np.asarray(columns.pop("lengths"))
    made = {name: np.asarray(values) for name, values in columns.items()}
    made.setdefault("response_mask", np.ones(int(lengths.sum()), np.bool_))
    made.setdefault("sequence", np.arange(len(lengths)))
    return Batch(1, made, np.concatenate([[0], np.cumsum(lengths)]))


def key(recipe: Recipe, native: str = "a", **config: Any) -> Logged:
    table = Trainer("x", "x", "", (Name(native, None, definition=exact("", recipe)),))
    (found,) = keys_of(table, info(**config), [native])
    return found


def value(recipe: Recipe, *batches: Batch, **config: Any) -> float:
    found = key(recipe, **config)
    state = found.reduction.zero
    for one in batches:
        state = state + found.reduction.partial(one)
    entries: Entries = found.entries(state)
    return entries.total / entries.number if entries.number else math.nan


def test_a_setting_is_looked_up_by_any_of_its_names() -> None:
    run = info(clip_low=0.1, native={"loss": {"low": 0.2}, "deep.name": 3})
    assert setting("config.clip_low|native.loss.low", run) == 0.1
    assert setting("config.clip_high|native.loss.low", run) == 0.2
    assert nested(run.config.native, "deep.name") == 3
    assert setting("word.k", run, {"k": "8"}) == "8"
    unknown = setting("native.loss.high", run)
    assert unknown not in (None, 0, 0.2)
    assert setting("native.loss.high?", run) is None
    assert setting("native.loss.high?", info()) is unknown, "without the trainer's configuration nothing is known to be None"


@pytest.mark.parametrize(("given", "taken"), [(True, True), (1, False), (False, False), (None, False)])
def test_true_is_not_one(given: object, taken: bool) -> None:
    recipe = Recipe(of("one"), Fold(divisor=UNDIVIDED), when={"native.flag": (True,)})
    table = Trainer("x", "x", "", (Name("a", None, definition=exact("", recipe)),))
    assert bool(keys_of(table, info(native={"flag": given}), ["a"])) is taken


def test_a_recipe_whose_settings_are_unknown_is_none() -> None:
    recipe = Recipe(of("surrogate", low="config.clip_low", high="config.clip_high", x=of("constant", value="native.x")))
    assert resolved(recipe, info(clip_low=0.2)) is None
    assert resolved(recipe, info(clip_low=0.2, clip_high=0.2, native={"x": 0.0})) is not None


def test_of_several_recipes_the_first_with_its_columns_is_taken() -> None:
    recipes = [Recipe(of("column", name=name)) for name in ("entropy", "old_entropy")]
    table = Trainer("x", "x", "", (Name("a", None, definition=exact("", *recipes)),))
    for columns, need in (({"old_entropy"}, "old_entropy"), ({"entropy", "old_entropy"}, "entropy"), (set(), "entropy")):
        (found,) = keys_of(table, info(), ["a"], columns)
        assert found.reduction.needs == (need,)


def test_the_words_of_a_family_are_arguments_as_they_were_written() -> None:
    recipe = Recipe(of("groups_uniform", text="word.reward"), level="rollout", statistic="sum")
    names = (Name("zero/count_{reward}", "part.{reward}", definition=exact("", recipe)), Name("zero/{rest}", None))
    (found,) = keys_of(Trainer("x", "x", "", names), info(), ["train/zero/count_1.0"])
    assert (found.name, found.metric) == ("train/zero/count_1.0", "part.1.0")
    rows = batch(lengths=[1, 1, 1, 1], group=["a", "a", "b", "b"], reward=[1.0, 1.0, 1.0, 0.0])
    assert found.entries(found.reduction.partial(rows)).total == 1.0


def test_a_family_that_has_no_recipe_here_leaves_its_names_to_no_other() -> None:
    only = Recipe(of("one"), when={"native.on": (True,)})
    names = (Name("{a}/update/n", None, definition=exact("", only)), Name("{a}/n", None, definition=exact("", Recipe(of("one")))))
    table = Trainer("x", "x", "", names)
    assert [item.name for item in keys_of(table, info(native={"on": False}), ["x/update/n", "x/n"])] == ["x/n"]


def test_rows_that_are_parts_of_one_are_pooled_in_any_order_and_split() -> None:
    recipe = Recipe(of("column", name="entropy"), Fold(row="mean"), per="session_id")
    rows = batch(lengths=[2, 1, 0, 3], entropy=[1.0, 2.0, 6.0, 0.1, 0.2, 0.3], session_id=np.array(["a", "a", "b", None], object))
    expected = ((1.0 + 2.0 + 6.0) / 3 + 0.0 + (0.1 + 0.2 + 0.3) / 3) / 3
    whole = value(recipe, rows)
    assert whole == pytest.approx(expected, rel=1e-15)
    parts = [restricted(rows, np.arange(4) == at, tuple(rows.columns)) for at in (3, 1, 0, 2)]
    assert value(recipe, *parts) == whole


def test_infinities_of_both_signs_are_no_error() -> None:
    assert math.isnan(folds.total([math.inf, -math.inf]))
    recipe = Recipe(of("column", name="entropy"), Fold(apart=("microbatch",), stages=(Stage(("microbatch",), "sum"),)))
    rows = batch(lengths=[1, 1], entropy=[math.inf, -math.inf], microbatch=[0, 1])
    assert math.isnan(value(recipe, rows))


@pytest.mark.parametrize(("filled", "expected"), [(False, 1.0), (True, 2.0)])
def test_parts_without_tokens_count_as_nothing_or_not_at_all(filled: bool, expected: float) -> None:
    recipe = Recipe(of("column", name="entropy"), Fold(apart=("microbatch",), filled=filled))
    rows = batch(lengths=[2, 1], entropy=[1.0, 3.0, 5.0], microbatch=[0, 1], response_mask=np.array([True, True, False]))
    assert value(recipe, rows) == expected


def test_a_condition_leaves_tokens_out_of_sum_and_count() -> None:
    recipe = Recipe(of("column", name="entropy"), where=of("above", name="reward", bound=0.5))
    assert value(recipe, batch(lengths=[2, 1], entropy=[1.0, 3.0, 50.0], reward=[1.0, 0.0])) == 2.0
    greatest = Recipe(of("column", name="entropy"), statistic="max", where=of("above", name="reward", bound=0.5))
    assert value(greatest, batch(lengths=[2, 1], entropy=[1.0, 3.0, 50.0], reward=[1.0, 0.0])) == 3.0


def test_a_term_whose_coefficient_is_0_needs_no_columns() -> None:
    loss = of(
        "sum", first=of("column", name="entropy"), second=of("scaled", value=of("column", name="kl"), factor="config.kl_coef")
    )
    assert key(Recipe(loss), kl_coef=0.0).reduction.needs == ("entropy",)
    assert key(Recipe(loss), kl_coef=0.5).reduction.needs == ("entropy", "kl")
    assert value(Recipe(loss), batch(lengths=[1], entropy=[2.0], kl=[3.0]), kl_coef=0.5) == 3.5


def test_the_extreme_of_each_part_goes_through_the_stages() -> None:
    recipe = Recipe(of("column", name="entropy"), Fold(apart=("microbatch",)), statistic="max")
    rows = batch(lengths=[2, 1, 1], entropy=[1.0, 3.0, 7.0, 4.0], microbatch=[0, 1, 0])
    assert value(recipe, rows) == pytest.approx((4.0 + 7.0) / 2)


def test_the_share_of_variance_explained_follows_from_four_means() -> None:
    value_, returns = np.array([0.5, 1.0, -0.2, 0.1]), np.array([0.4, 1.5, -0.4, 0.3])
    square, residual = (
        of("product", left=_column("return"), right=_column("return")),
        of("log_ratio", first="return", second="value"),
    )
    means = [Recipe(one) for one in (_column("return"), _column("value"), square, of("product", left=residual, right=residual))]
    recipe = Recipe(means[0].value, beside=tuple(means[1:]), joined="explained")
    rows = batch(lengths=[4], value=value_, **{"return": returns})
    assert value(recipe, rows) == pytest.approx(1 - np.var(returns - value_) / np.var(returns), rel=1e-12)


def _column(name: str) -> Any:
    return of("column", name=name)


@pytest.mark.parametrize("trainer", RECORDED)
def test_any_split_in_any_order_gives_the_same_bits(tmp_path: Path, trainer: str) -> None:
    module = RECORDED[trainer]
    run = module.recorded(tmp_path / "run", module.NAMES[0])
    keys = [
        item
        for item in keys_of(trainers()[trainer], run.info, run.metrics().names(), run.columns)
        if item.reduction.level == "token" and set(item.reduction.needs) <= set(run.columns)
    ]
    assert len(keys) > 10
    whole = list(open_run(tmp_path / "run").batches(run.columns))
    names = tuple(run.columns)
    for item in keys:
        for step in {one.step for one in whole}:
            rows = [one for one in whole if one.step == step]
            singles = [
                restricted(one, np.arange(one.n_sequences) == at, names)
                for one in rows
                for at in reversed(range(one.n_sequences))
            ]
            found = [item.entries(_folded(item, batches)) for batches in (rows, singles)]
            assert found[0].total == found[1].total, item.name
            assert found[0].number == found[1].number


def _folded(item: Logged, batches: list[Batch]) -> Any:
    state = item.reduction.zero
    for one in batches:
        state = state + item.reduction.partial(one)
    return state

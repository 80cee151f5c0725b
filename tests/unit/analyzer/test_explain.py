"""The second pass: what it reads, which rows it looks at, and what it can only call consistent."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, open_run
from rl_doctor.analyzer import explain, reconcile
from rl_doctor.analyzer.comparison import Comparison, Explanation, differing, fits, same
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.explain import explained
from rl_doctor.analyzer.recompute.stages import Shares
from rl_doctor.analyzer.recompute.variations.cells import Gathered
from rl_doctor.analyzer.recompute.variations.measures import Stage, Stages, Varied
from rl_doctor.analyzer.windows import over_windows
from rl_doctor.rules.registry import rules
from rl_doctor.store.batch import Batch
from rl_doctor.store.metric_log import MetricLog
from tests.unit.analyzer.reference_trl import STEPS, Memory, expected, logged, make_rows, trl_run

LIMITS = rules()["RLD801"].limits


def second(run: Memory) -> tuple[dict[str, Comparison], list[set[str]]]:
    """The comparisons, and the columns of each reading after the first."""
    plan = reconcile.plan(run.info, run.columns, run.log)
    comparisons = reconcile.compare(plan, analyze(run, [], plan.metrics).series)
    run.reads.clear()
    return {item.name: item for item in explained(plan, run, comparisons, LIMITS)}, list(run.reads)


def entropy_times(factor: Any) -> Memory:
    run = trl_run(1, make_rows(3))
    values = {step: {"entropy": expected(run.rows, step - 1, step)["entropy"] * factor(step)} for step in range(1, STEPS + 1)}
    return replace(run, log=logged(values))


def test_a_right_log_is_not_read_again() -> None:
    found, reads = second(trl_run(1))
    assert reads == []
    assert all(item.explanations == () for item in found.values())


def test_only_the_columns_of_keys_that_differ_are_read() -> None:
    found, reads = second(entropy_times(lambda _: 7.0))
    assert {explanation.name for explanation in found["entropy"].explanations} >= {"without the mask", "opposite sign"}
    read = set().union(*reads)
    assert {"entropy", "response_mask"} <= read
    assert "ref_logprob" not in read
    assert "advantage" not in read


def test_only_the_rows_that_are_looked_at_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(window: Any, starts: Any, ends: Any, *rest: Any) -> Any:
        asked.append(len(ends))
        return over_windows(window, starts, ends, *rest)

    run = entropy_times(lambda _: 7.0)
    monkeypatch.setattr(explain, "over_windows", counted)
    monkeypatch.setattr(explain, "_MOST", 2)
    found, _ = second(run)
    item = found["entropy"]
    assert item.looked is not None
    assert (int(item.looked.sum()), len(item.steps)) == (2, STEPS)
    assert set(asked) == {2}
    for one in item.explanations:
        assert not np.isfinite(one.values[~item.looked]).any()


def test_only_generation_batches_that_are_looked_at_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: dict[int, set[bool]] = {}
    computed = explain._at_steps

    def counted(batch: Batch, reads: Any, steps: Any) -> Any:
        found = computed(batch, reads, steps)
        looked.setdefault(batch.step, set()).add(found.state is not None)
        return found

    rows = make_rows(3)
    first = {step: expected(rows, step - 1, step).get("reward_std") for step in range(1, STEPS + 1)}
    run = replace(trl_run(1, rows), log=logged({step: {"reward_std": 3 * std} for step, std in first.items() if std is not None}))
    monkeypatch.setattr(explain, "_at_steps", counted)
    monkeypatch.setattr(explain, "_MOST", 2)
    found, _ = second(run)
    item = found["reward_std"]
    assert item.looked is not None
    assert looked == {step: {step in item.steps[item.looked]} for step in (1, 3, 5, 7)}
    told = [one for one in item.explanations if np.isfinite(one.values).any()]
    assert {"opposite sign", "ddof 0"} & {one.name for one in told}
    for one in told:
        assert not np.isfinite(one.values[~item.looked]).any()


def test_rows_of_a_step_each_are_put_together_as_those_of_several() -> None:
    sums = (np.array([1.0, 2.0, 4.0]), np.array([1.0, 0.0, 2.0]), np.array([0.1, 0.2, 0.3]))
    steps, ends = np.array([2, 3, 5]), np.arange(1, 7)
    values, slack = over_windows("step", ends - 1, ends, steps, sums)
    np.testing.assert_array_equal(values, [np.nan, 1.0, np.nan, np.nan, 2.0, np.nan])
    assert (slack[1], slack[4]) == (0.1, 0.15)
    together, _ = over_windows("step", np.array([0, 2, 5]), np.array([2, 5, 6]), steps, sums)
    np.testing.assert_array_equal(together, [1.0, 3.0, np.nan])


def consistent(factor: Any) -> str:
    found, _ = second(entropy_times(factor))
    item = found["entropy"]
    wrong = differing(item, LIMITS)
    assert wrong is not None
    fitting = [fit.explanation for fit in fits(item, wrong) if fit.fits(0.95)]
    assert all(one.approximate for one in fitting)
    return "; ".join(one.sentence for one in fitting)


def test_entropy_of_a_part_of_the_vocabulary_and_at_another_temperature_are_called_consistent() -> None:
    wobble = np.random.default_rng(0).uniform(0.9, 1.1, STEPS + 1)
    shard = consistent(lambda step: 0.25 * wobble[step])
    assert "as where one of 4 shards of the vocabulary is summed" in shard
    assert "at a temperature above 1" in consistent(lambda step: 1.4 * (0.97 + 0.3 * (wobble[step] - 0.9)))
    assert consistent(lambda step: 30.0 * wobble[step] ** 9) == ""


def test_a_run_gives_some_steps_alone(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", info={"trainer": "custom"}) as recorder:
        for step in range(1, 6):
            recorder.log_batch(step=step, reward=np.full(2, float(step)))
    run = open_run(tmp_path / "run")
    assert [batch.step for batch in run.only({2, 5, 9}).batches(["reward"])] == [2, 5]


def test_sums_in_other_stages() -> None:
    values = np.array([1.0, 2.0, 3.0, 4.0, 10.0])
    keys = {"rank": np.array([0, 0, 1, 1, 0]), "microbatch": np.array([0, 1, 0, 1, 0])}
    batch = Batch(4, {name: part.astype(np.int64) for name, part in keys.items()}, np.arange(6, dtype=np.int64))

    def share(_: Batch) -> Shares:
        return Shares(values, values, np.array([1, 1, 1, 1, 3]))

    gathered = Gathered()
    gathered.add(batch, [share])
    gathered.add(replace(batch, step=2, scratch={}), [share])
    cells = gathered.finish()
    cell = ("rank", "rollout_step", "epoch", "minibatch", "microbatch")
    first = (1.0 + 10.0) / 4  # rank 0, micro-batch 0
    for stages, number, total in (
        (Stages(), 1, 20.0 / 7), (Stages(cell), 4, first + 2 + 3 + 4), (Stages(("rank",)), 2, 13.0 / 5 + 3.5),
        (Stages(cell, (Stage(("microbatch",), "sum"), Stage(("rank",), "mean"))), 1, (first + 2 + 7) / 2),
    ):  # fmt: skip
        found = cells.per_step(Varied("", "", (share,), stages, ()))
        np.testing.assert_array_equal(found.steps, [2, 4])
        np.testing.assert_array_equal(found.number, number)
        np.testing.assert_allclose(found.total, total, rtol=1e-15)
    kept = cells.per_step(Varied("", "", (share,), Stages(), (), only="last micro-batch"))
    np.testing.assert_allclose(kept.total, (2.0 + 4.0) / 2)
    rank = cells.per_step(Varied("", "", (share,), Stages(), (), only="rank 1"))
    np.testing.assert_allclose(rank.total, 3.5)


def test_explanations_that_give_the_same_numbers_are_told_as_one() -> None:
    true = np.linspace(1.0, 2.0, 5)
    item = Comparison("kl", None, "nat", np.arange(5), 2 * true, true, np.full(5, 1e-9))
    one, other = (Explanation("", "", values, np.zeros(5)) for values in (2 * true, np.where(np.arange(5) < 3, 2 * true, np.nan)))
    assert same(item, one, other)
    assert not same(item, one, replace(other, values=2 * true + 1e-6))


def test_an_empty_log_has_nothing_to_explain() -> None:
    run = replace(trl_run(1), log=MetricLog())
    assert second(run) == ({}, [])

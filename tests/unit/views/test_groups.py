"""Groups of hand-made runs against counting in plain Python."""

from __future__ import annotations

import dataclasses
import random
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rl_doctor import Recorder
from rl_doctor.live.followed import Followed
from rl_doctor.store.batch import Batch
from rl_doctor.store.run import Run
from rl_doctor.views.groups import LISTED, ROWS, STEP_BINS, again, groups_at, shares, short, solve_map
from rl_doctor.views.opened import Opened
from rl_doctor.views.outcomes import _BEFORE, Outcomes, lacking, outcomes

Rows = list[dict[str, Any]]


def opened(folder: Path, rows: Rows) -> Opened:
    path = folder / "run.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return Followed(path).opened


def sampled(seed: int, steps: int = 30, prompts: int = 12, each: int = 4, size: int = 4) -> Rows:
    """Prompts that come back, of different skill, each response trained on twice."""
    rng, rows = random.Random(seed), []
    for step in range(1, steps + 1):
        for item in range(each):
            group = (step * each + item) % prompts
            for number in range(size):
                reward = float(rng.random() < group / (prompts - 1))
                for epoch in range(2):
                    rows.append(
                        {
                            "step": 10 * step + epoch, "rollout_step": step, "epoch": epoch, "minibatch": 0, "group": f"p{group}",
                            "uid": f"{step}-{item}-{number}", "reward": reward, "sequence": len(rows),
                        }
                    )  # fmt: skip
    rng.shuffle(rows)
    return sorted(rows, key=lambda row: row["step"])


def by_sight(rows: Rows) -> dict[tuple[int, str], list[float]]:
    """The rewards of each group in each generation batch, each response once: (first step, group) -> rewards."""
    found: dict[tuple[int, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        found[10 * row["rollout_step"], row["group"]][row["uid"]] = row["reward"]
    return {key: list(rewards.values()) for key, rewards in found.items()}


@pytest.mark.parametrize("seed", range(3))
def test_each_group_is_counted_once_for_each_generation_batch(tmp_path: Path, seed: int) -> None:
    rows = sampled(seed)
    found = outcomes(opened(tmp_path, rows))
    assert found is not None
    wanted = by_sight(rows)
    keys = [(step, found.names[group]) for step, group in zip(found.step.tolist(), found.group.tolist(), strict=True)]
    assert sorted(keys) == sorted(wanted)
    assert found.kind == "binary"
    for key, size, rate, equal, right in zip(keys, found.size, found.rate, found.equal, found.right, strict=True):
        rewards = wanted[key]
        assert (size, rate) == (len(rewards), pytest.approx(sum(rewards) / len(rewards)))
        assert bool(equal) == (len(set(rewards)) == 1)
        assert bool(right) == (set(rewards) == {1.0})


def test_a_map_has_a_row_for_each_prompt_that_comes_back(tmp_path: Path) -> None:
    rows = sampled(0)
    found = solve_map(opened(tmp_path, rows), "lowest")
    assert found is not None
    assert not found.ranked
    wanted = by_sight(rows)
    for (step, group), rewards in wanted.items():
        row = found.rows.index(group)
        column = int(np.searchsorted(found.columns.first, step, side="right")) - 1
        assert found.size[row, column] == len(rewards)
        assert found.rate[row, column] == pytest.approx(sum(rewards) / len(rewards))
    assert int(found.size.sum()) == sum(map(len, wanted.values()))
    assert np.isnan(found.rate[found.size == 0]).all()
    assert found.recurring == 1.0


def whole(rows: Rows) -> dict[str, float]:
    rewards = defaultdict(list)
    for (_, group), own in by_sight(rows).items():
        rewards[group] += own
    return {group: sum(own) / len(own) for group, own in rewards.items()}


def test_orders(tmp_path: Path) -> None:
    rows = sampled(1)
    run, rates = opened(tmp_path, rows), whole(rows)

    def order(name: str) -> list[str]:
        found = solve_map(run, name)
        assert found is not None
        assert found.order == name
        return list(found.rows)

    assert [rates[group] for group in order("lowest")] == sorted(rates.values())
    middle = [abs(rates[group] - 0.5) for group in order("mixed")]
    assert middle == sorted(middle)
    sights: dict[str, list[float]] = defaultdict(list)
    for (_, group), rewards in sorted(by_sight(rows).items()):
        sights[group].append(sum(rewards) / len(rewards))
    size = [-abs(sights[group][-1] - sights[group][0]) for group in order("change")]
    assert size == sorted(size)
    assert {*order("often")} == {*rates}
    unknown = solve_map(run, "no such order")
    assert unknown is not None
    assert list(unknown.rows) == order("change")


def test_a_long_list_is_cut_into_parts(tmp_path: Path) -> None:
    rows = sampled(2, steps=200, prompts=100)
    run = opened(tmp_path, rows)
    maps = [solve_map(run, "lowest", part) for part in (1, 2, 3)]
    assert [len(found.rows) for found in maps if found] == [ROWS, ROWS, 100 - 2 * ROWS]
    assert len({group for found in maps if found for group in found.rows}) == 100
    for found in maps:
        assert found is not None
        assert found.rate.shape[1] == STEP_BINS
        assert found.rate.size <= 5000
        assert found.parts == 3
    last = maps[2]
    assert last is not None
    wanted = solve_map(run, "lowest", None, last.rows[-1])
    assert wanted is not None
    assert wanted.part == 3
    beyond = solve_map(run, "lowest", 99)
    assert beyond is not None
    assert (beyond.part, beyond.part_label(1), beyond.part_label(3)) == (3, "1–40", "81–100")  # noqa: RUF001


def test_groups_that_do_not_come_back_are_ranked(tmp_path: Path) -> None:
    rows = [row | {"group": f"{row['rollout_step']}-{row['group']}"} for row in sampled(0)]
    found = solve_map(opened(tmp_path, rows))
    assert found is not None
    assert found.ranked
    assert found.recurring == 0.0
    wanted = defaultdict(list)
    for (step, _), rewards in by_sight(rows).items():
        wanted[step].append(sum(rewards) / len(rewards))
    for column, step in enumerate(found.columns.first.tolist()):
        assert found.rate[:, column].tolist() == pytest.approx(sorted(wanted[step], reverse=True))


def test_shares_by_step(tmp_path: Path) -> None:
    rows = sampled(3)
    found = shares(opened(tmp_path, rows))
    assert found is not None
    wanted = defaultdict(list)
    for (step, _), rewards in by_sight(rows).items():
        wanted[step].append(rewards)
    for column, step in enumerate(found.columns.first.tolist()):
        groups = wanted[step]
        assert found.n[column] == len(groups)
        assert found.right[column] == pytest.approx(sum(set(own) == {1.0} for own in groups) / len(groups))
        assert found.wrong[column] == pytest.approx(sum(set(own) == {0.0} for own in groups) / len(groups))
    every = [own for groups in wanted.values() for own in groups]
    assert found.without_signal == pytest.approx(sum(len(set(own)) == 1 for own in every) / len(every))
    assert (found.right + found.wrong + found.mixed).tolist() == pytest.approx([1.0] * len(found.n))


def test_groups_of_one_response_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"step": step, "uid": f"{step}-{i}", "group": f"g{i // 2}", "reward": float(i % 2)} for step in (1, 2) for i in range(5)
    ]
    found = shares(opened(tmp_path, rows))
    assert found is not None
    assert (found.left_out, found.n.tolist()) == (2, [2, 2])
    assert shares(opened(tmp_path, [row | {"group": row["uid"]} for row in rows])) is None


def test_what_right_means(tmp_path: Path) -> None:
    rows = sampled(0)

    def kind(change) -> tuple[str, str, bool]:
        found = outcomes(opened(tmp_path, [change(row) for row in rows]))
        assert found is not None
        return found.column, found.kind, bool(found.right.any())

    assert kind(lambda row: row) == ("reward", "binary", True)
    assert kind(lambda row: row | {"reward": -1.0 + 2 * row["reward"]}) == ("reward", "binary", True)
    assert kind(lambda row: row | {"reward": 1.0}) == ("reward", "binary", True)
    assert kind(lambda row: row | {"reward": 0.0}) == ("reward", "binary", False)
    graded = random.Random(0)
    assert kind(lambda row: row | {"reward": graded.random()}) == ("reward", "graded", False)
    assert kind(lambda row: row | {"reward": graded.random(), "score": row["reward"]}) == ("score", "binary", True)
    assert kind(lambda row: row | {"reward": max(row["reward"], 0.5 * graded.random())}) == ("reward", "bounded", True)


def test_graded_rewards_are_shown_by_their_means(tmp_path: Path) -> None:
    rng = random.Random(0)
    rewards: dict[str, float] = {}
    rows = [row | {"reward": rewards.setdefault(row["uid"], rng.uniform(-3, 5))} for row in sampled(0)]
    found = outcomes(opened(tmp_path, rows))
    assert found is not None
    wanted = by_sight(rows)
    for step, group, rate in zip(found.step.tolist(), found.group.tolist(), found.rate.tolist(), strict=True):
        own = wanted[step, found.names[group]]
        assert rate == pytest.approx(sum(own) / len(own))
    assert found.ends == (min(rewards.values()), max(rewards.values()))


def test_groups_seen_again(tmp_path: Path) -> None:
    rows = sampled(4)
    found = again(opened(tmp_path, rows))
    assert found is not None
    sights: dict[str, list[float]] = defaultdict(list)
    for (_, group), rewards in sorted(by_sight(rows).items()):
        sights[group].append(sum(rewards) / len(rewards))
    for number, count, rate, change, fell, rose in zip(*found.table.values(), strict=True):
        own = [rates for rates in sights.values() if len(rates) >= number]
        assert count == len(own)
        assert rate == pytest.approx(np.mean([rates[number - 1] for rates in own]))
        if number > 1:
            moved = [rates[number - 1] - rates[number - 2] for rates in own]
            assert change == pytest.approx(np.mean(moved))
            assert (fell, rose) == pytest.approx((np.mean([m < 0 for m in moved]), np.mean([m > 0 for m in moved])))
    assert again(opened(tmp_path, [row | {"group": f"{row['rollout_step']}-{row['group']}"} for row in rows])) is None


def test_the_groups_of_a_step(tmp_path: Path) -> None:
    rows = sampled(5)
    run = opened(tmp_path, rows)
    found = groups_at(run, 101)
    assert found is not None
    assert (found.step, found.first, found.last) == (100, 10, 300)
    wanted = {group: sum(own) / len(own) for (step, group), own in by_sight(rows).items() if step == 100}
    assert dict(zip(found.names, found.table["rate"], strict=True)) == pytest.approx(wanted)
    assert list(found.table["rate"]) == sorted(wanted.values())
    last = groups_at(run, None)
    assert last is not None
    assert last.step == 300
    assert len(last.names) <= LISTED


def test_runs_without_groups(stale: Opened) -> None:
    bare = dataclasses.replace(stale, run=dataclasses.replace(stale.run, columns=stale.run.columns - {"group"}))
    assert lacking(bare.run) == ("group",)
    none = dataclasses.replace(stale, run=dataclasses.replace(stale.run, columns=frozenset({"step"})))
    assert lacking(none.run) == ("group", "reward")
    for run in (bare, none):
        assert outcomes(run) is None
        assert solve_map(run) is None
        assert shares(run) is None
        assert again(run) is None
        assert groups_at(run, 3) is None


def test_unknown_rewards_and_groups_are_left_out(tmp_path: Path) -> None:
    rows = [
        {"step": 1, "uid": str(i), "group": "a" if i < 4 else None, "reward": None if i == 0 else float(i % 2)} for i in range(8)
    ]
    found = outcomes(opened(tmp_path, rows))
    assert found is not None
    assert (found.names, found.size.tolist(), found.rate.tolist()) == (("a",), [3], [pytest.approx(2 / 3)])


def test_it_is_read_once(tmp_path: Path) -> None:
    run = opened(tmp_path, sampled(0))
    assert outcomes(run) is outcomes(run)


def log(recorder: Recorder, step: int, seed: int = 0) -> None:
    rng = np.random.default_rng((step, seed))
    group, uid = np.array([f"g{(step + i // 4) % 5}" for i in range(16)]), np.array([f"{step}-{i}" for i in range(16)])
    recorder.log_batch(
        step=step, epoch=0, minibatch=0, response_mask=np.ones((16, 2), bool), response_length=np.full(16, 2),
        logprob=rng.normal(-1, 0.1, (16, 2)), reward=(rng.random(16) < 0.5).astype(float), group=group, uid=uid,
    )  # fmt: skip
    recorder.flush()


def whole_again(run: Opened) -> Outcomes:
    _BEFORE.clear()
    found = outcomes(dataclasses.replace(run))
    assert found is not None
    return found


def same(one: Outcomes | None, other: Outcomes) -> bool:
    assert one is not None
    arrays = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("group", "step", "size", "rate", "equal"))
    return arrays and (one.names, one.kind) == (other.names, other.kind)


def test_of_a_run_that_grows_only_the_new_steps_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    batches = Run.batches

    def counted(run: Run, columns: Collection[str], **more: int) -> Iterator[Batch]:
        for batch in batches(run, columns, **more):
            read.append(batch.step)
            yield batch

    with Recorder(tmp_path / "run", info={"trainer": "custom"}) as recorder:
        for step in range(1, 9):
            log(recorder, step)
        followed = Followed(tmp_path / "run")
        outcomes(followed.opened)
        known = max(followed.opened.run.steps)
        for last in (11, 12, 15):
            for step in range(known + 2, last + 1):
                log(recorder, step)
            followed.refresh()
            run = followed.opened
            read.clear()
            with monkeypatch.context() as patch:
                patch.setattr(Run, "batches", counted)
                grown = outcomes(run)
            assert sorted(set(read)) == [step for step in run.run.steps if step >= known]
            known = max(run.run.steps)
            earlier = dict(_BEFORE)
            assert same(grown, whole_again(run))
            _BEFORE.update(earlier)


def test_of_a_run_that_was_replaced_everything_is_read_again(tmp_path: Path) -> None:
    first, second = sampled(0), [row | {"reward": 1.0 - row["reward"]} for row in sampled(0)]
    before = outcomes(opened(tmp_path, first))
    replaced = opened(tmp_path, second)
    after = outcomes(replaced)
    assert before is not None
    assert not same(after, before)
    assert same(after, whole_again(replaced))


def test_long_names_keep_both_ends() -> None:
    assert short("a" * 24) == "a" * 24
    assert short("abcdefgh-1234-5678-9999-ijklmnop") == "abcdefgh-1234-5…ijklmnop"

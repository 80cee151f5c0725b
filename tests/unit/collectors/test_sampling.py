"""Sampling keeps the tokens of whole groups, the same on every rank and in every pass, and every row."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, open_run
from rl_doctor.collectors.sampling import GroupSampler, place
from rl_doctor.errors import UsageError
from rl_doctor.store.pack import pack
from rl_doctor.store.rows import Rows

WIDTH = 6
GROUPS = 8
SIZE = 4


def batch(step: int, groups: list[int], *, epoch: int = 0, rollout: int | None = None, **more: Any) -> dict[str, Any]:
    """Columns of one call of ``log_batch``: groups of four samples."""
    rollout = step if rollout is None else rollout
    names = [f"{rollout}-{group}" for group in groups for _ in range(SIZE)]
    rng = np.random.default_rng(rollout)
    logprob = rng.normal(-1, 0.3, (len(names), WIDTH)).astype(np.float32)
    return {
        "step": step, "epoch": epoch, "rollout_step": rollout, "response_mask": np.ones((len(names), WIDTH), bool),
        "response_length": np.full(len(names), WIDTH), "logprob": logprob, "reward": np.arange(len(names), dtype=np.float64),
        "group": names, "uid": [f"{name}/{row % SIZE}" for row, name in enumerate(names)], **more,
    }  # fmt: skip


def kept_groups(folder: Path) -> dict[tuple[int, int], dict[str, set[bool]]]:
    """For each step and epoch the groups, each with whether its rows have tokens."""
    found: dict[tuple[int, int], dict[str, set[bool]]] = {}
    for part in open_run(folder).batches(["group", "epoch", "tokens_dropped", "logprob"]):
        lengths = np.diff(part.splits)
        for group, epoch, dropped, length in zip(
            part.columns["group"], part.columns["epoch"], part.columns["tokens_dropped"], lengths, strict=True
        ):
            assert bool(dropped) == (length == 0)
            found.setdefault((part.step, int(epoch)), {}).setdefault(str(group), set()).add(not dropped)
    return found


def test_a_place_is_the_same_for_ever() -> None:
    assert [place("group:17-3", 17), place("uid:abc", 1)] == [3772541171627066841, 6980279812230510525]


@pytest.mark.parametrize("name", ["{step}-{slot}", "{slot}", "prompt {slot} of the set"])
@pytest.mark.parametrize(("slots", "share"), [(8, 0.25), (16, 0.25), (64, 0.1), (16, 1 / 3)])
def test_the_share_is_exact_in_the_long_run_and_each_slot_has_its_turn(name: str, slots: int, share: float) -> None:
    kept = np.array(
        [[place(name.format(step=step, slot=slot), step) < share * 2**64 for slot in range(slots)] for step in range(1, 1001)]
    )
    assert kept.mean() == pytest.approx(share, rel=0.01)
    np.testing.assert_allclose(kept.mean(axis=0), share, rtol=0.2)
    if name.endswith("{slot}"):
        assert kept.any(axis=1).all()
        assert kept.sum(axis=1).max() <= share * slots + 3


def test_keeps_every_row_and_the_tokens_of_whole_groups(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Recorder(folder, sampling=0.25) as recorder:
        for step in range(1, 21):
            recorder.log_batch(**batch(step, list(range(GROUPS))))
    assert json.loads((folder / "run.json").read_text())["sampling"] == 0.25
    run = open_run(folder)
    assert run.info.sampling == 0.25
    assert run.facts.sequences == 20 * GROUPS * SIZE
    for part in run.batches(["reward", "response_length"]):
        np.testing.assert_array_equal(part.columns["reward"], np.arange(GROUPS * SIZE))
        assert (part.columns["response_length"] == WIDTH).all()
    kept = kept_groups(folder)
    assert all(len(marks) == 1 for groups in kept.values() for marks in groups.values())
    assert all(any(True in marks for marks in groups.values()) for groups in kept.values())
    assert run.facts.tokens == pytest.approx(0.25 * 20 * GROUPS * SIZE * WIDTH, rel=0.1)


def test_tokens_that_are_kept_are_those_that_were_given(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", sampling=0.5) as recorder:
        recorder.log_batch(**batch(1, list(range(GROUPS))))
    (part,) = open_run(tmp_path / "run").batches(["logprob", "tokens_dropped"])
    rows = ~part.columns["tokens_dropped"]
    np.testing.assert_array_equal(part.columns["logprob"], batch(1, list(range(GROUPS)))["logprob"][rows].ravel())


def test_every_rank_and_every_pass_keeps_the_same_groups(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with (
        Recorder(folder, sampling=0.3, info={"world_size": 2}) as first,
        Recorder(folder, sampling=0.3, rank=1, session=first.session) as second,
    ):
        step = 0
        for rollout in range(1, 21):
            for epoch in range(2):
                order = np.random.default_rng(step).permutation(GROUPS).tolist()
                for half in (order[:4], order[4:]):
                    step += 1
                    for rank, recorder in enumerate((first, second)):
                        recorder.log_batch(**batch(step, half, epoch=epoch, rollout=rollout, rank=rank))
    found: dict[str, set[bool]] = {}
    for groups in kept_groups(folder).values():
        for group, marks in groups.items():
            found.setdefault(group, set()).update(marks)
    by_hash = {group for group in found if place(f"group:{group}", int(group.partition("-")[0])) < 0.3 * 2**64}
    # Beyond what the places say, only the first rank keeps something: one group of a step that would have none.
    assert {group for group, marks in found.items() if marks == {True}} == by_hash
    assert all(False in found[group] for group in set(found) - by_hash)


@pytest.mark.parametrize("groups", [1, 2])
def test_at_least_one_group_is_kept_each_step_and_stays_kept(groups: int) -> None:
    sampler = GroupSampler(0.01, print)
    for step in range(1, 31):
        rows = rows_of(step, groups)
        for _ in range(2):  # two passes
            (kept,) = sampler.thin([rows], 0)
            assert kept.n_tokens == WIDTH * SIZE


def test_only_the_first_rank_keeps_one_at_least() -> None:
    sampler = GroupSampler(1e-9, print)
    assert sampler.thin([rows_of(1, 2)], 1)[0].n_tokens == 0
    with_rank = {**rows_of(1, 2).columns, "rank": np.zeros(2 * SIZE, np.int32)}
    assert sampler.thin([Rows(with_rank, rows_of(1, 2).splits)], 1)[0].n_tokens > 0


def rows_of(step: int, groups: int) -> Rows:
    n = groups * SIZE
    columns = {
        "step": np.full(n, step, np.int64),
        "group": np.array([f"{step}-{row // SIZE}" for row in range(n)], np.object_),
        "logprob": np.zeros(n * WIDTH, np.float32),
    }
    return Rows(columns, np.arange(n + 1, dtype=np.int64) * WIDTH)


def test_without_groups_sequences_are_chosen_by_uid_which_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "rl_doctor"), Recorder(tmp_path / "run", sampling=0.25) as recorder:
        for step in range(1, 11):
            given = batch(1 + (step - 1) // 2, list(range(GROUPS)), epoch=(step - 1) % 2)
            given.pop("group")
            recorder.log_batch(**given)
    told = [record.getMessage() for record in caplog.records if "sampling" in record.getMessage()]
    assert len(told) == 1
    assert "uid" in told[0]
    marks: dict[str, set[bool]] = {}
    for part in open_run(tmp_path / "run").batches(["uid", "tokens_dropped"]):
        for uid, dropped in zip(part.columns["uid"], part.columns["tokens_dropped"], strict=True):
            marks.setdefault(f"{part.step} {uid}", set()).add(bool(dropped))
    assert all(len(found) == 1 for found in marks.values())
    assert {True, False} == {mark for found in marks.values() for mark in found}


def test_without_any_identity_sequences_are_chosen_by_their_place(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", sampling=0.25) as recorder:
        for step in range(1, 11):
            given = batch(step, list(range(GROUPS)))
            recorder.log_batch(**{name: value for name, value in given.items() if name not in {"group", "uid"}})
    assert open_run(tmp_path / "run").facts.tokens == pytest.approx(0.25 * 10 * GROUPS * SIZE * WIDTH, rel=0.2)


@pytest.mark.parametrize("share", [0, -0.5, 1.5, "half", True])
def test_a_share_that_is_none_ends_the_recording_and_not_the_training(
    tmp_path: Path, share: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(UsageError, match="sampling is a share"):
        GroupSampler(share, print)
    with Recorder(tmp_path / "run", sampling=share) as recorder:
        recorder.log_batch(**batch(1, [0]))
    assert "sampling is a share" in caplog.text


def test_all_are_kept_with_a_share_of_one(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", sampling=1.0) as recorder:
        recorder.log_batch(**batch(1, list(range(GROUPS))))
    assert open_run(tmp_path / "run").facts.tokens == GROUPS * SIZE * WIDTH


def test_a_packed_sampled_run_reads_the_same(tmp_path: Path) -> None:
    folder, file = tmp_path / "run", tmp_path / "run.parquet"
    with Recorder(folder, sampling=0.25) as recorder:
        for step in range(1, 4):
            recorder.log_batch(**batch(step, list(range(GROUPS))))
    pack(open_run(folder), file)
    names = ["tokens_dropped", "logprob", "reward", "stored_length"]
    assert open_run(file).info.sampling == 0.25
    for left, right in zip(open_run(folder).batches(names), open_run(file).batches(names), strict=True):
        np.testing.assert_array_equal(left.splits, right.splits)
        for name in names:
            np.testing.assert_array_equal(left.columns[name], right.columns[name])


def test_duckdb_reads_a_sampled_run(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    folder = tmp_path / "run"
    with Recorder(folder, sampling=0.25) as recorder:
        for step in range(1, 4):
            recorder.log_batch(**batch(step, list(range(GROUPS))))
    tokens, sequences = (duckdb.read_parquet(f"{folder}/{table}-*.parquet") for table in ("tokens", "sequences"))
    kept = tokens.join(sequences.filter("NOT tokens_dropped"), "sequence")
    assert len(kept.fetchall()) == open_run(folder).facts.tokens

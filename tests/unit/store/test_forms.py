"""What a file is, is recognised by its columns."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_doctor.errors import InputError
from rl_doctor.schema import COLUMNS
from rl_doctor.store import flat, plan
from rl_doctor.store.aliases import ALIASES, ATTENTION_MASK, resolve
from rl_doctor.store.pack import pack
from rl_doctor.store.parquet_file import ParquetInput
from rl_doctor.store.run import open_run
from tests.unit.store.content import contents, record, rows, write, write_arrow


def test_a_run_file_in_five_lines(tmp_path: Path) -> None:
    file = tmp_path / "any name.bin"
    write(file, {"step": [1, 1, 2], "logprob": [[-1.0, -2.0], [-3.0], []], "group": [0, 0, 1], "reward": [0, 1, 0]})
    run = open_run(file)
    assert run.columns == {"step", "logprob", "group", "reward", "stored_length"}
    assert contents(run) == [
        {"step": 1, "logprob": [-1.0, -2.0], "group": "0", "reward": 0.0, "stored_length": 2},
        {"step": 1, "logprob": [-3.0], "group": "0", "reward": 1.0, "stored_length": 1},
        {"step": 2, "logprob": [], "group": "1", "reward": 0.0, "stored_length": 0},
    ]
    assert (run.facts.sequences, run.facts.tokens) == (3, 3)


def test_aliases_are_resolved_and_reported(tmp_path: Path) -> None:
    file = write(
        tmp_path / "run.parquet",
        {"global_step": [1], "old_log_probs": [[-1.0]], "completion_mask": [[1]], "advantages": [[2.0]], "colour": ["red"]},
    )
    run = open_run(file)
    assert run.columns == {"step", "old_logprob", "response_mask", "advantage", "stored_length"}
    assert set(run.facts.renamed_columns) == {
        "global_step -> step",
        "old_log_probs -> old_logprob",
        "completion_mask -> response_mask",
        "advantages -> advantage",
    }
    assert run.facts.unknown_columns == ("colour",)


def test_a_canonical_name_wins_over_its_alias(tmp_path: Path) -> None:
    run = open_run(write(tmp_path / "run.parquet", {"step": [1], "rewards": [1.0], "reward": [2.0], "lr": [0.1]}))
    assert contents(run) == [{"step": 1, "reward": 2.0, "learning_rate": 0.1}]
    assert run.facts.notes == ("column 'rewards' is set aside: 'reward' is there under its own name",)


def test_every_alias_means_a_column() -> None:
    assert set(ALIASES.values()) <= {*COLUMNS, ATTENTION_MASK}
    assert not set(ALIASES) & set(COLUMNS)
    for alias, name in ALIASES.items():
        assert resolve([alias], "x").found[name] == alias


def test_nulls_in_token_columns(tmp_path: Path) -> None:
    file = write_arrow(
        tmp_path / "run.parquet",
        {
            "step": pa.array([1, 2, 3]),
            "logprob": pa.array([[-1.0, None], [-2.0], None], pa.list_(pa.float32())),
            "response_mask": pa.array([[True, None], None, [True]], pa.list_(pa.bool_())),
            "token_id": pa.array([None, [7], [None]], pa.list_(pa.int64())),
            "ref_logprob": pa.array([None, None, None], pa.list_(pa.float32())),
        },
    )
    run = open_run(file)
    found = contents(run)
    assert [row["logprob"] for row in found] == [[-1.0, "NaN"], [-2.0], ["NaN"]]
    assert [row["response_mask"] for row in found] == [[True, False], [False], [True]]
    assert [row["token_id"] for row in found] == [[-(2**31)] * 2, [7], [-(2**31)]]
    assert [batch.splits.tolist() for batch in run.batches(["token_id"])] == [[0, 2], [0, 1], [0, 1]]
    assert run.facts.notes == (
        "column 'ref_logprob' is null everywhere: it counts as absent",
        "response_mask is null in 2 rows (first: row 0); there it counts as not set",
    )


def test_numbers_of_any_width(tmp_path: Path) -> None:
    file = write_arrow(
        tmp_path / "run.parquet",
        {
            "step": pa.array([1], pa.uint8()),
            "logprob": pa.array([[-1.0]], pa.large_list(pa.float16())),
            "advantage": pa.array([[2]], pa.list_(pa.int16())),
            "token_id": pa.array([[3.0]], pa.list_(pa.float64())),
            "reward": pa.array([True]),
            "turns": pa.array([2.0], pa.float32()),
            "finish_reason": pa.array(["stop"]).dictionary_encode(),
            "role": pa.array([["tool"]]),
        },
    )
    expected = {
        "logprob": [-1.0],
        "advantage": [2.0],
        "token_id": [3],
        "reward": 1.0,
        "turns": 2,
        "finish_reason": "stop",
        "role": [1],
    }
    assert contents(open_run(file)) == [{"step": 1, "stored_length": 1, **expected}]


@pytest.mark.parametrize("fixed", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_padded_exports_are_cut(tmp_path: Path, *, fixed: bool, left: bool) -> None:
    mask = np.array([[1, 1, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    mask, values = (mask[:, ::-1], values[:, ::-1]) if left else (mask, values)
    kind = (lambda type_: pa.list_(type_, 4)) if fixed else pa.list_
    file = write_arrow(
        tmp_path / "run.parquet",
        {
            "step": pa.array([1, 1, 2]),
            "attention_mask": pa.array(mask.tolist(), kind(pa.int64())),
            "logprob": pa.array(values.tolist(), kind(pa.float32())),
        },
    )
    run = open_run(file)
    order = -1 if left else 1
    assert [row["logprob"] for row in contents(run)] == [[0.0, 1.0][::order], [4.0, 5.0, 6.0][::order], []]
    assert [row["response_length"] for row in contents(run)] == [2, 3, 0]
    assert (run.facts.tokens, run.columns) == (5, {"step", "logprob", "response_length", "stored_length"})


def test_padded_exports_with_a_response_mask_alone(tmp_path: Path) -> None:
    table = {"step": [1, 1], "response_mask": [[0, 1, 0, 0], [1, 0, 1, 0]], "logprob": [[1.0, 2, 3, 4], [5.0, 6, 7, 8]]}
    run = open_run(write(tmp_path / "run.parquet", table))
    assert [row["logprob"] for row in contents(run)] == [[2.0], [5.0, 6.0, 7.0]]
    stated = open_run(write(tmp_path / "stated.parquet", table | {"stored_length": [4, 4]}))
    assert [len(row["logprob"]) for row in contents(stated)] == [4, 4]
    with_lengths = open_run(write(tmp_path / "lengths.parquet", table | {"response_length": [3, 3]}))
    assert [row["logprob"] for row in contents(with_lengths)] == [[1.0, 2.0, 3.0], [5.0, 6.0, 7.0]]


def test_full_width_mask_with_prompt_length(tmp_path: Path) -> None:
    table = {
        "step": [1, 1],
        "attention_mask": [[0, 1, 1, 1, 0], [1, 1, 1, 0, 0]],
        "prompt_length": [1, 2],
        "logprob": [[1.0, 2, 3], [4.0, 5, 6]],
    }
    found = contents(open_run(write(tmp_path / "run.parquet", table)))
    assert [row["logprob"] for row in found] == [[1.0, 2.0], [4.0]]
    assert [(row["response_length"], row["left_padding"]) for row in found] == [(2, 1), (1, 0)]
    del table["prompt_length"]
    with pytest.raises(
        InputError, match=r"cannot align .*attention_mask \[2, 5\], logprob \[2, 3\]|cannot align .*without prompt_length"
    ):
        open_run(write(tmp_path / "run.parquet", table))


def test_prompt_and_response_in_one_column(tmp_path: Path) -> None:
    table = {
        "step": [1, 1],
        "input_ids": [[9, 9, 1, 2], [9, 3, 4, 0]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
        "loss_mask": [[0, 0, 1, 1], [1, 1, 1, 0]],
        "prompt_length": [2, 1],
        "logprobs": [[0.0, 0, 1, 2], [0.0, 3, 4, 0]],
    }
    found = contents(open_run(write(tmp_path / "run.parquet", table)))
    assert [(row["token_id"], row["logprob"]) for row in found] == [([1, 2], [1.0, 2.0]), ([3, 4], [3.0, 4.0])]
    assert [row["prompt_loss_tokens"] for row in found] == [0, 1]


def flat_table(lengths: list[int], steps: list[int]) -> dict[str, Any]:
    index = np.repeat(np.arange(len(lengths)), lengths)
    return {
        "step": np.array(steps)[index],
        "sequence": index + 5,
        "logprob": -np.arange(len(index), dtype=np.float32),
        "reward": np.array(steps, float)[index] / 2,
    }


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=12), st.integers(1, 7), st.integers(1, 9))
def test_flat_tables_in_pieces(tmp_path_factory: Any, sequences: list[tuple[int, int]], piece: int, group: int) -> None:
    lengths, steps = [length for length, _ in sequences], [step for _, step in sequences]
    file = tmp_path_factory.mktemp("flat") / "run.parquet"
    table = flat_table(lengths, steps)
    write(file, table, row_group_size=group)
    before = flat.PIECE_ROWS
    flat.PIECE_ROWS = piece  # type: ignore[misc]
    try:
        run = open_run(file)
        found = contents(run)
        facts = run.facts
    finally:
        flat.PIECE_ROWS = before  # type: ignore[misc]
    frame = pd.DataFrame(table)
    expected = [
        {"step": step, "sequence": sequence, "logprob": rows["logprob"].tolist(), "reward": step / 2, "stored_length": len(rows)}
        for (step, sequence), rows in frame.groupby(["step", "sequence"])
    ]
    assert found == expected
    assert (facts.sequences, facts.tokens) == (len(lengths), sum(lengths))
    assert facts.unsorted_steps == sum(after < before for before, after in pairwise(steps))


def test_flat_table_by_uid(tmp_path: Path) -> None:
    table = {
        "step": [1, 1, 1, 2],
        "uid": ["a", "a", "b", "a"],
        "logprob": [-1.0, -2.0, -3.0, -4.0],
        "response_mask": [1, 0, 1, 1],
    }
    run = open_run(write(tmp_path / "run.parquet", table))
    assert [(row["step"], row["uid"], row["logprob"]) for row in contents(run)] == [
        (1, "a", [-1.0, -2.0]),
        (1, "b", [-3.0]),
        (2, "a", [-4.0]),
    ]
    assert run.facts.repeated_rows == 0


def test_flat_table_needs_its_keys(tmp_path: Path) -> None:
    table = {"step": [1, 1], "uid": ["a", None], "logprob": [-1.0, -2.0]}
    with pytest.raises(InputError, match="'uid' is null in row 1"):
        open_run(write(tmp_path / "run.parquet", table))


def test_rewards_per_sequence_are_no_history(tmp_path: Path) -> None:
    run = open_run(write(tmp_path / "run.parquet", {"step": [1, 1, 2], "reward": [1.0, 2.0, 3.0], "loss": [0.1, 0.1, 0.2]}))
    assert run.columns == {"step", "reward"}
    assert run.facts.unknown_columns == ("loss",)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), min_size=1, max_size=15),
    st.integers(1, 6),
    st.integers(1, 12),
    st.integers(0, 20),
)
def test_steps_in_any_order_lose_no_row(
    tmp_path_factory: Any, sequences: list[tuple[int, int]], group: int, max_tokens: int, window: int
) -> None:
    lengths, steps = [length for length, _ in sequences], [step for _, step in sequences]
    table = {
        "step": steps,
        "sequence": list(range(len(steps))),
        "token_id": [[row] * length for row, length in enumerate(lengths)],
    }
    file = write(tmp_path_factory.mktemp("order") / "run.parquet", table, row_group_size=group)
    before = plan.WINDOW_TOKENS
    plan.WINDOW_TOKENS = window  # type: ignore[misc]
    try:
        run = open_run(file)
        found = contents(run, max_tokens=max_tokens)
    finally:
        plan.WINDOW_TOKENS = before  # type: ignore[misc]
    if not any(lengths):
        assert len(found) == len(steps)
        return
    expected = sorted(zip(steps, range(len(steps)), lengths, strict=True))
    assert [(row["step"], row["sequence"], row["token_id"]) for row in found] == [(s, i, [i] * n) for s, i, n in expected]
    assert run.facts.unsorted_steps == sum(after < before for before, after in pairwise(steps))


def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([1.0]), pa.array([2.0])], names=["step", "reward", "reward"])
    pq.write_table(table, tmp_path / "run.parquet")
    with pytest.raises(InputError, match="two columns are called 'reward'"):
        open_run(tmp_path / "run.parquet")


def test_mixed_steps_are_read_once_per_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = np.random.default_rng(0).permutation(np.repeat(np.arange(20), 5))
    file = write(tmp_path / "run.parquet", {"step": steps, "logprob": [[-1.0] * 4] * 100})
    decoded: list[int] = []
    stream = ParquetInput.stream

    def spy(self: ParquetInput, group: int, names: Any, rows: int) -> Any:
        decoded.append(group)
        return stream(self, group, names, rows)

    run = open_run(file)
    monkeypatch.setattr(ParquetInput, "stream", spy)
    monkeypatch.setattr(plan, "WINDOW_TOKENS", 100)
    assert [batch.step for batch in run.batches(["logprob"])] == list(range(20))
    assert len(decoded) == 100 * 4 / 100


def test_the_index_of_pandas_is_no_metric(tmp_path: Path) -> None:
    frame = pd.DataFrame({"step": [1, 2, 3], "reward": [0.5, 1.0, 2.0]})
    frame[frame["step"] > 1].to_parquet(tmp_path / "run.parquet", index=True)
    run = open_run(tmp_path / "run.parquet")
    assert run.columns == {"step", "reward"}
    assert run.facts.unknown_columns == ()


def test_float_columns_without_a_value_are_named_whatever_the_form(tmp_path: Path) -> None:
    nan = float("nan")
    lists = {
        "step": [1, 2],
        "reward": [1.0, 0.0],
        "score": [None, None],
        "old_log_probs": [[nan], [None]],
        "advantage": [[nan], [1.0]],
    }
    flat = {"step": [1, 1], "sequence": [0, 0], "logprob": [-1.0, nan], "advantage": [None, None], "turn": [None, None]}
    assert open_run(write(tmp_path / "lists.parquet", lists)).facts.empty_columns == ("old_logprob", "score")
    assert open_run(write(tmp_path / "flat.parquet", flat)).facts.empty_columns == ("advantage",)
    unproven = write(tmp_path / "unproven.parquet", lists, write_statistics=False)
    assert open_run(unproven).facts.empty_columns == ("old_logprob", "score")
    record(tmp_path / "folder", [rows(step, [2], reward=np.array([nan]), score=np.array([float(step)])) for step in (1, 2)])
    folder = open_run(tmp_path / "folder")
    assert folder.facts.empty_columns == ("reward",)
    for run in (folder, open_run(tmp_path / "lists.parquet")):
        pack(run, tmp_path / "packed.parquet")
        assert open_run(tmp_path / "packed.parquet").facts.empty_columns == run.facts.empty_columns


def test_positions_tell_the_sequences_of_a_flat_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = {"step": [1, 1, 1, 1, 2, 2], "token_idx": [0, 1, 0, 0, 0, 1], "logprob": [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]}
    for rows_at_once in (100, 2, 1):
        monkeypatch.setattr(flat, "PIECE_ROWS", rows_at_once)
        run = open_run(write(tmp_path / "run.parquet", table))
        assert [row["logprob"] for row in contents(run)] == [[-1.0, -2.0], [-3.0], [-4.0], [-5.0, -6.0]]
        assert (run.facts.sequences, run.facts.tokens) == (4, 6)


@pytest.mark.parametrize(
    ("positions", "words"),
    [
        ([0, 1, 3, 0], "is 3 in row 2, where 2 would count"),
        ([1, 2, 3, 4], "is 1 in row 0, where 0 would"),
        ([0, 1, 2, 3], "is 3 in row 3, where 0 would"),
        ([0, None, 2, 0], "is null in row 1"),
    ],
)
def test_positions_that_do_not_count_are_refused(tmp_path: Path, positions: list[int | None], words: str) -> None:
    table = {"step": [1, 1, 1, 2], "position": positions, "logprob": [-1.0, -2.0, -3.0, -4.0]}
    with pytest.raises(InputError, match=words):
        open_run(write(tmp_path / "run.parquet", table))


@pytest.mark.parametrize("columns", [["advantage"], ["logprob"], ["advantage", "logprob"], ["reward"]], ids=str)
def test_the_prompt_is_cut_off_whichever_columns_are_read(tmp_path: Path, columns: list[str]) -> None:
    attention = [[1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]
    table = {
        "step": [1, 1], "prompt_length": [2, 2], "reward": [1.0, 0.0], "advantage": [[0.5] * 5, [0.25] * 5],
        "attention_mask": attention, "response_mask": attention,
        "logprob": [[0.0, 0.0, -1.0, -2.0, 0.0], [0.0, 0.0, -3.0, 0.0, 0.0]],
    }  # fmt: skip
    run = open_run(write(tmp_path / "run.parquet", table))
    assert {"prompt_loss_tokens", "response_length"} <= run.columns
    (batch,) = run.batches([*columns, "prompt_loss_tokens", "response_length"])
    assert batch.splits.tolist() == [0, 2, 3]
    assert batch.columns["prompt_loss_tokens"].tolist() == [2, 2]
    assert batch.columns["response_length"].tolist() == [2, 1]

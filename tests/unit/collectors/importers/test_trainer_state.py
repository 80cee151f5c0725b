"""``trainer_state.json``, of a run that ended, was killed, or left checkpoints."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor import open_run
from rl_doctor.collectors.importers.registry import Fit
from rl_doctor.errors import InputError, NothingToJudgeError
from tests.unit.collectors.importers.texts import LOGGED, importer_of, opened, values

ROWS = [
    {"step": 5, "epoch": 0.1, "loss": 0.0, "reward": 0.25, "grad_norm": "0.5"},
    {"step": 5, "epoch": 0.1, "eval_loss": 0.7, "eval_reward": 0.5},
    {"step": 10, "epoch": 0.2, "loss": "NaN", "reward": math.inf, "grad_norm": math.nan},
]


def state(rows: list[dict[str, Any]] | None = None, **more: Any) -> str:
    document = {
        "best_metric": None,
        "global_step": 10,
        "is_world_process_zero": True,
        "log_history": ROWS if rows is None else rows,
    }
    return json.dumps(document | {"logging_steps": 5, "max_steps": 100, "train_batch_size": 2} | more, indent=2)


def test_rows_of_training_and_evaluation_and_words_for_numbers(tmp_path: Path) -> None:
    run = opened(tmp_path, state())
    assert values(run, "reward") == {5: 0.25, 10: math.inf}
    assert math.isnan(values(run, "loss")[10])
    assert values(run, "grad_norm")[5] == 0.5
    assert values(run, "eval_reward", "eval") == {5: 0.5}
    assert run.facts.notes == (
        "read as trainer_state.json of Hugging Face's Trainer",
        "infinite, or too large for a number: reward",
    )
    native = run.info.config.native
    assert native is not None
    assert (native["logging_steps"], native["train_batch_size"], native["max_steps"]) == (5, 2, 100)


@pytest.mark.parametrize("keep", [0.5, 0.7, 0.95])
def test_of_a_state_that_was_cut_the_whole_rows_count(tmp_path: Path, keep: float) -> None:
    rows = [{"step": step, "loss": step / 10} for step in range(1, 101)]
    text = state(rows)
    cut = text[: int(keep * len(text))]
    run = opened(tmp_path, cut)
    last = int(run.metrics().steps()[-1])
    assert values(run, "loss") == {step: step / 10 for step in range(1, last + 1)}
    assert f'"step": {last},' in cut
    assert f'"step": {last + 2},' not in cut
    assert any(f"of its rows {last} are whole" in note for note in run.facts.notes)


def test_of_a_state_that_is_damaged_within_a_row_the_others_count(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": step / 10} for step in range(1, 10)]
    text = state(rows, stateful_callbacks={"TrainerControl": {"args": {}}})
    run = opened(tmp_path, text.replace('"step": 4,', '"step" 4,'))
    assert list(values(run, "loss")) == [1, 2, 3, 5, 6, 7, 8, 9]


def test_of_a_state_that_was_cut_before_its_first_row_nothing_is_left(tmp_path: Path) -> None:
    text = state()
    with pytest.raises(InputError, match=r"run.txt: damaged or cut short .*export it again"):
        opened(tmp_path, text[: text.index("[") + 20])


def test_a_history_that_is_empty_or_none(tmp_path: Path) -> None:
    with pytest.raises(NothingToJudgeError):
        opened(tmp_path, state([]))
    with pytest.raises(InputError, match="'log_history' is not a list"):
        opened(tmp_path, '{"log_history": 3, "is_world_process_zero": true}')


def test_of_an_output_folder_the_newest_state_is_read(tmp_path: Path) -> None:
    for step in (6, 12, 100):
        (tmp_path / f"checkpoint-{step}").mkdir()
        rows = [{"step": at, "loss": 0.5} for at in range(1, step + 1)]
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state(rows, global_step=step))
    (tmp_path / "checkpoint-200").mkdir()
    (tmp_path / "README.md").write_text("x")
    run = open_run(tmp_path)
    assert run.metrics().steps()[-1] == 100
    assert "checkpoint-100/trainer_state.json is read, the newest state of 3 in the folder" in run.facts.notes
    (tmp_path / "trainer_state.json").write_text(state([{"step": 120, "loss": 0.25}], global_step=120))
    assert open_run(tmp_path).metrics().steps().tolist() == [120]


def test_a_compressed_state(tmp_path: Path) -> None:
    assert values(opened(tmp_path, gzip.compress(state().encode())), "reward")[5] == 0.25


def test_a_state_in_utf_16_and_with_a_byte_order_mark(tmp_path: Path) -> None:
    assert values(opened(tmp_path, state().encode("utf-16")), "reward")[5] == 0.25
    assert values(opened(tmp_path, state().encode("utf-8-sig")), "reward")[5] == 0.25


def test_the_history_may_begin_late_in_a_long_file(tmp_path: Path) -> None:
    text = json.dumps({"best_model_checkpoint": None, "notes": "x" * 400_000, "log_history": ROWS})
    assert importer_of(tmp_path, text) == ("trainer-state", Fit.SIGNATURE)
    assert values(opened(tmp_path, text), "reward")[5] == 0.25


NAMES = st.text("abc_/", min_size=1, max_size=6).filter(lambda name: not name.startswith("eval"))


@given(st.lists(st.dictionaries(NAMES, LOGGED, min_size=1), min_size=1, max_size=8))
def test_what_was_logged_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, float]]) -> None:
    run = opened(tmp_path_factory.mktemp("state"), state([{**row, "step": step} for step, row in enumerate(rows)]))
    for step, row in enumerate(rows):
        for name, value in row.items():
            assert repr(values(run, name)[step]) == repr(value)

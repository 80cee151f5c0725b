"""What trainers on Hugging Face's Trainer print."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor.collectors.importers.literal import Template, closing, pieces_of, record
from rl_doctor.collectors.importers.registry import Fit
from tests.unit.collectors.importers.texts import bar, importer_of, opened, python_row, trained, values

BESIDE = "the progress bar beside it tells it"


def row(index: int, **more: Any) -> dict[str, Any]:
    return {"loss": 0.0, "grad_norm": 0.25 * index, "learning_rate": 1e-6, "reward": 0.5 + index, **more, "epoch": 0.01}


def test_rows_take_the_step_of_the_bar_beside_them(tmp_path: Path) -> None:
    run = opened(tmp_path, "Loading...\n" + trained([row(index) for index in range(1, 5)], every=5))
    assert values(run, "reward") == {5: 1.5, 10: 2.5, 15: 3.5, 20: 4.5}
    assert any(BESIDE in note for note in run.facts.notes)
    assert run.info.trainer is None


def test_bars_of_other_things_are_no_steps(tmp_path: Path) -> None:
    noise = bar(900, 7000, "Map") + bar(7000, 7000, "Map") + "\n" + bar(3, 4, "Loading checkpoint shards")
    text = noise + trained([row(index) for index in range(1, 9)], total=8).replace("\n", "\n" + bar(2, 2, "Processed prompts"))
    assert values(opened(tmp_path, text), "loss") == dict.fromkeys(range(1, 9), 0.0)


def test_evaluations_stand_at_the_step_of_the_training(tmp_path: Path) -> None:
    text = ""
    for step in range(1, 7):
        text += bar(step, 6) + f"\r{' ' * 40}\r{python_row(row(step))}\n" + bar(step, 6)
        if step % 3 == 0:
            text += bar(1, 2) + bar(2, 2) + "\r" + python_row({"eval_loss": 0.5, "eval_reward": float(step), "epoch": 0.1}) + "\n"
    run = opened(tmp_path, text)
    assert values(run, "reward") == {step: step + 0.5 for step in range(1, 7)}
    assert values(run, "eval_reward", "eval") == {3: 3.0, 6: 6.0}


def test_values_in_quotes_and_keys_in_some_rows_only(tmp_path: Path) -> None:
    rows = []
    for step in range(1, 17):
        told = {"loss": "-0.02774", "grad_norm": "0.133", "learning_rate": "1e-06", "kl": "nan"}
        rows.append(
            told | ({"reward": f"{step / 10}", "rewards/f/mean": "0.3101"} if step % 8 == 1 else {}) | {"epoch": "0.0019"}
        )
    run = opened(tmp_path, "\n".join(map(python_row, rows)) + "\n")
    assert values(run, "reward") == {1: 0.1, 9: 0.9}
    assert len(values(run, "loss")) == 16
    assert math.isnan(values(run, "kl")[1])
    assert any("counted from 1" in note for note in run.facts.notes)


def test_bars_that_were_written_apart_from_the_rows_are_shared_out(tmp_path: Path) -> None:
    bars = "".join(bar(step, 50) for step in range(51))
    text = bars + "\n" + "\n".join(python_row(row(index)) for index in range(1, 11)) + "\n"
    run = opened(tmp_path, text)
    assert list(values(run, "reward")) == list(range(5, 51, 5))
    assert any("the training's 50 steps" in note for note in run.facts.notes)


def test_without_bars_the_summary_tells_how_many_steps_the_rows_share(tmp_path: Path) -> None:
    summary = python_row({"train_runtime": "2.828", "train_samples_per_second": "16.98", "train_steps_per_second": "4.244"})
    run = opened(tmp_path, "\n".join([*(python_row(row(index)) for index in range(1, 5)), summary]))
    assert list(values(run, "reward")) == [3, 6, 9, 12]


def test_a_row_into_which_a_bar_was_drawn_is_put_together(tmp_path: Path) -> None:
    whole = [python_row(row(index)) for index in range(1, 4)]
    torn = whole[1][:30] + bar(2, 3) + whole[1][30:]
    run = opened(tmp_path, f"{bar(1, 3)}\r{whole[0]}\n{torn}\n{bar(3, 3)}\r{whole[2]}\n")
    assert list(values(run, "reward").values()) == [1.5, 2.5, 3.5]


def test_dictionaries_over_several_lines_and_behind_prefixes(tmp_path: Path) -> None:
    text = ""
    for step in (1, 2, 3):
        pretty = python_row(row(step, step=10 * step)).replace(", '", ",\n '")
        text += "\n".join(f"(Trainer pid=12, ip=10.0.0.1) {line}" for line in pretty.split("\n")) + "\n"
    run = opened(tmp_path, text)
    assert values(run, "reward") == {10: 1.5, 20: 2.5, 30: 3.5}
    assert len(run.facts.notes) == 1


def test_the_summary_at_the_end_is_no_step(tmp_path: Path) -> None:
    summary = python_row({"train_runtime": 447.7, "train_loss": -0.04, "epoch": 0.05})
    run = opened(tmp_path, trained([row(1), row(2)]) + bar(2, 100) + "\n" + summary + "\n")
    assert run.metrics().steps().tolist() == [1, 2]
    assert not values(run, "train_loss")


def test_rows_that_other_ranks_print_again_count_once(tmp_path: Path) -> None:
    text = "".join(f"{python_row(row(step))}\n" * 4 for step in (1, 2, 3))
    run = opened(tmp_path, text)
    assert list(values(run, "reward")) == [1, 2, 3]
    assert any("printed 4 times (by several ranks): 9 left out" in note for note in run.facts.notes)


def test_rows_of_a_dead_run_that_are_alike_all_count(tmp_path: Path) -> None:
    dead = row(1)
    run = opened(tmp_path, "\n".join(map(python_row, [dead, dead, dead, row(2), dead, dead])) + "\n")
    assert list(values(run, "reward")) == [1, 2, 3, 4, 5, 6]


def test_a_restart_takes_the_steps_of_the_bar(tmp_path: Path) -> None:
    first = trained([row(index) for index in range(1, 7)])
    again = "".join(bar(step, 100) + f"\r{python_row(row(step + 100))}\n" + bar(step, 100) for step in (5, 6, 7))
    run = opened(tmp_path, first + "\nTraceback ...\n" + again)
    assert values(run, "reward") == {1: 1.5, 2: 2.5, 3: 3.5, 4: 4.5, 5: 105.5, 6: 106.5, 7: 107.5}
    assert any("as after a restart" in note for note in run.facts.notes)


def test_steps_that_swift_writes_as_a_fraction(tmp_path: Path) -> None:
    rows = [row(index, **{"global_step/max_steps": f"{5 * index}/3766", "percentage": "0.13%"}) for index in (1, 2)]
    run = opened(tmp_path, "\n".join(map(python_row, rows)))
    assert values(run, "reward") == {5: 1.5, 10: 2.5}
    assert len(run.facts.notes) == 1


def test_the_last_row_may_be_cut(tmp_path: Path) -> None:
    run = opened(tmp_path, trained([row(1), row(2)]) + "\n" + python_row(row(3))[:40])
    assert list(values(run, "reward")) == [1, 2]
    assert any("cut short" in note for note in run.facts.notes)


def test_colours_tables_and_prints_are_passed_over(tmp_path: Path) -> None:
    table = "╭──── Step 1 ────╮\n│ prompt │ reward │\n│ {'role': 'user'} │ 1.0 │\n╰──────╯\n"
    other = "Updated tokens: {'bos_token_id': None, 'pad_token_id': 151643}.\n{'role': 'user', 'content': 'step 3'}\n"
    text = table + other + "".join(f"\x1b[32m{python_row(row(step))}\x1b[0m\n{table}" for step in (1, 2, 3))
    run = opened(tmp_path, text)
    assert values(run, "reward") == {1: 1.5, 2: 2.5, 3: 3.5}
    assert set(run.metrics().names()) == {"loss", "grad_norm", "learning_rate", "reward", "epoch"}


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (trained([row(1), row(2)]), "trl-console"),
        ("{'role': 'user', 'content': 'x'}\n" * 50, None),
        ('{"loss": 0.5, "epoch": 1}\n{"loss": 0.4, "epoch": 2}\n', "json-lines"),
    ],
)
def test_recognition(tmp_path: Path, content: str, name: str | None) -> None:
    assert importer_of(tmp_path, content)[0] == name


@pytest.mark.parametrize(
    "line",
    [
        "{{'step': {step}, 'reward': 0.5, 'loss_pg': {value}}}",
        '[2025-01-02 03:04:05] INFO metrics: {{"reward": 0.5, "loss_pg": {value}, "step": {step}, "note": "x"}} done',
        "(Trainer pid=3) step done {{'global_step': {step}, 'reward': np.float64(0.5), 'loss_pg': {value}}}",
    ],
)
def test_dictionaries_of_own_loops(tmp_path: Path, line: str) -> None:
    text = "".join(line.format(step=10 * step, value=step / 4) + "\nother 1\n" for step in range(1, 5))
    assert importer_of(tmp_path, text) == ("dict-log", Fit.CONTAINER)
    assert values(opened(tmp_path, text), "loss_pg") == {10: 0.25, 20: 0.5, 30: 0.75, 40: 1.0}


NUMBERS = st.floats(width=64) | st.integers(-(10**12), 10**12)


@given(st.dictionaries(st.text("abcdefghij_/@ .", min_size=1, max_size=12), NUMBERS, min_size=1, max_size=8))
def test_printed_dictionaries_are_read_back(members: dict[str, float]) -> None:
    text = str(members)
    assert closing(text, 0) == len(text) - 1
    found = {name: float(value) for name, value in record(text).items()}
    assert str(found) == str({name: float(value) for name, value in members.items()})


@given(st.dictionaries(st.text("abcdefghij_/@ .", min_size=1, max_size=12), NUMBERS, min_size=1, max_size=8), st.booleans())
def test_rows_that_are_called_alike_are_read_by_their_template(members: dict[str, float], quoted: bool) -> None:
    text = str({name: str(value) for name, value in members.items()} if quoted else members)
    found = Template(tuple(members)).values(pieces_of(text))
    assert found is not None
    assert [str(float(value)) for value in found] == [str(float(value)) for value in members.values()]
    assert Template((*members, "more")).values(pieces_of(text)) is None
    assert Template([f"{name}x" for name in members]).values(pieces_of(text)) is None


def test_numbers_of_numpy_and_torch_in_dictionaries() -> None:
    text = "{'a': np.float64(0.25), 'b': tensor(0.5, device='cuda:0'), 'c': np.float32(nan), 'd': None, 'e': -inf, 'f': array(3)}"
    found = record(text)
    assert (found["a"], found["b"], found["d"], found["e"], found["f"]) == (0.25, 0.5, None, -math.inf, 3)
    assert math.isnan(found["c"])
    assert record("{'a': 1, 'note': \"it's\", 'b': [1, 2], 'c': 2}") == {"a": "1", "note": "it's", "c": "2"}
    assert record("no dictionary") == {}

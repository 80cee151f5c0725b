"""Text logs of real runs by others: steps, a few cells as one reads them in the file, and what is said of them."""

from pathlib import Path

import pytest

from rl_doctor import open_run
from tests.unit.collectors.importers.texts import values

RUNS = Path(__file__).parents[5] / "shared" / "runs"
pytestmark = pytest.mark.skipif(not RUNS.is_dir(), reason="the collection of public logs is not beside the checkout")
STATE = "read as trainer_state.json of Hugging Face's Trainer"


@pytest.mark.parametrize(
    ("name", "steps", "rows", "cells"),
    [
        (
            "trl-grpo-no-signal", (10, 500), 50,
            {("reward", 500): 0.8993749976158142, ("frac_reward_zero_std", 500): 1.0, ("completions/clipped_ratio", 10): 1.0},
        ),
        (
            "trl-healthy-one-kl-spike", (1, 250), 250,
            {("reward", 1): 0.0, ("reward", 250): 1.3333333730697632, ("kl", 250): 0.020642109215259552, ("loss", 250): 0.0008},
        ),
        (
            "trl-healthy-slow", (5, 1000), 200,
            {("completions/clipped_ratio", 5): 0.3, ("reward_std", 1000): 0.155235018953681, ("learning_rate", 1000): 3e-09},
        ),
        (
            "trl-short-inconclusive", (5, 50), 10,
            {("completion_length", 5): 2746.3104614257813, ("rewards/r5_lang_consistency", 50): 1.0, ("loss", 50): 0.0},
        ),
    ],
)  # fmt: skip
def test_states_of_the_trainer(name: str, steps: tuple[int, int], rows: int, cells: dict[tuple[str, int], float]) -> None:
    run = open_run(RUNS / name / "trainer_state.json")
    found = run.metrics().steps()
    assert (found[0], found[-1], len(found)) == (*steps, rows)
    assert {cell: values(run, cell[0])[cell[1]] for cell in cells} == cells
    assert run.facts.notes[0] == STATE
    assert not any("left out" in note or "more than once" in note for note in run.facts.notes)


def test_the_same_run_as_console_and_as_state_is_the_same() -> None:
    console = open_run(RUNS / "trl-short-inconclusive" / "stdout.log")
    state = open_run(RUNS / "trl-short-inconclusive" / "trainer_state.json")
    assert console.metrics().names() == state.metrics().names()
    for name in state.metrics().names():
        if name != "epoch":  # the console rounds it
            assert values(console, name) == values(state, name)
    assert any("the progress bar beside it tells it" in note for note in console.facts.notes)


def test_rows_with_words_for_numbers_apart_from_their_bars() -> None:
    run = open_run(RUNS / "trl-string-values" / "stdout.log")
    assert run.metrics().steps().tolist() == list(range(1, 31))
    assert values(run, "reward") == {1: 0.3101, 9: 0.2463, 17: 0.2347, 25: 0.2627}
    assert (values(run, "loss")[1], values(run, "loss")[30]) == (-0.02774, -0.2054)
    assert len(values(run, "kl")) == 30
    assert not values(run, "train_loss")


def test_a_console_of_verl_between_rollouts() -> None:
    run = open_run(RUNS / "verl-console-short" / "output.log")
    assert run.metrics().steps().tolist() == list(range(10))
    assert values(run, "val/test_score/logic_assignment", "eval")[0] == 0.0
    assert 0 not in values(run, "critic/score/mean")
    assert (values(run, "critic/score/mean")[1], values(run, "critic/score/mean")[9]) == (0.094, 0.977)
    assert values(run, "actor/pg_loss")[1] == -0.375
    assert values(run, "timing_per_token_ms/gen")[1] == 0.968
    assert run.info.trainer == "verl"

"""Any text with a step and numbers by name."""

import math
from pathlib import Path

import pytest

from rl_doctor.collectors.importers.registry import Fit
from rl_doctor.errors import InputError
from tests.unit.collectors.importers.texts import importer_of, opened, values


@pytest.mark.parametrize(
    "line",
    [
        "[2024-01-01 12:00:00] step {step}/100 | loss=0.5000 | reward: {reward} | kl: 1e-3 | 0.5s",
        "INFO:trainer:Step {step}: loss=0.5, reward={reward}, kl=1e-3",
        "global_step={step} loss=0.5 reward={reward} kl=1e-3 lr=nan",
        "Iteration: {step}, reward: {reward}, kl: 1e-3, loss: 0.5",
        "iter {step} (train) loss: 0.5 reward: {reward} kl: 0.1%",
        "(Worker pid=1) train step #{step} - loss: 0.5 - reward: {reward} - kl: 0.001 (eta: 3)",
        "Update {step}: reward={reward}s, loss=0.5ms, kl=0.001",
    ],
)
def test_lines_in_many_forms(tmp_path: Path, line: str) -> None:
    text = "starting\n" + "".join(line.format(step=step, reward=-step / 4) + "\nother: 3\n" for step in (10, 20, 30))
    run = opened(tmp_path, text)
    assert values(run, "reward") == {10: -2.5, 20: -5.0, 30: -7.5}
    assert values(run, "loss") == {10: 0.5, 20: 0.5, 30: 0.5}
    assert math.isclose(values(run, "kl")[10], 1e-3)
    assert importer_of(tmp_path, text) == ("text-log", Fit.CONTAINER)


@pytest.mark.parametrize(
    "line",
    [
        "[2026-01-01 10:00:00] step {step}: loss=0.5 reward={reward} kl=0.001",
        "[INFO] step={step}, loss=0.5, reward={reward}",
        "[rank0] [INFO] step={step} | loss=0.5 | reward={reward} | kl=0.001",
        "step={step} reward={reward} loss=0.5",
        "{step} - step: {step}, reward: {reward}, loss: 0.5",
    ],
)
def test_what_begins_with_a_bracket_and_what_has_two_numbers(tmp_path: Path, line: str) -> None:
    text = "".join(line.format(step=step, reward=-step / 4) + "\n" for step in (10, 20, 30))
    assert importer_of(tmp_path, text) == ("text-log", Fit.CONTAINER)
    run = opened(tmp_path, text)
    assert values(run, "reward") == {10: -2.5, 20: -5.0, 30: -7.5}
    assert values(run, "loss") == {10: 0.5, 20: 0.5, 30: 0.5}


def test_steps_that_begin_anew_with_each_epoch_are_counted_on(tmp_path: Path) -> None:
    text = "".join(
        f"Epoch {epoch}, Step {step}/2, Actor Loss: {epoch + step / 10}, Mean Reward: 0.5, Mean Len: 12\n"
        for epoch in (1, 2, 3)
        for step in (1, 2)
    )
    run = opened(tmp_path, text)
    assert values(run, "Actor Loss") == {1: 1.1, 2: 1.2, 3: 2.1, 4: 2.2, 5: 3.1, 6: 3.2}
    assert any("counted on" in note for note in run.facts.notes)


def test_what_a_progress_bar_has_behind_it(tmp_path: Path) -> None:
    text = "\r".join(
        f"Train step of epoch 0:  12%|▌         | {step}/25 [00:12<00:30,  1.20it/s, loss={step / 10}, acc=0.5, lr=1e-6]"
        for step in range(6)
    )
    run = opened(tmp_path, text)
    assert values(run, "loss") == {step: step / 10 for step in range(6)}
    assert any("off by one" in note for note in run.facts.notes)


@pytest.mark.parametrize(
    "text",
    [
        "hello world\n" * 20,
        "step 1: do this\nstep 2: do that\nstep 3: at 12:00:00\n",
        "f(step=1, a=2)\n" * 9,
        '{"step": 1, "loss": 1, "a": 2, "b": 3}\n' * 3,
        "<p>step 1 a: 1 b: 2 c: 3</p>\n<p>step 2 a: 1 b: 2 c: 3</p>\n<p>step 3 a: 1 b: 2 c: 3</p>\n",
        '[\n{"step": 1, "loss": 1, "a": 2, "b": 3},\n{"step": 2, "loss": 1, "a": 2, "b": 3}\n]\n',
        "".join(f"step {step}: saved to disk (files: 3, size: 12) before going on\n" for step in range(9)),
        "step 7, a: 1, b: 2, c: 3\n" * 5,
    ],
)
def test_what_is_no_log(tmp_path: Path, text: str) -> None:
    assert importer_of(tmp_path, text)[0] != "text-log"


def test_names_and_numbers_with_nothing_but_a_blank_between(tmp_path: Path) -> None:
    lines = ["number of parameters: 10.65M", "step 0: train loss 4.2874, val loss 4.2823"]
    for step in range(0, 60, 10):
        lines += [f"iter {step}: loss {4 - step / 100:.4f}, time 120.00ms, mfu {'-100.00' if step == 0 else '31.20'}%"]
        lines += [f"step {step}: train loss {4 - step / 50:.4f}, val loss 4.5000"] if step % 20 == 0 and step else []
    run = opened(tmp_path, "\n".join(lines))
    assert values(run, "loss") == {step: 4 - step / 100 for step in range(0, 60, 10)}
    assert values(run, "mfu")[50] == 0.312
    assert values(run, "time")[10] == 120.0
    assert values(run, "train loss") == {0: 4.2874, 20: 3.6, 40: 3.2}
    assert importer_of(tmp_path, "\n".join(lines)) == ("text-log", Fit.CONTAINER)


def test_prose_with_a_step_and_numbers_is_no_log(tmp_path: Path) -> None:
    text = "".join(f"step {step}: we took 3 apples, and then 4 pears and left\n" for step in range(9))
    with pytest.raises(InputError, match="not recognised"):
        opened(tmp_path, text)

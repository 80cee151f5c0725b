"""JSON lines of particular trainers: verl's file logger, LLaMA-Factory, ms-swift."""

import json
import math
from pathlib import Path

import pytest

from rl_doctor.collectors.importers.registry import Fit
from rl_doctor.errors import NothingToJudgeError
from tests.unit.collectors.importers.texts import importer_of, opened, values


def test_null_in_verls_file_is_a_number_that_was_not_finite(tmp_path: Path) -> None:
    lines = [
        {"step": 1, "data": {"actor/entropy": 0.5, "actor/grad_norm": None, "training/global_step": 1}},
        {"step": 2, "data": {"actor/entropy": None, "actor/grad_norm": 0.25, "val-core/aime/acc/mean@32": 0.1}},
    ]
    text = "\n".join(map(json.dumps, lines))
    run = opened(tmp_path, text + '\n{"step":3,"data":{"actor/entr')
    assert values(run, "actor/entropy")[1] == 0.5
    assert math.isnan(values(run, "actor/entropy")[2])
    assert math.isnan(values(run, "actor/grad_norm")[1])
    assert values(run, "val-core/aime/acc/mean@32", "eval") == {2: 0.1}
    assert run.info.trainer == "verl"
    (told,) = (note for note in run.facts.notes if "null" in note)
    assert "2 of them" in told
    assert any("the last line is cut short" in note for note in run.facts.notes)
    assert importer_of(tmp_path, text) == ("verl-file", Fit.SIGNATURE)
    assert importer_of(tmp_path, text.replace("actor/", "own_")) == ("verl-file", Fit.SIGNATURE)  # training/ and val-core/
    assert importer_of(tmp_path, '{"step": 1, "data": {"loss": 1}}\n{"step": 2, "data": {"loss": 1}}\n') == (
        "verl-file",
        Fit.SHAPE,
    )


def test_llama_factory(tmp_path: Path) -> None:
    common = {"total_steps": 20, "percentage": 25.0, "elapsed_time": "0:00:10", "remaining_time": "0:00:30"}
    lines = [
        {"current_steps": 5, "loss": 0.69, "accuracy": 0.5, "lr": 1e-6, "epoch": 0.1, **common},
        {"current_steps": 5, "eval_loss": 0.62, "epoch": 0.1, **common},
        {"current_steps": 10, "loss": 0.59, "accuracy": 0.75, "lr": 1e-6, "epoch": 0.2, **common},
    ]
    run = opened(tmp_path, "\n".join(map(json.dumps, lines)) + "\nnot a record\n" + json.dumps(lines[-1]))
    assert values(run, "loss") == {5: 0.69, 10: 0.59}
    assert values(run, "eval_loss", "eval") == {5: 0.62}
    assert set(run.metrics().names()) == {"loss", "rewards/accuracies", "lr", "epoch"}
    assert "lines that are no JSON objects, left out: 1" in run.facts.notes


@pytest.mark.parametrize("name", ["global_step/max_steps", "iteration"])
def test_swift(tmp_path: Path, name: str) -> None:
    lines = [
        {"loss": 0.1, "reward": 0.5, "epoch": 0.01, name: "5/547", "elapsed_time": "5m 18s", "remaining_time": "2d 0h"},
        {"loss": 0.2, "reward": 0.75, "epoch": 0.02, name: "10/547", "elapsed_time": "9m 18s", "remaining_time": "2d 0h"},
        {"train_runtime": 12.0, "train_loss": 0.1, "epoch": 1.0, name: "10/547"},
        {"model_parameter_info": "x", "memory": 3.1},
    ]
    run = opened(tmp_path, "\n".join(map(json.dumps, lines)))
    assert values(run, "reward") == {5: 0.5, 10: 0.75}
    assert set(run.metrics().names()) == {"loss", "reward", "epoch"}


def test_no_number_by_step_is_nothing_to_judge(tmp_path: Path) -> None:
    with pytest.raises(NothingToJudgeError):
        opened(tmp_path, '{"step": 1, "data": {"actor/note": "x"}}\n{"step": 2, "data": {"actor/note": "y"}}\n')

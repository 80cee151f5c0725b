"""A TRL training that breaks off, caught by its script and begun anew: the run tells the two attempts apart."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rl_doctor import check, open_run
from tests.trainers.said import of_ours

pytest.importorskip("trl")
pytestmark = [pytest.mark.trainer, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]
SCRIPT = """
import hashlib, json, os, sys, tempfile
import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from tests.trainers.trl.train import TEXTS, save_model, short, tokenizer

folder, again = tempfile.mkdtemp(), sys.argv[2] == "again"
calls = []

class Breaks(TrainerCallback):
    def on_pre_optimizer_step(self, *_args, **_kwargs):
        calls.append(1)
        if len(calls) == int(sys.argv[3]):
            raise RuntimeError("CUDA out of memory")

torch.set_num_threads(1)
words = tokenizer()
trainer = GRPOTrainer(
    model=save_model(f"{folder}/model", words), reward_funcs=[short], processing_class=words,
    train_dataset=Dataset.from_dict({"prompt": [f"{text} {number}" for number in range(8) for text in TEXTS]}),
    args=GRPOConfig(
        output_dir=f"{folder}/out", use_cpu=True, bf16=False, report_to="none", save_strategy="no", seed=7, num_generations=4,
        per_device_train_batch_size=4, max_completion_length=8, max_steps=5, logging_steps=1, disable_tqdm=True,
    ),
)
trainer.add_callback(Breaks())
if sys.argv[1]:
    import rl_doctor
    recorder = rl_doctor.attach(trainer, sys.argv[1])
try:
    trainer.train()
except RuntimeError as error:
    assert str(error) == "CUDA out of memory"
    if again:
        trainer.train()
    elif sys.argv[2] == "raise":
        raise
weights = hashlib.sha256()
for name, tensor in sorted(trainer.model.state_dict().items()):
    weights.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
print("RESULT " + json.dumps(weights.hexdigest()))
"""


def train(folder: Path | None, then: str, step: int = 4) -> tuple[int, str, str]:
    """Train, break off before the update of a step, do what is asked then; exit status, digest of weights, standard error."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SCRIPT, str(folder or ""), then, str(step)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, cwd=ROOT, env=environment)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    return done.returncode, json.loads(lines[0].removeprefix("RESULT ")) if lines else "", done.stderr


def rows(folder: Path) -> dict[int, list[Any]]:
    found: dict[int, list[Any]] = {}
    for batch in open_run(folder).batches(["uid"]):
        found.setdefault(batch.step, []).extend(batch.columns["uid"].tolist())
    return found


def test_an_exception_that_ends_the_script(tmp_path: Path) -> None:
    code, _, errors = train(tmp_path / "run", "raise")
    assert code == 1
    assert "CUDA out of memory" in errors
    assert of_ours(errors) == []
    run = open_run(tmp_path / "run")
    assert sorted(rows(tmp_path / "run")) == [1, 2, 3, 4]
    assert (run.info.status, run.facts.incomplete_steps) == ("running", (4,))


@pytest.mark.parametrize("step", [1, 4])
def test_an_exception_after_which_the_script_trains_again(tmp_path: Path, step: int) -> None:
    code, weights, errors = train(tmp_path / "run", "again", step)
    assert code == 0, errors
    assert weights == train(None, "again", step)[1]
    run = open_run(tmp_path / "run")
    found = rows(tmp_path / "run")
    assert {step: len(set(uids)) for step, uids in found.items()} == dict.fromkeys(range(1, 6), 4)
    assert all(len(uids) == 4 for uids in found.values())
    assert (run.info.status, run.facts.incomplete_steps, run.facts.unsorted_steps) == ("complete", (), 0)
    report = check(run)
    assert any("went back in session 1: steps 1 to 3" in note for note in report.run.notes) == (step == 4)
    assert not [finding for finding in report.findings if finding.code in {"RLD003", "RLD004", "RLD005", "RLD020"}]
    assert of_ours(errors) == []

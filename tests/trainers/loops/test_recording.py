"""Loops of one's own, recorded by exactly the lines of the guide: what is recorded is right, and the training is the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Report, Run, check, open_run
from rl_doctor.analyzer.engine import analyze
from tests.trainers.loops.inserting import GUIDE, ROOT, guide_lines, insert

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(300)]

LOOPS = {"grpo": "GRPO", "ppo": "PPO with a critic", "dpo": "DPO"}
Train = Callable[..., "Trained"]


class Trained:
    """What a loop left: its own numbers, its weights, and the run if it was recorded."""

    def __init__(self, folder: Path, name: str) -> None:
        import torch

        left = torch.load(folder / "result.pt")
        self.weights, self.rng, self.history = left["weights"], left["rng"], left["history"]
        self.path = folder / "runs" / name

    @property
    def run(self) -> Run:
        return open_run(self.path)

    @property
    def report(self) -> Report:
        return check(self.run)

    def own(self, name: str) -> np.ndarray[Any, Any]:
        return np.array([float(row[name]) for row in self.history])

    def recomputed(self, name: str) -> np.ndarray[Any, Any]:
        found = analyze(self.run, [name]).series[name]
        assert found.steps.tolist() == list(range(1, len(self.history) + 1))
        return found.values

    def finding(self, name: str) -> str:
        (found,) = [finding.message for finding in self.report.findings if finding.name == name]
        return found


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Run a loop, with the guide's lines or without; the same one is run once only."""
    made: dict[str, Trained] = {}

    def run(name: str, *, record: bool = True, change: tuple[str, str] = ("", ""), **settings: Any) -> Trained:
        key = json.dumps([name, record, change, settings])
        if key not in made:
            folder = tmp_path_factory.mktemp(name)
            program = (Path(__file__).parent / f"{name}.py").read_text("utf-8")
            if record:
                lines = guide_lines(LOOPS[name])
                assert change[0] in lines
                program = insert(program, lines.replace(*change))
            (folder / "loop.py").write_text(program, "utf-8")
            done = subprocess.run(
                [sys.executable, "-W", "error", "loop.py", json.dumps(settings)], cwd=folder, capture_output=True, text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}, check=False, timeout=250,
            )  # fmt: skip
            assert (done.returncode, done.stderr) == (0, ""), done.stderr
            made[key] = Trained(folder, name)
        return made[key]

    return run


@pytest.mark.parametrize("name", LOOPS)
def test_a_recorded_loop_trains_as_without_the_lines(train: Train, name: str) -> None:
    import torch

    plain, recorded = train(name, record=False), train(name)
    assert not plain.path.exists()
    assert plain.weights.keys() == recorded.weights.keys()
    assert all(torch.equal(plain.weights[key], recorded.weights[key]) for key in plain.weights)
    assert torch.equal(plain.rng, recorded.rng)
    assert plain.history == recorded.history
    assert recorded.run.info.status == "complete"


@pytest.mark.parametrize(
    ("name", "own", "metric"),
    [
        ("grpo", "reward", "reward.mean"),
        ("grpo", "k1", "ref.kl_k1"),
        ("grpo", "k3", "ref.kl_k3"),
        ("grpo", "length", "length.mean"),
        ("dpo", "loss", "pref.loss"),
        ("dpo", "margin", "pref.margin"),
        ("ppo", "reward", "reward.mean"),
        ("ppo", "k2", "policy.kl_old_k2"),
        ("ppo", "outside", "policy.outside_frac"),
        ("ppo", "ratio", "policy.ratio_mean"),
        ("ppo", "critic_loss", "value.loss"),
    ],
)
def test_what_is_recomputed_is_what_the_loop_computed(train: Train, name: str, own: str, metric: str) -> None:
    trained = train(name)
    assert trained.recomputed(metric) == pytest.approx(trained.own(own), rel=1e-5, abs=2e-7)


def test_groups_masks_and_passes(train: Train) -> None:
    grpo = train("grpo")
    for batch in grpo.run.batches(["group"]):
        assert Counter(batch.columns["group"].tolist()) == dict.fromkeys("0123", 4)
    assert set(grpo.recomputed("policy.ratio_mean").tolist()) == {1.0}
    columns = [
        "step",
        "epoch",
        "minibatch",
        "uid",
        "response_mask",
        "response_length",
        "token_id",
        "value",
        "old_value",
        "return",
    ]
    rows = 0
    for batch in train("ppo").run.batches(columns):
        step = batch.columns
        rows += len(step["step"])
        assert sorted(zip(step["epoch"].tolist(), step["minibatch"].tolist(), strict=True)) == [
            (epoch, minibatch) for epoch in range(2) for minibatch in range(2) for _ in range(4)
        ]
        assert sorted(set(step["uid"].tolist())) == [str(number) for number in range(8)]
        # Sampling stops at the end, so that all that was generated is trained on, the end included.
        assert step["response_mask"].all()
        assert np.diff(batch.splits).tolist() == step["response_length"].tolist()
        assert all(np.isfinite(step[name]).all() for name in ("value", "old_value", "return"))
    assert rows == 12 * 16


@pytest.mark.parametrize("name", LOOPS)
def test_a_healthy_loop_is_found_healthy(train: Train, name: str) -> None:
    report = train(name).report
    assert [finding.name for finding in report.findings if finding.severity == "error"] == []
    judged = {result.name for result in report.results if result.outcome == "passed"}
    of_samples = {"prompt-in-loss", "stale-old-logprob"} if name != "dpo" else set()
    assert {"mask-covers-padding", "mask-misses-eos", "non-finite", *of_samples} <= judged
    assert {
        "grpo": {"kl-reversed", "broken-groups", "logged-metric-mismatch", "advantage-mismatch"},
        "ppo": {"ratio-saturation"},
        "dpo": {"preference-not-learning", "preference-reversed", "preference-margin-explosion"},
    }[name] <= judged


def test_both_sides_of_a_pair_are_recorded(train: Train) -> None:
    for batch in train("dpo").run.batches(["pair", "chosen", "response_mask", "logprob", "ref_logprob"]):
        columns = batch.columns
        found = Counter(zip(columns["pair"].tolist(), columns["chosen"].tolist(), strict=True))
        assert found == dict.fromkeys(((str(pair), side) for pair in range(8) for side in (False, True)), 1)
        assert all(np.isfinite(columns[name][columns["response_mask"]]).all() for name in ("logprob", "ref_logprob"))


def test_the_advantage_is_that_of_the_configuration(train: Train) -> None:
    assert np.nanmax(train("grpo").recomputed("advantage.fit_configured_max")) < 1e-4


def test_a_kl_term_in_the_wrong_direction_is_found(train: Train) -> None:
    assert "the direction is turned" in train("grpo", swapped=True).finding("kl-reversed")


def test_a_logged_kl_of_the_wrong_sign_is_found(train: Train) -> None:
    trained = train("grpo", change=('"ref.kl_k1": kl_ref_val', '"ref.kl_k1": -kl_ref_val'))
    assert "logged / recomputed is -1 throughout" in trained.finding("logged-metric-mismatch")


def test_another_temperature_is_found_by_the_samplers_logprobs(train: Train) -> None:
    trained = train(
        "grpo", change=("advantage=advantages", "advantage=advantages, rollout_logprob=rollout_logps"), temperature=0.6
    )
    assert trained.finding("temperature-mismatch")


def test_the_command_of_the_guide_runs(train: Train) -> None:
    (command,) = re.findall(r"^```console\n\$ rl-doctor (.*)\n```", GUIDE.read_text("utf-8"), re.MULTILINE)
    path = train("grpo").path
    done = subprocess.run(
        [sys.executable, "-m", "rl_doctor", *command.split()], cwd=path.parents[1], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "custom · grpo · steps 1-40" in done.stdout

"""A trainer's table and a metric are each one module: everything else finds them by their being there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIALECT = '''
"""A trainer that nobody knows."""

from rl_doctor.analyzer.dialects.recipes import Fold, Recipe, derived, of
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

NEW = trainer(
    Trainer(
        name="brand-new", label="Brand New", source="its source",
        names=(
            Name(
                "bn/drift", "policy.kl_old_k1",
                definition=derived("mean over rows of their mean of old - new", Recipe(
                    of("estimate", kind="k1"), Fold(row="mean"), unit="nat"
                )),
            ),
            Name("bn/score", "reward.mean"),
        ),
        marks=("bn/drift", "bn/score"),
    )
)
'''
METRIC = '''
"""A metric that nobody knows."""

import numpy as np

from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Sum, mean
from rl_doctor.store.batch import Batch


@reduction(zero=Sum(), needs=("reward",), level="rollout")
def _squares(batch: Batch) -> Sum:
    return Sum.of(np.square(batch.columns["reward"]))


metric("brandnew.square", _squares, mean, unit="reward^2", source="arithmetic", formula="mean_i R^2", doc="Mean squared reward.")
'''
RECORD = """
import sys
import numpy as np
from rl_doctor import Recorder

rng = np.random.default_rng(0)
with Recorder(sys.argv[1], info={"trainer": "brand-new", "algorithm": "grpo"}) as recorder:
    for step in range(1, 6):
        mask = np.arange(9) < rng.integers(2, 9, (4, 1))
        old = -rng.random((4, 9)).astype(np.float32)
        new = (old + 0.2 * rng.standard_normal((4, 9))).astype(np.float32)
        reward = rng.random(4)
        recorder.log_batch(
            step=step, minibatch=0, microbatch=0, response_mask=mask, old_logprob=old, logprob=new,
            advantage=rng.standard_normal((4, 9)), reward=reward, uid=[f"{step} {i}" for i in "1234"],
        )
        difference = np.where(mask, old.astype(np.float64) - new, 0.0)
        by_row = (difference.sum(1) / mask.sum(1)).mean()
        wrong = difference.sum() / mask.sum()
        drift = float(wrong if sys.argv[2] == "wrong" else by_row)
        recorder.log_metrics(step, {"bn/drift": drift, "bn/score": float(reward.mean())})
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with a module more for the trainer and one for the metric."""
    folder = tmp_path_factory.mktemp("copy")
    for part in ("rl_doctor", "tools"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "rl_doctor" / "analyzer" / "dialects" / "brand_new.py").write_text(DIALECT, "utf-8")
    (folder / "rl_doctor" / "analyzer" / "metrics" / "brand_new.py").write_text(METRIC, "utf-8")
    return folder


def run(copy: Path, *arguments: str, code: int = 0) -> str:
    """Run Python on the copy."""
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(
        [sys.executable, "-P", *arguments], cwd=copy, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("how", ["right", "wrong"])
def test_check_and_metrics_take_them_up(copy: Path, tmp_path: Path, how: str) -> None:
    run(copy, "-c", RECORD, str(tmp_path / "run"), how)
    document = json.loads(
        run(copy, "-m", "rl_doctor", "check", str(tmp_path / "run"), "--output-format", "json", "--fail-on", "never")
    )
    (judged,) = [result for result in document["results"] if result["name"] == "logged-metric-mismatch"]
    assert [item["evidence"][0]["where"]["logged_name"] for item in judged["findings"]] == (
        ["bn/drift"] if how == "wrong" else []
    )
    assert judged["outcome"] == ("found" if how == "wrong" else "passed")
    measured = json.loads(run(copy, "-m", "rl_doctor", "metrics", str(tmp_path / "run"), "--output-format", "json"))
    assert all(0 < value < 1 for value in measured["metrics"]["brandnew.square"])


def test_a_log_is_recognised_and_the_pages_list_them(copy: Path, tmp_path: Path) -> None:
    rows = [{"step": step, "bn/drift": 0.001 * step, "bn/score": 0.5} for step in range(1, 9)]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    document = json.loads(run(
        copy, "-m", "rl_doctor", "check", str(tmp_path / "log.jsonl"), "--output-format", "json", "--fail-on", "never"
    ))  # fmt: skip
    assert document["run"]["trainer"] == "brand-new"
    program = "import json; from tools import gen_docs; print(json.dumps(gen_docs.pages()))"
    pages = json.loads(run(copy, "-c", f"import sys; sys.path.insert(0, {str(copy)!r}); {program}"))
    assert "| `brandnew.square` | reward^2 | mean_i R^2 | Mean squared reward. | `reward` | arithmetic |" in pages["metrics.md"]
    assert "| Brand New | `bn/drift` |" in pages["metrics.md"]
    assert "mean over rows of their mean of old - new" in pages["dialects/brand-new.md"]
    assert "| [Brand New](dialects/brand-new.md) | 2 |  | 1 |  | 1 |" in pages["dialects.md"]

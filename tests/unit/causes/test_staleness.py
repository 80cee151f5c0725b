"""Stories of stale weights: one cause with what follows folded under it, from recordings and from logs alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rl_doctor.api import check, open_run
from rl_doctor.report.model import Diagnosis
from tests.diseases.catalogue import diseases
from tests.simulation.inject import onset


def _log(path: Path, values: dict[str, np.ndarray]) -> Path:
    size = len(next(iter(values.values())))
    lines = [json.dumps({"step": step, **{name: float(part[step]) for name, part in values.items()}}) for step in range(size)]
    path.write_text("\n".join(lines) + "\n")
    return path


def _asynchronous(rng: np.random.Generator, *, slow: bool, lag: bool = True, n: int = 200) -> dict[str, np.ndarray]:
    """An asynchronous run as logged: with slow generation the lag and the clip share grow, and the reward is flat."""
    grown = np.linspace(0.0, 1.0, n)
    values = {
        "actor/pg_clipfrac": 0.01 + 0.5 * grown + 0.01 * rng.random(n),
        "actor/ppo_kl": 0.02 + 0.2 * grown + 0.01 * rng.random(n),
        "actor/grad_norm": 0.3 + 0.05 * rng.standard_normal(n),
        "critic/rewards/mean": 0.3 + 0.01 * rng.standard_normal(n),
        "timing_s/gen": (60.0 if slow else 20.0) + rng.random(n),
        "timing_s/update_actor": 30.0 + rng.random(n),
        "timing_s/step": 62.0 + rng.random(n),
    }
    return values | ({"staleness": np.floor(6 * grown)} if lag else {})


def _first(path: Path) -> Diagnosis:
    return check(open_run(path)).diagnosis[0]


@pytest.mark.parametrize("lag", [True, False])
def test_slow_generation_is_told_from_the_clocks_of_a_log(tmp_path: Path, lag: bool) -> None:
    told = _first(_log(tmp_path / "run.jsonl", _asynchronous(np.random.default_rng(0), slow=True, lag=lag)))
    assert told.name == "generation-slower-than-training"
    assert "RLD201" in told.codes
    assert any("generation takes" in sign.text for sign in told.seen)


def test_fast_generation_is_ruled_out_and_the_lag_remains(tmp_path: Path) -> None:
    told = _first(_log(tmp_path / "run.jsonl", _asynchronous(np.random.default_rng(0), slow=False)))
    assert told.name == "samples-too-old"
    assert any("generation takes" in text for text in told.ruled_out)


def test_clocks_of_a_synchronous_run_blame_nobody(tmp_path: Path) -> None:
    values = _asynchronous(np.random.default_rng(0), slow=True, lag=False)
    values["timing_s/step"] = values["timing_s/gen"] + values["timing_s/update_actor"] + 5.0
    assert _first(_log(tmp_path / "run.jsonl", values)).name != "generation-slower-than-training"


def test_stale_weights_are_one_story() -> None:
    """An old_logprob that falls behind saturates the ratio: both are told under one cause, from the same onset on."""
    disease = diseases()["old-logprob-falls-behind"]
    run = disease.make(0)
    assert disease.grade is not None
    far = disease.grade.inject(run.copy(), np.random.default_rng(0), 1.0, onset(run, 0.3))
    report = check(far)  # type: ignore[arg-type]
    told = report.diagnosis[0]
    assert told.name == "old-logprob-outdated"
    assert {"RLD101", "RLD201"} <= set(told.codes)
    assert not [entry.name for entry in report.diagnosis[1:] if entry.severity != "info" and "RLD201" in entry.codes]

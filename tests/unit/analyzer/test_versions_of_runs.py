"""A run that does not tell its trainer's version: what its keys tell of it decides how its numbers are recomputed."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import Recorder, check, open_run
from rl_doctor.analyzer.dialects import registry
from rl_doctor.analyzer.dialects.recipes import Recipe, derived, of
from rl_doctor.analyzer.dialects.recognise import names_of
from rl_doctor.analyzer.dialects.registry import Bounds, Name, Trainer, trainer
from rl_doctor.report.model import Report, Result
from rl_doctor.report.text import render

OLD, NEW = "x/clipped", "x/clipped_tokens"


def _dated(names: Collection[str]) -> Bounds:
    return Bounds((0, 8)) if "x_clipped_tokens" in names else Bounds(None, (0, 8)) if "x_clipped" in names else Bounds()


@pytest.fixture(autouse=True)
def _versioned() -> Iterator[None]:
    """A trainer whose ``x/kl`` is k1 before 0.8 and k3 from then on."""
    names = (
        Name("x/kl", "policy.kl_old_k3", since=(0, 8), definition=derived("k3", Recipe(of("estimate", kind="k3")))),
        Name("x/kl", "policy.kl_old_k1", until=(0, 8), definition=derived("k1", Recipe(of("estimate", kind="k1")))),
        Name("x/entropy", "policy.entropy", definition=derived("entropy", Recipe(of("column", name="entropy")))),
        Name(OLD, None), Name(NEW, None),
    )  # fmt: skip
    registry.trainers()
    trainer(Trainer("versioned", "Versioned", "here", names, dated=_dated))
    yield
    del registry._TRAINERS["versioned"]
    names_of.cache_clear()


def judged(folder: Path, kind: str, beside: dict[str, float], **info: str) -> tuple[Report, Result]:
    """A recorded run whose logged ``x/kl`` is k1 or k3, and its verdict."""
    rng = np.random.default_rng(0)
    with Recorder(folder / "run", info={"trainer": "versioned", "algorithm": "grpo", **info}) as recorder:
        for step in range(1, 6):
            old = -rng.random((4, 9)).astype(np.float32)
            new = (old + 0.2 * rng.standard_normal((4, 9))).astype(np.float32)
            x = new.astype(np.float64) - old
            entropy = rng.random((4, 9)).astype(np.float32)
            recorder.log_batch(
                step=step, minibatch=0, microbatch=0, response_mask=np.ones((4, 9), bool), old_logprob=old, logprob=new,
                entropy=entropy, advantage=rng.standard_normal((4, 9)), reward=rng.random(4), uid=[f"{step} {i}" for i in "1234"],
            )  # fmt: skip
            value = float((-x if kind == "k1" else np.expm1(x) - x).mean())
            recorder.log_metrics(step, {"x/kl": value, "x/entropy": float(entropy.mean(dtype=np.float64)), **beside})
    report = check(open_run(folder / "run"))
    return report, next(result for result in report.results if result.name == "logged-metric-mismatch")


@pytest.mark.parametrize(("kind", "beside", "told"), [("k1", OLD, "before 0.8"), ("k3", NEW, "0.8 or later")])
def test_keys_tell_the_version_and_the_version_the_definition(tmp_path: Path, kind: str, beside: str, told: str) -> None:
    report, result = judged(tmp_path, kind, {beside: 0.5})
    assert (result.outcome, result.detail) == ("passed", "2 of 2 compared")
    assert report.run.trainer_version == f"{told}, by its keys"
    assert f"versioned {told}, by its keys · grpo" in render([report])


@pytest.mark.parametrize(("kind", "beside"), [("k1", NEW), ("k3", OLD)])
def test_the_definition_of_another_version_is_another_number(tmp_path: Path, kind: str, beside: str) -> None:
    _, result = judged(tmp_path, kind, {beside: 0.5})
    assert [finding.evidence[0].where for finding in result.findings] == [{"logged_name": "x/kl"}]


def test_a_version_that_is_told_counts(tmp_path: Path) -> None:
    report, result = judged(tmp_path, "k1", {NEW: 0.5}, trainer_version="0.7.1")
    assert (result.outcome, report.run.trainer_version) == ("passed", "0.7.1")


@pytest.mark.parametrize("kind", ["k1", "k3"])
def test_what_two_versions_leave_open_is_not_judged_and_says_why(tmp_path: Path, kind: str) -> None:
    report, result = judged(tmp_path, kind, {})
    assert result.findings == ()
    assert "x/kl means depends on the version of versioned (unknown); trainer_version in run.json tells it" in result.detail
    assert report.run.trainer_version is None

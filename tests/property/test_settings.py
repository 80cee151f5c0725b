"""Whatever stands in a trainer's own configuration, planning, recomputing and comparing raise nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_doctor import Recorder, open_run
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.dialects.registry import trainers
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.recompute.native import Native
from rl_doctor.analyzer.recompute.registry import find_dialect
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.run import Run

VERSIONS: Final = {"verl": ("0.5.0", "0.7.0", "0.9.1", "main"), "trl": ("0.19.0", "1.16.0"), "openrlhf": ("0.11.2",)}
ALGORITHMS: Final = {"trl": ("grpo", "rloo", "dpo", "ppo")}
NEEDED: Final = {
    "trl": {"epsilon": 0.2, "beta": 0.1},
    "openrlhf": {"actor.policy_loss_type": "ppo", "actor.eps_clip_low_high": [0.2, 0.2]},
    "verl": {"trainer.v1.trainer_mode": "separate_async", "algorithm.rollout_correction.rollout_is": "token"},
}
VALUES: Final = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 9) | st.floats() | st.sampled_from(["0.2", "2", "auto", "true", "k3", "token"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "a", "enabled"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two steps with every column that tokens have, and the trainers' exact names logged."""
    folder, rng = tmp_path_factory.mktemp("run"), np.random.default_rng(0)
    names = {item.native for known in trainers().values() for item in known.names if not item.family}
    with Recorder(folder, {"world_size": 1}) as recorder:
        for step in (1, 2):
            for microbatch in (0, 1):
                old = -rng.exponential(size=(4, 6))
                tokens = {
                    name: np.minimum(old + rng.normal(0, 0.1, (4, 6)), -1e-3)
                    for name in ("logprob", "old_logprob", "ref_logprob", "rollout_logprob")
                }
                values = {name: rng.normal(size=(4, 6)) for name in ("advantage", "value", "old_value", "entropy", "old_entropy")}
                recorder.log_batch(
                    step=step, epoch=0, minibatch=0, microbatch=microbatch, rank=0, returns=values["value"] + 0.1,
                    response_mask=np.arange(6) < np.array([3, 6, 1, 5])[:, None], response_length=[3, 6, 1, 5],
                    prompt_length=[4] * 4, reward=rng.normal(size=4), score=rng.normal(size=4), group=["a", "a", "b", "b"],
                    **tokens, **values,
                )  # fmt: skip
            recorder.log_metrics(step, dict.fromkeys(names, 0.5))
    return open_run(folder)


def asked_of(info: RunInfo) -> Iterator[str]:
    """The native settings that are read of a run."""
    found: set[str] = set()
    read = Native.__contains__
    Native.__contains__ = lambda self, name: (found.add(name), read(self, name))[1]  # type: ignore[assignment]
    try:
        dialect = find_dialect(info)
        list(dialect.doubts(info) if dialect else ())
    finally:
        Native.__contains__ = read  # type: ignore[method-assign]
    yield from found
    known = next(item for item in trainers().values() if item.name == info.trainer)
    for item in known.names:
        for recipe in item.definition.recipes if item.definition else ():
            for text in (*recipe.when, *map(str, recipe.value.__repr__().split("'"))):
                yield from (one.removeprefix("native.") for one in text.rstrip("?").split("|") if one.startswith("native."))


def described(trainer: str) -> list[RunInfo]:
    return [
        RunInfo(trainer=trainer, trainer_version=version, algorithm=algorithm, world_size=1)
        for version in VERSIONS.get(trainer, (None,))
        for algorithm in ALGORITHMS.get(trainer, ("ppo",))
    ]


@pytest.mark.parametrize("trainer", sorted(trainers()))
@settings(max_examples=6, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_no_configuration_raises(trainer: str, run: Run, data: st.DataObject) -> None:
    info = data.draw(st.sampled_from(described(trainer)))
    start = NEEDED.get(trainer, {})
    keys = sorted({*asked_of(replace(info, config=RunConfig(native=start)))})
    drawn = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=6)) if keys else {}
    native: dict[str, Any] = {**start, **drawn}
    info = replace(info, config=RunConfig(native=native, clip_low=0.2, clip_high=0.2, kl_estimator="k3", loss_agg="token-mean"))
    dialect = find_dialect(info)
    names = {item.native for known in trainers().values() if known.name == trainer for item in known.names if not item.family}
    log = MetricLog({key: points for key, points in run.metrics().points.items() if key[0] in names})
    if dialect is not None:
        list(dialect.doubts(info))
    plan = reconcile.plan(info, run.columns, log)
    done = analyze(run, [], plan.metrics)
    reconcile.compare(plan, done.series, done.partial_steps)

"""verl: logs with one mistake that only its own keys can have, in generated runs, and right logs of its older workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import Comparison, differing, fits
from rl_doctor.analyzer.engine import analyze
from rl_doctor.rules.registry import rules
from rl_doctor.schema import RunConfig, RunInfo
from tests.unit.analyzer.mistaken_logs import (
    CONFIG,
    ENTROPY_COEF,
    HIGH,
    KL_COEF,
    LOW,
    Array,
    Micro,
    Shape,
    dual,
    estimate,
    k3,
    loss,
    parts,
    source,
    trainers,
    world,
)
from tests.unit.analyzer.reference_trl import logged
from tests.unit.analyzer.test_reconcile_cases import by_step, compared

Value = Callable[[Micro], Array]
KL = estimate(k3, "ref_logprob", "logprob")


def surrogate(low: float = LOW, high: float = HIGH) -> Value:
    def clipped(ratio: Array, advantage: Array) -> Array:
        return dual(np.maximum(-advantage * ratio, -advantage * np.clip(ratio, low, high)), advantage)

    return loss(clipped)


def entropy(micro: Micro) -> Array:
    return micro.tokens["entropy"]


def total(micros: list[Micro], value: Value) -> float:
    return float(sum(value(micro)[micro.mask].sum() for micro in micros))


def tokens(micros: list[Micro]) -> int:
    return int(sum(micro.mask.sum() for micro in micros))


def engine(micros: list[Micro], *terms: tuple[float, Value], rank: int | None = None) -> float:
    """The mean over mini-batches of their token means; of one rank its part alone, times the number of ranks."""
    found = []
    for mini in parts(micros, "epoch", "minibatch"):
        kept = [micro for micro in mini if rank is None or micro.place["rank"] == rank]
        times = 1 if rank is None else len({micro.place["rank"] for micro in mini})
        found.append(times * sum(factor * total(kept, value) for factor, value in terms) / tokens(mini))
    return float(np.mean(found))


def share(micros: list[Micro], function: Callable[[Array, Array], Array]) -> float:
    """The mean over mini-batches of the mean over micro-batches and ranks of a share of tokens."""
    flags = loss(function)
    inner = [[total([micro], flags) / tokens([micro]) for micro in mini] for mini in parts(micros, "epoch", "minibatch")]
    return float(np.mean([np.mean(values) for values in inner]))


def outside(low: float, high: float) -> Callable[[Array, Array], Array]:
    return lambda ratio, advantage: ((ratio < low) & (advantage < 0)) | ((ratio > high) & (advantage > 0))


PG, ENT, PENALTY = (1.0, surrogate()), (-ENTROPY_COEF, entropy), (KL_COEF, KL)
RIGHT: dict[str, Callable[[list[Micro]], float]] = {
    "actor/pg_loss": lambda m: engine(m, PG), "actor/kl_loss": lambda m: engine(m, (1.0, KL)),
    "actor/entropy_loss": lambda m: engine(m, (1.0, entropy)), "actor/loss": lambda m: engine(m, PG, ENT, PENALTY),
    "actor/pg_clipfrac": lambda m: share(m, outside(LOW, HIGH)),
}  # fmt: skip
MISTAKES: list[tuple[str, str, Callable[[list[Micro]], float]]] = [
    ("actor/pg_loss", "lower bound on both sides", lambda m: engine(m, (1.0, surrogate(LOW, 2 - LOW)))),
    ("actor/pg_loss", "upper bound on both sides", lambda m: engine(m, (1.0, surrogate(2 - HIGH, HIGH)))),
    ("actor/pg_clipfrac", "lower bound on both sides", lambda m: share(m, outside(LOW, 2 - LOW))),
    ("actor/pg_clipfrac", "upper bound on both sides", lambda m: share(m, outside(2 - HIGH, HIGH))),
    ("actor/pg_loss", "KL term included", lambda m: engine(m, PG, PENALTY)),
    ("actor/pg_loss", "entropy term included", lambda m: engine(m, PG, ENT)),
    ("actor/pg_loss", "part of the first rank", lambda m: engine(m, PG, rank=0)),
    ("actor/kl_loss", "part of the first rank", lambda m: engine(m, (1.0, KL), rank=0)),
    ("actor/entropy_loss", "part of the first rank", lambda m: engine(m, (1.0, entropy), rank=0)),
    ("actor/kl_loss", "times the KL coefficient", lambda m: engine(m, PENALTY)),
    ("actor/entropy_loss", "times the entropy coefficient", lambda m: -engine(m, ENT)),
    ("actor/loss", "KL coefficient twice", lambda m: engine(m, PG, ENT, (KL_COEF**2, KL))),
    ("actor/loss", "KL term without its coefficient", lambda m: engine(m, PG, ENT, (1.0, KL))),
    ("actor/loss", "entropy term without its coefficient", lambda m: engine(m, PG, (-1.0, entropy), PENALTY)),
    ("actor/loss", "no KL term", lambda m: engine(m, PG, ENT)),
]
NATIVE_ONLY = RunConfig(native=trainers()["verl"].info.config.native)
INFO = trainers()["verl"].info


def names_of(item: Comparison) -> list[str]:
    wrong = differing(item, rules()["RLD801"].limits)
    assert wrong is not None, item.name
    found = [fit for fit in fits(item, wrong) if fit.fits(0.95)]
    return [fit.explanation.name for fit in found if not fit.explanation.approximate]


def judged(info: RunInfo, micros: list[Micro], keys: dict[str, Callable[[list[Micro]], float]]) -> dict[str, Comparison]:
    log = {step: {key: float(np.float32(of(part))) for key, of in keys.items()} for step, part in by_step(micros).items()}
    run = replace(source(micros, info), log=logged(log))
    for row in run.rows:  # parts of a sum over a recorded number of tokens are those of one rank alone
        del row.keys["batch_num_tokens"]
    return compared(run)


@pytest.mark.parametrize("config", [INFO.config, NATIVE_ONLY])
@pytest.mark.parametrize(("key", "name", "of"), MISTAKES)
def test_a_mistake_of_one_term_is_named(
    key: str, name: str, of: Callable[[list[Micro]], float], config: RunConfig
) -> None:  # fmt: skip
    found = judged(replace(INFO, config=config), world(3, Shape()), {**RIGHT, key: of})
    assert names_of(found[key]) == [name]
    assert all(not item.explanations for other, item in found.items() if other != key)


def fsdp(micros: list[Micro], *terms: tuple[float, Value]) -> float:
    """verl 0.7: the sum over micro-batches of their token means, each times its share of the mini-batch; the mean over ranks."""
    found = 0.0
    for mini in parts(micros, "rank", "epoch", "minibatch"):
        rows = sum(len(micro.mask) for micro in mini)
        for micro in mini:
            found += sum(factor * total([micro], value) for factor, value in terms) / tokens([micro]) * len(micro.mask) / rows
    return found / len({micro.place["rank"] for micro in micros})


def mean_entropy(micros: list[Micro]) -> float:
    return float(np.mean([total([micro], entropy) / tokens([micro]) for micro in micros]))


def older(native: dict[str, Any] | None) -> RunInfo:
    config = replace(CONFIG, native=native, loss_agg="token-mean")
    return replace(INFO, trainer_version="0.7.1", config=config)


@pytest.mark.parametrize("native", [None, {}, {"actor_rollout_ref": {"actor": {"entropy_coeff": ENTROPY_COEF}}}])
def test_both_forms_of_the_entropy_coefficient_are_read_alike(native: dict[str, Any] | None) -> None:
    keys = {"actor/pg_loss": lambda m: fsdp(m, PG, ENT), "actor/entropy": mean_entropy}
    found = judged(older(native), world(4, Shape()), keys)
    assert set(found) == set(keys)
    for item in found.values():
        assert (np.abs(item.logged - item.recomputed) <= item.tolerance).all(), item.name
        assert item.explanations == ()


OLDER: list[tuple[str, Callable[[list[Micro]], float]]] = [
    ("no entropy term", lambda m: fsdp(m, PG)),
    ("entropy term with the opposite sign", lambda m: fsdp(m, PG, (ENTROPY_COEF, entropy))),
    ("entropy term without its coefficient", lambda m: fsdp(m, PG, (-1.0, entropy))),
    (
        "without the dual clip",
        lambda m: fsdp(m, (1.0, loss(lambda r, a: np.maximum(-a * r, -a * np.clip(r, LOW, HIGH)))), ENT),
    ),
    ("lower bound on both sides", lambda m: fsdp(m, (1.0, surrogate(LOW, 2 - LOW)), ENT)),
]


@pytest.mark.parametrize(("name", "of"), OLDER)
def test_in_place_the_entropy_term_stays_where_something_else_is_wrong(name: str, of: Callable[[list[Micro]], float]) -> None:
    found = judged(older(None), world(5, Shape()), {"actor/pg_loss": of})
    assert names_of(found["actor/pg_loss"]) == [name]


def reasons(keys: dict[str, Callable[[list[Micro]], float]], coefficient: float | None) -> tuple[set[str], dict[str, str]]:
    """Of a run of 0.7 the keys that are equal, and of those that are not compared why."""
    info, micros = older(None), world(4, Shape())
    info = replace(info, config=replace(info.config, entropy_coef=coefficient))
    log = {step: {key: float(np.float32(of(part))) for key, of in keys.items()} for step, part in by_step(micros).items()}
    run = replace(source(micros, info), log=logged(log))
    plan = reconcile.plan(run.info, run.columns, run.log)
    series = analyze(run, [], plan.metrics).series
    found = {item.name: item for item in reconcile.compare(plan, series)}
    told = reconcile.why_not_compared(plan, series, np.empty(0, np.int64))
    equal = {name for name, item in found.items() if (np.abs(item.logged - item.recomputed) <= item.tolerance).all()}
    return equal, {name: why for name, why in told.items() if name not in found}


def drivers_entropy(micros: list[Micro]) -> float:
    return float(picked(micros, lambda micro: micro.tokens["old_entropy"]).mean())


def test_without_an_entropy_coefficient_both_meanings_are_tried() -> None:
    own = {"actor/pg_loss": lambda m: fsdp(m, PG), "actor/entropy": mean_entropy}
    assert reasons(own, None) == ({"actor/pg_loss", "actor/entropy"}, {})
    assert reasons({"actor/entropy": drivers_entropy}, None) == ({"actor/entropy"}, {})
    assert reasons({"actor/entropy": drivers_entropy}, 0.0) == ({"actor/entropy"}, {})
    equal, why = reasons({"actor/pg_loss": lambda m: fsdp(m, PG, ENT), "actor/entropy": lambda m: -mean_entropy(m)}, None)
    assert equal == set()
    assert set(why) == {"actor/pg_loss", "actor/entropy"}
    assert all("depends on actor_rollout_ref.actor.entropy_coeff, which is not known" in reason for reason in why.values())


def test_an_entropy_coefficient_that_is_known_to_be_none_is_held_against_the_log() -> None:
    equal, why = reasons({"actor/pg_loss": lambda m: fsdp(m, PG, ENT), "actor/entropy": mean_entropy}, 0.0)
    assert (equal, why) == (set(), {})


def first_pass(micros: list[Micro]) -> list[Micro]:
    return [micro for micro in micros if micro.place["epoch"] == 0]


def rows(micros: list[Micro], of: Callable[[Micro], Array], rank: int | None = None) -> Array:
    return np.concatenate([of(micro) for micro in first_pass(micros) if rank is None or micro.place["rank"] == rank])


def picked(micros: list[Micro], of: Value, stored: bool = False) -> Array:
    inside = (lambda m: np.arange(m.width)[None] < m.lengths[:, None]) if stored else (lambda m: m.mask)
    return np.concatenate([of(micro)[inside(micro)] for micro in first_pass(micros)])


def distance(micro: Micro) -> Array:
    return np.abs(np.exp(micro.tokens["old_logprob"]) - np.exp(micro.tokens["rollout_logprob"]))


def log_distance(micro: Micro) -> Array:
    return np.abs(micro.tokens["old_logprob"] - micro.tokens["rollout_logprob"])


def in_mask(micro: Micro) -> Array:
    return micro.mask.sum(1).astype(float)


DIFF = "training/rollout_probs_diff_"
DRIVER: dict[str, Callable[[list[Micro]], float]] = {
    "critic/score/mean": lambda m: rows(m, lambda x: x.rows["score"]).mean(),
    "response_length/mean": lambda m: rows(m, lambda x: x.lengths).mean(),
    "response_length/max": lambda m: rows(m, lambda x: x.lengths).max(),
    "critic/advantages/mean": lambda m: picked(m, lambda x: x.tokens["advantage"]).mean(),
    "critic/advantages/min": lambda m: picked(m, lambda x: x.tokens["advantage"]).min(),
    f"{DIFF}mean": lambda m: picked(m, distance).mean(), f"{DIFF}std": lambda m: picked(m, distance).std(ddof=1),
    "training/rollout_actor_probs_pearson_corr": lambda m: np.corrcoef(
        picked(m, lambda x: np.exp(x.tokens["old_logprob"])), picked(m, lambda x: np.exp(x.tokens["rollout_logprob"]))
    )[0, 1],
}  # fmt: skip
DRIVERS: list[tuple[str, str, Callable[[list[Micro]], float]]] = [
    ("critic/score/mean", "reward for score", lambda m: rows(m, lambda x: x.rows["reward"]).mean()),
    ("critic/score/mean", "rank 0 only", lambda m: rows(m, lambda x: x.rows["score"], 0).mean()),
    ("critic/score/mean", "max", lambda m: rows(m, lambda x: x.rows["score"]).max()),
    (
        "critic/score/mean", "weighted by tokens",
        lambda m: np.average(rows(m, lambda x: x.rows["score"]), weights=rows(m, in_mask)),
    ),
    ("response_length/mean", "tokens of the mask", lambda m: rows(m, in_mask).mean()),
    ("response_length/mean", "with the prompt", lambda m: rows(m, lambda x: x.lengths + x.rows["prompt_length"]).mean()),
    ("response_length/max", "with the prompt", lambda m: rows(m, lambda x: x.lengths + x.rows["prompt_length"]).max()),
    ("critic/advantages/mean", "without the mask", lambda m: picked(m, lambda x: x.tokens["advantage"], stored=True).mean()),
    ("critic/advantages/mean", "absolute values", lambda m: np.abs(picked(m, lambda x: x.tokens["advantage"])).mean()),
    (
        "critic/advantages/mean", "mean of the sequences' means", lambda m: rows(
            m, lambda x: (x.tokens["advantage"] * x.mask).sum(1) / in_mask(x)
        ).mean(),
    ),
    ("critic/advantages/min", "max", lambda m: picked(m, lambda x: x.tokens["advantage"]).max()),
    (f"{DIFF}mean", "without the mask", lambda m: picked(m, distance, stored=True).mean()),
    (f"{DIFF}mean", "of log-probabilities", lambda m: picked(m, log_distance).mean()),
    (f"{DIFF}std", "ddof 0", lambda m: picked(m, distance).std()),
    (f"{DIFF}std", "variance", lambda m: picked(m, distance).var(ddof=1)),
    (
        "training/rollout_actor_probs_pearson_corr", "of log-probabilities", lambda m: np.corrcoef(
            picked(m, lambda x: x.tokens["old_logprob"]), picked(m, lambda x: x.tokens["rollout_logprob"])
        )[0, 1],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("key", "name", "of"), DRIVERS)
def test_a_mistake_of_a_statistic_of_the_batch_is_named(key: str, name: str, of: Callable[[list[Micro]], float]) -> None:
    found = judged(INFO, world(6, Shape(steps=4)), {**DRIVER, key: of})
    assert set(found) == set(DRIVER)
    assert names_of(found[key]) == [name]
    assert all(not item.explanations for other, item in found.items() if other != key)

"""Each known mistake in a log is told from the others; the mistaken number is made row by row in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor import check, open_run
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import differing, fits
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.explain import explained
from rl_doctor.demo import recorded_runs
from rl_doctor.report.model import Finding
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig
from tests.simulation.healthy import KINDS
from tests.simulation.logs import relogged
from tests.unit.analyzer.reference_trl import (
    NATIVE,
    STEPS,
    Memory,
    Row,
    expected,
    kl_of,
    logged,
    loss_of,
    make_rows,
    masked,
    micro_batches,
    token_mean,
    trl_run,
)

Value = Callable[[list[Row], int], float]
WIDTH = 11
BETA = 0.1


def recorded(rows: list[Row], **native: Any) -> Memory:
    for row in rows:
        row.keys["padded_width"] = WIDTH + row.keys["microbatch"]
    run = trl_run(1, rows)
    return replace(run, info=replace(run.info, config=RunConfig(native=NATIVE | native, epochs=3)))


def judged(run: Any) -> list[Finding]:
    plan = reconcile.plan(run.info, run.columns, run.log)
    comparisons = reconcile.compare(plan, analyze(run, [], plan.metrics).series)
    comparisons = explained(plan, run, comparisons, rules()["RLD801"].limits)
    (result,) = run_rules([rules()["RLD801"]], View(run.info, {}, comparisons=comparisons))
    return list(result.findings)


def fitting(run: Any, key: str) -> list[str]:
    """Names of what fits a key everywhere, the best first."""
    limits = rules()["RLD801"].limits
    plan = reconcile.plan(run.info, run.columns, run.log)
    comparisons = reconcile.compare(plan, analyze(run, [], plan.metrics).series)
    (item,) = (item for item in explained(plan, run, comparisons, limits) if item.name == key)
    wrong = differing(item, limits)
    assert wrong is not None
    return [fit.explanation.name for fit in fits(item, wrong) if fit.share == 1 and not fit.explanation.approximate]


def mistaken(run: Memory, key: str, value: Value, steps: range = range(1, STEPS + 1)) -> Memory:
    """The run with this key logged by ``value`` and with an honest reward beside it."""
    rewards = {step: expected(run.rows, step - 1, step).get("reward") for step in steps}
    found = {step: {key: value(run.rows, step)} for step in steps}
    for step, reward in rewards.items():
        if reward is not None:
            found[step].setdefault("reward", reward)
    return replace(run, log=logged(found))


def over(value: Callable[[list[Row]], float]) -> Value:
    """Averaged over the micro-batches of the step."""
    return lambda rows, step: float(np.mean([value(micro) for micro in micro_batches(rows, step)]))


def tokens(micro: list[Row], value: Any) -> float:
    return float(sum(value(token) for row in micro for token in masked(row)))


def padded(value: Any) -> Value:
    return over(lambda micro: tokens(micro, value) / sum(row.keys["padded_width"] for row in micro))


def unmasked(value: Any) -> Value:
    def of(micro: list[Row]) -> float:
        whole = [Row(row.keys, row.tokens | {"response_mask": np.ones(len(row.tokens["logprob"]), bool)}) for row in micro]
        return token_mean(whole, value)

    return over(of)


def by_sequence(value: Any) -> Value:
    return over(lambda micro: float(np.mean([token_mean([row], value) for row in micro])))


def pooled(value: Any) -> Value:
    return lambda rows, step: token_mean([row for micro in micro_batches(rows, step) for row in micro], value)


def estimate(function: Callable[[float], float]) -> Value:
    """A mean over tokens of a function of the log-ratio reference - policy."""
    return over(lambda micro: token_mean(micro, lambda token: function(token[2] - token[0])))


def plain(key: str, factor: float = 1.0, shift: int = 0) -> Value:
    def of(rows: list[Row], step: int) -> float:
        at = step + shift
        return factor * expected(rows, at - 1, at)[key] if 1 <= at <= STEPS else 0.123

    return of


def loss(factor: float) -> Value:
    """The loss with another factor on the KL term."""

    def of(rows: list[Row], step: int) -> float:
        return math.fsum(
            tokens(micro, lambda token: loss_of(token) + (factor - 1) * BETA * kl_of(token)) / micro[0].keys["num_items_in_batch"]
            for micro in micro_batches(rows, step)
        )

    return of


def entropy_of(token: tuple[float, ...]) -> float:
    return token[3]


MISTAKES: dict[str, tuple[str, Value, set[str]]] = {
    "KL sign": ("loss", loss(-1.0), {"KL term with the opposite sign"}),
    "no KL": ("loss", loss(0.0), {"no KL term"}),
    "KL twice": ("loss", loss(BETA), {"KL coefficient twice"}),
    "KL bare": ("loss", loss(1 / BETA), {"KL term without its coefficient"}),
    "loss sign": ("loss", plain("loss", -1.0), {"opposite sign"}),
    "loss per micro-batch": ("loss", plain("loss", 0.5), {"divided by accumulation", "divided by ranks"}),
    "loss summed": ("loss", plain("loss", 2.0), {"times accumulation", "times ranks"}),
    "loss of epochs": ("loss", plain("loss", 3.0), {"times epochs"}),
    "KL padded": ("kl", padded(kl_of), {"over the padded width"}),
    "KL unmasked": ("kl", unmasked(kl_of), {"without the mask"}),
    "KL by sequence": ("kl", by_sequence(kl_of), {"mean of the sequences' means"}),
    "KL pooled": ("kl", pooled(kl_of), {"tokens weighted over micro-batches"}),
    "KL without the ratio": ("kl", estimate(lambda x: math.exp(x) - 1 - x), {"k3 without the ratio"}),
    "k1": ("kl", estimate(lambda x: -x), {"k1"}),
    "k1 reversed": ("kl", estimate(lambda x: x), {"k1 reversed"}),
    "abs": ("kl", estimate(abs), {"abs"}),
    "k2": ("kl", estimate(lambda x: x * x / 2), {"k2"}),
    "k3 reversed": ("kl", estimate(lambda x: math.exp(-x) - 1 + x), {"k3 reversed"}),
    "KL of the step before": ("kl", plain("kl", shift=-1), {"previous row's value"}),
    "KL of the step after": ("kl", plain("kl", shift=1), {"next row's value"}),
    "entropy padded": ("entropy", padded(entropy_of), {"over the padded width"}),
    "entropy unmasked": ("entropy", unmasked(entropy_of), {"without the mask"}),
}


ALIKE = {"logprob for old_logprob", "mean of the sequences' sums over the width", "mean over mini-batches", "mean over epochs"}
"""What these runs cannot tell from the mistake: one mini-batch per step, one width per micro-batch, a ratio that is left out."""


@pytest.mark.parametrize("name", MISTAKES)
def test_each_mistake_is_told_from_the_others(name: str) -> None:
    key, value, named = MISTAKES[name]
    run = mistaken(recorded(make_rows()), key, value)
    (finding,) = judged(run)
    (ruled_out,) = finding.ruled_out
    assert finding.cause.startswith("The logged number ")
    assert named <= set(fitting(run, key))
    assert not named & set(ruled_out.removeprefix(f"{key}: ").split(", "))
    assert fitting(run, key)[0] in named
    assert name.startswith("loss") or set(fitting(run, key)) <= named | ALIKE


def test_nothing_is_found_where_the_log_is_honest() -> None:
    assert judged(recorded(make_rows())) == []
    for kind in ("two_epochs", "gspo", "partial_and_aborted"):
        assert judged(relogged(KINDS[kind](0))) == []


def test_what_no_explanation_fits_is_said() -> None:
    noise = np.random.default_rng(0).uniform(1, 2, STEPS + 1)
    (finding,) = judged(mistaken(recorded(make_rows()), "kl", lambda _rows, step: float(noise[step])))
    assert "kl differs from its recomputation" in finding.message
    assert "it matches none of the" in finding.message
    (finding,) = judged(mistaken(recorded(make_rows()), "kl", plain("kl", 7.0)))
    assert "logged / recomputed is 7 throughout" in finding.message
    assert "it is a constant times its definition, which no known number explains" in finding.cause


def test_a_mistake_that_begins_later_is_named_too() -> None:
    def of(rows: list[Row], step: int) -> float:
        return (loss(-1.0) if step > 3 else plain("loss"))(rows, step)

    (finding,) = judged(mistaken(recorded(make_rows()), "loss", of))
    assert "has the KL term with the opposite sign" in finding.cause
    assert finding.evidence[0].first_step == 4


def test_what_lacks_a_column_is_not_tried_and_says_so() -> None:
    run = mistaken(trl_run(1), "kl", plain("kl", 7.0))
    (finding,) = judged(run)
    assert any(item.startswith("over the padded width") and item.endswith("(needs padded_width)") for item in finding.unchecked)
    assert "over the padded width" not in finding.ruled_out[0]


def batch_of(rows: list[Row], step: int) -> list[Row]:
    return [row for row in rows if row.keys["rollout_step"] == step and row.keys["epoch"] == 0]


def component(rows: list[Row]) -> Any:
    return np.array([row.keys["reward/a"] for row in rows])


def group_deviation(ddof: int) -> Callable[[list[Row]], float]:
    def of(rows: list[Row]) -> float:
        groups = sorted({row.keys["group"] for row in rows})
        return float(np.mean([component([row for row in rows if row.keys["group"] == name]).std(ddof=ddof) for name in groups]))

    return of


@pytest.mark.parametrize(
    ("key", "function", "sentence"),
    [
        ("rewards/a/std", lambda rows: component(rows).std(), "is a standard deviation that divides by n, not by n - 1"),
        ("rewards/a/std", group_deviation(1), "is the mean of the groups' standard deviations (ddof 1)"),
        ("rewards/a/std", group_deviation(0), "is the mean of the groups' standard deviations, with ddof 0"),
        ("rewards/a/mean", lambda rows: 2.5 * component(rows).mean(), "is the mean after the component's weight of 2.5"),
        ("reward", lambda rows: component(rows).mean(), "is that of the sum of the components without their weights"),
    ],
)
def test_statistics_of_rewards(key: str, function: Callable[[list[Row]], float], sentence: str) -> None:
    run = recorded(make_rows())
    config = replace(run.info.config, reward_weights={"a": 2.5})
    steps = range(1, STEPS + 1, 2)
    found = {step: {key: float(function(batch_of(run.rows, step)))} for step in steps if len(batch_of(run.rows, step)) == 8}
    run = replace(run, info=replace(run.info, config=config), log=logged(found))
    (finding,) = judged(run)
    assert sentence in finding.cause


def test_the_terms_of_the_entropy_bonus() -> None:
    coefficient = 0.3
    for factor, sentence in ((1.0, "has the entropy term with the opposite sign"), (0.0, "has no entropy term")):

        def of(rows: list[Row], step: int, factor: float = factor) -> float:
            bonus = 0.0
            for micro in micro_batches(rows, step):
                for rank in range(2):
                    mine = [row for row in micro if row.keys["rank"] == rank]
                    bonus += coefficient * token_mean(mine, entropy_of) / 2 / 2
            return plain("loss")(rows, step) + factor * bonus

        (finding,) = judged(mistaken(recorded(make_rows(), entropy_coef=coefficient), "loss", of))
        assert sentence in finding.cause


@pytest.mark.parametrize("key", ["actor/ppo_kl", "actor/kl_loss"])
def test_the_estimators_of_verl(key: str) -> None:
    run = relogged(KINDS["two_epochs"](0))
    (finding,) = judged(run.relog(key, lambda _, values: -values))
    assert finding.cause.startswith("The logged number has the opposite sign")


@pytest.mark.parametrize(
    ("name", "key", "sentence"),
    [
        ("kl-sign.parquet", "loss", "has the KL term with the opposite sign"),
        ("logged-kl.parquet", "kl", "is a mean over the padded width"),
    ],
)
def test_recorded_trainings_name_their_cause(name: str, key: str, sentence: str) -> None:
    with recorded_runs() as runs:
        (path,) = [run.path for run in runs if run.path.name == name]
        (finding,) = check(open_run(path), [rules()["RLD801"]]).findings
    assert finding.cause.startswith(f"The logged number {sentence}")
    assert finding.message.startswith(f"{key} ")
    assert "It fits as well" not in finding.cause

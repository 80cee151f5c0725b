"""Generated logs with one mistake each: the mistake is named, alone or among what the data cannot tell from it."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import Comparison, differing, fits
from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.explain import explained
from rl_doctor.rules.registry import rules
from tests.unit.analyzer.mistaken_logs import EXPECTED, Micro, Mistake, Shape, Trainer, factors, number, source, trainers, world
from tests.unit.analyzer.reference_trl import Memory, logged

SHAPES = (Shape(), Shape(steps=5, epochs=1, micros=3, rows=4, width=14))
DIGITS = (None, 6, 4)
"""Significant digits of the log; None for float32."""


def rounded(value: float, digits: int | None) -> float:
    return float(np.float32(value)) if digits is None else float(f"{value:.{digits}g}")


def by_step(micros: list[Micro]) -> dict[int, list[Micro]]:
    found: dict[int, list[Micro]] = {}
    for micro in micros:
        found.setdefault(micro.place["step"], []).append(micro)
    return found


def compared(run: Memory) -> dict[str, Comparison]:
    plan = reconcile.plan(run.info, run.columns, run.log)
    comparisons = reconcile.compare(plan, analyze(run, [], plan.metrics).series)
    return {item.name: item for item in explained(plan, run, comparisons, rules()["RLD801"].limits)}


ALIKE = {
    "seq-mean-token-mean": "mean of the sequences' means", "seq-mean-token-sum": "mean of the sequences' sums",
    "advantage negated": "opposite advantage",
}  # fmt: skip
"""Other names for the same."""


def plain(name: str) -> str:
    for more in (" (recounted)", " (padding counted)"):
        name = name.removesuffix(more)
    return ALIKE.get(name, name)


def rounds(trainer: Trainer, shape: Shape) -> list[dict[str, tuple[str, Mistake]]]:
    """Key -> mistake, until each key has had each of its own."""
    left = {key: [*{**EXPECTED, **factors(shape), **more}.items()] for key, (_, more) in trainer.keys.items()}
    found = []
    while any(left.values()):
        found.append({key: names.pop() for key, names in left.items() if names})
    return found


@cache
def cases(name: str) -> tuple[Counter[str], Counter[str], list[str]]:
    """By mistake how often it was made and how often it was named; what was not."""
    made: Counter[str] = Counter()
    named: Counter[str] = Counter()
    missed: list[str] = []
    trainer = trainers()[name]
    for seed, shape in enumerate(SHAPES):
        micros = world(seed, shape)
        run, steps = source(micros, trainer.info), by_step(micros)
        for at, chosen in enumerate(rounds(trainer, shape)):
            digits = DIGITS[at % len(DIGITS)]
            log = {
                step: {key: rounded(number(mistake(trainer.keys[key][0]), part), digits) for key, (_, mistake) in chosen.items()}
                for step, part in steps.items()
            }
            found = compared(replace(run, log=logged(log)))
            for key, (mistake, _) in chosen.items():
                item = found[key]
                wrong = differing(item, rules()["RLD801"].limits)
                if wrong is None:  # the definition itself, as of one micro-batch or one epoch
                    continue
                made[mistake] += 1
                names = [fit.explanation.name for fit in fits(item, wrong) if fit.fits(0.95) and not fit.explanation.approximate]
                if plain(mistake) in map(plain, names):
                    named[mistake] += 1
                else:
                    missed.append(f"{name} {key} {mistake} ({digits} digits): {', '.join(names[:4]) or 'none'}")
    return made, named, missed


@pytest.mark.parametrize("name", trainers())
def test_right_logs_differ_nowhere_and_are_explained_nowhere(name: str) -> None:
    trainer = trainers()[name]
    for seed, shape in enumerate(SHAPES):
        micros = world(seed + 10, shape)
        for digits in DIGITS:
            log = {
                step: {key: rounded(number(recipe, part), digits) for key, (recipe, _) in trainer.keys.items()}
                for step, part in by_step(micros).items()
            }
            found = compared(replace(source(micros, trainer.info), log=logged(log)))
            assert set(found) == set(trainer.keys)
            for item in found.values():
                assert len(item.steps) == shape.steps
                assert (np.abs(item.logged - item.recomputed) <= item.tolerance).all(), item.name
                assert item.explanations == ()


@pytest.mark.parametrize("name", trainers())
def test_mistakes_are_named(name: str) -> None:
    made, named, missed = cases(name)
    assert sum(named.values()) >= 0.99 * sum(made.values()), "\n".join(missed)


def test_of_all_cases_nearly_all_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    made: Counter[str] = Counter()
    named: Counter[str] = Counter()
    for name in trainers():
        made += cases(name)[0]
        named += cases(name)[1]
    with capsys.disabled():
        print(f"\n{'mistake':45} made named")  # noqa: T201 - the table is what the test is for
        for mistake in sorted(made):
            print(f"{mistake:45} {made[mistake]:4} {named[mistake]:5}")  # noqa: T201
        print(f"{'all':45} {sum(made.values()):4} {sum(named.values()):5}")  # noqa: T201
    assert sum(made.values()) >= 300
    assert sum(named.values()) >= 0.95 * sum(made.values())

"""What every registered metric must bring."""

from __future__ import annotations

import re

import pytest

from rl_doctor.analyzer.derive import SEEN
from rl_doctor.analyzer.needs import CONFIG_PREFIX
from rl_doctor.analyzer.registry import Metric, families, metric, metrics, metrics_for, reduction, sequence_values
from rl_doctor.analyzer.states import Sum
from rl_doctor.schema import RunConfig, column
from tests.unit.analyzer.reference_rollouts import REFERENCES

NAME = re.compile(r"[a-z]+(\.[a-z][a-z0-9]*(_[a-z0-9]+)*)+\.?")
COMPONENTS = ("reward/fmt", "reward/task")
ADDED = ("rollout_first_step", "passes", *SEEN)


def every_metric() -> list[Metric]:
    return sorted(metrics_for(COMPONENTS).values(), key=lambda item: item.name)


@pytest.mark.parametrize("item", every_metric(), ids=lambda item: item.name)
def test_a_metric_is_complete(item: Metric) -> None:
    assert NAME.fullmatch(item.name)
    assert item.doc.endswith("."), "the doc is a sentence"
    assert item.source
    assert item.unit
    assert item.version >= 1
    for need in (part for name in (*item.needs, *item.reduction.optional) for part in name.split("|")):
        if need.startswith(CONFIG_PREFIX):
            assert hasattr(RunConfig(), need.removeprefix(CONFIG_PREFIX))
        else:
            assert need in sequence_values() or need in ADDED or column(need) is not None or logged_only(item, need)


def logged_only(item: Metric, need: str) -> bool:
    """Whether a metric that only a log has needs itself."""
    return need == item.name and item.reduction.level == "logged"


def topic(item: Metric) -> str:
    return item.reduction.partial.__module__.rpartition(".")[2]


def test_every_metric_of_a_topic_with_references_has_one() -> None:
    names = {item.name: topic(item) for item in every_metric() if not item.name.startswith("reward.component.task.")}
    topics = {names[name] for name in REFERENCES}
    assert {name for name, of in names.items() if of in topics} == set(REFERENCES)


def test_references_are_of_metrics() -> None:
    assert set(REFERENCES) <= set(metrics_for(COMPONENTS))


def test_a_name_is_registered_once() -> None:
    known = next(iter(metrics().values()))
    with pytest.raises(ValueError, match="registered twice"):
        metric(known.name, known.reduction, known.final, unit="1", source="s", formula="f", doc="d")


def test_a_family_makes_metrics_of_the_columns_that_are_there() -> None:
    assert not [name for name in metrics_for(()) if name.startswith("reward.component.")]
    made = [name for name in metrics_for(COMPONENTS) if name.startswith("reward.component.")]
    assert {name.split(".")[2] for name in made} == {"fmt", "task"}
    assert all(item.prefix.endswith(".") for item in families())


def test_reductions_are_told_apart_by_identity() -> None:
    first, second = (reduction(zero=Sum())(lambda _: Sum()) for _ in range(2))
    assert first != second

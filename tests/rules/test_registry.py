"""What must be true of every rule."""

import re

import pytest

from rl_doctor.analyzer.logged import LOGGED_FAMILIES
from rl_doctor.analyzer.registry import families, metrics
from rl_doctor.rules.registry import rules

RULES = list(rules().values())


def exists(name: str) -> bool:
    """Whether a metric of that name, or for a prefix ending in a dot any, can be computed for some run."""
    prefixes = [*LOGGED_FAMILIES, *(family.prefix for family in families())]
    if any(name.startswith(prefix) for prefix in prefixes):
        return True
    return name in metrics() if not name.endswith(".") else any(known.startswith(name) for known in metrics())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_asks_only_for_metrics_that_exist(rule):
    asked = [part for name in (*rule.needs, *rule.optional) for part in name.split("|")]
    assert [name for name in asked if not exists(name)] == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_is_whole(rule):
    assert re.fullmatch(r"RLD\d{3}", rule.code)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
    assert rule.severity in ("error", "warning", "info")
    assert len(rule.doc.split()) >= 20
    for text in (rule.cause, rule.source, *rule.advice):
        assert text.strip()
    assert rule.advice


def test_codes_belong_to_their_families():
    families_of_names = {"mask": "0", "kl": "2", "entropy": "3", "reward": "4", "length": "5", "grad": "6", "logged": "8"}
    for rule in RULES:
        first = rule.name.split("-")[0]
        if first in families_of_names and rule.name not in {"kl-penalty-dominates", "entropy-penalised"}:
            assert rule.code[3] == families_of_names[first], rule.name

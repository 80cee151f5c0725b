"""Every declared cause names what exists, and reads as a part of a sentence."""

from __future__ import annotations

import pytest

from rl_doctor.analyzer.registry import LOGGED_FAMILIES, families, metrics
from rl_doctor.causes.registry import EVERYTHING, Cause, causes
from rl_doctor.rules.registry import rules

RULES = {rule.name for rule in rules().values()}
PREFIXES = (*LOGGED_FAMILIES, *(item.prefix for item in families()))


@pytest.mark.parametrize("cause", causes().values(), ids=lambda cause: cause.name)
def test_a_cause_names_rules_and_metrics_that_exist(cause: Cause) -> None:
    assert cause.explains
    assert set(cause.explains) <= RULES
    assert cause.leads_to == EVERYTHING or set(cause.leads_to) <= RULES
    for name in cause.needs:
        known = name in metrics() or name.startswith(PREFIXES) or any(one.startswith(name) for one in metrics())
        assert known, name


@pytest.mark.parametrize("cause", causes().values(), ids=lambda cause: cause.name)
def test_a_cause_can_be_read(cause: Cause) -> None:
    assert cause.name == cause.name.lower()
    assert cause.name not in RULES, "a cause and a rule of one name cannot both be explained"
    assert not cause.label.endswith(".")
    assert not cause.label[:1].isupper() or cause.label.partition(" ")[0] in {"EOS", "KL", "NaN"} or cause.label[1:2].isupper()
    assert cause.advice
    assert cause.doc.strip()
    assert cause.source
    assert all(sign.words for sign in cause.signs)

"""Which rules and metrics the words on the command line mean."""

from __future__ import annotations

import pytest

from rl_doctor.cli.selecting import choose_metrics, choose_rules
from rl_doctor.errors import UsageError
from rl_doctor.rules.registry import rules


def codes(select: list[str], ignore: list[str] | None = None) -> list[str]:
    return [rule.code for rule in choose_rules(select, ignore or [], [])[0]]


def test_by_default_every_rule_runs() -> None:
    assert codes([]) == list(rules())


def test_codes_prefixes_and_names_in_any_case_with_commas() -> None:
    assert codes(["RLD203"]) == codes(["kl-spike"]) == codes(["rld203"]) == codes(["KL-Spike"]) == ["RLD203"]
    assert codes(["RLD2"]) == [code for code in rules() if code.startswith("RLD2")]
    assert codes(["RLD"]) == list(rules())
    assert codes(["RLD203, kl-runaway", "RLD601"]) == ["RLD203", "RLD204", "RLD601"]


def test_ignore_takes_away_from_what_is_selected() -> None:
    assert "RLD203" not in codes([], ["RLD203"])
    assert codes(["RLD2"], ["kl-spike"]) == [code for code in rules() if code.startswith("RLD2") and code != "RLD203"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [("kl-spik", "kl-spike"), ("RLD23", "RLD203"), ("entropy-colapse", "entropy-collapse")],
)
def test_an_unknown_word_is_a_usage_error_with_a_suggestion(word: str, hint: str) -> None:
    for select, ignore, require in (([word], [], []), ([], [word], []), ([], [], [word])):
        with pytest.raises(UsageError, match=hint) as caught:
            choose_rules(select, ignore, require)
        assert repr(word) in str(caught.value)


def test_nonsense_gets_no_suggestion() -> None:
    with pytest.raises(UsageError, match="no rule 'qqqqqqqq'; `rl-doctor rules`"):
        choose_rules(["qqqqqqqq"], [], [])


def test_nothing_left_to_run_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="leave no rule"):
        choose_rules(["RLD203"], ["RLD2"], [])


def test_required_rules_are_codes_and_must_run() -> None:
    assert choose_rules([], [], ["kl-spike", "RLD203", "RLD601"])[1] == ("RLD203", "RLD601")
    with pytest.raises(UsageError, match="--require RLD203"):
        choose_rules(["RLD6"], [], ["kl-spike"])
    with pytest.raises(UsageError, match="no rule 'RLD2'"):
        choose_rules([], [], ["RLD2"])


def test_metrics_by_name_and_topic() -> None:
    known = ["policy.ratio_mean", "policy.kl_old_k3", "reward.mean"]
    assert choose_metrics(["policy"], known) == known[:2]
    assert choose_metrics(["reward.mean,policy.kl_old_k3"], known) == known[1:]
    with pytest.raises(UsageError, match=r"did you mean reward\.mean"):
        choose_metrics(["reward.men"], known)
    with pytest.raises(UsageError, match="did you mean policy"):
        choose_metrics(["polic"], known)

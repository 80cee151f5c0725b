from collections.abc import Sequence

import numpy as np
import pytest

from rl_doctor.report.model import Finding
from rl_doctor.rules import turning
from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from tests.rules.scalars import autoregressive, result
from tests.rules.scalars_reward import HEALTHY, Run, bought, every, held_out, learning, over_optimised, run, view_of

SEEDS = range(20)


def _found(made: Run) -> Sequence[Finding]:
    (only,) = run_rules([rules()["RLD411"]], view_of(made))
    assert only.outcome != "crashed", only
    return only.findings


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_runs_are_not_suspected(kind: str) -> None:
    for seed in SEEDS:
        found = _found(HEALTHY[kind](np.random.default_rng(seed)))
        assert [item.message for item in found if item.severity != "info"] == [], seed


@pytest.mark.parametrize(("evaluations", "rho"), [(10, 0.0), (12, 0.5), (20, 0.5), (40, 0.0), (40, 0.5), (120, 0.5)])
def test_held_out_score_that_falls_while_the_reward_rises_is_found(evaluations: int, rho: float) -> None:
    for seed in SEEDS:
        (found,) = _found(over_optimised(np.random.default_rng(seed), evaluations, rho=rho))
        assert found.severity == ("error" if evaluations >= 12 else "warning")
        assert found.evidence[0].metric == "val.mean_at_n"
        assert found.evidence[0].first_step >= 180
        assert {item.metric for item in found.evidence} >= {"reward.mean"}


def test_reward_that_only_holds_is_a_warning_and_one_that_falls_too_is_no_hacking() -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        made = over_optimised(rng, 20, rises=False)
        assert [item.severity for item in _found(made)] == ["warning"]
        falling = 0.7 - 0.4 * np.linspace(0, 1, 120) + 0.02 * autoregressive(rng, 120, 0.5)
        assert not _found(made | {"reward.mean": every("reward.mean", falling, 3)})


def test_few_evaluations_are_inconclusive() -> None:
    made = learning(np.random.default_rng(0), 120, 0.5, 3) | held_out(np.array([0.6, 0.5, 0.3, 0.1]), 360)
    (only,) = run_rules([rules()["RLD411"]], view_of(made))
    assert (only.outcome, only.reason) == ("skipped", "length")
    assert "4 evaluations" in only.detail


def test_without_held_out_score_and_components_it_says_what_it_lacks() -> None:
    made = result("RLD411", {"reward.mean": np.linspace(0, 1, 60)})
    assert (made.outcome, made.missing) == ("skipped", ("val.mean_at_n",))


def test_kl_that_grew_meanwhile_is_named_and_a_missing_one_is_unchecked() -> None:
    made = over_optimised(np.random.default_rng(3), 20)
    made["ref.kl_k3"] = every("ref.kl_k3", np.geomspace(0.001, 2.0, 120), 3)
    (found,) = _found(made)
    assert "the KL to the reference grew" in found.message
    del made["ref.kl_k3"]
    (found,) = _found(made)
    assert any("KL to the reference" in words for words in found.unchecked)


def test_score_that_never_moves_while_the_reward_gains_much() -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        made = learning(rng, 120, 0.5, 3)
        reward = 0.35 + 0.5 * np.linspace(0, 1, 120) + 0.02 * autoregressive(rng, 120, 0.5)
        for evaluations, expected in ((9, "info"), (16, "warning")):
            score = 0.38 + 0.01 * autoregressive(rng, evaluations)
            (found,) = _found(made | {"reward.mean": every("reward.mean", reward, 3)} | held_out(score, 360))
            assert found.severity == expected
            assert "stays" in found.message


def test_plateau_after_a_gain_and_scores_of_other_tasks_are_not_left_behind() -> None:
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        made = learning(rng, 120, 0.5, 3)
        plateau = 0.35 + 0.2 * (1 - np.exp(-np.arange(20) / 3)) + 0.015 * autoregressive(rng, 20)
        assert not _found(made | held_out(plateau, 360))
        hard = 0.03 + 0.01 * autoregressive(rng, 20)
        assert not _found(made | held_out(hard, 360))


@pytest.mark.parametrize("n", [40, 60, 120, 400])
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_component_that_is_bought_with_another(n: int, rho: float) -> None:
    for seed in SEEDS:
        (found,) = _found(bought(np.random.default_rng(seed), n, rho))
        assert found.severity == "error"
        assert found.evidence[0].where == {"component": "accuracy"}
        assert {"component": "format"} in [item.where for item in found.evidence]


def test_component_given_up_where_most_responses_are_cut_is_info() -> None:
    name = "length.truncated_frac"
    for share, expected in ((0.8, "info"), (0.3, "error")):
        made = bought(np.random.default_rng(0), 120, 0.5) | {name: every(name, np.full(120, share), 3)}
        (found,) = _found(made)
        assert found.severity == expected
        assert any("length-truncation" in words for words in found.unchecked) == (expected == "info")


def test_names_decide_what_is_given_up() -> None:
    for seed in SEEDS:
        (found,) = _found(bought(np.random.default_rng(seed), 120, 0.5, "func_a", "func_b"))
        assert found.severity == "warning"
        assert any("func_a" in words for words in found.unchecked)
        assert not _found(bought(np.random.default_rng(seed), 120, 0.5, "format", "accuracy"))
        assert not _found(bought(np.random.default_rng(seed), 120, 0.5, "func_a", "accuracy"))


def test_trade_that_costs_the_whole_is_none() -> None:
    made = bought(np.random.default_rng(0), 120, 0.0)
    falling = run({"reward.mean": np.linspace(0.7, 0.3, 120) + 0.01 * autoregressive(np.random.default_rng(1), 120)})
    assert not _found(made | falling)


def test_decline_is_measured_from_the_best_stretch() -> None:
    values = np.concatenate([np.linspace(0.2, 0.8, 20), np.linspace(0.8, 0.4, 20)])
    fall = turning.decline(values + 0.01 * autoregressive(np.random.default_rng(0), 40))
    assert fall is not None
    assert 15 <= fall.best.first <= 21
    assert fall.share == pytest.approx(0.45, abs=0.08)
    assert turning.decline(np.linspace(0, 1, 40)) is None
    assert turning.decline(values[:4]) is None
    scaled = turning.decline(1e4 * values[15:])
    assert scaled is not None
    assert scaled.share == pytest.approx(turning.decline(values[15:]).share)  # type: ignore[union-attr]

import numpy as np
import pytest

from tests.rules.scalars import CONFIG, Floats, autoregressive, result, severity, with_config

N = 60
RNG = np.random.default_rng


def _component(name: str, level: float, spread: float, share: float, seed: int = 0) -> dict[str, Floats]:
    noise = np.exp(0.05 * autoregressive(RNG(seed), N))
    stem = f"reward.component.{name}"
    return {
        f"{stem}.mean": level * noise, f"{stem}.std": spread * noise, f"{stem}.max": np.full(N, level + 3 * spread),
        f"{stem}.min": np.full(N, level - 3 * spread), f"{stem}.variance_share": np.full(N, share),
    }  # fmt: skip


def test_without_components_the_column_is_named() -> None:
    made = result("RLD404", {"reward.mean": np.ones(N)})
    assert (made.outcome, made.missing) == ("skipped", ("reward/<component>",))


def test_component_that_drowns_the_others_is_a_warning() -> None:
    values = _component("style", 40.0, 50.0, 0.9999) | _component("correct", 0.5, 0.3, 0.0001, 1)
    (found,) = result("RLD404", values).findings
    assert found.severity == "warning"
    assert found.evidence[0].where == {"component": "style"}
    assert "correct" in found.message


def test_balanced_and_merely_larger_components_pass() -> None:
    values = _component("style", 1.0, 0.8, 0.7) | _component("correct", 0.5, 0.4, 0.3, 1)
    assert severity("RLD404", values) is None
    values = _component("style", 1.0, 3.0, 0.99) | _component("correct", 0.5, 0.3, 0.01, 1)
    assert severity("RLD404", values) is None


def test_component_whose_scale_jumps_is_an_error_at_its_step() -> None:
    values = _component("style", 0.5, 0.2, 0.3) | _component("correct", 0.5, 0.3, 0.7, 1)
    for stat in ("mean", "std", "max", "min"):
        values[f"reward.component.style.{stat}"][36:] *= 500
    found = next(item for item in result("RLD404", values).findings if item.severity == "error")
    assert found.evidence[0].where == {"component": "style"}
    assert found.evidence[0].first_step == pytest.approx(37, abs=1)


def test_component_that_is_learned_is_no_scale_jump() -> None:
    learned = 0.01 + 0.9 / (1 + np.exp(-(np.arange(N) - 30) / 4))
    values = {"reward.component.a.mean": learned, "reward.component.a.max": np.ones(N), "reward.component.a.min": np.zeros(N)}
    assert severity("RLD404", values) is None


def test_dead_and_saturated_components_are_info_and_a_lone_constant_one_is_none_of_our_business() -> None:
    values = {
        "reward.component.dead.mean": np.zeros(N), "reward.component.full.mean": np.ones(N),
        "reward.component.live.mean": RNG(0).random(N),
    }  # fmt: skip
    found = result("RLD404", values).findings
    assert [item.severity for item in found] == ["info"]
    assert found[0].message == "Reward components dead (0), full (1) never change"
    assert "dead" in found[0].cause
    assert "saturated" in found[0].cause
    assert result("RLD404", {"reward.component.only.mean": np.ones(N)}).outcome == "passed"


def _penalty(kl: float, **more: Floats) -> dict[str, Floats]:
    return {"ref.kl_k3": np.full(N, kl), "adv.std": np.full(N, 0.9), **more}


@pytest.mark.parametrize(("coefficient", "expected"), [(0.001, None), (0.04, None), (5.0, "warning")])
def test_penalty_in_the_loss(coefficient: float, expected: str | None) -> None:
    assert severity("RLD405", _penalty(0.05), with_config(kl_coef=coefficient)) == expected


def test_penalty_in_the_reward_counts_per_response() -> None:
    config = with_config(kl_coef=0.1, kl_in_reward=True)
    values = _penalty(0.05, **{"length.mean": np.full(N, 400.0), "reward.std": np.full(N, 0.5)})
    assert severity("RLD405", values, config) == "warning"
    assert severity("RLD405", values, with_config(kl_coef=0.001, kl_in_reward=True)) is None
    made = result("RLD405", _penalty(0.05), config, {"reward.std": ("reward",), "group.std_mean": ("reward", "group")})
    assert (made.outcome, made.missing) == ("skipped", ("reward",))


def test_penalty_while_the_reward_rises_is_info() -> None:
    rising = np.linspace(0.1, 0.9, N) + 0.01 * RNG(0).standard_normal(N)
    assert severity("RLD405", _penalty(0.05, **{"reward.mean": rising}), with_config(kl_coef=5.0)) == "info"


def test_no_penalty_and_unknown_penalty_are_skipped() -> None:
    assert result("RLD405", _penalty(0.05), with_config(kl_coef=0.0)).reason == "config"
    assert result("RLD405", _penalty(0.05), with_config(kl_coef=None)).missing == ("config.kl_coef",)


def _bounded(**changes: Floats) -> dict[str, Floats]:
    base = {
        "reward.mean": np.linspace(1, 2.5, N), "reward.max": np.full(N, 3.0), "reward.min": np.linspace(-3, 1, N),
        "reward.at_max_frac": np.full(N, 0.45), "reward.at_min_frac": np.full(N, 0.02), "reward.distinct_frac": np.full(N, 0.5),
    }  # fmt: skip
    return {**base, **changes}


def test_continuous_reward_at_its_clamp_is_a_warning() -> None:
    (found,) = result("RLD406", _bounded()).findings
    assert found.severity == "warning"
    assert "3" in found.message


@pytest.mark.parametrize(
    "changes",
    [
        {"reward.distinct_frac": np.full(N, 0.02)},
        {"reward.max": np.linspace(2, 3, N)},
        {"reward.at_max_frac": np.full(N, 0.05)},
    ],
)
def test_binary_unbounded_and_rarely_reached_bounds_pass(changes: dict[str, Floats]) -> None:
    assert severity("RLD406", _bounded(**changes), CONFIG) is None


def test_bound_without_distinct_values_names_the_column() -> None:
    made = result("RLD406", {"reward.mean": np.ones(N)}, missing={"reward.distinct_frac": ("reward",)})
    assert (made.outcome, made.missing) == ("skipped", ("reward",))


def test_component_that_is_nearly_always_earned_is_not_worth_a_word() -> None:
    format_score = np.full(N, 0.2)
    format_score[3] = 0.15
    values = {"reward.component.format.mean": format_score, "reward.component.success.mean": RNG(0).random(N)}
    assert severity("RLD404", values) is None


def test_steps_without_any_advantage_are_left_out() -> None:
    """Where every advantage is 0, any KL penalty is a multiple of it."""
    idle = np.where(np.arange(N) % 3 == 0, 0.8, 5e-12)
    values = {"ref.kl_k3": np.full(N, 0.05), "adv.std": idle}
    assert severity("RLD405", values, with_config(kl_coef=0.01)) is None
    assert severity("RLD405", values, with_config(kl_coef=10.0)) == "warning"
    assert result("RLD405", {**values, "adv.std": np.full(N, 5e-12)}, with_config(kl_coef=10.0)).outcome == "skipped"

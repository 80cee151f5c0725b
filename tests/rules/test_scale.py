import numpy as np
import pytest

from tests.rules.scalars import CONFIG, Floats, result, severity, with_config

N = 60
RNG = np.random.default_rng


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


def test_steps_without_any_advantage_are_left_out() -> None:
    """Where every advantage is 0, any KL penalty is a multiple of it."""
    idle = np.where(np.arange(N) % 3 == 0, 0.8, 5e-12)
    values = {"ref.kl_k3": np.full(N, 0.05), "adv.std": idle}
    assert severity("RLD405", values, with_config(kl_coef=0.01)) is None
    assert severity("RLD405", values, with_config(kl_coef=10.0)) == "warning"
    assert result("RLD405", {**values, "adv.std": np.full(N, 5e-12)}, with_config(kl_coef=10.0)).outcome == "skipped"


@pytest.mark.parametrize("end", ["max", "min"])
def test_a_reward_that_ends_where_rewards_end_by_nature_is_info(end: str) -> None:
    many = {f"reward.at_{end}_frac": np.full(N, 0.45), f"reward.at_{'min' if end == 'max' else 'max'}_frac": np.full(N, 0.02)}
    assert severity("RLD406", _bounded(**many, **{"reward.max": np.ones(N), "reward.min": np.zeros(N)})) == "info"

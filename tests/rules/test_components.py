import numpy as np
import pytest

from tests.rules.scalars import Floats, autoregressive, result, severity, with_config

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


@pytest.mark.parametrize("statistic", ["mean", "max"])
@pytest.mark.parametrize(("factor", "expected"), [(20.0, "warning"), (500.0, "error")])
@pytest.mark.parametrize("n", [40, 60, 400])
def test_scale_that_changes_in_mid_run_is_told(statistic: str, factor: float, expected: str, n: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        part = 0.1 * np.exp(0.05 * autoregressive(rng, n, 0.5))
        part[n // 2 :] *= factor
        values = {"reward.component.form.mean": part, "reward.component.correct.mean": 0.4 + 0.02 * autoregressive(rng, n, 0.5)}
        if statistic == "max":
            values |= {"reward.component.form.max": 3 * part, "reward.component.form.min": np.zeros(n)}
        assert severity("RLD404", values) == expected


def test_mean_that_grows_twenty_times_over_many_steps_counts_only_beyond_the_others() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        learned = (0.04 + 0.9 / (1 + np.exp(-(np.arange(N) - 30) / 6))) * np.exp(0.05 * autoregressive(rng, N, 0.5))
        other = {"reward.component.correct.mean": 0.3 + 0.02 * autoregressive(rng, N)}
        assert severity("RLD404", {"reward.component.form.mean": learned, **other}) is None
        assert severity("RLD404", {"reward.component.form.mean": 10 * learned, **other}) == "warning"


def test_component_that_is_large_and_constant_is_harmless() -> None:
    values = {"reward.component.offset.mean": np.full(N, 500.0), "reward.component.live.mean": RNG(0).random(N)}
    (found,) = result("RLD404", values).findings
    assert found.severity == "info"
    assert "cancels" in found.cause
    values["reward.component.offset.mean"][:5] = 0.0
    assert {item.severity for item in result("RLD404", values).findings} == {"warning"}


def test_dead_and_saturated_components_are_info_and_a_lone_constant_one_is_none_of_our_business() -> None:
    values = {
        "reward.component.dead.mean": np.zeros(N), "reward.component.full.mean": np.ones(N),
        "reward.component.live.mean": RNG(0).random(N),
    }  # fmt: skip
    (found,) = result("RLD413", values).findings
    assert found.severity == "info"
    assert found.message == "Reward components dead (0), full (1) never change"
    assert "dead" in found.cause
    assert "saturated" in found.cause
    assert any("reward_weights" in words for words in found.unchecked)
    assert result("RLD413", {"reward.component.only.mean": np.ones(N)}).outcome == "passed"
    assert result("RLD413", {"reward.component.only.mean": np.ones(3)}).reason == "length"
    assert result("RLD413", {}).missing == ("reward/<component>",)


def test_dead_component_whose_weight_is_known_is_a_warning() -> None:
    values = {"reward.component.dead.mean": np.zeros(N), "reward.component.live.mean": RNG(0).random(N)}
    heavy, light = ({"dead": weight, "live": 1.0} for weight in (1.0, 0.05))
    assert severity("RLD413", values, with_config(reward_weights=heavy)) == "warning"
    assert severity("RLD413", values, with_config(reward_weights=light)) == "info"
    short = {name: part[:10] for name, part in values.items()}
    assert severity("RLD413", short, with_config(reward_weights=heavy)) == "info"


def test_nearly_saturated_and_rarely_earned_components() -> None:
    full, rare = np.ones(N), np.zeros(N)
    full[20], rare[20] = 0.996, 0.05
    live = {"reward.component.live.mean": RNG(0).random(N)}
    (found,) = result("RLD413", {"reward.component.full.mean": full, **live}).findings
    assert "full (1)" in found.message
    assert severity("RLD413", {"reward.component.rare.mean": rare, **live}) is None
    assert (
        severity("RLD413", {"reward.component.varied.mean": np.zeros(N), "reward.component.varied.std": np.ones(N), **live})
        is None
    )


def test_component_that_is_nearly_always_earned_is_not_worth_a_word() -> None:
    format_score = np.full(N, 0.2)
    format_score[3] = 0.15
    values = {"reward.component.format.mean": format_score, "reward.component.success.mean": RNG(0).random(N)}
    assert severity("RLD404", values) is None
    assert severity("RLD413", values) is None


def _logged(seed: int, factor: float, *, stds: bool = True, n: int = 80) -> dict[str, Floats]:
    rng = RNG(seed)
    values: dict[str, Floats] = {}
    for name, level, spread in (("accuracy", 0.4, 0.3), ("format", 0.7, 0.2), ("style", 0.5 * factor, 0.25 * factor)):
        stem = f"reward.component.{name}"
        values[f"{stem}.mean"] = level + spread / 8 * autoregressive(rng, n, 0.5)
        if stds:
            values[f"{stem}.std"] = spread * np.exp(0.1 * autoregressive(rng, n))
    return values


@pytest.mark.parametrize("stds", [True, False])
@pytest.mark.parametrize(("factor", "expected"), [(1.0, None), (20.0, None), (500.0, "warning")])
def test_log_in_which_one_component_varies_hundreds_of_times_more(*, stds: bool, factor: float, expected: str | None) -> None:
    for seed in range(20):
        found = result("RLD404", _logged(seed, factor, stds=stds)).findings
        assert [item.severity for item in found] == ([] if expected is None else [expected])
        if expected is not None:
            assert found[0].evidence[0].where == {"component": "style"}
            assert any("config.reward_weights" in line for line in found[0].unchecked)


def test_weights_that_even_components_out_and_constant_ones_are_no_imbalance() -> None:
    values = _logged(0, 500.0)
    even = with_config(reward_weights={"accuracy": 1.0, "format": 1.0, "style": 0.002})
    assert severity("RLD404", values, even) is None
    equal = with_config(reward_weights={"accuracy": 1.0, "format": 1.0, "style": 1.0})
    assert severity("RLD404", values, equal) == "warning"
    assert severity("RLD404", values | {"reward.std": np.full(80, 0.4)}) is None
    values["reward.component.style.mean"][:] = 250.0
    values["reward.component.style.std"][:] = 0.0
    assert severity("RLD404", values) in {None, "info"}

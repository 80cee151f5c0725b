import numpy as np
import pytest

from tests.rules.scalars import Floats, autoregressive, result, severity, with_config

N = 200
RNG = np.random.default_rng


def _norm(seed: int = 0, scale: float = 0.25) -> Floats:
    return 0.4 * np.exp(scale * autoregressive(RNG(seed), N, 0.5))


@pytest.mark.parametrize("code", ["RLD602", "RLD603", "RLD604", "RLD605"])
def test_the_missing_column_is_named(code: str) -> None:
    missing = {"optim.grad_norm": ("grad_norm",), "optim.learning_rate": ("learning_rate",)}
    made = result(code, {}, missing=missing)
    assert made.missing == (("learning_rate",) if code == "RLD605" else ("grad_norm",))


@pytest.mark.parametrize("code", ["RLD602", "RLD603", "RLD604", "RLD605"])
def test_short_is_inconclusive(code: str) -> None:
    assert result(code, {"optim.grad_norm": np.zeros(3), "optim.learning_rate": np.zeros(3)}).reason == "length"


def test_recovered_spike_is_info_and_an_ongoing_one_a_warning() -> None:
    norm = _norm()
    norm[100] = 20.0
    assert severity("RLD602", {"optim.grad_norm": norm}) == "info"
    norm = _norm()
    norm[188:] *= 40
    assert severity("RLD602", {"optim.grad_norm": norm}) == "warning"


def test_norm_above_the_clip_bound_is_no_fault() -> None:
    assert severity("RLD602", {"optim.grad_norm": 30 * _norm()}, with_config(max_grad_norm=1.0)) is None


def test_norm_logged_after_clipping_hides_spikes_and_that_is_said() -> None:
    norm = np.minimum(5 * _norm(scale=0.05), 1.0)
    norm[50] = 30.0
    (found,) = result("RLD602", {"optim.grad_norm": norm}, with_config(max_grad_norm=1.0)).findings
    assert any("clipping" in words for words in found.unchecked)


def test_vanished_gradient() -> None:
    norm = _norm()
    norm[120:] *= 1e-4
    (found,) = result("RLD603", {"optim.grad_norm": norm}).findings
    assert found.severity == "error"
    assert found.evidence[0].first_step == pytest.approx(121, abs=3)
    solved = {"optim.grad_norm": norm, "group.zero_std_frac": np.full(N, 0.95)}
    assert severity("RLD603", solved) == "warning"
    assert severity("RLD603", {"optim.grad_norm": _norm() * np.linspace(1, 0.1, N)}) is None


@pytest.mark.parametrize(("share", "expected"), [(0.26, None), (0.6, "warning"), (0.96, "error")])
def test_zero_gradient_by_share(share: float, expected: str | None) -> None:
    norm = np.where(RNG(0).random(N) < share, 0.0, _norm())
    assert severity("RLD604", {"optim.grad_norm": norm}) == expected


def test_zero_gradient_names_groups_or_the_loss() -> None:
    zero = {"optim.grad_norm": np.zeros(N)}
    (idle,) = result("RLD604", {**zero, "group.zero_std_frac": np.ones(N)}).findings
    assert "same reward" in idle.cause
    (detached,) = result("RLD604", {**zero, "group.zero_std_frac": np.full(N, 0.2)}).findings
    assert "detached" in detached.cause
    assert detached.ruled_out
    (unknown,) = result("RLD604", zero).findings
    assert any("group" in words for words in unknown.unchecked)


def _rate(**zero: slice) -> Floats:
    rate = np.full(N, 1e-6)
    for part in zero.values():
        rate[part] = 0.0
    return rate


@pytest.mark.parametrize("zero", [slice(0, 1), slice(N - 1, N), slice(100, 101)])
def test_first_step_of_warm_up_last_of_decay_and_single_steps_pass(zero: slice) -> None:
    assert severity("RLD605", {"optim.learning_rate": _rate(part=zero)}) is None


@pytest.mark.parametrize(("zero", "expected"), [(slice(50, 53), "warning"), (slice(120, N), "error")])
def test_learning_rate_of_zero_by_length(zero: slice, expected: str) -> None:
    assert severity("RLD605", {"optim.learning_rate": _rate(part=zero)}) == expected


def test_zero_everywhere_is_rounding_unless_the_policy_stands_still() -> None:
    zero = {"optim.learning_rate": np.zeros(N)}
    assert severity("RLD605", zero) == "info"
    assert severity("RLD605", {**zero, "ref.kl_k3": np.linspace(0, 0.01, N)}) == "info"
    assert severity("RLD605", {**zero, "ref.kl_k3": np.zeros(N)}) == "error"


def test_norm_that_jumps_and_stays_is_a_warning() -> None:
    norm = 0.5 * np.exp(0.2 * autoregressive(np.random.default_rng(0), 60))
    norm[20:] *= 60
    (found,) = result("RLD602", {"optim.grad_norm": norm}).findings
    assert found.severity == "warning"
    assert "rose at once" in found.message
    assert found.evidence[0].first_step == 21


def test_steps_without_gradient_are_no_level_for_a_spike() -> None:
    norm = np.where(np.arange(60) % 3 == 0, 0.4 * np.exp(0.2 * autoregressive(np.random.default_rng(0), 60)), 0.0)
    assert severity("RLD602", {"optim.grad_norm": norm}) is None


def test_exact_zeros_at_both_ends_belong_to_a_stretch_of_zero_learning_rate() -> None:
    rate = np.full(60, 1e-6)
    rate[20:] = 0.0
    (found,) = result("RLD605", {"optim.learning_rate": rate}).findings
    assert found.severity == "error"
    assert "steps 21 to 60 (40 of 60 steps)" in found.message


def test_zero_rate_among_numbers_with_many_digits_is_no_rounding() -> None:
    for seed in range(20):
        rng = RNG(seed)
        run = {"optim.learning_rate": np.zeros(60), "reward.mean": 0.4 + 0.03 * autoregressive(rng, 60, 0.5)}
        assert severity("RLD605", run) == "warning"
        assert severity("RLD605", run | {"policy.clip_frac": np.zeros(60), "policy.kl_old": np.zeros(60)}) == "error"
        coarse = {name: np.round(values, 3) for name, values in run.items()}
        (found,) = result("RLD605", coarse).findings
        assert (found.severity, "rounds" in found.cause) == ("info", True)
        (found,) = result("RLD605", run | {"policy.kl_old_k3": np.full(60, 2.1234567891e-4)}).findings
        assert (found.severity, "rounds" in found.cause) == ("info", False)

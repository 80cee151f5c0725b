import numpy as np
import pytest

from rl_doctor.rules import turning
from tests.rules.scalars import Floats, autoregressive, severity

LENGTHS = (24, 30, 40, 60, 99)


def _learning(seed: int, n: int, rho: float, tail: float | None = None) -> Floats:
    rise = 0.3 + 0.35 * (1 - np.exp(-np.linspace(0, 400, n) / 150))
    return rise + 0.02 * autoregressive(np.random.default_rng(seed), n, rho, tail)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_short_noisy_curves_have_no_abrupt_fall(n: int, rho: float) -> None:
    for seed in range(50):
        assert turning.abrupt_fall(_learning(seed, n, rho)) is None, seed
        assert severity("RLD401", {"reward.mean": _learning(seed, n, rho)}) is None, seed
        assert severity("RLD401", {"reward.mean": _learning(seed, n, rho, 3.0)}) is None, seed


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_fall_of_many_times_the_noise_is_found_in_a_short_rising_curve(n: int, scale: float) -> None:
    for seed in range(20):
        values = _learning(seed, n, 0.3)
        values[int(0.6 * n) :] -= 0.3
        assert severity("RLD401", {"reward.mean": scale * values}) == "warning"
        assert severity("RLD401", {"reward.mean": scale * values[: int(0.6 * n) + 2]}) is None  # too few points after it


def test_dip_that_comes_back_is_no_abrupt_fall() -> None:
    values = _learning(0, 40, 0.0)
    values[20:28] -= 0.4
    assert turning.abrupt_fall(values) is None
    values[20:] -= 0.4
    assert turning.abrupt_fall(values[:15]) is None

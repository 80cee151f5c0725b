from collections.abc import Callable

import numpy as np
import pytest

from rl_doctor.rules.registry import rules
from rl_doctor.rules.runner import run_rules
from rl_doctor.schema import RunInfo
from tests.rules.scalars import CONFIG, Floats, autoregressive, result, severity, with_config
from tests.rules.scalars import HEALTHY as PLAIN
from tests.rules.scalars import view as plain_view
from tests.rules.scalars_reward import HEALTHY, view_of

N = 50
CODE = "RLD006"
_CLIP = "policy.clip_frac"


def _run(seed: int = 0) -> dict[str, Floats]:
    rng = np.random.default_rng(seed)
    return {
        "policy.entropy": 0.5 + 0.05 * autoregressive(rng, N), "policy.clip_frac": 0.02 * np.exp(0.3 * autoregressive(rng, N)),
        "policy.kl_old_k3": 0.002 * np.exp(0.3 * autoregressive(rng, N)), "reward.mean": 0.4 + 0.05 * autoregressive(rng, N),
        "reward.min": np.zeros(N), "reward.max": np.ones(N), "reward.std": np.full(N, 0.45),
        "optim.grad_norm": 0.3 * np.exp(0.3 * autoregressive(rng, N)), "optim.learning_rate": np.full(N, 1e-6),
        "length.min": np.full(N, 10.0), "length.mean": 200 + 10 * autoregressive(rng, N), "length.max": np.full(N, 900.0),
        "value.explained_var": np.tanh(autoregressive(rng, N)), "value.loss": np.full(N, 0.2),
    }  # fmt: skip


@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_runs_are_possible(kind: str) -> None:
    for seed in range(20):
        (made,) = run_rules([rules()[CODE]], view_of(HEALTHY[kind](np.random.default_rng(seed))))
        assert made.outcome == "passed", made.findings


@pytest.mark.parametrize("kind", PLAIN)
def test_healthy_scalar_runs_are_possible(kind: str) -> None:
    for seed in range(20):
        (made,) = run_rules([rules()[CODE]], plain_view(PLAIN[kind](np.random.default_rng(seed))))
        assert made.outcome == "passed", made.findings


@pytest.mark.parametrize("digits", [2, 3, 4])
def test_rounded_logs_are_possible(digits: int) -> None:
    for seed in range(20):
        values = {name: np.round(part, digits) for name, part in _run(seed).items() if name != "policy.kl_old_k3"}
        values["policy.kl_old_k3"] = np.round(_run(seed)["policy.kl_old_k3"], digits)
        values["policy.clip_frac"] = np.round(_run(seed)["policy.clip_frac"] * 5, digits)
        values["reward.max"] = np.round(values["reward.mean"], digits)
        del values["reward.std"]
        assert result(CODE, values).outcome == "passed"


BROKEN: dict[str, tuple[Callable[[dict[str, Floats]], None], str, str]] = {
    "share above 1": (lambda run: run["policy.clip_frac"].__setitem__(slice(3, 6), [0.4, 1.3, 1.2]), "policy.clip_frac", "error"),
    "share below 0": (lambda run: run["policy.clip_frac"].__setitem__(3, -0.1), "policy.clip_frac", "error"),
    "share in per cent": (lambda run: run.update({_CLIP: 100 * run[_CLIP]}), _CLIP, "info"),
    "negative entropy": (lambda run: run["policy.entropy"].__setitem__(4, -0.2), "policy.entropy", "error"),
    "entropy as a loss": (lambda run: run.update({"policy.entropy": -run["policy.entropy"]}), "policy.entropy", "error"),
    "summed entropy": (lambda run: run.update({"policy.entropy": 300 * run["policy.entropy"]}), "policy.entropy", "warning"),
    "negative k3": (lambda run: run["policy.kl_old_k3"].__setitem__(7, -0.02), "policy.kl_old_k3", "error"),
    "slightly negative k3": (lambda run: run["policy.kl_old_k3"].__setitem__(7, -2e-4), "policy.kl_old_k3", "warning"),
    "negative gradient": (lambda run: run["optim.grad_norm"].__setitem__(0, -0.1), "optim.grad_norm", "error"),
    "negative learning rate": (lambda run: run["optim.learning_rate"].__setitem__(0, -1e-8), "optim.learning_rate", "error"),
    "negative length": (lambda run: run["length.min"].__setitem__(0, -5.0), "length.min", "error"),
    "mean below min": (lambda run: run["reward.min"].__setitem__(slice(10, 13), 0.9), "reward.mean", "error"),
    "mean above max": (lambda run: run["length.max"].__setitem__(2, 100.0), "length.mean", "error"),
    "explained variance above 1": (lambda run: run["value.explained_var"].__setitem__(2, 1.4), "value.explained_var", "error"),
    "no spread": (lambda run: run["reward.std"].__setitem__(slice(4, 9), 0.0), "reward.std", "warning"),
}  # fmt: skip


@pytest.mark.parametrize("fault", BROKEN)
def test_what_cannot_be_is_told_with_its_rows(fault: str) -> None:
    damage, metric, expected = BROKEN[fault]
    for seed in range(20):
        values = _run(seed)
        damage(values)
        (found,) = result(CODE, values).findings
        assert (found.severity, found.evidence[0].metric) == (expected, metric)
        assert f"of {N} rows" in found.message


def test_entropy_above_the_vocabulary_is_an_error_where_it_is_known() -> None:
    values = _run()
    values["policy.entropy"] = np.full(N, 4.5)
    assert severity(CODE, values) is None
    known = plain_view(values)
    info = RunInfo(config=CONFIG, vocab_size=50)
    (made,) = run_rules([rules()[CODE]], view_of(dict(known.all_series), info=info))
    assert [item.severity for item in made.findings] == ["error"]


@pytest.mark.parametrize(
    "metric", ["policy.kl_old_k3", "policy.kl_old_k2", "policy.kl_old_k1", "policy.kl_old", "ref.kl", "ref.kl_k3"]
)
@pytest.mark.parametrize("known", [True, False])
def test_clip_share_of_one_without_any_kl(metric: str, known: bool) -> None:
    config = CONFIG if known else with_config(clip_low=None, clip_high=None)
    for seed in range(20):
        noise = np.exp(0.5 * autoregressive(np.random.default_rng(seed), N, 0.5))
        (found,) = result(CODE, {"policy.clip_frac": np.ones(N), metric: 1e-9 * noise}, config).findings
        assert found.severity == "error"
        assert found.evidence[0].metric == metric
        assert bool(found.unchecked) != known


def test_kl_that_the_clip_share_allows() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        share = 0.3 * np.exp(0.2 * autoregressive(rng, N))
        assert severity(CODE, {"policy.clip_frac": share, "policy.kl_old_k3": 0.0177 * share}) is None
        assert severity(CODE, {"policy.clip_frac": share, "policy.kl_old_k3": 0.001 * share}) == "error"
        assert severity(CODE, {"policy.clip_frac": share, "policy.kl_old_k1": 1e-4 * autoregressive(rng, N)}) is None
        narrow = with_config(clip_low=3e-4, clip_high=4e-4)
        assert severity(CODE, {"policy.clip_frac": share, "policy.kl_old_k3": np.full(N, 1e-6)}, narrow) is None


def test_one_ratio_per_sequence_is_another_matter() -> None:
    values = plain_view({"policy.clip_frac": np.full(N, 0.4), "policy.kl_old_k3": np.full(N, 1e-7)}).all_series
    for info in (
        RunInfo(config=CONFIG, algorithm="gspo"),
        RunInfo(config=with_config(native={"importance_sampling_level": "sequence"})),
    ):
        (made,) = run_rules([rules()[CODE]], view_of(dict(values), info=info))
        assert made.outcome == "passed"


def test_nothing_with_a_known_range_is_skipped() -> None:
    assert result(CODE, {}).outcome == "skipped"


def test_entropy_below_zero_is_no_milder_in_more_rows() -> None:
    for rows in (1, 3, 10, 40, N):
        for seed in range(20):
            values = _run(seed)
            values["policy.entropy"][:rows] *= -1
            (found,) = result(CODE, values).findings
            assert found.severity == "error"
            assert ("minus sign" in found.cause) == (rows > N // 2)


def test_summed_entropy_below_zero_is_impossible_and_has_no_upper_bound() -> None:
    assert severity(CODE, {"policy.entropy_sequence": np.full(N, 310.0)}) is None
    assert severity(CODE, {"policy.entropy_sequence": np.linspace(-42.0, -114.0, N)}) == "error"


@pytest.mark.parametrize("metric", ["length.limit_frac", "length.truncated_frac"])
def test_other_rules_do_not_judge_a_share_above_one(metric: str) -> None:
    assert severity("RLD501", {metric: np.full(N, 0.8)}) is not None
    for level in (3.0, 1.3):
        values = {metric: np.full(N, level)}
        assert severity(CODE, values) == "info"
        assert severity("RLD501", values) is None
    assert severity("RLD501", {metric: np.full(N, 80.0)}) is not None
    few = {metric: np.where(np.arange(N) == N - 1, 60.0, 0.02)}
    assert severity(CODE, few) == "error"
    assert severity("RLD501", few) is None


def test_sides_in_per_cent_are_not_added_up() -> None:
    sides = {"policy.clip_frac_low": np.full(N, 0.9), "policy.clip_frac_high": np.full(N, 2.1)}
    values = {"policy.clip_frac": np.full(N, 3.0), **sides, "policy.clip_frac_high_max": np.full(N, 9.0)}
    assert {found.severity for found in result(CODE, values).findings} == {"info"}

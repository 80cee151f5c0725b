"""Each trainer's log is recognised by its names, and each name means what the trainer means by it."""

from __future__ import annotations

import numpy as np
import pytest

from rl_doctor.analyzer.dialects.bookkeeping import bookkeeping
from rl_doctor.analyzer.dialects.generic import NAMES
from rl_doctor.analyzer.dialects.recognise import general, names_of
from rl_doctor.analyzer.dialects.registry import Name, plain, trainers
from rl_doctor.analyzer.logged import LOGGED_FAMILIES
from rl_doctor.analyzer.registry import metrics
from rl_doctor.analyzer.timings import clock
from rl_doctor.schema import RunConfig
from tests.unit.analyzer.dialects.logs import LOGS, Log, meanings, read, varied


@pytest.mark.parametrize("known", LOGS.values(), ids=LOGS)
def test_a_log_is_recognised_and_every_name_means_what_it_should(known: Log) -> None:
    values = varied(known.names())
    found = read(values)
    assert (found.info.trainer, found.info.algorithm) == (known.trainer, known.algorithm)
    got = meanings(found)
    clocks = {metric for native in known.names() if known.means.get(native) is None and (metric := clock(native.lower()))}
    assert {name for name in got if name != "optim.grad_norm_max"} == {name for name in known.means.values() if name} | clocks
    for native, metric in known.means.items():
        if metric is not None:
            assert abs(np.corrcoef(got[metric], np.asarray(values[native]))[0, 1]) == pytest.approx(1.0), (native, metric)
    assert set(found.unknown) == {
        native for native, metric in known.means.items() if metric is None and not bookkeeping(plain(native))
    }


def test_the_sign_and_the_scale_are_the_metrics_own() -> None:
    areal = {
        **varied(LOGS["AREAL"].names()),
        "ppo_actor/update/approx_kl/avg": -0.25,
        "ppo_actor/update/behave_approx_kl/avg": 0.5,
    }
    found = meanings(read(areal))
    assert (found["policy.kl_old_k1"][0], found["mismatch.k1"][0]) == (0.25, -0.5)
    roll = {**varied(LOGS["ROLL"].names()), "actor/policykl": -0.25, "group/mixed_groups_ratio": 0.75}
    found = meanings(read(roll))
    assert (found["policy.kl_old_k1"][0], found["group.zero_std_frac"][0]) == (0.25, 0.25)
    assert meanings(read({**varied(LOGS["PRIME_RL"].names()), "ref_kl/mean": -0.5}))["ref.kl_k1"][0] == 0.5
    assert meanings(read({**varied(LOGS["MINIMIND"].names()), "kl_ref": -0.5}))["ref.kl_k1"][0] == 0.5
    assert meanings(read({**varied(LOGS["MINIMIND_PPO"].names()), "kl_ref": -0.5}))["ref.kl"][0] == -0.5
    assert meanings(read({**varied(LOGS["HOME_MADE"].names()), "truncated_pct": 45.0}))["length.truncated_frac"][0] == 0.45


def entries() -> list[tuple[str, Name]]:
    return [*((known.name, item) for known in trainers().values() for item in known.names), *(("", item) for item in NAMES)]


def test_names_are_of_metrics() -> None:
    for of, item in entries():
        if item.metric is not None:
            assert item.metric in metrics() or item.metric.startswith(tuple(LOGGED_FAMILIES)), (of, item.native)
        if "." in (item.metric or "") and item.metric.startswith("part."):  # type: ignore[union-attr]
            part = item.metric.split(".", 2)[2]  # type: ignore[union-attr]
            assert part in metrics() or part == "token_frac"


def test_a_name_without_conditions_has_one_meaning_in_a_table() -> None:
    for known in ["", *trainers()]:
        seen: dict[tuple[str, frozenset[str]], str | None] = {}
        for of, item in entries():
            if of == known and item.holds is None and item.since is None and item.until is None:
                key = (plain(item.native), item.algorithms)
                assert seen.setdefault(key, item.metric) == item.metric, (known, item.native)


@pytest.mark.parametrize("name", trainers())
def test_a_trainer_is_complete(name: str) -> None:
    known = trainers()[name]
    assert known.name == name.lower()
    assert known.source
    assert len(known.marks) >= known.least
    assert all(hasattr(RunConfig(), setting) and natives for setting, natives in known.settings.items())
    assert all(not item.note or item.note[0].islower() for item in known.names), "a note goes on from the name"


def test_forms_of_a_name_are_alike() -> None:
    for name in (
        "critic/rewards/mean",
        "critic_rewards_mean",
        "critic.rewards.mean",
        "train/critic/rewards/mean",
        "critic / rewards / mean",
    ):
        assert names_of("verl").find(name)[0][2] == "reward.mean"
    (found,) = names_of("trl").find("train/rewards/My_Func.v2/mean")[:1]
    assert found[2] == "reward.component.My_Func.v2.mean"
    assert [metric for _, _, metric in general().find("Entropy")][-1] == "policy.entropy"


@pytest.mark.parametrize(
    "name", ["timing_s/gen", "perf/mfu/actor", "train/num_tokens", "gpu_memory", "memory(GiB)", "epoch", "time"]
)
def test_times_and_sizes_are_no_metrics(name: str) -> None:
    assert bookkeeping(plain(name))


@pytest.mark.parametrize("name", ["reward", "entropy", "steepness", "timely_answers", "rankings", "accuracy", "format_rate"])
def test_other_names_are_not_taken_for_times(name: str) -> None:
    assert not bookkeeping(plain(name))

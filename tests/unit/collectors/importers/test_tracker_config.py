"""Configurations as trackers keep them: of verl, of TRL, of others, and nonsense."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_doctor.collectors.importers.tracker_config import info_of
from rl_doctor.collectors.importers.unfolding import unfold
from rl_doctor.schema import RunInfo

_TRL = {"num_generations": 8, "max_completion_length": 64, "beta": 0.04, "epsilon": 0.2, "epsilon_high": None}
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


def verl(**actor: Any) -> dict[str, Any]:
    return {"actor_rollout_ref": {"actor": actor}, "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False}}


def test_without_a_known_trainer_the_configuration_is_kept_as_it_is() -> None:
    info = info_of({"lr": 1e-6, "model": {"name": "x"}}, "id1")
    assert (info.run_id, info.trainer, info.algorithm) == ("id1", None, None)
    assert info.config.native == {"lr": 1e-6, "model": {"name": "x"}}
    assert info_of({}) == RunInfo()


@pytest.mark.parametrize(
    ("settings", "algorithm", "aggregation", "estimator", "clip"),
    [
        ({"loss_type": "dapo", "scale_rewards": "group"}, "grpo", "token-mean", "grpo", (0.2, 0.2)),
        ({"loss_type": "dr_grpo", "scale_rewards": False}, "grpo", "seq-mean-token-sum-norm", "dr_grpo", (0.2, 0.2)),
        ({"loss_type": "cispo", "epsilon_high": 5.0}, "grpo", "token-mean", "grpo", (None, 4.0)),
        ({"normalize_advantages": True}, "rloo", None, "rloo", (0.2, 0.2)),
    ],
)
def test_arguments_of_trl(
    settings: dict[str, Any], algorithm: str, aggregation: str | None, estimator: str, clip: tuple[float | None, float]
) -> None:
    info = info_of({**_TRL, **settings})
    assert (info.trainer, info.algorithm) == ("trl", algorithm)
    assert (info.config.loss_agg, info.config.adv_estimator) == (aggregation, estimator)
    assert (info.config.clip_low, info.config.clip_high) == clip


def test_the_kl_term_of_verl() -> None:
    in_loss = info_of(verl(use_kl_loss=True, kl_loss_coef=0.01, kl_loss_type="k3+")).config
    assert (in_loss.kl_coef, in_loss.kl_estimator, in_loss.kl_in_reward) == (0.01, "k3", False)
    assert info_of(verl(use_kl_loss=False)).config.kl_coef == 0.0
    reward = verl(use_kl_loss=False)
    reward["algorithm"] |= {"use_kl_in_reward": True, "kl_penalty": "kl", "kl_ctrl": {"kl_coef": 0.1}}
    in_reward = info_of(reward).config
    assert (in_reward.kl_coef, in_reward.kl_estimator, in_reward.kl_in_reward) == (0.1, "k1", True)
    reward["actor_rollout_ref"]["actor"]["use_kl_loss"] = True
    assert info_of(reward).config.kl_coef is None
    assert info_of(verl()).config.kl_coef is None


def test_the_loss_of_verl() -> None:
    plain = info_of(verl(clip_ratio=0.1, clip_ratio_c=3.0))
    assert (plain.algorithm, plain.config.clip_low, plain.config.clip_high, plain.config.dual_clip) == ("grpo", 0.1, 0.1, 3.0)
    gspo = info_of(verl(policy_loss={"loss_mode": "gspo"}, clip_ratio_c=3.0))
    assert (gspo.algorithm, gspo.config.dual_clip) == ("gspo", None)
    assert gspo.config.native is not None
    assert gspo.config.native["loss_mode"] == "gspo"
    critic = verl()
    critic["algorithm"]["adv_estimator"] = "gae"
    assert info_of(critic).algorithm == "ppo"


@settings(max_examples=150, deadline=None)
@given(st.dictionaries(st.sampled_from([*_TRL, "loss_type", "scale_rewards", "top_k", "use_vllm"]), _VALUES), _VALUES, _VALUES)
def test_nonsense_never_raises(flat: dict[str, Any], actor: Any, algorithm: Any) -> None:
    info_of({**_TRL, "loss_type": "grpo", **flat})
    info_of({"actor_rollout_ref": {"actor": actor, "rollout": algorithm}, "algorithm": algorithm, "data": actor})
    info_of({"actor_rollout_ref": {"actor": {"clip_ratio": actor, "policy_loss": algorithm, "ppo_mini_batch_size": 0}}})


def test_media_are_told_from_numbers_however_deep() -> None:
    row = {"a": 1.0, "b": {"c": 2.0, "d": {"_type": "histogram", "values": [1], "inner": {"x": 1}}}, "_type": "no medium"}
    assert unfold(row) == ({"a": 1.0, "b.c": 2.0, "_type": "no medium"}, {"b.d"})

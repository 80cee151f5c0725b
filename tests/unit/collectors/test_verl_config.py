"""verl's settings in canonical terms."""

from __future__ import annotations

from typing import Any

import pytest

from rl_doctor.collectors.verl_config import Model, describe
from rl_doctor.schema import RunConfig, RunInfo


@pytest.fixture(autouse=True)
def _without_verl_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_doctor.collectors.verl_config.metadata.version", lambda _name: "0.9.1")


def described(*, critic: bool = False, **settings: Any) -> RunInfo:
    """A run with some settings, given with ``__`` for each dot."""
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        *parents, name = path.split("__")
        inner = tree
        for parent in parents:
            inner = inner.setdefault(parent, {})
        inner[name] = value
    actor = {
        "clip_ratio": 0.2,
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.28,
        "clip_ratio_c": 3.0,
        "loss_agg_mode": "token-mean",
    }
    tree.setdefault("actor_rollout_ref", {}).setdefault("actor", {}).update(
        {name: value for name, value in actor.items() if name not in tree["actor_rollout_ref"]["actor"]}
    )
    return describe(tree, Model(), 2, (0, 1, 2), critic=critic)


def config(**settings: Any) -> RunConfig:
    return described(**settings).config


def test_clip_range() -> None:
    found = config()
    assert (found.clip_low, found.clip_high, found.dual_clip, found.log_ratio_clamp) == (0.2, 0.28, 3.0, 20.0)
    found = config(actor_rollout_ref__actor__policy_loss={"loss_mode": "gspo"})
    assert (found.clip_low, found.clip_high, found.dual_clip, found.log_ratio_clamp) == (0.2, 0.28, None, None)
    found = config(actor_rollout_ref__actor__policy_loss={"loss_mode": "gpg"})
    assert (found.clip_low, found.clip_high, found.dual_clip) == (None, None, None)
    found = config(actor_rollout_ref__actor__clip_ratio_low=None, actor_rollout_ref__actor__clip_ratio=0.3)
    assert found.clip_low == 0.3


def test_kl_in_the_loss_and_in_the_reward() -> None:
    found = config(
        actor_rollout_ref__actor__use_kl_loss=True,
        actor_rollout_ref__actor__kl_loss_coef=0.1,
        actor_rollout_ref__actor__kl_loss_type="low_var_kl+",
        algorithm__use_kl_in_reward=False,
    )
    assert (found.kl_coef, found.kl_estimator, found.kl_in_reward) == (0.1, "k3", False)
    assert (found.kl_input_clamp, found.kl_output_clamp) == (20.0, 10.0)
    found = config(algorithm__use_kl_in_reward=True, algorithm__kl_penalty="kl", algorithm__kl_ctrl={"kl_coef": 0.01})
    assert (found.kl_coef, found.kl_estimator, found.kl_in_reward, found.kl_output_clamp) == (0.01, "k1", True, None)
    found = config(algorithm__use_kl_in_reward=False, algorithm__kl_penalty="kl")
    assert (found.kl_coef, found.kl_estimator, found.kl_in_reward) == (0.0, None, False)


@pytest.mark.parametrize(
    ("estimator", "scaled", "algorithm", "canonical", "norm"),
    [
        ("grpo", True, "grpo", "grpo", "group"),
        ("grpo", False, "dr_grpo", "dr_grpo", "none"),
        ("gae", True, "ppo", "gae", "batch"),
        ("rloo_vectorized", True, "rloo", "rloo", "none"),
        ("opo", True, "opo", "opo", None),
    ],
)
def test_advantages(estimator: str, scaled: Any, algorithm: str, canonical: str, norm: str | None) -> None:
    info = described(algorithm__adv_estimator=estimator, algorithm__norm_adv_by_std_in_grpo=scaled)
    assert (info.algorithm, info.config.adv_estimator, info.config.adv_norm) == (algorithm, canonical, norm)


def test_the_loss_names_the_algorithm() -> None:
    info = described(algorithm__adv_estimator="grpo", actor_rollout_ref__actor__policy_loss={"loss_mode": "cispo"})
    assert info.algorithm == "cispo"
    assert info.config.native is not None
    assert info.config.native["loss_mode"] == "cispo"


@pytest.mark.parametrize(
    ("correction", "expected"),
    [
        ({"rollout_is": "token"}, "token"),
        ({"rollout_is": None, "rollout_rs": "token_k1"}, "none"),
        ({"bypass_mode": True, "rollout_is": "token"}, "bypass"),
    ],
)
def test_rollout_correction(correction: dict[str, Any], expected: str) -> None:
    assert config(algorithm__rollout_correction=correction).is_correction == expected
    assert config().is_correction is None


def test_schedule_and_sampling() -> None:
    found = config(
        data__train_batch_size=64, actor_rollout_ref__actor__ppo_mini_batch_size=16, actor_rollout_ref__actor__ppo_epochs=2,
        actor_rollout_ref__actor__optim={"clip_grad": 0.5}, actor_rollout_ref__rollout={"n": 8, "temperature": 0.7, "top_k": -1},
        data__max_response_length=512,
    )  # fmt: skip
    assert (found.minibatches, found.epochs, found.max_grad_norm, found.group_size) == (4, 2, 0.5, 8)
    assert (found.temperature, found.top_k, found.max_response_length) == (0.7, -1, 512)


def test_the_critic_has_its_own_loss() -> None:
    critic = {"cliprange_value": 0.3, "loss_agg_mode": "seq-mean-token-mean", "ppo_epochs": 3}
    info = describe({"critic": critic}, Model(), None, None, critic=True)
    assert (info.config.value_clip, info.config.loss_agg, info.config.epochs) == (0.3, "seq-mean-token-mean", 3)
    both = {"critic": critic, "algorithm": {"adv_estimator": "gae"}}
    assert describe(both, Model(), None, None, critic=False).config.value_clip == 0.3


def test_nothing_is_made_up_of_nothing() -> None:
    info = describe({}, Model(), None, None, critic=False)
    assert (info.trainer, info.algorithm, info.world_size) == ("verl", None, None)
    assert info.config == RunConfig(native={})


def test_what_names_files_or_is_an_object_is_not_kept_as_it_is() -> None:
    class Strange:
        def __str__(self) -> str:
            return "strange"

    native = config(trainer__v1={"sampler": {"path": "/secret", "_target_": "x"}}, trainer__use_v1=Strange()).native
    assert native is not None
    assert native["trainer"] == {"v1": {"sampler": {}}, "use_v1": "strange"}
    assert "/secret" not in str(native)

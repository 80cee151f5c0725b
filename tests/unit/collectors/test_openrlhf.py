"""OpenRLHF's adapter without OpenRLHF: arguments, marks, hooks of Ray, and what the controller does."""

from __future__ import annotations

import json
import logging
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rl_doctor import open_run
from rl_doctor.collectors import openrlhf, openrlhf_driver, plugin
from rl_doctor.collectors.openrlhf_config import critic_ranks, data_parallel_ranks, describe, of_args, of_settings
from rl_doctor.collectors.openrlhf_mark import ENTRY, Destination, Mark
from rl_doctor.collectors.support import OPENRLHF


def nested(flat: dict[str, Any]) -> SimpleNamespace:
    root = SimpleNamespace()
    for name, value in flat.items():
        *path, last = name.split(".")
        node = root
        for part in path:
            if not hasattr(node, part):
                setattr(node, part, SimpleNamespace())
            node = getattr(node, part)
        setattr(node, last, value)
    return root


ARGUMENTS: dict[str, Any] = {
    "actor.num_nodes": 2, "actor.num_gpus_per_node": 4, "critic.num_nodes": 1, "critic.num_gpus_per_node": 2,
    "ds.ring_attn_size": 2, "ds.tensor_parallel_size": 1, "actor.eps_clip_low_high": (0.1, 0.3), "actor.dual_clip": 3,
    "actor.policy_loss_type": "ppo", "actor.loss_agg_mode": "token-mean", "actor.entropy_coef": None, "actor.max_norm": 1.0,
    "algo.kl.init_coef": 0.01, "algo.kl.estimator": "k2", "algo.kl.use_loss": False, "algo.kl.target": None,
    "algo.advantage.estimator": "gae", "algo.advantage.gamma": 0.99, "algo.advantage.lambd": 0.95,
    "algo.advantage.no_std_norm": False, "algo.advantage.is_correction_level": "off",
    "algo.advantage.is_correction_mode": "mask", "critic.value_clip": 0.5, "rollout.batch_size": 8,
    "rollout.n_samples_per_prompt": 4, "rollout.max_new_tokens": 64, "rollout.temperature": 0.7, "rollout.top_p": 0.9,
    "train.batch_size": 16, "train.max_epochs": 2, "logger.wandb.key": "secret", "actor.model_name_or_path": "/home/me/model",
}  # fmt: skip


def test_arguments_become_a_configuration() -> None:
    config = of_settings(of_args(nested(ARGUMENTS)))
    assert (config.clip_low, config.clip_high, config.dual_clip, config.log_ratio_clamp) == (0.1, 0.3, 3.0, 20.0)
    assert (config.kl_coef, config.kl_estimator, config.kl_in_reward, config.kl_output_clamp) == (0.01, "k2", True, 10.0)
    assert (config.adv_estimator, config.adv_norm, config.adv_ddof, config.gamma, config.lam) == ("gae", "batch", 0, 0.99, 0.95)
    assert (config.value_clip, config.epochs, config.minibatches, config.group_size) == (0.5, 2, 2, 4)
    assert (config.temperature, config.top_p, config.max_response_length, config.is_correction) == (0.7, 0.9, 64, "none")
    assert "secret" not in json.dumps(config.native)
    assert "/home/me" not in json.dumps(config.native)


@pytest.mark.parametrize(
    ("own", "estimator", "norm", "gamma"),
    [
        ({"algo.advantage.estimator": "group_norm"}, "grpo", "group", 1.0),
        ({"algo.advantage.estimator": "dr_grpo"}, "dr_grpo", "none", 1.0),
        ({"algo.advantage.estimator": "rloo"}, "rloo", "none", 1.0),
        ({"algo.advantage.estimator": "reinforce"}, "reinforce_plus_plus", "batch", 0.99),
        (
            {"algo.advantage.estimator": "reinforce_baseline", "algo.advantage.no_std_norm": True},
            "reinforce_plus_plus", "none", 1.0,
        ),
    ],
)  # fmt: skip
def test_advantage_estimators(own: dict[str, Any], estimator: str, norm: str, gamma: float) -> None:
    config = of_settings(of_args(nested({**ARGUMENTS, **own})))
    assert (config.adv_estimator, config.adv_norm, config.gamma, config.value_clip) == (estimator, norm, gamma, None)


def test_what_depends_on_others() -> None:
    own = {"actor.policy_loss_type": "gspo", "algo.kl.target": 6.0, "algo.advantage.is_correction_level": "token"}
    config = of_settings(of_args(nested({**ARGUMENTS, **own})))
    assert (config.loss_agg, config.log_ratio_clamp) == ("seq-mean-token-mean", None)
    assert config.kl_coef is None  # it changes in the run
    assert config.is_correction == "token_mask"


def test_ranks_that_train_on_the_same_sequences_count_once() -> None:
    args = nested(ARGUMENTS)
    assert (data_parallel_ranks(args), critic_ranks(args)) == (4, 1)
    info = describe(SimpleNamespace(args=args, tokenizer=SimpleNamespace(pad_token_id=0, eos_token_id=[1, 2])), "0.11.2")
    assert (info.world_size, info.writing_ranks, info.eos_token_ids, info.algorithm) == (4, (0, 1, 2, 3, 4), (1, 2), "ppo")
    assert not info.partial


@pytest.mark.parametrize("mark", [Mark(3, None, 7, 12, True), Mark(None, 1, 1, 0, None), Mark(1, 1, 2, 5, False)])
def test_marks_travel_as_whole_numbers(mark: Mark) -> None:
    packed = mark.pack()
    assert all(type(value) is int for value in packed)
    assert Mark.unpack(packed) == mark


class Maker:
    """As much of ``RemoteExperienceMaker`` as is wrapped."""

    def __init__(self, reference: object) -> None:
        self.initial_model_group = reference

    def make_experience_batch(self, samples: list[Any]) -> list[Any]:
        self._flatten_results(self._dispatch_forward("actor", False), 1)
        found = self._flatten_results(self._dispatch_forward(self.initial_model_group, False), 1)
        assert found == ["logprobs of reference"]
        return samples

    def _dispatch_forward(self, group: object, _sync: bool) -> list[str]:
        return [f"logprobs of {group}"]

    def _flatten_results(self, refs: list[str], _factor: int) -> list[str]:
        return list(refs)


class Trainer:
    """As much of ``BasePPOTrainer`` as is wrapped."""

    def __init__(self, args: Any) -> None:
        self.args, self.critic_model_group = args, "critic"
        self.tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=1)
        self.experience_maker = Maker("reference")

    def train_step(self, samples: list[Any], global_step: int) -> tuple[list[Any], int]:
        return self.experience_maker.make_experience_batch(samples), global_step + 1

    def save_logs_and_checkpoints(self, global_step: int, logs_dict: Any = None, client_states: Any = None) -> None:
        self.saved = (global_step, logs_dict, client_states)

    def save_best_checkpoint(self, eval_metrics: Any, global_step: int, client_states: Any = None) -> None:
        self.best = (eval_metrics, global_step, client_states)


def sample(size: int) -> SimpleNamespace:
    truncated = SimpleNamespace(tolist=lambda: [True] * size)
    return SimpleNamespace(index=list(range(size)), info={}, truncated=truncated, base_action_log_probs=None)


def test_the_controller_marks_sequences_and_records_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainers, makers = ModuleType("ppo_trainer"), ModuleType("experience_maker")
    own_maker = type("RemoteExperienceMaker", (), dict(vars(Maker)))
    own_trainer = type("BasePPOTrainer", (), dict(vars(Trainer)))
    trainers.BasePPOTrainer, makers.RemoteExperienceMaker = own_trainer, own_maker
    monkeypatch.setitem(globals(), "Maker", own_maker)
    openrlhf_driver.install_trainer(trainers, Destination(str(tmp_path / "run")), "0.11.2")
    openrlhf_driver.install_maker(makers)
    trainer = own_trainer(nested(ARGUMENTS))
    (experience,), step = trainer.train_step([sample(2)], 4)
    assert step == 5
    marks = [Mark.unpack(values) for values in experience.info[ENTRY]]
    assert marks == [Mark(1, 1, 5, 0, True), Mark(1, 1, 5, 1, True)]
    assert experience.base_action_log_probs == "logprobs of reference"
    status = {"reward": 0.5, "values": 0.25, "critic_loss": 0.125, "generated_samples": ["text", 1.0]}
    trainer.save_logs_and_checkpoints(5, status, {"episode": 1})
    assert trainer.saved == (5, status, {"episode": 1})
    trainer.save_best_checkpoint({"eval_a_pass1": 0.75}, 5)
    driver = trainer.rl_doctor_driver
    driver.recorder.close()
    driver.critic.close()
    run = open_run(tmp_path / "run")
    assert run.metrics().names() == ("critic_loss", "reward", "values")
    assert run.metrics().series("eval_a_pass1", "eval")[1].tolist() == [0.75]
    assert open_run(tmp_path / "run" / "critic").metrics().names() == ("critic_loss", "values")


def test_a_controller_that_cannot_record_marks_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    trainers = ModuleType("ppo_trainer")
    trainers.BasePPOTrainer = type("BasePPOTrainer", (), dict(vars(Trainer)))
    openrlhf_driver.install_trainer(trainers, Destination(str(tmp_path / "file")), "0.11.2")
    trainer = trainers.BasePPOTrainer(nested(ARGUMENTS))
    trainer.critic_model_group = None
    driver = trainer.rl_doctor_driver
    driver.mark([experience := sample(1)])
    assert experience.info == {}
    assert any("stopped recording" in record.message for record in caplog.records)


def test_other_arguments_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "_told", set())
    trainers = ModuleType("ppo_trainer")
    trainers.BasePPOTrainer = type("BasePPOTrainer", (), dict(vars(Trainer)))
    openrlhf_driver.install_trainer(trainers, Destination(str(tmp_path / "run")), "0.11.2")
    for _ in range(2):
        trainer = trainers.BasePPOTrainer(nested({"actor.num_nodes": 1}))
        assert trainer.train_step([sample(1)], 0)[1] == 1
    assert len(caplog.records) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("version", ["0.11.0", "0.10.3", "0.12.0", "1.0"])
def test_other_versions_are_told_in_one_line(
    version: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "_told", set())
    monkeypatch.setattr(metadata, "version", lambda _name: version)
    assert openrlhf.supported_version() is None
    openrlhf.install("runs/a")
    (record,) = caplog.records
    assert record.message.endswith(f"openrlhf {version} is installed; supported are {OPENRLHF.versions}")


def test_known_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", lambda _name: "0.11.2.post1")
    assert openrlhf.supported_version() == "0.11.2.post1"


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A ray that keeps what it was started with."""
    found = SimpleNamespace(calls=[])
    found.init = lambda **kwargs: found.calls.append(kwargs)
    monkeypatch.setitem(sys.modules, "ray", found)
    monkeypatch.setattr(plugin, "_told", set())
    return found


def test_ray_gets_the_hook_beside_what_it_is_given(ray: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[Any] = []
    monkeypatch.setattr(openrlhf, "install", lambda *given: installed.append(given))
    monkeypatch.setenv("RL_DOCTOR_SAMPLING", "0.5")
    openrlhf._hook_ray("/shared/a")
    ray.init(runtime_env={"env_vars": {"A": "b"}}, num_cpus=2)
    (call,) = ray.calls
    assert (call["num_cpus"], call["runtime_env"]["env_vars"]) == (2, {"A": "b"})
    call["runtime_env"]["worker_process_setup_hook"]()
    assert installed == [("/shared/a", {"sampling": 0.5})]


@pytest.mark.parametrize("own", [{"worker_process_setup_hook": "mine"}, {}])
def test_a_hook_that_is_there_is_left_alone(
    ray: SimpleNamespace, own: dict[str, str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if not own:
        job = {"runtime_env": {"worker_process_setup_hook": "mine"}}
        monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", json.dumps(job))
    openrlhf._hook_ray("/shared/a")
    ray.init(runtime_env=own)
    assert ray.calls == [{"runtime_env": own}]
    assert "worker_process_setup_hook is taken" in caplog.text


def test_a_machine_without_rl_doctor_goes_on(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    hook = openrlhf.setup_hook("/shared/a", {})
    monkeypatch.setitem(sys.modules, "rl_doctor.collectors.openrlhf", None)
    hook()
    assert capsys.readouterr().err.startswith("rl-doctor records nothing here (training goes on)")


def test_a_module_is_patched_after_its_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(plugin, "_told", set())
    (tmp_path / "some_trainer.py").write_text("class Trainer:\n    def step(self, x):\n        return x\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))

    def patch(module: ModuleType) -> None:
        plugin.wrap(module.Trainer, "step", lambda original, self, *args: original(self, *args) + 1)

    plugin.when_imported("some_trainer", patch)
    plugin.when_imported("some_trainer", lambda module: module.missing)
    import some_trainer

    assert some_trainer.Trainer().step(1) == 2
    plugin.when_imported("some_trainer", patch)  # it is imported already, and patched already
    assert some_trainer.Trainer().step(1) == 2
    (record,) = caplog.records
    assert "some_trainer has another form" in record.message
    monkeypatch.delitem(sys.modules, "some_trainer")


def test_settings_of_the_environment(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("RL_DOCTOR_RUN", " runs/a ")
    monkeypatch.setenv("RL_DOCTOR_TOKEN_IDS", "0")
    monkeypatch.setenv("RL_DOCTOR_QUOTA", "much")
    with caplog.at_level(logging.WARNING, "rl_doctor"):
        assert plugin.recorder_options() == {"record_token_ids": False}
    assert plugin.run_path() == str(Path("runs/a").absolute())
    assert "RL_DOCTOR_QUOTA is 'much'" in caplog.text
    monkeypatch.setenv("RL_DOCTOR_RUN", "")
    assert plugin.run_path() is None

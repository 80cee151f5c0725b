"""What the hooks in the training process do when something goes wrong; the trainer here is as little as is wrapped."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from rl_doctor import Recorder, open_run
from rl_doctor.collectors.openrlhf_mark import ENTRY, Destination, Mark
from rl_doctor.collectors.openrlhf_worker import install_actor

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

INFO = {"trainer": "openrlhf", "writing_ranks": [0, 1], "world_size": 1}


class Loss(torch.nn.Module):
    def forward(self, logprob: Any, **_kwargs: Any) -> Any:
        return logprob.sum()


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, mask: Any) -> Any:
        return self.weight - mask.float(), SimpleNamespace(entropy=mask.float())


class ActorPPOTrainer:
    """As much of OpenRLHF's as is wrapped."""

    def __init__(self, mesh: Any = None) -> None:
        rollout, train = SimpleNamespace(n_samples_per_prompt=2), SimpleNamespace(dynamic_batch_enable=False)
        self.args = SimpleNamespace(rollout=rollout, train=train)
        self.strategy = SimpleNamespace(accumulated_gradient=1, ds_device_mesh=mesh)
        self.replay_buffer, self.actor, self.actor_loss_fn = None, Model(), Loss()
        self.seen: list[set[str]] = []
        self.broken_at: int | None = None

    def ppo_train(self, experiences: list[Any]) -> int:
        for number, experience in enumerate(experiences):
            self.training_step(experience, 0.0, number, {})
        return len(experiences)

    def training_step(self, experience: Any, kl_ctl: float, step: int, _info: Any) -> dict[str, float]:
        self.seen.append(set(experience.info))
        logprob, _ = self.actor(experience.action_mask)
        window = {name: torch.tensor(2.0) for name in ("batch_num_tokens", "global_batch_size")}
        loss = self.actor_loss_fn(logprob, **window)
        if step == self.broken_at:
            raise RuntimeError("out of memory")
        return {"loss": float(loss.detach()), "kl": kl_ctl}


def experience_of(step: int, session: int | None, rows: int = 2) -> SimpleNamespace:
    mask = torch.tensor([[0, 1, 1]] * rows)
    return SimpleNamespace(
        info={"reward": torch.ones(rows), ENTRY: [Mark(session, None, step, row, False).pack() for row in range(rows)]},
        sequences=torch.ones(rows, 4, dtype=torch.long), attention_mask=torch.ones(rows, 4, dtype=torch.long), action_mask=mask,
        action_log_probs=-mask.float(), base_action_log_probs=None, rollout_log_probs=None, advantages=torch.ones(rows, 3),
        returns=torch.ones(rows, 3), values=None, rewards=torch.ones(rows), scores=None,
    )  # fmt: skip


@pytest.fixture
def trainers(tmp_path: Path) -> type[ActorPPOTrainer]:
    """A fresh class, patched to record into ``run``."""
    module = ModuleType("ppo_actor")
    module.ActorPPOTrainer = type("ActorPPOTrainer", (ActorPPOTrainer,), {})
    install_actor(module, Destination(str(tmp_path / "run")))
    return module.ActorPPOTrainer


def test_an_exception_in_the_training_leaves_what_was_recorded_and_no_hooks(
    trainers: type[ActorPPOTrainer], tmp_path: Path
) -> None:
    driver = Recorder(tmp_path / "run", INFO)
    trainer = trainers()
    assert trainer.ppo_train([experience_of(1, driver.session)]) == 1
    trainer.broken_at = 1
    with pytest.raises(RuntimeError, match="out of memory"):
        trainer.ppo_train([experience_of(2, driver.session), experience_of(2, driver.session)])
    assert trainer.seen == [{"reward"}] * 3
    assert not trainer.actor._forward_hooks
    assert not trainer.actor_loss_fn._forward_pre_hooks
    for step in (1, 2):
        driver.end_step(step)
    driver.close()
    trainer.rl_doctor_passes._recorder.close(None)
    run = open_run(tmp_path / "run")
    rows = [batch.columns["uid"].tolist() for batch in run.batches(["uid", "step"])]
    assert rows[0] == ["1-0", "1-1"]


@pytest.mark.parametrize("session", [None, 7])
def test_what_travels_is_taken_out_where_nothing_is_recorded(
    trainers: type[ActorPPOTrainer], tmp_path: Path, session: int | None
) -> None:
    (tmp_path / "run").write_text("in the way")
    trainer = trainers()
    assert trainer.ppo_train([experience_of(1, session), experience_of(1, session)]) == 2
    assert trainer.seen == [{"reward"}] * 2


def test_a_rank_that_trains_on_the_sequences_of_another_records_nothing(trainers: type[ActorPPOTrainer], tmp_path: Path) -> None:
    class Mesh:
        mesh_dim_names = ("dp", "sp", "tp")

        def __getitem__(self, name: str) -> Any:
            return SimpleNamespace(get_local_rank=lambda: int(name == "sp"))

    driver = Recorder(tmp_path / "run", INFO)
    trainer = trainers(Mesh())
    assert trainer.ppo_train([experience_of(1, driver.session)]) == 1
    assert trainer.seen == [{"reward"}]
    driver.close()
    assert not list((tmp_path / "run").glob("tokens-*"))


def test_another_form_of_the_trainer_is_told_once_and_ends_the_recording(
    trainers: type[ActorPPOTrainer], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Recorder(tmp_path / "run", INFO)
    trainer = trainers()
    del trainer.strategy.accumulated_gradient
    assert trainer.ppo_train([experience_of(1, driver.session), experience_of(1, driver.session)]) == 2
    assert trainer.seen == [{"reward"}] * 2
    (told,) = [record.message for record in caplog.records if "another form" in record.message]
    assert "accumulated_gradient" in told
    driver.close()

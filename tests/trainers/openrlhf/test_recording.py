"""What stands in the recording of an OpenRLHF run."""

from __future__ import annotations

import numpy as np
import pytest

from tests.trainers.openrlhf.conftest import Train, Trained
from tests.trainers.openrlhf.test_harmless import CASES

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

STEPS, ROWS, EPOCHS = 3, 16, 2


@pytest.fixture(scope="module")
def critic(train: Train) -> Trained:
    return train(**CASES["critic"])


def test_each_sequence_stands_once_in_each_pass(train: Train) -> None:
    columns, _ = train(**CASES["two_ranks"]).columns("uid", "group", "epoch", "rank", "minibatch", "window", "microbatch")
    assert len(columns["uid"]) == STEPS * ROWS * EPOCHS
    for step in range(1, STEPS + 1):
        for epoch in range(EPOCHS):
            rows = (columns["step"] == step) & (columns["epoch"] == epoch)
            assert sorted(columns["uid"][rows]) == sorted(f"{step}-{row}" for row in range(ROWS))
            assert sorted(set(columns["rank"][rows])) == [0, 1]
            # 16 sequences on 2 ranks: 2 windows of 2 micro-batches of 2.
            places = {*zip(*(columns[name][rows].tolist() for name in ("window", "microbatch")), strict=True)}
            assert places == {(0, 0), (0, 1), (1, 0), (1, 1)}
    np.testing.assert_array_equal(columns["minibatch"], columns["window"])
    rows_of = [uid.split("-") for uid in columns["uid"]]
    assert columns["group"].tolist() == [f"{step}-{int(row) // 4}" for step, row in rows_of]


def test_tokens_stand_where_the_policy_sampled_them(critic: Trained) -> None:
    names = (
        "token_id", "response_mask", "logprob", "old_logprob", "ref_logprob", "advantage", "return", "old_value", "entropy",
    )  # fmt: skip
    columns, lengths = critic.columns(*names, "response_length", "prompt_length", "finish_reason", "reward", "score", "rank")
    assert columns["logprob"].shape == columns["token_id"].shape == (lengths.sum(),)
    np.testing.assert_array_equal(lengths, columns["response_length"])
    mask = columns["response_mask"]
    starts = np.cumsum(lengths) - lengths
    assert mask[starts].all()  # a response begins with a token of the policy
    assert 0.5 < mask.mean() < 1.0  # and may hold observations
    for name in ("logprob", "old_logprob", "ref_logprob"):
        assert (columns[name][mask] < 0).all()
    assert (columns["entropy"][mask] > 0).all()
    assert not columns["advantage"][~mask].any()
    ends = columns["token_id"][np.cumsum(lengths) - 1]
    stopped = columns["finish_reason"] == "stop"
    assert set(columns["finish_reason"]) == {"stop", "length"}
    np.testing.assert_array_equal(ends == 1, stopped)
    assert ((columns["prompt_length"] >= 3) & (columns["prompt_length"] < 7)).all()


def test_the_first_pass_is_on_policy(critic: Trained) -> None:
    columns, lengths = critic.columns("logprob", "old_logprob", "response_mask", "epoch", "minibatch")
    first = np.repeat((columns["epoch"] == 0) & (columns["minibatch"] == 0), lengths) & columns["response_mask"]
    assert first.any()
    np.testing.assert_allclose(columns["logprob"][first], columns["old_logprob"][first], atol=1e-5)


def test_the_critics_passes_are_a_run_inside_the_run(critic: Trained) -> None:
    columns, lengths = critic.columns("value", "old_value", "return", "uid", "epoch", "minibatch", "response_mask", critic=True)
    assert len(columns["uid"]) == STEPS * ROWS * EPOCHS
    own, own_lengths = critic.columns("old_value", "return", "uid", "epoch")
    order = np.lexsort((columns["epoch"], columns["uid"]))
    own_order = np.lexsort((own["epoch"], own["uid"]))
    np.testing.assert_array_equal(lengths[order], own_lengths[own_order])
    first = np.repeat((columns["epoch"] == 0) & (columns["minibatch"] == 0), lengths) & columns["response_mask"]
    np.testing.assert_allclose(columns["value"][first], columns["old_value"][first], atol=1e-5)
    assert critic.run.critic is not None
    assert set(critic.run.critic.metrics().names()) == {"critic_loss", "critic_lr", "critic_grad_norm", "values"}


def test_the_run_is_described(critic: Trained) -> None:
    info = critic.run.info
    assert (info.trainer, info.trainer_version, info.algorithm, info.status) == ("openrlhf", "0.11.2", "ppo", "complete")
    assert (info.world_size, info.writing_ranks, info.eos_token_ids, info.pad_token_id) == (1, (0, 1), (1,), 0)
    config = info.config
    assert (config.clip_low, config.clip_high, config.value_clip, config.epochs, config.minibatches) == (0.2, 0.2, 0.5, 2, 2)
    assert (config.kl_in_reward, config.kl_estimator, config.adv_estimator, config.adv_norm) == (True, "k1", "gae", "batch")
    assert not [name for name in config.native or {} if "key" in name or "path" in name or "url" in name]
    assert critic.run.metrics().series("eval_default_pass1", "eval")[0].tolist() == [1, 2, 3]

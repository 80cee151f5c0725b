"""What is recorded of TRL's trainers explains what they log; values are recomputed here in plain numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.trainers.trl.conftest import Train, Trained

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

SCHEDULE = {"num_iterations": 2, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_steps": 8}
KEYS = ("epoch", "minibatch", "microbatch", "rank", "rollout_step")


def per_pass(trained: Trained, *tokens: str, sequences: tuple[str, ...] = ()) -> dict[tuple[int, int], dict[str, Any]]:
    """(step, micro-batch) -> its columns over all ranks, token columns under the response mask only."""
    names = ("microbatch", "response_mask", *tokens, *sequences)
    columns, lengths = trained.columns(*names)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    found = {}
    for key in sorted(set(zip(columns["step"].tolist(), columns["microbatch"].tolist(), strict=True))):
        rows = (columns["step"] == key[0]) & (columns["microbatch"] == key[1])
        kept = rows[owner] & columns["response_mask"]
        found[key] = {name: columns[name][kept].astype(np.float64) for name in tokens}
        found[key] |= {name: columns[name][rows] for name in sequences}
    return found


def by_step(values: dict[tuple[int, int], float]) -> dict[int, float]:
    """Unweighted mean over the micro-batches of each step."""
    steps = sorted({step for step, _ in values})
    return {step: float(np.mean([value for (s, _), value in values.items() if s == step])) for step in steps}


def logged(trained: Trained, name: str) -> dict[int, float]:
    steps, values = trained.run.metrics().series(name)
    return dict(zip(steps.tolist(), values.tolist(), strict=True))


def assert_logged(trained: Trained, name: str, recomputed: dict[int, float], tolerance: float = 1e-6) -> None:
    expected = logged(trained, name)
    assert expected
    assert set(recomputed) == set(expected)
    for step, value in expected.items():
        assert recomputed[step] == pytest.approx(value, rel=2e-6, abs=tolerance), (name, step)


@pytest.fixture(scope="module")
def grpo(train: Train) -> Trained:
    return train(args=SCHEDULE)


class TestGrpo:
    def test_nothing_went_wrong(self, grpo: Trained) -> None:
        assert grpo.reason is None
        assert grpo.dropped == 0
        assert grpo.left == []
        assert grpo.run.info.status == "complete"
        assert not grpo.run.facts.skipped_parts
        assert grpo.run.facts.incomplete_steps == ()

    def test_configuration(self, grpo: Trained) -> None:
        info = grpo.run.info
        assert (info.trainer, info.algorithm, info.world_size, info.writing_ranks) == ("trl", "grpo", 1, (0,))
        assert (info.logprob_dtype, info.pad_token_id, info.vocab_size) == ("float32", 0, 300)
        config = info.config
        assert (config.clip_low, config.clip_high, config.kl_coef, config.kl_estimator) == (0.2, 0.2, 0.04, "k3")
        assert (config.loss_agg, config.adv_norm, config.adv_ddof, config.adv_eps) == ("token-mean", "group", 1, 1e-4)
        assert (config.group_size, config.epochs, config.minibatches, config.max_response_length) == (4, 2, 2, 12)
        assert config.reward_weights == {"short": 1.0, "vowels": 1.0}
        assert config.native is not None
        assert config.native["steps_per_generation"] == 4
        assert config.native["use_bias_correction_kl"] is True

    def test_where_each_row_stands_in_the_schedule(self, grpo: Trained) -> None:
        columns, _ = grpo.columns(*KEYS, "grad_accumulation", "padded_width")
        found = {tuple(int(columns[name][i]) for name in ("step", *KEYS)) for i in range(len(columns["step"]))}
        expected = {
            (step, (step - 1) % 4 // 2, (step - 1) % 2, micro, 0, (step - 1) // 4 * 4 + 1)
            for step in range(1, 9)
            for micro in (0, 1)
        }
        assert found == expected
        assert set(columns["grad_accumulation"].tolist()) == {2}
        assert columns["padded_width"].max() <= 12

    def test_every_sequence_comes_once_in_each_pass(self, grpo: Trained) -> None:
        columns, lengths = grpo.columns("uid", "epoch", "rollout_step", "group", "token_id")
        tokens = np.split(columns["token_id"], np.cumsum(lengths)[:-1])
        seen: dict[str, dict[int, list[int]]] = {}
        for uid, epoch, ids in zip(columns["uid"], columns["epoch"].tolist(), tokens, strict=True):
            assert epoch not in seen.setdefault(uid, {})
            seen[uid][epoch] = ids.tolist()
        assert len(seen) == 2 * 16
        assert all(passes[0] == passes[1] for passes in seen.values()), "a uid means the same tokens in every pass"
        groups = {
            group: len({u for u, g in zip(columns["uid"], columns["group"], strict=True) if g == group})
            for group in columns["group"]
        }
        assert set(groups.values()) == {4}

    def test_old_logprobs_are_the_first_pass_before_any_step(self, grpo: Trained) -> None:
        columns, lengths = grpo.columns("epoch", "minibatch", "old_logprob", "logprob")
        first = np.repeat((columns["epoch"] == 0) & (columns["minibatch"] == 0), lengths)
        np.testing.assert_allclose(columns["logprob"][first], columns["old_logprob"][first], atol=2e-6)
        assert np.abs(columns["logprob"][~first] - columns["old_logprob"][~first]).max() > 0.01

    def test_token_means(self, grpo: Trained) -> None:
        passes = per_pass(grpo, "entropy", "logprob", "old_logprob", "ref_logprob", "advantage")
        ratio = {key: np.exp(c["logprob"] - c["old_logprob"]) for key, c in passes.items()}
        kl = {}
        for key, c in passes.items():
            difference = c["ref_logprob"] - c["logprob"]
            kl[key] = float(np.mean((np.expm1(difference) - difference) * ratio[key]))
        assert_logged(grpo, "entropy", by_step({key: float(c["entropy"].mean()) for key, c in passes.items()}))
        assert_logged(grpo, "kl", by_step(kl))
        low = {key: float(np.mean((ratio[key] < 0.8) & (c["advantage"] < 0))) for key, c in passes.items()}
        high = {key: float(np.mean((ratio[key] > 1.2) & (c["advantage"] > 0))) for key, c in passes.items()}
        assert max(low.values()) > 0
        assert_logged(grpo, "clip_ratio/low_mean", by_step(low))
        assert_logged(grpo, "clip_ratio/high_mean", by_step(high))

    def test_loss(self, grpo: Trained) -> None:
        passes = per_pass(grpo, "logprob", "old_logprob", "ref_logprob", "advantage", sequences=("num_items_in_batch",))
        losses: dict[int, float] = {}
        for (step, _), c in passes.items():
            ratio = np.exp(c["logprob"] - c["old_logprob"])
            policy = -np.minimum(ratio * c["advantage"], np.clip(ratio, 0.8, 1.2) * c["advantage"])
            difference = c["ref_logprob"] - c["logprob"]
            total = (policy + 0.04 * (np.expm1(difference) - difference) * ratio).sum()
            losses[step] = losses.get(step, 0.0) + total / (int(c["num_items_in_batch"][0]) * 2 / 4)
        assert_logged(grpo, "loss", losses)

    def test_generation(self, grpo: Trained) -> None:
        columns, _ = grpo.columns(
            "uid", "rollout_step", "reward", "reward/short", "reward/vowels", "response_length", "prompt_length", "finish_reason"
        )
        recomputed: dict[str, dict[int, float]] = {}
        for step in np.unique(columns["rollout_step"]).tolist():
            rows = np.flatnonzero(columns["rollout_step"] == step)
            _, first = np.unique(columns["uid"][rows].astype(str), return_index=True)
            rows = rows[first]
            reward, length = columns["reward"][rows], columns["response_length"][rows]
            for name, value in {
                "reward": reward.mean(),
                "reward_std": reward.std(ddof=1),
                "rewards/short/mean": columns["reward/short"][rows].mean(),
                "rewards/vowels/mean": np.nanmean(columns["reward/vowels"][rows]),
                "completions/mean_length": length.mean(),
                "completions/max_length": length.max(),
                "completions/clipped_ratio": np.mean(columns["finish_reason"][rows] == "length"),
            }.items():
                recomputed.setdefault(name, {})[step] = float(value)
            seen = recomputed.setdefault("num_tokens", {})
            seen[step] = max(seen.values(), default=0.0) + float((length + columns["prompt_length"][rows]).sum())
        for name, values in recomputed.items():
            assert_logged(grpo, name, values)

    def test_advantages_come_from_the_rewards_of_the_group(self, grpo: Trained) -> None:
        columns, lengths = grpo.columns("epoch", "group", "reward", "advantage")
        starts = np.cumsum(lengths) - lengths
        for group in set(columns["group"]):
            rows = np.flatnonzero((columns["group"] == group) & (columns["epoch"] == 0))
            reward = columns["reward"][rows]
            expected = (reward - reward.mean()) / (reward.std(ddof=1) + 1e-4)
            np.testing.assert_allclose(columns["advantage"][starts[rows]], expected, rtol=1e-4, atol=1e-5)

    def test_every_log_row_is_there(self, grpo: Trained) -> None:
        metrics = grpo.run.metrics()
        for row in grpo.log:
            for name, value in row.items():
                if name not in ("step", "total_flos"):  # the trainer's own printer takes total_flos away
                    steps, values = metrics.series(name)
                    assert values[steps == row["step"]].tolist() == [value], (name, row["step"])


def test_every_step_has_its_gradient_norm_though_only_some_are_logged(train: Train) -> None:
    trained = train(args=SCHEDULE | {"logging_steps": 3, "max_steps": 7, "reward_weights": [0.5, 2.0]})
    metrics = trained.run.metrics()
    assert metrics.series("kl")[0].tolist() == [3, 6, 7], "what is left at the end is logged with the summary"
    for name in ("grad_norm", "learning_rate"):
        steps, values = metrics.series(name)
        assert steps.tolist() == list(range(1, 8))
        assert {row["step"]: row[name] for row in trained.log if name in row} == {3: values[2], 6: values[5]}
    assert trained.run.facts.incomplete_steps == ()
    assert trained.run.info.config.reward_weights == {"short": 0.5, "vowels": 2.0}
    columns, _ = trained.columns("reward", "reward/short", "reward/vowels")
    expected = 0.5 * columns["reward/short"] + 2 * np.nan_to_num(columns["reward/vowels"])
    np.testing.assert_allclose(columns["reward"], expected, atol=1e-6)


@pytest.mark.parametrize(("accumulation", "per_generation"), [(2, 3), (2, 1), (3, 2)])
def test_generation_and_accumulation_out_of_step(train: Train, accumulation: int, per_generation: int) -> None:
    schedule = {"gradient_accumulation_steps": accumulation, "steps_per_generation": per_generation, "max_steps": 6}
    trained = train(args=schedule)
    columns, lengths = trained.columns("uid", "old_logprob", "logprob", *KEYS)
    assert trained.reason is None
    assert len(columns["step"]) == 6 * accumulation * 4
    rollouts, sizes = np.unique(columns["rollout_step"], return_counts=True)
    total = 6 * accumulation
    assert len(rollouts) == -(-total // per_generation)
    assert set(sizes.tolist()) <= {4 * per_generation, 4 * (total % per_generation)}
    assert set(columns["epoch"].tolist()) == {0}
    assert len(set(columns["uid"])) == len(columns["uid"])
    no_step_since = np.repeat(columns["minibatch"] == 0, lengths)
    np.testing.assert_allclose(columns["logprob"][no_step_since], columns["old_logprob"][no_step_since], atol=2e-6)


def test_without_stored_old_logprobs_the_ratio_divides_by_the_current_ones(train: Train) -> None:
    columns, _ = train(args={"gradient_accumulation_steps": 2, "max_steps": 3, "beta": 0.0}).columns("logprob", "old_logprob")
    np.testing.assert_array_equal(columns["logprob"], columns["old_logprob"])


def test_evaluation_is_logged_but_not_recorded_as_training(train: Train) -> None:
    arguments = {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4, "max_steps": 4}
    trained = train(args=SCHEDULE | arguments)
    assert trained.reason is None
    columns, _ = trained.columns("uid", *KEYS)
    assert len(columns["uid"]) == 4 * 2 * 4
    metrics = trained.run.metrics()
    steps, values = metrics.series("eval_reward", "eval")
    assert steps.tolist() == [2, 4]
    assert values.tolist() == [row["eval_reward"] for row in trained.log if "eval_reward" in row]
    assert not len(metrics.series("eval_reward", "train")[0])


def test_truncated_completions_that_are_masked_keep_their_length(train: Train) -> None:
    trained = train(args=SCHEDULE | {"mask_truncated_completions": True, "max_steps": 4})
    columns, lengths = trained.columns("finish_reason", "response_length", "response_mask")
    trained_on = np.add.reduceat(columns["response_mask"], np.cumsum(lengths) - lengths)
    cut = columns["finish_reason"] == "length"
    assert cut.any()
    assert set(trained_on[cut].tolist()) == {0}
    assert set(columns["response_length"][cut].tolist()) == {12}
    np.testing.assert_array_equal(trained_on[~cut], columns["response_length"][~cut])
    np.testing.assert_array_equal(lengths, columns["response_length"])


def test_environment_tokens_and_sampling_logprobs(train: Train) -> None:
    trained = train(rollout=True, args=SCHEDULE | {"max_steps": 4})
    columns, lengths = trained.columns("token_id", "response_mask", "rollout_logprob", "is_weight", "role")
    position = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    environment = (position >= 2) & (position < 4)
    np.testing.assert_array_equal(columns["response_mask"], ~environment)
    assert set(columns["token_id"][environment].tolist()) == {50}
    np.testing.assert_array_equal(columns["role"], np.where(environment, 1, 0))
    np.testing.assert_allclose(columns["rollout_logprob"], -0.5 - 0.125 * position)
    assert set(columns["is_weight"][~environment].tolist()) == {0.75}


@pytest.fixture(scope="module")
def rloo(train: Train) -> Trained:
    return train(algorithm="rloo", args=SCHEDULE)


class TestRloo:
    def test_configuration(self, rloo: Trained) -> None:
        assert rloo.reason is None
        config = rloo.run.info.config
        assert (rloo.run.info.algorithm, config.kl_estimator, config.kl_in_reward, config.adv_estimator) == (
            "rloo",
            "k1",
            True,
            "rloo",
        )
        assert config.adv_norm == "none"

    def test_rewards_carry_the_penalty_and_advantages_leave_one_out(self, rloo: Trained) -> None:
        columns, lengths = rloo.columns("epoch", "group", "reward", "score", "advantage", "old_logprob", "ref_logprob")
        starts = np.cumsum(lengths) - lengths
        penalty = np.add.reduceat(columns["old_logprob"].astype(np.float64) - columns["ref_logprob"], starts)
        np.testing.assert_allclose(columns["reward"], columns["score"] - 0.04 * penalty, atol=1e-6)
        for group in set(columns["group"]):
            rows = np.flatnonzero((columns["group"] == group) & (columns["epoch"] == 0))
            reward = columns["reward"][rows]
            expected = reward - (reward.sum() - reward) / (len(reward) - 1)
            np.testing.assert_allclose(columns["advantage"][starts[rows]], expected, atol=1e-5)

    def test_logged_values(self, rloo: Trained) -> None:
        passes = per_pass(rloo, "entropy")
        assert_logged(rloo, "entropy", by_step({key: float(c["entropy"].mean()) for key, c in passes.items()}))
        columns, lengths = rloo.columns(
            "uid", "rollout_step", "score", "microbatch", "logprob", "old_logprob", "ref_logprob", "advantage"
        )
        starts = np.cumsum(lengths) - lengths
        ratio = np.exp(np.add.reduceat(columns["logprob"].astype(np.float64) - columns["old_logprob"], starts))
        high = (ratio > 1.2) & (columns["advantage"][starts] > 0)
        micro = list(zip(columns["step"].tolist(), columns["microbatch"].tolist(), strict=True))
        shares = {key: float(high[[m == key for m in micro]].mean()) for key in set(micro)}
        assert_logged(rloo, "clip_ratio/high_mean", by_step(shares))
        reward, kl = {}, {}
        for step in np.unique(columns["rollout_step"]).tolist():
            rows = np.flatnonzero(columns["rollout_step"] == step)
            rows = rows[np.unique(columns["uid"][rows].astype(str), return_index=True)[1]]
            reward[step] = float(columns["score"][rows].mean())
            kl[step] = float(np.concatenate([_differences(columns, starts, lengths, row) for row in rows]).mean())
        assert_logged(rloo, "reward", reward)
        assert_logged(rloo, "kl", kl)


def _differences(
    columns: dict[str, NDArray[Any]], starts: NDArray[np.int64], lengths: NDArray[np.int64], row: int
) -> NDArray[np.float64]:
    tokens = slice(starts[row], starts[row] + lengths[row])
    return columns["old_logprob"][tokens].astype(np.float64) - columns["ref_logprob"][tokens]


@pytest.fixture(scope="module")
def two(train: Train) -> Trained:
    return train(ranks=2, args=SCHEDULE)


class TestTwoRanks:
    def test_both_write_into_one_session(self, two: Trained) -> None:
        assert two.reason is None
        assert (two.run.info.world_size, two.run.info.writing_ranks, len(two.run.info.sessions)) == (2, (0, 1), 1)
        assert two.run.facts.incomplete_steps == ()
        columns, _ = two.columns("uid", *KEYS)
        assert np.unique(columns["rank"], return_counts=True)[1].tolist() == [64, 64]
        assert len(set(columns["uid"])) == 64
        assert {uid.split("-")[0] for uid in columns["uid"]} == {"1", "5"}

    def test_token_means_over_ranks(self, two: Trained) -> None:
        passes = per_pass(two, "entropy", "logprob", "old_logprob", "ref_logprob")
        kl = {}
        for key, c in passes.items():
            difference = c["ref_logprob"] - c["logprob"]
            kl[key] = float(np.mean((np.expm1(difference) - difference) * np.exp(c["logprob"] - c["old_logprob"])))
        assert_logged(two, "entropy", by_step({key: float(c["entropy"].mean()) for key, c in passes.items()}))
        assert_logged(two, "kl", by_step(kl))

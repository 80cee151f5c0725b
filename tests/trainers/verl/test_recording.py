"""What is recorded of verl's workers explains what verl logs; values are recomputed here in plain numpy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_doctor import check
from tests.trainers.said import of_ours
from tests.trainers.verl.conftest import Train, Trained

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

EXACT = 1e-6
"""Relative to the mean absolute summand."""
CORRECTED = {
    "overrides": [
        "algorithm.rollout_correction.rollout_is=token", "algorithm.rollout_correction.rollout_rs=seq_mean_k1",
        "algorithm.rollout_correction.rollout_rs_threshold='0.5_2.0'",
    ],
    "reject": [1, 5, 6],
    "mismatch": 0.1,
}  # fmt: skip
LOOP: dict[str, Any] = {"prompts": 3, "padding": 4, "observations": True, **CORRECTED}
DRIVER: dict[str, Any] = {"driver": True, "critic": True, **CORRECTED}
IDS = ("step", "epoch", "minibatch", "microbatch", "rank")
Rows = dict[str, NDArray[Any]]


def micro_batches(trained: Trained, *names: str, critic: bool = False) -> dict[tuple[int, ...], Rows]:
    """(step, epoch, mini-batch, micro-batch, rank) -> its columns; of tokens, those under the response mask."""
    columns, lengths = trained.columns(*IDS, "response_mask", "loss_mask", *names, critic=critic)
    keys = np.stack([columns[name].astype(np.int64) for name in IDS], axis=1)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    found = {}
    for key in np.unique(keys, axis=0):
        rows = (keys == key).all(axis=1)
        kept = rows[owner] & columns["response_mask"]
        values = {name: columns[name][kept if len(columns[name]) == len(owner) else rows] for name in names}
        values["normaliser"] = np.array(columns["loss_mask"][rows[owner]].sum())
        found[tuple(key.tolist())] = values
    return found


def log_ratio(rows: Rows) -> NDArray[np.float64]:
    return np.clip(rows["logprob"].astype(np.float64) - rows["old_logprob"].astype(np.float64), -20, 20)


def terms(rows: Rows) -> dict[str, NDArray[np.float64]]:
    """Per token: what verl's losses average, from its formulas with clip range .2, dual clip 3, k3 of the reference."""
    ratio, advantage = np.exp(log_ratio(rows)), rows["advantage"].astype(np.float64)
    plain, clipped = -advantage * ratio, -advantage * np.clip(ratio, 0.8, 1.2)
    worse, bound = np.maximum(plain, clipped), -advantage * 3.0
    weight = rows["is_weight"].astype(np.float64) if "is_weight" in rows else 1.0
    reference = np.clip(rows["ref_logprob"].astype(np.float64) - rows["logprob"].astype(np.float64), -20, 20)
    return {
        "actor/ppo_kl": -log_ratio(rows),
        "actor/pg_clipfrac": (clipped > plain).astype(np.float64),
        "actor/pg_clipfrac_lower": ((worse > bound) & (advantage < 0)).astype(np.float64),
        "actor/pg_loss": np.where(advantage < 0, np.minimum(bound, worse), worse) * weight,
        "actor/kl_loss": np.clip(np.expm1(reference) - reference, -10, 10),
        "actor/entropy_loss": rows["entropy"].astype(np.float64),
    }


def mean_of_micro_batches(values: dict[tuple[int, ...], Rows], term: Callable[[Rows], Any], step: int) -> float:
    """Masked means per micro-batch, their mean over micro-batches and ranks, the mean of that over mini-batches."""
    means: dict[tuple[int, ...], list[float]] = {}
    for key, rows in values.items():
        if key[0] == step:
            own = term(rows)
            means.setdefault(key[:3], []).append(float(own.sum() / (len(own) + 1e-8)))
    return float(np.mean([np.mean(group) for group in means.values()]))


def mean_of_mini_batches(values: dict[tuple[int, ...], Rows], term: Callable[[Rows], Any], step: int) -> float:
    """Sums over a mini-batch by the tokens of its loss mask, and the mean of that over mini-batches."""
    sums: dict[tuple[int, ...], list[float]] = {}
    for key, rows in values.items():
        if key[0] == step:
            total = sums.setdefault(key[:3], [0.0, 0.0])
            total[0] += float(term(rows).sum())
            total[1] += float(rows["normaliser"])
    return float(np.mean([total / tokens for total, tokens in sums.values()]))


def assert_policy_keys(trained: Trained, *names: str) -> None:
    found = micro_batches(trained, "logprob", "old_logprob", "ref_logprob", "advantage", "entropy", *names)
    for name in (
        "actor/ppo_kl",
        "actor/pg_clipfrac",
        "actor/pg_clipfrac_lower",
        "actor/pg_loss",
        "actor/kl_loss",
        "actor/entropy_loss",
    ):
        reduce = (
            mean_of_micro_batches
            if name in ("actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower")
            else mean_of_mini_batches
        )
        for step, row in trained.log.items():
            size = mean_of_micro_batches(found, lambda rows, name=name: np.abs(terms(rows)[name]), step)
            recomputed = reduce(found, lambda rows, name=name: terms(rows)[name], step)
            assert abs(recomputed - row[name]) <= EXACT * size, (name, step, recomputed, row[name])
        assert any(row[name] != 0 for row in trained.log.values()) or name.endswith("lower"), name


@pytest.fixture(scope="module")
def loop(train: Train) -> Trained:
    return train(**LOOP)


class TestLoopWithoutDriver:
    def test_nothing_went_wrong(self, loop: Trained) -> None:
        assert of_ours(loop.said) == []
        run = loop.run
        assert run.info.status == "complete"
        assert not run.facts.skipped_parts
        assert run.facts.incomplete_steps == ()
        assert (run.facts.first_step, run.facts.last_step) == (1, 3)
        assert run.facts.sequences == 3 * 2 * 16
        assert not run.facts.unknown_columns
        assert run.critic is None

    def test_configuration(self, loop: Trained) -> None:
        info = loop.run.info
        assert (info.trainer, info.trainer_version, info.algorithm, info.world_size, info.writing_ranks) == (
            "verl", "0.9.1", "grpo", 1, (0,),
        )  # fmt: skip
        assert (info.logprob_dtype, info.pad_token_id, info.eos_token_ids, info.vocab_size) == ("float32", 0, (1,), 64)
        config = info.config
        assert (config.clip_low, config.clip_high, config.dual_clip, config.log_ratio_clamp) == (0.2, 0.2, 3.0, 20.0)
        assert (config.kl_coef, config.kl_estimator, config.kl_in_reward, config.kl_output_clamp) == (0.02, "k3", False, 10.0)
        assert (config.loss_agg, config.adv_estimator, config.adv_norm, config.adv_eps) == ("token-mean", "grpo", "group", 1e-6)
        assert (config.temperature, config.max_response_length, config.group_size) == (0.9, 12, 4)
        assert (config.epochs, config.minibatches, config.is_correction) == (2, 2, "token")
        assert config.native is not None
        assert config.native["loss_mode"] == "vanilla"
        assert config.native["trainer"]["use_v1"] is True
        assert "path" not in str(config.native)

    def test_where_each_row_stands(self, loop: Trained) -> None:
        columns, _ = loop.columns(*IDS, "grad_accumulation", "padded_width", "response_length")
        keys = {tuple(int(columns[name][at]) for name in IDS) for at in range(len(columns["step"]))}
        assert keys == {(s, e, m, u, 0) for s in (1, 2, 3) for e in (0, 1) for m in (0, 1) for u in (0, 1)}
        assert set(columns["grad_accumulation"].tolist()) == {2}
        for key in keys:
            rows = np.logical_and.reduce([columns[name] == value for name, value in zip(IDS, key, strict=True)])
            assert rows.sum() == 4
            assert set(columns["padded_width"][rows]) == {columns["response_length"][rows].max()}

    def test_identities(self, loop: Trained) -> None:
        columns, lengths = loop.columns("uid", "group", "session_id", "epoch", "token_id", "is_padding")
        tokens = np.split(columns["token_id"], np.cumsum(lengths)[:-1])
        seen: dict[str, list[list[int]]] = {}
        for uid, ids in zip(columns["uid"], tokens, strict=True):
            seen.setdefault(uid, []).append(ids.tolist())
        assert len(seen) == 3 * 16
        assert all(len(passes) == 2 and passes[0] == passes[1] for passes in seen.values())
        real = ~columns["is_padding"].astype(bool)
        assert real.sum() == 3 * 2 * 12
        assert (lengths[~real] == 1).all()
        pairs = {(g, s) for g, s in zip(columns["group"][real], columns["session_id"][real], strict=True)}
        assert len(pairs) == 3 * 12
        assert {s for _, s in pairs} == set("0123")

    def test_masks_before_and_after_rejection(self, loop: Trained) -> None:
        columns, lengths = loop.columns("response_mask", "loss_mask", "token_id", "is_padding", "batch_num_tokens")
        owner = np.repeat(np.arange(len(lengths)), lengths)
        position = np.arange(len(owner)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        environment = ((position == 2) | (position == 3)) & ~columns["is_padding"].astype(bool)[owner]
        assert (columns["token_id"][environment] == 50).all()
        assert not (columns["loss_mask"] & environment).any()
        assert not (columns["response_mask"] & ~columns["loss_mask"]).any()
        rejected = np.bincount(owner, columns["response_mask"], len(lengths)) == 0
        assert (rejected & ~columns["is_padding"].astype(bool)).sum() >= 3 * 2 * 3
        assert (columns["loss_mask"] & rejected[owner]).any()

    def test_policy_keys(self, loop: Trained) -> None:
        assert_policy_keys(loop, "is_weight")

    def test_old_logprobs_are_the_first_pass_before_any_step(self, loop: Trained) -> None:
        columns, lengths = loop.columns("epoch", "minibatch", "logprob", "old_logprob", "entropy", "old_entropy")
        first = np.repeat((columns["epoch"] == 0) & (columns["minibatch"] == 0), lengths)
        np.testing.assert_allclose(columns["logprob"][first], columns["old_logprob"][first], atol=2e-6)
        np.testing.assert_allclose(columns["entropy"][first], columns["old_entropy"][first], atol=2e-6)
        assert np.abs(columns["logprob"][~first] - columns["old_logprob"][~first]).max() > 0.01

    def test_the_batch(self, loop: Trained) -> None:
        names = ("uid", "epoch", "is_padding", "reward", "score", "response_length", "prompt_length", "turns", "weight_version")
        columns, _ = loop.columns(*names, "first_weight_version", "policy_version", "reward/even", "reward/length", "data_source")
        rows = (columns["epoch"] == 0) & ~columns["is_padding"].astype(bool)
        for step, logged in loop.log.items():
            own = {name: values[rows & (columns["step"] == step)] for name, values in columns.items()}
            assert len(own["uid"]) == 12
            for name, values in {
                "critic/score": own["score"], "critic/rewards": own["reward"], "response_length": own["response_length"],
                "prompt_length": own["prompt_length"], "num_turns": own["turns"],
                "training/off_policy/trajectory_staleness": own["policy_version"] - own["weight_version"],
                "training/off_policy/trajectory_staleness_worst": own["policy_version"] - own["first_weight_version"],
                "training/off_policy/trajectory_spans": own["weight_version"] - own["first_weight_version"] + 1,
            }.items():  # fmt: skip
                for statistic in (np.mean, np.max, np.min):
                    expected = logged[f"{name}/{statistic.__name__.removeprefix('a')}"]
                    assert abs(float(statistic(values)) - expected) <= EXACT * np.abs(values).mean(), (name, step)
            np.testing.assert_allclose(own["reward"], own["reward/even"] + own["reward/length"], atol=1e-6)
            assert set(own["data_source"]) == {"even", "odd"}

    def test_metrics_are_those_that_verl_logged(self, loop: Trained) -> None:
        log = loop.run.metrics()
        assert log.series("actor/ppo_kl")[0].tolist() == [1, 2, 3]
        assert log.series("actor/ppo_kl")[1].tolist() == [loop.log[step]["actor/ppo_kl"] for step in (1, 2, 3)]

    def test_a_healthy_run_has_no_error(self, train: Train) -> None:
        report = check(train(mismatch=0.05).run)
        assert report.exit_code() == 0
        assert not [result.code for result in report.results if result.outcome == "crashed"]


@pytest.fixture(scope="module")
def driver(train: Train) -> Trained:
    return train(**DRIVER)


class TestDriverAndCritic:
    def test_the_driver_writes_beside_the_worker(self, driver: Trained) -> None:
        assert of_ours(driver.said) == []
        info = driver.run.info
        assert (info.world_size, info.writing_ranks, info.status, len(info.sessions)) == (1, (0, 1), "complete", 1)
        assert info.logprob_dtype == "float32"
        assert driver.run.facts.incomplete_steps == ()
        names = {path.name for path in driver.folder.iterdir()}
        assert {"writer-s1-r0.json", "writer-s1-r1.json"} <= names
        assert not {name for name in names if name.startswith("tokens-s1-r0")}
        columns, _ = driver.columns("rank")
        assert set(columns["rank"].tolist()) == {0}

    def test_the_entry_is_gone_before_the_batch_is_used(self, driver: Trained) -> None:
        assert not [name for name in driver.fields if "rl_doctor" in name]

    def test_policy_keys(self, driver: Trained) -> None:
        assert_policy_keys(driver, "is_weight")

    def test_old_values_and_returns(self, driver: Trained) -> None:
        columns, lengths = driver.columns("old_value", "return", "epoch")
        kept = np.repeat(columns["epoch"] == 0, lengths)
        step = np.repeat(columns["step"], lengths)
        mask = driver.columns("response_mask")[0]["response_mask"]
        for number, logged in driver.log.items():
            rows = kept & mask & (step == number)
            for name, values in {"values": columns["old_value"][rows], "returns": columns["return"][rows]}.items():
                assert abs(values.mean(dtype=np.float64) - logged[f"critic/{name}/mean"]) <= EXACT * np.abs(values).mean()

    def test_the_critic_is_a_run_of_its_own(self, driver: Trained) -> None:
        run = driver.run.critic
        assert run is not None
        assert (run.info.config.value_clip, run.info.config.loss_agg, run.info.writing_ranks) == (0.5, "token-mean", (0, 1))
        found = micro_batches(driver, "value", "old_value", "return", critic=True)

        def value_loss(rows: Rows) -> NDArray[np.float64]:
            value, old, target = (rows[name].astype(np.float64) for name in ("value", "old_value", "return"))
            clipped = np.clip(value, old - 0.5, old + 0.5)
            return np.asarray(0.5 * np.maximum((value - target) ** 2, (clipped - target) ** 2))

        for step, logged in driver.log.items():
            recomputed = mean_of_mini_batches(found, value_loss, step)
            assert abs(recomputed - logged["critic/vf_loss"]) <= EXACT * mean_of_micro_batches(found, value_loss, step)
            predicted = [rows["value"].mean(dtype=np.float64) for key, rows in found.items() if key[0] == step]
            assert abs(np.mean(predicted) - logged["critic/vpred_mean"]) <= EXACT * np.abs(predicted).mean()

    def test_actor_and_critic_name_rows_alike(self, driver: Trained) -> None:
        assert set(driver.columns("uid")[0]["uid"]) == set(driver.columns("uid", critic=True)[0]["uid"])


class TestTwoRanks:
    @pytest.mark.parametrize("options", [LOOP, DRIVER], ids=["loop", "driver"])
    def test_both_record(self, train: Train, options: dict[str, Any]) -> None:
        trained = train(ranks=2, **options)
        assert of_ours(trained.said) == []
        info = trained.run.info
        assert (info.world_size, len(info.sessions)) == (2, 1)
        assert info.writing_ranks == ((0, 1, 2) if options.get("driver") else (0, 1))
        columns, _ = trained.columns("rank", "uid")
        assert np.unique(columns["rank"], return_counts=True)[1].tolist() == [48, 48]
        assert len(set(columns["uid"])) == 48
        assert_policy_keys(trained, "is_weight")


def test_micro_batches_of_so_many_tokens(train: Train) -> None:
    settings = [
        "actor_rollout_ref.actor.use_dynamic_bsz=true", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=40",
        "actor_rollout_ref.actor.shuffle=true",
    ]  # fmt: skip
    trained = train(driver=True, overrides=settings)
    assert of_ours(trained.said) == []
    columns, _ = trained.columns(*IDS)
    sizes = np.unique(np.stack([columns[name] for name in IDS], axis=1), axis=0, return_counts=True)[1]
    assert len(set(sizes.tolist())) > 1
    assert_policy_keys(trained)


def test_the_driver_of_old(train: Train) -> None:
    trained = train(driver="v0")
    assert of_ours(trained.said) == []
    assert trained.run.info.writing_ranks == (0, 1)
    columns, lengths = trained.columns("uid", "group", "epoch", "response_length", "padded_width", "reward", "token_id")
    assert len(set(columns["uid"])) == 48
    assert len(set(columns["group"])) == 12
    assert set(columns["padded_width"].tolist()) == {12}
    np.testing.assert_array_equal(columns["response_length"], lengths)
    for step, logged in trained.log.items():
        rows = (columns["step"] == step) & (columns["epoch"] == 0)
        assert columns["response_length"][rows].mean() == pytest.approx(logged["response_length/mean"], rel=EXACT)
        assert columns["reward"][rows].mean() == pytest.approx(logged["critic/rewards/mean"], rel=1e-5)
    assert_policy_keys(trained)
    assert trained.weights == train(record=False, driver="v0").weights


def test_a_loop_that_gives_no_configuration(train: Train) -> None:
    trained = train(configured=False, critic=True, steps=1)
    assert of_ours(trained.said) == []
    config = trained.run.info.config
    assert (config.clip_low, config.dual_clip, config.kl_coef, config.kl_estimator) == (0.2, 3.0, 0.02, "k3")
    assert (config.loss_agg, config.epochs, config.entropy_coef, config.temperature) == ("token-mean", 2, 0.001, 0.9)
    assert (config.adv_estimator, config.is_correction) == (None, None)
    critic = trained.run.critic
    assert critic is not None
    assert (critic.info.config.value_clip, critic.info.config.epochs) == (0.5, 2)
    assert_policy_keys(trained)


def test_a_penalty_in_the_reward(train: Train) -> None:
    settings = ["algorithm.use_kl_in_reward=true", "actor_rollout_ref.actor.use_kl_loss=false"]
    trained = train(driver=True, steps=2, overrides=settings)
    assert of_ours(trained.said) == []
    config = trained.run.info.config
    assert (config.kl_in_reward, config.kl_estimator, config.kl_coef) == (True, "k1", 0.001)
    names = ("reward", "score", "token_reward", "epoch", "old_logprob", "ref_logprob", "response_mask")
    columns, lengths = trained.columns(*names)
    starts = np.cumsum(lengths) - lengths
    sums = np.add.reduceat(columns["token_reward"].astype(np.float64), starts)
    np.testing.assert_allclose(columns["reward"], sums, atol=1e-6)
    for step, logged in trained.log.items():
        rows = (columns["epoch"] == 0) & (columns["step"] == step)
        for name in ("reward", "score"):
            key = {"reward": "critic/rewards/mean", "score": "critic/score/mean"}[name]
            assert abs(columns[name][rows].mean() - logged[key]) <= EXACT * np.abs(columns[name][rows]).mean()
    late = columns["step"] == 2
    assert np.abs(columns["reward"][late] - columns["score"][late]).max() > 1e-4

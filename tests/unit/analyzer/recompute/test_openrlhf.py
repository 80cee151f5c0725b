"""OpenRLHF's keys, again in plain Python over rows: two ranks, uneven windows, epochs, masks, sequences without a token."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.recompute.openrlhf import keys as openrlhf
from rl_doctor.analyzer.recompute.registry import Entries, find_dialect
from rl_doctor.schema import RunInfo
from rl_doctor.store.batch import Batch
from rl_doctor.store.info import info_from_json

Row = dict[str, Any]
RANKS, EPOCHS, WINDOWS, ACCUMULATION, ROWS = 2, 2, 2, 2, 2
TOKENS = ("logprob", "old_logprob", "ref_logprob", "advantage", "entropy", "value", "old_value", "return")
NATIVE: Row = {
    "actor.eps_clip_low_high": [0.2, 0.3], "actor.policy_loss_type": "ppo", "actor.loss_agg_mode": "token-mean",
    "algo.kl.init_coef": 0.1, "algo.kl.estimator": "k3", "algo.kl.use_loss": False, "algo.advantage.estimator": "rloo",
    "train.micro_batch_size": ROWS, "rollout.batch_size": 4, "rollout.n_samples_per_prompt": 4, "reward.clip_range": [-1, 1],
    "data.max_len": 9,
}  # fmt: skip
COMMON = {"trainer": "openrlhf", "trainer_version": "0.11.2", "world_size": RANKS}


def info_of(**native: Any) -> RunInfo:
    own = {**NATIVE, **native}
    config = {"native": own, "kl_estimator": own["algo.kl.estimator"], "value_clip": 0.2}
    return info_from_json({**COMMON, "config": config}, "info")


def rows_of(seed: int) -> list[Row]:
    """The passes over 16 sequences; what changes from pass to pass is drawn anew."""
    rng = random.Random(seed)
    sequences = []
    for number in range(RANKS * WINDOWS * ACCUMULATION * ROWS):
        size = 0 if number == 5 else rng.randint(1, 6)
        mask = [position in (0, size - 1) or rng.random() < 0.6 for position in range(size)]
        old = [-rng.expovariate(0.5) for _ in range(size)]
        sequences.append(
            {
                "uid": f"1-{number}", "group": f"1-{number // 4}", "response_mask": mask, "old_logprob": old,
                "ref_logprob": [x + rng.gauss(0, 0.5) for x in old], "advantage": [rng.gauss(0, 1) for _ in old],
                "old_value": [rng.gauss(0, 1) for _ in old], "return": [rng.gauss(0, 1) for _ in old],
                "reward": rng.gauss(0, 1), "finish_reason": rng.choice(["stop", "length"]), "prompt_length": rng.randint(2, 4),
                "response_length": size,
            }
        )  # fmt: skip
    rows = []
    for epoch in range(EPOCHS):
        order = list(range(len(sequences)))
        rng.shuffle(order)
        for at, number in enumerate(order):
            micro, row = divmod(at, ROWS * RANKS)
            own = sequences[number]
            drawn = {
                "logprob": [x + rng.gauss(0, 0.3) for x in own["old_logprob"]],
                "entropy": [rng.random() for _ in own["old_logprob"]],
                "value": [x + rng.gauss(0, 0.3) for x in own["old_value"]],
            }
            place = {"epoch": epoch, "window": micro // ACCUMULATION, "minibatch": micro // ACCUMULATION}
            rows.append({**own, **drawn, **place, "microbatch": micro % ACCUMULATION, "rank": row // ROWS})
    for row in rows:
        same = [other for other in rows if (other["epoch"], other["window"]) == (row["epoch"], row["window"])]
        row["batch_num_tokens"] = sum(sum(other["response_mask"]) for other in same)
        row["global_batch_size"] = sum(any(other["response_mask"]) for other in same)
        row["grad_accumulation"] = ACCUMULATION
    return rows


def batch_of(rows: list[Row], info: RunInfo) -> Batch:
    columns: dict[str, Any] = {}
    for name in rows[0]:
        if name in (*TOKENS, "response_mask"):
            kind = np.bool_ if name == "response_mask" else np.float64
            columns[name] = np.array([value for row in rows for value in row[name]], kind)
        else:
            text = isinstance(rows[0][name], str)
            columns[name] = np.array([row[name] for row in rows], np.object_ if text else None)
    columns |= {"step": np.full(len(rows), 1), "rollout_step": np.full(len(rows), 1)}
    splits = np.concatenate([[0], np.cumsum([len(row["logprob"]) for row in rows])])
    return Batch(1, columns, splits, info)


def folded(rows: list[Row], info: RunInfo, name: str, cut: int) -> Entries:
    (item,) = openrlhf.openrlhf.logged(info, (), {name})
    state = item.reduction.zero
    for part in (rows[:cut], rows[cut:]):
        if part:
            state = state + item.reduction.partial(batch_of(part, info))
    found: Entries = item.entries(state)
    return found


def at(row: Row, name: str) -> list[float]:
    return [value for value, kept in zip(row[name], row["response_mask"], strict=True) if kept]


def micro_batches(rows: list[Row]) -> dict[tuple[int, ...], list[Row]]:
    found: dict[tuple[int, ...], list[Row]] = defaultdict(list)
    for row in rows:
        found[row["rank"], row["epoch"], row["window"], row["microbatch"]].append(row)
    return found


def weighted_loss(rows: list[Row], of_row: Any, *, by_sequence: bool = False) -> float:
    """Each micro-batch's loss on its rank, weighted by its tokens."""
    total = tokens = 0.0
    for own in micro_batches(rows).values():
        normaliser = own[0]["global_batch_size" if by_sequence else "batch_num_tokens"] / ACCUMULATION
        terms = [of_row(row) for row in own]
        summed = sum(sum(values) / max(len(values), 1) if by_sequence else sum(values) for values in terms)
        weight = sum(map(len, terms))
        total += summed / normaliser * RANKS * weight
        tokens += weight
    return total / tokens


def surrogate(row: Row, low: float = 0.8, high: float = 1.3) -> list[float]:
    pairs = zip(at(row, "logprob"), at(row, "old_logprob"), at(row, "advantage"), strict=True)
    found = []
    for new, old, advantage in pairs:
        ratio = math.exp(new - old)
        found.append(-min(ratio * advantage, min(max(ratio, low), high) * advantage))
    return found


def k3(difference: float) -> float:
    return min(math.exp(-difference) - 1 + difference, 10.0)


def differences(row: Row, one: str, other: str) -> list[float]:
    return [a - b for a, b in zip(at(row, one), at(row, other), strict=True)]


@pytest.mark.parametrize("cut", [0, 7, 32])
@pytest.mark.parametrize("by_sequence", [False, True])
def test_losses_are_weighted_by_the_tokens_of_micro_batches(cut: int, by_sequence: bool) -> None:
    rows = rows_of(1)
    info = info_of(**{"actor.loss_agg_mode": "seq-mean-token-mean" if by_sequence else "token-mean"})
    found = folded(rows, info, "policy_loss", cut)
    assert found.total == pytest.approx(weighted_loss(rows, surrogate, by_sequence=by_sequence), rel=1e-12)
    assert 0 < found.tolerance < 1e-5
    entropy = folded(rows, info, "entropy_loss", cut)
    assert entropy.total == pytest.approx(weighted_loss(rows, lambda row: at(row, "entropy")), rel=1e-12)


def test_dynamic_batches_are_not_divided_again() -> None:
    rows = rows_of(2)
    info = info_of(**{"train.dynamic_batch_enable": True})
    assert folded(rows, info, "policy_loss", 9).total == pytest.approx(weighted_loss(rows, surrogate) / ACCUMULATION, rel=1e-12)


def test_masked_means_are_means_over_all_tokens_of_the_step() -> None:
    rows = rows_of(3)
    distances = [x for row in rows for x in differences(row, "old_logprob", "logprob")]
    assert folded(rows, info_of(), "ppo_kl", 5).total == pytest.approx(math.fsum(distances) / len(distances), rel=1e-12)
    plain = [(loss, free) for row in rows for loss, free in zip(surrogate(row), surrogate(row, 0.0, math.inf), strict=True)]
    binding = sum(loss > free for loss, free in plain)
    assert folded(rows, info_of(), "ppo_clip_ratio", 5).total == pytest.approx(binding / len(plain), rel=1e-12)


def test_kl_of_the_experience_is_a_mean_over_sequences_and_that_of_the_loss_is_a_loss() -> None:
    rows = [row for row in rows_of(4) if any(row["response_mask"])]  # of an empty sequence the trainer makes NaN
    means = []
    for row in rows:
        terms = [k3(x) for x in differences(row, "old_logprob", "ref_logprob")]
        means.append(math.fsum(terms) / len(terms))
    assert folded(rows, info_of(), "kl", 5).total == pytest.approx(math.fsum(means) / len(means), rel=1e-12)
    in_loss = info_of(**{"algo.kl.use_loss": True})
    expected = weighted_loss(rows, lambda row: [k3(x) for x in differences(row, "logprob", "ref_logprob")])
    assert folded(rows, in_loss, "kl", 5).total == pytest.approx(expected, rel=1e-12)
    assert math.isnan(folded(rows_of(4), info_of(), "kl", 5).total)


def test_lengths_span_what_an_environment_wrote() -> None:
    rows = rows_of(5)
    places = [[position for position, kept in enumerate(row["response_mask"]) if kept] for row in rows]
    spans = [found[-1] - found[0] + 1 if found else 0 for found in places]
    assert folded(rows, info_of(), "response_length", 5).total == pytest.approx(sum(spans) / len(spans), rel=1e-12)
    whole = [row["prompt_length"] + row["response_length"] for row in rows]
    assert folded(rows, info_of(), "total_length", 5).total == pytest.approx(sum(whole) / len(whole), rel=1e-12)
    at_limit = sum(length >= 9 for length in whole) / len(whole)
    assert folded(rows, info_of(), "response_clip_ratio", 5).total == pytest.approx(at_limit, rel=1e-12)
    cut = sum(row["finish_reason"] == "length" for row in rows) / len(rows)
    assert folded(rows, info_of(), "truncated", 5).total == pytest.approx(cut, rel=1e-12)


def test_the_critic_is_averaged_without_weights() -> None:
    rows, losses, values = [row for row in rows_of(6) if any(row["response_mask"])], [], []
    for own in micro_batches(rows).values():
        errors = []
        for row in own:
            for value, old, target in zip(at(row, "value"), at(row, "old_value"), at(row, "return"), strict=True):
                kept = min(max(value, old - 0.2), old + 0.2)
                errors.append(max((value - target) ** 2, (kept - target) ** 2))
        losses.append(0.5 * math.fsum(errors) / (own[0]["batch_num_tokens"] / ACCUMULATION) * RANKS)
        values.append(math.fsum(x for row in own for x in at(row, "value")) / len(errors))
    assert folded(rows, info_of(), "critic_loss", 5).total == pytest.approx(math.fsum(losses) / len(losses), rel=1e-12)
    assert folded(rows, info_of(), "values", 5).total == pytest.approx(math.fsum(values) / len(values), rel=1e-12)


@pytest.mark.parametrize("estimator", ["rloo", "dr_grpo", "group_norm", "reinforce_baseline", "gae", "flash_reinforce"])
def test_returns_are_shaped_rewards_minus_the_penalty(estimator: str) -> None:
    info = info_of(**{"algo.advantage.estimator": estimator})
    first = sorted((row for row in rows_of(7) if row["epoch"] == 0), key=lambda row: int(row["uid"].split("-")[1]))
    batch = batch_of(first, info)
    penalties = [sum(k3(x) for x in differences(row, "old_logprob", "ref_logprob")) for row in first]
    columns = {
        **batch.columns,
        "per_sequence.openrlhf_kl": np.array(penalties),
        "per_sequence.openrlhf_kl_size": np.array(penalties),
    }
    (item,) = openrlhf.openrlhf.logged(info, (), {"return"})
    found = item.entries(item.reduction.partial(Batch(1, columns, batch.splits, info)))
    expected = []
    rewards = [row["reward"] for row in first]
    for number, reward in enumerate(rewards):
        group = rewards[number // 4 * 4 : number // 4 * 4 + 4]
        mean = sum(group) / 4
        deviation = math.sqrt(sum((x - mean) ** 2 for x in group) / 3)
        shaped = {
            "rloo": reward - (sum(group) - reward) / 3, "dr_grpo": reward - mean, "reinforce_baseline": reward - mean,
            "group_norm": (reward - mean) / (deviation + 1e-9), "gae": reward, "flash_reinforce": reward - sum(rewards) / 16,
        }[estimator]  # fmt: skip
        expected.append(min(max(shaped, -1.0), 1.0) - 0.1 * penalties[number])
    assert found.total == pytest.approx(sum(expected) / len(expected), rel=1e-9)


def test_statistics_of_the_rollout_and_where_they_are_left_alone() -> None:
    rows = [row for row in rows_of(8) if row["epoch"] == 0]
    info = info_of()

    def of(name: str, own: list[Row]) -> Entries:
        (item,) = openrlhf.openrlhf.logged(info, (), {name})
        return item.entries(item.reduction.partial(batch_of(own, info)))

    rewards = [row["reward"] for row in rows]
    mean = sum(rewards) / 16
    assert of("rollout/reward_mean", rows).total == pytest.approx(mean, rel=1e-12)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in rewards) / 15)
    assert of("rollout/reward_std", rows).total == pytest.approx(deviation, rel=1e-12)
    assert math.isnan(of("rollout/reward_mean", rows[:-1]).total)  # a row is missing
    uneven = [{**row, "rank": int(number < 5)} for number, row in enumerate(rows)]
    assert math.isnan(of("group_reward_std", uneven).total)  # some are trained on less often than others
    assert not math.isnan(of("rollout/reward_mean", uneven).total)


def supposed(rows: list[Row], key: str, name: str) -> float:
    """What a key would be by one of its hypotheses."""
    (item,) = openrlhf.openrlhf.logged(info_of(), (), {key})
    (one,) = [one for one in item.hypotheses() if one.name == name]
    found: Entries = one.entries(one.reduction.partial(batch_of(rows, info_of())))
    assert 0 <= found.tolerance < 1e-4
    return found.total


@pytest.mark.parametrize(("name", "low", "high"), [
    ("lower bound on both sides", 0.8, 1.2), ("upper bound on both sides", 0.7, 1.3),
])  # fmt: skip
def test_one_bound_on_both_sides(name: str, low: float, high: float) -> None:
    rows = rows_of(1)
    wanted = weighted_loss(rows, lambda row: surrogate(row, low, high))
    assert supposed(rows, "policy_loss", name) == pytest.approx(wanted, rel=1e-9)
    flags = [
        (math.exp(new - old) < low and gain < 0) or (math.exp(new - old) > high and gain > 0)
        for row in rows for new, old, gain in zip(at(row, "logprob"), at(row, "old_logprob"), at(row, "advantage"), strict=True)
    ]  # fmt: skip
    assert supposed(rows, "ppo_clip_ratio", name) == pytest.approx(sum(flags) / len(flags), rel=1e-9)


def test_other_statistics_of_the_rollout() -> None:
    rows = [row for row in rows_of(8) if row["epoch"] == 0]
    rewards = np.array([row["reward"] for row in rows])
    assert supposed(rows, "rollout/reward_mean", "max") == pytest.approx(rewards.max())
    assert supposed(rows, "rollout/reward_std", "ddof 0") == pytest.approx(rewards.std())
    assert supposed(rows, "rollout/reward_std", "variance") == pytest.approx(rewards.var(ddof=1))
    assert supposed(rows, "rollout/reward_mean", "rank 0 only") == pytest.approx(
        rewards[[not row["rank"] for row in rows]].mean()
    )
    cut = np.mean([row["finish_reason"] == "length" for row in rows])
    assert supposed(rows, "rollout/truncated_rate", "1 minus the share") == pytest.approx(1 - cut)


def test_rows_that_are_missing_are_counted() -> None:
    metric = openrlhf.openrlhf.missing_rows
    assert metric is not None
    rows = rows_of(9)
    found = metric.reduction.partial(batch_of(rows[:11], info_of())) + metric.reduction.partial(batch_of(rows[11:], info_of()))
    assert metric.final(found) == 0
    filled = next(number for number, row in enumerate(rows) if any(row["response_mask"]))
    assert metric.final(metric.reduction.partial(batch_of(rows[:filled] + rows[filled + 1 :], info_of()))) == 1


@pytest.mark.parametrize(
    ("version", "known"), [("0.11.2", True), ("0.11.5", True), ("0.11.0", True), ("0.10.9", False), (None, False)]
)
def test_versions(version: str | None, known: bool) -> None:
    document = {"trainer": "OpenRLHF", **({"trainer_version": version} if version else {})}
    found = find_dialect(info_from_json(document, "info"))
    assert (found is openrlhf.openrlhf) == known


def test_without_arguments_or_ranks_nothing_is_recomputed() -> None:
    names = {"ppo_kl", "policy_loss"}
    assert openrlhf.openrlhf.logged(info_from_json(COMMON, "info"), (), names) == ()
    partial = info_from_json({**COMMON, "writing_ranks": [0], "config": {"native": NATIVE}}, "info")
    assert openrlhf.openrlhf.logged(partial, (), names) == ()

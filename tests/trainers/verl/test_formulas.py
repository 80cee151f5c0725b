"""Our formulas against verl's own functions on the same tensors: losses, aggregations, KL, advantages, values, validation."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.analyzer.formulas import (
    advantage,
    aggregation,
    covariance_loss,
    divergence_loss,
    importance,
    kl,
    policy_loss,
    rejection,
    returns,
    reward,
    segments,
    sequence_loss,
    token_baseline,
    validation,
    value,
    whitening,
)
from tests.trainers.verl.formula_tensors import DUAL, HIGH, LOW, ROWS, WIDTH, Tensors, close, make, torch
from tests.unit.analyzer.memory import MemoryRun

pytest.importorskip("verl")
with warnings.catch_warnings():  # of verl and of what it imports
    warnings.simplefilter("ignore")
    from verl.trainer.config.algorithm import AlgoConfig, RolloutCorrectionConfig
    from verl.trainer.ppo import core_algos, metric_utils, rollout_corr_helper
    from verl.utils.torch_functional import masked_whiten
    from verl.workers.config import ActorConfig
    from verl.workers.config.actor import PolicyLossConfig

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
KINDS = ("float64", "float32", "bfloat16")
MODES = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
SEEDS = (0, 1, 2)
EPS = 1e-8


def factors(mode: str, counts: Any) -> Any:
    found: dict[str, Callable[[], Any]] = {
        "token-mean": lambda: aggregation.token_mean(counts),
        "token-sum": lambda: aggregation.token_sum(counts),
        "seq-mean-token-sum": lambda: aggregation.sequence_mean_token_sum(counts),
        "seq-mean-token-mean": lambda: aggregation.sequence_mean_token_mean(counts, eps=EPS),
        "seq-mean-token-sum-norm": lambda: aggregation.sequence_mean_token_sum_norm(counts, WIDTH),
    }
    return found[mode]()


def aggregated(t: Tensors, losses: Any, mode: str) -> float:
    return aggregation.aggregated(segments.segment_sums(losses, t.splits), factors(mode, t.counts))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_aggregations(mode: str, kind: str) -> None:
    for seed in SEEDS:
        t = make(seed, kind)
        theirs = core_algos.agg_loss(t["advantage"], t.mask, mode).item()
        close(aggregated(t, t.flat("advantage"), mode), theirs, aggregated(t, np.abs(t.flat("advantage")), mode), kind)
        sums = segments.segment_sums(t.flat("advantage"), t.splits)
        theirs = core_algos.agg_loss(
            t["advantage"], t.mask, mode, dp_size=2, batch_num_tokens=97, global_batch_size=32, loss_scale_factor=50
        ).item()
        made: dict[str, Callable[[Any], Any]] = {
            "token-mean": lambda c: aggregation.token_mean(c, 97), "token-sum": aggregation.token_sum,
            "seq-mean-token-sum": lambda c: aggregation.sequence_mean_token_sum(c, 32),
            "seq-mean-token-mean": lambda c: aggregation.sequence_mean_token_mean(c, 32, EPS),
            "seq-mean-token-sum-norm": lambda c: aggregation.sequence_mean_token_sum_norm(c, 50, 32),
        }  # fmt: skip
        global_factors = made[mode](t.counts)
        sizes = aggregation.aggregated(segments.segment_sums(np.abs(t.flat("advantage")), t.splits), global_factors)
        close(2 * aggregation.aggregated(sums, global_factors), theirs, 2 * sizes, kind)


def config(loss: str, **changes: Any) -> Any:
    own = {
        "clip_cov_ratio": 0.05,
        "clip_cov_lb": 0.1,
        "clip_cov_ub": 5.0,
        "kl_cov_ratio": 0.05,
        "ppo_kl_coef": 0.7,
        "dro_beta": 0.1,
    }
    return ActorConfig(
        strategy="fsdp", rollout_n=4, ppo_micro_batch_size_per_gpu=4, clip_ratio_low=LOW, clip_ratio_high=HIGH, clip_ratio_c=DUAL,
        tau_pos=1.0, tau_neg=1.05, policy_loss=PolicyLossConfig(loss_mode=loss, **own, **changes),
    )  # fmt: skip


def clip20(values: Any) -> Any:
    return np.clip(values, -20.0, 20.0)


def ours(name: str, t: Tensors) -> tuple[Any, dict[str, Any]]:
    """Loss per token and what is logged beside it as values per token."""
    new, old, adv = t.flat("new"), t.flat("old"), t.flat("advantage")
    raw, x = new - old, clip20(new - old)
    r, zeros = np.exp(x), np.zeros_like(x)
    binds = policy_loss.binds(r, adv, LOW, HIGH)
    of_row = sequence_loss.over_tokens(sequence_loss.sequence_log_ratio(raw, t.splits, 10.0), t.splits)
    selected = covariance_loss.kl_cov_selected(covariance_loss.covariances(new, adv), 0.05)

    def bounded(keep: Any) -> tuple[Any, dict[str, Any]]:
        lower = divergence_loss.dppo_capped(r, keep, DUAL)
        return divergence_loss.dppo_loss(r, adv, new, keep, DUAL), {
            "ppo_kl": -x,
            "pg_clipfrac": ~keep,
            "pg_clipfrac_lower": lower,
        }

    found: dict[str, Callable[[], tuple[Any, dict[str, Any]]]] = {
        "vanilla": lambda: (
            policy_loss.surrogate_of_ratio(r, adv, LOW, HIGH, DUAL),
            {"ppo_kl": -x, "pg_clipfrac": binds, "pg_clipfrac_lower": policy_loss.dual_binds(r, adv, LOW, DUAL)},
        ),
        "gspo": lambda: (
            policy_loss.surrogate_of_ratio(of_row, adv, LOW, HIGH),
            {"ppo_kl": -raw, "pg_clipfrac": policy_loss.binds(of_row, adv, LOW, HIGH), "pg_clipfrac_lower": zeros},
        ),
        "dppo_tv": lambda: bounded(divergence_loss.within_total_variation(new, old, adv, LOW, HIGH)),
        "dppo_kl": lambda: bounded(divergence_loss.within_binary_kl(new, old, adv, LOW, HIGH)),
        "cispo": lambda: (
            policy_loss.cispo_loss(r, adv, new, LOW, HIGH),
            {"ppo_kl": -x, "pg_clipfrac": policy_loss.outside(r, LOW, HIGH), "pg_clipfrac_lower": zeros},
        ),
        "sapo": lambda: (
            policy_loss.sapo_loss(r, adv, 1.0, 1.05), {"ppo_kl": -x, "pg_clipfrac": zeros, "pg_clipfrac_lower": zeros}
        ),
        "gpg": lambda: (policy_loss.reinforce_loss(new, adv), {}),
        "dro": lambda: (policy_loss.dro_loss(new, raw, adv, 0.1), {"ppo_kl": -raw}),
        "kl_cov": lambda: (covariance_loss.kl_cov_loss(raw, adv, selected, 0.7), {"ppo_kl": kl.absolute(raw)}),
    }  # fmt: skip
    return found[name]()


LOSSES = ("vanilla", "gspo", "dppo_tv", "dppo_kl", "cispo", "sapo", "gpg", "dro", "kl_cov")
AT_AN_EDGE = {"pg_clipfrac", "pg_clipfrac_lower"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_policy_losses(name: str, weighted: bool, kind: str) -> None:
    own = "seq-mean-token-mean" if name == "sapo" else None
    for seed, mode in [*((seed, "token-mean") for seed in SEEDS), *((0, mode) for mode in MODES[1:])]:
        t = make(seed, kind)
        weight = t["weight"] if weighted else None
        theirs, logged = core_algos.get_policy_loss_fn(name)(
            t["old"], t["new"], t["advantage"], t.mask, mode, config(name), weight
        )
        loss, beside = ours(name, t)
        loss = loss * t.flat("weight") if weighted else loss
        size = aggregated(t, np.abs(loss) * (1.0 + np.abs(clip20(t.flat("new") - t.flat("old"))) / 8.0), own or mode)
        close(aggregated(t, loss, own or mode), theirs.item(), size, kind, f"{name} {mode}")
        assert {key.removeprefix("actor/") for key in logged} == set(beside)
        for key, values in beside.items():
            edge = tied(t, name) / t.flags.sum() if key in AT_AN_EDGE else 0.0
            np.testing.assert_allclose(values.mean(), logged[f"actor/{key}"], rtol=1e-6, atol=edge + 1e-7, err_msg=key)


def tied(t: Tensors, name: str) -> int:
    """Tokens that lie at an edge of the clip range to the precision of float32."""
    r = np.exp(t.flat("new") - t.flat("old"))
    near = (np.abs(r - 1 - HIGH) < 1e-6) | (np.abs(r - 1 + LOW) < 1e-6) | (np.abs(r - DUAL) < 1e-6)
    return int(near.sum()) if not name.startswith("dppo") else 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
def test_geometric_mean(weighted: bool, kind: str) -> None:
    for seed in SEEDS:
        t = make(seed, kind)
        theirs, logged = core_algos.get_policy_loss_fn("geo_mean")(
            t["old"], t["new"], t["advantage"], t.mask, "token-mean", config("geo_mean"), t["weight"] if weighted else None
        )
        x, adv = t.flat("new") - t.flat("old"), t.flat("advantage")
        rows = sequence_loss.geometric_mean_loss(x, adv, t.splits, LOW, HIGH)
        if weighted:
            rows = rows * sequence_loss.geometric_weight(t.flat("weight"), t.splits)
        close(rows.mean(), theirs.item(), rows, kind)
        flags = sequence_loss.log_ratio_outside(x, LOW, HIGH)
        for key, values in {"ppo_kl": -x, "pg_clipfrac": flags & (adv > 0), "pg_clipfrac_lower": flags & (adv < 0)}.items():
            np.testing.assert_allclose(values.mean(), logged[f"actor/{key}"], rtol=1e-6, atol=1e-7, err_msg=key)


@pytest.mark.parametrize("kind", KINDS)
def test_clip_cov_given_what_it_drops(kind: str) -> None:
    """Which tokens are dropped is drawn: they are those whose loss does not move with the advantage."""
    for seed in SEEDS:
        t = make(seed, kind)
        given = t["advantage"].clone().requires_grad_()
        torch.manual_seed(seed)
        theirs, logged = core_algos.get_policy_loss_fn("clip_cov")(
            t["old"], t["new"], given, t.mask, "token-sum", config("clip_cov")
        )
        (moved,) = torch.autograd.grad(theirs, given)
        x, adv = t.flat("new") - t.flat("old"), t.flat("advantage")
        r, dropped = np.exp(x), (t.flat(moved) == 0) & (adv != 0)
        loss = covariance_loss.clip_cov_loss(r, adv, LOW, HIGH, dropped)
        close(loss.sum(), theirs.item(), np.abs(loss).sum() * (1.0 + np.abs(x).max() / 8.0), kind)
        covariance, binds = covariance_loss.covariances(t.flat("new"), adv), policy_loss.binds(r, adv, LOW, HIGH)
        candidates = covariance_loss.clip_cov_candidates(covariance, binds, 0.1, 5.0)
        assert candidates[dropped].all()
        number = covariance_loss.clip_cov_number(t.flags.sum(), int(candidates.sum()), 0.05)
        assert number > 1
        np.testing.assert_allclose(number / t.flags.sum(), logged["actor/pg_clipfrac"], rtol=1e-6)
        np.testing.assert_allclose(-x.mean(), logged["actor/ppo_kl"], rtol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("loss_type", ["ppo_clip", "reinforce"])
@pytest.mark.parametrize("over", ["token", "sequence", None])
def test_bypass(over: str | None, loss_type: str, kind: str) -> None:
    given = {"bypass_mode": True, "loss_type": loss_type, "rollout_is": over, "rollout_is_threshold": 2.0}
    given |= {"rollout_rs": "seq_mean_k3", "rollout_rs_threshold": "0.5"}
    for seed in SEEDS:
        t = make(seed, kind)
        with_rollout = config("bypass_mode", rollout_correction=RolloutCorrectionConfig(**given))
        theirs, logged = core_algos.get_policy_loss_fn("bypass_mode")(
            t["old"], t["new"], t["advantage"], t.mask, "token-sum", with_rollout
        )
        x, adv = t.flat("new") - t.flat("old"), t.flat("advantage")
        keep = rejection.kept_tokens(x, t.splits, "seq_mean", "k3", (-np.inf, 0.5))
        assert 0 < keep.sum() < keep.size
        if loss_type == "ppo_clip":
            loss = policy_loss.surrogate_of_ratio(np.exp(clip20(x)), adv, LOW, HIGH, DUAL)
        else:
            loss = policy_loss.reinforce_loss(t.flat("new"), adv)
            if over == "token":
                loss = loss * importance.truncated(importance.token_weights(x), 2.0)
            elif over == "sequence":
                loss = loss * segments.spread(importance.truncated(importance.sequence_weights(x, t.splits), 2.0), t.splits)
        close(loss[keep].sum(), theirs.item(), np.abs(loss[keep]).sum() * 4.0, kind)
        distance = clip20(x) if loss_type == "ppo_clip" else x
        np.testing.assert_allclose(-distance[keep].mean(), logged["actor/ppo_kl"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3"])
@pytest.mark.parametrize("suffix", ["", "+"])
def test_kl_penalties(name: str, suffix: str, kind: str) -> None:
    for seed in SEEDS:
        t = make(seed, kind)
        theirs = t.flat(core_algos.kl_penalty(t["new"], t["ref"], name + suffix))
        found = kl.penalty(t.flat("ref") - t.flat("new"), name + suffix)
        x = np.clip(t.flat("ref") - t.flat("new"), -20, 20)
        sizes = np.minimum(np.exp(x), 20.0) + np.abs(x) + 1.0 if "3" in name or "low" in name else np.abs(found) + np.abs(x)
        bound = 1e-9 if kind == "float64" else 1e-6
        np.testing.assert_array_less(np.abs(found - theirs), bound * sizes + 1e-12)
        if suffix:  # the value is that without it, the gradient that of k2
            given = t["new"].clone().requires_grad_()
            core_algos.kl_penalty(given, t["ref"], name + suffix).sum().backward()
            wanted = t.flat("new") - t.flat("ref")
            np.testing.assert_allclose(t.flat(given.grad), wanted, rtol=1e-5, atol=1e-6)


def algorithm(**changes: Any) -> Any:
    return AlgoConfig(**{"gamma": 0.97, "lam": 0.9, **changes})


def scores_of(t: Tensors) -> Any:
    return t["reward"].double().sum(-1).numpy()


def estimated(name: str, t: Tensors, **given: Any) -> Any:
    theirs, _ = core_algos.get_adv_estimator_fn(name)(token_level_rewards=t["reward"].clone(), response_mask=t.mask, **given)
    return t.flat(theirs)


OUTCOMES: dict[str, Callable[[Any, Any, Tensors], Any]] = {
    "grpo": lambda r, g, _: advantage.grpo(r, g),
    "grpo_vectorized": lambda r, g, _: advantage.grpo(r, g),
    "rloo": lambda r, g, _: advantage.rloo(r, g),
    "rloo_vectorized": lambda r, g, _: advantage.rloo(r, g, singles="zero"),
    "opo": lambda r, g, t: advantage.opo(r, t.counts, g),
    "gpg": lambda r, g, _: advantage.gpg(r, g),
    "grpo_passk": lambda r, g, _: advantage.grpo_pass_k(r, g),
}


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize(("name", "singles"), [(name, one) for name in OUTCOMES for one in {False, name != "grpo_passk"}])
def test_advantages_of_whole_responses(name: str, singles: bool, kind: str) -> None:
    """``grpo_passk`` raises on a group of one."""
    for seed in SEEDS:
        t = make(seed, kind)
        labels = t.labels.copy()
        if singles:
            labels[[5, 10]] = ["alone", "also"]
        theirs = estimated(name, t, index=labels, config=algorithm())
        found = segments.spread(OUTCOMES[name](scores_of(t), labels.astype(str), t), t.splits)
        close(found, theirs, np.abs(found) + 1.0, "float32", f"{name} of {kind}")  # some go through float32 in any case


@pytest.mark.parametrize("name", ["grpo", "grpo_vectorized", "grpo_passk"])
def test_advantages_that_are_not_scaled(name: str) -> None:
    t = make(0, "float64")
    theirs = estimated(name, t, index=t.labels, norm_adv_by_std_in_grpo=False, config=algorithm(norm_adv_by_std_in_grpo=False))
    labels, scores = t.labels.astype(str), scores_of(t)
    of_rows = advantage.grpo_pass_k(scores, labels, scaled=False) if name == "grpo_passk" else advantage.dr_grpo(scores, labels)
    close(segments.spread(of_rows, t.splits), theirs, 1.0, "float32")


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_advantages_that_are_whitened(kind: str) -> None:
    for seed in SEEDS:
        t = make(seed, kind)
        labels, rewards = t.labels.astype(str), t.flat("reward")
        plus = returns.reinforce_plus_plus(rewards, t.splits, 0.97)
        close(plus, estimated("reinforce_plus_plus", t, config=algorithm()), np.abs(plus) + 1.0, kind)
        baseline = advantage.reinforce_plus_plus_baseline(scores_of(t), labels, t.splits)
        theirs = estimated("reinforce_plus_plus_baseline", t, index=t.labels, config=algorithm())
        close(baseline, theirs, np.abs(baseline) + 1.0, kind)
        gae = returns.gae_advantage(rewards, t.flat("value"), t.splits, 0.97, 0.9)
        theirs, their_returns = core_algos.compute_gae_advantage_return(t["reward"], t["value"], t.mask, 0.97, 0.9)
        close(whitening.whiten(gae), t.flat(theirs), np.abs(gae) + 2.0, kind)
        close(gae + t.flat("value"), t.flat(their_returns), np.abs(gae) + 2.0, kind)
        own = t.flags[inside(t)]
        rewards, values = (t[name].double().numpy()[inside(t)] for name in ("reward", "value"))
        skipping = returns.gae_skipping(rewards, values, own, all_splits(t), 0.97, 0.9)
        close(skipping[own], gae, np.abs(gae) + 2.0, kind)


def test_the_constants_of_their_gae_follow_from_what_it_gives() -> None:
    for seed in SEEDS:
        t = make(seed, "float32")
        theirs, their_returns = core_algos.compute_gae_advantage_return(t["reward"], t["value"], t.mask, 0.97, 0.9)
        columns = {"advantage": theirs, "return": their_returns, "old_value": t["value"], "token_reward": t["reward"]}
        rows = [
            {"step": 0, "response_mask": t.flags[row].tolist(), **{name: part[row].tolist() for name, part in columns.items()}}
            for row in range(ROWS)
        ]
        found = analyze(MemoryRun(rows), ["advantage.", "return."]).series
        for what in ("advantage", "return"):
            told = [float(found[f"{what}.gae_{name}"].values[0]) for name in ("gamma", "lam")]
            np.testing.assert_allclose(told, [0.97, 0.9], atol=1e-4)
        assert found["advantage.return_corr"].values[0] > 1.0 - 1e-9
        assert found["advantage.gae_scale"].values[0] > 0.0


def inside(t: Tensors) -> Any:
    """Every position up to the last token of each row."""
    ends = np.where(t.flags.any(axis=1), WIDTH - np.argmax(t.flags[:, ::-1], axis=1), 0)
    return np.arange(WIDTH) < ends[:, None]


def all_splits(t: Tensors) -> Any:
    return np.concatenate([[0], np.cumsum(inside(t).sum(axis=1))]).astype(np.int64)


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_remax_and_decoupled_rewards(kind: str) -> None:
    for seed in SEEDS:
        t = make(seed, kind)
        greedy = np.random.default_rng(seed).normal(0, 1, ROWS)
        theirs = estimated("remax", t, reward_baselines=torch.tensor(greedy).to(t.mask.dtype), config=algorithm())
        found = returns.remax(returns.discounted_sums(t.flat("reward"), t.splits, 1.0), greedy, t.splits)
        close(found, theirs, np.abs(found) + 1.0, kind)
        parts = np.random.default_rng(seed + 9).normal(0, 1, (ROWS, 2)).astype(np.float32).astype(np.float64)
        attention = torch.ones(ROWS, 2 + WIDTH, dtype=torch.long)
        theirs, _ = core_algos.get_adv_estimator_fn("gdpo")(
            token_level_rewards=t["reward"], response_mask=t.mask, index=t.labels,
            config=algorithm(gdpo_reward_keys=["a", "b"], gdpo_reward_weights=[0.3, 0.7]),
            non_tensor_batch={"a": parts[:, 0], "b": parts[:, 1]},
            batch={"prompts": torch.ones(ROWS, 2), "attention_mask": attention},
        )  # fmt: skip
        rows = advantage.decoupled(parts, t.labels.astype(str), np.array([0.3, 0.7]))
        found = whitening.whiten(segments.spread(rows, t.splits))
        close(found, t.flat(theirs), np.abs(found) + 1.0, "float32")


@pytest.mark.parametrize("kind", ["float64", "float32"])
@pytest.mark.parametrize("name", ["optimal_token_baseline", "tir_optimal_token_baseline"])
def test_optimal_token_baselines(name: str, kind: str) -> None:
    for seed in SEEDS:
        t = make(seed, kind)
        squares = torch.exp(2 * t["old"]) + 0.01
        theirs = estimated(name, t, index=t.labels, old_log_probs=t["old"], sum_pi_squared=squares)
        energy = token_baseline.token_energy(t.flat("old"), t.flat(squares), t.splits)
        sums = returns.discounted_sums(t.flat("reward"), t.splits, 1.0)
        place = None if name.startswith("tir") else np.nonzero(t.flags)[1]
        found = token_baseline.optimal_token_baseline(sums, energy, t.splits, t.labels.astype(str), place=place)
        close(found, theirs, np.abs(found) + 1.0, kind)


def test_every_registered_function_is_held() -> None:
    others = {"gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "remax", "gdpo"}
    others |= {"optimal_token_baseline", "tir_optimal_token_baseline"}
    assert {getattr(name, "value", name) for name in core_algos.ADV_ESTIMATOR_REGISTRY} == {*OUTCOMES, *others}
    assert set(core_algos.POLICY_LOSS_REGISTRY) == {*LOSSES, "geo_mean", "clip_cov", "bypass_mode"}


@pytest.mark.parametrize("kind", KINDS)
def test_whitening_values_and_penalties(kind: str) -> None:
    for seed in SEEDS:
        t = make(seed, kind)
        for shift in (True, False):
            found = whitening.whiten(t.flat("advantage"), shift=shift)
            close(found, t.flat(masked_whiten(t["advantage"], t.mask, shift_mean=shift)), np.abs(found) + 1.0, kind)
        theirs, clipped = core_algos.compute_value_loss(t["value"], t["return"], t["old_value"], t.mask, 0.2, "token-mean")
        given = (t.flat("value"), t.flat("old_value"), t.flat("return"), 0.2)
        loss = value.value_loss(*given)
        close(loss.mean(), theirs.item(), loss, kind)
        np.testing.assert_allclose(value.value_clipped(*given).mean(), clipped.item(), atol=1e-6)
        penalty = kl.penalty(t.flat("ref") - t.flat("old"), "kl")
        kld = core_algos.kl_penalty(t["old"], t["ref"], "kl") * t.mask
        theirs = (kld.sum(-1) / (t.mask.sum(-1) + EPS)).mean().item()
        close(reward.penalty_mean(penalty, t.splits), theirs, penalty, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("over", ["token", "sequence"])
@pytest.mark.parametrize("threshold", [1.5, "0.6_1.5"])
def test_rollout_correction(threshold: Any, over: str, kind: str) -> None:
    options = {"token_k1": "0.85_1.2", "token_k3": "0.01", "seq_sum_k2": "0.3", "seq_mean_k3": "0.02", "seq_max_k3": "0.05"}
    for seed in SEEDS:
        t = make(seed, kind)
        proto, mask, logged = rollout_corr_helper.compute_rollout_correction_and_rejection_mask(
            t["old"], t["rollout"], t.mask, rollout_is=over, rollout_is_threshold=threshold,
            rollout_rs=",".join(options), rollout_rs_threshold=",".join(options.values()),
        )  # fmt: skip
        y = t.flat("old") - t.flat("rollout")
        raw = importance.token_weights(y)
        if over == "sequence":
            raw = segments.spread(importance.sequence_weights(y, t.splits), t.splits)
        cut = importance.truncated(raw, 1.5) if threshold == 1.5 else importance.dropped_outside(raw, 0.6, 1.5)
        theirs = t.flat(proto.batch["rollout_is_weights"])
        np.testing.assert_allclose(cut, theirs, rtol=1e-9 if kind == "float64" else 1e-5)
        keep = np.ones(y.size, np.bool_)
        for option, bound in options.items():
            where, _, estimate = option.rpartition("_")
            upper = [float(part) for part in bound.split("_")]
            bounds = (-np.inf, upper[0]) if estimate != "k1" else (np.log(upper[0]), np.log(upper[1]))
            keep &= rejection.kept_tokens(y, t.splits, where, estimate, bounds)  # type: ignore[arg-type]
        assert 0 < keep.sum() < keep.size
        np.testing.assert_array_equal(keep, t.flat(mask) > 0)
        numbers = {
            "rollout_is_eff_sample_size": importance.effective_share(cut, eps=EPS),
            "rollout_is_std": importance.weight_deviation(cut),
            "chi2_token": importance.chi_squared_tokens(y), "chi2_seq": importance.chi_squared_sequences(y, t.splits),
            "training_ppl": np.exp(importance.log_perplexity(t.flat("old"), t.splits)).mean(), "kl": kl.k1(y).mean(),
            "k3_kl": kl.k3(y).mean(),
        }  # fmt: skip
        for name, found in numbers.items():
            np.testing.assert_allclose(
                found, logged[f"rollout_corr/{name}"], rtol=1e-9 if kind == "float64" else 2e-5, atol=2e-7, err_msg=name
            )


def test_explained_variance_and_data_metrics_agree() -> None:
    t = make(0, "float32")
    error, target = t["return"] - t["old_value"], t["return"]
    select = t.mask.bool()
    theirs = 1.0 - torch.var(error[select]) / (torch.var(target[select]) + 1e-5)
    np.testing.assert_allclose(value.explained_variance(t.flat("old_value"), t.flat("return")), theirs.item(), rtol=1e-5)


@pytest.mark.parametrize("responses", [1, 2, 3, 8, 13])
def test_validation(responses: int) -> None:
    random = np.random.default_rng(responses)
    prompts = 4
    sources = ["math"] * (prompts * responses)
    uids = [f"u{at // responses}" for at in range(prompts * responses)]
    acc = np.round(random.random(prompts * responses), 1)
    answers = [f"a{int(x)}" for x in random.integers(0, 3, prompts * responses)]
    theirs = metric_utils.process_validation_metrics(sources, uids, {"acc": acc.tolist(), "pred": answers})["math"]["acc"]
    of_prompts = list(zip(acc.reshape(prompts, -1), np.array(answers).reshape(prompts, -1), strict=True))
    found = {f"mean@{responses}": np.mean([validation.mean_at_n(scores) for scores, _ in of_prompts])}
    if responses > 1:
        found[f"std@{responses}"] = np.mean([validation.std_at_n(scores) for scores, _ in of_prompts])
    for k in validation.sizes_of_subsets(responses):
        if k < 2:
            continue
        for name, pairs in {
            "best": [validation.best_of_k(scores, k) for scores, _ in of_prompts],
            "worst": [validation.worst_of_k(scores, k) for scores, _ in of_prompts],
            "maj": [validation.majority_of_k(scores, named, k) for scores, named in of_prompts],
        }.items():
            found[f"{name}@{k}/mean"], found[f"{name}@{k}/std"] = np.mean(pairs, axis=0)
    assert set(found) == set(theirs)
    for name, number in found.items():
        np.testing.assert_allclose(number, theirs[name], rtol=1e-12, atol=1e-15, err_msg=name)

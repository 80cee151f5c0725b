"""A made-up training with verl's own functions: what they give is logged, what they were given is recorded."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, Run, open_run
from rl_doctor.collectors.verl_config import Model, describe

torch = pytest.importorskip("torch")
pytest.importorskip("verl")
with warnings.catch_warnings():  # of verl and of what it imports
    warnings.simplefilter("ignore")
    from verl.protocol import DataProto
    from verl.trainer.config.algorithm import RolloutCorrectionConfig
    from verl.trainer.ppo.core_algos import FixedKLController, agg_loss, compute_value_loss, get_policy_loss_fn, kl_penalty
    from verl.trainer.ppo.metric_utils import compute_data_metrics
    from verl.trainer.ppo.ray_trainer import apply_kl_penalty
    from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch
    from verl.utils.debug.metrics import calculate_debug_metrics
    from verl.utils.metric import AggregationType, Metric, reduce_metrics
    from verl.utils.py_functional import rename_dict
    from verl.utils.torch_functional import masked_mean
    from verl.workers.config import ActorConfig
    from verl.workers.config.actor import PolicyLossConfig

RANKS, MINI_BATCHES, MICRO_BATCHES, ROWS, STEPS = 2, 2, 2, 3, 3
SIZE = RANKS * MICRO_BATCHES * ROWS
PADDING, LIMIT = 2, 40

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """Settings that differ from verl's defaults, by section."""

    actor: Mapping[str, Any] = field(default_factory=dict)
    loss: Mapping[str, Any] = field(default_factory=dict)
    correction: Mapping[str, Any] | None = None
    penalty: str | None = None
    critic_agg: str = "token-mean"
    epochs: int = 2
    spread: float = 0.4

    def settings(self) -> dict[str, Any]:
        """verl's configuration as far as it matters."""
        actor = {
            "strategy": "fsdp", "rollout_n": 4, "ppo_mini_batch_size": SIZE // 4, "ppo_micro_batch_size_per_gpu": ROWS,
            "clip_ratio": 0.2, "clip_ratio_low": 0.15, "clip_ratio_high": 0.3, "clip_ratio_c": 3.0, "ppo_epochs": self.epochs,
            "loss_agg_mode": "token-mean", "use_kl_loss": True, "kl_loss_type": "low_var_kl", "kl_loss_coef": 0.01,
            "entropy_coeff": 0.01, "tau_pos": 1.0, "tau_neg": 1.05, "loss_scale_factor": None, **self.actor,
            "policy_loss": {"loss_mode": "vanilla", **self.loss},
        }  # fmt: skip
        return {
            "actor_rollout_ref": {"actor": actor, "rollout": {"n": 4, "response_length": LIMIT, "temperature": 1.0}},
            "critic": {"enable": True, "cliprange_value": 0.2, "loss_agg_mode": self.critic_agg, "ppo_epochs": self.epochs},
            "algorithm": {
                "adv_estimator": "gae", "use_kl_in_reward": self.penalty is not None, "kl_penalty": self.penalty or "kl",
                "rollout_correction": self.correction,
            },
            "trainer": {"use_v1": True}, "data": {"max_prompt_length": 30, "max_response_length": LIMIT},
        }  # fmt: skip


def train(case: Case, folder: Path, seed: int = 0) -> Run:
    """Go through the training and record it."""
    settings = case.settings()
    config = ActorConfig(**{**settings["actor_rollout_ref"]["actor"], "policy_loss": _policy_loss(case, settings)})
    infos = [describe(settings, Model(300), None, (0,), critic=critic) for critic in (False, True)]
    with Recorder(folder, infos[0]) as recorder, Recorder(folder / "critic", infos[1]) as critic:
        for step in range(1, STEPS + 1):
            batch = _batch(case, seed + step, step)
            metrics = _of_batch(case, config, batch, step)
            metrics |= _update_actor(case, config, batch, recorder, step, seed)
            metrics |= _update_critic(case, batch, critic, step, seed)
            recorder.log_metrics(step, metrics)
            recorder.end_step(step)
            critic.end_step(step)
    return open_run(folder)


def _policy_loss(case: Case, settings: Mapping[str, Any]) -> Any:
    loss = dict(settings["actor_rollout_ref"]["actor"]["policy_loss"])
    if case.correction and case.correction.get("bypass_mode"):
        loss["rollout_correction"] = RolloutCorrectionConfig(**case.correction)
    return PolicyLossConfig(**loss)


def _batch(case: Case, seed: int, step: int) -> Tensors:
    """Padded tensors of a whole batch, as the driver has them; the last rows only fill it."""
    random = np.random.default_rng(seed)
    size = MINI_BATCHES * SIZE
    lengths = random.integers(1, LIMIT - 5, size)
    lengths[[1, 7]] = 0
    lengths[-PADDING:] = 1
    width = int(lengths.max())
    inside = np.arange(width) < lengths[:, None]
    mask = inside & (random.random((size, width)) < 0.85)
    mask[-PADDING:] = False
    old = np.minimum(random.normal(-1.5, 1.2, (size, width)), -1e-4)
    rollout = np.minimum(old + random.normal(0, 0.1, (size, width)), 0.0)
    rollout[3] -= 1.0
    made = {
        "old_log_probs": old, "rollout_log_probs": rollout, "ref_log_prob": old + random.normal(0, 0.5, (size, width)),
        "advantages": np.where(random.random((size, width)) < 0.1, 0.0, random.normal(0, 1, (size, width))),
        "returns": random.normal(1, 2, (size, width)), "values": random.normal(1, 1.5, (size, width)),
        "entropy": random.random((size, width)),
    }  # fmt: skip
    if case.correction and case.correction.get("bypass_mode"):
        made["old_log_probs"] = made["rollout_log_probs"]
    batch = {name: torch.tensor(np.where(inside, values, 0.0), dtype=torch.float32) for name, values in made.items()}
    scores = torch.zeros(size, width)
    scores[torch.arange(size), torch.tensor(np.maximum(lengths - 1, 0))] = torch.tensor(random.normal(0, 1, size)).float()
    scores[-PADDING:] = 0.0
    prompts = torch.tensor(random.integers(3, 31, size))
    prompts[-PADDING:] = 127
    versions = step - 1 - torch.tensor(random.integers(0, 3, size))
    return {
        **batch, "response_mask": torch.tensor(mask), "loss_mask": torch.tensor(mask), "rm_scores": scores,
        "responses": torch.zeros(size, width), "prompts": torch.zeros(size, int(prompts.max())),
        "response_length": torch.tensor(lengths).float(), "prompt_length": prompts.float(),
        "turns": torch.tensor(random.integers(1, 6, size)), "version": versions,
        "oldest": versions - torch.arange(size) % 3,
        "is_padding": torch.arange(size) >= size - PADDING,
    }  # fmt: skip


def _of_batch(case: Case, config: ActorConfig, batch: Tensors, step: int) -> dict[str, Any]:
    """What the driver logs, in the order in which it computes it; it changes rewards, mask and weights of the batch."""
    metrics: dict[str, Any] = {}
    bypass = bool(case.correction and case.correction.get("bypass_mode"))
    data = DataProto.from_dict(tensors={k: v for k, v in batch.items() if k not in {"version", "oldest", "turns", "is_padding"}})
    if not bypass:
        entropy = agg_loss(
            loss_mat=data.batch["entropy"], loss_mask=data.batch["response_mask"], loss_agg_mode=config.loss_agg_mode,
            loss_scale_factor=config.loss_scale_factor,
        )  # fmt: skip
        metrics["actor/entropy"] = entropy.item()
        metrics |= calculate_debug_metrics(data)
    data.batch["token_level_scores"] = data.batch["token_level_rewards"] = data.batch["rm_scores"]
    if case.penalty is not None:
        data, penalty = apply_kl_penalty(data, kl_ctrl=FixedKLController(kl_coef=0.1), kl_penalty=case.penalty)
        metrics |= penalty
    if case.correction is not None and not bypass:
        data, corrected = compute_rollout_correction_and_add_to_batch(data, case.correction)
        metrics |= corrected
    batch["response_mask"] = data.batch["response_mask"].bool()
    batch["token_level_rewards"] = data.batch["token_level_rewards"]
    if "rollout_is_weights" in data.batch:
        batch["rollout_is_weights"] = data.batch["rollout_is_weights"]
    real = ~batch["is_padding"].numpy()
    own = data.select_idxs(real)
    own.non_tensor_batch["__num_turns__"] = batch["turns"].numpy()[real].astype(np.int32)
    metrics |= compute_data_metrics(own, use_critic=True)
    newest, oldest = (batch[name].numpy()[real] for name in ("version", "oldest"))
    turns = batch["turns"].numpy()[real]
    for name, values in (
        ("training/off_policy/trajectory_spans", newest - oldest + 1),
        ("training/off_policy/trajectory_staleness", (step - 1) - newest),
        ("training/off_policy/trajectory_staleness_worst", (step - 1) - oldest),
        ("training/num_turns", turns),
    ):
        metrics |= {f"{name}/mean": values.mean(), f"{name}/max": values.max(), f"{name}/min": values.min()}
    return metrics


def _micro_batches(case: Case, seed: int) -> Iterator[tuple[int, int, list[list[np.ndarray]]]]:
    """Rows of each mini-batch by rank and micro-batch; the first one of the last mini-batch has no token that is trained on."""
    random = np.random.default_rng(seed + 1000)
    for epoch in range(case.epochs):
        order = random.permutation(MINI_BATCHES * SIZE)
        for mini, rows in enumerate(order.reshape(MINI_BATCHES, RANKS, MICRO_BATCHES, ROWS)):
            yield epoch, mini, [list(of_rank) for of_rank in rows]


def _update_actor(case: Case, config: ActorConfig, batch: Tensors, recorder: Recorder, step: int, seed: int) -> dict[str, Any]:
    gathered: dict[str, list[Any]] = {}
    random = np.random.default_rng(seed + step + 77)
    for epoch, mini, ranks in _micro_batches(case, seed + step):
        everyone = np.concatenate([rows for of_rank in ranks for rows in of_rank])
        tokens = int(batch["loss_mask"][everyone].sum())
        per_rank = []
        for rank, micros in enumerate(ranks):
            metrics: dict[str, Metric] = {}
            for micro, rows in enumerate(micros):
                part = _cut(batch, rows)
                noise = random.normal(0, case.spread, part["old_log_probs"].shape)
                noise[random.random(noise.shape) < 0.02] *= 60 * case.spread
                new = torch.where(part["inside"], part["old_log_probs"] + torch.tensor(noise).float(), 0.0).clamp(max=0.0)
                entropy = torch.tensor(random.random(noise.shape)).float()
                for name, value in _loss(config, part, new, entropy, tokens).items():
                    metrics.setdefault(name, value.init_list()).append(value)
                recorder.log_batch(
                    **_recorded(part, rows, (step, epoch, mini, micro, rank), tokens, config.loss_scale_factor),
                    logprob=new, entropy=entropy, old_logprob=part["old_log_probs"], ref_logprob=part["ref_log_prob"],
                    rollout_logprob=part["rollout_log_probs"], advantage=part["advantages"], old_entropy=part["entropy"],
                    is_weight=part.get("rollout_is_weights"),
                )  # fmt: skip
            per_rank.append(metrics)
        for name in per_rank[0]:
            gathered.setdefault(name, []).append(Metric.aggregate_dp([metrics[name] for metrics in per_rank]))
    return dict(reduce_metrics(rename_dict(gathered, "actor/")))


def _loss(config: ActorConfig, part: Tensors, new: Any, entropy: Any, tokens: int) -> dict[str, Metric]:
    """What ``workers.utils.losses.ppo_loss`` does after it has padded its tensors."""
    config.global_batch_info.update(
        dp_size=RANKS, batch_num_tokens=tokens, global_batch_size=SIZE, loss_scale_factor=config.loss_scale_factor
    )
    mask = part["response_mask"]
    loss, own = get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=part["old_log_probs"], log_prob=new, advantages=part["advantages"], response_mask=mask,
        loss_agg_mode=config.loss_agg_mode, config=config, rollout_is_weights=part.get("rollout_is_weights"),
    )  # fmt: skip
    aggregation = {"loss_mask": mask, "loss_agg_mode": config.loss_agg_mode, **config.global_batch_info}
    penalty = kl_penalty(logprob=new, ref_logprob=part["ref_log_prob"], kl_penalty=config.kl_loss_type)
    entropy_loss, kl_loss = agg_loss(loss_mat=entropy, **aggregation), agg_loss(loss_mat=penalty, **aggregation)
    whole = loss - config.entropy_coeff * entropy_loss + config.kl_loss_coef * kl_loss
    return {
        **Metric.from_dict(own, aggregation=AggregationType.MEAN),
        "loss": Metric(value=whole, aggregation=AggregationType.SUM),
        "actor/pg_loss": Metric(value=loss, aggregation=AggregationType.SUM),
        "actor/entropy_loss": Metric(value=entropy_loss, aggregation=AggregationType.SUM),
        "kl_loss": Metric(value=kl_loss, aggregation=AggregationType.SUM),
    }


def _update_critic(case: Case, batch: Tensors, critic: Recorder, step: int, seed: int) -> dict[str, Any]:
    gathered: dict[str, list[Any]] = {}
    random = np.random.default_rng(seed + step + 99)
    for epoch, mini, ranks in _micro_batches(case, seed + step + 5):
        everyone = np.concatenate([rows for of_rank in ranks for rows in of_rank])
        tokens = int(batch["loss_mask"][everyone].sum())
        losses: list[Metric] = []
        flat: dict[str, list[float]] = {"critic/vf_clipfrac": [], "critic/vpred_mean": []}
        for rank, micros in enumerate(ranks):
            own = Metric(aggregation=AggregationType.SUM)
            for micro, rows in enumerate(micros):
                part = _cut(batch, rows)
                value = part["values"] + torch.tensor(random.normal(0, 0.3, part["values"].shape)).float()
                value = torch.where(part["inside"], value, 0.0)
                loss, clipped = compute_value_loss(
                    vpreds=value, values=part["values"], returns=part["returns"], response_mask=part["response_mask"],
                    cliprange_value=0.2, loss_agg_mode=case.critic_agg, dp_size=RANKS, batch_num_tokens=tokens,
                    global_batch_size=SIZE, loss_scale_factor=None,
                )  # fmt: skip
                own.append(loss)
                flat["critic/vf_clipfrac"].append(clipped.item())
                flat["critic/vpred_mean"].append(masked_mean(value, part["response_mask"]).item())
                critic.log_batch(**_recorded(part, rows, (step, epoch, mini, micro, rank), tokens, None), value=value)
            losses.append(own)
        gathered.setdefault("critic/vf_loss", []).append(Metric.aggregate_dp(losses))
        for name, values in flat.items():
            gathered.setdefault(name, []).append(values)
    reduced = reduce_metrics(
        {name: values if name == "critic/vf_loss" else list(chain.from_iterable(values)) for name, values in gathered.items()}
    )
    return dict(reduced)


def _cut(batch: Tensors, rows: np.ndarray) -> Tensors:
    """Rows of a batch, padded to the longest of them."""
    width = max(int(batch["response_length"][rows].max()), 1)
    full = batch["responses"].shape[1]
    part = {name: values[rows] for name, values in batch.items()}
    part = {name: values[:, :width] if values.dim() == 2 and values.shape[1] == full else values for name, values in part.items()}
    return {**part, "inside": torch.arange(width) < part["response_length"][:, None]}


def _recorded(
    part: Tensors, rows: np.ndarray, place: tuple[int, int, int, int, int], tokens: int, factor: float | None
) -> dict[str, Any]:
    """Columns of a micro-batch that are the same in every kind of pass."""
    names = ("step", "epoch", "minibatch", "microbatch", "rank")
    return {
        **dict(zip(names, place, strict=True)), "uid": [f"{place[0]}-{row}" for row in rows],
        "response_mask": part["response_mask"], "loss_mask": part["loss_mask"], "attention_mask": part["inside"],
        "returns": part["returns"], "old_value": part["values"], "reward": part["token_level_rewards"].double().sum(-1),
        "score": part["rm_scores"].double().sum(-1), "response_length": part["response_length"].int(),
        "prompt_length": part["prompt_length"].int(), "turns": part["turns"], "weight_version": part["version"],
        "first_weight_version": part["oldest"],
        "is_padding": part["is_padding"], "padded_width": part["inside"].shape[1], "batch_num_tokens": tokens,
        "global_batch_size": SIZE, "loss_scale_factor": factor, "grad_accumulation": MICRO_BATCHES,
    }  # fmt: skip

"""What older versions of verl logged for seeded tensors: run by hand, with a version's wheel unpacked, to make the golden files.

``python -m tests.trainers.verl.older_versions FOLDER VERSION``, in the environment of verl's tests. The actor's and the critic's
own updates run, with the model's outputs replaced by given numbers and without an optimizer, on one rank after the other; what
they return is joined and reduced as the driver does it, with the driver's own functions.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
import types
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parents[2] / "golden" / "trainers"
SEED, RANKS, SIZE, MICRO, WIDTH, EPOCHS = 20261130, 2, 24, 3, 10, 2
OF_RANK = SIZE // RANKS
OF_BATCH = ("old_logprob", "rollout_logprob", "ref_logprob", "advantage", "return", "old_value", "old_entropy")
OF_PASS = ("logprob", "entropy", "value")
NAMES = {
    "old_logprob": "old_log_probs", "rollout_logprob": "rollout_log_probs", "ref_logprob": "ref_log_prob",
    "advantage": "advantages", "return": "returns", "old_value": "values",
}  # fmt: skip
ACTOR: dict[str, Any] = {
    "ppo_mini_batch_size": OF_RANK // 2, "ppo_micro_batch_size_per_gpu": MICRO, "ppo_epochs": EPOCHS, "clip_ratio": 0.2,
    "clip_ratio_low": 0.15, "clip_ratio_high": 0.3, "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean", "use_kl_loss": True,
    "kl_loss_type": "low_var_kl", "kl_loss_coef": 0.01, "entropy_coeff": 0.0, "use_dynamic_bsz": False, "tau_pos": 1.0,
    "tau_neg": 1.05,
}  # fmt: skip
CRITIC = {"cliprange_value": 0.2, "loss_agg_mode": "token-mean"}
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
SINGLE = {"ppo_mini_batch_size": OF_RANK, "ppo_epochs": 1}
LOSSES = {
    "0.5": ("gpg", "clip_cov", "kl_cov"),
    "0.6": ("gspo", "gpg", "clip_cov", "kl_cov", "geo_mean"),
    "0.7": ("gspo", "gpg", "clip_cov", "kl_cov", "geo_mean", "dppo_tv", "dppo_kl", "sapo", "cispo"),
}
TOKEN = {"rollout_is": "token", "rollout_is_threshold": 1.1, "rollout_is_batch_normalize": True}
SEQUENCE = {"rollout_is": "sequence", "rollout_is_threshold": 1.5, "rollout_is_batch_normalize": True}


def scenarios(minor: str) -> dict[str, dict[str, Any]]:
    """Settings that differ from the first by name: of the actor, its loss, the correction, and which rows have a token."""
    found: dict[str, dict[str, Any]] = {mode: {"actor": {"loss_agg_mode": mode}} for mode in MODES}
    found |= {f"{mode}, none empty": {"actor": {"loss_agg_mode": mode}, "empty": False} for mode in MODES}
    found |= {loss: {"loss": loss} for loss in LOSSES[minor]}
    found["one mini-batch"] = {"actor": SINGLE}
    found["one mini-batch, entropy"] = {"actor": SINGLE | {"entropy_coeff": 0.02}}
    found["micro-batches by tokens"] = {
        "actor": {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 28, "ppo_mini_batch_size": OF_RANK}
    }
    if minor != "0.5":
        found |= {"token weights": {"correction": TOKEN}, "sequence weights": {"correction": SEQUENCE}}
    if minor == "0.7":
        rejected = {"rollout_rs": "token_k1", "rollout_rs_threshold": "0.9_1.15"}
        found["entropy"] = {"actor": {"calculate_entropy": True}}
        found["rejected tokens"] = {"correction": TOKEN | rejected}
        found["bypass"] = {"correction": {"bypass_mode": True, "loss_type": "ppo_clip", "rollout_is": "token"}}
        found["bypass, reinforce"] = {"correction": {"bypass_mode": True, "loss_type": "reinforce", "rollout_is": None}}
    return found


def made() -> dict[str, Any]:
    """Ragged rows in float32: one of length 0, one with all tokens masked, single tokens, extreme ratios, ties at an edge."""
    random = np.random.default_rng(SEED)
    lengths = random.integers(2, WIDTH + 1, SIZE)
    lengths[[4]], lengths[[9, 17]] = 0, 1
    rows: list[dict[str, Any]] = []
    for at, length in enumerate(lengths.tolist()):
        old = np.minimum(random.normal(-1.5, 1.2, length), -1e-4).astype(np.float32)
        row: dict[str, Any] = {
            "response_length": length,
            "prompt_length": int(random.integers(2, 8)),
            "turns": int(random.integers(1, 4)),
        }
        row["response_mask"] = [bool(kept) and at != 13 for kept in random.random(length) < 0.8]
        row["score"] = float(np.float32(random.normal()))
        row["old_logprob"] = old
        row["rollout_logprob"] = np.minimum(old + random.normal(0, 0.1, length), 0.0)
        row["ref_logprob"] = old + random.normal(0, 0.5, length)
        row["advantage"] = np.where(random.random(length) < 0.1, 0.0, random.normal(0, 1, length))
        row |= {
            "return": random.normal(1, 2, length),
            "old_value": random.normal(1, 1.5, length),
            "old_entropy": random.random(length),
        }
        for epoch in range(EPOCHS):
            noise = random.normal(0, 0.4, length)
            noise[random.random(length) < 0.05] *= 40
            if at % 3 == 0:
                noise[:1] = np.log(np.float32(1.3))
            row[f"logprob {epoch}"] = np.minimum(old + noise, 0.0)
            row[f"entropy {epoch}"] = random.random(length)
            row[f"value {epoch}"] = row["old_value"] + random.normal(0, 0.3, length)
        rows.append({name: np.float32(v).tolist() if isinstance(v, np.ndarray) else v for name, v in row.items()})
    return {name: [row[name] for row in rows] for name in rows[0]}


def padded(columns: Mapping[str, Any], name: str, dtype: str = "float32") -> Any:
    """Tokens of all rows as a tensor of the configured width."""
    torch = importlib.import_module("torch")
    values = [list(row) + [0] * (WIDTH - len(row)) for row in columns[name]]
    return torch.tensor(values, dtype=getattr(torch, dtype))


class Replay:
    """Stands for a model: gives the numbers of each row and pass, and notes which rows were in which micro-batch."""

    def __init__(self, columns: Mapping[str, Any], rank: int, config: Mapping[str, Any]) -> None:
        self.columns, self.rank, self.config = columns, rank, config
        self.seen: Counter[int] = Counter()
        self.places: list[tuple[int, int, int, int, int]] = []
        self.micro: Counter[tuple[int, int]] = Counter()

    def __call__(self, rows: Any, *names: str) -> list[Any]:
        """Tensors of the columns ``names`` at ``rows``, for the pass in which they come up now."""
        torch = importlib.import_module("torch")
        indices = rows.tolist()
        epoch = self.seen[indices[0]]
        mini = (indices[0] - self.rank * OF_RANK) // self.config["ppo_mini_batch_size"]
        self.seen.update(indices)
        self.places += [(self.rank, epoch, mini, self.micro[epoch, mini], row) for row in indices]
        self.micro[epoch, mini] += 1
        return [padded(self.columns, f"{name} {epoch}")[indices].clone().requires_grad_() if torch else None for name in names]

    def train(self) -> None:
        """A model has this."""

    def zero_grad(self) -> None:
        """An optimizer has this."""


def run(version: str) -> dict[str, Any]:
    """Every scenario, with what was logged in it."""
    minor = ".".join(version.split(".")[:2])
    columns = made()
    return {name: scenario(minor, given, columns) for name, given in scenarios(minor).items()}


def scenario(minor: str, given: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """One training step."""
    torch = importlib.import_module("torch")
    protocol = importlib.import_module("verl.protocol")
    metric_utils = importlib.import_module("verl.trainer.ppo.metric_utils")
    reduce_metrics = importlib.import_module("verl.utils.metric").reduce_metrics
    tokens = [any(mask) for mask in columns["response_mask"]]
    keep = [at if given.get("empty", True) or tokens[at] else at + 1 for at in range(SIZE)]
    part = {name: [values[at] for at in keep] for name, values in columns.items()}
    actor = {**ACTOR, **given.get("actor", {})}
    tensors = {NAMES[name]: padded(part, name) for name in OF_BATCH if name in NAMES}
    attention = torch.arange(WIDTH) < torch.tensor(part["response_length"])[:, None]
    prompts = torch.arange(8).flip(0) < torch.tensor(part["prompt_length"])[:, None]
    scores = torch.zeros(SIZE, WIDTH)
    scores[torch.arange(SIZE), (torch.tensor(part["response_length"]) - 1).clamp(min=0)] = torch.tensor(part["score"])
    tensors |= {
        "response_mask": padded(part, "response_mask", "int64"), "responses": torch.zeros(SIZE, WIDTH, dtype=torch.long),
        "input_ids": torch.arange(SIZE)[:, None].repeat(1, WIDTH + 8),
        "attention_mask": torch.cat([prompts, attention], 1).long(),
        "position_ids": torch.zeros(SIZE, WIDTH + 8, dtype=torch.long),
        "token_level_scores": scores, "token_level_rewards": scores,
        "prompts": torch.zeros(SIZE, 8, dtype=torch.long),
    }  # fmt: skip
    data = protocol.DataProto.from_dict(tensors=tensors, meta_info={"temperature": 1.0})
    data.non_tensor_batch["__num_turns__"] = np.array(part["turns"], np.int32)
    correction = given.get("correction")
    bypass = bool(correction and correction.get("bypass_mode"))
    if minor == "0.5" or not correction:
        data.batch.pop("rollout_log_probs")
    if bypass:
        data.batch["old_log_probs"] = data.batch["rollout_log_probs"]
    metrics = {} if bypass else driver(actor, data, padded(part, "old_entropy"))
    if correction and not bypass:
        helper = importlib.import_module("verl.trainer.ppo.rollout_corr_helper")
        data, corrected = helper.compute_rollout_correction_and_add_to_batch(data, types.SimpleNamespace(get=correction.get))
        metrics |= corrected
    replays = {}
    for role in ("critic", "actor"):
        outputs = []
        for rank in range(RANKS):
            replays[role, rank] = Replay(part, rank, actor)
            rows = data.select_idxs(np.arange(rank * OF_RANK, (rank + 1) * OF_RANK))
            worker = (
                actor_of(minor, actor, given, replays[role, rank]) if role == "actor" else critic_of(actor, replays[role, rank])
            )
            logged = worker.update_policy(rows) if role == "actor" else worker.update_critic(rows)
            outputs.append(protocol.DataProto(meta_info={"metrics": logged}))
        metrics |= reduce_metrics(protocol.DataProto.concat(outputs).meta_info["metrics"])
    metrics |= metric_utils.compute_data_metrics(data, use_critic=True)
    places = [replays["actor", rank].places for rank in range(RANKS)]
    assert places == [replays["critic", rank].places for rank in range(RANKS)]
    found: dict[str, Any] = {
        "native": native(actor, given),
        "places": [[*place[:4], keep[place[4]]] for of in places for place in of],
    }
    if correction and not bypass:
        for name, of in (("response_mask", "response_mask"), ("is_weight", "rollout_is_weights")):
            found[name] = [row[:length] for row, length in zip(data.batch[of].tolist(), part["response_length"], strict=True)]
    dropped = ("grad_norm", "perf/")
    found["logged"] = {name: float(value) for name, value in metrics.items() if not any(word in name for word in dropped)}
    return found


def native(actor: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """verl's configuration as far as it differs."""
    tree: dict[str, Any] = {"actor_rollout_ref": {"actor": {**actor, "policy_loss": {"loss_mode": given.get("loss", "vanilla")}}}}
    tree["critic"] = {**CRITIC, "loss_agg_mode": actor["loss_agg_mode"]}
    tree["algorithm"] = {"rollout_correction": given.get("correction"), "use_kl_in_reward": True, "kl_penalty": "kl"}
    return tree


def driver(actor: Mapping[str, Any], data: Any, entropy: Any) -> dict[str, Any]:
    """What the driver logs of the old policy's pass."""
    algorithms = importlib.import_module("verl.trainer.ppo.core_algos")
    found = {"actor/entropy": algorithms.agg_loss(entropy, data.batch["response_mask"], actor["loss_agg_mode"]).item()}
    trainer = importlib.import_module("verl.trainer.ppo.ray_trainer")
    _, penalty = trainer.apply_kl_penalty(data, algorithms.FixedKLController(kl_coef=0.1), "kl")
    data.batch["token_level_rewards"] = data.batch["token_level_scores"]
    found |= penalty
    if "rollout_log_probs" in data.batch:
        found |= importlib.import_module("verl.utils.debug.metrics").calculate_debug_metrics(data)
    return found


def actor_of(minor: str, actor: Mapping[str, Any], given: Mapping[str, Any], replay: Replay) -> Any:
    """The actor whose model is ``replay``."""
    torch, module = importlib.import_module("torch"), on_a_cpu("verl.workers.actor.dp_actor")

    class Actor(module.DataParallelPPOActor):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.config, self.actor_module, self.actor_optimizer = config_of(minor, actor, given), replay, replay
            self.ulysses_sequence_parallel_size, self.scaler, self.use_prefix_grouper = 1, None, False

        def _forward_micro_batch(self, micro_batch: Any, **_: Any) -> Any:
            logprob, entropy = replay(micro_batch["input_ids"][:, 0], "logprob", "entropy")
            return {"log_probs": logprob, "entropys": entropy} if minor == "0.7" else (entropy, logprob)

        def _optimizer_step(self) -> Any:
            return torch.tensor(1.0)

    return Actor()


def critic_of(actor: Mapping[str, Any], replay: Replay) -> Any:
    """The critic whose model is ``replay``."""
    torch, module = importlib.import_module("torch"), on_a_cpu("verl.workers.critic.dp_critic")

    class Critic(module.DataParallelPPOCritic):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            own = {**actor, **CRITIC, "loss_agg_mode": actor["loss_agg_mode"]}
            self.config, self.critic_module, self.critic_optimizer = types.SimpleNamespace(**own), replay, replay
            self.ulysses_sequence_parallel_size = 1

        def _forward_micro_batch(self, micro_batch: Any) -> Any:
            return replay(micro_batch["input_ids"][:, 0], "value")[0]

        def _optimizer_step(self) -> Any:
            return torch.tensor(1.0)

    return Critic()


def on_a_cpu(name: str) -> Any:
    """A module of the workers, without what asks an accelerator."""
    module: Any = importlib.import_module(name)
    performance: Any = importlib.import_module("verl.utils.profiler.performance")
    module.get_device_id = lambda: "cpu"
    performance._get_current_mem_info = lambda *_, **__: ("0", "0", "0", "0")
    return module


def config_of(minor: str, actor: Mapping[str, Any], given: Mapping[str, Any]) -> Any:
    """The actor's configuration, of the type that the version has for it."""
    loss = {
        "loss_mode": given.get("loss", "vanilla"),
        "clip_cov_ratio": 0.1,
        "clip_cov_lb": 0.1,
        "clip_cov_ub": 5.0,
        "kl_cov_ratio": 0.1,
        "ppo_kl_coef": 1.0,
    }
    if minor == "0.5":
        return importlib.import_module("omegaconf").OmegaConf.create({**actor, "policy_loss": loss})
    config = importlib.import_module("verl.workers.config")
    correction = given.get("correction")
    if minor == "0.7" and correction and correction.get("bypass_mode"):
        algorithm = importlib.import_module("verl.trainer.config.algorithm")
        loss |= {"loss_mode": "bypass_mode", "rollout_correction": algorithm.RolloutCorrectionConfig(**correction)}
    known = {item.name for item in dataclasses.fields(config.ActorConfig)}
    own = {name: value for name, value in actor.items() if name in known}
    policy = importlib.import_module("verl.workers.config.actor").PolicyLossConfig(**loss)
    return config.ActorConfig(strategy="fsdp", rollout_n=4, policy_loss=policy, **own)


def main(folder: str, version: str) -> None:
    """Write the golden file of a version."""
    warnings.simplefilter("ignore")
    sys.path.insert(0, folder)
    transformers: Any = importlib.import_module("transformers")
    if not hasattr(transformers, "AutoModelForVision2Seq"):  # a name that newer ones dropped, and only the workers' set-up needs
        transformers.AutoModelForVision2Seq = transformers.AutoModelForImageTextToText
    verl, torch = importlib.import_module("verl"), importlib.import_module("torch")
    assert verl.__version__ == version, (verl.__version__, verl.__file__)
    torch.manual_seed(SEED)
    provenance = {
        "package": f"verl {version}, the wheel on PyPI", "torch": torch.__version__, "seed": SEED,
        "files": {
            "verl/workers/actor/dp_actor.py": ["DataParallelPPOActor.update_policy"],
            "verl/workers/critic/dp_critic.py": ["DataParallelPPOCritic.update_critic"],
            "verl/protocol.py": ["DataProto.concat"], "verl/utils/metric/utils.py": ["reduce_metrics"],
            "verl/trainer/ppo/metric_utils.py": ["compute_data_metrics"], "verl/trainer/ppo/ray_trainer.py": ["apply_kl_penalty"],
            "verl/trainer/ppo/core_algos.py": ["agg_loss", "every policy loss", "compute_value_loss", "kl_penalty"],
            "verl/trainer/ppo/rollout_corr_helper.py": ["compute_rollout_correction_and_add_to_batch"],
        },
        "how": "tests/trainers/verl/older_versions.py: one step on two ranks, one after the other, with the model's outputs "
        "replaced by the tensors of verl_rows.json and without an optimizer.",
    }  # fmt: skip
    rows = HERE / "verl_rows.json"
    rows.write_text(json.dumps({"seed": SEED, "columns": made()}, separators=(",", ":")) + "\n", "utf-8")
    made_of = {"provenance": provenance, "scenarios": run(version)}
    (HERE / f"verl_{version}.json").write_text(json.dumps(made_of, separators=(",", ":")) + "\n", "utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])

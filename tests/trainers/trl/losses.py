"""TRL's own ``_compute_loss`` on seeded tensors, on one rank and on two: prints the tensors, and what is returned and logged.

The ranks are threads that meet where the trainer gathers or reduces. An object with its settings stands in for a trainer.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

Methods = Mapping[str, Callable[..., Any]]
Metrics = dict[str, float]
RANKS, STEPS, ROWS, WIDTH = 2, 2, 5, 9
EPSILON = 0.2
TOKENS = ("logprob", "old_logprob", "ref_logprob", "rollout_logprob", "entropy", "is_weight")
DEFAULTS: dict[str, Any] = {
    "loss_type": "dapo", "importance_sampling_level": "token", "epsilon": EPSILON, "epsilon_high": None, "delta": None,
    "beta": 0.0, "use_bias_correction_kl": True, "max_completion_length": 11, "entropy_coef": 0.0, "top_entropy_quantile": 1.0,
    "use_adaptive_entropy": False, "off_policy_mask_threshold": None, "use_vllm": False,
    "vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "token_truncate",
    "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05,
    "vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0, "steps_per_generation": 4,
    "gradient_accumulation_steps": STEPS, "per_device_train_batch_size": ROWS, "num_iterations": 1,
    "multi_objective_aggregation": "sum_then_normalize", "mask_truncated_completions": False,
}  # fmt: skip
SEQUENCE = {"importance_sampling_level": "sequence"}
CORRECTED = {"use_vllm": True}
GRPO: dict[str, dict[str, Any]] = {
    **{kind: {"loss_type": kind, "beta": 0.1} for kind in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo", "luspo", "vespo")},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.3},
    **{f"{kind}_sequence": {"loss_type": kind, **SEQUENCE} for kind in ("grpo", "bnpo", "dr_grpo", "dapo", "sapo")},
    "luspo_sequence": {"loss_type": "luspo", **SEQUENCE, "epsilon": 0.05},
    "cispo_sequence": {"loss_type": "cispo", "epsilon_high": 1.1, **SEQUENCE},
    "sequence_penalised": {"loss_type": "grpo", **SEQUENCE, "beta": 0.2},
    "delta": {"loss_type": "bnpo", "delta": 1.5, "epsilon_high": 0.4},
    "delta_within": {"loss_type": "grpo", "delta": 1.1},
    "plain_kl": {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False},
    "entropy_bonus": {"loss_type": "bnpo", "entropy_coef": 0.02, "beta": 0.1},
    "entropy_bonus_dapo": {"entropy_coef": 0.02},
    "off_policy": {"loss_type": "grpo", "off_policy_mask_threshold": 0.05},
    "off_policy_engine": {**CORRECTED, "off_policy_mask_threshold": 0.02, "beta": 0.1},
    "corrected": {**CORRECTED, "beta": 0.1},
    "vespo_corrected": {**CORRECTED, "loss_type": "vespo"},
    "high_entropy": {"loss_type": "bnpo", "top_entropy_quantile": 0.4, "entropy_coef": 0.01},
}  # fmt: skip


def tensors(torch: Any) -> list[list[dict[str, Any]]]:
    """Inputs by micro-batch and rank: ragged masks with gaps, rows of no and of one token, extreme ratios, ties, bfloat16."""
    generator = torch.Generator().manual_seed(7)

    def normal(scale: float) -> Any:
        return scale * torch.randn(ROWS, WIDTH, generator=generator)

    made = []
    for step in range(STEPS):
        ranks = []
        for rank in range(RANKS):
            old = -0.2 - normal(1.5).abs()
            new, reference, rollout = old + normal(0.25), old + normal(0.5), old + normal(0.1)
            length = torch.randint(2, WIDTH + 1, (ROWS,), generator=generator)
            length[0], length[1] = (0, 1) if rank else (1, WIDTH)
            mask = (torch.arange(WIDTH) < length[:, None]) & (torch.rand(ROWS, WIDTH, generator=generator) > 0.15)
            mask[1, 0] = True
            new[1, 0], new[2, 0], new[3, 0] = old[1, 0] + 9.0, old[2, 0] - 9.0, old[3, 0] + math.log(1.0 + EPSILON)
            new[4, 0] = old[4, 0] + math.log(1.0 - EPSILON)
            new[4], old[4], reference[4] = (part[4].bfloat16().float() for part in (new, old, reference))
            if step and rank:
                mask[:] = False
            advantage = torch.randn(ROWS, generator=generator)
            advantage[2] = 0.0 if step else advantage[2]
            ranks.append({
                "completion_mask": mask.long(), "advantages": advantage, "logprob": new, "old_per_token_logps": old,
                "ref_per_token_logps": reference, "sampling_per_token_logps": rollout, "entropy": normal(1.0).abs(),
                "importance_sampling_ratio": torch.where(mask, (old - rollout).exp().clamp(max=1.05), torch.ones_like(old)),
            })  # fmt: skip
        made.append(ranks)
    for part in (part for ranks in made for part in ranks):
        part |= {"prompt_ids": torch.ones(ROWS, 2).long(), "prompt_mask": torch.ones(ROWS, 2)}
        part["completion_ids"] = torch.ones(ROWS, WIDTH).long()
        part["old_logps"] = (part["old_per_token_logps"] * part["completion_mask"]).sum(1)
    return made


class Meeting:
    """What the ranks exchange."""

    def __init__(self, torch: Any, ranks: int) -> None:
        self._torch, self._barrier, self._given = torch, threading.Barrier(ranks, timeout=60), [None] * ranks

    def exchange(self, rank: int, value: Any) -> list[Any]:
        self._given[rank] = value
        self._barrier.wait()
        found: list[Any] = list(self._given)
        self._barrier.wait()
        return found

    def leave(self) -> None:
        """Let nobody wait any longer."""
        self._barrier.abort()

    def accelerator(self, rank: int) -> Any:
        """What ``_compute_loss`` uses of an accelerator."""

        def gather(value: Any) -> Any:
            return self._torch.cat([self._torch.atleast_1d(one) for one in self.exchange(rank, value)])

        def padded(value: Any, dim: int, pad_index: float) -> Any:
            most = max(one.shape[dim] for one in self.exchange(rank, value))
            return self._torch.nn.functional.pad(value, (0, most - value.shape[dim]), value=pad_index)

        return SimpleNamespace(
            gather=gather, gather_for_metrics=gather, pad_across_processes=padded, num_processes=len(self._given),
            reduce=lambda value, **_: sum(self.exchange(rank, value)), sync_gradients=False, process_index=rank,
        )  # fmt: skip


def stand_in(functions: Methods, settings: Mapping[str, Any], accelerator: Any, *, aux: bool) -> Any:
    """An object with the settings and the methods that ``_compute_loss`` uses of a trainer."""
    high = settings["epsilon"] if settings["epsilon_high"] is None else settings["epsilon_high"]
    made = SimpleNamespace(
        **settings, args=SimpleNamespace(**settings), epsilon_low=settings["epsilon"], accelerator=accelerator, tools=None,
        model=SimpleNamespace(training=True), _metrics={"train": defaultdict(list)}, current_gradient_accumulation_steps=STEPS,
        aux_loss_enabled=False, _entropy_bonus_enabled=bool(settings["entropy_coef"]), processing_class=None,
        control=SimpleNamespace(should_evaluate=False), ref_model="reference",
    )  # fmt: skip
    made.epsilon_high = high
    for name, function in functions.items():
        setattr(made, name, function if name in STATIC else function.__get__(made))
    current: dict[str, Any] = {}

    def scored(*_: Any, **__: Any) -> Any:
        return (current["logprob"], current["entropy"], *((None,) if aux else ()))

    made.current, made._get_per_token_logps_and_entropies = current, scored
    made._get_per_token_logps = lambda model, *_: current["logprob" if model is None else "ref_per_token_logps"]
    return made


STATIC = ("get_off_policy_mask", "get_gamma_weights")


def run(torch: Any, functions: Methods, settings: Mapping[str, Any], given: Any, ranks: int, *, aux: bool = True) -> Metrics:
    """What is logged of one step on the first ``ranks`` ranks: the means over micro-batches, and the loss."""
    meeting, whole = Meeting(torch, ranks), {**DEFAULTS, **settings}
    trainers = [stand_in(functions, whole, meeting.accelerator(rank), aux=aux) for rank in range(ranks)]
    losses: list[list[float]] = [[] for _ in range(ranks)]
    failed: list[BaseException] = []
    hidden = ["logprob", "entropy", *([] if whole["use_vllm"] else ["importance_sampling_ratio", "sampling_per_token_logps"])]
    tokens = sum(part["completion_mask"].sum() for of_ranks in given for part in of_ranks[:ranks])

    def train(rank: int) -> None:
        try:
            for inputs in given:
                trainers[rank].current |= inputs[rank]
                own = {name: value for name, value in inputs[rank].items() if name not in hidden}
                own["num_items_in_batch"] = 2 * tokens  # the generation batch is twice what one step trains on
                losses[rank].append(trainers[rank]._compute_loss(None, own).item())
        except BaseException as error:  # noqa: BLE001 - raised again by the main thread
            failed.append(error)
            meeting.leave()

    threads = [threading.Thread(target=train, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]
    found = {name: sum(values) / len(values) for name, values in trainers[0]._metrics["train"].items() if values}
    return {**found, "loss": sum(sum(own) for own in losses) / ranks}


def plain(given: Any) -> list[list[dict[str, Any]]]:
    """The tensors as lists, by canonical name."""
    names = {
        "completion_mask": "response_mask", "advantages": "advantage", "logprob": "logprob", "old_per_token_logps": "old_logprob",
        "ref_per_token_logps": "ref_logprob", "sampling_per_token_logps": "rollout_logprob", "entropy": "entropy",
        "importance_sampling_ratio": "is_weight",
    }  # fmt: skip
    return [[{ours: part[theirs].tolist() for theirs, ours in names.items()} for part in ranks] for ranks in given]


def main() -> None:
    import torch
    from trl import GRPOTrainer, RLOOTrainer

    given = tensors(torch)
    names = ("_compute_loss", "get_high_entropy_mask", *STATIC)
    grpo = {name: getattr(GRPOTrainer, name) for name in names}
    rloo = {"_compute_loss": RLOOTrainer._compute_loss}
    found: dict[str, Any] = {}
    for ranks in (1, 2):
        for name, settings in GRPO.items():
            found[f"{name}-{ranks}"] = run(torch, grpo, settings, given, ranks)
        found[f"rloo-{ranks}"] = run(torch, rloo, {}, given, ranks)
    sys.stdout.write("RESULT " + json.dumps({"tensors": plain(given), "found": found}) + "\n")


if __name__ == "__main__":
    main()

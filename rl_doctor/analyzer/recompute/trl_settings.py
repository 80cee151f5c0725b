"""What of TRL's configuration its logged numbers depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rl_doctor.schema import RunInfo


@dataclass(frozen=True, slots=True)
class Settings:
    """Fields of ``GRPOConfig`` or ``RLOOConfig``, under their native names where they have one.

    ``ranks`` is the world size, ``low`` and ``high`` the ends of the ratio's clip range (1 away from ``epsilon``; the cap
    itself for CISPO), ``reward_weights`` by component in the order of the reward functions.
    """

    ranks: int
    loss_type: str
    per_sequence_ratio: bool
    low: float
    high: float
    delta: float | None
    beta: float
    bias_corrected_kl: bool
    entropy_coef: float
    accumulation: int
    steps_per_generation: int
    max_completion_length: int | None
    scale_rewards: str
    aggregation: str
    reward_weights: Mapping[str, float] | None
    sapo_temperatures: tuple[float, float]
    corrects_sampling: bool
    sampling_mode: str
    plain_loss: bool
    microbatch_rows: int | None
    generation_rows: int | None

    @classmethod
    def of(cls, info: RunInfo) -> Settings | None:
        """Read the settings; None where the native configuration was not recorded."""
        native = info.config.native
        if not native or "epsilon" not in native or "beta" not in native:
            return None
        ranks = info.world_size or 1
        epsilon = float(native["epsilon"])
        epsilon_high = epsilon if native.get("epsilon_high") is None else float(native["epsilon_high"])
        loss_type = str(native.get("loss_type", ""))
        per_device = native.get("per_device_train_batch_size")
        accumulation = int(native.get("gradient_accumulation_steps") or 1)
        steps_per_generation = int(native.get("steps_per_generation") or accumulation)
        rows = None if per_device is None else int(per_device) * ranks
        return cls(
            ranks=ranks,
            loss_type=loss_type,
            per_sequence_ratio=native.get("importance_sampling_level") == "sequence",
            low=1.0 - epsilon,
            high=epsilon_high if loss_type == "cispo" else 1.0 + epsilon_high,
            delta=native.get("delta"),
            beta=float(native["beta"]),
            bias_corrected_kl=bool(native.get("use_bias_correction_kl", False)),
            entropy_coef=float(native.get("entropy_coef") or 0.0),
            accumulation=accumulation,
            steps_per_generation=steps_per_generation,
            max_completion_length=native.get("max_completion_length"),
            scale_rewards=_scaling(native.get("scale_rewards", "group")),
            aggregation=str(native.get("multi_objective_aggregation", "sum_then_normalize")),
            reward_weights=info.config.reward_weights,
            sapo_temperatures=(
                float(native.get("sapo_temperature_pos") or 1.0),
                float(native.get("sapo_temperature_neg") or 1.0),
            ),
            corrects_sampling=bool(native.get("use_vllm")) and bool(native.get("vllm_importance_sampling_correction", True)),
            sampling_mode=str(native.get("vllm_importance_sampling_mode", "")),
            plain_loss=_plain_loss(native),
            microbatch_rows=rows,
            generation_rows=None if rows is None else rows * steps_per_generation,
        )


def _scaling(value: Any) -> str:
    return {True: "group", False: "none"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _plain_loss(native: Mapping[str, Any]) -> bool:
    """Whether the loss has none of the terms that cannot be recomputed from the recorded columns."""
    masked = native.get("off_policy_mask_threshold") is not None or float(native.get("top_entropy_quantile") or 1.0) < 1.0
    return not masked and not native.get("use_adaptive_entropy") and native.get("loss_type") != "vespo"

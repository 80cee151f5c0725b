"""OpenRLHF's own functions on seeded tensors, printed with the tensors: its loss, its value loss, its KL estimates."""

from __future__ import annotations

import json
import math
import sys
from types import SimpleNamespace
from typing import Any

from tests.trainers.openrlhf import cpu

ROWS, WIDTH = 9, 11
GROUP = 3
LOSSES: dict[str, dict[str, Any]] = {
    "ppo": {},
    "dual": {"dual_clip": 1.5, "clip_eps_low": 0.1, "clip_eps_high": 0.3},
    "by_sequence": {"token_level_loss": False},
    "gspo": {"policy_loss_type": "gspo", "clip_eps_low": 0.03, "clip_eps_high": 0.04},
    "masked": {"is_correction_level": "token", "is_correction_threshold": [0.7, 1.4]},
    "clamped": {"is_correction_level": "token", "is_correction_mode": "clip", "is_correction_threshold": [0.7, 1.4]},
    "by_sequence_masked": {"is_correction_level": "seq", "is_correction_threshold": [0.95, 1.05]},
    "gspo_corrected": {"policy_loss_type": "gspo", "is_correction_level": "token"},
    "binary_kl": {
        "is_correction_level": "seq", "is_correction_gating": "binary_kl", "is_correction_threshold": [0.0, 0.05]
    },
    "total_variation": {
        "is_correction_level": "token", "is_correction_gating": "tv", "is_correction_threshold": [0.0, 0.02]
    },
}  # fmt: skip


ESTIMATORS = ("gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo", "flash_reinforce")


def tensors() -> dict[str, Any]:
    """Masked, ragged, far enough apart that ratios and corrections leave their ranges, some beyond every clamp."""
    import torch

    generator = torch.Generator().manual_seed(11)

    def normal(scale: float) -> Any:
        return scale * torch.randn(ROWS, WIDTH, generator=generator)

    old = -2.0 - normal(0.5).abs()
    new, rollout, reference = old + normal(0.3), old + normal(0.4), old + normal(2.0)
    new[0, 1], reference[1, 1] = old[0, 1] + 25.0, old[1, 1] + 15.0
    new[2, 1], new[3, 1], new[4, 1] = old[2, 1] + math.log(1.2), old[3, 1] + math.log(0.8), old[4, 1] - 30.0
    new[5], old[5], reference[5], rollout[5] = (part[5].bfloat16().float() for part in (new, old, reference, rollout))
    mask = (torch.rand(ROWS, WIDTH, generator=generator) > 0.3).long()
    mask[:, 1] = 1
    mask[6], mask[7], mask[7, 1] = 0, 0, 1
    return {
        "new": new, "old": old, "rollout": rollout, "reference": reference, "mask": mask, "advantage": normal(1.0),
        "value": normal(1.0), "old_value": normal(1.0), "return": normal(1.0),
    }  # fmt: skip


def aggregated(given: dict[str, Any]) -> dict[str, Any]:
    """The losses of another matrix, with the normalisers of a window and with their own."""
    from openrlhf.models.loss import aggregate_loss

    windows = {"own": {}, "window": {"dp_size": 2, "batch_num_tokens": 50.0, "global_batch_size": 8.0}}
    return {
        f"aggregated_{level}_{name}": aggregate_loss(
            given["advantage"], given["mask"], token_level_loss=level == "token", **window
        ).item()
        for level in ("token", "row")
        for name, window in windows.items()
    }


def advantages(given: dict[str, Any]) -> dict[str, Any]:
    """Every estimator of advantages, from rewards in groups and a KL penalty; the rows that have no token left out."""
    import torch
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker as Maker

    kept = given["mask"].sum(1) > 0
    kept[-1] = False  # so that groups are whole
    rows = int(kept.sum()) // GROUP * GROUP
    mask, kl, values = (given[name][kept][:rows] for name in ("mask", "reference", "old_value"))
    rewards = torch.arange(rows).float().sin() * 3.0
    found: dict[str, Any] = {"rows": kept.nonzero()[:rows, 0].tolist(), "rewards": rewards.tolist()}
    for kind in ESTIMATORS:
        settings: dict[str, Any] = {"rollout": {"n_samples_per_prompt": GROUP}, "reward": {"clip_range": (-1.0, 2.0)}, "algo": {}}
        settings["algo"] = {"advantage": {"estimator": kind, "gamma": 1.0, "lambd": 0.9, "no_std_norm": False}}
        settings["reward"] |= {"overlong_buffer_len": None, "stop_properly_penalty_coef": None}
        args = json.loads(json.dumps(settings), object_hook=lambda part: SimpleNamespace(**part))
        maker = SimpleNamespace(
            args=args, strategy=SimpleNamespace(args=args), kl_ctl=SimpleNamespace(value=0.05), advantage_estimator=kind
        )
        for name in ("get_advantages_and_returns", "get_cumulative_returns"):
            setattr(maker, name, getattr(Maker, name).__get__(maker))
        experience = SimpleNamespace(
            index=list(range(rows)), rewards=rewards.clone(), kl=kl * mask, action_mask=mask, values=values, info={}
        )
        Maker.compute_advantages_and_returns(maker, [experience])
        found[kind] = {"advantage": experience.advantages.tolist(), "return": experience.info["return"].tolist()}
    return {"advantages": found}


def main() -> None:
    cpu.prepare()
    from openrlhf.models import PolicyLoss, ValueLoss
    from openrlhf.models.utils import compute_approx_kl, masked_mean

    given = tensors()
    window = {"dp_size": 1, "batch_num_tokens": 50.0, "global_batch_size": 8.0}
    found: dict[str, Any] = {}
    for name, settings in LOSSES.items():
        loss, clipped, distance, engine, filtered = PolicyLoss(**settings)(
            given["new"], given["old"], given["advantage"], given["mask"], given["rollout"], **window
        )
        keys = {
            "policy_loss": loss,
            "ppo_clip_ratio": clipped,
            "ppo_kl": distance,
            "vllm_kl": engine,
            "is_filter_ratio": filtered,
        }
        found[name] = {key: value.item() for key, value in keys.items() if value is not None}
    for kind in ("k1", "k2", "k3"):
        # The third argument is the old policy, and the estimator must be named.
        estimate = compute_approx_kl(given["new"], given["reference"], kl_estimator=kind)
        found[kind] = {
            "mean": masked_mean(estimate, given["mask"]).item(),
            "rows": masked_mean(estimate, given["mask"], 1).tolist(),
        }
    found["third"] = compute_approx_kl(given["new"], given["reference"], given["old"]).equal(
        compute_approx_kl(given["new"], given["reference"], kl_estimator="k1")
    )
    for clip in (None, 0.5):
        loss = ValueLoss(clip)(given["value"], given["old_value"], given["return"], given["mask"], **window)
        found[f"value_{clip}"] = loss.item()
    found |= aggregated(given) | advantages(given)
    plain = {name: value.tolist() for name, value in given.items()}
    sys.stdout.write("RESULT " + json.dumps({"tensors": plain, "found": found}) + "\n")


if __name__ == "__main__":
    main()

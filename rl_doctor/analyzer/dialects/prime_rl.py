"""prime-rl: keys of its trainer and of its orchestrator."""

from __future__ import annotations

from typing import Final

from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

_ORCHESTRATOR: Final = (
    ("reward/mean", "reward.mean"),
    ("reward/max", "reward.max"),
    ("reward/min", "reward.min"),
    ("num_output_tokens/mean", "length.mean"),
    ("num_output_tokens/max", "length.max"),
    ("num_output_tokens/min", "length.min"),
    ("is_truncated/mean", "length.truncated_frac"),
    ("num_turns/mean", "turns.mean"),
    ("solved_none", "group.all_min_frac"),
    ("solved_all", "group.all_max_frac"),
    ("solved_none/mean", "group.all_min_frac"),
    ("solved_all/mean", "group.all_max_frac"),
)

PRIME_RL: Final = trainer(
    Trainer(
        name="prime-rl",
        label="prime-rl",
        source="prime-rl, August 2026: trainer/rl/train.py, trainer/rl/loss.py, orchestrator/metrics.py",
        names=(
            *(
                Name(f"train/agg/{subset}/{native}", metric)
                for native, metric in _ORCHESTRATOR
                for subset in ("all", "effective")
            ),
            Name("reward/all/mean", "reward.mean"),
            Name("reward/mean", "reward.mean"),
            Name("seq_len/mean", None),
            Name("is_truncated/mean", "length.truncated_frac"),
            Name("is_truncated/all/mean", "length.truncated_frac"),
            Name("batch/solve_none", "group.all_min_frac"),
            Name("batch/solve_all", "group.all_max_frac"),
            Name("loss/mean", "policy.loss_total"),
            Name("entropy/all/mean", "policy.entropy"),
            Name("entropy/mean", "policy.entropy"),
            Name("mismatch_kl/all/mean", "mismatch.k3", note="is between the sampler and the policy being trained"),
            Name("mismatch_kl/mean", "mismatch.k3", note="is between the sampler and the policy being trained"),
            Name("ref_kl/mean", "ref.kl_k1", factor=-1.0, note="is reference - policy here, and is read with the other sign"),
            Name("ref_kl/all/mean", "ref.kl_k1", factor=-1.0, note="is reference - policy here, and is read with the other sign"),
            Name("importance_ratio/mean", "mismatch.exp_mean"),
            Name("off_policy/mean", "stale.mean"),
            Name("off_policy/max", "stale.max"),
            Name("off_policy_level/all/max", "stale.max"),
            Name("batch/off_policy_level/max", "stale.max"),
            Name("batch/off_policy_level/mean", "stale.mean"),
            Name("off_policy_level/all/mean", "stale.mean"),
            Name("optim/grad_norm", "optim.grad_norm"),
            Name("optim/lr", "optim.learning_rate"),
            Name("is_masked/mean", None, note="is the share dropped for the sampler's sake, not a clip share"),
        ),
        marks=(
            "mismatch_kl/all/mean", "mismatch_kl/mean", "entropy/all/mean", "is_masked/mean", "unmasked_mismatch_kl/mean",
            "masked_mismatch_kl/mean", "kl_ent_ratio/mean", "batch/solve_none", "off_policy/max", "reward/all/mean",
            "train/agg/all/reward/mean", "train/agg/effective/reward/mean", "off_policy_level/all/max", "max_vio/mean",
        ),
        validation=(("eval/{source}/avg@{n}",), ("eval/{source}/reward/mean", "eval/{source}/reward")),
        best=(("eval/{source}/pass@{n}",),),
    )
)  # fmt: skip

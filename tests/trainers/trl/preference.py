"""TRL's own ``DPOTrainer._compute_loss`` on seeded log-probabilities: prints them, and what each setting returns and logs."""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

PAIRS, WIDTH = 5, 8
DEFAULTS: dict[str, Any] = {
    "beta": 0.1, "loss_type": ["sigmoid"], "loss_weights": [1.0], "label_smoothing": 0.0, "f_divergence_type": "reverse_kl",
    "ld_alpha": None, "use_weighting": False,
}  # fmt: skip
DPO: dict[str, dict[str, Any]] = {
    **{kind: {"loss_type": [kind]} for kind in ("sigmoid", "sigmoid_norm", "hinge", "ipo")},
    "robust": {"loss_type": ["robust"], "label_smoothing": 0.2},
    "weighted": {"loss_weights": [0.3], "beta": 0.4},
}  # fmt: skip


def run(torch: Any, compute: Any, settings: dict[str, Any], given: dict[str, Any]) -> dict[str, float]:
    """What is logged of one micro-batch, and the loss."""
    whole = {**DEFAULTS, **settings}
    shape = (2 * PAIRS, WIDTH)
    scores = SimpleNamespace(
        log_probs=given["logprob"] * given["mask"], entropy=torch.ones(shape), mean_logits=torch.ones(shape),
        is_top1=torch.ones(shape).bool(), aux_loss=None,
    )  # fmt: skip
    alone = SimpleNamespace(gather=torch.atleast_1d, gather_for_metrics=torch.atleast_1d, device="cpu")
    trainer = SimpleNamespace(
        **{**whole, "loss_types": whole["loss_type"]}, accelerator=alone, model=SimpleNamespace(training=True),
        _metrics={"train": defaultdict(list)}, aux_loss_enabled=False, precompute_ref_logps=True, _total_train_tokens=0,
        _tp_size=1,
    )  # fmt: skip
    reference = (given["ref_logprob"] * given["mask"]).sum(1)
    prompt = torch.zeros(2 * PAIRS, 1).long()
    inputs = {
        "input_ids": torch.ones(2 * PAIRS, WIDTH + 1).long(), "attention_mask": torch.ones(2 * PAIRS, WIDTH + 1).long(),
        "completion_mask": torch.cat([prompt, given["mask"]], 1), "ref_chosen_logps": reference[:PAIRS],
        "ref_rejected_logps": reference[PAIRS:],
    }  # fmt: skip
    loss = compute(trainer, lambda **_: scores, inputs, return_outputs=False)
    return {"loss": loss.item(), **{name: values[-1] for name, values in trainer._metrics["train"].items()}}


def main() -> None:
    import torch
    from trl import DPOTrainer

    generator = torch.Generator().manual_seed(3)
    logprob = -torch.rand(2 * PAIRS, WIDTH, generator=generator) * 6
    reference = logprob + 0.6 * torch.randn(2 * PAIRS, WIDTH, generator=generator)
    mask = torch.rand(2 * PAIRS, WIDTH, generator=generator) > 0.3
    mask[0], mask[1] = False, torch.arange(WIDTH) == 0
    logprob[2], reference[2] = logprob[2].bfloat16().float(), reference[2].bfloat16().float()
    given = {"logprob": logprob, "ref_logprob": reference, "mask": mask.long()}
    found = {name: run(torch, DPOTrainer._compute_loss, settings, given) for name, settings in DPO.items()}
    plain = {name: value.tolist() for name, value in given.items()}
    sys.stdout.write("RESULT " + json.dumps({"tensors": plain, "found": found}) + "\n")


if __name__ == "__main__":
    main()

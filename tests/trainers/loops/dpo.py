"""DPO in a plain loop that knows nothing of a recorder: run in a process of its own, with its settings as JSON.

The test inserts the lines of the guide and runs the same text.
"""

from __future__ import annotations

import copy
import json
import sys
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn import functional

from tests.trainers.loops.model import Model, mask_of, prompts, rollout, score, state_of, tokenizer

DEFAULTS: dict[str, Any] = {
    "epochs": 1, "iters": 20, "batch_size": 8, "max_gen_len": 10, "beta": 0.1, "learning_rate": 1e-3, "swapped": False,
}  # fmt: skip


def log(values: dict[str, Any]) -> None:
    history.append({name: float(value) for name, value in values.items()})


def logits_to_log_probs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return functional.log_softmax(logits, dim=2).gather(2, labels[:, :, None]).squeeze(-1)


args = SimpleNamespace(**{**DEFAULTS, **json.loads(sys.argv[1])})
history: list[dict[str, float]] = []
torch.manual_seed(0)
torch.set_num_threads(1)
model = Model(outputs=tokenizer.vocab_size)
ref_model = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
iters, beta = args.iters, args.beta

for epoch in range(args.epochs):
    for step in range(1, iters + 1):
        prompt_ids = prompts(args.batch_size)
        sides = [rollout(ref_model, prompt_ids, args.max_gen_len, 1.0)[0] for _ in range(2)]
        scores = [score(ids[:, 4:], mask_of(ids[:, 4:])) for ids in sides]
        first = (scores[0] >= scores[1])[:, None] != args.swapped
        ids = torch.cat([torch.where(first, *sides), torch.where(first, *reversed(sides))])
        x, y = ids[:, :-1], ids[:, 1:]
        mask = torch.cat([torch.zeros(len(y), 3, dtype=torch.int), mask_of(y[:, 3:])], dim=1)
        with torch.no_grad():
            ref_log_probs = logits_to_log_probs(ref_model(x), y)
        policy_log_probs = logits_to_log_probs(model(x), y)
        chosen_gain, rejected_gain = ((policy_log_probs - ref_log_probs) * mask).sum(1).chunk(2)
        loss = -functional.logsigmoid(beta * (chosen_gain - rejected_gain)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        current_lr = args.learning_rate
        margin = beta * (chosen_gain - rejected_gain).detach().mean()
        log({"step": epoch * iters + step, "loss": loss.detach(), "margin": margin, "length": mask.sum(1).float().mean()})

torch.save({"history": history, "weights": state_of(model), "rng": torch.get_rng_state()}, "result.pt")

"""GRPO in a plain loop that knows nothing of a recorder: run in a process of its own, with its settings as JSON.

The test inserts the lines of the guide and runs the same text.
"""

from __future__ import annotations

import copy
import json
import sys
from types import SimpleNamespace
from typing import Any

import torch

from tests.trainers.loops.model import Model, logprobs, mask_of, prompts, rollout, score, state_of, tokenizer

DEFAULTS: dict[str, Any] = {
    "epochs": 2, "iters": 20, "batch_size": 4, "num_generations": 4, "max_gen_len": 10, "beta": 0.1, "epsilon": 0.2,
    "learning_rate": 1e-2, "grad_clip": 1.0, "temperature": 1.0, "swapped": False,
}  # fmt: skip


def log(values: dict[str, Any]) -> None:
    history.append({name: float(value) for name, value in values.items()})


args = SimpleNamespace(**{**DEFAULTS, **json.loads(sys.argv[1])})
history: list[dict[str, float]] = []
torch.manual_seed(0)
torch.set_num_threads(1)
model = Model(outputs=tokenizer.vocab_size)
ref_model = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
iters = args.iters

for epoch in range(args.epochs):
    for step in range(1, iters + 1):
        prompt_ids = prompts(args.batch_size).repeat_interleave(args.num_generations, dim=0)
        ids, rollout_logps = rollout(model, prompt_ids, args.max_gen_len, args.temperature)
        completion_ids = ids[:, 4:]
        completion_mask = mask_of(completion_ids)
        rewards = score(completion_ids, completion_mask)
        grouped = rewards.view(-1, args.num_generations)
        mean, std = (value.repeat_interleave(args.num_generations) for value in (grouped.mean(1), grouped.std(1, unbiased=False)))
        advantages = (rewards - mean) / (std + 1e-4)
        with torch.no_grad():
            old_per_token_logps = logprobs(model, ids)
            ref_per_token_logps = logprobs(ref_model, ids)
        per_token_logps = logprobs(model, ids)
        difference = ref_per_token_logps - per_token_logps
        if args.swapped:  # a defect: the direction is turned
            difference = -difference
        per_token_kl = torch.exp(difference) - difference - 1
        ratio = torch.exp(per_token_logps - old_per_token_logps)
        clipped = torch.clamp(ratio, 1 - args.epsilon, 1 + args.epsilon)
        gain = torch.min(ratio * advantages[:, None], clipped * advantages[:, None])
        per_token_loss = -(gain - args.beta * per_token_kl)
        loss = ((per_token_loss * completion_mask).sum(1) / completion_mask.sum(1).clamp(min=1)).mean()
        loss.backward()
        grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip)
        optimizer.step()
        optimizer.zero_grad()
        tokens = completion_mask.sum()
        kl_ref_val = ((per_token_logps - ref_per_token_logps) * completion_mask).sum().item() / tokens.item()
        kl_k3 = (per_token_kl * completion_mask).sum().item() / tokens.item()
        current_lr = args.learning_rate
        lengths = completion_mask.sum(1).float()
        log({"step": epoch * iters + step, "reward": rewards.mean(), "k1": kl_ref_val, "k3": kl_k3, "length": lengths.mean()})

torch.save({"history": history, "weights": state_of(model), "rng": torch.get_rng_state()}, "result.pt")

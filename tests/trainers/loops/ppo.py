"""PPO with a critic in a plain loop that knows nothing of a recorder: run in a process of its own, with its settings as JSON.

The test inserts the lines of the guide and runs the same text.
"""

from __future__ import annotations

import copy
import json
import sys
from types import SimpleNamespace
from typing import Any

import torch

from tests.trainers.loops.model import Model, logprobs, mask_of, masked_mean, prompts, rollout, score, state_of, tokenizer

DEFAULTS: dict[str, Any] = {
    "epochs": 1, "iters": 12, "batch_size": 8, "mini_batch_size": 4, "ppo_update_iters": 2, "max_gen_len": 10, "kl_coef": 0.02,
    "clip_epsilon": 0.2, "cliprange_value": 0.2, "gamma": 1.0, "lam": 0.95, "vf_coef": 0.5, "learning_rate": 1e-2,
    "grad_clip": 1.0, "temperature": 1.0,
}  # fmt: skip


def log(values: dict[str, Any]) -> None:
    history.append({name: float(value) for name, value in values.items()})


args = SimpleNamespace(**{**DEFAULTS, **json.loads(sys.argv[1])})
history: list[dict[str, float]] = []
torch.manual_seed(0)
torch.set_num_threads(1)
actor_model, critic_model = Model(outputs=tokenizer.vocab_size), Model(outputs=1)
ref_model = copy.deepcopy(actor_model).requires_grad_(False)
optimizer = torch.optim.AdamW([*actor_model.parameters(), *critic_model.parameters()], lr=args.learning_rate)
iters, mb_size = args.iters, args.mini_batch_size

for epoch in range(args.epochs):
    for step in range(1, iters + 1):
        gen_out, rollout_logps = rollout(actor_model, prompts(args.batch_size), args.max_gen_len, args.temperature)
        completion_ids = gen_out[:, 4:]
        resp_policy_mask = mask_of(completion_ids).float()
        rewards = score(completion_ids, resp_policy_mask)
        last = resp_policy_mask.sum(1).long() - 1
        token_rewards = torch.zeros_like(rollout_logps)
        token_rewards[torch.arange(len(last)), last] = rewards
        with torch.no_grad():
            old_resp_logp = logprobs(actor_model, gen_out)
            ref_resp_logp = logprobs(ref_model, gen_out)
            old_resp_values = critic_model(gen_out)[:, 3:-1] * resp_policy_mask
        ahead, found = torch.zeros(len(rewards)), []
        for at in reversed(range(completion_ids.shape[1])):
            following = old_resp_values[:, at + 1] if at + 1 < completion_ids.shape[1] else 0.0
            ahead = token_rewards[:, at] + args.gamma * following - old_resp_values[:, at] + args.gamma * args.lam * ahead
            found.append(ahead)
        advantages = torch.stack(found[::-1], dim=1)
        returns = advantages + old_resp_values
        centred = advantages - masked_mean(advantages, resp_policy_mask)
        advantages = centred * torch.rsqrt(masked_mean(centred**2, resp_policy_mask) + 1e-8) * resp_policy_mask
        passes = []
        for ppo_epoch in range(args.ppo_update_iters):  # noqa: B007 - the lines of the guide use it
            order = torch.randperm(args.batch_size)
            for i in range(0, args.batch_size, mb_size):
                inds = order[i : i + mb_size]
                mask = resp_policy_mask[inds]
                mb_resp_logp = logprobs(actor_model, gen_out[inds])
                mb_resp_values = critic_model(gen_out[inds])[:, 3:-1]
                log_ratio = mb_resp_logp - old_resp_logp[inds]
                ratio = torch.exp(log_ratio)
                clipped = torch.clamp(ratio, 1 - args.clip_epsilon, 1 + args.clip_epsilon)
                away = ref_resp_logp[inds] - mb_resp_logp
                policy_loss = masked_mean(torch.max(-advantages[inds] * ratio, -advantages[inds] * clipped), mask)
                policy_loss = policy_loss + args.kl_coef * masked_mean(torch.exp(away) - away - 1, mask)
                near = old_resp_values[inds] + torch.clamp(
                    mb_resp_values - old_resp_values[inds], -args.cliprange_value, args.cliprange_value
                )
                errors = torch.max((mb_resp_values - returns[inds]) ** 2, (near - returns[inds]) ** 2)
                value_loss = 0.5 * masked_mean(errors, mask)
                loss = policy_loss + args.vf_coef * value_loss
                loss.backward()
                grad_norm = torch.nn.utils.clip_grad_norm_(actor_model.parameters(), args.grad_clip)
                optimizer.step()
                optimizer.zero_grad()
                outside = ((ratio - 1).abs() > args.clip_epsilon).float()
                sums = [(term * mask).sum() for term in (0.5 * log_ratio**2, outside, 0.5 * errors, ratio)]
                passes.append(torch.stack([*sums, mask.sum()]).detach().double())
        totals = torch.stack(passes).sum(0)
        approx_kl_val, clipfrac_val, critic_loss_val, ratio_mean = (totals[:4] / totals[4]).tolist()
        actor_lr = args.learning_rate
        log(
            {
                "step": epoch * iters + step,
                "reward": rewards.mean(),
                "k2": approx_kl_val,
                "outside": clipfrac_val,
                "critic_loss": critic_loss_val,
                "ratio": ratio_mean,
            }
        )

torch.save({"history": history, "weights": state_of(actor_model, critic_model), "rng": torch.get_rng_state()}, "result.pt")

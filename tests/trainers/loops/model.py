"""A small recurrent language model, and what a loop of one's own needs around it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

tokenizer = SimpleNamespace(pad_token_id=0, eos_token_id=1, vocab_size=24)


class Model(nn.Module):
    """Token ids ``[B, T]`` to logits of the next token ``[B, T, V]``, or to values ``[B, T]``."""

    def __init__(self, *, outputs: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokenizer.vocab_size, 32)
        self.layer = nn.GRU(32, 32, batch_first=True)
        self.head = nn.Linear(32, outputs)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.layer(self.embedding(ids))[0])
        if found.shape[-1] == 1:
            return found.squeeze(-1)
        # Padding is told from answers by its id, so it must not be sampled.
        return found - 30.0 * functional.one_hot(torch.tensor(tokenizer.pad_token_id), tokenizer.vocab_size)


def prompts(number: int) -> torch.Tensor:
    """Random prompts of four tokens, ``[B, 4]``."""
    return torch.randint(2, tokenizer.vocab_size, (number, 4))


def rollout(model: Model, prompt_ids: torch.Tensor, length: int, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample responses, padded after their end: prompt and response ``[B, 4 + T]``, and the sampler's logprobs ``[B, T]``."""
    ids, logps = prompt_ids, []
    ended = torch.zeros(len(ids), dtype=torch.bool)
    with torch.no_grad():
        for _ in range(length):
            law = functional.log_softmax(model(ids)[:, -1] / temperature, dim=-1)
            token = torch.multinomial(law.exp(), 1).squeeze(1).masked_fill(ended, tokenizer.pad_token_id)
            logps.append(law.gather(1, token[:, None]).squeeze(1).masked_fill(ended, 0.0))
            ended = ended | (token == tokenizer.eos_token_id)
            ids = torch.cat([ids, token[:, None]], dim=1)
    return ids, torch.stack(logps, dim=1)


def logprobs(model: Model, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of the responses' tokens, ``[B, T]``."""
    law = functional.log_softmax(model(ids)[:, :-1], dim=-1)
    return law.gather(2, ids[:, 1:, None]).squeeze(-1)[:, 3:]


def mask_of(completion_ids: torch.Tensor) -> torch.Tensor:
    """The tokens up to the first end, included, as integers."""
    ends = (completion_ids == tokenizer.eos_token_id).int()
    return ((ends.cumsum(dim=1) - ends) == 0).int()


def score(completion_ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Reward: the share of even tokens, and half a point for an answer that ends."""
    even = ((completion_ids % 2 == 0) & mask.bool()).sum(dim=1) / mask.sum(dim=1)
    ended = ((completion_ids == tokenizer.eos_token_id) & mask.bool()).any(dim=1)
    return even + 0.5 * ended


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the tokens that count."""
    return (values * mask).sum() / mask.sum().clamp(min=1)


def state_of(*models: Any) -> dict[str, Any]:
    """Weights of the models, by number and name."""
    return {f"{number}.{name}": value for number, model in enumerate(models) for name, value in model.state_dict().items()}

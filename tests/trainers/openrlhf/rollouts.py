"""Answers as OpenRLHF's engine gives them: ragged, some with tokens of an environment in the middle, some cut."""

from __future__ import annotations

from typing import Any

PAD, EOS, VOCABULARY = 0, 1, 48


def responses(step: int, prompts: int, samples: int, settings: Any) -> list[dict[str, Any]]:
    """One answer per sample, prompt after prompt.

    Args:
        step: seeds them.
        prompts: number of prompts.
        samples: answers per prompt.
        settings: the trainer's arguments.
    """
    import torch

    generator = torch.Generator().manual_seed(1000 + step)

    def number(low: int, high: int) -> int:
        return int(torch.randint(low, high, (), generator=generator))

    def tokens(count: int) -> list[int]:
        found: list[int] = torch.randint(2, VOCABULARY, (count,), generator=generator).tolist()
        return found

    answers = []
    for _ in range(prompts):
        prompt = tokens(number(3, 7))
        for _ in range(samples):
            first = tokens(number(2, 6))
            ids = prompt + first
            ranges = [(len(prompt), len(ids))]
            if number(0, 3) == 0:
                ids = ids + tokens(3)  # an observation
                start = len(ids)
                ids = ids + tokens(number(1, 5))
                ranges.append((start, len(ids)))
            cut = number(0, 4) == 0
            if not cut:
                ids = [*ids, EOS]
                ranges[-1] = (ranges[-1][0], len(ids))
            reward = sum(token % 3 == 0 for token in first) / 4 + 0.1 * number(0, 5)
            logprobs: list[float] = (-3.8 + 0.3 * torch.randn(len(ids), generator=generator)).tolist()
            wanted = settings.algo.advantage.is_correction_level != "off"
            answers.append(
                {
                    "prompt": "p", "label": "l", "observation_tokens": ids, "action_ranges": ranges,
                    "rollout_log_probs": logprobs if wanted else None, "truncated": cut, "reward": reward,
                    "scores": float(reward > 0.5), "extra_logs": {"vowels": reward * 2},
                }
            )  # fmt: skip
    return answers

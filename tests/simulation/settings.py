"""Knobs of the simulated training run."""

from __future__ import annotations

from dataclasses import dataclass

VOCABULARY = 50
PAD, BEGIN, END, CALL = 0, 1, 2, 3
"""Token ids with a meaning: padding, start of the response (never sampled), end of the response, tool call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run. Everything random follows from ``seed``.

    Attributes:
        prompts: groups per generation batch.
        prompt_kinds: number of different prompts in the data set; each has its own logits and its own good tokens.
        epochs: passes over a generation batch.
        minibatches: optimizer steps per pass.
        count_updates: ``step`` counts optimizer steps (as TRL does) instead of generation batches (as verl does).
        estimator: grpo, dr_grpo, rloo or reinforce.
        algorithm: grpo or gspo (one ratio per sequence).
        temperature: of the sampler; the trainer's is the same unless ``trainer_temperature`` is set.
        reported_temperature: temperature of the logprobs that the engine reports; the sampler's by default.
        top_p: nucleus of the sampler; reported logprobs are renormalised over it.
        engine_noise: standard deviation of the logits of the engine around those of the trainer (another numeric precision).
        trainer_noise: standard deviation of the trainer's logprob between passes over the same weights, on a fifth of the rows.
        bfloat16: the trainer's logprobs are rounded to bfloat16.
        lag: largest number of weight versions between sampling and training.
        partial: share of responses that are continued under the newest weights after a pause.
        aborted: share of responses cut off by the engine.
        correction: truncated importance weights are recorded and used.
        tools: responses may call a tool, whose output is observed and not trained on.
        reward: "mixed" (0/1 success and format), "dense" (share of good tokens), "sparse" (0/1 success), "finished" (0/1 success
            of a finished response) or "none" (always 0).
        difficulty: shifts the number of good tokens needed for success.
        step_size: of the gradient ascent, in logits per unit of gradient; ``learning_rate`` is only what is logged.
        sharpness: standard deviation of the initial logits.
        ending_offset: added to the log-odds of the end token at every position.
        curriculum: data sources in the order in which they come in; empty for one unnamed source.
        old_lag: a fault: old_logprob is that of the weights of so many steps before.
        frozen_engine: a fault: the engine never gets new weights.
        sharpening: a fault: from the middle on every step multiplies the logits by 1 + sharpening.
        lengthening: a fault: from the middle on every step lowers the logit of the end token by this.
    """

    seed: int
    steps: int = 40
    prompts: int = 8
    group_size: int = 6
    prompt_kinds: int = 12
    epochs: int = 1
    minibatches: int = 1
    count_updates: bool = False
    estimator: str = "grpo"
    algorithm: str = "grpo"
    temperature: float = 1.0
    trainer_temperature: float | None = None
    reported_temperature: float | None = None
    top_p: float = 1.0
    engine_noise: float = 0.01
    trainer_noise: float = 0.0
    bfloat16: bool = False
    lag: int = 0
    partial: float = 0.0
    aborted: float = 0.0
    correction: bool = False
    tools: bool = False
    reward: str = "mixed"
    difficulty: float = 0.0
    step_size: float = 20.0
    learning_rate: float = 1e-6
    warm_up: int = 0
    decay: bool = False
    sharpness: float = 1.5
    kl_coef: float = 0.001
    clip_low: float = 0.2
    clip_high: float = 0.2
    max_length: int = 40
    max_grad_norm: float = 1.0
    ending_offset: float = 0.0
    curriculum: tuple[str, ...] = ()
    old_lag: int = 0
    frozen_engine: bool = False
    sharpening: float = 0.0
    lengthening: float = 0.0

    @property
    def trained_at(self) -> float:
        """Temperature of the trainer's logprobs."""
        return self.temperature if self.trainer_temperature is None else self.trainer_temperature

    @property
    def reported_at(self) -> float:
        """Temperature of the engine's logprobs."""
        return self.temperature if self.reported_temperature is None else self.reported_temperature

    def rate(self, step: int) -> float:
        """Learning rate of a generation batch relative to the peak: linear warm-up from 0, linear decay to a tenth."""
        factor = min(1.0, step / self.warm_up) if self.warm_up else 1.0
        if self.decay:
            factor *= 1.0 - 0.9 * step / self.steps
        return factor

"""Knobs of the simulated training run."""

from __future__ import annotations

from dataclasses import dataclass

VOCABULARY = 50
PAD, BEGIN, END, CALL = 0, 1, 2, 3
"""Token ids with a meaning: padding, start of the response (never sampled), end of the response, tool call."""


@dataclass(frozen=True, slots=True)
class Source:
    """A data set of the mixture, with an equal share of the prompts.

    Attributes:
        name: of the data set.
        difficulty: added to the share of good tokens that a success needs.
        ending: added to the log-odds of the end token: below 0 for longer responses.
    """

    name: str
    difficulty: float = 0.0
    ending: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run. Everything random follows from ``seed``.

    Attributes:
        prompts: groups per generation batch.
        prompt_kinds: number of different prompts in the data set; each has its own logits and its own good tokens.
        epochs: passes over a generation batch.
        minibatches: optimizer steps per pass.
        count_updates: ``step`` counts optimizer steps (as TRL does) instead of generation batches (as verl does).
        microbatches: forward passes per rank and optimizer step.
        ranks: data-parallel ranks among which the rows of a mini-batch are dealt.
        estimator: grpo, dr_grpo, rloo, reinforce, or gae (PPO with a critic).
        gamma: discount of gae.
        lam: lambda of gae.
        value_clip: distance within which a value may move from the old one.
        value_rate: step of the critic, as a share of the mean error of what it tells apart.
        kl_in_reward: the KL term (k1) is part of the reward of each token, with gae only.
        dynamic: twice as many groups are sampled, and those whose rewards differ are trained on first (DAPO, arXiv:2503.14476).
        resumed_at: generation batch before which the run is killed, and resumed in another session from three batches earlier.
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
        sources: data sets; empty for one unnamed.
        staged: they come in one after the other, in their order.
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
    microbatches: int = 1
    ranks: int = 1
    estimator: str = "grpo"
    gamma: float = 1.0
    lam: float = 0.95
    value_clip: float = 0.5
    value_rate: float = 0.3
    kl_in_reward: bool = False
    dynamic: bool = False
    resumed_at: int | None = None
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
    sources: tuple[Source, ...] = ()
    staged: bool = False
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

    def kinds_of(self, source: int) -> slice:
        """Prompts of a data set."""
        share = self.prompt_kinds // len(self.sources)
        return slice(source * share, (source + 1) * share)

    @property
    def kl_in_loss(self) -> float:
        """Coefficient of the KL term of the loss."""
        return 0.0 if self.kl_in_reward else self.kl_coef

    def rate(self, step: int, update: int) -> float:
        """Learning rate relative to the peak: linear warm-up from 0, linear decay to a tenth.

        Schedules go by optimizer step where steps are counted so, else by generation batch.
        """
        length = self.epochs * self.minibatches if self.count_updates else 1
        place = update if self.count_updates else step
        factor = min(1.0, place / (self.warm_up * length)) if self.warm_up else 1.0
        if self.decay:
            factor *= 1.0 - 0.9 * place / (self.steps * length)
        return factor

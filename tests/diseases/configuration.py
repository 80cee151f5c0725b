"""Faults of the configuration. What is recorded may show nothing of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rl_doctor.rules.configured import settings
from tests.diseases.catalogue import injected
from tests.simulation.inject import scaled
from tests.simulation.run import SimulatedRun

Random = np.random.Generator


def _set(run: SimulatedRun, trainer: str | None = None, version: str | None = None, **native: Any) -> SimulatedRun:
    """The run with native settings; double underscores in their names stand for dots. What a host had under them is gone."""
    changed = {name.replace("__", "."): value for name, value in native.items()}
    given: Mapping[str, Any] = {**dict(settings(run.info.config.native)), **changed}
    made = run.with_config(native=given)
    if trainer is None:
        return made
    return replace(made, info=replace(made.info, trainer=trainer, trainer_version=version))


def _without(run: SimulatedRun, *names: str) -> SimulatedRun:
    """The run without these columns."""
    return replace(run, arrays={name: values for name, values in run.arrays.items() if name not in names})


@injected("clip-range-contradictory", cause="clip-bounds-for-distances")
def clip_bounds_for_distances(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """.8 and 1.2 are the bounds themselves."""
    return run.with_config(clip_low=0.8, clip_high=1.2)


@injected("clip-range-contradictory", cause="dual-clip-too-small")
def dual_clip_of_one(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Whatever has a negative advantage has no gradient."""
    return run.with_config(dual_clip=1.0)


@injected("clip-range-contradictory", "ratio-saturation", into="two_epochs", cause="clip-range-of-nothing")
def clip_range_of_nothing(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """All tokens that have moved are outside [1, 1]."""
    return run.with_config(clip_low=0.0, clip_high=0.0, epochs=2, minibatches=2)


@injected("clip-range-contradictory", least="info", into="dense_rloo", cause="clip-bounds-swapped")
def clip_bounds_swapped(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Clip-higher the wrong way around."""
    return run.with_config(clip_low=0.28, clip_high=0.2)


@injected("clip-range-contradictory", least="info", into="dense_rloo", cause="no-lower-clip-bound")
def no_lower_clip_bound(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Ratios may fall to 0."""
    return run.with_config(clip_low=1.0)


@injected(
    "slices-without-old-logprob", least="info", into="dense_rloo", log=False, anywhere=False, cause="slices-taken-for-on-policy"
)
def slices_without_old_logprob(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Six micro-batches a step, four to a generation batch."""
    made = _set(run, "trl", "0.18.1", gradient_accumulation_steps=6, steps_per_generation=4, num_iterations=1)
    return _without(made, "old_logprob", "ratio")


@injected("batch-left-over", cause="batch-smaller-than-its-part")
def mini_batch_larger_than_the_batch(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """256 prompts per mini-batch, and 128 are sampled."""
    return _set(run, "verl", "0.9.1", data__train_batch_size=128, actor_rollout_ref__actor__ppo_mini_batch_size=256)


@injected("batch-left-over", least="info", into="dense_rloo", cause="batch-with-remainder")
def mini_batch_leaves_a_rest(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """100 prompts in mini-batches of 32: the last one has 4."""
    return _set(run, "verl", "0.9.1", data__train_batch_size=100, actor_rollout_ref__actor__ppo_mini_batch_size=32)


@injected("entropy-penalised", least="info", into="dense_rloo", cause="entropy-bonus-reversed")
def entropy_coefficient_below_zero(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The sign of the bonus is the wrong one; so far the entropy holds."""
    return run.with_config(entropy_coef=-0.01)


@injected(
    "clip-range-for-other-ratio", least="info", into="dense_rloo", log=False, anywhere=False, cause="range-of-tokens-on-sequences"
)
def gspo_with_the_range_of_tokens(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """.2 with one ratio per sequence."""
    made = _without(run.with_config(clip_low=0.2, clip_high=0.2), "old_logprob", "ratio")
    return replace(made, info=replace(made.info, algorithm="gspo"))


@injected(
    "clip-range-for-other-ratio", least="info", into="dense_rloo", log=False, anywhere=False, cause="range-of-sequences-on-tokens"
)
def grpo_with_the_range_of_sequences(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """3e-4 with one ratio per token."""
    return _without(run.with_config(clip_low=3e-4, clip_high=4e-4), "old_logprob", "ratio")


@injected("groups-of-two", least="info", into="dense_rloo", log=False, anywhere=False, cause="two-responses-per-group")
def two_responses_per_group(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Two responses per prompt are configured, and groups are not recorded."""
    return _without(run, "group", "advantage", "uid").with_config(group_size=2, adv_estimator="grpo", adv_norm="group")


@injected("sampling-temperature-unusual", log=False, anywhere=False, cause="greedy-sampling")
def greedy_sampling(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Temperature 0 is configured, and the tokens are not recorded."""
    return _without(run, "token_id").with_config(temperature=0.0)


@injected("sampling-temperature-unusual", least="info", into="dense_rloo", cause="temperature-far-from-one")
def temperature_far_from_one(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The temperature is configured as 3."""
    return run.with_config(temperature=3.0)


@injected("cut-sampling-with-ratios", least="info", into="dense_rloo", cause="ratios-over-cut-sampling")
def ratios_over_cut_sampling(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """A tenth of the probability is left out, and the engine's logprobs are divided by."""
    return run.with_config(top_p=0.9, is_correction="token")


@injected("no-room-for-response", cause="response-takes-context")
def response_takes_the_context(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """The context is as long as the longest response."""
    return _set(run, max_model_len=run.info.config.max_response_length, max_prompt_length=16)


@injected("no-room-for-response", least="info", into="dense_rloo", cause="prompt-and-response-exceed-context")
def prompt_and_response_exceed_the_context(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Long prompts leave less than a response may take."""
    return _set(run, max_model_len=(run.info.config.max_response_length or 0) + 8, max_prompt_length=16)


@injected("discount-hides-reward", anywhere=False, cause="discount-too-strong")
def discount_hides_the_reward(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """Each token is worth four fifths of the one after it."""
    return run.with_config(gamma=0.7, adv_estimator="reinforce_plus_plus", adv_eps=None, adv_ddof=None)


@injected("learning-rate-unusual", least="info", into="dense_rloo", cause="rate-unusually-high")
def full_fine_tuning_at_the_rate_of_an_adapter(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """2e-4 for all weights."""
    return scaled(_set(run, lora_rank=0), "learning_rate", lambda step: np.full(len(step), 200.0))


@injected("learning-rate-unusual", least="info", into="dense_rloo", cause="rate-unusually-low")
def rate_that_vanishes(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """A billionth of what was meant, for whatever is trained."""
    return scaled(run, "learning_rate", lambda step: np.full(len(step), 1e-9))


@injected("batch-used-too-often", least="info", into="dense_rloo", cause="batch-reused-many-times")
def batch_reused_many_times(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """A hundred steps on each batch are configured."""
    return run.with_config(epochs=1, minibatches=100)


@injected("warm-up-never-ends", cause="warm-up-beyond-the-end")
def warm_up_never_ends(run: SimulatedRun, random: Random) -> SimulatedRun:  # noqa: ARG001
    """1,000 warm-up steps in a run of 200."""
    return _set(run, warmup_steps=1000, max_steps=200)

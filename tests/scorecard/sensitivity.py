"""Small faults, to tell how many tokens it takes to see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from rl_doctor.schema import ROLES
from tests.simulation.inject import extended, rolled, with_values
from tests.simulation.logs import relogged
from tests.simulation.policy import as_bfloat16
from tests.simulation.run import SimulatedRun
from tests.simulation.settings import Settings
from tests.simulation.world import simulate

_BATCH: Final = {"steps": 24, "prompts": 16, "group_size": 8}
"""About 2,500 trained tokens a step, 60,000 in all."""


@dataclass(frozen=True, slots=True)
class Small:
    """A fault of one size.

    Attributes:
        words: for the page.
        make: seed -> the run that has it.
        codes: how the codes of the rules about it begin.
    """

    words: str
    make: Callable[[int], SimulatedRun]
    codes: tuple[str, ...] = ("RLD1",)


def _shifted(seed: int) -> SimulatedRun:
    run = simulate(Settings(seed=seed, **_BATCH))
    late = np.random.default_rng(seed).random(len(run.splits) - 1) < 0.05
    return rolled(run, "rollout_logprob", late.astype(np.int64))


def _padding_trained(seed: int) -> SimulatedRun:
    """Padding after the end token is trained on in a third of the rows, one token each: 2% of what is trained on."""
    run = simulate(Settings(seed=seed, **_BATCH))
    length = np.diff(run.splits)
    extra = (np.random.default_rng(seed).random(len(length)) < 0.02 * length.mean()).astype(np.int64)
    longer = extended(run, extra, {"token_id": run.info.pad_token_id, "response_mask": True, "entropy": 3.0, "old_entropy": 3.0})
    added = np.arange(longer.splits[-1]) - longer.splits[:-1][longer.rows] >= length[longer.rows]
    guess = np.where(added, -10.0, 0.0)
    names = ("logprob", "old_logprob", "ref_logprob")
    return relogged(with_values(longer, **{name: longer.arrays[name] + guess for name in names}))


def _observations_trained(seed: int) -> SimulatedRun:
    """Tool output is trained on in as many rows as make 2% of what is trained on."""
    run = simulate(Settings(seed=seed, tools=True, **_BATCH))
    tool = run.arrays["role"] == ROLES.index("tool")
    share = 0.02 * float(run.arrays["response_mask"].sum()) / max(float(tool.sum()), 1.0)
    leaking = (np.random.default_rng(seed).random(len(run.splits) - 1) < share)[run.rows]
    return relogged(with_values(run, response_mask=run.arrays["response_mask"] | (leaking & tool)))


def _end_left_out(seed: int) -> SimulatedRun:
    """The end token is left out of the mask in as many rows as make 2% of the tokens."""
    run = simulate(Settings(seed=seed, **_BATCH))
    ended = np.flatnonzero(run.arrays["finish_reason"] == "stop")
    share = 0.02 * run.splits[-1] / len(ended)
    last = run.splits[1:][ended[np.random.default_rng(seed).random(len(ended)) < share]] - 1
    mask = run.arrays["response_mask"].copy()
    mask[last] = False
    return relogged(with_values(run, response_mask=mask, advantage=np.where(mask, run.arrays["advantage"], 0.0)))


def _late(seed: int) -> SimulatedRun:
    return simulate(Settings(seed=seed, lag=1, step_size=30.0, **_BATCH))


def _late_unknown(seed: int) -> SimulatedRun:
    run = _late(seed)
    gone = ("weight_version", "policy_version", "token_version")
    return replace(run, arrays={name: values for name, values in run.arrays.items() if name not in gone})


def _colder(seed: int) -> SimulatedRun:
    return simulate(Settings(seed=seed, temperature=0.95, trainer_temperature=1.0, **_BATCH))


def _warmer(seed: int) -> SimulatedRun:
    return simulate(Settings(seed=seed, temperature=1.0, trainer_temperature=0.95, **_BATCH))


def _half_precision(seed: int) -> SimulatedRun:
    """The trainer's logprobs are rounded to bfloat16, which nothing declares."""
    run = simulate(Settings(seed=seed, **_BATCH))
    names = ("logprob", "old_logprob", "ref_logprob")
    return relogged(with_values(run, **{name: as_bfloat16(run.arrays[name]) for name in names}))


_MASKS: Final = ("RLD01",)
FAULTS: Final[Mapping[str, Small]] = MappingProxyType({
    "shift": Small("rollout logprobs shifted by 1 token in 5% of the rows", _shifted),
    "padding": Small("2% of the trained tokens are padding", _padding_trained, _MASKS),
    "observations": Small("2% of the trained tokens are tool output", _observations_trained, _MASKS),
    "end": Small("2% of the tokens, end tokens, left out of the mask", _end_left_out, _MASKS),
    "lag": Small("half of the rows one version old, versions recorded", _late),
    "lag-unknown": Small("half of the rows one version old, no versions recorded", _late_unknown),
    "colder": Small("sampled at temperature .95, scored at 1", _colder),
    "warmer": Small("sampled at temperature 1, scored at .95", _warmer),
    "bfloat16": Small("logprobs rounded to bfloat16, not declared", _half_precision),
})  # fmt: skip
"""By name."""

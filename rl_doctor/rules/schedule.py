"""Learning rates that never arrive, that are too small for what is trained, and optimizers that start anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.report.model import Evidence, Hit
from rl_doctor.rules import trend
from rl_doctor.rules.reading import KL_OLD, KL_REFERENCE, evidence, first_of, lacking, span, times, too_short
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_RATIO: Final = ("warmup_ratio", "lr_warmup_ratio", "lr_warmup_steps_ratio")
_STEPS: Final = ("warmup_steps", "lr_warmup_steps", "num_warmup_steps")
_TOTAL: Final = ("max_steps", "total_training_steps", "total_steps", "num_training_steps")
_RATE: Final = ("learning_rate", "lr", "actor_learning_rate")
_ADAPTER: Final = ("lora_rank", "lora_r", "use_peft", "lora", "peft_config", "use_lora", "lora_alpha", "adapter")


def settings(native: Mapping[str, Any] | None) -> Iterator[tuple[str, Any]]:
    """Every setting of a native configuration, by the last part of its name."""
    for key, value in (native or {}).items():
        if isinstance(value, Mapping):
            if str(key).rpartition(".")[2] in _ADAPTER:
                yield str(key).rpartition(".")[2], bool(value)
            yield from settings(value)
        else:
            yield str(key).rpartition(".")[2], value


def number(view: View, names: tuple[str, ...]) -> float | None:
    """The first setting of one of these names that is a positive number."""
    for name in names:
        for key, value in settings(view.config.native):
            if key == name and isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
                return float(value)
    return None


@rule(
    "RLD609", "warm-up-too-long",
    severity="warning", since="0.2.0",
    optional=("optim.learning_rate",),
    limits={"share": 0.3, "steps": 20},
    cause="The warm-up takes up so much of the run that the rate that was meant is hardly ever reached.",
    advice=("Warm up for a few per cent of the steps (10 to 20 steps are usual), or not at all.",),
    avoids=("A run that is still at its beginning: only a schedule that is known, or a run that is over, is judged.",),
    source="Public recipes corrected from a warm-up of .95 of the run to .285",
)  # fmt: skip
def warm_up_too_long(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The learning rate spends a large part of the run on its way up.

    With a linear warm-up over the whole run the mean rate is half of what was meant, and early steps learn next to nothing.

    The share is that of the configuration (`warmup_ratio`, or `warmup_steps` of `max_steps`, by their various names); for a run
    that is complete, where that is not known, the share of steps before the rate is within 1% of its largest, if it rises all
    the way. It fires from `share` on, and `steps` steps.
    """
    share, total = number(view, _RATIO), number(view, _TOTAL)
    steps = number(view, _STEPS)
    series = view.get("optim.learning_rate")
    if share is None and steps is not None and total is not None:
        share = steps / total
    if share is not None and share <= 1.0:
        long = total is None or share * total >= limits["steps"]
        if share >= limits["share"] and long:
            item = Evidence("config.native", None, None, share, None, limits["share"], "1")
            yield Hit(f"The warm-up takes {share:.0%} of the run by its configuration", "warning", (item,))
        return
    if series is None:
        yield lacking(view, "optim.learning_rate")
        return
    if view.info.status != "complete" or len(series) < 2 * limits["steps"]:
        yield Skip("config", "the length of the schedule is not known", ("config.native",))
        return
    reached = int(np.argmax(series.values >= 0.99 * float(np.max(series.values))))
    rising = bool(np.all(np.diff(series.values[: reached + 1]) > 0.0))
    if rising and reached >= limits["steps"] and reached >= limits["share"] * len(series):
        yield Hit(
            f"The learning rate rises for {reached} of {len(series)} steps, {span(series, 0, reached)}, to what was meant",
            "warning",
            (evidence(series, 0, reached, value=reached / len(series), limit=limits["share"], share_of_steps="warm-up"),),
        )


@rule(
    "RLD610", "adapter-rate-too-low",
    severity="warning", since="0.2.0",
    optional=("optim.learning_rate", *KL_REFERENCE),
    limits={"rate": 2e-6, "still": 1e-4, "steps": 20},
    cause="An adapter is trained at a rate that is usual for all weights: it needs ten to a hundred times as much.",
    advice=("Train LoRA at 1e-5 to 1e-4; watch the KL to the reference leave 0 within the first 20 steps.",),
    avoids=("Adapters that move: a KL to the reference above 1e-4.", "Runs without an adapter.", "The first steps."),
    source="Public threads on LoRA runs at 1e-6 that stall; arXiv:2106.09685 (rates of LoRA)",
)  # fmt: skip
def adapter_rate_too_low(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """A low-rank adapter is trained at a learning rate of full fine-tuning, and the policy stays where it was.

    One half of an adapter starts at 0, so that its first updates move the policy by the square of the rate, roughly.

    It needs an adapter in the native configuration and a largest rate of at most `rate`. It is a warning if the KL to the
    reference is below `still` after `steps` steps, and info where it was not measured.
    """
    adapter = any(key in _ADAPTER and bool(value) and value not in ("none", "0") for key, value in settings(view.config.native))
    if view.config.native is None:
        yield Skip("config", "whether an adapter is trained is not known", ("config.native",))
        return
    series = view.get("optim.learning_rate")
    rate = float(np.max(series.values)) if series is not None and series.values.any() else number(view, _RATE)
    if not adapter or rate is None or rate > limits["rate"]:
        return
    kl = first_of(view, *KL_REFERENCE)
    if kl is not None and len(kl) < limits["steps"]:
        yield too_short(kl, int(limits["steps"])) or Skip("length", "inconclusive")
        return
    level = None if kl is None else abs(trend.late(kl.values).center)
    if level is not None and level > limits["still"]:
        return
    items = [Evidence("optim.learning_rate", None, None, rate, None, limits["rate"], "1")]
    if kl is not None:
        items.append(evidence(kl, trend.late(kl.values).first, -1, limit=limits["still"]))
    yield Hit(
        f"An adapter is trained at a rate of {rate:.2g}"
        + ("" if kl is None else f", and {kl.metric} is {level:.2g} after {len(kl)} steps"),
        "info" if kl is None else "warning",
        tuple(items),
        unchecked=("whether the policy moves: the KL to the reference",) if kl is None else (),
    )


_UPDATES: Final = (*KL_OLD, "policy.clip_frac", "policy.outside_frac", "optim.grad_norm")


@rule(
    "RLD611", "optimizer-state-lost",
    severity="warning", since="0.2.0",
    optional=("optim.learning_rate", *_UPDATES, "mismatch.abs"),
    limits={"drop": 0.2, "factor": 3.0, "within": 5, "back": 2},
    cause="The run was resumed without the state of its optimizer or of its schedule.",
    advice=(
        "Save and load optimizer and scheduler with the weights.",
        "If the state is lost, warm up again: the first steps of an optimizer without moments are as large as the rate allows.",
    ),
    avoids=("A restart that goes on where it was.", "Schedules with restarts whose updates stay small.", "The first warm-up."),
    source="Public threads on resumed runs whose first updates are many times as large",
)  # fmt: skip
def optimizer_state_lost(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """In mid-run the schedule begins anew, or the first updates after a resume are several times as large as before.

    Adam divides by the root of a mean of squares that starts at 0: its first updates have the size of the rate in every
    coordinate, however small the gradient. A schedule that was not loaded warms up a second time.

    A restart is where the learning rate falls below `drop` of what it was and then climbs for at least three steps. It is a
    warning if the largest of the KL to the old policy and the clip fraction (of `within` steps after it) exceeds its level
    before `factor` times and comes back (for `back` steps), else info.
    """
    series = view.get("optim.learning_rate")
    if series is None:
        yield lacking(view, "optim.learning_rate")
        return
    if skip := too_short(series, 16):
        yield skip
        return
    restart = _restart(series, limits["drop"])
    if restart is None:
        return
    step = int(series.steps[restart])
    grown = [
        (found, factor) for name in _UPDATES if (factor := _burst(found := view.get(name), step, limits)) is not None and found
    ]
    words = "".join(f"; {found.metric} rises {times(factor)} there and comes back" for found, factor in grown[:1])
    yield Hit(
        f"The learning rate starts anew at step {step}: {series.values[restart - 1]:.2g}, then {series.values[restart]:.2g} and "
        f"up again{words}",
        "warning" if grown else "info",
        (
            evidence(series, restart, min(restart + 2, len(series) - 1), baseline=float(series.values[restart - 1])),
            *(evidence(found, int(np.searchsorted(found.steps, step)), -1) for found, _ in grown[:1] if found.steps[-1] >= step),
        ),
        unchecked=() if first_of(view, *_UPDATES[:-1]) is not None else ("the size of the updates: old_logprob",),
    )


def _restart(series: Series, drop: float) -> int | None:
    """The point at which the rate falls at once and then climbs again; None if there is none."""
    values = series.values
    falls = np.flatnonzero((values[1:] < drop * values[:-1]) & (values[:-1] > 0.0)) + 1
    for index in falls.tolist():
        after = values[index : index + 4]
        if index >= 4 and after.size == 4 and bool(np.all(np.diff(after) > 0.0)):
            return int(index)
    return None


def _burst(series: Series | None, step: int, limits: Limits) -> float | None:
    """By how much a series stands above its level right after a step, if it comes back; None if it does not."""
    if series is None:
        return None
    index = int(np.searchsorted(series.steps, step))
    before = np.abs(series.values[max(index - 10, 0) : index])
    after = np.abs(series.values[index : index + 10 + int(limits["within"])])
    if before.size < 5:
        return None
    high = limits["factor"] * float(np.median(before))
    large = np.flatnonzero(after[: int(limits["within"])] > high)
    if not high or not large.size:
        return None
    later = after[int(large[-1]) + 1 :]
    comes_back = later.size >= limits["back"] and float(np.median(later)) <= high
    return limits["factor"] * float(np.max(after[: int(limits["within"])])) / high if comes_back else None

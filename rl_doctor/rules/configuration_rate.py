"""Learning rates and schedules that the configuration alone shows to be unusual, and batches that are used too often."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from rl_doctor.report.model import Hit
from rl_doctor.rules.configured import number, settings, silent, stated, unknown, updates_per_batch
from rl_doctor.rules.reading import evidence
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.view import View

_RATE: Final = ("learning_rate", "actor.optim.lr", "actor.adam.lr", "actor_learning_rate", "lr")
_ADAPTER: Final = ("lora_rank", "lora.rank", "lora_r", "use_peft", "use_lora", "lora", "peft_config", "adapter")
_WARM_UP: Final = ("warmup_steps", "optim.lr_warmup_steps", "lr_warmup_steps", "num_warmup_steps")
_TOTAL: Final = ("max_steps", "total_training_steps", "total_steps", "num_training_steps")


def has_adapter(view: View) -> bool | None:
    """Whether an adapter is trained, by the trainer's own settings; None where they do not say."""
    known: list[Any] = [
        value
        for path, value in settings(view.config.native)
        if any(path == name or path.endswith(f".{name}") for name in _ADAPTER)
    ]
    return any(value not in (None, False, 0, "", "none", "0") for value in known) if known else None


@rule(
    "RLD710", "learning-rate-unusual",
    severity="info", since="0.2.0",
    optional=("optim.learning_rate",),
    limits={"full": 5e-5, "any": 1e-2, "least": 1e-9},
    cause="The learning rate is far from what is usual for what is trained.",
    advice=(
        "Usual rates are 1e-7 to 1e-5 for all weights and 1e-5 to 1e-4 for an adapter; small models bear more.",
        "Look at the KL to the reference and the share of clipped ratios: they say whether it is too high or too low.",
    ),
    avoids=("Training of which it is not known what is trained.", "Schedules: the largest rate counts."),
    source="Recipes of public GRPO and PPO runs; arXiv:2106.09685 (rates of LoRA)",
)  # fmt: skip
def learning_rate_unusual(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """The largest learning rate is out of the range that is usual.

    It is info above `any` or below `least` for whatever is trained, and above `full` where the settings say that no adapter is
    trained. A low rate of an adapter has a rule of its own (adapter-rate-too-low).
    """
    series = view.get("optim.learning_rate")
    rate = float(series.values.max()) if series is not None else number(view, *_RATE)
    if not rate:
        yield silent("the learning rate")
        return
    adapter = has_adapter(view)
    high = limits["any"] if adapter is not False else limits["full"]
    if limits["least"] <= rate <= high:
        return
    limit = high if rate > high else limits["least"]
    of = {True: " for an adapter", False: " for all weights", None: ""}[adapter]
    item = stated("native.learning_rate", rate, limit) if series is None else evidence(series, value=rate, limit=limit)
    yield Hit(
        f"The learning rate is {rate:.2g}{of}, where at {'most' if rate > high else 'least'} {limit:.0e} is usual",
        "info", (item,), suspect="rate-unusually-high" if rate > high else "rate-unusually-low",
    )  # fmt: skip


@rule(
    "RLD713", "batch-used-too-often",
    severity="info", since="0.2.0",
    optional=("policy.clip_frac",),
    limits={"updates": 64},
    cause="Each generation batch is used for many optimizer steps: old_logprob is far behind by the last of them.",
    advice=("Use 1 to 4 epochs and mini-batches such that a batch gives 1 to 32 steps; sample more often instead.",),
    avoids=("Up to 64 steps per batch, which PPO takes.",),
    source="PPO, arXiv:1707.06347; Spinning Up and later studies of PPO on sample reuse, arXiv:2006.05990",
)  # fmt: skip
def batch_used_too_often(view: View, limits: Limits) -> Iterator[Hit | Skip]:
    """More optimizer steps are taken on each generation batch than its log-probabilities stay meaningful for.

    Clipping keeps single steps in bounds and not their sum: after many steps most tokens are clipped, and the rest of the
    update is noise.

    It fires if epochs * minibatches exceeds `updates`.
    """
    steps = updates_per_batch(view)
    if steps is None:
        yield unknown(view, "epochs", "minibatches") or silent("how often a batch is used")
        return
    if steps > limits["updates"]:
        clipped = view.get("policy.clip_frac")
        yield Hit(
            f"Each generation batch is used for {steps} optimizer steps",
            "info",
            (
                stated("epochs", view.config.epochs or 0), stated("minibatches", view.config.minibatches or 0, unit="steps"),
                *((evidence(clipped),) if clipped is not None else ()),
            ),
            suspect="batch-reused-many-times",
        )  # fmt: skip


@rule(
    "RLD714", "warm-up-never-ends",
    severity="warning", since="0.2.0",
    cause="The warm-up is longer than the run: the learning rate that was meant is never reached.",
    advice=("Warm up for a few per cent of the steps, or not at all; check that both numbers count the same steps.",),
    avoids=("Runs whose number of steps is not configured.", "A warm-up that is long but ends: that is another rule's."),
    source="Public recipes in which steps of the optimizer and of the driver were mixed up",
)  # fmt: skip
def warm_up_never_ends(view: View, limits: Limits) -> Iterator[Hit | Skip]:  # noqa: ARG001 - it has none
    """More warm-up steps are configured than steps.

    The rate is still rising when the run ends: all of it is trained at a part of the rate, half of it on average at best.

    It reads the native numbers of warm-up steps and of all steps.
    """
    warm_up, total = number(view, *_WARM_UP), number(view, *_TOTAL)
    if warm_up is None or total is None or warm_up < 0 or total <= 0:
        yield silent("the length of the schedule")
        return
    if warm_up > total:
        yield Hit(
            f"The learning rate warms up for {warm_up:.0f} steps, and the run has {total:.0f}", "warning",
            (stated("native.warmup_steps", warm_up, total, "steps"), stated("native.max_steps", total, unit="steps")),
            suspect="warm-up-beyond-the-end",
        )  # fmt: skip

"""prime-rl: keys of its trainer and of its orchestrator.

``rollout_logprob`` is its ``inference_logprobs``, ``batch_num_tokens`` the number of loss tokens of a step over all ranks. Means
over sequences count those without a loss token, and means over micro-batches those of padding alone: a recording must have them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rl_doctor.analyzer.dialects.recipes import CELL, Fold, Of, Recipe, Stage, absent, exact, of
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainer

_ORCHESTRATOR: Final = (
    ("reward/mean", "reward.mean"),
    ("reward/max", "reward.max"),
    ("reward/min", "reward.min"),
    ("num_output_tokens/mean", "length.mean"),
    ("num_output_tokens/max", "length.max"),
    ("num_output_tokens/min", "length.min"),
    ("is_truncated/mean", "length.truncated_frac"),
    ("num_turns/mean", "turns.mean"),
    ("solved_none", "group.all_min_frac"),
    ("solved_all", "group.all_max_frac"),
    ("solved_none/mean", "group.all_min_frac"),
    ("solved_all/mean", "group.all_max_frac"),
)
_SEEN: Final = absent("is of the rollouts as the orchestrator saw them, before they became the sequences that were trained on")
_OTHER: Final = absent("is of other versions, whose code was not read")
_MIXED: Final = absent("adds up components, and which token is in which is not recorded")
_LOSS: Final = "native.loss."
_DEFAULT: Final = {f"{_LOSS}type": ("default",)}
_IPO: Final = {f"{_LOSS}type": ("ipo",)}
_SAMPLED: Final = {"first": "logprob", "second": "rollout_logprob"}
_POOLED: Final = Fold()
_ROWS: Final = Fold(row="mean", empty=True)
_SPARSE: Final = {"mean": "mean", "std": "std (ddof 1)", "min": "min", "max": "max"}
_MISMATCH: Final = of("estimate", kind="k3", **_SAMPLED)
_MIDDLE: Final = absent("a median needs all values at once, and sums are kept")
_RECORDED: Final = "*over all sequences*"
_MEMBERS: Final = Fold(row="mean")
_COVERED: Final = "*over sequences of the component*"
_STAGES: Final = {
    "over all sequences": "of the sequences of a step; one without a loss token counts as 0",
    "over sequences of the component": "of the sequences of a step that have a token of the component",
    "sampler ratio": "logprob - rollout_logprob, not clamped; r is its exponential",
    "trust region": "the tokens whose p - p_rollout is neither below -mask_low with A < 0 nor above mask_high with A > 0; ipo: "
    "whose "
    "|p - p_rollout| is at most ipo_threshold",
}
_REINFORCED: Final = frozenset({"grpo", "dr_grpo", "rloo", "reinforce", "ppo", "gspo", "dapo"})
"""Algorithms whose loss is the policy's alone: distillation adds components, and which token is in which is not recorded."""


def _statistics(
    native: str, formula: str, recipes: tuple[tuple[Of, Of | None, dict[str, tuple[str, ...]]], ...], unit: str,
    *, fold: Fold = _POOLED, metrics: dict[str, str] | None = None, note: str = "", factor: float = 1.0,
) -> Iterator[Name]:  # fmt: skip
    """The five statistics that ``Tensors.compute_stats`` takes of everything gathered from all ranks."""
    for statistic, words in _SPARSE.items():
        made = tuple(
            Recipe(value, fold, statistic=statistic, where=where, when=when, unit=unit)  # type: ignore[arg-type]
            for value, where, when in recipes
        )
        yield Name(
            f"{native}/{statistic}", (metrics or {}).get(statistic), factor=factor if statistic == "mean" else 1.0,
            note=note if statistic == "mean" else "", definition=exact(f"{words} {formula}", *made),
        )  # fmt: skip
    yield Name(f"{native}/median", None, definition=_MIDDLE)


def _region(**extra: float) -> tuple[tuple[Of, None, dict[str, tuple[str, ...]]], ...]:
    """What the trust region leaves out, by the kind of loss; with ``sign`` only where the advantage has that sign."""
    signed = of("moved", low=f"{_LOSS}dppo_mask_low", high=f"{_LOSS}dppo_mask_high", **_SAMPLED, **extra)
    both = of("moved", kind="both", high=f"{_LOSS}ipo_threshold", **_SAMPLED)
    return ((signed, None, _DEFAULT), *(() if extra else ((both, None, _IPO),)))


def _beyond(quantity: Of, name: str, *, ipo: bool = True) -> tuple[tuple[Of, Of, dict[str, tuple[str, ...]]], ...]:
    """A quantity of those tokens that are left out ("moved") or kept ("stayed")."""
    signed = of(name, low=f"{_LOSS}dppo_mask_low", high=f"{_LOSS}dppo_mask_high", **_SAMPLED)
    both = of(name, kind="both", high=f"{_LOSS}ipo_threshold", **_SAMPLED)
    return ((quantity, signed, _DEFAULT), *(((quantity, both, _IPO),) if ipo else ()))


def _loss(kind: str, **region: str) -> Of:
    kept = of("times", of=of("kept_ratio", kind=kind, **_SAMPLED, **region), weight=f"{_LOSS}adv_tau")
    return of("sum", first=kept, second=of("square", **_SAMPLED), weight=f"{_LOSS}kl_tau")


_SIGNED: Final = _loss("signed", low=f"{_LOSS}dppo_mask_low", high=f"{_LOSS}dppo_mask_high")
_BOTH: Final = _loss("both", high=f"{_LOSS}ipo_threshold")
_PARTS: Final = {
    "mean": Fold(apart=CELL, divisor="batch_num_tokens"),
    "min": Fold(apart=CELL, divisor="batch_num_tokens", stages=(Stage(CELL, "min"),)),
    "max": Fold(apart=CELL, divisor="batch_num_tokens", stages=(Stage(CELL, "max"),)),
}


def _micro_losses() -> Iterator[Name]:
    formula = (
        "over micro-batches and ranks of sum(-adv_tau A r [kept] + kl_tau (log r)^2) / loss tokens of the step, *sampler ratio*: "
        "the loss divided by the number of micro-batches and ranks"
    )
    for statistic, fold in _PARTS.items():
        made = (Recipe(_SIGNED, fold, when=_DEFAULT), Recipe(_BOTH, fold, when=_IPO))
        yield Name(
            f"loss/{statistic}", "policy.loss_total" if statistic == "mean" else None, algorithms=_REINFORCED,
            definition=exact(f"{statistic} {formula}", *made),
            note="is the loss divided by the number of micro-batches and ranks" if statistic == "mean" else "",
        )  # fmt: skip
    yield Name("loss/mean", "policy.loss_total", definition=_MIXED)
    yield Name("loss/std", None, definition=absent("a deviation between micro-batches; their losses are averaged"))
    yield Name("loss/median", None, definition=_MIDDLE)


def _ratio(native: str) -> Name:
    mismatch, entropy = Recipe(_MISMATCH), Recipe(of("column", name="entropy"))
    recipe = Recipe(mismatch.value, beside=(entropy,), joined="quotient")
    return Name(native, None, definition=exact("mismatch_kl/all/mean / entropy/all/mean", recipe))


_SAMPLER: Final = "is between the sampler and the policy being trained"
_NEGATED: Final = "is reference - policy here, and is read with the other sign"
_OF_ENVIRONMENT: Final = of("of_row", name="data_source", value="word.env")

PRIME_RL: Final = trainer(
    Trainer(
        name="prime-rl",
        label="prime-rl",
        source="prime-rl, August 2026: trainer/rl/train.py, trainer/rl/loss.py, orchestrator/metrics.py",
        names=(
            *(
                Name(f"train/agg/{subset}/{native}", metric, definition=_SEEN)
                for native, metric in _ORCHESTRATOR
                for subset in ("all", "effective")
            ),
            Name("reward/all/mean", "reward.mean", definition=_SEEN),
            Name("reward/mean", "reward.mean", definition=_SEEN),
            Name("seq_len/mean", None, definition=_SEEN),
            Name("is_truncated/mean", "length.truncated_frac", definition=_SEEN),
            Name("is_truncated/all/mean", "length.truncated_frac", definition=_SEEN),
            Name("batch/solve_none", "group.all_min_frac", definition=_SEEN),
            Name("batch/solve_all", "group.all_max_frac", definition=_SEEN),
            *_micro_losses(),
            *_statistics(
                "entropy/all", "over the loss tokens of all ranks of the entropy at the token's temperature",
                ((of("column", name="entropy"), None, {}),), "nat", metrics={"mean": "policy.entropy"},
            ),
            Name("entropy/mean", "policy.entropy", definition=_OTHER),
            *_statistics(
                "mismatch_kl/all", "over the loss tokens of all ranks of k3(*sampler ratio*)",
                ((_MISMATCH, None, {}),), "nat", metrics={"mean": "mismatch.k3"}, note=_SAMPLER,
            ),
            Name("mismatch_kl/mean", "mismatch.k3", note=_SAMPLER, definition=_OTHER),
            _ratio("kl_ent_ratio/mean"),
            *_statistics(
                "is_masked", f"{_RECORDED}, of the mean of [outside the *trust region*]", _region(), "1", fold=_ROWS,
            ),
            *_statistics(
                "is_masked_low", f"{_RECORDED}, of the mean of [p - p_rollout < -mask_low and A < 0]", _region(sign=-1.0), "1",
                fold=_ROWS,
            ),
            *_statistics(
                "is_masked_high", f"{_RECORDED}, of the mean of [p - p_rollout > mask_high and A > 0]", _region(sign=1.0), "1",
                fold=_ROWS,
            ),
            *_statistics(
                "masked_mismatch_kl", f"{_RECORDED}, of the mean of k3(*sampler ratio*) over tokens outside the *trust region*",
                _beyond(_MISMATCH, "moved"), "nat", fold=_ROWS,
            ),
            *_statistics(
                "unmasked_mismatch_kl", f"{_RECORDED}, of the mean of k3(*sampler ratio*) over tokens inside the *trust region*",
                _beyond(_MISMATCH, "stayed"), "nat", fold=_ROWS,
            ),
            *_statistics(
                "masked_advantage_positive", f"{_RECORDED}, of the mean of [A > 0] over tokens outside the *trust region*",
                _beyond(of("positive", name="advantage"), "moved", ipo=False), "1", fold=_ROWS,
            ),
            *_statistics(
                "masked_advantage_negative", f"{_RECORDED}, of the mean of [A < 0] over tokens outside the *trust region*",
                _beyond(of("positive", name="advantage", factor=-1.0), "moved", ipo=False), "1", fold=_ROWS,
            ),
            *_statistics(
                "ref_kl", f"{_COVERED}, of the mean of y: minus the KL",
                ((of("log_ratio", first="ref_logprob", second="logprob"), None, {}),), "nat", fold=_MEMBERS,
                metrics={"mean": "ref.kl_k1"}, factor=-1.0, note=_NEGATED,
            ),
            *_statistics(
                "ref_kl/is_masked", f"{_COVERED}, of the mean of [p - p_rollout < -0.2]",
                ((of("moved", kind="fallen", low=0.2, **_SAMPLED), None, {}),), "1", fold=_MEMBERS,
            ),
            *_statistics(
                "ref_kl/masked_mismatch_kl", f"{_COVERED}, of the mean of k3(*sampler ratio*) where p - p_rollout < -0.2",
                ((of("part", of=_MISMATCH, where=of("moved", kind="fallen", low=0.2, **_SAMPLED)), None, {}),), "nat",
                fold=_MEMBERS,
            ),
            *_statistics(
                "ref_kl/unmasked_mismatch_kl", f"{_COVERED}, of the mean of k3(*sampler ratio*) where p - p_rollout >= -0.2",
                ((of("part", of=_MISMATCH, where=of("stayed", kind="fallen", low=0.2, **_SAMPLED)), None, {}),), "nat",
                fold=_MEMBERS,
            ),
            Name("ref_kl/all/mean", "ref.kl_k1", factor=-1.0, note=_NEGATED, definition=_OTHER),
            *_statistics(
                "nll", f"{_COVERED}, of the mean of -logprob",
                ((of("times", of=of("column", name="logprob"), weight=-1.0), None, {}),),
                "nat", fold=_MEMBERS,
            ),
            *_statistics(
                "entropy/{env}", "over the loss tokens of an environment of the entropy",
                ((of("column", name="entropy"), _OF_ENVIRONMENT, {}),), "nat",
            ),
            *_statistics(
                "mismatch_kl/{env}", "over the loss tokens of an environment of k3(*sampler ratio*)",
                ((_MISMATCH, _OF_ENVIRONMENT, {}),), "nat",
            ),
            Name("importance_ratio/mean", "mismatch.exp_mean", definition=_OTHER),
            Name("off_policy/mean", "stale.mean", definition=_SEEN),
            Name("off_policy/max", "stale.max", definition=_SEEN),
            Name("off_policy_level/all/max", "stale.max", definition=_SEEN),
            Name("batch/off_policy_level/max", "stale.max", definition=_SEEN),
            Name("batch/off_policy_level/mean", "stale.mean", definition=_SEEN),
            Name("off_policy_level/all/mean", "stale.mean", definition=_SEEN),
            Name("optim/grad_norm", "optim.grad_norm", definition=absent("gradients are not recorded")),
            Name("optim/lr", "optim.learning_rate", definition=absent("is set by the schedule")),
            Name("max_vio/mean", None, definition=absent("the load of the experts is not recorded")),
        ),
        stages=_STAGES,
        marks=(
            "mismatch_kl/all/mean", "mismatch_kl/mean", "entropy/all/mean", "is_masked/mean", "unmasked_mismatch_kl/mean",
            "masked_mismatch_kl/mean", "kl_ent_ratio/mean", "batch/solve_none", "off_policy/max", "reward/all/mean",
            "train/agg/all/reward/mean", "train/agg/effective/reward/mean", "off_policy_level/all/max", "max_vio/mean",
        ),
        validation=(("eval/{source}/avg@{n}",), ("eval/{source}/reward/mean", "eval/{source}/reward")),
        best=(("eval/{source}/pass@{n}",),),
    )
)  # fmt: skip

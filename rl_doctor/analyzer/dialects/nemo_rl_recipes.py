"""How NeMo-RL arrives at its numbers: the loss, what it compares, and in which stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Final, Literal

from rl_doctor.analyzer.dialects.recipes import (
    UNDIVIDED,
    Argument,
    Definition,
    Fold,
    Of,
    Recipe,
    Stage,
    Statistic,
    absent,
    derived,
    exact,
    of,
)
from rl_doctor.analyzer.dialects.registry import Name
from rl_doctor.schema import RunConfig

When = Mapping[str, tuple[Argument, ...]]
Case = tuple[Of, When]
"""A quantity, and the settings with which it is the trainer's."""

DPO: Final = frozenset({"dpo"})
SFT: Final = frozenset({"sft"})
_LOSS: Final = "native.loss_fn."
_MINIBATCH: Final = ("epoch", "minibatch")
_CELLS: Final = ("rank", "epoch", "minibatch", "microbatch")
OVER_TOKENS: Final = Fold(apart=_MINIBATCH)
_OVER_ROWS: Final = (
    Fold(row="mean", apart=_MINIBATCH, divisor="global_batch_size"),
    Fold(row="mean", empty=True, apart=_MINIBATCH),
)
_ROWS: Final = (Fold(row="sum", apart=_MINIBATCH, divisor="global_batch_size"), Fold(row="sum", empty=True, apart=_MINIBATCH))
_TOKENS: Final = "*token mean* of {}"
_SEQUENCES: Final = "*sequence mean* of {}"
STAGES: Final = {
    "token mean": "sum over the tokens of token_mask and sample_mask / (valid tokens of the global batch + 1e-8), summed over "
    "micro-batches and ranks; mean over global batches",
    "sequence mean": "sum over sequences / valid sequences of the global batch, summed over micro-batches and ranks; mean over "
    "global batches",
    "policy loss": "max(-A r, -A clip(r, 1 - ratio_clip_min, 1 + ratio_clip_max)), dual = ratio_clip_c, r = exp(x), not clamped "
    "(of "
    "the sequence: exp of the mean; forced: 1; without a ratio: -A new; cispo: -clip(r) A new), times w",
}

_FORCED: Final[When] = {_LOSS + "force_on_policy_ratio?": (True,)}
_FREE: Final[When] = {_LOSS + "force_on_policy_ratio?": (None, False)}
_RANGE: Final = {"low": f"config.clip_low|{_LOSS}ratio_clip_min", "high": f"config.clip_high|{_LOSS}ratio_clip_max"}
_DUAL: Final = f"config.dual_clip|{_LOSS}ratio_clip_c?"
_SEQUENCE: Final = of("row_average", of=of("log_ratio"))
NOTHING: Final = of("constant", value=0.0)
KIND: Final = f"{_LOSS}reference_policy_kl_type|config.kl_estimator"


def _kinds() -> Iterator[tuple[str, When]]:
    """What the loss takes for a ratio."""
    yield "forced", _FORCED
    yield "logprob", {**_FREE, _LOSS + "disable_ppo_ratio": (True,)}
    plain: When = {**_FREE, _LOSS + "disable_ppo_ratio": (False,)}
    yield "sequence", {**plain, _LOSS + "sequence_level_importance_ratios": (True,)}
    yield "token", {**plain, _LOSS + "sequence_level_importance_ratios": (False,)}


def _log_ratio(kind: str) -> Mapping[str, Of]:
    return {"forced": {"x": NOTHING}, "sequence": {"x": _SEQUENCE}}.get(kind, {})


def ratios(*, clipped: bool) -> Iterator[Case]:
    """What is logged as the ratio, or as the clipped one."""
    for kind, when in _kinds():
        if kind == "logprob":
            yield of("column", name="logprob"), when
        elif clipped and kind != "forced":
            yield of("clipped_ratio", **_RANGE, **_log_ratio(kind)), when
        else:
            yield of("ratio", **_log_ratio(kind)), when


def _surrogates() -> Iterator[Case]:
    for kind, when in _kinds():
        cispo = {_LOSS + "use_cispo?": (True,)}
        if kind == "logprob":
            yield of("reinforce"), {**when, _LOSS + "ratio_clip_c?": (None,)}
            continue
        if kind == "token":
            yield of("cispo", **_RANGE), {**when, **cispo}
        yield of("surrogate", dual=_DUAL, **_RANGE, **_log_ratio(kind)), {**when, _LOSS + "use_cispo?": (None, False)}


def _previous(when: When) -> str:
    """The policy before the update; the current one where the ratio is forced to 1."""
    return "logprob" if when.get(_LOSS + "force_on_policy_ratio?") == (True,) else "old_logprob"


_TRUNCATION: Final = _LOSS + "truncated_importance_sampling_type?"
_LEVEL: Final = _LOSS + "sequence_level_importance_ratios"
_HIGHEST: Final = _LOSS + "truncated_importance_sampling_ratio"
_LEAST: Final = _LOSS + "truncated_importance_sampling_ratio_min"


def _weights(first: str) -> Iterator[Case]:
    """The weight that corrects for the engine, per token."""
    engine = {"first": first, "second": "rollout_logprob"}
    alone: When = {_LEVEL: (False,)}
    yield of("weight", **engine), {**alone, _TRUNCATION: (None,)}
    yield of("weight_truncated", low=_LEAST + "?", high=_HIGHEST, **engine), {**alone, _TRUNCATION: ("tis",)}
    yield of("weight_kept", low=_LEAST, high=_HIGHEST, **engine), {**alone, _TRUNCATION: ("icepop",)}
    kept = of("within_sequence", low=_LEAST, high=_HIGHEST, **engine)
    yield of("product", left=of("weight", **engine), right=kept), {**alone, _TRUNCATION: ("seq-mask-tis",)}
    whole = of("ratio", x=of("row_total", of=of("log_ratio", **engine)))
    yield whole, {_LEVEL: (True,), _TRUNCATION: (None,)}


def _losses() -> Iterator[Case]:
    """The loss per token with the KL to the reference."""
    corrected = _LOSS + "use_importance_sampling_correction?"
    for loss, when in _surrogates():
        yield loss, {**when, corrected: (None, False)}
        for weight, more in _weights(_previous(when)):
            if all(when.get(name, values) == values for name, values in more.items()):
                yield of("product", left=loss, right=weight), {**when, **more, corrected: (True,)}


_KL: Final = of(
    "reference_kl", kind=KIND, input=f"config.kl_input_clamp|{_LOSS}kl_input_clamp_value?",
    most=f"config.kl_output_clamp|{_LOSS}kl_output_clamp_value?", weighted=_LOSS + "use_on_policy_kl_approximation?",
    sampler="rollout_logprob",
)  # fmt: skip
_PENALTY: Final = f"config.kl_coef|{_LOSS}reference_policy_kl_penalty"
_IN_LOSS: Final[When] = {_LOSS + "use_kl_in_reward?": (None, False)}
_IN_REWARD: Final[When] = {_LOSS + "use_kl_in_reward?": (True,)}
_AGGREGATIONS: Final[tuple[tuple[Fold, When], ...]] = (
    (OVER_TOKENS, {_LOSS + "token_level_loss": (True,)}),
    *((fold, {_LOSS + "token_level_loss": (False,)}) for fold in _OVER_ROWS),
)
_NLL: Final = _LOSS + "positive_example_nll_weight?"
_OF_PPO: Final = "native.ppo.adv_estimator.name?"
NO_NLL: Final[tuple[When, ...]] = ({_NLL: (None, 0.0)}, {_OF_PPO: (None,)})
"""The GRPO trainers give the loss no rewards, so that it stays 0 there whatever its weight."""
_NLL_FOLD: Final = Fold(apart=_CELLS, stages=(Stage(("rank", "microbatch"), "sum"),))


def positive_nll(value: Of) -> Recipe:
    """Of each micro-batch the mean over the tokens of samples with a positive reward, summed over micro-batches and ranks."""
    return Recipe(value, _NLL_FOLD, where=of("above", name="reward"), unit="nat", when={_OF_PPO: ("gae", "raw_reward")})


def total_loss() -> Definition:
    """The loss, with the KL to the reference and, in PPO, the NLL of positive samples."""
    found = []
    for (loss, when), (fold, more) in product(_losses(), _AGGREGATIONS):
        penalised = of("sum", first=loss, second=of("scaled", value=_KL, factor=_PENALTY))
        for value, place in ((penalised, _IN_LOSS), (loss, _IN_REWARD)):
            found += [Recipe(value, fold, when={**when, **more, **place, **none}) for none in NO_NLL]
            added = positive_nll(of("scaled", value=of("column", name="logprob"), factor=_NLL.removesuffix("?"), sign=-1.0))
            found.append(Recipe(value, fold, beside=(added,), when={**when, **more, **place, **added.when}))
    formula = "the *policy loss* + beta KL + the weighted loss of positive samples"
    return exact(f"{_TOKENS.format(formula)}; sequence level: {_SEQUENCES.format('the mean over its tokens')}", *found)


def token_mean(formula: str, *cases: Case, unit: str = "nat") -> Definition:
    """A mean over the valid tokens of each global batch, of the first case that holds."""
    return exact(_TOKENS.format(formula), *(Recipe(value, OVER_TOKENS, unit=unit, when=when) for value, when in cases))


def kl_penalty() -> Definition:
    """The KL to the reference, without its coefficient."""
    recipes = [Recipe(NOTHING, OVER_TOKENS, unit="nat", when=when) for when in (_IN_REWARD, {_PENALTY: (0.0,)})]
    recipes += [Recipe(_KL, fold, unit="nat", when={**more, **_IN_LOSS}) for fold, more in _AGGREGATIONS]
    formula = (
        "KL estimate of y, kept within kl_input_clamp_value, with use_on_policy_kl_approximation times "
        "exp(new - rollout), within kl_output_clamp_value; 0 where its coefficient is; aggregated like the loss"
    )
    return exact(formula, *recipes)


def against_engine(formula: str, quantity: str, *, unit: str = "nat", reverse: bool = False, **arguments: Argument) -> Definition:
    """A number that compares the policy before the update with the engine."""
    cases = []
    for when in (_FORCED, _FREE):
        first, second = _previous(when), "rollout_logprob"
        sides = {"first": second, "second": first} if reverse else {"first": first, "second": second}
        cases.append((of(quantity, **sides, **arguments), when))
    return token_mean(formula, *cases, unit=unit)


def sampling_ratio() -> Definition:
    """The weight that corrects for the engine."""
    cases = [
        (weight, {**when, **more})
        for when in (_FORCED, _FREE)
        for weight, more in _weights(_previous(when))
        if more[_LEVEL] == (False,)
    ]
    return token_mean("exp(d), truncated or set to 0 as configured", *cases, unit="1")


def told_of_sequences(config: RunConfig) -> str | None:
    """What that weight is of whole sequences: weights ``[B, 1]`` times a mask ``[B]`` are every weight times every sample."""
    loss = (config.native or {}).get("loss_fn")
    by_sequence = isinstance(loss, Mapping) and bool(loss.get("sequence_level_importance_ratios"))
    return (
        "multiplies the sum of the sequences' weights by the number of valid samples of each micro-batch" if by_sequence else ""
    )


def out_of_bounds() -> Definition:
    """Which tokens or sequences the truncation of that weight concerns."""
    recipes = []
    for when in (_FORCED, _FREE):
        engine = {"first": _previous(when), "second": "rollout_logprob", "high": _HIGHEST}
        for kind, low in (("tis", _LEAST + "?"), ("icepop", _LEAST)):
            recipes.append(
                Recipe(
                    of("weight_outside", low=low, **engine), OVER_TOKENS, when={**when, _TRUNCATION: (kind,), _LEVEL: (False,)}
                )
            )
        masked = {**when, _TRUNCATION: ("seq-mask-tis",)}
        for dropped in ({"dropped": "loss_mask"}, {}):
            recipes += [Recipe(of("sequences_outside", low=_LEAST, **engine, **dropped), fold, when=masked) for fold in _ROWS]
    formula = "1[exp(d) outside its bounds]; seq-mask-tis: 1[exp of its mean outside], over valid sequences"
    return exact(_TOKENS.format(formula), *recipes)


def over_step(formula: str, statistic: Statistic, cases: Iterator[Case], unit: str = "1") -> Definition:
    """A statistic over all valid tokens of a step."""
    return exact(formula, *(Recipe(value, statistic=statistic, unit=unit, when=when) for value, when in cases))


def advantage_of(statistic: Statistic) -> Definition:
    """Over the tokens of all samples, those that the sample mask leaves out too."""
    over = Recipe(of("column", name="advantage"), statistic=statistic)
    return exact(f"{statistic} over token_mask, whatever the sample mask", replace(over, mask="loss_mask"), over)


def sequence_error(statistic: Statistic, *, masked: bool) -> Definition:
    """Of each sequence the mean probability change, over the sequences with a token."""
    unbounded = {f"native.{one}.seq_logprob_error_threshold?": (None,) for one in ("grpo", "ppo")}
    over = Recipe(
        of("probability_change", first="old_logprob", second="rollout_logprob"), Fold(row="mean"), statistic=statistic,
        when={**_FREE, **({} if masked else unbounded)},
    )  # fmt: skip
    what = "that the threshold keeps" if masked else "before the threshold"
    return exact(f"{statistic} over sequences {what} of their mean of exp(abs(d))", over)


def rows_of(value: Of, statistic: Statistic = "mean", unit: str = "tokens", factor: float = 1.0) -> Recipe:
    """A statistic over the samples of a generation batch."""
    return Recipe(value, level="rollout", statistic=statistic, unit=unit, factor=factor)


def tokens_of(quantity: str, statistic: Statistic, words: str) -> Definition:
    """A number of tokens per sample, of those that the sample mask leaves out too."""
    return derived(
        f"{statistic} over samples of {words}",
        *(rows_of(of(quantity, mask=mask), statistic) for mask in ("loss_mask", "response_mask")),
    )


def baseline_share(value: float, factor: float = 100.0) -> Recipe:
    """How many samples have a baseline of that value, in percent."""
    others = "native.grpo.use_leave_one_out_baseline"
    return rows_of(of("rows_baseline", value=value, others=others), unit="%", factor=factor)


MIXED: Final = replace(
    rows_of(of("rows_constant", value=100.0), unit="%"), beside=(baseline_share(0.0, -100.0), baseline_share(1.0, -100.0))
)
NORMALISER: Final = absent("is the normaliser itself, averaged over as many entries as there are micro-batches on all ranks")
SCHEDULED: Final = absent("is set by a schedule")
GRADIENT: Final = absent("needs gradients", "norm before clipping, that of the last global batch on rank 0")
ENDS: Final[tuple[Literal["min", "max"], ...]] = ("min", "max")
_CLIP: Final = "config.value_clip|native.value_loss_fn.cliprange?"


def critic_names(prefix: str) -> tuple[Name, ...]:
    """What the value model logs, below a prefix."""
    value, returns = of("column", name="value"), of("column", name="return")
    residual = of("log_ratio", first="return", second="value")
    error = of("scaled", value=of("value_error", clip=_CLIP), factor="native.value_loss_fn.scale", sign=0.5)
    means = [Recipe(one, OVER_TOKENS) for one in (returns, value, _squared(returns), _squared(residual))]
    explained = replace(means[0], beside=tuple(means[1:]), joined="explained")
    formulas: tuple[tuple[str, str | None, str, Of, str], ...] = (
        ("loss", "value.loss", "0.5 scale max((V - G)^2, (clip(V, V_old -+ cliprange) - G)^2)", error, "1"),
        (
            "vf_clipfrac",
            "value.clip_frac",
            "1[the error of the clipped value is the larger]",
            of("value_clipped", clip=_CLIP),
            "1",
        ),
        ("values_mean", "value.mean", "V", value, "reward"),
        ("returns_mean", "return.mean", "R", returns, "reward"),
        ("returns_sq_mean", None, "R^2", _squared(returns), "1"),
        ("residual_sq_mean", None, "(G - V)^2", _squared(residual), "1"),
    )
    found = [
        Name(f"{prefix}{key}", metric, definition=token_mean(formula, (one, {}), unit=unit))
        for key, metric, formula, one, unit in formulas
    ]
    for statistic in ENDS:
        ends = Recipe(value, statistic=statistic, unit="reward")
        formula = f"{statistic} of V over valid tokens, with 0 for a micro-batch without one"
        found.append(Name(f"{prefix}values_{statistic}", None, definition=exact(formula, ends)))
    counted = Recipe(of("counted"), Fold(row="sum", apart=_MINIBATCH, divisor=UNDIVIDED), unit="sequences")
    found.append(
        Name(f"{prefix}num_valid_samples", None, definition=exact("number of samples; mean over global batches", counted))
    )
    found += [Name(f"{prefix}{key}", None, definition=NORMALISER) for key in ("global_valid_seqs", "global_valid_toks")]
    found += [Name(f"{prefix}{key}", None, definition=SCHEDULED) for key in ("lr", "wd")]
    found.append(Name(f"{prefix}grad_norm", None, definition=GRADIENT))
    formula = "1 - (mean (G - V)^2 - (mean G - mean V)^2) / max(mean G^2 - (mean G)^2, 1e-8), of the logged means"
    return (*found, Name(f"{prefix}explained_var", None, definition=exact(formula, explained)))


def _squared(value: Of) -> Of:
    return of("product", left=value, right=value)


STATISTICS: Final[tuple[Literal["mean", "min", "max"], ...]] = ("mean", "min", "max")
TURNS: Final[tuple[tuple[str, str | None, Statistic], ...]] = (
    ("avg_turns_per_sample", "turns.mean", "mean"), ("max_turns_per_sample", None, "max"), ("total_turns", None, "sum"),
)  # fmt: skip


def ended_by(reason: str, words: str) -> Definition:
    """The share of samples that ended for a reason."""
    return derived(f"share of samples that {words}", rows_of(of("row_is", name="finish_reason", value=reason), unit="1"))


COUNTS: Final = tuple(
    Recipe(of("counted", **dropped), Fold(row="sum", apart=_MINIBATCH, divisor=UNDIVIDED), unit="sequences")
    for dropped in ({"dropped": "loss_mask"}, {})
)
BEFORE: Final = absent("needs the sample mask as it was before the threshold")
ALONE: Final = (("vf_clipfrac", "value.clip_frac"), ("values_mean", "value.mean"), ("returns_mean", "return.mean"))
CRITIC_ALONE: Final = absent("stands for itself only in logs of the value model alone; the trainer logs it below critic/")
HELD_OUT: Final = absent("the rows that were sampled for validation are not recorded")
UNSAMPLED: Final[When] = {"native.grpo.use_dynamic_sampling?": (None, False), "native.ppo.use_dynamic_sampling?": (None, False)}

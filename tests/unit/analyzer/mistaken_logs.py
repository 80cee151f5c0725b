"""Runs in memory and what trainers would log of them, rightly or with one mistake: loops over padded micro-batches in numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rl_doctor.schema import RunConfig, RunInfo
from tests.unit.analyzer.reference_trl import Memory, Row, logged

Array = np.ndarray
LOW, HIGH, DUAL, KL_COEF, ENTROPY_COEF = 0.8, 1.28, 1.6, 0.05, 0.02
TOKENS = ("logprob", "old_logprob", "ref_logprob", "rollout_logprob", "entropy", "old_entropy", "advantage")


@dataclass
class Micro:
    """A padded micro-batch: where it belongs, arrays ``[rows, width]``, and numbers per row."""

    place: dict[str, int]
    tokens: dict[str, Array]
    mask: Array
    lengths: Array
    rows: dict[str, Array]

    @property
    def width(self) -> int:
        return self.mask.shape[1]


@dataclass(frozen=True)
class Shape:
    """How large a world is."""

    steps: int = 6
    ranks: int = 2
    epochs: int = 2
    minis: int = 2
    micros: int = 2
    rows: int = 3
    width: int = 9


def world(seed: int, shape: Shape) -> list[Micro]:
    """Micro-batches with ragged masks that have holes, as tools leave them; each step's are of one generation batch."""
    random = np.random.default_rng(seed)
    found: list[Micro] = []
    for step in range(1, shape.steps + 1):
        samples = {
            (mini, micro, rank): _sample(random, shape)
            for mini in range(shape.minis) for micro in range(shape.micros) for rank in range(shape.ranks)
        }  # fmt: skip
        for epoch in range(shape.epochs):
            for (mini, micro, rank), (tokens, mask, lengths, rows) in samples.items():
                place = {"step": step, "rollout_step": step, "epoch": epoch, "minibatch": mini, "microbatch": micro, "rank": rank}
                drift = 0.25 + 0.1 * epoch + 0.05 * mini
                new = tokens["old_logprob"] + random.normal(0.02 * step, drift, mask.shape)
                entropy = random.gamma(2.0, 0.5, mask.shape)
                inside = _inside(lengths, mask.shape[1])
                drawn = {"logprob": _single(np.where(inside, new, 0.0)), "entropy": _single(np.where(inside, entropy, 0.0))}
                own = {**tokens, **drawn}
                found.append(Micro(place, own, mask, lengths, rows))
    return found


def _single(values: Array) -> Array:
    return values.astype(np.float32).astype(np.float64)


def _sample(random: np.random.Generator, shape: Shape) -> tuple[dict[str, Array], Array, Array, dict[str, Array]]:
    width = int(random.integers(max(3, shape.width - 3), shape.width + 1))
    lengths = random.integers(1, width + 1, shape.rows)
    lengths[0] = width
    inside = _inside(lengths, width)
    mask = inside & (random.random((shape.rows, width)) < 0.75)
    mask[np.arange(shape.rows), lengths - 1] = True
    old = -random.exponential(1.0, mask.shape)
    tokens = {
        "old_logprob": old, "ref_logprob": old + random.normal(0, 0.4, mask.shape),
        "rollout_logprob": old + random.normal(0, 0.15, mask.shape), "old_entropy": random.gamma(2.0, 0.5, mask.shape),
        "advantage": np.repeat(random.normal(0, 1, (shape.rows, 1)), width, 1),
    }  # fmt: skip
    rows = {"score": random.normal(0, 1, shape.rows), "prompt_length": random.integers(2, 9, shape.rows)}
    rows["reward"] = rows["score"] - random.gamma(1.0, 0.2, shape.rows)
    return {name: _single(np.where(inside, values, 0.0)) for name, values in tokens.items()}, mask, lengths, rows


def _inside(lengths: Array, width: int) -> Array:
    return np.arange(width)[None] < lengths[:, None]


def source(micros: list[Micro], info: RunInfo) -> Memory:
    """The world as it is recorded."""
    rows: list[Row] = []
    for micro in micros:
        mini = [one for one in micros if all(one.place[name] == micro.place[name] for name in ("step", "epoch", "minibatch"))]
        counted = {
            "batch_num_tokens": sum(int(one.mask.sum()) for one in mini), "global_batch_size": sum(len(one.mask) for one in mini),
            "padded_width": micro.width,
        }  # fmt: skip
        for row in range(len(micro.mask)):
            length = int(micro.lengths[row])
            name = "{step}/{minibatch}/{microbatch}/{rank}".format(**micro.place) + f"/{row}"
            keys: dict[str, Any] = {
                **micro.place, **counted, "uid": name, "group": name.rsplit("/", 2)[0], "finish_reason": "stop",
                "response_length": length, "prompt_length": int(micro.rows["prompt_length"][row]),
                "reward": float(micro.rows["reward"][row]), "score": float(micro.rows["score"][row]),
            }  # fmt: skip
            tokens = {column: micro.tokens[column][row, :length].astype(np.float32) for column in TOKENS}
            if info.trainer == "slime":  # divides by the rollouts of the step, which are its rows where that is not recorded
                del keys["global_batch_size"]
            rows.append(Row(keys, {**tokens, "response_mask": micro.mask[row, :length]}))
    return Memory(info, rows, logged({}), size=64)


@dataclass(frozen=True)
class Recipe:
    """How a number is made; a mistake exchanges one of these.

    ``value`` micro -> ``[rows, width]``; ``mask`` micro -> bool of that shape; ``row`` is what is averaged within a micro-batch's
    pool: "token", "mean", "sum", "padded"; ``stages`` (micro-batches, pool) -> number of a step, where pool gives (sum, count).
    """

    value: Callable[[Micro], Array]
    stages: Callable[[list[Micro], Callable[[list[Micro]], float]], float]
    mask: Callable[[Micro], Array] = lambda micro: micro.mask
    row: str = "token"
    factor: float = 1.0
    keep: Callable[[Micro], bool] = lambda micro: True  # noqa: ARG005


def number(recipe: Recipe, micros: list[Micro]) -> float:
    """The number of one step."""

    def pool(part: list[Micro]) -> float:
        top = bottom = 0.0
        for micro in part:
            value, mask = recipe.value(micro), recipe.mask(micro)
            for row in range(len(mask)):
                kept = value[row][mask[row]]
                if recipe.row == "token":
                    top, bottom = top + kept.sum(), bottom + len(kept)
                elif recipe.row == "mean":
                    top, bottom = top + (kept.sum() / len(kept) if len(kept) else 0.0), bottom + 1
                elif recipe.row == "sum":
                    top, bottom = top + kept.sum(), bottom + 1
                else:
                    top, bottom = top + kept.sum(), bottom + micro.width
        return float(top / max(bottom, 1))

    return recipe.factor * recipe.stages([micro for micro in micros if recipe.keep(micro)], pool)


def parts(micros: list[Micro], *names: str) -> Iterator[list[Micro]]:
    """The micro-batches by the values of these places."""
    found: dict[tuple[int, ...], list[Micro]] = {}
    for micro in micros:
        found.setdefault(tuple(micro.place[name] for name in names), []).append(micro)
    yield from found.values()


def mean_over(*names: str) -> Callable[[list[Micro], Callable[[list[Micro]], float]], float]:
    """The plain mean over parts, each pooled."""
    return lambda micros, pool: float(np.mean([pool(part) for part in parts(micros, *names)]))


def sum_over(*names: str) -> Callable[[list[Micro], Callable[[list[Micro]], float]], float]:
    """The sum over parts, each pooled."""
    return lambda micros, pool: float(np.sum([pool(part) for part in parts(micros, *names)]))


def nested(micros: list[Micro], pool: Callable[[list[Micro]], float]) -> float:
    """The mean over mini-batches of the mean over micro-batches and ranks."""
    inner = mean_over("rank", "microbatch")
    return float(np.mean([inner(mini, pool) for mini in parts(micros, "epoch", "minibatch")]))


def pooled(micros: list[Micro], pool: Callable[[list[Micro]], float]) -> float:
    """All of the step at once."""
    return pool(micros)


# What is averaged.


def x_of(first: str = "logprob", second: str = "old_logprob") -> Callable[[Micro], Array]:
    return lambda micro: micro.tokens[first] - micro.tokens[second]


def estimate(function: Callable[[Array], Array], first: str = "logprob", second: str = "old_logprob") -> Callable[[Micro], Array]:
    x = x_of(first, second)
    return lambda micro: function(x(micro))


def column(name: str, sign: float = 1.0) -> Callable[[Micro], Array]:
    return lambda micro: sign * micro.tokens[name]


def k3(x: Array) -> Array:
    return np.exp(x) - 1.0 - x


def flags(function: Callable[[Array, Array], Array]) -> Callable[[Micro], Array]:
    """(ratio, advantage) -> flags."""
    x = x_of()
    return lambda micro: function(np.exp(x(micro)), micro.tokens["advantage"]).astype(np.float64)


def binds(ratio: Array, advantage: Array) -> Array:
    return ((ratio < LOW) & (advantage < 0)) | ((ratio > HIGH) & (advantage > 0))


def loss(function: Callable[[Array, Array], Array]) -> Callable[[Micro], Array]:
    x = x_of()
    return lambda micro: function(np.exp(x(micro)), micro.tokens["advantage"])


def inner(ratio: Array, advantage: Array) -> Array:
    return np.maximum(-advantage * ratio, -advantage * np.clip(ratio, LOW, HIGH))


def dual(value: Array, advantage: Array) -> Array:
    return np.where(advantage < 0, np.minimum(value, -advantage * DUAL), value)


# Other masks.


def stored(micro: Micro) -> Array:
    return _inside(micro.lengths, micro.width)


def early(micro: Micro) -> Array:
    return np.concatenate([micro.mask[:, 1:], np.zeros((len(micro.mask), 1), bool)], 1)


def late(micro: Micro) -> Array:
    return np.concatenate([np.zeros((len(micro.mask), 1), bool), micro.mask[:, :-1]], 1)


def first_of(name: str) -> Callable[[Micro], bool]:
    return lambda micro: micro.place[name] == 0


Mistake = Callable[[Recipe], Recipe]


def _flipped(recipe: Recipe) -> Recipe:
    return replace(recipe, factor=-1.0)


EXPECTED: dict[str, Mistake] = {
    "without the mask": lambda r: replace(r, mask=stored),
    "mask one position early": lambda r: replace(r, mask=early),
    "mask one position late": lambda r: replace(r, mask=late),
    "inverted mask": lambda r: replace(r, mask=lambda micro: stored(micro) & ~micro.mask),
    "over the padded width": lambda r: replace(r, row="padded"),
    "mean of the sequences' means": lambda r: replace(r, row="mean"),
    "mean of the sequences' sums": lambda r: replace(r, row="sum"),
    "opposite sign": _flipped,
    "tokens weighted over micro-batches": lambda r: replace(r, stages=pooled),
    "mean over micro-batches of each rank": lambda r: replace(r, stages=mean_over("epoch", "minibatch", "microbatch", "rank")),
    "mean over micro-batches": lambda r: replace(r, stages=mean_over("epoch", "minibatch", "microbatch")),
    "mean over mini-batches": lambda r: replace(r, stages=mean_over("epoch", "minibatch")),
    "mean over ranks": lambda r: replace(r, stages=mean_over("rank")),
    "mean over epochs": lambda r: replace(r, stages=mean_over("epoch")),
    "mean over micro-batches of mini-batches": lambda r: replace(r, stages=nested),
    "sum over micro-batches and ranks": lambda r: replace(r, stages=sum_over("epoch", "minibatch", "microbatch", "rank")),
    "rank 0 only": lambda r: replace(r, keep=first_of("rank")),
    "first micro-batch only": lambda r: replace(r, keep=first_of("microbatch")),
    "first epoch only": lambda r: replace(r, keep=first_of("epoch")),
    "first mini-batch only": lambda r: replace(
        r, keep=lambda micro: micro.place["minibatch"] == 0 and micro.place["epoch"] == 0
    ),
}  # fmt: skip
"""Mistakes of any mean over tokens, by the name that the reconciliation gives them."""


def factors(shape: Shape) -> dict[str, Mistake]:
    """Numbers of the run that a mean may be multiplied or divided by."""
    numbers = {
        "mini-batches": shape.epochs * shape.minis, "ranks": shape.ranks, "passes": shape.epochs, "micro-batches": shape.micros,
        "micro-batches of the step": shape.epochs * shape.minis * shape.micros,
    }  # fmt: skip
    found: dict[str, Mistake] = {}
    for name, factor in numbers.items():
        found[f"times {name}"] = _times(float(factor))
        found[f"divided by {name}"] = _times(1.0 / factor)
    return found


def _times(factor: float) -> Mistake:
    return lambda r: replace(r, factor=factor)


def distances() -> dict[str, Mistake]:
    """Mistakes of the mean of the log-ratio."""
    of: dict[str, Callable[[Array], Array]] = {
        "abs": np.abs, "k2": lambda x: x * x / 2, "squared": np.square, "k3": k3, "k3 reversed": lambda x: k3(-x),
        "ratio": np.exp, "minus the ratio": lambda x: -np.exp(x), "ratio minus 1": np.expm1,
    }  # fmt: skip
    found: dict[str, Mistake] = {name: _with(estimate(function)) for name, function in of.items()}
    found["rollout_logprob for old_logprob"] = _with(estimate(np.negative, "logprob", "rollout_logprob"))
    found["ref_logprob for old_logprob"] = _with(estimate(np.negative, "logprob", "ref_logprob"))
    return found


def penalties() -> dict[str, Mistake]:
    """Mistakes of the mean of k3 of the reference against the policy."""
    of: dict[str, Callable[[Array], Array]] = {
        "k1": np.negative, "k1 reversed": lambda x: x, "abs": np.abs, "k2": lambda x: x * x / 2, "k3 reversed": lambda x: k3(-x),
    }  # fmt: skip
    found: dict[str, Mistake] = {
        name: _with(estimate(function, "ref_logprob", "logprob")) for name, function in of.items()
    }  # fmt: skip
    found["old_logprob for logprob"] = _with(estimate(k3, "ref_logprob", "old_logprob"))
    found["times the KL coefficient"] = _times(KL_COEF)
    return found


def entropies() -> dict[str, Mistake]:
    """Mistakes of the mean entropy."""
    return {
        "old_entropy for entropy": _with(column("old_entropy")),
        "minus logprob": _with(column("logprob", -1.0)),
        "times the entropy coefficient": _times(ENTROPY_COEF),
        "times log2(e)": _times(float(np.log2(np.e))),
    }


def clips() -> dict[str, Mistake]:
    """Mistakes of the share of clipped tokens."""
    return {
        "whatever the advantage": _with(flags(lambda ratio, _: (ratio < LOW) | (ratio > HIGH))),
        "lower side": _with(flags(lambda ratio, advantage: (ratio < LOW) & (advantage < 0))),
        "upper side": _with(flags(lambda ratio, advantage: (ratio > HIGH) & (advantage > 0))),
        "opposite advantage": _with(flags(lambda ratio, advantage: binds(ratio, -advantage))),
    }


def losses() -> dict[str, Mistake]:
    """Mistakes of the clipped policy loss with the dual clip."""
    return {
        "without the dual clip": _with(loss(inner)),
        "dual clip alone": _with(loss(lambda ratio, advantage: dual(-advantage * ratio, advantage))),
        "without any clip": _with(loss(lambda ratio, advantage: -advantage * ratio)),
        "always clipped": _with(loss(lambda ratio, advantage: -advantage * np.clip(ratio, LOW, HIGH))),
        "ratio left out": _with(loss(lambda _, advantage: -advantage)),
        "plain log-likelihood": _with(lambda micro: -micro.tokens["advantage"] * micro.tokens["logprob"]),
        "advantage negated": _with(loss(lambda ratio, advantage: dual(inner(ratio, -advantage), -advantage))),
    }


def _with(value: Callable[[Micro], Array]) -> Mistake:
    return lambda r: replace(r, value=value)


# Trainers: how each defines its numbers.

CONFIG = RunConfig(
    clip_low=1 - LOW,
    clip_high=HIGH - 1,
    dual_clip=DUAL,
    kl_coef=KL_COEF,
    entropy_coef=ENTROPY_COEF,
    kl_estimator="k3",
    group_size=3,
)


@dataclass(frozen=True)
class Trainer:
    """A trainer's description, the definitions of its keys, and the mistakes that each can have beside those of any mean."""

    info: RunInfo
    keys: dict[str, tuple[Recipe, dict[str, Mistake]]]


def trainers() -> dict[str, Trainer]:
    """The trainers whose logs are made."""
    kl = estimate(k3, "ref_logprob", "logprob")
    surrogate = loss(lambda ratio, advantage: dual(inner(ratio, advantage), advantage))
    values: dict[str, tuple[Callable[[Micro], Array], dict[str, Mistake]]] = {
        "distance": (estimate(np.negative), distances()), "clip": (flags(binds), clips()), "kl": (kl, penalties()),
        "entropy": (column("entropy"), entropies()), "loss": (surrogate, losses()),
    }  # fmt: skip

    def keys(stages: Any, row: str = "token", **names: str) -> dict[str, tuple[Recipe, dict[str, Mistake]]]:
        return {names[kind]: (Recipe(value, stages, row=row), more) for kind, (value, more) in values.items() if kind in names}

    minis = mean_over("epoch", "minibatch")
    actor = {
        "clip_ratio_low": 1 - LOW, "clip_ratio_high": HIGH - 1, "clip_ratio_c": DUAL, "loss_agg_mode": "token-mean",
        "use_kl_loss": True, "kl_loss_type": "low_var_kl", "kl_loss_coef": KL_COEF, "entropy_coeff": ENTROPY_COEF,
        "policy_loss": {"loss_mode": "vanilla"},
    }  # fmt: skip
    verl = replace(CONFIG, native={"actor_rollout_ref": {"actor": actor}, "trainer": {"use_v1": True}})
    trl = {
        "loss_type": "dapo", "importance_sampling_level": "token", "use_bias_correction_kl": False, "beta": KL_COEF,
        "epsilon": 1 - LOW, "epsilon_high": HIGH - 1, "delta": None, "scale_rewards": "group",
        "multi_objective_aggregation": "sum_then_normalize",
    }  # fmt: skip
    openrlhf = {
        "actor.eps_clip_low_high": [1 - LOW, HIGH - 1], "actor.policy_loss_type": "ppo", "actor.loss_agg_mode": "token-mean",
        "algo.kl.init_coef": KL_COEF, "algo.kl.estimator": "k3", "algo.kl.use_loss": True, "algo.advantage.estimator": "rloo",
        "train.dynamic_batch_enable": True,
    }  # fmt: skip
    slime = {"advantage_estimator": "grpo", "calculate_per_token_loss": False}
    every = {"world_size": 2, "writing_ranks": (0, 1), "algorithm": "grpo"}
    micro = mean_over("epoch", "minibatch", "microbatch")
    return {
        "verl": Trainer(
            RunInfo(trainer="verl", trainer_version="0.9.1", config=verl, **every),
            keys(nested, distance="actor/ppo_kl", clip="actor/pg_clipfrac")
            | keys(minis, entropy="actor/entropy_loss", kl="actor/kl_loss", loss="actor/pg_loss"),
        ),
        "trl": Trainer(
            RunInfo(trainer="trl", trainer_version="1.16.0", config=replace(CONFIG, native=trl), **every),
            keys(micro, entropy="entropy", kl="kl", clip="clip_ratio/region_mean"),
        ),
        "openrlhf": Trainer(
            RunInfo(trainer="openrlhf", trainer_version="0.11.2", config=replace(CONFIG, native=openrlhf), **every),
            keys(pooled, distance="ppo_kl", clip="ppo_clip_ratio"),
        ),
        "slime": Trainer(
            RunInfo(trainer="slime", trainer_version="0.1", config=replace(CONFIG, native=slime), **every),
            keys(pooled, "mean", distance="train/ppo_kl", entropy="train/entropy_loss", clip="train/pg_clipfrac"),
        ),
    }

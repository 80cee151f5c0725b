"""What it costs to compare a trainer's numbers, and to explain them where every one is wrong, beside a check without them.

Writes a run with the package's own writer, gives it a log that says what is recomputed (right) or something else at every step
(wrong), and checks it with all rules in turn; prints medians of the CPU seconds and their ratios.

    python benchmarks/reconcile.py [million tokens] [--steps N] [--repeats N] [--dialect NAME]

Of a trainer whose dialect is made of recipes the keys are those of its golden numbers, below ``tests/golden/trainers``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from rl_doctor import check, open_run
from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.engine import analyze
from rl_doctor.schema import RunConfig, RunInfo
from rl_doctor.store.metric_log import MetricLog
from rl_doctor.store.rows import Rows, splits_of
from rl_doctor.store.writer import RunWriter

if TYPE_CHECKING:
    from rl_doctor.store.run import Run

LENGTH: Final = 500
RANKS, MINIS, MICROS, GROUP = 2, 2, 2, 4
ACTOR: Final = {
    "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0, "loss_agg_mode": "token-mean", "use_kl_loss": True,
    "kl_loss_type": "low_var_kl", "kl_loss_coef": 0.01, "entropy_coeff": 0.001, "policy_loss": {"loss_mode": "vanilla"},
}  # fmt: skip
STATISTICS: Final = ("mean", "max", "min")
VERL: Final = (
    "actor/ppo_kl", "actor/pg_clipfrac", "actor/pg_clipfrac_lower", "actor/pg_loss", "actor/entropy_loss", "actor/kl_loss",
    "actor/loss", "actor/entropy", "training/rollout_probs_diff_mean", "training/rollout_probs_diff_max",
    "training/rollout_probs_diff_std", "training/rollout_actor_probs_pearson_corr", "response/aborted_ratio",
    *(f"{prefix}/{statistic}" for prefix in (
        "critic/score", "critic/rewards", "critic/advantages", "critic/returns", "response_length", "prompt_length",
    ) for statistic in STATISTICS),
)  # fmt: skip

GOLDEN: Final = Path(__file__).parents[1] / "tests" / "golden" / "trainers"
NATIVE: Final[dict[str, dict[str, Any]]] = {
    "verl": {"actor_rollout_ref": {"actor": ACTOR}, "trainer": {"use_v1": True}},
    "skyrl": {"trainer": {"algorithm": {
        "policy_loss_type": "regular", "loss_reduction": "token_mean", "eps_clip_low": 0.2, "eps_clip_high": 0.28,
        "use_kl_loss": True, "use_kl_in_reward": False, "kl_loss_coef": 0.01, "kl_estimator_type": "k3",
        "use_entropy_loss": False, "advantage_batch_normalize": False, "clip_ratio_c": 3.0,
    }}},
    "prime-rl": {"loss": {"type": "default", "dppo_mask_low": 0.2, "dppo_mask_high": 0.2, "adv_tau": 1.0, "kl_tau": 1e-3}},
    "roll": {
        "pg_clip": 0.2, "use_pg_clip_range": False, "dual_clip_loss": True, "use_kl_loss": True, "kl_loss_coef": 0.01,
        "importance_sampling": "token", "loss_agg_mode": "token-mean", "entropy_loss_coef": 0.0, "rl_loss_coef": 1.0,
        "train_infer_correction": {"is_weight": {"enabled": False}, "filters": []},
    },
}  # fmt: skip
"""How the trainers were configured whose golden numbers do not say it."""


def dialect_of(name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """How a trainer was configured, and what it logged."""
    if name == "verl":
        return NATIVE[name], VERL
    golden = json.loads((GOLDEN / f"{name.replace('-', '_')}.json").read_text("utf-8"))
    if name in NATIVE:
        return NATIVE[name], tuple(golden["logged"])
    first = golden["scenarios"][0]
    return first["native"], tuple(name for logged in first["metrics"].values() for name in logged)


def write_run(folder: Path, tokens: int, steps: int, trainer: str, native: dict[str, Any]) -> None:
    """Write a run of about ``tokens`` tokens in ``steps`` steps."""
    config = RunConfig(clip_low=0.2, clip_high=0.28, kl_estimator="k3", kl_coef=0.01, entropy_coef=0.001, native=native)
    info = RunInfo(
        trainer=trainer,
        trainer_version="0.9.1" if trainer == "verl" else None,
        algorithm="grpo",
        world_size=RANKS,
        writing_ranks=tuple(range(RANKS)),
        config=config,
    )
    writer = RunWriter(folder, info)
    random = np.random.default_rng(0)
    parts = RANKS * MINIS * MICROS
    rows = max(parts * GROUP, tokens // steps // LENGTH // (parts * GROUP) * parts * GROUP)
    for step in range(1, steps + 1):
        lengths = np.clip(random.lognormal(np.log(LENGTH * 0.82), 0.65, rows), 8, 8 * LENGTH).astype(np.int64)
        made = columns(random, step, lengths)
        if trainer != "verl":
            made |= more_columns(random, step, made)
        writer.write_part(Rows(made, splits_of(lengths)), completes=[step])
    writer.close()


def columns(random: np.random.Generator, step: int, lengths: Any) -> dict[str, Any]:
    """Columns of one step."""
    rows, size = len(lengths), int(lengths.sum())
    part = np.arange(rows) * RANKS * MINIS * MICROS // rows
    mini = (part // (RANKS * MICROS)).astype(np.int32)
    mask = random.random(size) < 0.9
    per_row = np.add.reduceat(mask, np.cumsum(lengths) - lengths)
    old = -random.exponential(0.6, size)
    reward = random.random(rows).round()
    found: dict[str, Any] = {
        "sequence": np.arange(rows) + step * rows, "step": np.full(rows, step), "rollout_step": np.full(rows, step),
        "epoch": np.zeros(rows, np.int32), "minibatch": mini, "microbatch": (part % MICROS).astype(np.int32),
        "rank": (part // MICROS % RANKS).astype(np.int32), "padded_width": np.full(rows, lengths.max(), np.int32),
        "uid": np.array([f"{step}-{row}" for row in range(rows)], object), "response_length": lengths.astype(np.int32),
        "group": np.array([f"{step}-{row // GROUP}" for row in range(rows)], object), "reward": reward, "score": reward,
        "batch_num_tokens": np.bincount(mini, per_row)[mini].astype(np.int64), "global_batch_size": np.full(rows, rows // MINIS),
        "prompt_length": random.integers(20, 400, rows).astype(np.int32), "stored_length": lengths.astype(np.int32),
        "response_mask": mask,
    }  # fmt: skip
    tokens = {
        "old_logprob": old, "logprob": old + random.normal(0, 0.1, size), "ref_logprob": old + random.normal(0, 0.2, size),
        "rollout_logprob": old + random.normal(0, 0.02, size), "entropy": random.gamma(2, 0.3, size),
        "old_entropy": random.gamma(2, 0.3, size), "advantage": np.repeat(reward - reward.mean(), lengths),
        "return": np.repeat(reward, lengths),
    }  # fmt: skip
    return {**found, **{name: values.astype(np.float32) for name, values in tokens.items()}}


def more_columns(random: np.random.Generator, step: int, made: dict[str, Any]) -> dict[str, Any]:
    """What the trainers beside verl read."""
    size = len(made["response_mask"])
    return {
        "loss_mask": made["response_mask"], "token_reward": random.normal(0, 0.1, size).astype(np.float32),
        "policy_version": np.full(len(made["reward"]), step, np.int64), "token_version": np.full(size, step - 1, np.int64),
    }  # fmt: skip


def logs(run: Run, names: tuple[str, ...]) -> dict[str, MetricLog]:
    """What the trainer logged: nothing, what is recomputed, and something else in every key at every step."""
    steps = np.unique([segment.step for segment in run._segments])  # noqa: SLF001 - what the run was written with
    asked = MetricLog({(name, "train"): (steps, np.zeros(len(steps))) for name in names})
    plan = reconcile.plan(run.info, run.columns, asked)
    found = reconcile.compare(plan, analyze(run, [], plan.metrics).series)
    right = {(item.name, "train"): (item.steps, item.recomputed) for item in found}
    random = np.random.default_rng(1)
    wrong = {name: (at, values * random.uniform(1.5, 2, len(at)) + 0.1) for name, (at, values) in right.items()}
    return {"no log": MetricLog(), "right log": MetricLog(right), "wrong log": MetricLog(wrong)}


def _given(log: MetricLog) -> MetricLog:
    return log


def main() -> None:
    """Write the run, check it, print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("million", nargs="?", type=float, default=3.0)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--dialect", default="verl", help="trainer, as run.json names it")
    asked = parser.parse_args()
    native, names = dialect_of(asked.dialect)
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder), int(asked.million * 1e6), asked.steps, asked.dialect, native)
        run = open_run(folder)
        made = logs(run, names)
        seconds: dict[str, list[float]] = {name: [] for name in made}
        for _ in range(asked.repeats):
            for name, log in made.items():
                begun = time.process_time()
                report = check(replace(run, _metrics=partial(_given, log)))
                seconds[name].append(time.process_time() - begun)
                found = next(result for result in report.results if result.code == "RLD801")
                print(f"{name}: {seconds[name][-1]:.2f} s, {len(found.findings)} keys differ", flush=True)
        tokens = run.facts.tokens
    print(f"{tokens / 1e6:.2f} million tokens, {asked.steps} steps, {len(made['right log'].points)} keys")
    base = statistics.median(seconds["no log"])
    for name, values in seconds.items():
        print(f"{name:10} {statistics.median(values):6.2f} s  {statistics.median(values) / base:5.2f} times")


if __name__ == "__main__":
    main()

"""Synthetic runs of which only scalars were logged, with the fault known: level, slope, noise and onset are given here.

400 steps, onset at 60% (entropy: at 50%). They are made apart from the ones in ``scalars``, and can be written as a trainer
would have logged them, so that the whole way from a file to a verdict is tried.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Random = np.random.Generator
STEPS: Final = 400
ONSET: Final = 240
MIDDLE: Final = 200

TRL: Final = {
    "reward.mean": "reward", "reward.std": "reward_std", "ref.kl": "kl", "policy.entropy": "entropy", "policy.loss_total": "loss",
    "policy.clip_frac": "clip_ratio/region_mean", "length.mean": "completions/mean_length",
    "length.truncated_frac": "completions/clipped_ratio", "optim.grad_norm": "grad_norm",
    "optim.learning_rate": "learning_rate", "group.zero_std_frac": "frac_reward_zero_std",
    "mismatch.abs": "sampling/sampling_logp_difference/mean", "reward.component.correct.mean": "rewards/correct/mean",
    "reward.component.format.mean": "rewards/format/mean",
}  # fmt: skip
VERL: Final = {
    "reward.mean": "critic/rewards/mean", "reward.max": "critic/rewards/max", "reward.min": "critic/rewards/min",
    "ref.kl": "actor/kl_loss", "policy.kl_old_k1": "actor/ppo_kl", "policy.entropy": "actor/entropy",
    "policy.loss_pg": "actor/pg_loss", "policy.clip_frac": "actor/pg_clipfrac", "length.mean": "response_length/mean",
    "length.truncated_frac": "response_length/clip_ratio", "optim.grad_norm": "actor/grad_norm",
    "optim.learning_rate": "actor/lr",
    "mismatch.prob_abs": "training/rollout_probs_diff_mean",
}  # fmt: skip
"""Canonical name -> the trainer's own."""


def noise(rng: Random, rho: float = 0.0, n: int = STEPS) -> Floats:
    """AR(1) noise with standard deviation 1."""
    shocks, values = rng.standard_normal(n), np.zeros(n)
    values[0] = shocks[0]
    for index in range(1, n):
        values[index] = rho * values[index - 1] + np.sqrt(1 - rho * rho) * shocks[index]
    return values


def healthy(rng: Random, rho: float = 0.0) -> dict[str, Floats]:
    """A run that learns."""
    time = np.arange(STEPS) / STEPS
    wide = {name: noise(rng, rho) for name in ("reward", "kl", "entropy", "norm", "length", "clip", "gap", "cut", "idle")}
    return {
        "reward.mean": 0.25 + 0.4 * (1 - np.exp(-3 * time)) + 0.025 * wide["reward"],
        "reward.std": 0.4 * np.exp(0.05 * noise(rng)),
        "reward.max": np.ones(STEPS),
        "reward.min": np.zeros(STEPS),
        "ref.kl": 0.03 * (1 - np.exp(-6 * (time + 1 / STEPS))) * np.exp(0.12 * wide["kl"]),
        "policy.kl_old_k1": 2e-4 * noise(rng),
        "policy.entropy": (0.6 + 0.3 * np.exp(-3 * time)) * np.exp(0.03 * wide["entropy"]),
        "policy.loss_total": 0.01 * noise(rng),
        "policy.loss_pg": 0.01 * noise(rng),
        "policy.clip_frac": 0.008 * np.exp(0.3 * wide["clip"]),
        "length.mean": 260 * (1 + 0.15 * time) * np.exp(0.04 * wide["length"]),
        "length.truncated_frac": np.clip(0.02 + 0.008 * wide["cut"], 0, 1),
        "optim.grad_norm": 0.5 * np.exp(0.25 * wide["norm"]),
        "optim.learning_rate": np.full(STEPS, 1e-6),
        "group.zero_std_frac": np.clip(0.25 + 0.05 * wide["idle"], 0, 1),
        "mismatch.abs": 0.012 * np.exp(0.05 * wide["gap"]),
        "mismatch.prob_abs": 0.004 * np.exp(0.05 * wide["gap"]),
    }


@dataclass(frozen=True, slots=True)
class Scenario:
    """A kind of run.

    Attributes:
        change: puts the fault into a healthy run.
        rho: autocorrelation of its noise.
        code: rule that must report it; "" for a healthy run.
        mild: whether info is the right severity.
        beside: rules that may report it too.
        lacks: canonical names without which the scenario cannot be seen in a trainer's log.
    """

    change: Callable[[dict[str, Floats], Random], None]
    rho: float = 0.0
    code: str = ""
    mild: bool = False
    beside: frozenset[str] = frozenset()
    lacks: frozenset[str] = frozenset()

    def make(self, seed: int) -> dict[str, Floats]:
        """The run of a seed."""
        rng = np.random.default_rng(seed)
        run = healthy(rng, self.rho)
        self.change(run, rng)
        return run


def _nothing(_run: dict[str, Floats], _: Random) -> None:
    pass


def _entropy(run: dict[str, Floats], rng: Random) -> None:
    run["policy.entropy"] = np.linspace(0.45, 0.28, STEPS) * np.exp(0.03 * noise(rng, 0.3))


def _converged(run: dict[str, Floats], rng: Random) -> None:
    done = np.minimum(np.arange(STEPS) / 150, 1.0)
    run["reward.mean"] = np.clip(0.4 + 0.56 * done + 0.008 * noise(rng), 0, 1)
    run["reward.std"] = (0.45 - 0.35 * done) * np.exp(0.1 * noise(rng))
    run["optim.grad_norm"] = (0.5 - 0.4 * done) * np.exp(0.3 * noise(rng))
    run["group.zero_std_frac"] = np.clip(0.2 + 0.5 * done + 0.04 * noise(rng), 0, 1)
    run["policy.entropy"] = (0.8 - 0.5 * done) * np.exp(0.03 * noise(rng))


def _settles(run: dict[str, Floats], rng: Random) -> None:
    run["ref.kl"] = 0.6 * (1 - np.exp(-(np.arange(STEPS) + 1) / 60)) * np.exp(0.05 * noise(rng, 0.5))


def _spike(run: dict[str, Floats], _: Random) -> None:
    run["ref.kl"][ONSET : ONSET + 5] *= 30.0


def _runaway(run: dict[str, Floats], _: Random) -> None:
    run["ref.kl"][ONSET:] *= np.geomspace(1.0, 50.0, STEPS - ONSET)


def _zero(run: dict[str, Floats], _: Random) -> None:
    run["ref.kl"] = np.zeros(STEPS)


def _falls(run: dict[str, Floats], _: Random) -> None:
    run["ref.kl"][ONSET:] = 0.0


def _collapse(start: float) -> Callable[[dict[str, Floats], Random], None]:
    def change(run: dict[str, Floats], rng: Random) -> None:
        after = np.maximum(np.arange(STEPS) - MIDDLE, 0)
        run["policy.entropy"] = start * (0.02 + 0.98 * np.exp(-after / 30)) * np.exp(0.04 * noise(rng))
        run["reward.mean"] = 0.4 - 0.12 * np.clip(after / 120, 0, 1) + 0.025 * noise(rng)

    return change


def _jump(scale: float) -> Callable[[dict[str, Floats], Random], None]:
    def change(run: dict[str, Floats], _: Random) -> None:
        run["reward.mean"][ONSET:] += 0.6
        run["reward.max"][ONSET:] += 0.6
        run["reward.min"][ONSET:] += 0.6
        for name in ("reward.mean", "reward.std", "reward.max", "reward.min"):
            run[name] = run[name] * scale

    return change


def _clipped(run: dict[str, Floats], rng: Random) -> None:
    run["policy.clip_frac"][ONSET:] = 0.45 + 0.03 * noise(rng, n=STEPS - ONSET)
    run["policy.kl_old_k1"][ONSET:] = 0.05 + 0.005 * noise(rng, n=STEPS - ONSET)


def _drifting(run: dict[str, Floats], _: Random) -> None:
    run["policy.ratio_mean"] = np.ones(STEPS)
    run["policy.kl_old_k1"] = np.zeros(STEPS)
    run["policy.clip_frac"] = np.zeros(STEPS)
    for name in ("mismatch.abs", "mismatch.prob_abs"):
        run[name][ONSET:] *= np.linspace(1.0, 15.0, STEPS - ONSET)


def _lagging(run: dict[str, Floats], rng: Random) -> None:
    run["policy.clip_frac"] = 0.17 * np.exp(0.08 * noise(rng))
    run["stale.mean"] = np.full(STEPS, 4.0)


def _component(run: dict[str, Floats], rng: Random) -> None:
    run["reward.component.correct.mean"] = run["reward.mean"] - 0.1
    run["reward.component.format.mean"] = 0.1 + 0.005 * noise(rng)
    run["reward.component.format.mean"][ONSET:] *= 500.0
    run["reward.mean"] = run["reward.component.correct.mean"] + run["reward.component.format.mean"]
    run["reward.max"] = np.maximum(run["reward.max"], 1.2 * run["reward.component.format.mean"] + 1.0)


def _nan(name: str) -> Callable[[dict[str, Floats], Random], None]:
    def change(run: dict[str, Floats], _: Random) -> None:
        run[name][ONSET:] = np.nan

    return change


HEALTHY: Final[Mapping[str, Scenario]] = {
    "healthy": Scenario(_nothing),
    "entropy .45 to .28": Scenario(_entropy),
    "autocorrelated noise": Scenario(_nothing, rho=0.9),
    "converged": Scenario(_converged),
    "kl settles at .6": Scenario(_settles),
}
FAULTS: Final[Mapping[str, Scenario]] = {
    "kl spike that recovers": Scenario(_spike, code="RLD203", mild=True),
    "kl runaway, 50 times": Scenario(_runaway, code="RLD204"),
    "kl 0 all run": Scenario(_zero, code="RLD205"),
    "kl falls to 0": Scenario(_falls, code="RLD205"),
    "entropy collapse, high start": Scenario(_collapse(2.2), code="RLD301"),
    "entropy collapse, low start": Scenario(_collapse(0.25), code="RLD301"),
    "reward jumps by .6": Scenario(_jump(1.0), code="RLD401"),
    "reward jumps by .6, rewards x 50": Scenario(_jump(50.0), code="RLD401"),
    "clip fraction .45": Scenario(_clipped, code="RLD201", beside=frozenset({"RLD204", "RLD203"})),
    "sampler drifts": Scenario(_drifting, code="RLD101", beside=frozenset({"RLD102", "RLD202"})),
    "stale, clip .17": Scenario(_lagging, code="RLD201"),
    "component x 500": Scenario(_component, code="RLD404", beside=frozenset({"RLD401"}), lacks=frozenset({"reward.component"})),
    "nan gradient": Scenario(_nan("optim.grad_norm"), code="RLD601"),
    "nan loss": Scenario(_nan("policy.loss_total"), code="RLD601", lacks=frozenset({"policy.loss_total"})),
}


def write_trl(run: Mapping[str, Floats], folder: Path) -> Path:
    """The run as the ``trainer_state.json`` of TRL."""
    rows = [
        {native: float(run[name][at]) for name, native in TRL.items() if name in run} | {"epoch": at / STEPS, "step": at + 1}
        for at in range(STEPS)
    ]
    path = folder / "trainer_state.json"
    path.write_text(json.dumps({"global_step": STEPS, "max_steps": STEPS, "epoch": 1.0, "log_history": rows}))
    return path


def write_verl(run: Mapping[str, Floats], folder: Path) -> Path:
    """The run as a table of verl's metrics."""
    path = folder / "metrics.csv"
    known = {native: run[name] for name, native in VERL.items() if name in run}
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["step", *known])
        table.writerows([at + 1, *(float(values[at]) for values in known.values())] for at in range(STEPS))
    return path

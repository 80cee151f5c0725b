"""Differences row by row, entropy against what tokens cost, and grids of half precision, against plain Python."""

from __future__ import annotations

import math
import random
import statistics

import numpy as np
import pytest

from rl_doctor.analyzer.engine import analyze
from rl_doctor.rules.signature import two_kinds
from rl_doctor.schema import RunConfig, RunInfo
from tests.unit.analyzer.memory import MemoryRun, Row, batch, value_of

INFO = RunInfo(config=RunConfig(epochs=1, minibatches=1))


def single(value: float) -> float:
    return float(np.float32(value))


def rows(count: int = 30) -> list[Row]:
    rng = random.Random(5)
    made: list[Row] = []
    for index in range(count):
        size = rng.choice([1, 7, 8, 20])
        rollout = [single(-rng.expovariate(0.7) - 1e-3) for _ in range(size)]
        spread = (0.01, 0.05, 0.5)[index % 3]
        old = [single(x - abs(rng.gauss(0, spread))) for x in rollout]
        made.append(
            {
                "step": 0, "sequence": index, "rollout_logprob": rollout, "old_logprob": old, "response_mask": [True] * size,
                "response_length": size, "left_padding": index % 5, "is_weight": [single(0.05 * (index % 4))] * size,
                "old_entropy": [single(rng.uniform(0.5, 3.0)) for _ in range(size)],
            }
        )  # fmt: skip
    return made


DATA = rows()
D = [[y - x for x, y in zip(row["rollout_logprob"], row["old_logprob"], strict=True)] for row in DATA]
MEANS = {index: statistics.fmean(map(abs, d)) for index, d in enumerate(D) if len(d) >= 8}
OFF = [index for index, size in MEANS.items() if size > 0.1]
FLAT = [v for d in D for v in d]
GAPS = [
    sum(-y - h for y, h in zip(row["old_logprob"], row["old_entropy"], strict=True)) for row in DATA
]  # fmt: skip
TOKENS = [len(d) for d in D]
WEIGHTS = [math.exp(math.fsum(d)) for d in D]


def error() -> float:
    gap, n = sum(GAPS) / sum(TOKENS), len(GAPS)
    return math.sqrt(n / (n - 1) * sum((g - gap * t) ** 2 for g, t in zip(GAPS, TOKENS, strict=True))) / sum(TOKENS)


EXPECTED = {
    "mismatch.rows_off_frac": len(OFF) / len(MEANS),
    "mismatch.rows_calm_frac": sum(size < 0.03 for size in MEANS.values()) / len(MEANS),
    "mismatch.off_gap": statistics.fmean(v for index in OFF for v in D[index]),
    "mismatch.off_tail": statistics.fmean(v * v for index in OFF for v in D[index])
    / statistics.fmean(abs(v) for index in OFF for v in D[index]) ** 2,
    "mismatch.rms": math.sqrt(statistics.fmean(v * v for v in FLAT)),
    "mismatch.tail": statistics.fmean(v * v for v in FLAT) / statistics.fmean(map(abs, FLAT)) ** 2,
    "mismatch.rollout_mean": statistics.fmean(x for row in DATA for x in row["rollout_logprob"]),
    "mismatch.trainer_mean": statistics.fmean(x for row in DATA for x in row["old_logprob"]),
    "mismatch.left_padding_corr": statistics.correlation([DATA[i]["left_padding"] for i in MEANS], list(MEANS.values())),
    "mismatch.sequence_weight_mean": statistics.fmean(WEIGHTS),
    "mismatch.sequence_weight_gone_frac": statistics.fmean(w < 0.1 for w in WEIGHTS),
    "mismatch.sequence_ratio_mean": statistics.fmean(math.exp(statistics.fmean(d)) for d in D),
    "mismatch.sequence_effective_frac": sum(WEIGHTS) ** 2 / len(WEIGHTS) / sum(w * w for w in WEIGHTS),
    "mismatch.row_weights_frac": 1.0,
    "mismatch.gone_weights_frac": statistics.fmean(
        row["is_weight"][0] < 0.1 for row in DATA if len(row["is_weight"]) > 1
    ),
    "policy.old_entropy_gap": sum(GAPS) / sum(TOKENS),
    "policy.old_entropy_gap_share": sum(GAPS) / sum(h for row in DATA for h in row["old_entropy"]),
    "policy.old_entropy_gap_error": error(),
    "data.old_logprob_bfloat16_frac": 0.0,
}  # fmt: skip


@pytest.mark.parametrize("name", EXPECTED)
def test_equals_plain_python(name: str) -> None:
    assert math.isclose(value_of(name, batch(DATA, INFO)), EXPECTED[name], rel_tol=1e-9, abs_tol=1e-12)


def test_any_split_gives_the_same_bits() -> None:
    whole = analyze(MemoryRun(DATA), list(EXPECTED)).series
    for cut in range(1, 3):
        parts = analyze(MemoryRun(DATA, cut=cut), list(EXPECTED)).series
        for name, series in whole.items():
            assert parts[name].values.tobytes() == series.values.tobytes(), name


@pytest.mark.parametrize(("bits", "kind"), [(16, "bfloat16"), (13, "float16")])
def test_a_grid_is_seen_at_the_first_tokens(bits: int, kind: str) -> None:
    def rounded(value: float) -> float:
        return float((np.float32(value).reshape(1).view(np.uint32) >> bits << bits).view(np.float32)[0])

    coarse = [{**row, "old_logprob": [rounded(x) for x in row["old_logprob"]]} for row in DATA]
    assert value_of(f"data.old_logprob_{kind}_frac", batch(coarse, INFO)) == 1.0


@pytest.mark.parametrize(
    ("off", "calm", "tail", "corr", "there"),
    [
        (0.1, 0.88, 1.6, 0.9, True),
        (0.1, 0.88, 6.0, 0.9, False),
        (0.1, 0.88, 6.0, 0.1, True),
        (0.1, 0.88, 9.0, 0.1, False),
        (0.1, 0.3, 1.6, 0.9, False),
        (0.02, 0.5, 1.6, 0.9, False),
        (0.0, 1.0, math.nan, math.nan, False),
    ],
)
def test_two_kinds_of_rows(off: float, calm: float, tail: float, corr: float, *, there: bool) -> None:
    assert bool(two_kinds(*(np.array([value]) for value in (off, calm, tail, corr)))[0]) is there

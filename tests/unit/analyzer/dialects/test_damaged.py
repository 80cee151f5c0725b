"""Names and numbers as a damaged log has them: they are read or left out, never an error."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.unit.analyzer.dialects.logs import LOGS, STEPS, meanings, read

POOL = [name for known in LOGS.values() for name in known.names()]
STRANGE = "/._-@{}()[] %$\n\x00é漢\\'\"0123456789abcXYZ"


def mutated(name: str, rng: random.Random) -> str:
    at = rng.randrange(len(name) + 1)
    return name[:at] + "".join(rng.choices(STRANGE, k=rng.randint(1, 4))) + name[at + rng.randint(0, 2) :]


def numbers(rng: random.Random) -> object:
    values = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(STEPS) * 10.0 ** rng.randint(-300, 300)
    values[:: rng.randint(2, 40)] = rng.choice([0.0, np.nan, np.inf, -np.inf, 1.0])
    return rng.choice([values, 0.0, np.nan, np.inf])


@pytest.mark.parametrize("seed", range(100))
def test_whatever_stands_in_a_log(seed: int) -> None:
    rng = random.Random(seed)
    names = [mutated(name, rng) if rng.random() < 0.3 else name for name in rng.sample(POOL, rng.randint(1, 60))]
    found = read({name: numbers(rng) for name in names})
    assert all(len(values) == STEPS for values in meanings(found).values())
    assert set(found.unknown) <= set(names)

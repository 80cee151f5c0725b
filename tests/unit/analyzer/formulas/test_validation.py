"""The bootstrap of verl: the same draws from numpy's global generator, reduced by loops."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from rl_doctor.analyzer.formulas.validation import best_of_k, majority_of_k, sizes_of_subsets, worst_of_k

SCORES = {
    "binary": [1.0, 0.0, 0.0, 0.0],
    "one": [0.5],
    "ragged": [0.1, -3.0, 0.7, 0.7, 1e6, 0.0, 0.2],
    "equal": [0.3, 0.3, 0.3],
}


def drawn(scores: list[float], k: int, seed: int) -> list[list[int]]:
    np.random.seed(seed)  # noqa: NPY002 - verl draws from it
    return np.random.choice(len(scores), size=(1000, k), replace=True).tolist()  # noqa: NPY002


def moments(values: list[float]) -> tuple[float, float]:
    return float(np.mean(values)), float(np.std(values))


@pytest.mark.parametrize("seed", [42, 7])
@pytest.mark.parametrize("name", SCORES)
def test_best_and_worst_of_k(name: str, seed: int) -> None:
    scores = SCORES[name]
    for k in [1, *sizes_of_subsets(len(scores))]:
        draws = drawn(scores, k, seed)
        given = np.array(scores)
        assert best_of_k(given, k, seed=seed) == moments([max(scores[i] for i in row) for row in draws])
        assert worst_of_k(given, k, seed=seed) == moments([min(scores[i] for i in row) for row in draws])


@pytest.mark.parametrize("answers", [["4", "5", "4", "6", "5", "7", "5"], list("abcdefg"), ["a"] * 7, [3, 3, 1, 1, 2, 2, 9]])
def test_the_majority_of_k(answers: list[object]) -> None:
    scores = SCORES["ragged"]
    for k in (1, 2, 4, 7):
        expected = []
        for row in drawn(scores, k, 42):
            votes = Counter(answers[i] for i in row)  # of equal counts the one seen first comes first
            winner = votes.most_common(1)[0][0]
            expected.append(next(scores[i] for i in row if answers[i] == winner))
        assert majority_of_k(np.array(scores), np.array(answers), k) == moments(expected)


def test_the_best_of_all_is_below_the_best() -> None:
    best, _ = best_of_k(np.array(SCORES["binary"]), 4)
    assert best == pytest.approx(0.687, abs=5e-4)  # with replacement: 1 - (3/4)^4 = .684 on average


def test_the_generator_of_others_is_left_alone() -> None:
    np.random.seed(1)  # noqa: NPY002
    before = np.random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    best_of_k(np.array(SCORES["ragged"]), 4)
    assert np.random.random() == before  # noqa: NPY002

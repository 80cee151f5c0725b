"""TRL's numbers by version, held against what the losses of its releases gave for seeded tensors."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.analyzer.recompute.trl_given import folded, info_of, keys_of

GOLDEN = Path(__file__).parents[3] / "golden" / "trl_versions.json"
SETTINGS = {"entropy_coef"}


@cache
def golden() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return found


def compared(version: str | None, scenario: str, release: str) -> dict[str, tuple[float, float, float]]:
    """For each number of a scenario: what the release gave, what is recomputed for ``version``, and its tolerance."""
    algorithm, _, rest = scenario.partition(":")
    ranks = int(rest[-1])
    given = golden()["versions"][release][scenario]
    info = info_of(version, algorithm, {**golden()["defaults"], **given["native"]}, ranks)
    found = {}
    for key, item in keys_of(info, set(metrics_of(release, scenario))).items():
        entries = folded(item, golden()["tensors"], info, ranks)
        number = entries.number if item.window == "mean" else 1
        found[key] = (given["metrics"][key], entries.total / number, entries.tolerance / number)
    return found


def metrics_of(release: str, scenario: str) -> dict[str, float]:
    metrics = golden()["versions"][release][scenario]["metrics"]
    return {name: value for name, value in metrics.items() if value is not None}


@pytest.mark.parametrize("version", golden()["versions"])
def test_every_number_of_a_release(version: str) -> None:
    for name in golden()["versions"][version]:
        found = compared(version, name, version)
        left = {"loss", "policy_loss"} if ":high_entropy" in name else set()
        assert metrics_of(version, name).keys() - found.keys() - SETTINGS == left & metrics_of(version, name).keys()
        for key, (theirs, ours, tolerance) in found.items():
            if name == "rloo:rloo-2" and key == "loss":  # a row without a token adds its advantage, which is not recorded
                assert np.isnan(ours)
            else:
                assert abs(theirs - ours) <= tolerance + 1e-8 * abs(theirs), (name, key)

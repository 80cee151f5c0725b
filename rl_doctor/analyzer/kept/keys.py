"""What states depend on beside the rows: while it is the same, they hold."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import asdict
from hashlib import blake2b
from typing import Any, Final

from rl_doctor.analyzer import kernels
from rl_doctor.analyzer.needs import requirements
from rl_doctor.analyzer.registry import Metric, sequence_values
from rl_doctor.analyzer.rollouts import KEYS
from rl_doctor.schema import RunInfo

_PASSING: Final = (
    "schema_version",
    "run_id",
    "status",
    "sessions",
    "writing_ranks",
    "unknown_columns",
    "unknown_config",
    "extra",
)
"""Members of a run's description that change while it is recorded, and that no metric reads."""
_ALWAYS: Final = frozenset({"is_padding", "tokens_dropped", "response_mask", "rollout_step"})


def digest(*parts: Any) -> str:
    """A short digest of what JSON can hold."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return blake2b(text.encode(errors="backslashreplace"), digest_size=12).hexdigest()


def context(info: RunInfo, about_tokens: int) -> str:
    """Digest of the configuration, and of the passes that a run of so many tokens is computed with."""
    told = {name: value for name, value in asdict(info).items() if name not in _PASSING}
    return digest(told, kernels.of(about_tokens).__name__)


def of_log(info: RunInfo, names: Collection[str], version: str) -> str:
    """Digest of what else metrics depend on that stand for the trainer's own numbers.

    Args:
        info: the run's description.
        names: what was logged.
        version: that of rl-doctor, as these metrics have none of their own.
    """
    return digest([dict(entry) for entry in info.sessions], info.writing_ranks, sorted(names), version)


def key_of(item: Metric, columns: Collection[str], apart: str | None) -> str:
    """Digest of a metric's version and of which of the columns that it may read the run has.

    Args:
        item: the metric.
        columns: canonical columns of the run.
        apart: what else it depends on; None for a metric that is registered.
    """
    reduction = item.reduction
    names = {*reduction.needs, *reduction.optional}
    stored, values = requirements(names)
    stored |= requirements(name for value in values for name in _of_value(value))[0]
    stored |= KEYS if reduction.level == "rollout" else _ALWAYS
    return digest(item.name, item.version, item.part, item.change, sorted(stored & set(columns)), apart)


def _of_value(name: str) -> Iterable[str]:
    value = sequence_values()[name]
    return (*value.needs, *value.optional)

"""All that a sign may look at: the findings, and the run's series over the steps that the findings are about."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from rl_doctor.analyzer.series import Series
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Result
from rl_doctor.rules.spans import at, pooled
from rl_doctor.rules.view import View


@frozen
class Scene:
    """What is known of a run when a cause is looked for.

    Attributes:
        view: the run; what a sign gets has the series that it asks for.
        results: of the rules that were run, by name.
        first_step: first step of the findings that the cause would explain; None where they have none.
        last_step: last step of them.
    """

    view: View
    results: Mapping[str, Result]
    first_step: int | None = None
    last_step: int | None = None

    def series(self, name: str) -> Series | None:
        """The measured steps of a metric within the steps of the findings; all of them where it has none there."""
        found = self.view.get(name)
        if found is None or self.first_step is None or self.last_step is None:
            return found
        inside = found.steps[(found.steps >= self.first_step) & (found.steps <= self.last_step)]
        return at(found, inside) if inside.size else found

    def before(self, name: str) -> Series | None:
        """The measured steps of a metric before those of the findings; None if there are none."""
        found = self.view.get(name)
        if found is None or self.first_step is None:
            return None
        return at(found, found.steps[found.steps < self.first_step])

    def value(self, name: str) -> float:
        """Mean of a metric over the items within the steps of the findings; NaN where nothing was measured."""
        found = self.series(name)
        return math.nan if found is None else pooled(found)

    def named(self, prefix: str) -> Mapping[str, float]:
        """The same of all metrics that start with ``prefix``, by the rest of their names."""
        return {name.removeprefix(prefix): self.value(name) for name in self.view.named(prefix)}

    def missing(self, *names: str) -> tuple[str, ...]:
        """Columns and ``config.`` fields that metrics lack, each once."""
        lacks = (column for name in names for column in self.view.missing.get(name, ()))
        return tuple(dict.fromkeys(lacks))

    def count(self, name: str) -> int:
        """Number of items behind ``value``."""
        found = self.series(name)
        return 0 if found is None else int(np.sum(found.counts))

"""The clip range of the canonical configuration, where the trainer's own says another."""

from __future__ import annotations

import math
from typing import Final

from rl_doctor.schema import RunConfig

Range = tuple[float, float]
"""How far the ratio may go below and above 1."""


_CANONICAL: Final = "clip range of config.clip_low / clip_high"
WORDS: Final = (f"{_CANONICAL} instead of the trainer's own", f"has the {_CANONICAL} instead of the trainer's own")
WORDS_OF_OWN: Final = (f"the trainer's own instead of the {_CANONICAL}", f"has the trainer's own instead of the {_CANONICAL}")
"""Name and sentence of the variation that has the other range, where the trainer's own counts, and where it does not."""


def canonical_range(config: RunConfig, low: float | None, high: float | None) -> Range | None:
    """The clip range of ``config.clip_low`` and ``config.clip_high``; None where that is the trainer's own, or not known.

    Args:
        config: the run's configuration.
        low: how far the ratio may go below 1 by the trainer's own configuration, which counts.
        high: how far above.
    """
    ends = [own if told is None else told for told, own in ((config.clip_low, low), (config.clip_high, high))]
    if low is None or high is None or ends[0] is None or ends[1] is None:
        return None
    return None if math.isclose(ends[0], low) and math.isclose(ends[1], high) else (ends[0], ends[1])

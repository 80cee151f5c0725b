"""The mixture of data sources that the prompts come from."""

from __future__ import annotations

import math
from collections import Counter

from rl_doctor.analyzer.derive import known
from rl_doctor.analyzer.registry import metric, reduction
from rl_doctor.analyzer.states import Counts
from rl_doctor.store.batch import Batch


@reduction(zero=Counts({}), needs=("data_source",), level="rollout")
def _sources(batch: Batch) -> Counts:
    source = batch.columns["data_source"]
    return Counts(Counter(source[known(source)].tolist()))


def _distance(before: Counts, now: Counts) -> float:
    """Half the sum of the absolute differences of the shares."""
    if before.count == 0 or now.count == 0:
        return math.nan
    names = before.names.keys() | now.names.keys()
    shares = ((before.names.get(name, 0) / before.count, now.names.get(name, 0) / now.count) for name in sorted(names))
    return 0.5 * math.fsum(abs(first - second) for first, second in shares)


metric(
    "data.source_change", _sources, _distance, change=True, unit="1", source="total variation distance",
    formula="1/2 sum over sources s of |share_i[s] now - share_i[s] before|",
    doc="Share of sequences from other data sources than in the generation batch before; 0 for the same mixture.",
)  # fmt: skip

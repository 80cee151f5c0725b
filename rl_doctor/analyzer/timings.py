"""What a trainer's clocks measure: generation, update, waiting or the whole step, by what their names say."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_HEADING: Final = re.compile(r"(?:.*/)?(?:timing_s|timings?|time|timeperf|profiling)/")
"""A name is a clock's under one of these headings, or where it ends as one."""
_ENDING: Final = re.compile(r"(?:time|time_s|seconds|secs|_s)$")
_OTHER: Final = re.compile(
    r"per_token|tokens?_per|per_sec|tok_s|mfu|memory|flops|throughput|elapsed|(?:^|[/_])(?:max|min|std|total|ratio|frac|count)$"
)
_KINDS: Final = (
    ("time.wait", re.compile(r"wait|idle|bubble")),
    ("time.update", re.compile(
        r"update_(?:actor|policy)|(?:actor|policy)_(?:train|update)|train_(?:actor|policy|step)|"
        r"(?:^|[/_])train(?:ing)?(?:_time)?$|optimi[sz]er_step|ppo_(?:train|update)"
    )),
    ("time.generation", re.compile(r"(?:^|[/_.])(?:gen|generate|generation|rollout|sampling)(?:$|[/_])")),
    ("time.step", re.compile(r"(?:^|/|total_)step(?:_time)?(?:_s)?$|iteration_time")),
)  # fmt: skip


@cache
def clock(name: str) -> str | None:
    """The metric that a native name, in lower case, measures the time of; None for what is no such clock."""
    heading = _HEADING.match(name)
    rest = name.rpartition("/")[2] if heading is None else name[heading.end() :]
    if (heading is None and not _ENDING.search(rest)) or _OTHER.search(rest):
        return None
    return next((metric for metric, kind in _KINDS if kind.search(rest)), None)

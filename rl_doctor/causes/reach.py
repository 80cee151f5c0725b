"""How many rows a finding is about: what follows from a cause cannot concern far more of them than the cause does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rl_doctor.report.model import Finding

_ROWS: Final = frozenset((
    "data.old_logprob_unfilled_frac", "data.logprob_unfilled_frac", "data.ref_logprob_unfilled_frac", "mismatch.shifted_frac",
    "mismatch.pass_shifted_frac", "mismatch.first_rows_frac",
))  # fmt: skip
"""Metrics that are the share of rows which a finding is about, where it has them for evidence."""
_TIMES: Final = 3.0
_SPARE: Final = 0.1
"""A share may be this many times the cause's, and this much above it: rows are counted by different tests."""


def reach(findings: Iterable[Finding]) -> float | None:
    """The largest share of rows that one of the findings is about; None where none tells."""
    shares = [item.value for finding in findings for item in finding.evidence if item.metric in _ROWS]
    return max(shares, default=None)


def too_many(effect: Iterable[Finding], cause: Iterable[Finding]) -> bool:
    """Whether ``effect`` is about so many more rows than ``cause`` that it cannot follow from it."""
    wide, narrow = reach(effect), reach(cause)
    return wide is not None and narrow is not None and wide > _TIMES * narrow + _SPARE

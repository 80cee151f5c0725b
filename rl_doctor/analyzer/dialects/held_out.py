"""Scores on held-out prompts under any plain name, and what data source each is of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Final

from rl_doctor.analyzer.dialects.registry import AT, LONGEST, Trainer, pattern, plain, spelled

_SPLIT: Final = r"(?:eval|val|valid|validation|test|heldout|held_out|dev)(?:uation)?(?:-core|-aux)?[_-]"
_RIGHT: Final = (
    r"(?:acc|accuracy|exact_match|em|solve_rate|solved_rate|success_rate|success|pass@?_?1|pass_rate|win_rate|correct|"
    r"correctness)"
)
_SCORE: Final = r"(?:reward|score|reward_mean|mean_reward|avg_reward|score_mean|mean_score|avg_score)"
_END: Final = rf"(?:_(?:mean|avg|rate|mean{AT}\d+|avg{AT}\d+))?"
MEAN: Final = (
    rf"{_SPLIT}(?:(?P<source>.+?)_)?{_RIGHT}{_END}",
    rf"{_SPLIT}(?:(?P<source>.+?)_)?(?:mean|avg|acc){AT}\d+",
    rf"{_SPLIT}(?!rewards_)(?:(?P<source>.+?)_)?{_SCORE}{_END}",
    rf"{_SPLIT}rewards_(?!.*_(?:std|max|min)$)(?!(?:chosen|rejected|margins|accuracies)$)(?P<source>.+?)(?:_mean)?",
)
"""Tiers of patterns of mean scores, the best first: shares that are right before rewards."""
BEST: Final = (rf"{_SPLIT}(?:(?P<source>.+?)_)?(?:best{AT}\d+(?:_mean)?|pass@?_?(?:[2-9]|\d\d+)|pass@?_?k)",)
LOSS: Final = (rf"{_SPLIT}loss",)

_STARTS: Final = re.compile(_SPLIT)
_NO_SCORE: Final = (
    r"(?:_|^)len(?:gth)?s?(?:_|$)|tokens|truncat|repetit|_std|_max$|_min$|_time|_count|_turns|entropy|_loss|_kl|ratio$|"
    r"_error|p[19]0$"
)
"""What the names of scores do not hold, where any name below a prefix would be one."""


@cache
def _regex(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE)


def marked(name: str) -> bool:
    """Whether a native name says that it is of held-out prompts."""
    return _STARTS.match(plain(name)) is not None


def chosen(
    names: Iterable[str], trainer: Trainer | None, tiers: Sequence[tuple[str, ...]], general: Sequence[str]
) -> dict[str, str]:
    """Names of the first tier that has any: native name -> data source ("" where the name has none)."""
    made = {name: form for name in names if len(form := spelled(name)) <= LONGEST}
    if not made:
        return {}
    own = [tuple(pattern(native) if "{" in native else _regex(re.escape(plain(native))) for native in tier)
           for tier in tiers] if trainer is not None else []  # fmt: skip
    for guarded, tier in (*((True, tier) for tier in own), *((False, (_regex(one),)) for one in general)):
        found: dict[str, str] = {}
        for name, form in made.items():
            match = next((match for regex in tier if (match := regex.fullmatch(form))), None)
            if match is not None and not (guarded and _regex(_NO_SCORE).search(form)):
                found[name] = _source(name, form, match)
        if found:
            return found
    return {}


def _source(name: str, form: str, match: re.Match[str]) -> str:
    if "source" not in match.groupdict() or match["source"] is None:
        return ""
    start = len(name) - len(form)
    return name[start + match.start("source") : start + match.end("source")]

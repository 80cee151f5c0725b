"""The tokens of one response: a number of each, a profile along the response, and the tokens that carry most of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor import schema
from rl_doctor.analyzer.derive import selection
from rl_doctor.report.model import Finding
from rl_doctor.schema import MISSING_INT
from rl_doctor.store.batch import Batch
from rl_doctor.store.lookup import passes_of, rows_of_step, sequence_of
from rl_doctor.store.rows import Rows
from rl_doctor.store.run import Run
from rl_doctor.views.opened import Opened
from rl_doctor.views.picks import worst
from rl_doctor.views.profile import Profile, carriers, of_step, profile
from rl_doctor.views.quantities import QUANTITIES, Quantity, quantity_of
from rl_doctor.views.rows import (
    MOST_TOKENS,
    Tokenizer,
    batch_of,
    count,
    finding_of,
    left_out,
    number,
    numbers,
    step_near,
    token_texts,
    word,
)
from rl_doctor.views.table import Table

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

LEVELS: Final = 20
"""Colours of a scale: levels run from 0 to this."""
UNKNOWN, MASKED = -1, -2
"""Levels of a token without a value, and of one that is not trained on."""
SHARE: Final = 0.99
"""Share of the trained tokens that the scale tells apart; the rest has the colour of its end."""
MOST_TOP: Final = 25
_OFFERED: Final = ("ratio", "mismatch", "kl", "kl_old", "entropy", "contribution", "clipped", "masked", "logprob")
_RECORDED: Final = (
    "logprob", "old_logprob", "rollout_logprob", "ref_logprob", "advantage", "is_weight", "value", "token_reward", "turn",
    "token_version",
)  # fmt: skip
"""Recorded columns that are told of the token that is pointed at."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass over the sequence: its number in the run, its step, epoch and mini-batch, where these are known."""

    sequence: int
    step: int
    epoch: int | None
    minibatch: int | None


@dataclass(frozen=True, slots=True, eq=False)
class Page:
    """The tokens that are shown.

    Attributes:
        first: position of the first one in the response.
        before: a position of the tokens before these; None where these are the first.
        after: a position of those after these; None where these are the last.
        last: position of the last one.
        total: tokens of the response.
        texts: text of each token, ``n`` of them; its id where that is not known.
        decoded: whether the texts are words, and not ids.
        levels: int64 ``[n]``, what to colour by: 0 to ``LEVELS``, ``UNKNOWN`` or ``MASKED``; for flags the flag itself.
        masked: bool ``[n]``, tokens that are not trained on.
        fields: what is told of each token: name -> ``n`` texts.
    """

    first: int
    before: int | None
    after: int | None
    last: int
    total: int
    texts: tuple[str, ...]
    decoded: bool
    levels: NDArray[np.int64]
    masked: Bools
    fields: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """The values at both ends of the colour scale, and how many trained tokens lie beyond or have no value."""

    low: float
    high: float
    beyond: int
    unknown: int


@dataclass(frozen=True, slots=True, eq=False)
class Tokens:
    """What the page shows.

    Attributes:
        steps: all steps with rows.
        step: the step of the response.
        sequence: its number in the run.
        uid: its identity, or None.
        group: its group, or None.
        neighbours: number of each response of the step -> what it is called: its uid, with the pass where there are several.
        earlier: number of the response before it in the step, or None.
        later: number of the one after it, or None.
        passes: all passes over it, in the order of training.
        finding: what the link is about, or None.
        reward: its reward, or None.
        advantage: mean over its trained tokens, or None.
        length: response tokens, or None.
        trained: tokens trained on.
        finish: why generation ended, or None.
        left_out: whether its tokens were left out to save space; then there is nothing below.
        offered: quantities that can be chosen.
        lacking: the other ones, with what they would need.
        quantity: the chosen one; None where the run has no token column for any.
        bounds: of the colours; None for flags.
        page: the tokens shown; None without any.
        profile: along the response.
        top: the tokens of this response that carry most of the quantity, as a table.
        top_positions: their positions.
        carriers: the token ids that carry most of it over the step, as a table; None without ids.
    """

    steps: tuple[int, ...]
    step: int
    sequence: int
    uid: str | None
    group: str | None
    neighbours: Mapping[int, str]
    earlier: int | None
    later: int | None
    passes: tuple[Pass, ...]
    finding: Finding | None
    reward: float | None
    advantage: float | None
    length: int | None
    trained: int
    finish: str | None
    left_out: bool
    offered: tuple[str, ...]
    lacking: Mapping[str, tuple[str, ...]]
    quantity: Quantity | None = None
    bounds: Bounds | None = None
    page: Page | None = None
    profile: Profile | None = None
    top: Table | None = None
    top_positions: tuple[int, ...] = ()
    carriers: Table | None = None


def tokens(
    opened: Opened,
    *,
    step: int | None = None,
    sequence: int | None = None,
    metric: str | None = None,
    position: int = 0,
    code: str | None = None,
    cause: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> Tokens | None:
    """The tokens of a response; None where the run has no rows.

    Args:
        opened: the run.
        step: the step; by default that of the response, or of the finding, else the last one.
        sequence: the response; by default the first sample of the finding, else the first response of the step.
        metric: what to colour by: a metric that a quantity belongs to. By default one of the finding's.
        position: a token that must be among those shown.
        code: rule of the finding.
        cause: cause, where no rule is named.
        tokenizer: gives the text of token ids.

    Raises:
        InputError: the rows cannot be read.
    """
    run, finding = opened.run, finding_of(opened, code, cause)
    row = _row(run, step, sequence, finding)
    if row is None:
        return None
    batch, at = batch_of(run, row), int(row.columns["step"][0])
    lacking = {name: QUANTITIES[name].lacks(run.columns, run.info.config) for name in _OFFERED}
    offered = tuple(name for name in _OFFERED if not lacking[name])
    chosen = selection(batch)
    number_of, names = int(row.columns["sequence"][0]), _neighbours(run, at)
    order = list(names)
    place = order.index(number_of)
    told = Tokens(
        tuple(run.steps), at, number_of, word(row, "uid", 0), word(row, "group", 0), names,
        order[place - 1] if place else None, order[place + 1] if place + 1 < len(order) else None, _passes(run, row),
        finding, number(row, "reward", 0), _mean(row, "advantage", chosen), count(row, "response_length", 0),
        int(chosen.sum()), word(row, "finish_reason", 0), left_out(row, 0), offered,
        {name: needs for name, needs in lacking.items() if needs},
    )  # fmt: skip
    quantity = _quantity(offered, metric, finding)
    if quantity is None or told.left_out or not batch.n_tokens:
        return told
    values = quantity.values(batch)
    levels, bounds = _levels(quantity, values, chosen)
    texts = _texts(batch, tokenizer)
    whole = of_step(run, at, quantity.name)
    top, top_positions = _top(quantity, values, chosen, texts, row)
    return replace(
        told, quantity=quantity, bounds=bounds, page=_page(batch, levels, texts, position, offered, tokenizer),
        profile=profile(batch, quantity, values, chosen, whole), top=top, top_positions=top_positions,
        carriers=carriers(whole, tokenizer, MOST_TOP),
    )  # fmt: skip


def _row(run: Run, step: int | None, sequence: int | None, finding: Finding | None) -> Rows | None:
    columns = run.columns
    if sequence is None and step is None and finding is not None and finding.samples:
        step, sequence = finding.samples[0].step, finding.samples[0].sequence
    if sequence is not None:
        found = None if step is None else sequence_of(run, sequence, columns, step)
        found = found or sequence_of(run, sequence, columns)
        if found is not None:
            return found
    at = step_near(run, step if step is not None or finding is None else finding.first_step)
    if at is None:
        return None
    chosen = None if finding is None else worst(run, at, finding, None)
    if chosen is None:
        rows = rows_of_step(run, at)
        chosen = None if rows is None else int(rows.columns["sequence"][0])
    return None if chosen is None else sequence_of(run, chosen, columns, at)


def _neighbours(run: Run, step: int) -> dict[int, str]:
    """The responses of a step by their number, and what each is called."""
    rows = rows_of_step(run, step)
    if rows is None:
        return {}
    uids = [word(rows, "uid", index) for index in range(rows.n_sequences)]
    several = Counter(uids)
    passes = zip(*(numbers(rows, name).tolist() for name in ("epoch", "minibatch")), strict=True)
    names: dict[int, str] = {}
    for sequence, uid, which in zip(rows.columns["sequence"].tolist(), uids, passes, strict=True):
        told = "" if several[uid] == 1 else f" ({'.'.join(f'{one:.0f}' for one in which if not math.isnan(one))})"
        names[sequence] = str(sequence) if uid is None else f"{uid}{told}"
    return names


def _passes(run: Run, row: Rows) -> tuple[Pass, ...]:
    rows = passes_of(run, row)
    return tuple(
        Pass(
            int(rows.columns["sequence"][index]), int(rows.columns["step"][index]), count(rows, "epoch", index),
            count(rows, "minibatch", index),
        )
        for index in range(rows.n_sequences)
    )  # fmt: skip


def _mean(row: Rows, name: str, chosen: Bools) -> float | None:
    values = row.columns.get(name)
    kept = np.empty(0) if values is None else values[chosen].astype(np.float64)
    kept = kept[~np.isnan(kept)]
    return float(kept.mean()) if kept.size else None


def _quantity(offered: tuple[str, ...], metric: str | None, finding: Finding | None) -> Quantity | None:
    """The quantity of the metric, else of the finding's evidence, else the first one that can be shown."""
    names = [metric, *(() if finding is None else (one.metric for one in finding.evidence))]
    for name in names:
        found = quantity_of(name)
        if found is not None and found.name in offered:
            return found
    return QUANTITIES[offered[0]] if offered else None


def _levels(quantity: Quantity, values: Floats, chosen: Bools) -> tuple[NDArray[np.int64], Bounds | None]:
    """Level of each token, and the scale. Only trained tokens set the scale, so that placeholders elsewhere cannot."""
    if quantity.scale == "flags":
        flags = np.where(np.isnan(values), UNKNOWN, np.nan_to_num(values)).astype(np.int64)
        return flags if quantity.name == "masked" else np.where(chosen, flags, MASKED), None
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.log(values) if quantity.name == "ratio" else values
    trained = drawn[chosen & ~np.isnan(drawn)]
    finite = trained[np.isfinite(trained)]
    if quantity.scale == "diverging":
        reach = float(np.quantile(np.abs(finite), SHARE)) if finite.size else 0.0
        low, high = -reach, reach
    else:
        low, high = (float(end) for end in np.quantile(finite, (1.0 - SHARE, SHARE))) if finite.size else (0.0, 0.0)
        low = min(low, 0.0) if quantity.name != "logprob" else low
        high = 0.0 if quantity.name == "logprob" else high
    beyond = int(np.count_nonzero((trained < low) | (trained > high)))
    place = np.full(len(drawn), 0.5 if quantity.scale == "diverging" else 0.0)
    if high > low:
        place = (np.clip(np.nan_to_num(drawn, nan=0.0, posinf=high, neginf=low), low, high) - low) / (high - low)
    levels = np.rint(place * LEVELS).astype(np.int64)
    levels[np.isnan(drawn)] = UNKNOWN
    levels[~chosen] = MASKED
    ends = np.exp([low, high]) if quantity.name == "ratio" else np.array([low, high])
    return levels, Bounds(float(ends[0]), float(ends[1]), beyond, int(np.count_nonzero(chosen & np.isnan(drawn))))


def _texts(batch: Batch, tokenizer: Tokenizer | None) -> list[str]:
    ids = batch.get("token_id")
    if ids is None:
        return [str(place) for place in range(batch.n_tokens)]
    return token_texts(ids, tokenizer)


def _page(
    batch: Batch,
    levels: NDArray[np.int64],
    texts: list[str],
    position: int,
    offered: tuple[str, ...],
    tokenizer: Tokenizer | None,
) -> Page:
    place = min(max(position, 0), batch.n_tokens - 1)
    first = place // MOST_TOKENS * MOST_TOKENS
    stop = min(first + MOST_TOKENS, batch.n_tokens)
    shown = slice(first, stop)
    fields: dict[str, tuple[str, ...]] = {}
    if (ids := batch.get("token_id")) is not None:
        fields["token_id"] = tuple(_whole(value) for value in ids[shown].tolist())
    for name in offered:
        if QUANTITIES[name].scale != "flags" and name != "logprob":
            fields[name] = tuple(_short(value) for value in QUANTITIES[name].values(batch)[shown].tolist())
    for name in _RECORDED:
        values = batch.get(name)
        if values is not None:
            tell = _short if values.dtype.kind == "f" else _whole
            fields[name] = tuple(tell(value) for value in values[shown].tolist())
    roles = batch.get("role")
    if roles is not None:
        fields["role"] = tuple(schema.ROLES[value] if value >= 0 else "-" for value in roles[shown].tolist())
    decoded = tokenizer is not None and batch.get("token_id") is not None
    return Page(
        first, first - MOST_TOKENS if first else None, stop if stop < batch.n_tokens else None, stop - 1, batch.n_tokens,
        tuple(texts[shown]), decoded, levels[shown], ~selection(batch)[shown], fields,
    )  # fmt: skip


def _short(value: float) -> str:
    return "NaN" if value != value else f"{value:.4g}"  # noqa: PLR0124 - NaN is not itself


def _whole(value: int) -> str:
    return "-" if value in MISSING_INT.values() else str(value)


def _top(quantity: Quantity, values: Floats, chosen: Bools, texts: list[str], row: Rows) -> tuple[Table, tuple[int, ...]]:
    """The trained tokens that are farthest from neutral, each with its share of all of that distance."""
    distance = np.where(chosen, quantity.distance(values), np.nan)
    known = np.flatnonzero(np.isfinite(distance))
    order = known[np.argsort(-distance[known], kind="stable")][:MOST_TOP]
    order = order[distance[order] > 0]
    total = float(distance[known].sum())
    ids = row.columns.get("token_id")
    told = [texts[index] or ("" if ids is None else str(ids[index])) for index in order]
    table: dict[str, Any] = {"position": order, "token": told}
    if ids is not None:
        table["token_id"] = ids[order]
    table[quantity.name] = values[order]
    table["share"] = distance[order] / total if total else np.zeros(0)
    if "advantage" in row.columns and quantity.name != "contribution":
        table["advantage"] = row.columns["advantage"][order]
    return table, tuple(order.tolist())

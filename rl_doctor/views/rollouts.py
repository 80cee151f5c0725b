"""Which responses to look at, and a group side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rl_doctor.analyzer.derive import per_sequence_counts, selection
from rl_doctor.report.model import Finding
from rl_doctor.store.lookup import group_of, members_of, passes_of, sequence_of
from rl_doctor.store.rows import Rows
from rl_doctor.store.run import Run
from rl_doctor.views.opened import Opened
from rl_doctor.views.picks import REWARD, Pick, Ranked, control_of, offered_of, picked, ranked, ranking, samples_of
from rl_doctor.views.rows import (
    Text,
    Tokenizer,
    batch_of,
    components_of,
    count,
    finding_of,
    left_out,
    number,
    numbers,
    of_text,
    response_text,
    step_near,
    word,
)
from rl_doctor.views.table import Table

Floats = NDArray[np.float64]

MOST_MEMBERS: Final = 64
"""Members of a group that are shown."""
MOST_POINTS: Final = 5_000


@dataclass(frozen=True, slots=True)
class Member:
    """A response of a group.

    Attributes:
        sequence: its number in the run.
        step: at which it was trained on first.
        uid: its identity, or None.
        reward: its reward, or None.
        components: name and value of each component of the reward.
        advantage: mean over its trained tokens, or None.
        length: number of response tokens, or None.
        trained: number of tokens trained on; None where tokens were left out.
        finish: why generation ended, or None.
        text: what it says.
        left_out: whether its tokens were left out to save space.
    """

    sequence: int
    step: int
    uid: str | None
    reward: float | None
    components: tuple[tuple[str, float | None], ...]
    advantage: float | None
    length: int | None
    trained: int | None
    finish: str | None
    text: Text
    left_out: bool


@dataclass(frozen=True, slots=True)
class Group:
    """Responses to one prompt.

    Attributes:
        name: identity of the group, or None where the response stands alone.
        prompt: the prompt.
        source: name of its data set, or None.
        members: its responses by falling reward.
        more: number of responses that are not shown.
        table: the numbers of the members.
    """

    name: str | None
    prompt: Text
    source: str | None
    members: tuple[Member, ...]
    more: int
    table: Table


@dataclass(frozen=True, slots=True, eq=False)
class Spread:
    """All responses of a step: what they were ranked by against their length.

    Attributes:
        by: what stands on the vertical axis: the quantity's name, or ``reward``.
        sequences: int64 ``[n]``.
        lengths: response tokens, ``[n]``, NaN where unknown.
        values: ``[n]``, NaN where unknown.
        rewards: ``[n]``, NaN where unknown.
        shown: number of responses of the step, of which ``n`` are drawn.
        table: the numbers.
    """

    by: str
    sequences: NDArray[np.int64]
    lengths: Floats
    values: Floats
    rewards: Floats
    shown: int
    table: Table


@dataclass(frozen=True, slots=True)
class Rollouts:
    """What the page shows.

    Attributes:
        steps: all steps with rows.
        step: the step that is looked at.
        finding: what the link is about, or None.
        picks: responses worth looking at.
        chosen: number of the response that is looked at.
        passes: number of passes over the chosen response.
        spread: all responses of the step.
        group: the chosen response's group, each response in its first pass.
        uid: identity of the chosen response, by which it is known in its other passes; None without.
        mates: numbers of the responses of the step that are of its group.
        by: what picks were ranked by beside the reward, or None.
        offered: what else they can be ranked by, each with the metric that stands for it in links.
        without_control: whether the finding is there from the first step on, so that there is none before.
    """

    steps: tuple[int, ...]
    step: int
    finding: Finding | None
    picks: tuple[Pick, ...]
    chosen: int
    passes: int
    spread: Spread
    group: Group
    uid: str | None
    mates: frozenset[int]
    by: str | None
    offered: Mapping[str, str]
    without_control: bool

    def shows(self, member: Member) -> bool:
        """Whether a response of the group is the chosen one, in whichever pass."""
        return member.sequence == self.chosen or (self.uid is not None and member.uid == self.uid)


def rollouts(
    opened: Opened,
    *,
    step: int | None = None,
    sequence: int | None = None,
    group: str | None = None,
    metric: str | None = None,
    code: str | None = None,
    cause: str | None = None,
    tokenizer: Tokenizer | None = None,
) -> Rollouts | None:
    """The responses that a link points to; None where the run has no rows.

    Args:
        opened: the run.
        step: the step; by default that of the finding's first sample, or of its onset, else the last one.
        sequence: the response; by default the first one worth looking at.
        group: its group, where no response is named.
        metric: what to rank by; by default the finding's metric.
        code: rule of the finding.
        cause: cause, where no rule is named.
        tokenizer: gives the text of token ids.

    Raises:
        InputError: the rows cannot be read.
    """
    run, finding = opened.run, finding_of(opened, code, cause)
    at = step_near(run, _wanted(finding) if step is None else step)
    if at is None:
        return None
    by, high = ranking(run, finding, metric)
    here = ranked(run, at, by)
    if here is None:
        return None
    picks = [*samples_of(run, finding), *picked(here, at, by, high=high, judged=finding is not None)]
    control = control_of(run, finding, by)
    picks += [] if control is None else [control]
    chosen = _chosen(run, at, sequence, group) or sequence_of(run, picks[0].sequence if picks else _first(here), (), None)
    if chosen is None:
        chosen = here.rows.slice(0, 1)
    return Rollouts(
        tuple(run.steps), at, finding, tuple(picks), count(chosen, "sequence", 0) or 0, passes_of(run, chosen).n_sequences,
        _spread(here, by), _group(run, chosen, tokenizer), word(chosen, "uid", 0), _mates(here.rows, chosen), by,
        offered_of(run), finding is not None and control is None,
    )  # fmt: skip


def _wanted(finding: Finding | None) -> int | None:
    if finding is None:
        return None
    return finding.samples[0].step if finding.samples else finding.first_step


def _chosen(run: Run, step: int, sequence: int | None, group: str | None) -> Rows | None:
    if sequence is not None:
        return sequence_of(run, sequence, (), step) or sequence_of(run, sequence)
    found = None if group is None else members_of(run, step, group)
    return None if found is None else found.slice(0, 1)


def _mates(rows: Rows, chosen: Rows) -> frozenset[int]:
    group, numbers = word(chosen, "group", 0), rows.columns["sequence"]
    if group is None or "group" not in rows.columns:
        return frozenset((count(chosen, "sequence", 0) or 0,))
    return frozenset(numbers[rows.columns["group"].astype(np.str_) == group].tolist())


def _first(here: Ranked) -> int:
    return int(here.rows.columns["sequence"][0]) if here.rows.n_sequences else -1


def _spread(here: Ranked, by: str | None) -> Spread:
    rows = here.rows
    rewards = numbers(rows, "reward")
    values = rewards if here.values is None else here.values
    stride = max(1, -(-rows.n_sequences // MOST_POINTS))
    lengths = numbers(rows, "response_length" if "response_length" in rows.columns else "stored_length")
    sequences = rows.columns["sequence"][::stride]
    name = REWARD if here.values is None or by is None else by
    drawn = {
        "sequence": sequences.astype(np.str_),
        "length": lengths[::stride],
        name: values[::stride],
        REWARD: rewards[::stride],
    }
    return Spread(name, sequences, lengths[::stride], values[::stride], rewards[::stride], rows.n_sequences, drawn)


def _group(run: Run, chosen: Rows, tokenizer: Tokenizer | None) -> Group:
    components = components_of(run)
    names: Collection[str] = (
        "reward", "response_length", "finish_reason", "data_source", "prompt", "response", "token_id", "advantage",
        "response_mask", "is_padding", *components,
    )  # fmt: skip
    rows = group_of(run, chosen, names)
    order = np.argsort(-np.nan_to_num(numbers(rows, "reward"), nan=-np.inf), kind="stable")
    kept = rows.take(order[:MOST_MEMBERS])
    members = tuple(_members(run, kept, components, tokenizer))
    named = members[0].components if members else ()
    table: dict[str, list[object]] = {
        "sequence": [str(one.sequence) for one in members], "uid": [one.uid for one in members],
        "step": [one.step for one in members], "reward": [one.reward for one in members],
        **{name: [dict(one.components)[name] for one in members] for name, _ in named},
        "advantage": [one.advantage for one in members], "length": [one.length for one in members],
        "trained": [one.trained for one in members], "finish_reason": [one.finish for one in members],
    }  # fmt: skip
    return Group(
        word(chosen, "group", 0), of_text(word(rows, "prompt", 0)), word(rows, "data_source", 0), members,
        rows.n_sequences - kept.n_sequences, table,
    )  # fmt: skip


def _members(run: Run, rows: Rows, components: list[str], tokenizer: Tokenizer | None) -> Iterator[Member]:
    batch = batch_of(run, rows)
    chosen, trained = selection(batch), per_sequence_counts(batch)
    advantages = rows.columns.get("advantage")
    for index in range(rows.n_sequences):
        own = slice(int(rows.splits[index]), int(rows.splits[index + 1]))
        advantage: float | None = None
        if advantages is not None and trained[index]:
            kept = advantages[own][chosen[own]].astype(np.float64)
            kept = kept[~np.isnan(kept)]
            advantage = float(kept.mean()) if kept.size else None
        gone = left_out(rows, index)
        yield Member(
            int(rows.columns["sequence"][index]), int(rows.columns["step"][index]), word(rows, "uid", index),
            number(rows, "reward", index), tuple((name, number(rows, name, index)) for name in components), advantage,
            count(rows, "response_length", index), None if gone else int(trained[index]), word(rows, "finish_reason", index),
            response_text(rows, index, tokenizer), gone,
        )  # fmt: skip

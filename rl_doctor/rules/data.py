"""Values that cannot be, rows that repeat, steps and parts that are missing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from rl_doctor.report.model import Evidence, Hit, Severity
from rl_doctor.rules.reading import lacking
from rl_doctor.rules.registry import Limits, Skip, rule
from rl_doctor.rules.spans import Breach, above, at, pooled
from rl_doctor.rules.view import View

_LOGPROBS: Final = ("logprob", "old_logprob", "rollout_logprob", "ref_logprob", "teacher_logprob")
_OF_ROWS: Final = ("sequences-", "tokens-")
"""What the names of part files with rows begin with."""
_ENGINE: Final = frozenset({"rollout_logprob"})


@rule(
    "RLD001",
    "impossible-logprob",
    severity="error",
    optional=tuple(f"data.{name}_{suffix}" for name in _LOGPROBS for suffix in ("max", "positive_frac", "coarse_frac")),
    limits={"rounding": 1e-5, "gross": 1e-3, "coarse": 0.999, "sign": 0.5},
    cause="A number was recorded that is not a log-probability.",
    advice=(
        "Compute log_softmax in float32, outside autocast, also where the model runs in bfloat16.",
        "Look at the code that fills the column: placeholders of masked or missing tokens must not reach trained tokens.",
        "Check the sign: losses and negative log-likelihoods are positive, logprobs are not.",
    ),
    avoids=(
        "rounding of a float32 log_softmax (below 1e-5; up to 1e-3 it is info)",
        "placeholders at tokens that are not trained",
    ),
    source="a probability is at most 1; half-precision heads give logprobs up to +0.125 (public trainer issues)",
)
def impossible_logprob(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """A log-probability above 0 at a trained token.

    No probability exceeds 1, so the column holds something else: rounding of logits that were kept in bfloat16, a
    placeholder such as 1.0 for a token whose logprob is missing, a negative log-likelihood with its sign, or a plain
    probability. Ratios and KL are computed from these numbers and are then wrong by as much.

    For each logprob column the largest value and the share above 0 are taken over the trained tokens. ``rounding`` (nat) is
    what float32 explains, whatever the size of the logits; above ``gross`` (nat) it is an error. If at least ``coarse`` of the
    column's values fit bfloat16 exactly, the column was rounded to it, and smaller values are a warning; else they are noise of
    log_softmax at tokens that are nearly certain, and info. If more than ``sign`` of the values are positive, up to above
    ``gross``, the sign is the likelier cause.

    Limits: values below 0 that are wrong all the same are the business of the rules on alignment and mismatch.
    """
    measured = [name for name in _LOGPROBS if view.get(f"data.{name}_max") is not None]
    if not measured:
        yield lacking(view, *(f"data.{name}_max" for name in _LOGPROBS))
    for name in measured:
        breach = above(view.get(f"data.{name}_max"), limits["rounding"])
        if breach is not None:
            yield _positive(view, limits, name, breach)


def _positive(view: View, limits: Limits, name: str, breach: Breach) -> Hit:
    steps = breach.series.steps[breach.marked]
    share, coarse = at(view.get(f"data.{name}_positive_frac"), steps), at(view.get(f"data.{name}_coarse_frac"), steps)
    largest = float(breach.series.values[breach.marked].max())
    above_zero = pooled(share) if share is not None else float("nan")
    rounded = coarse is not None and pooled(coarse) >= limits["coarse"]
    noise = largest <= limits["gross"] and not rounded
    suspect = ""
    if noise:
        suspect = "logprob-noise-above-zero"
        cause = "Logprobs of nearly certain tokens lie slightly above 0: numeric noise of log_softmax."
    elif above_zero > limits["sign"]:
        suspect = "logprob-sign-flipped"
        cause = "The column holds negative log-likelihoods or plain probabilities, not logprobs."
    elif rounded:
        suspect = f"{'engine' if name in _ENGINE else 'trainer'}-half-precision-logits"
        cause = "Logits or logprobs were rounded to bfloat16 before or inside log_softmax."
    elif name in _ENGINE:
        suspect = "placeholder-among-logprobs"
        cause = "A placeholder stands where the engine gave no logprob."
    else:
        cause = "A number was recorded that is not a log-probability."
    ruled_out = () if rounded or coarse is None else ("rounding to bfloat16: the values do not lie on its grid",)
    evidence = [breach.evidence(value=largest)]
    if share is not None:
        evidence.append(Evidence(share.metric, breach.first, breach.last, above_zero, n=int(share.counts.sum()), limit=0.0))
    message = (
        f"{name} reaches {largest:+.3g} nat at trained tokens {breach.when}; it is above 0 at {above_zero:.2%} of the trained "
        "tokens of these steps"
    )
    severity: Severity = "info" if noise else "error" if largest > limits["gross"] else "warning"
    return Hit(message, severity, tuple(evidence), cause, ruled_out, suspect=suspect)


@rule(
    "RLD002",
    "impossible-length",
    severity="error",
    needs=("data.negative_length_frac", "data.contradicting_length_frac"),
    cause="Lengths were computed from the wrong tensor, or columns of different rows were joined.",
    advice=(
        "Recompute lengths from the attention mask of the row.",
        "Check that every column was cut and shuffled with the same index.",
    ),
    avoids=("responses longer than what is stored: fully masked rows store nothing", "lengths that are null"),
    source="arithmetic",
)
def impossible_length(view: View, _: Limits) -> Iterable[Hit | Skip]:
    """Lengths below 0, or lengths that contradict each other.

    Checked per row: no recorded length is negative; stored_length is the number of tokens that the row really stores; there
    are not more prompt tokens in the loss than prompt tokens. What breaks this makes every length statistic and every
    mask-edge check of the row worthless. One row is enough.
    """
    for name, words in (
        ("data.negative_length_frac", "hold a negative length"),
        ("data.contradicting_length_frac", "hold lengths that contradict each other or the stored tokens"),
    ):
        if (breach := above(view.get(name), 0.0)) is not None:
            yield Hit(f"{breach.items:.0f} of {breach.n} rows {words} {breach.when}", "error", (breach.evidence(),))


def _fact(view: View, name: str, value: float, message: str, unit: str, severity: Severity = "warning") -> Hit:
    facts = view.facts
    evidence = Evidence(f"store.{name}", facts.first_step, facts.last_step, value, None, 0.0, unit)
    return Hit(message, severity, (evidence,))


@rule(
    "RLD003",
    "repeated-steps",
    severity="warning",
    cause="Rows were written twice, or files of several runs or sessions were joined without sorting.",
    advice=(
        "Check whether a resumed run wrote into the same file, or whether two ranks wrote the same rows.",
        "Sort by step and drop repeated (step, epoch, minibatch, microbatch, rank, uid) before relying on sums and counts.",
    ),
    limits={"places": 3, "share": 0.25},
    avoids=("several passes over the same samples, which differ in epoch or mini-batch", "sessions of a run folder that overlap"),
    source="rows counted twice weigh twice in every mean",
)
def repeated_steps(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Rows that repeat the keys of another row, or steps that go backwards in the file.

    Repeated rows weigh twice in every mean, and a series whose steps go back may come from two runs in one file. The reader
    counts both while reading; nothing is dropped because of it. Where every row comes equally often in a sorted file, these may
    be passes over the same samples, and it is only worth knowing. So it is where the step goes back at ``places`` or more and
    at ``share`` of the steps or more, and no row is repeated: that is a shuffle, and rows are read by step.
    """
    facts = view.facts
    if facts.repeated_rows:
        text = f"{facts.repeated_rows} of {facts.sequences} rows repeat the keys of another row"
        distinct = facts.sequences - facts.repeated_rows
        passes = distinct > 0 and facts.sequences % distinct == 0 and not facts.unsorted_steps
        if passes:
            text += "; each equally often, as passes over the same samples do when epoch and minibatch are not recorded"
        yield _fact(view, "repeated_rows", facts.repeated_rows, text, "rows", "info" if passes else "warning")
    if facts.unsorted_steps:
        yield _unsorted(view, limits)


def _unsorted(view: View, limits: Limits) -> Hit:
    """The finding that steps go back: in few places where files were joined, everywhere where rows were shuffled."""
    facts, places = view.facts, view.facts.unsorted_steps
    steps = 1 if facts.first_step is None or facts.last_step is None else facts.last_step - facts.first_step + 1
    text = f"the step goes back at {places} places in the file"
    if facts.repeated_rows or places < max(limits["places"], limits["share"] * steps):
        return _fact(view, "unsorted_steps", places, text, "rows")
    found = _fact(view, "unsorted_steps", places, f"{text}: rows out of order, read by step", "rows", "info")
    return replace(
        found,
        cause="The rows are not in the order of their steps, as a shuffle leaves them.",
        advice=("Nothing has to be done; sort by step for readers that go by the order of the rows.",),
    )


@rule(
    "RLD004",
    "dropped-steps",
    severity="warning",
    cause="The recorder could not keep up with the trainer, or a rank stopped writing.",
    advice=(
        "Write to a faster disk, log fewer columns or a sample of the sequences, or let the recorder block.",
        "Check that every rank is alive and closes its recorder.",
    ),
    avoids=("the last step of a run that is still going on",),
    source="a step that was dropped cannot be judged",
)
def dropped_steps(view: View, _: Limits) -> Iterable[Hit | Skip]:
    """Steps that the recorder dropped, or that not every writing rank completed.

    When the disk is slower than the trainer, whole steps are dropped rather than the trainer held up, and counted. A defect
    that showed only in those steps stays unseen, and trends have gaps. A single incomplete step at the end of a run that has
    not been closed is normal.
    """
    facts = view.facts
    if facts.dropped_steps:
        text = f"the recorder dropped {facts.dropped_steps} steps"
        yield _fact(view, "dropped_steps", facts.dropped_steps, text, "steps")
    open_end = view.info.status != "complete" and len(facts.incomplete_steps) == 1
    if facts.incomplete_steps and not open_end:
        named = ", ".join(str(step) for step in facts.incomplete_steps[:5])
        more = "" if len(facts.incomplete_steps) <= 5 else f" and {len(facts.incomplete_steps) - 5} more"
        text = f"not every rank completed step {named}{more}"
        evidence = Evidence("store.incomplete_steps", min(facts.incomplete_steps), max(facts.incomplete_steps),
                            len(facts.incomplete_steps), None, 0.0, "steps")  # fmt: skip
        yield Hit(text, "warning", (evidence,))


@rule(
    "RLD005",
    "unreadable-parts",
    severity="error",
    cause="A part file was cut short, damaged, or written by a newer version.",
    advice=(
        "Copy the folder again if it was copied; otherwise run with what is left, knowing that it is not all.",
        "Delete the part named in the message to silence this.",
    ),
    avoids=("temporary files that a killed writer left behind, which were never part of the run",),
    source="numbers from a part of the data may differ from those of all of it",
)
def unreadable_parts(view: View, _: Limits) -> Iterable[Hit | Skip]:
    """Part files that were left out of the reading.

    Every number in the report then comes from the rest, so that sums and counts are too small and a step may look
    different from what was trained. It is a warning while some rows could be read, and an error where none could: what is
    judged then are the numbers that the trainer logged, and nothing of what it trained on.
    """
    parts = view.facts.skipped_parts
    if parts:
        more = "" if len(parts) == 1 else f", and {len(parts) - 1} more"
        bare = not view.facts.sequences and any(part.startswith(_OF_ROWS) for part in parts)
        text = f"no part with rows could be read: {parts[0]}{more}" if bare else f"left out of the reading: {parts[0]}{more}"
        yield _fact(view, "skipped_parts", len(parts), text, "files", "error" if bare else "warning")


@rule(
    "RLD020",
    "duplicate-samples",
    severity="error",
    needs=("data.duplicate_frac", "data.duplicate_expected_frac", "data.improbable_duplicate_frac"),
    optional=("data.distinct_frac",),
    limits={"rows": 4, "improbable": 0.02, "excess": 3.0, "share": 0.05, "sigmas": 5.0},
    cause="Samples of a group are copies: engines or ranks share a random seed, or one response was repeated.",
    advice=(
        "Give every engine, rank and sample of a group its own seed, and none to the request itself.",
        "Check that n samples per prompt are asked for once, and not one sample repeated n times.",
        "Check that caching in the engine does not return the first completion for equal prompts.",
    ),
    avoids=(
        "policies of low entropy, where copies are as frequent as their probability says",
        "greedy sampling, where configured",
    ),
    source="collision probability of independent samples; engines that share a seed (public trainer issues)",
)
def duplicate_samples(view: View, limits: Limits) -> Iterable[Hit | Skip]:
    """Identical responses in a group, more often than chance.

    Copies have equal rewards, so they shrink the group's spread, weigh their response several times, and make groups without
    signal. But a policy of low entropy repeats itself honestly: two independent samples coincide with the sum of squared
    probabilities. Responses are compared token by token, and each response's own log-probability says how often it should
    come again.

    It fires on copies that cannot be chance: at least ``rows`` rows and a share of ``improbable`` of responses with a
    probability below 1e-6 that stand twice in their group; or on a share of ``share`` over the whole run that exceeds the
    expected one ``excess`` times, and by ``sigmas`` standard errors of a count of pairs. Steps are pooled before they are
    compared: picking those with many copies would make any run look bad.

    Limits: if the logprob belongs to another temperature than the sampler's, greedy or cold sampling looks like copies;
    ``config.temperature`` and ``config.top_k`` tell.
    """
    config = view.config
    if config.temperature == 0.0 or config.top_k == 1:
        yield Skip("config", "sampling is greedy, so equal responses are by design")
        return
    yield from _copies(view, limits)


def _copies(view: View, limits: Limits) -> Iterator[Hit]:
    share, expected = view.series("data.duplicate_frac"), view.series("data.duplicate_expected_frac")
    copies = above(view.series("data.improbable_duplicate_frac"), limits["improbable"])
    total, level, count = pooled(share), pooled(expected), int(share.counts.sum())
    error = np.sqrt(2.0 * max(level * count, 1.0))  # copies come in pairs
    excess = (
        total >= limits["share"] and total >= limits["excess"] * level and (total - level) * count >= limits["sigmas"] * error
    )
    if copies is not None and copies.items >= limits["rows"]:
        steps = copies.series.steps[copies.marked]
        seen, chance = at(share, steps), at(expected, steps)
        total, level = pooled(seen) if seen is not None else copies.value, pooled(chance) if chance is not None else level
        evidence, when, first, last = [copies.evidence()], copies.when, copies.first, copies.last
    elif excess and total * count >= limits["rows"]:
        evidence, when, first, last = [], "over the whole run", int(share.steps[0]), int(share.steps[-1])
    else:
        return
    evidence.append(Evidence("data.duplicate_frac", first, last, total, level, None, "1", count))
    unchecked = () if view.config.temperature is not None else ("greedy sampling: config.temperature is not recorded",)
    message = (
        f"{total:.1%} of the responses are identical to another of their group {when}, where their own "
        f"probabilities predict {level:.2%}"
    )
    severe = total > limits["share"] and total > limits["excess"] * level
    ruled_out = ("low entropy: the copies' own log-probabilities make them improbable",)
    alike = total >= 0.99 and (variety := view.get("data.distinct_frac")) is not None and _one_each(view, pooled(variety))
    cause = "Every response of a group is the same: the engine samples greedily." if alike else None
    suspect = "sampling-greedy" if alike else ""
    yield Hit(message, "error" if severe else "warning", tuple(evidence), cause, ruled_out, unchecked, suspect=suspect)


def _one_each(view: View, variety: float) -> bool:
    """Whether groups hold about one different response, of groups of at least three."""
    size = view.config.group_size or 0
    return size >= 3 and variety <= 1.05 / size

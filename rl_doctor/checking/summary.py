"""What is told of a run beside the results of the rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from rl_doctor.analyzer.dialects.registry import Bounds, bounds_of
from rl_doctor.analyzer.engine import Analysis
from rl_doctor.analyzer.gaps import gap_note, gaps_in
from rl_doctor.analyzer.logged import Logged
from rl_doctor.analyzer.recompute.registry import find_dialect
from rl_doctor.checking.against_log import AgainstLog, reconciled
from rl_doctor.checking.reading import Reading
from rl_doctor.errors import shown
from rl_doctor.report.model import RunSummary
from rl_doctor.schema import RunInfo
from rl_doctor.store.info import doubts
from rl_doctor.store.run import Run


def summary_of(run: Run, reading: Reading, analysis: Analysis, blank: Sequence[str], compared: AgainstLog) -> RunSummary:
    """The summary of one reading; ``blank`` are the columns that hold not one finite number."""
    told = (*_left_out(analysis, reading.info), *_unread(analysis), *_told(blank, analysis.reopened_rollouts), *_missing(run))
    told += _configured(reading) if compared.done else ()
    left = compared.left
    return replace(
        _summary(run, reading.logged, told), reconciled=reconciled(compared.comparisons),
        not_recomputed=left.reasons, not_recomputable=left.absent, undefined=len(left.unknown), undefined_names=left.unknown,
    )  # fmt: skip


def _configured(reading: Reading) -> tuple[str, ...]:
    """What of the configuration does not fit what its trainer has, where that is recomputed."""
    dialect = find_dialect(reading.info) if reading.columns else None
    return tuple(dialect.doubts(reading.info)) if dialect else ()


def _left_out(analysis: Analysis, info: RunInfo) -> Iterator[str]:
    """What the reader must know of tokens that were left out to save space."""
    sampled, bare = analysis.sampled_steps, analysis.bare_steps
    if len(sampled):
        share = "some of the sequences" if info.sampling is None else f"{100 * info.sampling:.4g}% of the groups"
        yield f"tokens of {share} were kept (steps {sampled[0]} to {sampled[-1]}): metrics of tokens are estimates"
    if len(bare):
        counted = "1 step" if len(bare) == 1 else f"{len(bare)} steps"
        yield f"thinned: the tokens of {counted} ({bare[0]} to {bare[-1]}) were left out to save space"


def _missing(run: Run) -> Iterator[str]:
    """That a recording lacks steps; a log may be written at any."""
    if isinstance(run, Run) and (gaps := gaps_in(np.array(run.steps, np.int64))):  # what lies in memory was never stored
        yield gap_note(gaps)


def _unread(analysis: Analysis) -> Iterator[str]:
    """That the passes of the critic could not be read."""
    if analysis.critic.unread:
        yield f"passes of the critic are left out: {analysis.critic.unread}"


def _told(blank: Sequence[str], reopened: int) -> tuple[str, ...]:
    """What the reader must know of the pass itself."""
    told = []
    if blank:
        told.append(f"not one finite number in {', '.join(blank)}: counted as not recorded")
    if reopened:
        came = "1 generation batch came" if reopened == 1 else f"{reopened} generation batches came"
        told.append(f"{came} back after others were trained on; rows that were late are judged apart")
    return tuple(told)


def _summary(run: Run, logged: Logged, told: tuple[str, ...]) -> RunSummary:
    info, facts = logged.info, run.facts
    unknown = facts.unknown_columns if run.columns else (*facts.unknown_columns, *logged.unknown)
    notes = (*facts.notes, *_recognised(run.info, info), *logged.notes, *doubts(info), *told)
    return RunSummary(
        shown(run.path), info.trainer, _version(run.info, info), info.algorithm, facts.first_step, facts.last_step,
        facts.sequences, facts.tokens, facts.skipped_parts, unknown, notes, facts.renamed_columns, len(logged),
        info.sampling if info.sampling is not None and info.sampling < 1 else None,
    )  # fmt: skip


def _recognised(told: RunInfo, info: RunInfo) -> Iterator[str]:
    """What of the description follows from the names of the metrics alone."""
    found = [
        f"{member} {value}"
        for member in ("trainer", "algorithm")
        if getattr(told, member) is None and (value := getattr(info, member)) is not None
    ]
    if found:
        yield f"{' and '.join(found)}: by the names of the metrics"


def _version(told: RunInfo, info: RunInfo) -> str | None:
    """The trainer's version as it is printed: as it was told, or what the names of the metrics leave possible."""
    words = None if told.trainer_version else bounds_of(info.trainer_version).words
    if told.trainer_version and bounds_of(told.trainer_version) == Bounds():
        return f"{told.trainer_version} (no version that can be read)"
    return f"{words}, by its keys" if words else told.trainer_version

"""The passes of a critic, recorded as a run of their own inside a run folder or beside a run file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rl_doctor.errors import DoctorError, shown
from rl_doctor.schema import RunConfig, RunInfo

if TYPE_CHECKING:
    from rl_doctor.store.run import Run


def open_critic(path: Path, of: RunInfo, opened: Callable[[Path], Run]) -> tuple[Run | None, tuple[str, ...]]:
    """Open the critic's passes; whatever is wrong with them is told and never breaks the run.

    Args:
        path: where they are.
        of: the description of the run: the critic's own lacks what was told there only.
        opened: opens the path.

    Returns:
        The critic's run, None where it cannot be read; and notes for the reader.
    """
    try:
        critic = opened(path)
        critic = replace(critic, info=_described(critic.info, of))
        return critic, tuple(_told(critic, path.name))
    except (DoctorError, OSError) as error:
        reason = str(error).removeprefix(f"{shown(path)}: ").replace(f"{shown(path.parent)}/", "")
        return None, (f"passes of the critic ({path.name}) are left out: {reason}",)


def _described(own: RunInfo, of: RunInfo) -> RunInfo:
    """The critic's description, completed by that of the run."""
    names = [field.name for field in fields(RunConfig) if field.name != "native"]
    config = {name: getattr(own.config, name) for name in names}
    config |= {name: getattr(of.config, name) for name, value in config.items() if value is None}
    native = {**(of.config.native or {}), **(own.config.native or {})}
    return replace(
        own,
        trainer=own.trainer or of.trainer,
        trainer_version=own.trainer_version or of.trainer_version,
        algorithm=own.algorithm or of.algorithm,
        config=RunConfig(**config, native=native or None),
    )


def _told(critic: Run, name: str) -> Iterator[str]:
    facts = critic.facts
    if facts.first_step is None:
        return
    rows = "1 sequence" if facts.sequences == 1 else f"{facts.sequences} sequences"
    yield f"passes of the critic ({name}): steps {facts.first_step} to {facts.last_step}, {rows}"
    if facts.dropped_steps:
        yield f"passes of the critic ({name}): {facts.dropped_steps} steps were dropped while recording"
    for reason in (*facts.skipped_parts, *facts.notes):
        yield f"passes of the critic ({name}): {reason}"

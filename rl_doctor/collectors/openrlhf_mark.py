"""What OpenRLHF's processes know in common: where they record to, and what travels with each sequence from one to another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from rl_doctor.frozen import frozen
from rl_doctor.store.layout import CRITIC_NAME

ENTRY: Final = "rl_doctor"
"""Key in ``Experience.info``: one list of whole numbers per sequence, which splitting, padding and joining leave alone."""
_UNKNOWN: Final = -1


@frozen
class Destination:
    """Where the processes of a run record to: the run folder, and further arguments of ``Recorder``."""

    path: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def critic(self) -> Path:
        """Folder of the critic's passes, a run of its own inside the run."""
        return Path(self.path) / CRITIC_NAME


@frozen
class Mark:
    """One sequence: the sessions to record it in (None: not at all), its step, its row in the rollout, and how it ended."""

    session: int | None
    critic_session: int | None
    step: int
    row: int
    truncated: bool | None

    def pack(self) -> list[int]:
        """As whole numbers: were they left in, the trainer would average them and go on."""
        values = (self.session, self.critic_session, self.step, self.row, self.truncated)
        return [_UNKNOWN if value is None else int(value) for value in values]

    @classmethod
    def unpack(cls, values: Any) -> Mark:
        """From ``pack``."""
        session, critic, step, row, truncated = (None if int(value) == _UNKNOWN else int(value) for value in values)
        return cls(session, critic, step or 0, row or 0, None if truncated is None else bool(truncated))

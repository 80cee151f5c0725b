"""What a page is shown with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_doctor.app.link import Link
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.live.followed import Followed
from rl_doctor.views.opened import Opened


@dataclass(frozen=True, slots=True)
class Context:
    """What a page is shown with.

    Attributes:
        followed: the chosen run.
        link: where the reader is.
        speaker: speaks the reader's language.
        runs: all runs that the app was started with, as the picker names them.
        go: changes the address and shows what is there.
        pages: the pages that there are, by name; "" is the diagnosis.
        tokenizer: gives the text of each of some token ids, where the app was started with one.
    """

    followed: Followed
    link: Link
    speaker: Speaker
    runs: Mapping[str, Followed]
    go: Callable[[Link], None]
    pages: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: Callable[[Sequence[int]], list[str]] | None = None

    @property
    def name(self) -> str:
        """The chosen run, as the picker names it."""
        return self.link.run or next(iter(self.runs))

    @property
    def opened(self) -> Opened:
        """The chosen run with all that is known of it."""
        return self.followed.opened

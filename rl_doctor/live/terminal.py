"""The watch on a terminal: a table that is redrawn in place, or one line for each change where there is no terminal."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Final, TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rl_doctor.live.changes import changes
from rl_doctor.live.looking import Look
from rl_doctor.live.sight import Sight, Trouble
from rl_doctor.live.words import Words
from rl_doctor.report.wording import printable

_STYLES: Final = {"error": "bold red", "warning": "bold yellow", "info": "bold blue"}
_ICONS: Final = {"error": "✖", "warning": "▲", "info": "●", "over": "✔"}
_PLAIN_ICONS: Final = {"error": "x", "warning": "!", "info": "i", "over": "+"}
_BARS: Final = "▁▂▃▄▅▆▇█"
_PLAIN_BARS: Final = "_.-=+*#@"
_OVERHEAD: Final = 9
"""Lines of the table that are no cause."""
_LINES: Final = 4
"""Lines of a cause in 80 columns, about."""
_HEARTBEAT: Final = 60.0


def sparkline(values: Sequence[float], *, plain: bool = False) -> str:
    """The values as bars between the least and the greatest of them; all in the middle where they are equal."""
    bars = _PLAIN_BARS if plain else _BARS
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return ""
    low, high = min(known), max(known)
    if not high > low:
        return bars[len(bars) // 2 - 1] * len(known)
    scale = (len(bars) - 1) / (high / 2 - low / 2)  # halves: the range of numbers near the largest has no float
    return "".join(bars[min(len(bars) - 1, max(0, round((value / 2 - low / 2) * scale)))] for value in known)


def picture(
    look: Look | None, words: Words, path: str, now: float, *, lines: int | None = None, plain: bool = False
) -> RenderableType:
    """What is shown of a look.

    Args:
        look: the last look; None before the first.
        words: puts it into words.
        path: the run.
        now: Unix time.
        lines: height of the terminal; causes that do not fit are counted.
        plain: ASCII alone.
    """
    if look is None:
        return Text(words.say("reading", path=printable(path)), "dim")
    if (sight := look.sight) is None:
        return Text(_problem(look, words, path), "yellow")
    head = [printable(sight.path), words.tell(sight.about), *_progress(sight, words, now)]
    parts: list[RenderableType] = [Text(" · ".join(filter(None, head)))]
    style = "bold red" if sight.quiet is not None else "bold"
    verdict = Text(words.status(sight), style)
    verdict.append(" · ")
    verdict.append(words.counts(sight), _STYLES.get(sight.worst or "", "green" if sight.exit_code == 0 else "yellow"))
    parts.append(verdict)
    if look.problem:
        parts.append(Text(_problem(look, words, path), "yellow"))
    if sight.troubles:
        room = len(sight.troubles) if lines is None else max(1, (lines - _OVERHEAD) // _LINES)
        parts += ["", _causes(sight.troubles[:room], words, plain=plain)]
        if left := len(sight.troubles) - room if room < len(sight.troubles) else 0:
            parts.append(Text(words.say("more", count=left, command=words.more(sight)), "dim"))
    return Group(*parts)


def _progress(sight: Sight, words: Words, now: float) -> list[str]:
    if sight.step is None:
        told = [words.say("no_step")]
    elif sight.read is None or sight.read <= sight.step:
        told = [words.say("step", step=sight.step)]
    else:
        told = [words.say("read", read=sight.read, step=sight.step)]
    if sight.tokens:
        told.append(words.say("tokens", tokens=f"{sight.tokens:,}"))
    return [*told, words.say("written", ago=words.ago(now - sight.written))]


def _problem(look: Look, words: Words, path: str) -> str:
    if look.missing and look.sight is None:
        return words.say("waiting", path=printable(path))
    return words.say("unreadable" if look.sight is None else "unreadable_now", problem=printable(look.problem))


def _causes(troubles: Sequence[Trouble], words: Words, *, plain: bool) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.add_column(words.say("col_severity"), no_wrap=True)
    table.add_column(words.say("col_cause"), overflow="fold", ratio=1)
    table.add_column(words.say("col_since"), no_wrap=True)
    table.add_column(words.say("col_trend"), no_wrap=True)
    table.add_column(words.say("col_now"), overflow="fold", max_width=12)
    icons = _PLAIN_ICONS if plain else _ICONS
    for trouble in troubles:
        cause = Text(words.tell(trouble.cause))
        cause.append(f" {', '.join(trouble.codes)}", "dim")
        since = words.say("always") if trouble.first_step is None else words.say("step", step=trouble.first_step)
        kind = trouble.severity if trouble.going_on else "over"
        style = _STYLES[trouble.severity] if trouble.going_on else "green"
        table.add_row(
            Text(f"{icons[kind]} {words.severity(trouble.severity)}", style),
            cause,
            since,
            Text(sparkline(trouble.trend, plain=plain)),
            Text(words.now(trouble), "" if trouble.going_on else "green"),
        )
    return table


class Display:
    """Redraws the look in place, once a second: what was written how long ago moves on, also while the run is read.

    Args:
        stream: the terminal.
        words: puts looks into words.
        path: the run.
        colour: whether to colour.
    """

    def __init__(self, stream: TextIO, words: Words, path: str, *, colour: bool) -> None:
        self._console = Console(
            file=stream, no_color=not colour, highlight=False, emoji=False, markup=False, legacy_windows=False
        )
        self._words = words
        self._path = path
        self._look: Look | None = None
        self._closing = False
        self._live = Live(console=self._console, get_renderable=self._picture, refresh_per_second=1)
        self._live.start()

    def take(self, look: Look, *, last: bool = False) -> None:
        """Show a look."""
        del last
        self._look = look
        self._live.refresh()

    def close(self) -> None:
        """Leave the last picture, whole, on the terminal."""
        self._closing = True
        self._live.stop()

    def _picture(self) -> RenderableType:
        lines = None if self._closing else self._console.height
        plain = self._console.options.ascii_only
        return picture(self._look, self._words, self._path, time.time(), lines=lines, plain=plain)


class Lines:
    """Prints one line for each change.

    Args:
        write: prints a line.
        words: puts changes into words.
        path: the run.
    """

    def __init__(self, write: Callable[[str], None], words: Words, path: str) -> None:
        self._write = write
        self._words = words
        self._path = path
        self._sight: Sight | None = None
        self._problem = ""

    def take(self, look: Look, *, last: bool = False) -> None:
        """Print what is new."""
        del last
        problem = _problem(look, self._words, self._path) if look.problem or look.missing else ""
        if problem and problem != self._problem:
            self._say(problem)
        self._problem = problem
        if (sight := look.sight) is None:
            return
        before, self._sight = self._sight, sight
        if before is None or before.key != sight.key:
            head = (printable(sight.path), self._words.tell(sight.about), self._words.status(sight))
            self._say(" · ".join(filter(None, head)), sight)
        for event in changes(before, sight):
            self._say(self._words.line(event, sight), sight)

    def close(self) -> None:
        """Nothing is left to print."""

    def _say(self, line: str, sight: Sight | None = None) -> None:
        step = "" if sight is None or sight.step is None else f"{self._words.say('step', step=sight.step)}  "
        self._write(f"{time.strftime('%H:%M:%S')}  {step}{' '.join(line.split())}")


class JsonLines:
    """Prints each look at which something is new as one JSON object, for programs; an unchanged one once a minute.

    Args:
        write: prints a line.
        path: the run.
    """

    def __init__(self, write: Callable[[str], None], path: str) -> None:
        self._write = write
        self._path = path
        self._before: Look | None = None
        self._written = 0.0

    def take(self, look: Look, *, last: bool = False) -> None:
        """Print what is new."""
        before, sight = self._before, look.sight
        if look == before and not last and time.monotonic() - self._written < _HEARTBEAT:
            return
        events = () if sight is None else changes(None if before is None else before.sight, sight)
        self._before, self._written = look, time.monotonic()
        told = [
            {"kind": event.kind, **({} if event.trouble is None else {"cause": event.trouble.name, "codes": event.trouble.codes})}
            for event in events
        ]
        document = {
            "path": self._path, "time": time.time(), "problem": look.problem, "over": look.over, "exit_code": look.exit_code,
            "events": told, "sight": None if sight is None else sight.to_json(),
        }  # fmt: skip
        self._write(json.dumps(document))

    def close(self) -> None:
        """Nothing is left to print."""

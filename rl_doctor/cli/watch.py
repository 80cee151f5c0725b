"""``rl-doctor watch``: follow a run in a terminal, and tell others of what it finds."""

from __future__ import annotations

import os
import signal
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rl_doctor.cli.judging import Lang, can_print, preferred
from rl_doctor.cli.output import colour, command_line, complain, encodable, is_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rl_doctor.live.terminal import Display, JsonLines, Lines
    from rl_doctor.live.watching import Sink
    from rl_doctor.live.words import Words

NAME: Final = "watch"
_INTERVAL: Final = 3.0
_TERMINATED: Final = 128 + 15


class Format(StrEnum):
    """Formats of the watch."""

    text = "text"
    json = "json"


class Level(StrEnum):
    """Least severity that is told."""

    error = "error"
    warning = "warning"


def command(  # noqa: PLR0913, PLR0917 - a command: each option is one
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Run folder or log; one that is not there yet is waited for.")],
    interval: Annotated[float, typer.Option(metavar="SECONDS", min=0.2, help="Seconds between looks.")] = _INTERVAL,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Exit with 1 at the first error.")] = False,  # noqa: FBT002 - a flag
    select: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Tell only these: codes, prefixes such as RLD1, names.")
    ] = None,
    ignore: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Leave these out: codes, prefixes or names.")] = None,
    notify: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="Send alerts to this address of apprise; may be repeated. Secrets: RL_DOCTOR_NOTIFY."),
    ] = None,
    notify_at: Annotated[Level, typer.Option(help="Least severity that is sent.")] = Level.error,
    wandb: Annotated[bool, typer.Option("--wandb", help="Also write the findings to a run of wandb of its own.")] = False,  # noqa: FBT002 - a flag
    output_format: Annotated[Format, typer.Option(help="What to print: json is one object for each change.")] = Format.text,
    lang: Annotated[
        Lang | None, typer.Option(help="Language of what is shown and sent (default: RL_DOCTOR_LANG, or English).")
    ] = None,
) -> None:
    """Follow a run that is being recorded, and say what goes wrong as it does.

    On a terminal a table is redrawn in place; elsewhere each change is a line. It ends when the recording ends.

    Exit code: as of check, for the run as it ended; 1 at the first error with --fail-fast; 130 when interrupted.
    """
    from rl_doctor.cli.selecting import choose_rules
    from rl_doctor.i18n.speaker import Speaker
    from rl_doctor.live.looking import Looker
    from rl_doctor.live.watching import watch
    from rl_doctor.live.words import Words

    rules, _ = choose_rules(select or (), ignore or (), ())
    codes = frozenset(rule.code for rule in rules) if select or ignore else None
    lang = lang or preferred()
    words = Words(Speaker(lang.value), command_line())
    others, end = _others(notify or (), notify_at, words, wandb=wandb)
    shown_words = words if can_print(lang) else Words(Speaker(), command_line())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # so that the terminal gets its cursor back
    looker = Looker(run, codes)
    shown = _shown(output_format, shown_words, str(run))
    try:
        code = watch(looker, (shown, *others), interval, fail_fast=fail_fast)
    finally:
        shown.close()
        looker.close()
        end()
    raise typer.Exit(code)


def _shown(form: Format, words: Words, path: str) -> Display | Lines | JsonLines:
    from rl_doctor.live.terminal import Display, JsonLines, Lines

    if form is Format.json:
        return JsonLines(_print, path)
    if is_terminal(sys.stdout) and os.environ.get("TERM") != "dumb":
        return Display(sys.stdout, words, path, colour=colour(sys.stdout))
    return Lines(_print, words, path)


def _print(line: str) -> None:
    sys.stdout.write(encodable(f"{line}\n", sys.stdout.encoding))
    sys.stdout.flush()


def _others(notify: Sequence[str], at: Level, words: Words, *, wandb: bool) -> tuple[list[Sink], Callable[[], object]]:
    """What tells others of the run, and what ends that."""
    from rl_doctor.live.notify import addresses, channels

    found: list[Sink] = []
    end: Callable[[], object] = int
    if urls := addresses(notify):
        from rl_doctor.live.channels import Alerts
        from rl_doctor.live.memory import Memory

        memory = Memory()
        found += [Alerts(channel, memory, words, at.value, complain) for channel in channels(urls)]
    if wandb:
        from rl_doctor.live.wandb_run import OwnRun, check_login

        check_login()
        own = OwnRun(words, at.value, complain)
        found.append(own)
        end = own.finish
    from rl_doctor.live.watching import Guarded

    return [Guarded(sink, type(sink).__name__.lower(), complain) for sink in found], end

"""Events in words: one line for a terminal's log, and messages for alerts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rl_doctor.i18n.speaker import Speaker
from rl_doctor.live.changes import Event
from rl_doctor.live.sight import Sight, Trouble
from rl_doctor.report.model import SEVERITY_ORDER, Severity
from rl_doctor.report.wording import printable

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "info")
_NUMBERS: Final = 4


@dataclass(frozen=True, slots=True)
class Message:
    """What an alert says.

    Attributes:
        severity: how urgent it is; info where something got better.
        title: one line.
        body: several lines.
    """

    severity: Severity
    title: str
    body: str


class Words:
    """Puts events into words of one language.

    Args:
        speaker: speaks it.
        command: how this command is called.
    """

    def __init__(self, speaker: Speaker, command: str = "rl-doctor") -> None:
        self._speaker = speaker
        self._command = command

    def say(self, name: str, **values: object) -> str:
        """A message of the watch."""
        return self._speaker.say(f"watch.{name}", **values)

    def tell(self, text: str) -> str:
        """A sentence of a report, safe to print."""
        return printable(self._speaker.tell(text))

    def severity(self, severity: Severity) -> str:
        """The word of a severity."""
        return self._speaker.say(f"app.{severity}")

    def ago(self, seconds: float) -> str:
        """A duration in one unit."""
        return self._speaker.duration(seconds)

    def more(self, sight: Sight) -> str:
        """The command that shows more."""
        return f"{self._command} check {shlex.quote(printable(sight.path))}"

    def counts(self, sight: Sight) -> str:
        """How many findings there are of each severity."""
        if not sight.findings:
            return self.say("not_judged", why=sight.why) if sight.why else self.say("clean")
        numbers: dict[Severity, int] = {severity: sight.count(severity) for severity in SEVERITIES}
        said = [self.say(f"count_{severity}_{'one' if n == 1 else 'many'}", n=n) for severity, n in numbers.items()]
        counted = self.say("counts", errors=said[0], warnings=said[1], infos=said[2])
        return f"{counted}; {sight.why}" if sight.why else counted

    def status(self, sight: Sight) -> str:
        """How the run stands."""
        if sight.quiet is not None:
            return self.say("stalled", ago=self.ago(sight.quiet))
        if sight.status in {"running", "complete", "detached"}:
            return self.say(str(sight.status))
        return self.say("ended" if sight.ended else "followed")

    def since(self, trouble: Trouble) -> str:
        """From which step on it shows."""
        return self.say("always") if trouble.first_step is None else self.say("since", step=trouble.first_step)

    def now(self, trouble: Trouble) -> str:
        """Whether it still shows."""
        if trouble.going_on:
            return self.say("going_on")
        return self.say("gone") if trouble.last_step is None else self.say("over", step=trouble.last_step)

    def advice(self, trouble: Trouble) -> str:
        """What to do first."""
        return self.tell(trouble.advice[0]) if trouble.advice else self.say("no_advice")

    def line(self, event: Event, sight: Sight) -> str:
        """An event in one line."""
        trouble = event.trouble
        if trouble is None:
            if event.kind == "stalled":
                return self.say("stalled", ago=self.ago(sight.quiet or 0.0))
            if event.kind == "resumed":
                return self.say("resumed", step=sight.step)
            return self.say("line_finished", status=self.status(sight), counts=self.counts(sight), code=sight.exit_code)
        values = {"cause": self.tell(trouble.cause), "codes": ", ".join(trouble.codes)}
        if event.kind == "recovered":
            now = self.now(trouble) if not trouble.going_on else self.say("gone")
            return self.say("line_recovered", now=now, **values)
        values |= {"severity": self.severity(trouble.severity).upper(), "since": self.since(trouble), "now": self.now(trouble)}
        return self.say(f"line_{event.kind}", advice=self.advice(trouble), **values)

    def message(self, event: Event, sight: Sight) -> Message:
        """An event as a message of its own."""
        run = _short(sight)
        if (trouble := event.trouble) is None:
            values = {"run": run, "path": printable(sight.path), "step": sight.step, "ago": self.ago(sight.quiet or 0.0)}
            name = "detached" if event.kind == "finished" else event.kind
            told = "stalled_early" if name == "stalled" and sight.step is None else name
            severity: Severity = {"stalled": "error", "detached": "warning"}.get(name, "info")  # type: ignore[assignment]
            body = f"{self.say(f'body_{told}', **values)}\n{self.say('body_more', command=self.more(sight))}"
            return Message(severity, self.say(f"title_{name}", **values), body)
        title = self.say(
            "title_worsened" if event.kind == "worsened" else "title",
            severity=self.severity(trouble.severity).upper(), run=run, cause=self.tell(trouble.cause),
        )  # fmt: skip
        return Message(trouble.severity, title, "\n".join(self._body(trouble, sight)))

    def digest(self, events: Sequence[Event], sight: Sight) -> Message:
        """Several causes as one message: each with its steps, and what to do about the first."""
        troubles = [event.trouble for event in events if event.trouble is not None]
        worst = max((trouble.severity for trouble in troubles), key=SEVERITY_ORDER.__getitem__)
        title = self.say("title_many", severity=self.severity(worst).upper(), run=_short(sight), count=len(troubles))
        listed = [
            f"{number}. {self.severity(each.severity).upper()} {self.tell(each.cause)} "
            f"({', '.join(each.codes)}; {self.since(each)})"
            for number, each in enumerate(troubles, 1)
        ]
        return Message(worst, title, "\n".join([*listed, "", *self._body(troubles[0], sight)]))

    def _body(self, trouble: Trouble, sight: Sight) -> list[str]:
        rules = ", ".join(dict.fromkeys(f"{each.code} {each.name}" for each in (*trouble.findings, *trouble.followed_by)))
        numbers = [self.tell(number) for finding in trouble.findings for number in finding.numbers][:_NUMBERS]
        explain = f"{self._command} explain {trouble.findings[0].code}" if trouble.findings else ""
        return [
            self.say("body_where", since=self.since(trouble), now=self.now(trouble), step=sight.step, path=printable(sight.path)),
            *(self.tell(finding.message) for finding in trouble.findings[:1]),
            self.say("body_rules", rules=rules),
            *([self.say("body_numbers", numbers="; ".join(numbers))] if numbers else []),
            self.say("body_advice", advice=self.advice(trouble)),
            self.say("body_more", command=" · ".join(filter(None, (self.more(sight), explain)))),
        ]


def _short(sight: Sight) -> str:
    """The run's name: the last part of its path."""
    return printable(Path(sight.path).name or sight.path)

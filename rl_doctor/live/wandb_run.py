"""Findings in a run of wandb: a scalar for each rule on a step axis of its own, a table, the verdict, and alerts."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

from rl_doctor.errors import UsageError
from rl_doctor.live.changes import changes
from rl_doctor.live.channels import Alerts, NotSentError
from rl_doctor.live.looking import Look
from rl_doctor.live.memory import Memory
from rl_doctor.live.sight import Sight
from rl_doctor.live.words import Message, Words
from rl_doctor.report.model import Severity

PREFIX: Final = "rl_doctor/"
STEP: Final = f"{PREFIX}step"
_LEVELS: Final = {"info": 0, "warning": 1, "error": 2}
_COLUMNS: Final = ("severity", "code", "rule", "first step", "last step", "going on", "cause", "message", "do first")
_TEXT: Final = 2000


def check_login() -> None:
    """Make sure that a run can be begun without asking anybody anything.

    Raises:
        UsageError: wandb is not installed, or nobody is logged in.
    """
    try:
        import wandb
    except ImportError as error:
        raise UsageError("--wandb needs wandb: pip install 'rl-doctor[wandb]'") from error
    if os.environ.get("WANDB_MODE", "online") not in {"offline", "disabled"} and not wandb.login(prompt=False):
        raise UsageError("--wandb: nobody is logged in to wandb; run `wandb login`, or set WANDB_MODE=offline")


class WandbFindings:
    """Writes what was seen of a run into a run of wandb.

    Args:
        active: the run of wandb, or None while there is none.
        own: whether that run is rl-doctor's own. In the trainer's run nothing is committed: a row of our own would count its step
            up, and wandb would then drop what the trainer logs at its own steps.
    """

    def __init__(self, active: Callable[[], Any], *, own: bool) -> None:
        self._active = active
        self._own = own
        self._run: Any = None
        self._sight: Sight | None = None
        self._levels: dict[str, int] = {}

    def take(self, look: Look, *, last: bool = False) -> None:
        """Write what is new."""
        del last
        sight, run = look.sight, self._active()
        if sight is None or run is None:
            return
        if run is not self._run:
            self._run, self._sight, self._levels = run, None, {}
            run.define_metric(STEP, hidden=True)
            run.define_metric(f"{PREFIX}*", step_metric=STEP)
        before, self._sight = self._sight, sight
        levels = dict.fromkeys(self._levels, 0) | levels_of(sight)
        values: dict[str, Any] = {f"{PREFIX}{code}": level for code, level in levels.items()}
        if before is None or any(event.trouble is not None for event in changes(before, sight)):
            values[f"{PREFIX}findings"] = self._table(sight)
        if before is None or before.step != sight.step or levels != self._levels or f"{PREFIX}findings" in values:
            run.log({STEP: sight.step or 0, **values}, commit=self._own)
        self._levels = levels
        run.summary[f"{PREFIX}verdict"] = verdict(sight)

    def _table(self, sight: Sight) -> Any:
        import wandb

        rows: list[Iterable[Any]] = [
            [each.severity, each.code, each.name, each.first_step, each.last_step, each.going_on, trouble.cause, each.message,
             trouble.advice[0] if trouble.advice else ""]
            for trouble in sight.troubles
            for each in (*trouble.findings, *trouble.followed_by)
        ]  # fmt: skip
        return wandb.Table(columns=list(_COLUMNS), data=rows)


class WandbAlerts:
    """The alerts of a run of wandb, as a channel.

    Args:
        active: the run of wandb, or None while there is none.
    """

    def __init__(self, active: Callable[[], Any]) -> None:
        self._active = active

    @property
    def name(self) -> str:
        """As of ``Channel``."""
        return "wandb"

    @property
    def ident(self) -> str:
        """As of ``Channel``: what one run of wandb was told, another one was not."""
        return f"wandb {getattr(self._active(), 'id', '')}"

    def send(self, message: Message) -> None:
        """As of ``Channel``."""
        from wandb.sdk.wandb_alerts import AlertLevel

        level = {"error": AlertLevel.ERROR, "warning": AlertLevel.WARN, "info": AlertLevel.INFO}[message.severity]
        if (run := self._active()) is None:
            raise NotSentError("there is no active run")
        run.alert(title=message.title, text=message.body[:_TEXT], level=level, wait_duration=0)


def levels_of(sight: Sight) -> dict[str, int]:
    """For each rule that found something: 2 while it finds an error, 1 while a warning, 0 for what is worth knowing or over."""
    levels: dict[str, int] = {}
    for finding in sight.findings:
        level = _LEVELS[finding.severity] if finding.going_on else 0
        levels[finding.code] = max(level, levels.get(finding.code, 0))
    return levels


def verdict(sight: Sight) -> str:
    """The verdict in a line: the worst cause, or that there is none."""
    if not sight.troubles:
        return f"not judged: {sight.why}" if sight.why else f"nothing found up to step {sight.step}"
    worst = sight.troubles[0]
    now = "" if worst.going_on else f", not since step {worst.last_step}"
    since = "" if worst.first_step is None else f", since step {worst.first_step}"
    return f"{worst.severity}: {worst.cause} ({', '.join(worst.codes)}{since}{now})"


class OwnRun:
    """A run of wandb beside that of the training, which has its own writer; begun when there is something to say.

    Project, entity and group are those of the usual variables (``WANDB_PROJECT``, ``WANDB_ENTITY``, ``WANDB_RUN_GROUP``), the
    group else the run's name. A watch that is started again goes on with the same run.

    Args:
        words: puts events into words.
        at: the least severity that is an alert.
        complain: tells the user a line.
    """

    def __init__(self, words: Words, at: Severity, complain: Callable[[str], None]) -> None:
        self._run: Any = None
        self._findings = WandbFindings(lambda: self._run, own=True)
        self._alerts = Alerts(WandbAlerts(lambda: self._run), Memory(), words, at, complain)

    def take(self, look: Look, *, last: bool = False) -> None:
        """Write what is new."""
        if look.sight is None:
            return
        if self._run is None:
            self._run = _begun(look.sight)
        self._findings.take(look, last=last)
        self._alerts.take(look, last=last)

    def finish(self) -> None:
        """End it."""
        if self._run is not None:
            self._run.finish()


def _begun(sight: Sight) -> Any:
    import wandb

    name = Path(sight.path).name
    ident = hashlib.sha256(sight.key.encode(errors="replace")).hexdigest()[:12]
    return wandb.init(
        job_type="rl-doctor", group=os.environ.get("WANDB_RUN_GROUP") or name, name=f"rl-doctor {name}", id=f"rl-doctor-{ident}",
        resume="allow", config={"run": sight.path, "about": sight.about}, settings=wandb.Settings(silent=True, console="off"),
    )  # fmt: skip

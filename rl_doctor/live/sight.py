"""What was seen of a run at one look: all that is shown of it, sent of it, and compared with the look before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from rl_doctor.report.model import SEVERITY_ORDER, Severity

ENDED: Final = frozenset({"complete", "detached"})
"""Statuses of a run to which nothing more is written."""


@dataclass(frozen=True, slots=True)
class Found:
    """A finding, in words.

    Attributes:
        code: of the rule.
        name: of the rule.
        severity: how bad it is.
        message: one sentence with the numbers.
        numbers: the evidence, one text each.
        first_step: first step that it rests on; None where it has no steps.
        last_step: last one.
        going_on: whether it still shows at the end of what was read.
    """

    code: str
    name: str
    severity: Severity
    message: str
    numbers: tuple[str, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    going_on: bool = True


@dataclass(frozen=True, slots=True)
class Trouble:
    """A cause, and what shows it.

    Attributes:
        name: of the cause; that of the rule where no known cause fits.
        cause: the cause in one sentence.
        severity: that of its worst finding.
        findings: its own findings, most urgent first.
        followed_by: what follows from it.
        fingerprints: of its own findings, each once, sorted.
        first_step: the earliest step at which it shows; None where it has no steps.
        last_step: the last step of its own findings.
        advice: what to do, most useful first.
        metric: the metric that shows it best and was measured; None where there is none.
        trend: means of that metric over equal stretches of the run, oldest first.
    """

    name: str
    cause: str
    severity: Severity
    findings: tuple[Found, ...]
    followed_by: tuple[Found, ...] = ()
    fingerprints: tuple[str, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    advice: tuple[str, ...] = ()
    metric: str | None = None
    trend: tuple[float, ...] = ()

    @property
    def going_on(self) -> bool:
        """Whether a finding of it still shows at the end of what was read."""
        return any(finding.going_on for finding in self.findings)

    @property
    def codes(self) -> tuple[str, ...]:
        """Rules that found it or what follows from it, each once."""
        return tuple(dict.fromkeys(finding.code for finding in (*self.findings, *self.followed_by)))


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen of a run at one look.

    Attributes:
        path: the run as it was given.
        key: identity of the run: another run recorded at the same path has another one.
        about: trainer, version and algorithm.
        status: as the recording says: running, complete, detached; None where nothing says.
        ended: whether nothing more will be written.
        step: last step that was judged; None where there is none.
        read: last step that was read: judging takes longer than reading, and is put off where it takes much.
        tokens: tokens read so far.
        written: Unix time at which the run was last written to.
        quiet: seconds since then where that is longer than the run's own pace allows; else None.
        troubles: causes in reading order.
        exit_code: that of ``check``.
        why: why it could not be judged, or which rules crashed; "" where all went well.
    """

    path: str
    key: str
    about: str = ""
    status: str | None = None
    ended: bool = False
    step: int | None = None
    read: int | None = None
    tokens: int = 0
    written: float = 0.0
    quiet: float | None = None
    troubles: tuple[Trouble, ...] = ()
    exit_code: int = 0
    why: str = ""

    @property
    def findings(self) -> tuple[Found, ...]:
        """All findings, by cause."""
        return tuple(finding for each in self.troubles for finding in (*each.findings, *each.followed_by))

    def count(self, severity: Severity) -> int:
        """Number of findings of a severity."""
        return sum(finding.severity == severity for finding in self.findings)

    @property
    def worst(self) -> Severity | None:
        """The worst severity among the findings; None where there are none."""
        return max((finding.severity for finding in self.findings), key=SEVERITY_ORDER.__getitem__, default=None)

    def to_json(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Sight:
        """What ``to_json`` made.

        Raises:
            KeyError: a member is missing.
            TypeError: it has another form.
        """
        return cls(**{**document, "troubles": tuple(map(_trouble, document["troubles"]))})


def _trouble(document: Mapping[str, Any]) -> Trouble:
    members = {name: tuple(map(_found, document[name])) for name in ("findings", "followed_by")}
    texts = {name: tuple(document[name]) for name in ("fingerprints", "advice", "trend")}
    return Trouble(**{**document, **members, **texts})


def _found(document: Mapping[str, Any]) -> Found:
    return Found(**{**document, "numbers": tuple(document["numbers"])})

"""Findings become causes: those that fit are told apart by their signs, and what follows from a cause is folded under it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from rl_doctor.causes.reach import too_many
from rl_doctor.causes.registry import EVERYTHING, Cause, Look, Role, causes
from rl_doctor.causes.scene import Scene
from rl_doctor.frozen import frozen
from rl_doctor.report.diagnosis import by_own_words, by_urgency, in_reading_order, once
from rl_doctor.report.model import SEVERITY_ORDER, Diagnosis, Finding, Result, Sign
from rl_doctor.rules.view import View

_SLACK: Final = 0.05
"""How much earlier than its cause a finding may seem to begin, as a share of the run: windows of steps are coarse."""
_LEAST_SLACK: Final = 4


@frozen(eq=False)
class _Candidate:
    """A cause held against the run.

    Attributes:
        cause: the cause.
        own: findings that it explains.
        looks: what its signs came to, with their roles.
    """

    cause: Cause
    own: tuple[Finding, ...]
    looks: tuple[tuple[Role, Look], ...]

    def with_state(self, *roles: Role, there: bool | None) -> list[Look]:
        return [look for role, look in self.looks if role in roles and look.there is there]

    @property
    def excluded(self) -> Look | None:
        """What speaks against it: a sign that it needs and that is not there, or one that it cannot have."""
        against = (*self.with_state("needed", there=False), *self.with_state("against", there=True))
        return next(iter(against), None)

    @property
    def fits(self) -> bool:
        return self.excluded is None and self.alike

    @property
    def alike(self) -> bool:
        """Whether something that it needs is there, so that it could be taken for what it is not."""
        return bool(self.with_state("needed", there=True))

    @property
    def pointed(self) -> bool:
        """Whether a rule has recognised it."""
        return any(finding.suspect == self.cause.name for finding in self.own)

    @property
    def onset(self) -> float:
        known = [finding.first_step for finding in self.own if finding.first_step is not None]
        return min(known, default=-math.inf)

    @property
    def weight(self) -> tuple[bool, int, int, int]:
        """How well it fits: recognised; signs that it needs, seen and not looked at; the others."""
        return (
            self.pointed,
            len(self.with_state("needed", there=True)),
            -len(self.with_state("needed", there=None)),
            len(self.with_state("typical", there=True)) - len(self.with_state("typical", there=False)),
        )

    def urgency(self) -> tuple[int, bool, tuple[float, ...], float]:
        worst = max(SEVERITY_ORDER[finding.severity] for finding in self.own)
        return -worst, self.cause.leads_to != EVERYTHING, tuple(-float(part) for part in self.weight), self.onset


def wanted(results: Iterable[Result]) -> frozenset[str]:
    """Metrics that the signs of the causes of what was found read; rules may not have needed them."""
    named = {result.name for result in results if result.findings}
    if not named:  # the modules of the causes need not be loaded
        return frozenset()
    return frozenset(name for cause in causes().values() if named & set(cause.explains) for name in cause.needs)


def diagnose(view: View, results: Sequence[Result]) -> tuple[Diagnosis, ...]:
    """The findings by cause, the most urgent first. Each finding is told once.

    Args:
        view: the run, with the series that ``wanted`` names as far as it has them.
        results: of the rules.
    """
    by_name = {result.name: result for result in results}
    open_findings = by_urgency(finding for result in results for finding in result.findings)
    if not open_findings:
        return ()
    candidates = [_held(cause, view, by_name) for cause in causes().values()]
    candidates = [candidate for candidate in candidates if candidate.own]
    fit = {candidate.cause.name for candidate in candidates if candidate.fits}
    alone = {candidate.cause.name for candidate in candidates if candidate.fits and candidate.cause.alone}
    slack = _slack(open_findings)
    told: list[Diagnosis] = []
    fitting = [left for one in candidates if one.fits and (left := _without_others(one, fit)).own]
    fitting.sort(key=_Candidate.urgency)
    while open_findings:
        fitting = [one for one in fitting if any(finding in open_findings for finding in one.own)]
        if not fitting:
            told += by_own_words(open_findings)
            break
        best = _origin(fitting[0], fitting, slack)
        fitting.remove(best)
        entry = _entry(best, candidates, open_findings, slack, alone)
        told.append(entry)
        taken = {id(finding) for finding in (*entry.findings, *entry.followed_by)}
        open_findings = [finding for finding in open_findings if id(finding) not in taken]
    return in_reading_order(told)


def _held(cause: Cause, view: View, results: Mapping[str, Result]) -> _Candidate:
    own = tuple(finding for name in cause.explains if name in results for finding in results[name].findings)
    if not own:
        return _Candidate(cause, (), ())
    first = min((step for finding in own if (step := finding.first_step) is not None), default=None)
    last = max((step for finding in own if (step := finding.last_step) is not None), default=None)
    scene = Scene(view, results, first, last)
    looks = tuple((sign.role, sign.look(replace(scene, view=view.narrowed(sign.needs)))) for sign in cause.signs)
    return _Candidate(cause, tuple(by_urgency(own)), looks)


def _without_others(candidate: _Candidate, fit: Collection[str]) -> _Candidate:
    """The candidate without the findings in which a rule has recognised another cause that fits."""
    taken = {name for name in fit if name != candidate.cause.name}
    return replace(candidate, own=tuple(finding for finding in candidate.own if finding.suspect not in taken))


def _origin(best: _Candidate, fitting: Sequence[_Candidate], slack: float) -> _Candidate:
    """The cause that everything which ``best`` explains follows from, if that fits too; else ``best`` itself."""
    seen = {best.cause.name}
    while True:
        upstream = next((one for one in fitting if one.cause.name not in seen and _precedes(one, best, slack)), None)
        if upstream is None:
            return best
        seen.add(upstream.cause.name)
        best = upstream


def _precedes(one: _Candidate, other: _Candidate, slack: float) -> bool:
    """Whether all that ``other`` explains follows from ``one``, and not the other way round: what began well before does not."""
    mine, theirs = ({finding.name for finding in candidate.own} for candidate in (one, other))
    leads = one.cause.leads_to == EVERYTHING or theirs <= set(one.cause.leads_to)
    leads = leads and not any(too_many((finding,), one.own) for finding in other.own)
    back = mine <= set(other.cause.leads_to) and not any(too_many((finding,), other.own) for finding in one.own)
    back = back and one.onset >= other.onset - slack
    serious = one.pointed or any(finding.severity != "info" for finding in one.own)
    return leads and not back and not mine & theirs and serious and one.onset <= other.onset + slack


def _slack(findings: Iterable[Finding]) -> float:
    steps = [step for finding in findings for step in (finding.first_step, finding.last_step) if step is not None]
    return max(_LEAST_SLACK, _SLACK * (max(steps) - min(steps))) if steps else _LEAST_SLACK


def _entry(
    best: _Candidate, candidates: Sequence[_Candidate], left: Sequence[Finding], slack: float, alone: AbstractSet[str]
) -> Diagnosis:
    open_ids = {id(finding) for finding in left}
    own = tuple(finding for finding in best.own if id(finding) in open_ids)
    after = best.onset - slack
    follows = tuple(
        finding
        for finding in left
        if finding not in own
        and finding.suspect not in alone - {best.cause.name}
        and (best.cause.leads_to == EVERYTHING or finding.name in best.cause.leads_to)
        and not too_many((finding,), best.own)
        and (finding.first_step is None or finding.first_step >= after)
    )
    follows = tuple(sorted(follows, key=lambda finding: -math.inf if finding.first_step is None else finding.first_step))
    worst = max((finding.severity for finding in (*own, *follows)), key=SEVERITY_ORDER.__getitem__)
    ruled_out, also_fits = _rivals(best, candidates)
    named = [finding.cause for finding in own if finding.suspect == best.cause.name and finding.own_cause]
    return Diagnosis(
        best.cause.name,
        named[0] if named else best.cause.sentence,
        worst,
        own,
        follows,
        tuple(Sign(look.text, look.step) for look in best.with_state("needed", "typical", there=True)),
        tuple(Sign(look.text) for look in best.with_state("typical", there=False)),
        tuple(dict.fromkeys(_unchecked(look) for look in best.with_state("needed", "typical", "against", there=None))),
        once((*ruled_out, *(item for finding in own for item in finding.ruled_out))),
        also_fits,
        best.cause.advice,
    )


def _unchecked(look: Look) -> Sign:
    asked = f"whether {look.text}"
    return Sign(f"{asked}: needs {', '.join(look.missing)}" if look.missing else asked)


def _rivals(best: _Candidate, candidates: Iterable[_Candidate]) -> tuple[list[str], tuple[str, ...]]:
    """Other causes of the same findings: those that something speaks against, and those that fit as well."""
    ruled_out, also = [], []
    mine = {finding.code for finding in best.own}
    for one in sorted(candidates, key=lambda one: -len(one.with_state("needed", there=True))):  # the most alike first
        if one.cause is best.cause or not mine & {finding.code for finding in one.own}:
            continue
        if one.excluded is not None and one.alike:
            ruled_out.append(f"{one.cause.label}: {one.excluded.text}")
        elif one.fits and one.weight[:2] == best.weight[:2]:
            apart = dict.fromkeys(name for role, look in (*best.looks, *one.looks) if look.there is None for name in look.missing)
            would = f" (to tell them apart: {', '.join(apart)})" if apart else ""
            also.append(f"{one.cause.label}{would}")
    return ruled_out, tuple(also)

"""Where rules register. A module in ``rules`` that declares rules is found by being there; nothing is listed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, Literal

from rl_doctor.discovery import import_modules
from rl_doctor.frozen import frozen
from rl_doctor.report.model import Hit, Severity
from rl_doctor.rules.view import View

Status = Literal["preview", "stable"]
Limits = Mapping[str, float]


@frozen
class Skip:
    """Yielded by a rule that cannot judge although its metrics exist.

    Attributes:
        reason: "length" (too few steps or tokens), "data" (nothing measurable), "config" (does not apply or is unknown).
        why: one sentence.
        missing: columns or ``config.`` fields that would enable it.
    """

    reason: Literal["length", "data", "config", "column"]
    why: str
    missing: tuple[str, ...] = ()


@frozen
class Told:
    """Yielded by a rule to say what its verdict covers, whatever that is. ``words`` is the detail of the result."""

    words: str


Check = Callable[[View, Limits], Iterable[Hit | Skip | Told]]


_STORAGE: Final = frozenset({"RLD002", "RLD003", "RLD004", "RLD005"})
"""Rules about how the rows were stored. They can pass on rows that hold nothing."""
_CONFIGURATION: Final = "RLD7"
"""Codes of rules about the configuration. They can pass where nothing was measured; what they measure only confirms."""


@frozen(eq=False)
class Rule:
    """One lint.

    Attributes:
        code: ``RLD`` and three digits, never reused.
        name: kebab-case, reads after "allow ...".
        severity: the worst that it reports once it is stable.
        status: preview (a warning at most) or stable.
        since: version that introduced it.
        needs: metrics without which it is skipped.
        optional: metrics that sharpen it.
        limits: named thresholds, each explained in the rule's doc.
        cause: the likely cause, in general.
        advice: what to do next, most useful first.
        avoids: false alarms that it is built not to raise.
        source: where the failure is known from.
        check: (view, limits) -> hits; pure.
        doc: what it means, why it matters, what it computes.
    """

    code: str
    name: str
    severity: Severity
    status: Status
    since: str
    needs: tuple[str, ...]
    optional: tuple[str, ...]
    limits: Limits
    cause: str
    advice: tuple[str, ...]
    avoids: tuple[str, ...]
    source: str
    check: Check
    doc: str

    @property
    def measures(self) -> bool:
        """Whether it judges what was trained on. Rules about storage or configuration do not; those that reconcile (8xx) do."""
        if self.code in _STORAGE or self.code.startswith(_CONFIGURATION):
            return False
        return bool(self.needs or self.optional) or self.code.startswith("RLD8")


_RULES: Final[dict[str, Rule]] = {}


def rule(  # noqa: PLR0913 - a declaration, not a call: every field of a rule has a name here
    code: str,
    name: str,
    *,
    severity: Severity,
    cause: str,
    advice: tuple[str, ...],
    source: str,
    needs: tuple[str, ...] = (),
    optional: tuple[str, ...] = (),
    limits: Limits | None = None,
    avoids: tuple[str, ...] = (),
    status: Status = "stable",
    since: str = "0.1.0",
) -> Callable[[Check], Rule]:
    """Decorate a check as a rule and register it; its docstring is the rule's page."""

    def register(check: Check) -> Rule:
        if code in _RULES or any(known.name == name for known in _RULES.values()):
            raise ValueError(f"rule {code} or {name} is registered twice")
        made = Rule(
            code, name, severity, status, since, needs, optional, MappingProxyType(dict(limits or {})),
            cause, advice, avoids, source, check, (check.__doc__ or "").strip(),
        )  # fmt: skip
        _RULES[code] = made
        return made

    return register


def rules() -> Mapping[str, Rule]:
    """Every rule by code, in the order of codes."""
    import_modules("rl_doctor.rules")
    return MappingProxyType(dict(sorted(_RULES.items())))

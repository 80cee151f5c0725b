"""Where causes register. A module in ``causes`` that declares some is found by being there; nothing is listed by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Literal

from rl_doctor.discovery import import_modules
from rl_doctor.frozen import frozen

if TYPE_CHECKING:
    from rl_doctor.causes.scene import Scene

Role = Literal["needed", "typical", "against"]
EVERYTHING: Final = ("*",)
"""For ``leads_to``: whatever is found from the onset on follows."""


def unseen(words: str) -> str:
    """What a look tells where its words, a clause, do not hold and nothing was measured that could be told instead."""
    return f"nothing shows that {words}"


def elsewhere(codes: str, suspects: Iterable[str] = ()) -> str:
    """What a look tells where rules found what it is about, and took it for something else: nothing that was found is denied.

    Args:
        codes: of the rules.
        suspects: names of the causes that they recognised, as far as they did.
    """
    label = next((_CAUSES[name].label for name in suspects if name in _CAUSES), None)
    return f"what {codes} found is another case ({label})" if label else f"what {codes} found does not have its marks"


@frozen
class Look:
    """What a sign came to.

    Attributes:
        there: whether it is there; None where that could not be looked at.
        text: what was seen, with its numbers, worded so that it is true either way ("the slope is 1.43").
        step: the first step at which it shows, or None.
        missing: columns or ``config.`` fields that would have told, where ``there`` is None.
    """

    there: bool | None
    text: str
    step: int | None = None
    missing: tuple[str, ...] = ()


@frozen(eq=False)
class Sign:
    """Something that speaks for a cause, or against it.

    Attributes:
        words: what it is, without numbers; printed where it could not be looked at, and on the cause's page.
        role: "needed": without it, it is another cause. "typical": speaks for the cause, not all of its cases have it.
            "against": with it, it is another cause.
        needs: metrics that it reads (a name that ends in a dot for all that start with it).
        look: looks for it.
    """

    words: str
    role: Role
    needs: tuple[str, ...]
    look: Callable[[Scene], Look]


@frozen(eq=False)
class Cause:
    """Something that goes wrong in a training.

    Attributes:
        name: kebab-case, never reused.
        label: a few words that name it inside a sentence: "the trainer leaves out the temperature".
        explains: names of the rules that find it.
        leads_to: names of rules whose findings follow from it, from its onset on.
        signs: what it is told by; at least one is needed.
        advice: what to do next, most useful first.
        source: where it is known from.
        doc: what happens, and how it is told from its look-alikes.
        since: version that introduced it.
        alone: whether nothing else brings it about: a finding in which a rule has recognised it never follows from another.
    """

    name: str
    label: str
    explains: tuple[str, ...]
    leads_to: tuple[str, ...]
    signs: tuple[Sign, ...]
    advice: tuple[str, ...]
    source: str
    doc: str
    since: str
    alone: bool = False

    @property
    def sentence(self) -> str:
        """The label as a sentence; a name of code at its beginning stays as it is."""
        word = self.label.partition(" ")[0]
        start = self.label[:1] if "_" in word else self.label[:1].upper()
        return f"{start}{self.label[1:]}."

    @property
    def needs(self) -> tuple[str, ...]:
        """Metrics that its signs read."""
        return tuple(dict.fromkeys(name for sign in self.signs for name in sign.needs))


_CAUSES: Final[dict[str, Cause]] = {}


def cause(  # noqa: PLR0913 - a declaration: every field of a cause has a name here
    name: str,
    label: str,
    *,
    explains: tuple[str, ...],
    signs: tuple[Sign, ...],
    advice: tuple[str, ...],
    source: str,
    doc: str,
    leads_to: tuple[str, ...] = (),
    since: str = "0.2.0",
    alone: bool = False,
) -> Cause:
    """Register a cause and return it.

    Raises:
        ValueError: the name is taken, or no sign is needed.
    """
    if name in _CAUSES:
        raise ValueError(f"cause {name} is registered twice")
    if not any(sign.role == "needed" for sign in signs):
        raise ValueError(f"cause {name} has no sign that it needs")
    made = Cause(name, label, explains, leads_to, signs, advice, source, doc, since, alone)
    _CAUSES[name] = made
    return made


def causes() -> Mapping[str, Cause]:
    """Every cause by name, in the order of their modules and declarations."""
    import_modules("rl_doctor.causes")
    return MappingProxyType(_CAUSES)

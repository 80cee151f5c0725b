"""The section that shows a few responses behind the findings, token by token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from rl_doctor.charts.token_map import palette
from rl_doctor.errors import DoctorError
from rl_doctor.html.parts import Line, Section, Text, Token, TokenMap
from rl_doctor.i18n.speaker import Speaker
from rl_doctor.views.opened import Opened
from rl_doctor.views.quantities import QUANTITIES, Quantity
from rl_doctor.views.rollouts import Member, rollouts
from rl_doctor.views.tokens import LEVELS, MASKED, UNKNOWN, Page, Tokens, tokens
from rl_doctor.views.verdict import verdict

MOST_SAMPLES: Final = 12
SAMPLES_EACH: Final = 2
"""Samples of one rule: two findings of a rule mostly show the same."""
MOST_TOKENS: Final = 512
MOST_LETTERS: Final = 2_000
ROW: Final = 16
_HIDDEN: Final = "·"
_OTHERS: Final = {MASKED: "m", UNKNOWN: "u"}
_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "clipped": ("in_range", "cut_low", "cut_high", "cut_dual"), "masked": ("not_trained", "trained", "normalised", "beyond_end"),
}  # fmt: skip

Place = tuple[int, int]


def chosen(opened: Opened) -> dict[Place, tuple[str, str]]:
    """The samples that are shown: step and number of each -> its name in the file, and the code of the rule that it shows.

    They are those that the findings name; of a finding that names none the response that the app shows first for it.
    """
    found: dict[Place, tuple[str, str]] = {}
    each: dict[str, int] = {}
    for cause in verdict(opened).causes:
        for finding in cause.findings:
            code = finding.code
            named = [(example.step, example.sequence) for example in finding.examples]
            if not named and code not in each and finding.severity != "info":
                named = _first(opened, code)
            for place in named:
                if place not in found and each.get(code, 0) < SAMPLES_EACH and len(found) < MOST_SAMPLES:
                    each[code] = each.get(code, 0) + 1
                    found[place] = f"sample-{len(found) + 1}", code
    return found


def _first(opened: Opened, code: str) -> list[Place]:
    try:
        shown = tokens(opened, code=code)
    except DoctorError:
        return []
    return [] if shown is None or shown.page is None else [(shown.step, shown.sequence)]


def evidence(opened: Opened, speaker: Speaker, samples: Mapping[Place, tuple[str, str]], *, hidden: bool) -> Section | None:
    """The chosen samples; None without any.

    Args:
        opened: the run.
        speaker: speaks the reader's language.
        samples: what ``chosen`` gave.
        hidden: whether token ids, texts and names are left out.
    """
    if not samples:
        return None
    blocks = tuple(_sample(opened, speaker, *place, name, code, hidden=hidden) for place, (name, code) in samples.items())
    return Section("evidence", speaker.say("report.evidence"), (Text(speaker.say("report.about_evidence"), small=True), *blocks))


def styles() -> Iterator[tuple[str, str, str]]:
    """Class, background and text colour ("" for that of the page) of each level of each quantity's colours."""
    for quantity in QUANTITIES.values():
        for level, (back, front) in enumerate(palette(quantity.scale, quantity.name)):
            yield f"{_family(quantity)}{level}", back, front


def _family(quantity: Quantity) -> str:
    """Quantities with one palette share their classes."""
    return quantity.name[0] if quantity.scale == "flags" else {"diverging": "d", "sequential": "s"}[quantity.scale]


def _sample(opened: Opened, speaker: Speaker, step: int, sequence: int, name: str, code: str, *, hidden: bool) -> TokenMap | Text:
    try:
        found = tokens(opened, step=step, sequence=sequence, code=code)
        group = None if hidden else rollouts(opened, step=step, sequence=sequence, code=code)
    except DoctorError as error:
        return Text(str(error), small=True)
    if found is None:
        return Text(speaker.say("tokens.no_rows"))
    say = speaker.say
    title = f"{code} · {say('diagnosis.step', step=found.step)} · {say('tokens.response')} {found.sequence}"
    texts = (
        []
        if group is None or found.sequence != sequence
        else _texts(speaker, group.group.prompt.text, _own(group.group.members, sequence))
    )
    shown = _about(found, speaker, hidden=hidden)
    quantity, page = found.quantity, found.page
    if quantity is None or page is None:
        why = say("tokens.left_out", step=found.step) if found.left_out else say("tokens.no_tokens")
        return TokenMap(name, title, (*shown, Line("note", "", why)), tuple(texts), "", (), (), "")
    first, last = _window(found, page)
    rows = tuple(
        (page.first + at, tuple(_token(page, quantity, one, hidden=hidden) for one in range(at, min(at + ROW, last))))
        for at in range(first, last, ROW)
    )
    cut = say("report.some_tokens", first=page.first + first, last=page.first + last - 1, n=page.total)
    return TokenMap(
        name, title, shown, tuple(texts), f"{say(f'tokens.{quantity.name}')}: {say(f'tokens.about_{quantity.name}')}",
        tuple(_legend(found, quantity, speaker)), rows, cut if last - first < page.total else "",
    )  # fmt: skip


def _about(found: Tokens, speaker: Speaker, *, hidden: bool) -> tuple[Line, ...]:
    told = {
        name: "-" if value is None else f"{value:.4g}"
        for name, value in (("reward", found.reward), ("advantage", found.advantage))
    }
    line = speaker.say(
        "tokens.about", uid=str(found.sequence) if hidden else found.uid or str(found.sequence),
        group="-" if hidden else found.group or "-", trained=found.trained, finish=found.finish or "-",
        length="-" if found.length is None else found.length, **told,
    )  # fmt: skip
    lines = [Line("note", "", line)]
    if found.finding is not None:
        one = found.finding
        lines.insert(0, Line(one.severity, speaker.say(f"app.{one.severity}"), f"{one.code} {speaker.tell(one.message)}"))
    return tuple(lines)


def _own(members: tuple[Member, ...], sequence: int) -> str:
    return next((one.text.text for one in members if one.sequence == sequence and one.text.kind == "text"), "")


def _texts(speaker: Speaker, prompt: str, response: str) -> list[tuple[str, str]]:
    every = (speaker.say("rollouts.prompt"), prompt), (speaker.say("tokens.response"), response)
    return [(title, text if len(text) <= MOST_LETTERS else f"{text[:MOST_LETTERS]} …") for title, text in every if text]


def _window(found: Tokens, page: Page) -> tuple[int, int]:
    """Which of the page's tokens are shown: the first, unless the token that stands out most is not among them."""
    top = next(iter(found.top_positions), 0) - page.first
    length = len(page.texts)
    if not MOST_TOKENS <= top < length:
        return 0, min(MOST_TOKENS, length)
    first = min(top - MOST_TOKENS // 2, length - MOST_TOKENS) // ROW * ROW
    return first, first + MOST_TOKENS


def _token(page: Page, quantity: Quantity, at: int, *, hidden: bool) -> Token:
    level = int(page.levels[at])
    told = [f"{name} {values[at]}" for name, values in page.fields.items() if not (hidden and name == "token_id")]
    look = _OTHERS.get(level) or f"{_family(quantity)}{level}"
    if page.masked[at] and level != MASKED:
        look += " m"
    return Token(_HIDDEN if hidden else page.texts[at], look, " · ".join([str(page.first + at), *told]))


def _legend(found: Tokens, quantity: Quantity, speaker: Speaker) -> Iterator[tuple[str, str]]:
    """What the colours mean."""
    say, family = speaker.say, _family(quantity)
    if found.bounds is not None:
        unit = "" if quantity.unit == "1" else f" {quantity.unit}"
        yield f"{family}0", f"{found.bounds.low:.3g}{unit}"
        yield f"{family}{LEVELS}", f"{found.bounds.high:.3g}{unit}"
    for level, word in enumerate(_NAMES.get(quantity.name, ())):
        yield f"{family}{level}", say(f"tokens.{word}")
    if quantity.name != "masked":
        yield "m", say("tokens.not_trained")
    yield "u", say("tokens.unknown")

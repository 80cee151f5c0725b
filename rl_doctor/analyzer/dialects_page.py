"""The pages that say what every trainer calls its numbers, what each of them is, and whether it can be recomputed."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Final

from rl_doctor.analyzer.dialects.generic import NAMES
from rl_doctor.analyzer.dialects.recipes import Argument, Definition, Of, Recipe
from rl_doctor.analyzer.dialects.registry import Name, Trainer, dotted, trainers
from rl_doctor.analyzer.notation import NOTATION

_STATUS: Final = ("exact", "derived", "not recomputable", "not looked up")
_INTRO: Final = (
    "What each trainer calls its numbers, and how it arrives at them. Names are compared without `train/` before them, in any "
    "case, and with `/`, `.`, `_` and blanks alike. Where two names of a trainer mean the same metric the upper one is read. A "
    "trainer is recognised by the names that only it uses, its version by those that came or went, where the run's description "
    "does not tell; names that stand in no table of its own are looked up among those made at home."
)
_PROOFS: Final = (
    "A number is *exact* where tests hold what is recomputed against the trainer's own code, or against numbers that came out of "
    "it; *derived* where against a written reference; else its table says why it cannot be recomputed. Reconciliation treats the "
    "two alike."
)
_NOTATION: Final = (
    "In all formulas, of metrics and of what trainers log, stand the letters and words below. Words with underscores that are "
    "none "
    "of them are settings and losses under the trainer's own names. Words *in italics* are told at the top of the trainer's "
    "page. "
    "Stages are written from the inside out, with semicolons between them."
)
_STATISTIC: Final = re.compile(r"\b(?:mean|avg|min|max|smallest|largest|median|std \(ddof [01]\)|std)\b(?: \(ddof [01]\))?")
_IN_NAME: Final = re.compile(r"(?<![a-z])(?:mean|avg|min|max|std)(?![a-z])")
_WIDTH: Final = 120
_NATIVE: Final = "native."
_SHORT: Final = 80
"""Settings in fewer letters stand in the table itself."""


def index() -> Iterator[str]:
    """The page that lists the trainers, the notation, and the names made at home, as Markdown."""
    yield from ("# Dialects", "", _INTRO, "", _PROOFS, "")
    yield f"| trainer | names | {' | '.join(_STATUS)} |"
    yield f"| --- | {' | '.join('---:' for _ in ('', *_STATUS))} |"
    for name, known in sorted(trainers().items(), key=lambda item: item[1].label.lower()):
        counts = Counter(status(item) for item in known.names)
        cells = " | ".join(str(counts[one] or "") for one in _STATUS)
        yield f"| [{known.label}](dialects/{name}.md) | {len(known.names)} | {cells} |"
    yield from ("", "## Notation", "", _NOTATION, "", *notation())
    yield from ("", "## Made at home", "", "Names with one meaning wherever they stand.", "", *_short_table(NAMES))


def notation() -> Iterator[str]:
    """The letters and words of the formulas, as a list in Markdown."""
    for letters, meaning in NOTATION.items():
        yield f"- `{letters}`: {meaning}"


def page(known: Trainer) -> Iterator[str]:
    """The page of one trainer as Markdown: what many formulas share, then a table with one block for each name."""
    yield from (f"# {known.label}", "", f"Read in {known.source}.", "")
    yield "[All trainers](../dialects.md); [what the letters stand for](../dialects.md#notation)."
    if known.stages:
        yield from ("", "What the formulas call by name:", "")
        for name, text in known.stages.items():
            yield from textwrap.wrap(f"- *{name}*: {text}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    asked = _asked(known)
    if asked:
        yield from ("", "Settings with which a number is recomputed:", "")
        for settings, name in asked.items():
            yield from textwrap.wrap(f"- *{name}*: {settings}", _WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    yield from ("", "| name | metric | formula | when | recomputed | what to know |", "| --- | --- | --- | --- | --- | --- |")
    for rows in _merged(known.names, asked):
        yield from rows
    yield from _held_out(known)


def _asked(known: Trainer) -> dict[str, str]:
    """Settings that several numbers ask for, or that are many -> the name they have on the page."""
    counts = Counter(filter(None, (_settings(item.definition) for item in known.names if item.definition is not None)))
    long = [text for text, number in counts.items() if len(text) > _SHORT and (number > 1 or len(text) > 3 * _SHORT)]
    return {text: f"settings {index}" for index, text in enumerate(long, 1)}


def _merged(names: Iterable[Name], asked: Mapping[str, str]) -> Iterator[Iterator[str]]:
    """The blocks of rows: one for each name, or for neighbours that are statistics of the same."""
    by_native: dict[str, list[Name]] = {}
    for item in names:
        by_native.setdefault(item.native, []).append(item)
    blocks = [(_kin(items), items) for items in by_native.values()]
    for _, alike in groupby(blocks, key=lambda block: block[0]):
        yield _block([items for _, items in alike], asked)


def _kin(items: Sequence[Name]) -> Hashable:
    """What names have in common that differ in the statistic alone."""
    told = tuple((_STATISTIC.sub("*", _formula(item), count=1), when(item), _recomputed(item, {})) for item in items)
    return _IN_NAME.sub("*", items[0].native), told


def _block(alike: Sequence[Sequence[Name]], asked: Mapping[str, str]) -> Iterator[str]:
    """A row for each version or algorithm; each further row says only what differs."""
    first = [items[0] for items in alike]
    names, dated = "<br>".join(f"`{item.native}`" for item in first), any(item.since or item.until for item in alike[0])
    last: dict[str, str] = {}
    for versions in zip(*alike, strict=True):
        one = versions[0]
        unknown = "if the version is not known" if dated and not (one.since or one.until or one.holds) else ""
        cells = {
            "name": names, "metric": _metrics_of(versions), "formula": _formulas_of(versions),
            "when": "; ".join(filter(None, (when(one), unknown))), "recomputed": _recomputed(one, asked),
            "note": "; ".join(dict.fromkeys(item.note for item in versions if item.note)),
        }  # fmt: skip
        shown = ["" if key not in ("when", "recomputed") and cell == last.get(key) else cell for key, cell in cells.items()]
        if unknown and any(cells["formula"] and known.startswith(cells["formula"]) for known in map(_formula, alike[0])):
            shown[2] = ""
        last = cells
        yield f"| {' | '.join(map(_escaped, shown))} |"


def _metrics_of(versions: Sequence[Name]) -> str:
    found = [_metric(item) for item in versions]
    return "none" if set(found) == {"none"} else "<br>".join(found)


def _formulas_of(versions: Sequence[Name]) -> str:
    """The formula, with all statistics in place of the one."""
    found = [_STATISTIC.search(_formula(item)) for item in versions]
    words = list(dict.fromkeys(match[0] for match in found if match))
    return _STATISTIC.sub(", ".join(words), _formula(versions[0]), count=1) if len(versions) > 1 else _formula(versions[0])


def _formula(item: Name) -> str:
    return "" if item.definition is None else item.definition.formula


def native_settings(known: Trainer) -> list[str]:
    """Members of ``config.native``, dotted, that the recomputation of a trainer's numbers reads."""
    found = set(known.reads) | {name for names in known.caps.values() for name in names}
    waiting: list[object] = [item.definition.recipes for item in known.names if item.definition is not None]
    while waiting:
        match waiting.pop():
            case str() as text:
                found |= {name.removeprefix(_NATIVE).rstrip("?") for name in text.split("|") if name.startswith(_NATIVE)}
            case Recipe(value=value, where=where, beside=beside, when=when):
                waiting += [value, where, *beside, *when]
            case Of(arguments=arguments):
                waiting += [argument for _, argument in arguments]
            case tuple() as several:
                waiting += several
    return sorted(found)


def logged_as() -> Mapping[str, Mapping[str, Sequence[str]]]:
    """What each trainer calls a metric: canonical name -> label of the trainer -> its names, in Markdown."""
    found: dict[str, dict[str, list[str]]] = {}
    for known in trainers().values():
        for item in known.names:
            if item.metric is not None:
                told = f" ({when(item)})" if when(item) else ""
                names = found.setdefault(item.metric, {}).setdefault(known.label, [])
                if (line := f"`{item.native}`{told}") not in names:
                    names.append(line)
    return {metric: dict(sorted(by.items(), key=lambda item: item[0].lower())) for metric, by in found.items()}


def status(item: Name) -> str:
    """Whether a number can be recomputed, in a word or two."""
    if item.definition is None:
        return _STATUS[3]
    return item.definition.proof or _STATUS[2]


def _short_table(names: Iterable[Name]) -> Iterator[str]:
    yield "| name | metric | when | what to know |"
    yield "| --- | --- | --- | --- |"
    for item in names:
        yield f"| `{item.native}` | {_metric(item)} | {when(item)} | {_escaped(item.note)} |"


def _metric(item: Name) -> str:
    if item.metric is None:
        return "none"
    if item.offset:
        times = "" if abs(item.factor) == 1.0 else f"{abs(item.factor):g} times "
        return f"`{item.metric}` = {item.offset:g} {'-' if item.factor < 0 else '+'} {times}the value"
    told = {1.0: "", -1.0: ", with the other sign"}.get(item.factor, f", {item.factor:g} times the value")
    return f"`{item.metric}`{told}"


def when(item: Name) -> str:
    """Under which versions, algorithms and other circumstances a name has its meaning; "" for all."""
    told = [", ".join(sorted(one or "algorithm not known" for one in item.algorithms))] if item.algorithms else []
    if item.since is not None:
        told.append(f"from {dotted(item.since)} on")
    if item.until is not None:
        told.append(f"before {dotted(item.until)}")
    if item.holds is not None:
        told.append("where the numbers bear it out")
    return "; ".join(told)


def _recomputed(item: Name, asked: Mapping[str, str]) -> str:
    found = item.definition
    if found is None or found.proof is None:
        return status(item) if found is None else f"no: {found.reason}"
    settings = _settings(found)
    if settings in asked:
        return f"{found.proof}, with *{asked[settings]}*"
    return f"{found.proof}, where {settings}" if settings else found.proof


def _settings(definition: Definition) -> str:
    """The settings that all recipes of a number ask for, with the values of any of them; a switch either way asks nothing."""
    asked: dict[str, list[Argument]] = {}
    for recipe in definition.recipes:
        for name, values in recipe.when.items():
            told = asked.setdefault(name.removesuffix("?"), [])
            told += [value for value in values if value not in told]
    bare = {name for recipe in definition.recipes for name in asked if name not in {key.removesuffix("?") for key in recipe.when}}
    kept = {name: values for name, values in asked.items() if name not in bare and not {True, False}.issubset(values)}
    return " and ".join(f"`{name.replace('|', '` or `')}` is {' or '.join(map(_word, values))}" for name, values in kept.items())


def _word(value: Argument) -> str:
    if value is None or isinstance(value, bool):
        return "not set" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else f"`{value}`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _held_out(known: Trainer) -> Iterator[str]:
    if known.validation:
        tiers = ", else ".join(" or ".join(f"`{native}`" for native in tier) for tier in known.validation)
        yield from ("", f"Held-out scores (`val.mean_at_n`): {tiers}.")

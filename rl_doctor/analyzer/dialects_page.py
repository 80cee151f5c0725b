"""The pages that say what every trainer calls its numbers, what each of them is, and whether it can be recomputed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rl_doctor.analyzer.dialects.generic import NAMES
from rl_doctor.analyzer.dialects.recipes import Argument, Definition
from rl_doctor.analyzer.dialects.registry import Name, Trainer, dotted, trainers

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


def index() -> Iterator[str]:
    """The page that lists the trainers, and the names made at home, as Markdown."""
    yield from ("# Dialects", "", _INTRO, "", _PROOFS, "")
    yield f"| trainer | names | {' | '.join(_STATUS)} |"
    yield f"| --- | {' | '.join('---:' for _ in ('', *_STATUS))} |"
    for name, known in sorted(trainers().items(), key=lambda item: item[1].label.lower()):
        counts = Counter(status(item) for item in known.names)
        cells = " | ".join(str(counts[one] or "") for one in _STATUS)
        yield f"| [{known.label}](dialects/{name}.md) | {len(known.names)} | {cells} |"
    yield from ("", "## Made at home", "", "Names with one meaning wherever they stand.", "", *_short_table(NAMES))


def page(known: Trainer) -> Iterator[str]:
    """The page of one trainer as Markdown."""
    yield from (f"# {known.label}", "", f"Read in {known.source}.", "", "[All trainers](../dialects.md)", "")
    yield "| name | metric | formula | when | recomputed | what to know |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for item in known.names:
        formula = "" if item.definition is None else item.definition.formula
        cells = (f"`{item.native}`", _metric(item), formula, when(item), _recomputed(item), item.note)
        yield f"| {' | '.join(map(_escaped, cells))} |"
    yield from _held_out(known)


def logged_as() -> Mapping[str, tuple[str, ...]]:
    """What each trainer calls a metric: canonical name -> one line of Markdown for each trainer that has a name for it."""
    found: dict[str, dict[str, list[str]]] = {}
    for known in trainers().values():
        for item in known.names:
            if item.metric is not None:
                told = f" ({when(item)})" if when(item) else ""
                names = found.setdefault(item.metric, {}).setdefault(known.label, [])
                if (line := f"`{item.native}`{told}") not in names:
                    names.append(line)
    return {
        metric: tuple(f"{label} {', '.join(names)}" for label, names in sorted(by.items(), key=lambda item: item[0].lower()))
        for metric, by in found.items()
    }


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
    told = [", ".join(sorted(item.algorithms))] if item.algorithms else []
    if item.since is not None:
        told.append(f"from {dotted(item.since)} on")
    if item.until is not None:
        told.append(f"before {dotted(item.until)}")
    if item.holds is not None:
        told.append("where the numbers bear it out")
    return "; ".join(told)


def _recomputed(item: Name) -> str:
    found = item.definition
    if found is None or found.proof is None:
        return status(item) if found is None else f"no: {found.reason}"
    settings = _settings(found)
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

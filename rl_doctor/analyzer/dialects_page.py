"""The page that lists what every trainer calls its numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rl_doctor.analyzer.dialects.generic import NAMES
from rl_doctor.analyzer.dialects.registry import Name, Trainer, Version, trainers


def lines() -> Iterator[str]:
    """The page as Markdown, below its heading: a table for each trainer, then names made at home."""
    yield (
        "Names are compared without `train/` before them, in any case, and with `/`, `.`, `_` and blanks alike. Where two names "
        "of a trainer mean the same metric the upper one is read. A trainer is recognised by the names that only it uses; names "
        "that stand in no table of its own are looked up among those made at home."
    )
    for _, known in sorted(trainers().items()):
        yield from ("", f"## {known.label}", "", f"Read in {known.source}.", "", *_table(known.names), *_held_out(known))
    yield from ("", "## Made at home", "", "Names with one meaning wherever they stand.", "", *_table(NAMES))


def _table(names: Iterable[Name]) -> Iterator[str]:
    yield "| name | metric | when | what to know |"
    yield "| --- | --- | --- | --- |"
    for item in names:
        yield f"| `{item.native}` | {_metric(item)} | {_when(item)} | {_note(item)} |"


def _metric(item: Name) -> str:
    if item.metric is None:
        return "none"
    if item.offset:
        times = "" if abs(item.factor) == 1.0 else f"{abs(item.factor):g} times "
        return f"`{item.metric}` = {item.offset:g} {'-' if item.factor < 0 else '+'} {times}the value"
    told = {1.0: "", -1.0: ", with the other sign"}.get(item.factor, f", {item.factor:g} times the value")
    return f"`{item.metric}`{told}"


def _when(item: Name) -> str:
    told = [", ".join(sorted(item.algorithms))] if item.algorithms else []
    if item.since is not None:
        told.append(f"from {_version(item.since)} on")
    if item.until is not None:
        told.append(f"before {_version(item.until)}")
    if item.holds is not None:
        told.append("where the numbers bear it out")
    return "; ".join(told)


def _note(item: Name) -> str:
    return item.note.replace("|", "\\|")


def _version(version: Version) -> str:
    return ".".join(map(str, version))


def _held_out(known: Trainer) -> Iterator[str]:
    if known.validation:
        tiers = ", else ".join(" or ".join(f"`{native}`" for native in tier) for tier in known.validation)
        yield from ("", f"Held-out scores (`val.mean_at_n`): {tiers}.")

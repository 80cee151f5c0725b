"""Where the reader is: all of it stands in the page's address, so that every view has a link of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode


@dataclass(frozen=True, slots=True)
class Link:
    """What an address says; None where it says nothing of it.

    Attributes:
        page: name of the page; None for the diagnosis.
        run: the run, as the picker names it; that which ``Listing.first`` gives where it is None.
        step: a step.
        sequence: number of a sequence in the run.
        position: place of a token in its sequence, from 0.
        group: identity of a group.
        code: code of a rule.
        cause: name of a cause.
        metric: canonical name of a metric.
        other: the run that this one is compared with.
        by: how the page orders or aligns what it shows.
        part: which part of a long list, from 1.
        lang: language.
    """

    page: str | None = None
    run: str | None = None
    step: int | None = None
    sequence: int | None = None
    position: int | None = None
    group: str | None = None
    code: str | None = None
    cause: str | None = None
    metric: str | None = None
    other: str | None = None
    by: str | None = None
    part: int | None = None
    lang: str | None = None

    def at(self, **changes: Any) -> Link:
        """The same place with changes."""
        return replace(self, **changes)

    def query(self) -> dict[str, str]:
        """The query parameters; what is None is left out. The page stands in the path."""
        told = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "page"}
        return {name: str(value) for name, value in told.items() if value is not None}

    def url(self) -> str:
        """The address, relative to the app's own: the first page answers only at the root."""
        query = urlencode(self.query())
        return f"{self.page or './'}{'?' + query if query else ''}"


def read(query: Mapping[str, str], page: str | None) -> Link:
    """The link that an address is; a number that is none is left out."""
    told: dict[str, Any] = {}
    for field in fields(Link):
        value = query.get(field.name)
        if field.name == "page" or value in {None, ""}:
            continue
        if field.type != "int | None":
            told[field.name] = value
        elif value.lstrip("-").isdecimal():
            told[field.name] = int(value)
    return Link(page=page, **told)

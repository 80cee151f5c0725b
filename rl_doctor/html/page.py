"""Lays the sections out as one file that needs nothing else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from rl_doctor.charts.theme import CONFIG
from rl_doctor.html.drawing import lighter
from rl_doctor.html.evidence import styles
from rl_doctor.html.hiding import Hider
from rl_doctor.html.parts import Chart, Charts, Section

_STRONG: Final = re.compile(r"\*\*(.+?)\*\*", re.DOTALL)
_CODE: Final = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Document:
    """All that stands in the file.

    Attributes:
        language: of its texts.
        title: of the file.
        about: what it is about, in small letters.
        sections: in their order.
        footer: what the file holds, and who made it.
        words: fixed texts by name.
        icons: the sign of each severity and outcome.
    """

    language: str
    title: str
    about: str
    sections: tuple[Section, ...]
    footer: tuple[str, ...]
    words: Mapping[str, str]
    icons: Mapping[str, str]


def render(document: Document, hider: Hider | None, *, light: bool = False) -> str:
    """The file.

    Args:
        document: what stands in it.
        hider: takes out what identifies the run; None leaves it in.
        light: leave out what heat maps tell of each cell.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        finalize=hider.shown if hider is not None else None,
    )  # fmt: skip
    environment.filters["marked"] = _marked(hider)
    charts = list(_charts(document.sections))
    figures = {chart.name: lighter(chart.figure) if light else chart.figure for chart in charts}
    library, draw = _script(get_plotlyjs()), _script(_own("draw.js"))
    return environment.from_string(_own("report.jinja")).render(
        document=document,
        style=Markup(_own("report.css") + "".join(_rule(*one) for one in dict.fromkeys(styles()))),  # noqa: S704 - our own
        library=library if charts else Markup(""),
        draw=draw,
        hashes=" ".join(f"'sha256-{_digest(script)}'" for script in ([library, draw] if charts else [draw])),
        figures=_json({"figures": figures if hider is None else hider.document(figures), "config": dict(CONFIG)}),
    )


def _marked(hider: Hider | None) -> Callable[[str], Markup]:
    """Makes of a text what is written: its strong words and names of columns are set apart, all else is text."""

    def marked(text: str) -> Markup:
        safe = str(escape(text if hider is None else hider.text(text)))
        return Markup(_CODE.sub(r"<code>\1</code>", _STRONG.sub(r"<strong>\1</strong>", safe)))  # noqa: S704 - it is escaped

    return marked


def _charts(sections: Sequence[Section]) -> Iterator[Chart]:
    for section in sections:
        for block in section.blocks:
            if isinstance(block, Chart):
                yield block
            elif isinstance(block, Charts):
                yield from block.charts


def _rule(name: str, back: str, front: str) -> str:
    return f".{name}{{background:{back};color:{front or 'inherit'}}}\n"


def _script(text: str) -> Markup:
    """A script for the inside of its element."""
    return Markup(text.replace("</script", "<\\/script").replace("<!--", "<\\!--"))  # noqa: S704 - our own and the library's


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def _json(value: Any) -> Markup:
    """A document for the inside of a script element: no sign of it can end that."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return Markup(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))  # noqa: S704 - see above


def _own(name: str) -> str:
    return resources.files("rl_doctor.html").joinpath(name).read_text("utf-8")

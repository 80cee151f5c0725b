"""How pages show things: a chart with the table behind it, a severity, a link to another place of the app."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import streamlit as st

from rl_doctor.app.pulse import condition, zoom
from rl_doctor.charts.theme import CONFIG

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from rl_doctor.app.context import Context
    from rl_doctor.app.link import Link
    from rl_doctor.views.age import Condition
    from rl_doctor.views.facts import Fact
    from rl_doctor.views.table import Table

ICONS: Final[Mapping[str, str]] = {
    "error": ":material/error:",
    "warning": ":material/warning:",
    "info": ":material/info:",
    "passed": ":material/check_circle:",
    "skipped": ":material/do_not_disturb_on:",
    "crashed": ":material/bug_report:",
}
COLOURS: Final[Mapping[str, Any]] = {
    "error": "red", "warning": "orange", "info": "blue", "passed": "green", "skipped": "gray", "crashed": "violet",
}  # fmt: skip

_TABLE_PIXELS: Final = 640


def chart(
    context: Context, figure: go.Figure, alt: str, key: str, *, table: Table | None = None, pick: bool = False
) -> Sequence[Mapping[str, Any]]:
    """Show a chart and, folded under it, the table of its numbers.

    Zoom stays with ``key`` while data are added; a selection has to stand in the address.

    Args:
        context: of the page.
        figure: what ``charts`` made.
        alt: what the chart shows, in a sentence, for those who do not see it.
        key: unique on the page, and the same whenever the page is shown again.
        table: the numbers behind it.
        pick: whether points can be clicked. (Plotly lets points of scatter traces and bars be picked, cells of a heat map not.)

    Returns:
        The picked points, each with ``x``, ``y``, ``customdata``, ``curve_number`` and ``point_index``; none without ``pick``.
    """
    picked: Sequence[Mapping[str, Any]] = ()
    for axis, ends in zoom(context.name, key).items():
        figure.update_layout({axis: {"range": ends, "autorange": False}})
    if pick:
        state: Any = st.plotly_chart(
            figure, key=key, alt=alt, config=dict(CONFIG), on_select="rerun", selection_mode="points", theme="streamlit"
        )
        picked = state["selection"]["points"]
    else:
        st.plotly_chart(figure, key=key, alt=alt, config=dict(CONFIG), theme="streamlit")
    if table is not None:
        numbers(context, table, f"{key}-table")
    return picked


def numbers(context: Context, table: Table, key: str) -> None:
    """The table behind a chart, folded; it is sent only when it is unfolded."""
    name = context.speaker.say("app.table")
    folded = st.popover(name, icon=":material/table_rows:", type="tertiary", key=key, on_change="rerun")
    if folded.open:
        with folded:
            grid(context, table, name, width=_TABLE_PIXELS)


def grid(context: Context, table: Table, alt: str, **more: Any) -> Any:
    """A table; the heads of its columns are in the reader's language where they are words of the app and not of the run.

    Args:
        context: of the page.
        table: what it holds.
        alt: what it shows.
        more: of ``streamlit.dataframe``.

    Returns:
        What was selected, where ``more`` asks for that.
    """
    heads = {name: head for name in table if (head := context.speaker.head(name)) != name}
    return st.dataframe(dict(table), hide_index=True, alt=alt, column_config=heads, placeholder="", **more)


def words(context: Context, table: Table, alt: str, *, most: int = 40, pixels: int = _TABLE_PIXELS) -> None:
    """A table of texts that are read to their end: they are broken into lines where they are long, and shown as they are.

    Args:
        context: of the page.
        table: what it holds.
        alt: what it shows.
        most: rows that are shown without scrolling.
        pixels: height of a table of more.
    """
    told = {plain(context.speaker.head(name)): [_cell(value) for value in values] for name, values in table.items()}
    rows = len(next(iter(told.values()), ()))
    st.table(told, border="horizontal", hide_index=True, alt=alt, height=pixels if rows > most else "content")


def _cell(value: object) -> str:
    """A value for the inside of markdown."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "" if value is None else plain(str(value))


def severity(context: Context, name: str) -> None:
    """A severity or outcome as icon, word and colour."""
    st.badge(context.speaker.say(f"app.{name}"), icon=ICONS[name], color=COLOURS[name])


def severity_text(context: Context, name: str) -> str:
    """The same for the inside of a line of markdown."""
    return f":{COLOURS[name]}-badge[{ICONS[name]} {context.speaker.say(f'app.{name}')}]"


def goto(context: Context, link: Link, label: str, *, icon: str | None = None, tip: str | None = None) -> None:
    """A link to another place of the app; plain text where this app has no such page.

    It is followed without loading the page anew, and can be copied and opened elsewhere.
    """
    page = context.pages.get(link.page or "")
    if page is None:
        st.caption(label)
    else:
        st.page_link(page, label=label, icon=icon, help=tip, query_params=link.query())


def plain(text: str) -> str:
    """Text of a run (a prompt, a path, a message) for the inside of markdown: shown as it is, never as markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_{}[]()<>#+-.!|~$:^=&" else letter for letter in text)


def marked(text: str) -> str:
    """A sentence of the report for the inside of markdown: what stands between backticks is code, all else as it is."""
    parts = text.split("`")
    if len(parts) % 2 == 0 or "" in parts[1::2]:
        return plain(text)
    return "".join(f"`{part}`" if place % 2 else plain(part) for place, part in enumerate(parts))


def tell(context: Context, text: str) -> str:
    """A sentence of the report in the reader's language."""
    return context.speaker.tell(text)


def heading(context: Context, title: str, notes: Sequence[str] = ()) -> None:
    """The title of a page, with the run that it is about and what is worth knowing of that in small letters beside it.

    Args:
        context: of the page.
        title: key of the message.
        notes: texts of the run, shown as they are.
    """
    name = context.name
    told = " · ".join(plain(note) for note in (name, *notes))
    st.markdown(f"## {context.speaker.say(title)} :small[:gray[{told}]]")


def unmarked(lines: Sequence[str], key: str) -> None:
    """Lines of markdown as a list whose marks are the icons that they begin with."""
    if lines:
        with st.container(key=f"unmarked-{key}"):
            st.markdown("\n".join(f"- {line}" for line in lines))


def facts(context: Context, entries: Sequence[Fact]) -> None:
    """A few facts side by side: what each is, the fact, and what is worth knowing of it."""
    speaker = context.speaker
    with st.container(key="facts"):
        for entry in entries:
            label, note = speaker.said([entry.label]), speaker.said(entry.notes)
            card = st.container(border=True, gap=None, height="stretch")
            card.markdown(f":small[:gray[{label}]]  \n{_fact(context, entry)}  \n:small[:gray[{note}]]")


def _fact(context: Context, entry: Fact) -> str:
    if isinstance(entry.fact, int):
        return f"**{entry.fact:,}**"
    told = f"**{context.speaker.said([entry.fact])}**"
    if entry.kind in ICONS:
        return f":{COLOURS[entry.kind]}-badge[{ICONS[entry.kind]} {told}]"
    return condition(context.speaker, cast("Condition", entry.kind)) if entry.kind else told

"""What a widget does when it is changed: the address is the only state, and says what was chosen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from rl_doctor.app.context import Context


def choose(
    context: Context, key: str, parameter: str, read: Callable[[Any], Any] | None = None, **changes: Any
) -> Callable[[], None]:
    """What writes into the address what a widget holds; for its ``on_change``.

    Args:
        context: of the page.
        key: of the widget.
        parameter: of ``Link``, that is changed.
        read: makes its value of what the widget holds; by default it is that itself.
        changes: what else changes with it; None for what the choice makes meaningless.
    """

    def write() -> None:
        held = st.session_state[key]
        told = {**changes, parameter: held if read is None else read(held)}
        st.query_params.from_dict(context.link.at(**told).query())

    return write


def choose_step(context: Context, page: str, steps: Sequence[int], step: int, **changes: Any) -> None:
    """The box that a step is chosen in, of all that a page offers.

    Args:
        context: of the page.
        page: its name, which the key and the word beside the box begin with.
        steps: to choose from.
        step: the chosen one.
        changes: as of ``choose``.
    """
    key = f"{page}-step"
    st.session_state[key] = step
    st.selectbox(
        context.speaker.say(f"{page}.step"), steps, key=key, on_change=choose(context, key, "step", **changes), width=130
    )

"""The heat map of a response's tokens: a component of its own, drawn in the page without any library."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

import streamlit as st

from rl_doctor.app.context import Context
from rl_doctor.charts.token_map import palette
from rl_doctor.views.quantities import Quantity
from rl_doctor.views.tokens import MASKED, UNKNOWN, Page, Tokens

KEY: Final = "token-map"
_FLAGS: Final[Mapping[str, tuple[str, ...]]] = {
    "clipped": ("in_range", "cut_low", "cut_high", "cut_dual"), "masked": ("not_trained", "trained", "normalised", "beyond_end"),
}  # fmt: skip
"""What the flags of a quantity are called, by their number."""


def token_map(context: Context, found: Tokens, page: Page, quantity: Quantity) -> None:
    """Show the tokens; the one that is clicked goes into the address.

    Args:
        context: of the page.
        found: the response.
        page: the tokens to show.
        quantity: what they are coloured by.
    """
    say = context.speaker.say
    draw = st.components.v2.component(
        "rl_doctor_token_map", html='<div class="tokens"></div>', css=_asset("token_map.css"), js=_asset("token_map.js")
    )
    draw(
        key=KEY,
        data={
            "drawing": f"{found.sequence} {found.step} {quantity.name} {page.first} {page.total} {context.speaker.language}",
            "first": page.first,
            "chosen": context.link.position,
            "texts": page.texts,
            "decoded": page.decoded,
            "levels": page.levels.tolist(),
            "masked": page.masked.tolist(),
            "palette": palette(quantity.scale, quantity.name),
            "ends": _ends(found, quantity),
            "key": _key(context, quantity),
            "fields": [
                [say(f"tokens.{name}") if name in found.offered else name, list(values)] for name, values in page.fields.items()
            ],
            "label": say("tokens.map", n=len(page.texts)),
            "hint": say("tokens.hint"),
            "words": {
                "position": say("tokens.position"), "token": say("tokens.token"), "state": say("tokens.state"),
                "masked": say("tokens.not_trained"),
            },
        },
        on_token_change=_picked,
    )  # fmt: skip


def _ends(found: Tokens, quantity: Quantity) -> list[str] | None:
    """What stands at both ends of the colours; None for flags."""
    if found.bounds is None:
        return None
    unit = "" if quantity.unit == "1" else f" {quantity.unit}"
    return [f"{found.bounds.low:.3g}", f"{found.bounds.high:.3g}{unit}"]


def _key(context: Context, quantity: Quantity) -> list[tuple[int, str]]:
    """What the colours of single levels mean."""
    say = context.speaker.say
    names = dict(enumerate(_FLAGS.get(quantity.name, ())))
    if quantity.name != "masked":
        names[MASKED] = "not_trained"
    return [(level, say(f"tokens.{name}")) for level, name in {**names, UNKNOWN: "unknown"}.items()]


def _picked() -> None:
    """Write the token that was clicked into the address."""
    state: Any = st.session_state[KEY]
    if state.token is not None:
        st.query_params["position"] = str(state.token)


def _asset(name: str) -> str:
    return resources.files("rl_doctor.app").joinpath("assets", name).read_text("utf-8")

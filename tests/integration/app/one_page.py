"""Shows one page of the app, as the app does, without its frame."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

import streamlit as st

from rl_doctor.app.context import Context
from rl_doctor.app.link import Link, read
from rl_doctor.i18n.speaker import Language, Speaker
from rl_doctor.live.followed import Followed


@cache
def followed(path: Path) -> Followed:
    """The run, opened once for all tests of a process."""
    return Followed(path)


def show(module: str, path: Path, link: Link, language: Language, texts: tuple[str, ...]) -> None:
    """Show the page of ``module`` at the address of the browser, or else at ``link``.

    Args:
        module: of the page.
        path: the run.
        link: where the reader is, as long as no widget has changed the address.
        language: of the page.
        texts: text of each token id, where there is a tokenizer.
    """
    told = st.query_params.to_dict()
    run = followed(path)
    tokenizer = (lambda ids: [texts[one] for one in ids]) if texts else None
    here = read({**link.query(), **told}, link.page)
    context = Context(run, here, Speaker(language), {"run": run}, lambda _: None, tokenizer=tokenizer)
    importlib.import_module(module).show(context)

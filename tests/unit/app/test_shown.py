"""Texts for the inside of markdown."""

from __future__ import annotations

import pytest

pytest.importorskip("streamlit")
pytest.importorskip("plotly")

from rl_doctor.app.shown import marked, plain


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("read `rl-doctor metrics RUN --select <name>`.", "read `rl-doctor metrics RUN --select <name>`\\."),
        ("an odd ` stays *as it is*", "an odd \\` stays \\*as it is\\*"),
        ("nothing between `` them", "nothing between \\`\\` them"),
        ("<b>none</b>", "\\<b\\>none\\</b\\>"),
    ],
)
def test_only_code_is_marked_in_a_sentence(text: str, shown: str) -> None:
    assert marked(text) == shown


def test_a_text_of_a_run_is_no_markup() -> None:
    assert plain("`a` [b](c) :red[d]") == "\\`a\\` \\[b\\]\\(c\\) \\:red\\[d\\]"

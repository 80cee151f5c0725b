"""Outputs stay as they are until someone means to change them."""

from __future__ import annotations

import pytest

from tests.golden.outputs import HERE, OUTPUTS


@pytest.mark.parametrize("name", OUTPUTS)
def test_output(name: str) -> None:
    assert OUTPUTS[name]() == (HERE / name).read_text("utf-8"), "python -m tests.golden.outputs writes it anew"

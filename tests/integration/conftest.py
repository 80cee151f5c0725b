"""A browser, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.app.browser import FLAGS, chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """One for all tests of a process: the driver cannot be there twice."""
    pytest.importorskip("streamlit")
    api = pytest.importorskip("playwright.sync_api")
    path = chromium()
    if path is None:
        pytest.skip("no Chromium on this machine: nothing was looked at in a browser")
    with api.sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        yield found
        found.close()

"""The app's server and a real browser: what both complain about is kept."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")
READY_MILLISECONDS = 90_000


def chromium() -> str | None:
    """The browser of this machine; None if there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), None)


def heed_interrupts() -> None:
    """What a child process begins with: where the tests run in the background, an interrupt would be ignored."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextlib.contextmanager
def ended(server: subprocess.Popen[str]) -> Iterator[None]:
    """The server is gone afterwards, also where a test has failed: waiting for it would take for ever."""
    try:
        yield
    finally:
        if server.poll() is None:
            server.kill()


@contextlib.contextmanager
def served(*arguments: str | Path, cwd: Path, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """The address of the app, started by its command, with further variables of the environment; it must end cleanly."""
    command = [sys.executable, "-m", "rl_doctor", "app", *map(str, arguments)]
    variables = {**os.environ, "PYTHONUNBUFFERED": "1", "RL_DOCTOR_TRACEBACK": "1", **(environment or {})}
    with (
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=cwd, env=variables,
            preexec_fn=heed_interrupts,  # noqa: PLW1509 - it calls the system alone
        ) as server,
        ended(server),
    ):  # fmt: skip
        try:
            assert server.stdout is not None
            line = server.stdout.readline()
            found = re.search(r"http://\S+", line)
            assert found, line
            yield found[0]
        finally:
            server.send_signal(signal.SIGINT)
            server.wait(30)
    assert server.returncode == 0


@dataclass
class Reader:
    """Somebody who looks at the app with a browser.

    Attributes:
        page: the browser's tab.
        base: address of the app.
        complaints: what the browser's console said, and requests to elsewhere.
    """

    page: Any
    base: str
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        self.page.on("request", self._request)

    def open(self, path: str = "") -> None:
        """Go to an address of the app and wait until the page stands."""
        self.page.goto(self.base + path)
        self.settle()

    def settle(self) -> None:
        """Wait until the script has run and everything is drawn."""
        self.page.wait_for_selector(
            "[data-testid=stMainBlockContainer] h1, [data-testid=stMainBlockContainer] h2", timeout=READY_MILLISECONDS
        )
        self.page.wait_for_selector(".stApp[data-test-script-state=notRunning]", timeout=READY_MILLISECONDS)
        self.page.wait_for_function("() => !document.querySelector('[data-testid=stSkeleton]')", timeout=READY_MILLISECONDS)
        self.page.wait_for_timeout(300)

    def title(self) -> str:
        """The heading of the page."""
        return str(self.page.locator("[data-testid=stMainBlockContainer] >> css=h1, h2").first.inner_text()).split("\n")[0]

    def menu(self) -> list[tuple[str, str]]:
        """Name and address, relative to the app's, of each page in the menu."""
        links = self.page.locator("[data-testid=stSidebar] [data-testid=stPageLink] a").all()
        return [(link.inner_text().split("\n")[-1], self._relative(link.get_attribute("href"))) for link in links]

    def troubles(self) -> list[str]:
        """What the page and the console complain of."""
        shown = self.page.locator(
            "[data-testid=stException], [data-testid=stAlertContentError], [role=dialog]:has-text('not found')"
        )
        return [*self.complaints, *shown.all_inner_texts()]

    def _relative(self, address: str | None) -> str:
        parts = urlsplit(address or "")
        return parts.path.lstrip("/") + (f"?{parts.query}" if parts.query else "")

    def _console(self, message: Any) -> None:
        # A deep link makes streamlit look for its server below the page's own path first; that it is not there is no fault.
        expected = "/_stcore/" in message.location.get("url", "") and "404" in message.text
        if message.type == "error" and not expected:
            self.complaints.append(f"{message.text} ({message.location.get('url')})")

    def _request(self, request: Any) -> None:
        parts = urlsplit(request.url)
        if parts.scheme not in {"data", "blob"} and parts.hostname != "127.0.0.1":
            self.complaints.append(f"requested {request.url}")

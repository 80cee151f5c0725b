"""A server that receives what is posted to it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Received(ThreadingHTTPServer):
    """Answers with ``status``, and keeps the bodies it was sent.

    Attributes:
        got: the JSON bodies, in their order.
        paths: the paths that they were sent to.
        status: what it answers with.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[dict[str, Any]] = []
        self.paths: list[str] = []
        self.status = 200

    @property
    def titles(self) -> list[str]:
        """Titles of what it was sent."""
        return [each["title"] for each in self.got]

    def url(self, hook: str = "hook") -> str:
        """Its address, for apprise."""
        return f"json://127.0.0.1:{self.server_address[1]}/{hook}"


class _Handler(BaseHTTPRequestHandler):
    server: Received

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.status == 200:
            self.server.got.append(json.loads(body))
            self.server.paths.append(self.path)
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@contextmanager
def received() -> Iterator[Received]:
    """A server at work."""
    server = Received()
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()

"""As much of a wandb server as its public API asks for: one run with its configuration and history, over HTTP."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


def _run(rows: list[dict[str, Any]], config: dict[str, Any]) -> dict[str, Any]:
    return {
        "projectId": "1", "id": "r", "tags": [], "name": "abc", "displayName": "nice run", "sweepName": None, "state": "finished",
        "config": json.dumps({name: {"value": value} for name, value in config.items()}), "group": None, "jobType": None,
        "commit": None, "readOnly": True, "createdAt": "2026-01-01T00:00:00", "heartbeatAt": "2026-01-01T00:00:00",
        "description": None, "notes": None, "systemMetrics": "{}", "summaryMetrics": "{}", "historyLineCount": len(rows),
        "user": {"name": "n", "username": "u"}, "historyKeys": _keys(rows),
    }  # fmt: skip


def _keys(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"lastStep": max((row["_step"] for row in rows), default=-1), "keys": {}}


def _answer(query: str, variables: dict[str, Any], rows: list[dict[str, Any]], config: dict[str, Any]) -> dict[str, Any]:
    if "query Viewer" in query or "query GetDefaultEntity" in query:
        teams = {"edges": [{"node": {"name": "team"}}]}
        return {"viewer": {"id": "v", "entity": "team", "username": "u", "email": "e", "flags": "{}", "teams": teams}}
    if variables.get("project") != "proj" or (variables.get("name") or variables.get("run") or variables.get("runName")) != "abc":
        return {"project": None}
    if "query HistoryPage" in query:
        page = [row for row in rows if variables["minStep"] <= row["_step"] < variables["maxStep"]]
        return {"project": {"run": {"history": [json.dumps(row) for row in page]}}}
    if "query RunParquetHistory" in query:
        return {"project": {"run": {"parquetHistory": {"parquetUrls": [], "liveData": [{"_step": 0}]}}}}
    if "query RunHistoryKeys" in query:
        return {"project": {"run": {"historyKeys": _keys(rows)}}}
    return {"project": {"run": _run(rows, config)}}


@contextmanager
def server(rows: list[dict[str, Any]], config: dict[str, Any]) -> Iterator[str]:
    """Serve one run, ``team/proj/abc``; gives the server's address."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer = b""
            if self.path == "/graphql":
                asked = json.loads(body)
                answer = json.dumps({"data": _answer(asked["query"], asked.get("variables") or {}, rows, config)}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=http.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        http.server_close()

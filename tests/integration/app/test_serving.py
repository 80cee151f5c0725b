"""The command ``rl-doctor app``: from its start to its end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import rl_doctor.demo
from tests.integration.app.browser import ended, heed_interrupts

pytest.importorskip("streamlit")

RUN = Path(rl_doctor.demo.__file__).parent / "kl-sign.parquet"


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_it_answers_once_it_says_so_and_ends_cleanly(tmp_path: Path, sent: signal.Signals) -> None:
    command = [sys.executable, "-m", "rl_doctor", "app", str(RUN)]
    with (
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
            preexec_fn=heed_interrupts,  # noqa: PLW1509 - it calls the system alone
        ) as server,
        ended(server),
    ):
        assert server.stdout is not None
        address = server.stdout.readline().split()[-1]
        tunnel, _, end = (server.stdout.readline() for _ in range(3))
        port = int(address.rsplit(":", 1)[1].strip("/"))
        assert address == f"http://127.0.0.1:{port}/"
        assert f"ssh -L {port}:127.0.0.1:{port} " in tunnel
        with urllib.request.urlopen(f"{address}_stcore/health", timeout=10) as answer:  # noqa: S310 - our own server
            assert answer.status == 200
        server.send_signal(sent)
        _, errors = server.communicate(timeout=30)
    assert server.returncode == 0
    assert errors == ""
    assert end == "Ctrl-C ends it.\n"
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0

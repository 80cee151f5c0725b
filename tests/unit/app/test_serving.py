"""Where the app is served, and what is refused before anything starts."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from rl_doctor.app import serving
from rl_doctor.app.look import OPTIONS
from rl_doctor.app.serving import Place, place_for, serve
from rl_doctor.cli.main import main
from rl_doctor.errors import InputError, UsageError


def test_a_free_port_is_found_and_a_taken_one_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"--port {port}: in use"):
            place_for("127.0.0.1", port, "", open_to_others=False)
        assert place_for("127.0.0.1", None, "", open_to_others=False).port not in {0, port}


def test_the_usual_ports_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    free: dict[int, int | None] = {8511: None, 8512: 8512}
    monkeypatch.setattr(serving, "_free", lambda _, port: free.get(port))
    assert place_for("127.0.0.1", None, "", open_to_others=False).port == 8512
    monkeypatch.setattr(serving, "_free", lambda _, port: 40_000 if port == 0 else None)
    assert place_for("127.0.0.1", None, "", open_to_others=False).port == 40_000


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.1.7", "example.org"])  # noqa: S104 - it is refused
def test_an_address_that_others_reach_needs_a_flag(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no login"):
        place_for(address, None, "", open_to_others=False)
    monkeypatch.setattr(serving, "_free", lambda _, port: port)
    assert place_for(address, None, "", open_to_others=True).address == address


@pytest.mark.parametrize(
    ("place", "url"),
    [
        (Place("127.0.0.1", 8511), "http://127.0.0.1:8511/"),
        (Place("0.0.0.0", 8511), "http://127.0.0.1:8511/"),  # noqa: S104 - it is an address to show
        (Place("::1", 8511, "proxy/rl"), "http://[::1]:8511/proxy/rl"),
    ],
)
def test_the_address_to_open(place: Place, url: str) -> None:
    assert place.url == url
    assert place.tunnel.startswith("ssh -L 8511:127.0.0.1:8511 ")


def test_slashes_around_the_base_path_are_left_out() -> None:
    assert place_for("127.0.0.1", None, "/proxy/rl/", open_to_others=False).base_path == "proxy/rl"


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        serve([tmp_path / "gone"], Place("127.0.0.1", 8511), print)


def test_missing_packages_are_named_with_the_command_that_installs_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serving, "find_spec", lambda name: None if name == "streamlit" else object())
    with pytest.raises(SystemExit) as ended:
        main(["app", str(tmp_path)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "streamlit not installed" in line
    assert "pip install 'rl-doctor[app]'" in line


def test_packages_that_refuse_to_be_found_are_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(serving, "find_spec", refuse)
    with pytest.raises(UsageError, match=r"streamlit, plotly, pandas not installed; run: pip install 'rl-doctor\[app\]'"):
        serve([tmp_path], Place("127.0.0.1", 8511), print)


def test_packages_that_cannot_be_imported_are_named_when_the_server_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(serving, "find_spec", lambda _: object())
    monkeypatch.setattr(serving, "import_module", refuse)
    monkeypatch.setattr(serving, "_command", lambda *_: [sys.executable, "-c", "raise SystemExit(1)"])
    with pytest.raises(UsageError, match=r"pip install 'rl-doctor\[app\]'"):
        serve([tmp_path], Place("127.0.0.1", 9), print)


BROKEN = {"cut.parquet": b"PAR1 cut", "other.json": b'{"a": "b"}', "empty.jsonl": b""}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_that_cannot_be_read_is_refused_before_anything_starts(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(BROKEN[name])
    with pytest.raises(SystemExit) as ended:
        main(["app", str(tmp_path / name)])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert name in line


def test_of_several_files_each_that_cannot_be_read_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, content in BROKEN.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SystemExit) as ended:
        main(["app", *(str(tmp_path / name) for name in BROKEN)])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert all(name in told.out + told.err for name in BROKEN)


def test_what_can_be_read_is_shown_beside_what_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cut.parquet").write_bytes(BROKEN["cut.parquet"])
    (tmp_path / "log.jsonl").write_text('{"step": 1, "loss": 1.0}\n{"step": 2, "loss": 1.5}\n')
    monkeypatch.setattr(serving, "_command", lambda *_: [sys.executable, "-c", "raise SystemExit(1)"])
    told: list[str] = []
    with pytest.raises(UsageError, match="did not start"):
        serve([tmp_path / "cut.parquet", tmp_path / "log.jsonl"], Place("127.0.0.1", 9), told.append)
    assert "not shown now:" in told[0]
    assert "cut.parquet" in told[0]
    assert "log.jsonl" not in told[0]


def test_nothing_is_sent_home_and_no_files_are_watched() -> None:
    assert OPTIONS["browser.gatherUsageStats"] == "false"
    assert OPTIONS["server.fileWatcherType"] == "none"
    assert OPTIONS["client.toolbarMode"] == "minimal"
    assert OPTIONS["server.headless"] == "true"


def test_streamlit_knows_every_option() -> None:
    config = pytest.importorskip("streamlit.config")
    for name in OPTIONS:
        config.get_option(name)

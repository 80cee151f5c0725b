"""What all tests share: no test sees the caller's terminal settings, and timing is never a property."""

from importlib.util import find_spec

import pytest

if find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("rl-doctor", deadline=None, print_blob=True)
    settings.load_profile("rl-doctor")


@pytest.fixture(autouse=True)
def plain_terminal(monkeypatch):
    """Output as in a pipe of fixed width, whatever terminal the tests run in."""
    for name in ("FORCE_COLOR", "NO_COLOR", "CLICOLOR_FORCE", "TERM", "RL_DOCTOR_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "100")


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """No test reads or leaves states in the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))

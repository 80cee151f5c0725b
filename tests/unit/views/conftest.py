from __future__ import annotations

from pathlib import Path

import pytest

from rl_doctor.live.followed import Followed
from rl_doctor.views.opened import Opened
from tests.integration.app.written import write


@pytest.fixture(scope="package")
def written(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    """The run of ``tests.integration.app.written``, opened."""
    return Followed(write(tmp_path_factory.mktemp("written") / "run")).opened


def demo(name: str) -> Opened:
    """A demo run, opened."""
    return Followed(Path(__file__).parents[3] / "rl_doctor" / "demo" / f"{name}.parquet").opened


@pytest.fixture(scope="package")
def stale() -> Opened:
    return demo("stale-old-logprob")


@pytest.fixture(scope="package")
def padded() -> Opened:
    return demo("padding-in-mask")

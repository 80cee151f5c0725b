"""Attaching is where a caller may be told of an error, in one line; and ranks agree on one session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_doctor import attach
from rl_doctor.collectors.ranks import open_ranks
from rl_doctor.collectors.trl import Hooks
from rl_doctor.errors import UsageError


class FakeTrainer:
    """Looks like a trainer of TRL by its name and its package only."""


FakeTrainer.__name__ = "GRPOTrainer"
FakeTrainer.__module__ = "trl.trainer.grpo_trainer"


def test_an_unknown_trainer_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot attach to builtins\.dict: supported are trl GRPOTrainer") as caught:
        attach({}, tmp_path / "run")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("version", ["1.15.2", "0.29.1", "2.0.0", "2.1.0.dev0"])
def test_other_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(__version__=version))
    trainer = FakeTrainer()
    for name in Hooks.METHODS:
        setattr(trainer, name, None)
    with pytest.raises(UsageError, match=f"trl {version}: supported are trl >= 1.16, < 2"):
        attach(trainer, tmp_path / "run")


def test_a_trainer_without_the_methods_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(__version__="1.16.0"))
    with pytest.raises(UsageError, match=r"its GRPOTrainer lacks _generate, .*_compute_loss"):
        attach(FakeTrainer(), tmp_path / "run")


def test_a_trainer_with_other_settings_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", SimpleNamespace(__version__="1.16.0"))
    trainer = FakeTrainer()
    for name in Hooks.METHODS:
        setattr(trainer, name, None)
    with pytest.raises(UsageError, match="its settings have another form"):
        attach(trainer, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Ranks:
    """``torch.distributed`` as two ranks see it, one after the other."""

    def __init__(self) -> None:
        self.rank = 0
        self.sent: list[Any] = []

    def module(self) -> Any:
        distributed = SimpleNamespace(
            is_available=lambda: True,
            is_initialized=lambda: True,
            get_rank=lambda: self.rank,
            broadcast_object_list=self.broadcast,
        )
        return SimpleNamespace(distributed=distributed)

    def broadcast(self, values: list[Any], src: int) -> None:
        assert src == 0
        if self.rank == 0:
            self.sent = list(values)
        values[:] = self.sent


def test_ranks_share_the_session_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks()
    monkeypatch.setitem(sys.modules, "torch", ranks.module())
    for session in (1, 2):
        recorders = []
        for ranks.rank in (0, 1):
            recorders.append(open_ranks(tmp_path / "run", {}))
        assert [recorder.session for recorder in recorders] == [session, session]
        for recorder in recorders:
            recorder.close()
    assert (tmp_path / "run" / "writer-s2-r1.json").exists()


def test_other_ranks_are_told_when_rank_0_cannot_open_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").write_text("")
    ranks = Ranks()
    monkeypatch.setitem(sys.modules, "torch", ranks.module())
    for ranks.rank in (0, 1):
        recorder = open_ranks(tmp_path / "run", {})
        assert recorder.session is None
        assert not recorder.recording
        recorder.close()


def test_recording_does_not_import_what_the_trainer_brings() -> None:
    code = "import sys, rl_doctor.collectors.recorder, rl_doctor.collectors.trl; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "trl", "transformers", "pandas", "pyarrow", "rl_doctor.analyzer", "rl_doctor.rules"} & set(
        done.stdout.split()
    )

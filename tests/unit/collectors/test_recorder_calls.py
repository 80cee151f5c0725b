"""Calls that a newcomer gets wrong: nothing raises, each is told in one plain line, and what can be recorded is."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, open_run
from rl_doctor.collectors import worker
from rl_doctor.schema import RunConfig, RunInfo


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rl_doctor"]


def rows(**changes: Any) -> dict[str, Any]:
    return {"response_mask": np.ones((2, 3), bool), "logprob": np.full((2, 3), -1.0), "reward": [0.0, 1.0]} | changes


def log(recorder: Recorder, *steps: int) -> None:
    for step in steps:
        recorder.log_batch(step=step, **rows())


def steps_of(folder: Path) -> list[int]:
    return [batch.step for batch in open_run(folder).batches(["reward"])]


class _Rude:
    def __fspath__(self) -> str:
        raise RuntimeError("rude")

    def __repr__(self) -> str:
        raise RuntimeError("rude")


class TestOpening:
    @pytest.mark.parametrize(
        ("path", "word"),
        [
            (None, "environment variable"),
            (7, "not 7"),
            (b"bytes", "not b'bytes'"),
            ("", "empty"),
            ("s3://bucket/run", "URL"),
            ("gs://bucket/run", "URL"),
            ("file:/tmp/run", "URL"),
            ("a\0b", "null"),
            (_Rude(), "rude"),
        ],
        ids=["None", "number", "bytes", "empty", "s3", "gs", "file", "null", "rude"],
    )
    def test_a_path_that_is_none(
        self, path: Any, word: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        with Recorder(path) as recorder:
            log(recorder, 1, 2)
            recorder.log_metrics(1, {"loss": 1.0})
            assert not recorder.flush()
            assert (recorder.session, recorder.recording) == (None, False)
        (line,) = lines(caplog)
        assert "records nothing" in line
        assert word in line
        assert not list(tmp_path.iterdir())

    def test_the_home_folder_is_expanded(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)
        with Recorder("~/run") as recorder:
            log(recorder, 1)
        assert steps_of(tmp_path / "run") == [1]
        assert not (tmp_path / "~").exists()

    @pytest.mark.parametrize(
        "option",
        [
            {"rank": "0"},
            {"rank": -1},
            {"rank": 1.5},
            {"session": "x"},
            {"info": "x"},
            {"info": 7},
            {"on_part": 3},
            {"blocking": "no"},
            {"record_token_ids": None},
        ],
        ids=str,
    )
    def test_an_option_of_the_wrong_type(self, option: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run", **option) as recorder:
            log(recorder, 1)
        (line,) = lines(caplog)
        assert "records nothing" in line
        assert next(iter(option)) in line
        assert not (tmp_path / "run").exists()

    @pytest.mark.parametrize("number", [0, -1, "much", None, float("nan"), float("inf"), True])
    def test_a_queue_of_no_size_is_the_usual_one(self, number: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run", queue_bytes=number) as recorder:
            log(recorder, 1, 2, 3)
        (line,) = lines(caplog)
        assert "queue_bytes" in line
        assert steps_of(tmp_path / "run") == [1, 2, 3]


class TestDescription:
    def test_values_that_json_cannot_hold(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        config = {
            "clip_low": np.float32(0.5),
            "group_size": np.int64(8),
            "mine": Path("/data"),
            "kinds": {1, 2},
            "dtype": np.dtype("float32"),
            "kl_coef": Path("/x"),
            "nested": {"a": [np.float64(1.5), object]},
            "shape": (np.int64(2), 3),
        }
        info = {"pad_token_id": np.array(0), "eos_token_ids": np.int64(3), "config": config, "home": Path("/home")}
        with Recorder(tmp_path / "run", info) as recorder:
            log(recorder, 1)
        assert recorder.guard.reason is None
        said = lines(caplog)
        for name in ("config.mine", "config.kinds", "config.dtype", "config.kl_coef", "config.nested.a", "home"):
            assert any(name in line for line in said), name
        kept = open_run(tmp_path / "run").info
        assert (kept.pad_token_id, kept.eos_token_ids) == (0, (3,))
        assert (kept.config.clip_low, kept.config.group_size, kept.config.kl_coef) == (0.5, 8, None)
        assert kept.config.native is not None
        assert kept.config.native["mine"] == "/data"
        assert kept.config.native["nested"] == {"a": [1.5, "<class 'object'>"]}

    @pytest.mark.parametrize("ids", [3, [3], (np.int64(3),), np.array([3]), np.array(3), [np.array(3)]], ids=repr)
    def test_ends_of_sequence(self, ids: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run", {"eos_token_ids": ids}) as recorder:
            log(recorder, 1)
        assert not lines(caplog)
        assert open_run(tmp_path / "run").info.eos_token_ids == (3,)

    def test_a_value_of_the_wrong_type_is_left_out(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run", {"algorithm": 3, "config": {"clip_low": "much", "clip_high": 0.2}}) as recorder:
            log(recorder, 1)
        assert len(lines(caplog)) == 2
        kept = open_run(tmp_path / "run").info
        assert (kept.algorithm, kept.config.clip_low, kept.config.clip_high) == (None, None, 0.2)

    def test_a_run_info_stays_as_it_is(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        info = RunInfo(trainer="custom", eos_token_ids=(1, 2), config=RunConfig(clip_low=0.1, native={"a": {"b": None}}))
        with Recorder(tmp_path / "run", info) as recorder:
            log(recorder, 1)
        assert not lines(caplog)
        kept = open_run(tmp_path / "run").info
        assert (kept.trainer, kept.eos_token_ids, kept.config) == (info.trainer, info.eos_token_ids, info.config)


def test_dropped_steps_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    release, take = threading.Event(), worker.Worker._take

    def wait(self: worker.Worker, message: Any) -> bool:
        release.wait(30)
        return take(self, message)

    monkeypatch.setattr(worker.Worker, "_take", wait)
    recorder = Recorder(tmp_path / "run", queue_bytes=300)
    log(recorder, *range(1, 9))
    release.set()
    recorder.close()
    first, last = lines(caplog)
    assert "queue" in first
    assert "queue_bytes" in first
    assert "blocking" in first
    assert recorder.dropped_steps > 1
    assert f"{recorder.dropped_steps} step" in last
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "complete"

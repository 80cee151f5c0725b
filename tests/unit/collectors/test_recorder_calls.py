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


class TestCalls:
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"reward_components": 3}, "reward_components must be a mapping"),
            ({"reward": ["a", "b"]}, "where numbers belong"),
            ({"reward": [1.0]}, "numbers of sequences"),
            ({"logprob": [[-1.0, -2.0], [-3.0]]}, "differ in length"),
        ],
    )
    def test_a_batch_that_cannot_be_recorded_costs_its_step(
        self, change: dict[str, Any], words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Recorder(tmp_path / "run") as recorder:
            log(recorder, 1)
            for step in (2, 3):
                recorder.log_batch(step=step, minibatch=0, **rows())
                recorder.log_batch(step=step, minibatch=1, **(rows() | change))
                recorder.log_batch(step=step, minibatch=2, **rows())
            log(recorder, 4)
            assert recorder.flush()
        fault, total = lines(caplog)
        assert "step 2 is left out" in fault
        assert words in fault
        assert "2 step(s)" in total
        assert steps_of(tmp_path / "run") == [1, 4]
        facts = open_run(tmp_path / "run").facts
        assert (facts.dropped_steps, facts.incomplete_steps) == (2, ())

    @pytest.mark.parametrize("step", [2**70, "a", 2.5, None, True, np.array([1, 2]), float("nan")], ids=repr)
    def test_a_step_that_is_none(self, step: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            log(recorder, 1)
            recorder.log_batch(step=step, **rows())
            recorder.log_metrics(step, {"loss": 1.0})
            recorder.end_step(step)
            log(recorder, 2)
        assert all("step must be a whole number" in line for line in lines(caplog))
        assert steps_of(tmp_path / "run") == [1, 2]

    @pytest.mark.parametrize("step", [3.0, np.int32(3), np.array(3)], ids=repr)
    def test_a_step_of_another_type(self, step: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            recorder.log_batch(step=step, **rows())
        assert not lines(caplog)
        assert steps_of(tmp_path / "run") == [3]

    def test_metrics_that_are_none(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            log(recorder, 1)
            recorder.log_metrics(1, None)  # type: ignore[arg-type]
            recorder.log_metrics(1, {"a\udc80": 1.0, "loss": 2.0, "odd": object()}, split=3)  # type: ignore[arg-type]
            recorder.log_metrics(1, {"loss": 2.0})
        line, told = lines(caplog)
        assert "1 metric is no number and left out, here and at later steps: odd" in told
        assert "metrics must be a mapping of names to values, not None" in line
        assert open_run(tmp_path / "run").metrics().series("loss")[1].tolist() == [2.0]

    def test_a_text_that_is_no_unicode(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            recorder.log_batch(step=1, response=["a\udc80", "\u00fc"], **rows())
        assert not lines(caplog)
        (batch,) = open_run(tmp_path / "run").batches(["response"])
        assert batch.columns["response"].tolist() == ["a\\udc80", "\u00fc"]

    def test_roles(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            for step in (1, 2):
                recorder.log_batch(
                    step=step, role=[["assistant", "environment", "observation"], ["ipython", "user", None]], **rows()
                )
        (line,) = lines(caplog)
        assert "'ipython'" in line
        first = next(iter(open_run(tmp_path / "run").batches(["role"])))
        assert first.columns["role"].tolist() == [0, 1, 1, -1, 2, -1]

    def test_columns_of_the_recorder_itself(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            for step in (1, 2):
                recorder.log_batch(step=step, sequence=[7, 8], stored_length=[1, 1], **rows())
        said = lines(caplog)
        assert len(said) == 2
        assert all("recorder itself" in line for line in said)
        assert steps_of(tmp_path / "run") == [1, 2]


class TestRagged:
    @pytest.mark.parametrize("kind", [list, tuple, np.array])
    def test_rows_of_different_lengths(self, kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            recorder.log_batch(
                step=1,
                logprob=[kind([-1.0, -2.0]), kind([-3.0]), kind([])],
                token_id=[kind([5, 6]), kind([7]), []],
                reward=[1, 0, 0],
            )
        assert not lines(caplog)
        (batch,) = open_run(tmp_path / "run").batches(["logprob", "token_id", "response_length"])
        assert batch.columns["logprob"].tolist() == [-1, -2, -3]
        assert batch.columns["token_id"].tolist() == [5, 6, 7]
        assert batch.columns["response_length"].tolist() == [2, 1, 0]
        assert batch.splits.tolist() == [0, 2, 3, 3]

    def test_a_mask_says_what_is_kept(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            recorder.log_batch(
                step=1, logprob=[[-1.0, -2.0], [-3.0]], response_mask=[[1, 0], [1]], response_length=[1, 1], advantage=[1.0, 2.0]
            )
        assert not lines(caplog)
        (batch,) = open_run(tmp_path / "run").batches(["logprob", "response_length"])
        assert batch.columns["logprob"].tolist() == [-1, -3]
        assert batch.columns["response_length"].tolist() == [1, 1]

    @pytest.mark.parametrize(
        "columns",
        [
            {"logprob": [[-1.0, -2.0], [-3.0]], "token_id": [[1], [2, 3]]},
            {"logprob": [[-1.0, -2.0], [-3.0]], "response_mask": np.ones((2, 4))},
            {"logprob": [[-1.0, -2.0], [-3.0]], "input_ids": [[1, 2], [3]], "prompt_length": [1, 0]},
            {"logprob": [[-1.0, -2.0], [-3.0]], "attention_mask": [[1, 1], [1]], "prompt_length": [1, 0]},
        ],
    )
    def test_what_cannot_be_padded_for_certain(
        self, columns: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        with Recorder(tmp_path / "run") as recorder:
            recorder.log_batch(step=1, **columns)
            log(recorder, 2)
        fault, _ = lines(caplog)
        assert "[B, T]" in fault
        assert steps_of(tmp_path / "run") == [2]


class TestPlaces:
    def test_a_second_thread_is_named(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            log(recorder, 1, 2)
            other = threading.Thread(target=log, args=(recorder, 1))
            other.start()
            other.join()
        (line,) = lines(caplog)
        assert "another thread" in line
        assert "going back" not in line

    def test_a_falling_step_says_what_to_do(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            log(recorder, 1, 2, 1)
        (line,) = lines(caplog)
        assert "let step count over the whole training" in line

"""Recording by hand: what is logged is what is read, and no failure reaches the training."""

from __future__ import annotations

import errno
import json
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Recorder, check, open_run
from rl_doctor.collectors import worker
from rl_doctor.errors import NothingToJudgeError
from rl_doctor.schema import MISSING_INT
from rl_doctor.store.pack import pack
from rl_doctor.store.writer import RunWriter

LENGTHS = np.array([3, 5, 0, 4])


def batch(seed: int = 0, width: int = 5) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    old = rng.normal(-1, 0.3, (4, width)).astype(np.float32)
    return {
        "response_mask": np.arange(width) < LENGTHS[:, None],
        "response_length": LENGTHS,
        "token_id": rng.integers(0, 100, (4, width)),
        "old_logprob": old,
        "logprob": old + np.float32(0.01),
        "advantage": rng.normal(size=(4, width)),
        "reward": rng.normal(size=4),
        "group": ["a", "a", "b", "b"],
        "uid": [f"{seed}-{row}" for row in range(4)],
        "finish_reason": ["stop", "length", "stop", "stop"],
    }


def status(folder: Path) -> str:
    return str(json.loads((folder / "run.json").read_text())["status"])


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "rl_doctor"]


def train(recorder: Recorder, steps: range = range(1, 6)) -> int:
    """A loop that records as a trainer would; the number of steps that it made."""
    made = 0
    for step in steps:
        recorder.log_batch(step=step, minibatch=0, **batch(step))
        recorder.log_metrics(step, {"loss": 0.5})
        recorder.end_step(step)
        made += 1
    return made


def read(folder: Path, *columns: str) -> dict[str, np.ndarray]:
    names = columns or ("uid", "logprob", "reward")
    batches = list(open_run(folder).batches(names))
    return {name: np.concatenate([b.columns[name] for b in batches]) for name in ("step", *names)}


@pytest.mark.parametrize(
    ("types", "known"), [(("float16", "float16"), "float16"), (("float16", "float32"), None), (("float64",), "float64")]
)
def test_what_only_other_ranks_see_of_logprobs(tmp_path: Path, types: tuple[str, ...], known: str | None) -> None:
    with Recorder(tmp_path) as recorder:
        recorder.log_metrics(1, {"loss": 0.5})
        recorder.end_step(1)
        for rank, dtype in enumerate(types, 1):
            with Recorder(tmp_path, rank=rank, session=recorder.session) as other:
                other.log_batch(step=1, **batch() | {"logprob": batch()["logprob"].astype(dtype)})
    assert open_run(tmp_path).info.logprob_dtype == known
    assert json.loads((tmp_path / "run.json").read_text()).get("logprob_dtype") is None


def test_the_newest_session_says_the_type_of_logprobs(tmp_path: Path) -> None:
    for step, dtype in enumerate(("float16", "float32"), 1):
        with Recorder(tmp_path) as recorder, Recorder(tmp_path, rank=1, session=recorder.session) as other:
            recorder.end_step(step)
            other.log_batch(step=step, **batch() | {"logprob": batch()["logprob"].astype(dtype)})
    assert open_run(tmp_path).info.logprob_dtype == "float32"


def test_records_what_it_was_given(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    info = {"trainer": "custom", "algorithm": "grpo", "config": {"clip_low": 0.2, "kl_coef": 0.0}}
    with Recorder(folder, info=info) as recorder:
        for step in (1, 2):
            given = batch(step)
            returns = given["advantage"] * 2
            recorder.log_batch(
                step=step, minibatch=1, microbatch=0, returns=returns, reward_components={"fmt": [1, 0, 1, 0]}, **given
            )
            recorder.log_metrics(step, {"actor/ppo_kl": 0.01 * step, "note": "text", "nothing": None})
            recorder.log_metrics(step, {"eval_reward": 1.5}, split="eval")
    run = open_run(folder)
    assert (run.info.trainer, run.info.config.clip_low, run.info.status) == ("custom", 0.2, "complete")
    assert run.info.logprob_dtype == "float32"
    names = [
        "logprob",
        "old_logprob",
        "advantage",
        "return",
        "token_id",
        "response_mask",
        "reward",
        "reward/fmt",
        "group",
        "uid",
        "minibatch",
    ]
    batches = list(run.batches(names))
    assert [b.step for b in batches] == [1, 2]
    for got in batches:
        given = batch(got.step)
        mask = given["response_mask"]
        np.testing.assert_array_equal(np.diff(got.splits), LENGTHS)
        for name in ("logprob", "old_logprob", "advantage", "token_id", "response_mask"):
            np.testing.assert_array_equal(got.columns[name], given[name][mask].astype(got.columns[name].dtype))
        np.testing.assert_array_equal(got.columns["return"], (given["advantage"] * 2)[mask].astype(np.float32))
        np.testing.assert_array_equal(got.columns["reward"], given["reward"])
        np.testing.assert_array_equal(got.columns["reward/fmt"], [1, 0, 1, 0])
        assert got.columns["uid"].tolist() == given["uid"]
        assert got.columns["minibatch"].tolist() == [1] * 4
    logged = run.metrics()
    assert logged.series("actor/ppo_kl")[1].tolist() == [0.01, 0.02]
    assert logged.series("eval_reward", "eval")[0].tolist() == [1, 2]
    assert np.isnan(logged.series("nothing")[1]).all()
    assert "note" not in logged.names()


def test_what_was_handed_over_may_be_overwritten_at_once(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:
        given = batch(1)
        expected = given["logprob"].copy()
        recorder.log_batch(step=1, **given)
        given["logprob"][:] = 7
        given["uid"][:] = ["x"] * 4
    got = read(tmp_path / "run")
    np.testing.assert_array_equal(got["logprob"], expected[given["response_mask"]])
    assert got["uid"].tolist() == batch(1)["uid"]


def test_token_ids_can_be_left_out(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", record_token_ids=False) as recorder:
        recorder.log_batch(step=1, **batch())
    assert "token_id" not in open_run(tmp_path / "run").columns
    assert "logprob" in open_run(tmp_path / "run").columns


def test_nan_is_data(tmp_path: Path) -> None:
    given = batch()
    given["logprob"][0, 1] = np.nan
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_batch(step=1, **given)
        recorder.log_metrics(1, {"loss": float("nan")})
    assert recorder.guard.reason is None
    assert np.flatnonzero(np.isnan(read(tmp_path / "run")["logprob"])).tolist() == [1]


def test_flush_makes_an_unfinished_step_readable(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "run")
    recorder.log_batch(step=1, **batch(1))
    assert recorder.flush()
    assert read(tmp_path / "run")["step"].tolist() == [1] * 4
    recorder.close()


@pytest.mark.parametrize("ends", [(), (1, 2, 3), (2,), (3, 3), (1, 3, 2)], ids=str)
def test_steps_end_once_however_it_is_said(tmp_path: Path, ends: tuple[int, ...]) -> None:
    heard: list[int] = []
    with Recorder(tmp_path / "run", on_part=heard.extend) as recorder:
        for step in (1, 2, 3):
            recorder.log_batch(step=step, **batch(step))
        for step in ends:
            recorder.end_step(step)
    assert sorted(set(heard)) == [1, 2, 3]
    assert open_run(tmp_path / "run").facts.incomplete_steps == ()
    assert read(tmp_path / "run")["step"].tolist() == np.repeat([1, 2, 3], 4).tolist()


def test_lists_are_as_good_as_arrays(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_batch(step=1, response_mask=[[1, 1], [1, 0]], logprob=[[-1.0, -2.0], [-3.0, 0.0]], reward=[0.5, None])
    got = read(tmp_path / "run", "logprob", "reward")
    assert got["logprob"].tolist() == [-1, -2, -3]
    assert got["reward"][0] == 0.5
    assert np.isnan(got["reward"][1])


def test_on_part_hears_of_the_steps_that_each_part_completes(tmp_path: Path) -> None:
    heard: list[tuple[int, ...]] = []
    with Recorder(tmp_path / "run", on_part=heard.append) as recorder:
        train(recorder, range(1, 3))
        recorder.flush()
        recorder.log_batch(step=3, **batch(3))
    assert heard == [(1, 2), (3,)]


def test_a_second_recorder_continues_the_run_as_a_new_session(tmp_path: Path) -> None:
    sessions = []
    for steps in (range(1, 4), range(3, 6)):
        with Recorder(tmp_path / "run") as recorder:
            train(recorder, steps)
            sessions.append(recorder.session)
    assert sessions == [1, 2]
    assert read(tmp_path / "run")["step"].tolist() == np.repeat(range(1, 6), 4).tolist()


def test_leaving_by_an_exception_keeps_the_data_and_does_not_call_the_run_complete(tmp_path: Path) -> None:
    def run() -> None:
        with Recorder(tmp_path / "run") as recorder:
            recorder.log_batch(step=1, **batch(1))
            raise RuntimeError("training")

    with pytest.raises(RuntimeError, match="training"):
        run()
    assert status(tmp_path / "run") == "running"
    assert len(read(tmp_path / "run")["uid"]) == 4


def test_a_slow_writer_costs_whole_steps_which_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, convert = threading.Event(), worker.to_array

    def wait(value: Any) -> Any:
        release.wait(30)
        return convert(value)

    monkeypatch.setattr(worker, "to_array", wait)
    one = sum(np.asarray(value).nbytes for value in batch().values())
    recorder = Recorder(tmp_path / "run", queue_bytes=4 * one)
    for step in range(1, 11):
        for minibatch in range(2):
            recorder.log_batch(step=step, minibatch=minibatch, **batch(step))
    release.set()
    recorder.close()
    steps, counts = np.unique(read(tmp_path / "run")["step"], return_counts=True)
    assert recorder.guard.reason is None
    assert 0 < len(steps) < 10
    assert set(counts.tolist()) == {8}, "a step is there whole or not at all"
    assert recorder.dropped_steps == 10 - len(steps)
    assert open_run(tmp_path / "run").facts.dropped_steps == recorder.dropped_steps


def test_blocking_waits_instead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert = worker.to_array

    def slowly(value: Any) -> Any:
        time.sleep(0.001)
        return convert(value)

    monkeypatch.setattr(worker, "to_array", slowly)
    with Recorder(tmp_path / "run", blocking=True, queue_bytes=1) as recorder:
        train(recorder, range(1, 11))
    assert recorder.dropped_steps == 0
    assert len(read(tmp_path / "run")["uid"]) == 40


def test_aliases_of_columns_are_understood(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = batch(1)
    renamed = {"old_log_probs": "old_logprob", "completion_mask": "response_mask", "rewards": "reward", "advantages": "advantage"}
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_batch(step=1, **{alias: given.pop(name) for alias, name in renamed.items()}, **given)
    assert not errors(caplog)
    got, given = read(tmp_path / "run", "old_logprob", "reward"), batch(1)
    np.testing.assert_array_equal(got["old_logprob"], given["old_logprob"][given["response_mask"]])
    np.testing.assert_array_equal(got["reward"], given["reward"])


def test_a_canonical_name_wins_over_its_alias(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Recorder(tmp_path / "run") as recorder:
        for step in (1, 2):
            recorder.log_batch(step=step, global_step=7, rewards=np.zeros(4), **batch(step))
    got = read(tmp_path / "run", "reward")
    assert sorted(set(got["step"].tolist())) == [1, 2]
    np.testing.assert_array_equal(got["reward"], np.concatenate([batch(step)["reward"] for step in (1, 2)]))
    assert len(errors(caplog)) == 2, "each is said once"


def test_ids_over_prompt_and_response_keep_the_response(tmp_path: Path) -> None:
    ids = np.array([[7, 8, 1, 2, 0], [7, 0, 1, 0, 0]])
    attention = np.array([[1, 1, 1, 1, 0], [1, 0, 1, 0, 0]])
    attention[1, 1] = 1
    with Recorder(tmp_path / "run") as recorder:
        recorder.log_batch(
            step=1, input_ids=ids, attention_mask=attention, prompt_length=[2, 2], logprob=-ids.astype(np.float32), reward=[1, 0]
        )
    assert read(tmp_path / "run", "token_id")["token_id"].tolist() == [1, 2, 1]


def test_what_is_no_column_is_left_out_and_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "run"
    with Recorder(folder) as recorder:
        for step in (1, 2, 3):
            recorder.log_batch(step=step, old_logprop=np.zeros((4, 5)), foo=object(), **batch(step))
    first, second = errors(caplog)
    assert "'old_logprop'" in first
    assert "did you mean old_logprob" in first
    assert "'foo'" in second
    assert "did you mean" not in second
    assert (status(folder), len(read(folder)["uid"])) == ("complete", 12)
    assert json.loads((folder / "run.json").read_text())["unknown_columns"] == ["foo", "old_logprop"]
    pack(open_run(folder), tmp_path / "run.parquet")
    for path in (folder, tmp_path / "run.parquet"):
        assert open_run(path).facts.unknown_columns == ("foo", "old_logprop")
    with Recorder(folder) as recorder:
        recorder.log_batch(step=4, **batch(4))
    assert open_run(folder).facts.unknown_columns == ("foo", "old_logprop"), "a resumed run remembers"


@pytest.mark.parametrize(
    ("info", "words"),
    [
        ({"trainr": "custom"}, ("'trainr'", "did you mean trainer?")),
        ({"config": {"clip_lo": 0.2}}, ("'config.clip_lo'", "did you mean config.clip_low")),
        ({"kl_coef": 0.1}, ("'kl_coef'", "did you mean config.kl_coef?")),
        ({"config": {f"my_{letter}": 1 for letter in "abcdefg"}}, ("without effect", "config.my_a", "and 2 more")),
        ({"algorithm": "gpro"}, ("'gpro'", "grpo")),
        ({"trainer": "verll"}, ("'verll'", "did you mean verl?")),
        ({"config": {"loss_agg": "token_mean"}}, ("config.loss_agg", "token-mean")),
    ],
)
def test_what_the_description_says_in_vain_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, info: dict[str, Any], words: tuple[str, ...]
) -> None:
    with Recorder(tmp_path / "run", info=info) as recorder:
        recorder.log_batch(step=1, **batch(1))
    (line,) = errors(caplog)
    run = open_run(tmp_path / "run")
    notes = check(run).run.notes
    pack(run, tmp_path / "run.parquet")
    assert check(open_run(tmp_path / "run.parquet")).run.notes == notes
    for word in words:
        assert word in line
        assert any(word in note for note in notes)


def test_a_known_description_is_not_commented_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    native = {"clip_lo": 0.2, "kl_coeff": 0.1}
    info = {"trainer": "mine", "algorithm": "GRPO", "config": {"clip_low": 0.2, "native": native, "adv_norm": "group"}}
    with Recorder(tmp_path / "run", info=info) as recorder:
        recorder.log_batch(step=1, **batch(1))
    assert not errors(caplog)
    assert check(open_run(tmp_path / "run")).run.notes == ()


def test_steps_without_values_are_no_pass(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run") as recorder:
        for step in (1, 2, 3):
            recorder.log_batch(step=step, minibatch=0)
    with pytest.raises(NothingToJudgeError, match="no values recorded, only steps"):
        open_run(tmp_path / "run")
    with Recorder(tmp_path / "grouped") as recorder:
        for step in (1, 2, 3):
            recorder.log_batch(step=step, group=["a", "b"])
    assert check(open_run(tmp_path / "grouped")).exit_code() == 3


def one_error(caplog: pytest.LogCaptureFixture, *words: str) -> None:
    (message,) = errors(caplog)
    assert "\n" not in message
    assert "training goes on" in message
    for word in words:
        assert word in message


class TestFailures:
    """Each failure: the loop goes on, one log record, the run is marked as detached where that can be written."""

    def test_path_is_a_file(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        (tmp_path / "run").write_text("")
        with Recorder(tmp_path / "run") as recorder:
            assert train(recorder) == 5
            assert not recorder.flush()
        one_error(caplog, str(tmp_path / "run"))

    def test_path_cannot_be_written(self, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder("/proc/no-such-folder/run") as recorder:
            assert train(recorder) == 5
        one_error(caplog, "/proc/no-such-folder")

    def test_info_is_newer(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run", info={"schema_version": 99}) as recorder:
            assert train(recorder) == 5
        one_error(caplog, "newer")

    def test_disk_full(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(RunWriter, "write_part", full)
        recorder = Recorder(tmp_path / "run")
        assert train(recorder) == 5
        assert not recorder.flush()
        assert train(recorder) == 5
        recorder.close()
        one_error(caplog, "No space left")
        assert status(tmp_path / "run") == "detached"

    @pytest.mark.parametrize(
        "change",
        [
            {"logprob": np.zeros((3, 5))},
            {"logprob": np.zeros((4, 7))},
            {"reward": np.zeros(3)},
            {"logprob": np.zeros((4, 5, 2))},
            {"uid": ["a"]},
            {"reward": ["a", "b", "c", "d"]},
            {"reward": object()},
        ],
        ids=["rows", "width", "sequences", "dimensions", "strings", "text", "object"],
    )
    def test_wrong_shapes_and_types(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, change: dict[str, Any]) -> None:
        with Recorder(tmp_path / "run") as recorder:
            assert train(recorder) == 5
            recorder.flush()
            recorder.log_batch(step=6, **(batch(6) | change))
            assert train(recorder, range(7, 9)) == 2
        line, total = errors(caplog)
        assert next(iter(change)) in line
        assert "step 6 is left out" in line
        assert "1 step(s) were dropped" in total
        assert status(tmp_path / "run") == "complete"
        assert open_run(tmp_path / "run").facts.dropped_steps == recorder.dropped_steps == 1
        assert sorted(set(read(tmp_path / "run")["step"].tolist())) == [1, 2, 3, 4, 5, 7, 8], "the others are there"

    @pytest.mark.parametrize(
        "call",
        [
            lambda recorder: recorder.log_batch(),
            lambda recorder: recorder.log_batch(1),
            lambda recorder: recorder.log_batch(step="one"),
            lambda recorder: recorder.log_batch(step=6, reward_components=3),
            lambda recorder: recorder.log_batch(step=6, rewards=[1], total_reward=[1]),
            lambda recorder: recorder.log_metrics(1, {"loss": 1}, foo=2),
            lambda recorder: recorder.log_metrics(1, None),
            lambda recorder: recorder.end_step(),
            lambda recorder: recorder.flush(1, 2, 3),
            lambda recorder: recorder.close(1, 2),
            lambda recorder: recorder.detach(1),
        ],
        ids=range(11),
    )
    def test_wrong_calls(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, call: Callable[[Recorder], object]) -> None:
        with Recorder(tmp_path / "run") as recorder:
            train(recorder)
            recorder.flush()
            assert not call(recorder)
            assert train(recorder, range(7, 9)) == 2
        assert [line for line in errors(caplog) if "could not" in line or "step 6 is left out" in line]
        assert "Traceback" not in caplog.text
        assert status(tmp_path / "run") == "complete"
        assert sorted(set(read(tmp_path / "run")["step"].tolist())) == [1, 2, 3, 4, 5, 7, 8]

    def test_the_reason_is_kept(self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
        def full(*_: Any, **__: Any) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        for steps, folder in enumerate((tmp_path / "nothing", tmp_path / "some")):
            with Recorder(folder) as recorder:
                train(recorder, range(steps))
                recorder.flush()
                with monkeypatch.context() as patch:
                    patch.setattr(RunWriter, "write_part", full)
                    patch.setattr(RunWriter, "write_metrics", full)
                    train(recorder, range(steps, steps + 1))
                    assert not recorder.flush()
                    recorder.close()
        assert len(errors(caplog)) == 2
        with pytest.raises(NothingToJudgeError, match=r"no rows recorded .*stopped early.*No space left"):
            open_run(tmp_path / "nothing")
        (note,) = open_run(tmp_path / "some").facts.notes
        assert "stopped early" in note
        assert "No space left" in note

    def test_mixed_widths_of_micro_batches_are_no_failure(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with Recorder(tmp_path / "run") as recorder:
            for number, width in enumerate((5, 9, 6)):
                recorder.log_batch(step=1, microbatch=number, **batch(number, width))
        assert not errors(caplog)
        assert len(read(tmp_path / "run")["logprob"]) == 3 * LENGTHS.sum()

    def test_exception_in_on_part(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        def on_part(_: tuple[int, ...]) -> None:
            raise ValueError("judge\nfailed")

        with Recorder(tmp_path / "run", on_part=on_part) as recorder:
            assert train(recorder) == 5
            recorder.flush()
            assert train(recorder, range(6, 9)) == 3
        one_error(caplog, "judge failed")
        assert status(tmp_path / "run") == "detached"

    @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
    def test_writer_thread_died(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        def on_part(_: tuple[int, ...]) -> None:
            raise SystemExit

        recorder = Recorder(tmp_path / "run", on_part=on_part)
        train(recorder)
        assert not recorder.flush()
        assert train(recorder, range(6, 9)) == 3
        recorder.close()
        one_error(caplog, "thread")
        assert status(tmp_path / "run") == "detached"

    def test_logging_after_close(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        recorder = Recorder(tmp_path / "run")
        train(recorder)
        recorder.close()
        assert train(recorder, range(6, 9)) == 3
        recorder.close()
        one_error(caplog, "closed already")
        assert "stopped" not in caplog.text
        assert status(tmp_path / "run") == "complete"
        assert len(read(tmp_path / "run")["uid"]) == 20

    def test_a_forked_process_leaves_the_run_alone(self, tmp_path: Path) -> None:
        recorder = Recorder(tmp_path / "run")
        train(recorder)
        recorder.flush()
        before = sorted(path.name for path in (tmp_path / "run").iterdir())
        said = tmp_path / "said"
        child = fork()
        if child == 0:
            logging.getLogger("rl_doctor").addHandler(logging.FileHandler(said))
            made = train(recorder, range(6, 9))
            recorder.flush()
            recorder.close()
            os._exit(made)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        assert len(said.read_text().splitlines()) == 1
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == before
        train(recorder, range(6, 7))
        recorder.close()
        assert read(tmp_path / "run")["step"].tolist() == np.repeat(range(1, 7), 4).tolist()

    def test_folder_vanishes(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        folder = tmp_path / "run"
        recorder = Recorder(folder)
        train(recorder)
        recorder.flush()
        folder.rename(tmp_path / "gone")
        assert train(recorder, range(6, 9)) == 3
        recorder.flush()
        recorder.close()
        one_error(caplog, "run")
        assert not folder.exists()


def fork() -> int:
    """Fork; that there are threads is the point."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


@pytest.mark.parametrize(("world", "given", "ranks"), [(2, {}, [0, 1]), (None, {}, [None, 1]), (2, {"rank": 7}, [7, 7])])
def test_rows_have_the_rank_of_their_recorder_where_there_are_several(
    tmp_path: Path, world: int | None, given: dict[str, int], ranks: list[int | None]
) -> None:
    described = {"world_size": world}
    with Recorder(tmp_path, described) as first:
        with Recorder(tmp_path, described, rank=1, session=first.session) as second:
            second.log_batch(step=1, **batch(1), **given)
        first.log_batch(step=1, **batch(2), **given)
    (read,) = list(open_run(tmp_path).batches(["rank", "uid"]))
    missing = MISSING_INT["int32"]
    found = {str(uid)[0]: int(rank) for uid, rank in zip(read.columns["uid"], read.columns["rank"], strict=True)}
    assert found == {"2": missing if ranks[0] is None else ranks[0], "1": ranks[1]}


def test_a_recording_of_one_rank_has_no_column_of_ranks(tmp_path: Path) -> None:
    with Recorder(tmp_path, {"world_size": 1}) as recorder:
        train(recorder)
    assert "rank" not in open_run(tmp_path).columns

"""Event files that tensorboardX and TensorBoard's own writer wrote: folders, splits, resumes, torn and damaged files."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.collectors.importers.registry import Fit, find, sample
from rl_doctor.collectors.importers.tfrecords import checksums
from rl_doctor.errors import DoctorError, InputError
from rl_doctor.store.run import Run
from tests.unit.collectors.importers.writing import written

_WRITE = """
import json, time
import numpy as np
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboardX import SummaryWriter

writer = SummaryWriter("plain", flush_secs=1)
for step in range(300):
    for tag in range(5):
        writer.add_scalar(f"actor/metric_{tag}", step + tag / 8, step)
    writer.add_scalar("nan", float("nan") if step == 7 else -float("inf"), step)
    if step % 100 == 0:
        writer.add_histogram("weights", np.arange(100.0), step)
        writer.add_text("sample", "a text", step)
writer.add_scalar("late", 0.1, 2**40)
writer.close()

for name, first in (("first", 0), ("second", 8)):
    writer = SummaryWriter("resumed", filename_suffix=name)
    for step in range(first, first + 10):
        writer.add_scalar("loss", step + first / 16, step)
    writer.close()
    time.sleep(1.1)

def written(folder, summaries):
    writer = EventFileWriter(folder)
    for step, summary in summaries:
        writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
    writer.close()

written("tensors", [(step, scalar_pb("loss", step / 4)) for step in range(20)])
written("typed", [(step, Summary(value=[
    Summary.Value(tag="float", tensor={"dtype": 1, "float_val": [step / 4]}),
    Summary.Value(tag="double", tensor={"dtype": 2, "double_val": [step + 0.1]}),
    Summary.Value(tag="vector", tensor={"dtype": 1, "float_val": [1, 2], "tensor_shape": {"dim": [{"size": 2}]}}),
    Summary.Value(tag="many", simple_value=step / 2)])) for step in range(4)])
def scalar(tag, value):
    return Summary(value=[Summary.Value(tag=tag, simple_value=value)])

for split in ("train", "eval"):
    written(f"splits/{split}", [(step, scalar("loss", step + (split == "eval"))) for step in range(9)])
arguments = json.dumps({"num_generations": 4, "max_completion_length": 32, "beta": 0.5, "loss_type": "grpo", "epsilon": 0.25})
arguments = text_pb("args/text_summary", arguments)
arguments.value[0].tensor.tensor_content = b""
written("runs/host", [(0, arguments), *((step, scalar("train/loss", 1)) for step in range(3))])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tensorboard")
    written(_WRITE, made)
    return made


def series(run: Run, name: str, split: str = "train") -> tuple[list[int], list[float]]:
    steps, values = run.metrics().series(name, split)
    return steps.tolist(), values.tolist()


def opened(path: Path) -> Run | None:
    """The run; None where it is refused, in one line."""
    try:
        return open_run(path)
    except DoctorError as error:
        if "\n" in str(error):
            raise AssertionError from error
        return None


def test_plain_scalars_are_read_without_loss(folder: Path) -> None:
    run = open_run(folder / "plain")
    for tag in range(5):
        assert series(run, f"actor/metric_{tag}") == (list(range(300)), [step + tag / 8 for step in range(300)])
    _, values = run.metrics().series("nan")
    assert np.isnan(values[7])
    assert set(np.delete(values, 7)) == {-np.inf}
    assert series(run, "late") == ([2**40], [float(np.float32(0.1))])
    assert "read as event files of TensorBoard" in run.facts.notes
    assert "histograms, tables and media left out: sample/text_summary, weights" in run.facts.notes


def test_tensors_are_scalars_where_they_hold_one_number(folder: Path) -> None:
    assert series(open_run(folder / "tensors"), "loss") == (list(range(20)), [step / 4 for step in range(20)])
    run = open_run(folder / "typed")
    assert series(run, "float")[1] == [0.0, 0.25, 0.5, 0.75]
    assert series(run, "double")[1] == [0.1, 1.1, 2.1, 3.1]
    assert series(run, "many")[1] == [0.0, 0.5, 1.0, 1.5]
    assert "histograms, tables and media left out: vector" in run.facts.notes


def test_the_files_of_a_folder_are_one_run_that_was_resumed(folder: Path) -> None:
    run = open_run(folder / "resumed")
    assert series(run, "loss") == (list(range(18)), [*range(8), *(step + 0.5 for step in range(8, 18))])
    notes = "\n".join(run.facts.notes)
    assert "2 event files" in notes
    assert "go back once (last from 9 to 8), as after a restart" in notes


def test_folders_of_splits_are_one_run(folder: Path) -> None:
    run = open_run(folder / "splits")
    assert series(run, "loss")[1] == [float(step) for step in range(9)]
    assert series(run, "eval/loss", "eval")[1] == [step + 1.0 for step in range(9)]


def test_the_only_folder_is_taken_and_several_are_listed(folder: Path, tmp_path: Path) -> None:
    run = open_run(folder / "runs")
    assert series(run, "train/loss")[0] == [0, 1, 2]
    assert (run.info.trainer, run.info.config.clip_low, run.info.config.group_size) == ("trl", 0.25, 4)
    for name in ("plain", "tensors"):
        shutil.copytree(folder / name, tmp_path / name)
    with pytest.raises(InputError, match=r"^[^\n]+$") as caught:
        open_run(tmp_path)
    assert "holds event files of 2 runs" in str(caught.value)
    assert "tensors (steps 0-19)" in str(caught.value)


def test_an_event_file_by_another_name_is_recognised(folder: Path, tmp_path: Path) -> None:
    (file,) = (folder / "tensors").iterdir()
    shutil.copy(file, tmp_path / "log")
    seen = sample(tmp_path / "log")
    found = find(seen)
    assert found is not None
    assert (found.name, found.recognises(seen)) == ("tensorboard", Fit.SIGNATURE)
    assert series(open_run(tmp_path / "log"), "loss")[0][-1] == 19


def test_a_file_cut_anywhere_gives_the_events_before_the_cut(folder: Path, tmp_path: Path) -> None:
    (file,) = (folder / "resumed").glob("*first")
    data = file.read_bytes()
    counts: list[int] = []
    for cut in range(len(data)):
        path = tmp_path / "cut"
        path.write_bytes(data[:cut])
        run = opened(path)
        if run is None:
            assert not counts
            continue
        steps, values = series(run, "loss")
        assert steps == list(range(len(steps)))
        assert values == [float(step) for step in steps]
        counts.append(len(steps))
    assert counts == sorted(counts)
    assert counts[-1] == 9
    assert any("ends within an event" in note for note in open_run(path).facts.notes)


def test_a_flipped_byte_is_told_and_nothing_wrong_is_read(folder: Path, tmp_path: Path) -> None:
    (file,) = (folder / "resumed").glob("*first")
    data = file.read_bytes()
    for at in range(60, len(data)):
        path = tmp_path / "flipped"
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :])
        run = opened(path)
        if run is None:
            continue
        steps, values = series(run, "loss")
        assert values == [float(step) for step in steps]
        assert len(steps) < 10
        assert any("damaged" in note or "ends within" in note for note in run.facts.notes)


def test_events_are_as_tensorboard_itself_reads_them(folder: Path) -> None:
    script = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
read = {}
for name in ("plain", "tensors"):
    events = EventAccumulator(name, size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    for tag in events.Tags()["scalars"]:
        read[name + ":" + tag] = [[one.step, one.value] for one in events.Scalars(tag)]
    for tag in events.Tags()["tensors"]:
        if tag == "loss":
            read[name + ":" + tag] = [[one.step, float(one.tensor_proto.float_val[0])] for one in events.Tensors(tag)]
print(json.dumps(read))
"""

    theirs = json.loads(written(script, folder).splitlines()[-1])
    assert len(theirs) == 8
    for name, points in theirs.items():
        run, _, tag = name.partition(":")
        steps, values = open_run(folder / run).metrics().series(tag)
        np.testing.assert_array_equal(steps, [step for step, _ in points])
        np.testing.assert_array_equal(values, [value for _, value in points])


def test_checksums_are_those_of_the_standard() -> None:
    text = b"123456789" + bytes(32)
    view = np.frombuffer(text, np.uint8)
    plain = np.array([0xE3069283, 0x8A9136AA, 0], np.uint32)  # check values of CRC-32C: the digits, 32 zeros, nothing
    masked = ((plain >> 15) | (plain << 17)) + np.uint32(0xA282EAD8)
    np.testing.assert_array_equal(checksums(view, np.array([0, 9, 5]), np.array([9, 32, 0])), masked)


def test_any_bytes_are_refused_in_one_line(folder: Path, tmp_path: Path) -> None:
    (file,) = (folder / "tensors").iterdir()
    head = file.read_bytes()[:64]
    generator = np.random.default_rng(3)
    for size in (0, 1, 11, 500, 9000):
        path = tmp_path / "x"
        path.write_bytes(head[:40] + generator.bytes(size))
        assert opened(path) is None


def test_an_empty_file_beside_others_does_no_harm(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "tensors", tmp_path / "run")
    (tmp_path / "run" / "events.out.tfevents.1.host.2.0").write_bytes(b"")
    run = open_run(tmp_path / "run")
    assert series(run, "loss")[0][-1] == 19
    assert any(note.endswith(": empty") for note in run.facts.notes)

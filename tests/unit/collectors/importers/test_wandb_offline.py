"""Offline runs that wandb wrote: whole, torn, damaged, killed, several in a folder, with one step axis and with more."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.collectors.importers import wandb_records
from rl_doctor.collectors.importers.registry import Fit, find, sample
from rl_doctor.collectors.importers.wandb_records import Framing, Recorded, frames
from rl_doctor.errors import DoctorError, InputError
from rl_doctor.store.run import Run
from tests.unit.collectors.importers.writing import environment, written

_HEAD = """
import math, wandb
def start(folder, **more):
    settings = wandb.Settings(console="off", x_disable_stats=True, x_disable_meta=True)
    return wandb.init(mode="offline", dir=folder, project="p", settings=settings, **more)
"""
_TRL = """
import os; os.makedirs("trl")
run = start("trl", name="first try", id="trlrun", config={"num_generations": 8, "max_completion_length": 256, "beta": 0.04,
    "loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "scale_rewards": "group", "temperature": 0.9, "top_p": 1.0,
    "top_k": 0, "num_iterations": 1, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_grad_norm": 1.0})
run.define_metric("train/global_step")
run.define_metric("*", step_metric="train/global_step", step_sync=True)
for step in range(1, 31):
    for part in range(3):
        run.log({"profiling/Time taken: generate": 0.25 * part})
    run.log({"train/loss": float(step), "train/kl": math.nan if step == 4 else 0.1 * step, "train/inf": -math.inf,
             "nested": {"inner": {"deep": step * 1.5}}, "note": "text", "flag": True, "one": [4.5], "list": [1, 2],
             "train/global_step": step})
    if step % 10 == 0:
        run.log({"eval/reward": step / 10, "train/global_step": step})
run.log({"h": wandb.Histogram([1, 2, 3]), "t": wandb.Table(columns=["a"], data=[[1]]), "train/global_step": 30})
run.config.update({"late": {"added": 1}})
run.finish()
"""
_VERL = """
os.makedirs("verl")
run = start("verl", id="verlrun", config={
    "algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": True, "use_kl_in_reward": False, "gamma": 1.0, "lam": 1.0},
    "data": {"train_batch_size": 64, "max_response_length": 1024},
    "actor_rollout_ref": {"actor": {"clip_ratio": 0.2, "clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0,
        "use_kl_loss": True, "kl_loss_coef": 0.001, "kl_loss_type": "low_var_kl", "loss_agg_mode": "token-mean", "ppo_epochs": 1,
        "ppo_mini_batch_size": 16, "grad_clip": 1.0, "entropy_coeff": 0}, "rollout": {"n": 8, "temperature": 1.0, "top_k": -1}}})
run.log({"val-core/math/acc/mean@1": 0.25}, step=0)
for step in range(1, 201):
    values = {f"actor/metric_{k}": step + k / 64 for k in range(40)}
    run.log({**values, "training/global_step": step}, step=step)
run.finish(exit_code=3)
"""
_AXES = """
os.makedirs("axes")
run = start("axes", id="axesrun")
for prefix in ("train", "rollout"):
    run.define_metric(f"{prefix}/step")
    run.define_metric(f"{prefix}/*", step_metric=f"{prefix}/step")
run.define_metric("eval/epoch")
run.define_metric("eval/*", step_metric="eval/epoch")
for step in range(40):
    run.log({"rollout/raw_reward": step / 8, "rollout/step": step})
    run.log({"train/pg_loss": -1.0 - step, "train/step": step})
    if step % 10 == 9:
        run.log({"eval/accuracy": step / 100, "eval/epoch": step // 10})
run.finish()
"""
_RESUMED = """
for first in (1, 11):
    run = start("many", id="sameid")
    for step in range(first, first + 15):
        run.log({"loss": step + first / 100}, step=step)
    run.finish()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("wandb")
    written(_HEAD + _TRL + _VERL + _AXES + 'os.makedirs("many")' + _RESUMED, made)
    return made


def file_of(folder: Path, name: str) -> Path:
    (found,) = (folder / name / "wandb").glob("offline-run-*/*.wandb")
    return found


def opened(path: Path) -> Run | None:
    """The run; None where it is refused, in one line."""
    try:
        return open_run(path)
    except DoctorError as error:
        if "\n" in str(error):
            raise AssertionError from error
        return None


def series(run: Run, name: str, split: str = "train") -> tuple[list[int], list[float]]:
    steps, values = run.metrics().series(name, split)
    return steps.tolist(), values.tolist()


def test_a_run_of_trl_is_read_whole(folder: Path) -> None:
    run = open_run(file_of(folder, "trl"))
    assert series(run, "train/loss") == (list(range(1, 31)), [float(step) for step in range(1, 31)])
    steps, kl = run.metrics().series("train/kl")
    assert steps.tolist() == list(range(1, 31))
    np.testing.assert_array_equal(kl, [math.nan if step == 4 else 0.1 * step for step in range(1, 31)])
    assert series(run, "eval/reward", "eval") == ([10, 20, 30], [1.0, 2.0, 3.0])
    assert set(series(run, "train/inf")[1]) == {-math.inf}
    assert series(run, "nested.inner.deep")[1][:2] == [1.5, 3.0]
    assert set(series(run, "flag")[1]) == {1.0}
    assert series(run, "one")[1][0] == 4.5
    assert not {"_step", "_runtime", "_timestamp", "train/global_step", "list", "note"} & set(run.metrics().names())


def test_what_is_timed_between_steps_is_at_the_step_before(folder: Path) -> None:
    steps, values = series(open_run(file_of(folder, "trl")), "profiling/Time taken: generate")
    assert steps == list(range(30))  # wandb itself puts 0 where there was no step yet
    assert set(values) == {0.5}


def test_media_and_the_name_of_the_run_are_told(folder: Path) -> None:
    run = open_run(file_of(folder, "trl"))
    notes = "\n".join(run.facts.notes)
    assert "read as an offline run of wandb" in notes
    assert "run 'first try' (trlrun) of project p" in notes
    assert "media left out: h, t" in notes
    assert "no numbers, left out: list, note" in notes
    assert run.info.run_id == "trlrun"


def test_the_configuration_of_trl_is_translated(folder: Path) -> None:
    info = open_run(file_of(folder, "trl")).info
    config = info.config
    assert (info.trainer, info.algorithm) == ("trl", "grpo")
    assert (config.clip_low, config.clip_high, config.kl_coef, config.group_size) == (0.2, 0.28, 0.04, 8)
    assert (config.loss_agg, config.adv_norm, config.max_response_length, config.minibatches) == ("token-mean", "group", 256, 2)
    assert config.native is not None
    assert config.native["late"] == {"added": 1}
    assert "_wandb" not in config.native


def test_the_configuration_of_verl_is_translated(folder: Path) -> None:
    info = open_run(file_of(folder, "verl")).info
    config = info.config
    assert (info.trainer, info.algorithm) == ("verl", "grpo")
    assert (config.clip_low, config.clip_high, config.dual_clip) == (0.2, 0.28, 3.0)
    assert (config.kl_coef, config.kl_estimator, config.kl_in_reward) == (0.001, "k3", False)
    assert (config.adv_estimator, config.adv_norm, config.group_size, config.minibatches) == ("grpo", "group", 8, 4)
    assert (config.max_response_length, config.top_k, config.entropy_coef) == (1024, -1, 0.0)


def test_a_validation_before_the_training_keeps_its_step(folder: Path) -> None:
    run = open_run(file_of(folder, "verl"))
    assert series(run, "val-core/math/acc/mean@1", "eval") == ([0], [0.25])
    assert series(run, "actor/metric_3") == (list(range(1, 201)), [step + 3 / 64 for step in range(1, 201)])
    assert "the run ended with exit code 3" in run.facts.notes


def test_axes_that_count_the_same_stand_side_by_side_and_others_follow_the_step(folder: Path) -> None:
    run = open_run(file_of(folder, "axes"))
    assert series(run, "train/pg_loss") == (list(range(40)), [-1.0 - step for step in range(40)])
    assert series(run, "rollout/raw_reward") == (list(range(40)), [step / 8 for step in range(40)])
    assert series(run, "eval/accuracy", "eval") == ([9, 19, 29, 39], [0.09, 0.19, 0.29, 0.39])


def test_every_value_is_as_wandb_itself_reads_it(folder: Path) -> None:
    for name in ("trl", "axes"):
        file = file_of(folder, name)
        shown = subprocess.run(
            [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)], env=environment(folder), capture_output=True,
            text=True, check=True, timeout=120,
        ).stdout  # fmt: skip
        records = [json.loads(line) for line in shown.splitlines()]
        theirs = [record["history"]["item"] for record in records if record["type"] == "history"]
        ours: list[dict[str, object]] = [{} for _ in theirs]
        recorded = Recorded()
        for record in frames(file.read_bytes(), Framing()):
            recorded.add(record)
        for key, (rows, values) in recorded.columns.take().items():
            for row, value in zip(rows.tolist(), values.tolist(), strict=True):
                ours[row][key] = value
        assert len(theirs) == recorded.columns.rows
        for mine, item in zip(ours, theirs, strict=True):
            for key, value in item.items():
                if key.startswith(("h.", "t.")) or key in {"note", "list"}:
                    assert key not in mine
                else:
                    np.testing.assert_equal(mine[key], 4.5 if key == "one" else float(value))


@pytest.mark.parametrize("part", ["file", "run folder", "folder of runs"])
def test_file_run_folder_and_folder_of_runs_are_the_same(folder: Path, part: str) -> None:
    file = file_of(folder, "axes")
    path = {"file": file, "run folder": file.parent, "folder of runs": file.parent.parent}[part]
    found = find(sample(path))
    assert found is not None
    assert found.name == "wandb"
    assert sorted(open_run(path).metrics().records()) == sorted(open_run(file).metrics().records())


def test_several_runs_are_listed_with_their_steps(folder: Path, tmp_path: Path) -> None:
    for name in ("trl", "axes"):
        source = file_of(folder, name).parent
        shutil.copytree(source, tmp_path / source.name)
    (tmp_path / "latest-run").symlink_to(file_of(folder, "axes").parent.name)
    with pytest.raises(InputError) as caught:
        open_run(tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert "holds 2 runs" in message
    assert "trlrun (to step 30)" in message
    assert "axesrun (to step 39, latest-run)" in message
    assert series(open_run(tmp_path / "latest-run"), "train/pg_loss")[0][-1] == 39


def test_a_run_that_logged_nothing_does_not_hide_the_only_one_that_did(folder: Path, tmp_path: Path) -> None:
    source = file_of(folder, "axes").parent
    shutil.copytree(source, tmp_path / source.name)
    empty = tmp_path / "offline-run-20200101_000000-nothing"
    empty.mkdir()
    (empty / "run-nothing.wandb").write_bytes(file_of(folder, "axes").read_bytes()[:7])
    run = open_run(tmp_path)
    assert series(run, "train/pg_loss")[0][-1] == 39
    assert "axesrun is the only one of 2 runs that logged something" in run.facts.notes


def test_folders_of_the_same_id_are_one_run_that_was_resumed(folder: Path) -> None:
    run = open_run(folder / "many" / "wandb")
    steps, values = series(run, "loss")
    assert steps == list(range(1, 26))
    assert values == [step + (0.01 if step < 11 else 0.11) for step in steps]
    notes = "\n".join(run.facts.notes)
    assert "resumed: read from 2 files" in notes
    assert "as after a restart" in notes


def test_a_file_cut_anywhere_gives_the_rows_before_the_cut(folder: Path, tmp_path: Path) -> None:
    data = file_of(folder, "verl").read_bytes()
    assert len(data) > 4 * 32768
    whole = open_run(file_of(folder, "verl")).metrics().points
    cuts = {int(cut) for cut in np.linspace(0, len(data) - 1, 60)}
    for block in range(32768, len(data), 32768):
        cuts |= {block + offset for offset in (-8, -7, -1, 0, 1, 6, 7, 8)}
    rows: list[int] = []
    for cut in sorted(cuts):
        path = tmp_path / "cut.wandb"
        path.write_bytes(data[:cut])
        run = opened(path)
        if run is None:
            assert not rows
            continue
        points = run.metrics().points
        for key, (steps, values) in points.items():
            np.testing.assert_array_equal(steps, whole[key][0][: len(steps)])
            np.testing.assert_array_equal(values, whole[key][1][: len(steps)])
        rows.append(max(len(steps) for steps, _ in points.values()))
        assert any("end of the run is not in it" in note for note in run.facts.notes)
    assert rows == sorted(rows)
    assert rows[-1] == 200


def test_a_flipped_byte_is_told_and_nothing_wrong_is_read(folder: Path, tmp_path: Path) -> None:
    data = file_of(folder, "verl").read_bytes()
    whole = open_run(file_of(folder, "verl")).metrics().points
    generator = np.random.default_rng(5)
    for at in generator.integers(7, len(data), 40):
        path = tmp_path / "flipped.wandb"
        path.write_bytes(data[:at] + bytes([data[at] ^ (1 << int(generator.integers(8)))]) + data[at + 1 :])
        run = opened(path)
        if run is None:
            continue
        assert any("damaged at 1 place" in note or "ends within a record" in note for note in run.facts.notes)
        for key, (steps, values) in run.metrics().points.items():
            known = dict(zip(*(part.tolist() for part in whole[key]), strict=True))
            assert values.tolist() == [known[step] for step in steps.tolist()]


def test_any_bytes_after_the_magic_are_refused_in_one_line(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    for size in (4, 7, 8, 40, 5000, 70000):
        path = tmp_path / "x.wandb"
        path.write_bytes(b":W&B" + generator.bytes(size))
        assert find(sample(path)) is not None
        with pytest.raises(DoctorError, match=r"^[^\n]+$"):
            open_run(path)


def test_a_record_with_a_sound_checksum_that_is_no_record_is_left_out() -> None:
    recorded = Recorded()
    for body in (b"\x12\x03\x0a\x05\x12", b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", b"\x07", b"\xff"):
        recorded.add(body)
    assert recorded.unreadable == 4
    assert recorded.columns.rows == 0


@pytest.mark.parametrize("number", [b"\x35\x00\x00\x00\x00", b"\x32\x03\x00\x00\x00", b"\x32\x00"])
def test_a_number_of_another_size_than_a_double_is_no_record(number: bytes) -> None:
    item = b"\x12\x01d" + number
    history = b"\x0a" + bytes([len(item)]) + item
    with pytest.raises(ValueError, match="a number of"):
        wandb_records.history_row(history, wandb_records.Heads())
    recorded = Recorded()
    recorded.add(b"\x12" + bytes([len(history)]) + history)
    assert recorded.unreadable == 1


def test_typed_values_are_read_like_json() -> None:
    def item(name: bytes, value: bytes) -> bytes:
        body = b"\x12" + bytes([len(name)]) + name + value
        return b"\x0a" + bytes([len(body)]) + body

    body = item(b"i", b"\x28\x05") + item(b"d", b"\x31" + np.float64(2.5).tobytes()) + item(b"b", b"\x20\x01")
    body += item(b"s", b"\x3a\x01x") + item(b"j", b"\x42\x04[-7]")
    values, media = wandb_records.history_row(body, wandb_records.Heads())
    assert values == {"i": -3, "d": 2.5, "b": True, "s": "x", "j": [-7]}
    assert not media


def test_a_run_that_was_killed_is_read_up_to_there(tmp_path: Path) -> None:
    script = _HEAD + (
        'run = start(".", id="killed")\n'
        "for step in range(1, 301): run.log({f'm{k}': step + k for k in range(20)}, step=step)\n"
        "print('logged', flush=True)\nimport time\ntime.sleep(300)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", script], cwd=tmp_path, env=environment(tmp_path), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "logged\n"
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=60)
    (file,) = (tmp_path / "wandb").glob("offline-run-*/*.wandb")
    size = -1
    while file.stat().st_size != size:
        size = file.stat().st_size
        time.sleep(1.0)
    run = open_run(tmp_path / "wandb")
    steps, values = series(run, "m7")
    assert 100 < len(steps) <= 300
    assert steps == list(range(1, len(steps) + 1))
    assert values == [step + 7.0 for step in steps]
    assert any("was killed" in note for note in run.facts.notes)


def test_folders_that_only_look_like_runs(tmp_path: Path) -> None:
    (tmp_path / "run-20240101_000000-abc").mkdir()
    with pytest.raises(InputError, match=r"without a \.wandb file"):
        open_run(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    found = find(sample(tmp_path / "other"))
    assert found is None or found.recognises(sample(tmp_path / "other")) < Fit.SIGNATURE

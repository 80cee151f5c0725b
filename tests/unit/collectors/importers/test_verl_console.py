"""verl's console, in its forms."""

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor.collectors.importers import verl_console
from rl_doctor.collectors.importers.registry import Fit
from tests.unit.collectors.importers.texts import LOGGED, bar, importer_of, opened, values

RAY = "\x1b[36m(TaskRunner pid=123, ip=10.0.0.1)\x1b[0m "


def test_one_line_per_step_between_prints(tmp_path: Path) -> None:
    text = (
        "\"Initial validation metrics: {'val-core/openai/gsm8k/reward/mean@1': 0.1}\"\n"
        "step:0 - val-core/openai/gsm8k/reward/mean@1:0.100\nepoch 0, step 1\n[Ground Truth]\n  Total: -1\n"
        "step:1 - actor/pg_loss:-0.375 - actor/ppo_kl:-0.000 - critic/score/mean:0.094 - timing_s/step:28.965\n"
        "[prompt] what is step:2 - of this: 7\n"
        "step:2 - actor/pg_loss:1.5e-05 - actor/ppo_kl:nan - critic/score/mean:-3.000 - critic/lr(1e-4):0.100 - x:None\n"
    )
    run = opened(tmp_path, text)
    assert values(run, "val-core/openai/gsm8k/reward/mean@1", "eval") == {0: 0.1}
    assert values(run, "actor/pg_loss") == {1: -0.375, 2: 1.5e-05}
    assert values(run, "critic/score/mean") == {1: 0.094, 2: -3.0}
    assert math.copysign(1.0, values(run, "actor/ppo_kl")[1]) == -1.0
    assert math.isnan(values(run, "actor/ppo_kl")[2])
    assert values(run, "critic/lr(1e-4)") == {2: 0.1}
    assert run.info.trainer == "verl"
    assert len(run.facts.notes) == 1


def test_prefixes_colours_numpy_and_what_is_glued_on(tmp_path: Path) -> None:
    text = (
        f"{RAY}step:1 - actor/grad_norm:np.float64(0.25) - actor/lr:np.float32(1e-06) - n:np.int64(3)\n"
        f"(main_task pid=51520) step:2 - actor/grad_norm:np.float64(nan) - actor/lr:1e-06 [repeated 2x across cluster]\n"
        f"step:3 - actor/grad_norm:-0.5{bar(3, 100, 'Training Progress').lstrip()}\n"
        f"2025-01-02 03:04:05,678 - INFO - step:4 - val-core/a - b/mean@1:0.5 - actor/grad_norm:inf\r\n"
    )
    run = opened(tmp_path, text)
    found = values(run, "actor/grad_norm")
    assert (found[1], found[3], found[4]) == (0.25, -0.5, math.inf)
    assert math.isnan(found[2])
    assert values(run, "actor/lr") == {1: 1e-06, 2: 1e-06}
    assert values(run, "n") == {1: 3.0}
    assert values(run, "val-core/a - b/mean@1", "eval") == {4: 0.5}


def test_a_metric_to_a_line_with_others_between(tmp_path: Path) -> None:
    text = ""
    for step in (1, 2):
        text += f"{RAY}step:{step}\n{RAY} - global_seqlen/min:255486\n(WorkerDict pid=9) loading: 3/4\n"
        text += f"{RAY} - actor/entropy:np.float64({step / 4})\n{RAY} - critic/score/mean:-{step}e-05\n"
    run = opened(tmp_path, text)
    assert values(run, "actor/entropy") == {1: 0.25, 2: 0.5}
    assert values(run, "critic/score/mean") == {1: -1e-05, 2: -2e-05}
    assert set(run.metrics().names()) == {"global_seqlen/min", "actor/entropy", "critic/score/mean"}


def test_dictionaries_that_were_printed_prettily(tmp_path: Path) -> None:
    text = "".join(
        f"{RAY}{{'actor/entropy': np.float64({step / 4}),\n{RAY} 'actor/lr': 0.5,\n{RAY} 'training/global_step': {step}}}\n"
        for step in (7, 8)
    )
    run = opened(tmp_path, text)
    assert values(run, "actor/entropy") == {7: 1.75, 8: 2.0}
    assert importer_of(tmp_path, text) == ("verl-console", Fit.SHAPE)


def test_quoted_names_below_a_step(tmp_path: Path) -> None:
    text = "".join(
        f"{RAY}step={step} - training/global_step:{step} - training/epoch:0\n{RAY}'critic/score/mean': {step / 10}\n"
        f"{RAY}'actor/lr': 1e-06\n"
        for step in (1, 2)
    )
    assert values(opened(tmp_path, text), "critic/score/mean") == {1: 0.1, 2: 0.2}


LINE = (
    "(main_task pid=51520) step:5 - global_seqlen/min:992132.000 - prompt_length/min:52.000 - actor/ppo_kl:-0.002 - "
    "timing_s/gen:262.359 - actor/lr:1e-06 - critic/score/mean:0.5"
)
WHOLE = {"global_seqlen/min": 992132.0, "prompt_length/min": 52.0, "actor/ppo_kl": -0.002, "timing_s/gen": 262.359,
         "actor/lr": 1e-06, "critic/score/mean": 0.5}  # fmt: skip


@pytest.mark.parametrize("width", [64, 70, 80, 90, 100, 120])
def test_lines_that_a_terminal_wrapped_are_joined(tmp_path: Path, width: int) -> None:
    wrapped = "\n".join(LINE[at : at + width] for at in range(0, len(LINE), width))
    run = opened(tmp_path, f"{wrapped}\n(main_task pid=51520) epoch 0, step 6\n{LINE.replace('step:5', 'step:6')}\n")
    assert {name: values(run, name).get(5) for name in WHOLE} == WHOLE
    assert set(run.metrics().names()) == set(WHOLE)
    assert any("wrapped" in note for note in run.facts.notes)


def test_a_step_that_comes_again_counts_as_a_restart(tmp_path: Path) -> None:
    text = "".join(
        f"step:{step} - actor/lr:{value} - critic/score/mean:0.5\n" for step, value in [(1, 1), (2, 2), (3, 3), (2, 20), (3, 30)]
    )
    run = opened(tmp_path, text)
    assert values(run, "actor/lr") == {1: 1.0, 2: 20.0, 3: 30.0}
    assert any("as after a restart" in note for note in run.facts.notes)


def test_validation_at_the_step_of_the_training_is_another_record(tmp_path: Path) -> None:
    run = opened(tmp_path, "step:10 - actor/lr:1e-06 - critic/score/mean:0.5\nstep:10 - val-core/aime/acc/mean@32:0.08\n")
    assert values(run, "actor/lr") == {10: 1e-06}
    assert values(run, "val-core/aime/acc/mean@32", "eval") == {10: 0.08}


@pytest.mark.parametrize("text", ["step:1 - one two\n", "next step:3\n", "step:1 - 2 - 3\n", "a/step:1 - b:2\n"])
def test_what_is_no_record(tmp_path: Path, text: str) -> None:
    assert importer_of(tmp_path, text * 3)[0] is None


NAMES = st.text("abcxyz_/@0", min_size=1, max_size=12).map(lambda name: f"actor/{name}")


@given(rows=st.lists(st.dictionaries(NAMES, LOGGED, min_size=1, max_size=6), min_size=1, max_size=8))
def test_what_the_logger_prints_is_read_back(tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, float]]) -> None:
    lines = [f"step:{step} - " + " - ".join(f"{name}:{value!r}" for name, value in row.items()) for step, row in enumerate(rows)]
    run = opened(tmp_path_factory.mktemp("verl"), "\n".join(lines))
    for step, row in enumerate(rows):
        for name, value in row.items():
            assert repr(values(run, name)[step]) == repr(value)


VALUE = st.sampled_from(["0.5", "-1.25e-05", "nan", "inf", "7", "None", "True", "np.float64(0.25)", "1.5.2", "-", "1e400"])
ONE_LINE = st.tuples(VALUE, VALUE).map(lambda two: "step:{}" + f" - actor/a:{two[0]} - actor/b 1:{two[1]}\n")
LISTED = st.tuples(VALUE, VALUE).map(lambda two: "step:{}\n" + f" - actor/a:{two[0]}\n - critic/b:{two[1]}\n")
BETWEEN = st.sampled_from([
    "epoch 0, step 1\n", "\n", "(WorkerDict pid=9) loading: 3/4\n", "step:1e400 - actor/a:1\n", "25 - actor/c:1 - actor/d:2\n",
    " - actor/late:0.5\n", "'actor/quoted': 0.5,\n", "75\n", f"{bar(3, 100, 'Training')}\n", "2025-01-02 - INFO - saved\n",
    "step:9\n",
])  # fmt: skip


@given(st.data())
def test_records_that_are_read_at_a_glance_are_read_as_line_by_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    common = st.sampled_from([data.draw(ONE_LINE), data.draw(LISTED)])
    parts = data.draw(st.lists(common | common | ONE_LINE | LISTED | BETWEEN, min_size=1, max_size=30))
    prefix = data.draw(st.sampled_from(["", RAY]))
    text = "".join(prefix + line for step, part in enumerate(parts) for line in part.replace("{}", str(step)).splitlines(True))
    path = tmp_path_factory.mktemp("verl") / "log"
    path.write_text(text)
    found = list(verl_console._Reader().rows(path))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verl_console, "_MOST_KINDS", 0)
        assert repr(list(verl_console._Reader().rows(path))) == repr(found)

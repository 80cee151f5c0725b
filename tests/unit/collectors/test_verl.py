"""verl's plugin without verl: how it waits for modules, where it records to, and what it tells workers."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
import threading
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl_doctor import open_run
from rl_doctor.collectors import verl_driver, verl_end, verl_loop
from rl_doctor.collectors.plugin import OPTIONS, RUN_VARIABLE, recorder_options
from rl_doctor.collectors.verl_driver import Driver
from rl_doctor.collectors.verl_loop import Loop
from rl_doctor.collectors.verl_rows import Lengths, sequence_columns
from rl_doctor.collectors.verl_run import Entry, run_path
from rl_doctor.schema import MISSING_INT, RunInfo
from rl_doctor.store.rows import Rows, splits_of
from rl_doctor.store.writer import RunWriter

ROOT = Path(__file__).parents[3]


def package(folder: Path, version: str = "0.9.1") -> None:
    """A package of the name that has the modules that are patched."""
    files = {
        "verl/__init__.py": f"__version__ = {version!r}\nimport rl_doctor.collectors.verl\n",
        "verl/utils/__init__.py": "",
        "verl/utils/tracking.py": (
            "class Tracking:\n"
            "    supported_backend = ['file']\n"
            "    def __init__(self, project_name, experiment_name, default_backend='file', config=None):\n"
            "        assert default_backend in self.supported_backend\n"
            "    def log(self, data, step, backend=None):\n"
            "        print('logged', step)\n"
        ),
        "verl/workers/__init__.py": "",
        "verl/workers/engine_workers.py": "raise ImportError('no accelerator')\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def run(folder: Path, code: str, **environment: str) -> tuple[str, str]:
    path = {"PYTHONPATH": f"{folder}:{ROOT}", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], env=path | environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_module_is_patched_once_it_is_imported(tmp_path: Path) -> None:
    package(tmp_path)
    out, err = run(
        tmp_path,
        "import verl, sys, inspect\n"
        "print('verl.utils.tracking' in sys.modules, 'numpy' in sys.modules)\n"
        "from verl.utils import tracking\n"
        "print(tracking.Tracking.supported_backend, tracking.__spec__.loader.__class__.__name__)\n"
        "print(inspect.getsource(tracking)[:14])\n"
        "tracking.Tracking('a', 'b', 'rl_doctor').log({}, 3)\n",
    )
    assert out.splitlines() == ["False False", "['file', 'rl_doctor'] SourceFileLoader", "class Tracking", "logged 3"]
    assert not err


def test_a_module_that_cannot_be_imported_fails_as_it_would(tmp_path: Path) -> None:
    package(tmp_path)
    code = (
        "import verl\n"
        "for _ in range(2):\n"
        "    try:\n        import verl.workers.engine_workers\n"
        "    except ImportError as error:\n        print(error)\n"
    )
    assert run(tmp_path, code) == ("no accelerator\nno accelerator\n", "")


def test_another_version_is_left_alone(tmp_path: Path) -> None:
    package(tmp_path, "0.10.0")
    code = "import verl.utils.tracking as t; print(t.Tracking.supported_backend)"
    assert run(tmp_path, code) == ("['file']\n", "")
    out, err = run(tmp_path, code, RL_DOCTOR_RUN=str(tmp_path / "run"))
    assert out == "['file']\n"
    assert err.count("\n") == 1
    assert "records nothing (training goes on): verl 0.10.0 is installed; supported are verl >= 0.9, < 0.10" in err


def test_importing_the_plugin_twice_patches_once() -> None:
    plugin = importlib.import_module("rl_doctor.collectors.verl")
    before = list(sys.meta_path)
    plugin.install()
    assert sys.meta_path == before


@pytest.mark.parametrize(
    ("trainer", "expected"),
    [
        ({"logger": ["console", "rl_doctor"], "default_local_dir": "/a/b"}, "/a/b/rl_doctor"),
        ({"logger": "rl_doctor", "default_local_dir": "/a/b"}, "/a/b/rl_doctor"),
        ({"logger": ["console"], "default_local_dir": "/a/b"}, None),
        ({"logger": None}, None),
    ],
)
def test_the_logger_list_asks_for_a_recording(trainer: dict[str, Any], expected: str | None, monkeypatch: Any) -> None:
    monkeypatch.delenv("RL_DOCTOR_RUN", raising=False)
    assert run_path({"trainer": trainer}) == expected
    assert run_path(None) is None
    monkeypatch.setenv("RL_DOCTOR_RUN", "/c")
    assert run_path({"trainer": trainer}) == "/c"


def test_a_relative_path_becomes_absolute(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RL_DOCTOR_RUN", "run")
    assert run_path(None) == str(tmp_path / "run")


def test_options_from_the_environment(monkeypatch: Any) -> None:
    assert recorder_options() == {}
    monkeypatch.setenv("RL_DOCTOR_TOKEN_IDS", "0")
    monkeypatch.setenv("RL_DOCTOR_SAMPLING", "0.25")
    monkeypatch.setenv("RL_DOCTOR_QUOTA", "0.05")
    assert recorder_options() == {"record_token_ids": False, "sampling": 0.25, "quota": 0.05}


class Fields(dict[str, Any]):
    """A batch as far as sequence columns look at it: lists with one entry per row."""

    def __len__(self) -> int:
        return 3


def test_versions_are_those_of_the_rows_or_of_the_batch() -> None:
    lengths = Lengths(np.array([1, 2, 3]), np.array([4, 5, 6]))
    names = {"uid": ["a", "a", "b"], "session_id": [0, 1, 0], "max_global_steps": [7, 7, 7], "min_global_steps": [5, 6, None]}
    found = sequence_columns(Fields(names), lengths, None, 0)
    assert found["weight_version"].tolist() == [7, 7, 7]
    assert found["first_weight_version"].tolist() == [5, 6, MISSING_INT["int64"]]
    extra = [{"max_global_steps": 9, "min_global_steps": 8}, {"max_global_steps": 9}, None]
    found = sequence_columns(Fields(names | {"extra_fields": extra}), lengths, None, 0)
    assert found["weight_version"].tolist() == [9, 9, MISSING_INT["int64"]]
    assert found["first_weight_version"].tolist() == [8, MISSING_INT["int64"], MISSING_INT["int64"]]
    unknown = sequence_columns(Fields({name: names[name] for name in ("uid", "session_id")}), lengths, None, 0)
    assert not {"weight_version", "first_weight_version"} & set(unknown)


def meta(keys: list[str], tags: list[dict[str, Any]]) -> SimpleNamespace:
    return SimpleNamespace(keys=keys, tags=tags, extra_info={})


@pytest.fixture
def trainer(tmp_path: Path) -> SimpleNamespace:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 50, "eos_token_id": [1, 2]}))
    config = {
        "actor_rollout_ref": {"model": {"path": str(tmp_path)}, "actor": {"clip_ratio": 0.2}},
        "trainer": {"logger": ["rl_doctor"], "default_local_dir": str(tmp_path)},
    }
    group = SimpleNamespace(_dispatch_info={"actor": [0, 0, 1, 1]})
    return SimpleNamespace(config=config, actor_rollout_wg=group, global_steps=7, parameter_sync_step=2)


@pytest.fixture(autouse=True)
def _without_verl_installed(monkeypatch: Any) -> None:
    monkeypatch.setattr("rl_doctor.collectors.verl_config.metadata.version", lambda _name: "0.9.1")
    monkeypatch.setattr(verl_loop, "LOOP", Loop())
    monkeypatch.setattr(verl_end, "END_SECONDS", 0.0)
    monkeypatch.setattr(verl_end, "CUT_SECONDS", 0.0)


def test_what_the_driver_tells(trainer: SimpleNamespace, tmp_path: Path) -> None:
    driver = Driver(str(tmp_path / "run"), trainer, trainer.config)
    keys = ["a_0_0", "a_1_0", "a_1_1", "pad_b_0_0"]
    tags = [{}, {"prompt_len": 3, "response_len": 4}, {"prompt_len": 9, "response_len": 2}, {"is_padding": True}]
    first = Entry.from_text(driver.entry(meta(keys, tags), critic=False) or "")
    second = Entry.from_text(driver.entry(meta(keys[:1], tags[:1]), critic=False) or "")
    assert (first.path, first.session, first.step, first.call, first.last) == (str(tmp_path / "run"), 1, 7, 0, False)
    assert [tuple(item) for item in first.several["a_1"]] == [(0, 3, 4), (1, 9, 2)]
    assert set(first.several) == {"a_1"}
    assert first.padding == ["pad_b_0"]
    assert (second.call, second.last, second.several) == (1, True, {})
    critic = Entry.from_text(driver.entry(meta(keys, tags), critic=True) or "")
    assert (critic.path, critic.call) == (str(tmp_path / "run" / "critic"), 0)
    driver.log({"actor/ppo_kl": 0.5, "nested": {"a": 1}}, 7)
    driver.close("complete")
    run = open_run(tmp_path / "run")
    assert run.info.writing_ranks == (0, 1, 2)
    assert (run.info.world_size, run.info.vocab_size, run.info.eos_token_ids) == (2, 50, (1, 2))
    assert run.metrics().series("actor/ppo_kl")[1].tolist() == [0.5]
    assert run.metrics().names() == ("actor/ppo_kl",)


def one_row(step: int) -> Rows:
    return Rows({"step": np.array([step]), "reward": np.array([1.0])}, splits_of(np.array([0])))


@pytest.mark.parametrize(("status", "seconds"), [("complete", "END_SECONDS"), (None, "CUT_SECONDS")])
def test_the_end_waits_for_what_the_workers_have_still_to_write(
    trainer: SimpleNamespace, tmp_path: Path, monkeypatch: Any, caplog: pytest.LogCaptureFixture, status: str | None, seconds: str
) -> None:
    monkeypatch.setattr(verl_end, seconds, 60.0)
    trainer.parameter_sync_step = 1
    driver = Driver(str(tmp_path / "run"), trainer, trainer.config)
    for step in (7, 8):
        trainer.global_steps = step
        entry = Entry.from_text(driver.entry(meta(["a_0_0"], [{}]), critic=False))
        driver.log({}, step)
    writers = [RunWriter(entry.path, RunInfo(), rank=rank, session=entry.session) for rank in (1, 2)]
    writers[0].write_part(one_row(7), completes=[7])
    closing = threading.Thread(target=driver.close, args=(status,))
    closing.start()
    closing.join(0.5)
    assert closing.is_alive()
    writers[0].write_part(one_row(8), completes=[8])
    closing.join(0.5)
    assert closing.is_alive()
    writers[1].set_status("detached", "no room")
    closing.join(50)
    assert not closing.is_alive()
    assert not caplog.records
    run = open_run(tmp_path / "run")
    assert (run.info.status, run.facts.last_step) == (status or "running", 8)


def test_the_end_says_what_was_not_written(trainer: SimpleNamespace, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trainer.parameter_sync_step = 1
    driver = Driver(str(tmp_path / "run"), trainer, trainer.config)
    driver.entry(meta(["a_0_0"], [{}]), critic=False)
    driver.close("complete")
    told = [record.getMessage() for record in caplog.records]
    assert [f"writer {rank} had not written step 7 0 s after the end" in line for rank, line in zip((1, 2), told, strict=True)]


def test_an_update_carries_the_entry_only_while_it_is_made(trainer: SimpleNamespace) -> None:
    batch, seen = meta(["a_0_0"], [{}]), []

    def update(_trainer: Any, given: Any, metrics: dict[str, Any]) -> Any:
        seen.append(dict(given.extra_info))
        assert metrics == {}
        return given

    assert verl_driver._around_update(update, trainer, batch, {}, critic=False) is batch
    assert batch.extra_info == {}
    assert Entry.from_text(seen[0]["rl_doctor"]).step == 7
    verl_driver._drivers.pop(id(trainer)).close("complete")


def test_an_update_that_raises_raises_its_own_error(trainer: SimpleNamespace) -> None:
    batch = meta(["a_0_0"], [{}])

    def update(*_: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        verl_driver._around_update(update, trainer, batch, {}, critic=False)
    assert batch.extra_info == {}
    verl_driver._drivers.pop(id(trainer)).close(None)


def test_nothing_is_told_where_nobody_asks(trainer: SimpleNamespace, monkeypatch: Any) -> None:
    monkeypatch.delenv("RL_DOCTOR_RUN", raising=False)
    trainer.config["trainer"]["logger"] = ["console"]
    batch = meta(["a_0_0"], [{}])
    verl_driver._around_update(lambda _t, given, _m: given.extra_info.update(seen=True), trainer, batch, {}, critic=False)
    assert batch.extra_info == {"seen": True}
    assert not verl_driver._drivers


def test_the_guide_names_the_variables_and_the_entry_point() -> None:
    guide = (ROOT / "docs" / "guide" / "verl.md").read_text()
    assert set(re.findall(r"RL_DOCTOR_\w+", guide)) == {RUN_VARIABLE, *OPTIONS}
    plugins = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["verl.plugins"]
    assert plugins == {"rl_doctor": "rl_doctor.collectors.verl"}
    assert "VERL_USE_EXTERNAL_MODULES=rl_doctor.collectors.verl" in guide

"""How verl finds the plugin, what it costs where nobody asks for it, and how it reports its failures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rl_doctor import open_run
from rl_doctor.collectors.support import VERL
from tests.trainers.said import of_ours
from tests.trainers.verl.conftest import PLATFORM, ROOT, Train, environment

pytestmark = [pytest.mark.trainer, pytest.mark.timeout(600)]

WRAPPED = """
from verl.workers.engine_workers import TrainingWorker
from verl.trainer.ppo.v1.trainer_base import PPOTrainer
from verl.trainer.ppo.ray_trainer import RayPPOTrainer
from verl.utils.tracking import Tracking
methods = [TrainingWorker.train_mini_batch, TrainingWorker.train_batch, PPOTrainer.fit, PPOTrainer._update_actor,
    PPOTrainer._update_critic, RayPPOTrainer.fit, RayPPOTrainer._update_actor, Tracking.log, Tracking.__init__]
print([method.__name__ for method in methods if method.__code__.co_filename.find("rl_doctor") < 0])
print("backends", "rl_doctor" in Tracking.supported_backend)
from verl.single_controller.base.decorator import MAGIC_ATTR
print("registered", getattr(TrainingWorker.train_mini_batch, MAGIC_ATTR)["blocking"])
"""


def run(code: str, **changes: str | None) -> tuple[str, str]:
    """What a process printed, and what it said."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(**changes),
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout, "\n".join(of_ours(done.stderr))


def test_found_as_an_entry_point(installed: Path) -> None:
    out, said = run(
        "import verl" + WRAPPED,
        PYTHONPATH=f"{installed}:{ROOT}", VERL_USE_EXTERNAL_PLUGINS="auto", VERL_USE_EXTERNAL_MODULES=PLATFORM,
    )  # fmt: skip
    assert out.split("\n")[:3] == ["[]", "backends True", "registered False"]
    assert not said


def test_found_as_an_external_module() -> None:
    out, said = run("import verl" + WRAPPED)
    assert out.split("\n")[:3] == ["[]", "backends True", "registered False"]
    assert not said


def test_costs_nothing_where_nobody_asks() -> None:
    code = (
        "import sys, time; start = time.perf_counter(); import rl_doctor.collectors.verl; took = time.perf_counter() - start\n"
        "heavy = [name for name in ('torch', 'numpy', 'pyarrow', 'verl', 'pydantic') if name in sys.modules]\n"
        "print(took, heavy)"
    )
    out, _ = run(code)
    seconds, _, heavy = out.strip().partition(" ")
    assert heavy == "[]"
    assert float(seconds) < 0.5
    out, said = run("import verl, sys; print([name for name in sys.modules if name.startswith(('rl_doctor', 'pyarrow'))])")
    assert "rl_doctor.collectors.verl" in out
    assert "recorder" not in out
    assert "pyarrow" not in out
    assert not said


def test_another_version_is_not_recorded_and_says_so_once(tmp_path: Path) -> None:
    code = "import verl; verl.__version__ = '0.10.0'" + WRAPPED
    out, said = run(code, RL_DOCTOR_RUN=str(tmp_path / "run"))
    assert out.startswith("['train_mini_batch', 'train_batch'")
    assert said.count("\n") == 0
    assert f"records nothing (training goes on): verl 0.10.0 is installed; supported are {VERL.versions}" in said
    assert not (tmp_path / "run").exists()
    assert not run(code)[1]


def test_a_plugin_that_fails_says_so_once() -> None:
    code = (
        "import verl, rl_doctor.collectors.verl as plugin\n"
        "import verl.workers.config\n"
        "import importlib, types\n"
        "broken = types.ModuleType('rl_doctor.collectors.verl_worker'); import sys; sys.modules[broken.__name__] = broken\n"
        "from verl.workers.engine_workers import TrainingWorker; print(TrainingWorker.train_batch.__name__)"
    )
    out, said = run(code)
    assert "train_batch" in out
    assert said.count("\n") == 0
    assert "records nothing (training goes on): verl.workers.engine_workers has another form (AttributeError" in said


@pytest.mark.parametrize("driver", [False, True])
def test_asked_for_by_the_logger_list(train: Train, tmp_path: Path, *, driver: bool) -> None:
    settings = ["trainer.logger=[file,rl_doctor]", f"trainer.default_local_dir={tmp_path}/checkpoints"]
    trained = train(record=False, driver=driver, steps=1, overrides=settings)
    assert of_ours(trained.said) == []
    found = open_run(tmp_path / "checkpoints" / "rl_doctor")
    assert found.facts.last_step == 1
    assert found.metrics().series("actor/ppo_kl")[1].tolist() == [trained.log[1]["actor/ppo_kl"]]


def test_the_guide_names_settings_that_verl_has() -> None:
    guide = (ROOT / "docs" / "guide" / "verl.md").read_text()
    code = (
        "import json, re, sys\n"
        "from tests.trainers.verl.train import DEFAULTS, configuration\n"
        "from omegaconf import OmegaConf\n"
        "guide = sys.stdin.read()\n"
        "named = re.findall(r'(?<![a-z.])((?:actor_rollout_ref|algorithm|critic|trainer)[.][a-z0-9_.]*[a-z0-9_])', guide)\n"
        "given = re.findall(r'([+]ray_kwargs[^ `]+|trainer[.]logger=[^ \\'`]+)', guide)\n"
        "config = configuration('/tmp', DEFAULTS | {'overrides': given})\n"
        "print(json.dumps([len(named), [name for name in named if OmegaConf.select(config, name) is None]]))\n"
        "print(config.trainer.logger, config.ray_kwargs.ray_init.runtime_env.env_vars)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=environment(),
        input=guide,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = done.stdout.strip().splitlines()[-2:]
    count, unknown = json.loads(first)
    assert count >= 8
    assert set(unknown) <= {"critic.enable", "algorithm.rollout_correction.rollout_is"}, "those are null by default"
    assert second == "['console', 'rl_doctor'] {'RL_DOCTOR_RUN': '/shared/runs/my-run'}"

"""``rl-doctor env``: what it finds in made-up environments, and that what it promises of rules is so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import attach, check, schema
from rl_doctor.cli import environment
from rl_doctor.cli.main import main
from rl_doctor.collectors.support import SUPPORTED, TRL, numbers
from rl_doctor.errors import UsageError
from rl_doctor.rules.registry import rules
from rl_doctor.store.metric_log import MetricLog
from tests.simulation.settings import Settings
from tests.simulation.world import simulate

ROOT = Path(__file__).resolve().parents[3]
HEAVY = {"torch", "trl", "verl", "openrlhf", "transformers", "ray", "numpy", "pyarrow", "pandas"}


def install(site: Path, name: str, version: str | None, entry_points: str = "") -> None:
    """Put a distribution's metadata, and a module that must not be imported, into a folder."""
    info = site / f"{name}-{version or 0}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\n" + (f"Version: {version}\n" if version else ""))
    if entry_points:
        (info / "entry_points.txt").write_text(entry_points)
    (site / name).mkdir(exist_ok=True)
    (site / name / "__init__.py").write_text("raise RuntimeError('imported')\n")


def install_ourselves(site: Path, entry_points: str = "") -> None:
    """Put metadata of rl-doctor in front of those that it was installed with."""
    info = site / "rl_doctor-0.1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rl-doctor\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(entry_points)


@pytest.fixture
def env(tmp_path: Path) -> Any:
    """Call the command in an environment that has, beside what is there, what was installed into a folder."""

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "rl_doctor", "env", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}, timeout=120,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return call


def trainer(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [one for one in document["trainers"] if one["name"] == name]
    return found


def test_supported_unsupported_and_absent_trainers_are_told(env: Any, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install_ourselves(site)
    install(site, "trl", "1.16.0")
    install(site, "verl", "0.10.0")
    install(site, "torch", "2.13.0")
    (site / "torch" / "version.py").write_text("debug = False\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n")
    document = json.loads(env("--output-format", "json"))
    assert [trainer(document, name)["supported"] for name in ("trl", "verl", "openrlhf")] == [True, False, False]
    assert [trainer(document, name)["version"] for name in ("trl", "verl", "openrlhf")] == ["1.16.0", "0.10.0", None]
    assert document["torch_built_for"] == "CUDA 12.8"
    assert trainer(document, "verl")["entry_point_found"] is False
    text = " ".join(env().split())
    assert "but plugin NOT found: no entry point verl.plugins of rl-doctor" in text
    assert "or set VERL_USE_EXTERNAL_MODULES=rl_doctor.collectors.verl" in text
    assert "trl 1.16.0: supported (trl >= 1.16, < 2)" in text
    assert "verl 0.10.0: NOT supported (verl >= 0.9, < 0.10)" in text
    assert "openrlhf: not installed" in text
    assert "torch 2.13.0 (built for CUDA 12.8" in text
    assert "ref_logprob: beta > 0" in text
    assert "pip install rl-doctor into this environment" in text


def test_the_plugin_of_verl_is_looked_for(env: Any, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install_ourselves(site)
    install(site, "verl", "0.9.1")
    install(site, "other", "1.0", "[verl.plugins]\nother = other.plugin\n")
    assert "plugin NOT found" in env()
    install_ourselves(site, "[verl.plugins]\nrl_doctor = rl_doctor.collectors.verl\n")
    text = env()
    assert "found: verl.plugins names rl_doctor" in text
    assert "NOT found" not in text


def test_nothing_installed_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(environment, "version_of", lambda _name: None)
    with pytest.raises(SystemExit) as ended:
        main(["env"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    assert "none that trainers use" in printed
    assert "No trainer that is recorded by itself is installed" in printed
    assert "docs/guide/own-loops.md" in printed


def test_damaged_metadata_is_a_version_unknown(env: Any, tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "trl", None)
    install(site, "verl", "0.9.1", "[verl.plugins\nnonsense")
    (site / "verl-0.9.1.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00")
    (site / "openrlhf").mkdir()
    (site / "openrlhf" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    document = json.loads(env("--output-format", "json"))
    for name in ("trl", "openrlhf"):
        assert (trainer(document, name)["version"], trainer(document, name)["supported"]) == ("", False)
    assert "openrlhf (version unknown): NOT supported" in env()


def test_it_imports_nothing_heavy_and_is_quick() -> None:
    code = (
        "import sys; from rl_doctor.cli.main import main\n"
        "try: main(['env'])\nexcept SystemExit as end: assert end.code == 0\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)), file=sys.stderr)"
    )
    before = os.times()
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    spent = os.times().children_user + os.times().children_system - before.children_user - before.children_system
    assert done.stderr == "[]\n"
    assert spent < 1.0, f"{spent:.2f} s of CPU, {time.monotonic() - start:.2f} s in all"


@pytest.mark.parametrize("support", SUPPORTED.values(), ids=SUPPORTED)
def test_columns_are_columns_and_none_is_named_twice(support: Any) -> None:
    switched = [column for switch in support.switches for column in switch.columns]
    named = [*support.columns, *switched]
    assert len(set(named)) == len(named)
    assert all(schema.column(name) is not None for name in named)
    assert all(
        rule in {known.name for known in rules().values()} for name in switched for rule in environment.ENABLES.get(name, ())
    )


def test_versions() -> None:
    assert numbers("1.16.0.dev3+cpu") == (1, 16, 0)
    assert numbers("unknown") == ()
    supported = {version: TRL.supports(version) for version in ("1.15.9", "1.16", "1.16.0", "1.99", "2.0.0", "", "unknown")}
    assert [version for version, fits in supported.items() if fits] == ["1.16", "1.16.0", "1.99"]


def test_attach_says_how_another_trainer_is_recorded() -> None:
    foreign = type("RayPPOTrainer", (), {"__module__": "verl.trainer.ppo.ray_trainer"})
    with pytest.raises(UsageError, match=r"verl is recorded by RL_DOCTOR_RUN=runs/a"):
        attach(foreign(), "runs/a")
    other = type("Trainer", (), {"__module__": "transformers.trainer"})
    with pytest.raises(UsageError, match=r"supported are trl GRPOTrainer.*by hand with rl_doctor\.Recorder"):
        attach(other(), "runs/a")


@pytest.mark.slow
def test_a_column_enables_the_rules_that_are_skipped_without_it() -> None:
    run = simulate(Settings(seed=1, steps=60, prompts=4, epochs=2, minibatches=2, tools=True, step_size=10.0))
    returns = np.repeat(run.arrays["reward"], np.diff(run.splits)).astype(np.float32)
    noise = np.random.default_rng(0).normal(0.0, 0.1, len(returns)).astype(np.float32)
    arrays = {name: values for name, values in run.arrays.items() if name not in {"old_entropy", "turn", "turns"}}
    run = replace(run, arrays={**arrays, "return": returns, "old_value": returns + noise}, log=MetricLog())

    def judged(without: str, **config: Any) -> set[str]:
        less = replace(run, arrays={name: values for name, values in run.arrays.items() if name != without})
        report = check(less.with_config(**config))
        return {result.name for result in report.results if result.outcome != "skipped"}

    whole = judged("")
    for column in ("entropy", "ref_logprob", "rollout_logprob", "group"):
        lost = whole - judged(column)
        assert set(environment.ENABLES[column]) <= lost, column
        assert lost - set(environment.ENABLES[column]) <= {"advantage-mismatch", "no-baseline"}, column
    assert "value-not-learning" in judged("", adv_estimator="gae") - judged("old_value", adv_estimator="gae")

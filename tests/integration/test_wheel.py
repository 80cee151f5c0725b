"""The built wheel, in an environment of its own outside the checkout: editable installs hide what a wheel lacks."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def run(*command, cwd, **kwargs):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False, **kwargs
    )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    built = run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, cwd=ROOT)
    assert built.returncode == 0, built.stderr
    (path,) = folder.glob("rl_doctor-*.whl")
    return path


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"rl_doctor"}
    for needed in ("rl_doctor/py.typed", "rl_doctor/schema.py", "rl_doctor/cli/main.py"):
        assert needed in names
    packaged = {
        str(path.relative_to(ROOT)) for path in (ROOT / "rl_doctor").rglob("*") if path.suffix in {".py", ".parquet", ".json"}
    }
    assert packaged <= set(names)


def test_the_wheel_works_outside_the_checkout(wheel, tmp_path):
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    python = home / "bin" / "python"
    installed = run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--constraint",
        ROOT / "constraints.txt",
        wheel,
        cwd=tmp_path,
    )
    assert installed.returncode == 0, installed.stderr
    origin = run(python, "-c", "import rl_doctor; print(rl_doctor.__file__)", cwd=tmp_path)
    assert Path(origin.stdout.strip()).is_relative_to(home)
    demo = run(home / "bin" / "rl-doctor", "demo", cwd=tmp_path)
    assert demo.returncode == 0, demo.stderr
    assert "RLD" in demo.stdout
    module = run(python, "-m", "rl_doctor", "--version", cwd=tmp_path)
    assert module.returncode == 0
    assert "0.1.0" in module.stdout

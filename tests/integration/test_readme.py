"""Every command and program in the README and the guide runs, and the report that is shown is the one that is printed.

What needs a trainer is run with it: the lines for loops of one's own by tests/trainers/loops, launchers by that trainer's tests.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl_doctor import open_run

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
BIN = Path(sys.executable).parent

GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
WITH_A_TRAINER = {"own-loops.md"}

# Setting up environments inside a test that runs in one of them is what CI does around this test.
MADE_BY_CI = {"make demo", "make test"}


def commands():
    for language, text in BLOCKS:
        if language != "console":
            continue
        for piece in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            line, _, output = piece.partition("\n")
            yield line.partition("  #")[0].strip(), output


def run(command, cwd=ROOT, **environment):
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command], cwd=cwd, env={**os.environ, "PATH": path, "COLUMNS": "100", **environment},
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def test_the_readme_has_commands():
    lines = [line for line, _ in commands()]
    assert set(lines) >= MADE_BY_CI
    assert len(lines) > len(MADE_BY_CI)


@pytest.mark.parametrize(
    ("command", "output"), [(line, output) for line, output in commands() if line not in MADE_BY_CI], ids=lambda value: value[:60]
)
def test_a_documented_command_runs_and_prints_what_is_shown(command, output, tmp_path):
    command = command.replace("junit=", f"junit={tmp_path}/").replace("runs/imported", f"{tmp_path}/imported")
    done = run(command)
    assert "Traceback" not in done.stderr
    assert done.returncode in ((0, 1) if "check" in command else (0,)), done.stderr
    assert done.stdout.strip()
    if output.strip():
        assert done.stdout.strip() == output.strip()


def test_the_healthy_run_passes_the_gate(tmp_path):
    (gate,) = [line for line, _ in commands() if "healthy.parquet --output-format json" in line]
    assert run(gate.replace("junit=", f"junit={tmp_path}/")).returncode == 0


def test_the_pandas_example_and_the_program_around_it_run(tmp_path):
    programs = [text for language, text in BLOCKS if language == "python"]
    (maker,) = [text for text in programs if "to_parquet" in text]
    (checker,) = [text for text in programs if "open_run" in text]
    (tmp_path / "make.py").write_text(maker)
    (tmp_path / "check.py").write_text(checker)
    assert run(f"{sys.executable} make.py", tmp_path).returncode == 0
    done = run(f"{sys.executable} check.py", tmp_path)
    assert done.stderr == ""
    assert done.returncode in (0, 1)


def test_the_loop_example_records(tmp_path):
    (loop,) = [text for language, text in BLOCKS if language == "python" and "log_batch" in text]
    setup = (
        "import numpy as np\n"
        "steps, attention, mask = 2, np.array([[1, 1, 0], [1, 1, 1]]), np.array([[1, 1, 0], [1, 1, 1]])\n"
        "new = old = np.full((2, 3), -0.5, np.float32)\n"
        "advantage, reward, group, uid = np.ones((2, 3)), np.array([1.0, 0.0]), ['p', 'p'], ['a', 'b']\n"
    )
    (tmp_path / "loop.py").write_text(setup + loop)
    done = run(f"{sys.executable} loop.py && rl-doctor metrics runs/a --select policy.ratio_mean", tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ *1 +1$", done.stdout, re.MULTILINE)
    assert re.search(r"^ *2 +1$", done.stdout, re.MULTILINE)


def guide_blocks(*languages):
    for page in GUIDE:
        for language, text in re.findall(r"^```(\w+)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL):
            if language in languages:
                yield pytest.param(page, text, id=f"{page.stem}: {text.splitlines()[0][:50]}")


@pytest.mark.parametrize(("page", "program"), list(guide_blocks("python")))
def test_a_program_of_the_guide_runs(page, program, tmp_path):
    compile(program, page.name, "exec")
    if page.name not in WITH_A_TRAINER:
        (tmp_path / "program.py").write_text(program)
        done = run(f"{sys.executable} program.py", tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


RECORDED = (
    "import numpy as np\n"
    "from rl_doctor import Recorder\n"
    "recorder = Recorder('runs/grpo', {'trainer': 'custom', 'algorithm': 'grpo'})\n"
    "mask, logprob = np.array([[1, 1, 0], [1, 1, 1]]), np.array([[-0.5, -1.5, 9.0], [-1.0, -2.0, -3.0]])\n"
    "for step in (1, 2):\n"
    "    recorder.log_batch(step=step, epoch=0, minibatch=0, response_mask=mask, attention_mask=mask, logprob=logprob,\n"
    "                       reward=np.array([1.0, 0.0]), group=['p', 'q'])\n"
)


def own_loops(start):
    (program,) = [block.values[1] for block in guide_blocks("python") if block.values[1].startswith(start)]
    return program


@pytest.mark.parametrize(
    ("start", "line"), [("import pandas", "1     p       -1.0"), ("import duckdb", "1 │ p       │    1.0 │    -1.0 │")]
)
def test_a_run_is_read_with_other_tools(start, line, tmp_path):
    (tmp_path / "program.py").write_text(RECORDED + "recorder.close()\n" + own_loops(start))
    done = run(f"{sys.executable} program.py", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert line in done.stdout


@pytest.mark.parametrize(("scope", "status"), [("if recorder:", "complete"), ("with recorder:", "running")])
def test_a_training_that_is_told_to_end_keeps_its_steps(scope, status, tmp_path):
    end = f"import os, time\n{scope}\n    os.kill(os.getpid(), signal.SIGTERM)\n    time.sleep(60)\n"
    (tmp_path / "program.py").write_text(own_loops("import signal") + RECORDED + end)
    assert run(f"{sys.executable} program.py", tmp_path).returncode == 143
    found = open_run(tmp_path / "runs" / "grpo")
    assert (found.facts.last_step, found.info.status) == (2, status)


@pytest.mark.parametrize("text", [pytest.param(block.values[1], id=block.id) for block in guide_blocks("console", "bash")])
def test_a_command_of_the_guide_is_one(text, tmp_path):
    lines = text.splitlines()
    prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]  # what stands below them is printed
    for line in prompted or lines:
        if line.startswith("rl-doctor check "):
            recorded = tmp_path / line.split()[2]
            recorded.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / "rl_doctor" / "demo" / "healthy.parquet", recorded)
            assert run(line, tmp_path).returncode == 0
        for module in re.findall(r"-m (rl_doctor[\w.]*)", line):
            assert run(f"{sys.executable} -c 'import {module}'").returncode == 0
        assert line.startswith(("rl-doctor ", "pip install rl-doctor", "RL_DOCTOR_", "python"))


@pytest.mark.parametrize("page", GUIDE, ids=lambda page: page.stem)
def test_what_the_guide_names_exists(page):
    text = page.read_text("utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / target).exists(), target
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "rl_doctor").rglob("*.py"))
    for variable in set(re.findall(r"RL_DOCTOR_\w+", text)):
        assert f'"{variable}"' in sources, variable

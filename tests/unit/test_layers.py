from pathlib import Path

import pytest

from tools import check_layers

ROOT = Path(check_layers.__file__).parent.parent


def test_the_package_keeps_its_layers():
    assert list(check_layers.violations(ROOT)) == []


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("rules/masks.py", "from rl_doctor.store.run import Run", "must not import rl_doctor.store.run.Run"),
        ("collectors/trl.py", "def f():\n    from rl_doctor.analyzer import engine", "must not import rl_doctor.analyzer.engine"),
        ("schema.py", "import rl_doctor.errors", "must not import rl_doctor.errors"),
        ("report/text.py", "from rl_doctor.rules.registry import rules", "must not import rl_doctor.rules.registry.rules"),
        ("cli/main.py", "import torch", "torch is heavy"),
        ("store/run.py", "class A:\n    import pyarrow.dataset", "pyarrow.dataset is heavy"),
        ("cli/app_.py", "from rl_doctor.charts import theme", "rl_doctor.charts.theme is heavy"),
        ("app/pages/run_page.py", "import numpy as np", "a page imports numpy"),
        ("app/pages/run_page.py", "def show(c):\n    import pandas", "a page imports pandas"),
        ("app/pages/run_page.py", "def show(c):\n    return c.late - c.early", "arithmetic in a page"),
        ("app/pages/run_page.py", "def show(c):\n    c += 1", "arithmetic in a page"),
        ("app/pages/run_page.py", "def show(c):\n    return -c.value", "arithmetic in a page"),
        ("app/pages/run_page.py", "def show(c):\n    return max(c.values)", "max() in a page"),
    ],
)
def test_a_wrong_import_is_named(tmp_path, module, source, complaint):
    path = tmp_path / "rl_doctor" / module
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    (found,) = check_layers.violations(tmp_path)
    assert complaint in found
    assert module in found


def test_heavy_imports_inside_functions_and_for_types_are_fine(tmp_path):
    path = tmp_path / "rl_doctor" / "cli" / "main.py"
    path.parent.mkdir(parents=True)
    path.write_text("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\ndef f():\n    import pandas\n")
    assert list(check_layers.violations(tmp_path)) == []


def test_charts_import_what_they_draw_with_and_pages_lay_out(tmp_path):
    chart = tmp_path / "rl_doctor" / "charts" / "run.py"
    page = tmp_path / "rl_doctor" / "app" / "pages" / "run_page.py"
    for path in (chart, page):
        path.parent.mkdir(parents=True)
    chart.write_text("import plotly.graph_objects as go\n")
    page.write_text("def show(c: int | None):\n    for i in c.rows[-1:]:\n        yield {**i} | {} if len(i) > 1 else not i\n")
    assert list(check_layers.violations(tmp_path)) == []

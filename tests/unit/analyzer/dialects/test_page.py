"""The pages that say what every trainer calls its numbers and what they are."""

from __future__ import annotations

import ast
import contextlib
import importlib
import inspect
import pkgutil

import pytest

from rl_doctor.analyzer import dialects_page
from rl_doctor.analyzer.dialects.recipes import Recipe, absent, derived, exact, of
from rl_doctor.analyzer.dialects.registry import Name, Trainer, trainers
from rl_doctor.analyzer.registry import families, metrics


def row(item: Name) -> list[str]:
    """The cells of a name on its trainer's page."""
    lines = list(dialects_page.page(Trainer("a", "A", "somewhere", (item,))))
    (line,) = [line for line in lines if line.startswith("| `")]
    return [cell.strip() for cell in line.replace("\\|", "\0").split("|")[1:-1]]


@pytest.mark.parametrize("known", trainers().values(), ids=trainers())
def test_every_name_has_one_block_of_rows(known: Trainer) -> None:
    page = list(dialects_page.page(known))
    assert page[0] == f"# {known.label}"
    named = [cell.strip() for line in page if line.startswith("| `") for cell in line.split(" | ")[0][1:].split("<br>")]
    assert sorted(named) == sorted({f"`{item.native}`" for item in known.names})
    assert {line.replace("\\|", "").count("|") for line in page if line.startswith("|")} == {7}


def test_the_index_lists_every_trainer_and_what_is_known_of_it() -> None:
    page = list(dialects_page.index())
    for name, known in trainers().items():
        (line,) = [line for line in page if line.startswith(f"| [{known.label}](dialects/{name}.md)")]
        numbers = [int(cell or 0) for cell in line.replace(" ", "").split("|")[2:-1]]
        assert numbers[0] == len(known.names) == sum(numbers[1:])
    assert page[page.index("## Made at home") + 2] == "Names with one meaning wherever they stand."


def test_signs_versions_and_conditions_are_told() -> None:
    pages = {name: "\n".join(dialects_page.page(known)) for name, known in trainers().items()}
    assert "approx_kl/max` | `policy.kl_old_k1`, with the other sign<br>none<br>none |" in pages["areal"]
    assert "| `group/mixed_groups_ratio` | `group.zero_std_frac` = 1 - the value |" in pages["roll"]
    assert row(Name("a", "reward.std", since=(0, 27)))[3] == "from 0.27 on"
    assert row(Name("a", "reward.std", until=(0, 27, 0), algorithms=frozenset({"rloo", "grpo"})))[3] == "grpo, rloo; before 0.27"
    assert row(Name("a", "reward.std", holds=lambda _: True))[3] == "where the numbers bear it out"


def test_the_definition_and_its_proof_are_told() -> None:
    recipe = Recipe(of("estimate", kind="k1"))
    assert row(Name("a", None, definition=exact("mean |x|", recipe)))[2:5] == ["mean \0x\0", "", "exact"]
    assert row(Name("a", None, definition=derived("mean x")))[4] == "derived"
    assert row(Name("a", None, definition=absent("a random mask", "sum x")))[2:5] == ["sum x", "", "no: a random mask"]
    assert row(Name("a", None))[2:5] == ["", "", "not looked up"]


def test_settings_are_told_where_every_recipe_asks_for_some() -> None:
    both = {"config.kl_estimator": ("k2",), "native.own?": (None, 2.0), "native.on?": (None, True)}
    k2 = Recipe(of("estimate", kind="k2"), when=both)
    k3 = Recipe(of("estimate", kind="k3"), when={**both, "config.kl_estimator": ("k3",), "native.on": (False,)})
    told = row(Name("a", None, definition=exact("f", k2, k3)))[4]
    assert told == "exact, where `config.kl_estimator` is `k2` or `k3` and `native.own` is not set or 2"
    assert row(Name("a", None, definition=exact("f", k2, Recipe(of("estimate", kind="k1")))))[4] == "exact"


def test_every_metric_tells_its_formula_and_who_logs_it() -> None:
    assert [name for name, known in metrics().items() if not known.formula] == []
    made = [one for family in families() for one in family.make((f"{family.columns}a",))]
    assert [one.name for one in made if not one.formula] == []
    logged = dialects_page.logged_as()
    assert list(logged["reward.mean"]) == sorted(
        {known.label for known in trainers().values() if any(item.metric == "reward.mean" for item in known.names)}, key=str.lower
    )
    assert any(line.startswith("`actor/ppo_kl`") for line in logged["policy.kl_old_k1"]["verl"])


def test_versions_of_a_name_stand_below_each_other() -> None:
    early, late = (Name("a/b", "adv.mean", **{end: (0, 6)}, definition=exact(f"f; {end}")) for end in ("until", "since"))
    unknown = Name("a/b", "adv.mean", definition=absent("is something else before 0.6", "f"))
    lines = list(dialects_page.page(Trainer("a", "A", "somewhere", (early, unknown, Name("c", None), late))))
    rows = [line for line in lines if line.startswith("|")][2:]
    assert rows == [
        "| `a/b` | `adv.mean` | f; until | before 0.6 | exact |  |",
        "|  |  |  | if the version is not known | no: is something else before 0.6 |  |",
        "|  |  | f; since | from 0.6 on | exact |  |",
        "| `c` | none |  |  | not looked up |  |",
    ]


def test_statistics_of_the_same_have_one_row() -> None:
    names = tuple(
        Name(f"x/{end}", metric, note=note, definition=exact(f"{end} of A"))
        for end, metric, note in (("mean", "adv.mean", "told"), ("max", None, ""), ("min", None, ""))
    )
    (line,) = [line for line in dialects_page.page(Trainer("a", "A", "somewhere", names)) if line.startswith("| `")]
    assert line == "| `x/mean`<br>`x/max`<br>`x/min` | `adv.mean`<br>none<br>none | mean, max, min of A |  | exact | told |"


def test_the_native_settings_are_those_of_the_recipes_and_of_the_code() -> None:
    value = of("scaled", value=of("estimate", kind="config.kl_estimator|native.kl.kind"), factor="native.weight?")
    beside = Recipe(of("column", name="entropy"), where=of("moved", low="native.low"))
    recipe = Recipe(value, beside=(beside,), when={"native.on?": (None, True)})
    known = Trainer(
        "a", "A", "somewhere", (Name("a", None, definition=exact("f", recipe)),), reads=("own",), caps={"m": ("cap",)}
    )
    assert dialects_page.native_settings(known) == ["cap", "kl.kind", "low", "on", "own", "weight"]


@pytest.mark.parametrize("name", ["verl", "trl", "openrlhf"])
def test_every_setting_that_the_code_reads_is_told(name: str) -> None:
    package = importlib.import_module(f"rl_doctor.analyzer.recompute.{name}")
    read: set[str] = set()
    for found in pkgutil.iter_modules(package.__path__):
        module = importlib.import_module(f"{package.__name__}.{found.name}")
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("native.") and node.args:
                with contextlib.suppress(NameError):  # named by what the function was given
                    name_of = compile(ast.Expression(node.args[0]), found.name, "eval")
                    told = eval(name_of, vars(module))  # noqa: S307 - an expression of the package's own code
                    read |= {told} if isinstance(told, str) else set(told)
    pairs = {pair for pair in read if any(one.startswith(f"{pair}_") for one in trainers()[name].reads)}
    assert len(read) > 10
    assert read - pairs <= set(dialects_page.native_settings(trainers()[name]))

"""Every number of the trainers whose code was read is defined: recomputed, or not with the reason."""

from __future__ import annotations

import pytest

from rl_doctor.analyzer.dialects.registry import Name, trainers
from rl_doctor.analyzer.recompute.quantities.registry import find_quantity
from rl_doctor.analyzer.recompute.registry import dialects

READ = ("verl", "trl", "openrlhf", "slime", "areal", "nemo-rl", "skyrl", "prime-rl", "roll", "minimind")


def named(name: str) -> tuple[Name, ...]:
    return trainers()[name].names


@pytest.mark.parametrize("name", READ)
def test_every_number_is_defined(name: str) -> None:
    assert [item.native for item in named(name) if item.definition is None] == []


@pytest.mark.parametrize("name", READ)
def test_a_definition_says_what_is_computed_or_why_it_cannot_be(name: str) -> None:
    for item in named(name):
        found = item.definition
        if found is None:
            continue
        assert bool(found.proof) != bool(found.reason), item.native
        assert found.formula or found.reason, item.native
        assert "\n" not in found.formula + found.reason, item.native
        assert found.proof or not found.recipes, item.native


@pytest.mark.parametrize("name", READ)
def test_what_is_recomputed_is_recomputed_by_something(name: str) -> None:
    coded = {"verl", "trl", "openrlhf"}
    for item in named(name):
        if item.definition is not None and item.definition.proof and name not in coded:
            assert item.definition.recipes, item.native


def test_recipes_name_quantities_that_exist() -> None:
    dialects()
    for name in trainers():
        for item in named(name):
            for recipe in () if item.definition is None else item.definition.recipes:
                for part in (recipe, *recipe.beside):
                    assert find_quantity(part.value.name)

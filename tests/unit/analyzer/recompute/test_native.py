"""Settings of a trainer's own configuration, as they come: nested or flat, as texts, or of another type than they must be."""

from dataclasses import replace
from typing import Any

import pytest

from rl_doctor.analyzer.recompute.configured import misfit, setting
from rl_doctor.analyzer.recompute.native import Native, nested
from rl_doctor.analyzer.recompute.openrlhf.settings import Settings as OfOpenRLHF
from rl_doctor.analyzer.recompute.registry import find_dialect
from rl_doctor.analyzer.recompute.trl.settings import Settings as OfTRL
from rl_doctor.analyzer.recompute.verl.settings import Settings as OfVerl
from rl_doctor.analyzer.recompute.verl.versions import eras_of
from rl_doctor.schema import RunConfig, RunInfo

ACTOR = "actor_rollout_ref.actor."
TRL = {"epsilon": 0.2, "beta": 0.04, "loss_type": "grpo", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
OPENRLHF = {"actor.policy_loss_type": "ppo", "actor.eps_clip_low_high": [0.2, 0.3], "data.max_len": 9}


def info(trainer: str, version: str, native: Any, **config: Any) -> RunInfo:
    return RunInfo(
        trainer=trainer, trainer_version=version, algorithm="grpo", world_size=1, config=RunConfig(native=native, **config)
    )


def verl(native: Any, **config: Any) -> OfVerl:
    described = info("verl", "0.9.1", native, **config)
    return OfVerl.of(described, eras_of("0.9.1", native, ())[0])


def keys(described: RunInfo, *names: str) -> set[str]:
    found = find_dialect(described)
    assert found is not None
    return {item.name for item in found.logged(described, {"response_mask"}, set(names))} & set(names)


def doubts(described: RunInfo) -> list[str]:
    found = find_dialect(described)
    assert found is not None
    return list(found.doubts(described))


@pytest.mark.parametrize("native", [
    {"a": {"b": {"c": "0.5"}}}, {"a.b.c": 0.5}, {"a": {"b.c": 0.5}}, {"a.b": {"c": 0.5}}, {"a": {"b": None}, "a.b.c": 0.5},
])  # fmt: skip
def test_a_setting_is_found_however_it_is_written(native: dict[str, Any]) -> None:
    read = Native(native)
    assert read.number("a.b.c") == 0.5
    assert read.section("a.b") is True
    assert float(nested(native, "a.b.c")) == 0.5
    assert not list(read.told())


@pytest.mark.parametrize("value", ["x", [0.5], {"a": 1}, True, "", float("nan")])
def test_what_is_no_number_is_unknown_and_told(value: Any) -> None:
    read = Native({"clip": value})
    assert read.number("clip", 0.2) is None
    assert list(read.told()) == ["config.native.clip: not a number, so what depends on it is not known"]
    assert read.number("other", 0.2) == 0.2
    assert Native({"clip": None}).number("clip", 0.2) == 0.2


def test_other_kinds_of_settings() -> None:
    read = Native({"n": "4", "half": 1.5, "on": "True", "one": 1, "word": "k3", "ends": [0.2, "0.3"], "range": "0.5_2", "at": 3})
    assert (read.whole("n"), read.whole("half"), read.flag("on"), read.flag("one")) == (4, None, True, True)
    assert (read.word("word"), read.word("n"), read.word("at")) == ("k3", "4", None)
    assert read.numbers("ends", 2) == (0.2, 0.3)
    assert read.numbers("ends", 3) is None
    assert (read.parts("range", ()), read.parts("at", ()), read.parts("word", ())) == ((0.5, 2.0), (3.0,), None)
    assert (read.choice("word", ("k1", "k3"), "k1"), read.choice("at", ("k1", "k3"), "k1")) == ("k3", "k1")
    assert read.section("word") is None
    assert set(read.doubts) == {"half", "at", "ends", "word"}
    assert not list(Native(["a"]).told())


@pytest.mark.parametrize(("native", "low", "high"), [
    ({f"{ACTOR}clip_ratio": 0.3}, 0.3, 0.3),
    ({"actor_rollout_ref": {"actor": {"clip_ratio": "0.3", "clip_ratio_high": "x"}}}, 0.3, None),
    ({}, 0.2, 0.2),
])  # fmt: skip
def test_verl_reads_flat_settings_and_texts(native: dict[str, Any], low: float, high: float | None) -> None:
    found = verl(native, clip_low=0.2, clip_high=0.2)
    assert (found.low, found.high) == (low, high)


def test_what_of_verl_does_not_fit_leaves_only_what_does_not_depend_on_it() -> None:
    names = ("actor/pg_loss", "actor/ppo_kl", "critic/score/max")
    whole = {ACTOR + "loss_agg_mode": "token-mean", ACTOR + "clip_ratio": 0.2, ACTOR + "clip_ratio_c": 3.0}
    assert keys(info("verl", "0.9.1", whole), *names) == set(names)
    assert keys(info("verl", "0.9.1", {**whole, ACTOR + "loss_agg_mode": ["token-mean"]}), *names) == {*names[1:]}
    for odd in (
        {"trainer": {"v1": {"trainer_mode": "separate_async", "separate_async": {"parameter_sync_step": "four"}}}},
        {"algorithm": {"rollout_correction": {"rollout_rs": ["seq_k1"]}}}, {"algorithm": {"rollout_correction": "on"}},
    ):  # fmt: skip
        described = info("verl", "0.9.1", {**whole, **odd})
        assert keys(described, *names) == {"critic/score/max"}
        assert len(doubts(described)) == 1


def test_what_of_trl_does_not_fit_leaves_only_what_does_not_depend_on_it() -> None:
    names = ("kl", "entropy", "completions/mean_length")
    assert keys(info("trl", "1.16.0", {**TRL, "epsilon": "0.2", "gradient_accumulation_steps": "2"}), *names) == set(names)
    for odd in (
        {"beta": None},
        {"beta": []},
        {"epsilon": "x"},
        {"sapo_temperature_pos": "x"},
        {"off_policy_mask_threshold": "x"},
    ):
        assert keys(info("trl", "1.16.0", {**TRL, **odd}), *names) == {"entropy", "completions/mean_length"}
    described = info("trl", "1.16.0", {**TRL, "gradient_accumulation_steps": "auto"})
    assert OfTRL.of(described) is None
    assert doubts(described) == [
        "config.native.gradient_accumulation_steps: not a whole number, so what depends on it is not known"
    ]


def test_what_of_openrlhf_does_not_fit_leaves_nothing() -> None:
    assert OfOpenRLHF.of(info("openrlhf", "0.11.2", OPENRLHF)) is not None
    nested_form = {"actor": {"policy_loss_type": "ppo", "eps_clip_low_high": ["0.2", 0.3]}, "data": {"max_len": "9"}}
    assert OfOpenRLHF.of(info("openrlhf", "0.11.2", nested_form)) == OfOpenRLHF.of(info("openrlhf", "0.11.2", OPENRLHF))
    assert OfOpenRLHF.of(info("openrlhf", "0.11.2", {**OPENRLHF, "data.max_len": [9]})) is None
    assert OfOpenRLHF.of(info("openrlhf", "0.11.2", {**OPENRLHF, "actor.eps_clip_low_high": 0.2})) is None


def test_contradictions_are_told() -> None:
    described = info("verl", "0.9.1", {f"{ACTOR}clip_ratio": 0.3}, clip_low=0.2, clip_high=0.3)
    assert doubts(described) == [
        "config.native.actor_rollout_ref.actor.clip_ratio is 0.3, but config.clip_low is 0.2: the former counts"
    ]
    assert doubts(info("trl", "1.16.0", TRL, clip_low=0.2, kl_coef=0.1)) == [
        "config.native.beta is 0.04, but config.kl_coef is 0.1: the former counts"
    ]


def test_a_recipe_takes_texts_for_what_they_say_and_nothing_that_does_not_fit() -> None:
    described = info("slime", "1", {"eps_clip": "0.2", "eps_clip_high": [0.3], "use_kl_loss": "true", "kl_loss_type": ["k3"]})
    assert setting("native.eps_clip", described) == 0.2
    assert setting("native.use_kl_loss", described) is True
    assert setting("native.eps_clip_high", described) == (0.3,)
    assert misfit("high", (0.3,)) == "a number"
    assert misfit("high", True) == "a number"
    assert misfit("kind", 3.0) == "a word"
    assert misfit("weighted", "maybe") == "true or false"
    assert misfit("filters", "x") == "a list of mappings"
    assert not any((misfit("low", None), misfit("dual", True), misfit("filters", ((("type", "a"),),)), misfit("kind", "k3")))
    assert set(doubts(described)) == {
        f"config.native.{name}: not {kind}, so what depends on it is not known"
        for name, kind in (("eps_clip_high", "a number"), ("kl_loss_type", "a word"))
    }


@pytest.mark.parametrize(("trainer", "native", "newest", "newer", "beyond"), [
    ("verl", {}, "0.9.1", "0.10.0", "1.0"), ("trl", TRL, "1.16.0", "1.17.0", "2.0"),
    ("openrlhf", OPENRLHF, "0.11.2", "0.12.0", "1.0.0"),
])  # fmt: skip
def test_versions_beyond_the_known_ones(trainer: str, native: Any, newest: str, newer: str, beyond: str) -> None:
    known = info(trainer, newest, native)
    assert not doubts(known)
    (doubt,) = doubts(replace(known, trainer_version=newer))
    assert "is newer than" in doubt
    assert find_dialect(replace(known, trainer_version=beyond)) is None


@pytest.mark.parametrize("version", [None, "main", "nightly"])
def test_of_verl_without_a_version_what_all_versions_agree_on_is_compared(version: str | None) -> None:
    described = replace(info("verl", "0.9.1", {}), trainer_version=version)
    found = find_dialect(described)
    assert found is not None
    columns = {"advantage", "response_mask", "response_length", "logprob", "old_logprob", "minibatch", "microbatch", "uid"}
    listed = {
        item.name: item
        for item in found.logged(described, columns, {"critic/advantages/mean", "response_length/mean", "actor/ppo_kl"})
    }
    assert {name for name, item in listed.items() if not item.instead} == {"critic/advantages/mean", "response_length/mean"}

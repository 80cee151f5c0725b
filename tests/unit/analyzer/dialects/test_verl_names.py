"""verl's table against the code that recomputes its numbers, and what names tell of the version."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from rl_doctor.analyzer.dialects.registry import bounds_of, matching, plain
from rl_doctor.analyzer.dialects.verl import VERL
from rl_doctor.analyzer.recompute.registry import find_dialect
from rl_doctor.schema import RunInfo
from tests.unit.analyzer.recompute.reference_verl import info

ACTOR = "actor_rollout_ref__actor__"
CRITERIA = [f"{over}_{kind}" for over in ("token", "seq_sum", "seq_mean", "seq_max") for kind in ("k1", "k2", "k3")]
VERSIONS = ("0.5.0", "0.6.1", "0.7.1", "0.8.0", "0.9.1")


class Anything(set[str]):
    """Every column, or every name but those that only the engine workers log."""

    def __init__(self, *without: str) -> None:
        super().__init__()
        self.without = set(without)

    def __contains__(self, name: object) -> bool:
        return name not in self.without

    def isdisjoint(self, other: Any) -> bool:
        return not set(other) - self.without


def described(version: str) -> Iterator[RunInfo]:
    """Runs with settings under which together every key is produced."""
    corrections = [
        None, {"rollout_is": "token", "rollout_is_threshold": "0.5_2.0", "rollout_is_batch_normalize": True},
        *({"rollout_rs": name, "rollout_rs_threshold": 2.0} for name in CRITERIA),
        {"bypass_mode": True, "loss_type": "ppo_clip", "rollout_is": "token"},
    ]  # fmt: skip
    for correction in corrections:
        made = info(
            version, algorithm__kl_penalty="kl", algorithm__rollout_correction=correction, **{f"{ACTOR}calculate_entropy": True}
        )
        yield replace(made, config=replace(made.config, max_response_length=5))


def produced(version: str, without: tuple[str, ...]) -> set[str]:
    found = set()
    for made in described(version):
        dialect = find_dialect(made)
        assert dialect is not None
        found |= {item.name for item in dialect.logged(made, Anything(), Anything(*without))}
    return found


UPDATE = {"actor_pg_loss", "actor_ppo_kl", "actor_pg_clipfrac", "actor_grad_norm", "actor_lr"}
OLDER = ("actor/loss", "actor/entropy_loss", "critic/loss")


def keys(version: str) -> set[str]:
    if version != "0.7.1":
        return produced(version, ())
    return produced(version, OLDER) | produced(version, ())


@pytest.mark.parametrize("version", VERSIONS)
def test_every_key_that_is_recomputed_has_a_definition_in_its_version(version: str) -> None:
    bounds = bounds_of(version)
    held = [item for item in VERL.names if item.definition and item.definition.proof and bounds.within(item)]
    assert {key for key in keys(version) if not any(matching(item.native, (plain(key),)) for item in held)} == set()


def test_every_definition_that_is_held_is_recomputed_in_some_version() -> None:
    made = {version: {plain(key) for key in keys(version)} for version in VERSIONS}
    idle = {
        (item.native, item.since, item.until)
        for item in VERL.names
        if item.definition and item.definition.proof
        and not any(bounds_of(version).within(item) and matching(item.native, names) for version, names in made.items())
    }  # fmt: skip
    assert idle == set()


def test_every_name_is_defined() -> None:
    for item in VERL.names:
        assert item.definition is not None, item.native
        assert item.definition.proof or item.definition.reason, item.native
        assert item.definition.formula or item.definition.proof is None, item.native


@pytest.mark.parametrize(("names", "told"), [
    ({"rollout_corr_kl"}, ">=0.6.1"), ({"mismatch_kl"}, ">=0.6,<0.6.1"),
    ({"training_off_policy_trajectory_staleness_mean"}, ">=0.9"),
    ({"critic_score_mean", "response_length_clip_ratio", "prompt_length_clip_ratio"}, "<0.6"),
    ({*UPDATE, "response_aborted_ratio"}, ">=0.6,<0.8"), ({*UPDATE, "perf_mfu_actor_infer"}, ">=0.7,<0.8"), (UPDATE, "<0.8"),
    ({"actor_pg_loss"}, ""),
])  # fmt: skip
def test_names_tell_the_version(names: set[str], told: str) -> None:
    assert str(VERL.dated(names)) == told


NAMED = {
    "actor/pg_loss", "actor/kl_loss", "actor/ppo_kl", "critic/score/mean", "critic/advantages/max", "critic/vpred_mean",
    "critic/vf_loss", "rollout_corr/kl",
}  # fmt: skip


def test_what_possible_versions_do_not_share_has_several_meanings() -> None:
    several = replace(info(), trainer_version=">=0.8")
    dialect = find_dialect(several)
    assert dialect is not None
    found = {item.name: item for item in dialect.logged(several, Anything(), NAMED)}
    assert not any(found[key].instead for key in ("actor/pg_loss", "actor/ppo_kl", "critic/score/mean", "rollout_corr/kl"))
    assert len(found["critic/vf_loss"].instead) == 1
    wider = replace(info(), trainer_version=">=0.6,<0.9")
    found = {item.name: item for item in dialect.logged(wider, Anything(), NAMED)}
    assert not any(found[key].instead for key in ("critic/score/mean", "critic/advantages/max", "critic/vpred_mean"))
    assert {len(found[key].instead) for key in ("actor/pg_loss", "actor/kl_loss", "actor/ppo_kl")} == {2}

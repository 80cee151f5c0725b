"""AReaL's table against numbers that its own functions gave on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_doctor import Run, check
from rl_doctor.analyzer.dialects.areal import AREAL
from tests.unit.analyzer.dialects import golden

NAMES = golden.scenarios("areal")
M2PO = "recomputed, k2, group reward norm, m2po"
SETTINGS = {"eps_clip", "c_clip", "use_dual_clip", "mask_no_eos_with_zero", "rs_upper", "rs_lower"}
UPDATES = {"grad_norm", "lr", "update_successful", "num_micro_batches"}


def recorded(path: Path, name: str, changed: str | None = None, **info: Any) -> Run:
    one = golden.scenario("areal", name)
    columns = {
        **golden.columns_of("areal", name),
        "step": [3] * 16,
        "minibatch": one["minibatch"],
        "microbatch": one["microbatch"],
    }
    columns.setdefault("old_logprob", columns["rollout_logprob"])
    metrics = golden.metrics_of("areal", name)
    if changed is not None:
        metrics[3][changed] += 0.01 + 0.01 * abs(metrics[3][changed])
    described = {"trainer": "areal", "algorithm": "grpo", "config": {"native": one["native"]}, **info}
    return golden.record(path, described, columns, metrics)


@pytest.mark.parametrize("name", [name for name in NAMES if name != M2PO])
def test_every_number_is_recomputed(tmp_path: Path, name: str) -> None:
    run = recorded(tmp_path / "run", name)
    found = golden.compared(run)
    assert {left.rsplit("/", 1)[1] for left in set(run.metrics().names()) - set(found)} <= SETTINGS | UPDATES
    assert golden.apart(found) == {}


def test_tokens_that_are_dropped_by_their_rank_are_not_guessed(tmp_path: Path) -> None:
    found = golden.compared(recorded(tmp_path / "run", M2PO))
    assert golden.apart(found) == {}
    assert {name for name in found if name.startswith("ppo_actor/update/")} == {
        "ppo_actor/update/n_tokens", "ppo_actor/update/version_stats/v_theta", "ppo_actor/update/version_stats/v_proximal",
    }  # fmt: skip
    assert "ppo_actor/advantages/avg" in found


def test_tolerances_are_a_millionth_of_the_summands(tmp_path: Path) -> None:
    found = golden.compared(recorded(tmp_path / "run", NAMES[0]))
    for name in ("entropy/avg", "new_logp/avg", "behave_imp_weight/avg"):
        item = found[f"ppo_actor/update/{name}"]
        np.testing.assert_array_less(item.tolerance, 3e-6 * np.abs(item.logged), err_msg=name)


@pytest.mark.parametrize(
    "key", ["update/actor_loss/avg", "update/importance_weight/max", "update/rs_filtered_fraction", "seq_len/avg"]
)
def test_a_changed_number_is_found(tmp_path: Path, key: str) -> None:
    whole = check(recorded(tmp_path / "right", NAMES[0]))
    assert not [one for one in whole.results if one.code == "RLD801" and one.findings]
    wrong = check(recorded(tmp_path / "wrong", NAMES[0], changed=f"ppo_actor/{key}"))
    (finding,) = next(one for one in wrong.results if one.code == "RLD801").findings
    assert f"ppo_actor/{key}" in finding.message


def test_versions_are_those_of_the_token_before(tmp_path: Path) -> None:
    name = NAMES[1]
    run = recorded(tmp_path / "run", name)
    columns = {
        **golden.columns_of("areal", name),
        **{key: golden.scenario("areal", name)[key] for key in ("minibatch", "microbatch")},
    }
    means: dict[tuple[int, ...], list[int]] = {}
    for row in range(16):
        cell = tuple(columns[key][row] for key in ("rank", "minibatch", "microbatch"))
        masks, versions = columns["response_mask"][row], columns["token_version"][row]
        means.setdefault(cell, []).extend(6 - version for version, mask in zip(versions, masks[1:], strict=False) if mask)
    _, logged = run.metrics().series("ppo_actor/update/version_stats/sample_staleness_theta_avg")
    assert np.mean([np.mean(ages) for ages in means.values() if ages]) == pytest.approx(float(logged[0]), rel=1e-6)


def test_a_dropped_setting_is_not_guessed(tmp_path: Path) -> None:
    actor = {**golden.scenario("areal", NAMES[0])["native"]["actor"], "importance_sampling_level": None}
    found = golden.compared(recorded(tmp_path / "run", NAMES[0], config={"native": {"actor": actor}}))
    assert golden.apart(found) == {}
    assert "ppo_actor/update/approx_kl/avg" in found
    assert "ppo_actor/update/actor_loss/avg" not in found


def test_every_name_says_what_it_is() -> None:
    for item in AREAL.names:
        assert item.definition is not None, item.native
        assert (item.definition.proof is None) == bool(item.definition.reason), item.native

"""Names that trainers made at home use."""

from __future__ import annotations

import numpy as np
import pytest

from rl_doctor.analyzer.dialects.registry import LONGEST
from tests.unit.analyzer.dialects.logs import LOGS, STEPS, meanings, read, varied

LINE = np.linspace(0.1, 0.2, STEPS)


@pytest.mark.parametrize("name", ["truncated_rate", "clip_frac", "zero_std_frac"])
def test_what_goes_beyond_1_is_no_share(name: str) -> None:
    base = {"reward": LINE, "loss": LINE}
    assert meanings(read({**base, name: LINE})).keys() & {"length.truncated_frac", "policy.clip_frac", "group.zero_std_frac"}
    found = read({**base, name: 10 * LINE})
    assert not meanings(found).keys() & {"length.truncated_frac", "policy.clip_frac", "group.zero_std_frac"}
    assert found.unknown == (name,)
    assert f"{name} goes beyond 1: it is no share" in found.notes


def test_a_heading_before_a_name_does_not_change_it() -> None:
    names = ["losses/policy_loss", "losses/value_loss", "losses/old_approx_kl", "losses/entropy", "charts/episodic_return"]
    found = meanings(read(varied([*names, "charts/learning_rate", "rl/kl"])))
    assert found.keys() >= {
        "policy.loss_pg", "value.loss", "policy.kl_old_k1", "policy.entropy", "reward.mean", "optim.learning_rate", "ref.kl",
    }  # fmt: skip


def test_a_length_that_never_varies_is_a_limit() -> None:
    assert "length.max" not in meanings(read({"reward": LINE, "max_gen_tokens": 1024.0}))
    assert "length.max" in meanings(read({"reward": LINE, "max_gen_tokens": 1000 * LINE}))


def test_negative_entropy_bonuses_are_no_entropy() -> None:
    assert "policy.entropy" not in meanings(read({"reward": LINE, "entropy_loss": -LINE}))


def test_names_that_nobody_would_write_are_left_alone() -> None:
    strange = {
        "": 0.1,
        "{}": 0.1,
        "train/": 0.1,
        "rewards/{x}/mean": 0.1,
        "a\nb": 0.1,
        "val-core" + "_mean@" * 9999: 0.1,
        "/": 0.1,
    }
    found = read({**varied(LOGS["VERL"].names()), **strange})
    assert found.info.trainer == "verl"
    assert "reward.mean" in meanings(found)
    assert max(map(len, found.unknown)) > LONGEST


@pytest.mark.parametrize("at", ["@", "_"])
def test_the_number_of_answers_may_stand_behind_an_underscore(at: str) -> None:
    for base in (varied(LOGS["VERL"].names()), {"reward": LINE}):
        logged = {name: values for name, values in base.items() if not name.startswith("val-")}
        scored = {f"val-core/openai/gsm8k/acc/mean{at}8": LINE, f"val-core/openai/gsm8k/acc/best{at}8/mean": 2 * LINE}
        found = meanings(read({**logged, **scored, "val-core/openai/gsm8k/acc/mean_length": 100 * LINE}))
        np.testing.assert_allclose(found["val.mean_at_n"], LINE)
        np.testing.assert_allclose(found["val.best_at_n"], 2 * LINE)

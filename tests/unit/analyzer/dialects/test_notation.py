"""The formulas of metrics and of what trainers log use letters that the notation explains, and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import pytest

from rl_doctor import schema
from rl_doctor.analyzer import dialects_page
from rl_doctor.analyzer.dialects.registry import Trainer, trainers
from rl_doctor.analyzer.notation import NOTATION
from rl_doctor.analyzer.registry import metrics

TOKEN = re.compile(r"(?<![\w.'-])[^\W\d_][\w']*")
STAGE = re.compile(r"\*([^*\s](?:[^*]*[^*\s])?)\*")
ENGLISH = frozenset(
    {
        "a",
        "an",
        "as",
        "at",
        "be",
        "by",
        "if",
        "in",
        "is",
        "it",
        "no",
        "of",
        "on",
        "or",
        "so",
        "to",
        "up",
        "In",
        "Not",
        "KL",
        "EOS",
        "NaN",
        "None",
        "RLOO",
        "GRPO",
        "DPO",
        "FSDP",
        "Megatron",
        "SAPO",
        "Pearson's",
        "Hugging",
        "Face",
        "Other",
        "Only",
        "Then",
        "An",
        "With",
        "Engine",
        "GAE",
        "Mean",
        "TRL",
        "nat",
    }
)
STATISTICS = frozenset({"mean", "sum", "max", "min", "share", "std", "var", "cov", "corr", "quantile", "mode", "lag"})
OVER = frozenset({"T", "F", "S", "i", "Ti", "g", "t", "j", "rank"})
LOSSES = frozenset(
    {
        "kl_cov",
        "clip_cov",
        "geo_mean",
        "dr_grpo",
        "flash_reinforce",
        "group_norm",
        "reinforce_baseline",
        "cross_entropy",
        "rollout_is",
        "importance_sampling",
        "sigmoid_norm",
        "token_mean",
        "sequence_mean",
        "seq_mean_token_sum_norm",
        "token_mean_legacy",
        "prompt_mean",
        "normalize_then_sum",
        "low_var_kl",
        "k1",
        "k2",
        "k3",
    }
)
"""Words for losses, estimators and reductions that a trainer's configuration has."""
OWN = {
    "areal": {
        "n_valid_tokens",
        "c_clip",
        "eps_clip",
        "eps_clip_higher",
        "kl_ctl",
        "kl_estimator",
        "v_theta",
        "tau_pos",
        "tau_neg",
    },
    "minimind": {"clip_epsilon", "cliprange_value", "epsilon_high", "train_agent", "py"},
    "nemo-rl": {
        "ratio_clip_c",
        "ratio_clip_max",
        "ratio_clip_min",
        "kl_input_clamp_value",
        "kl_output_clamp_value",
        "sample_mask",
        "token_mask",
        "use_on_policy_kl_approximation",
        "pct_0",
        "pct_1",
    },
    "openrlhf": {"clip_range", "init_coef", "max_len", "value_clip", "policy_loss", "dual_clip", "response_length", "pass1"},
    "prime-rl": {"adv_tau", "kl_tau", "mask_low", "mask_high", "ipo_threshold", "mismatch_kl"},
    "roll": {
        "kl_loss_coef",
        "rl_loss_coef",
        "entropy_loss_coef",
        "pg_clip",
        "pg_loss",
        "upper_bound",
        "use_kl_loss",
        "value_clip",
        "loss_agg_mode",
    },
    "skyrl": {"kl_loss_coef", "max_seq_len", "value_clip"},
    "slime": {
        "C",
        "k",
        "c",
        "entropy_coef",
        "eps_clip",
        "eps_clip_c",
        "eps_clip_high",
        "kl_loss_coef",
        "opsm_delta",
        "tis_clip",
        "tis_clip_low",
        "use_rollout_logprobs",
        "use_unbiased_kl",
        "value_clip",
        "rollout_max_response_len",
        "calculate_per_token_loss",
        "old_value",
        "pg",
    },
    "trl": {
        "logps_chosen",
        "logps_rejected",
        "ref_chosen",
        "ref_rejected",
        "label_smoothing",
        "loss_weights",
        "epsilon_high",
        "k",
        "kl_coef",
        "use_bias_correction_kl",
        "max_completion_length",
        "num_items_in_batch",
        "steps_per_generation",
        "top_entropy_quantile",
        "reward_weights",
        "scale_rewards",
        "multi_objective_aggregation",
        "importance_sampling_level",
        "entropy_coef",
    },
    "verl": {
        "loss_agg_mode",
        "loss_scale_factor",
        "loss_mode",
        "entropy_coeff",
        "kl_loss_coef",
        "kl_loss_type",
        "clip_ratio_c",
        "cliprange_value",
        "kl_penalty",
        "calculate_entropy",
        "token_level_rewards",
        "token_level_scores",
    },
}
"""Settings, columns and script names of a trainer's own that its formulas name."""


def explained() -> set[str]:
    """Every letter and word of the notation."""
    return {word for letters in NOTATION for word in TOKEN.findall(letters)} | {"V", "d_i", "p_i", "n_g", "w_c"}


def letters(formula: str) -> Iterator[str]:
    """What of a formula is no plain word: short, or with a digit, an underscore or a capital letter."""
    for token in TOKEN.findall(STAGE.sub(" ", formula)):
        plain = token.removesuffix("'s")
        if len(plain) <= 2 or "_" in plain or plain != plain.lower() or any(sign.isdigit() for sign in plain):
            yield token


def unexplained(formula: str, own: frozenset[str] | set[str]) -> set[str]:
    """Letters that neither the notation nor the formula itself explains."""
    known = explained() | ENGLISH | LOSSES | own | set(schema.COLUMNS) | set(schema.SETTINGS)
    defined = set(re.findall(r"\b([a-z](?:_[a-z])?) (?:=|the )", formula)) - {"x", "y", "d", "m"}
    found = set()
    for token in letters(formula):
        head, _, over = token.partition("_")
        if not {token, token.removesuffix("'s")} & (known | defined) and not (head in STATISTICS and over in OVER):
            found.add(token)
    return found


@pytest.mark.parametrize("known", trainers().values(), ids=trainers())
def test_trainers_use_the_notation(known: Trainer) -> None:
    own = OWN.get(known.name, set())
    formulas = {item.definition.formula for item in known.names if item.definition is not None} | set(known.stages.values())
    assert {formula: found for formula in formulas if (found := unexplained(formula, own))} == {}


@pytest.mark.parametrize("known", trainers().values(), ids=trainers())
def test_what_many_formulas_share_is_told_once(known: Trainer) -> None:
    formulas = [item.definition.formula for item in known.names if item.definition is not None]
    named = {name for text in (*formulas, *known.stages.values()) for name in STAGE.findall(text)}
    assert named == set(known.stages)
    parts = Counter(part.strip() for formula in set(formulas) for part in formula.split(";"))
    assert [part for part, number in parts.items() if number > 3 and len(part) > 80] == []
    assert all(len(line) <= 450 for line in dialects_page.page(known))


def test_metrics_use_the_notation() -> None:
    own = {
        "k",
        "j",
        "a_t",
        "b_t",
        "R_i",
        "R_j",
        "R_t",
        "V_t",
        "lag_i",
        "mode_i",
        "p_i",
        "tokens_i",
        "tokens_j",
        "bfloat16",
        "float16",
        "s",
        "loss_pg",
        "is_weight",
        "_i",
        "sum_",
    }
    assert {name: found for name, known in metrics().items() if (found := unexplained(known.formula, own))} == {}


def test_every_page_leads_to_the_notation() -> None:
    index = list(dialects_page.index())
    assert "## Notation" in index
    for letters_, meaning in NOTATION.items():
        assert f"- `{letters_}`: {meaning}" in index
    assert all("../dialects.md#notation" in "\n".join(dialects_page.page(known)) for known in trainers().values())

"""Names that trainers and their dumps give to the canonical columns. Data; a name stands here only if it means one thing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from rl_doctor import schema
from rl_doctor.errors import InputError
from rl_doctor.frozen import frozen

ATTENTION_MASK: Final = "attention_mask"
"""Not stored: which positions are not padding. Response-wide, or over prompt and response with ``prompt_length``."""
PANDAS_INDEX: Final = "__index_level_"
"""Start of the names under which pandas stores an index; it is no column of the run."""
FULL_WIDTH: Final = frozenset({"input_ids", "sequences", "all_token_ids"})
"""Names of token ids over prompt and response."""

_BY_COLUMN: Final[Mapping[str, tuple[str, ...]]] = {
    "sequence": ("sequence_id", "seq_id", "sequence_idx", "export_sequence_idx"),
    "step": ("global_step", "global_steps", "optimizer_step", "train_step", "training_step", "total_steps"),
    "rollout_step": ("rollout_id", "generation_step", "generation_batch"),
    "epoch": ("ppo_epoch",),
    "minibatch": ("mini_batch", "minibatch_idx", "mini_batch_idx"),
    "microbatch": ("micro_batch", "microbatch_idx", "micro_batch_idx", "micro_step"),
    "rank": ("dp_rank",),
    "window": ("accum_window_idx",),
    "uid": ("sample_uid", "sample_id", "sample_uuid", "rollout_uid"),
    "group": ("group_id", "group_index", "group_idx", "prompt_id", "prompt_uid"),
    "session_id": ("session",),
    "turns": ("num_turns", "n_turns", "turn_count"),
    "data_source": ("env_name", "task_name", "datasource", "dataset"),
    "prompt_length": ("prompt_len", "prompt_lens", "prompt_lengths"),
    "response_length": (
        "response_len", "response_lens", "response_lengths", "completion_length", "completion_len", "completion_lengths",
    ),
    "finish_reason": ("stop_reason", "finish_reasons", "stop_reasons"),
    "reward": ("rewards", "reward_final", "total_reward", "task_reward"),
    "score": ("scores", "raw_reward"),
    "weight_version": ("model_version", "rollout_weight_version"),
    "policy_version": ("train_version",),
    "is_padding": ("is_pad", "is_dummy"),
    "prompt": ("prompt_text",),
    "response": ("response_text", "completion_text"),
    "learning_rate": ("lr",),
    "token_id": (
        "token_ids", "completion_ids", "response_ids", "response_tokens", "output_ids", *sorted(FULL_WIDTH),
    ),
    "response_mask": ("completion_mask", "action_mask", "response_masks", "completion_masks", "final_response_mask"),
    "loss_mask": ("loss_masks", "loss_mask_orig"),
    "logprob": (
        "logprobs", "log_prob", "log_probs", "per_token_logps", "new_log_probs", "new_logprobs", "logp", "logp_cur",
        "trainer_logprobs", "current_logprobs",
    ),
    "old_logprob": (
        "old_logprobs", "old_log_prob", "old_log_probs", "old_per_token_logps", "action_log_probs", "prox_logp", "prev_logprobs",
        "logp_old", "old_logp",
    ),
    "rollout_logprob": (
        "rollout_logprobs", "rollout_log_prob", "rollout_log_probs", "sampling_per_token_logps", "generation_logprobs",
        "inference_logprobs", "logp_rollout", "sampling_logprobs", "infer_logprobs", "behave_logp",
    ),
    "ref_logprob": (
        "ref_logprobs", "ref_log_prob", "ref_log_probs", "ref_per_token_logps", "base_action_log_probs", "ref_logp",
        "reference_policy_logprobs", "reference_logprobs", "logp_ref",
    ),
    "teacher_logprob": ("teacher_logprobs", "teacher_log_probs", "teacher_per_token_logps"),
    "advantage": ("advantages", "adv"),
    "return": ("returns",),
    "value": ("values", "new_values", "vpreds"),
    "old_value": ("old_values",),
    "token_reward": ("token_rewards", "token_level_rewards", "tot_rewards"),
    "entropy": ("entropies", "entropy_cur", "per_token_entropies"),
    "old_entropy": ("old_entropies", "entropy_old", "old_entropys"),
    "is_weight": ("is_weights", "rollout_is_weights", "behave_imp_weight"),
    "token_version": ("versions", "token_versions", "weight_versions"),
    "role": ("roles", "token_roles"),
    "ratio": ("ratios", "importance_ratio", "importance_sampling_ratio"),
    ATTENTION_MASK: ("attn_mask", "attention_masks"),
}  # fmt: skip

ALIASES: Final[Mapping[str, str]] = MappingProxyType({alias: name for name, found in _BY_COLUMN.items() for alias in found})
"""Alias -> canonical name."""


@frozen
class Resolution:
    """What the columns of a file are.

    Attributes:
        found: canonical name (or ``attention_mask``) -> name in the file.
        renamed: "found -> canonical" for each alias.
        unknown: names that are nothing we know.
        notes: sentences about aliases that were set aside.
    """

    found: Mapping[str, str]
    renamed: tuple[str, ...]
    unknown: tuple[str, ...]
    notes: tuple[str, ...]


def resolve(names: Iterable[str], where: str) -> Resolution:
    """Map the names of a file's columns to canonical ones.

    Args:
        names: names in the file.
        where: what messages call the file.

    Raises:
        InputError: two columns have one name, or claim one canonical name that neither has.
    """
    names = list(names)
    if twice := [name for name in names if names.count(name) > 1]:
        raise InputError(f"{where}: two columns are called {twice[0]!r}; drop or rename one")
    found = {name: name for name in names if schema.column(name) is not None or name == ATTENTION_MASK}
    renamed: dict[str, str] = {}
    unknown: list[str] = []
    notes: list[str] = []
    for name in names:
        if name in found and found[name] == name:
            continue
        canonical = ALIASES.get(name)
        if canonical is None:
            unknown.append(name)
        elif canonical not in found:
            found[canonical] = name
            renamed[name] = canonical
        elif found[canonical] == canonical:
            notes.append(f"column {name!r} is set aside: {canonical!r} is there under its own name")
        else:
            raise InputError(f"{where}: columns {found[canonical]!r} and {name!r} both mean {canonical!r}; drop or rename one")
    return Resolution(found, tuple(f"{name} -> {canonical}" for name, canonical in renamed.items()), tuple(unknown), tuple(notes))

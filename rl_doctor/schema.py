"""Every stored column: name, type, level, unit and meaning. The contract between collectors, store and analyzer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

SCHEMA_VERSION: Final = 1
"""Version of the stored form. A reader refuses a larger one."""

METADATA_KEY: Final = b"rl_doctor"
"""Key of the JSON document in a Parquet file's key-value metadata."""

Level = Literal["sequence", "token", "context", "metric"]
DType = Literal["int64", "int32", "float64", "float32", "bool", "string"]

REWARD_COMPONENT_PREFIX: Final = "reward/"
ROLES: Final = ("assistant", "tool", "user", "system")
"""Values of the token column ``role``; in memory a role is its index here, and -1 is unknown."""

MISSING_INT: Final[Mapping[str, int]] = MappingProxyType({"int64": -(2**63), "int32": -(2**31)})
"""In memory, a null in an integer column is this value. A null in a float column is NaN, in a string column None."""


SUPERVISED: Final = frozenset({"sft"})
PREFERENCE: Final = frozenset({"dpo", "kto", "orpo", "cpo", "simpo", "ipo", "reward_model"})
"""Algorithms that learn from demonstrations, and from preferences: in none of them a policy samples."""


@dataclass(frozen=True, slots=True)
class Column:
    """One stored column.

    Attributes:
        name: canonical name, spelled the same everywhere.
        dtype: stored type.
        level: the table it lives in: one row per sequence and update pass, per token, per micro-batch, or per logged value.
        unit: "nat", "tokens", "1", ... or "" for identifiers.
        meaning: one sentence.
        since: SCHEMA_VERSION that introduced it.
    """

    name: str
    dtype: DType
    level: Level
    unit: str
    meaning: str
    since: int = 1


def _q(name: str, dtype: DType, unit: str, meaning: str) -> Column:
    return Column(name, dtype, "sequence", unit, meaning)


def _t(name: str, dtype: DType, unit: str, meaning: str) -> Column:
    return Column(name, dtype, "token", unit, meaning)


def _c(name: str, dtype: DType, unit: str, meaning: str) -> Column:
    return Column(name, dtype, "context", unit, meaning)


def _m(name: str, dtype: DType, unit: str, meaning: str) -> Column:
    return Column(name, dtype, "metric", unit, meaning)


SEQUENCE_COLUMNS: Final = (
    _q("sequence", "int64", "", "Unique id of this row (a sequence in one update pass); joins the tables."),
    _q("step", "int64", "steps", "Optimizer step as the trainer logs it."),
    _q("rollout_step", "int64", "steps", "Generation batch that the sequence came from; equal to step where absent."),
    _q("epoch", "int32", "", "Pass over the generation batch, from 0."),
    _q("minibatch", "int32", "", "Optimizer step within the pass, from 0; 0 in epoch 0 means no step was taken since sampling."),
    _q("microbatch", "int32", "", "Forward pass within the mini-batch, from 0."),
    _q("rank", "int32", "", "Data-parallel rank that trained on it."),
    _q("window", "int32", "", "Gradient-accumulation window, where the trainer normalises by it."),
    _q("uid", "string", "", "Identity of the sampled sequence, the same in every pass over it."),
    _q("group", "string", "", "Identity of the prompt whose samples are compared with each other."),
    _q("session_id", "string", "", "Identity of the multi-turn session that the sequence is part of."),
    _q("turns", "int32", "turns", "Number of assistant turns."),
    _q("data_source", "string", "", "Name of the data set or environment of the prompt."),
    _q("prompt_length", "int32", "tokens", "Number of prompt tokens."),
    _q(
        "response_length",
        "int32",
        "tokens",
        "Number of response tokens really generated or observed (attention mask, or lengths).",
    ),
    _q("stored_length", "int32", "tokens", "Number of response tokens kept in the token table."),
    _q("tokens_dropped", "bool", "", "Tokens of the sequence were left out to save space; its stored_length is 0."),
    _q("prompt_loss_tokens", "int32", "tokens", "Number of prompt positions that the loss covers; 0 is right."),
    _q("finish_reason", "string", "", "Why generation ended: stop, length, abort, or the engine's own word."),
    _q("reward", "float64", "reward", "Reward that the advantage was computed from."),
    _q("score", "float64", "reward", "Reward before shaping, penalties and KL."),
    _q("weight_version", "int64", "", "Version of the policy that sampled the sequence; the newest where several did."),
    _q("first_weight_version", "int64", "", "Oldest version of the policy that sampled a part of the sequence."),
    _q("policy_version", "int64", "", "Version of the policy being trained."),
    _q("is_padding", "bool", "", "Row that exists only to fill the batch."),
    _q("pair", "string", "", "Identity of the preference pair."),
    _q("chosen", "bool", "", "Preferred side of the pair."),
    _q("pack_index", "int32", "", "Index of the packed row that the sequence lay in."),
    _q("left_padding", "int32", "tokens", "Number of padding tokens to the left of the prompt."),
    _q("prompt", "string", "", "Prompt text; not recorded unless asked for."),
    _q("response", "string", "", "Response text; not recorded unless asked for."),
    _q("grad_norm", "float64", "1", "Total gradient norm of the step before clipping (run files; else in metrics)."),
    _q("learning_rate", "float64", "1", "Learning rate of the step (run files; else in metrics)."),
)

TOKEN_COLUMNS: Final = (
    _t("token_id", "int32", "", "Token id."),
    _t("response_mask", "bool", "", "Token that the policy is trained on."),
    _t("loss_mask", "bool", "", "The normaliser's mask, where it differs from response_mask."),
    _t("turn", "int32", "", "Turn that the token belongs to, from 0."),
    _t("logprob", "float32", "nat", "Log-probability under the policy being trained, in this pass."),
    _t("old_logprob", "float32", "nat", "Log-probability that the ratio divides by."),
    _t("rollout_logprob", "float32", "nat", "Log-probability reported by the engine that sampled the token."),
    _t("ref_logprob", "float32", "nat", "Log-probability under the reference policy."),
    _t("teacher_logprob", "float32", "nat", "Log-probability under a teacher (distillation)."),
    _t("advantage", "float32", "1", "Advantage that the policy loss used."),
    _t("return", "float32", "reward", "Return that the value loss regresses on."),
    _t("value", "float32", "reward", "Value under the critic being trained."),
    _t("old_value", "float32", "reward", "Value at sampling time."),
    _t("token_reward", "float32", "reward", "Reward of the token, after shaping and KL."),
    _t("entropy", "float32", "nat", "Entropy of the policy being trained, in this pass."),
    _t("old_entropy", "float32", "nat", "Entropy of the policy of old_logprob."),
    _t("is_weight", "float32", "1", "Importance weight of rollout correction, as applied in the loss."),
    _t("token_version", "int64", "", "Version of the policy that sampled the token."),
    _t("role", "string", "", "Who wrote the token: assistant, tool, user, system."),
    _t("ratio", "float32", "1", "Importance ratio as the trainer computed it; else derived."),
    _t("kl", "float32", "nat", "KL term as the trainer computed it; else derived."),
)

LOGPROBS: Final = tuple(item.name for item in TOKEN_COLUMNS if item.name.endswith("logprob"))
"""Token columns that hold log-probabilities."""

CONTEXT_COLUMNS: Final = (
    _c("padded_width", "int32", "tokens", "Padded response width of the micro-batch."),
    _c("batch_num_tokens", "int64", "tokens", "Token normaliser of the loss."),
    _c("global_batch_size", "int64", "sequences", "Sequence normaliser of the loss."),
    _c("loss_scale_factor", "float64", "1", "Constant normaliser of the loss."),
    _c("grad_accumulation", "int32", "", "Micro-batches per optimizer step."),
    _c("num_items_in_batch", "int64", "tokens", "Hugging Face's token normaliser."),
)

METRIC_COLUMNS: Final = (
    _m("step", "int64", "steps", "Step of the logged value, as the trainer counts."),
    _m("time", "float64", "s", "Unix time at which it was logged."),
    _m("name", "string", "", "Native name, as the trainer logged it."),
    _m("value", "float64", "", "Value."),
    _m("split", "string", "", "train or eval."),
    _m("source", "string", "", "Where the value was taken from."),
)

COLUMNS: Final[Mapping[str, Column]] = MappingProxyType(
    {column.name: column for column in (*SEQUENCE_COLUMNS, *TOKEN_COLUMNS, *CONTEXT_COLUMNS)}
)
"""Columns of a run by canonical name (without the long-form metrics table)."""


def column(name: str) -> Column | None:
    """Return the canonical column of that name, also for ``reward/<component>``; None if there is none."""
    if name.startswith(REWARD_COMPONENT_PREFIX) and len(name) > len(REWARD_COMPONENT_PREFIX):
        return Column(
            name, "float64", "sequence", "reward", "Reward component, before weighting unless the trainer logs it weighted."
        )
    return COLUMNS.get(name)


def canonical(name: str) -> Column:
    """The canonical column of that name, for names that have been resolved already.

    Raises:
        KeyError: there is none.
    """
    found = column(name)
    if found is None:
        raise KeyError(name)
    return found


@dataclass(frozen=True, slots=True)
class RunConfig:
    """What the metrics depend on, in canonical terms. None means unknown: nothing is guessed.

    ``SETTINGS`` says of each what it means and which values it may have.
    """

    clip_low: float | None = None
    clip_high: float | None = None
    dual_clip: float | None = None
    log_ratio_clamp: float | None = None
    kl_coef: float | None = None
    kl_estimator: str | None = None
    kl_in_reward: bool | None = None
    kl_input_clamp: float | None = None
    kl_output_clamp: float | None = None
    entropy_coef: float | None = None
    loss_agg: str | None = None
    adv_estimator: str | None = None
    adv_eps: float | None = None
    adv_ddof: int | None = None
    adv_norm: str | None = None
    gamma: float | None = None
    lam: float | None = None
    value_clip: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_response_length: int | None = None
    group_size: int | None = None
    epochs: int | None = None
    minibatches: int | None = None
    max_grad_norm: float | None = None
    is_correction: str | None = None
    reward_weights: Mapping[str, float] | None = None
    native: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Setting:
    """What may stand in a member of the run's description.

    Attributes:
        meaning: one sentence.
        unit: "nat", "tokens", ... or "".
        words: the known words of a text.
        closed: whether no other word has a meaning; else another is fine.
        least: smallest number that makes sense; None for no bound.
        most: largest number that makes sense; None for no bound.
    """

    meaning: str
    unit: str = ""
    words: tuple[str, ...] = ()
    closed: bool = False
    least: float | None = None
    most: float | None = None


SETTINGS: Final[Mapping[str, Setting]] = MappingProxyType({
    "clip_low": Setting("Distance from 1 of the ratio's lower clip bound: 0.2 clips at 0.8.", least=0),
    "clip_high": Setting("Distance from 1 of the ratio's upper clip bound: 0.28 clips at 1.28.", least=0),
    "dual_clip": Setting("Constant c of dual clip, which bounds the loss where the advantage is negative.", least=1),
    "log_ratio_clamp": Setting(
        "Symmetric bound of the log-ratio before it is exponentiated; all of `policy.` is computed with it.", "nat", least=0
    ),
    "kl_coef": Setting("Coefficient of the KL term; 0 where there is none.", least=0),
    "kl_estimator": Setting("Estimator of the KL term.", words=("k1", "k2", "k3", "abs"), closed=True),
    "kl_in_reward": Setting("Whether the KL term is part of the reward (true) or of the loss (false)."),
    "kl_input_clamp": Setting("Symmetric bound of the log-ratio in the KL term; `ref.kl_k3` uses it.", "nat", least=0),
    "kl_output_clamp": Setting("Symmetric bound of the KL term itself; `ref.kl_k3` uses it.", "nat", least=0),
    "entropy_coef": Setting("Coefficient of the entropy bonus; positive rewards entropy."),
    "loss_agg": Setting(
        "How the loss of the tokens becomes one number.",
        words=("token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"), closed=True,
    ),
    "adv_estimator": Setting(
        "How advantages are computed.",
        words=(
            "grpo", "dr_grpo", "rloo", "gae", "reinforce", "reinforce_plus_plus", "remax", "reinforce_plus_plus_baseline",
            "flash_reinforce", "grpo_passk", "gdpo", "opo", "gpg",
        ),
    ),
    "adv_eps": Setting(
        "What is added to the standard deviation that advantages are divided by; `advantage.fit_configured_mean` needs it there.",
        least=0,
    ),
    "adv_ddof": Setting(
        "Degrees of freedom that this standard deviation subtracts (numpy 0, torch 1); needed as adv_eps is.", least=0, most=1
    ),
    "adv_norm": Setting("Whose standard deviation advantages are divided by.", words=("group", "batch", "none"), closed=True),
    "gamma": Setting("Discount of later rewards.", least=0, most=1),
    "lam": Setting("Lambda of generalised advantage estimation.", least=0, most=1),
    "value_clip": Setting("Distance from the old value that the value loss allows.", "reward", least=0),
    "temperature": Setting("Temperature of sampling; 0 is greedy.", least=0),
    "top_p": Setting("Share of the probability that sampling keeps; 1 keeps all.", least=0, most=1),
    "top_k": Setting("Number of tokens that sampling keeps; 0 or -1 keeps all.", "tokens", least=-1),
    "max_response_length": Setting("Longest response that sampling allows.", "tokens", least=1),
    "group_size": Setting("Number of responses sampled per prompt.", "sequences", least=1),
    "epochs": Setting("Passes over each generation batch.", least=1),
    "minibatches": Setting("Optimizer steps per pass.", "steps", least=1),
    "max_grad_norm": Setting("Norm to which gradients are clipped.", least=0),
    "is_correction": Setting("Importance correction of the rollout's policy, as the trainer calls it, or none.", words=("none",)),
    "reward_weights": Setting("Weight of each reward component, by its name without `reward/`."),
    "native": Setting("The trainer's own configuration, untranslated."),
})  # fmt: skip
"""Member of ``RunConfig`` -> what it means, and the values that make sense. What else is given is kept, and told."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The content of ``run.json``.

    ``MEMBERS`` says of each what it means.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str | None = None
    trainer: str | None = None
    trainer_version: str | None = None
    algorithm: str | None = None
    status: str | None = None
    sessions: tuple[Mapping[str, Any], ...] = ()
    world_size: int | None = None
    writing_ranks: tuple[int, ...] | None = None
    logprob_dtype: str | None = None
    sampling: float | None = None
    pad_token_id: int | None = None
    eos_token_ids: tuple[int, ...] | None = None
    vocab_size: int | None = None
    unknown_config: tuple[str, ...] | None = None
    unknown_columns: tuple[str, ...] | None = None
    config: RunConfig = RunConfig()
    extra: Mapping[str, Any] | None = None

    @property
    def partial(self) -> bool:
        """Whether some ranks are known not to write, so that no batch is there as a whole."""
        return self.writing_ranks is not None and len(self.writing_ranks) < (self.world_size or 1)


MEMBERS: Final[Mapping[str, Setting]] = MappingProxyType({
    "schema_version": Setting("Version of the stored form; a newer one than the reader's is refused."),
    "run_id": Setting("Identity of the run, made by the recorder."),
    "trainer": Setting(
        "Trainer that made the run.",
        words=("trl", "verl", "openrlhf", "nemo-rl", "slime", "areal", "skyrl", "torchtune", "custom"),
    ),
    "trainer_version": Setting("Its version, or bounds of it: `>=0.8,<0.9`."),
    "algorithm": Setting(
        "What it trained by.",
        words=(
            "grpo", "dr_grpo", "dapo", "gspo", "gmpo", "cispo", "sapo", "rloo", "ppo", "reinforce", "reinforce_plus_plus",
            "remax", "flash_reinforce", "bnpo", "vespo", "luspo", "gdpo", "dpo", "online_dpo", "ipo", "kto", "orpo", "cpo",
            "simpo", "reward_model", "opd", "sft",
        ),
    ),
    "status": Setting("How the recording stands; the recorder sets it.", words=("running", "complete", "detached")),
    "sessions": Setting(
        "One object per session of recording: `session`, `started` (Unix time), `world_size`, and `config` where the session "
        "after it had another."
    ),
    "world_size": Setting("Number of data-parallel ranks.", "ranks", least=1),
    "writing_ranks": Setting("Ranks whose parts a step needs to be complete."),
    "logprob_dtype": Setting("Floating type that the trainer computed log-probabilities in."),
    "sampling": Setting("Share of the groups whose tokens are kept; all where absent.", least=0, most=1),
    "pad_token_id": Setting("Id of the padding token."),
    "eos_token_ids": Setting("Ids of the tokens that end a response."),
    "vocab_size": Setting("Number of token ids.", "tokens", least=1),
    "unknown_config": Setting("Members of `config` that are none of those below; their values are in `config.native`."),
    "unknown_columns": Setting("What was logged under a name that is no column, and dropped."),
    "config": Setting("What the metrics depend on: the object below."),
    "extra": Setting("Members of `run.json` that are none of these."),
})  # fmt: skip
"""Member of ``RunInfo`` -> what it means, and the values that make sense."""

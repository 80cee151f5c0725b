"""What can be recorded with each trainer: versions, how to switch recording on, and which columns need a setting of the trainer.

Data only: ``rl-doctor env``, the messages of the adapters and the guides say what stands here. Nothing of a trainer is imported.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from rl_doctor.frozen import frozen

Version = tuple[int, ...]


@frozen
class Switch:
    """Columns that are recorded only with a setting of the trainer.

    Attributes:
        columns: the columns.
        setting: the setting, as the trainer spells it.
        note: what it costs or what else it does, or "".
    """

    columns: tuple[str, ...]
    setting: str
    note: str = ""


@frozen
class Support:
    """What rl-doctor can do with a trainer.

    Attributes:
        name: name of its distribution, by which it is installed.
        recorded: what of it is recorded: classes or commands.
        first: the first version that is supported.
        end: the first version that is not supported any more.
        how: how recording is switched on, one line each.
        entry_point: group of entry points by which the trainer finds the recording, or "".
        otherwise: what makes the trainer load the recording where that entry point is not installed, or "".
        guide: page of the guide, or "".
        columns: what is recorded with any settings.
        switches: what else can be.
    """

    name: str
    recorded: str
    first: Version
    end: Version
    how: tuple[str, ...]
    entry_point: str
    otherwise: str
    guide: str
    columns: tuple[str, ...]
    switches: tuple[Switch, ...]

    @property
    def versions(self) -> str:
        """The supported versions, such as ``trl >= 1.16, < 2``."""
        return f"{self.name} >= {_dotted(self.first)}, < {_dotted(self.end)}"

    def supports(self, version: str) -> bool:
        """Whether a version, such as ``1.16.0`` or ``0.9.1.dev0``, is among them."""
        return self.first <= numbers(version) < self.end


def numbers(version: str) -> Version:
    """The leading numbers of a version: ``1.16.0.dev3+cpu`` gives (1, 16, 0)."""
    release = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in release[0].split(".")) if release else ()


def _dotted(version: Version) -> str:
    return ".".join(str(number) for number in version)


_KEYS: Final = ("step", "uid", "rank", "epoch", "minibatch", "microbatch", "prompt_loss_tokens")
_LENGTHS: Final = ("prompt_length", "response_length")
_UPDATE: Final = ("token_id", "response_mask", "logprob", "old_logprob", "advantage")

TRL: Final = Support(
    name="trl",
    recorded="GRPOTrainer and RLOOTrainer",
    first=(1, 16),
    end=(2,),
    how=('recorder = rl_doctor.attach(trainer, "runs/a")  # after the trainer was built, in every process',),
    entry_point="",
    otherwise="",
    guide="",
    columns=(
        *_KEYS, *_UPDATE, "entropy", *_LENGTHS, "finish_reason", "rollout_step", "group", "reward", "reward/<component>",
        "padded_width", "num_items_in_batch", "grad_accumulation", "grad_norm", "learning_rate",
    ),
    switches=(
        Switch(("ref_logprob",), "beta > 0", "a reference model is loaded"),
        Switch(
            ("rollout_logprob",), "use_vllm=True, or a rollout_func that returns logprobs",
            "generation by transformers reports none",
        ),
        Switch(("is_weight",), "use_vllm=True with vllm_importance_sampling_correction=True"),
        Switch(("role",), "tools or an environment that write into the response"),
    ),
)  # fmt: skip

VERL: Final = Support(
    name="verl",
    recorded="main_ppo and loops around TrainingWorker",
    first=(0, 9),
    end=(0, 10),
    how=(
        "RL_DOCTOR_RUN=runs/a in the environment of the job; verl loads the plugin by its entry point, verl.plugins",
        "or trainer.logger=[console,rl_doctor], which records below trainer.default_local_dir",
    ),
    entry_point="verl.plugins",
    otherwise="VERL_USE_EXTERNAL_MODULES=rl_doctor.collectors.verl",
    guide="docs/guide/verl.md",
    columns=(
        *_KEYS, *_UPDATE, "return", "group", "session_id", "reward", "score", "reward/<component>", *_LENGTHS, "turns",
        "data_source", "loss_mask", "token_reward", "is_padding", "weight_version", "first_weight_version", "policy_version",
        "padded_width", "batch_num_tokens", "global_batch_size", "loss_scale_factor", "grad_accumulation", "grad_norm",
        "learning_rate",
    ),
    switches=(
        Switch(("rollout_logprob",), "actor_rollout_ref.rollout.calculate_log_probs=True", "on by default"),
        Switch(("entropy",), "actor_rollout_ref.actor.calculate_entropy=True", "or entropy_coeff other than 0"),
        Switch(
            ("ref_logprob",), "actor_rollout_ref.actor.use_kl_loss=True or algorithm.use_kl_in_reward=True",
            "a reference model is loaded",
        ),
        Switch(("is_weight",), "algorithm.rollout_correction.rollout_is=token or sequence"),
        Switch(("old_entropy",), "algorithm.rollout_correction.bypass_mode=False", "as by default"),
        Switch(
            ("value", "old_value"), "critic.enable=True or algorithm.adv_estimator=gae",
            "a critic is trained; its passes are in the folder critic",
        ),
    ),
)  # fmt: skip

OPENRLHF: Final = Support(
    name="openrlhf",
    recorded="train_ppo_ray",
    first=(0, 11, 2),
    end=(0, 12),
    how=("RL_DOCTOR_RUN=runs/a python -m rl_doctor.collectors.openrlhf openrlhf.cli.train_ppo_ray ...",),
    entry_point="",
    otherwise="",
    guide="docs/guide/openrlhf.md",
    columns=(
        *_KEYS, "window", *_UPDATE, "return", *_LENGTHS, "finish_reason", "reward", "score", "padded_width", "batch_num_tokens",
        "global_batch_size", "grad_accumulation", "grad_norm", "learning_rate",
    ),
    switches=(
        Switch(("group",), "--rollout.n_samples_per_prompt > 1"),
        Switch(
            ("rollout_logprob",), "--algo.advantage.is_correction_level token or seq",
            "the loss then corrects with it as well",
        ),
        Switch(("entropy",), "--actor.entropy_coef 0", "0 computes it and leaves the loss as it is"),
        Switch(("ref_logprob",), "--algo.kl.init_coef > 0", "a reference model is loaded"),
        Switch(
            ("value", "old_value"), "--algo.advantage.estimator gae", "a critic is trained; its passes are in the folder critic"
        ),
    ),
)  # fmt: skip

SUPPORTED: Final[Mapping[str, Support]] = MappingProxyType({one.name: one for one in (TRL, VERL, OPENRLHF)})
"""Every trainer that is recorded without a line in its loop, by the name of its distribution."""

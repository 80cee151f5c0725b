"""Record the runs that ship with the package: small real trainings with TRL, a healthy one and some with a known fault.

Usage: python tools/record_demo.py [NAME ...]

Needs the environment of the trainer tests. Every fault is made in the training itself: the recorder is attached as usual and
sees only what the trainer does. The model has two layers and random weights; its vocabulary is a byte-level one. Runs that tests
inject faults into lie in tests/data.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.trainer import grpo_trainer

import rl_doctor
from rl_doctor import open_run
from rl_doctor.store.pack import pack

ROOT = Path(__file__).parent.parent
DEMO = ROOT / "rl_doctor" / "demo"
TEST_DATA = ROOT / "tests" / "data"
TEXTS = ["count the even ones", "the cat sat on the mat", "rain falls on the plain", "birds sing at dawn", "one plus one is two"]
ANSWER = 200
"""Token id with which the environment begins and ends its answers."""
STOPS = range(100, 125)
"""Token ids that end a response beside the end token, so that a random model ends about every twelfth token."""


def even(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The task: share of even token ids."""
    return [sum(token % 2 == 0 for token in ids) / len(ids) for ids in completion_ids]


def constant(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """A reward that says nothing."""
    return [1.0] * len(completion_ids)


def finished(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """The task, but only for responses that end by themselves."""
    return [reward if ids[-1] in STOPS else 0.0 for ids, reward in zip(completion_ids, even(completion_ids), strict=True)]


class Brevity:
    """A second reward, for short responses; from step 30 on in another unit, 300 times larger."""

    __name__ = "brevity"

    def __call__(self, completion_ids: list[list[int]], trainer_state: Any, **_: Any) -> list[float]:
        """Minus the length of each response."""
        scale = 300.0 if trainer_state.global_step >= 30 else 1.0
        return [-scale * len(ids) / 100 for ids in completion_ids]


class WithSamplerLogprobs(GRPOTrainer):  # type: ignore[misc]
    """Keeps the log-probabilities of the sampler: those of the distribution that the tokens were drawn from."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        output = super()._generate_and_score_completions(inputs)
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        with torch.no_grad():
            logits = self.model(input_ids=ids, attention_mask=mask).logits[:, :-1] / self.generation_config.temperature
        chosen = logits.log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
        output["sampling_per_token_logps"] = chosen[:, -output["completion_ids"].shape[1] :]
        return output


class PaddingInMask(GRPOTrainer):  # type: ignore[misc]
    """The masks of responses are padded with 1 instead of 0."""

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        def pad_with_one(tensors: Any, padding_value: float = 0, padding_side: str = "right", **options: Any) -> Any:
            value = 1 if padding_side == "right" and padding_value == 0 else padding_value
            return pad(tensors, padding_value=value, padding_side=padding_side, **options)

        pad, grpo_trainer.pad = grpo_trainer.pad, pad_with_one
        try:
            return super()._generate_and_score_completions(inputs)
        finally:
            grpo_trainer.pad = pad


def with_environment(prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
    """Two turns of the policy with the answer of an environment between them, sampled by the model being trained."""
    prompt_ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    rows: dict[str, list[Any]] = {"prompt_ids": prompt_ids, "completion_ids": [], "logprobs": [], "env_mask": []}
    for ids in prompt_ids:
        completion: list[int] = []
        logprobs: list[float] = []
        mask: list[int] = []
        for turn in range(2):
            sampled = _sample(trainer, [*ids, *completion], length=24 if turn else 6)
            completion += [token for token, _ in sampled]
            logprobs += [logprob for _, logprob in sampled]
            mask += [1] * len(sampled)
            if turn == 0:
                answer = [ANSWER, ANSWER + len(sampled), ANSWER]
                completion, logprobs, mask = completion + answer, logprobs + [0.0] * 3, mask + [0] * 3
        rows["completion_ids"].append(completion)
        rows["logprobs"].append(logprobs)
        rows["env_mask"].append(mask)
    return rows


def _sample(trainer: GRPOTrainer, context: list[int], length: int) -> list[tuple[int, float]]:
    """Tokens with their log-probabilities, up to a stop or ``length``."""
    ids = torch.tensor([context])
    with torch.no_grad():
        made = trainer.model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=length,
            return_dict_in_generate=True, output_logits=True,
        )  # fmt: skip
    tokens = made.sequences[0, len(context) :].tolist()
    return [(token, float(step[0].log_softmax(-1)[token])) for token, step in zip(tokens, made.logits, strict=True)]


class StaleOldLogprob(WithSamplerLogprobs):
    """The log-probabilities that the ratio divides by come from weights four generation batches old."""

    LAG = 5

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        self._versions = [*getattr(self, "_versions", []), copy.deepcopy(self.model.state_dict())][-self.LAG :]
        output = super()._generate_and_score_completions(inputs)
        newest = copy.deepcopy(self.model.state_dict())
        self.model.load_state_dict(self._versions[0])
        ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
        mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
        with torch.no_grad():
            scored = self._get_per_token_logps_and_entropies(self.model, ids, mask, output["completion_ids"].shape[1])
        output["old_per_token_logps"] = scored[0]
        self.model.load_state_dict(newest)
        return output


class TemperatureForgotten(WithSamplerLogprobs):
    """Samples at temperature .7, while the trainer scores at temperature 1."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.generation_config.temperature = 0.7


class KLWithWrongSign(GRPOTrainer):  # type: ignore[misc]
    """The penalty is subtracted from the loss: it drives the policy away from the reference."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.beta = -self.beta


class KLOverPaddedWidth(GRPOTrainer):  # type: ignore[misc]
    """Logs the KL as a mean over the padded width instead of over the tokens; the loss is right."""

    def _compute_loss(self, model: Any, inputs: Any) -> Any:
        loss = super()._compute_loss(model, inputs)
        mask = inputs["completion_mask"]
        self._metrics["train"]["kl"][-1] *= float(mask.sum() / mask.numel())
        return loss


@dataclass(frozen=True)
class Scenario:
    """One run: what to change in a healthy one, and the names of the rules that report an error, the telling one first.

    ``log``: the same of the trainer's own log, ``trainer_state.json``, which is kept beside the recording; None where it is not.
    """

    name: str
    title: str
    errors: tuple[str, ...] = ()
    args: Mapping[str, Any] = field(default_factory=dict)
    trainer: type[GRPOTrainer | RLOOTrainer] = GRPOTrainer
    rewards: tuple[Callable[..., list[float]], ...] = (even,)
    rollout: Callable[..., dict[str, list[Any]]] | None = None
    folder: Path = DEMO
    token_ids: bool = False
    log: tuple[str, ...] | None = None


SCENARIOS = (
    Scenario("healthy", "a healthy run: the reward rises, KL and entropy move slowly", args={"max_steps": 60},
        trainer=WithSamplerLogprobs, token_ids=True),
    Scenario(
        "padding-in-mask", "the loss mask is padded with 1, so that it covers the padding after each response",
        ("mask-covers-padding",), {"max_steps": 12}, trainer=PaddingInMask,
    ),
    Scenario(
        "stale-old-logprob", "old log-probabilities come from weights four generation batches old", ("stale-old-logprob",),
        {"max_steps": 24}, trainer=StaleOldLogprob,
    ),
    Scenario(
        "temperature", "sampled at temperature .7, scored at temperature 1", ("temperature-mismatch",),
        {"max_steps": 20}, trainer=TemperatureForgotten,
    ),
    Scenario(
        "reward-unit", "from step 30 on one reward has another unit, 300 times larger", ("reward-component-imbalance",),
        {"max_steps": 60}, rewards=(even, Brevity()),
    ),
    Scenario(
        "learning-rate", "the learning rate is ten times too high, and every batch is trained on eight times",
        ("ratio-saturation",), {"learning_rate": 1e-2, "num_iterations": 8, "beta": 0.0},
    ),
    Scenario(
        "truncated", "responses are cut off before they can end, and only those that end earn anything", ("length-truncation",),
        {"max_completion_length": 4, "learning_rate": 5e-5, "max_steps": 60}, rewards=(finished,), log=("length-truncation",),
    ),
    Scenario(
        "constant-reward", "the reward is the same for every response",
        ("reward-flatline",), rewards=(constant,),
    ),
    Scenario(
        "kl-sign", "the KL penalty has the wrong sign in the loss", ("logged-metric-mismatch",), {"beta": 0.5, "max_steps": 30},
        trainer=KLWithWrongSign,
    ),
    Scenario(
        "logged-kl", "the logged KL is averaged over the padded width", ("logged-metric-mismatch",),
        {"max_steps": 16}, trainer=KLOverPaddedWidth,
    ),
    Scenario(
        "agentic", "a healthy run of two turns with the answer of an environment between them", args={"max_steps": 60},
        rollout=with_environment, folder=TEST_DATA, token_ids=True,
    ),
    Scenario(
        "minibatches", "a healthy run that trains on each generation batch in four mini-batches",
        args={"max_steps": 64, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "steps_per_generation": 4,
              "num_iterations": 1, "learning_rate": 5e-4},
        trainer=WithSamplerLogprobs, folder=TEST_DATA, token_ids=True,
    ),
    Scenario(
        "rloo", "a healthy run with RLOO, in two mini-batches per generation batch",
        args={"max_steps": 64, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "steps_per_generation": 2,
              "num_iterations": 1, "learning_rate": 5e-4},
        trainer=RLOOTrainer, folder=TEST_DATA, token_ids=True,
    ),
)  # fmt: skip


def save_model(folder: Path) -> PreTrainedTokenizerFast:
    """A two-layer model with random weights and its tokenizer, on disk: the reference model is loaded by its path."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special, alphabet = ["<eos>", "<pad>"], pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet))
    words = PreTrainedTokenizerFast(tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", padding_side="left")  # noqa: S106
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id,
        bos_token_id=None, tie_word_embeddings=False, initializer_range=0.05,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = [words.eos_token_id, *STOPS]
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return words


def train(scenario: Scenario, run: Path, scratch: Path) -> None:
    """Train and record into the run folder ``run``."""
    words = save_model(scratch / "model")
    settings: dict[str, Any] = {
        "output_dir": str(scratch / "out"), "use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "seed": 1,
        "per_device_train_batch_size": 16, "gradient_accumulation_steps": 2, "num_generations": 8, "num_iterations": 2,
        "max_completion_length": 48, "max_steps": 40, "logging_steps": 1, "learning_rate": 1e-3, "beta": 0.04,
        "lr_scheduler_type": "constant_with_warmup", "warmup_steps": 8, "disable_tqdm": True,
    }  # fmt: skip
    dataset = Dataset.from_dict({"prompt": [f"{text} {number}" for number in range(40) for text in TEXTS]})
    torch.manual_seed(1)
    trainer = scenario.trainer(
        model=str(scratch / "model"),
        reward_funcs=list(scenario.rewards),
        args=(RLOOConfig if scenario.trainer is RLOOTrainer else GRPOConfig)(**(settings | dict(scenario.args))),
        train_dataset=dataset,
        processing_class=words,
        **({} if scenario.rollout is None else {"rollout_func": scenario.rollout}),
    )
    recorder = rl_doctor.attach(trainer, run, record_token_ids=scenario.token_ids)
    trainer.train()
    recorder.detach()
    if scenario.log is not None:
        trainer.state.save_to_json(str(scenario.folder / f"{scenario.name}.trainer_state.json"))


def kept(scenario: Scenario) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """What of a scenario ships: file, title, and the rules that report an error."""
    yield f"{scenario.name}.parquet", scenario.title, scenario.errors
    if scenario.log is not None:
        yield f"{scenario.name}.trainer_state.json", "the same training, told by the trainer's own log alone", scenario.log


def main(names: list[str]) -> None:
    """Record the scenarios named (all by default) and write the index."""
    torch.set_num_threads(1)
    for scenario in SCENARIOS:
        if names and scenario.name not in names:
            continue
        scratch = Path(tempfile.mkdtemp())
        train(scenario, scratch / "run", scratch)
        file = scenario.folder / f"{scenario.name}.parquet"
        pack(open_run(scratch / "run"), file)
        shutil.rmtree(scratch)
    index = [
        {"name": name, "title": title, "fault": next(iter(errors), None), "errors": errors}
        for one in SCENARIOS
        if one.folder == DEMO
        for name, title, errors in kept(one)
    ]
    (DEMO / "index.json").write_text(json.dumps(index, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""Train a tiny random model with TRL and print what came out, in a process of its own.

Usage: python -m tests.trainers.trl.train '{"algorithm": "grpo", "record": "path", ...}' (see ``DEFAULTS``).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.trainers.said import wait_for

DEFAULTS: dict[str, Any] = {
    "algorithm": "grpo",
    "record": None,  # run folder, or None to train without a recorder
    "break_at": None,  # optimizer step at which the run folder is replaced by a file
    "detach_at": None,  # optimizer step at which the recorder is detached
    "rewards": ["short", "vowels"],
    "args": {},  # further arguments of the trainer's configuration
    "rollout": False,  # sample by a function of our own that inserts tokens of an environment
    "recorder": {},  # further arguments of attach
    "mask": False,  # a wrong mask: it covers the padding
    "pause": 0.0,  # seconds to wait after each step
    "until": "",  # what standard error, a file, must say before step 4; it is waited for
}
TEXTS = [
    "the cat sat on the mat",
    "a dog ran in the park",
    "birds sing at dawn",
    "one plus one is two",
    "rain falls on the plain",
]


def tokenizer() -> Any:
    """A byte-level BPE tokenizer, trained on a few lines."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    special = {"pad_token": "<pad>", "eos_token": "<eos>"}
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=list(special.values()), initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=raw, padding_side="left", **special)


def save_model(folder: str, words: Any) -> str:
    """A two-layer model with random weights that ends often, on disk, since the reference model is loaded by its path."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, pad_token_id=words.pad_token_id, eos_token_id=words.eos_token_id,
        bos_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    model = Qwen2ForCausalLM(config)
    model.generation_config.eos_token_id = [words.eos_token_id, *range(100, 125)]
    model.save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


def short(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Shorter is better."""
    return [-len(ids) / 10 for ids in completion_ids]


def vowels(completions: list[str], **_: Any) -> list[float | None]:
    """Share of vowels; no verdict on an empty text."""
    return [sum(c in "aeiou" for c in text) / len(text) if text else None for text in completions]


def rollout(prompts: list[str], trainer: Any) -> dict[str, list[Any]]:
    """Answers of six tokens of which the third and fourth come from an environment."""
    prompt_ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    completion_ids = [[10 + number % 7, 20, 50, 50, 30 + number % 5, 1] for number in range(len(prompts))]
    return {
        "prompt_ids": prompt_ids,
        "completion_ids": completion_ids,
        "logprobs": [[-0.5 - 0.125 * position for position in range(6)] for _ in prompts],
        "env_mask": [[1, 1, 0, 0, 1, 1] for _ in prompts],
    }


def weigh(trainer: Any) -> None:
    """Hand the loss an importance weight per sequence, as correction for another sampler does."""
    original = trainer._generate_and_score_completions

    def weighed(inputs: Any) -> Any:
        output = original(inputs)
        output["importance_sampling_ratio"] = output["advantages"].new_full((len(inputs), 1), 0.75)
        return output

    trainer._generate_and_score_completions = weighed


def cover_padding(trainer: Any) -> None:
    """Hand the loss a mask that covers the padding."""
    original = trainer._generate_and_score_completions

    def covered(inputs: Any) -> Any:
        output = original(inputs)
        output["completion_mask"] = output["completion_mask"].new_ones(output["completion_mask"].shape)
        return output

    trainer._generate_and_score_completions = covered


def linger(options: dict[str, Any], step: int) -> None:
    """Wait after a step as long as the options say."""
    time.sleep(options["pause"])
    if step == 3:
        wait_for(options["until"])


def recorded_methods() -> tuple[str, ...]:
    """The methods that a recorder wraps."""
    from rl_doctor.collectors.trl import Hooks

    return Hooks.METHODS


def main(options: dict[str, Any]) -> None:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

    from rl_doctor.collectors import check_process

    torch.set_num_threads(1)
    folder = tempfile.mkdtemp()
    words = tokenizer()
    model = save_model(f"{folder}/model-{os.environ.get('RANK', '0')}", words)
    config, trainer_class = (GRPOConfig, GRPOTrainer) if options["algorithm"] == "grpo" else (RLOOConfig, RLOOTrainer)
    settings = {
        "output_dir": f"{folder}/out", "use_cpu": True, "bf16": False, "report_to": "none", "save_strategy": "no", "seed": 7,
        "per_device_train_batch_size": 4, "num_generations": 4, "max_completion_length": 12, "max_steps": 6, "logging_steps": 1,
        "learning_rate": 2e-2, "beta": 0.04, "disable_tqdm": True, "lr_scheduler_type": "linear",
    }  # fmt: skip
    dataset = Dataset.from_dict({"prompt": [f"{text} {number}" for number in range(8) for text in TEXTS]})
    trainer = trainer_class(
        model=model,
        reward_funcs=[{"short": short, "vowels": vowels}[name] for name in options["rewards"]],
        args=config(**(settings | options["args"])),
        train_dataset=dataset,
        eval_dataset=dataset.select(range(4)),
        processing_class=words,
        **({"rollout_func": rollout} if options["rollout"] else {}),
    )
    if options["rollout"]:
        weigh(trainer)
    if options["mask"]:
        cover_padding(trainer)
        check_process.shutil = SimpleNamespace(which=lambda _: None)  # at low priority a busy machine would not get to it
    recorder, before = None, dict(vars(trainer))
    if options["record"]:
        import rl_doctor

        recorder = rl_doctor.attach(trainer, options["record"], **options["recorder"])

    class Act(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
            linger(options, state.global_step)
            if state.global_step == options["break_at"]:
                shutil.rmtree(options["record"])
                Path(options["record"]).write_text("in the way")
            if state.global_step == options["detach_at"] and recorder is not None:
                recorder.detach()

    trainer.add_callback(Act())
    trainer.train()
    if recorder is not None:
        recorder.detach()
    weights = hashlib.sha256()
    for name, tensor in sorted(trainer.model.state_dict().items()):
        weights.update(name.encode() + tensor.detach().contiguous().numpy().tobytes())
    if trainer.is_world_process_zero():
        result = {
            "weights": weights.hexdigest(),
            "log": trainer.state.log_history,
            "rng": hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest(),
            "left": [name for name in recorded_methods() if vars(trainer).get(name) is not before.get(name)],
            "reason": None if recorder is None else recorder.guard.reason,
            "dropped": None if recorder is None else recorder.dropped_steps,
            "step": trainer.state.global_step,
            "saved": sorted(path.name for path in Path(folder, "out").glob("checkpoint-*")),
            "stop": None if recorder is None else recorder.stop_reason,
        }
        sys.stdout.write("RESULT " + json.dumps(result) + "\n")
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(DEFAULTS | json.loads(sys.argv[1]))

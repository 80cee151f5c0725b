"""Names of numbers that say nothing of what is learned: times, sizes, counters, hardware."""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_START: Final = (
    "timing|timings|time|perf|performance|profiling|timeperf|throughput|system|memory|mem|gpu|cpu|cuda|mfu|global_seqlen|epoch|"
    "episode|step|steps|global_step|iteration|iter|update|flos|total_flos|runtime|samples_per_second|steps_per_second|"
    "tokens_per_second|num_tokens|num_samples|num_input_tokens_seen|total_num_tokens|total_tokens|batch_size|global_batch_size|"
    "prompt_length|rollout_count|sample_count|wall|elapsed|eta|walltime|timestamp|_timestamp|_runtime|_step|_wandb|seed|rank|"
    "world_size|training_global_step|training_epoch|training_step|trainer_global_step|total_lengths?|global_valid_toks|global_valid_seqs|num_valid_samples|lr-pg_[1-9]|weight_decay|speed|wd|"
    "step_time|iteration_time|duration|created|date|id|batch_num_seq|batch_padded_seq_len|data_time|batch_time|max_memory"
)
_KNOWN: Final = (
    rf"(?:(?:eval|val|validation|test|rollout|actor|critic|trainer)_)?(?:{_START})(?:[_(-].*)?"
    r"|.*_(?:lr|time|time_s|seconds|secs|_ms|runtime|per_second|per_sec|tokens_per_s|tok_s.*|memory|memory_gb|mem_gb|mfu)"
)


def bookkeeping(name: str) -> bool:
    """Whether a plain name is one of them."""
    return _compiled().fullmatch(name) is not None


@cache
def _compiled() -> re.Pattern[str]:
    return re.compile(_KNOWN)

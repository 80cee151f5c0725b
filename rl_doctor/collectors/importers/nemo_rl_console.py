"""NeMo-RL's console: a heading per step, and its results as a list with bullets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rl_doctor.collectors.importers.console import bare, lines, seen
from rl_doctor.collectors.importers.numbers import as_count
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble
from rl_doctor.schema import RunInfo

_HEADING: Final = when_used(r"(?<!=)={10,} (Epoch|Step) (\d+)/(\d+) ={10,}")
_VALIDATION: Final = when_used(r"Starting validation at step (\d+)")
_RESULTS: Final = when_used(r"(Training|Validation) Results(?: for `([^`]+)` set)?:\s*$")
_ITEM: Final = when_used(r"\s*• ([A-Za-z][\w .()/-]*?): ([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf))(?: \w+)?\s*$")
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Loss": "loss",
        "Policy Loss": "loss",
        "Draft Loss": "draft_loss",
        "Generation KL Error": "gen_kl_error",
        "Avg Reward": "reward",
        "Avg Filtered Reward": "filtered_reward",
        "Avg Total Reward": "reward",
        "Mean Generation Length": "mean_gen_tokens_per_sample",
        "Buffer Size": "buffer_size",
        "Avg Trajectory Age": "avg_trajectory_age",
        "Critic Loss": "critic/loss",
        "Critic Grad Norm": "critic/grad_norm",
        "Critic LR": "critic/lr",
        "Critic Clip Frac": "critic/vf_clipfrac",
        "Accuracy": "accuracy",
        "Average response length": "avg_length",
        "Validation loss": "val_loss",
    }
)
"""What the console calls a number -> what the loggers call it, below ``train/`` or ``validation/``."""


def _recognises(sample: Sample) -> Fit:
    text = seen(sample)
    if "Results" not in text:
        return Fit.NO
    return (
        Fit.SIGNATURE if re.search(r"(?:Training|Validation) Results[^\n]*:\s*\n[^\n]*• [A-Z][^\n:]*: [-\dn]", text) else Fit.NO
    )


@importer("nemo-rl-console", "console output of NeMo-RL", _recognises, marks=("Training Results:", "Validation Results"))
def read(path: Path) -> Imported:
    """Read the results below each heading; steps run on over the epochs."""
    found = assemble(_rows(path), path)
    return Imported(found.log, RunInfo(trainer="nemo-rl"), found.notes)


def _rows(path: Path) -> Iterator[Row]:
    step: int | None = None
    validated: int | None = None
    offset = steps = last = 0
    prefix = ""
    for line in lines(path):
        if "=====" in line and (heading := _HEADING.search(line)):
            if heading[1] == "Step":
                if as_count(heading[2]) == 1 and last >= steps > 0:  # the count begins anew with an epoch
                    offset += last
                last, steps = as_count(heading[2]), as_count(heading[3])
                step = offset + last
            prefix = ""
        elif "validation at step" in line and (found := _VALIDATION.search(line)):
            validated = as_count(found[1])
        elif "Results" in line and (results := _RESULTS.search(line)):
            prefix = "train/" if results[1] == "Training" else "validation/"
            prefix += f"{results[2]}/" if results[2] else ""
        elif prefix and "•" in line:
            if item := _ITEM.match(bare(line)):
                name = _NAMES.get(item[1]) or item[1].removeprefix("Validation ")
                yield Row(validated if prefix.startswith("validation") else step, {prefix + name: item[2]})
        elif prefix and line.strip():
            prefix = ""

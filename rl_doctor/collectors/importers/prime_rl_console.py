"""prime-rl's lines, of its trainer and its orchestrator: ``Step N | 12.3s | Loss 0.1 | Entropy 0.2 ...``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from rl_doctor.collectors.importers.console import lines, seen
from rl_doctor.collectors.importers.numbers import as_count
from rl_doctor.collectors.importers.patterns import when_used
from rl_doctor.collectors.importers.registry import Fit, Imported, Sample, importer
from rl_doctor.collectors.importers.rows import Row, assemble
from rl_doctor.schema import RunInfo

_LINE: Final = when_used(r"(?<!Micro )\bStep (\d+)\)? \| (?=.*\|)")
_SIGNED: Final = when_used(
    r"(?<!Micro )\bStep \d+ \| [^|\n]{1,30} \| (?:Loss:? [-\d.naif]+ \| (?:Entropy|Grad\. Norm)|Reward:? [-\d.naif]+ \|)"
)
_PAIR: Final = when_used(r"([A-Z][A-Za-z. -]*?):?\s+([-+]?(?:\d[\d.]*(?:e[-+]?\d+)?|nan|inf)%?)(?=\s|$)")
_EVALUATED: Final = when_used(r"\bEvaluated (\S+) \(Step \d+")
_TRAINER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Loss": "loss/mean",
        "Entropy": "entropy/all/mean",
        "Mismatch KL": "mismatch_kl/all/mean",
        "Grad. Norm": "optim/grad_norm",
        "LR": "optim/lr",
        "Throughput": "perf/throughput",
        "MFU": "perf/mfu",
        "Peak Mem.": "perf/peak_memory",
        "Max Vio": "max_vio/mean",
    }
)
"""What the console calls a number of the trainer -> what the trackers call it."""
_ROLLOUTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Reward": "effective/reward/mean",
        "Turns": "effective/num_turns/mean",
        "Branches": "effective/num_branches/mean",
        "Truncation": "effective/is_truncated/mean",
        "Error": "all/has_error/mean",
        "Cancelled": "all/cancelled/mean",
        "Max Off-Policy": "off_policy/max",
        "Max. Off-Policy Level": "off_policy/max",
        "Seq. Length": "effective/num_total_tokens/mean",
    }
)
"""The same of the orchestrator, below ``train/agg/`` or ``eval/<environment>/``."""


def _recognises(sample: Sample) -> Fit:
    return Fit.SIGNATURE if _SIGNED.search(seen(sample)) else Fit.NO


@importer("prime-rl-console", "console output of prime-rl", _recognises, marks=("Step ",))
def read(path: Path) -> Imported:
    """Read every line of a step."""
    found = assemble(_rows(path), path)
    return Imported(found.log, RunInfo(trainer="prime-rl"), found.notes)


def _rows(path: Path) -> Iterator[Row]:
    for line in lines(path):
        if " | " not in line or not (found := _LINE.search(line)):
            continue
        evaluated = _EVALUATED.search(line)
        above = f"eval/{evaluated[1]}/" if evaluated else "train/agg/"
        values: dict[str, str] = {}
        for part in line[found.end() :].split(" | "):
            if pair := _PAIR.match(part.strip()):
                name = _TRAINER.get(pair[1]) or (above + _ROLLOUTS[pair[1]] if pair[1] in _ROLLOUTS else pair[1])
                values[name] = pair[2]
        if values:
            yield Row(as_count(found[1]), values)

"""minimind's lines: ``Epoch:[1/2](10/500), Reward: 0.1, KL_ref: 0.2 ...``, under the names that it logs to its tracker."""

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

_LINE: Final = when_used(r"Epoch:\s*(?:\[(\d+)/\d+\]\((\d+)/(\d+)\)|(\d+), Step: (\d+)/(\d+))[, ]")
_PAIR: Final = when_used(r"(?:^|[,\s])\s*([A-Za-z][A-Za-z_]*(?: [A-Za-z]+){0,3}):\s*([-+]?(?:\d[\d.]*(?:[eE][-+]?\d+)?|nan|inf))")
_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "Reward": "reward",
        "KL": "kl_ref",
        "KL_ref": "kl_ref",
        "Approx KL": "approx_kl",
        "ClipFrac": "clipfrac",
        "GrpStd": "group_reward_std",
        "Adv Std": "advantages_std",
        "AdvStd": "advantages_std",
        "Adv Mean": "advantages_mean",
        "AdvMean": "advantages_mean",
        "Actor Loss": "policy_loss",
        "Loss": "policy_loss",
        "Aux Loss": "aux_loss",
        "Critic Loss": "critic_loss",
        "Avg Response Len": "avg_response_len",
        "AvgLen": "avg_response_len",
        "Learning Rate": "learning_rate",
        "LR": "learning_rate",
        "lr": "learning_rate",
        "Actor LR": "actor_lr",
        "Critic LR": "critic_lr",
        "Baseline": "baseline",
        "Rho": "rho",
    }
)
"""What the console calls a number -> what the tracker calls it (``KL`` beside ``KL_ref`` is the one to the old policy)."""


def _recognises(sample: Sample) -> Fit:
    found = _LINE.search(text := seen(sample))
    return Fit.SIGNATURE if found and _PAIR.search(text, found.end() - 1, found.end() + 200) else Fit.NO


@importer("minimind-console", "console output of minimind", _recognises, marks=("Epoch:",))
def read(path: Path) -> Imported:
    """Read every line; steps run on over the epochs."""
    found = assemble(_rows(path), path)
    return Imported(found.log, RunInfo(trainer="minimind"), found.notes)


def _rows(path: Path) -> Iterator[Row]:
    for line in lines(path):
        if "Epoch:" not in line or not (found := _LINE.search(line)):
            continue
        epoch, step, steps = (as_count(one or other) for one, other in zip(found.groups()[:3], found.groups()[3:], strict=True))
        pairs = dict(_PAIR.findall(line, found.end() - 1))
        if "KL_ref" in pairs and "KL" in pairs:
            pairs["approx_kl"] = pairs.pop("KL")
        yield Row(max(epoch - 1, 0) * steps + step, {_NAMES.get(name, name): value for name, value in pairs.items()})

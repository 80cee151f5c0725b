"""verl: which of its ways of computing what it logs a run was written in.

Up to 0.7 each worker had an actor of its own for FSDP and for Megatron, which averaged its losses per micro-batch in ways that
changed from version to version; the engine workers, a choice in 0.7 and the only ones from 0.8 on, normalise over mini-batches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Any, Final, Literal

from rl_doctor.analyzer.dialects.registry import Bounds, Version, bounds_of
from rl_doctor.analyzer.recompute.native import nested
from rl_doctor.frozen import frozen

Workers = Literal["engine", "fsdp", "megatron"]
Losses = Literal["mean", "scaled mean", "scaled sum"]

FIRST: Final = (0, 5)
_MINORS: Final = ((0, 5), (0, 6), (0, 7), (0, 8), (0, 9))
_LAST: Final = (1, 0)
_GSPO: Final = (0, 9, 1)
_OF_THE_ENGINE: Final = frozenset({"actor/loss", "actor/entropy_loss", "critic/loss"})
"""Names that the older workers do not log."""
_FSDP: Final[Mapping[Version, Losses]] = {(0, 5): "mean", (0, 6): "scaled mean", (0, 7): "scaled sum"}


@frozen
class Era:
    """Versions and workers that log alike.

    ``gspo_configured`` is whether GSPO is aggregated as configured; None where that is not known.
    """

    minor: Version
    workers: Workers
    gspo_configured: bool | None

    @property
    def engine(self) -> bool:
        """Whether losses are normalised over mini-batches."""
        return self.workers == "engine"

    @property
    def losses(self) -> Losses:
        """What older workers log of a micro-batch's policy and KL loss, and of the value loss.

        Their mean; the mean of loss times share of the mini-batch; or the sum of that over the step.
        """
        return _FSDP[self.minor] if self.workers == "fsdp" else "mean"

    @property
    def first_rank_only(self) -> bool:
        """Whether only what the first rank computed is logged."""
        return not self.engine and self.minor == (0, 5)

    @property
    def anchors_to_itself(self) -> bool:
        """Whether a step of a single mini-batch takes the policy being trained as the old one."""
        return self.workers == "fsdp" and self.minor in ((0, 6), (0, 7))

    @property
    def current_entropy(self) -> bool:
        """Whether the actor's entropy takes the place of the driver's, where the actor computes one."""
        return self.workers == "fsdp" and self.minor == (0, 7)

    @property
    def subtracts_entropy(self) -> bool:
        """Whether the logged policy loss has the entropy term in it, which is subtracted from it in place."""
        return self.current_entropy

    @property
    def current_distance(self) -> bool:
        """Whether distances from the engine that sampled are those of the policy being trained, not of the old one."""
        return not self.engine and self.minor in ((0, 6), (0, 7))

    @property
    def counts_empty(self) -> bool:
        """Whether sequences without a token count in means over sequences, of losses and of rewards."""
        return self.minor == (0, 5)

    @property
    def sums_constant(self) -> bool:
        """Whether seq-mean-token-sum-norm sums over sequences, instead of taking their mean."""
        return self.minor in ((0, 5), (0, 6))

    @property
    def raw_weights(self) -> bool:
        """Whether statistics of importance weights are taken before these are cut."""
        return self.minor < (0, 8)


def eras_of(version: str | None, native: Mapping[str, Any], names: Collection[str]) -> tuple[Era, ...]:
    """The eras that a run may be of, the oldest first: one where the version, the configuration and what was logged tell it.

    Args:
        version: as in ``RunInfo.trainer_version``.
        native: verl's configuration.
        names: what was logged.
    """
    bounds = bounds_of(version)
    if bounds.before(FIRST) or bounds.at_least(_LAST):
        return ()
    developed = (version or "").startswith("0.8.0.dev")
    minors = [(0, 7)] if developed else [one for one, after in pairwise((*_MINORS, _LAST)) if not _apart(bounds, one, after)]
    gspo = bounds.at_least(_GSPO) if bounds.at_least(_GSPO) or bounds.before(_GSPO) else None
    choice = nested(native, "trainer.use_legacy_worker_impl")
    if developed and choice is None:
        return ()
    older: Workers = "megatron" if nested(native, "actor_rollout_ref.actor.strategy") == "megatron" else "fsdp"
    new = choice == "disable" or not _OF_THE_ENGINE.isdisjoint(names)
    return tuple(Era(minor, "engine" if minor >= (0, 8) or (minor == (0, 7) and new) else older, gspo) for minor in minors)


def _apart(bounds: Bounds, first: Version, after: Version) -> bool:
    """Whether no version that is possible is at least ``first`` and before ``after``."""
    return bounds.before(first) or bounds.at_least(after)

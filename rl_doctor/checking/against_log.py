"""What the trainer logged, held against what is recomputed from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rl_doctor.analyzer import reconcile
from rl_doctor.analyzer.comparison import Comparison, differing, unequal
from rl_doctor.analyzer.engine import Analysis
from rl_doctor.analyzer.reconcile import Plan
from rl_doctor.analyzer.registry import Metric
from rl_doctor.analyzer.unmet import Unmet, unmet
from rl_doctor.checking.keeping import Keep
from rl_doctor.checking.reading import Reading
from rl_doctor.report.model import Reconciled
from rl_doctor.rules.reconcile import logged_metric_mismatch
from rl_doctor.rules.registry import Rule
from rl_doctor.store.run import Run

_FEW: Final = 3


@dataclass(frozen=True, slots=True)
class Plans:
    """What has to be folded: of the run, and of the passes of its critic if it has one; ``given_up`` if comparing failed."""

    run: Plan
    critic: Plan | None = None
    given_up: bool = False

    @property
    def of_critic(self) -> tuple[Metric, ...]:
        """Metrics to fold over the critic's passes."""
        return self.critic.metrics if self.critic else ()


@dataclass(frozen=True, slots=True)
class AgainstLog:
    """What came of it.

    Attributes:
        comparisons: logged numbers beside recomputed ones.
        left: what was logged and is not recomputed.
        uncompared: why there is no comparison, or not of all that could be, or "".
        done: whether it was tried.
    """

    comparisons: tuple[Comparison, ...]
    left: Unmet
    uncompared: str
    done: bool


def plans(reading: Reading, run: Run, failed: Exception | None) -> Plans:
    """What to fold; nothing where comparing has ``failed`` before."""
    if failed is not None:
        return Plans(Plan((), (), (), reading.metrics(), ""), given_up=True)
    plan = reconcile.plan(reading.info, run.columns, reading.metrics(), run.recorded_in)
    if run.critic is None:
        return Plans(plan)
    described = replace(run.critic.info, trainer=reading.info.trainer, trainer_version=reading.info.trainer_version)
    return Plans(plan, reconcile.plan_critic(plan, described, run.critic.columns, run.critic.recorded_in))


def against_log(folded: Plans, run: Run, analysis: Analysis, rules: Sequence[Rule], keep: Keep | None = None) -> AgainstLog:
    """Compare; what a rule will find to differ is looked into in a second pass, unless ``keep`` has what that gave."""
    plan, apart = folded.run, folded.critic
    comparisons = _explained(plan, run, reconcile.compare(plan, analysis.series, analysis.partial_steps), rules, keep)
    if apart and run.critic:
        of_critic = reconcile.compare(apart, analysis.critic.series, analysis.critic.partial_steps)
        comparisons += _explained(apart, run.critic, of_critic, rules, keep, "critic")
    left = _left(plan, apart, analysis, comparisons)
    return AgainstLog(comparisons, left, _uncompared(plan, analysis, comparisons, left), done=not folded.given_up)


def _uncompared(plan: Plan, analysis: Analysis, comparisons: tuple[Comparison, ...], left: Unmet) -> str:
    sampled_out = reconcile.sampled_out(plan, comparisons) if len(analysis.partial_steps) else ()
    if sampled_out:
        return f"sampled: without all tokens not compared: {_few(sampled_out)}"
    return plan.doubts if comparisons else plan.reason or _commonest(left)


def _explained(
    plan: Plan, run: Run, comparisons: tuple[Comparison, ...], rules: Iterable[Rule], keep: Keep | None, of: str = "run"
) -> tuple[Comparison, ...]:
    """The comparisons, those that a rule will find to differ with what the logged numbers are instead: in a second pass."""
    limits = next((rule.limits for rule in rules if rule.code == logged_metric_mismatch.code), None)
    if limits is None or all(differing(item, limits) is None for item in comparisons):
        return comparisons

    def explain() -> tuple[Comparison, ...]:
        from rl_doctor.analyzer.explain import explained  # most logs are right

        return explained(plan, run, comparisons, limits)

    return explain() if keep is None else keep.explained(of, run, comparisons, limits, explain)


def _left(plan: Plan, apart: Plan | None, analysis: Analysis, comparisons: Iterable[Comparison]) -> Unmet:
    """What the trainer logged and was not compared; of a log alone nothing, as that holds for all of it."""
    if not plan.columns:
        return Unmet()
    why = reconcile.why_not_compared(plan, analysis.series, analysis.partial_steps)
    if apart is not None:
        why |= reconcile.why_not_compared(apart, analysis.critic.series, analysis.critic.partial_steps)
    names = {*plan.log.names()} - {item.name for item in comparisons}
    found = unmet(plan.info, plan.columns, names - why.keys())
    return replace(found, reasons=tuple(sorted((*found.reasons, *((name, why[name]) for name in why.keys() & names)))))


def _commonest(left: Unmet) -> str:
    """The reasons why nothing could be compared, the most frequent first."""
    return "; ".join(reason for reason, _ in Counter(reason for _, reason in left.reasons).most_common(_FEW))


def _few(names: Sequence[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:_FEW]) + (f" and {len(names) - _FEW} more" if len(names) > _FEW else "")


def reconciled(comparisons: Iterable[Comparison]) -> tuple[Reconciled, ...]:
    """What is told of each comparison, whether or not a rule judges it."""
    relative = logged_metric_mismatch.limits["relative"]
    return tuple(
        Reconciled(
            item.name,
            item.metric,
            min(int(steps[0]) for steps in (item.steps, item.unreal_steps) if len(steps)),
            max(int(steps[-1]) for steps in (item.steps, item.unreal_steps) if len(steps)),
            item.compared,
            int(unequal(item, relative).sum()) + len(item.unreal_steps),
        )
        for item in comparisons
    )

"""Logs of real runs by others, each with the verdict of somebody who read its numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rl_doctor import check, open_run
from rl_doctor.report.model import SEVERITY_ORDER, Report

RUNS = Path(__file__).parents[3] / "shared" / "runs"
TRENDS = frozenset({"reward-drift", "reward-variance-shift", "kl-runaway", "entropy-collapse", "length-explosion"})
"""Rules that a short log can neither pass nor fail."""

pytestmark = pytest.mark.skipif(not RUNS.is_dir(), reason="the collection of public logs is not beside the checkout")


@dataclass(frozen=True)
class Verdict:
    """What must be said of a run, and the worst that may be.

    Attributes:
        steps: first and last step.
        found: rules that must fire, each with the severities that are right.
        cause: the one to be told first; all that is an error must be told under it.
        warnings: rules that may warn.
        inconclusive: whether it is too short for trends.
    """

    steps: tuple[int, int]
    found: dict[str, set[str]] = field(default_factory=dict)
    cause: str | None = None
    warnings: frozenset[str] = frozenset()
    inconclusive: bool = False


ERROR = {"error"}
FLAT = {"reward-flatline": ERROR}
NO_SIGNAL = {"zero-variance-groups": ERROR, "length-truncation": ERROR}
VERDICTS = {
    "trl-grpo-no-signal/trainer_state.json": Verdict((10, 500), NO_SIGNAL, "length-limit-too-short"),
    "verl-all-zero-reward/training_metrics.csv": Verdict((1, 49), FLAT, "rewards-too-rare"),
    "verl-all-zero-reward-sft/training_metrics.csv": Verdict((1, 19), FLAT, "scorer-returns-constant", inconclusive=True),
    "verl-stale-prefix/training_metrics.csv": Verdict(
        (1, 790), {"part-off-policy": {"error", "warning"}}, "part-of-another-policy"
    ),
    "verl-healthy-truncation-easing/training_metrics.csv": Verdict((1, 304), warnings=frozenset({"length-truncation"})),
    "verl-healthy-plateau/metrics.csv": Verdict((1, 115)),
    "verl-healthy-entropy-exhausted/training_metrics.csv": Verdict((1, 2000), warnings=frozenset({"entropy-collapse"})),
    "trl-healthy-one-kl-spike/trainer_state.json": Verdict((1, 250), {"kl-spike": {"info"}, "reward-component-idle": {"info"}}),
    "trl-healthy-slow/trainer_state.json": Verdict((5, 1000)),
    "trl-short-inconclusive/trainer_state.json": Verdict((5, 50), {"reward-component-idle": {"info"}}, inconclusive=True),
    "trl-short-inconclusive/stdout.log": Verdict((5, 50), {"reward-component-idle": {"info"}}, inconclusive=True),
    "trl-string-values/stdout.log": Verdict((1, 30)),
    "custom-healthy/metrics.jsonl": Verdict((2, 480)),
    "custom-healthy-saturating/step_logs.json": Verdict((11, 1000)),
    "verl-console-short/output.log": Verdict((0, 9), inconclusive=True),
}  # fmt: skip


def severities(report: Report) -> dict[str, str]:
    """The worst severity of each rule that fired."""
    worst: dict[str, str] = {}
    for finding in report.findings:
        before = worst.get(finding.name, "info")
        worst[finding.name] = max(before, finding.severity, key=SEVERITY_ORDER.__getitem__)
    return worst


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_is_that_of_a_reader(name: str) -> None:
    verdict = VERDICTS[name]
    report = check(open_run(RUNS / name))
    found = severities(report)
    assert (report.run.first_step, report.run.last_step) == verdict.steps
    for rule, right in verdict.found.items():
        assert found.get(rule) in right, f"{rule}: {found}"
    errors = {rule for rule, severity in found.items() if severity == "error"}
    warnings = {rule for rule, severity in found.items() if severity == "warning"}
    # An error of a defect may have consequences that are errors too; a healthy run has none at all.
    if not any("error" in right for right in verdict.found.values()):
        assert errors == set()
        assert warnings <= verdict.warnings | verdict.found.keys()
    told = report.diagnosis
    if verdict.cause is not None:
        assert told[0].name == verdict.cause
        assert not [entry.name for entry in told[1:] if entry.severity == "error"]
    outcomes = {result.name: result for result in report.results}
    assert not any(result.outcome == "crashed" for result in report.results)
    if verdict.inconclusive:
        judged = {rule for rule in TRENDS if outcomes[rule].outcome != "skipped"}
        assert judged == set()


def test_every_run_of_the_collection_is_read_without_a_crash() -> None:
    logs = {str(path.relative_to(RUNS)): path for path in RUNS.glob("*/*") if path.is_file()}
    assert logs.keys() >= VERDICTS.keys()
    for name in logs.keys() - VERDICTS.keys():
        assert not any(result.outcome == "crashed" for result in check(open_run(logs[name])).results), name


def test_the_same_run_twice_gives_the_same_verdict() -> None:
    state, stdout = (open_run(RUNS / "trl-short-inconclusive" / name) for name in ("trainer_state.json", "stdout.log"))
    assert severities(check(state)) == severities(check(stdout))

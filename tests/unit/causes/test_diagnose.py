"""How findings become causes: which one leads, what follows, what is ruled out, and that nothing goes unsaid."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rl_doctor.analyzer.series import Series
from rl_doctor.analyzer.states import Top
from rl_doctor.causes import registry
from rl_doctor.causes.diagnose import diagnose, wanted
from rl_doctor.causes.registry import EVERYTHING, Look, Sign, cause
from rl_doctor.causes.signs import between, configured, found, measured, over
from rl_doctor.report.model import Evidence, Finding, Result, Severity
from rl_doctor.rules.view import View
from rl_doctor.schema import RunConfig, RunInfo


@pytest.fixture(autouse=True)
def _none_but_mine(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.causes()
    monkeypatch.setattr(registry, "_CAUSES", {})


def declare(name: str, explains: tuple[str, ...], *signs: Sign, leads_to: tuple[str, ...] = ()) -> None:
    cause(name, f"label of {name}", explains=explains, leads_to=leads_to, signs=signs, advice=("a",), source="s", doc="d")


def finding(
    name: str, first: int = 10, last: int = 20, severity: Severity = "error", suspect: str = "", rows: float | None = None
) -> Finding:
    shown = (Evidence("x" if rows is None else "mismatch.shifted_frac", first, last, 1.0 if rows is None else rows),)
    return Finding(f"RLD{len(name):03d}", name, severity, f"{name} found", shown, f"{name} says why", ("do",), suspect=suspect)


def result(*findings: Finding) -> Result:
    return Result(findings[0].code, findings[0].name, "found", findings=findings)


def series(name: str, values: dict[int, float]) -> Series:
    steps = np.array(list(values), np.int64)
    return Series(name, "1", steps, np.array(list(values.values())), np.ones(len(values), np.int64))


def view(config: RunConfig | None = None, missing: Any = None, **metrics: dict[int, float]) -> View:
    made = {name.replace("__", "."): series(name.replace("__", "."), values) for name, values in metrics.items()}
    return View(RunInfo(config=config or RunConfig()), made, missing or {})


SLOPE = measured("m.slope", between(0.9, 1.1), "the slope is 1", "the slope is {}")
STEEP = measured("m.slope", over(1.1), "the slope is above 1", "the slope is {}")


def test_the_cause_whose_signs_are_there_leads_and_the_other_is_ruled_out_by_its_number() -> None:
    declare("stale", ("mismatch",), found("mismatch", "they differ"), SLOPE)
    declare("tempered", ("mismatch",), found("mismatch", "they differ"), STEEP)
    (entry,) = diagnose(view(m__slope={10: 1.4, 20: 1.4, 30: 1.0}), [result(finding("mismatch"))])
    assert entry.name == "tempered"
    assert entry.cause == "Label of tempered."
    assert entry.ruled_out == ("label of stale: the slope is 1.4",)
    assert [sign.text for sign in entry.seen] == ["they differ (RLD008, steps 10-20)", "the slope is 1.4"]


def test_what_cannot_be_looked_at_is_said_with_its_column_and_leaves_both_possible() -> None:
    declare("stale", ("mismatch",), found("mismatch", "they differ"), SLOPE)
    declare("tempered", ("mismatch",), found("mismatch", "they differ"), STEEP)
    (entry,) = diagnose(view(missing={"m.slope": ("rollout_logprob",)}), [result(finding("mismatch"))])
    assert entry.name == "stale"
    assert [sign.text for sign in entry.unchecked] == ["whether the slope is 1: needs rollout_logprob"]
    assert entry.also_fits == ("label of tempered (to tell them apart: rollout_logprob)",)


def test_what_was_found_is_not_denied_where_a_rule_took_it_for_something_else() -> None:
    declare("tempered", ("mismatch",), found("mismatch", "it is a stretched copy", suspect="tempered"))
    declare("cut", ("mismatch",), SLOPE, found("mismatch", "it is a stretched copy", suspect="cut"))
    (entry,) = diagnose(view(m__slope={10: 1.0}), [result(finding("mismatch", suspect="tempered"))])
    assert entry.name == "tempered"
    assert entry.ruled_out == ("label of cut: what RLD008 found is another case (label of tempered)",)


def test_a_number_from_outside_the_findings_steps_moves_no_onset() -> None:
    declare("stale", ("mismatch",), found("mismatch", "they differ"), SLOPE)
    (entry,) = diagnose(view(m__slope={1: 1.0, 2: 1.0}), [result(finding("mismatch"))])
    assert [sign.step for sign in entry.seen] == [10, None]
    assert entry.first_step == 10


def test_the_more_specific_cause_wins() -> None:
    declare("general", ("mismatch",), found("mismatch", "they differ"))
    declare("specific", ("mismatch",), found("mismatch", "they differ"), SLOPE)
    (entry,) = diagnose(view(m__slope={15: 1.0}), [result(finding("mismatch"))])
    assert entry.name == "specific"
    assert entry.also_fits == ()


def test_a_cause_that_a_rule_recognised_wins_unless_something_speaks_against_it() -> None:
    declare("specific", ("mismatch",), found("mismatch", "they differ"), SLOPE)
    declare("named", ("mismatch",), found("mismatch", "they differ", suspect="named"))
    declare("excluded", ("mismatch",), found("mismatch", "they differ"), configured("epochs", over(1), "epochs", "{} epochs"))
    config = RunConfig(epochs=1)
    (entry,) = diagnose(view(config, m__slope={15: 1.0}), [result(finding("mismatch", suspect="named"))])
    assert (entry.name, entry.cause) == ("named", "mismatch says why")
    assert entry.ruled_out == ("label of excluded: 1 epochs",)


def test_what_follows_is_folded_and_what_began_before_is_not() -> None:
    declare("stale", ("mismatch",), found("mismatch", "they differ"), leads_to=("saturated", "flat"))
    results = [result(finding("mismatch", 100, 200)), result(finding("saturated", 120, 200)), result(finding("flat", 5, 200))]
    first, second = diagnose(view(), results)
    assert (second.name, [item.name for item in second.followed_by]) == ("stale", ["saturated"])
    assert (first.name, first.cause) == ("flat", "flat says why")


def test_a_cause_in_few_rows_swallows_no_finding_in_all_of_them() -> None:
    declare("unfilled", ("bb",), found("bb", "zeros"), found("bb", "zeros"), leads_to=("a",))
    declare("shifted", ("a",), found("a", "shifted"), leads_to=("bb",))
    (entry,) = diagnose(view(), [result(finding("a", rows=1.0)), result(finding("bb", rows=0.05))])
    assert (entry.name, [item.name for item in entry.followed_by]) == ("shifted", ["bb"])
    (entry,) = diagnose(view(), [result(finding("a", rows=0.1)), result(finding("bb", rows=0.05))])
    assert (entry.name, [item.name for item in entry.followed_by]) == ("unfilled", ["a"])


def test_findings_in_far_more_rows_are_told_apart() -> None:
    declare("unfilled", ("bb",), found("bb", "zeros"), leads_to=EVERYTHING)
    told = diagnose(view(), [result(finding("a", rows=1.0)), result(finding("bb", rows=0.05))])
    assert sorted(entry.name for entry in told) == ["a", "unfilled"]


def test_everything_after_it_may_follow() -> None:
    declare("nan", ("non-finite",), found("non-finite", "a NaN"), leads_to=EVERYTHING)
    results = [result(finding("non-finite", 50, 60)), result(finding("a", 55, 60)), result(finding("bb", 70, 80))]
    (entry,) = diagnose(view(), results)
    assert [item.name for item in entry.followed_by] == ["a", "bb"]
    assert entry.codes == ("RLD010", "RLD001", "RLD002")


def test_a_finding_of_no_known_cause_is_told_in_the_words_of_its_rule() -> None:
    declare("never", ("mismatch",), found("mismatch", "they differ"), STEEP)
    (entry,) = diagnose(view(m__slope={15: 1.0}), [result(finding("mismatch", severity="warning"))])
    assert (entry.name, entry.cause, entry.severity) == ("mismatch", "mismatch says why", "warning")


def test_every_finding_is_told_once_and_the_worst_and_earliest_first() -> None:
    declare("one", ("a", "bb"), found("a", "seen"))
    declare("other", ("bb",), found("bb", "seen"))
    results = [result(finding("a", 30, 40, "warning")), result(finding("bb", 5, 9)), result(finding("ccc", 1, 2, "info"))]
    told = diagnose(view(), results)
    assert sorted(item.name for entry in told for item in (*entry.findings, *entry.followed_by)) == ["a", "bb", "ccc"]
    assert [entry.severity for entry in told] == sorted(
        (entry.severity for entry in told), key=["error", "warning", "info"].index
    )


def test_a_sign_against_it_rules_a_cause_out() -> None:
    against = measured("m.slope", over(2.0), "steep", "the slope is {}", role="against")
    declare("flat", ("mismatch",), found("mismatch", "they differ"), against)
    declare("rest", ("mismatch",), found("mismatch", "they differ"))
    (entry,) = diagnose(view(m__slope={15: 3.0}), [result(finding("mismatch"))])
    assert (entry.name, entry.ruled_out) == ("rest", ("label of flat: the slope is 3",))


def test_metrics_are_wanted_only_for_causes_of_what_was_found() -> None:
    declare("stale", ("mismatch",), found("mismatch", "they differ"), SLOPE)
    assert wanted([Result("RLD008", "mismatch", "passed")]) == frozenset()
    assert wanted([result(finding("mismatch"))]) == {"m.slope"}


def test_a_rule_that_was_skipped_leaves_its_sign_open() -> None:
    declare("stale", ("mismatch",), found("mismatch", "they differ"), found("lag", "versions lag", role="typical"))
    skipped = Result("RLD003", "lag", "skipped", missing=("weight_version",), reason="column")
    (entry,) = diagnose(view(), [result(finding("mismatch")), skipped])
    assert [sign.text for sign in entry.unchecked] == ["whether versions lag: needs weight_version"]


def test_a_cause_without_a_needed_sign_is_refused() -> None:
    with pytest.raises(ValueError, match="no sign that it needs"):
        declare("weak", ("mismatch",), Sign("w", "typical", (), lambda _: Look(there=True, text="w")))


def test_two_findings_of_a_rule_have_each_their_own_cause() -> None:
    declare("one", ("parts",), found("parts", "seen", suspect="one"))
    declare("two", ("parts",), found("parts", "seen", suspect="two"))
    told = diagnose(view(), [result(finding("parts", 1, 5, suspect="one"), finding("parts", 7, 9, suspect="two"))])
    assert [(entry.name, len(entry.findings)) for entry in told] == [("one", 1), ("two", 1)]


def test_a_finding_whose_recognised_cause_does_not_fit_is_free_for_others() -> None:
    declare("one", ("parts",), found("parts", "seen", suspect="one"), STEEP)
    declare("two", ("parts",), found("parts", "seen"))
    (entry,) = diagnose(view(m__slope={15: 1.0}), [result(finding("parts", suspect="one"))])
    assert entry.name == "two"


def test_the_cause_that_the_others_follow_from_leads_though_its_rule_only_warns() -> None:
    declare("glue", ("observed",), found("observed", "glue is trained"), leads_to=("missing", "mismatch"))
    declare("zero-filled", ("missing",), found("missing", "zeros", suspect="zero-filled"), leads_to=("mismatch",))
    results = [
        result(finding("observed", severity="warning")),
        result(finding("missing", suspect="zero-filled")),
        result(finding("mismatch")),
    ]
    (entry,) = diagnose(view(), results)
    assert (entry.name, entry.severity) == ("glue", "error")
    assert [item.name for item in entry.followed_by] == ["missing", "mismatch"]


def test_two_causes_that_lead_to_each_other_are_told_by_their_weight() -> None:
    declare("one", ("a",), found("a", "seen"), leads_to=("bb",))
    declare("two", ("bb",), found("bb", "seen"), leads_to=("a",))
    (entry,) = diagnose(view(), [result(finding("a", severity="warning")), result(finding("bb"))])
    assert (entry.name, [item.name for item in entry.followed_by]) == ("two", ["a"])


def test_passes_over_one_sequence_are_one_sample() -> None:
    top = Top(((60.0, 7, "1-24"), (60.0, 9, "1-24"), (59.0, 8, None)), 3)
    made = View(RunInfo(config=RunConfig()), {}, {}, tops={"repeat.rows": ((1, top),)})
    assert [(item.sequence, item.uid) for item in made.samples("repeat.rows", 1, 1)] == [(7, "1-24"), (8, None)]


def test_of_two_causes_that_lead_to_each_other_the_one_that_began_well_before_leads() -> None:
    declare("one", ("a",), found("a", "seen"), leads_to=("bb",))
    declare("two", ("bb",), found("bb", "seen"), leads_to=("a",))
    (entry,) = diagnose(view(), [result(finding("a", 10, 40, "warning")), result(finding("bb", 25, 40))])
    assert (entry.name, [item.name for item in entry.followed_by], entry.severity) == ("one", ["bb"], "error")

"""Which responses are picked, against rows read whole and ordered by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.report.model import Evidence, Finding, Sample
from rl_doctor.store.layout import PartName
from rl_doctor.store.run import open_run
from rl_doctor.store.thinning import thin_part
from rl_doctor.views.opened import Opened
from rl_doctor.views.picks import Pick
from rl_doctor.views.rollouts import Rollouts, rollouts
from tests.integration.app.written import GROUP, STEPS, VOCABULARY, write


def shown(opened: Opened, **link: Any) -> Rollouts:
    found = rollouts(opened, **link)
    assert found is not None
    return found


def with_finding(opened: Opened, metric: str, first: int | None, value: float = 2.0, samples: tuple[Sample, ...] = ()) -> Opened:
    """The run with one finding, of RLD999."""
    evidence = (Evidence(metric, first, first, value, baseline=1.0),)
    finding = Finding("RLD999", "made-up", "error", "made up", evidence, "cause", ("advice",), samples=samples)
    result = replace(opened.report.results[0], code="RLD999", outcome="found", findings=(finding,))
    return replace(opened, report=replace(opened.report, results=(result,), diagnosis=()))


def rows(opened: Opened, step: int) -> list[dict[str, Any]]:
    return [
        {name: values[index] for name, values in batch.columns.items() if len(values) == batch.n_sequences}
        for batch in opened.run.only([step]).batches(["sequence", "reward", "uid", "group", "response_length"])
        for index in range(batch.n_sequences)
    ]


def mean_log_ratio(opened: Opened, step: int) -> dict[int, float]:
    """Mean |logprob - old_logprob| over the trained tokens of each row."""
    found = {}
    for batch in opened.run.only([step]).batches(opened.run.columns):
        columns = batch.columns
        for index, sequence in enumerate(columns["sequence"].tolist()):
            own = [at for at in range(batch.splits[index], batch.splits[index + 1]) if columns["response_mask"][at]]
            values = [abs(float(columns["logprob"][at]) - float(columns["old_logprob"][at])) for at in own]
            found[sequence] = math.fsum(values) / len(values)
    return found


def by_kind(found: Rollouts) -> dict[tuple[str, str], Pick]:
    return {(pick.kind, pick.by): pick for pick in found.picks}


def test_without_a_finding_the_worst_and_the_median_by_reward(stale: Opened) -> None:
    found = shown(stale, step=7)
    order = sorted(rows(stale, 7), key=lambda row: row["reward"])
    picks = by_kind(found)
    assert set(picks) == {("worst", "reward"), ("median", "reward")}
    assert picks["worst", "reward"].reward == order[0]["reward"]
    assert picks["median", "reward"].reward == order[(len(order) - 1) // 2]["reward"]
    assert found.chosen == picks["worst", "reward"].sequence


def test_by_the_metric_of_the_finding_with_a_control_from_before_the_onset(stale: Opened) -> None:
    found = shown(with_finding(stale, "policy.ratio_mean", 20), code="RLD999")
    assert (found.step, found.by) == (20, "ratio")
    values, before = mean_log_ratio(stale, 20), mean_log_ratio(stale, 19)
    picks = by_kind(found)
    worst, median, control = (picks[kind, "ratio"] for kind in ("worst", "median", "control"))
    assert worst.sequence == max(values, key=values.__getitem__)
    assert worst.value == pytest.approx(max(values.values()))
    assert median.value == pytest.approx(sorted(values.values())[(len(values) - 1) // 2])
    assert control.step == 19
    assert control.value == pytest.approx(sorted(before.values())[(len(before) - 1) // 2])
    assert ("worst", "reward") in picks
    assert found.spread.by == "ratio"
    assert dict(zip(found.spread.sequences.tolist(), found.spread.values.tolist(), strict=True)) == pytest.approx(values)


def test_where_a_metric_fell_the_lowest_is_the_worst(stale: Opened) -> None:
    found = shown(with_finding(stale, "policy.entropy", 20, value=0.1), code="made-up")
    known = found.spread.values
    assert by_kind(found)["worst", "entropy"].value == known.min()
    longest = shown(with_finding(stale, "length.mean", 20), code="RLD999")
    assert by_kind(longest)["worst", "length"].length == max(row["response_length"] for row in rows(stale, 20))


def test_without_a_finding_nothing_is_said_to_be_bad(stale: Opened) -> None:
    found = shown(stale, step=20, metric="policy.entropy")
    assert {(pick.kind, pick.by) for pick in found.picks} == {
        ("largest", "entropy"), ("median", "entropy"), ("worst", "reward"), ("median", "reward"),
    }  # fmt: skip
    assert by_kind(found)["largest", "entropy"].value == found.spread.values.max()
    for name, metric in found.offered.items():
        assert shown(stale, step=20, metric=metric).by == (None if name == "reward" else name)


def test_a_finding_from_the_first_step_on_has_no_control(stale: Opened) -> None:
    found = shown(with_finding(stale, "reward.mean", 1), code="RLD999")
    assert found.without_control
    assert {pick.kind for pick in found.picks} == {"worst", "median"}


def test_the_samples_of_a_finding_come_first(stale: Opened) -> None:
    chosen = [rows(stale, step)[3] for step in (9, 11)]
    samples = tuple(
        Sample(step, int(row["sequence"]), row["uid"], "mismatch.worst_rows", 1.5)
        for step, row in zip((9, 11), chosen, strict=True)
    )
    gone = Sample(9, 77, None, "mismatch.worst_rows", 1.0)
    found = shown(with_finding(stale, "mismatch.abs", 9, samples=(*samples, gone)), code="RLD999")
    assert [(pick.kind, pick.sequence, pick.step) for pick in found.picks[:3]][:2] == [
        ("sample", int(chosen[0]["sequence"]), 9), ("sample", int(chosen[1]["sequence"]), 11),
    ]  # fmt: skip
    assert found.picks[2].kind != "sample"
    assert (found.step, found.chosen) == (9, int(chosen[0]["sequence"]))


def test_the_group_side_by_side(written: Opened) -> None:
    found = shown(written, step=2, group="2:p1")
    group = found.group
    assert group.name == "2:p1"
    assert [member.uid for member in group.members] == ["2:5", "2:7", "2:6", "2:4"]  # by falling reward
    assert [member.reward for member in group.members] == [1.0, 1.0, 0.5, 0.0]
    assert [member.length for member in group.members] == [60, 8, 25, 40]
    assert [member.trained for member in group.members] == [54, 8, 19, 34]
    assert [member.advantage for member in group.members] == pytest.approx([0.4, 0.4, -0.1, -0.6])
    assert group.members[0].components == (("reward/format", 0.1), ("reward/right", 1.0))
    assert group.members[0].finish == "stop"
    assert group.prompt.text.startswith("What is <script>")
    assert len(group.table["uid"]) == GROUP
    assert {len(column) for column in group.table.values()} == {GROUP}


def test_texts_recorded_decoded_or_ids(written: Opened) -> None:
    recorded = shown(written, step=2).group.members[0].text
    assert recorded.kind == "text"
    assert recorded.text.startswith("<script>alert(1)</script><img src=x onerror=alert(1)>")
    run = replace(written.run, columns=written.run.columns - {"response", "prompt"})
    bare = replace(written, run=run)
    ids = shown(bare, step=2).group.members[0].text
    assert ids.kind == "ids"
    assert ids.text.startswith("1 2 ")
    decoded = shown(bare, step=2, tokenizer=lambda ids: [VOCABULARY[one] for one in ids]).group.members[0].text
    assert (decoded.kind, decoded.text) == ("decoded", recorded.text)
    none = replace(bare, run=replace(run, columns=run.columns - {"token_id"}))
    assert shown(none, step=2).group.members[0].text.kind == "none"


def test_long_texts_are_cut(written: Opened) -> None:
    longest = next(member for member in shown(written, step=STEPS).group.members if member.length == 9_000)
    assert len(longest.text.text) == 20_000
    assert longest.text.cut > 0
    assert longest.text.long


def test_left_out_tokens(tmp_path: Any) -> None:
    from rl_doctor.live.followed import Followed

    folder = write(tmp_path / "run")
    thin_part(folder, PartName(1, 0, 0, "sequences"), lambda step: step != 1)
    opened = Followed(folder).opened
    assert opened.run.steps == open_run(folder).steps
    member = shown(opened, step=1).group.members[0]
    assert member.left_out
    assert member.trained is None
    assert member.advantage is None
    assert member.text.kind == "text"  # it was recorded beside the tokens
    assert not shown(opened, step=2).group.members[0].left_out


def test_a_link_names_step_and_response(stale: Opened) -> None:
    for row in rows(stale, 11)[:2]:
        found = shown(stale, sequence=int(row["sequence"]), step=11)
        assert (found.chosen, found.step, found.group.name) == (row["sequence"], 11, row["group"])
        assert found.passes == 2
    assert shown(stale, sequence=5, step=11).chosen != 5
    assert np.isin(shown(stale, step=11).chosen, [row["sequence"] for row in rows(stale, 11)])


def test_a_response_is_known_in_its_group_whichever_pass_is_looked_at(padded: Opened) -> None:
    found = rollouts(padded, step=12)
    assert found is not None
    assert found.passes == 2
    assert found.chosen not in {member.sequence for member in found.group.members}
    (member,) = [member for member in found.group.members if found.shows(member)]
    assert member.uid == found.uid
    assert found.chosen in found.mates
    assert len(found.mates) == len(found.group.members)
    assert found.mates <= set(found.spread.sequences.tolist())

"""The tokens of a response, against the rows read whole and counted by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_doctor.store.rows import is_token
from rl_doctor.store.writer import RunWriter
from rl_doctor.views.opened import Opened
from rl_doctor.views.quantities import QUANTITIES
from rl_doctor.views.rollouts import rollouts
from rl_doctor.views.rows import MOST_TOKENS
from rl_doctor.views.tokens import LEVELS, MASKED, UNKNOWN, Tokens, tokens
from tests.integration.app.written import LONG, PLACEHOLDER, STEPS, VOCABULARY


def row_of(opened: Opened, sequence: int) -> dict[str, Any]:
    """A row, read with all others."""
    for batch in opened.run.batches(opened.run.columns):
        at = np.flatnonzero(batch.columns["sequence"] == sequence)
        if at.size:
            index, splits = int(at[0]), batch.splits
            own = slice(int(splits[index]), int(splits[index + 1]))
            return {name: values[own] if is_token(name) else values[index] for name, values in batch.columns.items()}
    raise AssertionError(sequence)


def shown(opened: Opened, **link: Any) -> Tokens:
    found = tokens(opened, **link)
    assert found is not None
    return found


def test_masked_placeholders_do_not_set_the_scale(written: Opened) -> None:
    for name in ("ratio", "mismatch", "kl", "kl_old"):
        found = shown(written, step=2, metric=QUANTITIES[name].metric)
        assert found.bounds is not None
        assert found.page is not None
        assert abs(math.log(found.bounds.high) if name == "ratio" else found.bounds.high) < 2.0
        assert (found.page.levels[found.page.masked] == MASKED).all()
        assert found.page.masked.tolist() == (~row_of(written, found.sequence)["response_mask"]).tolist()


def test_the_scale_ends_at_the_99th_percentile_and_counts_what_lies_beyond(written: Opened) -> None:
    found = shown(written, step=STEPS, metric="ref.kl")
    row = row_of(written, found.sequence)
    x = row["ref_logprob"].astype(np.float64) - row["logprob"].astype(np.float64)
    values = (np.expm1(x) - x)[row["response_mask"]]
    known = values[~np.isnan(values)]
    end = float(np.quantile(known, 0.99))
    assert found.bounds is not None
    assert found.bounds.high == pytest.approx(end, rel=1e-9)
    assert found.bounds.low == -found.bounds.high
    assert found.bounds.beyond == int((known > end).sum())
    assert found.bounds.unknown == 1
    assert found.page is not None
    shares = (np.expm1(x) - x)[:MOST_TOKENS]
    for level, value, masked in zip(found.page.levels.tolist(), shares.tolist(), found.page.masked.tolist(), strict=True):
        expected = round((min(max(value, -end), end) + end) / (2 * end) * LEVELS) if value == value else UNKNOWN  # noqa: PLR0124
        assert level == (MASKED if masked else expected)


def test_a_nan_is_shown_as_such(written: Opened) -> None:
    found = shown(written, step=1, metric="policy.ratio_mean")
    assert found.page is not None
    assert found.page.levels[5] == UNKNOWN
    assert found.page.fields["ratio"][5] == found.page.fields["logprob"][5] == "NaN"


def test_numbers_told_of_a_token(written: Opened) -> None:
    found = shown(written, step=2)
    row = row_of(written, found.sequence)
    assert found.page is not None
    assert found.page.fields["old_logprob"][3] == f"{row['old_logprob'][3]:.4g}"
    assert found.page.fields["token_id"] == tuple(str(one) for one in row["token_id"])
    assert found.page.fields["old_logprob"][12] == f"{PLACEHOLDER:.4g}"
    ratio = math.exp(float(row["logprob"][3]) - float(row["old_logprob"][3]))
    assert found.page.fields["ratio"][3] == f"{ratio:.4g}"
    assert found.advantage == pytest.approx(float(row["advantage"][0]))
    assert (found.reward, found.length, found.trained) == (row["reward"], 40, 34)


@pytest.mark.parametrize("position", [0, 3_999, 4_000, 7_000, LONG - 1, 10**9, -5])
def test_pages_of_a_long_response(written: Opened, position: int) -> None:
    found = shown(written, step=STEPS, position=position)
    page = found.page
    assert page is not None
    assert page.total == LONG
    assert page.first <= min(max(position, 0), LONG - 1) <= page.last
    assert page.first % MOST_TOKENS == 0
    assert len(page.texts) == len(page.levels) == len(page.masked) == page.last - page.first + 1 <= MOST_TOKENS
    assert page.before == (page.first - MOST_TOKENS if page.first else None)
    assert page.after == (page.last + 1 if page.last < LONG - 1 else None)


def test_the_profile_is_the_mean_by_position(written: Opened) -> None:
    found = shown(written, step=STEPS, metric="policy.entropy")
    profile = found.profile
    assert profile is not None
    sums: dict[int, list[float]] = {}
    for batch in written.run.only([STEPS]).batches(["entropy", "response_mask"]):
        for index in range(batch.n_sequences):
            for place, at in enumerate(range(batch.splits[index], batch.splits[index + 1])):
                if batch.columns["response_mask"][at]:
                    sums.setdefault(place // profile.width, []).append(float(batch.columns["entropy"][at]))
    row = row_of(written, found.sequence)
    for index in range(len(profile.positions)):
        values = sums.get(index, [])
        assert profile.counts[index] == len(values)
        assert profile.others[index] == pytest.approx(math.fsum(values) / len(values))
        own = slice(index * profile.width, (index + 1) * profile.width)
        assert profile.own[index] == pytest.approx(row["entropy"][own][row["response_mask"][own]].astype(np.float64).mean())
    assert len(profile.positions) <= 60


def test_tokens_that_carry_most(written: Opened) -> None:
    found = shown(written, step=2, metric="mismatch.abs")
    row = row_of(written, found.sequence)
    d = np.abs(row["old_logprob"].astype(np.float64) - row["rollout_logprob"].astype(np.float64))
    d[~row["response_mask"] | (row["rollout_logprob"] >= 1e-3)] = np.nan
    order = [int(at) for at in np.argsort(-np.nan_to_num(d, nan=-1.0), kind="stable")[:25]]
    assert list(found.top_positions) == order
    assert found.top is not None
    assert list(found.top["share"]) == pytest.approx([d[at] / np.nansum(d) for at in order])
    by_id: dict[int, list[float]] = {}
    for batch in written.run.only([2]).batches(written.run.columns):
        columns = batch.columns
        for at in np.flatnonzero(
            columns["response_mask"] & (columns["rollout_logprob"] < 1e-3) & (columns["old_logprob"] < 1e-3)
        ):
            value = abs(float(columns["old_logprob"][at]) - float(columns["rollout_logprob"][at]))
            by_id.setdefault(int(columns["token_id"][at]), []).append(value)
    total = math.fsum(value for values in by_id.values() for value in values)
    assert found.carriers is not None
    told = dict(zip(found.carriers["token_id"], found.carriers["share"], strict=True))
    expected = sorted(by_id, key=lambda one: -math.fsum(by_id[one]))[:25]
    assert list(told) == expected
    assert [told[one] for one in expected] == pytest.approx([math.fsum(by_id[one]) / total for one in expected])


def test_texts(written: Opened) -> None:
    plain, decoded = shown(written, step=2), shown(written, step=2, tokenizer=lambda ids: [VOCABULARY[one] for one in ids])
    assert plain.page is not None
    assert decoded.page is not None
    ids = [int(one) for one in row_of(written, plain.sequence)["token_id"]]
    assert plain.page.texts == tuple(str(one) for one in ids)
    assert decoded.page.texts == tuple(VOCABULARY[one] for one in ids)
    assert not plain.page.decoded
    assert decoded.page.decoded


def test_a_link_names_step_response_and_colour(stale: Opened) -> None:
    last = shown(stale)
    assert last.step == stale.run.steps[-1]
    for sequence in list(last.neighbours)[:3]:
        assert shown(stale, sequence=sequence).sequence == sequence
        assert shown(stale, sequence=sequence, step=last.step).sequence == sequence
    found = shown(stale, metric="policy.clip_frac")
    assert found.quantity is QUANTITIES["clipped"]
    assert found.bounds is None
    assert shown(stale, code="RLD101").step == 5
    picks = {(pick.kind, pick.by): pick for pick in rollouts(stale, code="RLD101").picks}  # type: ignore[union-attr]
    assert shown(stale, code="RLD101").sequence == picks["worst", "ratio"].sequence
    assert shown(stale, code="RLD101").quantity is QUANTITIES["ratio"]
    assert shown(stale, sequence=12, step=7).step == 7  # not there: another of that step
    assert shown(stale, step=10**6).step == last.step


def test_passes_and_neighbours(stale: Opened) -> None:
    found = shown(stale, step=5)
    assert len(found.passes) == 2
    assert [(one.epoch, one.minibatch) for one in found.passes] == [(0, 0), (1, 0)]
    order = list(found.neighbours)
    assert found.earlier is None
    assert found.later == order[1]
    assert shown(stale, step=5, sequence=order[1]).earlier == order[0]
    assert shown(stale, step=5, sequence=order[-1]).later is None


def test_tokens_beyond_the_end_of_the_response(padded: Opened) -> None:
    found = shown(padded, code="RLD010")
    assert found.quantity is QUANTITIES["masked"]
    assert found.page is not None
    assert found.length is not None
    assert found.page.levels.tolist() == [1] * found.length + [3] * (found.page.total - found.length)
    assert found.lacking["mismatch"] == ("rollout_logprob",)


def test_without_clip_range_nothing_is_said_of_clipping(written: Opened) -> None:
    config = replace(written.run.info.config, clip_high=None)
    run = replace(written.run, info=replace(written.run.info, config=config))
    found = shown(replace(written, run=run), metric="policy.clip_frac")
    assert found.lacking["clipped"] == ("config.clip_high",)
    assert found.quantity is QUANTITIES["ratio"]


def test_a_log_has_no_tokens(tmp_path: Any) -> None:
    from rl_doctor.live.followed import Followed
    from rl_doctor.schema import RunInfo

    writer = RunWriter(tmp_path / "run", RunInfo(trainer="custom", algorithm="grpo"))
    writer.write_metrics([{"step": step, "name": "reward", "value": 0.5} for step in range(1, 30)])
    writer.close()
    assert tokens(Followed(tmp_path / "run").opened) is None

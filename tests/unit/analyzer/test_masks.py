"""Mask metrics on hand-made rows, each a case from practice with its look-alike."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from rl_doctor.analyzer.registry import metrics
from rl_doctor.schema import ROLES, RunInfo
from rl_doctor.store.batch import Batch
from tests.unit.analyzer.memory import Row, batch, blank, value_of, values_of

INFO = RunInfo(pad_token_id=0, eos_token_ids=(2,))
SHARED = RunInfo(pad_token_id=2, eos_token_ids=(2,))
NAN = math.nan


def value(name: str, *rows: Row, info: RunInfo = INFO) -> float:
    return value_of(name, _batch(rows, info))


def _batch(rows: tuple[Row, ...], info: RunInfo) -> Batch:
    plain = [{"step": 0, **{name: item for name, item in row.items() if name != "role"}} for row in rows]
    made = batch(plain, info)
    if "role" not in rows[0]:
        return made
    roles = [ROLES.index(word) if word else -1 for row in rows for word in row["role"]]
    return replace(made, columns={**made.columns, "role": _int8(roles)})


def _int8(values: list[int]) -> Any:
    import numpy as np

    return np.array(values, np.int8)


def bits(text: str) -> list[bool]:
    return [letter == "1" for letter in text]


def roles(text: str) -> list[str | None]:
    return [{"a": "assistant", "o": "tool", "u": "user", "-": None}[letter] for letter in text]


def row(ids: list[int], mask: str, **more: Any) -> Row:
    return {"token_id": ids, "response_mask": bits(mask), **more}


def test_padding_after_the_last_real_token_counts() -> None:
    assert value("mask.trailing_pad_frac", row([5, 6, 7, 0, 0], "11111")) == pytest.approx(2 / 5)
    assert value("mask.trailing_pad_row_frac", row([5, 6, 7, 0, 0], "11111"), row([5, 6], "11")) == 0.5


def test_padding_inside_a_response_and_a_full_row_do_not_count() -> None:
    assert value("mask.trailing_pad_frac", row([5, 0, 7], "111")) == 0.0
    assert value("mask.trailing_pad_frac", row([5, 6, 7, 8, 9], "11111")) == 0.0


@pytest.mark.parametrize(("mask", "share"), [("111100", 0.0), ("111110", 1 / 5), ("111111", 2 / 6)])
def test_one_eos_is_allowed_where_it_is_the_padding_too(mask: str, share: float) -> None:
    assert value("mask.trailing_pad_frac", row([1, 4, 4, 2, 2, 2], mask), info=SHARED) == pytest.approx(share)


def test_a_sampled_padding_token_may_end_a_response_of_known_length() -> None:
    rows = (row([5, 6, 0], "111", response_length=3), row([5, 0, 0], "111", response_length=3))
    assert value("mask.trailing_pad_frac", *rows) == pytest.approx(1 / 6)
    assert value("mask.trailing_pad_row_frac", *rows) == 0.5


def test_without_a_padding_id_nothing_is_measured() -> None:
    assert math.isnan(value("mask.trailing_pad_frac", row([5, 0], "11"), info=RunInfo()))


def test_trained_tokens_beyond_the_length() -> None:
    rows = (row([5, 6, 7, 0], "1111", response_length=3), row([5, 6], "11", response_length=None))
    assert value("mask.beyond_length_frac", *rows) == pytest.approx(1 / 4)
    assert value("mask.beyond_length_row_frac", *rows) == 1.0
    assert value("mask.length_agreement", *rows) == pytest.approx(3 / 4)


@pytest.mark.parametrize(
    ("ids", "mask", "finish", "info", "missed"),
    [
        ([1, 4, 4, 2, 2, 2], "111000", "stop", SHARED, 1.0),
        ([1, 4, 4, 2, 2, 2], "111100", "stop", SHARED, 0.0),
        ([1, 4, 4, 2], "1110", "stop", INFO, 1.0),
        ([1, 4, 4, 2], "1111", "stop", INFO, 0.0),
        ([1, 4, 4, 2], "1110", None, INFO, 1.0),
        ([1, 4, 4, 2], "1110", "length", INFO, NAN),
        ([1, 4, 4, 7], "1110", "stop", INFO, NAN),
        ([1, 4, 4, 2], "0000", "stop", INFO, NAN),
        ([1, 4, 9, 2], "1100", "stop", INFO, NAN),
    ],
)
def test_eos(ids: list[int], mask: str, finish: str | None, info: RunInfo, missed: float) -> None:
    found = value("mask.eos_missed_frac", row(ids, mask, finish_reason=finish), info=info)
    assert found == missed or (math.isnan(found) and math.isnan(missed))


def test_the_end_of_a_tool_message_is_no_missed_eos() -> None:
    closing = row([1, 4, 2], "110", finish_reason="stop", role=roles("aao"))
    assert math.isnan(value("mask.eos_missed_frac", closing))


def test_agreement_with_roles() -> None:
    right = row([1] * 8, "11100011", role=roles("aaaoooaa"))
    wrong = row([1] * 8, "00011100", role=roles("aaaoooaa"))
    assert value("mask.role_agreement", right) == 1.0
    assert value("mask.role_agreement", wrong) == 0.0
    assert value("mask.observation_frac", wrong) == 1.0
    glue = row([1] * 8, "11110011", role=roles("aaaoooaa"))
    assert value("mask.observation_frac", glue) == pytest.approx(1 / 6)
    assert value("mask.observation_trained_frac", glue) == pytest.approx(1 / 3)


def test_rows_masked_as_a_whole_are_left_out_of_agreements() -> None:
    assert math.isnan(value("mask.role_agreement", row([1] * 3, "000", role=roles("aaa"))))


def test_agreement_with_the_engine() -> None:
    logprobs = [-1.0, -1.0, NAN, NAN, -1.0]
    assert value("mask.sampled_agreement", row([1] * 5, "11001", rollout_logprob=logprobs)) == 1.0
    assert value("mask.sampled_agreement", row([1] * 5, "00110", rollout_logprob=logprobs)) == 0.0
    assert math.isnan(value("mask.sampled_agreement", row([1] * 2, "11", rollout_logprob=[-1.0, -1.0])))


def test_a_certain_token_is_no_missing_one() -> None:
    collapsed = row([1] * 6, "111110", rollout_logprob=[0.0, -1e-6, 0.0, 0.0, 0.0, 0.0])
    sure, far = [0.0, -1e-6, -1e-7, 0.0, -1e-3, 0.0], [-3.0] * 6
    assert value("mask.sampled_agreement", collapsed) == 1.0
    assert value("mask.sampled_agreement", {**collapsed, "old_logprob": sure}) == 1.0
    assert value("mask.sampled_agreement", {**collapsed, "old_logprob": far}) == pytest.approx(2 / 6)
    inverted = row([1] * 6, "001111", rollout_logprob=[-1.0, -1.0, 0.0, 0.0, 0.0, 0.0])
    assert value("mask.sampled_agreement", inverted) == 0.0
    assert value("mask.sampled_agreement", {**inverted, "old_logprob": [-1.0, -1.0, 0.0, 0.0, 0.0, 0.0]}) == 0.0


@pytest.mark.parametrize("filler", [NAN, 0.0])
def test_trained_runs_without_a_rollout_logprob(filler: float) -> None:
    trainer = [-1.0, -1.0, -3.0, -0.5, -4.0, -1.0]
    inside = row([1] * 6, "111111", rollout_logprob=[-1.0, -1.0, filler, filler, filler, -1.0], old_logprob=trainer)
    assert value("mask.unsampled_frac", inside) == pytest.approx(0.5)
    at_end = row([1] * 6, "111111", rollout_logprob=[-1.0, -1.0, -1.0, filler, filler, filler], old_logprob=trainer)
    assert value("mask.unsampled_frac", at_end) == 0.0
    single = row([1] * 6, "111111", rollout_logprob=[-1.0, -1.0, filler, -1.0, filler, -1.0], old_logprob=trainer)
    assert value("mask.unsampled_frac", single) == 0.0
    masked = row([1] * 6, "110001", rollout_logprob=[-1.0, -1.0, filler, filler, filler, -1.0], old_logprob=trainer)
    assert value("mask.unsampled_frac", masked) == 0.0


def test_certain_tokens_are_no_gap() -> None:
    certain = row([1] * 5, "11111", rollout_logprob=[-1.0, 0.0, 0.0, 0.0, -1.0], old_logprob=[-1.0, -1e-4, -1e-3, 0.0, -1.0])
    assert value("mask.unsampled_frac", certain) == 0.0


def test_runs_do_not_join_across_rows() -> None:
    first = row([1] * 3, "111", rollout_logprob=[-1.0, NAN, NAN], old_logprob=[-1.0, -3.0, -3.0])
    second = row([1] * 3, "111", rollout_logprob=[NAN, NAN, -1.0], old_logprob=[-3.0, -3.0, -1.0])
    assert value("mask.unsampled_frac", first, second) == 0.0


def test_prompt_tokens_in_the_loss() -> None:
    rows = ({"prompt_loss_tokens": 4}, {"prompt_loss_tokens": 0}, {"prompt_loss_tokens": None})
    assert value("mask.prompt_loss_tokens", *rows) == 2.0
    assert value("mask.prompt_loss_frac", *rows) == 0.5


def advantage(mask: str, values: list[float]) -> Row:
    return {"response_mask": bits(mask), "advantage": values}


def test_advantages_outside_the_mask() -> None:
    assert value("mask.adv_outside_frac", advantage("1100", [1.0, 1.0, 0.0, 0.0])) == 0.0
    assert value("mask.adv_outside_frac", advantage("1100", [1.0, 1.0, -2.0, 0.0])) == pytest.approx(0.5)
    assert value("mask.adv_outside_frac", advantage("1100", [1.0, 1.0, NAN, NAN])) == 0.0


def test_a_repeated_advantage_is_a_way_of_storing_it() -> None:
    assert value("mask.adv_outside_frac", advantage("1100", [1.0] * 4)) == 0.0
    assert value("mask.adv_broadcast_frac", advantage("1100", [1.0] * 4)) == 1.0
    assert value("mask.adv_broadcast_frac", advantage("1100", [1.0, 1.0, 0.0, 0.0])) == 0.0


def test_displaced_advantages() -> None:
    displaced = advantage("1111000", [0.0, 1.0, 1.5, 2.0, 1.0, 0.0, 0.0])
    assert value("mask.adv_inside_zero_frac", displaced) == pytest.approx(0.25)
    assert value("mask.adv_outside_row_frac", displaced) == 1.0


def test_empty_masks() -> None:
    rows = (
        {"response_mask": bits("000"), "finish_reason": "length", "response_length": 3},
        {"response_mask": bits("000"), "finish_reason": "stop", "response_length": 3},
        {"response_mask": bits("110"), "finish_reason": "stop", "response_length": 3},
        {"response_mask": [], "finish_reason": "abort", "response_length": 0},
    )
    assert value("mask.empty_frac", *rows) == pytest.approx(2 / 3)
    assert value("mask.empty_unexplained_frac", *rows) == pytest.approx(1 / 3)


def test_rows_that_were_rejected() -> None:
    rows = (
        {"response_mask": bits("000"), "loss_mask": bits("110"), "finish_reason": "stop"},
        {"response_mask": bits("000"), "loss_mask": bits("000"), "finish_reason": "stop"},
        {"response_mask": bits("110"), "loss_mask": bits("111"), "finish_reason": "stop"},
        {"response_mask": bits("000"), "loss_mask": bits("110"), "finish_reason": "length"},
    )
    assert value("mask.empty_frac", *rows) == pytest.approx(3 / 4)
    assert value("mask.empty_unexplained_frac", *rows) == pytest.approx(1 / 4)
    assert value("mask.rejected_frac", *rows) == pytest.approx(2 / 4)


def test_padding_rows_count_nowhere() -> None:
    rows = (row([5, 6], "11", is_padding=False), row([5, 0, 0, 0], "1111", is_padding=True))
    assert value("mask.trailing_pad_frac", *rows) == 0.0
    assert value("mask.empty_frac", *rows) == 0.0


@pytest.mark.parametrize("name", sorted(name for name in metrics() if name.startswith("mask.")))
def test_a_row_without_tokens_says_nothing(name: str) -> None:
    empty: Row = {"token_id": [], "response_mask": [], "rollout_logprob": [], "old_logprob": [], "advantage": [], "role": []}
    row = blank(metrics()[name], empty | {"finish_reason": "abort", "response_length": 0, "prompt_loss_tokens": 0})
    found = values_of(name, _batch((row,), INFO))
    if name.startswith("mask.prompt_loss"):  # of prompts, which the row has
        assert found == [0.0]
    else:
        assert all(map(math.isnan, found))

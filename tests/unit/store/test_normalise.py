from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor.errors import InputError
from rl_doctor.schema import MISSING_INT
from rl_doctor.store.normalise import normalise
from rl_doctor.store.rows import Rows


def tokens(rows: Rows, name: str) -> list[list[Any]]:
    return [rows.columns[name][a:b].tolist() for a, b in zip(rows.splits[:-1], rows.splits[1:], strict=True)]


@st.composite
def padded(draw: st.DrawFn) -> dict[str, Any]:
    """Prompts and responses as a trainer pads them, with a loss mask that may stray anywhere in the response."""
    batch, width = draw(st.integers(1, 4)), draw(st.integers(1, 6))
    prompt_width = draw(st.integers(0, 4))
    left = draw(st.booleans())
    lengths = [draw(st.integers(0, width)) for _ in range(batch)]
    prompts = [draw(st.integers(0, prompt_width)) for _ in range(batch)]
    mask = [[draw(st.booleans()) for _ in range(width)] for _ in range(batch)]
    attention = []
    for prompt, length in zip(prompts, lengths, strict=True):
        response = [1] * length + [0] * (width - length)
        attention.append([0] * (prompt_width - prompt) + [1] * prompt + (response[::-1] if left else response))
    ids = np.arange(batch * width).reshape(batch, width)
    return {
        "attention": attention,
        "mask": mask,
        "ids": ids,
        "prompts": prompts,
        "lengths": lengths,
        "prompt_width": prompt_width,
    }


def reference(case: dict[str, Any]) -> list[tuple[list[int], list[bool], int]]:
    """Kept ids, kept mask and response length of each row, one position at a time."""
    found = []
    for index, ids in enumerate(case["ids"].tolist()):
        attention = case["attention"][index][case["prompt_width"] :]
        marked = [at for at in range(len(ids)) if attention[at] or case["mask"][index][at]]
        kept = range(marked[0], marked[-1] + 1) if marked else range(0)
        found.append(([ids[at] for at in kept], [case["mask"][index][at] for at in kept], sum(attention)))
    return found


@given(padded())
def test_full_width_attention_mask_matches_a_plain_reading(case: dict[str, Any]) -> None:
    rows = normalise(
        {
            "step": 1,
            "attention_mask": case["attention"],
            "prompt_length": case["prompts"],
            "response_mask": case["mask"],
            "token_id": case["ids"],
        }
    )
    expected = reference(case)
    assert tokens(rows, "token_id") == [ids for ids, _, _ in expected]
    assert tokens(rows, "response_mask") == [mask for _, mask, _ in expected]
    assert rows.columns["response_length"].tolist() == [length for _, _, length in expected]
    assert rows.columns["stored_length"].tolist() == [len(ids) for ids, _, _ in expected]


@given(padded())
def test_response_wide_attention_mask_matches_a_plain_reading(case: dict[str, Any]) -> None:
    attention = [row[case["prompt_width"] :] for row in case["attention"]]
    rows = normalise({"step": 1, "attention_mask": attention, "response_mask": case["mask"], "token_id": case["ids"]})
    expected = reference(case)
    assert tokens(rows, "token_id") == [ids for ids, _, _ in expected]
    assert rows.columns["response_length"].tolist() == [length for _, _, length in expected]


@given(padded())
def test_padding_further_changes_nothing(case: dict[str, Any]) -> None:
    attention = np.array([row[case["prompt_width"] :] for row in case["attention"]], np.bool_)
    columns = {"attention_mask": attention, "response_mask": np.array(case["mask"]), "token_id": case["ids"]}
    wider = {name: np.pad(values, ((0, 0), (2, 3))) for name, values in columns.items()}
    narrow, wide = normalise({"step": 1, **columns}), normalise({"step": 1, **wider})
    for name in narrow.columns:
        np.testing.assert_array_equal(narrow.columns[name], wide.columns[name])


@given(padded())
def test_prompt_positions_in_the_loss_are_counted(case: dict[str, Any]) -> None:
    width = case["ids"].shape[1]
    prompt_part = np.array(case["attention"], np.bool_)[:, : case["prompt_width"]]
    full = np.concatenate([prompt_part, np.array(case["mask"])], axis=1)
    columns = {"step": 1, "attention_mask": case["attention"], "prompt_length": case["prompts"], "response_mask": full}
    if full.shape[1] == width:
        return
    rows = normalise(columns | {"token_id": case["ids"]})
    assert rows.columns["prompt_loss_tokens"].tolist() == case["prompts"]
    assert tokens(rows, "response_mask") == [mask for _, mask, _ in reference(case)]


def test_mask_beyond_the_response_stays_visible() -> None:
    rows = normalise({"step": 1, "response_length": [2, 4], "response_mask": np.ones((2, 4)), "logprob": np.zeros((2, 4))})
    assert rows.columns["stored_length"].tolist() == [4, 4]
    assert rows.columns["response_length"].tolist() == [2, 4]


def test_eos_left_out_of_the_mask_stays_visible() -> None:
    rows = normalise({"step": 1, "response_length": [3], "response_mask": [[1, 1, 0, 0]], "token_id": [[5, 6, 2, 0]]})
    assert tokens(rows, "token_id") == [[5, 6, 2]]
    assert tokens(rows, "response_mask") == [[True, True, False]]


def test_lengths_of_left_padded_responses() -> None:
    rows = normalise(
        {
            "step": 1,
            "response_length": [2, 3],
            "response_mask": [[0, 0, 1, 1], [0, 1, 1, 1]],
            "token_id": np.arange(8).reshape(2, 4),
        }
    )
    assert tokens(rows, "token_id") == [[2, 3], [5, 6, 7]]


def test_without_mask_or_length_the_response_length_is_unknown() -> None:
    rows = normalise({"step": 1, "response_mask": [[0, 1, 1, 0]], "logprob": [[1, 2, 3, 4]]})
    assert "response_length" not in rows.columns
    assert tokens(rows, "logprob") == [[2.0, 3.0]]
    everything = normalise({"step": 1, "logprob": [[1, 2, 3, 4]]})
    assert tokens(everything, "logprob") == [[1.0, 2.0, 3.0, 4.0]]
    assert "response_length" not in everything.columns


def test_nan_is_kept_and_empty_responses_are_rows() -> None:
    rows = normalise({"step": 1, "attention_mask": [[1, 1], [0, 0]], "logprob": [[np.nan, -1], [0, 0]], "reward": [1.0, np.nan]})
    assert rows.columns["stored_length"].tolist() == [2, 0]
    np.testing.assert_array_equal(rows.columns["logprob"], np.array([np.nan, -1], np.float32))
    np.testing.assert_array_equal(rows.columns["reward"], [1.0, np.nan])


def test_advantage_per_sequence_is_spread_over_trained_tokens() -> None:
    mask = [[1, 0, 1], [1, 1, 0]]
    for advantage in ([2.0, -1.0], [[2.0], [-1.0]]):
        rows = normalise({"step": 1, "attention_mask": [[1, 1, 1], [1, 1, 0]], "response_mask": mask, "advantage": advantage})
        assert tokens(rows, "advantage") == [[2.0, 0.0, 2.0], [-1.0, -1.0]]


def test_packed_rows_without_left_padding_are_aligned_by_prompt_length() -> None:
    attention = [[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0]]
    ids = [[10, 11, 0, 0], [20, 21, 22, 23]]
    rows = normalise({"step": 1, "attention_mask": attention, "prompt_length": [2, 1], "token_id": ids})
    assert tokens(rows, "token_id") == [[10, 11], [20, 21, 22, 23]]


def test_all_columns_over_prompt_and_response() -> None:
    columns = {
        "step": 1,
        "attention_mask": [[0, 1, 1, 1], [1, 1, 1, 1]],
        "prompt_length": [1, 2],
        "response_length": [2, 2],
        "response_mask": [[0, 0, 1, 1], [0, 1, 1, 1]],
        "token_id": [[0, 1, 2, 3], [4, 5, 6, 7]],
    }
    rows = normalise(columns)
    assert tokens(rows, "token_id") == [[2, 3], [6, 7]]
    assert rows.columns["prompt_loss_tokens"].tolist() == [0, 1]
    assert rows.columns["left_padding"].tolist() == [1, 0]
    told = normalise({name: values for name, values in columns.items() if name != "response_length"}, full_width=True)
    assert tokens(told, "token_id") == [[2, 3], [6, 7]]


def test_missing_integers_and_texts() -> None:
    rows = normalise({"step": 3, "weight_version": [1, None], "uid": ["a", float("nan")], "group": [7, 8]})
    assert rows.columns["weight_version"].tolist() == [1, MISSING_INT["int64"]]
    assert rows.columns["uid"].tolist() == ["a", None]
    assert rows.columns["group"].tolist() == ["7", "8"]
    assert rows.columns["step"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"logprob": [[1, 2]], "old_logprob": [[1, 2, 3]]}, ["different widths", "logprob [1, 2]", "old_logprob [1, 3]"]),
        ({"logprob": [[1, 2]], "attention_mask": [[1, 1, 1]]}, ["cannot align", "[1, 2]", "[1, 3]", "prompt_length"]),
        ({"logprob": [[1, 2]], "attention_mask": [[1, 1, 1]], "prompt_length": [0]}, ["cannot align", "as wide as"]),
        ({"logprob": [[1, 2]], "response_mask": [[1, 1, 0]], "prompt_length": [0]}, ["cannot align"]),
        ({"logprob": [[1, 2]], "reward": [1, 2]}, ["numbers of sequences", "logprob [1, 2]", "reward [2]"]),
        ({"logprob": [1, 2]}, ["logprob has shape [2]", "[B, T]"]),
        ({"advantage": [1, 2]}, ["advantage", "response_mask"]),
        ({"reward": [[1, 2]], "logprob": [[1, 2]]}, ["reward has shape [1, 2]"]),
        ({"response_mask": [[0.5, 1]]}, ["response_mask is 0.5 at [0, 0]", "0 or 1"]),
        ({"token_id": [[0.5, 1]]}, ["token_id is 0.5 at [0, 0]", "whole number from"]),
        ({"logprob": [["a", "b"]]}, ["logprob", "numbers belong"]),
        ({"logprob": [[1], [1, 2]]}, ["logprob", "unequal length"]),
        ({"response_length": [-1]}, ["response_length is -1 at [0]", "from 0 to"]),
        ({"colour": [1]}, ["'colour' is not a known column"]),
    ],
)
def test_what_does_not_fit_is_one_line(columns: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        normalise({"step": 1, **columns})
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in ["log_batch: ", *words]), message


PROMPT_ROWS = {
    "attention_mask": [[0, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 0]],
    "prompt_length": [2, 3],
    "logprob": [[9.0, 0.0, 0.0, -1.0, -2.0, 9.0], [0.0, 0.0, 0.0, -3.0, 9.0, 9.0]],
}
ONLY_RESPONSE = [[0, 0, 0, 1, 1, 0], [0, 0, 0, 1, 0, 0]]


@pytest.mark.parametrize(
    ("mask", "in_loss"), [(ONLY_RESPONSE, [0, 0]), (PROMPT_ROWS["attention_mask"], [2, 3])], ids=["right", "prompt in loss"]
)
def test_rows_of_prompt_and_response_are_cut_where_the_prompt_is_known_to_end(mask: Any, in_loss: list[int]) -> None:
    rows = normalise({**PROMPT_ROWS, "response_mask": mask})
    assert rows.columns["logprob"].tolist() == [-1.0, -2.0, -3.0]
    assert rows.columns["response_length"].tolist() == [2, 1]
    assert rows.columns["prompt_loss_tokens"].tolist() == in_loss
    assert rows.columns["left_padding"].tolist() == [1, 0]


def test_rows_of_the_response_are_not_cut_by_the_prompt_length() -> None:
    logprob = -np.arange(1.0, 13.0).reshape(2, 6)
    mask = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]])
    rows = normalise({"attention_mask": mask, "response_mask": mask, "prompt_length": [2, 3], "logprob": logprob})
    assert rows.columns["response_length"].tolist() == [4, 3]
    assert rows.columns["logprob"].tolist() == logprob[mask == 1].tolist()

"""Rows long enough to be copied one by one, in every layout in which trainers hold them."""

from __future__ import annotations

from collections.abc import Callable
from io import BytesIO

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_doctor.store.alignment import align

ROWS, WIDTH = 6, 701
RNG = np.random.default_rng(0)
LENGTHS = np.array([701, 0, 350, 1, 700, 640])
MASK = np.arange(WIDTH) < LENGTHS[:, None]


def inside_wider_rows(array: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.concatenate([array, array], axis=1)[:, WIDTH:]


def first_for_all(array: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.broadcast_to(array[:, :1], array.shape)


@pytest.mark.parametrize("layout", [np.ascontiguousarray, np.asfortranarray, inside_wider_rows, first_for_all])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int64, np.bool_])
def test_what_is_taken_is_what_the_mask_selects(layout: Callable[..., NDArray[np.generic]], dtype: type[np.generic]) -> None:
    array = layout((RNG.integers(0, 9, (ROWS, WIDTH))).astype(dtype))
    alignment = align({"response_mask": MASK, "token_id": array}, None, None, full_width=False, where="test")
    taken = alignment.take({"a": array, "b": MASK})
    np.testing.assert_array_equal(taken["a"], array[MASK])
    assert taken["b"].all()
    assert taken["a"].dtype == dtype
    assert not np.shares_memory(taken["a"], array)


@pytest.mark.parametrize("width", [8, 63, 64, 65, 701])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_kept_is_from_the_first_to_the_last_flag(width: int, share: float) -> None:
    mask = RNG.random((50, width)) < share
    alignment = align({"response_mask": mask}, None, None, full_width=False, where="test")
    for row, first, length in zip(mask, alignment.first, np.diff(alignment.splits), strict=True):
        at = np.flatnonzero(row)
        assert (first, length) == ((at[0], at[-1] + 1 - at[0]) if len(at) else (0, 0))


def test_memory_in_use_is_not_written_to() -> None:
    memory = BytesIO()
    alignment = align({"response_mask": MASK}, None, None, full_width=False, where="test")
    taken = alignment.take({"numbers": MASK.astype(np.float64)}, memory)
    memory.seek(0)
    with pytest.raises(BufferError):
        memory.write(b"x")
    del taken
    memory.write(b"x")

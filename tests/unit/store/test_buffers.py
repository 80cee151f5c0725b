import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_doctor.store import buffers

TYPES = [pa.bool_(), pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float16(), pa.float32(), pa.float64()]


@pytest.mark.parametrize("type_", TYPES, ids=str)
@given(data=st.lists(st.sampled_from([None, 0, 1])), start=st.integers(0, 5))
def test_values_and_validity_equal_arrows_own(type_, data, start):
    array = pa.array([None if value is None else type_.to_pandas_dtype()(value) for value in data], type_).slice(start)
    assert buffers.validity(array).tolist() == [value.is_valid for value in array]
    found = buffers.values(array)
    assert found.dtype == np.dtype(type_.to_pandas_dtype())
    kept = buffers.validity(array)
    assert found[kept].tolist() == [value.as_py() for value in array if value.is_valid]


@pytest.mark.parametrize("make", [pa.list_, pa.large_list, lambda inner: pa.list_(inner, 2)], ids=["list", "large", "fixed"])
@given(data=st.lists(st.sampled_from([None, [1.0, 2.0]])), start=st.integers(0, 5))
def test_list_lengths(make, data, start):
    array = pa.array(data, make(pa.float32())).slice(start)
    assert buffers.list_lengths(array).tolist() == [0 if value is None else len(value) for value in data[start:]]
    assert buffers.validity(array).tolist() == [value is not None for value in data[start:]]
    assert buffers.list_values(array).to_pylist() == [one for value in data[start:] if value for one in value]


def test_lists_of_unequal_length():
    assert buffers.list_lengths(pa.array([[1], [], None, [1, 2, 3]]).slice(1)).tolist() == [0, 0, 3]


def test_null_arrays():
    assert buffers.validity(pa.nulls(3)).tolist() == [False] * 3
    assert buffers.validity(pa.nulls(2, pa.int32())).tolist() == [False] * 2


def test_pandas_is_not_imported(tmp_path):
    import pyarrow.parquet as pq

    pq.write_table(
        pa.table({"x": [1, None, 3], "y": [[1.0], None, [2.0, 3.0]], "z": [[1.0], [], [2.0, 3.0]]}), tmp_path / "x.parquet"
    )
    code = (
        "import sys, pyarrow.parquet as pq; from rl_doctor.store import buffers\n"
        f"t = pq.ParquetFile({str(tmp_path / 'x.parquet')!r}).read()\n"
        "x, y, z = t['x'].chunk(0), t['y'].chunk(0), t['z'].chunk(0)\n"
        "buffers.validity(x); buffers.values(x); buffers.list_lengths(y); buffers.values(buffers.list_values(z))\n"
        "print('pandas' in sys.modules, 'pyarrow.compute' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]

"""A run file in which the rows of step 2 stand twice, and step 1 comes back after it."""

import pyarrow as pa
import pyarrow.parquet as pq

columns = {"step": [1, 2, 2, 1, 3], "uid": ["a", "b", "b", "c", "d"], "reward": [1.0, 0.0, 0.0, 1.0, 0.0]}
pq.write_table(pa.table(columns), "example.parquet")

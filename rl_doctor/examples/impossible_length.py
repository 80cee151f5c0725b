"""A run file in which more prompt tokens are trained on than the prompt has."""

import pyarrow as pa
import pyarrow.parquet as pq

columns = {
    "step": [1, 1, 2, 2],
    "reward": [1.0, 0.0, 1.0, 0.0],
    "prompt_length": [4, 4, 4, 4],
    "prompt_loss_tokens": [9, 0, 9, 0],
}
pq.write_table(pa.table(columns), "example.parquet")
